/* The limit of the process's memory, and what of it the cache of streamed experts gets. See model.h. */
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "cache/plan.h"
#include "cache/store.h"
#include "model/model_parts.h"

#include <stdio.h>
#include <string.h>

/* A limit beyond what the machine has would be kept by no one: the program is ended, or swaps. */
static void warn_of_machine(uint64_t limit)
{
    char given[32], has[32];
    uint64_t machine = memory_total();
    if (limit > machine)
        log_line(HY_LOG_WARNING, "--memory %s is more than the %s of this machine: it may run out before the limit",
                 memory_text(limit, given), memory_text(machine, has));
}

hy_status model_memory_resolve(hy_model *m, const hy_model_options *o, ops_options *options, hy_error *err)
{
    const char *name = o->weights && *o->weights ? o->weights : "load";
    if (strcmp(name, "load") != 0 && strcmp(name, "stream") != 0)
        return error_at(err, HY_USAGE, "--weights", "--weights is load or stream, not '%.40s'", name);
    bool stream = strcmp(name, "stream") == 0;
    if ((stream || o->memory) && (!m->ops->measure || !m->ops->expert_memory))
        return error_at(err, HY_USAGE, "--weights", "the %s backend has no --weights stream and no --memory: use cpu",
                        m->ops->name);
    m->kind = options->weights = stream ? OPS_WEIGHTS_STREAM : OPS_WEIGHTS_LOAD;
    m->limit = o->memory;
    warn_of_machine(m->limit);
    if ((stream || m->limit) && !memory_resident())
        return error_set(err, HY_FAILED,
                         "--memory and --weights stream need to know what memory the process has, and /proc/self/statm "
                         "cannot be read (is there a /proc, are there file descriptors left?)");
    if (stream && !m->limit) m->limit = memory_resident() + memory_available() / 10 * 9;
    options->bounded = m->limit != 0;
    return HY_OK;
}

/* What memory_text shows of it is not less than `bytes`. */
static uint64_t round_up(uint64_t bytes)
{
    uint64_t unit = 1;
    while (bytes / unit >= 1000) unit *= 1000;
    return bytes_sum(bytes, bytes / unit < 10 ? unit / 200 : unit / 20);
}

/* Where the system stops telling, everything counts as taken: a limit that cannot be watched is not exceeded. */
static uint64_t resident(const hy_model *m)
{
    uint64_t bytes = memory_resident();
    return bytes || !m->limit ? bytes : m->limit;
}

/* Bytes of limit that are not taken; 0: none, or the limit is exceeded. */
static uint64_t left(const hy_model *m, uint64_t taken)
{
    uint64_t all = bytes_sum(resident(m) + MODEL_MEMORY_MARGIN + m->engine_cache, taken);
    return all < m->limit ? m->limit - all : 0;
}

static ops_limits limits_of(const hy_model *m, const hy_engine_options *e)
{
    int rows = e && e->max_num_batched_tokens > 0 ? e->max_num_batched_tokens : MODEL_DEFAULT_ROWS;
    int sequences = e && e->max_num_seqs > 0 ? e->max_num_seqs : MODEL_DEFAULT_SEQUENCES;
    ops_limits l = {.rows = rows, .positions = m->max_len};
    if (m->drafts && e && e->speculation.drafts > 0) { /* every sequence verifies: as many rows more that want logits */
        const char *method = e->speculation.method;
        l.drafts = sequences;
        l.draft_rows = e->speculation.drafts < m->weights.shape.drafter->block ? e->speculation.drafts
                                                                               : m->weights.shape.drafter->block;
        l.draft_laws = method && *method && strcmp(method, "coupled") != 0 && !e->speculation.greedy_drafts;
    }
    int64_t logits = (int64_t)sequences * (1 + l.draft_rows);
    l.logit_rows = logits < rows ? (int32_t)logits : rows;
    return l;
}

static uint64_t tier_bytes(const hy_model *m, const hy_engine_options *e)
{
    return e ? store_memory(m->layout.row_bytes, e->offload_memory, e->offload_disk != NULL) : 0;
}

/* Without a limit: what is free must hold it. Said in one line before anything is read. */
static hy_status check_machine(const hy_model *m, const hy_engine_options *e, const ops_options *options, hy_error *err)
{
    if (!m->ops->measure || model_memory_own(m)) return HY_OK; /* `open` looks at memory of its own */
    ops_limits limits = limits_of(m, e);
    ops_memory need;
    m->ops->measure(&m->weights.shape, options, &limits, &need);
    uint64_t available = memory_available(), tiers = tier_bytes(m, e);
    uint64_t taken = bytes_sum(bytes_sum(need.weights, need.step), tiers);
    cache_plan plan = {.bytes = e && e->cache_bytes ? e->cache_bytes : m->layout.row_bytes};
    char parts[6][32];
    if (bytes_sum(taken, plan.bytes) > available)
        return error_at(err, HY_NO_FIT, "memory",
                        "%s of memory are free and %s are needed: %s of weights, %s for a step of at most %d batched "
                        "tokens, %s of KV cache or more, %s for blocks that leave it; %s",
                        memory_text(available, parts[0]), memory_text(round_up(bytes_sum(taken, plan.bytes)), parts[1]),
                        memory_text(need.weights, parts[2]), memory_text(need.step, parts[3]), limits.rows,
                        memory_text(plan.bytes, parts[4]), memory_text(tiers, parts[5]),
                        tiers > taken / 2 ? "give --kv-offload-memory less"
                                          : "try --weights stream, a smaller cache or fewer batched tokens");
    hy_status status =
        cache_plan_make(m->layout.row_bytes, m->max_len, e ? e->cache_bytes : 0, available - taken, &plan, err);
    if (status != HY_OK || !e) return status;
    log_line(
        HY_LOG_INFO,
        "memory plan: %s of weights, %s for steps of at most %d rows, %s of KV cache, %s for blocks that leave it; "
        "%s are free",
        memory_text(need.weights, parts[0]), memory_text(need.step, parts[1]), limits.rows,
        memory_text(plan.bytes, parts[2]), memory_text(tiers, parts[3]), memory_text(available, parts[4]));
    return HY_OK;
}

hy_status model_memory_check(hy_model *m, const hy_model_options *o, const ops_options *options, hy_error *err)
{
    if (!m->limit) return check_machine(m, o->engine, options, err);
    ops_limits limits = limits_of(m, o->engine);
    ops_memory need;
    m->ops->measure(&m->weights.shape, options, &limits, &need);
    m->expert_least = need.expert_least;
    uint64_t cache = o->engine && o->engine->cache_bytes ? o->engine->cache_bytes : m->layout.row_bytes;
    cache = bytes_sum(cache, tier_bytes(m, o->engine));
    uint64_t taken = bytes_sum(need.weights + need.step + need.readers + need.expert_least, cache); /* as asked for */
    if (left(m, taken) > 0) return HY_OK;
    uint64_t program = resident(m) + MODEL_MEMORY_MARGIN;
    char parts[8][32], experts[160] = "";
    if (need.expert_least)
        snprintf(experts, sizeof experts,
                 ", %s for the experts of two layers of one token, %s of buffers of their readers",
                 memory_text(need.expert_least, parts[0]), memory_text(need.readers, parts[1]));
    return error_at(err, HY_NO_FIT, "--memory",
                    "%s of memory are too little, %s are needed: %s of weights that stay, %s for a step (at "
                    "most %d batched tokens), %s of KV cache and its tiers%s, %s for the program",
                    memory_text(m->limit, parts[2]), memory_text(round_up(bytes_sum(program + 1, taken)), parts[3]),
                    memory_text(need.weights, parts[4]), memory_text(need.step, parts[5]), limits.rows,
                    memory_text(cache, parts[6]), experts, memory_text(program, parts[7]));
}

uint64_t model_memory_for_cache(uint64_t room, uint64_t row_bytes)
{
    return room / 4 > 4 * row_bytes ? room / 4 : 4 * row_bytes;
}

bool model_memory_own(const hy_model *m)
{
    return m->ops->memory_free != NULL;
}

uint64_t model_memory_free(const hy_model *m)
{
    return model_memory_own(m) ? m->ops->memory_free(m->backend) : memory_available();
}

uint64_t model_memory_available(const hy_model *m, const ops_limits *limits)
{
    uint64_t available = model_memory_free(m);
    if (!m->limit && !model_memory_own(m)) return available;
    ops_memory need;
    ops_options options = {
        .weights = m->kind, .activation = m->formats.activation, .pool = m->pool, .gpu_wgmma_rows = m->gpu_wgmma_rows};
    m->ops->measure(&m->weights.shape, &options, limits, &need);
    if (model_memory_own(m)) return available > need.step ? available - need.step : 0;
    uint64_t room = left(m, need.step + m->expert_least);
    if (room < available) available = room;
    return m->expert_least ? model_memory_for_cache(available, m->layout.row_bytes) : available;
}

void model_memory_begin(hy_model *m)
{
    if (m->expert_least) m->ops->expert_memory(m->backend, 0, NULL);
}

static void log_cache(const hy_model *m)
{
    hy_expert_stats stats;
    char cache[32], limit[32];
    if (!model_expert_stats(m, &stats)) return;
    log_line(HY_LOG_INFO, "expert cache: %llu of %llu experts, %s of the %s that the process may take; read by %s",
             (unsigned long long)stats.slots, (unsigned long long)stats.experts,
             memory_text(stats.slots * stats.slot_bytes, cache), memory_text(m->limit, limit), stats.io);
}

hy_status model_memory_take(hy_model *m, uint64_t cache_bytes, hy_error *err)
{
    if (!m->limit) return HY_OK;
    m->engine_cache += cache_bytes;
    model_memory_begin(m);
    uint64_t room = left(m, 0);
    if (room > m->expert_least) {
        /* Without an engine yet, half of it: a step and its cache are still to come. */
        if (!m->engine_cache) room = room / 2 > m->expert_least ? room / 2 : m->expert_least;
        hy_status status = m->expert_least ? m->ops->expert_memory(m->backend, room, err) : HY_OK;
        if (status == HY_OK && m->engine_cache) log_cache(m);
        return status;
    }
    uint64_t need = resident(m) + MODEL_MEMORY_MARGIN + m->engine_cache + m->expert_least;
    m->engine_cache -= cache_bytes;
    char limit[32], needed[32];
    return error_at(err, HY_NO_FIT, "--memory", "%s of memory are too little, %s are needed%s",
                    memory_text(m->limit, limit), memory_text(round_up(need + 1), needed),
                    cache_bytes ? ": give the KV cache less memory or a step fewer batched tokens" : "");
}

void model_memory_give(hy_model *m, uint64_t cache_bytes)
{
    hy_error ignored;
    if (!m->limit) return;
    m->engine_cache -= cache_bytes;
    model_memory_take(m, 0, &ignored);
}

bool model_expert_stats(const hy_model *m, hy_expert_stats *out)
{
    return m->kind == OPS_WEIGHTS_STREAM && m->ops->expert_stats(m->backend, out);
}

const char *model_expert_text(const hy_expert_stats *now, const hy_expert_stats *since, char out[MODEL_EXPERT_TEXT])
{
    static const hy_expert_stats zero;
    const hy_expert_stats *last = since ? since : &zero;
    char bytes[32], cache[32];
    uint64_t hits = now->hits - last->hits, wants = hits + now->misses - last->misses;
    double percent = wants ? 100.0 / (double)wants : 0;
    snprintf(out, MODEL_EXPERT_TEXT,
             "experts: %s read (%s) in %llu loads, %.1f s waited; %llu wanted, %.1f %% in the cache (%.1f %% by "
             "look-ahead); cache of %llu of %llu experts, %s",
             memory_text(now->bytes_read - last->bytes_read, bytes), now->io,
             (unsigned long long)(now->loaded - last->loaded), now->wait_seconds - last->wait_seconds,
             (unsigned long long)wants, percent * (double)hits, percent * (double)(now->ahead_hits - last->ahead_hits),
             (unsigned long long)now->slots, (unsigned long long)now->experts,
             memory_text(now->slots * now->slot_bytes, cache));
    return out;
}
