/*
 * Cross-origin requests, with the answers of the middleware that clients know: "*" where anybody may ask, else the
 * origin itself with Vary; a preflight is answered without a route.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/memory.h"
#include "server/http_parts.h"

struct list {
    char **items; /* [count] owned */
    size_t count;
    bool all; /* "*" is among them */
};

struct http_cors {
    struct list origins, methods, headers;
    bool credentials;
    char *method_line, *header_line; /* what the lists allow, joined */
};

static bool has(const struct list *l, const char *text, size_t length, bool any_case)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strlen(l->items[i]) != length) continue;
        if ((any_case ? strncasecmp(l->items[i], text, length) : strncmp(l->items[i], text, length)) == 0) return true;
    }
    return false;
}

static bool copy(struct list *l, const http_strings *given)
{
    static const char *const everybody[] = {"*"};
    http_strings from = given->count ? *given : (http_strings){everybody, 1};
    l->items = calloc(from.count, sizeof *l->items);
    if (!l->items) return false;
    for (size_t i = 0; i < from.count; i++) {
        l->items[i] = memory_string(from.items[i], strlen(from.items[i]));
        if (!l->items[i]) return false;
        l->count++;
        l->all |= strcmp(from.items[i], "*") == 0;
    }
    return true;
}

static void release(struct list *l)
{
    for (size_t i = 0; i < l->count; i++) free(l->items[i]);
    free(l->items);
}

static void join(buffer *out, const struct list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        if (out->length) buffer_string(out, ", ");
        buffer_string(out, l->items[i]);
    }
}

static bool single_line(const http_strings *list)
{
    for (size_t i = 0; i < list->count; i++)
        if (!list->items[i] || strpbrk(list->items[i], "\r\n")) return false;
    return true;
}

hy_status cors_open(const http_options *o, http_cors **out, hy_error *err)
{
    if (!single_line(&o->allowed_origins) || !single_line(&o->allowed_methods) || !single_line(&o->allowed_headers))
        return error_set(err, HY_USAGE,
                         "--allowed-origins, --allowed-methods and --allowed-headers take names of one line");
    http_cors *c = calloc(1, sizeof *c);
    if (!c) return error_memory(err, "CORS", sizeof *c);
    c->credentials = o->allow_credentials;
    buffer methods = {0}, headers = {0};
    bool ok = copy(&c->origins, &o->allowed_origins) && copy(&c->methods, &o->allowed_methods) &&
              copy(&c->headers, &o->allowed_headers);
    if (ok && c->methods.all)
        buffer_string(&methods, "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
    else if (ok)
        join(&methods, &c->methods);
    if (ok && !c->headers.all) {
        buffer_string(&headers, "Accept, Accept-Language, Content-Language, Content-Type");
        join(&headers, &c->headers);
    }
    c->method_line = buffer_take(&methods, NULL), c->header_line = buffer_take(&headers, NULL);
    if (!ok || !c->method_line || !c->header_line) {
        cors_close(c);
        return error_memory(err, "CORS", 0);
    }
    *out = c;
    return HY_OK;
}

void cors_close(http_cors *c)
{
    if (!c) return;
    release(&c->origins), release(&c->methods), release(&c->headers);
    free(c->method_line), free(c->header_line);
    free(c);
}

static bool origin_allowed(const http_cors *c, const char *origin)
{
    return c->origins.all || has(&c->origins, origin, strlen(origin), false);
}

void cors_reply(const http_cors *c, const char *origin, bool cookie, buffer *out)
{
    if (!origin_allowed(c, origin)) return;
    if (c->origins.all && !cookie)
        buffer_string(out, "Access-Control-Allow-Origin: *\r\n");
    else
        buffer_printf(out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", origin);
    if (c->credentials) buffer_string(out, "Access-Control-Allow-Credentials: true\r\n");
}

static bool headers_allowed(const http_cors *c, const char *asked)
{
    static const char *const safe[] = {"Accept", "Accept-Language", "Content-Language", "Content-Type"};
    const struct list always = {.items = (char **)(void *)safe, .count = sizeof safe / sizeof *safe};
    while (*asked) {
        asked += strspn(asked, " \t,");
        size_t n = strcspn(asked, ",");
        const char *next = asked + n;
        while (n > 0 && (asked[n - 1] == ' ' || asked[n - 1] == '\t')) n--;
        if (n && !has(&c->headers, asked, n, true) && !has(&always, asked, n, true)) return false;
        asked = next;
    }
    return true;
}

bool cors_preflight(const http_cors *c, const http_head *head, buffer *out, const char **why)
{
    const char *origin = http_head_field(head, "Origin");
    const char *method = http_head_field(head, "Access-Control-Request-Method");
    const char *headers = http_head_field(head, "Access-Control-Request-Headers");
    if (!origin_allowed(c, origin)) {
        *why = "Disallowed CORS origin";
        return false;
    }
    if (!c->methods.all && !has(&c->methods, method, strlen(method), false)) {
        *why = "Disallowed CORS method";
        return false;
    }
    if (headers && !c->headers.all && !headers_allowed(c, headers)) {
        *why = "Disallowed CORS headers";
        return false;
    }
    if (c->origins.all && !c->credentials)
        buffer_string(out, "Access-Control-Allow-Origin: *\r\n");
    else
        buffer_printf(out, "Access-Control-Allow-Origin: %s\r\n", origin);
    buffer_printf(out, "Vary: Origin\r\nAccess-Control-Allow-Methods: %s\r\nAccess-Control-Max-Age: 600\r\n",
                  c->method_line);
    const char *allowed = c->headers.all ? headers : c->header_line;
    if (allowed) buffer_printf(out, "Access-Control-Allow-Headers: %s\r\n", allowed);
    if (c->credentials) buffer_string(out, "Access-Control-Allow-Credentials: true\r\n");
    return true;
}
