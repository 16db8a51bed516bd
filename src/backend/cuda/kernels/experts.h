/* Parameters of kernels/experts.cu and kernels/experts_plain.cu, which work on up to `count` rows of a step. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_H
#define HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_H

#include "backend/cuda/kernels/args.h"

enum {
    EXPERTS_TILE = 16,  /* outputs of a tile, which is also a group of the quantiser behind gate and up */
    EXPERTS_CHUNK = 256, /* inputs that a stage of the ring holds */
    EXPERTS_STAGES = 4,
    EXPERTS_RING_BYTES = EXPERTS_STAGES * EXPERTS_TILE * (EXPERTS_CHUNK / 2 + EXPERTS_CHUNK / 16), /* of a tile */
    EXPERTS_FEW = 64,   /* members that experts_down_few takes at most */
    EXPERTS_GLU_BLOCK = 1024,
};

/* Where row `row` of 16 lies in a block of 32 inputs, and the row that lies there. */
#define EXPERTS_PLACE(row, block) ((row) ^ (block) % 4 * 2)

/*
 * How experts.cu has the weights [rows, cols], in place of the file's order, rows padded to tiles of 16:
 *     codes   [tile][cols / 32][16 places] quads of 32 inputs, row r at place EXPERTS_PLACE(r, block): eight quads of two rows
 *             and four blocks, which lanes read at once, then lie at eight places of shared memory's banks where a chunk is
 *             copied as it lies; a word has eight codes, in each half elements 0, 1, 2, 3 of
 *             s eem as bits s0 s3 s2 s1 eem3 eem0 eem1 eem2 from the top, so that a code moves to bf16's bits in few steps
 *     scales  [tile][cols / 32][16 rows][2], positive: a negative one turns the signs of its codes
 * A block a tile, an expert; shared memory for 9 bytes an input.
 */
typedef struct experts_prepare_args {
    uint8_t *data, *scales; /* of expert 0 */
    int64_t bytes, scale_bytes;
    int32_t cols;
    int32_t *wrong; /* becomes the number of an expert that has a NaN, + 1 */
} experts_prepare_args;

/* Who goes where. Member row * per_token + place stands for a row at one of its experts. */
typedef struct experts_lists {
    int32_t experts, per_token;
    int32_t capacity;  /* members of an expert that there is room for: the rows */
    int32_t *count;    /* [experts] */
    int32_t *members;  /* [experts, capacity], ascending */
    int32_t *position; /* [rows * per_token] of a member in its expert's, or NULL */
} experts_lists;

typedef struct experts_plan_args {
    experts_lists lists;
    int32_t count;
    const int32_t *sequence; /* [count], negative: padding, which goes nowhere */
    const int32_t *routes;   /* [count, per_token] */
} experts_plan_args;

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

/* z = SwiGLU of the shared expert. */
typedef struct experts_shared_args {
    int64_t total; /* count * width, or 0 */
    const float *gate, *up;
    float alpha, limit;
    uint16_t *z;
} experts_shared_args;

/* Blocks: one an expert for the lists, one a row for the inputs, one for every EXPERTS_GLU_BLOCK values of the shared
 * expert. */
typedef struct experts_begin_args {
    experts_plan_args plan;
    experts_in_args in;
    experts_shared_args shared;
} experts_begin_args;

/* x += scaling * sum w y + shared. */
typedef struct experts_sum_args {
    int32_t count, hidden, per_token;
    float scaling;
    const int32_t *sequence; /* [count] */
    const int32_t *routes;   /* [count, per_token] */
    const float *weights;    /* [count, per_token] */
    const float *shared;     /* [count, hidden] or NULL */
    float *x;                /* [count, hidden] */
} experts_sum_args;

typedef struct experts_down_args {
    experts_lists lists;
    experts_weight down;
    const uint16_t *z; /* [count * per_token, width] */
    float factor;      /* of quantised z, or 1 */
    float *y;          /* [count * per_token, hidden] */
    experts_sum_args sum; /* of experts_down_few, which has no y */
} experts_down_args;

/* One thread a group of 16. */
typedef struct experts_requantise_args {
    int64_t groups;
    uint16_t *z; /* [groups, 16] bf16, becomes decoded and times 16 */
} experts_requantise_args;

/* Grid: 256 columns, rows. */
typedef struct experts_combine_args {
    experts_sum_args sum;
    const float *y; /* [count * per_token, hidden] */
} experts_combine_args;

#endif
