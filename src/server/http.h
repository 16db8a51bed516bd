/*
 * HTTP on libevent: one loop on one thread, handlers by path, replies as JSON or as an event stream.
 *
 * Everything here runs on the loop's thread. Other threads hand work over with `http_post`. A handler owns the
 * `http_exchange` that it is given until it ends it with a reply; a client that goes away meanwhile is told through
 * `http_on_gone`, after which sends do nothing but the exchange must still be ended.
 */
#ifndef HAYATE_SERVER_HTTP_H
#define HAYATE_SERVER_HTTP_H

#include "base/buffer.h"
#include "hayate.h"

typedef struct http_server http_server;
typedef struct http_exchange http_exchange; /* one request and its reply */

typedef struct http_options {
    const char *host;            /* NULL: all addresses */
    int port;                    /* 0: any free one */
    const char *const *api_keys; /* [api_key_count]; if any, paths under /v1 want "Authorization: Bearer KEY" */
    size_t api_key_count;
    size_t max_body_bytes;       /* 0: 64 MiB */
} http_options;

typedef void (*http_handler)(void *user, http_exchange *exchange);

hy_status http_open(const http_options *options, http_server **server, hy_error *err);
/* Handles `method` ("GET", "POST") on `path`; other methods on it get 405, other paths 404. */
void http_route(http_server *server, const char *method, const char *path, http_handler handler, void *user);
int http_port(const http_server *server);
/* Runs until http_stop. */
void http_run(http_server *server);
/* From the loop: ends http_run once the replies that are on their way have left, two seconds at most. */
void http_stop(http_server *server);
void http_close(http_server *server);

/* Runs fn(user) on the loop soon; from any thread. */
void http_post(http_server *server, void (*fn)(void *user), void *user);
/* Calls fn(user) on the loop when the process gets SIGINT or SIGTERM. */
void http_on_signal(http_server *server, void (*fn)(void *user), void *user);

/* The body, borrowed; a header, NULL if absent. */
const char *http_body(http_exchange *x, size_t *length);
const char *http_header(http_exchange *x, const char *name);

/* Whole replies; each ends the exchange. `body` may be NULL with length 0. */
void http_reply(http_exchange *x, int status, const char *type, const char *body, size_t length);
void http_reply_json(http_exchange *x, int status, const buffer *body);
/*
 * The error body {"error":{"message","type","param","code"}}; param NULL is null. The message of a semantic error gets
 * the suffix " (parameter=P)" when `suffix` is set.
 */
void http_reply_error(http_exchange *x, int status, const char *type, const char *param, bool suffix, const char *message);

/* An event stream: begin, any number of "data: ..." events, end. */
void http_stream_begin(http_exchange *x);
void http_stream_event(http_exchange *x, const char *data, size_t length);
void http_stream_end(http_exchange *x); /* ends the exchange */
/* Bytes that the client has not taken yet. */
size_t http_stream_backlog(http_exchange *x);

/* Calls fn(user) once if the client goes away before the exchange ends. */
void http_on_gone(http_exchange *x, void (*fn)(void *user), void *user);

/* Writes the error object (without the outer braces' newline) into out; used for errors inside streams. */
void http_write_error(buffer *out, int status, const char *type, const char *param, bool suffix, const char *message);

#endif
