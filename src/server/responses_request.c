#include "server/responses_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/dialect_fields.h"

enum { MAX_TOOLS = 4096, MAX_TOP_LOGPROBS = 20 };

static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

/* ---- Items ------------------------------------------------------------------------------------------------------ */

/* The assistant's turn that is being put together; `message` NULL: none. */
typedef struct turns {
    json_t *list;    /* messages of the chat, owned by the caller */
    json_t *message; /* borrowed: the last of the list */
    buffer system;
    char where[48]; /* "input[3]" */
} turns;

static void end_turn(turns *t)
{
    t->message = NULL;
}

/* The assistant's turn, a new one if there is none or (reasoning, or text beside text) the last has gone too far. */
static json_t *assistant_turn(turns *t, bool fresh)
{
    if (!t->message || fresh) {
        t->message = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
        json_array_append_new(t->list, t->message);
    }
    return t->message;
}

static bool refuse_part(const turns *t, size_t i, const char *type, request_fault *fault)
{
    return request_refuse(fault, "input",
                          "%s.content[%zu]: parts of the type %.60s are not supported by this server, "
                          "which takes text only",
                          t->where, i, type ? type : "(none)");
}

/* The text of a content: a string or parts. */
static bool read_text(const turns *t, const json_t *content, buffer *out, request_fault *fault)
{
    if (json_is_string(content)) {
        buffer_append(out, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return request_refuse(fault, "input", "%s.content: a string or a list of parts", t->where);
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part)
    {
        const char *type = text_of(part, "type");
        bool refusal = is(type, "refusal");
        const json_t *text = json_object_get(part, refusal ? "refusal" : "text");
        bool known = refusal || is(type, "input_text") || is(type, "output_text") || is(type, "text") ||
                     is(type, "reasoning_text") || is(type, "summary_text");
        if (!known) return refuse_part(t, i, type, fault);
        if (!json_is_string(text))
            return request_refuse(fault, "input", "%s.content[%zu].%s: Field required", t->where, i,
                                  refusal ? "refusal" : "text");
        buffer_append(out, json_string_value(text), json_string_length(text));
    }
    return true;
}

static json_t *string_of(const buffer *b)
{
    return json_stringn(b->length ? b->data : "", b->length);
}

static void join_system(turns *t, const buffer *text)
{
    if (!text->length) return;
    if (t->system.length) buffer_string(&t->system, "\n\n");
    buffer_append(&t->system, text->data, text->length);
}

static bool add_message(turns *t, const json_t *item, request_fault *fault)
{
    const char *role = text_of(item, "role");
    bool assistant = is(role, "assistant"), system = is(role, "system") || is(role, "developer");
    if (!assistant && !system && !is(role, "user"))
        return request_refuse(fault, "input", "%s.role: Input should be 'user', 'assistant', 'system' or 'developer'",
                              t->where);
    buffer text = {0};
    bool ok = read_text(t, json_object_get(item, "content"), &text, fault);
    if (!assistant) end_turn(t);
    if (ok && system) {
        join_system(t, &text);
    } else if (ok && assistant) {
        const char *said = t->message ? text_of(t->message, "content") : NULL;
        json_object_set_new(assistant_turn(t, said && *said), "content", string_of(&text));
    } else if (ok) {
        json_array_append_new(t->list, json_pack("{s:s, s:o}", "role", "user", "content", string_of(&text)));
    }
    buffer_free(&text);
    return ok;
}

static bool add_reasoning(turns *t, const json_t *item, request_fault *fault)
{
    const json_t *content = request_value(item, "content"), *summary = request_value(item, "summary");
    buffer text = {0};
    bool own = json_array_size(content) || json_is_string(content);
    bool ok = own ? read_text(t, content, &text, fault) : !summary || read_text(t, summary, &text, fault);
    if (ok) {
        const char *said = t->message ? text_of(t->message, "content") : NULL;
        json_t *message = assistant_turn(t, (said && *said) || json_object_get(t->message, "tool_calls"));
        const json_t *before = json_object_get(message, "reasoning");
        buffer joined = {0};
        if (before) buffer_append(&joined, json_string_value(before), json_string_length(before));
        buffer_append(&joined, text.data, text.length);
        if (joined.length) json_object_set_new(message, "reasoning", string_of(&joined));
        buffer_free(&joined);
    }
    buffer_free(&text);
    return ok;
}

static bool add_call(turns *t, const json_t *item, request_fault *fault)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
           *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return request_refuse(fault, "input", "%s.%s: Field required", t->where,
                              !json_is_string(id)     ? "call_id"
                              : !json_is_string(name) ? "name"
                                                      : "arguments");
    json_t *message = assistant_turn(t, false), *calls = json_object_get(message, "tool_calls");
    if (!calls) json_object_set_new(message, "tool_calls", calls = json_array());
    json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name",
                                           name, "arguments", arguments));
    return true;
}

static bool add_output(turns *t, const json_t *item, request_fault *fault)
{
    json_t *id = json_object_get(item, "call_id"), *output = json_object_get(item, "output");
    if (!json_is_string(id)) return request_refuse(fault, "input", "%s.call_id: Field required", t->where);
    buffer text = {0};
    bool ok = read_text(t, output, &text, fault);
    if (ok)
        json_array_append_new(
            t->list, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", string_of(&text)));
    end_turn(t);
    buffer_free(&text);
    return ok;
}

static bool add_item(turns *t, const json_t *item, request_fault *fault)
{
    if (!json_is_object(item))
        return request_refuse(fault, "input", "%s: Input should be a valid dictionary", t->where);
    const char *type = text_of(item, "type");
    if (!type && json_object_get(item, "role")) type = "message";
    if (is(type, "message")) return add_message(t, item, fault);
    if (is(type, "reasoning")) return add_reasoning(t, item, fault);
    if (is(type, "function_call")) return add_call(t, item, fault);
    if (is(type, "function_call_output")) return add_output(t, item, fault);
    return request_refuse(fault, "input", "%s: items of the type %.60s are not supported by this server", t->where,
                          type ? type : "(none)");
}

static bool read_input(turns *t, const json_t *input, request_fault *fault)
{
    if (!input) return request_schema(fault, "body", "input", "missing", "Field required");
    if (json_is_string(input)) {
        json_array_append_new(t->list, json_pack("{s:s, s:O}", "role", "user", "content", input));
        return true;
    }
    if (!json_is_array(input))
        return request_schema(fault, "body", "input", "list_type", "Input should be a valid string or list");
    for (size_t i = 0; i < json_array_size(input); i++) {
        snprintf(t->where, sizeof t->where, "input[%zu]", i);
        if (!add_item(t, json_array_get(input, i), fault)) return false;
    }
    return true;
}

bool responses_request_turns(const json_t *body, const json_t *before, generation_plan *plan, responses_asked *asked,
                             request_fault *fault)
{
    const json_t *instructions = request_value(body, "instructions");
    if (instructions && !json_is_string(instructions))
        return request_schema(fault, "body", "instructions", "string_type", "Input should be a valid string");
    asked->turns = before ? json_copy((json_t *)before) : json_array();
    turns t = {.list = asked->turns};
    if (instructions) buffer_append(&t.system, json_string_value(instructions), json_string_length(instructions));
    bool ok = read_input(&t, request_value(body, "input"), fault);
    if (ok && !json_array_size(t.list)) ok = request_refuse(fault, "input", "input must not be empty");
    plan->messages = json_copy(asked->turns);
    if (ok && t.system.length)
        json_array_insert_new(plan->messages, 0,
                              json_pack("{s:s, s:o}", "role", "system", "content", string_of(&t.system)));
    buffer_free(&t.system);
    return ok;
}

/* ---- Tools ------------------------------------------------------------------------------------------------------ */

static bool read_tool(const json_t *tool, size_t i, json_t *list, request_fault *fault)
{
    const char *type = text_of(tool, "type");
    json_t *name = json_object_get(tool, "name"), *value;
    if (!is(type, "function"))
        return request_refuse(fault, "tools",
                              "tools[%zu]: tools of the type %.60s are not there on this server; only "
                              "functions are",
                              i, type ? type : "(none)");
    if (!json_is_string(name) || !json_string_length(name))
        return request_refuse(fault, "tools", "tools[%zu].name: Field required", i);
    json_t *function = json_pack("{s:O}", "name", name);
    static const char *const more[] = {"description", "parameters", "strict", "defer_loading"};
    for (size_t k = 0; k < sizeof more / sizeof *more; k++)
        if ((value = request_value(tool, more[k]))) json_object_set(function, more[k], value);
    json_array_append_new(list, json_pack("{s:s, s:o}", "type", "function", "function", function));
    return true;
}

static bool read_choice(const json_t *body, request_tools *tools, request_fault *fault)
{
    const json_t *choice = request_value(body, "tool_choice");
    const char *word = choice ? json_string_value(choice) : "auto", *name = text_of(choice, "name");
    tools->mode = tools->list ? REQUEST_TOOLS_AUTO : REQUEST_TOOLS_NONE;
    if (is(word, "auto")) return true;
    if (is(word, "none")) {
        tools->mode = REQUEST_TOOLS_NONE;
        return true;
    }
    if (!is(word, "required") && !is(text_of(choice, "type"), "function"))
        return request_refuse(fault, "tool_choice",
                              "tool_choice must be \"auto\", \"none\", \"required\" or "
                              "{\"type\": \"function\", \"name\": ...}");
    if (!tools->list) return request_refuse(fault, "tool_choice", "When using `tool_choice`, `tools` must be set.");
    if (word) {
        tools->mode = REQUEST_TOOLS_REQUIRED;
        return true;
    }
    bool found = false;
    for (size_t i = 0; name && i < json_array_size(tools->list); i++)
        found |= is(text_of(json_object_get(json_array_get(tools->list, i), "function"), "name"), name);
    if (!found || strlen(name) >= sizeof tools->name)
        return request_refuse(fault, "tool_choice", "tool_choice names the function %.100s, which is not in tools",
                              name ? name : "(none)");
    tools->mode = REQUEST_TOOLS_NAMED;
    snprintf(tools->name, sizeof tools->name, "%s", name);
    return true;
}

static bool read_tools(const json_t *body, generation_plan *plan, request_fault *fault)
{
    const json_t *tools = request_value(body, "tools"), *parallel = request_value(body, "parallel_tool_calls");
    if (tools && !json_is_array(tools))
        return request_schema(fault, "body", "tools", "list_type", "Input should be a valid list");
    if (parallel && !json_is_boolean(parallel))
        return request_schema(fault, "body", "parallel_tool_calls", "bool_type", "Input should be a valid boolean");
    plan->tools.parallel = !json_is_false(parallel);
    size_t count = json_array_size(tools);
    if (count > MAX_TOOLS) return request_refuse(fault, "tools", "at most %d tools are allowed", MAX_TOOLS);
    if (count) plan->tools.list = json_array();
    for (size_t i = 0; i < count; i++)
        if (!read_tool(json_array_get(tools, i), i, plan->tools.list, fault)) return false;
    return read_choice(body, &plan->tools, fault);
}

/* ---- The rest --------------------------------------------------------------------------------------------------- */

static bool read_format(const json_t *body, generation_plan *plan, request_fault *fault)
{
    const json_t *text = request_value(body, "text"), *format = request_value(text, "format");
    if (text && !json_is_object(text))
        return request_schema(fault, "body", "text", "dict_type", "Input should be a valid dictionary");
    if (!format) return true;
    json_t *chat;
    if (is(text_of(format, "type"), "json_schema")) {
        json_t *inner = json_copy((json_t *)format);
        json_object_del(inner, "type");
        chat = json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", inner);
    } else {
        chat = json_incref((json_t *)format);
    }
    bool ok = request_response_format(chat, &plan->grammar, fault);
    json_decref(chat);
    if (!ok && is(fault->param, "response_format")) snprintf(fault->param, sizeof fault->param, "text.format");
    return ok;
}

static bool read_effort(const json_t *body, generation_plan *plan, request_fault *fault)
{
    const json_t *reasoning = request_value(body, "reasoning");
    if (reasoning && !json_is_object(reasoning))
        return request_schema(fault, "body", "reasoning", "dict_type", "Input should be a valid dictionary");
    return dialect_effort(body, DIALECT_RESPONSES, &plan->effort, fault);
}

static bool read_include(const json_t *body, responses_asked *asked, request_fault *fault)
{
    const json_t *include = request_value(body, "include");
    if (include && !json_is_array(include))
        return request_schema(fault, "body", "include", "list_type", "Input should be a valid list");
    size_t i;
    json_t *what;
    json_array_foreach(include, i, what)
    {
        const char *name = json_string_value(what);
        /* Reasoning is sent in clear: nothing of it is lost to a client that wants it encrypted for the next turn. */
        if (is(name, "reasoning.encrypted_content")) continue;
        if (!is(name, "message.output_text.logprobs"))
            return request_refuse(fault, "include", "include: %.100s is not there on this server",
                                  name ? name : "what is no string");
        asked->logprobs = true;
    }
    if (asked->top_logprobs && !asked->logprobs)
        return request_refuse(fault, "top_logprobs",
                              "top_logprobs needs include to have \"message.output_text.logprobs\"");
    return true;
}

struct scalars {
    const char *previous, *truncation;
    int64_t max_tokens, top_logprobs;
    bool background, store;
    json_t *kwargs;
};

static bool read_scalars(const json_t *body, struct scalars *s, request_fault *fault)
{
    static const request_field fields[] = {
        {"previous_response_id", REQUEST_STRING, offsetof(struct scalars, previous), 0, 0, NULL},
        {"truncation", REQUEST_STRING, offsetof(struct scalars, truncation), 0, 0, NULL},
        {"max_output_tokens", REQUEST_INTEGER, offsetof(struct scalars, max_tokens), 1, INT32_MAX, NULL},
        {"top_logprobs", REQUEST_INTEGER, offsetof(struct scalars, top_logprobs), 0, MAX_TOP_LOGPROBS, NULL},
        {"background", REQUEST_BOOL, offsetof(struct scalars, background), 0, 0, NULL},
        {"store", REQUEST_BOOL, offsetof(struct scalars, store), 0, 0, NULL},
        {"chat_template_kwargs", REQUEST_OBJECT, offsetof(struct scalars, kwargs), 0, 0, NULL},
        {"prompt", REQUEST_REFUSED, 0, 0, 0, NULL},
        {"conversation", REQUEST_REFUSED, 0, 0, 0, NULL},
        {"kv_transfer_params", REQUEST_REFUSED, 0, 0, 0, NULL},
        {"ec_transfer_params", REQUEST_REFUSED, 0, 0, 0, NULL},
        {"context_management", REQUEST_REFUSED, 0, 0, 0, NULL},
    };
    if (request_value(body, "prompt"))
        return request_refuse(fault, "prompt", "prompt templates are not kept by this server; send input");
    return request_read(body, "body", fields, sizeof fields / sizeof *fields, s, fault);
}

static bool check_store(const struct scalars *s, bool storing, request_fault *fault)
{
    static const char needs[] = "needs a server that keeps responses (VLLM_ENABLE_RESPONSES_API_STORE=1, or "
                                "--enable-responses-store)";
    if (s->previous && !storing) return request_refuse(fault, "previous_response_id", "previous_response_id %s", needs);
    if (s->background && !storing) return request_refuse(fault, "background", "background %s", needs);
    if (s->background && !s->store)
        return request_refuse(fault, "background", "background can only be used when `store` is true");
    if (s->truncation && strcmp(s->truncation, "disabled") != 0)
        return request_refuse(fault, "truncation",
                              "truncation other than \"disabled\" is not supported by this server");
    return true;
}

static void set_or(json_t *echo, const json_t *body, const char *name, json_t *missing)
{
    json_t *value = request_value(body, name);
    if (value) json_decref(missing);
    json_object_set_new(echo, name, value ? json_incref(value) : missing);
}

/* What the response repeats, in its order. */
static json_t *make_echo(const json_t *body, const responses_asked *asked, const generation_plan *plan)
{
    json_t *echo = json_object();
    json_object_set_new(echo, "background", json_boolean(asked->background));
    static const char *const nulls[] = {"instructions",
                                        "max_output_tokens",
                                        "max_tool_calls",
                                        "previous_response_id",
                                        "prompt_cache_key",
                                        "safety_identifier",
                                        "user"};
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++) set_or(echo, body, nulls[i], json_null());
    set_or(echo, body, "metadata", json_object());
    json_object_set_new(echo, "parallel_tool_calls", json_boolean(plan->tools.parallel));
    json_object_set_new(echo, "prompt", json_null());
    json_object_set_new(echo, "reasoning", json_pack("{s:O?, s:n}", "effort", plan->effort, "summary"));
    set_or(echo, body, "service_tier", json_string("auto"));
    json_object_set_new(echo, "store", json_boolean(asked->store));
    set_or(echo, body, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    set_or(echo, body, "tool_choice", json_string("auto"));
    set_or(echo, body, "tools", json_array());
    json_object_set_new(echo, "top_logprobs", asked->logprobs ? json_integer(asked->top_logprobs) : json_null());
    set_or(echo, body, "truncation", json_string("disabled"));
    return echo;
}

bool responses_request_read(const json_t *body, bool storing, generation_plan *plan, responses_asked *asked,
                            request_fault *fault)
{
    struct scalars s = {.store = true};
    plan->parse = true;
    if (!read_scalars(body, &s, fault) || !check_store(&s, storing, fault)) return false;
    plan->kwargs = s.kwargs ? json_incref(s.kwargs) : json_object();
    plan->background = s.background;
    asked->previous = s.previous, asked->max_tokens = s.max_tokens, asked->top_logprobs = (int)s.top_logprobs;
    asked->store = s.store && storing, asked->background = s.background;
    if (!read_include(body, asked, fault) || !read_tools(body, plan, fault) || !read_format(body, plan, fault) ||
        !read_effort(body, plan, fault))
        return false;
    asked->fields = dialect_fields(body);
    asked->echo = make_echo(body, asked, plan);
    return true;
}

void responses_asked_free(responses_asked *asked)
{
    json_decref(asked->fields), json_decref(asked->turns), json_decref(asked->echo);
    *asked = (responses_asked){0};
}
