/*
 * Asking a model the tasks of a set and marking what it writes.
 *
 * Which tasks are asked depends on the set, the seed and the number alone, so two runs (two cache formats, two models)
 * answer the same ones and can be compared task by task.
 */
#ifndef HAYATE_CLI_EVAL_RUN_H
#define HAYATE_CLI_EVAL_RUN_H

#include "tasks/tasks.h"

#include "model/model.h"

/* One marked answer, or one conversation of a perplexity. */
typedef struct eval_mark {
    float score;   /* 1 right, 0 wrong; perplexity: mean negative log-probability of a written token */
    bool valid;    /* it could be understood at all */
    int32_t task;  /* samples and turns of one task share it */
    int32_t group; /* family; retrieval: index into `lengths` */
    int32_t depth; /* retrieval: percent */
    int32_t tokens;
} eval_mark;

typedef struct eval_marks {
    eval_mark *mark; /* [count], owned */
    size_t count, capacity;
} eval_marks;

enum { EVAL_SEQUENCES = 32 }; /* that an engine answers side by side */

typedef struct eval_options {
    uint64_t seed;
    int count;          /* tasks of a set; retrieval: haystacks of a length; perplexity: conversations */
    int samples;        /* answers to each task */
    float temperature;  /* 0: the most likely token */
    int limit;          /* tokens of an answer */
    const int *lengths; /* [length_count] tokens of a haystack, ascending */
    int length_count;
    bool random; /* retrieval: blocks of a generator instead of the index branch's */
    const hy_speculation *drafts; /* of the sets that an engine answers; NULL: none */
    const char *show; /* NULL, or "wrong", "all": answers to stdout */
} eval_options;

/* Adds the marks of a set. Progress goes to cli_progress as `what`. HY_CANCELLED after Ctrl-C. */
hy_status eval_set(hy_model *model, task_set set, const eval_options *o, const char *what, eval_marks *out,
                   hy_error *err);
/* Conversations of all sets in turn. */
hy_status eval_perplexity(hy_model *model, const eval_options *o, const char *what, eval_marks *out, hy_error *err);
void eval_marks_free(eval_marks *m);

/* Mean and standard error over tasks: the marks of a task are averaged first, since they are not independent. With
 * `group` >= 0 of that group, `depth` >= 0 of that depth alone. */
typedef struct eval_score {
    double score, stderr_, valid; /* valid: share */
    size_t n;                     /* marks */
} eval_score;
eval_score eval_score_of(const eval_marks *m, int group, int depth);
/* The same for differences b - a of marks that stand at the same place. */
eval_score eval_difference(const eval_marks *a, const eval_marks *b);

#endif
