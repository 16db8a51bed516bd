/*
 * Tool calls in the model's own form (text/tool_calls.h), with arguments as the tools' schemas say.
 *
 *     NS<tool_call>\n NS<invoke name="N">  NS<k>value NS</k> ...  NS</invoke>\n ... NS</tool_call>
 *
 * Values are written as the chat template writes them: a string as it is, numbers and words as text, the members of
 * objects and the items of lists as elements. What elements cannot tell, names that are free, alternatives of several
 * objects, items that differ by their place, is JSON text, which the parser reads where the schema says object or
 * array.
 */
#include <stdlib.h>
#include <string.h>

#include "text/grammar_schema.h"
#include "text/tool_calls.h"

#define NS_PATTERN "\\]<\\]minimax\\[>\\["

enum { NESTING = 32 };

typedef struct tools {
    builder *b;
    schema_writer w; /* of the tool that is being written */
    fsm safe;        /* texts without the mark */
    int32_t until;   /* rule: such a text, and the mark */
    json_t *memo;    /* schema's text to its value's rule, mark included */
    int depth;
} tools;

static void open_texts(tools *t)
{
    static const char any[] = "[\\s\\S]*", marked[] = "[\\s\\S]*" NS_PATTERN "[\\s\\S]*";
    static const char ends[] = "[\\s\\S]*" NS_PATTERN, further[] = "[\\s\\S]*" NS_PATTERN "[\\s\\S]+";
    builder *b = t->b;
    regex_use plain = {.form = FORM_PLAIN};
    fsm all = grammar_regex_fsm(b, any, strlen(any), plain), with = grammar_regex_fsm(b, marked, strlen(marked), plain);
    fsm at = grammar_regex_fsm(b, ends, strlen(ends), plain),
        behind = grammar_regex_fsm(b, further, strlen(further), plain);
    t->safe = fsm_without(b, &all, &with);
    fsm first = fsm_without(b, &at, &behind);
    t->until = build_rule_add(b, "a text argument");
    if (b->status == HY_OK) build_join(b, fsm_put(b, b->rule[t->until].start, &first), b->rule[t->until].end);
    fsm_free(&all), fsm_free(&with), fsm_free(&at), fsm_free(&behind), fsm_free(&first);
}

/* ---- Values --------------------------------------------------------------------------------------------------- */

static int32_t value_rule(tools *t, const json_t *schema);

static bool has_type(const json_t *schema, const char *name)
{
    const json_t *type = json_object_get(schema, "type");
    size_t i;
    json_t *one;
    if (json_is_string(type)) return strcmp(json_string_value(type), name) == 0;
    json_array_foreach((json_t *)type, i,
                       one) if (json_is_string(one) && strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

/* Any text will do: it says string and nothing of it, or says nothing at all. */
static bool is_free_text(const json_t *schema)
{
    static const char *const says[] = {"enum", "const", "anyOf", "oneOf", "properties", "items", "prefixItems", NULL};
    if (!json_is_object(schema)) return json_is_true(schema);
    for (int i = 0; says[i]; i++)
        if (json_object_get(schema, says[i])) return false;
    bool numeric = json_object_get(schema, "minimum") || json_object_get(schema, "maximum");
    return (has_type(schema, "string") || (!json_object_get(schema, "type") && !numeric)) &&
           schema_string_is_free(schema);
}

static int32_t put_mark(tools *t, int32_t from)
{
    return build_string(t->b, from, TEXT_TOOL_NAMESPACE);
}

static int32_t put_tag(tools *t, int32_t from, const char *open, const char *name)
{
    return build_string(t->b, build_string(t->b, build_string(t->b, from, open), name), ">");
}

/* An element from behind its opening mark to behind its closing tag. */
static int32_t put_element(tools *t, int32_t from, const char *name, const json_t *schema)
{
    return put_tag(t, build_call(t->b, put_tag(t, from, "<", name), value_rule(t, schema)), "</", name);
}

static bool can_be_tag(const char *name)
{
    return *name && *name != '/' && !strpbrk(name, "<>[]\n");
}

/* The members of an object, each with the mark before it, as elements in order. */
static int32_t put_members(tools *t, const json_t *schema, int32_t from)
{
    builder *b = t->b;
    const char *name;
    json_t *value, *required = json_object_get(schema, "required"), *one;
    size_t i;
    json_object_foreach(json_object_get(schema, "properties"), name, value)
    {
        bool must = false;
        if (!build_work(b, json_array_size(required) / 2)) return from;
        size_t was = schema_enter(&t->w, "properties", name);
        json_array_foreach(required, i, one) must =
            must || (json_is_string(one) && strcmp(json_string_value(one), name) == 0);
        if (!can_be_tag(name)) build_fail(b, HY_BAD_INPUT, "%s: the name cannot be a tag", schema_place(&t->w));
        int32_t skipped = from;
        from = put_element(t, put_mark(t, from), name, value);
        if (!must) {
            int32_t to = build_node(b);
            build_join(b, from, to);
            build_join(b, skipped, to);
            from = to;
        }
        schema_leave(&t->w, was);
    }
    json_array_foreach(required, i, one)
    {
        name = json_string_value(one);
        if (!name || json_object_get(json_object_get(schema, "properties"), name)) continue;
        if (!can_be_tag(name)) build_fail(b, HY_BAD_INPUT, "%s: the name cannot be a tag", schema_place(&t->w));
        from = put_element(t, put_mark(t, from), name, json_true());
    }
    return from;
}

static int32_t put_items(tools *t, const json_t *schema, int32_t from)
{
    builder *b = t->b;
    int32_t min = schema_count(&t->w, schema, "minItems", 0),
            max = schema_count(&t->w, schema, "maxItems", BUILD_ENDLESS);
    int32_t item = build_rule_add(b, "an item");
    if (b->status != HY_OK) return from;
    size_t was = schema_enter(&t->w, "items", NULL);
    int32_t end = put_element(t, put_mark(t, b->rule[item].start), "item", json_object_get(schema, "items"));
    schema_leave(&t->w, was);
    if (b->status != HY_OK) return from;
    build_join(b, end, b->rule[item].end);
    if (max == 0) return from;
    return build_call(b, from, build_counted(b, item, min, max));
}

static int32_t put_given(tools *t, int32_t from, const json_t *value, int32_t to)
{
    builder *b = t->b;
    const char *text = json_string_value(value);
    if (!text) {
        build_join(b, json_put_literal(&t->w.j, from, value), to);
    } else if (fsm_has(&t->safe, text, strlen(text))) {
        build_join(b, build_string(b, from, text), to);
    }
    return to;
}

/* JSON text, which an object or a list may be as well. */
static int32_t put_json(tools *t, const json_t *schema, int32_t from)
{
    return build_call(t->b, from, schema_rule(&t->w, schema));
}

static bool is_nested(tools *t, const json_t *schema)
{
    schema = merge_flat(&t->w.m, schema, schema_place(&t->w));
    return schema && (has_type(schema, "object") || has_type(schema, "array") || json_object_get(schema, "properties"));
}

static int32_t put_choices(tools *t, const json_t *schema, const char *keyword, int32_t from, int32_t marked)
{
    builder *b = t->b;
    const json_t *list = json_object_get(schema, keyword), *rest = merge_without(&t->w.m, schema, keyword);
    int nested = 0;
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)list, i, one) nested += is_nested(t, one);
    json_array_foreach((json_t *)list, i, one)
    {
        const json_t *both = rest ? merge_both(&t->w.m, rest, one, schema_place(&t->w)) : NULL;
        if (!both || b->status != HY_OK) return marked;
        if (nested > 1 && is_nested(t, both))
            build_join(b, put_mark(t, put_json(t, both, from)), marked);
        else
            build_call_to(b, from, value_rule(t, both), marked);
    }
    return marked;
}

/* A value of one type, without the mark. */
static int32_t put_typed(tools *t, const json_t *schema, const char *type, int32_t from)
{
    builder *b = t->b;
    int32_t to;
    if (strcmp(type, "string") == 0) return schema_put_bare_string(&t->w, schema, from, &t->safe);
    if (strcmp(type, "integer") == 0 || strcmp(type, "number") == 0)
        return schema_put_number(&t->w, schema, *type == 'i', from);
    if (strcmp(type, "object") == 0)
        return json_object_size(json_object_get(schema, "properties")) ? put_members(t, schema, from)
                                                                       : put_json(t, schema, from);
    if (strcmp(type, "array") == 0)
        return json_object_get(schema, "items") && !json_object_get(schema, "prefixItems") ? put_items(t, schema, from)
                                                                                           : put_json(t, schema, from);
    to = build_node(b);
    if (strcmp(type, "boolean") == 0) {
        build_join(b, build_string(b, from, "true"), to);
        build_join(b, build_string(b, from, "false"), to);
    } else if (strcmp(type, "null") == 0) {
        build_join(b, build_string(b, from, "null"), to);
    } else {
        build_fail(b, HY_BAD_INPUT, "%s: `type` \"%.40s\" is no type", schema_place(&t->w), type);
    }
    return to;
}

/* A value from behind its opening tag to behind the mark that its closing tag begins with: in a text that is the first
 * one that comes. */
static int32_t put_value(tools *t, const json_t *schema, int32_t from)
{
    builder *b = t->b;
    const json_t *type, *one, *values;
    size_t i;
    schema = schema ? merge_flat(&t->w.m, schema, schema_place(&t->w)) : json_true();
    if (!schema) return from;
    if (is_free_text(schema)) return build_call(b, from, t->until);
    int32_t to = build_node(b), marked = build_node(b);
    if (json_is_false(schema)) return marked;
    if (json_object_get(schema, "anyOf")) return put_choices(t, schema, "anyOf", from, marked);
    if (json_object_get(schema, "oneOf")) return put_choices(t, schema, "oneOf", from, marked);
    if ((values = json_object_get(schema, "enum"))) {
        json_array_foreach((json_t *)values, i, one) if (merge_item_fits(&t->w.m, schema, one))
            put_given(t, from, one, to);
    } else if ((values = json_object_get(schema, "const"))) {
        put_given(t, from, values, to);
    } else if ((type = json_object_get(schema, "type")) && json_is_array(type)) {
        json_array_foreach((json_t *)type, i, one) if (json_is_string(one))
            build_join(b, put_typed(t, schema, json_string_value(one), from), to);
    } else if (json_is_string(type)) {
        build_join(b, put_typed(t, schema, json_string_value(type), from), to);
    } else {
        const char *kind = json_object_get(schema, "properties")                                        ? "object"
                           : json_object_get(schema, "items") || json_object_get(schema, "prefixItems") ? "array"
                           : json_object_get(schema, "minimum") || json_object_get(schema, "maximum")   ? "number"
                                                                                                        : "string";
        build_join(b, put_typed(t, schema, kind, from), to);
    }
    build_join(b, put_mark(t, to), marked);
    return marked;
}

static int32_t value_rule(tools *t, const json_t *schema)
{
    builder *b = t->b;
    char *text = schema ? json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (!text) return t->until;
    int32_t rule = 0;
    if (json_object_get(t->memo, text)) {
        rule = (int32_t)json_integer_value(json_object_get(t->memo, text));
    } else if (t->depth == NESTING) {
        build_fail(b, HY_NO_FIT, "%s: arguments are nested deeper than %d levels", schema_place(&t->w), NESTING);
    } else if (build_work(b, strlen(text) + 100)) {
        rule = build_rule_add(b, schema_place(&t->w));
        json_object_set_new(t->memo, text, json_integer(rule));
        t->depth++;
        int32_t end = b->status == HY_OK ? put_value(t, schema, b->rule[rule].start) : 0;
        t->depth--;
        if (b->status == HY_OK) build_join(b, end, b->rule[rule].end);
    }
    free(text);
    return rule;
}

/* ---- Calls ---------------------------------------------------------------------------------------------------- */

/* One call of a tool, between nodes. */
static void put_call(tools *t, const json_t *function, const text_grammar_options *o, int32_t from, int32_t to)
{
    builder *b = t->b;
    const char *name = json_string_value(json_object_get(function, "name"));
    const json_t *parameters = json_object_get(function, "parameters");
    char place[80] = "$";
    if (!name || strpbrk(name, "\"<>\n")) {
        build_fail(b, HY_BAD_INPUT, "the name of a tool is missing or cannot be written in a call");
        return;
    }
    strncat(place, ".", 2), strncat(place, name, 60);
    t->memo = json_object();
    if (!schema_open(&t->w, b, parameters, o, place) || !t->memo)
        build_fail(b, HY_NO_FIT, "there is no memory for a tool");
    t->w.j.inside_call = true;
    int32_t at =
        build_string(b, build_string(b, build_string(b, from, TEXT_TOOL_NAMESPACE "<invoke name=\""), name), "\">");
    const json_t *flat = json_is_object(parameters) ? merge_flat(&t->w.m, parameters, place) : NULL;
    if (flat && b->status == HY_OK) at = put_members(t, flat, at);
    build_join(b, build_string(b, at, TEXT_TOOL_NAMESPACE "</invoke>\n"), to);
    schema_close(&t->w);
    json_decref(t->memo);
}

int32_t grammar_tools(builder *b, const json_t *request, const text_grammar_options *o)
{
    const json_t *list = json_object_get(request, "tools"), *only = json_object_get(request, "name"), *one;
    const json_t *parallel = json_object_get(request, "parallel");
    text_grammar_options compact = {.additional_properties = o->additional_properties};
    tools t = {.b = b};
    int calls = 0;
    size_t i;
    if (!json_array_size(list))
        build_fail(b, HY_BAD_INPUT, "a grammar of tool calls needs a list `tools` of at least one");
    int32_t root = build_rule_add(b, "tool calls");
    open_texts(&t);
    if (b->status == HY_OK) {
        int32_t from = build_string(b, b->rule[root].start, TEXT_TOOL_OPEN "\n"), call = build_node(b),
                to = build_node(b);
        build_join(b, from, call);
        json_array_foreach((json_t *)list, i, one)
        {
            const json_t *function = json_object_get(one, "function");
            if (!function) function = one;
            const char *name = json_string_value(json_object_get(function, "name"));
            if (json_is_string(only) && (!name || strcmp(name, json_string_value(only)) != 0)) continue;
            if (b->status == HY_OK) put_call(&t, function, &compact, call, to);
            calls++;
        }
        if (!calls && json_is_string(only))
            build_fail(b, HY_BAD_INPUT, "there is no tool named %.60s", json_string_value(only));
        if (!json_is_false(parallel)) build_join(b, to, call);
        if (b->status == HY_OK) build_join(b, build_string(b, to, TEXT_TOOL_CLOSE), b->rule[root].end);
    }
    fsm_free(&t.safe);
    return root;
}
