#include "server/openai.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "model/model.h"
#include "server/beams.h"

enum { MAX_CHOICES = 16384, LONGEST_SALT = 1024 /* bytes; it is hashed with every prompt */ };

#define AT(member) offsetof(openai_request, member)

const request_field openai_fields[] = {
    {"model", REQUEST_STRING, AT(model), 0, 0, "a served name; null: the first one"},
    {"n", REQUEST_INTEGER, AT(n), 0, 0, "answers to each prompt, 1 to 16384"},
    {"stream", REQUEST_BOOL, AT(stream), 0, 0, "the answer comes as server-sent events"},
    {"stream_options", REQUEST_OBJECT, AT(stream_options), 0, 0, "include_usage, continuous_usage_stats"},
    {"stream_interval", REQUEST_INTEGER, AT(interval), 1, INT32_MAX, "tokens a chunk of a stream"},
    {"response_format", REQUEST_OBJECT, AT(response_format), 0, 0, "text, json_object, json_schema or structural_tag"},
    {"structured_outputs", REQUEST_OBJECT, AT(structured_outputs), 0, 0,
     "exactly one of json, regex, choice, grammar, json_object, structural_tag"},
    {"prompt_logprobs", REQUEST_INTEGER, AT(prompt_logprobs), 0, 0, "log-probabilities of the prompt's tokens"},
    {"priority", REQUEST_INTEGER, AT(priority), INT32_MIN, INT32_MAX, "smaller goes first"},
    {"cache_salt", REQUEST_STRING, AT(cache_salt), 0, 0, "cached prompts are shared within one salt"},
    {"hayate_deadline_s", REQUEST_NUMBER, AT(deadline_s), 0, 1e6, "seconds after which the request fails with 504"},
    {"return_token_ids", REQUEST_BOOL, AT(return_token_ids), 0, 0, "ids of prompt and answer are told"},
    {"return_tokens_as_token_ids", REQUEST_BOOL, AT(tokens_as_ids), 0, 0, "tokens are named token_id:N"},
    {"skip_special_tokens", REQUEST_BOOL, AT(skip_special), 0, 0, "special tokens are left out of the text"},
    {"truncate_prompt_tokens", REQUEST_INTEGER, AT(truncate), -1, INT32_MAX,
     "so many tokens of the prompt stay; -1: what fits"},
    {"truncation_side", REQUEST_STRING, AT(truncation_side), 0, 0, "left (default) or right: what is cut off"},
    {"repetition_detection", REQUEST_OBJECT, AT(repetition), 0, 0, "max_pattern_size, min_pattern_size, min_count"},
    {"speculation", REQUEST_OBJECT, AT(speculation), 0, 0, "num_speculative_tokens (0: none), rejection_sample_method"},
    {"request_id", REQUEST_IGNORED, 0, 0, 0, "name of the request, unless a header X-Request-Id has it"},
    {"user", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"spaces_between_special_tokens", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"use_beam_search", REQUEST_BOOL, AT(beam_search), 0, 0, "the n best of a beam search of n beams"},
    {"length_penalty", REQUEST_NUMBER, AT(length_penalty), 0, 0, "of beam search: the power of the length"},
    {"vllm_xargs", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"kv_transfer_params", REQUEST_REFUSED, 0, 0, 0, NULL},
    {"ec_transfer_params", REQUEST_REFUSED, 0, 0, 0, NULL},
};
const size_t openai_field_count = sizeof openai_fields / sizeof *openai_fields;

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

static bool read_stream(const json_t *body, openai_request *r, request_fault *fault)
{
    static const request_field fields[] = {
        {"include_usage", REQUEST_BOOL, AT(include_usage), 0, 0, NULL},
        {"continuous_usage_stats", REQUEST_BOOL, AT(continuous_usage), 0, 0, NULL},
    };
    (void)body;
    if (!r->stream_options) return true;
    if (!r->stream)
        return request_refuse(fault, "stream_options", "Stream options can only be defined when `stream=True`.");
    if (!request_read(r->stream_options, "body.stream_options", fields, 2, r, fault)) return false;
    r->continuous_usage &= r->include_usage;
    return true;
}

bool openai_logprobs(const generation *g, const char *name, int64_t top, int32_t *out, request_fault *fault)
{
    const server_options *o = g->room->options;
    int64_t most = o->no_logprobs ? 0 : o->max_logprobs ? o->max_logprobs : 20;
    hy_model_info info;
    hy_model_describe(g->room->model, &info);
    if (top < -1)
        return request_refuse(fault, name, "`%s` must be a positive value or -1, got %lld", name, (long long)top);
    int64_t wanted = top == -1 ? info.vocab : top;
    if (most != -1 && wanted > most)
        return request_refuse(fault, name, "Requested %s of %lld, which is greater than max allowed: %lld", name,
                              (long long)wanted, (long long)most);
    if (wanted > info.vocab)
        return request_refuse(fault, name, "Requested %s of %lld, which is greater than the vocabulary of %d", name,
                              (long long)wanted, info.vocab);
    *out = (int32_t)wanted;
    return true;
}

bool openai_check_salt(const char *salt, request_fault *fault)
{
    if (!salt) return true;
    if (!*salt)
        return request_refuse(fault, "cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.");
    if (strlen(salt) <= LONGEST_SALT) return true;
    return request_refuse(fault, "cache_salt", "cache_salt has %zu bytes, at most %d are allowed", strlen(salt),
                          LONGEST_SALT);
}

bool openai_repetition(const json_t *detection, const char *place, hy_sampling *s, request_fault *fault)
{
    struct pattern {
        int64_t max, min, count;
    } p = {0};
    static const request_field fields[] = {
        {"max_pattern_size", REQUEST_INTEGER, offsetof(struct pattern, max), 0, 4096, NULL},
        {"min_pattern_size", REQUEST_INTEGER, offsetof(struct pattern, min), 0, 4096, NULL},
        {"min_count", REQUEST_INTEGER, offsetof(struct pattern, count), 0, INT32_MAX, NULL},
    };
    if (!detection) return true;
    if (!request_read(detection, place, fields, 3, &p, fault)) return false;
    if (p.max == 0) return true;
    if (p.min == 0) p.min = 1;
    if (p.min > p.max)
        return request_refuse(fault, "repetition_detection", "min_pattern_size must be at most max_pattern_size");
    if (p.count < 2) return request_refuse(fault, "repetition_detection", "min_count must be at least 2");
    s->repeat_most = (int32_t)p.max, s->repeat_least = (int32_t)p.min, s->repeat_count = (int32_t)p.count;
    return true;
}

bool openai_thinking_budget(generation *g, int64_t budget, request_fault *fault)
{
    if (budget < 0) return true;
    if (!g->room->options->split_reasoning)
        return request_refuse(fault, "thinking_token_budget",
                              "thinking_token_budget is set but reasoning_parser is not configured. Please set "
                              "--reasoning-parser to use thinking_token_budget.");
    g->plan.sampling.s.limit_thinking = true, g->plan.sampling.s.thinking_tokens = (int32_t)budget;
    return true;
}

static bool read_truncation(const json_t *body, const openai_request *r, generation_plan *p, request_fault *fault)
{
    const char *side = r->truncation_side ? r->truncation_side : "left";
    p->truncate_right = strcmp(side, "right") == 0;
    if (!p->truncate_right && strcmp(side, "left") != 0)
        return request_refuse(fault, "truncation_side", "truncation_side must be left or right, not %.40s", side);
    if (!request_value(body, "truncate_prompt_tokens")) return true;
    if (r->truncate == 0) return request_refuse(fault, "truncate_prompt_tokens", "The decoder prompt cannot be empty");
    p->truncate = r->truncate;
    return true;
}

bool openai_read_speculation(const json_t *object, generation_plan *p, request_fault *fault)
{
    struct wanted {
        int64_t drafts;
        const char *method;
    } f = {0};
    static const request_field fields[] = {
        {"num_speculative_tokens", REQUEST_INTEGER, offsetof(struct wanted, drafts), 0, HY_MAX_DRAFTS, NULL},
        {"rejection_sample_method", REQUEST_STRING, offsetof(struct wanted, method), 0, 0, NULL},
    };
    static const char *const methods[] = {"coupled", "standard", "block", "synthetic"};
    if (!object) return true;
    if (!request_read(object, "body.speculation", fields, 2, &f, fault)) return false;
    /* A misspelt member would be an answer that is made in another way than was asked for. */
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        if (strcmp(name, fields[0].name) != 0 && strcmp(name, fields[1].name) != 0)
            return request_refuse(fault, "speculation",
                                  "speculation has no member %.60s: it takes num_speculative_tokens and "
                                  "rejection_sample_method",
                                  name);
    }
    if (request_value(object, "num_speculative_tokens")) p->drafts = f.drafts ? (int)f.drafts : -1;
    for (size_t i = 0; f.method && i < sizeof methods / sizeof *methods; i++)
        if (strcmp(f.method, methods[i]) == 0) p->draft_method = methods[i];
    if (!f.method || p->draft_method) return true;
    return request_refuse(fault, "speculation",
                          "rejection_sample_method must be coupled, standard, block or synthetic, not %.40s", f.method);
}

/* A search ranks what the model says: whatever steers the draw of tokens, or looks at a text that goes on, has no place
 * in it. Temperature and the cuts have none either, and belong to every server's defaults. */
static bool check_beams(const json_t *body, const openai_request *r, const generation_plan *p, request_fault *fault)
{
    const hy_sampling *s = &p->sampling.s;
    const struct {
        const char *name;
        bool given;
    } others[] = {{"stop", s->stop_count > 0},
                  {"min_tokens", s->min_tokens > 0},
                  {"logit_bias", s->bias_count > 0},
                  {"allowed_token_ids", s->allowed_count > 0},
                  {"bad_words", s->bad_word_count > 0},
                  {"logprob_token_ids", s->logprob_id_count > 0},
                  {"repetition_penalty", request_value(body, "repetition_penalty") && s->repetition_penalty != 1},
                  {"frequency_penalty", request_value(body, "frequency_penalty") && s->frequency_penalty != 0},
                  {"presence_penalty", request_value(body, "presence_penalty") && s->presence_penalty != 0},
                  {"repetition_detection", s->repeat_most > 0},
                  {p->grammar.outputs ? "structured_outputs" : "response_format", p->grammar.any},
                  {"prompt_logprobs", p->prompt_logprobs >= 0}};
    if (!r->beam_search) return true;
    if (r->stream) return request_refuse(fault, "stream", "Streaming is not supported with beam search");
    if (r->n > BEAMS_MOST)
        return request_refuse(fault, "n", "beam search has at most %d beams, n asks for %lld", BEAMS_MOST,
                              (long long)r->n);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].given)
            return request_refuse(fault, others[i].name, "%s cannot be used with beam search", others[i].name);
    return true;
}

bool openai_read(generation *g, json_t *body, openai_request *r, request_fault *fault)
{
    generation_plan *p = &g->plan;
    const server_options *o = g->room->options;
    const int most = o->max_choices > 0 && o->max_choices < MAX_CHOICES ? o->max_choices : MAX_CHOICES;
    *r = (openai_request){.n = 1,
                          .length_penalty = 1,
                          .interval = o->stream_interval > 0 ? o->stream_interval : 1,
                          .skip_special = true,
                          .tokens_as_ids = o->tokens_as_ids};
    if (!request_read(body, "body", openai_fields, openai_field_count, r, fault) || !read_stream(body, r, fault))
        return false;
    if (r->n < 1 || r->n > most)
        return request_refuse(fault, "n", "n must be between 1 and %d, got %lld", most, (long long)r->n);
    r->has_prompt_logprobs = request_value(body, "prompt_logprobs") != NULL;
    if (r->has_prompt_logprobs && r->stream && (r->prompt_logprobs > 0 || r->prompt_logprobs == -1))
        return request_refuse(fault, "prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
    if (r->has_prompt_logprobs &&
        !openai_logprobs(g, "prompt_logprobs", r->prompt_logprobs, &p->prompt_logprobs, fault))
        return false;
    if (!openai_check_salt(r->cache_salt, fault) || !read_truncation(body, r, p, fault) ||
        !request_sampling_read(body, g->room->model, &g->room->defaults, &p->sampling, fault) ||
        !openai_repetition(r->repetition, "body.repetition_detection", &p->sampling.s, fault) ||
        !openai_read_speculation(r->speculation, p, fault) ||
        !request_response_format(r->response_format, &p->grammar, fault) ||
        !request_structured_outputs(r->structured_outputs, &p->grammar, fault))
        return false;
    if (!check_beams(body, r, p, fault)) return false;
    p->beam_search = r->beam_search, p->length_penalty = r->length_penalty;
    p->n = (int32_t)r->n, p->priority = (int32_t)r->priority, p->interval = (int32_t)r->interval;
    p->deadline_s = r->deadline_s, p->keep_special = !r->skip_special;
    p->stream = r->stream, p->every_token = r->return_token_ids;
    p->salt = r->cache_salt ? memory_string(r->cache_salt, strlen(r->cache_salt)) : NULL;
    p->model = r->model ? memory_string(r->model, strlen(r->model)) : NULL;
    if (g->room->options->force_include_usage && r->stream) r->include_usage = true;
    return true;
}

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

void openai_write_head(json_writer *w, const generation *g, const char *object)
{
    writer_object(w);
    writer_key(w, "id"), writer_text(w, g->id);
    writer_key(w, "object"), writer_text(w, object);
    writer_key(w, "created"), writer_integer(w, g->created);
    writer_key(w, "model"), writer_text(w, g->model);
    writer_key(w, "choices");
    writer_array(w);
}

double openai_logprob(float x)
{
    return isfinite(x) && x > -9999.0f ? (double)x : -9999.0;
}

/* The text of a token, or its name in `name`. */
static const char *token_text(const generation *g, int32_t token, bool as_id, char name[32], size_t *length)
{
    if (!as_id) return text_tokenizer_bytes(model_tokenizer(g->room->model), token, length);
    *length = (size_t)snprintf(name, 32, "token_id:%d", token);
    return name;
}

void openai_write_token_text(json_writer *w, const generation *g, int32_t token, bool as_id)
{
    char name[32];
    size_t length;
    const char *text = token_text(g, token, as_id, name, &length);
    writer_string(w, text, length);
}

void openai_write_token_key(json_writer *w, const generation *g, int32_t token, bool as_id)
{
    char name[32];
    size_t length;
    const char *text = token_text(g, token, as_id, name, &length);
    writer_key_string(w, text, length);
}

static void write_logprob(json_writer *w, const generation *g, bool as_id, hy_logprob p)
{
    size_t length;
    const char *bytes = text_tokenizer_bytes(model_tokenizer(g->room->model), p.token, &length);
    writer_key(w, "token"), openai_write_token_text(w, g, p.token, as_id);
    writer_key(w, "logprob"), writer_number(w, openai_logprob(p.logprob));
    writer_key(w, "bytes");
    writer_array(w);
    for (size_t i = 0; i < length; i++) writer_integer(w, (unsigned char)bytes[i]);
    writer_end(w);
}

void openai_write_logprobs(json_writer *w, const generation *g, const generation_step *step, bool as_ids)
{
    writer_key(w, "logprobs");
    if (!step) {
        writer_null(w);
        return;
    }
    writer_object(w);
    writer_key(w, "content");
    writer_array(w);
    for (size_t i = 0; i < step->id_count; i++) {
        const hy_logprob *p = step->logprobs + i * step->logprob_stride;
        writer_object(w);
        write_logprob(w, g, as_ids, p[0]);
        writer_key(w, "top_logprobs");
        writer_array(w);
        for (size_t j = 1; j < step->logprob_stride; j++) {
            if (p[j].token < 0) continue;
            writer_object(w);
            write_logprob(w, g, as_ids, p[j]);
            writer_end(w);
        }
        writer_end(w);
        writer_end(w);
    }
    writer_end(w);
    writer_end(w);
}

void openai_write_ids(json_writer *w, const char *key, const int32_t *ids, size_t count)
{
    writer_key(w, key);
    if (!ids) {
        writer_null(w);
        return;
    }
    writer_array(w);
    for (size_t i = 0; i < count; i++) writer_integer(w, ids[i]);
    writer_end(w);
}

/* What of the prompt was not computed, and why not more. */
static void write_reuse(json_writer *w, const generation *g, const generation_usage *u)
{
    writer_key(w, "prompt_tokens_details");
    if (!u->reuse_known || !g->room->options->prompt_tokens_details) {
        writer_null(w);
        return;
    }
    writer_object(w);
    writer_key(w, "cached_tokens"), writer_integer(w, u->reuse.tokens);
    writer_key(w, "hayate_miss"), writer_text(w, u->reuse.miss[0] ? u->reuse.miss : NULL);
    writer_end(w);
}

void openai_write_drafts(json_writer *w, int64_t rounds, int64_t drafts, int64_t accepted)
{
    if (rounds == 0) return;
    writer_key(w, "hayate_drafts");
    writer_object(w);
    writer_key(w, "rounds"), writer_integer(w, rounds);
    writer_key(w, "drafted"), writer_integer(w, drafts);
    writer_key(w, "accepted"), writer_integer(w, accepted);
    writer_end(w);
}

void openai_write_usage(json_writer *w, const generation *g, int index, bool details)
{
    generation_usage u = generation_usage_of(g, index);
    writer_key(w, "usage");
    writer_object(w);
    writer_key(w, "prompt_tokens"), writer_unsigned(w, u.prompt_tokens);
    writer_key(w, "total_tokens"), writer_unsigned(w, u.prompt_tokens + u.completion_tokens);
    writer_key(w, "completion_tokens"), writer_unsigned(w, u.completion_tokens);
    if (details) write_reuse(w, g, &u);
    if (details) openai_write_drafts(w, u.draft_rounds, u.drafts, u.drafts_accepted);
    writer_end(w);
}

void openai_write_stop_reason(json_writer *w, const generation_step *step)
{
    writer_key(w, "stop_reason");
    if (step->stop_string)
        writer_text(w, step->stop_string);
    else if (step->stop_id >= 0)
        writer_integer(w, step->stop_id);
    else
        writer_null(w);
}

void openai_write_fingerprint(json_writer *w, const generation *g)
{
    writer_key(w, "system_fingerprint"), writer_text(w, g->room->fingerprint);
}

void openai_write_metrics(json_writer *w, const generation *g)
{
    writer_key(w, "metrics");
    if (!g->room->options->request_metrics || g->choices != 1) {
        writer_null(w);
        return;
    }
    generation_times t = generation_times_of(g);
    size_t made = generation_usage_of(g, -1).completion_tokens;
    writer_object(w);
    writer_key(w, "time_to_first_token_ms"), writer_number(w, t.first_token_s * 1e3);
    writer_key(w, "generation_time_ms"), writer_number(w, t.generation_s * 1e3);
    writer_key(w, "queue_time_ms"), writer_number(w, t.queue_s * 1e3);
    writer_key(w, "mean_itl_ms"), writer_number(w, made > 1 ? t.generation_s * 1e3 / (double)(made - 1) : 0);
    writer_key(w, "tokens_per_second"), writer_number(w, t.total_s > 0 ? (double)made / t.total_s : 0);
    writer_end(w);
}

/* What a prompt's token was given: itself first, then the best; of those the rank is their place. */
static void write_scores(json_writer *w, const generation *g, const hy_logprob *p, size_t stride, int32_t rank)
{
    writer_object(w);
    for (size_t j = 0; j < stride; j++) {
        char key[16];
        if (p[j].token < 0 || (j > 0 && p[j].token == p[0].token)) continue;
        int length = snprintf(key, sizeof key, "%d", p[j].token);
        writer_key_string(w, key, (size_t)length);
        writer_object(w);
        writer_key(w, "logprob"), writer_number(w, openai_logprob(p[j].logprob));
        writer_key(w, "rank"), writer_integer(w, j ? (int64_t)j : rank);
        writer_key(w, "decoded_token"), openai_write_token_text(w, g, p[j].token, false);
        writer_end(w);
    }
    writer_end(w);
}

static void write_json(json_writer *w, const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (text)
        writer_raw(w, text, strlen(text));
    else
        writer_null(w);
    free(text);
}

void openai_write_transfer(json_writer *w, const generation *g)
{
    writer_key(w, "kv_transfer_params"), write_json(w, g->plan.given_transfer);
}

void openai_write_prompt_logprobs(json_writer *w, const generation *g, size_t prompt)
{
    size_t count = 0, stride = 0;
    const int32_t *ranks = NULL;
    const hy_logprob *p = generation_prompt_logprobs(g, prompt, &stride, &ranks);
    generation_prompt_ids(g, prompt, &count);
    writer_key(w, "prompt_logprobs");
    if (g->plan.given_count) {
        write_json(w, json_array_get(g->plan.given_prompt_logprobs, prompt));
        return;
    }
    if (!p) {
        writer_null(w);
        return;
    }
    writer_array(w);
    writer_null(w);
    for (size_t i = 0; i + 1 < count; i++) write_scores(w, g, p + i * stride, stride, ranks[i]);
    writer_end(w);
}

/* ---- Routes ----------------------------------------------------------------------------------------------------- */

static void base64(const unsigned char *data, size_t count, buffer *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        size_t left = count - i;
        unsigned bits =
            (unsigned)data[i] << 16 | (left > 1 ? (unsigned)data[i + 1] << 8 : 0) | (left > 2 ? data[i + 2] : 0);
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63], left > 1 ? digits[bits >> 6 & 63] : '=',
                        left > 2 ? digits[bits & 63] : '='};
        buffer_append(out, four, 4);
    }
}

/* A NumPy file, version 1: magic, version, length of the header, header with spaces up to a multiple of 64, data. */
static void numpy(buffer *out, const uint16_t *routes, size_t tokens, int32_t layers, int32_t experts, bool wide)
{
    char header[128];
    int used = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%zu, %d, %d), }",
                        wide ? "<u2" : "|u1", tokens, layers, experts);
    enum { BEFORE = 10, HEADER = 118 }; /* together 128 */
    memset(header + used, ' ', (size_t)(HEADER - used));
    header[HEADER - 1] = '\n';
    buffer_append(out, "\x93NUMPY\x01\x00", 8);
    buffer_append(out, (const char[2]){HEADER, 0}, BEFORE - 8);
    buffer_append(out, header, HEADER);
    for (size_t i = 0; i < tokens * (size_t)layers * (size_t)experts; i++) {
        unsigned char bytes[2] = {(unsigned char)(routes[i] & 255), (unsigned char)(routes[i] >> 8)};
        buffer_append(out, bytes, wide ? 2 : 1);
    }
}

void openai_write_routes(json_writer *w, const generation *g, const generation_step *step)
{
    const hy_result *r = step->result;
    writer_key(w, "routed_experts");
    size_t tokens = r ? r->prompt_count + r->id_count : 0, skip = (size_t)g->plan.routes_start;
    if (!r || !r->routes || tokens < 1) {
        writer_null(w);
        return;
    }
    if (skip > r->prompt_count) skip = r->prompt_count;
    if (skip > tokens - 1) skip = tokens - 1;
    buffer file = {0}, text = {0};
    size_t each = (size_t)r->route_layers * (size_t)r->route_experts;
    bool wide = model_ops_model(g->room->model)->experts > 256;
    numpy(&file, r->routes + skip * each, tokens - 1 - skip, r->route_layers, r->route_experts, wide);
    base64((const unsigned char *)file.data, file.length, &text);
    writer_string(w, text.data ? text.data : "", text.length);
    buffer_free(&file), buffer_free(&text);
}

/* ---- Streams ---------------------------------------------------------------------------------------------------- */

void openai_load_header(const generation *g)
{
    const char *format = g->x ? http_header(g->x, "endpoint-load-metrics-format") : NULL;
    bool json = format && strcasecmp(format, "json") == 0;
    if (!json && !(format && strcasecmp(format, "text") == 0)) return;
    hy_engine_stats s;
    hy_engine_describe(g->room->engine, &s);
    char used[32], value[192];
    json_format_number(s.cache_usage, used);
    snprintf(value, sizeof value,
             json ? "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": %s, \"num_requests_waiting\": %d}}"
                  : "TEXT named_metrics.kv_cache_usage_perc=%s, named_metrics.num_requests_waiting=%d",
             used, s.waiting);
    http_reply_header(g->x, "endpoint-load-metrics", value);
}

void openai_send(generation *g, buffer *event)
{
    if (g->x && buffer_ok(event)) http_stream_event(g->x, event->data, event->length);
    buffer_free(event);
}

void openai_end_stream(generation *g, const char *object, bool include_usage)
{
    if (include_usage) {
        buffer event = {0};
        json_writer w = {.out = &event};
        openai_write_head(&w, g, object);
        writer_end(&w);
        openai_write_fingerprint(&w, g);
        openai_write_usage(&w, g, -1, true);
        if (g->room->options->request_metrics) openai_write_metrics(&w, g);
        writer_end(&w);
        openai_send(g, &event);
    }
    http_stream_event(g->x, "[DONE]", 6);
    http_stream_end(g->x);
    g->x = NULL;
}
