/*
 * A GPU as the backend sees it: memory, kernels by name, one stream on which everything happens in order.
 *
 * driver.c does it with the CUDA driver, which it loads at run time; the tests bring another one that runs the same
 * kernels on the CPU, thread by thread (tests/backend/cuda_emulated.h). Addresses are the device's: the host passes them
 * on and never reads through them.
 *
 * Errors: alloc and the two openings return them. Everything else keeps the first error, does nothing from then on, and
 * `wait` returns it.
 */
#ifndef HAYATE_BACKEND_CUDA_GPU_H
#define HAYATE_BACKEND_CUDA_GPU_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct gpu gpu;
typedef struct gpu_kernel gpu_kernel;
typedef struct gpu_record gpu_record; /* launches and marks that can be run again */

enum { GPU_MARKS = 1024, GPU_MARKS_APART = GPU_MARKS - 16 /* that record sets */ };

typedef struct gpu_info {
    char name[128];      /* "NVIDIA H200" */
    int major, minor;    /* compute capability */
    int processors;      /* multiprocessors */
    size_t memory, free; /* bytes */
    size_t shared;       /* most dynamic shared memory of a block, bytes */
    /* For people and benches; "" and 0: not known. */
    size_t cache;             /* second level, bytes */
    double clock, clock_memory; /* highest of the multiprocessors and of the memory, Hz */
    char driver[32], cuda[16];  /* "580.159.04"; the CUDA that it knows, "13.0" */
    const char *archs;          /* that the program has kernels for, "sm_80 sm_90a"; borrowed */
} gpu_info;

enum { GPU_LANE_BYTES = 4 << 20 };

typedef struct gpu_calls {
    void (*close)(gpu *g);
    void (*info)(gpu *g, gpu_info *out);
    /* HY_NO_FIT names `what` and both sizes. Zeroed, aligned to 256 bytes. */
    hy_status (*alloc)(gpu *g, size_t bytes, const char *what, void **device, hy_error *err);
    void (*free)(gpu *g, void *device); /* waits for what runs */
    /* The host's memory may be used again when these return; `read` waits for all that was asked for before. */
    void (*write)(gpu *g, void *device, const void *host, size_t bytes);
    void (*read)(gpu *g, const void *device, void *host, size_t bytes);
    void (*copy)(gpu *g, void *to, const void *from, size_t bytes);
    void (*fill)(gpu *g, void *device, int byte, size_t bytes);
    /* NULL and an error kept, if the program carries none of that name. Borrowed until close. */
    const gpu_kernel *(*kernel)(gpu *g, const char *name);
    /* args: the kernel's one parameter, copied. `block` threads, a multiple of 32; shared: dynamic, bytes. */
    void (*launch)(gpu *g, const gpu_kernel *kernel, const int grid[3], int block, size_t shared, const void *args,
                   size_t bytes);
    /* `read` and `write` beside what runs: from any thread, behind the writes, copies and fills asked for before and nothing
     * else, and done when they return. NULL, both: read and write are that already. */
    void (*read_beside)(gpu *g, const void *device, void *host, size_t bytes);
    void (*write_beside)(gpu *g, void *device, const void *host, size_t bytes);
    /* Until all is done. The error names the kernel that was launched last where it is known; a wait that takes longer
     * than a minute is one (HY_FAILED). */
    hy_status (*wait)(gpu *g, hy_error *err);

    /* Measuring by the GPU's own clock, for benches; one thread's. `mark`: the time at which all that was asked for before
     * is done becomes number i of GPU_MARKS; `between`: seconds from one to the other, for which it waits; 0 after an error. */
    void (*mark)(gpu *g, int i);
    double (*between)(gpu *g, int from, int to);
    /* From `record` to `recorded`, launches of kernels whose names begin with one of `names` ("hy_a,hy_b"; NULL: all; borrowed)
     * and marks happen as ever and are remembered with their parameters; writes, reads, copies and fills are not. `replay`
     * runs them again, as one graph where the driver makes one of them (`graph`); they find in memory what is there then.
     * NULL: an error was kept. apart: mark i comes before launch i, and one more behind the last,
     * below GPU_MARKS_APART. */
    void (*record)(gpu *g, const char *names, bool apart);
    gpu_record *(*recorded)(gpu *g, int *launches, bool *graph);
    void (*replay)(gpu *g, gpu_record *record);
    const char *(*launched)(const gpu_record *record, int i); /* the name of its kernel, borrowed until close */
    void (*forget)(gpu *g, gpu_record *record); /* NULL is nothing */
    /* Seconds in which `bytes` come to the device from the host's pinned memory: those of one slot, over and over. */
    double (*link)(gpu *g, void *device, size_t bytes);

    /*
     * Loading: each of `lanes` threads has a lane of its own, pinned memory in two halves. lane_take: the half that is not in
     * use, of GPU_LANE_BYTES and aligned to 4 KiB, when what was sent of it is on the device; NULL after an error. lane_send:
     * its bytes go to the device behind the fills and writes asked for before, on a stream of the lanes. lanes_join: what is
     * asked for next comes behind all that was sent. lanes_close waits. NULL, all five: write instead.
     */
    hy_status (*lanes_open)(gpu *g, int lanes, hy_error *err);
    void (*lanes_close)(gpu *g);
    uint8_t *(*lane_take)(gpu *g, int lane);
    void (*lane_send)(gpu *g, int lane, void *device, const uint8_t *from, size_t bytes);
    void (*lanes_join)(gpu *g);
} gpu_calls;

struct gpu {
    const gpu_calls *calls;
};

/* Whether `name` begins with one of `names`. */
static inline bool gpu_name_in(const char *names, const char *name)
{
    for (size_t n; names; names = names[n] ? names + n + 1 : NULL) {
        n = strcspn(names, ",");
        if (n && strncmp(names, name, n) == 0) return true;
    }
    return false;
}

/* The first GPU of this machine. HY_FAILED: no driver, one that is too old, or no GPU. HY_UNSUPPORTED: a GPU that this
 * program has no kernels for, or a program that was built without kernels. The message says which and what to do. */
hy_status gpu_driver_open(gpu **g, hy_error *err);

#endif
