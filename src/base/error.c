#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
    }
    return "unknown";
}

static hy_status fill(hy_error *err, hy_status status, const char *where, const char *format, va_list args)
{
    if (err) {
        err->status = status;
        vsnprintf(err->message, sizeof err->message, format, args);
        /* One line, whatever a file name or a client put into it. */
        for (char *p = err->message; *p; p++)
            if ((unsigned char)*p < 0x20 || *p == 0x7F) *p = '?';
        snprintf(err->where, sizeof err->where, "%s", where ? where : "");
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
