/*
 * Which rows the next step computes.
 *
 * One step has one budget of rows. There is no phase of prefill or decode: a running request needs the tokens that it
 * knows and has not computed. First come the requests that need one row (they decode), then those with more in the
 * order of their admission, each as much as is left; then waiting requests are admitted, first come first served.
 *
 * A request is admitted when the cache can hold all it may ever become: its blocks are promised then and taken as they
 * are reached. So a running request never lacks a block and none has to be thrown out.
 *
 * The scheduler belongs to the engine's thread. Nothing is allocated after scheduler_open.
 */
#ifndef HAYATE_ENGINE_SCHEDULER_H
#define HAYATE_ENGINE_SCHEDULER_H

#include "engine/request.h"

/* Requests linked through `next`. */
typedef struct request_queue {
    hy_request *first, *last;
    int count;
} request_queue;

void queue_append(request_queue *q, hy_request *r);
/* Moves all of `from` to the end of `to`. */
void queue_move(request_queue *to, request_queue *from);

typedef struct scheduler {
    int32_t max_sequences, max_rows;
    blocks *blocks;   /* owned */
    int32_t promised; /* blocks of running requests, taken or not */
    request_queue waiting;
    hy_request **running; /* [max_sequences] in the order of admission */
    int32_t running_count;
    int32_t *free_slot; /* [max_sequences] a stack of rows of the block table */
    int32_t free_slots;

    /* The step: rows, and the requests that sample, in the order of their logit rows. */
    ops_rows rows;     /* arrays owned, [max_rows] and [max_sequences, stride] */
    hy_request **pick; /* [max_sequences] */
    int32_t pick_count;
} scheduler;

/* `blocks` of the cache, sequences of at most `max_len` tokens. */
hy_status scheduler_open(int32_t max_sequences, int32_t max_rows, int32_t blocks, int32_t max_len, scheduler *s,
                         hy_error *err);
void scheduler_close(scheduler *s);

/* Fills the rows of the next step and returns their number. */
int32_t scheduler_plan(scheduler *s);
/* The planned rows were computed. Returns how many of them were prompt tokens. */
int32_t scheduler_advance(scheduler *s);
/* Takes out a request, running or waiting, and gives its blocks back. */
void scheduler_remove(scheduler *s, hy_request *r);

#endif
