/*
 * The drafter on the GPU: context rows and blocks against the reference on the same inputs; drafts as draft_pick makes them
 * of the same law; the same bits whatever the other sequences of the round and what lies in the cache where a row sees nothing.
 *
 * hayate-test: slow
 */
#include "backend/cuda_test.h"
#include "backend/draft_rounds.h"
#include "base/clock.h"

/* Largest differences of a row against its largest value, see test_draft_cpu.c; those that were met are printed. */
#define BOUND_C 1e-2f
#define BOUND 2e-2f

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

static void open_both(bench both[2], const random_model *m)
{
    for (int n = 0; n < 2; n++) open_bench(&both[n], n ? &ops_cuda : &ops_reference, m, 2);
}

/* ---- Context ------------------------------------------------------------------------------------------------------ */

/* Keys and values of all blocks; nothing but the drafter's part is written. */
static float compare_caches(const bench both[2], const drafter_kind *k)
{
    size_t before = both[1].layout.draft_offset, dim = (size_t)k->head_dim;
    uint8_t *bytes = malloc(before);
    double squares = 0, differences = 0;
    float worst = 0;
    for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
        size_t count;
        float *a = read_block(&both[0], block, &count), *b = read_block(&both[1], block, &count);
        worst = fmaxf(worst, row_error(a, b, (int32_t)(count / dim), dim));
        for (size_t at = 0; at < count; at++) {
            squares += (double)(a[at] * a[at]);
            differences += (double)((a[at] - b[at]) * (a[at] - b[at]));
        }
        both[1].ops->cache_read(both[1].cache, block, 0, before, bytes);
        for (size_t at = 0; at < before; at++) assert_int_equal(bytes[at], 0);
        free(a), free(b);
    }
    assert_true(squares > 0 && sqrt(differences / squares) < (k->cache == CACHE_FP8 ? 3e-2 : 5e-3));
    free(bytes);
    return worst;
}

static void context(void **state)
{
    (void)state;
    static const int counts[] = {1, 9, 140};
    float worst_c = 0, worst_rows = 0;
    for (int i = 0; i < KINDS; i++) {
        random_model m;
        bench both[2];
        float *c[2];
        step_rows rows;
        make(&m, &kinds[i]);
        mixed_rows(&rows, counts[i % 3]);
        open_both(both, &m);
        for (int n = 0; n < 2; n++) {
            bench_fill(&both[n], 0);
            feed(&both[n], &rows);
            c[n] = bench_read(&both[n], OPS_DRAFT_C, rows.ops.count, (size_t)kind.hidden);
        }
        for (int32_t t = 0; t < rows.ops.count; t++) { /* nobody reads those of padding */
            if (rows.sequence[t] < 0) continue;
            float error = row_error(c[0] + t * kind.hidden, c[1] + t * kind.hidden, 1, (size_t)kind.hidden);
            worst_c = fmaxf(worst_c, error);
        }
        float error = compare_caches(both, &kinds[i]), bound = kinds[i].cache == CACHE_FP8 ? 0.126f : BOUND;
        if (!(error < bound)) fail_msg("kind %d: rows differ by %g", i, (double)error);
        worst_rows = fmaxf(worst_rows, error);
        for (int n = 0; n < 2; n++) free(c[n]), bench_close(&both[n]);
        random_model_free(&m);
    }
    printf("context: c differs by %.2g, rows by %.2g of the largest value\n", (double)worst_c, (double)worst_rows);
    assert_true(worst_c < BOUND_C);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------- */

static float worst_h, worst_logits;

/* Laws as long as the drafts are the same; the first that is not has been about as likely. */
static void compare_laws(const bench both[2], const round_of round[2], int rows)
{
    size_t vocab = (size_t)kind.vocab;
    float *a = bench_read(&both[0], OPS_DRAFT_LOGITS, rows, vocab), *b = bench_read(&both[1], OPS_DRAFT_LOGITS, rows, vocab);
    for (int k = 0; k < rows; k++) {
        const float *law = a + (size_t)k * vocab;
        float error = row_error(law, b + (size_t)k * vocab, 1, vocab);
        if (!(error < BOUND)) fail_msg("L of draft %d of %d differs by %g", k, rows, (double)error);
        worst_logits = fmaxf(worst_logits, error);
        int32_t wanted = round[0].draft[k], got = round[1].draft[k];
        if (wanted == got) continue;
        assert_true(law[wanted] - law[got] < 2 * BOUND * fabsf(law[wanted]));
        break;
    }
    free(a), free(b);
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
        for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
            int g = sizes[(place + (size_t)i) % 4];
            round_of round[2];
            float *h[2];
            for (int n = 0; n < 2; n++) {
                round_open(&round[n], 3, places[place], g);
                run_rounds(&both[n], &round[n], 1);
                assert_int_equal(round[n].count, g);
                h[n] = bench_read(&both[n], OPS_DRAFT_H, g, (size_t)kind.hidden);
            }
            float error = row_error(h[0], h[1], g, (size_t)kind.hidden);
            if (!(error < BOUND))
                fail_msg("kind %d, position %d, %d rows: h differs by %g", i, places[place], g, (double)error);
            worst_h = fmaxf(worst_h, error);
            compare_laws(both, round, g);
            free(h[0]), free(h[1]);
        }
        bench_close(&both[0]), bench_close(&both[1]);
        random_model_free(&m);
    }
    printf("blocks: h differs by %.2g, L by %.2g of the largest value\n", (double)worst_h, (double)worst_logits);
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

/* Drafts end before the first whose confidence is below the threshold: bounds on it from both sides, as the reference. */
static void confidence(void **state)
{
    (void)state;
    random_model m;
    bench both[2];
    make(&m, &kinds[0]);
    open_both(both, &m);
    same_context(both);
    int shorter = 0;
    for (int n = 10; n < 30; n++) {
        int32_t count[2][2];
        for (int which = 0; which < 2; which++)
            for (int side = 0; side < 2; side++) {
                round_of r;
                if (which && side) break;
                round_open(&r, 3, n, MOST);
                r.ops.threshold = side || which ? 0.5f + (which ? 0 : 0.02f) : 0.48f;
                run_rounds(&both[which], &r, 1);
                count[which][side] = r.count;
            }
        assert_true(count[1][0] <= count[0][0] && count[1][0] >= count[0][1]);
        shorter += count[1][0] < MOST;
    }
    assert_true(shorter > 0 && shorter < 20);
    bench_close(&both[0]), bench_close(&both[1]);
    random_model_free(&m);
}

/* ---- One sequence, one answer ------------------------------------------------------------------------------------- */

static outcome go(const random_model *m, bool alone, int garbage)
{
    bench b;
    outcome o;
    step_rows rows;
    size_t hidden = (size_t)kind.hidden, vocab = (size_t)kind.vocab;
    open_bench(&b, &ops_cuda, m, 2);
    bench_fill(&b, garbage);
    for (int s = 0; s < 5; s++)
        for (int first = 0; first < LONGEST; first += alone ? 60 : 250) {
            int chunk = alone ? 60 : 250, left = LONGEST - first;
            rows_open(&rows);
            rows_add(&rows, s, first, left < chunk ? left : chunk, kind.vocab);
            feed(&b, &rows);
        }
    open_rounds(o.round);
    o.h = calloc(SEQUENCES * MOST * hidden, sizeof *o.h);
    if (!alone) run_rounds(&b, o.round, SEQUENCES);
    for (int i = 0; i < SEQUENCES; i++) {
        if (alone) run_rounds(&b, &o.round[i], 1);
        b.ops->tensor_read(b.step, OPS_DRAFT_H, alone ? 0 : i * MOST, o.round[i].ops.rows,
                           o.h + (size_t)i * MOST * hidden);
    }
    o.laws = bench_read(&b, OPS_DRAFT_LOGITS, SEQUENCES * MOST, vocab);
    bench_close(&b);
    return o;
}

static void alone_or_together(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        random_model m;
        make(&m, &kinds[i]);
        outcome together = go(&m, false, 0), alone = go(&m, true, kinds[i].cache == CACHE_FP8 ? 0x7F : 0xFF);
        int drafts = 0;
        for (int n = 0; n < SEQUENCES; n++) drafts += together.round[n].count;
        assert_int_equal(together.round[6].count, 2);
        assert_int_equal(together.round[11].count, 0);
        assert_true(drafts > 100);
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

/* What the step cannot do leaves no drafts; a round of nobody is nothing. */
static void nothing_to_draft(void **state)
{
    (void)state;
    random_model m;
    bench b;
    hy_error err = {0};
    step_rows rows;
    round_of r[2];
    make(&m, &kinds[0]);
    open_bench(&b, &ops_cuda, &m, 2);
    bench_fill(&b, 0);
    run_rounds(&b, r, 0);
    round_open(&r[0], 0, 5, 4), round_open(&r[1], 0, 5, 4);
    r[0].after_count = 0;
    r[1].ops.end = 6;
    run_rounds(&b, r, 2);
    assert_int_equal(r[0].count, 0);
    assert_int_equal(r[1].count, 0);
    rows_open(&rows);
    rows_add(&rows, 0, 0, 1, kind.vocab);
    rows.token[0] = kind.vocab; /* outside: the step fails */
    round_open(&r[0], 0, 0, 4);
    ops_draft d = r[0].ops;
    d.after = r[0].after, d.after_count = &r[0].after_count, d.draft = r[0].draft, d.count = &r[0].count;
    b.ops->begin(b.step, b.cache, &rows.ops);
    b.ops->draft_tap(b.step, 0);
    b.ops->draft_context(b.step);
    b.ops->draft(b.step, &d, 1);
    assert_int_equal(b.ops->finish(b.step, &err), HY_BAD_INPUT);
    assert_int_equal(r[0].count, 0);
    bench_close(&b);
    random_model_free(&m);
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
