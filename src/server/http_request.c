/* Requests: which route they belong to, what speaks against them, and what handlers read of them. */
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/http_parts.h"
#include "server/http_target.h"

http_exchange *exchange_new(connection *c)
{
    http_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->server = c->server, x->connection = c;
    x->began = clock_seconds();
    x->head.method = x->head.target = "";
    x->head.minor = 1;
    c->exchange = x;
    c->server->totals.exchanges++;
    return x;
}

void exchange_free(http_exchange *x)
{
    x->server->totals.exchanges--;
    http_head_free(&x->head);
    buffer_free(&x->body);
    buffer_free(&x->headers);
    for (size_t i = 0; i < 2 * x->pair_count; i++) free(x->pairs[i]);
    for (size_t i = 0; i < x->part_count; i++) free(x->parts[i]);
    free(x->pairs);
    free(x->path);
    free(x);
}

void exchange_gone(http_exchange *x)
{
    void (*fn)(void *) = x->gone_fn;
    x->gone_fn = NULL;
    if (fn) fn(x->gone_user);
}

/* ---- Admission ------------------------------------------------------------------------------------------------- */

static void refuse(http_exchange *x, int status, const char *why)
{
    if (x->refusal) return; /* the first reason counts */
    x->refusal = status;
    snprintf(x->why, sizeof x->why, "%s", why);
}

/* Paths with and without the prefix that a proxy may leave on them are the same. */
static void read_path(http_exchange *x)
{
    const http_server *s = x->server;
    x->raw_path = x->head.path, x->raw_length = x->head.path_length;
    size_t root = s->root_length;
    if (root && x->raw_length >= root && memcmp(x->raw_path, s->root_path, root) == 0 &&
        (x->raw_length == root || x->raw_path[root] == '/')) {
        x->raw_path += root, x->raw_length -= root;
        if (!x->raw_length) x->raw_path = "/", x->raw_length = 1;
    }
    x->path = memory_string(x->raw_path, x->raw_length);
    if (!x->path)
        refuse(x, 503, "The server is out of memory");
    else if (http_target_decode(x->path, x->raw_length, false) == SIZE_MAX)
        refuse(x, 400, "The path has a % without two hexadecimal digits after it, or %00");
}

static bool needs_key(const http_exchange *x)
{
    static const char *const guarded[] = {"/v1", "/v2", "/inference", "/cohere", "/invocations"};
    for (size_t i = 0; i < sizeof guarded / sizeof *guarded; i++)
        if (strncmp(x->path, guarded[i], strlen(guarded[i])) == 0) return true;
    return false;
}

/* Digests are compared, all of them, so that the time says nothing about a key. */
static bool known_key(const http_server *s, const char *key)
{
    unsigned char digest[32];
    int found = 0;
    SHA256((const unsigned char *)key, strlen(key), digest);
    for (size_t i = 0; i < s->key_count; i++) found |= CRYPTO_memcmp(digest, s->keys[i], sizeof digest) == 0;
    return found;
}

static bool authorised(const http_exchange *x)
{
    const http_server *s = x->server;
    if (!s->key_count || !needs_key(x)) return true;
    const char *bearer = http_head_field(&x->head, "Authorization"), *plain = http_head_field(&x->head, "x-api-key");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0 && known_key(s, bearer + 7)) return true;
    return plain && known_key(s, plain);
}

/* Adds a method to the list for Allow, once. */
static void allow(http_exchange *x, const char *method)
{
    size_t length = strlen(x->allow), n = strlen(method);
    for (const char *at = x->allow; (at = strstr(at, method)); at += n)
        if (at[n] == 0 || at[n] == ',') return;
    snprintf(x->allow + length, sizeof x->allow - length, "%s%s", length ? ", " : "", method);
}

static void find_route(http_exchange *x)
{
    const http_server *s = x->server;
    bool head = strcmp(x->head.method, "HEAD") == 0;
    for (size_t i = 0; i < s->route_count; i++) {
        const struct route *r = &s->routes[i];
        if (!http_target_matches(r->path, x->raw_path, x->raw_length)) continue;
        bool get = strcmp(r->method, "GET") == 0;
        allow(x, r->method);
        if (get) allow(x, "HEAD");
        if (!x->route && (strcmp(r->method, x->head.method) == 0 || (head && get))) x->route = r;
    }
}

static void check_body(http_exchange *x)
{
    const char *coding = http_head_field(&x->head, "Content-Encoding");
    if (coding && *coding && strcasecmp(coding, "identity") != 0) {
        char why[160];
        snprintf(why, sizeof why, "Content-Encoding %.40s is not supported here: send the body as it is", coding);
        refuse(x, 415, why);
    }
    if (x->head.content_length > x->server->limits.max_body_bytes) {
        char why[160];
        snprintf(why, sizeof why, "The body has %llu bytes, this server reads at most %zu",
                 (unsigned long long)x->head.content_length, x->server->limits.max_body_bytes);
        refuse(x, 413, why);
    }
}

void exchange_admit(http_exchange *x)
{
    read_path(x);
    if (!x->refusal && x->server->waits) {
        refuse(x, 503, x->server->waits);
        http_reply_header(x, "Retry-After", "1");
    }
    if (x->refusal) return;
    find_route(x);
    bool options = strcmp(x->head.method, "OPTIONS") == 0;
    if (!options && !authorised(x)) refuse(x, 401, "Unauthorized");
    if (x->head.expects_other) refuse(x, 417, "This server meets no expectation but 100-continue");
    if (!options && !x->route) refuse(x, x->allow[0] ? 405 : 404, x->allow[0] ? "Method Not Allowed" : "Not Found");
    check_body(x);
    if (options) refuse(x, -1, "");
}

/* ---- Dispatch -------------------------------------------------------------------------------------------------- */

static void answer_options(http_exchange *x)
{
    const char *why = NULL;
    if (http_head_field(&x->head, "Origin") && http_head_field(&x->head, "Access-Control-Request-Method")) {
        if (!cors_preflight(x->server->cors, &x->head, &x->headers, &why)) {
            http_reply_error(x, 400, "Bad Request", NULL, false, why);
            return;
        }
    } else if (x->allow[0] || strcmp(x->path, "*") == 0) {
        allow(x, x->allow[0] ? "OPTIONS" : "GET, HEAD, POST, DELETE, OPTIONS");
        http_reply_header(x, "Allow", x->allow);
    } else {
        http_reply_error(x, 404, "Not Found", NULL, false, "Not Found");
        return;
    }
    http_reply(x, 200, "text/plain; charset=utf-8", "OK", 2);
}

void exchange_dispatch(http_exchange *x)
{
    if (x->refusal == -1) {
        answer_options(x);
    } else if (x->refusal == 401) {
        http_reply_header(x, "WWW-Authenticate", "Bearer");
        http_reply(x, 401, "application/json", "{\"error\":\"Unauthorized\"}", 24);
    } else if (x->refusal) {
        if (x->refusal == 405) http_reply_header(x, "Allow", x->allow);
        x->server->totals.malformed += x->refusal < 500;
        http_reply_error(x, x->refusal, http_phrase(x->refusal), NULL, false, x->why);
    } else {
        x->route->handler(x->route->user, x);
    }
}

/* ---- What handlers read ---------------------------------------------------------------------------------------- */

const char *http_body(http_exchange *x, size_t *length)
{
    *length = x->body.length;
    return x->body.data ? x->body.data : "";
}

void http_drop_body(http_exchange *x)
{
    buffer_free(&x->body);
    if (x->connection) connection_count_held(x->connection);
}

const char *http_header(http_exchange *x, const char *name)
{
    return http_head_field(&x->head, name);
}

const char *http_method(const http_exchange *x)
{
    return x->head.method;
}

const char *http_path(const http_exchange *x)
{
    return x->path ? x->path : "";
}

const char *http_parameter(http_exchange *x, const char *name)
{
    size_t length;
    const char *part = http_target_part(x->route->path, x->raw_path, x->raw_length, name, &length);
    char *copy = part && x->part_count < sizeof x->parts / sizeof *x->parts ? memory_string(part, length) : NULL;
    if (!copy) return NULL;
    http_target_decode(copy, length, false); /* its bytes have been decoded once, as part of the path */
    return x->parts[x->part_count++] = copy;
}

/* A copy, decoded; what is not encoded as it should be stays as it came. */
static char *decoded(const char *text, size_t length)
{
    char *copy = memory_string(text, length);
    if (copy && http_target_decode(copy, length, true) == SIZE_MAX) memcpy(copy, text, length);
    return copy;
}

static void read_query(http_exchange *x)
{
    x->query_read = true;
    for (const char *q = x->head.query; q && *q;) {
        size_t length = strcspn(q, "&#"), split = strcspn(q, "=&#");
        void *pairs = x->pairs;
        if (length && memory_reserve(&pairs, &x->pair_capacity, 2 * x->pair_count + 2, sizeof *x->pairs)) {
            x->pairs = pairs;
            char *name = decoded(q, split);
            char *value = split < length ? decoded(q + split + 1, length - split - 1) : decoded("", 0);
            x->pairs[2 * x->pair_count] = name, x->pairs[2 * x->pair_count + 1] = value;
            x->pair_count++;
        }
        q += length;
        if (*q != '&') break;
        q++;
    }
}

bool http_query_at(http_exchange *x, size_t i, const char **name, const char **value)
{
    if (!x->query_read) read_query(x);
    if (i >= x->pair_count || !x->pairs[2 * i] || !x->pairs[2 * i + 1]) return false;
    *name = x->pairs[2 * i], *value = x->pairs[2 * i + 1];
    return true;
}

const char *http_query(http_exchange *x, const char *name)
{
    const char *key, *value;
    for (size_t i = 0; http_query_at(x, i, &key, &value); i++)
        if (strcmp(key, name) == 0) return value;
    return NULL;
}

void http_on_gone(http_exchange *x, void (*fn)(void *user), void *user)
{
    x->gone_fn = fn, x->gone_user = user;
}
