/* Errors, log lines and progress: one line each, whatever went into it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

static void filling(void **state)
{
    (void)state;
    hy_error err = {HY_OK, "old", "old"};
    assert_int_equal(error_set(&err, HY_USAGE, "threads must be %d to %d", 0, 4), HY_USAGE);
    assert_int_equal(err.status, HY_USAGE);
    assert_string_equal(err.message, "threads must be 0 to 4");
    assert_string_equal(err.where, "");
    assert_int_equal(error_at(&err, HY_BAD_MODEL, "model.norm.weight", "%s is %s", "it", "wrong"), HY_BAD_MODEL);
    assert_string_equal(err.message, "it is wrong");
    assert_string_equal(err.where, "model.norm.weight");
    assert_int_equal(error_at(&err, HY_FAILED, NULL, "x"), HY_FAILED);
    assert_string_equal(err.where, "");
    assert_int_equal(error_memory(&err, "the cache", 12345), HY_NO_FIT);
    assert_string_equal(err.message, "out of memory: 12345 bytes for the cache");
    assert_int_equal(error_set(NULL, HY_CANCELLED, "%d", 1), HY_CANCELLED);
    assert_int_equal(error_memory(NULL, "x", 1), HY_NO_FIT);
}

static void control_characters(void **state)
{
    (void)state;
    hy_error err;
    for (int c = 1; c < 256; c++) { /* from 0x80 on no UTF-8 */
        char s[] = {'a', (char)c, 'b', 0}, want[] = {'a', c < 0x20 || c >= 0x7F ? '?' : (char)c, 'b', 0};
        error_at(&err, HY_FAILED, s, "%s", s);
        assert_string_equal(err.message, want);
        assert_string_equal(err.where, want);
    }
    error_set(&err, HY_FAILED, "%s", "evil\nname\r\n\x1B[2J.safetensors");
    assert_string_equal(err.message, "evil?name???[2J.safetensors");
    error_set(&err, HY_FAILED, "%s",
              "caf\u00E9 \u9593 \U0001F600 \xC2\x9B"
              "2J \xC2\x80\xC2\x9F\u00A0");
    assert_string_equal(err.message, "caf\u00E9 \u9593 \U0001F600 ??2J ????\u00A0");
}

static void too_long(void **state)
{
    (void)state;
    hy_error err;
    char s[2000];
    memset(s, 'x', sizeof s - 1);
    s[sizeof s - 1] = 0;
    error_at(&err, HY_FAILED, s, "%s\n", s);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_int_equal(strlen(err.where), sizeof err.where - 1);
}

/* A caller adds to the message it got, in place. */
static void adding_to_a_message(void **state)
{
    (void)state;
    hy_error err;
    error_at(&err, HY_FAILED, "a.json", "cannot open it");
    error_at(&err, HY_BAD_MODEL, err.where, "the index: %s", err.message);
    assert_int_equal(err.status, HY_BAD_MODEL);
    assert_string_equal(err.message, "the index: cannot open it");
    assert_string_equal(err.where, "a.json");
}

static void status_names(void **state)
{
    (void)state;
    for (int s = HY_OK; s <= HY_UNSUPPORTED; s++) {
        assert_string_not_equal(hy_status_name((hy_status)s), "unknown");
        for (int t = HY_OK; t < s; t++)
            assert_string_not_equal(hy_status_name((hy_status)s), hy_status_name((hy_status)t));
    }
    assert_string_equal(hy_status_name((hy_status)99), "unknown");
}

static struct {
    int lines;
    hy_log_level level;
    char text[2000];
} seen;

static void sink(void *user, hy_log_level level, const char *line)
{
    assert_ptr_equal(user, &seen);
    seen.lines++;
    seen.level = level;
    strncpy(seen.text, line, sizeof seen.text - 1);
}

static void log_lines(void **state)
{
    (void)state;
    log_line(HY_LOG_ERROR, "nobody listens");
    hy_log_set(sink, &seen, HY_LOG_INFO);
    log_line(HY_LOG_DEBUG, "too low");
    assert_int_equal(seen.lines, 0);
    log_line(HY_LOG_INFO, "%s %d", "at\nlevel", 7);
    assert_int_equal(seen.lines, 1);
    assert_int_equal(seen.level, HY_LOG_INFO);
    assert_string_equal(seen.text, "at level 7");
    char s[3000];
    memset(s, 'y', sizeof s - 1);
    s[sizeof s - 1] = 0;
    log_line(HY_LOG_ERROR, "%s", s);
    assert_int_equal(seen.lines, 2);
    assert_true(strlen(seen.text) > 500);
    hy_log_set(NULL, NULL, HY_LOG_DEBUG);
    log_line(HY_LOG_ERROR, "nobody listens any more");
    assert_int_equal(seen.lines, 2);
}

static struct {
    int calls;
    uint64_t done;
    bool go_on;
} report;

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    assert_ptr_equal(user, &report);
    assert_string_equal(what, "reading");
    assert_string_equal(unit, "bytes");
    assert_int_equal(total, 1000000);
    report.calls++;
    report.done = done;
    return report.go_on;
}

static void progress_reports(void **state)
{
    (void)state;
    double start = clock_seconds(), last = start;
    progress p = {.fn = on_progress, .user = &report, .what = "reading", .unit = "bytes", .total = 1000000};
    report.go_on = true;
    for (int i = 0; i < 1000000; i++) assert_true(progress_add(&p, 1));
    double spent = clock_seconds() - start;
    assert_true(report.calls >= 1 && report.calls <= 2 + (int)(spent * 10));
    progress_end(&p);
    assert_int_equal(report.done, 1000000);
    report.go_on = false;
    p.next = 0;
    assert_false(progress_add(&p, 0));
    progress quiet = {.total = 5};
    assert_true(progress_add(&quiet, 3));
    progress_end(&quiet);
    assert_int_equal(quiet.done, 3);
    for (int i = 0; i < 1000; i++) {
        double now = clock_seconds();
        assert_true(now >= last);
        last = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filling),          cmocka_unit_test(control_characters),  cmocka_unit_test(too_long),
        cmocka_unit_test(status_names),     cmocka_unit_test(adding_to_a_message), cmocka_unit_test(log_lines),
        cmocka_unit_test(progress_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
