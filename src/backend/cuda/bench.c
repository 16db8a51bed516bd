#include "backend/cuda/bench.h"

#include <assert.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/bounds.h"
#include "base/error.h"
#include "base/memory.h"

enum { LOOP_MOST = 8192, LOOP_BYTES = 64 << 10 /* of the buffer, for a repeat */, LINK_MOST = 128 << 20 };
enum { MARK_BEGIN = CUDA_BENCH_MARKS, MARK_END, MARK_BEFORE, MARK_READ, MARK_AFTER };

struct cuda_bench {
    gpu *gpu;
    bool own; /* closed with this */
    gpu_info info;
    uint8_t *buffer; /* device, [bytes], as the next two */
    uint64_t bytes;  /* a multiple of 32 */
    uint32_t *sums;  /* [sum_count] */
    uint64_t *clocks;
    size_t sum_count;
    cuda_record nothing; /* a pass over no bytes */
};

bool cuda_bench_about(const hy_ops *ops, const ops_backend *backend, gpu_info *out)
{
    gpu *own = NULL;
    hy_error err = {0};
    *out = (gpu_info){.major = 0};
    if (ops != &ops_cuda) return false;
    if (!backend && cuda_open_gpu(&own, &err) != HY_OK) return false;
    gpu *g = own ? own : backend->gpu;
    g->calls->info(g, out);
    if (own) own->calls->close(own);
    return true;
}

uint64_t cuda_bench_bytes(const gpu_info *info)
{
    uint64_t bytes = 16 * (uint64_t)info->cache, least = (uint64_t)1 << 30, most = info->free / 4;
    if (bytes < least) bytes = least;
    return bytes < most ? bytes : most;
}

/* ---- Passes and loops ---------------------------------------------------------------------------------------------
 */

static void launch(cuda_bench *b, const char *name, int blocks, size_t shared, const void *args, size_t bytes)
{
    const gpu_calls *calls = b->gpu->calls;
    const gpu_kernel *kernel = calls->kernel(b->gpu, name);
    int grid[3] = {b->info.processors * blocks, 1, 1};
    if (kernel) calls->launch(b->gpu, kernel, grid, BOUND_THREADS, shared, args, bytes);
}

static void pass(cuda_bench *b, const char *name, const uint8_t *from, uint8_t *to, uint64_t bytes)
{
    bound_pass_args args = {from, to, (int64_t)(bytes / 16), b->sums};
    launch(b, name, BOUND_BLOCKS, 0, &args, sizeof args);
}

static void read_pass(cuda_bench *b)
{
    pass(b, "hy_bound_read", b->buffer, NULL, b->bytes);
}

static int repeats(const cuda_bench *b)
{
    uint64_t n = b->bytes / LOOP_BYTES;
    return n < 1 ? 1 : n > LOOP_MOST ? LOOP_MOST : (int)n;
}

/* Operations of a loop of so many a thread of its blocks. */
static double loop_operations(const cuda_bench *b, double of_thread)
{
    return of_thread * repeats(b) * BOUND_THREADS * BOUND_LOOP_BLOCKS * b->info.processors;
}

static void loop(cuda_bench *b, const char *name)
{
    bound_loop_args args = {repeats(b), (float *)(void *)b->sums, b->clocks};
    launch(b, name, BOUND_LOOP_BLOCKS, 0, &args, sizeof args);
}

/* Operations of bound_wgmma; 0: this GPU has no such thing, or the program no code for it. */
static double loop_wgmma(cuda_bench *b)
{
    int few = (repeats(b) + 3) / 4;
    if (b->info.major != 9 || !b->info.archs || !strstr(b->info.archs, "sm_90a")) return 0;
    bound_loop_args args = {few, (float *)(void *)b->sums, b->clocks};
    launch(b, "hy_bound_wgmma", 1, BOUND_WGMMA_SHARED, &args, sizeof args);
    return 2.0 * 64 * 256 * 16 * BOUND_WGMMA * few * ((double)BOUND_THREADS / 128) * b->info.processors;
}

/* Seconds since MARK_BEGIN. */
static double taken(cuda_bench *b)
{
    b->gpu->calls->mark(b->gpu, MARK_END);
    return b->gpu->calls->between(b->gpu, MARK_BEGIN, MARK_END);
}

static double rate(double work, double seconds)
{
    return seconds > 0 ? work / seconds : 0;
}

hy_status cuda_bench_bounds(cuda_bench *b, cuda_bounds *out, hy_error *err)
{
    const gpu_calls *calls = b->gpu->calls;
    uint64_t half = b->bytes / 2, clocks[2] = {0};
    double chains = BOUND_CHAINS;
    *out = (cuda_bounds){0};
    /* Reading and copying come behind reading, so that no line that is still to be written back is in the cache. */
    read_pass(b);
    calls->mark(b->gpu, MARK_BEGIN);
    read_pass(b);
    out->read = rate((double)b->bytes, taken(b));
    calls->mark(b->gpu, MARK_BEGIN);
    pass(b, "hy_bound_copy", b->buffer, b->buffer + half, half);
    out->copy = rate(2.0 * (double)half, taken(b));
    calls->mark(b->gpu, MARK_BEGIN);
    pass(b, "hy_bound_write", NULL, b->buffer, b->bytes);
    out->write = rate((double)b->bytes, taken(b));
    calls->mark(b->gpu, MARK_BEGIN);
    loop(b, "hy_bound_mma");
    out->mma = rate(loop_operations(b, chains * 4096 / CUDA_WARP), taken(b));
    calls->read(b->gpu, b->clocks, clocks, sizeof clocks);
    out->clock = clocks[1] ? 1e9 * (double)clocks[0] / (double)clocks[1] : 0;
    calls->mark(b->gpu, MARK_BEGIN);
    double wgmma = loop_wgmma(b);
    out->wgmma = rate(wgmma, taken(b));
    calls->mark(b->gpu, MARK_BEGIN);
    loop(b, "hy_bound_fma");
    out->fma = rate(loop_operations(b, 2 * chains * 2), taken(b));
    uint64_t sent = half < LINK_MOST ? half : LINK_MOST;
    out->link = rate((double)sent, calls->link(b->gpu, b->buffer, sent));
    double read;
    return cuda_bench_replay(b, &b->nothing, &out->launch, &read, err);
}

/* ---- Records ------------------------------------------------------------------------------------------------------
 */

void cuda_bench_record(cuda_bench *b, const char *names)
{
    b->gpu->calls->record(b->gpu, names, false);
}

void cuda_bench_record_apart(cuda_bench *b)
{
    b->gpu->calls->record(b->gpu, NULL, true);
}

const char *cuda_bench_launched(const cuda_bench *b, const cuda_record *record, int i)
{
    assert(i >= 0 && i < record->launches);
    return b->gpu->calls->launched(record->record, i);
}

void cuda_bench_mark(cuda_bench *b, int i)
{
    assert(i < CUDA_BENCH_MARKS);
    b->gpu->calls->mark(b->gpu, i);
}

double cuda_bench_between(cuda_bench *b, int from, int to)
{
    return b->gpu->calls->between(b->gpu, from, to);
}

hy_status cuda_bench_wait(cuda_bench *b, hy_error *err)
{
    return b->gpu->calls->wait(b->gpu, err);
}

hy_status cuda_bench_recorded(cuda_bench *b, cuda_record *out, hy_error *err)
{
    *out = (cuda_record){0};
    out->record = b->gpu->calls->recorded(b->gpu, &out->launches, &out->graph);
    hy_status status = b->gpu->calls->wait(b->gpu, err);
    if (status != HY_OK) cuda_bench_forget(b, out);
    return status;
}

hy_status cuda_bench_replay(cuda_bench *b, const cuda_record *record, double *seconds, double *read, hy_error *err)
{
    const gpu_calls *calls = b->gpu->calls;
    calls->mark(b->gpu, MARK_BEFORE);
    read_pass(b);
    calls->mark(b->gpu, MARK_READ);
    calls->replay(b->gpu, record->record);
    calls->mark(b->gpu, MARK_AFTER);
    *read = rate((double)b->bytes, calls->between(b->gpu, MARK_BEFORE, MARK_READ));
    *seconds = calls->between(b->gpu, MARK_READ, MARK_AFTER);
    return calls->wait(b->gpu, err);
}

void cuda_bench_forget(cuda_bench *b, cuda_record *record)
{
    b->gpu->calls->forget(b->gpu, record->record);
    *record = (cuda_record){0};
}

/* ---- Opening ------------------------------------------------------------------------------------------------------
 */

hy_status cuda_bench_open(const ops_backend *backend, uint64_t bytes, cuda_bench **out, hy_error *err)
{
    cuda_bench *b = memory_zeroed(1, sizeof *b);
    if (!b) return error_memory(err, "a bench", sizeof *b);
    hy_status status = HY_OK;
    b->own = !backend;
    if (backend)
        b->gpu = backend->gpu;
    else
        status = cuda_open_gpu(&b->gpu, err);
    if (status == HY_OK) {
        const gpu_calls *calls = b->gpu->calls;
        void *buffer = NULL, *sums = NULL, *clocks = NULL;
        calls->info(b->gpu, &b->info);
        b->bytes = ((bytes ? bytes : cuda_bench_bytes(&b->info)) + 31) / 32 * 32;
        b->sum_count = (size_t)b->info.processors * BOUND_THREADS * BOUND_LOOP_BLOCKS;
        status = calls->alloc(b->gpu, b->bytes, "the buffer of the bench's passes", &buffer, err);
        if (status == HY_OK) status = calls->alloc(b->gpu, 4 * b->sum_count, "the bench's sums", &sums, err);
        if (status == HY_OK) status = calls->alloc(b->gpu, 2 * sizeof(uint64_t), "the bench's clocks", &clocks, err);
        b->buffer = buffer, b->sums = sums, b->clocks = clocks;
        if (status == HY_OK) pass(b, "hy_bound_write", NULL, b->buffer, b->bytes); /* not all zeros */
        if (status == HY_OK) {
            cuda_bench_record(b, NULL);
            pass(b, "hy_bound_read", b->buffer, NULL, 0);
            status = cuda_bench_recorded(b, &b->nothing, err);
        }
    }
    if (status != HY_OK) {
        cuda_bench_close(b);
        return status;
    }
    *out = b;
    return HY_OK;
}

void cuda_bench_close(cuda_bench *b)
{
    if (!b) return;
    if (b->nothing.record) cuda_bench_forget(b, &b->nothing);
    void *device[] = {b->buffer, b->sums, b->clocks};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        if (device[i]) b->gpu->calls->free(b->gpu, device[i]);
    if (b->own && b->gpu) b->gpu->calls->close(b->gpu);
    memory_free(b);
}

const gpu_info *cuda_bench_info(const cuda_bench *b)
{
    return &b->info;
}

uint64_t cuda_bench_buffer(const cuda_bench *b)
{
    return b->bytes;
}
