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
#include "backend/cpu/products_avx512_block4.h"
#include "backend/cpu/products_body.h"

/* The same with vdpbf16ps where more than a few rows share weights: it adds the odd product of a pair, then the even
 * one, each rounded once, which is the order of products.h. Its operands are exact, so it gives the same bits. */
#define PAIR_TARGET                                                                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16,fma,f16c")))

PAIR_TARGET static void pair_weights(const float *w, int k, uint32_t *out)
{
    const __m512i high = _mm512_set1_epi32((int)0xFFFF0000);
    for (int i = 0; i < k; i += 2, w += 2 * GROUP, out += GROUP)
        for (int p = 0; p < GROUP; p += LANES) {
            __m512i even = _mm512_srli_epi32(_mm512_loadu_si512(w + p), 16);
            __m512i odd =
                i + 1 < k ? _mm512_and_si512(_mm512_loadu_si512(w + GROUP + p), high) : _mm512_setzero_si512();
            _mm512_storeu_si512(out + p, _mm512_or_si512(even, odd));
        }
}

PAIR_TARGET static void pair_row(const float *x, int k, uint32_t *out)
{
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i high = _mm512_set1_epi32((int)0xFFFF0000);
    int i = 0;
    for (; i + 32 <= k; i += 32) {
        __m512i a = _mm512_loadu_si512(x + i), b = _mm512_loadu_si512(x + i + 16);
        __m512i even = _mm512_permutex2var_epi32(a, evens, b);
        __m512i odd = _mm512_permutex2var_epi32(a, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), b);
        _mm512_storeu_si512(out + i / 2, _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, high)));
    }
    for (; i < k; i += 2) {
        uint32_t even, odd = 0;
        memcpy(&even, x + i, 4);
        if (i + 1 < k) memcpy(&odd, x + i + 1, 4);
        out[i / 2] = even >> 16 | (odd & 0xFFFF0000);
    }
}

PAIR_TARGET INLINE void pair_tile(const int R, const uint32_t *x, const uint32_t *w, int pairs, float *sums)
{
    __m512 sum[8][2];
    UNROLL
    for (int r = 0; r < R; r++) UNROLL
    for (int p = 0; p < 2; p++) sum[r][p] = _mm512_loadu_ps(sums + r * GROUP + p * LANES);
    for (int i = 0; i < pairs; i++) {
        __m512i a = _mm512_load_si512(w + i * GROUP), b = _mm512_load_si512(w + i * GROUP + LANES);
        UNROLL
        for (int r = 0; r < R; r++) {
            __m512bh v = (__m512bh)_mm512_set1_epi32((int)x[r * (K_CHUNK / 2) + i]);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], (__m512bh)a, v);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], (__m512bh)b, v);
        }
    }
    UNROLL
    for (int r = 0; r < R; r++) UNROLL
    for (int p = 0; p < 2; p++) _mm512_storeu_ps(sums + r * GROUP + p * LANES, sum[r][p]);
}

PAIR_TARGET static void multiply_pairs(const uint32_t *x, int rows, const uint32_t *w, int pairs, float *sums)
{
    int r = 0;
    for (; r + 8 <= rows; r += 8) pair_tile(8, x + r * (K_CHUNK / 2), w, pairs, sums + r * GROUP);
    for (; r + 4 <= rows; r += 4) pair_tile(4, x + r * (K_CHUNK / 2), w, pairs, sums + r * GROUP);
    for (; r < rows; r++) pair_tile(1, x + r * (K_CHUNK / 2), w, pairs, sums + r * GROUP);
}

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
    .pair_weights = pair_weights,
    .pair_row = pair_row,
    .multiply_pairs = multiply_pairs,
    .multiply_block4 = multiply_block4,
    .quantise_fc1 = quantise_fc1,
    .quantise_fc2 = quantise_fc2,
};
#else
typedef int cpu_products_avx512_absent;
#endif
