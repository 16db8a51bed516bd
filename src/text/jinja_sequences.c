/* Filters of sequences: choosing, ordering, joining. What is a generator in Python is one here. */
#include "text/jinja_parts.h"

#include <string.h>

static bool make_list(jinja_run *r, size_t count, jinja_style style, jinja_value *out)
{
    return jinja_list_make(r, count, style, out);
}

static void put(const jinja_value *list, const jinja_value *item)
{
    list->list->items[list->list->count++] = *item;
}

/* ---- Attributes by path ---------------------------------------------------------------------------------------- */

/* "a.b.0" of an item, or a position. Undefined on the way stays undefined only when `missing` replaces it. */
static bool by_path(jinja_run *r, const jinja_value *item, const jinja_value *path, const jinja_value *missing,
                    jinja_value *out)
{
    *out = *item;
    if (jinja_is_whole(path)) return jinja_item(r, item, path, out);
    if (path->type != JINJA_STRING) return jinja_fail(r, HY_BAD_INPUT, "an attribute is named by a string or a number");
    const char *at = path->text, *end = at + path->length;
    while (at <= end) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        const char *stop = dot ? dot : end;
        jinja_value key, part;
        int64_t number = 0;
        bool digits = stop > at && stop - at < 18;
        for (const char *c = at; c < stop; c++) {
            digits = digits && *c >= '0' && *c <= '9';
            if (digits) number = number * 10 + (*c - '0');
        }
        if (!jinja_copy(r, at, (size_t)(stop - at), &part)) return false;
        key = digits ? jinja_int(number) : part;
        if (!jinja_item(r, out, &key, out)) return false;
        if (missing && missing->type && out->type == JINJA_UNDEFINED) *out = *missing;
        at = stop + 1;
    }
    return true;
}

/* What items are compared by: an attribute, without regard to case unless asked. */
static bool sort_key(jinja_run *r, const jinja_value *item, const jinja_value *path, bool with_case, jinja_value *out)
{
    *out = *item;
    if (path && path->type && path->type != JINJA_NONE && !by_path(r, item, path, NULL, out)) return false;
    if (with_case || out->type != JINJA_STRING) return true;
    return jinja_change_case(r, out->text, out->length, JINJA_LOWER, out);
}

/* ---- Order ----------------------------------------------------------------------------------------------------- */

/* Stable, by keys; items and keys move together. */
static bool merge_sort(jinja_run *r, jinja_value *items, jinja_value *keys, size_t n, bool backwards)
{
    jinja_value *spare = jinja_take(&r->arena, n, 2 * sizeof *spare), *spare_keys = spare + n;
    if (!spare) return jinja_fail(r, HY_NO_FIT, "out of memory while rendering");
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t middle = low + width < n ? low + width : n, end = low + 2 * width < n ? low + 2 * width : n;
            size_t a = low, b = middle;
            for (size_t to = low; to < end; to++) {
                int order = 0;
                bool both = a < middle && b < end;
                if (both && !jinja_order(r, &keys[a], &keys[b], "<", &order)) return false;
                bool first = both ? (backwards ? order >= 0 : order <= 0) : a < middle;
                size_t from = first ? a++ : b++;
                spare[to] = items[from], spare_keys[to] = keys[from];
            }
        }
        memcpy(items, spare, n * sizeof *items);
        memcpy(keys, spare_keys, n * sizeof *keys);
    }
    return true;
}

/* A new list of items in order; `paths` may hold several attributes with commas. Keys of attributes are tuples, which
 * are compared for equality first: nothing is asked of what is undefined everywhere. */
static bool sort_items(jinja_run *r, const jinja_list *from, const jinja_value *paths, bool with_case, bool backwards,
                       jinja_value *out)
{
    jinja_value keys;
    if (!make_list(r, from->count, JINJA_PLAIN, out) || !make_list(r, from->count, JINJA_PLAIN, &keys)) return false;
    for (size_t i = 0; i < from->count; i++) {
        jinja_value key, part;
        put(out, &from->items[i]);
        if (!paths || paths->type != JINJA_STRING) {
            if (!sort_key(r, &from->items[i], paths, with_case, &key)) return false;
            put(&keys, &key);
            continue;
        }
        if (!make_list(r, paths->length + 1, JINJA_TUPLE, &key)) return false;
        const char *at = paths->text, *end = at + paths->length;
        while (at <= end) {
            const char *comma = memchr(at, ',', (size_t)(end - at));
            jinja_value path = jinja_string(at, (size_t)((comma ? comma : end) - at));
            if (!sort_key(r, &from->items[i], &path, with_case, &part)) return false;
            put(&key, &part);
            at = comma ? comma + 1 : end + 1;
        }
        put(&keys, &key);
    }
    return merge_sort(r, out->list->items, keys.list->items, from->count, backwards);
}

static bool filter_sort(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"reverse", "case_sensitive", "attribute"};
    jinja_value slots[3];
    const jinja_list *items;
    return jinja_bind(r, "sort", args, names, 3, 0, slots) && jinja_iterate(r, in, &items) &&
           sort_items(r, items, &slots[2], jinja_truth(&slots[1]), jinja_truth(&slots[0]), out);
}

static bool filter_dictsort(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"case_sensitive", "by", "reverse"};
    jinja_value slots[3], pairs, path = jinja_int(0);
    if (!jinja_bind(r, "dictsort", args, names, 3, 0, slots)) return false;
    if (in->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, in);
    if (in->type != JINJA_DICT)
        return jinja_fail(r, HY_BAD_INPUT, "'%s' object has no attribute 'items'", jinja_type_name(in));
    if (jinja_same(&slots[1], "value"))
        path = jinja_int(1);
    else if (slots[1].type && !jinja_same(&slots[1], "key"))
        return jinja_fail(r, HY_BAD_INPUT, "You can only sort by either \"key\" or \"value\"");
    jinja_args none = {0};
    return jinja_call_method(r, in, "items", &none, &pairs) &&
           sort_items(r, pairs.list, &path, jinja_truth(&slots[0]), jinja_truth(&slots[2]), out);
}

static bool filter_reverse(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    const jinja_list *items;
    if (!jinja_bind(r, "reverse", args, NULL, 0, 0, NULL) || !jinja_iterate(r, in, &items)) return false;
    if (in->type == JINJA_STRING) {
        buffer text = {0};
        for (size_t i = items->count; i--;) buffer_append(&text, items->items[i].text, items->items[i].length);
        return jinja_finish(r, &text, out);
    }
    if (!make_list(r, items->count, JINJA_GENERATOR, out)) return false;
    for (size_t i = items->count; i--;) put(out, &items->items[i]);
    return true;
}

static bool filter_unique(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    jinja_value slots[2], seen, key, nothing = jinja_none();
    const jinja_list *items;
    if (!jinja_bind(r, "unique", args, names, 2, 0, slots) || !jinja_iterate(r, in, &items)) return false;
    if (!make_list(r, items->count, JINJA_GENERATOR, out) || !jinja_dict_make(r, items->count, &seen)) return false;
    for (size_t i = 0; i < items->count; i++) {
        const jinja_value *found;
        if (!sort_key(r, &items->items[i], &slots[1], jinja_truth(&slots[0]), &key)) return false;
        if (!jinja_dict_find(r, seen.dict, &key, &found)) return false;
        if (found) continue;
        if (!jinja_dict_put(r, seen.dict, &key, &nothing)) return false;
        put(out, &items->items[i]);
    }
    return true;
}

static bool extreme(jinja_run *r, const jinja_value *in, const jinja_args *args, bool largest, jinja_value *out)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    static const char empty[] = "No aggregated item, sequence was empty.";
    jinja_value slots[2], best, key;
    const jinja_list *items;
    if (!jinja_bind(r, largest ? "max" : "min", args, names, 2, 0, slots) || !jinja_iterate(r, in, &items))
        return false;
    *out = jinja_undefined(JINJA_SAID, JINJA_NONE, empty, sizeof empty - 1);
    for (size_t i = 0; i < items->count; i++) {
        int order = 0;
        if (!sort_key(r, &items->items[i], &slots[1], jinja_truth(&slots[0]), &key)) return false;
        if (i && !jinja_order(r, &key, &best, largest ? ">" : "<", &order)) return false;
        if (i && (largest ? order <= 0 : order >= 0)) continue;
        best = key, *out = items->items[i];
    }
    return true;
}

static bool filter_max(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return extreme(r, in, args, true, out);
}

static bool filter_min(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return extreme(r, in, args, false, out);
}

/* ---- Choosing and changing ------------------------------------------------------------------------------------- */

/* Arguments behind the first `skip`. */
static jinja_args rest_of(const jinja_args *args, size_t skip)
{
    skip = skip < args->positional ? skip : args->positional;
    return (jinja_args){.at = args->at + skip, .count = args->count - skip, .positional = args->positional - skip};
}

/* The test named by the argument at `at`; NULL: there is no such argument, an item's truth counts. */
static bool named_test(jinja_run *r, const jinja_args *args, size_t at, const jinja_test **test)
{
    jinja_value name;
    *test = NULL;
    if (args->positional <= at) return true;
    if (!jinja_want_string(r, &args->at[at].value, "the name of a test", &name)) return false;
    if (!jinja_copy(r, name.text, name.length, &name)) return false;
    *test = jinja_find_test(name.text);
    return *test || jinja_fail(r, HY_BAD_INPUT, "No test named '%.60s'.", name.text);
}

static bool choose(jinja_run *r, const jinja_value *in, const jinja_args *args, bool keep, bool attribute,
                   jinja_value *out)
{
    const jinja_list *items;
    const jinja_test *test;
    if (attribute && !args->positional) return jinja_fail(r, HY_BAD_INPUT, "Missing parameter for attribute name");
    if (!named_test(r, args, attribute, &test)) return false;
    jinja_args rest = args->count ? rest_of(args, attribute + 1u) : (jinja_args){0};
    if (!jinja_truth(in)) return make_list(r, 0, JINJA_GENERATOR, out);
    if (!jinja_iterate(r, in, &items) || !make_list(r, items->count, JINJA_GENERATOR, out)) return false;
    for (size_t i = 0; i < items->count; i++) {
        jinja_value of = items->items[i];
        if (attribute && !by_path(r, &items->items[i], &args->at[0].value, NULL, &of)) return false;
        bool yes = jinja_truth(&of);
        if (test && !test->run(r, &of, &rest, &yes)) return false;
        if (yes == keep) put(out, &items->items[i]);
    }
    return jinja_work(r, items->count);
}

static bool filter_select(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return choose(r, in, args, true, false, out);
}

static bool filter_reject(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return choose(r, in, args, false, false, out);
}

static bool filter_selectattr(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return choose(r, in, args, true, true, out);
}

static bool filter_rejectattr(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return choose(r, in, args, false, true, out);
}

static bool map_attributes(jinja_run *r, const jinja_list *items, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"attribute", "default"};
    jinja_value slots[2], value;
    if (!jinja_bind(r, "map", args, names, 2, 1, slots)) return false;
    for (size_t i = 0; i < items->count; i++) {
        if (!by_path(r, &items->items[i], &slots[0], &slots[1], &value)) return false;
        put(out, &value);
    }
    return true;
}

static bool filter_map(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    const jinja_list *items;
    jinja_value name, value;
    if (!jinja_truth(in)) return make_list(r, 0, JINJA_GENERATOR, out);
    if (!jinja_iterate(r, in, &items) || !make_list(r, items->count, JINJA_GENERATOR, out)) return false;
    if (!args->positional) return map_attributes(r, items, args, out);
    if (!jinja_want_string(r, &args->at[0].value, "the name of a filter", &name)) return false;
    if (!jinja_copy(r, name.text, name.length, &name)) return false;
    const jinja_filter *filter = jinja_find_filter(name.text);
    if (!filter) return jinja_fail(r, HY_BAD_INPUT, "No filter named '%.60s'.", name.text);
    jinja_args rest = rest_of(args, 1);
    if (!jinja_enter(r)) return false; /* map('map', 'map', ...) */
    for (size_t i = 0; i < items->count; i++) {
        if (!jinja_work(r, 1) || !filter->run(r, &items->items[i], &rest, &value)) return false;
        put(out, &value);
    }
    r->level--;
    return true;
}

/* ---- Parts of a sequence --------------------------------------------------------------------------------------- */

static bool edge(jinja_run *r, const jinja_value *in, const jinja_args *args, bool last, jinja_value *out)
{
    static const char none[] = "the sequence was empty.";
    const jinja_list *items;
    if (!jinja_bind(r, last ? "last" : "first", args, NULL, 0, 0, NULL) || !jinja_iterate(r, in, &items)) return false;
    if (items->count)
        *out = items->items[last ? items->count - 1 : 0];
    else
        *out = jinja_undefined(JINJA_SAID, JINJA_NONE, none, sizeof none - 1);
    return true;
}

static bool filter_first(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return edge(r, in, args, false, out);
}

static bool filter_last(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    return edge(r, in, args, true, out);
}

static bool filter_list(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    const jinja_list *items;
    if (!jinja_bind(r, "list", args, NULL, 0, 0, NULL) || !jinja_iterate(r, in, &items)) return false;
    if (!make_list(r, 0, JINJA_PLAIN, out)) return false;
    out->list->items = items->items, out->list->count = items->count; /* what cannot change can be shared */
    return true;
}

static bool filter_length(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    size_t n;
    if (!jinja_bind(r, "length", args, NULL, 0, 0, NULL) || !jinja_length(r, in, &n)) return false;
    *out = jinja_int((int64_t)n);
    return true;
}

static bool filter_items(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    if (!jinja_bind(r, "items", args, NULL, 0, 0, NULL)) return false;
    if (in->type == JINJA_UNDEFINED) return make_list(r, 0, JINJA_GENERATOR, out);
    if (in->type != JINJA_DICT) return jinja_fail(r, HY_BAD_INPUT, "Can only get item pairs from a mapping.");
    jinja_args none = {0};
    if (!jinja_call_method(r, in, "items", &none, out)) return false;
    out->list->style = JINJA_GENERATOR;
    return true;
}

static bool filter_join(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"d", "attribute"};
    jinja_value slots[2], item;
    const jinja_list *items;
    buffer text = {0};
    if (!jinja_bind(r, "join", args, names, 2, 0, slots) || !jinja_iterate(r, in, &items)) return false;
    if (!slots[0].type) slots[0] = jinja_string("", 0);
    bool ok = jinja_text(r, &slots[0], &slots[0]), by = slots[1].type && slots[1].type != JINJA_NONE;
    for (size_t i = 0; ok && i < items->count; i++) {
        item = items->items[i];
        if (i) buffer_append(&text, slots[0].text, slots[0].length);
        ok = (!by || by_path(r, &items->items[i], &slots[1], NULL, &item)) && jinja_print(r, &item, &text) &&
             jinja_work(r, 1 + slots[0].length / 16);
        if (ok && text.length > r->output_limit)
            ok = jinja_fail(r, HY_NO_FIT, "a join makes more than the limit of %zu bytes", r->output_limit);
    }
    if (ok) return jinja_finish(r, &text, out);
    buffer_free(&text);
    return false;
}

static bool filter_sum(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"attribute", "start"};
    jinja_value slots[2], item;
    const jinja_list *items;
    if (!jinja_bind(r, "sum", args, names, 2, 0, slots) || !jinja_iterate(r, in, &items)) return false;
    bool by = slots[0].type && slots[0].type != JINJA_NONE;
    *out = slots[1].type ? slots[1] : jinja_int(0);
    for (size_t i = 0; i < items->count; i++) {
        item = items->items[i];
        if (by && !by_path(r, &items->items[i], &slots[0], NULL, &item)) return false;
        if (!jinja_is_number(&item) || !jinja_is_number(out)) {
            if (item.type == JINJA_UNDEFINED) return jinja_fail_undefined(r, &item);
            return jinja_fail(r, HY_BAD_INPUT, "unsupported operand type(s) for +: '%s' and '%s'", jinja_type_name(out),
                              jinja_type_name(&item));
        }
        int64_t whole;
        if (!jinja_is_whole(&item) || !jinja_is_whole(out))
            *out = jinja_float(jinja_real(out) + jinja_real(&item));
        else if (__builtin_add_overflow(jinja_whole(out), jinja_whole(&item), &whole))
            return jinja_fail(r, HY_BAD_INPUT, "a whole number is outside of 64 bits");
        else
            *out = jinja_int(whole);
    }
    return true;
}

/* Lists of `size` items each; the last one is filled up when there is something to fill it with. */
static bool filter_batch(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"linecount", "fill_with"};
    jinja_value slots[2], part;
    const jinja_list *items;
    int64_t size;
    if (!jinja_bind(r, "batch", args, names, 2, 1, slots) || !jinja_want_int(r, &slots[0], 1, &size)) return false;
    if (!jinja_iterate(r, in, &items)) return false;
    if (size < 1 || size > 100000) return jinja_fail(r, HY_BAD_INPUT, "batch: a size of 1 to 100000 is wanted");
    size_t n = (size_t)size;
    if (!make_list(r, items->count / n + 1, JINJA_GENERATOR, out)) return false;
    for (size_t at = 0; at < items->count; at += n) {
        bool fill = slots[1].type && slots[1].type != JINJA_NONE;
        size_t there = items->count - at < n ? items->count - at : n;
        if (!make_list(r, fill ? n : there, JINJA_PLAIN, &part)) return false;
        for (size_t i = 0; i < there; i++) put(&part, &items->items[at + i]);
        for (size_t i = there; fill && i < n; i++) put(&part, &slots[1]);
        put(out, &part);
    }
    return true;
}

/* A number of lists, the first ones longer by one. */
static bool filter_slice(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"slices", "fill_with"};
    jinja_value slots[2], part;
    const jinja_list *items;
    int64_t slices;
    if (!jinja_bind(r, "slice", args, names, 2, 1, slots) || !jinja_want_int(r, &slots[0], 1, &slices)) return false;
    if (!jinja_iterate(r, in, &items)) return false;
    if (slices < 1 || slices > 100000) return jinja_fail(r, HY_BAD_INPUT, "slice: 1 to 100000 slices are wanted");
    size_t n = (size_t)slices, each = items->count / n, longer = items->count % n, at = 0;
    if (!make_list(r, n, JINJA_GENERATOR, out)) return false;
    for (size_t i = 0; i < n; i++) {
        if (!make_list(r, each + 1, JINJA_PLAIN, &part)) return false;
        for (size_t k = 0; k < each + (i < longer); k++) put(&part, &items->items[at++]);
        if (i >= longer && slots[1].type && slots[1].type != JINJA_NONE) put(&part, &slots[1]);
        put(out, &part);
    }
    return jinja_work(r, n);
}

const jinja_filter jinja_sequence_filters[] = {
    {"batch", filter_batch},
    {"count", filter_length},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"reverse", filter_reverse},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
    {NULL, NULL},
};
