/*
 * The engine: a thread that turns requests into tokens, step by step.
 *
 * A step: take in what was submitted, drop what was cancelled, plan the rows, run the network over them, sample, hand
 * out the tokens. Callbacks run on this thread with no lock held, so they may submit and cancel.
 *
 * Locks: `lock` guards the intake and the stop flag; a request's own lock guards its `done`; they are never held
 * together. Everything else belongs to the thread. Numbers for hy_engine_describe are atomics that it publishes.
 */
#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "cache/plan.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/turn.h"
#include "model/forward.h"

enum {
    DEFAULT_SEQUENCES = MODEL_DEFAULT_SEQUENCES,
    DEFAULT_ROWS = MODEL_DEFAULT_ROWS,
    DEFAULT_WAITING = 4096,
    MAX_SEQUENCES = 1 << 16,
    MAX_ROWS = 1 << 20,
    LOG_SECONDS = 10,
};

struct hy_engine {
    hy_model *model; /* borrowed */
    const hy_ops *ops;
    turn *turn;
    ops_cache *cache;
    ops_step *step;
    cache_plan plan;
    bool counted; /* the cache, in the model's memory */
    int32_t vocab, model_len, max_waiting;
    uint32_t *has_token; /* [ceil(vocab / 32)] ids that the tokenizer knows; NULL: without a tokenizer all may come */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    request_queue intake; /* under lock */
    uint64_t numbers;     /* under lock: requests submitted */
    bool stop;            /* under lock */

    scheduler sched;
    ops_sample *samples;  /* [max_sequences] */
    ops_sampled *sampled; /* [max_sequences] */
    hy_expert_stats logged;
    double next_log;

    atomic_int running, waiting;
    atomic_uint_least64_t prompt_tokens, generated_tokens, steps, finished;
    atomic_int blocks_used;
};

/* ---- Opening and closing -------------------------------------------------------------------------------------- */

static hy_status check_options(const hy_engine_options *o, hy_error *err)
{
    if (o->max_num_seqs < 0 || o->max_num_seqs > MAX_SEQUENCES)
        return error_at(err, HY_USAGE, "max_num_seqs", "max_num_seqs must be 1 .. %d, or 0 for %d, not %d",
                        MAX_SEQUENCES, DEFAULT_SEQUENCES, o->max_num_seqs);
    if (o->max_num_batched_tokens < 0 || o->max_num_batched_tokens > MAX_ROWS)
        return error_at(err, HY_USAGE, "max_num_batched_tokens",
                        "max_num_batched_tokens must be 1 .. %d, or 0 for %d, not %d", MAX_ROWS, DEFAULT_ROWS,
                        o->max_num_batched_tokens);
    if (o->max_waiting < 0)
        return error_at(err, HY_USAGE, "max_waiting", "max_waiting must be at least 1, or 0 for %d, not %d",
                        DEFAULT_WAITING, o->max_waiting);
    return HY_OK;
}

/* 12345678 as "12,345,678". */
static const char *grouped(uint64_t value, char out[32])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value), k = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) out[k++] = ',';
        out[k++] = digits[i];
    }
    out[k] = 0;
    return out;
}

static void log_plan(const hy_engine *e)
{
    char tokens[32], longest[32], len[32];
    double copies = (double)e->plan.bytes / (double)e->plan.longest_bytes;
    grouped((uint64_t)e->plan.blocks * CACHE_BLOCK, tokens);
    grouped((uint64_t)e->plan.longest_tokens, longest);
    grouped((uint64_t)e->model_len, len);
    log_line(HY_LOG_INFO, "KV cache size: %s tokens (%d blocks of %d, %.1f MB)", tokens, e->plan.blocks, CACHE_BLOCK,
             (double)e->plan.bytes * 1e-6);
    log_line(HY_LOG_INFO, "Maximum concurrency for %s tokens per request: %.2fx", len, copies);
    if (e->plan.longest_tokens < e->model_len)
        log_line(HY_LOG_WARNING,
                 "the cache holds no sequence of the model's %s tokens, which needs %.1f MB: requests of up to %s "
                 "tokens fit",
                 len, (double)e->plan.longest_bytes * 1e-6, longest);
}

/* Marks the ids that stand for some text. Rows of the vocabulary beyond the tokenizer, and gaps in it, are padding that
 * no request may be given. */
static hy_status mark_tokens(hy_engine *e, const text_tokenizer *tok, hy_error *err)
{
    size_t words = ((size_t)e->vocab + 31) / 32;
    e->has_token = memory_zeroed(words, sizeof *e->has_token);
    if (!e->has_token) return error_memory(err, "the vocabulary's mask", words * sizeof *e->has_token);
    for (int32_t i = 0; i < e->vocab; i++) {
        size_t length;
        text_tokenizer_bytes(tok, i, &length);
        if (length > 0) e->has_token[i / 32] |= 1u << (i % 32);
    }
    return HY_OK;
}

static hy_status open_parts(hy_engine *e, int32_t sequences, int32_t rows, uint64_t cache_bytes, hy_error *err)
{
    const cache_layout *layout = model_cache_layout(e->model);
    const text_tokenizer *tok = model_tokenizer(e->model);
    ops_limits limits = {.rows = rows, .logit_rows = sequences < rows ? sequences : rows, .positions = e->model_len};
    uint64_t available = model_memory_available(e->model, &limits);
    hy_status status = cache_plan_make(layout->row_bytes, e->model_len, cache_bytes, available, &e->plan, err);
    if (status != HY_OK) return status;
    char asked[32], left[32];
    uint64_t machine = memory_available();
    if (cache_bytes > 0 && e->plan.bytes > machine)
        return error_at(err, HY_NO_FIT, "cache_bytes",
                        "a cache of %s was asked for and %s of memory are free: ask for less",
                        memory_text(cache_bytes, asked), memory_text(machine, left));
    log_plan(e);
    if (!(e->turn = turn_open(model_backend(e->model)))) return error_memory(err, "the engine", sizeof *e);
    status = scheduler_open(sequences, rows, e->plan.blocks, e->plan.longest_tokens, &e->sched, err);
    if (status == HY_OK && tok) status = mark_tokens(e, tok, err);
    if (status != HY_OK) return status;
    e->samples = memory_zeroed((size_t)sequences, sizeof *e->samples);
    e->sampled = memory_zeroed((size_t)sequences, sizeof *e->sampled);
    if (!e->samples || !e->sampled)
        return error_memory(err, "the engine", (size_t)sequences * (sizeof *e->samples + sizeof *e->sampled));
    limits.positions = e->plan.longest_tokens;
    turn_take(e->turn);
    model_memory_begin(e->model);
    status = e->ops->cache_open(model_backend(e->model), layout, e->plan.blocks, &e->cache, err);
    if (status == HY_OK) status = e->ops->step_open(model_backend(e->model), &limits, &e->step, err);
    if (status == HY_OK) {
        status = model_memory_take(e->model, e->plan.bytes, err);
        e->counted = status == HY_OK;
    }
    turn_leave(e->turn);
    return status;
}

static void free_engine(hy_engine *e)
{
    if (e->turn) turn_take(e->turn);
    if (e->step) e->ops->step_close(e->step);
    if (e->cache) e->ops->cache_close(e->cache);
    if (e->counted) model_memory_give(e->model, e->plan.bytes);
    if (e->turn) turn_leave(e->turn);
    turn_close(e->turn);
    scheduler_close(&e->sched);
    memory_free(e->samples);
    memory_free(e->sampled);
    memory_free(e->has_token);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    memory_free(e);
}

static void *engine_main(void *arg);

hy_status hy_engine_open(hy_model *model, const hy_engine_options *options, hy_engine **engine, hy_error *err)
{
    static const hy_engine_options defaults;
    const hy_engine_options *o = options ? options : &defaults;
    hy_status status = check_options(o, err);
    if (status != HY_OK) return status;
    hy_engine *e = memory_zeroed(1, sizeof *e);
    if (!e) return error_memory(err, "the engine", sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    e->model = model, e->ops = model_ops(model);
    e->vocab = model_ops_model(model)->vocab, e->model_len = model_max_len(model);
    e->max_waiting = o->max_waiting ? o->max_waiting : DEFAULT_WAITING;
    status = open_parts(e, o->max_num_seqs ? o->max_num_seqs : DEFAULT_SEQUENCES,
                        o->max_num_batched_tokens ? o->max_num_batched_tokens : DEFAULT_ROWS, o->cache_bytes, err);
    if (status == HY_OK && pthread_create(&e->thread, NULL, engine_main, e) != 0)
        status =
            error_set(err, HY_FAILED, "could not start the engine's thread: the system has no room for another one");
    if (status != HY_OK) {
        free_engine(e);
        return status;
    }
    *engine = e;
    return HY_OK;
}

void hy_engine_close(hy_engine *engine)
{
    if (!engine) return;
    pthread_mutex_lock(&engine->lock);
    engine->stop = true;
    pthread_cond_signal(&engine->wake);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    free_engine(engine);
}

void hy_engine_describe(const hy_engine *engine, hy_engine_stats *stats)
{
    hy_engine *e = (hy_engine *)engine; /* atomic_load takes no const in C17 */
    *stats = (hy_engine_stats){
        .running = atomic_load(&e->running),
        .waiting = atomic_load(&e->waiting),
        .prompt_tokens = atomic_load(&e->prompt_tokens),
        .generated_tokens = atomic_load(&e->generated_tokens),
        .steps = atomic_load(&e->steps),
        .requests_finished = atomic_load(&e->finished),
        .cache_usage = (double)atomic_load(&e->blocks_used) / (double)e->plan.blocks,
        .cache_blocks = (uint64_t)e->plan.blocks,
        .cache_bytes = e->plan.bytes,
    };
    model_expert_stats(e->model, &stats->experts);
}

/* ---- Submitting ----------------------------------------------------------------------------------------------- */

/* Most tokens that the request may have in all, or why it can never be served. */
static hy_status length_limit(const hy_engine *e, const hy_request_options *o, int32_t *limit, hy_error *err)
{
    size_t prompt = o->prompt_count;
    int32_t longest = e->plan.longest_tokens, made = o->sampling.max_tokens, need = made > 0 ? made : 1;
    bool of_model = longest == e->model_len;
    const char *of = of_model ? "the model's length" : "what the cache holds";
    if (prompt >= (size_t)longest)
        return error_at(err, HY_NO_FIT, "prompt",
                        "the prompt has %zu tokens; %s is %d tokens, so that a prompt may have at most %d", prompt, of,
                        longest, longest - 1);
    if (need > longest - (int32_t)prompt)
        return error_at(
            err, HY_NO_FIT, "max_tokens",
            "the prompt has %zu tokens and max_tokens is %d, together more than %s of %d tokens: ask for at most %d",
            prompt, made, of, longest, longest - (int32_t)prompt);
    *limit = made > 0 ? (int32_t)prompt + made : longest;
    if (o->sampling.min_tokens > *limit - (int32_t)prompt)
        return error_at(err, HY_BAD_INPUT, "min_tokens",
                        "min_tokens must be at most %d, the room after the prompt, not %d", *limit - (int32_t)prompt,
                        o->sampling.min_tokens);
    return HY_OK;
}

static hy_status check_prompt(const hy_engine *e, const hy_request_options *o, hy_error *err)
{
    if (o->prompt_count == 0 || !o->prompt_ids)
        return error_at(err, HY_BAD_INPUT, "prompt", "the prompt is empty: it needs at least one token");
    for (size_t i = 0; i < o->prompt_count; i++)
        if (o->prompt_ids[i] < 0 || o->prompt_ids[i] >= e->vocab)
            return error_at(err, HY_BAD_INPUT, "prompt", "token id %d at place %zu of the prompt is outside 0 .. %d",
                            o->prompt_ids[i], i, e->vocab - 1);
    return HY_OK;
}

/* The owner has the pointer before the thread can take the request: its first event may come before submit returns. */
static hy_status enqueue(hy_engine *e, hy_request *r, hy_request **request, hy_error *err)
{
    hy_status status = HY_OK;
    bool drawn = r->params.s.seed == -1 && r->params.s.temperature >= 1e-5f;
    pthread_mutex_lock(&e->lock);
    if (e->stop) {
        status = error_set(err, HY_FAILED, "the engine has stopped");
    } else if (atomic_load(&e->waiting) >= e->max_waiting) {
        status = error_set(err, HY_FAILED, "the queue is full: %d requests wait; try again later", e->max_waiting);
    } else {
        r->number = ++e->numbers;
        /* Before the thread can take it: afterwards it may end and be closed at any moment. */
        if (drawn) log_line(HY_LOG_INFO, "request %" PRIu64 ": drew seed %" PRId64, r->number, r->seed);
        atomic_fetch_add(&e->waiting, 1);
        *request = r;
        queue_append(&e->intake, r);
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

static bool is_end(const hy_engine *e, const hy_sampling *s, int32_t id)
{
    const model_generation *g = model_generation_config(e->model);
    bool end = false;
    for (int i = 0; i < g->eos_count; i++) end |= g->eos[i] == id;
    for (size_t i = 0; i < s->stop_id_count; i++) end |= s->stop_ids[i] == id;
    return end;
}

/* An allowed list of padding alone, or before min_tokens of end ids alone, leaves nothing to choose. */
static hy_status check_allowed(const hy_engine *e, const hy_sampling *s, hy_error *err)
{
    if (s->allowed_count == 0) return HY_OK;
    for (size_t i = 0; i < s->allowed_count; i++) {
        int32_t id = s->allowed_ids[i];
        bool token = !e->has_token || (e->has_token[id / 32] >> (id % 32) & 1);
        if (token && (s->min_tokens == 0 || !is_end(e, s, id))) return HY_OK;
    }
    return error_at(err, HY_BAD_INPUT, "allowed_ids",
                    "allowed_ids leaves no token to choose: its ids stand for no text%s",
                    s->min_tokens > 0 ? ", or end the answer before min_tokens" : "");
}

hy_status hy_engine_submit(hy_engine *e, const hy_request_options *options, hy_request **request, hy_error *err)
{
    const text_tokenizer *tok = model_tokenizer(e->model);
    hy_request *r = NULL;
    int32_t limit = 0;
    hy_status status = check_prompt(e, options, err);
    if (status == HY_OK) status = params_check(&options->sampling, e->vocab, tok != NULL, err);
    if (status == HY_OK) status = check_allowed(e, &options->sampling, err);
    if (status == HY_OK) status = length_limit(e, options, &limit, err);
    if (status == HY_OK) status = request_open(options, tok, model_generation_config(e->model), limit, &r, err);
    if (status != HY_OK) return status;
    status = enqueue(e, r, request, err);
    if (status != HY_OK) {
        request_done(r);
        hy_request_close(r);
    }
    return status;
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

/* A request has ended and its owner was told: lets go of it. */
static void retire(hy_engine *e, hy_request *r)
{
    scheduler_remove(&e->sched, r);
    atomic_fetch_add(&e->finished, 1);
    atomic_store(&e->running, e->sched.running_count);
    atomic_store(&e->blocks_used, blocks_count(e->sched.blocks) - blocks_free_count(e->sched.blocks));
    request_done(r);
}

static void end_request(hy_engine *e, hy_request *r, hy_finish finish, const hy_error *error)
{
    if (r->slot < 0) atomic_fetch_sub(&e->waiting, 1);
    request_end(r, finish, error);
    retire(e, r);
}

/* Ends what its owner does not want any more; with `all`, everything. */
static void sweep(hy_engine *e, bool all)
{
    for (int32_t i = e->sched.running_count; i > 0; i--) {
        hy_request *r = e->sched.running[i - 1];
        if (all || atomic_load_explicit(&r->cancel, memory_order_relaxed)) end_request(e, r, HY_FINISH_CANCEL, NULL);
    }
    for (hy_request *r = e->sched.waiting.first, *next; r; r = next) {
        next = r->next;
        if (all || atomic_load_explicit(&r->cancel, memory_order_relaxed)) end_request(e, r, HY_FINISH_CANCEL, NULL);
    }
}

static void describe_sample(const hy_engine *e, const hy_request *r, int32_t row, ops_sample *out)
{
    const hy_sampling *s = &r->params.s;
    *out = (ops_sample){
        .logit_row = row,
        .seed = (uint64_t)r->seed,
        .position = (uint32_t)request_known(r), /* that the drawn token will occupy */
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .top_k = s->top_k,
        .repetition_penalty = s->repetition_penalty,
        .frequency_penalty = s->frequency_penalty,
        .presence_penalty = s->presence_penalty,
        .prompt = r->ids,
        .prompt_count = r->prompt_count,
        .output = r->ids + r->prompt_count,
        .output_count = r->output_count,
        .allowed = s->allowed_ids,
        .allowed_count = (int32_t)s->allowed_count,
        .min_tokens = s->min_tokens,
        .end_ids = r->params.end_ids,
        .end_id_count = r->params.end_count,
        .bias = s->bias,
        .bias_count = (int32_t)s->bias_count,
        .bad_words = s->bad_words,
        .bad_word_lengths = s->bad_word_lengths,
        .bad_word_count = (int32_t)s->bad_word_count,
        .mask = e->has_token,
        .logprobs = s->logprobs,
    };
}

static hy_status run_step(hy_engine *e, hy_error *err)
{
    scheduler *s = &e->sched;
    for (int32_t i = 0; i < s->pick_count; i++) describe_sample(e, s->pick[i], i, &e->samples[i]);
    turn_take(e->turn);
    forward_run(e->model, e->step, e->cache, &s->rows, NULL);
    if (s->pick_count > 0) e->ops->sample(e->step, e->samples, s->pick_count, e->sampled);
    hy_status status = e->ops->finish(e->step, err);
    turn_leave(e->turn);
    return status;
}

/* A step that failed fails those who had rows in it; the others and those to come go on. */
static void fail_step(hy_engine *e, const hy_error *error)
{
    log_line(HY_LOG_ERROR, "a step of %d rows failed: %s", e->sched.rows.count, error->message);
    for (int32_t i = e->sched.running_count; i > 0; i--) {
        hy_request *r = e->sched.running[i - 1];
        if (r->scheduled > 0) end_request(e, r, HY_FINISH_ERROR, error);
    }
}

static void hand_out(hy_engine *e)
{
    scheduler *s = &e->sched;
    for (int32_t i = 0; i < s->pick_count; i++) {
        hy_request *r = s->pick[i];
        if (e->sampled[i].id < 0) {
            hy_error error;
            error_set(&error, HY_FAILED,
                      "no token is left to choose for position %d: its logits are not finite, or every one is masked",
                      request_known(r));
            log_line(HY_LOG_ERROR, "request %" PRIu64 ": %s", r->number, error.message);
            end_request(e, r, HY_FINISH_ERROR, &error);
            continue;
        }
        atomic_fetch_add(&e->generated_tokens, 1);
        request_token(r, &e->sampled[i]);
        if (r->finish != HY_RUNNING) retire(e, r);
    }
}

/* What the streaming of experts did since the last line: every LOG_SECONDS of work, and `now` before a pause. */
static void log_experts(hy_engine *e, bool now)
{
    hy_expert_stats stats;
    char line[MODEL_EXPERT_TEXT];
    double time = clock_seconds();
    if (e->next_log == 0) e->next_log = time + LOG_SECONDS;
    if ((!now && time < e->next_log) || !model_expert_stats(e->model, &stats)) return;
    if (stats.hits + stats.misses > e->logged.hits + e->logged.misses)
        log_line(HY_LOG_INFO, "%s", model_expert_text(&stats, &e->logged, line));
    e->next_log = now ? 0 : time + LOG_SECONDS;
    e->logged = stats;
}

/* Waits for work. False: the engine stops. */
static bool take_in(hy_engine *e)
{
    if (e->sched.waiting.count == 0 && e->sched.running_count == 0) log_experts(e, true);
    pthread_mutex_lock(&e->lock);
    while (!e->stop && e->intake.count == 0 && e->sched.waiting.count == 0 && e->sched.running_count == 0)
        pthread_cond_wait(&e->wake, &e->lock);
    queue_move(&e->sched.waiting, &e->intake);
    bool go_on = !e->stop;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

static void *engine_main(void *arg)
{
    hy_engine *e = arg;
    while (take_in(e)) {
        sweep(e, false);
        int32_t waiting = e->sched.waiting.count;
        if (scheduler_plan(&e->sched) == 0) continue; /* all were cancelled */
        atomic_fetch_sub(&e->waiting, waiting - e->sched.waiting.count);
        atomic_store(&e->running, e->sched.running_count);
        hy_error error = {0};
        if (run_step(e, &error) != HY_OK) {
            fail_step(e, &error);
            continue;
        }
        atomic_fetch_add(&e->steps, 1);
        atomic_fetch_add(&e->prompt_tokens, (uint64_t)scheduler_advance(&e->sched));
        atomic_store(&e->blocks_used, blocks_count(e->sched.blocks) - blocks_free_count(e->sched.blocks));
        hand_out(e);
        log_experts(e, false);
    }
    sweep(e, true);
    log_experts(e, true);
    return NULL;
}
