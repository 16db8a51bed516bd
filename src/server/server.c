#include "server/server.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "server/chat.h"
#include "server/chat_more.h"
#include "server/derender.h"
#include "server/completions.h"
#include "server/generate.h"
#include "server/dialect_fields.h"
#include "server/messages.h"
#include "server/metrics.h"
#include "server/models.h"
#include "server/openapi.h"
#include "server/page.h"
#include "server/responses.h"
#include "server/tokens.h"

enum { WORKERS = 2, GRAMMARS = 64 /* compiled ones that are kept */ };

struct server {
    server_options options;
    generation_room room;
    metrics *metrics;
    page_policy policy;
    hy_model_info info;
    const char *own_name[1];
    char fingerprint[160];
};

static void end_drain(void *user)
{
    server *s = user;
    if (!s->room.first) return;
    log_line(HY_LOG_WARNING, "%d requests did not end within %.0f s and are aborted.", s->room.running,
             s->options.drain_seconds);
    generation_cancel_all(&s->room);
}

/* The last answer stops the loop (generation.c); the second signal does not wait for it. */
static void on_signal(void *user)
{
    server *s = user;
    bool again = s->room.stopping;
    double drain = s->options.drain_seconds;
    s->room.stopping = true;
    if (again)
        log_line(HY_LOG_INFO, "Stopping at once.");
    else if (s->room.first && drain > 0)
        log_line(HY_LOG_INFO, "Shutting down: %d requests may end within %.0f s.", s->room.running, drain);
    else
        log_line(HY_LOG_INFO, "Shutting down.");
    if (again || !s->room.first)
        http_stop(s->room.http);
    else if (drain <= 0 || !http_after(s->room.http, drain, end_drain, s))
        generation_cancel_all(&s->room);
}

/* Room for the longest prompt in long words and JSON escapes: what is larger cannot be answered and is not read. */
static size_t largest_body(int max_model_len)
{
    enum { BASE = 1 << 20, PER_TOKEN = 64, MOST = 64 << 20 };
    size_t bytes = BASE + (size_t)max_model_len * PER_TOKEN;
    return bytes < MOST ? bytes : MOST;
}

/* vllm-VERSION-8 hex digits that differ with the model and how it is computed; only the digits; the user's text; none.
 */
static const char *make_fingerprint(server *s)
{
    const char *mode = s->options.fingerprint ? s->options.fingerprint : "full";
    const hy_model_info *i = &s->info;
    const char *parts[] = {HY_VERSION, i->name, i->backend, i->kv_cache_dtype, i->indexer_kv_dtype, i->moe_activation};
    uint32_t hash = 2166136261u;
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
        for (const char *c = parts[p]; c && *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    if (strcmp(mode, "none") == 0) return NULL;
    if (strcmp(mode, "custom") == 0)
        snprintf(s->fingerprint, sizeof s->fingerprint, "%s",
                 s->options.fingerprint_text ? s->options.fingerprint_text : "");
    else if (strcmp(mode, "hash") == 0)
        snprintf(s->fingerprint, sizeof s->fingerprint, "%08x", hash);
    else
        snprintf(s->fingerprint, sizeof s->fingerprint, "vllm-%s-%08x", HY_VERSION, hash);
    return s->fingerprint;
}

static hy_logprobs_mode logprobs_mode(const char *name)
{
    if (name && strcmp(name, "raw_logits") == 0) return HY_RAW_LOGITS;
    if (name && strcmp(name, "processed_logprobs") == 0) return HY_PROCESSED_LOGPROBS;
    if (name && strcmp(name, "processed_logits") == 0) return HY_PROCESSED_LOGITS;
    return HY_RAW_LOGPROBS;
}

static hy_status open_room(server *s, hy_error *err)
{
    http_options http = s->options.http;
    bool opened = s->room.http != NULL;
    if (!http.max_body_bytes) http.max_body_bytes = largest_body(s->info.max_model_len);
    http.request_ids |= s->options.request_id_headers;
    int workers = s->options.workers > 0 ? s->options.workers : WORKERS;
    hy_status status = work_open(workers, &s->room.work, err);
    if (status == HY_OK) status = work_open(workers, &s->room.compilers, err);
    if (status == HY_OK) status = work_open(1, &s->room.closer, err);
    if (status == HY_OK && !(s->room.grammars = grammars_open(s->room.model, GRAMMARS)))
        status = error_memory(err, "the server", 0);
    if (status == HY_OK && !opened) status = http_open(&http, &s->room.http, err);
    if (status == HY_OK && opened) {
        http_wait_end(s->room.http);
        http_limit_body(s->room.http, http.max_body_bytes);
    }
    metrics_options m = {
        .engine = s->room.engine, .model = s->room.model, .http = s->room.http, .model_name = s->room.names[0]};
    if (status == HY_OK) status = metrics_open(&m, &s->metrics, err);
    return status;
}

static void add_routes(server *s)
{
    generation_room *room = &s->room;
    http_server *h = room->http;
    models_routes(room);
    page_policy_make(&s->policy);
    http_route(h, "GET", "/", page_handle, &s->policy);
    http_route(h, "GET", "/metrics", metrics_handle, s->metrics);
    http_route(h, "POST", "/v1/chat/completions", chat_handle, room);
    http_route(h, "POST", "/v1/completions", completions_handle, room);
    http_route(h, "POST", "/inference/v1/generate", generate_handle, room);
    chat_more_routes(room);
    derender_routes(room);
    tokens_routes(room);
    openapi_routes(room);
    messages_routes(room);
    responses_routes(room);
}

/* What every chat would be refused for is told at the start. */
static hy_status check_template_kwargs(const hy_model *model, const json_t *kwargs, hy_error *err)
{
    request_fault fault = {0};
    if (dialect_known_words(model, NULL, kwargs, &fault)) return HY_OK;
    return error_at(err, HY_USAGE, "--default-chat-template-kwargs", "--default-chat-template-kwargs: %s",
                    fault.message);
}

hy_status server_open(hy_model *model, hy_engine *engine, const server_options *options, server **out, hy_error *err)
{
    server *s = calloc(1, sizeof *s);
    if (!s) {
        http_close(options->waiting);
        return error_memory(err, "the server", sizeof *s);
    }
    s->options = *options;
    hy_model_describe(model, &s->info);
    s->own_name[0] = s->info.name;
    bool named = options->served_name_count > 0;
    s->room = (generation_room){.model = model,
                                .engine = engine,
                                .http = options->waiting,
                                .names = named ? options->served_names : s->own_name,
                                .name_count = named ? options->served_name_count : 1,
                                .options = &s->options,
                                .defaults = options->defaults ? *options->defaults : hy_sampling_defaults(model),
                                .fingerprint = make_fingerprint(s),
                                .created = (int64_t)time(NULL)};
    s->room.defaults.logprobs_mode = logprobs_mode(options->logprobs_mode);
    hy_status status = check_template_kwargs(model, options->template_kwargs, err);
    if (status == HY_OK) status = open_room(s, err);
    if (status != HY_OK) {
        server_close(s);
        return status;
    }
    s->room.on_end = metrics_ended, s->room.observer = s->metrics;
    add_routes(s);
    http_on_signal(s->room.http, on_signal, s);
    *out = s;
    return HY_OK;
}

int server_port(const server *s)
{
    return http_port(s->room.http);
}

void server_visit_routes(const server *s, void (*fn)(void *user, const char *method, const char *path), void *user)
{
    http_visit_routes(s->room.http, fn, user);
}

const char *server_address(const server *s)
{
    return http_address(s->room.http);
}

void server_run(server *s)
{
    http_run(s->room.http);
}

/* Workers first, since they submit and hand over to the loop; then the loop's queue, which gives work to the closer. */
void server_close(server *s)
{
    if (!s) return;
    work_close(s->room.work);
    work_close(s->room.compilers);
    http_close(s->room.http);
    work_close(s->room.closer);
    grammars_close(s->room.grammars);
    responses_close(&s->room);
    metrics_close(s->metrics);
    free(s);
}
