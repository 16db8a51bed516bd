/* Which variants of the projections this machine runs. */
#include "backend/cpu/products.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* F16C, which compilers do not all know by name. */
static bool half_conversion(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* AMD from Zen 4 on: the family is 0Fh plus the extended one, 19h with models 10h and up, or later. */
bool cpu_bf16_full_rate(void)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    unsigned family = (a >> 8 & 15) + (a >> 20 & 255), model = (a >> 4 & 15) | (a >> 12 & 0xF0);
    return family > 0x19 || (family == 0x19 && model >= 0x10);
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

int cpu_products_all(const cpu_products *all[4])
{
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vnni")) {
        all[n++] = &cpu_products_avx512;
        if (__builtin_cpu_supports("avx512bf16")) {
            all[n++] = &cpu_products_avx512_bf16;
            if (cpu_bf16_full_rate()) all[0] = &cpu_products_avx512_bf16, all[1] = &cpu_products_avx512;
        }
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && half_conversion())
        all[n++] = &cpu_products_avx2;
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) {
        if (getauxval(AT_HWCAP2) & HWCAP2_BF16) all[n++] = &cpu_products_neon_bf16;
        all[n++] = &cpu_products_neon_dot;
    }
    all[n++] = &cpu_products_neon;
#endif
    all[n++] = &cpu_products_portable;
    return n;
}

const cpu_products *cpu_products_best(void)
{
    const cpu_products *all[4];
    cpu_products_all(all);
    return all[0];
}
