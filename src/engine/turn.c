#include "engine/turn.h"

#include <pthread.h>

#include "base/memory.h"

struct turn {
    const ops_backend *backend;
    int users;
    pthread_mutex_t lock;
    turn *next;
};

/* All open ones: a handful. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static turn *list;

turn *turn_open(const ops_backend *backend)
{
    pthread_mutex_lock(&list_lock);
    turn *t = list;
    while (t && t->backend != backend) t = t->next;
    if (!t && (t = memory_zeroed(1, sizeof *t))) {
        t->backend = backend;
        pthread_mutex_init(&t->lock, NULL);
        t->next = list;
        list = t;
    }
    if (t) t->users++;
    pthread_mutex_unlock(&list_lock);
    return t;
}

void turn_close(turn *t)
{
    if (!t) return;
    pthread_mutex_lock(&list_lock);
    if (--t->users == 0) {
        turn **at = &list;
        while (*at != t) at = &(*at)->next;
        *at = t->next;
        pthread_mutex_destroy(&t->lock);
        memory_free(t);
    }
    pthread_mutex_unlock(&list_lock);
}

void turn_take(turn *t)
{
    pthread_mutex_lock(&t->lock);
}

void turn_leave(turn *t)
{
    pthread_mutex_unlock(&t->lock);
}
