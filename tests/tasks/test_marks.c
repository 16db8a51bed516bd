/* Reading answers: numbers, words, and each form to the letter. */
#include "tasks/form.h"
#include "tasks/facts.h"
#include "tasks/repeat.h"
#include "tasks/stories.h"
#include "tasks/sums.h"
#include "tasks_helpers.h"

static void the_last_number(void **state)
{
    static const struct {
        const char *text;
        bool found;
        int64_t value;
    } cases[] = {
        {"4837 + 961 = 5798.", true, 5798},
        {"The answer is -12.", true, -12},
        {"3 - 5 = -2", true, -2},
        {"10-20", true, 20},
        {"(7)-3", true, 3},
        {"It costs 1,234 dollars.", true, 1234},
        {"1,234,567", true, 1234567},
        {"3, 456", true, 456},
        {"12,34", true, 34},
        {"12.0", true, 12},
        {"12.5", false, 0},
        {"5 and 12.5", false, 0},
        {"none", false, 0},
        {"", false, 0},
        {"x7", true, 7},
        {"99999999999999999999", false, 0},
        {"-0", true, 0},
        {"7.", true, 7},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t value = 0;
        bool found = last_number(cases[i].text, &value);
        if (found != cases[i].found || (found && value != cases[i].value))
            fail_msg("\"%s\": %d %lld", cases[i].text, found, (long long)value);
    }
}

static void words_and_repeats(void **state)
{
    (void)state;
    assert_true(has_word("The capital is Paris.", "paris"));
    assert_false(has_word("Parisian", "Paris"));
    assert_false(has_word("128", "12"));
    assert_true(has_word("Run make serve.", "make serve"));
    assert_true(has_word("--weights stream: x", "--weights stream"));
    assert_false(has_word("", "a"));
    assert_true(repeat_equal("\"apple pie.\"", "apple pie"));
    assert_true(repeat_equal(" apple pie\n", "apple pie"));
    assert_false(repeat_equal("apple pies", "apple pie"));
    assert_false(repeat_equal("apple", "apple pie"));
    assert_true(repeat_equal("a.", "a."));
}

/* Marks `content` as the answer to a turn that expects what `expect` says. */
static bool marked(const char *expect, const char *content, bool *valid)
{
    task_turn turn = {.expect = json_loads(expect, 0, NULL)};
    task t = {.set = TASK_FORM, .turns = &turn, .turn_count = 1};
    assert_non_null(turn.expect);
    bool right = task_mark(&t, 0, "", content, valid);
    json_decref(turn.expect);
    return right;
}

static void forms(void **state)
{
    static const struct {
        form_kind form;
        const char *more, *content;
        bool right, valid;
    } cases[] = {
        {FORM_ONE_WORD, "\"brief\": \"Paris\"", "Paris.", true, true},
        {FORM_ONE_WORD, "\"brief\": \"Paris\"", "It is Paris", false, false},
        {FORM_ONE_WORD, "\"brief\": \"Paris\"", "Rome", false, true},
        {FORM_START, "\"brief\": \"Paris\", \"word\": \"Arr\"", "Arr! Paris.", true, true},
        {FORM_START, "\"brief\": \"Paris\", \"word\": \"Arr\"", "Paris. Arr", false, false},
        {FORM_END, "\"brief\": \"Paris\", \"word\": \"Arr\"", "Paris, arr.", true, true},
        {FORM_END, "\"brief\": \"Paris\", \"word\": \"Arr\"", "Arr: Paris.", false, false},
        {FORM_CAPITALS, "\"brief\": \"Paris\"", "IT IS PARIS.", true, true},
        {FORM_CAPITALS, "\"brief\": \"Paris\"", "It is PARIS.", false, false},
        {FORM_LOWER, "\"brief\": \"Paris\"", "it is paris.", true, true},
        {FORM_LOWER, "\"brief\": \"Paris\"", "it is Paris.", false, false},
        {FORM_WORDS, "\"list\": 0, \"count\": 2", "apple banana", true, true},
        {FORM_WORDS, "\"list\": 0, \"count\": 2", "pear, Plum.", true, true},
        {FORM_WORDS, "\"list\": 0, \"count\": 2", "apple apple", false, true},
        {FORM_WORDS, "\"list\": 0, \"count\": 2", "apple banana cherry", false, false},
        {FORM_AT_MOST, "\"brief\": \"Paris\", \"count\": 3", "It is Paris.", true, true},
        {FORM_AT_MOST, "\"brief\": \"Paris\", \"count\": 3", "I think it is Paris.", false, false},
        {FORM_JSON, "\"brief\": \"7\", \"key\": \"answer\"", "{\"answer\": 7}", true, true},
        {FORM_JSON, "\"brief\": \"7\", \"key\": \"answer\"", "{\"answer\": \"7\"}", true, true},
        {FORM_JSON, "\"brief\": \"7\", \"key\": \"answer\"", "{\"result\": 7}", false, false},
        {FORM_JSON, "\"brief\": \"7\", \"key\": \"answer\"", "{\"answer\": 7} Done.", false, false},
        {FORM_FIELDS, "\"fields\": {\"name\": \"Tom\", \"age\": 12}", "{\"age\": 12, \"name\": \"Tom\"}", true, true},
        {FORM_FIELDS, "\"fields\": {\"name\": \"Tom\", \"age\": 12}", "{\"age\": \"12\", \"name\": \"Tom\"}", false, true},
        {FORM_FIELDS, "\"fields\": {\"name\": \"Tom\", \"age\": 12}", "{\"name\": \"Tom\"}", false, true},
        {FORM_FIELDS, "\"fields\": {\"name\": \"Tom\"}", "name: Tom", false, false},
        {FORM_NUMBERED, "\"list\": 0, \"count\": 2", "1. apple\n2. pear", true, true},
        {FORM_NUMBERED, "\"list\": 0, \"count\": 2", "1. apple\n3. pear", false, false},
        {FORM_NUMBERED, "\"list\": 0, \"count\": 2", "1. apple\n2. pear\n3. plum", false, true},
        {FORM_BULLETS, "\"list\": 0, \"count\": 2", "- apple\n- pear", true, true},
        {FORM_BULLETS, "\"list\": 0, \"count\": 2", "apple\npear", false, false},
        {FORM_COMMAS, "\"list\": 0, \"count\": 2", "apple, pear.", true, true},
        {FORM_COMMAS, "\"list\": 0, \"count\": 2", "apple and pear", false, false},
        {FORM_COMMAS, "\"list\": 0, \"count\": 2", "apple, chair", false, true},
        {FORM_QUOTES, "\"brief\": \"Paris\"", "\"It is Paris.\"", true, true},
        {FORM_QUOTES, "\"brief\": \"Paris\"", "It is \"Paris\"", false, false},
        {FORM_DIGITS, "\"brief\": \"42\"", "42", true, true},
        {FORM_DIGITS, "\"brief\": \"42\"", "42 dollars", false, false},
        {FORM_NUMBER_WORDS, "\"brief\": \"42\"", "Forty two.", true, true},
        {FORM_NUMBER_WORDS, "\"brief\": \"42\"", "42", false, false},
        {FORM_NUMBER_WORDS, "\"brief\": \"42\"", "forty", false, true},
        {FORM_NO_PUNCTUATION, "\"brief\": \"Paris\"", "It is Paris", true, true},
        {FORM_NO_PUNCTUATION, "\"brief\": \"Paris\"", "It is Paris.", false, false},
        {FORM_PERSONA, "\"brief\": \"Nova\"", "I am Nova.", true, true},
        {FORM_PERSONA, "\"brief\": \"Nova\"", "I am Nova, or m3-nano.", false, true},
        {FORM_YES_NO, "\"brief\": \"Yes\"", "yes", true, true},
        {FORM_YES_NO, "\"brief\": \"Yes\"", "Yes, it is.", false, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char expect[256];
        bool valid;
        snprintf(expect, sizeof expect, "{\"form\": %d, %s}", cases[i].form, cases[i].more);
        bool right = marked(expect, cases[i].content, &valid);
        if (right != cases[i].right || valid != cases[i].valid)
            fail_msg("%s as \"%s\": right %d, valid %d", expect, cases[i].content, right, valid);
    }
}

/* Every story comes out within a few draws, and its answer ends with its result. */
static void stories_come_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < story_count; i++) {
        draw d = draw_begin(1, i);
        int good = 0;
        for (int n = 0; n < 4000; n++) {
            slots v;
            int64_t numbers[128], last = 0;
            if (!story_try(&stories[i], &d, &v, numbers)) continue;
            buffer answer = {0}, question = {0};
            fill(&answer, stories[i].answer, &v), fill(&question, stories[i].text, &v);
            assert_true(last_number(text_of(&answer), &last));
            if (last != numbers['r']) fail_msg("story %zu: %s", i, text_of(&answer));
            buffer_free(&answer), buffer_free(&question);
            good++;
        }
        if (good < 200) fail_msg("story %zu comes out %d times of 4,000: %s", i, good, stories[i].text);
        int whys = 1;
        for (const char *p = stories[i].why; *p; p++) whys += *p == '|';
        if (whys != story_steps(&stories[i])) fail_msg("story %zu: %d reasons for %d steps", i, whys, story_steps(&stories[i]));
    }
}

/* A thought's last equation gives the result, columns and all. */
static void steps_lead_to_the_result(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        draw d = draw_begin(2, i);
        sum s = sum_draw(&d, i % 2 ? TASK_TRAIN : TASK_HELD_OUT);
        buffer text = {0};
        int64_t last = 0;
        sum_steps(&text, &s);
        assert_true(last_number(text_of(&text), &last));
        if (last != sum_result(&s)) fail_msg("%s, not %lld", text_of(&text), (long long)sum_result(&s));
        buffer_clear(&text);
        if (s.kind != SUM_THREE && (s.kind != SUM_SUBTRACT || s.x[0] >= s.x[1]) && (s.kind != SUM_DIVIDE || s.x[0] <= 12 * s.x[1])) {
            sum_inline(&text, &s);
            assert_true(last_number(text_of(&text), &last));
            assert_int_equal(last, sum_result(&s));
        }
        buffer_free(&text);
    }
}

static void numbers_in_words(void **state)
{
    static const struct {
        int n;
        const char *words;
    } cases[] = {{0, "zero"}, {13, "thirteen"}, {20, "twenty"}, {42, "forty-two"}, {100, "one hundred"}, {999, "nine hundred ninety-nine"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buffer b = {0};
        number_words(&b, cases[i].n);
        assert_string_equal(text_of(&b), cases[i].words);
        buffer_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_number), cmocka_unit_test(words_and_repeats), cmocka_unit_test(forms),
        cmocka_unit_test(stories_come_out), cmocka_unit_test(steps_lead_to_the_result), cmocka_unit_test(numbers_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
