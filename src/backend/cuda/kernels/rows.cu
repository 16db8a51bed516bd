/*
 * rotary: cosine and sine of position * frequency_j.
 *
 * The angle is one fp32 product; its cosine and sine are taken in double and rounded once, so that they do not depend on whose
 * fp32 cosine it is. Layout: [rows][pairs], one thread an angle, 128 a block. 8 bytes are written per angle and some
 * hundred double operations done: nothing beside the projections of a step.
 */
#include <math.h>

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/rows.h"

KERNEL(rotary, rotary_args)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (int64_t)a.count * a.pairs) return;
    float angle = (float)a.position[i / a.pairs] * a.frequency[i % a.pairs];
    a.cosine[i] = (float)cos((double)angle);
    a.sine[i] = (float)sin((double)angle);
}
