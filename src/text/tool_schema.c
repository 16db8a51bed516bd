#include "text/tool_schema.h"

#include "text/tool_calls.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum kind { STRING, INTEGER, NUMBER, BOOLEAN, OBJECT, ARRAY, NONE } kind;

/* Whole names, and beginnings where that is how a language spells the sizes of a type: int64, float32, list[str]. */
static kind kind_of_name(const char *name)
{
    static const struct {
        const char *name;
        bool prefix;
        kind kind;
    } names[] = {
        {"string", false, STRING},   {"boolean", false, BOOLEAN}, {"bool", false, BOOLEAN}, {"binary", false, BOOLEAN},
        {"object", false, OBJECT},   {"map", false, OBJECT},      {"dict", true, OBJECT},   {"array", false, ARRAY},
        {"arr", false, ARRAY},       {"sequence", false, ARRAY},  {"list", true, ARRAY},    {"null", false, NONE},
        {"int", true, INTEGER},      {"uint", true, INTEGER},     {"long", true, INTEGER},  {"short", true, INTEGER},
        {"unsigned", true, INTEGER}, {"num", true, NUMBER},       {"float", true, NUMBER},  {"double", true, NUMBER},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].prefix ? !strncasecmp(name, names[i].name, strlen(names[i].name))
                            : !strcasecmp(name, names[i].name))
            return names[i].kind;
    return STRING;
}

/* The n-th of a schema's alternatives; a schema without any is its own only one. NULL behind the last. */
static const json_t *alternative(const json_t *schema, size_t n)
{
    const json_t *list = json_object_get(schema, "anyOf");
    if (!json_array_size(list)) list = json_object_get(schema, "oneOf");
    if (json_array_size(list)) return json_array_get(list, n);
    return n ? NULL : schema;
}

/* The n-th type of a schema without alternatives; false behind the last. */
static bool type_at(const json_t *schema, size_t n, kind *out)
{
    const json_t *type = json_object_get(schema, "type");
    if (json_array_size(type)) {
        const char *name = json_string_value(json_array_get(type, n));
        *out = kind_of_name(name ? name : "");
        return n < json_array_size(type);
    }
    *out = STRING;
    if (json_is_string(type))
        *out = kind_of_name(json_string_value(type));
    else if (json_is_object(json_object_get(schema, "properties")))
        *out = OBJECT;
    else if (json_is_object(json_object_get(schema, "items")))
        *out = ARRAY;
    return n == 0;
}

/* The first alternative, and of it the type, that has elements; NULL if none has. Alternatives do not nest here. */
static const json_t *elements_in(const json_t *schema, kind *out)
{
    const json_t *a;
    for (size_t i = 0; (a = alternative(schema, i)); i++)
        for (size_t k = 0; type_at(a, k, out); k++)
            if (*out == OBJECT || *out == ARRAY) return a;
    return NULL;
}

const json_t *text_schema_of_tool(const json_t *tools, const char *name, size_t length)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function"), *have = json_object_get(function, "name");
        if (json_string_length(have) == length && memcmp(json_string_value(have), name, length) == 0)
            return json_object_get(function, "parameters");
    }
    return NULL;
}

/* ---- References ------------------------------------------------------------------------------------------------ */

enum { HOPS = 200 }; /* as many references and alternatives of one schema are followed, all together */

/* The next part of a JSON pointer, from behind its '/', unescaped; where the part ends, NULL if it is too long. */
static const char *pointer_part(const char *at, char part[256])
{
    size_t n = 0;
    for (; *at && *at != '/'; at++) {
        if (n == 255) return NULL;
        part[n] = *at;
        if (*at == '~' && (at[1] == '0' || at[1] == '1')) part[n] = *++at == '0' ? '~' : '/';
        n++;
    }
    part[n] = 0;
    return at;
}

/* What "#/a/b" means in a schema; NULL for anything else. */
static const json_t *pointed_at(const json_t *root, const char *reference)
{
    char part[256];
    if (*reference++ != '#') return NULL;
    while (root && *reference == '/') {
        if (!(reference = pointer_part(reference + 1, part))) return NULL;
        root = json_is_array(root) ? json_array_get(root, strtoul(part, NULL, 10)) : json_object_get(root, part);
    }
    return reference && !*reference ? root : NULL;
}

/* The first of an "allOf" that says of what type it is. */
static const json_t *first_of_all(const json_t *schema)
{
    static const char *const says[] = {"$ref", "type", "properties", "items", "anyOf", "oneOf", "enum", "allOf"};
    size_t i;
    json_t *one;
    for (size_t k = 1; k < 7; k++)
        if (json_object_get(schema, says[k])) return NULL;
    json_array_foreach(json_object_get(schema, "allOf"), i, one)
    {
        for (size_t k = 0; k < 8; k++)
            if (json_object_get(one, says[k])) return one;
    }
    return NULL;
}

/* Follows references; NULL when they lead nowhere. */
static const json_t *follow(const json_t *root, const json_t *schema, int *hops)
{
    const json_t *next = schema;
    for (; next && *hops < HOPS; ++*hops) {
        const char *reference = json_string_value(json_object_get(schema, "$ref"));
        next = reference ? pointed_at(root, reference) : first_of_all(schema);
        if (!next && !reference) return schema;
        schema = next;
    }
    return NULL;
}

/* Adds the alternatives of a schema, without references, to a list. */
static void add_alternatives(const json_t *root, const json_t *schema, int *hops,
                             json_t *list) /* NOLINT(misc-no-recursion) */
{
    const json_t *a;
    if (++*hops > HOPS || !(schema = follow(root, schema, hops))) return;
    if (alternative(schema, 0) == schema) {
        json_array_append(list, (json_t *)schema);
        return;
    }
    for (size_t i = 0; (a = alternative(schema, i)); i++) add_alternatives(root, a, hops, list);
}

/* Whether nothing is to be followed in the alternatives. */
static bool plain_alternatives(const json_t *root, const json_t *schema)
{
    const json_t *a;
    for (size_t i = 0; (a = alternative(schema, i)); i++) {
        int hops = 0;
        if (a != schema && (follow(root, a, &hops) != a || alternative(a, 0) != a)) return false;
    }
    return true;
}

json_t *text_schema_resolve(const json_t *root, const json_t *schema)
{
    int hops = 0;
    if (!schema || !(schema = follow(root, schema, &hops))) return NULL;
    if (plain_alternatives(root, schema)) return json_incref((json_t *)schema);
    json_t *list = json_array(), *plain = json_object();
    add_alternatives(root, schema, &hops, list);
    if (json_array_size(list) && json_object_set(plain, "anyOf", list) == 0) {
        json_decref(list);
        return plain;
    }
    json_decref(list);
    json_decref(plain);
    return NULL;
}

const json_t *text_schema_of_child(const json_t *schema, const char *name, size_t length)
{
    kind what;
    const json_t *in = elements_in(schema, &what);
    if (!in) return NULL;
    if (what == ARRAY) return json_object_get(in, "items");
    const json_t *member = json_object_getn(json_object_get(in, "properties"), name, length);
    return member ? member : json_object_get(in, "additionalProperties");
}

text_schema_shape text_schema_of_elements(const json_t *schema)
{
    kind what;
    return elements_in(schema, &what) && what == ARRAY ? TEXT_SCHEMA_ARRAY : TEXT_SCHEMA_OBJECT;
}

bool text_schema_has_elements(const json_t *schema)
{
    kind what;
    return elements_in(schema, &what) != NULL;
}

/* Whether the n-th type, which reads as string, is one by name. */
static bool named_string(const json_t *schema, size_t n)
{
    static const char *const names[] = {"string", "str", "text", "varchar", "char", "enum"};
    const json_t *type = json_object_get(schema, "type");
    if (!type) return json_is_array(json_object_get(schema, "enum"));
    if (json_is_array(type)) type = json_array_get(type, n);
    for (size_t i = 0; json_is_string(type) && i < sizeof names / sizeof *names; i++)
        if (!strcasecmp(json_string_value(type), names[i])) return true;
    return false;
}

bool text_schema_is_text(const json_t *schema, bool *nullable)
{
    const json_t *a;
    kind what;
    bool text = false;
    *nullable = false;
    for (size_t i = 0; (a = alternative(schema, i)); i++)
        for (size_t k = 0; type_at(a, k, &what); k++) {
            if (what == NONE)
                *nullable = true;
            else if (what == STRING && named_string(a, k))
                text = true;
            else
                return false;
        }
    return text;
}

/* ---- Text without elements ------------------------------------------------------------------------------------- */

static json_t *read_integer(const char *text)
{
    char *end;
    if (!*text || strspn(text, "+-0123456789") != strlen(text)) return NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return errno || *end ? NULL : json_integer(value);
}

static json_t *read_number(const char *text)
{
    json_t *whole = read_integer(text);
    char *end;
    if (whole) return whole;
    if (!*text || strspn(text, "+-.eE0123456789") != strlen(text)) return NULL;
    double value = strtod(text, &end);
    return *end || !isfinite(value) ? NULL : json_real(value);
}

static json_t *read_boolean(const char *text)
{
    if (!strcasecmp(text, "true") || !strcmp(text, "1")) return json_true();
    return !strcasecmp(text, "false") || !strcmp(text, "0") ? json_false() : NULL;
}

static json_t *read_nested(const char *text, size_t length, json_type type)
{
    if (!length) return type == JSON_OBJECT ? json_object() : json_array();
    json_error_t e;
    json_t *value = json_loadb(text, length, JSON_ALLOW_NUL, &e);
    if (value && json_typeof(value) == type) return value;
    json_decref(value);
    return NULL;
}

/* NULL: the text is not of that kind. `text` has no NUL in its [length] bytes but for strings. */
static json_t *read_kind(kind what, const char *text, size_t length)
{
    switch (what) {
    case INTEGER: return read_integer(text);
    case NUMBER: return read_number(text);
    case BOOLEAN: return read_boolean(text);
    case OBJECT: return read_nested(text, length, JSON_OBJECT);
    case ARRAY: return read_nested(text, length, JSON_ARRAY);
    case NONE: return strcasecmp(text, "null") ? NULL : json_null();
    case STRING: break;
    }
    return json_stringn(text, length);
}

static bool string_alone(const json_t *schema)
{
    const json_t *a;
    kind what;
    for (size_t i = 0; (a = alternative(schema, i)); i++)
        for (size_t k = 0; type_at(a, k, &what); k++)
            if (what != STRING) return false;
    return true;
}

bool text_schema_says_nothing(const json_t *schema)
{
    bool nullable;
    return string_alone(schema) && !text_schema_is_text(schema, &nullable);
}

json_t *text_tool_value(const json_t *schema, const char *text, size_t length)
{
    const json_t *a;
    kind what;
    json_t *value = NULL;
    if (memchr(text, 0, length) || string_alone(schema)) return json_stringn(text, length);
    char *copy = malloc(length + 1);
    if (!copy) return NULL;
    memcpy(copy, text, length);
    copy[length] = 0;
    if (!strcasecmp(copy, "null")) value = json_null();
    for (size_t i = 0; !value && (a = alternative(schema, i)); i++)
        for (size_t k = 0; !value && type_at(a, k, &what); k++) value = read_kind(what, copy, length);
    if (!value) value = json_stringn(copy, length);
    free(copy);
    return value;
}
