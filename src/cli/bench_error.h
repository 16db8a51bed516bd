/* How far a backend's operations are from the reference, on a narrow network of a geometry: all of its K, few outputs. */
#ifndef HAYATE_CLI_BENCH_ERROR_H
#define HAYATE_CLI_BENCH_ERROR_H

#include "cli/bench_cost.h"

/* Root mean square of the difference over that of the reference's result, both given the same inputs: of Q and index Q
 * for attend_in, block scores, attention, what attend_out, experts and feed_dense add to the residual stream, route weights of
 * rows with the same experts, logits. NAN: not compared. */
typedef struct bench_errors {
    double op[BENCH_OPS];
    int64_t other_routes, other_blocks; /* places of a list that differ */
} bench_errors;

hy_status bench_errors_measure(const ops_model *shape, const hy_ops *ops, moe_activation activation, threads *pool,
                               bench_errors *out, hy_error *err);

#endif
