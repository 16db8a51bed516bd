/* What the JSON schema of a tool says about the text of its arguments. */
#ifndef HAYATE_TEXT_TOOL_SCHEMA_H
#define HAYATE_TEXT_TOOL_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The parameters of a tool by name, borrowed; NULL when there is no such tool. */
const json_t *text_schema_of_tool(const json_t *tools, const char *name, size_t length);

/*
 * A schema without references: what a "$ref" into `root`, the parameters of the tool, stands for; the first that says
 * anything of an "allOf"; both in its alternatives too, and alternatives of alternatives in a row. A reference that
 * leads nowhere, or in a circle, says nothing. A new reference of jansson's (NULL for NULL); the schemas inside are as
 * they were.
 */
json_t *text_schema_resolve(const json_t *root, const json_t *schema);

/* The schema of an element inside one of schema `schema`, borrowed; NULL when nothing is known. */
const json_t *text_schema_of_child(const json_t *schema, const char *name, size_t length);

/* What an element with elements in it is: the first of a schema's types that can have any, else an object. */
typedef enum text_schema_shape { TEXT_SCHEMA_OBJECT, TEXT_SCHEMA_ARRAY } text_schema_shape;
text_schema_shape text_schema_of_elements(const json_t *schema);

/* Whether a schema may have elements: one of its types is an object or a list. */
bool text_schema_has_elements(const json_t *schema);

/*
 * Whether a schema says that the value is text: its types are strings by name ("string", "enum" ...) or an enumeration
 * without a type, and nothing else but null, which makes it `nullable`. No tag but its own end means anything in such a
 * value. Without a type it is not said: `text_schema_says_nothing`, where elements count and text is a string.
 */
bool text_schema_is_text(const json_t *schema, bool *nullable);
bool text_schema_says_nothing(const json_t *schema);

#endif
