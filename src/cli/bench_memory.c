/* hayate bench memory: what memory and cores can do, by number of threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/bench.h"
#include "cli/bench_against.h"
#include "cli/bench_memory_gpu.h"
#include "cli/bench_peak.h"
#include "cli/bench_read.h"
#include "cli/bench_step.h"
#include "cli/cli.h"

enum { MAX_RUNS = 1000, MAX_THREADS = 512 };

static const char usage[] = "bench memory [flags]";
static const char about[] =
    "Reads a buffer larger than every cache from end to end, with 1 up to N threads, and runs the loops that multiply "
    "on "
    "registers; with --device cuda the same on a GPU. These are the bounds that the other benches take; here they "
    "stand "
    "alone.\n\n"
    "examples:\n  hayate bench memory\n  hayate bench memory --read-buffer 4GiB --threads 8 --json";

typedef struct memory_row {
    int threads;
    double read, low, high; /* bytes per second: median, slowest, fastest pass */
    double peaks[BENCH_PEAKS];
} memory_row;

typedef struct memory_bench {
    int threads, runs;
    uint64_t bytes;
    bool json;
    const char *against_path, *device;
    bench_against against;
    bench_machine machine;
    bench_read read;
    memory_row row[MAX_THREADS];
    int count;
} memory_bench;

/* Passes and loops in turn, so that both see the same machine. */
static hy_status measure(memory_bench *b, int count, hy_error *err)
{
    threads *pool = NULL;
    memory_row *row = &b->row[b->count];
    double *values = memory_zeroed((size_t)b->runs * (1 + BENCH_PEAKS), sizeof *values);
    hy_status status = values ? threads_open(count, &pool, err) : error_memory(err, "the runs", (size_t)b->runs * 32);
    if (status == HY_OK) threads_watch(pool, cli_interrupted());
    if (status == HY_OK && !b->read.data) status = bench_read_open(b->bytes, pool, &b->read, err);
    *row = (memory_row){.threads = count};
    for (int i = 0; i < b->runs && status == HY_OK; i++) {
        values[i] = bench_read_pass(&b->read, pool);
        for (int p = 0; p < BENCH_PEAKS; p++) values[(p + 1) * b->runs + i] = bench_peak_run((bench_peak)p, pool);
        if (!cli_progress(NULL, "reading", (uint64_t)i + 1, (uint64_t)b->runs, "passes"))
            status = error_set(err, HY_CANCELLED, "the bench was stopped");
    }
    if (status == HY_OK) {
        row->read = bench_median(values, b->runs); /* sorts */
        row->low = values[0], row->high = values[b->runs - 1];
        for (int p = 0; p < BENCH_PEAKS; p++) row->peaks[p] = bench_median(values + (p + 1) * b->runs, b->runs);
        b->count++;
    }
    threads_close(pool);
    memory_free(values);
    return status;
}

static const bench_earlier *earlier(const memory_bench *b, const memory_row *row)
{
    return b->against.root ? bench_against_find(&b->against, "", 0, row->threads) : NULL;
}

static int compared(const memory_bench *b)
{
    int found = 0;
    for (int i = 0; i < b->count; i++) found += earlier(b, &b->row[i]) != NULL;
    return found;
}

static void print_heading(const memory_bench *b)
{
    char bytes[32];
    bench_machine_print(&b->machine);
    printf("memory: medians of %d passes over %s\n", b->runs, cli_format_bytes(b->bytes, bytes));
    bench_peak_print();
    if (b->against.root) bench_against_print(&b->against);
    printf("\n%7s %10s %10s %10s", "threads", "read GB/s", "slowest", "fastest");
    for (int p = 0; p < BENCH_PEAKS; p++) printf(" %6s GOP/s", bench_peak_names[p]);
    printf("%s\n", b->against.root ? "   of earlier" : "");
    fflush(stdout);
}

static void print_row(const memory_bench *b, const memory_row *row)
{
    const bench_earlier *e = earlier(b, row);
    printf("%7d %10.1f %10.1f %10.1f", row->threads, row->read / 1e9, row->low / 1e9, row->high / 1e9);
    for (int p = 0; p < BENCH_PEAKS; p++) printf(" %12.0f", row->peaks[p] / 1e9);
    if (e) printf(" %11.3f x", row->read / e->rate);
    printf("\n");
    fflush(stdout);
}

static void member(json_writer *w, const char *key, double value)
{
    writer_key(w, key);
    writer_number(w, value);
}

static void write_row(const memory_bench *b, const memory_row *row, json_writer *w)
{
    const bench_earlier *e = earlier(b, row);
    writer_object(w);
    writer_key(w, "batch"), writer_integer(w, row->threads); /* what --against finds a row by */
    writer_key(w, "threads"), writer_integer(w, row->threads);
    member(w, "bytes_per_second", row->read);
    member(w, "slowest", row->low);
    member(w, "fastest", row->high);
    writer_key(w, "peak_operations_per_second");
    writer_object(w);
    for (int p = 0; p < BENCH_PEAKS; p++) member(w, bench_peak_names[p], row->peaks[p]);
    writer_end(w);
    if (e) member(w, "bytes_per_second_ratio", row->read / e->rate);
    writer_end(w);
}

static bool print_json(const memory_bench *b)
{
    buffer out = {0};
    json_writer w = {.out = &out};
    writer_object(&w);
    bench_write_head("memory", &b->machine, &w);
    writer_key(&w, "runs"), writer_integer(&w, b->runs);
    writer_key(&w, "read_buffer_bytes"), writer_unsigned(&w, b->read.bytes);
    writer_key(&w, "peak_instructions");
    writer_object(&w);
    for (int p = 0; p < BENCH_PEAKS; p++)
        writer_key(&w, bench_peak_names[p]), writer_text(&w, bench_peak_instruction((bench_peak)p));
    writer_end(&w);
    if (b->against.root) writer_key(&w, "against"), bench_against_write(&b->against, compared(b), &w);
    writer_key(&w, "rows");
    writer_array(&w);
    for (int i = 0; i < b->count; i++) write_row(b, &b->row[i], &w);
    writer_end(&w);
    writer_end(&w);
    bool ok = buffer_ok(&out);
    if (ok) printf("%s\n", out.data);
    buffer_free(&out);
    return ok;
}

static hy_status run(memory_bench *b, hy_error *err)
{
    bool on_gpu = bench_gpu_is(b->device);
    if (!on_gpu && strcmp(b->device, "cpu") && strcmp(b->device, "auto"))
        return error_at(err, HY_USAGE, "--device", "there is no device '%.40s': choose cpu or cuda", b->device);
    b->machine = bench_machine_read();
    if (!b->threads) b->threads = b->machine.cores < MAX_THREADS ? b->machine.cores : MAX_THREADS;
    if (b->threads < 1 || b->threads > MAX_THREADS)
        return error_at(err, HY_USAGE, "--threads", "--threads takes 1 to %d, not %d", MAX_THREADS, b->threads);
    if (b->runs < 1 || b->runs > MAX_RUNS)
        return error_at(err, HY_USAGE, "--runs", "--runs takes 1 to %d, not %d", MAX_RUNS, b->runs);
    if (on_gpu) {
        bench_memory_gpu o = {b->runs, b->bytes, b->json, b->against_path};
        return bench_memory_gpu_run(&o, err);
    }
    hy_status status = HY_OK;
    if (b->against_path) status = bench_against_load(b->against_path, "memory", "bytes_per_second", &b->against, err);
    if (status == HY_OK && b->against.root) bench_against_machine(&b->against, &b->machine);
    if (!b->bytes) b->bytes = bench_read_default_bytes();
    if (status == HY_OK) status = bench_read_check(b->bytes, err);
    if (status == HY_OK) bench_read_warn(b->bytes);
    if (status == HY_OK && !b->json) print_heading(b);
    for (int n = 1; n <= b->threads && status == HY_OK; n++) {
        status = measure(b, n, err);
        if (status == HY_OK && !b->json) print_row(b, &b->row[b->count - 1]);
    }
    if (status == HY_OK && b->json && !print_json(b)) status = error_memory(err, "the JSON", 1 << 20);
    fflush(stdout);
    if (status == HY_OK && b->against.root) bench_against_end(&b->against, compared(b));
    return status;
}

int bench_memory(int argc, char **argv)
{
    memory_bench *b = calloc(1, sizeof *b);
    if (!b) return 1;
    b->runs = 5, b->device = "auto";
    const cli_option flags[] = {
        {"threads", "N", "most threads (default: one per core)", &b->threads, CLI_INT},
        {"runs", "N", "passes whose median is shown (default 5)", &b->runs, CLI_INT},
        {"read-buffer", "SIZE", "bytes of a pass (default: four last-level caches, at most 1/8 of free memory)",
         &b->bytes, CLI_SIZE},
        {"backend", "NAME", "cpu (default), or cuda: a GPU's passes and loops", &b->device, CLI_STRING},
        {"device", "NAME", "the same: auto (default), cpu or cuda", &b->device, CLI_STRING},
        {"against", "FILE", "compare with what --json wrote before", &b->against_path, CLI_STRING},
        {"json", NULL, "one JSON object on stdout instead of a table", &b->json, CLI_FLAG},
    };
    int none = 0;
    int code = cli_parse("bench memory", usage, about, flags, sizeof flags / sizeof *flags, argc, argv, NULL, &none);
    if (code < 0) {
        hy_error err = {0};
        cli_catch_interrupt();
        hy_status status = run(b, &err);
        fflush(stdout);
        if (status != HY_OK) cli_error(&err);
        code = cli_exit(status);
    }
    bench_read_close(&b->read);
    bench_against_close(&b->against);
    free(b);
    return code;
}
