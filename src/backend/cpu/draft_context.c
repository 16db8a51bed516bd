/*
 * The drafter's view of the target: taps of the residual stream, and keys and values made from them.
 *
 *     c = hidden_norm(fc . taps);  K_i = rotary(k_norm_i(Wk_i . c)),  V_i = Wv_i . c   for all draft layers i
 *
 * Taps are kept as bf16, which is what fc reads: tap_count * hidden * 2 bytes a row, 61,440 for the released model. The
 * rows go through in tiles of 128, so that what is larger than that, fp32 taps and projected keys and values, has the
 * size of a tile. Bytes a tile: fc and the 2 * layers projections once; 2 * (tap_count * hidden + 2 * layers * kv_heads
 * * head_dim) * hidden operations a row, 440 million for the released model.
 */
#include "backend/cpu/cpu.h"

#include <assert.h>

#include "number/bf16.h"

typedef struct tap_work {
    const ops_step *step;
    int tap;
} tap_work;

static void tap_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const tap_work *work = arg;
    const ops_model *m = work->step->backend->model;
    for (int64_t t = begin; t < end; t++) {
        const float *x = work->step->x + t * m->hidden;
        uint16_t *to = work->step->draft.taps + (t * m->drafter->tap_count + work->tap) * m->hidden;
        for (int i = 0; i < m->hidden; i++) to[i] = bf16_from_float(x[i]);
    }
}

void cpu_draft_tap(ops_step *step, int tap)
{
    tap_work work = {step, tap};
    assert(step->draft.taps && tap >= 0 && tap < step->backend->model->drafter->tap_count);
    cpu_stage(step, step->rows.count, tap_rows, &work, sizeof work);
}

/* Rows [first, first + count) of the step. */
typedef struct context_work {
    ops_step *step;
    int32_t first, count;
} context_work;

static void expand_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const context_work *work = arg;
    const ops_model *m = work->step->backend->model;
    int64_t n = (int64_t)m->drafter->tap_count * m->hidden;
    for (int64_t t = begin; t < end; t++) {
        const uint16_t *from = work->step->draft.taps + (work->first + t) * n;
        float *to = work->step->draft.tile + t * n;
        for (int64_t i = 0; i < n; i++) to[i] = bf16_to_float(from[i]);
    }
}

static void norm_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const context_work *work = arg;
    const ops_backend *b = work->step->backend;
    for (int64_t t = begin; t < end; t++) {
        float *c = work->step->draft.c + (work->first + t) * b->model->hidden;
        b->kernels->rms_norm(c, b->drafter->hidden_gain, b->model->hidden, b->model->drafter->norm_eps, true, c);
    }
}

/* Norm and rotary of a row's keys, and into the cache. */
static void store_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const context_work *work = arg;
    const ops_step *step = work->step;
    const ops_backend *b = step->backend;
    const ops_drafter *d = b->model->drafter;
    int64_t kv = (int64_t)d->kv_heads * d->head_dim;
    int half = d->rotary_dim / 2;
    for (int64_t t = begin; t < end; t++) {
        int64_t row = work->first + t, slot = step->rows.slot[row];
        /* The tables of attend_in are the target's and may have other angles. The tile's taps have been read. */
        float *cosine = step->draft.tile + t * 2 * half, *sine = cosine + half;
        if (step->rows.sequence[row] < 0 || slot < 0) continue;
        cpu_angles(step->rows.position[row], b->drafter->frequency, half, cosine, sine);
        for (int i = 0; i < d->layers; i++)
            for (int head = 0; head < d->kv_heads; head++) {
                float *key = step->draft.context + (2 * i * work->count + t) * kv + head * d->head_dim;
                const float *value = key + work->count * kv;
                b->kernels->rms_norm(key, b->drafter->layer[i].k_gain, d->head_dim, d->norm_eps, false, key);
                cpu_rotate(key, cosine, sine, half);
                cpu_cache_store_draft(step->cache, i, slot, head, key, value);
            }
    }
}

/* Keys and values of all layers, as many projections as a loop takes and the loops side by side. */
static void project_context(const context_work *work)
{
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const ops_drafter *d = m->drafter;
    int64_t kv = (int64_t)d->kv_heads * d->head_dim;
    cpu_output outputs[MAX_OUTPUTS];
    cpu_room(step, (2 * d->layers + MAX_OUTPUTS - 1) / MAX_OUTPUTS);
    for (int i = 0, n = 0, loops = 0; i < 2 * d->layers; i++) {
        const cpu_draft_layer *l = &step->backend->drafter->layer[i / 2];
        outputs[n++] = (cpu_output){i % 2 ? &l->v : &l->k, step->draft.context + i * work->count * kv};
        if (n < MAX_OUTPUTS && i + 1 < 2 * d->layers) continue;
        cpu_project(step, outputs, n, step->draft.c + (int64_t)work->first * m->hidden, work->count)->beside = loops++;
        n = 0;
    }
}

void cpu_draft_context(ops_step *step)
{
    const ops_model *m = step->backend->model;
    assert(step->draft.c);
    if (step->rows.count == 0) return;
    assert(step->cache->layout.draft_offset != CACHE_NO_OFFSET &&
           step->cache->layout.draft_layers == m->drafter->layers);
    for (int32_t first = 0; first < step->rows.count; first += TILE_ROWS) {
        context_work work = {step, first, step->rows.count - first < TILE_ROWS ? step->rows.count - first : TILE_ROWS};
        cpu_output c = {&step->backend->drafter->fc, step->draft.c + (int64_t)first * m->hidden};
        cpu_stage(step, work.count, expand_rows, &work, sizeof work);
        cpu_project(step, &c, 1, step->draft.tile, work.count);
        cpu_stage(step, work.count, norm_rows, &work, sizeof work);
        project_context(&work);
        cpu_stage(step, work.count, store_rows, &work, sizeof work);
    }
}
