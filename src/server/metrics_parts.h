/* The parts of /metrics, each a file. Private to metrics*.c. */
#ifndef HAYATE_SERVER_METRICS_PARTS_H
#define HAYATE_SERVER_METRICS_PARTS_H

#include "server/exposition.h"
#include "server/http.h"

/* Families `vllm:` that come from the engine alone. */
void metrics_engine(exposition *e, const hy_engine_stats *s, const hy_engine_measures *m);
/* `vllm:cache_config_info`. */
void metrics_cache_config(exposition *e, const hy_engine_stats *s, const hy_model_info *info);
/* Families `hayate:`. */
void metrics_own(exposition *e, const hy_engine_stats *s, const hy_model_info *info, const http_totals *http);
/* Families `http_`. */
void metrics_http(exposition *e, const http_server *http);
/* Families `process_`. */
void metrics_process(exposition *e);

#endif
