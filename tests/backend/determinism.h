/*
 * One sequence, one answer: a row's results are the same bits whatever the other rows of the step, the cut of a prompt
 * into chunks, the number of threads, and whatever lies in the cache behind the end of a sequence. The including file
 * defines TESTED, the backend, includes random_model.h, and brings `prepare`.
 */
#ifndef TESTS_BACKEND_DETERMINISM_H
#define TESTS_BACKEND_DETERMINISM_H

#include "backend/random_model.h"
#include "backend/shapes.h"

static const model_kind plain_kind = {SHAPE_PLAIN, .vocab = 200};
static const model_kind quantised_kind = {
    .layers = 3,
    .hidden = 256,
    .heads = 32,
    .kv_heads = 4,
    .head_dim = 32,
    .index_dim = 64,
    .index_top = 4,
    .rotary_dim = 32,
    .experts = 8,
    .per_token = 4,
    .expert_width = 64,
    .shared_width = 96,
    .dense_width = 160,
    .vocab = 136,
    .linear = WEIGHT_MXFP8,
    .expert = WEIGHT_NVFP4,
    .divides = true,
};
/* Two heads to a KV head, so that eight rows share the lanes of attention. */
static const model_kind narrow_kind = {
    .layers = 3,
    .hidden = 64,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 32,
    .index_dim = 32,
    .index_top = 2,
    .rotary_dim = 32,
    .experts = 4,
    .per_token = 2,
    .expert_width = 32,
    .shared_width = 32,
    .dense_width = 64,
    .vocab = 136,
    .linear = WEIGHT_MXFP8,
    .expert = WEIGHT_NVFP4,
    .divides = true,
};

/* Two sequences long enough to leave blocks out, two short ones; and what an emulated processor has the time for. */
enum { SEQUENCES = 4 };
static const int all_lengths[SEQUENCES] = {580, 129, 1, 140}, short_lengths[SEQUENCES] = {130, 17, 1, 20};
static const int *lengths = all_lengths;
static int most_workers = 7, most_runs = 4;

typedef struct outcome {
    float *logits;  /* [SEQUENCES] of the last position, [vocab] each */
    uint8_t *cache; /* the blocks of all sequences in order */
    size_t cache_bytes;
} outcome;

static void outcome_free(outcome *o)
{
    free(o->logits);
    free(o->cache);
}

/* Only what the sequences have written: bytes behind their ends are left at 0 in the copy. */
static void copy_written(const bench *b, outcome *o)
{
    const cache_layout *l = &b->layout;
    step_rows rows;
    rows_open(&rows);
    size_t blocks = 0;
    for (int s = 0; s < SEQUENCES; s++) blocks += (size_t)(lengths[s] / CACHE_BLOCK);
    o->cache_bytes = blocks * l->row_bytes;
    o->cache = malloc(o->cache_bytes);
    uint8_t *to = o->cache;
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; i < lengths[s] / CACHE_BLOCK; i++, to += l->row_bytes) {
            memset(to, 0, l->row_bytes);
            b->ops->cache_read(b->cache, rows.table[s * TABLE + i], 0, l->row_bytes, to);
            /* The end of a row is padding. */
            size_t used = (size_t)l->layers * (size_t)l->kv_heads * l->head_bytes;
            for (int n = 0; n < l->layers; n++)
                if (l->index_offset[n] != CACHE_NO_OFFSET)
                    used = l->index_offset[n] + CACHE_BLOCK * cache_vector_bytes(l->index, l->index_dim);
            memset(to + used, 0, l->row_bytes - used);
        }
}

static void keep_logits(const bench *b, outcome *o, const step_rows *rows, const float *logits)
{
    size_t vocab = (size_t)b->model->vocab;
    int32_t r = 0;
    for (int32_t t = 0; t < rows->ops.count; t++) {
        if (!(rows->flags[t] & ROW_LOGITS)) continue;
        int s = rows->sequence[t];
        if (rows->position[t] == lengths[s] - 1)
            memcpy(o->logits + (size_t)s * vocab, logits + (size_t)r * vocab, vocab * sizeof(float));
        r++;
    }
}

typedef struct run {
    int workers, chunk; /* rows of one sequence in a step */
    bool together;      /* all sequences in each step, else one after the other */
    int garbage;        /* what the cache holds before */
    const struct variant *variant;
    cache_format main, index;
    moe_activation activation;
} run;

/* Of the including file: once the bench is open. */
static void prepare(bench *b, int workers, const struct variant *variant);

static outcome go(const random_model *m, const run *how)
{
    bench b;
    bench_open(&b, &TESTED, m, how->main, how->index, (ops_options){.activation = how->activation}, how->workers);
    prepare(&b, how->workers, how->variant);
    bench_fill(&b, how->garbage);
    size_t vocab = (size_t)m->ops.vocab;
    outcome o = {.logits = calloc(SEQUENCES * vocab, sizeof(float))};
    float *logits = malloc(MAX_ROWS * vocab * sizeof *logits);
    int done[SEQUENCES] = {0};
    for (bool more = true; more;) {
        more = false;
        step_rows rows;
        rows_open(&rows);
        for (int i = 0; i < SEQUENCES; i++) {
            int s = how->together ? SEQUENCES - 1 - i : i, left = lengths[s] - done[s];
            if (left == 0 || (!how->together && rows.ops.count)) continue;
            int count = left < how->chunk ? left : how->chunk;
            if (how->together) rows_add(&rows, -1, 0, i, m->ops.vocab); /* padding between the sequences */
            rows_add(&rows, s, done[s], count, m->ops.vocab);
            done[s] += count;
            for (int t = rows.ops.count - count; t < rows.ops.count; t++)
                if (rows.position[t] != lengths[s] - 1) rows.flags[t] = 0;
        }
        for (int s = 0; s < SEQUENCES; s++) more |= done[s] < lengths[s];
        bench_forward(&b, &rows, logits);
        keep_logits(&b, &o, &rows, logits);
    }
    copy_written(&b, &o);
    free(logits);
    bench_close(&b);
    return o;
}

static void expect_same(const outcome *a, const outcome *b, size_t vocab)
{
    for (size_t i = 0; i < SEQUENCES * vocab; i++) assert_true(isfinite(a->logits[i]));
    assert_memory_equal(a->logits, b->logits, SEQUENCES * vocab * sizeof(float));
    assert_int_equal(a->cache_bytes, b->cache_bytes);
    assert_memory_equal(a->cache, b->cache, a->cache_bytes);
}

static void compare_runs(const model_kind *kind, run base, const run *others, int n)
{
    random_state = 7;
    random_model m;
    random_model_make(&m, kind);
    outcome first = go(&m, &base);
    for (int i = 0; i < n; i++) {
        outcome other = go(&m, &others[i]);
        expect_same(&first, &other, (size_t)kind->vocab);
        outcome_free(&other);
    }
    outcome_free(&first);
    random_model_free(&m);
}

static void batch_chunks_and_threads(void **state)
{
    (void)state;
    static const struct {
        const model_kind *kind;
        cache_format main, index;
        moe_activation activation;
    } kinds[] = {
        {&plain_kind, CACHE_BF16, CACHE_BF16, MOE_ACTIVATION_NONE},
        {&quantised_kind, CACHE_NVFP4, CACHE_NVFP4, MOE_ACTIVATION_NVFP4},
        {&quantised_kind, CACHE_FP8, CACHE_NVFP4, MOE_ACTIVATION_NONE},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        run base = {.workers = 1,
                    .chunk = 200,
                    .main = kinds[i].main,
                    .index = kinds[i].index,
                    .activation = kinds[i].activation};
        run others[] = {base, base, base, base};
        others[0].chunk = 60, others[0].together = true, others[0].workers = 2;
        others[1].chunk = 17, others[1].together = true, others[1].workers = 3, others[1].garbage = 0xFF;
        others[2].chunk = 128, others[2].workers = 4;
        others[3].chunk = 59, others[3].garbage = 0x7F;
        compare_runs(kinds[i].kind, base, others, most_runs);
    }
}

/* One row over many blocks, which go over the workers in rounds where there are more workers than heads, and a few
 * rows. */
static void long_rows(void **state)
{
    (void)state;
    static const cache_format formats[] = {CACHE_NVFP4, CACHE_FP8};
    random_state = 11;
    random_model m;
    random_model_make(&m, &quantised_kind);
    size_t q = (size_t)(m.ops.heads * m.ops.head_dim);
    for (int f = 0; f < 2; f++)
        for (int count = 1; count <= 5; count += 4) {
            float *query = random_floats((size_t)count * q, 1, true), *first[2] = {NULL, NULL};
            for (int workers = 1; workers <= most_workers; workers++) {
                bench b;
                bench_open(&b, &TESTED, &m, formats[f], CACHE_NVFP4, (ops_options){0}, workers);
                prepare(&b, workers, NULL);
                uint8_t *row = malloc(b.layout.row_bytes);
                random_state = 12;
                for (int i = 0; i < CACHE_BLOCKS; i++) {
                    for (size_t j = 0; j < b.layout.row_bytes; j++) row[j] = random_bits() & 0xBF; /* never NaN */
                    b.ops->cache_write(b.cache, i, 0, b.layout.row_bytes, row);
                }
                free(row);
                step_rows rows;
                rows_open(&rows);
                rows_add(&rows, 0, 4000, count, m.ops.vocab);
                int32_t blocks[5 * 64];
                int top = m.ops.index_top, per_row = m.ops.index_heads * top;
                for (int i = 0; i < count * per_row; i++)
                    blocks[i] = i % top == top - 1 ? 31 : i % top * 7 + i / top % 3;
                b.ops->begin(b.step, b.cache, &rows.ops);
                b.ops->tensor_write(b.step, OPS_Q, 0, count, query);
                b.ops->tensor_write(b.step, OPS_BLOCKS, 0, count, blocks);
                for (int layer = 0; layer < 2; layer++) { /* dense, sparse */
                    b.ops->attend(b.step, layer);
                    float *out = bench_read(&b, OPS_ATTENTION, count, q);
                    for (size_t i = 0; i < (size_t)count * q; i++) assert_true(isfinite(out[i]));
                    if (!first[layer]) {
                        first[layer] = out;
                        continue;
                    }
                    assert_memory_equal(first[layer], out, (size_t)count * q * sizeof *out);
                    free(out);
                }
                bench_close(&b);
            }
            free(first[0]), free(first[1]), free(query);
        }
    random_model_free(&m);
}

static void row_by_row(void **state)
{
    (void)state;
    run base = {.workers = 2,
                .chunk = 60,
                .together = true,
                .main = CACHE_NVFP4,
                .index = CACHE_FP8,
                .activation = MOE_ACTIVATION_NVFP4};
    run other = base;
    other.chunk = 1, other.garbage = 0xFF;
    compare_runs(&quantised_kind, base, &other, 1);
    compare_runs(&narrow_kind, base, &other, 1);
    base.main = other.main = CACHE_BF16;
    compare_runs(&narrow_kind, base, &other, 1);
}

/* A row that has become NaN stays alone with it, though it shares tiles, blocks and experts with others. */
static void poisoned_row(void **state)
{
    (void)state;
    random_state = 9;
    random_model m;
    random_model_make(&m, &quantised_kind);
    size_t vocab = (size_t)m.ops.vocab;
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        bench b;
        bench_open(&b, &TESTED, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){.activation = MOE_ACTIVATION_NVFP4}, 2);
        bench_fill(&b, 0);
        step_rows rows;
        rows_open(&rows);
        rows_add(&rows, 0, 0, 70, m.ops.vocab);
        rows_add(&rows, 1, 0, 3, m.ops.vocab);
        rows_add(&rows, 2, 0, 20, m.ops.vocab);
        b.ops->begin(b.step, b.cache, &rows.ops);
        b.ops->embed(b.step);
        float *x = bench_read(&b, OPS_X, rows.ops.count, (size_t)m.ops.hidden);
        if (i == 1) x[71 * m.ops.hidden + 5] = NAN; /* position 1 of sequence 1 */
        b.ops->tensor_write(b.step, OPS_X, 0, rows.ops.count, x);
        free(x);
        bench_layers(&b);
        logits[i] = bench_read(&b, OPS_LOGITS, rows.ops.count, vocab);
        bench_close(&b);
    }
    for (size_t r = 0; r < 93; r++) {
        if (r == 71 || r == 72)
            for (size_t j = 0; j < vocab; j++) assert_true(isnan(logits[1][r * vocab + j]));
        else
            assert_memory_equal(logits[0] + r * vocab, logits[1] + r * vocab, vocab * sizeof(float));
    }
    free(logits[0]);
    free(logits[1]);
    random_model_free(&m);
}

/* Steps of padding alone, of no row, and of rows that want no logits. */
static void nothing_to_do(void **state)
{
    (void)state;
    random_model m;
    random_model_make(&m, &plain_kind);
    bench b;
    bench_open(&b, &TESTED, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 2);
    bench_fill(&b, 0x5A);
    step_rows rows;
    rows_open(&rows);
    bench_forward(&b, &rows, NULL);
    rows_add(&rows, -1, 0, 5, m.ops.vocab);
    bench_forward(&b, &rows, NULL);
    uint8_t *row = malloc(b.layout.row_bytes);
    for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
        b.ops->cache_read(b.cache, block, 0, b.layout.row_bytes, row);
        for (size_t i = 0; i < b.layout.row_bytes; i++) assert_int_equal(row[i], 0x5A);
    }
    free(row);
    rows_add(&rows, 0, 0, 1, m.ops.vocab);
    rows.flags[5] = 0;
    bench_forward(&b, &rows, NULL);
    bench_close(&b);
    random_model_free(&m);
}

#endif
