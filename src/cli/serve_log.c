#include "cli/serve_log.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "cli/serve_setup.h"
#include "model/model.h"

static const double gib = 1 << 30;

void serve_log_flags(const serve_args *args, const speculation *drafts)
{
    char *given = serve_non_default(args);
    log_line(HY_LOG_INFO, "Hayate server version %s, serving model %s", HY_VERSION, args->model);
    log_line(HY_LOG_INFO, "non-default args: %s", given ? given : "");
    free(given);
    setup_say(args, drafts);
}

void serve_log_model(const hy_model *model, const hy_engine_options *engine, double seconds)
{
    hy_model_info info;
    hy_model_describe(model, &info);
    int rows = engine->max_num_batched_tokens > 0 ? engine->max_num_batched_tokens : MODEL_DEFAULT_ROWS;
    log_line(HY_LOG_INFO, "Resolved architecture: MiniMaxM3");
    log_line(HY_LOG_INFO, "Using max model len %d", info.max_model_len);
    log_line(HY_LOG_INFO, "Chunked prefill is enabled with max_num_batched_tokens=%d.", rows);
    log_line(
        HY_LOG_INFO,
        "Initializing an engine (v%s) with config: model='%s', backend=%s, kv_cache_dtype=%s, index_cache_dtype=%s, "
        "moe_activation=%s, max_seq_len=%d",
        HY_VERSION, info.path, info.backend, info.kv_cache_dtype, info.indexer_kv_dtype, info.moe_activation,
        info.max_model_len);
    log_line(HY_LOG_INFO, "Loading weights took %.2f seconds", seconds);
    log_line(HY_LOG_INFO, "Model loading took %.2f GiB memory and %.2f seconds", (double)memory_resident() / gib,
             seconds);
}

void serve_log_engine(double seconds)
{
    log_line(HY_LOG_INFO, "init engine (plan memory, create kv cache) took %.2f seconds", seconds);
    log_line(HY_LOG_INFO, "Supported tasks: ('generate',)");
}

void serve_log_drafts(const hy_speculation *s)
{
    char list[400];
    size_t n = 0;
    if (s->drafts == 0) return;
    log_line(HY_LOG_INFO,
             "Speculative decoding: method=dspark, num_speculative_tokens=%d, rejection_sample_method=%s, "
             "draft_sample_method=%s",
             s->drafts, s->method, s->greedy_drafts ? "greedy" : "probabilistic");
    for (size_t i = 0; i < s->by_batch_count && n < sizeof list - 40; i++)
        if (i == 0 || s->by_batch[i] != s->by_batch[i - 1])
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%d from %zu", n ? ", " : "", s->by_batch[i], i + 1);
    if (n) log_line(HY_LOG_INFO, "Drafts by sequences of a step: %s", list);
}

static void log_route(void *user, const char *methods, const char *path)
{
    (void)user;
    log_line(HY_LOG_INFO, "Route: %s, Methods: %s", path, methods);
}

void serve_log_started(const server *s)
{
    log_line(HY_LOG_INFO, "Available routes are:");
    server_visit_routes(s, log_route, NULL);
    log_line(HY_LOG_INFO, "Starting server on %s", server_address(s));
    log_line(HY_LOG_INFO, "Application startup complete.");
}
