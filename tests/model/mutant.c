/*
 * One program for all mutants of the reference backend (see mutations.cmake); which one it is was decided when it was
 * linked.
 *
 *     mutant_NAME ORACLE_FOLDER NAME TOKENS    0: within the bounds of the oracle, 10: not, 1: could not run
 *     mutant_NAME gate                         the same for the operation of gate_check.h
 */
#include "model/gate_check.h"
#include "model/oracle_check.h"

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "gate") == 0) {
        double error = gate_error(&ops_reference);
        printf("gate: largest error %.1e\n", error);
        return error <= GATE_BOUND ? 0 : 10;
    }
    if (argc != 4) return 1;
    hy_error err = {0};
    oracle_result r = {0};
    if (oracle_run(argv[1], argv[2], "reference", (size_t)atol(argv[3]), false, NULL, &r, &err) != HY_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    printf("%s: median %.1e, p90 %.1e, %zu of %zu lists differ, weights within %.1e\n", argv[2], r.median, r.p90,
           r.lists_different, r.lists, r.weight_error);
    return oracle_within(&r, oracle_is_quantised(argv[2]) ? &oracle_quantised : &oracle_fp32) ? 0 : 10;
}
