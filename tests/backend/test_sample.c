/* The sampling chain stage by stage, against hand-computed cases, a plain twin that sorts, and the law of chance. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/ops.h"
#include "base/random.h"

enum { SMALL = 10, LARGE = 5000 };
static const uint64_t SEED = 0x0123456789ABCDEF;

static ops_sample plain(void)
{
    return (ops_sample){
        .seed = SEED, .position = 1, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
}

static ops_sampled run(const float *logits, int32_t vocab, const ops_sample *how)
{
    void *scratch = malloc(sample_scratch_bytes(vocab));
    ops_sampled out;
    memset(scratch, 0xA5, sample_scratch_bytes(vocab)); /* nothing may depend on what was there */
    sample_row(logits, vocab, how, scratch, &out);
    free(scratch);
    return out;
}

/* Bit i: id i came up in 3,000 draws. */
static uint32_t support(const float *logits, int32_t vocab, ops_sample how)
{
    uint32_t seen = 0;
    for (how.position = 1; how.position <= 3000; how.position++) {
        int32_t id = run(logits, vocab, &how).id;
        assert_in_range(id, 0, vocab - 1);
        seen |= 1u << id;
    }
    return seen;
}

/* ---- Noise ---------------------------------------------------------------------------------------------------- */

/* Values of -log(-log1p(-u)) from an independent Philox in double precision: seed 0x0123456789abcdef, position 1. */
static const double stored_noise[SMALL] = {-0.12742, 0.94800, 0.68643, -0.17915, -1.04572,
                                           0.20527,  0.04124, 1.54266, -1.79749, 0.61369};
/* Its argmax over ten equal logits, positions 1 to 40. */
static const int32_t stored_picks[40] = {7, 3, 9, 6, 4, 9, 3, 4, 5, 9, 5, 0, 6, 0, 3, 6, 3, 9, 5, 0,
                                         0, 0, 7, 4, 1, 0, 1, 0, 3, 5, 7, 8, 4, 9, 1, 3, 0, 0, 2, 1};
/* The same of 0.3 i at temperature 0.7, seed 7, choice 3. */
static const int32_t stored_ramp[40] = {9, 6, 3, 9, 9, 8, 5, 7, 6, 8, 5, 9, 4, 3, 8, 9, 7, 6, 9, 9,
                                        8, 9, 8, 6, 9, 9, 8, 8, 7, 9, 7, 8, 4, 7, 7, 9, 7, 9, 6, 8};

static void test_noise_is_the_stored_one(void **state)
{
    (void)state;
    float flat[SMALL] = {0}, ramp[SMALL];
    for (int i = 0; i < SMALL; i++) ramp[i] = 0.3f * (float)i;
    for (uint32_t p = 1; p <= 40; p++) {
        ops_sample how = plain();
        how.position = p;
        assert_int_equal(run(flat, SMALL, &how).id, stored_picks[p - 1]);
        how.seed = 7, how.choice = 3, how.temperature = 0.7f;
        assert_int_equal(run(ramp, SMALL, &how).id, stored_ramp[p - 1]);
    }
    /* The size of the noise, not only its order: two logits whose distance is just below and just above that of the
     * noise. */
    for (int a = 0; a < SMALL; a++) {
        int b = (a + 3) % SMALL;
        float row[SMALL];
        for (int i = 0; i < SMALL; i++) row[i] = -INFINITY;
        ops_sample how = plain();
        row[a] = 0, row[b] = (float)(stored_noise[a] - stored_noise[b] - 1e-4);
        assert_int_equal(run(row, SMALL, &how).id, a);
        row[b] = (float)(stored_noise[a] - stored_noise[b] + 1e-4);
        assert_int_equal(run(row, SMALL, &how).id, b);
    }
}

static void test_noise_depends_on_its_coordinates(void **state)
{
    (void)state;
    float flat[LARGE] = {0};
    ops_sample how = plain(), other = plain();
    int32_t id = run(flat, LARGE, &how).id;
    assert_int_equal(run(flat, LARGE, &how).id, id);
    other.position = 2;
    assert_int_not_equal(run(flat, LARGE, &other).id, id);
    other = plain(), other.choice = 1;
    assert_int_not_equal(run(flat, LARGE, &other).id, id);
    other = plain(), other.seed ^= (uint64_t)1 << 40;
    assert_int_not_equal(run(flat, LARGE, &other).id, id);
}

/* ---- Greedy and damaged rows ---------------------------------------------------------------------------------- */

static void test_greedy(void **state)
{
    (void)state;
    const float row[] = {1, 5, NAN, 5, -INFINITY};
    ops_sample how = plain();
    how.temperature = 0, how.top_k = 3, how.top_p = 0.1f;
    assert_int_equal(run(row, 5, &how).id, 1); /* the lower id */
    how.temperature = 9.9e-6f;
    assert_int_equal(run(row, 5, &how).id, 1);
    const float zeros[] = {-0.0f, 0.0f};
    assert_int_equal(run(zeros, 2, &how).id, 0); /* -0 equals 0 */
    const float low[] = {-3e38f, NAN, -2e38f};
    assert_int_equal(run(low, 3, &how).id, 2);
}

static void test_no_finite_value(void **state)
{
    (void)state;
    const float nan[] = {NAN, -NAN, -INFINITY}, row[] = {1, 2, NAN};
    ops_sample how = plain();
    how.logprobs = 2;
    for (int greedy = 0; greedy < 2; greedy++) {
        how.temperature = greedy ? 0 : 1, how.top_p = 0.5f, how.top_k = 2, how.min_p = 0.1f;
        ops_sampled out = run(nan, 3, &how);
        assert_int_equal(out.id, -1);
        assert_int_equal(out.top_count, 0);
        int32_t allowed[] = {2};
        ops_sample only = how;
        only.allowed = allowed, only.allowed_count = 1;
        assert_int_equal(run(row, 3, &only).id, SAMPLED_NONE); /* the one allowed is NaN */
        const float finite[] = {1, 2, 3};
        assert_int_equal(run(finite, 3, &only).id, 2);
        hy_token_bias away = {2, -INFINITY};
        only.bias = &away, only.bias_count = 1;
        assert_int_equal(run(finite, 3, &only).id, SAMPLED_MASKED); /* nothing is wrong with the row */
        assert_int_equal(run(row, 3, &only).id, SAMPLED_NONE);
    }
    assert_int_equal(support(row, 3, plain()), 3); /* NaN never comes */
    const float inf[] = {0, INFINITY, 3};
    assert_int_equal(support(inf, 3, plain()), 2);
}

static void test_extreme_temperatures(void **state)
{
    (void)state;
    const float row[] = {-60, 0, 60, 59};
    ops_sample how = plain();
    how.temperature = 1e-5f;
    assert_int_equal(support(row, 4, how), 4);
    const float huge[] = {3e38f, -3e38f, 2e38f};
    assert_int_equal(run(huge, 3, &how).id == 0 || run(huge, 3, &how).id == 2, 1);
    how.temperature = 2, how.top_p = 0.999f, how.min_p = 1e-30f;
    assert_int_equal(run(huge, 3, &how).id, 0);
}

/* ---- Masks ---------------------------------------------------------------------------------------------------- */

static void test_masks(void **state)
{
    (void)state;
    float flat[SMALL] = {0};
    ops_sample how = plain();
    int32_t allowed[] = {3, 7, 7, 99, -1};
    how.allowed = allowed, how.allowed_count = 5;
    assert_int_equal(support(flat, SMALL, how), 1 << 3 | 1 << 7);
    uint32_t bits[1] = {1u << 7 | 1u << 2};
    how.mask = bits;
    assert_int_equal(support(flat, SMALL, how), 1 << 7);
    how.allowed_count = 0;
    assert_int_equal(support(flat, SMALL, how), 1 << 7 | 1 << 2);
    int32_t ends[] = {2, 500};
    how.end_ids = ends, how.end_id_count = 2, how.min_tokens = 1;
    assert_int_equal(support(flat, SMALL, how), 1 << 7);
    int32_t made[] = {0};
    how.output = made, how.output_count = 1; /* the minimum is there */
    assert_int_equal(support(flat, SMALL, how), 1 << 7 | 1 << 2);
    how.temperature = 0, how.output_count = 0;
    assert_int_equal(run(flat, SMALL, &how).id, 7);
}

static void test_mask_beyond_one_word(void **state)
{
    (void)state;
    float flat[70] = {0};
    uint32_t bits[3] = {0, 1u << 31, 1u << 5};
    ops_sample how = plain();
    how.mask = bits;
    bool seen[70] = {0};
    for (how.position = 1; how.position < 200; how.position++) seen[run(flat, 70, &how).id] = true;
    for (int i = 0; i < 70; i++) assert_int_equal(seen[i], i == 63 || i == 69);
}

static void test_bad_words(void **state)
{
    (void)state;
    float flat[4] = {0};
    int32_t one[] = {1}, pair[] = {2, 3}, triple[] = {1, 2, 0}, outside[] = {77};
    const int32_t *words[] = {one, pair, triple, outside};
    size_t lengths[] = {1, 2, 3, 1};
    ops_sample how = plain();
    how.bad_words = words, how.bad_word_lengths = lengths, how.bad_word_count = 4;
    assert_int_equal(support(flat, 4, how), 0xD); /* no history: only the word of one token */
    int32_t two[] = {2}, mixed[] = {1, 2}, other[] = {2, 1};
    how.prompt = two, how.prompt_count = 1;
    assert_int_equal(support(flat, 4, how), 0x5); /* 2 is there: 3 is forbidden */
    how.prompt = one, how.output = two, how.output_count = 1;
    assert_int_equal(support(flat, 4, how), 0x4); /* 1 2 across prompt and output: 0 as well */
    how.prompt_count = 0, how.output = mixed, how.output_count = 2;
    assert_int_equal(support(flat, 4, how), 0x4);
    how.output = other;
    assert_int_equal(support(flat, 4, how), 0xD); /* the last token decides, not one further back */
}

/* ---- Bias and penalties --------------------------------------------------------------------------------------- */

static void test_bias(void **state)
{
    (void)state;
    const float row[] = {1, 2, 3, -INFINITY};
    hy_token_bias list[] = {{0, 1.5f}, {0, 1}, {2, -100}, {3, 100}, {50, 100}};
    ops_sample how = plain();
    how.temperature = 0, how.bias = list, how.bias_count = 5;
    assert_int_equal(run(row, 4, &how).id, 0); /* 1 + 1.5 + 1 against 2; what is masked stays masked */
    how.bias_count = 1;
    assert_int_equal(run(row, 4, &how).id, 2);
}

/* The value of token 0 after the chain, found as the place where token 1 takes over; both ways of the tie. */
static void check_value(float logit, ops_sample how, float expected)
{
    how.temperature = 0;
    float row[2] = {logit, expected};
    assert_int_equal(run(row, 2, &how).id, 0); /* equal: the lower id */
    row[1] = nextafterf(expected, INFINITY);
    assert_int_equal(run(row, 2, &how).id, 1);
}

static void test_penalties(void **state)
{
    (void)state;
    int32_t zero[] = {0, 0, 0}, unrelated[] = {5, -4, 99};
    ops_sample how = plain();
    how.repetition_penalty = 2;
    check_value(3, how, 3); /* not in the history */
    how.prompt = unrelated, how.prompt_count = 3;
    check_value(3, how, 3);
    how.prompt = zero, how.prompt_count = 1;
    check_value(3, how, 1.5f);
    check_value(-3, how, -6);
    how.output = zero, how.output_count = 2; /* once, however often and wherever */
    check_value(3, how, 1.5f);
    how.repetition_penalty = 0.5f;
    check_value(3, how, 6);
    check_value(-3, how, -1.5f);

    how = plain();
    how.frequency_penalty = 0.5f, how.prompt = zero, how.prompt_count = 3;
    check_value(3, how, 3); /* the prompt does not count */
    how.output = zero, how.output_count = 3;
    check_value(3, how, 1.5f);
    how.presence_penalty = 0.25f;
    check_value(3, how, 1.25f);
    how.frequency_penalty = 0;
    check_value(3, how, 2.75f);
    how.presence_penalty = -1;
    check_value(3, how, 4);
    how.presence_penalty = 0.25f, how.frequency_penalty = 0.5f, how.repetition_penalty = 2; /* repetition comes first */
    check_value(3, how, 3 / 2.0f - 1.5f - 0.25f);
    hy_token_bias bias = {0, 1}; /* and bias before it */
    how.bias = &bias, how.bias_count = 1;
    check_value(3, how, 4 / 2.0f - 1.5f - 0.25f);
}

/* ---- Cuts ----------------------------------------------------------------------------------------------------- */

static void test_top_k(void **state)
{
    (void)state;
    const float row[] = {0, 1, 1, 1, -1};
    ops_sample how = plain();
    how.top_k = 1;
    assert_int_equal(support(row, 5, how), 2);
    how.top_k = 2; /* ties: the lower ids */
    assert_int_equal(support(row, 5, how), 6);
    how.top_k = 4;
    assert_int_equal(support(row, 5, how), 15);
    const int32_t off[] = {0, -1, 5, 100};
    for (int i = 0; i < 4; i++) {
        how.top_k = off[i];
        assert_int_equal(support(row, 5, how), 31);
    }
    const float zeros[] = {0.0f, -0.0f, 0.0f};
    how.top_k = 2;
    assert_int_equal(support(zeros, 3, how), 3); /* -0 equals 0 */
}

static void test_top_p(void **state)
{
    (void)state;
    /* Probabilities 1/2 1/4 1/8 1/8: logits of powers of two. */
    const float l2 = 0.693147182f, row[] = {-2 * l2, 0, -l2, -2 * l2};
    ops_sample how = plain();
    how.top_p = 0.49f;
    assert_int_equal(support(row, 4, how), 1 << 1);
    how.top_p = 0.51f;
    assert_int_equal(support(row, 4, how), 1 << 1 | 1 << 2);
    how.top_p = 0.76f; /* of two equal ones the lower id */
    assert_int_equal(support(row, 4, how), 1 << 0 | 1 << 1 | 1 << 2);
    how.top_p = 0.9f;
    assert_int_equal(support(row, 4, how), 15);
    how.top_p = 1;
    assert_int_equal(support(row, 4, how), 15);
    how.top_p = 1e-9f; /* one is always left */
    assert_int_equal(support(row, 4, how), 1 << 1);
    how.top_p = 0.6f, how.top_k = 2; /* renormalised after top-k: 2/3 and 1/3 */
    assert_int_equal(support(row, 4, how), 1 << 1);
    how.top_p = 0.7f;
    assert_int_equal(support(row, 4, how), 1 << 1 | 1 << 2);
    how.top_k = 0, how.temperature = 0.5f, how.top_p = 0.7f; /* temperature first: 16/22, 4/22, 1/22, 1/22 */
    assert_int_equal(support(row, 4, how), 1 << 1);
    how.temperature = 1, how.min_p = 0.3f, how.top_p = 0.66f; /* min-p first: 2/3 and 1/3 are left */
    assert_int_equal(support(row, 4, how), 1 << 1);
    /* Exactly reached is reached: four equal masses. */
    float flat[4] = {0};
    how = plain(), how.top_p = 0.5f;
    assert_int_equal(support(flat, 4, how), 3);
    how.top_p = 0.75f;
    assert_int_equal(support(flat, 4, how), 7);
}

static void test_min_p(void **state)
{
    (void)state;
    const float row[] = {0, -1, -2, -3};
    ops_sample how = plain();
    how.min_p = 0.2f; /* e^-1 = 0.37, e^-2 = 0.14 */
    assert_int_equal(support(row, 4, how), 3);
    how.min_p = 0.13f;
    assert_int_equal(support(row, 4, how), 7);
    how.min_p = 1;
    assert_int_equal(support(row, 4, how), 1);
    how.min_p = 0;
    assert_int_equal(support(row, 4, how), 15);
    how.min_p = 0.2f, how.temperature = 2; /* after temperature: e^-1 for token 2 */
    assert_int_equal(support(row, 4, how) | 8, 15);
    how.temperature = 0.5f;
    assert_int_equal(support(row, 4, how), 1);
    how.temperature = 1, how.min_p = 1e-45f; /* subnormal */
    assert_int_equal(support(row, 4, how), 15);
}

/* The chain written the plain way: doubles, one sort. Returns the pick; *margin is how near top-p came to another cut.
 */
struct item {
    float z;
    int32_t id;
};

static int descending(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    return x->z != y->z ? (x->z < y->z ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

static int32_t twin(const float *logits, int32_t vocab, const ops_sample *how, double *margin)
{
    struct item *item = malloc((size_t)vocab * sizeof *item);
    int32_t count = 0, best = -1;
    float top = -INFINITY;
    double sum = 0, mass = 0;
    for (int32_t i = 0; i < vocab; i++)
        if (!isnan(logits[i]) && logits[i] > -INFINITY)
            item[count++] = (struct item){logits[i] / how->temperature + 0.0f, i};
    qsort(item, (size_t)count, sizeof *item, descending);
    *margin = 1;
    if (how->min_p > 0) {
        int32_t n = 0;
        while (n < count && exp((double)item[n].z - (double)item[0].z) >= (double)how->min_p) n++;
        count = n;
    }
    if (how->top_k > 0 && how->top_k < count) count = how->top_k;
    if (how->top_p < 1) {
        for (int32_t i = 0; i < count; i++) sum += exp((double)item[i].z - (double)item[0].z);
        for (int32_t i = 0; i < count; i++) {
            mass += exp((double)item[i].z - (double)item[0].z);
            if (fabs(mass / sum - (double)how->top_p) < *margin) *margin = fabs(mass / sum - (double)how->top_p);
            if (mass >= (double)how->top_p * sum) count = i + 1;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        uint32_t x[4];
        random_quad(how->seed, how->position, RANDOM_PICK, how->choice, (uint32_t)item[i].id / 4, 0, x);
        float value = item[i].z + random_gumbel(x[item[i].id % 4]);
        if (value > top || (value == top && item[i].id < best)) top = value, best = item[i].id;
    }
    free(item);
    return best;
}

static void test_against_the_sorted_twin(void **state)
{
    (void)state;
    static float row[LARGE];
    uint32_t x = 12345;
    int close = 0;
    for (int round = 0; round < 400; round++) {
        int32_t vocab = 1 + (int32_t)(x % (round % 4 ? 300 : LARGE));
        int kind = round % 5;
        for (int32_t i = 0; i < vocab; i++) {
            x = x * 1664525u + 1013904223u;
            float u = (float)(x >> 8) * 0x1p-24f;
            row[i] = kind == 0   ? 20 * u - 10
                     : kind == 1 ? floorf(6 * u)
                     : kind == 2 ? 100 * u * u * u * u - 30
                     : kind == 3 ? 0
                                 : 2 * u;
            if (x % 97 == 0) row[i] = NAN;
            if (x % 89 == 0) row[i] = -0.0f;
        }
        ops_sample how = plain();
        how.seed = (uint64_t)round << 20, how.position = (uint32_t)round, how.choice = (uint32_t)round % 3;
        how.temperature = (float[]){1, 0.3f, 1.7f}[round % 3];
        how.top_p = (float[]){1, 0.9f, 0.3f, 0.9999f}[round / 2 % 4];
        how.top_k = (int32_t[]){0, 1, 40, 7, 1000}[round / 3 % 5];
        how.min_p = (float[]){0, 0, 0.05f}[round / 5 % 3];
        double margin;
        int32_t expected = twin(row, vocab, &how, &margin), got = run(row, vocab, &how).id;
        if (margin < 1e-6 && expected != got)
            close++;
        else
            assert_int_equal(got, expected);
    }
    assert_in_range(close, 0, 4); /* equal masses that end on p: rounding decides, and only there */
}

/* ---- Log-probabilities ---------------------------------------------------------------------------------------- */

static void test_logprobs_are_raw(void **state)
{
    (void)state;
    const float row[] = {logf(0.1f), logf(0.4f), NAN, logf(0.2f), logf(0.3f), -INFINITY};
    hy_token_bias bias = {0, 50};
    ops_sample how = plain();
    how.temperature = 0, how.bias = &bias, how.bias_count = 1, how.logprobs = 20;
    ops_sampled out = run(row, 6, &how);
    assert_int_equal(out.id, 0); /* by the bias, which the numbers do not see */
    assert_true(fabsf(out.logprob - logf(0.1f)) < 1e-6f);
    assert_int_equal(out.top_count, 4); /* only tokens with a probability */
    const int32_t ids[] = {1, 4, 3, 0};
    const float p[] = {0.4f, 0.3f, 0.2f, 0.1f};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out.top_ids[i], ids[i]);
        assert_true(fabsf(out.top_logprobs[i] - logf(p[i])) < 1e-6f);
    }
    how.logprobs = 0;
    out = run(row, 6, &how);
    assert_int_equal(out.top_count, 0);
    assert_true(fabsf(out.logprob - logf(0.1f)) < 1e-6f);
}

static void test_logprobs_ties_and_range(void **state)
{
    (void)state;
    float flat[64];
    for (int i = 0; i < 64; i++) flat[i] = 7000 + (i == 40 ? 1 : 0); /* large values: the largest is taken off first */
    ops_sample how = plain();
    how.temperature = 0, how.logprobs = 3;
    ops_sampled out = run(flat, 64, &how);
    const int32_t ids[] = {40, 0, 1};
    for (int i = 0; i < 3; i++) assert_int_equal(out.top_ids[i], ids[i]);
    double sum = exp(1) + 63;
    assert_true(fabs((double)out.logprob - (1 - log(sum))) < 2e-6);
    assert_true(fabs((double)out.top_logprobs[2] + log(sum)) < 2e-6);
}

/* More than an ops_sampled has room for: as sorting the whole row would have them, whatever the count. */
static const float *sorted_row;

static int by_place(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorted_row[x] != sorted_row[y]) return sorted_row[x] > sorted_row[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void test_many_logprobs_are_sorted(void **state)
{
    (void)state;
    enum { VOCAB = 1000 };
    static float row[VOCAB];
    static int32_t order[VOCAB];
    static hy_logprob best[VOCAB];
    int32_t there = 0;
    uint32_t seed = 1;
    for (int32_t i = 0; i < VOCAB; i++) {
        seed = seed * 1664525 + 1013904223;
        row[i] = (float)(seed >> 26) / 4 - 8; /* few values: many ties; zeros of both signs */
        if (row[i] == 0 && i % 2) row[i] = -0.0f;
        if (i % 17 == 3) row[i] = i % 2 ? NAN : -INFINITY;
        if (row[i] > -INFINITY) order[there++] = i;
    }
    sorted_row = row;
    qsort(order, (size_t)there, sizeof *order, by_place);
    const int32_t counts[] = {21, 22, 64, 500, there - 1, there, there + 1, VOCAB};
    for (size_t mode = 0; mode < 2; mode++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            ops_sample how = plain();
            how.temperature = mode ? 0.7f : 0, how.logprobs = counts[c], how.best = best;
            how.logprobs_mode = mode ? HY_RAW_LOGITS : HY_RAW_LOGPROBS;
            memset(best, 0x77, sizeof best);
            ops_sampled out = run(row, VOCAB, &how);
            int32_t expected = counts[c] < there ? counts[c] : there;
            assert_int_equal(out.top_count, expected);
            for (int32_t i = 0; i < expected; i++) {
                assert_int_equal(best[i].token, order[i]);
                how.logprobs = 0, how.allowed = &order[i], how.allowed_count = 1;
                float own = run(row, VOCAB, &how).logprob;
                assert_memory_equal(&best[i].logprob, own == 0 ? &(float){0} : &own, sizeof own);
            }
            if (counts[c] < VOCAB) assert_int_equal(best[counts[c]].token, 0x77777777); /* nothing behind its room */
        }
}

/* ---- The law -------------------------------------------------------------------------------------------------- */

static void test_distribution(void **state)
{
    (void)state;
    const double p[8] = {0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.04, 0.01};
    float row[8];
    for (int i = 0; i < 8; i++) row[i] = 1.5f * logf((float)p[i]) + 3; /* temperature 1.5 gives p back */
    for (uint64_t seed = 1; seed <= 3; seed++) {
        int count[8] = {0};
        ops_sample how = plain();
        how.temperature = 1.5f, how.seed = seed;
        for (how.position = 0; how.position < 50000; how.position++) count[run(row, 8, &how).id]++;
        double chi = 0;
        for (int i = 0; i < 8; i++) chi += (count[i] - 50000 * p[i]) * (count[i] - 50000 * p[i]) / (50000 * p[i]);
        assert_true(chi < 24.3); /* 7 degrees of freedom: exceeded by chance once in a thousand */
        assert_true(chi > 0.5);
    }
}

static void test_distribution_after_cuts(void **state)
{
    (void)state;
    const double p[6] = {0.05, 0.4, 0.3, 0.05, 0.15, 0.05};
    float row[6];
    for (int i = 0; i < 6; i++) row[i] = logf((float)p[i]);
    int count[6] = {0};
    ops_sample how = plain();
    how.top_k = 4, how.top_p = 0.9f; /* 0.4 0.3 0.15 of 0.9: 0.944 is reached by the third */
    for (how.position = 0; how.position < 50000; how.position++) count[run(row, 6, &how).id]++;
    assert_int_equal(count[0] + count[3] + count[5], 0);
    double chi = 0, kept[3] = {p[1] / 0.85, p[2] / 0.85, p[4] / 0.85};
    int of[3] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        double e = 50000 * kept[i], d = count[of[i]] - e;
        chi += d * d / e;
    }
    assert_true(chi < 13.8); /* 2 degrees of freedom */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noise_is_the_stored_one),
        cmocka_unit_test(test_noise_depends_on_its_coordinates),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_no_finite_value),
        cmocka_unit_test(test_extreme_temperatures),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_mask_beyond_one_word),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_against_the_sorted_twin),
        cmocka_unit_test(test_logprobs_are_raw),
        cmocka_unit_test(test_logprobs_ties_and_range),
        cmocka_unit_test(test_many_logprobs_are_sorted),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_distribution_after_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
