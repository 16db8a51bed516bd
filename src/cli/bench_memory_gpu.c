#include "cli/bench_memory_gpu.h"

#include <stdio.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/bench_against.h"
#include "cli/bench_gpu.h"
#include "cli/bench_machine.h"
#include "cli/bench_step.h"
#include "cli/cli.h"

enum { SHOWN = 8 };

static const struct {
    const char *name, *unit;
    double per_unit;
    size_t at; /* in cuda_bounds */
    bool bytes;
} shown[SHOWN] = {
    {"read", "GB/s", 1e9, offsetof(cuda_bounds, read), true},
    {"write", "GB/s", 1e9, offsetof(cuda_bounds, write), true},
    {"copy, both directions", "GB/s", 1e9, offsetof(cuda_bounds, copy), true},
    {"from the host", "GB/s", 1e9, offsetof(cuda_bounds, link), true},
    {"bf16 mma.sync", "TFLOP/s", 1e12, offsetof(cuda_bounds, mma), false},
    {"bf16 wgmma", "TFLOP/s", 1e12, offsetof(cuda_bounds, wgmma), false},
    {"fp32", "TFLOP/s", 1e12, offsetof(cuda_bounds, fma), false},
    {"clock", "MHz", 1e6, offsetof(cuda_bounds, clock), false},
};

typedef struct memory_gpu {
    const bench_memory_gpu *o;
    bench_gpu *gpu;
    bench_machine machine;
    bench_against against;
    double launch;    /* median */
    cuda_bounds *run; /* [runs] */
    double median[SHOWN], low[SHOWN], high[SHOWN];
} memory_gpu;

static double value_of(const cuda_bounds *b, int i)
{
    return *(const double *)(const void *)((const char *)b + shown[i].at);
}

static hy_status measure(memory_gpu *m, hy_error *err)
{
    bench_moment warm;
    hy_status status = bench_gpu_moment(m->gpu, &warm, err);
    for (int i = 0; i < m->o->runs && status == HY_OK; i++) {
        status = bench_gpu_moment(m->gpu, &warm, err);
        m->run[i] = m->gpu->bounds;
        if (!cli_progress(NULL, "passes and loops", (uint64_t)i + 1, (uint64_t)m->o->runs, "runs"))
            status = error_set(err, HY_CANCELLED, "the bench was stopped");
    }
    double *values = status == HY_OK ? memory_zeroed((size_t)m->o->runs, sizeof *values) : NULL;
    if (status == HY_OK && !values) status = error_memory(err, "the runs", (size_t)m->o->runs * 8);
    for (int k = 0; k < SHOWN && status == HY_OK; k++) {
        for (int i = 0; i < m->o->runs; i++) values[i] = value_of(&m->run[i], k);
        m->median[k] = bench_median(values, m->o->runs); /* sorts */
        m->low[k] = values[0], m->high[k] = values[m->o->runs - 1];
    }
    for (int i = 0; i < m->o->runs && status == HY_OK; i++) values[i] = m->run[i].launch;
    if (status == HY_OK) m->launch = bench_median(values, m->o->runs);
    memory_free(values);
    return status;
}

static const bench_earlier *earlier(const memory_gpu *m, int i)
{
    return m->against.root ? bench_against_find(&m->against, shown[i].name, 0, 0) : NULL;
}

static int compared(const memory_gpu *m)
{
    int found = 0;
    for (int i = 0; i < SHOWN; i++) found += m->median[i] > 0 && earlier(m, i);
    return found;
}

static void print(const memory_gpu *m)
{
    char bytes[32];
    bench_machine_print(&m->machine);
    printf("memory: medians of %d runs, passes over %s, by the gpu's clock\n", m->o->runs,
           cli_format_bytes(cuda_bench_buffer(m->gpu->bench), bytes));
    if (m->against.root) bench_against_print(&m->against);
    printf("\n%-24s %10s %10s %10s %-8s%s\n", "", "median", "lowest", "highest", "",
           m->against.root ? " of earlier" : "");
    for (int i = 0; i < SHOWN; i++) {
        const bench_earlier *e = earlier(m, i);
        if (m->median[i] <= 0) continue;
        printf("%-24s %10.1f %10.1f %10.1f %-8s", shown[i].name, m->median[i] / shown[i].per_unit,
               m->low[i] / shown[i].per_unit, m->high[i] / shown[i].per_unit, shown[i].unit);
        if (e) printf(" %8.3f x", m->median[i] / e->rate);
        printf("\n");
    }
    printf("%-24s %10.2f %24s\n", "a launch of nothing", 1e6 * m->launch, "us");
}

static void member(json_writer *w, const char *key, double value)
{
    writer_key(w, key);
    writer_number(w, value);
}

static bool print_json(const memory_gpu *m)
{
    buffer out = {0};
    json_writer w = {.out = &out};
    writer_object(&w);
    bench_write_head("memory", &m->machine, &w);
    writer_key(&w, "runs"), writer_integer(&w, m->o->runs);
    writer_key(&w, "read_buffer_bytes"), writer_unsigned(&w, cuda_bench_buffer(m->gpu->bench));
    member(&w, "launch_seconds", m->launch);
    if (m->against.root) writer_key(&w, "against"), bench_against_write(&m->against, compared(m), &w);
    writer_key(&w, "rows");
    writer_array(&w);
    for (int i = 0; i < SHOWN; i++) {
        const bench_earlier *e = earlier(m, i);
        if (m->median[i] <= 0) continue;
        writer_object(&w);
        writer_key(&w, "name"), writer_text(&w, shown[i].name);
        writer_key(&w, "unit"), writer_text(&w, shown[i].bytes            ? "bytes"
                                                : shown[i].per_unit > 1e9 ? "operations"
                                                                          : "cycles");
        member(&w, "per_second", m->median[i]);
        member(&w, "slowest", m->low[i]);
        member(&w, "fastest", m->high[i]);
        if (e) member(&w, "per_second_ratio", m->median[i] / e->rate);
        writer_end(&w);
    }
    writer_end(&w);
    writer_end(&w);
    bool ok = buffer_ok(&out);
    if (ok) printf("%s\n", out.data);
    buffer_free(&out);
    return ok;
}

hy_status bench_memory_gpu_run(const bench_memory_gpu *o, hy_error *err)
{
    memory_gpu m = {.o = o};
    hy_status status = HY_OK;
    if (o->against_path) status = bench_against_load(o->against_path, "memory", "per_second", &m.against, err);
    if (status == HY_OK) status = bench_gpu_open(&ops_cuda, NULL, o->bytes, &m.gpu, err);
    if (status == HY_OK && !(m.run = memory_zeroed((size_t)o->runs, sizeof *m.run)))
        status = error_memory(err, "the runs", (size_t)o->runs * sizeof *m.run);
    if (status == HY_OK) status = measure(&m, err);
    if (status == HY_OK) {
        m.machine = bench_machine_read();
        m.machine.has_gpu = true, m.machine.gpu = *cuda_bench_info(m.gpu->bench);
        if (m.against.root) bench_against_machine(&m.against, &m.machine);
        if (o->json && !print_json(&m)) status = error_memory(err, "the JSON", 1 << 20);
        if (!o->json) print(&m);
        fflush(stdout);
        if (status == HY_OK && m.against.root) bench_against_end(&m.against, compared(&m));
    }
    bench_gpu_close(m.gpu);
    memory_free(m.run);
    bench_against_close(&m.against);
    return status;
}
