/*
 * Which rows the next step computes.
 *
 * One step has one budget of rows. There is no phase of prefill or decode: a running request needs the tokens that it
 * knows, or that the step under way samples for it, and has not computed. First come the requests that need one row (they
 * decode). Then waiting requests are admitted in the order of their rank, into half of the rows that are left while
 * prompts are being computed, so that nobody waits for the end of a long one, into all of them otherwise. Then come the running
 * requests with more rows in the order of their rank, each as much as is left and as `threshold` allows.
 *
 * Rank: order of submission; with the policy "priority", priority before it. A request is admitted when the cache has room
 * for all that it knows, its prompt as a rule: these blocks are promised to it then. While it decodes it takes one block
 * after the other, and when none is left the running request of the lowest rank loses its cache and goes back to wait
 * (preemption by recompute): what it has said stays said, and is computed again as if it were prompt. In a step that
 * preempted nobody is admitted. The highest rank is never preempted, so something always moves.
 *
 * A request with drafts has a row for each beside the one of its last token, as many as there is room for without taking any
 * from others: every request that decodes has its one row first. How many tokens will come is known when the step is over, so
 * such a request is not planned ahead.
 *
 * A request whose prefix another one is computing waits until it is there; others pass it.
 *
 * A step is planned while the one before runs, so a request can end while rows of it are under way. Then it leaves the
 * running ones at once, and its slot, its blocks and its owner are let go when nothing uses it any more
 * (scheduler_release). The scheduler belongs to the planner's thread. Nothing is allocated after scheduler_open.
 */
#ifndef HAYATE_ENGINE_SCHEDULER_H
#define HAYATE_ENGINE_SCHEDULER_H

#include "engine/step.h"

/* Requests linked through `next` and `before`. */
typedef struct request_queue {
    hy_request *first, *last;
    int count;
} request_queue;

void queue_append(request_queue *q, hy_request *r);
void queue_remove(request_queue *q, hy_request *r);

typedef struct scheduler_options {
    int32_t max_sequences, max_rows;
    int32_t threshold; /* rows of one request in a step; 0: as many as there are */
    int32_t spare;     /* blocks that admission leaves free while something runs */
    bool by_priority;
    int32_t max_len; /* tokens of the longest sequence */
    int32_t drafts;  /* of a round at most, 0: none */
    const int32_t *by_batch; /* [by_batch_count] drafts by the number of sequences that pick, the last for more; NULL: `drafts` */
    int32_t by_batch_count;
} scheduler_options;

typedef struct scheduler {
    scheduler_options o;
    cache_manager *cache; /* borrowed */
    request_queue waiting; /* by rank */
    hy_request **running;  /* [max_sequences] by rank */
    int32_t running_count;
    hy_request **filling; /* [max_sequences] of the running ones those that compute their prompts, while it plans */
    int32_t filling_count;
    request_queue leaving; /* ended, still used */
    int32_t *block_table;  /* [max_sequences, stride] */
    int32_t stride;
    int32_t *free_slot; /* [max_sequences] a stack of rows of the block table */
    int32_t free_slots;
    uint64_t preemptions, steps;
    /* Called for each request that is admitted for the first time, when what it reuses is known. */
    void (*admitted)(void *user, hy_request *r);
    void *user;
} scheduler;

hy_status scheduler_open(const scheduler_options *options, cache_manager *cache, scheduler *s, hy_error *err);
void scheduler_close(scheduler *s);

/* A new request waits. */
void scheduler_add(scheduler *s, hy_request *r);
/* Fills a step and returns its number of rows. Copies may be there without rows. */
int32_t scheduler_plan(scheduler *s, step *p);
/* Tokens of prompts that are done for the first time: all; of these found in the cache, brought back from the tiers. */
typedef struct scheduler_prompts {
    int32_t tokens, cached, loaded;
} scheduler_prompts;

/* A step is over. Counts it off its requests; with HY_OK what it computed is there for others, and drafts go to their request. */
scheduler_prompts scheduler_finished(scheduler *s, step *p);
/* A request has ended: it is planned no more. */
void scheduler_end(scheduler *s, hy_request *r);
/* The next one that has ended and is used by nothing any more, taken out, its blocks given back; NULL: none. */
hy_request *scheduler_release(scheduler *s);

#endif
