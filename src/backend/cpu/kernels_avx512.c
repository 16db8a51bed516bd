/* The inner loops for x86-64 with AVX-512: 32 registers of 16 lanes. */
#if defined(__x86_64__)
#define KERNELS cpu_kernels_avx512
#define NAME "avx512"
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define WIDTH 16
#include "backend/cpu/kernels_body.h"
#else
typedef int cpu_kernels_avx512_absent;
#endif
