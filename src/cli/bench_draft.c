#include "cli/bench_draft.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench_synthetic.h"
#include "cli/cli.h"

enum { NARROW = 64 };

/* A target of one layer with dense attention, a drafter, and what they run on. */
typedef struct network {
    bench_synthetic weights;
    cache_layout layout;
    bench_rows rows;
    bench_setup setup;
    ops_backend *backend;
} network;

ops_drafter bench_draft_drafter(const draft_config *d, const config *target)
{
    ops_drafter shape = {.layers = d->layers,
                         .heads = d->heads,
                         .kv_heads = d->kv_heads,
                         .head_dim = d->head_dim,
                         .rotary_dim = d->rotary_dim ? d->rotary_dim : target->rotary_dim,
                         .width = NARROW,
                         .rope_theta = d->rope_theta > 0 ? d->rope_theta : target->rope_theta,
                         .norm_eps = d->norm_eps > 0 ? d->norm_eps : target->norm_eps,
                         .swiglu_alpha = target->swiglu_alpha,
                         .swiglu_limit = target->swiglu_limit,
                         .block = d->block,
                         .window = d->window,
                         .tap_count = d->tap_count,
                         .cache = CACHE_FP8};
    return shape; /* every tap is layer 0, the only one */
}

ops_model bench_draft_target(const config *target, int heads, int kv_heads, int head_dim)
{
    ops_model shape = model_shape(target);
    shape.heads = heads, shape.kv_heads = kv_heads, shape.head_dim = head_dim;
    if (shape.rotary_dim > head_dim) shape.rotary_dim = head_dim;
    shape.index_heads = shape.shared_width = 0;
    shape.dense_width = shape.vocab = NARROW;
    return shape;
}

static hy_status open_network(const bench_draft *b, const ops_model *target, const ops_drafter *drafter, int32_t rows,
                              int32_t positions, network *n, hy_error *err)
{
    ops_model *m = &n->weights.model;
    uint64_t hidden = (uint64_t)target->hidden, q = (uint64_t)drafter->heads * (uint64_t)drafter->head_dim;
    uint64_t weights = 2 * (uint64_t)drafter->tap_count * hidden * hidden +
                       (uint64_t)drafter->layers * hidden * 4 * (q + NARROW) + bench_synthetic_bytes(target, 1, 0);
    hy_status status = bench_synthetic_fits(weights, 0, b->read->bytes, err);
    if (status == HY_OK) status = bench_synthetic_open(target, 1, 0, &n->weights, err);
    if (status == HY_OK) status = bench_synthetic_draft(&n->weights, drafter, err);
    if (status != HY_OK) return status;
    ops_options options = {.pool = b->pool, .on_progress = cli_progress};
    options.shard = (ops_shard){.ranks = 1, .head_end = m->kv_heads, .expert_end = m->experts};
    n->setup = (bench_setup){.ops = b->ops, .pool = b->pool, .read = b->read};
    n->setup.shape = (bench_shape){m, CACHE_FP8, CACHE_FP8, READBACK_EXACT, MOE_ACTIVATION_NONE};
    ops_limits limits = {
        .rows = rows, .logit_rows = 1, .positions = positions, .drafts = 1, .draft_rows = drafter->block};
    status = cache_layout_make(m, CACHE_FP8, CACHE_FP8, &n->layout, err);
    if (status == HY_OK) status = b->ops->open(m, &options, &n->backend, err);
    if (status == HY_OK) status = bench_rows_open(rows, 1, positions, &n->rows, err);
    if (status == HY_OK) status = b->ops->cache_open(n->backend, &n->layout, n->rows.blocks, &n->setup.cache, err);
    if (status == HY_OK) status = b->ops->step_open(n->backend, &limits, &n->setup.step, err);
    if (status == HY_OK)
        status = bench_rows_fill(b->ops, n->setup.cache, &n->layout, &n->rows, 1, positions, false, cli_progress, err);
    return status;
}

static void close_network(network *n)
{
    const hy_ops *ops = n->setup.ops;
    if (n->setup.step) ops->step_close(n->setup.step);
    if (n->setup.cache) ops->cache_close(n->setup.cache);
    bench_rows_close(&n->rows);
    if (n->backend) ops->close(n->backend);
    cache_layout_free(&n->layout);
    bench_synthetic_close(&n->weights);
    *n = (network){0};
}

/* ---- One line -----------------------------------------------------------------------------------------------------
 */

typedef struct line {
    const char *name, *kind, *what; /* what: in the progress */
    int32_t rows;
    int64_t context;
    bench_cost cost;
} line;

/* Seconds of one run, or below 0: an error. */
typedef double (*run_fn)(const bench_draft *b, network *n, const line *l, hy_error *err);

/* Everything that was asked for is done. */
static void settle(const network *n)
{
    float *x = memory_alloc((size_t)n->weights.model.hidden, sizeof *x);
    if (x) n->setup.ops->tensor_read(n->setup.step, OPS_X, 0, 1, x);
    memory_free(x);
}

static hy_status measure(const bench_draft *b, network *n, const line *l, run_fn run, hy_error *err)
{
    bench_result r = {.rows = l->rows};
    bench_op_result *op = &r.op[BENCH_ATTEND];
    double *values = memory_zeroed(3 * (size_t)b->runs, sizeof *values);
    hy_status status = values ? HY_OK : error_memory(err, "the runs", (size_t)b->runs * 24);
    if (status == HY_OK && run(b, n, l, err) < 0) status = err->status; /* warms up */
    for (int i = 0; i < b->runs && status == HY_OK; i++) {
        r.moment = bench_moment_take(&n->setup);
        double seconds = run(b, n, l, err), bound = bench_cost_bound(&l->cost, r.moment.read, r.moment.peaks);
        if (seconds < 0)
            status = err->status;
        else if (!cli_progress(NULL, l->what, (uint64_t)i + 1, (uint64_t)b->runs, "runs"))
            status = error_set(err, HY_CANCELLED, "the bench was stopped");
        values[i] = seconds, values[b->runs + i] = bound, values[2 * b->runs + i] = bound / seconds;
    }
    if (status == HY_OK) {
        op->calls = 1, op->cost = l->cost, op->seconds = bench_median(values, b->runs);
        op->bound = bench_median(values + b->runs, b->runs), op->fraction = bench_median(values + 2 * b->runs, b->runs);
        op->by_operations =
            bench_cost_peak_seconds(&op->cost, r.moment.peaks) > bench_cost_read_seconds(&op->cost, r.moment.read);
        kernel_report_add(b->report, l->name, l->kind, l->rows, l->context, &r, BENCH_ATTEND, NAN);
    }
    memory_free(values);
    return status;
}

/* ---- Context ------------------------------------------------------------------------------------------------------
 */

static double run_context(const bench_draft *b, network *n, const line *l, hy_error *err)
{
    ops_step *step = n->setup.step;
    bench_rows_set(&n->rows, 1, 0, l->rows, false, n->weights.model.vocab, 3);
    b->ops->begin(step, n->setup.cache, &n->rows.ops);
    b->ops->embed(step);
    for (int tap = 0; tap < n->weights.model.drafter->tap_count; tap++) b->ops->draft_tap(step, tap);
    settle(n);
    double start = clock_seconds();
    b->ops->draft_context(step);
    settle(n);
    double seconds = clock_seconds() - start;
    return b->ops->finish(step, err) == HY_OK ? seconds : -1;
}

static hy_status time_context(const bench_draft *b, const draft_config *d, hy_error *err)
{
    network n = {0};
    ops_drafter shape = bench_draft_drafter(d, b->target);
    int32_t most = 1;
    for (int i = 0; i < b->counts; i++) most = b->count[i] > most ? b->count[i] : most;
    shape.heads = shape.kv_heads; /* queries have no part in it */
    ops_model target = bench_draft_target(b->target, 1, 1, b->target->head_dim);
    hy_status status = open_network(b, &target, &shape, most, most, &n, err);
    for (int i = 0; i < b->counts && status == HY_OK; i++) {
        line l = {"draft_context", "bf16 MXFP8", "draft context", b->count[i], 0, {{0}, {0}}};
        double fc = (double)d->tap_count * target.hidden * target.hidden;
        double kv = 2.0 * d->layers * d->kv_heads * d->head_dim * target.hidden;
        l.cost.bytes[BYTES_LINEAR] = 2 * fc + kv * 33 / 32;
        l.cost.operations[PEAK_BF16] = 2 * (fc + kv) * l.rows;
        status = measure(b, &n, &l, run_context, err);
    }
    close_network(&n);
    return status;
}

/* ---- Attention ----------------------------------------------------------------------------------------------------
 */

/* A round behind position `at`. */
static double run_round(const bench_draft *b, network *n, int32_t rows, int32_t at, hy_error *err)
{
    ops_sampled after = {.id = 1};
    int32_t one = 1, drafts[DRAFT_MAX_BLOCK], count;
    ops_draft draft = {.after = &after,
                       .after_count = &one,
                       .position = at,
                       .rows = rows,
                       .end = INT32_MAX,
                       .method = DRAFT_GREEDY,
                       .draft = drafts,
                       .count = &count};
    bench_rows_set(&n->rows, 1, 0, 1, false, n->weights.model.vocab, 3);
    b->ops->begin(n->setup.step, n->setup.cache, &n->rows.ops);
    settle(n);
    double start = clock_seconds();
    b->ops->draft(n->setup.step, &draft, 1);
    settle(n);
    double seconds = clock_seconds() - start;
    return b->ops->finish(n->setup.step, err) == HY_OK ? seconds : -1;
}

static double run_attention(const bench_draft *b, network *n, const line *l, hy_error *err)
{
    double with = run_round(b, n, l->rows, (int32_t)l->context, err), without = run_round(b, n, l->rows, 0, err);
    if (with < 0 || without < 0) return -1;
    /* Not above it only when the machine was elsewhere meanwhile. */
    return (with > without ? with - without : with) / n->weights.model.drafter->layers;
}

static hy_status time_attention(const bench_draft *b, const draft_config *d, hy_error *err)
{
    network n = {0};
    ops_drafter shape = bench_draft_drafter(d, b->target);
    int32_t window = d->window, g = d->block, positions = window + g;
    ops_model target = bench_draft_target(b->target, d->heads, d->kv_heads, d->head_dim);
    target.hidden = NARROW;
    if (target.max_positions < positions) target.max_positions = positions;
    hy_status status = open_network(b, &target, &shape, g, positions, &n, err);
    line l = {"draft attention", "fp8", "draft attention", g, window, {{0}, {0}}};
    double keys = 0; /* of the context, summed over the rows */
    for (int k = 0; k < g; k++) keys += window - 1 - k;
    l.cost.bytes[BYTES_CACHE] = 2.0 * (window - 1) * d->kv_heads * d->head_dim;
    l.cost.operations[PEAK_BF16] = 4.0 * keys * d->heads * d->head_dim;
    if (status == HY_OK) status = measure(b, &n, &l, run_attention, err);
    if (status == HY_OK) {
        bench_result r;
        status = bench_step_measure(&n.setup, &n.rows, 1, window, g, false, b->runs, cli_progress, &r, err);
        if (status == HY_OK) kernel_report_add(b->report, "attend dense", "fp8", g, window, &r, BENCH_ATTEND, NAN);
    }
    close_network(&n);
    return status;
}

hy_status bench_draft_run(const bench_draft *b, hy_error *err)
{
    draft_config d = config_drafter(b->target);
    hy_status status = time_context(b, &d, err);
    return status == HY_OK ? time_attention(b, &d, err) : status;
}
