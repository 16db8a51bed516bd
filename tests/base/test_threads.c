/* The thread pool: every item once, the same results for every number of threads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/threads.h"

enum { ITEMS = 5000, MOST = 4 };

struct loop {
    uint8_t visits[ITEMS];
    float out[ITEMS];
    int64_t by_worker[MOST]; /* plain memory: two threads with one worker number would race */
    int workers;
    bool wrong;
};

static void body(void *arg, int64_t begin, int64_t end, int worker)
{
    struct loop *l = arg;
    if (worker < 0 || worker >= l->workers || begin < 0 || begin >= end || end > ITEMS) {
        l->wrong = true;
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        l->visits[i]++;
        float sum = 0;
        for (int k = 1; k <= 50; k++) sum += 1.0f / (float)(i * k + 3);
        l->out[i] = sum;
        l->by_worker[worker]++;
    }
}

static void same_for_every_count(void **state)
{
    (void)state;
    static const int64_t chunks[] = {1, 3, 64, 4999, 5000, 5001, 0, -7};
    static struct loop first, l;
    for (int count = 1; count <= MOST; count++) {
        threads *pool = NULL;
        hy_error err = {0};
        assert_int_equal(threads_open(count, &pool, &err), HY_OK);
        assert_int_equal(threads_count(pool), count);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            memset(&l, 0, sizeof l);
            l.workers = count;
            threads_run(pool, ITEMS, chunks[c], body, &l);
            assert_false(l.wrong);
            int64_t total = 0;
            for (int i = 0; i < count; i++) total += l.by_worker[i];
            assert_int_equal(total, ITEMS);
            for (int i = 0; i < ITEMS; i++) assert_int_equal(l.visits[i], 1);
            if (count == 1 && c == 0) first = l;
            assert_memory_equal(l.out, first.out, sizeof l.out);
        }
        threads_close(pool);
    }
}

static void add(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    int64_t *sums = arg;
    for (int64_t i = begin; i < end; i++) sums[i] += i;
}

/* Many short loops one after the other: what one loop wrote, the next may read. */
static void many_loops(void **state)
{
    (void)state;
    for (int count = 1; count <= MOST; count++) {
        threads *pool = NULL;
        assert_int_equal(threads_open(count, &pool, NULL), HY_OK);
        int64_t sums[37] = {0};
        for (int round = 0; round < 1500; round++) threads_run(pool, 1 + round % 37, 1 + round % 3, add, sums);
        for (int i = 0; i < 37; i++) {
            int64_t rounds = 0;
            for (int round = 0; round < 1500; round++) rounds += round % 37 >= i;
            assert_int_equal(sums[i], rounds * i);
        }
        threads_run(pool, 0, 1, add, NULL);
        threads_run(pool, -5, 1, add, NULL);
        threads_close(pool);
    }
}

struct meeting {
    _Atomic int begun;
    int done[2]; /* plain memory: the end of the loop makes it visible */
};

/* Two items that wait for each other; then the caller is quick and the other worker slow. */
static void meet(void *arg, int64_t begin, int64_t end, int worker)
{
    struct meeting *m = arg;
    const struct timespec step = {0, 100000}, long_while = {0, 20000000};
    m->begun += (int)(end - begin);
    for (int i = 0; i < 50000 && m->begun < 2; i++) nanosleep(&step, NULL);
    if (worker != 0) nanosleep(&long_while, NULL);
    for (int64_t i = begin; i < end; i++) m->done[i] = 1;
}

/* The loop has ended for the caller only when it has for everyone. */
static void waits_for_the_slowest(void **state)
{
    (void)state;
    threads *pool = NULL;
    assert_int_equal(threads_open(2, &pool, NULL), HY_OK);
    for (int round = 0; round < 5; round++) {
        struct meeting m = {0};
        threads_run(pool, 2, 1, meet, &m);
        assert_int_equal(m.begun, 2);
        assert_true(m.done[0] && m.done[1]);
    }
    threads_close(pool);
}

static void opening_and_closing(void **state)
{
    (void)state;
    threads *pool = NULL;
    hy_error err = {0};
    assert_int_equal(threads_open(-1, &pool, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "-1"));
    assert_int_equal(threads_open(4097, &pool, &err), HY_USAGE);
    assert_null(pool);
    assert_int_equal(threads_open(0, &pool, &err), HY_OK);
    assert_true(threads_count(pool) >= 1);
    threads_close(pool);
    threads_close(NULL);
    /* never used, closed at once */
    for (int i = 0; i < 50; i++) {
        assert_int_equal(threads_open(1 + i % 4, &pool, &err), HY_OK);
        threads_close(pool);
    }
}

struct stopped_loop {
    atomic_bool stop;
    atomic_int done, after; /* items, and items of the stage behind */
};

static void stop_at_ten(void *arg, int64_t begin, int64_t end, int worker)
{
    struct stopped_loop *l = arg;
    (void)worker;
    if (atomic_fetch_add(&l->done, (int)(end - begin)) >= 10) atomic_store(&l->stop, true);
}

static void count_after(void *arg, int64_t begin, int64_t end, int worker)
{
    struct stopped_loop *l = arg;
    (void)worker;
    atomic_fetch_add(&l->after, (int)(end - begin));
}

/* A flag that is set inside a dispatch leaves out what is left of it, with the stages behind; when it is cleared, or no
 * longer watched, everything runs. */
static void stopping(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    for (int count = 1; count <= MOST; count++)
        for (int home = 0; home < 2; home++) {
            threads *pool = NULL;
            assert_int_equal(threads_open(count, &pool, NULL), HY_OK);
            struct stopped_loop l = {0};
            assert_false(threads_stopped(pool));
            threads_watch(pool, &l.stop);
            threads_stage stages[] = {{stop_at_ten, &l, MANY, 1, 0, home}, {count_after, &l, 7, 1, 0, home}};
            for (int i = 0; i < 100; i++) {
                threads_run_stages(pool, stages, 2);
                assert_true(threads_stopped(pool));
                assert_in_range(l.done, i ? 0 : 11, 10 + MOST + 1);
                assert_int_equal(l.after, 0);
                threads_run(pool, 5, 5, count_after, &l);
                assert_int_equal(l.after, 0);
            }
            l.stop = false;
            threads_run(pool, 50, 3, count_after, &l);
            assert_int_equal(l.after, 50);
            l.stop = true;
            threads_watch(pool, NULL);
            assert_false(threads_stopped(pool));
            threads_run(pool, 50, 3, count_after, &l);
            assert_int_equal(l.after, 100);
            threads_close(pool);
        }
}

/* What the system says when it gives no thread: in a child, as a user whom the limit of processes binds. */
static void refused_by_the_system(void **state)
{
    (void)state;
    int ends[2], how = 0;
    char said[400] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        threads *pool = NULL;
        hy_error err = {0};
        bool bound = setrlimit(RLIMIT_NPROC, &(struct rlimit){0, 0}) == 0 && (getuid() != 0 || setuid(65534) == 0);
        bool right = bound && threads_open(2, &pool, &err) == HY_FAILED;
        right = right && write(ends[1], err.message, strlen(err.message)) > 0;
        _exit(!bound ? 77 : right ? 0 : 1);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], said, sizeof said - 1);
    close(ends[0]);
    assert_int_equal(waitpid(child, &how, 0), child);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 77) skip();
    assert_true(n > 0 && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    if (!strstr(said, strerror(EAGAIN))) fail_msg("%s", said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_for_every_count),
        cmocka_unit_test(many_loops),
        cmocka_unit_test(waits_for_the_slowest),
        cmocka_unit_test(opening_and_closing),
        cmocka_unit_test(stopping),
        cmocka_unit_test(refused_by_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
