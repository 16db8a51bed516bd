/*
 * Projections of the cpu backend.
 *
 * At open a weight [N, K] is copied into groups of 32 outputs with K outside (products.h), in as many bits as its own
 * format takes (K is padded to whole units); f16 becomes f32. With few rows a product walks through a group once, the
 * sums in registers. With more it expands K_CHUNK columns of a group into a buffer that stays in the first-level cache
 * and serves up to TILE_ROWS rows.
 *
 * Numerics: see products.h and docs/numerics.md. One output is one chain from 0; with eight slices the slices of K are
 * chains of their own, folded ((0+1)+(2+3))+((4+5)+(6+7)). The outer factor of NVFP4 multiplies (or divides) the
 * finished sum, where weight_row applies it to every weight: the two differ by rounding alone.
 */
#ifndef HAYATE_BACKEND_CPU_LINEAR_H
#define HAYATE_BACKEND_CPU_LINEAR_H

#include "backend/cpu/products.h"
#include "base/threads.h"
#include "checkpoint/tensor.h"

enum {
    MAX_GROUPS = 8,  /* of one product */
    TILE_ROWS = 128, /* rows that share an expanded chunk */
    K_SLICES = 8,
    PACK_ROWS = GROUP, /* rows that are packed together */
};

typedef struct cpu_linear {
    weight_format format;
    int64_t rows, cols;
    int64_t groups; /* ceil(rows / 32); missing rows are zeros */
    size_t group_bytes;
    size_t stride; /* from a group to the next one */
    uint8_t *data; /* [groups, stride], owned unless it `shares`; lines are aligned */
    bool shares;   /* the memory of the weight before it, with whose groups its own alternate */
    float factor;  /* NVFP4: the finished sum is multiplied with it, or ... */
    bool divides;  /* ... divided by it */
} cpu_linear;

/* Everything of a packed weight but its memory. WEIGHT_NONE gives an empty struct. HY_UNSUPPORTED: columns that the
 * format cannot hold, named by `what`. */
hy_status cpu_linear_shape(const weight *w, const char *what, cpu_linear *linear, hy_error *err);
size_t cpu_linear_bytes(const cpu_linear *linear); /* that `data` must have */
/* Packs rows [first, first + part->rows) of a weight, which `part` holds alone; first is a multiple of PACK_ROWS, and so
 * is their number but at the end of the weight. False: a code or a scale is NaN, a scale of NVFP4 negative or one of
 * MXFP8 above 2^119. */
bool cpu_linear_pack_rows(const weight *part, int64_t first, cpu_linear *linear);
/* Shape, memory and all rows, on the pool. Pages of the maps `files` are let go as they have been packed. HY_BAD_MODEL:
 * weights that are no numbers. */
hy_status cpu_linear_pack(const weight *w, const char *what, threads *pool, const weight_file *files, size_t file_count,
                          cpu_linear *linear, hy_error *err);
/* Two weights whose groups are multiplied in turn, gate and up: where they have one shape, their groups alternate in one
 * memory, so that who reads both reads on. Otherwise as two calls. `names` are what errors call them. */
hy_status cpu_linear_pack_pair(const weight *const w[2], const char *const names[2], threads *pool, const weight_file *files,
                               size_t file_count, cpu_linear *const linear[2], hy_error *err);
void cpu_linear_free(cpu_linear *linear);

/* 32 outputs of a weight, as an operand of a product. */
typedef struct cpu_group {
    const cpu_linear *w;
    int64_t group;
} cpu_group;

/* Prefetches the beginning of a group that will be multiplied with soon. */
void cpu_group_ask(const cpu_group *group);

/* What one worker needs for a product. */
typedef struct cpu_scratch {
    float *expanded; /* [K_CHUNK][32] */
    uint32_t *pairs; /* [K_CHUNK / 2][32] weights, then [TILE_ROWS][K_CHUNK / 2] inputs; or few rows' inputs alone */
    float *sums;     /* [K_SLICES][MAX_GROUPS][TILE_ROWS][32] */
} cpu_scratch;

enum {
    SCRATCH_EXPANDED = K_CHUNK * GROUP, /* elements of four bytes */
    SCRATCH_PAIRS = FEW_ROWS * (8192 / 2 + LANES), /* eight rows of 8,192 columns; more than the chunks of TILE_ROWS */
    SCRATCH_SUMS = K_SLICES * MAX_GROUPS * TILE_ROWS * GROUP,
};
_Static_assert(SCRATCH_PAIRS >= K_CHUNK / 2 * (GROUP + TILE_ROWS), "a chunk of weights and of all rows' inputs");

/*
 * The products of `rows` (up to TILE_ROWS) inputs x[r] [K], bf16 values (any for f32 weights), with up to MAX_GROUPS
 * groups of the same K and format, into work->sums [groups][rows][32], which is also returned.
 */
const float *cpu_multiply(const cpu_products *products, const cpu_scratch *work, const cpu_group *group, int groups,
                          const float *const *x, int rows, bool sliced);
/* The same for 4-bit inputs x[r] [K / 16] and NVFP4 groups. The beginning of `next` (NULL: of what lies behind the last
 * group) is asked for meanwhile. */
const float *cpu_multiply_block4(const cpu_products *products, const cpu_scratch *work, const cpu_group *group,
                                 int groups, const cpu_block4 *const *x, int rows, const cpu_group *next);

#endif
