/* Projections for x86-64 with AVX-512, VBMI and VNNI: Intel from Ice Lake, AMD from Zen 4 on. */
#if defined(__x86_64__)
#define PRODUCTS cpu_products_avx512
#define NAME "avx512"
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,fma,f16c")))
#define WIDTH 16
#define TILE_R 8
#define TILE_C 2
#define SINGLE_C 2
#define FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#include "backend/cpu/products_avx512.h"
#include "backend/cpu/products_avx512_pairs.h"
#include "backend/cpu/products_avx512_block4.h"
#include "backend/cpu/products_body.h"

/* The same with vdpbf16ps: products_avx512_pairs.c. */
const cpu_products cpu_products_avx512_bf16 = {
    .name = "avx512bf16",
    .expand_bf16 = expand_bf16,
    .expand_mxfp8 = expand_mxfp8,
    .expand_nvfp4 = expand_nvfp4,
    .few_bf16 = few_bf16,
    .few_mxfp8 = few_mxfp8,
    .few_nvfp4 = few_nvfp4,
    .one_nvfp4 = one_nvfp4,
    .multiply = multiply,
    .multiply_f32 = multiply_f32,
    .pair_row = cpu_pairs_avx512_row,
    .pairs_mxfp8 = cpu_pairs_avx512_mxfp8,
    .pairs_nvfp4 = cpu_pairs_avx512_nvfp4,
    .few_pairs_bf16 = cpu_pairs_avx512_few_bf16,
    .few_pairs_mxfp8 = cpu_pairs_avx512_few_mxfp8,
    .few_pairs_nvfp4 = cpu_pairs_avx512_few_nvfp4,
    .multiply_pairs = cpu_pairs_avx512_multiply,
    .multiply_block4 = multiply_block4,
    .quantise_fc1 = quantise_fc1,
    .quantise_fc2 = quantise_fc2,
};
#else
typedef int cpu_products_avx512_absent;
#endif
