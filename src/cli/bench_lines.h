/*
 * The lines of `hayate bench kernels --device cuda`: operations at the sizes that a GPU is judged by, each recorded
 * once and run again behind a read pass. A line's record goes through `layers` layers in turn, so that neighbouring
 * calls read other bytes; its time is that of one call.
 *
 *     index     index_select, and the scores alone: 128K tokens of 8 sequences, 512K of one; 1 index head and all
 *     attend    sparse decode at 1 to 128 sequences, and verified rows, 4 and 8 a sequence, that select alike or not
 *     prefill   8,192 rows behind 64K tokens: attention, scores, selection
 *     moe       router, experts and shared expert, uniform random routes, 1 to 64 rows and 4,096
 *     qkv       attend_in of 512 to 8,192 rows, and the same with heads in a kernel of their own
 *     head, sampling   logits of 1 to 64 rows, and picks out of them
 *     draft     the drafter's attention, a layer, at 1 to 32 sequences; its context rows
 *
 * Bytes are what a call must read at least once, each key, value and expert that its rows select or are routed to;
 * operations as in spec's formulas: 4 * dim * 128 tokens for every query head and selected block, 2 * dim for every
 * index head and visible token.
 */
#ifndef HAYATE_CLI_BENCH_LINES_H
#define HAYATE_CLI_BENCH_LINES_H

#include "checkpoint/config.h"
#include "cli/bench_kernels_report.h"
#include "cli/bench_synthetic.h"

typedef struct bench_lines { /* all borrowed */
    const hy_ops *ops;
    threads *pool;
    const config *target;
    bool drafter;        /* the geometry has one */
    uint64_t read_bytes; /* of a pass, 0: what fits the GPU */
    int runs, layers, wgmma_rows;
    bool apart;           /* ops_options.gpu_apart */
    int32_t most_rows;    /* lines are cut to so many rows */
    int64_t most_context; /* and to so many tokens */
    kernel_report *report;
} bench_lines;

hy_status bench_lines_index(const bench_lines *b, hy_error *err);
hy_status bench_lines_attend(const bench_lines *b, hy_error *err);
hy_status bench_lines_prefill(const bench_lines *b, hy_error *err);
hy_status bench_lines_moe(const bench_lines *b, hy_error *err);
hy_status bench_lines_qkv(const bench_lines *b, hy_error *err);
hy_status bench_lines_head(const bench_lines *b, hy_error *err);
hy_status bench_lines_sampling(const bench_lines *b, hy_error *err);
hy_status bench_lines_draft(const bench_lines *b, hy_error *err);

/* ---- What they are made of: bench_lines.c -------------------------------------------------------------------------
 */

/* Weights, a backend over them and its GPU; a cache, a step and rows. Zeroed: nothing is open. */
typedef struct lines_net {
    const bench_lines *b;
    bench_synthetic weights;
    cache_layout layout;
    bench_shape shape;
    bench_rows rows;
    ops_backend *backend;
    bench_gpu *gpu;
    ops_cache *cache;
    ops_step *step;
    int32_t blocks; /* of the cache */
} lines_net;

/* Of a network with `dense` layers without experts and `moe` with them. NVFP4 cache, W4A4. `drafter` may be NULL. */
hy_status lines_open(const bench_lines *b, const ops_model *shape, const ops_drafter *drafter, int dense, int moe,
                     lines_net *n, hy_error *err);
/* Steps of so many rows over sequences of so many positions, with `blocks` blocks of cache, 0: all their own. */
hy_status lines_step(lines_net *n, const ops_limits *limits, int32_t sequences, int32_t blocks, hy_error *err);
void lines_close(lines_net *n);

/* Blocks [0, own) get random bytes, and the others copies of them; index_only: of the index keys alone. */
hy_status lines_fill(lines_net *n, int32_t own, bool index_only, hy_error *err);
/* `each` rows a sequence that end at position `end`. Block b of a sequence is b % period of its own `period` ones; 0:
 * all are its own. */
void lines_rows(lines_net *n, int32_t sequences, int32_t each, int64_t end, int32_t period, bool logits);
/* Random bf16 values of deviation about one into a tensor of so many columns, all rows of the step. */
hy_status lines_random(lines_net *n, ops_tensor which, size_t columns, hy_error *err);
/* The smaller one. */
int64_t lines_least(int64_t a, int64_t b);

/* What a line is. */
typedef struct lines_line {
    char name[64];
    int32_t rows;
    int64_t context;
    bench_cost cost;     /* of a call */
    int calls;           /* of the record */
    const char *kernels; /* NULL: all that are launched */
    bench_work_fn work;
    void *arg;
} lines_line;

/* Ends the step: the status of its line, or else its own. */
hy_status lines_finish(lines_net *n, hy_status status, hy_error *err);

/* Runs and reports it. The step has begun, or `work` begins and ends it. */
hy_status lines_measure(lines_net *n, const lines_line *l, hy_error *err);

#endif
