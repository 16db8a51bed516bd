/*
 * The inner loops themselves, over the vectors of lanes.h. Included once per instruction set by kernels_<set>.c, which
 * defines
 *
 *     KERNELS, NAME  the cpu_kernels to define, and what it is called
 *     TARGET         the function attribute that selects the instruction set
 *     WIDTH          lanes of its vectors: 16, 8 or 4; the 16 lanes of kernels.h are 16 / WIDTH of them
 */
#include "backend/cpu/lanes.h"

#include <math.h>
#include <string.h>

/* ---- Activations ------------------------------------------------------------------------------------------------ */

INLINE void sigmoid(vec *value)
{
    vec e = -*value;
    exponential(&e);
    *value = 1.0f / (1.0f + e);
}

TARGET static void swiglu_lanes(const float *gate, const float *up, float factor, float alpha, float limit, float plus,
                                float *out)
{
    for (int i = 0; i < LANES; i += WIDTH) {
        vec g, u, cap = SPLAT(limit);
        LOAD(g, gate + i);
        LOAD(u, up + i);
        g = g * factor, u = u * factor;
        g = SELECT(g > cap, cap, g);
        u = SELECT(u > cap, cap, u);
        u = SELECT(u < -cap, -cap, u);
        vec s = alpha * g;
        sigmoid(&s);
        vec y = (u + plus) * g * s;
        round_bf16(&y);
        STORE(out + i, y);
    }
}

TARGET static void sigmoid_lanes(const float *x, float *out)
{
    for (int i = 0; i < LANES; i += WIDTH) {
        vec v;
        LOAD(v, x + i);
        sigmoid(&v);
        STORE(out + i, v);
    }
}

TARGET static void exponential_lanes(const float *x, float *out)
{
    for (int i = 0; i < LANES; i += WIDTH) {
        vec v;
        LOAD(v, x + i);
        exponential(&v);
        STORE(out + i, v);
    }
}

/* ---- Norm ------------------------------------------------------------------------------------------------------ */

INLINE void norm_vector(const float *x, const float *gain, float inverse, bool round, size_t bytes, float *out)
{
    vec v = {0}, g = {0};
    __builtin_memcpy(&v, x, bytes);
    __builtin_memcpy(&g, gain, bytes);
    v = v * inverse * g;
    if (round) round_bf16(&v);
    __builtin_memcpy(out, &v, bytes);
}

TARGET static void rms_norm(const float *x, const float *gain, int n, float epsilon, bool round, float *out)
{
    vec squares[PARTS] = {{0}};
    float chain[LANES];
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int p = 0; p < PARTS; p++) {
            vec v;
            LOAD(v, x + i + p * WIDTH);
            squares[p] += v * v;
        }
    STORE(chain, squares);
    for (int j = 0; i + j < n; j++) chain[j] += x[i + j] * x[i + j];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) chain[j] += chain[j + width];
    float inverse = 1.0f / sqrtf(chain[0] / (float)n + epsilon);
    for (i = 0; i + WIDTH <= n; i += WIDTH) norm_vector(x + i, gain + i, inverse, round, sizeof(vec), out + i);
    if (i < n) norm_vector(x + i, gain + i, inverse, round, (size_t)(n - i) * sizeof *x, out + i);
}

const cpu_kernels KERNELS = {
    .name = NAME,
    .swiglu = swiglu_lanes,
    .sigmoid = sigmoid_lanes,
    .exponential = exponential_lanes,
    .rms_norm = rms_norm,
};
