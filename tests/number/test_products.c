/*
 * Every product of an E4M3 scale and an E2M1 code: exact where it must be exact, and the same E4M3 byte on every way
 * that a kernel may take to round it.
 */
#include "number/nearest.h"

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/fp16.h"
#include "number/nvfp4.h"

/* x rounded to a binary format with `digits` significant bits, largest exponent `top` (2^top > max) and steps of
 * 2^finest in the subnormal range; to nearest, ties to even. */
static double rounded(double x, int digits, int finest, double largest)
{
    if (x == 0 || isnan(x)) return x;
    int e;
    frexp(fabs(x), &e);
    int step = e - digits > finest ? e - digits : finest;
    double r = ldexp(nearbyint(ldexp(x, -step)), step);
    return fabs(r) > largest ? copysign(INFINITY, x) : r;
}

static double half(double x)
{
    return rounded(x, 11, -24, 65504);
}

/* NaN bytes compare as NaN, whatever their sign. */
static unsigned nan_as_one(unsigned code)
{
    return (code & 0x7F) == 0x7F ? 0x7F : code;
}

static void product_is_exact(void **state)
{
    (void)state;
    for (unsigned s = 0; s < 256; s++) {
        if ((s & 0x7F) == 0x7F) continue;
        for (unsigned c = 0; c < 16; c++) {
            double exact = e4m3_formula(s) * e2m1_formula(c);
            float p = e4m3_to_float((uint8_t)s) * e2m1_to_float((uint8_t)c);
            assert_true((double)p == exact);
            assert_true(half(exact) == exact);
            assert_true(bf16_round(p) == p);
            assert_true(fabs(exact) <= 2688 && ldexp(exact, 10) == nearbyint(ldexp(exact, 10)));
        }
    }
}

/* One rounding of the exact product; the table of 256 x 8 magnitudes with the sign put on by exclusive or; a product of
 * two half-precision numbers rounded to half and then to E4M3. */
static void three_ways_agree(void **state)
{
    (void)state;
    static uint8_t table[256][8];
    for (unsigned s = 0; s < 256; s++)
        for (unsigned m = 0; m < 8; m++) table[s][m] = (uint8_t)e4m3_nearest(e4m3_formula(s) * e2m1_formula(m));
    int inexact = 0, saturated = 0, finite = 0, nonzero = 0;
    for (unsigned s = 0; s < 256; s++) {
        for (unsigned c = 0; c < 16; c++) {
            double exact = e4m3_formula(s) * e2m1_formula(c);
            unsigned once = e4m3_nearest(exact), ours = nvfp4_product_e4m3((uint8_t)s, (uint8_t)c);
            unsigned looked_up = table[s][c & 7] ^ (c & 8) << 4;
            /* Half precision by shifts: the scale's magnitude << 7 is its value * 2^-8, the code's << 9 value * 2^-14.
             * Scaled to value * 2^7 and value * 2^-14 (both exact), the product is 2^-7 times the wanted one. */
            double scale = (double)fp16_to_float((uint16_t)((s & 0x7F) << 7)) * 0x1p15;
            double code = (double)fp16_to_float((uint16_t)((c & 7) << 9));
            if ((s & 0x7F) == 0x7F)
                scale = NAN; /* 0x7F << 7 is the number 480: kernels must keep NaN scales out */
            else
                assert_true(half(scale) == scale && scale <= 57344);
            double p = half(scale * code) * ((s >> 7) != (c >> 3) ? -1 : 1);
            assert_true(isnan(p) || p * 0x1p7 == exact);
            unsigned by_half = e4m3_from_float((float)(p * 0x1p7));
            if (nan_as_one(once) != nan_as_one(ours) || nan_as_one(once) != nan_as_one(looked_up) ||
                nan_as_one(once) != nan_as_one(by_half))
                fail_msg("scale 0x%02X code %u: once 0x%02X, here 0x%02X, table 0x%02X, half 0x%02X", s, c, once, ours,
                         looked_up, by_half);
            assert_int_equal((once & 0x7F) == 0x7F, (s & 0x7F) == 0x7F);
            if (s >= 0x7F || c >= 8) continue; /* the counts are over positive finite scales and magnitudes */
            finite++;
            nonzero += s != 0 && c != 0;
            if (exact > 448)
                saturated++;
            else if (e4m3_formula(once) != exact)
                inexact++;
            if (e4m3_formula(once) != exact && exact <= 448 && exact >= 0x1p-6) {
                /* only 1.5, 3 and 6 have a second significant bit; the worst case is the tie 28 * 1.5 = 42 to 40 */
                assert_true(c == 3 || c == 5 || c == 7);
                assert_true(fabs(e4m3_formula(once) - exact) * 42 <= 2 * exact);
            }
        }
    }
    assert_int_equal(finite, 1016);
    assert_int_equal(nonzero, 882);
    assert_int_equal(inexact, 212);
    assert_int_equal(saturated, 63);
    assert_int_equal(inexact + saturated, 275);
}

/* Rounding to four significant bits with three half-precision operations (p = 129x, q = p - x, r = p - q, after
 * Veltkamp) is E4M3 rounding for products in its normal range and not below: 11 pairs differ. */
static void split_in_half_precision(void **state)
{
    (void)state;
    int below = 0;
    for (unsigned s = 0; s < 0x7F; s++) {
        for (unsigned m = 0; m < 8; m++) {
            double exact = e4m3_formula(s) * e2m1_formula(m);
            if (exact > 448) continue;
            double x = half(exact * 0x1p-7), p = half(129 * x), q = half(p - x), r = half(p - q);
            bool same = r * 0x1p7 == e4m3_formula(e4m3_nearest(exact));
            if (exact >= 0x1p-6)
                assert_true(same);
            else
                below += !same;
        }
    }
    assert_int_equal(below, 11);
}

/* Scales up to 72 (byte 0x69) keep every product within 448; the next one does not. */
static void largest_scale_without_saturation(void **state)
{
    (void)state;
    assert_true(e4m3_to_float(0x69) == 72);
    assert_true(6 * e4m3_to_float(0x69) <= 448 && 6 * e4m3_to_float(0x6A) > 448);
    assert_true(e4m3_round(432.0f / 6) == 72);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_is_exact),
        cmocka_unit_test(three_ways_agree),
        cmocka_unit_test(split_in_half_precision),
        cmocka_unit_test(largest_scale_without_saturation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
