/* Filters of single values: text, numbers, JSON. Those of sequences are in jinja_sequences.c. */
#define _GNU_SOURCE /* memmem */
#include "text/jinja_parts.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Arguments ------------------------------------------------------------------------------------------------- */

bool jinja_bind(jinja_run *r, const char *what, const jinja_args *args, const char *const *names, size_t count,
                size_t required, jinja_value *slots)
{
    for (size_t i = 0; i < count; i++) slots[i] = (jinja_value){0};
    if (args->positional > count)
        return jinja_fail(r, HY_BAD_INPUT, "%s takes at most %zu argument(s), not %zu", what, count, args->positional);
    for (size_t i = 0; i < args->count; i++) {
        size_t at = i;
        if (args->at[i].name)
            for (at = 0; at < count && strcmp(names[at], args->at[i].name) != 0;) at++;
        if (at == count) return jinja_fail(r, HY_BAD_INPUT, "%s has no argument '%s'", what, args->at[i].name);
        if (slots[at].type) return jinja_fail(r, HY_BAD_INPUT, "%s got argument '%s' twice", what, names[at]);
        slots[at] = args->at[i].value;
    }
    for (size_t i = 0; i < required; i++)
        if (!slots[i].type) return jinja_fail(r, HY_BAD_INPUT, "%s wants an argument '%s'", what, names[i]);
    return true;
}

bool jinja_want_int(jinja_run *r, const jinja_value *v, int64_t missing, int64_t *out)
{
    if (v->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, v);
    if (v->type && !jinja_is_whole(v))
        return jinja_fail(r, HY_BAD_INPUT, "'%s' object cannot be interpreted as an integer", jinja_type_name(v));
    *out = v->type ? jinja_whole(v) : missing;
    return true;
}

bool jinja_want_string(jinja_run *r, const jinja_value *v, const char *what, jinja_value *out)
{
    if (v->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, v);
    if (v->type != JINJA_STRING)
        return jinja_fail(r, HY_BAD_INPUT, "%s: a string is wanted, not %s", what, jinja_type_name(v));
    *out = *v;
    return true;
}

static bool bare(jinja_run *r, const char *what, const jinja_args *args)
{
    return jinja_bind(r, what, args, NULL, 0, 0, NULL);
}

/* ---- Case ------------------------------------------------------------------------------------------------------ */

static void put_code(uint32_t code, buffer *out)
{
    char bytes[4];
    buffer_append(out, bytes, utf8_encode(code, bytes));
}

static uint32_t upper(uint32_t c)
{
    return c < 0x80 ? (c >= 'a' && c <= 'z' ? c - 32 : c) : (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
}

static uint32_t lower(uint32_t c)
{
    return c < 0x80 ? (c >= 'A' && c <= 'Z' ? c + 32 : c) : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

static void put_upper(uint32_t code, bool title, buffer *out)
{
    if (code == 0xDF) /* the one letter in use whose capital form is two */
        buffer_string(out, title ? "Ss" : "SS");
    else
        put_code(title && code >= 0x80 ? (uint32_t)utf8proc_totitle((utf8proc_int32_t)code) : upper(code), out);
}

bool jinja_change_case(jinja_run *r, const char *s, size_t length, jinja_case how, jinja_value *out)
{
    buffer text = {0};
    for (size_t at = 0, n; at < length; at += n) {
        uint32_t code = 0;
        if (!(n = utf8_decode(s + at, length - at, &code))) n = 1;
        bool up =
            how == JINJA_UPPER || (how == JINJA_CAPITALIZE && at == 0) || (how == JINJA_SWAP && lower(code) == code);
        if (up)
            put_upper(code, how == JINJA_CAPITALIZE, &text);
        else
            put_code(lower(code), &text);
    }
    return jinja_work(r, length / 4) && jinja_finish(r, &text, out);
}

/* A word starts, for the filter, behind white space and opening brackets; for the method, behind all that has no case.
 */
bool jinja_title(jinja_run *r, const char *s, size_t length, bool words_by_jinja, jinja_value *out)
{
    buffer text = {0};
    bool start = true;
    for (size_t at = 0, n; at < length; at += n) {
        uint32_t code = 0;
        if (!(n = utf8_decode(s + at, length - at, &code))) n = 1;
        if (start)
            put_upper(code, true, &text);
        else
            put_code(lower(code), &text);
        bool cased = upper(code) != code || lower(code) != code;
        start = words_by_jinja ? jinja_is_space(code) || (code < 0x80 && code && strchr("-({[<", (int)code)) : !cased;
    }
    return jinja_work(r, length / 4) && jinja_finish(r, &text, out);
}

/* ---- Text ------------------------------------------------------------------------------------------------------ */

/* The value as text and the arguments by name. */
static bool text_and(jinja_run *r, const char *what, const jinja_value *in, const jinja_args *args,
                     const char *const *names, size_t count, size_t required, jinja_value *slots, jinja_value *text)
{
    return jinja_bind(r, what, args, names, count, required, slots) && jinja_text(r, in, text);
}

static bool filter_trim(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"chars"};
    jinja_value chars, text;
    if (!text_and(r, "trim", in, args, names, 1, 0, &chars, &text)) return false;
    bool given = chars.type && chars.type != JINJA_NONE;
    if (given && !jinja_want_string(r, &chars, "trim", &chars)) return false;
    const char *s = text.text;
    size_t length = text.length;
    jinja_strip(&s, &length, given ? &chars : NULL, true, true);
    *out = jinja_string(s, length);
    out->markup = text.markup;
    return jinja_work(r, (text.length - length) / 4);
}

static bool filter_upper(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text;
    return text_and(r, "upper", in, args, NULL, 0, 0, NULL, &text) &&
           jinja_change_case(r, text.text, text.length, JINJA_UPPER, out);
}

static bool filter_lower(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text;
    return text_and(r, "lower", in, args, NULL, 0, 0, NULL, &text) &&
           jinja_change_case(r, text.text, text.length, JINJA_LOWER, out);
}

static bool filter_capitalize(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text;
    return text_and(r, "capitalize", in, args, NULL, 0, 0, NULL, &text) &&
           jinja_change_case(r, text.text, text.length, JINJA_CAPITALIZE, out);
}

static bool filter_title(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text;
    return text_and(r, "title", in, args, NULL, 0, 0, NULL, &text) && jinja_title(r, text.text, text.length, true, out);
}

bool jinja_replace(jinja_run *r, const jinja_value *s, const jinja_value *old, const jinja_value *new, int64_t most,
                   jinja_value *out)
{
    buffer text = {0};
    const char *at = s->text, *end = s->text + s->length, *found;
    bool ok = true;
    if (!old->length) { /* between all characters */
        for (; most != 0 && ok; most -= most > 0) {
            buffer_append(&text, new->text, new->length);
            if (at == end) break;
            size_t n = jinja_character_bytes(at, (size_t)(end - at));
            buffer_append(&text, at, n);
            at += n;
            ok = text.length <= r->output_limit && jinja_work(r, 1 + new->length / 16);
        }
    } else {
        for (; ok && most != 0 && (found = memmem(at, (size_t)(end - at), old->text, old->length)); most -= most > 0) {
            buffer_append(&text, at, (size_t)(found - at));
            buffer_append(&text, new->text, new->length);
            at = found + old->length;
            ok = text.length <= r->output_limit && jinja_work(r, 1 + new->length / 16);
        }
    }
    if (!ok) {
        buffer_free(&text);
        return jinja_fail(r, HY_NO_FIT, "a replacement makes more than the limit of %zu bytes", r->output_limit);
    }
    if (!text.length && at == s->text) {
        *out = *s;
        return jinja_work(r, s->length / 16);
    }
    buffer_append(&text, at, (size_t)(end - at));
    return jinja_work(r, s->length / 16) && jinja_finish(r, &text, out);
}

static bool filter_replace(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"old", "new", "count"};
    jinja_value slots[3], text;
    int64_t most = -1;
    if (!text_and(r, "replace", in, args, names, 3, 2, slots, &text)) return false;
    if (slots[2].type && slots[2].type != JINJA_NONE && !jinja_want_int(r, &slots[2], -1, &most)) return false;
    return jinja_text(r, &slots[0], &slots[0]) && jinja_text(r, &slots[1], &slots[1]) &&
           jinja_replace(r, &text, &slots[0], &slots[1], most, out);
}

static bool filter_string(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return text_and(r, "string", in, args, NULL, 0, 0, NULL, out);
}

bool jinja_escape(jinja_run *r, const jinja_value *s, jinja_value *out)
{
    static const char specials[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    buffer b = {0};
    *out = *s;
    if (s->markup) return true;
    for (size_t i = 0; i < s->length; i++) {
        const char *special = s->text[i] ? strchr(specials, s->text[i]) : NULL;
        if (special)
            buffer_string(&b, entities[special - specials]);
        else
            buffer_char(&b, s->text[i]);
    }
    bool ok = jinja_finish(r, &b, out);
    out->markup = true;
    return ok;
}

static bool filter_safe(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    if (!text_and(r, "safe", in, args, NULL, 0, 0, NULL, out)) return false;
    out->markup = true;
    return true;
}

static bool filter_escape(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text;
    return text_and(r, "escape", in, args, NULL, 0, 0, NULL, &text) && jinja_escape(r, &text, out);
}

static bool filter_forceescape(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text;
    if (!text_and(r, "forceescape", in, args, NULL, 0, 0, NULL, &text)) return false;
    text.markup = false;
    return jinja_escape(r, &text, out);
}

bool jinja_split_lines(jinja_run *r, const jinja_value *s, bool keep_ends, jinja_value *out)
{
    jinja_value line;
    size_t lines = 1, start = 0;
    for (size_t i = 0; i < s->length; i++)
        lines += (unsigned char)s->text[i] < 0x20 || (unsigned char)s->text[i] >= 0xC2;
    if (!jinja_list_make(r, lines, JINJA_PLAIN, out)) return false;
    for (size_t at = 0, n; at < s->length; at += n) {
        uint32_t c = 0;
        if (!(n = utf8_decode(s->text + at, s->length - at, &c))) n = 1;
        bool ends = (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (!ends) continue;
        size_t stop = at;
        if (c == '\r' && at + 1 < s->length && s->text[at + 1] == '\n') n = 2;
        line = jinja_string(s->text + start, (keep_ends ? at + n : stop) - start);
        out->list->items[out->list->count++] = line;
        start = at + n;
    }
    if (start < s->length) out->list->items[out->list->count++] = jinja_string(s->text + start, s->length - start);
    return jinja_work(r, s->length / 4 + lines);
}

static bool indent_width(jinja_run *r, const jinja_value *width, jinja_value *out)
{
    int64_t n;
    if (width->type == JINJA_STRING) {
        *out = *width;
        return true;
    }
    if (!jinja_want_int(r, width, 4, &n)) return false;
    if (n > 1000) return jinja_fail(r, HY_BAD_INPUT, "an indentation of more than 1000 spaces");
    buffer b = {0};
    for (; n > 0; n--) buffer_char(&b, ' ');
    return jinja_finish(r, &b, out);
}

static bool filter_indent(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"width", "first", "blank"};
    jinja_value slots[3], text, lines, by;
    buffer b = {0};
    if (!text_and(r, "indent", in, args, names, 3, 0, slots, &text)) return false;
    if (!indent_width(r, &slots[0], &by) || !jinja_split_lines(r, &text, false, &lines)) return false;
    /* The filter adds a line end before it splits, so a text that ends in one keeps it. */
    bool ends = text.length && text.text[text.length - 1] == '\n';
    size_t count = lines.list->count + ends + (text.length == 0);
    for (size_t i = 0; i < count; i++) {
        jinja_value line = i < lines.list->count ? lines.list->items[i] : jinja_string("", 0);
        if (i) buffer_char(&b, '\n');
        bool indented = i ? line.length || jinja_truth(&slots[2]) : jinja_truth(&slots[1]);
        if (indented) buffer_append(&b, by.text, by.length);
        buffer_append(&b, line.text, line.length);
        if (b.length > r->output_limit || !jinja_work(r, 1 + by.length / 16)) break;
    }
    if (b.length <= r->output_limit) return jinja_finish(r, &b, out);
    buffer_free(&b);
    return jinja_fail(r, HY_NO_FIT, "an indentation makes more than the limit of %zu bytes", r->output_limit);
}

static bool filter_center(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"width"};
    jinja_value slot, text;
    int64_t width;
    if (!text_and(r, "center", in, args, names, 1, 0, &slot, &text) || !jinja_want_int(r, &slot, 80, &width))
        return false;
    jinja_argument at = {NULL, jinja_int(width)};
    jinja_args one = {.at = &at, .count = 1, .positional = 1};
    return jinja_call_method(r, &text, "center", &one, out);
}

static bool filter_truncate(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"length", "killwords", "end", "leeway"};
    jinja_value slots[4], text, end = jinja_literal("...");
    int64_t length, leeway;
    if (!text_and(r, "truncate", in, args, names, 4, 0, slots, &text)) return false;
    if (!jinja_want_int(r, &slots[0], 255, &length) || !jinja_want_int(r, &slots[3], 5, &leeway)) return false;
    if (slots[2].type && !jinja_want_string(r, &slots[2], "truncate", &end)) return false;
    int64_t tail = (int64_t)jinja_characters(end.text, end.length);
    if (length < tail || leeway < 0)
        return jinja_fail(r, HY_BAD_INPUT, "truncate: expected a length of at least %lld", (long long)tail);
    *out = text;
    if ((int64_t)jinja_characters(text.text, text.length) - leeway <= length) return true;
    size_t keep = (size_t)(jinja_at_character(text.text, text.length, (size_t)(length - tail)) - text.text);
    if (!jinja_truth(&slots[1])) {
        size_t space = keep;
        while (space && text.text[space - 1] != ' ') space--;
        if (space) keep = space - 1;
    }
    buffer b = {0};
    buffer_append(&b, text.text, keep);
    buffer_append(&b, end.text, end.length);
    return jinja_finish(r, &b, out);
}

static bool filter_wordcount(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text;
    int64_t words = 0;
    bool inside = false;
    if (!text_and(r, "wordcount", in, args, NULL, 0, 0, NULL, &text)) return false;
    for (size_t at = 0, n; at < text.length; at += n) {
        uint32_t c = 0;
        if (!(n = utf8_decode(text.text + at, text.length - at, &c))) n = 1;
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        bool word = c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
                    (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
        words += word && !inside;
        inside = word;
    }
    *out = jinja_int(words);
    return jinja_work(r, text.length / 4);
}

static bool filter_urlencode(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text;
    buffer b = {0};
    if (in->type == JINJA_DICT || in->type == JINJA_LIST)
        return jinja_fail(r, HY_BAD_INPUT, "urlencode of anything but a text is not supported");
    if (!text_and(r, "urlencode", in, args, NULL, 0, 0, NULL, &text)) return false;
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = (unsigned char)text.text[i];
        bool plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_.-~/", c));
        if (plain)
            buffer_char(&b, (char)c);
        else
            buffer_printf(&b, "%%%02X", c);
    }
    return jinja_finish(r, &b, out);
}

static bool filter_format(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    jinja_value text, values;
    if (!jinja_text(r, in, &text)) return false;
    if (args->count > args->positional && args->positional)
        return jinja_fail(r, HY_BAD_INPUT, "format: arguments by position and by name cannot be mixed");
    bool by_name = args->count > args->positional;
    if (by_name ? !jinja_dict_make(r, args->count, &values) : !jinja_list_make(r, args->count, JINJA_TUPLE, &values))
        return false;
    for (size_t i = 0; i < args->count; i++) {
        jinja_value key = jinja_literal(by_name ? args->at[i].name : "");
        if (by_name && !jinja_dict_put(r, values.dict, &key, &args->at[i].value)) return false;
        if (!by_name) values.list->items[values.list->count++] = args->at[i].value;
    }
    return jinja_percent(r, &text, &values, out);
}

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

/* The number that a text is, as Python reads it; underscores between digits are allowed. */
static bool number_text(const jinja_value *v, char out[64])
{
    const char *s = v->text;
    size_t length = v->length, n = 0;
    jinja_strip(&s, &length, NULL, true, true);
    if (!length || length > 63) return false;
    for (size_t i = 0; i < length; i++) {
        bool between = s[i] == '_' && i && i + 1 < length && s[i - 1] >= '0' && s[i - 1] <= '9' && s[i + 1] >= '0' &&
                       s[i + 1] <= '9';
        if (between) continue;
        if (!s[i] || !strchr("0123456789+-.eEinfatyINFATY", s[i])) return false;
        out[n++] = s[i];
    }
    out[n] = 0;
    return true;
}

static bool read_float(const jinja_value *v, double *out)
{
    char text[64], *rest;
    if (v->type == JINJA_STRING) {
        if (!number_text(v, text)) return false;
        *out = strtod(text, &rest);
        return rest != text && !*rest;
    }
    if (!jinja_is_number(v)) return false;
    *out = jinja_real(v);
    return true;
}

/* What a value is as a whole number: none, one, or one that 64 bits do not hold. */
typedef enum whole_kind {
    WHOLE_NONE,
    WHOLE_READ,
    WHOLE_LARGE,
} whole_kind;

static bool are_digits(const char *s, size_t length, int64_t base)
{
    for (size_t i = 0; i < length; i++) {
        int c = (unsigned char)s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'z' ? c - 'a' + 10
                    : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                           : 36;
        if (c != '_' && digit >= base) return false;
    }
    return true;
}

/* Whether a text is a whole number but for its length: `begin` without leading zeros, and the rest of it. */
static whole_kind long_whole(const char *begin, size_t n, const char *rest, size_t length, int64_t base)
{
    size_t at = begin[0] == '+' || begin[0] == '-';
    bool hex = (base == 16 || base == 0) && begin[at] == '0' && (begin[at + 1] == 'x' || begin[at + 1] == 'X');
    if (hex || (base == 2 && at == 0 && strncmp(begin, "0b", 2) == 0)) at += 2;
    if (base == 0) base = hex ? 16 : 10;
    return are_digits(begin + at, n - at, base) && are_digits(rest, length, base) ? WHOLE_LARGE : WHOLE_NONE;
}

static whole_kind whole_of_text(const char *s, size_t length, int64_t base, int64_t *out)
{
    char text[80], *rest;
    size_t n = 0;
    jinja_strip(&s, &length, NULL, true, true);
    for (size_t i = 0; i < length; i++) {
        bool leads = n == 0 || (n == 1 && strchr("+-", text[0]));
        if (s[i] == '_' || (base && leads && s[i] == '0' && i + 1 < length && strchr("0123456789_", s[i + 1])))
            continue;
        /* So many digits are too many in any base. */
        if (n == sizeof text - 1) return long_whole(text, n, s + i, length - i, base);
        text[n++] = s[i];
    }
    text[n] = 0;
    errno = 0;
    const char *digits = base == 2 && strncmp(text, "0b", 2) == 0 ? text + 2 : text;
    *out = strtoll(digits, &rest, (int)base);
    if (rest == digits || rest != text + n || jinja_is_space((unsigned char)*digits)) return WHOLE_NONE;
    return errno ? WHOLE_LARGE : WHOLE_READ;
}

static whole_kind read_int(const jinja_value *v, int64_t base, int64_t *out)
{
    double real;
    whole_kind kind = WHOLE_NONE;
    if (jinja_is_whole(v)) {
        *out = jinja_whole(v);
        return WHOLE_READ;
    }
    if (v->type == JINJA_STRING) kind = whole_of_text(v->text, v->length, base, out);
    if (kind != WHOLE_NONE || !read_float(v, &real) || isnan(real)) return kind;
    if (isinf(real)) return v->type == JINJA_STRING ? WHOLE_NONE : WHOLE_LARGE; /* as Python: a text is the default */
    if (!(real >= -0x1p63 && real < 0x1p63)) return WHOLE_LARGE;
    *out = (int64_t)real;
    return WHOLE_READ;
}

static bool filter_int(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"default", "base"};
    jinja_value slots[2];
    int64_t base, value;
    if (!jinja_bind(r, "int", args, names, 2, 0, slots) || !jinja_want_int(r, &slots[1], 10, &base)) return false;
    if (in->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, in);
    if (base != 0 && (base < 2 || base > 36))
        return jinja_fail(r, HY_BAD_INPUT, "int: a base of 2 to 36 or 0 is wanted");
    switch (read_int(in, base, &value)) {
    case WHOLE_READ: *out = jinja_int(value); break;
    case WHOLE_NONE: *out = slots[0].type ? slots[0] : jinja_int(0); break;
    case WHOLE_LARGE: return jinja_fail(r, HY_BAD_INPUT, "int: a whole number is outside of 64 bits");
    }
    return true;
}

static bool filter_float(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"default"};
    jinja_value slot;
    double value;
    if (!jinja_bind(r, "float", args, names, 1, 0, &slot)) return false;
    if (in->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, in);
    if (read_float(in, &value))
        *out = jinja_float(value);
    else
        *out = slot.type ? slot : jinja_float(0);
    return true;
}

static bool filter_abs(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    if (!bare(r, "abs", args)) return false;
    if (in->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, in);
    if (!jinja_is_number(in))
        return jinja_fail(r, HY_BAD_INPUT, "bad operand type for abs(): '%s'", jinja_type_name(in));
    if (in->type != JINJA_FLOAT && jinja_whole(in) == INT64_MIN)
        return jinja_fail(r, HY_BAD_INPUT, "abs: a whole number is outside of 64 bits");
    *out = in->type == JINJA_FLOAT ? jinja_float(fabs(in->real)) : jinja_int(llabs(jinja_whole(in)));
    return true;
}

/* To a number of decimals, the nearest, and of two the even one. */
static double round_to(double value, int digits)
{
    char text[420];
    if (!isfinite(value) || digits > 300) return value;
    if (digits < 0) {
        double unit = pow(10, -digits);
        return nearbyint(value / unit) * unit;
    }
    snprintf(text, sizeof text, "%.*f", digits, value);
    return strtod(text, NULL);
}

static bool filter_round(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"precision", "method"};
    jinja_value slots[2];
    int64_t digits;
    if (!jinja_bind(r, "round", args, names, 2, 0, slots) || !jinja_want_int(r, &slots[0], 0, &digits)) return false;
    if (in->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, in);
    bool common = !slots[1].type || jinja_same(&slots[1], "common"), ceiling = jinja_same(&slots[1], "ceil");
    if (!common && !ceiling && !jinja_same(&slots[1], "floor"))
        return jinja_fail(r, HY_BAD_INPUT, "method must be common, ceil or floor");
    if (!jinja_is_number(in))
        return jinja_fail(r, HY_BAD_INPUT, "type %s doesn't define __round__ method", jinja_type_name(in));
    if (digits > 300 || digits < -300) return jinja_fail(r, HY_BAD_INPUT, "round: at most 300 digits");
    if (common && jinja_is_whole(in) && digits >= 0) {
        *out = jinja_int(jinja_whole(in));
        return true;
    }
    double unit = pow(10, (double)digits), value = jinja_real(in);
    if (common)
        value = round_to(value, (int)digits);
    else
        value = (ceiling ? ceil(value * unit) : floor(value * unit)) / unit;
    *out = jinja_float(value);
    if (common && jinja_is_whole(in) && !(fabs(value) < 0x1p63))
        return jinja_fail(r, HY_BAD_INPUT, "a whole number is outside of 64 bits");
    if (common && jinja_is_whole(in)) *out = jinja_int((int64_t)value);
    return true;
}

/* ---- JSON and the rest ----------------------------------------------------------------------------------------- */

static bool json_indent(jinja_run *r, const jinja_value *v, jinja_json_style *style)
{
    jinja_value text = {0};
    if (!v->type || v->type == JINJA_NONE) return true;
    if (v->type == JINJA_STRING ? !jinja_copy(r, v->text, v->length, &text) : !indent_width(r, v, &text)) return false;
    style->indent = text.text;
    style->item = ",";
    return true;
}

static bool json_separators(jinja_run *r, const jinja_value *v, jinja_json_style *style)
{
    jinja_value item, key;
    if (!v->type || v->type == JINJA_NONE) return true;
    if (!jinja_is_plain_list(v) || v->list->count != 2)
        return jinja_fail(r, HY_BAD_INPUT, "tojson: separators are two strings");
    if (!jinja_want_string(r, &v->list->items[0], "separators", &item) ||
        !jinja_want_string(r, &v->list->items[1], "separators", &key))
        return false;
    if (!jinja_copy(r, item.text, item.length, &item) || !jinja_copy(r, key.text, key.length, &key)) return false;
    style->item = item.text, style->key = key.text;
    return true;
}

static bool filter_tojson(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    jinja_value slots[4];
    jinja_json_style style = {.item = ", ", .key = ": "};
    buffer b = {0};
    if (!jinja_bind(r, "tojson", args, names, 4, 0, slots)) return false;
    if (!json_indent(r, &slots[1], &style) || !json_separators(r, &slots[2], &style)) return false;
    style.ascii = jinja_truth(&slots[0]), style.sort = jinja_truth(&slots[3]);
    if (jinja_json(r, in, &style, &b)) return jinja_finish(r, &b, out);
    buffer_free(&b);
    return false;
}

static bool filter_default(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"default_value", "boolean"};
    jinja_value slots[2];
    if (!jinja_bind(r, "default", args, names, 2, 0, slots)) return false;
    bool missing = in->type == JINJA_UNDEFINED || (jinja_truth(&slots[1]) && !jinja_truth(in));
    *out = !missing ? *in : slots[0].type ? slots[0] : jinja_string("", 0);
    return true;
}

static bool filter_attr(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"name"};
    jinja_value name;
    if (!jinja_bind(r, "attr", args, names, 1, 1, &name) || !jinja_text(r, &name, &name)) return false;
    jinja_value kept;
    if (!jinja_copy(r, name.text, name.length, &kept)) return false;
    if (in->type == JINJA_DICT && jinja_method_access(in, kept.text) == JINJA_NO_METHOD) {
        *out = jinja_undefined(JINJA_NO_ATTRIBUTE, in->type, kept.text, kept.length);
        return true;
    }
    return jinja_attribute(r, in, kept.text, kept.length, out);
}

static const jinja_filter filters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
};

const jinja_filter *jinja_find_filter(const char *name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strcmp(filters[i].name, name) == 0) return &filters[i];
    for (const jinja_filter *f = jinja_sequence_filters; f->name; f++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}
