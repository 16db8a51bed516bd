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
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
