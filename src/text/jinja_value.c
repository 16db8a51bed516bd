/* Memory and values of the template language: truth, equality, order, length and membership by Python's rules. */
#define _GNU_SOURCE /* memmem */
#include "text/jinja_parts.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 << 10, LEVELS = 1500, INDEXED = 12 };

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

struct jinja_chunk {
    jinja_chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void *jinja_take(jinja_arena *arena, size_t count, size_t size)
{
    size_t need, rounded;
    if (!size_mul(count, size, &need) || !size_add(need, 15, &rounded)) return NULL;
    need = rounded & ~(size_t)15;
    if (need > arena->limit || arena->taken > arena->limit - need) return NULL;
    jinja_chunk *c = arena->first;
    if (!c || c->size - c->used < need) {
        bool own = need > CHUNK_BYTES / 4; /* large pieces do not end a chunk */
        size_t bytes = own ? need : CHUNK_BYTES;
        jinja_chunk *made = malloc(sizeof *made + bytes);
        if (!made) return NULL;
        *made = (jinja_chunk){.size = bytes};
        if (own && c)
            made->next = c->next, c->next = made;
        else
            made->next = c, arena->first = made;
        c = made;
    }
    void *p = c->data + c->used;
    c->used += need;
    arena->taken += need;
    return p;
}

void jinja_arena_free(jinja_arena *arena)
{
    for (jinja_chunk *c = arena->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    *arena = (jinja_arena){0};
}

/* ---- Failing --------------------------------------------------------------------------------------------------- */

bool jinja_fail(jinja_run *r, hy_status status, const char *format, ...)
{
    if (r->status) return false;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    utf8_one_line(text, ' ');
    r->status = error_set(r->err, status, "%s:%d: %s", r->t->name, r->line, text);
    return false;
}

static bool fail_memory(jinja_run *r)
{
    return jinja_fail(r, HY_NO_FIT, "the values of the template take more memory than the limit of %zu bytes",
                      r->arena.limit);
}

bool jinja_work(jinja_run *r, size_t steps)
{
    if (steps < r->steps) {
        r->steps -= steps;
        return true;
    }
    r->steps = 0;
    return jinja_fail(r, HY_NO_FIT, "the template takes more steps than the limit");
}

bool jinja_enter(jinja_run *r)
{
    if (++r->level <= LEVELS) return true;
    return jinja_fail(r, HY_NO_FIT, "values or calls are nested deeper than %d levels", LEVELS);
}

bool jinja_check_output(jinja_run *r)
{
    if (!buffer_ok(r->out)) return jinja_fail(r, HY_NO_FIT, "out of memory while rendering");
    return r->out->length <= r->output_limit ||
           jinja_fail(r, HY_NO_FIT, "the template writes more than the limit of %zu bytes", r->output_limit);
}

bool jinja_fail_undefined(jinja_run *r, const jinja_value *v)
{
    int n = v->length < 100 ? (int)v->length : 100;
    const char *name = v->text ? v->text : "";
    jinja_value of = {.type = v->of};
    switch (v->why) {
    case JINJA_NO_NAME: return jinja_fail(r, HY_BAD_INPUT, "'%.*s' is undefined", n, name);
    case JINJA_NO_ATTRIBUTE:
        if (v->of == JINJA_NONE) return jinja_fail(r, HY_BAD_INPUT, "'None' has no attribute '%.*s'", n, name);
        return jinja_fail(r, HY_BAD_INPUT, "'%s object' has no attribute '%.*s'", jinja_type_name(&of), n, name);
    case JINJA_NO_ELEMENT:
        if (v->of == JINJA_NONE) return jinja_fail(r, HY_BAD_INPUT, "None has no element %.*s", n, name);
        return jinja_fail(r, HY_BAD_INPUT, "%s object has no element %.*s", jinja_type_name(&of), n, name);
    case JINJA_NOT_GIVEN: return jinja_fail(r, HY_BAD_INPUT, "parameter '%.*s' was not provided", n, name);
    case JINJA_UNSAFE:
        return jinja_fail(r, HY_BAD_INPUT, "access to attribute '%.*s' of '%s' object is unsafe", n, name,
                          jinja_type_name(&of));
    default: return jinja_fail(r, HY_BAD_INPUT, "%.*s", n, name);
    }
}

/* ---- Making ---------------------------------------------------------------------------------------------------- */

jinja_value jinja_none(void)
{
    return (jinja_value){.type = JINJA_NONE};
}

jinja_value jinja_bool(bool truth)
{
    return (jinja_value){.type = JINJA_BOOL, .truth = truth};
}

jinja_value jinja_int(int64_t i)
{
    return (jinja_value){.type = JINJA_INT, .integer = i};
}

jinja_value jinja_float(double d)
{
    return (jinja_value){.type = JINJA_FLOAT, .real = d};
}

jinja_value jinja_string(const char *text, size_t length)
{
    return (jinja_value){.type = JINJA_STRING, .text = text, .length = length};
}

jinja_value jinja_literal(const char *text)
{
    return jinja_string(text, strlen(text));
}

jinja_value jinja_undefined(jinja_why why, jinja_type of, const char *name, size_t length)
{
    return (jinja_value){
        .type = JINJA_UNDEFINED, .why = (uint8_t)why, .of = (uint8_t)of, .text = name, .length = length};
}

bool jinja_copy(jinja_run *r, const char *text, size_t length, jinja_value *out)
{
    char *kept = jinja_take(&r->arena, length + 1, 1);
    if (!kept) return fail_memory(r);
    if (length) memcpy(kept, text, length);
    kept[length] = 0;
    *out = jinja_string(kept, length);
    return jinja_work(r, length / 16);
}

bool jinja_finish(jinja_run *r, buffer *b, jinja_value *out)
{
    bool ok = buffer_ok(b) ? jinja_copy(r, b->data ? b->data : "", b->length, out) : fail_memory(r);
    buffer_free(b);
    return ok;
}

bool jinja_list_make(jinja_run *r, size_t capacity, jinja_style style, jinja_value *out)
{
    jinja_list *l = jinja_take(&r->arena, 1, sizeof *l);
    jinja_value *items = l ? jinja_take(&r->arena, capacity, sizeof *items) : NULL;
    if (!items) return fail_memory(r);
    *l = (jinja_list){.items = items, .style = style};
    *out = (jinja_value){.type = JINJA_LIST, .list = l};
    return true;
}

bool jinja_dict_make(jinja_run *r, size_t capacity, jinja_value *out)
{
    jinja_dict *d = jinja_take(&r->arena, 1, sizeof *d);
    jinja_value *both = d ? jinja_take(&r->arena, capacity, 2 * sizeof *both) : NULL;
    if (!both) return fail_memory(r);
    *d = (jinja_dict){.keys = both, .values = both + capacity, .capacity = capacity};
    *out = (jinja_value){.type = JINJA_DICT, .dict = d};
    return true;
}

static size_t hash(const char *s, size_t length)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < length; i++) h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return (size_t)(h ^ h >> 29);
}

/* Whoever chooses the keys can make them fall together: what that costs counts as work. */
static bool index_key(jinja_run *r, jinja_dict *d, size_t i)
{
    size_t at = hash(d->keys[i].text, d->keys[i].length) & (d->index_size - 1), passed = 0;
    for (; d->index[at]; passed++) at = (at + 1) & (d->index_size - 1);
    d->index[at] = (uint32_t)i + 1;
    return jinja_work(r, passed / 4);
}

/* An index by string keys, made when a large dict is first asked. Dicts that grow are asked by position until then. */
static bool make_index(jinja_run *r, jinja_dict *d)
{
    size_t size = 32;
    while (size < d->capacity * 2) size *= 2;
    if (!(d->index = jinja_take(&r->arena, size, sizeof *d->index))) return fail_memory(r);
    memset(d->index, 0, size * sizeof *d->index);
    d->index_size = size;
    for (size_t i = 0; i < d->count; i++) {
        if (d->keys[i].type != JINJA_STRING) continue;
        if (!index_key(r, d, i)) return false;
    }
    return jinja_work(r, d->count);
}

static bool same_string(const jinja_value *a, const jinja_value *b)
{
    return a->length == b->length && (a->text == b->text || memcmp(a->text, b->text, a->length) == 0);
}

bool jinja_dict_find(jinja_run *r, jinja_dict *d, const jinja_value *key, const jinja_value **found)
{
    *found = NULL;
    bool text = key->type == JINJA_STRING;
    if (text && d->count > INDEXED) {
        if (!d->index && !make_index(r, d)) return false;
        size_t passed = 0;
        for (size_t at = hash(key->text, key->length) & (d->index_size - 1); d->index[at];
             at = (at + 1) & (d->index_size - 1), passed++)
            if (same_string(&d->keys[d->index[at] - 1], key)) {
                *found = &d->values[d->index[at] - 1];
                break;
            }
        return jinja_work(r, passed / 4);
    }
    for (size_t i = 0; i < d->count; i++) {
        bool equal = false;
        if (text && d->keys[i].type == JINJA_STRING)
            equal = same_string(&d->keys[i], key);
        else if (!text && !jinja_equal(r, &d->keys[i], key, &equal))
            return false;
        if (equal) {
            *found = &d->values[i];
            return true;
        }
    }
    return jinja_work(r, d->count / 4);
}

static bool grow_dict(jinja_run *r, jinja_dict *d)
{
    jinja_value bigger = {0};
    if (!jinja_dict_make(r, d->capacity * 2 + 8, &bigger)) return false;
    jinja_dict *to = bigger.dict;
    if (d->count) {
        memcpy(to->keys, d->keys, d->count * sizeof *to->keys);
        memcpy(to->values, d->values, d->count * sizeof *to->values);
    }
    d->keys = to->keys, d->values = to->values, d->capacity = to->capacity;
    d->index = NULL;
    return true;
}

bool jinja_dict_put(jinja_run *r, jinja_dict *d, const jinja_value *key, const jinja_value *value)
{
    const jinja_value *found;
    if (key->type == JINJA_DICT || (key->type == JINJA_LIST && key->list->style == JINJA_PLAIN))
        return jinja_fail(r, HY_BAD_INPUT, "unhashable type: '%s'", jinja_type_name(key));
    if (!jinja_dict_find(r, d, key, &found)) return false;
    if (found) {
        d->values[found - d->values] = *value;
        return true;
    }
    if (d->count == d->capacity && !grow_dict(r, d)) return false;
    d->keys[d->count] = *key;
    d->values[d->count] = *value;
    size_t i = d->count++;
    return !d->index || key->type != JINJA_STRING || index_key(r, d, i);
}

static bool from_container(jinja_run *r, const json_t *json, jinja_value *out)
{
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_array(json)) {
        if (!jinja_list_make(r, json_array_size(json), JINJA_PLAIN, out)) return false;
        json_array_foreach(json, i, item)
        {
            if (!jinja_from_json(r, item, &out->list->items[out->list->count++])) return false;
        }
        return true;
    }
    if (!jinja_dict_make(r, json_object_size(json), out)) return false;
    json_object_foreach((json_t *)json, key, item)
    {
        jinja_dict *d = out->dict;
        d->keys[d->count] = jinja_literal(key);
        if (!jinja_from_json(r, item, &d->values[d->count])) return false;
        d->count++;
    }
    return true;
}

bool jinja_from_json(jinja_run *r, const json_t *json, jinja_value *out)
{
    if (!jinja_enter(r) || !jinja_work(r, 1)) return false;
    bool ok = true;
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_OBJECT:
    case JSON_ARRAY: ok = from_container(r, json, out); break;
    case JSON_STRING: *out = jinja_string(json_string_value(json), json_string_length(json)); break;
    case JSON_INTEGER: *out = jinja_int(json_integer_value(json)); break;
    case JSON_REAL: *out = jinja_float(json_real_value(json)); break;
    case JSON_TRUE: *out = jinja_bool(true); break;
    case JSON_FALSE: *out = jinja_bool(false); break;
    default: *out = jinja_none(); break;
    }
    r->level--;
    return ok;
}

/* ---- Looking --------------------------------------------------------------------------------------------------- */

const char *jinja_type_name(const jinja_value *v)
{
    static const char *const lists[] = {"list",        "tuple",      "generator", "dict_keys",
                                        "dict_values", "dict_items", "range"};
    switch (v->type) {
    case JINJA_NONE: return "NoneType";
    case JINJA_BOOL: return "bool";
    case JINJA_INT: return "int";
    case JINJA_FLOAT: return "float";
    case JINJA_STRING: return "str";
    case JINJA_LIST: return v->list ? lists[v->list->style] : "list";
    case JINJA_DICT: return "dict";
    case JINJA_NAMESPACE: return "Namespace";
    case JINJA_MACRO: return "Macro";
    case JINJA_LOOP: return "LoopContext";
    case JINJA_FUNCTION: return "function";
    case JINJA_METHOD: return "builtin_function_or_method";
    default: return "Undefined";
    }
}

bool jinja_truth(const jinja_value *v)
{
    switch (v->type) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE: return false;
    case JINJA_BOOL: return v->truth;
    case JINJA_INT: return v->integer != 0;
    case JINJA_FLOAT: return v->real != 0;
    case JINJA_STRING: return v->length != 0;
    case JINJA_LIST: return v->list->style == JINJA_GENERATOR || v->list->count;
    case JINJA_DICT: return v->dict->count != 0;
    default: return true;
    }
}

bool jinja_is_whole(const jinja_value *v)
{
    return v->type == JINJA_INT || v->type == JINJA_BOOL;
}

bool jinja_is_number(const jinja_value *v)
{
    return jinja_is_whole(v) || v->type == JINJA_FLOAT;
}

int64_t jinja_whole(const jinja_value *v)
{
    return v->type == JINJA_BOOL ? v->truth : v->integer;
}

double jinja_real(const jinja_value *v)
{
    return v->type == JINJA_FLOAT ? v->real : (double)jinja_whole(v);
}

bool jinja_is_plain_list(const jinja_value *v)
{
    return v->type == JINJA_LIST &&
           (v->list->style == JINJA_PLAIN || v->list->style == JINJA_TUPLE || v->list->style == JINJA_RANGE);
}

bool jinja_same(const jinja_value *v, const char *text)
{
    return v->type == JINJA_STRING && v->length == strlen(text) && memcmp(v->text, text, v->length) == 0;
}

static bool equal_lists(jinja_run *r, const jinja_list *a, const jinja_list *b, bool *out)
{
    bool views = a->style == JINJA_GENERATOR || a->style == JINJA_VALUES;
    *out = a == b || (!views && a->style == b->style && a->count == b->count);
    if (a == b) return true;
    for (size_t i = 0; *out && i < a->count; i++)
        if (!jinja_equal(r, &a->items[i], &b->items[i], out)) return false;
    return true;
}

static bool equal_dicts(jinja_run *r, jinja_dict *a, jinja_dict *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && a != b && i < a->count; i++) {
        const jinja_value *found;
        if (!jinja_dict_find(r, b, &a->keys[i], &found)) return false;
        *out = found != NULL;
        if (found && !jinja_equal(r, &a->values[i], found, out)) return false;
    }
    return true;
}

static int compare_numbers(const jinja_value *a, const jinja_value *b)
{
    if (jinja_is_whole(a) && jinja_is_whole(b))
        return (jinja_whole(a) > jinja_whole(b)) - (jinja_whole(a) < jinja_whole(b));
    double x = jinja_real(a), y = jinja_real(b);
    return (x > y) - (x < y);
}

bool jinja_equal(jinja_run *r, const jinja_value *a, const jinja_value *b, bool *out)
{
    if (!jinja_enter(r) || !jinja_work(r, 1)) return false;
    bool ok = true;
    *out = false;
    if (jinja_is_number(a) && jinja_is_number(b))
        *out = compare_numbers(a, b) == 0 && !isnan(jinja_real(a)) && !isnan(jinja_real(b));
    else if (a->type != b->type)
        *out = false;
    else if (a->type == JINJA_STRING)
        *out = same_string(a, b) && jinja_work(r, a->length / 64);
    else if (a->type == JINJA_LIST)
        ok = equal_lists(r, a->list, b->list, out);
    else if (a->type == JINJA_DICT)
        ok = equal_dicts(r, a->dict, b->dict, out);
    else if (a->type == JINJA_NONE || a->type == JINJA_UNDEFINED)
        *out = true;
    else
        *out = a->text == b->text;
    r->level--;
    return ok;
}

static int compare_strings(const jinja_value *a, const jinja_value *b)
{
    size_t n = a->length < b->length ? a->length : b->length;
    int order = n ? memcmp(a->text, b->text, n) : 0;
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

static bool order_lists(jinja_run *r, const jinja_list *a, const jinja_list *b, const char *op, int *out)
{
    size_t n = a->count < b->count ? a->count : b->count;
    for (size_t i = 0; i < n; i++) {
        bool equal;
        if (!jinja_equal(r, &a->items[i], &b->items[i], &equal)) return false;
        if (!equal) return jinja_order(r, &a->items[i], &b->items[i], op, out);
    }
    *out = (a->count > b->count) - (a->count < b->count);
    return true;
}

bool jinja_order(jinja_run *r, const jinja_value *a, const jinja_value *b, const char *op, int *out)
{
    bool ok = true;
    if (!jinja_enter(r) || !jinja_work(r, 1)) return false;
    if (jinja_is_number(a) && jinja_is_number(b))
        *out = compare_numbers(a, b);
    else if (a->type == JINJA_STRING && b->type == JINJA_STRING)
        *out = compare_strings(a, b);
    else if (jinja_is_plain_list(a) && jinja_is_plain_list(b) && a->list->style == b->list->style)
        ok = order_lists(r, a->list, b->list, op, out);
    else if (a->type == JINJA_UNDEFINED || b->type == JINJA_UNDEFINED)
        ok = jinja_fail_undefined(r, a->type == JINJA_UNDEFINED ? a : b);
    else
        ok = jinja_fail(r, HY_BAD_INPUT, "'%s' not supported between instances of '%s' and '%s'", op,
                        jinja_type_name(a), jinja_type_name(b));
    r->level--;
    return ok;
}

static bool contains_text(jinja_run *r, const jinja_value *in, const jinja_value *what, bool *out)
{
    if (what->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, what);
    if (what->type != JINJA_STRING)
        return jinja_fail(r, HY_BAD_INPUT, "'in <string>' requires string as left operand, not %s",
                          jinja_type_name(what));
    *out = !what->length || memmem(in->text, in->length, what->text, what->length) != NULL;
    return jinja_work(r, in->length / 16);
}

bool jinja_contains(jinja_run *r, const jinja_value *in, const jinja_value *what, bool *out)
{
    *out = false;
    if (in->type == JINJA_STRING) return contains_text(r, in, what, out);
    if (in->type == JINJA_UNDEFINED) return true;
    if (in->type == JINJA_DICT) {
        const jinja_value *found;
        if (!jinja_dict_find(r, in->dict, what, &found)) return false;
        *out = found != NULL;
        return true;
    }
    if (in->type != JINJA_LIST)
        return jinja_fail(r, HY_BAD_INPUT, "argument of type '%s' is not iterable", jinja_type_name(in));
    const jinja_list *l;
    if (!jinja_iterate(r, in, &l)) return false;
    for (size_t i = 0; !*out && i < l->count; i++)
        if (!jinja_equal(r, &l->items[i], what, out)) return false;
    return true;
}

bool jinja_compare(jinja_run *r, jinja_op op, const jinja_value *a, const jinja_value *b, bool *out)
{
    static const char *const texts[] = {[JINJA_LT] = "<", [JINJA_LE] = "<=", [JINJA_GT] = ">", [JINJA_GE] = ">="};
    bool ok, yes;
    int order;
    switch (op) {
    case JINJA_EQ: return jinja_equal(r, a, b, out);
    case JINJA_NE: ok = jinja_equal(r, a, b, &yes); break;
    case JINJA_IN: return jinja_contains(r, b, a, out);
    case JINJA_NOT_IN: ok = jinja_contains(r, b, a, &yes); break;
    default:
        if (!jinja_order(r, a, b, texts[op], &order)) return false;
        *out = op == JINJA_LT ? order < 0 : op == JINJA_LE ? order <= 0 : op == JINJA_GT ? order > 0 : order >= 0;
        if (jinja_is_number(a) && jinja_is_number(b) && (isnan(jinja_real(a)) || isnan(jinja_real(b)))) *out = false;
        return true;
    }
    if (ok) *out = !yes;
    return ok;
}

/* ---- Walking --------------------------------------------------------------------------------------------------- */

static bool characters_of(jinja_run *r, const jinja_value *v, jinja_value *out)
{
    if (!jinja_list_make(r, jinja_characters(v->text, v->length), JINJA_PLAIN, out)) return false;
    for (size_t at = 0, n; at < v->length; at += n) {
        n = jinja_character_bytes(v->text + at, v->length - at);
        out->list->items[out->list->count++] = jinja_string(v->text + at, n);
    }
    return jinja_work(r, v->length);
}

bool jinja_iterate(jinja_run *r, const jinja_value *v, const jinja_list **out)
{
    static const jinja_list empty = {0};
    jinja_value made;
    switch (v->type) {
    case JINJA_LIST:
        if (!jinja_work(r, v->list->count)) return false;
        *out = v->list->spent ? &empty : v->list;
        v->list->spent = v->list->style == JINJA_GENERATOR;
        return true;
    case JINJA_DICT:
        if (!jinja_list_make(r, v->dict->count, JINJA_KEYS, &made)) return false;
        if (v->dict->count) memcpy(made.list->items, v->dict->keys, v->dict->count * sizeof *made.list->items);
        made.list->count = v->dict->count;
        break;
    case JINJA_STRING:
        if (!characters_of(r, v, &made)) return false;
        break;
    case JINJA_UNDEFINED: *out = &empty; return true;
    default: return jinja_fail(r, HY_BAD_INPUT, "'%s' object is not iterable", jinja_type_name(v));
    }
    *out = made.list;
    return jinja_work(r, made.list->count);
}

bool jinja_length(jinja_run *r, const jinja_value *v, size_t *out)
{
    *out = 0;
    if (v->type == JINJA_STRING)
        *out = jinja_characters(v->text, v->length);
    else if (v->type == JINJA_DICT)
        *out = v->dict->count;
    else if (v->type == JINJA_LIST && v->list->style != JINJA_GENERATOR)
        *out = v->list->count;
    else if (v->type != JINJA_UNDEFINED)
        return jinja_fail(r, HY_BAD_INPUT, "object of type '%s' has no len()", jinja_type_name(v));
    return jinja_work(r, v->type == JINJA_STRING ? v->length / 16 : 1);
}

/* ---- Characters ------------------------------------------------------------------------------------------------ */

size_t jinja_characters(const char *s, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++) count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

size_t jinja_character_bytes(const char *s, size_t length)
{
    size_t n = length ? 1 : 0;
    while (n && n < length && ((unsigned char)s[n] & 0xC0) == 0x80) n++;
    return n;
}

const char *jinja_at_character(const char *s, size_t length, size_t index)
{
    const char *end = s + length;
    for (; index && s < end; index--) s += jinja_character_bytes(s, (size_t)(end - s));
    return s;
}

bool jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Whether the character of n bytes at s is to be stripped. */
static bool strips(const char *s, size_t n, const jinja_value *chars)
{
    if (chars) return n && memmem(chars->text, chars->length, s, n) != NULL;
    uint32_t code;
    return utf8_decode(s, n, &code) == n && n && jinja_is_space(code);
}

void jinja_strip(const char **s, size_t *length, const jinja_value *chars, bool left, bool right)
{
    for (size_t n; left && *length && strips(*s, n = jinja_character_bytes(*s, *length), chars);) *s += n, *length -= n;
    while (right && *length) {
        size_t n = 1;
        while (n < *length && ((unsigned char)(*s)[*length - n] & 0xC0) == 0x80) n++;
        if (!strips(*s + *length - n, n, chars)) return;
        *length -= n;
    }
}
