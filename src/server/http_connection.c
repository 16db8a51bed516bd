/*
 * Connections: bytes in, requests out, in order, one at a time; deadlines; what was made in a turn of the loop leaves
 * at its end in one write. Nothing is freed but at the end of a turn and in libevent's callbacks, so handlers need not
 * care.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/http_parts.h"

enum { KEPT_OUTPUT = 64 << 10, KEPT_HEAD = 4 << 10, FIRST_BODY = 4 << 20 };
static const double surplus_s = 0.25; /* for which a connection over the limit waits */
static const double body_rate = 1024; /* bytes a second that a body must bring */
static const char too_many[] = "The server has as many connections as it takes";
static const char continue_line[] = "HTTP/1.1 100 Continue\r\n\r\n";

/* ---- Life ------------------------------------------------------------------------------------------------------ */

void connection_dirty(connection *c)
{
    http_server *s = c->server;
    if (c->dirty) return;
    if (!s->dirty) event_active(s->turn, EV_TIMEOUT, 0); /* for callers that are not followed by connections_turn */
    c->dirty = true, c->next_dirty = s->dirty, s->dirty = c;
}

void connections_wake(http_server *s)
{
    for (connection *c = s->first; c; c = c->next) connection_dirty(c);
}

/* A place is free: one of those that came over the limit has it. */
static void promote(http_server *s)
{
    connection *c = s->surplus && !s->closing ? s->first : NULL;
    while (c && !(c->surplus && c->state == CONNECTION_HEAD)) c = c->next;
    if (!c) return;
    c->surplus = false, c->wait = WAIT_NONE;
    s->surplus--;
    connection_dirty(c);
}

void connection_free(connection *c)
{
    http_server *s = c->server;
    http_exchange *x = c->exchange;
    for (connection **at = &s->dirty; c->dirty && *at; at = &(*at)->next_dirty) {
        if (*at != c) continue;
        *at = c->next_dirty;
        break;
    }
    if (c->next) c->next->previous = c->previous;
    *(c->previous ? &c->previous->next : &s->first) = c->next;
    bool given = c->state == CONNECTION_ANSWERING, place = !c->surplus;
    s->totals.connections--;
    s->totals.incoming -= c->held, s->totals.outgoing -= c->waiting;
    s->surplus -= c->surplus;
    buffer_free(&c->head.text);
    buffer_free(&c->out);
    event_free(c->timer);
    bufferevent_free(c->bev);
    free(c);
    if (place) promote(s);
    if (!x) return;
    x->connection = NULL;
    if (given)
        exchange_gone(x);
    else
        exchange_free(x);
}

/* What libevent has to write still. Only flush gives it anything, and counts it. */
static size_t left_to_libevent(const connection *c)
{
    return c->waiting ? evbuffer_get_length(bufferevent_get_output(c->bev)) : 0;
}

size_t connection_backlog(const connection *c)
{
    return c->out.length + left_to_libevent(c);
}

bool connection_leaving(const connection *c)
{
    return !c->exchange && connection_backlog(c) > 0;
}

void connection_count_held(connection *c)
{
    size_t held = c->head.text.capacity;
    if (c->exchange) held += c->exchange->head.length + c->exchange->body.length;
    c->server->totals.incoming += held - c->held;
    c->held = held;
}

/* ---- Deadlines ------------------------------------------------------------------------------------------------- */

static connection_wait wanted_wait(const connection *c)
{
    switch (c->state) {
    case CONNECTION_HEAD: return c->head.text.length ? WAIT_HEAD : c->served ? WAIT_NEXT : WAIT_FIRST;
    case CONNECTION_BODY: return WAIT_BODY;
    case CONNECTION_LINGERING: return WAIT_LINGER;
    default: return WAIT_NONE;
    }
}

static void arm(connection *c)
{
    const http_options *o = &c->server->limits;
    connection_wait wait = wanted_wait(c);
    if (wait == c->wait) return;
    c->wait = wait, c->period_bytes = 0;
    double s = 0;
    switch (wait) {
    case WAIT_NONE: event_del(c->timer); return;
    case WAIT_FIRST:
    case WAIT_HEAD: s = c->surplus ? surplus_s : o->header_s; break;
    case WAIT_NEXT: s = o->keep_alive_s; break;
    case WAIT_BODY: s = o->body_s; break;
    case WAIT_LINGER: s = LINGER_S; break;
    }
    struct timeval after = {.tv_sec = (time_t)s, .tv_usec = (suseconds_t)((s - (double)(time_t)s) * 1e6)};
    event_add(c->timer, &after);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    connection *c = arg;
    http_server *s = c->server;
    connection_wait wait = c->wait;
    bool slow = c->period_bytes < (size_t)(body_rate * s->limits.body_s);
    c->wait = WAIT_NONE;
    /* The next request is waited for when the last reply has been taken; who takes nothing is cut off by write_s. */
    if ((wait == WAIT_BODY && !slow) || (wait == WAIT_NEXT && connection_backlog(c) > 0)) {
        arm(c);
        return;
    }
    s->totals.too_slow += wait == WAIT_FIRST || wait == WAIT_HEAD || wait == WAIT_BODY;
    if (c->surplus && c->ready)
        connection_refuse(c, 503, too_many);
    else if (wait == WAIT_HEAD)
        connection_refuse(c, 408, "The head of the request did not come in time");
    else if (wait == WAIT_BODY)
        connection_refuse(c, 408, "The body of the request comes too slowly");
    else
        connection_free(c);
    connections_turn(s);
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

void connection_refuse(connection *c, int status, const char *why)
{
    http_exchange *x = c->exchange ? c->exchange : exchange_new(c);
    c->server->totals.malformed += status < 500 && status != 408;
    c->keep_alive = false;
    c->state = CONNECTION_CLOSING;
    if (!x) {
        connection_dirty(c); /* no memory for a reply: it just ends */
        return;
    }
    c->state = CONNECTION_ANSWERING;
    if (status == 503) http_reply_header(x, "Retry-After", "1");
    http_reply_error(x, status, http_phrase(status), NULL, false, why);
}

static void dispatch(connection *c)
{
    c->state = CONNECTION_ANSWERING;
    c->exchange->body_bytes = c->exchange->body.length;
    c->exchange->began = clock_seconds();
    exchange_dispatch(c->exchange);
}

/* One piece of memory for what is announced; a large body must come before it gets more. */
static void expect_body(http_exchange *x)
{
    void *data = x->body.data;
    size_t announced = (size_t)x->head.content_length;
    size_t first = announced < FIRST_BODY ? announced : FIRST_BODY;
    if (memory_reserve(&data, &x->body.capacity, first + 1, 1)) x->body.data = data;
}

/* The head is complete: its body follows, or it is answered. */
static void begin_request(connection *c)
{
    const char *why = NULL;
    http_exchange *x = exchange_new(c);
    if (!x) {
        connection_refuse(c, 503, "The server is out of memory");
        return;
    }
    int status = http_head_parse(&x->head, &c->head, &why);
    if (status) {
        connection_refuse(c, status, why);
        return;
    }
    c->keep_alive = x->head.keep_alive;
    c->chunks = (http_chunks){0};
    exchange_admit(x);
    const http_head *h = &x->head;
    bool body = h->chunked || h->content_length > 0;
    bool early = x->refusal > 0 && body && (h->expects_continue || h->chunked || h->content_length > SMALL_BODY);
    if (early) c->keep_alive = false; /* rather than read what nobody wants */
    if (!body || early) {
        dispatch(c);
        return;
    }
    c->state = CONNECTION_BODY;
    expect_body(x);
    if (h->expects_continue) {
        buffer_append(&c->out, continue_line, sizeof continue_line - 1);
        connection_dirty(c);
    }
}

static size_t feed_head(connection *c, const char *bytes, size_t count)
{
    const http_options *o = &c->server->limits;
    int status = 0;
    const char *why = NULL;
    size_t used = http_head_feed(&c->head, bytes, count, o->max_header_bytes, o->max_headers, &status, &why);
    if (status)
        connection_refuse(c, status, why);
    else if (c->head.done)
        begin_request(c);
    return used;
}

static size_t feed_body(connection *c, const char *bytes, size_t count)
{
    http_exchange *x = c->exchange;
    size_t used = 0, limit = c->server->limits.max_body_bytes;
    http_chunks_state state = HTTP_CHUNKS_MORE;
    if (x->head.chunked) {
        state = http_chunks_feed(&c->chunks, bytes, count, limit, &x->body, &used);
    } else {
        size_t left = (size_t)x->head.content_length - x->body.length;
        used = count < left ? count : left;
        buffer_append(&x->body, bytes, used);
        if (used == left) state = HTTP_CHUNKS_DONE;
    }
    c->period_bytes += used;
    if (!buffer_ok(&x->body))
        connection_refuse(c, 503, "The server is out of memory");
    else if (state == HTTP_CHUNKS_BAD)
        connection_refuse(c, 400, "The body's chunks are malformed");
    else if (state == HTTP_CHUNKS_LARGE)
        connection_refuse(c, 413, "The body is larger than this server reads");
    else if (state == HTTP_CHUNKS_DONE)
        dispatch(c);
    return used;
}

/* How many of the bytes were taken. */
static size_t feed(connection *c, const char *bytes, size_t count)
{
    switch (c->state) {
    case CONNECTION_HEAD: return feed_head(c, bytes, count);
    case CONNECTION_BODY: return feed_body(c, bytes, count);
    case CONNECTION_ANSWERING: return 0;
    default: return count;
    }
}

/* Takes in what is there until an answer has to be waited for. */
static void pump(connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    const http_options *o = &c->server->limits;
    size_t n;
    if (c->surplus && c->state == CONNECTION_HEAD) return; /* until another one leaves, or its time is over */
    while ((n = evbuffer_get_contiguous_space(in)) > 0) {
        if (c->state == CONNECTION_HEAD && connection_backlog(c) > WIDE_OUTPUT) break;
        size_t used = feed(c, (const char *)evbuffer_pullup(in, (ev_ssize_t)n), n);
        if (used) evbuffer_drain(in, used);
        connection_count_held(c);
        bool reading = c->state == CONNECTION_HEAD || c->state == CONNECTION_BODY;
        if (reading && c->server->totals.incoming > o->max_incoming_bytes && c->held > SMALL_BODY)
            connection_refuse(c, 503, "The server holds too many large requests at the moment");
        if (!used) break;
    }
    if (c->state == CONNECTION_LINGERING && clock_seconds() < c->linger_end) c->wait = WAIT_NONE;
    if (c->state == CONNECTION_ANSWERING) connection_dirty(c); /* it may be far ahead */
    arm(c);
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

/* The one who holds most of what is too much for all. */
static connection *largest_backlog(const http_server *s)
{
    connection *most = s->first;
    for (connection *c = s->first; c; c = c->next)
        if (c->waiting > most->waiting) most = c;
    return most;
}

/* False: this connection has to go, its client leaves too much lying. */
static bool count_waiting(connection *c, size_t waiting)
{
    http_server *s = c->server;
    s->totals.outgoing += waiting - c->waiting;
    c->waiting = waiting;
    bool over = c->exchange && c->exchange->streaming && waiting > s->limits.max_backlog_bytes;
    if (!over && s->totals.outgoing <= s->limits.max_outgoing_bytes) return true;
    s->totals.overflowed++;
    connection *most = over ? c : largest_backlog(s);
    log_line(HY_LOG_WARNING, "%s does not read what it asked for, %zu bytes are waiting: its connection is cut",
             most->peer, most->waiting);
    if (most == c) return false;
    connection_free(most);
    return true;
}

/* Straight to the socket; what that does not take is libevent's. */
static bool flush(connection *c)
{
    buffer *out = &c->out;
    size_t sent = 0;
    if (!buffer_ok(out)) return false;
    if (!out->length) return count_waiting(c, left_to_libevent(c));
    if (!c->secure && left_to_libevent(c) == 0) {
        ssize_t n = send(bufferevent_getfd(c->bev), out->data, out->length, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
        sent = n > 0 ? (size_t)n : 0;
    }
    bool all = sent == out->length;
    if (!all && bufferevent_write(c->bev, out->data + sent, out->length - sent) != 0) return false;
    buffer_clear(out);
    if (out->capacity > KEPT_OUTPUT) buffer_free(out);
    return count_waiting(c, all ? 0 : evbuffer_get_length(bufferevent_get_output(c->bev)));
}

/* The last reply has left. If the socket were closed now, bytes that the client still sends would make it lose the
 * reply. */
static void linger(connection *c)
{
    if (c->secure) tls_shutdown(c->bev);
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    c->state = CONNECTION_LINGERING;
    c->linger_end = clock_seconds() + LINGER_MOST_S;
    pump(c);
}

static bool is_idle(const connection *c)
{
    return connection_backlog(c) == 0 && evbuffer_get_length(bufferevent_get_input(c->bev)) == 0;
}

/*
 * It sends and sends while its request is being answered. What is read ahead must not grow without bound, and if it
 * were not read, the end of the connection would not be seen behind it: such a client counts as gone.
 */
static bool is_far_ahead(const connection *c)
{
    return evbuffer_get_length(bufferevent_get_input(c->bev)) >= AHEAD_BYTES;
}

/* What follows once its output is on its way. */
static void go_on(connection *c)
{
    bool idle = connection_backlog(c) == 0;
    switch (c->state) {
    case CONNECTION_HEAD:
        pump(c);
        if (c->state == CONNECTION_HEAD && is_idle(c) && (c->ended || (c->server->closing && !c->head.text.length)))
            connection_free(c);
        break;
    case CONNECTION_ANSWERING:
        if (c->ended || is_far_ahead(c))
            connection_free(c);
        else
            arm(c);
        break;
    case CONNECTION_CLOSING:
        if (idle && c->ended)
            connection_free(c);
        else if (idle)
            linger(c);
        else
            arm(c);
        break;
    default: break;
    }
}

void connections_turn(http_server *s)
{
    while (s->dirty) {
        connection *c = s->dirty;
        s->dirty = c->next_dirty, c->dirty = false;
        if (flush(c))
            go_on(c);
        else
            connection_free(c);
    }
}

void connection_answered(connection *c)
{
    c->exchange = NULL;
    c->served = true;
    c->wait = WAIT_NONE; /* the next wait begins anew */
    c->state = c->keep_alive ? CONNECTION_HEAD : CONNECTION_CLOSING;
    if (c->head.text.capacity > KEPT_HEAD) buffer_free(&c->head.text);
    connection_count_held(c);
    connection_dirty(c);
}

/* ---- libevent -------------------------------------------------------------------------------------------------- */

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    connection *c = arg;
    http_server *s = c->server;
    pump(c);
    connections_turn(s);
}

/* All output has been taken. */
static void on_write(struct bufferevent *bev, void *arg)
{
    (void)bev;
    connection *c = arg;
    http_server *s = c->server;
    connection_dirty(c);
    connections_turn(s);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    connection *c = arg;
    http_server *s = c->server;
    if (what & BEV_EVENT_CONNECTED) {
        c->ready = true;
    } else if (what & BEV_EVENT_EOF && c->state != CONNECTION_BODY && c->state != CONNECTION_LINGERING) {
        c->ended = true;
        connection_dirty(c);
    } else {
        s->totals.too_slow += (what & BEV_EVENT_TIMEOUT) != 0;
        connection_free(c);
    }
    connections_turn(s);
}

void connection_new(http_server *s, int fd, const char *peer, bool surplus)
{
    connection *c = calloc(1, sizeof *c);
    if (c)
        c->bev = s->tls ? tls_accept(s->tls, s->base, fd) : bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (c) c->timer = evtimer_new(s->base, on_timer, c);
    if (!c || !c->bev || !c->timer) {
        if (c && c->bev)
            bufferevent_free(c->bev);
        else
            evutil_closesocket(fd);
        if (c && c->timer) event_free(c->timer);
        free(c);
        return;
    }
    c->server = s, c->secure = s->tls != NULL, c->ready = !c->secure, c->surplus = surplus;
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    if (s->first) s->first->previous = c;
    c->next = s->first, s->first = c;
    s->totals.connections++, s->totals.accepted++;
    s->surplus += surplus;
    struct timeval write = {.tv_sec = (time_t)s->limits.write_s,
                            .tv_usec = (suseconds_t)((s->limits.write_s - (double)(time_t)s->limits.write_s) * 1e6)};
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, AHEAD_BYTES);
    bufferevent_set_max_single_read(c->bev, AHEAD_BYTES);
    bufferevent_set_timeouts(c->bev, NULL, &write);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    arm(c);
}
