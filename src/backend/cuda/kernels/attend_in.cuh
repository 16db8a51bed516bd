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
 * This file has what becomes of one vector; attend_in.cu takes it from memory, and qkv_wide.cu from its products.
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

/* What a vector takes beside its values and the gain of its kind: the turn, as a lane's places have it, and of what is cached
 * the row's place. */
struct vector_turn {
    float cosine[4], sine[4];
};
struct vector_place {
    int64_t slot;
    int32_t sequence;
};

DEVICE void need_gain(const attend_in_args &a, int kind, float out[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP, dim = kind < INDEX_QUERY ? a.head_dim : a.index_dim;
    const kernel_weight &main = kind == QUERY ? a.q_gain : a.k_gain;
    const kernel_weight &gain = kind < INDEX_QUERY ? main : kind == INDEX_QUERY ? a.index_q_gain : a.index_k_gain;
    UNROLL for (int p = 0; p < 4; p++)
        out[p] = kind != VALUE && dim_of(lane, p) < dim ? gain_at(gain, dim_of(lane, p)) : 0;
}

DEVICE void need_turn(const attend_in_args &a, int row, int kind, vector_turn *out)
{
    int lane = (int)threadIdx.x % CUDA_WARP, half = a.rotary_dim / 2;
    UNROLL for (int p = 0; p < 4; p++)
    {
        int i = dim_of(lane, p);
        int64_t at = (int64_t)row * half + (i < half ? i : i - half);
        bool rotates = kind != VALUE && i < a.rotary_dim;
        out->cosine[p] = rotates ? a.cosine[at] : 0, out->sine[p] = rotates ? a.sine[at] : 0;
    }
}

DEVICE vector_place need_place(const attend_in_args &a, int row)
{
    vector_place place = {a.rows.slot[row], a.rows.sequence[row]};
    return place;
}

/* Vectors in shared memory lie one behind the other, 128 numbers each: dim d of vector i at d ^ heads_swizzle(i), so that
 * neither those who write a dim of neighbours nor those who read one vector meet at a bank. */
DEVICE int heads_swizzle(int i) { return i / 2 % 4 * 8; }

/* Norm and turn are for N vectors of one kind at a time, whose sums and exchanges so wait together. */

template <int N> DEVICE void norm(float (&x)[N][4], const float gain[4], int dim, float eps)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    float sum[N];
    UNROLL for (int n = 0; n < N; n++)
    {
        sum[n] = 0;
        UNROLL for (int p = 0; p < 4; p++) sum[n] += x[n][p] * x[n][p];
    }
    UNROLL for (int mask = 16; mask > 0; mask /= 2)
        UNROLL for (int n = 0; n < N; n++) sum[n] += lane_xor(sum[n], mask);
    UNROLL for (int n = 0; n < N; n++)
    {
        float inverse = 1 / sqrtf(sum[n] / (float)dim + eps);
        UNROLL for (int p = 0; p < 4; p++)
            if (dim_of(lane, p) < dim) x[n][p] = x[n][p] * inverse * (1 + gain[p]);
    }
}

/* Of vectors first .. first + N - 1 of `shared`, which are this warp's. */
template <int N>
DEVICE void rotate(float (&x)[N][4], float *shared, int first, const vector_turn (&turn)[N], int rotary_dim)
{
    int lane = (int)threadIdx.x % CUDA_WARP, half = rotary_dim / 2;
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int p = 0; p < 4; p++)
            shared[(first + n) * 128 + (dim_of(lane, p) ^ heads_swizzle(first + n))] = x[n][p];
    WARP_SYNC();
    UNROLL for (int p = 0; p < 4; p++) {
        int i = dim_of(lane, p);
        if (i >= rotary_dim) continue;
        UNROLL for (int n = 0; n < N; n++)
        {
            int other = (i < half ? i + half : i - half) ^ heads_swizzle(first + n);
            float cosine = x[n][p] * turn[n].cosine[p], sine = shared[(first + n) * 128 + other] * turn[n].sine[p];
            x[n][p] = i < half ? cosine - sine : cosine + sine;
        }
    }
}

/* norm and rotate of what a kind has of them; a value has neither. */
template <int N>
DEVICE void turn_vectors(const attend_in_args &a, int kind, float (&x)[N][4], const float gain[4],
                         const vector_turn (&turn)[N], float *shared, int first)
{
    if (kind == VALUE) return;
    norm(x, gain, kind < INDEX_QUERY ? a.head_dim : a.index_dim, a.eps);
    rotate(x, shared, first, turn, a.rotary_dim);
}

DEVICE bool is_query(int kind) { return kind == QUERY || kind == INDEX_QUERY; }

DEVICE void store_query(const attend_in_args &a, int row, int kind, int job, const float x[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP, dim = kind == QUERY ? a.head_dim : a.index_dim;
    float *to = kind == QUERY ? a.q + ((int64_t)row * a.heads + job) * dim
                              : a.index_q + ((int64_t)row * a.index_heads + job) * dim;
    UNROLL for (int p = 0; p < 4; p++) {
        if (dim_of(lane, p) >= dim) continue;
        float value = round_bf16(x[p]);
        to[dim_of(lane, p)] = a.query_e4m3 ? float_of_e4m3(e4m3_of_float(value)) : value;
    }
}

/* Where a vector lies in the cache: its codes, and the scale of group g at scales[g * stride]. */
struct cached_vector {
    uint8_t *data, *scales;
    int stride;
};

DEVICE bool is_stored(const vector_place &place) { return place.sequence >= 0 && place.slot >= 0; }

DEVICE cached_vector cached_at(const attend_in_args &a, const vector_place &place, int kind, int job)
{
    bool index = kind == INDEX_KEY, value = kind == VALUE;
    int dim = index ? a.index_dim : a.head_dim, token = (int)(place.slot % CUDA_BLOCK_TOKENS), groups = dim / 16;
    uint8_t *block = a.cache.base + place.slot / CUDA_BLOCK_TOKENS * a.cache.row_bytes;
    uint8_t *at = index ? block + a.index_offset : block + a.main_offset + job * a.cache.head_bytes;
    int64_t vector = token * ((index ? a.cache.index_scales : a.cache.k_scales) / CUDA_BLOCK_TOKENS);
    uint8_t *scales = at + (index ? a.cache.index_scales : value ? a.cache.v_scales : a.cache.k_scales);
    scales += value ? token / 4 * 4 * groups + token % 4 : token * groups;
    cached_vector c = {at + (value ? a.cache.v_data : 0) + vector, scales, value ? 4 : 1};
    return c;
}

/* A key or value into the place in the cache that its row has. One way for all kinds: the code is in the loop of a kernel. */
DEVICE void store_cached(const attend_in_args &a, const vector_place &place, int kind, int job, const float x[4])
{
    if (!is_stored(place)) return;
    bool index = kind == INDEX_KEY, value = kind == VALUE;
    cached_vector c = cached_at(a, place, kind, job);
    encode_vector(index ? a.cache.index : a.cache.main, index ? 1 : value ? a.v_scale : a.k_scale, x,
                  index ? a.index_dim : a.head_dim, c.data, c.scales, c.stride);
}

#endif
