/*
 * Vectors of WIDTH lanes (the vector extension of gcc and clang) and the elementary steps on them, for the inner loops.
 * Included by *_body.h, once per instruction set, with WIDTH (16, 8 or 4) defined.
 *
 * Vectors are passed by address and only between functions that are always inlined, so that no calling convention
 * depends on the instruction set.
 */
#ifndef HAYATE_BACKEND_CPU_LANES_H
#define HAYATE_BACKEND_CPU_LANES_H

#include "backend/cpu/kernels.h"

#include <math.h>

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t vec_int __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t vec_bits __attribute__((vector_size(4 * WIDTH)));

#define INLINE TARGET static inline __attribute__((always_inline))
#define PARTS (LANES / WIDTH)

/* memcpy keeps loads and stores free of alignment and aliasing assumptions; it compiles to one move. */
#define LOAD(v, p) __builtin_memcpy(&(v), (p), sizeof(v))
#define STORE(p, v) __builtin_memcpy((p), &(v), sizeof(v))
#define SPLAT(x) ((x) - (vec){0})
/* Lanes of `a` where the mask (a comparison: all bits set) holds, else of `b`. */
#define SELECT(mask, a, b) ((vec)(((mask) & (vec_int)(a)) | (~(mask) & (vec_int)(b))))
/* Unsigned, so that bits may fall off at the top. */
#define SHIFT_LEFT(v, n) ((vec_int)((vec_bits)(v) << (n)))
#define SHIFT_RIGHT(v, n) ((vec_int)((vec_bits)(v) >> (n)))
#define SIGN ((int32_t)0x80000000)

/* ---- Elementary steps ------------------------------------------------------------------------------------------ */

INLINE void round_bf16(vec *x)
{
    vec_int u = (vec_int)*x, magnitude = u & 0x7FFFFFFF;
    vec_int rounded = (vec_int)((vec_bits)u + 0x7FFF + (SHIFT_RIGHT(u, 16) & 1));
    vec_int nan = magnitude > 0x7F800000;
    *x = (vec)(((nan & (u | 0x400000)) | (~nan & rounded)) & (int32_t)0xFFFF0000);
}

/*
 * e^x = 2^n e^r, n = round(x / ln 2), r = x - n ln 2 in two parts (n * LN2_HIGH is exact), e^r by its Taylor series to
 * r^7: |r| <= 0.3466, so what is left out is below 6e-9 of the result.
 */
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f

INLINE void exponential(vec *value)
{
    vec x = *value, magic = SPLAT(0x1.8p23f);
    vec t = x * 0x1.715476p0f + magic, n = t - magic;
    vec r = x - n * LN2_HIGH;
    r = r - n * LN2_LOW;
    vec y = r * (1.0f / 5040) + (1.0f / 720);
    y = y * r + (1.0f / 120);
    y = y * r + (1.0f / 24);
    y = y * r + (1.0f / 6);
    y = y * r + 0.5f;
    y = y * r * r + r + 1.0f;
    /* The low bits of t hold n; for the x that are replaced below they can be anything. */
    vec power = (vec)(((vec_bits)t - 0x4B400000u + 127u) << 23);
    y = y * power;
    y = SELECT(x < -87.0f, SPLAT(0.0f), y);
    y = SELECT(x > 88.0f, SPLAT(INFINITY), y);
    *value = SELECT(x != x, x, y);
}

/* ---- Number formats --------------------------------------------------------------------------------------------- */

/* E4M3 codes in the top bytes of lanes to values: normals by placing exponent and mantissa, subnormals (codes below 8)
 * as multiples of 2^-9. */
INLINE void e4m3_values(const vec_int *top, vec *out)
{
    vec_int magnitude = SHIFT_RIGHT(*top, 4) & 0x07F00000; /* code << 20 */
    vec normal = (vec)(magnitude + (120 << 23));
    vec small = __builtin_convertvector(magnitude, vec) * 0x1p-29f;
    vec_int v = (vec_int)SELECT(magnitude < 8 << 20, small, normal);
    v |= (magnitude == 0x7F << 20) & 0x7FC00000;
    *out = (vec)(v | (*top & SIGN));
}

/* UE8M0 codes in the top bytes of lanes: the exponent field, but for 0 (a subnormal number) and 255 (NaN). */
INLINE void e8m0_values(const vec_int *top, vec *out)
{
    vec_int exponent = SHIFT_RIGHT(*top, 1) & 0x7F800000;
    vec_int v = exponent | ((exponent == 0) & 0x00400000) | ((exponent == 0x7F800000) & 0x7FC00000);
    *out = (vec)v;
}

/* E2M1 codes in the top four bits of lanes. The magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6, doubled, are the hexadecimal
 * digits of a constant. `half_scale` takes the doubling back. */
INLINE void e2m1_values(const vec_int *top, const vec *half_scale, vec *out)
{
    vec_bits table = 0xC8643210u - (vec_bits){0}, digit = ((vec_bits)*top >> 26) & 28;
    vec_int twice = (vec_int)((table >> digit) & 15);
    vec v = (vec)((vec_int) __builtin_convertvector(twice, vec) | (*top & SIGN));
    *out = v * *half_scale;
}

#endif
