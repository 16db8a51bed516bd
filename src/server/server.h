/*
 * The server: an engine behind the protocols that `vllm serve` speaks.
 *
 * One thread runs HTTP, a few parse and render requests, the engine has its own. Tokens travel from the engine to a
 * request's mailbox; the HTTP thread empties it into JSON (server/generation.h). A client that goes away, or does not
 * read what it asked for, has its request cancelled.
 */
#ifndef HAYATE_SERVER_SERVER_H
#define HAYATE_SERVER_SERVER_H

#include <jansson.h>

#include "server/http.h"

typedef struct server server;

/* Names are those of the command line. Everything is borrowed for the server's life. */
typedef struct server_options {
    http_options http;               /* its max_body_bytes 0: what the longest prompt can need */
    http_server *waiting;            /* moved: opened with `http` before, in http_wait or not; NULL: server_open does it */
    const char *const *served_names; /* [served_name_count]; none: the model's folder name */
    size_t served_name_count;
    int workers; /* threads that parse, render and encode (--renderer-num-workers); 0: two */

    /* What is read in answers. */
    bool split_reasoning;         /* reasoning goes to its own field (--reasoning-parser minimax_m3) */
    const char *reasoning_field;  /* "reasoning" (NULL), "reasoning_content" or "both" (--reasoning-field) */
    bool tool_parser;             /* --tool-call-parser minimax_m3 */
    bool auto_tools;              /* --enable-auto-tool-choice */
    bool exclude_tools_when_none; /* --exclude-tools-when-tool-choice-none */

    const char *given_name; /* the model as the command named it: a name for requests too, unless names were given; NULL */

    /* What requests may ask for, and what they get without asking. */
    const hy_sampling
        *defaults;          /* --generation-config, --override-generation-config; NULL: hy_sampling_defaults(model) */
    int64_t max_new_tokens; /* the same: most tokens of an answer; 0: as the model's length allows */
    bool priority;          /* the engine orders by priority, so that requests may have one */
    int max_waiting;        /* --max-waiting, of the engine; 0: 4096 */
    int max_choices;        /* VLLM_MAX_N_SEQUENCES: most of n; 0: 16,384, which is the most in any case */
    int stream_interval;    /* --stream-interval: tokens of an event of a stream; 0: 1 */
    bool compact_json, closed_objects; /* --structured-outputs-config: no white space in JSON, no properties but the named */
    bool grammar_at_once;   /* the same: grammars also hold for reasoning */
    int max_logprobs;       /* --max-logprobs; -1: the vocabulary. 0 is the default, 20 */
    bool no_logprobs;       /* --max-logprobs 0 */
    const char *logprobs_mode;        /* NULL: "raw_logprobs"; "raw_logits", "processed_logprobs", "processed_logits" */
    bool tokens_as_ids;               /* --return-tokens-as-token-ids */
    bool routed_experts;              /* --enable-return-routed-experts */
    const json_t *template_kwargs;    /* --default-chat-template-kwargs, may be NULL */
    bool trust_request_chat_template; /* --trust-request-chat-template */

    /* What answers tell. */
    bool prompt_tokens_details;   /* --enable-prompt-tokens-details */
    bool force_include_usage;     /* --enable-force-include-usage */
    bool request_metrics;         /* --enable-per-request-metrics */
    bool request_id_headers;      /* --enable-request-id-headers */
    const char *fingerprint;      /* --fingerprint-mode: NULL or "full", "hash", "custom", "none" */
    const char *fingerprint_text; /* of "custom" */

    /* Routes. */
    bool tokens_only;     /* --tokens-only: /abort_requests; only token routes are meant to be used */
    bool tokenizer_info;  /* --enable-tokenizer-info-endpoint */
    bool load_tracking;   /* --enable-server-load-tracking: /load counts */
    bool no_docs;         /* --disable-fastapi-docs */
    bool store_responses; /* VLLM_ENABLE_RESPONSES_API_STORE=1, or --enable-responses-store: /v1/responses keeps them */
    bool dev_mode;        /* VLLM_SERVER_DEV_MODE=1, or --enable-dev-mode */
    const json_t *config; /* every option as started, for /server_info; may be NULL */

    bool log_requests;       /* --enable-log-requests */
    bool log_outputs;        /* --enable-log-outputs */
    const int64_t *log_most; /* --max-log-len: most characters of a prompt or an answer in the log; NULL: all */
    double drain_seconds; /* --shutdown-timeout: running requests may end by themselves for so long; 0: they are aborted */
} server_options;

/* Listens; requests are answered once server_run is called. HY_FAILED: the port is taken. */
hy_status server_open(hy_model *model, hy_engine *engine, const server_options *options, server **out, hy_error *err);
int server_port(const server *s);
/* Every route that it answers. */
void server_visit_routes(const server *s, void (*fn)(void *user, const char *method, const char *path), void *user);
/* "http://0.0.0.0:8000", for the log. */
const char *server_address(const server *s);
/*
 * Serves until SIGINT or SIGTERM. Then new requests get 503 and so does GET /health; those that run may end for drain_seconds,
 * and what still runs is aborted and answered so. A second signal ends it at once.
 */
void server_run(server *s);
void server_close(server *s);

#endif
