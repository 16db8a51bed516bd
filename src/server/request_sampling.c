#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/request_fields.h"

enum { MAX_STOPS = 64, MAX_IDS = 65536, MAX_BAD_WORDS = 256, MAX_SCORES = 128 };

/* What the table reads; lists by hand. */
struct read {
    double temperature, top_p, min_p, repetition, frequency, presence;
    int64_t top_k, seed, min_tokens;
    bool include_stop, ignore_eos;
    json_t *stop, *stop_ids, *bias, *allowed, *bad_words, *logprob_ids;
};

#define AT(member) offsetof(struct read, member)

const request_field request_sampling_fields[] = {
    {"temperature", REQUEST_NUMBER, AT(temperature), 0, 2, "below 1e-5 the likeliest token is taken"},
    {"top_p", REQUEST_NUMBER, AT(top_p), 0, 1, "above 0; tokens that together have this probability stay"},
    {"top_k", REQUEST_INTEGER, AT(top_k), -1, INT32_MAX, "so many likeliest tokens stay; 0 and -1: all"},
    {"min_p", REQUEST_NUMBER, AT(min_p), 0, 1, "tokens with this part of the likeliest one's probability stay"},
    {"repetition_penalty", REQUEST_NUMBER, AT(repetition), 0, 1e6, "above 0; over prompt and output"},
    {"frequency_penalty", REQUEST_NUMBER, AT(frequency), -2, 2, "per occurrence in the output"},
    {"presence_penalty", REQUEST_NUMBER, AT(presence), -2, 2, "once per token of the output"},
    {"seed", REQUEST_INTEGER, AT(seed), 0, 0, "same seed, same answer; -1 draws one"},
    {"min_tokens", REQUEST_INTEGER, AT(min_tokens), 0, INT32_MAX, "no end before so many tokens"},
    {"stop", REQUEST_ANY, AT(stop), 0, 0, "a string or a list of them, at most 64"},
    {"stop_token_ids", REQUEST_LIST, AT(stop_ids), 0, 0, "tokens that end the text"},
    {"include_stop_str_in_output", REQUEST_BOOL, AT(include_stop), 0, 0, "the stop string stays in the text"},
    {"ignore_eos", REQUEST_BOOL, AT(ignore_eos), 0, 0, "the model's own end does not end it"},
    {"logit_bias", REQUEST_OBJECT, AT(bias), 0, 0, "token id to a number, clamped to -100 .. 100"},
    {"allowed_token_ids", REQUEST_LIST, AT(allowed), 0, 0, "nothing else can be chosen"},
    {"logprob_token_ids", REQUEST_LIST, AT(logprob_ids), 0, 0, "with logprobs: tokens that are told too, at most 128"},
    {"bad_words", REQUEST_LIST, AT(bad_words), 0, 0, "texts that cannot be written"},
};
const size_t request_sampling_field_count = sizeof request_sampling_fields / sizeof *request_sampling_fields;

/* ---- Lists ------------------------------------------------------------------------------------------------------ */

static bool no_memory(request_fault *fault)
{
    return request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
}

static bool read_ids(const json_t *v, const char *name, int vocab, int32_t **ids, size_t *count, request_fault *fault)
{
    if (!v) return true;
    size_t n = json_array_size(v);
    if (n > MAX_IDS) return request_refuse(fault, name, "%s has %zu ids, at most %d are allowed", name, n, MAX_IDS);
    free(*ids);
    *ids = malloc((n + 1) * sizeof **ids);
    if (!*ids) return no_memory(fault);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(v, i);
        if (!json_is_integer(id))
            return request_schema(fault, "body", name, "int_type", "Input should be a valid integer");
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

static void free_stop(request_sampling *r)
{
    for (size_t i = 0; i < r->s.stop_count; i++) free(r->stop[i]);
    free(r->stop);
    r->stop = NULL, r->s.stop = NULL, r->s.stop_count = 0;
}

static bool read_stop(const json_t *v, request_sampling *r, request_fault *fault)
{
    if (!v) return true;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > MAX_STOPS)
        return request_refuse(fault, "stop", "stop has %zu strings, at most %d are allowed", n, MAX_STOPS);
    free_stop(r);
    r->stop = calloc(n + 1, sizeof *r->stop);
    if (!r->stop) return no_memory(fault);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s))
            return request_schema(fault, "body", "stop", "string_type", "Input should be a valid string");
        if (json_string_length(s) == 0) return request_refuse(fault, "stop", "stop cannot contain an empty string.");
        if (strlen(json_string_value(s)) != json_string_length(s))
            return request_refuse(fault, "stop", "stop cannot contain a NUL character");
        r->stop[i] = memory_string(json_string_value(s), json_string_length(s));
        if (!r->stop[i]) return no_memory(fault);
        r->s.stop_count = i + 1;
    }
    r->s.stop = (const char *const *)r->stop;
    return true;
}

static bool read_bias(json_t *v, int vocab, request_sampling *r, request_fault *fault)
{
    const char *key;
    json_t *value;
    if (!v) return true;
    free(r->bias);
    r->s.bias = NULL, r->s.bias_count = 0;
    r->bias = calloc(json_object_size(v) + 1, sizeof *r->bias);
    if (!r->bias) return no_memory(fault);
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
        if (!json_is_number(value))
            return request_schema(fault, "body", "logit_bias", "float_type", "Input should be a valid number");
        double b = json_number_value(value);
        r->bias[r->s.bias_count++] = (hy_token_bias){(int32_t)id, (float)(b < -100 ? -100 : b > 100 ? 100 : b)};
    }
    r->s.bias = r->bias;
    return true;
}

static void free_bad_words(request_sampling *r)
{
    for (size_t i = 0; i < r->s.bad_word_count; i++) hy_ids_free(&r->bad_words[i]);
    free(r->bad_words);
    free(r->bad_word_ids);
    free(r->bad_word_lengths);
    r->bad_words = NULL, r->bad_word_ids = NULL, r->bad_word_lengths = NULL;
    r->s.bad_words = NULL, r->s.bad_word_lengths = NULL, r->s.bad_word_count = 0;
}

/* Each word is forbidden at the start of a text and after a space. */
static bool read_bad_words(const json_t *v, const hy_model *model, request_sampling *r, request_fault *fault)
{
    if (!v) return true;
    size_t n = json_array_size(v);
    if (n > MAX_BAD_WORDS) {
        return request_refuse(fault, "bad_words", "bad_words has %zu words, at most %d are allowed", n, MAX_BAD_WORDS);
    }
    free_bad_words(r);
    r->bad_words = calloc(2 * n + 1, sizeof *r->bad_words);
    r->bad_word_ids = calloc(2 * n + 1, sizeof *r->bad_word_ids);
    r->bad_word_lengths = calloc(2 * n + 1, sizeof *r->bad_word_lengths);
    if (!r->bad_words || !r->bad_word_ids || !r->bad_word_lengths) return no_memory(fault);
    for (size_t i = 0; i < 2 * n; i++) {
        const json_t *word = json_array_get(v, i / 2);
        if (!json_is_string(word) || json_string_length(word) == 0)
            return request_refuse(fault, "bad_words", "bad_words must hold non-empty strings");
        buffer text = {0};
        if (i % 2) buffer_char(&text, ' ');
        buffer_append(&text, json_string_value(word), json_string_length(word));
        hy_error err = {0};
        hy_ids *ids = &r->bad_words[r->s.bad_word_count];
        hy_status s = hy_tokenize(model, text.data, text.length, ids, &err);
        buffer_free(&text);
        if (s != HY_OK) return request_refuse(fault, "bad_words", "%s", err.message);
        r->bad_word_ids[r->s.bad_word_count] = ids->data;
        r->bad_word_lengths[r->s.bad_word_count++] = ids->count;
    }
    r->s.bad_words = r->bad_word_ids, r->s.bad_word_lengths = r->bad_word_lengths;
    return true;
}

/* ---- All of it -------------------------------------------------------------------------------------------------- */

static bool check_numbers(const struct read *f, hy_sampling *s, request_fault *fault)
{
    if (f->top_p <= 0) return request_refuse(fault, "top_p", "top_p must be in (0, 1], got 0");
    if (f->repetition <= 0) {
        return request_refuse(fault, "repetition_penalty", "repetition_penalty must be greater than zero, got %g",
                              f->repetition);
    }
    s->temperature = (float)f->temperature, s->top_p = (float)f->top_p, s->min_p = (float)f->min_p;
    s->repetition_penalty = (float)f->repetition, s->frequency_penalty = (float)f->frequency;
    s->presence_penalty = (float)f->presence;
    if (!(s->repetition_penalty > 0 && s->top_p > 0)) /* too small for a float */
        return request_refuse(fault, s->top_p > 0 ? "repetition_penalty" : "top_p", "the value is too small");
    if (s->temperature >= 1e-5f && s->temperature < 0.01f) {
        log_line(HY_LOG_WARNING, "temperature %g is raised to 0.01", f->temperature);
        s->temperature = 0.01f;
    }
    s->top_k = (int32_t)f->top_k, s->seed = f->seed, s->min_tokens = (int32_t)f->min_tokens;
    s->include_stop = f->include_stop, s->ignore_eos = f->ignore_eos;
    return true;
}

bool request_sampling_read(const json_t *body, const hy_model *model, const hy_sampling *d, request_sampling *r,
                           request_fault *fault)
{
    struct read f = {.temperature = (double)d->temperature,
                     .top_p = (double)d->top_p,
                     .min_p = (double)d->min_p,
                     .repetition = (double)d->repetition_penalty,
                     .frequency = (double)d->frequency_penalty,
                     .presence = (double)d->presence_penalty,
                     .top_k = d->top_k,
                     .seed = d->seed,
                     .min_tokens = d->min_tokens,
                     .include_stop = d->include_stop,
                     .ignore_eos = d->ignore_eos};
    hy_model_info info;
    hy_model_describe(model, &info);
    hy_sampling *s = &r->s;
    s->logprobs = d->logprobs;
    if (!request_read(body, "body", request_sampling_fields, request_sampling_field_count, &f, fault) ||
        !check_numbers(&f, s, fault) || !read_stop(f.stop, r, fault) ||
        !read_ids(f.stop_ids, "stop_token_ids", info.vocab, &r->stop_ids, &s->stop_id_count, fault) ||
        !read_ids(f.allowed, "allowed_token_ids", info.vocab, &r->allowed_ids, &s->allowed_count, fault) ||
        !read_ids(f.logprob_ids, "logprob_token_ids", info.vocab, &r->logprob_ids, &s->logprob_id_count, fault) ||
        !read_bias(f.bias, info.vocab, r, fault) || !read_bad_words(f.bad_words, model, r, fault))
        return false;
    if (f.allowed && !s->allowed_count)
        return request_refuse(fault, "allowed_token_ids", "allowed_token_ids is not None and empty!");
    if (s->logprob_id_count > MAX_SCORES)
        return request_refuse(fault, "logprob_token_ids", "logprob_token_ids has %zu ids, at most %d are allowed",
                              s->logprob_id_count, MAX_SCORES);
    s->stop_ids = r->stop_ids, s->allowed_ids = r->allowed_ids, s->logprob_ids = r->logprob_ids;
    s->logprobs_mode = d->logprobs_mode;
    return true;
}

bool request_lengths_check(request_sampling *r, const char *name, bool given, int64_t most, request_fault *fault)
{
    if (given && (most < 1 || most > INT32_MAX))
        return request_refuse(fault, name, "%s must be at least 1, got %lld", name, (long long)most);
    if (given && r->s.min_tokens > most) {
        return request_refuse(fault, "min_tokens", "min_tokens must be less than or equal to max_tokens=%lld, got %d",
                              (long long)most, r->s.min_tokens);
    }
    r->max_tokens = given ? most : 0, r->s.max_tokens = (int32_t)r->max_tokens;
    return true;
}

void request_sampling_free(request_sampling *r)
{
    free_stop(r);
    free_bad_words(r);
    free(r->stop_ids);
    free(r->allowed_ids);
    free(r->logprob_ids);
    free(r->bias);
    *r = (request_sampling){0};
}
