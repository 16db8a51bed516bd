/*
 * Pool and schedules.
 *
 * Entering. `gate` holds the number of the dispatch, whether it is open, and how many workers are inside. The caller
 * fills in the schedule and opens the gate; a worker enters by adding itself, which succeeds only while the gate is
 * open; the caller closes it when everything is done and waits until nobody is inside. A worker that comes late finds
 * it closed and has missed nothing. Opening releases the schedule and the cleared counters, and entering acquires them:
 * the additions of other workers in between continue the release sequence of the opening store. Leaving releases, and
 * the caller's wait acquires, so that the schedule may go away.
 *
 * Stages. Every worker goes through the stages in order. A stage's items are claimed by `next` (or by the counters of
 * their homes) with relaxed additions: they hand out numbers and publish nothing. What is published is `done`: a worker
 * that finds no more items adds the number that it did, with release, and who waits for a stage reads it with acquire
 * until it has reached the stage's items. All changes of `done` are additions, so the reader of the last value is
 * synchronised with every worker that did a part, and through their own waits with everything before.
 *
 * A wait cannot last for ever: items that others hold are being run, by workers that do not wait while they run them.
 *
 * Sleeping. A worker counts itself in `sleepers` and then looks at the gate; the caller opens the gate and then looks
 * at `sleepers`. Both are sequentially consistent, so one of the two sees the other. The lock closes the gap between
 * the worker's look and its sleep.
 */
#define _GNU_SOURCE /* CPU affinity */

#include "base/threads.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/memory.h"

enum {
    LINE = 64,
    WAIT_PAUSES = 1000, /* before a wait inside a dispatch gives up its core to others: tens of microseconds */
    CLOCK_PAUSES = 32,  /* between looks at the clock while idle */
    INSIDE = 0xFFFF,    /* of the gate: workers inside */
    OPEN = 1 << 16,
    STOP = 1 << 17,    /* the pool closes */
    NUMBER_SHIFT = 18, /* dispatches so far */
};
static const double IDLE_SECONDS = 100e-6; /* that a worker spins before it sleeps */

struct worker {
    threads *pool;
    pthread_t thread;
    int number;
};

/* What a stage has handed out and what of it has been done, in items. One line for both: who waits for `done` does so
 * when there is nothing left to hand out. */
typedef struct counters {
    _Alignas(LINE) _Atomic int64_t next;
    _Atomic int64_t done;
} counters;

struct threads {
    _Alignas(LINE) _Atomic uint64_t gate;
    _Alignas(LINE) _Atomic int sleepers;
    pthread_mutex_t lock;
    pthread_cond_t wake;

    _Alignas(LINE) int count;
    bool spin;               /* there is a core for every worker */
    struct worker *workers;  /* [count], number 0 is the caller */
    counters *counters;      /* [THREADS_MAX_STAGES] */
    _Atomic int64_t *own;    /* [count, THREADS_MAX_STAGES] items that a worker's home has handed out */
    const atomic_bool *stop; /* NULL: nobody stops a loop */
    threads_stage *stages;   /* of the running dispatch; borrowed */
    int stage_count;
};

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* One turn of a wait inside a dispatch. */
static void wait_turn(const threads *pool, int *turns)
{
    if (pool->spin && *turns < WAIT_PAUSES) {
        (*turns)++;
        pause_core();
    } else {
        sched_yield();
    }
}

/* Whether a worker that was last inside dispatch `seen` has something to do. */
static bool called(uint64_t gate, uint64_t seen)
{
    return gate & STOP || (gate & OPEN && gate >> NUMBER_SHIFT != seen);
}

/* Returns when `called`. */
static void wait_for_call(threads *pool, uint64_t seen)
{
    double end = pool->spin ? clock_seconds() + IDLE_SECONDS : 0;
    while (pool->spin) {
        for (int i = 0; i < CLOCK_PAUSES; i++) {
            if (called(atomic_load_explicit(&pool->gate, memory_order_relaxed), seen)) return;
            pause_core();
        }
        if (clock_seconds() > end) break;
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!called(atomic_load(&pool->gate), seen)) pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void set_gate(threads *pool, uint64_t gate)
{
    atomic_store(&pool->gate, gate);
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

bool threads_stopped(const threads *pool)
{
    return pool->stop && atomic_load_explicit(pool->stop, memory_order_relaxed);
}

void threads_watch(threads *pool, const atomic_bool *stop)
{
    pool->stop = stop;
}

/* Claims chunks below `end` from a counter that counts up from `begin`; returns the items done. */
static int64_t drain(const threads *pool, const threads_stage *s, _Atomic int64_t *next, int64_t begin, int64_t end,
                     int number)
{
    int64_t chunk = s->chunk < 1 ? 1 : s->chunk < end - begin ? s->chunk : end - begin, done = 0;
    /* The look before the claim keeps those who come late from taking the line away from those at work. */
    while (begin + atomic_load_explicit(next, memory_order_relaxed) < end) {
        int64_t first = begin + atomic_fetch_add_explicit(next, chunk, memory_order_relaxed);
        if (first >= end) break;
        int64_t last = end - first > chunk ? first + chunk : end;
        /* Who follows a worker that has left something out sees the flag as well: `done` publishes that too. */
        if (!threads_stopped(pool)) s->fn(s->arg, first, last, number);
        done += last - first;
    }
    return done;
}

static void run_stage(threads *pool, int i, int number)
{
    const threads_stage *s = &pool->stages[i];
    int64_t items = s->items, done = 0;
    if (items <= 0) return;
    if (s->home && items > 1) {
        for (int k = 0; k < pool->count; k++) {
            int64_t n = pool->count, home = (number + k) % n;
            done += drain(pool, s, &pool->own[home * THREADS_MAX_STAGES + i], (home * items + n - 1) / n,
                          ((home + 1) * items + n - 1) / n, number);
        }
    } else {
        done = drain(pool, s, &pool->counters[i].next, 0, items, number);
    }
    if (done > 0) atomic_fetch_add_explicit(&pool->counters[i].done, done, memory_order_release);
}

/* Waits until the first `count` stages have ended; *ended counts those of which that is known. */
static void wait_stages(const threads *pool, int *ended, int count)
{
    for (int turns = 0; *ended < count; ++*ended, turns = 0)
        while (atomic_load_explicit(&pool->counters[*ended].done, memory_order_acquire) < pool->stages[*ended].items)
            wait_turn(pool, &turns);
}

static void run_stages(threads *pool, int number, int *ended)
{
    for (int i = 0; i < pool->stage_count; i++) {
        /* The caller has just written the schedule: its lines come while the worker waits. */
        if (i + 2 < pool->stage_count) __builtin_prefetch(&pool->stages[i + 2]);
        if (i + 1 < pool->stage_count) __builtin_prefetch(pool->stages[i + 1].arg);
        wait_stages(pool, ended, i - pool->stages[i].beside);
        run_stage(pool, i, number);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    threads *pool = w->pool;
    for (uint64_t seen = 0;;) {
        wait_for_call(pool, seen);
        uint64_t gate = atomic_load_explicit(&pool->gate, memory_order_relaxed);
        while (called(gate, seen) && !(gate & STOP)) {
            if (!atomic_compare_exchange_weak_explicit(&pool->gate, &gate, gate + 1, memory_order_acquire,
                                                       memory_order_relaxed))
                continue;
            int ended = 0;
            seen = gate >> NUMBER_SHIFT;
            run_stages(pool, w->number, &ended);
            gate = atomic_fetch_sub_explicit(&pool->gate, 1, memory_order_release);
        }
        if (gate & STOP) return NULL;
    }
}

/* In one piece, unless someone may stop it. */
static void run_alone(const threads *pool, const threads_stage *s)
{
    int64_t chunk = !pool->stop ? s->items : s->chunk < 1 ? 1 : s->chunk;
    for (int64_t first = 0; first < s->items && !threads_stopped(pool); first += chunk)
        s->fn(s->arg, first, s->items - first > chunk ? first + chunk : s->items, 0);
}

void threads_run_stages(threads *pool, threads_stage *stages, int count)
{
    assert(count <= THREADS_MAX_STAGES);
    if (count <= 0) return;
    if (pool->count == 1) {
        for (int i = 0; i < count; i++) run_alone(pool, &stages[i]);
        return;
    }
    pool->stages = stages, pool->stage_count = count;
    for (int i = 0; i < count; i++) {
        atomic_store_explicit(&pool->counters[i].next, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->counters[i].done, 0, memory_order_relaxed);
        for (int w = 0; w < pool->count && stages[i].home; w++)
            atomic_store_explicit(&pool->own[w * THREADS_MAX_STAGES + i], 0, memory_order_relaxed);
    }
    uint64_t number = (atomic_load_explicit(&pool->gate, memory_order_relaxed) >> NUMBER_SHIFT) + 1;
    set_gate(pool, number << NUMBER_SHIFT | OPEN);
    int ended = 0, turns = 0;
    run_stages(pool, 0, &ended);
    wait_stages(pool, &ended, count);
    atomic_fetch_and_explicit(&pool->gate, ~(uint64_t)OPEN, memory_order_relaxed);
    while (atomic_load_explicit(&pool->gate, memory_order_acquire) & INSIDE) wait_turn(pool, &turns);
}

void threads_run(threads *pool, int64_t items, int64_t chunk, threads_fn fn, void *arg)
{
    if (items <= 0) return;
    if (items <= chunk || items == 1) {
        if (!threads_stopped(pool)) fn(arg, 0, items, 0);
        return;
    }
    threads_stage stage = {.fn = fn, .arg = arg, .items = items, .chunk = chunk};
    threads_run_stages(pool, &stage, 1);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* Puts every worker but the caller on its core. */
static hy_status pin_workers(threads *pool, threads_pin pin, hy_error *err)
{
    cores c = {0};
    if (pin == THREADS_PIN_OFF || pool->count == 1) return HY_OK;
    hy_status status = cores_open(&c, err);
    bool wanted = status == HY_OK && (pin == THREADS_PIN_ON || (c.nodes > 1 && c.count == pool->count));
    for (int i = 1; i < pool->count && wanted && status == HY_OK; i++) {
        int cpu = cores_place(&c, i, pool->count);
        cpu_set_t *mask = CPU_ALLOC((size_t)cpu + 1);
        size_t size = CPU_ALLOC_SIZE((size_t)cpu + 1);
        if (!mask) {
            status = error_memory(err, "the mask of a core", size);
            break;
        }
        CPU_ZERO_S(size, mask);
        CPU_SET_S((size_t)cpu, size, mask);
        if (pthread_setaffinity_np(pool->workers[i].thread, size, mask) != 0)
            status = error_set(err, HY_FAILED, "thread %d could not be pinned to core %d", i + 1, cpu);
        CPU_FREE(mask);
    }
    cores_close(&c);
    return pin == THREADS_PIN_AUTO ? HY_OK : status; /* AUTO: where it cannot be had it is not missed */
}

static threads *open_pool(int count)
{
    threads *pool = memory_zeroed(1, sizeof *pool);
    if (!pool) return NULL;
    pool->count = 1;
    pool->spin = count <= cores_usable();
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->workers = memory_zeroed((size_t)count, sizeof *pool->workers);
    pool->counters = memory_zeroed(THREADS_MAX_STAGES, sizeof *pool->counters);
    pool->own = memory_zeroed((size_t)count * THREADS_MAX_STAGES, sizeof *pool->own);
    if (pool->workers && pool->counters && pool->own) return pool;
    threads_close(pool);
    return NULL;
}

hy_status threads_open_pinned(int count, threads_pin pin, threads **out, hy_error *err)
{
    if (count < 0 || count > 4096) return error_set(err, HY_USAGE, "threads must be 0 to 4096, not %d", count);
    if (count == 0) count = cores_usable();
    if (pin == THREADS_PIN_ON && count > cores_usable())
        return error_set(err, HY_USAGE, "%d threads cannot be pinned to %d cores: give at most --threads %d", count,
                         cores_usable(), cores_usable());
    threads *pool = open_pool(count);
    if (!pool) return error_memory(err, "the thread pool", (size_t)count * sizeof(struct worker));
    hy_status status = HY_OK;
    for (int i = 1; i < count && status == HY_OK; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .number = i};
        int reason = pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]);
        if (reason != 0)
            status = error_set(err, HY_FAILED, "could not start thread %d of %d: %s; give a smaller --threads", i + 1,
                               count, strerror(reason));
        else
            pool->count = i + 1;
    }
    if (status == HY_OK) status = pin_workers(pool, pin, err);
    if (status != HY_OK) {
        threads_close(pool);
        return status;
    }
    *out = pool;
    return HY_OK;
}

hy_status threads_open(int count, threads **pool, hy_error *err)
{
    return threads_open_pinned(count, THREADS_PIN_AUTO, pool, err);
}

void threads_close(threads *pool)
{
    if (!pool) return;
    set_gate(pool, STOP);
    for (int i = 1; i < pool->count; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->wake);
    memory_free(pool->own);
    memory_free(pool->counters);
    memory_free(pool->workers);
    memory_free(pool);
}

int threads_count(const threads *pool)
{
    return pool->count;
}
