/*
 * hayate bench kernels: every operation alone, at the sizes of a real geometry, on random weights in memory.
 *
 * Three small networks stand for the whole. One has as many experts as a token takes, so that every row goes through
 * all of them and a product's row count is the step's; its two layers with experts and one without are read in turn,
 * each after a pass that empties the caches. It runs with quantised and with plain expert inputs. One has all experts,
 * but narrow, and serves router, selection and attention. A narrow one with all of K is held to the reference. The
 * drafter has networks of its own (bench_draft.h).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "cli/bench_against.h"
#include "cli/bench_draft.h"
#include "cli/bench_error.h"
#include "cli/bench_kernels_report.h"
#include "cli/bench_lines.h"
#include "cli/bench_synthetic.h"
#include "cli/cli.h"
#include "cli/geometry.h"

/* Contexts where no flag says one, told from the same number given. */
#define CONTEXT_NOT_GIVEN UINT64_MAX
enum { CONTEXT = 16384, INDEX_CONTEXT = 512 << 10, SCORE_ROWS = 4 };
enum { MAX_COUNT = 1024, MOST_ROWS = 8192, VOCAB = 16384, NARROW = 64, MAX_RUNS = 1000, MAX_LAYERS = 64 };

static const char usage[] = "bench kernels [GEOMETRY] [flags]";
static const char about[] =
    "Times every operation alone, at the sizes of GEOMETRY (m3.1-flash by default; another released model by name, a "
    "config.json or a folder that holds one), on random weights in memory: no checkpoint is needed. Beside the time "
    "stand bytes, arithmetic, the bound that binds, the share of it that is reached, and the error against the "
    "reference "
    "backend.\n\n"
    "examples:\n  hayate bench kernels\n  hayate bench kernels models/m3-nano --rows 1,16 --index-context 64K";

typedef struct kernel_bench {
    const char *rows_text, *backend, *against_path;
    const char *only;      /* names of parts; NULL: all */
    int most_rows, layers; /* of the lines of a GPU */
    int threads, runs, wgmma_rows;
    uint64_t context;       /* of attention and selection */
    int64_t most_context;   /* of a GPU's lines */
    uint64_t index_context; /* of the index scores alone */
    uint64_t read_bytes;
    bool json;

    int32_t count[BENCH_MAX_LIST];
    int counts;
    geometry geometry;
    const hy_ops *ops;
    threads *pool;
    bench_read read;
    kernel_report report;
    bench_errors errors;
} kernel_bench;

/* One network with its cache and step. */
typedef struct network {
    bench_synthetic weights;
    cache_layout layout;
    bench_rows rows;
    bench_setup setup;
    ops_backend *backend;
} network;

static int32_t most_rows(const kernel_bench *b)
{
    int32_t most = 1;
    for (int i = 0; i < b->counts; i++) most = b->count[i] > most ? b->count[i] : most;
    return most;
}

/* ---- Networks -----------------------------------------------------------------------------------------------------
 */

static hy_status open_backend(kernel_bench *b, network *n, moe_activation activation, int32_t rows, int32_t sequences,
                              int32_t positions, hy_error *err)
{
    const ops_model *m = &n->weights.model;
    ops_options options = {
        .activation = activation, .pool = b->pool, .gpu_wgmma_rows = b->wgmma_rows, .on_progress = cli_progress};
    options.shard = (ops_shard){.ranks = 1, .head_end = m->kv_heads, .expert_end = m->experts};
    n->setup = (bench_setup){.ops = b->ops, .pool = b->pool, .read = (bench_read *)&b->read};
    n->setup.shape = (bench_shape){m, CACHE_NVFP4, CACHE_NVFP4, READBACK_EXACT, activation};
    hy_status status = cache_layout_make(m, CACHE_NVFP4, CACHE_NVFP4, &n->layout, err);
    if (status == HY_OK) status = b->ops->open(m, &options, &n->backend, err);
    if (status == HY_OK) status = bench_rows_open(rows, sequences, positions, &n->rows, err);
    if (status == HY_OK)
        status = b->ops->cache_open(n->backend, &n->layout, sequences * n->rows.blocks, &n->setup.cache, err);
    ops_limits limits = {.rows = rows, .logit_rows = sequences, .positions = positions};
    if (status == HY_OK) status = b->ops->step_open(n->backend, &limits, &n->setup.step, err);
    if (status == HY_OK) status = bench_gpu_open(b->ops, n->backend, b->read_bytes, &n->setup.gpu, err);
    b->report.gpu = n->setup.gpu;
    return status;
}

static void close_backend(network *n)
{
    const hy_ops *ops = n->setup.ops;
    bench_gpu_close(n->setup.gpu);
    if (n->setup.step) ops->step_close(n->setup.step);
    if (n->setup.cache) ops->cache_close(n->setup.cache);
    bench_rows_close(&n->rows);
    if (n->backend) ops->close(n->backend);
    cache_layout_free(&n->layout);
    n->setup = (bench_setup){0}, n->backend = NULL;
}

/* ---- Projections and experts --------------------------------------------------------------------------------------
 */

static hy_status time_linears(kernel_bench *b, network *n, hy_error *err)
{
    static const struct {
        bench_op op;
        const char *name;
    } shown[] = {{BENCH_ATTEND_IN, "attend_in"},
                 {BENCH_ATTEND_OUT, "attend_out"},
                 {BENCH_FEED_DENSE, "feed_dense"},
                 {BENCH_HEAD, "head"},
                 {BENCH_EXPERTS, "experts"}};
    bool quantised = n->setup.shape.activation == MOE_ACTIVATION_NVFP4;
    hy_status status = HY_OK;
    for (int i = 0; i < b->counts && status == HY_OK; i++) {
        bench_result r;
        int32_t rows = b->count[i];
        status = bench_step_measure(&n->setup, &n->rows, rows, 0, rows, true, b->runs, cli_progress, &r, err);
        for (size_t k = quantised ? 0 : 4; k < 5 && status == HY_OK; k++) {
            bool experts = shown[k].op == BENCH_EXPERTS;
            const char *kind = !experts ? shown[k].op == BENCH_HEAD ? "bf16" : "MXFP8" : quantised ? "W4A4" : "W4A16";
            kernel_report_add(&b->report, shown[k].name, kind, rows, 0, &r, shown[k].op, b->errors.op[shown[k].op]);
        }
    }
    return status;
}

static hy_status run_linears(kernel_bench *b, hy_error *err)
{
    network n = {0};
    ops_model shape = model_shape(&b->geometry.config);
    shape.experts = shape.experts_per_token, shape.shared_width = 0;
    if (shape.vocab > VOCAB) shape.vocab = VOCAB;
    hy_status status = bench_synthetic_fits(bench_synthetic_bytes(&shape, 1, 2), 0, b->read.bytes, err);
    if (status == HY_OK) status = bench_synthetic_open(&shape, 1, 2, &n.weights, err);
    for (int i = 0; i < 2 && status == HY_OK; i++) {
        moe_activation activation = i ? MOE_ACTIVATION_NONE : MOE_ACTIVATION_NVFP4;
        int32_t rows = most_rows(b);
        status = bench_errors_measure(&shape, b->ops, activation, b->pool, &b->errors, err);
        if (status == HY_OK) status = open_backend(b, &n, activation, rows, rows, 1, err);
        if (status == HY_OK) status = time_linears(b, &n, err);
        close_backend(&n);
    }
    bench_synthetic_close(&n.weights);
    return status;
}

/* ---- Router, selection, attention ---------------------------------------------------------------------------------
 */

static ops_model narrow_shape(const kernel_bench *b)
{
    ops_model shape = model_shape(&b->geometry.config);
    shape.shared_width = 0, shape.expert_width = shape.dense_width = NARROW;
    if (shape.vocab > NARROW) shape.vocab = NARROW;
    return shape;
}

static hy_status time_attention(kernel_bench *b, network *n, hy_error *err)
{
    static const bench_op shown[] = {BENCH_ROUTE, BENCH_INDEX, BENCH_ATTEND};
    hy_status status = HY_OK;
    for (int i = 0; i < b->counts && status == HY_OK; i++) {
        bench_result r;
        int32_t rows = b->count[i];
        status = bench_step_measure(&n->setup, &n->rows, 1, (int32_t)b->context, rows, false, b->runs, cli_progress, &r,
                                    err);
        for (int k = 0; k < 3 && status == HY_OK; k++)
            if (r.op[shown[k]].calls)
                kernel_report_add(&b->report, bench_op_names[shown[k]], shown[k] == BENCH_ROUTE ? "fp32" : "NVFP4",
                                  rows, shown[k] == BENCH_ROUTE ? 0 : (int64_t)b->context, &r, shown[k],
                                  b->errors.op[shown[k]]);
    }
    return status;
}

/* index_score over all blocks for `rows` rows at the end of the context. */
static hy_status time_scores(kernel_bench *b, network *n, int32_t rows, hy_error *err)
{
    const ops_model *m = &n->weights.model;
    int32_t context = (int32_t)b->index_context, blocks = n->rows.blocks;
    bench_result r = {.rows = rows};
    bench_op_result *op = &r.op[BENCH_INDEX];
    int64_t tokens = (int64_t)context + rows;
    bench_work work = {.rows = rows, .index_tokens = tokens};
    double *values = memory_zeroed(3 * (size_t)b->runs, sizeof *values);
    float *barrier = memory_zeroed((size_t)m->hidden, sizeof *barrier);
    hy_status status = values && barrier ? HY_OK : error_memory(err, "the runs", (size_t)b->runs * 24);
    for (int32_t t = 0; t < rows; t++) work.scored += (int64_t)context + t + 1;
    bench_cost_add(&n->setup.shape, BENCH_INDEX, 0, &work, &op->cost);
    if (status == HY_OK) {
        bench_rows_set(&n->rows, 1, context, rows, false, m->vocab, 3);
        b->ops->begin(n->setup.step, n->setup.cache, &n->rows.ops);
        b->ops->embed(n->setup.step);
        b->ops->attend_in(n->setup.step, 0);
        b->ops->index_score(n->setup.step, 0, 0, blocks); /* warms up */
        b->ops->tensor_read(n->setup.step, OPS_X, 0, 1, barrier);
    }
    for (int i = 0; i < b->runs && status == HY_OK; i++) {
        bench_moment now = bench_moment_take(&n->setup);
        double start = clock_seconds();
        b->ops->index_score(n->setup.step, 0, 0, blocks);
        b->ops->tensor_read(n->setup.step, OPS_X, 0, 1, barrier);
        values[i] = clock_seconds() - start;
        double bound = bench_cost_bound(&op->cost, now.read, now.peaks);
        values[b->runs + i] = bound, values[2 * b->runs + i] = bound / values[i];
        r.moment = now;
        if (!cli_progress(NULL, "index scores", (uint64_t)i + 1, (uint64_t)b->runs, "runs"))
            status = error_set(err, HY_CANCELLED, "the bench was stopped");
    }
    if (status == HY_OK) status = b->ops->finish(n->setup.step, err);
    if (status == HY_OK) {
        char kind[32];
        op->calls = 1, op->seconds = bench_median(values, b->runs);
        op->bound = bench_median(values + b->runs, b->runs), op->fraction = bench_median(values + 2 * b->runs, b->runs);
        op->by_operations =
            bench_cost_peak_seconds(&op->cost, r.moment.peaks) > bench_cost_read_seconds(&op->cost, r.moment.read);
        snprintf(kind, sizeof kind, "%d columns", rows * m->index_heads);
        kernel_report_add(&b->report, "index_score", kind, rows, context, &r, BENCH_INDEX, b->errors.op[BENCH_INDEX]);
    }
    memory_free(values);
    memory_free(barrier);
    return status;
}

static hy_status run_scores(kernel_bench *b, network *n, hy_error *err)
{
    int32_t positions = (int32_t)b->index_context + SCORE_ROWS;
    hy_status status = open_backend(b, n, MOE_ACTIVATION_NONE, SCORE_ROWS, 1, positions, err);
    if (status == HY_OK)
        status = bench_rows_fill(b->ops, n->setup.cache, &n->layout, &n->rows, 1, positions, true, cli_progress, err);
    if (status == HY_OK) status = time_scores(b, n, 1, err);
    if (status == HY_OK) status = time_scores(b, n, SCORE_ROWS, err);
    close_backend(n);
    return status;
}

static hy_status run_attention(kernel_bench *b, hy_error *err)
{
    network n = {0};
    ops_model shape = narrow_shape(b);
    uint64_t token = 2 * (uint64_t)shape.kv_heads * cache_vector_bytes(CACHE_NVFP4, shape.head_dim) +
                     cache_vector_bytes(CACHE_NVFP4, shape.index_dim);
    uint64_t tokens = b->index_context > b->context ? b->index_context : b->context;
    int32_t rows = most_rows(b), positions = (int32_t)b->context + rows;
    hy_status status =
        bench_synthetic_fits(bench_synthetic_bytes(&shape, 1, 1), 2 * token * tokens, b->read.bytes, err);
    if (status == HY_OK) status = bench_synthetic_open(&shape, 1, 1, &n.weights, err);
    if (status == HY_OK) status = open_backend(b, &n, MOE_ACTIVATION_NONE, rows, 1, positions, err);
    if (status == HY_OK)
        status = bench_rows_fill(b->ops, n.setup.cache, &n.layout, &n.rows, 1, positions, false, cli_progress, err);
    if (status == HY_OK) status = time_attention(b, &n, err);
    close_backend(&n);
    if (status == HY_OK && shape.index_heads && b->index_context) status = run_scores(b, &n, err);
    bench_synthetic_close(&n.weights);
    return status;
}

/* ---- Sampling -----------------------------------------------------------------------------------------------------
 */

/* One row of logits over the whole vocabulary, on one core. Nothing to set it against: it is said, not judged. */
static hy_status run_sampling(kernel_bench *b, hy_error *err)
{
    int32_t vocab = b->geometry.config.vocab;
    uint64_t state = 5;
    float *logits = memory_zeroed((size_t)vocab, sizeof *logits);
    void *scratch = memory_zeroed(sample_scratch_bytes(vocab), 1);
    double *values = memory_zeroed((size_t)b->runs, sizeof *values);
    const ops_sample how[] = {{.repetition_penalty = 1, .top_p = 1, .logprobs = -1},
                              {.repetition_penalty = 1, .top_p = 0.95f, .top_k = 40, .temperature = 1, .logprobs = -1}};
    bool ok = logits && scratch && values;
    for (int32_t i = 0; ok && i < vocab; i++) logits[i] = (float)(bench_random(&state) & 0xFFFF) / 8192 - 4;
    for (int k = 0; ok && k < 2; k++) {
        bench_result r = {.rows = 1};
        ops_sampled out;
        for (int i = 0; i < b->runs; i++) {
            double start = clock_seconds();
            sample_row(logits, vocab, &how[k], scratch, &out);
            values[i] = clock_seconds() - start;
        }
        r.op[BENCH_HEAD] = (bench_op_result){.calls = 1, .seconds = bench_median(values, b->runs)};
        kernel_report_add(&b->report, "sample", k ? "top-k top-p" : "greedy", 1, 0, &r, BENCH_HEAD, NAN);
    }
    memory_free(logits);
    memory_free(scratch);
    memory_free(values);
    return ok ? HY_OK : error_memory(err, "a row of logits", (size_t)vocab * 8);
}

/* ---- The command --------------------------------------------------------------------------------------------------
 */

/* What the geometry allows: a context that was not given, and that of the index scores, is cut to it and said. */
static hy_status fit_contexts(kernel_bench *b, const char *name, hy_error *err)
{
    uint64_t positions = (uint64_t)b->geometry.config.max_positions, rows = (uint64_t)most_rows(b);
    if (rows > positions)
        return error_at(err, HY_USAGE, "--rows", "%.80s has %llu positions: --rows takes at most that many, not %llu",
                        name, (unsigned long long)positions, (unsigned long long)rows);
    uint64_t most = positions - rows, most_index = positions > SCORE_ROWS ? positions - SCORE_ROWS : 0;
    if (b->context == CONTEXT_NOT_GIVEN) {
        b->context = CONTEXT < most ? CONTEXT : most;
        if (b->context < CONTEXT)
            fprintf(stderr, "context %llu instead of %d: %.80s has %llu positions\n", (unsigned long long)most, CONTEXT,
                    name, (unsigned long long)positions);
    }
    if (b->context > most)
        return error_at(err, HY_USAGE, "--context", "--context takes 0 to %llu with these rows, not %llu",
                        (unsigned long long)most, (unsigned long long)b->context);
    if (bench_gpu_is(b->backend)) return HY_OK; /* whose lines have contexts of their own */
    if (b->index_context == CONTEXT_NOT_GIVEN) b->index_context = INDEX_CONTEXT;
    if (b->index_context > most_index) {
        fprintf(stderr, "index context %llu instead of %llu: %.80s has %llu positions\n",
                (unsigned long long)most_index, (unsigned long long)b->index_context, name,
                (unsigned long long)positions);
        b->index_context = most_index;
    }
    return HY_OK;
}

static hy_status run_drafter(kernel_bench *b, hy_error *err)
{
    bench_draft drafter = {b->ops, b->pool, &b->read, &b->geometry.config, b->count, b->counts, b->runs, &b->report};
    return b->geometry.drafter ? bench_draft_run(&drafter, err) : HY_OK;
}

/* What --only names. */
static const struct {
    const char *name;
    hy_status (*host)(kernel_bench *b, hy_error *err);       /* NULL: there is none */
    hy_status (*lines)(const bench_lines *b, hy_error *err); /* the same of a GPU */
    bool both;                                               /* what the host has is a GPU's as well */
} parts[] = {
    {"linears", run_linears, NULL, true},        {"attention", run_attention, NULL, false},
    {"drafter", run_drafter, NULL, false},       {"index", NULL, bench_lines_index, false},
    {"attend", NULL, bench_lines_attend, false}, {"prefill", NULL, bench_lines_prefill, false},
    {"moe", NULL, bench_lines_moe, false},       {"qkv", NULL, bench_lines_qkv, false},
    {"head", NULL, bench_lines_head, false},     {"sampling", run_sampling, bench_lines_sampling, false},
    {"draft", NULL, bench_lines_draft, false},
};
enum { PARTS = sizeof parts / sizeof *parts };

/* Whether a part runs on the device that was asked for. */
static bool part_is_there(const kernel_bench *b, int i)
{
    return b->report.on_gpu ? parts[i].lines || parts[i].both : parts[i].host != NULL;
}

static hy_status check_only(const kernel_bench *b, hy_error *err)
{
    char names[256] = "", item[32];
    for (int i = 0; i < PARTS; i++)
        if (part_is_there(b, i)) {
            size_t n = strlen(names);
            snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", parts[i].name);
        }
    for (const char *p = b->only; p && *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',')) {
        bool known = false;
        snprintf(item, sizeof item, "%.*s", (int)strcspn(p, ","), p);
        for (int i = 0; i < PARTS; i++) known = known || (part_is_there(b, i) && !strcmp(parts[i].name, item));
        if (!known) return error_at(err, HY_USAGE, "--only", "--only takes some of %s here, not '%.30s'", names, item);
    }
    return HY_OK;
}

static hy_status look_at_gpu(kernel_bench *b, hy_error *err)
{
    enum { LITTLE = 4096 };
    bench_gpu *card = NULL;
    hy_status status = bench_gpu_open(b->ops, NULL, LITTLE, &card, err);
    if (status != HY_OK) return status;
    b->report.machine = bench_machine_read();
    b->report.machine.has_gpu = true, b->report.machine.gpu = *cuda_bench_info(card->bench);
    b->report.read_bytes = b->read_bytes ? b->read_bytes : cuda_bench_bytes(&b->report.machine.gpu);
    bench_gpu_close(card);
    return HY_OK;
}

static hy_status prepare(kernel_bench *b, const char *name, hy_error *err)
{
    if (b->runs < 1 || b->runs > MAX_RUNS)
        return error_at(err, HY_USAGE, "--runs", "--runs takes 1 to %d, not %d", MAX_RUNS, b->runs);
    if (b->most_rows < 1 || b->layers < 1 || b->layers > MAX_LAYERS)
        return error_at(err, HY_USAGE, "--layers", "--most-rows takes 1 or more, --layers 1 to %d, not %d and %d",
                        MAX_LAYERS, b->most_rows, b->layers);
    hy_status status = bench_parse_list("--rows", b->rows_text, 1, MAX_COUNT, b->count, &b->counts, err);
    if (status == HY_OK) status = geometry_load(name, &b->geometry, err);
    if (status == HY_OK) status = layout_check(&b->geometry.config, SCHEME_M31, err);
    if (status != HY_OK) return status;
    bool given = b->context != CONTEXT_NOT_GIVEN;
    status = fit_contexts(b, name, err);
    if (status != HY_OK) return status;
    b->most_context = given ? (int64_t)b->context : b->geometry.config.max_positions;
    b->ops = ops_find(strcmp(b->backend, "auto") ? b->backend : "cpu");
    if (!b->ops)
        return error_at(err, HY_USAGE, "--backend", "there is no backend '%.40s': choose one of %s", b->backend,
                        ops_names);
    if (b->against_path)
        status = bench_against_load(b->against_path, "kernels", "rows_per_second", &b->report.against, err);
    b->report.on_gpu = bench_gpu_is(b->ops->name);
    if (status == HY_OK && b->only) status = check_only(b, err);
    if (status == HY_OK) status = threads_open(b->threads, &b->pool, err);
    if (status == HY_OK) threads_watch(b->pool, cli_interrupted());
    if (status != HY_OK) return status;
    if (b->report.on_gpu) return look_at_gpu(b, err);
    if (!b->read_bytes) b->read_bytes = bench_read_default_bytes();
    if (status == HY_OK) status = bench_read_open(b->read_bytes, b->pool, &b->read, err);
    if (status == HY_OK) bench_read_warn(b->read.bytes);
    return status;
}

static hy_status run(kernel_bench *b, const char *name, hy_error *err)
{
    hy_status status = prepare(b, name, err);
    if (status != HY_OK) return status;
    b->report.geometry = name, b->report.backend = b->ops->name, b->report.runs = b->runs;
    b->report.threads = threads_count(b->pool), b->report.json = b->json, b->report.wgmma_rows = b->wgmma_rows;
    if (!b->report.on_gpu) b->report.read_bytes = b->read.bytes;
    kernel_report_begin(&b->report);
    const bench_lines lines = {.ops = b->ops,
                               .pool = b->pool,
                               .target = &b->geometry.config,
                               .drafter = b->geometry.drafter,
                               .read_bytes = b->read_bytes,
                               .runs = b->runs,
                               .layers = b->layers,
                               .wgmma_rows = b->wgmma_rows,
                               .most_rows = b->most_rows,
                               .most_context = b->most_context,
                               .report = &b->report};
    for (int i = 0; i < PARTS && status == HY_OK; i++) {
        if (!part_is_there(b, i) || (b->only && !bench_in_list(b->only, parts[i].name))) continue;
        status = b->report.on_gpu && parts[i].lines ? parts[i].lines(&lines, err) : parts[i].host(b, err);
    }
    b->report.gpu = NULL;
    if (status == HY_OK && !kernel_report_end(&b->report)) status = error_memory(err, "the JSON", 1 << 20);
    return status;
}

int bench_kernels(int argc, char **argv)
{
    kernel_bench *b = calloc(1, sizeof *b);
    if (!b) return 1;
    b->rows_text = "1,4,8,16,64,256", b->runs = 5, b->backend = "cpu", b->most_rows = MOST_ROWS, b->layers = 4;
    b->context = b->index_context = CONTEXT_NOT_GIVEN;
    const cli_option flags[] = {
        {"rows", "LIST", "rows that go through an operation together (default 1,4,8,16,64,256)", &b->rows_text,
         CLI_STRING},
        {"context", "N",
         "tokens before the rows, for selection and attention (default 16K, or what the geometry allows); of a GPU's "
         "lines the most (default: all of theirs)",
         &b->context, CLI_COUNT},
        {"index-context", "N", "tokens of the index scores, 0: none (default 512K); cut to what the geometry allows",
         &b->index_context, CLI_COUNT},
        {"only", "PARTS",
         "some of linears, sampling; of the host attention, drafter; of a GPU index, attend, prefill, moe, qkv, head, "
         "draft (default: all)",
         &b->only, CLI_STRING},
        {"most-rows", "N", "rows that the lines of a GPU are cut to (default 8192)", &b->most_rows, CLI_INT},
        {"layers", "N", "layers that a GPU's lines of selection and attention go through in turn (default 4)",
         &b->layers, CLI_INT},
        {"runs", "N", "runs whose medians are shown (default 5)", &b->runs, CLI_INT},
        {"read-buffer", "SIZE",
         "bytes of a read pass (default: four last-level caches, at most 1/8 of free memory; on a GPU sixteen caches)",
         &b->read_bytes, CLI_SIZE},
        {"threads", "N", "worker threads (default: one per core)", &b->threads, CLI_INT},
        {"gpu-wgmma-rows", "N",
         "with cuda on Hopper: products of N rows and more by warpgroups (default 0: where that is faster; 1: all; -1: "
         "none)",
         &b->wgmma_rows, CLI_INT},
        {"backend", "NAME", "cpu (default), cuda or reference", &b->backend, CLI_STRING},
        {"device", "NAME", "the same: auto (default), cpu or cuda", &b->backend, CLI_STRING},
        {"against", "FILE", "compare with what --json wrote before", &b->against_path, CLI_STRING},
        {"json", NULL, "one JSON object on stdout instead of a table", &b->json, CLI_FLAG},
    };
    const char *places[1] = {"m3.1-flash"};
    int count = 1;
    int code =
        cli_parse("bench kernels", usage, about, flags, sizeof flags / sizeof *flags, argc, argv, places, &count);
    if (code < 0) {
        hy_error err = {0};
        cli_catch_interrupt();
        hy_status status = run(b, places[0], &err);
        fflush(stdout);
        if (status != HY_OK) cli_error(&err);
        code = cli_exit(status);
    }
    kernel_report_free(&b->report);
    bench_read_close(&b->read);
    threads_close(b->pool);
    free(b);
    return code;
}
