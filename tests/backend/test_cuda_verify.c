/* The `verify` of the cuda backend: verify_step.h. */
#include "backend/cuda_test.h"
#include "backend/verify_step.h"

static void test_cuda(void **state)
{
    (void)state;
    check_backend(&ops_cuda, 2);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuda)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
