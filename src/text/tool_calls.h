/*
 * From what a model wrote to its content and its tool calls: the inverse of what the chat template makes of them.
 *
 *     content NS<tool_call>
 *     NS<invoke name="N"> NS<k>value NS</k> ... NS</invoke>
 *     NS</tool_call>                                                with NS = "]<]minimax[>["
 *
 * A value is text as it stands, nothing escaped, or elements: members of an object by name, <item> for those of a list.
 * Text alone does not tell 5 from "5", so the schema of the tool decides (text_tool_value). Where it says that a value
 * is text, only NS</k> ends it: files that quote tags of this format arrive as they are. This module reads whole texts,
 * for which what follows the block is ignored, a second block too; streams are read by text/answer.h, over the same
 * grammar (text/call_machine.h). As in other servers of this model:
 *
 *     - a parameter named twice: the last one counts; a member named twice becomes a list
 *     - text beside elements becomes the member "$text"
 *     - elements under a list schema are its items whatever they are called; without a schema they are an object
 *
 * and, since models do write it and what is meant is plain, counted in `repairs`:
 *
 *     - the `<` of <invoke missing                                  NSinvoke name="N">
 *     - the opening tag of a parameter missing                      NSvalue NS</k>
 *     - text between parameters: it and the rest of that call are dropped; more than a little is a fault
 *     - the opening tag of the block missing                        NS<invoke name="N"> ... NS</invoke> NS</tool_call>
 */
#ifndef HAYATE_TEXT_TOOL_CALLS_H
#define HAYATE_TEXT_TOOL_CALLS_H

#include "hayate.h"

#include <jansson.h>

#define TEXT_TOOL_NAMESPACE "]<]minimax[>["
#define TEXT_TOOL_OPEN TEXT_TOOL_NAMESPACE "<tool_call>"
#define TEXT_TOOL_CLOSE TEXT_TOOL_NAMESPACE "</tool_call>"

typedef struct text_tool_calls {
    size_t content_length; /* content is that many bytes from the start of the text: all that stands before the block */
    bool block;            /* there is a block of calls */
    json_t *calls;         /* owned: [{"name": string, "arguments": object}], empty when there are none */
    int repairs;
} text_tool_calls;

/*
 * Reads the text after the reasoning, [length]. `tools` as the chat template takes them, or NULL. HY_BAD_INPUT with one
 * line for a block that is no list of calls; `calls` then holds those that stand complete before the fault. *out is to
 * be freed after either.
 */
hy_status text_tool_calls_read(const char *text, size_t length, const json_t *tools, text_tool_calls *out,
                               hy_error *err);
void text_tool_calls_free(text_tool_calls *calls);

/*
 * The JSON value that a text without elements stands for under a schema (NULL: none, which reads as string). A schema
 * with several types (a list of them, anyOf, oneOf) takes the first that the text can be; text that is none of them
 * stays a string. "null" in any case is null unless the type is string alone.
 *
 *     string, text, enum ...  as it is             integer, int64, unsigned ...  a whole number of 64 bits
 *     boolean, bool           true false 1 0       number, float, double ...     that, or a finite number
 *     object, dict, map       JSON, "" is {}       array, list                   JSON, "" is []
 *
 * Owned by the caller; NULL only without memory or for bytes that are not UTF-8.
 */
json_t *text_tool_value(const json_t *schema, const char *text, size_t length);

#endif
