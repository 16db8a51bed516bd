#include "server/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <event2/thread.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"

enum { MAX_ROUTES = 32, MAX_KEYS = 16 };
enum {
    SILENCE_S = 60,         /* a connection that neither reads nor writes for so long is closed */
    ACCEPT_PAUSE_S = 1,     /* no connections are taken for so long after one could not be */
    AHEAD_BYTES = 64 << 10, /* read of what a client sends before its last request is answered */
};

struct route {
    const char *method, *path;
    http_handler handler;
    void *user;
};

struct posted {
    void (*fn)(void *user);
    void *user;
};

struct http_server {
    struct event_base *base;
    struct evhttp *http;
    struct event *wake, *interrupt, *terminate, *drain;
    int leaving;     /* replies handed to libevent and not yet written */
    int drain_polls; /* left until http_run ends whatever is still leaving */
    struct route routes[MAX_ROUTES];
    size_t route_count;
    char *keys[MAX_KEYS];
    size_t key_count;
    int port;
    pthread_mutex_t lock; /* guards posted */
    struct posted *posted;
    size_t posted_count, posted_capacity;
    void (*signal_fn)(void *user);
    void *signal_user;
};

struct http_exchange {
    http_server *server;
    struct evhttp_request *request;
    struct evhttp_connection *connection;
    bool gone, streaming;
    void (*gone_fn)(void *user);
    void *gone_user;
};

/* ---- Life ----------------------------------------------------------------------------------------------------- */

static void run_posted(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    http_server *s = arg;
    pthread_mutex_lock(&s->lock);
    struct posted *list = s->posted;
    size_t count = s->posted_count;
    s->posted = NULL, s->posted_count = s->posted_capacity = 0;
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < count; i++) list[i].fn(list[i].user);
    free(list);
}

void http_post(http_server *s, void (*fn)(void *user), void *user)
{
    pthread_mutex_lock(&s->lock);
    void *list = s->posted;
    bool ok = memory_reserve(&list, &s->posted_capacity, s->posted_count + 1, sizeof *s->posted);
    s->posted = list;
    if (ok) s->posted[s->posted_count++] = (struct posted){fn, user};
    pthread_mutex_unlock(&s->lock);
    if (ok)
        event_active(s->wake, EV_READ, 0);
    else
        log_line(HY_LOG_ERROR, "out of memory: an event for the HTTP loop was lost");
}

static void on_signal(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    http_server *s = arg;
    if (s->signal_fn) s->signal_fn(s->signal_user);
}

void http_on_signal(http_server *s, void (*fn)(void *user), void *user)
{
    s->signal_fn = fn, s->signal_user = user;
    s->interrupt = evsignal_new(s->base, SIGINT, on_signal, s);
    s->terminate = evsignal_new(s->base, SIGTERM, on_signal, s);
    if (s->interrupt) event_add(s->interrupt, NULL);
    if (s->terminate) event_add(s->terminate, NULL);
}

static void dispatch(struct evhttp_request *request, void *arg);

static struct bufferevent *new_connection(struct event_base *base, void *arg)
{
    (void)arg;
    return bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_THREADSAFE);
}

static int bound_port(evutil_socket_t fd)
{
    struct sockaddr_storage addr;
    socklen_t length = sizeof addr;
    if (getsockname(fd, (struct sockaddr *)&addr, &length) != 0) return 0;
    if (addr.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&addr)->sin6_port);
    return ntohs(((struct sockaddr_in *)&addr)->sin_port);
}

/* libevent's own words, which would go to stderr as they are. */
static void log_libevent(int severity, const char *text)
{
    log_line(severity >= EVENT_LOG_ERR ? HY_LOG_ERROR : HY_LOG_DEBUG, "libevent: %s", text);
}

static void accept_again(evutil_socket_t fd, short what, void *listener)
{
    (void)fd, (void)what;
    evconnlistener_enable(listener);
}

/*
 * Without a free descriptor accept fails at once and the listener stays readable: the loop would spin, with a message
 * each time. So it looks away for a moment; the waiting clients stay in the system's queue. (The argument is evhttp's.)
 */
static void accept_failed(struct evconnlistener *listener, void *arg)
{
    (void)arg;
    struct timeval pause = {.tv_sec = ACCEPT_PAUSE_S};
    log_line(HY_LOG_WARNING, "cannot take a connection: %s; clients wait until others leave (see ulimit -n)",
             strerror(errno));
    if (event_base_once(evconnlistener_get_base(listener), -1, EV_TIMEOUT, accept_again, listener, &pause) == 0)
        evconnlistener_disable(listener);
}

static hy_status start(http_server *s, const http_options *options, hy_error *err)
{
    s->base = event_base_new();
    if (s->base) s->http = evhttp_new(s->base);
    if (s->base) s->wake = event_new(s->base, -1, EV_PERSIST, run_posted, s);
    if (!s->http || !s->wake) return error_memory(err, "the HTTP server", 0);
    event_add(s->wake, NULL);
    evhttp_set_bevcb(s->http, new_connection, s);
    evhttp_set_gencb(s->http, dispatch, s);
    evhttp_set_allowed_methods(s->http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT |
                                            EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
    evhttp_set_max_body_size(s->http,
                             (ev_ssize_t)(options->max_body_bytes ? options->max_body_bytes : (size_t)64 << 20));
    evhttp_set_max_headers_size(s->http, 1 << 20);
    evhttp_set_timeout(s->http, SILENCE_S);
    const char *host = options->host && *options->host ? options->host : "0.0.0.0";
    struct addrinfo *found = NULL; /* looked up here first: libevent would print what is wrong, not return it */
    int missing = getaddrinfo(host, NULL, &(struct addrinfo){.ai_socktype = SOCK_STREAM}, &found);
    if (missing)
        return error_set(err, HY_USAGE, "--host %.200s is no address: %s; give one of this machine, or 0.0.0.0 for all",
                         host, gai_strerror(missing));
    freeaddrinfo(found);
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(s->http, host, (ev_uint16_t)options->port);
    if (!bound) {
        return error_set(err, HY_FAILED, "cannot listen on %s port %d: %s; choose another --port or --host", host,
                         options->port, strerror(errno));
    }
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(bound), accept_failed);
    s->port = bound_port(evhttp_bound_socket_get_fd(bound));
    return HY_OK;
}

hy_status http_open(const http_options *options, http_server **server, hy_error *err)
{
    if (options->port < 0 || options->port > 65535) {
        return error_set(err, HY_USAGE, "--port must be 0 to 65535, not %d", options->port);
    }
    if (options->api_key_count > MAX_KEYS)
        return error_set(err, HY_USAGE, "at most %d API keys can be given", MAX_KEYS);
    evthread_use_pthreads();
    event_set_log_callback(log_libevent);
    http_server *s = calloc(1, sizeof *s);
    if (!s) return error_memory(err, "the HTTP server", sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    for (size_t i = 0; i < options->api_key_count; i++) {
        s->keys[i] = memory_string(options->api_keys[i], strlen(options->api_keys[i]));
        if (s->keys[i]) s->key_count++;
    }
    hy_status status =
        s->key_count == options->api_key_count ? start(s, options, err) : error_memory(err, "API keys", 0);
    if (status != HY_OK) {
        http_close(s);
        return status;
    }
    *server = s;
    return HY_OK;
}

void http_close(http_server *s)
{
    if (!s) return;
    if (s->wake) run_posted(-1, 0, s);
    if (s->http) evhttp_free(s->http);
    if (s->wake) event_free(s->wake);
    if (s->interrupt) event_free(s->interrupt);
    if (s->terminate) event_free(s->terminate);
    if (s->drain) event_free(s->drain);
    if (s->base) event_base_free(s->base);
    for (size_t i = 0; i < s->key_count; i++) free(s->keys[i]);
    free(s->posted);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void http_route(http_server *s, const char *method, const char *path, http_handler handler, void *user)
{
    if (s->route_count < MAX_ROUTES) s->routes[s->route_count++] = (struct route){method, path, handler, user};
}

int http_port(const http_server *s)
{
    return s->port;
}

void http_run(http_server *s)
{
    event_base_dispatch(s->base);
}

static void poll_drain(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    http_server *s = arg;
    if (s->leaving <= 0 || --s->drain_polls <= 0) event_base_loopexit(s->base, NULL);
}

void http_stop(http_server *s)
{
    if (s->drain) return;
    struct timeval every = {.tv_usec = 10000};
    s->drain_polls = 200;
    s->drain = event_new(s->base, -1, EV_PERSIST, poll_drain, s);
    if (!s->drain || event_add(s->drain, &every) != 0) event_base_loopexit(s->base, NULL);
}

/* ---- Requests ------------------------------------------------------------------------------------------------- */

/* Equal in a time that depends on the lengths only. */
static bool same_key(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned char diff = n != m;
    for (size_t i = 0; i < n; i++) diff |= (unsigned char)(a[i] ^ (i < m ? b[i] : 0));
    return diff == 0;
}

static bool authorised(http_exchange *x, const char *path)
{
    const http_server *s = x->server;
    if (!s->key_count || strncmp(path, "/v1", 3) != 0) return true;
    const char *value = http_header(x, "Authorization");
    if (!value || strncasecmp(value, "Bearer ", 7) != 0) return false;
    bool ok = false;
    for (size_t i = 0; i < s->key_count; i++) ok |= same_key(value + 7, s->keys[i]);
    return ok;
}

static void connection_closed(struct evhttp_connection *connection, void *arg)
{
    (void)connection;
    http_exchange *x = arg;
    x->gone = true;
    void (*fn)(void *) = x->gone_fn;
    x->gone_fn = NULL;
    if (fn) fn(x->gone_user);
}

/* The input is full and read no further, so that its end would not be seen either. */
static void too_far_ahead(struct bufferevent *bev, void *connection)
{
    (void)connection;
    bufferevent_trigger_event(bev, BEV_EVENT_READING | BEV_EVENT_ERROR, 0);
}

/*
 * While a request is being answered its connection is read for one thing: that the client has left. evhttp stops
 * reading after the body, and would find out no sooner than with the first byte of the reply. What the client sends
 * ahead stays in the input, which must not grow without bound: past AHEAD_BYTES the client counts as gone (once a
 * reply is on its way, writing tells as well, and the input is just left full). Silence is no fault meanwhile.
 */
static void watch_client(http_exchange *x)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(x->connection);
    struct timeval silence = {.tv_sec = SILENCE_S};
    bufferevent_data_cb on_read, on_write;
    bufferevent_event_cb on_event;
    void *arg;
    bufferevent_getcb(bev, &on_read, &on_write, &on_event, &arg);
    bufferevent_setcb(bev, too_far_ahead, on_write, on_event, arg);
    bufferevent_setwatermark(bev, EV_READ, AHEAD_BYTES, AHEAD_BYTES);
    bufferevent_set_timeouts(bev, NULL, &silence);
    bufferevent_enable(bev, EV_READ);
}

static const char *method_name(enum evhttp_cmd_type type)
{
    switch (type) {
    case EVHTTP_REQ_GET: return "GET";
    case EVHTTP_REQ_POST: return "POST";
    case EVHTTP_REQ_OPTIONS: return "OPTIONS";
    case EVHTTP_REQ_HEAD: return "HEAD";
    default: return "";
    }
}

static void set_cors(struct evhttp_request *request)
{
    evhttp_add_header(evhttp_request_get_output_headers(request), "Access-Control-Allow-Origin", "*");
}

static void preflight(http_exchange *x)
{
    struct evkeyvalq *out = evhttp_request_get_output_headers(x->request);
    evhttp_add_header(out, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    const char *wanted = http_header(x, "Access-Control-Request-Headers");
    evhttp_add_header(out, "Access-Control-Allow-Headers", wanted ? wanted : "*");
    http_reply(x, 200, "text/plain; charset=utf-8", "OK", 2);
}

static void dispatch(struct evhttp_request *request, void *arg)
{
    http_server *s = arg;
    http_exchange *x = calloc(1, sizeof *x);
    if (!x) {
        evhttp_send_error(request, 500, NULL);
        return;
    }
    *x = (http_exchange){.server = s, .request = request, .connection = evhttp_request_get_connection(request)};
    evhttp_connection_set_closecb(x->connection, connection_closed, x);
    watch_client(x);
    set_cors(request);
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    if (!path) path = "/";
    const char *method = method_name(evhttp_request_get_command(request));
    if (strcmp(method, "OPTIONS") == 0) {
        preflight(x);
        return;
    }
    if (!authorised(x, path)) {
        http_reply(x, 401, "application/json", "{\"error\":\"Unauthorized\"}", 24);
        return;
    }
    bool known = false;
    for (size_t i = 0; i < s->route_count; i++) {
        const struct route *r = &s->routes[i];
        if (strcmp(r->path, path) != 0) continue;
        known = true;
        if (strcmp(r->method, method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0)) {
            r->handler(r->user, x);
            return;
        }
    }
    if (known)
        http_reply_error(x, 405, "Method Not Allowed", NULL, false, "Method Not Allowed");
    else
        http_reply_error(x, 404, "Not Found", NULL, false, "Not Found");
}

const char *http_body(http_exchange *x, size_t *length)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(x->request);
    *length = evbuffer_get_length(in);
    const char *body = *length ? (const char *)evbuffer_pullup(in, -1) : "";
    return body ? body : "";
}

const char *http_header(http_exchange *x, const char *name)
{
    return evhttp_find_header(evhttp_request_get_input_headers(x->request), name);
}

void http_on_gone(http_exchange *x, void (*fn)(void *user), void *user)
{
    x->gone_fn = fn, x->gone_user = user;
}

/* ---- Replies -------------------------------------------------------------------------------------------------- */

static const char *phrase(int status)
{
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 413: return "Content Too Large";
    case 429: return "Too Many Requests";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return "Internal Server Error";
    }
}

/* The reply has been written: the connection may serve another request. */
static void reply_left(struct evhttp_request *request, void *arg)
{
    struct evhttp_connection *connection = evhttp_request_get_connection(request);
    struct bufferevent *bev = evhttp_connection_get_bufferevent(connection);
    struct timeval silence = {.tv_sec = SILENCE_S};
    ((http_server *)arg)->leaving--;
    evhttp_connection_set_closecb(connection, NULL, NULL);
    bufferevent_setwatermark(bev, EV_READ, 0, 0);
    bufferevent_set_timeouts(bev, &silence, &silence);
}

/* The client left before the reply was written. */
static void reply_lost(struct evhttp_connection *connection, void *arg)
{
    (void)connection;
    ((http_server *)arg)->leaving--;
}

/* The exchange ends, its reply goes its way: one of the two above is called, and nothing of the exchange any more. */
static void release(http_exchange *x)
{
    x->server->leaving++;
    evhttp_request_set_on_complete_cb(x->request, reply_left, x->server);
    evhttp_connection_set_closecb(x->connection, reply_lost, x->server);
    free(x);
}

void http_reply(http_exchange *x, int status, const char *type, const char *body, size_t length)
{
    if (x->gone) {
        evhttp_request_free(x->request);
        free(x);
        return;
    }
    struct evhttp_request *request = x->request;
    evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
    struct evbuffer *out = evbuffer_new();
    if (out && length) evbuffer_add(out, body, length);
    release(x);
    evhttp_send_reply(request, status, phrase(status), out);
    if (out) evbuffer_free(out);
}

void http_reply_json(http_exchange *x, int status, const buffer *body)
{
    if (buffer_ok(body))
        http_reply(x, status, "application/json", body->data, body->length);
    else
        http_reply(x, 500, "text/plain", "out of memory", 13);
}

void http_write_error(buffer *out, int status, const char *type, const char *param, bool suffix, const char *message)
{
    buffer text = {0};
    buffer_string(&text, message);
    if (suffix && param) buffer_printf(&text, " (parameter=%s)", param);
    json_writer w = {.out = out};
    writer_object(&w);
    writer_key(&w, "error");
    writer_object(&w);
    writer_key(&w, "message"), writer_text(&w, buffer_ok(&text) ? text.data : message);
    writer_key(&w, "type"), writer_text(&w, type);
    writer_key(&w, "param"), writer_text(&w, param);
    writer_key(&w, "code"), writer_integer(&w, status);
    writer_end(&w);
    writer_end(&w);
    buffer_free(&text);
}

void http_reply_error(http_exchange *x, int status, const char *type, const char *param, bool suffix,
                      const char *message)
{
    buffer body = {0};
    http_write_error(&body, status, type, param, suffix, message);
    http_reply_json(x, status, &body);
    buffer_free(&body);
}

static void no_delay(http_exchange *x)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(x->connection);
    evutil_socket_t fd = bev ? bufferevent_getfd(bev) : -1;
    int one = 1;
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

void http_stream_begin(http_exchange *x)
{
    if (x->gone || x->streaming) return;
    x->streaming = true;
    struct evkeyvalq *out = evhttp_request_get_output_headers(x->request);
    evhttp_add_header(out, "Content-Type", "text/event-stream; charset=utf-8");
    evhttp_add_header(out, "Cache-Control", "no-cache");
    evhttp_add_header(out, "X-Accel-Buffering", "no");
    no_delay(x);
    evhttp_send_reply_start(x->request, 200, "OK");
}

void http_stream_event(http_exchange *x, const char *data, size_t length)
{
    if (x->gone) return;
    struct evbuffer *out = evbuffer_new();
    if (!out) return;
    evbuffer_add(out, "data: ", 6);
    evbuffer_add(out, data, length);
    evbuffer_add(out, "\n\n", 2);
    evhttp_send_reply_chunk(x->request, out);
    evbuffer_free(out);
}

size_t http_stream_backlog(http_exchange *x)
{
    if (x->gone) return 0;
    struct bufferevent *bev = evhttp_connection_get_bufferevent(x->connection);
    return bev ? evbuffer_get_length(bufferevent_get_output(bev)) : 0;
}

void http_stream_end(http_exchange *x)
{
    if (x->gone) {
        evhttp_request_free(x->request);
        free(x);
        return;
    }
    struct evhttp_request *request = x->request;
    release(x);
    evhttp_send_reply_end(request);
}
