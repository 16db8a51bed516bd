/*
 * HTTP/1.1 on libevent: one loop on one thread, handlers by path, replies as JSON or as an event stream.
 *
 * Everything here runs on the loop's thread. Other threads hand work over with `http_post`. A handler owns the
 * `http_exchange` that it is given until it ends it with a reply; a client that goes away meanwhile is told through
 * `http_on_gone`, after which sends do nothing but the exchange must still be ended.
 *
 * A handler sees whole, well-formed requests only: what is malformed, too large, too slow, without a key or without a
 * route has been answered. What is sent during one turn of the loop leaves in one write at its end.
 */
#ifndef HAYATE_SERVER_HTTP_H
#define HAYATE_SERVER_HTTP_H

#include "base/buffer.h"
#include "hayate.h"

typedef struct http_server http_server;
typedef struct http_exchange http_exchange; /* one request and its reply */

typedef enum http_cert_reqs { HTTP_CERT_NONE, HTTP_CERT_OPTIONAL, HTTP_CERT_REQUIRED } http_cert_reqs;

typedef struct http_strings {
    const char *const *items; /* [count] */
    size_t count;
} http_strings;

/* A zeroed struct means every default. All is copied by http_open. */
typedef struct http_options {
    const char *host;            /* NULL or "": all addresses of both families; "0.0.0.0", "::", a name, an address */
    int port;                    /* 0: any free one */
    const char *uds;             /* --uds: listens on this unix socket in place of host and port */
    const char *const *api_keys; /* [api_key_count]; if any, paths under /v1, /v2, /inference and /cohere want
                                  * "Authorization: Bearer KEY" or "x-api-key: KEY" */
    size_t api_key_count;
    const char *root_path;       /* --root-path: a prefix that a proxy may leave on the paths */
    bool request_ids;            /* --enable-request-id-headers: replies carry X-Request-Id */

    size_t max_body_bytes;       /* 0: 64 MiB */
    size_t max_header_bytes;     /* --h11-max-incomplete-event-size; 0: 4 MiB */
    size_t max_headers;          /* --h11-max-header-count; 0: 256 */
    size_t max_connections;      /* more are answered 503; 0: what the limit on descriptors leaves, at most 65,536 */
    double keep_alive_s;         /* a connection waits so long for its next request; 0: 5 */
    double header_s;             /* a head must be there in so many seconds; 0: 30 */
    double body_s;               /* a body must bring 1 KiB/s in each period of so many seconds; 0: 30 */
    double write_s;              /* a client that takes nothing of what is waiting for so long has gone; 0: 60 */
    double comment_s;            /* streams that are silent for so long get an SSE comment; 0: never */
    size_t max_incoming_bytes;   /* of heads and bodies that are held, over all connections: above, only bodies up to 64 KiB are
                                  * read; 0: 256 MiB */
    size_t max_backlog_bytes;    /* of a stream that its client has not taken; 0: 64 MiB */
    size_t max_outgoing_bytes;   /* the same over all clients; the one with most goes first; 0: 512 MiB */

    http_strings allowed_origins, allowed_methods, allowed_headers; /* CORS; none: all ("*") */
    bool allow_credentials;

    const char *ssl_keyfile, *ssl_certfile; /* both: TLS 1.2 and later; the key may be in the file of the certificate */
    const char *ssl_ca_certs;               /* whom clients' certificates must come from */
    http_cert_reqs ssl_cert_reqs;
    bool ssl_refresh;                       /* --enable-ssl-refresh: files that change are read again */

    /* Gets a line for each request, "INFO:     127.0.0.1:5000 - \"GET /health HTTP/1.1\" 200 OK"; NULL: none. */
    void (*access_log)(void *user, const char *line);
    void *access_user;
    http_strings access_quiet; /* paths that have none (--disable-access-log-for-endpoints) */
} http_options;

typedef void (*http_handler)(void *user, http_exchange *exchange);

/* HY_USAGE: an option is wrong, a certificate cannot be read; HY_FAILED: the address is taken. */
hy_status http_open(const http_options *options, http_server **server, hy_error *err);
/*
 * While there is nothing to serve yet: a thread of its own runs the loop and answers every request with 503, Retry-After and
 * `why` (borrowed). The address is taken and probes are heard. HY_FAILED: no thread.
 */
hy_status http_wait(http_server *server, const char *why, hy_error *err);
/* Ends that: routes are added and http_run is called after it. Without http_wait nothing happens. */
void http_wait_end(http_server *server);
/* In place of the options' max_body_bytes, before http_run. */
void http_limit_body(http_server *server, size_t bytes);
/*
 * Handles `method` ("GET", "POST", "DELETE", ...) on `path`, which must live as long as the server. A part in braces matches one
 * part of a path: "/v1/responses/{id}". Other methods on it get 405, other paths 404; GET answers HEAD too.
 */
void http_route(http_server *server, const char *method, const char *path, http_handler handler, void *user);
/* Every route, in the order of http_route. */
void http_visit_routes(const http_server *server, void (*fn)(void *user, const char *method, const char *path), void *user);
int http_port(const http_server *server); /* 0 on a unix socket */
/* "http://0.0.0.0:8000", "https://[::1]:8000", "unix:/run/x.sock", for the log. */
const char *http_address(const http_server *server);
/* Runs until http_stop. */
void http_run(http_server *server);
/* From the loop: no connections are taken any more, idle ones are closed, and every other after its reply. */
void http_stop_listening(http_server *server);
/* From the loop: the same, and ends http_run once the replies that are on their way have left, two seconds at most. */
void http_stop(http_server *server);
void http_close(http_server *server);

/* Runs fn(user) on the loop soon; from any thread. */
void http_post(http_server *server, void (*fn)(void *user), void *user);
/* From the loop: runs fn(user) after so many seconds, once. False: no memory. */
bool http_after(http_server *server, double seconds, void (*fn)(void *user), void *user);
/* Calls fn(user) on the loop when the process gets SIGINT or SIGTERM. */
void http_on_signal(http_server *server, void (*fn)(void *user), void *user);

/* ---- The request. Strings are borrowed and live until the exchange ends ---------------------------------------- */

/* The body, NUL after it; gone after http_drop_body. */
const char *http_body(http_exchange *x, size_t *length);
/* A header, NULL if absent. */
const char *http_header(http_exchange *x, const char *name);
const char *http_method(const http_exchange *x);
const char *http_path(const http_exchange *x); /* decoded, without the query and the root path */
/* What stands for {name} in the route's path, decoded; NULL if the route has no such part. */
const char *http_parameter(http_exchange *x, const char *name);
/* The first value of `name` in the query, decoded; NULL if absent. */
const char *http_query(http_exchange *x, const char *name);
/* The i-th pair of the query, in order; false past the last. */
bool http_query_at(http_exchange *x, size_t i, const char **name, const char **value);
/* Frees the body, for an exchange that will wait for its reply. */
void http_drop_body(http_exchange *x);

/* ---- The reply ------------------------------------------------------------------------------------------------- */

/* Adds a header to the reply that is to come. */
void http_reply_header(http_exchange *x, const char *name, const char *value);

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
/* The same after a line "event: NAME". */
void http_stream_named(http_exchange *x, const char *name, const char *data, size_t length);
void http_stream_end(http_exchange *x); /* ends the exchange */
/* Bytes that the client has not taken yet; and of the largest event so far, which says nothing about the client. */
size_t http_stream_backlog(http_exchange *x);
size_t http_stream_largest(const http_exchange *x);

/* Calls fn(user) once if the client goes away before the exchange ends. */
void http_on_gone(http_exchange *x, void (*fn)(void *user), void *user);

/* Writes the error object (without the outer braces' newline) into out; used for errors inside streams. */
void http_write_error(buffer *out, int status, const char *type, const char *param, bool suffix, const char *message);
/* "Not Found" for 404: the reason of the status line, and the type of an error that HTTP itself found. */
const char *http_phrase(int status);

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

enum { HTTP_BUCKETS = 21 };
extern const double http_bucket_bounds[HTTP_BUCKETS]; /* seconds, ascending: .01, .025, ... 60 */

/* Requests of one method and route that ended with one status, since the start. */
typedef struct http_count {
    const char *method, *handler; /* the route's path as given to http_route; "none" for what has no route */
    int status;
    uint64_t requests, request_bytes, response_bytes; /* bytes of bodies */
    double seconds;                                   /* from the complete request to the end of its reply, summed up */
    uint64_t buckets[HTTP_BUCKETS];                   /* requests that took at most http_bucket_bounds[i], cumulative */
} http_count;

/* On the loop's thread. */
void http_visit_counts(const http_server *server, void (*fn)(void *user, const http_count *count), void *user);

typedef struct http_totals {
    size_t connections, exchanges;  /* open; requests being answered */
    size_t incoming, outgoing;      /* bytes held of requests not complete, of replies not taken */
    uint64_t accepted, turned_away; /* connections; those over the limit */
    uint64_t too_slow, malformed;   /* shed for a deadline; answered 4xx before a handler saw them */
    uint64_t overflowed;            /* cut off for a backlog over the limits */
} http_totals;
http_totals http_describe(const http_server *server);

#endif
