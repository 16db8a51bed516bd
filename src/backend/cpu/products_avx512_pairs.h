/* Products on AVX-512 with pairs of bf16 (vdpbf16ps): what products_avx512.c takes from products_avx512_pairs.c. */
#ifndef HAYATE_BACKEND_CPU_PRODUCTS_AVX512_PAIRS_H
#define HAYATE_BACKEND_CPU_PRODUCTS_AVX512_PAIRS_H

#include "backend/cpu/products.h"

void cpu_pairs_avx512_row(const float *x, int k, uint32_t *out);
void cpu_pairs_avx512_mxfp8(const uint8_t *group, int64_t begin, int64_t end, uint32_t *out);
void cpu_pairs_avx512_nvfp4(const uint8_t *group, int64_t begin, int64_t end, uint32_t *out);
void cpu_pairs_avx512_few_bf16(const uint32_t *x, int64_t stride, int rows, const uint8_t *group, int64_t begin,
                               int64_t end, float *sums);
void cpu_pairs_avx512_few_mxfp8(const uint32_t *x, int64_t stride, int rows, const uint8_t *group, int64_t begin,
                                int64_t end, float *sums);
void cpu_pairs_avx512_few_nvfp4(const uint32_t *x, int64_t stride, int rows, const uint8_t *group, int64_t begin,
                                int64_t end, float *sums);
void cpu_pairs_avx512_multiply(const uint32_t *x, int rows, const uint32_t *w, int pairs, const uint8_t *next,
                               int lines, const float *const *ahead, float *sums);

#endif
