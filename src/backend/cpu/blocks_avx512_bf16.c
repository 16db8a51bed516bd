/*
 * Attention for x86-64 where vdpbf16ps issues as often as an fp32 multiplication: it adds the product of the high
 * halves, then that of the low ones, each rounded once, so a pair holds the earlier token in the high half and the
 * order is that of blocks.h. Products of values take half the time.
 *
 * The values of a pair of tokens and 16 columns are one look-up: 32 words of which the low 16 are the products of the
 * second token's scale with every code, the high 16 those of the first.
 */
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16")))
#include "backend/cpu/blocks_avx512.h"

#include <pthread.h>

#define VALUE_PAIRS(acc, a, b) ((acc) = (vec)_mm512_dpbf16_ps((__m512)(acc), (__m512bh)(a), (__m512bh)(b)))

#define ROUND_PAIR(x, y) ((vec_int)round_pair((__m512)(x), (__m512)(y)))

/* There are no subnormal numbers among weights. */
TARGET static inline __attribute__((always_inline)) __m512i round_pair(__m512 x, __m512 y)
{
    const __m512i turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(turns, (__m512i)_mm512_cvtne2ps_pbh(x, y));
}

#include "backend/cpu/blocks_tiles.h"
#include "number/bits.h"
#include "number/e2m1.h"

/* value_table[s][c] = bf16 of scale s times code c: exact. */
static uint16_t value_table[256][16] __attribute__((aligned(LINE)));

static void make_values(void)
{
    for (int s = 0; s < 256; s++)
        for (int c = 0; c < 16; c++)
            value_table[s][c] = (uint16_t)(bits_of_float(e4m3_to_float((uint8_t)s) * e2m1_to_float((uint8_t)c)) >> 16);
}

void cpu_blocks_attend_bf16_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_values);
}

/* Codes of 8 bytes each to pairs of values. */
INLINE void value_pair(const uint8_t *first, const uint8_t *second, uint8_t first_scale, uint8_t second_scale,
                       int32_t *out)
{
    /* Every 64 bits of the result take two codes of each token: bits 8 j and 8 j + 4 on, and a byte between is free. */
    const __m512i at = _mm512_set_epi32(0x3C3C3C3C, 0x38383838, 0x34343434, 0x30303030, 0x2C2C2C2C, 0x28282828,
                                        0x24242424, 0x20202020, 0x1C1C1C1C, 0x18181818, 0x14141414, 0x10101010,
                                        0x0C0C0C0C, 0x08080808, 0x04040404, 0x00000000);
    const __mmask64 high = 0xCCCCCCCCCCCCCCCC;
    int64_t a, b;
    memcpy(&a, first, sizeof a);
    memcpy(&b, second, sizeof b);
    __m512i code = _mm512_multishift_epi64_epi8(at, _mm512_set1_epi64(b));
    code = _mm512_mask_multishift_epi64_epi8(code, high, at, _mm512_set1_epi64(a));
    /* (code & 0x000F000F) | 0x00100000 */
    code = _mm512_ternarylogic_epi32(code, _mm512_set1_epi32(0x000F000F), _mm512_set1_epi32(0x00100000), 0xEA);
    __m512i table = _mm512_castsi256_si512(_mm256_load_si256((const __m256i *)value_table[second_scale]));
    table = _mm512_inserti64x4(table, _mm256_load_si256((const __m256i *)value_table[first_scale]), 1);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(code, table));
}

INLINE void decode_value_pairs(const cpu_block *block, size_t group, size_t tokens, int32_t *out)
{
    size_t groups = (size_t)block->dim / UNIT, bytes = groups * (UNIT / 2);
    const uint8_t *d = block->values + group * (UNIT / 2), *s = block->value_scales + group * 4;
    size_t t = 0;
    for (; t + 4 <= tokens; t += 4, d += 4 * bytes, s += 4 * groups, out += 2 * UNIT) {
        value_pair(d, d + bytes, s[0], s[1], out);
        value_pair(d + 2 * bytes, d + 3 * bytes, s[2], s[3], out + UNIT);
    }
    for (size_t i = 0; t + i < tokens; i += 2, d += 2 * bytes, out += UNIT) {
        bool both = t + i + 1 < tokens;
        value_pair(d, both ? d + bytes : d, s[i], s[both ? i + 1 : i], out);
    }
}

#include "backend/cpu/blocks_attend.h"

void cpu_blocks_attend_bf16(const cpu_block *block, const cpu_query_row *rows, int count, float *scratch)
{
    (block->integers ? attend : cpu_blocks_avx512.attend)(block, rows, count, scratch);
}
#else
typedef int cpu_blocks_avx512_bf16_absent;
#endif
