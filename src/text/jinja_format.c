/* Formatting: "%5.1f" % x and "{:>5}".format(x), as far as they are in use. */
#include "text/jinja_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDEST = 10000 };

/* What stands between % or : and the letter. */
typedef struct spec {
    char fill[5];
    char align; /* '<', '>', '^', '=', 0: by type */
    char sign;  /* '+', ' ', 0 */
    bool alternate, zero, comma;
    int width, precision; /* precision -1: none */
    char type;            /* 0: none */
} spec;

static bool bad(jinja_run *r, const char *why)
{
    return jinja_fail(r, HY_BAD_INPUT, "a format is not understood: %s", why);
}

static const char *number(const char *s, const char *end, int *out)
{
    int n = 0;
    while (s < end && *s >= '0' && *s <= '9' && n < WIDEST) n = n * 10 + (*s++ - '0');
    *out = n;
    return s;
}

/* Text with its sign in front, filled up to the width. */
static void put_padded(const spec *s, const char *sign, const char *text, size_t length, bool numeric, buffer *out)
{
    size_t have = jinja_characters(text, length) + strlen(sign);
    size_t more = (size_t)s->width > have ? (size_t)s->width - have : 0;
    char align = s->align ? s->align : numeric ? (s->zero ? '=' : '>') : '<';
    const char *fill = *s->fill ? s->fill : s->zero && numeric ? "0" : " ";
    size_t left = align == '<' ? 0 : align == '^' ? more / 2 : more;
    if (align == '=') buffer_string(out, sign);
    for (size_t i = 0; i < left; i++) buffer_string(out, fill);
    if (align != '=') buffer_string(out, sign);
    buffer_append(out, text, length);
    for (size_t i = left; i < more; i++) buffer_string(out, fill);
}

static void put_grouped(const char *digits, buffer *out)
{
    size_t whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % 3 == 0) buffer_char(out, ',');
        buffer_char(out, digits[i]);
    }
    buffer_string(out, digits + whole);
}

static bool put_number(jinja_run *r, const spec *s, const jinja_value *v, buffer *out)
{
    char text[400];
    double d = jinja_real(v);
    const char *sign = signbit(d) || d < 0 ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
    int precision = s->precision < 0 ? 6 : s->precision;
    if (precision > 60) return bad(r, "a precision above 60");
    unsigned long long whole = 0;
    if (jinja_is_whole(v))
        whole = jinja_whole(v) < 0 ? 0 - (unsigned long long)jinja_whole(v) : (unsigned long long)jinja_whole(v);
    char type = s->type ? s->type : jinja_is_whole(v) ? 'd' : 0;
    bool upper = type == 'X' || type == 'E' || type == 'G' || type == 'F';
    if (strchr("dxXo", type ? type : '-')) {
        const char *format = type == 'd' ? "%llu" : type == 'o' ? "%llo" : type == 'x' ? "%llx" : "%llX";
        if (!jinja_is_whole(v)) return bad(r, "a whole number is wanted");
        snprintf(text, sizeof text, format, whole); // NOLINT(clang-diagnostic-format-nonliteral)
    } else if (type == '%') {
        snprintf(text, sizeof text, "%.*f%%", precision, fabs(d) * 100);
    } else if (type == 'f' || type == 'F') {
        snprintf(text, sizeof text, "%.*f", precision, fabs(d));
    } else if (type == 'e' || type == 'E') {
        snprintf(text, sizeof text, upper ? "%.*E" : "%.*e", precision, fabs(d));
    } else if (type == 'g' || type == 'G' || (!type && s->precision >= 0)) {
        snprintf(text, sizeof text, upper ? "%.*G" : "%.*g", precision ? precision : 1, fabs(d));
    } else if (!type) {
        buffer plain = {0};
        jinja_value positive = jinja_float(fabs(d));
        bool ok = jinja_print(r, &positive, &plain);
        snprintf(text, sizeof text, "%s", plain.data ? plain.data : "");
        buffer_free(&plain);
        if (!ok) return false;
    } else {
        return bad(r, "the type of a number");
    }
    buffer grouped = {0};
    if (s->comma)
        put_grouped(text, &grouped);
    else
        buffer_string(&grouped, text);
    put_padded(s, sign, grouped.data ? grouped.data : "", grouped.length, true, out);
    buffer_free(&grouped);
    return true;
}

static bool put_text(jinja_run *r, const spec *s, const jinja_value *v, bool repr, buffer *out)
{
    buffer text = {0};
    bool ok = repr ? jinja_repr(r, v, &text) : jinja_print(r, v, &text);
    size_t length = text.length;
    if (s->precision >= 0 && length)
        length = (size_t)(jinja_at_character(text.data, length, (size_t)s->precision) - text.data);
    if (ok) put_padded(s, "", text.data ? text.data : "", length, false, out);
    buffer_free(&text);
    return ok;
}

static bool within(jinja_run *r, const buffer *out)
{
    return out->length <= r->output_limit || jinja_fail(r, HY_NO_FIT, "a format makes too much text");
}

static bool finish(jinja_run *r, bool ok, buffer *text, jinja_value *out)
{
    if (ok) return jinja_finish(r, text, out);
    buffer_free(text);
    return false;
}

/* ---- "%s" % x --------------------------------------------------------------------------------------------------- */

static bool percent_value(jinja_run *r, const spec *s, const jinja_value *v, buffer *out)
{
    spec number_spec = *s;
    if (v->type == JINJA_UNDEFINED && strchr("diufFeEgGxXo", s->type)) return jinja_fail_undefined(r, v);
    switch (s->type) {
    case 's':
    case 'r':
    case 'a': number_spec.align = s->align ? s->align : '>'; return put_text(r, &number_spec, v, s->type != 's', out);
    case 'i':
    case 'u':
    case 'd': {
        if (!jinja_is_number(v))
            return jinja_fail(r, HY_BAD_INPUT, "%%d format: a real number is required, not %s", jinja_type_name(v));
        if (v->type == JINJA_FLOAT && !(fabs(v->real) < 9e18)) return bad(r, "a number that is not whole");
        jinja_value whole = v->type == JINJA_FLOAT ? jinja_int((int64_t)v->real) : *v;
        number_spec.type = 'd';
        return put_number(r, &number_spec, &whole, out);
    }
    case 'x':
    case 'X':
    case 'o':
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        if (!jinja_is_number(v)) return jinja_fail(r, HY_BAD_INPUT, "must be real number, not %s", jinja_type_name(v));
        return put_number(r, &number_spec, v, out);
    case 'c':
        if (v->type == JINJA_STRING && jinja_characters(v->text, v->length) == 1)
            return put_text(r, &number_spec, v, false, out);
        return bad(r, "%c wants one character");
    default: return bad(r, "an unknown letter after %");
    }
}

typedef struct percent {
    const jinja_value *args;
    size_t next; /* of a tuple */
    bool named;
} percent;

static bool next_value(jinja_run *r, percent *p, jinja_value *out)
{
    bool tuple = p->args->type == JINJA_LIST && p->args->list->style == JINJA_TUPLE;
    if (tuple ? p->next >= p->args->list->count : p->next >= 1)
        return jinja_fail(r, HY_BAD_INPUT, "not enough arguments for format string");
    *out = tuple ? p->args->list->items[p->next] : *p->args;
    p->next++;
    return true;
}

static bool percent_one(jinja_run *r, percent *p, const char **at, const char *end, buffer *out)
{
    spec s = {.precision = -1};
    const char *c = *at;
    jinja_value v = {0};
    if (c < end && *c == '(') {
        const char *close = memchr(c, ')', (size_t)(end - c));
        const jinja_value *found;
        if (!close || p->args->type != JINJA_DICT) return jinja_fail(r, HY_BAD_INPUT, "format requires a mapping");
        jinja_value key = jinja_string(c + 1, (size_t)(close - c) - 1);
        if (!jinja_dict_find(r, p->args->dict, &key, &found)) return false;
        if (!found)
            return jinja_fail(r, HY_BAD_INPUT, "a format names '%.*s', which is not there",
                              (int)(key.length < 60 ? key.length : 60), key.text);
        v = *found, p->named = true;
        c = close + 1;
    }
    for (; c < end && strchr("-+ #0", *c) && *c; c++) {
        if (*c == '-') s.align = '<';
        if (*c == '+' || (*c == ' ' && !s.sign)) s.sign = *c;
        if (*c == '0') s.zero = true;
    }
    c = number(c, end, &s.width);
    if (c < end && *c == '.') c = number(c + 1, end, &s.precision);
    if (c == end) return jinja_fail(r, HY_BAD_INPUT, "incomplete format");
    s.type = *c;
    *at = c + 1;
    if (s.type == '%') {
        buffer_char(out, '%');
        return true;
    }
    return (v.type || next_value(r, p, &v)) && percent_value(r, &s, &v, out);
}

bool jinja_percent(jinja_run *r, const jinja_value *format, const jinja_value *args, jinja_value *out)
{
    buffer text = {0};
    percent p = {.args = args};
    const char *at = format->text, *end = at + format->length;
    bool ok = true;
    while (ok && at < end) {
        const char *sign = memchr(at, '%', (size_t)(end - at));
        buffer_append(&text, at, (size_t)((sign ? sign : end) - at));
        at = sign ? sign + 1 : end;
        if (sign) ok = percent_one(r, &p, &at, end, &text) && within(r, &text) && jinja_work(r, 1);
    }
    bool tuple = args->type == JINJA_LIST && args->list->style == JINJA_TUPLE;
    bool left = tuple ? p.next < args->list->count
                      : p.next < 1 && !p.named && args->type != JINJA_DICT && args->type != JINJA_LIST;
    if (ok && left) ok = jinja_fail(r, HY_BAD_INPUT, "not all arguments converted during string formatting");
    return finish(r, ok, &text, out);
}

/* ---- "{}".format(x) --------------------------------------------------------------------------------------------- */

static bool read_spec(jinja_run *r, const char *c, const char *end, spec *s)
{
    *s = (spec){.precision = -1};
    size_t n = c < end ? jinja_character_bytes(c, (size_t)(end - c)) : 0;
    if (c + n < end && n < sizeof s->fill && strchr("<>^=", c[n]) && c[n]) {
        memcpy(s->fill, c, n);
        s->align = c[n];
        c += n + 1;
    } else if (c < end && strchr("<>^=", *c) && *c) {
        s->align = *c++;
    }
    if (c < end && (*c == '+' || *c == '-' || *c == ' ')) {
        s->sign = *c == '-' ? 0 : *c;
        c++;
    }
    if (c < end && *c == '#') return bad(r, "'#'");
    if (c < end && *c == '0') s->zero = true, c++;
    c = number(c, end, &s->width);
    if (c < end && *c == ',') s->comma = true, c++;
    if (c < end && *c == '.') c = number(c + 1, end, &s->precision);
    if (c < end) s->type = *c++;
    return c == end || bad(r, "what stands after ':'");
}

/* "0", "name", "name.attribute[key]": the value of a field. */
static bool field_value(jinja_run *r, const char *s, const char *end, const jinja_args *args, size_t *next,
                        jinja_value *out)
{
    const char *stop = s;
    int position = 0;
    while (stop < end && *stop != '.' && *stop != '[') stop++;
    bool counted = s == stop;
    if (counted) {
        position = (int)(*next)++;
    } else if (number(s, stop, &position) != stop) {
        size_t i = args->positional;
        while (i < args->count &&
               (strlen(args->at[i].name) != (size_t)(stop - s) || memcmp(args->at[i].name, s, (size_t)(stop - s)) != 0))
            i++;
        if (i == args->count) return jinja_fail(r, HY_BAD_INPUT, "a format names an argument that is not there");
        *out = args->at[i].value;
        position = -1;
    }
    if (position >= 0 && (size_t)position >= args->positional)
        return jinja_fail(r, HY_BAD_INPUT, "Replacement index %d out of range for positional args tuple", position);
    if (position >= 0) *out = args->at[position].value;
    while (stop < end) {
        bool item = *stop == '[';
        const char *from = ++stop;
        while (stop < end && *stop != (item ? ']' : '.') && (item || *stop != '[')) stop++;
        jinja_value key;
        int index;
        if (!jinja_copy(r, from, (size_t)(stop - from), &key)) return false;
        if (item && number(from, stop, &index) == stop && stop > from) key = jinja_int(index);
        if (item && stop < end) stop++;
        if (item ? !jinja_item(r, out, &key, out) : !jinja_attribute(r, out, key.text, key.length, out)) return false;
    }
    return true;
}

static bool format_field(jinja_run *r, const char *s, const char *end, const jinja_args *args, size_t *next,
                         buffer *out)
{
    const char *colon = memchr(s, ':', (size_t)(end - s)), *bang = memchr(s, '!', (size_t)((colon ? colon : end) - s));
    const char *name_end = bang ? bang : colon ? colon : end;
    jinja_value v;
    spec how;
    if (memchr(colon ? colon : end, '{', (size_t)(end - (colon ? colon : end))))
        return bad(r, "a field inside a field");
    if (!field_value(r, s, name_end, args, next, &v)) return false;
    if (!read_spec(r, colon ? colon + 1 : end, end, &how)) return false;
    if (bang)
        return bang + 1 < end && (bang[1] == 'r' || bang[1] == 's') ? put_text(r, &how, &v, bang[1] == 'r', out)
                                                                    : bad(r, "'!'");
    bool numeric = jinja_is_number(&v) && (v.type != JINJA_BOOL || how.type);
    if (numeric && how.type != 's') return put_number(r, &how, &v, out);
    if (how.type && how.type != 's') return bad(r, "a number is wanted");
    return put_text(r, &how, &v, false, out);
}

bool jinja_format(jinja_run *r, const jinja_value *format, const jinja_args *args, jinja_value *out)
{
    buffer text = {0};
    size_t next = 0;
    const char *at = format->text, *end = at + format->length;
    bool ok = true;
    while (ok && at < end) {
        char c = *at;
        if ((c == '{' || c == '}') && at + 1 < end && at[1] == c) {
            buffer_char(&text, c);
            at += 2;
        } else if (c == '{') {
            const char *close = memchr(at, '}', (size_t)(end - at));
            ok = close ? format_field(r, at + 1, close, args, &next, &text) : bad(r, "'{' without '}'");
            at = close ? close + 1 : end;
        } else if (c == '}') {
            ok = bad(r, "'}' without '{'");
        } else {
            buffer_char(&text, c);
            at++;
        }
        ok = ok && within(r, &text) && jinja_work(r, 1);
    }
    return finish(r, ok, &text, out);
}
