/* Which weights hold what is no number: see check.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_CHECK_H
#define HAYATE_BACKEND_CUDA_KERNELS_CHECK_H

#include <stdint.h>

enum { CHECK_THREADS = 256 };

/* Grid: any number, weights: one behind the other, `bytes` and `scale_bytes` apart, as many of each as are looked at, a
 * multiple of 16. */
typedef struct check_args {
    const uint8_t *data, *scales; /* aligned to 16 bytes */
    int64_t bytes, scale_bytes;
    int32_t format;               /* KERNEL_ */
    int32_t strict;               /* a scale of NVFP4 that is negative is a fault too */
    uint32_t number;              /* of the weight: number + its place in the grid is found */
    uint32_t *found;              /* 0 until there is a fault; of several one stays */
    int64_t gap;
} check_args;

#endif
