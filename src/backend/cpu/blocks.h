/*
 * The inner loops of the cpu backend over cache blocks. As with kernels.h, every loop works on 16 independent lanes and
 * all variants give the same bits.
 */
#ifndef HAYATE_BACKEND_CPU_BLOCKS_H
#define HAYATE_BACKEND_CPU_BLOCKS_H

#include "backend/cpu/kernels.h"

/* Softmax state of 16 query heads over the blocks seen so far. */
typedef struct cpu_softmax {
    float max[LANES]; /* M, -inf before the first block */
    float sum[LANES]; /* L */
} cpu_softmax;

typedef struct cpu_blocks {
    const char *name; /* "avx512", "avx2", "portable" */

    /*
     * One block of one query row for 16 heads that share a KV head, folded into the state:
     *     s_t = scale * q.k_t;  m_b = max s;  e_t = exp(s_t - m_b);  l_b = sum e;  o_b = sum bf16(e_t) v_t, t ascending
     *     m = max(M, m_b);  L = L e^(M-m) + l_b e^(m_b-m);  O likewise;  M = m
     * q [dim][16], k and v [tokens][dim], out O [dim][16]; scratch [128 + dim][16].
     */
    void (*attend_block)(const float *q, const float *k, const float *v, int tokens, int dim, float scale,
                         cpu_softmax *state, float *out, float *scratch);
} cpu_blocks;

/* One source, blocks_body.h, compiled per instruction set. */
#if defined(__x86_64__)
extern const cpu_blocks cpu_blocks_avx512, cpu_blocks_avx2;
#endif
extern const cpu_blocks cpu_blocks_portable;

/* The fastest variant that this machine runs. */
const cpu_blocks *cpu_blocks_best(void);
/* All variants that this machine runs, the portable one last; returns how many. For tests. */
int cpu_blocks_all(const cpu_blocks *all[4]);

#endif
