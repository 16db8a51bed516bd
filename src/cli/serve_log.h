/*
 * What `hayate serve` says while it starts. Scripts wait for these lines and read numbers from them, so their words and
 * their order are those of `vllm serve`:
 *
 *     Hayate server version X, serving model Y · non-default args: {...} · Resolved architecture: ...
 *     Using max model len N · Chunked prefill is enabled with max_num_batched_tokens=N. · Initializing an engine ...
 *     Model loading took G GiB memory and S seconds · Available KV cache memory · GPU KV cache size: N tokens ·
 *     Maximum concurrency for N tokens per request: N.NNx (the engine's) · init engine ... took S seconds ·
 *     Supported tasks · Available routes are: · Route: /x, Methods: GET ... · Starting server on URL ·
 *     Application startup complete.
 */
#ifndef HAYATE_CLI_SERVE_LOG_H
#define HAYATE_CLI_SERVE_LOG_H

#include "cli/serve_flags.h"
#include "cli/speculation.h"
#include "server/server.h"

/* What was given, and what of it has no effect. */
void serve_log_flags(const serve_args *args, const speculation *drafts);
/* The model is there after so many seconds. */
void serve_log_model(const hy_model *model, const hy_engine_options *engine, double seconds);
/* What is drafted, if anything. */
void serve_log_drafts(const hy_speculation *s);
void serve_log_engine(double seconds);
/* Requests can be answered. */
void serve_log_started(const server *s);

#endif
