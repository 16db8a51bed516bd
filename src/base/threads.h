/*
 * A fixed pool of threads for data-parallel loops.
 *
 * A loop of n items is cut into chunks that workers claim with one atomic counter; the caller works too. Which thread
 * runs an item is not defined, so an item must write only its own outputs: results never depend on the thread count.
 */
#ifndef HAYATE_BASE_THREADS_H
#define HAYATE_BASE_THREADS_H

#include "hayate.h"

typedef struct threads threads;

/* Runs items [begin, end). `worker` is 0 .. count-1, for per-worker scratch. */
typedef void (*threads_fn)(void *arg, int64_t begin, int64_t end, int worker);

/* `count` workers, the caller of threads_run among them; 0: one per core that the process may use. */
hy_status threads_open(int count, threads **pool, hy_error *err);
void threads_close(threads *pool);
int threads_count(const threads *pool);

/* Runs fn over [0, items) in chunks of `chunk` items and returns when all are done. One caller at a time. */
void threads_run(threads *pool, int64_t items, int64_t chunk, threads_fn fn, void *arg);

#endif
