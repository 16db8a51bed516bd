/*
 * The reference backend against the outputs of the Hugging Face implementation on all text oracles, the cpu backend with
 * the oracle's selections and routes replayed. Where a selection or a route differs, the choices must have been a tie.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "model/oracle_check.h"

#include <cmocka.h>

static const char *const names[] = {"m3-dense", "m3-short", "m3-long", "m3-topk16", "m31-w16", "m31-w4a4"};
enum { ORACLES = sizeof names / sizeof *names, STEP_ROWS = 512 };

/*
 * A tie closer than rounding: the scores of what one side chose and the other did not are apart by less than this, of the
 * largest score of the row. The two sides differ because values on a border of the 4-bit quantiser fell to either side,
 * which moves a key by up to a twelfth of its group's maximum in one of 128 dims.
 */
#define TIE 0.02

typedef struct tie_check {
    const safetensors *oracle;
    ops_model shape;
    const hy_ops *ops;
    int32_t first; /* row of the prompt where the running step begins */
    size_t lists, different;
    double widest; /* gap of the differences so far */
} tie_check;

static bool holds(const int32_t *list, size_t n, int32_t value)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == value) return true;
    return false;
}

/* The widest gap between a choice of one list that the other lacks and one the other way round, over the largest score. */
static double gap(const int32_t *a, const int32_t *b, size_t n, const float *scores, size_t count)
{
    double top = 0, widest = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(scores[i])) top = fmax(top, fabs((double)scores[i]));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            if (a[i] < 0 || b[j] < 0 || holds(b, n, a[i]) || holds(a, n, b[j])) continue;
            widest = fmax(widest, fabs((double)scores[a[i]] - (double)scores[b[j]]) / top);
        }
    return widest;
}

static void compare(tie_check *c, const int32_t *own, const int32_t *wanted, size_t n, const float *scores, size_t count)
{
    c->lists++;
    if (!memcmp(own, wanted, n * sizeof *own)) return;
    c->different++;
    c->widest = fmax(c->widest, gap(own, wanted, n, scores, count));
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
    size_t heads = (size_t)c->shape.index_heads, top = (size_t)c->shape.index_top, k = (size_t)wanted->shape[2];
    size_t blocks = (size_t)(wanted->shape[0] + 4 + CACHE_BLOCK - 1) / CACHE_BLOCK; /* 4 tokens are fed after it */
    int32_t *own = calloc((size_t)rows * heads * top, sizeof *own);
    float *scores = calloc((size_t)rows * heads * blocks, sizeof *scores);
    c->ops->tensor_read(step, OPS_BLOCKS, 0, rows, own);
    c->ops->tensor_read(step, OPS_SCORES, 0, rows, scores);
    for (size_t i = 0; i < (size_t)rows * heads; i++)
        compare(c, own + i * top, lists + ((size_t)c->first * heads + i) * k, k, scores + i * blocks, blocks);
    free(own);
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
    int32_t *own = calloc((size_t)rows * n, sizeof *own);
    float *h = calloc((size_t)rows * hidden, sizeof *h), *scores = calloc((size_t)c->shape.experts, sizeof *scores);
    c->ops->tensor_read(step, OPS_ROUTES, 0, rows, own);
    c->ops->tensor_read(step, OPS_H, 0, rows, h);
    for (size_t t = 0; t < (size_t)rows; t++) {
        router_scores(c, layer, h + t * hidden, scores);
        compare(c, own + t * n, lists + ((size_t)c->first + t) * n, n, scores, (size_t)c->shape.experts);
    }
    free(own);
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

static void check_oracle(const char *name)
{
    hy_error err = {0};
    char path[512];
    safetensors *oracle = NULL;
    hy_model *shape = NULL; /* for shapes and the router's weights only */
    snprintf(path, sizeof path, "%s/oracle/%s", TEST_DATA, name);
    hy_model_options options = {.backend = "reference"};
    if (hy_model_open(path, &options, &shape, &err) != HY_OK) fail_msg("%s: %s", name, err.message);
    snprintf(path, sizeof path, "%s/oracle/%s/oracle.safetensors", TEST_DATA, name);
    if (safetensors_open(path, &oracle, &err) != HY_OK) fail_msg("%s: %s", name, err.message);
    tie_check ties = {.oracle = oracle, .shape = *model_ops_model(shape), .ops = model_ops(shape)};
    forward_observer observer = {observe, &ties};
    oracle_result r = {0};
    if (oracle_run(TEST_DATA "/oracle", name, "reference", 0, false, &observer, &r, &err) != HY_OK)
        fail_msg("%s: %s", name, err.message);
    printf("%-10s logits: median %.1e, p90 %.1e; %zu of %zu lists differ, widest gap %.1e; weights within %.1e\n", name,
           r.median, r.p90, r.lists_different, r.lists, ties.widest, r.weight_error);
    assert_true(oracle_within(&r, oracle_is_quantised(name) ? &oracle_quantised : &oracle_fp32));
    assert_int_equal(ties.lists, r.lists);
    assert_int_equal(ties.different, r.lists_different);
    assert_true(ties.widest <= TIE);
    if (!oracle_is_quantised(name)) assert_true(r.weight_error < 1e-5);
    safetensors_close(oracle);
    hy_model_close(shape);
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
        printf("%-10s logits: median %.1e, p90 %.1e; %zu greedy ids differ; weights within %.1e\n", names[i], r.median, r.p90,
               r.greedy_different, r.weight_error);
        assert_int_equal(r.lists_different, 0);
        assert_true(r.median < (oracle_is_quantised(names[i]) ? 0.2 : 0.03));
    }
}

static void test_gap(void **state)
{
    (void)state;
    const int32_t a[] = {0, 2, 5, -1}, b[] = {0, 3, 5, -1};
    const float scores[] = {-8, 1, 4, 3.5f, 2, 6, -INFINITY};
    assert_true(fabs(gap(a, b, 4, scores, 7) - 0.5 / 8) < 1e-9);
    assert_true(gap(a, a, 4, scores, 7) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gap),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_cpu_replayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
