/* What the renderers of conversations share. Private to chat_template.c and template_run.c. */
#ifndef HAYATE_TEXT_TEMPLATE_PARTS_H
#define HAYATE_TEXT_TEMPLATE_PARTS_H

#include "text/chat_template.h"

/* "an object", "a list", ... for messages */
const char *template_kind_of(const json_t *j);
bool template_absent(const json_t *j); /* NULL or null */
hy_status template_check_messages(const json_t *messages, hy_error *err);
hy_status template_check_tool(const json_t *tool, size_t i, hy_error *err);
/* Arguments of call k of message i as an object: given as one, or as JSON text of one, or not at all. *owned is to be
 * released. */
hy_status template_arguments(const json_t *given, size_t i, size_t k, json_t **owned, hy_error *err);
/* The reasoning of message i under either of its names; NULL when it has none. */
hy_status template_reasoning(const json_t *message, size_t i, const json_t **out, hy_error *err);
/* add_generation_prompt and continue_final_message, with their defaults, and whether they go together. */
hy_status template_ending(const json_t *kwargs, bool *generate, bool *continue_final, hy_error *err);

/* The interpreted ones: template_run.c. */
hy_status template_run(const text_template *chat, const json_t *messages, const json_t *tools, const json_t *kwargs,
                       buffer *out, hy_error *err);

#endif
