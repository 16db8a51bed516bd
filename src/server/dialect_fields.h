/* What the dialects of the server take from each other: fields of chats under the same names, how hard to think. */
#ifndef HAYATE_SERVER_DIALECT_FIELDS_H
#define HAYATE_SERVER_DIALECT_FIELDS_H

#include "server/openai.h"

/* An object with the fields of chats that `body` has and the other dialects take too: sampling, priority, cache_salt,
 * structured_outputs, ... ; for openai_read. What would ask for something that they have no place to tell (n,
 * prompt_logprobs, ...) is left out. Owned. */
json_t *dialect_fields(const json_t *body);

typedef enum dialect_kind { DIALECT_CHAT, DIALECT_MESSAGES, DIALECT_RESPONSES } dialect_kind;

/*
 * How hard to think: reasoning_effort of chats, output_config.effort of Messages, reasoning.effort of Responses. Every
 * dialect takes all three: its own before the others, those in the order in which they stand here. Any string is one, since
 * models may bring levels of their own. *effort gets a reference, NULL: not given.
 */
bool dialect_effort(const json_t *body, dialect_kind own, json_t **effort, request_fault *fault);

/*
 * Refuses to think less than a model can: when its template has no way to leave thinking out, an effort of "none" and the
 * variables thinking_mode "disabled", enable_thinking false and thinking false are faults instead of being dropped. After the
 * plan's effort and kwargs are read.
 */
bool dialect_can_think_so(const generation *g, request_fault *fault);
bool dialect_always_thinks(const generation_room *room);

/* enable_thinking false and thinking false become thinking_mode "disabled" where the model's template reads only that. */
void dialect_plain_switches(const hy_model *model, json_t *kwargs);
/* M3's template passes over a message of a role that it does not know, and over another thinking_mode than its three: both
 * are faults, of `messages` (NULL: there are none) and of the template's variables. */
bool dialect_known_words(const hy_model *model, const json_t *messages, const json_t *kwargs, request_fault *fault);

#endif
