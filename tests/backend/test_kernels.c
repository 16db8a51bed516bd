/*
 * The inner loops of the cpu backend: every variant that this machine runs gives the bits of the portable one, the
 * exponential is within two units of the last place.
 */
#include "backend/random_model.h"

#include "backend/cpu/kernels.h"
#include "base/memory.h"
#include "number/bits.h"

static const cpu_kernels *all[4];
static int count;

static int setup(void **state)
{
    (void)state;
    count = cpu_kernels_all(all);
    for (int i = 0; i < count; i++) printf("# variant %s\n", all[i]->name);
    return 0;
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static double units(float got, double want)
{
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

static void exponential(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = -870000; i < 880000; i += 16) {
        float x[LANES], y[LANES], other[LANES];
        for (int n = 0; n < LANES; n++) x[n] = (float)(i + n) * 1e-4f;
        all[0]->exponential(x, y);
        for (int n = 0; n < LANES; n++) worst = fmax(worst, units(y[n], exp((double)x[n])));
        for (int v = 1; v < count; v++) {
            all[v]->exponential(x, other);
            assert_memory_equal(y, other, sizeof y);
        }
    }
    printf("# largest error of the exponential: %.3f units in the last place\n", worst);
    assert_true(worst < 2);
    float x[LANES] = {0, -0.0f, -INFINITY, INFINITY, NAN, -87.01f, -1e30f, 88.01f, 1e30f, 1e-45f, -1e-45f, -NAN},
          y[LANES];
    for (int v = 0; v < count; v++) {
        all[v]->exponential(x, y);
        assert_true(y[0] == 1 && y[1] == 1 && y[9] == 1 && y[10] == 1);
        assert_true(y[2] == 0 && y[5] == 0 && y[6] == 0);
        assert_true(isinf(y[3]) && isinf(y[7]) && isinf(y[8]));
        assert_true(isnan(y[4]) && isnan(y[11]));
    }
}

static void activation(void **state)
{
    (void)state;
    float gate[LANES] = {0, 1, -1, 7, 8, 100, INFINITY, -INFINITY, NAN, 0.5f, -80, -200, 3, 3, 3, 3};
    float up[LANES] = {1, 2, 3, 7, 8, -8, -100, 1, 1, NAN, 1, 1, 6.99f, -7, -1, INFINITY};
    for (int v = 0; v < count; v++) {
        float y[LANES], s[LANES];
        all[v]->swiglu(gate, up, 1, 1.702f, 7, 1, y);
        all[v]->sigmoid(gate, s);
        for (int n = 0; n < LANES; n++) {
            double g = gate[n] > 7 ? 7 : (double)gate[n], u = up[n] > 7 ? 7 : up[n] < -7 ? -7 : (double)up[n];
            double want = isinf(g) ? NAN : (u + 1) * g / (1 + exp(-1.702 * g));
            if (isnan(want)) {
                assert_true(isnan(y[n])); /* -inf * 0: nothing wrong turns into a number */
            } else {
                assert_true(fabs((double)y[n] - want) <= fabs(want) * 0x1p-8 + 1e-30);
                assert_int_equal(bits_of_float(y[n]), bits_of_float(bf16_round(y[n])));
            }
            if (isnan(gate[n]))
                assert_true(isnan(s[n]));
            else
                assert_true(fabs((double)s[n] - 1 / (1 + exp(-(double)gate[n]))) < 3e-7);
        }
    }
}

static void norms(void **state)
{
    (void)state;
    for (int n = 1; n < 100; n += n < 40 ? 1 : 13) {
        float *x = random_floats((size_t)n, 3, false), *gain = random_floats((size_t)n, 1, false), y[100], other[100];
        double squares = 0;
        for (int i = 0; i < n; i++) squares += (double)x[i] * x[i];
        all[0]->rms_norm(x, gain, n, 1e-6f, false, y);
        for (int i = 0; i < n; i++) {
            double want = (double)x[i] * gain[i] / sqrt(squares / n + 1e-6);
            assert_true(fabs((double)y[i] - want) <= fabs(want) * 1e-6);
        }
        for (int v = 1; v < count; v++) {
            all[v]->rms_norm(x, gain, n, 1e-6f, false, other);
            assert_memory_equal(y, other, (size_t)n * sizeof *y);
        }
        all[0]->rms_norm(x, gain, n, 1e-6f, true, x); /* in place */
        for (int i = 0; i < n; i++) assert_int_equal(bits_of_float(x[i]), bits_of_float(bf16_round(y[i])));
        free(x);
        free(gain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential),
        cmocka_unit_test(activation),   cmocka_unit_test(norms),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
