#include "cli/bench_step.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench_peak.h"
#include "model/forward.h"

/* ---- Moments ---------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int n)
{
    assert(values && n > 0);
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static void take_peaks(const bench_setup *setup, bench_moment *m)
{
    for (int i = 0; i < BENCH_PEAKS; i++) m->peaks[i] = bench_peak_run((bench_peak)i, setup->pool);
}

bench_moment bench_moment_take(const bench_setup *setup)
{
    bench_moment m = {.read = bench_read_pass(setup->read, setup->pool)};
    take_peaks(setup, &m);
    m.read = (m.read + bench_read_pass(setup->read, setup->pool)) / 2;
    return m;
}

/* ---- One timed step by operation -------------------------------------------------------------------------------- */

/* One run. */
typedef struct run_times {
    bench_moment moment;
    bench_gpu_time gpu; /* of a whole step */
    double whole;       /* seconds */
    double seconds[BENCH_OPS];
    int calls[BENCH_OPS];
    bench_cost cost[BENCH_OPS];
} run_times;

typedef struct measuring {
    const bench_setup *setup;
    const bench_rows *rows;
    bench_work work;   /* of the layer that runs */
    int32_t *selected; /* [rows, index_heads, index_top] or [rows, experts_per_token] as read back */
    uint8_t *seen;
    float *barrier; /* [hidden] */
    run_times *now;
    /* On a GPU: mark i is before operation i, one more behind the last. */
    bench_op mark_op[CUDA_BENCH_MARKS];
    int marks;
    double replayed[BENCH_REPLAYS][BENCH_OPS]; /* seconds */
} measuring;

static void call(const hy_ops *ops, bench_op op, ops_step *step, int layer)
{
    switch (op) {
    case BENCH_EMBED: ops->embed(step); break;
    case BENCH_ATTEND_IN: ops->attend_in(step, layer); break;
    case BENCH_INDEX: ops->index_select(step, layer); break;
    case BENCH_ATTEND: ops->attend(step, layer); break;
    case BENCH_ATTEND_OUT: ops->attend_out(step, layer); break;
    case BENCH_ROUTE: ops->route(step, layer); break;
    case BENCH_EXPERTS: ops->experts(step, layer); break;
    case BENCH_FEED_DENSE: ops->feed_dense(step, layer); break;
    case BENCH_HEAD: ops->head(step); break;
    case BENCH_OPS: break;
    }
}

/* Runs and times one operation. Reading a tensor waits for a backend that works in the background; a GPU's is marked.
 */
static void timed(measuring *m, bench_op op, int layer)
{
    const bench_setup *s = m->setup;
    if (s->gpu) {
        m->mark_op[m->marks] = op;
        cuda_bench_mark(s->gpu->bench, m->marks++);
        call(s->ops, op, s->step, layer);
        m->now->calls[op]++;
        return;
    }
    double start = clock_seconds();
    call(s->ops, op, s->step, layer);
    s->ops->tensor_read(s->step, OPS_X, 0, 1, m->barrier);
    m->now->seconds[op] += clock_seconds() - start;
    m->now->calls[op]++;
}

/* Then what was computed, and is read back, is not what the step would have. */
static bool stopped(const measuring *m)
{
    return threads_stopped(m->setup->pool);
}

static hy_status cancelled(hy_error *err)
{
    return error_set(err, HY_CANCELLED, "the bench was stopped");
}

static void counted(measuring *m, bench_op op, int layer)
{
    bench_cost_add(&m->setup->shape, op, layer, &m->work, &m->now->cost[op]);
}

static void run_attention(measuring *m, int layer)
{
    const bench_setup *s = m->setup;
    const ops_rows *rows = &m->rows->ops;
    bool sparse = s->shape.model->layer[layer].sparse;
    timed(m, BENCH_ATTEND_IN, layer);
    counted(m, BENCH_ATTEND_IN, layer);
    if (sparse) {
        timed(m, BENCH_INDEX, layer);
        if (stopped(m)) return;
        s->ops->tensor_read(s->step, OPS_BLOCKS, 0, rows->count, m->selected);
    }
    bench_count_attention(s->shape.model, rows, sparse ? m->selected : NULL, m->seen, &m->work);
    if (sparse) counted(m, BENCH_INDEX, layer);
    timed(m, BENCH_ATTEND, layer);
    counted(m, BENCH_ATTEND, layer);
    timed(m, BENCH_ATTEND_OUT, layer);
    counted(m, BENCH_ATTEND_OUT, layer);
}

static void run_feed(measuring *m, int layer)
{
    const bench_setup *s = m->setup;
    const ops_rows *rows = &m->rows->ops;
    if (!s->shape.model->layer[layer].moe) {
        timed(m, BENCH_FEED_DENSE, layer);
        counted(m, BENCH_FEED_DENSE, layer);
        return;
    }
    timed(m, BENCH_ROUTE, layer);
    counted(m, BENCH_ROUTE, layer);
    if (stopped(m)) return;
    s->ops->tensor_read(s->step, OPS_ROUTES, 0, rows->count, m->selected);
    m->work.experts = bench_count_experts(s->shape.model, rows->count, m->selected, m->seen);
    timed(m, BENCH_EXPERTS, layer);
    counted(m, BENCH_EXPERTS, layer);
}

static hy_status run_by_operation(measuring *m, hy_error *err)
{
    const bench_setup *s = m->setup;
    const ops_rows *rows = &m->rows->ops;
    m->work = (bench_work){.rows = rows->count};
    for (int32_t t = 0; t < rows->count; t++) m->work.logit_rows += (rows->flags[t] & ROW_LOGITS) != 0;
    s->ops->begin(s->step, s->cache, rows);
    timed(m, BENCH_EMBED, 0);
    counted(m, BENCH_EMBED, 0);
    for (int l = 0; l < s->shape.model->layers && !stopped(m); l++) {
        run_attention(m, l);
        if (!stopped(m)) run_feed(m, l);
    }
    if (m->work.logit_rows) {
        timed(m, BENCH_HEAD, 0);
        counted(m, BENCH_HEAD, 0);
    }
    return s->ops->finish(s->step, err);
}

static hy_status run_whole(measuring *m, hy_error *err)
{
    const bench_setup *s = m->setup;
    double start = clock_seconds();
    forward_run(s->model, s->step, s->cache, &m->rows->ops, false, NULL);
    hy_status status = s->ops->finish(s->step, err);
    m->now->whole = clock_seconds() - start;
    return status;
}

/* ---- On a GPU --------------------------------------------------------------------------------------------------- */

/* The marks of one replay. */
static void take_marks(void *arg, int replay)
{
    measuring *m = arg;
    for (int i = 0; i < m->marks; i++)
        m->replayed[replay][m->mark_op[i]] += cuda_bench_between(m->setup->gpu->bench, i, i + 1);
}

static hy_status run_recorded(measuring *m, bool whole, hy_error *err)
{
    bench_gpu *g = m->setup->gpu;
    cuda_record record;
    hy_error of_run = {0};
    m->marks = 0;
    memset(m->replayed, 0, sizeof m->replayed);
    cuda_bench_record(g->bench, NULL);
    hy_status ran = whole ? run_whole(m, &of_run) : run_by_operation(m, &of_run);
    if (!whole) cuda_bench_mark(g->bench, m->marks);
    hy_status status = cuda_bench_recorded(g->bench, &record, err);
    if (ran != HY_OK && status == HY_OK) {
        *err = of_run;
        status = ran;
    }
    if (status == HY_OK) status = bench_gpu_replay(g, &record, whole ? NULL : take_marks, m, &m->now->gpu, err);
    cuda_bench_forget(g->bench, &record);
    for (int op = 0; op < BENCH_OPS && !whole && status == HY_OK; op++) {
        double values[BENCH_REPLAYS];
        for (int i = 0; i < BENCH_REPLAYS; i++) values[i] = m->replayed[i][op];
        m->now->seconds[op] = bench_median(values, BENCH_REPLAYS);
    }
    return status;
}

/* A whole step runs a few times before the host's clock is looked at: what comes again and again becomes a graph. */
static hy_status run_on_gpu(measuring *m, bool whole, hy_error *err)
{
    enum { BEFORE = 3 };
    double host = 0;
    hy_status status = bench_gpu_moment(m->setup->gpu, &m->now->moment, err);
    for (int i = 0; i <= BEFORE && whole && status == HY_OK; i++) {
        status = run_whole(m, err);
        host = m->now->whole;
    }
    if (status == HY_OK) status = run_recorded(m, whole, err);
    m->now->moment.read = m->now->gpu.read;
    m->now->gpu.host = host;
    if (whole) m->now->whole = m->now->gpu.seconds;
    return status;
}

typedef struct kernel_times {
    const measuring *m;
    const cuda_record *record;
    bench_kernel_time *kernel;
    int count;
    double seconds[BENCH_MOST_KERNELS][BENCH_REPLAYS];
} kernel_times;

/* The place of a kernel, which is new at first; the last place is that of all for which there is none. */
static int place_of(kernel_times *k, const char *name)
{
    int i = 0;
    while (i < k->count && strcmp(k->kernel[i].name, name) != 0) i++;
    if (i == BENCH_MOST_KERNELS) return i - 1;
    if (i == k->count) k->kernel[k->count++] = (bench_kernel_time){.name = name};
    return i;
}

static void take_kernels(void *arg, int replay)
{
    kernel_times *k = arg;
    cuda_bench *b = k->m->setup->gpu->bench;
    for (int i = 0; i < k->record->launches && i + 1 < CUDA_BENCH_MARKS; i++) {
        int at = place_of(k, cuda_bench_launched(b, k->record, i));
        k->kernel[at].launches += replay == 0;
        k->seconds[at][replay] += cuda_bench_between(b, i, i + 1);
    }
}

static int by_time(const void *a, const void *b)
{
    double x = ((const bench_kernel_time *)a)->seconds, y = ((const bench_kernel_time *)b)->seconds;
    return (x < y) - (x > y);
}

/* One more step, of the rows of the last run. */
static hy_status run_kernels(measuring *m, bench_result *out, hy_error *err)
{
    bench_gpu *g = m->setup->gpu;
    run_times scratch = {0};
    cuda_record record;
    bench_gpu_time took;
    kernel_times *k = memory_zeroed(1, sizeof *k);
    if (!k) return error_memory(err, "the times of kernels", sizeof *k);
    *k = (kernel_times){.m = m, .record = &record, .kernel = out->kernel};
    m->now = &scratch;
    cuda_bench_record_apart(g->bench);
    hy_error of_run = {0};
    hy_status ran = run_whole(m, &of_run), status = cuda_bench_recorded(g->bench, &record, err);
    if (status == HY_OK && ran != HY_OK) *err = of_run, status = ran;
    if (status == HY_OK) status = bench_gpu_replay(g, &record, take_kernels, k, &took, err);
    for (int i = 0; i < k->count && status == HY_OK; i++)
        out->kernel[i].seconds = bench_median(k->seconds[i], BENCH_REPLAYS);
    out->kernels = k->count;
    qsort(out->kernel, (size_t)out->kernels, sizeof *out->kernel, by_time);
    cuda_bench_forget(g->bench, &record);
    m->now = NULL;
    memory_free(k);
    return status;
}

/* ---- Medians ---------------------------------------------------------------------------------------------------- */

/* Over runs: MEDIAN(out, expression of the run *t). */
#define MEDIAN(out, expression)                                                                                        \
    do {                                                                                                               \
        for (int run_ = 0; run_ < runs; run_++) {                                                                      \
            const run_times *t = &times[run_];                                                                         \
            values[run_] = (expression);                                                                               \
        }                                                                                                              \
        (out) = bench_median(values, runs);                                                                            \
    } while (0)

static double step_bound(const run_times *t)
{
    double sum = 0;
    for (int i = 0; i < BENCH_OPS; i++) sum += bench_cost_bound(&t->cost[i], t->moment.read, t->moment.peaks);
    return sum;
}

static double step_read_bound(const run_times *t)
{
    double sum = 0;
    for (int i = 0; i < BENCH_OPS; i++) sum += bench_cost_read_seconds(&t->cost[i], t->moment.read);
    return sum;
}

static void op_medians(const run_times *times, int runs, double *values, bench_op op, bench_op_result *out)
{
    const run_times *last = &times[runs - 1];
    out->calls = last->calls[op];
    out->cost = last->cost[op];
    MEDIAN(out->seconds, t->seconds[op]);
    MEDIAN(out->bound, bench_cost_bound(&t->cost[op], t->moment.read, t->moment.peaks));
    MEDIAN(out->fraction,
           t->seconds[op] > 0 ? bench_cost_bound(&t->cost[op], t->moment.read, t->moment.peaks) / t->seconds[op] : 0);
    out->by_operations = bench_cost_peak_seconds(&out->cost, last->moment.peaks) >
                         bench_cost_read_seconds(&out->cost, last->moment.read);
}

static bench_kind_rate rate_in(const bench_shape *shape, const run_times *t, int32_t rows, bench_rate_kind kind)
{
    return bench_rate(shape, &(bench_run){&t->moment, t->cost, t->seconds, rows}, kind);
}

/* Shares are medians over the runs, as those of the operations are; bytes and operations the last run's. */
static void kind_medians(const bench_shape *shape, const run_times *times, int runs, double *values, int32_t rows,
                         bench_rate_kind kind, bench_kind_rate *out)
{
    *out = rate_in(shape, &times[runs - 1], rows, kind);
    MEDIAN(out->seconds, rate_in(shape, t, rows, kind).seconds);
    MEDIAN(out->read_fraction, rate_in(shape, t, rows, kind).read_fraction);
    MEDIAN(out->peak_fraction, rate_in(shape, t, rows, kind).peak_fraction);
    MEDIAN(out->fraction, rate_in(shape, t, rows, kind).fraction);
}

/* `whole` and `by_op` [runs] of the same rows run for run, so the costs of the second belong to the first as well. */
static void medians(const bench_shape *shape, const run_times *whole, const run_times *by_op, int runs, double *values,
                    bench_result *out)
{
    const run_times *times = whole;
    MEDIAN(out->seconds, t->whole);
    out->gpu = times[runs - 1].gpu;
    MEDIAN(out->gpu.host, t->gpu.host);
    MEDIAN(out->read_bound, step_read_bound(t));
    MEDIAN(out->bound, step_bound(t));
    MEDIAN(out->read_fraction, step_read_bound(t) / t->whole);
    MEDIAN(out->fraction, step_bound(t) / t->whole);
    MEDIAN(out->moment.read, t->moment.read);
    for (int i = 0; i < BENCH_PEAKS; i++) MEDIAN(out->moment.peaks[i], t->moment.peaks[i]);
    for (int i = 0; i < BENCH_OPS; i++) {
        op_medians(by_op, runs, values, (bench_op)i, &out->op[i]);
        bench_cost_sum(&out->cost, &out->op[i].cost);
    }
    for (int i = 0; i < BENCH_RATES; i++)
        kind_medians(shape, by_op, runs, values, out->rows, (bench_rate_kind)i, &out->kind[i]);
    out->without_index = out->seconds - out->op[BENCH_INDEX].seconds;
}

/* ---- Measuring -------------------------------------------------------------------------------------------------- */

static hy_status one_run(measuring *m, bool whole, hy_error *err)
{
    const bench_setup *s = m->setup;
    if (s->gpu) {
        hy_status ran = run_on_gpu(m, whole, err);
        return ran == HY_OK && stopped(m) ? cancelled(err) : ran;
    }
    take_peaks(s, &m->now->moment);
    double before = bench_read_pass(s->read, s->pool);
    hy_status status = whole ? run_whole(m, err) : run_by_operation(m, err);
    if (stopped(m)) return cancelled(err);
    m->now->moment.read = (before + bench_read_pass(s->read, s->pool)) / 2;
    return status;
}

typedef struct shape_of_rows {
    int32_t sequences, context, count;
    bool head;
} shape_of_rows;

static hy_status all_runs(measuring *m, bench_rows *rows, shape_of_rows shape, int runs, run_times *whole,
                          run_times *by_op, hy_progress_fn on_progress, hy_error *err)
{
    char what[96];
    bool both = m->setup->model != NULL; /* else whole steps are only sums of what was timed */
    snprintf(what, sizeof what, "context %d, %d row%s, 1 to warm up + %d%s by operation:", shape.context, shape.count,
             shape.count == 1 ? "" : "s", runs, both ? " whole + as many" : "");
    progress p = {.fn = on_progress, .what = what, .unit = "steps", .total = (both ? 2 : 1) * (uint64_t)runs + 1};
    hy_status status = HY_OK;
    run_times warm = {0};
    for (int i = -1; i < 2 * runs && status == HY_OK; i++) {
        int run = i < 0 ? 0 : i / 2; /* the two kinds in turn, on the same rows */
        bench_rows_set(rows, shape.sequences, shape.context, shape.count, shape.head, m->setup->shape.model->vocab,
                       (uint64_t)run * 1000003 + 17);
        bool is_whole = i < 0 ? false : i % 2;
        m->now = i < 0 ? &warm : is_whole ? &whole[run] : &by_op[run];
        if (is_whole && !both) {
            for (int op = 0; op < BENCH_OPS; op++) m->now->whole += by_op[run].seconds[op];
            m->now->moment = by_op[run].moment;
        } else {
            status = one_run(m, is_whole, err);
        }
        if (is_whole) memcpy(m->now->cost, by_op[run].cost, sizeof m->now->cost);
        if (status == HY_OK && (both || !is_whole) && !progress_add(&p, 1)) status = cancelled(err);
    }
    m->now = NULL;
    if (status == HY_OK) progress_end(&p);
    return status;
}

hy_status bench_step_measure(const bench_setup *setup, bench_rows *rows, int32_t sequences, int32_t context,
                             int32_t count, bool head, int runs, hy_progress_fn on_progress, bench_result *out,
                             hy_error *err)
{
    const ops_model *model = setup->shape.model;
    if (setup->gpu && 7 * model->layers + 3 > CUDA_BENCH_MARKS)
        return error_set(err, HY_UNSUPPORTED, "this bench times at most %d layers on a GPU, not %d",
                         (CUDA_BENCH_MARKS - 3) / 7, model->layers);
    bench_rows_set(rows, sequences, context, count, head, model->vocab, 1);
    size_t lists = (size_t)model->index_heads * (size_t)model->index_top, n = (size_t)runs;
    size_t seen = bench_count_scratch(model, &rows->ops), width = lists;
    if (seen < (size_t)model->experts) seen = (size_t)model->experts;
    if (width < (size_t)model->experts_per_token) width = (size_t)model->experts_per_token;
    measuring m = {.setup = setup, .rows = rows};
    m.selected = memory_zeroed((size_t)count * width + 1, sizeof *m.selected);
    m.seen = memory_zeroed(seen + 1, 1);
    m.barrier = memory_zeroed((size_t)model->hidden, sizeof *m.barrier);
    run_times *whole = memory_zeroed(n, sizeof *whole), *by_op = memory_zeroed(n, sizeof *by_op);
    double *values = memory_zeroed(n, sizeof *values);
    hy_status status = HY_OK;
    if (!m.selected || !m.seen || !m.barrier || !whole || !by_op || !values)
        status = error_memory(err, "the results of a bench", n * sizeof *whole * 2);
    if (status == HY_OK)
        status =
            all_runs(&m, rows, (shape_of_rows){sequences, context, count, head}, runs, whole, by_op, on_progress, err);
    if (status == HY_OK) {
        *out = (bench_result){.context = context, .sequences = sequences, .rows = count};
        medians(&setup->shape, whole, by_op, runs, values, out);
        if (setup->gpu && setup->model && setup->by_kernel) status = run_kernels(&m, out, err);
    }
    void *arrays[] = {m.selected, m.seen, m.barrier, whole, by_op, values};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
    return status;
}
