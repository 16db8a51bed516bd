/* The cpu backend against the reference, operation by operation: operations.h. */
#include "backend/random_model.h"
#include "backend/shapes.h"

#define TESTED ops_cpu

static const model_kind kinds[] = {
    {SHAPE_PLAIN, .vocab = 203},
    {.layers = 3,
     .hidden = 256,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 32,
     .index_dim = 64,
     .index_top = 4,
     .rotary_dim = 32,
     .experts = 6,
     .per_token = 4,
     .expert_width = 64,
     .shared_width = 96,
     .dense_width = 288,
     .vocab = 140,
     .linear = WEIGHT_MXFP8,
     .expert = WEIGHT_NVFP4,
     .divides = true},
    /* Heads that fill more than 16 lanes, widths that fill no lanes, F32 and the other NVFP4 convention. */
    {SHAPE_MANY_HEADS, .shared_width = 20, .dense_width = 36},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

#include "backend/operations.h"

int main(void)
{
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
    return cmocka_run_group_tests(tests, NULL, report);
}
