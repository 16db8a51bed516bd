/* The scanner against the pattern, run the slow way: every choice tried in the order of a backtracking matcher. */
#include "text_helpers.h"

#include <utf8proc.h>

#include "base/utf8.h"
#include "text/pretokenize.h"

/* ---- The pattern, literally ---- */

typedef struct chars {
    uint32_t c[600];
    size_t count;
} chars;

static bool in_upper(uint32_t c)
{
    int k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT || k == UTF8PROC_CATEGORY_LM ||
           k == UTF8PROC_CATEGORY_LO || (k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME);
}
static bool in_lower(uint32_t c)
{
    int k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_LO ||
           (k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME);
}
static bool letter(uint32_t c)
{
    int k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
static bool number(uint32_t c)
{
    int k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}
/* White_Space: the separators, and six control characters. */
static bool space(uint32_t c)
{
    int k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP) || (c >= 9 && c <= 13) || c == 0x85;
}
static bool line_end(uint32_t c)
{
    return c == '\r' || c == '\n';
}

static size_t contraction_at(const chars *t, size_t at, bool long_s)
{
    static const char *const forms[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (at >= t->count || t->c[at] != '\'') return at;
    for (int f = 0; f < 7; f++) {
        size_t n = strlen(forms[f]), k = 0;
        for (; k < n && at + 1 + k < t->count; k++) {
            uint32_t c = t->c[at + 1 + k];
            bool same = c == (uint32_t)forms[f][k] || c == (uint32_t)forms[f][k] - 32;
            if (!same && !(forms[f][k] == 's' && long_s && c == 0x17F)) break;
        }
        if (k == n) return at + 1 + n;
    }
    return at;
}

static size_t words(const chars *t, size_t at, bool long_s)
{
    for (int alternative = 0; alternative < 2; alternative++) {
        for (int prefix = 1; prefix >= 0; prefix--) {
            size_t p = at;
            if (prefix) {
                if (line_end(t->c[p]) || letter(t->c[p]) || number(t->c[p])) continue;
                p++;
            }
            size_t upper = p;
            while (upper < t->count && in_upper(t->c[upper])) upper++;
            for (size_t u = upper + 1; u-- > p;) {
                size_t lower = u;
                while (lower < t->count && in_lower(t->c[lower])) lower++;
                if (alternative == 0 ? lower > u : u > p) return contraction_at(t, lower, long_s);
            }
        }
    }
    return at;
}

static size_t slow_next(const chars *t, size_t at, pretokenize_rules rules)
{
    size_t end = words(t, at, rules.long_s), n = t->count;
    if (end > at) return end;
    while (end < n && end < at + 3 && number(t->c[end])) end++;
    if (end > at) return end;
    for (int prefix = 1; prefix >= 0; prefix--) {
        size_t p = at + (size_t)prefix, q;
        if (prefix && t->c[at] != ' ') continue;
        for (q = p; q < n && !space(t->c[q]) && !letter(t->c[q]) && !number(t->c[q]);) q++;
        if (q == p) continue;
        while (q < n && (line_end(t->c[q]) || (rules.slash_after_punctuation && t->c[q] == '/'))) q++;
        return q;
    }
    while (end < n && space(t->c[end])) end++;
    for (size_t p = end; p > at; p--)
        if (line_end(t->c[p - 1])) return p;
    if (end == n || end == at + 1) return end;
    return end - 1;
}

/* ---- Comparison ---- */

static void compare(const chars *t, pretokenize_rules rules)
{
    char s[2500];
    size_t offset[601], length = 0;
    for (size_t i = 0; i < t->count; i++) {
        offset[i] = length;
        length += utf8_encode(t->c[i], s + length);
    }
    offset[t->count] = length;
    for (size_t at = 0; at < t->count;) {
        size_t want = slow_next(t, at, rules), got = pretokenize_next(&rules, s, length, offset[at]);
        if (got != offset[want])
            fail_msg("\"%.*s\" at %zu: %zu, want %zu", (int)length, s, offset[at], got, offset[want]);
        at = want;
    }
}

/* Characters that matter, and any others. */
static uint32_t some_char(uint64_t *seed)
{
    static const uint32_t odd[] = {
        'a',   'b',   'Z',    'Q',   ' ',   ' ',    '\n',   '\r',     '\t',   '\'',   '\'',    's',    'S',
        't',   'r',   'e',    'l',   'L',   'v',    'd',    'm',      '/',    '!',    '.',     '1',    '2',
        0x17F, 0x301, 0x308,  0x1C5, 0x2B0, 0x4E2D, 0x3042, 0xA0,     0x85,   0x2028, 0x3000,  0x200D, 0x1F600,
        0x660, 0xBD,  0x2167, 0xE9,  0xC9,  0x903,  0x488,  0x10FFFF, 0xE000, 0x378,  0x1D400, 0x0};
    if (draw(seed) % 8) return odd[draw(seed) % (sizeof odd / sizeof *odd)];
    uint32_t c = draw(seed) % 0x110000;
    return c >= 0xD800 && c < 0xE000 ? 'x' : c;
}

static void test_random(void **state)
{
    (void)state;
    uint64_t seed = 7;
    chars t;
    for (int i = 0; i < 150000; i++) {
        t.count = 1 + draw(&seed) % 20;
        for (size_t k = 0; k < t.count; k++) t.c[k] = k && draw(&seed) % 3 == 0 ? t.c[k - 1] : some_char(&seed);
        compare(&t, (pretokenize_rules){i & 1, (i & 2) != 0});
    }
}

/* Every code point by itself, and between two letters, two spaces and two line ends. */
static void test_every_char(void **state)
{
    (void)state;
    static const uint32_t around[] = {'a', ' ', '\n', '!', 0x301};
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xD800 && c < 0xE000) continue;
        chars t = {.c = {c}, .count = 1};
        compare(&t, pretokenize_m3);
        uint32_t x = around[c % 5];
        t = (chars){.c = {x, c, x}, .count = 3};
        compare(&t, pretokenize_m3);
    }
}

static void test_known_pieces(void **state)
{
    (void)state;
    static const char *const cases[][8] = {
        {"I'm", " don'T", " WE'LL", NULL},  {"http", "://", "a", "/b", "//", "c", "\n\n", "x"},
        {"foo", " ", " bar", "\r\n", NULL}, {"it'\xC5\xBF", "x", NULL},
        {"  \n", "  ", " x", NULL},         {" \xE4\xBD\xA0\xE5\xA5\xBD", "123", "4", " !?\n/", "x", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buffer text = {0};
        for (int k = 0; k < 8 && cases[i][k]; k++) buffer_string(&text, cases[i][k]);
        size_t at = 0;
        for (int k = 0; k < 8 && cases[i][k]; k++) {
            size_t end = pretokenize_next(&pretokenize_m3, text.data, text.length, at);
            assert_int_equal(end - at, strlen(cases[i][k]));
            at = end;
        }
        buffer_free(&text);
    }
}

static void test_patterns(void **state)
{
    (void)state;
    pretokenize_rules rules = {0};
    json_t *j = load_data("m3-small.json");
    json_t *split = json_array_get(json_object_get(json_object_get(j, "pre_tokenizer"), "pretokenizers"), 0);
    const char *m3 = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    assert_true(pretokenize_find(m3, &rules));
    assert_true(rules.slash_after_punctuation && rules.long_s);
    char changed[1024];
    const char *slash = strstr(m3, "\\r\\n/]*");
    snprintf(changed, sizeof changed, "%.*s\\r\\n]*%s", (int)(slash - m3), m3, slash + strlen("\\r\\n/]*"));
    assert_true(pretokenize_find(changed, &rules));
    assert_true(!rules.slash_after_punctuation && rules.long_s);
    assert_false(pretokenize_find(m3 + 1, &rules));
    assert_false(pretokenize_find("", &rules));
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_every_char),
        cmocka_unit_test(test_known_pieces),
        cmocka_unit_test(test_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
