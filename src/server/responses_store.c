#include "server/responses_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

typedef struct entry {
    kept_response kept;
    char *id;
    size_t bytes;
    struct entry *older, *newer;
} entry;

struct responses_store {
    pthread_mutex_t lock;
    entry *oldest, *newest;
    size_t count, bytes, most_count, most_bytes;
};

responses_store *responses_store_open(size_t count, size_t bytes)
{
    responses_store *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    pthread_mutex_init(&s->lock, NULL);
    s->most_count = count, s->most_bytes = bytes;
    return s;
}

static void take_out(responses_store *s, entry *e)
{
    if (e->older)
        e->older->newer = e->newer;
    else
        s->oldest = e->newer;
    if (e->newer)
        e->newer->older = e->older;
    else
        s->newest = e->older;
    e->older = e->newer = NULL;
}

static void put_newest(responses_store *s, entry *e)
{
    e->older = s->newest;
    if (s->newest)
        s->newest->newer = e;
    else
        s->oldest = e;
    s->newest = e;
}

static void free_entry(entry *e)
{
    buffer_free(&e->kept.json);
    json_decref(e->kept.turns);
    free(e->id);
    free(e);
}

static void drop(responses_store *s, entry *e)
{
    take_out(s, e);
    s->count--, s->bytes -= e->bytes;
    free_entry(e);
}

void responses_store_close(responses_store *s)
{
    if (!s) return;
    for (entry *e = s->oldest, *newer; e; e = newer) {
        newer = e->newer;
        free_entry(e);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static entry *find(const responses_store *s, const char *id)
{
    for (entry *e = s->newest; e; e = e->older)
        if (strcmp(e->id, id) == 0) return e;
    return NULL;
}

static void make_room(responses_store *s)
{
    for (entry *e = s->oldest, *next; e && (s->count > s->most_count || s->bytes > s->most_bytes); e = next) {
        next = e->newer;
        if (!e->kept.running) drop(s, e);
    }
}

void responses_store_put(responses_store *s, const char *id, buffer *json, json_t *turns, size_t turn_bytes,
                         void *running, bool background)
{
    entry *e = calloc(1, sizeof *e);
    if (e) e->id = memory_string(id, strlen(id));
    if (!e || !e->id || !buffer_ok(json)) {
        free(e ? e->id : NULL);
        free(e);
        buffer_free(json);
        return;
    }
    e->bytes = sizeof *e + json->capacity + turn_bytes;
    e->kept = (kept_response){
        .id = e->id, .json = *json, .turns = json_incref(turns), .running = running, .background = background};
    *json = (buffer){0};
    pthread_mutex_lock(&s->lock);
    entry *before = find(s, id);
    if (before) drop(s, before);
    put_newest(s, e);
    s->count++, s->bytes += e->bytes;
    make_room(s);
    pthread_mutex_unlock(&s->lock);
}

void responses_store_ended(responses_store *s, const char *id, const void *running)
{
    pthread_mutex_lock(&s->lock);
    entry *e = find(s, id);
    if (e && e->kept.running == running) e->kept.running = NULL;
    make_room(s);
    pthread_mutex_unlock(&s->lock);
}

/* Under the lock: what is asked for is the newest. */
static entry *touch(responses_store *s, const char *id)
{
    entry *e = find(s, id);
    if (!e) return NULL;
    take_out(s, e);
    put_newest(s, e);
    return e;
}

const kept_response *responses_store_find(responses_store *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    entry *e = touch(s, id);
    pthread_mutex_unlock(&s->lock);
    return e ? &e->kept : NULL;
}

bool responses_store_turns(responses_store *s, const char *id, json_t **turns)
{
    pthread_mutex_lock(&s->lock);
    entry *e = touch(s, id);
    *turns = e ? json_incref(e->kept.turns) : NULL;
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}
