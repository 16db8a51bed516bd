/*
 * The inner loops of the cpu backend: every variant that this machine runs gives the bits of the portable one, decoding
 * is that of src/number, products are one chain, the exponential is within two units of the last place.
 */
#include "backend/random_model.h"

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
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

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* A whole panel in the pieces that products take. */
static void decode_panel(const cpu_kernels *kernels, const cpu_linear *l, int64_t panel, float *out)
{
    const uint8_t *data = l->data + (size_t)panel * l->panel_bytes;
    for (int64_t k = 0, piece = 32; k < l->cols; k += piece, piece = piece == 32 ? K_CHUNK : 32) {
        int64_t end = k + piece < l->cols ? k + piece : l->cols;
        switch (l->format) {
        case WEIGHT_BF16: kernels->decode_bf16(data, k, end, out + k * LANES); break;
        case WEIGHT_MXFP8: kernels->decode_mxfp8(data, k, end, out + k * LANES); break;
        case WEIGHT_NVFP4: kernels->decode_nvfp4(data, k, end, out + k * LANES); break;
        default: memcpy(out + k * LANES, data + (size_t)k * LINE, (size_t)(end - k) * LINE); break;
        }
    }
}

/* Every byte as a code and as a scale, in weights of awkward sizes, against weight_row. */
static void decoding(void **state)
{
    (void)state;
    static const struct {
        weight_format format;
        int64_t rows, cols;
    } cases[] = {
        {WEIGHT_BF16, 17, 256},  {WEIGHT_BF16, 16, 77},   {WEIGHT_F32, 3, 65},     {WEIGHT_F16, 33, 50},
        {WEIGHT_MXFP8, 37, 256}, {WEIGHT_MXFP8, 1, 32},   {WEIGHT_MXFP8, 16, 160}, {WEIGHT_NVFP4, 31, 256},
        {WEIGHT_NVFP4, 16, 16},  {WEIGHT_NVFP4, 20, 112}, {WEIGHT_NVFP4, 300, 96},
    };
    threads *pool;
    hy_error err = {0};
    check(threads_open(2, &pool, &err), &err);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t rows = cases[c].rows, cols = cases[c].cols;
        uint8_t *data = malloc((size_t)(rows * cols) * 4 + 1), *scales = malloc((size_t)(rows * cols));
        for (int64_t i = 0; i < rows * cols * 4 + 1; i++) data[i] = (uint8_t)(i * 167 + i / 256);
        for (int64_t i = 0; i < rows * cols; i++) scales[i] = (uint8_t)(i * 59);
        weight w = {
            .format = cases[c].format, .rows = rows, .cols = cols, .data = data + 1, .scales = scales, .global = 1};
        cpu_linear l;
        check(cpu_linear_pack(&w, "a test", pool, NULL, 0, &l, &err), &err);
        float *expected = malloc((size_t)cols * sizeof *expected), *decoded = malloc((size_t)cols * LINE);
        for (int v = 0; v < count; v++)
            for (int64_t r = 0; r < l.panels * LANES; r++) {
                memset(expected, 0, (size_t)cols * sizeof *expected);
                if (r < rows) weight_row(&w, r, expected);
                decode_panel(all[v], &l, r / LANES, decoded);
                for (int64_t k = 0; k < cols; k++) {
                    float got = decoded[k * LANES + r % LANES];
                    assert_true(isnan(expected[k]) ? isnan(got) : bits_of_float(got) == bits_of_float(expected[k]));
                }
            }
        free(data), free(scales), free(expected), free(decoded);
        cpu_linear_free(&l);
    }
    threads_close(pool);
}

/* All E4M3 codes in every byte of a lane, as the index cache holds them. */
static void cached_codes(void **state)
{
    (void)state;
    uint8_t panel[4 * LINE];
    float out[16 * LANES];
    for (int v = 0; v < count; v++)
        for (int first = 0; first < 256; first++) {
            for (size_t i = 0; i < sizeof panel; i++) panel[i] = (uint8_t)(first + (int)i);
            all[v]->decode_e4m3(panel, 0, 14, out);
            for (int k = 0; k < 14; k++)
                for (int n = 0; n < LANES; n++) {
                    float want = e4m3_to_float(panel[k / 4 * LINE + 4 * n + k % 4]), got = out[k * LANES + n];
                    assert_true(isnan(want) ? isnan(got) : bits_of_float(got) == bits_of_float(want));
                }
        }
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* Against scalar chains, for every number of rows and panels; sums go on from what is there. */
static void products(void **state)
{
    (void)state;
    enum { K = 37, ROWS = 19 };
    float *x = random_floats(ROWS * K, 1, false), *w = random_floats(MAX_PANELS * K * LANES, 1, false);
    const float *row[ROWS];
    for (int r = 0; r < ROWS; r++) row[r] = x + r * K;
    for (int v = 0; v < count; v++)
        for (int panels = 1; panels <= MAX_PANELS; panels++)
            for (int rows = 1; rows <= ROWS; rows++) {
                float sums[ROWS * MAX_PANELS * LANES];
                for (int i = 0; i < rows * panels * LANES; i++) sums[i] = (float)(i % 5);
                all[v]->product(row, rows, w, K * LANES, panels, K, sums);
                for (int i = 0; i < rows * panels * LANES; i++) {
                    float want = (float)(i % 5);
                    const float *xr = row[i / LANES / panels], *wp = w + (i / LANES % panels) * K * LANES + i % LANES;
                    for (int k = 0; k < K; k++) {
                        float product = xr[k] * wp[k * LANES];
                        want += product;
                    }
                    assert_int_equal(bits_of_float(sums[i]), bits_of_float(want));
                }
            }
    free(x);
    free(w);
}

/* Eight slices over K = 80, 3 groups of 32 of which the last is short: 5 slices are empty. */
static void slices(void **state)
{
    (void)state;
    enum { K = 80, N = 40 };
    arena memory = {0};
    threads *pool;
    hy_error err = {0};
    check(threads_open(1, &pool, &err), &err);
    float *values = random_floats(N * K, 1, true), *x = random_floats(K, 1, true);
    weight w = make_weight(&memory, WEIGHT_BF16, N, K, values, false);
    cpu_linear l;
    check(cpu_linear_pack(&w, "a test", pool, NULL, 0, &l, &err), &err);
    cpu_product work = {memory_alloc(PRODUCT_DECODED, sizeof(float)), memory_alloc(PRODUCT_SUMS, sizeof(float))};
    cpu_panel panel[3] = {{&l, 0}, {&l, 1}, {&l, 2}};
    const float *rows[1] = {x};
    for (int v = 0; v < count; v++) {
        const float *y = cpu_multiply(all[v], &work, panel, 3, rows, 1, true);
        for (int n = 0; n < N; n++) {
            float part[8] = {0};
            for (int i = 0; i < 8; i++)
                for (int k = i * 3 / 8 * 32; k < (i + 1) * 3 / 8 * 32 && k < K; k++)
                    part[i] += x[k] * values[n * K + k];
            float want = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
            assert_int_equal(bits_of_float(y[n]), bits_of_float(want));
        }
        y = cpu_multiply(all[v], &work, panel, 3, rows, 1, false);
        float want = 0;
        for (int k = 0; k < K; k++) want += x[k] * values[17 * K + k];
        assert_int_equal(bits_of_float(y[17]), bits_of_float(want));
    }
    memory_free(work.decoded);
    memory_free(work.sums);
    cpu_linear_free(&l);
    threads_close(pool);
    arena_free(&memory);
    free(values);
    free(x);
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
        all[v]->swiglu(gate, up, 1.702f, 7, y);
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
        cmocka_unit_test(decoding), cmocka_unit_test(cached_codes), cmocka_unit_test(products),
        cmocka_unit_test(slices),   cmocka_unit_test(exponential),  cmocka_unit_test(activation),
        cmocka_unit_test(norms),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
