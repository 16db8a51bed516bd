#include "text/python_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest digits of a positive value: digits[0] . digits[1..] x 10^exponent. Returns how many. */
static size_t shortest_digits(double value, char digits[24], int *exponent)
{
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value) break;
    }
    const char *e = strchr(text, 'e');
    *exponent = (int)strtol(e + 1, NULL, 10);
    size_t count = 0;
    for (const char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9') digits[count++] = *c;
    while (count > 1 && digits[count - 1] == '0') count--;
    return count;
}

void python_float(double value, buffer *out)
{
    char digits[24];
    int exponent = 0;
    if (signbit(value)) buffer_char(out, '-');
    if (value == 0) {
        buffer_string(out, "0.0");
        return;
    }
    size_t count = shortest_digits(fabs(value), digits, &exponent);
    if (exponent < -4 || exponent >= 16) {
        buffer_char(out, digits[0]);
        if (count > 1) buffer_char(out, '.');
        buffer_append(out, digits + 1, count - 1);
        buffer_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) buffer_string(out, "0.");
    for (int i = -1; i > exponent; i--) buffer_char(out, '0');
    for (int i = 0; i < (int)count || i <= exponent; i++) {
        if (i == exponent + 1 && exponent >= 0) buffer_char(out, '.');
        buffer_char(out, i < (int)count ? digits[i] : '0');
    }
    if ((int)count <= exponent + 1) buffer_string(out, ".0");
}

static void python_string(const char *s, size_t length, buffer *out)
{
    buffer_char(out, '"');
    size_t start = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        buffer_append(out, s + start, i - start);
        start = i + 1;
        const char *from = "\"\\\n\r\t\b\f", *to = "\"\\nrtbf", *found = c ? strchr(from, c) : NULL;
        if (found)
            buffer_printf(out, "\\%c", to[found - from]);
        else
            buffer_printf(out, "\\u%04x", c);
    }
    buffer_append(out, s + start, length - start);
    buffer_char(out, '"');
}

static void python_list(const json_t *list, buffer *out)
{
    size_t i;
    json_t *item;
    buffer_char(out, '[');
    json_array_foreach(list, i, item)
    {
        if (i) buffer_string(out, ", ");
        python_json(item, out);
    }
    buffer_char(out, ']');
}

static void python_dict(const json_t *dict, buffer *out)
{
    const char *key;
    json_t *item;
    bool first = true;
    buffer_char(out, '{');
    json_object_foreach((json_t *)dict, key, item)
    {
        if (!first) buffer_string(out, ", ");
        first = false;
        python_string(key, strlen(key), out);
        buffer_string(out, ": ");
        python_json(item, out);
    }
    buffer_char(out, '}');
}

void python_json(const json_t *value, buffer *out)
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT: python_dict(value, out); break;
    case JSON_ARRAY: python_list(value, out); break;
    case JSON_STRING: python_string(json_string_value(value), json_string_length(value), out); break;
    case JSON_INTEGER: buffer_printf(out, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: python_float(json_real_value(value), out); break;
    case JSON_TRUE: buffer_string(out, "true"); break;
    case JSON_FALSE: buffer_string(out, "false"); break;
    case JSON_NULL: buffer_string(out, "null"); break;
    }
}
