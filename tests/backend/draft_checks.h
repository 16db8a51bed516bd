/*
 * A backend's drafter against the reference on the same inputs, and what holds for every backend. The including file defines
 * TESTED, the backend, and brings kinds [KINDS].
 */
#ifndef TESTS_BACKEND_DRAFT_CHECKS_H
#define TESTS_BACKEND_DRAFT_CHECKS_H

#include "backend/draft_rounds.h"

/* The largest difference of a row against its largest value: roundings to bf16 that the reference does not make; of c, of
 * what has gone through up to three layers. The largest that was met is printed. */
#define BOUND_C 1e-2f
#define BOUND 2e-2f

/* The reference, then the backend. */
static void open_both(bench both[2], const random_model *m)
{
    for (int n = 0; n < 2; n++) open_bench(&both[n], n ? &TESTED : &ops_reference, m, 2);
}

/* ---- Context ------------------------------------------------------------------------------------------------------ */

static float worst_c, worst_rows;

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

/* c and the cache's rows of `count` rows of four sequences; those of a cache in bf16 differ by less than bf16_bound. */
static void check_context(int i, int count, float bf16_bound)
{
    random_model m;
    bench both[2];
    float *c[2];
    step_rows rows;
    make(&m, &kinds[i]);
    mixed_rows(&rows, count);
    open_both(both, &m);
    for (int n = 0; n < 2; n++) {
        bench_fill(&both[n], 0);
        feed(&both[n], &rows);
        c[n] = bench_read(&both[n], OPS_DRAFT_C, rows.ops.count, (size_t)kind.hidden);
    }
    for (int32_t t = 0; t < rows.ops.count; t++) { /* nobody reads those of padding */
        if (rows.sequence[t] < 0) continue;
        float error = row_error(c[0] + t * kind.hidden, c[1] + t * kind.hidden, 1, (size_t)kind.hidden);
        if (!(error < BOUND_C)) fail_msg("kind %d: c of row %d differs by %g", i, t, (double)error);
        worst_c = fmaxf(worst_c, error);
    }
    float error = compare_caches(both, &kinds[i]), bound = kinds[i].cache == CACHE_FP8 ? 0.126f : bf16_bound; /* a step of fp8 */
    if (!(error < bound)) fail_msg("kind %d: rows differ by %g", i, (double)error);
    worst_rows = fmaxf(worst_rows, error);
    for (int n = 0; n < 2; n++) free(c[n]), bench_close(&both[n]);
    random_model_free(&m);
}

static void report_context(void)
{
    printf("context: c differs by %.2g, rows by %.2g of the largest value\n", (double)worst_c, (double)worst_rows);
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

/* A block of `rows` drafts behind `place`. */
static void check_block(const bench both[2], int i, int place, int rows)
{
    round_of round[2];
    float *h[2];
    for (int n = 0; n < 2; n++) {
        round_open(&round[n], 3, place, rows);
        run_rounds(&both[n], &round[n], 1);
        assert_int_equal(round[n].count, rows);
        h[n] = bench_read(&both[n], OPS_DRAFT_H, rows, (size_t)kind.hidden);
    }
    float error = row_error(h[0], h[1], rows, (size_t)kind.hidden);
    if (!(error < BOUND)) fail_msg("kind %d, position %d, %d rows: h differs by %g", i, place, rows, (double)error);
    worst_h = fmaxf(worst_h, error);
    compare_laws(both, round, rows);
    free(h[0]), free(h[1]);
}

static void report_blocks(void)
{
    printf("blocks: h differs by %.2g, L by %.2g of the largest value\n", (double)worst_h, (double)worst_logits);
}

/* Drafts end before the first whose confidence is below the threshold: bounds on it from both sides, as the reference; behind
 * positions [10, until). */
static void check_confidence(int until)
{
    random_model m;
    bench both[2];
    int shorter = 0;
    make(&m, &kinds[0]);
    open_both(both, &m);
    same_context(both);
    for (int n = 10; n < until; n++) {
        static const float threshold[] = {0.48f, 0.52f, 0.5f};
        int32_t count[3]; /* the reference twice, the backend */
        for (int side = 0; side < 3; side++) {
            round_of r;
            round_open(&r, 3, n, MOST);
            r.ops.threshold = threshold[side];
            run_rounds(&both[side / 2], &r, 1);
            count[side] = r.count;
        }
        assert_true(count[2] <= count[0] && count[2] >= count[1]);
        shorter += count[2] < MOST;
    }
    assert_true(shorter > 0 && shorter < until - 10);
    bench_close(&both[0]), bench_close(&both[1]);
    random_model_free(&m);
}

/* ---- One sequence, one answer ------------------------------------------------------------------------------------- */

/* All rounds, one by one or together, over contexts that came in pieces, in a cache that held `garbage`. Closes b. */
static outcome run_outcome(bench *b, bool alone, int garbage)
{
    outcome o;
    step_rows rows;
    size_t hidden = (size_t)kind.hidden, vocab = (size_t)kind.vocab;
    bench_fill(b, garbage);
    for (int s = 0; s < 5; s++)
        for (int first = 0; first < LONGEST; first += alone ? 60 : 250) {
            int chunk = alone ? 60 : 250, left = LONGEST - first;
            rows_open(&rows);
            rows_add(&rows, s, first, left < chunk ? left : chunk, kind.vocab);
            feed(b, &rows);
        }
    open_rounds(o.round);
    o.h = calloc(SEQUENCES * MOST * hidden, sizeof *o.h);
    if (!alone) run_rounds(b, o.round, SEQUENCES);
    for (int i = 0; i < SEQUENCES; i++) {
        if (alone) run_rounds(b, &o.round[i], 1);
        b->ops->tensor_read(b->step, OPS_DRAFT_H, alone ? 0 : i * MOST, o.round[i].ops.rows, o.h + (size_t)i * MOST * hidden);
    }
    o.laws = bench_read(b, OPS_DRAFT_LOGITS, SEQUENCES * MOST, vocab);
    bench_close(b);
    return o;
}

static void expect_drafts(const outcome *o)
{
    int drafts = 0;
    for (int i = 0; i < SEQUENCES; i++) drafts += o->round[i].count;
    assert_int_equal(o->round[6].count, 2);
    assert_int_equal(o->round[11].count, 0);
    assert_true(drafts > 100);
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
    open_bench(&b, &TESTED, &m, 2);
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

#endif
