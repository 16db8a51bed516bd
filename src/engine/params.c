#include "engine/params.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

hy_sampling hy_sampling_defaults(const hy_model *model)
{
    const model_generation *g = model_generation_config(model);
    return (hy_sampling){
        .temperature = g->temperature,
        .top_p = g->top_p,
        .top_k = g->top_k,
        .min_p = g->min_p,
        .repetition_penalty = g->repetition_penalty,
        .seed = -1,
        .logprobs = -1,
    };
}

/* ---- Ranges --------------------------------------------------------------------------------------------------- */

static hy_status range(hy_error *err, const char *name, double value, const char *allowed)
{
    return error_at(err, HY_BAD_INPUT, name, "%s must be %s, not %g", name, allowed, value);
}

/* How many best there may be beside a token's own. */
static hy_status check_best(const char *name, int32_t n, int32_t least, int32_t vocab, hy_error *err)
{
    if (n >= least && n <= vocab) return HY_OK;
    return error_at(err, HY_BAD_INPUT, name, "%s must be in 0 .. %d, the size of the vocabulary%s, not %d", name, vocab,
                    least < 0 ? ", or -1 for none" : "", n);
}

static hy_status check_numbers(const hy_sampling *s, int32_t vocab, hy_error *err)
{
    double t = s->temperature, p = s->top_p, m = s->min_p;
    double r = s->repetition_penalty, f = s->frequency_penalty, e = s->presence_penalty;
    if (!(t >= 0 && t <= 2)) return range(err, "temperature", t, "in 0 .. 2");
    if (!(p > 0 && p <= 1)) return range(err, "top_p", p, "above 0 and at most 1");
    if (s->top_k < -1) return range(err, "top_k", s->top_k, "at least 1, or 0 or -1 for off");
    if (!(m >= 0 && m <= 1)) return range(err, "min_p", m, "in 0 .. 1");
    if (!(r > 0 && isfinite(r))) return range(err, "repetition_penalty", r, "a finite number above 0");
    if (!(f >= -2 && f <= 2)) return range(err, "frequency_penalty", f, "in -2 .. 2");
    if (!(e >= -2 && e <= 2)) return range(err, "presence_penalty", e, "in -2 .. 2");
    if (s->max_tokens < 0) return range(err, "max_tokens", s->max_tokens, "at least 1, or 0 for as many as fit");
    if (s->min_tokens < 0) return range(err, "min_tokens", s->min_tokens, "at least 0");
    if (s->max_tokens > 0 && s->min_tokens > s->max_tokens)
        return error_at(err, HY_BAD_INPUT, "min_tokens", "min_tokens must be at most max_tokens, which is %d, not %d",
                        s->max_tokens, s->min_tokens);
    if ((int)s->logprobs_mode < HY_RAW_LOGPROBS || (int)s->logprobs_mode > HY_PROCESSED_LOGITS)
        return range(err, "logprobs_mode", (int)s->logprobs_mode, "one of the four of hy_logprobs_mode, 0 .. 3");
    hy_status status = check_best("logprobs", s->logprobs, -1, vocab, err);
    if (status == HY_OK && s->score_prompt) status = check_best("prompt_logprobs", s->prompt_logprobs, 0, vocab, err);
    if (status != HY_OK) return status;
    if (s->limit_thinking && s->thinking_tokens < 0)
        return range(err, "thinking_tokens", s->thinking_tokens, "at least 0");
    if (s->repeat_most < 0 || s->repeat_most > PARAMS_MAX_PATTERN)
        return range(err, "repeat_most", s->repeat_most, "in 0 .. 4096");
    if (s->repeat_most > 0 && (s->repeat_least < 1 || s->repeat_least > s->repeat_most))
        return range(err, "repeat_least", s->repeat_least, "at least 1 and at most repeat_most");
    if (s->repeat_most > 0 && s->repeat_count < 2) return range(err, "repeat_count", s->repeat_count, "at least 2");
    return HY_OK;
}

static hy_status check_list(const char *name, size_t count, const void *list, hy_error *err)
{
    if (count > PARAMS_MAX_LIST)
        return error_at(err, HY_BAD_INPUT, name, "%s has %zu entries; at most %d are taken", name, count,
                        PARAMS_MAX_LIST);
    if (count > 0 && !list) return error_at(err, HY_BAD_INPUT, name, "%s has %zu entries and no list", name, count);
    return HY_OK;
}

static hy_status check_ids(const char *name, const int32_t *ids, size_t count, int32_t vocab, hy_error *err)
{
    hy_status status = check_list(name, count, ids, err);
    if (status != HY_OK) return status;
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return error_at(err, HY_BAD_INPUT, name, "%s has token id %d; ids of this model are 0 .. %d", name, ids[i],
                            vocab - 1);
    return HY_OK;
}

static hy_status check_stop(const hy_sampling *s, bool has_text, hy_error *err)
{
    hy_status status = check_list("stop", s->stop_count, s->stop, err);
    if (status == HY_OK) status = check_list("stop_ids", s->stop_id_count, s->stop_ids, err);
    if (status != HY_OK) return status;
    if (s->stop_count > 0 && !has_text)
        return error_at(err, HY_BAD_INPUT, "stop",
                        "stop strings need a tokenizer, which this model has not: use stop_ids");
    for (size_t i = 0; i < s->stop_count; i++)
        if (!s->stop[i] || !s->stop[i][0])
            return error_at(err, HY_BAD_INPUT, "stop", "stop has an empty string: it would end every text at once");
    return HY_OK;
}

static hy_status check_bias(const hy_sampling *s, int32_t vocab, hy_error *err)
{
    hy_status status = check_list("bias", s->bias_count, s->bias, err);
    if (status != HY_OK) return status;
    for (size_t i = 0; i < s->bias_count; i++) {
        const hy_token_bias *b = &s->bias[i];
        if (b->token < 0 || b->token >= vocab)
            return error_at(err, HY_BAD_INPUT, "bias", "bias has token id %d; ids of this model are 0 .. %d", b->token,
                            vocab - 1);
        if (!(b->bias >= -100 && b->bias <= 100)) return range(err, "bias", (double)b->bias, "in -100 .. 100");
    }
    return HY_OK;
}

static hy_status check_bad_words(const hy_sampling *s, int32_t vocab, hy_error *err)
{
    hy_status status = check_list("bad_words", s->bad_word_count, s->bad_words, err);
    if (status == HY_OK) status = check_list("bad_words", s->bad_word_count, s->bad_word_lengths, err);
    for (size_t i = 0; status == HY_OK && i < s->bad_word_count; i++) {
        if (s->bad_word_lengths[i] == 0)
            return error_at(err, HY_BAD_INPUT, "bad_words", "bad_words has an empty sequence");
        status = check_ids("bad_words", s->bad_words[i], s->bad_word_lengths[i], vocab, err);
    }
    return status;
}

/* hy_grammar is the public name of a text_grammar. */
static const text_grammar *grammar_of(const hy_sampling *s)
{
    return (const text_grammar *)s->grammar;
}

hy_status params_check(const hy_sampling *s, int32_t vocab, const text_tokenizer *tok, hy_error *err)
{
    hy_status status = check_numbers(s, vocab, err);
    if (status == HY_OK && s->grammar && text_grammar_tokenizer(grammar_of(s)) != tok)
        status = error_at(err, HY_BAD_INPUT, "grammar", "the grammar was compiled for another model's tokens");
    if (status == HY_OK) status = check_stop(s, tok != NULL, err);
    if (status == HY_OK) status = check_ids("allowed_ids", s->allowed_ids, s->allowed_count, vocab, err);
    if (status == HY_OK) status = check_ids("logprob_ids", s->logprob_ids, s->logprob_id_count, vocab, err);
    if (status == HY_OK && s->logprob_id_count > PARAMS_MAX_SCORES)
        status = error_at(err, HY_BAD_INPUT, "logprob_ids", "logprob_ids has %zu ids; at most %d are taken",
                          s->logprob_id_count, PARAMS_MAX_SCORES);
    if (status == HY_OK) status = check_bias(s, vocab, err);
    if (status == HY_OK) status = check_bad_words(s, vocab, err);
    return status;
}

/* ---- The copy ------------------------------------------------------------------------------------------------- */

/* One piece of memory filled from the front. The first pass, without memory, only counts; lists are at most 2^20
 * entries each and lie in memory already, so their sum cannot overflow. */
struct arena {
    char *memory;
    size_t used;
};

static void *put(struct arena *a, const void *from, size_t bytes)
{
    void *to = a->memory ? a->memory + a->used : NULL;
    if (to && from && bytes) memcpy(to, from, bytes);
    a->used += (bytes + 7) & ~(size_t)7;
    return to;
}

static void put_stop(struct arena *a, const hy_sampling *s, params *out)
{
    const char **string = put(a, NULL, s->stop_count * sizeof *string);
    size_t *length = put(a, NULL, s->stop_count * sizeof *length);
    for (size_t i = 0; i < s->stop_count; i++) {
        size_t n = strlen(s->stop[i]);
        const char *copy = put(a, s->stop[i], n + 1);
        if (copy) string[i] = copy, length[i] = n;
    }
    out->s.stop = string;
    out->stop = (stop_strings){string, length, s->stop_count};
}

static void put_bad_words(struct arena *a, const hy_sampling *s, params *out)
{
    const int32_t **word = put(a, NULL, s->bad_word_count * sizeof *word);
    out->s.bad_word_lengths = put(a, s->bad_word_lengths, s->bad_word_count * sizeof *s->bad_word_lengths);
    for (size_t i = 0; i < s->bad_word_count; i++) {
        const int32_t *copy = put(a, s->bad_words[i], s->bad_word_lengths[i] * sizeof *copy);
        if (copy) word[i] = copy;
    }
    out->s.bad_words = word;
}

static void put_all(struct arena *a, const hy_sampling *s, const int32_t *eos, int eos_count, params *out)
{
    put_stop(a, s, out);
    put_bad_words(a, s, out);
    out->s.allowed_ids = put(a, s->allowed_ids, s->allowed_count * sizeof *s->allowed_ids);
    out->s.logprob_ids = put(a, s->logprob_ids, s->logprob_id_count * sizeof *s->logprob_ids);
    out->s.bias = put(a, s->bias, s->bias_count * sizeof *s->bias);
    int32_t *ends = put(a, NULL, ((size_t)eos_count + s->stop_id_count) * sizeof *ends);
    if (ends && eos_count > 0) memcpy(ends, eos, (size_t)eos_count * sizeof *ends);
    if (ends && s->stop_id_count > 0) memcpy(ends + eos_count, s->stop_ids, s->stop_id_count * sizeof *ends);
    out->end_ids = ends;
    out->s.stop_ids = ends ? ends + eos_count : NULL;
}

hy_status params_copy(const hy_sampling *s, const int32_t *eos, int eos_count, params *out, hy_error *err)
{
    params copy = {.s = *s, .eos_count = eos_count, .end_count = eos_count + (int32_t)s->stop_id_count};
    struct arena arena = {0};
    put_all(&arena, s, eos, eos_count, &copy);
    size_t bytes = arena.used;
    if (bytes > 0) {
        arena = (struct arena){.memory = memory_alloc(bytes, 1)};
        if (!arena.memory) return error_memory(err, "a request's parameters", bytes);
        put_all(&arena, s, eos, eos_count, &copy);
    }
    copy.memory = arena.memory;
    if (s->grammar) copy.grammar = text_grammar_share(grammar_of(s));
    *out = copy;
    return HY_OK;
}

void params_free(params *p)
{
    memory_free(p->memory);
    text_grammar_release(p->grammar);
    *p = (params){0};
}

bool params_ends(const params *p, int32_t token)
{
    for (int32_t i = p->s.ignore_eos ? p->eos_count : 0; i < p->end_count; i++)
        if (p->end_ids[i] == token) return true;
    return false;
}
