/*
 * How often values were how large: counts between fixed bounds, and their sum.
 *
 * Any thread may observe, any thread may read meanwhile; nobody waits. An observation is a search among at most
 * HISTOGRAM_BOUNDS bounds and two atomic additions, some tens of nanoseconds. A reader may see the count of an
 * observation and not yet its sum, never half a number.
 */
#ifndef HAYATE_BASE_HISTOGRAM_H
#define HAYATE_BASE_HISTOGRAM_H

#include <stdatomic.h>

#include "hayate.h"

enum { HISTOGRAM_BOUNDS = HY_HISTOGRAM_BOUNDS };

typedef struct histogram {
    double bound[HISTOGRAM_BOUNDS]; /* [bounds] ascending */
    int bounds;
    atomic_uint_least64_t
        count[HISTOGRAM_BOUNDS + 1]; /* at most bound[i] and above bound[i - 1]; the last: above all */
    _Atomic double sum;
} histogram;

/* Copies `bounds`, of which there are at most HISTOGRAM_BOUNDS, ascending. */
void histogram_init(histogram *h, const double *bounds, int count);
/* Bounds 1, 2, 5, 10, 20, 50, ... up to the last one that is not above `most`. */
void histogram_init_125(histogram *h, double most);
/* NaN counts as above all and adds nothing. */
void histogram_observe(histogram *h, double value);
void histogram_read(const histogram *h, hy_histogram *out);

#endif
