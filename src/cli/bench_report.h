/* What a bench prints: tables for people, or one JSON object, and the comparison with an earlier one. */
#ifndef HAYATE_CLI_BENCH_REPORT_H
#define HAYATE_CLI_BENCH_REPORT_H

#include "cli/bench_against.h"
#include "cli/bench_machine.h"
#include "cli/bench_step.h"

/* What is said once, before the rows. */
typedef struct bench_heading {
    const char *bench; /* "decode", "prefill" */
    bench_machine machine;
    hy_model_info model;
    int threads, runs;
    bool head;
    uint64_t read_bytes; /* of the read buffer */
} bench_heading;

/* One kind of weights over the timed operations that read it. */
typedef struct bench_kind_rate {
    double bytes, operations, seconds;
    double read_fraction, peak_fraction; /* of `seconds`: what the bytes take at the read pass, the operations at the peaks */
    double fraction;                     /* the larger of the two; 0: nothing of the kind in this step */
} bench_kind_rate;

/* Linear: attend_in, attend_out and feed_dense. */
bench_kind_rate bench_rate_linear(const bench_result *r);
/* Routed experts: the operation less its shared expert, which is taken to run at the linears' share of bound. */
bench_kind_rate bench_rate_experts(const bench_shape *shape, const bench_result *r);
bench_kind_rate bench_rate_head(const bench_result *r);

/* Of a decode step the bytes bind by definition; elsewhere, by operation, the larger of bytes and operations. */
bool bench_by_bytes(const char *bench);

void bench_print_heading(const bench_heading *h, const bench_against *against);
/* One row and its operations; `against` may be NULL. */
void bench_print_row(const bench_heading *h, const bench_shape *shape, const bench_result *r,
                     const bench_against *against);
/* The whole JSON object on stdout. False: no memory. */
bool bench_print_json(const bench_heading *h, const bench_shape *shape, const bench_result *rows, int count,
                      const bench_against *against);

#endif
