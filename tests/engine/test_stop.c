/* Stop strings: the first match, and what is held back until it is decided. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/stop.h"

static stop_strings of(const char *const *string, size_t count)
{
    static size_t length[8];
    for (size_t i = 0; i < count; i++) length[i] = strlen(string[i]);
    return (stop_strings){string, length, count};
}

static void test_find(void **state)
{
    (void)state;
    const char *list[] = {"abcd", "bc", "d"};
    stop_strings s = of(list, 3);
    stop_match m;
    assert_true(stop_find(&s, "xabcd", 0, 5, &m)); /* "bc" is complete before "abcd" */
    assert_int_equal(m.index, 1);
    assert_int_equal(m.begin, 2);
    assert_int_equal(m.end, 4);
    assert_true(stop_find(&s, "xabcd", 4, 5, &m)); /* "abcd" and "d" end together: the longer one */
    assert_int_equal(m.index, 0);
    assert_int_equal(m.begin, 1);
    assert_false(stop_find(&s, "xabc", 4, 4, &m));
    assert_false(stop_find(&s, "", 0, 0, &m));
    assert_false(stop_find(&s, "xyz", 0, 3, &m));
    stop_strings none = {0};
    assert_false(stop_find(&none, "xyz", 0, 3, &m));
}

static void test_hold(void **state)
{
    (void)state;
    const char *list[] = {"</end>", "\n\n"};
    stop_strings s = of(list, 2);
    assert_int_equal(stop_hold(&s, "text", 4), 0);
    assert_int_equal(stop_hold(&s, "text<", 5), 1);
    assert_int_equal(stop_hold(&s, "text</en", 8), 4);
    assert_int_equal(stop_hold(&s, "</end", 5), 5);
    assert_int_equal(stop_hold(&s, "x\n", 2), 1);
    assert_int_equal(stop_hold(&s, "<</", 3), 2);
    assert_int_equal(stop_hold(&s, "", 0), 0);
    stop_strings none = {0};
    assert_int_equal(stop_hold(&none, "xyz", 3), 0);
}

/* Whatever the pieces: the same match, and nothing is shown that belongs to it. */
static void test_pieces(void **state)
{
    (void)state;
    const char *list[] = {"aab", "bab", "ba"};
    stop_strings s = of(list, 3);
    const char *texts[] = {"aaaaab", "cbcabab", "abab", "cccc", "aabbaab", "bbbbbba"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        size_t n = strlen(texts[t]);
        stop_match whole, piece;
        bool found = stop_find(&s, texts[t], 0, n, &whole);
        for (unsigned cuts = 0; cuts < 1u << (n - 1); cuts++) {
            size_t searched = 0, shown = 0;
            bool got = false;
            for (size_t end = 1; end <= n && !got; end++) {
                if (end < n && !(cuts >> (end - 1) & 1)) continue;
                got = stop_find(&s, texts[t], searched, end, &piece);
                searched = end;
                if (!got) {
                    size_t show = end - stop_hold(&s, texts[t], end);
                    assert_true(show >= shown);
                    shown = show;
                }
            }
            assert_int_equal(got, found);
            if (!found) continue;
            assert_int_equal(piece.end, whole.end);
            assert_int_equal(piece.begin, whole.begin);
            assert_true(shown <= whole.begin);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
