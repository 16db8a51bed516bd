/*
 * Loops of projections that AVX-512 does better than the generic source. Included by products_avx512.c.
 *
 * With few rows a product is one walk over a group: a line is read once, expanded in registers and used for all rows
 * whose sums stay in registers too. Lines are asked for thousands of bytes before they are read: expanding one takes
 * so many instructions that the processor by itself has too few reads under way.
 *
 *     nvfp4 x bf16   per 16 weights: shift, permute (a table of the 16 codes), multiply by the block's scale, and one
 *                    multiply-add a row
 *     mxfp8 x bf16   codes become fp16 bits (3 or 2 operations for 32), vcvtph2ps; the sums take the block's scale
 *     bf16           a shift or a mask
 *
 * Measured on one core of an Emerald Rapids server, K = 6144, weights in the second-level cache, shares of the peak of
 * fp32 multiply-add:
 *
 *     rows            1         4         8      16      64     128
 *     nvfp4 x bf16    16 GB/s   0.55      0.67   0.80    0.90   0.92
 *     mxfp8 x bf16    17 GB/s   0.47      0.60   0.73    0.87   0.89
 *     bf16            39 GB/s   0.75      0.87   0.82    0.87   0.89
 */
#ifndef HAYATE_BACKEND_CPU_PRODUCTS_AVX512_H
#define HAYATE_BACKEND_CPU_PRODUCTS_AVX512_H

#include <immintrin.h>

#include "backend/cpu/lanes.h"
#include "backend/cpu/products.h"

/* How far ahead lines are asked for, into the first-level cache. On Zen 5 one row of NVFP4 inputs then reads memory at
 * 0.97 of a read pass with one thread, where lines for the second-level cache, further ahead, gave 0.80. Zen 4 has
 * smaller caches and does better otherwise; see one_nvfp4(), ask_lines() and products_avx512_pairs.c. */
enum { AHEAD_BF16 = 16384, AHEAD_MXFP8 = 12672, AHEAD_NVFP4 = 12288, AHEAD_NVFP4_ZEN4 = 2048 };

/* The loops of a register tile: left rolled, its sums would live in memory. */
#define UNROLL _Pragma("GCC unroll 8")

#define EXPAND
#define FEW
#define ONE

TARGET INLINE void ask(const uint8_t *line, int ahead)
{
    _mm_prefetch((const char *)line + ahead, _MM_HINT_T0);
}

/* The panels of a unit are read side by side, but asked for in the order of their addresses: where the lines of quarter
 * `which` of a unit begin, of which there are 2 * lines, and one more in quarters 0 and 2 for the scales. */
TARGET INLINE int64_t quarter(int64_t which, int lines)
{
    return (2 * lines * which + (which + 1) / 2) * LINE;
}

/* What becomes of a column of a group, v [2]: R rows take it, or with R = 0 it is stored. */
TARGET INLINE void use_column(const int R, const float *const *x, int64_t k, const __m512 *v, __m512 sum[8][2],
                              float *out)
{
    if (R == 0) {
        _mm512_store_ps(out, v[0]);
        _mm512_store_ps(out + LANES, v[1]);
        return;
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        __m512 b = _mm512_set1_ps(x[r][k]);
        sum[r][0] = _mm512_fmadd_ps(b, v[0], sum[r][0]);
        sum[r][1] = _mm512_fmadd_ps(b, v[1], sum[r][1]);
    }
}

/* ---- bf16 ------------------------------------------------------------------------------------------------------- */

TARGET INLINE void walk_bf16(const int R, const float *const *x, const uint8_t *group, int64_t begin, int64_t end,
                             __m512 sum[8][2], float *out)
{
    const __m512i high = _mm512_set1_epi32((int)0xFFFF0000);
    const uint8_t *line = group + begin * LINE;
    for (int64_t k = begin; k < end; k += 2, line += 2 * LINE) {
        __m512i a = _mm512_load_si512(line), b = _mm512_load_si512(line + LINE);
        __m512 even[2] = {_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b, 16))};
        __m512 odd[2] = {_mm512_castsi512_ps(_mm512_and_si512(a, high)),
                         _mm512_castsi512_ps(_mm512_and_si512(b, high))};
        ask(line, AHEAD_BF16);
        ask(line + LINE, AHEAD_BF16);
        if (k + 1 < end) use_column(R, x, k + 1, odd, sum, out + (k + 1 - begin) * GROUP);
        use_column(R, x, k, even, sum, out + (k - begin) * GROUP);
    }
}

/* ---- MXFP8 ------------------------------------------------------------------------------------------------------ */

/* Four columns of a panel: codes as fp16, which is 2^-8 of their value and holds subnormals too. */
TARGET INLINE void e4m3_columns(const uint8_t *line, __m512 v[4])
{
    const __m512i keep = _mm512_set1_epi16((short)0xBF80);
    __m512i pairs = _mm512_load_si512(line);
    __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(pairs, 8), 1), keep);
    __m512i odd = _mm512_and_si512(_mm512_srai_epi16(pairs, 1), keep);
    v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(even));
    v[1] = _mm512_cvtph_ps(_mm512_castsi512_si256(odd));
    v[2] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(even, 1));
    v[3] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(odd, 1));
}

/* The 32 columns of a block from k on; each is multiplied with the scales, or the caller has scaled the sums. */
TARGET INLINE void block_mxfp8(const int R, const bool scaled, const float *const *x, const uint8_t *line,
                               const uint8_t *next, const __m512 scale[2], int64_t k, __m512 sum[8][2], float *out)
{
    for (int j = 0; j < 8; j++, k += 4, line += LINE, next += 2 * LINE, out += 4 * GROUP) {
        __m512 a[4], b[4];
        ask(next, AHEAD_MXFP8);
        ask(next + LINE, AHEAD_MXFP8);
        e4m3_columns(line, a);
        e4m3_columns(line + MXFP8_UNIT_LINES * LINE, b);
        UNROLL
        for (int n = 0; n < 4; n++) {
            const int i = n ^ 1;
            __m512 v[2] = {a[i], b[i]};
            if (!scaled) v[0] = _mm512_mul_ps(v[0], scale[0]), v[1] = _mm512_mul_ps(v[1], scale[1]);
            use_column(R, x, k + i, v, sum, out + i * GROUP);
        }
    }
}

/*
 * Scales are powers of two, so a block can be added to sums divided by its scale, which are multiplied back after it:
 * the same bits without a multiplication for each weight, as long as neither leaves the range of fp32. That holds for
 * sums between 2^-90 and 2^70 and scales between 2^-60 and 2^20; blocks with other scales are multiplied.
 */
TARGET INLINE void walk_mxfp8(const int R, const float *const *x, const uint8_t *group, int64_t begin, int64_t end,
                              __m512 sum[8][2], float *out)
{
    enum { UNIT = MXFP8_UNIT_LINES * LINE, LOWEST = 127 - 60, HIGHEST = 127 + 20 };
    for (int64_t block = begin / 32; block < end / 32; block++) {
        const uint8_t *unit = group + block / 4 * 2 * UNIT, *line = unit + block % 4 * (8 * LINE);
        __m512 scale[2], inverse[2];
        __mmask16 moderate = 0xFFFF;
        UNROLL
        for (int p = 0; p < 2; p++) {
            __m512i bytes = _mm512_load_si512(unit + p * UNIT + (MXFP8_UNIT_LINES - 1) * LINE);
            bytes = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(8 * (int)(block % 4)));
            bytes = _mm512_and_si512(bytes, _mm512_set1_epi32(0xFF));
            moderate &= _mm512_cmple_epu32_mask(_mm512_sub_epi32(bytes, _mm512_set1_epi32(LOWEST)),
                                                _mm512_set1_epi32(HIGHEST - LOWEST));
            /* With the 2^8 that e4m3_columns leaves. */
            scale[p] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(bytes, _mm512_set1_epi32(8)), 23));
            inverse[p] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(246), bytes), 23));
        }
        const uint8_t *next = unit + quarter(block % 4, 8);
        ask(next + 16 * LINE, AHEAD_MXFP8);
        if (R == 0 || moderate != 0xFFFF) {
            block_mxfp8(R, false, x, line, next, scale, block * 32, sum, out + (block * 32 - begin) * GROUP);
            continue;
        }
        UNROLL
        for (int r = 0; r < R; r++)
            for (int p = 0; p < 2; p++) sum[r][p] = _mm512_mul_ps(sum[r][p], inverse[p]);
        block_mxfp8(R, true, x, line, next, scale, block * 32, sum, out);
        UNROLL
        for (int r = 0; r < R; r++)
            for (int p = 0; p < 2; p++) sum[r][p] = _mm512_mul_ps(sum[r][p], scale[p]);
    }
}

/* ---- NVFP4 x bf16 -------------------------------------------------------------------------------------------------
 */

/* Scale `which` of a unit, times 2^-117. */
TARGET INLINE __m512 nvfp4_scale(const uint8_t *unit, int64_t which)
{
    __m512i bytes = _mm512_load_si512(unit + (NVFP4_UNIT_LINES - 1) * LINE);
    bytes = _mm512_rolv_epi32(bytes, _mm512_set1_epi32(20 - 8 * (int)which));
    return _mm512_castsi512_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(0x0FF00000)));
}

TARGET INLINE void walk_nvfp4(const int R, const float *const *x, const uint8_t *group, int64_t begin, int64_t end,
                              __m512 sum[8][2], float *out)
{
    enum { UNIT = NVFP4_UNIT_LINES * LINE };
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512 wide = _mm512_set1_ps(0x1p117f);
    for (int64_t block = begin / 16; block < end / 16; block++) {
        const uint8_t *unit = group + block / 4 * 2 * UNIT, *line = unit + block % 4 * (2 * LINE);
        __m512 scale[2];
        UNROLL
        for (int p = 0; p < 2; p++) scale[p] = _mm512_mul_ps(nvfp4_scale(unit + p * UNIT, block % 4), wide);
        const uint8_t *next = unit + quarter(block % 4, 2);
        ask(next + 4 * LINE, AHEAD_NVFP4);
        for (int j = 0; j < 2; j++, line += LINE, next += 2 * LINE) {
            __m512i a = _mm512_load_si512(line), b = _mm512_load_si512(line + UNIT);
            int64_t k = block * 16 + j * 8;
            ask(next, AHEAD_NVFP4);
            ask(next + LINE, AHEAD_NVFP4);
            UNROLL
            for (int n = 0; n < 8; n++) {
                const int i = n ^ 1;
                __m512 v[2] = {_mm512_permutexvar_ps(i ? _mm512_srli_epi32(a, 4 * i) : a, table),
                               _mm512_permutexvar_ps(i ? _mm512_srli_epi32(b, 4 * i) : b, table)};
                for (int p = 0; p < 2; p++) v[p] = _mm512_mul_ps(v[p], scale[p]);
                use_column(R, x, k + i, v, sum, out + (k + i - begin) * GROUP);
            }
        }
    }
}

/* Code i of 8 a lane in the lowest four bits. Every other one comes down by a load from a byte on, the rest by a shift:
 * shifts have one port of the two that everything else here needs too. (Code lines are never the last of a group.) */
TARGET INLINE __m512i code_at(const uint8_t *line, const int i)
{
    __m512i codes = _mm512_loadu_si512(line + i / 2);
    return i % 2 ? _mm512_srli_epi32(codes, 4) : codes;
}

/*
 * One row and two groups: the table of codes is multiplied with an input once for four panels, and the scales multiply
 * what it gives as it is added; both products are exact, so the sum is the same. Four chains also hide the latency of
 * the additions, which two do not.
 */
TARGET static void one_nvfp4(const float *x, const uint8_t *group, const uint8_t *other, int64_t begin, int64_t end,
                             float *sums, float *other_sums)
{
    enum { UNIT = NVFP4_UNIT_LINES * LINE };
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512 wide = _mm512_set1_ps(0x1p117f);
    const int ahead = ZEN4 ? AHEAD_NVFP4_ZEN4 : AHEAD_NVFP4; /* Zen 4: 0.81 to 0.85 of a read pass where it was 0.73 */
    __m512 sum[4] = {_mm512_loadu_ps(sums), _mm512_loadu_ps(sums + LANES), _mm512_loadu_ps(other_sums),
                     _mm512_loadu_ps(other_sums + LANES)};
    for (int64_t block = begin / 16; block < end / 16; block++) {
        int64_t unit = block / 4 * 2 * UNIT, at = unit + block % 4 * (2 * LINE);
        int64_t next = unit + quarter(block % 4, 2);
        const uint8_t *line[4] = {group + at, group + at + UNIT, other + at, other + at + UNIT};
        __m512 scale[4];
        UNROLL
        for (int p = 0; p < 4; p++)
            scale[p] = _mm512_mul_ps(nvfp4_scale((p < 2 ? group : other) + unit + p % 2 * UNIT, block % 4), wide);
        ask(group + next + 4 * LINE, ahead);
        ask(other + next + 4 * LINE, ahead);
        for (int j = 0; j < 2; j++, next += 2 * LINE) {
            const float *in = x + block * 16 + j * 8;
            ask(group + next, ahead);
            ask(group + next + LINE, ahead);
            ask(other + next, ahead);
            ask(other + next + LINE, ahead);
            UNROLL
            for (int n = 0; n < 8; n++) {
                const int i = n ^ 1;
                __m512 products = _mm512_mul_ps(_mm512_set1_ps(in[i]), table);
                UNROLL
                for (int p = 0; p < 4; p++)
                    sum[p] = _mm512_fmadd_ps(_mm512_permutexvar_ps(code_at(line[p] + j * LINE, i), products), scale[p],
                                             sum[p]);
            }
        }
    }
    _mm512_storeu_ps(sums, sum[0]);
    _mm512_storeu_ps(sums + LANES, sum[1]);
    _mm512_storeu_ps(other_sums, sum[2]);
    _mm512_storeu_ps(other_sums + LANES, sum[3]);
}

/* ---- Few rows, and expanding ---------------------------------------------------------------------------------------
 */

/* Sums of R rows, of which `rows` are there: the others repeat the last and are not stored. */
TARGET INLINE void load_sums(const int R, int rows, const float *sums, __m512 sum[8][2])
{
    UNROLL
    for (int r = 0; r < R; r++) {
        const float *from = sums + (r < rows ? r : rows - 1) * GROUP;
        sum[r][0] = _mm512_loadu_ps(from);
        sum[r][1] = _mm512_loadu_ps(from + LANES);
    }
}

TARGET INLINE void store_sums(const int R, int rows, __m512 sum[8][2], float *sums)
{
    UNROLL
    for (int r = 0; r < R; r++)
        if (r < rows) {
            _mm512_storeu_ps(sums + r * GROUP, sum[r][0]);
            _mm512_storeu_ps(sums + r * GROUP + LANES, sum[r][1]);
        }
}

#define FEW_ROWS_OF(R, format)                                                                                         \
    {                                                                                                                  \
        __m512 sum[8][2];                                                                                              \
        const float *row[R];                                                                                           \
        for (int r = 0; r < R; r++) row[r] = x[r < rows ? r : rows - 1];                                               \
        load_sums(R, rows, sums, sum);                                                                                 \
        walk_##format(R, row, group, begin, end, sum, sums);                                                           \
        store_sums(R, rows, sum, sums);                                                                                \
    }
#define FEW_OF(format)                                                                                                 \
    TARGET static void few_##format(const float *const *x, int rows, const uint8_t *group, int64_t begin, int64_t end, \
                                    float *sums)                                                                       \
    {                                                                                                                  \
        if (rows == 1)                                                                                                 \
            FEW_ROWS_OF(1, format)                                                                                     \
        else if (rows == 2)                                                                                            \
            FEW_ROWS_OF(2, format)                                                                                     \
        else if (rows <= 4)                                                                                            \
            FEW_ROWS_OF(4, format)                                                                                     \
        else                                                                                                           \
            FEW_ROWS_OF(8, format)                                                                                     \
    }                                                                                                                  \
    TARGET static void expand_##format(const uint8_t *group, int64_t begin, int64_t end, float *out)                   \
    {                                                                                                                  \
        walk_##format(0, NULL, group, begin, end, NULL, out);                                                          \
    }

FEW_OF(bf16)
FEW_OF(mxfp8)
FEW_OF(nvfp4)

#endif
