#include "server/chat_request.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { MAX_STOPS = 64, MAX_IDS = 65536, MAX_TOP_LOGPROBS = 20, MAX_VALUES = 1 << 18 };

bool request_refuse(request_fault *fault, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    *fault = (request_fault){.status = 400, .type = "BadRequestError", .suffix = param != NULL};
    vsnprintf(fault->message, sizeof fault->message, format, args);
    snprintf(fault->param, sizeof fault->param, "%s", param ? param : "");
    va_end(args);
    return false;
}

/* A schema fault in the form that pydantic prints: one line of count, one with the details. */
static bool schema(request_fault *fault, const char *field, const char *kind, const char *message)
{
    *fault = (request_fault){.status = 400, .type = "Bad Request"};
    snprintf(fault->param, sizeof fault->param, "body.%s", field);
    snprintf(fault->message, sizeof fault->message,
             "1 validation error:\n  {'type': '%s', 'loc': ('body', '%s'), 'msg': '%s'}", kind, field, message);
    return false;
}

/* The value of a field, NULL when it is absent or null. */
static json_t *field(const chat_request *r, const char *name)
{
    json_t *v = json_object_get(r->body, name);
    return json_is_null(v) ? NULL : v;
}

static bool get_bool(const chat_request *r, const char *name, bool *out, request_fault *fault)
{
    const json_t *v = field(r, name);
    if (!v) return true;
    if (!json_is_boolean(v)) return schema(fault, name, "bool_type", "Input should be a valid boolean");
    *out = json_is_true(v);
    return true;
}

static bool get_integer(const chat_request *r, const char *name, int64_t *out, request_fault *fault)
{
    const json_t *v = field(r, name);
    if (!v) return true;
    if (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)) && fabs(json_real_value(v)) < 9e15) {
        *out = (int64_t)json_real_value(v);
        return true;
    }
    if (!json_is_integer(v)) return schema(fault, name, "int_type", "Input should be a valid integer");
    *out = json_integer_value(v);
    return true;
}

/* A number within [low, high]. */
static bool get_number(const chat_request *r, const char *name, double low, double high, float *out,
                       request_fault *fault)
{
    const json_t *v = field(r, name);
    if (!v) return true;
    if (!json_is_number(v)) return schema(fault, name, "float_type", "Input should be a valid number");
    double x = json_number_value(v);
    if (!isfinite(x) || x < low || x > high) {
        return request_refuse(fault, name, "%s must be between %g and %g, got %g", name, low, high, x);
    }
    *out = (float)x;
    return true;
}

static bool get_ids(const chat_request *r, const char *name, int vocab, int32_t **ids, size_t *count,
                    request_fault *fault)
{
    const json_t *v = field(r, name);
    if (!v) return true;
    if (!json_is_array(v)) return schema(fault, name, "list_type", "Input should be a valid list");
    size_t n = json_array_size(v);
    if (n > MAX_IDS) return request_refuse(fault, name, "%s has %zu ids, at most %d are allowed", name, n, MAX_IDS);
    *ids = malloc((n + 1) * sizeof **ids);
    if (!*ids) return request_refuse(fault, name, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(v, i);
        if (!json_is_integer(id)) return schema(fault, name, "int_type", "Input should be a valid integer");
        json_int_t x = json_integer_value(id);
        if (x < 0 || x >= vocab) {
            return request_refuse(fault, name, "%s holds the token id %lld, outside the vocabulary of %d", name,
                                  (long long)x, vocab);
        }
        (*ids)[i] = (int32_t)x;
    }
    *count = n;
    return true;
}

static bool get_stop(chat_request *r, request_fault *fault)
{
    const json_t *v = field(r, "stop");
    if (!v) return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > MAX_STOPS)
        return request_refuse(fault, "stop", "stop has %zu strings, at most %d are allowed", n, MAX_STOPS);
    r->stop = calloc(n + 1, sizeof *r->stop);
    if (!r->stop) return request_refuse(fault, "stop", "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s)) return schema(fault, "stop", "string_type", "Input should be a valid string");
        if (json_string_length(s) == 0) return request_refuse(fault, "stop", "stop cannot contain an empty string.");
        r->stop[i] = json_string_value(s);
    }
    r->sampling.stop = r->stop, r->sampling.stop_count = n;
    return true;
}

static bool get_bias(chat_request *r, int vocab, request_fault *fault)
{
    json_t *v = field(r, "logit_bias"), *value;
    if (!v) return true;
    if (!json_is_object(v)) return schema(fault, "logit_bias", "dict_type", "Input should be a valid dictionary");
    r->bias = calloc(json_object_size(v) + 1, sizeof *r->bias);
    if (!r->bias) return request_refuse(fault, "logit_bias", "out of memory");
    const char *key;
    json_object_foreach(v, key, value)
    {
        char *end;
        errno = 0;
        long long id = strtoll(key, &end, 10);
        if (errno || end == key || *end) {
            return request_refuse(fault, "logit_bias", "logit_bias has the key %.40s, which is not a token id", key);
        }
        if (id < 0 || id >= vocab) {
            return request_refuse(fault, "logit_bias", "logit_bias has the token id %lld, outside the vocabulary of %d",
                                  id, vocab);
        }
        if (!json_is_number(value)) return schema(fault, "logit_bias", "float_type", "Input should be a valid number");
        double b = json_number_value(value);
        if (isnan(b)) return request_refuse(fault, "logit_bias", "logit_bias of token %lld is not a number", id);
        r->bias[r->sampling.bias_count++] = (hy_token_bias){(int32_t)id, (float)(b < -100 ? -100 : b > 100 ? 100 : b)};
    }
    r->sampling.bias = r->bias;
    return true;
}

static bool get_logprobs(chat_request *r, request_fault *fault)
{
    int64_t top = 0;
    if (!get_bool(r, "logprobs", &r->logprobs, fault) || !get_integer(r, "top_logprobs", &top, fault)) return false;
    if (top < 0 || top > MAX_TOP_LOGPROBS) {
        return request_refuse(fault, "top_logprobs", "top_logprobs must be between 0 and %d, got %lld",
                              MAX_TOP_LOGPROBS, (long long)top);
    }
    if (top && !r->logprobs) {
        return request_refuse(fault, "top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
    }
    r->top_logprobs = (int)top;
    r->sampling.logprobs = r->logprobs ? (int32_t)top : -1;
    return true;
}

static bool get_lengths(chat_request *r, request_fault *fault)
{
    int64_t most = 0, min = 0;
    const char *name = field(r, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    if (!get_integer(r, name, &most, fault) || !get_integer(r, "min_tokens", &min, fault)) return false;
    if (field(r, name) && (most < 1 || most > INT32_MAX)) {
        return request_refuse(fault, name, "%s must be at least 1, got %lld", name, (long long)most);
    }
    if (min < 0 || min > INT32_MAX) {
        return request_refuse(fault, "min_tokens", "min_tokens must be at least 0, got %lld", (long long)min);
    }
    if (most && min > most) {
        return request_refuse(fault, "min_tokens", "min_tokens must be less than or equal to max_tokens=%lld, got %lld",
                              (long long)most, (long long)min);
    }
    r->max_tokens = most, r->sampling.max_tokens = (int32_t)most, r->sampling.min_tokens = (int32_t)min;
    return true;
}

static bool get_cuts(chat_request *r, request_fault *fault)
{
    hy_sampling *s = &r->sampling;
    int64_t top_k = s->top_k, seed = s->seed;
    if (!get_number(r, "temperature", 0, 2, &s->temperature, fault) ||
        !get_number(r, "top_p", 0, 1, &s->top_p, fault) || !get_number(r, "min_p", 0, 1, &s->min_p, fault) ||
        !get_number(r, "frequency_penalty", -2, 2, &s->frequency_penalty, fault) ||
        !get_number(r, "presence_penalty", -2, 2, &s->presence_penalty, fault) ||
        !get_number(r, "repetition_penalty", 0, 1e6, &s->repetition_penalty, fault) ||
        !get_integer(r, "top_k", &top_k, fault) || !get_integer(r, "seed", &seed, fault))
        return false;
    if (s->top_p <= 0) return request_refuse(fault, "top_p", "top_p must be in (0, 1], got 0");
    if (s->repetition_penalty <= 0) {
        return request_refuse(fault, "repetition_penalty", "repetition_penalty must be greater than zero, got %g",
                              (double)s->repetition_penalty);
    }
    if (top_k < -1 || top_k > INT32_MAX) {
        return request_refuse(fault, "top_k", "top_k must be 0 (disable), or at least 1, got %lld.", (long long)top_k);
    }
    if (seed < -1)
        return request_refuse(fault, "seed", "seed must be -1 (draw one) or at least 0, got %lld", (long long)seed);
    if (s->temperature > 1e-5f && s->temperature < 0.01f) {
        log_line(HY_LOG_WARNING, "temperature %g is raised to 0.01", (double)s->temperature);
        s->temperature = 0.01f;
    }
    s->top_k = (int32_t)top_k, s->seed = seed;
    return true;
}

static bool get_stream(chat_request *r, request_fault *fault)
{
    if (!get_bool(r, "stream", &r->stream, fault)) return false;
    json_t *options = field(r, "stream_options");
    if (!options) return true;
    if (!json_is_object(options)) {
        return schema(fault, "stream_options", "model_type", "Input should be a valid dictionary");
    }
    if (!r->stream)
        return request_refuse(fault, "stream_options", "Stream options can only be defined when `stream=True`.");
    r->include_usage = json_is_true(json_object_get(options, "include_usage"));
    r->continuous_usage = json_is_true(json_object_get(options, "continuous_usage_stats"));
    return true;
}

static bool get_template(chat_request *r, const json_t *default_kwargs, request_fault *fault)
{
    r->template_kwargs = default_kwargs ? json_deep_copy(default_kwargs) : json_object();
    json_t *kwargs = field(r, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs)) {
        return schema(fault, "chat_template_kwargs", "dict_type", "Input should be a valid dictionary");
    }
    if (kwargs) json_object_update(r->template_kwargs, kwargs);
    static const char *const names[] = {"add_generation_prompt", "continue_final_message", "reasoning_effort"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = field(r, names[i]);
        if (!v) continue;
        if (i < 2 ? !json_is_boolean(v) : !json_is_string(v)) {
            return schema(fault, names[i], i < 2 ? "bool_type" : "string_type",
                          i < 2 ? "Input should be a valid boolean" : "Input should be a valid string");
        }
        json_object_set(r->template_kwargs, names[i], v);
    }
    if (json_is_true(field(r, "continue_final_message")) && !json_object_get(r->body, "add_generation_prompt")) {
        return request_refuse(fault, "continue_final_message",
                              "continue_final_message needs add_generation_prompt to be false");
    }
    return true;
}

/* Known to the protocol, not done by this server: refused when asked for. */
static bool refuse_unsupported(const chat_request *r, request_fault *fault)
{
    static const char *const names[] = {
        "structured_outputs",
        "prompt_logprobs",
        "logprob_token_ids",
        "use_beam_search",
        "kv_transfer_params",
        "ec_transfer_params",
        "truncate_prompt_tokens",
        "thinking_token_budget",
        "repetition_detection",
        "echo",
        "return_tokens_as_token_ids",
        "return_prompt_text",
        "return_assistant_tokens_mask",
        "return_token_offsets",
        "chat_template",
        "documents",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = field(r, names[i]);
        if (v && !json_is_false(v))
            return request_refuse(fault, names[i], "%s is not supported by this server", names[i]);
    }
    const json_t *n = field(r, "n");
    if (n && !(json_is_integer(n) && json_integer_value(n) == 1)) {
        return request_refuse(fault, "n", "n must be 1: this server gives one answer a request");
    }
    const json_t *format = field(r, "response_format");
    const char *kind = json_string_value(json_object_get(format, "type"));
    if (format && (!kind || strcmp(kind, "text") != 0)) {
        return request_refuse(fault, "response_format",
                              "response_format other than {\"type\": \"text\"} is not supported by this server");
    }
    const json_t *priority = field(r, "priority");
    if (priority && json_integer_value(priority) != 0) {
        return request_refuse(fault, "priority",
                              "priority needs --scheduling-policy priority, which this server does not have");
    }
    return true;
}

static bool get_tools(chat_request *r, request_fault *fault)
{
    r->tools = field(r, "tools");
    const json_t *choice = field(r, "tool_choice");
    if (r->tools && !json_is_array(r->tools))
        return schema(fault, "tools", "list_type", "Input should be a valid list");
    if (r->tools && json_array_size(r->tools) == 0)
        return request_refuse(fault, "tools", "tools must not be an empty list");
    if (choice && !r->tools && !(json_is_string(choice) && strcmp(json_string_value(choice), "none") == 0)) {
        return request_refuse(fault, "tool_choice", "When using `tool_choice`, `tools` must be set.");
    }
    if (!r->tools) return true;
    const char *name = choice ? json_string_value(choice) : "auto";
    if (name && strcmp(name, "none") == 0) return true;
    return request_refuse(fault, "tool_choice",
                          "this server cannot read tool calls yet; leave out tools, or send tool_choice \"none\"");
}

/* The template would drop parts that it does not know; a question about a picture must not be answered without it. */
static bool check_parts(const chat_request *r, request_fault *fault)
{
    size_t i, j;
    json_t *message, *part;
    json_array_foreach(r->messages, i, message)
    {
        if (!json_is_object(message))
            return schema(fault, "messages", "dict_type", "Input should be a valid dictionary");
        const json_t *content = json_object_get(message, "content");
        if (!json_is_array(content)) continue;
        json_array_foreach(content, j, part)
        {
            const char *type = json_string_value(json_object_get(part, "type"));
            if (json_is_string(part) || (type && strcmp(type, "text") == 0)) continue;
            return request_refuse(fault, "messages",
                                  "messages[%zu] has a part of type %.40s; this server takes text only", i,
                                  type ? type : "(none)");
        }
    }
    return true;
}

/*
 * Whether the body has at most MAX_VALUES values (one after each comma and each opening bracket, outside strings).
 * As a tree an empty object takes some eighty times its three bytes, so that a body within its limit could take
 * gigabytes and, since trees are built on the HTTP thread, seconds from everyone.
 */
static bool few_values(const char *text, size_t length)
{
    size_t values = 0;
    bool quoted = false;
    for (size_t i = 0; i < length && values <= MAX_VALUES; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted)
            values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    }
    return values <= MAX_VALUES;
}

bool chat_request_parse(const char *text, size_t length, const hy_sampling *defaults, const json_t *default_kwargs,
                        int vocab, chat_request *r, request_fault *fault)
{
    *r = (chat_request){.sampling = *defaults, .include_reasoning = true};
    json_error_t e;
    if (!few_values(text, length)) {
        return request_refuse(fault, NULL, "the body has more than %d JSON values; send a smaller one", MAX_VALUES);
    }
    r->body = json_loadb(text, length, JSON_REJECT_DUPLICATES, &e);
    if (!r->body) {
        for (char *p = e.text; *p; p++)
            if (*p == '\'') *p = '`'; /* it stands between quotes below */
        *fault = (request_fault){.status = 400, .type = "Bad Request", .param = "body"};
        snprintf(fault->message, sizeof fault->message,
                 "1 validation error:\n  {'type': 'json_invalid', 'loc': ('body', %d), 'msg': 'JSON decode error: %s'}",
                 e.position, e.text);
        return false;
    }
    if (!json_is_object(r->body))
        return schema(fault, "", "model_attributes_type", "Input should be a valid dictionary");
    r->messages = json_object_get(r->body, "messages");
    if (!r->messages) return schema(fault, "messages", "missing", "Field required");
    if (!json_is_array(r->messages)) return schema(fault, "messages", "list_type", "Input should be a valid list");
    const json_t *model = field(r, "model");
    if (model && !json_is_string(model)) return schema(fault, "model", "string_type", "Input should be a valid string");
    r->model = json_string_value(model);
    bool skip_special = true;
    hy_sampling *s = &r->sampling;
    s->bias_count = 0;
    if (!get_stream(r, fault) || !get_cuts(r, fault) || !get_lengths(r, fault) || !get_logprobs(r, fault) ||
        !get_stop(r, fault) || !get_ids(r, "stop_token_ids", vocab, &r->stop_ids, &s->stop_id_count, fault) ||
        !get_ids(r, "allowed_token_ids", vocab, &r->allowed_ids, &s->allowed_count, fault) ||
        !get_bias(r, vocab, fault) || !get_bool(r, "ignore_eos", &s->ignore_eos, fault) ||
        !get_bool(r, "include_stop_str_in_output", &s->include_stop, fault) ||
        !get_bool(r, "include_reasoning", &r->include_reasoning, fault) ||
        !get_bool(r, "return_token_ids", &r->return_token_ids, fault) ||
        !get_bool(r, "skip_special_tokens", &skip_special, fault) || !get_template(r, default_kwargs, fault) ||
        !get_tools(r, fault) || !check_parts(r, fault) || !refuse_unsupported(r, fault))
        return false;
    s->stop_ids = r->stop_ids, s->allowed_ids = r->allowed_ids;
    r->keep_special = !skip_special;
    if (r->allowed_ids && !s->allowed_count) {
        return request_refuse(fault, "allowed_token_ids", "allowed_token_ids is not None and empty!");
    }
    r->bad_words = field(r, "bad_words");
    if (r->bad_words && !json_is_array(r->bad_words)) {
        return schema(fault, "bad_words", "list_type", "Input should be a valid list");
    }
    return true;
}

void chat_request_free(chat_request *r)
{
    json_decref(r->body);
    json_decref(r->template_kwargs);
    free(r->stop);
    free(r->stop_ids);
    free(r->allowed_ids);
    free(r->bias);
    *r = (chat_request){0};
}
