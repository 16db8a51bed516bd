/*
 * The trial of projections by warpgroups (cuda/trial.c): where they have the bits of the other kernels rows go to them, and
 * where one differs none do.
 */
#include "backend/cuda_test.h"

static const model_kind kind = {.layers = 1,
                                .hidden = 1024,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 32,
                                .index_dim = 32,
                                .index_top = 2,
                                .rotary_dim = 16,
                                .experts = 1,
                                .per_token = 1,
                                .expert_width = 32,
                                .shared_width = 32,
                                .dense_width = 64,
                                .vocab = 33,
                                .linear = WEIGHT_MXFP8,
                                .expert = WEIGHT_BF16};

static const gpu_calls *whole;
static const gpu_kernel *broken;

/* As ever, but one kernel computes nothing. */
static void launch_but_one(gpu *g, const gpu_kernel *kernel, const int grid[3], int block, size_t shared, const void *args,
                           size_t bytes)
{
    if (kernel != broken) whole->launch(g, kernel, grid, block, shared, args, bytes);
}

static bool takes_rows(const char *without)
{
    random_model m;
    bench b;
    hy_error err = {0};
    random_state = 3;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_cuda, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    bool took = b.step->packed != NULL;
    if (without) {
        assert_true(took);
        gpu *g = b.backend->gpu;
        whole = g->calls;
        gpu_calls calls = *whole;
        broken = whole->kernel(g, without);
        calls.launch = launch_but_one;
        g->calls = &calls;
        b.backend->wgmma_tried = 0;
        check(cuda_trial(b.step, &err), &err);
        g->calls = whole;
        took = b.step->packed != NULL;
        /* And the next step is not asked again. */
        ops_step *next = NULL;
        check(ops_cuda.step_open(b.backend, &b.step->limits, &next, &err), &err);
        assert_true((next->packed != NULL) == took);
        ops_cuda.step_close(next);
    }
    bench_close(&b);
    random_model_free(&m);
    return took;
}

static void equal(void **state)
{
    (void)state;
    assert_true(takes_rows(NULL));
}

static void different(void **state)
{
    (void)state;
    assert_false(takes_rows("hy_project_mxfp8_hopper"));
    assert_false(takes_rows("hy_glu_mxfp8_hopper"));
    assert_true(takes_rows("hy_project_nvfp4_hopper")); /* which the model has no use for */
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal), cmocka_unit_test(different)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
