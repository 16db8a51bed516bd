/*
 * Rounding by search, in double: what "the nearest value, ties to the even code" means, written without any of the bit
 * tricks of src/number. Values of codes come from the formula of the format.
 */
#ifndef TESTS_NUMBER_NEAREST_H
#define TESTS_NUMBER_NEAREST_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

static inline double e4m3_formula(unsigned code)
{
    int e = code >> 3 & 15, m = code & 7;
    if (e == 15 && m == 7) return NAN;
    double v = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m, -9);
    return code & 0x80 ? -v : v;
}

static inline double e2m1_formula(unsigned code)
{
    int e = code >> 1 & 3, m = code & 1;
    double v = e ? ldexp(1 + m / 2.0, e - 1) : m / 2.0;
    return code & 8 ? -v : v;
}

/* The code in 0..last whose value is nearest to a >= 0; values rise with the code; ties go to the even code; what is
 * beyond the last one goes to it. */
static inline unsigned nearest_code(double a, double (*value)(unsigned), unsigned last)
{
    unsigned low = 0, high = last;
    if (a >= value(last)) return last;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (value(middle) <= a)
            low = middle;
        else
            high = middle;
    }
    double below = a - value(low), above = value(high) - a;
    return below < above || (below == above && low % 2 == 0) ? low : high;
}

static inline unsigned e4m3_nearest(double x)
{
    if (isnan(x)) return 0x7F;
    return nearest_code(fabs(x), e4m3_formula, 0x7E) | (signbit(x) ? 0x80 : 0);
}

static inline unsigned e2m1_nearest(double x)
{
    unsigned code = nearest_code(fabs(x), e2m1_formula, 7);
    return code && x < 0 ? code | 8 : code;
}

static inline float float_from(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint32_t bits_from(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* x / y rounded once to fp32: a double quotient of two fp32 numbers has enough digits that rounding it again does no
 * harm (53 >= 2 * 24 + 2). */
static inline float divided(float x, float y)
{
    return (float)((double)x / (double)y);
}

/* xorshift64* (Vigna), and a bell-shaped number from it: the sum of 12 uniform ones less 6. */
static inline uint32_t draw_bits(uint64_t *state)
{
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return (uint32_t)(*state * 0x2545F4914F6CDD1Du >> 32);
}

static inline float draw_bell(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += draw_bits(state) * 0x1p-32;
    return (float)sum;
}

#endif
