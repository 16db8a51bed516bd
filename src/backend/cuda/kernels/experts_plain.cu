/*
 * The routed experts in any format and of any width: what experts.cu does not take.
 *
 *     z = bf16((up + 1) gate sigmoid(alpha gate)),  gate, up = W1 h, W3 h;  y = W2 z
 *
 * A warp has one output (of gate and up: the same) and goes through the expert's rows one after the other. Lane i adds the
 * products of inputs i, i + 32, ... in fp32, products rounded first; the lanes are folded by a butterfly. Weights are
 * decoded one by one, so this is for small models.
 * Grid: outputs, experts that have rows. Bytes per output: K weights for each row. Bound: the decoding.
 */
#include "backend/cuda/kernels/experts.cuh"

/* One weight of a matrix at data, scales; without the factor. */
DEVICE float plain_weight(const kernel_weight &w, const uint8_t *data, const uint8_t *scales, int64_t row, int32_t k)
{
    int64_t at = row * w.cols + k;
    if (w.format == KERNEL_F32) return ((const float *)data)[at];
    if (w.format == KERNEL_BF16) return float_of_bf16(((const uint16_t *)data)[at]);
    if (w.format == KERNEL_MXFP8) return float_of_e4m3(data[at]) * float_of_e8m0(scales[at / 32]);
    return float_of_e2m1(data[at / 2] >> (at % 2 * 4) & 15) * float_of_e4m3(scales[at / 16]);
}

/* W[row] . x, the same in all lanes. */
DEVICE float plain_dot(const experts_weight &w, int32_t expert, int32_t row, const uint16_t *x, int lane)
{
    const uint8_t *data = (const uint8_t *)w.first.data + expert * w.bytes;
    const uint8_t *scales = (const uint8_t *)w.first.scales + expert * w.scale_bytes;
    float sum = 0;
    for (int32_t k = lane; k < w.first.cols; k += CUDA_WARP)
        sum += float_of_bf16(x[k]) * plain_weight(w.first, data, scales, row, k);
    for (int mask = 1; mask < CUDA_WARP; mask *= 2) sum += lane_xor(sum, mask);
    return sum * (w.factors ? w.factors[expert] : 1);
}

KERNEL(experts_glu_plain, experts_glu_args)
{
    int lane = threadIdx.x % CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int32_t expert = experts_nth(a.lists, blockIdx.y, lane), out = blockIdx.x * warps + threadIdx.x / CUDA_WARP;
    if (expert < 0 || out >= a.gate.first.rows) return;
    for (int32_t m = 0; m < a.lists.count[expert]; m++) {
        int32_t member = a.lists.members[(int64_t)expert * a.lists.capacity + m], row = member / a.lists.per_token;
        const uint16_t *x = a.in + (int64_t)row * a.gate.first.cols;
        float row_factor = a.row_factor ? a.row_factor[row] : 1;
        float gate = plain_dot(a.gate, expert, out, x, lane) * row_factor;
        float up = plain_dot(a.up, expert, out, x, lane) * row_factor;
        if (lane == 0)
            a.z[(int64_t)member * a.gate.first.rows + out] = bf16_of_float(experts_swiglu(gate, up, a.alpha, a.limit));
    }
}

KERNEL(experts_requantise, experts_requantise_args)
{
    int64_t group = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= a.groups) return;
    uint16_t *z = a.z + group * 16;
    uint32_t most = 0;
    for (int i = 0; i < 16; i++) most = experts_larger(most, experts_magnitude(float_of_bf16(z[i])));
    float scale = float_of_e4m3(nvfp4_scale(bits_float(most) / 6 * 16)), unit = scale * 0.0625f;
    for (int i = 0; i < 16; i++) z[i] = bf16_of_float(experts_code(float_of_bf16(z[i]), unit, scale));
}

KERNEL(experts_down_plain, experts_down_args)
{
    int lane = threadIdx.x % CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int32_t expert = experts_nth(a.lists, blockIdx.y, lane), out = blockIdx.x * warps + threadIdx.x / CUDA_WARP;
    if (expert < 0 || out >= a.down.first.rows) return;
    for (int32_t m = 0; m < a.lists.count[expert]; m++) {
        int64_t member = a.lists.members[(int64_t)expert * a.lists.capacity + m];
        float y = plain_dot(a.down, expert, out, a.z + member * a.down.first.cols, lane);
        if (lane == 0) a.y[member * a.down.first.rows + out] = y * a.factor;
    }
}
