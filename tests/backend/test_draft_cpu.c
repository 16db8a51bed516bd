/*
 * The cpu's drafter: context rows and blocks against the reference on the same inputs, and the same bits whatever the other
 * sequences of the round, the threads, the variants of the inner loops, and what lies in the cache where a row sees nothing.
 */
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "backend/draft_rounds.h"
#include "base/file.h"

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

#define TESTED ops_cpu
#include "backend/draft_checks.h"

/* ---- Against the reference ---------------------------------------------------------------------------------------- */

/* Counts within a tile of the cpu and beyond one. */
static void context(void **state)
{
    (void)state;
    static const int counts[] = {1, 9, 140};
    for (int i = 0; i < KINDS * 3; i++) check_context(i / 3, counts[i % 3], BOUND_C);
    report_context();
}

static void blocks(void **state)
{
    (void)state;
    static const int places[] = {0, 1, 63, 64, 65, 127, 128, 129, 131, 250, 263, LONGEST};
    for (int i = 0; i < KINDS; i++) {
        random_model m;
        bench both[2];
        make(&m, &kinds[i]);
        open_both(both, &m);
        same_context(both);
        for (size_t place = 0; place < sizeof places / sizeof *places; place++)
            for (int g = 1; g <= MOST; g++) check_block(both, i, places[place], g);
        bench_close(&both[0]), bench_close(&both[1]);
        random_model_free(&m);
    }
    report_blocks();
}

static void confidence(void **state)
{
    (void)state;
    check_confidence(40);
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
    open_bench(&b, &ops_cpu, m, how->workers);
    if (how->kernels) b.backend->kernels = how->kernels;
    if (how->blocks) b.backend->blocks = how->blocks;
    if (how->products) b.backend->products = how->products;
    return run_outcome(&b, how->alone, how->garbage);
}

static void compare_runs(const drafter_kind *k, const run *runs, int n)
{
    random_model m;
    make(&m, k);
    outcome first = go(&m, &runs[0]);
    expect_drafts(&first);
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
