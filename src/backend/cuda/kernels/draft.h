/*
 * Parameters of the drafter's kernels. Sequences of a slice have `stride` rows each, of which the first `rows` are its
 * block and the others are computed for nothing; so row r belongs to sequence r / stride, place r % stride.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_DRAFT_H
#define HAYATE_BACKEND_CUDA_KERNELS_DRAFT_H

#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/sample.h"

enum {
    DRAFT_ROWS = 16,         /* DRAFT_MAX_BLOCK */
    DRAFT_HEAD_DIM = 128,    /* the largest */
    DRAFT_PAD = 8,           /* bf16 values behind a key in shared memory, so that eight keys meet all banks */
    DRAFT_ATTEND_THREADS = 256,
    DRAFT_RUNS = 4,          /* into which the context's blocks of keys are divided */
    DRAFT_FOLD_THREADS = 128,
    DRAFT_PART_STATE = 8, /* floats of a query */
    /* Of draft_attend_bf16: */
    DRAFT_HOPPER_THREADS = 512,
    DRAFT_HOPPER_QUERIES = 128, /* of a thread block */
    DRAFT_HOPPER_SHARED = (160 + 1) << 10, /* bytes, and behind them: */
    DRAFT_HOPPER_OWN = 8 << 10,            /* own keys and values; of DRAFT_WHOLE */
    DRAFT_HOPPER_TOTAL = 64 << 10,         /* in their place all outputs */
    DRAFT_PARTS = 6,         /* kinds of heads that one launch finishes */
};

/* A sequence of the slice; see ops_draft. */
typedef struct draft_sequence {
    int32_t anchor, position;
    int32_t first_block, blocks; /* of the cache, from that of the window's beginning on, and one more: its own rows */
    int32_t rows, wanted; /* of the block; drafts that there is room for */
    float threshold;      /* 0: not asked */
    draw_stream stream;   /* position and anchor are those of the first draft */
} draft_sequence;

/* A sequence whose anchor is among the answers of the step: of ids[first] ... the first that is not the draft judged
 * there, or the one behind the last of them. */
typedef struct draft_asked {
    int32_t first, judged; /* of the ids; drafts that were judged */
    int32_t position, end, rows; /* see ops_draft */
    int32_t line;          /* of the block table */
    float threshold;
    int32_t anchored;      /* the stream has the anchor's position too */
    draw_stream stream;    /* without the position */
    int32_t draft[DRAFT_ROWS];
} draft_asked;

/* Makes draft_sequences and their tables of cache blocks. Without an anchor, or room behind it, nothing is wanted. Grid
 * (sequences). */
typedef struct draft_open_args {
    const draft_asked *asked;
    const int32_t *ids;
    draft_sequence *sequence;
    int32_t *table;             /* [sequences, blocks] */
    const int32_t *block_table; /* of the step's rows */
    int32_t block_table_stride, blocks, window, gap;
} draft_open_args;

/* What a slice knows of a sequence's drafts. */
typedef struct draft_state {
    int32_t before; /* token before the next draft; -1: the drafts have ended */
    int32_t count;
    int32_t draft[DRAFT_ROWS];
} draft_state;

/* taps [rows, taps, hidden] bf16, tap `tap` of it = x [rows, hidden]. Grid (rows). */
typedef struct draft_tap_args {
    const float *x;
    uint16_t *taps;
    int32_t hidden, tap_count, tap;
} draft_tap_args;

/* x [rows, hidden]: anchor, noise, noise, ...; positions of the rows; states begin. Grid (rows). */
typedef struct draft_begin_args {
    const draft_sequence *sequence;
    draft_state *state;
    kernel_weight embed;
    float *x;
    int32_t *position;
    int32_t hidden, stride, noise;
} draft_begin_args;

/* Heads of rows, a warp each: normed where there is a gain, turned, rounded to bf16 and put down. */
typedef struct draft_heads_part {
    const float *in; /* [rows, heads, dim] */
    uint16_t *out;   /* the same; NULL: into the cache */
    kernel_weight gain; /* data NULL: neither norm nor rotary */
    int64_t at;      /* in the cache: offset of head 0 in a block's row */
    int32_t heads;
} draft_heads_part;

typedef struct draft_heads_args {
    draft_heads_part part[DRAFT_PARTS];
    int32_t parts, rows, dim, pairs;
    float eps, one; /* what is added to a gain */
    const float *cosine, *sine;
    /* For parts that go into the cache. */
    kernel_cache cache;
    const int64_t *slot;
    const int32_t *sequence;
} draft_heads_args;

/* What a thread block of draft_attend_bf16 takes: a block of keys, or the block's own rows; a run; all. */
enum { DRAFT_BLOCKS, DRAFT_BY_RUNS, DRAFT_WHOLE };

/* Attention of blocks. What a thread block leaves are parts, at places of a sequence's head: one for each block of keys, the own
 * rows last; or (by_runs) one for each run, and behind these the own rows.
 *     draft_attend_32, _64, _128   by the padded dim, grid (blocks, kv_heads, sequences): parts of blocks
 *     draft_attend_bf16            on Hopper, 128 dims, grid (blocks, DRAFT_RUNS or 1, kv_heads * tiles, sequences) by `mode`; of
 *                                  DRAFT_WHOLE the attention itself
 *     draft_attend_fp8_whole, _quarter, _eighth   the same of E4M3, grid (1, 4 or 8, kv_heads * tiles, sequences), tiles of
 *                                  DRAFT_FP8_WIDE or DRAFT_FP8_NARROW queries: the attention itself
 *     draft_fold                   grid (tiles of 16 queries * dim / 8, kv_heads, sequences): attention of parts of blocks
 *     draft_fold_runs              the same, dim / 8 divided by warps of a block and rounded up: of parts of runs
 * Parts lie as draft.cuh has them. */
typedef struct draft_attend_args {
    const draft_sequence *sequence; /* of the launch */
    kernel_cache cache;
    int64_t at; /* offset of the layer's head 0 in a block's row */
    const int32_t *table; /* [sequences, blocks] the blocks of the cache from first_block on */
    int32_t stride, heads, kv_heads, dim, window;
    float scale; /* of scores, in powers of two */
    const uint16_t *q;         /* of the launch, [rows, heads, dim] bf16 */
    const uint16_t *own_k, *own_v; /* [rows, kv_heads, dim] bf16 */
    int32_t blocks, places, queries; /* most of a sequence, queries in whole tiles: strides of the table and of parts */
    float *part_state;         /* [sequences, kv_heads, places, queries, DRAFT_PART_STATE] */
    float *part_out;           /* [sequences, kv_heads, places, queries, dim] */
    uint16_t *attention;       /* [rows, heads, dim] bf16 */
    int32_t mode, tiles;       /* on Hopper; of DRAFT_HOPPER_QUERIES, DRAFT_FP8_WIDE or DRAFT_FP8_NARROW queries */
} draft_attend_args;

/* Before the k-th drafts: takes the ones before; markov [sequences, rank] bf16 = markov_in of these; drafts whose confidence is
 * below the threshold end. Grid (sequences). */
typedef struct draft_markov_args {
    const draft_sequence *sequence;
    draft_state *state;
    kernel_weight markov_in, confidence, confidence_bias;
    uint16_t *markov;
    const float *h; /* [rows, hidden] of the slice */
    const uint64_t *best; /* [sequences, chunks] of the draft before */
    int32_t hidden, rank, stride, k, chunks;
} draft_markov_args;

/* The k-th drafts: draft_pick, grid (chunks, sequences), the best of a part of the vocabulary; draft_take, grid
 * (sequences), the best of these, behind the last draft. */
typedef struct draft_pick_args {
    const draft_sequence *sequence;
    draft_state *state;
    const float *logits; /* [rows, vocab] of the slice */
    uint64_t *best;      /* [sequences, chunks] */
    int32_t vocab, chunks, stride, k;
} draft_pick_args;

#endif
