/* Lookups in long texts: the records are there, the answers are marked right, and other answers are not. */
#include "tasks_helpers.h"

static bool right(const task *t, size_t turn, const char *content)
{
    bool valid, ok = task_mark(t, turn, "", content, &valid);
    assert_true(valid || !ok);
    return ok;
}

static const char *reference(const task *t, size_t turn)
{
    return task_text(t, t->turns[turn].message, "content");
}

/* The text with one digit changed or, without digits, its last word. */
static void damage(const char *text, const char *value, char *out, size_t size)
{
    const char *at = text, *last = NULL;
    while ((at = strstr(at, value))) last = at++;
    assert_non_null(last);
    snprintf(out, size, "%s", text);
    char *from = out + (last - text);
    *from = *from >= '0' && *from <= '9' ? (*from == '9' ? '1' : (char)(*from + 1)) : 'X';
}

static void references_are_right(void **state)
{
    (void)state;
    size_t questions = 0, unknown = 0, families[8] = {0};
    for (uint64_t n = 0; n < 2000; n++) {
        task t = make(TASK_RETRIEVAL, n % 4 ? TASK_TRAIN : TASK_HELD_OUT, 5, n, n % 7 ? 700 : 3000);
        families[t.family]++;
        assert_true(t.turn_count > 0);
        for (size_t k = 0; k < t.turn_count; k++) {
            const char *value = json_string_value(t.turns[k].expect);
            char wrong[2000];
            questions++, unknown += !value;
            if (!right(&t, k, reference(&t, k))) fail_msg("%d.%zu: %s", (int)n, k, reference(&t, k));
            assert_false(right(&t, k, ""));
            assert_false(right(&t, k, "I do not know."));
            assert_false(right(&t, k, "The code is 77123."));
            if (!value) continue;
            /* The text, which is the first message, has the value. */
            assert_true(has_word(task_text(&t, 0, "content"), value));
            damage(reference(&t, k), value, wrong, sizeof wrong);
            if (right(&t, k, wrong)) fail_msg("%d.%zu %s for %s", (int)n, k, wrong, reference(&t, k));
            snprintf(wrong, sizeof wrong, "%s Or 77123.", reference(&t, k));
            if (right(&t, k, wrong)) fail_msg("%d.%zu %s for %s", (int)n, k, wrong, reference(&t, k));
            snprintf(wrong, sizeof wrong, "%s.", value);
            if (!right(&t, k, wrong)) fail_msg("%d.%zu %s: %s", (int)n, k, wrong, reference(&t, k));
            snprintf(wrong, sizeof wrong, "It is not %s.", value);
            if (right(&t, k, wrong)) fail_msg("%d.%zu %s for %s", (int)n, k, wrong, reference(&t, k));
        }
        task_free(&t);
    }
    assert_in_range(unknown, questions / 100, questions / 10);
    for (int f = 0; f < 7; f++) assert_true(families[f] > 30);
}

/* Each question of an evaluation asks, behind the text alone, for the record at its tenth. */
static void depths(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 40; n++) {
        int length = 1024 << (n % 5);
        task t = make(TASK_RETRIEVAL, TASK_HELD_OUT, 9, n, length);
        const char *text = task_text(&t, 0, "content");
        assert_int_equal(t.turn_count, 11);
        for (size_t k = 0; k < t.turn_count; k++) {
            assert_int_equal(t.turns[k].depth, 10 * k);
            assert_int_equal(t.turns[k].message, 3 + 2 * k);
            const char *name = strstr(reference(&t, k), " of "), *at = NULL;
            if (!name) continue; /* the value alone */
            char word[64];
            snprintf(word, sizeof word, "%.*s", (int)(strstr(name, " is ") - name - 4), name + 4);
            for (at = strstr(text, word); at && (at[strlen(word)] >= 'a' || (at > text && at[-1] >= 'a'));
                 at = strstr(at + 1, word))
                continue;
            assert_non_null(at);
            double where = 100.0 * (double)(at - text) / (double)strlen(text);
            if (length > 1024 && (where < 10.0 * (double)k - 8 || where > 10.0 * (double)k + 8))
                fail_msg("%d.%zu: %s at %g", (int)n, k, word, where);
        }
        /* The text and one question fill the length and no more. */
        row r = {0};
        hy_error err = {0};
        json_t *all = t.messages, *some = json_array();
        for (size_t i = 0; i < 4; i++) json_array_append(some, json_array_get(all, i));
        size_t turns = t.turn_count;
        t.messages = some, t.turn_count = 1;
        assert_int_equal(row_encode(&r, tokens(), &t, SIZE_MAX, &err), HY_OK);
        if (r.fits > (size_t)length || r.fits < (size_t)length * 8 / 10) fail_msg("%zu tokens for %d", r.fits, length);
        t.messages = all, t.turn_count = turns;
        json_decref(some);
        row_free(&r);
        task_free(&t);
    }
}

static bool held_out(const char *text)
{
    return draw_held_out(draw_hash(text, strlen(text)));
}

/* Whoever is asked for belongs to the split, in questions of every family; so do numbers. */
static void splits(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 1000; n++) {
        task_split split = n % 4 ? TASK_TRAIN : TASK_HELD_OUT;
        task t = make(TASK_RETRIEVAL, split, 6, n, 900);
        for (size_t k = 0; k < t.turn_count; k++) {
            const char *value = json_string_value(t.turns[k].expect), *name = strstr(reference(&t, k), " of "), *end;
            if (value && strspn(value, "0123456789") == strlen(value))
                assert_int_equal(held_out(value), split == TASK_HELD_OUT);
            if (!name || !(end = strstr(name, " is "))) continue;
            char word[64];
            snprintf(word, sizeof word, "%.*s", (int)(end - name - 4), name + 4);
            assert_int_equal(held_out(word), split == TASK_HELD_OUT);
        }
        task_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(references_are_right),
        cmocka_unit_test(depths),
        cmocka_unit_test(splits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
