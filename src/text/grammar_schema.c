#include "text/grammar_schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NESTING = 100, PLACE = 200 }; /* deeper places are named by their beginning */

/* ---- Places --------------------------------------------------------------------------------------------------- */

bool schema_open(schema_writer *w, builder *b, const json_t *root, const text_grammar_options *o, const char *place)
{
    *w = (schema_writer){.b = b, .memo = json_object()};
    json_rules_open(&w->j, b, o);
    buffer_string(&w->place, place);
    if (!w->memo) build_fail(b, HY_NO_FIT, "there is no memory for a schema");
    return merger_open(&w->m, b, root) && w->memo;
}

void schema_close(schema_writer *w)
{
    merger_close(&w->m);
    json_decref(w->memo);
    buffer_free(&w->place);
}

size_t schema_enter(schema_writer *w, const char *part, const char *name)
{
    size_t was = w->place.length;
    if (was < PLACE) buffer_printf(&w->place, name ? ".%s.%.60s" : ".%s", part, name);
    return was;
}

void schema_leave(schema_writer *w, size_t was)
{
    if (!buffer_ok(&w->place) || !w->place.data) return;
    w->place.length = was;
    w->place.data[was] = 0;
}

const char *schema_place(const schema_writer *w)
{
    return w->place.data ? w->place.data : "$";
}

hy_status schema_refuse(schema_writer *w, const char *keyword, const char *why)
{
    return build_fail(w->b, HY_BAD_INPUT, "%s: `%s` %s", schema_place(w), keyword, why);
}

/* ---- Keywords ------------------------------------------------------------------------------------------------- */

int32_t schema_count(schema_writer *w, const json_t *schema, const char *keyword, int32_t otherwise)
{
    const json_t *value = json_object_get(schema, keyword);
    double number = json_number_value(value);
    if (!value) return otherwise;
    if (!json_is_number(value) || number < 0 || number != floor(number)) {
        schema_refuse(w, keyword, "must be a whole number from 0 on");
        return otherwise;
    }
    return number > 1 << 24 ? (otherwise == BUILD_ENDLESS ? BUILD_ENDLESS : 1 << 24) : (int32_t)number;
}

static void check_keywords(schema_writer *w, const json_t *schema)
{
    static const char *const refused[] = {
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
        "$dynamicRef",
        "$recursiveRef",
        "additionalItems",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(schema, refused[i])) schema_refuse(w, refused[i], "is not supported");
    if (json_is_true(json_object_get(schema, "uniqueItems"))) schema_refuse(w, "uniqueItems", "is not supported");
    static const struct {
        const char *name;
        bool list;
    } shaped[] = {{"properties", false}, {"patternProperties", false}, {"anyOf", true},      {"oneOf", true},
                  {"enum", true},        {"required", true},           {"prefixItems", true}};
    for (size_t i = 0; i < sizeof shaped / sizeof *shaped; i++) {
        const json_t *value = json_object_get(schema, shaped[i].name);
        if (value && !(shaped[i].list ? json_is_array(value) : json_is_object(value)))
            schema_refuse(w, shaped[i].name, shaped[i].list ? "must be a list" : "must be an object");
    }
    static const char *const numbers[] = {"minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *value = json_object_get(schema, numbers[i]);
        bool flag = i >= 3 && json_is_boolean(value); /* draft 4 */
        if (value && !json_is_number(value) && !flag) schema_refuse(w, numbers[i], "must be a number");
    }
    const json_t *step = json_object_get(schema, "multipleOf");
    if (step && !(json_number_value(step) > 0)) schema_refuse(w, "multipleOf", "must be above 0");
}

/* ---- Types ---------------------------------------------------------------------------------------------------- */

static const char *const type_names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
enum { OBJECT, ARRAY, STRING, NUMBER, INTEGER, BOOLEAN, NONE, TYPES };

static void add_type(schema_writer *w, const json_t *name, bool types[TYPES])
{
    const char *text = json_string_value(name);
    bool known = false;
    for (int i = 0; text && i < TYPES; i++)
        if (strcmp(text, type_names[i]) == 0) types[i] = known = true;
    if (!known) build_fail(w->b, HY_BAD_INPUT, "%s: `type` \"%.40s\" is no type", schema_place(w), text ? text : "?");
}

/* Keywords that speak of one type stand for it where `type` is missing. */
static bool infer_types(const json_t *schema, bool types[TYPES])
{
    static const struct {
        const char *keyword;
        int type;
    } speaks[] = {
        {"properties", OBJECT},       {"required", OBJECT},      {"additionalProperties", OBJECT},
        {"minProperties", OBJECT},    {"maxProperties", OBJECT}, {"patternProperties", OBJECT},
        {"propertyNames", OBJECT},    {"items", ARRAY},          {"prefixItems", ARRAY},
        {"minItems", ARRAY},          {"maxItems", ARRAY},       {"pattern", STRING},
        {"minLength", STRING},        {"maxLength", STRING},     {"format", STRING},
        {"minimum", NUMBER},          {"maximum", NUMBER},       {"exclusiveMinimum", NUMBER},
        {"exclusiveMaximum", NUMBER}, {"multipleOf", NUMBER},
    };
    bool any = false;
    for (size_t i = 0; i < sizeof speaks / sizeof *speaks; i++)
        if (json_object_get(schema, speaks[i].keyword)) types[speaks[i].type] = any = true;
    return any;
}

/* False: anything. */
static bool types_of(schema_writer *w, const json_t *schema, bool types[TYPES])
{
    const json_t *type = json_object_get(schema, "type");
    size_t i;
    json_t *one;
    memset(types, 0, TYPES * sizeof *types);
    if (json_is_array(type))
        json_array_foreach((json_t *)type, i, one) add_type(w, one, types);
    else if (type)
        add_type(w, type, types);
    else if (!infer_types(schema, types))
        return false;
    if (json_is_true(json_object_get(schema, "nullable"))) types[NONE] = true;
    if (types[NUMBER]) types[INTEGER] = false;
    return true;
}

static int32_t put_array(schema_writer *w, const json_t *schema, int32_t from)
{
    builder *b = w->b;
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    if (json_is_array(items)) { /* draft 4 to 2019 */
        if (!prefix) prefix = items;
        items = NULL;
    }
    int32_t count = (int32_t)json_array_size(prefix);
    int32_t min = schema_count(w, schema, "minItems", 0), max = schema_count(w, schema, "maxItems", BUILD_ENDLESS);
    if (!items && prefix && !w->j.o->additional_properties) items = json_false();
    if (merge_nothing(&w->m, items, 0)) max = max < count ? max : count;
    size_t was = schema_enter(w, "items", NULL);
    int32_t item = !items ? json_rule_value(&w->j) : max > count ? schema_rule(w, items) : 0;
    schema_leave(w, was);
    if (min > max) return schema_refuse(w, "minItems", "is above what is possible"), from;
    if (!count) return json_put_list(&w->j, from, item, min, max);
    int32_t at = json_put_space(&w->j, build_string(b, from, "[")), close = build_node(b);
    for (int32_t i = 0; i < count && i < max; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        was = schema_enter(w, "prefixItems", number);
        if (i >= min) build_join(b, at, close);
        if (i > 0) at = json_put_comma(&w->j, at);
        at = build_call(b, at, schema_rule(w, json_array_get(prefix, (size_t)i)));
        schema_leave(w, was);
    }
    if (max > count) {
        int32_t more = build_rule_add(b, "items of a list");
        if (b->status != HY_OK) return from;
        build_join(b, build_call(b, json_put_comma(&w->j, b->rule[more].start), item), b->rule[more].end);
        int32_t least = min > count ? min - count : 0, most = max == BUILD_ENDLESS ? max : max - count;
        at = build_call(b, at, build_counted(b, more, least, most));
    }
    build_join(b, at, close);
    return build_string(b, json_put_space(&w->j, close), "]");
}

static int32_t put_type(schema_writer *w, const json_t *schema, int type, int32_t from)
{
    int32_t to;
    switch (type) {
    case OBJECT: return schema_put_object(w, schema, from);
    case ARRAY: return put_array(w, schema, from);
    case STRING: return schema_put_string(w, schema, from);
    case NUMBER:
    case INTEGER: return schema_put_number(w, schema, type == INTEGER, from);
    case BOOLEAN:
        to = build_node(w->b);
        build_join(w->b, build_string(w->b, from, "true"), to);
        build_join(w->b, build_string(w->b, from, "false"), to);
        return to;
    }
    return build_string(w->b, from, "null");
}

/* ---- Values and alternatives ---------------------------------------------------------------------------------- */

static int32_t put_values(schema_writer *w, const json_t *schema, int32_t from)
{
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    int32_t to = build_node(w->b);
    size_t i;
    json_t *value;
    if (only && merge_fits(&w->m, schema, only)) build_join(w->b, json_put_literal(&w->j, from, only), to);
    if (!only)
        json_array_foreach((json_t *)list, i, value) if (merge_item_fits(&w->m, schema, value))
            build_join(w->b, json_put_literal(&w->j, from, value), to);
    return to;
}

/* Alternatives of which only one may hold are alternatives if no two can. */
static void check_apart(schema_writer *w, const json_t *list, const json_t *rest)
{
    for (size_t i = 0; i < json_array_size(list) && w->b->status == HY_OK; i++)
        for (size_t k = i + 1; k < json_array_size(list) && w->b->status == HY_OK; k++) {
            const json_t *a = json_array_get(list, i), *b = json_array_get(list, k);
            const json_t *both = merge_both(&w->m, a, b, schema_place(w));
            if (both) both = merge_both(&w->m, rest, both, schema_place(w));
            if (both) both = merge_flat(&w->m, both, schema_place(w));
            if (both && !merge_nothing(&w->m, both, 0))
                build_fail(
                    w->b, HY_BAD_INPUT,
                    "%s: `oneOf` is not supported where two alternatives (%zu and %zu) may hold at once: tell them "
                    "apart by type or by a required property of constant value, or use anyOf",
                    schema_place(w), i, k);
        }
}

static int32_t put_alternatives(schema_writer *w, const json_t *schema, const char *keyword, int32_t from)
{
    const json_t *list = json_object_get(schema, keyword), *one;
    const json_t *rest = merge_without(&w->m, schema, keyword);
    int32_t to = build_node(w->b);
    size_t i;
    if (strcmp(keyword, "oneOf") == 0) check_apart(w, list, rest);
    json_array_foreach((json_t *)list, i, one)
    {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        size_t was = schema_enter(w, keyword, number);
        const json_t *both = rest ? merge_both(&w->m, rest, one, schema_place(w)) : NULL;
        if (both && !merge_nothing(&w->m, both, 0)) build_call_to(w->b, from, schema_rule(w, both), to);
        schema_leave(w, was);
    }
    return to;
}

static int32_t put_schema(schema_writer *w, const json_t *schema, int32_t from)
{
    bool types[TYPES];
    schema = merge_flat(&w->m, schema, schema_place(w));
    if (!schema || json_is_false(schema)) return build_node(w->b);
    if (json_is_true(schema)) return build_call(w->b, from, json_rule_value(&w->j));
    check_keywords(w, schema);
    if (w->b->status != HY_OK) return from;
    if (json_object_get(schema, "anyOf")) return put_alternatives(w, schema, "anyOf", from);
    if (json_object_get(schema, "oneOf")) return put_alternatives(w, schema, "oneOf", from);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const")) return put_values(w, schema, from);
    if (!types_of(w, schema, types)) return build_call(w->b, from, json_rule_value(&w->j));
    int32_t to = build_node(w->b);
    for (int i = 0; i < TYPES; i++)
        if (types[i]) build_join(w->b, put_type(w, schema, i, from), to);
    return to;
}

int32_t schema_rule(schema_writer *w, const json_t *schema)
{
    builder *b = w->b;
    if (b->status != HY_OK) return 0;
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        build_fail(b, HY_BAD_INPUT, "%s: a schema is an object, true or false", schema_place(w));
        return 0;
    }
    if (json_is_true(schema)) return json_rule_value(&w->j);
    /* A reference and what it refers to are one rule. */
    const json_t *reference = json_object_get(schema, "$ref");
    if (reference && json_object_size(schema) == 1) {
        const json_t *target = merge_resolve(&w->m, reference, schema_place(w));
        if (target && !(json_object_get(target, "$ref") && json_object_size(target) == 1)) schema = target;
    }
    char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    int32_t rule = 0;
    if (!text) {
        build_fail(b, HY_NO_FIT, "%s: there is no memory for the schema", schema_place(w));
    } else if (json_object_get(w->memo, text)) {
        rule = (int32_t)json_integer_value(json_object_get(w->memo, text));
    } else if (w->depth == NESTING) {
        build_fail(b, HY_NO_FIT, "%s: the schema is nested deeper than %d levels", schema_place(w), NESTING);
    } else if (build_work(b, strlen(text) + 100)) {
        rule = build_rule_add(b, schema_place(w));
        json_object_set_new(w->memo, text, json_integer(rule));
        w->depth++;
        int32_t to = b->status == HY_OK ? put_schema(w, schema, b->rule[rule].start) : 0;
        w->depth--;
        if (b->status == HY_OK) build_join(b, to, b->rule[rule].end);
    }
    free(text);
    return rule;
}

int32_t grammar_schema(builder *b, const json_t *schema, const text_grammar_options *o)
{
    schema_writer w;
    int32_t rule = schema_open(&w, b, schema, o, "$") ? schema_rule(&w, schema) : 0;
    schema_close(&w);
    return rule;
}
