/* Opening, closing and describing an engine: its options, the plan of its cache, its parts. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "engine/engine_parts.h"
#include "model/identity.h"

enum {
    DEFAULT_SEQUENCES = MODEL_DEFAULT_SEQUENCES,
    DEFAULT_ROWS = MODEL_DEFAULT_ROWS,
    MAX_SEQUENCES = 1 << 16,
    MAX_ROWS = 1 << 20,
    REPLAY_BYTES = 64 << 20, /* of answers that are remembered */
    LOG_SECONDS = 10,
    STALL_SECONDS = 60,
    SAVE_SECONDS = 20, /* for what still has to go to the tiers when an engine closes */
};

static const double CACHE_SHARE = 0.92;

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
                        ENGINE_WAITING, o->max_waiting);
    if (o->long_prefill_token_threshold < 0)
        return error_at(err, HY_USAGE, "long_prefill_token_threshold",
                        "long_prefill_token_threshold must be at least 1, or 0 for none, not %d",
                        o->long_prefill_token_threshold);
    if (!(o->watermark >= 0 && o->watermark <= 0.5))
        return error_at(err, HY_USAGE, "watermark", "watermark must be 0 .. 0.5, not %g", o->watermark);
    if (!(o->cache_share >= 0 && o->cache_share <= 1))
        return error_at(err, HY_USAGE, "cache_share", "cache_share must be above 0 and at most 1, or 0 for %g, not %g",
                        CACHE_SHARE, o->cache_share);
    if (!isfinite(o->log_seconds))
        return error_at(err, HY_USAGE, "log_seconds",
                        "log_seconds must be a number of seconds, 0 for %d or below 0 for no lines, not %g",
                        LOG_SECONDS, o->log_seconds);
    if (!isfinite(o->stall_seconds))
        return error_at(err, HY_USAGE, "stall_seconds",
                        "stall_seconds must be a number of seconds, 0 for %d or below 0 for never, not %g",
                        STALL_SECONDS, o->stall_seconds);
    const char *policy = o->scheduling_policy, *caching = o->prefix_caching;
    if (policy && strcmp(policy, "fcfs") != 0 && strcmp(policy, "priority") != 0)
        return error_at(err, HY_USAGE, "scheduling_policy", "scheduling_policy must be fcfs or priority, not \"%.64s\"",
                        policy);
    if (caching && strcmp(caching, "on") != 0 && strcmp(caching, "off") != 0)
        return error_at(err, HY_USAGE, "prefix_caching", "prefix_caching must be on or off, not \"%.64s\"", caching);
    if (caching && strcmp(caching, "off") == 0 && (o->offload_memory > 0 || o->offload_disk))
        return error_at(
            err, HY_USAGE, "prefix_caching",
            "tiers keep blocks to be found again, which prefix_caching off never does: leave one of them out");
    if (o->offload_disk_bytes > 0 && !o->offload_disk)
        return error_at(err, HY_USAGE, "offload_disk_bytes",
                        "offload_disk_bytes limits offload_disk, which was not given");
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
    /* The wording of the neighbours, whatever the backend: scripts look for it. Where it is, is said behind it. */
    log_line(HY_LOG_INFO, "Available KV cache memory: %.2f GiB", (double)e->plan.bytes / (double)(1 << 30));
    log_line(HY_LOG_INFO, "GPU KV cache size: %s tokens (%d blocks of %d, %.1f MB, in %s memory)", tokens,
             e->plan.blocks, CACHE_BLOCK, (double)e->plan.bytes * 1e-6,
             model_memory_own(e->model) ? "the GPU's" : "this machine's");
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

static ops_limits limits_of(const hy_engine *e, const hy_engine_options *o)
{
    int32_t sequences = o->max_num_seqs ? o->max_num_seqs : DEFAULT_SEQUENCES;
    int32_t rows = o->max_num_batched_tokens ? o->max_num_batched_tokens : DEFAULT_ROWS;
    return (ops_limits){.rows = rows,
                        .logit_rows = step_picks(sequences, rows, e->drafts_most),
                        .positions = e->model_len,
                        .drafts = e->drafts_most > 0 ? sequences : 0,
                        .draft_rows = e->drafts_most,
                        .draft_laws = e->drafts_most > 0 && e->method != VERIFY_COUPLED && !e->greedy_drafts};
}

/* Of a GPU's memory, which nobody else wants: what as many longest sequences take as may run by default, within its
 * share. */
static uint64_t own_cache_bytes(const hy_engine *e, int32_t positions, uint64_t available, double share)
{
    uint64_t wanted = (uint64_t)DEFAULT_SEQUENCES * (((uint64_t)positions + CACHE_BLOCK - 1) / CACHE_BLOCK);
    uint64_t most = (uint64_t)((double)available * (share > 0 ? share : CACHE_SHARE));
    uint64_t row = model_cache_layout(e->model)->row_bytes;
    return wanted < most / row ? wanted * row : most;
}

static hy_status plan_cache(hy_engine *e, const hy_engine_options *o, hy_error *err)
{
    const cache_layout *layout = model_cache_layout(e->model);
    ops_limits limits = limits_of(e, o);
    uint64_t available = model_memory_available(e->model, &limits), machine = memory_available();
    char asked[32], left[32];
    e->tier_bytes = store_memory(layout->row_bytes, o->offload_memory, o->offload_disk != NULL);
    if (e->tier_bytes >= machine)
        return error_at(err, HY_NO_FIT, "offload_memory",
                        "%s for blocks that leave the cache were asked for and %s of memory are free: ask for less",
                        memory_text(o->offload_memory, asked), memory_text(machine, left));
    uint64_t bytes = o->cache_bytes;
    if (model_memory_own(e->model)) {
        machine = available;
        if (!bytes) bytes = own_cache_bytes(e, limits.positions, available, o->cache_share);
    } else {
        machine -= e->tier_bytes;
        available = available > e->tier_bytes ? available - e->tier_bytes : 0;
    }
    hy_status status = cache_plan_make(layout->row_bytes, e->model_len, bytes, available, &e->plan, err);
    if (status != HY_OK) return status;
    if (o->cache_bytes > 0 && e->plan.bytes > machine)
        return error_at(err, HY_NO_FIT, "cache_bytes",
                        "a cache of %s was asked for and %s of memory are free: ask for less",
                        memory_text(o->cache_bytes, asked), memory_text(machine, left));
    log_plan(e);
    return HY_OK;
}

static void on_arrival(void *user)
{
    hy_engine *e = user;
    pthread_mutex_lock(&e->lock);
    e->arrived = true;
    pthread_cond_signal(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void on_describe(void *user, hy_engine_stats *stats)
{
    hy_engine_describe(user, stats);
}

/* What the streaming of experts did since the last line. */
static const char *on_extra(void *user, char *line, size_t size)
{
    hy_engine *e = user;
    hy_expert_stats now, last = e->logged;
    if (size < MODEL_EXPERT_TEXT || !model_expert_stats(e->model, &now)) return NULL;
    e->logged = now;
    return now.hits + now.misses > last.hits + last.misses ? model_expert_text(&now, &last, line) : NULL;
}

/* The cache's memory, the tiers behind it, and who holds what. */
static hy_status open_cache(hy_engine *e, const hy_engine_options *o, hy_error *err)
{
    const cache_layout *layout = model_cache_layout(e->model);
    cache_options c = {.blocks = e->plan.blocks,
                       .prefix = e->prefix_caching,
                       .ops = e->ops,
                       .row_bytes = layout->row_bytes,
                       .save_idle = o->offload_disk != NULL,
                       .wake = on_arrival,
                       .user = e};
    hy_status status = HY_OK;
    if (o->offload_disk) status = model_identity(e->model, c.identity, err);
    /* Without drafts nobody writes what a drafter would read in these blocks. */
    if (model_ops_model(e->model)->drafter && e->drafts_most == 0) c.identity[0] ^= 0x80;
    if (status == HY_OK && (o->offload_disk || o->offload_memory > 0)) {
        store_options tiers = {.row_bytes = layout->row_bytes,
                               .memory_bytes = o->offload_memory,
                               .folder = o->offload_disk,
                               .disk_bytes = o->offload_disk_bytes};
        memcpy(tiers.identity, c.identity, STORE_KEY);
        status = store_open(&tiers, &e->tiers, err);
    }
    if (status == HY_OK) status = e->ops->cache_open(model_backend(e->model), layout, e->plan.blocks, &e->cache, err);
    c.cache = e->cache, c.tiers = e->tiers;
    if (status == HY_OK) status = cache_open(&c, &e->manager, err);
    return status;
}

static hy_status open_scheduler(hy_engine *e, const hy_engine_options *o, hy_error *err)
{
    scheduler_options s = {.max_sequences = o->max_num_seqs ? o->max_num_seqs : DEFAULT_SEQUENCES,
                           .max_rows = o->max_num_batched_tokens ? o->max_num_batched_tokens : DEFAULT_ROWS,
                           .threshold = o->long_prefill_token_threshold,
                           .spare = (int32_t)(o->watermark * e->plan.blocks),
                           .by_priority = o->scheduling_policy && strcmp(o->scheduling_policy, "priority") == 0,
                           .max_len = e->plan.longest_tokens,
                           .drafts = e->drafts_most,
                           .by_batch = e->by_batch,
                           .by_batch_count = e->by_batch_count};
    hy_status status = scheduler_open(&s, e->manager, &e->sched, err);
    e->sched.admitted = planner_admitted, e->sched.user = e;
    for (int i = 0; i < 2 && status == HY_OK; i++)
        status = step_open(s.max_sequences, s.max_rows, e->drafts_most, &e->step[i], err);
    return status;
}

static hy_status open_parts(hy_engine *e, const hy_engine_options *o, hy_error *err)
{
    const text_tokenizer *tok = model_tokenizer(e->model);
    watch_options w = {.log_seconds = o->log_seconds == 0 ? LOG_SECONDS : o->log_seconds,
                       .stall_seconds = o->stall_seconds == 0 ? STALL_SECONDS : o->stall_seconds,
                       .layers = model_ops_model(e->model)->layers,
                       .describe = on_describe,
                       .extra = on_extra,
                       .user = e};
    hy_status status = plan_cache(e, o, err);
    if (status == HY_OK && tok) status = mark_tokens(e, tok, err);
    if (status == HY_OK && tok) status = replay_open(tok, REPLAY_BYTES, &e->replay, err);
    if (status != HY_OK) return status;
    if (!(e->turn = turn_open(model_backend(e->model)))) return error_memory(err, "the engine", sizeof *e);
    ops_limits limits = limits_of(e, o);
    limits.positions = e->plan.longest_tokens;
    turn_take(e->turn); /* from here the model's streamed experts have no memory until model_memory_take */
    model_memory_begin(e->model);
    status = open_cache(e, o, err);
    if (status == HY_OK) status = open_scheduler(e, o, err);
    if (status == HY_OK) status = watch_open(&w, &e->watch, err);
    runner_options r = {.model = e->model,
                        .turn = e->turn,
                        .cache = e->cache,
                        .limits = &limits,
                        .greedy_drafts = e->greedy_drafts,
                        .rates = e->rates,
                        .confidence = e->confidence,
                        .mask = e->has_token,
                        .watch = e->watch,
                        .lock = &e->lock,
                        .changed = &e->changed};
    if (status == HY_OK) status = runner_open(&r, &e->runner, err);
    if (status == HY_OK) {
        status = model_memory_take(e->model, e->plan.bytes + e->tier_bytes, err);
        e->counted = status == HY_OK;
    }
    turn_leave(e->turn);
    return status;
}

static void free_engine(hy_engine *e)
{
    runner_close(e->runner);
    watch_close(e->watch);
    if (e->manager && e->tiers) {
        double end = clock_seconds() + SAVE_SECONDS;
        uint32_t left = (uint32_t)cache_save_all(e->manager, SAVE_SECONDS);
        left += store_finish(e->tiers, end - clock_seconds());
        if (left > 0)
            log_line(HY_LOG_WARNING, "%u blocks of the cache were not written to the tiers within %d seconds", left,
                     SAVE_SECONDS);
    }
    store_close(e->tiers); /* reads that run write into the cache */
    cache_close(e->manager);
    if (e->turn) turn_take(e->turn);
    if (e->cache) e->ops->cache_close(e->cache);
    if (e->counted) model_memory_give(e->model, e->plan.bytes + e->tier_bytes);
    if (e->turn) turn_leave(e->turn);
    turn_close(e->turn);
    for (int i = 0; i < 2; i++) step_close(&e->step[i]);
    scheduler_close(&e->sched);
    replay_close(e->replay);
    memory_free(e->has_token);
    memory_free(e->by_batch);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    memory_free(e);
}

hy_status hy_engine_open(hy_model *model, const hy_engine_options *options, hy_engine **engine, hy_error *err)
{
    static const hy_engine_options defaults;
    const hy_engine_options *o = options ? options : &defaults;
    hy_status status = check_options(o, err);
    if (status != HY_OK) return status;
    hy_engine *e = memory_zeroed(1, sizeof *e);
    if (!e) return error_memory(err, "the engine", sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->model = model, e->ops = model_ops(model);
    e->vocab = model_ops_model(model)->vocab, e->model_len = model_max_len(model);
    meters_init(&e->meters, e->model_len);
    e->prefix_caching = !o->prefix_caching || strcmp(o->prefix_caching, "off") != 0;
    e->max_waiting = o->max_waiting ? o->max_waiting : ENGINE_WAITING;
    status = speculation_open(e, &o->speculation, err);
    if (status == HY_OK) status = open_parts(e, o, err);
    if (status == HY_OK && pthread_create(&e->thread, NULL, planner_main, e) != 0)
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
    pthread_cond_signal(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    free_engine(engine);
}

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

const char *hy_miss_name(hy_miss miss)
{
    static const char *const names[HY_MISS_REASONS] = {"none", "new", "evicted", "salt", "template", "off", "damaged"};
    return miss >= 0 && miss < HY_MISS_REASONS ? names[miss] : "unknown";
}

void hy_engine_describe(const hy_engine *engine, hy_engine_stats *stats)
{
    hy_engine *e = (hy_engine *)engine; /* atomic_load takes no const in C17 */
    store_stats tiers = {0};
    if (e->tiers) store_describe(e->tiers, &tiers);
    *stats = (hy_engine_stats){
        .running = atomic_load(&e->running),
        .waiting = atomic_load(&e->waiting),
        .prompt_cached = atomic_load(&e->prompt_cached),
        .prompt_loaded = atomic_load(&e->prompt_loaded),
        .generated_tokens = atomic_load(&e->generated_tokens),
        .steps = atomic_load(&e->steps),
        .rows = atomic_load(&e->rows),
        .requests_finished = atomic_load(&e->finished),
        .cancelled = atomic_load(&e->cancelled),
        .failed = atomic_load(&e->failed),
        .refused = atomic_load(&e->refused),
        .failing_steps = atomic_load(&e->failing_steps),
        .preemptions = atomic_load(&e->preemptions),
        .draft_rounds = atomic_load(&e->draft_rounds),
        .drafts = atomic_load(&e->drafts),
        .drafts_accepted = atomic_load(&e->drafts_accepted),
        .speculates = e->drafts_most > 0,
        .draft_positions = e->drafts_most,
        .cache_usage = (double)atomic_load(&e->blocks_used) / (double)e->plan.blocks,
        .cache_blocks = (uint64_t)e->plan.blocks,
        .cache_bytes = e->plan.bytes,
        .cache_longest = (double)e->plan.bytes / (double)e->plan.longest_bytes,
        .prefix_caching = e->prefix_caching,
        .prefix_hits = atomic_load(&e->prefix_hits),
        .memory_hits = atomic_load(&e->memory_hits),
        .disk_hits = atomic_load(&e->disk_hits),
        .memory_blocks = tiers.memory_blocks,
        .disk_blocks = tiers.disk_blocks,
        .disk_written = tiers.written,
        .disk_damaged = atomic_load(&e->damaged),
        .plan_s =
            watch_seconds(e->watch, WATCH_PLANNER, WATCH_PLAN) + watch_seconds(e->watch, WATCH_PLANNER, WATCH_SPILL),
        .hand_out_s = watch_seconds(e->watch, WATCH_PLANNER, WATCH_HAND_OUT),
        .forward_s = watch_seconds(e->watch, WATCH_RUNNER, WATCH_FORWARD),
        .sample_s = watch_seconds(e->watch, WATCH_RUNNER, WATCH_SAMPLE),
        .draft_s = watch_seconds(e->watch, WATCH_RUNNER, WATCH_DRAFT),
        .wait_s = watch_seconds(e->watch, WATCH_RUNNER, WATCH_WAIT),
    };
    /* Sums of what was read once: they agree with their parts, and no difference ever goes back. */
    stats->prompt_tokens = atomic_load(&e->prompt_computed) + stats->prompt_cached + stats->prompt_loaded;
    stats->prefix_queries = atomic_load(&e->prefix_absent) + stats->prefix_hits;
    for (int i = 0; i < HY_MAX_DRAFTS; i++) stats->drafts_accepted_at[i] = atomic_load(&e->drafts_accepted_at[i]);
    for (int i = 0; i < HY_MISS_REASONS; i++) stats->misses[i] = atomic_load(&e->misses[i]);
    model_expert_stats(e->model, &stats->experts);
}

void hy_engine_measure(const hy_engine *engine, hy_engine_measures *measures)
{
    meters_read(&engine->meters, measures);
}
