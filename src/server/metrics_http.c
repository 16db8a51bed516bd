/* Requests as HTTP saw them, under the names of the neighbours' instrumentation: a route is a handler, a status its
 * class. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/metrics_parts.h"

enum { CLASS = 4 }; /* "2xx" and a NUL */

/* What one family shows of all routes: requests of one method, handler and class of status, or of fewer of these. */
typedef struct group {
    const char *method, *handler;
    char class[CLASS];
    double requests, request_bytes, response_bytes, seconds;
    uint64_t buckets[HTTP_BUCKETS];
} group;

typedef struct groups {
    group *item;
    size_t count, capacity;
    bool failed;
} groups;

/* Probes and scrapes would drown the rest. */
static bool left_out(const char *handler)
{
    static const char *const quiet[] = {"/metrics", "/health", "/load", "/ping", "/version", "/server_info"};
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++)
        if (strcmp(handler, quiet[i]) == 0) return true;
    return false;
}

static void add(groups *g, const char *method, const char *handler, const char *class, const http_count *c)
{
    size_t i = 0;
    while (i < g->count && (strcmp(g->item[i].method, method) != 0 || strcmp(g->item[i].handler, handler) != 0 ||
                            strcmp(g->item[i].class, class) != 0))
        i++;
    if (i == g->count) {
        void *items = g->item;
        if (!memory_reserve(&items, &g->capacity, g->count + 1, sizeof *g->item)) {
            g->failed = true;
            return;
        }
        g->item = items;
        g->item[g->count++] = (group){.method = method, .handler = handler};
        snprintf(g->item[i].class, CLASS, "%s", class);
    }
    group *to = &g->item[i];
    to->requests += (double)c->requests, to->seconds += c->seconds;
    to->request_bytes += (double)c->request_bytes, to->response_bytes += (double)c->response_bytes;
    for (int b = 0; b < HTTP_BUCKETS; b++) to->buckets[b] += c->buckets[b];
}

typedef struct view {
    groups by_status, by_handler, by_method, all;
} view;

static void take(void *user, const http_count *c)
{
    view *v = user;
    char class[CLASS];
    if (left_out(c->handler)) return;
    memcpy(class, "0xx", CLASS);
    class[0] = (char)('0' + c->status / 100 % 10);
    add(&v->by_status, c->method, c->handler, class, c);
    add(&v->by_method, c->method, c->handler, "", c);
    add(&v->by_handler, "", c->handler, "", c);
    add(&v->all, "", "", "", c);
}

/* The group's times at those of HTTP's bounds that `bounds` names. */
static void histogram_of(const group *g, const double *bounds, size_t count, hy_histogram *out)
{
    uint64_t below = 0;
    size_t from = 0;
    *out = (hy_histogram){.bounds = bounds, .bound_count = count, .sum = g->seconds};
    for (size_t i = 0; i < count; i++) {
        while (http_bucket_bounds[from] < bounds[i]) from++;
        out->counts[i] = g->buckets[from] - below;
        below = g->buckets[from];
    }
    out->counts[count] = (uint64_t)g->requests - below;
}

static void write_durations(exposition *e, const view *v)
{
    static const double rough[] = {0.1, 0.5, 1};
    hy_histogram h;
    exposition_family(e, EXPOSITION_HISTOGRAM, "http_request_duration_highr_seconds",
                      "Seconds from a complete request to the end of its answer, over all handlers, in many buckets.");
    for (size_t i = 0; i < v->all.count; i++) {
        histogram_of(&v->all.item[i], http_bucket_bounds, HTTP_BUCKETS, &h);
        exposition_histogram(e, &h, NULL, 0);
    }
    exposition_family(e, EXPOSITION_HISTOGRAM, "http_request_duration_seconds",
                      "Seconds from a complete request to the end of its answer, by handler.");
    for (size_t i = 0; i < v->by_method.count; i++) {
        const group *g = &v->by_method.item[i];
        const exposition_label labels[] = {{"handler", g->handler}, {"method", g->method}};
        histogram_of(g, rough, 3, &h);
        exposition_histogram(e, &h, labels, 2);
    }
}

static void write_sizes(exposition *e, const view *v, bool response)
{
    exposition_family(e, EXPOSITION_SUMMARY, response ? "http_response_size_bytes" : "http_request_size_bytes",
                      response ? "Bytes of answers' bodies, by handler." : "Bytes of requests' bodies, by handler.");
    for (size_t i = 0; i < v->by_handler.count; i++) {
        const group *g = &v->by_handler.item[i];
        const exposition_label label = {"handler", g->handler};
        exposition_summary(e, g->requests, response ? g->response_bytes : g->request_bytes, &label, 1);
    }
}

void metrics_http(exposition *e, const http_server *http)
{
    view v = {0};
    http_visit_counts(http, take, &v);
    exposition_family(e, EXPOSITION_COUNTER, "http_requests", "Requests by method, class of status and handler.");
    for (size_t i = 0; i < v.by_status.count; i++) {
        const group *g = &v.by_status.item[i];
        exposition_sample(e, g->requests, "method", g->method, "status", g->class, "handler", g->handler, NULL);
    }
    write_sizes(e, &v, false);
    write_sizes(e, &v, true);
    write_durations(e, &v);
    if (v.by_status.failed || v.by_method.failed || v.by_handler.failed || v.all.failed) e->out->failed = true;
    free(v.by_status.item), free(v.by_method.item);
    free(v.by_handler.item), free(v.all.item);
}
