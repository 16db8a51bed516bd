/*
 * Parameters of the kernels that choose tokens.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_SAMPLE_H
#define HAYATE_BACKEND_CUDA_KERNELS_SAMPLE_H

#include "backend/cuda/kernels/args.h"

/* A place in the streams of random numbers (base/random.h) and what is asked of a row there. */
typedef struct draw_stream {
    uint64_t seed;
    uint32_t position, choice, anchor, purpose;
    float temperature;
    int32_t greedy; /* the largest, without noise; temperature is not looked at */
} draw_stream;

#endif
