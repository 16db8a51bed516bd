/*
 * Rounds of drafts for tests of backends: a small target, its drafter's context, rounds and what comes of them.
 */
#ifndef TESTS_BACKEND_DRAFT_ROUNDS_H
#define TESTS_BACKEND_DRAFT_ROUNDS_H

#include "backend/random_model.h"

enum { LONGEST = 330, SEQUENCES = 20, MOST = 8 };

static const model_kind kind = {
    .layers = 2, .hidden = 96, .heads = 4, .kv_heads = 2, .head_dim = 16, .index_dim = 16, .index_top = 2,
    .rotary_dim = 8, .experts = 2, .per_token = 1, .expert_width = 32, .shared_width = 32, .dense_width = 32,
    .vocab = 205, .linear = WEIGHT_BF16, .expert = WEIGHT_BF16,
};

/* A bench whose rounds are of up to SEQUENCES sequences, which are more rows than a slice of the cpu has. */
static inline void open_bench(bench *b, const hy_ops *ops, const random_model *m, int workers)
{
    hy_error err = {0};
    ops_limits limits = {.rows = MAX_ROWS, .logit_rows = MAX_ROWS, .positions = TABLE * CACHE_BLOCK, .drafts = SEQUENCES,
                         .draft_rows = MOST, .draft_laws = true};
    bench_open(b, ops, m, CACHE_BF16, CACHE_BF16, (ops_options){0}, workers);
    ops->step_close(b->step);
    check(ops->step_open(b->backend, &limits, &b->step, &err), &err);
}

static inline void make(random_model *m, const drafter_kind *k)
{
    random_state = 21;
    random_model_make(m, &kind);
    random_model_draft(m, k);
}

/* ---- Context ------------------------------------------------------------------------------------------------------ */

/* Taps of rows in any order, and the context. */
static inline void feed(const bench *b, const step_rows *rows)
{
    const ops_drafter *d = b->model->drafter;
    hy_error err = {0};
    int32_t count = rows->ops.count;
    size_t hidden = (size_t)b->model->hidden;
    float *x = malloc((size_t)count * hidden * sizeof *x);
    b->ops->begin(b->step, b->cache, &rows->ops);
    for (int tap = 0; tap < d->tap_count; tap++) {
        for (int32_t t = 0; t < count; t++)
            for (size_t i = 0; i < hidden; i++) {
                int place = (rows->position[t] * d->tap_count + tap) * (int)hidden + (int)i;
                x[(size_t)t * hidden + i] = (float)(token_at(rows->sequence[t], place, 2001) - 1000) * 1e-3f;
            }
        b->ops->tensor_write(b->step, OPS_X, 0, count, x);
        b->ops->draft_tap(b->step, tap);
    }
    b->ops->draft_context(b->step);
    check(b->ops->finish(b->step, &err), &err);
    free(x);
}

/* The draft part of a block as numbers: [layers][kv_heads][2][128][head_dim]. */
static inline float *read_block(const bench *b, int32_t block, size_t *count)
{
    const cache_layout *l = &b->layout;
    size_t size = l->draft == CACHE_BF16 ? 2 : 1;
    *count = (size_t)l->draft_layers * (size_t)l->draft_kv_heads * l->draft_head_bytes / size;
    uint8_t *bytes = malloc(*count * size);
    float *out = malloc(*count * sizeof *out);
    b->ops->cache_read(b->cache, block, l->draft_offset, *count * size, bytes);
    for (size_t i = 0; i < *count; i++) {
        uint16_t half;
        memcpy(&half, bytes + i / (size == 1 ? 2 : 1) * 2, sizeof half);
        out[i] = size == 2 ? bf16_to_float(half) : e4m3_to_float(bytes[i]);
    }
    free(bytes);
    return out;
}

static inline void mixed_rows(step_rows *rows, int count)
{
    rows_open(rows);
    rows_add(rows, 1, 120, count, kind.vocab);
    rows_add(rows, -1, 0, 2, kind.vocab);
    rows_add(rows, 4, 0, 1, kind.vocab);
    rows_add(rows, 0, 511, 3, kind.vocab);
    rows->slot[count + 3] = -1; /* a row that is not to be stored */
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------- */

/* A round of drafts and what it borrows. */
typedef struct round_of {
    ops_draft ops;
    ops_sampled after[2];
    int32_t after_count, draft[DRAFT_MAX_BLOCK], count;
} round_of;

/* Behind position n; the anchor is the second of two tokens, so that position and place differ. */
static inline void round_open(round_of *r, int sequence, int n, int rows)
{
    *r = (round_of){.after_count = n ? 2 : 1};
    int32_t anchor = token_at(sequence, n, kind.vocab);
    r->after[0].id = n ? 1 : anchor, r->after[1].id = anchor;
    r->ops = (ops_draft){.sequence = sequence, .position = n ? n - 1 : 0, .rows = rows, .end = INT32_MAX,
                         .method = DRAFT_PROBABILISTIC};
}

static inline void run_rounds(const bench *b, round_of *rounds, int count)
{
    step_rows rows;
    hy_error err = {0};
    ops_draft list[SEQUENCES];
    rows_open(&rows);
    for (int i = 0; i < count; i++) {
        round_of *r = &rounds[i];
        list[i] = r->ops;
        list[i].after = r->after, list[i].after_count = &r->after_count;
        list[i].draft = r->draft, list[i].count = &r->count;
        r->count = -7;
    }
    b->ops->begin(b->step, b->cache, &rows.ops);
    b->ops->draft(b->step, list, count);
    check(b->ops->finish(b->step, &err), &err);
}

/* A context of LONGEST positions of sequence 3, the same bytes for both, NaN behind it. */
static inline void same_context(bench both[2])
{
    step_rows rows;
    for (int n = 0; n < 2; n++) bench_fill(&both[n], both[n].layout.draft == CACHE_FP8 ? 0x7F : 0xFF);
    for (int first = 0; first < LONGEST; first += MAX_ROWS) {
        rows_open(&rows);
        rows_add(&rows, 3, first, LONGEST - first < MAX_ROWS ? LONGEST - first : MAX_ROWS, kind.vocab);
        feed(&both[0], &rows);
    }
    uint8_t *row = malloc(both[0].layout.row_bytes);
    for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
        both[0].ops->cache_read(both[0].cache, block, 0, both[0].layout.row_bytes, row);
        both[1].ops->cache_write(both[1].cache, block, 0, both[0].layout.row_bytes, row);
    }
    free(row);
}

/* Several sequences with contexts of their own, several rounds of one; all methods, lengths and temperatures. */
static inline void open_rounds(round_of *rounds)
{
    static const int lengths[] = {0, 1, 40, 63, 64, 65, 128, 200, LONGEST};
    for (int i = 0; i < SEQUENCES; i++) {
        round_open(&rounds[i], i % 5, lengths[i % 9], i % 7 == 3 ? 1 + i % MOST : MOST);
        ops_draft *d = &rounds[i].ops;
        d->method = (ops_draft_method)(i % 3), d->law = i, d->seed = 77u + (uint64_t)i % 4, d->choice = (uint32_t)i % 2;
        d->temperature = i % 4 == 3 ? 0 : 0.8f;
        if (i == 6) d->end = rounds[i].ops.position + 4; /* room for two */
        if (i == 9) d->threshold = 0.45f;
        if (i == 11) rounds[i].after[1].id = -1;
    }
}

typedef struct outcome {
    round_of round[SEQUENCES];
    float *h, *laws;
} outcome;

static inline void outcome_free(outcome *o)
{
    free(o->h), free(o->laws);
}

static inline void expect_same(const outcome *a, const outcome *b)
{
    size_t hidden = (size_t)kind.hidden, vocab = (size_t)kind.vocab;
    for (int i = 0; i < SEQUENCES; i++) {
        const round_of *x = &a->round[i], *y = &b->round[i];
        size_t at = (size_t)i * MOST;
        assert_int_equal(x->count, y->count);
        assert_memory_equal(x->draft, y->draft, (size_t)x->count * sizeof *x->draft);
        if (x->count == 0) continue;
        assert_memory_equal(a->h + at * hidden, b->h + at * hidden, (size_t)x->ops.rows * hidden * sizeof(float));
        if (x->ops.method != DRAFT_PROBABILISTIC) continue;
        for (size_t v = 0; v < (size_t)x->count * vocab; v++) assert_true(isfinite(a->laws[at * vocab + v]));
        assert_memory_equal(a->laws + at * vocab, b->laws + at * vocab, (size_t)x->count * vocab * sizeof(float));
    }
}

#endif
