/* Parameters of kernels/route.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_ROUTE_H
#define HAYATE_BACKEND_CUDA_KERNELS_ROUTE_H

#include "backend/cuda/kernels/args.h"

/* One warp a row. */
typedef struct route_choose_args {
    int32_t count, experts, per_token;
    int32_t replay_flag;  /* ROW_REPLAY_ROUTES */
    float *scores;        /* [count, experts] router logits; their sigmoids afterwards */
    const float *bias;    /* [experts] */
    const uint8_t *flags; /* [count] ROW_ bits */
    const int32_t *replay; /* [count, per_token] of the layer, or NULL */
    int32_t *routes;      /* [count, per_token] */
    float *weights;       /* [count, per_token] */
} route_choose_args;

enum { ROUTE_MANY_OUTPUTS = 8, ROUTE_MANY_ROWS = 16, ROUTE_MANY_STAGES = 3, ROUTE_MANY_SHARED = 8 * ROUTE_MANY_STAGES * 8192 };

/* Of a thread block of route_wide, and of a warp of it: rows, outputs. */
enum {
    ROUTE_WIDE = 32,
    ROUTE_WIDE_ROWS = 8,
    ROUTE_WIDE_OUTPUTS = 16,
    ROUTE_WIDE_STAGES = 3,
    ROUTE_WIDE_SHARED = ROUTE_WIDE_STAGES * 24576 + 8 * 8704,
};

/* Of route_many and route_wide. Any grid, at most a block a multiprocessor, of PROJECT_BLOCK threads. */
typedef struct route_many_args {
    int32_t count;
    int32_t cols;         /* a multiple of 8 */
    int32_t experts;      /* a multiple of ROUTE_MANY_OUTPUTS, or of ROUTE_WIDE */
    const float *router;  /* [experts, cols] */
    const uint16_t *in;   /* [count, cols] bf16 */
    float *scores;        /* [count, experts] */
} route_many_args;

#endif
