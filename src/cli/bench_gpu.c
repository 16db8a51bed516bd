#include "cli/bench_gpu.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench_step.h"

bool bench_gpu_is(const char *device)
{
    return device && !strcmp(device, "cuda");
}

hy_status bench_gpu_open(const hy_ops *ops, const ops_backend *backend, uint64_t bytes, bench_gpu **out, hy_error *err)
{
    *out = NULL;
    if (!bench_gpu_is(ops->name)) return HY_OK;
    bench_gpu *g = memory_zeroed(1, sizeof *g);
    if (!g) return error_memory(err, "a GPU's bench", sizeof *g);
    hy_status status = cuda_bench_open(backend, bytes, &g->bench, err);
    if (status == HY_OK)
        *out = g;
    else
        memory_free(g);
    return status;
}

void bench_gpu_close(bench_gpu *g)
{
    if (!g) return;
    cuda_bench_close(g->bench);
    memory_free(g);
}

/* ---- Bounds -------------------------------------------------------------------------------------------------------
 */

hy_status bench_gpu_moment(bench_gpu *g, bench_moment *out, hy_error *err)
{
    hy_status status = cuda_bench_bounds(g->bench, &g->bounds, err);
    const cuda_bounds *b = &g->bounds;
    *out = (bench_moment){.read = b->read};
    for (int i = 0; i < BENCH_PEAKS; i++)
        out->peaks[i] = i == PEAK_FP32 ? b->fma : b->wgmma > b->mma ? b->wgmma : b->mma;
    return status;
}

const char *bench_gpu_instruction(bool wgmma, bench_peak which)
{
    if (which == PEAK_FP32) return "fma.rn.f32";
    return wgmma ? "wgmma m64n256k16 bf16" : "mma.sync m16n8k16 bf16";
}

void bench_gpu_print_bounds(const cuda_bounds *b)
{
    printf("bounds of the gpu: read %.0f GB/s, write %.0f, copy %.0f, from the host %.1f; bf16 mma.sync %.1f TFLOP/s",
           b->read / 1e9, b->write / 1e9, b->copy / 1e9, b->link / 1e9, b->mma / 1e12);
    if (b->wgmma > 0) printf(", wgmma %.1f", b->wgmma / 1e12);
    printf(", fp32 %.1f; multiprocessors at %.0f MHz; a launch of nothing takes %.2f us\n", b->fma / 1e12,
           b->clock / 1e6, 1e6 * b->launch);
}

void bench_gpu_write_bounds(const cuda_bounds *b, json_writer *w)
{
    const struct {
        const char *key;
        double value;
    } all[] = {{"read_bytes_per_second", b->read},
               {"write_bytes_per_second", b->write},
               {"copy_bytes_per_second", b->copy},
               {"link_bytes_per_second", b->link},
               {"mma_bf16_operations_per_second", b->mma},
               {"wgmma_bf16_operations_per_second", b->wgmma},
               {"fp32_operations_per_second", b->fma},
               {"clock_hz", b->clock},
               {"launch_seconds", b->launch}};
    writer_object(w);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        writer_key(w, all[i].key);
        writer_number(w, all[i].value);
    }
    writer_end(w);
}

/* ---- Timed work ----------------------------------------------------------------------------------------------------
 */

hy_status bench_gpu_replay(bench_gpu *g, const cuda_record *record, void (*each)(void *arg, int replay), void *arg,
                           bench_gpu_time *out, hy_error *err)
{
    double seconds[BENCH_REPLAYS], read[BENCH_REPLAYS];
    hy_status status = HY_OK;
    for (int i = 0; i < BENCH_REPLAYS && status == HY_OK; i++) {
        status = cuda_bench_replay(g->bench, record, &seconds[i], &read[i], err);
        if (status == HY_OK && each) each(arg, i);
    }
    if (status != HY_OK) return status;
    out->seconds = bench_median(seconds, BENCH_REPLAYS), out->read = bench_median(read, BENCH_REPLAYS);
    out->launches = record->launches, out->graph = record->graph;
    return HY_OK;
}

hy_status bench_gpu_measure(bench_gpu *g, bench_work_fn work, void *arg, const char *names, bench_gpu_time *out,
                            hy_error *err)
{
    cuda_record record;
    *out = (bench_gpu_time){0};
    work(arg); /* kernels come onto the GPU */
    hy_status status = cuda_bench_wait(g->bench, err);
    if (status != HY_OK) return status;
    double start = clock_seconds();
    work(arg);
    status = cuda_bench_wait(g->bench, err);
    out->host = clock_seconds() - start;
    if (status != HY_OK) return status;
    cuda_bench_record(g->bench, names);
    work(arg);
    status = cuda_bench_recorded(g->bench, &record, err);
    if (status == HY_OK) status = bench_gpu_replay(g, &record, NULL, NULL, out, err);
    if (status == HY_OK && out->launches == 0) status = error_set(err, HY_FAILED, "nothing was launched to be timed");
    cuda_bench_forget(g->bench, &record);
    return status;
}
