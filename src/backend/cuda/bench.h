/*
 * What `hayate bench` asks of a GPU: how fast it is now, and how long launches take by its own clock. The one header of this
 * folder that is not private to it.
 *
 * The bounds are passes over a buffer of several second-level caches and loops that only multiply (kernels/bounds.cu). What is
 * timed is recorded while it runs as ever, and then run again, as a graph, behind a read pass that leaves nothing of it in the
 * cache. That pass is the memory's bandwidth of the same moment.
 */
#ifndef HAYATE_BACKEND_CUDA_BENCH_H
#define HAYATE_BACKEND_CUDA_BENCH_H

#include "backend/cuda/gpu.h"
#include "backend/ops.h"

typedef struct cuda_bench cuda_bench;

typedef struct cuda_bounds { /* bytes and operations a second; 0: this GPU has no such thing */
    double read, write, copy; /* copy: both directions counted */
    double link;              /* from the host's pinned memory to the GPU */
    double mma, wgmma, fma;   /* bf16 mma.sync, bf16 wgmma, fp32 on the plain units; an fma is two operations */
    double clock;             /* of the multiprocessors during bound_mma, Hz */
    double launch;            /* seconds of a record of one kernel that does nothing: in all that cuda_bench_replay gives */
} cuda_bounds;

enum { CUDA_BENCH_MARKS = GPU_MARKS_APART }; /* for the caller: numbers below it */

/* The GPU of a backend, or of this machine with NULL. False, zeroed: its operations run elsewhere, or there is none. */
bool cuda_bench_about(const hy_ops *ops, const ops_backend *backend, gpu_info *out);
/* The buffer that a GPU asks for: sixteen second-level caches, at least 1 GiB, at most a quarter of what is free. */
uint64_t cuda_bench_bytes(const gpu_info *info);

/* Buffers on the GPU of a backend, which is borrowed; NULL: the machine's first, opened for itself. `bytes` of a pass, 0:
 * cuda_bench_bytes; the loops are as long as a buffer is large, up to a millisecond or two. HY_NO_FIT. */
hy_status cuda_bench_open(const ops_backend *backend, uint64_t bytes, cuda_bench **out, hy_error *err);
void cuda_bench_close(cuda_bench *b);
const gpu_info *cuda_bench_info(const cuda_bench *b);
uint64_t cuda_bench_buffer(const cuda_bench *b); /* bytes of a pass */

/* All bounds, one pass or loop each. */
hy_status cuda_bench_bounds(cuda_bench *b, cuda_bounds *out, hy_error *err);

/* From here on launches of kernels whose names begin with one of `names` ("hy_a,hy_b") are remembered; NULL: all. */
void cuda_bench_record(cuda_bench *b, const char *names);
/* The same of all launches, with mark i before launch i and one behind the last, of those below CUDA_BENCH_MARKS. */
void cuda_bench_record_apart(cuda_bench *b);
/* The time at which all that was asked for before is done. */
void cuda_bench_mark(cuda_bench *b, int i);
double cuda_bench_between(cuda_bench *b, int from, int to);

/* Until all is done. */
hy_status cuda_bench_wait(cuda_bench *b, hy_error *err);

typedef struct cuda_record {
    gpu_record *record;
    int launches;
    bool graph; /* it is run as one */
} cuda_record;

hy_status cuda_bench_recorded(cuda_bench *b, cuda_record *out, hy_error *err);
const char *cuda_bench_launched(const cuda_bench *b, const cuda_record *record, int i); /* "hy_norm" */
/* Seconds of one replay behind a read pass, and bytes a second of that pass. */
hy_status cuda_bench_replay(cuda_bench *b, const cuda_record *record, double *seconds, double *read, hy_error *err);
void cuda_bench_forget(cuda_bench *b, cuda_record *record);

#endif
