/* Schedules: stages in order, overlaps, counts that are known late, homes; many small dispatches from several pools. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/threads.h"

enum { MOST = 9, ITEMS = 700 };

/* One stage of a chain over plain memory: out[i] = 3 in[i] + 1, so that a stage that begins too early, an item that is
 * left out and one that is run twice all change the result, and ThreadSanitizer sees what is not ordered. */
struct link {
    const uint64_t *in;
    uint64_t *out;
    int64_t items;
};

static void link_items(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    struct link *l = arg;
    assert_true(begin >= 0 && begin < end && end <= l->items);
    for (int64_t i = begin; i < end; i++) l->out[i] += 3 * l->in[l->items - 1 - i] + 1;
}

static threads *open_pool(int count)
{
    threads *pool = NULL;
    hy_error err = {0};
    assert_int_equal(threads_open(count, &pool, &err), HY_OK);
    return pool;
}

/* Every stage reads all of the one before, for every number of workers and every kind of stage. */
static void chains(void **state)
{
    (void)state;
    static uint64_t rows[THREADS_MAX_STAGES + 1][ITEMS];
    static const int64_t chunks[] = {1, 7, 64, ITEMS, INT64_MAX, 0, -3};
    for (int count = 1; count <= MOST; count++) {
        threads *pool = open_pool(count);
        for (int round = 0; round < 14; round++) {
            struct link links[THREADS_MAX_STAGES];
            threads_stage stages[THREADS_MAX_STAGES];
            int64_t items = round % 3 == 0 ? ITEMS : round % 3 == 1 ? 1 : 13;
            memset(rows, 0, sizeof rows);
            for (int i = 0; i < THREADS_MAX_STAGES; i++) {
                links[i] = (struct link){rows[i], rows[i + 1], items};
                stages[i] = (threads_stage){.fn = link_items,
                                            .arg = &links[i],
                                            .items = items,
                                            .chunk = chunks[(i + round) % 7],
                                            .home = (i ^ round) & 1};
            }
            threads_run_stages(pool, stages, THREADS_MAX_STAGES);
            for (int64_t i = 0; i < items; i++) {
                uint64_t expected = 0;
                for (int s = 0; s < THREADS_MAX_STAGES; s++) expected = 3 * expected + 1;
                assert_true(rows[THREADS_MAX_STAGES][i] == expected);
            }
        }
        threads_close(pool);
    }
}

static void empty_schedules(void **state)
{
    (void)state;
    for (int count = 1; count <= 4; count++) {
        threads *pool = open_pool(count);
        uint64_t in[5] = {1, 2, 3, 4, 5}, out[5] = {0};
        struct link l = {in, out, 5};
        threads_run_stages(pool, NULL, 0);
        threads_stage stages[] = {
            {.fn = link_items, .arg = &l, .items = 0, .chunk = 1},
            {.fn = link_items, .arg = &l, .items = -4, .home = true},
            {.fn = link_items, .arg = &l, .items = 5, .chunk = 2},
            {.fn = link_items, .arg = &l, .items = 0, .home = true},
            {.fn = link_items, .arg = &l, .items = -1, .chunk = 1},
        };
        threads_run_stages(pool, stages, 5);
        threads_run_stages(pool, stages, 2);
        for (int i = 0; i < 5; i++) assert_int_equal(out[i], 3 * in[4 - i] + 1);
        threads_close(pool);
    }
}

/* ---- Counts that are known late ---------------------------------------------------------------------------------- */

struct late {
    threads_stage *next;
    int64_t items, first[ITEMS], second[ITEMS];
    _Atomic int64_t runs;
};

static void decide(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    struct late *l = arg;
    assert_true(begin == 0 && end == 1);
    l->next->items = l->items;
    l->next->chunk = 3;
}

static void count_items(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    struct late *l = arg;
    for (int64_t i = begin; i < end; i++) l->first[i]++;
    l->runs += end - begin;
}

static void copy_items(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    struct late *l = arg;
    assert_int_equal(l->runs, l->items);
    for (int64_t i = begin; i < end; i++) l->second[i] = l->first[ITEMS - 1 - i];
}

static void late_counts(void **state)
{
    (void)state;
    static struct late l;
    for (int count = 1; count <= 5; count++) {
        threads *pool = open_pool(count);
        for (int64_t items = 0; items <= ITEMS; items += items < 10 ? 1 : 69) {
            threads_stage stages[] = {
                {.fn = decide, .arg = &l, .items = 1},
                {.fn = count_items, .arg = &l, .items = -99, .home = items & 1},
                {.fn = copy_items, .arg = &l, .items = ITEMS, .chunk = 50},
            };
            memset(&l, 0, sizeof l);
            l.next = &stages[1], l.items = items;
            threads_run_stages(pool, stages, 3);
            for (int64_t i = 0; i < ITEMS; i++) {
                assert_int_equal(l.first[i], i < items);
                assert_int_equal(l.second[i], ITEMS - 1 - i < items);
            }
        }
        threads_close(pool);
    }
}

/* ---- Overlaps ---------------------------------------------------------------------------------------------------- */

struct overlap {
    _Atomic int begun, ended;
    bool wait;
};

/* Ends only when both stages have begun, or after a long time where that is not to happen. */
static void slow_item(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)begin, (void)end, (void)worker;
    struct overlap *o = arg;
    const struct timespec step = {0, 100000};
    o->begun++;
    for (int i = 0; i < (o->wait ? 50000 : 30) && o->begun < 2; i++) nanosleep(&step, NULL);
    o->ended++;
}

static void after_both(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)begin, (void)end, (void)worker;
    struct overlap *o = arg;
    assert_int_equal(o->ended, 2);
    o->ended++;
}

static void beside_overlaps(void **state)
{
    (void)state;
    threads *pool = open_pool(2);
    for (int round = 0; round < 10; round++) {
        struct overlap o = {.wait = true};
        threads_stage stages[] = {
            {.fn = slow_item, .arg = &o, .items = 1},
            {.fn = slow_item, .arg = &o, .items = 1, .beside = 1},
            {.fn = after_both, .arg = &o, .items = 1},
        };
        threads_run_stages(pool, stages, 3);
        assert_int_equal(o.begun, 2);
        assert_int_equal(o.ended, 3);
    }
    threads_close(pool);
}

static void first_alone(void *arg, int64_t begin, int64_t end, int worker)
{
    slow_item(arg, begin, end, worker);
    assert_int_equal(((struct overlap *)arg)->begun, 1);
}

static void without_beside_there_is_no_overlap(void **state)
{
    (void)state;
    threads *pool = open_pool(2);
    struct overlap o = {.wait = false};
    threads_stage stages[] = {{.fn = first_alone, .arg = &o, .items = 1}, {.fn = slow_item, .arg = &o, .items = 1}};
    threads_run_stages(pool, stages, 2);
    assert_int_equal(o.ended, 2);
    threads_close(pool);
}

/* ---- Homes ------------------------------------------------------------------------------------------------------- */

struct homes {
    int worker[8];
    _Atomic int begun;
    int64_t first[2];
};

/* Both workers hold their first item until the other has one too: so each must have begun at home. */
static void at_home(void *arg, int64_t begin, int64_t end, int worker)
{
    struct homes *h = arg;
    const struct timespec step = {0, 100000};
    if (h->first[worker] < 0) h->first[worker] = begin, h->begun++;
    for (int i = 0; i < 50000 && h->begun < 2; i++) nanosleep(&step, NULL);
    for (int64_t i = begin; i < end; i++) h->worker[i] = worker;
}

static void own_items_first(void **state)
{
    (void)state;
    threads *pool = open_pool(2);
    for (int round = 0; round < 5; round++) {
        struct homes h = {.first = {-1, -1}};
        threads_stage stage = {.fn = at_home, .arg = &h, .items = 8, .chunk = 1, .home = true};
        threads_run_stages(pool, &stage, 1);
        assert_int_equal(h.first[0], 0);
        assert_int_equal(h.first[1], 4);
        assert_int_equal(h.worker[0], 0);
        assert_int_equal(h.worker[4], 1);
    }
    threads_close(pool);
}

/* A worker that never comes does not keep its items. */
static void hold_first(void *arg, int64_t begin, int64_t end, int worker)
{
    _Atomic int64_t *done = arg;
    const struct timespec step = {0, 100000};
    *done += end - begin;
    for (int i = 0; i < 50000 && worker != 0 && *done < 1000; i++) nanosleep(&step, NULL);
}

static void items_of_the_absent_are_taken(void **state)
{
    (void)state;
    threads *pool = open_pool(2);
    for (int round = 0; round < 5; round++) {
        _Atomic int64_t done = 0;
        threads_stage stage = {.fn = hold_first, .arg = &done, .items = 1000, .chunk = 1, .home = true};
        threads_run_stages(pool, &stage, 1);
        assert_int_equal(done, 1000);
    }
    threads_close(pool);
}

/* ---- Many pools, small dispatches ---------------------------------------------------------------------------------
 */

enum { POOLS = 3, DISPATCHES = 3000 };

struct tiny {
    int64_t sums[4];
    int workers;
};

static void add_one(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    struct tiny *t = arg;
    for (int64_t i = begin; i < end; i++) t->sums[i]++;
}

static void *drive(void *arg)
{
    struct tiny *t = arg;
    threads *pool = NULL;
    if (threads_open(t->workers, &pool, NULL) != HY_OK) return NULL;
    for (int i = 0; i < DISPATCHES; i++) {
        threads_stage stages[] = {{.fn = add_one, .arg = t, .items = 4, .chunk = 1},
                                  {.fn = add_one, .arg = t, .items = 4, .chunk = 1, .home = true}};
        threads_run_stages(pool, stages, 2);
        if (i % 500) continue;
        const struct timespec nap = {0, 300000}; /* longer than workers spin */
        nanosleep(&nap, NULL);
    }
    threads_close(pool);
    return NULL;
}

static void pools_side_by_side(void **state)
{
    (void)state;
    for (int workers = 2; workers <= 4; workers++) {
        struct tiny t[POOLS] = {0};
        pthread_t thread[POOLS];
        for (int i = 0; i < POOLS; i++) {
            t[i].workers = workers;
            assert_int_equal(pthread_create(&thread[i], NULL, drive, &t[i]), 0);
        }
        for (int i = 0; i < POOLS; i++) {
            pthread_join(thread[i], NULL);
            for (int k = 0; k < 4; k++) assert_int_equal(t[i].sums[k], 2 * DISPATCHES);
        }
    }
}

/* ---- Idle -------------------------------------------------------------------------------------------------------- */

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Workers that have nothing to do use no time, whether they sleep already or still spin when it begins, and wake up and
 * end afterwards. */
static void idle_costs_nothing(void **state)
{
    (void)state;
    const struct timespec pause = {0, 300000000};
    for (int count = 2; count <= 8; count += 3) {
        threads *pool = open_pool(count);
        struct tiny t = {.workers = count};
        threads_stage stage = {.fn = add_one, .arg = &t, .items = 4, .chunk = 1};
        for (int round = 0; round < 2; round++) {
            threads_run_stages(pool, &stage, 1);
            double before = cpu_seconds();
            nanosleep(&pause, NULL);
            assert_true(cpu_seconds() - before < 0.1);
        }
        threads_run_stages(pool, &stage, 1);
        for (int k = 0; k < 4; k++) assert_int_equal(t.sums[k], 3);
        threads_close(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains),
        cmocka_unit_test(empty_schedules),
        cmocka_unit_test(late_counts),
        cmocka_unit_test(beside_overlaps),
        cmocka_unit_test(without_beside_there_is_no_overlap),
        cmocka_unit_test(own_items_first),
        cmocka_unit_test(items_of_the_absent_are_taken),
        cmocka_unit_test(pools_side_by_side),
        cmocka_unit_test(idle_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
