/* Projections for x86-64 with AVX2, FMA and F16C: 16 registers of 8 lanes. */
#if defined(__x86_64__)
#include <string.h>
#define PRODUCTS cpu_products_avx2
#define NAME "avx2"
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define WIDTH 8
#define TILE_R 6
#define TILE_C 2
#define SINGLE_C 4
#define FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#include <immintrin.h>

#include "backend/cpu/lanes.h"
#include "backend/cpu/products.h"

#define E4M3_PAIR
#define E2M1_VALUES e2m1_lookup
#define BLOCK4
#define UNROLL _Pragma("GCC unroll 8")

/* Codes as fp16, which is 2^-8 of their value and holds subnormals too. */
TARGET INLINE void e4m3_pair(const uint8_t *pairs, vec *even, vec *odd)
{
    const __m128i keep = _mm_set1_epi16((short)0xBF80);
    __m128i w = _mm_loadu_si128((const __m128i *)(const void *)pairs);
    *odd = (vec)_mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(w, 1), keep));
    *even = (vec)_mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(_mm_slli_epi16(w, 8), 1), keep));
}

/* As e2m1_values: codes in the top bits of lanes, doubled by the table. */
TARGET INLINE void e2m1_lookup(const vec_int *top, const vec *half_scale, vec *out)
{
    const __m256 table = _mm256_setr_ps(0, 1, 2, 3, 4, 6, 8, 12);
    __m256i code = (__m256i)*top;
    __m256 magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(code, 28));
    __m256i sign = _mm256_and_si256(code, _mm256_set1_epi32(SIGN));
    *out = (vec)_mm256_mul_ps(_mm256_or_ps(magnitude, _mm256_castsi256_ps(sign)), (__m256)*half_scale);
}

/*
 * NVFP4 x NVFP4: vpshufb turns nibbles into 2 * E2M1 + 12, vpmaddubsw multiplies them with the doubled codes of the
 * inputs (four of its sums stay below 2^12), vpmaddwd adds neighbours. An expanded block of a group is, for each vector
 * of 8 outputs, four registers of four columns a lane and the scales: [4][5][8].
 */
TARGET INLINE void expand_block4(const uint8_t *group, int64_t block, __m256i *out)
{
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i low = _mm256_set1_epi8(15);
    for (int c = 0; c < 4; c++, out += 5) {
        const uint8_t *unit = group + (block / 4 * 2 + c / 2) * (NVFP4_UNIT_LINES * LINE);
        const uint8_t *line = unit + block % 4 * (2 * LINE) + c % 2 * 32;
        __m256i scales = _mm256_load_si256((const __m256i *)(const void *)(unit + 8 * LINE + c % 2 * 32));
        for (int j = 0; j < 2; j++) {
            __m256i codes = _mm256_load_si256((const __m256i *)(const void *)(line + j * LINE));
            out[2 * j] = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, low));
            out[2 * j + 1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), low));
        }
        scales = _mm256_srl_epi32(scales, _mm_cvtsi32_si128(8 * (int)(block % 4)));
        out[4] = _mm256_slli_epi32(_mm256_and_si256(scales, _mm256_set1_epi32(0xFF)), 20);
    }
}

/* R rows and eight outputs over expanded blocks [blocks][4][5]. */
TARGET INLINE void tile_block4(const int R, const cpu_block4 *const *x, const __m256i *w, int64_t begin, int64_t end,
                               float *sums)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 sum[4];
    UNROLL
    for (int r = 0; r < R; r++) sum[r] = _mm256_loadu_ps(sums + r * GROUP);
    for (int64_t block = begin; block < end; block++, w += 20) UNROLL
    for (int r = 0; r < R; r++) {
        const cpu_block4 *b = &x[r][block];
        int32_t code[4];
        memcpy(code, b->code, sizeof code);
        __m256i dot = _mm256_maddubs_epi16(w[0], _mm256_set1_epi32(code[0]));
        for (int i = 1; i < 4; i++) dot = _mm256_add_epi16(dot, _mm256_maddubs_epi16(w[i], _mm256_set1_epi32(code[i])));
        dot = _mm256_add_epi32(_mm256_madd_epi16(dot, ones), _mm256_set1_epi32(b->correction));
        __m256 scale = _mm256_mul_ps(_mm256_castsi256_ps(w[4]), _mm256_set1_ps(b->scale));
        sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum[r]);
    }
    UNROLL
    for (int r = 0; r < R; r++) _mm256_storeu_ps(sums + r * GROUP, sum[r]);
}

TARGET static void multiply_block4(const cpu_block4 *const *x, int rows, const uint8_t *group, int64_t begin,
                                   int64_t end, const uint8_t *next, void *scratch, float *sums)
{
    (void)next;
    enum { CHUNK = 16 }; /* blocks of 640 bytes */
    for (int64_t at = begin; at < end; at += CHUNK) {
        int64_t stop = at + CHUNK < end ? at + CHUNK : end;
        __m256i *w = scratch;
        for (int64_t block = at; block < stop; block++) expand_block4(group, block, w + (block - at) * 20);
        for (int c = 0; c < 4; c++) {
            int r = 0;
            for (; r + 4 <= rows; r += 4) tile_block4(4, x + r, w + c * 5, at, stop, sums + r * GROUP + c * 8);
            for (; r < rows; r++) tile_block4(1, x + r, w + c * 5, at, stop, sums + r * GROUP + c * 8);
        }
    }
}

#include "backend/cpu/products_body.h"
#else
typedef int cpu_products_avx2_absent;
#endif
