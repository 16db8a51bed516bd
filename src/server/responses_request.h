/*
 * The body of POST /v1/responses, turned into what the chat template and the engine take.
 *
 *     instructions, items of the roles system and developer   one first message, joined by empty lines: templates drop
 *                                                             further ones
 *     message                  a turn; parts input_text, output_text, text and refusal are its text
 *     reasoning                the reasoning of the assistant's turn that follows: its content, else its summary
 *     function_call            a call of the assistant's turn that it stands in
 *     function_call_output     a tool message
 *     everything else          refused by name
 *
 * Reasoning, message and calls that follow each other are one turn, as they were when they were made. Sampling fields of
 * chat completions (seed, stop, top_k, ...) are read too. How hard to think: reasoning.effort, else reasoning_effort, else
 * output_config.effort.
 */
#ifndef HAYATE_SERVER_RESPONSES_REQUEST_H
#define HAYATE_SERVER_RESPONSES_REQUEST_H

#include "server/generation.h"

typedef struct responses_asked {
    json_t *fields; /* owned: what is left for openai_read */
    json_t *turns;  /* owned: the conversation without the first message, for answers that go on from it */
    json_t *echo;   /* owned: parameters that the response repeats */
    const char *previous; /* previous_response_id; borrowed from the body */
    int64_t max_tokens;   /* 0: not given */
    int top_logprobs;
    bool logprobs, store, background;
} responses_asked;

/*
 * In two steps, since the first tells which conversation the second goes on from: `turns` of an earlier response (borrowed,
 * NULL: none). They fill messages, kwargs, effort, tools, grammar and background of the plan. `storing`: the
 * server keeps responses. Plan and `asked` are to be freed after a fault too.
 */
bool responses_request_read(const json_t *body, bool storing, generation_plan *plan, responses_asked *asked,
                            request_fault *fault);
bool responses_request_turns(const json_t *body, const json_t *turns, generation_plan *plan, responses_asked *asked,
                             request_fault *fault);
void responses_asked_free(responses_asked *asked);

#endif
