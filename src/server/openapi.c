#include "server/openapi.h"

#include <stdio.h>
#include <string.h>

#include "server/chat.h"
#include "server/completions.h"
#include "server/derender.h"
#include "server/generate.h"
#include "server/tokens.h"

/* The fields of a body: up to three tables. */
typedef struct fields {
    struct {
        const request_field *field;
        const size_t *count;
    } table[3];
    const char *required[2];
} fields;

static const fields chats = {{{chat_fields, &chat_field_count},
                              {openai_fields, &openai_field_count},
                              {request_sampling_fields, &request_sampling_field_count}},
                             {"messages"}};
static const fields completion = {{{completion_fields, &completion_field_count},
                                   {openai_fields, &openai_field_count},
                                   {request_sampling_fields, &request_sampling_field_count}},
                                  {"prompt"}};
static const fields tokens = {{{generate_fields, &generate_field_count}}, {"token_ids", "sampling_params"}};
static const fields tokenize = {{{tokenize_fields, &tokenize_field_count}}, {NULL}};
static const fields detokenize = {{{detokenize_fields, &detokenize_field_count}}, {"tokens"}};

/* What the two dialects read by hand, or as chats do, under names of their own. */
static const request_field length_fields[] = {
    {"max_tokens", REQUEST_INTEGER, 0, 1, INT32_MAX, "most tokens of the answer; required"},
};
static const size_t length_field_count = sizeof length_fields / sizeof *length_fields;
static const request_field message_fields[] = {
    {"messages", REQUEST_LIST, 0, 0, 0, "the conversation; required"},
    {"model", REQUEST_STRING, 0, 0, 0, "a served name; null: the first one"},
    {"system", REQUEST_ANY, 0, 0, 0, "a text or a list of text blocks"},
    {"stream", REQUEST_BOOL, 0, 0, 0, "the answer comes as server-sent events"},
    {"stop_sequences", REQUEST_LIST, 0, 0, 0, "texts that end the answer"},
    {"tools", REQUEST_LIST, 0, 0, 0, "functions that may be called"},
    {"tool_choice", REQUEST_ANY, 0, 0, 0, "auto, any, none or a tool"},
    {"thinking", REQUEST_OBJECT, 0, 0, 0, "type, budget_tokens, display"},
    {"output_config", REQUEST_OBJECT, 0, 0, 0, "effort, format"},
    {"output_format", REQUEST_OBJECT, 0, 0, 0, "the same as output_config.format"},
    {"chat_template_kwargs", REQUEST_OBJECT, 0, 0, 0, "variables of the template"},
    {"speculation", REQUEST_OBJECT, 0, 0, 0, "num_speculative_tokens (0: none), rejection_sample_method"},
    {"context_management", REQUEST_ANY, 0, 0, 0, "edits that keep everything"},
    {"metadata", REQUEST_ANY, 0, 0, 0, NULL},
};
static const size_t message_field_count = sizeof message_fields / sizeof *message_fields;
static const request_field response_fields[] = {
    {"input", REQUEST_ANY, 0, 0, 0, "a text or a list of items; required"},
    {"model", REQUEST_STRING, 0, 0, 0, "a served name; null: the first one"},
    {"instructions", REQUEST_ANY, 0, 0, 0, "text before the conversation"},
    {"stream", REQUEST_BOOL, 0, 0, 0, "the answer comes as server-sent events"},
    {"max_output_tokens", REQUEST_INTEGER, 0, 1, INT32_MAX, "most tokens of the answer"},
    {"previous_response_id", REQUEST_STRING, 0, 0, 0, "goes on from a response that the server keeps"},
    {"store", REQUEST_BOOL, 0, 0, 0, "the response is kept, if the server keeps any (default true)"},
    {"background", REQUEST_BOOL, 0, 0, 0, "answered at once; the response is made meanwhile"},
    {"tools", REQUEST_LIST, 0, 0, 0, "functions that may be called"},
    {"tool_choice", REQUEST_ANY, 0, 0, 0, "none, auto, required or a function"},
    {"parallel_tool_calls", REQUEST_BOOL, 0, 0, 0, "false: at most one call"},
    {"reasoning", REQUEST_OBJECT, 0, 0, 0, "effort"},
    {"text", REQUEST_OBJECT, 0, 0, 0, "format: text, json_object or json_schema"},
    {"include", REQUEST_LIST, 0, 0, 0, "message.output_text.logprobs"},
    {"top_logprobs", REQUEST_INTEGER, 0, 0, 20, "log-probabilities of so many best tokens at each place"},
    {"truncation", REQUEST_STRING, 0, 0, 0, "disabled"},
    {"speculation", REQUEST_OBJECT, 0, 0, 0, "num_speculative_tokens (0: none), rejection_sample_method"},
    {"chat_template_kwargs", REQUEST_OBJECT, 0, 0, 0, "variables of the template"},
    {"metadata", REQUEST_ANY, 0, 0, 0, NULL},
    {"user", REQUEST_ANY, 0, 0, 0, NULL},
};
static const size_t response_field_count = sizeof response_fields / sizeof *response_fields;

static const fields message = {{{message_fields, &message_field_count},
                                {length_fields, &length_field_count},
                                {request_sampling_fields, &request_sampling_field_count}},
                               {"messages", "max_tokens"}};
static const fields counted = {
    {{message_fields, &message_field_count}, {request_sampling_fields, &request_sampling_field_count}}, {"messages"}};
static const fields response = {
    {{response_fields, &response_field_count}, {request_sampling_fields, &request_sampling_field_count}}, {"input"}};
static const fields derendered_chat = {{{derender_fields, &derender_field_count}}, {"model", "generate_response"}};
static const fields derendered_completion = {{{derender_fields, &derender_field_count}},
                                             {"model", "generate_responses"}};
static const fields object = {{{NULL, NULL}}, {NULL}};

typedef struct route {
    const char *method, *path, *summary;
    const fields *body; /* NULL: none */
    bool stream;        /* may answer with an event stream */
} route;

static const route routes[] = {
    {"post", "/v1/chat/completions", "An answer to a conversation", &chats, true},
    {"post", "/v1/chat/completions/batch", "Answers to several conversations", &chats, false},
    {"post", "/v1/chat/completions/render", "The prompt of a conversation as ids", &chats, false},
    {"post", "/v1/chat/completions/derender", "What generate answered to it as its answer", &derendered_chat, false},
    {"post", "/v1/completions", "Text that goes on", &completion, true},
    {"post", "/v1/completions/render", "Prompts as ids", &completion, false},
    {"post", "/v1/completions/derender", "What generate answered to them as their answer", &derendered_completion,
     false},
    {"post", "/v1/messages", "An answer to a conversation, in the Messages form", &message, true},
    {"post", "/v1/messages/count_tokens", "How many tokens a conversation has", &counted, false},
    {"post", "/v1/responses", "An answer to a conversation, in the Responses form", &response, true},
    {"get", "/v1/responses/{id}", "A response that is kept", NULL, false},
    {"post", "/v1/responses/{id}/cancel", "Ends a response that is made in the background", NULL, false},
    {"post", "/inference/v1/generate", "Ids in, ids out", &tokens, true},
    {"post", "/tokenize", "Text or a conversation to ids", &tokenize, false},
    {"post", "/detokenize", "Ids to text", &detokenize, false},
    {"post", "/invocations", "A chat or a completion, by what the body has", &object, true},
    {"get", "/v1/models", "The served names", NULL, false},
    {"get", "/v1/models/{model}", "One of them", NULL, false},
    {"get", "/health", "Whether a request would be answered", NULL, false},
    {"get", "/ping", "The same", NULL, false},
    {"post", "/ping", "The same", NULL, false},
    {"get", "/version", "The version", NULL, false},
    {"get", "/load", "Requests that are being answered", NULL, false},
    {"get", "/metrics", "Numbers for Prometheus", NULL, false},
};

/* ---- Schemas ---------------------------------------------------------------------------------------------------- */

static const char *type_of(request_kind kind)
{
    switch (kind) {
    case REQUEST_BOOL: return "boolean";
    case REQUEST_INTEGER: return "integer";
    case REQUEST_NUMBER: return "number";
    case REQUEST_STRING: return "string";
    case REQUEST_OBJECT: return "object";
    case REQUEST_LIST: return "array";
    default: return NULL;
    }
}

/* Null is no value: it counts as absent, which only what is required may not be. */
static void write_field(json_writer *w, const request_field *f, bool required)
{
    static const char prompt[] = "[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{}}]";
    const char *type = type_of(f->kind);
    writer_key(w, f->name);
    writer_object(w);
    if (f->about) writer_key(w, "description"), writer_text(w, f->about);
    if (f->kind == REQUEST_REFUSED) writer_key(w, "description"), writer_text(w, "not supported by this server");
    if (type) {
        writer_key(w, "anyOf");
        writer_array(w);
        writer_object(w);
        writer_key(w, "type"), writer_text(w, type);
        if (f->kind == REQUEST_LIST) writer_key(w, "items"), writer_object(w), writer_end(w);
        bool ranged = f->low != 0 || f->high != 0;
        if (ranged) writer_key(w, "minimum"), writer_number(w, f->low);
        if (ranged) writer_key(w, "maximum"), writer_number(w, f->high);
        writer_end(w);
        if (!required) {
            writer_object(w);
            writer_key(w, "type"), writer_text(w, "null");
            writer_end(w);
        }
        writer_end(w);
    } else if (required) {
        writer_key(w, "anyOf"), writer_raw(w, prompt, sizeof prompt - 1);
    }
    writer_end(w);
}

static bool is_required(const fields *body, const char *name)
{
    for (size_t i = 0; i < 2 && body->required[i]; i++)
        if (strcmp(body->required[i], name) == 0) return true;
    return false;
}

static void write_body(json_writer *w, const fields *body)
{
    writer_key(w, "requestBody");
    writer_object(w);
    writer_key(w, "required"), writer_bool(w, true);
    writer_key(w, "content");
    writer_object(w);
    writer_key(w, "application/json");
    writer_object(w);
    writer_key(w, "schema");
    writer_object(w);
    writer_key(w, "type"), writer_text(w, "object");
    if (body->required[0]) {
        writer_key(w, "required");
        writer_array(w);
        for (size_t i = 0; i < 2 && body->required[i]; i++) writer_text(w, body->required[i]);
        writer_end(w);
    }
    writer_key(w, "properties");
    writer_object(w);
    for (size_t t = 0; t < 3 && body->table[t].field; t++)
        for (size_t i = 0; i < *body->table[t].count; i++) {
            const request_field *f = &body->table[t].field[i];
            write_field(w, f, is_required(body, f->name));
        }
    for (int i = 0; i < 5; i++) writer_end(w);
}

/* An answer with a body of these types, up to the first NULL. */
static void write_answer(json_writer *w, const char *code, const char *about, const char *const types[2])
{
    writer_key(w, code);
    writer_object(w);
    writer_key(w, "description"), writer_text(w, about);
    if (types[0]) {
        writer_key(w, "content");
        writer_object(w);
        for (size_t i = 0; i < 2 && types[i]; i++) writer_key(w, types[i]), writer_object(w), writer_end(w);
        writer_end(w);
    }
    writer_end(w);
}

static void write_error(json_writer *w, const route *r, const char *code, const char *about)
{
    bool messages = strncmp(r->path, "/v1/messages", 12) == 0;
    writer_key(w, code);
    writer_object(w);
    writer_key(w, "description"), writer_text(w, about);
    writer_key(w, "content");
    writer_object(w);
    writer_key(w, "application/json");
    writer_object(w);
    writer_key(w, "schema");
    writer_object(w);
    writer_key(w, "$ref");
    writer_text(w, messages ? "#/components/schemas/MessagesError" : "#/components/schemas/Error");
    for (int i = 0; i < 4; i++) writer_end(w);
}

static void write_errors(json_writer *w, const route *r)
{
    write_error(w, r, "400", "the body is wrong, or asks for what cannot be or this server does not do");
    write_error(w, r, "404", "no such model");
    write_error(w, r, "413", "the body is too large");
    write_error(w, r, "415", "no form that the server knows");
    write_error(w, r, "503", "the server is busy, leaves, or cannot compute");
    write_error(w, r, "504", "the request's own deadline has passed");
}

/* The part of the path in braces, if there is one. */
static void write_parameter(json_writer *w, const char *path)
{
    const char *name = strchr(path, '{');
    if (!name) return;
    writer_key(w, "parameters");
    writer_array(w);
    writer_object(w);
    writer_key(w, "name"), writer_string(w, name + 1, strcspn(name + 1, "}"));
    writer_key(w, "in"), writer_text(w, "path");
    writer_key(w, "required"), writer_bool(w, true);
    writer_key(w, "schema");
    writer_object(w);
    writer_key(w, "type"), writer_text(w, "string");
    for (int i = 0; i < 3; i++) writer_end(w);
}

static void write_route(json_writer *w, const route *r)
{
    const char *types[2] = {"application/json", r->stream ? "text/event-stream" : NULL};
    if (strcmp(r->path, "/metrics") == 0) types[0] = "text/plain", types[1] = "application/openmetrics-text";
    if (strcmp(r->path, "/health") == 0 || strcmp(r->path, "/ping") == 0) types[0] = NULL;
    writer_key(w, r->method);
    writer_object(w);
    writer_key(w, "summary"), writer_text(w, r->summary);
    write_parameter(w, r->path);
    if (r->body) write_body(w, r->body);
    writer_key(w, "responses");
    writer_object(w);
    write_answer(w, "200", r->stream ? "the answer; with \"stream\" as server-sent events" : "the answer", types);
    if (strchr(r->path, '{')) {
        write_error(w, r, "400", "not for this one");
        write_error(w, r, "404", "there is none of this name");
    }
    if (r->body)
        write_errors(w, r);
    else
        write_answer(w, "503", "the server is busy, leaves, or cannot compute", (const char *const[2]){NULL, NULL});
    writer_end(w);
    writer_end(w);
}

void openapi_write(const generation_room *room, buffer *out)
{
    static const char error[] =
        "{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{\"type\":\"object\",\"required\":["
        "\"message\",\"type\",\"param\",\"code\"],\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{\"type\":"
        "\"string\"},\"param\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"code\":{\"type\":\"integer\"}}"
        "}}}";
    /* What HTTP itself refuses has the first form there too. */
    static const char messages_error[] =
        "{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"type\":{\"const\":\"error\"},\"error\":{"
        "\"type\":"
        "\"object\",\"required\":[\"message\",\"type\"],\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{"
        "\"type\":\"string\"}}}}}";
    json_writer w = {.out = out};
    (void)room;
    writer_object(&w);
    writer_key(&w, "openapi"), writer_text(&w, "3.1.0");
    writer_key(&w, "info");
    writer_object(&w);
    writer_key(&w, "title"), writer_text(&w, "Hayate");
    writer_key(&w, "version"), writer_text(&w, HY_VERSION);
    writer_end(&w);
    writer_key(&w, "paths");
    writer_object(&w);
    size_t count = sizeof routes / sizeof *routes;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(routes[i].path, routes[i - 1].path) != 0) {
            writer_key(&w, routes[i].path);
            writer_object(&w);
        }
        write_route(&w, &routes[i]);
        if (i + 1 == count || strcmp(routes[i].path, routes[i + 1].path) != 0) writer_end(&w);
    }
    writer_end(&w);
    writer_key(&w, "components");
    writer_object(&w);
    writer_key(&w, "schemas");
    writer_object(&w);
    writer_key(&w, "Error"), writer_raw(&w, error, sizeof error - 1);
    writer_key(&w, "MessagesError"), writer_raw(&w, messages_error, sizeof messages_error - 1);
    for (int i = 0; i < 3; i++) writer_end(&w);
}

static void get_openapi(void *user, http_exchange *x)
{
    buffer body = {0};
    openapi_write(user, &body);
    http_reply_json(x, 200, &body);
    buffer_free(&body);
}

/* A list of the routes, without scripts and without anything from elsewhere. */
static void get_docs(void *user, http_exchange *x)
{
    (void)user;
    buffer body = {0};
    buffer_string(&body,
                  "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
                  "content=\"width=device-width\"><title>Hayate: routes</title><style>body{font-family:sans-serif;"
                  "margin:2em auto;max-width:50em;padding:0 1em}td{padding:.2em 1em .2em 0}</style>"
                  "<h1>Routes</h1><p>Everything in full: <a href=\"openapi.json\">openapi.json</a></p><table>");
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        buffer_printf(&body, "<tr><td>%s<td><code>%s</code><td>%s",
                      strcmp(routes[i].method, "get") == 0 ? "GET" : "POST", routes[i].path, routes[i].summary);
    }
    buffer_string(&body, "</table></html>");
    http_reply(x, 200, "text/html; charset=utf-8", body.data, body.length);
    buffer_free(&body);
}

void openapi_routes(generation_room *room)
{
    if (room->options->no_docs) return;
    http_route(room->http, "GET", "/openapi.json", get_openapi, room);
    http_route(room->http, "GET", "/docs", get_docs, room);
}
