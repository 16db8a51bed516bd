/*
 * Projections with vdpbf16ps, for processors where it issues as often as fp32 multiply-add: twice the products.
 *
 * It adds the odd product of a pair, then the even one, each rounded once, which is the order of products.h; its
 * operands are exact, so it gives the same bits. Codes become pairs of bf16 in registers:
 *
 *     bf16    are pairs as they lie
 *
 *     mxfp8   vpermi2b finds the low and the high bytes of 64 codes in tables of 128, the sign is put in, and
 *             vpunpcklbw and vpunpckhbw make two columns of sixteen outputs each: six operations for 64 weights
 *
 *     nvfp4   vpmultishiftqb brings a pair of codes into place, vpermi2w finds their products with the mantissa of
 *             the block's scale in a table of 64, a saturating subtraction puts the exponent in, so that 0 stays 0,
 *             and the sign follows: five operations for 32 weights
 *
 * Few rows walk over a group with their sums in registers, and a block's scale of MXFP8 goes to the sums. For many rows
 * pairs are stored with the scale in them, K_CHUNK columns at a time, and serve tiles of eight rows.
 *
 * Measured on one core of a Zen 4 server, K = 6144, weights from memory; GB/s, and the share of the peak of vdpbf16ps
 * (nvfp4 with one row is products_avx512.h's):
 *
 *     rows      1          2          4          8          16         32         128
 *     mxfp8     32         27         20 0.67    12 0.77    0.78       0.81       0.86
 *     nvfp4     16         13         9.0 0.54   5.4 0.66   0.75       0.81       0.83
 *     bf16      26         26         26         25 0.86    0.88       0.87       0.88
 */
#if defined(__x86_64__)
#include "backend/cpu/products_avx512_pairs.h"

#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx512bf16,fma,f16c")))
#define INLINE TARGET static inline __attribute__((always_inline))
/* The loops of a register tile: left rolled, its sums would live in memory. */
#define UNROLL _Pragma("GCC unroll 8")

/* How far ahead lines are asked for: into the first-level cache, but for MXFP8, see ask_mxfp8(). */
enum { AHEAD_BF16 = 16384, AHEAD_MXFP8 = 12672, AHEAD_MXFP8_ZEN4 = 8192, AHEAD_NVFP4 = 12288 };

INLINE void ask(const uint8_t *line, int ahead)
{
    _mm_prefetch((const char *)line + ahead, _MM_HINT_T0);
}

/* What is not wanted before the next chunk, into the second-level cache. */
INLINE void ask_later(const uint8_t *line, int ahead)
{
    _mm_prefetch((const char *)line + ahead, _MM_HINT_T1);
}

/* Lines of MXFP8: for Zen 4 into the second-level cache, where one row reads memory at 0.93 of a read pass. Into the
 * first-level one, which is smaller than Zen 5's, it is 0.73; on Zen 5 0.79 and 1.0. */
INLINE void ask_mxfp8(const bool zen4, const uint8_t *line)
{
    if (zen4)
        ask_later(line, AHEAD_MXFP8_ZEN4);
    else
        ask(line, AHEAD_MXFP8);
}

/* The panels of a unit are read side by side, but asked for in the order of their addresses: where the lines of quarter
 * `which` of a unit begin, of which there are 2 * lines, and one more in quarters 0 and 2 for the scales. */
INLINE int64_t quarter(int64_t which, int lines)
{
    return (2 * lines * which + (which + 1) / 2) * LINE;
}

/* ---- Codes to pairs ---------------------------------------------------------------------------------------------- */

/* bf16 of the E4M3 code of exponent bits e and mantissa bits m. */
#define E4M3_BITS(e, m)                                                                                                \
    ((e)        ? ((e) + 120) << 7 | (m) << 4                                                                          \
     : (m) >= 4 ? 0x3C00 + ((m)-4) * 32                                                                                \
     : (m) >= 2 ? 0x3B80 + ((m)-2) * 64                                                                                \
                : (m)*0x3B00)
/* Two to the power of -8 of it: what sums that are divided by a block's scale take. */
#define E4M3_SMALL(e, m) ((e) + (m) == 0 ? 0 : E4M3_BITS(e, m) - (8 << 7))
/* With an exponent from which the block's scale is subtracted with saturation, so that 0 stays 0. */
#define E4M3_BIASED(e, m) ((e) + (m) == 0 ? 0 : E4M3_BITS(e, m) + (120 << 7))
#define LOW_BYTE(bits) (uint8_t)((bits)&0xFF)
#define HIGH_BYTE(bits) (uint8_t)((bits) >> 8)
#define EIGHT(byte, of, e)                                                                                             \
    byte(of(e, 0)), byte(of(e, 1)), byte(of(e, 2)), byte(of(e, 3)), byte(of(e, 4)), byte(of(e, 5)), byte(of(e, 6)),    \
        byte(of(e, 7))
#define ALL(byte, of)                                                                                                  \
    {                                                                                                                  \
        EIGHT(byte, of, 0), EIGHT(byte, of, 1), EIGHT(byte, of, 2), EIGHT(byte, of, 3), EIGHT(byte, of, 4),            \
            EIGHT(byte, of, 5), EIGHT(byte, of, 6), EIGHT(byte, of, 7), EIGHT(byte, of, 8), EIGHT(byte, of, 9),        \
            EIGHT(byte, of, 10), EIGHT(byte, of, 11), EIGHT(byte, of, 12), EIGHT(byte, of, 13), EIGHT(byte, of, 14),   \
            EIGHT(byte, of, 15)                                                                                        \
    }

typedef struct e4m3_table {
    __m512i low[2], high[2];
} e4m3_table;

static const uint8_t small_low[128] = ALL(LOW_BYTE, E4M3_SMALL), small_high[128] = ALL(HIGH_BYTE, E4M3_SMALL);
static const uint8_t biased_low[128] = ALL(LOW_BYTE, E4M3_BIASED), biased_high[128] = ALL(HIGH_BYTE, E4M3_BIASED);

INLINE e4m3_table load_table(const uint8_t *low, const uint8_t *high)
{
    return (e4m3_table){{_mm512_loadu_si512(low), _mm512_loadu_si512(low + LINE)},
                        {_mm512_loadu_si512(high), _mm512_loadu_si512(high + LINE)}};
}

/* A line with the codes of outputs 4 i .. 4 i + 3 of its two pairs of columns in quarter i. */
INLINE __m512i e4m3_line(const uint8_t *line)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), _mm512_load_si512(line));
}

/* The pairs of columns 0 and 1, and of 2 and 3. */
INLINE void e4m3_pairs(const e4m3_table *t, const uint8_t *line, __m512i pair[2])
{
    __m512i codes = e4m3_line(line);
    __m512i low = _mm512_permutex2var_epi8(t->low[0], codes, t->low[1]);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], codes, t->high[1]);
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), 0xF8);
    pair[0] = _mm512_unpacklo_epi8(low, high);
    pair[1] = _mm512_unpackhi_epi8(low, high);
}

/* The same times 2^(127 - 247 + scale) where `less` has (247 - scale) << 7 in every half: the table is the biased one.
 */
INLINE void e4m3_scaled_pairs(const e4m3_table *t, const uint8_t *line, __m512i less, __m512i pair[2])
{
    const __m512i sign = _mm512_set1_epi16((short)0x8000);
    __m512i codes = e4m3_line(line);
    __m512i low = _mm512_permutex2var_epi8(t->low[0], codes, t->low[1]);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], codes, t->high[1]);
    pair[0] = _mm512_subs_epu16(_mm512_unpacklo_epi8(low, high), less);
    pair[1] = _mm512_subs_epu16(_mm512_unpackhi_epi8(low, high), less);
    pair[0] = _mm512_ternarylogic_epi32(pair[0], _mm512_unpacklo_epi8(codes, codes), sign, 0xF8);
    pair[1] = _mm512_ternarylogic_epi32(pair[1], _mm512_unpackhi_epi8(codes, codes), sign, 0xF8);
}

/* The UE8M0 scales of a block. */
INLINE __m512i e8m0_scales(const uint8_t *unit, int which)
{
    __m512i bytes = _mm512_load_si512(unit + (MXFP8_UNIT_LINES - 1) * LINE);
    bytes = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(8 * which));
    return _mm512_and_si512(bytes, _mm512_set1_epi32(0xFF));
}

TARGET void cpu_pairs_avx512_mxfp8(const uint8_t *group, int64_t begin, int64_t end, uint32_t *out)
{
    enum { UNIT = MXFP8_UNIT_LINES * LINE };
    const e4m3_table table = load_table(biased_low, biased_high);
    for (int64_t block = begin / 32; block < end / 32; block++, out += 16 * GROUP) {
        const uint8_t *unit = group + block / 4 * 2 * UNIT;
        for (int p = 0; p < 2; p++, unit += UNIT) {
            const uint8_t *line = unit + block % 4 * (8 * LINE);
            __m512i less = _mm512_sub_epi32(_mm512_set1_epi32(247), e8m0_scales(unit, (int)(block % 4)));
            less = _mm512_or_si512(_mm512_slli_epi32(less, 7), _mm512_slli_epi32(less, 23));
            for (int j = 0; j < 8; j++, line += LINE) {
                __m512i pair[2];
                e4m3_scaled_pairs(&table, line, less, pair);
                _mm512_store_si512(out + 2 * j * GROUP + p * LANES, pair[0]);
                _mm512_store_si512(out + (2 * j + 1) * GROUP + p * LANES, pair[1]);
            }
        }
    }
}

/* bf16 of an E2M1 code c times 1 + m / 8, with an exponent from which that of the scale is subtracted, so that 0 stays
 * 0. */
#define E2M1_WHOLE(c, m) ((126 + (c) / 2 + 31) << 7 | (m) << 4)
#define E2M1_HALVES(c, m) (((126 + (c) / 2 + 31) << 7) + ((m) < 3 ? 64 + 24 * (m) : 96 + 12 * (m)))
#define E2M1_ROW(m)                                                                                                    \
    0, E2M1_WHOLE(1, m), E2M1_WHOLE(2, m), E2M1_HALVES(3, m), E2M1_WHOLE(4, m), E2M1_HALVES(5, m), E2M1_WHOLE(6, m),   \
        E2M1_HALVES(7, m)

static const uint16_t e2m1_products[64] = {E2M1_ROW(0), E2M1_ROW(1), E2M1_ROW(2), E2M1_ROW(3),
                                           E2M1_ROW(4), E2M1_ROW(5), E2M1_ROW(6), E2M1_ROW(7)};

/* The products, and per pair of columns what brings a code into the lowest four bits of its 16-bit half and into the
 * highest four. */
typedef struct e2m1_table {
    __m512i product[2], take[4];
} e2m1_table;

INLINE e2m1_table load_e2m1(void)
{
    e2m1_table t = {{_mm512_loadu_si512(e2m1_products), _mm512_loadu_si512(e2m1_products + 32)}, {{0}}};
    UNROLL
    for (int i = 0; i < 4; i++)
        t.take[i] = _mm512_add_epi8(_mm512_set1_epi8((char)(8 * i)), _mm512_set1_epi64(0x20241C2000043C00));
    return t;
}

/* The scales of a block in both halves of their lanes: mantissas where the table of products has them, and what is
 * subtracted from the exponents; from a scale of 0 all. */
INLINE void e2m1_scales(const uint8_t *unit, int which, __m512i *mantissa, __m512i *less)
{
    const __m512i spread =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1));
    __m512i bytes = _mm512_load_si512(unit + (NVFP4_UNIT_LINES - 1) * LINE);
    bytes = _mm512_shuffle_epi8(bytes, _mm512_or_si512(spread, _mm512_set1_epi16((short)which)));
    __m512i exponent = _mm512_and_si512(_mm512_slli_epi16(bytes, 4), _mm512_set1_epi16(31 << 7));
    *mantissa = _mm512_slli_epi16(bytes, 3);
    *less = _mm512_sub_epi16(_mm512_set1_epi16(41 << 7), exponent);
    *less = _mm512_mask_mov_epi32(*less, _mm512_testn_epi32_mask(bytes, bytes), _mm512_set1_epi32(-1));
}

/* Pair i of the four of a line. */
INLINE __m512i e2m1_pair(const e2m1_table *t, __m512i line, const int i, __m512i mantissa, __m512i less)
{
    __m512i codes = _mm512_multishift_epi64_epi8(t->take[i], line);
    __m512i index = _mm512_ternarylogic_epi32(codes, _mm512_set1_epi16(7), mantissa, 0xEA);
    __m512i products = _mm512_permutex2var_epi16(t->product[0], index, t->product[1]);
    return _mm512_ternarylogic_epi32(_mm512_subs_epu16(products, less), codes, _mm512_set1_epi16((short)0x8000), 0xF8);
}

TARGET void cpu_pairs_avx512_nvfp4(const uint8_t *group, int64_t begin, int64_t end, uint32_t *out)
{
    enum { UNIT = NVFP4_UNIT_LINES * LINE };
    const e2m1_table table = load_e2m1();
    for (int64_t block = begin / 16; block < end / 16; block++, out += 8 * GROUP) {
        const uint8_t *unit = group + block / 4 * 2 * UNIT;
        for (int p = 0; p < 2; p++, unit += UNIT) {
            __m512i mantissa, less;
            e2m1_scales(unit, (int)(block % 4), &mantissa, &less);
            for (int j = 0; j < 2; j++) {
                __m512i line = _mm512_load_si512(unit + (block % 4 * 2 + j) * LINE);
                UNROLL
                for (int i = 0; i < 4; i++)
                    _mm512_store_si512(out + (4 * j + i) * GROUP + p * LANES,
                                       e2m1_pair(&table, line, i, mantissa, less));
            }
        }
    }
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

TARGET void cpu_pairs_avx512_row(const float *x, int k, uint32_t *out)
{
    const __m512i odds = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    int i = 0;
    for (; i + 32 <= k; i += 32) {
        __m512i a = _mm512_loadu_si512(x + i), b = _mm512_loadu_si512(x + i + 16);
        __m512i odd = _mm512_permutex2var_epi32(a, odds, b);
        __m512i even = _mm512_permutex2var_epi32(a, _mm512_sub_epi32(odds, _mm512_set1_epi32(1)), b);
        _mm512_storeu_si512(out + i / 2, _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even, 16), odd));
    }
    for (; i < k; i += 2) {
        uint32_t even, odd = 0;
        memcpy(&even, x + i, 4);
        if (i + 1 < k) memcpy(&odd, x + i + 1, 4);
        out[i / 2] = even >> 16 | (odd & 0xFFFF0000);
    }
}

/* A pair of columns, of both panels, for R rows: x is that of the first. */
INLINE void use_pair(const int R, const uint32_t *x, int64_t stride, __m512i a, __m512i b, __m512 sum[8][2])
{
    UNROLL
    for (int r = 0; r < R; r++) {
        __m512bh v = (__m512bh)_mm512_set1_epi32((int)x[r * stride]);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], (__m512bh)a, v);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], (__m512bh)b, v);
    }
}

INLINE void load_sums(const int R, const float *sums, __m512 sum[8][2])
{
    UNROLL
    for (int r = 0; r < R; r++) {
        sum[r][0] = _mm512_loadu_ps(sums + r * GROUP);
        sum[r][1] = _mm512_loadu_ps(sums + r * GROUP + LANES);
    }
}

INLINE void store_sums(const int R, __m512 sum[8][2], float *sums)
{
    UNROLL
    for (int r = 0; r < R; r++) {
        _mm512_storeu_ps(sums + r * GROUP, sum[r][0]);
        _mm512_storeu_ps(sums + r * GROUP + LANES, sum[r][1]);
    }
}

/* ---- Few rows ---------------------------------------------------------------------------------------------------- */

INLINE void walk_bf16(const int R, const uint32_t *x, int64_t stride, const uint8_t *group, int64_t begin, int64_t end,
                      __m512 sum[8][2])
{
    const uint8_t *line = group + begin * LINE;
    for (int64_t k = begin; k < end; k += 2, line += 2 * LINE, x++) {
        ask(line, AHEAD_BF16);
        ask(line + LINE, AHEAD_BF16);
        use_pair(R, x, stride, _mm512_load_si512(line), _mm512_load_si512(line + LINE), sum);
    }
}

/*
 * Scales are powers of two, so a block can be added to sums divided by its scale, which are multiplied back after it:
 * the same bits without a change to each weight, as long as neither leaves the range of fp32. That holds for sums
 * between 2^-90 and 2^70 and scales between 2^-60 and 2^20; blocks with other scales become scaled pairs.
 */
INLINE void walk_e4m3(const int R, const bool zen4, const uint32_t *x, int64_t stride, const uint8_t *group,
                      int64_t begin, int64_t end, __m512 sum[8][2])
{
    enum { UNIT = MXFP8_UNIT_LINES * LINE, LOWEST = 127 - 60, HIGHEST = 127 + 20 };
    const e4m3_table table = load_table(small_low, small_high);
    for (int64_t block = begin / 32; block < end / 32; block++, x += 16) {
        const uint8_t *unit = group + block / 4 * 2 * UNIT, *line = unit + block % 4 * (8 * LINE);
        const uint8_t *next = unit + quarter(block % 4, 8);
        __m512 scale[2], inverse[2];
        __mmask16 moderate = 0xFFFF;
        UNROLL
        for (int p = 0; p < 2; p++) {
            __m512i bytes = e8m0_scales(unit + p * UNIT, (int)(block % 4));
            moderate &= _mm512_cmple_epu32_mask(_mm512_sub_epi32(bytes, _mm512_set1_epi32(LOWEST)),
                                                _mm512_set1_epi32(HIGHEST - LOWEST));
            /* With the 2^8 that the table leaves. */
            scale[p] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(bytes, _mm512_set1_epi32(8)), 23));
            inverse[p] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(246), bytes), 23));
        }
        ask_mxfp8(zen4, next + 16 * LINE);
        if (moderate != 0xFFFF) {
            _Alignas(LINE) uint32_t pairs[16 * GROUP];
            cpu_pairs_avx512_mxfp8(group, block * 32, block * 32 + 32, pairs);
            for (int i = 0; i < 16; i++)
                use_pair(R, x + i, stride, _mm512_load_si512(pairs + i * GROUP),
                         _mm512_load_si512(pairs + i * GROUP + LANES), sum);
            continue;
        }
        UNROLL
        for (int r = 0; r < R; r++)
            for (int p = 0; p < 2; p++) sum[r][p] = _mm512_mul_ps(sum[r][p], inverse[p]);
        for (int j = 0; j < 8; j++, line += LINE, next += 2 * LINE) {
            __m512i a[2], b[2];
            ask_mxfp8(zen4, next);
            ask_mxfp8(zen4, next + LINE);
            e4m3_pairs(&table, line, a);
            e4m3_pairs(&table, line + UNIT, b);
            use_pair(R, x + 2 * j, stride, a[0], b[0], sum);
            use_pair(R, x + 2 * j + 1, stride, a[1], b[1], sum);
        }
        UNROLL
        for (int r = 0; r < R; r++)
            for (int p = 0; p < 2; p++) sum[r][p] = _mm512_mul_ps(sum[r][p], scale[p]);
    }
}

INLINE void walk_mxfp8(const int R, const uint32_t *x, int64_t stride, const uint8_t *group, int64_t begin, int64_t end,
                       __m512 sum[8][2])
{
    if (ZEN4)
        walk_e4m3(R, true, x, stride, group, begin, end, sum);
    else
        walk_e4m3(R, false, x, stride, group, begin, end, sum);
}

INLINE void walk_nvfp4(const int R, const uint32_t *x, int64_t stride, const uint8_t *group, int64_t begin, int64_t end,
                       __m512 sum[8][2])
{
    enum { UNIT = NVFP4_UNIT_LINES * LINE };
    const e2m1_table table = load_e2m1();
    for (int64_t block = begin / 16; block < end / 16; block++) {
        const uint8_t *unit = group + block / 4 * 2 * UNIT, *line = unit + block % 4 * (2 * LINE);
        const uint8_t *next = unit + quarter(block % 4, 2);
        __m512i mantissa[2], less[2];
        UNROLL
        for (int p = 0; p < 2; p++) e2m1_scales(unit + p * UNIT, (int)(block % 4), &mantissa[p], &less[p]);
        ask(next + 4 * LINE, AHEAD_NVFP4);
        for (int j = 0; j < 2; j++, line += LINE, next += 2 * LINE, x += 4) {
            __m512i a = _mm512_load_si512(line), b = _mm512_load_si512(line + UNIT);
            ask(next, AHEAD_NVFP4);
            ask(next + LINE, AHEAD_NVFP4);
            UNROLL
            for (int i = 0; i < 4; i++)
                use_pair(R, x + i, stride, e2m1_pair(&table, a, i, mantissa[0], less[0]),
                         e2m1_pair(&table, b, i, mantissa[1], less[1]), sum);
        }
    }
}

#define FEW_ROWS_OF(R, format)                                                                                         \
    {                                                                                                                  \
        __m512 sum[8][2];                                                                                              \
        load_sums(R, sums, sum);                                                                                       \
        walk_##format(R, x, stride, group, begin, end, sum);                                                           \
        store_sums(R, sum, sums);                                                                                      \
        x += R * stride, sums += R * GROUP, rows -= R;                                                                 \
    }
#define FEW_OF(format)                                                                                                 \
    TARGET void cpu_pairs_avx512_few_##format(const uint32_t *x, int64_t stride, int rows, const uint8_t *group,       \
                                              int64_t begin, int64_t end, float *sums)                                 \
    {                                                                                                                  \
        while (rows > 0)                                                                                               \
            if (rows >= 8)                                                                                             \
                FEW_ROWS_OF(8, format)                                                                                 \
            else if (rows >= 6)                                                                                        \
                FEW_ROWS_OF(6, format)                                                                                 \
            else if (rows == 5)                                                                                        \
                FEW_ROWS_OF(5, format)                                                                                 \
            else if (rows == 4)                                                                                        \
                FEW_ROWS_OF(4, format)                                                                                 \
            else if (rows == 3)                                                                                        \
                FEW_ROWS_OF(3, format)                                                                                 \
            else if (rows == 2)                                                                                        \
                FEW_ROWS_OF(2, format)                                                                                 \
            else                                                                                                       \
                FEW_ROWS_OF(1, format)                                                                                 \
    }

FEW_OF(bf16)
FEW_OF(mxfp8)
FEW_OF(nvfp4)

/* ---- Many rows --------------------------------------------------------------------------------------------------- */

/*
 * R rows. Meanwhile lines are asked for with each pair: the first `lines` from `next` on and, where `ahead` is there,
 * the rows' next columns: those lie far apart in a matrix larger than the second-level cache, and no processor guesses
 * them.
 */
INLINE void tile(const int R, const uint32_t *x, const uint32_t *w, int pairs, const uint8_t *next, int lines,
                 const float *const *ahead, float *sums)
{
    enum { ROW_LINES = K_CHUNK * 4 / LINE };
    __m512 sum[8][2];
    load_sums(R, sums, sum);
    for (int i = 0; i < pairs; i++, w += GROUP) {
        if (ahead) ask_later((const uint8_t *)ahead[i / ROW_LINES % R], i % ROW_LINES * LINE);
        ask_later(next, 0);
        next += i < lines ? LINE : 0;
        use_pair(R, x + i, K_CHUNK / 2, _mm512_load_si512(w), _mm512_load_si512(w + LANES), sum);
    }
    store_sums(R, sum, sums);
}

TARGET void cpu_pairs_avx512_multiply(const uint32_t *x, int rows, const uint32_t *w, int pairs, const uint8_t *next,
                                      int lines, const float *const *ahead, float *sums)
{
    int tiles = (rows + 7) / 8, share = (lines + tiles - 1) / tiles, r = 0;
    for (; rows - r >= 8; r += 8, next += share * LINE)
        tile(8, x + r * (K_CHUNK / 2), w, pairs, next, share, ahead ? ahead + r : NULL, sums + r * GROUP);
    for (; rows - r >= 4; r += 4)
        tile(4, x + r * (K_CHUNK / 2), w, pairs, next, share, ahead ? ahead + r : NULL, sums + r * GROUP);
    for (; rows - r >= 2; r += 2) tile(2, x + r * (K_CHUNK / 2), w, pairs, next, 0, NULL, sums + r * GROUP);
    for (; r < rows; r++) tile(1, x + r * (K_CHUNK / 2), w, pairs, next, 0, NULL, sums + r * GROUP);
}
#else
typedef int cpu_products_avx512_pairs_absent;
#endif
