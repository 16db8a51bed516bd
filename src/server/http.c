#include "server/http.h"

#include <event2/thread.h>
#include <malloc.h>
#include <openssl/sha.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/http_parts.h"

enum { DRAIN_POLL_US = 10000, DRAIN_POLLS = 200 };

/* ---- Work from elsewhere --------------------------------------------------------------------------------------- */

/* What a step of the engine brings to hundreds of streams leaves in portions, so that the first ones need not wait for
 * the last ones' JSON. */
static void run_posted(evutil_socket_t fd, short what, void *arg)
{
    enum { PORTION = 16, KEPT = 4096 };
    (void)fd, (void)what;
    http_server *s = arg;
    pthread_mutex_lock(&s->lock);
    struct posted *list = s->posted;
    size_t count = s->posted_count, capacity = s->posted_capacity;
    s->posted = s->spare, s->posted_count = 0, s->posted_capacity = s->spare_capacity;
    pthread_mutex_unlock(&s->lock);
    s->spare = NULL, s->spare_capacity = 0;
    for (size_t i = 0; i < count; i++) {
        list[i].fn(list[i].user);
        if (i % PORTION == PORTION - 1) connections_turn(s);
    }
    connections_turn(s);
    if (capacity <= KEPT)
        s->spare = list, s->spare_capacity = capacity;
    else
        free(list);
}

void http_post(http_server *s, void (*fn)(void *user), void *user)
{
    pthread_mutex_lock(&s->lock);
    void *list = s->posted;
    bool ok = memory_reserve(&list, &s->posted_capacity, s->posted_count + 1, sizeof *s->posted);
    bool first = s->posted_count == 0;
    s->posted = list;
    if (ok) s->posted[s->posted_count++] = (struct posted){fn, user};
    pthread_mutex_unlock(&s->lock);
    if (!ok)
        log_line(HY_LOG_ERROR, "out of memory: an event for the HTTP loop was lost");
    else if (first)
        event_active(s->wake, EV_READ, 0);
}

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    connections_turn(arg);
}

struct later {
    void (*fn)(void *user);
    void *user;
    http_server *server;
    struct later *next; /* of those that have not run: a server that closes frees them */
};

static void run_later(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct later *l = arg;
    http_server *s = l->server;
    struct later **at = &s->later;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    l->fn(l->user);
    free(l);
    connections_turn(s);
}

bool http_after(http_server *s, double seconds, void (*fn)(void *user), void *user)
{
    struct later *l = malloc(sizeof *l);
    if (!l) return false;
    *l = (struct later){fn, user, s, s->later};
    struct timeval after = {.tv_sec = (time_t)seconds,
                            .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    if (event_base_once(s->base, -1, EV_TIMEOUT, run_later, l, &after) == 0) {
        s->later = l;
        return true;
    }
    free(l);
    return false;
}

static void on_signal(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    http_server *s = arg;
    if (s->signal_fn) s->signal_fn(s->signal_user);
    connections_turn(s);
}

void http_on_signal(http_server *s, void (*fn)(void *user), void *user)
{
    s->signal_fn = fn, s->signal_user = user;
    s->interrupt = evsignal_new(s->base, SIGINT, on_signal, s);
    s->terminate = evsignal_new(s->base, SIGTERM, on_signal, s);
    if (s->interrupt) event_add(s->interrupt, NULL);
    if (s->terminate) event_add(s->terminate, NULL);
}

static void send_comments(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    http_server *s = arg;
    for (connection *c = s->first; c; c = c->next)
        if (c->state == CONNECTION_ANSWERING && c->exchange->streaming) reply_comment(c->exchange);
    connections_turn(s);
}

/* ---- Opening --------------------------------------------------------------------------------------------------- */

/* libevent's own words, which would go to stderr as they are. */
static void log_libevent(int severity, const char *text)
{
    log_line(severity >= EVENT_LOG_ERR ? HY_LOG_ERROR : HY_LOG_DEBUG, "libevent: %s", text);
}

static void set_limits(http_server *s, const http_options *o)
{
    http_options *l = &s->limits;
    *l = *o;
    size_t *const sizes[] = {&l->max_body_bytes,     &l->max_header_bytes,  &l->max_headers,
                             &l->max_incoming_bytes, &l->max_backlog_bytes, &l->max_outgoing_bytes};
    const size_t size_defaults[] = {(size_t)64 << 20,  (size_t)4 << 20,  256,
                                    (size_t)256 << 20, (size_t)64 << 20, (size_t)512 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!*sizes[i]) *sizes[i] = size_defaults[i];
    double *const times[] = {&l->keep_alive_s, &l->header_s, &l->body_s, &l->write_s};
    const double time_defaults[] = {5, 30, 30, 60};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (!(*times[i] > 0)) *times[i] = time_defaults[i];
}

static bool copy_strings(http_server *s, const http_options *o)
{
    for (size_t i = 0; i < o->api_key_count; i++)
        SHA256((const unsigned char *)o->api_keys[i], strlen(o->api_keys[i]), s->keys[s->key_count++]);
    size_t quiet = o->access_quiet.count;
    if (quiet) s->quiet = calloc(quiet, sizeof *s->quiet);
    for (size_t i = 0; s->quiet && i < quiet; i++) {
        s->quiet[i] = memory_string(o->access_quiet.items[i], strlen(o->access_quiet.items[i]));
        if (!s->quiet[i]) return false;
        s->quiet_count++;
    }
    const char *root = o->root_path ? o->root_path : "";
    size_t length = strlen(root);
    while (length && root[length - 1] == '/') length--;
    s->root_path = memory_string(root, length), s->root_length = length;
    return s->root_path && (s->quiet || !quiet);
}

static hy_status start(http_server *s, const http_options *o, hy_error *err)
{
    set_limits(s, o);
    s->base = event_base_new();
    if (s->base) s->wake = event_new(s->base, -1, EV_PERSIST, run_posted, s);
    if (s->base) s->turn = event_new(s->base, -1, EV_PERSIST, on_turn, s);
    s->counts = counts_new();
    if (!s->wake || !s->turn || !s->counts || !copy_strings(s, o)) return error_memory(err, "the HTTP server", 0);
    event_add(s->wake, NULL);
    if (o->comment_s > 0) {
        struct timeval every = {.tv_sec = (time_t)o->comment_s,
                                .tv_usec = (suseconds_t)((o->comment_s - (double)(time_t)o->comment_s) * 1e6)};
        s->comments = event_new(s->base, -1, EV_PERSIST, send_comments, s);
        if (!s->comments || event_add(s->comments, &every) != 0) return error_memory(err, "the HTTP server", 0);
    }
    hy_status status = cors_open(o, &s->cors, err);
    if (status == HY_OK) status = tls_open(o, &s->tls, err);
    return status == HY_OK ? listen_open(s, o, err) : status;
}

static hy_status check(const http_options *o, hy_error *err)
{
    if (o->port < 0 || o->port > 65535) return error_set(err, HY_USAGE, "--port must be 0 to 65535, not %d", o->port);
    if (o->api_key_count > MAX_KEYS) return error_set(err, HY_USAGE, "at most %d API keys can be given", MAX_KEYS);
    if (o->root_path && *o->root_path && *o->root_path != '/')
        return error_set(err, HY_USAGE, "--root-path must begin with /, not be %.100s", o->root_path);
    return HY_OK;
}

hy_status http_open(const http_options *options, http_server **server, hy_error *err)
{
    hy_status status = check(options, err);
    if (status != HY_OK) return status;
    evthread_use_pthreads();
#ifdef M_MMAP_THRESHOLD
    /* Bodies of megabytes come and go beside what stays: their memory is to go back, not to become holes. */
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
#endif
    event_set_log_callback(log_libevent);
    http_server *s = calloc(1, sizeof *s);
    if (!s) return error_memory(err, "the HTTP server", sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    status = start(s, options, err);
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
    http_wait_end(s);
    if (s->wake) run_posted(-1, 0, s);
    listen_close(s);
    while (s->first) connection_free(s->first);
    struct event *const events[] = {s->wake, s->turn, s->interrupt, s->terminate, s->drain, s->comments};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i]) event_free(events[i]);
    if (s->base) event_base_free(s->base);
    for (struct later *l = s->later, *next; l; l = next) next = l->next, free(l);
    tls_close(s->tls);
    cors_close(s->cors);
    counts_free(s->counts);
    for (size_t i = 0; i < s->quiet_count; i++) free(s->quiet[i]);
    free(s->quiet);
    free(s->root_path);
    free(s->posted);
    free(s->spare);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void http_route(http_server *s, const char *method, const char *path, http_handler handler, void *user)
{
    if (s->route_count < MAX_ROUTES)
        s->routes[s->route_count++] = (struct route){method, path, handler, user};
    else
        log_line(HY_LOG_ERROR, "%s %s is not served: there are too many routes", method, path);
}

void http_visit_routes(const http_server *s, void (*fn)(void *user, const char *method, const char *path), void *user)
{
    for (size_t i = 0; i < s->route_count; i++) fn(user, s->routes[i].method, s->routes[i].path);
}

int http_port(const http_server *s)
{
    return s->port;
}

const char *http_address(const http_server *s)
{
    return s->address;
}

/* ---- Running --------------------------------------------------------------------------------------------------- */

void http_run(http_server *s)
{
    event_base_dispatch(s->base);
}

static void *wait_loop(void *arg)
{
    http_run(arg);
    return NULL;
}

static void wait_over(void *arg)
{
    const http_server *s = arg;
    event_base_loopbreak(s->base);
}

hy_status http_wait(http_server *s, const char *why, hy_error *err)
{
    s->waits = why;
    if (pthread_create(&s->waiter, NULL, wait_loop, s) == 0) return HY_OK;
    s->waits = NULL;
    return error_set(err, HY_FAILED, "cannot start a thread");
}

void http_wait_end(http_server *s)
{
    if (!s->waits) return;
    http_post(s, wait_over, s);
    pthread_join(s->waiter, NULL);
    s->waits = NULL;
}

void http_limit_body(http_server *s, size_t bytes)
{
    s->limits.max_body_bytes = bytes;
}

void http_stop_listening(http_server *s)
{
    s->closing = true;
    listen_close(s);
    connections_wake(s);
}

static void poll_drain(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    http_server *s = arg;
    int leaving = 0;
    for (const connection *c = s->first; c; c = c->next) leaving += connection_leaving(c);
    if (leaving && --s->drain_polls > 0) return;
    if (leaving)
        log_line(HY_LOG_WARNING, "%d clients have not taken the end of their replies: their connections are cut",
                 leaving);
    event_base_loopexit(s->base, NULL);
}

void http_stop(http_server *s)
{
    if (s->drain) return;
    http_stop_listening(s);
    struct timeval every = {.tv_usec = DRAIN_POLL_US};
    s->drain_polls = DRAIN_POLLS;
    s->drain = event_new(s->base, -1, EV_PERSIST, poll_drain, s);
    if (!s->drain || event_add(s->drain, &every) != 0) event_base_loopexit(s->base, NULL);
}
