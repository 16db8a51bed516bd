/* Attention and block scores of many rows on warpgroups: see prefill_rows.cu, prefill_blocks.cu and prefill_index.cu.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_PREFILL_H
#define HAYATE_BACKEND_CUDA_KERNELS_PREFILL_H

#include "backend/cuda/kernels/args.h"

enum {
    PREFILL_DIM = 128,         /* of heads and index heads: there are no kernels for others */
    PREFILL_HEADS = 16,        /* query heads of a row that share a block */
    PREFILL_ROWS = 8,          /* rows of the step that share a decoded block: of an attention tile */
    PREFILL_TOP = 16,          /* most blocks of a list */
    PREFILL_THREADS = 384,     /* two warpgroups that multiply, one that decodes */
    PREFILL_STAGES = 3,        /* decoded blocks of attention, keys and values */
    PREFILL_CONTROL = 3072,    /* bytes of shared memory behind attention's tiles */
    PREFILL_WAVE = 256,        /* rows of a list of prefill_blocks: of one KV head */
    PREFILL_ALIVE = 3,         /* lists whose partials there is room for: 34 MB each */
    PREFILL_LISTS = 512,       /* most of one inversion */
    PREFILL_ITEM = 64,         /* rows that a thread block takes with a block, at most */
    PREFILL_RING = 2,          /* stages of prefill_blocks, keys and values */
    PREFILL_BLOCKS_THREADS = 512, /* two warpgroups that multiply, one that decodes, one that folds */
    PREFILL_BLOCKS_CONTROL = 8192, /* bytes of shared memory behind their tiles */
    PREFILL_RUNS = 32,         /* runs of rows of one sequence in one inversion */
    PREFILL_KEYS_LEAST = 2048, /* blocks of its runs, if there is no longer sequence */
    PREFILL_LIST_THREADS = 512,
    PREFILL_PARTIAL = 2 * PREFILL_HEADS + PREFILL_HEADS * PREFILL_DIM, /* floats */
    PREFILL_PACKED = 20480, /* bytes of a packed block of a KV head */
    PREFILL_PACK_THREADS = 256,
    PREFILL_PAIRS_THREADS = 64,
    PREFILL_PAIRS_BLOCKS = 6, /* thread blocks of a multiprocessor */
    PREFILL_PAIRS_SHARED = 24768,
    PREFILL_COLUMNS = 256, /* index heads of rows that share a decoded block */
    PREFILL_KEYS = 4,      /* stages of decoded index keys */
    PREFILL_INDEX_CONTROL = 1024,
};

/* Kernels prefill_rows_FORMAT: rows in tiles of PREFILL_ROWS as the step has them, one KV head and 16 of its query
 * heads each. Units are numbered tiles first; a thread block takes every gridDim.x-th. */
typedef struct prefill_rows_args {
    kernel_rows rows;
    kernel_cache cache;
    const float *q;        /* [T, heads, 128] bf16 values */
    const int32_t *blocks; /* [T, index_heads, index_top] ascending, -1 last; NULL: every visible block */
    float *attention;      /* [T, heads, 128] */
    uint16_t *attention_bf16;
    int64_t layer_offset;
    int32_t heads, kv_heads, head_tiles, index_heads, index_top;
    int32_t units; /* tiles * kv_heads * head_tiles */
    float scale;   /* as attend_args has them */
    float value_scale;
} prefill_rows_args;

/* A block and rows of a list that take it: takers `first` .. `first + count - 1` of the list. */
typedef struct prefill_item {
    int32_t block, cached; /* of the sequence, of the cache */
    int32_t first, count;
} prefill_item;

/* A taker: row of the wave, place of the block in the row's list, tokens of it that the row sees. */
#define PREFILL_TAKER(row, place, tokens) ((uint32_t)(row) | (uint32_t)(place) << 16 | (uint32_t)(tokens) << 24)

/*
 * The lists of rows [first, first + count) the other way round: which rows take a block. Waves are PREFILL_WAVE rows
 * each; list `head * waves + wave` is what the rows of a wave take of a KV head. A key is a block that the rows of a run
 * may take: run i has keys run_key[i] + block of the sequence.
 */
typedef struct prefill_lists {
    kernel_rows rows;
    const int32_t *blocks; /* [T, heads, top] ascending, -1 last */
    uint32_t *takes;       /* [lists, keys, PREFILL_WAVE / 32] bit r: row r of the wave takes the block */
    uint32_t *counts;      /* [lists, keys] how many do */
    uint32_t *progress;    /* [2 + 2 * lists] items drawn, rows drawn; of a list: partials that are there, rows folded */
    uint32_t *starts;      /* [lists, keys] the first of them among the takers */
    prefill_item *items;   /* [lists, PREFILL_WAVE * top] ascending keys */
    uint32_t *takers;      /* [lists, PREFILL_WAVE * top] ascending keys, then rows */
    int32_t *totals;       /* [lists, 2] items, takers */
    uint32_t *alike;       /* [2] places of lists in all, and those whose block the row before takes too: counted on */
    int32_t heads, top, waves;
    int32_t first, count, keys, runs;
    int32_t run_row[PREFILL_RUNS], run_key[PREFILL_RUNS]; /* of the first one; the rows reach to the next run */
} prefill_lists;

/* Kernels prefill_queries, grid: any, and prefill_blocks_FORMAT, grid: any, of KV heads with at most 16 query heads. A
 * partial is float maximum[16], sum[16], out[16 tiles of 8 dims][32 lanes][4], as a warp has it. */
typedef struct prefill_blocks_args {
    prefill_lists lists;
    kernel_cache cache;
    const float *q;  /* [T, heads, 128] bf16 values */
    float *partials; /* [PREFILL_ALIVE, PREFILL_WAVE, top, PREFILL_PARTIAL] */
    float *attention;
    uint16_t *attention_bf16; /* holds the queries before */
    int64_t layer_offset;
    int32_t heads, per_group; /* query heads; of a KV head */
    float scale, value_scale;
} prefill_blocks_args;

/* Kernels prefill_pack, grid: keys, KV heads, and prefill_pairs, grid: rows, KV heads, each with at most 16 query heads. Of
 * the lists rows, blocks, keys and runs, heads and top. */
typedef struct prefill_pairs_args {
    prefill_lists lists;
    kernel_cache cache;
    const float *q;  /* [T, heads, 128] bf16 values */
    uint8_t *packed; /* [KV heads of the launch, keys, PREFILL_PACKED] */
    float *attention;
    uint16_t *attention_bf16;
    int64_t layer_offset;
    int32_t heads, per_group, group; /* query heads; of a KV head; the first KV head */
    float scale, value_scale;
} prefill_pairs_args;

/* Kernels prefill_index_FORMAT: scores of blocks [first, first + count) of every row. Grid: tiles of rows, spans of
 * `run` blocks. */
typedef struct prefill_index_args {
    kernel_rows rows;
    kernel_cache cache;
    const float *q; /* [T, heads, 128] bf16 values */
    float *scores;  /* [T, heads, max_blocks] */
    int64_t layer_offset;
    int32_t heads, max_blocks;
    int32_t first, count, run;
    int32_t tile;  /* rows of one: PREFILL_COLUMNS / heads */
    int32_t least; /* rows that see no more blocks than this need no scores */
    int32_t fill;  /* -inf for blocks that a row does not see */
} prefill_index_args;

/* Dynamic shared memory, bytes, multiples of 1024. */
static inline int32_t prefill_rows_shared(void)
{
    int32_t page = 2 * CUDA_BLOCK_TOKENS * PREFILL_DIM * 2, queries = PREFILL_ROWS * PREFILL_HEADS * PREFILL_DIM * 2;
    return PREFILL_STAGES * page + queries + PREFILL_CONTROL;
}
static inline int32_t prefill_blocks_shared(void)
{
    int32_t page = 2 * CUDA_BLOCK_TOKENS * PREFILL_DIM * 2, queries = PREFILL_ROWS * PREFILL_HEADS * PREFILL_DIM * 2;
    return PREFILL_RING * page + 2 * queries + PREFILL_BLOCKS_CONTROL;
}
static inline int32_t prefill_index_shared(void)
{
    return (PREFILL_KEYS * CUDA_BLOCK_TOKENS + PREFILL_COLUMNS) * PREFILL_DIM * 2 + PREFILL_INDEX_CONTROL;
}

#endif
