#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/utf8.h"

const char *hy_status_name(hy_status status)
{
    switch (status) {
    case HY_OK: return "ok";
    case HY_FAILED: return "failed";
    case HY_USAGE: return "usage";
    case HY_BAD_MODEL: return "bad model";
    case HY_NO_FIT: return "does not fit";
    case HY_BAD_INPUT: return "bad input";
    case HY_CANCELLED: return "cancelled";
    case HY_UNSUPPORTED: return "unsupported";
    case HY_LATE: return "late";
    case HY_BUSY: return "busy";
    }
    return "unknown";
}

/* One line, whatever a file name or a client put into it. */
static void copy_line(char *out, size_t size, const char *s)
{
    snprintf(out, size, "%s", s);
    utf8_one_line(out, '?');
}

static hy_status fill(hy_error *err, hy_status status, const char *where, const char *format, va_list args)
{
    if (err) {
        /* By way of a copy: the arguments may be the old message or place. */
        char message[sizeof err->message], place[sizeof err->where];
        vsnprintf(message, sizeof message, format, args); /* NOLINT: the checker does not follow va_start */
        snprintf(place, sizeof place, "%s", where ? where : "");
        err->status = status;
        copy_line(err->message, sizeof err->message, message);
        copy_line(err->where, sizeof err->where, place);
    }
    return status;
}

hy_status error_set(hy_error *err, hy_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, status, NULL, format, args);
    va_end(args);
    return status;
}

hy_status error_at(hy_error *err, hy_status status, const char *where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, status, where, format, args);
    va_end(args);
    return status;
}

hy_status error_memory(hy_error *err, const char *what, size_t bytes)
{
    return error_set(err, HY_NO_FIT, "out of memory: %zu bytes for %s", bytes, what);
}
