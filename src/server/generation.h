/*
 * One API call on its way through the engine: what all dialects share.
 *
 * A dialect is a table of functions. It says what is asked for (a plan), and is told what comes, as parts in order; it
 * writes nothing but its own JSON. Everything between is here: threads, submission, the mailbox, stop strings,
 * splitting into reasoning, content and calls, cancelling, limits, errors, log lines, metrics.
 *
 *     HTTP thread                     worker thread                         planner (engine)
 *     generation_start ───────────►   dialect.read: body -> plan
 *                                     render, encode, grammar, submit ──►   tokens into mailboxes
 *     dialect.begin, step*, end  ◄──────────────────────────────────────────┘
 *     or dialect.fail
 *
 * All functions of a dialect but `read` run on the HTTP thread. A plan has prompts x n choices; choice i answers prompt
 * i / n.
 *
 * Streams (plan.stream): `begin` when the first token exists, then `step` for a choice whenever something is there to
 * be said, its last one with `finish` set, then `end`. Steps of choices interleave. Whole answers: `begin`, one `step`
 * a choice, in order and with everything in it, then `end`, all when the last choice has ended. So one function writes
 * both, and what it writes whole is what its stream adds up to.
 *
 * `fail` comes in place of all that is left: before `begin` the dialect replies with a status, after it with an event
 * inside the stream. `release` is always the last call. A client that leaves has its request cancelled: what is written
 * to a closed exchange goes nowhere, so no dialect needs to know.
 */
#ifndef HAYATE_SERVER_GENERATION_H
#define HAYATE_SERVER_GENERATION_H

#include <stdatomic.h>

#include "base/buffer.h"
#include "server/grammars.h"
#include "server/http.h"
#include "server/request_fields.h"
#include "server/server.h"
#include "server/work.h"
#include "text/answer.h"

/* Bytes of a stream that may wait, beside two events of its largest kind; with more its client does not read, and the call is
 * cancelled. */
enum { GENERATION_BACKLOG = 4 << 20 };

typedef struct generation generation;
typedef struct generation_step generation_step;
struct generation_tokens;
struct generation_report;

/* What all calls of a server share; borrowed. */
typedef struct generation_room {
    http_server *http;
    hy_model *model;
    hy_engine *engine;
    work *work;               /* reads, renders and submits */
    work *compilers;          /* grammars that are not kept yet */
    grammars *grammars;
    work *closer;             /* one thread that waits for the engine to let go of what has ended */
    const char *const *names; /* [name_count] served names, the first is echoed */
    size_t name_count;
    const server_options *options;
    hy_sampling defaults;    /* of the checkpoint, or neutral, with overrides */
    const char *fingerprint; /* NULL: null */
    /* Told about every request, on the HTTP thread; either may be NULL. */
    void (*on_tokens)(void *user, const struct generation_tokens *tokens);
    void (*on_end)(void *user, const struct generation_report *report);
    void *observer;
    struct responses_store *responses; /* what /v1/responses keeps; NULL: nothing */
    bool paused;       /* new calls are held until it is over: generation_hold */
    int held;          /* of the running ones */
    atomic_int cache_epoch; /* goes up when cached prompts are not to be found any more */
    int64_t created;   /* of the server, seconds since 1970 */
    generation *first; /* the running ones */
    int running;       /* calls that are being answered, for /load */
    bool stopping;     /* new requests are refused */
    /* Lines about refused requests: said since then, left out since the last one. */
    double refusals_since;
    int refusals_said, refusals_held;
} generation_room;

/* A step brought tokens to a choice. */
struct generation_tokens {
    int count;
    bool first;   /* the first of the choice: `since` counts from the request's arrival, else from the last ones */
    double since; /* seconds */
};

/* A choice has ended. */
struct generation_report {
    hy_finish finish;
    size_t prompt_tokens, cached_tokens, generated_tokens;
    int64_t max_tokens; /* asked for; 0: not given */
    int n;
    double end_to_end_s, queue_s, prefill_s, decode_s;
    int calls, repairs, faults; /* of the answer parser: see text/answer.h */
    bool parsed_calls, stream;  /* it looked for tool calls */
    const char *prefix;         /* of the dialect's ids */
    bool last;                  /* of the n choices of its prompt */
    size_t longest;             /* with `last`: most generated tokens among them */
};

/* ---- The plan --------------------------------------------------------------------------------------------------- */

/* An answer that was made elsewhere. Owned by the plan. */
typedef struct generation_answer {
    hy_ids ids;
    hy_logprob *logprobs; /* [ids.count, stride], the token's own first; NULL: none */
    size_t stride;
    hy_finish finish;
    size_t prompt_tokens; /* of its prompt */
} generation_answer;

typedef struct generation_plan {
    /* The prompt: a conversation, or texts and ids. Owned by the plan. */
    json_t *messages;    /* as the chat protocol has them; NULL: `prompts` */
    bool batch;          /* messages is a list of conversations, each a prompt */
    json_t *kwargs;      /* template variables, over the server's; may be NULL */
    json_t *effort;      /* a string: the template's reasoning_effort, over kwargs; NULL: not given */
    char *chat_template; /* the request's own template; NULL: the model's */
    hy_ids *prompts;     /* [prompt_count] ids, encoded already */
    size_t prompt_count;
    bool drop_tools; /* tools are not rendered (tool_choice "none" and the flag that says so) */

    request_sampling sampling;
    request_tools tools;
    request_grammar grammar;
    bool grammar_at_once; /* no reasoning is looked for */
    int32_t n;            /* 1 at first */
    int32_t priority;
    double deadline_s;
    int drafts;               /* as in hy_request_options, both */
    const char *draft_method; /* a constant */
    char *salt;        /* owned, NULL: none */
    const char *model; /* asked for, copied; NULL: the first served name */
    int64_t truncate;  /* truncate_prompt_tokens; 0: not given, -1: to what the model's length leaves */
    bool truncate_right;
    bool echo_prompt;        /* prompt log-probabilities for echo */
    int32_t prompt_logprobs; /* -1: none */
    int32_t routes_start;    /* first token of the prompt whose experts are told */
    bool keep_special;       /* added tokens are shown */
    bool no_prefix_cache;    /* the whole prompt is computed */
    bool no_text;            /* token in, token out: nothing is decoded, nothing split */
    bool parse;              /* reasoning (if the server splits it) and calls (if tools.mode is not NONE) are split */
    bool beam_search;        /* the n best answers of a beam search of n beams, in order */
    double length_penalty;   /* with beam_search */
    generation_answer *given; /* [given_count] answers in place of those of the engine, one a choice: they are split, told, not
                               * counted */
    size_t given_count;
    json_t *given_prompt_logprobs; /* with `given`: as they came, one a prompt, may be NULL; owned */
    json_t *given_transfer;        /* the same: kv_transfer_params */
    bool no_generation;      /* only the prompts are wanted: `prepared`, nothing more */
    bool stream;
    int32_t interval; /* tokens a step of a stream: 1 at first */
    bool every_token; /* steps come for tokens without text too (return_token_ids) */
    bool rendered;    /* set by the core: the prompt is a conversation */
    bool background;  /* goes on when the client leaves */
} generation_plan;

/* ---- What comes ------------------------------------------------------------------------------------------------- */

typedef struct generation_part {
    text_part_kind kind;
    int call; /* -1 outside of calls */
    const char *text;
    size_t length;
} generation_part;

/* What is new of a choice (streams), or all of it (whole answers). Borrowed during the call. */
struct generation_step {
    int choice;
    const generation_part *part; /* [part_count] in order; neighbours of one kind and call are one */
    size_t part_count;
    const char *text; /* the parts' text without splitting, for dialects that do not parse */
    size_t text_length;
    const int32_t *ids; /* [id_count] */
    size_t id_count;
    const hy_logprob *logprobs; /* [id_count, logprob_stride]: the token's own, then the best; NULL: not asked */
    size_t logprob_stride;
    bool thinking;           /* reasoning may have come when the step began: streamed chunks name both fields */
    hy_finish finish;        /* HY_RUNNING: not the last */
    const char *finish_name; /* "stop", "length", "tool_calls", "abort", "repetition"; NULL while running */
    const char *stop_string;
    int32_t stop_id;         /* -1: none, or the model's own end */
    int calls;               /* that have begun so far */
    const hy_result *result; /* of the last step: numbers of the whole; its strings and arrays are gone */
};

/* Of one choice so far; in `end` of the whole. */
typedef struct generation_usage {
    size_t prompt_tokens, completion_tokens, reasoning_tokens; /* of all choices; a prompt counts once */
    int64_t draft_rounds, drafts, drafts_accepted; /* of all choices that have ended */
    bool reuse_known;
    hy_reuse reuse; /* of the first choice */
} generation_usage;

typedef struct generation_dialect {
    const char *prefix; /* of ids: "chatcmpl-" */
    size_t state_size;  /* zeroed memory for the dialect: g->state */
    /* Worker thread: fills g->plan from `body`, which it may keep (json_incref) in its state. */
    bool (*read)(generation *g, json_t *body, request_fault *fault);
    /* The prompts are known (g->prompts), before anything is generated; NULL: of no interest. With plan.no_generation
     * it replies, and `release` follows. */
    void (*prepared)(generation *g);
    void (*begin)(generation *g);
    void (*step)(generation *g, const generation_step *step);
    void (*end)(generation *g);
    /* May be called for a request of which nothing is known yet: then g->state is NULL. */
    void (*fail)(generation *g, const request_fault *fault);
    void (*release)(generation *g); /* frees what `state` owns; may be NULL */
} generation_dialect;

/* What dialects see of a call. */
struct generation {
    generation_room *room;
    const generation_dialect *dialect;
    void *state;
    http_exchange *x; /* a dialect sets it NULL once it has replied or ended its stream */
    generation_plan plan;
    char id[96];       /* prefix and random, or what the client said (X-Request-Id, request_id) */
    int64_t created;   /* seconds since 1970 */
    const char *model; /* the served name that was asked for */
    hy_ids *prompts;   /* [prompt_count] as encoded, after truncation; freed after `prepared` unless keep_prompts */
    size_t prompt_count;
    bool keep_prompts;
    int choices; /* prompt_count * n */
    bool begun;  /* `begin` was called */
    struct generation_inside *inside;
};

/* The handler of a dialect's route. Replies by itself to what is no JSON. */
void generation_start(generation_room *room, const generation_dialect *dialect, http_exchange *x);
/* The same for a body that is there already (invocations, batches): takes `body` over. */
void generation_start_with(generation_room *room, const generation_dialect *dialect, http_exchange *x, json_t *body);

/* Usage so far: of choice `choice`, of all with -1. */
generation_usage generation_usage_of(const generation *g, int choice);
/* The ids of a prompt as they were computed (sampled tokens of earlier answers in it); borrowed until `release`. */
const int32_t *generation_prompt_ids(const generation *g, size_t prompt, size_t *count);
/* Log-probabilities of the tokens of a prompt behind its first, [count - 1, *stride], the token's own first; NULL: not
 * asked for. */
const hy_logprob *generation_prompt_logprobs(const generation *g, size_t prompt, size_t *stride, const int32_t **ranks);
/* Seconds from the arrival to the first token and to now, for per-request metrics; of the first choice. */
typedef struct generation_times {
    double first_token_s, queue_s, generation_s, total_s;
} generation_times;
generation_times generation_times_of(const generation *g);

/* Its client leaves more lying than a reader would. */
bool generation_unread(const generation *g);
/* Ends it: every choice finishes with "abort". */
void generation_cancel(generation *g);
void generation_cancel_all(generation_room *room);
/* Cancels the call with this id (with or without its prefix). False: there is none. */
bool generation_cancel_id(generation_room *room, const char *id);

/* The usual ways to fail: {"error": {...}} with a status, or as an event and [DONE] inside a stream. */
void generation_fail(generation *g, const request_fault *fault);
/* `model` is one of the served names; else 404. Used by the core; routes without a plan may want it too. */
bool generation_check_model(const generation_room *room, const char *model, const char **served, request_fault *fault);
void generation_reply_fault(http_exchange *x, const request_fault *fault);

/* From now on calls that come wait, or go on. Held ones are cancelled like others. */
void generation_hold(generation_room *room, bool hold);

/* 32 hex digits from the system's entropy. */
void generation_random_id(char out[33]);

#endif
