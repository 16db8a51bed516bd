/*
 * The HTTP of the server with handlers that show what it does, for test_http.py: no model, no engine.
 *
 *     echo [name=value ...]      options of http_open by their names; lists by several of one name
 *
 * Says "port N" on standard output and ends with SIGTERM.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "server/http.h"

enum { MOST = 64 };

struct list {
    const char *items[MOST];
    size_t count;
};

static http_server *server;
static struct waiting {
    http_exchange *x; /* NULL: it has gone */
    int events, size, pause_ms;
} waits[MOST];
static int gone;

static void write_pair(json_writer *w, const char *key, const char *value)
{
    writer_key(w, key);
    writer_text(w, value);
}

/* Everything that a handler can know of the request. */
static void get_echo(void *user, http_exchange *x)
{
    (void)user;
    size_t length;
    const char *body = http_body(x, &length), *name, *value;
    buffer out = {0};
    json_writer w = {.out = &out};
    writer_object(&w);
    write_pair(&w, "method", http_method(x));
    write_pair(&w, "path", http_path(x));
    write_pair(&w, "id", http_parameter(x, "id"));
    write_pair(&w, "other", http_parameter(x, "other"));
    write_pair(&w, "q", http_query(x, "q"));
    write_pair(&w, "header", http_header(x, "x-test"));
    writer_key(&w, "query");
    writer_array(&w);
    for (size_t i = 0; http_query_at(x, i, &name, &value); i++) writer_text(&w, name), writer_text(&w, value);
    writer_end(&w);
    writer_key(&w, "length"), writer_integer(&w, (int64_t)length);
    writer_key(&w, "body"), writer_string(&w, body, length < 200 ? length : 200);
    writer_end(&w);
    http_reply_header(x, "X-Route", "echo");
    http_reply_header(x, "X-Bad", "a\r\nX-Injected: b");
    http_reply_json(x, 200, &out);
    buffer_free(&out);
}

static int number(http_exchange *x, const char *name)
{
    const char *text = http_query(x, name);
    return text ? atoi(text) : 0;
}

/* ?size=N: a reply of N bytes. */
static void get_large(void *user, http_exchange *x)
{
    (void)user;
    size_t size = (size_t)number(x, "size");
    char *body = malloc(size + 1);
    memset(body, 'x', size);
    http_reply(x, 200, "text/plain", body, size);
    free(body);
}

static void client_gone(void *user)
{
    struct waiting *w = user;
    gone++;
    http_stream_end(w->x);
    w->x = NULL;
}

static void next_event(void *user)
{
    struct waiting *w = user;
    if (!w->x) return;
    char *data = malloc((size_t)w->size + 1);
    memset(data, 'e', (size_t)w->size);
    for (int i = 0; i < (w->pause_ms ? 1 : 100) && w->events > 0; i++, w->events--)
        http_stream_event(w->x, data, (size_t)w->size);
    free(data);
    if (w->events > 0) {
        http_after(server, w->pause_ms / 1000.0, next_event, w);
        return;
    }
    http_stream_named(w->x, "last", "[DONE]", 6);
    http_stream_end(w->x);
    w->x = NULL;
}

/* ?events=N&size=B&pause=MS: a stream, begun at once; pause 0 sends in hundreds as fast as the loop turns. */
static void get_stream(void *user, http_exchange *x)
{
    (void)user;
    struct waiting *w = waits;
    while (w->x && w < waits + MOST - 1) w++;
    *w = (struct waiting){x, number(x, "events"), number(x, "size"), number(x, "pause")};
    http_on_gone(x, client_gone, w);
    http_stream_begin(x);
    http_after(server, w->pause_ms / 1000.0, next_event, w);
}

static void late_reply(void *user)
{
    struct waiting *w = user;
    if (w->x) http_reply(w->x, 200, "text/plain", "late", 4);
    w->x = NULL;
}

/* ?pause=MS: a reply that comes later. */
static void get_late(void *user, http_exchange *x)
{
    (void)user;
    struct waiting *w = waits;
    while (w->x && w < waits + MOST - 1) w++;
    *w = (struct waiting){.x = x};
    http_on_gone(x, client_gone, w);
    http_after(server, number(x, "pause") / 1000.0, late_reply, w);
}

static void write_count(void *user, const http_count *c)
{
    json_writer *w = user;
    writer_object(w);
    write_pair(w, "method", c->method);
    write_pair(w, "handler", c->handler);
    writer_key(w, "status"), writer_integer(w, c->status);
    writer_key(w, "requests"), writer_unsigned(w, c->requests);
    writer_key(w, "in"), writer_unsigned(w, c->request_bytes);
    writer_key(w, "out"), writer_unsigned(w, c->response_bytes);
    writer_key(w, "most"), writer_unsigned(w, c->buckets[HTTP_BUCKETS - 1]);
    writer_end(w);
}

static void get_totals(void *user, http_exchange *x)
{
    (void)user;
    http_totals t = http_describe(server);
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"connections", t.connections}, {"exchanges", t.exchanges}, {"incoming", t.incoming},
                   {"outgoing", t.outgoing},       {"accepted", t.accepted},   {"turned_away", t.turned_away},
                   {"too_slow", t.too_slow},       {"malformed", t.malformed}, {"overflowed", t.overflowed},
                   {"gone", (uint64_t)gone}};
    buffer out = {0};
    json_writer w = {.out = &out};
    writer_object(&w);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        writer_key(&w, numbers[i].name), writer_unsigned(&w, numbers[i].value);
    writer_key(&w, "counts");
    writer_array(&w);
    http_visit_counts(server, write_count, &w);
    writer_end(&w);
    writer_end(&w);
    http_reply_json(x, 200, &out);
    buffer_free(&out);
}

static void log_line_to_stderr(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static void log_to_stderr(void *user, hy_log_level level, const char *line)
{
    (void)user;
    fprintf(stderr, "log %d %s\n", (int)level, line);
}

static void stop(void *user)
{
    (void)user;
    http_stop(server);
}

static void set(http_options *o, struct list lists[5], char *argument)
{
    char *value = strchr(argument, '=');
    if (!value) exit(2);
    *value++ = 0;
    const struct {
        const char *name;
        const char **to;
    } texts[] = {{"host", &o->host},
                 {"uds", &o->uds},
                 {"root_path", &o->root_path},
                 {"ssl_keyfile", &o->ssl_keyfile},
                 {"ssl_certfile", &o->ssl_certfile},
                 {"ssl_ca_certs", &o->ssl_ca_certs}};
    const struct {
        const char *name;
        size_t *to;
    } sizes[] = {{"max_body_bytes", &o->max_body_bytes},
                 {"max_header_bytes", &o->max_header_bytes},
                 {"max_headers", &o->max_headers},
                 {"max_connections", &o->max_connections},
                 {"max_incoming_bytes", &o->max_incoming_bytes},
                 {"max_backlog_bytes", &o->max_backlog_bytes},
                 {"max_outgoing_bytes", &o->max_outgoing_bytes}};
    const struct {
        const char *name;
        double *to;
    } times[] = {{"keep_alive_s", &o->keep_alive_s},
                 {"header_s", &o->header_s},
                 {"body_s", &o->body_s},
                 {"write_s", &o->write_s},
                 {"comment_s", &o->comment_s}};
    const struct {
        const char *name;
        bool *to;
    } switches[] = {{"request_ids", &o->request_ids},
                    {"allow_credentials", &o->allow_credentials},
                    {"ssl_refresh", &o->ssl_refresh}};
    static const char *const names[] = {"api_key", "origin", "method", "header", "quiet"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(argument, texts[i].name)) *texts[i].to = value;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(argument, sizes[i].name)) *sizes[i].to = strtoull(value, NULL, 10);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (!strcmp(argument, times[i].name)) *times[i].to = strtod(value, NULL);
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (!strcmp(argument, switches[i].name)) *switches[i].to = true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(argument, names[i]) && lists[i].count < MOST) lists[i].items[lists[i].count++] = value;
    if (!strcmp(argument, "port")) o->port = atoi(value);
    if (!strcmp(argument, "ssl_cert_reqs")) o->ssl_cert_reqs = (http_cert_reqs)atoi(value);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* as hayate does */
    hy_log_set(log_to_stderr, NULL, HY_LOG_INFO);
    http_options o = {.host = "127.0.0.1", .access_log = log_line_to_stderr};
    struct list lists[5] = {0};
    for (int i = 1; i < argc; i++) set(&o, lists, argv[i]);
    o.api_keys = lists[0].items, o.api_key_count = lists[0].count;
    http_strings *const to[] = {&o.allowed_origins, &o.allowed_methods, &o.allowed_headers, &o.access_quiet};
    for (size_t i = 0; i < 4; i++) *to[i] = (http_strings){lists[i + 1].items, lists[i + 1].count};
    hy_error err = {0};
    hy_status status = http_open(&o, &server, &err);
    if (status != HY_OK) {
        fprintf(stderr, "%s: %s\n", hy_status_name(status), err.message);
        return status == HY_USAGE ? 2 : 1;
    }
    static const char *const echoes[] = {"/echo", "/v1/echo", "/inference/v1/echo", "/v1/echo/{id}",
                                         "/v1/echo/{id}/of/{other}"};
    for (size_t i = 0; i < sizeof echoes / sizeof *echoes; i++) {
        http_route(server, "GET", echoes[i], get_echo, NULL);
        http_route(server, "POST", echoes[i], get_echo, NULL);
    }
    http_route(server, "DELETE", "/v1/echo/{id}", get_echo, NULL);
    http_route(server, "POST", "/only-post", get_echo, NULL);
    http_route(server, "GET", "/large", get_large, NULL);
    http_route(server, "GET", "/stream", get_stream, NULL);
    http_route(server, "GET", "/late", get_late, NULL);
    http_route(server, "GET", "/totals", get_totals, NULL);
    http_on_signal(server, stop, NULL);
    printf("port %d %s\n", http_port(server), http_address(server));
    fflush(stdout);
    http_run(server);
    http_close(server);
    return 0;
}
