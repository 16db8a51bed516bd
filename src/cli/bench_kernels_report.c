#include "cli/bench_kernels_report.h"

#include <math.h>
#include <stdio.h>

#include "cli/bench.h"
#include "cli/bench_peak.h"
#include "cli/cli.h"

/* ---- Table --------------------------------------------------------------------------------------------------------
 */

void kernel_report_begin(kernel_report *r)
{
    char bytes[32], threads_now[16];
    if (!r->on_gpu) r->machine = bench_machine_read();
    if (r->against.root) {
        snprintf(threads_now, sizeof threads_now, "%d", r->threads);
        bench_against_machine(&r->against, &r->machine);
        bench_against_setting(&r->against, NULL, "threads", threads_now);
        bench_against_setting(&r->against, NULL, "geometry", r->geometry);
        bench_against_setting(&r->against, NULL, "backend", r->backend);
    }
    if (r->json) return;
    bench_machine_print(&r->machine);
    printf("kernels: sizes of %s, backend %s, %d thread%s, medians of %d run%s, read passes over %s\n", r->geometry,
           r->backend, r->threads, r->threads == 1 ? "" : "s", r->runs, r->runs == 1 ? "" : "s",
           cli_format_bytes(r->read_bytes, bytes));
    if (r->on_gpu)
        printf("times and bounds are by the gpu's clock, medians of %d replays of a record, each behind a read pass\n",
               BENCH_REPLAYS);
    else
        bench_peak_print();
    if (r->wgmma_rows) printf("%d rows and more by warpgroups\n", r->wgmma_rows);
    if (r->against.root) bench_against_print(&r->against);
    fflush(stdout);
}

static int name_width(const kernel_report *r)
{
    return r->on_gpu ? 40 : 24;
}

/* Before the first row, not with the heading: weights are prepared in between. */
static void print_columns(const kernel_report *r)
{
    printf("\n%-*s %5s %8s %10s %9s %9s %8s %9s  %-8s %8s %9s%s\n", name_width(r), "operation", "rows", "context",
           r->on_gpu ? "us" : "ms", "MB", "GOP", "GB/s", "GOP/s", "bound by", "of bound",
           r->on_gpu ? "launches" : "error", r->against.root ? "   speed x" : "");
}

static const bench_earlier *earlier(const kernel_report *r, const kernel_row *row)
{
    return r->against.root ? bench_against_find(&r->against, row->name, row->context, row->rows) : NULL;
}

static int compared(const kernel_report *r)
{
    int found = 0;
    for (int i = 0; i < r->count; i++) found += earlier(r, &r->row[i]) != NULL;
    return found;
}

static void print_row(const kernel_report *r, const kernel_row *row)
{
    const bench_earlier *e = earlier(r, row);
    char bytes[24], operations[24], reads[24], does[24];
    if (row == r->row) print_columns(r);
    printf("%-*s %5d", name_width(r), row->name, row->rows);
    if (row->context)
        printf(" %8lld", (long long)row->context);
    else
        printf(" %8s", "");
    printf(r->on_gpu ? " %10.2f %9s %9s" : " %10.4f %9s %9s", (r->on_gpu ? 1e6 : 1e3) * row->seconds,
           bench_digits(row->bytes / 1e6, bytes), bench_digits(row->operations / 1e9, operations));
    if (row->bound > 0)
        printf(" %8s %9s  %-8s %6.1f %%", bench_digits(row->bytes / row->seconds / 1e9, reads),
               bench_digits(row->operations / row->seconds / 1e9, does), row->binds, 100 * row->fraction);
    else
        printf(" %8s %9s  %-8s %8s", "", "", "", "");
    if (row->gpu.launches)
        printf(" %7d %s", row->gpu.launches, row->gpu.graph ? "g" : " ");
    else if (isnan(row->error))
        printf(" %9s", "");
    else
        printf(" %9.1e", row->error);
    if (e) printf(" %8.3f x", row->rows / row->seconds / e->rate);
    printf("\n");
    fflush(stdout);
}

/* The peak that most of the operations' time goes by. */
static const char *binding_peak(const bench_cost *cost, const bench_moment *moment)
{
    int which = 0;
    double most = 0;
    for (int i = 0; i < BENCH_PEAKS; i++) {
        bench_peak by = bench_cost_peak((bench_peak)i, moment->peaks);
        double seconds = cost->operations[i] / moment->peaks[by];
        if (seconds > most) most = seconds, which = by;
    }
    return bench_peak_names[which];
}

void kernel_report_add(kernel_report *r, const char *name, const char *kind, int32_t rows, int64_t context,
                       const bench_result *from, bench_op op, double error)
{
    const bench_op_result *o = &from->op[op];
    if (r->count == KERNEL_ROWS || !o->calls) return;
    kernel_row *row = &r->row[r->count++];
    *row = (kernel_row){.rows = rows, .context = context, .error = error};
    snprintf(row->name, sizeof row->name, "%s %s", name, kind);
    row->seconds = o->seconds / o->calls, row->bound = o->bound / o->calls, row->fraction = o->fraction;
    row->bytes = bench_cost_bytes(&o->cost) / o->calls;
    for (int i = 0; i < BENCH_PEAKS; i++) row->operations += o->cost.operations[i] / o->calls;
    row->binds = o->by_operations ? binding_peak(&o->cost, &from->moment) : "bytes";
    if (from->moment.read > 0) r->moment = from->moment;
    if (r->gpu) r->bounds = r->gpu->bounds;
    if (!r->json) print_row(r, row);
}

void kernel_report_gpu(kernel_report *r, const char *name, int32_t rows, int64_t context, const bench_cost *cost,
                       int calls, const bench_gpu_time *took, const bench_moment *moment)
{
    if (r->count == KERNEL_ROWS) return;
    kernel_row *row = &r->row[r->count++];
    *row = (kernel_row){.rows = rows, .context = context, .error = NAN, .gpu = *took};
    snprintf(row->name, sizeof row->name, "%s", name);
    row->seconds = took->seconds / calls;
    row->gpu.host = took->host / calls;
    row->bytes = bench_cost_bytes(cost);
    for (int i = 0; i < BENCH_PEAKS; i++) row->operations += cost->operations[i];
    r->moment = *moment;
    r->moment.read = took->read; /* of the same moment */
    row->bound = bench_cost_bound(cost, r->moment.read, r->moment.peaks);
    row->fraction = row->bound / row->seconds;
    bool by_operations = bench_cost_peak_seconds(cost, moment->peaks) > bench_cost_read_seconds(cost, r->moment.read);
    row->binds = by_operations ? binding_peak(cost, moment) : "bytes";
    r->bounds = r->gpu->bounds;
    if (!r->json) print_row(r, row);
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

static void write_row(const kernel_report *r, const kernel_row *row, json_writer *w)
{
    const bench_earlier *e = earlier(r, row);
    writer_object(w);
    member_text(w, "name", row->name);
    writer_key(w, "context"), writer_integer(w, row->context);
    writer_key(w, "batch"), writer_integer(w, row->rows);
    member(w, "seconds", row->seconds);
    member(w, "rows_per_second", row->rows / row->seconds);
    writer_key(w, "bytes"), writer_unsigned(w, (uint64_t)(row->bytes + 0.5));
    member(w, "operations", row->operations);
    if (row->bound > 0) {
        member(w, "bytes_per_second", row->bytes / row->seconds);
        member(w, "operations_per_second", row->operations / row->seconds);
        member(w, "bound_seconds", row->bound);
        member(w, "bound_fraction", row->fraction);
        member_text(w, "bound", row->binds);
    }
    if (!isnan(row->error)) member(w, "error", row->error);
    if (row->gpu.launches) {
        member(w, "read_bytes_per_second", row->gpu.read);
        member(w, "host_seconds", row->gpu.host);
        writer_key(w, "launches"), writer_integer(w, row->gpu.launches);
        writer_key(w, "graph"), writer_bool(w, row->gpu.graph);
    }
    if (e) {
        member(w, "rows_per_second_ratio", row->rows / row->seconds / e->rate);
        if (e->fraction > 0) member(w, "bound_fraction_ratio", row->fraction / e->fraction);
    }
    writer_end(w);
}

static bool print_json(const kernel_report *r)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    writer_object(&w);
    bench_write_head("kernels", &r->machine, &w);
    member_text(&w, "geometry", r->geometry);
    member_text(&w, "backend", r->backend);
    writer_key(&w, "threads"), writer_integer(&w, r->threads);
    writer_key(&w, "runs"), writer_integer(&w, r->runs);
    writer_key(&w, "read_buffer_bytes"), writer_unsigned(&w, r->read_bytes);
    member(&w, "read_bytes_per_second", r->moment.read);
    writer_key(&w, "peak_operations_per_second");
    writer_object(&w);
    for (int i = 0; i < BENCH_PEAKS; i++) member(&w, bench_peak_names[i], r->moment.peaks[i]);
    writer_end(&w);
    writer_key(&w, "peak_instructions");
    writer_object(&w);
    for (int i = 0; i < BENCH_PEAKS; i++) {
        bench_peak p = (bench_peak)i;
        bool wide = r->bounds.wgmma > r->bounds.mma;
        member_text(&w, bench_peak_names[i], r->on_gpu ? bench_gpu_instruction(wide, p) : bench_peak_instruction(p));
    }
    writer_end(&w);
    if (r->on_gpu) {
        writer_key(&w, "gpu_wgmma_rows"), writer_integer(&w, r->wgmma_rows);
        writer_key(&w, "gpu_bounds"), bench_gpu_write_bounds(&r->bounds, &w);
    }
    if (r->against.root) writer_key(&w, "against"), bench_against_write(&r->against, compared(r), &w);
    writer_key(&w, "rows");
    writer_array(&w);
    for (int i = 0; i < r->count; i++) write_row(r, &r->row[i], &w);
    writer_end(&w);
    writer_end(&w);
    bool ok = buffer_ok(&b);
    if (ok) printf("%s\n", b.data);
    buffer_free(&b);
    return ok;
}

static void print_end(const kernel_report *r)
{
    bool above = false;
    for (int i = 0; i < r->count; i++) above = above || r->row[i].fraction > 1;
    if (above) bench_note_above();
    if (r->on_gpu) {
        printf("\n");
        bench_gpu_print_bounds(&r->bounds);
        return;
    }
    printf("\nread pass %.1f GB/s; peaks", r->moment.read / 1e9);
    for (int i = 0; i < BENCH_PEAKS; i++)
        printf("%s %s %.0f", i ? "," : "", bench_peak_names[i], r->moment.peaks[i] / 1e9);
    printf(" GOP/s, at the end\n");
    for (int i = 0; i < r->count; i++) {
        const kernel_row *row = &r->row[i];
        if (row->context < 65536 || row->bound <= 0) continue;
        printf("%s over %lld tokens: %.2f ns a token and core, %.2f ms a core\n", row->name, (long long)row->context,
               1e9 * row->seconds * r->threads / (double)row->context, 1e3 * row->seconds * r->threads);
    }
}

bool kernel_report_end(kernel_report *r)
{
    bool ok = true;
    if (r->json)
        ok = print_json(r);
    else
        print_end(r);
    fflush(stdout);
    if (ok && r->against.root) bench_against_end(&r->against, compared(r));
    return ok;
}

void kernel_report_free(kernel_report *r)
{
    bench_against_close(&r->against);
}
