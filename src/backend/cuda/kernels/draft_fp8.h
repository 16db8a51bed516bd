/* What the host gives draft_attend_fp8 (kernels/draft_fp8.cu): threads, queries of a thread block and shared memory. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_DRAFT_FP8_H
#define HAYATE_BACKEND_CUDA_KERNELS_DRAFT_FP8_H

enum {
    DRAFT_FP8_THREADS = 384,
    DRAFT_FP8_RUNS = 8,    /* into which the context's blocks of keys are divided */
    DRAFT_FP8_WIDE = 112,  /* queries of a thread block of draft_attend_fp8_whole, */
    DRAFT_FP8_NARROW = 64, /* and of _half and _eighth */
    DRAFT_FP8_SHARED = 226 << 10, /* bytes */
};

#endif
