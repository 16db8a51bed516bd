/* SwiGLU of one number; NaN stays NaN. */
#ifndef HAYATE_BACKEND_CUDA_SWIGLU_CUH
#define HAYATE_BACKEND_CUDA_SWIGLU_CUH

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/linear.h"

/* At least 2^-126. A NaN is not seen: who has one multiplies by it. */
DEVICE float sigmoid(float x) { return reciprocal(fminf(1.0f + expf(-x), 0x1p126f)); }

DEVICE float swiglu_of(float g, float u, const swiglu_law &law)
{
    if (law.plain) return g * sigmoid(g) * u;
    g = g > law.limit ? law.limit : g;
    u = u > law.limit ? law.limit : u < -law.limit ? -law.limit : u;
    return (u + 1) * g * sigmoid(law.alpha * g);
}

#endif
