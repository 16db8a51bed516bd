/* Time since an arbitrary point, in seconds, never going back; and the rate limiter of progress reports. */
#ifndef HAYATE_BASE_CLOCK_H
#define HAYATE_BASE_CLOCK_H

#include "hayate.h"

double clock_seconds(void);

/* Long work reports through this: at most ten calls a second, and always the last one. */
typedef struct progress {
    hy_progress_fn fn; /* may be NULL */
    void *user;
    const char *what, *unit;
    uint64_t done, total;
    double next;
} progress;

/* Adds `count` and reports if it is time. False: the receiver asked to stop. */
bool progress_add(progress *p, uint64_t count);
/* Reports the end. */
void progress_end(progress *p);

#endif
