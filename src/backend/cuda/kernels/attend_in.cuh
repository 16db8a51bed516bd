/*
 * Heads between their projections and attention:
 *
 *     q, k, index q, index k: x / sqrt(mean x^2 + eps) * (1 + gain), then rotary: pairs (j, j + r/2) of the first r dims
 *     q, index q:  rounded to bf16, in place
 *     k, v, index k:  into the cache row at the row's slot, through the cache's quantiser (cache.cuh)
 *
 * A warp takes one vector of at most 128 dims: 2 values a lane and 64 dims. A row has 64 + 4 + 4 + 4 + 1 of them in the
 * released model; reads 4 bytes a value and writes 4 of a query, 9/16 of a cached one. Squares add per lane in ascending
 * dims, then over lanes 16, 8, 4, 2, 1 apart. Bound: the launch for few rows, memory (L2) for many.
 *
 * This file has what becomes of one vector; attend_in.cu takes it from memory, and qkv_hopper.cu from its products.
 */
#ifndef HAYATE_BACKEND_CUDA_ATTEND_IN_CUH
#define HAYATE_BACKEND_CUDA_ATTEND_IN_CUH

#include "backend/cuda/kernels/attend_in.h"
#include "backend/cuda/kernels/cache.cuh"

enum { QUERY, KEY, VALUE, INDEX_QUERY, INDEX_KEY }; /* kinds of vectors, in the order of a row's jobs */

DEVICE float gain_at(const kernel_weight &w, int i)
{
    return w.format == KERNEL_F32 ? ((const float *)w.data)[i] : float_of_bf16(((const uint16_t *)w.data)[i]);
}

/* Place of value p of a lane, p 0..3. */
DEVICE int dim_of(int lane, int p)
{
    return 2 * lane + p % 2 + p / 2 * 64;
}

/* What a vector takes beside its values, as a lane's places have it. */
struct vector_needs {
    float gain[4], cosine[4], sine[4];
    int64_t slot;     /* of the row */
    int32_t sequence;
};

DEVICE void need_gain(const attend_in_args &a, int kind, vector_needs *needs)
{
    int lane = (int)threadIdx.x % CUDA_WARP, dim = kind < INDEX_QUERY ? a.head_dim : a.index_dim;
    const kernel_weight &main = kind == QUERY ? a.q_gain : a.k_gain;
    const kernel_weight &gain = kind < INDEX_QUERY ? main : kind == INDEX_QUERY ? a.index_q_gain : a.index_k_gain;
    UNROLL for (int p = 0; p < 4; p++)
        needs->gain[p] = kind != VALUE && dim_of(lane, p) < dim ? gain_at(gain, dim_of(lane, p)) : 0;
}

DEVICE void need_turn(const attend_in_args &a, int row, int kind, vector_needs *needs)
{
    int lane = (int)threadIdx.x % CUDA_WARP, half = a.rotary_dim / 2;
    UNROLL for (int p = 0; p < 4; p++)
    {
        int i = dim_of(lane, p);
        int64_t at = (int64_t)row * half + (i < half ? i : i - half);
        bool rotates = kind != VALUE && i < a.rotary_dim;
        needs->cosine[p] = rotates ? a.cosine[at] : 0, needs->sine[p] = rotates ? a.sine[at] : 0;
    }
}

DEVICE void need_place(const attend_in_args &a, int row, vector_needs *needs)
{
    needs->slot = a.rows.slot[row], needs->sequence = a.rows.sequence[row];
}

DEVICE void norm(float x[4], const float gain[4], int dim, float eps)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    float sum = 0;
    UNROLL for (int p = 0; p < 4; p++) sum += x[p] * x[p];
    UNROLL for (int mask = 16; mask > 0; mask /= 2) sum += lane_xor(sum, mask);
    float inverse = 1 / sqrtf(sum / (float)dim + eps);
    UNROLL for (int p = 0; p < 4; p++)
        if (dim_of(lane, p) < dim) x[p] = x[p] * inverse * (1 + gain[p]);
}

/* `shared` [128] is this warp's, dim d at d ^ swizzle. */
DEVICE void rotate(float x[4], float *shared, int swizzle, const vector_needs &needs, int rotary_dim)
{
    int lane = (int)threadIdx.x % CUDA_WARP, half = rotary_dim / 2;
    UNROLL for (int p = 0; p < 4; p++) shared[dim_of(lane, p) ^ swizzle] = x[p];
    WARP_SYNC();
    UNROLL for (int p = 0; p < 4; p++) {
        int i = dim_of(lane, p);
        if (i < half)
            x[p] = x[p] * needs.cosine[p] - shared[(i + half) ^ swizzle] * needs.sine[p];
        else if (i < rotary_dim)
            x[p] = x[p] * needs.cosine[p] + shared[(i - half) ^ swizzle] * needs.sine[p];
    }
}

DEVICE void store_query(float x[4], float *to, int dim, bool e4m3)
{
    int lane = threadIdx.x % CUDA_WARP;
    UNROLL for (int p = 0; p < 4; p++) {
        if (dim_of(lane, p) >= dim) continue;
        float value = round_bf16(x[p]);
        to[dim_of(lane, p)] = e4m3 ? float_of_e4m3(e4m3_of_float(value)) : value;
    }
}

/* Vector `job` of a kind of row `row`, projected: x has the values of dim_of. `shared` [128] is this warp's, dim d at
 * d ^ swizzle. AHEAD: all of `needs` is there, read at once; else it is read piece by piece, each a way to memory, which takes
 * less registers. */
template <bool AHEAD>
DEVICE void attend_in_vector(const attend_in_args &a, int row, int kind, int job, float x[4], vector_needs &needs,
                             float *shared, int swizzle)
{
    int heads = kind == QUERY ? a.heads : kind == INDEX_QUERY ? a.index_heads : 0;
    int dim = kind < INDEX_QUERY ? a.head_dim : a.index_dim;
    if (kind != VALUE) {
        if (!AHEAD) need_gain(a, kind, &needs);
        norm(x, needs.gain, dim, a.eps);
        if (!AHEAD) need_turn(a, row, kind, &needs);
        rotate(x, shared, swizzle, needs, a.rotary_dim);
    }
    if (kind == QUERY || kind == INDEX_QUERY) {
        store_query(x, (kind == QUERY ? a.q : a.index_q) + ((int64_t)row * heads + job) * dim, dim, a.query_e4m3);
        return;
    }
    if (!AHEAD) need_place(a, row, &needs);
    int64_t slot = needs.slot;
    if (needs.sequence < 0 || slot < 0) return;
    int token = (int)(slot % CUDA_BLOCK_TOKENS), groups = dim / 16;
    uint8_t *block = a.cache.base + slot / CUDA_BLOCK_TOKENS * a.cache.row_bytes;
    if (kind == INDEX_KEY) {
        uint8_t *data = block + a.index_offset;
        encode_vector(a.cache.index, 1, x, dim, data + token * (a.cache.index_scales / CUDA_BLOCK_TOKENS),
                      data + a.cache.index_scales + token * groups, 1);
        return;
    }
    uint8_t *head = block + a.main_offset + job * a.cache.head_bytes;
    int64_t vector = token * (a.cache.k_scales / CUDA_BLOCK_TOKENS);
    if (kind == KEY)
        encode_vector(a.cache.main, a.k_scale, x, dim, head + vector, head + a.cache.k_scales + token * groups, 1);
    else
        encode_vector(a.cache.main, a.v_scale, x, dim, head + a.cache.v_data + vector,
                      head + a.cache.v_scales + token / 4 * 4 * groups + token % 4, 4);
}

#endif
