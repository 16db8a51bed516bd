/* Which variants of the loops over cache blocks this machine runs. */
#include "backend/cpu/blocks.h"
#include "backend/cpu/products.h"

int cpu_blocks_all(const cpu_blocks *all[4])
{
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        all[n++] = &cpu_blocks_avx512;
    if (n && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16")) {
        cpu_blocks_attend_bf16_open();
        all[n++] = &cpu_blocks_avx512_bf16;
        if (cpu_bf16_full_rate()) all[0] = &cpu_blocks_avx512_bf16, all[1] = &cpu_blocks_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all[n++] = &cpu_blocks_avx2;
#elif defined(__aarch64__)
    all[n++] = &cpu_blocks_neon;
#endif
    all[n++] = &cpu_blocks_portable;
    return n;
}

const cpu_blocks *cpu_blocks_best(void)
{
    const cpu_blocks *all[4];
    cpu_blocks_all(all);
    return all[0];
}
