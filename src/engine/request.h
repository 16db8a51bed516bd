/*
 * One request on its way: its tokens, its text, and what its owner is told.
 *
 * The owner holds a pointer from hy_engine_submit until hy_request_close. In between the engine's planner alone changes
 * it, except for `cancel` (any thread) and `done` (under `lock`, set last): once done, the engine never touches it
 * again. Everything that a step needs is allocated at submit; only the text grows while tokens come, by doubling.
 *
 * Where a request stands: `known` = prompt and output tokens that its owner was told of, `pending` = tokens that steps
 * under way will sample, `computed` = tokens whose rows are planned or done. A step may compute any part of what is known
 * or pending and not computed; when it reaches the end, the next token is sampled. The runner (engine/runner.h) writes a
 * sampled token into `ids` before anyone reads it there. Drafts that a step verifies stand in `ids` behind what is known.
 */
#ifndef HAYATE_ENGINE_REQUEST_H
#define HAYATE_ENGINE_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buffer.h"
#include "cache/manager.h"
#include "engine/params.h"
#include "text/detokenizer.h"
#include "text/reasoning.h"

struct hy_request {
    uint64_t number; /* in the order of submission, for log lines */
    params params;   /* owned */
    hy_event_fn on_event;
    void *user;
    int64_t seed;

    int32_t *ids; /* [limit] the prompt, then the output; owned */
    int32_t prompt_count, output_count;
    int32_t limit; /* most tokens in all: prompt and max_tokens, or the longest sequence */
    int32_t choice, priority;
    double deadline; /* clock_seconds; 0: none */
    char *salt;      /* owned; NULL: none */
    bool rendered;   /* its prompt is a conversation: its answer may come back in one */

    /* The scheduler's. */
    hy_request *next, *before; /* in a queue */
    bool waiting;              /* in the scheduler's queue */
    int32_t slot;              /* its row of the block tables, -1 while waiting */
    int32_t computed, pending;
    int32_t draft_count, draft[HY_MAX_DRAFTS]; /* made by its last step, to be verified by the next */
    bool awaits; /* a step under way verifies or makes drafts: how many tokens will come is not known, so nothing is planned */
    int32_t steps;    /* under way with rows of it, or a copy for it: one counts for each */
    uint64_t planned; /* the last step that it has rows in */
    uint32_t epoch; /* goes up when it loses its cache: rows planned before count no more */
    bool gone;      /* it has ended and its owner knows; steps or reads still use it */
    bool lost, over; /* the runner's: a step with its rows failed; no token follows the last one */
    text_matcher *matcher; /* the runner's, NULL: any text; owned. Walks through the grammar as tokens are sampled. */
    cache_sequence cache;
    const hy_request *leader; /* computes a prefix that this one waits for; NULL: none */
    uint64_t leader_number;
    int32_t leader_tokens;
    hy_reuse reuse; /* of the first admission */
    hy_miss miss;
    bool reused; /* the two above are known */
    int32_t changed; /* where an answer of this engine came back as other text, -1: nowhere */
    int32_t preemptions;
    int32_t drafts;              /* of a round at most; 0: none */
    ops_verify_method method;
    int32_t draft_rounds, drafts_verified, drafts_accepted; /* as in hy_result */
    int32_t prompt_seen; /* tokens of the prompt that were done at least once */

    /* Text. */
    bool has_text;
    text_detokenizer detokenizer;
    buffer text;     /* all of it, what is held back included */
    size_t shown;    /* bytes that events have brought */
    size_t searched; /* bytes in which no stop string ends */

    hy_logprob *logprobs;        /* [1 + n + logprob_id_count] or NULL; of the last token; owned, as those that follow */
    float *scores;               /* [places, logprob_id_count], see request_place; NULL: none */
    hy_logprob *best;            /* [places, n] where n is above SAMPLE_MAX_LOGPROBS; else NULL */
    hy_logprob *prompt_logprobs; /* [prompt_count - 1, 1 + n] or NULL */
    int32_t *prompt_ranks;       /* [prompt_count - 1]; 0: not scored yet */
    uint16_t *routes;            /* [limit, route_layers, route_experts] or NULL; the runner's */
    int32_t route_layers, route_experts;
    int32_t *runs; /* with repeat_most, of each size of a pattern: tokens at the end like the one a pattern before; owned */

    /* The runner's, with limit_thinking. */
    text_reasoning reasoning;
    int32_t thought; /* tokens of reasoning */
    int32_t closer;  /* the token that ends it */
    hy_finish finish;
    hy_error error;
    double asked, submitted, admitted, first_token, last_token; /* clock_seconds, 0: not yet */

    atomic_bool cancel;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
};

/* Copies checked options, with `prompt` [count] as the prompt. `limit` >= count + 1; `tok` may be NULL. */
hy_status request_open(const hy_request_options *options, const int32_t *prompt, int32_t count,
                       const text_tokenizer *tok, const model_generation *generation, const ops_model *shape,
                       int32_t limit, int32_t drafts, hy_request **out, hy_error *err);

/* Where the runner puts what is told of the token at `position` beside it: two steps may be under way, or one that verifies
 * drafts, so neighbours have places of their own. */
static inline size_t request_place(const hy_request *r, int32_t position)
{
    return (size_t)(position % (r->drafts > 1 ? 1 + r->drafts : 2));
}

static inline int32_t request_known(const hy_request *r)
{
    return r->prompt_count + r->output_count;
}

/* The next token, as sampled and written into ids: counts it, extends the text, decides whether the request ends. `final`: by
 * the request's grammar nothing can follow it. */
hy_event request_token(hy_request *r, const ops_sampled *sampled, bool final);
/* The prompt's token at `position` has been scored. */
void request_score(hy_request *r, int32_t position, const ops_sampled *sampled);
/* The runner's: a token was sampled. Counts those of reasoning; `tok` is not NULL. */
void request_think(hy_request *r, const text_tokenizer *tok, int32_t id);
/* The same for a place further on: `reasoning` and `thought` are copies of the request's, or go on from there. */
void request_think_ahead(text_reasoning *reasoning, int32_t *thought, const text_tokenizer *tok, int32_t id);
/* Ends a request without a token: HY_FINISH_CANCEL, or HY_FINISH_ERROR with the reason. */
hy_event request_end(hy_request *r, hy_finish finish, const hy_error *error);
/* Tells the owner the event that one of the two made. What an owner may ask about next (counts, the tokens of an answer that
 * comes back) has to be in place before: it may ask at once, from another thread. */
void request_tell(hy_request *r, hy_event *event);
/* The engine has let go of it: wakes the owner. The pointer may be dead when this returns. */
void request_done(hy_request *r);

#endif
