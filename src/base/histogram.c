#include "base/histogram.h"

#include <assert.h>
#include <math.h>

void histogram_init(histogram *h, const double *bounds, int count)
{
    assert(count >= 0 && count <= HISTOGRAM_BOUNDS);
    h->bounds = count;
    for (int i = 0; i < count; i++) {
        assert(i == 0 || bounds[i - 1] < bounds[i]);
        h->bound[i] = bounds[i];
    }
    for (int i = 0; i <= HISTOGRAM_BOUNDS; i++) atomic_init(&h->count[i], 0);
    atomic_init(&h->sum, 0);
}

void histogram_init_125(histogram *h, double most)
{
    static const double digit[] = {1, 2, 5};
    double bounds[HISTOGRAM_BOUNDS], power = 1;
    int count = 0;
    for (; count < HISTOGRAM_BOUNDS && digit[count % 3] * power <= most; count++) {
        bounds[count] = digit[count % 3] * power;
        if (count % 3 == 2) power *= 10;
    }
    histogram_init(h, bounds, count);
}

void histogram_observe(histogram *h, double value)
{
    int i = 0;
    while (i < h->bounds && !(value <= h->bound[i])) i++;
    atomic_fetch_add_explicit(&h->count[i], 1, memory_order_relaxed);
    if (isnan(value)) return;
    double sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
    while (
        !atomic_compare_exchange_weak_explicit(&h->sum, &sum, sum + value, memory_order_relaxed, memory_order_relaxed))
        continue;
}

void histogram_read(const histogram *histogram_, hy_histogram *out)
{
    histogram *h = (histogram *)histogram_; /* atomic_load takes no const in C17 */
    out->bounds = h->bound, out->bound_count = (size_t)h->bounds;
    for (int i = 0; i <= HISTOGRAM_BOUNDS; i++)
        out->counts[i] = atomic_load_explicit(&h->count[i], memory_order_relaxed);
    out->sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
}
