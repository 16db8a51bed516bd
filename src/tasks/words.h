/* Words that generators put into their texts. */
#ifndef HAYATE_TASKS_WORDS_H
#define HAYATE_TASKS_WORDS_H

#include "tasks/make.h"

const char *word_name(draw *d);  /* of a person */
const char *word_thing(draw *d); /* things that are counted, plural */
const char *word_plain(draw *d); /* a common word, lower case */
/* A word that is none, of two or three syllables, into out[16]; returned. */
const char *word_made_up(draw *d, char out[16]);
/* The first letter as a capital, into out[32]; returned. */
const char *word_title(const char *word, char out[32]);
/* What a developer writes who wants nothing in particular. */
const char *word_system(draw *d);

#endif
