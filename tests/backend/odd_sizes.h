/*
 * Steps of 1, 15, 17, 127 and 129 rows in memory of exactly that size, with experts that get no rows and experts that
 * get all of them. Rows give the same bits when the same prompt comes in two pieces. The including file defines TESTED,
 * the backend, and brings `bf16_kind`, the shape of the bf16 model.
 */
#ifndef TESTS_BACKEND_ODD_SIZES_H
#define TESTS_BACKEND_ODD_SIZES_H

#include "backend/random_model.h"

static const int counts[] = {1, 15, 17, 127, 129};
enum { COUNTS = sizeof counts / sizeof *counts };

typedef struct variant {
    moe_activation activation;
    cache_format main, index;
    bool biased; /* the first experts get all rows, the others none */
} variant;

static void expect_biased(const bench *b, int rows, int per_token)
{
    int32_t *routes = malloc((size_t)(rows * per_token) * sizeof *routes);
    b->ops->tensor_read(b->step, OPS_ROUTES, 0, rows, routes);
    for (int i = 0; i < rows * per_token; i++) assert_int_equal(routes[i], i % per_token);
    free(routes);
}

/* Positions [0, count) of a sequence, the first `cut` in a step of their own: logits [count][vocab]. */
static float *run(const random_model *m, const variant *v, int count, int cut)
{
    bench b;
    hy_error err = {0};
    size_t vocab = (size_t)m->ops.vocab;
    float *logits = malloc((size_t)count * vocab * sizeof *logits);
    bench_open(&b, &TESTED, m, v->main, v->index, (ops_options){.activation = v->activation}, 2);
    bench_fill(&b, 0);
    for (int first = 0, n = cut ? cut : count; n > 0; first += n, n = count - first) {
        ops_limits limits = {.rows = n, .logit_rows = n, .positions = TABLE * CACHE_BLOCK};
        step_rows rows;
        rows_open(&rows);
        rows_add(&rows, 0, first, n, m->ops.vocab);
        b.ops->step_close(b.step);
        check(b.ops->step_open(b.backend, &limits, &b.step, &err), &err);
        bench_forward(&b, &rows, logits + (size_t)first * vocab);
        if (v->biased) expect_biased(&b, n, m->ops.experts_per_token);
    }
    bench_close(&b);
    return logits;
}

/* Router scores are between 0 and 1. */
static void bias_experts(random_model *m)
{
    for (int i = 0; i < m->ops.layers; i++)
        for (int e = 0; e < m->ops.experts && m->ops.layer[i].moe; e++) {
            float bias = e < m->ops.experts_per_token ? 9.0f : -9.0f;
            memcpy((uint8_t *)(uintptr_t)m->ops.layer[i].router_bias.data + 4 * e, &bias, sizeof bias);
        }
}

static void odd_steps(const model_kind *kind, const variant *v)
{
    random_model m;
    random_state = 11;
    random_model_make(&m, kind);
    if (v->biased) bias_experts(&m);
    for (int c = 0; c < COUNTS; c++) {
        size_t values = (size_t)counts[c] * (size_t)kind->vocab;
        float *whole = run(&m, v, counts[c], 0), *pieces = run(&m, v, counts[c], counts[c] / 3);
        for (size_t i = 0; i < values; i++) assert_true(isfinite(whole[i]));
        assert_memory_equal(whole, pieces, values * sizeof *whole);
        free(whole), free(pieces);
    }
    random_model_free(&m);
}

/* ---- The tests ----------------------------------------------------------------------------------------------------
 */

static const model_kind quantised = {
    .layers = 2,
    .hidden = 96,
    .heads = 6,
    .kv_heads = 2,
    .head_dim = 32,
    .index_dim = 32,
    .index_top = 2,
    .rotary_dim = 16,
    .experts = 5,
    .per_token = 2,
    .expert_width = 48,
    .shared_width = 32,
    .dense_width = 32,
    .vocab = 77,
    .linear = WEIGHT_MXFP8,
    .expert = WEIGHT_NVFP4,
};

static void four_bit_experts(void **state)
{
    (void)state;
    for (int biased = 0; biased < 2; biased++)
        odd_steps(&quantised, &(variant){MOE_ACTIVATION_NVFP4, CACHE_NVFP4, CACHE_NVFP4, biased});
}

static void plain_activations(void **state)
{
    (void)state;
    for (int biased = 0; biased < 2; biased++)
        odd_steps(&quantised, &(variant){MOE_ACTIVATION_NONE, CACHE_FP8, CACHE_FP8, biased});
}

static void bf16_weights(void **state)
{
    (void)state;
    for (int biased = 0; biased < 2; biased++)
        odd_steps(&bf16_kind, &(variant){MOE_ACTIVATION_NONE, CACHE_BF16, CACHE_BF16, biased});
}

#define ODD_SIZES                                                                                                      \
    cmocka_unit_test(four_bit_experts), cmocka_unit_test(plain_activations), cmocka_unit_test(bf16_weights)

#endif
