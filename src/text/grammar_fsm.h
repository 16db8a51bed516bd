/* Deterministic automata over bytes, for what graphs cannot say: both of two languages, one without the other. */
#ifndef HAYATE_TEXT_GRAMMAR_FSM_H
#define HAYATE_TEXT_GRAMMAR_FSM_H

#include "text/grammar_build.h"

enum { FSM_STATES = 1 << 14 };

typedef struct fsm {
    int32_t (*next)[256]; /* [count] -1: none; state 0 is the start */
    bool *accept;         /* [count] */
    size_t count, capacity;
} fsm;

/* What leads from `start` to `end`, without calls. Failures are the builder's. */
fsm fsm_of(builder *b, int32_t start, int32_t end);
fsm fsm_and(builder *b, const fsm *x, const fsm *y);
/* x without y */
fsm fsm_without(builder *b, const fsm *x, const fsm *y);
/* f becomes f and `with`, or f without it; `with` is freed. */
void fsm_narrow(builder *b, fsm *f, fsm with, bool without);
bool fsm_has(const fsm *f, const char *text, size_t length);
bool fsm_nothing(const fsm *f); /* no text is accepted */
/* Its texts, from `from` on. */
int32_t fsm_put(builder *b, int32_t from, const fsm *f);
void fsm_free(fsm *f);

#endif
