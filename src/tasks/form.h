/* Forms of answers: what form.c, form_fields.c and form_mark.c share. */
#ifndef HAYATE_TASKS_FORM_H
#define HAYATE_TASKS_FORM_H

#include <stdlib.h>

#include "tasks/make.h"

typedef enum form_kind {
    FORM_ONE_WORD,
    FORM_START, /* with a word */
    FORM_END,
    FORM_CAPITALS,
    FORM_LOWER,
    FORM_WORDS,   /* exactly so many */
    FORM_AT_MOST, /* so many words */
    FORM_JSON,    /* an object with one key */
    FORM_FIELDS,  /* an object with what a text says under several keys */
    FORM_NUMBERED,
    FORM_BULLETS,
    FORM_COMMAS,
    FORM_QUOTES,
    FORM_DIGITS,
    FORM_NUMBER_WORDS,
    FORM_NO_PUNCTUATION,
    FORM_PERSONA,
    FORM_YES_NO,
    FORM_KINDS,
} form_kind;

/* One of the sentences to take fields from, and keys for some of its fields, in any order: [key, ...]. Owned. */
json_t *form_fields_draw(int *sentence, draw *d);
/* A sentence with its numbers and names, the object, and {"fields": {...}}. */
void form_fields_turn(int sentence, const json_t *keys, draw *d, buffer *question, buffer *answer, json_t **expect);
/* {k}: "name", "age" and "city", with quotes or without. */
void form_name_keys(slots *v, const json_t *keys, draw *d);

bool form_mark(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid);

#endif
