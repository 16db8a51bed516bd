/* Replies: whole ones and event streams, written into the connection's output of this turn. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "server/http_parts.h"

const char *http_phrase(int status)
{
    static const struct {
        int status;
        const char *phrase;
    } phrases[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Entity"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {529, "Overloaded"},
    };
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (phrases[i].status == status) return phrases[i].phrase;
    return status < 500 ? "Error" : "Internal Server Error";
}

/* ---- The head -------------------------------------------------------------------------------------------------- */

static const char *date(http_server *s)
{
    time_t now = time(NULL);
    if (now == s->date_second) return s->date;
    static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    struct tm t;
    gmtime_r(&now, &t);
    snprintf(s->date, sizeof s->date, "%.3s, %02d %.3s %d %02d:%02d:%02d GMT", days + 3 * t.tm_wday, t.tm_mday,
             months + 3 * t.tm_mon, t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
    s->date_second = now;
    return s->date;
}

static void write_request_id(http_exchange *x, buffer *out)
{
    const char *given = http_head_field(&x->head, "X-Request-Id");
    if (given && *given && strlen(given) <= 256)
        buffer_printf(out, "X-Request-Id: %s\r\n", given);
    else
        buffer_printf(out, "X-Request-Id: %016llx%016llx\r\n", (unsigned long long)random_seed(),
                      (unsigned long long)random_seed());
}

/* The head but for the lines that say where the body ends. */
static void write_head(http_exchange *x, int status, const char *type, buffer *out)
{
    http_server *s = x->server;
    connection *c = x->connection;
    x->status = status;
    buffer_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\n", status, http_phrase(status), date(s),
                  type);
    buffer_append(out, x->headers.data, x->headers.length);
    if (s->limits.request_ids) write_request_id(x, out);
    if (x->refusal != -1 || status != 200) {
        const char *origin = http_head_field(&x->head, "Origin");
        if (origin) cors_reply(s->cors, origin, http_head_field(&x->head, "Cookie") != NULL, out);
    }
    if (s->closing) c->keep_alive = false;
    if (!c->keep_alive)
        buffer_string(out, "Connection: close\r\n");
    else if (x->head.minor == 0)
        buffer_string(out, "Connection: keep-alive\r\n");
    log_access(s, c, &x->head, status);
}

void http_reply_header(http_exchange *x, const char *name, const char *value)
{
    if (strpbrk(name, "\r\n:") || strpbrk(value, "\r\n")) return;
    buffer_printf(&x->headers, "%s: %s\r\n", name, value);
}

/* ---- Ends ------------------------------------------------------------------------------------------------------ */

/* A client that left before the reply began has no status; it is counted as proxies do. */
enum { CLIENT_LEFT = 499 };

static void end(http_exchange *x)
{
    counts_add(x->server->counts, x->head.method, x->route ? x->route->path : "none",
               x->status ? x->status : CLIENT_LEFT, clock_seconds() - x->began, x->body_bytes, x->sent_bytes);
    if (x->connection) connection_answered(x->connection);
    exchange_free(x);
}

void http_reply(http_exchange *x, int status, const char *type, const char *body, size_t length)
{
    if (x->connection) {
        buffer *out = &x->connection->out;
        write_head(x, status, type, out);
        if (status == 204)
            buffer_string(out, "\r\n");
        else
            buffer_printf(out, "Content-Length: %zu\r\n\r\n", length);
        if (status != 204 && length && strcmp(x->head.method, "HEAD") != 0) buffer_append(out, body, length);
        x->sent_bytes = length;
    }
    end(x);
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

/* ---- Event streams --------------------------------------------------------------------------------------------- */

void http_stream_begin(http_exchange *x)
{
    connection *c = x->connection;
    if (!c || x->streaming) return;
    x->streaming = true;
    x->chunked = x->head.minor == 1;
    if (!x->chunked) c->keep_alive = false; /* its end is the connection's */
    write_head(x, 200, "text/event-stream; charset=utf-8", &c->out);
    buffer_string(&c->out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    buffer_string(&c->out, x->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    connection_dirty(c);
}

/* "%zx\r\n", for every token of every stream. */
static void write_chunk_head(buffer *out, size_t length)
{
    char text[2 * sizeof length + 2];
    size_t at = sizeof text - 2;
    memcpy(text + at, "\r\n", 2);
    do {
        text[--at] = "0123456789abcdef"[length & 15];
        length >>= 4;
    } while (length);
    buffer_append(out, text + at, sizeof text - at);
}

/* `count` pieces of text as one chunk. */
static void write_pieces(http_exchange *x, const char *const *pieces, const size_t *lengths, size_t count)
{
    connection *c = x->connection;
    if (!c || !x->streaming) return;
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += lengths[i];
    if (x->chunked) write_chunk_head(&c->out, total);
    for (size_t i = 0; i < count; i++) buffer_append(&c->out, pieces[i], lengths[i]);
    if (x->chunked) buffer_append(&c->out, "\r\n", 2);
    x->sent_bytes += total;
    if (total > x->largest) x->largest = total;
    x->spoke = true;
    connection_dirty(c);
}

void http_stream_event(http_exchange *x, const char *data, size_t length)
{
    write_pieces(x, (const char *const[]){"data: ", data, "\n\n"}, (const size_t[]){6, length, 2}, 3);
}

void http_stream_named(http_exchange *x, const char *name, const char *data, size_t length)
{
    const char *const pieces[] = {"event: ", name, "\ndata: ", data, "\n\n"};
    const size_t lengths[] = {7, strlen(name), 7, length, 2};
    write_pieces(x, pieces, lengths, 5);
}

/* Lines that begin with a colon are for proxies that cut silent connections; clients read over them. */
void reply_comment(http_exchange *x)
{
    if (!x->spoke) write_pieces(x, (const char *const[]){": keep-alive\n\n"}, (const size_t[]){14}, 1);
    x->spoke = false;
}

size_t http_stream_backlog(http_exchange *x)
{
    return x->connection ? connection_backlog(x->connection) : 0;
}

size_t http_stream_largest(const http_exchange *x)
{
    return x->largest;
}

void http_stream_end(http_exchange *x)
{
    if (x->connection && x->chunked) buffer_append(&x->connection->out, "0\r\n\r\n", 5);
    end(x);
}
