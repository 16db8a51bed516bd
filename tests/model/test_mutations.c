/*
 * What the comparison with the oracles is worth: every mutant of the reference backend (mutations.cmake) must fail it,
 * while the reference itself passes on the same tokens.
 *
 * hayate-test: slow
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "model/gate_check.h"
#include "model/oracle_check.h"

#include <sys/wait.h>

#include <cmocka.h>

/* Without an oracle: at the operation, with an absolute bound. */
static const struct {
    const char *mutant, *what, *oracle;
    int tokens;
} mutations[] = {
    {"norm_gain", "gain w in place of 1 + w", "m3-short", 200},
    {"rotary_pairs", "pairs (2j, 2j + 1) in place of (j, j + half)", "m3-short", 200},
    {"rotary_direction", "a rotation that is none", "m3-short", 200},
    {"gate_clamp", "the gate clamped from below too", NULL, 0},
    {"up_offset", "up in place of up + 1", "m3-short", 200},
    {"softmax_routing", "softmax in place of sigmoid", "m3-short", 200},
    {"bias_in_weights", "the bias in the weights of experts", "m3-short", 200},
    {"bias_ignored", "experts chosen without the bias", "m3-short", 200},
    {"shared_scaled", "the shared expert scaled like the routed ones", "m3-short", 200},
    {"shared_selection", "the selection of group 0 for all groups", "m3-long", 700},
    {"local_not_forced", "the local block chosen by score only", "m3-long", 700},
    {"selection_unused", "all blocks on sparse layers", "m3-long", 700},
    {"future_visible", "the local block without its causal border", "m3-short", 200},
};
enum { MUTATIONS = sizeof mutations / sizeof *mutations };

static void test_reference_passes(void **state)
{
    (void)state;
    hy_error err = {0};
    oracle_result r = {0};
    assert_true(gate_error(&ops_reference) <= GATE_BOUND);
    for (int i = 0; i < MUTATIONS; i++) {
        if (!mutations[i].oracle || (i && mutations[i - 1].oracle == mutations[i].oracle)) continue;
        hy_status status = oracle_run(TEST_DATA "/oracle", mutations[i].oracle, "reference",
                                      (size_t)mutations[i].tokens, false, NULL, &r, &err);
        if (status != HY_OK) fail_msg("%s", err.message);
        assert_true(oracle_within(&r, &oracle_fp32));
        assert_true(r.lists > 0);
    }
}

static void test_mutants_fail(void **state)
{
    (void)state;
    int alive = 0;
    for (int i = 0; i < MUTATIONS; i++) {
        char command[1024];
        if (mutations[i].oracle)
            snprintf(command, sizeof command, "'%s/tests/mutant_%s' '%s/oracle' %s %d", TEST_BINARY,
                     mutations[i].mutant, TEST_DATA, mutations[i].oracle, mutations[i].tokens);
        else
            snprintf(command, sizeof command, "'%s/tests/mutant_%s' gate", TEST_BINARY, mutations[i].mutant);
        printf("%s (%s) ", mutations[i].mutant, mutations[i].what);
        fflush(stdout);
        int code = system(command);
        bool failed = WIFEXITED(code) && WEXITSTATUS(code) == 10;
        if (!failed) printf("  not noticed: exit status %d\n", code), alive++;
    }
    assert_int_equal(alive, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_passes),
        cmocka_unit_test(test_mutants_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
