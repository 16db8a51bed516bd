/* Log lines: levels, one line whatever is in it, any length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/log.h"

static char last[8192];
static int count;

static void keep(void *user, hy_log_level level, const char *line)
{
    (void)user, (void)level;
    strncpy(last, line, sizeof last - 1);
    count++;
}

static void levels(void **state)
{
    (void)state;
    log_line(HY_LOG_ERROR, "nobody listens");
    assert_false(log_wants(HY_LOG_ERROR));
    hy_log_set(keep, NULL, HY_LOG_WARNING);
    log_line(HY_LOG_INFO, "below");
    assert_int_equal(count, 0);
    log_line(HY_LOG_WARNING, "%s %d", "at", 1);
    assert_string_equal(last, "at 1");
    assert_true(log_wants(HY_LOG_WARNING));
    assert_false(log_wants(HY_LOG_INFO));
}

static void any_length(void **state)
{
    (void)state;
    static char text[6000];
    hy_log_set(keep, NULL, HY_LOG_DEBUG);
    for (size_t length = 1020; length < 1030; length++) {
        memset(text, 'x', length), text[length] = 0, text[length / 2] = '\n';
        log_line(HY_LOG_INFO, "%s", text);
        assert_int_equal(strlen(last), length);
        assert_null(strchr(last, '\n'));
    }
    memset(text, 'y', sizeof text - 1);
    log_line(HY_LOG_INFO, "a%sb", text);
    assert_int_equal(strlen(last), sizeof text + 1);
    assert_int_equal(last[sizeof text], 'b');
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels), cmocka_unit_test(any_length)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
