/* hayate serve: an engine behind HTTP, with the flags of `vllm serve` that this version has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/cli.h"
#include "model/model.h"
#include "server/server.h"

static const char about[] = "Serves a model over HTTP, with the protocol of the chat completions API:\n"
                            "  POST /v1/chat/completions   GET /v1/models   GET /health\n"
                            "Stops on Ctrl-C or SIGTERM; running requests are aborted and answered.\n\n"
                            "example:\n  hayate serve models/m3-nano --host 127.0.0.1 --port 8000";

struct flags {
    const char *model, *host, *reasoning_parser, *template_kwargs;
    int port, max_num_seqs, block_size;
    uint64_t max_num_batched_tokens, max_model_len, kv_cache_memory;
    cli_strings names, keys;
    hy_model_options model_options;
};

/* What can be told wrong before the model is read. Returns an exit code, -1 to go on. */
static int check(const struct flags *f, json_t **kwargs)
{
    if (f->block_size != CACHE_BLOCK) {
        return cli_usage_error("serve", "--block-size must be 128, the block of this model's selection, not %d",
                               f->block_size);
    }
    if (strcmp(f->reasoning_parser, "minimax_m3") != 0 && strcmp(f->reasoning_parser, "none") != 0) {
        return cli_usage_error("serve", "--reasoning-parser %s is unknown; choose minimax_m3 or none",
                               f->reasoning_parser);
    }
    if (f->port < 0 || f->port > 65535) return cli_usage_error("serve", "--port must be 0 to 65535, not %d", f->port);
    if (f->max_model_len > INT32_MAX) return cli_usage_error("serve", "--max-model-len is too large");
    if (f->max_num_batched_tokens > 65536) {
        return cli_usage_error("serve", "--max-num-batched-tokens must be at most 65536, not %llu",
                               (unsigned long long)f->max_num_batched_tokens);
    }
    if (f->template_kwargs) {
        json_error_t e;
        *kwargs = json_loads(f->template_kwargs, JSON_REJECT_DUPLICATES, &e);
        if (!json_is_object(*kwargs)) {
            json_decref(*kwargs);
            return cli_usage_error("serve", "--default-chat-template-kwargs must be a JSON object such as "
                                            "'{\"thinking_mode\": \"enabled\"}'");
        }
    }
    return -1;
}

static void log_start(const server *s, const struct flags *f, const hy_model_info *info)
{
    log_line(HY_LOG_INFO, "Serving %s (%s backend, cache %s, index %s) at most %d tokens a sequence", info->path,
             info->backend, info->kv_cache_dtype, info->indexer_kv_dtype, info->max_model_len);
    log_line(HY_LOG_INFO, "Available routes are: POST /v1/chat/completions, GET /v1/models, /health, /ping, /version");
    log_line(HY_LOG_INFO, "Starting server on http://%s:%d", f->host ? f->host : "0.0.0.0", server_port(s));
    log_line(HY_LOG_INFO, "Application startup complete.");
}

/* Every client is a descriptor, and the usual soft limit of 1,024 is there for programs that use select(). */
static void allow_many_clients(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static hy_engine_options engine_options(const struct flags *f)
{
    return (hy_engine_options){.max_num_seqs = f->max_num_seqs,
                               .max_num_batched_tokens = (int)f->max_num_batched_tokens,
                               .cache_bytes = f->kv_cache_memory};
}

static int serve(const struct flags *f, hy_model *model, json_t *kwargs)
{
    hy_error err = {0};
    hy_engine *engine = NULL;
    server *s = NULL;
    hy_model_info info;
    hy_model_describe(model, &info);
    hy_engine_options options = engine_options(f);
    server_options server_opts = {.host = f->host,
                                  .port = f->port,
                                  .served_names = f->names.items,
                                  .served_name_count = (size_t)f->names.count,
                                  .api_keys = f->keys.items,
                                  .api_key_count = (size_t)f->keys.count,
                                  .split_reasoning = strcmp(f->reasoning_parser, "none") != 0,
                                  .template_kwargs = kwargs};
    hy_status status = model_can_chat(model, &err);
    if (status == HY_OK) status = hy_engine_open(model, &options, &engine, &err);
    allow_many_clients();
    if (status == HY_OK) status = server_open(model, engine, &server_opts, &s, &err);
    if (status == HY_OK) {
        log_start(s, f, &info);
        server_run(s);
    } else {
        cli_error(&err);
    }
    /* The engine first: its last events go to the server's queue. */
    hy_engine_close(engine);
    server_close(s);
    return cli_exit(status);
}

int cmd_serve(int argc, char **argv)
{
    struct flags f = {.reasoning_parser = "minimax_m3", .port = 8000, .block_size = CACHE_BLOCK};
    hy_model_options *m = &f.model_options;
    const cli_option options[] = {
        {"host", "ADDRESS", "address to listen on (default: all)", &f.host, CLI_STRING},
        {"port", "N", "port to listen on, 0 for any free one (default 8000)", &f.port, CLI_INT},
        {"served-model-name", "NAME",
         "name of the model in requests; may come several times (default: the folder's name)", &f.names, CLI_STRINGS},
        {"api-key", "KEY", "key that clients must send as a bearer token; may come several times", &f.keys,
         CLI_STRINGS},
        {"max-model-len", "TOKENS", "longest sequence, prompt and answer (default: the model's)", &f.max_model_len,
         CLI_SIZE},
        {"max-num-seqs", "N", "requests that run at once (default 256)", &f.max_num_seqs, CLI_INT},
        {"max-num-batched-tokens", "N", "rows of one step (default 512)", &f.max_num_batched_tokens, CLI_SIZE},
        {"kv-cache-memory-bytes", "SIZE",
         "size of the cache, such as 4GiB (default: sixteen longest sequences, at most a quarter of the free memory; "
         "with --weights stream an eighth)",
         &f.kv_cache_memory, CLI_SIZE},
        {"weights", "KIND",
         "load (default): all weights in memory; stream: experts are read from the files as they are needed, for "
         "models larger than memory",
         &m->weights, CLI_STRING},
        {"memory", "SIZE",
         "most memory of the whole process, such as 20G (default or 0: no limit; with --weights stream nine tenths of "
         "what is free)",
         &m->memory, CLI_SIZE},
        {"kv-cache-dtype", "TYPE", "auto, bf16, fp8 or nvfp4 (default auto: as the model was trained)",
         &m->kv_cache_dtype, CLI_STRING},
        {"indexer-kv-dtype", "TYPE", "the same for index keys (default: as the main cache)", &m->indexer_kv_dtype,
         CLI_STRING},
        {"block-size", "N", "tokens of a cache block; 128, nothing else", &f.block_size, CLI_INT},
        {"readback", "MODE", "exact or e4m3: how NVFP4 cache values are read (default exact)", &m->readback,
         CLI_STRING},
        {"moe-activation", "MODE", "auto, nvfp4 or none: activations of routed experts (default auto)",
         &m->moe_activation, CLI_STRING},
        {"backend", "NAME", "cpu or reference (default cpu)", &m->backend, CLI_STRING},
        {"threads", "N", "worker threads (default: one per core)", &m->threads, CLI_INT},
        {"cpu-pin", "WHEN", "keep each thread on a core: auto (default: on several memory nodes), on, off", &m->cpu_pin,
         CLI_STRING},
        {"tokenizer", "PATH", "tokenizer from elsewhere", &m->tokenizer, CLI_STRING},
        {"chat-template", "NAME", "auto or minimax-m3, the built-in renderer (default auto)", &m->chat_template,
         CLI_STRING},
        {"default-chat-template-kwargs", "JSON", "defaults of the template's variables", &f.template_kwargs,
         CLI_STRING},
        {"reasoning-parser", "NAME", "minimax_m3 or none: reasoning in a field of its own (default minimax_m3)",
         &f.reasoning_parser, CLI_STRING},
    };
    const char *place[1];
    int places = 1;
    int code = cli_parse("serve", "serve MODEL [flags]", about, options, (int)(sizeof options / sizeof *options), argc,
                         argv, place, &places);
    if (code >= 0) return code;
    if (places != 1) return cli_usage_error("serve", "give the folder of one model");
    json_t *kwargs = NULL;
    code = check(&f, &kwargs);
    if (code >= 0) return code;
    m->max_model_len = (int)f.max_model_len;
    m->on_progress = cli_progress;
    hy_engine_options engine = engine_options(&f);
    m->engine = &engine;
    hy_error err = {0};
    hy_model *model = NULL;
    hy_status status = hy_model_open(place[0], m, &model, &err);
    if (status == HY_OK)
        code = serve(&f, model, kwargs);
    else
        cli_error(&err), code = cli_exit(status);
    hy_model_close(model);
    json_decref(kwargs);
    return code;
}
