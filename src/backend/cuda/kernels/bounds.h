/* Parameters of the kernels that show what a GPU can do: memory passes and loops that only multiply. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_BOUNDS_H
#define HAYATE_BACKEND_CUDA_KERNELS_BOUNDS_H

#include <stdint.h>

enum {
    BOUND_THREADS = 256, /* of a block, all kernels */
    BOUND_BLOCKS = 4,    /* on a multiprocessor: of passes */
    BOUND_LOOP_BLOCKS = 2, /* of bound_mma and bound_fma */
    BOUND_CHAINS = 8,    /* sums that do not wait for each other, of a warp or thread */
    BOUND_WGMMA = 4,     /* products of a warpgroup in a repeat */
    BOUND_WGMMA_SHARED = 48 << 10,
};

/* bound_read: sums[block] = the words of `from` that the block read, joined by xor; each quad of 16 bytes is read once.
 * bound_write: word w of `to` becomes bound_word(w). bound_copy: `to` = `from`. Grid (any). */
typedef struct bound_pass_args {
    const void *from;
    void *to;
    int64_t quads; /* of 16 bytes */
    uint32_t *sums; /* [grid] */
} bound_pass_args;

/* Two bf16 of 1 to 2, either sign, by number. */
#define bound_pair(i) (0x3F803F80u | (bound_mixed((uint32_t)(i) * 0x9E3779B9u) & 0x807F807Fu))
#define bound_mixed(x) (((x) ^ (x) >> 15) * 0x85EBCA6Bu)

/* Word w of what bound_write writes. */
#define bound_word(w) ((uint32_t)((uint64_t)(w) * 0x9E3779B97F4A7C15u >> 32))

/* bound_mma: `repeats` times BOUND_CHAINS products mma.m16n8k16 a warp. bound_fma: twice as many fused multiply-adds a
 * thread. bound_wgmma, for sm_90a: BOUND_WGMMA products wgmma.m64n256k16 a warpgroup, with BOUND_WGMMA_SHARED bytes.
 * sums [grid, BOUND_THREADS]: of what each thread added up. clocks: cycles and nanoseconds of the first block. */
typedef struct bound_loop_args {
    int32_t repeats;
    float *sums;
    uint64_t *clocks; /* [2] */
} bound_loop_args;

#endif
