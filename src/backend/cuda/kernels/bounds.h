/* Parameters of the kernels that show what a GPU can do: memory passes and loops that only multiply. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_BOUNDS_H
#define HAYATE_BACKEND_CUDA_KERNELS_BOUNDS_H

#include <stdint.h>

enum {
    BOUND_THREADS = 256, /* of a block, all kernels */
    BOUND_BLOCKS = 4,    /* on a multiprocessor: of passes */
    BOUND_LOOP_BLOCKS = 2, /* of bound_mma and bound_fma */
    BOUND_CHAINS = 8,    /* sums that do not wait for each other, of a warp or thread */
};

/* bound_read: sums[block] = the words of `from` that the block read, joined by xor; each quad of 16 bytes is read once.
 * bound_write: word w of `to` becomes bound_word(w). bound_copy: `to` = `from`. Grid (any). */
typedef struct bound_pass_args {
    const void *from;
    void *to;
    int64_t quads; /* of 16 bytes */
    uint32_t *sums; /* [grid] */
} bound_pass_args;

/* Word w of what bound_write writes. */
#define bound_word(w) ((uint32_t)((uint64_t)(w) * 0x9E3779B97F4A7C15u >> 32))

/* bound_mma: `repeats` times BOUND_CHAINS products mma.m16n8k16 a warp. bound_fma: as many fused multiply-adds a thread.
 * sums [grid, BOUND_THREADS]: the same multiple of `repeats` for every grid. clocks: cycles and nanoseconds of the first block. */
typedef struct bound_loop_args {
    int32_t repeats;
    float *sums;
    uint64_t *clocks; /* [2] */
} bound_loop_args;

#endif
