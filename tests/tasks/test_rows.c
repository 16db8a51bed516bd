/* Rows: what the model writes is what follows the prompt of its message; a row is the beginning of a conversation. */
#include "tasks_helpers.h"

static void encode(const char *text, size_t length, hy_ids *out)
{
    hy_error err = {0};
    if (text_tokenizer_encode(tokenizer(), text, length, true, out, &err) != HY_OK) fail_msg("%s", err.message);
}

/* Appends ids of a piece, encoded apart, with its weight. */
static void piece(row *want, const char *text, size_t length, uint8_t weight)
{
    hy_ids ids = {0};
    if (!length) return;
    encode(text, length, &ids);
    want->ids = realloc(want->ids, (want->count + ids.count) * sizeof *want->ids);
    want->weights = realloc(want->weights, want->count + ids.count);
    for (size_t i = 0; i < ids.count; i++) {
        want->ids[want->count] = ids.data[i];
        want->weights[want->count++] = weight;
    }
    hy_ids_free(&ids);
}

/* The row by the rule, message for message. */
static void by_the_rule(const task *t, row *want)
{
    hy_error err = {0};
    buffer done = {0}, prompt = {0}, upto = {0};
    for (size_t i = 0; i < json_array_size(t->messages); i++) {
        const json_t *m = json_array_get(t->messages, i), *weight = json_object_get(m, "weight");
        if (strcmp(task_text(t, i, "role"), "assistant") != 0 || (weight && !json_integer_value(weight))) continue;
        buffer_clear(&prompt), buffer_clear(&upto);
        assert_int_equal(task_render(t, i, true, &prompt, &err), HY_OK);
        assert_int_equal(task_render(t, i + 1, false, &upto, &err), HY_OK);
        if (upto.length < prompt.length || memcmp(upto.data, prompt.data, prompt.length) != 0) continue;
        assert_true(prompt.length >= done.length);
        if (done.length) assert_memory_equal(prompt.data, done.data, done.length);
        piece(want, prompt.data + done.length, prompt.length - done.length, ROW_GIVEN);
        size_t end = upto.length - 1; /* the newline after the end marker is the next prompt's */
        assert_memory_equal(upto.data + end - 4, "[e~[\n", 5);
        piece(want, upto.data + prompt.length, end - prompt.length, ROW_WRITTEN);
        buffer_clear(&done);
        buffer_append(&done, upto.data, end);
    }
    buffer_free(&done), buffer_free(&prompt), buffer_free(&upto);
}

static void spans_follow_the_rule(void **state)
{
    (void)state;
    for (int set = 0; set < TASK_SETS; set++) {
        if (!task_set_present((task_set)set)) continue;
        for (uint64_t n = 0; n < 150; n++) {
            task t = make((task_set)set, n % 2 ? TASK_TRAIN : TASK_HELD_OUT, 11, n, n % 3 ? 512 : 1024);
            row want = {0}, got = {0};
            hy_error err = {0};
            by_the_rule(&t, &want);
            if (row_encode(&got, tokens(), &t, SIZE_MAX, &err) != HY_OK) fail_msg("%s", err.message);
            if (got.fits != want.count) fail_msg("%s %d: %zu, not %zu tokens", task_set_name(set), (int)n, got.fits, want.count);
            assert_memory_equal(got.ids, want.ids, got.fits * sizeof *got.ids);
            assert_memory_equal(got.weights, want.weights, got.fits);
            /* A shorter row is a beginning that ends with a written end marker. */
            size_t whole = got.fits, length = whole * 3 / 4;
            assert_int_equal(row_encode(&got, tokens(), &t, length, &err), HY_OK);
            assert_true(got.fits <= length);
            if (got.fits) {
                assert_memory_equal(got.ids, want.ids, got.fits * sizeof *got.ids);
                assert_memory_equal(got.weights, want.weights, got.fits);
                assert_int_equal(got.weights[got.fits - 1], ROW_WRITTEN);
                assert_int_equal(got.ids[got.fits - 1], tokens()->end);
            }
            row_free(&want), row_free(&got);
            task_free(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(spans_follow_the_rule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
