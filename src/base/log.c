#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static hy_log_fn sink;
static void *sink_user;
static hy_log_level sink_level;

void hy_log_set(hy_log_fn fn, void *user, hy_log_level level)
{
    pthread_mutex_lock(&lock);
    sink = fn, sink_user = user, sink_level = level;
    pthread_mutex_unlock(&lock);
}

bool log_wants(hy_log_level level)
{
    pthread_mutex_lock(&lock);
    bool wants = sink && level >= sink_level;
    pthread_mutex_unlock(&lock);
    return wants;
}

/* A line of any length; without memory for it as much as fits. */
static void write_line(hy_log_fn fn, void *user, hy_log_level level, const char *format, va_list args)
{
    char brief[1024], *line = brief;
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(brief, sizeof brief, format, args);
    if (length >= (int)sizeof brief) {
        char *whole = malloc((size_t)length + 1);
        if (whole) vsnprintf(line = whole, (size_t)length + 1, format, again);
    }
    va_end(again);
    utf8_one_line(line, ' ');
    fn(user, level, line);
    if (line != brief) free(line);
}

void log_line(hy_log_level level, const char *format, ...)
{
    pthread_mutex_lock(&lock);
    hy_log_fn fn = level >= sink_level ? sink : NULL;
    void *user = sink_user;
    pthread_mutex_unlock(&lock);
    if (!fn) return;
    va_list args;
    va_start(args, format);
    write_line(fn, user, level, format, args);
    va_end(args);
}
