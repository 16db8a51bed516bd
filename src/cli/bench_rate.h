/* How fast one run of a step went through each kind of weights. */
#ifndef HAYATE_CLI_BENCH_RATE_H
#define HAYATE_CLI_BENCH_RATE_H

#include "cli/bench_cost.h"

/* The machine at one moment. */
typedef struct bench_moment {
    double read;               /* bytes per second: the mean of the passes before and after */
    double peaks[BENCH_PEAKS]; /* operations per second */
} bench_moment;

/* One run whose operations were timed one by one; all borrowed. */
typedef struct bench_run {
    const bench_moment *moment;
    const bench_cost *cost; /* [BENCH_OPS] */
    const double *seconds;  /* [BENCH_OPS] */
    int32_t rows;
} bench_run;

/* One kind of weights over the timed operations that read it. */
typedef struct bench_kind_rate {
    double bytes, operations, seconds;
    double read_fraction, peak_fraction; /* of `seconds`: what the bytes take at the read pass, the operations at the peaks */
    double fraction; /* by operation, the larger of the two; 0: nothing of the kind in this step */
} bench_kind_rate;

typedef enum bench_rate_kind { RATE_LINEAR, RATE_EXPERTS, RATE_HEAD, BENCH_RATES } bench_rate_kind;

/* Linear: attend_in, attend_out and feed_dense. Experts: the operation less its shared expert, which is taken to run at the
 * linears' share of bound. Head. */
bench_kind_rate bench_rate(const bench_shape *shape, const bench_run *run, bench_rate_kind kind);

/* All peaks together. */
double bench_rate_operations(const bench_cost *cost);

#endif
