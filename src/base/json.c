#include "base/json.h"

#include <assert.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static void before_value(json_writer *w)
{
    if (w->after_key) {
        w->after_key = false;
    } else if (w->depth) {
        if (w->filled[w->depth - 1]) buffer_char(w->out, ',');
        w->filled[w->depth - 1] = true;
    }
}

static void begin(json_writer *w, char open, char close)
{
    assert(w->depth < JSON_DEPTH);
    before_value(w);
    buffer_char(w->out, open);
    w->filled[w->depth] = false;
    w->closer[w->depth++] = close;
}

void writer_object(json_writer *w)
{
    begin(w, '{', '}');
}

void writer_array(json_writer *w)
{
    begin(w, '[', ']');
}

void writer_end(json_writer *w)
{
    assert(w->depth > 0 && !w->after_key);
    buffer_char(w->out, w->closer[--w->depth]);
}

static void quoted(buffer *out, const char *s, size_t length)
{
    static const char hex[] = "0123456789abcdef";
    buffer_char(out, '"');
    size_t i = 0, run = 0;
    while (i < length) {
        unsigned char c = (unsigned char)s[i];
        size_t n = 1;
        const char *put = NULL;
        char u[7];
        if (c == '"')
            put = "\\\"";
        else if (c == '\\')
            put = "\\\\";
        else if (c == '\n')
            put = "\\n";
        else if (c == '\r')
            put = "\\r";
        else if (c == '\t')
            put = "\\t";
        else if (c == '\b')
            put = "\\b";
        else if (c == '\f')
            put = "\\f";
        else if (c < 0x20) {
            memcpy(u, "\\u00", 4);
            u[4] = hex[c >> 4], u[5] = hex[c & 15], u[6] = 0;
            put = u;
        } else if (c >= 0x80) {
            n = utf8_valid(s + i, length - i);
            if (!n) n = utf8_invalid_run(s + i, length - i), put = UTF8_REPLACEMENT;
        }
        if (put) {
            buffer_append(out, s + run, i - run);
            buffer_string(out, put);
            run = i + n;
        }
        i += n;
    }
    buffer_append(out, s + run, length - run);
    buffer_char(out, '"');
}

void writer_key(json_writer *w, const char *key)
{
    assert(w->depth > 0 && w->closer[w->depth - 1] == '}' && !w->after_key);
    before_value(w);
    quoted(w->out, key, strlen(key));
    buffer_char(w->out, ':');
    w->after_key = true;
}

void writer_string(json_writer *w, const char *s, size_t length)
{
    before_value(w);
    quoted(w->out, s, length);
}

void writer_text(json_writer *w, const char *s)
{
    if (s)
        writer_string(w, s, strlen(s));
    else
        writer_null(w);
}

void writer_integer(json_writer *w, int64_t value)
{
    before_value(w);
    buffer_printf(w->out, "%lld", (long long)value);
}

void writer_unsigned(json_writer *w, uint64_t value)
{
    before_value(w);
    buffer_printf(w->out, "%llu", (unsigned long long)value);
}

void json_format_number(double value, char out[32])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    /* A program that set its locale may have another decimal point. */
    const char *point = localeconv()->decimal_point;
    char *at = strcmp(point, ".") ? strstr(out, point) : NULL;
    if (at) {
        *at = '.';
        memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
    }
}

void writer_number(json_writer *w, double value)
{
    if (!isfinite(value)) {
        writer_null(w);
        return;
    }
    char text[32];
    json_format_number(value, text);
    before_value(w);
    buffer_string(w->out, text);
    /* 3 reads back as an integer in typed clients; a number that was a double stays one. */
    if (!strpbrk(text, ".e")) buffer_string(w->out, ".0");
}

void writer_bool(json_writer *w, bool value)
{
    before_value(w);
    buffer_string(w->out, value ? "true" : "false");
}

void writer_null(json_writer *w)
{
    before_value(w);
    buffer_string(w->out, "null");
}

void writer_raw(json_writer *w, const char *json, size_t length)
{
    before_value(w);
    buffer_append(w->out, json, length);
}
