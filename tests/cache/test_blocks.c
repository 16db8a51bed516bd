/* Blocks, tables and the plan of the cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/blocks.h"
#include "cache/plan.h"

static blocks *open_blocks(int32_t count)
{
    blocks *b = NULL;
    assert_int_equal(blocks_open(count, &b, NULL), HY_OK);
    return b;
}

static void test_take_and_release(void **state)
{
    (void)state;
    blocks *b = open_blocks(3);
    int32_t first = blocks_take(b), second = blocks_take(b), third = blocks_take(b);
    assert_int_equal(first + second + third, 3); /* 0, 1 and 2, each once */
    assert_int_not_equal(first, second);
    assert_int_equal(blocks_take(b), -1);
    assert_int_equal(blocks_free_count(b), 0);
    assert_int_equal(blocks_state(b, first), BLOCK_FILLING);
    blocks_release(b, second);
    blocks_release(b, first);
    assert_int_equal(blocks_state(b, first), BLOCK_FREE);
    assert_int_equal(blocks_take(b), second); /* the longest unused first */
    assert_int_equal(blocks_take(b), first);
    blocks_close(b);
    hy_error err = {0};
    assert_int_equal(blocks_open(0, &b, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "at least 1"));
}

static void test_shared_blocks(void **state)
{
    (void)state;
    blocks *b = open_blocks(2);
    int32_t block = blocks_take(b);
    blocks_set_full(b, block);
    blocks_hold(b, block);
    assert_int_equal(blocks_holders(b, block), 2);
    blocks_release(b, block);
    assert_int_equal(blocks_state(b, block), BLOCK_FULL);
    assert_int_equal(blocks_free_count(b), 1);
    blocks_release(b, block);
    assert_int_equal(blocks_free_count(b), 2);
    blocks_hold(b, block); /* found again before anyone took it */
    assert_int_equal(blocks_free_count(b), 1);
    assert_int_equal(blocks_state(b, block), BLOCK_FULL);
    int32_t other = blocks_take(b);
    assert_int_not_equal(other, block);
    assert_int_equal(blocks_take(b), -1);
    blocks_close(b);
}

static void test_tables(void **state)
{
    (void)state;
    blocks *b = open_blocks(4);
    int32_t one[3], two[4];
    block_table t = {.block = one, .capacity = 3}, u = {.block = two, .capacity = 4};
    assert_true(block_table_grow(&t, b, 1));
    assert_int_equal(t.count, 1);
    assert_true(block_table_grow(&t, b, 128));
    assert_int_equal(t.count, 1);
    assert_true(block_table_grow(&t, b, 129));
    assert_int_equal(t.count, 2);
    assert_int_equal(block_table_slot(&t, 0), (int64_t)one[0] * 128);
    assert_int_equal(block_table_slot(&t, 127), (int64_t)one[0] * 128 + 127);
    assert_int_equal(block_table_slot(&t, 128), (int64_t)one[1] * 128);
    block_table_wrote(&t, b, 127);
    assert_int_equal(blocks_state(b, one[0]), BLOCK_FILLING);
    block_table_wrote(&t, b, 128);
    assert_int_equal(blocks_state(b, one[0]), BLOCK_FULL);
    block_table_wrote(&t, b, 129);
    assert_int_equal(blocks_state(b, one[1]), BLOCK_FILLING);
    assert_false(block_table_grow(&t, b, 3 * 128 + 1)); /* beyond the table */
    assert_true(block_table_grow(&u, b, 2 * 128));
    assert_false(block_table_grow(&t, b, 2 * 128 + 1)); /* nothing is free */
    assert_int_equal(t.count, 2);
    block_table_release(&u, b);
    assert_false(block_table_grow(&u, b, 3 * 128)); /* all or nothing */
    assert_int_equal(u.count, 0);
    assert_int_equal(blocks_free_count(b), 2);
    int32_t start = one[0];
    block_table_release(&t, b);
    assert_int_equal(blocks_free_count(b), 4);
    int32_t last = -1;
    for (int i = 0; i < 4; i++) last = blocks_take(b);
    assert_int_equal(last, start); /* the start of a sequence is taken last */
    blocks_close(b);
}

/* Many sequences that come, grow and go: every block is in one place, and none is lost. */
static void test_storm(void **state)
{
    (void)state;
    enum { BLOCKS = 50, SEQUENCES = 12, CAPACITY = 9 };
    blocks *b = open_blocks(BLOCKS);
    static int32_t row[SEQUENCES][CAPACITY];
    block_table t[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++) t[i] = (block_table){.block = row[i], .capacity = CAPACITY};
    uint32_t x = 1;
    for (int round = 0; round < 20000; round++) {
        x = x * 1664525u + 1013904223u;
        block_table *s = &t[(x >> 8) % SEQUENCES];
        if ((x >> 24) % 7 == 0) {
            block_table_release(s, b);
        } else {
            int32_t tokens = s->written + (int32_t)((x >> 16) % 300);
            if (block_table_grow(s, b, tokens)) block_table_wrote(s, b, tokens);
        }
        int32_t seen[BLOCKS] = {0}, held = 0;
        for (int i = 0; i < SEQUENCES; i++)
            for (int32_t j = 0; j < t[i].count; j++, held++) {
                assert_int_equal(seen[row[i][j]]++, 0);
                assert_int_equal(blocks_state(b, row[i][j]),
                                 (j + 1) * 128 <= t[i].written ? BLOCK_FULL : BLOCK_FILLING);
            }
        assert_int_equal(blocks_free_count(b), BLOCKS - held);
    }
    blocks_close(b);
}

static void test_plan(void **state)
{
    (void)state;
    cache_plan p;
    hy_error err = {0};
    assert_int_equal(cache_plan_make(1000, 1300, 0, 1 << 30, &p, &err), HY_OK); /* 16 times 11 blocks, there is room */
    assert_int_equal(p.blocks, 176);
    assert_int_equal(p.bytes, 176000);
    assert_int_equal(p.longest_tokens, 1300);
    assert_int_equal(cache_plan_make(1000, 1300, 0, 100000, &p, &err), HY_OK); /* a quarter of it */
    assert_int_equal(p.blocks, 25);
    assert_int_equal(cache_plan_make(1000, 1300, 0, 30000, &p, &err), HY_OK); /* one, since it fits into half */
    assert_int_equal(p.blocks, 11);
    assert_int_equal(cache_plan_make(1000, 1300, 0, 9000, &p, &err), HY_OK); /* half of it: 4 blocks */
    assert_int_equal(p.blocks, 4);
    assert_int_equal(p.longest_tokens, 512);
    assert_int_equal(p.longest_bytes, 11000);
    assert_int_equal(cache_plan_make(1000, 1300, 50999, 9000, &p, &err), HY_OK); /* as asked for */
    assert_int_equal(p.blocks, 50);
    assert_int_equal(p.longest_tokens, 1300);
    assert_int_equal(cache_plan_make(1000, 1300, 999, 1 << 30, &p, &err), HY_NO_FIT);
    assert_non_null(strstr(err.message, "999"));
    assert_int_equal(cache_plan_make(1000, 1300, 0, 1999, &p, &err), HY_NO_FIT);
    assert_int_equal(cache_plan_make(1, 1300, UINT64_MAX, 0, &p, &err), HY_OK);
    assert_true(p.blocks <= INT32_MAX / CACHE_BLOCK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_and_release),
        cmocka_unit_test(test_shared_blocks),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_storm),
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
