/*
 * Objects of a schema. Named members come in the order of `properties`, then those that are required without being
 * named, then free ones: an order makes the automaton small, and is what models write.
 *
 * The graph has a node for every member and number of members so far; without bounds on that number only whether there
 * was one matters, for the comma.
 */
#include <stdlib.h>
#include <string.h>

#include "text/grammar_schema.h"

enum {
    SPELT = 12,         /* optional members up to which names stand in the object's own automaton */
    GRID = 1 << 16,     /* nodes */
    PATTERN_KINDS = 32, /* of free members */
};

typedef struct member {
    const char *name;
    const json_t *schema;
    bool required;
} member;

/* A kind of free members: which names, and what they hold. */
typedef struct free_kind {
    int32_t rule; /* of the name, quotes included */
    const json_t *schema;
} free_kind;

typedef struct object {
    schema_writer *w;
    const json_t *schema;
    member *member; /* [members] */
    size_t members, optional;
    free_kind kind[PATTERN_KINDS + 1];
    int kinds;
    int32_t min, max; /* of members; -1: no bound above */
} object;

/* ---- What it has ---------------------------------------------------------------------------------------------- */

static bool is_required(const object *o, const char *name)
{
    const json_t *schema = o->schema;
    size_t i;
    json_t *one;
    if (!build_work(o->w->b, json_array_size(json_object_get(schema, "required")) / 2)) return false;
    json_array_foreach(json_object_get(schema, "required"), i,
                       one) if (json_is_string(one) && strcmp(json_string_value(one), name) == 0) return true;
    return false;
}

static void add_member(object *o, const char *name, const json_t *schema, bool required)
{
    schema_writer *w = o->w;
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        size_t was = schema_enter(w, "properties", name);
        build_fail(w->b, HY_BAD_INPUT, "%s: a schema is an object, true or false", schema_place(w));
        schema_leave(w, was);
    }
    bool never = merge_nothing(&w->m, schema, 0);
    if (never && required)
        build_fail(w->b, HY_BAD_INPUT, "%s: `required` asks for \"%.60s\", which nothing can be", schema_place(w),
                   name);
    if (never) return;
    o->member[o->members++] = (member){name, schema, required};
    o->optional += !required;
}

/* Whether free members may come, and as what, where no pattern says so: NULL, they may not. */
static const json_t *free_schema(const object *o)
{
    const json_t *schema = o->schema, *rest = json_object_get(schema, "additionalProperties");
    if (!rest) rest = json_object_get(schema, "unevaluatedProperties");
    if (rest) return json_is_false(rest) ? NULL : rest;
    /* An object of which nothing is named is meant to be free. */
    bool named = json_object_get(schema, "properties") || json_object_get(schema, "patternProperties");
    return o->w->j.o->additional_properties || !named ? json_true() : NULL;
}

/* The schema of a required member that `properties` does not have. */
static const json_t *unnamed(object *o, const char *name)
{
    schema_writer *w = o->w;
    const json_t *found = NULL, *rest = json_object_get(o->schema, "additionalProperties");
    const char *pattern;
    json_t *schema;
    json_object_foreach(json_object_get(o->schema, "patternProperties"), pattern,
                        schema) if (merge_found(&w->m, pattern, name)) found =
        found ? merge_both(&w->m, found, schema, schema_place(w)) : schema;
    return found ? found : rest ? rest : json_true();
}

static void find_members(object *o)
{
    const json_t *properties = json_object_get(o->schema, "properties"),
                 *required = json_object_get(o->schema, "required");
    const char *name;
    json_t *schema, *one;
    size_t i, count = json_object_size(properties) + json_array_size(required);
    o->member = calloc(count + 1, sizeof *o->member);
    if (!o->member) {
        build_fail(o->w->b, HY_NO_FIT, "there is no memory for a schema");
        return;
    }
    json_object_foreach((json_t *)properties, name, schema) add_member(o, name, schema, is_required(o, name));
    json_array_foreach((json_t *)required, i, one)
    {
        bool seen = false;
        name = json_string_value(one);
        if (!name) {
            schema_refuse(o->w, "required", "must be a list of names");
            return;
        }
        if (!build_work(o->w->b, o->members / 2)) return;
        for (size_t k = 0; k < o->members; k++) seen = seen || strcmp(o->member[k].name, name) == 0;
        if (!seen && json_object_get(properties, name)) continue;
        if (!seen) add_member(o, name, unnamed(o, name), true);
    }
}

/* ---- Names of free members ------------------------------------------------------------------------------------- */

static fsm names_like(object *o, const char *pattern, bool search)
{
    regex_use use = {.form = FORM_JSON, .search = search, .where = schema_place(o->w)};
    return grammar_regex_fsm(o->w->b, pattern, strlen(pattern), use);
}

/* Without the names of members, and as `propertyNames` says. */
static void restrict_names(object *o, fsm *names)
{
    builder *b = o->w->b;
    const json_t *properties = json_object_get(o->schema, "properties"),
                 *shape = json_object_get(o->schema, "propertyNames");
    int32_t start = build_node(b), end = build_node(b);
    const char *name;
    json_t *schema;
    if (o->members || json_object_size(properties)) {
        json_object_foreach((json_t *)properties, name, schema)
            build_join(b, build_escaped(b, start, name, strlen(name)), end);
        for (size_t i = 0; i < o->members; i++)
            build_join(b, build_escaped(b, start, o->member[i].name, strlen(o->member[i].name)), end);
        fsm_narrow(b, names, fsm_of(b, start, end), true);
    }
    if (!shape || json_is_true(shape)) return;
    size_t was = schema_enter(o->w, "propertyNames", NULL);
    const json_t *pattern = json_object_get(shape, "pattern"), *list = json_object_get(shape, "enum");
    int32_t min = schema_count(o->w, shape, "minLength", 0),
            max = schema_count(o->w, shape, "maxLength", BUILD_ENDLESS);
    json_t *value;
    const char *key;
    json_object_foreach((json_t *)shape, key, value)
    {
        static const char *const known[] = {"pattern", "enum",  "minLength",   "maxLength", "type",
                                            "format",  "title", "description", NULL};
        int i = 0;
        while (known[i] && strcmp(known[i], key) != 0) i++;
        if (!known[i]) schema_refuse(o->w, key, "is not supported for names");
    }
    if (json_is_string(pattern)) fsm_narrow(b, names, names_like(o, json_string_value(pattern), true), false);
    if (list) {
        size_t i;
        start = build_node(b), end = build_node(b);
        json_array_foreach((json_t *)list, i, value) if (json_is_string(value))
            build_join(b, build_escaped(b, start, json_string_value(value), json_string_length(value)), end);
        fsm_narrow(b, names, fsm_of(b, start, end), false);
    }
    if (min > 0 || max != BUILD_ENDLESS) {
        buffer text = {0};
        buffer_printf(&text, "[\\s\\S]{%d,", min);
        if (max != BUILD_ENDLESS) buffer_printf(&text, "%d", max);
        buffer_string(&text, "}");
        if (buffer_ok(&text)) fsm_narrow(b, names, names_like(o, text.data, false), false);
        buffer_free(&text);
    }
    const char *format = json_string_value(json_object_get(shape, "format"));
    if (format && grammar_format(format)) fsm_narrow(b, names, names_like(o, grammar_format(format), false), false);
    schema_leave(o->w, was);
}

static void add_kind(object *o, fsm *names, const json_t *schema)
{
    builder *b = o->w->b;
    if (b->status != HY_OK || fsm_nothing(names) || merge_nothing(&o->w->m, schema, 0)) return;
    int32_t rule = build_rule_add(b, "a name");
    if (b->status != HY_OK) return;
    int32_t at = fsm_put(b, build_string(b, b->rule[rule].start, "\""), names);
    build_join(b, build_string(b, at, "\""), b->rule[rule].end);
    o->kind[o->kinds++] = (free_kind){rule, schema};
}

/* Names that a pattern describes, and the others. A name that two patterns describe would have to be two things. */
static void find_free(object *o)
{
    builder *b = o->w->b;
    const json_t *patterns = json_object_get(o->schema, "patternProperties"), *rest = free_schema(o);
    const char *pattern;
    json_t *schema;
    bool plain = rest && !json_object_size(patterns) && !o->members && !json_object_get(o->schema, "propertyNames") &&
                 !json_object_size(json_object_get(o->schema, "properties"));
    if (plain) {
        o->kind[o->kinds++] = (free_kind){json_rule_key(&o->w->j), rest};
        return;
    }
    if (!rest && !json_object_size(patterns)) return;
    if (json_object_size(patterns) > PATTERN_KINDS) {
        schema_refuse(o->w, "patternProperties", "has more patterns than are supported");
        return;
    }
    fsm others = names_like(o, o->w->j.inside_call ? "[^\\]]*" : "[\\s\\S]*", false);
    restrict_names(o, &others);
    json_object_foreach((json_t *)patterns, pattern, schema)
    {
        fsm like = names_like(o, pattern, true), names, left;
        names = fsm_and(b, &like, &others);
        left = fsm_without(b, &others, &like);
        /* What an earlier pattern took is missing from `others`: then the two overlap. */
        const char *other;
        json_t *unused;
        json_object_foreach((json_t *)patterns, other, unused)
        {
            if (strcmp(other, pattern) == 0) break;
            fsm before = names_like(o, other, true), both = fsm_and(b, &like, &before);
            if (b->status == HY_OK && !fsm_nothing(&both))
                schema_refuse(o->w, "patternProperties", "with patterns that may describe one name is not supported");
            fsm_free(&before);
            fsm_free(&both);
        }
        add_kind(o, &names, schema);
        fsm_free(&like);
        fsm_free(&names);
        fsm_free(&others);
        others = left;
    }
    if (rest) add_kind(o, &others, rest);
    fsm_free(&others);
}

/* ---- The graph ------------------------------------------------------------------------------------------------ */

static int32_t put_member(object *o, int32_t from, const member *m)
{
    schema_writer *w = o->w;
    size_t was = schema_enter(w, "properties", m->name);
    from = build_string(w->b, build_escaped(w->b, build_string(w->b, from, "\""), m->name, strlen(m->name)), "\"");
    int32_t to = build_call(w->b, json_put_colon(&w->j, from), schema_rule(w, m->schema));
    schema_leave(w, was);
    return to;
}

/* Many optional members would have all their names after each of them: as rules they are written once. */
static int32_t member_rule(object *o, const member *m)
{
    builder *b = o->w->b;
    int32_t rule = build_rule_add(b, "a member");
    if (b->status != HY_OK) return 0;
    build_join(b, put_member(o, b->rule[rule].start, m), b->rule[rule].end);
    return rule;
}

static int32_t free_rule(object *o)
{
    schema_writer *w = o->w;
    builder *b = w->b;
    int32_t rule = build_rule_add(b, "a member");
    if (b->status != HY_OK) return 0;
    size_t was = schema_enter(w, "additionalProperties", NULL);
    for (int i = 0; i < o->kinds && b->status == HY_OK; i++) {
        int32_t at = json_put_colon(&w->j, build_call(b, b->rule[rule].start, o->kind[i].rule));
        int32_t to = build_call(b, at, schema_rule(w, o->kind[i].schema));
        if (b->status == HY_OK) build_join(b, to, b->rule[rule].end);
    }
    schema_leave(w, was);
    return rule;
}

/* Free members behind `count` others. A model may write one name twice, so that they count as one towards
 * `minProperties`. */
static void put_free(object *o, int32_t from, int32_t count, int32_t rule, int32_t close)
{
    schema_writer *w = o->w;
    builder *b = w->b;
    if (count + 1 < o->min || (o->max >= 0 && count >= o->max)) return;
    int32_t at = build_call(b, count > 0 ? json_put_comma(&w->j, from) : from, rule);
    if (o->max < 0 || o->max - count > 1) {
        int32_t more = build_rule_add(b, "further members");
        if (b->status != HY_OK) return;
        build_join(b, build_call(b, json_put_comma(&w->j, b->rule[more].start), rule), b->rule[more].end);
        if (o->max < 0) {
            int32_t loop = build_node(b);
            build_join(b, at, loop);
            build_call_to(b, loop, more, loop);
            at = loop;
        } else {
            at = build_call(b, at, build_counted(b, more, 0, o->max - count - 1));
        }
    }
    build_join(b, json_put_space(&w->j, at), close);
}

static void put_members(object *o, int32_t open, int32_t close)
{
    schema_writer *w = o->w;
    builder *b = w->b;
    bool counts = o->min > 0 || o->max >= 0;
    size_t width =
        counts ? (size_t)(o->max >= 0 && o->max < (int32_t)o->members ? o->max : (int32_t)o->members) + 1 : 2;
    if ((o->members + 1) * width > GRID) {
        build_fail(b, HY_NO_FIT, "%s: an object of %zu properties is too large", schema_place(w), o->members);
        return;
    }
    int32_t free_members = o->kinds > 0 ? free_rule(o) : -1, *at = calloc(width, sizeof *at),
            *next = calloc(width, sizeof *next);
    if (!at || !next) build_fail(b, HY_NO_FIT, "there is no memory for a schema");
    for (size_t c = 0; at && c < width; c++) at[c] = c ? build_node(b) : open;
    for (size_t i = 0; at && next && i < o->members && b->status == HY_OK; i++) {
        const member *m = &o->member[i];
        int32_t rule = o->optional > SPELT ? member_rule(o, m) : -1;
        for (size_t c = 0; c < width; c++) next[c] = build_node(b);
        for (size_t c = 0; c < width && b->status == HY_OK; c++) {
            if (!m->required) build_join(b, at[c], next[c]);
            if (counts && c + 1 == width) continue; /* no more are allowed, or there are no more */
            int32_t from = c ? json_put_comma(&w->j, at[c]) : at[c];
            int32_t to = rule >= 0 ? build_call(b, from, rule) : put_member(o, from, m);
            build_join(b, to, next[counts ? c + 1 : 1]);
        }
        memcpy(at, next, width * sizeof *at);
    }
    for (size_t c = 0; at && c < width && b->status == HY_OK; c++) {
        int32_t count = (int32_t)c;
        if (count >= o->min || !counts) build_join(b, c ? json_put_space(&w->j, at[c]) : at[c], close);
        if (free_members >= 0) put_free(o, at[c], count, free_members, close);
    }
    free(at);
    free(next);
}

static void check_counts(object *o)
{
    int32_t required = 0, possible = (int32_t)o->members + (o->kinds > 0);
    for (size_t i = 0; i < o->members; i++) required += o->member[i].required;
    if (o->max >= 0 && required > o->max) schema_refuse(o->w, "maxProperties", "is below the number of required ones");
    if (o->min > possible && o->kinds > 0)
        schema_refuse(
            o->w, "minProperties",
            "of free names is not supported above one more than there are named properties: names could repeat");
    else if (o->min > possible)
        schema_refuse(o->w, "minProperties", "is above the number of properties");
    if (o->min <= required) o->min = 0;
}

int32_t schema_put_object(schema_writer *w, const json_t *schema, int32_t from)
{
    builder *b = w->b;
    object o = {.w = w, .schema = schema};
    int32_t open = json_put_space(&w->j, build_string(b, from, "{")), close = build_node(b);
    o.min = schema_count(w, schema, "minProperties", 0);
    o.max = json_object_get(schema, "maxProperties") ? schema_count(w, schema, "maxProperties", 0) : -1;
    if (b->status == HY_OK) find_members(&o);
    if (b->status == HY_OK) find_free(&o);
    if (b->status == HY_OK) check_counts(&o);
    if (b->status == HY_OK) put_members(&o, open, close);
    free(o.member);
    return build_string(b, close, "}");
}
