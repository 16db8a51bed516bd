/*
 * The cuda backend against the reference, operation by operation: operations.h.
 *
 * hayate-test: slow
 */
#include "backend/cuda_test.h"
#include "backend/shapes.h"

#define TESTED ops_cuda

static const model_kind kinds[] = {
    {SHAPE_PLAIN, .vocab = 203},
    /* The shape of attention of the released model: 16 heads of 128 to a KV head. */
    {.layers = 3,
     .hidden = 128,
     .heads = 32,
     .kv_heads = 2,
     .head_dim = 128,
     .index_dim = 128,
     .index_top = 4,
     .rotary_dim = 64,
     .experts = 6,
     .per_token = 4,
     .expert_width = 64,
     .shared_width = 96,
     .dense_width = 288,
     .vocab = 140,
     .linear = WEIGHT_MXFP8,
     .expert = WEIGHT_NVFP4,
     .divides = true},
    /* More heads to a KV head than a tile has rows, F32 and the other NVFP4 convention. */
    {SHAPE_MANY_HEADS, .shared_width = 16, .dense_width = 48},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

#include "backend/operations.h"

/* Every kernel that the program carries has run. */
static int report_kernels(void **state)
{
    report(state);
    if (cuda_test_on_gpu) return 0;
    for (int i = 0; cuda_emulated_kernel(i); i++)
        if (!cuda_emulated_launches(cuda_emulated_kernel(i))) printf("# not launched: %s\n", cuda_emulated_kernel(i));
    return 0;
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (!cuda_test_on_gpu) many = 43;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding),
        cmocka_unit_test(quantised_insert),
        cmocka_unit_test(selection),
        cmocka_unit_test(routes_and_ties),
        cmocka_unit_test(sampling),
        cmocka_unit_test(projections),
        cmocka_unit_test(index_scores),
        cmocka_unit_test(attention),
        cmocka_unit_test(router),
        cmocka_unit_test(feed_forward),
        cmocka_unit_test(quantised_activations),
        cmocka_unit_test(replay),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, report_kernels);
}
