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

#include "base/file.h"
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

/* What the model writes as message i, without its thought and the end marker: content and calls. */
static inline void written_text(const task *t, size_t i, buffer *out, hy_error *err)
{
    buffer prompt = {0}, upto = {0};
    assert_int_equal(task_render(t, i, true, &prompt, err), HY_OK);
    assert_int_equal(task_render(t, i + 1, false, &upto, err), HY_OK);
    const char *close = NULL, *ai = NULL;
    for (const char *p = upto.data; (p = strstr(p, "]~b]ai\n")); p++) ai = p;
    assert_non_null(ai);
    close = strstr(ai, "</mm:think>");
    assert_non_null(close);
    close += strlen("</mm:think>");
    buffer_append(out, close, (size_t)(upto.data + upto.length - close) - strlen("[e~[\n"));
    buffer_free(&prompt), buffer_free(&upto);
}

#endif
