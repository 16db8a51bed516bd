/*
 * A fixed pool of threads for data-parallel loops, and for schedules: lists of loops that run in one dispatch.
 *
 * A loop of n items is cut into chunks that workers claim with atomic counters; the caller works too. Which thread
 * runs an item is not defined, so an item must write only its own outputs: results never depend on the thread count.
 *
 * Between dispatches a worker spins for some 100 us before it sleeps, so that loops that follow each other start within
 * a microsecond and a pool without work costs nothing. With more workers than cores nobody spins.
 *
 * A dispatch takes in whoever is awake: it never waits for a sleeper, only for workers that have taken items.
 */
#ifndef HAYATE_BASE_THREADS_H
#define HAYATE_BASE_THREADS_H

#include <stdatomic.h>

#include "hayate.h"

typedef struct threads threads;

/* Runs items [begin, end). `worker` is 0 .. count-1, for per-worker scratch. */
typedef void (*threads_fn)(void *arg, int64_t begin, int64_t end, int worker);

/* Whether workers stay on one core each. The caller of threads_run, worker 0, goes where the system puts it: the first
 * core is left free for it. */
typedef enum threads_pin {
    THREADS_PIN_AUTO, /* only with several memory nodes and a worker for every core: other programs may use the rest */
    THREADS_PIN_ON,   /* HY_USAGE when there are fewer cores than workers */
    THREADS_PIN_OFF,
} threads_pin;

/* `count` workers, the caller of threads_run among them; 0: one per core that the process may use. The first is
 * THREADS_PIN_AUTO. */
hy_status threads_open(int count, threads **pool, hy_error *err);
hy_status threads_open_pinned(int count, threads_pin pin, threads **pool, hy_error *err);
void threads_close(threads *pool);
int threads_count(const threads *pool);

/* Runs fn over [0, items) in chunks of `chunk` items and returns when all are done. One caller at a time. */
void threads_run(threads *pool, int64_t items, int64_t chunk, threads_fn fn, void *arg);

/*
 * Between dispatches: from now on loops look at *stop, borrowed, before each chunk and leave out what is left of them once
 * it is set, so that a dispatch of any length ends within the time of a chunk or two. What they were to write is then
 * undefined; who gave the flag throws the results away. NULL, as at first: nothing is left out.
 */
void threads_watch(threads *pool, const atomic_bool *stop);
bool threads_stopped(const threads *pool);

enum { THREADS_MAX_STAGES = 64 };

/*
 * One loop of a schedule. It begins when the stages before it have ended, but for the `beside` ones directly before it,
 * which it may overlap. What those that it waits for wrote is visible to it, and they may set its `items` and `chunk`:
 * both are read when it begins.
 *
 * With `home`, item i of n belongs to worker i * count / n, which takes its own items first and others' only when its
 * own are gone: data that a worker touched first, in a loop of the same proportions, is in its memory node.
 */
typedef struct threads_stage {
    threads_fn fn;
    void *arg;
    int64_t items, chunk;
    int beside;
    bool home;
} threads_stage;

/* Runs `count` stages (at most THREADS_MAX_STAGES) in one dispatch and returns when all are done. One caller at a time.
 */
void threads_run_stages(threads *pool, threads_stage *stages, int count);

#endif
