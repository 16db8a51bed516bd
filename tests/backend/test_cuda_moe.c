/*
 * The layer's feed-forward in one launch (kernels/moe.cu) against the same in several (kernels/route.cu, experts.cu,
 * project_*.cu), which test_cuda_experts and test_cuda_operations hold to the reference: equal bits of x, routes and weights,
 * for every number of rows around its tiles, for all kinds of routes, in all orders of threads, once and again.
 */
#include "backend/cuda_test.h"

#include "backend/cuda/kernels/moe.h"

enum { LAYER = 1 };

typedef struct moe_kind {
    int hidden, width, shared, experts, per_token; /* shared: 0 for none */
    bool quantised;
} moe_kind;

static const moe_kind kinds[] = {
    {256, 96, 64, 12, 4, true},
    {256, 96, 64, 12, 4, false},
    {544, 288, 0, 5, 2, true},
    {64, 544, 288, 70, 6, true}, /* more experts than lanes */
    {256, 512, 64, 12, 4, true}, /* of this kind and behind it: moe_hopper.cu */
    {512, 256, 0, 5, 2, false},
    {1536, 768, 96, 9, 3, true},
    {2048, 2048, 1024, 6, 2, true}, /* whole stages of the shared expert: what launches do not wait for */
    {256, 1792, 0, 140, 2, true}, /* more experts than a warp chooses from in registers */
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Both ways over one model: [0] in several launches, [1] in one. */
typedef struct ways {
    random_model model;
    bench way[2];
} ways;

static void ways_open(ways *w, const moe_kind *k)
{
    model_kind kind = {.layers = 2,
                       .hidden = k->hidden,
                       .heads = 2,
                       .kv_heads = 1,
                       .head_dim = 64,
                       .index_dim = 64,
                       .index_top = 1,
                       .rotary_dim = 32,
                       .experts = k->experts,
                       .per_token = k->per_token,
                       .expert_width = k->width,
                       .shared_width = k->shared ? k->shared : 32,
                       .dense_width = 32,
                       .vocab = 32,
                       .linear = WEIGHT_MXFP8,
                       .expert = WEIGHT_NVFP4};
    random_state = 23;
    random_model_make(&w->model, &kind);
    ops_layer *l = &w->model.ops.layer[LAYER];
    if (!k->shared) l->shared_gate.format = l->shared_up.format = l->shared_down.format = WEIGHT_NONE;
    ops_options options = {.activation = k->quantised ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE};
    for (int i = 0; i < 2; i++) {
        bench_open(&w->way[i], &ops_cuda, &w->model, CACHE_BF16, CACHE_BF16, options, 1);
        w->way[i].backend->apart = i == 0;
    }
}

static void ways_close(ways *w)
{
    bench_close(&w->way[0]);
    bench_close(&w->way[1]);
    random_model_free(&w->model);
}

/* How the routes come. */
typedef enum source {
    ROUTER,   /* from the router, in the launch of the experts */
    LOOKED,   /* from the router, and somebody reads them in between */
    WRITTEN,  /* by tensor_write */
    REPLAYED, /* of some rows, with one expert twice */
    SOURCES,
} source;

typedef struct answer {
    float *x, *weights;
    int32_t *routes;
} answer;

static void answer_free(answer *a)
{
    free(a->x), free(a->weights), free(a->routes);
}

/* Rows are of several sequences; every seventh is padding. */
static answer run(const bench *b, const float *x, int rows, source from, const int32_t *routes, const float *weights)
{
    const ops_model *m = b->model;
    size_t hidden = (size_t)m->hidden, per_token = (size_t)m->experts_per_token;
    static int32_t replay[2 * MOE_ROWS * 8], blocks[2 * MOE_ROWS * 4];
    static float h[MOE_ROWS * 2048];
    step_rows step;
    hy_error err = {0};
    rows_open(&step);
    int padding = rows > 3 ? rows / 7 : 0;
    for (int t = 0; t < rows; t++) {
        int s = (t - padding) * MAX_SEQUENCES / rows, p = 0;
        for (int i = t; i > padding && (i - 1 - padding) * MAX_SEQUENCES / rows == s; i--) p++;
        rows_add(&step, t < padding ? -1 : s, t < padding ? 0 : p, 1, m->vocab);
        if (from == REPLAYED && t % 3 != 1) step.flags[t] |= ROW_REPLAY_ROUTES;
    }
    if (from == REPLAYED) {
        memset(blocks, 0xFF, sizeof blocks);
        for (int l = 0; l < 2; l++) memcpy(replay + (size_t)(l * rows) * per_token, routes, (size_t)rows * per_token * 4);
        step.ops.replay_routes = replay;
        step.ops.replay_blocks = blocks;
    }
    b->ops->begin(b->step, b->cache, &step.ops);
    b->ops->tensor_write(b->step, OPS_X, 0, rows, x);
    if (from != WRITTEN) b->ops->route(b->step, LAYER);
    answer a = {.routes = malloc((size_t)rows * per_token * sizeof *a.routes)};
    if (from == LOOKED) b->ops->tensor_read(b->step, OPS_ROUTES, 0, rows, a.routes);
    if (from == WRITTEN) {
        for (size_t i = 0; i < (size_t)rows * hidden; i++) h[i] = x[i] * 30;
        b->ops->tensor_write(b->step, OPS_H, 0, rows, h);
        b->ops->tensor_write(b->step, OPS_ROUTES, 0, rows, routes);
        b->ops->tensor_write(b->step, OPS_ROUTE_WEIGHTS, 0, rows, weights);
    }
    b->ops->experts(b->step, LAYER);
    check(b->ops->finish(b->step, &err), &err);
    b->ops->tensor_read(b->step, OPS_ROUTES, 0, rows, a.routes);
    a.x = bench_read(b, OPS_X, rows, hidden);
    a.weights = bench_read(b, OPS_ROUTE_WEIGHTS, rows, per_token);
    return a;
}

static void expect_equal(const answer *a, const answer *b, const ops_model *m, int rows, const char *what)
{
    size_t n = (size_t)rows, per_token = (size_t)m->experts_per_token;
    if (memcmp(a->routes, b->routes, n * per_token * 4)) fail_msg("%d rows, %s: routes", rows, what);
    if (memcmp(a->weights, b->weights, n * per_token * 4)) fail_msg("%d rows, %s: weights", rows, what);
    for (size_t i = 0; i < n * (size_t)m->hidden; i++)
        if (memcmp(&a->x[i], &b->x[i], 4))
            fail_msg("%d rows, %s: row %zu, column %zu is %g and not %g", rows, what, i / (size_t)m->hidden,
                     i % (size_t)m->hidden, (double)b->x[i], (double)a->x[i]);
}

/* Ascending experts: any; `same`: all rows the first ones, so that an expert has all rows. */
static void make_routes(const ops_model *m, int rows, bool same, int32_t *routes, float *weights)
{
    for (int t = 0; t < rows; t++) {
        int left = m->experts_per_token;
        for (int e = 0; e < m->experts && left; e++)
            if (same || random_below(m->experts - e) < left) routes[(t + 1) * m->experts_per_token - left--] = e;
        if (t % 5 == 2 && m->experts_per_token > 1) routes[t * m->experts_per_token + 1] = routes[t * m->experts_per_token];
        for (int i = 0; i < m->experts_per_token; i++)
            weights[t * m->experts_per_token + i] = 0.1f + (float)random_below(100) / 100;
    }
}

static void equal_bits(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64};
    static const char *const name[] = {"router", "looked at", "written", "replayed"};
    for (int k = 0; k < KINDS; k++) {
        ways w;
        ways_open(&w, &kinds[k]);
        const ops_model *m = &w.model.ops;
        for (int c = 0; c < (int)(sizeof counts / sizeof *counts); c++) {
            int rows = counts[c];
            if (!cuda_test_on_gpu && k > 0 && rows > 9 && (rows + k) % 3) continue; /* the emulation takes its time */
            float *x = random_floats((size_t)(rows * m->hidden), 1, false), weights[MOE_ROWS * 6];
            int32_t routes[MOE_ROWS * 6];
            make_routes(m, rows, c % 2, routes, weights);
            for (source from = 0; from < SOURCES; from++) {
                if (!cuda_test_on_gpu && (rows > 9 || k > 1) && from != (source)((c + k) % SOURCES)) continue;
                w.way[1].backend->late = (c + (int)from) % 2;
                answer a = run(&w.way[0], x, rows, from, routes, weights);
                answer b = run(&w.way[1], x, rows, from, routes, weights);
                expect_equal(&a, &b, m, rows, name[from]);
                answer_free(&a), answer_free(&b);
            }
            free(x);
        }
        ways_close(&w);
    }
    if (!cuda_test_on_gpu)
        assert_true(cuda_emulated_launches("hy_moe_few") > 0 && cuda_emulated_launches("hy_moe_many") > 0 &&
                    cuda_emulated_launches("hy_moe_route_few") > 0 && cuda_emulated_launches("hy_moe_route_many") > 0 &&
                    cuda_emulated_launches("hy_moe_hopper_one") > 0 && cuda_emulated_launches("hy_moe_hopper") > 0);
}

/* The same again and again, in every order of blocks and threads: the numbers that blocks count come back to zero. */
static void again(void **state)
{
    (void)state;
    static const cuda_emulated_order orders[] = {CUDA_EMULATED_FORWARD, CUDA_EMULATED_REVERSE, CUDA_EMULATED_RANDOM};
    for (int k = 0; k < KINDS; k += 4) {
        ways w;
        ways_open(&w, &kinds[k]);
        const ops_model *m = &w.model.ops;
        float *x = random_floats((size_t)(20 * m->hidden), 1, false);
        for (int rows = 5; rows <= 20; rows += 15) {
            answer first = run(&w.way[0], x, rows, ROUTER, NULL, NULL);
            for (int o = 0; o < 3; o++) {
                cuda_emulated.order = orders[o];
                answer next = run(&w.way[1], x, rows, ROUTER, NULL, NULL);
                expect_equal(&first, &next, m, rows, "again");
                answer_free(&next);
            }
            cuda_emulated.order = CUDA_EMULATED_MIXED;
            answer_free(&first);
        }
        free(x);
        ways_close(&w);
    }
}

/* A NaN stays in its row; rows that are all padding go nowhere. */
static void odd_rows(void **state)
{
    (void)state;
    static const int some[] = {0, 1, 4, 5};
    for (int k = 0; k < (int)(sizeof some / sizeof *some); k++) {
        ways w;
        ways_open(&w, &kinds[some[k]]);
        const ops_model *m = &w.model.ops;
        int rows = 6, hidden = m->hidden;
        float *x = random_floats((size_t)(rows * hidden), 1, false);
        answer clean = run(&w.way[1], x, rows, ROUTER, NULL, NULL);
        x[3 * hidden + 7] = NAN;
        answer a = run(&w.way[0], x, rows, ROUTER, NULL, NULL), b = run(&w.way[1], x, rows, ROUTER, NULL, NULL);
        for (int t = 0; t < rows; t++)
            for (int i = 0; i < hidden; i++)
                if (t == 3)
                    assert_true(isnan(a.x[t * hidden + i]) && isnan(b.x[t * hidden + i]));
                else
                    assert_memory_equal(&b.x[t * hidden + i], &clean.x[t * hidden + i], 4);
        answer_free(&a), answer_free(&b), answer_free(&clean);

        step_rows step;
        hy_error err = {0};
        float *out[2];
        for (int i = 0; i < 2; i++) {
            rows_open(&step);
            for (int t = 0; t < 3; t++) rows_add(&step, -1, 0, 1, m->vocab);
            w.way[i].ops->begin(w.way[i].step, w.way[i].cache, &step.ops);
            w.way[i].ops->tensor_write(w.way[i].step, OPS_X, 0, 3, x);
            w.way[i].ops->route(w.way[i].step, LAYER);
            w.way[i].ops->experts(w.way[i].step, LAYER);
            check(w.way[i].ops->finish(w.way[i].step, &err), &err);
            out[i] = bench_read(&w.way[i], OPS_X, 3, (size_t)hidden);
        }
        assert_memory_equal(out[0], out[1], (size_t)(3 * hidden) * sizeof **out);
        free(out[0]), free(out[1]), free(x);
        ways_close(&w);
    }
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_bits),
        cmocka_unit_test(again),
        cmocka_unit_test(odd_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
