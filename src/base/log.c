#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

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

void log_line(hy_log_level level, const char *format, ...)
{
    pthread_mutex_lock(&lock);
    hy_log_fn fn = level >= sink_level ? sink : NULL;
    void *user = sink_user;
    pthread_mutex_unlock(&lock);
    if (!fn) return;
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    utf8_one_line(line, ' ');
    fn(user, level, line);
}
