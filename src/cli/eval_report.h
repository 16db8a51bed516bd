/*
 * What an evaluation found, as tables for people and as JSON for programs.
 *
 *     {"nvfp4": {"arithmetic": {"score": 0.955, "stderr": 0.015, "n": 200, "valid": 1.0, "families": {...}}, ...},
 *      "bf16": {..., "arithmetic": {..., "difference": 0.005, "difference_stderr": 0.005}}}
 *
 * A way of running is named by its cache format, followed by what else differs from the default ("nvfp4 e4m3",
 * "nvfp4 dense"). Differences are to the first one, task by task. Scores are shares of right answers; that of perplexity is
 * exp of the mean negative log-probability of a written token, and its difference one of means of logarithms.
 */
#ifndef HAYATE_CLI_EVAL_REPORT_H
#define HAYATE_CLI_EVAL_REPORT_H

#include "base/json.h"
#include "cli/eval_run.h"

enum { EVAL_PERPLEXITY = TASK_SETS, EVAL_SETS };

/* "perplexity", or the name of a task set. */
const char *eval_set_name(int set);

/* One way of running the model. */
typedef struct eval_way {
    char name[64];
    eval_marks marks[EVAL_SETS]; /* empty: not asked */
    double seconds[EVAL_SETS];
} eval_way;

void eval_report_table(const eval_way *ways, int count, const int *lengths, int length_count);
void eval_report_json(const eval_way *ways, int count, const int *lengths, int length_count, buffer *out);

#endif
