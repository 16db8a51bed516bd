/*
 * Every operation of a layer on the cuda backend against the reference, for each number of rows with each context: rows
 * that are a tile, one less and one more, contexts at the edges of a block, of the sixteen blocks that all are
 * selected, and a long one. Rows are the last of a context, or behind it where there are more of them. Selection is
 * compared on the scores that the GPU itself computed. On the emulated GPU a few of the pairs.
 *
 * hayate-test: slow
 */
#define RANDOM_MODEL_ROWS 1024
#define RANDOM_MODEL_SEQUENCES 1
#define RANDOM_MODEL_TABLE 800 /* 102,400 tokens */
#define RANDOM_MODEL_BLOCKS 801
#include "backend/cuda_test.h"

#define TESTED ops_cuda

/* One KV head of the released model, and its index head. */
static const model_kind geometry = {.layers = 2,
                                    .hidden = 256,
                                    .heads = 16,
                                    .kv_heads = 1,
                                    .head_dim = 128,
                                    .index_dim = 128,
                                    .index_top = 16,
                                    .rotary_dim = 64,
                                    .experts = 8,
                                    .per_token = 4,
                                    .expert_width = 128,
                                    .shared_width = 128,
                                    .dense_width = 256,
                                    .vocab = 300,
                                    .linear = WEIGHT_MXFP8,
                                    .expert = WEIGHT_NVFP4};
#include "backend/pair.h"

static const int row_counts[] = {1, 2, 3, 7, 16, 17, 64, 129, 1000},
                 contexts[] = {1, 127, 128, 129, 2047, 2049, 100000};
enum { COUNTS = sizeof row_counts / sizeof *row_counts, CONTEXTS = sizeof contexts / sizeof *contexts, LAYER = 1 };

/* What is the same whatever lies in the cache: once for each number of rows. */
static void rows_alone(const pair *p, const step_rows *rows, bool quantised)
{
    const ops_model *m = &p->model.ops;
    int32_t n = rows->ops.count;
    size_t q = (size_t)(m->heads * m->head_dim), hidden = (size_t)m->hidden;
    pair_begin(p, rows);
    pair_random(p, OPS_ATTENTION, n, q, 1);
    pair_random(p, OPS_X, n, hidden, 0.1f);
    p->reference.ops->attend_out(p->reference.step, LAYER);
    p->tested.ops->attend_out(p->tested.step, LAYER);
    expect_close(p, OPS_X, n, hidden);
    pair_random(p, OPS_X, n, hidden, 2);
    p->reference.ops->feed_dense(p->reference.step, 0);
    p->tested.ops->feed_dense(p->tested.step, 0);
    expect_close(p, OPS_X, n, hidden);
    pair_random(p, OPS_X, n, hidden, 2);
    p->reference.ops->head(p->reference.step);
    p->tested.ops->head(p->tested.step);
    expect_close(p, OPS_LOGITS, n, (size_t)m->vocab);
    pair_finish(p);
    pair_begin(p, rows);
    int32_t *routes = malloc((size_t)(n * m->experts_per_token) * sizeof *routes);
    float *weights = malloc((size_t)(n * m->experts_per_token) * sizeof *weights);
    some_routes(m, 0, n, routes, weights);
    pair_random(p, OPS_X, n, hidden, 0.5f);
    pair_random(p, OPS_H, n, hidden, 1);
    pair_write(p, OPS_ROUTES, n, routes);
    pair_write(p, OPS_ROUTE_WEIGHTS, n, weights);
    p->reference.ops->experts(p->reference.step, LAYER);
    p->tested.ops->experts(p->tested.step, LAYER);
    pair_finish(p);
    if (quantised)
        expect_w4a4(p, n, hidden);
    else
        expect_close(p, OPS_X, n, hidden);
    free(routes), free(weights);
}

/* Equal blocks from equal scores: the reference selects from what the GPU computed. */
static void own_scores(const pair *p, const step_rows *rows)
{
    const ops_model *m = &p->model.ops;
    int32_t n = rows->ops.count;
    size_t columns = (size_t)m->index_heads * TABLE;
    p->reference.ops->index_score(p->reference.step, LAYER, 0, TABLE);
    p->tested.ops->index_score(p->tested.step, LAYER, 0, TABLE);
    float *expected = bench_read(&p->reference, OPS_SCORES, n, columns),
          *scores = bench_read(&p->tested, OPS_SCORES, n, columns);
    for (int32_t t = 0; t < n; t++) {
        size_t visible = (size_t)rows->position[t] / CACHE_BLOCK + 1;
        for (int head = 0; head < m->index_heads; head++) {
            size_t at = (size_t)t * columns + (size_t)head * TABLE;
            float error = row_error(expected + at, scores + at, 1, visible);
            worst[OPS_SCORES] = fmaxf(worst[OPS_SCORES], error);
            /* Products with integers round what is small in a query to 2^-15 of its largest element. */
            if (!(error <= 0x1p-15f)) fail_msg("scores of row %d differ by %g", (int)t, (double)error);
        }
    }
    p->reference.ops->tensor_write(p->reference.step, OPS_SCORES, 0, n, scores);
    p->reference.ops->index_top(p->reference.step, 0, 0, TABLE);
    p->reference.ops->index_merge(p->reference.step, 1);
    p->tested.ops->index_select(p->tested.step, LAYER);
    expect_equal(p, OPS_BLOCKS, n, (size_t)(m->index_heads * m->index_top));
    free(expected), free(scores);
}

static void rows_in_context(const pair *p, const step_rows *rows)
{
    const ops_model *m = &p->model.ops;
    int32_t n = rows->ops.count;
    size_t q = (size_t)(m->heads * m->head_dim), index_q = (size_t)(m->index_heads * m->index_dim),
           hidden = (size_t)m->hidden;
    pair_begin(p, rows);
    pair_random(p, OPS_X, n, hidden, 2);
    p->reference.ops->attend_in(p->reference.step, LAYER);
    p->tested.ops->attend_in(p->tested.step, LAYER);
    pair_finish(p);
    expect_close(p, OPS_Q, n, q);
    expect_close(p, OPS_INDEX_Q, n, index_q);
    pair_begin(p, rows);
    plant_garbage(p, rows); /* what the rows put there, as the reference did */
    pair_random(p, OPS_INDEX_Q, n, index_q, 1);
    own_scores(p, rows);
    pair_random(p, OPS_Q, n, q, 1.5f);
    p->reference.ops->attend(p->reference.step, LAYER);
    p->tested.ops->attend(p->tested.step, LAYER);
    pair_finish(p);
    expect_close(p, OPS_ATTENTION, n, q);
}

static void open_pair(pair *p, bool quantised)
{
    pair_open(p, &geometry, CACHE_NVFP4, CACHE_NVFP4,
              (ops_options){.activation = quantised ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE});
}

static bool left_out(int i, int c)
{
    return !cuda_test_on_gpu && (row_counts[i] > 17 || contexts[c] > 129 || (i + c) % 3);
}

static void whatever_the_cache(void **state)
{
    (void)state;
    for (int quantised = 0; quantised < 2; quantised++) {
        pair p;
        open_pair(&p, quantised);
        for (int i = 0; i < COUNTS; i++) {
            step_rows rows;
            rows_open(&rows);
            rows_add(&rows, 0, 0, row_counts[i], geometry.vocab);
            if (!left_out(i, 0)) rows_alone(&p, &rows, quantised);
        }
        pair_close(&p);
    }
}

static void every_context(void **state)
{
    (void)state;
    pair p;
    open_pair(&p, false);
    pair_random_cache(&p);
    for (int i = 0; i < COUNTS; i++)
        for (int c = 0; c < CONTEXTS; c++) {
            int n = row_counts[i];
            step_rows rows;
            rows_open(&rows);
            rows_add(&rows, 0, contexts[c] > n ? contexts[c] - n : contexts[c] - 1, n, geometry.vocab);
            if (!left_out(i, c)) rows_in_context(&p, &rows);
        }
    pair_close(&p);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_the_cache),
        cmocka_unit_test(every_context),
    };
    return cmocka_run_group_tests(tests, NULL, report);
}
