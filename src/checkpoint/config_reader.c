#include "checkpoint/config_reader.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

void config_bad(config_reader *r, const char *key, const char *format, ...)
{
    if (r->status != HY_OK) return;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *slash = strrchr(r->name, '/');
    r->status = error_at(r->err, HY_BAD_MODEL, key, "%.100s: %s", slash ? slash + 1 : r->name, text);
}

json_t *config_reader_parse(config_reader *r, const char *json, size_t length)
{
    json_error_t problem;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &problem);
    if (!root) {
        config_bad(r, "", "no valid JSON at line %d: %s", problem.line, problem.text);
    } else if (!json_is_object(root)) {
        config_bad(r, "", "the file does not hold a JSON object");
        json_decref(root);
        root = NULL;
    }
    return root;
}

json_t *config_get(const json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

json_t *config_object(config_reader *r, const json_t *object, const char *key)
{
    json_t *v = config_get(object, key);
    if (v && !json_is_object(v)) config_bad(r, key, "%s is not an object", key);
    return json_is_object(v) ? v : NULL;
}

int config_int(config_reader *r, const json_t *object, const char *key, int low, int high, int fallback)
{
    json_t *v = config_get(object, key);
    if (!v) {
        if (fallback == CONFIG_REQUIRED) config_bad(r, key, "%s is missing", key);
        return fallback == CONFIG_REQUIRED ? low : fallback;
    }
    if (!json_is_integer(v)) {
        config_bad(r, key, "%s is not a whole number", key);
        return low;
    }
    json_int_t n = json_integer_value(v);
    if (n < low || n > high) {
        config_bad(r, key, "%s is %lld; it must be from %d to %d", key, (long long)n, low, high);
        return low;
    }
    return (int)n;
}

float config_number(config_reader *r, const json_t *object, const char *key, double low, double high, double fallback)
{
    json_t *v = config_get(object, key);
    if (!v) {
        if (isnan(fallback)) config_bad(r, key, "%s is missing", key);
        return (float)(isnan(fallback) ? low : fallback);
    }
    if (!json_is_number(v)) {
        config_bad(r, key, "%s is not a number", key);
        return (float)low;
    }
    double n = json_number_value(v);
    if (!(n >= low && n <= high)) {
        config_bad(r, key, "%s is %g; it must be from %g to %g", key, n, low, high);
        return (float)low;
    }
    return (float)n;
}

bool config_bool(config_reader *r, const json_t *object, const char *key, bool fallback)
{
    json_t *v = config_get(object, key);
    if (!v) return fallback;
    if (!json_is_boolean(v)) config_bad(r, key, "%s is neither true nor false", key);
    return json_is_true(v);
}

const char *config_string(config_reader *r, const json_t *object, const char *key)
{
    json_t *v = config_get(object, key);
    if (!v) return NULL;
    if (!json_is_string(v)) config_bad(r, key, "%s is not a string", key);
    return json_string_value(v);
}

void config_want_bool(config_reader *r, const json_t *object, const char *key, bool want)
{
    if (config_bool(r, object, key, want) != want)
        config_bad(r, key, "%s is %s; only %s is supported", key, want ? "false" : "true", want ? "true" : "false");
}

void config_want_int(config_reader *r, const json_t *object, const char *key, int want)
{
    int n = config_int(r, object, key, INT_MIN + 1, INT_MAX, want);
    if (n != want) config_bad(r, key, "%s is %d; only %d is supported", key, n, want);
}

void config_want_string(config_reader *r, const json_t *object, const char *key, const char *want)
{
    const char *s = config_string(r, object, key);
    if (s && strcmp(s, want) != 0) config_bad(r, key, "%s is \"%.80s\"; only \"%s\" is supported", key, s, want);
}

/* The list of a key with `layers` elements; NULL: absent or wrong. */
static json_t *list(config_reader *r, const json_t *object, const char *key, int layers)
{
    json_t *v = config_get(object, key);
    if (!v) return NULL;
    if (!json_is_array(v)) {
        config_bad(r, key, "%s is not a list", key);
        return NULL;
    }
    if (json_array_size(v) != (size_t)layers) {
        config_bad(r, key, "%s has %zu entries for %d layers", key, json_array_size(v), layers);
        return NULL;
    }
    return v;
}

bool config_flags(config_reader *r, const json_t *object, const char *key, int layers, uint8_t *out)
{
    json_t *v = list(r, object, key, layers);
    if (!v) return config_get(object, key) != NULL;
    for (int i = 0; i < layers; i++) {
        const json_t *e = json_array_get(v, (size_t)i);
        json_int_t n = json_is_boolean(e) ? json_is_true(e) : json_is_integer(e) ? json_integer_value(e) : -1;
        if (n != 0 && n != 1) config_bad(r, key, "%s is neither 0 nor 1 for layer %d", key, i);
        out[i] = n == 1;
    }
    return true;
}

bool config_words(config_reader *r, const json_t *object, const char *key, int layers, const char *one,
                  const char *zero, uint8_t *out)
{
    json_t *v = list(r, object, key, layers);
    if (!v) return config_get(object, key) != NULL;
    for (int i = 0; i < layers; i++) {
        const char *s = json_string_value(json_array_get(v, (size_t)i));
        out[i] = s && strcmp(s, one) == 0;
        if (out[i] || (s && zero && strcmp(s, zero) == 0)) continue;
        config_bad(r, key, "%s of layer %d is %s%.60s%s; \"%s\"%s%s%s is supported", key, i, s ? "\"" : "",
                   s ? s : "no string", s ? "\"" : "", one, zero ? " or \"" : "", zero ? zero : "", zero ? "\"" : "");
    }
    return true;
}
