/*
 * What goes over the elements of rows: RMSNorm, SwiGLU, the rows of the embedding.
 *
 *     norm    y = bf16(x / sqrt(mean x^2 + eps) * (base + gain)); a block a row. A thread adds the squares of its elements
 *             in ascending order, a warp folds its lanes as a tree, and the first warp's lanes fold the warps the same way:
 *             an order that depends on the width alone. 4 bytes in, 2 out, the second reading from the cache.
 *     swiglu  z = bf16((u + 1) * g * sigmoid(alpha * g)), g <= limit, |u| <= limit; plain: bf16(g * sigmoid(g) * u)
 *     embed   x = the token's row
 *
 * Bound: at one row the latency of two readings and a fold, at many the memory's bandwidth.
 */
#include "backend/cuda/kernels/linear.h"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/swiglu.cuh"

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

DEVICE float add_lanes(float x)
{
    UNROLL for (int mask = 16; mask; mask /= 2) x += lane_xor(x, mask);
    return x;
}

KERNEL(norm, norm_args)
{
    SHARED(float, part, CUDA_WARP);
    int32_t n = a.hidden;
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, warp = thread / CUDA_WARP;
    int64_t row = a.rows ? a.rows[blockIdx.x] : (int64_t)blockIdx.x, to = (int64_t)blockIdx.x * n;
    const float *x = a.x + row * n;
    float sum = 0;
    for (int32_t i = thread; i < n; i += NORM_BLOCK) sum += x[i] * x[i];
    sum = add_lanes(sum);
    if (lane == 0) part[warp] = sum;
    BLOCK_SYNC();
    sum = add_lanes(lane < NORM_BLOCK / CUDA_WARP ? part[lane] : 0.0f);
    float inverse = 1.0f / sqrtf(sum / (float)n + a.eps);
    for (int32_t i = thread; i < n; i += NORM_BLOCK) {
        float gain = a.gain.format == KERNEL_BF16 ? float_of_bf16(((const uint16_t *)a.gain.data)[i])
                                                  : weight_value(&a.gain, 0, i);
        uint16_t y = bf16_of_float(x[i] * inverse * (a.base + gain));
        a.out[to + i] = y;
        if (a.out_float) a.out_float[to + i] = float_of_bf16(y);
    }
}

KERNEL(swiglu, swiglu_args)
{
    int64_t i = (int64_t)blockIdx.x * SWIGLU_BLOCK + threadIdx.x;
    if (i < a.total) a.z[i] = bf16_of_float(swiglu_of(a.gate[i], a.up[i], a.law));
}

KERNEL(embed, embed_args)
{
    int32_t n = a.table.cols;
    float *x = a.x + (int64_t)blockIdx.x * n;
    bool there = !a.sequence || a.sequence[blockIdx.x] >= 0;
    int64_t token = there ? a.token[blockIdx.x] : 0;
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += EMBED_BLOCK) x[i] = there ? weight_value(&a.table, token, i) : 0.0f;
}
