/* What the loops over cache blocks are made of with AVX-512 and its 16-bit dot product: 32 registers of 16 lanes.
 * Included with TARGET defined. */
#ifndef HAYATE_BACKEND_CPU_BLOCKS_AVX512_H
#define HAYATE_BACKEND_CPU_BLOCKS_AVX512_H

#include <immintrin.h>

#include "backend/cpu/blocks.h"

#define WIDTH 16
#define ROWS 2
#define ROWS_C 4
#define SINGLE_C 8
#define KEYS_C 8
#define ROWS_D 8
#define SINGLE_D 16
#define MULTIPLY_ADD(acc, a, b) ((acc) = (vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(acc)))
#define FUSED MULTIPLY_ADD
#define MAXIMUM(x, m) ((vec)_mm512_max_ps((__m512)(x), (__m512)(m)))
#define DOT_PAIRS(acc, a, b) ((acc) = (vec_int)_mm512_dpwssd_epi32((__m512i)(acc), (__m512i)(a), (__m512i)(b)))
/* Only five bits of an index count, the fifth being of the next code: the table stands twice. */
#define EXPAND(line, s) ((vec_int)_mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)(line), 4 * (s)), twice_e2m1()))

TARGET static inline __m512i twice_e2m1(void)
{
    return _mm512_set_epi16(-12, -8, -6, -4, -3, -2, -1, 0, 12, 8, 6, 4, 3, 2, 1, 0, -12, -8, -6, -4, -3, -2, -1, 0, 12,
                            8, 6, 4, 3, 2, 1, 0);
}

#endif
