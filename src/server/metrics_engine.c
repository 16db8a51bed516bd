/* The engine's numbers, under the names of `vllm serve`. */
#include <stdio.h>

#include "backend/ops.h"
#include "server/metrics_parts.h"

#define GAUGE(name, help) exposition_family(e, EXPOSITION_GAUGE, name, help)
#define COUNTER(name, help) exposition_family(e, EXPOSITION_COUNTER, name, help)

static void one_counter(exposition *e, const char *name, const char *help, uint64_t value)
{
    COUNTER(name, help);
    exposition_sample(e, (double)value, NULL);
}

static void one_histogram(exposition *e, const char *name, const char *help, const hy_histogram *h)
{
    exposition_family(e, EXPOSITION_HISTOGRAM, name, help);
    exposition_histogram(e, h, NULL, 0);
}

static void write_gauges(exposition *e, const hy_engine_stats *s)
{
    GAUGE("vllm:num_requests_running", "Requests that are being computed.");
    exposition_sample(e, s->running, NULL);
    GAUGE("vllm:num_requests_waiting", "Requests that wait to be computed.");
    exposition_sample(e, s->waiting, NULL);
    GAUGE("vllm:num_requests_waiting_by_reason", "Requests that wait, by why: for room, or for something else.");
    exposition_sample(e, s->waiting, "reason", "capacity", NULL);
    exposition_sample(e, 0, "reason", "deferred", NULL);
    GAUGE("vllm:engine_sleep_state", "1 for the state that the engine is in.");
    exposition_sample(e, 1, "sleep_state", "awake", NULL);
    exposition_sample(e, 0, "sleep_state", "weights_offloaded", NULL);
    exposition_sample(e, 0, "sleep_state", "discard_all", NULL);
    GAUGE("vllm:kv_cache_usage_perc", "Part of the cache that is in use, 0 to 1.");
    exposition_sample(e, s->cache_usage, NULL);
}

static void write_tokens(exposition *e, const hy_engine_stats *s)
{
    uint64_t looked = s->prefix_queries - s->prefix_hits, reused = s->prompt_cached + s->prompt_loaded;
    one_counter(e, "vllm:prefix_cache_queries", "Tokens of prompts that were looked up in the cache.",
                s->prefix_queries);
    one_counter(e, "vllm:prefix_cache_hits", "Tokens of prompts that were found in the cache.", s->prefix_hits);
    one_counter(e, "vllm:external_prefix_cache_queries",
                "Tokens of prompts that the cache lacked: looked up in the tiers behind it.", looked);
    one_counter(e, "vllm:external_prefix_cache_hits", "Tokens of prompts that came back from the tiers.",
                s->memory_hits + s->disk_hits);
    one_counter(e, "vllm:mm_cache_queries", "Images that were looked up in a cache.", 0);
    one_counter(e, "vllm:mm_cache_hits", "Images that were found in a cache.", 0);
    one_counter(e, "vllm:num_preemptions", "Times that a request lost its cache to another one.", s->preemptions);
    one_counter(e, "vllm:prompt_tokens", "Tokens of prompts, computed or reused.", s->prompt_tokens);
    COUNTER("vllm:prompt_tokens_by_source", "Tokens of prompts by where they came from.");
    exposition_sample(e, (double)(s->prompt_tokens - reused), "source", "local_compute", NULL);
    exposition_sample(e, (double)s->prompt_cached, "source", "local_cache_hit", NULL);
    exposition_sample(e, (double)s->prompt_loaded, "source", "external_kv_transfer", NULL);
    one_counter(e, "vllm:prompt_tokens_cached", "Tokens of prompts that were reused.", reused);
    one_counter(e, "vllm:generation_tokens", "Tokens that were generated.", s->generated_tokens);
}

/* Only of an engine that drafts, as upstream has them. */
static void write_drafts(exposition *e, const hy_engine_stats *s)
{
    if (!s->speculates) return;
    one_counter(e, "vllm:spec_decode_num_drafts", "Rounds of drafts: a request in a step that verified some.",
                s->draft_rounds);
    one_counter(e, "vllm:spec_decode_num_draft_tokens", "Drafts that were verified.", s->drafts);
    one_counter(e, "vllm:spec_decode_num_accepted_tokens", "Drafts that were accepted.", s->drafts_accepted);
    COUNTER("vllm:spec_decode_num_accepted_tokens_per_pos", "Rounds in which the draft of this place was accepted.");
    for (int i = 0; i < s->draft_positions && i < HY_MAX_DRAFTS; i++) {
        char position[12];
        snprintf(position, sizeof position, "%d", i);
        exposition_sample(e, (double)s->drafts_accepted_at[i], "position", position, NULL);
    }
}

static void write_ends(exposition *e, const hy_engine_measures *m)
{
    const struct {
        const char *name;
        uint64_t count;
    } reasons[] = {{"stop", m->ended[HY_FINISH_STOP]},
                   {"length", m->ended[HY_FINISH_LENGTH]},
                   {"abort", m->ended[HY_FINISH_CANCEL]},
                   {"error", m->ended[HY_FINISH_ERROR]},
                   {"repetition", m->ended[HY_FINISH_REPETITION]}};
    COUNTER("vllm:request_success", "Requests that have ended, by why.");
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        exposition_sample(e, (double)reasons[i].count, "finished_reason", reasons[i].name, NULL);
}

static void write_histograms(exposition *e, const hy_engine_measures *m)
{
    one_histogram(e, "vllm:request_prompt_tokens", "Tokens of a request's prompt.", &m->prompt_tokens);
    one_histogram(e, "vllm:request_generation_tokens", "Tokens that a request generated.", &m->generated_tokens);
    one_histogram(e, "vllm:request_params_max_tokens", "Most tokens that a request could generate.", &m->max_tokens);
    one_histogram(e, "vllm:request_prefill_kv_computed_tokens", "Tokens of a request's prompt that were computed.",
                  &m->prefill_tokens);
    one_histogram(e, "vllm:iteration_tokens_total", "Tokens that a step of the engine computed.", &m->step_rows);
    one_histogram(e, "vllm:time_to_first_token_seconds", "Seconds from a request's arrival to its first token.",
                  &m->first_token_s);
    one_histogram(e, "vllm:inter_token_latency_seconds", "Seconds between two tokens of a request.",
                  &m->between_tokens_s);
    one_histogram(e, "vllm:request_time_per_output_token_seconds",
                  "Seconds a token after the first one, the mean of a request.", &m->per_token_s);
    one_histogram(e, "vllm:e2e_request_latency_seconds", "Seconds from a request's arrival to its end.", &m->whole_s);
    one_histogram(e, "vllm:request_queue_time_seconds", "Seconds that a request waited.", &m->queue_s);
    one_histogram(e, "vllm:request_inference_time_seconds", "Seconds that a request ran.", &m->inference_s);
    one_histogram(e, "vllm:request_prefill_time_seconds", "Seconds that a request ran before its first token.",
                  &m->prefill_s);
    one_histogram(e, "vllm:request_decode_time_seconds", "Seconds that a request ran after its first token.",
                  &m->decode_s);
}

void metrics_engine(exposition *e, const hy_engine_stats *s, const hy_engine_measures *m)
{
    write_gauges(e, s);
    write_tokens(e, s);
    write_drafts(e, s);
    write_ends(e, m);
    write_histograms(e, m);
}

void metrics_cache_config(exposition *e, const hy_engine_stats *s, const hy_model_info *info)
{
    char blocks[24], bytes[24], tokens[24], block[24], concurrency[32];
    snprintf(block, sizeof block, "%d", CACHE_BLOCK);
    snprintf(blocks, sizeof blocks, "%llu", (unsigned long long)s->cache_blocks);
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)s->cache_bytes);
    snprintf(tokens, sizeof tokens, "%llu", (unsigned long long)s->cache_blocks * CACHE_BLOCK);
    snprintf(concurrency, sizeof concurrency, "%.2f", s->cache_longest);
    const exposition_label labels[] = {{"block_size", block},
                                       {"cache_dtype", info->kv_cache_dtype},
                                       {"calculate_kv_scales", "False"},
                                       {"enable_prefix_caching", s->prefix_caching ? "True" : "False"},
                                       {"indexer_cache_dtype", info->indexer_kv_dtype},
                                       {"is_attention_free", "False"},
                                       {"kv_cache_max_concurrency", concurrency},
                                       {"kv_cache_memory_bytes", bytes},
                                       {"kv_cache_size_tokens", tokens},
                                       {"num_cpu_blocks", "None"},
                                       {"num_gpu_blocks", blocks},
                                       {"num_gpu_blocks_override", "None"},
                                       {"prefix_caching_hash_algo", "sha256"},
                                       {"sliding_window", "None"}};
    GAUGE("vllm:cache_config_info", "How the cache is laid out, as labels.");
    exposition_labelled(e, 1, labels, sizeof labels / sizeof *labels);
}
