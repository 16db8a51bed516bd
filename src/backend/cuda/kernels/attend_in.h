/* What follows the projections of attend_in: see attend_in.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_ATTEND_IN_H
#define HAYATE_BACKEND_CUDA_KERNELS_ATTEND_IN_H

#include "backend/cuda/kernels/args.h"

enum { ATTEND_IN_WARPS = 4 };

/* Kernel attend_in: ATTEND_IN_WARPS warps a block, a warp for each of rows.count * jobs vectors. */
typedef struct attend_in_args {
    kernel_rows rows;
    kernel_cache cache;
    float *q;        /* [T, heads, head_dim] projected; becomes what attend takes */
    const float *k;  /* [T, kv_heads, head_dim] */
    const float *v;
    float *index_q;  /* [T, index_heads, index_dim] as q */
    const float *index_k; /* [T, index_dim] */
    kernel_weight q_gain, k_gain, index_q_gain, index_k_gain;
    const float *cosine, *sine; /* [T, rotary_dim / 2] */
    int32_t heads, kv_heads, head_dim;
    int32_t index_heads, index_dim; /* 0 on a dense layer */
    int32_t rotary_dim;
    int32_t jobs; /* of a row: heads + 2 kv_heads, and on a sparse layer index_heads + 1 */
    int32_t query_e4m3;
    float eps, k_scale, v_scale;
    int64_t main_offset, index_offset; /* of the layer in a cache row */
} attend_in_args;

#endif
