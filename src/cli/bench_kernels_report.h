/* The table and the JSON of `hayate bench kernels`. */
#ifndef HAYATE_CLI_BENCH_KERNELS_REPORT_H
#define HAYATE_CLI_BENCH_KERNELS_REPORT_H

#include "cli/bench_against.h"
#include "cli/bench_step.h"

enum { KERNEL_ROWS = 256 };

/* One call of one operation. */
typedef struct kernel_row {
    char name[64]; /* "experts W4A4" */
    int32_t rows;
    int64_t context;                                    /* 0 where there is none */
    double seconds, bytes, operations, bound, fraction; /* bound 0: none is known */
    const char *binds;                                  /* "bytes", or the peak: "int8", "bf16", "fp32" */
    double error;                                       /* NAN: not compared */
    bench_gpu_time gpu;                                 /* zeroed: on the host, or timed by bench_step */
} kernel_row;

typedef struct kernel_report {
    const char *geometry, *backend;
    int threads, runs;
    uint64_t read_bytes;
    bool json;
    bench_machine machine;
    bench_against against; /* root NULL: none */
    bench_moment moment;   /* of the last measurement */
    bool on_gpu;
    int wgmma_rows; /* ops_options.gpu_wgmma_rows */
    const bench_gpu *gpu; /* of the last network, borrowed; bounds are copied as rows come */
    cuda_bounds bounds;
    kernel_row row[KERNEL_ROWS];
    int count;
} kernel_report;

void kernel_report_begin(kernel_report *r);
/* The mean over the calls of `op` in a measured step. */
void kernel_report_add(kernel_report *r, const char *name, const char *kind, int32_t rows, int64_t context,
                       const bench_result *from, bench_op op, double error);
/* Work that a GPU did `calls` times in one record, of so much cost each. */
void kernel_report_gpu(kernel_report *r, const char *name, int32_t rows, int64_t context, const bench_cost *cost,
                       int calls, const bench_gpu_time *took, const bench_moment *moment);
/* False: no memory. */
bool kernel_report_end(kernel_report *r);
void kernel_report_free(kernel_report *r);

#endif
