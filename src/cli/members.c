#include "cli/members.h"

#include <limits.h>
#include <string.h>

#include "cli/cli.h"

bool members_among(const char *text, const char *choices)
{
    size_t n = strlen(text);
    for (const char *c = choices; *c; c += strcspn(c, "|"), c += *c == '|')
        if (n == strcspn(c, "|") && !strncmp(c, text, n)) return true;
    return false;
}

/* What a member lacks; NULL: it is right. */
static const char *fault_of(const member_spec *m, const json_t *value)
{
    if (json_is_null(value)) return NULL;
    switch (m->kind) {
    case MEMBER_ANY: return NULL;
    case MEMBER_TEXT: return json_is_string(value) ? NULL : "must be a text";
    case MEMBER_BOOL: return json_is_boolean(value) ? NULL : "must be true or false";
    case MEMBER_COUNT:
        return json_is_integer(value) && json_integer_value(value) >= 1 && json_integer_value(value) <= INT_MAX
                   ? NULL
                   : "must be a whole number from 1";
    case MEMBER_NUMBER: return json_is_number(value) ? NULL : "must be a number";
    case MEMBER_CHOICE:
        return json_is_string(value) && members_among(json_string_value(value), m->choices) ? NULL : "must be one of ";
    }
    return NULL;
}

static int unknown_member(const char *command, const char *flag, const char *name, const member_spec *specs,
                          size_t count)
{
    const char *best = NULL;
    int least = (int)strlen(name) / 3 + 2;
    for (size_t i = 0; i < count; i++) {
        int d = cli_edit_distance(name, specs[i].name);
        if (d < least) least = d, best = specs[i].name;
    }
    if (best) return cli_usage_error(command, "--%s has no member %.60s; did you mean %s?", flag, name, best);
    return cli_usage_error(command, "--%s has no member %.60s", flag, name);
}

int members_check(const char *command, const char *flag, const json_t *object, const member_spec *specs, size_t count)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        const member_spec *m = NULL;
        for (size_t i = 0; i < count; i++)
            if (!strcmp(specs[i].name, name)) m = &specs[i];
        if (!m) return unknown_member(command, flag, name, specs, count);
        const char *fault = fault_of(m, value);
        if (fault) {
            char choices[160];
            size_t n = 0;
            for (const char *c = m->kind == MEMBER_CHOICE ? m->choices : ""; *c && n < sizeof choices - 3; c++) {
                choices[n++] = *c == '|' ? ',' : *c;
                if (*c == '|') choices[n++] = ' ';
            }
            choices[n] = 0;
            return cli_usage_error(command, "--%s: %s %s%s", flag, name, fault, choices);
        }
    }
    return -1;
}
