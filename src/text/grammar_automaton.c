#include "text/grammar_automaton.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar_subset.h"

enum {
    STATES = 1 << 18,
    TABLE = 6 << 20, /* places of the table of next states */
};

/* What is known of the rules while they are turned into states. */
typedef struct maker {
    builder *b;
    automaton *a;
    int32_t root;
    bool *live;       /* [nodes] the end of its rule is reached */
    bool *productive; /* [rules] there is a text of it */
    bool *nullable;   /* [rules] the empty text is one */
    subset s;
    size_t state_capacity, next_capacity, calls, call_capacity;
    size_t flags_capacity, rule_of_capacity;
    automaton_call *target; /* calls of the state at hand */
    size_t target_capacity;
} maker;

static hy_status no_memory(maker *m)
{
    return build_fail(m->b, HY_NO_FIT, "there is no memory for the states of a grammar");
}

static hy_status nothing_matches(maker *m)
{
    return build_fail(m->b, HY_BAD_INPUT,
                      "no text can match: every one would have to go on without an end, or to be two things at once");
}

/* ---- What rules can be ---------------------------------------------------------------------------------------- */

static bool plain(const maker *m, int32_t rule)
{
    return m->b->rule[rule].body < 0;
}

static bool node_lives(const maker *m, int32_t node)
{
    const builder *b = m->b;
    for (int32_t e = b->first[node]; e >= 0; e = b->edge[e].next)
        if (m->live[b->edge[e].to] && (b->edge[e].kind != EDGE_CALL || m->productive[b->edge[e].rule])) return true;
    return false;
}

/* Nodes are mostly made from start to end, so that going backwards settles nearly all in the first pass. */
static void find_productive(maker *m)
{
    const builder *b = m->b;
    bool changed = true;
    for (size_t r = 0; r < b->rules; r++)
        if (plain(m, (int32_t)r)) m->live[b->rule[r].end] = true;
    while (changed && build_work(m->b, b->nodes + b->rules)) {
        changed = false;
        for (size_t n = b->nodes; n-- > 0;)
            if (!m->live[n] && node_lives(m, (int32_t)n)) m->live[n] = changed = true;
        for (size_t r = 0; r < b->rules; r++) {
            const build_rule *rule = &b->rule[r];
            bool now = rule->body < 0 ? m->live[rule->start] : rule->min == 0 || m->productive[rule->body];
            changed |= now != m->productive[r];
            m->productive[r] = now;
        }
    }
}

/* Unlinks edges that lead nowhere; calls of a repetition whose body has no text are empty. */
static void trim(maker *m)
{
    builder *b = m->b;
    for (size_t n = 0; n < b->nodes; n++) {
        int32_t *from = &b->first[n];
        while (*from >= 0) {
            build_edge *e = &b->edge[*from];
            bool call = e->kind == EDGE_CALL;
            if (!m->live[e->to] || (call && !m->productive[e->rule])) {
                *from = e->next;
                continue;
            }
            if (call && b->rule[e->rule].body >= 0 &&
                (b->rule[e->rule].max == 0 || !m->productive[b->rule[e->rule].body]))
                e->kind = EDGE_EMPTY;
            from = &e->next;
        }
    }
}

/* From the start without a byte; `list` gets the nodes. */
static void reach_at_once(maker *m, int32_t rule)
{
    subset *s = &m->s;
    subset_clear(s);
    subset_add(s, m->b->rule[rule].start);
    subset_complete(s, m->b->rule[rule].end, true);
}

static bool rule_is_nullable(maker *m, int32_t rule)
{
    const build_rule *r = &m->b->rule[rule];
    if (r->body >= 0) return r->min == 0 || m->nullable[r->body];
    reach_at_once(m, rule);
    bool made;
    int32_t state = subset_state(&m->s, true, &made);
    return state >= 0 && subset_accepts(&m->s, state, r->end);
}

static void find_nullable(maker *m)
{
    for (bool changed = true; changed && m->b->status == HY_OK;) {
        changed = false;
        for (size_t r = 0; r < m->b->rules; r++)
            if (!m->nullable[r] && m->productive[r] && rule_is_nullable(m, (int32_t)r)) m->nullable[r] = changed = true;
    }
    for (size_t r = 0; r < m->b->rules; r++)
        if (m->b->rule[r].body >= 0 && m->nullable[r]) m->b->rule[r].min = 0;
}

/* Rules that a rule calls before any byte, one after the other in `out`. */
static size_t calls_at_once(maker *m, int32_t rule, int32_t **out)
{
    const builder *b = m->b;
    size_t count = 0, capacity = 0;
    *out = NULL;
    if (!plain(m, rule)) {
        if (memory_reserve((void **)out, &capacity, 1, sizeof **out)) (*out)[count++] = b->rule[rule].body;
        return count;
    }
    reach_at_once(m, rule);
    for (size_t i = 0; i < m->s.count; i++)
        for (int32_t e = b->first[m->s.list[i]]; e >= 0; e = b->edge[e].next) {
            if (b->edge[e].kind != EDGE_CALL) continue;
            if (!memory_reserve((void **)out, &capacity, count + 1, sizeof **out)) {
                no_memory(m);
                return count;
            }
            (*out)[count++] = b->edge[e].rule;
        }
    return count;
}

typedef struct visit {
    int32_t rule;
    int32_t *calls;
    size_t count, at;
} visit;

/* A walk over the calls at once that meets a rule it is in the middle of: the rule would never begin. */
static void refuse_left_recursion(maker *m)
{
    size_t depth = 0, capacity = 0;
    visit *stack = NULL;
    uint8_t *seen = calloc(m->b->rules + 1, 1); /* 1: in the middle of, 2: done */
    if (!seen) no_memory(m);
    for (size_t r = 0; seen && r < m->b->rules && m->b->status == HY_OK; r++) {
        int32_t next = seen[r] || !m->productive[r] ? -1 : (int32_t)r;
        while (m->b->status == HY_OK && (next >= 0 || depth > 0)) {
            if (next >= 0) {
                if (!memory_reserve((void **)&stack, &capacity, depth + 1, sizeof *stack)) {
                    no_memory(m);
                    break;
                }
                stack[depth] = (visit){.rule = next};
                stack[depth].count = calls_at_once(m, next, &stack[depth].calls);
                seen[next] = 1, depth++;
            }
            visit *v = &stack[depth - 1];
            if (v->at == v->count) {
                seen[v->rule] = 2;
                free(v->calls);
                depth--, next = -1;
                continue;
            }
            next = v->calls[v->at++];
            if (seen[next] == 1)
                build_fail(m->b, HY_BAD_INPUT,
                           "%s refers to itself before anything else (left recursion): write it so that something "
                           "comes first",
                           m->b->rule[next].name);
            if (seen[next]) next = -1;
        }
    }
    while (depth > 0) free(stack[--depth].calls);
    free(stack);
    free(seen);
}

/* ---- States --------------------------------------------------------------------------------------------------- */

static void find_classes(maker *m)
{
    const builder *b = m->b;
    bool cut[257] = {true};
    for (size_t e = 0; e < b->edges; e++)
        if (b->edge[e].kind == EDGE_BYTES) cut[b->edge[e].low] = cut[b->edge[e].high + 1] = true;
    int class = -1;
    for (int c = 0; c < 256; c++) {
        class += cut[c];
        m->a->class_of[c] = (uint8_t) class;
    }
    m->a->classes = class + 1;
}

/* Takes the set that `s` has made as a state of the rule. -1: the empty set, or a failure. */
static int32_t take_state(maker *m, int32_t rule, bool apart)
{
    automaton *a = m->a;
    bool made;
    if (!m->s.count) return -1;
    int32_t state = subset_state(&m->s, apart, &made);
    if (state < 0 || !made) return state;
    size_t need = (size_t)state + 1, table = need * (size_t)a->classes;
    if (state >= STATES || table > TABLE) {
        build_fail(m->b, HY_NO_FIT, "the grammar is too large: its automaton has more than %d states", state);
        return -1;
    }
    if (!memory_reserve((void **)&a->next, &m->next_capacity, table, sizeof *a->next) ||
        !memory_reserve((void **)&a->flags, &m->flags_capacity, need, sizeof *a->flags) ||
        !memory_reserve((void **)&a->rule_of, &m->rule_of_capacity, need, sizeof *a->rule_of) ||
        !memory_reserve((void **)&a->call_at, &m->state_capacity, need + 1, sizeof *a->call_at)) {
        no_memory(m);
        return -1;
    }
    a->rule_of[state] = rule, a->flags[state] = 0;
    a->states = state + 1;
    return state;
}

/* The nodes behind the edges of a state with this byte. */
static void advance(maker *m, int32_t state, int byte, int32_t end)
{
    const builder *b = m->b;
    subset *s = &m->s;
    subset_clear(s);
    if (!build_work(m->b, s->at[state + 1] - s->at[state])) return;
    for (size_t i = s->at[state]; i < s->at[state + 1]; i++)
        for (int32_t e = b->first[s->pool[i]]; e >= 0; e = b->edge[e].next) {
            const build_edge *edge = &b->edge[e];
            if (edge->kind == EDGE_BYTES && byte >= edge->low && byte <= edge->high) subset_add(s, edge->to);
        }
    subset_complete(s, end, false);
}

static void put_bytes(maker *m, int32_t state, int32_t rule, int32_t end)
{
    automaton *a = m->a;
    const builder *b = m->b;
    bool cut[257] = {true};
    const subset *s = &m->s;
    for (size_t i = s->at[state]; i < s->at[state + 1]; i++)
        for (int32_t e = b->first[s->pool[i]]; e >= 0; e = b->edge[e].next)
            if (b->edge[e].kind == EDGE_BYTES) cut[b->edge[e].low] = cut[b->edge[e].high + 1] = true;
    int32_t to = -1;
    for (int c = 0; c < 256 && b->status == HY_OK; c++) {
        if (cut[c]) {
            advance(m, state, c, end);
            to = take_state(m, rule, false);
        }
        a->next[(size_t)state * (size_t)a->classes + a->class_of[c]] = to;
    }
}

/* The calls of a state's nodes by rule: `target` [count] pairs of a rule and a node behind its call. */
static size_t list_calls(maker *m, int32_t state)
{
    const builder *b = m->b;
    size_t count = 0;
    for (size_t i = m->s.at[state]; i < m->s.at[state + 1]; i++)
        for (int32_t e = b->first[m->s.pool[i]]; e >= 0; e = b->edge[e].next) {
            if (b->edge[e].kind != EDGE_CALL) continue;
            if (!memory_reserve((void **)&m->target, &m->target_capacity, count + 1, sizeof *m->target)) {
                no_memory(m);
                return 0;
            }
            m->target[count++] = (automaton_call){b->edge[e].rule, b->edge[e].to};
        }
    return count;
}

static int compare_calls(const void *a, const void *b)
{
    const automaton_call *x = a, *y = b;
    return (x->rule > y->rule) - (x->rule < y->rule);
}

static void put_calls(maker *m, int32_t state, int32_t rule, int32_t end)
{
    automaton *a = m->a;
    size_t count = list_calls(m, state);
    a->call_at[state] = (uint32_t)m->calls;
    if (count > 1) qsort(m->target, count, sizeof *m->target, compare_calls);
    for (size_t i = 0; i < count && build_work(m->b, count / 8 + 1);) {
        int32_t called = m->target[i].rule;
        subset_clear(&m->s);
        for (; i < count && m->target[i].rule == called; i++) subset_add(&m->s, m->target[i].ret);
        subset_complete(&m->s, end, false);
        int32_t ret = take_state(m, rule, false);
        if (ret < 0) continue;
        if (!memory_reserve((void **)&a->call, &m->call_capacity, m->calls + 1, sizeof *a->call)) {
            no_memory(m);
            return;
        }
        a->call[m->calls++] = (automaton_call){called, ret};
    }
    a->call_at[state + 1] = (uint32_t)m->calls;
}

static void describe(maker *m, int32_t state, int32_t end)
{
    automaton *a = m->a;
    if (m->b->rule[a->rule_of[state]].is_body) a->flags[state] |= STATE_COUNTED;
    /* An empty text of a body would count and change nothing: its first state does not accept. */
    bool first = a->rule[a->rule_of[state]].start == state && (a->flags[state] & STATE_COUNTED);
    if (!first && subset_accepts(&m->s, state, end)) a->flags[state] |= STATE_ACCEPTS;
}

static bool rule_ends(const automaton *a, const bool *lives, int32_t rule)
{
    return a->rule[rule].start >= 0 && lives[a->rule[rule].start];
}

static bool state_lives(const automaton *a, const bool *lives, int32_t state)
{
    const int32_t *next = a->next + (size_t)state * (size_t)a->classes;
    if (a->flags[state] & STATE_ACCEPTS) return true;
    for (int32_t c = 0; c < a->classes; c++)
        if (next[c] >= 0 && lives[next[c]]) return true;
    for (uint32_t i = a->call_at[state]; i < a->call_at[state + 1]; i++)
        if (lives[a->call[i].ret] && rule_ends(a, lives, a->call[i].rule)) return true;
    return false;
}

/* Takes out the ways to states that do not live. Counted rules whose body has no text are empty or nothing, and where
 * they are empty their call has been passed already. */
static void prune(automaton *a, const bool *lives)
{
    uint32_t kept = 0;
    for (int32_t s = 0; s < a->states; s++) {
        int32_t *next = a->next + (size_t)s * (size_t)a->classes;
        bool last = true;
        uint32_t from = a->call_at[s], begin = kept;
        for (int32_t c = 0; c < a->classes; c++) {
            if (next[c] >= 0 && !lives[next[c]]) next[c] = -1;
            last &= next[c] < 0;
        }
        for (uint32_t i = from; i < a->call_at[s + 1]; i++)
            if (lives[a->call[i].ret] && rule_ends(a, lives, a->call[i].rule)) a->call[kept++] = a->call[i];
        a->call_at[s] = begin;
        if (last && kept == begin && (a->flags[s] & STATE_ACCEPTS)) a->flags[s] |= STATE_LAST;
    }
    a->call_at[a->states] = kept;
}

/* Anchors leave states from which no text ends: behind ^ in the middle, before $ and more. */
static void keep_living(maker *m)
{
    automaton *a = m->a;
    bool *lives = calloc((size_t)a->states + 1, 1), changed = true;
    if (!lives) no_memory(m);
    while (m->b->status == HY_OK && changed) {
        changed = false;
        build_work(m->b, (uint64_t)a->states);
        for (int32_t s = a->states; s-- > 0;)
            if (!lives[s] && state_lives(a, lives, s)) lives[s] = changed = true;
    }
    if (m->b->status == HY_OK && !rule_ends(a, lives, m->root)) nothing_matches(m);
    if (m->b->status == HY_OK) prune(a, lives);
    free(lives);
}

static void make_states(maker *m)
{
    automaton *a = m->a;
    const builder *b = m->b;
    subset_close(&m->s);
    if (!subset_open(&m->s, m->b, m->nullable)) return;
    find_classes(m);
    for (size_t r = 0; r < b->rules && b->status == HY_OK; r++) {
        a->rule[r] =
            (automaton_rule){.start = -1, .body = b->rule[r].body, .min = b->rule[r].min, .max = b->rule[r].max};
        if (!plain(m, (int32_t)r) || !m->productive[r]) continue;
        reach_at_once(m, (int32_t)r);
        a->rule[r].start = take_state(m, (int32_t)r, true);
    }
    for (int32_t state = 0; state < a->states && b->status == HY_OK; state++) {
        int32_t rule = a->rule_of[state], end = b->rule[rule].end;
        put_calls(m, state, rule, end);
        put_bytes(m, state, rule, end);
        if (b->status == HY_OK) describe(m, state, end);
    }
    for (size_t r = 0; r < b->rules; r++)
        if (a->rule[r].body >= 0) a->rule[r].start = a->rule[a->rule[r].body].start;
    if (b->status == HY_OK) keep_living(m);
}

/* ---- What may follow ------------------------------------------------------------------------------------------ */

typedef uint64_t byte_set[4];

static bool merge(byte_set into, const byte_set from)
{
    bool changed = false;
    for (int i = 0; i < 4; i++) {
        changed |= (from[i] & ~into[i]) != 0;
        into[i] |= from[i];
    }
    return changed;
}

/* The bytes that a state takes itself or through what it calls. */
static void first_of(const automaton *a, const byte_set *starts, int32_t state, byte_set out)
{
    const int32_t *next = a->next + (size_t)state * (size_t)a->classes;
    for (int c = 0; c < 256; c++)
        if (next[a->class_of[c]] >= 0) out[c >> 6] |= (uint64_t)1 << (c & 63);
    for (uint32_t i = a->call_at[state]; i < a->call_at[state + 1]; i++) merge(out, starts[a->call[i].rule]);
}

static bool follow_calls(const automaton *a, const byte_set *starts, int32_t state)
{
    bool changed = false;
    int32_t rule = a->rule_of[state];
    for (uint32_t i = a->call_at[state]; i < a->call_at[state + 1]; i++) {
        byte_set after = {0};
        first_of(a, starts, a->call[i].ret, after);
        if (a->flags[a->call[i].ret] & STATE_ACCEPTS) merge(after, a->follow[rule]);
        changed |= merge(a->follow[a->call[i].rule], after);
    }
    return changed;
}

static void find_follow(maker *m)
{
    automaton *a = m->a;
    byte_set *starts = calloc((size_t)a->rules + 1, sizeof *starts);
    a->follow = calloc((size_t)a->rules + 1, sizeof *a->follow);
    if (!starts || !a->follow) no_memory(m);
    bool changed = true;
    while (m->b->status == HY_OK && changed) {
        changed = false;
        build_work(m->b, (uint64_t)a->rules * 64);
        for (int32_t r = 0; r < a->rules; r++) {
            byte_set first = {0};
            if (a->rule[r].start >= 0) first_of(a, (const byte_set *)starts, a->rule[r].start, first);
            changed |= merge(starts[r], first);
        }
    }
    changed = true;
    while (m->b->status == HY_OK && changed) {
        changed = false;
        build_work(m->b, (uint64_t)a->states + m->calls * 64);
        for (int32_t s = 0; s < a->states; s++) changed |= follow_calls(a, (const byte_set *)starts, s);
        for (int32_t r = 0; r < a->rules; r++) {
            int32_t body = a->rule[r].body;
            if (body < 0) continue;
            changed |= merge(a->follow[body], a->follow[r]);
            changed |= merge(a->follow[body], starts[body]);
        }
    }
    free(starts);
}

hy_status automaton_make(builder *b, int32_t root, automaton *out)
{
    automaton a = {.rules = (int32_t)b->rules};
    maker m = {.b = b, .a = &a, .root = root};
    if (b->status != HY_OK) return b->status;
    m.live = calloc(b->nodes + 1, 1);
    bool *nullable = calloc(b->rules + 1, 1);
    m.productive = calloc(b->rules + 1, 1), m.nullable = nullable;
    a.rule = calloc(b->rules + 1, sizeof *a.rule);
    if (!m.live || !m.productive || !m.nullable || !a.rule || !subset_open(&m.s, b, m.nullable)) no_memory(&m);
    if (b->status == HY_OK) find_productive(&m);
    if (b->status == HY_OK && !m.productive[root]) nothing_matches(&m);
    if (b->status == HY_OK) trim(&m), find_nullable(&m);
    if (b->status == HY_OK) refuse_left_recursion(&m);
    if (b->status == HY_OK) make_states(&m);
    if (b->status == HY_OK) find_follow(&m);
    subset_close(&m.s);
    free(m.live);
    free(m.productive);
    free(m.target);
    free(nullable);
    if (b->status != HY_OK)
        automaton_free(&a);
    else
        *out = a;
    return b->status;
}

void automaton_free(automaton *a)
{
    free(a->next);
    free(a->flags);
    free(a->rule_of);
    free(a->call_at);
    free(a->call);
    free(a->rule);
    free(a->follow);
    *a = (automaton){0};
}
