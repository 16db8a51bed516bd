/* The line of throughput, quiet engines, and the word about a stall. Times are short, waits are until it has happened.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "engine/watch.h"

/* ---- What was logged, and an engine's numbers ---------------------------------------------------------------- */

enum { LINES = 512 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static char lines[LINES][1024];
static hy_log_level levels[LINES];
static int line_count;
static hy_engine_stats numbers;
static int extras; /* lines that `extra` still gives */
static double looked; /* when the watch last asked for them */

static void take_line(void *user, hy_log_level level, const char *line)
{
    (void)user;
    pthread_mutex_lock(&lock);
    if (line_count < LINES) {
        levels[line_count] = level;
        snprintf(lines[line_count++], sizeof lines[0], "%s", line);
    }
    pthread_mutex_unlock(&lock);
}

static void describe(void *user, hy_engine_stats *stats)
{
    assert_ptr_equal(user, &numbers);
    pthread_mutex_lock(&lock);
    *stats = numbers;
    looked = clock_seconds();
    pthread_mutex_unlock(&lock);
}

static const char *extra(void *user, char *buffer, size_t size)
{
    assert_ptr_equal(user, &numbers);
    pthread_mutex_lock(&lock);
    int left = extras > 0 ? extras-- : 0;
    pthread_mutex_unlock(&lock);
    snprintf(buffer, size, "extra: %d are left", left);
    return left ? buffer : NULL;
}

static int counted(const char *part)
{
    int n = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < line_count; i++) n += strstr(lines[i], part) != NULL;
    pthread_mutex_unlock(&lock);
    return n;
}

/* The line number `n` of those with `part`, copied; with the place that it was logged at. */
static int find(const char *part, int n, char out[1024])
{
    int at = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < line_count && at < 0; i++)
        if (strstr(lines[i], part) && n-- == 0) at = i;
    if (at >= 0) memcpy(out, lines[at], 1024);
    pthread_mutex_unlock(&lock);
    if (at < 0) fail_msg("no line with \"%s\"", part);
    return at;
}

static void sleep_for(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void wait_for(const char *part, int n)
{
    double end = clock_seconds() + 20;
    while (counted(part) < n && clock_seconds() < end) sleep_for(0.002);
    if (counted(part) < n) fail_msg("%d lines with \"%s\", want %d", counted(part), part, n);
}

/* Until the last line has the part; returns how many there are then. */
static int wait_last(const char *part)
{
    int all = 0;
    for (double end = clock_seconds() + 20; all == 0 && clock_seconds() < end; sleep_for(0.002)) {
        pthread_mutex_lock(&lock);
        if (line_count > 0 && strstr(lines[line_count - 1], part)) all = line_count;
        pthread_mutex_unlock(&lock);
    }
    if (all == 0) fail_msg("\"%s\" was not the last line", part);
    return all;
}

static void work(uint64_t prompt, uint64_t generated, int running, int waiting)
{
    pthread_mutex_lock(&lock);
    numbers.prompt_tokens += prompt, numbers.generated_tokens += generated;
    numbers.running = running, numbers.waiting = waiting;
    if (prompt + generated > 0) numbers.steps++;
    pthread_mutex_unlock(&lock);
}

static watch *opened(double log_seconds, double stall_seconds)
{
    watch_options o = {.log_seconds = log_seconds,
                       .stall_seconds = stall_seconds,
                       .layers = 60,
                       .describe = describe,
                       .extra = extra,
                       .user = &numbers};
    watch *w = NULL;
    hy_error err = {0};
    if (watch_open(&o, &w, &err) != HY_OK) fail_msg("%s", err.message);
    return w;
}

static int setup(void **state)
{
    (void)state;
    line_count = 0, extras = 0;
    memset(&numbers, 0, sizeof numbers);
    hy_log_set(take_line, NULL, HY_LOG_DEBUG);
    return 0;
}

#define LINE "Engine 000: Avg prompt throughput: "
#define STALL "nothing has moved for "

/* ---- The line -------------------------------------------------------------------------------------------------- */

static void test_line(void **state)
{
    (void)state;
    numbers.cache_usage = 0.125, numbers.prefix_queries = 4000, numbers.prefix_hits = 1000;
    watch *w = opened(0.1, 0);
    sleep_for(0.25);
    assert_int_equal(counted(""), 0); /* nothing was asked of it yet */
    pthread_mutex_lock(&lock);
    double start = looked; /* the time of the line begins with the look before the work, or a moment earlier */
    pthread_mutex_unlock(&lock);
    work(5000, 300, 3, 7);
    wait_for(LINE, 1);
    double seconds = clock_seconds() - start;
    char line[1024], rest[1024];
    double prompt, generated;
    find(LINE, 0, line);
    assert_int_equal(levels[0], HY_LOG_INFO);
    assert_int_equal(
        sscanf(line, LINE "%lf tokens/s, Avg generation throughput: %lf tokens/s, %[^\n]", &prompt, &generated, rest),
        3);
    assert_string_equal(rest,
                        "Running: 3 reqs, Waiting: 7 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 25.0%");
    assert_true(prompt >= 5000 / (seconds + 0.5) && prompt <= 5000 / 0.1 + 1);
    assert_true(generated * 5000 > prompt * 290 && generated * 5000 < prompt * 310);
    /* Requests that run are work, also when they come to nothing. */
    wait_for(LINE, 3);
    find(LINE, 2, line);
    assert_non_null(strstr(line, "throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 3 reqs"));
    watch_close(w);
}

static void test_optional_parts(void **state)
{
    (void)state;
    numbers.preemptions = 2, numbers.disk_hits = 64, numbers.memory_hits = 192;
    numbers.prefix_queries = 4000, numbers.prefix_hits = 2976, numbers.running = 1;
    watch *w = opened(0.1, 0);
    wait_for(LINE, 2);
    char line[1024];
    find(LINE, 0, line);
    assert_string_equal(strstr(line, "Waiting"),
                        "Waiting: 0 reqs, Preemptions: 2, GPU KV cache usage: 0.0%, Prefix cache hit rate: "
                        "74.4%, External prefix cache hit rate: 25.0%");
    find(LINE, 1, line); /* preemptions are those since the line before */
    assert_null(strstr(line, "Preemptions"));
    assert_non_null(strstr(line, "External prefix cache hit rate: 25.0%"));
    pthread_mutex_lock(&lock);
    numbers.preemptions += 3;
    pthread_mutex_unlock(&lock);
    wait_for("Preemptions: 3, ", 1);
    watch_close(w);
}

/* What was asked a while ago does not count any more. */
static void test_window(void **state)
{
    (void)state;
    numbers.running = 1, numbers.prefix_queries = 1000, numbers.prefix_hits = 1000;
    watch *w = opened(0.02, 0);
    char line[1024];
    wait_for(LINE, 1);
    find(LINE, 0, line);
    assert_non_null(strstr(line, "Prefix cache hit rate: 100.0%"));
    pthread_mutex_lock(&lock);
    numbers.prefix_queries += 1000;
    int before = line_count;
    pthread_mutex_unlock(&lock);
    wait_for(LINE, before + 2 * WATCH_WINDOW);
    pthread_mutex_lock(&lock);
    bool half = false;
    for (int i = before; i < line_count; i++) half |= strstr(lines[i], "hit rate: 50.0%") != NULL;
    pthread_mutex_unlock(&lock);
    if (before < WATCH_WINDOW - 1) assert_true(half);
    find(LINE, before + 2 * WATCH_WINDOW - 1, line);
    assert_non_null(strstr(line, "Prefix cache hit rate: 0.0%"));
    watch_close(w);
}

/* One line after the work, then none; then lines again. */
static void test_idle(void **state)
{
    (void)state;
    watch *w = opened(0.05, 0);
    for (int round = 0; round < 3; round++) {
        work(100, 10, 1, 0);
        wait_for(LINE, 2 * round + 1);
        work(0, 0, 0, 0);
        wait_for("Running: 0 reqs", round + 1);
        int all = wait_last(LINE "0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0");
        sleep_for(0.4);
        assert_int_equal(counted(""), all);
    }
    watch_close(w);
    assert_true(counted("Avg generation throughput: 0.0 tokens/s, Running: 0") <= 6);
}

/* Work that was not told yet is told at the end, however short it was. */
static void test_close_tells(void **state)
{
    (void)state;
    extras = 2;
    watch *w = opened(100, 0);
    work(700, 70, 0, 0);
    assert_int_equal(counted(""), 0);
    watch_close(w);
    char line[1024];
    assert_int_equal(counted(""), 2);
    assert_int_equal(find("Running: 0 reqs", 0, line), 0);
    assert_null(strstr(line, "throughput: 0.0"));
    assert_int_equal(find("extra: 2 are left", 0, line), 1);
}

static void test_extra(void **state)
{
    (void)state;
    extras = 2;
    numbers.running = 1;
    watch *w = opened(0.05, 0);
    wait_for(LINE, 4);
    work(0, 0, 0, 0);
    watch_close(w);
    char line[1024];
    assert_int_equal(counted("extra: "), 2);
    assert_int_equal(find("extra: 2", 0, line), find(LINE, 0, line) + 1);
    assert_int_equal(find("extra: 1", 0, line), find(LINE, 1, line) + 1);
    /* None beside the line of no work. */
    setup(NULL);
    extras = 100, numbers.steps = 1;
    w = opened(0.05, 0);
    wait_for(LINE, 2);
    sleep_for(0.2);
    watch_close(w);
    assert_int_equal(counted("extra: "), 1);
    assert_int_equal(counted(LINE), 2);
}

/* ---- The word -------------------------------------------------------------------------------------------------- */

static void test_stall(void **state)
{
    (void)state;
    work(0, 0, 2, 5);
    watch *w = opened(0, 0.2);
    watch_row rows[] = {{.request = 41, .known = 1024, .computed = 512, .rows = 128}, {42, 77, 76, 1}};
    watch_schedule(w, rows, 2, 2, 5);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 60; i++) {
            watch_enter(w, WATCH_RUNNER, WATCH_FORWARD, i);
            sleep_for(0.005);
        }
        watch_enter(w, WATCH_PLANNER, WATCH_WAIT, 0);
        watch_enter(w, WATCH_RUNNER, WATCH_FORWARD, round == 0 ? 17 : 60);
        int before = counted(STALL); /* as many as stalls so far: a machine that itself stood still makes more */
        wait_for(STALL, before + 1);
        sleep_for(0.6);
        assert_int_equal(counted(STALL), before + 1);
        assert_int_equal(counted("moves again"), before);
        assert_int_equal(counted("request 41: "), before + 1);
        char line[1024];
        int at = find(STALL, before, line);
        assert_int_equal(levels[at], HY_LOG_WARNING);
        assert_non_null(strstr(line, "the planner is waiting for the other thread for "));
        assert_non_null(strstr(line, round == 0 ? "the runner computing, in layer 17 for " : "in the head for "));
        assert_non_null(strstr(line, "2 requests run, 5 wait"));
        assert_string_equal(lines[at + 1],
                            "Engine 000: request 41: 512 of its 1024 tokens are in the cache, 128 rows in the step");
        assert_non_null(strstr(lines[at + 2], "request 42: 76 of its 77 tokens are in the cache, 1 rows"));
        watch_enter(w, WATCH_RUNNER, WATCH_SAMPLE, 0);
        wait_for("moves again after ", before + 1);
    }
    watch_close(w);
    assert_true(counted(STALL) < 5);
}

static void test_many_rows(void **state)
{
    (void)state;
    watch *w = opened(0, 0.05);
    watch_row rows[WATCH_ROWS + 8] = {{0}};
    for (int i = 0; i < WATCH_ROWS + 8; i++) rows[i].request = (uint64_t)i + 100;
    watch_schedule(w, rows, WATCH_ROWS + 8, WATCH_ROWS + 8, 0);
    watch_enter(w, WATCH_PLANNER, WATCH_HAND_OUT, 107);
    wait_for("and 8 requests more", 1);
    assert_int_equal(counted("of its 0 tokens"), WATCH_ROWS);
    assert_int_equal(counted("the planner is in a callback of request 107"), 1);
    watch_close(w);
}

static void test_no_stall(void **state)
{
    (void)state;
    watch *w = opened(0, 0.05);
    sleep_for(0.3); /* both are idle, as they begin */
    watch_enter(w, WATCH_RUNNER, WATCH_WAIT, 0);
    sleep_for(0.3); /* the runner waits for work that does not come */
    assert_int_equal(counted(""), 0);
    watch_close(w);
    /* Threads that sleep over a request: a stall, but only after its time. */
    w = opened(0, 0.4);
    sleep_for(0.6);
    double start = clock_seconds();
    work(0, 0, 0, 1);
    wait_for(STALL, 1);
    assert_true(clock_seconds() - start >= 0.3);
    assert_int_equal(counted("the planner is idle"), 1);
    watch_close(w);
}

/* ---- Phases and ends ------------------------------------------------------------------------------------------- */

static void test_seconds(void **state)
{
    (void)state;
    watch *w = opened(0, 0);
    double start = clock_seconds(), sum = 0;
    for (int i = 0; i < 3; i++) {
        watch_enter(w, WATCH_RUNNER, WATCH_FORWARD, i);
        sleep_for(0.03);
        watch_enter(w, WATCH_RUNNER, WATCH_SAMPLE, 0);
        sleep_for(0.01);
    }
    double sample = watch_seconds(w, WATCH_RUNNER, WATCH_SAMPLE);
    for (int p = 0; p < WATCH_PHASES; p++) sum += watch_seconds(w, WATCH_RUNNER, (watch_phase)p);
    double all = clock_seconds() - start;
    assert_true(watch_seconds(w, WATCH_RUNNER, WATCH_FORWARD) >= 0.09);
    assert_true(sample >= 0.03 && sample <= all - 0.09);
    assert_true(sum >= 0.12 && sum <= all + 0.5);
    assert_true(watch_seconds(w, WATCH_RUNNER, WATCH_SAMPLE) > sample); /* it is still in it */
    assert_true(watch_seconds(w, WATCH_PLANNER, WATCH_IDLE) >= 0.12);
    assert_true(watch_seconds(w, WATCH_PLANNER, WATCH_PLAN) == 0);
    assert_int_equal(counted(""), 0);
    watch_close(w);
    watch_close(NULL);
}

static void test_closes_at_once(void **state)
{
    (void)state;
    double quickest = 10; /* of eight, since the machine may be busy: looks are a second apart */
    for (int i = 0; i < 8; i++) {
        watch *w = opened(100, 100);
        sleep_for(0.005);
        double start = clock_seconds();
        watch_close(w);
        double took = clock_seconds() - start;
        if (took < quickest) quickest = took;
    }
    assert_true(quickest < 0.5);
    assert_int_equal(counted(""), 0);
}

struct announcer {
    watch *w;
    watch_thread thread;
};

static void *announce(void *arg)
{
    struct announcer *a = arg;
    for (int i = 0; i < 20000; i++) {
        watch_enter(a->w, a->thread, (watch_phase)(i % WATCH_PHASES), i);
        if (a->thread == WATCH_PLANNER) {
            watch_row row = {(uint64_t)i, i, i, 1};
            watch_schedule(a->w, &row, 1, 1, 0);
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    watch *w = opened(0.01, 0.01);
    work(1, 1, 1, 0);
    struct announcer a[WATCH_THREADS] = {{w, WATCH_PLANNER}, {w, WATCH_RUNNER}};
    pthread_t thread[WATCH_THREADS];
    double start = clock_seconds();
    for (int i = 0; i < WATCH_THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, announce, &a[i]), 0);
    double last = 0;
    for (int i = 0; i < 2000; i++) {
        double s = watch_seconds(w, WATCH_RUNNER, WATCH_FORWARD);
        assert_true(s >= last && s <= clock_seconds() - start + 0.01);
        last = s;
    }
    for (int i = 0; i < WATCH_THREADS; i++) pthread_join(thread[i], NULL);
    wait_for(STALL, 1); /* nobody announces any more */
    watch_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_line, setup),           cmocka_unit_test_setup(test_optional_parts, setup),
        cmocka_unit_test_setup(test_window, setup),         cmocka_unit_test_setup(test_idle, setup),
        cmocka_unit_test_setup(test_close_tells, setup),    cmocka_unit_test_setup(test_extra, setup),
        cmocka_unit_test_setup(test_stall, setup),          cmocka_unit_test_setup(test_many_rows, setup),
        cmocka_unit_test_setup(test_no_stall, setup),       cmocka_unit_test_setup(test_seconds, setup),
        cmocka_unit_test_setup(test_closes_at_once, setup), cmocka_unit_test_setup(test_threads, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
