#include "server/messages_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "server/dialect_fields.h"

enum { MAX_TOOLS = 4096 };

/* Where in the messages one is, for faults: "messages.3.content.1". */
typedef struct place {
    char text[64];
} place;

static place place_of(size_t message, int block)
{
    place p;
    if (block < 0)
        snprintf(p.text, sizeof p.text, "messages.%zu", message);
    else
        snprintf(p.text, sizeof p.text, "messages.%zu.content.%d", message, block);
    return p;
}

static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static json_t *string_of(const buffer *b)
{
    return json_stringn(b->length ? b->data : "", b->length);
}

static bool is(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

/* ---- The system text -------------------------------------------------------------------------------------------- */

static void add_system(buffer *system, const json_t *text)
{
    static const char billing[] = "x-anthropic-billing-header";
    const char *s = json_string_value(text);
    if (s && strncmp(s, billing, sizeof billing - 1) != 0) buffer_append(system, s, json_string_length(text));
}

static bool read_system(const json_t *content, const char *where, buffer *system, request_fault *fault)
{
    if (!content || json_is_null(content)) return true;
    if (json_is_string(content)) {
        buffer_append(system, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content)) return request_refuse(fault, NULL, "%s: a string or a list of text blocks", where);
    size_t i;
    json_t *block;
    json_array_foreach(content, i, block)
    {
        if (!is(text_of(block, "type"), "text") || !text_of(block, "text"))
            return request_refuse(fault, NULL, "%s.%zu: only text blocks can stand here", where, i);
        add_system(system, json_object_get(block, "text"));
    }
    return true;
}

/* ---- Turns ------------------------------------------------------------------------------------------------------ */

/* A turn while its blocks are read. */
typedef struct turn {
    bool assistant;
    size_t number;
    json_t *out;           /* messages of the chat */
    json_t *texts, *calls; /* content parts; calls */
    buffer reasoning;
    bool reasons;
} turn;

static bool refuse_block(const char *where, const char *type, request_fault *fault)
{
    if (!type) return request_refuse(fault, NULL, "%s.type: Field required", where);
    if (is(type, "image") || is(type, "document"))
        return request_refuse(fault, NULL, "%s: %s blocks are not supported by this server, which takes text only",
                              where, type);
    return request_refuse(fault, NULL, "%s: blocks of the type %.60s are not supported here", where, type);
}

static bool add_result_text(buffer *text, bool *any, const char *s, size_t length)
{
    if (*any) buffer_char(text, '\n');
    *any = true;
    buffer_append(text, s, length);
    return true;
}

static bool read_result_item(const json_t *item, const char *where, buffer *text, bool *any, request_fault *fault)
{
    const char *type = text_of(item, "type");
    const json_t *s = json_object_get(item, "text");
    if (is(type, "text") && json_is_string(s))
        return add_result_text(text, any, json_string_value(s), json_string_length(s));
    const char *name = text_of(item, "tool_name");
    if (is(type, "tool_reference") && name) return add_result_text(text, any, name, strlen(name));
    if (is(type, "text") || is(type, "tool_reference"))
        return request_refuse(fault, NULL, "%s: a block of the type %s has no text", where, type);
    return refuse_block(where, type, fault);
}

static bool read_result(turn *t, const json_t *block, const char *where, request_fault *fault)
{
    const json_t *content = json_object_get(block, "content"), *failed = json_object_get(block, "is_error");
    const char *id = text_of(block, "tool_use_id");
    buffer text = {0};
    bool ok = true, any = false;
    if (t->assistant) return request_refuse(fault, NULL, "%s: tool_result blocks belong to the user", where);
    if (!id) return request_refuse(fault, NULL, "%s.tool_use_id: Field required", where);
    if (failed && !json_is_boolean(failed) && !json_is_null(failed))
        return request_refuse(fault, NULL, "%s.is_error: Input should be a valid boolean", where);
    if (json_is_string(content)) {
        buffer_append(&text, json_string_value(content), json_string_length(content));
    } else if (json_is_array(content)) {
        for (size_t i = 0; ok && i < json_array_size(content); i++)
            ok = read_result_item(json_array_get(content, i), where, &text, &any, fault);
    } else if (content && !json_is_null(content)) {
        ok = request_refuse(fault, NULL, "%s.content: a string or a list of blocks", where);
    }
    if (ok) {
        bool mark = json_is_true(failed) && (!text.length || strncasecmp(text.data, "error", 5) != 0);
        buffer marked = {0};
        if (mark) buffer_string(&marked, "Error: ");
        buffer_append(&marked, text.data, text.length);
        json_array_append_new(
            t->out, json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", id, "content", string_of(&marked)));
        buffer_free(&marked);
    }
    buffer_free(&text);
    return ok;
}

static bool read_use(turn *t, const json_t *block, const char *where, request_fault *fault)
{
    const char *id = text_of(block, "id"), *name = text_of(block, "name");
    json_t *input = json_object_get(block, "input");
    if (!t->assistant) return request_refuse(fault, NULL, "%s: tool_use blocks belong to the assistant", where);
    if (!id || !name) return request_refuse(fault, NULL, "%s.%s: Field required", where, id ? "name" : "id");
    if (input && !json_is_object(input) && !json_is_null(input))
        return request_refuse(fault, NULL, "%s.input: Input should be a valid dictionary", where);
    json_t *arguments = json_is_object(input) ? json_incref(input) : json_object();
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", arguments);
    json_array_append_new(t->calls, call);
    return true;
}

static bool read_thinking(turn *t, const json_t *block, const char *where, request_fault *fault)
{
    const json_t *thinking = json_object_get(block, "thinking");
    if (!t->assistant) return request_refuse(fault, NULL, "%s: thinking blocks belong to the assistant", where);
    if (!json_is_string(thinking)) return request_refuse(fault, NULL, "%s.thinking: Field required", where);
    buffer_append(&t->reasoning, json_string_value(thinking), json_string_length(thinking));
    t->reasons = true;
    return true;
}

static bool read_block(turn *t, const json_t *block, int number, request_fault *fault)
{
    place at = place_of(t->number, number);
    if (!json_is_object(block)) return request_refuse(fault, NULL, "%s: Input should be a valid dictionary", at.text);
    const char *type = text_of(block, "type");
    json_t *text = json_object_get(block, "text");
    if (is(type, "text")) {
        if (!json_is_string(text)) return request_refuse(fault, NULL, "%s.text: Field required", at.text);
        if (json_string_length(text))
            json_array_append_new(t->texts, json_pack("{s:s, s:O}", "type", "text", "text", text));
        return true;
    }
    if (is(type, "thinking")) return read_thinking(t, block, at.text, fault);
    if (is(type, "redacted_thinking")) return true;
    if (is(type, "tool_use")) return read_use(t, block, at.text, fault);
    if (is(type, "tool_result")) return read_result(t, block, at.text, fault);
    return refuse_block(at.text, type, fault);
}

/* The turn's own message, after the results that it began with. */
static void end_turn(turn *t)
{
    size_t texts = json_array_size(t->texts);
    bool calls = json_array_size(t->calls) > 0;
    if (!t->assistant && !texts) return;
    json_t *message = json_pack("{s:s}", "role", t->assistant ? "assistant" : "user");
    if (texts == 1)
        json_object_set(message, "content", json_object_get(json_array_get(t->texts, 0), "text"));
    else
        json_object_set_new(message, "content", texts ? json_incref(t->texts) : json_string(""));
    if (t->reasons) json_object_set_new(message, "reasoning", string_of(&t->reasoning));
    if (calls) json_object_set(message, "tool_calls", t->calls);
    json_array_append_new(t->out, message);
}

static bool read_turn(const json_t *message, size_t number, json_t *out, request_fault *fault)
{
    const char *role = text_of(message, "role");
    json_t *content = json_object_get(message, "content");
    place at = place_of(number, -1);
    if (!is(role, "user") && !is(role, "assistant"))
        return request_refuse(fault, NULL, "%s.role: Input should be 'user', 'assistant' or 'system'", at.text);
    if (json_is_string(content)) {
        json_array_append_new(out, json_pack("{s:s, s:O}", "role", role, "content", content));
        return true;
    }
    if (!json_is_array(content))
        return request_refuse(fault, NULL, "%s.content: a string or a list of blocks", at.text);
    turn t = {
        .assistant = is(role, "assistant"), .number = number, .out = out, .texts = json_array(), .calls = json_array()};
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(content); i++)
        ok = read_block(&t, json_array_get(content, i), (int)i, fault);
    if (ok) end_turn(&t);
    json_decref(t.texts), json_decref(t.calls);
    buffer_free(&t.reasoning);
    return ok;
}

static bool read_messages(const json_t *body, generation_plan *plan, request_fault *fault)
{
    const json_t *messages = json_object_get(body, "messages");
    if (!messages) return request_refuse(fault, NULL, "messages: Field required");
    if (!json_is_array(messages)) return request_refuse(fault, NULL, "messages: Input should be a valid list");
    if (!json_array_size(messages)) return request_refuse(fault, NULL, "messages: at least one message is required");
    plan->messages = json_array();
    buffer system = {0};
    bool ok = read_system(json_object_get(body, "system"), "system", &system, fault);
    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        place at = place_of(i, -1);
        if (!json_is_object(message))
            ok = request_refuse(fault, NULL, "%s: Input should be a valid dictionary", at.text);
        else if (is(text_of(message, "role"), "system"))
            ok = read_system(json_object_get(message, "content"), at.text, &system, fault);
        else
            ok = read_turn(message, i, plan->messages, fault);
    }
    if (ok && system.length)
        json_array_insert_new(plan->messages, 0,
                              json_pack("{s:s, s:o}", "role", "system", "content", string_of(&system)));
    buffer_free(&system);
    if (ok && !json_array_size(plan->messages)) return request_refuse(fault, NULL, "messages: all of them are empty");
    return ok;
}

/* A last turn of the assistant that is text alone is where the answer goes on. */
static void continue_last(generation_plan *plan)
{
    const json_t *last = json_array_get(plan->messages, json_array_size(plan->messages) - 1);
    const json_t *content = json_object_get(last, "content");
    if (!is(text_of(last, "role"), "assistant") || json_object_get(last, "tool_calls")) return;
    if (json_is_string(content) && !json_string_length(content)) return;
    json_object_set_new(plan->kwargs, "continue_final_message", json_true());
    json_object_set_new(plan->kwargs, "add_generation_prompt", json_false());
}

/* ---- Tools ------------------------------------------------------------------------------------------------------ */

static bool read_tool(const json_t *tool, size_t i, json_t *list, request_fault *fault)
{
    if (!json_is_object(tool)) return request_refuse(fault, NULL, "tools.%zu: Input should be a valid dictionary", i);
    const char *type = text_of(tool, "type");
    json_t *name = json_object_get(tool, "name"), *schema = json_object_get(tool, "input_schema");
    if (type && strcmp(type, "custom") != 0 && !schema)
        return request_refuse(fault, NULL, "tools.%zu: tools of the type %.60s are not there on this server", i, type);
    if (!json_is_string(name) || !json_string_length(name))
        return request_refuse(fault, NULL, "tools.%zu.name: Field required", i);
    if (!json_is_object(schema)) return request_refuse(fault, NULL, "tools.%zu.input_schema: Field required", i);
    json_t *function = json_pack("{s:O}", "name", name), *parameters = json_copy(schema), *value;
    if (!json_object_get(parameters, "type")) json_object_set_new(parameters, "type", json_string("object"));
    if ((value = request_value(tool, "description"))) json_object_set(function, "description", value);
    json_object_set_new(function, "parameters", parameters);
    static const char *const more[] = {"strict", "defer_loading"};
    for (size_t k = 0; k < sizeof more / sizeof *more; k++)
        if ((value = request_value(tool, more[k]))) json_object_set(function, more[k], value);
    json_array_append_new(list, json_pack("{s:s, s:o}", "type", "function", "function", function));
    return true;
}

static bool has_tool(const json_t *list, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(list, i, tool) if (is(text_of(json_object_get(tool, "function"), "name"), name)) return true;
    return false;
}

static bool read_choice(const json_t *body, request_tools *tools, request_fault *fault)
{
    const json_t *choice = request_value(body, "tool_choice");
    tools->mode = tools->list ? REQUEST_TOOLS_AUTO : REQUEST_TOOLS_NONE;
    if (!choice) return true;
    const char *type = text_of(choice, "type"), *name = text_of(choice, "name");
    const json_t *single = request_value(choice, "disable_parallel_tool_use");
    if (single && !json_is_boolean(single))
        return request_refuse(fault, NULL, "tool_choice.disable_parallel_tool_use: Input should be a valid boolean");
    tools->parallel = !json_is_true(single);
    if (is(type, "none")) {
        tools->mode = REQUEST_TOOLS_NONE;
        return true;
    }
    if (is(type, "auto")) return true;
    if (!is(type, "any") && !is(type, "tool"))
        return request_refuse(fault, NULL, "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'");
    if (!tools->list) return request_refuse(fault, NULL, "tool_choice: there are no tools to choose from");
    if (is(type, "any")) {
        tools->mode = REQUEST_TOOLS_REQUIRED;
        return true;
    }
    if (!name) return request_refuse(fault, NULL, "tool_choice.name: Field required");
    if (!has_tool(tools->list, name))
        return request_refuse(fault, NULL, "tool_choice.name: there is no tool with the name %.100s", name);
    if (strlen(name) >= sizeof tools->name)
        return request_refuse(fault, NULL, "tool_choice.name: names have at most %zu bytes", sizeof tools->name - 1);
    tools->mode = REQUEST_TOOLS_NAMED;
    snprintf(tools->name, sizeof tools->name, "%s", name);
    return true;
}

static bool read_tools(const json_t *body, generation_plan *plan, request_fault *fault)
{
    const json_t *tools = request_value(body, "tools");
    plan->tools.parallel = true;
    if (tools && !json_is_array(tools)) return request_refuse(fault, NULL, "tools: Input should be a valid list");
    size_t count = json_array_size(tools);
    if (count > MAX_TOOLS) return request_refuse(fault, NULL, "tools: at most %d are allowed", MAX_TOOLS);
    if (count) plan->tools.list = json_array();
    for (size_t i = 0; i < count; i++)
        if (!read_tool(json_array_get(tools, i), i, plan->tools.list, fault)) return false;
    return read_choice(body, &plan->tools, fault);
}

/* ---- The rest --------------------------------------------------------------------------------------------------- */

static bool read_format(const json_t *format, const char *where, generation_plan *plan, request_fault *fault)
{
    if (!format) return true;
    const char *type = text_of(format, "type");
    json_t *schema = request_value(format, "schema");
    if (!schema) schema = request_value(format, "json_schema");
    if (!is(type, "json_schema")) return request_refuse(fault, NULL, "%s.type: Input should be 'json_schema'", where);
    if (!json_is_object(schema)) return request_refuse(fault, NULL, "%s.schema: Field required", where);
    json_t *chat =
        json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name", "answer", "schema", schema);
    bool ok = request_response_format(chat, &plan->grammar, fault);
    json_decref(chat);
    return ok;
}

static bool read_output(const json_t *body, generation_plan *plan, request_fault *fault)
{
    const json_t *config = request_value(body, "output_config"), *format = request_value(body, "output_format");
    if (config && !json_is_object(config))
        return request_refuse(fault, NULL, "output_config: Input should be a valid dictionary");
    const json_t *own = request_value(config, "format");
    return dialect_effort(body, DIALECT_MESSAGES, &plan->effort, fault) &&
           read_format(own ? own : format, own ? "output_config.format" : "output_format", plan, fault);
}

static bool read_thinking_mode(const json_t *body, bool always, generation_plan *plan, messages_asked *asked,
                               request_fault *fault)
{
    const json_t *thinking = request_value(body, "thinking");
    if (!thinking) return true;
    const char *type = text_of(thinking, "type");
    const json_t *budget = request_value(thinking, "budget_tokens");
    if (!is(type, "enabled") && !is(type, "adaptive") && !is(type, "disabled"))
        return request_refuse(fault, NULL, "thinking.type: Input should be 'enabled', 'adaptive' or 'disabled'");
    if (budget && (!json_is_integer(budget) || json_integer_value(budget) < 1))
        return request_refuse(fault, NULL, "thinking.budget_tokens: Input should be an integer of at least 1");
    asked->budget = json_integer_value(budget);
    if (asked->budget > INT32_MAX) asked->budget = INT32_MAX;
    const json_t *display = request_value(thinking, "display");
    if (display && !is(json_string_value(display), "summarized") && !is(json_string_value(display), "omitted"))
        return request_refuse(fault, NULL, "thinking.display: Input should be 'summarized' or 'omitted'");
    asked->hide_thinking = is(json_string_value(display), "omitted");
    if (always && is(type, "disabled"))
        return request_refuse(fault, NULL,
                              "thinking.type: this model always thinks, so it cannot be disabled; leave it out and ask "
                              "for less with output_config.effort");
    if (!always && !json_object_get(plan->kwargs, "thinking_mode"))
        json_object_set_new(plan->kwargs, "thinking_mode", json_string(type));
    return true;
}

static bool read_kwargs(const json_t *body, generation_plan *plan, request_fault *fault)
{
    const json_t *kwargs = request_value(body, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs))
        return request_refuse(fault, NULL, "chat_template_kwargs: Input should be a valid dictionary");
    plan->kwargs = kwargs ? json_copy((json_t *)kwargs) : json_object();
    return true;
}

/* What cannot be left undone in silence. */
static bool refuse_unsupported(const json_t *body, request_fault *fault)
{
    static const char *const names[] = {"mcp_servers", "container", "kv_transfer_params", "ec_transfer_params"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = request_value(body, names[i]);
        bool empty = !v || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
                     (json_is_object(v) && !json_object_size(v));
        if (!empty) return request_refuse(fault, NULL, "%s: not supported by this server", names[i]);
    }
    /* Thinking is kept as it is sent: an edit that says so asks for nothing. */
    const json_t *edits = json_object_get(request_value(body, "context_management"), "edits");
    size_t i;
    json_t *edit;
    json_array_foreach(edits, i, edit)
    {
        const char *type = text_of(edit, "type");
        bool nothing = type && strncmp(type, "clear_thinking", 14) == 0 && is(text_of(edit, "keep"), "all");
        if (!nothing)
            return request_refuse(fault, NULL,
                                  "context_management.edits.%zu: edits of the type %.60s are not "
                                  "supported by this server",
                                  i, type ? type : "(none)");
    }
    return true;
}

static bool read_length(const json_t *body, int64_t *max_tokens, request_fault *fault)
{
    const json_t *most = request_value(body, "max_tokens");
    if (!most) return request_refuse(fault, NULL, "max_tokens: Field required");
    if (!json_is_integer(most)) return request_refuse(fault, NULL, "max_tokens: Input should be a valid integer");
    *max_tokens = json_integer_value(most);
    if (*max_tokens < 1 || *max_tokens > INT32_MAX)
        return request_refuse(fault, NULL, "max_tokens: Input should be greater than 0");
    return true;
}

/* What chat completions have too, under their names. */
static bool read_fields(const json_t *body, json_t **fields, request_fault *fault)
{
    const json_t *stops = request_value(body, "stop_sequences");
    size_t i;
    json_t *stop;
    if (stops && !json_is_array(stops))
        return request_refuse(fault, NULL, "stop_sequences: Input should be a valid list");
    json_array_foreach(stops, i, stop) if (!json_is_string(stop) || !json_string_length(stop)) return request_refuse(
        fault, NULL, "stop_sequences.%zu: Input should be a string that is not empty", i);
    *fields = dialect_fields(body);
    if (stops) json_object_set(*fields, "stop", (json_t *)stops);
    return true;
}

bool messages_request_read(const json_t *body, messages_options options, generation_plan *plan, messages_asked *asked,
                           request_fault *fault)
{
    plan->parse = true;
    if ((!options.count && !read_length(body, &asked->max_tokens, fault)) || !read_kwargs(body, plan, fault) ||
        !read_messages(body, plan, fault) || !read_tools(body, plan, fault) || !read_output(body, plan, fault) ||
        !read_thinking_mode(body, options.always_thinks, plan, asked, fault) || !refuse_unsupported(body, fault) ||
        !read_fields(body, &asked->fields, fault))
        return false;
    continue_last(plan);
    return true;
}
