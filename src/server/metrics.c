#include "server/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/histogram.h"
#include "server/metrics_parts.h"

enum { MAX_NAMES = 256, CALLS = 12 /* 2 modes, 2 outcomes, 3 types of requests */ };

struct metrics {
    metrics_options o;
    hy_model_info info;
    double created;
    histogram n, most_tokens; /* one a prompt */
    uint64_t calls[CALLS];
};

/* ---- What requests tell ----------------------------------------------------------------------------------------- */

static const char *const mode_name[] = {"non_streaming", "streaming"};
static const char *const outcome_name[] = {"no_tool_call", "tool_call"};
static const char *const type_name[] = {"other", "chat_completions", "responses"};

static int type_of(const char *prefix)
{
    if (prefix && strncmp(prefix, "chatcmpl", 8) == 0) return 1;
    return prefix && strncmp(prefix, "resp", 4) == 0 ? 2 : 0;
}

void metrics_ended(void *user, const struct generation_report *r)
{
    metrics *m = user;
    if (r->last) {
        histogram_observe(&m->n, r->n);
        histogram_observe(&m->most_tokens, (double)r->longest);
    }
    if (r->parsed_calls) m->calls[(type_of(r->prefix) * 2 + (r->calls > 0)) * 2 + r->stream]++;
}

static void write_requests(exposition *e, const metrics *m)
{
    hy_histogram h;
    exposition_family(e, EXPOSITION_HISTOGRAM, "vllm:request_params_n", "Answers that a request asked for.");
    histogram_read(&m->n, &h);
    exposition_histogram(e, &h, NULL, 0);
    exposition_family(e, EXPOSITION_HISTOGRAM, "vllm:request_max_num_generation_tokens",
                      "Tokens of the longest of a request's answers.");
    histogram_read(&m->most_tokens, &h);
    exposition_histogram(e, &h, NULL, 0);
}

/* Has no label of the engine. */
static void write_calls(exposition *e, const metrics *m)
{
    exposition_family(e, EXPOSITION_COUNTER, "vllm:tool_call_parser_invocations",
                      "Answers that were searched for tool calls, by whether there was one.");
    for (int i = 0; i < CALLS; i++)
        exposition_sample(e, (double)m->calls[i], "model_name", m->o.model_name, "mode", mode_name[i % 2], "outcome",
                          outcome_name[i / 2 % 2], "request_type", type_name[i / 4], NULL);
}

/* ---- All of it -------------------------------------------------------------------------------------------------- */

static void write_all(metrics *m, exposition *e)
{
    hy_engine_stats stats;
    hy_engine_measures measures;
    hy_engine_describe(m->o.engine, &stats);
    hy_engine_measure(m->o.engine, &measures);
    http_totals http = http_describe(m->o.http);
    metrics_process(e);
    e->created = m->created;
    exposition_common(e, "engine", "0");
    exposition_common(e, "model_name", m->o.model_name);
    metrics_engine(e, &stats, &measures);
    write_requests(e, m);
    metrics_cache_config(e, &stats, &m->info);
    metrics_own(e, &stats, &m->info, &http);
    exposition_common(e, NULL, NULL);
    write_calls(e, m);
    metrics_http(e, m->o.http);
    exposition_end(e);
}

void metrics_write(metrics *m, buffer *out)
{
    exposition e = {.out = out};
    write_all(m, &e);
}

void metrics_handle(void *user, http_exchange *x)
{
    const char *names[MAX_NAMES], *name, *value, *accept = http_header(x, "Accept");
    size_t count = 0;
    for (size_t i = 0; count < MAX_NAMES && http_query_at(x, i, &name, &value); i++)
        if (strcmp(name, "name[]") == 0) names[count++] = value;
    buffer body = {0};
    exposition e = {.out = &body,
                    .open = accept && strstr(accept, "application/openmetrics-text"),
                    .wanted = names,
                    .wanted_count = count};
    write_all(user, &e);
    if (buffer_ok(&body))
        http_reply(x, 200, exposition_type(e.open), body.data, body.length);
    else
        http_reply_error(x, 500, "InternalServerError", NULL, false, "out of memory");
    buffer_free(&body);
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

hy_status metrics_open(const metrics_options *options, metrics **out, hy_error *err)
{
    static const double n_bounds[] = {1, 2, 5, 10, 20};
    metrics *m = calloc(1, sizeof *m);
    if (!m) return error_memory(err, "metrics", sizeof *m);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    hy_model_describe(options->model, &m->info);
    m->o = *options;
    m->created = (double)now.tv_sec + floor((double)now.tv_nsec * 1e-3) * 1e-6;
    histogram_init(&m->n, n_bounds, sizeof n_bounds / sizeof *n_bounds);
    histogram_init_125(&m->most_tokens, m->info.max_model_len);
    *out = m;
    return HY_OK;
}

void metrics_close(metrics *m)
{
    free(m);
}
