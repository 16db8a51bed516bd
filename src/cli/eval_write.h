/* hayate eval --write-set: the training set's flags and report. */
#ifndef HAYATE_CLI_EVAL_WRITE_H
#define HAYATE_CLI_EVAL_WRITE_H

#include "cli/cli.h"

typedef struct eval_write_flags {
    const char *path; /* NULL: no set is to be written */
    const char *rows, *mix, *split;
    uint64_t tokens;
    int threads;
    int64_t seed;
} eval_write_flags;

eval_write_flags eval_write_defaults(void);
/* Appends the flags that only writing has; seed and threads are the command's own. */
int eval_write_table(eval_write_flags *f, cli_option *table, int count);
/* Writes the set with the tokenizer of `model`: a folder or a tokenizer.json. Returns the exit code. */
int eval_write(const char *model, const eval_write_flags *f);

#endif
