#include "server/completions.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/model.h"

enum { MAX_PROMPTS = 4096, DEFAULT_TOKENS = 16 };

typedef struct completion {
    openai_request asked;
    int32_t logprobs; /* -1: none */
    bool echo, echo_only;
    char **texts; /* [text_count] of the prompts, with echo; owned */
    size_t text_count;
    size_t *offset; /* [choices] characters of text that log-probabilities have been told for */
    bool *opened;   /* [choices] the first chunk has gone out */
    buffer out;
    json_writer w;
} completion;

struct read {
    json_t *prompt;
    int64_t max_tokens, logprobs;
    bool echo;
};

#define AT(member) offsetof(struct read, member)

const request_field completion_fields[] = {
    {"prompt", REQUEST_ANY, AT(prompt), 0, 0, "text, texts, ids or lists of ids; required"},
    {"max_tokens", REQUEST_INTEGER, AT(max_tokens), 0, 0, "most tokens of the answer (default 16)"},
    {"logprobs", REQUEST_INTEGER, AT(logprobs), 0, 0, "log-probabilities, of so many best tokens at each place"},
    {"echo", REQUEST_BOOL, AT(echo), 0, 0, "the text begins with the prompt"},
    {"best_of", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"add_special_tokens", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"suffix", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"prompt_embeds", REQUEST_REFUSED, 0, 0, 0, NULL},
    {"return_token_offsets", REQUEST_REFUSED, 0, 0, 0, NULL},
};
const size_t completion_field_count = sizeof completion_fields / sizeof *completion_fields;

/* ---- Prompts ---------------------------------------------------------------------------------------------------- */

static bool no_memory(request_fault *fault)
{
    return request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
}

static bool read_ids(const json_t *list, hy_ids *ids, request_fault *fault)
{
    size_t n = json_array_size(list);
    ids->data = malloc((n + 1) * sizeof *ids->data);
    if (!ids->data) return no_memory(fault);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t x = json_integer_value(id);
        if (!json_is_integer(id))
            return request_schema(fault, "body", "prompt", "int_type", "Input should be a valid integer");
        if (x < 0 || x > INT32_MAX)
            return request_refuse(fault, "prompt", "Token id %lld is out of vocabulary", (long long)x);
        ids->data[i] = (int32_t)x;
    }
    ids->count = n;
    return true;
}

static bool read_one(generation *g, const json_t *prompt, hy_ids *ids, char **text, request_fault *fault)
{
    if (json_is_array(prompt)) return read_ids(prompt, ids, fault);
    if (!json_is_string(prompt))
        return request_schema(fault, "body", "prompt", "string_type", "Input should be a valid string");
    if (text && !(*text = memory_string(json_string_value(prompt), json_string_length(prompt))))
        return no_memory(fault);
    hy_error err = {0};
    return hy_tokenize(g->room->model, json_string_value(prompt), json_string_length(prompt), ids, &err) == HY_OK ||
           request_failed(fault, "prompt", &err);
}

bool completions_read_prompt(generation *g, const json_t *prompt, char ***texts, request_fault *fault)
{
    if (!prompt) return request_schema(fault, "body", "prompt", "missing", "Field required");
    const json_t *first = json_array_get(prompt, 0);
    bool list = json_is_array(prompt) && (json_is_string(first) || json_is_array(first));
    size_t count = list ? json_array_size(prompt) : 1;
    if (count > MAX_PROMPTS)
        return request_refuse(fault, "prompt", "prompt is a list of %zu, at most %d are allowed", count, MAX_PROMPTS);
    g->plan.prompts = calloc(count, sizeof *g->plan.prompts);
    char **text = texts ? calloc(count, sizeof *text) : NULL;
    if (texts) *texts = text;
    if (!g->plan.prompts || (texts && !text)) return no_memory(fault);
    g->plan.prompt_count = count;
    for (size_t i = 1; list && i < count; i++)
        if (json_typeof(json_array_get(prompt, i)) != json_typeof(first))
            return request_schema(fault, "body", "prompt", "string_type",
                                  "Input should be all texts or all lists of ids");
    for (size_t i = 0; i < count; i++)
        if (!read_one(g, list ? json_array_get(prompt, i) : prompt, &g->plan.prompts[i], text ? &text[i] : NULL, fault))
            return false;
    return true;
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

static bool echo_texts(generation *g, completion *c, request_fault *fault)
{
    hy_error err = {0};
    for (size_t i = 0; i < c->text_count; i++) {
        const hy_ids *ids = &g->plan.prompts[i];
        if (!c->texts[i] &&
            hy_detokenize(g->room->model, ids->data, ids->count, c->asked.skip_special, &c->texts[i], &err) != HY_OK)
            return request_failed(fault, "prompt", &err);
    }
    return true;
}

static bool read(generation *g, json_t *body, request_fault *fault)
{
    completion *c = g->state;
    struct read f = {.max_tokens = DEFAULT_TOKENS};
    if (!request_read(body, "body", completion_fields, completion_field_count, &f, fault)) return false;
    if (!f.prompt) return request_schema(fault, "body", "prompt", "missing", "Field required");
    if (!openai_read(g, body, &c->asked, fault)) return false;
    const char *suffix = json_string_value(json_object_get(body, "suffix"));
    if (suffix && *suffix) return request_refuse(fault, "suffix", "suffix is not currently supported");
    c->logprobs = -1, c->echo = f.echo;
    bool any = request_value(body, "logprobs") != NULL;
    if (any && f.logprobs < 0) return request_refuse(fault, "logprobs", "`logprobs` must be a positive value.");
    if (any && !openai_logprobs(g, "logprobs", f.logprobs, &c->logprobs, fault)) return false;
    g->plan.sampling.s.logprobs = c->logprobs;
    c->echo_only = f.echo && f.max_tokens == 0;
    if (!request_lengths_check(&g->plan.sampling, "max_tokens", true, c->echo_only ? 1 : f.max_tokens, fault))
        return false;
    if (f.echo && c->logprobs >= 0 && g->plan.prompt_logprobs < 0) g->plan.prompt_logprobs = c->logprobs;
    if (!completions_read_prompt(g, f.prompt, f.echo ? &c->texts : NULL, fault)) return false;
    c->text_count = f.echo ? g->plan.prompt_count : 0;
    return echo_texts(g, c, fault);
}

void completions_show_logprobs(generation *g, int32_t best)
{
    completion *c = g->state;
    c->logprobs = best;
}

static void prepared(generation *g)
{
    completion *c = g->state;
    c->offset = calloc((size_t)g->choices, sizeof *c->offset);
    c->opened = calloc((size_t)g->choices, sizeof *c->opened);
}

/* ---- Log-probabilities ------------------------------------------------------------------------------------------ */

/* Rows of log-probabilities: of the prompt, then of the answer. */
typedef struct rows {
    const hy_logprob *prompt; /* [prompt_count - 1, prompt_stride] of the tokens behind the first */
    const int32_t *prompt_ids;
    size_t prompt_count, prompt_stride;
    const generation_step *step; /* NULL: of the prompt alone */
} rows;

static size_t row_count(const rows *r)
{
    return r->prompt_count + (r->step ? r->step->id_count : 0);
}

/* The entries of row i, NULL for the first token of a prompt. */
static const hy_logprob *row(const rows *r, size_t i, size_t *stride)
{
    if (i < r->prompt_count) {
        *stride = r->prompt_stride;
        return i ? r->prompt + (i - 1) * r->prompt_stride : NULL;
    }
    *stride = r->step->logprob_stride;
    return r->step->logprobs + (i - r->prompt_count) * *stride;
}

static int32_t row_token(const rows *r, size_t i)
{
    return i < r->prompt_count ? r->prompt_ids[i] : r->step->ids[i - r->prompt_count];
}

static size_t characters(const char *text, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static const char *token_bytes(const generation *g, int32_t token, size_t *length)
{
    return text_tokenizer_bytes(model_tokenizer(g->room->model), token, length);
}

static bool same_text(const generation *g, int32_t a, int32_t b)
{
    size_t n, m;
    const char *x = token_bytes(g, a, &n), *y = token_bytes(g, b, &m);
    return n == m && memcmp(x, y, n) == 0;
}

/* Names that an object has already, by the hash of their text (or id): thousands of the best may be asked for. */
typedef struct names {
    int32_t small[64], *slot; /* [size] tokens, -1: free */
    size_t size;
} names;

static bool open_names(names *n, size_t count)
{
    for (n->size = 64; n->size < 2 * count;) n->size *= 2;
    n->slot = n->size == 64 ? n->small : malloc(n->size * sizeof *n->slot);
    for (size_t i = 0; n->slot && i < n->size; i++) n->slot[i] = -1;
    return n->slot != NULL;
}

/* False: the object has it. */
static bool add_name(names *n, const generation *g, int32_t token, bool as_id)
{
    size_t length = 0;
    const char *text = as_id ? "" : token_bytes(g, token, &length);
    uint64_t hash = as_id ? (uint64_t)token : 14695981039346656037u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    hash *= 0x9E3779B97F4A7C15u;
    size_t at = (size_t)(hash >> 32) & (n->size - 1);
    for (; n->slot[at] >= 0; at = (at + 1) & (n->size - 1))
        if (n->slot[at] == token || (!as_id && same_text(g, n->slot[at], token))) return false;
    n->slot[at] = token;
    return true;
}

/* A token and the best ones as an object: of those that read the same the first counts. */
static void write_top(json_writer *w, const generation *g, const hy_logprob *p, size_t stride)
{
    const completion *c = g->state;
    bool as_ids = c->asked.tokens_as_ids;
    names told;
    if (!p || c->logprobs == 0 || !open_names(&told, stride)) {
        writer_null(w);
        return;
    }
    writer_object(w);
    for (size_t j = 0; j < stride; j++) {
        if (p[j].token < 0 || !add_name(&told, g, p[j].token, as_ids)) continue;
        openai_write_token_key(w, g, p[j].token, as_ids);
        writer_number(w, openai_logprob(p[j].logprob));
    }
    writer_end(w);
    if (told.slot != told.small) free(told.slot);
}

static void write_logprobs(json_writer *w, const generation *g, const rows *r, size_t *offset)
{
    const completion *c = g->state;
    size_t n = row_count(r), stride;
    writer_key(w, "logprobs");
    if (c->logprobs < 0 || (r->step && !r->step->logprobs)) {
        writer_null(w);
        return;
    }
    writer_object(w);
    writer_key(w, "text_offset");
    writer_array(w);
    for (size_t i = 0; i < n; i++) {
        size_t length;
        const char *text = token_bytes(g, row_token(r, i), &length);
        writer_unsigned(w, *offset);
        *offset += characters(text, length);
    }
    writer_end(w);
    writer_key(w, "token_logprobs");
    writer_array(w);
    for (size_t i = 0; i < n; i++) {
        const hy_logprob *p = row(r, i, &stride);
        if (p)
            writer_number(w, openai_logprob(p->logprob));
        else
            writer_null(w);
    }
    writer_end(w);
    writer_key(w, "tokens");
    writer_array(w);
    for (size_t i = 0; i < n; i++) openai_write_token_text(w, g, row_token(r, i), c->asked.tokens_as_ids);
    writer_end(w);
    writer_key(w, "top_logprobs");
    writer_array(w);
    for (size_t i = 0; i < n; i++) {
        const hy_logprob *p = row(r, i, &stride);
        write_top(w, g, p, stride);
    }
    writer_end(w);
    writer_end(w);
}

/* ---- Choices ---------------------------------------------------------------------------------------------------- */

static void write_choice(json_writer *w, generation *g, const generation_step *step, bool whole)
{
    completion *c = g->state;
    size_t prompt = (size_t)(step->choice / g->plan.n), count = 0;
    bool first = whole || (c->opened && !c->opened[step->choice]), echo = c->echo && first;
    const int32_t *ids = generation_prompt_ids(g, prompt, &count);
    rows told = {.step = c->echo_only ? NULL : step};
    if (echo && c->logprobs >= 0) {
        told.prompt_ids = ids;
        told.prompt = generation_prompt_logprobs(g, prompt, &told.prompt_stride, NULL);
        told.prompt_count = told.prompt ? count : 0;
    }
    buffer text = {0};
    if (echo) buffer_string(&text, c->texts[prompt]);
    if (!c->echo_only) buffer_append(&text, step->text, step->text_length);
    size_t none = 0;
    writer_object(w);
    writer_key(w, "index"), writer_integer(w, step->choice);
    writer_key(w, "text"), writer_string(w, text.data ? text.data : "", text.length);
    write_logprobs(w, g, &told, c->offset ? &c->offset[step->choice] : &none);
    writer_key(w, "finish_reason"), writer_text(w, step->finish_name);
    openai_write_stop_reason(w, step);
    if (!whole) openai_write_ids(w, "prompt_token_ids", c->asked.return_token_ids && first ? ids : NULL, count);
    bool made = c->asked.return_token_ids && (whole || step->id_count);
    openai_write_ids(w, "token_ids", made ? step->ids : NULL, c->echo_only ? 0 : step->id_count);
    if (whole) {
        openai_write_prompt_logprobs(w, g, prompt);
        openai_write_ids(w, "prompt_token_ids", c->asked.return_token_ids ? ids : NULL, count);
        openai_write_routes(w, g, step);
    }
    writer_end(w);
    buffer_free(&text);
    if (c->opened) c->opened[step->choice] = true;
}

static void send_chunk(generation *g, const generation_step *step)
{
    const completion *c = g->state;
    buffer event = {0};
    json_writer w = {.out = &event};
    openai_write_head(&w, g, "text_completion");
    write_choice(&w, g, step, false);
    writer_end(&w);
    if (step->finish != HY_RUNNING && !c->asked.include_usage) openai_write_fingerprint(&w, g);
    if (c->asked.continuous_usage)
        openai_write_usage(&w, g, step->choice, false);
    else
        writer_key(&w, "usage"), writer_null(&w);
    writer_end(&w);
    openai_send(g, &event);
}

/* ---- The dialect ------------------------------------------------------------------------------------------------ */

static void begin(generation *g)
{
    completion *c = g->state;
    if (g->plan.stream) {
        if (g->x) http_stream_begin(g->x);
        return;
    }
    c->w = (json_writer){.out = &c->out};
    openai_write_head(&c->w, g, "text_completion");
}

static void step(generation *g, const generation_step *s)
{
    completion *c = g->state;
    if (g->plan.stream)
        send_chunk(g, s);
    else
        write_choice(&c->w, g, s, true);
}

static void end(generation *g)
{
    completion *c = g->state;
    if (g->plan.stream) {
        openai_end_stream(g, "text_completion", c->asked.include_usage);
        return;
    }
    writer_end(&c->w);
    writer_key(&c->w, "service_tier"), writer_null(&c->w);
    openai_write_fingerprint(&c->w, g);
    openai_write_usage(&c->w, g, -1, true);
    openai_write_transfer(&c->w, g);
    openai_write_metrics(&c->w, g);
    writer_end(&c->w);
    openai_load_header(g);
    if (g->x) http_reply_json(g->x, 200, &c->out);
    g->x = NULL;
}

static void release(generation *g)
{
    completion *c = g->state;
    for (size_t i = 0; c->texts && i < c->text_count; i++) free(c->texts[i]);
    free(c->texts);
    free(c->offset);
    free(c->opened);
    buffer_free(&c->out);
}

const generation_dialect completion_dialect = {.prefix = "cmpl-",
                                               .state_size = sizeof(completion),
                                               .read = read,
                                               .prepared = prepared,
                                               .begin = begin,
                                               .step = step,
                                               .end = end,
                                               .fail = generation_fail,
                                               .release = release};

void completions_handle(void *user, http_exchange *x)
{
    generation_start(user, &completion_dialect, x);
}
