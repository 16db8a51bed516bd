/* The compiled kernels that the program carries: one image a file of kernels/, each with code for the architectures of
 * HAYATE_CUDA_ARCHS. cmake/cuda.cmake makes the table; it is empty where nvcc was not found. */
#ifndef HAYATE_BACKEND_CUDA_FATBINS_H
#define HAYATE_BACKEND_CUDA_FATBINS_H

typedef struct cuda_fatbin {
    const char *name;
    const unsigned char *begin, *end;
} cuda_fatbin;

extern const cuda_fatbin cuda_fatbins[]; /* name is NULL behind the last */
extern const char cuda_fatbin_archs[];   /* "sm_80 sm_90a" */

#endif
