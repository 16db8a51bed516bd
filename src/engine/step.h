/*
 * A planned step: rows, whose they are, who samples, and what is copied first. Two of them exist: one is planned while
 * the other runs (engine/runner.h).
 *
 * A row's token may be one that the step before is sampling: then it is `pending`, and the runner takes it from the
 * request's ids when it is there. Nothing is allocated after step_open.
 *
 * A request that verifies drafts has its last token's row and one row for each draft, all of which pick. The picks of one
 * request that verify are a group: its tokens of the step are the first `came` of the group.
 */
#ifndef HAYATE_ENGINE_STEP_H
#define HAYATE_ENGINE_STEP_H

#include "engine/request.h"

/* A request's rows in a step, which are adjacent. */
typedef struct step_member {
    hy_request *request;
    uint32_t epoch; /* of the request when it was planned */
    int32_t slot;   /* its row of the block tables, also if the request loses it while the step runs */
    int32_t begin;  /* position of its first row */
    int32_t rows;
    bool picks;   /* its last row samples, and with drafts the `verified` rows before */
    bool dropped; /* by the runner: its token was not to come, so its rows were not computed */
    int32_t verified; /* drafts among its rows */
    int32_t wanted;   /* drafts to be made behind what it picks */
    int32_t came;     /* by the runner: tokens that it picked */
    int32_t accepted; /* by the runner: of them drafts */
    int32_t draft_count, *draft; /* by the runner: [drafts of step_open] made for the next step */
} step_member;

enum { STEP_SCORES = 64 }; /* rows of prompts that are scored in a step, at most */

typedef struct step {
    uint64_t serial;
    ops_rows rows;       /* arrays owned, [max_rows]; block_table borrowed from the scheduler */
    bool *pending;       /* [max_rows] its token is being sampled by the step before */
    int32_t *owner;      /* [max_rows] the member */
    step_member *member; /* [max_sequences] */
    int32_t member_count;
    int32_t *draft;       /* [max_sequences, drafts] the members' */
    hy_request **pick;    /* [max_picks] in the order of logit rows, as the next six */
    ops_sample *sample;
    ops_sampled *sampled;
    bool *score; /* it does not pick: a token of its prompt, the only one allowed, is scored */
    bool *final; /* by the runner: by its grammar nothing can follow the token */
    bool *follows;        /* the row of a draft: of the same group as the one before */
    int32_t *pick_member; /* the member */
    int32_t pick_count, score_count, max_picks;
    int32_t drafts; /* of a request, at most */
    cache_copy *copy;    /* [max_sequences] */
    hy_request **copier; /* [max_sequences] whose they are */
    int32_t copy_count;

    /* Filled by the runner. */
    hy_status status;
    hy_error error;
} step;

/* Most rows of a step that pick or are scored. `drafts`: of a request, at most. */
int32_t step_picks(int32_t max_sequences, int32_t max_rows, int32_t drafts);

/* HY_NO_FIT without memory; step_close also releases one that was opened in part. */
hy_status step_open(int32_t max_sequences, int32_t max_rows, int32_t drafts, step *s, hy_error *err);
void step_close(step *s);
/* Empties it. */
void step_clear(step *s);

/* With token -1 it is pending. */
void step_add_row(step *s, int32_t member, int32_t slot, int32_t position, int32_t token, int64_t cache_slot,
                  bool logits);

/*
 * When the step before is over: puts in the pending tokens. Members whose request has no next token (`over`), or lost a
 * step (`lost`), are marked dropped; their rows and picks are left out and the logit rows numbered anew.
 */
void step_resolve(step *s);

#endif
