#include "cli/serve_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "cli/cli.h"

enum { MOST_DEEP = 16, NAME_SIZE = 128 };

bool values_human(const char *text, bool bytes, int64_t *out)
{
    uint64_t value;
    if (!strcmp(text, "-1") || !strcasecmp(text, "auto")) {
        *out = -1;
        return true;
    }
    if (!(bytes ? cli_parse_size : cli_parse_count)(text, &value) || value > INT64_MAX) return false;
    *out = (int64_t)value;
    return true;
}

json_t *values_member(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (value) return value;
    uint64_t number;
    /* Upstream's suffixes alone: a name such as "8GB" stays a name. */
    size_t n = strlen(text);
    if (n > 1 && strchr("kKmMgGtT", text[n - 1]) && cli_parse_count(text, &number) && number <= INT64_MAX)
        return json_integer((json_int_t)number);
    return json_string(text);
}

/* The list at `name` of `into`, made where nothing is; the parts of text are appended. */
static bool append(json_t *into, const char *name, const char *text, char *why, size_t why_size)
{
    json_t *list = json_object_get(into, name);
    if (list && !json_is_array(list)) {
        snprintf(why, why_size, "%s is no list, so that nothing can be appended", name);
        return false;
    }
    if (!list) {
        list = json_array();
        json_object_set_new(into, name, list);
    }
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        json_t *part = json_stringn(p, n);
        if (!part) {
            snprintf(why, why_size, "the value is not UTF-8");
            return false;
        }
        json_array_append_new(list, part);
        p += n;
        if (!*p) return true;
    }
}

bool values_set(json_t *into, const char *path, const char *text, char *why, size_t why_size)
{
    char name[NAME_SIZE];
    for (int depth = 0;; depth++) {
        size_t n = strcspn(path, ".");
        bool last = path[n] == 0, list = last && n > 0 && path[n - 1] == '+';
        size_t length = list ? n - 1 : n;
        if (length == 0 || length >= sizeof name || depth == MOST_DEEP) {
            snprintf(why, why_size, "%s", length == 0 ? "a member has no name" : "the path of a member is too long");
            return false;
        }
        memcpy(name, path, length);
        name[length] = 0;
        if (list) return append(into, name, text, why, why_size);
        if (last) {
            json_t *value = values_member(text);
            if (value && json_object_set_new(into, name, value) == 0) return true;
            snprintf(why, why_size, "the value is not UTF-8");
            return false;
        }
        json_t *inner = json_object_get(into, name);
        if (!json_is_object(inner)) {
            inner = json_object();
            if (json_object_set_new(into, name, inner) != 0) {
                snprintf(why, why_size, "the name of a member is not UTF-8");
                return false;
            }
        }
        into = inner, path += n + 1;
    }
}

static void python_string(buffer *out, const char *s)
{
    char quote = strchr(s, '\'') && !strchr(s, '"') ? '"' : '\'';
    buffer_char(out, quote);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\n')
            buffer_string(out, "\\n");
        else if (c < 32 || c == 127)
            buffer_printf(out, "\\x%02x", c);
        else if (c == (unsigned char)quote || c == '\\')
            buffer_printf(out, "\\%c", c);
        else
            buffer_char(out, (char)c);
    }
    buffer_char(out, quote);
}

void values_python(buffer *out, const json_t *value)
{
    const char *key, *between = "";
    json_t *v;
    size_t i;
    char number[32];
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        buffer_char(out, '{');
        json_object_foreach((json_t *)value, key, v)
        {
            buffer_string(out, between), between = ", ";
            python_string(out, key);
            buffer_string(out, ": ");
            values_python(out, v);
        }
        buffer_char(out, '}');
        break;
    case JSON_ARRAY:
        buffer_char(out, '[');
        json_array_foreach(value, i, v)
        {
            buffer_string(out, between), between = ", ";
            values_python(out, v);
        }
        buffer_char(out, ']');
        break;
    case JSON_STRING: python_string(out, json_string_value(value)); break;
    case JSON_INTEGER: buffer_printf(out, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL:
        json_format_number(json_real_value(value), number);
        buffer_printf(out, "%s%s", number, strpbrk(number, ".eE") ? "" : ".0");
        break;
    case JSON_TRUE: buffer_string(out, "True"); break;
    case JSON_FALSE: buffer_string(out, "False"); break;
    case JSON_NULL: buffer_string(out, "None"); break;
    }
}
