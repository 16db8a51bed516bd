/* Values as text: Python's str() and repr(), and its json.dumps(). */
#include "text/jinja_parts.h"

#include "base/utf8.h"
#include "text/python_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static void print_float(double d, buffer *out)
{
    if (isnan(d))
        buffer_string(out, "nan");
    else if (isinf(d))
        buffer_string(out, d < 0 ? "-inf" : "inf");
    else
        python_float(d, out);
}

static bool printable(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return code == ' ';
    default: return true;
    }
}

static void repr_string(const char *s, size_t length, buffer *out)
{
    bool single = length && memchr(s, '\'', length), twice = length && memchr(s, '"', length);
    char quote = single && !twice ? '"' : '\'';
    buffer_char(out, quote);
    for (size_t at = 0, n; at < length; at += n) {
        uint32_t code = 0;
        if (!(n = utf8_decode(s + at, length - at, &code))) n = 1;
        if (code == (uint32_t)quote || code == '\\')
            buffer_printf(out, "\\%c", (int)code);
        else if (code == '\n' || code == '\r' || code == '\t')
            buffer_printf(out, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (printable(code))
            buffer_append(out, s + at, n);
        else
            buffer_printf(out, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    }
    buffer_char(out, quote);
}

static bool repr_list(jinja_run *r, const jinja_list *l, buffer *out)
{
    static const char *const open[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items([", "["};
    static const char *const close[] = {"]", ")", "", "])", "])", "])", "]"};
    if (l->style == JINJA_GENERATOR) {
        buffer_string(out, "<generator object>");
        return true;
    }
    buffer_string(out, open[l->style]);
    for (size_t i = 0; i < l->count; i++) {
        if (i) buffer_string(out, ", ");
        if (!jinja_repr(r, &l->items[i], out)) return false;
    }
    if (l->style == JINJA_TUPLE && l->count == 1) buffer_char(out, ',');
    buffer_string(out, close[l->style]);
    return true;
}

static bool repr_dict(jinja_run *r, const jinja_dict *d, buffer *out)
{
    buffer_char(out, '{');
    for (size_t i = 0; i < d->count; i++) {
        if (i) buffer_string(out, ", ");
        if (!jinja_repr(r, &d->keys[i], out)) return false;
        buffer_string(out, ": ");
        if (!jinja_repr(r, &d->values[i], out)) return false;
    }
    buffer_char(out, '}');
    return true;
}

bool jinja_repr(jinja_run *r, const jinja_value *v, buffer *out)
{
    if (!jinja_enter(r) || !jinja_work(r, 1)) return false;
    bool ok = true;
    switch (v->type) {
    case JINJA_STRING:
        repr_string(v->text, v->length, out);
        ok = jinja_work(r, v->length / 8);
        break;
    case JINJA_UNDEFINED: buffer_string(out, "Undefined"); break;
    case JINJA_NONE: buffer_string(out, "None"); break;
    case JINJA_BOOL: buffer_string(out, v->truth ? "True" : "False"); break;
    case JINJA_INT: buffer_printf(out, "%lld", (long long)v->integer); break;
    case JINJA_FLOAT: print_float(v->real, out); break;
    case JINJA_LIST: ok = repr_list(r, v->list, out); break;
    case JINJA_DICT: ok = repr_dict(r, v->dict, out); break;
    case JINJA_NAMESPACE:
        buffer_string(out, "<Namespace ");
        ok = repr_dict(r, v->dict, out);
        buffer_char(out, '>');
        break;
    case JINJA_MACRO: buffer_printf(out, "<Macro '%s'>", v->macro->node->name); break;
    default: buffer_printf(out, "<%s>", jinja_type_name(v)); break;
    }
    r->level--;
    return ok && (buffer_ok(out) || jinja_fail(r, HY_NO_FIT, "out of memory while rendering"));
}

bool jinja_print(jinja_run *r, const jinja_value *v, buffer *out)
{
    if (v->type == JINJA_UNDEFINED) return true;
    if (v->type != JINJA_STRING) return jinja_repr(r, v, out);
    buffer_append(out, v->text, v->length);
    return jinja_work(r, v->length / 16);
}

bool jinja_text(jinja_run *r, const jinja_value *v, jinja_value *out)
{
    buffer b = {0};
    if (v->type == JINJA_STRING) {
        *out = *v;
        return true;
    }
    if (jinja_print(r, v, &b)) return jinja_finish(r, &b, out);
    buffer_free(&b);
    return false;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static void json_unit(uint32_t unit, buffer *out)
{
    buffer_printf(out, "\\u%04x", unit);
}

static void json_text(const char *s, size_t length, bool ascii, buffer *out)
{
    size_t start = 0;
    buffer_char(out, '"');
    for (size_t at = 0, n; at < length; at += n) {
        unsigned char c = (unsigned char)s[at];
        n = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (!ascii || c < 0x7F)) continue;
        buffer_append(out, s + start, at - start);
        const char *from = "\"\\\n\r\t\b\f", *to = "\"\\nrtbf", *found = c ? strchr(from, c) : NULL;
        uint32_t code = c;
        if (c >= 0x80 && !(n = utf8_decode(s + at, length - at, &code))) n = 1;
        if (found)
            buffer_printf(out, "\\%c", to[found - from]);
        else if (code >= 0x10000)
            json_unit(0xD7C0 + (code >> 10), out), json_unit(0xDC00 + (code & 0x3FF), out);
        else
            json_unit(code, out);
        start = at + n;
    }
    buffer_append(out, s + start, length - start);
    buffer_char(out, '"');
}

static void json_float(double d, buffer *out)
{
    if (isnan(d))
        buffer_string(out, "NaN");
    else if (isinf(d))
        buffer_string(out, d < 0 ? "-Infinity" : "Infinity");
    else
        python_float(d, out);
}

static void new_line(const jinja_json_style *style, int depth, buffer *out)
{
    if (!style->indent) return;
    buffer_char(out, '\n');
    for (int i = 0; i < depth; i++) buffer_string(out, style->indent);
}

static bool json_value(jinja_run *r, const jinja_value *v, const jinja_json_style *style, int depth, buffer *out);

static bool json_list(jinja_run *r, const jinja_list *l, const jinja_json_style *style, int depth, buffer *out)
{
    buffer_char(out, '[');
    for (size_t i = 0; i < l->count; i++) {
        if (i) buffer_string(out, style->item);
        new_line(style, depth + 1, out);
        if (!json_value(r, &l->items[i], style, depth + 1, out)) return false;
    }
    if (l->count) new_line(style, depth, out);
    buffer_char(out, ']');
    return true;
}

static bool json_key(jinja_run *r, const jinja_value *key, const jinja_json_style *style, buffer *out)
{
    if (key->type == JINJA_STRING) {
        json_text(key->text, key->length, style->ascii, out);
        return true;
    }
    if (!jinja_is_number(key) && key->type != JINJA_NONE)
        return jinja_fail(r, HY_BAD_INPUT, "keys must be str, int, float, bool or None, not %s", jinja_type_name(key));
    buffer_char(out, '"');
    bool ok = json_value(r, key, style, 0, out);
    buffer_char(out, '"');
    return ok;
}

/* The positions of a dict's members by key. */
static bool sorted(jinja_run *r, const jinja_dict *d, size_t **out)
{
    size_t n = d->count, *order = jinja_take(&r->arena, n, sizeof *order);
    size_t *spare = order ? jinja_take(&r->arena, n, sizeof *spare) : NULL;
    if (!spare) return jinja_fail(r, HY_NO_FIT, "out of memory while rendering");
    for (size_t i = 0; i < n; i++) order[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t a = low, middle = low + width < n ? low + width : n, b = middle,
                   end = low + 2 * width < n ? low + 2 * width : n;
            for (size_t to = low; to < end; to++) {
                int less = 1;
                if (a < middle && b < end && !jinja_order(r, &d->keys[order[a]], &d->keys[order[b]], "<", &less))
                    return false;
                bool first = b == end || (a < middle && less <= 0);
                if (a < middle && b < end) first = less <= 0;
                spare[to] = order[first ? a++ : b++];
            }
        }
        memcpy(order, spare, n * sizeof *order);
    }
    *out = order;
    return true;
}

static bool json_dict(jinja_run *r, const jinja_dict *d, const jinja_json_style *style, int depth, buffer *out)
{
    size_t *order = NULL;
    if (style->sort && !sorted(r, d, &order)) return false;
    buffer_char(out, '{');
    for (size_t i = 0; i < d->count; i++) {
        size_t at = order ? order[i] : i;
        if (i) buffer_string(out, style->item);
        new_line(style, depth + 1, out);
        if (!json_key(r, &d->keys[at], style, out)) return false;
        buffer_string(out, style->key);
        if (!json_value(r, &d->values[at], style, depth + 1, out)) return false;
    }
    if (d->count) new_line(style, depth, out);
    buffer_char(out, '}');
    return true;
}

static bool json_value(jinja_run *r, const jinja_value *v, const jinja_json_style *style, int depth, buffer *out)
{
    if (!jinja_enter(r) || !jinja_work(r, 1)) return false;
    bool ok = true;
    switch (v->type) {
    case JINJA_NONE: buffer_string(out, "null"); break;
    case JINJA_BOOL: buffer_string(out, v->truth ? "true" : "false"); break;
    case JINJA_INT: buffer_printf(out, "%lld", (long long)v->integer); break;
    case JINJA_FLOAT: json_float(v->real, out); break;
    case JINJA_STRING:
        json_text(v->text, v->length, style->ascii, out);
        ok = jinja_work(r, v->length / 16);
        break;
    case JINJA_DICT: ok = json_dict(r, v->dict, style, depth, out); break;
    default:
        if (v->type == JINJA_LIST && (v->list->style == JINJA_PLAIN || v->list->style == JINJA_TUPLE))
            ok = json_list(r, v->list, style, depth, out);
        else
            ok = jinja_fail(r, HY_BAD_INPUT, "Object of type %s is not JSON serializable", jinja_type_name(v));
    }
    r->level--;
    return ok && (out->length <= r->output_limit || jinja_fail(r, HY_NO_FIT, "the template writes too much"));
}

bool jinja_json(jinja_run *r, const jinja_value *v, const jinja_json_style *style, buffer *out)
{
    return json_value(r, v, style, 0, out);
}
