/* What the kernels of the experts share: the lists, SwiGLU, the quantisers of activations. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_CUH
#define HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_CUH

#include "backend/cuda/kernels/experts.h"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/swiglu.cuh"

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
    return (u + 1) * g * sigmoid(alpha * g);
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

/* Word i of eight values: elements 2i, 2i + 1, or woven. */
DEVICE uint32_t experts_word(const float *x, int i, bool woven)
{
    return woven ? bf16_pair(x[i], x[i + 4]) : bf16_pair(x[2 * i], x[2 * i + 1]);
}

/* One group of nvfp4_fc1_round_row, in place. */
DEVICE void experts_round_group(float x[16], float factor)
{
    uint32_t most = 0;
    UNROLL for (int i = 0; i < 16; i++) {
        x[i] = round_bf16(x[i] * factor);
        most = experts_larger(most, experts_magnitude(x[i]));
    }
    float scale = float_of_e4m3(nvfp4_scale(bits_float(most) / 6));
    UNROLL for (int i = 0; i < 16; i++) x[i] = experts_code(x[i], scale, scale);
}

/* 16 inputs of a row as its experts take them; `factor`: 2688 over the row's largest magnitude, of a.quantise. */
DEVICE void experts_in_group(const experts_in_args &a, const float h[16], float factor, uint16_t out[16])
{
    float x[16];
    UNROLL for (int i = 0; i < 16; i++) x[i] = h[i];
    if (a.quantise) experts_round_group(x, factor);
    uint32_t *words = (uint32_t *)out;
    UNROLL for (int i = 0; i < 8; i++) words[i] = experts_word(x + i / 4 * 8, i % 4, a.woven);
}

#endif
