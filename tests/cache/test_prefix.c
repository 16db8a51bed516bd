/* The index of what the blocks hold: keys, finding to the token, forgetting, and why not more was there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/prefix.h"

enum { BLOCKS = 64 };

static const uint8_t identity[PREFIX_KEY] = {1, 2, 3}, other_identity[PREFIX_KEY] = {1, 2, 4};
static prefix *p;
static uint8_t root[PREFIX_KEY];

static int open_index(void **state)
{
    (void)state;
    assert_int_equal(prefix_open(BLOCKS, identity, &p, NULL), HY_OK);
    prefix_root(p, NULL, root);
    return 0;
}

static int close_index(void **state)
{
    (void)state;
    prefix_close(p);
    return 0;
}

static void fill(int32_t *ids, int32_t count, int32_t from)
{
    for (int32_t i = 0; i < count; i++) ids[i] = from + i;
}

/* ---- Keys ----------------------------------------------------------------------------------------------------- */

static void test_keys(void **state)
{
    (void)state;
    uint8_t key[PREFIX_KEY], again[PREFIX_KEY];
    int32_t ids[PREFIX_BLOCK];
    prefix_root(p, "", key);
    assert_memory_equal(key, root, PREFIX_KEY); /* no salt is the empty one */
    prefix_root(p, "x", key);
    assert_memory_not_equal(key, root, PREFIX_KEY);
    prefix *q = NULL;
    assert_int_equal(prefix_open(1, other_identity, &q, NULL), HY_OK);
    prefix_root(q, NULL, key);
    assert_memory_not_equal(key, root, PREFIX_KEY);
    prefix_close(q);
    /* Every bit of every token counts, and so does what comes before. */
    fill(ids, PREFIX_BLOCK, 5);
    prefix_next(root, ids, key);
    for (int32_t i = 0; i < PREFIX_BLOCK; i += 9)
        for (int bit = 0; bit < 31; bit += 5) {
            ids[i] ^= 1 << bit;
            prefix_next(root, ids, again);
            assert_memory_not_equal(again, key, PREFIX_KEY);
            ids[i] ^= 1 << bit;
        }
    prefix_next(key, ids, again);
    assert_memory_not_equal(again, key, PREFIX_KEY);
    prefix_next(root, ids, again);
    assert_memory_equal(again, key, PREFIX_KEY);
    memcpy(again, root, PREFIX_KEY);
    prefix_next(again, ids, again); /* in place */
    assert_memory_equal(again, key, PREFIX_KEY);
}

/* The keys on disk are found again by the next release: SHA-256 of the key before and the ids, in their bytes. */
static void test_keys_stay(void **state)
{
    (void)state;
    static const uint8_t zero[PREFIX_KEY];
    static const uint8_t root_of_zero[] = {0x5a, 0x9a, 0x38, 0xac, 0xff, 0x6b, 0xd9, 0x3c, 0xd9, 0xae, 0xdf,
                                           0xb8, 0xc4, 0x05, 0x15, 0xdb, 0x72, 0xb7, 0x6f, 0x07, 0x55, 0x42,
                                           0x23, 0x08, 0xb9, 0xde, 0x8c, 0x37, 0xce, 0xcb, 0xba, 0x87},
                         after_zero[] = {0x74, 0xb6, 0x8b, 0xb8, 0x53, 0xc3, 0xf8, 0xc1, 0x4f, 0xe9, 0xed,
                                         0x0e, 0xf4, 0x8d, 0x19, 0x30, 0x58, 0x41, 0xd8, 0x69, 0x48, 0x86,
                                         0xbd, 0xb9, 0xd7, 0x7f, 0xae, 0x6f, 0xb0, 0x40, 0x0d, 0xb1};
    uint8_t key[PREFIX_KEY];
    int32_t ids[PREFIX_BLOCK];
    prefix *q = NULL;
    assert_int_equal(prefix_open(1, zero, &q, NULL), HY_OK);
    prefix_root(q, "salt", key);
    assert_memory_equal(key, root_of_zero, PREFIX_KEY);
    fill(ids, PREFIX_BLOCK, 1000);
    prefix_next(key, ids, key);
    assert_memory_equal(key, after_zero, PREFIX_KEY);
    prefix_close(q);
}

/* ---- Finding -------------------------------------------------------------------------------------------------- */

static int32_t find(const int32_t *ids, int32_t count, int32_t *tokens)
{
    return prefix_find(p, root, ids, count, tokens);
}

static void test_full_and_partial(void **state)
{
    (void)state;
    int32_t ids[PREFIX_BLOCK], tokens;
    fill(ids, PREFIX_BLOCK, 0);
    assert_int_equal(find(ids, PREFIX_BLOCK, &tokens), -1);
    assert_int_equal(tokens, 0);
    assert_null(prefix_key(p, 7));
    assert_int_equal(prefix_tokens(p, 7), 0);
    prefix_note(p, 7, root, true, ids, 1);
    for (int32_t count = 1; count < PREFIX_BLOCK; count += count < 5 ? 1 : 40) {
        prefix_note(p, 7, root, true, ids, count); /* rows come */
        assert_int_equal(find(ids, PREFIX_BLOCK, &tokens), 7);
        assert_int_equal(tokens, count);
        assert_int_equal(prefix_tokens(p, 7), count);
        assert_null(prefix_key(p, 7));
    }
    prefix_note(p, 7, root, true, ids, PREFIX_BLOCK);
    uint8_t key[PREFIX_KEY];
    prefix_next(root, ids, key);
    assert_memory_equal(prefix_key(p, 7), key, PREFIX_KEY);
    /* Of a full block as much as fits, as much as is asked for. */
    assert_int_equal(find(ids, 40, &tokens), 7);
    assert_int_equal(tokens, 40);
    for (int32_t same = 0; same < PREFIX_BLOCK; same += 13) {
        ids[same] += 5000;
        int32_t block = find(ids, PREFIX_BLOCK, &tokens);
        assert_int_equal(tokens, same);
        assert_int_equal(block, same > 0 ? 7 : -1);
        ids[same] -= 5000;
    }
    /* Behind another key there is nothing. */
    assert_int_equal(prefix_find(p, key, ids, PREFIX_BLOCK, &tokens), -1);
}

/* Many continuations of one beginning: each is found by its own tokens. */
static void test_many_children(void **state)
{
    (void)state;
    int32_t ids[PREFIX_BLOCK], tokens;
    for (int32_t b = 0; b < BLOCKS; b++) {
        fill(ids, PREFIX_BLOCK, 0);
        for (int32_t i = b; i < PREFIX_BLOCK; i++) ids[i] = 10000 + b; /* its first b tokens are common */
        prefix_note(p, b, root, true, ids, b % 3 ? PREFIX_BLOCK : b + 1);
    }
    for (int32_t b = 0; b < BLOCKS; b++) {
        fill(ids, PREFIX_BLOCK, 0);
        for (int32_t i = b; i < PREFIX_BLOCK; i++) ids[i] = 10000 + b;
        assert_int_equal(find(ids, PREFIX_BLOCK, &tokens), b);
        assert_int_equal(tokens, b % 3 ? PREFIX_BLOCK : b + 1);
    }
    fill(ids, PREFIX_BLOCK, 0);
    assert_int_equal(find(ids, PREFIX_BLOCK, &tokens), BLOCKS - 1);
    assert_int_equal(tokens, BLOCKS - 1);
    /* One after the other is forgotten, from the middle too, and the others stay. */
    for (int32_t k = 0; k < BLOCKS; k++) {
        int32_t gone = k * 37 % BLOCKS;
        prefix_forget(p, gone, false);
        for (int32_t b = 0; b < BLOCKS; b += 5) {
            bool there = false;
            for (int32_t j = k + 1; j < BLOCKS; j++) there |= j * 37 % BLOCKS == b;
            fill(ids, PREFIX_BLOCK, 0);
            for (int32_t i = b; i < PREFIX_BLOCK; i++) ids[i] = 10000 + b;
            int32_t block = find(ids, PREFIX_BLOCK, &tokens);
            if (there)
                assert_int_equal(block, b);
            else
                assert_true(tokens <= b);
        }
    }
    assert_int_equal(find(ids, PREFIX_BLOCK, &tokens), -1);
}

/* A chain of blocks and its twin: of equals the one noted last. */
static void test_chains(void **state)
{
    (void)state;
    int32_t ids[10 * PREFIX_BLOCK], tokens;
    fill(ids, 10 * PREFIX_BLOCK, 3);
    for (int twin = 0; twin < 2; twin++) {
        uint8_t key[PREFIX_KEY];
        memcpy(key, root, PREFIX_KEY);
        for (int32_t i = 0; i < 10; i++) {
            prefix_note(p, twin * 10 + i, key, i == 0, ids + i * PREFIX_BLOCK, PREFIX_BLOCK);
            memcpy(key, prefix_key(p, twin * 10 + i), PREFIX_KEY);
        }
    }
    for (int twin = 1; twin >= 0; twin--) {
        uint8_t key[PREFIX_KEY];
        memcpy(key, root, PREFIX_KEY);
        for (int32_t i = 0; i < 10; i++) {
            assert_int_equal(prefix_find(p, key, ids + i * PREFIX_BLOCK, PREFIX_BLOCK, &tokens), twin * 10 + i);
            assert_int_equal(tokens, PREFIX_BLOCK);
            memcpy(key, prefix_key(p, twin * 10 + i), PREFIX_KEY);
        }
        for (int32_t i = 0; i < 10; i++) prefix_forget(p, twin * 10 + i, false);
    }
    assert_int_equal(find(ids, PREFIX_BLOCK, &tokens), -1);
    /* The same tokens at another place of a sequence are other contents. */
    uint8_t key[PREFIX_KEY];
    prefix_note(p, 0, root, true, ids, PREFIX_BLOCK);
    memcpy(key, prefix_key(p, 0), PREFIX_KEY);
    assert_int_equal(prefix_find(p, key, ids, PREFIX_BLOCK, &tokens), -1);
}

/* ---- Why not more --------------------------------------------------------------------------------------------- */

static void test_reasons(void **state)
{
    (void)state;
    int32_t ids[PREFIX_BLOCK], unlike[PREFIX_BLOCK];
    fill(ids, PREFIX_BLOCK, 0), fill(unlike, PREFIX_BLOCK, 700);
    uint8_t salted[PREFIX_KEY];
    prefix_note(p, 0, root, true, ids, PREFIX_BLOCK);
    prefix_note(p, 1, root, true, unlike, 20);
    assert_int_equal(prefix_why(p, root, true, unlike, PREFIX_BLOCK, 20), HY_MISS_NEW);
    /* Under another salt. */
    prefix_root(p, "x", salted);
    assert_int_equal(prefix_why(p, salted, true, ids, PREFIX_BLOCK, 0), HY_MISS_SALT);
    assert_int_equal(prefix_why(p, salted, true, ids, 3, 0), HY_MISS_SALT);
    assert_int_equal(prefix_why(p, salted, true, ids + 1, 100, 0), HY_MISS_NEW);
    assert_int_equal(prefix_why(p, salted, false, ids, PREFIX_BLOCK, 0), HY_MISS_NEW); /* not at the beginning */
    assert_int_equal(prefix_why(p, salted, true, ids, PREFIX_BLOCK, 1), HY_MISS_NEW);  /* its own was there */
    /* Forgotten since it was damaged, or since it had to make room. */
    prefix_forget(p, 1, false);
    assert_int_equal(prefix_why(p, root, true, unlike, 20, 0), HY_MISS_NEW);
    prefix_note(p, 1, root, true, unlike, 20);
    prefix_forget(p, 1, true);
    assert_int_equal(prefix_why(p, root, true, unlike, 20, 0), HY_MISS_EVICTED);
    assert_int_equal(prefix_why(p, salted, true, unlike, 20, 0), HY_MISS_NEW); /* it was not this one's */
    prefix_forget(p, 0, true);
    assert_int_equal(prefix_why(p, root, true, ids, PREFIX_BLOCK, 0), HY_MISS_EVICTED);
    assert_int_equal(prefix_why(p, root, true, ids, PREFIX_BLOCK, 60), HY_MISS_EVICTED); /* more of it was there */
    ids[100]++;
    assert_int_equal(prefix_why(p, root, true, ids, PREFIX_BLOCK, 60), HY_MISS_NEW);
    prefix_forget(p, 0, true); /* nothing to forget */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_index, close_index)
    const struct CMUnitTest tests[] = {
        TEST(test_keys),          TEST(test_keys_stay), TEST(test_full_and_partial),
        TEST(test_many_children), TEST(test_chains),    TEST(test_reasons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
