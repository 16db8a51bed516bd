/*
 * E4M3, the "fn" kind of the OCP 8-bit floating point specification: s eeee mmm, bias 7, no infinity.
 *
 *     e > 0: (1 + m/8) * 2^(e-7)      e = 0: m * 2^-9      0x7F and 0xFF: NaN
 *
 * Largest 448 = 0x7E, smallest normal 2^-6 = 0x08, smallest subnormal 2^-9 = 0x01.
 */
#ifndef HAYATE_NUMBER_E4M3_H
#define HAYATE_NUMBER_E4M3_H

#include "number/bits.h"

/* The value of every code. */
extern const float e4m3_table[256];

/* Round to nearest, ties to even, saturating at +-448 (infinity too); NaN becomes 0x7F; the sign of zero is kept. Equal
 * to the conversion cvt.rn.satfinite.e4m3x2.f32 of the PTX instruction set. */
static inline uint8_t e4m3_from_float(float x)
{
    uint32_t u = bits_of_float(x), a = u & 0x7FFFFFFF, code;
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);
    if (a > 0x7F800000) return 0x7F;
    if (a < 0x3C800000) {
        /* Below 2^-6 the codes are multiples of 2^-9. Adding 1.5 * 2^14, where fp32 steps by 2^-9, rounds to one. */
        code = bits_of_float(float_of_bits(a) + 0x1.8p14f) & 0xF;
    } else {
        code = ((a + 0x7FFFF + (a >> 20 & 1)) >> 20) - ((127 - 7) << 3);
        if (code > 0x7E) code = 0x7E;
    }
    return (uint8_t)(sign | code);
}

/* Exact. */
static inline float e4m3_to_float(uint8_t code)
{
    return e4m3_table[code];
}

/* The nearest E4M3 value, as fp32. */
static inline float e4m3_round(float x)
{
    return e4m3_table[e4m3_from_float(x)];
}

#endif
