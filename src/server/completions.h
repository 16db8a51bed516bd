/* POST /v1/completions: text or ids in, text out, nothing parsed. Private to the room. */
#ifndef HAYATE_SERVER_COMPLETIONS_H
#define HAYATE_SERVER_COMPLETIONS_H

#include "server/openai.h"

extern const generation_dialect completion_dialect;
/* The handler; `user` is the generation_room. */
void completions_handle(void *user, http_exchange *x);

/* Fields beside the common ones, for /openapi.json. */
extern const request_field completion_fields[];
extern const size_t completion_field_count;

/* Answers that were given are told with their log-probabilities and those of so many best tokens. */
void completions_show_logprobs(generation *g, int32_t best);

/* A prompt as the protocol has it (text, texts, ids, lists of ids) into plan.prompts; `texts` (may be NULL) gets an
 * owned list [plan.prompt_count] of what was given as text, NULL where ids were. Worker threads. */
bool completions_read_prompt(generation *g, const json_t *prompt, char ***texts, request_fault *fault);

#endif
