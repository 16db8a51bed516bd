/*
 * The cpu's drafter: context rows and blocks against the reference on the same inputs, and the same bits whatever the other
 * sequences of the round, the threads, the variants of the inner loops, and what lies in the cache where a row sees nothing.
 */
#include "backend/draft_rounds.h"

#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "base/file.h"

/* The largest difference of a row against its largest value: roundings to bf16 that the reference does not make; of c, of
 * what has gone through up to three layers. The largest that was met is printed. */
#define BOUND_C 1e-2f
#define BOUND 2e-2f

/* Heads one to one, sixteen to one, more than sixteen to one with widths that fill no lanes, two and three to one. */
static const drafter_kind kinds[] = {
    {.layers = 2, .heads = 4, .kv_heads = 4, .head_dim = 32, .rotary_dim = 16, .width = 160, .block = 8, .window = 64,
     .tap_count = 3, .markov_rank = 16, .tap = {0, 0, 1}, .cache = CACHE_FP8, .confidence = true, .linear = WEIGHT_MXFP8},
    {.layers = 2, .heads = 32, .kv_heads = 2, .head_dim = 32, .rotary_dim = 16, .width = 96, .block = 8, .window = 64,
     .tap_count = 2, .markov_rank = 32, .tap = {0, 1}, .cache = CACHE_BF16, .linear = WEIGHT_MXFP8},
    {.layers = 3, .heads = 20, .kv_heads = 1, .head_dim = 24, .rotary_dim = 24, .width = 52, .block = 8, .window = 200,
     .tap_count = 1, .markov_rank = 9, .tap = {1}, .cache = CACHE_BF16, .plain = true, .linear = WEIGHT_BF16},
    {.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 32, .rotary_dim = 32, .width = 64, .block = 8, .window = 130,
     .tap_count = 1, .markov_rank = 8, .tap = {1}, .cache = CACHE_FP8, .linear = WEIGHT_MXFP8},
    {.layers = 1, .heads = 6, .kv_heads = 2, .head_dim = 48, .rotary_dim = 32, .width = 64, .block = 8, .window = 8,
     .tap_count = 2, .tap = {0, 1}, .cache = CACHE_FP8, .linear = WEIGHT_MXFP8},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- Context ------------------------------------------------------------------------------------------------------ */

static float worst_context, worst_c;

/* Counts within a tile of the cpu and beyond one. Nothing but the rows' places is written. */
static void context(void **state)
{
    (void)state;
    static const int counts[] = {1, 9, 140};
    for (int i = 0; i < KINDS * 3; i++) {
        random_model m;
        bench both[2];
        float *c[2];
        step_rows rows;
        make(&m, &kinds[i / 3]);
        mixed_rows(&rows, counts[i % 3]);
        float bound = kinds[i / 3].cache == CACHE_FP8 ? 0.126f : BOUND_C; /* a step of the format */
        for (int n = 0; n < 2; n++) {
            open_bench(&both[n], n ? &ops_cpu : &ops_reference, &m, 2);
            bench_fill(&both[n], 0);
            feed(&both[n], &rows);
            c[n] = bench_read(&both[n], OPS_DRAFT_C, rows.ops.count, (size_t)kind.hidden);
        }
        for (int32_t t = 0; t < rows.ops.count; t++) { /* nobody reads those of padding */
            if (rows.sequence[t] < 0) continue;
            float error = row_error(c[0] + t * kind.hidden, c[1] + t * kind.hidden, 1, (size_t)kind.hidden);
            assert_true(error < BOUND_C);
            worst_c = fmaxf(worst_c, error);
        }
        size_t before = both[0].layout.draft_offset;
        uint8_t *bytes = malloc(before);
        double squares = 0, differences = 0;
        for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
            size_t count, dim = (size_t)kinds[i / 3].head_dim;
            float *a = read_block(&both[0], block, &count), *b = read_block(&both[1], block, &count);
            float error = row_error(a, b, (int32_t)(count / dim), dim);
            if (!(error < bound)) fail_msg("kind %d: block %d differs by %g", i / 3, block, (double)error);
            worst_context = fmaxf(worst_context, error);
            for (size_t at = 0; at < count; at++) {
                squares += (double)(a[at] * a[at]);
                differences += (double)((a[at] - b[at]) * (a[at] - b[at]));
            }
            both[1].ops->cache_read(both[1].cache, block, 0, before, bytes);
            for (size_t at = 0; at < before; at++) assert_int_equal(bytes[at], 0);
            free(a), free(b);
        }
        double mean = sqrt(differences / squares);
        if (!(mean < (kinds[i / 3].cache == CACHE_FP8 ? 3e-2 : 5e-3))) fail_msg("kind %d: rows differ by %g", i / 3, mean);
        free(bytes);
        for (int n = 0; n < 2; n++) free(c[n]), bench_close(&both[n]);
        random_model_free(&m);
    }
    printf("context: c differs by %.2g, rows by %.2g of the largest value\n", (double)worst_c, (double)worst_context);
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------- */

static float worst_h, worst_logits;

/* Laws of a round at temperature 0 as long as the drafts are the same; the first that is not has been about as likely. */
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
    static const int places[] = {0, 1, 63, 64, 65, 127, 128, 129, 131, 250, 263, LONGEST};
    for (int i = 0; i < KINDS; i++) {
        random_model m;
        bench both[2];
        make(&m, &kinds[i]);
        for (int n = 0; n < 2; n++) open_bench(&both[n], n ? &ops_cpu : &ops_reference, &m, 2);
        same_context(both);
        for (size_t place = 0; place < sizeof places / sizeof *places; place++)
            for (int g = 1; g <= MOST; g++) {
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

/* ---- One sequence, one answer ------------------------------------------------------------------------------------- */

typedef struct run {
    int workers;
    int garbage; /* what the cache holds beside the context */
    bool alone;  /* rounds one by one, else all together */
    const cpu_kernels *kernels; /* NULL: the best */
    const cpu_blocks *blocks;
    const cpu_products *products;
} run;

static outcome go(const random_model *m, const run *how)
{
    bench b;
    outcome o;
    step_rows rows;
    size_t hidden = (size_t)kind.hidden, vocab = (size_t)kind.vocab;
    open_bench(&b, &ops_cpu, m, how->workers);
    if (how->kernels) b.backend->kernels = how->kernels;
    if (how->blocks) b.backend->blocks = how->blocks;
    if (how->products) b.backend->products = how->products;
    bench_fill(&b, how->garbage);
    for (int s = 0; s < 5; s++)
        for (int first = 0; first < LONGEST; first += how->alone ? 60 : 250) {
            int chunk = how->alone ? 60 : 250, left = LONGEST - first;
            rows_open(&rows);
            rows_add(&rows, s, first, left < chunk ? left : chunk, kind.vocab);
            feed(&b, &rows);
        }
    open_rounds(o.round);
    o.h = calloc(SEQUENCES * MOST * hidden, sizeof *o.h);
    for (int i = 0; i < SEQUENCES && how->alone; i++) {
        run_rounds(&b, &o.round[i], 1);
        b.ops->tensor_read(b.step, OPS_DRAFT_H, 0, o.round[i].ops.rows, o.h + (size_t)i * MOST * hidden);
    }
    if (!how->alone) {
        run_rounds(&b, o.round, SEQUENCES);
        for (int i = 0; i < SEQUENCES; i++)
            b.ops->tensor_read(b.step, OPS_DRAFT_H, i * MOST, o.round[i].ops.rows, o.h + (size_t)i * MOST * hidden);
    }
    o.laws = bench_read(&b, OPS_DRAFT_LOGITS, SEQUENCES * MOST, vocab);
    bench_close(&b);
    return o;
}

static void compare_runs(const drafter_kind *k, const run *runs, int n)
{
    random_model m;
    make(&m, k);
    outcome first = go(&m, &runs[0]);
    int drafts = 0;
    for (int i = 0; i < SEQUENCES; i++) drafts += first.round[i].count;
    assert_int_equal(first.round[6].count, 2);
    assert_int_equal(first.round[11].count, 0);
    assert_true(drafts > 100);
    for (int i = 1; i < n; i++) {
        outcome other = go(&m, &runs[i]);
        expect_same(&first, &other);
        outcome_free(&other);
    }
    outcome_free(&first);
    random_model_free(&m);
}

static void batch_and_threads(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        int nan = kinds[i].cache == CACHE_FP8 ? 0x7F : 0xFF;
        run runs[] = {{.workers = 1, .alone = true}, {.workers = 1}, {.workers = 2, .garbage = nan},
                      {.workers = 3},                {.workers = 4, .garbage = nan, .alone = true},
                      {.workers = 7, .alone = true}};
        compare_runs(&kinds[i], runs, sizeof runs / sizeof *runs);
    }
}

static void instruction_sets(void **state)
{
    (void)state;
    const cpu_kernels *kernels[4];
    const cpu_blocks *block_sets[4];
    const cpu_products *products[4];
    int n = cpu_kernels_all(kernels), m = cpu_blocks_all(block_sets), p = cpu_products_all(products);
    run runs[4];
    for (int i = 0; i < 4; i++)
        runs[i] = (run){.workers = 2,
                        .kernels = kernels[i < n ? i : n - 1],
                        .blocks = block_sets[i < m ? i : m - 1],
                        .products = products[i < p ? i : p - 1]};
    for (int i = 0; i < KINDS; i++) compare_runs(&kinds[i], runs, 4);
}

/* ---- Ends --------------------------------------------------------------------------------------------------------- */

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
    open_bench(&b, &ops_cpu, &m, 2);
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

/* Where memory counts, rows of the embedding and of markov_in are read from their file: the same drafts, and an error of the
 * step when the file is cut. */
static void bounded(void **state)
{
    (void)state;
    random_model m;
    hy_error err = {0};
    file_map map;
    char path[] = "/tmp/hayate-test-XXXXXX";
    make(&m, &kinds[0]);
    ops_drafter *d = m.ops.drafter;
    weight *tables[] = {&d->embed, &d->markov_in};
    size_t bytes[2];
    FILE *out = fdopen(mkstemp(path), "wb");
    assert_non_null(out);
    for (int i = 0; i < 2; i++) {
        bytes[i] = (size_t)tables[i]->rows * weight_row_data(tables[i]);
        assert_int_equal(fwrite(tables[i]->data, 1, bytes[i], out), bytes[i]);
    }
    assert_int_equal(fclose(out), 0);
    check(file_map_open(path, &map, &err), &err);
    weight_file file = {path, map.data, map.size};
    round_of first, r;
    for (int part = 0; part < 2; part++) { /* in memory; from the file */
        bench b;
        ops_options o = {.files = &file, .file_count = 1, .bounded = part};
        if (part) d->embed.data = m.ops.embed.data = map.data, d->markov_in.data = map.data + bytes[0];
        bench_open(&b, &ops_cpu, &m, CACHE_BF16, CACHE_BF16, o, 2);
        bench_fill(&b, 0);
        round_open(&r, 0, 40, MOST);
        run_rounds(&b, &r, 1);
        assert_int_equal(r.count, MOST);
        if (part) assert_memory_equal(r.draft, first.draft, sizeof r.draft);
        first = r;
        for (int cut = 0; cut < 2 && part; cut++) { /* behind the embedding; nothing at all */
            assert_int_equal(truncate(path, cut ? 10 : (off_t)bytes[0] + 10), 0);
            step_rows rows;
            rows_open(&rows);
            ops_draft one = r.ops;
            one.after = r.after, one.after_count = &r.after_count, one.draft = r.draft, one.count = &r.count;
            b.ops->begin(b.step, b.cache, &rows.ops);
            b.ops->draft(b.step, &one, 1);
            assert_int_equal(b.ops->finish(b.step, &err), HY_FAILED);
            assert_int_equal(r.count, 0);
        }
        bench_close(&b);
    }
    file_map_close(&map);
    unlink(path);
    random_model_free(&m);
}

/* Drafts end before the first whose confidence is below the threshold: bounds on it from both sides, as the reference. */
static void confidence(void **state)
{
    (void)state;
    random_model m;
    bench both[2];
    make(&m, &kinds[0]);
    for (int n = 0; n < 2; n++) open_bench(&both[n], n ? &ops_cpu : &ops_reference, &m, 2);
    same_context(both);
    int shorter = 0;
    for (int n = 10; n < 40; n++) {
        int32_t count[2][2];
        for (int which = 0; which < 2; which++)
            for (int side = 0; side < 2; side++) {
                round_of r;
                round_open(&r, 3, n, MOST);
                r.ops.threshold = side || which ? 0.5f + (which ? 0 : 0.02f) : 0.48f;
                run_rounds(&both[which], &r, 1);
                count[which][side] = r.count;
            }
        assert_true(count[1][0] <= count[0][0] && count[1][0] >= count[0][1]);
        shorter += count[1][0] < MOST;
    }
    assert_true(shorter > 0 && shorter < 30);
    bench_close(&both[0]), bench_close(&both[1]);
    random_model_free(&m);
}

/* What a step and the weights take is known before. */
static void memory(void **state)
{
    (void)state;
    random_model m;
    ops_memory with, without, many, laws;
    ops_limits limits = {.rows = 8, .logit_rows = 8, .positions = 1024};
    ops_options options = {0};
    make(&m, &kinds[0]);
    ops_cpu.measure(&m.ops, &options, &limits, &without);
    limits.drafts = 1, limits.draft_rows = MOST;
    ops_cpu.measure(&m.ops, &options, &limits, &with);
    limits.drafts = 256;
    ops_cpu.measure(&m.ops, &options, &limits, &many);
    limits.draft_laws = true;
    ops_cpu.measure(&m.ops, &options, &limits, &laws);
    uint64_t row = (uint64_t)kind.vocab * sizeof(float);
    assert_true(with.step >= without.step + MOST * row);
    /* Logits of a slice, whatever the number of sequences; h and the rest of them is small. */
    assert_true(many.step - with.step < 512 * row + 2048 * (uint64_t)kind.hidden * sizeof(float) * 2);
    assert_int_equal(laws.step - many.step, 256 * MOST * row);
    ops_drafter *drafter = m.ops.drafter;
    m.ops.drafter = NULL;
    limits = (ops_limits){.rows = 8, .logit_rows = 8, .positions = 1024};
    ops_cpu.measure(&m.ops, &options, &limits, &without);
    assert_true(with.weights > without.weights);
    m.ops.drafter = drafter;
    random_model_free(&m);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context),           cmocka_unit_test(blocks),     cmocka_unit_test(batch_and_threads),
        cmocka_unit_test(instruction_sets),  cmocka_unit_test(confidence), cmocka_unit_test(nothing_to_draft),
        cmocka_unit_test(bounded),
        cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
