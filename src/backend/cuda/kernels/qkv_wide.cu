/*
 * Projections before attention on Hopper with what becomes of their heads, in one kernel: project_wide.cuh, whose tile of 128
 * outputs is one head of its rows, and attend_in.cuh. Bits are those of the two kernels apart.
 *
 *     order   lane l of attend_in.cuh has dims 2l, 2l + 1, 2l + 64 and 2l + 65 of a vector. Here thread t of four has those of
 *             its lanes l = 4c + t, c = 0 .. 7: so squares add in the same order, 16, 8 and 4 apart inside of a thread
 *     turn    dims 8c + 2t and 8c + 2t + 32 are the same thread's
 *     cached  in NVFP4 from registers; in other formats by way of the warp's own shared memory, a vector at a time
 */
#include "backend/cuda/kernels/attend_in.cuh"
#include "backend/cuda/kernels/project_wide.cuh"
#include "backend/cuda/kernels/qkv_wide.h"

DEVICE void pair_at(const float *at, float out[2])
{
    uint64_t both = *(const uint64_t *)at;
    out[0] = bits_float((uint32_t)both), out[1] = bits_float((uint32_t)(both >> 32));
}

/* 1 + gain of queries, keys, index queries and index keys, in this order. */
DEVICE void wide_begin(const qkv_wide_args &all, float *gains)
{
    const kernel_weight *const of[4] = {&all.in.q_gain, &all.in.k_gain, &all.in.index_q_gain, &all.in.index_k_gain};
    UNROLL for (int k = 0; k < 4; k++)
        if (threadIdx.x < HEADS_DIM && of[k]->data) gains[k * HEADS_DIM + threadIdx.x] = 1 + gain_at(*of[k], (int)threadIdx.x);
}

/* Norm and turn of the thread's two rows. */
DEVICE void turn_rows(const attend_in_args &a, const float *gains, float (&x)[WIDE_SUMS], int32_t row)
{
    enum { HALF = HEADS_ROTARY / 2, TURNS = HALF / 8 };
    const int t = (int)threadIdx.x % 4;
    float cosine[2][TURNS][2], sine[2][TURNS][2], inverse[2];
    UNROLL for (int h = 0; h < 2; h++)
    {
        int64_t at = (int64_t)(row + 8 * h < a.rows.count ? row + 8 * h : 0) * HALF + 2 * t;
        UNROLL for (int c = 0; c < TURNS; c++)
            pair_at(a.cosine + at + 8 * c, cosine[h][c]), pair_at(a.sine + at + 8 * c, sine[h][c]);
    }
    UNROLL for (int h = 0; h < 2; h++)
    {
        float part[8];
        UNROLL for (int c = 0; c < 8; c++)
        {
            const float y[4] = {x[4 * c + 2 * h], x[4 * c + 2 * h + 1], x[4 * c + 32 + 2 * h], x[4 * c + 33 + 2 * h]};
            part[c] = y[0] * y[0];
            UNROLL for (int p = 1; p < 4; p++) part[c] += y[p] * y[p];
        }
        UNROLL for (int apart = 4; apart > 0; apart /= 2)
            UNROLL for (int c = 0; c < apart; c++) part[c] += part[c + apart];
        part[0] += lane_xor(part[0], 2);
        part[0] += lane_xor(part[0], 1);
        inverse[h] = 1 / sqrtf(part[0] / (float)HEADS_DIM + a.eps);
    }
    UNROLL for (int c = 0; c < 16; c++)
    {
        float gain[2];
        pair_at(gains + 8 * c + 2 * t, gain);
        UNROLL for (int i = 0; i < 4; i++) x[4 * c + i] = x[4 * c + i] * inverse[i / 2] * gain[i % 2];
    }
    UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int c = 0; c < TURNS; c++)
            UNROLL for (int e = 0; e < 2; e++)
            {
                float *low = &x[4 * c + 2 * h + e], *high = &x[4 * (c + TURNS) + 2 * h + e], was = *low;
                *low = was * cosine[h][c][e] - *high * sine[h][c][e];
                *high = *high * cosine[h][c][e] + was * sine[h][c][e];
            }
}

DEVICE void put_queries(const attend_in_args &a, int kind, int job, float (&x)[WIDE_SUMS], int32_t row)
{
    const int t = (int)threadIdx.x % 4;
    const int64_t stride = (int64_t)(kind == QUERY ? a.heads : a.index_heads) * HEADS_DIM;
    float *to = (kind == QUERY ? a.q : a.index_q) + row * stride + job * HEADS_DIM + 2 * t;
    UNROLL for (int i = 0; i < WIDE_SUMS; i++) x[i] = round_bf16(x[i]);
    UNROLL for (int h = 0; h < 2; h++)
    {
        if (row + 8 * h >= a.rows.count) continue;
        UNROLL for (int c = 0; c < 16; c++)
            *(uint64_t *)(to + 8 * h * stride + 8 * c) =
                float_bits(x[4 * c + 2 * h]) | (uint64_t)float_bits(x[4 * c + 2 * h + 1]) << 32;
    }
}

/* e2m1_of_float(x / unit) for a bf16 value and one of E4M3 that is not negative: neither is so near to a product of the other with
 * an edge between two codes, and not at it, that their quotient would be rounded to the edge. */
DEVICE uint32_t e2m1_of_ratio(float x, float unit)
{
    float a = x < 0 ? -x : x;
    uint32_t code = (uint32_t)(a > 0.25f * unit) + (a >= 0.75f * unit) + (a > 1.25f * unit) + (a >= 1.75f * unit) +
                    (a > 2.5f * unit) + (a >= 3.5f * unit) + (a > 5.0f * unit);
    return code + (code != 0 && x < 0 ? 8 : 0);
}

/* As encode_vector does it: a group of 16 dims are four values of each of four threads. */
DEVICE void put_nvfp4(const attend_in_args &a, int kind, int job, const float (&x)[WIDE_SUMS], int32_t row)
{
    const int t = (int)threadIdx.x % 4;
    UNROLL for (int h = 0; h < 2; h++)
    {
        const vector_place none = {-1, -1}, place = row + 8 * h < a.rows.count ? need_place(a, row + 8 * h) : none;
        const bool stored = is_stored(place);
        cached_vector to = {nullptr, nullptr, 1};
        if (stored) to = cached_at(a, place, kind, job);
        UNROLL for (int g = 0; g < HEADS_DIM / 16; g++)
        {
            float y[4];
            uint32_t most = 0;
            UNROLL for (int i = 0; i < 4; i++)
            {
                y[i] = round_bf16(x[8 * g + i / 2 * 4 + 2 * h + i % 2]);
                most = max(most, float_bits(y[i]) & 0x7FFFFFFFu);
            }
            UNROLL for (int mask = 1; mask < 4; mask *= 2) most = max(most, lane_xor(most, mask));
            uint32_t code = nvfp4_scale(bits_float(most) / 6);
            float unit = float_of_e4m3(code);
            UNROLL for (int i = 0; i < 2; i++)
            {
                uint32_t byte = e2m1_of_ratio(y[2 * i], unit) | e2m1_of_ratio(y[2 * i + 1], unit) << 4;
                if (stored) to.data[8 * g + 4 * i + t] = (uint8_t)byte;
            }
            if (stored && g % 4 == t) to.scales[g * to.stride] = (uint8_t)code;
        }
    }
}

/* Dim d of vector i of a warp's 16 lies at d ^ own_swizzle(i). */
DEVICE int own_swizzle(int i) { return i % 4 * 8; }

DEVICE void wide_heads(const qkv_wide_args &all, const wide_tile &p, float (&x)[WIDE_SUMS], float *own,
                       const float *gains, int32_t row)
{
    const attend_in_args &a = all.in;
    const int lane = (int)threadIdx.x % CUDA_WARP, t = lane % 4, g = lane / 4;
    int32_t job = all.product.first_tile + p.tile;
    const int kind = (int)(part_of(all.product.of, &job) - all.product.of.part);
    if (kind != VALUE) turn_rows(a, gains + (kind < VALUE ? kind : kind - 1) * HEADS_DIM, x, row);
    if (is_query(kind)) return put_queries(a, kind, job, x, row);
    if ((kind == INDEX_KEY ? a.cache.index : a.cache.main) == KERNEL_CACHE_NVFP4) return put_nvfp4(a, kind, job, x, row);
    UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int c = 0; c < 16; c++)
            *(uint64_t *)(own + (g + 8 * h) * HEADS_DIM + ((8 * c + 2 * t) ^ own_swizzle(g))) =
                float_bits(x[4 * c + 2 * h]) | (uint64_t)float_bits(x[4 * c + 2 * h + 1]) << 32;
    WARP_SYNC();
    int32_t first = row - g, count = a.rows.count - first < 16 ? a.rows.count - first : 16;
    for (int i = 0; i < count; i++) {
        float y[4];
        pair_at(own + i * HEADS_DIM + ((2 * lane) ^ own_swizzle(i)), y);
        pair_at(own + i * HEADS_DIM + ((2 * lane + 64) ^ own_swizzle(i)), y + 2);
        store_cached(a, need_place(a, first + i), kind, job, y);
    }
}

KERNEL_CLUSTER(qkv_wide, qkv_wide_args, WIDE_BLOCK, WIDE_CLUSTER) { project_wide<WIDE_HEADS>(a, a.product); }
