/*
 * GET /metrics: the engine's numbers, those of HTTP and of the process, for Prometheus.
 *
 * What `vllm serve` has keeps its name, type, labels and buckets (prefix `vllm:`, `http_`, `process_`), so that
 * dashboards, alerts and routers work as they are; what only this engine knows is under `hayate:`. `?name[]=NAME`
 * restricts the answer to samples of these names, and a client that accepts OpenMetrics gets it.
 *
 * Runs on the HTTP thread; waits for nothing that the engine does.
 */
#ifndef HAYATE_SERVER_METRICS_H
#define HAYATE_SERVER_METRICS_H

#include "server/generation.h"

typedef struct metrics metrics;

typedef struct metrics_options {
    const hy_engine *engine; /* borrowed, as all of it */
    const hy_model *model;
    const http_server *http;
    const char *model_name; /* the first served name */
} metrics_options;

hy_status metrics_open(const metrics_options *options, metrics **out, hy_error *err);
void metrics_close(metrics *m);

/* An http_handler; `user` is the metrics. */
void metrics_handle(void *user, http_exchange *x);
/* generation_room.on_end; `user` is the metrics. */
void metrics_ended(void *user, const struct generation_report *report);
/* Appends all of it, as the text format has it. */
void metrics_write(metrics *m, buffer *out);

#endif
