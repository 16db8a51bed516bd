/* UTF-8: every code point, every short byte string, incomplete tails, and what one U+FFFD stands for. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* Beginnings of valid characters: whole[n] and part[n] by the value of their n bytes. Filled from the code points, so
 * what is valid is not decided by a rule about bytes. */
static bool whole1[256], whole2[65536], part1[256], part2[65536];
static uint8_t *whole3, *part3; /* [2^24] */

static int setup(void **state)
{
    (void)state;
    whole3 = calloc(1 << 24, 1), part3 = calloc(1 << 24, 1);
    if (!whole3 || !part3) return -1;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        if (c < 0x80) {
            whole1[c] = true;
        } else if (c < 0x800) {
            uint32_t a = 0xC0 | c >> 6, b = 0x80 | (c & 63);
            part1[a] = true, whole2[a << 8 | b] = true;
        } else if (c < 0x10000) {
            uint32_t a = 0xE0 | c >> 12, b = 0x80 | (c >> 6 & 63), d = 0x80 | (c & 63);
            part1[a] = true, part2[a << 8 | b] = true, whole3[a << 16 | b << 8 | d] = 1;
        } else {
            uint32_t a = 0xF0 | c >> 18, b = 0x80 | (c >> 12 & 63), d = 0x80 | (c >> 6 & 63);
            part1[a] = true, part2[a << 8 | b] = true, part3[a << 16 | b << 8 | d] = 1;
        }
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(whole3);
    free(part3);
    return 0;
}

static void every_code_point(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char s[4] = {0};
        uint32_t back = 0xFFFFFFFF;
        size_t n = utf8_encode(c, s);
        assert_true(n == (c < 0x80 ? 1u : c < 0x800 ? 2u : c < 0x10000 ? 3u : 4u));
        bool surrogate = c >= 0xD800 && c < 0xE000;
        if (utf8_decode(s, n, &back) != (surrogate ? 0 : n)) fail_msg("U+%04X", c);
        assert_true(back == (surrogate ? 0xFFFFFFFF : c));
        if (surrogate) continue;
        if (utf8_valid(s, 4) != n || utf8_incomplete_tail(s, n) != 0) fail_msg("U+%04X", c);
        for (size_t k = 0; k < n; k++) {
            if (utf8_valid(s, k) != 0 || utf8_incomplete_tail(s, k) != k) fail_msg("%zu bytes of U+%04X", k, c);
            if (k) assert_int_equal(utf8_invalid_run(s, k), k);
        }
    }
}

static uint32_t value3(const unsigned char *s)
{
    return (uint32_t)s[0] << 16 | (uint32_t)s[1] << 8 | s[2];
}

static size_t valid_by_table(const unsigned char *s, size_t n)
{
    if (n >= 1 && whole1[s[0]]) return 1;
    if (n >= 2 && whole2[s[0] << 8 | s[1]]) return 2;
    if (n >= 3 && whole3[value3(s)]) return 3;
    if (n >= 4 && part3[value3(s)] && (s[3] & 0xC0) == 0x80) return 4;
    return 0;
}

/* The longest beginning of a character at s, at least one byte: Unicode's "maximal subpart". */
static size_t run_by_table(const unsigned char *s, size_t n)
{
    if (n >= 3 && part3[value3(s)]) return 3;
    if (n >= 2 && part2[s[0] << 8 | s[1]]) return 2;
    return 1;
}

static size_t tail_by_table(const unsigned char *s, size_t n)
{
    if (n >= 3 && part3[value3(s + n - 3)]) return 3;
    if (n >= 2 && part2[s[n - 2] << 8 | s[n - 1]]) return 2;
    return n >= 1 && part1[s[n - 1]] ? 1 : 0;
}

static void check_bytes(const unsigned char *bytes, size_t n)
{
    char s[8];
    memcpy(s, bytes, n);
    size_t valid = valid_by_table(bytes, n), tail = tail_by_table(bytes, n);
    if (utf8_valid(s, n) != valid || utf8_incomplete_tail(s, n) != tail ||
        (n && !valid && utf8_invalid_run(s, n) != run_by_table(bytes, n)))
        fail_msg("%zu bytes %02X %02X %02X %02X: valid %zu (%zu), tail %zu (%zu), run %zu", n, bytes[0], bytes[1],
                 bytes[2], bytes[3], utf8_valid(s, n), valid, utf8_incomplete_tail(s, n), tail, utf8_invalid_run(s, n));
}

static void every_short_string(void **state)
{
    (void)state;
    unsigned char s[4] = {0};
    assert_int_equal(utf8_valid("", 0), 0);
    assert_int_equal(utf8_incomplete_tail("", 0), 0);
    for (int a = 0; a < 256; a++) {
        s[0] = (unsigned char)a;
        check_bytes(s, 1);
        for (int b = 0; b < 256; b++) {
            s[1] = (unsigned char)b;
            check_bytes(s, 2);
        }
    }
    /* Three and four bytes, from both sides of every border of table 3-7. */
    static const unsigned char edge[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                         0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFE, 0xFF};
    enum { EDGES = sizeof edge };
    for (int a = 0; a < EDGES; a++) {
        for (int b = 0; b < EDGES; b++) {
            for (int c = 0; c < EDGES; c++) {
                s[0] = edge[a], s[1] = edge[b], s[2] = edge[c];
                check_bytes(s, 3);
                for (int d = 0; d < EDGES; d++) {
                    s[3] = edge[d];
                    check_bytes(s, 4);
                }
            }
        }
    }
}

/* The examples that the Unicode Standard gives with its definition (chapter 3, U+FFFD substitution of maximal
 * subparts);
 * '.' is a substitution. */
static void substitution_examples(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *result;
    } cases[] = {
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "........A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "........A"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", ".....A..B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "....A"},
        {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", "a...b.c..d"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *s = cases[i].bytes, *want = cases[i].result;
        size_t n = strlen(s), at = 0;
        while (at < n) {
            size_t k = utf8_valid(s + at, n - at);
            assert_int_equal(k ? s[at] : '.', *want);
            want++;
            at += k ? k : utf8_invalid_run(s + at, n - at);
        }
        assert_int_equal(*want, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point),
        cmocka_unit_test(every_short_string),
        cmocka_unit_test(substitution_examples),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
