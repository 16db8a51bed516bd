/* Sets of nodes of a grammar under construction, each once: what a deterministic automaton's states are made of. */
#ifndef HAYATE_TEXT_GRAMMAR_SUBSET_H
#define HAYATE_TEXT_GRAMMAR_SUBSET_H

#include "text/grammar_build.h"

typedef struct subset {
    builder *b;
    const bool *nullable; /* [rules] calls that may be passed; NULL: there are no calls */
    uint32_t *mark;       /* [nodes] */
    uint32_t stamp;
    int32_t *list; /* the set that is being made */
    size_t count, capacity;
    int32_t *pool; /* all sets */
    size_t pooled, pool_capacity;
    size_t *at; /* [states + 1] where each begins */
    size_t states, at_capacity;
    int32_t *slot; /* [slots] hash table of states, -1: free */
    size_t slots;
} subset;

/* False: no memory, which the builder knows. */
bool subset_open(subset *s, builder *b, const bool *nullable);
void subset_close(subset *s);

void subset_clear(subset *s);
void subset_add(subset *s, int32_t node);
/* Adds what is reached without a byte, `begin` also through EDGE_BEGIN, and keeps the nodes that matter: those with
 * bytes, calls or EDGE_END, and the ends of rules (`end`). */
void subset_complete(subset *s, int32_t end, bool begin);
/* The state of the set, new if `*made`; `apart`: new whatever there is, and never found again. -1 after a failure. */
int32_t subset_state(subset *s, bool apart, bool *made);
/* Whether `end` is reached from the state without a byte, where the text ends. */
bool subset_accepts(subset *s, int32_t state, int32_t end);

#endif
