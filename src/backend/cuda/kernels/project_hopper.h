/* Parameters of the kernels of project_hopper.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_PROJECT_HOPPER_H
#define HAYATE_BACKEND_CUDA_KERNELS_PROJECT_HOPPER_H

#include "backend/cuda/kernels/linear.h"

enum {
    HOPPER_OUTPUTS = 128, /* of a tile; of GLU half of them gate's and half up's */
    HOPPER_ROWS = 128,
    HOPPER_BLOCK = 384, /* threads: two warpgroups that multiply, one that loads */
    HOPPER_BLOCKS = 160, /* at most of a launch */
    HOPPER_CLUSTER = 2,  /* blocks, each of which brings its share of their rows to all of them */
    HOPPER_GROUP = 16,  /* tiles of rows that share the weights of an output tile while they are in the second-level cache */
    /* Inputs of a slab, and stages of slabs; codes are in lines of 64 bytes. */
    HOPPER_K_BF16 = 64,
    HOPPER_K_MXFP8 = 128,
    HOPPER_K_NVFP4 = 128,
    HOPPER_STAGES_BF16 = 5,
    HOPPER_STAGES_MXFP8 = 3,
    HOPPER_STAGES_NVFP4 = 3,
    /* Lines of 16 bytes of scales, so many at once that none is overwritten while a stage may need it. */
    HOPPER_SLOTS_MXFP8 = 2,
    HOPPER_SLOTS_NVFP4 = 3,
    HOPPER_OPEN = HOPPER_OUTPUTS * HOPPER_ROWS * 4, /* bytes of a tile's open sums */
    HOPPER_BARRIERS = 1024,
    HOPPER_SHARED_BF16 = HOPPER_OPEN + HOPPER_BARRIERS + HOPPER_STAGES_BF16 * (HOPPER_ROWS * 128 + HOPPER_OUTPUTS * 128),
    HOPPER_SHARED_MXFP8 = HOPPER_OPEN + HOPPER_BARRIERS + HOPPER_STAGES_MXFP8 * (HOPPER_ROWS * 256 + HOPPER_OUTPUTS * 128) +
                          HOPPER_SLOTS_MXFP8 * HOPPER_OUTPUTS * 16,
    HOPPER_SHARED_NVFP4 = HOPPER_OPEN + HOPPER_BARRIERS + HOPPER_STAGES_NVFP4 * (HOPPER_ROWS * 256 + HOPPER_OUTPUTS * 64) +
                          HOPPER_SLOTS_NVFP4 * HOPPER_OUTPUTS * 16,
    PACK_BLOCK = 256,
};

/* Rows as the tiles want them, packed [row tiles][cols / 64][HOPPER_ROWS lines of 128 bytes]: see project_hopper.cuh. A thread of
 * the grid for each 16 bytes. */
typedef struct pack_args {
    const uint16_t *in;  /* bf16 [.., cols] */
    const int32_t *rows; /* [count] rows of `in`, or NULL: row r is row r */
    int32_t count, cols;
    uint16_t *packed; /* rows behind `count` are zeros */
} pack_args;

/* Grid (any, at most one a multiprocessor): block b takes tiles b, b + grid, ... */
typedef struct project_hopper_args {
    project_args of;  /* `in` is packed; part[i].first counts output tiles; `rows` is not looked at */
    int32_t row_tiles, output_tiles;
    float *open; /* [grid][HOPPER_OPEN bytes]: sums of slices 0 to 3 */
} project_hopper_args;

#endif
