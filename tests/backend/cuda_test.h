/*
 * For programs backend/test_cuda_*.c: ops_cuda on the emulated GPU, or with `--gpu` as the first argument on this
 * machine's, where the program ends with 77 and says why if there is none.
 *
 *     int main(int argc, char **argv)
 *     {
 *         if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
 *         ...
 *     }
 *
 * On the emulated GPU every launch takes another order of threads (CUDA_EMULATED_MIXED). For tests of single kernels
 * there are device_take, device_put, device_get and device_run, which fail the running test on an error.
 */
#ifndef TESTS_BACKEND_CUDA_TEST_H
#define TESTS_BACKEND_CUDA_TEST_H

#include "backend/random_model.h"

#include "backend/cuda/cuda.h"
#include "backend/cuda_emulated.h"

enum { CUDA_TEST_SKIPPED = 77 };

static bool cuda_test_on_gpu;

/* Takes `--gpu` out of the arguments. False: skipped. */
static inline bool cuda_test_begin(int *argc, char ***argv)
{
    cuda_emulated.order = CUDA_EMULATED_MIXED;
    if (*argc < 2 || strcmp((*argv)[1], "--gpu")) {
        cuda_open_gpu = cuda_emulated_open;
        return true;
    }
    (*argv)[1] = (*argv)[0];
    --*argc, ++*argv;
    cuda_test_on_gpu = true;
    gpu *g = NULL;
    hy_error err = {0};
    if (gpu_driver_open(&g, &err) != HY_OK) {
        printf("skipped: %s\n", err.message);
        return false;
    }
    gpu_info info;
    g->calls->info(g, &info);
    printf("# on %s\n", info.name);
    g->calls->close(g);
    return true;
}

static inline gpu *device_open(void)
{
    gpu *g = NULL;
    hy_error err = {0};
    check(cuda_open_gpu(&g, &err), &err);
    return g;
}

/* Zeroed. */
static inline void *device_take(gpu *g, size_t bytes)
{
    void *p = NULL;
    hy_error err = {0};
    check(g->calls->alloc(g, bytes, "test memory", &p, &err), &err);
    return p;
}

/* A copy of the host's. */
static inline void *device_put(gpu *g, const void *host, size_t bytes)
{
    void *p = device_take(g, bytes);
    g->calls->write(g, p, host, bytes);
    return p;
}

/* All that was launched is done, without an error; then a copy in memory that the caller frees. */
static inline void *device_get(gpu *g, const void *device, size_t bytes)
{
    void *host = malloc(bytes ? bytes : 1);
    hy_error err = {0};
    assert_non_null(host);
    g->calls->read(g, device, host, bytes);
    check(g->calls->wait(g, &err), &err);
    return host;
}

/* Launches kernel hy_`name`. */
static inline void device_run(gpu *g, const char *name, int grid_x, int grid_y, int grid_z, int block, size_t shared,
                              const void *args, size_t bytes)
{
    char full[64];
    int grid[3] = {grid_x, grid_y, grid_z};
    hy_error err = {0};
    snprintf(full, sizeof full, "hy_%s", name);
    const gpu_kernel *k = g->calls->kernel(g, full);
    if (!k) check(g->calls->wait(g, &err), &err);
    g->calls->launch(g, k, grid, block, shared, args, bytes);
}

#endif
