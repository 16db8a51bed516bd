/* The limit of the process's memory, and what of it the cache of streamed experts gets. See model.h. */
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "cache/plan.h"
#include "model/model_parts.h"

#include <stdio.h>
#include <string.h>

/* For what is not counted: stacks, requests and their texts, buffers of the server, what the allocator keeps. */
enum { MARGIN = 32 << 20 };

hy_status model_memory_resolve(hy_model *m, const hy_model_options *o, ops_options *options, hy_error *err)
{
    const char *name = o->weights && *o->weights ? o->weights : "load";
    if (strcmp(name, "load") != 0 && strcmp(name, "stream") != 0)
        return error_at(err, HY_USAGE, "--weights", "--weights is load or stream, not '%.40s'", name);
    bool stream = strcmp(name, "stream") == 0;
    if ((stream || o->memory) && (!m->ops->measure || !m->ops->expert_memory))
        return error_at(err, HY_UNSUPPORTED, "--weights",
                        "the %s backend has no --weights stream and no --memory: use cpu", m->ops->name);
    m->kind = options->weights = stream ? OPS_WEIGHTS_STREAM : OPS_WEIGHTS_LOAD;
    m->limit = o->memory;
    if (stream && !m->limit) m->limit = memory_resident() + memory_available() / 10 * 9;
    options->bounded = m->limit != 0;
    return HY_OK;
}

/* Bytes of limit that are not taken; 0: none, or the limit is exceeded. */
static uint64_t left(const hy_model *m, uint64_t taken)
{
    uint64_t all = memory_resident() + MARGIN + m->engine_cache + taken;
    return all < m->limit ? m->limit - all : 0;
}

static ops_limits limits_of(const hy_model *m, const hy_engine_options *e)
{
    int rows = e && e->max_num_batched_tokens > 0 ? e->max_num_batched_tokens : MODEL_DEFAULT_ROWS;
    int sequences = e && e->max_num_seqs > 0 ? e->max_num_seqs : MODEL_DEFAULT_SEQUENCES;
    return (ops_limits){.rows = rows, .logit_rows = sequences < rows ? sequences : rows, .positions = m->max_len};
}

hy_status model_memory_check(hy_model *m, const hy_model_options *o, const ops_options *options, hy_error *err)
{
    if (!m->limit) return HY_OK;
    ops_limits limits = limits_of(m, o->engine);
    ops_memory need;
    m->ops->measure(&m->weights.shape, options, &limits, &need);
    m->expert_least = need.expert_least;
    uint64_t cache = o->engine && o->engine->cache_bytes ? o->engine->cache_bytes : m->layout.row_bytes;
    uint64_t taken = need.weights + need.step + cache + need.expert_least;
    if (left(m, taken) > 0) return HY_OK;
    char experts[96] = "";
    if (need.expert_least)
        snprintf(experts, sizeof experts, ", %.1f MB for the experts of two layers of a step",
                 (double)need.expert_least * 1e-6);
    return error_at(
        err, HY_NO_FIT, "--memory",
        "%.1f MB of memory are too little, %.1f MB are needed: %.1f MB of weights that stay, %.1f MB for a step "
        "of %d rows (--max-num-batched-tokens), %.1f MB of KV cache%s, %.1f MB for the program",
        (double)m->limit * 1e-6, (double)(memory_resident() + MARGIN + taken + 1) * 1e-6, (double)need.weights * 1e-6,
        (double)need.step * 1e-6, limits.rows, (double)cache * 1e-6, experts,
        (double)(memory_resident() + MARGIN) * 1e-6);
}

uint64_t model_memory_available(const hy_model *m, const ops_limits *limits)
{
    uint64_t available = memory_available();
    if (!m->limit) return available;
    ops_memory need;
    ops_options options = {.weights = m->kind, .activation = m->formats.activation, .pool = m->pool};
    m->ops->measure(&m->weights.shape, &options, limits, &need);
    uint64_t room = left(m, need.step + m->expert_least);
    if (room < available) available = room;
    /* A cache takes up to half of what is free, which is better spent on experts. Two blocks are the least. */
    if (m->expert_least) available = available / 4 > 4 * m->layout.row_bytes ? available / 4 : 4 * m->layout.row_bytes;
    return available;
}

void model_memory_begin(hy_model *m)
{
    if (m->expert_least) m->ops->expert_memory(m->backend, 0, NULL);
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
        hy_expert_stats stats;
        hy_status status = m->expert_least ? m->ops->expert_memory(m->backend, room, err) : HY_OK;
        if (status == HY_OK && m->engine_cache && model_expert_stats(m, &stats))
            log_line(HY_LOG_INFO, "expert cache: %llu of %llu experts (%.1f MB of %.1f MB allowed), read by %s",
                     (unsigned long long)stats.slots, (unsigned long long)stats.experts,
                     (double)(stats.slots * stats.slot_bytes) * 1e-6, (double)m->limit * 1e-6, stats.io);
        return status;
    }
    uint64_t need = memory_resident() + MARGIN + m->engine_cache + m->expert_least;
    m->engine_cache -= cache_bytes;
    return error_at(err, HY_NO_FIT, "--memory", "%.1f MB of memory are too little, %.1f MB are needed%s",
                    (double)m->limit * 1e-6, (double)(need + 1) * 1e-6,
                    cache_bytes
                        ? ": give the KV cache (--kv-cache-memory-bytes) or the steps (--max-num-batched-tokens) less"
                        : "");
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
