#include "server/server.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "server/chat.h"
#include "server/http.h"

struct server {
    server_options options;
    chat_room room;
    hy_model_info info;
    const char *own_name[1];
    int64_t created;
};

static void get_health(void *user, http_exchange *x)
{
    (void)user;
    http_reply(x, 200, "text/plain; charset=utf-8", NULL, 0);
}

static void get_version(void *user, http_exchange *x)
{
    (void)user;
    static const char body[] = "{\"version\":\"" HY_VERSION "\"}";
    http_reply(x, 200, "application/json", body, sizeof body - 1);
}

static void write_permission(json_writer *w, int64_t created)
{
    char id[33];
    chat_random_id(id);
    static const struct {
        const char *name;
        bool value;
    } flags[] = {{"allow_create_engine", false},  {"allow_sampling", true}, {"allow_logprobs", true},
                 {"allow_search_indices", false}, {"allow_view", true},     {"allow_fine_tuning", false}};
    writer_key(w, "permission");
    writer_array(w);
    writer_object(w);
    char name[48];
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

static void get_models(void *user, http_exchange *x)
{
    const server *s = user;
    buffer body = {0};
    json_writer w = {.out = &body};
    writer_object(&w);
    writer_key(&w, "object"), writer_text(&w, "list");
    writer_key(&w, "data");
    writer_array(&w);
    for (size_t i = 0; i < s->room.name_count; i++) {
        writer_object(&w);
        writer_key(&w, "id"), writer_text(&w, s->room.names[i]);
        writer_key(&w, "object"), writer_text(&w, "model");
        writer_key(&w, "created"), writer_integer(&w, s->created);
        writer_key(&w, "owned_by"), writer_text(&w, "vllm");
        writer_key(&w, "root"), writer_text(&w, s->info.path);
        writer_key(&w, "parent"), writer_null(&w);
        writer_key(&w, "max_model_len"), writer_integer(&w, s->info.max_model_len);
        write_permission(&w, s->created);
        writer_end(&w);
    }
    writer_end(&w);
    writer_end(&w);
    http_reply_json(x, 200, &body);
    buffer_free(&body);
}

/* The first signal aborts what runs and stops when the last answer is out; the second stops at once. */
static void on_signal(void *user)
{
    server *s = user;
    bool again = s->room.stopping;
    s->room.stopping = true;
    log_line(HY_LOG_INFO, again ? "Stopping at once." : "Shutting down.");
    if (again || !s->room.first)
        http_stop(s->room.http);
    else
        chat_cancel_all(&s->room);
}

/* Room for the longest prompt in long words and JSON escapes: what is larger cannot be answered and is not read. */
static size_t largest_body(int max_model_len)
{
    enum { BASE = 1 << 20, PER_TOKEN = 64, MOST = 64 << 20 };
    size_t bytes = BASE + (size_t)max_model_len * PER_TOKEN;
    return bytes < MOST ? bytes : MOST;
}

hy_status server_open(hy_model *model, hy_engine *engine, const server_options *options, server **out, hy_error *err)
{
    server *s = calloc(1, sizeof *s);
    if (!s) return error_memory(err, "the server", sizeof *s);
    s->options = *options;
    hy_model_describe(model, &s->info);
    s->own_name[0] = s->info.name;
    s->created = (int64_t)time(NULL);
    bool named = options->served_name_count > 0;
    s->room = (chat_room){.model = model,
                          .engine = engine,
                          .names = named ? options->served_names : s->own_name,
                          .name_count = named ? options->served_name_count : 1,
                          .options = &s->options};
    snprintf(s->room.fingerprint, sizeof s->room.fingerprint, "hayate-%s-%s", HY_VERSION, s->info.backend);
    http_options http = {.host = options->host,
                         .port = options->port,
                         .api_keys = options->api_keys,
                         .api_key_count = options->api_key_count,
                         .max_body_bytes = largest_body(s->info.max_model_len)};
    hy_status status = http_open(&http, &s->room.http, err);
    if (status != HY_OK) {
        free(s);
        return status;
    }
    http_route(s->room.http, "POST", "/v1/chat/completions", chat_handle, &s->room);
    http_route(s->room.http, "GET", "/v1/models", get_models, s);
    http_route(s->room.http, "GET", "/health", get_health, s);
    http_route(s->room.http, "GET", "/ping", get_health, s);
    http_route(s->room.http, "POST", "/ping", get_health, s);
    http_route(s->room.http, "GET", "/version", get_version, s);
    http_on_signal(s->room.http, on_signal, s);
    *out = s;
    return HY_OK;
}

int server_port(const server *s)
{
    return http_port(s->room.http);
}

void server_run(server *s)
{
    http_run(s->room.http);
}

void server_close(server *s)
{
    if (!s) return;
    http_close(s->room.http);
    free(s);
}
