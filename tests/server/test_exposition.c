/* The text of metrics: numbers, labels, both formats, what is left out by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "server/exposition.h"

static void numbers(void **state)
{
    (void)state;
    /* As Python's client writes them. */
    static const struct {
        double value;
        const char *text;
    } all[] = {{0, "0.0"},
               {1, "1.0"},
               {-3, "-3.0"},
               {999999, "999999.0"},
               {1e6, "1e+06"},
               {1500000, "1.5e+06"},
               {1234567.25, "1.23456725e+06"},
               {-1234567, "-1234567.0"},
               {-1234567.5, "-1234567.5"},
               {1e16, "1e+16"},
               {123456.75, "123456.75"},
               {0.1, "0.1"},
               {0.025, "0.025"},
               {0.0001, "0.0001"},
               {0.00012, "0.00012"},
               {0.00001, "1e-05"},
               {1.5e-7, "1.5e-07"},
               {1e22, "1e+22"},
               {1.0 / 3, "0.3333333333333333"},
               {1796044383.159596, "1.796044383159596e+09"},
               {1.7976931348623157e308, "1.7976931348623157e+308"},
               {INFINITY, "+Inf"},
               {-INFINITY, "-Inf"},
               {NAN, "NaN"}};
    char out[32];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        exposition_number(all[i].value, out);
        assert_string_equal(out, all[i].text);
    }
    uint64_t seed = 5;
    for (int i = 0; i < 20000; i++) { /* what is written reads back equal */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        double value = ldexp((double)(seed >> 11), (int)(seed % 140) - 110);
        exposition_number(i % 2 ? value : -value, out);
        assert_true(strtod(out, NULL) == (i % 2 ? value : -value));
    }
}

static const double bounds[] = {0.5, 2};
static const hy_histogram two_bounds = {.bounds = bounds, .bound_count = 2, .counts = {1, 0, 3}, .sum = 12.5};

static void write(exposition *e)
{
    exposition_family(e, EXPOSITION_GAUGE, "g", "A \"gauge\"\\ of\nlines.");
    exposition_sample(e, 2, NULL);
    exposition_common(e, "model_name", "a\"b\\c\nd");
    exposition_common(e, "engine", "0");
    exposition_sample(e, 0.5, "z", "1", "a", "2", "f", "", NULL);
    exposition_family(e, EXPOSITION_COUNTER, "c", "C.");
    exposition_sample(e, 7, NULL);
    exposition_common(e, NULL, NULL);
    exposition_family(e, EXPOSITION_HISTOGRAM, "h", "H.");
    const exposition_label label = {"m", "x"};
    exposition_histogram(e, &two_bounds, &label, 1);
    exposition_family(e, EXPOSITION_SUMMARY, "s", "S.");
    exposition_summary(e, 2, 300, NULL, 0);
    exposition_end(e);
}

static void expect(exposition e, const char *text)
{
    buffer b = {0};
    e.out = &b;
    write(&e);
    assert_true(buffer_ok(&b));
    assert_string_equal(b.data ? b.data : "", text);
    buffer_free(&b);
}

static void text_format(void **state)
{
    (void)state;
    expect((exposition){.created = 5},
           "# HELP g A \"gauge\"\\\\ of\\nlines.\n# TYPE g gauge\ng 2.0\n"
           "g{a=\"2\",engine=\"0\",f=\"\",model_name=\"a\\\"b\\\\c\\nd\",z=\"1\"} 0.5\n"
           "# HELP c_total C.\n# TYPE c_total counter\nc_total{engine=\"0\",model_name=\"a\\\"b\\\\c\\nd\"} 7.0\n"
           "# HELP c_created C.\n# TYPE c_created gauge\nc_created{engine=\"0\",model_name=\"a\\\"b\\\\c\\nd\"} 5.0\n"
           "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"0.5\",m=\"x\"} 1.0\nh_bucket{le=\"2.0\",m=\"x\"} 1.0\n"
           "h_bucket{le=\"+Inf\",m=\"x\"} 4.0\nh_count{m=\"x\"} 4.0\nh_sum{m=\"x\"} 12.5\n"
           "# HELP h_created H.\n# TYPE h_created gauge\nh_created{m=\"x\"} 5.0\n"
           "# HELP s S.\n# TYPE s summary\ns_count 2.0\ns_sum 300.0\n"
           "# HELP s_created S.\n# TYPE s_created gauge\ns_created 5.0\n");
}

static void open_metrics(void **state)
{
    (void)state;
    expect((exposition){.created = 5, .open = true},
           "# HELP g A \\\"gauge\\\"\\\\ of\\nlines.\n# TYPE g gauge\ng 2.0\n"
           "g{a=\"2\",engine=\"0\",f=\"\",model_name=\"a\\\"b\\\\c\\nd\",z=\"1\"} 0.5\n"
           "# HELP c C.\n# TYPE c counter\nc_total{engine=\"0\",model_name=\"a\\\"b\\\\c\\nd\"} 7.0\n"
           "c_created{engine=\"0\",model_name=\"a\\\"b\\\\c\\nd\"} 5.0\n"
           "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"0.5\",m=\"x\"} 1.0\nh_bucket{le=\"2.0\",m=\"x\"} 1.0\n"
           "h_bucket{le=\"+Inf\",m=\"x\"} 4.0\nh_count{m=\"x\"} 4.0\nh_sum{m=\"x\"} 12.5\nh_created{m=\"x\"} 5.0\n"
           "# HELP s S.\n# TYPE s summary\ns_count 2.0\ns_sum 300.0\ns_created 5.0\n# EOF\n");
}

static void by_name(void **state)
{
    (void)state;
    const char *names[] = {"c_total", "h_sum", "g_total", "gg"};
    expect((exposition){.created = 5, .wanted = names, .wanted_count = 4},
           "# HELP c_total C.\n# TYPE c_total counter\nc_total{engine=\"0\",model_name=\"a\\\"b\\\\c\\nd\"} 7.0\n"
           "# HELP h H.\n# TYPE h histogram\nh_sum{m=\"x\"} 12.5\n");
    const char *born[] = {"c_created"};
    expect((exposition){.created = 5, .wanted = born, .wanted_count = 1},
           "# HELP c_created C.\n# TYPE c_created gauge\nc_created{engine=\"0\",model_name=\"a\\\"b\\\\c\\nd\"} 5.0\n");
    expect((exposition){.created = 5, .wanted = &names[3], .wanted_count = 1}, "");
    const char *list[] = {"c_tota,,h_sum,h_su", "s_count"};
    expect((exposition){.created = 5, .wanted = list, .wanted_count = 2},
           "# HELP h H.\n# TYPE h histogram\nh_sum{m=\"x\"} 12.5\n# HELP s S.\n# TYPE s summary\ns_count 2.0\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers),
        cmocka_unit_test(text_format),
        cmocka_unit_test(open_metrics),
        cmocka_unit_test(by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
