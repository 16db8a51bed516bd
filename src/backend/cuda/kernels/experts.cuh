/* What the kernels of the experts share: the lists, SwiGLU, the quantisers of activations. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_CUH
#define HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_CUH

#include "backend/cuda/kernels/experts.h"
#include "backend/cuda/kernels/number.cuh"

/* Number of the n-th expert that has rows, or -1. All lanes of a warp ask together. The counts of 128 experts are asked for
 * at once: every block begins with this. */
DEVICE int32_t experts_nth(const experts_lists &lists, int32_t n, int lane)
{
    for (int32_t first = 0; first < lists.experts; first += 4 * CUDA_WARP) {
        int32_t count[4];
        UNROLL for (int i = 0; i < 4; i++) {
            int32_t e = first + i * CUDA_WARP + lane;
            count[i] = e < lists.experts ? lists.count[e] : 0;
        }
        UNROLL for (int i = 0; i < 4; i++) {
            uint32_t some = lane_ballot(count[i] > 0);
            int here = count_bits(some);
            if (n < here) {
                for (; n > 0; n--) some &= some - 1;
                return first + i * CUDA_WARP + count_bits((some & (0 - some)) - 1);
            }
            n -= here;
        }
    }
    return -1;
}

/* (up + 1) gate sigmoid(alpha gate); the gate is clamped from above only. NaN stays NaN. */
DEVICE float experts_swiglu(float gate, float up, float alpha, float limit)
{
    float g = gate > limit ? limit : gate;
    float u = up > limit ? limit : up < -limit ? -limit : up;
    return (u + 1) * g * (1 / (1 + expf(-(alpha * g))));
}

/* Magnitude for a maximum that keeps NaN: its bits rank above those of all numbers. */
DEVICE uint32_t experts_magnitude(float x)
{
    return float_bits(x) & 0x7FFFFFFFu;
}

DEVICE uint32_t experts_larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* What a value of a group with this scale byte reads back as; `unit` is what the group is divided by: the scale, or of
 * the second matrix's input a sixteenth of it. */
DEVICE float experts_code(float x, float unit, float scale)
{
    return float_of_e2m1(e2m1_of_float(x / unit)) * scale;
}

#endif
