#include "base/random.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>

/* Multipliers of the two halves and the steps of the two key words (Weyl sequences of the golden ratio and of
 * sqrt(3)-1), as published with Philox4x32. */
#define MULTIPLIER_0 0xD2511F53u
#define MULTIPLIER_1 0xCD9E8D57u
#define STEP_0 0x9E3779B9u
#define STEP_1 0xBB67AE85u

void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)MULTIPLIER_0 * c0, b = (uint64_t)MULTIPLIER_1 * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0, c1 = (uint32_t)b, c2 = n2, c3 = (uint32_t)a;
        k0 += STEP_0, k1 += STEP_1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

void random_quad(uint64_t seed, uint32_t position, random_purpose purpose, uint32_t choice, uint32_t quad,
                 uint32_t anchor, uint32_t out[4])
{
    assert(choice < 1u << 24);
    uint32_t counter[4] = {position, (uint32_t)purpose << 24 | choice, quad, anchor};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    random_philox(counter, key, out);
}

float random_uniform(uint32_t x)
{
    float u = (float)x * 0x1p-32f + 0x1p-33f;
    return u < 1 - 0x1p-24f ? u : 1 - 0x1p-24f;
}

/*
 * Both logarithms bring their argument to 2^k (1 + f) with 1 + f in [2/3, 4/3) and f exact, and sum
 *
 *     k ln 2 + (f + f^2 P(f))
 *
 * P is the polynomial of degree 8 that keeps the largest error of f + f^2 P(f), relative to log(1 + f), smallest on
 * |f| <= 1/3, with its coefficients rounded to fp32 one after the other, each time fitting the rest again: 2^-27.7.
 * The rounding of ln 2 itself costs at most a twentieth of the last place, so one constant is enough.
 */
static float log_of(float k, float f)
{
    float p = -0x1.07d576p-3f;
    p = fmaf(p, f, 0x1.1e6b14p-3f);
    p = fmaf(p, f, -0x1.f32c54p-4f);
    p = fmaf(p, f, 0x1.1ed5ccp-3f);
    p = fmaf(p, f, -0x1.559c8cp-3f);
    p = fmaf(p, f, 0x1.99d04ap-3f);
    p = fmaf(p, f, -0x1.fffefap-3f);
    p = fmaf(p, f, 0x1.555506p-2f);
    p = fmaf(p, f, -0.5f);
    float square = f * f;
    return fmaf(k, 0x1.62e430p-1f, fmaf(square, p, f));
}

/* The k of x = 2^k m with m in [2/3, 4/3): 0x3F2AAAAB is the first fp32 number above 2/3. */
static int exponent_of(uint32_t bits)
{
    return (int)((bits - 0x3F2AAAABu + (128u << 23)) >> 23) - 128;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

float random_log(float x)
{
    uint32_t bits = bits_of(x);
    int k = exponent_of(bits);
    return log_of((float)k, float_of(bits - ((uint32_t)k << 23)) - 1);
}

float random_log1p(float x)
{
    /* k comes from the rounded sum; f = 2^-k x + (2^-k - 1) is then exact, because 2^-k <= 2^24 and x is no finer than
     * needed: for k = 0 it is x itself, below that x has steps of 2^-24 at least. */
    int k = exponent_of(bits_of(1 + x));
    float scale = float_of((uint32_t)(127 - k) << 23);
    return log_of((float)k, fmaf(x, scale, scale - 1));
}

float random_gumbel(uint32_t x)
{
    return -random_log(-random_log1p(-random_uniform(x)));
}

int64_t random_seed(void)
{
    uint64_t seed;
    ssize_t got;
    do got = getrandom(&seed, sizeof seed, 0);
    while (got < 0 && errno == EINTR);
    assert(got == (ssize_t)sizeof seed); /* a running kernel always has this many bytes */
    return (int64_t)(seed >> 1);
}
