/*
 * NVFP4 weights x NVFP4 inputs for AVX-512 with VBMI and VNNI. Included by products_avx512.c after products_avx512.h.
 *
 * vpermb turns nibbles into 2 * E2M1 + 12, vpdpbusd multiplies them with the doubled codes of the inputs, starting from
 * -12 times their sum; per 16 columns then one conversion, one product of the scales, one multiply-add. On Intel that
 * is seven operations on the two vector ports for four vpdpbusd: 4/7 of the peak of vpdpbusd is the bound. Zen 4
 * converts on ports of its own, and reads a block there: 4/6. Integer multiplications, tests into mask registers and
 * shifts by a count in a register take the ports of vpdpbusd there, and a 512-bit store as long as two of them.
 *
 * Measured on one core, K = 6144, weights in the second-level cache, shares of the peak of vpdpbusd: of an Emerald
 * Rapids server before tiles had as many rows as there are, and of a Zen 4 server:
 *
 *     rows               1         2         3         4         6         8      10     16      64     128
 *     Emerald Rapids     42 GB/s                       20 GB/s             0.45          0.44    0.48   0.49
 *     Zen 4              51 GB/s   36 GB/s   27 GB/s   0.63      0.64      0.64   0.63   0.64    0.63   0.64
 */
#ifndef HAYATE_BACKEND_CPU_PRODUCTS_AVX512_BLOCK4_H
#define HAYATE_BACKEND_CPU_PRODUCTS_AVX512_BLOCK4_H

#include "backend/cpu/products_avx512.h"

#define BLOCK4

/* A block of a group: for each panel the four registers of four columns a lane, 2 * E2M1 + 12 as bytes, and the scales.
 */
typedef struct block4 {
    __m512i code[2][4];
    __m512 scale[2];
} block4;

enum { AHEAD4 = 56 }; /* blocks, whole units of 1,152 bytes: about AHEAD_NVFP4 */

/* Asks for the lines of a block. */
TARGET INLINE void ask_block4(const uint8_t *group, int64_t block)
{
    const uint8_t *line = group + block / 4 * (2 * NVFP4_UNIT_LINES * LINE) + quarter(block % 4, 2);
    UNROLL
    for (int i = 0; i < 5; i++) ask(line + i * LINE, 0);
}

TARGET INLINE void read_block4(const uint8_t *group, int64_t block, block4 *b)
{
    enum { UNIT = NVFP4_UNIT_LINES * LINE };
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const uint8_t *unit = group + block / 4 * 2 * UNIT, *line = unit + block % 4 * (2 * LINE);
    UNROLL
    for (int p = 0; p < 2; p++, line += UNIT) {
        for (int j = 0; j < 2; j++) {
            __m512i codes = _mm512_load_si512(line + j * LINE);
            b->code[p][2 * j] = _mm512_permutexvar_epi8(codes, table);
            b->code[p][2 * j + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table);
        }
        b->scale[p] = nvfp4_scale(unit + p * UNIT, block % 4);
    }
}

typedef int32_t word __attribute__((may_alias));

TARGET INLINE void use_block4(const int R, const cpu_block4 *const *x, int64_t block, const block4 *w, __m512 sum[8][2])
{
    UNROLL
    for (int r = 0; r < R; r++) {
        const cpu_block4 *b = &x[r][block];
        const word *code = (const word *)b->code; /* broadcast from memory, not through a shuffle */
        __m512 scale = _mm512_set1_ps(b->scale);
        UNROLL
        for (int p = 0; p < 2; p++) {
            __m512i dot = _mm512_set1_epi32(b->correction);
            UNROLL
            for (int i = 0; i < 4; i++) dot = _mm512_dpbusd_epi32(dot, w->code[p][i], _mm512_set1_epi32(code[i]));
            sum[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(w->scale[p], scale), sum[r][p]);
        }
    }
}

/* R rows with the blocks of a group as they are. With `asks`, the blocks to come are asked for, and behind the last one
 * those that begin at `next`. */
TARGET INLINE void walk_block4(const int R, const cpu_block4 *const *x, const uint8_t *group, int64_t begin,
                               int64_t end, const uint8_t *next, bool asks, float *sums)
{
    __m512 sum[8][2];
    load_sums(R, R, sums, sum);
    for (int64_t block = begin; block < end; block++) {
        block4 b;
        int64_t left = end - block - AHEAD4;
        if (asks) ask_block4(left > 0 ? group : next, left > 0 ? block + AHEAD4 : -left);
        read_block4(group, block, &b);
        use_block4(R, x, block, &b, sum);
    }
    store_sums(R, R, sum, sums);
}

/* Rows in tiles of about the same size: reading the blocks again for every tile, from the second-level cache, costs less
 * than storing them expanded, and both less than rows that do not count. */
TARGET static void multiply_block4(const cpu_block4 *const *x, int rows, const uint8_t *group, int64_t begin,
                                   int64_t end, const uint8_t *next, void *scratch, float *sums)
{
    (void)scratch;
    bool asks = true;
    for (int tiles = (rows + 7) / 8, r; tiles > 0; tiles--, x += r, rows -= r, sums += r * GROUP, asks = false) {
        r = (rows + tiles - 1) / tiles;
        switch (r) {
        case 1: walk_block4(1, x, group, begin, end, next, asks, sums); break;
        case 2: walk_block4(2, x, group, begin, end, next, asks, sums); break;
        case 3: walk_block4(3, x, group, begin, end, next, asks, sums); break;
        case 4: walk_block4(4, x, group, begin, end, next, asks, sums); break;
        case 5: walk_block4(5, x, group, begin, end, next, asks, sums); break;
        case 6: walk_block4(6, x, group, begin, end, next, asks, sums); break;
        case 7: walk_block4(7, x, group, begin, end, next, asks, sums); break;
        default: walk_block4(8, x, group, begin, end, next, asks, sums); break;
        }
    }
}

#endif
