#include "text/template_parts.h"

#include "base/error.h"
#include "base/memory.h"
#include "text/json_read.h"
#include "text/python_text.h"
#include "text/reasoning.h"

#include <stdlib.h>
#include <string.h>

#define NS "]<]minimax[>["
#define BOD "]~!b["
#define BOS "]~b]"
#define EOS "[e~["
#define IMAGE "]<]image[>["
#define VIDEO "]<]video[>["

/* The fixed parts of M3's prompt. They are part of what the model was trained on: every byte counts. */
#define IDENTITY                                                                                                       \
    "Your model version is MiniMax-M3, developed by MiniMax. Knowledge cutoff: January 2026. Founded in early 2022, "  \
    "MiniMax is a global AI foundation model company committed to advancing the frontiers of AI towards AGI."
#define HOW_TO_THINK                                                                                                   \
    "You have a thinking capability that allows you to reason step by step before responding. When thinking is "       \
    "enabled, wrap your reasoning in " TEXT_THINK_OPEN TEXT_THINK_CLOSE " tags before your response. When thinking "   \
    "is disabled, begin your response directly after the " TEXT_THINK_CLOSE " prefix. When thinking is adaptive, "     \
    "decide on your own whether to think for the current turn.\n"
#define ENABLED                                                                                                        \
    "Current thinking mode: enabled. You MUST think step by step before every response, including after receiving "    \
    "function/tool results.\n"
#define DISABLED "Current thinking mode: disabled. Do not output any thinking process.\n"
#define ADAPTIVE                                                                                                       \
    "Current thinking mode: adaptive. You are encouraged to think for complex decision-making, multi-step "            \
    "reasoning, or when analyzing function/tool results.\n"
#define DEVELOPER "You are a helpful assistant."
#define TOOLS_HEAD                                                                                                     \
    "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"                                     \
    "Here are the tools available in JSONSchema format:\n\n<tools>\n"
#define TOOLS_USAGE                                                                                                    \
    "</tools>\n\nTo call tools, wrap all invocations in a single " NS "<tool_call>" NS "</tool_call> block. "          \
    "Parameter values containing nested objects or arrays are recursively expanded into XML elements. Example:\n\n" NS \
    "<tool_call>\n" NS "<invoke name=\"tool-name-1\">" NS "<param-1>value-1" NS "</param-1>" NS "<param-2>" NS         \
    "<item>" NS "<key-a>val-a" NS "</key-a>" NS "<key-b>val-b" NS "</key-b>" NS "</item>" NS "</param-2>" NS           \
    "</invoke>\n" NS "<invoke name=\"tool-name-2\">" NS "<param-1>value-1" NS "</param-1>" NS "</invoke>\n" NS         \
    "</tool_call>"

enum { NESTING_LIMIT = 200 }; /* levels of a tool call's arguments; rendering recurses */

typedef enum thinking { THINK_UNSET, THINK_ENABLED, THINK_DISABLED, THINK_ADAPTIVE, THINK_OTHER } thinking;

typedef struct render {
    buffer *out;
    hy_error *err;
    const json_t *messages;
    thinking thinking;
    const json_t *identity; /* model_identity, NULL when not given */
    bool generate, continue_final;
    bool had_call;      /* the last assistant turn called a tool */
    buffer text;        /* scratch: content of a message */
    size_t final_start; /* where the last message's content lies in `out` */
    size_t final_end;
    bool final_seen;
} render;

static void put(render *r, const char *s)
{
    buffer_string(r->out, s);
}

/* ---- Looking at messages -------------------------------------------------------------------------------------- */

const char *template_kind_of(const json_t *j)
{
    switch (json_typeof(j)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_NULL: return "null";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "a number";
    }
}

bool template_absent(const json_t *j)
{
    return !j || json_is_null(j);
}

/* Empty strings, lists and objects, zero and false, as a template's `if` has it. */
static bool truthy(const json_t *j)
{
    if (template_absent(j) || json_is_false(j)) return false;
    if (json_is_string(j)) return json_string_length(j) > 0;
    if (json_is_array(j)) return json_array_size(j) > 0;
    if (json_is_object(j)) return json_object_size(j) > 0;
    if (json_is_number(j)) return json_number_value(j) != 0;
    return true;
}

static const json_t *message(const render *r, size_t i)
{
    return json_array_get(r->messages, i);
}

static bool has_role(const render *r, size_t i, const char *role)
{
    const char *have = json_string_value(json_object_get(message(r, i), "role"));
    return have && strcmp(have, role) == 0;
}

hy_status template_check_messages(const json_t *messages, hy_error *err)
{
    if (!json_is_array(messages)) return error_set(err, HY_BAD_INPUT, "messages is not a list");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        if (!json_is_object(m))
            return error_set(err, HY_BAD_INPUT, "messages[%zu] is %s: give an object with a role and a content", i,
                             template_kind_of(m));
        if (!json_is_string(json_object_get(m, "role")))
            return error_set(err, HY_BAD_INPUT, "messages[%zu].role is not a string", i);
    }
    return HY_OK;
}

/* ---- Content -------------------------------------------------------------------------------------------------- */

static void append_json_string(const json_t *j, buffer *out)
{
    buffer_append(out, json_string_value(j), json_string_length(j));
}

/* One part of a content list. */
static hy_status append_part(render *r, const json_t *part, size_t i, size_t k, buffer *out)
{
    if (json_is_string(part)) {
        append_json_string(part, out);
        return HY_OK;
    }
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        return error_set(r->err, HY_BAD_INPUT,
                         "messages[%zu].content[%zu] is neither a string nor an object with a type", i, k);
    if (strcmp(type, "text") == 0) {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text))
            return error_set(r->err, HY_BAD_INPUT, "messages[%zu].content[%zu].text is not a string", i, k);
        append_json_string(text, out);
    }
    if (strcmp(type, "image") == 0) buffer_string(out, IMAGE);
    if (strcmp(type, "video") == 0) buffer_string(out, VIDEO);
    return HY_OK;
}

/* The text of message i's content. `between` stands between the parts of a list. */
static hy_status append_content(render *r, size_t i, const char *between, buffer *out)
{
    const json_t *content = json_object_get(message(r, i), "content");
    if (template_absent(content)) return HY_OK;
    if (json_is_string(content)) {
        append_json_string(content, out);
        return HY_OK;
    }
    if (!json_is_array(content))
        return error_set(r->err, HY_BAD_INPUT, "messages[%zu].content is %s: give a string or a list of parts", i,
                         template_kind_of(content));
    for (size_t k = 0; k < json_array_size(content); k++) {
        if (k) buffer_string(out, between);
        hy_status s = append_part(r, json_array_get(content, k), i, k, out);
        if (s) return s;
    }
    return HY_OK;
}

/* Remembers where the content of the last message lies, for continue_final_message. */
static void note_final(render *r, size_t i, size_t start)
{
    if (i + 1 != json_array_size(r->messages)) return;
    r->final_seen = true;
    r->final_start = start, r->final_end = r->out->length;
}

/* ---- System and developer ------------------------------------------------------------------------------------- */

static void put_thinking(render *r)
{
    put(r, "\n\n<thinking_instructions>\n" HOW_TO_THINK);
    if (r->thinking == THINK_ENABLED) put(r, ENABLED);
    if (r->thinking == THINK_DISABLED) put(r, DISABLED);
    if (r->thinking == THINK_ADAPTIVE || r->thinking == THINK_UNSET) put(r, ADAPTIVE);
    put(r, "</thinking_instructions>");
}

hy_status template_check_tool(const json_t *tool, size_t i, hy_error *err)
{
    const json_t *function = json_object_get(tool, "function");
    if (!json_is_object(function)) return error_set(err, HY_BAD_INPUT, "tools[%zu].function is not an object", i);
    const json_t *description = json_object_get(function, "description"),
                 *parameters = json_object_get(function, "parameters");
    if (!json_is_string(json_object_get(function, "name")))
        return error_set(err, HY_BAD_INPUT, "tools[%zu].function.name is not a string", i);
    if (!template_absent(description) && !json_is_string(description))
        return error_set(err, HY_BAD_INPUT, "tools[%zu].function.description is not a string", i);
    if (!template_absent(parameters) && !json_is_object(parameters))
        return error_set(err, HY_BAD_INPUT, "tools[%zu].function.parameters is not an object", i);
    return HY_OK;
}

/* The function alone, its known keys in this order; the first three always, the others when not null. */
static hy_status put_tool(render *r, const json_t *tool, size_t i)
{
    static const char *const keys[] = {"name", "description", "parameters", "strict", "defer_loading"};
    const json_t *function = json_object_get(tool, "function");
    hy_status s = template_check_tool(tool, i, r->err);
    if (s) return s;
    put(r, "<tool>{");
    for (int k = 0; k < 5; k++) {
        const json_t *value = json_object_get(function, keys[k]);
        if (k > 2 && template_absent(value)) continue;
        buffer_printf(r->out, "%s\"%s\": ", k ? ", " : "", keys[k]);
        python_json(value, r->out);
    }
    put(r, "}</tool>\n");
    return HY_OK;
}

static hy_status put_tools(render *r, const json_t *tools)
{
    if (template_absent(tools)) return HY_OK;
    if (!json_is_array(tools)) return error_set(r->err, HY_BAD_INPUT, "tools is not a list");
    if (!json_array_size(tools)) return HY_OK;
    put(r, TOOLS_HEAD);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        hy_status s = put_tool(r, json_array_get(tools, i), i);
        if (s) return s;
    }
    put(r, TOOLS_USAGE);
    return HY_OK;
}

/* The two leading blocks; *next is the first message after those that they took. */
static hy_status put_head(render *r, const json_t *tools, size_t *next)
{
    hy_status s = HY_OK;
    size_t i = 0;
    put(r, BOD BOS "system\n");
    size_t start = r->out->length;
    if (has_role(r, i, "root")) {
        if (truthy(json_object_get(message(r, i), "content")))
            s = append_content(r, i, "", r->out);
        else
            put(r, IDENTITY);
        note_final(r, i++, start);
    } else {
        put(r, IDENTITY);
    }
    if (s) return s;
    put_thinking(r);
    put(r, EOS "\n" BOS "developer\n");
    start = r->out->length;
    bool own = has_role(r, i, "system") || has_role(r, i, "developer");
    if (own && truthy(json_object_get(message(r, i), "content")))
        s = append_content(r, i, "", r->out);
    else if (r->identity)
        append_json_string(r->identity, r->out);
    else
        put(r, DEVELOPER);
    if (own) note_final(r, i++, start);
    *next = i;
    if (!s) s = put_tools(r, tools);
    put(r, EOS "\n");
    return s;
}

/* ---- Turns ---------------------------------------------------------------------------------------------------- */

/* The last occurrence of `what` in s[length], NULL if there is none. */
static const char *find_last(const char *s, size_t length, const char *what)
{
    size_t n = strlen(what);
    for (size_t at = length; at >= n; at--)
        if (memcmp(s + at - n, what, n) == 0) return s + at - n;
    return NULL;
}

static void strip_newlines(const char **s, size_t *length)
{
    while (*length && (*s)[0] == '\n') (*s)++, (*length)--;
    while (*length && (*s)[*length - 1] == '\n') (*length)--;
}

/*
 * Splits an assistant's content that carries its reasoning inline: reasoning is what stands before the first closer and
 * after the last opener of that, content what follows the last closer. False when there is no closer.
 */
static bool split_inline(const char *s, size_t length, const char **reasoning, size_t *reasoning_length,
                         const char **content, size_t *content_length)
{
    const char *last = find_last(s, length, TEXT_THINK_CLOSE);
    if (!last) return false;
    const char *first = s;
    while (memcmp(first, TEXT_THINK_CLOSE, strlen(TEXT_THINK_CLOSE)) != 0) first++;
    *reasoning = s, *reasoning_length = (size_t)(first - s);
    strip_newlines(reasoning, reasoning_length);
    const char *open = find_last(*reasoning, *reasoning_length, TEXT_THINK_OPEN);
    if (open) {
        const char *after = open + strlen(TEXT_THINK_OPEN);
        *reasoning_length -= (size_t)(after - *reasoning);
        *reasoning = after;
        strip_newlines(reasoning, reasoning_length);
    }
    *content = last + strlen(TEXT_THINK_CLOSE);
    *content_length = (size_t)(s + length - *content);
    strip_newlines(content, content_length);
    return true;
}

/* A value inside a tool call: elements for objects and lists, text for the rest, nothing escaped. */
static hy_status put_xml(render *r, const json_t *value, int depth)
{
    const char *key;
    json_t *item;
    size_t i;
    hy_status s = HY_OK;
    if (depth > NESTING_LIMIT)
        return error_set(r->err, HY_BAD_INPUT, "arguments of a tool call are nested deeper than %d levels",
                         NESTING_LIMIT);
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        json_object_foreach((json_t *)value, key, item)
        {
            if (json_is_null(item)) continue;
            buffer_printf(r->out, NS "<%s>", key);
            if ((s = put_xml(r, item, depth + 1))) return s;
            buffer_printf(r->out, NS "</%s>", key);
        }
        return HY_OK;
    case JSON_ARRAY:
        json_array_foreach(value, i, item)
        {
            put(r, NS "<item>");
            if ((s = put_xml(r, item, depth + 1))) return s;
            put(r, NS "</item>");
        }
        return HY_OK;
    case JSON_STRING: append_json_string(value, r->out); return HY_OK;
    case JSON_NULL: return HY_OK;
    default:
        python_json(value, r->out); /* true, false, numbers */
        return HY_OK;
    }
}

hy_status template_arguments(const json_t *given, size_t i, size_t k, json_t **owned, hy_error *err)
{
    *owned = NULL;
    if (template_absent(given) || (json_is_string(given) && !json_string_length(given))) {
        *owned = json_object();
        return *owned ? HY_OK : error_memory(err, "arguments", 0);
    }
    if (json_is_object(given)) {
        *owned = json_incref((json_t *)given);
        return HY_OK;
    }
    hy_error inner = {0};
    if (json_is_string(given)) {
        json_t *parsed = json_read(json_string_value(given), json_string_length(given),
                                   JSON_DECODE_ANY | JSON_ALLOW_NUL, HY_BAD_INPUT, "", &inner);
        if (json_is_object(parsed)) {
            *owned = parsed;
            return HY_OK;
        }
        json_decref(parsed);
    }
    return error_set(err, HY_BAD_INPUT, "messages[%zu].tool_calls[%zu].function.arguments is not a JSON object%s%s", i,
                     k, *inner.message ? ": " : "", inner.message);
}

static hy_status put_call(render *r, const json_t *call, size_t i, size_t k)
{
    const json_t *function = json_object_get(call, "function");
    if (!truthy(function)) function = call;
    const json_t *name = json_object_get(function, "name");
    if (!json_is_string(name))
        return error_set(r->err, HY_BAD_INPUT, "messages[%zu].tool_calls[%zu].function.name is not a string", i, k);
    json_t *arguments;
    hy_status s = template_arguments(json_object_get(function, "arguments"), i, k, &arguments, r->err);
    if (s) return s;
    put(r, NS "<invoke name=\"");
    append_json_string(name, r->out);
    put(r, "\">");
    s = put_xml(r, arguments, 0);
    json_decref(arguments);
    put(r, NS "</invoke>\n");
    return s;
}

static hy_status put_calls(render *r, size_t i)
{
    const json_t *calls = json_object_get(message(r, i), "tool_calls");
    r->had_call = false;
    if (template_absent(calls)) return HY_OK;
    if (!json_is_array(calls))
        return error_set(r->err, HY_BAD_INPUT, "messages[%zu].tool_calls is %s: give a list", i,
                         template_kind_of(calls));
    if (!json_array_size(calls)) return HY_OK;
    put(r, NS "<tool_call>\n");
    for (size_t k = 0; k < json_array_size(calls); k++) {
        hy_status s = put_call(r, json_array_get(calls, k), i, k);
        if (s) return s;
    }
    put(r, NS "</tool_call>");
    r->had_call = true;
    return HY_OK;
}

hy_status template_reasoning(const json_t *message, size_t i, const json_t **out, hy_error *err)
{
    static const char *const names[] = {"reasoning", "reasoning_content"};
    *out = NULL;
    for (int n = 0; n < 2; n++) {
        const json_t *j = json_object_get(message, names[n]);
        if (template_absent(j)) continue;
        if (!json_is_string(j))
            return error_set(err, HY_BAD_INPUT, "messages[%zu].%s is %s: give a string", i, names[n],
                             template_kind_of(j));
        if (!*out) *out = j;
    }
    return HY_OK;
}

static hy_status put_assistant(render *r, size_t i)
{
    const json_t *given;
    hy_status s = template_reasoning(message(r, i), i, &given, r->err);
    buffer_clear(&r->text);
    if (!s) s = append_content(r, i, "", &r->text);
    if (s) return s;
    const char *content = r->text.data, *reasoning = "";
    size_t content_length = r->text.length, reasoning_length = 0;
    if (given)
        reasoning = json_string_value(given), reasoning_length = json_string_length(given);
    else if (content_length)
        split_inline(content, content_length, &reasoning, &reasoning_length, &content, &content_length);
    put(r, BOS "ai\n");
    if (reasoning_length) {
        put(r, TEXT_THINK_OPEN);
        buffer_append(r->out, reasoning, reasoning_length);
    }
    put(r, TEXT_THINK_CLOSE);
    size_t start = r->out->length;
    buffer_append(r->out, content, content_length);
    note_final(r, i, start);
    s = put_calls(r, i);
    put(r, EOS "\n");
    return s;
}

/* A list of texts is one text of several lines; with pictures in it the parts follow each other as they are. */
static const char *between_results(const json_t *content)
{
    for (size_t k = 0; k < json_array_size(content); k++) {
        const char *type = json_string_value(json_object_get(json_array_get(content, k), "type"));
        if (!json_is_string(json_array_get(content, k)) && (!type || strcmp(type, "text") != 0)) return "";
    }
    return "\n";
}

static hy_status put_result(render *r, size_t i, size_t first)
{
    if (!r->had_call)
        return error_set(r->err, HY_BAD_INPUT,
                         "Message has tool role, but there was no previous assistant message with a tool call!");
    if (i == first || !has_role(r, i - 1, "tool")) put(r, BOS "tool");
    put(r, "\n<response>");
    size_t start = r->out->length;
    hy_status s = append_content(r, i, between_results(json_object_get(message(r, i), "content")), r->out);
    note_final(r, i, start);
    put(r, "</response>");
    if (!has_role(r, i + 1, "tool")) put(r, EOS "\n");
    return s;
}

static hy_status put_user(render *r, size_t i)
{
    put(r, BOS "user\n");
    size_t start = r->out->length;
    hy_status s = append_content(r, i, "", r->out);
    note_final(r, i, start);
    put(r, EOS "\n");
    return s;
}

static hy_status put_turns(render *r, size_t first)
{
    hy_status s = HY_OK;
    for (size_t i = first; !s && i < json_array_size(r->messages); i++) {
        if (has_role(r, i, "assistant")) s = put_assistant(r, i);
        if (has_role(r, i, "tool")) s = put_result(r, i, first);
        if (has_role(r, i, "user")) s = put_user(r, i);
    }
    return s;
}

/* ---- The whole ------------------------------------------------------------------------------------------------ */

/* A boolean variable; false when it is there and is none. */
static bool flag(const json_t *kwargs, const char *name, bool missing, bool *out)
{
    const json_t *j = json_object_get(kwargs, name);
    *out = template_absent(j) ? missing : json_is_true(j);
    return template_absent(j) || json_is_boolean(j);
}

hy_status template_ending(const json_t *kwargs, bool *generate, bool *continue_final, hy_error *err)
{
    if (!flag(kwargs, "continue_final_message", false, continue_final))
        return error_set(err, HY_BAD_INPUT, "continue_final_message is not a boolean");
    if (!flag(kwargs, "add_generation_prompt", !*continue_final, generate))
        return error_set(err, HY_BAD_INPUT, "add_generation_prompt is not a boolean");
    if (*generate && *continue_final)
        return error_set(
            err, HY_BAD_INPUT,
            "continue_final_message and add_generation_prompt exclude each other: set one of them to false");
    return HY_OK;
}

static hy_status read_kwargs(render *r, const json_t *kwargs)
{
    static const char *const modes[] = {"", "enabled", "disabled", "adaptive"};
    if (!template_absent(kwargs) && !json_is_object(kwargs))
        return error_set(r->err, HY_BAD_INPUT, "chat_template_kwargs is %s: give an object", template_kind_of(kwargs));
    hy_status s = template_ending(kwargs, &r->generate, &r->continue_final, r->err);
    if (s) return s;
    const json_t *mode = json_object_get(kwargs, "thinking_mode");
    r->thinking = mode ? THINK_OTHER : THINK_UNSET;
    for (int m = THINK_ENABLED; m <= THINK_ADAPTIVE; m++)
        if (json_is_string(mode) && strcmp(json_string_value(mode), modes[m]) == 0) r->thinking = (thinking)m;
    r->identity = json_object_get(kwargs, "model_identity");
    if (r->identity && !json_is_string(r->identity))
        return error_set(r->err, HY_BAD_INPUT, "model_identity is %s: give a string", template_kind_of(r->identity));
    return HY_OK;
}

/* Cuts what stands after the last message's content, and the white space at its end. */
static hy_status cut_final(render *r)
{
    if (!r->final_seen)
        return error_set(r->err, HY_BAD_INPUT,
                         "continue_final_message: the last message is missing or of a role that is not rendered");
    size_t end = r->final_end;
    while (end > r->final_start && strchr(" \t\n\v\f\r", r->out->data[end - 1]) && r->out->data[end - 1]) end--;
    if (buffer_ok(r->out)) r->out->length = end, r->out->data[end] = 0;
    return HY_OK;
}

hy_status text_template_render(const text_template *chat, const json_t *messages, const json_t *tools,
                               const json_t *kwargs, buffer *out, hy_error *err)
{
    if (chat->kind == TEXT_TEMPLATE_BROKEN) return text_template_usable(chat, err);
    if (chat->kind == TEXT_TEMPLATE_INTERPRETED) return template_run(chat, messages, tools, kwargs, out, err);
    render r = {.out = out, .err = err, .messages = messages};
    size_t next = 0;
    hy_status s = template_check_messages(messages, err);
    if (!s) s = read_kwargs(&r, kwargs);
    if (!s) s = put_head(&r, tools, &next);
    if (!s) s = put_turns(&r, next);
    if (!s && r.generate) {
        put(&r, BOS "ai\n");
        if (r.thinking == THINK_ENABLED) put(&r, TEXT_THINK_OPEN);
        if (r.thinking == THINK_DISABLED) put(&r, TEXT_THINK_CLOSE);
    }
    if (!s && r.continue_final) s = cut_final(&r);
    bool ok = buffer_ok(out) && buffer_ok(&r.text);
    buffer_free(&r.text);
    if (!s && !ok) return error_memory(err, "the prompt's text", out->length);
    return s;
}
