/* Numbers of requests by method, route and status, and the access log. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http_parts.h"

enum { MAX_COUNTS = 1024, LOGGED_TARGET = 1024 };

const double http_bucket_bounds[HTTP_BUCKETS] = {.01, .025, .05, .075, .1,  .25, .5,  .75, 1,  1.5, 2,
                                                 2.5, 3,    3.5, 4,    4.5, 5,   7.5, 10,  30, 60};

struct http_counts {
    http_count items[MAX_COUNTS];
    size_t count;
};

http_counts *counts_new(void)
{
    return calloc(1, sizeof(http_counts));
}

void counts_free(http_counts *counts)
{
    free(counts);
}

/* A name that outlives the request: clients can send any. */
static const char *lasting(const char *method)
{
    static const char *const known[] = {"GET", "POST", "OPTIONS", "HEAD", "DELETE", "PUT", "PATCH"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(method, known[i]) == 0) return known[i];
    return "other";
}

void counts_add(http_counts *counts, const char *method, const char *handler, int status, double seconds,
                size_t request_bytes, size_t response_bytes)
{
    method = lasting(method);
    size_t i = 0;
    while (i < counts->count && (counts->items[i].status != status || counts->items[i].method != method ||
                                 strcmp(counts->items[i].handler, handler) != 0))
        i++;
    if (i == MAX_COUNTS) return;
    if (i == counts->count)
        counts->items[counts->count++] = (http_count){.method = method, .handler = handler, .status = status};
    http_count *c = &counts->items[i];
    c->requests++;
    c->request_bytes += request_bytes, c->response_bytes += response_bytes;
    c->seconds += seconds;
    for (int b = HTTP_BUCKETS - 1; b >= 0 && seconds <= http_bucket_bounds[b]; b--) c->buckets[b]++;
}

void http_visit_counts(const http_server *s, void (*fn)(void *user, const http_count *count), void *user)
{
    for (size_t i = 0; i < s->counts->count; i++) fn(user, &s->counts->items[i]);
}

http_totals http_describe(const http_server *s)
{
    return s->totals;
}

/* Targets are visible ASCII, so that a line stays one. */
void log_access(const http_server *s, const connection *c, const http_head *head, int status)
{
    if (!s->limits.access_log || c->surplus) return;
    for (size_t i = 0; i < s->quiet_count; i++)
        if (head->path && strlen(s->quiet[i]) == head->path_length &&
            memcmp(s->quiet[i], head->path, head->path_length) == 0)
            return;
    char line[LOGGED_TARGET + 200];
    if (head->path)
        snprintf(line, sizeof line, "INFO:     %s - \"%s %.*s HTTP/1.%d\" %d %s", c->peer, head->method, LOGGED_TARGET,
                 head->target, head->minor, status, http_phrase(status));
    else
        snprintf(line, sizeof line, "INFO:     %s - \"-\" %d %s", c->peer, status, http_phrase(status));
    s->limits.access_log(s->limits.access_user, line);
}
