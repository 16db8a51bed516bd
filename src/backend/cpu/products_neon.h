/*
 * Projections for 64-bit Arm: 32 registers of 4 lanes. Included by products_neon*.c, which are compiled for the
 * extensions that they take.
 *
 * With few rows a product is one walk over a group, as in products_avx512.h; the sums stay in registers, of one or two
 * rows and all 32 outputs or of four rows and 16 outputs at a time. Operations for four weights, and one multiply-add a
 * row:
 *
 *     nvfp4 x bf16   2.75: two look-ups of each code, for the two bytes of a bf16; one that puts those of a column into
 *                    lanes; a product with the block's scale
 *     mxfp8 x bf16   3.25: codes become fp16 bits (3 or 2 operations for 8), fcvtl, a product with the block's scale
 *     bf16           1: a shift or a mask
 *
 * nvfp4 x nvfp4: codes become doubled values in bytes, once for all rows; then for 64 weights and a row the dot
 * products (4 operations with sdot, 15 without), one conversion, one product of the scales, one multiply-add.
 */
#ifndef HAYATE_BACKEND_CPU_PRODUCTS_NEON_H
#define HAYATE_BACKEND_CPU_PRODUCTS_NEON_H

#include <arm_neon.h>

#define TARGET
#define WIDTH 4
#define TILE_R 6
#define TILE_C 4
#define SINGLE_C 8
#define FMA(a, b, c) ((vec)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))

#include "backend/cpu/lanes.h"
#include "backend/cpu/products.h"

enum {
    AHEAD = 2048,
    ALL = GROUP / 4, /* vectors of a group */
};

/* Sums are to stay in registers, so every loop over them has to go. */
#define UNROLL _Pragma("GCC unroll 8")

#define EXPAND
#define FEW
#define BLOCK4

INLINE void ask(const uint8_t *line)
{
    __builtin_prefetch(line + AHEAD);
}

/* Column k of four outputs, vector c of those at hand: R rows take it, or with R = 0 it is stored. */
INLINE void use(const int R, const float *const *x, int64_t k, float32x4_t v, int c, float32x4_t sum[4][8], float *out)
{
    if (R == 0) vst1q_f32(out + c * 4, v);
    UNROLL
    for (int r = 0; r < R; r++) sum[r][c] = vfmaq_n_f32(sum[r][c], v, x[r][k]);
}

/* ---- bf16 ------------------------------------------------------------------------------------------------------- */

/* Here and below: vectors [first, first + C) of the group's outputs. */
INLINE void walk_bf16(const int R, const int C, int first, const float *const *x, const uint8_t *group, int64_t begin,
                      int64_t end, float32x4_t sum[4][8], float *out)
{
    const uint32x4_t high = vdupq_n_u32(0xFFFF0000);
    const uint8_t *line = group + begin * LINE + first * 16;
    for (int64_t k = begin; k < end; k += 2, line += 2 * LINE, out += 2 * GROUP) {
        ask(line);
        UNROLL
        for (int c = 0; c < C; c++) {
            uint32x4_t pair = vreinterpretq_u32_u8(vld1q_u8(line + c * 16));
            if (k + 1 < end) use(R, x, k + 1, vreinterpretq_f32_u32(vandq_u32(pair, high)), c, sum, out + GROUP);
            use(R, x, k, vreinterpretq_f32_u32(vshlq_n_u32(pair, 16)), c, sum, out);
        }
    }
}

/* ---- MXFP8 ------------------------------------------------------------------------------------------------------ */

/* Scale `which` of a unit for four outputs, times the 2^8 that fp16 bits leave. */
INLINE float32x4_t e8m0_scale(const uint8_t *scales, int which)
{
    uint32x4_t bytes = vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(scales)), vdupq_n_s32(-8 * which));
    bytes = vaddq_u32(vandq_u32(bytes, vdupq_n_u32(0xFF)), vdupq_n_u32(8));
    return vreinterpretq_f32_u32(vshlq_n_u32(bytes, 23));
}

/* Codes in the high bytes of 16 bits, as fp16, which is 2^-8 of their value and holds subnormals too. */
INLINE float16x8_t e4m3_half(int16x8_t codes)
{
    return vreinterpretq_f16_s16(vandq_s16(vshrq_n_s16(codes, 1), vdupq_n_s16((int16_t)0xBF80)));
}

/* Columns k and k + 1 of eight outputs, vectors c and c + 1. */
INLINE void e4m3_columns(const int R, const float *const *x, int64_t k, const uint8_t *pairs, const float32x4_t *scale,
                         int c, float32x4_t sum[4][8], float *out)
{
    int16x8_t w = vreinterpretq_s16_u8(vld1q_u8(pairs));
    float16x8_t odd = e4m3_half(w), even = e4m3_half(vshlq_n_s16(w, 8));
    use(R, x, k + 1, vmulq_f32(vcvt_f32_f16(vget_low_f16(odd)), scale[0]), c, sum, out + GROUP);
    use(R, x, k, vmulq_f32(vcvt_f32_f16(vget_low_f16(even)), scale[0]), c, sum, out);
    use(R, x, k + 1, vmulq_f32(vcvt_high_f32_f16(odd), scale[1]), c + 1, sum, out + GROUP);
    use(R, x, k, vmulq_f32(vcvt_high_f32_f16(even), scale[1]), c + 1, sum, out);
}

INLINE void walk_mxfp8(const int R, const int C, int first, const float *const *x, const uint8_t *group, int64_t begin,
                       int64_t end, float32x4_t sum[4][8], float *out)
{
    enum { UNIT = MXFP8_UNIT_LINES * LINE };
    for (int64_t block = begin / 32; block < end / 32; block++) {
        const uint8_t *unit = group + block / 4 * 2 * UNIT + first / 4 * UNIT, *line = unit + block % 4 * (8 * LINE);
        float32x4_t scale[8];
        UNROLL
        for (int c = 0; c < C; c++)
            scale[c] = e8m0_scale(unit + c / 4 * UNIT + (MXFP8_UNIT_LINES - 1) * LINE + c % 4 * 16, (int)(block % 4));
        for (int64_t k = block * 32; k < block * 32 + 32; k += 2, line += LINE / 2, out += 2 * GROUP) {
            ask(line);
            if (C > 4) ask(line + UNIT);
            UNROLL
            for (int c = 0; c < C; c += 2)
                e4m3_columns(R, x, k, line + c / 4 * UNIT + c % 4 * 8, scale + c, c, sum, out);
        }
    }
}

/* ---- NVFP4 x bf16 ----------------------------------------------------------------------------------------------- */

/* The bytes of bf16 values of all codes. */
static const uint8_t e2m1_bf16[2][16] = {
    {0, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0, 0, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0},
    {0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, 0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0},
};
/* Byte i of four lanes in two registers, the first's in byte 2 of a lane and the second's in byte 3. */
#define BYTES_OF(i)                                                                                                    \
    {                                                                                                                  \
        255, 255, i, 16 + i, 255, 255, 4 + i, 20 + i, 255, 255, 8 + i, 24 + i, 255, 255, 12 + i, 28 + i                \
    }
static const uint8_t bytes_of[4][16] = {BYTES_OF(0), BYTES_OF(1), BYTES_OF(2), BYTES_OF(3)};
#undef BYTES_OF

/* Scale `which` of a unit for four outputs, times 2^-117. */
INLINE float32x4_t nvfp4_scale(const uint8_t *scales, int which)
{
    uint32x4_t bytes = vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(scales)), vdupq_n_s32(-8 * which));
    return vreinterpretq_f32_u32(vshlq_n_u32(vandq_u32(bytes, vdupq_n_u32(0xFF)), 20));
}

/* Eight columns of four outputs. */
INLINE void e2m1_columns(const uint8_t *line, float32x4_t scale, float32x4_t v[8])
{
    const uint8x16_t low = vld1q_u8(e2m1_bf16[0]), high = vld1q_u8(e2m1_bf16[1]);
    uint8x16_t codes = vld1q_u8(line), even = vandq_u8(codes, vdupq_n_u8(15)), odd = vshrq_n_u8(codes, 4);
    uint8x16x2_t a = {{vqtbl1q_u8(low, even), vqtbl1q_u8(high, even)}};
    uint8x16x2_t b = {{vqtbl1q_u8(low, odd), vqtbl1q_u8(high, odd)}};
    UNROLL
    for (int i = 0; i < 4; i++) {
        uint8x16_t which = vld1q_u8(bytes_of[i]);
        v[2 * i] = vmulq_f32(vreinterpretq_f32_u8(vqtbl2q_u8(a, which)), scale);
        v[2 * i + 1] = vmulq_f32(vreinterpretq_f32_u8(vqtbl2q_u8(b, which)), scale);
    }
}

INLINE void walk_nvfp4(const int R, const int C, int first, const float *const *x, const uint8_t *group, int64_t begin,
                       int64_t end, float32x4_t sum[4][8], float *out)
{
    enum { UNIT = NVFP4_UNIT_LINES * LINE };
    for (int64_t block = begin / 16; block < end / 16; block++) {
        const uint8_t *unit = group + block / 4 * 2 * UNIT + first / 4 * UNIT, *line = unit + block % 4 * (2 * LINE);
        float32x4_t scale[8];
        UNROLL
        for (int c = 0; c < C; c++) {
            scale[c] = nvfp4_scale(unit + c / 4 * UNIT + 8 * LINE + c % 4 * 16, (int)(block % 4));
            scale[c] = vmulq_n_f32(scale[c], 0x1p117f);
        }
        for (int64_t k = block * 16; k < block * 16 + 16; k += 8, line += LINE, out += 8 * GROUP) {
            ask(line);
            if (C > 4) ask(line + UNIT);
            UNROLL
            for (int c = 0; c < C; c++) {
                float32x4_t v[8];
                e2m1_columns(line + c / 4 * UNIT + c % 4 * 16, scale[c], v);
                UNROLL
                for (int i = 0; i < 8; i++) use(R, x, k + (i ^ 1), v[i ^ 1], c, sum, out + (i ^ 1) * GROUP);
            }
        }
    }
}

/* ---- Few rows, and expanding ------------------------------------------------------------------------------------ */

/* R rows, of which `rows` count, and C vectors; and the functions of cpu_products from it. */
#define WALKS(format)                                                                                                  \
    static void expand_##format(const uint8_t *group, int64_t begin, int64_t end, float *out)                          \
    {                                                                                                                  \
        walk_##format(0, 4, 0, NULL, group, begin, end, NULL, out);                                                    \
        walk_##format(0, 4, 4, NULL, group, begin, end, NULL, out + 16);                                               \
    }                                                                                                                  \
    INLINE void rows_##format(const int R, const int C, int first, const float *const *x, int rows,                    \
                              const uint8_t *group, int64_t begin, int64_t end, float *sums)                           \
    {                                                                                                                  \
        float32x4_t sum[4][8];                                                                                         \
        const float *row[4];                                                                                           \
        load_sums(R, C, sums + first * 4, rows, sum);                                                                  \
        for (int r = 0; r < R; r++) row[r] = x[r < rows ? r : rows - 1];                                               \
        walk_##format(R, C, first, row, group, begin, end, sum, sums);                                                 \
        store_sums(R, C, sum, rows, sums + first * 4);                                                                 \
    }                                                                                                                  \
    static void few_##format(const float *const *x, int rows, const uint8_t *group, int64_t begin, int64_t end,        \
                             float *sums)                                                                              \
    {                                                                                                                  \
        for (; rows > 2; rows -= 4, x += 4, sums += 4 * GROUP)                                                         \
            for (int first = 0; first < ALL; first += 4) rows_##format(4, 4, first, x, rows, group, begin, end, sums); \
        if (rows == 2) rows_##format(2, ALL, 0, x, rows, group, begin, end, sums);                                     \
        if (rows == 1) rows_##format(1, ALL, 0, x, rows, group, begin, end, sums);                                     \
    }

INLINE void load_sums(const int R, const int C, const float *sums, int rows, float32x4_t sum[4][8])
{
    UNROLL
    for (int r = 0; r < R; r++) {
        const float *from = sums + (r < rows ? r : rows - 1) * GROUP;
        UNROLL
        for (int c = 0; c < C; c++) sum[r][c] = vld1q_f32(from + c * 4);
    }
}

INLINE void store_sums(const int R, const int C, float32x4_t sum[4][8], int rows, float *sums)
{
    UNROLL
    for (int r = 0; r < R; r++) {
        if (r >= rows) break;
        UNROLL
        for (int c = 0; c < C; c++) vst1q_f32(sums + r * GROUP + c * 4, sum[r][c]);
    }
}

WALKS(bf16)
WALKS(mxfp8)
WALKS(nvfp4)

/* ---- NVFP4 x NVFP4 ---------------------------------------------------------------------------------------------- */

/* Four outputs of a block: doubled codes in the order of a cpu_block4, 16 bytes for four of them, and the scales. */
typedef struct block4 {
    int8x16_t code[4];
    float32x4_t scale;
} block4;

INLINE void read_block4(const uint8_t *group, int64_t block, int c, block4 *w)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint8_t *unit = group + (block / 4 * 2 + c / 4) * (NVFP4_UNIT_LINES * LINE) + c % 4 * 16;
    const uint8_t *line = unit + block % 4 * (2 * LINE);
    const int8x16_t table = vld1q_s8(twice);
    UNROLL
    for (int j = 0; j < 2; j++) {
        uint8x16_t codes = vld1q_u8(line + j * LINE);
        w->code[2 * j] = vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(15)));
        w->code[2 * j + 1] = vqtbl1q_s8(table, vshrq_n_u8(codes, 4));
    }
    w->scale = nvfp4_scale(unit + 8 * LINE, (int)(block % 4));
}

/* Four sums over 16 products of bytes: w[i] has four columns of four outputs, x the same columns in its word i. */
#ifdef __ARM_FEATURE_DOTPROD
INLINE int32x4_t dot_bytes(const int8x16_t w[4], int8x16_t x)
{
    int32x4_t dot = vdotq_laneq_s32(vdupq_n_s32(0), w[0], x, 0);
    dot = vdotq_laneq_s32(dot, w[1], x, 1);
    dot = vdotq_laneq_s32(dot, w[2], x, 2);
    return vdotq_laneq_s32(dot, w[3], x, 3);
}
#else
/* A product stays below 2^8, four of them fit into 16 bits. */
INLINE int32x4_t dot_bytes(const int8x16_t w[4], int8x16_t x)
{
    int32x4_t words = vreinterpretq_s32_s8(x);
    int8x16_t x0 = vreinterpretq_s8_s32(vdupq_laneq_s32(words, 0)),
              x1 = vreinterpretq_s8_s32(vdupq_laneq_s32(words, 1));
    int8x16_t x2 = vreinterpretq_s8_s32(vdupq_laneq_s32(words, 2)),
              x3 = vreinterpretq_s8_s32(vdupq_laneq_s32(words, 3));
    int16x8_t low = vmull_s8(vget_low_s8(w[0]), vget_low_s8(x0)), high = vmull_high_s8(w[0], x0);
    low = vmlal_s8(low, vget_low_s8(w[1]), vget_low_s8(x1)), high = vmlal_high_s8(high, w[1], x1);
    low = vmlal_s8(low, vget_low_s8(w[2]), vget_low_s8(x2)), high = vmlal_high_s8(high, w[2], x2);
    low = vmlal_s8(low, vget_low_s8(w[3]), vget_low_s8(x3)), high = vmlal_high_s8(high, w[3], x3);
    return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
}
#endif

/* R rows and C vectors over expanded blocks [end - begin][8]. */
INLINE void tile_block4(const int R, const int C, const cpu_block4 *const *x, const block4 *w, int64_t begin,
                        int64_t end, float *sums)
{
    float32x4_t sum[4][8];
    load_sums(R, C, sums, R, sum);
    for (int64_t block = begin; block < end; block++, w += ALL) {
        UNROLL
        for (int c = 0; c < C; c++) {
            UNROLL
            for (int r = 0; r < R; r++) {
                const cpu_block4 *b = &x[r][block];
                int32x4_t dot = dot_bytes(w[c].code, vld1q_s8(b->code));
                sum[r][c] = vfmaq_f32(sum[r][c], vcvtq_f32_s32(dot), vmulq_n_f32(w[c].scale, b->scale));
            }
        }
    }
    store_sums(R, C, sum, R, sums);
}

static void multiply_block4(const cpu_block4 *const *x, int rows, const uint8_t *group, int64_t begin, int64_t end,
                            const uint8_t *next, void *scratch, float *sums)
{
    (void)next;
    enum { CHUNK = 16 }; /* blocks of 640 bytes */
    for (int64_t at = begin; at < end; at += CHUNK) {
        int64_t stop = at + CHUNK < end ? at + CHUNK : end;
        block4 *w = scratch;
        for (int64_t block = at; block < stop; block++) {
            ask(group + (block / 4 * 2 * NVFP4_UNIT_LINES + block % 4 * 4) * LINE);
            for (int c = 0; c < ALL; c++) read_block4(group, block, c, w + (block - at) * ALL + c);
        }
        int r = 0;
        for (; r + 4 <= rows; r += 4)
            for (int c = 0; c < ALL; c += 2) tile_block4(4, 2, x + r, w + c, at, stop, sums + r * GROUP + c * 4);
        for (; r < rows; r++)
            for (int c = 0; c < ALL; c += 4) tile_block4(1, 4, x + r, w + c, at, stop, sums + r * GROUP + c * 4);
    }
}

#endif
