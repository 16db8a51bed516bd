/* The loops over cache blocks for x86-64 with AVX-512. */
#if defined(__x86_64__)
#define BLOCKS cpu_blocks_avx512
#define NAME "avx512"
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define WIDTH 16
#define NARROW_R 8
#include "backend/cpu/blocks_body.h"
#else
typedef int cpu_blocks_avx512_absent;
#endif
