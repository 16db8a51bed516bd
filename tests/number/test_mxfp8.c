/* MXFP8 blocks of 32: the rounded-up scale for every bf16 magnitude, codes against a search, decoding of all bytes. */
#include "number/nearest.h"

#include "number/e4m3.h"
#include "number/mxfp8.h"

/* The rule in exact terms: the smallest power of two s with amax <= 448 s. */
static int ceil_scale(double amax)
{
    int e;
    double m = frexp(amax / 448, &e); /* amax/448 = m 2^e, m in [0.5, 1): exact enough to see m = 0.5 */
    return (m == 0.5 ? e - 1 : e) + 127;
}

static void scale_of_every_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h <= 0x7F80; h++) {
        float amax = float_from(h << 16), x[MXFP8_BLOCK];
        uint8_t data[MXFP8_BLOCK], scale;
        for (int sign = 0; sign < 2; sign++) {
            memset(x, 0, sizeof x);
            x[h % MXFP8_BLOCK] = sign ? -amax : amax;
            mxfp8_quantise(x, data, &scale);
            int want = h == 0 ? 0 : isinf(amax) ? 254 : (double)amax / 448 < 0x1p-126 ? 1 : ceil_scale(amax);
            if (scale != want) fail_msg("amax %a: scale %u, not %d", (double)amax, scale, want);
            if (isinf(amax)) continue;
            /* Nothing clips: the largest element is rounded, not cut, and uses the upper half of the range. */
            double scaled = (double)amax * ldexp(1, 127 - scale);
            assert_true(scaled <= 448);
            if (want > 1) assert_true(scaled > 224);
            assert_int_equal(data[h % MXFP8_BLOCK], e4m3_nearest(sign ? -scaled : scaled));
        }
    }
}

static void random_blocks(void **state)
{
    (void)state;
    uint64_t seed = 5;
    enum { BLOCKS = 3 };
    for (int round = 0; round < 2000; round++) {
        float x[BLOCKS * MXFP8_BLOCK], back[BLOCKS * MXFP8_BLOCK];
        uint8_t data[BLOCKS * MXFP8_BLOCK], scales[BLOCKS];
        for (int i = 0; i < BLOCKS * MXFP8_BLOCK; i++)
            x[i] = ldexpf(draw_bell(&seed), (int)(draw_bits(&seed) % 60) - 30);
        mxfp8_quantise_row(x, BLOCKS, data, scales);
        mxfp8_decode_row(data, scales, BLOCKS, back);
        for (int b = 0; b < BLOCKS; b++) {
            float amax = 0;
            for (int i = 0; i < MXFP8_BLOCK; i++) amax = fmaxf(amax, fabsf(x[b * MXFP8_BLOCK + i]));
            assert_int_equal(scales[b], ceil_scale(amax));
            for (int i = b * MXFP8_BLOCK; i < (b + 1) * MXFP8_BLOCK; i++) {
                double scaled = ldexp(x[i], 127 - scales[b]);
                assert_int_equal(data[i], e4m3_nearest(scaled));
                assert_true((double)back[i] == ldexp(e4m3_formula(data[i]), scales[b] - 127));
            }
        }
    }
}

static void decoding_is_exact(void **state)
{
    (void)state;
    for (int scale = 0; scale < 256; scale++) {
        for (unsigned code = 0; code < 256; code += MXFP8_BLOCK) {
            uint8_t data[MXFP8_BLOCK], s = (uint8_t)scale;
            float out[MXFP8_BLOCK];
            for (unsigned i = 0; i < MXFP8_BLOCK; i++) data[i] = (uint8_t)(code + i);
            mxfp8_decode_row(data, &s, 1, out);
            for (unsigned i = 0; i < MXFP8_BLOCK; i++) {
                double want = ldexp(e4m3_formula(code + i), scale - 127);
                if (scale == 255 || isnan(want))
                    assert_true(isnan(out[i]));
                else if (fabs(want) >= 0x1p128)
                    assert_true(isinf(out[i]));
                else
                    assert_true((double)out[i] == want);
            }
        }
    }
}

static void zero_nan_and_infinity(void **state)
{
    (void)state;
    float x[MXFP8_BLOCK] = {0}, out[MXFP8_BLOCK];
    uint8_t data[MXFP8_BLOCK], scale = 77;
    mxfp8_quantise(x, data, &scale);
    assert_int_equal(scale, 0);
    for (int i = 0; i < MXFP8_BLOCK; i++) assert_int_equal(data[i], 0);
    x[3] = NAN, x[4] = 448, x[5] = -448;
    mxfp8_quantise(x, data, &scale);
    assert_int_equal(scale, 127);
    assert_int_equal(data[3], 0x7F);
    assert_int_equal(data[4], 0x7E);
    assert_int_equal(data[5], 0xFE);
    mxfp8_decode_row(data, &scale, 1, out);
    assert_true(isnan(out[3]) && out[4] == 448 && out[5] == -448);
    x[3] = -INFINITY;
    mxfp8_quantise(x, data, &scale);
    assert_int_equal(scale, 254);
    assert_int_equal(data[3], 0xFE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_of_every_bf16),
        cmocka_unit_test(random_blocks),
        cmocka_unit_test(decoding_is_exact),
        cmocka_unit_test(zero_nan_and_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
