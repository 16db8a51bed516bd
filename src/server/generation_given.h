/* Answers that do not come token by token from one request of the engine: found by beam search, or given by the client to be
 * made text of. Private to the core of generations. */
#ifndef HAYATE_SERVER_GENERATION_GIVEN_H
#define HAYATE_SERVER_GENERATION_GIVEN_H

#include "server/generation_inside.h"

/* Brings a whole answer to a choice, as generation_on_event brings steps. From any thread, once. Everything is borrowed: what
 * `result` points to until the call is freed, the rest during the call. */
typedef struct generation_whole {
    const int32_t *ids;
    size_t id_count;
    size_t shown;               /* of the ids, as text */
    const hy_logprob *logprobs; /* [id_count, stride]; NULL: none */
    size_t stride;
    hy_finish finish;
    int32_t stop_id; /* -1: none */
    const hy_error *error;
    hy_result result;
} generation_whole;
void generation_bring(choice *c, const generation_whole *whole);

/* Starts a search for every prompt of the call in place of its requests. From then on every choice gets an answer, or an
 * error. */
bool generation_search(generation *g, const char *salt, request_fault *fault);
/* HTTP thread. */
void generation_search_cancel(generation *g);
/* Waits until the searches have let go of the call, and frees them. */
void generation_search_close(generation *g);

/* The answers that the client gave (plan.given), to all choices. */
void generation_give(generation *g);

#endif
