/* Expressions: their values. */
#include "text/jinja_parts.h"

#include <math.h>
#include <string.h>

/* ---- Joining strings ------------------------------------------------------------------------------------------- */

enum { ROOM_FROM = 256 }; /* bytes of a joined string that gets room behind it */

static bool join_in_place(jinja_run *r, const jinja_value *parts, size_t count, size_t length, jinja_value *out)
{
    const jinja_value *first = &parts[0];
    jinja_room *room = first->room;
    if (!room || first->text + first->length != room->data + room->used ||
        room->capacity - room->used < length - first->length)
        return false;
    for (size_t i = 1; i < count; i++) {
        if (parts[i].length) memmove(room->data + room->used, parts[i].text, parts[i].length);
        room->used += parts[i].length;
    }
    *out = (jinja_value){.type = JINJA_STRING, .text = first->text, .length = length, .room = room};
    return jinja_work(r, (length - first->length) / 16) || true;
}

/* The strings parts[count] one after the other. */
static bool join_strings(jinja_run *r, const jinja_value *parts, size_t count, jinja_value *out)
{
    size_t length = 0;
    for (size_t i = 0; i < count; i++) length += parts[i].length;
    if (length == parts[0].length) {
        *out = parts[0];
        return true;
    }
    if (join_in_place(r, parts, count, length, out)) return true;
    jinja_room *room = NULL;
    size_t capacity = length;
    if (length >= ROOM_FROM) {
        capacity = length * 2;
        if (!(room = jinja_take(&r->arena, 1, sizeof *room)))
            return jinja_fail(r, HY_NO_FIT, "out of memory while rendering");
    }
    char *data = jinja_take(&r->arena, capacity + 1, 1);
    if (!data)
        return jinja_fail(r, HY_NO_FIT, "a joined string of %zu bytes does not fit into the limit of memory", length);
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].length) memcpy(data + used, parts[i].text, parts[i].length);
        used += parts[i].length;
    }
    if (room) *room = (jinja_room){data, used, capacity};
    *out = (jinja_value){.type = JINJA_STRING, .text = data, .length = length, .room = room};
    return jinja_work(r, length / 16);
}

static bool eval_join(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value few[8] = {{0}}, *parts = few;
    size_t count = 0, at = 0;
    for (const jinja_node *a = n->args; a; a = a->next) count++;
    if (count > 8 && !(parts = jinja_take(&r->arena, count, sizeof *parts)))
        return jinja_fail(r, HY_NO_FIT, "out of memory while rendering");
    for (const jinja_node *a = n->args; a; a = a->next, at++)
        if (!jinja_eval(r, a, &parts[at]) || !jinja_text(r, &parts[at], &parts[at])) return false;
    if (!join_strings(r, parts, count, out)) return false;
    out->markup = false;
    return true;
}

/* ---- Arithmetic ------------------------------------------------------------------------------------------------ */

static bool fail_operands(jinja_run *r, const char *op, const jinja_value *a, const jinja_value *b)
{
    if (a->type == JINJA_UNDEFINED || b->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, a->type == JINJA_UNDEFINED ? a : b);
    return jinja_fail(r, HY_BAD_INPUT, "unsupported operand type(s) for %s: '%s' and '%s'", op, jinja_type_name(a),
                      jinja_type_name(b));
}

static bool too_large(jinja_run *r)
{
    return jinja_fail(r, HY_BAD_INPUT, "a whole number is outside of 64 bits");
}

/* Items of a and b, or those of a some times. */
static bool join_lists(jinja_run *r, const jinja_list *a, const jinja_list *b, jinja_value *out)
{
    if (!jinja_list_make(r, a->count + b->count, a->style, out)) return false;
    jinja_list *l = out->list;
    if (a->count) memcpy(l->items, a->items, a->count * sizeof *l->items);
    if (b->count) memcpy(l->items + a->count, b->items, b->count * sizeof *l->items);
    l->count = a->count + b->count;
    return jinja_work(r, l->count);
}

static bool repeat(jinja_run *r, const jinja_value *v, int64_t times, jinja_value *out)
{
    size_t n = times > 0 ? (size_t)times : 0, size = v->type == JINJA_STRING ? v->length : v->list->count;
    if (size && n > r->arena.limit / size)
        return jinja_fail(r, HY_NO_FIT, "a repetition does not fit into the limit of memory");
    if (!jinja_work(r, n * size / 16)) return false;
    if (v->type == JINJA_STRING) {
        char *data = jinja_take(&r->arena, n * size + 1, 1);
        if (!data) return jinja_fail(r, HY_NO_FIT, "a repetition does not fit into the limit of memory");
        if (size && n) memcpy(data, v->text, size);
        for (size_t have = size; have < n * size; have *= 2) /* what is there again, twice as much each time */
            memcpy(data + have, data, have < n * size - have ? have : n * size - have);
        *out = jinja_string(data, n * size);
        return true;
    }
    if (!jinja_list_make(r, n * size, v->list->style, out)) return false;
    for (size_t i = 0; size && i < n; i++)
        memcpy(out->list->items + i * size, v->list->items, size * sizeof(jinja_value));
    out->list->count = n * size;
    return true;
}

static bool add(jinja_run *r, const jinja_value *a, const jinja_value *b, jinja_value *out)
{
    if (a->type == JINJA_STRING && b->type == JINJA_STRING) {
        jinja_value parts[2] = {*a, *b};
        bool markup = a->markup || b->markup;
        if (markup && (!jinja_escape(r, a, &parts[0]) || !jinja_escape(r, b, &parts[1]))) return false;
        if (!join_strings(r, parts, 2, out)) return false;
        out->markup = markup;
        return true;
    }
    if (jinja_is_plain_list(a) && jinja_is_plain_list(b) && a->list->style == b->list->style)
        return join_lists(r, a->list, b->list, out);
    if (a->type == JINJA_STRING && b->type != JINJA_UNDEFINED)
        return jinja_fail(r, HY_BAD_INPUT, "can only concatenate str (not \"%s\") to str", jinja_type_name(b));
    return fail_operands(r, "+", a, b);
}

static bool multiply(jinja_run *r, const jinja_value *a, const jinja_value *b, jinja_value *out)
{
    bool left = a->type == JINJA_STRING || jinja_is_plain_list(a),
         right = b->type == JINJA_STRING || jinja_is_plain_list(b);
    if (left && jinja_is_whole(b)) return repeat(r, a, jinja_whole(b), out);
    if (right && jinja_is_whole(a)) return repeat(r, b, jinja_whole(a), out);
    return fail_operands(r, "*", a, b);
}

static bool power(jinja_run *r, const jinja_value *a, const jinja_value *b, jinja_value *out)
{
    if (!jinja_is_whole(a) || !jinja_is_whole(b) || jinja_whole(b) < 0) {
        double value = pow(jinja_real(a), jinja_real(b));
        *out = jinja_float(value);
        return !isnan(value) || jinja_fail(r, HY_BAD_INPUT, "a power has no real value");
    }
    int64_t base = jinja_whole(a), result = 1;
    for (int64_t n = jinja_whole(b); n; n >>= 1) {
        if ((n & 1) && __builtin_mul_overflow(result, base, &result)) return too_large(r);
        if (n > 1 && __builtin_mul_overflow(base, base, &base)) return too_large(r);
    }
    *out = jinja_int(result);
    return true;
}

/* Division rounds down, and the rest has the divisor's sign. */
static bool divide(jinja_run *r, jinja_op op, const jinja_value *a, const jinja_value *b, jinja_value *out)
{
    if (jinja_real(b) == 0) return jinja_fail(r, HY_BAD_INPUT, "division by zero");
    if (op == JINJA_DIV) {
        *out = jinja_float(jinja_real(a) / jinja_real(b));
        return true;
    }
    if (jinja_is_whole(a) && jinja_is_whole(b)) {
        int64_t x = jinja_whole(a), y = jinja_whole(b);
        if (y == -1) {
            if (x == INT64_MIN) return too_large(r);
            *out = jinja_int(op == JINJA_MOD ? 0 : -x);
            return true;
        }
        int64_t rest = x % y, down = rest && (rest < 0) != (y < 0);
        *out = jinja_int(op == JINJA_MOD ? rest + (down ? y : 0) : x / y - down);
        return true;
    }
    double x = jinja_real(a), y = jinja_real(b), rest = fmod(x, y);
    if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
    *out = jinja_float(op == JINJA_MOD ? (rest == 0 ? copysign(0, y) : rest) : floor((x - rest) / y + 0.5));
    return true;
}

static bool arithmetic(jinja_run *r, jinja_op op, const jinja_value *a, const jinja_value *b, jinja_value *out)
{
    bool whole = jinja_is_whole(a) && jinja_is_whole(b), over;
    int64_t x = whole ? jinja_whole(a) : 0, y = whole ? jinja_whole(b) : 0, z = 0;
    if (op == JINJA_POW) return power(r, a, b, out);
    if (op == JINJA_DIV || op == JINJA_FLOORDIV || op == JINJA_MOD) return divide(r, op, a, b, out);
    if (!whole) {
        double p = jinja_real(a), q = jinja_real(b);
        *out = jinja_float(op == JINJA_ADD ? p + q : op == JINJA_SUB ? p - q : p * q);
        return true;
    }
    if (op == JINJA_ADD)
        over = __builtin_add_overflow(x, y, &z);
    else if (op == JINJA_SUB)
        over = __builtin_sub_overflow(x, y, &z);
    else
        over = __builtin_mul_overflow(x, y, &z);
    *out = jinja_int(z);
    return !over || too_large(r);
}

static bool eval_binary(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    static const char *const texts[] = {
        [JINJA_SUB] = "-", [JINJA_DIV] = "/", [JINJA_FLOORDIV] = "//", [JINJA_MOD] = "%", [JINJA_POW] = "** or pow()"};
    jinja_value a, b;
    if (!jinja_eval(r, n->a, &a) || !jinja_eval(r, n->b, &b)) return false;
    if (jinja_is_number(&a) && jinja_is_number(&b)) return arithmetic(r, n->op, &a, &b, out);
    if (n->op == JINJA_ADD) return add(r, &a, &b, out);
    if (n->op == JINJA_MUL) return multiply(r, &a, &b, out);
    if (n->op == JINJA_MOD && a.type == JINJA_STRING && b.type != JINJA_UNDEFINED) return jinja_percent(r, &a, &b, out);
    return fail_operands(r, texts[n->op], &a, &b);
}

static bool eval_sign(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value v;
    if (!jinja_eval(r, n->a, &v)) return false;
    if (v.type == JINJA_UNDEFINED) return jinja_fail_undefined(r, &v);
    if (!jinja_is_number(&v))
        return jinja_fail(r, HY_BAD_INPUT, "bad operand type for unary %c: '%s'", n->kind == JINJA_E_NEGATE ? '-' : '+',
                          jinja_type_name(&v));
    if (v.type == JINJA_FLOAT)
        *out = jinja_float(n->kind == JINJA_E_NEGATE ? -v.real : v.real);
    else if (n->kind == JINJA_E_PLUS)
        *out = jinja_int(jinja_whole(&v));
    else if (jinja_whole(&v) == INT64_MIN)
        return too_large(r);
    else
        *out = jinja_int(-jinja_whole(&v));
    return true;
}

static bool eval_comparison(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value left, right;
    if (!jinja_eval(r, n->a, &left)) return false;
    for (const jinja_node *a = n->args; a; a = a->next) {
        bool yes;
        if (!jinja_eval(r, a, &right) || !jinja_compare(r, a->compare, &left, &right, &yes)) return false;
        *out = jinja_bool(yes);
        if (!yes) return true;
        left = right;
    }
    return true;
}

/* ---- Attributes, elements, slices ------------------------------------------------------------------------------ */

static bool bind_method(jinja_run *r, const jinja_value *of, const char *name, size_t length, jinja_value *out)
{
    jinja_value *object = jinja_take(&r->arena, 1, sizeof *object);
    if (!object) return jinja_fail(r, HY_NO_FIT, "out of memory while rendering");
    *object = *of;
    *out = (jinja_value){.type = JINJA_METHOD, .text = name, .length = length, .object = object};
    return true;
}

bool jinja_attribute(jinja_run *r, const jinja_value *of, const char *name, size_t length, jinja_value *out)
{
    if (of->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, of);
    if (of->type == JINJA_LOOP) return jinja_loop_attribute(r, of->loop, name, length, out);
    switch (jinja_method_access(of, name)) {
    case JINJA_HAS_METHOD: return bind_method(r, of, name, length, out);
    case JINJA_FORBIDDEN: *out = jinja_undefined(JINJA_UNSAFE, of->type, name, length); return true;
    default: break;
    }
    const jinja_value *found = NULL;
    jinja_value key = jinja_string(name, length);
    if ((of->type == JINJA_DICT || of->type == JINJA_NAMESPACE) && !jinja_dict_find(r, of->dict, &key, &found))
        return false;
    if (of->type == JINJA_MACRO && strcmp(name, "name") == 0) {
        *out = jinja_literal(of->macro->node->name);
        return true;
    }
    *out = found ? *found : jinja_undefined(JINJA_NO_ATTRIBUTE, of->type, name, length);
    return true;
}

static bool no_element(jinja_run *r, const jinja_value *of, const jinja_value *key, jinja_value *out)
{
    buffer text = {0};
    jinja_value kept;
    if (key->type == JINJA_UNDEFINED) {
        *out = jinja_undefined(JINJA_NO_ELEMENT, of->type, "Undefined", 9);
        return true;
    }
    bool ok = jinja_repr(r, key, &text);
    if (text.length > 60) text.length = 60;
    if (!ok) buffer_free(&text);
    if (!ok || !jinja_finish(r, &text, &kept)) return false;
    *out = jinja_undefined(JINJA_NO_ELEMENT, of->type, kept.text, kept.length);
    return true;
}

static bool character(jinja_run *r, const jinja_value *of, int64_t i, jinja_value *out)
{
    int64_t count = (int64_t)jinja_characters(of->text, of->length);
    if (i < 0) i += count;
    if (!jinja_work(r, of->length / 16)) return false;
    if (i < 0 || i >= count) return no_element(r, of, &(jinja_value){.type = JINJA_INT, .integer = i}, out);
    const char *at = jinja_at_character(of->text, of->length, (size_t)i);
    *out = jinja_string(at, jinja_character_bytes(at, of->length - (size_t)(at - of->text)));
    return true;
}

bool jinja_item(jinja_run *r, const jinja_value *of, const jinja_value *key, jinja_value *out)
{
    const jinja_value *found = NULL;
    if (of->type == JINJA_UNDEFINED) return jinja_fail_undefined(r, of);
    if (of->type == JINJA_STRING && jinja_is_whole(key)) return character(r, of, jinja_whole(key), out);
    if (jinja_is_plain_list(of) && jinja_is_whole(key)) {
        int64_t i = jinja_whole(key), count = (int64_t)of->list->count;
        if (i < 0) i += count;
        if (i < 0 || i >= count) return no_element(r, of, key, out);
        *out = of->list->items[i];
        return true;
    }
    if (of->type == JINJA_DICT) {
        if (!jinja_dict_find(r, of->dict, key, &found)) return false;
        if (found) {
            *out = *found;
            return true;
        }
    }
    jinja_value name; /* with a NUL behind it */
    if (key->type == JINJA_STRING)
        return jinja_copy(r, key->text, key->length, &name) && jinja_attribute(r, of, name.text, name.length, out);
    return no_element(r, of, key, out);
}

static bool slice_bound(jinja_run *r, const jinja_node *n, int64_t missing, int64_t count, int64_t low, int64_t high,
                        int64_t *out)
{
    jinja_value v = {.type = JINJA_NONE};
    if (n && !jinja_eval(r, n, &v)) return false;
    if (v.type == JINJA_UNDEFINED) return jinja_fail_undefined(r, &v);
    *out = missing;
    if (v.type == JINJA_NONE) return true;
    if (!jinja_is_whole(&v))
        return jinja_fail(r, HY_BAD_INPUT, "slice indices must be integers or None or have an __index__ method");
    int64_t i = jinja_whole(&v);
    if (i < 0) i += count;
    *out = i < low ? low : i > high ? high : i;
    return true;
}

static bool slice_of_string(jinja_run *r, const jinja_value *of, int64_t start, int64_t stop, int64_t step, size_t n,
                            jinja_value *out)
{
    if (step == 1) {
        const char *from = jinja_at_character(of->text, of->length, (size_t)start);
        const char *to =
            n ? jinja_at_character(from, of->length - (size_t)(from - of->text), (size_t)(stop - start)) : from;
        *out = jinja_string(from, (size_t)(to - from));
        return true;
    }
    const jinja_list *characters;
    buffer text = {0};
    if (!jinja_iterate(r, of, &characters)) return false;
    for (size_t i = 0; i < n; i++, start += step)
        buffer_append(&text, characters->items[start].text, characters->items[start].length);
    return jinja_finish(r, &text, out);
}

static bool eval_slice(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value of, step_value = jinja_int(1);
    size_t count;
    int64_t start, stop, step;
    if (!jinja_eval(r, n->a, &of)) return false;
    if (of.type == JINJA_UNDEFINED) return jinja_fail_undefined(r, &of);
    if (of.type != JINJA_STRING && !jinja_is_plain_list(&of))
        return jinja_fail(r, HY_BAD_INPUT, "'%s' object cannot be sliced", jinja_type_name(&of));
    if (!jinja_length(r, &of, &count)) return false;
    if (n->other && !jinja_eval(r, n->other, &step_value)) return false;
    step = jinja_is_whole(&step_value) ? jinja_whole(&step_value) : 1;
    if (!step) return jinja_fail(r, HY_BAD_INPUT, "slice step cannot be zero");
    int64_t end = (int64_t)count, low = step > 0 ? 0 : -1, high = step > 0 ? end : end - 1;
    if (step > end + 1) step = end + 1; /* one step is out of it: no overflow below */
    if (step < -end - 1) step = -end - 1;
    if (!slice_bound(r, n->b, step > 0 ? low : high, end, low, high, &start)) return false;
    if (!slice_bound(r, n->c, step > 0 ? high : low, end, low, high, &stop)) return false;
    int64_t span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
    size_t made = span > 0 ? (size_t)((span + stride - 1) / stride) : 0;
    if (of.type == JINJA_STRING) return slice_of_string(r, &of, start, stop, step, made, out);
    if (step == 1) { /* what cannot change can be shared */
        if (!jinja_list_make(r, 0, of.list->style, out)) return false;
        out->list->items = of.list->items + start, out->list->count = made;
        return true;
    }
    if (!jinja_list_make(r, made, of.list->style, out)) return false;
    for (size_t i = 0; i < made; i++, start += step) out->list->items[out->list->count++] = of.list->items[start];
    return jinja_work(r, made);
}

/* ---- Calls, filters, tests ------------------------------------------------------------------------------------- */

bool jinja_eval_args(jinja_run *r, const jinja_node *n, jinja_args *out)
{
    *out = (jinja_args){0};
    size_t count = 0;
    for (const jinja_node *a = n; a; a = a->next) count++;
    if (!count) return true;
    if (!(out->at = jinja_take(&r->arena, count, sizeof *out->at)))
        return jinja_fail(r, HY_NO_FIT, "out of memory while rendering");
    for (; n; n = n->next) {
        out->at[out->count].name = n->keyword;
        if (!jinja_eval(r, n, &out->at[out->count].value)) return false;
        out->count++;
        out->positional += !n->keyword;
    }
    return true;
}

static bool eval_call(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value callee, object;
    jinja_args args;
    if (n->a->kind == JINJA_E_ATTRIBUTE) {
        if (!jinja_eval(r, n->a->a, &object)) return false;
        r->line = n->line;
        if (jinja_method_access(&object, n->a->name) == JINJA_HAS_METHOD) /* without a value for the method */
            return jinja_eval_args(r, n->args, &args) && jinja_call_method(r, &object, n->a->name, &args, out);
        if (!jinja_attribute(r, &object, n->a->name, strlen(n->a->name), &callee)) return false;
    } else if (!jinja_eval(r, n->a, &callee)) {
        return false;
    }
    return jinja_eval_args(r, n->args, &args) && jinja_call(r, &callee, &args, out);
}

static bool eval_filter(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value in;
    jinja_args args;
    if (!jinja_eval(r, n->a, &in) || !jinja_eval_args(r, n->args, &args)) return false;
    r->line = n->line;
    const jinja_filter *filter = n->what;
    if (!filter) return jinja_fail(r, HY_BAD_INPUT, "there is no filter \"%.60s\"", n->name);
    return filter->run(r, &in, &args, out);
}

static bool eval_test(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value in;
    jinja_args args;
    bool yes;
    if (!jinja_eval(r, n->a, &in) || !jinja_eval_args(r, n->args, &args)) return false;
    r->line = n->line;
    const jinja_test *test = n->what;
    if (!test) return jinja_fail(r, HY_BAD_INPUT, "there is no test \"%.60s\"", n->name);
    if (!test->run(r, &in, &args, &yes)) return false;
    *out = jinja_bool(yes != n->flag);
    return true;
}

/* ---- The rest -------------------------------------------------------------------------------------------------- */

static bool eval_list(jinja_run *r, const jinja_node *n, jinja_style style, jinja_value *out)
{
    size_t count = 0;
    for (const jinja_node *a = n->args; a; a = a->next) count++;
    if (!jinja_list_make(r, count, style, out)) return false;
    for (const jinja_node *a = n->args; a; a = a->next)
        if (!jinja_eval(r, a, &out->list->items[out->list->count++])) return false;
    return true;
}

static bool eval_dict(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    size_t count = 0;
    for (const jinja_node *a = n->args; a; a = a->next->next) count++;
    if (!jinja_dict_make(r, count, out)) return false;
    for (const jinja_node *a = n->args; a; a = a->next->next) {
        jinja_value key, value;
        if (!jinja_eval(r, a, &key) || !jinja_eval(r, a->next, &value)) return false;
        if (!jinja_dict_put(r, out->dict, &key, &value)) return false;
    }
    return true;
}

static bool eval_if(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value condition;
    if (!jinja_eval(r, n->a, &condition)) return false;
    const jinja_node *taken = jinja_truth(&condition) ? n->b : n->c;
    if (taken) return jinja_eval(r, taken, out);
    static const char said[] = "an if without an else that was false has no value";
    *out = jinja_undefined(JINJA_SAID, JINJA_NONE, said, sizeof said - 1);
    return true;
}

static bool eval_either(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    if (!jinja_eval(r, n->a, out)) return false;
    return jinja_truth(out) == (n->kind == JINJA_E_OR) || jinja_eval(r, n->b, out);
}

static bool eval_not(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    if (!jinja_eval(r, n->a, out)) return false;
    *out = jinja_bool(!jinja_truth(out));
    return true;
}

static bool eval_attribute(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value of;
    if (!jinja_eval(r, n->a, &of)) return false;
    r->line = n->line;
    return jinja_attribute(r, &of, n->name, strlen(n->name), out);
}

static bool eval_item(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value of, key;
    if (!jinja_eval(r, n->a, &of) || !jinja_eval(r, n->b, &key)) return false;
    r->line = n->line;
    return jinja_item(r, &of, &key, out);
}

static bool eval_one(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    switch (n->kind) {
    case JINJA_E_CONST: *out = n->value; return true;
    case JINJA_E_NAME: return jinja_lookup(r, n->name, out);
    case JINJA_E_LIST: return eval_list(r, n, JINJA_PLAIN, out);
    case JINJA_E_TUPLE: return eval_list(r, n, JINJA_TUPLE, out);
    case JINJA_E_DICT: return eval_dict(r, n, out);
    case JINJA_E_ATTRIBUTE: return eval_attribute(r, n, out);
    case JINJA_E_ITEM: return eval_item(r, n, out);
    case JINJA_E_SLICE: return eval_slice(r, n, out);
    case JINJA_E_CALL: return eval_call(r, n, out);
    case JINJA_E_FILTER: return eval_filter(r, n, out);
    case JINJA_E_TEST: return eval_test(r, n, out);
    case JINJA_E_IF: return eval_if(r, n, out);
    case JINJA_E_AND:
    case JINJA_E_OR: return eval_either(r, n, out);
    case JINJA_E_NOT: return eval_not(r, n, out);
    case JINJA_E_NEGATE:
    case JINJA_E_PLUS: return eval_sign(r, n, out);
    case JINJA_E_BINARY: return eval_binary(r, n, out);
    case JINJA_E_JOIN: return eval_join(r, n, out);
    case JINJA_E_COMPARE: return eval_comparison(r, n, out);
    default: *out = r->captured; return true;
    }
}

bool jinja_eval(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    if (!jinja_enter(r) || !jinja_work(r, 1)) return false;
    r->line = n->line;
    bool ok = eval_one(r, n, out);
    r->level--;
    return ok;
}
