#include "server/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/dialect_fields.h"
#include "server/messages_request.h"
#include "server/messages_response.h"
#include "server/openai.h"

typedef struct state {
    messages_asked wanted;
    answer_blocks blocks;
    messages_ending ending;
    char *stop_string; /* owned: what ending.stop_string points to */
} state;

/* ---- The request ------------------------------------------------------------------------------------------------ */

static bool read_body(generation *g, json_t *body, bool count, request_fault *fault)
{
    messages_options options = {.count = count, .always_thinks = dialect_always_thinks(g->room)};
    state *m = g->state;
    openai_request asked;
    bool ok = messages_request_read(body, options, &g->plan, &m->wanted, fault) &&
              openai_read(g, m->wanted.fields, &asked, fault) &&
              request_lengths_check(&g->plan.sampling, "max_tokens", !count, m->wanted.max_tokens, fault) &&
              dialect_can_think_so(g, fault);
    if (m->wanted.budget > 0 && g->room->options->split_reasoning)
        g->plan.sampling.s.limit_thinking = true, g->plan.sampling.s.thinking_tokens = (int32_t)m->wanted.budget;
    return ok;
}

static bool read_message(generation *g, json_t *body, request_fault *fault)
{
    return read_body(g, body, false, fault);
}

/* ---- The answer ------------------------------------------------------------------------------------------------- */

static messages_usage usage_of(const generation *g)
{
    generation_usage u = generation_usage_of(g, -1);
    size_t cached = u.reuse_known ? (size_t)u.reuse.tokens : 0;
    return (messages_usage){u.prompt_tokens,     cached < u.prompt_tokens ? cached : u.prompt_tokens,
                            u.completion_tokens, u.reasoning_tokens,
                            u.draft_rounds,      u.drafts,
                            u.drafts_accepted};
}

static void emit(void *user, const char *name, const buffer *data)
{
    generation *g = user;
    if (g->x && buffer_ok(data)) http_stream_named(g->x, name, data->data, data->length);
}

static void begin(generation *g)
{
    if (!g->plan.stream || !g->x) return;
    http_stream_begin(g->x);
    messages_usage usage = usage_of(g);
    usage.output = 0;
    messages_emit_start(&(messages_events){.emit = emit, .user = g}, g->id, g->model, usage);
}

static void step(generation *g, const generation_step *s)
{
    state *m = g->state;
    messages_events to = {emit, g, m->wanted.hide_thinking};
    block_fn fn = g->plan.stream ? messages_emit_block : NULL;
    for (size_t i = 0; i < s->part_count; i++)
        answer_blocks_add(&m->blocks, s->part[i].kind, s->part[i].text, s->part[i].length, fn, &to);
    if (s->finish == HY_RUNNING) return;
    answer_blocks_finish(&m->blocks, s->finish != HY_FINISH_LENGTH, fn, &to);
    m->ending = (messages_ending){.finish = s->finish, .calls = m->blocks.calls > 0};
    if (s->stop_string) m->stop_string = memory_string(s->stop_string, strlen(s->stop_string));
    m->ending.stop_string = m->stop_string;
}

/* Before the stream has begun with a status, then with an event. */
static void fail(generation *g, const request_fault *f)
{
    if (!g->x) return;
    buffer body = {0};
    char seconds[16];
    messages_write_error(&body, f->status, f->message);
    if (g->begun && g->plan.stream) {
        emit(g, "error", &body);
        http_stream_end(g->x);
    } else {
        snprintf(seconds, sizeof seconds, "%d", f->retry_after);
        if (f->retry_after > 0) http_reply_header(g->x, "Retry-After", seconds);
        if (f->no_retry) http_reply_header(g->x, "x-should-retry", "false");
        http_reply_json(g->x, f->status, &body);
    }
    g->x = NULL;
    buffer_free(&body);
}

static void end(generation *g)
{
    state *m = g->state;
    if (!g->x) return;
    if (m->ending.finish == HY_FINISH_CANCEL || m->blocks.failed) {
        bool cancelled = m->ending.finish == HY_FINISH_CANCEL;
        request_fault fault = {.status = cancelled ? 503 : 500};
        snprintf(fault.message, sizeof fault.message, "%s",
                 cancelled ? "The request was aborted before its answer was complete" : "out of memory");
        fail(g, &fault);
        return;
    }
    if (g->plan.stream) {
        messages_emit_end(&(messages_events){.emit = emit, .user = g}, &m->ending, usage_of(g));
        http_stream_end(g->x);
    } else {
        buffer body = {0};
        messages_write_whole(&body, g->id, g->model, &m->blocks, m->wanted.hide_thinking, &m->ending, usage_of(g));
        http_reply_json(g->x, 200, &body);
        buffer_free(&body);
    }
    g->x = NULL;
}

static void release(generation *g)
{
    state *m = g->state;
    json_decref(m->wanted.fields);
    answer_blocks_free(&m->blocks);
    free(m->stop_string);
}

/* ---- Counting --------------------------------------------------------------------------------------------------- */

static bool read_count(generation *g, json_t *body, request_fault *fault)
{
    bool ok = read_body(g, body, true, fault);
    g->plan.stream = false;
    g->plan.no_generation = true;
    return ok;
}

static void reply_count(generation *g)
{
    if (!g->x) return;
    buffer body = {0};
    messages_write_count(&body, g->prompts[0].count);
    http_reply_json(g->x, 200, &body);
    g->x = NULL;
    buffer_free(&body);
}

static const generation_dialect dialect = {.prefix = "msg_",
                                           .state_size = sizeof(state),
                                           .read = read_message,
                                           .begin = begin,
                                           .step = step,
                                           .end = end,
                                           .fail = fail,
                                           .release = release};
static const generation_dialect counting = {.prefix = "msgcount_",
                                            .state_size = sizeof(state),
                                            .read = read_count,
                                            .prepared = reply_count,
                                            .begin = begin,
                                            .step = step,
                                            .end = end,
                                            .fail = fail,
                                            .release = release};

static void handle_message(void *room, http_exchange *x)
{
    generation_start(room, &dialect, x);
}

static void handle_count(void *room, http_exchange *x)
{
    generation_start(room, &counting, x);
}

void messages_routes(generation_room *room)
{
    http_route(room->http, "POST", "/v1/messages", handle_message, room);
    http_route(room->http, "POST", "/v1/messages/count_tokens", handle_count, room);
}
