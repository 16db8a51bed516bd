#include "tasks/rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/reasoning.h"

/* ---- Tokens --------------------------------------------------------------------------------------------------- */

static hy_status find_marker(const text_tokenizer *tokenizer, const char *text, int32_t *out, hy_error *err)
{
    *out = text_tokenizer_find(tokenizer, text);
    if (*out >= 0 && text_tokenizer_is_added(tokenizer, *out)) return HY_OK;
    return error_set(err, HY_UNSUPPORTED, "the tokenizer has no added token %s: the chat format of M3 needs it", text);
}

hy_status row_tokens_find(const text_tokenizer *tokenizer, row_tokens *out, hy_error *err)
{
    hy_ids ai = {0};
    *out = (row_tokens){.tokenizer = tokenizer};
    if (text_tokenizer_vocab_size(tokenizer) > UINT16_MAX)
        return error_set(err, HY_UNSUPPORTED, "the tokenizer has %d tokens: rows hold ids below %d",
                         text_tokenizer_vocab_size(tokenizer), UINT16_MAX);
    hy_status s = find_marker(tokenizer, "]~b]", &out->begin, err);
    if (s == HY_OK) s = find_marker(tokenizer, "[e~[", &out->end, err);
    if (s == HY_OK) s = find_marker(tokenizer, TEXT_THINK_OPEN, &out->open, err);
    if (s == HY_OK) s = find_marker(tokenizer, TEXT_THINK_CLOSE, &out->close, err);
    if (s == HY_OK) s = text_tokenizer_encode(tokenizer, "ai\n", 3, true, &ai, err);
    if (s != HY_OK) return s;
    out->ai_count = ai.count; /* at most a token a byte */
    memcpy(out->ai, ai.data, ai.count * sizeof *ai.data);
    hy_ids_free(&ai);
    out->pad = text_tokenizer_find(tokenizer, "]!p~[");
    if (out->pad < 0) out->pad = out->end;
    return HY_OK;
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

static hy_status render(const task *t, const json_t *messages, bool generate, buffer *out, hy_error *err)
{
    static const text_template chat = {.kind = TEXT_TEMPLATE_MINIMAX_M3};
    json_t *kwargs = json_pack("{s:s, s:b}", "thinking_mode", t->thinking, "add_generation_prompt", generate);
    if (!kwargs) return error_memory(err, "template variables", 0);
    hy_status s = text_template_render(&chat, messages, t->tools, kwargs, out, err);
    json_decref(kwargs);
    return s;
}

hy_status task_render(const task *t, size_t count, bool generate, buffer *out, hy_error *err)
{
    if (count >= json_array_size(t->messages)) return render(t, t->messages, generate, out, err);
    json_t *first = json_array();
    if (!first) return error_memory(err, "messages", 0);
    hy_status s = HY_OK;
    for (size_t i = 0; i < count && s == HY_OK; i++)
        if (json_array_append(first, json_array_get(t->messages, i)) != 0) s = error_memory(err, "messages", 0);
    if (s == HY_OK) s = render(t, first, generate, out, err);
    json_decref(first);
    return s;
}

/* ---- Rows ----------------------------------------------------------------------------------------------------- */

static bool role_is(const json_t *message, const char *role)
{
    const char *have = json_string_value(json_object_get(message, "role"));
    return have && strcmp(have, role) == 0;
}

/* The next assistant message at or after *i, which moves behind it. */
static const json_t *next_answer(const task *t, size_t *i)
{
    while (*i < json_array_size(t->messages)) {
        const json_t *m = json_array_get(t->messages, (*i)++);
        if (role_is(m, "assistant")) return m;
    }
    return NULL;
}

/* The place after "]~b]ai\n" when that stands at `at`, else 0. */
static size_t answer_at(const row *r, const row_tokens *k, size_t at)
{
    if (r->ids[at] != k->begin || at + 1 + k->ai_count >= r->count) return 0;
    return memcmp(r->ids + at + 1, k->ai, k->ai_count * sizeof *k->ai) == 0 ? at + 1 + k->ai_count : 0;
}

/* The first written token of an answer whose text starts at `at`; 0 when the prompt would not lead there: a prompt that
 * ends inside a thought, an answer without one. */
static size_t written_from(const row *r, const row_tokens *k, const task *t, size_t at)
{
    int32_t first = r->ids[at];
    if (!strcmp(t->thinking, "enabled")) return first == k->open ? at + 1 : 0;
    if (!strcmp(t->thinking, "disabled")) return first == k->close ? at + 1 : 0;
    return at;
}

/* Marks what is written, and finds how much fits: the row ends with a written answer. */
static void weigh(row *r, const row_tokens *k, const task *t, size_t length)
{
    size_t message = 0, written = 0;
    memset(r->weights, ROW_GIVEN, r->count);
    r->fits = r->written = 0;
    for (size_t at = 0; at < r->count; at++) {
        size_t start = answer_at(r, k, at);
        if (!start) continue;
        const json_t *m = next_answer(t, &message), *weight = json_object_get(m, "weight");
        size_t from = written_from(r, k, t, start), end = start;
        while (end < r->count && r->ids[end] != k->end) end++;
        at = end++;
        if (end > length) return;
        if (!from || (weight && !json_integer_value(weight))) continue;
        memset(r->weights + from, ROW_WRITTEN, end - from);
        written += end - from;
        r->fits = end, r->written = written;
    }
}

hy_status row_encode(row *r, const row_tokens *tokens, const task *t, size_t length, hy_error *err)
{
    hy_ids ids = {0};
    buffer_clear(&r->text);
    hy_status s = task_render(t, SIZE_MAX, false, &r->text, err);
    if (s == HY_OK) s = text_tokenizer_encode(tokens->tokenizer, r->text.data, r->text.length, true, &ids, err);
    if (s != HY_OK) return s;
    free(r->ids);
    r->ids = ids.data, r->count = ids.count;
    if (!memory_reserve((void **)&r->weights, &r->capacity, r->count, 1))
        return error_memory(err, "the weights of a row", r->count);
    weigh(r, tokens, t, length);
    return HY_OK;
}

void row_free(row *r)
{
    free(r->ids);
    free(r->weights);
    buffer_free(&r->text);
    *r = (row){0};
}
