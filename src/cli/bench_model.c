/* hayate bench decode and prefill: whole steps of a model over sequences of random rows. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/cli.h"
#include "cli/find_model.h"
#include "cli/flags.h"

enum { MAX_CONTEXT = 1 << 24, MAX_RUNS = 1000, MAX_BATCH = 8192, MAX_ROWS = BENCH_MAX_LIST * BENCH_MAX_LIST };

static const char about_decode[] =
    "Times decode steps: one new token for each of BATCH sequences that have CONTEXT tokens in the cache. The cache is "
    "filled with random rows, not by prefill; sampling is not part of a step. The bound is the bytes that the step "
    "must "
    "touch (experts as really routed) at the speed of a pass that only reads, taken before and after each run.\n\n"
    "examples:\n  hayate bench decode models/m3-nano --context 0,4096 --batch 1,4\n"
    "  hayate bench decode MODEL --json > before.json; hayate bench decode MODEL --against before.json\n"
    "  hayate bench decode m3.1-flash --load-format dummy --layers 20 --dense-layers 0 --device cuda --context 8K";
static const char about_prefill[] =
    "Times prefill steps: BATCH rows of one sequence that has CONTEXT tokens in the cache before them. The cache is "
    "filled with random rows. The bound is, operation by operation, the larger of the bytes at the speed of a pass "
    "that "
    "only reads and the arithmetic at the speed of loops that only multiply, taken beside each run.\n\n"
    "examples:\n  hayate bench prefill models/m3-nano --context 0,4096 --batch 256\n"
    "  hayate bench prefill MODEL --no-head --json";

typedef struct model_bench {
    const char *bench; /* "decode", "prefill" */
    hy_model_options options;
    const char *contexts, *batches, *against_path;
    int64_t seed;
    int layers, dense_layers; /* of random weights; -1: as the geometry has them */
    int runs, head;           /* head: 1 or 0 */
    uint64_t read_bytes;
    bool json, by_kernel;

    int32_t context[BENCH_MAX_LIST], batch[BENCH_MAX_LIST];
    int context_count, batch_count;
    hy_model *model;
    bench_read read;
    bench_rows rows;
    bench_setup setup;
    bench_against against;
    bench_heading heading;
    bench_result result[MAX_ROWS];
    int result_count;
} model_bench;

static int32_t largest(const int32_t *values, int count)
{
    int32_t most = values[0];
    for (int i = 1; i < count; i++) most = values[i] > most ? values[i] : most;
    return most;
}

static bool is_decode(const model_bench *b)
{
    return bench_by_bytes(b->bench);
}

/* Sequences and rows of each in the largest step. */
static int32_t most_sequences(const model_bench *b)
{
    return is_decode(b) ? largest(b->batch, b->batch_count) : 1;
}

static int32_t rows_each(const model_bench *b)
{
    return is_decode(b) ? 1 : largest(b->batch, b->batch_count);
}

static hy_status parse_flags(model_bench *b, hy_error *err)
{
    if (b->runs < 1 || b->runs > MAX_RUNS)
        return error_at(err, HY_USAGE, "--runs", "--runs takes 1 to %d, not %d", MAX_RUNS, b->runs);
    hy_model_options *m = &b->options;
    if (b->layers == 0 || b->layers < -1 || b->dense_layers < -1 || (b->layers < 0 && b->dense_layers >= 0) ||
        (b->dense_layers >= 0 && b->dense_layers >= b->layers))
        return error_at(err, HY_USAGE, "--layers",
                        "--layers takes a number of at least 1, --dense-layers fewer than that and not alone");
    m->dummy_seed = (uint64_t)b->seed, m->dummy_layers = b->layers > 0 ? b->layers : 0;
    m->dummy_expert_layers = b->dense_layers >= 0 ? b->layers - b->dense_layers : 0;
    hy_status status = bench_parse_list("--context", b->contexts, 0, MAX_CONTEXT, b->context, &b->context_count, err);
    if (status == HY_OK) status = bench_parse_list("--batch", b->batches, 1, MAX_BATCH, b->batch, &b->batch_count, err);
    if (status == HY_OK && b->against_path)
        status = bench_against_load(b->against_path, b->bench, "tokens_per_second", &b->against, err);
    return status;
}

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

/* Whether the cache fits beside the read buffer, before either is there. A tenth of the memory is left for the step. */
static hy_status check_fit(const model_bench *b, hy_error *err)
{
    int64_t positions = (int64_t)largest(b->context, b->context_count) + rows_each(b);
    if (positions > model_max_len(b->model))
        return error_at(err, HY_USAGE, "--context",
                        "a context of %d and %d more are beyond the model's %d positions: give a smaller --context",
                        largest(b->context, b->context_count), rows_each(b), model_max_len(b->model));
    const cache_layout *layout = model_cache_layout(b->model);
    uint64_t sequences = (uint64_t)most_sequences(b), free_bytes = model_memory_free(b->model) / 10 * 9;
    uint64_t blocks = ((uint64_t)positions + CACHE_BLOCK - 1) / CACHE_BLOCK;
    uint64_t beside = model_memory_own(b->model) ? 0 : b->read_bytes; /* a GPU's buffer is there already */
    uint64_t left = free_bytes > beside ? free_bytes - beside : 0;
    uint64_t fitting = left / layout->row_bytes / sequences;
    char need[32], has[32];
    if (blocks <= fitting && sequences * blocks < INT32_MAX / CACHE_BLOCK) return HY_OK;
    cli_format_bytes(sequences * blocks * layout->row_bytes, need);
    cli_format_bytes(left, has);
    int64_t fits = (int64_t)fitting * CACHE_BLOCK - rows_each(b);
    if (fits < 0)
        return error_at(err, HY_NO_FIT, "--batch",
                        "the cache of this bench needs %s and %s are left: give a smaller "
                        "--batch",
                        need, has);
    return error_at(err, HY_NO_FIT, "--context",
                    "the cache of this bench needs %s and %s are left: with these batches a --context of %lld fits",
                    need, has, (long long)fits);
}

/* The read buffer and the cache count to --memory as an engine's cache does; streamed experts get what is left. */
static hy_status take_memory(const model_bench *b, uint64_t cache_bytes, hy_error *err)
{
    hy_error why = {0};
    char read[32], cache[32];
    hy_status status = model_memory_take(b->model, b->read_bytes + cache_bytes, &why);
    if (status != HY_OK) *err = why;
    if (status != HY_NO_FIT) return status;
    char *advice = strstr(why.message, ": "); /* that of an engine */
    if (advice) *advice = 0;
    return error_at(err, HY_NO_FIT, "--memory",
                    "%.120s, of which %s are the read buffer and %s the cache of this bench: give a smaller "
                    "--read-buffer, --context or --batch, or more --memory",
                    why.message, cli_format_bytes(b->read_bytes, read), cli_format_bytes(cache_bytes, cache));
}

/* The read buffer, before the weights are read. */
static hy_status check_read_buffer(model_bench *b, hy_error *err)
{
    char want[32], limit[32];
    uint64_t memory = b->options.memory;
    if (bench_gpu_is(b->options.backend)) return HY_OK; /* it is taken of the GPU's memory, with the weights there */
    if (!b->read_bytes) {
        b->read_bytes = bench_read_default_bytes();
        if (memory && b->read_bytes > memory / 8) b->read_bytes = memory / 8;
    }
    if (memory && b->read_bytes >= memory)
        return error_at(err, HY_NO_FIT, "--read-buffer",
                        "a read buffer of %s leaves nothing of --memory %s: give a smaller --read-buffer",
                        cli_format_bytes(b->read_bytes, want), cli_format_bytes(memory, limit));
    hy_status status = bench_read_check(b->read_bytes, err);
    if (status == HY_OK) bench_read_warn(b->read_bytes);
    return status;
}

static hy_status open_parts(model_bench *b, hy_error *err)
{
    const hy_ops *ops = model_ops(b->model);
    ops_backend *backend = model_backend(b->model);
    b->setup = (bench_setup){.model = b->model, .ops = ops, .pool = model_pool(b->model), .read = &b->read};
    b->setup.by_kernel = b->by_kernel;
    hy_status status = bench_gpu_open(ops, backend, b->read_bytes, &b->setup.gpu, err);
    if (status == HY_OK) status = check_fit(b, err);
    if (status != HY_OK) return status;
    int32_t positions = largest(b->context, b->context_count) + rows_each(b), sequences = most_sequences(b);
    int32_t rows = sequences * rows_each(b);
    const cache_layout *layout = model_cache_layout(b->model);
    hy_model_describe(b->model, &b->heading.model);
    b->setup.shape = (bench_shape){
        .model = model_ops_model(b->model),
        .main = layout->main,
        .index = layout->index,
        .read = strcmp(b->heading.model.readback, "e4m3") ? READBACK_EXACT : READBACK_E4M3,
        .activation = strcmp(b->heading.model.moe_activation, "nvfp4") ? MOE_ACTIVATION_NONE : MOE_ACTIVATION_NVFP4,
    };
    ops_limits limits = {.rows = rows, .logit_rows = sequences, .positions = positions};
    threads_watch(b->setup.pool, cli_interrupted()); /* steps may take seconds */
    model_memory_begin(b->model);
    status = bench_rows_open(rows, sequences, positions, &b->rows, err);
    if (status == HY_OK) status = ops->step_open(backend, &limits, &b->setup.step, err);
    if (status == HY_OK)
        status = take_memory(b, (uint64_t)sequences * (uint64_t)b->rows.blocks * layout->row_bytes, err);
    if (status == HY_OK && !b->setup.gpu) status = bench_read_open(b->read_bytes, b->setup.pool, &b->read, err);
    if (status == HY_OK) status = ops->cache_open(backend, layout, sequences * b->rows.blocks, &b->setup.cache, err);
    if (status != HY_OK) return status;
    if (b->setup.gpu)
        return bench_rows_fill_alike(ops, b->setup.cache, layout, &b->rows, sequences, positions, cli_progress, err);
    return bench_rows_fill(ops, b->setup.cache, layout, &b->rows, sequences, positions, false, cli_progress, err);
}

static void close_parts(model_bench *b)
{
    if (b->setup.step) b->setup.ops->step_close(b->setup.step);
    if (b->setup.cache) b->setup.ops->cache_close(b->setup.cache);
    bench_rows_close(&b->rows);
    bench_read_close(&b->read);
    bench_gpu_close(b->setup.gpu);
    bench_against_close(&b->against);
    hy_model_close(b->model);
}

/* ---- Running ---------------------------------------------------------------------------------------------------- */

static void make_heading(model_bench *b)
{
    bench_heading *h = &b->heading;
    char threads_now[16], memory_now[32];
    h->bench = b->bench, h->machine = bench_machine_of(b->setup.ops, model_backend(b->model));
    h->gpu = b->setup.gpu;
    h->threads = threads_count(b->setup.pool), h->runs = b->runs;
    h->head = b->head != 0, h->read_bytes = h->gpu ? cuda_bench_buffer(h->gpu->bench) : b->read.bytes;
    h->weights = b->options.weights && *b->options.weights ? b->options.weights : "load";
    h->memory = b->options.memory;
    if (!b->against.root) return;
    bench_against *a = &b->against;
    snprintf(threads_now, sizeof threads_now, "%d", h->threads);
    bench_against_machine(a, &h->machine);
    bench_against_setting(a, NULL, "threads", threads_now);
    bench_against_setting(a, NULL, "head", h->head ? "true" : "false");
    snprintf(memory_now, sizeof memory_now, "%llu", (unsigned long long)h->memory);
    bench_against_setting(a, NULL, "weights", h->weights);
    bench_against_setting(a, NULL, "memory", memory_now);
    bench_against_setting(a, "model", "name", h->model.name);
    bench_against_setting(a, "model", "backend", h->model.backend);
    bench_against_setting(a, "model", "kv_cache_dtype", h->model.kv_cache_dtype);
    bench_against_setting(a, "model", "indexer_kv_dtype", h->model.indexer_kv_dtype);
    bench_against_setting(a, "model", "readback", h->model.readback);
    bench_against_setting(a, "model", "moe_activation", h->model.moe_activation);
}

static hy_status run_rows(model_bench *b, hy_error *err)
{
    const bench_against *against = b->against.root ? &b->against : NULL;
    hy_status status = HY_OK;
    if (!b->json) bench_print_heading(&b->heading, against);
    fflush(stdout);
    for (int c = 0; c < b->context_count && status == HY_OK; c++)
        for (int n = 0; n < b->batch_count && status == HY_OK; n++) {
            bench_result *r = &b->result[b->result_count];
            status = bench_step_measure(&b->setup, &b->rows, is_decode(b) ? b->batch[n] : 1, b->context[c], b->batch[n],
                                        b->head != 0, b->runs, cli_progress, r, err);
            if (status != HY_OK) break;
            b->result_count++;
            if (!b->json) bench_print_row(&b->heading, r, against);
            fflush(stdout);
        }
    if (status == HY_OK && b->json && !bench_print_json(&b->heading, b->result, b->result_count, against))
        status = error_memory(err, "the JSON", 1 << 20);
    fflush(stdout);
    if (status == HY_OK) bench_print_end(b->result, b->result_count, against);
    return status;
}

static int run(model_bench *b, const char *path)
{
    char folder[FIND_PATH_SIZE];
    hy_error err = {0};
    hy_status status = parse_flags(b, &err);
    const find_options find = {.dummy = b->options.load_format && !strcmp(b->options.load_format, "dummy")};
    hy_engine_options step = {0}; /* what --memory must hold at least */
    b->options.on_progress = cli_progress;
    cli_catch_interrupt();
    if (status == HY_OK) status = check_read_buffer(b, &err);
    if (status == HY_OK) {
        step.max_num_seqs = most_sequences(b), step.max_num_batched_tokens = most_sequences(b) * rows_each(b);
        b->options.engine = &step;
    }
    if (status == HY_OK) status = find_model(path, &find, folder, &err);
    if (status == HY_OK) status = hy_model_open(folder, &b->options, &b->model, &err);
    if (status == HY_OK) status = open_parts(b, &err);
    if (status == HY_OK) {
        make_heading(b);
        status = run_rows(b, &err);
    }
    fflush(stdout);
    if (status != HY_OK) cli_error(&err);
    close_parts(b);
    return cli_exit(status);
}

static int command(const char *bench, const char *about, const char *batches, int argc, char **argv)
{
    char name[32], usage[64];
    model_bench *b = calloc(1, sizeof *b);
    if (!b) return 1;
    b->bench = bench, b->contexts = "0,4096", b->batches = batches, b->runs = 5, b->head = 1;
    b->layers = b->dense_layers = -1;
    hy_model_options *m = &b->options;
    cli_option table[FLAGS_MAX] = {
        {"context", "LIST", "tokens in the cache before the step, such as 0,4096,64K (default 0,4096)", &b->contexts,
         CLI_STRING},
        {"batch", "LIST",
         is_decode(b) ? "sequences, one row each (default 1)" : "rows of the one sequence (default 256)", &b->batches,
         CLI_STRING},
        {"runs", "N", "runs whose medians are shown (default 5)", &b->runs, CLI_INT},
        {"head", NULL, "with the output projection, or --no-head (default: with it)", &b->head, CLI_SWITCH},
        {"read-buffer", "SIZE",
         "bytes of a read pass (default: four last-level caches, at most 1/8 of free memory or of --memory)",
         &b->read_bytes, CLI_SIZE},
        {"weights", "KIND", "load (default), or stream: experts are read from the files as they are needed",
         &m->weights, CLI_STRING},
        {"memory", "SIZE",
         "most memory of the whole process with the read buffer (default with --weights stream: nine tenths of what is "
         "free)",
         &m->memory, CLI_SIZE},
        {"load-format", "KIND",
         "auto (default), or dummy: random weights, made in the GPU's memory with --device cuda; MODEL may be "
         "m3.1-flash, m3, "
         "m3-mxfp8",
         &m->load_format, CLI_STRING},
        {"seed", "N", "start of the random numbers (default 0)", &b->seed, CLI_LONG},
        {"layers", "N", "of random weights: only N layers of the geometry (default all)", &b->layers, CLI_INT},
        {"dense-layers", "K", "of these, K with a dense feed-forward (default: as the first N have)", &b->dense_layers,
         CLI_INT},
        {"against", "FILE", "compare with what --json wrote before", &b->against_path, CLI_STRING},
        {"by-kernel", NULL, "of a GPU also what each kernel of a step takes", &b->by_kernel, CLI_FLAG},
        {"json", NULL, "one JSON object on stdout instead of tables", &b->json, CLI_FLAG},
    };
    int lines = 0;
    while (table[lines].name) lines++;
    lines = flags_backend_table(&b->options, table, lines);
    const char *places[1];
    int count = 1;
    snprintf(name, sizeof name, "bench %s", bench);
    snprintf(usage, sizeof usage, "bench %s MODEL [flags]", bench);
    int code = cli_parse(name, usage, about, table, lines, argc, argv, places, &count);
    if (code < 0) code = count ? run(b, places[0]) : cli_usage_error(name, "name the folder of a model");
    free(b);
    return code;
}

int bench_decode(int argc, char **argv)
{
    return command("decode", about_decode, "1", argc, argv);
}

int bench_prefill(int argc, char **argv)
{
    return command("prefill", about_prefill, "256", argc, argv);
}
