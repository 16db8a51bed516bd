/* The inner loops for x86-64 with AVX2: 16 registers of 8 lanes. */
#if defined(__x86_64__)
#define KERNELS cpu_kernels_avx2
#define NAME "avx2"
#define TARGET __attribute__((target("avx2")))
#define WIDTH 8
#include "backend/cpu/kernels_body.h"
#else
typedef int cpu_kernels_avx2_absent;
#endif
