/*
 * Tokens that may come in a place, remembered per state of the automaton.
 *
 * Whether a token may come depends on the frames of a place only if the token reaches beyond the rule that the place is
 * in. So a state has a profile that holds for all its places: the tokens that stay inside, as bits; and for those that
 * leave, the rest of their bytes behind every place where they can, as a prefix tree, which is walked from what the
 * frame returns to. In a string nearly all tokens stay inside, and the tree is that of what comes behind closing
 * quotes.
 *
 * In the body of a counted rule "inside" is the whole repetition, and its bounds come in through the number of bodies
 * that a token completes: so all lengths of a string share a profile.
 */
#ifndef HAYATE_TEXT_GRAMMAR_MASK_H
#define HAYATE_TEXT_GRAMMAR_MASK_H

#include <pthread.h>

#include "text/grammar_machine.h"
#include "text/token_trie.h"

/* A token that leaves, with the fewest and the most bodies that were complete where it did. */
typedef struct mask_exit {
    int32_t token, low, high;
} mask_exit;

typedef struct mask_token {
    int32_t token, bodies;
} mask_token;

typedef struct mask_profile {
    bool direct;    /* nothing is remembered: the tree of all tokens is walked */
    uint32_t *bits; /* [words] tokens that stay inside; NULL: they are `few` */
    int32_t *few;   /* [few_count] */
    uint32_t few_count;
    mask_token *counted; /* [counted_count] of a counted body: the same tokens, by bodies that they need, ascending */
    uint32_t counted_count;
    token_trie *exits; /* values are indexes into `exit`; NULL: none */
    mask_exit *exit;
} mask_profile;

/* Of one grammar and vocabulary; shared by threads. */
typedef struct mask_set {
    const automaton *a;
    const token_trie *trie;
    size_t words;                     /* of a mask */
    _Atomic(mask_profile *) *profile; /* [states] made when first asked for */
    pthread_mutex_t lock;             /* for making one: */
    machine walker[2];                /* plain, relative */
    int32_t *stack;                   /* [longest token + 1] positions */
    size_t bytes;                     /* that profiles take */
} mask_set;

bool mask_open(mask_set *s, const automaton *a, const token_trie *trie, size_t words);
void mask_close(mask_set *s);
/* Makes the profiles of states where most bytes may come, the inside of strings: some milliseconds each with a large
 * vocabulary, which a step should not wait for. */
void mask_warm(mask_set *s);

/* A request's own memory for masks. */
typedef struct mask_work {
    machine m;
    int32_t *stack;    /* [longest token + 1] */
    uint32_t *scratch; /* [words] */
} mask_work;

bool mask_work_open(mask_work *w, const mask_set *s);
void mask_work_close(mask_work *w);

/* Adds the bits of the tokens that may come at a position of w->m. */
void mask_add(mask_set *s, mask_work *w, int32_t position, uint32_t *mask);

#endif
