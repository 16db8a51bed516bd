/* Form C against utf8proc's own, and the claim that text may be cut before plain characters. */
#include "text_helpers.h"

#include <utf8proc.h>

#include "base/utf8.h"
#include "text/normalize.h"

static void compare(const char *s, size_t length)
{
    buffer got = {0};
    utf8proc_uint8_t *want = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)length, &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(n >= 0);
    normalize_nfc(s, length, &got);
    assert_true(buffer_ok(&got));
    assert_buffer(&got, (const char *)want, (size_t)n);
    if (normalize_is_plain(s, length)) assert_int_equal(got.length, length);
    free(want);
    buffer_free(&got);
}

static void test_every_char(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        char s[8];
        size_t n = utf8_encode(c, s);
        compare(s, n);
        memmove(s + 1, s, n);
        s[0] = 'a';
        compare(s, n + 1);
    }
}

/* A plain character joins with nothing before it and is in no order with it: all that can come first are tried. */
static void test_plain_stands_alone(void **state)
{
    (void)state;
    static int32_t firsts[4000];
    size_t first_count = 0, plain_count = 0;
    /* What joins has a composition of which it is the first part: such characters decompose back to it. */
    for (int32_t c = 0; c < 0x30000; c++) {
        int32_t parts[8];
        int boundary = 0;
        if (c >= 0xD800 && c < 0xE000) continue;
        if (utf8proc_decompose_char(c, parts, 8, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary) < 2) continue;
        if (c >= 0xAC00 && c < 0xD7A4 && c % 97) continue; /* enough of the Hangul syllables */
        bool known = false;
        for (size_t i = 0; i < first_count && !known; i++) known = firsts[i] == parts[0] || firsts[i] == c;
        if (!known && first_count + 2 < 4000) firsts[first_count++] = parts[0], firsts[first_count++] = c;
    }
    assert_true(first_count > 400 && first_count < 3990);
    for (int32_t c = 0; c < 0x20000; c++) {
        char s[4];
        if (c >= 0xD800 && c < 0xE000) continue;
        if (!normalize_is_plain(s, utf8_encode((uint32_t)c, s))) continue;
        plain_count++;
        assert_int_equal(utf8proc_get_property(c)->combining_class, 0);
        if (c > 0x3100 && c % 31) continue; /* ideographs and syllables are alike */
        for (size_t i = 0; i < first_count; i++) {
            int32_t pair[2] = {firsts[i], c};
            if (utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 2)
                fail_msg("U+%04X joins with U+%04X before it", (unsigned)c, (unsigned)firsts[i]);
        }
    }
    assert_true(plain_count > 30000);
}

static void test_random(void **state)
{
    (void)state;
    static const uint32_t odd[] = {'a',    'e',    '>',    '<',    0x301,   0x308,   0x323,   0x338,  0x327,   0x345,
                                   0x315,  0x340,  0x344,  0xE9,   0x1E0B,  0x3042,  0x304B,  0x3099, 0x309A,  0x1112,
                                   0x1161, 0x11AB, 0xD55C, 0xAC00, 0x11A8,  0x0958,  0xFB1D,  0x212B, 0x0F71,  0x0F72,
                                   0x0F73, 0x0B47, 0x0B57, 0x4E2D, 0x1D15E, 0x1D165, 0x1F600, 0xF900, 0x2F800, 0x387,
                                   0x37E,  0x2000, 0x200D, 0x5B0,  0x64B,   0x3B9};
    uint64_t seed = 3;
    for (int i = 0; i < 100000; i++) {
        char s[200];
        size_t length = 0, count = 1 + draw(&seed) % 12;
        uint32_t c = 'a';
        for (size_t k = 0; k < count; k++) {
            if (draw(&seed) % 4) c = odd[draw(&seed) % (sizeof odd / sizeof *odd)];
            length += utf8_encode(c, s + length);
        }
        compare(s, length);
    }
}

/* Runs of marks in the wrong order: right for 200, and quick for a million. */
static void test_runs_of_marks(void **state)
{
    (void)state;
    static const char *const marks[] = {"\xCC\x95", "\xCC\x81", "\xCC\xA3", "\xCC\xB8"};
    buffer text = {0}, out = {0};
    uint64_t seed = 9;
    for (int size = 1; size <= 200; size += 13) {
        buffer_clear(&text);
        buffer_char(&text, 'a');
        for (int i = 0; i < size; i++) buffer_string(&text, marks[draw(&seed) % 4]);
        compare(text.data, text.length);
    }
    buffer_clear(&text);
    for (int i = 0; i < 500000; i++) buffer_string(&text, marks[0]);
    for (int i = 0; i < 500000; i++) buffer_string(&text, marks[2]);
    normalize_nfc(text.data, text.length, &out);
    assert_int_equal(out.length, text.length);
    assert_memory_equal(out.data, marks[2], 2);
    assert_memory_equal(out.data + out.length - 2, marks[0], 2);
    buffer_free(&text);
    buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_char),
        cmocka_unit_test(test_plain_stands_alone),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_runs_of_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
