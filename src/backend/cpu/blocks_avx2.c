/* The loops over cache blocks for x86-64 with AVX2. */
#if defined(__x86_64__)
#define BLOCKS cpu_blocks_avx2
#define NAME "avx2"
#define TARGET __attribute__((target("avx2")))
#define WIDTH 8
#define NARROW_R 4
#include "backend/cpu/blocks_body.h"
#else
typedef int cpu_blocks_avx2_absent;
#endif
