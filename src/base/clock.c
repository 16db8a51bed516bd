#include "base/clock.h"

#include <time.h>

double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool progress_add(progress *p, uint64_t count)
{
    p->done += count;
    if (!p->fn) return true;
    double now = clock_seconds();
    if (now < p->next) return true;
    p->next = now + 0.1;
    return p->fn(p->user, p->what, p->done, p->total, p->unit);
}

void progress_end(progress *p)
{
    if (p->fn) p->fn(p->user, p->what, p->done, p->total, p->unit);
}
