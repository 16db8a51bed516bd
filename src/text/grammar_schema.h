/* From a JSON Schema to rules: shared by the files that write its types. */
#ifndef HAYATE_TEXT_GRAMMAR_SCHEMA_H
#define HAYATE_TEXT_GRAMMAR_SCHEMA_H

#include "base/buffer.h"
#include "text/grammar_merge.h"

typedef struct schema_writer {
    builder *b;
    json_rules j;
    merger m;
    json_t *memo; /* object: the text of a schema to its rule */
    buffer place; /* "$.properties.a" */
    int depth;
} schema_writer;

bool schema_open(schema_writer *w, builder *b, const json_t *root, const text_grammar_options *o, const char *place);
void schema_close(schema_writer *w);

/* Adds to the place; returns what to give to schema_leave. */
size_t schema_enter(schema_writer *w, const char *part, const char *name);
void schema_leave(schema_writer *w, size_t was);
const char *schema_place(const schema_writer *w);
hy_status schema_refuse(schema_writer *w, const char *keyword, const char *why);

/* The rule of a schema, one for all equal ones. */
int32_t schema_rule(schema_writer *w, const json_t *schema);
/* A keyword that counts; `otherwise` where it is not there. */
int32_t schema_count(schema_writer *w, const json_t *schema, const char *keyword, int32_t otherwise);

/* grammar_schema_object.c */
int32_t schema_put_object(schema_writer *w, const json_t *schema, int32_t from);
/* grammar_schema_string.c; without quotes and escapes in FORM_PLAIN, for tool calls, whose texts may not hold
 * `without`. */
int32_t schema_put_string(schema_writer *w, const json_t *schema, int32_t from);
int32_t schema_put_bare_string(schema_writer *w, const json_t *schema, int32_t from, const fsm *allowed);
bool schema_string_is_free(const json_t *schema); /* nothing is said of it */
int32_t schema_put_number(schema_writer *w, const json_t *schema, bool integer, int32_t from);

#endif
