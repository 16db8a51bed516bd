/*
 * What generators build tasks with. Memory that is not there ends the process: these are generators, not servers.
 *
 * A set is one `task_kind`, named in the table of tasks.c. Texts are filled from patterns: "{n} has {a} {t}" takes the
 * values of the letters n, a and t.
 */
#ifndef HAYATE_TASKS_MAKE_H
#define HAYATE_TASKS_MAKE_H

#include "base/buffer.h"
#include "tasks/tasks.h"

typedef struct task_kind {
    const char *name;
    const char *const *families; /* [..] and a NULL */
    /* Fills an empty task; its set is known. */
    void (*make)(task_split split, draw *d, int length, task *t);
    /* Never called for a turn that does not exist; reasoning and content are not NULL, *valid is false on entry. */
    bool (*mark)(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid);
} task_kind;

extern const task_kind tasks_arithmetic, tasks_synthaime, tasks_retrieval, tasks_tools, tasks_form, tasks_talk;

/* ---- Conversations -------------------------------------------------------------------------------------------- */

/* The head: `thinking` is a constant string, `system` may be NULL. */
void task_start(task *t, int family, const char *thinking, const char *system);
/* Appends any message, moved, without a turn; what tool calls and their results are made with. */
void task_append(task *t, json_t *message);
void task_user(task *t, const char *text);
/* An assistant message; `reasoning` is NULL or "" for none. */
void task_answer(task *t, const char *reasoning, const char *content);
/* The last message, an assistant's, loses its thought, and with one it is not to be imitated any more: what a client
 * that does not send thoughts back makes of it when it goes on. */
void task_forget(task *t);
/* The last message, an assistant's, is marked. `expect` is moved and may be NULL. */
void task_ask(task *t, int depth, json_t *expect);
/* Whether another turn should be added: there is none yet, or the length is not reached. */
bool task_wants(const task *t, int length);

/* Reads back: the text of a message's field, "" if it has none. */
const char *task_text(const task *t, size_t message, const char *field);

/* `j`, or the end of the process when it is NULL: for what jansson makes. */
json_t *task_json(json_t *j);
/* A string of bytes that are known to be UTF-8. */
json_t *task_string(const char *s);

/* ---- Texts ---------------------------------------------------------------------------------------------------- */

/* Values for the letters of patterns. */
typedef struct slots {
    const char *of[128];
    size_t used;
    char store[2048]; /* [used] copies and numbers */
} slots;

void slots_clear(slots *s);
void slots_text(slots *s, char letter, const char *text); /* borrowed */
void slots_copy(slots *s, char letter, const char *text);
void slots_number(slots *s, char letter, int64_t value);

/* Appends the pattern with its {x} replaced; a letter without a value is a fault of the pattern and aborts. */
void fill(buffer *out, const char *pattern, const slots *s);
void put_number(buffer *out, int64_t value);
/* The text so far, never NULL. */
const char *text_of(const buffer *b);
void buffer_check(const buffer *b); /* ends the process if an append failed */

/* The small differences between people's typing: case, a missing full stop, a greeting in front. Changes `b`. */
void vary_typing(buffer *b, draw *d);

/* ---- Marks ---------------------------------------------------------------------------------------------------- */

/* The last number of a text: digits with a minus sign that touches nothing before it, thousands separators and a
 * fraction of zeros allowed. False: there is none, or it is no whole number. */
bool last_number(const char *text, int64_t *out);
/* Whether the text has `word` with no letter or digit beside it; letters of either case are the same. */
bool has_word(const char *text, const char *word);

#endif
