/* Parameters of the kernels of norm.cu and of project_*.cu. */
#ifndef HAYATE_BACKEND_CUDA_LINEAR_H
#define HAYATE_BACKEND_CUDA_LINEAR_H

#include "backend/cuda/kernels/args.h"

/* (min(u, limit) + 1) * min(g, limit) * sigmoid(alpha * g), u from -limit on; plain: g * sigmoid(g) * u. */
typedef struct swiglu_law {
    float alpha, limit;
    int32_t plain;
} swiglu_law;

/* ---- project_*.cu ------------------------------------------------------------------------------------------------ */

enum {
    PROJECT_SLICES = 8, /* of K: docs/numerics.md */
    PROJECT_PARTS = 6,  /* weights of one launch */
    PROJECT_BLOCK = PROJECT_SLICES * CUDA_WARP,
    /* The tile of project_many.cuh, and the bytes of its stages: codes, and rows in lines of 4, 9 or 18 units. */
    MANY_OUTPUTS = 128,
    MANY_ROWS = 128,
    MANY_STAGES = 3,
    MANY_SHARED_BF16 = MANY_STAGES * (MANY_OUTPUTS * 64 + MANY_ROWS * 4 * 16),
    MANY_SHARED_MXFP8 = MANY_STAGES * (MANY_OUTPUTS * 64 + MANY_ROWS * 9 * 16),
    MANY_SHARED_NVFP4 = MANY_STAGES * (MANY_OUTPUTS * 64 + MANY_ROWS * 18 * 16),
};

/* ---- project_few_*.cu: rings of stages and two FEW_SUMS a team, then the rows ------------------------------------------ */

enum {
    FEW_ROWS = 8,
    FEW_TILE = 16 * FEW_ROWS, /* products */
    FEW_LINE = 128,           /* bytes of a weight's row in a stage */
    FEW_STAGE_BF16 = 16 * FEW_LINE,
    FEW_STAGE_MXFP8 = 16 * FEW_LINE + 16 * 4, /* a word of scales a row */
    FEW_GAP_BF16 = 32,                        /* numbers behind a row in shared memory, against bank conflicts */
    FEW_GAP_MXFP8 = 8,
    FEW_SUMS = PROJECT_SLICES * FEW_TILE * 4, /* bytes */
};

/* One weight and where its products go: out[r][o] (=, or += with `add`) for row r and output o < w.rows. */
typedef struct project_part {
    kernel_weight w;
    float *out;
    int64_t stride; /* of a row of out, in numbers */
    int32_t add;
    int32_t first; /* its first block, or tile; those of a part lie one behind the other */
} project_part;

typedef struct project_args {
    project_part part[PROJECT_PARTS]; /* of one format and one number of columns */
    int32_t parts;
    int32_t count;       /* rows */
    const uint16_t *in;  /* bf16 [.., cols] */
    const int32_t *rows; /* [count] rows of `in`, or NULL: row r is row r */
    /* Of the glu_ kernels: part 0 is gate, part 1 is up, and what is stored is bf16 [count, w.rows] of their SwiGLU. */
    swiglu_law law;
    uint16_t *z;
} project_args;

/* ---- project_slices_*.cu, project_fold.cu ------------------------------------------------------------------------------ */

enum {
    SLICES_ROWS = 64,    /* at most of a launch */
    SLICES_OUTPUTS = 64, /* of a tile, a warpgroup's */
    SLICES_GROUPS = 4,   /* warpgroups of a block */
    SLICES_BLOCK = SLICES_GROUPS * 128,
    SLICES_STAGES = 3, /* those of project_few */
    FOLD_WARPS = 8,
};

typedef struct project_slices_args {
    project_args of; /* part.first counts tiles */
    int32_t tiles;
    float *sums; /* [tiles][4 warps][8 slices][kernel's rows / 8][32 lanes][4] */
} project_slices_args;

/* ---- norm.cu ------------------------------------------------------------------------------------------------------- */

enum { NORM_BLOCK = 512 };

typedef struct norm_args {
    const float *x; /* [.., hidden] */
    kernel_weight gain;
    float base, eps; /* the gain is base + its value */
    int32_t hidden;
    const int32_t *rows; /* row of x that goes to row blockIdx.x, or NULL: the same */
    uint16_t *out;       /* bf16 [gridDim.x, hidden]; with `values` in blocks of rows as project_wide.h has them */
    int32_t values;      /* 0, or fragment<>::VALUES of the weights that multiply them */
    float *out_float;    /* the same values, or NULL */
} norm_args;

enum { SWIGLU_BLOCK = 256 };

/* Element i of [total], blockIdx.x * SWIGLU_BLOCK onwards. */
typedef struct swiglu_args {
    const float *gate, *up;
    int64_t total;
    swiglu_law law;
    uint16_t *z;
} swiglu_args;

enum { EMBED_BLOCK = 256 };

typedef struct embed_args {
    kernel_weight table;
    const int32_t *token;    /* [gridDim.x] */
    const int32_t *sequence; /* [gridDim.x], below 0: zeros; or NULL */
    float *x;                /* [gridDim.x, table.cols] */
} embed_args;

#endif
