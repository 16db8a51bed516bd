/*
 * Projections into and out of attention.
 *
 * attend_in runs all projections of a layer in one pass over the pool and then finishes row by row: norm per head,
 * rotary embedding, one rounding to bf16, and what is cached goes through the cache's quantiser.
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
    const ops_step *step;
    cpu_output outputs[MAX_OUTPUTS];
    int n;
    const float *x; /* [count, K] */
    int32_t count;
    int64_t tiles;   /* row tiles */
    int groups;      /* of an item */
    float *residual; /* added to instead of outputs->out */
} project_work;

/* Items of an output: row tiles inside, runs of groups outside, so that packed bytes are used while they are near. */
static int64_t output_items(const project_work *work, const cpu_linear *w)
{
    return (w->groups + work->groups - 1) / work->groups * work->tiles;
}

static void project_item(const project_work *work, const cpu_output *output, int64_t item, int worker)
{
    const cpu_linear *w = output->w;
    int64_t first = item / work->tiles * work->groups, row = item % work->tiles * TILE_ROWS;
    int groups = (int)(w->groups - first < work->groups ? w->groups - first : work->groups);
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
            float *out = (work->residual ? work->residual : output->out) + (row + r) * w->rows + n;
            if (work->residual)
                for (int64_t i = 0; i < width; i++) out[i] += from[i];
            else
                for (int64_t i = 0; i < width; i++) out[i] = from[i];
        }
    }
}

static void project_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const project_work *work = arg;
    for (int64_t item = begin; item < end; item++) {
        int64_t left = item;
        int i = 0;
        for (; left >= output_items(work, work->outputs[i].w); i++) left -= output_items(work, work->outputs[i].w);
        project_item(work, &work->outputs[i], left, worker);
    }
}

static void project(ops_step *step, const cpu_output *outputs, int n, const float *x, int32_t count, float *residual)
{
    project_work work = {.step = step, .n = n, .x = x, .count = count, .residual = residual};
    work.tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
    int64_t groups = 0, items = 0;
    assert(n <= MAX_OUTPUTS);
    for (int i = 0; i < n; i++) work.outputs[i] = outputs[i];
    for (int i = 0; i < n; i++) groups += outputs[i].w->groups;
    work.groups = cpu_groups_per_item(step, groups, work.tiles);
    for (int i = 0; i < n; i++) items += output_items(&work, outputs[i].w);
    cpu_stage(step, items, project_items, &work, sizeof work);
}

void cpu_project(ops_step *step, const cpu_output *outputs, int n, const float *x, int32_t count)
{
    project(step, outputs, n, x, count, NULL);
}

void cpu_project_residual(ops_step *step, const cpu_linear *w, const float *in)
{
    cpu_output output = {w, NULL};
    project(step, &output, 1, in, step->rows.count, step->x);
}

/* ---- attend_in -------------------------------------------------------------------------------------------------- */

typedef struct attend_in_work {
    ops_step *step;
    int layer;
} attend_in_work;

/* y_j = x_j cos - x_{j+half} sin;  y_{j+half} = x_{j+half} cos + x_j sin. */
static void rotate(float *x, const float *cosine, const float *sine, int half)
{
    for (int j = 0; j < half; j++) {
        float a = x[j], b = x[j + half];
        x[j] = a * cosine[j] - b * sine[j];
        x[j + half] = b * cosine[j] + a * sine[j];
    }
}

/* Norm and rotary of `heads` vectors; queries are rounded here, keys by the cache. */
static void finish_heads(const ops_step *step, int64_t t, float *x, const float *gain, int heads, int dim, bool query)
{
    const ops_backend *b = step->backend;
    int half = b->model->rotary_dim / 2;
    for (int h = 0; h < heads; h++, x += dim) {
        b->kernels->rms_norm(x, gain, dim, b->model->norm_eps, false, x);
        rotate(x, step->cosine + t * half, step->sine + t * half, half);
        if (!query) continue;
        for (int i = 0; i < dim; i++) x[i] = bf16_round(x[i]);
        for (int i = 0; i < dim && b->options.query_e4m3; i++) x[i] = e4m3_round(x[i]);
    }
}

static void finish_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const attend_in_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const cpu_layer *l = &step->backend->layer[work->layer];
    bool sparse = m->layer[work->layer].sparse;
    for (int64_t t = begin; t < end; t++) {
        float *k = step->k + t * m->kv_heads * m->head_dim, *v = step->v + t * m->kv_heads * m->head_dim,
              *index_k = NULL;
        finish_heads(step, t, step->q + t * m->heads * m->head_dim, l->q_gain, m->heads, m->head_dim, true);
        finish_heads(step, t, k, l->k_gain, m->kv_heads, m->head_dim, false);
        if (sparse) {
            index_k = step->index_k + t * m->index_dim;
            finish_heads(step, t, step->index_q + t * m->index_heads * m->index_dim, l->index_q_gain, m->index_heads,
                         m->index_dim, true);
            finish_heads(step, t, index_k, l->index_k_gain, 1, m->index_dim, false);
        }
        if (step->rows.sequence[t] >= 0 && step->rows.slot[t] >= 0)
            cpu_cache_store(step->cache, work->layer, step->rows.slot[t], k, v, index_k);
    }
}

void cpu_attend_in(ops_step *step, int layer)
{
    const cpu_layer *l = &step->backend->layer[layer];
    bool sparse = step->backend->model->layer[layer].sparse;
    cpu_output outputs[] = {
        {&l->q, step->q},
        {&l->k, step->k},
        {&l->v, step->v},
        {&l->index_q, step->index_q},
        {&l->index_k, step->index_k},
    };
    cpu_norm_rows(step, l->input_gain);
    cpu_project(step, outputs, sparse ? 5 : 3, step->h, step->rows.count);
    attend_in_work work = {step, layer};
    cpu_stage(step, step->rows.count, finish_rows, &work, sizeof work);
}

void cpu_attend_out(ops_step *step, int layer)
{
    cpu_project_residual(step, &step->backend->layer[layer].o, step->attention);
}
