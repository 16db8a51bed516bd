/* E8M0, the scale of the OCP Microscaling specification: the byte e is 2^(e-127); 255 is NaN. No zero, no sign. */
#ifndef HAYATE_NUMBER_E8M0_H
#define HAYATE_NUMBER_E8M0_H

#include "number/bits.h"

enum { E8M0_NAN = 255 };

/* 2^(e-127), exact: 0 gives 2^-127, a subnormal fp32 number. */
static inline float e8m0_to_float(uint8_t e)
{
    if (e == E8M0_NAN) return float_of_bits(0x7FC00000);
    return float_of_bits(e ? (uint32_t)e << 23 : 0x00400000);
}

/* 2^(127-e), the factor that undoes the scale; exact. e up to 254. */
static inline float e8m0_inverse(uint8_t e)
{
    return e8m0_to_float((uint8_t)(e == E8M0_NAN ? E8M0_NAN : 254 - e));
}

/* The smallest power of two that is at least x, for x from 2^-126 up. Smaller positive x give 1 (2^-126), zero and less
 * give 0, infinity is capped at 254, NaN gives 255. */
static inline uint8_t e8m0_ceil(float x)
{
    uint32_t u = bits_of_float(x);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return E8M0_NAN;
    if (u >> 31 || u == 0) return 0;
    uint32_t e = (u >> 23) + ((u & 0x7FFFFF) != 0);
    return (uint8_t)(e > 254 ? 254 : e);
}

#endif
