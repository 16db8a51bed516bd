/* bf16, fp16, E4M3, E2M1 and E8M0, each over all of its codes and all of its ties. */
#include "number/nearest.h"

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/fp16.h"

/* x and its two neighbours in fp32 must encode as the search does. */
static void check_e4m3(float x)
{
    float three[3] = {nextafterf(x, -INFINITY), x, nextafterf(x, INFINITY)};
    for (int i = 0; i < 3; i++) {
        unsigned want = e4m3_nearest(three[i]), got = e4m3_from_float(three[i]);
        if (want != got) fail_msg("E4M3(%a) is 0x%02X, not 0x%02X", (double)three[i], want, got);
    }
}

static void e4m3_codes(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++) {
        float value = e4m3_to_float((uint8_t)c);
        if ((c & 0x7F) == 0x7F) {
            assert_true(isnan(value));
            assert_int_equal(e4m3_from_float(value), 0x7F);
            continue;
        }
        assert_true((double)value == e4m3_formula(c));
        assert_int_equal(signbit(value) != 0, c >> 7);
        assert_int_equal(e4m3_from_float(value), c);
        assert_true(e4m3_round(value) == value);
    }
    assert_true(e4m3_table[0x7E] == 448 && e4m3_table[1] == 0x1p-9f && e4m3_table[8] == 0x1p-6f);
}

static void e4m3_ties(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0x7E; c++) {
        float low = e4m3_table[c], high = e4m3_table[c + 1], middle = (low + high) / 2;
        assert_int_equal(e4m3_from_float(middle), c % 2 ? c + 1 : c);
        assert_int_equal(e4m3_from_float(-middle), 0x80 | (c % 2 ? c + 1 : c));
        for (float s = -1; s <= 1; s += 2) {
            check_e4m3(s * low);
            check_e4m3(s * middle);
            check_e4m3(s * (low + (middle - low) / 2));
        }
    }
}

static void e4m3_ends(void **state)
{
    (void)state;
    static const float big[] = {448, 463.99997f, 464, 464.00003f, 479, 480, 512, 65504, 3e38f, INFINITY};
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        assert_int_equal(e4m3_from_float(big[i]), 0x7E);
        assert_int_equal(e4m3_from_float(-big[i]), 0xFE);
    }
    assert_int_equal(e4m3_from_float(0x1p-10f), 0x00);
    assert_int_equal(e4m3_from_float(nextafterf(0x1p-10f, 1)), 0x01);
    assert_int_equal(e4m3_from_float(0x1p-149f), 0x00);
    assert_int_equal(e4m3_from_float(0.0f), 0x00);
    assert_int_equal(e4m3_from_float(-0.0f), 0x80);
    assert_int_equal(e4m3_from_float(-0x1p-149f), 0x80);
    for (uint32_t payload = 1; payload < 0x800000; payload += 99991) {
        assert_int_equal(e4m3_from_float(float_from(0x7F800000 | payload)), 0x7F);
        assert_int_equal(e4m3_from_float(float_from(0xFF800000 | payload)), 0x7F);
    }
}

static void e4m3_every_bf16_and_many_floats(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = float_from(h << 16);
        unsigned want = e4m3_nearest(x), got = e4m3_from_float(x);
        if (want != got) fail_msg("E4M3(%a) is 0x%02X, not 0x%02X", (double)x, want, got);
    }
    uint64_t seed = 1;
    for (int i = 0; i < 500000; i++)
        check_e4m3(float_from((0x37000000 + draw_bits(&seed) % 0x0D000000) ^ (i % 2u) << 31));
}

static void e2m1_codes_and_ties(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 16; c++) {
        float value = e2m1_to_float((uint8_t)c);
        assert_true((double)value == e2m1_formula(c));
        assert_int_equal(signbit(value) != 0, c >> 3);
        assert_int_equal(e2m1_from_float(value), c == 8 ? 0 : c);
        assert_true(e2m1_to_float((uint8_t)(c | 0xF0)) == value);
    }
    /* Each border, the value there, and the fp32 neighbours of the border. */
    static const struct {
        float border;
        uint8_t at, below, above;
    } ties[] = {{0.25f, 0, 0, 1}, {0.75f, 2, 1, 2}, {1.25f, 2, 2, 3}, {1.75f, 4, 3, 4},
                {2.5f, 4, 4, 5},  {3.5f, 6, 5, 6},  {5.0f, 6, 6, 7}};
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) {
        float b = ties[i].border;
        assert_int_equal(e2m1_from_float(b), ties[i].at);
        assert_int_equal(e2m1_from_float(nextafterf(b, 0)), ties[i].below);
        assert_int_equal(e2m1_from_float(nextafterf(b, 9)), ties[i].above);
        assert_int_equal(e2m1_from_float(-b), ties[i].at ? ties[i].at | 8 : 0);
        assert_int_equal(e2m1_from_float(nextafterf(-b, 0)), ties[i].below ? ties[i].below | 8 : 0);
        assert_int_equal(e2m1_from_float(nextafterf(-b, -9)), ties[i].above | 8);
    }
    assert_int_equal(e2m1_from_float(INFINITY), 7);
    assert_int_equal(e2m1_from_float(-INFINITY), 15);
    assert_int_equal(e2m1_from_float(6.5f), 7);
    assert_int_equal(e2m1_from_float(NAN), 0);
    assert_int_equal(e2m1_from_float(-0.0f), 0);
    assert_int_equal(e2m1_from_float(-0x1p-149f), 0);
}

static void e2m1_every_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = float_from(h << 16);
        if (isnan(x)) continue;
        unsigned want = e2m1_nearest(x), got = e2m1_from_float(x);
        if (want != got || got == 8) fail_msg("E2M1(%a) is %u, not %u", (double)x, want, got);
    }
    static const uint8_t packed[] = {0x21, 0xF3};
    assert_int_equal(e2m1_code(packed, 0), 1);
    assert_int_equal(e2m1_code(packed, 1), 2);
    assert_int_equal(e2m1_code(packed, 2), 3);
    assert_int_equal(e2m1_code(packed, 3), 15);
}

static void bf16_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = bf16_to_float((uint16_t)h);
        assert_int_equal(bits_from(x), h << 16);
        if (isnan(x)) {
            assert_int_equal(bf16_from_float(x), h | 0x40);
            assert_true(isnan(bf16_round(x)));
            continue;
        }
        assert_int_equal(bf16_from_float(x), h);
        if ((h & 0x7FFF) == 0x7F80) continue;
        /* Between h and h + 1 (in magnitude): the tie to even, its neighbours to their sides. */
        uint32_t tie = h << 16 | 0x8000;
        assert_int_equal(bf16_from_float(float_from(tie)), h + h % 2);
        assert_int_equal(bf16_from_float(float_from(tie - 1)), h);
        assert_int_equal(bf16_from_float(float_from(tie + 1)), h + 1);
    }
    assert_true(isinf(bf16_round(3.4e38f)));
    /* A NaN whose payload lies in the dropped half stays one. */
    assert_int_equal(bf16_from_float(float_from(0x7F800001)), 0x7FC0);
    assert_int_equal(bf16_from_float(float_from(0xFF80FFFF)), 0xFFC0);
    assert_int_equal(bf16_from_float(float_from(0xFFFFFFFF)), 0xFFFF);
}

static void fp16_values(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x10000; h++) {
        int e = h >> 10 & 31, m = h & 0x3FF;
        float x = fp16_to_float((uint16_t)h);
        assert_int_equal(signbit(x) != 0, h >> 15);
        if (e == 31) {
            if (m)
                assert_true(isnan(x));
            else
                assert_true(isinf(x));
            continue;
        }
        double want = e ? ldexp(1 + m / 1024.0, e - 15) : ldexp(m, -24);
        assert_true((double)x == (h >> 15 ? -want : want));
    }
}

static void e8m0_scales(void **state)
{
    (void)state;
    for (int e = 0; e < 255; e++) {
        float scale = e8m0_to_float((uint8_t)e);
        assert_true((double)scale == ldexp(1, e - 127));
        assert_true((double)e8m0_inverse((uint8_t)e) == ldexp(1, 127 - e));
        if (e == 0) continue; /* 2^-127 is below what the ceiling resolves */
        assert_int_equal(e8m0_ceil(scale), e);
        assert_int_equal(e8m0_ceil(nextafterf(scale, INFINITY)), e < 254 ? e + 1 : 254);
        assert_int_equal(e8m0_ceil(nextafterf(scale, 0)), e);
    }
    assert_true(isnan(e8m0_to_float(E8M0_NAN)));
    assert_true(isnan(e8m0_inverse(E8M0_NAN)));
    assert_int_equal(e8m0_ceil(0.0f), 0);
    assert_int_equal(e8m0_ceil(-0.0f), 0);
    assert_int_equal(e8m0_ceil(-5.0f), 0);
    assert_int_equal(e8m0_ceil(0x1p-149f), 1);
    assert_int_equal(e8m0_ceil(INFINITY), 254);
    assert_int_equal(e8m0_ceil(NAN), E8M0_NAN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3_codes),          cmocka_unit_test(e4m3_ties),
        cmocka_unit_test(e4m3_ends),           cmocka_unit_test(e4m3_every_bf16_and_many_floats),
        cmocka_unit_test(e2m1_codes_and_ties), cmocka_unit_test(e2m1_every_bf16),
        cmocka_unit_test(bf16_rounding),       cmocka_unit_test(fp16_values),
        cmocka_unit_test(e8m0_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
