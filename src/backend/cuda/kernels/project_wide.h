/* Parameters of the kernels of project_wide.cu and qkv_wide.cu: projections of so many rows that weights are expanded first. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_PROJECT_WIDE_H
#define HAYATE_BACKEND_CUDA_KERNELS_PROJECT_WIDE_H

#include "backend/cuda/kernels/linear.h"

enum {
    WIDE_OUTPUTS = 128, /* of a tile; of GLU half of them gate's and half up's */
    WIDE_GROUPS = 2,    /* warpgroups that multiply, WIDE_LINES rows each */
    WIDE_LINES = 64,
    WIDE_TILE = WIDE_GROUPS * WIDE_LINES, /* rows */
    WIDE_BLOCK = (WIDE_GROUPS + 1) * 128,
    WIDE_K = 64,        /* inputs of a slab: a line of 128 bytes */
    WIDE_CLUSTER = 2,   /* blocks of the same rows, of which each brings its share to both */
    WIDE_ACROSS = 2048, /* rows whose tiles share the weights of an output tile while they are in the second-level cache */
    WIDE_OPEN = WIDE_TILE * WIDE_OUTPUTS * 4, /* bytes of a tile's open sums */
    WIDE_STAGES = 5,
    WIDE_STAGE = (WIDE_TILE + WIDE_OUTPUTS) * WIDE_K * 2,
    WIDE_BARRIERS = 1024,
    WIDE_SHARED = WIDE_STAGES * WIDE_STAGE + WIDE_OPEN + WIDE_BARRIERS,
    WIDE_MORE = 4 * WIDE_OUTPUTS * 4, /* of qkv_wide: gains */
    WIDE_EXPAND_BLOCK = 256,
    WIDE_ROWS = 1024,       /* fewer are not worth expanding weights for */
    WIDE_ROWS_TESTED = 192, /* of whoever wants them everywhere */
};

/* Rows in blocks of WIDE_LINES [blocks][cols / WIDE_K][WIDE_LINES lines of 128 bytes], in the order of k that weights of their
 * format are expanded in: see project_wide.cuh. A thread of the grid for each 16 bytes. */
typedef struct wide_rows_args {
    const uint16_t *in;  /* bf16 [.., cols] */
    const int32_t *rows; /* [count] rows of `in`, or NULL: row r is row r */
    int32_t count, cols;
    uint16_t *packed; /* rows behind `count` are zeros */
} wide_rows_args;

/* Tiles first_tile .. first_tile + tiles - 1 of the parts' weights, whose part[i].first counts tiles, or of `glu` of both:
 * [tiles][cols / WIDE_K][WIDE_OUTPUTS lines of 128 bytes]. A thread of the grid for each 16 bytes of codes. */
typedef struct wide_expand_args {
    project_args of;
    int32_t glu, first_tile, tiles;
    uint16_t *expanded;
} wide_expand_args;

/* Grid (any, at most one a multiprocessor): cluster c takes tiles c, c + clusters, ... of those that are expanded. */
typedef struct wide_args {
    project_args of; /* `in` is packed; `rows` is not looked at */
    int32_t row_tiles, first_tile, tiles;
    const uint16_t *expanded;
} wide_args;

#endif
