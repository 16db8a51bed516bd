#include "cli/bench_error.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/bench_rows.h"
#include "cli/bench_synthetic.h"

enum { ROWS = 5 };

typedef struct side {
    const hy_ops *ops;
    ops_backend *backend;
    ops_cache *cache;
    ops_step *step;
} side;

typedef struct comparing {
    const ops_model *model;
    cache_layout layout;
    bench_rows rows;
    side reference, other;
    int32_t max_blocks;
    size_t widest;                      /* floats of a row of the widest tensor */
    float *a, *b, *before_a, *before_b; /* [ROWS, widest] of the two sides */
    bench_errors *out;
    double squares[BENCH_OPS], differences[BENCH_OPS];
} comparing;

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* One KV head with its query heads, and narrow outputs. */
static ops_model narrow(const ops_model *shape)
{
    ops_model m = *shape;
    m.heads = shape->heads / shape->kv_heads, m.kv_heads = 1;
    if (m.index_heads) m.index_heads = 1;
    m.experts = least(8, shape->experts), m.experts_per_token = least(m.experts, shape->experts_per_token);
    m.expert_width = least(256, shape->expert_width), m.shared_width = least(256, shape->shared_width);
    m.dense_width = least(256, shape->dense_width), m.vocab = least(512, shape->vocab);
    return m;
}

static hy_status open_side(side *s, const hy_ops *ops, comparing *c, const ops_options *options, int32_t positions,
                           hy_error *err)
{
    s->ops = ops;
    ops_limits limits = {.rows = ROWS, .logit_rows = ROWS, .positions = positions};
    hy_status status = ops->open(c->model, options, &s->backend, err);
    if (status == HY_OK) status = ops->cache_open(s->backend, &c->layout, c->rows.blocks, &s->cache, err);
    if (status == HY_OK) status = ops->step_open(s->backend, &limits, &s->step, err);
    if (status == HY_OK) status = bench_rows_fill(ops, s->cache, &c->layout, &c->rows, 1, positions, false, NULL, err);
    return status;
}

static void close_side(side *s)
{
    if (s->step) s->ops->step_close(s->step);
    if (s->cache) s->ops->cache_close(s->cache);
    if (s->backend) s->ops->close(s->backend);
}

/* ---- Comparing ----------------------------------------------------------------------------------------------------
 */

static void read_both(comparing *c, ops_tensor which, float *a, float *b)
{
    c->reference.ops->tensor_read(c->reference.step, which, 0, ROWS, a);
    c->other.ops->tensor_read(c->other.step, which, 0, ROWS, b);
}

/* The reference goes on with what the other side has: that is rounded to bf16 in places, which fp32 holds exactly. */
static void hand_over(comparing *c, ops_tensor which)
{
    c->other.ops->tensor_read(c->other.step, which, 0, ROWS, c->b);
    c->reference.ops->tensor_write(c->reference.step, which, 0, ROWS, c->b);
}

static void add(comparing *c, bench_op op, double want, double got)
{
    c->squares[op] += want * want;
    c->differences[op] += (want - got) * (want - got);
}

static void compare(comparing *c, bench_op op, ops_tensor which, size_t columns)
{
    read_both(c, which, c->a, c->b);
    for (size_t i = 0; i < ROWS * columns; i++)
        if (isfinite(c->a[i])) add(c, op, c->a[i], c->b[i]); /* scores of blocks that are not visible are not */
    hand_over(c, which);
}

/* What an operation added to the residual stream; the stream before it is in before_a and before_b. */
static void compare_added(comparing *c, bench_op op)
{
    size_t n = ROWS * (size_t)c->model->hidden;
    read_both(c, OPS_X, c->a, c->b);
    for (size_t i = 0; i < n; i++) add(c, op, (double)c->a[i] - c->before_a[i], (double)c->b[i] - c->before_b[i]);
    hand_over(c, OPS_X);
}

static int64_t compare_lists(comparing *c, ops_tensor which, size_t columns)
{
    const int32_t *a = (const int32_t *)(const void *)c->a, *b = (const int32_t *)(const void *)c->b;
    int64_t differ = 0;
    read_both(c, which, c->a, c->b);
    for (size_t i = 0; i < ROWS * columns; i++) differ += a[i] != b[i];
    hand_over(c, which);
    return differ;
}

/* Weights of rows that chose the same experts. */
static void compare_routes(comparing *c)
{
    size_t n = (size_t)c->model->experts_per_token;
    read_both(c, OPS_ROUTES, c->before_a, c->before_b);
    read_both(c, OPS_ROUTE_WEIGHTS, c->a, c->b);
    for (size_t t = 0; t < ROWS; t++) {
        if (memcmp(c->before_a + t * n, c->before_b + t * n, n * sizeof(int32_t)) != 0) continue;
        for (size_t i = t * n; i < (t + 1) * n; i++) add(c, BENCH_ROUTE, c->a[i], c->b[i]);
    }
    c->out->other_routes += compare_lists(c, OPS_ROUTES, n);
    hand_over(c, OPS_H);
    hand_over(c, OPS_ROUTE_WEIGHTS);
}

static void run_both(comparing *c, int layer, void (*reference)(ops_step *, int), void (*other)(ops_step *, int))
{
    reference(c->reference.step, layer);
    other(c->other.step, layer);
}

static void compare_layer(comparing *c, int layer)
{
    const ops_model *m = c->model;
    const hy_ops *r = c->reference.ops, *o = c->other.ops;
    size_t heads = (size_t)m->heads * (size_t)m->head_dim, index = (size_t)m->index_heads * (size_t)m->index_dim;
    run_both(c, layer, r->attend_in, o->attend_in);
    compare(c, BENCH_ATTEND_IN, OPS_Q, heads);
    if (m->layer[layer].sparse) {
        compare(c, BENCH_ATTEND_IN, OPS_INDEX_Q, index);
        run_both(c, layer, r->index_select, o->index_select);
        compare(c, BENCH_INDEX, OPS_SCORES, (size_t)m->index_heads * (size_t)c->max_blocks);
        c->out->other_blocks += compare_lists(c, OPS_BLOCKS, (size_t)m->index_heads * (size_t)m->index_top);
    }
    run_both(c, layer, r->attend, o->attend);
    compare(c, BENCH_ATTEND, OPS_ATTENTION, heads);
    read_both(c, OPS_X, c->before_a, c->before_b);
    run_both(c, layer, r->attend_out, o->attend_out);
    compare_added(c, BENCH_ATTEND_OUT);
    bool moe = m->layer[layer].moe;
    if (moe) {
        run_both(c, layer, r->route, o->route);
        compare_routes(c);
    }
    read_both(c, OPS_X, c->before_a, c->before_b);
    if (moe)
        run_both(c, layer, r->experts, o->experts);
    else
        run_both(c, layer, r->feed_dense, o->feed_dense);
    compare_added(c, moe ? BENCH_EXPERTS : BENCH_FEED_DENSE);
}

static hy_status compare_step(comparing *c, hy_error *err)
{
    side *r = &c->reference, *o = &c->other;
    r->ops->begin(r->step, r->cache, &c->rows.ops), o->ops->begin(o->step, o->cache, &c->rows.ops);
    r->ops->embed(r->step), o->ops->embed(o->step);
    compare(c, BENCH_EMBED, OPS_X, (size_t)c->model->hidden);
    for (int l = 0; l < c->model->layers; l++) compare_layer(c, l);
    r->ops->head(r->step), o->ops->head(o->step);
    compare(c, BENCH_HEAD, OPS_LOGITS, (size_t)c->model->vocab);
    hy_status status = r->ops->finish(r->step, err);
    return status == HY_OK ? o->ops->finish(o->step, err) : status;
}

static hy_status open_scratch(comparing *c, hy_error *err)
{
    const ops_model *m = c->model;
    size_t widths[] = {(size_t)m->hidden,
                       (size_t)m->vocab,
                       (size_t)m->heads * (size_t)m->head_dim,
                       (size_t)m->index_heads * (size_t)m->index_dim,
                       (size_t)c->max_blocks,
                       (size_t)m->index_heads * (size_t)m->index_top,
                       (size_t)m->experts_per_token};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i] > c->widest) c->widest = widths[i];
    float **arrays[] = {&c->a, &c->b, &c->before_a, &c->before_b};
    for (int i = 0; i < 4; i++) {
        *arrays[i] = memory_zeroed(ROWS * c->widest, sizeof(float));
        if (!*arrays[i]) return error_memory(err, "the comparison", ROWS * c->widest * sizeof(float));
    }
    return HY_OK;
}

hy_status bench_errors_measure(const ops_model *shape, const hy_ops *ops, moe_activation activation, threads *pool,
                               bench_errors *out, hy_error *err)
{
    ops_model small = narrow(shape);
    /* Three blocks more than can be selected, the last one begun by these rows. */
    int32_t context = (small.index_top + 3) * CACHE_BLOCK - 2, positions = context + ROWS;
    bench_synthetic weights = {0};
    comparing c = {.out = out, .max_blocks = (positions + CACHE_BLOCK - 1) / CACHE_BLOCK};
    ops_options options = {.activation = activation, .pool = pool};
    *out = (bench_errors){0};
    hy_status status = bench_synthetic_open(&small, 1, 1, &weights, err);
    c.model = &weights.model;
    options.shard = (ops_shard){.ranks = 1, .head_end = small.kv_heads, .expert_end = small.experts};
    if (status == HY_OK) status = cache_layout_make(c.model, CACHE_NVFP4, CACHE_NVFP4, &c.layout, err);
    if (status == HY_OK) status = bench_rows_open(ROWS, 1, positions, &c.rows, err);
    if (status == HY_OK) status = open_scratch(&c, err);
    if (status == HY_OK) bench_rows_set(&c.rows, 1, context, ROWS, true, small.vocab, 7);
    for (int t = 0; t < ROWS && status == HY_OK; t++) c.rows.flags[t] = ROW_LOGITS;
    if (status == HY_OK) status = open_side(&c.reference, &ops_reference, &c, &options, positions, err);
    if (status == HY_OK) status = open_side(&c.other, ops, &c, &options, positions, err);
    if (status == HY_OK) status = compare_step(&c, err);
    for (int i = 0; i < BENCH_OPS; i++) out->op[i] = c.squares[i] > 0 ? sqrt(c.differences[i] / c.squares[i]) : NAN;
    close_side(&c.other);
    close_side(&c.reference);
    void *arrays[] = {c.a, c.b, c.before_a, c.before_b};
    for (int i = 0; i < 4; i++) memory_free(arrays[i]);
    bench_rows_close(&c.rows);
    cache_layout_free(&c.layout);
    bench_synthetic_close(&weights);
    return status;
}
