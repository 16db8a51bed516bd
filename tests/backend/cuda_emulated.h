/*
 * A GPU on the CPU, for tests: the kernels of src/backend/cuda/kernels, compiled as C++, one fiber a thread, one block
 * after the other on the thread that launches; of a KERNEL_TOGETHER all blocks in turns, which change where a thread
 * counts for the others or waits for them, and so of a KERNEL_NEIGHBOURS those of a cluster.
 *
 * An error that `wait` returns, with kernel, block, thread and line, is
 *   - lanes of a warp that meet at different operations, or do not all come; threads at different barriers; a barrier
 *     that some never reach (threads that have returned count as there);
 *   - an `await` for what no thread that could still run brings;
 *   - an access outside of device memory: allocations end at a page without access, and what lies between their end and
 *     that page, before their start and behind shared arrays is looked at;
 *   - copy_async, load_matrices and load_once at addresses that are not aligned or not of the right memory;
 *   - a launch that CUDA refuses, or whose parameter is of another size or holds an address of the host.
 * Not seen: a value that the kernel reads too early from memory that is not poisoned. Shared memory starts as NaN in
 * every format, what copy_async fetches is NaN until copy_wait, and `order` runs threads in other orders: a test runs
 * in several, and the results must be equal.
 *
 * mma_bf16 adds the 16 products in ascending k, in fp32, each rounded. A tensor core rounds less often.
 */
#ifndef TESTS_BACKEND_CUDA_EMULATED_H
#define TESTS_BACKEND_CUDA_EMULATED_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/cuda/gpu.h"

typedef enum cuda_emulated_order {
    CUDA_EMULATED_FORWARD,
    CUDA_EMULATED_REVERSE, /* blocks, warps and lanes from the last to the first */
    CUDA_EMULATED_RANDOM,  /* of warps and lanes, drawn for each block */
    CUDA_EMULATED_MIXED,   /* one of the three, drawn for each launch */
} cuda_emulated_order;

/* Read at every launch. */
typedef struct cuda_emulated_settings {
    cuda_emulated_order order;
    uint64_t seed;
    size_t memory;   /* bytes that alloc gives in all */
    bool host_guard; /* device memory cannot be touched by the host between calls: slow */
    bool trace;      /* every launch to stderr */
    int major;       /* of the compute capability; 0: 9 */
    int processors;  /* 0: 4 */
} cuda_emulated_settings;
extern cuda_emulated_settings cuda_emulated;

/* As gpu_driver_open; for cuda_open_gpu. Closing aborts with a message if memory was written outside or is left. */
hy_status cuda_emulated_open(gpu **g, hy_error *err);

/* Names of kernels in the program, by number, NULL behind the last; launches since the program began. */
const char *cuda_emulated_kernel(int i);
long cuda_emulated_launches(const char *name);

#ifdef __cplusplus
}

/* cuda_emulated_record.cc: a launch that happens; what gpu.h has for measuring, into a table of calls. */
namespace emulated {
void remember(const gpu_kernel *kernel, const char *name, const int grid[3], int block, size_t shared, const void *args,
              size_t bytes);
void add_measuring(gpu_calls *calls);
} // namespace emulated
#endif

#endif
