/*
 * Word problems of one to five steps.
 *
 * A story is a pattern with its numbers, the steps from them to the answer, and why each step is taken; all in a small
 * notation, so that a story is one entry of a table:
 *
 *     text     "{N} has {a} {T} and buys {b} bags of {c}. How many {T} does {N} have now?"
 *     given    "a=5..40 b=2..6 c=3..9"     drawn numbers; "x=a*b" sets one from others; those that the text does not
 * show are drawn all the same steps    "p=b*c r=a+p"               + - * and exact /, : for a quotient with a rest, %
 * for the rest why      "In the bags|Together"      one for each step answer   "{N} has {r} {T} now."      the last
 * number is the answer, r
 *
 * Capitals are words: N M K people, T U things, P a place. Numbers are drawn again until every step comes out as a
 * positive whole number (a rest may be zero).
 */
#ifndef HAYATE_TASKS_STORIES_H
#define HAYATE_TASKS_STORIES_H

#include "tasks/make.h"

typedef struct story {
    const char *text, *given, *steps, *why, *answer;
} story;

extern const story stories[];
extern const size_t story_count;

/* How many steps it has: 1 .. 5. */
int story_steps(const story *s);

/* Appends question, thought and answer of a story with `steps` steps (4: or more) and numbers of the split; *result is
 * the answer. */
void story_make(draw *d, task_split split, int steps, buffer *question, buffer *thought, buffer *answer,
                int64_t *result);

/* Fills one, for tests: numbers from d, words too. False when the numbers do not come out. */
bool story_try(const story *s, draw *d, slots *v, int64_t numbers[128]);

#endif
