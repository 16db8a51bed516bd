/* Strings and numbers of a schema. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar_schema.h"

enum { PATTERNS = 16 };

/* ---- Strings -------------------------------------------------------------------------------------------------- */

/* What is said of a string: patterns, those of its format among them, and lengths. */
typedef struct string_rules {
    const char *pattern[PATTERNS];
    bool whole[PATTERNS]; /* it is the whole string, not in it */
    int count;
    int32_t min, max;
} string_rules;

static void add_pattern(schema_writer *w, string_rules *s, const json_t *pattern)
{
    if (!json_is_string(pattern)) {
        schema_refuse(w, "pattern", "must be a string");
    } else if (s->count == PATTERNS) {
        schema_refuse(w, "pattern", "comes together too often");
    } else {
        s->pattern[s->count++] = json_string_value(pattern);
    }
}

static void add_format(schema_writer *w, string_rules *s, const json_t *format)
{
    const char *name = json_string_value(format), *pattern = name ? grammar_format(name) : "";
    if (!pattern) return; /* a name of somebody's own says nothing, as JSON Schema wants it */
    if (!*pattern) {
        build_fail(w->b, HY_BAD_INPUT, "%s: `format` \"%.40s\" is not supported", schema_place(w), name ? name : "?");
        return;
    }
    s->whole[s->count] = true;
    s->pattern[s->count++] = pattern;
}

static string_rules rules_of(schema_writer *w, const json_t *schema)
{
    string_rules s = {0};
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    size_t i;
    json_t *one;
    if (format) add_format(w, &s, format);
    if (json_is_array(pattern)) {
        json_array_foreach((json_t *)pattern, i, one) add_pattern(w, &s, one);
    } else if (pattern) {
        add_pattern(w, &s, pattern);
    }
    s.min = schema_count(w, schema, "minLength", 0), s.max = schema_count(w, schema, "maxLength", BUILD_ENDLESS);
    if (s.min > s.max) schema_refuse(w, "minLength", "is above `maxLength`");
    return s;
}

bool schema_string_is_free(const json_t *schema)
{
    return !json_object_get(schema, "pattern") && !json_object_get(schema, "minLength") &&
           !json_object_get(schema, "maxLength") &&
           !grammar_format(json_string_value(json_object_get(schema, "format"))
                               ? json_string_value(json_object_get(schema, "format"))
                               : "none");
}

static regex_use use_of(const schema_writer *w, const string_rules *s, int i, char_form form)
{
    return (regex_use){.form = form, .search = !s->whole[i], .where = schema_place(w)};
}

static fsm length_fsm(builder *b, const string_rules *s, char_form form, const char *where)
{
    char pattern[64];
    if (s->max == BUILD_ENDLESS)
        snprintf(pattern, sizeof pattern, "[\\s\\S]{%d,}", s->min);
    else
        snprintf(pattern, sizeof pattern, "[\\s\\S]{%d,%d}", s->min, s->max);
    return grammar_regex_fsm(b, pattern, strlen(pattern), (regex_use){.form = form, .where = where});
}

static fsm all_of(schema_writer *w, const string_rules *s, char_form form)
{
    fsm f = {0};
    bool first = true;
    for (int i = 0; i < s->count && w->b->status == HY_OK; i++, first = false) {
        fsm one = grammar_regex_fsm(w->b, s->pattern[i], strlen(s->pattern[i]), use_of(w, s, i, form));
        if (first)
            f = one;
        else
            fsm_narrow(w->b, &f, one, false);
    }
    if (s->min > 0 || s->max != BUILD_ENDLESS || first) {
        fsm length = length_fsm(w->b, s, form, schema_place(w));
        if (first)
            f = length;
        else
            fsm_narrow(w->b, &f, length, false);
    }
    return f;
}

/* A pattern in a rule of its own, so that ^ and $ are its text's begin and end. */
static int32_t put_pattern(schema_writer *w, const string_rules *s, int32_t from)
{
    builder *b = w->b;
    int32_t rule = build_rule_add(b, schema_place(w)), start, end;
    end = grammar_regex(b, s->pattern[0], strlen(s->pattern[0]), use_of(w, s, 0, FORM_JSON), &start);
    if (b->status != HY_OK) return from;
    build_join(b, b->rule[rule].start, start);
    build_join(b, end, b->rule[rule].end);
    return build_call(b, from, rule);
}

int32_t schema_put_string(schema_writer *w, const json_t *schema, int32_t from)
{
    builder *b = w->b;
    string_rules s = rules_of(w, schema);
    if (b->status != HY_OK) return from;
    bool lengths = s.min > 0 || s.max != BUILD_ENDLESS;
    if (!s.count && !lengths) return build_call(b, from, json_rule_string(&w->j));
    from = build_string(b, from, "\"");
    if (!s.count) {
        if (s.max > 0) from = build_call(b, from, build_counted(b, json_rule_character(&w->j), s.min, s.max));
    } else if (s.count == 1 && !lengths && !w->j.inside_call) {
        from = put_pattern(w, &s, from);
    } else {
        fsm f = all_of(w, &s, FORM_JSON);
        if (w->j.inside_call) {
            const char *safe = "([^\\]]|\\]+[^\\]<])*\\]*";
            fsm_narrow(b, &f, grammar_regex_fsm(b, safe, strlen(safe), (regex_use){.form = FORM_JSON}), false);
        }
        from = fsm_put(b, from, &f);
        fsm_free(&f);
    }
    return build_string(b, from, "\"");
}

int32_t schema_put_bare_string(schema_writer *w, const json_t *schema, int32_t from, const fsm *allowed)
{
    string_rules s = rules_of(w, schema);
    if (w->b->status != HY_OK) return from;
    fsm f = all_of(w, &s, FORM_PLAIN), both = fsm_and(w->b, &f, allowed);
    from = fsm_put(w->b, from, &both);
    fsm_free(&f);
    fsm_free(&both);
    return from;
}

/* ---- Numbers -------------------------------------------------------------------------------------------------- */

/* A bound; with draft 4's exclusiveMinimum: true, `exclusive` turns `inclusive` into an open one. */
static void take_bound(const json_t *schema, const char *inclusive, const char *exclusive, int sign, bool *has,
                       bool *open, double *value)
{
    const json_t *closed = json_object_get(schema, inclusive), *strict = json_object_get(schema, exclusive);
    *has = json_is_number(closed) || json_is_number(strict);
    *open = json_is_number(strict) || json_is_true(strict);
    *value = json_number_value(json_is_number(closed) ? closed : strict);
    if (!json_is_number(closed) || !json_is_number(strict)) return;
    double other = json_number_value(strict);
    *open = sign > 0 ? other >= *value : other <= *value;
    if (*open) *value = other;
}

static int64_t whole_bound(double value, int sign, bool open)
{
    if (value >= 1e18) return 1000000000000000000;
    if (value <= -1e18) return -1000000000000000000;
    double near = sign > 0 ? ceil(value) : floor(value);
    return (int64_t)near + (open && near == value ? sign : 0);
}

int32_t schema_put_number(schema_writer *w, const json_t *schema, bool integer, int32_t from)
{
    number_bounds n = {.integer = integer, .multiple = json_number_value(json_object_get(schema, "multipleOf"))};
    take_bound(schema, "minimum", "exclusiveMinimum", 1, &n.has_low, &n.low_open, &n.low);
    take_bound(schema, "maximum", "exclusiveMaximum", -1, &n.has_high, &n.high_open, &n.high);
    if (!n.has_low && !n.has_high && n.multiple == 0)
        return build_call(w->b, from, integer ? json_rule_integer(&w->j) : json_rule_number(&w->j));
    n.low_whole = whole_bound(n.low, 1, n.low_open), n.high_whole = whole_bound(n.high, -1, n.high_open);
    if (n.has_low && n.has_high && (integer ? n.low_whole > n.high_whole : n.low > n.high))
        return schema_refuse(w, "minimum", "is above the maximum"), from;
    return grammar_number(w->b, from, &n, schema_place(w));
}
