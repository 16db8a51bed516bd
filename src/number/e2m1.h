/*
 * E2M1, the 4-bit element of the OCP Microscaling specification: bit 3 is the sign, the lower three bits number the
 * magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. No infinity, no NaN.
 *
 * Two codes make a byte, the even element in the low nibble.
 */
#ifndef HAYATE_NUMBER_E2M1_H
#define HAYATE_NUMBER_E2M1_H

#include <stdbool.h>
#include <stdint.h>

/* The value of every code; code 8 is -0. */
extern const float e2m1_table[16];

/* Round to nearest, ties to the even code, saturating at +-6. Zero never carries a sign, so code 8 is never made. NaN
 * gives 0: a format that uses E2M1 carries NaN in its scale. */
static inline uint8_t e2m1_from_float(float x)
{
    float a = x < 0 ? -x : x;
    int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)(code + (code != 0 && x < 0 ? 8 : 0));
}

/* Exact. Only the low four bits of `code` count. */
static inline float e2m1_to_float(uint8_t code)
{
    return e2m1_table[code & 15];
}

/* Element i of packed codes. */
static inline uint8_t e2m1_code(const uint8_t *packed, uint64_t i)
{
    return (uint8_t)(packed[i / 2] >> (i % 2 * 4) & 15);
}

#endif
