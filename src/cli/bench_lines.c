#include "cli/bench_lines.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/cli.h"

int64_t lines_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- Opening ------------------------------------------------------------------------------------------------------
 */

hy_status lines_open(const bench_lines *b, const ops_model *shape, const ops_drafter *drafter, int dense, int moe,
                     lines_net *n, hy_error *err)
{
    *n = (lines_net){.b = b};
    const ops_model *m = &n->weights.model;
    ops_options options = {.activation = MOE_ACTIVATION_NVFP4,
                           .pool = b->pool,
                           .gpu_wgmma_rows = b->wgmma_rows,
                           .gpu_apart = b->apart,
                           .on_progress = cli_progress};
    n->shape = (bench_shape){m, CACHE_NVFP4, CACHE_NVFP4, READBACK_EXACT, MOE_ACTIVATION_NVFP4};
    hy_status status = bench_synthetic_open_alike(shape, dense, moe, &n->weights, err);
    if (status == HY_OK && drafter) status = bench_synthetic_draft(&n->weights, drafter, err);
    options.shard = (ops_shard){.ranks = 1, .head_end = m->kv_heads, .expert_end = m->experts};
    if (status == HY_OK) status = cache_layout_make(m, CACHE_NVFP4, CACHE_NVFP4, &n->layout, err);
    if (status == HY_OK) status = b->ops->open(m, &options, &n->backend, err);
    if (status == HY_OK) status = bench_gpu_open(b->ops, n->backend, b->read_bytes, &n->gpu, err);
    return status;
}

static void close_step(lines_net *n)
{
    if (n->step) n->b->ops->step_close(n->step);
    if (n->cache) n->b->ops->cache_close(n->cache);
    bench_rows_close(&n->rows);
    n->step = NULL, n->cache = NULL;
}

hy_status lines_step(lines_net *n, const ops_limits *limits, int32_t sequences, int32_t blocks, hy_error *err)
{
    const hy_ops *ops = n->b->ops;
    close_step(n);
    hy_status status = bench_rows_open(limits->rows, sequences, limits->positions, &n->rows, err);
    n->blocks = blocks ? blocks : sequences * n->rows.blocks;
    if (status == HY_OK) status = ops->cache_open(n->backend, &n->layout, n->blocks, &n->cache, err);
    if (status == HY_OK) status = ops->step_open(n->backend, limits, &n->step, err);
    return status;
}

void lines_close(lines_net *n)
{
    if (!n->b) return;
    close_step(n);
    bench_gpu_close(n->gpu);
    if (n->backend) n->b->ops->close(n->backend);
    cache_layout_free(&n->layout);
    bench_synthetic_close(&n->weights);
    *n = (lines_net){0};
}

/* ---- Rows and cache ------------------------------------------------------------------------------------------------
 */

hy_status lines_fill(lines_net *n, int32_t own, bool index_only, hy_error *err)
{
    bench_rows rows = {0};
    own = (int32_t)lines_least(own, n->blocks);
    hy_status status = bench_rows_open(1, 1, own * CACHE_BLOCK, &rows, err);
    if (status == HY_OK)
        status = bench_rows_fill(n->b->ops, n->cache, &n->layout, &rows, 1, own * CACHE_BLOCK, index_only, cli_progress,
                                 err);
    for (int32_t i = own; i < n->blocks && status == HY_OK; i++) n->b->ops->cache_copy(n->cache, i % own, i);
    bench_rows_close(&rows);
    return status;
}

void lines_rows(lines_net *n, int32_t sequences, int32_t each, int64_t end, int32_t period, bool logits)
{
    bench_rows *r = &n->rows;
    bench_rows_set(r, sequences, 0, sequences, logits, n->weights.model.vocab, 7); /* what is fixed of rows.ops */
    uint64_t state = 11;
    for (int32_t s = 0; s < sequences; s++)
        for (int32_t i = 0; i < r->blocks; i++)
            r->table[(int64_t)s * r->blocks + i] = period ? s * period + i % period : s * r->blocks + i;
    for (int32_t t = 0; t < sequences * each; t++) {
        int32_t s = t / each, position = (int32_t)(end - each + t % each);
        int32_t block = r->table[(int64_t)s * r->blocks + position / CACHE_BLOCK];
        r->sequence[t] = s, r->position[t] = position;
        r->token[t] = (int32_t)(bench_random(&state) % (uint64_t)n->weights.model.vocab);
        r->slot[t] = (int64_t)block * CACHE_BLOCK + position % CACHE_BLOCK;
        r->flags[t] = logits ? ROW_LOGITS : 0;
    }
    r->ops.count = sequences * each;
}

hy_status lines_random(lines_net *n, ops_tensor which, size_t columns, hy_error *err)
{
    enum { PIECE = 256 }; /* rows */
    int32_t rows = n->rows.ops.count;
    uint64_t state = (uint64_t)which + 1;
    float *x = memory_alloc(PIECE * columns, sizeof *x);
    if (!x) return error_memory(err, "random rows", PIECE * columns * sizeof *x);
    for (int32_t first = 0; first < rows; first += PIECE) {
        int32_t count = rows - first < PIECE ? rows - first : PIECE;
        for (size_t i = 0; i < (size_t)count * columns; i++)
            x[i] = (float)((int)(bench_random(&state) & 0xFF) - 128) / 74; /* uniform, exact in bf16 once rounded */
        n->b->ops->tensor_write(n->step, which, first, count, x);
    }
    memory_free(x);
    return HY_OK;
}

hy_status lines_finish(lines_net *n, hy_status status, hy_error *err)
{
    hy_error of_step = {0};
    hy_status ended = n->b->ops->finish(n->step, &of_step);
    if (status == HY_OK && ended != HY_OK) *err = of_step;
    return status == HY_OK ? ended : status;
}

/* ---- Measuring -----------------------------------------------------------------------------------------------------
 */

hy_status lines_measure(lines_net *n, const lines_line *l, hy_error *err)
{
    const bench_lines *b = n->b;
    int runs = b->runs;
    double *seconds = memory_zeroed(3 * (size_t)runs, sizeof *seconds);
    if (!seconds) return error_memory(err, "the runs", (size_t)runs * 24);
    bench_gpu_time took = {0};
    bench_moment moment = {0};
    hy_status status = HY_OK;
    for (int i = 0; i < runs && status == HY_OK; i++) {
        status = bench_gpu_moment(n->gpu, &moment, err);
        if (status == HY_OK) status = bench_gpu_measure(n->gpu, l->work, l->arg, l->kernels, &took, err);
        seconds[i] = took.seconds, seconds[runs + i] = took.read, seconds[2 * runs + i] = took.host;
        if (status == HY_OK && !cli_progress(NULL, l->name, (uint64_t)i + 1, (uint64_t)runs, "runs"))
            status = error_set(err, HY_CANCELLED, "the bench was stopped");
    }
    if (status == HY_OK) {
        took.seconds = bench_median(seconds, runs), took.read = bench_median(seconds + runs, runs);
        took.host = bench_median(seconds + 2 * runs, runs);
        b->report->gpu = n->gpu;
        kernel_report_gpu(b->report, l->name, l->rows, l->context, &l->cost, l->calls, &took, &moment);
    }
    memory_free(seconds);
    return status;
}
