/* The few facts that a small model knows by heart, and lists in a fixed order. */
#ifndef HAYATE_TASKS_FACTS_H
#define HAYATE_TASKS_FACTS_H

#include "tasks/make.h"

typedef struct fact {
    buffer question;
    buffer answer;  /* a sentence; a full stop at its end */
    char brief[64]; /* the answer in a word or a number */
    bool sum;       /* of small numbers, answered at once */
} fact;

/* A capital, an opposite, a sound, a colour, a count, a day or month, parity, the larger of two, a small sum. */
void fact_make(draw *d, fact *out);
/* One whose answer is a number of at most two digits. */
void fact_number(draw *d, fact *out);
/* A question that "Yes" or "No" answers; the answer is a sentence that begins with it. */
void fact_yes_no(draw *d, fact *out);
void fact_free(fact *f);

/* Lists: fruits, colours, ... always in this order. */
enum { LIST_SHORTEST = 2, LIST_LONGEST = 7 };
size_t list_count(void);
/* "fruits"; items 0 .. LIST_LONGEST - 1. */
const char *list_name(size_t list);
const char *list_item(size_t list, size_t i);
/* Whether a word is of the list, in any case. */
bool list_has(size_t list, const char *word, size_t length);

/* "forty-two"; 0 .. 999. Appends. */
void number_words(buffer *out, int64_t n);
/* "three" for lists and counts of words: 0 .. 12. */
const char *number_word(int n);

#endif
