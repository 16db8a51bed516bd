/*
 * Vectors of a cache block in kernels: encoding as backend/cpu/cache_rows.c does it, bit for bit, and decoding into pairs
 * of bf16 for the tensor cores. All formats decode exactly: what is read is the value, of NVFP4 the value / NVFP4_SHIFT,
 * which whoever multiplies takes back in its factor (cached_undo).
 *
 * Eight neighbouring values decode together. Of NVFP4 they come out in the order 0 4, 1 5, 2 6, 3 7 (see e2m1_pairs), of
 * the others in order: cached_order says which element is at which place. A product takes its other operand in that order;
 * where the values are the outputs, they are put in place as they are written.
 */
#ifndef HAYATE_BACKEND_CUDA_CACHE_CUH
#define HAYATE_BACKEND_CUDA_CACHE_CUH

#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/number.cuh"

/* Formats as kernels have them: KERNEL_CACHE_, and NVFP4 that is read back as E4M3 (READBACK_E4M3). */
enum { CACHED_NVFP4_E4M3 = KERNEL_CACHE_NVFP4 + 1 };
template <int FORMAT> DEVICE constexpr bool is_nvfp4()
{
    return FORMAT == KERNEL_CACHE_NVFP4 || FORMAT == CACHED_NVFP4_E4M3;
}

/* Bytes of `values` values without their scales. */
template <int FORMAT> DEVICE constexpr int cached_bytes(int values)
{
    return is_nvfp4<FORMAT>() ? values / 2 : FORMAT == KERNEL_CACHE_FP8 ? values : values * 2;
}

/* A product with decoded values is to be multiplied by this. */
template <int FORMAT> DEVICE constexpr float cached_undo()
{
    return is_nvfp4<FORMAT>() ? NVFP4_SHIFT : 1.0f;
}

/* Which of eight elements is at place i of the decoded ones. */
template <int FORMAT> DEVICE constexpr int cached_order(int i)
{
    return is_nvfp4<FORMAT>() ? i / 2 + i % 2 * 4 : i;
}

/*
 * Which element of a key is at place i of the DIM that a product with it adds up, 16 an MMA. Of NVFP4 with 128 dims a thread that
 * loads 16 bytes has a quarter of the key, elements 32t .. 32t+31, and every MMA takes four of each quarter, so that four
 * threads have an operand in their registers as they decode it: place 16k + 8p + 2t + h is element
 * 32t + 8 (k / 2) + 2 (k % 2) + p + 4h. Of the others eight neighbours stay together.
 */
template <int FORMAT, int DIM> DEVICE constexpr int key_order(int i)
{
    return is_nvfp4<FORMAT>() && DIM == 128 ? i % 8 / 2 * 32 + i / 32 * 8 + i / 16 % 2 * 2 + i % 16 / 8 + i % 2 * 4
                                            : i / 8 * 8 + cached_order<FORMAT>(i % 8);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

/* What E4M3 holds of a product. */
DEVICE uint32_t round_pair_e4m3(uint32_t pair)
{
    float low = float_of_e4m3(e4m3_of_float(low_float(pair) * NVFP4_SHIFT)) / NVFP4_SHIFT;
    float high = float_of_e4m3(e4m3_of_float(high_float(pair) * NVFP4_SHIFT)) / NVFP4_SHIFT;
    return bf16_pair(low, high);
}

/* Four codes of E4M3 in order. */
DEVICE void e4m3_values(uint32_t word, uint32_t pair[2])
{
    e4m3_pairs(word, pair);
    pair[0] = multiply_pairs(pair[0], E4M3_UNIT);
    pair[1] = multiply_pairs(pair[1], E4M3_UNIT);
    if (!e4m3_nan(word)) return;
    uint32_t code[2];
    e4m3_pairs(word, code); /* exponent and mantissa at bits 10 .. 4: those of a NaN, and a one, reach bit 11 */
    UNROLL for (int i = 0; i < 2; i++)
        pair[i] |= (((code[i] & 0x07F007F0u) + 0x00100010u) & 0x08000800u) / 0x0800u * 0x7FC0u;
}

/* Units (nvfp4_unit) of the scales in the two low bytes, the first one's in the low half. */
DEVICE bool plain_scales(uint32_t both) /* not negative nor NaN: nobody stores the one, few the other */
{
    return ((both | (both + 0x0101u)) & 0x8080u) == 0;
}
DEVICE uint32_t plain_units(uint32_t both)
{
    uint32_t two = (both & 0x7F) << 4 | (both & 0x7F00) << 12; /* as nvfp4_unit, one in each half */
    return multiply_pairs(multiply_pairs(two, 0x7F007F00u), 0x76007600u);
}
/* The same of the two low or the two high bytes of a word. */
DEVICE uint32_t units_of_bytes(uint32_t word, int high)
{
    uint32_t two = permute_bytes(word, 0, high ? 0x4342 : 0x4140) << 4;
    return multiply_pairs(multiply_pairs(two, 0x7F007F00u), 0x76007600u);
}
DEVICE uint32_t any_units(uint32_t both)
{
    return permute_bytes(nvfp4_unit(both & 0xFF), nvfp4_unit(both >> 8 & 0xFF), 0x7610);
}
/* One of them in both halves. */
DEVICE uint32_t unit_of_two(uint32_t two, int second) { return permute_bytes(two, two, second ? 0x3232 : 0x1010); }
DEVICE void nvfp4_units(uint32_t both, uint32_t unit[2])
{
    uint32_t two = plain_scales(both) ? plain_units(both) : any_units(both);
    unit[0] = unit_of_two(two, 0), unit[1] = unit_of_two(two, 1);
}

/* Eight values from cached_bytes(8) bytes in `word`; `unit` is nvfp4_unit of their scale. */
template <int FORMAT> DEVICE void decode_eight(const uint32_t *word, uint32_t unit, uint32_t pair[4])
{
    if constexpr (is_nvfp4<FORMAT>()) {
        e2m1_pairs(word[0], pair);
        UNROLL for (int i = 0; i < 4; i++) pair[i] = multiply_pairs(pair[i], unit);
        if constexpr (FORMAT == CACHED_NVFP4_E4M3)
            UNROLL for (int i = 0; i < 4; i++) pair[i] = round_pair_e4m3(pair[i]);
    } else if constexpr (FORMAT == KERNEL_CACHE_FP8) {
        e4m3_values(word[0], pair);
        e4m3_values(word[1], pair + 2);
    } else {
        UNROLL for (int i = 0; i < 4; i++) pair[i] = word[i];
    }
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

/*
 * One vector of `dim` values (a multiple of 16, at most 128), by a warp: lane l gives the values 2l, 2l + 1 and 2l + 64,
 * 2l + 65, as far as there are any. The NVFP4 scale of group g goes to scales[g * stride].
 */
DEVICE void encode_vector(int format, float scale, const float x[4], int dim, uint8_t *data, uint8_t *scales, int stride)
{
    int lane = threadIdx.x % CUDA_WARP;
    UNROLL for (int part = 0; part < 2; part++) {
        int i = 2 * lane + 64 * part;
        float a = round_bf16(x[2 * part]), b = round_bf16(x[2 * part + 1]);
        if (format == KERNEL_CACHE_NVFP4) {
            if (64 * part >= dim) return;
            /* The largest magnitude of eight lanes, NaN if one of them has one: as numbers of their bits NaN is above
             * everything. */
            uint32_t most = max(float_bits(a) & 0x7FFFFFFFu, float_bits(b) & 0x7FFFFFFFu);
            UNROLL for (int mask = 1; mask < 8; mask *= 2) most = max(most, lane_xor(most, mask));
            uint32_t code = nvfp4_scale(bits_float(most) / 6);
            float unit = float_of_e4m3(code);
            if (i >= dim) continue;
            data[i / 2] = (uint8_t)(e2m1_of_float(a / unit) | e2m1_of_float(b / unit) << 4);
            if (i % 16 == 0) scales[i / 16 * stride] = (uint8_t)code;
        } else if (i < dim && format == KERNEL_CACHE_FP8) {
            data[i] = (uint8_t)e4m3_of_float(a / scale);
            data[i + 1] = (uint8_t)e4m3_of_float(b / scale);
        } else if (i < dim) {
            ((uint32_t *)data)[i / 2] = bf16_pair(a, b);
        }
    }
}

#endif
