/*
 * Measured steps: whole ones, and ones whose operations are timed one by one, each between a read pass and the peak
 * loops of the same moment.
 */
#ifndef HAYATE_CLI_BENCH_STEP_H
#define HAYATE_CLI_BENCH_STEP_H

#include "cli/bench_gpu.h"
#include "cli/bench_rate.h"
#include "cli/bench_read.h"
#include "cli/bench_rows.h"
#include "model/model.h"

/* What is measured on; all borrowed. */
typedef struct bench_setup {
    const hy_model *model; /* whole steps go through its forward pass; NULL: only operations are timed */
    const hy_ops *ops;
    bench_shape shape;
    ops_step *step;
    ops_cache *cache;
    threads *pool;
    bench_read *read; /* not looked at with a GPU */
    bench_gpu *gpu;   /* NULL: the operations run on the host */
    bool by_kernel;   /* on a GPU, whole steps: what each kernel takes, too */
} bench_setup;

enum { BENCH_MOST_KERNELS = 48 };

/* One kernel's launches of a step, each between two marks: an event's time is in every one, and none begins early. */
typedef struct bench_kernel_time {
    const char *name; /* borrowed from the backend */
    int launches;
    double seconds; /* of all; median of the replays of one run */
} bench_kernel_time;

typedef struct bench_op_result {
    int calls; /* of one step */
    bench_cost cost;
    double seconds, bound, fraction; /* medians over the runs */
    bool by_operations;              /* the bound is that of the operations */
} bench_op_result;

/* Medians over the runs, of one shape of step. */
typedef struct bench_result {
    int32_t context, sequences, rows;
    double seconds;           /* of a whole step; by the GPU's clock where it runs there */
    bench_gpu_time gpu;       /* of whole steps on a GPU: host is that of one without a record. Zeroed: there is none */
    double read_bound, bound; /* seconds: bytes alone; for each operation the larger of bytes and operations */
    double read_fraction, fraction; /* bound / seconds */
    double without_index;           /* seconds without index_select, taken from the timed operations */
    bench_moment moment;
    bench_cost cost; /* of the whole step */
    bench_op_result op[BENCH_OPS];
    bench_kind_rate kind[BENCH_RATES];
    bench_kernel_time kernel[BENCH_MOST_KERNELS]; /* by time, descending; with by_kernel */
    int kernels;
} bench_result;

/*
 * Runs the step of `rows` (shape as bench_rows_set takes it) once to warm up and then `runs` times whole and `runs`
 * times by operation. Errors of the steps; HY_CANCELLED when `on_progress` says so.
 */
hy_status bench_step_measure(const bench_setup *setup, bench_rows *rows, int32_t sequences, int32_t context,
                             int32_t count, bool head, int runs, hy_progress_fn on_progress, bench_result *out,
                             hy_error *err);

/* One moment of the host: two read passes and all peak loops. */
bench_moment bench_moment_take(const bench_setup *setup);
/* The median of n values, which are sorted in place. */
double bench_median(double *values, int n);

#endif
