/* Kernels over the rows of a step that belong to no operation. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_ROWS_H
#define HAYATE_BACKEND_CUDA_KERNELS_ROWS_H

#include <stdint.h>

/* One thread an angle. */
typedef struct rotary_args {
    const int32_t *position; /* [count] */
    const float *frequency;  /* [pairs] */
    float *cosine, *sine;    /* [count, pairs] */
    int32_t count, pairs;
} rotary_args;

#endif
