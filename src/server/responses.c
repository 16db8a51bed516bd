#include "server/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/model.h"
#include "server/dialect_fields.h"
#include "server/openai.h"
#include "server/responses_request.h"
#include "server/responses_response.h"
#include "server/responses_store.h"
#include "text/tool_calls.h"

enum { MOST_KEPT = 4096, MOST_KEPT_BYTES = 256 << 20 };

typedef struct state {
    responses_asked asked;
    size_t turn_bytes; /* of asked.turns, about */
    double temperature, top_p;
    answer_blocks blocks;
    responses_events events;
    hy_finish finish;
    bool cancelled;           /* by its id: what is kept says so already */
    text_reasoning reasoning; /* which tokens are text: for log-probabilities */
    bool calls;               /* the text is over, calls have begun */
} state;

static void emit(void *user, const char *name, const buffer *data)
{
    generation *g = user;
    if (g->x && buffer_ok(data)) http_stream_named(g->x, name, data->data, data->length);
}

static responses_head head_of(const generation *g)
{
    const state *m = g->state;
    return (responses_head){g->id, g->model, g->created, m->temperature, m->top_p, m->asked.echo};
}

/* The shortest decimal that is the same float: 0.95, where the double of it has seventeen digits. */
static double as_written(float x)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break;
    }
    return strtod(text, NULL);
}

/* ---- The request ------------------------------------------------------------------------------------------------ */

static bool find_turns(generation *g, const char *id, json_t **turns, request_fault *fault)
{
    *turns = NULL;
    if (!id) return true;
    bool found = responses_store_turns(g->room->responses, id, turns);
    if (*turns) return true;
    if (found)
        return request_refuse(fault, "previous_response_id", "Response with id '%.80s' has no answer to go on from",
                              id);
    *fault = (request_fault){.status = 404, .type = "invalid_request_error", .param = "previous_response_id"};
    snprintf(fault->message, sizeof fault->message, "Response with id '%.80s' not found.", id);
    return false;
}

static bool read_logprobs(generation *g, const responses_asked *asked, request_fault *fault)
{
    if (!asked->logprobs) return true;
    int32_t top = 0;
    if (!openai_logprobs(g, "top_logprobs", asked->top_logprobs, &top, fault)) return false;
    g->plan.sampling.s.logprobs = top;
    return true;
}

static bool read_body(generation *g, json_t *body, request_fault *fault)
{
    state *m = g->state;
    openai_request common;
    json_t *before = NULL;
    bool ok = responses_request_read(body, g->room->responses != NULL, &g->plan, &m->asked, fault) &&
              find_turns(g, m->asked.previous, &before, fault) &&
              responses_request_turns(body, before, &g->plan, &m->asked, fault) &&
              openai_read(g, m->asked.fields, &common, fault) &&
              request_lengths_check(&g->plan.sampling, "max_output_tokens", m->asked.max_tokens > 0,
                                    m->asked.max_tokens, fault) &&
              dialect_can_think_so(g, fault) && read_logprobs(g, &m->asked, fault);
    json_decref(before);
    m->temperature = as_written(g->plan.sampling.s.temperature), m->top_p = as_written(g->plan.sampling.s.top_p);
    m->events = (responses_events){.emit = g->plan.stream ? emit : NULL, .user = g, .blocks = &m->blocks};
    if (ok && m->asked.store) m->turn_bytes = json_dumpb(m->asked.turns, NULL, 0, JSON_COMPACT);
    return ok;
}

/* Keeps the response as it is now. `turns`: the conversation has its answer. */
static void keep(generation *g, const responses_state *s, const answer_blocks *blocks, bool turns, void *running)
{
    state *m = g->state;
    if (!m->asked.store || !g->room->responses) return;
    buffer json = {0};
    responses_head head = head_of(g);
    responses_write(&json, &head, s, blocks);
    if (turns) json_array_append_new(m->asked.turns, responses_turn(blocks));
    responses_store_put(g->room->responses, g->id, &json, turns ? m->asked.turns : NULL,
                        turns ? m->turn_bytes + json.length : 0, running, m->asked.background);
}

/* What is made in the background is answered at once. */
static void prepared(generation *g)
{
    state *m = g->state;
    const hy_ids *ids = &g->prompts[0];
    text_reasoning_begin(&m->reasoning, text_reasoning_start_of(model_tokenizer(g->room->model),
                                                                ids->count ? ids->data[ids->count - 1] : -1));
    if (!m->asked.background) return;
    responses_state queued = {.status = "queued"};
    keep(g, &queued, NULL, false, g);
    if (g->plan.stream || !g->x) return;
    buffer body = {0};
    responses_head head = head_of(g);
    responses_write(&body, &head, &queued, NULL);
    http_reply_json(g->x, 200, &body);
    g->x = NULL;
    buffer_free(&body);
}

/* ---- The answer ------------------------------------------------------------------------------------------------- */

static void begin(generation *g)
{
    state *m = g->state;
    if (!g->plan.stream) return;
    responses_head head = head_of(g);
    responses_state running = {.status = "in_progress"};
    if (g->x) http_stream_begin(g->x);
    responses_emit_response(&m->events, "response.created", &head, &running);
    responses_emit_response(&m->events, "response.in_progress", &head, &running);
}

static void see_content(void *content, text_kind kind, const char *text, size_t length)
{
    (void)text;
    if (kind == TEXT_CONTENT && length) *(bool *)content = true;
}

/* Whether a token is one of the text: not of reasoning, a marker, a call or the end. */
static bool is_text(const generation *g, state *m, int32_t id)
{
    const text_tokenizer *tok = model_tokenizer(g->room->model);
    size_t length;
    const char *bytes = text_tokenizer_bytes(tok, id, &length);
    static const char marker[] = TEXT_TOOL_NAMESPACE;
    bool starts = length == sizeof marker - 1 && memcmp(bytes, marker, length) == 0;
    bool inside = text_reasoning_inside(&m->reasoning), content = false;
    if (!inside && starts && g->plan.tools.mode != REQUEST_TOOLS_NONE) m->calls = true;
    if (m->calls || !length || text_tokenizer_is_special(tok, id)) return false;
    if (!g->room->options->split_reasoning) return true;
    text_reasoning_feed(&m->reasoning, bytes, length, see_content, &content);
    return !inside && (content || m->reasoning.held_count > 0);
}

static void collect_logprobs(generation *g, const generation_step *s)
{
    state *m = g->state;
    const text_tokenizer *tok = model_tokenizer(g->room->model);
    if (!m->asked.logprobs || !s->logprobs) return;
    for (size_t i = 0; i < s->id_count; i++)
        if (is_text(g, m, s->ids[i]))
            responses_write_logprob(&m->events.logprobs, tok, s->logprobs + i * s->logprob_stride, s->logprob_stride);
}

static void step(generation *g, const generation_step *s)
{
    state *m = g->state;
    collect_logprobs(g, s);
    for (size_t i = 0; i < s->part_count; i++)
        answer_blocks_add(&m->blocks, s->part[i].kind, s->part[i].text, s->part[i].length, responses_emit_block,
                          &m->events);
    if (s->finish == HY_RUNNING) return;
    answer_blocks_finish(&m->blocks, s->finish == HY_FINISH_STOP, responses_emit_block, &m->events);
    m->finish = s->finish;
}

/* The end of a stream, or the whole reply. */
static void tell_end(generation *g, const responses_state *s)
{
    state *m = g->state;
    if (!g->x) return;
    responses_head head = head_of(g);
    if (g->plan.stream) {
        char name[32];
        snprintf(name, sizeof name, "response.%s", s->status);
        responses_emit_response(&m->events, name, &head, s);
        http_stream_end(g->x);
    } else {
        buffer body = {0};
        responses_write(&body, &head, s, &m->blocks);
        http_reply_json(g->x, 200, &body);
        buffer_free(&body);
    }
    g->x = NULL;
}

static void fail(generation *g, const request_fault *f)
{
    state *m = g->state;
    if (!m || !m->asked.echo || (g->x && !(g->begun && g->plan.stream))) {
        if (g->x) generation_reply_fault(g->x, f);
        g->x = NULL;
    }
    if (!m || !m->asked.echo) return;
    responses_state failed = {.status = "failed", .error = f->message};
    tell_end(g, &failed);
    if (m->asked.background && !m->cancelled) keep(g, &failed, &m->blocks, false, NULL);
}

static void end(generation *g)
{
    state *m = g->state;
    if (m->blocks.failed || (m->finish == HY_FINISH_CANCEL && !m->cancelled)) {
        bool memory = m->blocks.failed;
        request_fault fault = {.status = memory ? 500 : 503,
                               .type = memory ? "InternalServerError" : "ServiceUnavailableError"};
        snprintf(fault.message, sizeof fault.message, "%s",
                 memory ? "out of memory" : "The request was aborted before its answer was complete");
        fail(g, &fault);
        return;
    }
    generation_usage u = generation_usage_of(g, -1);
    responses_state s = {.status = m->cancelled                    ? "cancelled"
                                   : m->finish == HY_FINISH_LENGTH ? "incomplete"
                                                                   : "completed",
                         .has_usage = true,
                         .prompt = u.prompt_tokens,
                         .cached = u.reuse_known ? (size_t)u.reuse.tokens : 0,
                         .output = u.completion_tokens,
                         .reasoning = u.reasoning_tokens,
                         .draft_rounds = u.draft_rounds,
                         .drafts = u.drafts,
                         .drafts_accepted = u.drafts_accepted};
    tell_end(g, &s);
    if (!m->cancelled) keep(g, &s, &m->blocks, true, NULL);
}

static void release(generation *g)
{
    state *m = g->state;
    if (g->room->responses) responses_store_ended(g->room->responses, g->id, g);
    responses_asked_free(&m->asked);
    answer_blocks_free(&m->blocks);
    buffer_free(&m->events.logprobs);
}

static const generation_dialect dialect = {.prefix = "resp_",
                                           .state_size = sizeof(state),
                                           .read = read_body,
                                           .prepared = prepared,
                                           .begin = begin,
                                           .step = step,
                                           .end = end,
                                           .fail = fail,
                                           .release = release};

static void handle_create(void *room, http_exchange *x)
{
    generation_start(room, &dialect, x);
}

/* ---- Kept responses --------------------------------------------------------------------------------------------- */

/* NULL: replied that there is none. */
static const kept_response *find(generation_room *room, http_exchange *x)
{
    const char *id = http_parameter(x, "id");
    const kept_response *kept = room->responses && id ? responses_store_find(room->responses, id) : NULL;
    char message[160];
    snprintf(message, sizeof message, "Response with id '%.100s' not found.", id ? id : "");
    if (!kept) http_reply_error(x, 404, "invalid_request_error", "response_id", false, message);
    return kept;
}

static void handle_get(void *user, http_exchange *x)
{
    const char *stream = http_query(x, "stream");
    if (stream && strcmp(stream, "true") == 0) {
        http_reply_error(x, 400, "invalid_request_error", "stream", false,
                         "the events of a response are not kept, only the response; leave out stream");
        return;
    }
    const kept_response *kept = find(user, x);
    if (kept) http_reply_json(x, 200, &kept->json);
}

static void handle_cancel(void *user, http_exchange *x)
{
    generation_room *room = user;
    const kept_response *kept = find(room, x);
    if (!kept) return;
    if (!kept->background) {
        http_reply_error(x, 400, "invalid_request_error", "response_id", false,
                         "Cannot cancel a synchronous response.");
        return;
    }
    generation *g = kept->running;
    state *m = g ? g->state : NULL;
    if (m && !m->cancelled) {
        m->cancelled = true;
        keep(g, &(responses_state){.status = "cancelled"}, NULL, false, g);
        generation_cancel(g);
        kept = responses_store_find(room->responses, http_parameter(x, "id"));
    }
    if (kept)
        http_reply_json(x, 200, &kept->json);
    else
        http_reply_error(x, 500, "InternalServerError", NULL, false, "out of memory");
}

void responses_routes(generation_room *room)
{
    if (room->options->store_responses) room->responses = responses_store_open(MOST_KEPT, MOST_KEPT_BYTES);
    http_route(room->http, "POST", "/v1/responses", handle_create, room);
    http_route(room->http, "GET", "/v1/responses/{id}", handle_get, room);
    http_route(room->http, "POST", "/v1/responses/{id}/cancel", handle_cancel, room);
}

void responses_close(generation_room *room)
{
    responses_store_close(room->responses);
    room->responses = NULL;
}
