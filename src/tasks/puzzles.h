/*
 * Composite problems with answers 0 .. 999: several dependent steps each, so that hardly any can be answered at once.
 *
 * A puzzle is drawn once and can be worked any number of times: with care, or carelessly with one slip, which is
 * carried through to a wrong answer.
 */
#ifndef HAYATE_TASKS_PUZZLES_H
#define HAYATE_TASKS_PUZZLES_H

#include "tasks/make.h"

typedef enum puzzle_kind {
    PUZZLE_NESTED,      /* ((37*8)-15)*4 mod 1000 */
    PUZZLE_EQUATION,    /* 7x + 38 = 241, asked for 3x - 5 */
    PUZZLE_GCD,         /* by Euclid's steps, then times and plus */
    PUZZLE_DIGITS,      /* the digit sum of a product, then times */
    PUZZLE_COUNTING,    /* multiples of one number or another */
    PUZZLE_CHAIN,       /* variables, some of which do not matter */
    PUZZLE_PROGRESSION, /* sums of arithmetic progressions */
    PUZZLE_PAIR,        /* two of these, put together */
    PUZZLE_KINDS,
} puzzle_kind;

typedef struct puzzle {
    puzzle_kind kind;
    int form;
    int64_t n[12];
    struct puzzle_part {
        puzzle_kind kind;
        int64_t n[4];
    } part[2]; /* of PUZZLE_PAIR */
} puzzle;

/* A puzzle whose answer is 0 .. 999, by its exact numbers in the split. */
puzzle puzzle_draw(draw *d, task_split split);

void puzzle_ask(buffer *out, const puzzle *p, draw *d);
/* The answer; appends the working with care unless `out` is NULL. */
int64_t puzzle_work(buffer *out, const puzzle *p);
/* Works it carelessly with a slip; returns the answer, which is a wrong one. */
int64_t puzzle_slip(buffer *out, const puzzle *p, draw *d);

#endif
