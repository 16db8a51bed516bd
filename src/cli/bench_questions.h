/* What hayate bench speculation asks: held-out tasks of the bundled generators, or prompts from a file. */
#ifndef HAYATE_CLI_BENCH_QUESTIONS_H
#define HAYATE_CLI_BENCH_QUESTIONS_H

#include "hayate.h"

enum { BENCH_MAX_QUESTIONS = 4096 };

typedef struct bench_questions {
    hy_ids *prompt; /* [count] owned */
    int count;
} bench_questions;

/* `count` held-out tasks of the sets whose answers are text, in turn. Ids beyond the vocabulary, of a foreign tokenizer, are
 * folded into it. */
hy_status bench_questions_make(const hy_model *model, int count, uint64_t seed, bench_questions *out, hy_error *err);
/* Token ids, a prompt a line; the first `count` of them, 0: all. HY_BAD_INPUT names the line. */
hy_status bench_questions_read(const hy_model *model, const char *path, int count, bench_questions *out, hy_error *err);
void bench_questions_free(bench_questions *q);
/* Tokens of a prompt, on average. */
double bench_questions_length(const bench_questions *q);

#endif
