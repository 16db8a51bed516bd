/*
 * Problems that a program can make and mark: one source for training data, evaluation and reinforcement learning.
 *
 * A task is a conversation in the form of the chat completions protocol, with the answers that a good model gives. Some
 * of its assistant messages are asked: a model is given what stands before one of them, and what it writes is marked.
 * Everything is drawn from a seeded generator, so a set, a split, a seed and a number name one task for good.
 *
 * Training never sees a held-out task: what makes a problem different from others (its operands, the name that is
 * looked up, the arguments of a call) is hashed, and one hash in sixteen belongs to TASK_HELD_OUT.
 *
 *     arithmetic   sums and word problems of several steps, with reasoning as long as the problem needs
 *     synthaime    composite problems with answers 0 .. 999, in three styles that the prompt does not announce: at
 * once, worked, worked with a slip; so a model that learned them is right in a third of its samples retrieval    values
 * of names in a long text, asked one after the other tools        calls with arguments of every JSON type, their
 * results, several turns, two calls at once form         what a system text asks of the form of an answer talk
 * greetings, what Hayate is and how to start it, and what the model does not know
 */
#ifndef HAYATE_TASKS_TASKS_H
#define HAYATE_TASKS_TASKS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tasks/draw.h"

typedef enum task_set {
    TASK_ARITHMETIC,
    TASK_SYNTHAIME,
    TASK_RETRIEVAL,
    TASK_TOOLS,
    TASK_FORM,
    TASK_TALK,
    TASK_SETS,
} task_set;

typedef enum task_split { TASK_TRAIN, TASK_HELD_OUT } task_split;

/* An assistant message that is marked. */
typedef struct task_turn {
    size_t message; /* its index in `messages`; all before it are the prompt */
    int depth;      /* retrieval: where the value stands, percent of the text; else 0 */
    json_t *expect; /* owned, or NULL: the generator's own, what its marker compares with */
} task_turn;

typedef struct task {
    task_set set;
    json_t *messages;     /* system?, user, assistant, ...; assistant messages carry "reasoning" and "tool_calls", and
                             "weight": 0 when they are history that a model is not to imitate */
    json_t *tools;        /* or NULL */
    const char *thinking; /* "enabled", "adaptive" or "disabled"; a constant */
    task_turn *turns;     /* [turn_count], ascending messages */
    size_t turn_count;
    int family;    /* the kind of problem within the set, for tables by kind: task_family_name */
    size_t tokens; /* about how many tokens it has, for generators to know when to stop */
} task;

/* "arithmetic", ... */
const char *task_set_name(task_set set);
/* TASK_SETS if there is none of that name. */
task_set task_set_find(const char *name);
/* Whether tasks of the set can be made. */
bool task_set_present(task_set set);
/* The name of a kind of problem; NULL if the set has no such family. */
const char *task_family_name(task_set set, int family);

/*
 * Makes a task. `length` is about how many tokens the conversation may have: retrieval fills it, the others add turns
 * until it is reached, one turn at least: 0 asks for a single one. Never fails but for memory, which ends the process
 * of a generator anyway: it aborts.
 */
void task_make(task_set set, task_split split, draw *d, int length, task *out);
void task_free(task *t);

/* SynthAIME-30: the held-out tasks 0 .. 29 of TASK_SYNTHAIME with this seed and length 0. */
#define TASK_SYNTHAIME_SEED 30u

/* What a model wrote for turn `turn`: its reasoning, and its text with tool calls as the chat format spells them (both
 * without the end marker). True: right. `valid` (may be NULL) says whether it can be understood at all: calls that
 * parse and fit their schemas, a number where one is wanted. */
bool task_mark(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid);

#endif
