/*
 * Sums with visible, column-wise steps, and the many ways to ask for them.
 *
 * Facts of one digit are always trained, since they must be learnt by heart; of the others a hash of the operands holds
 * one in sixteen back.
 */
#ifndef HAYATE_TASKS_SUMS_H
#define HAYATE_TASKS_SUMS_H

#include "tasks/make.h"

typedef enum sum_kind { SUM_ADD, SUM_SUBTRACT, SUM_THREE, SUM_MULTIPLY, SUM_DIVIDE, SUM_KINDS } sum_kind;

typedef struct sum {
    sum_kind kind;
    int64_t x[3]; /* operands; [2] is 0 but for SUM_THREE. Quotients are exact */
} sum;

sum sum_draw(draw *d, task_split split);
/* A number of so many digits, now and then a round one. */
int64_t sum_number(draw *d, int digits);
bool sum_held_out(const sum *s);
int64_t sum_result(const sum *s);
/* Problems that the adaptive mode answers without steps. */
bool sum_easy(const sum *s);
/* Those that can be answered without steps at all. */
bool sum_direct(const sum *s);

void sum_expression(buffer *out, const sum *s, bool spaced, char times);
/* The thought: columns, digits, carries. */
void sum_steps(buffer *out, const sum *s);
/* The same with the problem in front when it is not a fact. */
void sum_whole_thought(buffer *out, const sum *s);
/* "12 + 30 = 42." */
void sum_sentence(buffer *out, const sum *s);
/* One line of a longer thought: "23*4=80+12=92". */
void sum_inline(buffer *out, const sum *s);
/* The same for a quotient with a rest: "87/7=12 rest 3". */
void sum_inline_rest(buffer *out, int64_t a, int64_t b);

/* A question; *wants_steps when it asks for them. */
void sum_ask(buffer *out, const sum *s, draw *d, bool *wants_steps);

#endif
