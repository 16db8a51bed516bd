/* What only this engine knows: why prompts were not reused, what the tiers did, where a step's time went. */
#include "server/metrics_parts.h"

#define GAUGE(name, help) exposition_family(e, EXPOSITION_GAUGE, name, help)
#define COUNTER(name, help) exposition_family(e, EXPOSITION_COUNTER, name, help)

static void one(exposition *e, exposition_kind kind, const char *name, const char *help, double value)
{
    exposition_family(e, kind, name, help);
    exposition_sample(e, value, NULL);
}

static void write_cache(exposition *e, const hy_engine_stats *s)
{
    COUNTER("hayate:prefix_misses", "Admitted prompts by why not more of them was reused.");
    for (int i = 0; i < HY_MISS_REASONS; i++)
        exposition_sample(e, (double)s->misses[i], "reason", hy_miss_name((hy_miss)i), NULL);
    COUNTER("hayate:prefix_hit_tokens", "Tokens of prompts that were reused, by where they were.");
    exposition_sample(e, (double)s->prefix_hits, "tier", "cache", NULL);
    exposition_sample(e, (double)s->memory_hits, "tier", "memory", NULL);
    exposition_sample(e, (double)s->disk_hits, "tier", "disk", NULL);
    GAUGE("hayate:blocks", "Blocks of 128 tokens that requests use (cache), or that a tier keeps.");
    exposition_sample(e, s->cache_usage * (double)s->cache_blocks, "tier", "cache", NULL);
    exposition_sample(e, (double)s->memory_blocks, "tier", "memory", NULL);
    exposition_sample(e, (double)s->disk_blocks, "tier", "disk", NULL);
    one(e, EXPOSITION_GAUGE, "hayate:cache_blocks", "Blocks that the cache has room for.", (double)s->cache_blocks);
    one(e, EXPOSITION_COUNTER, "hayate:disk_blocks_written", "Blocks that were written to the tier on disk.",
        (double)s->disk_written);
    one(e, EXPOSITION_COUNTER, "hayate:disk_blocks_damaged", "Blocks on disk that were found damaged or gone.",
        (double)s->disk_damaged);
}

static void write_steps(exposition *e, const hy_engine_stats *s)
{
    one(e, EXPOSITION_COUNTER, "hayate:steps", "Steps of the engine.", (double)s->steps);
    one(e, EXPOSITION_COUNTER, "hayate:step_rows", "Rows of all steps: tokens that were computed.", (double)s->rows);
    COUNTER(
        "hayate:step_seconds",
        "Seconds by what they went into. Planning and handing out run beside forward and sample; wait: the computing "
        "thread lacked a plan.");
    exposition_sample(e, s->plan_s, "part", "plan", NULL);
    exposition_sample(e, s->forward_s, "part", "forward", NULL);
    exposition_sample(e, s->sample_s, "part", "sample", NULL);
    exposition_sample(e, s->draft_s, "part", "draft", NULL);
    exposition_sample(e, s->hand_out_s, "part", "hand_out", NULL);
    exposition_sample(e, s->wait_s, "part", "wait", NULL);
    one(e, EXPOSITION_COUNTER, "hayate:requests_refused", "Requests that found the queue full.", (double)s->refused);
    one(e, EXPOSITION_GAUGE, "hayate:failing_steps", "Steps that failed since the last one that did not.",
        s->failing_steps);
}

static void write_experts(exposition *e, const hy_expert_stats *x)
{
    if (x->slots == 0) return;
    one(e, EXPOSITION_GAUGE, "hayate:expert_slots", "Streamed experts that memory has room for.", (double)x->slots);
    COUNTER("hayate:expert_requests", "Streamed experts that layers of steps wanted, by whether they were there.");
    exposition_sample(e, (double)x->hits, "result", "hit", NULL);
    exposition_sample(e, (double)x->misses, "result", "miss", NULL);
    one(e, EXPOSITION_COUNTER, "hayate:expert_ahead_hits", "Experts that were there because of look-ahead.",
        (double)x->ahead_hits);
    one(e, EXPOSITION_COUNTER, "hayate:expert_ahead_reads", "Experts that look-ahead began to read.",
        (double)x->ahead_reads);
    one(e, EXPOSITION_COUNTER, "hayate:experts_loaded", "Experts that were read.", (double)x->loaded);
    one(e, EXPOSITION_COUNTER, "hayate:experts_evicted", "Experts that made room.", (double)x->evicted);
    one(e, EXPOSITION_COUNTER, "hayate:expert_bytes_read", "Bytes of experts that were read.", (double)x->bytes_read);
    one(e, EXPOSITION_COUNTER, "hayate:expert_wait_seconds", "Seconds that steps waited for experts.", x->wait_seconds);
}

static void write_connections(exposition *e, const http_totals *t)
{
    one(e, EXPOSITION_GAUGE, "hayate:http_connections", "Open connections.", (double)t->connections);
    one(e, EXPOSITION_GAUGE, "hayate:http_exchanges", "Requests that are being answered.", (double)t->exchanges);
    GAUGE("hayate:http_held_bytes", "Bytes of requests that are not complete, and of answers not taken.");
    exposition_sample(e, (double)t->incoming, "direction", "in", NULL);
    exposition_sample(e, (double)t->outgoing, "direction", "out", NULL);
    one(e, EXPOSITION_COUNTER, "hayate:http_connections_accepted", "Connections that were taken.", (double)t->accepted);
    COUNTER("hayate:http_shed", "What was cut off or turned away, by why: connections over the limit, too slow or with "
                                "too large a backlog; malformed: requests answered 4xx before a handler saw them "
                                "(broken HTTP, too large, no such path, no key).");
    exposition_sample(e, (double)t->turned_away, "reason", "limit", NULL);
    exposition_sample(e, (double)t->too_slow, "reason", "slow", NULL);
    exposition_sample(e, (double)t->malformed, "reason", "malformed", NULL);
    exposition_sample(e, (double)t->overflowed, "reason", "backlog", NULL);
}

void metrics_own(exposition *e, const hy_engine_stats *s, const hy_model_info *info, const http_totals *http)
{
    GAUGE("hayate:build_info", "What runs, as labels.");
    exposition_sample(e, 1, "version", HY_VERSION, "backend", info->backend, "moe_activation", info->moe_activation,
                      "readback", info->readback, NULL);
    write_cache(e, s);
    write_steps(e, s);
    write_experts(e, &s->experts);
    write_connections(e, http);
}
