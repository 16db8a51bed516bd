/*
 * Grouped-query attention: projections and norms of its inputs, the softmax over visible keys, the output projection.
 *
 *     a_h(p) = sum_j softmax_j(q_h(p) . k_g(j) / sqrt(head_dim)) v_g(j),  g = h / (heads / kv_heads)
 *
 * over all keys j <= p on a dense layer, over those of the selected blocks on a sparse one. Formula: transformers,
 * models/minimax_m3_vl (MiniMaxM3VLAttention).
 */
#include "backend/reference/reference.h"
#include "number/bf16.h"
#include "number/e4m3.h"

#include <math.h>
#include <string.h>

/* ---- attend_in ------------------------------------------------------------------------------------------------ */

typedef struct heads_work {
    const ops_step *step;
    const weight *gain; /* [1, dim] */
    float *x;           /* [T, heads, dim] */
    int heads, dim;
    bool query;
} heads_work;

/* Norm over each head, then rotary; queries are rounded where parity with e4m3 queries is asked for. */
static void norm_and_rotate(void *arg, int64_t first, int64_t last, int worker)
{
    const heads_work *work = arg;
    const ops_backend *b = work->step->backend;
    int pairs = b->model->rotary_dim / 2;
    float *gain = reference_scratch(work->step, worker); /* [dim] */
    weight_row(work->gain, 0, gain);
    for (int64_t t = first; t < last; t++)
        for (int h = 0; h < work->heads; h++) {
            float *x = work->x + (t * work->heads + h) * work->dim;
            reference_rms_norm(x, gain, work->dim, b->model->norm_eps, x);
            reference_rotate(x, work->step->cosine + t * pairs, work->step->sine + t * pairs, b->model->rotary_dim);
            for (int i = 0; i < work->dim && work->query && b->options.query_e4m3; i++)
                x[i] = e4m3_round(bf16_round(x[i]));
        }
}

static void heads(ops_step *step, const weight *projection, const weight *gain, int count, int dim, bool query,
                  float *out)
{
    reference_linear(step, projection, step->normed, step->rows.count, out);
    heads_work work = {step, gain, out, count, dim, query};
    reference_parallel(step, step->rows.count, norm_and_rotate, &work);
}

void reference_attend_in(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    const ops_layer *l = &m->layer[layer];
    reference_rms_norm_rows(step, step->x, &l->input_norm, step->normed);
    heads(step, &l->q, &l->q_norm, m->heads, m->head_dim, true, step->q);
    heads(step, &l->k, &l->k_norm, m->kv_heads, m->head_dim, false, step->k);
    reference_linear(step, &l->v, step->normed, step->rows.count, step->v);
    if (l->sparse) {
        heads(step, &l->index_q, &l->index_q_norm, m->index_heads, m->index_dim, true, step->index_q);
        heads(step, &l->index_k, &l->index_k_norm, 1, m->index_dim, false, step->index_k);
    }
    reference_cache_store(step, layer);
}

/* ---- attend --------------------------------------------------------------------------------------------------- */

enum { RUN = 16 }; /* rows that share a decoded block */

/* What one worker needs for one KV head and a run of rows. */
typedef struct block_scratch {
    float *rows;          /* [128, head_dim] as decoded */
    float *keys;          /* tiles of 16 keys [128 / 16, head_dim, 16] */
    float *values;        /* tiles of 16 dims [head_dim / 16, 128, 16] */
    float *maximum, *sum; /* [RUN, heads of the group] of the blocks so far */
} block_scratch;

static int64_t tiled(int64_t n)
{
    return (n + REFERENCE_TILE - 1) / REFERENCE_TILE * REFERENCE_TILE;
}

size_t reference_attention_scratch(const ops_backend *backend)
{
    const ops_model *m = backend->model;
    size_t group = (size_t)(m->heads / m->kv_heads);
    return (size_t)(CACHE_BLOCK * (2 * m->head_dim + tiled(m->head_dim))) + 2 * RUN * group;
}

static block_scratch scratch_of(const ops_step *step, int worker)
{
    const ops_model *m = step->backend->model;
    block_scratch s = {.rows = reference_scratch(step, worker)};
    s.keys = s.rows + CACHE_BLOCK * m->head_dim;
    s.values = s.keys + CACHE_BLOCK * m->head_dim;
    s.maximum = s.values + CACHE_BLOCK * tiled(m->head_dim);
    s.sum = s.maximum + RUN * (m->heads / m->kv_heads);
    return s;
}

/* Values [128, dim] into tiles of 16 dims, so that reference_dot sums over the tokens. */
static void value_tiles(const float *rows, int dim, float *tiles)
{
    for (int d0 = 0; d0 < dim; d0 += REFERENCE_TILE)
        for (int t = 0; t < CACHE_BLOCK; t++)
            for (int j = 0; j < REFERENCE_TILE; j++)
                tiles[(d0 * CACHE_BLOCK) + t * REFERENCE_TILE + j] = d0 + j < dim ? rows[t * dim + d0 + j] : 0;
}

/* The first `tokens` keys of a block for one query head, with the block's own maximum m_b:
 * l_b = sum e^(s - m_b), O_b = sum e^(s - m_b) v; then the fold into what earlier blocks gave. */
static void attend_block(const block_scratch *s, const float *q, int dim, int tokens, float scale, float *maximum,
                         float *sum, float *out)
{
    float p[CACHE_BLOCK], block_maximum = -INFINITY, block_sum = 0;
    for (int t0 = 0; t0 < tokens; t0 += REFERENCE_TILE) {
        float acc[REFERENCE_TILE] = {0};
        reference_dot(q, s->keys + t0 * dim, dim, acc);
        memcpy(p + t0, acc, sizeof acc);
    }
    for (int t = 0; t < tokens; t++) {
        p[t] *= scale;
        if (p[t] > block_maximum) block_maximum = p[t];
    }
    for (int t = 0; t < tokens; t++) {
        p[t] = expf(p[t] - block_maximum);
        block_sum += p[t];
    }
    float joint = *maximum > block_maximum ? *maximum : block_maximum;
    float before = expf(*maximum - joint), now = expf(block_maximum - joint);
    for (int d0 = 0; d0 < dim; d0 += REFERENCE_TILE) {
        float acc[REFERENCE_TILE] = {0};
        reference_dot(p, s->values + d0 * CACHE_BLOCK, tokens, acc);
        for (int j = 0; j < REFERENCE_TILE && d0 + j < dim; j++) out[d0 + j] = out[d0 + j] * before + acc[j] * now;
    }
    *sum = *sum * before + block_sum * now;
    *maximum = joint;
}

typedef struct attend_work {
    ops_step *step;
    int layer;
} attend_work;

/* Index head r selects for KV head r; the list is short and ascending. */
static bool attends(const ops_step *step, int layer, int32_t t, int group, int32_t b)
{
    const ops_model *m = step->backend->model;
    if (step->rows.sequence[t] < 0 || b > step->rows.position[t] / CACHE_BLOCK) return false;
    if (!m->layer[layer].sparse) return true;
    const int32_t *selected = step->blocks + ((int64_t)t * m->index_heads + group) * m->index_top;
    for (int i = 0; i < m->index_top; i++)
        if (selected[i] == b) return true;
    return false;
}

/* A block as tiles. Tokens that no row sees yet are among them and are left out of every sum. */
static void load_block(const ops_step *step, int layer, int group, int32_t block, const block_scratch *s)
{
    int dim = step->backend->model->head_dim;
    reference_cache_keys(step->cache, layer, group, block, CACHE_BLOCK, s->rows);
    reference_tiles(s->rows, CACHE_BLOCK, dim, s->keys);
    reference_cache_values(step->cache, layer, group, block, CACHE_BLOCK, s->rows);
    value_tiles(s->rows, dim, s->values);
}

/* Rows [first, last) and one KV head, whose query heads share the selected blocks. Every row meets its blocks in
 * ascending number, so its fold does not depend on which rows are with it. */
static void attend_run(ops_step *step, int layer, const block_scratch *s, int32_t first, int32_t last, int group)
{
    const ops_model *m = step->backend->model;
    int per_group = m->heads / m->kv_heads, dim = m->head_dim;
    float scale = 1 / sqrtf((float)dim);
    int32_t visible = 0, loaded = -1;
    for (int i = 0; i < RUN * per_group; i++) s->maximum[i] = -INFINITY, s->sum[i] = 0;
    for (int32_t t = first; t < last; t++) {
        int64_t head0 = (int64_t)t * m->heads + (int64_t)group * per_group;
        memset(step->attention + head0 * dim, 0, (size_t)(per_group * dim) * sizeof(float));
        if (step->rows.sequence[t] >= 0 && step->rows.position[t] / CACHE_BLOCK >= visible)
            visible = step->rows.position[t] / CACHE_BLOCK + 1;
    }
    for (int32_t b = 0; b < visible; b++)
        for (int32_t t = first; t < last; t++) {
            if (!attends(step, layer, t, group, b)) continue;
            int32_t block = reference_cache_block(step, t, b), tokens = step->rows.position[t] - b * CACHE_BLOCK + 1;
            if (block != loaded) load_block(step, layer, group, block, s);
            loaded = block;
            for (int h = 0; h < per_group; h++) {
                int64_t head = (int64_t)t * m->heads + (int64_t)group * per_group + h;
                int64_t state = (int64_t)(t - first) * per_group + h;
                attend_block(s, step->q + head * dim, dim, tokens < CACHE_BLOCK ? tokens : CACHE_BLOCK, scale,
                             &s->maximum[state], &s->sum[state], step->attention + head * dim);
            }
        }
    for (int32_t t = first; t < last; t++)
        for (int h = 0; h < per_group && step->rows.sequence[t] >= 0; h++) {
            float *out = step->attention + ((int64_t)t * m->heads + (int64_t)group * per_group + h) * dim;
            for (int d = 0; d < dim; d++) out[d] /= s->sum[(t - first) * per_group + h];
        }
}

static void attend_items(void *arg, int64_t first, int64_t last, int worker)
{
    const attend_work *work = arg;
    const ops_model *m = work->step->backend->model;
    block_scratch s = scratch_of(work->step, worker);
    for (int64_t item = first; item < last; item++) {
        int32_t row = (int32_t)(item / m->kv_heads) * RUN, end = row + RUN, count = work->step->rows.count;
        attend_run(work->step, work->layer, &s, row, end < count ? end : count, (int)(item % m->kv_heads));
    }
}

void reference_attend(ops_step *step, int layer)
{
    attend_work work = {step, layer};
    int64_t runs = ((int64_t)step->rows.count + RUN - 1) / RUN;
    reference_parallel(step, runs * step->backend->model->kv_heads, attend_items, &work);
}

void reference_attend_out(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    reference_linear_sliced(step, &m->layer[layer].o, step->attention, step->rows.count, step->y);
    for (int64_t i = 0; i < (int64_t)step->rows.count * m->hidden; i++) step->x[i] += step->y[i];
}
