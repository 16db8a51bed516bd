/* Questions that have a fixed answer: small talk, the bundled model itself, Hayate. */
#ifndef HAYATE_TASKS_INTENTS_H
#define HAYATE_TASKS_INTENTS_H

#include "tasks/make.h"

typedef struct intent {
    const char *asks, *answers; /* alternatives between bars */
    const char *brief;          /* in one word */
    const char *need;           /* what a right answer says, or NULL: anything goes */
} intent;

extern const intent self_intents[], hayate_intents[];
extern const size_t self_intent_count, hayate_intent_count;

/* Appends one of the alternatives. */
void intent_pick(buffer *out, const char *alternatives, draw *d);

/* What the model does not know: a question and a polite answer; *brief is the answer in one word. */
void unknown_make(draw *d, buffer *question, buffer *answer, const char **brief);

#endif
