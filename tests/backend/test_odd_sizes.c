/*
 * Odd sizes on the cpu backend: odd_sizes.h. What reads or writes beyond an array is found by valgrind (`make
 * valgrind`) and the address sanitizer.
 */
#include "backend/random_model.h"

/* Widths that fill neither groups of outputs nor units of inputs. */
static const model_kind bf16_kind = {
    .layers = 2,
    .hidden = 51,
    .heads = 4,
    .kv_heads = 1,
    .head_dim = 16,
    .index_dim = 16,
    .index_top = 2,
    .rotary_dim = 8,
    .experts = 3,
    .per_token = 1,
    .expert_width = 19,
    .shared_width = 13,
    .dense_width = 37,
    .vocab = 33,
    .linear = WEIGHT_BF16,
    .expert = WEIGHT_BF16,
};

#define TESTED ops_cpu
#include "backend/odd_sizes.h"

int main(void)
{
    const struct CMUnitTest tests[] = {ODD_SIZES};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
