/* Values of flags as people write them: human integers, members of JSON objects by path; and how they are printed. */
#ifndef HAYATE_CLI_SERVE_VALUES_H
#define HAYATE_CLI_SERVE_VALUES_H

#include <jansson.h>

#include "base/buffer.h"
#include "hayate.h"

/* The spellings of cli_parse_size, or of cli_parse_count for what is counted, or -1 and auto, which are -1. False: none of
 * these, or beyond int64. */
bool values_human(const char *text, bool bytes, int64_t *out);
/* What a member's value means: JSON where it reads as JSON, a human integer where it reads as one, else a text. Owned by
 * the caller; NULL: text that is not UTF-8. */
json_t *values_member(const char *text);
/*
 * Sets a member: path "a" or "a.b.c" of the object `into`; "a.b+" appends the parts of "x,y" to a list. Objects on the way
 * are made, a value that stood there is replaced. False fills `why`: an empty name, too deep, a list that is none.
 */
bool values_set(json_t *into, const char *path, const char *text, char *why, size_t why_size);
/* As Python prints it: {'port': 8001, 'names': ['a', 'b'], 'x': None}. */
void values_python(buffer *out, const json_t *value);

#endif
