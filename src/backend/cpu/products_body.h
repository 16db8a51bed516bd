/*
 * Projections over the vectors of lanes.h. Included once per instruction set by products_<set>.c, which defines
 *
 *     PRODUCTS, NAME   the cpu_products to define, and what it is called
 *     TARGET           the function attribute that selects the instruction set
 *     WIDTH            lanes of its vectors: 16, 8 or 4
 *     TILE_R, TILE_C   rows and vectors of the register tile; TILE_C divides 32 / WIDTH
 *     SINGLE_C         vectors of the tile for a single row
 *     FMA(a, b, c)     a * b + c of vectors, fused or not
 *
 * and, where it has better ones, functions of its own, each announced by its name in capitals: E4M3_PAIR, E2M1_VALUES,
 * EXPAND, FEW (a prefix), ONE (likewise), PAIRS, BLOCK4.
 */
#include "backend/cpu/lanes.h"
#include "backend/cpu/products.h"
#include "number/bf16.h"
#include "number/e4m3.h"

#include <string.h>

#define VECTORS (GROUP / WIDTH)
/* The loops of a register tile: left rolled, its sums would live in memory. */
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* ---- Expanding --------------------------------------------------------------------------------------------------- */

#ifndef EXPAND

#ifndef E4M3_PAIR
/* WIDTH pairs of E4M3 codes to values times 2^-8. */
TARGET INLINE void e4m3_pair(const uint8_t *pairs, vec *even, vec *odd)
{
    typedef uint16_t words __attribute__((vector_size(2 * WIDTH)));
    words w;
    LOAD(w, pairs);
    vec_int v = __builtin_convertvector(w, vec_int), low = SHIFT_LEFT(v, 24), high = SHIFT_LEFT(v & 0xFF00, 16);
    e4m3_values(&low, even);
    e4m3_values(&high, odd);
    *even *= 0x1p-8f;
    *odd *= 0x1p-8f;
}
#endif

#ifndef E2M1_VALUES
#define E2M1_VALUES e2m1_values
#endif

TARGET static void expand_bf16(const uint8_t *group, int64_t begin, int64_t end, float *out)
{
    const uint8_t *line = group + begin * LINE;
    for (int64_t k = begin; k < end; k += 2, line += 2 * LINE, out += 2 * GROUP)
        for (int c = 0; c < VECTORS; c++) {
            vec_int pair;
            LOAD(pair, line + c * 4 * WIDTH);
            vec_int low = SHIFT_LEFT(pair, 16), high = pair & (int32_t)0xFFFF0000;
            STORE(out + c * WIDTH, low);
            if (k + 1 < end) STORE(out + GROUP + c * WIDTH, high);
        }
}

TARGET static void expand_mxfp8(const uint8_t *group, int64_t begin, int64_t end, float *out)
{
    for (int64_t block = begin / 32; block < end / 32; block++, out += 32 * GROUP)
        for (int c = 0; c < VECTORS; c++) {
            int p = c / PARTS, part = c % PARTS;
            const uint8_t *unit = group + (block / 4 * 2 + p) * (MXFP8_UNIT_LINES * LINE);
            const uint8_t *line = unit + block % 4 * (8 * LINE) + part * 2 * WIDTH;
            vec_int bytes;
            LOAD(bytes, unit + (MXFP8_UNIT_LINES - 1) * LINE + part * 4 * WIDTH);
            bytes = SHIFT_RIGHT(bytes, 8 * (int)(block % 4)) & 0xFF;
            vec scale = (vec)((bytes + 8) << 23); /* with the 2^8 that e4m3_pair leaves */
            for (int j = 0; j < 16; j++) {
                vec even, odd;
                e4m3_pair(line + j * (LINE / 2), &even, &odd);
                even *= scale;
                odd *= scale;
                STORE(out + 2 * j * GROUP + c * WIDTH, even);
                STORE(out + (2 * j + 1) * GROUP + c * WIDTH, odd);
            }
        }
}

TARGET static void expand_nvfp4(const uint8_t *group, int64_t begin, int64_t end, float *out)
{
    for (int64_t block = begin / 16; block < end / 16; block++, out += 16 * GROUP)
        for (int c = 0; c < VECTORS; c++) {
            int p = c / PARTS, part = c % PARTS;
            const uint8_t *unit = group + (block / 4 * 2 + p) * (NVFP4_UNIT_LINES * LINE);
            const uint8_t *line = unit + block % 4 * (2 * LINE) + part * 4 * WIDTH;
            vec_int bytes;
            LOAD(bytes, unit + (NVFP4_UNIT_LINES - 1) * LINE + part * 4 * WIDTH);
            vec scale = (vec)((SHIFT_RIGHT(bytes, 8 * (int)(block % 4)) & 0xFF) << 20) * 0x1p116f;
            for (int j = 0; j < 2; j++) {
                vec_int codes;
                LOAD(codes, line + j * LINE);
                for (int i = 0; i < 8; i++) {
                    vec_int top = SHIFT_LEFT(codes, 28 - 4 * i);
                    vec v;
                    E2M1_VALUES(&top, &scale, &v);
                    STORE(out + (8 * j + i) * GROUP + c * WIDTH, v);
                }
            }
        }
}

#endif

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* One column: sums of R rows and C vectors. */
TARGET INLINE void add_column(const int R, const int C, const bool fused, const float *const *row, int64_t k,
                              const float *w, vec sum[8][8])
{
    vec v[8];
    UNROLL
    for (int c = 0; c < C; c++) LOAD(v[c], w + c * WIDTH);
    UNROLL
    for (int r = 0; r < R; r++) {
        vec x = SPLAT(row[r][k]);
        UNROLL
        for (int c = 0; c < C; c++)
            if (fused)
                sum[r][c] = FMA(x, v[c], sum[r][c]);
            else
                sum[r][c] += x * v[c];
    }
}

/* A register tile of R rows and C vectors from vector `first` on. */
TARGET INLINE void tile(const int R, const int C, const bool fused, const float *const *x, int64_t begin,
                        const float *w, int first, int k, float *sums)
{
    vec sum[8][8];
    const float *row[8];
    sums += first * WIDTH;
    w += first * WIDTH;
    UNROLL
    for (int r = 0; r < R; r++) {
        row[r] = x[r] + begin;
        UNROLL
        for (int c = 0; c < C; c++) LOAD(sum[r][c], sums + r * GROUP + c * WIDTH);
    }
    int i = 0;
    for (; i + 2 <= k; i += 2) {
        add_column(R, C, fused, row, i + 1, w + (i + 1) * GROUP, sum);
        add_column(R, C, fused, row, i, w + i * GROUP, sum);
    }
    if (i < k) add_column(R, C, fused, row, i, w + i * GROUP, sum);
    UNROLL
    for (int r = 0; r < R; r++)
        UNROLL
        for (int c = 0; c < C; c++) STORE(sums + r * GROUP + c * WIDTH, sum[r][c]);
}

TARGET INLINE void rows_of(const int R, const int C, const bool fused, const float *const *x, int64_t begin,
                           const float *w, int k, float *sums)
{
    for (int c = 0; c < VECTORS; c += C) tile(R, C, fused, x, begin, w, c, k, sums);
}

TARGET static void multiply(const float *const *x, int64_t begin, int rows, const float *w, int k, float *sums)
{
    int r = 0;
    for (; r + TILE_R <= rows; r += TILE_R) rows_of(TILE_R, TILE_C, true, x + r, begin, w, k, sums + r * GROUP);
    if (TILE_R > 4)
        for (; r + 4 <= rows; r += 4) rows_of(4, TILE_C, true, x + r, begin, w, k, sums + r * GROUP);
    for (; r + 2 <= rows; r += 2) rows_of(2, TILE_C, true, x + r, begin, w, k, sums + r * GROUP);
    for (; r < rows; r++) rows_of(1, SINGLE_C, true, x + r, begin, w, k, sums + r * GROUP);
}

TARGET static void multiply_f32(const float *const *x, int64_t begin, int rows, const float *w, int k, float *sums)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4) rows_of(4, TILE_C, false, x + r, begin, w, k, sums + r * GROUP);
    for (; r < rows; r++) rows_of(1, SINGLE_C, false, x + r, begin, w, k, sums + r * GROUP);
}

/* ---- Quantising 4-bit activations --------------------------------------------------------------------------------- */

/* Folds 16 lanes in halves: left to the compiler, lanes would be taken out one by one. */
typedef int32_t lanes8 __attribute__((vector_size(32)));
typedef int32_t lanes4 __attribute__((vector_size(16)));

TARGET INLINE void fold_lanes(const bool sum, const int32_t *lane, int32_t *out)
{
    lanes8 a, b;
    lanes4 c, d;
    memcpy(&a, lane, sizeof a);
    memcpy(&b, lane + 8, sizeof b);
    a = sum ? a + b : ((a > b) & a) | (~(a > b) & b);
    memcpy(&c, &a, sizeof c);
    memcpy(&d, (const char *)&a + sizeof c, sizeof d);
    c = sum ? c + d : ((c > d) & c) | (~(c > d) & d);
    *out = c[0];
    for (int i = 1; i < 4; i++) *out = sum ? *out + c[i] : *out > c[i] ? *out : c[i];
}

/* max|x| of 16 * blocks values; NaN if one of them is: as whole numbers, magnitudes keep their order and NaN is last. */
TARGET INLINE float largest(const float *x, int64_t blocks)
{
    vec_int most[PARTS] = {{0}};
    int32_t lane[LANES], top;
    float amax;
    for (int64_t i = 0; i < blocks * LANES; i += LANES)
        UNROLL
        for (int p = 0; p < PARTS; p++) {
            vec_int v;
            LOAD(v, x + i + p * WIDTH);
            v &= 0x7FFFFFFF;
            most[p] = (vec_int)SELECT(v > most[p], v, most[p]);
        }
    memcpy(lane, most, sizeof lane);
    fold_lanes(false, lane, &top);
    memcpy(&amax, &top, sizeof amax);
    return amax;
}

/* Doubled E2M1 codes of x / unit, to nearest, ties to even: what each boundary between codes adds. NaN gives 0. */
TARGET INLINE void codes16(const float *x, float unit, int32_t *out)
{
    UNROLL
    for (int p = 0; p < PARTS; p++) {
        vec v;
        LOAD(v, x + p * WIDTH);
        v = v / unit;
        vec a = (vec)((vec_int)v & 0x7FFFFFFF);
        vec_int code = -((a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f)) - 2 * ((a > 2.5f) + (a >= 3.5f)) -
                       4 * (a > 5.0f);
        vec_int minus = (vec_int)v < 0;
        code = (code ^ minus) - minus;
        STORE(out + p * WIDTH, code);
    }
}

/* A block from its values, the byte of its scale and the unit of its codes. */
TARGET INLINE void make_block4(const float *x, uint8_t scale, float unit, cpu_block4 *out)
{
    typedef int8_t bytes __attribute__((vector_size(16)));
    int32_t code[LANES], sum;
    int8_t small[LANES];
    bytes narrow;
    codes16(x, unit, code);
    for (int i = 0; i < LANES; i++) small[i] = (int8_t)code[i];
    memcpy(&narrow, small, sizeof narrow);
    narrow = __builtin_shufflevector(narrow, narrow, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    memcpy(out->code, &narrow, sizeof narrow);
    fold_lanes(true, code, &sum);
    out->scale = e4m3_to_float(scale) * 0x1p115f; /* NVFP4_OFFSET, and 1/4 */
    out->correction = -12 * sum;
}

TARGET static float quantise_fc1(const float *x, int64_t blocks, cpu_block4 *out)
{
    float r = largest(x, blocks), scaled[LANES];
    if (r < 1e-12f) r = 1e-12f;
    float factor = 2688.0f / r;
    for (int64_t b = 0; b < blocks; b++, x += LANES) {
        UNROLL
        for (int p = 0; p < PARTS; p++) {
            vec v;
            LOAD(v, x + p * WIDTH);
            v = v * factor;
            round_bf16(&v);
            STORE(scaled + p * WIDTH, v);
        }
        uint8_t scale = e4m3_from_float(largest(scaled, 1) / 6);
        if (!scale) scale = 1;
        make_block4(scaled, scale, e4m3_to_float(scale), &out[b]);
    }
    return bf16_round(r / 2688.0f);
}

TARGET static void quantise_fc2(const float *x, int64_t blocks, cpu_block4 *out)
{
    for (int64_t b = 0; b < blocks; b++, x += LANES) {
        uint8_t scale = e4m3_from_float(largest(x, 1) / 6 * 16);
        if (!scale) scale = 1;
        make_block4(x, scale, e4m3_to_float(scale) * 0.0625f, &out[b]);
    }
}

/* ---- 4-bit activations --------------------------------------------------------------------------------------------
 */

#ifndef BLOCK4

/* Doubled codes of a block as small whole numbers in fp32, where all sums below are exact, in the order of a
 * cpu_block4, and the scales: out [17][32]. */
TARGET INLINE void expand_block4(const uint8_t *group, int64_t block, float *out)
{
    for (int c = 0; c < VECTORS; c++) {
        int p = c / PARTS, part = c % PARTS;
        const uint8_t *unit = group + (block / 4 * 2 + p) * (NVFP4_UNIT_LINES * LINE);
        const uint8_t *line = unit + block % 4 * (2 * LINE) + part * 4 * WIDTH;
        vec_int bytes;
        vec one = SPLAT(1.0f);
        LOAD(bytes, unit + (NVFP4_UNIT_LINES - 1) * LINE + part * 4 * WIDTH);
        vec_int scale = (SHIFT_RIGHT(bytes, 8 * (int)(block % 4)) & 0xFF) << 20;
        STORE(out + 16 * GROUP + c * WIDTH, scale);
        for (int i = 0; i < 16; i++) {
            vec_int codes;
            LOAD(codes, line + i / 8 * LINE);
            vec_int top = SHIFT_LEFT(codes, 28 - 4 * (i % 8));
            vec v;
            e2m1_values(&top, &one, &v);
            STORE(out + (i / 8 * 8 + i % 2 * 4 + i % 8 / 2) * GROUP + c * WIDTH, v);
        }
    }
}

TARGET static void multiply_block4(const cpu_block4 *const *x, int rows, const uint8_t *group, int64_t begin,
                                   int64_t end, const uint8_t *next, void *scratch, float *sums)
{
    (void)next;
    float *w = scratch;
    for (int64_t block = begin; block < end; block++) {
        expand_block4(group, block, w);
        for (int r = 0; r < rows; r++) {
            const cpu_block4 *b = &x[r][block];
            for (int c = 0; c < VECTORS; c++) {
                vec dot = {0}, v, sum;
                for (int i = 0; i < 16; i++) {
                    LOAD(v, w + i * GROUP + c * WIDTH);
                    dot += v * (float)b->code[i];
                }
                LOAD(v, w + 16 * GROUP + c * WIDTH);
                LOAD(sum, sums + r * GROUP + c * WIDTH);
                v = v * b->scale;
                sum = FMA(dot, v, sum);
                STORE(sums + r * GROUP + c * WIDTH, sum);
            }
        }
    }
}

#endif

const cpu_products PRODUCTS = {
    .name = NAME,
    .expand_bf16 = expand_bf16,
    .expand_mxfp8 = expand_mxfp8,
    .expand_nvfp4 = expand_nvfp4,
#ifdef FEW
    .few_bf16 = few_bf16,
    .few_mxfp8 = few_mxfp8,
    .few_nvfp4 = few_nvfp4,
#endif
#ifdef ONE
    .one_nvfp4 = one_nvfp4,
#endif
    .multiply = multiply,
    .multiply_f32 = multiply_f32,
#ifdef PAIRS
    .pair_weights = pair_weights,
    .pair_row = pair_row,
    .multiply_pairs = multiply_pairs,
#endif
    .multiply_block4 = multiply_block4,
    .quantise_fc1 = quantise_fc1,
    .quantise_fc2 = quantise_fc2,
};
