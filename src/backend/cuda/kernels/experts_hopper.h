/* What feed.c and kernels/experts_hopper.cuh agree on. The kernels' parameters are those of experts.h. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_HOPPER_H
#define HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_HOPPER_H

#include "backend/cuda/kernels/experts.h"

enum {
    EXPERTS_HOPPER_BLOCK = 384,   /* threads: two warpgroups multiply, one loads */
    EXPERTS_HOPPER_TOGETHER = 2,  /* of them have the same members; the grid is a multiple of it. Not of the kernels for few */
    EXPERTS_HOPPER_OUTPUTS = 256, /* of a tile: of down, or half of them gate's and half up's */
    EXPERTS_HOPPER_K = 128,       /* inputs of a stage */
    EXPERTS_HOPPER_EXPERTS = 512, /* at most */
    EXPERTS_HOPPER_PLACES = 16,   /* of a row at most */
    EXPERTS_HOPPER_HIDDEN = 16384, /* at most: a thread a group of 16 */
    EXPERTS_HOPPER_ROWS = 144,    /* members of a tile at most; with a cheaper kind for up to: */
    EXPERTS_HOPPER_ROWS_SOME = 96,
    /* The same of the kernels for few members an expert. */
    EXPERTS_HOPPER_ROWS_FEW = 32,
    EXPERTS_HOPPER_STAGES = 4,
    EXPERTS_HOPPER_STAGES_FEW = 7,
    /* Bytes: weights of a stage with their scales; tables: the experts' first pieces, members and their factors, barriers. */
    EXPERTS_HOPPER_WEIGHTS = EXPERTS_HOPPER_OUTPUTS * (EXPERTS_HOPPER_K / 2 + EXPERTS_HOPPER_K / 16),
    EXPERTS_HOPPER_TABLES = 8 * 1024,
    EXPERTS_HOPPER_SHARED =
        EXPERTS_HOPPER_STAGES * (EXPERTS_HOPPER_ROWS * EXPERTS_HOPPER_K * 2 + EXPERTS_HOPPER_WEIGHTS) + EXPERTS_HOPPER_TABLES,
    EXPERTS_HOPPER_SHARED_FEW =
        EXPERTS_HOPPER_STAGES_FEW * (EXPERTS_HOPPER_ROWS_FEW * EXPERTS_HOPPER_K * 2 + EXPERTS_HOPPER_WEIGHTS) +
        EXPERTS_HOPPER_TABLES,
};

/* A block a row, a thread for every 16 inputs. `in.out` has the rows of all experts, one expert behind the other, each from a
 * multiple of eight lines on; `sparse`: for the kernels for few members. */
typedef struct experts_spread_args {
    experts_in_args in;
    experts_lists lists;     /* made by experts_plan, with positions */
    const int32_t *sequence; /* [count] */
    const int32_t *routes;   /* [count, per_token] */
    int32_t sparse;
} experts_spread_args;

#endif
