/*
 * One request on its way: its tokens, its text, and what its owner is told.
 *
 * The owner holds a pointer from hy_engine_submit until hy_request_close. In between the engine's thread alone changes
 * it, except for `cancel` (any thread) and `done` (under `lock`, set last): once done, the engine never touches it
 * again. Everything that a step needs is allocated at submit; only the text grows while tokens come, by doubling.
 *
 * Where a request stands: `known` = prompt and output tokens, `computed` = tokens whose cache rows are written. A step
 * may compute any part of what is known and not computed; when it reaches the end, the next token is sampled.
 */
#ifndef HAYATE_ENGINE_REQUEST_H
#define HAYATE_ENGINE_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buffer.h"
#include "cache/blocks.h"
#include "engine/params.h"
#include "text/detokenizer.h"

struct hy_request {
    uint64_t number; /* in the order of submission, for log lines */
    params params;   /* owned */
    hy_event_fn on_event;
    void *user;
    int64_t seed;

    int32_t *ids; /* [limit] the prompt, then the output; owned */
    int32_t prompt_count, output_count;
    int32_t limit; /* most tokens in all: prompt and max_tokens, or the longest sequence */

    /* The scheduler's. */
    hy_request *next; /* in a queue */
    int32_t slot;     /* its row of the block tables, -1 while waiting */
    int32_t blocks;   /* promised to it: enough for `limit` tokens */
    int32_t computed;
    int32_t scheduled; /* rows in the running step */
    block_table table;

    /* Text. */
    bool has_text;
    text_detokenizer detokenizer;
    buffer text;     /* all of it, what is held back included */
    size_t shown;    /* bytes that events have brought */
    size_t searched; /* bytes in which no stop string ends */

    hy_logprob logprobs[1 + SAMPLE_MAX_LOGPROBS];
    hy_finish finish;
    hy_error error;
    double submitted, admitted, first_token, last_token; /* clock_seconds, 0: not yet */

    atomic_bool cancel;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
};

/* Copies checked options. `limit` >= prompt_count + 1; `tok` may be NULL. */
hy_status request_open(const hy_request_options *options, const text_tokenizer *tok, const model_generation *generation,
                       int32_t limit, hy_request **out, hy_error *err);

static inline int32_t request_known(const hy_request *r)
{
    return r->prompt_count + r->output_count;
}

/* The next token, as sampled: appends it, extends the text, decides whether the request ends, and tells the owner. */
void request_token(hy_request *r, const ops_sampled *sampled);
/* Ends a running request without a token: HY_FINISH_CANCEL, or HY_FINISH_ERROR with the reason. Tells the owner. */
void request_end(hy_request *r, hy_finish finish, const hy_error *error);
/* The engine has let go of it: wakes the owner. The pointer may be dead when this returns. */
void request_done(hy_request *r);

#endif
