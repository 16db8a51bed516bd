/* Statements: running them. Variables, loops, macros, the functions of the language, and jinja_render. */
#include "text/jinja_parts.h"

#include "base/error.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MACRO_DEPTH = 200, RANGE = 100000 };
#define OUTPUT_BYTES ((size_t)256 << 20)
#define MEMORY_BYTES ((size_t)1 << 30)
#define STEPS UINT64_C(200000000)

/* ---- Variables ------------------------------------------------------------------------------------------------- */

static bool out_of_memory(jinja_run *r)
{
    return jinja_fail(r, HY_NO_FIT, "the values of the template take more memory than the limit of %zu bytes",
                      r->arena.limit);
}

static jinja_frame *push_frame(jinja_run *r, jinja_frame *parent)
{
    jinja_frame *f = jinja_take(&r->arena, 1, sizeof *f);
    if (!f) {
        out_of_memory(r);
        return NULL;
    }
    *f = (jinja_frame){.parent = parent};
    return r->frame = f;
}

static bool assign_in(jinja_run *r, jinja_frame *f, const char *name, const jinja_value *value)
{
    for (size_t i = 0; i < f->count; i++) {
        if (f->variables[i].name != name) continue;
        f->variables[i].value = *value;
        return true;
    }
    if (f->count == f->capacity) {
        size_t capacity = f->capacity ? f->capacity * 2 : 6;
        jinja_variable *bigger = jinja_take(&r->arena, capacity, sizeof *bigger);
        if (!bigger) return out_of_memory(r);
        if (f->count) memcpy(bigger, f->variables, f->count * sizeof *bigger);
        f->variables = bigger, f->capacity = capacity;
    }
    f->variables[f->count++] = (jinja_variable){name, *value};
    return true;
}

bool jinja_assign(jinja_run *r, const char *name, const jinja_value *value)
{
    return assign_in(r, r->frame, name, value);
}

/* Values of the context are made when they are first read, into the frame below all. */
bool jinja_lookup(jinja_run *r, const char *name, jinja_value *out)
{
    static const char *const functions[] = {"range", "dict", "namespace", "raise_exception", "strftime_now"};
    jinja_frame *f = r->frame, *last = f;
    for (; f; last = f, f = f->parent) {
        for (size_t i = 0; i < f->count; i++) {
            if (f->variables[i].name != name) continue;
            *out = f->variables[i].value;
            return true;
        }
        if (!jinja_work(r, f->count / 4)) return false;
    }
    const json_t *given = json_object_get(r->context, name);
    if (given) return jinja_from_json(r, given, out) && assign_in(r, last, name, out);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(functions[i], name) != 0) continue;
        *out = (jinja_value){.type = JINJA_FUNCTION, .text = functions[i]};
        return true;
    }
    *out = jinja_undefined(JINJA_NO_NAME, JINJA_NONE, name, strlen(name));
    return true;
}

static bool set_attribute(jinja_run *r, const jinja_node *target, const jinja_value *value)
{
    jinja_value space, key = jinja_literal(target->name);
    if (!jinja_eval(r, target->a, &space)) return false;
    if (space.type != JINJA_NAMESPACE)
        return jinja_fail(r, HY_BAD_INPUT, "cannot assign attribute on non-namespace object");
    return jinja_dict_put(r, space.dict, &key, value);
}

static bool set_target(jinja_run *r, const jinja_node *target, const jinja_value *value)
{
    if (target->kind == JINJA_E_NAME) return jinja_assign(r, target->name, value);
    if (target->kind == JINJA_E_ATTRIBUTE) return set_attribute(r, target, value);
    const jinja_list *items;
    size_t wanted = 0, i = 0;
    if (!jinja_iterate(r, value, &items)) return false;
    for (const jinja_node *t = target->args; t; t = t->next) wanted++;
    if (items->count < wanted)
        return jinja_fail(r, HY_BAD_INPUT, "not enough values to unpack (expected %zu, got %zu)", wanted, items->count);
    if (items->count > wanted) return jinja_fail(r, HY_BAD_INPUT, "too many values to unpack (expected %zu)", wanted);
    for (const jinja_node *t = target->args; t; t = t->next, i++)
        if (!set_target(r, t, &items->items[i])) return false;
    return true;
}

/* ---- Output into a value --------------------------------------------------------------------------------------- */

static bool captured(jinja_run *r, const jinja_node *body, jinja_value *out)
{
    buffer text = {0}, *outer = r->out;
    r->out = &text;
    bool ok = jinja_run_body(r, body);
    r->out = outer;
    if (ok) return jinja_finish(r, &text, out);
    buffer_free(&text);
    return false;
}

/* A body in a scope of its own. */
static bool scoped(jinja_run *r, const jinja_node *body, jinja_value *out)
{
    jinja_frame *outer = r->frame;
    if (!push_frame(r, outer)) return false;
    bool ok = out ? captured(r, body, out) : jinja_run_body(r, body);
    r->frame = outer;
    return ok;
}

/* A body as a value, through filters. */
static bool filtered(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_value outer = r->captured, made;
    if (!scoped(r, n->body, &made)) return false;
    r->captured = made;
    bool ok = !n->b || jinja_eval(r, n->b, out);
    if (!n->b) *out = made;
    r->captured = outer;
    return ok;
}

/* ---- Macros ---------------------------------------------------------------------------------------------------- */

static const char *spelling(const jinja *t, const char *name)
{
    for (size_t i = 0; i < t->name_count; i++)
        if (t->names[i].variable && strcmp(t->names[i].text, name) == 0) return t->names[i].text;
    return NULL;
}

static bool bind_parameters(jinja_run *r, const jinja_node *macro, const jinja_args *args, size_t *bound)
{
    size_t at = 0;
    *bound = 0;
    for (const jinja_node *p = macro->args; p; p = p->next, at++) {
        jinja_value value = jinja_undefined(JINJA_NOT_GIVEN, JINJA_NONE, p->name, strlen(p->name));
        bool given = at < args->positional;
        if (given) value = args->at[at].value;
        for (size_t i = args->positional; i < args->count; i++) {
            if (strcmp(args->at[i].name, p->name) != 0) continue;
            if (given)
                return jinja_fail(r, HY_BAD_INPUT, "macro '%s' got multiple values for argument '%s'", macro->name,
                                  p->name);
            value = args->at[i].value, given = true;
            ++*bound;
        }
        if (!given && p->a && !jinja_eval(r, p->a, &value)) return false;
        if (!jinja_assign(r, p->name, &value)) return false;
    }
    return true;
}

static bool is_parameter(const jinja_node *macro, const char *name)
{
    for (const jinja_node *p = macro->args; p; p = p->next)
        if (strcmp(p->name, name) == 0) return true;
    return false;
}

/* What the parameters leave goes into varargs and kwargs, if the template reads these. */
static bool bind_rest(jinja_run *r, const jinja_node *macro, const jinja_args *args, size_t bound)
{
    size_t parameters = 0;
    for (const jinja_node *p = macro->args; p; p = p->next) parameters++;
    const char *varargs = r->varargs, *kwargs = r->kwargs;
    if (args->positional > parameters && !varargs)
        return jinja_fail(r, HY_BAD_INPUT, "macro '%s' takes not more than %zu argument(s)", macro->name, parameters);
    jinja_value list, dict;
    if (varargs) {
        if (!jinja_list_make(r, args->positional, JINJA_TUPLE, &list)) return false;
        for (size_t i = parameters; i < args->positional; i++) list.list->items[list.list->count++] = args->at[i].value;
        if (!jinja_assign(r, varargs, &list)) return false;
    }
    if (args->count - args->positional == bound && !kwargs) return true;
    if (!jinja_dict_make(r, args->count, &dict)) return false;
    for (size_t i = args->positional; i < args->count; i++) {
        if (is_parameter(macro, args->at[i].name)) continue;
        if (!kwargs)
            return jinja_fail(r, HY_BAD_INPUT, "macro '%s' takes no keyword argument '%s'", macro->name,
                              args->at[i].name);
        jinja_value key = jinja_literal(args->at[i].name);
        if (!jinja_dict_put(r, dict.dict, &key, &args->at[i].value)) return false;
    }
    return !kwargs || jinja_assign(r, kwargs, &dict);
}

bool jinja_call_macro(jinja_run *r, const jinja_macro *m, const jinja_args *args, jinja_value *out)
{
    if (r->macros >= r->macro_limit)
        return jinja_fail(r, HY_NO_FIT, "macros call each other deeper than %d levels", r->macro_limit);
    jinja_frame *outer = r->frame;
    size_t bound;
    if (!push_frame(r, m->frame)) return false;
    r->macros++;
    bool ok = bind_parameters(r, m->node, args, &bound) && bind_rest(r, m->node, args, bound);
    const char *caller = r->caller;
    if (ok && caller && m->node->name != caller) {
        jinja_value missing = jinja_undefined(JINJA_SAID, JINJA_NONE, "No caller defined", 17);
        ok = jinja_assign(r, caller, args->caller.type ? &args->caller : &missing);
    }
    ok = ok && captured(r, m->node->body, out);
    r->macros--;
    r->frame = outer;
    return ok;
}

static bool make_macro(jinja_run *r, const jinja_node *n, jinja_value *out)
{
    jinja_macro *m = jinja_take(&r->arena, 1, sizeof *m);
    if (!m) return out_of_memory(r);
    *m = (jinja_macro){n, r->frame};
    *out = (jinja_value){.type = JINJA_MACRO, .macro = m};
    return true;
}

static bool run_call_block(jinja_run *r, const jinja_node *n)
{
    jinja_value callee, result;
    jinja_args args;
    const jinja_node *call = n->a;
    if (!jinja_eval(r, call->a, &callee) || !jinja_eval_args(r, call->args, &args)) return false;
    if (!make_macro(r, n->b, &args.caller) || !jinja_call(r, &callee, &args, &result)) return false;
    return jinja_print(r, &result, r->out) && jinja_check_output(r);
}

/* ---- Loops ----------------------------------------------------------------------------------------------------- */

/* The items for which the loop's own condition holds. */
static bool chosen(jinja_run *r, const jinja_node *n, const jinja_list **items)
{
    jinja_value kept, yes;
    const jinja_list *all = *items;
    jinja_frame *outer = r->frame;
    if (!jinja_list_make(r, all->count, JINJA_PLAIN, &kept)) return false;
    bool ok = true;
    for (size_t i = 0; ok && i < all->count; i++) {
        ok = push_frame(r, outer) && set_target(r, n->a, &all->items[i]) && jinja_eval(r, n->c, &yes);
        if (ok && jinja_truth(&yes)) kept.list->items[kept.list->count++] = all->items[i];
    }
    r->frame = outer;
    *items = kept.list;
    return ok;
}

static bool run_rounds(jinja_run *r, const jinja_node *n, jinja_loop *l, jinja_frame *outer)
{
    jinja_value loop = {.type = JINJA_LOOP, .loop = l};
    const char *name = r->loop;
    for (l->index = 0; l->index < l->items->count; l->index++) {
        if (!push_frame(r, outer)) return false;
        if (name && !jinja_assign(r, name, &loop)) return false;
        if (!set_target(r, n->a, &l->items->items[l->index]) || !jinja_run_body(r, n->body)) return false;
        bool stop = r->jump == JINJA_N_BREAK;
        r->jump = 0;
        if (stop) break;
    }
    return true;
}

static bool run_loop(jinja_run *r, const jinja_node *n, jinja_frame *frame, const jinja_value *over, int level)
{
    const jinja_list *items;
    jinja_frame *outer = r->frame;
    r->frame = frame;
    bool ok = jinja_iterate(r, over, &items) && (!n->c || chosen(r, n, &items));
    if (ok && !items->count) {
        ok = !n->other || scoped(r, n->other, NULL);
    } else if (ok) {
        jinja_loop *l = jinja_take(&r->arena, 1, sizeof *l);
        if (l) *l = (jinja_loop){.items = items, .node = n, .frame = frame, .level = level};
        ok = l ? run_rounds(r, n, l, frame) : out_of_memory(r);
    }
    r->frame = outer;
    return ok;
}

bool jinja_call_loop(jinja_run *r, const jinja_loop *l, const jinja_value *items, jinja_value *out)
{
    if (!l->node->flag) return jinja_fail(r, HY_BAD_INPUT, "only a loop with \"recursive\" can be called");
    if (r->macros >= r->macro_limit)
        return jinja_fail(r, HY_NO_FIT, "loops recurse deeper than %d levels", r->macro_limit);
    buffer text = {0}, *outer = r->out;
    r->out = &text;
    r->macros++;
    bool ok = run_loop(r, l->node, l->frame, items, l->level + 1);
    r->macros--;
    r->out = outer;
    if (ok) return jinja_finish(r, &text, out);
    buffer_free(&text);
    return false;
}

bool jinja_loop_attribute(jinja_run *r, const jinja_loop *l, const char *name, size_t length, jinja_value *out)
{
    static const char *const names[] = {"index", "index0", "revindex", "revindex0", "first", "last",   "length",
                                        "depth", "depth0", "previtem", "nextitem",  "cycle", "changed"};
    size_t which = 0, i = l->index, n = l->items->count;
    while (which < 13 && strcmp(names[which], name) != 0) which++;
    switch (which) {
    case 0: *out = jinja_int((int64_t)i + 1); return true;
    case 1: *out = jinja_int((int64_t)i); return true;
    case 2: *out = jinja_int((int64_t)(n - i)); return true;
    case 3: *out = jinja_int((int64_t)(n - i) - 1); return true;
    case 4: *out = jinja_bool(i == 0); return true;
    case 5: *out = jinja_bool(i + 1 == n); return true;
    case 6: *out = jinja_int((int64_t)n); return true;
    case 7: *out = jinja_int(l->level + 1); return true;
    case 8: *out = jinja_int(l->level); return true;
    case 9:
    case 10: {
        static const char none[] = "there is no such item";
        bool there = which == 9 ? i > 0 : i + 1 < n;
        *out = there ? l->items->items[which == 9 ? i - 1 : i + 1]
                     : jinja_undefined(JINJA_SAID, JINJA_NONE, none, sizeof none - 1);
        return true;
    }
    case 11:
    case 12: {
        jinja_value *object = jinja_take(&r->arena, 1, sizeof *object);
        if (!object) return out_of_memory(r);
        *object = (jinja_value){.type = JINJA_LOOP, .loop = (jinja_loop *)l};
        *out = (jinja_value){.type = JINJA_METHOD, .text = names[which], .length = length, .object = object};
        return true;
    }
    default: *out = jinja_undefined(JINJA_NO_ATTRIBUTE, JINJA_LOOP, name, length); return true;
    }
}

static bool call_of_loop(jinja_run *r, jinja_loop *l, const char *name, const jinja_args *args, jinja_value *out)
{
    if (strcmp(name, "cycle") == 0) {
        if (!args->positional) return jinja_fail(r, HY_BAD_INPUT, "no items for cycling given");
        *out = args->at[l->index % args->positional].value;
        return true;
    }
    jinja_value now;
    bool same = false;
    if (!jinja_list_make(r, args->count, JINJA_TUPLE, &now)) return false;
    for (size_t i = 0; i < args->count; i++) now.list->items[now.list->count++] = args->at[i].value;
    if (l->changed.type && !jinja_equal(r, &l->changed, &now, &same)) return false;
    l->changed = now;
    *out = jinja_bool(!same);
    return true;
}

/* ---- Functions ------------------------------------------------------------------------------------------------- */

static bool call_range(jinja_run *r, const jinja_args *args, jinja_value *out)
{
    int64_t v[3] = {0, 0, 1};
    if (args->count != args->positional || !args->count || args->count > 3)
        return jinja_fail(r, HY_BAD_INPUT, "range expected 1 to 3 arguments, got %zu", args->count);
    for (size_t i = 0; i < args->count; i++)
        if (!jinja_want_int(r, &args->at[i].value, 0, &v[i])) return false;
    if (args->count == 1) v[1] = v[0], v[0] = 0;
    if (!v[2]) return jinja_fail(r, HY_BAD_INPUT, "range() arg 3 must not be zero");
    __int128 span = v[2] > 0 ? (__int128)v[1] - v[0] : (__int128)v[0] - v[1], step = v[2] > 0 ? v[2] : -(__int128)v[2];
    __int128 count = span > 0 ? (span + step - 1) / step : 0;
    if (count > RANGE) return jinja_fail(r, HY_NO_FIT, "a range of more than %d numbers", RANGE);
    if (!jinja_list_make(r, (size_t)count, JINJA_RANGE, out)) return false;
    for (int64_t i = 0, at = v[0]; i < (int64_t)count; i++, at = (int64_t)((__int128)v[0] + i * (__int128)v[2]))
        out->list->items[out->list->count++] = jinja_int(at);
    return jinja_work(r, (size_t)count);
}

/* Of dicts and keywords, later ones first. */
static bool call_dict(jinja_run *r, const jinja_args *args, jinja_type type, jinja_value *out)
{
    if (!jinja_dict_make(r, args->count + 4, out)) return false;
    for (size_t i = 0; i < args->count; i++) {
        const jinja_value *v = &args->at[i].value;
        if (args->at[i].name) {
            jinja_value key = jinja_literal(args->at[i].name);
            if (!jinja_dict_put(r, out->dict, &key, v)) return false;
            continue;
        }
        if (v->type == JINJA_DICT) {
            for (size_t k = 0; k < v->dict->count; k++)
                if (!jinja_dict_put(r, out->dict, &v->dict->keys[k], &v->dict->values[k])) return false;
            continue;
        }
        const jinja_list *pairs;
        if (!jinja_iterate(r, v, &pairs)) return false;
        for (size_t k = 0; k < pairs->count; k++) {
            const jinja_value *pair = &pairs->items[k];
            if (!jinja_is_plain_list(pair) || pair->list->count != 2)
                return jinja_fail(r, HY_BAD_INPUT, "a dict is made of pairs");
            if (!jinja_dict_put(r, out->dict, &pair->list->items[0], &pair->list->items[1])) return false;
        }
    }
    out->type = (uint8_t)type;
    return true;
}

/* What the client is told is the template's text alone. */
static bool call_raise(jinja_run *r, const jinja_args *args)
{
    jinja_value text;
    if (args->count != 1 || !jinja_text(r, &args->at[0].value, &text))
        return jinja_fail(r, HY_BAD_INPUT, "raise_exception wants one text");
    if (r->status) return false;
    char line[sizeof((hy_error *)0)->message];
    size_t n = text.length < sizeof line - 1 ? text.length : sizeof line - 1;
    memcpy(line, text.text, n);
    n -= utf8_incomplete_tail(line, n);
    line[n] = 0;
    utf8_one_line(line, ' ');
    r->status = error_set(r->err, HY_BAD_INPUT, "%s", line);
    return false;
}

static bool call_strftime(jinja_run *r, const jinja_args *args, jinja_value *out)
{
    char format[200], text[1000];
    jinja_value wanted;
    time_t now = r->now ? (time_t)r->now : time(NULL);
    struct tm local;
    if (args->count != 1 || !jinja_want_string(r, &args->at[0].value, "strftime_now", &wanted))
        return jinja_fail(r, HY_BAD_INPUT, "strftime_now wants one format");
    if (wanted.length >= sizeof format - 1 || !localtime_r(&now, &local))
        return jinja_fail(r, HY_BAD_INPUT, "strftime_now cannot use this format");
    memcpy(format, wanted.text, wanted.length);
    format[wanted.length] = ' '; /* so that nothing is the same as no room */
    format[wanted.length + 1] = 0;
    size_t n = strftime(text, sizeof text, format, &local);
    return n ? jinja_copy(r, text, n - 1, out) : jinja_fail(r, HY_BAD_INPUT, "strftime_now cannot use this format");
}

bool jinja_call(jinja_run *r, const jinja_value *callee, const jinja_args *args, jinja_value *out)
{
    switch (callee->type) {
    case JINJA_MACRO: return jinja_call_macro(r, callee->macro, args, out);
    case JINJA_METHOD:
        if (callee->object->type == JINJA_LOOP) return call_of_loop(r, callee->object->loop, callee->text, args, out);
        return jinja_call_method(r, callee->object, callee->text, args, out);
    case JINJA_LOOP:
        if (args->count != 1) return jinja_fail(r, HY_BAD_INPUT, "a loop is called with what it is to run over");
        return jinja_call_loop(r, callee->loop, &args->at[0].value, out);
    case JINJA_UNDEFINED: return jinja_fail_undefined(r, callee);
    case JINJA_FUNCTION: break;
    default: return jinja_fail(r, HY_BAD_INPUT, "'%s' object is not callable", jinja_type_name(callee));
    }
    if (strcmp(callee->text, "range") == 0) return call_range(r, args, out);
    if (strcmp(callee->text, "dict") == 0) return call_dict(r, args, JINJA_DICT, out);
    if (strcmp(callee->text, "namespace") == 0) return call_dict(r, args, JINJA_NAMESPACE, out);
    if (strcmp(callee->text, "raise_exception") == 0) return call_raise(r, args);
    return call_strftime(r, args, out);
}

/* ---- Statements ------------------------------------------------------------------------------------------------ */

static bool run_if(jinja_run *r, const jinja_node *n)
{
    for (;;) {
        jinja_value condition;
        if (!jinja_eval(r, n->a, &condition)) return false;
        if (jinja_truth(&condition)) return jinja_run_body(r, n->body);
        if (!n->other || n->other->kind != JINJA_N_IF || n->other->next) return jinja_run_body(r, n->other);
        n = n->other;
    }
}

static bool run_set(jinja_run *r, const jinja_node *n)
{
    jinja_value value;
    bool ok = n->kind == JINJA_N_SET ? jinja_eval(r, n->b, &value) : filtered(r, n, &value);
    return ok && set_target(r, n->a, &value);
}

/* Values are those of outside. */
static bool run_with(jinja_run *r, const jinja_node *n)
{
    jinja_frame *outer = r->frame, *inner = push_frame(r, outer);
    bool ok = inner != NULL;
    for (const jinja_node *pair = n->args; ok && pair; pair = pair->next) {
        jinja_value value;
        r->frame = outer;
        ok = jinja_eval(r, pair->b, &value);
        r->frame = inner;
        ok = ok && set_target(r, pair->a, &value);
    }
    ok = ok && jinja_run_body(r, n->body);
    r->frame = outer;
    return ok;
}

static bool write_value(jinja_run *r, const jinja_value *v)
{
    return jinja_print(r, v, r->out) && jinja_check_output(r);
}

static bool run_node(jinja_run *r, const jinja_node *n)
{
    jinja_value v;
    r->line = n->line;
    switch (n->kind) {
    case JINJA_N_TEXT: return write_value(r, &n->value);
    case JINJA_N_OUTPUT: return jinja_eval(r, n->a, &v) && write_value(r, &v);
    case JINJA_N_IF: return run_if(r, n);
    case JINJA_N_FOR: return jinja_eval(r, n->b, &v) && run_loop(r, n, r->frame, &v, 0);
    case JINJA_N_SET:
    case JINJA_N_SET_BLOCK: return run_set(r, n);
    case JINJA_N_MACRO: return make_macro(r, n, &v) && jinja_assign(r, n->name, &v);
    case JINJA_N_CALL_BLOCK: return run_call_block(r, n);
    case JINJA_N_FILTER_BLOCK: return filtered(r, n, &v) && write_value(r, &v);
    case JINJA_N_WITH: return run_with(r, n);
    case JINJA_N_SCOPE: return scoped(r, n->body, NULL);
    case JINJA_N_DO: return jinja_eval(r, n->a, &v);
    default: r->jump = n->kind; return true;
    }
}

bool jinja_run_body(jinja_run *r, const jinja_node *body)
{
    if (!jinja_enter(r)) return false;
    bool ok = true;
    for (; ok && body && !r->jump; body = body->next) ok = jinja_work(r, 1) && run_node(r, body);
    r->level--;
    return ok;
}

hy_status jinja_render(const jinja *t, const json_t *context, const jinja_limits *limits, buffer *out, hy_error *err)
{
    jinja_limits none = {0};
    const jinja_limits *l = limits ? limits : &none;
    size_t most = l->output_bytes ? l->output_bytes : OUTPUT_BYTES;
    jinja_run r = {
        .t = t,
        .arena = {.limit = l->memory_bytes ? l->memory_bytes : MEMORY_BYTES},
        .context = context,
        .steps = l->steps ? l->steps : STEPS,
        .output_limit = most < SIZE_MAX - out->length ? out->length + most : SIZE_MAX,
        .macro_limit = l->depth ? l->depth : MACRO_DEPTH,
        .now = l->now,
        .out = out,
        .line = 1,
        .loop = spelling(t, "loop"),
        .caller = spelling(t, "caller"),
        .varargs = spelling(t, "varargs"),
        .kwargs = spelling(t, "kwargs"),
        .err = err,
    };
    bool ok = push_frame(&r, NULL) && push_frame(&r, r.frame) && jinja_run_body(&r, t->body) && jinja_check_output(&r);
    jinja_arena_free(&r.arena);
    if (ok) return HY_OK;
    return r.status ? r.status : error_set(err, HY_FAILED, "%s: the template could not be rendered", t->name);
}
