/*
 * RMSNorm of a row by NORM_BLOCK threads, for the kernel that does nothing else (norm.cu) and for those that begin with it:
 *
 *     y = bf16(x / sqrt(mean x^2 + eps) * (base + gain))
 *
 * A thread adds the squares of its quads of elements in ascending order, a warp folds its lanes as a tree, and then the warps the
 * same way: an order that depends on the width alone.
 */
#ifndef HAYATE_BACKEND_CUDA_NORM_CUH
#define HAYATE_BACKEND_CUDA_NORM_CUH

#include "backend/cuda/kernels/linear.h"
#include "backend/cuda/kernels/number.cuh"

enum { NORM_HELD = NORM_WIDTH / (4 * NORM_BLOCK) }; /* quads of a thread that stay in registers */

/* Element `column` of row `row`, by any format. */
DEVICE float weight_value(const kernel_weight *w, int64_t row, int32_t column)
{
    int64_t at = row * w->cols + column;
    switch (w->format) {
    case KERNEL_F32: return ((const float *)w->data)[at];
    case KERNEL_BF16: return float_of_bf16(((const uint16_t *)w->data)[at]);
    case KERNEL_MXFP8:
        return float_of_e4m3(((const uint8_t *)w->data)[at]) * float_of_e8m0(((const uint8_t *)w->scales)[at / 32]);
    default: {
        uint32_t code = ((const uint8_t *)w->data)[at / 2] >> at % 2 * 4 & 15;
        return float_of_e2m1(code) * float_of_e4m3(((const uint8_t *)w->scales)[at / 16]) * w->factor;
    }
    }
}

DEVICE int32_t norm_at(int q) { return 4 * ((int32_t)threadIdx.x + q * NORM_BLOCK); }

/* The gains of this thread's quads, 0 where there are none. */
DEVICE void norm_gains(const kernel_weight &w, int32_t n, float gain[NORM_HELD][4])
{
    UNROLL for (int q = 0; q < NORM_HELD; q++)
        UNROLL for (int i = 0; i < 4; i++) gain[q][i] = norm_at(q) < n ? weight_value(&w, 0, norm_at(q) + i) : 0.0f;
}

DEVICE float norm_add_lanes(float x)
{
    UNROLL for (int mask = 16; mask; mask /= 2) x += lane_xor(x, mask);
    return x;
}

/* This thread's quads, and 1 / sqrt(mean x^2 + eps). All threads of the block take part, those from NORM_BLOCK on for the
 * barriers' sake; part [NORM_BLOCK / CUDA_WARP] is shared and may be used again behind the next barrier. */
DEVICE float norm_read(const float *from, int32_t n, float eps, float *part, float x[NORM_HELD][4])
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    bool takes = threadIdx.x < NORM_BLOCK;
    float sum = 0;
    UNROLL for (int q = 0; q < NORM_HELD; q++)
    {
        quad v = {{0, 0, 0, 0}};
        if (takes && norm_at(q) < n) v = *(const quad *)(from + norm_at(q));
        UNROLL for (int i = 0; i < 4; i++) x[q][i] = bits_float(v.w[i]);
    }
    UNROLL for (int q = 0; q < NORM_HELD; q++)
        UNROLL for (int i = 0; i < 4; i++) sum += x[q][i] * x[q][i];
    if (takes)
        for (int32_t i = NORM_WIDTH + (int32_t)threadIdx.x; i < n; i += NORM_BLOCK) sum += from[i] * from[i];
    sum = norm_add_lanes(sum);
    if (lane == 0 && takes) part[warp] = sum;
    BLOCK_SYNC();
    sum = norm_add_lanes(lane < NORM_BLOCK / CUDA_WARP ? part[lane] : 0.0f);
    return 1.0f / sqrtf(sum / (float)n + eps);
}

#endif
