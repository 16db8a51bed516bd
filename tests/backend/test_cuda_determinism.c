/*
 * The cuda backend gives one answer (determinism.h); on the emulated GPU in every order of threads and with device
 * memory that the host cannot touch.
 *
 * hayate-test: slow
 */
#include "backend/cuda_test.h"

#define TESTED ops_cuda
#include "backend/determinism.h"

/* Another order for every number of workers, which the backend itself has no use for. */
static void prepare(bench *b, int workers, const struct variant *v)
{
    (void)b, (void)v;
    cuda_emulated.order = workers == 1   ? CUDA_EMULATED_FORWARD
                          : workers == 2 ? CUDA_EMULATED_REVERSE
                                         : CUDA_EMULATED_RANDOM;
    cuda_emulated.seed = (uint64_t)workers;
}

static void guarded(void **state)
{
    cuda_emulated.host_guard = true;
    nothing_to_do(state);
    cuda_emulated.host_guard = false;
}

/* Every row a step of its own costs an emulated machine most. */
static void row_by_row_short(void **state)
{
    static const int fewer[SEQUENCES] = {140, 9, 1, 20};
    const int *before = lengths;
    if (!cuda_test_on_gpu) lengths = fewer;
    row_by_row(state);
    lengths = before;
}

static const int emulated_lengths[SEQUENCES] = {270, 33, 1, 20};

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (!cuda_test_on_gpu) lengths = emulated_lengths, most_runs = 2;
    most_workers = 3;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poisoned_row), cmocka_unit_test(guarded),          cmocka_unit_test(batch_chunks_and_threads),
        cmocka_unit_test(long_rows),    cmocka_unit_test(row_by_row_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
