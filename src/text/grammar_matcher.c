/* One request's walk through a grammar, with the reasoning before it. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar_parts.h"

typedef enum phase {
    PHASE_OPEN,      /* reasoning has neither begun nor been skipped */
    PHASE_REASONING, /* everything may be said but the end */
    PHASE_GRAMMAR,
    PHASE_ENDED, /* an end token came */
} phase;

struct text_matcher {
    text_grammar *g;
    mask_work work;
    int32_t position;
    phase phase;
    text_reasoning reasoning;
    int32_t think, skip; /* the tokens of the markers; -1: none */
    int32_t *ends;       /* [end_count] */
    size_t end_count;
    struct {
        bool set; /* positions keep their numbers meanwhile */
        int32_t position;
        phase phase;
        text_reasoning reasoning;
    } mark;
};

text_matcher *text_matcher_open(const text_grammar *g, bool after_reasoning, text_reasoning_start start,
                                const int32_t *ends, size_t end_count)
{
    text_matcher *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->g = text_grammar_share(g);
    m->think = text_tokenizer_find(g->tok, TEXT_THINK_OPEN), m->skip = text_tokenizer_find(g->tok, TEXT_THINK_CLOSE);
    m->phase = PHASE_GRAMMAR;
    if (after_reasoning && start == TEXT_START_INSIDE) m->phase = PHASE_REASONING;
    if (after_reasoning && start == TEXT_START_OPEN) m->phase = PHASE_OPEN;
    text_reasoning_begin(&m->reasoning, TEXT_START_INSIDE);
    m->ends = malloc((end_count + 1) * sizeof *m->ends);
    bool ok = mask_work_open(&m->work, &g->masks) && m->ends;
    if (ok) {
        if (end_count) memcpy(m->ends, ends, end_count * sizeof *ends);
        m->end_count = end_count;
        m->position = machine_at(&m->work.m, g->start, MACHINE_BOTTOM);
    }
    if (ok && m->position >= 0) return m;
    text_matcher_close(m);
    return NULL;
}

void text_matcher_close(text_matcher *m)
{
    if (!m) return;
    mask_work_close(&m->work);
    text_grammar_release(m->g);
    free(m->ends);
    free(m);
}

/* Who looks ahead in every step never asks for a mask without a mark, so what has been remembered is tidied here too.
 */
void text_matcher_mark(text_matcher *m)
{
    if (m->position >= 0) m->position = machine_tidy(&m->work.m, m->position);
    m->mark.set = true, m->mark.position = m->position, m->mark.phase = m->phase, m->mark.reasoning = m->reasoning;
}

void text_matcher_back(text_matcher *m)
{
    m->mark.set = false, m->position = m->mark.position, m->phase = m->mark.phase, m->reasoning = m->mark.reasoning;
}

/* ---- Masks ---------------------------------------------------------------------------------------------------- */

static void allow(const text_matcher *m, uint32_t *mask, int32_t token, bool may)
{
    if (token < 0 || (size_t)token >= m->g->masks.words * 32) return;
    uint32_t bit = (uint32_t)1 << (token & 31);
    mask[token >> 5] = may ? mask[token >> 5] | bit : mask[token >> 5] & ~bit;
}

static void allow_ends(const text_matcher *m, uint32_t *mask, bool may)
{
    for (size_t i = 0; i < m->end_count; i++) allow(m, mask, m->ends[i], may);
}

/* A marker that is written in pieces may be completed by a token that says more: that must then begin the grammar's
 * text. */
static void guard_marker(text_matcher *m, uint32_t *mask)
{
    const token_trie *t = m->g->masks.trie;
    const char *rest = &TEXT_THINK_CLOSE[m->reasoning.held_count];
    uint32_t node = 0, end = t->count;
    if (!m->reasoning.held_count) return;
    while (node < end) {
        const trie_node *n = &t->node[node];
        if (n->byte != (uint8_t)*rest) {
            node = n->end;
            continue;
        }
        if (rest[1]) {
            rest++, end = n->end, node++;
            continue;
        }
        for (uint32_t v = token_trie_ends(t, node); v < token_trie_below(t, node); v++) {
            const trie_entry *e = &t->entry[v];
            int32_t to = machine_walk(&m->work.m, m->position, e->bytes + n->depth, e->length - n->depth);
            allow(m, mask, e->value, to >= 0);
        }
        return;
    }
}

bool text_matcher_mask(text_matcher *m, uint32_t *mask)
{
    size_t bytes = m->g->masks.words * sizeof *mask;
    if (m->phase == PHASE_REASONING) {
        if (!m->end_count && !m->reasoning.held_count) return false;
        memset(mask, 0xFF, bytes);
        allow_ends(m, mask, false);
        guard_marker(m, mask);
        return true;
    }
    memset(mask, 0, bytes);
    if (m->phase != PHASE_ENDED) {
        if (!m->mark.set) m->position = machine_tidy(&m->work.m, m->position);
        if (m->position < 0) return true; /* without memory: nothing, and the request fails */
        mask_add(&m->g->masks, &m->work, m->position, mask);
    }
    if (m->phase == PHASE_OPEN) allow(m, mask, m->think, true), allow(m, mask, m->skip, true);
    if (text_matcher_complete(m)) allow_ends(m, mask, true);
    return true;
}

/* ---- Tokens --------------------------------------------------------------------------------------------------- */

static bool is_end(const text_matcher *m, int32_t token)
{
    for (size_t i = 0; i < m->end_count; i++)
        if (m->ends[i] == token) return true;
    return false;
}

/* What a token says behind the marker that ends reasoning. */
static void take_rest(void *user, text_kind kind, const char *text, size_t length)
{
    text_matcher *m = user;
    if (kind == TEXT_CONTENT) m->position = machine_walk(&m->work.m, m->position, text, length);
}

static bool accept_reasoning(text_matcher *m, const char *bytes, size_t length)
{
    int32_t before = m->position;
    text_reasoning was = m->reasoning;
    text_reasoning_feed(&m->reasoning, bytes, length, take_rest, m);
    if (m->position < 0) {
        m->position = before, m->reasoning = was;
        return false;
    }
    if (!text_reasoning_active(&m->reasoning)) m->phase = PHASE_GRAMMAR;
    return true;
}

bool text_matcher_accept(text_matcher *m, int32_t token)
{
    size_t length;
    const char *bytes = text_tokenizer_bytes(m->g->tok, token, &length);
    bool special = text_tokenizer_is_special(m->g->tok, token);
    if (m->phase == PHASE_REASONING) return special || accept_reasoning(m, bytes, length);
    if (m->phase == PHASE_ENDED || m->position < 0) return false;
    if (m->phase == PHASE_OPEN && token >= 0 && (token == m->think || token == m->skip)) {
        m->phase = token == m->think ? PHASE_REASONING : PHASE_GRAMMAR;
        return true;
    }
    int32_t to = length && !special ? machine_walk(&m->work.m, m->position, bytes, length) : -1;
    if (to >= 0) {
        m->position = to, m->phase = PHASE_GRAMMAR;
        return true;
    }
    if (!is_end(m, token) || !text_matcher_complete(m)) return false;
    m->phase = PHASE_ENDED;
    return true;
}

bool text_matcher_complete(const text_matcher *m)
{
    if (m->phase == PHASE_REASONING || m->position < 0) return m->phase == PHASE_ENDED;
    return m->phase == PHASE_ENDED || m->work.m.position[m->position].over;
}

bool text_matcher_over(const text_matcher *m)
{
    if (m->phase == PHASE_ENDED) return true;
    return m->phase == PHASE_GRAMMAR && text_matcher_complete(m) && m->work.m.position[m->position].own == 0;
}

size_t text_matcher_places(const text_matcher *m)
{
    return m->position < 0 ? 0 : (size_t)m->work.m.position[m->position].own;
}

size_t text_matcher_remembered(const text_matcher *m)
{
    return m->work.m.positions;
}
