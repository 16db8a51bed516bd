/*
 * The reference backend against the outputs of the Hugging Face implementation on all text oracles, and the cpu backend
 * with the oracle's selections and routes replayed.
 *
 * Where a selection or a route differs it must have been a tie. One such difference changes the row and, through its
 * keys, others; so ties are judged in a run that has the oracle's choices imposed: there every one of them must be best
 * by the scores of this run, up to rounding.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "model/oracle_check.h"

#include <cmocka.h>

static const char *const names[] = {"m3-dense", "m3-short", "m3-long", "m3-topk16", "m31-w16", "m31-w4a4"};
enum { ORACLES = sizeof names / sizeof *names, STEP_ROWS = 512 };

/*
 * How much better a score may be that was not chosen, over the largest: with quantised caches a value on a border of
 * the 4-bit quantiser falls to the other side and moves a key; with quantised activations one moves a whole row by some
 * hundredths. Where nothing is quantised no list may differ at all.
 */
static double tie_bound(const char *name)
{
    return strcmp(name, "m31-w4a4") == 0 ? 0.1 : 0.02;
}

typedef struct tie_check {
    const safetensors *oracle;
    ops_model shape;
    const hy_ops *ops;
    int32_t first; /* row of the prompt where the running step begins */
    size_t lists;
    double widest; /* advantage of a score that was not chosen, so far */
} tie_check;

static bool holds(const int32_t *list, size_t n, int32_t value)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == value) return true;
    return false;
}

/* By how much the best score outside the list beats the worst within, over the largest; `forced` (or -1) counts neither
 * way. At most 0: the list is a best choice. */
static double advantage(const int32_t *list, size_t n, const float *scores, size_t count, int32_t forced)
{
    double top = 0, outside = -INFINITY, within = INFINITY;
    for (size_t i = 0; i < count; i++) {
        if ((int32_t)i == forced) continue;
        top = fmax(top, fabs((double)scores[i]));
        if (holds(list, n, (int32_t)i))
            within = fmin(within, (double)scores[i]);
        else
            outside = fmax(outside, (double)scores[i]);
    }
    return (outside - within) / top;
}

static void judge(tie_check *c, const int32_t *wanted, size_t n, const float *scores, size_t count, int32_t forced)
{
    c->lists++;
    for (size_t i = 0; i < n; i++)
        if (wanted[i] >= (int32_t)count) fail_msg("the oracle chose %d of %zu", wanted[i], count);
    c->widest = fmax(c->widest, advantage(wanted, n, scores, count, forced));
}

/* Rows of the running step that the oracle has. */
static int32_t step_rows(const tie_check *c, const tensor *t)
{
    int64_t left = t->shape[0] - c->first;
    return left < STEP_ROWS ? (int32_t)(left < 0 ? 0 : left) : STEP_ROWS;
}

static void see_blocks(tie_check *c, const tensor *wanted, int32_t *lists, ops_step *step)
{
    int32_t rows = step_rows(c, wanted);
    if (!rows) return;
    size_t heads = (size_t)c->shape.index_heads, k = (size_t)wanted->shape[2];
    size_t blocks = (size_t)(wanted->shape[0] + 4 + CACHE_BLOCK - 1) / CACHE_BLOCK; /* 4 tokens are fed after it */
    float *scores = calloc((size_t)rows * heads * blocks, sizeof *scores);
    c->ops->tensor_read(step, OPS_SCORES, 0, rows, scores);
    for (size_t i = 0; i < (size_t)rows * heads; i++) {
        int32_t local = (c->first + (int32_t)(i / heads)) / CACHE_BLOCK;
        judge(c, lists + ((size_t)c->first * heads + i) * k, k, scores + i * blocks, (size_t)local + 1, local);
    }
    free(scores);
}

/* Scores of the router from its input, by its definition and in double. */
static void router_scores(const tie_check *c, int layer, const float *h, float *scores)
{
    const ops_layer *l = &c->shape.layer[layer];
    size_t experts = (size_t)c->shape.experts, hidden = (size_t)c->shape.hidden;
    float *row = calloc(hidden, sizeof *row), *bias = calloc(experts, sizeof *bias);
    weight_row(&l->router_bias, 0, bias);
    for (size_t e = 0; e < experts; e++) {
        double z = 0;
        weight_row(&l->router, (int64_t)e, row);
        for (size_t i = 0; i < hidden; i++) z += (double)h[i] * (double)row[i];
        scores[e] = (float)(1 / (1 + exp(-z)) + (double)bias[e]);
    }
    free(row);
    free(bias);
}

static void see_routes(tie_check *c, int layer, const tensor *wanted, int32_t *lists, ops_step *step)
{
    int32_t rows = step_rows(c, wanted);
    if (!rows) return;
    size_t n = (size_t)c->shape.experts_per_token, hidden = (size_t)c->shape.hidden;
    float *h = calloc((size_t)rows * hidden, sizeof *h), *scores = calloc((size_t)c->shape.experts, sizeof *scores);
    c->ops->tensor_read(step, OPS_H, 0, rows, h);
    for (size_t t = 0; t < (size_t)rows; t++) {
        router_scores(c, layer, h + t * hidden, scores);
        judge(c, lists + ((size_t)c->first + t) * n, n, scores, (size_t)c->shape.experts, -1);
    }
    free(h);
    free(scores);
}

static void observe(void *user, forward_stage stage, int layer, ops_step *step)
{
    tie_check *c = user;
    char name[32];
    if (stage == FORWARD_HEAD) c->first += STEP_ROWS;
    if (stage != FORWARD_SELECTED && stage != FORWARD_ROUTED) return;
    snprintf(name, sizeof name, "%s.%d", stage == FORWARD_SELECTED ? "blocks" : "experts", layer);
    const tensor *wanted = safetensors_find(c->oracle, name);
    int32_t *lists = oracle_values(c->oracle, name);
    assert_non_null(lists);
    if (stage == FORWARD_SELECTED)
        see_blocks(c, wanted, lists, step);
    else
        see_routes(c, layer, wanted, lists, step);
    free(lists);
}

/* The widest advantage over all selections and routes of a run with the oracle's choices imposed. */
static tie_check check_ties(const char *name)
{
    hy_error err = {0};
    char path[512];
    tie_check ties = {.widest = -INFINITY};
    safetensors *oracle = NULL;
    hy_model *model = NULL; /* for its shapes and the router's weights */
    hy_model_options options = {.backend = "reference"};
    oracle_result r = {0};
    snprintf(path, sizeof path, "%s/oracle/%s", TEST_DATA, name);
    if (hy_model_open(path, &options, &model, &err) != HY_OK) fail_msg("%s: %s", name, err.message);
    snprintf(path, sizeof path, "%s/oracle/%s/oracle.safetensors", TEST_DATA, name);
    if (safetensors_open(path, &oracle, &err) != HY_OK) fail_msg("%s: %s", name, err.message);
    ties.oracle = oracle, ties.shape = *model_ops_model(model), ties.ops = model_ops(model);
    forward_observer observer = {observe, &ties};
    if (oracle_run(TEST_DATA "/oracle", name, "reference", 0, true, &observer, &r, &err) != HY_OK)
        fail_msg("%s: %s", name, err.message);
    assert_int_equal(r.lists_different, 0);
    assert_int_equal(ties.lists, r.lists);
    safetensors_close(oracle);
    hy_model_close(model);
    return ties;
}

static void check_oracle(const char *name)
{
    hy_error err = {0};
    oracle_result r = {0};
    bool quantised = oracle_is_quantised(name);
    if (oracle_run(TEST_DATA "/oracle", name, "reference", 0, false, NULL, &r, &err) != HY_OK)
        fail_msg("%s: %s", name, err.message);
    double widest = quantised ? fmax(check_ties(name).widest, 0) : 0;
    printf("%-10s logits: median %.1e, p90 %.1e; %zu of %zu lists differ, widest tie %.1e; weights within %.1e\n", name,
           r.median, r.p90, r.lists_different, r.lists, widest, r.weight_error);
    assert_true(oracle_within(&r, quantised ? &oracle_quantised : &oracle_fp32));
    assert_true(widest <= tie_bound(name));
    if (!quantised) assert_true(r.weight_error < 1e-5);
}

static void test_reference(void **state)
{
    (void)state;
    for (int i = 0; i < ORACLES; i++) check_oracle(names[i]);
}

/* With selections and routes imposed what is left is rounding to bf16, which these networks amplify. */
static void test_cpu_replayed(void **state)
{
    (void)state;
    for (int i = 0; i < ORACLES; i++) {
        hy_error err = {0};
        oracle_result r = {0};
        if (oracle_run(TEST_DATA "/oracle", names[i], "cpu", 0, true, NULL, &r, &err) != HY_OK)
            fail_msg("%s: %s", names[i], err.message);
        printf("%-10s logits: median %.1e, p90 %.1e; %zu greedy ids differ; weights within %.1e\n", names[i], r.median,
               r.p90, r.greedy_different, r.weight_error);
        assert_int_equal(r.lists_different, 0);
        assert_true(r.median < (oracle_is_quantised(names[i]) ? 0.2 : 0.03));
    }
}

static void test_advantage(void **state)
{
    (void)state;
    const float scores[] = {-8, 1, 4, 3.5f, 2, 6};
    const int32_t best[] = {2, 3, 5, -1}, tie[] = {3, 4, 5, -1};
    assert_true(advantage(best, 4, scores, 6, -1) < 0);
    assert_true(fabs(advantage(tie, 4, scores, 6, -1) - 2.0 / 8) < 1e-9);
    assert_true(advantage(tie, 4, scores, 6, 2) < 0); /* forced: says nothing */
    assert_true(advantage(best, 4, scores, 6, 5) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advantage),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_cpu_replayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
