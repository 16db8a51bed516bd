/* Block scores and selection: see index.cu and index_decode.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_INDEX_H
#define HAYATE_BACKEND_CUDA_KERNELS_INDEX_H

#include "backend/cuda/kernels/args.h"

enum {
    INDEX_WARPS = 4,    /* of index_score; a warp takes a block */
    INDEX_COLUMNS = 64, /* index heads of rows that share a decoded block, at most */
    INDEX_TOP = 32,     /* most blocks that are selected */
    TOP_WARPS = 8,      /* of index_top and index_select, at most */
    DECODE_WARPS = 8,   /* of index_decode */
    DECODE_PIECE = 32,  /* tokens that a warp of it takes at once */
    DECODE_PIECES = 4,  /* of a block */
    DECODE_PIECE_BYTES = DECODE_PIECE * 72,
    DECODE_STAGES = 2,      /* pieces of a warp on their way, of 8 columns */
    DECODE_STAGES_WIDE = 4, /* of more */
    DECODE_RUN = 64,    /* blocks of a thread block, at most */
    DECODE_MOST = 8192, /* blocks that a row sees, at most */
    DECODE_SHARE = 256, /* parts of a block */
    DECODE_COLUMNS = 32, /* index heads of rows that share a block there, at most */
};

/* Kernels index_score_FORMAT_DIM, and index_few_FORMAT_DIM where tile * heads is at most 8. Grid: rows, spans of `run`
 * blocks. */
typedef struct index_score_args {
    kernel_rows rows;
    kernel_cache cache;
    const float *q; /* [T, heads, dim] bf16 values */
    float *scores;  /* [T, heads, max_blocks] */
    int64_t layer_offset;
    int32_t heads, max_blocks;
    int32_t first, count, run; /* blocks [first, first + count) */
    int32_t tile;              /* rows that share a block: those of a sequence between two multiples of it */
    int32_t least; /* rows that see no more blocks than this are left out */
    int32_t fill;  /* -inf for blocks that a row does not see */
} index_score_args;

/* Dynamic shared memory of index_score, bytes. */
static inline int32_t index_score_shared(int32_t dim)
{
    return INDEX_COLUMNS * dim * 2;
}

/* index_top: the best of blocks [first, first + count) of every row and head into candidates [rows, heads, top], best first,
 * 0 for none. index_select: the same into blocks, as lists. index_merge: those of `parts` candidates, `part_stride` apart.
 * A row that replays takes its list from rows.replay_blocks. Grid: rows, heads; a multiple of 32 threads, merge: 32. */
typedef struct index_top_args {
    kernel_rows rows;
    const float *scores; /* [T, heads, max_blocks] */
    uint64_t *candidates;
    int32_t *blocks; /* [T, heads, top] */
    int64_t part_stride;
    int32_t heads, top, local, max_blocks;
    int32_t first, count;
    int32_t parts;
    int32_t layer;
} index_top_args;

/* index_decode_COLUMNS, of 8, 16 and 32: scores and lists in one launch for a cache of NVFP4 with 128 dims, where every run of
 * rows of a sequence has at most COLUMNS / heads of them. Grid: rows / group, spans of `run` blocks. */
typedef struct index_decode_args {
    kernel_rows rows;
    kernel_cache cache;
    const float *q;    /* [T, heads, 128] bf16 values */
    float *scores;     /* [T, heads, max_blocks]: of the blocks that a run sees, if it sees more than `top` */
    int32_t *blocks;   /* [T, heads, top] */
    uint32_t *order;   /* [T, heads, stride] zeros, before and after, as the next */
    uint32_t *drawn;   /* [T] */
    int64_t layer_offset;
    int32_t heads, top, local, max_blocks, layer;
    int32_t stride;   /* decode_stride(max_blocks) */
    int32_t choosers; /* thread blocks of a run that choose, at most */
    int32_t group; /* rows of a thread block: one run and padding behind it; 1: a run wherever one begins */
    int32_t share; /* of a thread block, at most, in DECODE_SHARE-ths of a block; less than DECODE_RUN blocks */
} index_decode_args;

/* Words of a column that thread blocks hand over, whole quads. */
static inline int32_t decode_stride(int32_t max_blocks)
{
    return (max_blocks + 3) / 4 * 4;
}

/* Dynamic shared memory of index_decode_COLUMNS, bytes: pieces, units of scales, a ticket, queries, and the largest scores of
 * pieces. */
static inline int32_t index_decode_shared(int32_t columns, int32_t share)
{
    return DECODE_WARPS * (columns > 8 ? DECODE_STAGES_WIDE : DECODE_STAGES) * DECODE_PIECE_BYTES + 1024 + 16 + columns * 256 +
           (share / DECODE_SHARE + 1) * DECODE_PIECES * columns * 4;
}

#endif
