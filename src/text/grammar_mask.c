#include "text/grammar_mask.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum {
    PROFILE_BYTES = 96 << 20, /* of all profiles of a grammar */
    FEW = 1024,               /* tokens that are kept as a list */
    EXITS = 1 << 17,          /* tokens that leave, more of which are not remembered */
    POSITIONS = 1 << 15,      /* of a walker */
    WARM = 8,
    MANY_BYTES = 100,
};

static const mask_profile direct = {.direct = true};

static void set_bit(uint32_t *mask, int32_t token)
{
    mask[token >> 5] |= (uint32_t)1 << (token & 31);
}

static void clear_bit(uint32_t *mask, int32_t token)
{
    mask[token >> 5] &= ~((uint32_t)1 << (token & 31));
}

/* ---- Opening and closing -------------------------------------------------------------------------------------- */

bool mask_open(mask_set *s, const automaton *a, const token_trie *trie, size_t words)
{
    *s = (mask_set){.a = a, .trie = trie, .words = words};
    pthread_mutex_init(&s->lock, NULL);
    s->profile = calloc((size_t)a->states + 1, sizeof *s->profile);
    s->stack = malloc((trie->longest + 1) * sizeof *s->stack);
    bool walkers = machine_open(&s->walker[0], a, false);
    walkers = machine_open(&s->walker[1], a, true) && walkers;
    return s->profile && s->stack && walkers;
}

static void free_profile(mask_profile *p)
{
    if (!p || p == &direct) return;
    free(p->bits);
    free(p->few);
    free(p->counted);
    free(p->exit);
    token_trie_free(p->exits);
    free(p);
}

void mask_close(mask_set *s)
{
    for (int32_t i = 0; s->profile && i < s->a->states; i++) free_profile(atomic_load(&s->profile[i]));
    free(s->profile);
    free(s->stack);
    for (int i = 0; i < 2; i++) machine_close(&s->walker[i]);
    pthread_mutex_destroy(&s->lock);
}

bool mask_work_open(mask_work *w, const mask_set *s)
{
    *w = (mask_work){0};
    w->stack = malloc((s->trie->longest + 1) * sizeof *w->stack);
    w->scratch = malloc(s->words * sizeof *w->scratch);
    return machine_open(&w->m, s->a, false) && w->stack && w->scratch;
}

void mask_work_close(mask_work *w)
{
    machine_close(&w->m);
    free(w->stack);
    free(w->scratch);
    *w = (mask_work){0};
}

/* ---- Making a profile ----------------------------------------------------------------------------------------- */

typedef struct finder {
    mask_set *s;
    machine *m;
    mask_profile *p;
    uint64_t follow[4]; /* bytes that can come behind the rule, or the repetition */
    mask_token *inside;
    size_t count, capacity;
    trie_entry *leaving;
    size_t leaving_count, leaving_capacity, exit_capacity;
    bool failed; /* no memory, or not worth it */
} finder;

static void add_inside(finder *f, uint32_t node, int32_t bodies)
{
    const token_trie *t = f->s->trie;
    uint32_t from = t->node[node].first, to = token_trie_ends(t, node);
    if (from == to) return;
    if (!memory_reserve((void **)&f->inside, &f->capacity, f->count + (to - from), sizeof *f->inside)) {
        f->failed = true;
        return;
    }
    for (uint32_t i = from; i < to; i++) f->inside[f->count++] = (mask_token){t->value[i], bodies};
}

/* All tokens below a node where the rule may be over, by the bytes that they have left. */
static void add_leaving(finder *f, uint32_t node, const machine_position *at)
{
    const token_trie *t = f->s->trie;
    uint32_t depth = t->node[node].depth;
    /* Children are visited by jumping over their subtrees. */
    for (uint32_t child = node + 1; child < t->node[node].end; child = t->node[child].end) {
        if (!byte_in(f->follow, t->node[child].byte)) continue;
        uint32_t from = t->node[child].first, to = token_trie_below(t, child);
        size_t need = f->leaving_count + (to - from);
        if (need > EXITS || !memory_reserve((void **)&f->leaving, &f->leaving_capacity, need, sizeof *f->leaving) ||
            !memory_reserve((void **)&f->p->exit, &f->exit_capacity, need, sizeof *f->p->exit)) {
            f->failed = true;
            return;
        }
        for (uint32_t i = from; i < to; i++) {
            f->p->exit[f->leaving_count] = (mask_exit){t->value[i], at->low, at->high};
            f->leaving[f->leaving_count] =
                (trie_entry){t->entry[i].bytes + depth, t->entry[i].length - depth, (int32_t)f->leaving_count};
            f->leaving_count++;
        }
    }
}

static void walk_tokens(finder *f, int32_t start)
{
    const token_trie *t = f->s->trie;
    machine *m = f->m;
    int32_t *stack = f->s->stack;
    stack[0] = start;
    for (uint32_t i = 0; i < t->count && !f->failed;) {
        const trie_node *n = &t->node[i];
        int32_t to = machine_step(m, stack[n->depth - 1], n->byte);
        if (to < 0) {
            i = n->end;
            continue;
        }
        const machine_position *at = &m->position[to];
        add_inside(f, i, at->bodies);
        if (at->over && i + 1 < n->end) add_leaving(f, i, at);
        stack[n->depth] = to;
        i = at->own ? i + 1 : n->end;
        f->failed |= m->failed || m->positions > POSITIONS;
    }
}

static int compare_bodies(const void *a, const void *b)
{
    const mask_token *x = a, *y = b;
    if (x->bodies != y->bodies) return x->bodies < y->bodies ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* What was found, in the form that masks are made from. */
static bool keep(finder *f, bool counted)
{
    mask_profile *p = f->p;
    size_t bytes = sizeof *p;
    if (f->count > FEW) {
        p->bits = calloc(f->s->words, sizeof *p->bits);
        if (!p->bits) return false;
        for (size_t i = 0; i < f->count; i++) set_bit(p->bits, f->inside[i].token);
        bytes += f->s->words * sizeof *p->bits;
    } else if (!counted && f->count) {
        p->few = malloc(f->count * sizeof *p->few);
        if (!p->few) return false;
        for (size_t i = 0; i < f->count; i++) p->few[i] = f->inside[i].token;
        p->few_count = (uint32_t)f->count;
        bytes += f->count * sizeof *p->few;
    }
    if (counted && f->count) {
        qsort(f->inside, f->count, sizeof *f->inside, compare_bodies);
        p->counted = f->inside, p->counted_count = (uint32_t)f->count;
        bytes += f->capacity * sizeof *f->inside;
        f->inside = NULL;
    }
    if (f->leaving_count) {
        p->exits = token_trie_make(f->leaving, f->leaving_count, false);
        if (!p->exits) return false;
        bytes += p->exits->count * sizeof *p->exits->node + f->leaving_count * (sizeof *p->exit + sizeof(int32_t));
    }
    if (f->s->bytes + bytes > PROFILE_BYTES) return false;
    f->s->bytes += bytes;
    return true;
}

/* Under the lock. */
static mask_profile *make_profile(mask_set *s, int32_t state)
{
    const automaton *a = s->a;
    int32_t rule = a->rule_of[state], frame = MACHINE_BOTTOM;
    bool counted = a->flags[state] & STATE_COUNTED;
    finder f = {.s = s, .m = &s->walker[counted]};
    f.p = calloc(1, sizeof *f.p);
    if (!f.p) return (mask_profile *)&direct;
    if (f.m->failed || f.m->positions > POSITIONS / 2) f.m->failed = false, machine_reset(f.m);
    if (!counted) memcpy(f.follow, a->follow[rule], sizeof f.follow);
    /* Any counted rule of this body will do: in a relative machine it tells the body and nothing else. */
    for (int32_t r = 0; counted && r < a->rules; r++) {
        if (a->rule[r].body != rule) continue;
        frame = machine_frame_of(f.m, ~r, 0, MACHINE_BOTTOM);
        for (int i = 0; i < 4; i++) f.follow[i] |= a->follow[r][i];
    }
    int32_t start = machine_at(f.m, state, frame);
    if (start >= 0) walk_tokens(&f, start);
    bool ok = start >= 0 && !f.failed && keep(&f, counted);
    free(f.inside);
    free(f.leaving);
    if (ok) return f.p;
    free_profile(f.p);
    return (mask_profile *)&direct;
}

static const mask_profile *profile_of(mask_set *s, int32_t state)
{
    mask_profile *p = atomic_load_explicit(&s->profile[state], memory_order_acquire);
    if (p) return p;
    pthread_mutex_lock(&s->lock);
    p = atomic_load(&s->profile[state]);
    if (!p) {
        p = make_profile(s, state);
        atomic_store_explicit(&s->profile[state], p, memory_order_release);
    }
    pthread_mutex_unlock(&s->lock);
    return p;
}

void mask_warm(mask_set *s)
{
    const automaton *a = s->a;
    int left = WARM;
    for (int32_t state = 0; state < a->states && left > 0; state++) {
        int bytes = 0;
        for (int c = 0; c < 256; c++) bytes += a->next[(size_t)state * (size_t)a->classes + a->class_of[c]] >= 0;
        if (bytes < MANY_BYTES) continue;
        profile_of(s, state);
        left--;
    }
}

/* ---- Masks ---------------------------------------------------------------------------------------------------- */

static void add_all(const mask_profile *p, size_t words, uint32_t *mask)
{
    if (p->bits)
        for (size_t i = 0; i < words; i++) mask[i] |= p->bits[i];
    for (uint32_t i = 0; i < p->few_count; i++) set_bit(mask, p->few[i]);
}

/* Those of a counted body for which `left` more bodies suffice. */
static void add_counted(const mask_profile *p, size_t words, int32_t left, uint32_t *scratch, uint32_t *mask)
{
    uint32_t low = 0, high = p->counted_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->counted[middle].bodies <= left)
            low = middle + 1;
        else
            high = middle;
    }
    if (!p->bits || low < p->counted_count / 2) {
        for (uint32_t i = 0; i < low; i++) set_bit(mask, p->counted[i].token);
    } else if (low == p->counted_count) {
        add_all(p, words, mask);
    } else {
        memcpy(scratch, p->bits, words * sizeof *scratch);
        for (uint32_t i = low; i < p->counted_count; i++) clear_bit(scratch, p->counted[i].token);
        for (size_t i = 0; i < words; i++) mask[i] |= scratch[i];
    }
}

static bool enough(const automaton_rule *rule, int32_t count)
{
    return count >= rule->min && count <= rule->max;
}

/* The tokens that leave, as far as what comes behind takes the rest of them. `counted`: NULL, or the frame of the
 * repetition. */
static void add_exits(mask_work *w, const automaton *a, const mask_profile *p, const machine_frame *counted,
                      int32_t after, uint32_t *mask)
{
    const token_trie *t = p->exits;
    machine *m = &w->m;
    w->stack[0] = after;
    for (uint32_t i = 0; i < t->count;) {
        const trie_node *n = &t->node[i];
        int32_t to = machine_step(m, w->stack[n->depth - 1], n->byte);
        if (to < 0) {
            i = n->end;
            continue;
        }
        for (uint32_t v = n->first; v < token_trie_ends(t, i); v++) {
            const mask_exit *e = &p->exit[t->value[v]];
            const automaton_rule *rule = counted ? &a->rule[~counted->ret] : NULL;
            /* Repetitions with an end count from there; of endless ones the frame says how many are surely there. */
            if (!rule || enough(rule, counted->count + e->low) || enough(rule, counted->count + e->high))
                set_bit(mask, e->token);
        }
        w->stack[n->depth] = to;
        i = m->position[to].own ? i + 1 : n->end;
    }
}

static void add_directly(const mask_set *s, mask_work *w, int32_t start, uint32_t *mask)
{
    const token_trie *t = s->trie;
    w->stack[0] = start;
    for (uint32_t i = 0; i < t->count && start >= 0;) {
        const trie_node *n = &t->node[i];
        int32_t to = machine_step(&w->m, w->stack[n->depth - 1], n->byte);
        if (to >= 0)
            for (uint32_t v = n->first; v < token_trie_ends(t, i); v++) set_bit(mask, t->value[v]);
        w->stack[n->depth] = to;
        i = to >= 0 && w->m.position[to].own ? i + 1 : n->end;
    }
}

static void add_place(mask_set *s, mask_work *w, machine_place at, uint32_t *mask)
{
    const mask_profile *p = profile_of(s, at.state);
    machine *m = &w->m;
    if (p->direct) {
        add_directly(s, w, machine_at(m, at.state, at.frame), mask);
        return;
    }
    bool counted = s->a->flags[at.state] & STATE_COUNTED;
    machine_frame frame = m->frame[at.frame];
    int32_t left = INT32_MAX;
    if (counted) {
        int32_t max = s->a->rule[~frame.ret].max;
        if (max != BUILD_ENDLESS) left = max - frame.count;
        add_counted(p, s->words, left, w->scratch, mask);
    } else {
        add_all(p, s->words, mask);
    }
    if (!p->exits) return;
    int32_t after = machine_after(m, counted ? frame.parent : at.frame);
    if (after >= 0) add_exits(w, s->a, p, counted ? &frame : NULL, after, mask);
}

void mask_add(mask_set *s, mask_work *w, int32_t position, uint32_t *mask)
{
    for (int32_t i = 0; i < w->m.position[position].own; i++) {
        const machine_position *p = &w->m.position[position]; /* positions move when there are more */
        add_place(s, w, w->m.place[p->begin + (uint32_t)i], mask);
    }
}
