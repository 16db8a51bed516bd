#include "text/grammar_merge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH = 64,
    ALTERNATIVES = 256,
    PARSING = 500, /* work for a pattern, whatever it says */
    COPYING = 32,  /* work for every member of a copy: it is kept, so this bounds memory too */
};

bool merger_open(merger *m, builder *b, const json_t *root)
{
    *m = (merger){.b = b, .root = root, .made = json_array()};
    if (!m->made) build_fail(b, HY_NO_FIT, "there is no memory for a schema");
    return m->made != NULL;
}

void merger_close(merger *m)
{
    json_decref(m->made);
}

static json_t *own(merger *m, json_t *made)
{
    if (!made || json_array_append_new(m->made, made) != 0)
        build_fail(m->b, HY_NO_FIT, "there is no memory for a schema");
    return made;
}

/* A copy of an object's or a list's outside, the caller's. NULL: too much work, or no memory. */
static json_t *copy_of(merger *m, const json_t *value)
{
    size_t size = json_object_size(value) + json_array_size(value);
    if (!build_work(m->b, (uint64_t)size * COPYING)) return NULL;
    json_t *copy = json_copy((json_t *)value);
    if (!copy) build_fail(m->b, HY_NO_FIT, "there is no memory for a schema");
    return copy;
}

static json_t *own_copy(merger *m, const json_t *schema)
{
    json_t *copy = copy_of(m, schema);
    return copy ? own(m, copy) : NULL;
}

/* ---- References ----------------------------------------------------------------------------------------------- */

static int hex(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* One part of a pointer up to the next '/': ~0, ~1 and %XX stand for characters. */
static const char *next_part(const char *from, char *out, size_t size)
{
    size_t n = 0;
    for (; *from && *from != '/' && n + 1 < size; n++) {
        int high = from[0] == '%' ? hex(from[1]) : -1, low = high >= 0 ? hex(from[2]) : -1;
        if (low >= 0)
            out[n] = (char)(high * 16 + low), from += 3;
        else if (from[0] == '~' && (from[1] == '0' || from[1] == '1'))
            out[n] = from[1] == '0' ? '~' : '/', from += 2;
        else
            out[n] = *from++;
    }
    out[n] = 0;
    return from;
}

const json_t *merge_resolve(merger *m, const json_t *reference, const char *place)
{
    const char *text = json_string_value(reference);
    const json_t *at = m->root;
    char part[256];
    if (!text || text[0] != '#' || (text[1] && text[1] != '/')) {
        build_fail(m->b, HY_BAD_INPUT,
                   "%s: `$ref` to \"%.80s\" is not supported: references inside the schema are, as \"#/$defs/name\"",
                   place, text ? text : "?");
        return NULL;
    }
    for (text++; at && *text;) {
        text = next_part(text + 1, part, sizeof part);
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(part, NULL, 10)) : json_object_get(at, part);
    }
    if (!at)
        build_fail(m->b, HY_BAD_INPUT, "%s: `$ref` to \"%.80s\" leads nowhere", place, json_string_value(reference));
    return at;
}

const json_t *merge_without(merger *m, const json_t *schema, const char *keyword)
{
    json_t *copy = own_copy(m, schema);
    if (copy) json_object_del(copy, keyword);
    return copy;
}

const json_t *merge_flat(merger *m, const json_t *schema, const char *place)
{
    const json_t *part;
    size_t i;
    for (int turns = 0; m->b->status == HY_OK && json_is_object(schema); turns++) {
        const json_t *reference = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
        if (!reference && !all) break;
        if (turns == DEPTH) {
            build_fail(m->b, HY_BAD_INPUT, "%s: the schema refers to itself without anything in between", place);
            break;
        }
        if (all && !json_is_array(all)) {
            build_fail(m->b, HY_BAD_INPUT, "%s: `allOf` must be a list", place);
            break;
        }
        const json_t *rest = merge_without(m, schema, "$ref");
        if (rest) rest = merge_without(m, rest, "allOf");
        if (!rest) break;
        if (reference) {
            const json_t *target = merge_resolve(m, reference, place);
            rest = target ? merge_both(m, rest, target, place) : NULL;
        }
        if (rest && all) json_array_foreach((json_t *)all, i, part) if (rest) rest = merge_both(m, rest, part, place);
        schema = rest;
    }
    return m->b->status == HY_OK ? schema : NULL;
}

/* ---- Merging -------------------------------------------------------------------------------------------------- */

static bool same_number(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b);
}

static bool same(const json_t *a, const json_t *b)
{
    return same_number(a, b) || json_equal(a, b);
}

/* How much there is to compare. */
static uint64_t weight(const json_t *value)
{
    uint64_t sum = 1 + json_string_length(value) / 16;
    const char *key;
    size_t i;
    json_t *part;
    json_array_foreach((json_t *)value, i, part) sum += weight(part);
    json_object_foreach((json_t *)value, key, part) sum += 1 + weight(part);
    return sum;
}

static bool listed(merger *m, const json_t *list, const json_t *value)
{
    size_t i;
    json_t *item;
    if (!build_work(m->b, json_array_size(list) * weight(value))) return false;
    json_array_foreach((json_t *)list, i, item) if (same(item, value)) return true;
    return false;
}

/* A type, or a list of them, that is in both: integers are numbers. */
static json_t *both_types(merger *m, const json_t *x, const json_t *y)
{
    json_t *out = json_array(), *one[2] = {NULL, NULL};
    size_t i, k;
    json_t *a, *b;
    if (json_is_string(x)) x = one[0] = json_pack("[O]", x);
    if (json_is_string(y)) y = one[1] = json_pack("[O]", y);
    build_work(m->b, (uint64_t)json_array_size(x) * json_array_size(y));
    json_array_foreach((json_t *)x, i, a) json_array_foreach((json_t *)y, k, b)
    {
        if (m->b->status != HY_OK) break;
        const char *s = json_string_value(a), *t = json_string_value(b);
        if (!s || !t) continue;
        if (strcmp(s, t) == 0 || (strcmp(s, "integer") == 0 && strcmp(t, "number") == 0)) {
            if (!listed(m, out, a)) json_array_append(out, a);
        } else if (strcmp(s, "number") == 0 && strcmp(t, "integer") == 0) {
            if (!listed(m, out, b)) json_array_append(out, b);
        }
    }
    json_decref(one[0]);
    json_decref(one[1]);
    return out;
}

static json_t *both_lists(merger *m, const json_t *x, const json_t *y, bool either)
{
    json_t *out = either ? copy_of(m, x) : json_array(), *item;
    size_t i;
    json_array_foreach((json_t *)y, i, item) if (either ? !listed(m, out, item) : listed(m, x, item))
        json_array_append(out, item);
    return out;
}

/* What an object schema says of a member that its `properties` do not name. NULL: nothing. */
static const json_t *for_others(merger *m, const json_t *schema, const char *key, const char *place)
{
    const json_t *found = NULL;
    const char *pattern;
    json_t *value;
    json_object_foreach(json_object_get(schema, "patternProperties"), pattern, value) if (merge_found(m, pattern, key))
        found = found ? merge_both(m, found, value, place) : value;
    return found ? found : json_object_get(schema, "additionalProperties");
}

static json_t *both_properties(merger *m, const json_t *x, const json_t *y, const char *place)
{
    json_t *out = json_object(), *value;
    const char *key;
    const json_t *xs = json_object_get(x, "properties"), *ys = json_object_get(y, "properties");
    if (!build_work(m->b, (uint64_t)COPYING * (json_object_size(xs) + json_object_size(ys)))) return out;
    json_object_foreach((json_t *)xs, key, value)
    {
        const json_t *other = json_object_get(ys, key);
        if (!other) other = for_others(m, y, key, place);
        const json_t *both = other ? merge_both(m, value, other, place) : value;
        if (both) json_object_set(out, key, (json_t *)both);
    }
    json_object_foreach((json_t *)ys, key, value)
    {
        if (json_object_get(xs, key)) continue;
        const json_t *other = for_others(m, x, key, place);
        const json_t *both = other ? merge_both(m, other, value, place) : value;
        if (both) json_object_set(out, key, (json_t *)both);
    }
    return out;
}

/* What `y` says of names like a pattern that `x` alone has: its additionalProperties, unless patterns of its own may
 * take some of them. NULL: nothing. */
static const json_t *for_pattern(merger *m, const json_t *y, const char *place)
{
    const json_t *rest = json_object_get(y, "additionalProperties");
    if (!rest || json_is_true(rest)) return NULL;
    if (json_object_size(json_object_get(y, "patternProperties")))
        build_fail(m->b, HY_BAD_INPUT,
                   "%s: other `patternProperties` together with `additionalProperties` are not supported", place);
    return rest;
}

static json_t *both_patterns(merger *m, const json_t *x, const json_t *y, const char *place)
{
    json_t *out = json_object(), *value;
    const char *key;
    const json_t *xs = json_object_get(x, "patternProperties"), *ys = json_object_get(y, "patternProperties");
    if (!build_work(m->b, (uint64_t)COPYING * (json_object_size(xs) + json_object_size(ys)))) return out;
    json_object_foreach((json_t *)xs, key, value)
    {
        const json_t *other = json_object_get(ys, key);
        if (!other) other = for_pattern(m, y, place);
        const json_t *both = other ? merge_both(m, value, other, place) : value;
        if (both) json_object_set(out, key, (json_t *)both);
    }
    json_object_foreach((json_t *)ys, key, value)
    {
        if (json_object_get(xs, key)) continue;
        const json_t *other = for_pattern(m, x, place), *both = other ? merge_both(m, other, value, place) : value;
        if (both) json_object_set(out, key, (json_t *)both);
    }
    return out;
}

static json_t *both_prefixes(merger *m, const json_t *x, const json_t *y, const char *place)
{
    const json_t *xs = json_object_get(x, "prefixItems"), *ys = json_object_get(y, "prefixItems");
    json_t *out = json_array();
    size_t n = json_array_size(xs) > json_array_size(ys) ? json_array_size(xs) : json_array_size(ys);
    if (!build_work(m->b, (uint64_t)COPYING * n)) return out;
    for (size_t i = 0; i < n; i++) {
        const json_t *a = json_array_get(xs, i), *b = json_array_get(ys, i);
        if (!a) a = json_object_get(x, "items");
        if (!b) b = json_object_get(y, "items");
        const json_t *both = a && b ? merge_both(m, a, b, place) : a ? a : b;
        if (both) json_array_append(out, (json_t *)both);
    }
    return out;
}

/* Every pair of alternatives. */
static json_t *both_choices(merger *m, const json_t *x, const json_t *y, const char *place)
{
    json_t *out = json_array(), *a, *b;
    size_t i, k;
    if (json_array_size(x) * json_array_size(y) > ALTERNATIVES) {
        build_fail(m->b, HY_NO_FIT, "%s: alternatives times alternatives are more than %d", place, ALTERNATIVES);
        return out;
    }
    json_array_foreach((json_t *)x, i, a) json_array_foreach((json_t *)y, k, b)
    {
        const json_t *both = merge_both(m, a, b, place);
        if (both) json_array_append(out, (json_t *)both);
    }
    return out;
}

static json_t *both_multiples(merger *m, const json_t *x, const json_t *y, const char *place)
{
    double a = json_number_value(x), b = json_number_value(y);
    if (fmod(a, b) == 0) return json_incref((json_t *)x);
    if (fmod(b, a) == 0) return json_incref((json_t *)y);
    build_fail(m->b, HY_BAD_INPUT, "%s: `multipleOf` %g and %g together are not supported", place, a, b);
    return NULL;
}

static bool one_of(const char *key, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(key, *names) == 0) return true;
    return false;
}

/* The value of a keyword that both have. */
static json_t *both_values(merger *m, const char *key, const json_t *x, const json_t *y, const char *place)
{
    static const char *const largest[] = {"minimum",  "exclusiveMinimum", "minLength",
                                          "minItems", "minProperties",    NULL};
    static const char *const smallest[] = {"maximum",  "exclusiveMaximum", "maxLength",
                                           "maxItems", "maxProperties",    NULL};
    static const char *const schemas[] = {
        "items", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems", NULL};
    static const char *const notes[] = {
        "title",           "description",      "default",       "examples",   "$comment", "$defs",
        "definitions",     "$schema",          "$id",           "deprecated", "readOnly", "writeOnly",
        "contentEncoding", "contentMediaType", "contentSchema", "nullable",   NULL};
    if (one_of(key, largest)) return json_incref((json_t *)(json_number_value(x) >= json_number_value(y) ? x : y));
    if (one_of(key, smallest)) return json_incref((json_t *)(json_number_value(x) <= json_number_value(y) ? x : y));
    if (one_of(key, schemas)) return json_incref((json_t *)merge_both(m, x, y, place));
    if (one_of(key, notes) || json_equal(x, y)) return json_incref((json_t *)x);
    if (strcmp(key, "type") == 0) return both_types(m, x, y);
    if (strcmp(key, "enum") == 0) return both_lists(m, x, y, false);
    if (strcmp(key, "required") == 0) return both_lists(m, x, y, true);
    if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) return both_choices(m, x, y, place);
    if (strcmp(key, "multipleOf") == 0) return both_multiples(m, x, y, place);
    if (strcmp(key, "pattern") == 0)
        return json_pack("[O, O]", x, y); /* both are to be found: only a merger writes a list */
    build_fail(m->b, HY_BAD_INPUT, "%s: two values of `%s` together are not supported", place, key);
    return NULL;
}

/* {"const": x} as {"enum": [x]}. */
static const json_t *const_as_enum(merger *m, const json_t *schema)
{
    const json_t *value = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    if (!value) return schema;
    json_t *copy = own_copy(m, schema);
    if (!copy) return schema;
    json_object_set_new(copy, "enum", list && !listed(m, list, value) ? json_array() : json_pack("[O]", value));
    json_object_del(copy, "const");
    return copy;
}

/* Draft 4's {"minimum": x, "exclusiveMinimum": true} as {"exclusiveMinimum": x}, and false as nothing: only bounds that
 * are numbers can be held against each other. */
static const json_t *bounds_as_numbers(merger *m, const json_t *schema)
{
    static const char *const names[2][2] = {{"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}};
    for (int i = 0; i < 2; i++) {
        const json_t *flag = json_object_get(schema, names[i][1]), *bound = json_object_get(schema, names[i][0]);
        json_t *copy = json_is_boolean(flag) ? own_copy(m, schema) : NULL;
        if (!copy) continue;
        json_object_del(copy, names[i][1]);
        if (json_is_true(flag) && bound) {
            json_object_set(copy, names[i][1], (json_t *)bound);
            json_object_del(copy, names[i][0]);
        }
        schema = copy;
    }
    return schema;
}

const json_t *merge_both(merger *m, const json_t *x, const json_t *y, const char *place)
{
    const char *key;
    json_t *value;
    if (json_is_true(x) || json_is_false(y)) return y;
    if (json_is_true(y) || json_is_false(x)) return x;
    if (!json_is_object(x) || !json_is_object(y)) {
        build_fail(m->b, HY_BAD_INPUT, "%s: a schema is an object, true or false", place);
        return NULL;
    }
    if (!build_work(m->b, 1000)) return NULL;
    if (++m->depth > DEPTH) {
        build_fail(m->b, HY_BAD_INPUT, "%s: the schema refers to itself without anything in between", place);
        return NULL;
    }
    x = merge_flat(m, x, place), y = merge_flat(m, y, place);
    json_t *out = NULL;
    if (json_is_object(x) && json_is_object(y)) {
        x = bounds_as_numbers(m, const_as_enum(m, x)), y = bounds_as_numbers(m, const_as_enum(m, y));
        out = own_copy(m, x);
        json_object_foreach((json_t *)y, key, value)
        {
            if (strcmp(key, "properties") == 0 || strcmp(key, "prefixItems") == 0 ||
                strcmp(key, "patternProperties") == 0)
                continue;
            const json_t *have = json_object_get(x, key);
            json_t *both = have ? both_values(m, key, have, value, place) : json_incref(value);
            if (both) json_object_set_new(out, key, both);
        }
        if (json_object_get(x, "properties") || json_object_get(y, "properties"))
            json_object_set_new(out, "properties", both_properties(m, x, y, place));
        if (json_object_get(x, "patternProperties") || json_object_get(y, "patternProperties"))
            json_object_set_new(out, "patternProperties", both_patterns(m, x, y, place));
        if (json_object_get(x, "prefixItems") || json_object_get(y, "prefixItems"))
            json_object_set_new(out, "prefixItems", both_prefixes(m, x, y, place));
    } else if (x && y) {
        out = (json_t *)merge_both(m, x, y, place); /* a reference to true or false */
    }
    m->depth--;
    return m->b->status == HY_OK ? out : NULL;
}

/* ---- Values --------------------------------------------------------------------------------------------------- */

bool merge_found(merger *m, const char *pattern, const char *text)
{
    regex_use use = {.form = FORM_PLAIN, .search = true, .where = "patternProperties"};
    if (!build_work(m->b, PARSING + strlen(pattern))) return false;
    fsm f = grammar_regex_fsm(m->b, pattern, strlen(pattern), use);
    bool found = fsm_has(&f, text, strlen(text));
    fsm_free(&f);
    return found;
}

static bool is_type(const json_t *value, const char *type)
{
    double real = json_number_value(value);
    if (strcmp(type, "integer") == 0) return json_is_integer(value) || (json_is_real(value) && real == floor(real));
    if (strcmp(type, "number") == 0) return json_is_number(value);
    if (strcmp(type, "string") == 0) return json_is_string(value);
    if (strcmp(type, "boolean") == 0) return json_is_boolean(value);
    if (strcmp(type, "null") == 0) return json_is_null(value);
    if (strcmp(type, "object") == 0) return json_is_object(value);
    return strcmp(type, "array") == 0 && json_is_array(value);
}

static bool type_fits(const json_t *type, const json_t *value)
{
    size_t i;
    json_t *one;
    if (!type) return true;
    if (json_is_string(type)) return is_type(value, json_string_value(type));
    json_array_foreach((json_t *)type, i,
                       one) if (json_is_string(one) && is_type(value, json_string_value(one))) return true;
    return false;
}

static bool number_fits(const json_t *schema, double value)
{
    const json_t *low = json_object_get(schema, "minimum"), *high = json_object_get(schema, "maximum");
    const json_t *above = json_object_get(schema, "exclusiveMinimum");
    const json_t *below = json_object_get(schema, "exclusiveMaximum"), *step = json_object_get(schema, "multipleOf");
    if (low && json_is_true(above) && value <= json_number_value(low)) return false; /* draft 4 */
    if (high && json_is_true(below) && value >= json_number_value(high)) return false;
    return !(low && value < json_number_value(low)) && !(high && value > json_number_value(high)) &&
           !(json_is_number(above) && value <= json_number_value(above)) &&
           !(json_is_number(below) && value >= json_number_value(below)) &&
           !(step && fmod(value, json_number_value(step)) != 0);
}

static bool string_fits(merger *m, const json_t *schema, const json_t *value)
{
    const char *text = json_string_value(value);
    const json_t *least = json_object_get(schema, "minLength"), *most = json_object_get(schema, "maxLength");
    const json_t *pattern = json_object_get(schema, "pattern");
    json_int_t length = 0;
    size_t i;
    json_t *one;
    for (const char *c = text; *c; c++) length += ((unsigned char)*c & 0xC0) != 0x80;
    if ((least && length < json_number_value(least)) || (most && length > json_number_value(most))) return false;
    if (json_is_string(pattern)) return merge_found(m, json_string_value(pattern), text);
    json_array_foreach((json_t *)pattern, i, one) if (!merge_found(m, json_string_value(one), text)) return false;
    return true;
}

bool merge_item_fits(merger *m, const json_t *schema, const json_t *value)
{
    const json_t *type = json_object_get(schema, "type"), *only = json_object_get(schema, "const");
    if (!build_work(m->b, 8 + json_array_size(type)) || !type_fits(type, value)) return false;
    if (only && !same(only, value)) return false;
    if (json_is_number(value)) return number_fits(schema, json_number_value(value));
    return !json_is_string(value) || string_fits(m, schema, value);
}

bool merge_fits(merger *m, const json_t *schema, const json_t *value)
{
    const json_t *list = json_object_get(schema, "enum");
    return merge_item_fits(m, schema, value) && (!list || listed(m, list, value));
}

static bool above(const json_t *schema, const char *low, const char *high, bool or_equal)
{
    const json_t *a = json_object_get(schema, low), *b = json_object_get(schema, high);
    if (!json_is_number(a) || !json_is_number(b)) return false;
    return or_equal ? json_number_value(a) >= json_number_value(b) : json_number_value(a) > json_number_value(b);
}

static bool alternatives_are_nothing(merger *m, const json_t *list, int depth)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)list, i, one) if (!merge_nothing(m, one, depth)) return false;
    return list != NULL;
}

bool merge_nothing(merger *m, const json_t *schema, int depth)
{
    size_t i;
    json_t *value;
    if (json_is_false(schema)) return true;
    if (!json_is_object(schema) || depth > 8 || !build_work(m->b, 16)) return false;
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum");
    const json_t *only = json_object_get(schema, "const");
    if (json_is_array(type) && json_array_size(type) == 0) return true;
    if (only && !merge_fits(m, schema, only)) return true;
    if (list) {
        bool any = false;
        json_array_foreach((json_t *)list, i, value) any = any || merge_item_fits(m, schema, value);
        if (!any) return true;
    }
    if (json_is_string(type) && strcmp(json_string_value(type), "object") == 0) {
        const json_t *properties = json_object_get(schema, "properties");
        json_array_foreach(json_object_get(schema, "required"), i, value)
        {
            const json_t *one = json_object_get(properties, json_string_value(value) ? json_string_value(value) : "");
            if (!one && !json_object_get(schema, "patternProperties"))
                one = json_object_get(schema, "additionalProperties");
            if (one && merge_nothing(m, one, depth + 1)) return true;
        }
    }
    if (json_is_string(type) &&
        (above(schema, "minimum", "maximum", false) || above(schema, "exclusiveMinimum", "maximum", true) ||
         above(schema, "minimum", "exclusiveMaximum", true) ||
         above(schema, "exclusiveMinimum", "exclusiveMaximum", true) ||
         above(schema, "minLength", "maxLength", false) || above(schema, "minItems", "maxItems", false)))
        return true;
    return alternatives_are_nothing(m, json_object_get(schema, "anyOf"), depth + 1);
}
