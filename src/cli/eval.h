/* The parts of `hayate eval`: asking (eval_run.h), reporting (eval_report.h), and this: what is run in which way. */
#ifndef HAYATE_CLI_EVAL_H
#define HAYATE_CLI_EVAL_H

#include "cli/eval_report.h"

enum { EVAL_MAX_WAYS = 8 };

typedef struct eval_flags {
    const char *formats, *readbacks, *selections; /* lists with commas */
    hy_model_options model;
    const char *show;
    const char *speculative; /* --speculative-config, checked; NULL: no drafts */
    uint64_t seed;
    int count; /* tasks of a set; 0: the default */
    bool full, json, verbose;
    bool wanted[EVAL_SETS];
} eval_flags;

/* Runs the wanted sets in every way and prints the report. */
hy_status eval_model(const char *path, const eval_flags *f, hy_error *err);

#endif
