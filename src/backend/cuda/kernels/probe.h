/* Kernels that show what the tensor cores and the asynchronous copies of this GPU do; for tests, none is part of a step. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_PROBE_H
#define HAYATE_BACKEND_CUDA_KERNELS_PROBE_H

#include <stdint.h>

enum {
    PROBE_K = 128, /* of the kernels probe_wgmma_N */
    PROBE_COLUMNS = 128, /* of probe_chain and probe_ring */
    PROBE_SHARED = 1024 * 98, /* bytes of dynamic shared memory of each */
    PROBE_RING_BLOCK = 384,
};

/* Forms of probe_wgmma_N, one bit each. */
enum {
    PROBE_HALF = 1,     /* fp16, else bf16 */
    PROBE_A_SHARED = 2, /* else from registers */
    PROBE_A_MN = 4,     /* with PROBE_A_SHARED */
    PROBE_B_MN = 8,     /* N 64 and more */
    PROBE_FORMS = 16,
};

/* Forms of probe_chain: one dot product over all k, 16 at a time in ascending order. */
enum {
    PROBE_MMA,         /* mma.sync m16n8k16 */
    PROBE_MMA_SWAPPED, /* the same, the k of each 16 in another order */
    PROBE_WGMMA_8,     /* wgmma m64n8k16, A from registers */
    PROBE_WGMMA_128,   /* wgmma m64n128k16, A from registers */
    PROBE_WGMMA_SHARED, /* the same, A from shared memory */
    PROBE_CHAINS,
};

/* out [64][columns] = a [64][k] . b [columns][k], 16-bit numbers. */
typedef struct probe_args {
    const uint16_t *a, *b;
    float *out;
    int32_t k; /* a multiple of 64; of probe_ring the number of slabs of 4096 bytes at `a` */
    int32_t form;
} probe_args;

#endif
