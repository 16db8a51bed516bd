/*
 * The parts of retrieval: records (who, what, value) and the text that they stand in.
 *
 * Who a record is about is a made-up word for the most part; its hash decides the split, and so does that of a number
 * that is its value. All names of a text belong to its split, also those that nobody asks for.
 */
#ifndef HAYATE_TASKS_RETRIEVAL_H
#define HAYATE_TASKS_RETRIEVAL_H

#include "base/buffer.h"
#include "tasks/tasks.h"

enum { NAME_SIZE = 48, VALUE_SIZE = NAME_SIZE, RECORDS_MAX = 2048 };

typedef struct record {
    char name[NAME_SIZE];   /* one name a text, but for records that say more about a name */
    const char *attribute;  /* "code": what the value is of it */
    char value[VALUE_SIZE]; /* or the name of the record that it leads to */
    double at;              /* where it is to stand: 0 .. 1 */
    int depth;              /* where it stands, percent */
    int leads_to;           /* the record whose name is the value, -1 for a plain value */
} record;

typedef enum haystack_form { HAYSTACK_TEXT, HAYSTACK_LIST, HAYSTACK_CHAIN } haystack_form;

typedef struct haystack {
    record *records; /* [RECORDS_MAX] */
    int count;
    task_split split;
    haystack_form form;
    int separator;  /* of a list */
    int name_style; /* of most names */
    bool numbers;   /* other sentences may have numbers */
    bool bland;     /* the same few sentences over and over */
} haystack;

void haystack_begin(haystack *h, haystack_form form, task_split split, draw *d);
void haystack_free(haystack *h);

/* A name that the text does not have, of its split. */
void haystack_new_name(const haystack *h, draw *d, char out[NAME_SIZE]);
const char *haystack_new_attribute(draw *d);
/* A value that such a thing has. */
void haystack_new_value(const haystack *h, const char *attribute, draw *d, char out[VALUE_SIZE]);
/* A record of a new name with a plain value, somewhere in the text; its index. */
int haystack_add(haystack *h, draw *d);

/* Writes the text, about `tokens` long, records at their places (their depth is set), other sentences between. */
void haystack_write(haystack *h, draw *d, int tokens, buffer *out);

/* About how many tokens a piece of a text has. */
size_t haystack_tokens(haystack_form form, const char *text, size_t length);

#endif
