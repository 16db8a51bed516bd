/*
 * The drafter (DSpark): context rows from the target's layers, and blocks of drafts; the formulas are in backend/ops.h.
 *
 * A block is computed for one sequence at a time, whatever others are asked for. Its attention folds the context's
 * cache blocks in ascending number and the rows of the block itself last, each with its own maximum, as attention.c
 * does. The projections that ranks may split, attention out and down, add eight slices as the target's.
 */
#include "backend/reference/reference.h"
#include "base/memory.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- Memory --------------------------------------------------------------------------------------------------- */

hy_status reference_draft_open(ops_step *step, hy_error *err)
{
    const ops_model *m = step->backend->model;
    const ops_drafter *d = m->drafter;
    const ops_limits *limits = &step->limits;
    reference_draft *s = &step->draft;
    if (!d || !limits->drafts) return HY_OK;
    assert(limits->draft_rows > 0 && limits->draft_rows <= d->block);
    size_t rows = (size_t)limits->rows, g = (size_t)limits->draft_rows, most = rows > g ? rows : g;
    size_t hidden = (size_t)m->hidden, vocab = (size_t)m->vocab, width = (size_t)d->width,
           drafts = (size_t)limits->drafts;
    size_t q = (size_t)d->heads * (size_t)d->head_dim, kv = (size_t)d->kv_heads * (size_t)d->head_dim;
    size_t pairs = (size_t)d->rotary_dim / 2, rank = (size_t)d->markov_rank, f = sizeof(float);
    const host_array arrays[] = {
        {&s->taps, rows, (size_t)d->tap_count * hidden, f},
        {&s->c, rows, hidden, f},
        {&s->x, g, hidden, f},
        {&s->normed, g, hidden, f},
        {&s->y, g, hidden, f},
        {&s->q, g, q, f},
        {&s->attention, g, q, f},
        {&s->k, most, kv, f},
        {&s->v, most, kv, f},
        {&s->cosine, most, pairs, f},
        {&s->sine, most, pairs, f},
        {&s->gate, g, width, f},
        {&s->up, g, width, f},
        {&s->h, drafts * g, hidden, f},
        {&s->logits, g, vocab, f},
        {&s->follow, 1, vocab, f},
        {&s->markov, 1, rank, f},
        {&s->confidence, 1, hidden + rank, f},
    };
    return host_arrays_open(arrays, sizeof arrays / sizeof *arrays, err);
}

void reference_draft_close(ops_step *step)
{
    reference_draft *s = &step->draft;
    float *arrays[] = {s->taps,   s->c,    s->x,    s->normed, s->y, s->q,      s->attention, s->k,      s->v,
                       s->cosine, s->sine, s->gate, s->up,     s->h, s->logits, s->follow,    s->markov, s->confidence};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
}

/* ---- Norm, rotary --------------------------------------------------------------------------------------------- */

/* `vectors` of gain->cols values each; out may be x. */
static void norm(const ops_step *step, const weight *gain, const float *x, int64_t vectors, float *out)
{
    const ops_drafter *d = step->backend->model->drafter;
    float *g = reference_scratch(step, 0);
    int n = (int)gain->cols;
    weight_row(gain, 0, g);
    for (int64_t i = 0; i < vectors; i++)
        (d->plain_norm ? reference_rms_norm_plain : reference_rms_norm)(x + i * n, g, n, d->norm_eps, out + i * n);
}

/* Tables of a row's angles, as those of the target. */
static void turn(const ops_step *step, int64_t row, int32_t position)
{
    int pairs = step->backend->model->drafter->rotary_dim / 2;
    for (int j = 0; j < pairs; j++) {
        float angle = (float)position * step->backend->draft_frequency[j];
        step->draft.cosine[row * pairs + j] = (float)cos((double)angle);
        step->draft.sine[row * pairs + j] = (float)sin((double)angle);
    }
}

/* x [rows, heads, head_dim]: normed per head and turned. */
static void norm_and_turn(const ops_step *step, const weight *gain, int32_t rows, int heads, float *x)
{
    const ops_drafter *d = step->backend->model->drafter;
    int64_t pairs = d->rotary_dim / 2;
    norm(step, gain, x, (int64_t)rows * heads, x);
    for (int64_t t = 0; t < rows; t++)
        for (int h = 0; h < heads; h++)
            reference_rotate(x + (t * heads + h) * d->head_dim, step->draft.cosine + t * pairs,
                             step->draft.sine + t * pairs, d->rotary_dim);
}

/* Keys and values of rows in [rows, hidden], into draft.k and draft.v. */
static void keys_values(ops_step *step, const ops_draft_layer *l, const float *in, int32_t rows)
{
    reference_linear(step, &l->k, in, rows, step->draft.k);
    reference_linear(step, &l->v, in, rows, step->draft.v);
    norm_and_turn(step, &l->k_norm, rows, step->backend->model->drafter->kv_heads, step->draft.k);
}

/* ---- Context -------------------------------------------------------------------------------------------------- */

void reference_draft_tap(ops_step *step, int tap)
{
    const ops_model *m = step->backend->model;
    int taps = m->drafter->tap_count;
    assert(step->draft.taps && tap >= 0 && tap < taps);
    for (int64_t t = 0; t < step->rows.count; t++)
        memcpy(step->draft.taps + (t * taps + tap) * m->hidden, step->x + t * m->hidden,
               (size_t)m->hidden * sizeof *step->x);
}

void reference_draft_context(ops_step *step)
{
    const ops_drafter *d = step->backend->model->drafter;
    int32_t rows = step->rows.count;
    assert(step->draft.c);
    if (!rows) return;
    assert(step->cache->layout.draft_offset != CACHE_NO_OFFSET && step->cache->layout.draft_layers == d->layers);
    reference_linear(step, &d->fc, step->draft.taps, rows, step->draft.c);
    norm(step, &d->hidden_norm, step->draft.c, rows, step->draft.c);
    for (int32_t t = 0; t < rows; t++) turn(step, t, step->rows.position[t]);
    for (int i = 0; i < d->layers; i++) {
        keys_values(step, &d->layer[i], step->draft.c, rows);
        reference_cache_draft_store(step, i, step->draft.k, step->draft.v);
    }
}

/* ---- Attention of a block ------------------------------------------------------------------------------------- */

/* A round of one sequence. */
typedef struct block {
    ops_step *step;
    const int32_t *table;    /* its cache blocks */
    int32_t position, count; /* n of the anchor, g */
    int layer;
} block;

/* What one worker holds of one KV head: up to 128 keys and values, and the softmax of g rows so far. */
typedef struct attend_scratch {
    float *rows;          /* [128, head_dim] as decoded */
    float *keys;          /* tiles of 16 keys [128 / 16, head_dim, 16] */
    float *maximum, *sum; /* [g, heads of the group] */
} attend_scratch;

size_t reference_draft_scratch(const ops_backend *backend)
{
    const ops_drafter *d = backend->model->drafter;
    if (!d) return 0;
    return 2 * CACHE_BLOCK * (size_t)d->head_dim + 2 * DRAFT_MAX_BLOCK * (size_t)(d->heads / d->kv_heads);
}

/* Keys [from, to) of those in s->keys for one row and head, folded into what earlier keys gave: see attention.c. */
static void fold(const attend_scratch *s, const float *q, int dim, int from, int to, float *maximum, float *sum,
                 float *out)
{
    float p[CACHE_BLOCK], own_maximum = -INFINITY, own_sum = 0, scale = 1 / sqrtf((float)dim);
    for (int t0 = from / REFERENCE_TILE * REFERENCE_TILE; t0 < to; t0 += REFERENCE_TILE) {
        float acc[REFERENCE_TILE] = {0};
        reference_dot(q, s->keys + t0 * dim, dim, acc);
        memcpy(p + t0, acc, sizeof acc);
    }
    for (int t = from; t < to; t++) {
        p[t] *= scale;
        if (p[t] > own_maximum) own_maximum = p[t];
    }
    float joint = *maximum > own_maximum ? *maximum : own_maximum;
    float before = expf(*maximum - joint), now = expf(own_maximum - joint);
    for (int t = from; t < to; t++) {
        p[t] = expf(p[t] - own_maximum);
        own_sum += p[t];
    }
    for (int i = 0; i < dim; i++) {
        float acc = 0;
        for (int t = from; t < to; t++) acc += p[t] * s->rows[t * dim + i];
        out[i] = out[i] * before + acc * now;
    }
    *sum = *sum * before + own_sum * now;
    *maximum = joint;
}

/* All rows and heads of the group meet the `count` keys in s->keys, of positions `at` and up, but for those before a
 * row's window. The block's own keys never are: a window is at least as long as a block. */
static void meet(const block *b, const attend_scratch *s, int group, int32_t at, int count)
{
    const ops_drafter *d = b->step->backend->model->drafter;
    int per_group = d->heads / d->kv_heads, dim = d->head_dim;
    for (int k = 0; k < b->count; k++) {
        int64_t first = (int64_t)b->position + k - d->window + 1 - at;
        int from = first < 0 ? 0 : first < count ? (int)first : count;
        for (int h = 0; h < per_group && from < count; h++) {
            int64_t head = (int64_t)k * d->heads + group * per_group + h, state = k * per_group + h;
            fold(s, b->step->draft.q + head * dim, dim, from, count, &s->maximum[state], &s->sum[state],
                 b->step->draft.attention + head * dim);
        }
    }
}

/* One KV head: the context's cache blocks that row 0 sees any of, then the block itself. */
static void attend_head(const block *b, const attend_scratch *s, int group)
{
    const ops_drafter *d = b->step->backend->model->drafter;
    const ops_cache *cache = b->step->cache;
    int per_group = d->heads / d->kv_heads, dim = d->head_dim;
    int32_t first = b->position - d->window + 1 > 0 ? b->position - d->window + 1 : 0;
    for (int i = 0; i < b->count * per_group; i++) s->maximum[i] = -INFINITY, s->sum[i] = 0;
    for (int32_t n = first / CACHE_BLOCK; n * CACHE_BLOCK < b->position; n++) {
        int32_t left = b->position - n * CACHE_BLOCK, count = left < CACHE_BLOCK ? left : CACHE_BLOCK;
        reference_cache_draft_keys(cache, b->layer, group, b->table[n], count, s->rows);
        reference_tiles(s->rows, count, dim, s->keys);
        reference_cache_draft_values(cache, b->layer, group, b->table[n], count, s->rows);
        meet(b, s, group, n * CACHE_BLOCK, count);
    }
    for (int part = 0; part < 2; part++) {
        const float *from = part ? b->step->draft.v : b->step->draft.k;
        for (int k = 0; k < b->count; k++)
            memcpy(s->rows + k * dim, from + ((int64_t)k * d->kv_heads + group) * dim, (size_t)dim * sizeof *from);
        if (!part) reference_tiles(s->rows, b->count, dim, s->keys);
    }
    meet(b, s, group, b->position, b->count);
    for (int k = 0; k < b->count; k++)
        for (int h = 0; h < per_group; h++) {
            float *out = b->step->draft.attention + ((int64_t)k * d->heads + group * per_group + h) * dim;
            for (int i = 0; i < dim; i++) out[i] /= s->sum[k * per_group + h];
        }
}

static void attend_heads(void *arg, int64_t begin, int64_t end, int worker)
{
    const block *b = arg;
    int dim = b->step->backend->model->drafter->head_dim;
    attend_scratch s = {.rows = reference_scratch(b->step, worker)};
    s.keys = s.rows + CACHE_BLOCK * dim;
    s.maximum = s.keys + CACHE_BLOCK * dim;
    s.sum = s.maximum + (reference_draft_scratch(b->step->backend) - 2 * CACHE_BLOCK * (size_t)dim) / 2;
    for (int64_t group = begin; group < end; group++) attend_head(b, &s, (int)group);
}

/* ---- Layers of a block ---------------------------------------------------------------------------------------- */

static float silu(float x)
{
    return x / (1 + expf(-x));
}

static void add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

static void run_layer(block *b, int layer)
{
    ops_step *step = b->step;
    const ops_model *m = step->backend->model;
    const ops_drafter *d = m->drafter;
    const ops_draft_layer *l = &d->layer[layer];
    reference_draft *s = &step->draft;
    int32_t g = b->count;
    int64_t wide = (int64_t)g * d->width;
    b->layer = layer;

    norm(step, &l->input_norm, s->x, g, s->normed);
    reference_linear(step, &l->q, s->normed, g, s->q);
    norm_and_turn(step, &l->q_norm, g, d->heads, s->q);
    keys_values(step, l, s->normed, g);
    memset(s->attention, 0, (size_t)g * (size_t)d->heads * (size_t)d->head_dim * sizeof *s->attention);
    reference_parallel(step, d->kv_heads, attend_heads, b);
    reference_linear_sliced(step, &l->o, s->attention, g, s->y);
    add(s->x, s->y, (int64_t)g * m->hidden);

    norm(step, &l->post_norm, s->x, g, s->normed);
    reference_linear(step, &l->gate, s->normed, g, s->gate);
    reference_linear(step, &l->up, s->normed, g, s->up);
    if (d->plain_swiglu)
        for (int64_t i = 0; i < wide; i++) s->gate[i] = silu(s->gate[i]) * s->up[i];
    else
        reference_swiglu(s->gate, s->up, wide, d->swiglu_alpha, d->swiglu_limit, s->gate);
    reference_linear_sliced(step, &l->down, s->gate, g, s->y);
    add(s->x, s->y, (int64_t)g * m->hidden);
}

/* All layers, the final norm into h [g, hidden] and U into draft.logits. */
static void run_block(block *b, int32_t anchor, float *h)
{
    ops_step *step = b->step;
    const ops_model *m = step->backend->model;
    const ops_drafter *d = m->drafter;
    for (int32_t k = 0; k < b->count; k++) {
        weight_row(&d->embed, k ? d->noise_token : anchor, step->draft.x + (int64_t)k * m->hidden);
        turn(step, k, b->position + k);
    }
    for (int i = 0; i < d->layers; i++) run_layer(b, i);
    norm(step, &d->final_norm, step->draft.x, b->count, h);
    reference_linear(step, &d->head, h, b->count, step->draft.logits);
}

/* ---- Drafts --------------------------------------------------------------------------------------------------- */

/* Whether the head expects the draft after the token in draft.markov to be accepted, u [hidden] being its row. */
static bool confident(const ops_step *step, const ops_draft *how, const float *u)
{
    const ops_model *m = step->backend->model;
    const ops_drafter *d = m->drafter;
    float *w = step->draft.confidence, sum = 0, bias;
    if (!(how->threshold > 0) || d->confidence.format == WEIGHT_NONE) return true;
    weight_row(&d->confidence, 0, w);
    weight_row(&d->confidence_bias, 0, &bias);
    for (int64_t i = 0; i < m->hidden; i++) sum += w[i] * u[i];
    for (int64_t i = 0; i < d->markov_rank; i++) sum += w[m->hidden + i] * step->draft.markov[i];
    return 1 / (1 + expf(-(sum + bias))) >= how->threshold; /* a NaN is not */
}

/* Left to right through the Markov head: row k's law depends on draft k - 1. */
static void choose(ops_step *step, const ops_draft *how, int32_t anchor, int32_t position, const float *h)
{
    const ops_model *m = step->backend->model;
    const ops_drafter *d = m->drafter;
    reference_draft *s = &step->draft;
    bool kept = step->draft_logits && how->method == DRAFT_PROBABILISTIC;
    assert(!kept || (how->law >= 0 && how->law < step->limits.drafts));
    int32_t before = anchor;
    for (int32_t k = 0; k < how->rows && position + 1 + k < how->end; k++) {
        float *logits = s->logits + (int64_t)k * m->vocab;
        if (d->markov_rank) weight_row(&d->markov_in, before, s->markov);
        if (!confident(step, how, h + (int64_t)k * m->hidden)) return;
        if (d->markov_rank) {
            reference_linear(step, &d->markov_out, s->markov, 1, s->follow);
            add(logits, s->follow, m->vocab);
        }
        if (kept)
            memcpy(step->draft_logits + ((int64_t)how->law * step->limits.draft_rows + k) * m->vocab, logits,
                   (size_t)m->vocab * sizeof *logits);
        before = draft_pick(logits, m->vocab, how, (uint32_t)(position + 1 + k), (uint32_t)position);
        if (before < 0) return;
        how->draft[(*how->count)++] = before;
    }
}

void reference_draft_block(ops_step *step, const ops_draft *sequences, int32_t count)
{
    const ops_model *m = step->backend->model;
    assert(step->draft.h && count <= step->limits.drafts);
    for (int32_t i = 0; i < count; i++) {
        const ops_draft *how = &sequences[i];
        *how->count = 0;
        if (step->error.status != HY_OK || *how->after_count < 1) continue;
        int32_t anchor = how->after[*how->after_count - 1].id, position = how->position + *how->after_count - 1;
        if (anchor < 0 || position + 1 >= how->end) continue;
        assert(how->rows > 0 && how->rows <= step->limits.draft_rows && how->sequence < step->rows.sequences);
        assert(anchor < m->vocab && (int64_t)(position - 1) / CACHE_BLOCK < step->rows.block_table_stride);
        block b = {.step = step,
                   .table = step->rows.block_table + (int64_t)how->sequence * step->rows.block_table_stride,
                   .position = position,
                   .count = how->rows};
        float *h = step->draft.h + (int64_t)i * step->limits.draft_rows * m->hidden;
        run_block(&b, anchor, h);
        choose(step, how, anchor, position, h);
    }
}
