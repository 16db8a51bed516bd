/*
 * The text is a row of tags and of text between them; open elements lie on a stack whose lowest frame is the call
 * itself. Nothing but the stack is remembered between two tags.
 */
#include "text/tool_calls.h"

#include "base/buffer.h"
#include "base/error.h"
#include "text/tool_schema.h"

#include <stdlib.h>
#include <string.h>

#define NS TEXT_TOOL_NAMESPACE

enum { NS_LENGTH = sizeof NS - 1, NESTING_LIMIT = 200 };

/* An open element: its text so far, and its finished children. */
typedef struct frame {
    const json_t *schema;
    json_t *key; /* string */
    buffer text;
    json_t *names, *items; /* lists of the same length */
} frame;

typedef struct parser {
    const char *at, *end;
    const json_t *tools;
    text_tool_calls *out;
    hy_error *err;
    frame *frames; /* [NESTING_LIMIT] */
    int depth;
} parser;

static hy_status no_memory(parser *p)
{
    return error_memory(p->err, "tool calls", 0);
}

/* ---- Looking at the text -------------------------------------------------------------------------------------- */

static bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void skip_space(parser *p)
{
    while (p->at < p->end && space(*p->at)) p->at++;
}

static bool starts(const parser *p, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(p->end - p->at) >= n && memcmp(p->at, what, n) == 0;
}

static bool accept(parser *p, const char *what)
{
    if (!starts(p, what)) return false;
    p->at += strlen(what);
    return true;
}

/* Where `what` stands from `from` on; NULL if nowhere. */
static const char *find(const char *from, const char *end, const char *what)
{
    size_t n = strlen(what);
    while ((size_t)(end - from) >= n) {
        const char *c = memchr(from, what[0], (size_t)(end - from) - n + 1);
        if (!c) return NULL;
        if (memcmp(c, what, n) == 0) return c;
        from = c + 1;
    }
    return NULL;
}

/* A string that may be part of a message: printable, short. */
static const char *shown(const char *s, size_t length, char out[48])
{
    size_t n = 0;
    for (; n < length && n < 44; n++) out[n] = s[n] >= 0x20 && s[n] < 0x7F ? s[n] : '?';
    out[n] = 0;
    if (n < length) strcpy(out + n, "...");
    return out;
}

/* What stands behind the namespace mark, for messages. */
static const char *next_shown(const parser *p, char out[48])
{
    const char *c = p->at;
    while (c < p->end && *c != '>' && c - p->at < 44) c++;
    return shown(p->at, (size_t)(c - p->at) + (c < p->end && *c == '>'), out);
}

/* `<name>` or, with `close`, `</name>`; the name lies in the text. */
static bool accept_tag(parser *p, bool close, const char **name, size_t *length)
{
    const char *c = p->at;
    if (c == p->end || *c++ != '<') return false;
    if (close && (c == p->end || *c++ != '/')) return false;
    const char *end = memchr(c, '>', (size_t)(p->end - c));
    if (!end || end == c || *c == '/' || memchr(c, 0, (size_t)(end - c))) return false;
    *name = c, *length = (size_t)(end - c);
    p->at = end + 1;
    return true;
}

/* ---- Elements ------------------------------------------------------------------------------------------------- */

static hy_status push(parser *p, const json_t *schema, const char *key, size_t length)
{
    if (p->depth == NESTING_LIMIT)
        return error_set(p->err, HY_BAD_INPUT, "arguments of a tool call are nested deeper than %d levels",
                         NESTING_LIMIT);
    frame *f = &p->frames[p->depth++];
    *f = (frame){.schema = schema, .key = json_stringn(key, length), .names = json_array(), .items = json_array()};
    if (f->names && f->items && f->key) return HY_OK;
    char name[48];
    if (!f->names || !f->items) return no_memory(p);
    return error_set(p->err, HY_BAD_INPUT, "the name %s in a tool call is not UTF-8", shown(key, length, name));
}

static void pop(parser *p)
{
    frame *f = &p->frames[--p->depth];
    json_decref(f->key);
    json_decref(f->names);
    json_decref(f->items);
    buffer_free(&f->text);
}

static bool blank(const buffer *text)
{
    for (size_t i = 0; i < text->length; i++)
        if (!space(text->data[i])) return false;
    return true;
}

/* Adds a member; a second one of that name makes a list of both. NULL as value is no memory. */
static bool add_member(json_t *object, const char *key, json_t *value)
{
    json_t *have = json_object_get(object, key);
    if (!have) return json_object_set(object, key, value) == 0;
    return json_array_append(have, value) == 0;
}

/* An object of lists, then those of one element that came once are that element. */
static json_t *members_of(const frame *f, bool last_counts)
{
    json_t *lists = json_object(), *object = json_object(), *name, *list;
    size_t i;
    const char *key;
    bool ok = lists && object;
    json_array_foreach(f->names, i, name)
    {
        if (!ok) break;
        key = json_string_value(name);
        if (!json_object_get(lists, key)) ok = json_object_set_new(lists, key, json_array()) == 0;
        ok = ok && add_member(lists, key, json_array_get(f->items, i));
    }
    json_object_foreach(lists, key, list)
    {
        size_t n = json_array_size(list);
        bool one = n == 1 || last_counts;
        ok = ok && json_object_set(object, key, one ? json_array_get(list, n - 1) : list) == 0;
    }
    json_decref(lists);
    if (ok) return object;
    json_decref(object);
    return NULL;
}

/* Text beside elements is a member under a name that no element has. */
static bool add_text(frame *f)
{
    if (blank(&f->text)) return true;
    buffer name = {0};
    bool taken = true;
    buffer_string(&name, "$text");
    while (taken) {
        size_t i;
        json_t *have;
        taken = false;
        json_array_foreach(f->names, i, have) taken = taken || strcmp(json_string_value(have), name.data) == 0;
        if (taken) {
            size_t length = name.length;
            buffer_char(&name, '$');
            memmove(name.data + 1, name.data, length);
        }
        if (!buffer_ok(&name)) break;
    }
    bool ok = buffer_ok(&name) && json_array_append_new(f->names, json_string(name.data)) == 0 &&
              json_array_append_new(f->items, json_stringn(f->text.data, f->text.length)) == 0;
    buffer_free(&name);
    return ok;
}

/* The value of the element that ends. NULL: no memory, or text that is not UTF-8. */
static json_t *value_of(frame *f)
{
    if (!json_array_size(f->names)) return text_tool_value(f->schema, f->text.data ? f->text.data : "", f->text.length);
    if (!add_text(f)) return NULL;
    if (text_schema_of_elements(f->schema) == TEXT_SCHEMA_ARRAY) return json_incref(f->items);
    return members_of(f, false);
}

/* Closes the innermost element and hands its value to the one around it. */
static hy_status close_element(parser *p)
{
    frame *f = &p->frames[p->depth - 1], *around = f - 1;
    if (!buffer_ok(&f->text)) return no_memory(p);
    json_t *value = value_of(f);
    char name[48];
    if (!value)
        return error_set(p->err, HY_BAD_INPUT, "the value of %s in a tool call is not UTF-8",
                         shown(json_string_value(f->key), json_string_length(f->key), name));
    bool ok = json_array_append(around->names, f->key) == 0;
    ok = json_array_append_new(around->items, value) == 0 && ok;
    pop(p);
    return ok ? HY_OK : no_memory(p);
}

/* ---- Calls ---------------------------------------------------------------------------------------------------- */

/* From behind NS<k> to behind its NS</k>, with all elements inside. */
static hy_status read_element(parser *p)
{
    int outside = p->depth - 1;
    const char *name = NULL;
    size_t length = 0;
    char text[48], want[48];
    while (p->depth > outside) {
        frame *f = &p->frames[p->depth - 1];
        const char *key = json_string_value(f->key), *mark = find(p->at, p->end, NS);
        if (!mark)
            return error_set(p->err, HY_BAD_INPUT, "the text ends inside the argument %s of a tool call",
                             shown(key, strlen(key), text));
        buffer_append(&f->text, p->at, (size_t)(mark - p->at));
        p->at = mark + NS_LENGTH;
        hy_status s = HY_OK;
        if (accept_tag(p, false, &name, &length))
            s = push(p, text_schema_of_child(f->schema, name, length), name, length);
        else if (accept_tag(p, true, &name, &length) && length == strlen(key) && memcmp(name, key, length) == 0)
            s = close_element(p);
        else {
            p->at = mark + NS_LENGTH;
            s = error_set(p->err, HY_BAD_INPUT, "in a tool call </%s> is expected, not %s",
                          shown(key, strlen(key), want), next_shown(p, text));
        }
        if (s) return s;
    }
    return HY_OK;
}

/* A parameter without its opening tag; p->at is behind the namespace mark. */
static hy_status read_elided(parser *p)
{
    const char *value = p->at, *mark = find(p->at, p->end, NS), *name = NULL;
    size_t length = 0;
    char text[48];
    if (*value != '<' && mark) {
        p->at = mark + NS_LENGTH;
        if (!starts(p, "</invoke>") && accept_tag(p, true, &name, &length)) {
            hy_status s = push(p, text_schema_of_child(p->frames[0].schema, name, length), name, length);
            if (s) return s;
            p->out->repairs++;
            buffer_append(&p->frames[1].text, value, (size_t)(mark - value));
            return close_element(p);
        }
        p->at = value;
    }
    return error_set(p->err, HY_BAD_INPUT, "a tool call goes on with neither an argument nor its end: %s",
                     next_shown(p, text));
}

static hy_status read_parameters(parser *p)
{
    const char *name = NULL;
    size_t length = 0;
    for (;;) {
        skip_space(p);
        if (!starts(p, NS)) {
            const char *end = find(p->at, p->end, NS "</invoke>");
            if (!end) return error_set(p->err, HY_BAD_INPUT, "the text ends inside a tool call");
            p->out->repairs++;
            p->at = end;
        }
        p->at += NS_LENGTH;
        if (accept(p, "</invoke>")) return HY_OK;
        hy_status s = HY_OK;
        if (p->at == p->end)
            s = error_set(p->err, HY_BAD_INPUT, "the text ends inside a tool call");
        else if (!accept_tag(p, false, &name, &length))
            s = read_elided(p);
        else if (!(s = push(p, text_schema_of_child(p->frames[0].schema, name, length), name, length)))
            s = read_element(p);
        if (s) return s;
    }
}

/* name="N">, with either quote or none. */
static hy_status read_name(parser *p, const char **name, size_t *length)
{
    skip_space(p);
    if (accept(p, "name=") && p->at < p->end) {
        char quote = *p->at == '"' || *p->at == '\'' ? *p->at : 0;
        p->at += quote != 0;
        const char *end = memchr(p->at, quote ? quote : '>', (size_t)(p->end - p->at));
        *name = p->at, *length = end ? (size_t)(end - p->at) : 0;
        if (end) p->at = end + (quote != 0);
        if (*length && !memchr(*name, 0, *length) && accept(p, ">")) return HY_OK;
    }
    return error_set(p->err, HY_BAD_INPUT, "an invoke of a tool call has no name");
}

static hy_status read_call(parser *p)
{
    const char *name = NULL;
    size_t length = 0;
    hy_status s = read_name(p, &name, &length);
    if (!s) s = push(p, text_schema_of_tool(p->tools, name, length), name, length);
    if (!s) s = read_parameters(p);
    if (s) return s;
    json_t *arguments = members_of(&p->frames[0], true), *call = json_object();
    bool ok = arguments && json_object_set(call, "name", p->frames[0].key) == 0;
    ok = json_object_set_new(call, "arguments", arguments) == 0 && ok;
    ok = json_array_append_new(p->out->calls, call) == 0 && ok;
    pop(p);
    return ok ? HY_OK : no_memory(p);
}

static hy_status read_block(parser *p)
{
    char text[48];
    for (;;) {
        skip_space(p);
        hy_status s = HY_OK;
        if (accept(p, TEXT_TOOL_CLOSE)) return HY_OK;
        if (p->at == p->end) return error_set(p->err, HY_BAD_INPUT, "the block of tool calls has no end");
        if (accept(p, NS "<invoke"))
            s = read_call(p);
        else if (accept(p, NS "invoke"))
            p->out->repairs++, s = read_call(p);
        else {
            accept(p, NS);
            s = error_set(p->err, HY_BAD_INPUT, "a block of tool calls has something else than an invoke: %s",
                          next_shown(p, text));
        }
        if (s) return s;
    }
}

hy_status text_tool_calls_read(const char *text, size_t length, const json_t *tools, text_tool_calls *out,
                               hy_error *err)
{
    *out = (text_tool_calls){.content_length = length, .calls = json_array()};
    if (!out->calls) return error_memory(err, "tool calls", 0);
    const char *block = length ? find(text, text + length, TEXT_TOOL_OPEN) : NULL;
    if (!block) return HY_OK;
    out->block = true;
    out->content_length = (size_t)(block - text);
    parser p = {.at = block + strlen(TEXT_TOOL_OPEN), .end = text + length, .tools = tools, .out = out, .err = err};
    p.frames = calloc(NESTING_LIMIT, sizeof *p.frames);
    if (!p.frames) return no_memory(&p);
    hy_status s = read_block(&p);
    while (p.depth) pop(&p);
    free(p.frames);
    return s;
}

void text_tool_calls_free(text_tool_calls *calls)
{
    json_decref(calls->calls);
    *calls = (text_tool_calls){0};
}
