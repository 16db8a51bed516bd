/* The JSON writer: structure, escapes, wrong UTF-8, numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static void structure(void **state)
{
    (void)state;
    buffer b = {0};
    json_writer w = {.out = &b};
    writer_object(&w);
    writer_key(&w, "a");
    writer_integer(&w, INT64_MIN);
    writer_key(&w, "b");
    writer_array(&w);
    writer_end(&w);
    writer_key(&w, "c");
    writer_array(&w);
    writer_unsigned(&w, UINT64_MAX);
    writer_object(&w);
    writer_end(&w);
    writer_array(&w);
    writer_bool(&w, true);
    writer_bool(&w, false);
    writer_end(&w);
    writer_null(&w);
    writer_text(&w, NULL);
    writer_text(&w, "t");
    writer_raw(&w, "{\"raw\":1}", 9);
    writer_number(&w, 0.5);
    writer_end(&w);
    writer_key(&w, "");
    writer_string(&w, "", 0);
    writer_end(&w);
    assert_string_equal(b.data,
                        "{\"a\":-9223372036854775808,\"b\":[],\"c\":[18446744073709551615,{},[true,false],null,null,"
                        "\"t\",{\"raw\":1},0.5],\"\":\"\"}");
    assert_int_equal(w.depth, 0);
    buffer_free(&b);

    /* as deep as it goes, and two values side by side at each depth */
    w = (json_writer){.out = &b};
    for (int i = 0; i < JSON_DEPTH; i++) {
        if (i) writer_null(&w);
        writer_array(&w);
    }
    for (int i = 0; i < JSON_DEPTH; i++) writer_end(&w);
    assert_int_equal(b.length, 2 * JSON_DEPTH + 5 * (JSON_DEPTH - 1));
    buffer_free(&b);
}

static void check_string(const char *s, size_t length, const char *want)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    writer_string(&w, s, length);
    assert_string_equal(b.data, want);
    buffer_free(&b);
    /* the same for keys, which end at NUL */
    if (memchr(s, 0, length)) return;
    char *key = strndup(s, length);
    w = (json_writer){.out = &b};
    writer_object(&w);
    writer_key(&w, key);
    writer_null(&w);
    writer_end(&w);
    assert_memory_equal(b.data + 1, want, strlen(want));
    buffer_free(&b);
    free(key);
}

static void escapes(void **state)
{
    (void)state;
    check_string("a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\"");
    check_string("\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\"");
    check_string("x\0y", 3, "\"x\\u0000y\"");
    for (int c = 0; c < 0x20; c++) {
        if (strchr("\b\f\n\r\t", c) && c) continue;
        char s[1] = {(char)c}, want[16];
        snprintf(want, sizeof want, "\"\\u%04x\"", (unsigned)c);
        check_string(s, 1, want);
    }
    for (int c = 0x20; c < 0x80; c++) {
        if (c == '"' || c == '\\') continue;
        char s[1] = {(char)c}, want[4] = {'"', (char)c, '"', 0};
        check_string(s, 1, want);
    }
    /* whole characters are kept as they are */
    check_string("\xC3\xA9 \xE7\x96\xBE\xE9\xA2\xA8 \xF0\x9F\x8C\xAC", 14,
                 "\"\xC3\xA9 \xE7\x96\xBE\xE9\xA2\xA8 \xF0\x9F\x8C\xAC\"");
    check_string("\xE2\x80\xA8", 3, "\"\xE2\x80\xA8\"");
}

/* Strings are looked at eight bytes at a time: every ASCII character at every place, among those next to the escaped.
 */
static void escapes_anywhere(void **state)
{
    (void)state;
    enum { LENGTH = 19 };
    const char beside[] = " !#[]~\x7F", short_names[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    for (size_t b = 0; b < sizeof beside - 1; b++) {
        for (int c = 0; c < 0x80; c++) {
            for (int at = 0; at < LENGTH; at++) {
                char s[LENGTH], one[8] = {(char)c}, want[LENGTH + 10];
                memset(s, beside[b], LENGTH);
                s[at] = (char)c;
                const char *name = c ? strchr(short_names, c) : NULL;
                if (name)
                    snprintf(one, sizeof one, "\\%c", letters[name - short_names]);
                else if (c < 0x20)
                    snprintf(one, sizeof one, "\\u%04x", (unsigned)c);
                snprintf(want, sizeof want, "\"%.*s%s%.*s\"", at, s, one, LENGTH - 1 - at, s + at + 1);
                check_string(s, LENGTH, want);
            }
        }
    }
}

/* Short plain keys are written in one piece; the others must look the same. */
static void keys_of_all_lengths(void **state)
{
    (void)state;
    for (size_t length = 0; length < 80; length++) {
        for (int escaped = 0; escaped < 2; escaped++) {
            char key[81], want[200], as[84];
            memset(key, 'k', length), memset(as, 'k', length);
            key[length] = as[length] = 0;
            if (escaped && length) key[length - 1] = '\n', strcpy(as + length - 1, "\\n");
            buffer b = {0};
            json_writer w = {.out = &b};
            writer_object(&w);
            writer_key(&w, key), writer_null(&w);
            writer_key(&w, key), writer_array(&w), writer_end(&w);
            writer_end(&w);
            snprintf(want, sizeof want, "{\"%s\":null,\"%s\":[]}", as, as);
            assert_string_equal(b.data, want);
            buffer_free(&b);
        }
    }
}

#define REPLACED "\xEF\xBF\xBD"

static void wrong_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"\xFF", REPLACED},
        {"a\x80"
         "b",
         "a" REPLACED "b"},
        {"\xC0\xAF", REPLACED REPLACED},              /* overlong */
        {"\xED\xA0\x80", REPLACED REPLACED REPLACED}, /* surrogate */
        {"\xE7\x96", REPLACED},                       /* cut short: one mark for the piece */
        {"\xE7\x96\"", REPLACED "\\\""},              /* the quote must not be swallowed */
        {"\xF0\x9F\x8C\\", REPLACED "\\\\"},
        {"\xF4\x90\x80\x80", REPLACED REPLACED REPLACED REPLACED},
        {"\xE7\xE7\x96\xBE", REPLACED "\xE7\x96\xBE"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[64];
        snprintf(want, sizeof want, "\"%s\"", cases[i].out);
        check_string(cases[i].in, strlen(cases[i].in), want);
    }
}

static void check_number(double value, const char *want)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    writer_number(&w, value);
    assert_string_equal(b.data, want);
    buffer_free(&b);
}

static void numbers(void **state)
{
    (void)state;
    check_number(0, "0.0");
    check_number(-0.0, "-0.0");
    check_number(3, "3.0");
    check_number(-17, "-17.0");
    check_number(0.1, "0.1");
    check_number(1.0 / 3, "0.3333333333333333");
    check_number(0.1 + 0.2, "0.30000000000000004");
    check_number(123456.789, "123456.789");
    check_number(1e22, "1e+22");
    check_number(5e-324, "5e-324");
    check_number(DBL_MAX, "1.7976931348623157e+308");
    check_number(2.2250738585072014e-308, "2.2250738585072014e-308");
    check_number(9007199254740993.0, "9007199254740992.0");
    check_number(NAN, "null");
    check_number(INFINITY, "null");
    check_number(-INFINITY, "null");
}

/* Any double reads back equal, and with one digit less it would not (unless one digit was enough). */
static void shortest_numbers(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 60000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        double value;
        if (i % 3 == 0)
            value = (double)(int64_t)(x % 2000001) / 1000 - 1000;
        else if (i % 3 == 1)
            value = (double)(float)(x >> 40) * 0x1p-12;
        else
            memcpy(&value, &x, sizeof value);
        if (!isfinite(value)) continue;
        char text[32], fewer[400];
        json_format_number(value, text);
        assert_true(strtod(text, NULL) == value);
        int digits = 0;
        for (const char *p = text; *p && *p != 'e'; p++)
            if (*p >= '0' && *p <= '9' && (digits || *p != '0')) digits++;
        const char *e = strchr(text, 'e');
        if (!e && !strchr(text, '.')) continue; /* trailing zeros of an integer are no digits of precision */
        if (digits < 2) continue;
        snprintf(fewer, sizeof fewer, "%.*g", digits - 1, value);
        assert_true(strtod(fewer, NULL) != value);
    }
}

/* A host program with a decimal comma still gets JSON. Needs such a locale on the machine. */
static void other_decimal_point(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "es_ES.UTF-8", "pt_BR.UTF-8"};
    size_t i = 0;
    while (i < sizeof names / sizeof *names && !setlocale(LC_NUMERIC, names[i])) i++;
    if (i == sizeof names / sizeof *names) skip();
    check_number(0.5, "0.5");
    check_number(-1.25e-9, "-1.25e-09");
    setlocale(LC_NUMERIC, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structure),        cmocka_unit_test(escapes),
        cmocka_unit_test(escapes_anywhere), cmocka_unit_test(keys_of_all_lengths),
        cmocka_unit_test(wrong_utf8),       cmocka_unit_test(numbers),
        cmocka_unit_test(shortest_numbers), cmocka_unit_test(other_decimal_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
