/*
 * Odd sizes on the cpu backend: odd_sizes.h. What reads or writes beyond an array is found by valgrind (`make
 * valgrind`) and the address sanitizer.
 */
#include "backend/random_model.h"

#define TESTED ops_cpu
#include "backend/odd_sizes.h"

/* Widths that fill neither groups of outputs nor units of inputs. */
static const model_kind kinds[] = {
    {.layers = 2,
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
     .expert = WEIGHT_NVFP4},
    {.layers = 2,
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
     .expert = WEIGHT_BF16},
};

static void four_bit_experts(void **state)
{
    (void)state;
    for (int biased = 0; biased < 2; biased++)
        odd_steps(&kinds[0], &(variant){MOE_ACTIVATION_NVFP4, CACHE_NVFP4, CACHE_NVFP4, biased});
}

static void plain_activations(void **state)
{
    (void)state;
    for (int biased = 0; biased < 2; biased++)
        odd_steps(&kinds[0], &(variant){MOE_ACTIVATION_NONE, CACHE_FP8, CACHE_FP8, biased});
}

static void bf16_weights(void **state)
{
    (void)state;
    for (int biased = 0; biased < 2; biased++)
        odd_steps(&kinds[1], &(variant){MOE_ACTIVATION_NONE, CACHE_BF16, CACHE_BF16, biased});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_bit_experts),
        cmocka_unit_test(plain_activations),
        cmocka_unit_test(bf16_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
