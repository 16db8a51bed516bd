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
 * Rapids server before tiles had as many rows as there are, of a Zen 4 and of a Zen 5 server:
 *
 *     rows               1         2         3         4         6         8      10     16      64     128
 *     Emerald Rapids     42 GB/s                       20 GB/s             0.45          0.44    0.48   0.49
 *     Zen 4              55 GB/s   38 GB/s   27 GB/s   0.64      0.64      0.64   0.64   0.64    0.63   0.64
 *     Zen 5              84 GB/s   61 GB/s   50 GB/s   0.64      0.64      0.63   0.63   0.64    0.65   0.66
 *
 * Where another machine's work shares the Zen 4 core: 46 GB/s, 31, 24, then 0.56 to 0.62.
 */
#ifndef HAYATE_BACKEND_CPU_PRODUCTS_AVX512_BLOCK4_H
#define HAYATE_BACKEND_CPU_PRODUCTS_AVX512_BLOCK4_H

#include "backend/cpu/products_avx512.h"

#define BLOCK4

enum {
    PANEL4 = NVFP4_UNIT_LINES * LINE, /* 64 columns of a panel: four blocks */
    AHEAD4 = 10,                      /* units, each of both panels; about AHEAD_NVFP4 */
    AHEAD4_ZEN4 = 6,
};

/* A block of a panel: the four registers of four columns a lane, 2 * E2M1 + 12 as bytes, and the scales. */
typedef struct block4 {
    __m512i code[4];
    __m512 scale;
} block4;

/* `which` is a number that the compiler knows: the places of lines, and how far scales are shifted, then cost nothing.
 */
TARGET INLINE void read_block4(const uint8_t *panel, const int which, block4 *b)
{
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    UNROLL
    for (int j = 0; j < 2; j++) {
        __m512i codes = _mm512_load_si512(panel + (2 * which + j) * LINE);
        b->code[2 * j] = _mm512_permutexvar_epi8(codes, table);
        b->code[2 * j + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table);
    }
    b->scale = nvfp4_scale(panel, which);
}

typedef int32_t word __attribute__((may_alias));

/* sum[r][p] += block p of P panels times the inputs x[r][block]. */
TARGET INLINE void use_block4(const int R, const int first, const int P, const cpu_block4 *const *x, int64_t block,
                              const block4 *w, __m512 sum[8][2])
{
    UNROLL
    for (int r = 0; r < R; r++) {
        const cpu_block4 *b = &x[r][block];
        const word *code = (const word *)b->code; /* broadcast from memory, not through a shuffle */
        __m512 scale = _mm512_set1_ps(b->scale);
        UNROLL
        for (int p = first; p < first + P; p++, w++) {
            __m512i dot = _mm512_set1_epi32(b->correction);
            UNROLL
            for (int i = 0; i < 4; i++) dot = _mm512_dpbusd_epi32(dot, w->code[i], _mm512_set1_epi32(code[i]));
            sum[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(w->scale, scale), sum[r][p]);
        }
        w -= P;
    }
}

/* Lines [from, to) from `ahead` on. For Zen 4 they go into the second-level cache: four rows then read memory at 0.92
 * of a read pass, where the first-level one, whatever the distance, gave 0.86 to 0.90; one row 0.90 and 0.88. */
TARGET INLINE void ask_lines(const bool zen4, const uint8_t *ahead, const int from, const int to)
{
    for (int i = from; i < to; i++) {
        if (zen4)
            _mm_prefetch((const char *)ahead + i * LINE, _MM_HINT_T1);
        else
            ask(ahead + i * LINE, 0);
    }
}

/*
 * A unit, whose inputs begin at `block`; the lines of the unit at `ahead` are asked for.
 *
 * One row is bound by reading: it takes panel after panel, so that lines come in the order of their addresses, which
 * processors that guess what follows do better with (Zen 4: from memory 0.88 of a read pass instead of 0.81). More
 * rows share what is loaded of an input between the panels.
 */
TARGET INLINE void unit_block4(const int R, const bool zen4, const cpu_block4 *const *x, int64_t block,
                               const uint8_t *unit, const uint8_t *ahead, __m512 sum[8][2])
{
    if (R == 1) {
        UNROLL
        for (int p = 0; p < 2; p++, unit += PANEL4, ahead += PANEL4) {
            UNROLL
            for (int which = 0; which < 4; which++) {
                block4 b;
                ask_lines(zen4, ahead, 2 * which, 2 * which + 2 + which / 3);
                read_block4(unit, which, &b);
                use_block4(R, p, 1, x, block + which, &b, sum);
            }
        }
        return;
    }
    for (int which = 0; which < 4; which++) { /* rolled: sixteen sums have enough to do beside the places */
        block4 b[2];
        const uint8_t *from = ahead + (9 * which + 1) / 2 * LINE;
        ask_lines(zen4, from, 0, 5);
        read_block4(unit, which, &b[0]);
        read_block4(unit + PANEL4, which, &b[1]);
        use_block4(R, 0, 2, x, block + which, b, sum);
    }
}

/* R rows with the blocks of a group as they are. With `asks`, the units to come are asked for, and behind the last one
 * those that begin at `next`; without, what is there already, which costs little. */
TARGET INLINE void walk_block4(const int R, const bool zen4, bool asks, const cpu_block4 *const *x,
                               const uint8_t *group, int64_t begin, int64_t end, const uint8_t *next, float *sums)
{
    const int units = zen4 ? AHEAD4_ZEN4 : AHEAD4;
    __m512 sum[8][2];
    load_sums(R, R, sums, sum);
    int64_t last = (end + 3) / 4;
    for (int64_t u = begin / 4; u < end / 4; u++) {
        const uint8_t *unit = group + u * (2 * PANEL4), *ahead = unit;
        int64_t left = last - u - units;
        if (asks) ahead = left > 0 ? unit + units * (2 * PANEL4) : next - left * (2 * PANEL4);
        unit_block4(R, zen4, x, 4 * u, unit, ahead, sum);
    }
    for (int64_t block = end / 4 * 4; block < end; block++) { /* of a last unit that is not whole */
        const uint8_t *unit = group + end / 4 * (2 * PANEL4);
        block4 b[2];
        UNROLL
        for (int p = 0; p < 2; p++, unit += PANEL4) switch (block % 4) {
            case 0: read_block4(unit, 0, &b[p]); break;
            case 1: read_block4(unit, 1, &b[p]); break;
            default: read_block4(unit, 2, &b[p]); break;
            }
        use_block4(R, 0, 2, x, block, b, sum);
    }
    store_sums(R, R, sum, sums);
}

/* Rows in tiles of about the same size: reading the blocks again for every tile, from the second-level cache, costs
 * less than storing them expanded, and both less than rows that do not count. */
TARGET INLINE void tiles_block4(const bool zen4, const cpu_block4 *const *x, int rows, const uint8_t *group,
                                int64_t begin, int64_t end, const uint8_t *next, float *sums)
{
    bool asks = true;
    for (int tiles = (rows + 7) / 8, r; tiles > 0; tiles--, x += r, rows -= r, sums += r * GROUP, asks = false) {
        r = (rows + tiles - 1) / tiles;
#define WALK(R)                                                                                                        \
    case R: walk_block4(R, zen4, asks, x, group, begin, end, next, sums); break;
        switch (r) {
            WALK(1)
            WALK(2)
            WALK(3)
            WALK(4)
            WALK(5)
            WALK(6)
            WALK(7)
            WALK(8)
        }
#undef WALK
    }
}

TARGET static void multiply_block4(const cpu_block4 *const *x, int rows, const uint8_t *group, int64_t begin,
                                   int64_t end, const uint8_t *next, void *scratch, float *sums)
{
    (void)scratch;
    if (ZEN4)
        tiles_block4(true, x, rows, group, begin, end, next, sums);
    else
        tiles_block4(false, x, rows, group, begin, end, next, sums);
}

#endif
