/* What the JSON schema of a tool says about the text of its arguments. */
#ifndef HAYATE_TEXT_TOOL_SCHEMA_H
#define HAYATE_TEXT_TOOL_SCHEMA_H

#include <jansson.h>
#include <stddef.h>

/* The parameters of a tool by name, borrowed; NULL when there is no such tool. */
const json_t *text_schema_of_tool(const json_t *tools, const char *name, size_t length);

/* The schema of an element inside one of schema `schema`, borrowed; NULL when nothing is known. */
const json_t *text_schema_of_child(const json_t *schema, const char *name, size_t length);

/* What an element with elements in it is: the first of a schema's types that can have any, else an object. */
typedef enum text_schema_shape { TEXT_SCHEMA_OBJECT, TEXT_SCHEMA_ARRAY } text_schema_shape;
text_schema_shape text_schema_of_elements(const json_t *schema);

#endif
