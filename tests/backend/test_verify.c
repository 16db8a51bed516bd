/* Judging drafts: what every method does with a round, case by case. The laws are in test_verify_law.c. */
#include "backend/verify_helpers.h"

enum { VOCAB = 50, DRAFTS = 5 };

static void random_rows(float *logits, int32_t rows, int32_t vocab, float spread, uint64_t *state)
{
    for (int32_t i = 0; i < rows * vocab; i++) logits[i] = spread * test_normal(state);
}

static ops_sampled sample_alone(const round_of *r, int32_t j)
{
    void *scratch = malloc(sample_scratch_bytes(r->vocab));
    ops_sampled out;
    sample_row(r->logits + (size_t)r->row[j].logit_row * (size_t)r->vocab, r->vocab, &r->row[j], scratch, &out);
    free(scratch);
    return out;
}

/* ---- Coupled ----------------------------------------------------------------------------------------------------- */

/* Every row's token is the one of plain sampling, and the first that is not the draft is the last. */
static void check_coupled(round_of *r, void *scratch)
{
    round_judge(r, scratch);
    for (int32_t j = 0; j < r->count; j++) {
        ops_sampled alone = sample_alone(r, j);
        assert_memory_equal(&r->out[j], &alone, sizeof alone);
        if (j < r->count - 1) assert_int_equal(r->out[j].id, r->draft[j]);
    }
    if (r->count <= r->drafts) assert_int_not_equal(r->out[r->count - 1].id, r->draft[r->count - 1]);
}

static void test_coupled_is_plain_sampling(void **state)
{
    (void)state;
    static float logits[(DRAFTS + 1) * VOCAB], laws[DRAFTS * VOCAB];
    void *scratch = verify_scratch(VOCAB);
    uint64_t numbers = 1;
    int counts[DRAFTS + 2] = {0};
    const float temperatures[] = {0, 0.7f, 1, 2};
    for (int trial = 0; trial < 2000; trial++) {
        round_of r = {.vocab = VOCAB, .drafts = DRAFTS, .logits = logits, .laws = laws, .anchor = (uint32_t)trial};
        random_rows(logits, DRAFTS + 1, VOCAB, 3, &numbers);
        for (int i = 0; i < DRAFTS * VOCAB; i++) laws[i] = logits[i] + 0.5f * test_normal(&numbers);
        round_rows(&r, (uint64_t)trial, temperatures[trial % 4]);
        for (int j = 0; j <= DRAFTS; j++) {
            r.row[j].logprobs = trial % 5 - 1, r.row[j].choice = (uint32_t)trial % 3;
            if (trial % 3 == 1) r.row[j].top_k = 7, r.row[j].top_p = 0.8f;
        }
        round_draft(&r, DRAFT_COUPLED);
        check_coupled(&r, scratch);
        counts[r.count]++;
    }
    for (int n = 1; n <= DRAFTS + 1; n++) assert_in_range(counts[n], 20, 2000); /* all of them come up */
    free(scratch);
}

/* A drafter that is the target itself is never wrong, at any temperature and choice. */
static void test_coupled_drafts_of_the_target(void **state)
{
    (void)state;
    static float logits[(DRAFTS + 1) * VOCAB];
    void *scratch = verify_scratch(VOCAB);
    uint64_t numbers = 2;
    for (int trial = 0; trial < 1000; trial++) {
        round_of r = {.vocab = VOCAB, .drafts = DRAFTS, .logits = logits, .laws = logits, .anchor = 7};
        random_rows(logits, DRAFTS + 1, VOCAB, 2, &numbers);
        logits[trial % VOCAB] = NAN, logits[(trial + 1) % VOCAB] = -0.0f;
        round_rows(&r, (uint64_t)trial << 33, 0.1f * (float)(trial % 13));
        round_draft(&r, DRAFT_COUPLED);
        check_coupled(&r, scratch);
        assert_int_equal(r.count, DRAFTS + 1);
    }
    free(scratch);
}

/* p = (.50,.30,.15,.05), q = (.25,.40,.05,.30): drafts with the target's own noise meet it with probability 0.599: the
 * sum over tokens of 1 / sum over k of max(p_k / p_i, q_k / q_i). */
static const float known_p[4] = {0.50f, 0.30f, 0.15f, 0.05f}, known_q[4] = {0.25f, 0.40f, 0.05f, 0.30f};

static void test_coupled_acceptance(void **state)
{
    (void)state;
    enum { TRIALS = 200000 };
    double expected = 0;
    float logits[8], laws[4];
    for (int i = 0; i < 4; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) sum += fmax((double)known_p[k] / known_p[i], (double)known_q[k] / known_q[i]);
        expected += 1 / sum;
        logits[i] = logf(known_p[i]), logits[4 + i] = 0, laws[i] = logf(known_q[i]);
    }
    assert_float_equal(expected, 0.599, 5e-4);
    void *scratch = verify_scratch(4);
    int accepted = 0, greedy = 0;
    for (uint32_t trial = 0; trial < TRIALS; trial++) {
        round_of r = {.vocab = 4, .drafts = 1, .logits = logits, .laws = laws, .anchor = trial};
        round_rows(&r, 99, 1);
        round_draft(&r, DRAFT_COUPLED);
        round_judge(&r, scratch);
        accepted += r.count == 2;
        r.draft[0] = 1; /* a greedy draft: p(1) */
        round_judge(&r, scratch);
        greedy += r.count == 2;
    }
    double sigma = sqrt(expected * (1 - expected) / TRIALS);
    assert_float_equal((double)accepted / TRIALS, expected, 4 * sigma);
    assert_float_equal((double)greedy / TRIALS, 0.30, 4 * sqrt(0.21 / TRIALS));
    free(scratch);
}

/* ---- All methods ---------------------------------------------------------------------------------------------------
 */

/* Without drafts, or with none that is a token, every method is plain sampling to the last bit. */
static void test_no_drafts(void **state)
{
    (void)state;
    static float logits[(DRAFTS + 1) * VOCAB];
    void *scratch = verify_scratch(VOCAB);
    uint64_t numbers = 3;
    random_rows(logits, DRAFTS + 1, VOCAB, 2, &numbers);
    const int32_t nothing[] = {-1, -7, VOCAB, INT32_MAX, INT32_MIN};
    for (int method = VERIFY_COUPLED; method <= VERIFY_SYNTHETIC; method++)
        for (uint32_t trial = 0; trial < 100; trial++)
            for (int32_t drafts = 0; drafts <= DRAFTS; drafts++) {
                round_of r = {.vocab = VOCAB, .drafts = drafts, .logits = logits, .anchor = trial};
                r.method = (ops_verify_method)method, r.laws = trial % 2 ? logits : NULL;
                round_rows(&r, 5, trial % 3 ? 0.8f : 0);
                for (int j = 0; j <= drafts; j++) r.row[j].logprobs = 3, r.rates[j % MOST_DRAFTS] = 1;
                for (int j = 0; j < drafts; j++) r.draft[j] = nothing[(j + (int)trial) % 5];
                round_judge(&r, scratch);
                ops_sampled alone = sample_alone(&r, 0);
                assert_int_equal(r.count, 1);
                assert_memory_equal(&r.out[0], &alone, sizeof alone);
            }
    free(scratch);
}

/* A place that is no token ends the drafts: what is behind it is never looked at, and the row there is plain. */
static void test_drafts_end_at_no_token(void **state)
{
    (void)state;
    static float logits[(DRAFTS + 1) * VOCAB];
    void *scratch = verify_scratch(VOCAB);
    uint64_t numbers = 4;
    for (int trial = 0; trial < 400; trial++) {
        round_of r = {.vocab = VOCAB, .drafts = DRAFTS, .logits = logits, .laws = logits, .anchor = 3}, shorter;
        r.method = (ops_verify_method)(trial % 4);
        random_rows(logits, DRAFTS + 1, VOCAB, 1, &numbers);
        round_rows(&r, (uint64_t)trial, 1);
        round_draft(&r, r.method == VERIFY_COUPLED ? DRAFT_COUPLED : DRAFT_PROBABILISTIC);
        for (int j = 0; j < DRAFTS; j++) r.rates[j] = 1;
        int32_t end = trial / 4 % DRAFTS;
        shorter = r, shorter.drafts = end;
        r.draft[end] = trial % 3 ? -1 : VOCAB;
        round_judge(&r, scratch);
        round_judge(&shorter, scratch);
        assert_int_equal(r.count, end + 1); /* p = q: all the others are accepted */
        assert_int_equal(shorter.count, end + 1);
        assert_memory_equal(r.out, shorter.out, (size_t)r.count * sizeof *r.out);
        if (r.method == VERIFY_SYNTHETIC) continue;
        ops_sampled alone = sample_alone(&r, end);
        assert_memory_equal(&r.out[end], &alone, sizeof alone);
    }
    free(scratch);
}

/* Below 1e-5 all but synthetic accept a draft when it is the target's argmax, the lower id on ties. */
static void test_greedy(void **state)
{
    (void)state;
    enum { N = 4 };
    const float logits[4 * N] = {1, 5, 5, 0, 0, NAN, 2, 9, 3, 3, 3, 3, 7, 6, 5, 4};
    const float laws[3 * N] = {0};
    void *scratch = verify_scratch(N);
    const float temperatures[] = {0, 9.9e-6f, -1, NAN};
    for (int method = VERIFY_COUPLED; method <= VERIFY_BLOCK; method++)
        for (int t = 0; t < 4; t++) {
            round_of r = {.vocab = N, .drafts = 3, .logits = logits, .laws = t % 2 ? laws : NULL, .draft = {1, 3, 0}};
            r.method = (ops_verify_method)method;
            round_rows(&r, 1, temperatures[t]);
            round_judge(&r, scratch);
            assert_int_equal(r.count, 4);
            assert_int_equal(r.out[3].id, 0);
            r.draft[0] = 2; /* as large, but not the lower id */
            round_judge(&r, scratch);
            assert_int_equal(r.count, 1);
            assert_int_equal(r.out[0].id, 1);
            r.draft[0] = 1, r.draft[2] = 1;
            round_judge(&r, scratch);
            assert_int_equal(r.count, 3);
            assert_int_equal(r.out[2].id, 0);
        }
    free(scratch);
}

/* A row of which nothing is left ends the answer with -1, wherever it is; rows behind it are not reached. */
static void test_rows_without_a_number(void **state)
{
    (void)state;
    static float logits[(DRAFTS + 1) * VOCAB], laws[DRAFTS * VOCAB];
    void *scratch = verify_scratch(VOCAB);
    uint64_t numbers = 5;
    for (int trial = 0; trial < 4 * 2 * 3 * (DRAFTS + 1) * 8; trial++) {
        int32_t bad = trial % (DRAFTS + 1);
        random_rows(laws, DRAFTS, VOCAB, 1, &numbers);
        memcpy(logits, laws, sizeof laws);
        random_rows(logits + DRAFTS * VOCAB, 1, VOCAB, 1, &numbers);
        for (int i = 0; i < VOCAB; i++) logits[bad * VOCAB + i] = i % 2 ? NAN : -INFINITY;
        round_of r = {.vocab = VOCAB, .drafts = DRAFTS, .logits = logits, .laws = laws, .anchor = 11};
        r.method = (ops_verify_method)(trial / 6 % 4);
        round_rows(&r, (uint64_t)trial, (const float[]){0, 0.7f, 1}[trial / 48 % 3]);
        for (int j = 0; j <= DRAFTS; j++) r.row[j].logprobs = 2, r.rates[j] = 1;
        round_draft(&r, r.method == VERIFY_COUPLED ? DRAFT_COUPLED : DRAFT_PROBABILISTIC);
        round_judge(&r, scratch);
        assert_int_equal(r.count, bad + 1); /* p = q before it */
        assert_int_equal(r.out[bad].id, -1);
        assert_int_equal(r.out[bad].top_count, 0);
        assert_true(r.out[bad].logprob == -INFINITY);
        for (int j = 0; j < bad; j++) assert_int_equal(r.out[j].id, r.draft[j]);
    }
    free(scratch);
}

/* Numbers that are missing never come, whether the draft's law or the target's lacks them. */
static void test_numbers_that_are_missing(void **state)
{
    (void)state;
    enum { N = 6 };
    const float logits[2 * N] = {0, NAN, 1, -INFINITY, 1, 0, NAN, 0, 0, 0, 0, NAN};
    const float laws[N] = {NAN, 2, 0, 1, -INFINITY, 0};
    void *scratch = verify_scratch(N);
    for (int method = VERIFY_STANDARD; method <= VERIFY_BLOCK; method++)
        for (uint32_t trial = 0; trial < 3000; trial++) {
            round_of r = {.vocab = N, .drafts = 1, .logits = logits, .laws = laws, .anchor = trial};
            r.method = (ops_verify_method)method;
            round_rows(&r, 17, 1);
            round_draft(&r, DRAFT_PROBABILISTIC);
            assert_true(r.draft[0] != 0 && r.draft[0] != 4);
            round_judge(&r, scratch);
            assert_true(r.out[0].id != 1 && r.out[0].id != 3);
            if (r.count == 2) assert_true(r.out[1].id >= 1 && r.out[1].id <= 4);
        }
    free(scratch);
}

/* Log-probabilities are those of the target's row for the token that came, whoever chose it. */
static void test_log_probabilities(void **state)
{
    (void)state;
    static float logits[(DRAFTS + 1) * VOCAB], laws[DRAFTS * VOCAB];
    void *scratch = verify_scratch(VOCAB);
    uint64_t numbers = 6;
    int kinds[4][2] = {{0}};
    for (int trial = 0; trial < 1200; trial++) {
        random_rows(logits, DRAFTS + 1, VOCAB, 1, &numbers);
        for (int i = 0; i < DRAFTS * VOCAB; i++) laws[i] = logits[i] + test_normal(&numbers);
        round_of r = {.vocab = VOCAB, .drafts = DRAFTS, .logits = logits, .laws = laws, .anchor = 2};
        r.method = (ops_verify_method)(trial % 4);
        round_rows(&r, (uint64_t)trial, 0.9f);
        float scores[DRAFTS + 1][2];
        const int32_t asked[2] = {4, VOCAB};
        for (int j = 0; j <= DRAFTS; j++) {
            r.row[j].logprobs = trial % 6, r.row[j].logprobs_mode = (hy_logprobs_mode)(trial / 4 % 4),
            r.rates[j] = 0.6f;
            r.row[j].score_ids = asked, r.row[j].score_count = 2, r.row[j].scores = scores[j];
        }
        round_draft(&r, r.method == VERIFY_COUPLED ? DRAFT_COUPLED : DRAFT_PROBABILISTIC);
        round_judge(&r, scratch);
        for (int j = 0; j < r.count; j++) {
            ops_sample only = r.row[j];
            float own[2];
            kinds[trial % 4][j < r.count - 1]++;
            /* plain sampling of the same row until it picks the same token */
            only.scores = own;
            round_of one = r;
            one.row[j] = only;
            ops_sampled alone;
            uint32_t tries = 0;
            do {
                one.row[j].seed = 1000 + tries;
                alone = sample_alone(&one, j);
            } while (alone.id != r.out[j].id && ++tries < 100000);
            assert_memory_equal(&r.out[j], &alone, sizeof alone);
            assert_memory_equal(scores[j], own, sizeof own);
        }
    }
    for (int method = 0; method < 4; method++)
        for (int accepted = 0; accepted < 2; accepted++) assert_in_range(kinds[method][accepted], 100, 100000);
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coupled_is_plain_sampling), cmocka_unit_test(test_coupled_drafts_of_the_target),
        cmocka_unit_test(test_coupled_acceptance),        cmocka_unit_test(test_no_drafts),
        cmocka_unit_test(test_drafts_end_at_no_token),    cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_rows_without_a_number),     cmocka_unit_test(test_numbers_that_are_missing),
        cmocka_unit_test(test_log_probabilities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
