#include "text/json_read.h"

#include "base/error.h"

#include <stdio.h>

json_t *json_read(const char *data, size_t size, size_t flags, hy_status status, const char *what, hy_error *err)
{
    json_error_t e;
    json_t *json = json_loadb(data, size, flags, &e);
    if (json) return json;
    /* jansson quotes the input in its text: keep that printable. */
    char reason[sizeof e.text];
    snprintf(reason, sizeof reason, "%s", e.text);
    for (char *c = reason; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F) *c = '?';
    error_at(err, status, what, "%s%snot valid JSON at line %d, column %d: %s", what, *what ? ": " : "", e.line,
             e.column, reason);
    return NULL;
}
