/*
 * Number formats in kernels. src/number is the definition; tests hold every function to it, all codes of it where that
 * can be.
 *
 * Two kinds. One number at a time: float_of_FORMAT, FORMAT_of_float, as the functions of src/number. And what feeds the
 * tensor cores: words of codes to pairs of bf16, the lower element in the lower half. E4M3 has 4 significant bits and a
 * product of E2M1 and E4M3 has 6, so bf16 holds both exactly, and so it does times any power of two in its range (below 2^-126 the last bits go). The codes
 * are put where bf16 has its exponent and mantissa, which gives the value times a power of two as subnormals give it too,
 * and one multiplication by a `unit` brings scale and power of two:
 *
 *     E4M3       value * 2^-120 by its bits; unit 2^120 (E4M3_UNIT), or of MXFP8 mxfp8_unit(scale byte)
 *     E2M1       value * 2^-126 by its bits; unit scale * 2^116, so that the pairs are code * scale / NVFP4_SHIFT (with the
 *                whole power the unit would leave bf16's range). The sum times NVFP4_SHIFT is exact.
 */
#ifndef HAYATE_BACKEND_CUDA_NUMBER_CUH
#define HAYATE_BACKEND_CUDA_NUMBER_CUH

#include "backend/cuda/kernels/kernel.cuh"

/* ---- One number -------------------------------------------------------------------------------------------------- */

DEVICE float float_of_bf16(uint32_t h) { return bits_float(h << 16); }
/* The halves of a pair. */
DEVICE float low_float(uint32_t pair) { return bits_float(pair << 16); }
DEVICE float high_float(uint32_t pair) { return bits_float(pair & 0xFFFF0000u); }

DEVICE uint16_t bf16_of_float(float x)
{
    uint32_t u = float_bits(x);
    uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16 | 0x40) : rounded);
}
DEVICE uint32_t bf16_pair(float low, float high)
{
    return (uint32_t)bf16_of_float(low) | (uint32_t)bf16_of_float(high) << 16;
}
/* The nearest bf16 value, as fp32. */
DEVICE float round_bf16(float x) { return float_of_bf16(bf16_of_float(x)); }

DEVICE float float_of_e4m3(uint32_t code)
{
    float magnitude = (code & 0x7F) == 0x7F ? bits_float(0x7FC00000u) : bits_float((code & 0x7F) << 20) * 0x1p120f;
    return bits_float(float_bits(magnitude) | (code & 0x80) << 24);
}
/* Nearest, ties to even, saturating at 448; NaN gives 0x7F; the sign of zero is kept. */
DEVICE uint32_t e4m3_of_float(float x)
{
    uint32_t u = float_bits(x), a = u & 0x7FFFFFFFu, sign = u >> 24 & 0x80, code;
    if (a > 0x7F800000u) return 0x7F;
    if (a < 0x3C800000u) {
        /* Below 2^-6 the codes are multiples of 2^-9: adding 1.5 * 2^14 rounds to one. */
        code = float_bits(bits_float(a) + 0x1.8p14f) & 0xF;
    } else {
        code = ((a + 0x7FFFFu + (a >> 20 & 1)) >> 20) - (120u << 3);
        if (code > 0x7E) code = 0x7E;
    }
    return sign | code;
}

DEVICE float float_of_e2m1(uint32_t code)
{
    float magnitude = bits_float((code & 7) << 22) * 0x1p126f;
    return bits_float(float_bits(magnitude) | (code & 8) << 28);
}
/* Nearest, ties to even, saturating at 6; never a negative zero; NaN gives 0. */
DEVICE uint32_t e2m1_of_float(float x)
{
    float a = x < 0 ? -x : x;
    uint32_t code = (uint32_t)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return code + (code != 0 && x < 0 ? 8 : 0);
}

/* 2^(e - 127); 255 is NaN. */
DEVICE float float_of_e8m0(uint32_t e)
{
    return e == 255 ? bits_float(0x7FC00000u) : bits_float(e ? e << 23 : 0x00400000u);
}

/* Scale byte of an NVFP4 group from the E4M3 argument (its largest magnitude / 6, of a second matrix's input times 16): never 0,
 * and the NaN code of a NaN. */
DEVICE uint32_t nvfp4_scale(float x)
{
    uint32_t code = e4m3_of_float(x);
    return code ? code : 0x01;
}

/* ---- Pairs of bf16 ------------------------------------------------------------------------------------------------ */

/* Both halves of a times those of b, each rounded once; subnormals are kept. */
DEVICE uint32_t multiply_pairs(uint32_t a, uint32_t b) { return fused_pairs(a, b, 0x80008000u); }

#define E4M3_UNIT 0x7B807B80u

/* Codes 0, 1 and 2, 3 of a word, times 2^-120. A NaN code reads as 480 * 2^-120: see e4m3_nan. */
DEVICE void e4m3_pairs(uint32_t word, uint32_t pair[2])
{
    uint32_t low = (word & 0xFFu) << 8 | (word & 0xFF00u) << 16, high = (word >> 8 & 0xFF00u) | (word & 0xFF000000u);
    pair[0] = (low & 0x80008000u) | (low >> 4 & 0x07F007F0u);
    pair[1] = (high & 0x80008000u) | (high >> 4 & 0x07F007F0u);
}
/* The same in ten instructions for sixteen, for kernels that instructions bound: nvcc takes more registers around it. */
DEVICE void e4m3_pairs_permuted(uint32_t word, uint32_t pair[2])
{
    uint32_t low = permute_bytes(word, 0, 0x1404), high = permute_bytes(word, 0, 0x3424); /* upper half of each 16 bits */
    pair[0] = (low & 0x80008000u) | (low >> 4 & 0x07F007F0u);
    pair[1] = (high & 0x80008000u) | (high >> 4 & 0x07F007F0u);
}
/* Codes 0, 2 and 1, 3 of a word, times 2^-120: fewer instructions, for operands whose other side is in this order too. */
DEVICE void e4m3_pairs_apart(uint32_t word, uint32_t pair[2])
{
    pair[0] = (word << 8 & 0x80008000u) | (word << 4 & 0x07F007F0u);
    pair[1] = (word & 0x80008000u) | (word >> 4 & 0x07F007F0u);
}
/* Does a word of codes have a NaN? */
DEVICE bool e4m3_nan(uint32_t word) { return (((word & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) != 0; }

/* Unit of an MXFP8 block whose scale byte is at most 134 (2^7); above that the pairs take a second factor, see
 * mxfp8_unit_rest. */
enum { MXFP8_UNIT_MOST = 134 };
DEVICE uint32_t mxfp8_unit(uint32_t scale)
{
    return ((scale < MXFP8_UNIT_MOST ? scale : (uint32_t)MXFP8_UNIT_MOST) + 120) * 0x00800080u;
}
/* 2^(scale - 134) of a larger scale byte, infinity where there is no such bf16. */
DEVICE uint32_t mxfp8_unit_rest(uint32_t scale)
{
    return (scale - MXFP8_UNIT_MOST + 127 < 255 ? scale - MXFP8_UNIT_MOST + 127 : 255) * 0x00800080u;
}

#define NVFP4_SHIFT 1024.0f

/* Elements (2,6), (3,7) of a word of eight codes, times 2^-126. Of a code, bits 0 .. 2 go to 6 .. 8 and bit 3 to 15.
 * Elements 3 and 7 have their signs there as they lie, and 2 and 6 four bits lower: so one choice between the word and the
 * word shifted by six has all four, and what it has besides goes when they are taken apart. */
#define E2M1_CHOICE 0x01DC01DCu /* magnitudes of both, before */
#define E2M1_PAIR 0x81C081C0u
DEVICE void e2m1_upper_pairs(uint32_t word, uint32_t pair[2])
{
    uint32_t both = choose_bits(E2M1_CHOICE, word >> 6, word);
    pair[0] = both << 4 & E2M1_PAIR;
    pair[1] = both & E2M1_PAIR;
}
/* Elements (0,4), (1,5), (2,6), (3,7), in eleven instructions. For operands whose other side is in this order too;
 * nvfp4_pairs has them in order. */
DEVICE void e2m1_pairs(uint32_t word, uint32_t pair[4])
{
    uint32_t both = choose_bits(E2M1_CHOICE, word << 2, word << 8); /* as above of the word a byte higher */
    pair[0] = both << 4 & E2M1_PAIR;
    pair[1] = both & E2M1_PAIR;
    e2m1_upper_pairs(word, pair + 2);
}
/* Unit of a group with this E4M3 scale: scale * 2^116 in both halves. */
DEVICE uint32_t nvfp4_unit(uint32_t scale)
{
    uint32_t unit = multiply_pairs((scale & 0x7F) * 0x00100010u, 0x7F007F00u); /* scale * 2^-120 * 2^127 */
    unit = multiply_pairs(unit, 0x76007600u);                                  /* 2^109 */
    unit |= (scale & 0x80) * 0x01000100u;
    return (scale & 0x7F) == 0x7F ? 0x7FC07FC0u : unit;
}
/* Elements (0,1), (2,3), (4,5), (6,7) of a word of eight codes with their group's unit: code * scale / NVFP4_SHIFT. */
DEVICE void nvfp4_pairs(uint32_t word, uint32_t unit, uint32_t pair[4])
{
    uint32_t p[4];
    e2m1_pairs(word, p);
    UNROLL for (int i = 0; i < 4; i++) p[i] = multiply_pairs(p[i], unit);
    pair[0] = (p[0] & 0xFFFFu) | p[1] << 16;
    pair[1] = (p[2] & 0xFFFFu) | p[3] << 16;
    pair[2] = p[0] >> 16 | (p[1] & 0xFFFF0000u);
    pair[3] = p[2] >> 16 | (p[3] & 0xFFFF0000u);
}

#endif
