#include "cli/bench_rate.h"

double bench_rate_operations(const bench_cost *cost)
{
    double sum = 0;
    for (int i = 0; i < BENCH_PEAKS; i++) sum += cost->operations[i];
    return sum;
}

/* `bound`: seconds, the sum over the operations behind `cost`, so that the share lies between theirs. */
static bench_kind_rate rate_of(const bench_cost *cost, double bound, double seconds, const bench_moment *moment)
{
    bench_kind_rate rate = {
        .bytes = bench_cost_bytes(cost), .operations = bench_rate_operations(cost), .seconds = seconds};
    if (seconds <= 0) return rate;
    rate.read_fraction = bench_cost_read_seconds(cost, moment->read) / seconds;
    rate.peak_fraction = bench_cost_peak_seconds(cost, moment->peaks) / seconds;
    rate.fraction = bound / seconds;
    return rate;
}

static double bound_of(const bench_cost *cost, const bench_moment *moment)
{
    return bench_cost_bound(cost, moment->read, moment->peaks);
}

static bench_kind_rate rate_linear(const bench_run *r)
{
    static const bench_op ops[] = {BENCH_ATTEND_IN, BENCH_ATTEND_OUT, BENCH_FEED_DENSE};
    bench_cost cost = {0};
    double seconds = 0, bound = 0;
    for (int i = 0; i < 3; i++) {
        bench_cost_sum(&cost, &r->cost[ops[i]]);
        seconds += r->seconds[ops[i]];
        bound += bound_of(&r->cost[ops[i]], r->moment);
    }
    return rate_of(&cost, bound, seconds, r->moment);
}

/* The shared experts' part of what the experts cost. */
static bench_cost shared_cost(const ops_model *m, const bench_run *r)
{
    bench_cost shared = {.bytes = {[BYTES_LINEAR] = r->cost[BENCH_EXPERTS].bytes[BYTES_LINEAR]}};
    for (int l = 0; l < m->layers; l++) {
        const ops_layer *layer = &m->layer[l];
        const weight *w[] = {&layer->shared_gate, &layer->shared_up, &layer->shared_down};
        for (int i = 0; i < 3 && layer->moe; i++)
            shared.operations[w[i]->format == WEIGHT_F32 ? PEAK_FP32 : PEAK_BF16] +=
                2.0 * (double)w[i]->rows * (double)w[i]->cols * r->rows;
    }
    return shared;
}

static bench_kind_rate rate_experts(const bench_shape *shape, const bench_run *r)
{
    if (r->seconds[BENCH_EXPERTS] <= 0) return (bench_kind_rate){0};
    bench_cost shared = shared_cost(shape->model, r), routed = r->cost[BENCH_EXPERTS];
    routed.bytes[BYTES_LINEAR] = 0;
    for (int i = 0; i < BENCH_PEAKS; i++) routed.operations[i] -= shared.operations[i];
    double linear = rate_linear(r).fraction, beside = bound_of(&shared, r->moment);
    return rate_of(&routed, bound_of(&routed, r->moment),
                   r->seconds[BENCH_EXPERTS] - (linear > 0 ? beside / linear : beside), r->moment);
}

bench_kind_rate bench_rate(const bench_shape *shape, const bench_run *run, bench_rate_kind kind)
{
    const bench_cost *head = &run->cost[BENCH_HEAD];
    switch (kind) {
    case RATE_LINEAR: return rate_linear(run);
    case RATE_EXPERTS: return rate_experts(shape, run);
    case RATE_HEAD: return rate_of(head, bound_of(head, run->moment), run->seconds[BENCH_HEAD], run->moment);
    case BENCH_RATES: break;
    }
    return (bench_kind_rate){0};
}
