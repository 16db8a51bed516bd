/* Reading JSON with jansson, so that errors are one clean line. */
#ifndef HAYATE_TEXT_JSON_READ_H
#define HAYATE_TEXT_JSON_READ_H

#include "hayate.h"

#include <jansson.h>

/*
 * Parses bytes; `flags` are jansson's. A failure is `status` with `what` (a file, or "") as the place and in front, the line and
 * column, and the reason. The result is released with json_decref; NULL on failure.
 */
json_t *json_read(const char *data, size_t size, size_t flags, hy_status status, const char *what, hy_error *err);

#endif
