/* The parameter of the kernels of qkv_wide.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_QKV_WIDE_H
#define HAYATE_BACKEND_CUDA_KERNELS_QKV_WIDE_H

#include "backend/cuda/kernels/attend_in.h"
#include "backend/cuda/kernels/project_wide.h"

enum { HEADS_DIM = WIDE_OUTPUTS, HEADS_ROTARY = 64 };

/* The parts are q, k, v and, on a sparse layer, index q and index k, whose outputs nobody stores; heads have HEADS_DIM dims, of
 * which HEADS_ROTARY turn; query_e4m3 is not looked at. */
typedef struct qkv_wide_args {
    wide_args product;
    attend_in_args in; /* q and index_q are written; k, v, index_k are not looked at */
} qkv_wide_args;

#endif
