/*
 * hayate bench engine: what the engine leaves of the model's speed.
 *
 * BATCH requests are put in flight, and once every one of them decodes, a window of steps is timed. The model alone
 * then runs the very same rows, the same tokens at the same positions behind the same prompts, straight through the
 * forward pass: so both read the same experts and the same blocks. Prompts, parameters and seeds are the same in every
 * run and so are the answers, which is checked; the first run, whose times are not used, tells the model alone what to
 * compute.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/cli.h"
#include "cli/find_model.h"
#include "cli/flags.h"
#include "engine/turn.h"
#include "model/forward.h"

enum { MAX_CONTEXT = 1 << 24, MAX_RUNS = 1000, MAX_BATCH = 8192, MAX_TOKENS = 1 << 16, FILL_ROWS = 512 };

/* How far apart the ratios of the runs may lie, 1 being the model's own speed, on a machine that is steady. */
#define STEADY 0.2

static const char about[] =
    "Times the engine with BATCH requests in flight, all of them decoding, beside the model alone over the same rows "
    "in "
    "turn: what scheduling, sampling and handing out tokens cost. Prompts of CONTEXT random tokens are computed by the "
    "engine before the window of --tokens steps begins. The model alone is what 'hayate bench decode' times: the "
    "forward pass with the head, without sampling.\n\n"
    "examples:\n  hayate bench engine models/m3-nano --batch 1,64\n"
    "  hayate bench engine MODEL --batch 64 --context 1024 --json";

typedef struct engine_bench engine_bench;

/* One request in flight. */
typedef struct stream {
    engine_bench *bench;
    int32_t *ids;     /* [context + most] its prompt, then what came */
    int32_t *first;   /* [most] what came in the run that warmed up */
    int32_t count;    /* tokens that came in this run */
    int32_t begin;    /* of them before the window; of the run that warmed up */
    int32_t compared; /* of `first` */
    hy_request *request;
} stream;

/* Medians over the runs. */
typedef struct engine_result {
    int32_t context, batch;
    double engine, alone;          /* tokens a second */
    double ratio, lowest, highest; /* engine / alone, run by run */
    double plan, hand_out;         /* seconds a step */
    double forward, sample, wait;  /* the same, as the engine counts them */
} engine_result;

/* One run. */
typedef struct engine_run {
    double engine, alone, plan, hand_out, forward, sample, wait;
} engine_run;

struct engine_bench {
    hy_model_options options;
    const char *contexts, *batches;
    int runs, tokens;
    float temperature;
    bool json;
    int32_t context[BENCH_MAX_LIST], batch[BENCH_MAX_LIST];
    int context_count, batch_count;
    hy_model *model;
    hy_model_info info;
    engine_result result[BENCH_MAX_LIST * BENCH_MAX_LIST];
    int result_count;

    /* Of one context and batch. */
    int32_t prompt, sequences, most; /* most: tokens that a request may make */
    hy_engine *engine;
    stream *streams; /* [sequences] */
    bench_rows rows;
    ops_cache *cache; /* of the model alone */
    ops_step *step;
    turn *turn;

    /* Of one run: the engine's thread writes until `over`, under `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int32_t started, steps; /* requests that decode; steps of the window, as the first request sees them */
    uint64_t came;          /* tokens within the window */
    double begin, end;
    hy_engine_stats before, after;
    bool over;
    hy_error failure; /* of a request */
};

/* ---- The engine ------------------------------------------------------------------------------------------------- */

/* The window begins and ends when the first request has its token of a step, so that every request has `tokens` in it.
 */
static void count_event(engine_bench *b, stream *s)
{
    if (s->count == 1) b->started++;
    bool window = b->begin > 0;
    if (window) b->came++;
    if (s != b->streams || b->started < b->sequences) return;
    if (!window) {
        hy_engine_describe(b->engine, &b->before);
        for (int32_t i = 0; i < b->sequences; i++)
            if (!b->streams[i].compared) b->streams[i].begin = b->streams[i].count;
        b->begin = clock_seconds();
    } else if (++b->steps == b->tokens) {
        b->end = clock_seconds();
        hy_engine_describe(b->engine, &b->after);
        b->over = true;
        pthread_cond_signal(&b->wake);
    }
}

static bool on_event(void *user, const hy_event *e)
{
    stream *s = user;
    engine_bench *b = s->bench;
    pthread_mutex_lock(&b->lock);
    for (size_t i = 0; i < e->id_count && !b->over; i++) {
        s->ids[b->prompt + s->count++] = e->ids[i];
        count_event(b, s);
    }
    if (!b->over && (e->finish != HY_RUNNING || atomic_load(cli_interrupted()))) {
        if (e->error)
            b->failure = *e->error;
        else if (atomic_load(cli_interrupted()))
            error_set(&b->failure, HY_CANCELLED, "the bench was stopped");
        else
            error_set(&b->failure, HY_FAILED, "a request ended before all of them decoded: give a smaller --context");
        b->over = true;
        pthread_cond_signal(&b->wake);
    }
    bool go_on = !b->over;
    pthread_mutex_unlock(&b->lock);
    return go_on;
}

static hy_status submit_all(engine_bench *b, hy_error *err)
{
    hy_status status = HY_OK;
    for (int32_t i = 0; i < b->sequences && status == HY_OK; i++) {
        hy_request_options o = hy_request_defaults(b->model);
        o.prompt_ids = b->streams[i].ids, o.prompt_count = (size_t)b->prompt;
        o.sampling.temperature = b->temperature, o.sampling.seed = i;
        o.sampling.max_tokens = b->most, o.sampling.ignore_eos = true;
        o.on_event = on_event, o.user = &b->streams[i];
        status = hy_engine_submit(b->engine, &o, &b->streams[i].request, err);
    }
    return status;
}

/* What came must be what came before: then both sides of a run computed the same. */
static hy_status check_answers(engine_bench *b, hy_error *err)
{
    for (int32_t i = 0; i < b->sequences; i++) {
        stream *s = &b->streams[i];
        int32_t both = s->count < s->compared ? s->count : s->compared;
        if (memcmp(s->first, s->ids + b->prompt, (size_t)both * sizeof *s->first) != 0)
            return error_set(err, HY_FAILED, "the engine gave request %d other tokens than the first time", i);
        if (!s->compared) {
            memcpy(s->first, s->ids + b->prompt, (size_t)s->count * sizeof *s->first);
            s->compared = s->count;
        }
    }
    return HY_OK;
}

static hy_status run_engine(engine_bench *b, engine_run *out, hy_error *err)
{
    b->started = b->steps = 0, b->came = 0, b->begin = b->end = 0, b->over = false;
    b->failure = (hy_error){0};
    for (int32_t i = 0; i < b->sequences; i++) b->streams[i].count = 0;
    /* With the lock: nobody gets a token before the last one is there, or the first could be through by then. */
    pthread_mutex_lock(&b->lock);
    hy_status status = submit_all(b, err);
    while (status == HY_OK && !b->over) pthread_cond_wait(&b->wake, &b->lock);
    b->over = true; /* whatever still comes is not counted */
    if (status == HY_OK && b->failure.status != HY_OK) {
        status = b->failure.status;
        if (err) *err = b->failure;
    }
    pthread_mutex_unlock(&b->lock);
    for (int32_t i = 0; i < b->sequences; i++) {
        hy_request_close(b->streams[i].request); /* cancels it */
        b->streams[i].request = NULL;
    }
    if (status == HY_OK) status = check_answers(b, err);
    if (status != HY_OK) return status;
    double steps = (double)(b->after.steps - b->before.steps);
    out->engine = (double)b->came / (b->end - b->begin);
    out->plan = (b->after.plan_s - b->before.plan_s) / steps;
    out->hand_out = (b->after.hand_out_s - b->before.hand_out_s) / steps;
    out->forward = (b->after.forward_s - b->before.forward_s) / steps;
    out->sample = (b->after.sample_s - b->before.sample_s) / steps;
    out->wait = (b->after.wait_s - b->before.wait_s) / steps;
    return HY_OK;
}

/* ---- The model alone -------------------------------------------------------------------------------------------- */

static int32_t token_at(const engine_bench *b, int32_t sequence, int32_t position)
{
    const stream *s = &b->streams[sequence];
    return position < b->prompt ? s->ids[position] : s->first[position - b->prompt];
}

static void put_row(engine_bench *b, int32_t sequence, int32_t position, uint8_t flags)
{
    bench_rows *r = &b->rows;
    int32_t at = r->ops.count++;
    r->sequence[at] = sequence, r->position[at] = position, r->token[at] = token_at(b, sequence, position);
    r->slot[at] = ((int64_t)sequence * r->blocks + position / CACHE_BLOCK) * CACHE_BLOCK + position % CACHE_BLOCK;
    r->flags[at] = flags;
}

static void begin_rows(engine_bench *b)
{
    bench_rows *r = &b->rows;
    r->ops = (ops_rows){.sequence = r->sequence,
                        .position = r->position,
                        .token = r->token,
                        .slot = r->slot,
                        .flags = r->flags,
                        .sequences = b->sequences,
                        .block_table = r->table,
                        .block_table_stride = r->blocks};
}

/* Seconds of the step over the rows, forward pass and head. An engine that was just told to stop may still be in its
 * last step. */
static hy_status run_rows(engine_bench *b, ops_step *step, double *seconds, hy_error *err)
{
    turn_take(b->turn);
    double start = clock_seconds();
    forward_run(b->model, step, b->cache, &b->rows.ops, false, NULL);
    hy_status status = model_ops(b->model)->finish(step, err);
    *seconds += clock_seconds() - start;
    turn_leave(b->turn);
    if (status == HY_OK && atomic_load(cli_interrupted()))
        status = error_set(err, HY_CANCELLED, "the bench was stopped");
    return status;
}

/* Everything before the window into the cache of the model alone. */
static hy_status fill_cache(engine_bench *b, hy_error *err)
{
    const hy_ops *ops = model_ops(b->model);
    ops_limits limits = {.rows = FILL_ROWS, .logit_rows = 1, .positions = b->prompt + b->most};
    ops_step *step = NULL;
    double seconds = 0;
    hy_status status = ops->step_open(model_backend(b->model), &limits, &step, err);
    for (int32_t s = 0; s < b->sequences && status == HY_OK; s++)
        for (int32_t p = 0, end = b->prompt + b->streams[s].begin - 1; p < end && status == HY_OK;) {
            begin_rows(b);
            while (p < end && b->rows.ops.count < FILL_ROWS) put_row(b, s, p++, 0);
            status = run_rows(b, step, &seconds, err);
        }
    if (step) ops->step_close(step);
    return status;
}

static hy_status run_alone(engine_bench *b, engine_run *out, hy_error *err)
{
    double seconds = 0;
    hy_status status = HY_OK;
    for (int32_t i = 0; i < b->tokens && status == HY_OK; i++) {
        begin_rows(b);
        for (int32_t s = 0; s < b->sequences; s++) put_row(b, s, b->prompt + b->streams[s].begin - 1 + i, ROW_LOGITS);
        status = run_rows(b, b->step, &seconds, err);
    }
    if (status == HY_OK) out->alone = (double)b->sequences * b->tokens / seconds;
    return status;
}

/* ---- One context and batch -------------------------------------------------------------------------------------- */

/* The first requests decode while the others' prompts are computed. */
static void plan_lengths(engine_bench *b, int32_t context, int32_t batch, hy_engine_options *o)
{
    int32_t rows = 2 * batch > MODEL_DEFAULT_ROWS ? 2 * batch : MODEL_DEFAULT_ROWS;
    b->prompt = context, b->sequences = batch;
    int64_t filling = (int64_t)context * batch / (rows - batch) + 16;
    b->most = b->tokens + (int32_t)(filling < MAX_CONTEXT ? filling : MAX_CONTEXT);
    *o = (hy_engine_options){
        .max_num_seqs = batch, .max_num_batched_tokens = rows, .max_waiting = batch, .log_seconds = -1};
}

/* The cache is there twice. */
static hy_status check_fit(const engine_bench *b, uint64_t cache_bytes, hy_error *err)
{
    char need[32], has[32];
    if ((int64_t)b->prompt + b->most > model_max_len(b->model))
        return error_at(err, HY_USAGE, "--context",
                        "a context of %d and %d tokens behind it are beyond the model's %d positions: give a smaller "
                        "--context or fewer --tokens",
                        b->prompt, b->most, model_max_len(b->model));
    uint64_t available = model_memory_free(b->model) / 10 * 9;
    if (cache_bytes <= available / 2) return HY_OK;
    return error_at(
        err, HY_NO_FIT, "--context",
        "two caches of %s are needed, one for the engine and one for the model alone, and %s are left: give a "
        "smaller --context or --batch",
        cli_format_bytes(cache_bytes, need), cli_format_bytes(available, has));
}

static hy_status open_streams(engine_bench *b, hy_error *err)
{
    size_t length = (size_t)b->prompt + (size_t)b->most, n = (size_t)b->sequences;
    b->streams = memory_zeroed(n, sizeof *b->streams);
    bool ok = b->streams != NULL;
    for (size_t i = 0; i < n && ok; i++) {
        stream *s = &b->streams[i];
        uint64_t state = i + 1;
        s->bench = b;
        s->ids = memory_zeroed(length, sizeof *s->ids);
        s->first = memory_zeroed((size_t)b->most, sizeof *s->first);
        ok = s->ids && s->first;
        for (int32_t p = 0; ok && p < b->prompt; p++)
            s->ids[p] = (int32_t)(bench_random(&state) % (uint64_t)b->info.vocab);
    }
    return ok ? HY_OK : error_memory(err, "the requests", n * length * 2 * sizeof(int32_t));
}

static hy_status open_case(engine_bench *b, int32_t context, int32_t batch, hy_error *err)
{
    const hy_ops *ops = model_ops(b->model);
    const cache_layout *layout = model_cache_layout(b->model);
    hy_engine_options o;
    plan_lengths(b, context, batch, &o);
    int32_t positions = b->prompt + b->most, rows = batch > FILL_ROWS ? batch : FILL_ROWS;
    uint64_t blocks = ((uint64_t)positions + CACHE_BLOCK - 1) / CACHE_BLOCK * (uint64_t)batch;
    o.cache_bytes = blocks * layout->row_bytes;
    hy_status status = check_fit(b, o.cache_bytes, err);
    if (status == HY_OK) status = open_streams(b, err);
    if (status == HY_OK) status = bench_rows_open(rows, batch, positions, &b->rows, err);
    if (status == HY_OK)
        status = ops->cache_open(model_backend(b->model), layout, batch * b->rows.blocks, &b->cache, err);
    ops_limits limits = {.rows = batch, .logit_rows = batch, .positions = positions};
    if (status == HY_OK) status = ops->step_open(model_backend(b->model), &limits, &b->step, err);
    if (status == HY_OK && !(b->turn = turn_open(model_backend(b->model)))) status = error_memory(err, "a lock", 64);
    if (status != HY_OK) return status;
    flags_log_start(HY_LOG_ERROR); /* a cache of just these requests is meant, and not to be warned of */
    status = hy_engine_open(b->model, &o, &b->engine, err);
    flags_log_start(HY_LOG_WARNING);
    return status;
}

static void close_case(engine_bench *b)
{
    hy_engine_close(b->engine);
    if (b->step) model_ops(b->model)->step_close(b->step);
    if (b->cache) model_ops(b->model)->cache_close(b->cache);
    turn_close(b->turn);
    bench_rows_close(&b->rows);
    for (int32_t i = 0; b->streams && i < b->sequences; i++) {
        memory_free(b->streams[i].ids);
        memory_free(b->streams[i].first);
    }
    memory_free(b->streams);
    b->engine = NULL, b->step = NULL, b->cache = NULL, b->turn = NULL, b->streams = NULL;
}

#define MEDIAN(out, expression)                                                                                        \
    do {                                                                                                               \
        for (int i_ = 0; i_ < b->runs; i_++) {                                                                         \
            const engine_run *r = &runs[i_];                                                                           \
            values[i_] = (expression);                                                                                 \
        }                                                                                                              \
        (out) = bench_median(values, b->runs);                                                                         \
    } while (0)

static void medians(const engine_bench *b, const engine_run *runs, double *values, engine_result *out)
{
    *out = (engine_result){.context = b->prompt, .batch = b->sequences};
    MEDIAN(out->engine, r->engine);
    MEDIAN(out->alone, r->alone);
    MEDIAN(out->plan, r->plan);
    MEDIAN(out->hand_out, r->hand_out);
    MEDIAN(out->forward, r->forward);
    MEDIAN(out->sample, r->sample);
    MEDIAN(out->wait, r->wait);
    MEDIAN(out->ratio, r->engine / r->alone);
    out->lowest = values[0], out->highest = values[b->runs - 1]; /* sorted by the median */
}

static hy_status measure(engine_bench *b, engine_run *runs, double *values, engine_result *out, hy_error *err)
{
    char what[96];
    engine_run warm;
    snprintf(what, sizeof what, "context %d, batch %d, 1 to warm up + %d runs:", b->prompt, b->sequences, b->runs);
    progress p = {.fn = cli_progress, .what = what, .unit = "runs", .total = (uint64_t)b->runs + 1};
    hy_status status = run_engine(b, &warm, err);
    if (status == HY_OK) status = fill_cache(b, err);
    if (status == HY_OK) status = run_alone(b, &warm, err);
    for (int i = 0; i < b->runs && status == HY_OK; i++) {
        progress_add(&p, 1);
        if (i % 2) status = run_alone(b, &runs[i], err); /* each goes first in turn */
        if (status == HY_OK) status = run_engine(b, &runs[i], err);
        if (i % 2 == 0 && status == HY_OK) status = run_alone(b, &runs[i], err);
    }
    if (status != HY_OK) return status;
    progress_add(&p, 1);
    progress_end(&p);
    medians(b, runs, values, out);
    return HY_OK;
}

/* ---- Report ----------------------------------------------------------------------------------------------------- */

static void print_heading(const engine_bench *b)
{
    bench_machine machine = bench_machine_of(model_ops(b->model), model_backend(b->model));
    int workers = threads_count(model_pool(b->model));
    bench_machine_print(&machine);
    bench_print_model(&b->info);
    printf("engine: %d thread%s, medians of %d run%s, %d step%s each, temperature %g; the ratio is the median of "
           "the runs' ratios\n",
           workers, workers == 1 ? "" : "s", b->runs, b->runs == 1 ? "" : "s", b->tokens, b->tokens == 1 ? "" : "s",
           (double)b->temperature);
}

static void print_result(const engine_result *r)
{
    printf("\ncontext %d, batch %d: %.2f tokens/s in the engine, %.2f by the model alone: ratio %.1f %% (%.1f to "
           "%.1f)%s\n",
           r->context, r->batch, r->engine, r->alone, 100 * r->ratio, 100 * r->lowest, 100 * r->highest,
           r->highest - r->lowest > STEADY ? ", the machine was not steady" : "");
    printf(
        "    a step: planning %.1f us, handing out %.1f us; forward pass %.1f us, sampling %.1f us, waiting for a plan "
        "%.1f us\n",
        1e6 * r->plan, 1e6 * r->hand_out, 1e6 * r->forward, 1e6 * r->sample, 1e6 * r->wait);
    fflush(stdout);
}

static void member(json_writer *w, const char *key, double value)
{
    writer_key(w, key);
    writer_number(w, value);
}

static void write_result(const engine_result *r, json_writer *w)
{
    writer_object(w);
    writer_key(w, "context"), writer_integer(w, r->context);
    writer_key(w, "batch"), writer_integer(w, r->batch);
    member(w, "tokens_per_second", r->engine);
    member(w, "model_tokens_per_second", r->alone);
    member(w, "ratio", r->ratio);
    member(w, "ratio_lowest", r->lowest);
    member(w, "ratio_highest", r->highest);
    member(w, "plan_seconds", r->plan);
    member(w, "hand_out_seconds", r->hand_out);
    member(w, "forward_seconds", r->forward);
    member(w, "sample_seconds", r->sample);
    member(w, "wait_seconds", r->wait);
    writer_end(w);
}

static bool print_json(const engine_bench *b)
{
    buffer out = {0};
    json_writer w = {.out = &out};
    bench_machine machine = bench_machine_of(model_ops(b->model), model_backend(b->model));
    writer_object(&w);
    bench_write_head("engine", &machine, &w);
    writer_key(&w, "model"), bench_write_model(&b->info, &w);
    writer_key(&w, "threads"), writer_integer(&w, threads_count(model_pool(b->model)));
    writer_key(&w, "runs"), writer_integer(&w, b->runs);
    writer_key(&w, "tokens"), writer_integer(&w, b->tokens);
    member(&w, "temperature", (double)b->temperature);
    writer_key(&w, "rows");
    writer_array(&w);
    for (int i = 0; i < b->result_count; i++) write_result(&b->result[i], &w);
    writer_end(&w);
    writer_end(&w);
    bool ok = buffer_ok(&out);
    if (ok) printf("%s\n", out.data);
    buffer_free(&out);
    return ok;
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

static hy_status parse_flags(engine_bench *b, hy_error *err)
{
    if (b->runs < 1 || b->runs > MAX_RUNS)
        return error_at(err, HY_USAGE, "--runs", "--runs takes 1 to %d, not %d", MAX_RUNS, b->runs);
    if (b->tokens < 1 || b->tokens > MAX_TOKENS)
        return error_at(err, HY_USAGE, "--tokens", "--tokens takes 1 to %d, not %d", MAX_TOKENS, b->tokens);
    if (!(b->temperature >= 0 && b->temperature <= 2))
        return error_at(err, HY_USAGE, "--temperature", "--temperature takes 0 to 2, not %g", (double)b->temperature);
    hy_status status = bench_parse_list("--context", b->contexts, 1, MAX_CONTEXT, b->context, &b->context_count, err);
    if (status == HY_OK) status = bench_parse_list("--batch", b->batches, 1, MAX_BATCH, b->batch, &b->batch_count, err);
    return status;
}

static hy_status run_cases(engine_bench *b, hy_error *err)
{
    engine_run *runs = memory_zeroed((size_t)b->runs, sizeof *runs);
    double *values = memory_zeroed((size_t)b->runs, sizeof *values);
    hy_status status = runs && values ? HY_OK : error_memory(err, "the results of a bench", (size_t)b->runs * 64);
    for (int c = 0; c < b->context_count && status == HY_OK; c++)
        for (int n = 0; n < b->batch_count && status == HY_OK; n++) {
            engine_result *out = &b->result[b->result_count];
            status = open_case(b, b->context[c], b->batch[n], err);
            if (status == HY_OK) status = measure(b, runs, values, out, err);
            close_case(b);
            if (status != HY_OK) break;
            b->result_count++;
            if (!b->json) print_result(out);
        }
    memory_free(runs);
    memory_free(values);
    return status;
}

static int run(engine_bench *b, const char *path)
{
    hy_error err = {0};
    char folder[FIND_PATH_SIZE];
    hy_status status = parse_flags(b, &err);
    b->options.on_progress = cli_progress;
    cli_catch_interrupt();
    if (status == HY_OK) status = find_model(path, NULL, folder, &err);
    if (status == HY_OK) status = hy_model_open(folder, &b->options, &b->model, &err);
    if (status == HY_OK) {
        hy_model_describe(b->model, &b->info);
        if (!b->json) print_heading(b);
        fflush(stdout);
        status = run_cases(b, &err);
    }
    if (status == HY_OK && b->json && !print_json(b)) status = error_memory(&err, "the JSON", 1 << 20);
    fflush(stdout);
    if (status != HY_OK) cli_error(&err);
    hy_model_close(b->model);
    return cli_exit(status);
}

int bench_engine(int argc, char **argv)
{
    engine_bench *b = calloc(1, sizeof *b);
    if (!b) return 1;
    b->contexts = "16", b->batches = "1,64", b->runs = 5, b->tokens = 32;
    cli_option table[FLAGS_MAX] = {
        {"context", "LIST", "tokens of each prompt, such as 16,4096 (default 16)", &b->contexts, CLI_STRING},
        {"batch", "LIST", "requests in flight (default 1,64)", &b->batches, CLI_STRING},
        {"tokens", "N", "steps of a run, a token for each request (default 32)", &b->tokens, CLI_INT},
        {"runs", "N", "runs whose medians are shown (default 5)", &b->runs, CLI_INT},
        {"temperature", "T", "of sampling; 0 (default): the largest logit", &b->temperature, CLI_FLOAT},
        {"json", NULL, "one JSON object on stdout instead of tables", &b->json, CLI_FLAG},
    };
    int lines = 0;
    while (table[lines].name) lines++;
    lines = flags_backend_table(&b->options, table, lines);
    const char *places[1];
    int count = 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->wake, NULL);
    int code = cli_parse("bench engine", "bench engine MODEL [flags]", about, table, lines, argc, argv, places, &count);
    if (code < 0) code = count ? run(b, places[0]) : cli_usage_error("bench engine", "name the folder of a model");
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    free(b);
    return code;
}
