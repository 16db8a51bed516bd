/* Values of flags by name, and the command line as it is shown. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "cli/serve_flags.h"
#include "cli/serve_values.h"

static const arg_spec *spec_of(const char *name)
{
    const arg_spec *spec = serve_find(name, strlen(name));
    assert(spec);
    return spec;
}

const json_t *serve_json(const serve_args *args, const char *name)
{
    const json_t *value = json_object_get(args->values, spec_of(name)->name);
    return json_is_null(value) ? NULL : value;
}

bool serve_given(const serve_args *args, const char *name)
{
    return serve_json(args, name) != NULL;
}

bool serve_on(const serve_args *args, const char *name)
{
    const json_t *value = serve_json(args, name);
    return value ? json_is_true(value) : !strcmp(spec_of(name)->value, "on");
}

int64_t serve_integer(const serve_args *args, const char *name)
{
    const json_t *value = serve_json(args, name);
    return value ? json_integer_value(value) : strtoll(spec_of(name)->value, NULL, 10);
}

double serve_number(const serve_args *args, const char *name)
{
    const json_t *value = serve_json(args, name);
    return value ? json_number_value(value) : strtod(spec_of(name)->value, NULL);
}

const char *serve_text(const serve_args *args, const char *name)
{
    const char *text = json_string_value(serve_json(args, name)), *standard = spec_of(name)->value;
    return text ? text : *standard ? standard : NULL;
}

size_t serve_texts(const serve_args *args, const char *name, const char **list, size_t size)
{
    const json_t *value = serve_json(args, name);
    size_t n = json_array_size(value);
    for (size_t i = 0; i < n && i < size; i++) list[i] = json_string_value(json_array_get(value, i));
    return n;
}

static void quoted(buffer *b, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%";
    if (*word && word[strspn(word, plain)] == 0) {
        buffer_string(b, word);
        return;
    }
    buffer_char(b, '\'');
    for (; *word; word++) *word == '\'' ? buffer_string(b, "'\\''") : buffer_char(b, *word);
    buffer_char(b, '\'');
}

char *serve_command(const serve_args *args, bool (*left_out)(const arg_spec *spec))
{
    buffer b = {0};
    buffer_string(&b, "hayate serve");
    for (int i = 1; i < args->argc; i++) {
        const arg_spec *spec = args->owner[i];
        if (spec && (left_out(spec) || !strcmp(spec->name, "api-key") || !strcmp(spec->name, "hf-token"))) continue;
        buffer_char(&b, ' ');
        quoted(&b, args->argv[i]);
    }
    return buffer_take(&b, NULL);
}

/* Whether a value is the default that the table names. */
static bool is_default(const arg_spec *spec, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_TRUE: return !strcmp(spec->value, "on");
    case JSON_FALSE: return spec->value[0] == 0;
    case JSON_STRING: return !strcmp(spec->value, json_string_value(value));
    case JSON_INTEGER: return spec->value[0] && strtoll(spec->value, NULL, 10) == json_integer_value(value);
    case JSON_REAL: return spec->value[0] && strtod(spec->value, NULL) == json_real_value(value);
    case JSON_NULL: return true;
    case JSON_OBJECT: return json_object_size(value) == 0;
    case JSON_ARRAY: {
        json_t *standard = json_loads(spec->value, 0, NULL);
        bool same = standard && json_equal(standard, value);
        json_decref(standard);
        return same;
    }
    }
    return false;
}

bool serve_is_default(const serve_args *args, const arg_spec *spec)
{
    const json_t *value = json_object_get(args->values, spec->name);
    return !value || is_default(spec, value);
}

static json_t *hidden(const arg_spec *spec, json_t *value)
{
    if (strcmp(spec->name, "api-key") && strcmp(spec->name, "hf-token")) return json_incref(value);
    if (!json_is_array(value)) return json_string("***");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(value); i++) json_array_append_new(list, json_string("***"));
    return list;
}

json_t *serve_shown(const serve_args *args)
{
    json_t *all = json_object(), *value;
    const char *name;
    if (args->model) json_object_set_new(all, "model_tag", json_string(args->model));
    json_object_foreach(args->values, name, value)
    {
        const arg_spec *spec = spec_of(name);
        char key[64];
        size_t n = 0;
        if (is_default(spec, value) || !strcmp(name, "model")) continue;
        for (; name[n] && n < sizeof key - 1; n++) key[n] = name[n] == '-' ? '_' : name[n];
        key[n] = 0;
        json_object_set_new(all, key, hidden(spec, value));
    }
    return all;
}

char *serve_non_default(const serve_args *args)
{
    buffer b = {0};
    json_t *all = serve_shown(args);
    values_python(&b, all);
    json_decref(all);
    return buffer_take(&b, NULL);
}
