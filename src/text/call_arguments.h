/*
 * The arguments of a tool call from the events of text/call_machine.h: as a value once they are complete, or written as
 * compact JSON while they arrive.
 *
 * While they arrive, strings and the items of lists go out as they come. What can only be known at its end waits for
 * it: numbers and other scalars, values of several types (but for string and null), JSON text, objects (a member that
 * comes twice makes a list), elements without a schema. A text that is not called one is a string as soon as
 * it is longer than CALL_TEXT_LIMIT and does not begin like JSON, and flows from there on. A parameter named twice is
 * written twice: nothing is taken back, and every reader of JSON takes the last.
 */
#ifndef HAYATE_TEXT_CALL_ARGUMENTS_H
#define HAYATE_TEXT_CALL_ARGUMENTS_H

#include "text/call_machine.h"

#include <jansson.h>

enum { CALL_TEXT_LIMIT = 1024 };

typedef struct call_frame call_frame;

typedef struct call_arguments {
    const json_t *tools; /* as the chat template takes them, or NULL; borrowed */
    const json_t *root;  /* the parameters of the tool of the call that is open, or NULL; borrowed */
    buffer *out;         /* where they are written; NULL: they are gathered as a value */
    call_frame *frames;  /* [CALL_NESTING_LIMIT], the call lowest; allocated with the first call */
    int depth;
    unsigned char tail_count;
    char tail[4]; /* [tail_count] a character that is not complete, of the string that goes out */
    bool failed;  /* memory ran out */
} call_arguments;

void call_arguments_free(call_arguments *a);

/* A call begins. */
void call_arguments_begin(call_arguments *a, const char *name, size_t length);

/* The events of elements. True: the element is text up to its end (CALL_LITERAL). */
bool call_arguments_open(call_arguments *a, const char *name, size_t length);
bool call_arguments_text(call_arguments *a, const char *text, size_t length);
/* False: the value is not UTF-8, which only a gathered one fails for; a written one has U+FFFD there. */
bool call_arguments_close(call_arguments *a);

/* The name of the innermost element, or of the call; borrowed. */
const char *call_arguments_name(const call_arguments *a);

/* The call ends in order: the gathered value, owned by the caller (NULL without memory); NULL when it was written. */
json_t *call_arguments_end(call_arguments *a);

/* It ends where it does not: what is open is closed. With `cut` the text itself ends there; then a value whose end is
 * not known is left out, since 12 may be the beginning of 120. */
void call_arguments_break(call_arguments *a, bool cut);

#endif
