/* Parts become blocks: one open at a time, text beside calls, white space, what cannot be seen from a single part. */
#include "server_helpers.h"

#include "server/answer_blocks.h"

/* Writes what happens: "[0 text" "+abc" "]" with "?" for a block that was cut off. */
static void note(void *user, block_change change, const answer_block *block, size_t index, const char *text,
                 size_t length)
{
    static const char *const kinds[] = {"reasoning", "text", "call"};
    buffer *out = user;
    if (change == BLOCK_BEGINS)
        buffer_printf(out, "[%zu %s%s%s", index, kinds[block->kind], block->name ? " " : "",
                      block->name ? block->name : "");
    if (change == BLOCK_GROWS) buffer_printf(out, "+%.*s", (int)length, text);
    if (change == BLOCK_ENDS) buffer_string(out, block->complete ? "]" : "?]");
}

/* Parts by letter: r, t, c, a and e (no text), each with its text behind it, up to '|'. */
static void run(const char *parts, bool complete, const char *want)
{
    answer_blocks b = {0};
    buffer out = {0};
    for (const char *p = parts; *p;) {
        static const char letters[] = "rtcae";
        size_t n = strcspn(p + 1, "|");
        answer_blocks_add(&b, (text_part_kind)(strchr(letters, *p) - letters), p + 1, n, note, &out);
        p += 1 + n + (p[1 + n] == '|');
    }
    answer_blocks_finish(&b, complete, note, &out);
    assert_false(b.failed || b.open);
    assert_string_equal(out.length ? out.data : "", want);
    for (size_t i = 0; i < b.count; i++) assert_int_equal(strlen(b.list[i].id), 32);
    answer_blocks_free(&b);
    buffer_free(&out);
}

static void test_order(void **state)
{
    (void)state;
    run("rthink|rmore|thello|t world", true, "[0 reasoning+think+more][1 text+hello+ world]");
    run("thello|rlate|tbye", true, "[0 text+hello][1 reasoning+late][2 text+bye]");
    run("rr|tlook|cf|a{}|e|cg|a{\"x\":|a1}|e", true, "[0 reasoning+r][1 text+look][2 call f+{}][3 call g+{\"x\":+1}]");
}

static void test_text_waits_for_the_end_of_a_call(void **state)
{
    (void)state;
    run("cf|a{|tin between|a}|e|tafter", true, "[0 call f+{+}][1 text+in between+after]");
    run("cf|a{}|tx", true, "[0 call f+{}][1 text+x]"); /* a call without an end */
    run("cf|a{}|tx|cg|e", true, "[0 call f+{}][1 text+x][2 call g]");
}

static void test_white_space(void **state)
{
    (void)state;
    run("t\n\n|cf|e|t\n", true, "[0 call f]");
    run("t\n\n|thello", true, "[0 text+\n\nhello]");
    run("t \n", true, "[0 text+ \n]");
    run("t\n|rx|ty", true, "[0 reasoning+x][1 text+\ny]");
    run("thello\n|cf|e", true, "[0 text+hello\n][1 call f]");
    run("cf|e|t\n|tx", true, "[0 call f][1 text+\nx]");
}

static void test_nothing(void **state)
{
    (void)state;
    run("", true, "[0 text]");
    run("rx", true, "[0 reasoning+x]");
}

static void test_cut_off(void **state)
{
    (void)state;
    run("rx", false, "[0 reasoning+x?]");
    run("rx|ty", false, "[0 reasoning+x][1 text+y?]");
    run("cf|a{\"x\":1}", false, "[0 call f+{\"x\":1}?]");
    run("cf|e", false, "[0 call f]");
}

static void test_arguments(void **state)
{
    (void)state;
    answer_block call = {.kind = BLOCK_CALL};
    size_t length;
    assert_string_equal(answer_block_arguments(&call, &length), "{}");
    assert_int_equal(length, 2);
    buffer_string(&call.text, "{\"a\":1}");
    assert_string_equal(answer_block_arguments(&call, &length), "{\"a\":1}");
    buffer_free(&call.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),       cmocka_unit_test(test_text_waits_for_the_end_of_a_call),
        cmocka_unit_test(test_white_space), cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_cut_off),     cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
