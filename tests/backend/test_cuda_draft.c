/*
 * The drafter on the GPU: context rows and blocks against the reference on the same inputs; drafts as draft_pick makes them
 * of the same law; the same bits whatever the other sequences of the round and what lies in the cache where a row sees nothing.
 *
 * hayate-test: slow
 */
#include "backend/cuda_test.h"
#include "backend/draft_rounds.h"
#include "base/clock.h"

/* Heads one to one, sixteen to one of 128 dims, more than sixteen to one of a width that fills no tile, two and three to one. */
static const drafter_kind kinds[] = {
    {.layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 32, .rotary_dim = 16, .width = 160, .block = 8, .window = 64,
     .tap_count = 3, .markov_rank = 16, .tap = {0, 0, 1}, .cache = CACHE_FP8, .confidence = true, .linear = WEIGHT_BF16},
    {.layers = 1, .heads = 32, .kv_heads = 2, .head_dim = 128, .rotary_dim = 64, .width = 96, .block = 8, .window = 140,
     .tap_count = 2, .markov_rank = 32, .tap = {0, 1}, .cache = CACHE_FP8, .linear = WEIGHT_MXFP8},
    {.layers = 3, .heads = 20, .kv_heads = 1, .head_dim = 24, .rotary_dim = 24, .width = 48, .block = 8, .window = 200,
     .tap_count = 1, .markov_rank = 16, .tap = {1}, .cache = CACHE_BF16, .plain = true, .linear = WEIGHT_BF16},
    {.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .rotary_dim = 32, .width = 64, .block = 8, .window = 130,
     .tap_count = 1, .markov_rank = 32, .tap = {1}, .cache = CACHE_BF16, .linear = WEIGHT_MXFP8},
    {.layers = 1, .heads = 6, .kv_heads = 2, .head_dim = 48, .rotary_dim = 32, .width = 64, .block = 8, .window = 8,
     .tap_count = 2, .tap = {0, 1}, .cache = CACHE_FP8, .linear = WEIGHT_MXFP8},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

#define TESTED ops_cuda
#include "backend/draft_checks.h"

/* ---- Against the reference ---------------------------------------------------------------------------------------- */

static void context(void **state)
{
    (void)state;
    static const int counts[] = {1, 9, 140};
    for (int i = 0; i < KINDS; i++) check_context(i, counts[i % 3], BOUND);
    report_context();
}

static void blocks(void **state)
{
    (void)state;
    static const int places[] = {0, 1, 64, 127, 128, 129, 250, 263, LONGEST};
    static const int sizes[] = {1, 2, 7, MOST};
    for (int i = 0; i < KINDS; i++) {
        random_model m;
        bench both[2];
        make(&m, &kinds[i]);
        open_both(both, &m);
        same_context(both);
        for (size_t place = 0; place < sizeof places / sizeof *places; place++)
            check_block(both, i, places[place], sizes[(place + (size_t)i) % 4]);
        bench_close(&both[0]), bench_close(&both[1]);
        random_model_free(&m);
    }
    report_blocks();
}

static void confidence(void **state)
{
    (void)state;
    check_confidence(30);
}

/* ---- Picks -------------------------------------------------------------------------------------------------------- */

/* A draft is what draft_pick makes of the law that was kept; the first of a round without a law has that of the round with. */
static void picks(void **state)
{
    (void)state;
    random_model m;
    bench both[2];
    size_t vocab = (size_t)kind.vocab;
    make(&m, &kinds[3]);
    open_both(both, &m);
    same_context(both);
    for (int i = 0; i < 12; i++) {
        float *law = NULL;
        for (int method = 2; method >= 0; method--) {
            round_of r;
            int n = 20 * i;
            round_open(&r, 3, n, MOST);
            r.ops.method = (ops_draft_method)method, r.ops.seed = 1234u + (uint64_t)i, r.ops.choice = (uint32_t)i;
            r.ops.temperature = i % 4 == 3 ? 0 : 0.4f * (float)(1 + i % 4), r.ops.law = 2;
            run_rounds(&both[1], &r, 1);
            assert_int_equal(r.count, MOST);
            if (!law) {
                law = malloc(MOST * vocab * sizeof *law);
                both[1].ops->tensor_read(both[1].step, OPS_DRAFT_LOGITS, 2 * MOST, MOST, law);
            }
            for (int k = 0; k < (method == DRAFT_PROBABILISTIC ? MOST : 1); k++)
                assert_int_equal(r.draft[k], draft_pick(law + (size_t)k * vocab, kind.vocab, &r.ops,
                                                        (uint32_t)(n + 1 + k), (uint32_t)n));
        }
        free(law);
    }
    bench_close(&both[0]), bench_close(&both[1]);
    random_model_free(&m);
}

/* ---- One sequence, one answer ------------------------------------------------------------------------------------- */

static outcome go(const random_model *m, bool alone, int garbage)
{
    bench b;
    open_bench(&b, &ops_cuda, m, 2);
    return run_outcome(&b, alone, garbage);
}

static void alone_or_together(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        random_model m;
        make(&m, &kinds[i]);
        outcome together = go(&m, false, 0), alone = go(&m, true, kinds[i].cache == CACHE_FP8 ? 0x7F : 0xFF);
        expect_drafts(&together);
        expect_same(&together, &alone);
        outcome_free(&together), outcome_free(&alone);
        random_model_free(&m);
    }
}

/* ---- Behind picks ------------------------------------------------------------------------------------------------- */

enum { GROUPS = 9, JUDGED = 3, GROUP_ROWS = JUDGED + 1 };

/* Groups of a last token and up to JUDGED drafts, of which a known number will be accepted, and what comes of them. */
typedef struct group {
    ops_sample row[GROUP_ROWS];
    ops_sampled out[GROUP_ROWS];
    int32_t draft[GROUP_ROWS], judged, count, next[MOST], next_count;
    ops_draft ops;
} group;

static float group_logits[GROUPS * GROUP_ROWS * 256];

static void make_groups(group *groups, bool sampled)
{
    static const int lengths[GROUPS] = {1, 5, 63, 64, 126, 128, 200, 255, 290};
    void *scratch = malloc(sample_scratch_bytes(kind.vocab));
    for (int i = 0; i < GROUPS; i++) {
        group *g = &groups[i];
        *g = (group){.judged = sampled ? 0 : i % (JUDGED + 1), .count = 1};
        for (int j = 0; j <= g->judged; j++) {
            float *logits = group_logits + (size_t)((i * GROUP_ROWS + j) * kind.vocab);
            for (int v = 0; v < kind.vocab; v++) logits[v] = i == 7 && j == 1 ? NAN : random_normal() * 3;
            g->row[j] = (ops_sample){.logit_row = i * GROUP_ROWS + j, .seed = 50u + (uint64_t)i, .position = (uint32_t)(lengths[i] + j),
                                     .temperature = i % 3 ? 0.8f : 0, .top_p = 0.95f, .repetition_penalty = 1, .logprobs = -1};
            ops_sampled picked;
            sample_row(logits, kind.vocab, &g->row[j], scratch, &picked);
            g->draft[j] = j == i / 2 ? (picked.id + 1) % kind.vocab : picked.id;
        }
        g->ops = (ops_draft){.sequence = 3, .position = lengths[i], .rows = i == 2 ? 3 : MOST, .end = i == 4 ? 129 : INT32_MAX,
                             .seed = 50u + (uint64_t)i, .temperature = i % 3 ? 0.8f : 0, .method = (ops_draft_method)(i % 2),
                             .threshold = i == 5 ? 0.4f : 0, .law = i};
    }
    free(scratch);
}

/* Picks and drafts in one step, `ahead`, or the drafts in a step of their own, whose anchors the host knows. */
static void run_groups(const bench *b, group *groups, bool sampled, bool ahead)
{
    step_rows rows;
    hy_error err = {0};
    ops_verify verify[GROUPS];
    ops_draft draft[GROUPS];
    ops_sample row[GROUPS];
    ops_sampled out[GROUPS];
    rows_open(&rows);
    rows_add(&rows, 3, LONGEST - GROUPS * GROUP_ROWS, GROUPS * GROUP_ROWS, kind.vocab);
    b->ops->begin(b->step, b->cache, &rows.ops);
    b->ops->tensor_write(b->step, OPS_LOGITS, 0, GROUPS * GROUP_ROWS, group_logits);
    for (int i = 0; i < GROUPS; i++) {
        group *g = &groups[i];
        verify[i] = (ops_verify){.row = g->row, .draft = g->draft, .drafts = g->judged, .law = -1, .out = g->out,
                                 .count = &g->count};
        row[i] = g->row[0];
        draft[i] = g->ops;
        draft[i].after = sampled ? &out[i] : g->out, draft[i].after_count = &g->count;
        draft[i].draft = g->next, draft[i].count = &g->next_count;
        g->next_count = -7;
    }
    if (sampled)
        b->ops->sample(b->step, row, GROUPS, out);
    else
        b->ops->verify(b->step, verify, GROUPS);
    assert_true(b->step->picks.asked); /* nobody has waited */
    if (!ahead) {
        check(b->ops->finish(b->step, &err), &err);
        b->ops->begin(b->step, b->cache, &rows.ops);
    }
    b->ops->draft(b->step, draft, GROUPS);
    assert_int_equal(b->step->picks.asked, ahead);
    assert_int_equal(cuda_draft_asked(b->step), ahead ? GROUPS : 0);
    check(b->ops->finish(b->step, &err), &err);
    for (int i = 0; i < GROUPS && sampled; i++) groups[i].out[0] = out[i];
}

static void behind_picks(void **state)
{
    (void)state;
    static group one[GROUPS], two[GROUPS];
    for (int k = 0; k < 4; k += 3)
        for (int sampled = 0; sampled < 2; sampled++) {
            random_model m;
            bench both[2];
            int drafts = 0, accepted = 0;
            make(&m, &kinds[k]);
            open_both(both, &m);
            same_context(both);
            make_groups(one, sampled);
            memcpy(two, one, sizeof two);
            run_groups(&both[1], one, sampled, true);
            run_groups(&both[1], two, sampled, false);
            for (int i = 0; i < GROUPS; i++) {
                int right = i / 2 < one[i].judged ? i / 2 : one[i].judged;
                assert_int_equal(one[i].count, i == 7 && !sampled ? 2 : 1 + right);
                assert_int_equal(one[i].count, two[i].count);
                for (int j = 0; j < one[i].count; j++) assert_int_equal(one[i].out[j].id, two[i].out[j].id);
                assert_int_equal(one[i].next_count, two[i].next_count);
                assert_memory_equal(one[i].next, two[i].next, (size_t)one[i].next_count * sizeof *one[i].next);
                drafts += one[i].next_count, accepted += one[i].count - 1;
            }
            if (!sampled) {
                assert_int_equal(one[7].out[1].id, SAMPLED_NONE);
                assert_int_equal(one[7].next_count, 0);
            }
            assert_int_equal(one[2].next_count, 3);
            assert_true(drafts > 40 && (sampled || accepted > 5));
            bench_close(&both[0]), bench_close(&both[1]);
            random_model_free(&m);
        }
}

/* ---- How fast ----------------------------------------------------------------------------------------------------- */

/* Random codes of values below 2^-6. */
static weight random_codes(arena *a, weight_format format, int64_t rows, int64_t cols)
{
    enum { PATTERN = 1 << 22 };
    weight w = {.format = format, .rows = rows, .cols = cols};
    size_t n = (size_t)(rows * cols), bytes = format == WEIGHT_MXFP8 ? n : 2 * n;
    uint8_t *data = arena_take(a, bytes), *scales = format == WEIGHT_MXFP8 ? arena_take(a, n / 32) : NULL;
    for (size_t i = 0; i + 4 <= bytes && i < PATTERN; i += 4) {
        uint32_t code = random_bits();
        code = format == WEIGHT_MXFP8 ? code & 0xBFBFBFBF : (code & 0x80FF80FF) | 0x3C003C00;
        memcpy(data + i, &code, 4);
    }
    for (size_t i = PATTERN; i < bytes; i += PATTERN)
        memcpy(data + i, data, bytes - i < PATTERN ? bytes - i : PATTERN);
    if (scales) memset(scales, 120, n / 32);
    w.data = data, w.scales = scales;
    return w;
}

/* The released drafter. */
static void make_released(random_model *m)
{
    enum { HIDDEN = 6144, VOCAB = 200064, WIDTH = 12288, Q = 64 * 128, KV = 4 * 128, TAPS = 5, RANK = 256 };
    model_kind small = {.layers = 2, .hidden = HIDDEN, .heads = 1, .kv_heads = 1, .head_dim = 64, .index_dim = 64,
                        .index_top = 1, .rotary_dim = 32, .experts = 1, .per_token = 1, .expert_width = 32,
                        .shared_width = 32, .dense_width = 32, .vocab = 32, .linear = WEIGHT_BF16, .expert = WEIGHT_BF16};
    random_state = 3;
    random_model_make(m, &small);
    arena *a = &m->memory;
    ops_drafter *d = m->ops.drafter = arena_take(a, sizeof *d);
    m->ops.vocab = VOCAB;
    m->ops.embed = m->ops.head = random_codes(a, WEIGHT_BF16, VOCAB, HIDDEN);
    float *zeros = arena_take(a, HIDDEN * sizeof *zeros);
    weight gain = {.format = WEIGHT_F32, .rows = 1, .cols = HIDDEN, .data = zeros}, head_gain = gain;
    head_gain.cols = 128;
    *d = (ops_drafter){
        .layers = 5, .heads = 64, .kv_heads = 4, .head_dim = 128, .rotary_dim = 64, .width = WIDTH, .rope_theta = 5e6f,
        .norm_eps = 1e-6f, .swiglu_alpha = 1.702f, .swiglu_limit = 7, .block = 7, .window = 4096,
        .noise_token = VOCAB - 1, .tap_count = TAPS, .markov_rank = RANK, .cache = CACHE_FP8, .embed = m->ops.embed,
        .head = m->ops.head, .hidden_norm = gain, .final_norm = gain,
    };
    d->fc = random_codes(a, WEIGHT_BF16, HIDDEN, TAPS * HIDDEN);
    d->markov_in = d->markov_out = random_codes(a, WEIGHT_BF16, VOCAB, RANK);
    d->layer = arena_take(a, (size_t)d->layers * sizeof *d->layer);
    ops_draft_layer l = {.input_norm = gain, .post_norm = gain, .q_norm = head_gain, .k_norm = head_gain};
    l.q = random_codes(a, WEIGHT_MXFP8, Q, HIDDEN), l.o = random_codes(a, WEIGHT_MXFP8, HIDDEN, Q);
    l.k = random_codes(a, WEIGHT_MXFP8, KV, HIDDEN), l.v = l.k;
    l.gate = random_codes(a, WEIGHT_MXFP8, WIDTH, HIDDEN), l.up = l.gate;
    l.down = random_codes(a, WEIGHT_MXFP8, HIDDEN, WIDTH);
    for (int i = 0; i < d->layers; i++) d->layer[i] = l;
}

/* Microseconds of a round of drafts, of context rows and of sampling at the released sizes. */
static void speed(void)
{
    enum { CALLS = 10 };
    random_model m;
    bench b;
    hy_error err = {0};
    make_released(&m);
    bench_open(&b, &ops_cuda, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    bench_fill(&b, 0);
    for (int count = 1; count <= MAX_SEQUENCES; count *= 2) {
        round_of rounds[MAX_SEQUENCES];
        double best = INFINITY;
        for (int turn = 0; turn < CALLS; turn++) {
            for (int i = 0; i < count; i++) {
                round_open(&rounds[i], i, 4090, 7);
                rounds[i].ops.method = DRAFT_COUPLED, rounds[i].ops.temperature = 1;
            }
            double start = clock_seconds();
            run_rounds(&b, rounds, count);
            best = fmin(best, clock_seconds() - start);
        }
        printf("%d sequences, 7 drafts behind 4,090 positions: %7.1f us\n", count, best * 1e6);
    }
    static const int rows_of[] = {1, 8, 64, 256};
    for (int i = 0; i < 4; i++) {
        step_rows rows;
        double best = INFINITY;
        rows_open(&rows);
        rows_add(&rows, 0, 0, rows_of[i], kind.vocab);
        for (int turn = 0; turn < CALLS; turn++) {
            b.ops->begin(b.step, b.cache, &rows.ops);
            double start = clock_seconds();
            for (int tap = 0; tap < 5; tap++) b.ops->draft_tap(b.step, tap);
            b.ops->draft_context(b.step);
            check(b.ops->finish(b.step, &err), &err);
            best = fmin(best, clock_seconds() - start);
        }
        printf("%d context rows: %7.1f us\n", rows_of[i], best * 1e6);
        float *logits = random_floats((size_t)rows_of[i] * (size_t)m.ops.vocab, 3, false);
        ops_sample *how = calloc((size_t)rows_of[i], sizeof *how);
        ops_sampled *out = calloc((size_t)rows_of[i], sizeof *out);
        b.ops->begin(b.step, b.cache, &rows.ops);
        b.ops->tensor_write(b.step, OPS_LOGITS, 0, rows_of[i], logits);
        for (int cut = 0; cut < 2; cut++) {
            best = INFINITY;
            for (int r = 0; r < rows_of[i]; r++)
                how[r] = (ops_sample){.logit_row = r, .position = 9, .temperature = 1, .top_p = cut ? 0.95f : 1,
                                      .top_k = cut ? 40 : 0, .repetition_penalty = 1, .logprobs = -1};
            for (int turn = 0; turn < CALLS; turn++) {
                double start = clock_seconds();
                b.ops->sample(b.step, how, rows_of[i], out);
                best = fmin(best, clock_seconds() - start);
            }
            printf("%d rows sampled, %s: %7.1f us\n", rows_of[i], cut ? "top-k 40, top-p 0.95" : "no cuts", best * 1e6);
        }
        check(b.ops->finish(b.step, &err), &err);
        free(logits), free(how), free(out);
    }
    bench_close(&b);
    random_model_free(&m);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1 && !strcmp(argv[1], "speed")) return speed(), 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context),    cmocka_unit_test(blocks),            cmocka_unit_test(picks),
        cmocka_unit_test(confidence), cmocka_unit_test(alone_or_together), cmocka_unit_test(nothing_to_draft),
        cmocka_unit_test(behind_picks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
