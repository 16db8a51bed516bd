/* NVFP4 of the cache and of checkpoint weights. */
#include "number/nearest.h"

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/nvfp4.h"

/* The definition with correctly rounded division and rounding by search. */
static void by_definition(const float *x, uint8_t *codes, uint8_t *scale)
{
    float amax = 1e-12f;
    for (int i = 0; i < NVFP4_GROUP; i++) amax = fmaxf(amax, fabsf(x[i]));
    double s = e4m3_formula(e4m3_nearest(divided(amax, 6)));
    if (s < 0x1p-9) s = 0x1p-9;
    *scale = (uint8_t)e4m3_nearest(s);
    for (int i = 0; i < NVFP4_GROUP; i++) codes[i] = (uint8_t)e2m1_nearest(divided(x[i], (float)s));
}

static void check_group(const float *x)
{
    uint8_t data[NVFP4_GROUP_BYTES], scale, codes[NVFP4_GROUP], want_scale;
    nvfp4_cache_quantise(x, data, &scale);
    by_definition(x, codes, &want_scale);
    if (scale != want_scale) fail_msg("scale 0x%02X, not 0x%02X", scale, want_scale);
    assert_true(scale != 0);
    for (int i = 0; i < NVFP4_GROUP; i++) {
        unsigned got = e2m1_code(data, (uint64_t)i);
        if (got != codes[i] || got == 8)
            fail_msg("x %a scale 0x%02X: code %u, not %u", (double)x[i], scale, got, codes[i]);
    }
}

static void every_bf16_as_largest(void **state)
{
    (void)state;
    uint64_t seed = 9;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float amax = float_from(h << 16), x[NVFP4_GROUP];
        if (isnan(amax)) continue;
        for (int i = 0; i < NVFP4_GROUP; i++)
            x[i] = isinf(amax) ? draw_bell(&seed) : bf16_round(amax * ((float)draw_bits(&seed) * 0x1p-31f - 1));
        x[h % NVFP4_GROUP] = amax;
        check_group(x);
    }
}

/* Groups on a grid of sixteenths of the scale, so that every tie of E2M1 comes up with every scale. */
static void ties_with_every_scale(void **state)
{
    (void)state;
    for (unsigned s = 1; s < 0x7F; s++) {
        float scale = e4m3_table[s], x[NVFP4_GROUP];
        for (int first = 1; first <= 96; first += 14) {
            x[0] = bf16_round(6 * scale), x[1] = -x[0];
            for (int i = 2; i < NVFP4_GROUP; i++) {
                x[i] = scale * (float)(first + i - 2) / 16 * (float)(i % 2 ? 1 : -1);
                if (x[i] != bf16_round(x[i])) x[i] = bf16_round(x[i]);
            }
            check_group(x);
        }
    }
}

/* Kernels may multiply instead of dividing: amax * RN(1/6) gives the same scale byte and x * RN(1/scale), cut towards
 * zero, the same code, for every bf16 number. */
static void multiplying_forms(void **state)
{
    (void)state;
    for (uint32_t h = 0; h <= 0x7F80; h++) {
        float a = float_from(h << 16), product = a * (float)(1.0 / 6);
        assert_int_equal(e4m3_from_float(fmaxf(product, 0x1p-9f)), e4m3_from_float(fmaxf(a / 6, 0x1p-9f)));
    }
    for (unsigned s = 1; s < 0x7F; s++) {
        float scale = e4m3_table[s], inverse = (float)(1.0 / (double)scale);
        for (uint32_t h = 0; h < 0x7F80; h++) {
            float x = float_from(h << 16);
            double exact = (double)x * (double)inverse;
            float cut = (float)exact;
            if ((double)cut > exact) cut = nextafterf(cut, 0);
            unsigned a = e2m1_from_float(cut), b = e2m1_from_float(x / scale);
            if (a != b) fail_msg("x %a scale 0x%02X: %u by product, %u by quotient", (double)x, s, a, b);
        }
    }
}

static void zero_saturation_and_nan(void **state)
{
    (void)state;
    float x[NVFP4_GROUP] = {0}, out[NVFP4_GROUP];
    uint8_t data[NVFP4_GROUP_BYTES], scale;
    x[3] = -0.0f, x[4] = 0x1p-12f, x[5] = -0x1p-12f; /* too small for the smallest scale */
    nvfp4_cache_quantise(x, data, &scale);
    assert_int_equal(scale, 0x01);
    for (int i = 0; i < NVFP4_GROUP_BYTES; i++) assert_int_equal(data[i], 0);
    nvfp4_decode_row(data, &scale, 1, NVFP4_EXACT, out);
    for (int i = 0; i < NVFP4_GROUP; i++) assert_true(out[i] == 0 && !signbit(out[i]));

    static const float big[] = {2688, 2704, 3000, 65504, 3e38f, INFINITY};
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        x[0] = big[i], x[1] = -big[i], x[2] = 448;
        nvfp4_cache_quantise(x, data, &scale);
        assert_int_equal(scale, 0x7E);
        assert_int_equal(data[0], 0xF7);
        assert_int_equal(data[1], 0x02);
        nvfp4_decode_row(data, &scale, 1, NVFP4_EXACT, out);
        assert_true(out[0] == 2688 && out[1] == -2688 && out[2] == 448);
        nvfp4_decode_row(data, &scale, 1, NVFP4_E4M3, out);
        assert_true(out[0] == 448 && out[1] == -448 && out[2] == 448);
    }

    for (int at = 0; at < NVFP4_GROUP; at++) {
        memset(x, 0, sizeof x);
        x[(at + 5) % NVFP4_GROUP] = 2, x[at] = NAN;
        nvfp4_cache_quantise(x, data, &scale);
        assert_int_equal(scale, 0x7F);
        for (int i = 0; i < NVFP4_GROUP_BYTES; i++) assert_int_equal(data[i], 0);
        nvfp4_decode_row(data, &scale, 1, NVFP4_EXACT, out);
        for (int i = 0; i < NVFP4_GROUP; i++) assert_true(isnan(out[i]));
    }
}

/* Every scale and byte, on both ways of reading. */
static void reading_back(void **state)
{
    (void)state;
    for (unsigned s = 0; s < 256; s++) {
        uint8_t data[256], scales[32];
        float exact[512], rounded[512];
        for (unsigned i = 0; i < 256; i++) data[i] = (uint8_t)i;
        memset(scales, (int)s, sizeof scales);
        nvfp4_decode_row(data, scales, 32, NVFP4_EXACT, exact);
        nvfp4_decode_row(data, scales, 32, NVFP4_E4M3, rounded);
        for (unsigned i = 0; i < 512; i++) {
            unsigned code = i % 2 ? i / 2 >> 4 : i / 2 & 15;
            double product = e4m3_formula(s) * e2m1_formula(code);
            if (isnan(product)) {
                assert_true(isnan(exact[i]) && isnan(rounded[i]));
                continue;
            }
            assert_true((double)exact[i] == product);
            assert_true((double)rounded[i] == e4m3_formula(e4m3_nearest(product)));
            assert_true(bits_from(rounded[i]) == bits_from(e4m3_table[nvfp4_product_e4m3((uint8_t)s, (uint8_t)code)]));
        }
    }
}

/* Rows are groups in order: nothing leaks from one to the next. */
static void rows_are_groups(void **state)
{
    (void)state;
    enum { GROUPS = 8 };
    uint64_t seed = 3;
    for (int round = 0; round < 500; round++) {
        float x[GROUPS * NVFP4_GROUP];
        uint8_t data[GROUPS * NVFP4_GROUP_BYTES], scales[GROUPS], one[NVFP4_GROUP_BYTES], scale;
        for (int i = 0; i < GROUPS * NVFP4_GROUP; i++)
            x[i] = bf16_round(ldexpf(draw_bell(&seed), (int)(draw_bits(&seed) % 24) - 12));
        nvfp4_cache_quantise_row(x, GROUPS, data, scales);
        for (int g = 0; g < GROUPS; g++) {
            nvfp4_cache_quantise(x + g * NVFP4_GROUP, one, &scale);
            assert_int_equal(scales[g], scale);
            assert_memory_equal(data + g * NVFP4_GROUP_BYTES, one, sizeof one);
            check_group(x + g * NVFP4_GROUP);
        }
    }
}

/* ---- Weights --------------------------------------------------------------------------------------------------- */

enum { WEIGHT_GROUPS = 64, WEIGHTS = WEIGHT_GROUPS * NVFP4_GROUP };

static float fill_weights(float *w, uint64_t *seed, int exponent)
{
    float amax = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        w[i] = bf16_round(ldexpf(draw_bell(seed), exponent));
        if (i / NVFP4_GROUP == 7) w[i] = 0;
        if (i / NVFP4_GROUP == 9) w[i] *= 0x1p-20f; /* a group too small for its tensor's scale */
        amax = fmaxf(amax, fabsf(w[i]));
    }
    return amax;
}

static void weights_against_definition(void **state)
{
    (void)state;
    uint64_t seed = 21;
    for (int exponent = -40; exponent <= 40; exponent += 4) {
        float w[WEIGHTS], divide[WEIGHTS], multiply[WEIGHTS];
        uint8_t data[WEIGHTS / 2], scales[WEIGHT_GROUPS];
        float amax = fill_weights(w, &seed, exponent);
        float global = nvfp4_weight_global(amax), scale_2 = nvfp4_weight_scale_2(amax);
        assert_true(global == divided(2688, amax) && scale_2 == divided(amax, 2688));
        nvfp4_weight_quantise_row(w, WEIGHT_GROUPS, global, data, scales);
        nvfp4_weight_decode_row(data, scales, WEIGHT_GROUPS, global, NVFP4_DIVIDE, divide);
        nvfp4_weight_decode_row(data, scales, WEIGHT_GROUPS, scale_2, NVFP4_MULTIPLY, multiply);
        for (int g = 0; g < WEIGHT_GROUPS; g++) {
            float y[NVFP4_GROUP];
            uint8_t codes[NVFP4_GROUP], scale;
            for (int i = 0; i < NVFP4_GROUP; i++) y[i] = w[g * NVFP4_GROUP + i] * global;
            by_definition(y, codes, &scale);
            assert_int_equal(scales[g], scale);
            for (int i = 0; i < NVFP4_GROUP; i++) {
                int at = g * NVFP4_GROUP + i;
                assert_int_equal(e2m1_code(data, (uint64_t)at), codes[i]);
                double product = e4m3_formula(scale) * e2m1_formula(codes[i]);
                assert_true(divide[at] == divided((float)product, global));
                assert_true(multiply[at] == (float)(product * (double)scale_2));
                /* One file divides by RN(2688/amax), the other multiplies by RN(amax/2688): two roundings each. */
                assert_true(fabsf(divide[at] - multiply[at]) <= 0x1p-22f * fabsf(divide[at]));
                /* Half a step of the code, plus what clips when the scale was rounded down. */
                double bound = e4m3_formula(scale) / (double)global;
                assert_true(fabs((double)divide[at] - (double)w[at]) <= bound * 1.0001);
            }
        }
        assert_int_equal(scales[7], 0x01);
        for (int i = 0; i < NVFP4_GROUP_BYTES; i++) assert_int_equal(data[7 * NVFP4_GROUP_BYTES + i], 0);
        assert_int_equal(scales[9], 0x01);
    }
}

/* With 2688/amax a power of two the two conventions are the same to the last bit. */
static void conventions_meet(void **state)
{
    (void)state;
    uint64_t seed = 4;
    float w[WEIGHTS], divide[WEIGHTS], multiply[WEIGHTS];
    uint8_t data[WEIGHTS / 2], scales[WEIGHT_GROUPS];
    fill_weights(w, &seed, -8);
    w[100] = 0.328125f; /* 2688 / 8192 */
    assert_true(nvfp4_weight_global(w[100]) == 8192 && nvfp4_weight_scale_2(w[100]) == 1.0f / 8192);
    nvfp4_weight_quantise_row(w, WEIGHT_GROUPS, 8192, data, scales);
    nvfp4_weight_decode_row(data, scales, WEIGHT_GROUPS, 8192, NVFP4_DIVIDE, divide);
    nvfp4_weight_decode_row(data, scales, WEIGHT_GROUPS, 1.0f / 8192, NVFP4_MULTIPLY, multiply);
    assert_memory_equal(divide, multiply, sizeof divide);
    assert_true(divide[100] == w[100]);
    /* What was decoded is a fixed point: quantising it again with the same factor gives its values back, except in
     * groups whose largest code is below 6, whose scale shrinks. */
    uint8_t again[WEIGHTS / 2], scales_again[WEIGHT_GROUPS];
    nvfp4_weight_quantise_row(divide, WEIGHT_GROUPS, 8192, again, scales_again);
    for (int g = 0; g < WEIGHT_GROUPS; g++) {
        int largest = 0;
        for (int i = 0; i < NVFP4_GROUP; i++) {
            int m = e2m1_code(data, (uint64_t)(g * NVFP4_GROUP + i)) & 7;
            largest = m > largest ? m : largest;
        }
        if (largest < 7) continue;
        assert_int_equal(scales[g], scales_again[g]);
        assert_memory_equal(data + g * NVFP4_GROUP_BYTES, again + g * NVFP4_GROUP_BYTES, NVFP4_GROUP_BYTES);
    }
}

static void factor_of_a_zero_tensor(void **state)
{
    (void)state;
    static const float none[] = {0, -0.0f, 0x1p-149f, 0x1p-120f};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_true(nvfp4_weight_global(none[i]) == 1);
        assert_true(nvfp4_weight_scale_2(none[i]) == 1);
    }
    assert_true(nvfp4_weight_global(0x1p-110f) == 2688 * 0x1p110f);
    assert_true(isnan(nvfp4_weight_global(NAN)) && isnan(nvfp4_weight_scale_2(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_as_largest),
        cmocka_unit_test(ties_with_every_scale),
        cmocka_unit_test(multiplying_forms),
        cmocka_unit_test(zero_saturation_and_nan),
        cmocka_unit_test(reading_back),
        cmocka_unit_test(rows_are_groups),
        cmocka_unit_test(weights_against_definition),
        cmocka_unit_test(conventions_meet),
        cmocka_unit_test(factor_of_a_zero_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
