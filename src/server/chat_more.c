#include "server/chat_more.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/memory.h"
#include "server/chat.h"
#include "server/completions.h"

/* ---- Batches: choice i answers conversation i / n --------------------------------------------------------------- */

static bool read_batch(generation *g, json_t *body, request_fault *fault)
{
    enum { MOST = 1024 };
    json_t *list = request_value(body, "messages"), *conversation;
    size_t i;
    if (!json_is_array(list) || !json_is_array(json_array_get(list, 0)))
        return request_schema(fault, "body", "messages", list ? "list_type" : "missing",
                              list ? "Input should be a list of conversations" : "Field required");
    if (json_array_size(list) > MOST)
        return request_refuse(fault, "messages", "messages has %zu conversations, at most %d are allowed",
                              json_array_size(list), MOST);
    /* The first conversation stands for the request while its other fields are read. */
    json_t *read = json_array(), *one = json_copy(body);
    json_object_set(one, "messages", json_array_get(list, 0));
    bool ok = chat_read(g, one, fault);
    json_array_foreach(list, i, conversation)
    {
        json_t *messages = ok ? chat_messages(conversation, fault) : NULL;
        if (!messages) ok = false;
        if (messages) json_array_append_new(read, messages);
    }
    json_decref(one);
    if (ok && g->plan.stream) ok = request_refuse(fault, "stream", "batches do not stream");
    if (ok && g->plan.beam_search) ok = request_refuse(fault, "use_beam_search", "batches have no beam search");
    json_decref(g->plan.messages);
    g->plan.messages = read, g->plan.batch = true;
    return ok;
}

static generation_dialect batch; /* a chat that reads differently; filled before the first request */

static void post_batch(void *user, http_exchange *x)
{
    generation_start(user, &batch, x);
}

/* ---- Rendering: the request that /inference/v1/generate takes --------------------------------------------------- */

/* Rendered prompts keep the parameters as JSON, in place of a chat's or a completion's own state. */
typedef struct rendered {
    json_t *params, *body; /* owned */
} rendered;

static json_t *sampling_json(const generation_plan *p, const json_t *body)
{
    static const char *const copied[] = {"stop",           "stop_token_ids",      "include_stop_str_in_output",
                                         "ignore_eos",     "logit_bias",          "allowed_token_ids",
                                         "bad_words",      "skip_special_tokens", "structured_outputs",
                                         "prompt_logprobs"};
    const hy_sampling *s = &p->sampling.s;
    json_t *o = json_pack("{si sf sf si sf sf sf sf si}", "n", p->n, "temperature", (double)s->temperature, "top_p",
                          (double)s->top_p, "top_k", s->top_k, "min_p", (double)s->min_p, "repetition_penalty",
                          (double)s->repetition_penalty, "frequency_penalty", (double)s->frequency_penalty,
                          "presence_penalty", (double)s->presence_penalty, "min_tokens", s->min_tokens);
    if (s->seed != -1) json_object_set_new(o, "seed", json_integer(s->seed));
    if (s->max_tokens > 0) json_object_set_new(o, "max_tokens", json_integer(s->max_tokens));
    if (s->logprobs >= 0) json_object_set_new(o, "logprobs", json_integer(s->logprobs));
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        json_t *v = request_value(body, copied[i]);
        if (v) json_object_set(o, copied[i], v);
    }
    const json_t *format = request_value(body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    json_t *outputs = NULL;
    if (type && strcmp(type, "json_object") == 0) outputs = json_pack("{sb}", "json_object", 1);
    if (type && strcmp(type, "json_schema") == 0)
        outputs = json_pack("{sO}", "json", json_object_get(json_object_get(format, "json_schema"), "schema"));
    if (outputs) json_object_set_new(o, "structured_outputs", outputs);
    return o;
}

/* Reads as the dialect would, into a state of its own. */
static bool read_as(generation *g, const generation_dialect *as, json_t *body, request_fault *fault)
{
    rendered *r = g->state;
    void *state = calloc(1, as->state_size);
    if (!state) return request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
    g->state = state;
    bool ok = as->read(g, body, fault);
    if (as->release) as->release(g);
    free(state);
    g->state = r;
    g->plan.no_generation = g->keep_prompts = true;
    if (ok && g->plan.tools.mode > REQUEST_TOOLS_AUTO)
        return request_refuse(fault, "tool_choice", "a forced tool call cannot be rendered");
    r->params = ok ? sampling_json(&g->plan, body) : NULL;
    r->body = json_incref(body);
    return ok;
}

static bool read_chat(generation *g, json_t *body, request_fault *fault)
{
    return read_as(g, &chat_dialect, body, fault);
}

static bool read_completion(generation *g, json_t *body, request_fault *fault)
{
    return read_as(g, &completion_dialect, body, fault);
}

static void write_rendered(json_writer *w, const generation *g, size_t prompt)
{
    const rendered *r = g->state;
    const hy_ids *ids = &g->prompts[prompt];
    char *params = json_dumps(r->params, JSON_COMPACT);
    writer_object(w);
    writer_key(w, "request_id"), writer_text(w, g->id);
    openai_write_ids(w, "token_ids", ids->data, ids->count);
    writer_key(w, "sampling_params"), writer_raw(w, params ? params : "{}", params ? strlen(params) : 2);
    writer_key(w, "model"), writer_text(w, g->model);
    writer_key(w, "stream"), writer_bool(w, g->plan.stream);
    writer_key(w, "stream_options"), writer_null(w);
    writer_key(w, "cache_salt"), writer_text(w, g->plan.salt);
    writer_key(w, "priority"), writer_integer(w, g->plan.priority);
    writer_key(w, "kv_transfer_params"), writer_null(w);
    writer_key(w, "features"), writer_null(w);
    writer_end(w);
    free(params);
}

static void send_rendered(generation *g, bool list)
{
    buffer body = {0};
    json_writer w = {.out = &body};
    if (list) writer_array(&w);
    for (size_t i = 0; i < g->prompt_count; i++) write_rendered(&w, g, i);
    if (list) writer_end(&w);
    http_reply_json(g->x, 200, &body);
    g->x = NULL;
    buffer_free(&body);
}

static void chat_rendered(generation *g)
{
    send_rendered(g, false);
}

static void completion_rendered(generation *g)
{
    send_rendered(g, true);
}

static void release(generation *g)
{
    rendered *r = g->state;
    json_decref(r->params);
    json_decref(r->body);
}

static const generation_dialect render_chat = {.prefix = "chatcmpl-",
                                               .state_size = sizeof(rendered),
                                               .read = read_chat,
                                               .prepared = chat_rendered,
                                               .fail = generation_fail,
                                               .release = release};
static const generation_dialect render_completion = {.prefix = "cmpl-",
                                                     .state_size = sizeof(rendered),
                                                     .read = read_completion,
                                                     .prepared = completion_rendered,
                                                     .fail = generation_fail,
                                                     .release = release};

static void post_render_chat(void *user, http_exchange *x)
{
    generation_start(user, &render_chat, x);
}

static void post_render_completion(void *user, http_exchange *x)
{
    generation_start(user, &render_completion, x);
}

/* ---- /invocations: what a body is, its fields tell ----------------------------------------------------------------
 */

typedef struct invocation {
    generation_room *room;
    http_exchange *x;
    char *text; /* owned */
    size_t length;
    json_t *body;
    request_fault fault;
} invocation;

static void dispatch(void *user)
{
    invocation *i = user;
    if (!i->body)
        generation_reply_fault(i->x, &i->fault);
    else if (request_value(i->body, "messages"))
        generation_start_with(i->room, &chat_dialect, i->x, i->body);
    else if (request_value(i->body, "prompt"))
        generation_start_with(i->room, &completion_dialect, i->x, i->body);
    else {
        http_reply_error(i->x, 415, "Unsupported Media Type", NULL, false,
                         "Cannot find suitable handler for request: it needs messages or a prompt");
        json_decref(i->body);
    }
    free(i->text);
    free(i);
}

static void parse(void *user)
{
    invocation *i = user;
    i->body = request_parse(i->text, i->length, &i->fault);
    http_post(i->room->http, dispatch, i);
}

static void post_invocations(void *user, http_exchange *x)
{
    generation_room *room = user;
    size_t length;
    const char *text = http_body(x, &length), *type = http_header(x, "Content-Type");
    invocation *i = calloc(1, sizeof *i);
    request_fault fault;
    request_failed(&fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
    if (!type || strncasecmp(type, "application/json", 16) != 0)
        request_schema(&fault, "body", "", "model_attributes_type",
                       "The body must be JSON with Content-Type application/json");
    else if (i && (i->text = memory_string(text, length))) {
        i->room = room, i->x = x, i->length = length;
        http_drop_body(x);
        if (work_give(room->work, parse, i)) return;
        free(i->text);
    }
    free(i);
    generation_reply_fault(x, &fault);
}

void chat_more_routes(generation_room *room)
{
    http_server *h = room->http;
    batch = chat_dialect, batch.read = read_batch;
    http_route(h, "POST", "/v1/chat/completions/batch", post_batch, room);
    http_route(h, "POST", "/v1/chat/completions/render", post_render_chat, room);
    http_route(h, "POST", "/v1/completions/render", post_render_completion, room);
    http_route(h, "POST", "/invocations", post_invocations, room);
}
