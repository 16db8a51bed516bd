/*
 * A compiled grammar: the rules of a builder as deterministic automata that call each other.
 *
 * States are numbered over all rules. In a state of a rule a byte leads to another state of it (never to two), or some
 * rule is called with the state to return to. What cannot lead to the end of a text is left out, so that every state
 * that is reached can be completed. No rule can call itself before a byte has come.
 *
 * Does not change once made.
 */
#ifndef HAYATE_TEXT_GRAMMAR_AUTOMATON_H
#define HAYATE_TEXT_GRAMMAR_AUTOMATON_H

#include "text/grammar_build.h"

enum {
    STATE_ACCEPTS = 1, /* the rule's text may end here */
    STATE_LAST = 2,    /* and nothing else can happen: whoever returns here may as well return further */
    STATE_COUNTED = 4, /* of the body of a counted rule */
};

typedef struct automaton_call {
    int32_t rule, ret;
} automaton_call;

typedef struct automaton_rule {
    int32_t start;          /* state; of a counted rule that of its body */
    int32_t body, min, max; /* as in build_rule */
} automaton_rule;

typedef struct automaton {
    uint8_t class_of[256]; /* bytes that no state tells apart */
    int32_t classes;
    int32_t states, rules;
    int32_t *next;     /* [states, classes] -1: none */
    uint8_t *flags;    /* [states] STATE_... */
    int32_t *rule_of;  /* [states] */
    uint32_t *call_at; /* [states + 1] into `call` */
    automaton_call *call;
    automaton_rule *rule;  /* [rules] */
    uint64_t (*follow)[4]; /* [rules] bytes that may come after a text of it */
} automaton;

/* Of a builder without failure. HY_BAD_INPUT: no text at all, a rule that calls itself at once. HY_NO_FIT: too large.
 */
hy_status automaton_make(builder *b, int32_t root, automaton *out);
void automaton_free(automaton *a);

static inline bool byte_in(const uint64_t set[4], int byte)
{
    return set[byte >> 6] >> (byte & 63) & 1;
}

#endif
