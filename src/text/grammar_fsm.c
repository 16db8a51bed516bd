#include "text/grammar_fsm.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "text/grammar_subset.h"

/* One state more, without ways out. */
static int32_t add_state(builder *b, fsm *f, bool accept)
{
    if (b->status != HY_OK) return 0;
    if (f->count == FSM_STATES) {
        build_fail(b, HY_NO_FIT, "a pattern is too large: its automaton has more than %d states", FSM_STATES);
        return 0;
    }
    if (f->count == f->capacity) {
        size_t capacity = f->capacity ? f->capacity * 2 : 64;
        void *next = realloc(f->next, capacity * sizeof *f->next);
        if (next) f->next = next;
        bool *marks = next ? realloc(f->accept, capacity * sizeof *f->accept) : NULL;
        if (!marks) {
            build_fail(b, HY_NO_FIT, "there is no memory for a pattern");
            return 0;
        }
        f->accept = marks, f->capacity = capacity;
    }
    memset(f->next[f->count], 0xFF, sizeof *f->next);
    f->accept[f->count] = accept;
    return (int32_t)f->count++;
}

/* Bytes at which some edge of a state begins or ends: those between go the same way. */
static void mark_cuts(const subset *s, int32_t state, bool cut[257])
{
    const builder *b = s->b;
    memset(cut, 0, 257);
    for (size_t i = s->at[state]; i < s->at[state + 1]; i++)
        for (int32_t e = b->first[s->pool[i]]; e >= 0; e = b->edge[e].next)
            if (b->edge[e].kind == EDGE_BYTES) cut[b->edge[e].low] = cut[b->edge[e].high + 1] = true;
}

/* The set after one byte. */
static void advance(subset *s, int32_t state, int byte, int32_t end)
{
    const builder *b = s->b;
    subset_clear(s);
    if (!build_work(s->b, s->at[state + 1] - s->at[state])) return;
    for (size_t i = s->at[state]; i < s->at[state + 1]; i++)
        for (int32_t e = b->first[s->pool[i]]; e >= 0; e = b->edge[e].next)
            if (b->edge[e].kind == EDGE_BYTES && byte >= b->edge[e].low && byte <= b->edge[e].high)
                subset_add(s, b->edge[e].to);
    subset_complete(s, end, false);
}

fsm fsm_of(builder *b, int32_t start, int32_t end)
{
    fsm f = {0};
    subset s;
    bool made, cut[257];
    if (b->status == HY_OK && subset_open(&s, b, NULL)) {
        subset_clear(&s);
        subset_add(&s, start);
        subset_complete(&s, end, true);
        subset_state(&s, true, &made);
        add_state(b, &f, subset_accepts(&s, 0, end));
        for (int32_t at = 0; b->status == HY_OK && at < (int32_t)f.count; at++) {
            int32_t to = -1;
            mark_cuts(&s, at, cut);
            for (int byte = 0; byte < 256 && b->status == HY_OK; byte++) {
                if (byte == 0 || cut[byte]) {
                    advance(&s, at, byte, end);
                    to = s.count ? subset_state(&s, false, &made) : -1;
                    if (s.count && made) add_state(b, &f, subset_accepts(&s, to, end));
                }
                f.next[at][byte] = to;
            }
        }
        subset_close(&s);
    }
    return f;
}

/* Pairs of states; y may be in none (-1), which accepts nothing and stays. */
typedef struct pairs {
    int32_t (*pair)[2];
    size_t capacity;
    int32_t *slot;
    size_t slots;
} pairs;

static int32_t pair_state(builder *b, pairs *p, fsm *out, const fsm *x, const fsm *y, int32_t i, int32_t j,
                          bool without)
{
    size_t at = (size_t)(((uint64_t)(uint32_t)i << 32 | (uint32_t)j) * 0x9E3779B97F4A7C15u >> 40);
    for (;; at++) {
        int32_t have = p->slot[at & (p->slots - 1)];
        if (have < 0) break;
        if (p->pair[have][0] == i && p->pair[have][1] == j) return have;
    }
    bool in_y = j >= 0 && y->accept[j];
    int32_t state = add_state(b, out, x->accept[i] && in_y != without);
    if (b->status != HY_OK) return -1;
    if (!memory_reserve((void **)&p->pair, &p->capacity, out->count, sizeof *p->pair)) {
        build_fail(b, HY_NO_FIT, "there is no memory for a pattern");
        return -1;
    }
    p->pair[state][0] = i, p->pair[state][1] = j;
    return p->slot[at & (p->slots - 1)] = state;
}

static fsm product(builder *b, const fsm *x, const fsm *y, bool without)
{
    fsm out = {0};
    pairs p = {.slots = FSM_STATES * 2};
    if (b->status != HY_OK || !x->count) return out;
    p.slot = malloc(p.slots * sizeof *p.slot);
    if (!p.slot) {
        build_fail(b, HY_NO_FIT, "there is no memory for a pattern");
        return out;
    }
    memset(p.slot, 0xFF, p.slots * sizeof *p.slot);
    pair_state(b, &p, &out, x, y, 0, y->count ? 0 : -1, without);
    for (size_t at = 0; b->status == HY_OK && at < out.count && build_work(b, 256); at++) {
        int32_t i = p.pair[at][0], j = p.pair[at][1];
        for (int c = 0; c < 256 && b->status == HY_OK; c++) {
            int32_t in = x->next[i][c], jn = j >= 0 ? y->next[j][c] : -1;
            bool dead = in < 0 || (jn < 0 && !without);
            int32_t to = dead ? -1 : pair_state(b, &p, &out, x, y, in, jn, without);
            out.next[at][c] = to;
        }
    }
    free(p.slot);
    free(p.pair);
    return out;
}

fsm fsm_and(builder *b, const fsm *x, const fsm *y)
{
    return product(b, x, y, false);
}

fsm fsm_without(builder *b, const fsm *x, const fsm *y)
{
    return product(b, x, y, true);
}

void fsm_narrow(builder *b, fsm *f, fsm with, bool without)
{
    fsm made = product(b, f, &with, without);
    fsm_free(f);
    fsm_free(&with);
    *f = made;
}

bool fsm_has(const fsm *f, const char *text, size_t length)
{
    int32_t at = f->count ? 0 : -1;
    for (size_t i = 0; i < length && at >= 0; i++) at = f->next[at][(unsigned char)text[i]];
    return at >= 0 && f->accept[at];
}

bool fsm_nothing(const fsm *f)
{
    /* Every state is reached from the start. */
    for (size_t i = 0; i < f->count; i++)
        if (f->accept[i]) return false;
    return true;
}

int32_t fsm_put(builder *b, int32_t from, const fsm *f)
{
    int32_t to = build_node(b), base = (int32_t)b->nodes;
    for (size_t i = 0; i < f->count; i++) build_node(b);
    if (b->status != HY_OK || !f->count) return to;
    build_join(b, from, base);
    for (size_t i = 0; i < f->count; i++) {
        if (f->accept[i]) build_join(b, base + (int32_t)i, to);
        for (int c = 0, last; c < 256; c = last + 1) {
            int32_t next = f->next[i][c];
            for (last = c; last < 255 && f->next[i][last + 1] == next; last++) continue;
            if (next >= 0) build_bytes(b, base + (int32_t)i, c, last, base + next);
        }
    }
    return to;
}

void fsm_free(fsm *f)
{
    free(f->next);
    free(f->accept);
    *f = (fsm){0};
}
