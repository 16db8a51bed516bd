/*
 * Sampling on the GPU: the token of sample_row for every row that cuda_sample_on_gpu takes, whatever the row looks like and
 * the masks and cuts are; and which rows it takes.
 */
#include "backend/cuda_test.h"

/* Of a vocabulary that is no multiple of four, and of one that is. */
static model_kind kind = {
    .layers = 1, .hidden = 32, .heads = 2, .kv_heads = 1, .head_dim = 32, .index_dim = 32, .index_top = 2,
    .rotary_dim = 16, .experts = 2, .per_token = 1, .expert_width = 32, .shared_width = 32, .dense_width = 32,
    .vocab = 5003, .linear = WEIGHT_BF16, .expert = WEIGHT_BF16,
};

enum { ROWS = 24 };

/* Rows of logits: noise about 0, peaks, few values that repeat, and what a network should not make. */
static void fill(float *row, int shape)
{
    for (int i = 0; i < kind.vocab; i++) {
        float z = random_normal() * (shape % 3 == 0 ? 1 : shape % 3 == 1 ? 3 : 0.1f);
        if (shape == 3) z = (float)random_below(5) - 2;              /* equal ones by the thousand */
        if (shape == 4) z = bf16_round(z);
        if (shape == 5) z = i % 100 ? -INFINITY : z;
        if (shape == 6) z = random_below(50) ? z : random_below(2) ? NAN : INFINITY;
        if (shape == 7) z = i == 3000 ? 12 : z;
        if (shape == 8) z = NAN;
        if (shape == 9) z = i < 4090 ? -0.0f : 0;
        if (shape == 10) z *= 1e30f;
        if (shape == 11) z = -fabsf(z) - 1000;
        row[i] = z;
    }
}

static ops_sample any_row(int logit_row)
{
    static const float temperatures[] = {1, 0.6f, 0, 1.7f, 1e-5f, 9e-6f};
    static const float top_ps[] = {1, 0.95f, 0.5f, 0.999f, 0, 1e-4f};
    static const float min_ps[] = {0, 0.05f, 0.5f, 1e-30f, 1};
    static const int top_ks[] = {0, 40, 1, 2, 512, 6000, -1};
    return (ops_sample){
        .logit_row = logit_row,
        .seed = (uint64_t)random_bits() << 32 | random_bits(),
        .position = random_bits() % 100000,
        .choice = random_bits() % 3,
        .temperature = temperatures[random_below(6)],
        .top_p = top_ps[random_below(6)],
        .min_p = random_below(2) ? 0 : min_ps[random_below(5)],
        .top_k = top_ks[random_below(7)],
        .repetition_penalty = 1,
        .logprobs = -1,
    };
}

enum { MOST_VOCAB = 5003, WORDS = (MOST_VOCAB + 31) / 32, MASKS = 4 };

/* Masks of ids: most of them, one in a hundred, ids 7 alone, and one whose bits change between calls. */
static uint32_t masks[MASKS][WORDS];
static int32_t some_ids[] = {11, 3000, -1, 4095, 90000, 2};
static const int32_t word_one[] = {5}, word_two[] = {40, 41}, *const bad_words[] = {word_one, word_two};
static const size_t bad_lengths[] = {1, 2};
static const int32_t outputs[] = {40};

static void make_masks(void)
{
    for (int w = 0; w < WORDS; w++)
        for (int i = 0; i < 32; i++) {
            uint32_t bit = 1u << i;
            if (random_below(10)) masks[0][w] |= bit;
            if (random_below(100) == 0) masks[1][w] |= bit;
            if (w * 32 + i == 7) masks[2][w] |= bit;
        }
}

/* Half of the rows have the first mask, as in an engine; the others any of them, or what becomes one. */
static void any_mask(ops_sample *how)
{
    int which = random_below(8);
    if (which < 5) how->mask = masks[which == 4 ? random_below(MASKS) : 0];
    if (which == 5) how->allowed = some_ids, how->allowed_count = 6;
    if (which == 6) how->end_ids = some_ids, how->end_id_count = 6, how->min_tokens = 2, how->output_count = 1;
    if (which == 7) how->bad_words = bad_words, how->bad_word_lengths = bad_lengths, how->bad_word_count = 2;
    if (which == 7 && random_below(2)) how->mask = masks[0];
    if (which >= 6) how->output = outputs, how->output_count = 1;
}

typedef struct sampling_bench {
    random_model model;
    bench bench;
    float *logits;
    void *scratch;
} sampling_bench;

static void open_sampling(sampling_bench *b)
{
    step_rows rows;
    random_state = 5;
    random_model_make(&b->model, &kind);
    bench_open(&b->bench, &ops_cuda, &b->model, CACHE_BF16, CACHE_BF16, (ops_options){0}, 2);
    b->logits = malloc(ROWS * (size_t)kind.vocab * sizeof *b->logits);
    b->scratch = malloc(sample_scratch_bytes(kind.vocab));
    rows_open(&rows);
    rows_add(&rows, 0, 0, ROWS, kind.vocab);
    b->bench.ops->begin(b->bench.step, b->bench.cache, &rows.ops);
    for (int r = 0; r < ROWS; r++) fill(b->logits + (size_t)r * (size_t)kind.vocab, r % 12);
    b->bench.ops->tensor_write(b->bench.step, OPS_LOGITS, 0, ROWS, b->logits);
}

static void close_sampling(sampling_bench *b)
{
    hy_error err = {0};
    check(b->bench.ops->finish(b->bench.step, &err), &err);
    bench_close(&b->bench);
    random_model_free(&b->model);
    free(b->logits), free(b->scratch);
}

/* More samples than the step has logit rows; the share that the host would have to make is small. */
static void same_tokens_of(int vocab)
{
    enum { COUNT = 600 };
    sampling_bench b;
    static ops_sample how[COUNT];
    const ops_sample *rows[COUNT];
    int32_t ids[COUNT];
    int taken = 0, refused = 0;
    kind.vocab = vocab;
    open_sampling(&b);
    for (int i = 0; i < COUNT; i++) {
        how[i] = any_row(i % ROWS);
        rows[i] = &how[i];
        assert_true(cuda_sample_on_gpu(b.bench.step, rows[i]));
    }
    cuda_sample_rows(b.bench.step, rows, COUNT, ids);
    for (int i = 0; i < COUNT; i++) {
        ops_sampled wanted;
        sample_row(b.logits + (size_t)how[i].logit_row * (size_t)kind.vocab, kind.vocab, &how[i], b.scratch, &wanted);
        if (ids[i] >= 0 && ids[i] != wanted.id)
            fail_msg("sample %d, row %d: %d and not %d; temperature %g, top_k %d, top_p %g, min_p %g", i,
                     how[i].logit_row, ids[i], wanted.id, (double)how[i].temperature, how[i].top_k,
                     (double)how[i].top_p, (double)how[i].min_p);
        taken += ids[i] >= 0;
        refused += ids[i] < 0 && wanted.id >= 0;
    }
    printf("%d of %d taken, %d left to the host\n", taken, COUNT, refused);
    assert_true(taken > COUNT / 2);
    /* What a model makes with the cuts that models come with is never left to the host. */
    for (int i = 0; i < COUNT; i++) {
        how[i] = any_row(i % ROWS);
        how[i].temperature = 1, how[i].top_k = 40, how[i].top_p = 0.95f, how[i].min_p = 0;
    }
    cuda_sample_rows(b.bench.step, rows, COUNT, ids);
    for (int i = 0; i < COUNT; i++) {
        ops_sampled wanted;
        int shape = how[i].logit_row % 12;
        sample_row(b.logits + (size_t)how[i].logit_row * (size_t)kind.vocab, kind.vocab, &how[i], b.scratch, &wanted);
        if (shape == 1 || shape == 2 || shape == 4 || shape == 7 || ids[i] >= 0) assert_int_equal(ids[i], wanted.id);
    }
    close_sampling(&b);
}

/* Masks: the tokens of sample_row, call after call, with one mask whose bits are others every time. */
static void masked_tokens_of(int vocab)
{
    enum { COUNT = 120, CALLS = 2 };
    sampling_bench b;
    static ops_sample how[COUNT];
    const ops_sample *rows[COUNT];
    int32_t ids[COUNT];
    int taken = 0, none = 0;
    kind.vocab = vocab;
    open_sampling(&b);
    for (int call = 0; call < CALLS; call++) {
        for (int w = 0; w < WORDS; w++) masks[MASKS - 1][w] = random_bits() & random_bits() & random_bits();
        for (int i = 0; i < COUNT; i++) {
            how[i] = any_row(i % ROWS);
            any_mask(&how[i]);
            rows[i] = &how[i];
            assert_true(cuda_sample_on_gpu(b.bench.step, rows[i]));
        }
        cuda_sample_rows(b.bench.step, rows, COUNT, ids);
        for (int i = 0; i < COUNT; i++) {
            ops_sampled wanted;
            sample_row(b.logits + (size_t)how[i].logit_row * (size_t)vocab, vocab, &how[i], b.scratch, &wanted);
            if (ids[i] >= 0) assert_int_equal(ids[i], wanted.id);
            taken += ids[i] >= 0, none += wanted.id < 0;
        }
    }
    printf("%d of %d taken, of %d nothing is left\n", taken, COUNT * CALLS, none);
    assert_true(taken > COUNT * CALLS / 2);
    close_sampling(&b);
}

static void masked_tokens(void **state)
{
    (void)state;
    random_state = 6;
    make_masks();
    masked_tokens_of(MOST_VOCAB);
    masked_tokens_of(4096);
}

static void same_tokens(void **state)
{
    (void)state;
    same_tokens_of(5003);
    same_tokens_of(4096);
}

static void who_is_taken(void **state)
{
    (void)state;
    sampling_bench b;
    open_sampling(&b);
    const ops_step *step = b.bench.step;
    int32_t one = 3;
    hy_token_bias bias = {3, 1};
    uint32_t mask[WORDS] = {0};
    ops_sample plain = any_row(1), s = plain;
    plain.top_k = 40, plain.temperature = 1;
    assert_true(cuda_sample_on_gpu(step, &plain));
    s = plain, s.allowed = &one, s.allowed_count = 1;
    assert_true(cuda_sample_on_gpu(step, &s));
    s = plain, s.end_ids = &one, s.end_id_count = 1, s.min_tokens = 1;
    assert_true(cuda_sample_on_gpu(step, &s));
    s = plain, s.bias = &bias, s.bias_count = 1;
    assert_false(cuda_sample_on_gpu(step, &s));
    s = plain, s.mask = mask;
    assert_true(cuda_sample_on_gpu(step, &s));
    s = plain, s.repetition_penalty = 1.1f;
    assert_false(cuda_sample_on_gpu(step, &s));
    s = plain, s.presence_penalty = 1;
    assert_false(cuda_sample_on_gpu(step, &s));
    s = plain, s.frequency_penalty = -1;
    assert_false(cuda_sample_on_gpu(step, &s));
    s = plain, s.logprobs = 0;
    assert_false(cuda_sample_on_gpu(step, &s));
    s = plain, s.top_k = 513;
    assert_false(cuda_sample_on_gpu(step, &s));
    s.temperature = 0; /* greedy: no cuts */
    assert_true(cuda_sample_on_gpu(step, &s));
    s = plain, s.logit_row = ROWS;
    assert_false(cuda_sample_on_gpu(step, &s));
    close_sampling(&b);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_tokens), cmocka_unit_test(masked_tokens),
                                       cmocka_unit_test(who_is_taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
