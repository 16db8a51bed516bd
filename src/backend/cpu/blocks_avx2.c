/* The loops over cache blocks for x86-64 with AVX2 and FMA: 16 registers of 8 lanes. */
#if defined(__x86_64__)
#include <immintrin.h>

#define BLOCKS cpu_blocks_avx2
#define NAME "avx2"
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 8
#define ROWS 1
#define ROWS_C 2
#define SINGLE_C 2
#define KEYS_C 4
#define ROWS_D 4
#define SINGLE_D 4
#define MULTIPLY_ADD(acc, a, b) ((acc) = (vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(acc)))
#define FUSED MULTIPLY_ADD
#define MAXIMUM(x, m) ((vec)_mm256_max_ps((__m256)(x), (__m256)(m)))
/* The compiler would take eight bytes apart. */
#define WIDEN_BYTES(p) ((vec_int)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define DOT_PAIRS(acc, a, b) ((acc) += (vec_int)_mm256_madd_epi16((__m256i)(a), (__m256i)(b)))
/* A table of bytes gives 256 times the number, and the shift extends its sign. */
#define EXPAND(line, s)                                                                                                \
    ((vec_int)_mm256_srai_epi16(                                                                                       \
        _mm256_shuffle_epi8(twice_e2m1(),                                                                              \
                            _mm256_and_si256(_mm256_slli_epi16(_mm256_srli_epi16((__m256i)(line), 4 * (s)), 8),        \
                                             _mm256_set1_epi16(0x0F00))),                                              \
        8))

TARGET static inline __m256i twice_e2m1(void)
{
    return _mm256_set_epi8(-12, -8, -6, -4, -3, -2, -1, 0, 12, 8, 6, 4, 3, 2, 1, 0, -12, -8, -6, -4, -3, -2, -1, 0, 12,
                           8, 6, 4, 3, 2, 1, 0);
}

#include "backend/cpu/blocks_body.h"
#else
typedef int cpu_blocks_avx2_absent;
#endif
