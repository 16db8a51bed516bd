/* The `verify` of the host backends: verify_step.h. */
#include "backend/verify_step.h"

static void test_reference(void **state)
{
    (void)state;
    check_backend(&ops_reference, 2);
}

static void test_cpu(void **state)
{
    (void)state;
    check_backend(&ops_cpu, 1);
    check_backend(&ops_cpu, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference), cmocka_unit_test(test_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
