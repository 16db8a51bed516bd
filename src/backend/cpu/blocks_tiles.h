/*
 * What blocks_attend.h and blocks_body.h share: NVFP4 keys as integers, tiles. Included after lanes.h with what
 * blocks_body.h names.
 */
#ifndef HAYATE_BACKEND_CPU_BLOCKS_TILES_H
#define HAYATE_BACKEND_CPU_BLOCKS_TILES_H

#include "backend/cpu/blocks.h"
#include "backend/cpu/lanes.h"

#include <string.h>

#include "number/e4m3.h"

#define UNROLL(n) _Pragma(UNROLL_TEXT(GCC unroll n))
#define UNROLL_TEXT(...) #__VA_ARGS__
/* Compiled once, whoever calls it. */
#define APART TARGET static __attribute__((noinline))
#define SPLAT_INT(x) ((x) - (vec_int){0})
#define KEY_TOKENS 32             /* tokens whose keys are decoded at a time */
#define SLAB (CACHE_BLOCK * UNIT) /* floats of 16 columns of all tokens of a decoded block */

/* The scales of 16 bytes. */
INLINE void scales_of(const uint8_t *bytes, float *out)
{
    for (int i = 0; i < LANES; i += WIDTH) {
        vec v;
#ifdef WIDEN_BYTES
        vec_int top = SHIFT_LEFT(WIDEN_BYTES(bytes + i), 24);
#else
        typedef uint8_t narrow __attribute__((vector_size(WIDTH)));
        narrow b;
        LOAD(b, bytes + i);
        vec_int top = SHIFT_LEFT(__builtin_convertvector(b, vec_int), 24);
#endif
        e4m3_values(&top, &v);
        STORE(out + i, v);
    }
}

TARGET static void decode_pairs(const uint8_t *data, const uint8_t *scales, int tokens, int dim, int32_t *pairs,
                                float *decoded_scales)
{
    int words = dim / 8, count = tokens * (dim / UNIT), i = 0;
    for (; i + LANES <= count; i += LANES) scales_of(scales + i, decoded_scales + i);
    for (; i < count; i++) decoded_scales[i] = e4m3_to_float(scales[i]);
    for (int t = 0; t < tokens; t++, pairs += 4 * words)
        for (int j = 0; j < words; j += WIDTH, data += 4 * WIDTH) {
            vec_int line = {0};
            if (words - j >= WIDTH) {
                LOAD(line, data);
                UNROLL(4)
                for (int s = 0; s < 4; s++) {
                    vec_int v = EXPAND(line, s);
                    STORE(pairs + s * words + j, v);
                }
                continue;
            }
            size_t bytes = (size_t)(words - j) * 4;
            memcpy(&line, data, bytes);
            UNROLL(4)
            for (int s = 0; s < 4; s++) {
                vec_int v = EXPAND(line, s);
                memcpy(pairs + s * words + j, &v, bytes);
            }
            data -= 4 * WIDTH - (int)bytes;
        }
}

/* Bytes [begin, begin + count) of what is read next. A few lines at a time: more than the machine can have under way
 * make everything wait. */
INLINE void ask_for(const uint8_t *next, size_t begin, size_t count)
{
    for (size_t i = begin; next && i < begin + count; i += LINE) __builtin_prefetch(next + i, 0, 2);
}

/* ---- Tiles ------------------------------------------------------------------------------------------------------ */

/*
 * acc[v][c] = sum over groups g of (sum of the pairs of g) * scale. Lane n of vector v has its pairs p at a[v][16 p +
 * n], column c at b[c * column + p]. The scales are those of lanes, [v][16 g + n], or of columns, [c * dim/16 + g].
 */
INLINE void pair_tile(const int V, const int C, const bool of_lanes, const int32_t *const *a, const int32_t *b,
                      size_t column, const float *const *lane_scale, const float *column_scale, int dim, vec (*acc)[16])
{
    size_t words = (size_t)dim / 8, groups = (size_t)dim / UNIT;
    for (int v = 0; v < V; v++)
        for (int c = 0; c < C; c++) acc[v][c] = (vec){0};
    for (size_t g = 0; g < groups; g++) {
        vec_int dot[4][16];
        for (int v = 0; v < V; v++)
            for (int c = 0; c < C; c++) dot[v][c] = (vec_int){0};
        UNROLL(8)
        for (size_t i = 0; i < 8; i++) {
            size_t p = i / 2 * words + 2 * g + i % 2;
            vec_int x[4];
            for (int v = 0; v < V; v++) LOAD(x[v], a[v] + p * LANES);
            for (int c = 0; c < C; c++) {
                vec_int y = SPLAT_INT(b[(size_t)c * column + p]);
                for (int v = 0; v < V; v++) DOT_PAIRS(dot[v][c], x[v], y);
            }
        }
        for (int v = 0; v < V; v++) {
            vec scale;
            if (of_lanes) LOAD(scale, lane_scale[v] + g * LANES);
            for (int c = 0; c < C; c++) {
                if (!of_lanes) scale = SPLAT(column_scale[(size_t)c * groups + g]);
                vec whole = __builtin_convertvector(dot[v][c], vec);
                FUSED(acc[v][c], whole, scale);
            }
        }
    }
}

/* acc[v][c] = sum over i < k, ascending, of a[v][16 i] * b[c * column + i / 16 * jump + i % 16 * step]. */
INLINE void float_tile(const int V, const int C, const float *const *a, const float *b, size_t column, size_t step,
                       size_t jump, int k, vec (*acc)[16])
{
    for (int v = 0; v < V; v++)
        for (int c = 0; c < C; c++) acc[v][c] = (vec){0};
    for (size_t first = 0; first < (size_t)k; first += UNIT, b += jump) {
        size_t n = (size_t)k - first < UNIT ? (size_t)k - first : UNIT;
        for (size_t i = 0; i < n; i++) {
            vec x[4];
            for (int v = 0; v < V; v++) LOAD(x[v], a[v] + (first + i) * LANES);
            for (int c = 0; c < C; c++) {
                vec y = SPLAT(b[(size_t)c * column + i * step]);
                for (int v = 0; v < V; v++) MULTIPLY_ADD(acc[v][c], x[v], y);
            }
        }
    }
}

#endif
