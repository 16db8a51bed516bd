/* Odd sizes on the cuda backend, odd_sizes.h: the emulated GPU finds what reads or writes beyond an array. */
#include "backend/cuda_test.h"

/* Widths that fill no tile. */
static const model_kind bf16_kind = {
    .layers = 2,
    .hidden = 80,
    .heads = 4,
    .kv_heads = 1,
    .head_dim = 16,
    .index_dim = 16,
    .index_top = 2,
    .rotary_dim = 8,
    .experts = 3,
    .per_token = 1,
    .expert_width = 16,
    .shared_width = 48,
    .dense_width = 112,
    .vocab = 33,
    .linear = WEIGHT_BF16,
    .expert = WEIGHT_BF16,
};

#define TESTED ops_cuda
#include "backend/odd_sizes.h"

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {ODD_SIZES};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
