/*
 * Attention of blocks.h over the vectors of lanes.h, for blocks_body.h and for variants of it alone. With VALUE_PAIRS
 * defined only NVFP4 blocks that are read exactly are taken, and values are multiplied in pairs of tokens:
 *
 *     VALUE_PAIRS(acc, a, b)   acc += a.high b.high, then acc += a.low b.low of bf16 halves, each fused
 *     ROUND_PAIR(x, y)         bf16 of x in the high halves, of y in the low ones
 *     decode_value_pairs(b, group, tokens, out)  16 columns of the values of a block, [ceil(tokens / 2)][16], the first
 *                              token of a pair in the high half
 *
 * Weights are bf16 and so are the values, exactly: six significant bits. A sum of such products is a whole number of
 * 2^-79, so nothing is lost to instructions that know no subnormal numbers.
 */
#ifndef HAYATE_BACKEND_CPU_BLOCKS_ATTEND_H
#define HAYATE_BACKEND_CPU_BLOCKS_ATTEND_H

#include "backend/cpu/blocks_tiles.h"

#include <math.h>

#ifdef VALUE_PAIRS
#define ONLY_INTEGERS true
#else
#define ONLY_INTEGERS false
#endif

/*
 * 2^x for x <= 0, 0 below -62: n = round(x), the rest r in [-1/2, 1/2], 2^r by a polynomial with an error below 1e-7
 * and 1 at 0, n added to the exponent. NaN stays NaN (its low bits are zeros).
 */
INLINE void power_of_two(vec *value)
{
    vec x = *value, t = x + 0x1.8p23f, r = x - (t - 0x1.8p23f);
    vec y = r * 0x1.5bba0ep-10f + 0x1.3cea88p-7f;
    y = y * r + 0x1.c6b752p-5f;
    y = y * r + 0x1.ebf9bcp-3f;
    y = y * r + 0x1.62e42ap-1f;
    y = y * r + 1.0f;
    y = (vec)((vec_bits)y + ((vec_bits)t << 23));
    *value = (vec)((vec_int)y & ~(x < -62.0f));
}

/* 2^(s - m), also added to the sum. */
INLINE void weigh_token(const float *s, const vec *block_max, vec *e, vec *sum)
{
    LOAD(*e, s);
    *e = *e - *block_max;
    power_of_two(e);
    *sum += *e;
}

/* Exponents s [tokens][16], one vector of each, become weights bf16(2^(s - m)), with VALUE_PAIRS pairs of them
 * [ceil(tokens / 2)][16]; the sum is that before the rounding. */
INLINE void block_weights(float *s, int tokens, const vec *block_max, vec *block_sum)
{
    vec sum = {0}, e;
#ifdef VALUE_PAIRS
    for (int t = 0; t < tokens; t += 2) {
        vec next = {0};
        weigh_token(s + t * LANES, block_max, &e, &sum);
        if (t + 1 < tokens) weigh_token(s + (t + 1) * LANES, block_max, &next, &sum);
        vec_int u = ROUND_PAIR(e, next);
        STORE(s + t / 2 * LANES, u);
    }
#else
    for (int t = 0; t < tokens; t++) {
        weigh_token(s + t * LANES, block_max, &e, &sum);
        /* As round_bf16; there is no infinity, and a NaN has zeros below. */
        vec_int u = (vec_int)e;
        u = (u + 0x7FFF + (SHIFT_RIGHT(u, 16) & 1)) & (int32_t)0xFFFF0000;
        STORE(s + t * LANES, u);
    }
#endif
    *block_sum = sum;
}

/* Keys of some tokens, decoded: pairs and scales, or floats [ceil(dim/16)][KEY_TOKENS][16]. */
typedef struct some_keys {
    const int32_t *pairs;
    const float *scales, *keys;
} some_keys;

/* Exponents of keys [i, i + n), n <= C, for V / PARTS rows, to s + c * 16 of the first row, and their maxima. A tile is
 * always whole: what it makes of the room behind the keys is left. */
INLINE void score_tokens(const int V, const int C, const bool pairs, const some_keys *k, const void *const *query,
                         const vec *factor, size_t i, size_t n, int dim, float *s, vec *largest)
{
    vec acc[4][16];
    if (pairs) {
        const int32_t *a[4];
        size_t half = (size_t)dim / 2;
        for (int v = 0; v < V; v++) a[v] = (const int32_t *)query[v / PARTS] + v % PARTS * WIDTH;
        const int32_t *keys = k->pairs + i * half;
        const float *scales = k->scales + i * ((size_t)dim / UNIT);
        if (WIDTH == 16 && dim == 128) /* the usual one: a sixteenth of the time */
            pair_tile(V, C, false, a, keys, 64, NULL, scales, 128, acc);
        else
            pair_tile(V, C, false, a, keys, half, NULL, scales, dim, acc);
    } else {
        const float *a[4];
        for (int v = 0; v < V; v++) a[v] = (const float *)query[v / PARTS] + v % PARTS * WIDTH;
        float_tile(V, C, a, k->keys + i * UNIT, UNIT, 1, KEY_TOKENS * UNIT, dim, acc);
    }
    for (int v = 0; v < V; v++)
        for (int c = 0; c < C; c++) {
            if ((size_t)c >= n) break;
            vec x = acc[v][c] * factor[v];
            largest[v] = MAXIMUM(x, largest[v]);
            STORE(s + v / PARTS * SLAB + c * LANES + v % PARTS * WIDTH, x);
        }
}

/* Exponents of tokens [t, end) of R rows; `largest` [R][16]. C divides KEY_TOKENS. */
INLINE void score_rows(const int R, const int C, const bool pairs, const some_keys *k, const cpu_query_row *rows,
                       size_t t, size_t end, int dim, float *s, float *largest)
{
    const int V = R * PARTS;
    const void *query[2];
    vec factor[4], m[4];
    size_t n = end - t;
    for (int r = 0; r < R; r++) query[r] = rows[r].query;
    for (int v = 0; v < V; v++) {
        LOAD(factor[v], rows[v / PARTS].factor + v % PARTS * WIDTH);
        LOAD(m[v], largest + v * WIDTH);
    }
    for (size_t i = 0; i < n; i += (size_t)C)
        score_tokens(V, C, pairs, k, query, factor, i, n - i, dim, s + (t + i) * LANES, m);
    for (int v = 0; v < V; v++) STORE(largest + v * WIDTH, m[v]);
}

/* The maximum and sum of a block, one vector of each, into a state, and what outputs are to be multiplied with. */
INLINE void fold_state(float *max, float *sum, const vec *block_max, const vec *block_sum, vec *keep, vec *add)
{
    vec m, s, old;
    LOAD(old, max);
    LOAD(s, sum);
    m = MAXIMUM(*block_max, old);
    *keep = old - m;
    *add = *block_max - m;
    power_of_two(keep);
    power_of_two(add);
    s = s * *keep + *block_sum * *add;
    STORE(max, m);
    STORE(sum, s);
}

/*
 * Tokens that lanes do not see get the exponent -inf, and so the weight 0; the maximum becomes that of the others.
 * Where a lane sees none it is that of the state: the state and the outputs, which are multiplied with 2^0, stay.
 */
INLINE void hide_tokens(const int32_t *visible, int tokens, const float *state_max, float *s, vec *max)
{
    vec_int seen;
    vec m = SPLAT(-INFINITY), hidden = m, old;
    LOAD(seen, visible);
    LOAD(old, state_max);
    for (int t = 0; t < tokens; t++) {
        vec x;
        LOAD(x, s + t * LANES);
        x = SELECT(seen > t, x, hidden);
        m = MAXIMUM(x, m);
        STORE(s + t * LANES, x);
    }
    *max = SELECT(seen > 0, m, old);
}

/* Exponents of a row become weights, its maximum and sum go into the state; keep and add [16] for the outputs. */
INLINE void weigh_row(const cpu_query_row *row, float *s, const float *largest, float *keep, float *add)
{
    for (int p = 0; p < LANES; p += WIDTH) {
        vec max, sum, k = {0}, a = {0};
        LOAD(max, largest + p);
        if (row->visible) hide_tokens(row->visible + p, row->tokens, row->state->max + p, s + p, &max);
        block_weights(s + p, row->tokens, &max, &sum);
        if (row->first) {
            STORE(row->state->max + p, max);
            STORE(row->state->sum + p, sum);
        } else {
            fold_state(row->state->max + p, row->state->sum + p, &max, &sum, &k, &a);
        }
        STORE(keep + p, k);
        STORE(add + p, a);
    }
}

#ifdef VALUE_PAIRS
/* acc[v][c] = sum over t < tokens, ascending, of weight t of a[v] * value t of column c, in pairs. */
INLINE void value_tile(const int V, const int C, const float *const *a, const float *values, int tokens, vec (*acc)[16])
{
    const int32_t *b = (const int32_t *)values;
    for (int v = 0; v < V; v++)
        for (int c = 0; c < C; c++) acc[v][c] = (vec){0};
    for (size_t p = 0; p < (size_t)tokens / 2; p++, b += UNIT) {
        vec_int x[4];
        for (int v = 0; v < V; v++) LOAD(x[v], a[v] + p * LANES);
        for (int c = 0; c < C; c++) {
            vec_int y = SPLAT_INT(b[c]);
            for (int v = 0; v < V; v++) VALUE_PAIRS(acc[v][c], x[v], y);
        }
    }
    if (tokens % 2 == 0) return;
    for (int c = 0; c < C; c++) { /* what follows is not seen, whatever it is */
        vec_int y = SPLAT_INT(b[c]) & (int32_t)0xFFFF0000;
        for (int v = 0; v < V; v++) {
            vec_int x;
            LOAD(x, a[v] + (size_t)tokens / 2 * LANES);
            VALUE_PAIRS(acc[v][c], x, y);
        }
    }
}
#else
INLINE void value_tile(const int V, const int C, const float *const *a, const float *values, int tokens, vec (*acc)[16])
{
    float_tile(V, C, a, values, 1, UNIT, UNIT * UNIT, tokens, acc);
}
#endif

/* Columns [d, d + D) of the outputs of R rows from values of their group; those beyond dim are not kept. */
INLINE void value_columns(const int R, const int D, const float *values, const cpu_query_row *rows, const float *s,
                          int d, int dim, const float *keep, const float *add)
{
    const int V = R * PARTS;
    vec acc[4][16];
    const float *a[4];
    for (int v = 0; v < V; v++) a[v] = s + v / PARTS * SLAB + v % PARTS * WIDTH;
    value_tile(V, D, a, values + d % UNIT, rows[0].tokens, acc);
    for (int v = 0; v < V; v++) {
        float *at = rows[v / PARTS].out + d * LANES + v % PARTS * WIDTH;
        vec k, n;
        LOAD(k, keep + v * WIDTH);
        LOAD(n, add + v * WIDTH);
        if (!rows[v / PARTS].first)
            for (int c = 0; c < D; c++) {
                if (d + c >= dim) break;
                vec o;
                LOAD(o, at + c * LANES);
                acc[v][c] = o * k + acc[v][c] * n;
            }
        for (int c = 0; c < D; c++)
            if (d + c < dim) STORE(at + c * LANES, acc[v][c]);
    }
}

/* Rows that go together from row r on: those of a pair see the same tokens. */
INLINE int together(const cpu_query_row *rows, int r, int count)
{
    return ROWS == 2 && r + 1 < count && rows[r].tokens == rows[r + 1].tokens ? 2 : 1;
}

/* Keys of tokens [t, t + n) into `room`. */
INLINE some_keys decode_keys(const cpu_block *b, size_t t, size_t n, int dim, float *room)
{
    size_t groups = (size_t)dim / UNIT;
    if (ONLY_INTEGERS || b->integers) {
        float *scales = room + KEY_TOKENS * (dim / 2);
        decode_pairs(b->keys + t * groups * (UNIT / 2), b->key_scales + t * groups, (int)n, dim, (int32_t *)room,
                     scales);
        return (some_keys){(const int32_t *)room, scales, NULL};
    }
#ifndef VALUE_PAIRS
    piece p = {t, n, 0, ((size_t)dim + UNIT - 1) / UNIT};
    decode_part(b->format, b->keys, b->key_scales, false, b->round, dim, p, KEY_TOKENS * UNIT, room);
#endif
    return (some_keys){NULL, NULL, room};
}

/* 16 columns of the values of tokens [0, tokens). */
INLINE void decode_values(const cpu_block *b, size_t group, size_t tokens, float *room)
{
#ifdef VALUE_PAIRS
    decode_value_pairs(b, group, tokens, (int32_t *)room);
#else
    piece p = {0, tokens, group, 1};
    if (b->format == CACHE_NVFP4 && !b->round)
        decode_column(b->values, b->value_scales, false, (size_t)b->dim, group, tokens, room);
    else
        decode_part(b->format, b->values, b->value_scales, true, b->round, b->dim, p, 0, room);
#endif
}

/*
 * Keys are decoded some tokens at a time, values 16 columns at a time, so that what is decoded stays in the first-level
 * cache whatever else does.
 */
TARGET static void attend(const cpu_block *b, const cpu_query_row *rows, int count, float *scratch)
{
    int dim = b->dim;
    float largest[ATTEND_ROWS][LANES], keep[ATTEND_ROWS][LANES], add[ATTEND_ROWS][LANES];
    float *room = scratch + (size_t)count * SLAB;
    size_t tokens = 0;
    for (int r = 0; r < count; r++) {
        if ((size_t)rows[r].tokens > tokens) tokens = (size_t)rows[r].tokens;
        for (int n = 0; n < LANES; n++) largest[r][n] = -INFINITY;
    }
    for (size_t t = 0; t < tokens; t += KEY_TOKENS) {
        size_t n = tokens - t < KEY_TOKENS ? tokens - t : KEY_TOKENS;
        some_keys k = decode_keys(b, t, n, dim, room);
        ask_for(b->next, b->next_bytes * t / (2 * CACHE_BLOCK), b->next_bytes * n / (2 * CACHE_BLOCK));
        for (int r = 0, m; r < count; r += m) {
            m = together(rows, r, count);
            size_t end = (size_t)rows[r].tokens < t + n ? (size_t)rows[r].tokens : t + n;
            float *s = scratch + (size_t)r * SLAB;
            if (end <= t) continue;
            if (m == 2 && (ONLY_INTEGERS || k.pairs))
                score_rows(ROWS, ROWS_C, true, &k, rows + r, t, end, dim, s, largest[r]);
            else if (ONLY_INTEGERS || k.pairs)
                score_rows(1, SINGLE_C, true, &k, rows + r, t, end, dim, s, largest[r]);
            else if (m == 2)
                score_rows(ROWS, ROWS_C, false, &k, rows + r, t, end, dim, s, largest[r]);
            else
                score_rows(1, KEYS_C, false, &k, rows + r, t, end, dim, s, largest[r]);
        }
    }
    for (int r = 0; r < count; r++) weigh_row(&rows[r], scratch + (size_t)r * SLAB, largest[r], keep[r], add[r]);
    for (int g = 0; g < dim; g += UNIT) {
        decode_values(b, (size_t)g / UNIT, tokens, room);
        ask_for(b->next, b->next_bytes * (size_t)(dim + g) / (2 * (size_t)dim),
                b->next_bytes * UNIT / (2 * (size_t)dim));
        for (int r = 0, m; r < count; r += m) {
            m = together(rows, r, count);
            const float *s = scratch + (size_t)r * SLAB;
            if (m == 2)
                for (int d = g; d < g + UNIT; d += ROWS_D)
                    value_columns(ROWS, ROWS_D, room, rows + r, s, d, dim, keep[r], add[r]);
            else
                for (int d = g; d < g + UNIT; d += SINGLE_D)
                    value_columns(1, SINGLE_D, room, rows + r, s, d, dim, keep[r], add[r]);
        }
    }
}

#endif
