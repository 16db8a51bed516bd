/*
 * The loops of blocks.h over the vectors of lanes.h. Included once per instruction set by blocks_<set>.c, which defines
 *
 *     BLOCKS, NAME     the cpu_blocks to define, and what it is called
 *     TARGET           the function attribute that selects the instruction set
 *     WIDTH            lanes of its vectors: 16, 8 or 4
 *     ROWS             query rows (or runs of 16 tokens of an index block) that share the broadcasts of a tile: 1 or 2
 *     ROWS_C, SINGLE_C broadcasts of an integer or key tile with ROWS and with one run of 16 lanes
 *     KEYS_C           the second of them for keys that are floats, which take a register less each
 *     ROWS_D, SINGLE_D broadcasts of a value tile: divisors of 16
 *     MULTIPLY_ADD(acc, a, b)  acc += a b of vec, fused or not
 *     FUSED(acc, a, b)         the same, fused
 *     MAXIMUM(x, m)            x > m ? x : m
 *     DOT_PAIRS(acc, a, b)     acc += a.low b.low + a.high b.high of vec_int, halves being int16
 *     EXPAND(line, s)          2 E2M1 of nibbles s and 4 + s of every lane of a vec_int, as pairs
 *     WIDEN_BYTES(p)   optional: WIDTH bytes into lanes
 *     TRANSPOSE, VALUES16, SCALES8  optional: 16 x 16 words, 16 E2M1 numbers, scales of 16 tokens with 8 each, in one
 * go
 *
 * A tile keeps V vectors of A (query heads, or tokens of an index block, in lanes) against C broadcasts of B (tokens,
 * or columns of queries) in registers. Integer tile, for each group of 16 elements: 8 V C DOT_PAIRS, V C conversions
 * and V C fused additions. With 16 lanes and two such operations a cycle: 16 columns of index scores take 40 cycles a
 * token, and 8 more for its way into lanes (72 bytes); a block of 128 tokens x 128 for 16 heads takes 5,120 cycles of
 * keys, 8,192 of values, about 1,600 of exponentials and 1,500 for decoding (18,432 bytes).
 *
 * Measured on one core of a Xeon of the Emerald Rapids kind at 2.8 GHz, AVX-512, beside a loop that only multiplies and
 * counting keys and values alone: scores of 64 columns 86 % of it, 16 columns 64 to 70 %, 4 columns 10 to 13 ns a
 * token, of which 4 are products; attention 79 % with 16 rows that share a block (6.0 us a row), 60 % with a single row
 * (7.9 us).
 */
#include "backend/cpu/blocks_tiles.h"

#include <math.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e4m3.h"

/* ---- Words in lanes --------------------------------------------------------------------------------------------- */

/* to[i][n] = word i of from[n], of 16 rows `stride` bytes apart and `words` words of each. */
INLINE void words_in_lanes(const void *from, size_t stride, int words, void *to)
{
#ifdef TRANSPOSE
    if (words % LANES == 0) {
        for (int i = 0; i < words; i += LANES) {
            vec_int line[LANES];
            TRANSPOSE((const char *)from + 4 * i, stride, line);
            for (int n = 0; n < LANES; n++) STORE((char *)to + (size_t)(i + n) * LINE, line[n]);
        }
        return;
    }
#endif
    for (int n = 0; n < LANES; n++)
        for (int i = 0; i < words; i++)
            memcpy((char *)to + i * LINE + 4 * n, (const char *)from + (size_t)n * stride + 4 * i, 4);
}

TARGET static void query_lanes(const float *x, size_t stride, int heads, int dim, float *lanes)
{
    if (heads == LANES) {
        words_in_lanes(x, stride * sizeof *x, dim, lanes);
        return;
    }
    memset(lanes, 0, (size_t)dim * LINE);
    for (int h = 0; h < heads; h++)
        for (int d = 0; d < dim; d++) lanes[d * LANES + h] = x[(size_t)h * stride + (size_t)d];
}

/* round(x scale) as int32: adding 1.5 * 2^23 rounds to whole numbers. */
INLINE void to_fixed(const float *x, const vec *scale, vec_int *fixed)
{
    vec v;
    LOAD(v, x);
    v = v * *scale + 0x1.8p23f;
    *fixed = (vec_int)v - 0x4B400000;
}

TARGET static void query_pairs(const float *x, size_t stride, int heads, int dim, int32_t *pairs, float *unscale)
{
    enum { PIECE = 64 };
    float lanes[PIECE * LANES] __attribute__((aligned(LINE)));
    vec scale[PARTS];
    vec_int largest[PARTS] = {{0}};
    for (int first = 0; first < dim; first += PIECE) {
        int n = dim - first < PIECE ? dim - first : PIECE;
        query_lanes(x + first, stride, heads, n, lanes);
        for (int i = 0; i < n; i++)
            for (int p = 0; p < PARTS; p++) {
                vec_int v;
                LOAD(v, lanes + i * LANES + p * WIDTH);
                v &= 0x7FFFFFFF;
                largest[p] = (vec_int)SELECT(v > largest[p], (vec)v, (vec)largest[p]);
            }
    }
    for (int p = 0; p < PARTS; p++) {
        /* The exponent of the largest, from 2^-112 on, becomes 14. */
        vec_int exponent = SHIFT_RIGHT(largest[p], 23), low = exponent < 15;
        vec_int used = (low & 15) | (~low & exponent);
        scale[p] = (vec)SHIFT_LEFT(2 * 127 + 14 - used, 23);
        vec_int back = SHIFT_LEFT(used - 14, 23), wrong = exponent == 255;
        vec v = (vec)((wrong & 0x7FC00000) | (~wrong & back)) * 0.5f;
        STORE(unscale + p * WIDTH, v);
    }
    for (int first = 0; first < dim; first += PIECE) {
        int n = dim - first < PIECE ? dim - first : PIECE;
        query_lanes(x + first, stride, heads, n, lanes);
        for (int i = 0; i < n; i += 8)
            for (int s = 0; s < 4; s++)
                for (int p = 0; p < PARTS; p++) {
                    vec_int low, high;
                    to_fixed(lanes + (i + s) * LANES + p * WIDTH, &scale[p], &low);
                    to_fixed(lanes + (i + 4 + s) * LANES + p * WIDTH, &scale[p], &high);
                    low = (low & 0xFFFF) | SHIFT_LEFT(high, 16);
                    STORE(pairs + (s * (dim / 8) + (first + i) / 8) * LANES + p * WIDTH, low);
                }
    }
}

/* ---- Coding ----------------------------------------------------------------------------------------------------- */

/* x rounded to the nearest E4M3 value, as e4m3_round. */
INLINE void round_e4m3(vec *x)
{
    vec_int u = (vec_int)*x, a = u & 0x7FFFFFFF, sign = u & SIGN;
    vec small = ((vec)a + 0x1.8p14f) - 0x1.8p14f;
    vec normal = (vec)((a + 0x7FFFF + (SHIFT_RIGHT(a, 20) & 1)) & (int32_t)0xFFF00000);
    normal = SELECT(normal > 448.0f, SPLAT(448.0f), normal);
    vec v = SELECT(a < 0x3C800000, small, normal);
    v = SELECT(a > 0x7F800000, (vec)a, v);
    *x = (vec)((vec_int)v | sign);
}

INLINE void decode_group(const uint8_t *data, float scale, bool round, float *out)
{
    uint32_t word[2];
    memcpy(word, data, sizeof word);
    for (int i = 0; i < UNIT; i += WIDTH) {
        vec v;
#ifdef VALUES16
        v = VALUES16(data) * scale;
#else
        static const vec_bits shift[2] = {
#if WIDTH == 8
            {28, 24, 20, 16, 12, 8, 4, 0}
#else
            {28, 24, 20, 16},
            {12, 8, 4, 0}
#endif
        };
        vec half = SPLAT(0.5f * scale);
        vec_int top = (vec_int)((word[i / 8] - (vec_bits){0}) << shift[i % 8 / WIDTH]);
        e2m1_values(&top, &half, &v);
#endif
        if (round) round_e4m3(&v);
        STORE(out + i, v);
    }
}

/* What is decoded: tokens [token, token + tokens) and groups [group, group + groups) of 16 columns. */
typedef struct piece {
    size_t token, tokens, group, groups;
} piece;

INLINE void decode_nvfp4(const uint8_t *data, const uint8_t *scales, bool quads, bool round, size_t dim, piece p,
                         size_t slab, float *out)
{
    size_t groups = dim / UNIT, step = quads ? 4 : 1;
    for (size_t t = p.token; t < p.token + p.tokens; t++, out += UNIT) {
        const uint8_t *s = scales + (quads ? t / 4 * 4 * groups + t % 4 : t * groups) + p.group * step;
        const uint8_t *d = data + (t * groups + p.group) * (UNIT / 2);
        UNROLL(8)
        for (size_t g = 0; g < p.groups; g++)
            decode_group(d + g * (UNIT / 2), e4m3_to_float(s[g * step]), round, out + g * slab);
    }
}

/* 16 columns of the values of tokens [0, tokens), out [tokens][16]: decode_nvfp4 of one group, four tokens at a time.
 */
INLINE void decode_column(const uint8_t *data, const uint8_t *scales, bool round, size_t dim, size_t group,
                          size_t tokens, float *out)
{
    size_t groups = dim / UNIT, bytes = groups * (UNIT / 2);
    const uint8_t *d = data + group * (UNIT / 2), *s = scales + group * 4;
    for (size_t t = 0; t < tokens; t += 4, d += 4 * bytes, s += 4 * groups, out += 4 * UNIT) {
        size_t n = tokens - t < 4 ? tokens - t : 4;
        if (n == 4) {
            UNROLL(4)
            for (size_t i = 0; i < 4; i++) decode_group(d + i * bytes, e4m3_to_float(s[i]), round, out + i * UNIT);
        } else {
            for (size_t i = 0; i < n; i++) decode_group(d + i * bytes, e4m3_to_float(s[i]), round, out + i * UNIT);
        }
    }
}

/* 16 bf16 or E4M3 elements. */
INLINE void decode_unit(bool half, const uint8_t *data, float *out)
{
    if (!half) {
        scales_of(data, out);
        return;
    }
    for (int i = 0; i < UNIT; i += WIDTH) {
        typedef uint16_t narrow __attribute__((vector_size(2 * WIDTH)));
        narrow h;
        LOAD(h, data + 2 * i);
        vec_int v = SHIFT_LEFT(__builtin_convertvector(h, vec_int), 16);
        STORE(out + i, v);
    }
}

/* Vectors of bf16 or E4M3 elements, a missing rest of a group being zeros. */
INLINE void decode_elements(const bool half, const uint8_t *data, size_t dim, piece p, size_t slab, float *out)
{
    size_t size = half ? 2 : 1, whole = dim / UNIT < p.group + p.groups ? dim / UNIT : p.group + p.groups;
    for (size_t t = p.token; t < p.token + p.tokens; t++, out += UNIT) {
        const uint8_t *from = data + t * dim * size;
        size_t g = p.group;
        for (; g < whole; g++) decode_unit(half, from + g * UNIT * size, out + (g - p.group) * slab);
        if (g == p.group + p.groups) continue;
        uint8_t bytes[2 * UNIT] = {0};
        memcpy(bytes, from + g * UNIT * size, (dim - g * UNIT) * size);
        decode_unit(half, bytes, out + (g - p.group) * slab);
    }
}

/* A piece to fp32, [groups][slab / 16][16]. */
APART void decode_part(cache_format format, const uint8_t *data, const uint8_t *scales, bool quads, bool round, int dim,
                       piece p, size_t slab, float *out)
{
    if (format == CACHE_BF16)
        decode_elements(true, data, (size_t)dim, p, slab, out);
    else if (format == CACHE_FP8)
        decode_elements(false, data, (size_t)dim, p, slab, out);
    else if (round)
        decode_nvfp4(data, scales, quads, true, (size_t)dim, p, slab, out);
    else
        decode_nvfp4(data, scales, quads, false, (size_t)dim, p, slab, out);
}

TARGET static void decode(cache_format format, const uint8_t *data, const uint8_t *scales, bool quads, bool round,
                          int tokens, int dim, float *out)
{
    piece all = {0, (size_t)tokens, 0, ((size_t)dim + UNIT - 1) / UNIT};
    decode_part(format, data, scales, quads, round, dim, all, SLAB, out);
}

/* A NaN is the largest magnitude, makes the scale NaN and compares false with everything: codes 0. */
TARGET static void encode_nvfp4(const float *x, int dim, uint8_t *data, uint8_t *scales, int stride)
{
    for (int g = 0; g < dim / UNIT; g++, x += UNIT, data += UNIT / 2) {
        vec v[PARTS];
        int32_t magnitude[LANES], codes[LANES], largest = 0;
        float amax;
        for (int p = 0; p < PARTS; p++) {
            LOAD(v[p], x + p * WIDTH);
            round_bf16(&v[p]);
            vec_int m = (vec_int)v[p] & 0x7FFFFFFF;
            STORE(magnitude + p * WIDTH, m);
        }
        for (int i = 0; i < UNIT; i++) largest = magnitude[i] > largest ? magnitude[i] : largest;
        memcpy(&amax, &largest, sizeof amax);
        uint8_t scale = e4m3_from_float(amax / 6);
        if (scale == 0) scale = 1;
        scales[g * stride] = scale;
        float unit = e4m3_to_float(scale);
        for (int p = 0; p < PARTS; p++) {
            vec y = v[p] / unit, a = (vec)((vec_int)y & 0x7FFFFFFF);
            vec_int code =
                -((a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f));
            code |= (code != 0) & (y < 0.0f) & 8;
            STORE(codes + p * WIDTH, code);
        }
        for (int i = 0; i < UNIT / 2; i++) data[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    }
}

/* e4m3_from_float of some lanes. */
INLINE void e4m3_codes(const vec *x, vec_int *out)
{
    vec_int u = (vec_int)*x, magnitude = u & 0x7FFFFFFF, nan = magnitude > 0x7F800000, a = magnitude & ~nan;
    vec_int small = (vec_int)((vec)a + 0x1.8p14f) & 0xF;
    vec_int large = SHIFT_RIGHT(a + 0x7FFFF + (SHIFT_RIGHT(a, 20) & 1), 20) - ((127 - 7) << 3), over = large > 0x7E;
    large = (over & 0x7E) | (~over & large);
    vec_int below = a < 0x3C800000, code = (below & small) | (~below & large);
    code |= SHIFT_RIGHT(u, 24) & 0x80;
    *out = (nan & 0x7F) | (~nan & code);
}

TARGET static void encode_e4m3(const float *x, int dim, float scale, uint8_t *out)
{
    int i = 0;
    for (; i + LANES <= dim; i += LANES) {
        int32_t codes[LANES];
        for (int p = 0; p < LANES; p += WIDTH) {
            vec v;
            vec_int code;
            LOAD(v, x + i + p);
            round_bf16(&v);
            v = v / scale;
            e4m3_codes(&v, &code);
            STORE(codes + p, code);
        }
        for (int k = 0; k < LANES; k++) out[i + k] = (uint8_t)codes[k];
    }
    for (; i < dim; i++) out[i] = e4m3_from_float(bf16_round(x[i]) / scale);
}

/* ---- Attention -------------------------------------------------------------------------------------------------- */

#include "backend/cpu/blocks_attend.h"

TARGET static void fold(cpu_softmax *state, float *out, const cpu_softmax *block, const float *block_out, int dim)
{
    for (int p = 0; p < LANES; p += WIDTH) {
        vec max, sum, keep, add;
        LOAD(max, block->max + p);
        LOAD(sum, block->sum + p);
        fold_state(state->max + p, state->sum + p, &max, &sum, &keep, &add);
        for (int d = p; d < dim * LANES; d += LANES) {
            vec o, b;
            LOAD(o, out + d);
            LOAD(b, block_out + d);
            o = o * keep + b * add;
            STORE(out + d, o);
        }
    }
}

TARGET static void finish(const cpu_softmax *state, const float *out, float factor, int dim, int heads, float *to,
                          size_t stride)
{
    float lanes[UNIT * LANES] __attribute__((aligned(LINE))), rows[LANES * UNIT] __attribute__((aligned(LINE)));
    vec inverse[PARTS];
    LOAD(inverse, state->sum);
    for (int p = 0; p < PARTS; p++) inverse[p] = factor / inverse[p];
    for (int d = 0; d < dim; d += UNIT) {
        int n = dim - d < UNIT ? dim - d : UNIT;
        for (int i = 0; i < n * PARTS; i++) {
            vec o;
            LOAD(o, out + d * LANES + i * WIDTH);
            o = o * inverse[i % PARTS];
            round_bf16(&o);
            STORE(lanes + i * WIDTH, o);
        }
        words_in_lanes(lanes, LINE, UNIT, rows);
        for (int h = 0; h < heads; h++) {
            float *at = to + (size_t)h * stride + d;
            if (n == UNIT)
                memcpy(at, rows + h * UNIT, UNIT * sizeof *at);
            else
                memcpy(at, rows + h * UNIT, (size_t)n * sizeof *at);
        }
    }
}

/* ---- Index scores ----------------------------------------------------------------------------------------------- */

/* Maxima of V / PARTS runs of 16 tokens from token `first` on into the maxima [C][16] of the columns. */
INLINE void keep_largest(const int V, const int C, vec (*acc)[16], const int32_t *visible, int first, float *largest)
{
    static const vec_int number[PARTS] = {
#if WIDTH == 16
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif WIDTH == 8
        {0, 1, 2, 3, 4, 5, 6, 7},
        {8, 9, 10, 11, 12, 13, 14, 15}
#else
        {0, 1, 2, 3},
        {4, 5, 6, 7},
        {8, 9, 10, 11},
        {12, 13, 14, 15}
#endif
    };
    for (int c = 0; c < C; c++) {
        bool whole = visible[c] >= first + V / PARTS * LANES;
        for (int v = 0; v < V; v++) {
            float *at = largest + c * LANES + v % PARTS * WIDTH;
            vec m, x = acc[v][c];
            if (!whole) x = SELECT(number[v % PARTS] < visible[c] - first - v / PARTS * LANES, x, SPLAT(-INFINITY));
            LOAD(m, at);
            m = MAXIMUM(x, m);
            STORE(at, m);
        }
    }
}

INLINE void open_columns(int columns, const int32_t *visible, float *largest, int *tokens)
{
    *tokens = 0;
    for (int c = 0; c < columns; c++) {
        if (visible[c] > *tokens) *tokens = visible[c];
        for (int n = 0; n < LANES; n++) largest[c * LANES + n] = -INFINITY;
    }
    if (*tokens > CACHE_BLOCK) *tokens = CACHE_BLOCK;
}

/* The largest of 16 lanes. */
INLINE void close_columns(int columns, const float *largest, float *best)
{
    for (int c = 0; c < columns; c++, largest += LANES) {
        float m[LANES];
        memcpy(m, largest, sizeof m);
        for (int width = LANES / 2; width > 0; width /= 2)
            for (int n = 0; n < width; n++) m[n] = m[n + width] > m[n] ? m[n + width] : m[n];
        best[c] = m[0] + 0.0f; /* -0 + 0 is 0 */
    }
}

INLINE void expand_line(const vec_int *line, int j, int words, int part, int32_t *pairs)
{
    UNROLL(4)
    for (int s = 0; s < 4; s++) {
        vec_int v = EXPAND(*line, s);
        STORE(pairs + (s * words + j) * LANES + part, v);
    }
}

/* The words of 16 NVFP4 keys into lanes, as pairs [dim/2][16]. */
INLINE void codes_in_lanes(const uint8_t *data, int words, int32_t *pairs)
{
#ifdef TRANSPOSE
    if (words == LANES) {
        vec_int line[LANES];
        TRANSPOSE((const char *)data, LINE, line);
        UNROLL(16)
        for (int j = 0; j < LANES; j++) expand_line(&line[j], j, LANES, 0, pairs);
        return;
    }
#endif
    int32_t *lines =
        pairs + 3 * words * LANES; /* where the last pairs go: each line is read before it is written over */
    words_in_lanes(data, (size_t)words * 4, words, lines);
    for (int j = 0; j < words; j++)
        for (int p = 0; p < LANES; p += WIDTH) {
            vec_int line;
            LOAD(line, lines + j * LANES + p);
            expand_line(&line, j, words, p, pairs);
        }
}

/* 16 NVFP4 keys into lanes: pairs [dim/2][16], scales [dim/16][16]. */
INLINE void keys_in_lanes(const uint8_t *data, const uint8_t *scales, int dim, int32_t *pairs, float *lane_scales)
{
    int groups = dim / UNIT;
    codes_in_lanes(data, dim / 8, pairs);
    for (int g = 0; g < groups; g += 4) {
        uint8_t bytes[4 * LANES];
        int n = groups - g < 4 ? groups - g : 4;
#ifdef SCALES8
        if (groups == 8) {
            vec_int all = SCALES8(scales, g / 4);
            for (int i = 0; i < 4; i++) {
                vec_int top = SHIFT_LEFT(all, 24 - 8 * i);
                vec v;
                e4m3_values(&top, &v);
                STORE(lane_scales + (g + i) * LANES, v);
            }
            continue;
        }
#endif
        if (n == 4)
            for (int t = 0; t < LANES; t++) memcpy(bytes + 4 * t, scales + t * groups + g, 4);
        else
            for (int t = 0; t < LANES * 4; t++) bytes[t] = t % 4 < n ? scales[t / 4 * groups + g + t % 4] : 0;
        for (int i = 0; i < n; i++)
            for (int p = 0; p < LANES; p += WIDTH) {
                vec_int top;
                vec v;
                LOAD(top, bytes + 4 * p);
                top = SHIFT_LEFT(top, 24 - 8 * i);
                e4m3_values(&top, &v);
                STORE(lane_scales + (g + i) * LANES + p, v);
            }
    }
}

TARGET static void score_pairs(const uint8_t *data, const uint8_t *scales, int dim, const int32_t *query, int columns,
                               const int32_t *visible, const uint8_t *next, float *best, float *scratch)
{
    enum { V = ROWS * PARTS };
    int tokens, half = dim / 2, groups = dim / UNIT;
    size_t bytes = (size_t)(half + groups); /* of a token */
    int32_t *pairs = (int32_t *)scratch;
    float *lane_scales = scratch + ROWS * half * LANES, *largest = lane_scales + ROWS * groups * LANES;
    const int32_t *a[V];
    const float *s[V];
    for (int v = 0; v < V; v++) {
        a[v] = pairs + v / PARTS * half * LANES + v % PARTS * WIDTH;
        s[v] = lane_scales + v / PARTS * groups * LANES + v % PARTS * WIDTH;
    }
    open_columns(columns, visible, largest, &tokens);
    for (int first = 0; first < tokens; first += ROWS * LANES) {
        ask_for(next, (size_t)first * bytes, ROWS * LANES * bytes);
        for (int r = 0; r < ROWS; r++)
            keys_in_lanes(data + (size_t)(first + r * LANES) * (size_t)half, scales + (first + r * LANES) * groups, dim,
                          pairs + r * half * LANES, lane_scales + r * groups * LANES);
        vec acc[4][16];
        int c = 0;
        for (; c + ROWS_C <= columns; c += ROWS_C) {
            pair_tile(V, ROWS_C, true, a, query + (size_t)c * (size_t)half, (size_t)half, s, NULL, dim, acc);
            keep_largest(V, ROWS_C, acc, visible + c, first, largest + c * LANES);
        }
        for (; c < columns; c++) {
            pair_tile(V, 1, true, a, query + (size_t)c * (size_t)half, (size_t)half, s, NULL, dim, acc);
            keep_largest(V, 1, acc, visible + c, first, largest + c * LANES);
        }
    }
    close_columns(columns, largest, best);
}

TARGET static void score_keys(const float *keys, int dim, const float *query, int columns, const int32_t *visible,
                              float *best, float *scratch)
{
    enum { V = ROWS * PARTS };
    int tokens, padded = (dim + UNIT - 1) / UNIT * UNIT;
    float *largest = scratch + ROWS * padded * LANES;
    const float *a[V];
    for (int v = 0; v < V; v++) a[v] = scratch + v / PARTS * padded * LANES + v % PARTS * WIDTH;
    open_columns(columns, visible, largest, &tokens);
    for (int first = 0; first < tokens; first += ROWS * LANES) {
        for (int r = 0; r < ROWS; r++)
            for (int d = 0; d < dim; d += UNIT)
                words_in_lanes(keys + (size_t)(d / UNIT) * SLAB + (first + r * LANES) * UNIT, LINE, UNIT,
                               scratch + (r * padded + d) * LANES);
        vec acc[4][16];
        int c = 0;
        for (; c + ROWS_C <= columns; c += ROWS_C) {
            float_tile(V, ROWS_C, a, query + (size_t)c * (size_t)dim, (size_t)dim, 1, UNIT, dim, acc);
            keep_largest(V, ROWS_C, acc, visible + c, first, largest + c * LANES);
        }
        for (; c < columns; c++) {
            float_tile(V, 1, a, query + (size_t)c * (size_t)dim, (size_t)dim, 1, UNIT, dim, acc);
            keep_largest(V, 1, acc, visible + c, first, largest + c * LANES);
        }
    }
    close_columns(columns, largest, best);
}

const cpu_blocks BLOCKS = {
    .name = NAME,
    .attend = attend,
    .fold = fold,
    .finish = finish,
    .query_lanes = query_lanes,
    .query_pairs = query_pairs,
    .score_pairs = score_pairs,
    .score_keys = score_keys,
    .decode_pairs = decode_pairs,
    .decode = decode,
    .encode_nvfp4 = encode_nvfp4,
    .encode_e4m3 = encode_e4m3,
};
