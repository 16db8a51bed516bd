/*
 * The loops of blocks.h over the vectors of lanes.h. Included once per instruction set by blocks_<set>.c, which defines
 *
 *     BLOCKS, NAME   the cpu_blocks to define, and what it is called
 *     TARGET         the function attribute that selects the instruction set
 *     WIDTH          lanes of its vectors: 16, 8 or 4
 *     NARROW_R       rows of the register tile of a product, at most 8
 */
#include "backend/cpu/blocks.h"
#include "backend/cpu/lanes.h"

#include <math.h>

/* ---- Products -------------------------------------------------------------------------------------------------- */

/* A register tile of R <= 8 rows: see product_strided. */
INLINE void product_tile(const int R, const float *const *x, size_t step, const float *w, int k, float *out)
{
    vec a[8][PARTS];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < PARTS; p++) a[r][p] = (vec){0};
    for (int i = 0; i < k; i++)
        for (int p = 0; p < PARTS; p++) {
            vec v;
            LOAD(v, w + (size_t)i * LANES + p * WIDTH);
            for (int r = 0; r < R; r++) a[r][p] += x[r][(size_t)i * step] * v;
        }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < PARTS; p++) STORE(out + r * LANES + p * WIDTH, a[r][p]);
}

/* out[r] = sum over i < k, ascending, of x[r * row_step + i * step] * w[i]: one panel, rows at a fixed distance. */
INLINE void product_strided(const float *x, size_t row_step, size_t step, int rows, const float *w, int k,
                            float *out /* [rows][16] */)
{
    int r = 0;
    for (; r + NARROW_R <= rows; r += NARROW_R) {
        const float *row[8];
        for (int i = 0; i < NARROW_R; i++) row[i] = x + (size_t)(r + i) * row_step;
        product_tile(NARROW_R, row, step, w, k, out + r * LANES);
    }
    for (; r < rows; r++) {
        const float *row[1] = {x + (size_t)r * row_step};
        product_tile(1, row, step, w, k, out + r * LANES);
    }
}

/* ---- Attention ------------------------------------------------------------------------------------------------- */

/* Scores s [tokens][16], one vector of each, become weights bf16(e^(scale s - m_b)); m_b and the sum of the weights
 * before their rounding are returned. */
INLINE void block_weights(float *s, int tokens, float scale, vec *block_max, vec *block_sum)
{
    vec m = SPLAT(-INFINITY), sum = {0};
    for (int t = 0; t < tokens; t++) {
        vec x;
        LOAD(x, s + t * LANES);
        x = x * scale;
        STORE(s + t * LANES, x);
        m = SELECT(x > m, x, m);
    }
    for (int t = 0; t < tokens; t++) {
        vec e;
        LOAD(e, s + t * LANES);
        e = e - m;
        exponential(&e);
        sum += e;
        round_bf16(&e);
        STORE(s + t * LANES, e);
    }
    *block_max = m;
    *block_sum = sum;
}

/* The block's maximum, sum and output [dim][16] into the state, one vector of each. */
INLINE void fold(const vec *block_max, const vec *block_sum, const float *block_out, int dim, float *max, float *sum,
                 float *out)
{
    vec m, old_max, s;
    LOAD(old_max, max);
    LOAD(s, sum);
    m = SELECT(*block_max > old_max, *block_max, old_max);
    vec keep = old_max - m, add = *block_max - m;
    exponential(&keep);
    exponential(&add);
    s = s * keep + *block_sum * add;
    STORE(max, m);
    STORE(sum, s);
    for (int d = 0; d < dim; d++) {
        vec o, b;
        LOAD(o, out + d * LANES);
        LOAD(b, block_out + d * LANES);
        o = o * keep + b * add;
        STORE(out + d * LANES, o);
    }
}

TARGET static void attend_block(const float *q, const float *k, const float *v, int tokens, int dim, float scale,
                                cpu_softmax *state, float *out, float *scratch)
{
    float *s = scratch /* [tokens][16] */, *block_out = scratch + 128 * LANES /* [dim][16] */;
    vec block_max[PARTS], block_sum[PARTS];
    product_strided(k, (size_t)dim, 1, tokens, q, dim, s);
    for (int p = 0; p < PARTS; p++) block_weights(s + p * WIDTH, tokens, scale, &block_max[p], &block_sum[p]);
    product_strided(v, 1, (size_t)dim, dim, s, tokens, block_out);
    for (int p = 0; p < PARTS; p++)
        fold(&block_max[p], &block_sum[p], block_out + p * WIDTH, dim, state->max + p * WIDTH, state->sum + p * WIDTH,
             out + p * WIDTH);
}

const cpu_blocks BLOCKS = {
    .name = NAME,
    .attend_block = attend_block,
};
