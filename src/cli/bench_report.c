#include "cli/bench_report.h"

#include <stdio.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/bench_peak.h"
#include "cli/cli.h"

bool bench_by_bytes(const char *bench)
{
    return !strcmp(bench, "decode");
}

static double row_bound(const bench_heading *h, const bench_result *r)
{
    return bench_by_bytes(h->bench) ? r->read_bound : r->bound;
}

static double row_fraction(const bench_heading *h, const bench_result *r)
{
    return bench_by_bytes(h->bench) ? r->read_fraction : r->fraction;
}

static const bench_earlier *earlier(const bench_against *against, const bench_result *r)
{
    const bench_earlier *e = against ? bench_against_find(against, "", r->context, r->rows) : NULL;
    return e && e->fraction > 0 ? e : NULL;
}

static int compared(const bench_against *against, const bench_result *rows, int count)
{
    int found = 0;
    for (int i = 0; i < count; i++) found += earlier(against, &rows[i]) != NULL;
    return found;
}

/* ---- Tables -------------------------------------------------------------------------------------------------------
 */

static bool streams(const bench_heading *h)
{
    return !strcmp(h->weights, "stream");
}

void bench_print_model(const hy_model_info *m)
{
    printf("model: %s, %d layers, backend %s, cache %s, index cache %s, read-back %s, expert activations %s\n", m->name,
           m->layers, m->backend, m->kv_cache_dtype, m->indexer_kv_dtype, m->readback, m->moe_activation);
}

void bench_print_heading(const bench_heading *h, const bench_against *against)
{
    char bytes[32], memory[32];
    bench_machine_print(&h->machine);
    bench_print_model(&h->model);
    printf("%s: %d thread%s, medians of %d run%s, the head %s, read passes over %s\n", h->bench, h->threads,
           h->threads == 1 ? "" : "s", h->runs, h->runs == 1 ? "" : "s", h->head ? "included" : "left out",
           cli_format_bytes(h->read_bytes, bytes));
    printf("weights: %s, memory: %s\n",
           streams(h) ? "stream (experts come from the files: the bound counts them at the speed of memory and leaves "
                        "the disk out)"
                      : h->weights,
           h->memory    ? cli_format_bytes(h->memory, memory)
           : streams(h) ? "nine tenths of what is free"
                        : "no limit");
    if (h->gpu)
        printf("times are those of the gpu's clock, medians of %d replays a run; so are the bounds\n", BENCH_REPLAYS);
    else
        bench_peak_print();
    if (against) bench_against_print(against);
}

static void print_kind(const char *name, bench_kind_rate rate)
{
    if (rate.fraction > 0)
        printf("    %s: %.1f %% of bound (bytes %.1f %%, arithmetic %.1f %%)\n", name, 100 * rate.fraction,
               100 * rate.read_fraction, 100 * rate.peak_fraction);
}

static void print_operations(const bench_result *r)
{
    bool above = r->fraction > 1 || r->read_fraction > 1;
    printf("    by operation, from a second set of runs in turn with those above:\n");
    printf("    %-13s %5s %9s %9s %9s %9s  %-10s %s\n", "operation", "calls", "ms", "MB", "GOP", "bound ms", "bound by",
           "of bound");
    for (int i = 0; i < BENCH_OPS; i++) {
        const bench_op_result *op = &r->op[i];
        if (!op->calls) continue;
        char bytes[24], operations[24];
        printf("    %-13s %5d %9.3f %9s %9s %9.3f  %-10s %6.1f %%\n", bench_op_names[i], op->calls, 1e3 * op->seconds,
               bench_digits(bench_cost_bytes(&op->cost) / 1e6, bytes),
               bench_digits(bench_rate_operations(&op->cost) / 1e9, operations), 1e3 * op->bound,
               op->by_operations ? "operations" : "bytes", 100 * op->fraction);
        above = above || op->fraction > 1;
    }
    if (above) bench_note_above();
}

static void print_kernels(const bench_result *r)
{
    double sum = 0;
    if (!r->kernels) return;
    for (int i = 0; i < r->kernels; i++) sum += r->kernel[i].seconds;
    printf("    by kernel, each between two events and none early: %.4f ms in all\n    %-28s %8s %10s %10s %8s\n",
           1e3 * sum, "kernel", "launches", "us", "us each", "share");
    for (int i = 0; i < r->kernels; i++) {
        const bench_kernel_time *k = &r->kernel[i];
        printf("    %-28s %8d %10.2f %10.2f %6.1f %%\n", k->name, k->launches, 1e6 * k->seconds,
               1e6 * k->seconds / k->launches, 100 * k->seconds / sum);
    }
}

void bench_print_row(const bench_heading *h, const bench_result *r, const bench_against *against)
{
    static const char *const kind_names[BENCH_RATES] = {"linears", "routed experts, less the shared one", "head"};
    bool decode = bench_by_bytes(h->bench);
    char bytes[24], operations[24];
    printf("\ncontext %d, batch %d: %.2f tokens/s, %.*f ms a step, bound %.*f ms, %.1f %% reached\n", r->context,
           r->rows, r->rows / r->seconds, h->gpu ? 4 : 2, 1e3 * r->seconds, h->gpu ? 4 : 2, 1e3 * row_bound(h, r),
           100 * row_fraction(h, r));
    printf("    read pass %.1f GB/s; peaks", r->moment.read / 1e9);
    for (int i = 0; i < BENCH_PEAKS; i++)
        printf("%s %s %.0f", i ? "," : "", bench_peak_names[i], r->moment.peaks[i] / 1e9);
    printf(" GOP/s; %s MB and %s GOP a step\n", bench_digits(bench_cost_bytes(&r->cost) / 1e6, bytes),
           bench_digits(bench_rate_operations(&r->cost) / 1e9, operations));
    if (h->gpu) {
        double host = r->gpu.host;
        printf("    from the host: %.2f tokens/s, %.3f ms a step, %.1f %% of the bound; %d launches, %s\n",
               r->rows / host, 1e3 * host, 100 * row_bound(h, r) / host, r->gpu.launches,
               r->gpu.graph ? "one graph" : "no graph");
        printf("    "), bench_gpu_print_bounds(&h->gpu->bounds);
    }
    for (int i = 0; i < BENCH_RATES; i++) print_kind(kind_names[i], r->kind[i]);
    if (!decode && r->op[BENCH_INDEX].calls)
        printf("    %.2f tokens/s without index_select\n", r->rows / r->without_index);
    const bench_earlier *e = earlier(against, r);
    if (e)
        printf("    against: %.3f times the tokens/s (%.2f), %.3f times the share of bound (%.1f %%)\n",
               r->rows / r->seconds / e->rate, e->rate, row_fraction(h, r) / e->fraction, 100 * e->fraction);
    else if (against)
        printf("    against: the file has no such row\n");
    print_operations(r);
    print_kernels(r);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------
 */

static void member(json_writer *w, const char *key, double value)
{
    writer_key(w, key);
    writer_number(w, value);
}

static void member_text(json_writer *w, const char *key, const char *value)
{
    writer_key(w, key);
    writer_text(w, value);
}

void bench_write_model(const hy_model_info *m, json_writer *w)
{
    writer_object(w);
    member_text(w, "path", m->path);
    member_text(w, "name", m->name);
    member_text(w, "backend", m->backend);
    member_text(w, "kv_cache_dtype", m->kv_cache_dtype);
    member_text(w, "indexer_kv_dtype", m->indexer_kv_dtype);
    member_text(w, "readback", m->readback);
    member_text(w, "moe_activation", m->moe_activation);
    writer_key(w, "layers"), writer_integer(w, m->layers);
    writer_key(w, "hidden"), writer_integer(w, m->hidden);
    writer_key(w, "vocab"), writer_integer(w, m->vocab);
    if (m->load_seconds > 0) {
        writer_key(w, "load_bytes"), writer_unsigned(w, m->load_bytes);
        member(w, "load_seconds", m->load_seconds);
        member(w, "load_bytes_per_second", (double)m->load_bytes / m->load_seconds);
        member_text(w, "load_way", m->load_way);
    }
    writer_end(w);
}

static void write_cost(const bench_cost *cost, json_writer *w)
{
    writer_key(w, "bytes");
    writer_object(w);
    for (int i = 0; i < BENCH_KINDS; i++)
        if (cost->bytes[i] > 0)
            writer_key(w, bench_kind_names[i]), writer_unsigned(w, (uint64_t)(cost->bytes[i] + 0.5));
    writer_end(w);
    writer_key(w, "operations");
    writer_object(w);
    for (int i = 0; i < BENCH_PEAKS; i++)
        if (cost->operations[i] > 0) member(w, bench_peak_names[i], cost->operations[i]);
    writer_end(w);
}

static void write_rate(json_writer *w, const char *name, bench_kind_rate rate)
{
    if (rate.fraction <= 0) return;
    writer_key(w, name);
    writer_object(w);
    member(w, "seconds", rate.seconds);
    writer_key(w, "bytes"), writer_unsigned(w, (uint64_t)(rate.bytes + 0.5));
    member(w, "operations", rate.operations);
    member(w, "bound_fraction", rate.fraction);
    member(w, "read_fraction", rate.read_fraction);
    member(w, "peak_fraction", rate.peak_fraction);
    writer_end(w);
}

static void write_operations(const bench_result *r, json_writer *w)
{
    writer_array(w);
    for (int i = 0; i < BENCH_OPS; i++) {
        const bench_op_result *op = &r->op[i];
        if (!op->calls) continue;
        writer_object(w);
        member_text(w, "name", bench_op_names[i]);
        writer_key(w, "calls"), writer_integer(w, op->calls);
        member(w, "seconds", op->seconds);
        member(w, "bound_seconds", op->bound);
        member_text(w, "bound", op->by_operations ? "operations" : "bytes");
        member(w, "bound_fraction", op->fraction);
        write_cost(&op->cost, w);
        writer_end(w);
    }
    writer_end(w);
}

static void write_row(const bench_heading *h, const bench_result *r, const bench_against *against, json_writer *w)
{
    writer_object(w);
    writer_key(w, "context"), writer_integer(w, r->context);
    writer_key(w, "batch"), writer_integer(w, r->rows);
    member(w, "tokens_per_second", r->rows / r->seconds);
    member(w, "bound_fraction", row_fraction(h, r));
    member(w, "seconds", r->seconds);
    member(w, "bound_seconds", row_bound(h, r));
    member(w, "read_bound_seconds", r->read_bound);
    member(w, "read_bound_fraction", r->read_fraction);
    member(w, "seconds_without_index_select", r->without_index);
    member(w, "tokens_per_second_without_index_select", r->rows / r->without_index);
    member(w, "read_bytes_per_second", r->moment.read);
    writer_key(w, "peak_operations_per_second");
    writer_object(w);
    for (int i = 0; i < BENCH_PEAKS; i++) member(w, bench_peak_names[i], r->moment.peaks[i]);
    writer_end(w);
    write_cost(&r->cost, w);
    writer_key(w, "kinds");
    writer_object(w);
    write_rate(w, "linear", r->kind[RATE_LINEAR]);
    write_rate(w, "routed_experts", r->kind[RATE_EXPERTS]);
    write_rate(w, "head", r->kind[RATE_HEAD]);
    writer_end(w);
    writer_key(w, "by_operation");
    write_operations(r, w);
    if (h->gpu) {
        member(w, "host_seconds", r->gpu.host);
        member(w, "host_tokens_per_second", r->rows / r->gpu.host);
        member(w, "host_bound_fraction", row_bound(h, r) / r->gpu.host);
        writer_key(w, "launches"), writer_integer(w, r->gpu.launches);
        writer_key(w, "graph"), writer_bool(w, r->gpu.graph);
    }
    if (r->kernels) {
        writer_key(w, "by_kernel");
        writer_array(w);
        for (int i = 0; i < r->kernels; i++) {
            writer_object(w);
            member_text(w, "name", r->kernel[i].name);
            writer_key(w, "launches"), writer_integer(w, r->kernel[i].launches);
            member(w, "seconds", r->kernel[i].seconds);
            writer_end(w);
        }
        writer_end(w);
    }
    const bench_earlier *e = earlier(against, r);
    if (e) {
        member(w, "tokens_per_second_ratio", r->rows / r->seconds / e->rate);
        member(w, "bound_fraction_ratio", row_fraction(h, r) / e->fraction);
    }
    writer_end(w);
}

void bench_print_end(const bench_result *rows, int count, const bench_against *against)
{
    if (against) bench_against_end(against, compared(against, rows, count));
}

bool bench_print_json(const bench_heading *h, const bench_result *rows, int count, const bench_against *against)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    writer_object(&w);
    bench_write_head(h->bench, &h->machine, &w);
    writer_key(&w, "model"), bench_write_model(&h->model, &w);
    writer_key(&w, "threads"), writer_integer(&w, h->threads);
    writer_key(&w, "runs"), writer_integer(&w, h->runs);
    writer_key(&w, "head"), writer_bool(&w, h->head);
    member_text(&w, "weights", h->weights);
    writer_key(&w, "memory"), writer_unsigned(&w, h->memory);
    writer_key(&w, "read_buffer_bytes"), writer_unsigned(&w, h->read_bytes);
    writer_key(&w, "peak_instructions");
    writer_object(&w);
    for (int i = 0; i < BENCH_PEAKS; i++) {
        bench_peak p = (bench_peak)i;
        bool wide = h->gpu && h->gpu->bounds.wgmma > h->gpu->bounds.mma;
        member_text(&w, bench_peak_names[i], h->gpu ? bench_gpu_instruction(wide, p) : bench_peak_instruction(p));
    }
    writer_end(&w);
    if (h->gpu) writer_key(&w, "gpu_bounds"), bench_gpu_write_bounds(&h->gpu->bounds, &w);
    if (against) writer_key(&w, "against"), bench_against_write(against, compared(against, rows, count), &w);
    writer_key(&w, "rows");
    writer_array(&w);
    for (int i = 0; i < count; i++) write_row(h, &rows[i], against, &w);
    writer_end(&w);
    writer_end(&w);
    bool ok = buffer_ok(&b);
    if (ok) printf("%s\n", b.data);
    buffer_free(&b);
    return ok;
}
