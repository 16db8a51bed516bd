/* IEEE half precision (binary16), for reading F16 tensors. */
#ifndef HAYATE_NUMBER_FP16_H
#define HAYATE_NUMBER_FP16_H

#include "number/bits.h"

/* Exact, subnormals included; a NaN keeps its sign and payload. */
static inline float fp16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7FFF;
    if (magnitude >= 0x7C00) return float_of_bits(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    if (magnitude >= 0x0400) return float_of_bits(sign | ((magnitude << 13) + ((127 - 15) << 23)));
    return float_of_bits(sign | bits_of_float((float)magnitude * 0x1p-24f));
}

#endif
