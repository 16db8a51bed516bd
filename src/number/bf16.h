/* bfloat16: the upper half of an fp32 number (sign, 8 exponent bits, 7 mantissa bits). */
#ifndef HAYATE_NUMBER_BF16_H
#define HAYATE_NUMBER_BF16_H

#include "number/bits.h"

/* Round to nearest, ties to even; what is beyond the range becomes infinity; a NaN keeps its sign and its upper payload
 * bits and becomes quiet. */
static inline uint16_t bf16_from_float(float x)
{
    uint32_t u = bits_of_float(x);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* Exact. */
static inline float bf16_to_float(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

/* The nearest bf16 value, as fp32. */
static inline float bf16_round(float x)
{
    return bf16_to_float(bf16_from_float(x));
}

#endif
