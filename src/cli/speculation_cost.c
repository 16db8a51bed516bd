#include "cli/speculation_cost.h"

#include <math.h>
#include <string.h>

/* Of a core with 512-bit registers and its share of memory: 8 bytes a nanosecond, and the products of the loops in
 * cli/bench_peak.c. Only their ratio counts. */
static const speculation_machine usual = {
    8e9, {[PEAK_INT8] = 250e9, [PEAK_INT16] = 125e9, [PEAK_BF16] = 125e9, [PEAK_FP32] = 80e9}};
/* Of the published drafter: 3.2 tokens a round of seven drafts. */
static const double usual_acceptance = 0.7;
static const int32_t usual_context = 4096;

typedef struct counted {
    const hy_model *model;
    const ops_model *shape;
    bench_shape bench;
    const speculation_machine *machine;
    int batch, drafts;
    int32_t context;
} counted;

static double add(const counted *c, bench_cost *to, const bench_cost *part)
{
    bench_cost_sum(to, part);
    return bench_cost_bound(part, c->machine->read, c->machine->peaks);
}

/* ---- The target ---------------------------------------------------------------------------------------------------
 */

static bench_work work_of(const counted *c)
{
    const ops_model *m = c->shape;
    int64_t rows = (int64_t)c->batch * (1 + c->drafts), seen = c->context;
    bench_work w = {.rows = rows, .logit_rows = rows};
    if (m->experts > 0)
        w.experts =
            (int64_t)llround(m->experts * (1 - pow(1 - (double)m->experts_per_token / m->experts, (double)rows)));
    w.attended = rows * seen * m->kv_heads;
    w.cache_tokens = (int64_t)c->batch * seen * m->kv_heads;
    return w;
}

/* Of a sparse layer: rows of one sequence select much the same blocks. */
static void select_blocks(const counted *c, bench_work *w)
{
    int64_t most = (int64_t)c->shape->index_top * CACHE_BLOCK, seen = c->context;
    if (seen <= most) return;
    w->scored = w->rows * seen, w->index_tokens = (int64_t)c->batch * seen;
    w->attended = w->rows * most * c->shape->kv_heads;
    w->cache_tokens = (int64_t)c->batch * most * c->shape->kv_heads;
}

static void add_target(const counted *c, speculation_step *out)
{
    const bench_work dense = work_of(c);
    bench_work sparse = dense;
    select_blocks(c, &sparse);
    for (int i = -1; i <= c->shape->layers; i++)
        for (int op = 0; op < BENCH_OPS; op++) {
            bool layer = op != BENCH_EMBED && op != BENCH_HEAD, inside = i >= 0 && i < c->shape->layers;
            if (layer != inside || (!layer && (op == BENCH_EMBED) != (i < 0))) continue;
            const ops_layer *l = inside ? &c->shape->layer[i] : NULL;
            if ((op == BENCH_INDEX && !l->sparse) || ((op == BENCH_ROUTE || op == BENCH_EXPERTS) && !l->moe) ||
                (op == BENCH_FEED_DENSE && l->moe))
                continue;
            bench_cost cost = {0};
            bench_cost_add(&c->bench, (bench_op)op, inside ? i : 0, l && l->sparse ? &sparse : &dense, &cost);
            out->target_s += add(c, &out->target, &cost);
        }
}

/* ---- The drafter --------------------------------------------------------------------------------------------------
 */

/* `rows` rows through a weight that is read `times` times. */
static double product(const counted *c, bench_cost *to, const weight *w, int64_t rows, int64_t times)
{
    bench_cost cost = {0};
    if (w->format == WEIGHT_NONE || rows == 0) return 0;
    cost.bytes[BYTES_LINEAR] = (double)weight_bytes(w) * (double)times;
    cost.operations[w->format == WEIGHT_F32 ? PEAK_FP32 : PEAK_BF16] =
        2.0 * (double)w->rows * (double)w->cols * (double)rows;
    return add(c, to, &cost);
}

static void add_context(const counted *c, speculation_step *out)
{
    const ops_drafter *d = c->shape->drafter;
    int64_t rows = (int64_t)c->batch * (1 + c->drafts);
    out->context_s += product(c, &out->context, &d->fc, rows, 1);
    for (int i = 0; i < d->layers; i++) {
        out->context_s += product(c, &out->context, &d->layer[i].k, rows, 1);
        out->context_s += product(c, &out->context, &d->layer[i].v, rows, 1);
    }
}

static void add_draft_attention(const counted *c, speculation_step *out)
{
    const ops_drafter *d = c->shape->drafter;
    double seen = c->context < d->window ? c->context : d->window, rows = (double)c->batch * c->drafts;
    bench_cost cost = {0};
    cost.bytes[BYTES_CACHE] = 2.0 * c->batch * seen * d->kv_heads * (double)cache_vector_bytes(d->cache, d->head_dim);
    cost.operations[PEAK_BF16] = 4.0 * rows * (seen + c->drafts) * d->heads * d->head_dim;
    out->draft_s += add(c, &out->draft, &cost);
}

static void add_draft(const counted *c, speculation_step *out)
{
    const ops_drafter *d = c->shape->drafter;
    int64_t rows = (int64_t)c->batch * c->drafts;
    for (int i = 0; i < d->layers; i++) {
        const ops_draft_layer *l = &d->layer[i];
        const weight *products[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof products / sizeof *products; k++)
            out->draft_s += product(c, &out->draft, products[k], rows, 1);
        add_draft_attention(c, out);
    }
    out->draft_s += product(c, &out->draft, d->head.format == WEIGHT_NONE ? &c->shape->head : &d->head, rows, 1);
    out->draft_s += product(c, &out->draft, &d->markov_out, rows, c->drafts); /* row after row */
}

/* ---- Together -----------------------------------------------------------------------------------------------------
 */

void speculation_cost_step(const hy_model *model, const speculation_machine *machine, int batch, int drafts,
                           int32_t context, speculation_step *out)
{
    hy_model_info info;
    hy_model_describe(model, &info);
    const cache_layout *layout = model_cache_layout(model);
    counted c = {.model = model,
                 .shape = model_ops_model(model),
                 .machine = machine,
                 .batch = batch,
                 .drafts = drafts,
                 .context = context};
    c.bench = (bench_shape){.model = c.shape,
                            .main = layout->main,
                            .index = layout->index,
                            .read = strcmp(info.readback, "e4m3") == 0 ? READBACK_E4M3 : READBACK_EXACT,
                            .activation =
                                strcmp(info.moe_activation, "nvfp4") == 0 ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE};
    *out = (speculation_step){0};
    add_target(&c, out);
    if (!c.shape->drafter || drafts == 0) return;
    add_context(&c, out);
    add_draft(&c, out);
}

double speculation_cost_seconds(const speculation_step *step)
{
    return step->target_s + step->context_s + step->draft_s;
}

double speculation_accepted(double each, int drafts)
{
    double sum = 1, part = 1;
    for (int i = 0; i < drafts; i++) sum += part *= each;
    return sum;
}

void speculation_cost_table(const hy_model *model, int drafts, int most, int by_batch[])
{
    int32_t context = model_max_len(model) < 2 * usual_context ? model_max_len(model) / 2 : usual_context;
    int last = drafts;
    for (int b = 1; b <= most; b++) {
        double best = 0;
        int chosen = 0;
        for (int g = 0; g <= last; g++) {
            speculation_step step;
            speculation_cost_step(model, &usual, b, g, context, &step);
            double rate = speculation_accepted(usual_acceptance, g) / speculation_cost_seconds(&step);
            if (rate > best) best = rate, chosen = g;
        }
        by_batch[b - 1] = last = chosen; /* more sequences never want more drafts */
    }
}
