#define _GNU_SOURCE /* CPU affinity */

#include "cli/bench_machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/bench_read.h"
#include "cli/cli.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* What follows "key : " on the first such line of /proc/cpuinfo. */
static bool cpu_info(const char *key, char *out, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon) continue;
        colon += strspn(colon, ": \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out, size, "%.*s", (int)size - 1, colon);
        found = true;
    }
    if (f) fclose(f);
    return found;
}

static void add(char *out, size_t size, bool has, const char *name)
{
    size_t n = strlen(out);
    if (has) snprintf(out + n, size - n, "%s%s", n ? " " : "", name);
}

static void instructions(char *out, size_t size)
{
    out[0] = 0;
#if defined(__x86_64__)
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    add(out, size, wide, "avx512");
    add(out, size, wide && __builtin_cpu_supports("avx512vbmi"), "vbmi");
    add(out, size, wide && __builtin_cpu_supports("avx512vnni"), "vnni");
    add(out, size, wide && __builtin_cpu_supports("avx512bf16"), "bf16");
    add(out, size, !wide && __builtin_cpu_supports("avx2"), "avx2");
    add(out, size, !wide && __builtin_cpu_supports("fma"), "fma");
#elif defined(__aarch64__)
    add(out, size, true, "neon");
    add(out, size, getauxval(AT_HWCAP) & (1UL << 20), "dotprod");
    add(out, size, getauxval(AT_HWCAP2) & (1UL << 14), "bf16");
#endif
    add(out, size, !out[0], "portable");
}

/* The word in brackets of "always [madvise] never". */
static void huge_pages(char *out, size_t size)
{
    char line[128] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    char *open = strchr(line, '['), *close = open ? strchr(open, ']') : NULL;
    if (close)
        snprintf(out, size, "%.*s", (int)(close - open - 1), open + 1);
    else
        snprintf(out, size, "unknown");
}

bench_machine bench_machine_read(void)
{
    bench_machine m = {.cache = bench_read_cache_bytes()};
    if (!cpu_info("model name", m.cpu, sizeof m.cpu) && !cpu_info("CPU part", m.cpu, sizeof m.cpu))
        snprintf(m.cpu, sizeof m.cpu, "unknown");
    instructions(m.instructions, sizeof m.instructions);
    huge_pages(m.huge_pages, sizeof m.huge_pages);
    cpu_set_t set;
    m.cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) m.memory = (uint64_t)pages * (uint64_t)page;
    return m;
}

bench_machine bench_machine_of(const hy_ops *ops, const ops_backend *backend)
{
    bench_machine m = bench_machine_read();
    m.has_gpu = cuda_bench_about(ops, backend, &m.gpu);
    return m;
}

static const char *or_unknown(const char *text)
{
    return text && *text ? text : "unknown";
}

static void print_gpu(const gpu_info *g)
{
    char memory[32], cache[32];
    printf("gpu: %s, sm_%d%d, %d multiprocessors", g->name, g->major, g->minor, g->processors);
    if (g->clock > 0) printf(" of up to %.0f MHz", g->clock / 1e6);
    printf(", %s of memory", cli_format_bytes(g->memory, memory));
    if (g->clock_memory > 0) printf(" at %.0f MHz", g->clock_memory / 1e6);
    printf(", second-level cache %s, driver %s, CUDA %s; kernels for %s\n", cli_format_bytes(g->cache, cache),
           or_unknown(g->driver), or_unknown(g->cuda), or_unknown(g->archs));
}

void bench_machine_print(const bench_machine *m)
{
    char memory[32], cache[32];
    printf("machine: %s, %d core%s, %s, %s of memory, last-level cache %s, huge pages %s\n", m->cpu, m->cores,
           m->cores == 1 ? "" : "s", m->instructions, cli_format_bytes(m->memory, memory),
           cli_format_bytes(m->cache, cache), m->huge_pages);
    if (m->has_gpu) print_gpu(&m->gpu);
}

static void write_gpu(const gpu_info *g, json_writer *w)
{
    char capability[16];
    snprintf(capability, sizeof capability, "%d.%d", g->major, g->minor);
    writer_object(w);
    writer_key(w, "name"), writer_text(w, g->name);
    writer_key(w, "compute_capability"), writer_text(w, capability);
    writer_key(w, "multiprocessors"), writer_integer(w, g->processors);
    writer_key(w, "memory_bytes"), writer_unsigned(w, g->memory);
    writer_key(w, "cache_bytes"), writer_unsigned(w, g->cache);
    writer_key(w, "clock_hz"), writer_number(w, g->clock);
    writer_key(w, "memory_clock_hz"), writer_number(w, g->clock_memory);
    writer_key(w, "driver"), writer_text(w, g->driver);
    writer_key(w, "cuda"), writer_text(w, g->cuda);
    writer_key(w, "archs"), writer_text(w, g->archs ? g->archs : "");
    writer_end(w);
}

void bench_machine_write(const bench_machine *m, json_writer *w)
{
    writer_object(w);
    writer_key(w, "cpu"), writer_text(w, m->cpu);
    writer_key(w, "cores"), writer_integer(w, m->cores);
    writer_key(w, "instructions"), writer_text(w, m->instructions);
    writer_key(w, "memory_bytes"), writer_unsigned(w, m->memory);
    writer_key(w, "last_level_cache_bytes"), writer_unsigned(w, m->cache);
    writer_key(w, "huge_pages"), writer_text(w, m->huge_pages);
    if (m->has_gpu) writer_key(w, "gpu"), write_gpu(&m->gpu, w);
    writer_end(w);
}

void bench_write_head(const char *bench, const bench_machine *m, json_writer *w)
{
    char text[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    writer_key(w, "bench"), writer_text(w, bench);
    writer_key(w, "version"), writer_text(w, HY_VERSION);
    writer_key(w, "commit"), writer_text(w, bench_commit);
    writer_key(w, "time"), writer_text(w, text);
    writer_key(w, "machine"), bench_machine_write(m, w);
}
