/* Conversations through a template that is interpreted: what it sees, and the end of the text. */
#include "text/template_parts.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Stands behind the content of the last message while the template runs, so that its end is found again. */
#define END_MARK "HAYATE_CONTINUES_THIS_MESSAGE"

typedef struct run {
    const text_template *chat;
    hy_error *err;
    bool parts, wrap; /* contents may be lists; strings become lists */
    bool continue_final;
    size_t count;
} run;

static hy_status no_memory(run *r)
{
    return error_memory(r->err, "a conversation", 0);
}

/* ---- Content --------------------------------------------------------------------------------------------------- */

static json_t *text_part(const char *text, size_t length)
{
    json_t *part = json_object();
    json_object_set_new(part, "type", json_string("text"));
    json_object_set_new(part, "text", json_stringn(text, length));
    return part;
}

/* A part that is known to be right: a string or an object with a type, and a text's text. */
static hy_status check_part(run *r, const json_t *part, size_t i, size_t k)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (json_is_string(part)) return HY_OK;
    if (!type)
        return error_set(r->err, HY_BAD_INPUT,
                         "messages[%zu].content[%zu] is neither a string nor an object with a type", i, k);
    if (strcmp(type, "text") == 0 && !json_is_string(json_object_get(part, "text")))
        return error_set(r->err, HY_BAD_INPUT, "messages[%zu].content[%zu].text is not a string", i, k);
    return HY_OK;
}

static const json_t *text_of(const json_t *part)
{
    return json_is_string(part) ? part : json_object_get(part, "text");
}

/* A list as one text, for templates that know no parts. */
static hy_status join_parts(run *r, const json_t *content, size_t i, buffer *text)
{
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k), *piece = text_of(part);
        hy_status s = check_part(r, part, i, k);
        if (s) return s;
        if (!json_is_string(piece))
            return error_set(
                r->err, HY_BAD_INPUT,
                "messages[%zu].content[%zu]: this model's chat template takes text and no part of type \"%.40s\"", i, k,
                json_string_value(json_object_get(part, "type")));
        if (k) buffer_char(text, '\n');
        buffer_append(text, json_string_value(piece), json_string_length(piece));
    }
    return buffer_ok(text) ? HY_OK : no_memory(r);
}

static bool all_text(const json_t *content)
{
    for (size_t k = 0; k < json_array_size(content); k++) {
        const char *type = json_string_value(json_object_get(json_array_get(content, k), "type"));
        if (!json_is_string(json_array_get(content, k)) && (!type || strcmp(type, "text") != 0)) return false;
    }
    return true;
}

/* A list with every string as a part. */
static hy_status keep_parts(run *r, const json_t *content, size_t i, json_t **out)
{
    if (!(*out = json_array())) return no_memory(r);
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k);
        hy_status s = check_part(r, part, i, k);
        if (s) return s;
        json_t *kept = json_is_string(part) ? text_part(json_string_value(part), json_string_length(part))
                                            : json_incref((json_t *)part);
        if (json_array_append_new(*out, kept) != 0) return no_memory(r);
    }
    return HY_OK;
}

static size_t without_space(const char *s, size_t length)
{
    while (length && s[length - 1] && strchr(" \t\n\v\f\r", s[length - 1])) length--;
    return length;
}

/* The text of the message to be continued, with the mark. */
static json_t *marked(const char *s, size_t length)
{
    buffer text = {0};
    buffer_append(&text, s, without_space(s, length));
    buffer_string(&text, END_MARK);
    json_t *made = buffer_ok(&text) ? json_stringn(text.data, text.length) : NULL;
    buffer_free(&text);
    return made;
}

/* The mark goes behind the last text of a list. */
static hy_status mark_parts(run *r, json_t *parts)
{
    for (size_t k = json_array_size(parts); k--;) {
        const json_t *text = json_object_get(json_array_get(parts, k), "text");
        if (!json_is_string(text)) continue;
        json_t *part = json_copy(json_array_get(parts, k));
        json_object_set_new(part, "text", marked(json_string_value(text), json_string_length(text)));
        return json_array_set_new(parts, k, part) == 0 ? HY_OK : no_memory(r);
    }
    return error_set(r->err, HY_BAD_INPUT, "continue_final_message: the last message has no text");
}

static hy_status content_of(run *r, const json_t *message, size_t i, json_t **out)
{
    const json_t *content = json_object_get(message, "content");
    bool last = r->continue_final && i + 1 == r->count;
    bool tool = strcmp(json_string_value(json_object_get(message, "role")), "tool") == 0;
    if (!template_absent(content) && !json_is_string(content) && !json_is_array(content))
        return error_set(r->err, HY_BAD_INPUT, "messages[%zu].content is %s: give a string or a list of parts", i,
                         template_kind_of(content));
    if (json_is_array(content) && r->parts && !(tool && all_text(content))) {
        hy_status s = keep_parts(r, content, i, out);
        return s || !last ? s : mark_parts(r, *out);
    }
    buffer joined = {0};
    hy_status s = json_is_array(content) ? join_parts(r, content, i, &joined) : HY_OK;
    const char *text = json_is_string(content) ? json_string_value(content) : joined.data ? joined.data : "";
    size_t length = json_is_string(content) ? json_string_length(content) : joined.length;
    if (!s) {
        if (last)
            *out = marked(text, length);
        else
            *out = json_is_string(content) ? json_incref((json_t *)content) : json_stringn(text, length);
        if (*out && r->wrap && !tool) {
            json_t *list = json_array();
            json_array_append_new(list, text_part(json_string_value(*out), json_string_length(*out)));
            json_decref(*out);
            *out = list;
        }
        if (!*out) s = no_memory(r);
    }
    buffer_free(&joined);
    return s;
}

/* ---- Messages and tools ----------------------------------------------------------------------------------------- */

static hy_status call_of(run *r, const json_t *call, size_t i, size_t k, json_t **out)
{
    const json_t *function = json_object_get(call, "function");
    bool own = json_is_object(function) && json_object_size(function);
    if (!own) function = call;
    json_t *arguments, *changed;
    if (!json_is_string(json_object_get(function, "name")))
        return error_set(r->err, HY_BAD_INPUT, "messages[%zu].tool_calls[%zu].function.name is not a string", i, k);
    hy_status s = template_arguments(json_object_get(function, "arguments"), i, k, &arguments, r->err);
    if (s) return s;
    changed = json_copy((json_t *)function);
    json_object_set_new(changed, "arguments", arguments);
    *out = changed;
    if (own) {
        *out = json_copy((json_t *)call);
        json_object_set_new(*out, "function", changed);
    }
    return *out ? HY_OK : no_memory(r);
}

static hy_status calls_of(run *r, json_t *message, size_t i)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) return HY_OK;
    if (!template_absent(calls) && !json_is_array(calls))
        return error_set(r->err, HY_BAD_INPUT, "messages[%zu].tool_calls is %s: give a list", i,
                         template_kind_of(calls));
    if (!json_array_size(calls)) {
        json_object_del(message, "tool_calls");
        return HY_OK;
    }
    json_t *made = json_array(), *call = NULL;
    hy_status s = made ? HY_OK : no_memory(r);
    for (size_t k = 0; !s && k < json_array_size(calls); k++) {
        s = call_of(r, json_array_get(calls, k), i, k, &call);
        if (!s) json_array_append_new(made, call);
    }
    if (s) {
        json_decref(made);
        return s;
    }
    return json_object_set_new(message, "tool_calls", made) == 0 ? HY_OK : no_memory(r);
}

/* The names in a message come in the request's order, since a template may print the whole of it. */
static hy_status message_of(run *r, const json_t *given, size_t i, json_t **out)
{
    const json_t *reasoning = NULL;
    json_t *content = NULL, *m = json_copy((json_t *)given);
    hy_status s = m ? template_reasoning(given, i, &reasoning, r->err) : no_memory(r);
    if (!s) s = content_of(r, given, i, &content);
    if (s)
        json_decref(content);
    else if (json_object_set_new(m, "content", content) != 0)
        s = no_memory(r);
    if (!s && reasoning) {
        json_object_set(m, "reasoning", (json_t *)reasoning);
        json_object_set(m, "reasoning_content", (json_t *)reasoning);
    }
    if (!s && strcmp(json_string_value(json_object_get(m, "role")), "assistant") == 0) s = calls_of(r, m, i);
    *out = m;
    return s;
}

static hy_status messages_of(run *r, const json_t *messages, json_t *context)
{
    json_t *made = json_array(), *m = NULL;
    hy_status s = made ? HY_OK : no_memory(r);
    for (size_t i = 0; !s && i < r->count; i++) {
        s = message_of(r, json_array_get(messages, i), i, &m);
        if (json_array_append_new(made, m) != 0 && !s) s = no_memory(r);
    }
    json_object_set_new(context, "messages", made);
    return s;
}

static hy_status tools_of(run *r, const json_t *tools, json_t *context)
{
    static const char *const keys[] = {"name", "description", "parameters", "strict", "defer_loading"};
    json_object_set_new(context, "tools", json_null());
    if (template_absent(tools)) return HY_OK;
    if (!json_is_array(tools)) return error_set(r->err, HY_BAD_INPUT, "tools is not a list");
    json_t *made = json_array();
    json_object_set_new(context, "tools", made);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *given = json_object_get(json_array_get(tools, i), "function");
        hy_status s = template_check_tool(json_array_get(tools, i), i, r->err);
        if (s) return s;
        json_t *tool = json_object(), *function = json_object();
        for (int k = 0; k < 5; k++) {
            json_t *value = json_object_get(given, keys[k]);
            if (k > 2 && template_absent(value)) continue;
            json_object_set_new(function, keys[k], value ? json_incref(value) : json_null());
        }
        json_object_set_new(tool, "type", json_string("function"));
        json_object_set_new(tool, "function", function);
        if (json_array_append_new(made, tool) != 0) return no_memory(r);
    }
    return HY_OK;
}

/* ---- Variables -------------------------------------------------------------------------------------------------- */

static bool is_text(const json_t *kwargs, const char *name, const char *text)
{
    const char *have = json_string_value(json_object_get(kwargs, name));
    return have && strcmp(have, text) == 0;
}

static hy_status check_thinking(run *r, const json_t *kwargs)
{
    static const char *const switches[] = {"thinking_mode", "enable_thinking", "thinking"};
    const char *asked = NULL;
    if (is_text(kwargs, "thinking_mode", "disabled")) asked = "thinking_mode \"disabled\"";
    if (json_is_false(json_object_get(kwargs, "enable_thinking"))) asked = "enable_thinking false";
    if (json_is_false(json_object_get(kwargs, "thinking"))) asked = "thinking false";
    if (is_text(kwargs, "reasoning_effort", "none") || is_text(kwargs, "effort", "none")) asked = "effort \"none\"";
    if (!asked || !r->chat->thinks) return HY_OK;
    for (int i = 0; i < 3; i++)
        if (jinja_mentions(r->chat->program, switches[i])) return HY_OK;
    return error_set(r->err, HY_BAD_INPUT,
                     "this model always reasons: its chat template has no mode without thinking, so %s cannot be done. "
                     "Leave it out, or ask for a low effort",
                     asked);
}

/* One of the names of effort that is given stands for both. */
static hy_status effort_of(run *r, json_t *context)
{
    static const char *const names[] = {"reasoning_effort", "effort"};
    for (int i = 0; i < 2; i++) {
        json_t *given = json_object_get(context, names[i]);
        if (!given) continue;
        if (!json_is_string(given))
            return error_set(r->err, HY_BAD_INPUT, "%s is %s: give a string", names[i], template_kind_of(given));
        if (!json_object_get(context, names[1 - i])) json_object_set(context, names[1 - i], given);
    }
    return HY_OK;
}

static hy_status keywords_of(run *r, const json_t *kwargs, json_t *context)
{
    static const char *const taken[] = {"messages", "tools", "chat_template", "tokenize"};
    const char *key;
    json_t *value;
    for (int i = 0; i < 4; i++)
        if (json_object_get(kwargs, taken[i]))
            return error_set(r->err, HY_BAD_INPUT, "chat_template_kwargs cannot set %s", taken[i]);
    json_object_foreach((json_t *)kwargs, key, value)
    {
        bool effort = strcmp(key, "reasoning_effort") == 0 || strcmp(key, "effort") == 0;
        if (!effort || !json_is_null(value)) json_object_set(context, key, value);
    }
    json_object_del(context, "continue_final_message");
    return effort_of(r, context);
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

/* Cuts the text at the mark. */
static hy_status cut_at_mark(run *r, buffer *out, size_t start)
{
    const size_t n = strlen(END_MARK);
    if (!buffer_ok(out)) return no_memory(r);
    for (size_t at = out->length; at >= start + n; at--) {
        if (memcmp(out->data + at - n, END_MARK, n) != 0) continue;
        out->length = at - n;
        out->data[out->length] = 0;
        return HY_OK;
    }
    return error_set(r->err, HY_BAD_INPUT,
                     "continue_final_message: the chat template does not show the content of the last message");
}

static hy_status run_program(run *r, const json_t *context, buffer *out)
{
    hy_error why = {0};
    hy_status s = jinja_render(r->chat->program, context, NULL, out, &why);
    return s ? error_set(r->err, s, "%s", why.message) : HY_OK;
}

hy_status template_run(const text_template *chat, const json_t *messages, const json_t *tools, const json_t *kwargs,
                       buffer *out, hy_error *err)
{
    run r = {.chat = chat, .err = err, .count = json_array_size(messages)};
    bool generate;
    size_t start = out->length;
    r.parts = jinja_reads_parts(chat->program);
    r.wrap = r.parts && !jinja_tests(chat->program, "string");
    if (!template_absent(kwargs) && !json_is_object(kwargs))
        return error_set(err, HY_BAD_INPUT, "chat_template_kwargs is %s: give an object", template_kind_of(kwargs));
    hy_status s = template_check_messages(messages, err);
    if (!s) s = template_ending(kwargs, &generate, &r.continue_final, err);
    if (!s) s = check_thinking(&r, kwargs);
    if (!s && r.continue_final && !r.count)
        s = error_set(err, HY_BAD_INPUT, "continue_final_message: there is no message to continue");
    if (s) return s;
    json_t *context = chat->variables ? json_copy(chat->variables) : json_object();
    if (!context) return no_memory(&r);
    json_object_set_new(context, "documents", json_null());
    s = messages_of(&r, messages, context);
    if (!s) s = tools_of(&r, tools, context);
    if (!s) s = keywords_of(&r, kwargs, context);
    json_object_set_new(context, "add_generation_prompt", json_boolean(generate));
    if (!s) s = run_program(&r, context, out);
    json_decref(context);
    return s || !r.continue_final ? s : cut_at_mark(&r, out, start);
}
