/*
 * Projections into and out of attention.
 *
 * attend_in runs all projections of a layer in one pass over the pool. A head is finished by the item that made it,
 * while it is in the first-level cache: norm, rotary embedding, one rounding to bf16, and what is cached goes through
 * the cache's quantiser. Where heads are not whole groups of outputs a second pass does that row by row.
 */
#include "backend/cpu/cpu.h"

#include <assert.h>

#include "number/bf16.h"
#include "number/e4m3.h"

/* ---- Projections ------------------------------------------------------------------------------------------------ */

int cpu_groups_per_item(const ops_step *step, int64_t groups, int64_t tiles)
{
    int n = MAX_GROUPS;
    while (n > 1 && (groups + n - 1) / n * tiles < 8 * (int64_t)step->workers) n /= 2;
    return n;
}

typedef struct project_work {
    ops_step *step;
    cpu_output outputs[MAX_OUTPUTS];
    int groups[MAX_OUTPUTS]; /* of an item */
    int n;
    const float *x; /* [count, K] */
    int32_t count;
    int64_t tiles;   /* row tiles */
    float *residual; /* added to instead of outputs->out */
    int heads_of;    /* layer whose heads are finished where they are made; -1: none */
} project_work;

/* Items of output i: row tiles inside, runs of groups outside, so that packed bytes are used while they are near. */
static int64_t output_items(const project_work *work, int i)
{
    return (work->outputs[i].w->groups + work->groups[i] - 1) / work->groups[i] * work->tiles;
}

static void finish_heads(const ops_step *step, int layer, int output, int64_t t, int64_t first, int64_t last);

static void project_item(const project_work *work, int output, int64_t item, int worker)
{
    const cpu_linear *w = work->outputs[output].w;
    int64_t first = item / work->tiles * work->groups[output], row = item % work->tiles * TILE_ROWS;
    int groups = (int)(w->groups - first < work->groups[output] ? w->groups - first : work->groups[output]);
    int rows = (int)(work->count - row < TILE_ROWS ? work->count - row : TILE_ROWS);
    cpu_group group[MAX_GROUPS] = {{NULL, 0}};
    const float *x[TILE_ROWS] = {NULL};
    for (int g = 0; g < groups; g++) group[g] = (cpu_group){w, first + g};
    for (int r = 0; r < rows; r++) x[r] = work->x + (row + r) * w->cols;
    const float *from = cpu_multiply(work->step->backend->products, &work->step->worker[worker].product, group, groups,
                                     x, rows, work->residual != NULL);
    for (int g = 0; g < groups; g++) {
        int64_t n = (first + g) * GROUP, width = w->rows - n < GROUP ? w->rows - n : GROUP;
        for (int r = 0; r < rows; r++, from += GROUP) {
            float *out = (work->residual ? work->residual : work->outputs[output].out) + (row + r) * w->rows + n;
            if (work->residual)
                for (int64_t i = 0; i < width; i++) out[i] += from[i];
            else
                for (int64_t i = 0; i < width; i++) out[i] = from[i];
        }
    }
    for (int r = 0; r < rows && work->heads_of >= 0; r++)
        finish_heads(work->step, work->heads_of, output, row + r, first * GROUP, (first + groups) * GROUP);
}

static void project_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const project_work *work = arg;
    for (int64_t item = begin; item < end; item++) {
        int64_t left = item;
        int i = 0;
        for (; left >= output_items(work, i); i++) left -= output_items(work, i);
        project_item(work, i, left, worker);
    }
}

static project_work open_projection(ops_step *step, const cpu_output *outputs, int n, const float *x, int32_t count)
{
    project_work work = {.step = step, .n = n, .x = x, .count = count, .heads_of = -1};
    work.tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
    int64_t groups = 0;
    assert(n <= MAX_OUTPUTS);
    for (int i = 0; i < n; i++) groups += outputs[i].w->groups;
    for (int i = 0; i < n; i++) {
        work.outputs[i] = outputs[i];
        work.groups[i] = cpu_groups_per_item(step, groups, work.tiles);
    }
    return work;
}

static threads_stage *add_projection(const project_work *work)
{
    int64_t items = 0;
    for (int i = 0; i < work->n; i++) items += output_items(work, i);
    threads_stage *stage = cpu_stage(work->step, items, project_items, work, sizeof *work);
    stage->home = true; /* a worker reads one stretch of memory from end to end */
    return stage;
}

threads_stage *cpu_project(ops_step *step, const cpu_output *outputs, int n, const float *x, int32_t count)
{
    project_work work = open_projection(step, outputs, n, x, count);
    return add_projection(&work);
}

void cpu_project_onto(ops_step *step, const cpu_linear *w, const float *in, int32_t count, float *x)
{
    cpu_output output = {w, NULL};
    project_work work = open_projection(step, &output, 1, in, count);
    work.residual = x;
    add_projection(&work);
}

void cpu_project_residual(ops_step *step, const cpu_linear *w, const float *in)
{
    cpu_project_onto(step, w, in, step->rows.count, step->x);
}

/* ---- attend_in -------------------------------------------------------------------------------------------------- */

/* The outputs of attend_in, in this order. */
enum { OUTPUT_Q, OUTPUT_K, OUTPUT_V, OUTPUT_INDEX_Q, OUTPUT_INDEX_K };

void cpu_rotate(float *x, const float *cosine, const float *sine, int half)
{
    for (int j = 0; j < half; j++) {
        float a = x[j], b = x[j + half];
        x[j] = a * cosine[j] - b * sine[j];
        x[j + half] = b * cosine[j] + a * sine[j];
    }
}

static int output_dim(const ops_model *m, int output)
{
    return output < OUTPUT_INDEX_Q ? m->head_dim : m->index_dim;
}

static int output_heads(const ops_model *m, int output)
{
    const int heads[] = {m->heads, m->kv_heads, m->kv_heads, m->index_heads, 1};
    return heads[output];
}

/* Columns [first, last) of a projected row, whole heads: norm and rotary, but for values; queries are rounded to bf16,
 * the others go into the cache, which rounds them. */
static void finish_heads(const ops_step *step, int layer, int output, int64_t t, int64_t first, int64_t last)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const cpu_layer *l = &b->layer[layer];
    const float *const gains[] = {l->q_gain, l->k_gain, NULL, l->index_q_gain, l->index_k_gain};
    float *const outs[] = {step->q, step->k, step->v, step->index_q, step->index_k};
    static const cpu_cached kinds[] = {
        [OUTPUT_K] = CACHED_KEY, [OUTPUT_V] = CACHED_VALUE, [OUTPUT_INDEX_K] = CACHED_INDEX};
    int dim = output_dim(m, output), half = m->rotary_dim / 2;
    bool query = output == OUTPUT_Q || output == OUTPUT_INDEX_Q;
    for (int64_t n = first; n < last; n += dim) {
        float *x = outs[output] + t * output_heads(m, output) * dim + n;
        if (gains[output]) {
            b->kernels->rms_norm(x, gains[output], dim, m->norm_eps, false, x);
            cpu_rotate(x, step->cosine + t * half, step->sine + t * half, half);
        }
        if (query) {
            for (int i = 0; i < dim; i++) x[i] = bf16_round(x[i]);
            for (int i = 0; i < dim && b->options.query_e4m3; i++) x[i] = e4m3_round(x[i]);
        } else if (step->rows.sequence[t] >= 0 && step->rows.slot[t] >= 0) {
            cpu_cache_store(step->cache, layer, step->rows.slot[t], kinds[output], (int)(n / dim), x);
        }
    }
}

typedef struct finish_work {
    const ops_step *step;
    int layer, outputs;
} finish_work;

/* Rows [begin, end) of every output. */
static void finish_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const finish_work *work = arg;
    const ops_model *m = work->step->backend->model;
    for (int64_t t = begin; t < end; t++)
        for (int i = 0; i < work->outputs; i++)
            finish_heads(work->step, work->layer, i, t, 0, (int64_t)output_heads(m, i) * output_dim(m, i));
}

/* Lets items have whole heads and finish them. False: heads are no whole groups, or too few to keep all workers busy.
 */
static bool take_heads(project_work *work, int layer)
{
    const ops_model *m = work->step->backend->model;
    int64_t items = 0;
    for (int i = 0; i < work->n; i++) {
        int groups = output_dim(m, i) / GROUP;
        if (output_dim(m, i) % GROUP != 0 || groups > MAX_GROUPS) return false;
        work->groups[i] = work->groups[i] > groups ? work->groups[i] / groups * groups : groups;
        items += output_items(work, i);
    }
    work->heads_of = layer;
    return items >= 4 * (int64_t)work->step->workers;
}

void cpu_attend_in(ops_step *step, int layer)
{
    const cpu_layer *l = &step->backend->layer[layer];
    const cpu_output outputs[] = {[OUTPUT_Q] = {&l->q, step->q},
                                  [OUTPUT_K] = {&l->k, step->k},
                                  [OUTPUT_V] = {&l->v, step->v},
                                  [OUTPUT_INDEX_Q] = {&l->index_q, step->index_q},
                                  [OUTPUT_INDEX_K] = {&l->index_k, step->index_k}};
    int n = step->backend->model->layer[layer].sparse ? OUTPUT_INDEX_K + 1 : OUTPUT_V + 1;
    cpu_norm_rows(step, l->input_gain);
    project_work work = open_projection(step, outputs, n, step->h, step->rows.count), heads = work;
    if (take_heads(&heads, layer)) {
        add_projection(&heads);
        return;
    }
    add_projection(&work);
    finish_work finish = {step, layer, n};
    cpu_stage(step, step->rows.count, finish_rows, &finish, sizeof finish);
}

void cpu_attend_out(ops_step *step, int layer)
{
    cpu_project_residual(step, &step->backend->layer[layer].o, step->attention);
}
