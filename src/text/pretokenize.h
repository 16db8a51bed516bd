/*
 * Cutting text into pre-tokens: the pieces within which byte pairs are merged.
 *
 * The rule is the regular expression that the vocabulary was trained with. It is not run as one: a hand-written scanner
 * gives the same pieces in one pass, on any input, without backtracking. Patterns are therefore known by their text.
 */
#ifndef HAYATE_TEXT_PRETOKENIZE_H
#define HAYATE_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

/* How the known patterns differ. */
typedef struct pretokenize_rules {
    bool slash_after_punctuation; /* a run of punctuation takes '/' with the line ends that follow it */
    bool long_s;                  /* the contraction 's is also met with U+017F, which folds to s */
} pretokenize_rules;

/* The rules of MiniMax-M3, which are those of the o200k vocabulary. */
extern const pretokenize_rules pretokenize_m3;

/* The rules of a pattern as tokenizer.json spells it; false for one that is not known. */
bool pretokenize_find(const char *pattern, pretokenize_rules *rules);

/* The end of the pre-token that starts at `at` < length, where the next one starts; s must be valid UTF-8. */
size_t pretokenize_next(const pretokenize_rules *rules, const char *s, size_t length, size_t at);

#endif
