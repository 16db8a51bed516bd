/*
 * The body of POST /v1/messages and of its count_tokens, turned into what the chat template and the engine take.
 *
 *     system            the first message. Blocks are joined; those that begin with x-anthropic-billing-header are left out:
 *                       they differ in every request, and so would the whole prompt. Messages of the role system, wherever
 *                       they stand, are joined to it: templates drop them elsewhere.
 *     text              text                         thinking            the turn's reasoning
 *     tool_use          a call of the turn           redacted_thinking   nothing: nobody here can read it
 *     tool_result       a tool message, before the other blocks of its turn; texts are joined by newlines, a tool_reference
 *                       is its tool's name, is_error puts "Error: " in front where the text does not begin so
 *     image, document   refused by name, as every other block
 *     a last turn of the assistant that is text is continued
 *
 * Sampling fields of chat completions (seed, min_p, ...) are read too. How hard to think: see dialect_effort. `thinking` sets
 * the template's thinking_mode (enabled, adaptive, disabled) unless chat_template_kwargs does; for a model that always thinks
 * "disabled" is refused and the others change nothing. After budget_tokens tokens thinking is ended. display "omitted" leaves
 * thinking out of the answer.
 */
#ifndef HAYATE_SERVER_MESSAGES_REQUEST_H
#define HAYATE_SERVER_MESSAGES_REQUEST_H

#include "server/generation.h"

typedef struct messages_options {
    bool count;         /* count_tokens: max_tokens is not wanted */
    bool always_thinks; /* the template has no thinking_mode */
} messages_options;

typedef struct messages_asked {
    json_t *fields;     /* owned: what is left for openai_read */
    int64_t max_tokens; /* 0 when counting */
    int64_t budget;     /* thinking.budget_tokens, 0: none */
    bool hide_thinking; /* thinking.display "omitted": its blocks are empty, but for the signature */
} messages_asked;

/*
 * Fills messages, kwargs, effort, tools and grammar of the plan. Owned by the caller, plan and fields, after a fault too.
 */
bool messages_request_read(const json_t *body, messages_options options, generation_plan *plan, messages_asked *asked,
                           request_fault *fault);

#endif
