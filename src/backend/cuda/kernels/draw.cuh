/*
 * Random numbers and the order of logits in kernels: the steps of base/random.c and backend/sample.c one by one, so that the
 * same numbers have the same bits. Every fp32 step is rounded by itself; `fused` stands where the definition has fmaf.
 */
#ifndef HAYATE_BACKEND_CUDA_DRAW_CUH
#define HAYATE_BACKEND_CUDA_DRAW_CUH

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/sample.h"

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

/* Philox4x32-10 of lanes 4 * quad .. 4 * quad + 3. */
DEVICE void draw_quad(const draw_stream &in, uint32_t quad, uint32_t out[4])
{
    uint32_t c0 = in.position, c1 = in.purpose << 24 | in.choice, c2 = quad, c3 = in.anchor;
    uint32_t k0 = (uint32_t)in.seed, k1 = (uint32_t)(in.seed >> 32);
    UNROLL
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)b, c2 = n2, c3 = (uint32_t)a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

DEVICE float draw_log_of(float k, float f)
{
    float p = -0x1.07d576p-3f;
    p = fused(p, f, 0x1.1e6b14p-3f);
    p = fused(p, f, -0x1.f32c54p-4f);
    p = fused(p, f, 0x1.1ed5ccp-3f);
    p = fused(p, f, -0x1.559c8cp-3f);
    p = fused(p, f, 0x1.99d04ap-3f);
    p = fused(p, f, -0x1.fffefap-3f);
    p = fused(p, f, 0x1.555506p-2f);
    p = fused(p, f, -0.5f);
    float square = f * f;
    return fused(k, 0x1.62e430p-1f, fused(square, p, f));
}

DEVICE int draw_exponent(uint32_t bits) { return (int)((bits - 0x3F2AAAABu + (128u << 23)) >> 23) - 128; }

DEVICE float draw_log(float x)
{
    uint32_t bits = float_bits(x);
    int k = draw_exponent(bits);
    return draw_log_of((float)k, bits_float(bits - ((uint32_t)k << 23)) - 1);
}

DEVICE float draw_log1p(float x)
{
    int k = draw_exponent(float_bits(1 + x));
    float scale = bits_float((uint32_t)(127 - k) << 23);
    return draw_log_of((float)k, fused(x, scale, scale - 1));
}

/* Gumbel noise of a draw. */
DEVICE float draw_noise(uint32_t x)
{
    float u = (float)x * 0x1p-32f + 0x1p-33f;
    u = u < 1 - 0x1p-24f ? u : 1 - 0x1p-24f;
    return -draw_log(-draw_log1p(-u));
}

/* Of u with that many leading zero bits the noise is at most the one, and at least the other. */
DEVICE float draw_most(float zeros) { return (zeros + 1) * 0.6932f; }
DEVICE float draw_least(float zeros) { return zeros > 0 ? zeros * 0.693f - 0.76f : -2.9f; }
/* As a number, without a conversion. */
DEVICE float draw_zeros(uint32_t x) { return bits_float(0x4B000000u | (uint32_t)leading_zeros(x)) - 0x1p23f; }

/* ---- The order of logits ----------------------------------------------------------------------------------------- */

#define DRAW_NONE (bits_float(0xFF800000u)) /* -inf */
#define DRAW_MOST (bits_float(0x7F7FFFFFu)) /* the largest finite number */

/* NaN counts as -inf, +inf as the largest number. */
DEVICE float draw_clean(float x) { return x <= DRAW_MOST ? x : x != x ? DRAW_NONE : DRAW_MOST; }
/* No -0, which keys would tell from 0. */
DEVICE float draw_scale(float z, float temperature) { return draw_clean(draw_clean(z) / temperature + 0.0f); }

/* Scaling of many. Both logits and temperature of usual size: two Newton steps from the product with 1 / temperature are the
 * quotient, rounded once. */
struct draw_scaling {
    float temperature, inverse; /* 0: of unusual size */
};
DEVICE draw_scaling draw_scaling_of(const draw_stream &in)
{
    bool usual = in.temperature >= 0x1p-30f && in.temperature <= 0x1p30f;
    return {in.temperature, usual ? 1 / in.temperature : 0};
}
DEVICE void draw_scale_four(const draw_scaling &by, float z[4])
{
    bool usual = by.inverse != 0;
    UNROLL
    for (int i = 0; i < 4; i++) usual &= (float_bits(z[i]) & 0x7FFFFFFFu) - 0x20000000u < 0x40000000u; /* 2^-63 .. 2^65 */
    if (!usual) {
        UNROLL
        for (int i = 0; i < 4; i++) z[i] = draw_scale(z[i], by.temperature);
    } else if (by.temperature != 1) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            float q = z[i] * by.inverse;
            q = fused(fused(-q, by.temperature, z[i]), by.inverse, q);
            z[i] = fused(fused(-q, by.temperature, z[i]), by.inverse, q);
        }
    }
}

/* Bits that order as numbers do. */
DEVICE uint32_t draw_key(float z)
{
    uint32_t u = float_bits(z);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Larger: the larger value, of equal ones the lower id. 0: nothing. */
DEVICE uint64_t draw_place(float value, int32_t id)
{
    return (uint64_t)draw_key(value + 0.0f) << 32 | (0xFFFFFFFFu - (uint32_t)id);
}
DEVICE int32_t draw_id(uint64_t place) { return place ? (int32_t)(0xFFFFFFFFu - (uint32_t)place) : -1; }

/* Four logits of a row of `vocab` from id `first` on, a multiple of four; -inf behind the last. The rows of a matrix are
 * aligned to 16 bytes where vocab is a multiple of four. */
DEVICE void draw_four(const float *row, int first, int vocab, float z[4])
{
    if (vocab % 4 == 0) {
        quad q = *(const quad *)(row + first);
        UNROLL
        for (int i = 0; i < 4; i++) z[i] = bits_float(q.w[i]);
    } else {
        UNROLL
        for (int i = 0; i < 4; i++) z[i] = first + i < vocab ? row[first + i] : DRAW_NONE;
    }
}

/* What a mask leaves of them. */
DEVICE void draw_mask(const uint32_t *mask, int first, int vocab, float z[4])
{
    uint32_t bits = mask && first < vocab ? mask[first / 32] >> (first % 32) : ~0u;
    UNROLL
    for (int i = 0; i < 4; i++)
        if (!(bits >> i & 1)) z[i] = DRAW_NONE;
}

/* The best so far of one thread, which meets ids in ascending order. */
struct draw_best {
    float top;
    int32_t id;
};
DEVICE void draw_take(draw_best &best, float value, int32_t id)
{
    if (value > best.top) best.top = value, best.id = id;
}
DEVICE uint64_t draw_place(const draw_best &best) { return best.id < 0 ? 0 : draw_place(best.top, best.id); }

/*
 * z + noise of N times four logits, those of n from id `first` + n * step on, a multiple of four; those of -inf have no part.
 * All lanes of a warp come, with logits of one row. Most logits need no logarithm: `bound`, -inf at first, is what one of the
 * warp's logits reaches.
 */
template <int N>
DEVICE void draw_noisy(draw_best &best, float &bound, const draw_stream &in, const float (&z)[N][4], int first, int step)
{
    uint32_t x[N][4];
    bool begin = bound == DRAW_NONE;
    float most = DRAW_NONE, reached = DRAW_NONE;
    UNROLL for (int n = 0; n < N; n++) {
        float top = max(max(z[n][0], z[n][1]), max(z[n][2], z[n][3]));
        UNROLL for (int i = 0; i < 4; i++) x[n][i] = ~0u;
        if (top == DRAW_NONE || top + 33 * 0.6932f < bound) continue;
        draw_quad(in, (uint32_t)(first + n * step) / 4, x[n]);
        UNROLL for (int i = 0; i < 4; i++) {
            float zeros = draw_zeros(x[n][i]);
            most = max(most, z[n][i] + draw_most(zeros));
            if (begin) reached = max(reached, z[n][i] + draw_least(zeros));
        }
    }
    if (begin) {
        UNROLL for (int mask = 16; mask > 0; mask /= 2) reached = max(reached, lane_xor(reached, mask));
        bound = reached;
    }
    if (!lane_ballot(most > DRAW_NONE && most >= bound)) return;
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int i = 0; i < 4; i++) {
            if (z[n][i] == DRAW_NONE || z[n][i] + draw_most(draw_zeros(x[n][i])) < bound) continue;
            draw_take(best, z[n][i] + draw_noise(x[n][i]), first + n * step + i);
        }
    reached = best.top;
    UNROLL for (int mask = 16; mask > 0; mask /= 2) reached = max(reached, lane_xor(reached, mask));
    bound = max(bound, reached);
}

/* The best of a warp, in all lanes. */
DEVICE uint64_t draw_best_of_warp(uint64_t place)
{
    UNROLL
    for (int mask = 16; mask > 0; mask /= 2) {
        uint64_t other = lane_xor(place, mask);
        if (other > place) place = other;
    }
    return place;
}

#endif
