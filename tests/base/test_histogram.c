/* Histograms: where values fall, the 1-2-5 bounds, many threads at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>

#include "base/histogram.h"

static void places(void **state)
{
    (void)state;
    static const double bounds[] = {0.5, 1, 4};
    histogram h;
    hy_histogram out;
    histogram_init(&h, bounds, 3);
    const double values[] = {-1, 0.5, 0.75, 1, 1.5, 4, 4.25, 100};
    for (int i = 0; i < 8; i++) histogram_observe(&h, values[i]);
    histogram_read(&h, &out);
    assert_int_equal(out.bound_count, 3);
    assert_true(out.bounds[0] == 0.5 && out.bounds[2] == 4);
    const uint64_t expected[] = {2, 2, 2, 2};
    for (int i = 0; i < 4; i++) assert_int_equal(out.counts[i], expected[i]);
    assert_true(out.sum == 111);
    histogram_observe(&h, NAN);
    histogram_read(&h, &out);
    assert_int_equal(out.counts[3], 3);
    assert_true(out.sum == 111);
    histogram_init(&h, NULL, 0);
    histogram_observe(&h, 7);
    histogram_read(&h, &out);
    assert_int_equal(out.counts[0], 1);
}

static void one_two_five(void **state)
{
    (void)state;
    histogram h;
    histogram_init_125(&h, 2000);
    static const double expected[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000};
    assert_int_equal(h.bounds, 11);
    for (int i = 0; i < 11; i++) assert_true(h.bound[i] == expected[i]);
    histogram_init_125(&h, 1048576);
    assert_int_equal(h.bounds, 19);
    assert_true(h.bound[18] == 1e6);
    histogram_init_125(&h, 4);
    assert_int_equal(h.bounds, 2);
    histogram_init_125(&h, INFINITY);
    assert_int_equal(h.bounds, HISTOGRAM_BOUNDS);
}

enum { THREADS = 4, EACH = 20000 };

static void *observe_many(void *histogram_)
{
    for (int i = 0; i < EACH; i++) histogram_observe(histogram_, i % 3);
    return NULL;
}

static void threads_at_once(void **state)
{
    (void)state;
    static const double bounds[] = {0, 1};
    static histogram h;
    hy_histogram out;
    pthread_t thread[THREADS];
    histogram_init(&h, bounds, 2);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&thread[i], NULL, observe_many, &h), 0);
    for (uint64_t before = 0, now; before < THREADS * EACH / 2; before = now) { /* what is read never goes back */
        histogram_read(&h, &out);
        now = out.counts[0] + out.counts[1] + out.counts[2];
        assert_true(now >= before);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    histogram_read(&h, &out);
    int third = (EACH + 2) / 3;
    assert_int_equal(out.counts[0], THREADS * third);
    assert_int_equal(out.counts[0] + out.counts[1] + out.counts[2], THREADS * EACH);
    assert_true(out.sum == (double)out.counts[1] + 2 * (double)out.counts[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),
        cmocka_unit_test(one_two_five),
        cmocka_unit_test(threads_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
