/*
 * Filling a caller's hy_error.
 *
 * Every function that can fail ends with `return error_set(err, STATUS, "...")`, so that the status and the message
 * are made in one place. Messages are one line: what was wrong, with the value, and what to do about it.
 */
#ifndef HAYATE_BASE_ERROR_H
#define HAYATE_BASE_ERROR_H

#include "hayate.h"

/* Sets status and message (printf form), clears `where`, and returns `status`. `err` may be NULL. */
hy_status error_set(hy_error *err, hy_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same with a place: a file, a tensor, a flag. */
hy_status error_at(hy_error *err, hy_status status, const char *where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Out of memory while allocating `bytes` for `what`. Returns HY_NO_FIT. */
hy_status error_memory(hy_error *err, const char *what, size_t bytes);

#endif
