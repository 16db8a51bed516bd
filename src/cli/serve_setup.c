#include "cli/serve_setup.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/log.h"
#include "cache/blocks.h"
#include "cli/cli.h"
#include "model/model.h"

static int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int fail(const char *format, ...)
{
    char text[768];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return cli_usage_error("serve", "%s", text);
}

/* ---- What the table alone decides ------------------------------------------------------------------------------- */

static int check_only(const serve_args *args)
{
    size_t count;
    const arg_spec *table = serve_table(&count);
    for (size_t i = 0; i < count; i++)
        if (table[i].fate == FATE_ONLY && !serve_is_default(args, &table[i]))
            return fail("--%s is not done: %s", table[i].name, table[i].note);
    return -1;
}

static bool wants_ranks(const arg_spec *spec)
{
    return spec->fate == FATE_RANKS;
}

/* After everything else, so that what is said is all that the flags alone can tell. Model and memory were not looked
 * at. */
static int check_ranks(const serve_args *args)
{
    size_t count;
    const arg_spec *table = serve_table(&count), *most = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!wants_ranks(&table[i])) continue;
        int64_t n = serve_integer(args, table[i].name);
        if (n < 1) return fail("--%s must be at least 1, not %lld", table[i].name, (long long)n);
        if (n > 1 && !most) most = &table[i];
    }
    if (!most) return -1;
    char *command = serve_command(args, wants_ranks);
    bool typed = false;
    for (int i = 1; i < args->argc; i++) typed = typed || (args->owner[i] && wants_ranks(args->owner[i]));
    fprintf(stderr,
            "hayate serve: --%s %lld needs that many ranks, with a GPU each, and this version runs one rank, on the "
            "cores of this machine. The other flags can be read; the model, and whether it fits here, were not looked "
            "at ('hayate plan' tells).\n%s%s\n",
            most->name, (long long)serve_integer(args, most->name),
            typed ? "For one rank: " : "Take it out of the --config file.", typed && command ? command : "");
    free(command);
    return 2;
}

void setup_say(const serve_args *args, const speculation *drafts)
{
    const char *name;
    json_t *value;
    json_object_foreach(args->values, name, value)
    {
        const arg_spec *spec = serve_find(name, strlen(name));
        if (json_is_null(value)) continue;
        if (spec->fate == FATE_NONE)
            log_line(HY_LOG_WARNING, "flag --%s has no effect in this engine: %s", name, spec->note);
    }
    if (*drafts->idle)
        log_line(HY_LOG_WARNING,
                 "--speculative-config: %s: no effect in this engine, which has one drafter and one set of kernels",
                 drafts->idle);
    if (drafts->greedy && strcmp(drafts->method, "coupled") == 0)
        log_line(HY_LOG_WARNING,
                 "--speculative-config: draft_sample_method greedy with coupled verification accepts few drafts above "
                 "temperature 0: probabilistic drafts are drawn as the target draws");
    if (serve_given(args, "fingerprint-value") && strcmp(serve_text(args, "fingerprint-mode"), "custom"))
        log_line(HY_LOG_WARNING,
                 "--fingerprint-value has no effect with --fingerprint-mode %s: only custom answers with it",
                 serve_text(args, "fingerprint-mode"));
    if (args->model_flag)
        log_line(HY_LOG_WARNING, "--model will go away: give the model in front, as in 'hayate serve MODEL'");
}

/* ---- Parsers and formats ---------------------------------------------------------------------------------------- */

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(text, *words)) return true;
    return false;
}

static int read_parsers(const serve_args *args, serve_setup *s, const char *reasoning)
{
    static const char *const off[] = {"none", "", NULL};
    if (!serve_given(args, "reasoning-parser") && reasoning && *reasoning)
        ;
    else
        reasoning = serve_text(args, "reasoning-parser");
    if (strcmp(reasoning, "minimax_m3") && !is_one_of(reasoning, off))
        return fail("--reasoning-parser %.60s is unknown; choose minimax_m3 or none", reasoning);
    s->server.split_reasoning = !strcmp(reasoning, "minimax_m3");
    const char *tools = serve_text(args, "tool-call-parser");
    if (tools && strcmp(tools, "minimax_m3") && !is_one_of(tools, off))
        return fail("--tool-call-parser %.60s is unknown; choose minimax_m3 or none", tools);
    s->server.tool_parser = tools && !strcmp(tools, "minimax_m3");
    s->server.auto_tools = serve_on(args, "enable-auto-tool-choice");
    if (s->server.auto_tools && !s->server.tool_parser) {
        fprintf(stderr, "Error: --enable-auto-tool-choice requires --tool-call-parser\n");
        return 2;
    }
    return -1;
}

/* The engine's name of a cache format as upstream or we call it; NULL: it has none. */
static const char *format_called(const char *text)
{
    static const char *const names[][2] = {{"auto", "auto"}, {"bfloat16", "bf16"}, {"bf16", "bf16"},
                                           {"fp8", "fp8"},   {"fp8_e4m3", "fp8"},  {"nvfp4", "nvfp4"},
                                           {"fp32", "fp32"}, {"float32", "fp32"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i][0])) return names[i][1];
    return NULL;
}

static int read_formats(const serve_args *args, serve_setup *s)
{
    static const char *const flags[] = {"kv-cache-dtype", "indexer-kv-dtype"};
    const char **to[] = {&s->model.kv_cache_dtype, &s->model.indexer_kv_dtype};
    for (int i = 0; i < 2; i++) {
        const char *text = serve_text(args, flags[i]), *name = format_called(text);
        if (!name) return fail("--%s %.40s is not among the formats: auto, bf16, fp8, nvfp4", flags[i], text);
        *to[i] = name;
    }
    return -1;
}

/* Flags of which some values are what it does anyway. */
static int check_values(const serve_args *args)
{
    static const struct {
        const char *flag, *right[5], *why;
    } rules[] = {
        {"dtype", {"auto", "bfloat16"}, "activations are bf16 (docs/numerics.md)"},
        {"config-format", {"auto", "hf"}, "the config is read as config.json"},
        {"runner", {"auto", "generate"}, "it generates text"},
        {"convert", {"auto", "none"}, "it generates text"},
        {"load-format", {"auto", "hf", "safetensors", "dummy"}, "weights are read as safetensors, or made with dummy"},
        {"kv-offloading-backend", {"native"}, "blocks are kept by the engine"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const char *text = serve_text(args, rules[i].flag);
        if (text && !is_one_of(text, rules[i].right))
            return fail("--%s %.40s is not done: %s", rules[i].flag, text, rules[i].why);
    }
    if (serve_integer(args, "block-size") != CACHE_BLOCK) {
        return fail("--block-size must be 128, the block of this model's selection, not %lld",
                    (long long)serve_integer(args, "block-size"));
    }
    if (serve_on(args, "enable-log-outputs") && !serve_on(args, "enable-log-requests")) {
        fprintf(stderr, "Error: --enable-log-outputs requires --enable-log-requests\n");
        return 2;
    }
    if (serve_on(args, "enable-per-request-metrics") && serve_on(args, "disable-log-stats")) {
        fprintf(stderr,
                "Error: --enable-per-request-metrics requires engine statistics logging; remove --disable-log-stats to "
                "enable per-request metrics.\n");
        return 2;
    }
    return -1;
}

/* ---- Model and engine ------------------------------------------------------------------------------------------- */

/* A flag's whole number within [low, high] into *to; -1 or 2. */
static int whole(const serve_args *args, const char *flag, int64_t low, int64_t high, int64_t *to)
{
    *to = serve_integer(args, flag);
    if (*to >= low && *to <= high) return -1;
    if (high == INT64_MAX) return fail("--%s must be at least %lld, not %lld", flag, (long long)low, (long long)*to);
    return fail("--%s must be %lld to %lld, not %lld", flag, (long long)low, (long long)high, (long long)*to);
}

static int read_model(const serve_args *args, serve_setup *s)
{
    hy_model_options *m = &s->model;
    int64_t length = 0, count = 0;
    const char *device = serve_text(args, "device");
    m->backend = serve_text(args, "backend");
    if (device && strcmp(device, "auto") != 0) {
        if (serve_given(args, "backend") && strcmp(device, m->backend) != 0)
            return fail("--device %s and --backend %s mean the same: give one", device, m->backend);
        m->backend = device;
    }
    m->readback = serve_text(args, "readback");
    m->moe_activation = serve_text(args, "moe-activation");
    m->weights = serve_text(args, "weights");
    m->cpu_pin = serve_on(args, "numa-bind") && !serve_given(args, "cpu-pin") ? "on" : serve_text(args, "cpu-pin");
    m->tokenizer = serve_text(args, "tokenizer");
    m->chat_template = serve_text(args, "chat-template");
    m->memory = (uint64_t)serve_integer(args, "memory");
    const char *load = serve_text(args, "load-format");
    m->load_format = load && !strcmp(load, "dummy") ? "dummy" : "safetensors";
    m->dummy_seed = (uint64_t)serve_integer(args, "seed");
    m->on_progress = cli_progress;
    int code = whole(args, "threads", 0, 4096, &count);
    m->threads = (int)count;
    if (code < 0) code = whole(args, "gpu-wgmma-rows", -1, INT32_MAX, &count), m->gpu_wgmma_rows = (int)count;
    if (code < 0 && serve_given(args, "max-model-len")) code = whole(args, "max-model-len", -1, INT32_MAX, &length);
    if (code < 0 && serve_given(args, "max-model-len") && length == 0)
        code = fail("--max-model-len must be at least 1, or auto");
    m->max_model_len =
        length > 0 ? (int)length : 0; /* auto: the engine serves what the cache holds, at most the model's */
    s->revision = serve_text(args, "revision");
    s->download_dir = serve_text(args, "download-dir");
    s->tokenizer_revision = serve_text(args, "tokenizer-revision");
    s->token = serve_text(args, "hf-token");
    s->no_token = json_is_false(serve_json(args, "hf-token"));
    return code;
}

static int read_offload(const serve_args *args, serve_setup *s)
{
    hy_engine_options *e = &s->engine;
    e->offload_memory = (uint64_t)serve_integer(args, "kv-offload-memory");
    if (serve_given(args, "kv-offloading-size")) {
        double gib = serve_number(args, "kv-offloading-size");
        if (e->offload_memory) return fail("--kv-offload-memory and --kv-offloading-size mean the same: give one");
        if (!(gib >= 0 && gib <= 1 << 20)) return fail("--kv-offloading-size must be GiB from 0, not %g", gib);
        e->offload_memory = (uint64_t)(gib * 1073741824.0);
    }
    e->offload_disk = serve_text(args, "kv-offload-disk");
    e->offload_disk_bytes = (uint64_t)serve_integer(args, "kv-offload-disk-size");
    if (!serve_on(args, "enable-prefix-caching") && (e->offload_memory > 0 || e->offload_disk))
        return fail(
            "--no-enable-prefix-caching never looks into what --kv-offload-memory and --kv-offload-disk keep: leave "
            "one of them out");
    if (e->offload_disk_bytes > 0 && !e->offload_disk)
        return fail("--kv-offload-disk-size limits the folder of --kv-offload-disk, which was not given");
    if (e->offload_disk && !*e->offload_disk) return fail("--kv-offload-disk needs a folder");
    return -1;
}

static int read_engine(const serve_args *args, serve_setup *s)
{
    hy_engine_options *e = &s->engine;
    int64_t seqs = 0, rows = 0, scheduled = 65536, waiting = 0, threshold = 0, count = 0;
    int code = whole(args, "max-num-seqs", 1, INT_MAX, &seqs);
    if (code < 0) code = whole(args, "max-num-batched-tokens", 1, 65536, &rows);
    if (code < 0 && serve_given(args, "max-num-scheduled-tokens"))
        code = whole(args, "max-num-scheduled-tokens", 0, 65536, &scheduled);
    if (code < 0) code = whole(args, "max-waiting", 0, INT_MAX, &waiting);
    if (code < 0) code = whole(args, "long-prefill-token-threshold", 0, INT_MAX, &threshold);
    if (code < 0 && serve_given(args, "num-gpu-blocks-override"))
        code = whole(args, "num-gpu-blocks-override", 1, INT_MAX, &count);
    if (code >= 0) return code;
    e->max_num_seqs = (int)seqs;
    e->max_num_batched_tokens = (int)(scheduled > 0 && scheduled < rows ? scheduled : rows);
    e->max_waiting = (int)waiting;
    e->long_prefill_token_threshold = (int)threshold;
    e->scheduling_policy = serve_text(args, "scheduling-policy");
    e->watermark = serve_number(args, "watermark");
    if (!(e->watermark >= 0 && e->watermark <= 0.5)) return fail("--watermark must be 0 to 0.5, not %g", e->watermark);
    e->prefix_caching = serve_on(args, "enable-prefix-caching") ? "on" : "off";
    e->cache_bytes = (uint64_t)serve_integer(args, "kv-cache-memory-bytes");
    if (count && e->cache_bytes)
        return fail("--num-gpu-blocks-override and --kv-cache-memory-bytes mean the same: give one");
    s->cache_blocks = count;
    double part = serve_number(args, "gpu-memory-utilization");
    if (!(part > 0 && part <= 1)) return fail("--gpu-memory-utilization must be above 0 and at most 1, not %g", part);
    e->cache_share = part;
    return read_offload(args, s);
}

/* ---- The server ------------------------------------------------------------------------------------------------- */

static int read_cors(const serve_args *args, serve_setup *s)
{
    static const char *const flags[SETUP_CORS] = {"allowed-origins", "allowed-methods", "allowed-headers"};
    static const char *const nobody[] = {""};
    http_options *h = &s->server.http;
    http_strings *to[SETUP_CORS] = {&h->allowed_origins, &h->allowed_methods, &h->allowed_headers};
    for (int i = 0; i < SETUP_CORS; i++) {
        if (!serve_given(args, flags[i])) continue;
        size_t n = serve_texts(args, flags[i], s->cors[i], SETUP_TEXTS);
        if (n > SETUP_TEXTS) return fail("--%s has more than %d parts", flags[i], SETUP_TEXTS);
        for (size_t k = 0; k < n; k++)
            if (!s->cors[i][k])
                return fail("--%s takes a JSON list of texts such as '[\"https://example.org\"]'", flags[i]);
        *to[i] =
            n ? (http_strings){s->cors[i], n} : (http_strings){nobody, 1}; /* no strings at all would mean everybody */
    }
    h->allow_credentials = serve_on(args, "allow-credentials");
    return -1;
}

static int read_tls(const serve_args *args, http_options *h)
{
    int64_t wanted = 0;
    h->ssl_keyfile = serve_text(args, "ssl-keyfile");
    h->ssl_certfile = serve_text(args, "ssl-certfile");
    h->ssl_ca_certs = serve_text(args, "ssl-ca-certs");
    h->ssl_refresh = serve_on(args, "enable-ssl-refresh");
    int code = whole(args, "ssl-cert-reqs", 0, 2, &wanted);
    if (code >= 0) return code;
    h->ssl_cert_reqs = (http_cert_reqs)wanted;
    if (h->ssl_keyfile && !h->ssl_certfile) return fail("--ssl-keyfile needs its --ssl-certfile");
    if ((h->ssl_ca_certs || wanted || h->ssl_refresh) && !h->ssl_certfile)
        return fail("--ssl-ca-certs, --ssl-cert-reqs and --enable-ssl-refresh need --ssl-certfile");
    return -1;
}

static void access_line(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static void read_access_log(const serve_args *args, serve_setup *s)
{
    static const char *const quiet_levels[] = {"critical", "error", "warning", NULL};
    http_options *h = &s->server.http;
    if (!serve_on(args, "disable-uvicorn-access-log") &&
        !is_one_of(serve_text(args, "uvicorn-log-level"), quiet_levels))
        h->access_log = access_line;
    const char *paths = serve_text(args, "disable-access-log-for-endpoints");
    s->quiet_text = paths ? strdup(paths) : NULL;
    if (!s->quiet_text) return;
    size_t n = 0;
    char *rest = NULL;
    for (char *p = strtok_r(s->quiet_text, ", ", &rest); p && n < SETUP_TEXTS; p = strtok_r(NULL, ", ", &rest))
        s->quiet[n++] = p;
    h->access_quiet = (http_strings){s->quiet, n};
}

/* Seconds of a flag, at least `low`; left as it was when the flag is not there. */
static int seconds(const serve_args *args, const char *flag, double low, double *to)
{
    if (!serve_given(args, flag)) return -1;
    *to = serve_number(args, flag);
    if (*to >= low && *to <= 1e6) return -1;
    return fail("--%s must be seconds from %g, not %g", flag, low, *to);
}

static int read_waits(const serve_args *args, http_options *h)
{
    int64_t connections = 0;
    int code = whole(args, "max-connections", 0, INT_MAX, &connections);
    h->max_connections = (size_t)connections;
    if (code < 0) code = seconds(args, "header-timeout", 0.1, &h->header_s);
    if (code < 0) code = seconds(args, "body-timeout", 0.1, &h->body_s);
    if (code < 0) code = seconds(args, "stream-keep-alive", 0, &h->comment_s);
    return code;
}

static int read_http(const serve_args *args, serve_setup *s)
{
    http_options *h = &s->server.http;
    int64_t port = 0, bytes = 0, headers = 0;
    h->host = serve_text(args, "host");
    h->uds = serve_text(args, "uds");
    h->root_path = serve_text(args, "root-path");
    h->request_ids = serve_on(args, "enable-request-id-headers");
    s->server.request_id_headers = h->request_ids;
    int code = whole(args, "port", 0, 65535, &port);
    if (code < 0) code = whole(args, "h11-max-incomplete-event-size", 1024, 1 << 30, &bytes);
    if (code < 0) code = whole(args, "h11-max-header-count", 1, 100000, &headers);
    if (code >= 0) return code;
    h->port = (int)port, h->max_header_bytes = (size_t)bytes, h->max_headers = (size_t)headers;
    h->api_key_count = serve_texts(args, "api-key", s->keys, SETUP_TEXTS);
    if (h->api_key_count > SETUP_TEXTS) return fail("--api-key was given more than %d times", SETUP_TEXTS);
    for (size_t i = 0; i < h->api_key_count; i++)
        if (!*s->keys[i]) return fail("--api-key is empty");
    h->api_keys = s->keys;
    read_access_log(args, s);
    code = read_waits(args, h);
    if (code < 0) code = read_tls(args, h);
    return code >= 0 ? code : read_cors(args, s);
}

static int read_server(const serve_args *args, serve_setup *s)
{
    server_options *o = &s->server;
    int64_t workers = 0, more = 0, interval = 0, logprobs = 0, drain = 0;
    o->served_name_count = serve_texts(args, "served-model-name", s->names, SETUP_TEXTS);
    if (o->served_name_count > SETUP_TEXTS) return fail("--served-model-name has more than %d names", SETUP_TEXTS);
    o->served_names = s->names;
    int code = whole(args, "renderer-num-workers", 1, 1024, &workers);
    if (code < 0) code = whole(args, "api-server-count", 1, 1024, &more);
    if (code < 0) code = whole(args, "stream-interval", 1, INT_MAX, &interval);
    if (code < 0) code = whole(args, "max-logprobs", -1, INT_MAX, &logprobs);
    if (code < 0) code = whole(args, "shutdown-timeout", 0, INT_MAX, &drain);
    if (code >= 0) return code;
    o->workers = (int)(workers + more - 1);
    o->stream_interval = (int)interval;
    o->max_waiting = s->engine.max_waiting;
    o->max_logprobs = (int)logprobs, o->no_logprobs = logprobs == 0;
    o->drain_seconds = (double)drain;
    o->reasoning_field = serve_text(args, "reasoning-field");
    o->exclude_tools_when_none = serve_on(args, "exclude-tools-when-tool-choice-none");
    o->priority = !strcmp(s->engine.scheduling_policy, "priority");
    o->logprobs_mode = serve_text(args, "logprobs-mode");
    o->tokens_as_ids = serve_on(args, "return-tokens-as-token-ids");
    o->routed_experts = serve_on(args, "enable-return-routed-experts");
    o->template_kwargs = serve_json(args, "default-chat-template-kwargs");
    o->trust_request_chat_template = serve_on(args, "trust-request-chat-template");
    o->prompt_tokens_details = serve_on(args, "enable-prompt-tokens-details");
    o->force_include_usage = serve_on(args, "enable-force-include-usage");
    o->request_metrics = serve_on(args, "enable-per-request-metrics");
    o->fingerprint = serve_text(args, "fingerprint-mode");
    o->fingerprint_text = serve_text(args, "fingerprint-value");
    if (!strcmp(o->fingerprint, "custom") && !o->fingerprint_text)
        return fail("--fingerprint-mode custom needs its --fingerprint-value");
    o->tokens_only = serve_on(args, "tokens-only");
    o->tokenizer_info = serve_on(args, "enable-tokenizer-info-endpoint");
    o->load_tracking = serve_on(args, "enable-server-load-tracking");
    o->no_docs = serve_on(args, "disable-fastapi-docs");
    o->dev_mode = serve_on(args, "enable-dev-mode");
    o->store_responses = serve_on(args, "enable-responses-store");
    o->log_requests = serve_on(args, "enable-log-requests");
    o->log_outputs = serve_on(args, "enable-log-outputs");
    if (serve_given(args, "max-log-len")) {
        code = whole(args, "max-log-len", 0, INT_MAX, &s->log_most);
        if (code >= 0) return code;
        o->log_most = &s->log_most;
    }
    s->config = serve_shown(args);
    o->config = s->config;
    return read_http(args, s);
}

/* ---- Environment ------------------------------------------------------------------------------------------------ */

static bool environment_on(const char *name)
{
    const char *text = getenv(name);
    return text && (!strcmp(text, "1") || !strcasecmp(text, "true"));
}

/* A number that a variable holds, at least `low`; -1 leaves *to as it was and goes on. */
static int environment_number(const char *name, double low, double *to)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return -1;
    double value = strtod(text, &end);
    if (*end || !(value >= low && value <= 1e9))
        return fail("the variable %s must be a number from %g, not '%.40s'", name, low, text);
    *to = value;
    return -1;
}

static int read_log_level(serve_setup *s)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    const char *text = getenv("VLLM_LOGGING_LEVEL");
    s->log_level = HY_LOG_INFO;
    if (!text || !*text) return -1;
    for (int i = 0; i < 4; i++)
        if (!strcasecmp(text, names[i])) return s->log_level = (hy_log_level)i, -1;
    if (!strcasecmp(text, "CRITICAL")) return s->log_level = HY_LOG_ERROR, -1;
    return fail("the variable VLLM_LOGGING_LEVEL must be DEBUG, INFO, WARNING or ERROR, not '%.40s'", text);
}

static int read_environment(const serve_args *args, serve_setup *s)
{
    const char *key = getenv("VLLM_API_KEY");
    if (key && *key && s->server.http.api_key_count == 0) s->keys[0] = key, s->server.http.api_key_count = 1;
    if (environment_on("VLLM_SERVER_DEV_MODE")) s->server.dev_mode = true;
    if (environment_on("VLLM_ENABLE_RESPONSES_API_STORE")) s->server.store_responses = true;
    int code = environment_number("VLLM_LOG_STATS_INTERVAL", 0.1, &s->engine.log_seconds);
    if (serve_on(args, "disable-log-stats")) s->engine.log_seconds = -1;
    if (code < 0) code = environment_number("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 0.1, &s->server.http.keep_alive_s);
    if (code < 0) code = seconds(args, "timeout-keep-alive", 0.1, &s->server.http.keep_alive_s);
    double most = 0;
    if (code < 0) code = environment_number("VLLM_MAX_N_SEQUENCES", 1, &most);
    if (code < 0 && most != (double)(int)most)
        code = fail("the variable VLLM_MAX_N_SEQUENCES must be a whole number, not '%.40s'",
                    getenv("VLLM_MAX_N_SEQUENCES"));
    s->server.max_choices = (int)most;
    return code >= 0 ? code : read_log_level(s);
}

/* ---- Together --------------------------------------------------------------------------------------------------- */

static int read_generation(const serve_args *args, serve_setup *s)
{
    const char *from = serve_text(args, "generation-config");
    s->generation = serve_json(args, "override-generation-config");
    s->vllm_sampling = !strcmp(from, "vllm");
    if (strcmp(from, "auto") && !s->vllm_sampling) s->generation_folder = from;
    return -1;
}

int setup_read(const serve_args *args, serve_setup *out)
{
    *out = (serve_setup){.log_level = HY_LOG_INFO};
    const char *reasoning = NULL;
    if (!args->model)
        return fail("give a model: a folder, files separated by commas, or a name of the hub such as owner/name");
    int code = check_values(args);
    if (code < 0) code = check_only(args);
    if (code < 0) code = read_formats(args, out);
    if (code < 0) code = setup_attention(args, out);
    if (code < 0) code = setup_speculation(args, out);
    if (code < 0) code = setup_structured(args, out, &reasoning);
    if (code < 0) code = setup_rest(args);
    if (code < 0) code = read_parsers(args, out, reasoning);
    if (code < 0) code = read_model(args, out);
    if (code < 0) code = read_engine(args, out);
    if (code < 0) code = read_server(args, out);
    if (code < 0) code = read_generation(args, out);
    if (code < 0) code = read_environment(args, out);
    return code >= 0 ? code : check_ranks(args);
}

void setup_free(serve_setup *s)
{
    json_decref(s->config);
    free(s->quiet_text);
    *s = (serve_setup){0};
}
