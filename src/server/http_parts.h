/* What the files of HTTP share: the server, its connections and exchanges. Not for handlers. */
#ifndef HAYATE_SERVER_HTTP_PARTS_H
#define HAYATE_SERVER_HTTP_PARTS_H

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <pthread.h>

#include "server/http.h"
#include "server/http_head.h"

enum {
    MAX_ROUTES = 128,
    MAX_KEYS = 16,
    MAX_LISTENERS = 8,
    MAX_SURPLUS = 64,       /* connections over the limit that wait a moment and are told so; others are closed unheard */
    SMALL_BODY = 64 << 10,  /* always taken in; read to its end even if the request is refused, so that the connection lives */
    AHEAD_BYTES = 256 << 10, /* read of what a client sends before its last request is answered */
    WIDE_OUTPUT = 1 << 20,  /* no further request of a pipeline is read while so much is not taken */
    LINGER_S = 2,           /* what a client still sends after the last reply is read for so long, at pauses */
    LINGER_MOST_S = 10,     /* and for so long in all */
};

typedef struct connection connection;

struct route {
    const char *method, *path;
    http_handler handler;
    void *user;
};

struct posted {
    void (*fn)(void *user);
    void *user;
};

typedef struct http_tls http_tls;
typedef struct http_cors http_cors;
typedef struct http_counts http_counts;

struct http_server {
    struct event_base *base;
    struct event *wake, *interrupt, *terminate, *drain, *turn, *comments;
    struct later *later; /* http_after, not yet run */
    struct evconnlistener *listeners[MAX_LISTENERS];
    int listener_count;
    const char *waits;    /* http_wait: what every request is told; NULL: requests are served */
    pthread_t waiter;     /* of http_wait */
    bool listening_again; /* a pause of accepting runs */
    double said_full;     /* when the log last said that connections are not taken */
    char address[160], uds[108];
    int port;

    struct route routes[MAX_ROUTES];
    size_t route_count;
    unsigned char keys[MAX_KEYS][32]; /* SHA-256 */
    size_t key_count;
    char *root_path;
    size_t root_length;
    http_options limits; /* with defaults filled in; its strings are not used */
    char **quiet;        /* [quiet_count] paths without a line in the access log */
    size_t quiet_count;
    http_tls *tls;
    http_cors *cors;
    http_counts *counts;
    http_totals totals;
    char date[40];
    int64_t date_second;

    connection *first; /* all of them */
    size_t surplus;
    connection *dirty; /* those with something to do at the end of the turn */
    bool closing;      /* every reply is the last one of its connection */
    int drain_polls;   /* left until http_run ends whatever is still leaving */

    pthread_mutex_t lock; /* guards posted */
    struct posted *posted;
    size_t posted_count, posted_capacity;
    struct posted *spare; /* a list that has been run, memory of the next one; the loop's */
    size_t spare_capacity;
    void (*signal_fn)(void *user);
    void *signal_user;
};

/* What the timer of a connection stands for. */
typedef enum connection_wait { WAIT_NONE, WAIT_FIRST, WAIT_NEXT, WAIT_HEAD, WAIT_BODY, WAIT_LINGER } connection_wait;

typedef enum connection_state {
    CONNECTION_HEAD,      /* waits for a request, or reads its head */
    CONNECTION_BODY,
    CONNECTION_ANSWERING, /* has an exchange; what the client sends stays where it is */
    CONNECTION_CLOSING,   /* the last reply is leaving */
    CONNECTION_LINGERING, /* it has left; what comes is thrown away until the client closes */
} connection_state;

struct connection {
    http_server *server;
    connection *next, *previous, *next_dirty;
    struct bufferevent *bev;
    struct event *timer;
    connection_state state;
    connection_wait wait;
    bool dirty, secure, ready, surplus, ended, served, keep_alive;
    http_head_reader head;
    http_chunks chunks;
    http_exchange *exchange;
    buffer out;           /* made in this turn of the loop */
    size_t held, waiting; /* as counted in the totals: incoming, outgoing */
    size_t period_bytes;  /* of a body, in this period of body_s */
    double linger_end;
    char peer[64];
};

struct http_exchange {
    http_server *server;
    connection *connection; /* NULL: the client has left */
    http_head head;
    char *path;             /* decoded, without the root path */
    const char *raw_path;   /* [raw_length] encoded, without the root path; in `head` */
    size_t raw_length;
    const struct route *route;
    buffer body;
    int refusal; /* status to answer with, 0: the handler does; -1: OPTIONS, which HTTP itself answers */
    char why[200];
    char allow[96];
    bool streaming, chunked, cut;
    int status;
    buffer headers; /* lines that the handler added */
    char **pairs;   /* [2 * pair_count] of the query, decoded */
    size_t pair_count, pair_capacity;
    bool query_read;
    char *parts[8]; /* of the path, decoded, as asked for */
    size_t part_count;
    bool spoke; /* since the last look of the timer for comments */
    double began;
    size_t body_bytes, sent_bytes;
    size_t largest; /* event of the stream, bytes */
    void (*gone_fn)(void *user);
    void *gone_user;
};

/* http_listen.c */
hy_status listen_open(http_server *s, const http_options *o, hy_error *err);
void listen_close(http_server *s);

/* http_connection.c */
void connection_new(http_server *s, int fd, const char *peer, bool surplus);
void connection_free(connection *c);    /* the exchange, if any, is told that its client has gone */
void connection_answered(connection *c); /* its exchange has ended with a reply */
void connection_dirty(connection *c);
void connection_count_held(connection *c);
size_t connection_backlog(const connection *c);
void connections_turn(http_server *s); /* the end of a turn: writes what was made, reads on, closes */
void connections_wake(http_server *s); /* all have something to do at the end of the turn */
/* Answers what is no request, or no whole one, as the last reply of the connection. */
void connection_refuse(connection *c, int status, const char *why);
bool connection_leaving(const connection *c); /* a finished reply is not yet written */

/* http_request.c */
http_exchange *exchange_new(connection *c);
void exchange_free(http_exchange *x);
/* The head is there: finds the route and what speaks against the request. */
void exchange_admit(http_exchange *x);
void exchange_dispatch(http_exchange *x);

/* The client has left: who answers is told. */
void exchange_gone(http_exchange *x);

/* http_reply.c */
void reply_comment(http_exchange *x);

/* http_tls.c */
hy_status tls_open(const http_options *o, http_tls **out, hy_error *err);
struct bufferevent *tls_accept(http_tls *tls, struct event_base *base, int fd);
void tls_shutdown(struct bufferevent *bev);
void tls_close(http_tls *tls);

/* http_cors.c */
hy_status cors_open(const http_options *o, http_cors **out, hy_error *err);
void cors_close(http_cors *cors);
/* Lines of headers for a reply to a request with this Origin (NULL: none). */
void cors_reply(const http_cors *cors, const char *origin, bool cookie, buffer *out);
/* The same for a preflight; false: refused, with the reason. */
bool cors_preflight(const http_cors *cors, const http_head *head, buffer *out, const char **why);

/* http_count.c */
http_counts *counts_new(void);
void counts_free(http_counts *counts);
void counts_add(http_counts *counts, const char *method, const char *handler, int status, double seconds,
                size_t request_bytes, size_t response_bytes);
void log_access(const http_server *s, const connection *c, const http_head *head, int status);

#endif
