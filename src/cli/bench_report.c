#include "cli/bench_report.h"

#include <stdio.h>
#include <string.h>

#include "cli/bench_peak.h"
#include "cli/cli.h"

/* ---- Kinds of weights ---------------------------------------------------------------------------------------------
 */

static double operations_of(const bench_cost *cost)
{
    double sum = 0;
    for (int i = 0; i < BENCH_PEAKS; i++) sum += cost->operations[i];
    return sum;
}

static bench_kind_rate rate_of(const bench_cost *cost, double seconds, const bench_moment *moment)
{
    bench_kind_rate rate = {.bytes = bench_cost_bytes(cost), .operations = operations_of(cost), .seconds = seconds};
    if (seconds <= 0) return rate;
    rate.read_fraction = bench_cost_read_seconds(cost, moment->read) / seconds;
    rate.peak_fraction = bench_cost_peak_seconds(cost, moment->peaks) / seconds;
    rate.fraction = rate.read_fraction > rate.peak_fraction ? rate.read_fraction : rate.peak_fraction;
    return rate;
}

bench_kind_rate bench_rate_linear(const bench_result *r)
{
    static const bench_op ops[] = {BENCH_ATTEND_IN, BENCH_ATTEND_OUT, BENCH_FEED_DENSE};
    bench_cost cost = {0};
    double seconds = 0;
    for (int i = 0; i < 3; i++) {
        bench_cost_sum(&cost, &r->op[ops[i]].cost);
        seconds += r->op[ops[i]].seconds;
    }
    return rate_of(&cost, seconds, &r->moment);
}

/* The shared experts' part of what the experts cost. */
static bench_cost shared_cost(const ops_model *m, const bench_result *r)
{
    bench_cost shared = {.bytes = {[BYTES_LINEAR] = r->op[BENCH_EXPERTS].cost.bytes[BYTES_LINEAR]}};
    for (int l = 0; l < m->layers; l++) {
        const ops_layer *layer = &m->layer[l];
        const weight *w[] = {&layer->shared_gate, &layer->shared_up, &layer->shared_down};
        for (int i = 0; i < 3 && layer->moe; i++)
            shared.operations[w[i]->format == WEIGHT_F32 ? PEAK_FP32 : PEAK_BF16] +=
                2.0 * (double)w[i]->rows * (double)w[i]->cols * r->rows;
    }
    return shared;
}

bench_kind_rate bench_rate_experts(const bench_shape *shape, const bench_result *r)
{
    const bench_op_result *op = &r->op[BENCH_EXPERTS];
    if (!op->calls) return (bench_kind_rate){0};
    bench_cost shared = shared_cost(shape->model, r), routed = op->cost;
    routed.bytes[BYTES_LINEAR] = 0;
    for (int i = 0; i < BENCH_PEAKS; i++) routed.operations[i] -= shared.operations[i];
    double linear = bench_rate_linear(r).fraction, beside = bench_cost_bound(&shared, r->moment.read, r->moment.peaks);
    return rate_of(&routed, op->seconds - (linear > 0 ? beside / linear : beside), &r->moment);
}

bench_kind_rate bench_rate_head(const bench_result *r)
{
    const bench_op_result *op = &r->op[BENCH_HEAD];
    return op->calls ? rate_of(&op->cost, op->seconds, &r->moment) : (bench_kind_rate){0};
}

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

/* ---- Tables -------------------------------------------------------------------------------------------------------
 */

void bench_print_heading(const bench_heading *h, const bench_against *against)
{
    char bytes[32];
    const hy_model_info *m = &h->model;
    bench_machine_print(&h->machine);
    printf("model: %s, %d layers, backend %s, cache %s, index cache %s, read-back %s, expert activations %s\n", m->name,
           m->layers, m->backend, m->kv_cache_dtype, m->indexer_kv_dtype, m->readback, m->moe_activation);
    printf("%s: %d thread%s, medians of %d run%s, the head %s, read passes over %s\n", h->bench, h->threads,
           h->threads == 1 ? "" : "s", h->runs, h->runs == 1 ? "" : "s", h->head ? "included" : "left out",
           cli_format_bytes(h->read_bytes, bytes));
    bench_peak_print();
    if (against) bench_against_print(against);
}

static void print_kind(const char *name, bench_kind_rate rate)
{
    if (rate.fraction > 0)
        printf("    %s: %.0f %% of bound (bytes %.0f %%, arithmetic %.0f %%)\n", name, 100 * rate.fraction,
               100 * rate.read_fraction, 100 * rate.peak_fraction);
}

static void print_operations(const bench_result *r)
{
    printf("    %-13s %5s %9s %9s %9s %9s  %-10s %s\n", "operation", "calls", "ms", "MB", "GOP", "bound ms", "bound by",
           "of bound");
    for (int i = 0; i < BENCH_OPS; i++) {
        const bench_op_result *op = &r->op[i];
        if (!op->calls) continue;
        printf("    %-13s %5d %9.3f %9.2f %9.2f %9.3f  %-10s %6.1f %%\n", bench_op_names[i], op->calls,
               1e3 * op->seconds, bench_cost_bytes(&op->cost) / 1e6, operations_of(&op->cost) / 1e9, 1e3 * op->bound,
               op->by_operations ? "operations" : "bytes", 100 * op->fraction);
    }
}

void bench_print_row(const bench_heading *h, const bench_shape *shape, const bench_result *r,
                     const bench_against *against)
{
    bool decode = bench_by_bytes(h->bench);
    printf("\ncontext %d, batch %d: %.2f tokens/s, %.2f ms a step, bound %.2f ms, %.1f %% of it\n", r->context, r->rows,
           r->rows / r->seconds, 1e3 * r->seconds, 1e3 * row_bound(h, r), 100 * row_fraction(h, r));
    printf("    read pass %.1f GB/s; peaks", r->moment.read / 1e9);
    for (int i = 0; i < BENCH_PEAKS; i++)
        printf("%s %s %.0f", i ? "," : "", bench_peak_names[i], r->moment.peaks[i] / 1e9);
    printf(" GOP/s; %.1f MB and %.1f GOP a step\n", bench_cost_bytes(&r->cost) / 1e6, operations_of(&r->cost) / 1e9);
    print_kind("linears", bench_rate_linear(r));
    print_kind("routed experts, less the shared one", bench_rate_experts(shape, r));
    print_kind("head", bench_rate_head(r));
    if (!decode && r->op[BENCH_INDEX].calls)
        printf("    %.2f tokens/s without index_select\n", r->rows / r->without_index);
    const bench_earlier *e = against ? bench_against_find(against, "", r->context, r->rows) : NULL;
    if (e && e->rate > 0 && e->fraction > 0)
        printf("    against: %.3f times the tokens/s (%.2f), %.3f times the share of bound (%.1f %%)\n",
               r->rows / r->seconds / e->rate, e->rate, row_fraction(h, r) / e->fraction, 100 * e->fraction);
    else if (against)
        printf("    against: the file has no such row\n");
    print_operations(r);
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

static void write_model(const hy_model_info *m, json_writer *w)
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
    writer_end(w);
}

static void write_cost(const bench_cost *cost, json_writer *w)
{
    writer_key(w, "bytes");
    writer_object(w);
    for (int i = 0; i < BENCH_KINDS; i++)
        if (cost->bytes[i] > 0) member(w, bench_kind_names[i], cost->bytes[i]);
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
    member(w, "bytes", rate.bytes);
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

static void write_row(const bench_heading *h, const bench_shape *shape, const bench_result *r,
                      const bench_against *against, json_writer *w)
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
    write_rate(w, "linear", bench_rate_linear(r));
    write_rate(w, "routed_experts", bench_rate_experts(shape, r));
    write_rate(w, "head", bench_rate_head(r));
    writer_end(w);
    writer_key(w, "by_operation");
    write_operations(r, w);
    const bench_earlier *e = against ? bench_against_find(against, "", r->context, r->rows) : NULL;
    if (e && e->rate > 0 && e->fraction > 0) {
        member(w, "tokens_per_second_ratio", r->rows / r->seconds / e->rate);
        member(w, "bound_fraction_ratio", row_fraction(h, r) / e->fraction);
    }
    writer_end(w);
}

bool bench_print_json(const bench_heading *h, const bench_shape *shape, const bench_result *rows, int count,
                      const bench_against *against)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    writer_object(&w);
    member_text(&w, "bench", h->bench);
    member_text(&w, "version", HY_VERSION);
    writer_key(&w, "machine"), bench_machine_write(&h->machine, &w);
    writer_key(&w, "model"), write_model(&h->model, &w);
    writer_key(&w, "threads"), writer_integer(&w, h->threads);
    writer_key(&w, "runs"), writer_integer(&w, h->runs);
    writer_key(&w, "head"), writer_bool(&w, h->head);
    writer_key(&w, "read_buffer_bytes"), writer_unsigned(&w, h->read_bytes);
    writer_key(&w, "peak_instructions");
    writer_object(&w);
    for (int i = 0; i < BENCH_PEAKS; i++) member_text(&w, bench_peak_names[i], bench_peak_instruction((bench_peak)i));
    writer_end(&w);
    if (against) writer_key(&w, "against"), bench_against_write(against, &w);
    writer_key(&w, "rows");
    writer_array(&w);
    for (int i = 0; i < count; i++) write_row(h, shape, &rows[i], against, &w);
    writer_end(&w);
    writer_end(&w);
    bool ok = buffer_ok(&b);
    if (ok) printf("%s\n", b.data);
    buffer_free(&b);
    return ok;
}
