#include "server/request_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"

/* A JSON string: a line stays one. */
static void put_quoted(buffer *b, const char *text, size_t length)
{
    json_writer w = {.out = b};
    writer_string(&w, text, length);
}

/* How much of a list or of a text is shown. */
static size_t shown(const generation *g, size_t count)
{
    const int64_t *most = g->room->options->log_most;
    return most && (uint64_t)*most < count ? (size_t)*most : count;
}

/* The bytes of the first `count` characters. */
static size_t bytes_of(const char *text, size_t length, size_t count)
{
    size_t i = 0;
    for (; i < length; i++)
        if (((unsigned char)text[i] & 0xC0) != 0x80 && count-- == 0) break;
    return i;
}

static void put_text(buffer *b, const generation *g, const char *text, size_t length)
{
    put_quoted(b, text, bytes_of(text, length, shown(g, length)));
}

static void put_ids(buffer *b, const generation *g, const int32_t *ids, size_t count)
{
    buffer_char(b, '[');
    for (size_t i = 0; i < shown(g, count); i++) buffer_printf(b, "%s%d", i ? ", " : "", ids[i]);
    buffer_char(b, ']');
}

static void put_params(buffer *b, const generation *g)
{
    const hy_sampling *s = &g->plan.sampling.s;
    buffer_printf(b,
                  "SamplingParams(n=%d, presence_penalty=%g, frequency_penalty=%g, repetition_penalty=%g, "
                  "temperature=%g, top_p=%g, top_k=%d, min_p=%g, seed=",
                  g->plan.n, s->presence_penalty, s->frequency_penalty, s->repetition_penalty, s->temperature, s->top_p,
                  s->top_k, s->min_p);
    if (s->seed == -1)
        buffer_string(b, "None");
    else
        buffer_printf(b, "%lld", (long long)s->seed);
    buffer_string(b, ", stop=[");
    for (size_t i = 0; i < s->stop_count; i++) {
        if (i) buffer_string(b, ", ");
        put_quoted(b, s->stop[i], strlen(s->stop[i]));
    }
    buffer_string(b, "], stop_token_ids=[");
    for (size_t i = 0; i < s->stop_id_count; i++) buffer_printf(b, "%s%d", i ? ", " : "", s->stop_ids[i]);
    buffer_printf(b, "], include_stop_str_in_output=%s, ignore_eos=%s, max_tokens=", s->include_stop ? "True" : "False",
                  s->ignore_eos ? "True" : "False");
    if (s->max_tokens > 0)
        buffer_printf(b, "%d", s->max_tokens);
    else
        buffer_string(b, "None");
    buffer_printf(b, ", min_tokens=%d, skip_special_tokens=%s)", s->min_tokens,
                  g->plan.keep_special ? "False" : "True");
}

static void log_prompt(const generation *g, const hy_ids *ids)
{
    char *text = NULL;
    buffer b = {0};
    buffer_printf(&b, "Request %s details: prompt: ", g->id);
    if (hy_detokenize(g->room->model, ids->data, ids->count, false, &text, NULL) == HY_OK)
        put_text(&b, g, text, strlen(text));
    else
        buffer_string(&b, "None");
    buffer_string(&b, ", prompt_token_ids: ");
    put_ids(&b, g, ids->data, ids->count);
    buffer_char(&b, '.');
    if (buffer_ok(&b)) log_line(HY_LOG_DEBUG, "%s", b.data);
    buffer_free(&b);
    free(text);
}

void request_log_asked(const generation *g)
{
    buffer b = {0};
    put_params(&b, g);
    if (buffer_ok(&b)) log_line(HY_LOG_INFO, "Received request %s: params: %s, lora_request: None.", g->id, b.data);
    buffer_free(&b);
    for (size_t i = 0; log_wants(HY_LOG_DEBUG) && i < g->prompt_count; i++) log_prompt(g, &g->prompts[i]);
}

void request_log_answered(const generation *g, const hy_request *request, int choice, const char *finish)
{
    hy_result r;
    buffer b = {0};
    hy_request_result(request, &r);
    buffer_printf(&b, "Generated response %s", g->id);
    if (g->choices > 1) buffer_printf(&b, "-%d", choice);
    buffer_printf(&b, "%s: output: ", g->plan.stream ? " (streaming complete)" : "");
    put_text(&b, g, r.text, r.text_length);
    buffer_string(&b, ", output_token_ids: ");
    put_ids(&b, g, r.ids, r.id_count);
    buffer_printf(&b, ", finish_reason: %s", finish ? finish : "None");
    if (buffer_ok(&b)) log_line(HY_LOG_INFO, "%s", b.data);
    buffer_free(&b);
}
