/*
 * What goes over the elements of rows: RMSNorm, SwiGLU, the rows of the embedding.
 *
 *     norm    y = bf16(x / sqrt(mean x^2 + eps) * (base + gain)); a block a row. A thread adds the squares of its quads of
 *             elements in ascending order, a warp folds its lanes as a tree, and then the warps the same way: an order
 *             that depends on the width alone. 4 bytes in, 2 out.
 *     swiglu  z = bf16((u + 1) * g * sigmoid(alpha * g)), g <= limit, |u| <= limit; plain: bf16(g * sigmoid(g) * u)
 *     embed   x = the token's row
 *
 * Bound: at one row the latency of a reading and a fold, at many the memory's bandwidth.
 */
#include "backend/cuda/kernels/linear.h"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/project_wide.h"
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

/* Where elements at .. at + 3 of a row lie in blocks of rows for project_wide.cuh, in numbers. */
DEVICE int64_t block_place(int64_t row, int32_t n, int32_t at, int32_t values)
{
    int32_t t = at / values % 4, step = at / (4 * values) * (values / 4) + at % values / 4, line = (int32_t)(row % WIDE_LINES);
    int64_t atom = row / WIDE_LINES * (n / WIDE_K) + step / 4;
    return (atom * WIDE_LINES + line) * WIDE_K + ((step % 4 * 2 + t / 2) ^ (line & 7)) * 8 + t % 2 * 4;
}

/* A width is a multiple of 16, and with `values` one of WIDE_K. The first HELD quads of a thread stay in registers; of wider rows
 * the rest is read twice. */
KERNEL_AHEAD(norm, norm_args)
{
    enum { HELD = 4 };
    SHARED(float, part, CUDA_WARP);
    int32_t n = a.hidden;
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, warp = thread / CUDA_WARP;
    float gain[HELD][4], x[HELD][4];
    UNROLL for (int q = 0; q < HELD; q++)
        UNROLL for (int i = 0; i < 4; i++)
        {
            int32_t at = 4 * (thread + q * NORM_BLOCK) + i;
            gain[q][i] = at < n ? weight_value(&a.gain, 0, at) : 0.0f;
        }
    follow();
    int64_t row = a.rows ? a.rows[blockIdx.x] : (int64_t)blockIdx.x, to = (int64_t)blockIdx.x * n;
    const float *from = a.x + row * n;
    float sum = 0;
    UNROLL for (int q = 0; q < HELD; q++)
    {
        int32_t at = 4 * (thread + q * NORM_BLOCK);
        quad v = {{0, 0, 0, 0}};
        if (at < n) v = *(const quad *)(from + at);
        UNROLL for (int i = 0; i < 4; i++) x[q][i] = bits_float(v.w[i]);
    }
    UNROLL for (int q = 0; q < HELD; q++)
        UNROLL for (int i = 0; i < 4; i++) sum += x[q][i] * x[q][i];
    for (int32_t i = 4 * HELD * NORM_BLOCK + thread; i < n; i += NORM_BLOCK) sum += from[i] * from[i];
    sum = add_lanes(sum);
    if (lane == 0) part[warp] = sum;
    BLOCK_SYNC();
    sum = add_lanes(lane < NORM_BLOCK / CUDA_WARP ? part[lane] : 0.0f);
    float inverse = 1.0f / sqrtf(sum / (float)n + a.eps);
    UNROLL for (int q = 0; q < HELD; q++)
    {
        int32_t at = 4 * (thread + q * NORM_BLOCK);
        if (at < n) {
            uint64_t pairs = 0;
            quad y;
            UNROLL for (int i = 0; i < 4; i++)
            {
                uint16_t h = bf16_of_float(x[q][i] * inverse * (a.base + gain[q][i]));
                pairs |= (uint64_t)h << 16 * i;
                y.w[i] = (uint32_t)h << 16;
            }
            *(uint64_t *)(a.out + (a.values ? block_place(blockIdx.x, n, at, a.values) : to + at)) = pairs;
            if (a.out_float) *(quad *)(a.out_float + to + at) = y;
        }
    }
    for (int32_t i = 4 * HELD * NORM_BLOCK + thread; i < n; i += NORM_BLOCK) {
        uint16_t y = bf16_of_float(from[i] * inverse * (a.base + weight_value(&a.gain, 0, i)));
        a.out[a.values ? block_place(blockIdx.x, n, i / 4 * 4, a.values) + i % 4 : to + i] = y;
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
    enum { AT_ONCE = 8 }; /* readings of a thread that are on their way together */
    for (int32_t first = (int32_t)threadIdx.x; first < n; first += AT_ONCE * EMBED_BLOCK) {
        float value[AT_ONCE];
        UNROLL for (int j = 0; j < AT_ONCE; j++)
        {
            int32_t i = first + j * EMBED_BLOCK;
            value[j] = there && i < n ? weight_value(&a.table, token, i) : 0.0f;
        }
        UNROLL for (int j = 0; j < AT_ONCE; j++)
            if (first + j * EMBED_BLOCK < n) x[first + j * EMBED_BLOCK] = value[j];
    }
}
