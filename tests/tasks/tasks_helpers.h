/* What the tests of the tasks room share. */
#ifndef TEST_TASKS_HELPERS_H
#define TEST_TASKS_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tasks/make.h"
#include "tasks/rows.h"

/* The tokenizer of the bundled model, opened once. */
static inline const row_tokens *tokens(void)
{
    static row_tokens found;
    static text_tokenizer *tok;
    hy_error err = {0};
    if (tok) return &found;
    if (text_tokenizer_open(TEST_SOURCE "/tools/nano/tokenizer", &tok, &err) != HY_OK ||
        row_tokens_find(tok, &found, &err) != HY_OK)
        fail_msg("%s: %s", err.where, err.message);
    return &found;
}

static inline const text_tokenizer *tokenizer(void)
{
    return tokens()->tokenizer;
}

static inline task make(task_set set, task_split split, uint64_t seed, uint64_t number, int length)
{
    task t;
    draw d = draw_begin(seed, number);
    task_make(set, split, &d, length, &t);
    return t;
}

#endif
