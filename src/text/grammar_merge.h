/*
 * Schemas as they apply: references resolved, allOf and neighbours of $ref and anyOf merged into one.
 *
 * Merged schemas are new; they and what failed are kept by the merger, so that results are borrowed from it.
 */
#ifndef HAYATE_TEXT_GRAMMAR_MERGE_H
#define HAYATE_TEXT_GRAMMAR_MERGE_H

#include "text/grammar_parts.h"

typedef struct merger {
    builder *b;
    const json_t *root; /* of references */
    json_t *made;       /* list that owns what was made */
    int depth;
} merger;

bool merger_open(merger *m, builder *b, const json_t *root);
void merger_close(merger *m);

/* What a reference means, borrowed. NULL: a failure, of which `place` is the name. */
const json_t *merge_resolve(merger *m, const json_t *reference, const char *place);
/* Both. */
const json_t *merge_both(merger *m, const json_t *x, const json_t *y, const char *place);
/* Without $ref and allOf at its top: the same, with what they say put in. */
const json_t *merge_flat(merger *m, const json_t *schema, const char *place);
/* The schema without a keyword. */
const json_t *merge_without(merger *m, const json_t *schema, const char *keyword);
/* Certainly no value is valid. */
bool merge_nothing(merger *m, const json_t *schema, int depth);
/* Whether a value is what the schema says itself, references and compositions left aside; and of one that stands in its
 * `enum`, which then is not searched. */
bool merge_fits(merger *m, const json_t *schema, const json_t *value);
bool merge_item_fits(merger *m, const json_t *schema, const json_t *value);
/* Whether `pattern` is found in the text. */
bool merge_found(merger *m, const char *pattern, const char *text);

#endif
