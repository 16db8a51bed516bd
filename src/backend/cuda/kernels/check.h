/* Which weights hold what is no number: see check.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_CHECK_H
#define HAYATE_BACKEND_CUDA_KERNELS_CHECK_H

#include <stdint.h>

enum { CHECK_BLOCK = 256 };

/* A grid of any size; found [1] counts pieces of 16 bytes with a fault. */
typedef struct check_args {
    const void *data, *scales;          /* as kernel_weight has them, aligned to 16 bytes */
    int64_t data_pieces, scale_pieces;  /* of 16 bytes, the padding's zeros too */
    int32_t format;                     /* KERNEL_ */
    uint32_t *found;
} check_args;

#endif
