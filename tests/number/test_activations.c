/* NVFP4 activations of routed experts. The stored vectors were made by the same formulas in PyTorch. */
#include "number/nearest.h"

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/nvfp4.h"

enum { GROUPS = 2, N = GROUPS * NVFP4_GROUP };

static const struct vector {
    float x[N], row_scale;
    uint8_t fc1_scales[GROUPS], fc1[N / 2], fc2_scales[GROUPS], fc2[N / 2];
} vectors[] = {
    /* a bell, and a smaller one beside it */
    {{-0x1.058742p-1f, 0x1.073cd2p+0f,  -0x1.69a092p-2f, 0x1.f7c5bep-4f,  -0x1.73d2d4p-3f, -0x1.7f4a58p+0f,
      0x1.2307b4p-3f,  -0x1.0c6ec0p-1f, -0x1.fd69e2p-3f, -0x1.0cebf2p-1f, 0x1.72340ep+1f,  -0x1.307e46p-1f,
      0x1.4fd44cp+0f,  0x1.68a1b6p-2f,  -0x1.50abfcp+0f, -0x1.05e37ap-7f, 0x1.44e6bcp-8f,  0x1.01abf6p-5f,
      -0x1.0c9c20p-5f, -0x1.04eba4p-5f, -0x1.955728p-9f, -0x1.6747f2p-6f, 0x1.bfce84p-6f,  0x1.c3ba52p-7f,
      -0x1.01e32cp-7f, 0x1.946c38p-7f,  0x1.ed61a0p-7f,  0x1.8ab126p-7f,  0x1.4a8ddcp-5f,  -0x1.7eefbcp-6f,
      -0x1.b1e976p-6f, 0x1.71361ap-6f},
     0x1.1ap-10f,
     {0x7E, 0x4C},
     {0x4A, 0x19, 0xD9, 0xA1, 0xA9, 0xA7, 0x15, 0x0D, 0x62, 0xEF, 0xD9, 0x46, 0x4A, 0x44, 0xE7, 0x6E},
     {0x4F, 0x1E},
     {0x4A, 0x1A, 0xD9, 0xA1, 0xA9, 0xB7, 0x25, 0x0D, 0x61, 0xEE, 0xD9, 0x46, 0x4A, 0x44, 0xD7, 0x5E}},
    /* evenly spaced: full of ties */
    {{-2, -1.75f, -1.5f, -1.25f, -1, -0.75f, -0.5f, -0.25f, 0, 0.25f, 0.5f, 0.75f, 1, 1.25f, 1.5f, 1.75f,
      -6, -5.25f, -4.5f, -3.75f, -3, -2.25f, -1.5f, -0.75f, 0, 0.75f, 1.5f, 2.25f, 3, 3.75f, 4.5f, 5.25f},
     0x1.24p-9f,
     {0x71, 0x7E},
     {0xFF, 0xEE, 0xCD, 0xAB, 0x20, 0x43, 0x65, 0x76, 0xFF, 0xEE, 0xCD, 0xAB, 0x20, 0x43, 0x65, 0x76},
     {0x4B, 0x58},
     {0xFF, 0xEE, 0xCD, 0x9B, 0x10, 0x43, 0x65, 0x76, 0xFF, 0xEE, 0xCD, 0xAB, 0x20, 0x43, 0x65, 0x76}},
    /* a group far below its row, beside one that saturates the fixed factor of FC2 */
    {{-0x1.2eb72ap-19f, 0x1.5e25c0p-18f,  -0x1.5992a2p-16f, 0x1.73590cp-20f,  0x1.4cfa32p-18f, -0x1.96323ap-18f,
      -0x1.0cab16p-17f, 0x1.a9e0aep-20f,  0x1.de550cp-18f,  -0x1.f32ba2p-18f, 0x1.77e9eep-19f, 0x1.f54a6ep-19f,
      0x1.f67c96p-16f,  -0x1.58dd08p-19f, -0x1.cae37ep-18f, 0x1.64634cp-17f,  -0x1.89f144p+2f, -0x1.7a4df8p+7f,
      0x1.491ad0p+7f,   -0x1.dc8d3ap+8f,  0x1.3cd6a0p+7f,   0x1.0ceb5ap+8f,   0x1.2b3e58p+8f,  -0x1.02afbcp+6f,
      0x1.8dfa84p+8f,   -0x1.04bcf4p+5f,  -0x1.33f382p+8f,  0x1.a25732p+3f,   -0x1.23b73cp+8f, 0x1.505958p+6f,
      0x1.55fdbcp+7f,   0x1.bd3c24p+8f},
     0x1.6cp-3f,
     {0x01, 0x7E},
     {0, 0, 0, 0, 0, 0, 0, 0, 0xC0, 0xF4, 0x54, 0xA6, 0x96, 0x0E, 0x2E, 0x74},
     {0x01, 0x7E},
     {0, 0, 0, 0, 0, 0, 0, 0, 0xF0, 0xF7, 0x77, 0xC7, 0xA7, 0x1F, 0x5F, 0x77}},
};

static void stored_vectors(void **state)
{
    (void)state;
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++) {
        const struct vector *k = &vectors[v];
        uint8_t data[N / 2], scales[GROUPS];
        assert_true(nvfp4_fc1_quantise_row(k->x, GROUPS, data, scales) == k->row_scale);
        assert_memory_equal(scales, k->fc1_scales, sizeof scales);
        assert_memory_equal(data, k->fc1, sizeof data);
        nvfp4_fc2_quantise_row(k->x, GROUPS, data, scales);
        assert_memory_equal(scales, k->fc2_scales, sizeof scales);
        assert_memory_equal(data, k->fc2, sizeof data);
    }
}

static double clamped_scale(float x)
{
    double s = e4m3_formula(e4m3_nearest(x));
    return s < 0x1p-9 ? 0x1p-9 : s;
}

static float group_largest(const float *x)
{
    float amax = 0;
    for (int i = 0; i < NVFP4_GROUP; i++) amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

/* Both quantisers against their formulas with rounding by search; decoded floats against codes and scales. */
static void check_row(const float *x)
{
    uint8_t data[N / 2], scales[GROUPS];
    float decoded[N], direct[N], r = 1e-12f;
    for (int i = 0; i < N; i++) r = fmaxf(r, fabsf(x[i]));
    float row_scale = nvfp4_fc1_quantise_row(x, GROUPS, data, scales);
    assert_true(row_scale == bf16_round(divided(r, 2688)));
    nvfp4_decode_row(data, scales, GROUPS, NVFP4_EXACT, decoded);
    assert_true(nvfp4_fc1_round_row(x, GROUPS, direct) == row_scale);
    assert_memory_equal(decoded, direct, sizeof direct);
    for (int g = 0; g < GROUPS; g++) {
        float xn[NVFP4_GROUP];
        for (int i = 0; i < NVFP4_GROUP; i++) xn[i] = bf16_round(x[g * NVFP4_GROUP + i] * divided(2688, r));
        double a = clamped_scale(divided(group_largest(xn), 6));
        assert_int_equal(scales[g], e4m3_nearest(a));
        for (int i = 0; i < NVFP4_GROUP; i++) {
            unsigned code = e2m1_code(data, (uint64_t)(g * NVFP4_GROUP + i));
            assert_int_equal(code, e2m1_nearest(divided(xn[i], (float)a)));
            assert_int_not_equal(code, 8);
            assert_true((double)decoded[g * NVFP4_GROUP + i] == a * e2m1_formula(code));
        }
    }
    nvfp4_fc2_quantise_row(x, GROUPS, data, scales);
    nvfp4_decode_row(data, scales, GROUPS, NVFP4_EXACT, decoded);
    memcpy(direct, x, sizeof direct);
    nvfp4_fc2_round_row(direct, GROUPS, direct);
    assert_memory_equal(decoded, direct, sizeof direct);
    for (int g = 0; g < GROUPS; g++) {
        double b = clamped_scale(divided(group_largest(x + g * NVFP4_GROUP), 6) * 16);
        assert_int_equal(scales[g], e4m3_nearest(b));
        for (int i = 0; i < NVFP4_GROUP; i++) {
            unsigned code = e2m1_code(data, (uint64_t)(g * NVFP4_GROUP + i));
            assert_int_equal(code, e2m1_nearest(divided(x[g * NVFP4_GROUP + i], (float)(b / 16))));
            assert_true((double)decoded[g * NVFP4_GROUP + i] == b * e2m1_formula(code));
        }
    }
}

static void random_rows(void **state)
{
    (void)state;
    uint64_t seed = 77;
    for (int round = 0; round < 20000; round++) {
        float x[N];
        int row = (int)(draw_bits(&seed) % 60) - 45;
        for (int i = 0; i < N; i++) {
            int grid = (int)(draw_bits(&seed) % 193) - 96;
            x[i] = ldexpf(round % 3 ? draw_bell(&seed) : (float)grid / 16, row - (i / NVFP4_GROUP) * (round % 12));
        }
        check_row(x);
    }
}

static void zero_rows_and_wrong_numbers(void **state)
{
    (void)state;
    float x[N] = {0}, out[N];
    uint8_t data[N / 2], scales[GROUPS];
    x[5] = -0.0f;
    check_row(x);
    float row_scale = nvfp4_fc1_quantise_row(x, GROUPS, data, scales);
    assert_true(isfinite(row_scale) && row_scale > 0);
    for (int g = 0; g < GROUPS; g++) assert_int_equal(scales[g], 0x01);
    for (int i = 0; i < N / 2; i++) assert_int_equal(data[i], 0);
    nvfp4_fc2_quantise_row(x, GROUPS, data, scales);
    for (int g = 0; g < GROUPS; g++) assert_int_equal(scales[g], 0x01);
    for (int i = 0; i < N / 2; i++) assert_int_equal(data[i], 0);

    /* The largest element of a row gets code 6 and scale 448: only roundings to bf16 are left. */
    x[0] = 3.14f, x[20] = -1;
    row_scale = nvfp4_fc1_round_row(x, GROUPS, out);
    assert_true(fabsf(out[0] * row_scale / 3.14f - 1) < 0x1p-7f);

    /* A NaN anywhere in the row, or an infinity, must not come out as a number for that row. */
    x[20] = NAN;
    assert_true(isnan(nvfp4_fc1_round_row(x, GROUPS, out)));
    for (int i = 0; i < N; i++) assert_true(isnan(out[i]));
    nvfp4_fc2_round_row(x, GROUPS, out);
    assert_true(!isnan(out[0]) && isnan(out[16]) && isnan(out[20]));
    x[20] = -INFINITY;
    assert_true(isinf(nvfp4_fc1_round_row(x, GROUPS, out)));
    assert_true(isnan(out[20]));
    nvfp4_fc2_round_row(x, GROUPS, out);
    assert_true(out[20] == -2688);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_vectors),
        cmocka_unit_test(random_rows),
        cmocka_unit_test(zero_rows_and_wrong_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
