/*
 * Open elements lie on a stack whose lowest frame is the call itself. A frame that flows has its beginning written
 * already; the flowing frames are the lower ones. The others gather their children.
 */
#include "text/call_arguments.h"

#include "base/json.h"
#include "base/utf8.h"
#include "text/python_text.h"
#include "text/tool_calls.h"
#include "text/tool_schema.h"

#include <stdlib.h>
#include <string.h>

typedef enum flow { WAITS, STRING_FLOWS, LIST_FLOWS, CALL_FLOWS } flow;

/* An open element: its text so far, and its finished children. */
struct call_frame {
    json_t *schema; /* without references; NULL: nothing is known */
    json_t *key;    /* string */
    buffer text;
    json_t *names, *items; /* lists of the same length; NULL before the first */
    flow flow;
    bool parent;   /* elements are or were in it */
    bool filled;   /* flowing: something stands in it */
    bool literal;  /* its text is a string (or null, where the schema says so), tags and all */
    bool nullable; /* literal: "null" would be null */
    bool judged;   /* judge_long_text has */
};

static call_frame *top(const call_arguments *a)
{
    return &a->frames[a->depth - 1];
}

static void push(call_arguments *a, const json_t *schema, const char *key, size_t length)
{
    call_frame *f = &a->frames[a->depth++];
    *f = (call_frame){.key = json_stringn_nocheck(key, length), .schema = text_schema_resolve(a->root, schema)};
    if (!f->key) a->failed = true;
}

static void pop(call_arguments *a)
{
    call_frame *f = &a->frames[--a->depth];
    json_decref(f->schema);
    json_decref(f->key);
    json_decref(f->names);
    json_decref(f->items);
    buffer_free(&f->text);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void write_quoted(buffer *out, const char *s, size_t length)
{
    buffer_char(out, '"');
    json_escape(out, s, length);
    buffer_char(out, '"');
}

static void write_scalar(buffer *out, const json_t *value)
{
    json_writer w = {.out = out};
    switch (json_typeof(value)) {
    case JSON_INTEGER: writer_integer(&w, json_integer_value(value)); break;
    case JSON_REAL: python_float(json_real_value(value), out); break;
    case JSON_TRUE: writer_bool(&w, true); break;
    case JSON_FALSE: writer_bool(&w, false); break;
    default: writer_null(&w); break;
    }
}

/* The depth of what jansson reads is limited, and that of elements. */
static void write_value(buffer *out, json_t *value) /* NOLINT(misc-no-recursion) */
{
    size_t i, length;
    const char *key;
    json_t *child;
    if (json_is_string(value)) {
        write_quoted(out, json_string_value(value), json_string_length(value));
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, child)
        {
            buffer_char(out, i ? ',' : '[');
            write_value(out, child);
        }
        buffer_string(out, json_array_size(value) ? "]" : "[]");
    } else if (json_is_object(value)) {
        char before = '{';
        json_object_keylen_foreach(value, key, length, child)
        {
            buffer_char(out, before);
            write_quoted(out, key, length);
            buffer_char(out, ':');
            write_value(out, child);
            before = ',';
        }
        buffer_string(out, json_object_size(value) ? "}" : "{}");
    } else {
        write_scalar(out, value);
    }
}

/* ---- Values -------------------------------------------------------------------------------------------------------
 */

static bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool blank(const buffer *text)
{
    size_t i = 0;
    while (i < text->length && space(text->data[i])) i++;
    return i == text->length;
}

/* Adds a child to a frame that gathers; takes over the value. */
static void add_child(call_arguments *a, call_frame *f, json_t *key, json_t *value)
{
    if (!f->names) f->names = json_array();
    if (!f->items) f->items = json_array();
    bool ok = json_array_append(f->names, key) == 0;
    ok = json_array_append_new(f->items, value) == 0 && ok;
    if (!ok) a->failed = true;
}

/* Adds a member; a second one of that name makes a list of both. */
static bool add_member(json_t *object, const char *key, json_t *value)
{
    json_t *have = json_object_get(object, key);
    if (!have) return json_object_set_nocheck(object, key, value) == 0;
    return json_array_append(have, value) == 0;
}

/* An object of lists, then those of one element that came once are that element. */
static json_t *members_of(const call_frame *f, bool last_counts)
{
    json_t *lists = json_object(), *object = json_object(), *name, *list;
    size_t i;
    const char *key;
    bool ok = lists && object;
    json_array_foreach(f->names, i, name)
    {
        if (!ok) break;
        key = json_string_value(name);
        if (!json_object_get(lists, key)) ok = json_object_set_new_nocheck(lists, key, json_array()) == 0;
        ok = ok && add_member(lists, key, json_array_get(f->items, i));
    }
    json_object_foreach(lists, key, list)
    {
        size_t n = json_array_size(list);
        bool one = n == 1 || last_counts;
        ok = ok && json_object_set_nocheck(object, key, one ? json_array_get(list, n - 1) : list) == 0;
    }
    json_decref(lists);
    if (ok) return object;
    json_decref(object);
    return NULL;
}

/* Text with U+FFFD for what is not UTF-8. */
static void mend(call_arguments *a, buffer *text)
{
    buffer good = {0};
    for (size_t at = 0; at < text->length;) {
        size_t left = text->length - at, n = utf8_valid(text->data + at, left);
        if (n)
            buffer_append(&good, text->data + at, n);
        else
            buffer_string(&good, UTF8_REPLACEMENT), n = utf8_invalid_run(text->data + at, left);
        at += n;
    }
    if (!buffer_ok(&good)) a->failed = true;
    buffer_free(text);
    *text = good;
}

/* The value of a frame's text under a schema; NULL: not UTF-8, in a gathered one. */
static json_t *text_value(call_arguments *a, call_frame *f, const json_t *schema)
{
    if (!buffer_ok(&f->text)) a->failed = true;
    const char *s = f->text.data ? f->text.data : "";
    json_t *value = text_tool_value(schema, s, f->text.length);
    if (value || !a->out) return value;
    mend(a, &f->text);
    value = text_tool_value(schema, f->text.data ? f->text.data : "", f->text.length);
    if (!value) a->failed = true;
    return value ? value : json_null();
}

/* Text beside elements is a child under a name that no element has. False: not UTF-8, in a gathered one. */
static bool add_text(call_arguments *a, call_frame *f)
{
    if (blank(&f->text)) return true;
    json_t *value = text_value(a, f, NULL), *have;
    if (!value) return false;
    buffer name = {0};
    bool taken = true;
    buffer_string(&name, "$text");
    while (taken) {
        size_t i;
        taken = false;
        json_array_foreach(f->names, i, have) taken = taken || strcmp(json_string_value(have), name.data) == 0;
        if (taken) {
            buffer_string(&name, "$text");
            for (i = name.length - strlen("$text"); i; i--) name.data[i] = name.data[i - 1];
            name.data[0] = '$', name.length -= strlen("$text") - 1, name.data[name.length] = 0;
        }
        if (!buffer_ok(&name)) break;
    }
    json_t *key = json_string_nocheck(buffer_ok(&name) ? name.data : "$text");
    add_child(a, f, key, value);
    json_decref(key);
    buffer_free(&name);
    return true;
}

/* The value of the element that ends; NULL: not UTF-8, in a gathered one, or no memory. */
static json_t *value_of(call_arguments *a, call_frame *f)
{
    if (!f->parent) return f->literal && !f->nullable ? text_value(a, f, NULL) : text_value(a, f, f->schema);
    if (!add_text(a, f)) return NULL;
    json_t *value;
    if (text_schema_of_elements(f->schema) == TEXT_SCHEMA_ARRAY)
        value = f->items ? json_incref(f->items) : json_array();
    else
        value = members_of(f, false);
    if (!value) a->failed = true;
    return value;
}

/* ---- Flowing ------------------------------------------------------------------------------------------------------
 */

/* What stands before the next thing in a flowing frame. */
static void begin_item(call_arguments *a, call_frame *f, const json_t *key)
{
    if (f->flow == CALL_FLOWS) {
        buffer_char(a->out, f->filled ? ',' : '{');
        write_quoted(a->out, json_string_value(key), json_string_length(key));
        buffer_char(a->out, ':');
    } else if (f->filled) {
        buffer_char(a->out, ',');
    }
    f->filled = true;
}

/* Whether the innermost frame may begin to flow: what it is in does. */
static bool may_flow(const call_arguments *a)
{
    return a->depth > 1 && top(a)->flow == WAITS && top(a)[-1].flow != WAITS;
}

static void flow_on(call_arguments *a, flow how, char opener)
{
    call_frame *f = top(a);
    begin_item(a, f - 1, f->key);
    buffer_char(a->out, opener);
    f->flow = how;
}

/* Characters go out whole. */
static void flow_text(call_arguments *a, const char *s, size_t n)
{
    while (a->tail_count && n) {
        a->tail[a->tail_count++] = *s++, n--;
        if (utf8_incomplete_tail(a->tail, a->tail_count) == a->tail_count) continue;
        /* The byte completes the character, or it does not belong to it. */
        bool whole = utf8_valid(a->tail, a->tail_count) == a->tail_count;
        json_escape(a->out, a->tail, a->tail_count - !whole);
        a->tail_count = 0;
        if (!whole) s--, n++;
    }
    size_t tail = utf8_incomplete_tail(s, n);
    json_escape(a->out, s, n - tail);
    memcpy(a->tail + a->tail_count, s + n - tail, tail);
    a->tail_count += (unsigned char)tail;
}

static void flow_held_text(call_arguments *a)
{
    call_frame *f = top(a);
    if (f->text.length) flow_text(a, f->text.data, f->text.length);
    buffer_clear(&f->text);
}

/* The end of what flows. */
static void flow_end(call_arguments *a)
{
    call_frame *f = top(a);
    if (f->flow == STRING_FLOWS) {
        json_escape(a->out, a->tail, a->tail_count);
        a->tail_count = 0;
        buffer_char(a->out, '"');
        return;
    }
    if (!blank(&f->text)) {
        begin_item(a, f, NULL);
        write_quoted(a->out, f->text.data, f->text.length);
    }
    buffer_char(a->out, ']');
}

/* ---- Events -------------------------------------------------------------------------------------------------------
 */

void call_arguments_begin(call_arguments *a, const char *name, size_t length)
{
    if (!a->frames) a->frames = calloc(CALL_NESTING_LIMIT, sizeof *a->frames);
    a->tail_count = 0;
    if (!a->frames) {
        a->failed = true;
        return;
    }
    a->root = text_schema_of_tool(a->tools, name, length);
    push(a, a->root, name, length);
    if (a->out) top(a)->flow = CALL_FLOWS;
}

bool call_arguments_open(call_arguments *a, const char *name, size_t length)
{
    if (!a->depth) return false;
    call_frame *around = top(a);
    around->parent = true;
    if (may_flow(a) && text_schema_of_elements(around->schema) == TEXT_SCHEMA_ARRAY) flow_on(a, LIST_FLOWS, '[');
    push(a, text_schema_of_child(around->schema, name, length), name, length);
    call_frame *f = top(a);
    f->literal = text_schema_is_text(f->schema, &f->nullable);
    if (f->literal && !f->nullable && may_flow(a)) flow_on(a, STRING_FLOWS, '"');
    return f->literal;
}

/* "nul" may become null. */
static bool may_be_null(const buffer *text)
{
    static const char null[] = "null";
    if (text->length >= sizeof null) return false;
    for (size_t i = 0; i < text->length; i++)
        if ((text->data[i] | 0x20) != null[i]) return false;
    return true;
}

/* A long text that is not called one: a string from here on, unless it may be the JSON of an object or a list. Only its
 * beginning counts, and it is looked at once. */
static void judge_long_text(call_frame *f)
{
    size_t i = 0;
    while (i < CALL_TEXT_LIMIT && space(f->text.data[i])) i++;
    bool json = f->text.data[i] == '{' || f->text.data[i] == '[';
    f->judged = true;
    f->literal = !json || !text_schema_has_elements(f->schema);
    f->nullable = false;
}

bool call_arguments_text(call_arguments *a, const char *text, size_t length)
{
    if (!a->depth) return false;
    call_frame *f = top(a);
    if (f->flow == STRING_FLOWS) {
        flow_text(a, text, length);
        return true;
    }
    buffer_append(&f->text, text, length);
    bool grown = f->text.length > CALL_TEXT_LIMIT && buffer_ok(&f->text);
    if (grown && !f->literal && !f->parent && !f->judged) judge_long_text(f);
    if (f->literal && !may_be_null(&f->text) && may_flow(a)) {
        flow_on(a, STRING_FLOWS, '"');
        flow_held_text(a);
    }
    return f->literal;
}

/* Ends the innermost element, whose value this is (NULL: it flowed). */
static void finish_element(call_arguments *a, json_t *value)
{
    call_frame *f = top(a), *around = f - 1;
    if (value && around->flow != WAITS) {
        begin_item(a, around, f->key);
        write_value(a->out, value);
        json_decref(value);
    } else if (value) {
        add_child(a, around, f->key, value);
    }
    pop(a);
}

bool call_arguments_close(call_arguments *a)
{
    if (a->depth < 2) return true;
    call_frame *f = top(a);
    json_t *value = NULL;
    if (f->flow != WAITS)
        flow_end(a);
    else if (!(value = value_of(a, f)))
        return false;
    finish_element(a, value);
    return true;
}

const char *call_arguments_name(const call_arguments *a)
{
    const char *name = a->depth ? json_string_value(top(a)->key) : NULL;
    return name ? name : "";
}

json_t *call_arguments_end(call_arguments *a)
{
    if (!a->depth) return NULL;
    json_t *value = NULL;
    call_frame *f = top(a);
    if (a->out)
        buffer_string(a->out, f->filled ? "}" : "{}");
    else if (!(value = members_of(f, true)))
        a->failed = true;
    pop(a);
    return value;
}

/* Of a text that is cut only a string has a beginning that is worth something. */
static bool known_in_part(const call_frame *f)
{
    if (f->flow != WAITS || f->parent) return true;
    if (f->literal) return !f->nullable || !may_be_null(&f->text);
    return f->text.length && text_schema_says_nothing(f->schema);
}

void call_arguments_break(call_arguments *a, bool cut)
{
    if (cut && a->depth > 1 && !known_in_part(top(a))) pop(a);
    while (a->depth > 1)
        if (!call_arguments_close(a)) pop(a);
    json_decref(call_arguments_end(a));
}

void call_arguments_free(call_arguments *a)
{
    while (a->depth) pop(a);
    free(a->frames);
    *a = (call_arguments){0};
}
