/* The parameter of the kernels of qkv_hopper.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_QKV_HOPPER_H
#define HAYATE_BACKEND_CUDA_KERNELS_QKV_HOPPER_H

#include "backend/cuda/kernels/attend_in.h"
#include "backend/cuda/kernels/project_hopper.h"

/* The parts are q, k, v and, on a sparse layer, index q and index k, whose outputs nobody stores; heads have HEADS_DIM dims. */
typedef struct qkv_hopper_args {
    project_hopper_args product;
    attend_in_args in; /* q and index_q are written; k, v, index_k are not looked at */
} qkv_hopper_args;

#endif
