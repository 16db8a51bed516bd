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

/* Whether all of eight bytes stand for themselves. Where none has its high bit, what is taken from a byte sets it only
 * if the byte is smaller; a borrow into the next one comes from such a byte. */
static bool plain_eight(const char *s)
{
    const uint64_t each = 0x0101010101010101;
    uint64_t v;
    memcpy(&v, s, sizeof v);
    uint64_t control = v - each * 0x20, quote = (v ^ each * '"') - each, backslash = (v ^ each * '\\') - each;
    return ((v | control | quote | backslash) & each * 0x80) == 0;
}

/* How many bytes stand for themselves. */
static size_t plain_run(const char *s, size_t length)
{
    size_t i = 0;
    while (length - i >= 8 && plain_eight(s + i)) i += 8;
    for (; i < length; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') break;
    }
    return i;
}

/* The escape of an ASCII character that does not stand for itself. */
static void escape(buffer *out, unsigned char c)
{
    static const char hex[] = "0123456789abcdef", from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *at = c ? strchr(from, c) : NULL;
    if (at)
        buffer_append(out, (const char[2]){'\\', to[at - from]}, 2);
    else
        buffer_append(out, (const char[6]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
}

void json_escape(buffer *out, const char *s, size_t length)
{
    size_t i = 0, run = 0;
    while ((i += plain_run(s + i, length - i)) < length) {
        unsigned char c = (unsigned char)s[i];
        size_t n = c < 0x80 ? 0 : utf8_valid(s + i, length - i);
        if (n) {
            i += n;
            continue;
        }
        buffer_append(out, s + run, i - run);
        if (c < 0x80)
            escape(out, c), i++;
        else
            buffer_string(out, UTF8_REPLACEMENT), i += utf8_invalid_run(s + i, length - i);
        run = i;
    }
    buffer_append(out, s + run, length - run);
}

static void quoted(buffer *out, const char *s, size_t length)
{
    buffer_char(out, '"');
    json_escape(out, s, length);
    buffer_char(out, '"');
}

void writer_key(json_writer *w, const char *key)
{
    writer_key_string(w, key, strlen(key));
}

void writer_key_string(json_writer *w, const char *key, size_t length)
{
    assert(w->depth > 0 && w->closer[w->depth - 1] == '}' && !w->after_key);
    enum { SHORT = 60 };
    char text[SHORT + 4] = ",\"";
    /* Most of what a streamed token's JSON consists of: in one piece where nothing is to be escaped. */
    if (length <= SHORT && plain_run(key, length) == length) {
        size_t from = !w->filled[w->depth - 1];
        memcpy(text + 2, key, length);
        memcpy(text + 2 + length, "\":", 2);
        buffer_append(w->out, text + from, 4 - from + length);
        w->filled[w->depth - 1] = true;
    } else {
        before_value(w);
        quoted(w->out, key, length);
        buffer_char(w->out, ':');
    }
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

static void digits(buffer *out, uint64_t value)
{
    char text[20];
    size_t at = sizeof text;
    do {
        text[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    buffer_append(out, text + at, sizeof text - at);
}

void writer_integer(json_writer *w, int64_t value)
{
    before_value(w);
    if (value < 0) buffer_char(w->out, '-');
    digits(w->out, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void writer_unsigned(json_writer *w, uint64_t value)
{
    before_value(w);
    digits(w->out, value);
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

void writer_resume(json_writer *w, const json_writer *from, buffer *out)
{
    *w = *from;
    w->out = out;
    buffer_append(out, from->out->data, from->out->length);
}

void writer_raw(json_writer *w, const char *json, size_t length)
{
    before_value(w);
    buffer_append(w->out, json, length);
}
