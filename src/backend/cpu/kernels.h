/*
 * Inner loops of the cpu backend that are neither over weights nor over cache blocks: norms, activations.
 *
 * Every loop works on 16 independent lanes (16 outputs, 16 query heads, 16 tokens), so that a sum over K is one chain
 * in ascending K whatever the vector length of the machine. No multiplication is fused with an addition. Therefore all
 * variants in cpu_kernels_all give the same bits, and a faster variant can be held to the portable one exactly.
 *
 * Arrays written with a trailing [16] are lanes and 64-byte aligned.
 */
#ifndef HAYATE_BACKEND_CPU_KERNELS_H
#define HAYATE_BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LANES = 16,
    LINE = 64,      /* bytes of 16 lanes */
    MXFP8_UNIT = 128,
    MXFP8_UNIT_LINES = 33,
    NVFP4_UNIT = 64,
    NVFP4_UNIT_LINES = 9,
};

typedef struct cpu_kernels {
    const char *name; /* "avx512", "avx2", "portable" */

    /* bf16( (u + plus) g sigmoid(alpha g) ), g = min(factor gate, limit), u = clamp(factor up, -limit, limit), of 16. */
    void (*swiglu)(const float *gate, const float *up, float factor, float alpha, float limit, float plus, float *out);
    /* 1 / (1 + e^-x) of 16 values. */
    void (*sigmoid)(const float *x, float *out);
    /* e^x of 16 values, error below 2 ulp: 0 below -87, infinity above 88, NaN stays. */
    void (*exponential)(const float *x, float *out);

    /* out = x / sqrt(mean(x^2) + epsilon) * gain, n values; the sum of squares runs in 16 interleaved chains that are
     * folded pairwise. Rounded to bf16 if `round`. out may be x. */
    void (*rms_norm)(const float *x, const float *gain, int n, float epsilon, bool round, float *out);
} cpu_kernels;

/* One source, kernels_body.h, compiled per instruction set. */
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx512, cpu_kernels_avx2;
#endif
extern const cpu_kernels cpu_kernels_portable;

/* The fastest variant that this machine runs. */
const cpu_kernels *cpu_kernels_best(void);
/* All variants that this machine runs, the portable one last; returns how many. For tests. */
int cpu_kernels_all(const cpu_kernels *all[4]);

#endif
