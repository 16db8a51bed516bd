/* Philox, uniform and Gumbel numbers, and the logarithms behind them. The stored bits hold every target to the same
 * steps. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/random.h"

static uint32_t bits_from(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_from(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The step of fp32 at v. */
static double last_place(double v)
{
    int e;
    frexp(v, &e);
    return ldexp(1, e - 24 < -149 ? -149 : e - 24);
}

/* Known answers published with the Random123 library. */
static void philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}},
        {{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF},
         {0xFFFFFFFF, 0xFFFFFFFF},
         {0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}},
        {{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344},
         {0xA4093822, 0x299F31D0},
         {0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        random_philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

/* The published vectors again, as coordinates of a draw: where seed, position, purpose, choice, quad and anchor go. */
static void counter_layout(void **state)
{
    (void)state;
    uint32_t out[4];
    random_quad(0x299F31D0A4093822, 0x243F6A88, (random_purpose)0x85, 0xA308D3, 0x13198A2E, 0x03707344, out);
    assert_int_equal(out[0], 0xD16CFE09);
    assert_int_equal(out[1], 0x94FDCCEB);
    assert_int_equal(out[2], 0x5001E420);
    assert_int_equal(out[3], 0x24126EA1);
    assert_int_equal(RANDOM_PICK, 0);
    assert_int_equal(RANDOM_ACCEPT, 1);
    assert_int_equal(RANDOM_DRAFT, 2);
    assert_int_equal(RANDOM_SYNTHETIC, 3);
    uint32_t counter[4] = {70, 2u << 24 | 16383, 1234, 69}, key[2] = {5, 0}, direct[4];
    random_philox(counter, key, direct);
    random_quad(5, 70, RANDOM_DRAFT, 16383, 1234, 69, out);
    assert_memory_equal(out, direct, sizeof out);
}

static void uniform_numbers(void **state)
{
    (void)state;
    assert_true(random_uniform(0) == 0x1p-33f);
    assert_true(random_uniform(1) == 0x1.8p-32f);
    assert_true(random_uniform(0x80000000) == 0.5f);
    assert_true(random_uniform(0xFFFFFFFF) == 1 - 0x1p-24f);
    assert_true(random_uniform(0xFFFFFF7F) == 1 - 0x1p-24f);
    assert_true(random_uniform(0xFFFFFF80) == 1 - 0x1p-24f);
    assert_true(random_uniform(0xFFFFFE00) == 1 - 0x1p-23f);
    float last = 0;
    for (uint64_t x = 0; x <= 0xFFFFFFFF; x += x < 5000000 ? 1 : 4093) {
        float u = random_uniform((uint32_t)x);
        float converted = (float)x, scaled = converted * 0x1p-32f, shifted = scaled + 0x1p-33f;
        assert_true(u == fminf(shifted, 1 - 0x1p-24f));
        if (!(u > 0 && u < 1 && u >= last)) fail_msg("u(%u) = %a after %a", (unsigned)x, (double)u, (double)last);
        last = u;
    }
}

static void check_log(float x, double *worst)
{
    double want = log((double)x), got = (double)random_log(x);
    if (want == 0) {
        assert_true(got == 0);
        return;
    }
    double error = fabs(got - want) / last_place(want);
    if (!(error < 1)) fail_msg("log(%a) = %a, not %a", (double)x, got, want);
    if (error > *worst) *worst = error;
}

/* Below one step everywhere; the header promises two. */
static void log_is_accurate(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t u = 0x00800000; u < 0x7F800000; u += 1709) check_log(float_from(u), &worst);
    for (uint32_t u = 0x3F800000 - 400000; u < 0x3F800000 + 400000; u++) check_log(float_from(u), &worst);
    /* both sides of the borders of the argument reduction */
    for (int e = -125; e <= 127; e++)
        for (int i = -40; i <= 40; i++) check_log(ldexpf(float_from(0x3F2AAAABu + (uint32_t)i), e), &worst);
    check_log(0x1p-126f, &worst);
    check_log(0x1.fffffep127f, &worst);
    assert_true(worst > 0.5); /* the bound was put to the test */
}

static void check_log1p(float x, double *worst)
{
    double want = log1p((double)x), got = (double)random_log1p(x);
    double error = fabs(got - want) / last_place(want);
    if (!(error < 1)) fail_msg("log1p(%a) = %a, not %a", (double)x, got, want);
    if (error > *worst) *worst = error;
}

static void log1p_is_accurate(void **state)
{
    (void)state;
    double worst = 0;
    assert_true(random_log1p(0.0f) == 0 && random_log1p(-0.0f) == 0);
    for (uint32_t u = 0x80000001; u < 0xBF800000; u += 1013) check_log1p(float_from(u), &worst);
    for (uint32_t u = 0xBF800000 - 500000; u < 0xBF800000; u++) check_log1p(float_from(u), &worst);
    /* every argument that a uniform number gives near 0 and near 1, and a sweep between */
    for (uint64_t x = 0; x <= 0xFFFFFFFF; x += x < 400000 || x > 0xFFFFFFFF - 400000 ? 1 : 4093)
        check_log1p(-random_uniform((uint32_t)x), &worst);
    assert_true(worst > 0.5);
}

/* The inner logarithm is off by a factor of 1 + 2^-23 at most, which the outer one makes a difference of 2^-23, and
 * adds less than a step of its own. */
static void gumbel_is_accurate(void **state)
{
    (void)state;
    for (uint64_t x = 0; x <= 0xFFFFFFFF; x += x < 300000 || x > 0xFFFFFFFF - 300000 ? 1 : 4099) {
        double want = -log(-log1p(-(double)random_uniform((uint32_t)x))), got = (double)random_gumbel((uint32_t)x);
        if (!(fabs(got - want) < 0x1p-23 + last_place(want)))
            fail_msg("noise of %u: %a, not %a", (unsigned)x, got, want);
    }
    /* The large end has steps of its own: neighbours differ where 1 - u would not. */
    for (uint32_t x = 0; x < 1000; x++) assert_true(random_gumbel(x) > random_gumbel(x + 1));
    assert_true(random_gumbel(0) > 22.8f && random_gumbel(0xFFFFFFFF) < -2.8f);
}

/* Mean, variance and the share beyond 5 of Gumbel noise: .5772, pi^2/6, 1 - exp(-exp(-5)). */
static void gumbel_is_gumbel(void **state)
{
    (void)state;
    enum { QUADS = 250000 };
    double sum = 0, square = 0;
    int beyond = 0;
    for (uint32_t q = 0; q < QUADS; q++) {
        uint32_t out[4];
        random_quad(42, 1000, RANDOM_PICK, 0, q, 0, out);
        for (int i = 0; i < 4; i++) {
            double g = (double)random_gumbel(out[i]);
            sum += g, square += g * g, beyond += g > 5;
        }
    }
    double n = 4.0 * QUADS, mean = sum / n, variance = square / n - mean * mean;
    assert_true(fabs(mean - 0.5772156649) < 0.006);
    assert_true(fabs(variance - 1.6449340668) < 0.02);
    assert_true(fabs(beyond / n - 0.0067153) < 0.0005);
}

/* ---- Stored bits: input, output --------------------------------------------------------------------------------- */

static const uint32_t log_bits[64][2] = {
    {0x00800000, 0xC2AEAC50}, {0x7F7FFFFF, 0x42B17218}, {0x3F800000, 0x00000000}, {0x3F7FFFFF, 0xB3800000},
    {0x3F800001, 0x33FFFFFF}, {0x3F2AAAAA, 0xBECF9922}, {0x3F2AAAAB, 0xBECF991E}, {0x3F2AAAAC, 0xBECF991B},
    {0x3FAAAAAA, 0x3E934B0E}, {0x3FAAAAAB, 0x3E934B12}, {0x3FAAAAAC, 0x3E934B15}, {0x40000000, 0x3F317218},
    {0x402DF854, 0x3F800000}, {0x2F000000, 0xC1B6FDA9}, {0x41851592, 0x4033F049}, {0x3F000000, 0xBF317218},
    {0x4003B3E2, 0x3F38BEF5}, {0x3F444C79, 0xBE87F4D7}, {0x3EC5F342, 0xBF734774}, {0x3FEE0B87, 0x3F1ED479},
    {0x3F58D6E5, 0xBE2A013A}, {0x4066CF0F, 0x3FA42FBC}, {0x3FE64048, 0x3F164ED2}, {0x3FCBFECE, 0x3EEEA050},
    {0x4056E3D2, 0x3F9B0A01}, {0x3F757AC5, 0xBD2BE228}, {0x3EAA74B4, 0xBF8CC7D3}, {0x3F058F30, 0xBF268FCC},
    {0x3F5141D7, 0xBE4E73BE}, {0x3E820223, 0xBFAF73F3}, {0x3FC04CD3, 0x3ED065D4}, {0x3F307C17, 0xBEBE6F54},
    {0x3F872963, 0x3D5EFDDF}, {0x3F6CC500, 0xBD9FEDC4}, {0x3F4D1F06, 0xBE62E4F3}, {0x3F1AE890, 0xBF009990},
    {0x3FFBC7DB, 0x3F2D30F3}, {0x3EF6AEB5, 0xBF3AEFE1}, {0x3F9EB0AE, 0x3E5C14DC}, {0x40720C53, 0x3FAA45C0},
    {0x404DBAA6, 0x3F957672}, {0x4006D31B, 0x3F3EBE56}, {0x3F1D9D80, 0xBEF8549F}, {0x3F49AB92, 0xBE7444D2},
    {0x3F16F327, 0xBF073A15}, {0x40660E50, 0x3FA3C4AB}, {0x3FD6B915, 0x3F046EFC}, {0x3F254898, 0xBEE001F2},
    {0x4B1E7D7A, 0x41813F96}, {0x0E3292F1, 0xC28893C3}, {0x6968D30A, 0x42688494}, {0x09848DB0, 0xC295A65F},
    {0x1D9BBC9E, 0xC23BC061}, {0x22F17EEF, 0xC21E4557}, {0x04CBC688, 0xC2A2A71B}, {0x1381453F, 0xC273F2C4},
    {0x252212AD, 0xC21200CE}, {0x7072FC47, 0x4287C0A4}, {0x7C362743, 0x42A8727F}, {0x6934EF83, 0x42678262},
    {0x1D17D6C1, 0xC23EA01E}, {0x30334774, 0xC1A93487}, {0x0F2CA891, 0xC285DF3A}, {0x7C7F30D0, 0x42A91F20},
};

static const uint32_t log1p_bits[64][2] = {
    {0x80000000, 0x00000000}, {0xAF000000, 0xAF000000}, {0xB3800000, 0xB3800000}, {0xBF7FFFFF, 0xC1851592},
    {0xBF7FFFFE, 0xC17F1402}, {0xBEAAAAAA, 0xBECF991E}, {0xBEAAAAAB, 0xBECF9920}, {0xBEAAAAAC, 0xBECF9922},
    {0xBF2AAAAA, 0xBF8C9F53}, {0xBF2AAAAB, 0xBF8C9F54}, {0xBF000000, 0xBF317218}, {0xBF400000, 0xBFB17218},
    {0xBF600000, 0xC0051592}, {0x80000001, 0x80000001}, {0x80800000, 0x80800000}, {0xBF7F0000, 0xC0B17218},
    {0xBDC798F1, 0xBDD2017F}, {0xBDA15DB4, 0xBDA81405}, {0xBF69CE5A, 0xC01C80C0}, {0xBC51DCFB, 0xBC533808},
    {0xBE0E9E3E, 0xBE199493}, {0xBC551696, 0xBC567C6E}, {0xBE58A03B, 0xBE73639D}, {0xBD37A1FD, 0xBD3BE05D},
    {0xBF7B986F, 0xC0820050}, {0xBED822CE, 0xBF0C658E}, {0xBE0B786E, 0xBE15EE0A}, {0xBEB065D7, 0xBED84491},
    {0xBD4BBEC8, 0xBD50FCBA}, {0xBCE01303, 0xBCE33223}, {0xBE29A128, 0xBE397415}, {0xBD36F8E2, 0xBD3B2F56},
    {0xBEDA4999, 0xBF0E43E0}, {0xBD513F36, 0xBD56C7EE}, {0xBD4E772C, 0xBD53D9D3}, {0xBE8C2E8E, 0xBEA3CC85},
    {0xBC10BC11, 0xBC1160B2}, {0xBD9CD265, 0xBDA326BB}, {0xBCE846DD, 0xBCEBA227}, {0xBCA1C108, 0xBCA35F50},
    {0xBDDC7D55, 0xBDE9492B}, {0xBEA99A63, 0xBECE0156}, {0xBE9970AD, 0xBEB663A6}, {0xBDD0FF5E, 0xBDDC7294},
    {0xBE9E171E, 0xBEBD12A4}, {0xBCD60FA6, 0xBCD8E858}, {0xBD1F06C6, 0xBD223223}, {0xBF4B9BE1, 0xBFCB107E},
    {0xB3EE9ABF, 0xB3EE9AC0}, {0xB64E4401, 0xB64E4416}, {0xB1A0BD55, 0xB1A0BD55}, {0xB4E402DD, 0xB4E402E0},
    {0xB83B990B, 0xB83B9A1E}, {0xBCFE3CD8, 0xBD012218}, {0xBBF15DE9, 0xBBF2429B}, {0xBE27A619, 0xBE37150E},
    {0xB0FF9CD3, 0xB0FF9CD3}, {0xBE7A4199, 0xBE8F7A72}, {0xB41C99B9, 0xB41C99BA}, {0xB37E5413, 0xB37E5413},
    {0xAF6064E2, 0xAF6064E2}, {0xBAA4CDF6, 0xBAA4E882}, {0xB13B2C6A, 0xB13B2C6A}, {0xBA649BE9, 0xBA64B572},
};

static const uint32_t gumbel_bits[64][2] = {
    {0x00000000, 0x41B6FDA9}, {0x00000001, 0x41AE33B4}, {0x00000002, 0x41AA1D88}, {0x00000003, 0x41A76C6F},
    {0xFFFFFFFF, 0xC033F049}, {0xFFFFFFFE, 0xC033F049}, {0xFFFFFF7F, 0xC033F049}, {0xFFFFFF80, 0xC033F049},
    {0xFFFFFEFF, 0xC033F049}, {0x80000000, 0x3EBBA795}, {0x7FFFFFFF, 0x3EBBA795}, {0x55555555, 0x3F6718B0},
    {0xAAAAAAAA, 0xBDC09C28}, {0x00FFFFFF, 0x40B16211}, {0x01000001, 0x40B16211}, {0xA1D29AAE, 0x36040009},
    {0x788BA774, 0x3EE745E5}, {0x3B786508, 0x3FAA4B7F}, {0x7A92ACA2, 0x3EDB48CE}, {0x0F3D9DE5, 0x40329A6E},
    {0x2983CEB8, 0x3FDDB0E8}, {0x81C12D1D, 0x3EB18F33}, {0xA9490F97, 0xBDA274B3}, {0x090C066C, 0x4054C9B6},
    {0x6736980B, 0x3F2950BD}, {0x22B6F7BA, 0x3FF68859}, {0x13AEFBB6, 0x4021A466}, {0x8F253558, 0x3E4C5E12},
    {0x51EBB86D, 0x3F73E974}, {0x90180EDC, 0x3E41DE3F}, {0x04427A2D, 0x4082CDAC}, {0xD4867309, 0xBF129A8C},
    {0x1AEA2E22, 0x400CA36D}, {0x2E503987, 0x3FCE49B0}, {0x76431F96, 0x3EF4E5FF}, {0x28003359, 0x3FE2E240},
    {0x58190CE2, 0x3F5CFCDA}, {0x1327051B, 0x402376B3}, {0xB3144734, 0xBE3CBE8C}, {0x4F7A4D14, 0x3F7D5587},
    {0xED9E2054, 0xBF77EA93}, {0xC5EE11EC, 0xBEC9F1C9}, {0x9947308E, 0x3DBA1114}, {0x316C9690, 0x3FC50B0A},
    {0x7FEA0E38, 0x3EBC263D}, {0xC0DC7FE4, 0xBEAC377D}, {0x24FC0C1B, 0x3FEDC840}, {0xA572C6B5, 0xBD1DB88E},
    {0x88DB05EB, 0x3E8942C2}, {0x0BC67A31, 0x404390F0}, {0x77EDF125, 0x3EEAEFA2}, {0x6867A156, 0x3F257613},
    {0xF592CF31, 0xBF94EA90}, {0xB669F0D1, 0xBE61CF10}, {0x8CA1DE1C, 0x3E684735}, {0x09099422, 0x4054DB58},
    {0x0011277D, 0x4103F7B7}, {0x018035B7, 0x40A45BFA}, {0x00C10BCF, 0x40BA6E31}, {0x00170E8D, 0x40FE788E},
    {0x001073F8, 0x4104A2B2}, {0x0006D176, 0x4112BB35}, {0x000AA3E0, 0x410B9C38}, {0x00050375, 0x4117A6A0},
};

static void stored_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 64; i++) {
        assert_int_equal(bits_from(random_log(float_from(log_bits[i][0]))), log_bits[i][1]);
        assert_int_equal(bits_from(random_log1p(float_from(log1p_bits[i][0]))), log1p_bits[i][1]);
        assert_int_equal(bits_from(random_gumbel(gumbel_bits[i][0])), gumbel_bits[i][1]);
    }
}

static void seeds_differ(void **state)
{
    (void)state;
    int64_t seen[64];
    uint64_t all = 0;
    for (int i = 0; i < 64; i++) {
        seen[i] = random_seed();
        assert_true(seen[i] >= 0);
        all |= (uint64_t)seen[i];
        for (int j = 0; j < i; j++) assert_true(seen[i] != seen[j]);
    }
    assert_true(all == INT64_MAX); /* every bit but the sign is used */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers), cmocka_unit_test(counter_layout),
        cmocka_unit_test(uniform_numbers),      cmocka_unit_test(log_is_accurate),
        cmocka_unit_test(log1p_is_accurate),    cmocka_unit_test(gumbel_is_accurate),
        cmocka_unit_test(gumbel_is_gumbel),     cmocka_unit_test(stored_bits),
        cmocka_unit_test(seeds_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
