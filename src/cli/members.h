/* Members of JSON objects on the command line: which there are and what they may be, as a table. */
#ifndef HAYATE_CLI_MEMBERS_H
#define HAYATE_CLI_MEMBERS_H

#include <jansson.h>

#include "hayate.h"

typedef enum member_kind {
    MEMBER_ANY,
    MEMBER_TEXT,
    MEMBER_BOOL,
    MEMBER_COUNT, /* a whole number from 1 */
    MEMBER_NUMBER,
    MEMBER_CHOICE,
} member_kind;

typedef struct member_spec {
    const char *name;
    member_kind kind;
    const char *choices; /* with | between */
} member_spec;

/* Every member of `object` (NULL: none) is in the table and of its kind; null is as absent. -1, or 2 after an error that is
 * printed, with the name that was probably meant. */
int members_check(const char *command, const char *flag, const json_t *object, const member_spec *specs, size_t count);
/* Whether `text` is one of `choices`. */
bool members_among(const char *text, const char *choices);

#endif
