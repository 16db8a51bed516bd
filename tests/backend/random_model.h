/*
 * Small random models in memory and steps over them, for tests of backends.
 *
 * A `random_model` owns the bytes that its weights borrow. A `bench` is one backend with a cache and a step. Everything
 * is drawn from a generator with a fixed start, so that a failure repeats.
 */
#ifndef TESTS_BACKEND_RANDOM_MODEL_H
#define TESTS_BACKEND_RANDOM_MODEL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/ops.h"
#include "number/bf16.h"
#include "number/e4m3.h"
#include "number/mxfp8.h"
#include "number/nvfp4.h"

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

static uint64_t random_state = 1;

static inline uint32_t random_bits(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15; /* SplitMix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return (uint32_t)((z ^ z >> 31) >> 32);
}

static inline int random_below(int n)
{
    return (int)(random_bits() % (uint32_t)n);
}

/* About Gaussian, deviation 1. */
static inline float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)(random_bits() >> 8) * 0x1p-24f;
    return sum - 6;
}

static inline float *random_floats(size_t n, float scale, bool half)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = random_normal() * scale;
        if (half) x[i] = bf16_round(x[i]);
    }
    return x;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* Memory that lives as long as the model. */
typedef struct arena {
    void **blocks;
    size_t count;
} arena;

static inline void *arena_take(arena *a, size_t bytes)
{
    a->blocks = realloc(a->blocks, (a->count + 1) * sizeof *a->blocks);
    assert_non_null(a->blocks);
    void *p = calloc(1, bytes ? bytes : 1);
    assert_non_null(p);
    return a->blocks[a->count++] = p;
}

static inline void arena_free(arena *a)
{
    for (size_t i = 0; i < a->count; i++) free(a->blocks[i]);
    free(a->blocks);
    *a = (arena){0};
}

/* A weight [rows, cols] with the given values in the given format; `divides`: of NVFP4. One byte off any alignment. */
static inline weight make_weight(arena *a, weight_format format, int64_t rows, int64_t cols, const float *values,
                                 bool divides)
{
    size_t n = (size_t)(rows * cols);
    weight w = {.format = format, .rows = rows, .cols = cols};
    uint8_t *data = (uint8_t *)arena_take(a, n * 4 + 1) + 1, *scales = arena_take(a, n / 16 + 1);
    w.data = data;
    float amax = 0;
    for (size_t i = 0; i < n; i++) amax = fmaxf(amax, fabsf(values[i]));
    float global = nvfp4_weight_global(amax);
    for (size_t i = 0; i < n; i++) {
        uint16_t half = bf16_from_float(values[i]);
        if (format == WEIGHT_F32) memcpy(data + 4 * i, &values[i], 4);
        if (format == WEIGHT_BF16) memcpy(data + 2 * i, &half, 2);
    }
    for (int64_t r = 0; r < rows; r++) {
        if (format == WEIGHT_MXFP8)
            mxfp8_quantise_row(values + r * cols, (size_t)cols / 32, data + r * cols, scales + r * cols / 32);
        if (format == WEIGHT_NVFP4)
            nvfp4_weight_quantise_row(values + r * cols, (size_t)cols / 16, global, data + r * cols / 2,
                                      scales + r * cols / 16);
    }
    if (format == WEIGHT_MXFP8 || format == WEIGHT_NVFP4) w.scales = scales;
    w.divides = divides;
    if (format == WEIGHT_NVFP4) w.global = divides ? global : nvfp4_weight_scale_2(amax);
    return w;
}

static inline weight random_weight(arena *a, weight_format format, int64_t rows, int64_t cols, float scale,
                                   bool divides)
{
    float *values = random_floats((size_t)(rows * cols), scale, false);
    weight w = make_weight(a, format, rows, cols, values, divides);
    free(values);
    return w;
}

/* ---- Models ------------------------------------------------------------------------------------------------------ */

typedef struct model_kind {
    int layers, hidden, heads, kv_heads, head_dim, index_dim, index_top, rotary_dim;
    int experts, per_token, expert_width, shared_width, dense_width, vocab;
    weight_format linear, expert; /* of projections; of routed experts */
    bool divides;
} model_kind;

typedef struct random_model {
    ops_model ops;
    arena memory;
} random_model;

/* Layer 0 is dense in both respects, the last one has experts and a shared expert but dense attention, the others are
 * sparse with experts; layer 1 has no shared expert if there are more than three. */
static inline void random_model_make(random_model *m, const model_kind *k)
{
    *m = (random_model){.ops = {
        .layers = k->layers, .hidden = k->hidden, .vocab = k->vocab, .max_positions = 1 << 20,
        .heads = k->heads, .kv_heads = k->kv_heads, .head_dim = k->head_dim, .rotary_dim = k->rotary_dim,
        .rope_theta = 5e6f, .norm_eps = 1e-6f,
        .experts = k->experts, .experts_per_token = k->per_token, .expert_width = k->expert_width,
        .shared_width = k->shared_width, .dense_width = k->dense_width,
        .routed_scaling = 2, .swiglu_alpha = 1.702f, .swiglu_limit = 7,
        .index_heads = k->kv_heads, .index_dim = k->index_dim, .index_top = k->index_top, .index_local = 1,
    }};
    arena *a = &m->memory;
    ops_model *o = &m->ops;
    float in = 1 / sqrtf((float)k->hidden);
    o->embed = random_weight(a, WEIGHT_BF16, k->vocab, k->hidden, 1, false);
    o->head = random_weight(a, k->linear, k->vocab, k->hidden, in, k->divides);
    o->final_norm = random_weight(a, WEIGHT_BF16, 1, k->hidden, 0.1f, false);
    o->layer = arena_take(a, (size_t)k->layers * sizeof *o->layer);
    int q = k->heads * k->head_dim, kv = k->kv_heads * k->head_dim, iq = k->kv_heads * k->index_dim;
    for (int i = 0; i < k->layers; i++) {
        ops_layer *l = &o->layer[i];
        l->moe = i > 0;
        l->sparse = i > 0 && (i < k->layers - 1 || k->layers == 2);
        l->k_scale = 0.5f, l->v_scale = 0.25f;
        l->input_norm = random_weight(a, WEIGHT_BF16, 1, k->hidden, 0.1f, false);
        l->post_norm = random_weight(a, WEIGHT_F32, 1, k->hidden, 0.1f, false);
        l->q = random_weight(a, k->linear, q, k->hidden, in, k->divides);
        l->k = random_weight(a, k->linear, kv, k->hidden, in, k->divides);
        l->v = random_weight(a, k->linear, kv, k->hidden, in, k->divides);
        l->o = random_weight(a, k->linear, k->hidden, q, 1 / sqrtf((float)q), k->divides);
        l->q_norm = random_weight(a, WEIGHT_BF16, 1, k->head_dim, 0.3f, false);
        l->k_norm = random_weight(a, WEIGHT_BF16, 1, k->head_dim, 0.3f, false);
        if (l->sparse) {
            l->index_q = random_weight(a, k->linear, iq, k->hidden, in, k->divides);
            l->index_k = random_weight(a, k->linear, k->index_dim, k->hidden, in, k->divides);
            l->index_q_norm = random_weight(a, WEIGHT_BF16, 1, k->index_dim, 0.3f, false);
            l->index_k_norm = random_weight(a, WEIGHT_BF16, 1, k->index_dim, 0.3f, false);
        }
        if (!l->moe) {
            l->dense_gate = random_weight(a, k->linear, k->dense_width, k->hidden, in * 2, k->divides);
            l->dense_up = random_weight(a, k->linear, k->dense_width, k->hidden, in * 2, k->divides);
            l->dense_down =
                random_weight(a, k->linear, k->hidden, k->dense_width, 1 / sqrtf((float)k->dense_width), k->divides);
            continue;
        }
        l->router = random_weight(a, WEIGHT_F32, k->experts, k->hidden, in * 2, false);
        l->router_bias = random_weight(a, WEIGHT_F32, 1, k->experts, 0.1f, false);
        l->expert_gate = arena_take(a, (size_t)k->experts * sizeof(weight));
        l->expert_up = arena_take(a, (size_t)k->experts * sizeof(weight));
        l->expert_down = arena_take(a, (size_t)k->experts * sizeof(weight));
        for (int e = 0; e < k->experts; e++) {
            l->expert_gate[e] = random_weight(a, k->expert, k->expert_width, k->hidden, in * 2, k->divides);
            l->expert_up[e] = random_weight(a, k->expert, k->expert_width, k->hidden, in * 2, k->divides);
            l->expert_down[e] =
                random_weight(a, k->expert, k->hidden, k->expert_width, 1 / sqrtf((float)k->expert_width), k->divides);
        }
        if (i == 1 && k->layers > 3) continue;
        l->shared_gate = random_weight(a, k->linear, k->shared_width, k->hidden, in * 2, k->divides);
        l->shared_up = random_weight(a, k->linear, k->shared_width, k->hidden, in * 2, k->divides);
        l->shared_down =
            random_weight(a, k->linear, k->hidden, k->shared_width, 1 / sqrtf((float)k->shared_width), k->divides);
    }
}

typedef struct drafter_kind {
    int layers, heads, kv_heads, head_dim, rotary_dim, width, block, window, tap_count, markov_rank;
    int tap[DRAFT_MAX_TAPS];
    cache_format cache;
    bool plain, confidence; /* norms and SwiGLU of other families; a confidence head */
    weight_format linear;
} drafter_kind;

/* Gives the model a drafter, whose noise token is the last of the vocabulary. */
static inline void random_model_draft(random_model *m, const drafter_kind *k)
{
    arena *a = &m->memory;
    ops_drafter *d = m->ops.drafter = arena_take(a, sizeof *d);
    int hidden = m->ops.hidden, vocab = m->ops.vocab, q = k->heads * k->head_dim, kv = k->kv_heads * k->head_dim;
    float in = 1 / sqrtf((float)hidden), gain = k->plain ? 1 : 0.1f, head = k->plain ? 1 : 0.3f;
    *d = (ops_drafter){
        .layers = k->layers, .heads = k->heads, .kv_heads = k->kv_heads, .head_dim = k->head_dim,
        .rotary_dim = k->rotary_dim, .width = k->width, .rope_theta = 1e4f, .norm_eps = 1e-5f, .swiglu_alpha = 1.5f,
        .swiglu_limit = 2, .plain_norm = k->plain, .plain_swiglu = k->plain, .block = k->block, .window = k->window,
        .noise_token = vocab - 1, .tap_count = k->tap_count, .markov_rank = k->markov_rank, .cache = k->cache,
        .embed = m->ops.embed, .head = m->ops.head,
    };
    memcpy(d->tap, k->tap, sizeof d->tap);
    d->fc = random_weight(a, WEIGHT_BF16, hidden, k->tap_count * hidden, in, false);
    d->hidden_norm = random_weight(a, WEIGHT_BF16, 1, hidden, gain, false);
    d->final_norm = random_weight(a, WEIGHT_BF16, 1, hidden, gain, false);
    if (k->markov_rank) {
        d->markov_in = random_weight(a, WEIGHT_BF16, vocab, k->markov_rank, 1, false);
        d->markov_out = random_weight(a, WEIGHT_BF16, vocab, k->markov_rank, 1, false);
    }
    if (k->confidence) {
        d->confidence = random_weight(a, WEIGHT_BF16, 1, hidden + k->markov_rank, in, false);
        d->confidence_bias = random_weight(a, WEIGHT_BF16, 1, 1, 1, false);
    }
    d->layer = arena_take(a, (size_t)k->layers * sizeof *d->layer);
    for (int i = 0; i < k->layers; i++)
        d->layer[i] = (ops_draft_layer){
            .input_norm = random_weight(a, WEIGHT_BF16, 1, hidden, gain, false),
            .post_norm = random_weight(a, WEIGHT_BF16, 1, hidden, gain, false),
            .q = random_weight(a, k->linear, q, hidden, in, false),
            .k = random_weight(a, k->linear, kv, hidden, in, false),
            .v = random_weight(a, k->linear, kv, hidden, in, false),
            .o = random_weight(a, k->linear, hidden, q, 1 / sqrtf((float)q), false),
            .q_norm = random_weight(a, WEIGHT_BF16, 1, k->head_dim, head, false),
            .k_norm = random_weight(a, WEIGHT_BF16, 1, k->head_dim, head, false),
            .gate = random_weight(a, k->linear, k->width, hidden, in * 2, false),
            .up = random_weight(a, k->linear, k->width, hidden, in * 2, false),
            .down = random_weight(a, k->linear, hidden, k->width, 1 / sqrtf((float)k->width), false),
        };
}

static inline void random_model_free(random_model *m)
{
    arena_free(&m->memory);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

#ifndef RANDOM_MODEL_ROWS /* a test of long contexts has its own */
#define RANDOM_MODEL_ROWS 256
#define RANDOM_MODEL_SEQUENCES 8
#define RANDOM_MODEL_TABLE 32
#define RANDOM_MODEL_BLOCKS 257
#endif
enum { MAX_ROWS = RANDOM_MODEL_ROWS, MAX_SEQUENCES = RANDOM_MODEL_SEQUENCES, TABLE = RANDOM_MODEL_TABLE /* blocks of a sequence */ };

/* The rows of a step and the arrays that they borrow. */
typedef struct step_rows {
    ops_rows ops;
    int32_t sequence[MAX_ROWS], position[MAX_ROWS], token[MAX_ROWS];
    int64_t slot[MAX_ROWS];
    uint8_t flags[MAX_ROWS];
    int32_t table[MAX_SEQUENCES * TABLE];
} step_rows;

/* Blocks of sequence s lie scattered: logical block b is cache block (b * MAX_SEQUENCES + s) * 5 mod CACHE_BLOCKS, which 5 does not
 * divide. */
enum { CACHE_BLOCKS = RANDOM_MODEL_BLOCKS };

static inline void rows_open(step_rows *r)
{
    memset(r, 0, sizeof *r);
    r->ops = (ops_rows){.sequence = r->sequence,
                        .position = r->position,
                        .token = r->token,
                        .slot = r->slot,
                        .flags = r->flags,
                        .sequences = MAX_SEQUENCES,
                        .block_table = r->table,
                        .block_table_stride = TABLE};
    for (int s = 0; s < MAX_SEQUENCES; s++)
        for (int b = 0; b < TABLE; b++) r->table[s * TABLE + b] = (b * MAX_SEQUENCES + s) * 5 % CACHE_BLOCKS;
}

static inline int32_t token_at(int sequence, int position, int vocab)
{
    uint32_t x = (uint32_t)sequence * 7919u + (uint32_t)position * 104729u + 12345u;
    x ^= x >> 13, x *= 0x5bd1e995u, x ^= x >> 15;
    return (int32_t)(x % (uint32_t)vocab);
}

/* Positions [first, first + count) of a sequence; sequence -1: padding. All rows want logits. */
static inline void rows_add(step_rows *r, int sequence, int first, int count, int vocab)
{
    for (int i = 0; i < count; i++) {
        int t = r->ops.count++, p = first + i;
        assert_true(t < MAX_ROWS);
        r->sequence[t] = sequence, r->position[t] = p;
        r->token[t] = sequence < 0 ? -1 : token_at(sequence, p, vocab);
        r->slot[t] =
            sequence < 0 ? -1 : (int64_t)r->table[sequence * TABLE + p / CACHE_BLOCK] * CACHE_BLOCK + p % CACHE_BLOCK;
        r->flags[t] = sequence < 0 ? 0 : ROW_LOGITS;
    }
}

/* One backend with a cache and a step. */
typedef struct bench {
    const hy_ops *ops;
    ops_backend *backend;
    ops_cache *cache;
    ops_step *step;
    cache_layout layout;
    threads *pool;
    const ops_model *model;
} bench;

static inline void check(hy_status status, const hy_error *err)
{
    if (status != HY_OK) fail_msg("%s: %s", hy_status_name(status), err->message);
}

static inline void bench_open(bench *b, const hy_ops *ops, const random_model *m, cache_format main, cache_format index,
                              ops_options options, int workers)
{
    hy_error err = {0};
    *b = (bench){.ops = ops, .model = &m->ops};
    check(threads_open(workers, &b->pool, &err), &err);
    options.pool = b->pool;
    check(cache_layout_make(&m->ops, main, index, &b->layout, &err), &err);
    check(ops->open(&m->ops, &options, &b->backend, &err), &err);
    check(ops->cache_open(b->backend, &b->layout, CACHE_BLOCKS, &b->cache, &err), &err);
    ops_limits limits = {.rows = MAX_ROWS, .logit_rows = MAX_ROWS, .positions = TABLE * CACHE_BLOCK};
    if (m->ops.drafter)
        limits.drafts = MAX_SEQUENCES, limits.draft_rows = m->ops.drafter->block, limits.draft_laws = true;
    check(ops->step_open(b->backend, &limits, &b->step, &err), &err);
}

static inline void bench_close(bench *b)
{
    b->ops->step_close(b->step);
    b->ops->cache_close(b->cache);
    b->ops->close(b->backend);
    cache_layout_free(&b->layout);
    threads_close(b->pool);
}

/* Every byte of the cache. */
static inline void bench_fill(const bench *b, int byte)
{
    void *row = malloc(b->layout.row_bytes);
    memset(row, byte, b->layout.row_bytes);
    for (int32_t block = 0; block < CACHE_BLOCKS; block++)
        b->ops->cache_write(b->cache, block, 0, b->layout.row_bytes, row);
    free(row);
}

/* All layers, with a drafter its context, the head, and the end of a step. */
static inline void bench_layers(const bench *b)
{
    const hy_ops *ops = b->ops;
    const ops_drafter *d = b->model->drafter;
    for (int i = 0; i < b->model->layers; i++) {
        const ops_layer *l = &b->model->layer[i];
        ops->attend_in(b->step, i);
        if (l->sparse) ops->index_select(b->step, i);
        ops->attend(b->step, i);
        ops->attend_out(b->step, i);
        if (l->moe)
            ops->route(b->step, i), ops->experts(b->step, i);
        else
            ops->feed_dense(b->step, i);
        for (int j = 0; d && j < d->tap_count; j++)
            if (d->tap[j] == i) ops->draft_tap(b->step, j);
    }
    if (d) ops->draft_context(b->step);
    ops->head(b->step);
    hy_error err = {0};
    check(ops->finish(b->step, &err), &err);
}

/* The whole network over the rows; logits [R, vocab] if not NULL. */
static inline void bench_forward(const bench *b, const step_rows *rows, float *logits)
{
    const hy_ops *ops = b->ops;
    ops->begin(b->step, b->cache, &rows->ops);
    ops->embed(b->step);
    bench_layers(b);
    int32_t n = 0;
    for (int32_t t = 0; t < rows->ops.count; t++) n += (rows->flags[t] & ROW_LOGITS) != 0;
    if (logits) ops->tensor_read(b->step, OPS_LOGITS, 0, n, logits);
}

static inline float *bench_read(const bench *b, ops_tensor which, int32_t rows, size_t columns)
{
    float *out = malloc((size_t)rows * columns * sizeof *out);
    b->ops->tensor_read(b->step, which, 0, rows, out);
    return out;
}

/* The largest over rows of max|a - b| / max|a|; a NaN in one that the other lacks is infinite. */
static inline float row_error(const float *a, const float *b, int32_t rows, size_t columns)
{
    float worst = 0;
    for (int32_t r = 0; r < rows; r++) {
        float top = 0, difference = 0;
        for (size_t i = 0; i < columns; i++) {
            float x = a[(size_t)r * columns + i], y = b[(size_t)r * columns + i];
            if (x == y || (isnan(x) && isnan(y))) {
                if (isfinite(x)) top = fmaxf(top, fabsf(x));
                continue;
            }
            if (!isfinite(x) || !isfinite(y)) return INFINITY;
            top = fmaxf(top, fabsf(x));
            difference = fmaxf(difference, fabsf(x - y));
        }
        if (difference > 0) worst = fmaxf(worst, difference / top);
    }
    return worst;
}

#endif
