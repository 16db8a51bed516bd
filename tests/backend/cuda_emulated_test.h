/* The parameter of the kernels that test the emulation itself. */
#ifndef TESTS_BACKEND_CUDA_EMULATED_TEST_H
#define TESTS_BACKEND_CUDA_EMULATED_TEST_H

#include <stdint.h>

typedef struct emulated_test_args {
    float *out;
    const void *in;
    int32_t count, kind;
} emulated_test_args;

#endif
