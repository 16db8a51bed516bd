/* Parameters of kernels/experts.cu and kernels/experts_plain.cu, which work on up to `count` rows of a step. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_H
#define HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_H

#include "backend/cuda/kernels/args.h"

enum {
    EXPERTS_TILE = 16,  /* outputs of a tile, which is also a group of the quantiser behind gate and up */
    EXPERTS_CHUNK = 256, /* inputs that a stage of the ring holds */
    EXPERTS_STAGES = 4,
    EXPERTS_STAGE_BYTES = 2 * EXPERTS_TILE * (EXPERTS_CHUNK / 2 + EXPERTS_CHUNK / 16), /* two tiles */
};

/* Who goes where. Member row * per_token + place stands for a row at one of its experts. */
typedef struct experts_lists {
    int32_t experts, per_token;
    int32_t capacity;  /* members of an expert that there is room for: the rows */
    int32_t *count;    /* [experts] */
    int32_t *members;  /* [experts, capacity], ascending */
} experts_lists;

/* One block an expert. */
typedef struct experts_plan_args {
    experts_lists lists;
    int32_t count;
    const int32_t *sequence; /* [count], negative: padding, which goes nowhere */
    const int32_t *routes;   /* [count, per_token] */
} experts_plan_args;

/* One block a row. */
typedef struct experts_in_args {
    int32_t hidden;
    int32_t quantise; /* to NVFP4 and back */
    int32_t woven;    /* elements in the order of e2m1_pairs: 0 4 1 5 2 6 3 7 of every eight */
    const float *h;   /* [count, hidden] bf16 values */
    uint16_t *out;    /* [count, hidden] bf16 */
    float *factor;    /* [count], of the quantiser; else untouched */
} experts_in_args;

/* All experts' matrices of one kind, one behind the other. */
typedef struct experts_weight {
    kernel_weight first; /* expert 0 */
    int64_t bytes, scale_bytes; /* from one expert to the next */
    const float *factors; /* [experts] */
} experts_weight;

typedef struct experts_glu_args {
    experts_lists lists;
    experts_weight gate, up;
    const uint16_t *in;      /* [count, hidden] bf16 */
    const float *row_factor; /* [count] of quantised inputs; NULL: z is not quantised either */
    float alpha, limit;
    uint16_t *z; /* [count * per_token, width] bf16, if quantised decoded and times 16; the order as in `in` */
} experts_glu_args;

typedef struct experts_down_args {
    experts_lists lists;
    experts_weight down;
    const uint16_t *z; /* [count * per_token, width] */
    float factor;      /* of quantised z, or 1 */
    float *y;          /* [count * per_token, hidden] */
} experts_down_args;

/* One thread a group of 16. */
typedef struct experts_requantise_args {
    int64_t groups;
    uint16_t *z; /* [groups, 16] bf16, becomes decoded and times 16 */
} experts_requantise_args;

/* Grid: 256 columns, rows. */
typedef struct experts_combine_args {
    int32_t hidden, per_token;
    float scaling;
    const int32_t *sequence; /* [count] */
    const int32_t *routes;   /* [count, per_token] */
    const float *weights;    /* [count, per_token] */
    const float *y;          /* [count * per_token, hidden] */
    const float *shared;     /* [count, hidden] or NULL */
    float *x;                /* [count, hidden] */
} experts_combine_args;

#endif
