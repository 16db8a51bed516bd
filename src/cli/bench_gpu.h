/*
 * A GPU in the benches, in place of the host's passes and loops: its bounds of one moment, and work that is timed by
 * its own clock. Work is done once as ever while its launches are recorded, and then BENCH_REPLAYS times more as a
 * graph, each time behind a read pass that empties the second-level cache.
 */
#ifndef HAYATE_CLI_BENCH_GPU_H
#define HAYATE_CLI_BENCH_GPU_H

#include "backend/cuda/bench.h"
#include "base/json.h"
#include "cli/bench_rate.h"

enum { BENCH_REPLAYS = 5 };

typedef struct bench_gpu {
    cuda_bench *bench;
    cuda_bounds bounds; /* of the last moment */
} bench_gpu;

/* What recorded work took: medians of the replays. */
typedef struct bench_gpu_time {
    double seconds, read; /* of the work; bytes a second of the passes before it */
    double host;          /* seconds of once more without a record, by the host's clock, with the wait for its end */
    int launches;
    bool graph;
} bench_gpu_time;

/* Whether --device names one. */
bool bench_gpu_is(const char *device);
/* On the GPU of a backend. *out NULL: its operations run on the host. bytes of a pass, 0: what fits the GPU. HY_NO_FIT.
 */
hy_status bench_gpu_open(const hy_ops *ops, const ops_backend *backend, uint64_t bytes, bench_gpu **out, hy_error *err);
void bench_gpu_close(bench_gpu *g);

/* The bounds now. The peak of bf16 is the faster of mma.sync and wgmma and stands for those of integers, whose products
 * the GPU makes with bf16 as well. */
hy_status bench_gpu_moment(bench_gpu *g, bench_moment *out, hy_error *err);
/* "mma.sync m16n8k16 bf16", ... of what stands for a peak; wgmma: it is the faster one. */
const char *bench_gpu_instruction(bool wgmma, bench_peak which);
/* A line on stdout; the object of JSON. */
void bench_gpu_print_bounds(const cuda_bounds *b);
void bench_gpu_write_bounds(const cuda_bounds *b, json_writer *w);

typedef void (*bench_work_fn)(void *arg);
/* Times what `work` launches: of kernels whose names begin with one of `names` (bench.h), NULL: all. */
hy_status bench_gpu_measure(bench_gpu *g, bench_work_fn work, void *arg, const char *names, bench_gpu_time *out,
                            hy_error *err);
/* The replays of a record; between two of them `each`, if there is one, looks at the marks. */
hy_status bench_gpu_replay(bench_gpu *g, const cuda_record *record, void (*each)(void *arg, int replay), void *arg,
                           bench_gpu_time *out, hy_error *err);

#endif
