/*
 * Responses that are kept in memory, for GET /v1/responses/{id} and for answers that go on from them. Bounded: those that
 * were not asked for longest go first; those that are still being made stay.
 */
#ifndef HAYATE_SERVER_RESPONSES_STORE_H
#define HAYATE_SERVER_RESPONSES_STORE_H

#include <jansson.h>

#include "base/buffer.h"

typedef struct responses_store responses_store;

typedef struct kept_response {
    const char *id;
    buffer json;     /* the response as GET replies it */
    json_t *turns;   /* the conversation with its answer; NULL: there is none yet, or it was cut off */
    void *running;   /* who makes it; NULL: nobody any more */
    bool background;
} kept_response;

/* Keeps at most `count` responses of `bytes` in all. NULL without memory. */
responses_store *responses_store_open(size_t count, size_t bytes);
void responses_store_close(responses_store *s);

/* Keeps a response in place of one with the same id. Moves `json`; `turns` (may be NULL) gets a reference and counts as
 * `turn_bytes`. */
void responses_store_put(responses_store *s, const char *id, buffer *json, json_t *turns, size_t turn_bytes,
                         void *running, bool background);
/* Whoever made it is gone. */
void responses_store_ended(responses_store *s, const char *id, const void *running);
/* NULL: there is none. Borrowed until the next put. From the thread that puts. */
const kept_response *responses_store_find(responses_store *s, const char *id);
/* The turns of a response, a reference for the caller; from any thread. False: there is no such response. *turns may be
 * NULL then as in kept_response. */
bool responses_store_turns(responses_store *s, const char *id, json_t **turns);

#endif
