/* Every generator: the same seed makes the same task, the splits share no problem, markers take what is right only. */
#include "tasks_helpers.h"

enum { TASKS = 300 };

static char *dump(const task *t)
{
    json_t *all = json_pack("{s:O, s:s, s:i}", "messages", t->messages, "thinking", t->thinking, "family", t->family);
    if (t->tools) json_object_set(all, "tools", t->tools);
    char *text = json_dumps(all, JSON_SORT_KEYS);
    json_decref(all);
    return text;
}

static void a_number_names_one_task(void **state)
{
    (void)state;
    for (int set = 0; set < TASK_SETS; set++) {
        if (!task_set_present((task_set)set)) continue;
        char *last = NULL;
        for (uint64_t n = 0; n < 50; n++) {
            task a = make((task_set)set, TASK_TRAIN, 7, n, 600), b = make((task_set)set, TASK_TRAIN, 7, n, 600);
            char *x = dump(&a), *y = dump(&b);
            assert_string_equal(x, y);
            assert_true(!last || strcmp(last, x) != 0);
            assert_int_equal(task_set_find(task_set_name((task_set)set)), set);
            assert_non_null(task_family_name((task_set)set, a.family));
            free(last), free(y);
            last = x;
            task_free(&a), task_free(&b);
        }
        free(last);
    }
    assert_int_equal(task_set_find("nothing"), TASK_SETS);
}

/* Roles alternate, messages of assistants are where the turns say, the modes are known. */
static void tasks_are_well_formed(void **state)
{
    (void)state;
    for (int set = 0; set < TASK_SETS; set++) {
        if (!task_set_present((task_set)set)) continue;
        for (uint64_t n = 0; n < TASKS; n++) {
            int length = n % 3 ? 700 : 0;
            task t = make((task_set)set, n & 1 ? TASK_HELD_OUT : TASK_TRAIN, 3, n, length);
            size_t count = json_array_size(t.messages), previous = 0;
            assert_true(!strcmp(t.thinking, "enabled") || !strcmp(t.thinking, "adaptive") || !strcmp(t.thinking, "disabled"));
            assert_true(count >= 2);
            assert_string_equal(task_text(&t, count - 1, "role"), "assistant");
            for (size_t i = 0; i < t.turn_count; i++) {
                assert_string_equal(task_text(&t, t.turns[i].message, "role"), "assistant");
                assert_true(!i || t.turns[i].message > previous);
                previous = t.turns[i].message;
            }
            for (size_t i = 0; i < count; i++) /* what would be a marker in the prompt */
                assert_null(strstr(task_text(&t, i, "content"), "]~"));
            task_free(&t);
        }
    }
}

/* Those whose references are what a marker must take. Slips of SynthAIME are wrong on purpose, in training. */
static bool reference_is_right(const task *t, task_split split)
{
    return t->set != TASK_SYNTHAIME || split == TASK_HELD_OUT;
}

static void references_are_right(void **state)
{
    (void)state;
    for (int set = 0; set < TASK_SETS; set++) {
        if (!task_set_present((task_set)set)) continue;
        for (uint64_t n = 0; n < 4 * TASKS; n++) {
            task_split split = n & 1 ? TASK_HELD_OUT : TASK_TRAIN;
            task t = make((task_set)set, split, 5, n, n % 2 ? 0 : 900);
            for (size_t i = 0; i < t.turn_count && reference_is_right(&t, split); i++) {
                bool valid = false;
                buffer text = {0};
                hy_error err = {0};
                /* As the chat format spells it: content and calls. */
                written_text(&t, t.turns[i].message, &text, &err);
                if (!task_mark(&t, i, task_text(&t, t.turns[i].message, "reasoning"), text_of(&text), &valid) || !valid)
                    fail_msg("%s %d turn %zu (valid %d): %s", task_set_name(t.set), (int)n, i, valid, text_of(&text));
                buffer_free(&text);
            }
            task_free(&t);
        }
    }
}

/* Changes that make an answer wrong whatever it was, but for luck: counted, and hardly any may pass. */
static void damage(char *text, size_t length, draw *d)
{
    static const char other[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    for (int k = 0; k < 40 && length; k++) {
        size_t at = (size_t)draw_between(d, 0, (int64_t)length - 1);
        if (text[at] >= '0' && text[at] <= '9') {
            text[at] = (char)('0' + (text[at] - '0' + draw_between(d, 1, 9)) % 10);
        } else if ((text[at] >= 'a' && text[at] <= 'z') || (text[at] >= 'A' && text[at] <= 'Z')) {
            text[at] = other[draw_between(d, 0, 35)];
        }
    }
}

static void damaged_answers_are_wrong(void **state)
{
    (void)state;
    for (int set = 0; set < TASK_SETS; set++) {
        int asked = 0, passed = 0;
        if (!task_set_present((task_set)set)) continue;
        for (uint64_t n = 0; n < 2 * TASKS; n++) {
            task_split split = n & 1 ? TASK_HELD_OUT : TASK_TRAIN;
            task t = make((task_set)set, split, 6, n, 0);
            for (size_t i = 0; i < t.turn_count && reference_is_right(&t, split); i++) {
                buffer text = {0};
                hy_error err = {0};
                draw d = draw_begin(n, i);
                bool valid;
                written_text(&t, t.turns[i].message, &text, &err);
                assert_false(task_mark(&t, i, "", "", &valid));
                damage((char *)text_of(&text), text.length, &d);
                asked++;
                passed += task_mark(&t, i, "", text_of(&text), NULL);
                /* Anything is marked without harm: broken bytes, half an answer. */
                for (size_t cut = 0; cut < text.length; cut += 7) {
                    char half[64];
                    snprintf(half, sizeof half, "%.*s", (int)(cut % 60), text_of(&text) + cut);
                    task_mark(&t, i, half, half, &valid);
                }
                buffer_free(&text);
            }
            task_free(&t);
        }
        print_message("%s: %d of %d damaged answers pass\n", task_set_name((task_set)set), passed, asked);
        assert_true(passed * 20 <= asked);
    }
}

/* What is asked in one split is not asked in the other: the texts of questions whose problem decides the split. */
static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static size_t questions(task_set set, task_split split, char **out, size_t room)
{
    size_t count = 0;
    for (uint64_t n = 0; count < room; n++) {
        task t = make(set, split, 8, n, 0);
        buffer text = {0};
        for (size_t i = 0; i < t.turn_count && count < room; i++) {
            buffer_clear(&text);
            for (size_t m = 0; m < t.turns[i].message; m++) buffer_string(&text, task_text(&t, m, "content"));
            out[count++] = strdup(text_of(&text));
        }
        buffer_free(&text);
        task_free(&t);
    }
    return count;
}

static void splits_are_apart(void **state)
{
    (void)state;
    enum { ROOM = 4000 };
    static char *train[ROOM], *held[ROOM];
    for (int set = 0; set < TASK_SETS; set++) {
        if (!task_set_present((task_set)set) || set == TASK_TALK) continue; /* greetings are greetings in both */
        size_t a = questions((task_set)set, TASK_TRAIN, train, ROOM), b = questions((task_set)set, TASK_HELD_OUT, held, ROOM);
        qsort(train, a, sizeof *train, by_text);
        for (size_t i = 0; i < b; i++)
            if (bsearch(&held[i], train, a, sizeof *train, by_text))
                fail_msg("%s: in both splits: %s", task_set_name((task_set)set), held[i]);
        for (size_t i = 0; i < a; i++) free(train[i]);
        for (size_t i = 0; i < b; i++) free(held[i]);
    }
}

/* SynthAIME-30 stays what it is: a change of it is a change of every score that was ever written down. */
static void synthaime_30_is_fixed(void **state)
{
    (void)state;
    buffer all = {0};
    for (uint64_t n = 0; n < 30; n++) {
        task t = make(TASK_SYNTHAIME, TASK_HELD_OUT, TASK_SYNTHAIME_SEED, n, 0);
        buffer_string(&all, task_text(&t, 0, "content"));
        buffer_printf(&all, " %d\n", (int)json_integer_value(t.turns[0].expect));
        task_free(&t);
    }
    assert_int_equal(draw_hash(text_of(&all), all.length), UINT64_C(0x2e61aee9e372acc6));
    buffer_free(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_names_one_task), cmocka_unit_test(tasks_are_well_formed),
        cmocka_unit_test(references_are_right),    cmocka_unit_test(damaged_answers_are_wrong),
        cmocka_unit_test(splits_are_apart),        cmocka_unit_test(synthaime_30_is_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
