/*
 * hayate bench speculation: what drafts bring, on real prompts.
 *
 * Tasks of the bundled generators are asked, their prompts cached beforehand so that steps decode. For each batch an
 * engine without drafts and one with them answer the same questions in turn, always `batch` of them at once: the window
 * of a run ends when the last waiting question has begun. Beside the speed-up stands what follows from bytes and
 * operations (cli/speculation_cost.h).
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "cli/bench_questions.h"
#include "cli/bench_report.h"
#include "cli/cli.h"
#include "cli/find_model.h"
#include "cli/flags.h"
#include "cli/speculation.h"
#include "cli/speculation_rate.h"

enum { MAX_RUNS = 100, MAX_ROWS = 512, METHODS = 4 };

static const char *const method_names[METHODS] = {"coupled", "standard", "block", "synthetic"};

static const char about[] =
    "Times an engine with drafts beside one without them, over the same questions of the bundled generators, and sets "
    "the "
    "speed-up beside what the bytes and operations of a step predict. Answers end where the model ends them, so the "
    "accepted "
    "length (the target's own token of a round included) is that of text. A model without a tokenizer takes one with "
    "--tokenizer and --chat-template minimax-m3; what it is asked then means nothing to it, and --synthetic-length "
    "stands in for "
    "a drafter that does.\n\n"
    "With --write-table FILE the drafts that were fastest at each batch are written, for num_speculative_tokens auto "
    "with the "
    "member draft_table.\n\n"
    "examples:\n  hayate bench speculation models/m3-nano\n"
    "  hayate bench speculation models/m3-nano --drafts 1,2,3,5,7 --batch 1,2,4,8,16 --methods coupled --write-table "
    "drafts.json\n"
    "  hayate bench speculation SLICE --tokenizer models/m3-nano --chat-template minimax-m3 --synthetic-length 3.2";

/* One run of an engine. */
typedef struct run_result {
    double seconds, tokens, steps, rounds, drafts, accepted;
    double answers, prompt; /* answers that began; tokens of prompts that were computed */
    double forward_s, sample_s, draft_s;
} run_result;

/* A row of the report: medians over the runs. */
typedef struct row {
    const char *method;
    int drafts, batch;
    double tokens_per_second, plain, speedup, lowest, highest, predicted, accepted_length;
    double step_s, forward_s, sample_s, draft_s; /* of a step */
    double plain_step_s;
    double plain_expected, forward_expected, sample_expected, draft_expected; /* of a step, as the rates have it */
} row;

/* Of one run: what a step without drafts and one with them should take, and the part of a prompt that is computed. */
typedef struct expectation {
    speculation_seconds plain, drafted;
    double plain_prompt, drafted_prompt;
} expectation;

typedef struct spec_bench spec_bench;

/* One question in flight. */
typedef struct stream {
    spec_bench *bench;
    uint16_t *size; /* [tokens] with --write-rounds: tokens of each of its steps, the first being the prompt's; owned */
    int steps;
    uint64_t last; /* the engine's count of steps at its last token */
    hy_finish finish;
} stream;

struct spec_bench {
    hy_model_options options;
    const char *drafts_text, *batches_text, *methods_text, *drafter, *table, *prompts, *rounds;
    int runs, tokens, questions;
    float temperature;
    double length; /* synthetic; 0: not given */
    int64_t seed;
    bool json, greedy;
    int32_t drafts[BENCH_MAX_LIST], batch[BENCH_MAX_LIST];
    int drafts_count, batch_count;
    bool wanted[METHODS];
    hy_model *model;
    hy_model_info info;
    bench_questions question;
    stream *stream; /* [questions] */
    FILE *rounds_file;
    speculation_probe *probe;
    int32_t context; /* tokens of a sequence, about the mean */
    row row[MAX_ROWS];
    int row_count;

    /* Of one run, under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    hy_engine *engine;
    int begun, finished, window; /* questions; the run's window ends when `window` have finished */
    uint64_t tokens_seen;
    double end;
    hy_engine_stats after;
    hy_error failure;
};

/* ---- A run ------------------------------------------------------------------------------------------------------ */

/* Tokens of one step come one after the other, and the engine counts the step before the first of them. */
static void count_round(stream *s, size_t tokens)
{
    hy_engine_stats now;
    hy_engine_describe(s->bench->engine, &now);
    if (s->steps == 0 || now.steps != s->last) s->size[s->steps++] = 0;
    s->last = now.steps;
    s->size[s->steps - 1] = (uint16_t)(s->size[s->steps - 1] + tokens);
}

static bool on_event(void *user, const hy_event *e)
{
    stream *s = user;
    spec_bench *b = s->bench;
    pthread_mutex_lock(&b->lock);
    s->finish = e->finish;
    if (s->size && e->id_count > 0) count_round(s, e->id_count);
    bool over = b->end > 0;
    if (!over) b->tokens_seen += e->id_count;
    if (e->finish == HY_FINISH_ERROR && e->error) b->failure = *e->error;
    if (e->finish != HY_RUNNING) {
        b->finished++;
        if (!over && b->finished >= b->window) b->end = clock_seconds(), hy_engine_describe(b->engine, &b->after);
        pthread_cond_signal(&b->wake);
    }
    bool go_on = !atomic_load(cli_interrupted());
    pthread_mutex_unlock(&b->lock);
    return go_on;
}

static hy_status submit(spec_bench *b, int i, hy_request **request, hy_error *err)
{
    hy_request_options o = hy_request_defaults(b->model);
    hy_sampling *s = &o.sampling;
    o.prompt_ids = b->question.prompt[i].data, o.prompt_count = b->question.prompt[i].count;
    s->temperature = b->temperature, s->top_p = 1, s->top_k = 0, s->min_p = 0;
    s->seed = i, s->max_tokens = b->tokens;
    o.on_event = on_event, o.user = &b->stream[i];
    b->stream[i].steps = 0;
    return hy_engine_submit(b->engine, &o, request, err);
}

/* All questions through the engine. With `batch` the window ends when fewer than that are left in flight. */
static hy_status run_engine(spec_bench *b, hy_engine *engine, int batch, run_result *out, hy_error *err)
{
    hy_request **request = memory_zeroed((size_t)b->questions, sizeof *request);
    if (!request) return error_memory(err, "the requests", (size_t)b->questions * sizeof *request);
    hy_engine_stats before;
    hy_status status = HY_OK;
    pthread_mutex_lock(&b->lock);
    b->engine = engine, b->finished = 0, b->tokens_seen = 0, b->end = 0, b->failure = (hy_error){0};
    b->window = b->questions > batch ? b->questions - batch + 1 : 1;
    pthread_mutex_unlock(&b->lock);
    hy_engine_describe(engine, &before);
    double begin = clock_seconds();
    int sent = 0;
    for (; sent < b->questions && status == HY_OK; sent += status == HY_OK)
        status = submit(b, sent, &request[sent], err);
    pthread_mutex_lock(&b->lock);
    while (b->finished < sent) pthread_cond_wait(&b->wake, &b->lock);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < sent; i++) hy_request_close(request[i]);
    memory_free(request);
    if (status == HY_OK && atomic_load(cli_interrupted()))
        status = error_set(err, HY_CANCELLED, "the bench was stopped");
    if (status == HY_OK && b->failure.status != HY_OK) {
        status = b->failure.status;
        if (err) *err = b->failure;
    }
    const hy_engine_stats *a = &b->after;
    *out = (run_result){
        .seconds = b->end - begin,
        .tokens = (double)b->tokens_seen,
        .steps = (double)(a->steps - before.steps),
        .answers = b->window + batch - 1 < b->questions ? b->window + batch - 1 : b->questions,
        .prompt = (double)((a->prompt_tokens - a->prompt_cached) - (before.prompt_tokens - before.prompt_cached)),
        .rounds = (double)(a->draft_rounds - before.draft_rounds),
        .drafts = (double)(a->drafts - before.drafts),
        .accepted = (double)(a->drafts_accepted - before.drafts_accepted),
        .forward_s = a->forward_s - before.forward_s,
        .sample_s = a->sample_s - before.sample_s,
        .draft_s = a->draft_s - before.draft_s};
    return status;
}

/* `drafts` 0: without. */
static hy_status open_engine(spec_bench *b, const char *method, int drafts, int batch, hy_engine **engine,
                             hy_error *err)
{
    float rates[HY_MAX_DRAFTS] = {0};
    size_t blocks = 0;
    for (int i = 0; i < b->questions; i++)
        blocks += (b->question.prompt[i].count + (size_t)b->tokens + 16 + CACHE_BLOCK - 1) / CACHE_BLOCK + 1;
    hy_engine_options o = {.max_num_seqs = batch,
                           .max_waiting = b->questions + batch,
                           .max_num_batched_tokens =
                               512 > batch * (HY_MAX_DRAFTS + 1) ? 512 : batch * (HY_MAX_DRAFTS + 1),
                           .log_seconds = -1,
                           .cache_bytes = blocks * model_cache_layout(b->model)->row_bytes};
    if (drafts > 0) {
        bool synthetic = strcmp(method, "synthetic") == 0;
        speculation_rates(b->length, drafts, rates);
        o.speculation = (hy_speculation){
            .drafts = drafts, .method = method, .greedy_drafts = b->greedy, .rates = synthetic ? rates : NULL};
    }
    flags_log_start(HY_LOG_ERROR); /* a cache of just these questions is meant */
    hy_status status = hy_engine_open(b->model, &o, engine, err);
    flags_log_start(HY_LOG_WARNING);
    return status;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------ */

static double rate_of(const run_result *r)
{
    return r->seconds > 0 ? r->tokens / r->seconds : 0;
}

static double median_of(double *values, int n)
{
    return bench_median(values, n);
}

static void summarise(const spec_bench *b, const run_result *with, const run_result *plain, row *out)
{
    double ratio[MAX_RUNS], rate[MAX_RUNS], bare[MAX_RUNS], rounds = 0, accepted = 0, steps = 0;
    run_result sum = {0};
    for (int i = 0; i < b->runs; i++) {
        rate[i] = rate_of(&with[i]), bare[i] = rate_of(&plain[i]), ratio[i] = rate[i] / bare[i];
        rounds += with[i].rounds, accepted += with[i].accepted, steps += with[i].steps;
        sum.seconds += with[i].seconds, sum.forward_s += with[i].forward_s, sum.sample_s += with[i].sample_s;
        sum.draft_s += with[i].draft_s, sum.tokens += with[i].tokens;
    }
    out->tokens_per_second = median_of(rate, b->runs), out->plain = median_of(bare, b->runs);
    out->speedup = median_of(ratio, b->runs), out->lowest = ratio[0], out->highest = ratio[b->runs - 1];
    out->accepted_length = 1 + (rounds > 0 ? accepted / rounds : 0);
    out->step_s = sum.seconds / steps, out->forward_s = sum.forward_s / steps;
    out->sample_s = sum.sample_s / steps, out->draft_s = sum.draft_s / steps;
    double bare_seconds = 0, bare_steps = 0;
    for (int i = 0; i < b->runs; i++) bare_seconds += plain[i].seconds, bare_steps += plain[i].steps;
    out->plain_step_s = bare_seconds / bare_steps;
}

/* Tokens a second of a run whose steps and prompts take so long: each answer's first token comes with its prompt. */
static double expected_rate(const run_result *r, int batch, double step, double prompt)
{
    double steps = (r->rounds > 0 ? r->rounds : r->tokens - r->answers) / batch;
    return r->tokens / (steps * step + r->answers * prompt);
}

/* Medians of what was expected beside each run. */
static void summarise_expected(const spec_bench *b, const run_result *with, const run_result *plain,
                               const expectation *e, row *out)
{
    double ratio[MAX_RUNS], bare[MAX_RUNS], forward[MAX_RUNS], sample[MAX_RUNS], draft[MAX_RUNS];
    for (int i = 0; i < b->runs; i++) {
        const speculation_seconds *s = &e[i].drafted;
        bare[i] = speculation_seconds_sum(&e[i].plain), forward[i] = s->target + s->context;
        sample[i] = s->verify, draft[i] = s->draft;
        ratio[i] = expected_rate(&with[i], out->batch, speculation_seconds_sum(s), e[i].drafted_prompt) /
                   expected_rate(&plain[i], out->batch, bare[i], e[i].plain_prompt);
    }
    out->predicted = median_of(ratio, b->runs);
    out->plain_expected = median_of(bare, b->runs), out->forward_expected = median_of(forward, b->runs);
    out->sample_expected = median_of(sample, b->runs), out->draft_expected = median_of(draft, b->runs);
}

/* What steps take at the rates of now. Nothing else runs. */
static hy_status expect(spec_bench *b, const row *r, const run_result *plain, expectation *out, hy_error *err)
{
    int32_t prompt = (int32_t)(plain->prompt / plain->answers + 0.5);
    speculation_asked asked = {r->batch, 0, b->context, 1, false};
    speculation_probe_renew(b->probe);
    hy_status status = speculation_probe_step(b->probe, &asked, &out->plain, err);
    asked.drafts = r->drafts, asked.laws = strcmp(r->method, "coupled") != 0;
    asked.length = b->length > 0 ? b->length : 1 + r->drafts;
    if (status == HY_OK) status = speculation_probe_step(b->probe, &asked, &out->drafted, err);
    if (status == HY_OK) status = speculation_probe_prompt(b->probe, prompt, false, &out->plain_prompt, err);
    return status == HY_OK ? speculation_probe_prompt(b->probe, prompt, true, &out->drafted_prompt, err) : status;
}

/* Of the run with drafts that came last: a line for each question. */
static void write_rounds(const spec_bench *b, const row *r)
{
    for (int i = 0; i < b->questions; i++) {
        const stream *s = &b->stream[i];
        fprintf(
            b->rounds_file,
            "{\"method\": \"%s\", \"drafts\": %d, \"batch\": %d, \"question\": %d, \"finish\": \"%s\", \"tokens\": [",
            r->method, r->drafts, r->batch, i, flags_finish_name(s->finish));
        for (int k = 0; k < s->steps; k++) fprintf(b->rounds_file, "%s%d", k ? ", " : "", s->size[k]);
        fprintf(b->rounds_file, "]}\n");
    }
}

static hy_status measure(spec_bench *b, const char *method, int drafts, int batch, row *out, hy_error *err)
{
    hy_engine *plain = NULL, *with = NULL;
    run_result a[MAX_RUNS] = {0}, c[MAX_RUNS] = {0}, warm;
    expectation e[MAX_RUNS];
    *out = (row){.method = method, .drafts = drafts, .batch = batch};
    hy_status status = open_engine(b, method, 0, batch, &plain, err);
    if (status == HY_OK) status = open_engine(b, method, drafts, batch, &with, err);
    if (status == HY_OK) status = run_engine(b, plain, batch, &warm, err); /* also puts the prompts into the caches */
    if (status == HY_OK) status = run_engine(b, with, batch, &warm, err);
    for (int i = 0; i < b->runs && status == HY_OK; i++) {
        if (i % 2) status = run_engine(b, with, batch, &c[i], err); /* each goes first in turn */
        if (status == HY_OK) status = run_engine(b, plain, batch, &a[i], err);
        if (i % 2 == 0 && status == HY_OK) status = run_engine(b, with, batch, &c[i], err);
        if (i == 0 && status == HY_OK && b->rounds_file) write_rounds(b, out);
        if (status == HY_OK) status = expect(b, out, &a[i], &e[i], err);
    }
    hy_engine_close(with);
    hy_engine_close(plain);
    if (status == HY_OK) summarise(b, c, a, out), summarise_expected(b, c, a, e, out);
    return status;
}

/* ---- Report ----------------------------------------------------------------------------------------------------- */

static void print_heading(const spec_bench *b)
{
    bench_machine machine = bench_machine_of(model_ops(b->model), model_backend(b->model));
    bench_machine_print(&machine);
    bench_print_model(&b->info);
    printf("speculation: %d threads, %d questions of at most %d tokens, medians of %d runs, temperature %g%s\n\n",
           threads_count(model_pool(b->model)), b->questions, b->tokens, b->runs, (double)b->temperature,
           b->greedy ? ", greedy drafts" : "");
    printf("%-10s %6s %6s %9s %9s %9s %15s %9s   %s\n", "method", "batch", "drafts", "accepted", "tokens/s", "without",
           "speed-up", "predicted", "of a step: forward, verify, drafts, rest");
}

static void print_row(const row *r)
{
    double rest = r->step_s - r->forward_s - r->sample_s - r->draft_s;
    printf("%-10s %6d %6d %9.2f %9.1f %9.1f %5.2f (%.2f-%.2f) %9.2f   %.2f ms: %.0f %%, %.0f %%, %.0f %%, %.0f %%\n",
           r->method, r->batch, r->drafts, r->accepted_length, r->tokens_per_second, r->plain, r->speedup, r->lowest,
           r->highest, r->predicted, 1e3 * r->step_s, 100 * r->forward_s / r->step_s, 100 * r->sample_s / r->step_s,
           100 * r->draft_s / r->step_s, 100 * rest / r->step_s);
    fflush(stdout);
}

static void member(json_writer *w, const char *key, double value)
{
    writer_key(w, key), writer_number(w, value);
}

static void write_row(const spec_bench *b, const row *r, json_writer *w)
{
    writer_object(w);
    writer_key(w, "method"), writer_text(w, r->method);
    member(w, "temperature", (double)b->temperature);
    writer_key(w, "drafts"), writer_integer(w, r->drafts);
    writer_key(w, "batch"), writer_integer(w, r->batch);
    member(w, "accepted_length", r->accepted_length);
    member(w, "tokens_per_second", r->tokens_per_second);
    member(w, "plain_tokens_per_second", r->plain);
    member(w, "speedup", r->speedup);
    member(w, "speedup_lowest", r->lowest);
    member(w, "speedup_highest", r->highest);
    member(w, "predicted", r->predicted);
    member(w, "step_seconds", r->step_s);
    member(w, "forward_seconds", r->forward_s);
    member(w, "verify_seconds", r->sample_s);
    member(w, "draft_seconds", r->draft_s);
    member(w, "plain_step_seconds", r->plain_step_s);
    member(w, "predicted_plain_step_seconds", r->plain_expected);
    member(w, "predicted_forward_seconds", r->forward_expected);
    member(w, "predicted_verify_seconds", r->sample_expected);
    member(w, "predicted_draft_seconds", r->draft_expected);
    writer_end(w);
}

static bool print_json(const spec_bench *b)
{
    buffer out = {0};
    json_writer w = {.out = &out};
    bench_machine machine = bench_machine_of(model_ops(b->model), model_backend(b->model));
    writer_object(&w);
    bench_write_head("speculation", &machine, &w);
    writer_key(&w, "model"), bench_write_model(&b->info, &w);
    writer_key(&w, "threads"), writer_integer(&w, threads_count(model_pool(b->model)));
    writer_key(&w, "runs"), writer_integer(&w, b->runs);
    writer_key(&w, "questions"), writer_integer(&w, b->questions);
    writer_key(&w, "max_tokens"), writer_integer(&w, b->tokens);
    writer_key(&w, "greedy_drafts"), writer_bool(&w, b->greedy);
    if (b->length > 0) member(&w, "synthetic_length", b->length);
    writer_key(&w, "rows"), writer_array(&w);
    for (int i = 0; i < b->row_count; i++) write_row(b, &b->row[i], &w);
    writer_end(&w), writer_end(&w);
    bool ok = buffer_ok(&out);
    if (ok) printf("%s\n", out.data);
    buffer_free(&out);
    return ok;
}

/* The fastest drafts of each batch, by the first method that was measured; none where all are slower. */
static hy_status write_table(const spec_bench *b, hy_error *err)
{
    FILE *f = fopen(b->table, "w");
    if (!f) return error_at(err, HY_FAILED, b->table, "cannot write %.200s", b->table);
    fprintf(f, "{\"hayate_draft_table\": 1, \"model\": \"%s\", \"method\": \"%s\", \"temperature\": %g, \"batch\": [",
            strpbrk(b->info.name, "\"\\") ? "" : b->info.name, b->row[0].method, (double)b->temperature);
    for (int i = 0; i < b->batch_count; i++) fprintf(f, "%s%d", i ? ", " : "", b->batch[i]);
    fprintf(f, "], \"drafts\": [");
    for (int i = 0; i < b->batch_count; i++) {
        double best = 1;
        int drafts = 0;
        for (int k = 0; k < b->row_count; k++) {
            const row *r = &b->row[k];
            if (r->batch == b->batch[i] && r->method == b->row[0].method && r->speedup > best)
                best = r->speedup, drafts = r->drafts;
        }
        fprintf(f, "%s%d", i ? ", " : "", drafts);
    }
    fprintf(f, "]}\n");
    return fclose(f) == 0 ? HY_OK : error_at(err, HY_FAILED, b->table, "cannot write %.200s", b->table);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

static hy_status parse_methods(spec_bench *b, hy_error *err)
{
    for (const char *p = b->methods_text;; p++) {
        size_t n = strcspn(p, ",");
        int k = 0;
        while (k < METHODS && (strlen(method_names[k]) != n || strncmp(p, method_names[k], n) != 0)) k++;
        if (k == METHODS)
            return error_at(err, HY_USAGE, "--methods",
                            "--methods takes coupled, standard, block, synthetic, not '%.*s'", n < 40 ? (int)n : 40, p);
        b->wanted[k] = true;
        p += n;
        if (!*p) break;
    }
    if (b->wanted[3] != (b->length > 0))
        return error_at(err, HY_USAGE, "--synthetic-length", "the method synthetic and --synthetic-length go together");
    return HY_OK;
}

static hy_status parse_flags(spec_bench *b, hy_error *err)
{
    if (b->runs < 1 || b->runs > MAX_RUNS)
        return error_at(err, HY_USAGE, "--runs", "--runs takes 1 to %d, not %d", MAX_RUNS, b->runs);
    if (b->tokens < 1 || b->tokens > 65536)
        return error_at(err, HY_USAGE, "--tokens", "--tokens takes 1 to 65536, not %d", b->tokens);
    if (b->questions < 0 || b->questions > BENCH_MAX_QUESTIONS)
        return error_at(err, HY_USAGE, "--questions", "--questions takes 1 to %d, not %d", BENCH_MAX_QUESTIONS,
                        b->questions);
    if (!(b->temperature >= 0 && b->temperature <= 2))
        return error_at(err, HY_USAGE, "--temperature", "--temperature takes 0 to 2, not %g", (double)b->temperature);
    if (b->length != 0 && !(b->length >= 1 && b->length <= HY_MAX_DRAFTS + 1))
        return error_at(err, HY_USAGE, "--synthetic-length", "--synthetic-length takes 1 to %d, not %g",
                        HY_MAX_DRAFTS + 1, b->length);
    if (!b->methods_text) b->methods_text = b->length > 0 ? "synthetic" : "coupled,standard";
    hy_status status = parse_methods(b, err);
    if (status == HY_OK)
        status = bench_parse_list("--drafts", b->drafts_text, 1, HY_MAX_DRAFTS, b->drafts, &b->drafts_count, err);
    if (status == HY_OK) status = bench_parse_list("--batch", b->batches_text, 1, 1024, b->batch, &b->batch_count, err);
    for (int i = 1; i < b->batch_count && status == HY_OK && b->table; i++)
        if (b->batch[i] <= b->batch[i - 1])
            status = error_at(err, HY_USAGE, "--batch", "--write-table needs --batch in ascending order");
    int most = 0;
    for (int i = 0; i < b->batch_count; i++) most = b->batch[i] > most ? b->batch[i] : most;
    if (b->questions == 0 && !b->prompts) b->questions = 4 * most > 24 ? 4 * most : 24;
    return status;
}

static hy_status check_block(const spec_bench *b, hy_error *err)
{
    int block = model_ops_model(b->model)->drafter->block;
    for (int i = 0; i < b->drafts_count; i++)
        if (b->drafts[i] > block)
            return error_at(err, HY_USAGE, "--drafts", "--drafts %d is more than the drafter's block of %d",
                            b->drafts[i], block);
    return HY_OK;
}

static hy_status open_questions(spec_bench *b, hy_error *err)
{
    hy_status status = b->prompts ? bench_questions_read(b->model, b->prompts, b->questions, &b->question, err)
                                  : bench_questions_make(b->model, b->questions, (uint64_t)b->seed, &b->question, err);
    if (status != HY_OK) return status;
    b->questions = b->question.count;
    b->context = (int32_t)bench_questions_length(&b->question) + b->tokens / 4;
    b->stream = memory_zeroed((size_t)b->questions, sizeof *b->stream);
    if (!b->stream) return error_memory(err, "the questions", (size_t)b->questions * sizeof *b->stream);
    if (b->rounds && !(b->rounds_file = fopen(b->rounds, "w")))
        return error_at(err, HY_FAILED, b->rounds, "cannot write %.200s", b->rounds);
    for (int i = 0; i < b->questions; i++) {
        b->stream[i].bench = b;
        if (!b->rounds) continue;
        b->stream[i].size = memory_zeroed((size_t)b->tokens, sizeof *b->stream[i].size);
        if (!b->stream[i].size) return error_memory(err, "the rounds", (size_t)b->tokens * 2);
    }
    return HY_OK;
}

/* The questions one behind the other, as often as it takes. */
static hy_status open_probe(spec_bench *b, hy_error *err)
{
    int32_t batch = 0, drafts = 0, rows, length, n = 0;
    for (int i = 0; i < b->batch_count; i++) batch = b->batch[i] > batch ? b->batch[i] : batch;
    for (int i = 0; i < b->drafts_count; i++) drafts = b->drafts[i] > drafts ? b->drafts[i] : drafts;
    rows = batch * (1 + drafts) > CACHE_BLOCK ? batch * (1 + drafts) : CACHE_BLOCK, length = rows + b->context;
    int32_t *text = memory_zeroed((size_t)length, sizeof *text);
    if (!text) return error_memory(err, "a text", (size_t)length * sizeof *text);
    for (int i = 0; n < length; i = (i + 1) % b->questions)
        for (size_t k = 0; k < b->question.prompt[i].count && n < length; k++)
            text[n++] = b->question.prompt[i].data[k];
    hy_status status = speculation_probe_open(b->model, text, length, rows, &b->probe, err);
    memory_free(text);
    return status;
}

static hy_status close_questions(spec_bench *b, hy_status status, hy_error *err)
{
    for (int i = 0; b->stream && i < b->questions; i++) memory_free(b->stream[i].size);
    memory_free(b->stream);
    bench_questions_free(&b->question);
    if (b->rounds_file && fclose(b->rounds_file) != 0 && status == HY_OK)
        status = error_at(err, HY_FAILED, b->rounds, "cannot write %.200s", b->rounds);
    return status;
}

static hy_status run_cases(spec_bench *b, hy_error *err)
{
    hy_status status = HY_OK;
    for (int m = 0; m < METHODS; m++)
        for (int n = 0; n < b->batch_count; n++)
            for (int g = 0; g < b->drafts_count && status == HY_OK; g++) {
                if (!b->wanted[m] || b->row_count == MAX_ROWS) continue;
                if (m == 3 && b->length > b->drafts[g] + 1) continue; /* not reachable with so few */
                row *out = &b->row[b->row_count];
                status = measure(b, method_names[m], b->drafts[g], b->batch[n], out, err);
                if (status != HY_OK) break;
                b->row_count++;
                if (!b->json) print_row(out);
            }
    if (status == HY_OK && b->row_count == 0)
        status = error_set(err, HY_USAGE, "--synthetic-length is more than --drafts and one can reach");
    return status;
}

static int run(spec_bench *b, const char *path)
{
    hy_error err = {0};
    char folder[FIND_PATH_SIZE];
    hy_status status = parse_flags(b, &err);
    b->options.on_progress = cli_progress, b->options.drafter = b->drafter ? b->drafter : "on";
    cli_catch_interrupt();
    flags_log_start(HY_LOG_WARNING);
    if (status == HY_OK) status = find_model(path, NULL, folder, &err);
    if (status == HY_OK) status = hy_model_open(folder, &b->options, &b->model, &err);
    if (status == HY_OK) status = check_block(b, &err);
    if (status == HY_OK) {
        hy_model_describe(b->model, &b->info);
        status = open_questions(b, &err);
    }
    if (status == HY_OK) status = open_probe(b, &err);
    if (status == HY_OK && !b->json) print_heading(b);
    fflush(stdout);
    if (status == HY_OK) status = run_cases(b, &err);
    if (status == HY_OK && b->table) status = write_table(b, &err);
    if (status == HY_OK && b->json && !print_json(b)) status = error_memory(&err, "the JSON", 1 << 20);
    fflush(stdout);
    status = close_questions(b, status, &err);
    if (status != HY_OK) cli_error(&err);
    speculation_probe_close(b->probe);
    hy_model_close(b->model);
    return cli_exit(status);
}

int bench_speculation(int argc, char **argv)
{
    spec_bench *b = calloc(1, sizeof *b);
    if (!b) return 1;
    b->drafts_text = "1,2,3,7", b->batches_text = "1,4", b->runs = 3, b->tokens = 128, b->temperature = 1;
    hy_model_options *m = &b->options;
    cli_option table[FLAGS_MAX] = {
        {"drafts", "LIST", "drafts of a round (default 1,2,3,7)", &b->drafts_text, CLI_STRING},
        {"batch", "LIST", "questions at once (default 1,4)", &b->batches_text, CLI_STRING},
        {"methods", "LIST", "of coupled, standard, block, synthetic (default coupled,standard)", &b->methods_text,
         CLI_STRING},
        {"temperature", "T", "of sampling (default 1)", &b->temperature, CLI_FLOAT},
        {"greedy-drafts", NULL, "drafts are the likeliest tokens, not drawn", &b->greedy, CLI_FLAG},
        {"synthetic-length", "X", "the method synthetic with this accepted length, such as 3.2", &b->length,
         CLI_DOUBLE},
        {"questions", "N", "questions of a run (default: four times the largest batch, at least 24; of a file all)",
         &b->questions, CLI_INT},
        {"prompts", "FILE", "token ids, a question a line, in place of the bundled tasks", &b->prompts, CLI_STRING},
        {"write-rounds", "FILE", "write how many tokens each round of each answer made", &b->rounds, CLI_STRING},
        {"tokens", "N", "most tokens of an answer (default 128)", &b->tokens, CLI_INT},
        {"runs", "N", "runs whose medians are shown (default 3)", &b->runs, CLI_INT},
        {"seed", "N", "which questions there are (default 0)", &b->seed, CLI_LONG},
        {"drafter", "FOLDER", "a drafter in place of the model's own", &b->drafter, CLI_STRING},
        {"draft-kv-dtype", "FORMAT", "of the drafter's context: auto (default), fp8, bf16", &m->draft_cache_dtype,
         CLI_STRING},
        {"write-table", "FILE", "write the fastest drafts of each batch, for the member draft_table", &b->table,
         CLI_STRING},
        {"tokenizer", "PATH", "a folder or tokenizer.json (default: the model's folder)", &m->tokenizer, CLI_STRING},
        {"chat-template", "TEXT", "auto (default): the folder's; minimax-m3: the built-in one", &m->chat_template,
         CLI_STRING},
        {"json", NULL, "one JSON object on stdout instead of a table", &b->json, CLI_FLAG},
    };
    int lines = 0;
    while (table[lines].name) lines++;
    lines = flags_backend_table(&b->options, table, lines);
    const char *places[1];
    int count = 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->wake, NULL);
    int code = cli_parse("bench speculation", "bench speculation MODEL [flags]", about, table, lines, argc, argv,
                         places, &count);
    if (code < 0) code = count ? run(b, places[0]) : cli_usage_error("bench speculation", "name the folder of a model");
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    free(b);
    return code;
}
