/*
 * A backend against the reference, operation by operation on the same inputs. The including file defines TESTED, the
 * backend, includes random_model.h, defines `kinds`, KINDS models, and calls the tests below. pair.h has the bounds.
 *
 * Embedding, what the quantisers put into the cache from equal values, selection, routes from equal logits and sampling
 * must be equal. Everything else differs by the roundings to bf16 that the reference does not make, and by the order of
 * some sums: BOUND holds the largest difference of a row against its largest value. The largest that was met is
 * printed. kinds[0] has a hidden size of 96, 8 experts of which 3 are taken, and a vocabulary of 203, of BF16; kinds[1]
 * has NVFP4 experts, as all behind it.
 */
#ifndef TESTS_BACKEND_OPERATIONS_H
#define TESTS_BACKEND_OPERATIONS_H

#include "backend/pair.h"

/* Rows of the longest chunk; an emulated machine takes fewer. */
static int many = 129;

/* Chunks of several sequences, single rows and padding: 1, 15, 17, 127 rows and so on, ends inside and at the edges of
 * blocks. `kind` picks one of a few mixtures. */
static void mixed_rows(step_rows *rows, int kind, int vocab)
{
    rows_open(rows);
    switch (kind) {
    case 0: rows_add(rows, 0, 0, 1, vocab); break;
    case 1:
        rows_add(rows, 2, 1019, 15, vocab);
        rows_add(rows, -1, 0, 2, vocab);
        rows_add(rows, 1, 127, 1, vocab);
        rows_add(rows, 5, 128, 1, vocab);
        rows_add(rows, 0, 1500, 17, vocab);
        break;
    case 2:
        rows_add(rows, 3, 600, many - 2, vocab);
        rows_add(rows, 4, 2047, 1, vocab);
        rows_add(rows, -1, 0, 1, vocab);
        break;
    default:
        rows_add(rows, -1, 0, 3, vocab);
        rows_add(rows, 6, 0, many, vocab);
        rows_add(rows, 7, 300, 2, vocab);
        break;
    }
}
enum { MIXTURES = 4 };

/* ---- Exact operations -------------------------------------------------------------------------------------------- */

static void embedding(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        pair p;
        pair_open(&p, &kinds[k], CACHE_BF16, CACHE_BF16, (ops_options){0});
        for (int i = 0; i < MIXTURES; i++) {
            step_rows rows;
            mixed_rows(&rows, i, kinds[k].vocab);
            pair_begin(&p, &rows);
            p.reference.ops->embed(p.reference.step);
            p.tested.ops->embed(p.tested.step);
            pair_finish(&p);
            expect_equal(&p, OPS_X, rows.ops.count, (size_t)kinds[k].hidden);
        }
        pair_close(&p);
    }
}

/*
 * Equal values reach the quantisers: inputs of size 1 with a tiny epsilon are normed to themselves, rows of a
 * projection with one entry copy or negate it times a weight, and small whole numbers have exact sums of squares. So K
 * and index K come out of norm and rotary with the same bits, V is any bf16 number.
 */
static void quantised_insert(void **state)
{
    (void)state;
    static const cache_format formats[][2] = {
        {CACHE_BF16, CACHE_FP8}, {CACHE_FP8, CACHE_NVFP4}, {CACHE_NVFP4, CACHE_BF16}};
    model_kind kind = kinds[0];
    kind.linear = WEIGHT_BF16;
    for (int f = 0; f < 3; f++) {
        pair p;
        random_state = 5;
        random_model_make(&p.model, &kind);
        p.model.ops.norm_eps = 1e-14f;
        arena *a = &p.model.memory;
        for (int i = 0; i < kind.layers; i++) {
            ops_layer *l = &p.model.ops.layer[i];
            int rows = kind.kv_heads * kind.head_dim;
            float *zero = calloc((size_t)kind.hidden, sizeof(float)),
                  *values = calloc((size_t)(rows * kind.hidden), sizeof(float));
            l->input_norm = make_weight(a, WEIGHT_BF16, 1, kind.hidden, zero, false);
            for (int r = 0; r < rows; r++)
                values[r * kind.hidden + random_below(kind.hidden)] = (float)(random_below(17) - 8);
            l->k = make_weight(a, WEIGHT_BF16, rows, kind.hidden, values, false);
            if (l->sparse) l->index_k = make_weight(a, WEIGHT_BF16, kind.index_dim, kind.hidden, values, false);
            memset(values, 0, (size_t)(rows * kind.hidden) * sizeof *values);
            for (int r = 0; r < rows; r++) {
                float v = bf16_round(ldexpf(random_normal(), random_below(24) - 14));
                values[r * kind.hidden + random_below(kind.hidden)] = r % 29 == 0 ? 0 : r % 31 == 0 ? 1e6f : v;
            }
            l->v = make_weight(a, WEIGHT_BF16, rows, kind.hidden, values, false);
            free(zero);
            free(values);
        }
        bench_open(&p.reference, &ops_reference, &p.model, formats[f][0], formats[f][1], (ops_options){0}, 1);
        bench_open(&p.tested, &TESTED, &p.model, formats[f][0], formats[f][1], (ops_options){0}, 2);
        bench_fill(&p.reference, 0xA5);
        bench_fill(&p.tested, 0xA5);
        for (int i = 1; i < MIXTURES; i++) {
            step_rows rows;
            mixed_rows(&rows, i, kind.vocab);
            rows.slot[rows.ops.count - 1] = -1; /* a row that is not to be stored */
            float *x = malloc((size_t)(rows.ops.count * kind.hidden) * sizeof *x);
            for (int j = 0; j < rows.ops.count * kind.hidden; j++) x[j] = random_bits() & 1 ? 1.0f : -1.0f;
            pair_begin(&p, &rows);
            for (int layer = 0; layer < kind.layers; layer++) {
                pair_write(&p, OPS_X, rows.ops.count, x);
                p.reference.ops->attend_in(p.reference.step, layer);
                p.tested.ops->attend_in(p.tested.step, layer);
            }
            pair_finish(&p);
            free(x);
        }
        const size_t bytes = p.tested.layout.row_bytes;
        uint8_t *a_row = malloc(bytes), *b_row = malloc(bytes);
        size_t written = 0;
        for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
            p.reference.ops->cache_read(p.reference.cache, block, 0, bytes, a_row);
            p.tested.ops->cache_read(p.tested.cache, block, 0, bytes, b_row);
            for (size_t i = 0; i < bytes; i++) written += b_row[i] != 0xA5;
            assert_memory_equal(a_row, b_row, bytes);
        }
        assert_true(written > (size_t)many * 700); /* the rows have really been stored */
        free(a_row);
        free(b_row);
        pair_close(&p);
    }
}

/* The definition of selection in its slowest form: index_top times the best of what is left. */
static void select_slowly(const float *scores, int visible, int first, int last, int local, int top, int32_t *out)
{
    bool taken[TABLE] = {false};
    for (int n = 0; n < top; n++) {
        int best = -1;
        float best_score = 0;
        for (int b = first; b < last && b < visible; b++) {
            float s = isnan(scores[b]) ? -INFINITY : scores[b];
            if (b >= visible - local) s = INFINITY;
            if (!taken[b] && (best < 0 || s > best_score)) best = b, best_score = s;
        }
        if (best >= 0) taken[best] = true;
    }
    int n = 0;
    for (int b = 0; b < TABLE; b++)
        if (taken[b]) out[n++] = b;
    while (n < top) out[n++] = -1;
}

static float awkward_score(int kind)
{
    static const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, -1e-45f, 3e38f, -3e38f};
    if (kind == 0) return random_normal();
    if (kind == 1) return random_below(4) == 0 ? NAN : special[random_below(8)];
    if (kind == 2) return random_below(2) ? -NAN : -INFINITY;
    return (float)random_below(3);
}

static void selection(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        pair p;
        pair_open(&p, &kinds[k], CACHE_BF16, CACHE_BF16, (ops_options){0});
        const ops_model *m = &p.model.ops;
        for (int local = 1; local <= 2; local++)
            for (int kind = 0; kind < 4; kind++)
                for (int parts = 1; parts <= 5; parts += 2) {
                    step_rows rows;
                    p.model.ops.index_local = local;
                    mixed_rows(&rows, 1 + kind % 3, m->vocab);
                    size_t columns = (size_t)m->index_heads * TABLE;
                    float *scores = malloc((size_t)rows.ops.count * columns * sizeof *scores);
                    for (size_t i = 0; i < (size_t)rows.ops.count * columns; i++) scores[i] = awkward_score(kind);
                    pair_begin(&p, &rows);
                    pair_write(&p, OPS_SCORES, rows.ops.count, scores);
                    for (int part = 0; part < parts; part++) {
                        int first = part * TABLE / parts, count = (part + 1) * TABLE / parts - first;
                        p.reference.ops->index_top(p.reference.step, part, first, count);
                        p.tested.ops->index_top(p.tested.step, part, first, count);
                    }
                    p.reference.ops->index_merge(p.reference.step, parts);
                    p.tested.ops->index_merge(p.tested.step, parts);
                    pair_finish(&p);
                    size_t per_row = (size_t)(m->index_heads * m->index_top);
                    expect_equal(&p, OPS_BLOCKS, rows.ops.count, per_row);
                    int32_t *blocks = (int32_t *)bench_read(&p.tested, OPS_BLOCKS, rows.ops.count, per_row);
                    for (int t = 0; t < rows.ops.count; t++)
                        for (int r = 0; r < m->index_heads; r++) {
                            int32_t expected[8];
                            int visible = rows.sequence[t] < 0 ? 0 : rows.position[t] / CACHE_BLOCK + 1;
                            select_slowly(scores + (size_t)t * columns + (size_t)r * TABLE, visible, 0, TABLE, local,
                                          m->index_top, expected);
                            assert_memory_equal(expected, blocks + (size_t)t * per_row + (size_t)(r * m->index_top),
                                                (size_t)m->index_top * sizeof *expected);
                        }
                    free(blocks);
                    free(scores);
                }
        pair_close(&p);
    }
}

/* Logits that are whole numbers in both backends, many of them equal: the routes and nearly the weights are equal. */
static void routes_and_ties(void **state)
{
    (void)state;
    pair p;
    model_kind kind = kinds[0];
    random_state = 3;
    random_model_make(&p.model, &kind);
    p.model.ops.norm_eps = 1e-14f;
    for (int i = 1; i < kind.layers; i++) {
        ops_layer *l = &p.model.ops.layer[i];
        float zero[96] = {0}, router[8 * 96], bias[8];
        for (int j = 0; j < 8 * 96; j++) router[j] = random_below(4) ? 0 : i == 2 ? 0.0f : 1.0f;
        for (int j = 0; j < 8; j++) bias[j] = i == 3 ? (j == 5 ? NAN : 0) : (float)(j % 2) * 0.25f;
        l->post_norm = make_weight(&p.model.memory, WEIGHT_BF16, 1, kind.hidden, zero, false);
        l->router = make_weight(&p.model.memory, WEIGHT_F32, kind.experts, kind.hidden, router, false);
        l->router_bias = make_weight(&p.model.memory, WEIGHT_F32, 1, kind.experts, bias, false);
    }
    bench_open(&p.reference, &ops_reference, &p.model, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    bench_open(&p.tested, &TESTED, &p.model, CACHE_BF16, CACHE_BF16, (ops_options){0}, 2);
    for (int layer = 1; layer < kind.layers; layer++)
        for (int i = 0; i < MIXTURES; i++) {
            step_rows rows;
            mixed_rows(&rows, i, kind.vocab);
            int32_t n = rows.ops.count;
            float *x = malloc((size_t)(n * kind.hidden) * sizeof *x);
            for (int j = 0; j < n * kind.hidden; j++) x[j] = random_bits() & 1 ? 1.0f : -1.0f;
            pair_begin(&p, &rows);
            pair_write(&p, OPS_X, n, x);
            p.reference.ops->route(p.reference.step, layer);
            p.tested.ops->route(p.tested.step, layer);
            pair_finish(&p);
            expect_equal(&p, OPS_H, n, (size_t)kind.hidden);
            expect_equal(&p, OPS_ROUTES, n, (size_t)kind.per_token);
            expect_close(&p, OPS_ROUTE_WEIGHTS, n, (size_t)kind.per_token);
            int32_t *routes = (int32_t *)bench_read(&p.tested, OPS_ROUTES, n, (size_t)kind.per_token);
            for (int t = 0; t < n; t++)
                for (int j = 0; j < kind.per_token; j++) {
                    if (j) assert_true(routes[t * kind.per_token + j] > routes[t * kind.per_token + j - 1]);
                    if (layer == 3) assert_int_not_equal(routes[t * kind.per_token + j], 5);
                    if (layer == 2) assert_int_equal(routes[t * kind.per_token + j], 2 * j + 1); /* all tied: 1, 3, 5 */
                }
            free(routes);
            free(x);
        }
    pair_close(&p);
}

static void sampling(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &kinds[0], CACHE_BF16, CACHE_BF16, (ops_options){0});
    step_rows rows;
    mixed_rows(&rows, 1, kinds[0].vocab);
    enum { COUNT = 24 };
    float *logits = random_floats((size_t)rows.ops.count * 203, 3, false);
    logits[4 * 203 + 5] = NAN;
    for (int i = 0; i < 203; i++) logits[6 * 203 + i] = NAN;
    ops_sample how[COUNT];
    ops_sampled a[COUNT], b[COUNT];
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    static const int32_t history[] = {1, 2, 2, 40};
    for (int i = 0; i < COUNT; i++)
        how[i] = (ops_sample){.logit_row = i % 12,
                              .seed = (uint64_t)i * 77,
                              .position = (uint32_t)i,
                              .temperature = i % 4 ? 0.8f : 0,
                              .top_p = i % 3 ? 1 : 0.7f,
                              .top_k = i % 5 ? 0 : 7,
                              .min_p = i % 7 ? 0 : 0.05f,
                              .repetition_penalty = 1.1f,
                              .output = history,
                              .output_count = 4,
                              .logprobs = i % 3 - 1};
    pair_begin(&p, &rows);
    pair_write(&p, OPS_LOGITS, rows.ops.count - 2, logits);
    p.reference.ops->sample(p.reference.step, how, COUNT, a);
    p.tested.ops->sample(p.tested.step, how, COUNT, b);
    pair_finish(&p);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(a[i].id, b[i].id);
        assert_true(how[i].logit_row == 6 ? b[i].id == -1 : b[i].id >= 0);
        assert_memory_equal(&a[i].logprob, &b[i].logprob, sizeof a[i].logprob);
        assert_int_equal(a[i].top_count, b[i].top_count);
        for (int j = 0; j < a[i].top_count; j++) assert_int_equal(a[i].top_ids[j], b[i].top_ids[j]);
    }
    free(logits);
    pair_close(&p);
}

/* ---- Bounded operations ------------------------------------------------------------------------------------------ */

static void projections(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        pair p;
        pair_open(&p, &kinds[k], CACHE_BF16, CACHE_BF16, (ops_options){0});
        const ops_model *m = &p.model.ops;
        size_t q = (size_t)(m->heads * m->head_dim), index_q = (size_t)(m->index_heads * m->index_dim);
        for (int i = 0; i < MIXTURES; i++)
            for (int layer = 0; layer < m->layers; layer++) {
                step_rows rows;
                mixed_rows(&rows, i, m->vocab);
                int32_t n = rows.ops.count;
                pair_begin(&p, &rows);
                pair_random(&p, OPS_X, n, (size_t)m->hidden, 2);
                p.reference.ops->attend_in(p.reference.step, layer);
                p.tested.ops->attend_in(p.tested.step, layer);
                expect_close(&p, OPS_Q, n, q);
                if (m->layer[layer].sparse) expect_close(&p, OPS_INDEX_Q, n, index_q);
                pair_random(&p, OPS_X, n, (size_t)m->hidden, 0.1f);
                pair_random(&p, OPS_ATTENTION, n, q, 1);
                p.reference.ops->attend_out(p.reference.step, layer);
                p.tested.ops->attend_out(p.tested.step, layer);
                expect_close(&p, OPS_X, n, (size_t)m->hidden);
                pair_random(&p, OPS_X, n, (size_t)m->hidden, 2);
                p.reference.ops->head(p.reference.step);
                p.tested.ops->head(p.tested.step);
                pair_finish(&p);
                int32_t wanted = 0;
                for (int32_t t = 0; t < n; t++) wanted += (rows.flags[t] & ROW_LOGITS) != 0;
                expect_close(&p, OPS_LOGITS, wanted, (size_t)m->vocab);
            }
        pair_close(&p);
    }
}

static const struct {
    cache_format main, index;
    ops_options options;
} caches[] = {
    {CACHE_BF16, CACHE_BF16, {0}},
    {CACHE_FP8, CACHE_FP8, {0}},
    {CACHE_NVFP4, CACHE_NVFP4, {0}},
    {CACHE_NVFP4, CACHE_NVFP4, {.read = READBACK_E4M3}},
    {CACHE_FP8, CACHE_NVFP4, {.read = READBACK_E4M3}},
};
enum { CACHES = sizeof caches / sizeof *caches };

static void index_scores(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int c = 0; c < CACHES; c++) {
            pair p;
            pair_open(&p, &kinds[k], caches[c].main, caches[c].index, caches[c].options);
            pair_random_cache(&p);
            const ops_model *m = &p.model.ops;
            for (int i = 0; i < MIXTURES; i++) {
                step_rows rows;
                mixed_rows(&rows, i, m->vocab);
                pair_begin(&p, &rows);
                plant_garbage(&p, &rows);
                pair_random(&p, OPS_INDEX_Q, rows.ops.count, (size_t)(m->index_heads * m->index_dim), 1);
                /* In two spans, and beyond the longest sequence. */
                p.reference.ops->index_score(p.reference.step, 1, 0, TABLE);
                p.tested.ops->index_score(p.tested.step, 1, 0, 5);
                p.tested.ops->index_score(p.tested.step, 1, 5, TABLE + 9);
                pair_finish(&p);
                for (int32_t t = 0; t < rows.ops.count; t++) {
                    if (rows.sequence[t] < 0) continue;
                    float a[4 * TABLE], b[4 * TABLE];
                    p.reference.ops->tensor_read(p.reference.step, OPS_SCORES, t, 1, a);
                    p.tested.ops->tensor_read(p.tested.step, OPS_SCORES, t, 1, b);
                    float error = row_error(a, b, m->index_heads, TABLE);
                    worst[OPS_SCORES] = fmaxf(worst[OPS_SCORES], error);
                    /* Products with integers round what is small in a query to 2^-15 of its largest element. */
                    bool integers = caches[c].index == CACHE_NVFP4 && caches[c].options.read == READBACK_EXACT;
                    assert_true(error <= (integers ? 0x1p-15f : 1e-5f));
                }
                /* index_select leaves out scores that cannot matter; what it selects must be the same. */
                p.reference.ops->index_select(p.reference.step, 1);
                p.tested.ops->index_select(p.tested.step, 1);
                pair_finish(&p);
                expect_equal(&p, OPS_BLOCKS, rows.ops.count, (size_t)(m->index_heads * m->index_top));
            }
            pair_close(&p);
        }
}

/* A random set of visible blocks with the local one, ascending, and sometimes fewer than there is room for. */
static void random_blocks(const ops_model *m, const step_rows *rows, int32_t *blocks)
{
    for (int t = 0; t < rows->ops.count; t++)
        for (int r = 0; r < m->index_heads; r++, blocks += m->index_top) {
            int visible = rows->sequence[t] < 0 ? 0 : rows->position[t] / CACHE_BLOCK + 1, n = 0;
            int want = 1 + random_below(m->index_top);
            for (int b = 0; b < visible; b++) {
                int left = visible - b, need = want - n;
                if (b == visible - 1 || (need > 1 && random_below(left) < need)) blocks[n++] = b;
            }
            while (n < m->index_top) blocks[n++] = -1;
        }
}

static void attention(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int c = 0; c < CACHES; c++) {
            pair p;
            pair_open(&p, &kinds[k], caches[c].main, caches[c].index, caches[c].options);
            pair_random_cache(&p);
            const ops_model *m = &p.model.ops;
            size_t q = (size_t)(m->heads * m->head_dim), per_row = (size_t)(m->index_heads * m->index_top);
            for (int i = 0; i < MIXTURES; i++)
                for (int layer = 0; layer < 2; layer++) { /* dense, sparse */
                    step_rows rows;
                    mixed_rows(&rows, i, m->vocab);
                    int32_t n = rows.ops.count, *blocks = malloc((size_t)n * per_row * sizeof *blocks);
                    random_blocks(m, &rows, blocks);
                    pair_begin(&p, &rows);
                    plant_garbage(&p, &rows);
                    pair_random(&p, OPS_Q, n, q, 1.5f);
                    pair_write(&p, OPS_BLOCKS, n, blocks);
                    p.reference.ops->attend(p.reference.step, layer);
                    p.tested.ops->attend(p.tested.step, layer);
                    pair_finish(&p);
                    expect_close(&p, OPS_ATTENTION, n, q);
                    free(blocks);
                }
            pair_close(&p);
        }
}

static void router(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        pair p;
        pair_open(&p, &kinds[k], CACHE_BF16, CACHE_BF16, (ops_options){0});
        const ops_model *m = &p.model.ops;
        int rows_seen = 0, equal = 0;
        for (int i = 0; i < MIXTURES; i++) {
            step_rows rows;
            mixed_rows(&rows, i, m->vocab);
            int32_t n = rows.ops.count, per_token = m->experts_per_token;
            pair_begin(&p, &rows);
            pair_random(&p, OPS_X, n, (size_t)m->hidden, 2);
            p.reference.ops->route(p.reference.step, 1);
            p.tested.ops->route(p.tested.step, 1);
            pair_finish(&p);
            expect_close(&p, OPS_H, n, (size_t)m->hidden);
            int32_t *a = (int32_t *)bench_read(&p.reference, OPS_ROUTES, n, (size_t)per_token);
            int32_t *b = (int32_t *)bench_read(&p.tested, OPS_ROUTES, n, (size_t)per_token);
            float *wa = bench_read(&p.reference, OPS_ROUTE_WEIGHTS, n, (size_t)per_token);
            float *wb = bench_read(&p.tested, OPS_ROUTE_WEIGHTS, n, (size_t)per_token);
            for (int t = 0; t < n; t++) {
                bool same = memcmp(a + t * per_token, b + t * per_token, (size_t)per_token * sizeof *a) == 0;
                rows_seen++, equal += same;
                if (!same) continue; /* two scores within the rounding of h */
                float error = row_error(wa + t * per_token, wb + t * per_token, 1, (size_t)per_token);
                worst[OPS_ROUTE_WEIGHTS] = fmaxf(worst[OPS_ROUTE_WEIGHTS], error);
                assert_true(error <= BOUND);
            }
            free(a), free(b), free(wa), free(wb);
        }
        assert_true(equal * 100 >= rows_seen * 95);
        pair_close(&p);
    }
}

static void feed_forward(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int activation = 0; activation < 2; activation++) {
            pair p;
            ops_options options = {.activation = activation ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE};
            if (activation && kinds[k].expert_width % 16) continue;
            pair_open(&p, &kinds[k], CACHE_BF16, CACHE_BF16, options);
            const ops_model *m = &p.model.ops;
            for (int i = 0; i < MIXTURES; i++)
                for (int layer = 0; layer < m->layers; layer++)
                    for (int kind = 0; kind < 3; kind++) {
                        step_rows rows;
                        mixed_rows(&rows, i, m->vocab);
                        int32_t n = rows.ops.count;
                        int32_t *routes = malloc((size_t)(n * m->experts_per_token) * sizeof *routes);
                        float *weights = malloc((size_t)(n * m->experts_per_token) * sizeof *weights);
                        some_routes(m, kind, n, routes, weights);
                        pair_begin(&p, &rows);
                        pair_random(&p, OPS_X, n, (size_t)m->hidden, 0.5f);
                        if (m->layer[layer].moe) {
                            pair_random(&p, OPS_H, n, (size_t)m->hidden, 1);
                            pair_write(&p, OPS_ROUTES, n, routes);
                            pair_write(&p, OPS_ROUTE_WEIGHTS, n, weights);
                            p.reference.ops->experts(p.reference.step, layer);
                            p.tested.ops->experts(p.tested.step, layer);
                        } else {
                            p.reference.ops->feed_dense(p.reference.step, layer);
                            p.tested.ops->feed_dense(p.tested.step, layer);
                        }
                        pair_finish(&p);
                        if (activation && m->layer[layer].moe)
                            expect_w4a4(&p, n, (size_t)m->hidden);
                        else
                            expect_close(&p, OPS_X, n, (size_t)m->hidden);
                        free(routes);
                        free(weights);
                    }
            pair_close(&p);
        }
}

/*
 * The same where every gate and up value is far beyond the limit: z has three values, none of them near the edge of a
 * code, so both backends must take the same codes and differ by the order of roundings in fp32 alone.
 */
static void quantised_activations(void **state)
{
    (void)state;
    for (int k = 1; k < KINDS; k++) {
        pair p;
        random_state = 17;
        random_model_make(&p.model, &kinds[k]);
        const ops_model *m = &p.model.ops;
        weight *shared[] = {&m->layer[1].shared_gate, &m->layer[1].shared_up, &m->layer[1].shared_down};
        for (int i = 0; i < 3; i++) shared[i]->format = WEIGHT_NONE;
        for (int e = 0; e < m->experts; e++) {
            weight *up[] = {&m->layer[1].expert_gate[e], &m->layer[1].expert_up[e]};
            for (int i = 0; i < 2; i++) up[i]->global *= up[i]->divides ? 1e-5f : 1e5f;
        }
        ops_options options = {.activation = MOE_ACTIVATION_NVFP4};
        bench_open(&p.reference, &ops_reference, &p.model, CACHE_BF16, CACHE_BF16, options, 1);
        bench_open(&p.tested, &TESTED, &p.model, CACHE_BF16, CACHE_BF16, options, 2);
        for (int i = 0; i < MIXTURES; i++) {
            step_rows rows;
            int32_t routes[MAX_ROWS * 4];
            float weights[MAX_ROWS * 4], error;
            mixed_rows(&rows, i, m->vocab);
            some_routes(m, i % 3, rows.ops.count, routes, weights);
            pair_begin(&p, &rows);
            pair_random(&p, OPS_X, rows.ops.count, (size_t)m->hidden, 0.01f);
            pair_random(&p, OPS_H, rows.ops.count, (size_t)m->hidden, 1);
            pair_write(&p, OPS_ROUTES, rows.ops.count, routes);
            pair_write(&p, OPS_ROUTE_WEIGHTS, rows.ops.count, weights);
            p.reference.ops->experts(p.reference.step, 1);
            p.tested.ops->experts(p.tested.step, 1);
            pair_finish(&p);
            error = expect_within(&p, OPS_X, rows.ops.count, (size_t)m->hidden, 1e-3f);
            worst_codes = fmaxf(worst_codes, error);
        }
        pair_close(&p);
    }
}

/* ---- Replay and refusals ----------------------------------------------------------------------------------------- */

static void replay(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, &kinds[0], CACHE_BF16, CACHE_BF16, (ops_options){0});
    pair_random_cache(&p);
    const ops_model *m = &p.model.ops;
    step_rows rows;
    mixed_rows(&rows, 1, m->vocab);
    int32_t n = rows.ops.count;
    size_t per_row = (size_t)(m->index_heads * m->index_top), all = (size_t)(m->layers * n);
    int32_t *blocks = malloc(all * per_row * sizeof *blocks);
    int32_t *routes = malloc(all * (size_t)m->experts_per_token * sizeof *routes);
    float *weights = malloc(all * (size_t)m->experts_per_token * sizeof *weights);
    for (int layer = 0; layer < m->layers; layer++) {
        random_blocks(m, &rows, blocks + (size_t)(layer * n) * per_row);
        some_routes(m, layer % 3, n, routes + layer * n * m->experts_per_token, weights);
    }
    for (int t = 0; t < n; t += 2) rows.flags[t] |= ROW_REPLAY_BLOCKS | ROW_REPLAY_ROUTES;
    rows.ops.replay_blocks = blocks, rows.ops.replay_routes = routes;
    for (int layer = 1; layer < 3; layer++) {
        pair_begin(&p, &rows);
        pair_random(&p, OPS_X, n, (size_t)m->hidden, 1);
        p.reference.ops->attend_in(p.reference.step, layer);
        p.tested.ops->attend_in(p.tested.step, layer);
        p.reference.ops->index_select(p.reference.step, layer);
        p.tested.ops->index_select(p.tested.step, layer);
        p.reference.ops->route(p.reference.step, layer);
        p.tested.ops->route(p.tested.step, layer);
        pair_finish(&p);
        int32_t *chosen = (int32_t *)bench_read(&p.tested, OPS_BLOCKS, n, per_row);
        int32_t *routed = (int32_t *)bench_read(&p.tested, OPS_ROUTES, n, (size_t)m->experts_per_token);
        for (int t = 0; t < n; t += 2) {
            assert_memory_equal(chosen + (size_t)t * per_row, blocks + ((size_t)(layer * n + t)) * per_row,
                                per_row * sizeof *chosen);
            assert_memory_equal(routed + t * m->experts_per_token, routes + (layer * n + t) * m->experts_per_token,
                                (size_t)m->experts_per_token * sizeof *routed);
        }
        free(chosen);
        free(routed);
    }
    /* What could not have been chosen is an error of the step, which then does nothing. */
    blocks[(size_t)n * per_row] = 4000;
    p.tested.ops->begin(p.tested.step, p.tested.cache, &rows.ops);
    p.tested.ops->attend_in(p.tested.step, 1);
    hy_error err = {0};
    assert_int_equal(p.tested.ops->finish(p.tested.step, &err), HY_BAD_INPUT);
    blocks[(size_t)n * per_row] = -1;
    routes[n * m->experts_per_token] = m->experts;
    p.tested.ops->begin(p.tested.step, p.tested.cache, &rows.ops);
    assert_int_equal(p.tested.ops->finish(p.tested.step, &err), HY_BAD_INPUT);
    free(blocks), free(routes), free(weights);
    pair_close(&p);
}

static bool stop_soon(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    (void)what, (void)unit;
    assert_true(done <= total);
    ++*(int *)user;
    return false;
}

static void refusals(void **state)
{
    (void)state;
    random_model m;
    random_model_make(&m, &kinds[1]);
    ops_backend *backend = NULL;
    hy_error err = {0};
    ops_options options = {.shard = {.ranks = 2}};
    assert_int_equal(TESTED.open(&m.ops, &options, &backend, &err), HY_UNSUPPORTED);
    int calls = 0;
    options = (ops_options){.on_progress = stop_soon, .user = &calls};
    assert_int_equal(TESTED.open(&m.ops, &options, &backend, &err), HY_CANCELLED);
    assert_true(calls > 0);
    m.ops.layer[1].expert_down[3].cols = 60;
    options = (ops_options){0};
    assert_int_equal(TESTED.open(&m.ops, &options, &backend, &err), HY_UNSUPPORTED);
    char said[sizeof err.where + sizeof err.message + 2];
    snprintf(said, sizeof said, "%s: %s", err.where, err.message);
    assert_non_null(strstr(said, "layer 1"));
    assert_non_null(strstr(said, "expert 3"));
    m.ops.layer[1].expert_down[3].cols = 64;
    assert_null(backend);

    check(TESTED.open(&m.ops, &options, &backend, &err), &err);
    cache_layout layout;
    ops_cache *cache = NULL;
    check(cache_layout_make(&m.ops, CACHE_FP32, CACHE_BF16, &layout, &err), &err);
    assert_int_equal(TESTED.cache_open(backend, &layout, 4, &cache, &err), HY_UNSUPPORTED);
    cache_layout_free(&layout);
    check(cache_layout_make(&m.ops, CACHE_BF16, CACHE_BF16, &layout, &err), &err);
    check(TESTED.cache_open(backend, &layout, 4, &cache, &err), &err);
    ops_limits limits = {.rows = 4, .logit_rows = 4, .positions = 100};
    ops_step *step = NULL;
    check(TESTED.step_open(backend, &limits, &step, &err), &err);
    step_rows rows;
    rows_open(&rows);
    memset(rows.table, 0, sizeof rows.table);
    rows_add(&rows, 0, 100, 1, m.ops.vocab);
    rows.slot[0] = 0;
    TESTED.begin(step, cache, &rows.ops);
    TESTED.embed(step);
    assert_int_equal(TESTED.finish(step, &err), HY_NO_FIT);
    rows.position[0] = 99, rows.token[0] = m.ops.vocab;
    TESTED.begin(step, cache, &rows.ops);
    assert_int_equal(TESTED.finish(step, &err), HY_BAD_INPUT);
    rows.token[0] = 1; /* the next step is not touched by the error of the last */
    TESTED.begin(step, cache, &rows.ops);
    assert_int_equal(TESTED.finish(step, &err), HY_OK);
    TESTED.step_close(step);
    TESTED.cache_close(cache);
    TESTED.close(backend);
    cache_layout_free(&layout);
    random_model_free(&m);
}

#endif
