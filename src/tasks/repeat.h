/* Words to say again. */
#ifndef HAYATE_TASKS_REPEAT_H
#define HAYATE_TASKS_REPEAT_H

#include "tasks/make.h"

/* A request to repeat something, and what. */
void repeat_make(draw *d, buffer *question, buffer *what);
/* So many words. */
void repeat_words(draw *d, int64_t count, buffer *what);
/* "Repeat: ..." in one of many forms. */
void repeat_ask(draw *d, const char *what, buffer *question);
/* Whether `text` says just `what`: the same but for white space and quotes around it and a full stop after it. */
bool repeat_equal(const char *text, const char *what);

#endif
