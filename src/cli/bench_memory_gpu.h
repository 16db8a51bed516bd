/* hayate bench memory --device cuda: the bounds of a GPU alone. */
#ifndef HAYATE_CLI_BENCH_MEMORY_GPU_H
#define HAYATE_CLI_BENCH_MEMORY_GPU_H

#include "hayate.h"

typedef struct bench_memory_gpu {
    int runs;
    uint64_t bytes; /* of a pass, 0: as cuda_bench_bytes */
    bool json;
    const char *against_path; /* NULL: none */
} bench_memory_gpu;

/* HY_FAILED: no GPU; HY_NO_FIT. */
hy_status bench_memory_gpu_run(const bench_memory_gpu *o, hy_error *err);

#endif
