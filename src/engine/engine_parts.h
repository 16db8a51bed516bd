/* The inside of an engine, shared by the files of this room: engine.c opens and closes, submit.c lets requests in, planner.c
 * is the thread that turns them into tokens. */
#ifndef HAYATE_ENGINE_ENGINE_PARTS_H
#define HAYATE_ENGINE_ENGINE_PARTS_H

#include <stdatomic.h>

#include "cache/plan.h"
#include "engine/meters.h"
#include "engine/replay.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

enum { ENGINE_WAITING = 4096 }; /* the default of max_waiting */

/*
 * Locks: `lock` guards the intake, the stop flag, and the runner's list of steps; a request's own lock guards its `done`; they
 * are never held together. Everything else belongs to the planner. Numbers for hy_engine_describe are atomics that it
 * publishes.
 */
struct hy_engine {
    hy_model *model; /* borrowed */
    const hy_ops *ops;
    turn *turn;
    ops_cache *cache;
    cache_plan plan;
    uint64_t tier_bytes; /* of memory that the tiers take */
    bool prefix_caching;
    bool counted;        /* the cache and the tiers, in the model's memory */
    int32_t vocab, model_len, max_waiting;
    int32_t drafts_most;         /* of a round; 0: none */
    ops_verify_method method;
    bool greedy_drafts;
    float rates[HY_MAX_DRAFTS];  /* of synthetic acceptance, each given that those before were accepted */
    int32_t *by_batch;           /* [by_batch_count] or NULL; owned */
    int32_t by_batch_count;
    float confidence;
    uint32_t *has_token; /* [ceil(vocab / 32)] ids that the tokenizer knows; NULL: without a tokenizer all may come */
    replay *replay;      /* NULL: without a tokenizer */
    store *tiers;        /* NULL: none */
    cache_manager *manager;
    watch *watch;
    hy_expert_stats logged; /* the watch's thread: at the last line */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something that the planner waits for */
    request_queue intake;   /* under lock */
    uint64_t numbers;       /* under lock: requests submitted */
    bool stop;              /* under lock */
    bool arrived;           /* under lock: blocks came from the tiers */

    runner *runner;
    scheduler sched;
    step step[2];
    int next_step; /* which of the two is planned next */

    atomic_int running, waiting;
    meters meters;
    atomic_int failing_steps;
    atomic_uint_least64_t prompt_computed, prompt_cached, prompt_loaded;
    atomic_uint_least64_t generated_tokens, steps, rows, finished, cancelled, failed, refused, preemptions;
    atomic_uint_least64_t prefix_absent, prefix_hits, memory_hits, disk_hits, damaged;
    atomic_uint_least64_t misses[HY_MISS_REASONS];
    atomic_uint_least64_t draft_rounds, drafts, drafts_accepted, drafts_accepted_at[HY_MAX_DRAFTS];
    atomic_int blocks_used;
};

/* speculation.c: hy_speculation checked against the model and taken over. HY_USAGE, HY_UNSUPPORTED, HY_NO_FIT. */
hy_status speculation_open(hy_engine *e, const hy_speculation *s, hy_error *err);
/* The drafts of a request. HY_BAD_INPUT: a method that the engine was not opened for. */
hy_status speculation_choose(const hy_engine *e, const hy_request_options *o, int32_t *drafts, ops_verify_method *method,
                             hy_error *err);

/* planner.c: the planner's thread. */
void *planner_main(void *engine);
/* scheduler.admitted: counts and names what a request reuses. */
void planner_admitted(void *engine, hy_request *r);

#endif
