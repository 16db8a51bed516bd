#include "server/work.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"

enum { MOST_THREADS = 64 };

struct job {
    struct job *next;
    void (*fn)(void *user);
    void *user;
};

struct work {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct job *first, *last;
    bool stop;
    int count;
    pthread_t thread[MOST_THREADS];
};

static void *run(void *arg)
{
    work *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->first && !w->stop) pthread_cond_wait(&w->more, &w->lock);
        struct job *job = w->first;
        if (!job) break;
        w->first = job->next;
        if (!w->first) w->last = NULL;
        pthread_mutex_unlock(&w->lock);
        job->fn(job->user);
        free(job);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

hy_status work_open(int threads, work **out, hy_error *err)
{
    work *w = calloc(1, sizeof *w);
    if (!w) return error_memory(err, "worker threads", sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    while (w->count < threads && pthread_create(&w->thread[w->count], NULL, run, w) == 0) w->count++;
    if (w->count == 0) {
        work_close(w);
        return error_set(err, HY_FAILED, "could not start the server's worker threads");
    }
    *out = w;
    return HY_OK;
}

bool work_give(work *w, void (*fn)(void *user), void *user)
{
    struct job *job = malloc(sizeof *job);
    if (!job) return false;
    *job = (struct job){.fn = fn, .user = user};
    pthread_mutex_lock(&w->lock);
    if (w->last)
        w->last->next = job;
    else
        w->first = job;
    w->last = job;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    return true;
}

void work_close(work *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->count; i++) pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
