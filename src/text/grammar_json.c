/* The rules of JSON itself. */
#include <string.h>

#include "text/grammar_parts.h"
#include "text/python_text.h"

/* Line breaks with some indentation, or a blank or two: without a bound a model may write white space for ever. */
static const char space_pattern[] = " {0,2}(\\r?\\n[ \\t]{0,40})?";

void json_rules_open(json_rules *j, builder *b, const text_grammar_options *o)
{
    *j = (json_rules){.b = b, .o = o, .space = -1, .character = -1, .string = -1, .key = -1};
    j->integer = j->number = j->value = j->object = -1;
}

/* A rule that is made when first asked for. True: it is new, and the caller fills it. */
static bool fresh(json_rules *j, int32_t *rule, const char *name)
{
    if (*rule >= 0) return false;
    *rule = build_rule_add(j->b, name);
    return j->b->status == HY_OK;
}

static int32_t start_of(const json_rules *j, int32_t rule)
{
    return j->b->status == HY_OK ? j->b->rule[rule].start : 0;
}

static int32_t end_of(const json_rules *j, int32_t rule)
{
    return j->b->status == HY_OK ? j->b->rule[rule].end : 0;
}

/* ---- Between tokens ------------------------------------------------------------------------------------------- */

int32_t json_put_space(json_rules *j, int32_t from)
{
    const char *pattern = j->o->whitespace_pattern ? j->o->whitespace_pattern : space_pattern;
    if (!j->o->any_whitespace && !j->o->whitespace_pattern) return from;
    if (fresh(j, &j->space, "white space")) {
        int32_t start, end;
        regex_use use = {.form = FORM_PLAIN, .where = "whitespace_pattern"};
        end = grammar_regex(j->b, pattern, strlen(pattern), use, &start);
        build_join(j->b, start_of(j, j->space), start);
        build_join(j->b, end, end_of(j, j->space));
    }
    return build_call(j->b, from, j->space);
}

static int32_t put_separator(json_rules *j, int32_t from, const char *mark)
{
    bool free_space = j->o->any_whitespace || j->o->whitespace_pattern;
    from = build_string(j->b, from, mark);
    return free_space ? json_put_space(j, from) : build_string(j->b, from, " ");
}

int32_t json_put_comma(json_rules *j, int32_t from)
{
    return put_separator(j, from, ",");
}

int32_t json_put_colon(json_rules *j, int32_t from)
{
    return put_separator(j, from, ":");
}

/* ---- Strings -------------------------------------------------------------------------------------------------- */

static int32_t put_hex(builder *b, int32_t from, const char *ranges)
{
    int32_t to = build_node(b);
    for (; *ranges; ranges += 2) build_bytes(b, from, ranges[0], ranges[1], to);
    return to;
}

/* Behind a backslash. U+0000 is left out, since many programs end a string there, and so are halves of surrogate pairs.
 */
static void put_escape(builder *b, int32_t from, int32_t to)
{
    static const char any[] = "09afAF";
    for (const char *c = "\"\\/bfnrt"; *c; c++) build_bytes(b, from, *c, *c, to);
    int32_t u = build_node(b), zero, low, second;
    build_bytes(b, from, 'u', 'u', u);
    /* A first digit that rules out both, then anything. */
    build_join(b, put_hex(b, put_hex(b, put_hex(b, put_hex(b, u, "19acAC"), any), any), any), to);
    build_join(b, put_hex(b, put_hex(b, put_hex(b, put_hex(b, u, "efEF"), any), any), any), to);
    /* 0000 is not one: a digit that is not zero comes at the second, third or fourth place. */
    zero = put_hex(b, u, "00");
    build_join(b, put_hex(b, put_hex(b, put_hex(b, zero, "19afAF"), any), any), to);
    zero = put_hex(b, zero, "00");
    build_join(b, put_hex(b, put_hex(b, zero, "19afAF"), any), to);
    build_join(b, put_hex(b, put_hex(b, zero, "00"), "19afAF"), to);
    /* D000 .. D7FF, and D800 .. DBFF with its second half. */
    low = put_hex(b, u, "ddDD");
    build_join(b, put_hex(b, put_hex(b, put_hex(b, low, "07"), any), any), to);
    second = build_string(b, put_hex(b, put_hex(b, put_hex(b, low, "89abAB"), any), any), "\\u");
    build_join(b, put_hex(b, put_hex(b, put_hex(b, put_hex(b, second, "ddDD"), "cfCF"), any), any), to);
}

/* Characters that stand for themselves, but for those of `without`. */
static void put_plain(builder *b, int32_t from, const char *without, int32_t to)
{
    char_set s = {0};
    char_set_add(&s, 0, 0x1F), char_set_add(&s, '"', '"'), char_set_add(&s, '\\', '\\');
    for (; *without; without++) char_set_add(&s, (unsigned char)*without, (unsigned char)*without);
    char_set_negate(&s);
    build_chars(b, from, &s, FORM_PLAIN, to);
    char_set_free(&s);
}

int32_t json_rule_character(json_rules *j)
{
    builder *b = j->b;
    if (!fresh(j, &j->character, "a character")) return j->character;
    int32_t start = start_of(j, j->character), end = end_of(j, j->character), escape = build_node(b);
    put_plain(b, start, j->inside_call ? "<" : "", end);
    build_bytes(b, start, '\\', '\\', escape);
    put_escape(b, escape, end);
    return j->character;
}

int32_t json_rule_string(json_rules *j)
{
    builder *b = j->b;
    if (!fresh(j, &j->string, "a string")) return j->string;
    int32_t loop = build_string(b, start_of(j, j->string), "\""), end = end_of(j, j->string), escape = build_node(b);
    build_bytes(b, loop, '"', '"', end);
    build_bytes(b, loop, '\\', '\\', escape);
    put_escape(b, escape, loop);
    if (j->inside_call) {
        /* "]<" begins the mark that ends an argument. */
        int32_t bracket = build_node(b);
        put_plain(b, loop, "]", loop);
        build_bytes(b, loop, ']', ']', bracket);
        build_bytes(b, bracket, ']', ']', bracket);
        build_bytes(b, bracket, '"', '"', end);
        build_bytes(b, bracket, '\\', '\\', escape);
        put_plain(b, bracket, "]<", loop);
    } else {
        put_plain(b, loop, "", loop);
    }
    return j->string;
}

int32_t json_rule_key(json_rules *j)
{
    builder *b = j->b;
    if (!fresh(j, &j->key, "a name")) return j->key;
    int32_t loop = build_string(b, start_of(j, j->key), "\"");
    put_plain(b, loop, j->inside_call ? "]" : "", loop);
    build_bytes(b, loop, '"', '"', end_of(j, j->key));
    return j->key;
}

/* ---- Numbers -------------------------------------------------------------------------------------------------- */

/* Digits are bounded: what fits 64 bits, or a double without becoming infinite. */
static int32_t pattern_rule(json_rules *j, int32_t *rule, const char *name, const char *pattern)
{
    int32_t start, end;
    if (!fresh(j, rule, name)) return *rule;
    end = grammar_regex(j->b, pattern, strlen(pattern), (regex_use){.form = FORM_PLAIN, .flat = true}, &start);
    build_join(j->b, start_of(j, *rule), start);
    build_join(j->b, end, end_of(j, *rule));
    return *rule;
}

int32_t json_rule_integer(json_rules *j)
{
    return pattern_rule(j, &j->integer, "an integer", "-?(0|[1-9][0-9]{0,17})");
}

int32_t json_rule_number(json_rules *j)
{
    return pattern_rule(j, &j->number, "a number", "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+\\-]?[0-9]{1,2})?");
}

/* ---- Values --------------------------------------------------------------------------------------------------- */

int32_t json_rule_object(json_rules *j)
{
    builder *b = j->b;
    if (!fresh(j, &j->object, "an object")) return j->object;
    int32_t open = json_put_space(j, build_string(b, start_of(j, j->object), "{")), pair = build_node(b);
    int32_t close = build_node(b);
    build_join(b, open, pair);
    build_join(b, open, close);
    int32_t at = build_call(b, pair, json_rule_key(j));
    at = build_call(b, json_put_colon(j, at), json_rule_value(j));
    build_join(b, json_put_comma(j, at), pair);
    build_join(b, json_put_space(j, at), close);
    build_join(b, build_string(b, close, "}"), end_of(j, j->object));
    return j->object;
}

int32_t json_rule_value(json_rules *j)
{
    builder *b = j->b;
    if (!fresh(j, &j->value, "a value")) return j->value;
    int32_t start = start_of(j, j->value), end = end_of(j, j->value);
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) build_join(b, build_string(b, start, words[i]), end);
    build_call_to(b, start, json_rule_string(j), end);
    build_call_to(b, start, json_rule_number(j), end);
    build_call_to(b, start, json_rule_object(j), end);
    build_join(b, json_put_list(j, start, j->value, 0, BUILD_ENDLESS), end);
    return j->value;
}

int32_t json_put_list(json_rules *j, int32_t from, int32_t item, int32_t min, int32_t max)
{
    builder *b = j->b;
    int32_t open = json_put_space(j, build_string(b, from, "[")), close = build_node(b);
    if (min == 0) build_join(b, open, close);
    if (max > 0) {
        int32_t first = build_node(b), at;
        build_join(b, open, first);
        at = build_call(b, first, item);
        if (min <= 1 && max == BUILD_ENDLESS) {
            build_join(b, json_put_comma(j, at), first);
        } else if (max > 1) {
            int32_t more = build_rule_add(b, "items of a list");
            build_join(b, build_call(b, json_put_comma(j, start_of(j, more)), item), end_of(j, more));
            at = build_call(b, at, build_counted(b, more, min > 1 ? min - 1 : 0, max == BUILD_ENDLESS ? max : max - 1));
        }
        build_join(b, json_put_space(j, at), close);
    }
    return build_string(b, close, "]");
}

static int32_t put_text(json_rules *j, int32_t from, const char *text, size_t length)
{
    builder *b = j->b;
    return build_string(b, build_escaped(b, build_string(b, from, "\""), text, length), "\"");
}

int32_t json_put_literal(json_rules *j, int32_t from, const json_t *value)
{
    builder *b = j->b;
    buffer text = {0};
    size_t i;
    const char *key;
    json_t *item;
    if (!build_work(b, 1)) return 0;
    switch (json_typeof(value)) {
    case JSON_STRING: return put_text(j, from, json_string_value(value), json_string_length(value));
    case JSON_TRUE: return build_string(b, from, "true");
    case JSON_FALSE: return build_string(b, from, "false");
    case JSON_NULL: return build_string(b, from, "null");
    case JSON_INTEGER:
    case JSON_REAL:
        python_json(value, &text);
        from = build_text(b, from, text.data ? text.data : "", text.length);
        buffer_free(&text);
        return from;
    case JSON_ARRAY:
        from = build_string(b, from, "[");
        json_array_foreach(value, i, item) from = json_put_literal(j, i ? json_put_comma(j, from) : from, item);
        return build_string(b, from, "]");
    case JSON_OBJECT:
        from = build_string(b, from, "{"), i = 0;
        json_object_foreach((json_t *)value, key, item)
        {
            if (i++) from = json_put_comma(j, from);
            from = json_put_colon(j, put_text(j, from, key, strlen(key)));
            from = json_put_literal(j, from, item);
        }
        return build_string(b, from, "}");
    }
    return from;
}
