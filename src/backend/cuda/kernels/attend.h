/* Attention over cached blocks: see attend.cu and attend_decode.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_ATTEND_H
#define HAYATE_BACKEND_CUDA_KERNELS_ATTEND_H

#include "backend/cuda/kernels/args.h"

enum {
    ATTEND_WARPS = 4,
    ATTEND_DECODE_WARPS = 4,  /* a group of attend_decode */
    ATTEND_DECODE_BLOCKS = 4, /* thread blocks of one group on a multiprocessor of sm_90 */
    ATTEND_DECODE_GROUPS = 4, /* of a thread block of attend_decode_wide */
    ATTEND_DECODE_SHARED = 4224, ATTEND_DECODE_AREA = 24064, ATTEND_DECODE_SHORT = 15872, /* bytes, see attend_decode_shared */
    ATTEND_HEADS = 16, /* query heads that share a block: rows of one MMA tile */
    ATTEND_SUMS = 8,   /* sums of weights by 16 tokens */
    ATTEND_ROWS_WARPS = 8,
    ATTEND_ROWS = 4,   /* rows of the step that share a decoded block in attend_rows_ */
    ATTEND_NVFP4 = 1024, /* what decoded NVFP4 is short of, see cache.cuh; `scale` has it */
};

/* attend_FORMAT_DIM, attend_rows_FORMAT_128 and attend_fold: grid units, count / run. And for lists of blocks of NVFP4 with 128
 * dims attend_decode: grid rows, units of a row, count / run, of which the first run is folded (`joined`); attend_decode_N and
 * attend_decode_wide_N, whose thread blocks are of several groups: grid rows * N, units of a row, in clusters of N.
 * A unit is a row, a KV head and 16 of its query heads: number (row * kv_heads + KV head) * head_tiles + tile. A partial is
 * what one block gave one unit: float maximum[16], sum[16], out[16][head_dim], maxima in powers of two. */
typedef struct attend_args {
    kernel_rows rows;
    kernel_cache cache;
    const float *q;        /* [T, heads, head_dim] bf16 values */
    const int32_t *blocks; /* [T, index_heads, index_top]; NULL: every visible block */
    float *attention;      /* [T, heads, head_dim] */
    uint16_t *attention_bf16;
    float *partials; /* [units, slots] partials, then [units] folded so far; NULL: blocks are folded where they are read */
    int64_t partial; /* attend_partial(head_dim) */
    int64_t layer_offset;
    int32_t heads, kv_heads, head_dim, head_tiles, index_heads, index_top;
    float scale;       /* log2(e) / sqrt(head_dim), the scale of an fp8 cache in it */
    float value_scale; /* of an fp8 cache */
    int32_t first, count; /* blocks [first, first + count) of each list */
    int32_t run;          /* of them a thread block takes; grid: units, count / run. attend_rows_ takes all: first is 0 */
    int32_t last;         /* the lists end in this span */
    int32_t joined;       /* the first slot has what so many blocks of the list fold to, each of the others one block: 1 but for
                           * attend_decode, which folds its first run */
    int32_t slots;        /* count - joined + 1, or more */
    int32_t group;        /* query heads of a KV head */
} attend_args;

/* Bytes of dynamic shared memory for so many rows, and floats of a partial. */
static inline int32_t attend_shared(int32_t dim, int32_t rows)
{
    int32_t row = (ATTEND_HEADS * dim + ATTEND_HEADS * CUDA_BLOCK_TOKENS) * 2 + 2 * ATTEND_SUMS * ATTEND_HEADS * 4;
    return CUDA_BLOCK_TOKENS * dim * 2 + rows * row;
}
/* Bytes of dynamic shared memory of a thread block of attend_decode: groups that take up to `run` blocks each, in clusters of so
 * many thread blocks. */
static inline int32_t attend_decode_shared(int32_t cluster, int32_t groups, int32_t run, int32_t slots)
{
    int32_t slot = ATTEND_HEADS * 8 + ATTEND_HEADS * 128 * 4 / cluster;
    return ATTEND_DECODE_SHARED + groups * (run > 1 ? ATTEND_DECODE_AREA : ATTEND_DECODE_SHORT) +
           (cluster * groups > 1 ? slots * slot : 0);
}
static inline int64_t attend_partial(int32_t dim)
{
    return 2 * ATTEND_HEADS + (int64_t)ATTEND_HEADS * dim;
}

#endif
