/*
 * The cpu backend gives one answer (determinism.h), on all variants of the inner loops as well.
 *
 * hayate-test: slow
 */
#include "backend/random_model.h"

#include "backend/cpu/cpu.h"

#define TESTED ops_cpu
#include "backend/determinism.h"

typedef struct variant {
    const cpu_kernels *kernels;
    const cpu_blocks *blocks;
    const cpu_products *products;
} variant;

/* Without a variant: the best. */
static void prepare(bench *b, int workers, const variant *v)
{
    (void)workers;
    if (!v) return;
    b->backend->kernels = v->kernels;
    b->backend->blocks = v->blocks;
    b->backend->products = v->products;
}

static void instruction_sets(const model_kind *kind, run base)
{
    const cpu_kernels *all[4];
    const cpu_blocks *blocks[4];
    const cpu_products *products[4];
    int n = cpu_kernels_all(all), block_sets = cpu_blocks_all(blocks), product_sets = cpu_products_all(products);
    int most = n > block_sets ? n : block_sets;
    if (product_sets > most) most = product_sets;
    run others[4];
    variant variants[4];
    base.workers = 2, base.chunk = 60, base.together = true;
    for (int i = 0; i < most; i++) {
        variants[i] = (variant){all[i < n ? i : n - 1], blocks[i < block_sets ? i : block_sets - 1],
                                products[i < product_sets ? i : product_sets - 1]};
        if (i) others[i - 1] = base, others[i - 1].variant = &variants[i];
    }
    base.variant = &variants[0];
    compare_runs(kind, base, others, most - 1);
}

static void instruction_sets_plain(void **state)
{
    (void)state;
    instruction_sets(&plain_kind, (run){.main = CACHE_BF16, .index = CACHE_FP8, .activation = MOE_ACTIVATION_NONE});
}

static void instruction_sets_quantised(void **state)
{
    (void)state;
    instruction_sets(&quantised_kind,
                     (run){.main = CACHE_NVFP4, .index = CACHE_NVFP4, .activation = MOE_ACTIVATION_NVFP4});
}

/* For emulators: with an argument only the tests whose name it matches, with a second one shorter sequences. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) lengths = short_lengths;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poisoned_row),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(batch_chunks_and_threads),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(row_by_row),
        cmocka_unit_test(instruction_sets_plain),
        cmocka_unit_test(instruction_sets_quantised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
