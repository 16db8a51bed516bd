#include "server/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/json.h"
#include "base/log.h"

/* ---- Models ----------------------------------------------------------------------------------------------------- */

static void write_permission(json_writer *w, int64_t created)
{
    char id[33], name[48];
    generation_random_id(id);
    static const struct {
        const char *name;
        bool value;
    } flags[] = {{"allow_create_engine", false},  {"allow_sampling", true}, {"allow_logprobs", true},
                 {"allow_search_indices", false}, {"allow_view", true},     {"allow_fine_tuning", false}};
    writer_key(w, "permission");
    writer_array(w);
    writer_object(w);
    snprintf(name, sizeof name, "modelperm-%s", id);
    writer_key(w, "id"), writer_text(w, name);
    writer_key(w, "object"), writer_text(w, "model_permission");
    writer_key(w, "created"), writer_integer(w, created);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        writer_key(w, flags[i].name), writer_bool(w, flags[i].value);
    writer_key(w, "organization"), writer_text(w, "*");
    writer_key(w, "group"), writer_null(w);
    writer_key(w, "is_blocking"), writer_bool(w, false);
    writer_end(w);
    writer_end(w);
}

static void write_model(json_writer *w, const generation_room *room, const char *name)
{
    hy_model_info info;
    hy_model_describe(room->model, &info);
    writer_object(w);
    writer_key(w, "id"), writer_text(w, name);
    writer_key(w, "object"), writer_text(w, "model");
    writer_key(w, "created"), writer_integer(w, room->created);
    writer_key(w, "owned_by"), writer_text(w, "vllm");
    writer_key(w, "root"), writer_text(w, info.path);
    writer_key(w, "parent"), writer_null(w);
    writer_key(w, "max_model_len"), writer_integer(w, info.max_model_len);
    write_permission(w, room->created);
    writer_end(w);
}

static void send_json(http_exchange *x, buffer *body)
{
    http_reply_json(x, 200, body);
    buffer_free(body);
}

static void get_models(void *user, http_exchange *x)
{
    const generation_room *room = user;
    buffer body = {0};
    json_writer w = {.out = &body};
    writer_object(&w);
    writer_key(&w, "object"), writer_text(&w, "list");
    writer_key(&w, "data");
    writer_array(&w);
    for (size_t i = 0; i < room->name_count; i++) write_model(&w, room, room->names[i]);
    writer_end(&w);
    writer_end(&w);
    send_json(x, &body);
}

/* One model by its name, as the `openai` client retrieves it. */
static void get_model(void *user, http_exchange *x)
{
    const generation_room *room = user;
    const char *served;
    request_fault fault;
    if (!generation_check_model(room, http_parameter(x, "model"), &served, &fault)) {
        generation_reply_fault(x, &fault);
        return;
    }
    buffer body = {0};
    json_writer w = {.out = &body};
    write_model(&w, room, served);
    send_json(x, &body);
}

/* ---- Health and load -------------------------------------------------------------------------------------------- */

enum { DEAD_STEPS = 3 }; /* that failed one after the other: the engine is dead */

/* Whether a request would be answered: not by an engine whose steps fail, nor by a server that leaves. */
static void get_health(void *user, http_exchange *x)
{
    const generation_room *room = user;
    hy_engine_stats stats;
    hy_engine_describe(room->engine, &stats);
    bool ready = !room->stopping && stats.failing_steps < DEAD_STEPS;
    http_reply(x, ready ? 200 : 503, "text/plain; charset=utf-8", NULL, 0);
}

static void get_version(void *user, http_exchange *x)
{
    (void)user;
    static const char body[] = "{\"version\":\"" HY_VERSION "\"}";
    http_reply(x, 200, "application/json", body, sizeof body - 1);
}

static void get_load(void *user, http_exchange *x)
{
    const generation_room *room = user;
    buffer body = {0};
    buffer_printf(&body, "{\"server_load\":%d}", room->options->load_tracking ? room->running : 0);
    send_json(x, &body);
}

/* ---- For operators ---------------------------------------------------------------------------------------------- */

static void get_server_info(void *user, http_exchange *x)
{
    const generation_room *room = user;
    const char *format = http_query(x, "config_format");
    hy_model_info info;
    hy_model_describe(room->model, &info);
    json_t *config = room->options->config ? json_deep_copy(room->options->config) : json_object();
    json_object_set_new(config, "model", json_string(info.path));
    json_object_set_new(config, "backend", json_string(info.backend));
    json_object_set_new(config, "kv_cache_dtype", json_string(info.kv_cache_dtype));
    json_object_set_new(config, "indexer_kv_dtype", json_string(info.indexer_kv_dtype));
    json_object_set_new(config, "max_model_len", json_integer(info.max_model_len));
    char *text = json_dumps(config, JSON_COMPACT);
    json_decref(config);
    buffer body = {0};
    json_writer w = {.out = &body};
    writer_object(&w);
    writer_key(&w, "vllm_config");
    if (format && strcmp(format, "json") == 0 && text)
        writer_raw(&w, text, strlen(text));
    else
        writer_text(&w, text);
    writer_key(&w, "version"), writer_text(&w, HY_VERSION);
    writer_end(&w);
    free(text);
    send_json(x, &body);
}

static void get_world_size(void *user, http_exchange *x)
{
    (void)user;
    http_reply(x, 200, "application/json", "{\"world_size\":1}", 16);
}

static void get_false(void *user, http_exchange *x)
{
    const char *const *key = user;
    buffer body = {0};
    buffer_printf(&body, "{\"%s\":false}", *key);
    send_json(x, &body);
}

static void reply_ok(void *user, http_exchange *x)
{
    (void)user;
    http_reply(x, 200, "text/plain; charset=utf-8", NULL, 0);
}

static void not_here(void *user, http_exchange *x)
{
    (void)user;
    char text[160];
    snprintf(text, sizeof text, "%.100s is not supported by this server", http_path(x));
    http_reply_error(x, 501, "NotImplementedError", NULL, false, text);
}

static void post_abort(void *user, http_exchange *x)
{
    generation_room *room = user;
    request_fault fault;
    size_t length, i;
    const char *text = http_body(x, &length);
    json_t *body = request_parse(text, length, &fault), *id, *ids = json_object_get(body, "request_ids");
    if (body && !json_is_array(ids))
        request_schema(&fault, "body", "request_ids", ids ? "list_type" : "missing",
                       ids ? "Input should be a valid list" : "Field required");
    if (!body || !json_is_array(ids)) {
        generation_reply_fault(x, &fault);
        json_decref(body);
        return;
    }
    json_array_foreach(ids, i, id) if (json_is_string(id)) generation_cancel_id(room, json_string_value(id));
    json_decref(body);
    reply_ok(user, x);
}

static void post_reset(void *user, http_exchange *x)
{
    generation_room *room = user;
    const char *running = http_query(x, "reset_running_requests");
    if (running && strcasecmp(running, "true") == 0) {
        http_reply_error(x, 400, "BadRequestError", "reset_running_requests", false,
                         "running requests keep their cache; cancel them first");
        return;
    }
    atomic_fetch_add(&room->cache_epoch, 1);
    http_reply(x, 200, "application/json", "{\"success\":true}", 16);
}

/* The reply comes when nothing runs any more. */
typedef struct pausing {
    generation_room *room;
    http_exchange *x;
} pausing;

static void when_idle(void *user)
{
    pausing *p = user;
    bool waits = p->room->paused && !p->room->stopping && p->room->running > p->room->held;
    if (waits && http_after(p->room->http, 0.02, when_idle, p)) return;
    http_reply(p->x, 200, "application/json", "{\"status\":\"paused\"}", 19);
    free(p);
}

static void post_pause(void *user, http_exchange *x)
{
    generation_room *room = user;
    const char *mode = http_query(x, "mode"), *clear = http_query(x, "clear_cache");
    bool abort = !mode || strcmp(mode, "abort") == 0, clears = !clear || strcasecmp(clear, "false") != 0;
    if (!abort && strcmp(mode, "wait") != 0) {
        bool keep = strcmp(mode, "keep") == 0;
        http_reply_error(x, 400, "BadRequestError", "mode", false,
                         keep ? "mode keep is not supported by this server" : "mode must be abort, wait or keep");
        return;
    }
    pausing *p = calloc(1, sizeof *p);
    if (!p) {
        http_reply_error(x, 500, "InternalServerError", NULL, false, "out of memory");
        return;
    }
    *p = (pausing){room, x};
    if (abort) generation_cancel_all(room);
    generation_hold(room, true);
    if (clears) atomic_fetch_add(&room->cache_epoch, 1);
    when_idle(p);
}

static void post_resume(void *user, http_exchange *x)
{
    generation_hold(user, false);
    http_reply(x, 200, "application/json", "{\"status\":\"resumed\"}", 20);
}

static void get_paused(void *user, http_exchange *x)
{
    const generation_room *room = user;
    buffer body = {0};
    buffer_printf(&body, "{\"is_paused\":%s}", room->paused ? "true" : "false");
    send_json(x, &body);
}

static void dev_routes(generation_room *room)
{
    static const char *const sleeping[] = {"is_sleeping"};
    static const char *const absent[] = {"/sleep",
                                         "/wake_up",
                                         "/collective_rpc",
                                         "/init_weight_transfer_engine",
                                         "/start_weight_update",
                                         "/start_draft_weight_update",
                                         "/update_weights",
                                         "/finish_weight_update",
                                         "/update_weight_version"};
    http_server *h = room->http;
    http_route(h, "GET", "/server_info", get_server_info, room);
    http_route(h, "GET", "/get_world_size", get_world_size, room);
    http_route(h, "GET", "/is_sleeping", get_false, (void *)(uintptr_t)sleeping);
    http_route(h, "GET", "/is_paused", get_paused, room);
    http_route(h, "POST", "/pause", post_pause, room);
    http_route(h, "POST", "/resume", post_resume, room);
    http_route(h, "POST", "/reset_prefix_cache", post_reset, room);
    http_route(h, "POST", "/reset_mm_cache", reply_ok, room);
    http_route(h, "POST", "/reset_encoder_cache", reply_ok, room);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) http_route(h, "POST", absent[i], not_here, room);
}

void models_routes(generation_room *room)
{
    http_server *h = room->http;
    http_route(h, "GET", "/v1/models", get_models, room);
    http_route(h, "GET", "/v1/models/{model}", get_model, room);
    http_route(h, "GET", "/health", get_health, room);
    http_route(h, "GET", "/ping", get_health, room);
    http_route(h, "POST", "/ping", get_health, room);
    http_route(h, "GET", "/version", get_version, room);
    http_route(h, "GET", "/load", get_load, room);
    if (room->options->tokens_only || room->options->dev_mode)
        http_route(h, "POST", "/abort_requests", post_abort, room);
    if (room->options->dev_mode) dev_routes(room);
}
