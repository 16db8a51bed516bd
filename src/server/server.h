/*
 * The server: an engine behind the chat completions protocol, as `vllm serve` speaks it.
 *
 *     POST /v1/chat/completions     one answer, whole or as an event stream
 *     GET  /v1/models               the served names
 *     GET  /health, /ping, /version
 *
 * One thread runs HTTP, one the engine. Tokens travel from the engine to a request's mailbox; the HTTP thread empties
 * it into JSON. A client that goes away, or does not read what it asked for, has its request cancelled.
 */
#ifndef HAYATE_SERVER_SERVER_H
#define HAYATE_SERVER_SERVER_H

#include <jansson.h>

#include "hayate.h"

typedef struct server server;

typedef struct server_options {
    const char *host; /* NULL: all addresses */
    int port;
    const char *const *served_names; /* [served_name_count]; none: the model's folder name */
    size_t served_name_count;
    const char *const *api_keys;
    size_t api_key_count;
    bool split_reasoning;       /* reasoning goes to its own field (--reasoning-parser minimax_m3) */
    const json_t *template_kwargs; /* defaults of the template's variables, may be NULL; borrowed */
} server_options;

/* Listens; requests are answered once server_run is called. HY_FAILED: the port is taken. */
hy_status server_open(hy_model *model, hy_engine *engine, const server_options *options, server **out, hy_error *err);
int server_port(const server *s);
/* Serves until SIGINT or SIGTERM; running requests are then aborted and answered so. */
void server_run(server *s);
void server_close(server *s);

#endif
