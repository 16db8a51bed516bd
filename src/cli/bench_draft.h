/*
 * The drafter's lines of `hayate bench kernels`: what its context costs a row of the target, and the attention of a block.
 *
 * draft_context  fc and the keys and values of all draft layers, by number of rows; taps are there before.
 * draft attention  a block of g rows behind a full window, one layer: a whole round of a narrow drafter with all heads, less
 *     the same round without context, over the layers. Beside it, on the same heads, rows and tokens, in the same format, stands
 *     `attend` of a dense layer.
 */
#ifndef HAYATE_CLI_BENCH_DRAFT_H
#define HAYATE_CLI_BENCH_DRAFT_H

#include "checkpoint/config.h"
#include "cli/bench_kernels_report.h"

typedef struct bench_draft { /* all borrowed */
    const hy_ops *ops;
    threads *pool;
    bench_read *read;
    const config *target;
    const int32_t *count; /* [counts] rows of draft_context */
    int counts, runs;
    kernel_report *report;
} bench_draft;

/* A narrow drafter with all heads of `d`, and a target of the given heads for it. */
ops_drafter bench_draft_drafter(const draft_config *d, const config *target);
ops_model bench_draft_target(const config *target, int heads, int kv_heads, int head_dim);

hy_status bench_draft_run(const bench_draft *b, hy_error *err);

#endif
