/* Projections for x86-64 with AVX-512, VBMI and VNNI: Intel from Ice Lake, AMD from Zen 4 on. */
#if defined(__x86_64__)
#include <string.h>
#define PRODUCTS cpu_products_avx512
#define NAME "avx512"
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,fma,f16c")))
#define WIDTH 16
#define TILE_R 8
#define TILE_C 2
#define SINGLE_C 2
#define FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#include "backend/cpu/products_avx512.h"
#include "backend/cpu/products_body.h"
#else
typedef int cpu_products_avx512_absent;
#endif
