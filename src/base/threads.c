#define _GNU_SOURCE /* CPU affinity */

#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"

struct worker {
    threads *pool;
    pthread_t thread;
    int number;
};

struct threads {
    int count;
    struct worker *workers; /* [count], number 0 is the caller */
    pthread_mutex_t lock;
    pthread_cond_t start, finished;
    uint64_t round; /* counts loops; a worker sleeps until it moves */
    int active;     /* workers still in the current loop */
    bool stop;
    threads_fn fn;
    void *arg;
    int64_t items, chunk;
    _Atomic int64_t next;
};

static void work(threads *pool, int number)
{
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&pool->next, pool->chunk, memory_order_relaxed);
        if (begin >= pool->items) return;
        int64_t end = begin + pool->chunk < pool->items ? begin + pool->chunk : pool->items;
        pool->fn(pool->arg, begin, end, number);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    threads *pool = w->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->round == seen && !pool->stop) pthread_cond_wait(&pool->start, &pool->lock);
        if (pool->stop) break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        work(pool, w->number);
        pthread_mutex_lock(&pool->lock);
        if (--pool->active == 0) pthread_cond_signal(&pool->finished);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static int usable_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

hy_status threads_open(int count, threads **out, hy_error *err)
{
    if (count < 0 || count > 4096) return error_set(err, HY_USAGE, "threads must be 0 to 4096, not %d", count);
    if (count == 0) count = usable_cores();
    threads *pool = memory_zeroed(1, sizeof *pool);
    if (pool) pool->workers = memory_zeroed((size_t)count, sizeof *pool->workers);
    if (!pool || !pool->workers) {
        memory_free(pool);
        return error_memory(err, "the thread pool", (size_t)count * sizeof(struct worker));
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->count = 1;
    for (int i = 0; i < count; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .number = i};
        if (i == 0) continue;
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0) {
            threads_close(pool);
            return error_set(err, HY_FAILED, "could not start thread %d of %d: give a smaller --threads", i + 1, count);
        }
        pool->count = i + 1;
    }
    *out = pool;
    return HY_OK;
}

void threads_close(threads *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 1; i < pool->count; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->start);
    pthread_cond_destroy(&pool->finished);
    memory_free(pool->workers);
    memory_free(pool);
}

int threads_count(const threads *pool)
{
    return pool->count;
}

void threads_run(threads *pool, int64_t items, int64_t chunk, threads_fn fn, void *arg)
{
    if (items <= 0) return;
    if (chunk < 1) chunk = 1;
    if (pool->count == 1 || items <= chunk) {
        fn(arg, 0, items, 0);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->fn = fn, pool->arg = arg, pool->items = items, pool->chunk = chunk;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    pool->active = pool->count - 1;
    pool->round++;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    work(pool, 0);
    pthread_mutex_lock(&pool->lock);
    while (pool->active > 0) pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
