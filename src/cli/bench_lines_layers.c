/* Whole layers and what comes behind them: moe, qkv, head, sampling and draft of bench_lines.h. */
#include "cli/bench_lines.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/bench_draft.h"

enum { NARROW = 64, LAYERS = 2 /* of real size: a line's record goes through both */, MOE_ROWS = 4096, DRAFTS = 32 };

/* One KV head of one query head, for networks whose attention is not looked at. */
static void without_attention(ops_model *shape)
{
    shape->heads = shape->kv_heads = 1, shape->index_heads = 0;
    if (shape->rotary_dim > shape->head_dim) shape->rotary_dim = shape->head_dim;
}

/* ---- moe -----------------------------------------------------------------------------------------------------------
 */

static void feed(void *arg)
{
    const lines_net *n = arg;
    for (int l = 0; l < LAYERS; l++) n->b->ops->route(n->step, l), n->b->ops->experts(n->step, l);
}

/* Uniform random routes [LAYERS, rows, per_token], ascending in a row. Distinct experts of a layer, on average. */
static double draw_routes(const ops_model *m, int32_t rows, int32_t *routes, uint8_t *seen)
{
    int64_t distinct = 0;
    uint64_t state = 23;
    for (int l = 0; l < LAYERS; l++) {
        int32_t *of_layer = routes + (int64_t)l * rows * m->experts_per_token;
        for (int32_t t = 0; t < rows; t++) {
            int32_t *list = of_layer + (int64_t)t * m->experts_per_token;
            for (int32_t count = 0; count < m->experts_per_token;) {
                int32_t e = (int32_t)(bench_random(&state) % (uint64_t)m->experts), at = count;
                bool there = false;
                for (int32_t i = 0; i < count; i++) there = there || list[i] == e;
                if (there) continue;
                for (; at > 0 && list[at - 1] > e; at--) list[at] = list[at - 1];
                list[at] = e, count++;
            }
        }
        distinct += bench_count_experts(m, rows, of_layer, seen);
    }
    return (double)distinct / LAYERS;
}

/* Both operations, with the experts of both layers halved: a layer's may be a half expert more than a whole number. */
static bench_cost moe_cost(const lines_net *n, int32_t rows, double experts)
{
    bench_work work = {.rows = rows, .experts = (int64_t)(2 * experts + 0.5)};
    bench_cost cost = {.bytes = {0}};
    bench_cost_add(&n->shape, BENCH_EXPERTS, 0, &work, &cost);
    cost.bytes[BYTES_EXPERTS] /= 2;
    bench_cost_add(&n->shape, BENCH_ROUTE, 0, &work, &cost);
    return cost;
}

static hy_status moe_line(lines_net *n, int32_t rows, hy_error *err)
{
    const ops_model *m = &n->weights.model;
    size_t lists = (size_t)LAYERS * (size_t)rows * (size_t)m->experts_per_token;
    int32_t *routes = memory_zeroed(lists, sizeof *routes);
    uint8_t *seen = memory_zeroed((size_t)m->experts, 1);
    hy_status status = routes && seen ? HY_OK : error_memory(err, "routes", lists * sizeof *routes);
    if (status == HY_OK) {
        lines_line l = {.rows = rows, .calls = LAYERS, .work = feed, .arg = n};
        double experts = draw_routes(m, rows, routes, seen);
        lines_rows(n, 1, rows, rows, 0, false);
        for (int32_t t = 0; t < rows; t++) n->rows.flags[t] |= ROW_REPLAY_ROUTES;
        n->rows.ops.replay_routes = routes;
        l.cost = moe_cost(n, rows, experts);
        snprintf(l.name, sizeof l.name, "moe layer W4A4, %.4g experts", experts);
        n->b->ops->begin(n->step, n->cache, &n->rows.ops);
        n->b->ops->embed(n->step);
        status = lines_finish(n, lines_measure(n, &l, err), err);
    }
    memory_free(routes);
    memory_free(seen);
    return status;
}

hy_status bench_lines_moe(const bench_lines *b, hy_error *err)
{
    static const int32_t rows[] = {1, 2, 4, 8, 16, 64, MOE_ROWS};
    lines_net n;
    ops_model shape = model_shape(b->target);
    without_attention(&shape);
    shape.vocab = NARROW;
    ops_limits limits = {.rows = (int32_t)lines_least(MOE_ROWS, b->most_rows)};
    limits.positions = limits.rows;
    hy_status status = lines_open(b, &shape, NULL, 0, LAYERS, &n, err);
    if (status == HY_OK) status = lines_step(&n, &limits, 1, 0, err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == HY_OK; i++)
        if (rows[i] <= limits.rows) status = moe_line(&n, rows[i], err);
    lines_close(&n);
    return status;
}

/* ---- qkv -----------------------------------------------------------------------------------------------------------
 */

static void attend_in(void *arg)
{
    const lines_net *n = arg;
    for (int l = 0; l < LAYERS; l++) n->b->ops->attend_in(n->step, l);
}

static hy_status qkv_lines(const bench_lines *b, const char *name, hy_error *err)
{
    static const int32_t rows[] = {512, 1024, 2048, 4096, 8192};
    lines_net n;
    ops_model shape = model_shape(b->target);
    shape.dense_width = shape.vocab = NARROW, shape.shared_width = 0;
    ops_limits limits = {.rows = (int32_t)lines_least(8192, b->most_rows)};
    limits.positions = limits.rows;
    hy_status status = lines_open(b, &shape, NULL, LAYERS, 0, &n, err);
    if (status == HY_OK) status = lines_step(&n, &limits, 1, 0, err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == HY_OK; i++) {
        lines_line l = {.calls = LAYERS, .work = attend_in, .arg = &n};
        snprintf(l.name, sizeof l.name, "%s", name);
        if (i && rows[i] > limits.rows) break;
        l.rows = (int32_t)lines_least(rows[i], limits.rows);
        bench_work work = {.rows = l.rows};
        bench_cost_add(&n.shape, BENCH_ATTEND_IN, 0, &work, &l.cost);
        lines_rows(&n, 1, l.rows, l.rows, 0, false);
        b->ops->begin(n.step, n.cache, &n.rows.ops);
        b->ops->embed(n.step);
        status = lines_finish(&n, lines_measure(&n, &l, err), err);
    }
    lines_close(&n);
    return status;
}

hy_status bench_lines_qkv(const bench_lines *b, hy_error *err)
{
    bench_lines apart = *b;
    hy_status status = qkv_lines(b, "attend_in MXFP8", err);
    apart.apart = true;
    return status == HY_OK && b->wgmma_rows >= 0 ? qkv_lines(&apart, "attend_in MXFP8, unfused", err) : status;
}

/* ---- head, sampling ------------------------------------------------------------------------------------------------
 */

typedef struct picking {
    lines_net net;
    ops_sample rows[64];
    ops_sampled out[64];
    int32_t count;
} picking;

static void head(void *arg)
{
    const picking *p = arg;
    p->net.b->ops->head(p->net.step);
}

static void sample(void *arg)
{
    picking *p = arg;
    p->net.b->ops->sample(p->net.step, p->rows, p->count, p->out);
}

/* Some rows' logits over the whole vocabulary; hidden is narrow where only what comes behind is timed. */
static hy_status open_head(const bench_lines *b, bool narrow, picking *p, hy_error *err)
{
    ops_model shape = model_shape(b->target);
    without_attention(&shape);
    shape.dense_width = NARROW, shape.shared_width = 0;
    if (narrow) shape.hidden = NARROW;
    int32_t rows = (int32_t)lines_least(64, b->most_rows);
    ops_limits limits = {.rows = rows, .logit_rows = rows, .positions = 1};
    hy_status status = lines_open(b, &shape, NULL, 1, 0, &p->net, err);
    return status == HY_OK ? lines_step(&p->net, &limits, rows, 0, err) : status;
}

static void begin_head(picking *p, int32_t rows)
{
    lines_net *n = &p->net;
    p->count = rows;
    lines_rows(n, rows, 1, 1, 0, true);
    n->b->ops->begin(n->step, n->cache, &n->rows.ops);
    n->b->ops->embed(n->step);
}

static const int32_t head_rows[] = {1, 8, 64};
enum { HEAD_SIZES = 3 };

hy_status bench_lines_head(const bench_lines *b, hy_error *err)
{
    picking *p = memory_zeroed(1, sizeof *p);
    if (!p) return error_memory(err, "a head", sizeof *p);
    hy_status status = open_head(b, false, p, err);
    for (int i = 0; i < HEAD_SIZES && status == HY_OK && head_rows[i] <= b->most_rows; i++) {
        lines_line l = {.name = "head bf16", .rows = head_rows[i], .calls = 1, .work = head, .arg = p};
        bench_work work = {.rows = l.rows, .logit_rows = l.rows};
        bench_cost_add(&p->net.shape, BENCH_HEAD, 0, &work, &l.cost);
        begin_head(p, l.rows);
        status = lines_finish(&p->net, lines_measure(&p->net, &l, err), err);
    }
    lines_close(&p->net);
    memory_free(p);
    return status;
}

/* The kernels' time, and beside it what a call takes the host, with the picks on their way back. */
hy_status bench_lines_sampling(const bench_lines *b, hy_error *err)
{
    static const ops_sample how[] = {
        {.repetition_penalty = 1, .top_p = 1, .logprobs = -1},
        {.repetition_penalty = 1, .top_p = 1, .temperature = 1, .logprobs = -1},
        {.repetition_penalty = 1, .top_p = 0.95f, .top_k = 40, .temperature = 1, .logprobs = -1},
    };
    static const char *const names[] = {"sample greedy", "sample, temperature 1", "sample, top-k 40, top-p 0.95"};
    picking *p = memory_zeroed(1, sizeof *p);
    if (!p) return error_memory(err, "a head", sizeof *p);
    hy_status status = open_head(b, true, p, err);
    for (int i = 0; i < 3 * HEAD_SIZES && status == HY_OK; i++) {
        lines_line l = {
            .rows = head_rows[i % HEAD_SIZES], .calls = 1, .kernels = "hy_sample", .work = sample, .arg = p};
        if (l.rows > b->most_rows) continue;
        snprintf(l.name, sizeof l.name, "%s", names[i / HEAD_SIZES]);
        l.cost.bytes[BYTES_OTHER] = 4.0 * b->target->vocab * l.rows;
        for (int32_t r = 0; r < l.rows; r++) {
            p->rows[r] = how[i / HEAD_SIZES];
            p->rows[r].logit_row = r, p->rows[r].seed = (uint64_t)r + 1;
        }
        begin_head(p, l.rows);
        b->ops->head(p->net.step);
        status = lines_finish(&p->net, lines_measure(&p->net, &l, err), err);
    }
    lines_close(&p->net);
    memory_free(p);
    return status;
}

/* ---- draft ---------------------------------------------------------------------------------------------------------
 */

typedef struct drafting {
    lines_net net;
    ops_draft how[DRAFTS];
    ops_sampled after;
    int32_t one, count[DRAFTS], drafts[DRAFTS][DRAFT_MAX_BLOCK];
    int32_t sequences;
} drafting;

static void draft(void *arg)
{
    drafting *d = arg;
    d->net.b->ops->draft(d->net.step, d->how, d->sequences);
}

static hy_status attention_line(drafting *d, const ops_drafter *shape, int32_t sequences, hy_error *err)
{
    lines_net *n = &d->net;
    int32_t window = shape->window, g = shape->block;
    double keys = 0; /* of the context, over the rows of a sequence */
    lines_line l = {.rows = sequences * g, .context = window, .calls = shape->layers, .work = draft, .arg = d};
    for (int k = 0; k < g; k++) keys += window - 1 - k;
    l.kernels = "hy_draft_attend,hy_draft_fold";
    l.cost.bytes[BYTES_CACHE] = 2.0 * (window - 1) * shape->kv_heads * shape->head_dim * sequences;
    l.cost.operations[PEAK_BF16] = 4.0 * keys * shape->heads * shape->head_dim * sequences;
    snprintf(l.name, sizeof l.name, "draft attention fp8, %d x %d", sequences, g);
    d->sequences = sequences, d->after = (ops_sampled){.id = 1}, d->one = 1;
    for (int32_t i = 0; i < sequences; i++)
        d->how[i] = (ops_draft){.sequence = i,
                                .after = &d->after,
                                .after_count = &d->one,
                                .position = window,
                                .rows = g,
                                .end = INT32_MAX,
                                .method = DRAFT_GREEDY,
                                .draft = d->drafts[i],
                                .count = &d->count[i]};
    lines_rows(n, sequences, 1, window, 0, false);
    n->b->ops->begin(n->step, n->cache, &n->rows.ops);
    return lines_finish(n, lines_measure(n, &l, err), err);
}

static hy_status attention_lines(const bench_lines *b, const draft_config *sizes_of, hy_error *err)
{
    static const int32_t sizes[] = {1, 8, 32};
    drafting *d = memory_zeroed(1, sizeof *d);
    if (!d) return error_memory(err, "drafts", sizeof *d);
    ops_drafter shape = bench_draft_drafter(sizes_of, b->target);
    ops_model target = bench_draft_target(b->target, 1, 1, shape.head_dim);
    shape.window = (int)lines_least(shape.window, b->most_context);
    int32_t most = (int32_t)lines_least(DRAFTS, b->most_rows), positions = shape.window + shape.block;
    target.hidden = NARROW;
    if (target.max_positions < positions) target.max_positions = positions;
    ops_limits limits = {.rows = most, .positions = positions, .drafts = most, .draft_rows = shape.block};
    hy_status status = lines_open(b, &target, &shape, 1, 0, &d->net, err);
    if (status == HY_OK) status = lines_step(&d->net, &limits, most, 0, err);
    if (status == HY_OK) status = lines_fill(&d->net, d->net.rows.blocks, false, err);
    for (int i = 0; i < 3 && status == HY_OK; i++)
        if (sizes[i] <= most) status = attention_line(d, &shape, sizes[i], err);
    lines_close(&d->net);
    memory_free(d);
    return status;
}

static void context(void *arg)
{
    const lines_net *n = arg;
    n->b->ops->draft_context(n->step);
}

static hy_status context_lines(const bench_lines *b, const draft_config *d, hy_error *err)
{
    static const int32_t sizes[] = {1, 8, 64, 512};
    lines_net n;
    ops_drafter shape = bench_draft_drafter(d, b->target);
    shape.heads = shape.kv_heads; /* queries have no part in it */
    ops_model target = bench_draft_target(b->target, 1, 1, b->target->head_dim);
    ops_limits limits = {.rows = (int32_t)lines_least(512, b->most_rows), .drafts = 1, .draft_rows = shape.block};
    limits.positions = limits.rows;
    double fc = (double)d->tap_count * target.hidden * target.hidden;
    double kv = 2.0 * d->layers * d->kv_heads * d->head_dim * target.hidden;
    hy_status status = lines_open(b, &target, &shape, 1, 0, &n, err);
    if (status == HY_OK) status = lines_step(&n, &limits, 1, 0, err);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == HY_OK && sizes[i] <= limits.rows; i++) {
        lines_line l = {.name = "draft_context bf16 MXFP8", .rows = sizes[i], .calls = 1, .work = context, .arg = &n};
        l.cost.bytes[BYTES_LINEAR] = 2 * fc + kv * 33 / 32;
        l.cost.operations[PEAK_BF16] = 2 * (fc + kv) * l.rows;
        lines_rows(&n, 1, l.rows, l.rows, 0, false);
        b->ops->begin(n.step, n.cache, &n.rows.ops);
        b->ops->embed(n.step);
        for (int tap = 0; tap < d->tap_count; tap++) b->ops->draft_tap(n.step, tap);
        status = lines_finish(&n, lines_measure(&n, &l, err), err);
    }
    lines_close(&n);
    return status;
}

hy_status bench_lines_draft(const bench_lines *b, hy_error *err)
{
    draft_config d = config_drafter(b->target);
    if (!b->drafter) return HY_OK;
    hy_status status = attention_lines(b, &d, err);
    return status == HY_OK ? context_lines(b, &d, err) : status;
}
