/* Which variants of the inner loops this machine runs. */
#include "backend/cpu/kernels.h"

int cpu_kernels_all(const cpu_kernels *all[4])
{
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        all[n++] = &cpu_kernels_avx512;
    if (__builtin_cpu_supports("avx2")) all[n++] = &cpu_kernels_avx2;
#endif
    all[n++] = &cpu_kernels_portable;
    return n;
}

const cpu_kernels *cpu_kernels_best(void)
{
    const cpu_kernels *all[4];
    cpu_kernels_all(all);
    return all[0];
}
