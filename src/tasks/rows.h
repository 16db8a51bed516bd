/*
 * Tasks as rows of tokens: what a model is trained on.
 *
 * A row is one conversation from position 0. Its text is that of the chat template, and what the model writes is found
 * by a rule: the prompt of message i (all before it, with the generation prompt) is the beginning of the conversation
 * up to and with message i; what follows it, up to and with the end marker, is written by the model. Since an added
 * token stands at every boundary, the whole text can be encoded at once and the written spans found among the ids.
 */
#ifndef HAYATE_TASKS_ROWS_H
#define HAYATE_TASKS_ROWS_H

#include "base/buffer.h"
#include "tasks/tasks.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

enum { ROW_GIVEN = 0, ROW_WRITTEN = 1, ROW_PADDING = 255 };

/* The tokens that the rule needs, and what a row is padded with. */
typedef struct row_tokens {
    const text_tokenizer *tokenizer; /* borrowed */
    int32_t begin, end, open, close; /* "]~b]", "[e~[", "<mm:think>", "</mm:think>" */
    int32_t ai[4];                   /* [ai_count] "ai\n" */
    int32_t pad;                     /* "]!p~[", else the end marker */
    size_t ai_count;
} row_tokens;

/* HY_UNSUPPORTED when the tokenizer lacks a marker of the chat format or has ids that do not fit into 16 bits. */
hy_status row_tokens_find(const text_tokenizer *tokenizer, row_tokens *out, hy_error *err);

/* Appends the text of the first `count` messages, with the generation prompt if `generate`. */
hy_status task_render(const task *t, size_t count, bool generate, buffer *out, hy_error *err);

/* A row under construction. */
typedef struct row {
    int32_t *ids;     /* [count] of the whole conversation */
    uint8_t *weights; /* [count] */
    size_t count, capacity;
    size_t fits;    /* of these in the row: all whole turns */
    size_t written; /* of these written by the model */
    buffer text;    /* scratch */
} row;

/* Encodes a task for a row of `length` tokens: whole turns as long as they fit, `fits` is 0 when not even the first one
 * does. Messages with "weight": 0 are given. */
hy_status row_encode(row *r, const row_tokens *tokens, const task *t, size_t length, hy_error *err);
void row_free(row *r);

#endif
