/*
 * Blocks of drafts: g rows of every sequence through the drafter's layers, the head, and the Markov head left to right.
 *
 * `draft` runs what was recorded before, so that the anchors are known, and then slice after slice. Products see all
 * rows of a slice; the Markov head walks through markov_out once for each of the g positions, with one row of every
 * sequence of the slice, and adds to U where that lies.
 *
 * Bytes of a slice: the drafter's weights once, the head once, markov_out g times (2 * vocab * markov_rank each).
 */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "number/bf16.h"

/* ---- Memory -------------------------------------------------------------------------------------------------------
 */

enum { DRAFT_ARRAYS = 20 };

static size_t draft_arrays(ops_step *s, host_array arrays[DRAFT_ARRAYS])
{
    const ops_model *m = s->backend->model;
    const ops_drafter *d = m->drafter;
    cpu_draft *to = &s->draft;
    size_t rows = (size_t)s->limits.rows, tile = rows < TILE_ROWS ? rows : TILE_ROWS, drafts = (size_t)s->limits.drafts;
    size_t all = drafts * (size_t)s->limits.draft_rows, slice = all < DRAFT_SLICE ? all : DRAFT_SLICE;
    size_t hidden = (size_t)m->hidden, taps = (size_t)d->tap_count * hidden, pairs = (size_t)d->rotary_dim / 2;
    size_t q = (size_t)d->heads * (size_t)d->head_dim, kv = (size_t)d->kv_heads * (size_t)d->head_dim;
    size_t f = sizeof(float);
    to->open_parts = s->workers > 1 ? ATTEND_OPEN * s->workers : 0;
    to->parts = 4 * to->open_parts;
    size_t parts = (size_t)(to->parts + to->open_parts) * DRAFT_MAX_BLOCK;
    const host_array list[] = {
        {&to->taps, rows, taps, sizeof *to->taps},
        /* Rows of angles lie in it afterwards. */
        {&to->tile, tile, taps > 2 * pairs ? taps : 2 * pairs, f},
        {&to->c, rows, hidden, f},
        {&to->context, tile, 2 * (size_t)d->layers * kv, f},
        {&to->sequence, drafts, 1, sizeof *to->sequence},
        {&to->x, slice, hidden, f},
        {&to->h, slice, hidden, f},
        {&to->cosine, slice, pairs, f},
        {&to->sine, slice, pairs, f},
        {&to->q, slice, q, f},
        {&to->k, slice, kv, f},
        {&to->v, slice, kv, f},
        {&to->own, slice, 2 * kv, sizeof *to->own},
        {&to->attention, slice, q, f},
        {&to->z, slice, (size_t)d->width, f},
        {&to->logits, slice, (size_t)m->vocab, f},
        {&to->markov, slice, (size_t)d->markov_rank, f},
        {&to->final, all, hidden, f},
        {&to->part_state, parts, 1, sizeof *to->part_state},
        {&to->part_out, parts, LANES * (size_t)d->head_dim, f},
    };
    _Static_assert(sizeof list / sizeof *list == DRAFT_ARRAYS, "all of them");
    memcpy(arrays, list, sizeof list);
    return DRAFT_ARRAYS;
}

hy_status cpu_draft_open(ops_step *step, uint64_t *bytes, hy_error *err)
{
    host_array arrays[DRAFT_ARRAYS];
    size_t n = draft_arrays(step, arrays);
    if (bytes) *bytes += host_arrays_bytes(arrays, n);
    return bytes ? HY_OK : host_arrays_open(arrays, n, err);
}

void cpu_draft_close(ops_step *step)
{
    cpu_draft *d = &step->draft;
    void *arrays[] = {d->taps,   d->tile,   d->c,      d->context, d->sequence,   d->x,       d->h,
                      d->cosine, d->sine,   d->q,      d->k,       d->v,          d->own,     d->attention,
                      d->z,      d->logits, d->markov, d->final,   d->part_state, d->part_out};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
}

/* ---- Rows of a slice ----------------------------------------------------------------------------------------------
 */

/* The sequence of a row of the slice. */
static const cpu_draft_sequence *sequence_of(const cpu_draft *d, int64_t row)
{
    int32_t low = d->begin, high = d->begin + d->count; /* the last one that begins at or before the row */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        *(d->sequence[middle].first <= row ? &low : &high) = middle;
    }
    return &d->sequence[low];
}

static void embed_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    ops_step *step = *(ops_step **)arg;
    const ops_model *m = step->backend->model;
    int half = m->drafter->rotary_dim / 2;
    for (int64_t t = begin; t < end; t++) {
        const cpu_draft_sequence *s = sequence_of(&step->draft, t);
        int32_t k = (int32_t)t - s->first, token = k ? m->drafter->noise_token : s->before;
        cpu_angles(s->position + k, step->backend->drafter->frequency, half, step->draft.cosine + t * half,
                   step->draft.sine + t * half);
        if (!cpu_embedding_row(step, &m->drafter->embed, token, step->worker[worker].embedding,
                               step->draft.x + t * m->hidden))
            return;
    }
}

typedef struct norm_work {
    const ops_step *step;
    const float *gain; /* [hidden] */
    bool last;         /* of the network: its output is a tensor */
} norm_work;

static void norm_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const norm_work *work = arg;
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    int64_t hidden = m->hidden;
    for (int64_t t = begin; t < end; t++) {
        float *h = step->draft.h + t * hidden;
        step->backend->kernels->rms_norm(step->draft.x + t * hidden, work->gain, m->hidden, m->drafter->norm_eps, true,
                                         h);
        if (!work->last) continue;
        const cpu_draft_sequence *s = sequence_of(&step->draft, t);
        int64_t row = (int64_t)s->place * step->limits.draft_rows + t - s->first;
        memcpy(step->draft.final + row * hidden, h, (size_t)hidden * sizeof *h);
    }
}

static void add_norm(ops_step *step, const float *gain, bool last)
{
    norm_work work = {step, gain, last};
    cpu_stage(step, step->draft.rows, norm_rows, &work, sizeof work);
}

typedef struct layer_work {
    ops_step *step;
    const cpu_draft_layer *layer;
    int pairs; /* groups of gate and of up that an item takes */
} layer_work;

/* Norm and rotary of a row's queries and keys; keys and values become the sequence's own block. */
static void finish_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const layer_work *work = arg;
    const ops_step *step = work->step;
    const ops_drafter *d = step->backend->model->drafter;
    const cpu_kernels *kernels = step->backend->kernels;
    int64_t dim = d->head_dim, half = d->rotary_dim / 2;
    for (int64_t t = begin; t < end; t++) {
        const cpu_draft_sequence *s = sequence_of(&step->draft, t);
        const float *cosine = step->draft.cosine + t * half, *sine = step->draft.sine + t * half;
        int64_t g = s->how->rows, k = t - s->first;
        for (int64_t head = 0; head < d->heads; head++) {
            float *q = step->draft.q + (t * d->heads + head) * dim;
            kernels->rms_norm(q, work->layer->q_gain, d->head_dim, d->norm_eps, false, q);
            cpu_rotate(q, cosine, sine, (int)half);
            for (int i = 0; i < dim; i++) q[i] = bf16_round(q[i]);
        }
        for (int64_t head = 0; head < d->kv_heads; head++) {
            float *key = step->draft.k + (t * d->kv_heads + head) * dim;
            const float *value = step->draft.v + (t * d->kv_heads + head) * dim;
            uint16_t *to = step->draft.own + ((s->first * d->kv_heads + head * g) * 2 + k) * dim;
            kernels->rms_norm(key, work->layer->k_gain, d->head_dim, d->norm_eps, false, key);
            cpu_rotate(key, cosine, sine, (int)half);
            for (int i = 0; i < dim; i++) to[i] = bf16_from_float(key[i]), to[g * dim + i] = bf16_from_float(value[i]);
        }
    }
}

/* z of some columns of all rows. */
static void glu_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const layer_work *work = arg;
    const ops_step *step = work->step;
    const ops_backend *b = step->backend;
    const ops_drafter *d = b->model->drafter;
    int rows = step->draft.rows;
    const float *x[TILE_ROWS] = {NULL};
    for (int r = 0; r < rows; r++) x[r] = step->draft.h + (int64_t)r * b->model->hidden;
    float alpha = d->plain_swiglu ? 1 : d->swiglu_alpha, limit = d->plain_swiglu ? INFINITY : d->swiglu_limit;
    float plus = d->plain_swiglu ? 0 : 1;
    for (int64_t item = begin; item < end; item++) {
        int64_t first = item * work->pairs, left = work->layer->gate.groups - first;
        int pairs = (int)(left < work->pairs ? left : work->pairs);
        cpu_group group[MAX_GROUPS] = {{NULL, 0}};
        for (int p = 0; p < pairs; p++) {
            group[2 * p] = (cpu_group){&work->layer->gate, first + p};
            group[2 * p + 1] = (cpu_group){&work->layer->up, first + p};
        }
        const float *gate = cpu_multiply(b->products, &step->worker[worker].product, group, 2 * pairs, x, rows, false);
        const float *up = gate + rows * GROUP;
        for (int p = 0; p < pairs; p++, gate += rows * GROUP, up += rows * GROUP)
            for (int r = 0; r < rows; r++, gate += GROUP, up += GROUP)
                for (int i = 0; i < GROUP; i += LANES) {
                    int64_t n = (first + p) * GROUP + i;
                    float z[LANES];
                    if (n >= d->width) break;
                    b->kernels->swiglu(gate + i, up + i, 1, alpha, limit, plus, z);
                    memcpy(step->draft.z + (int64_t)r * d->width + n, z,
                           (size_t)(d->width - n < LANES ? d->width - n : LANES) * sizeof *z);
                }
    }
}

static void add_layer(ops_step *step, int layer)
{
    const cpu_draft_layer *l = &step->backend->drafter->layer[layer];
    cpu_draft *d = &step->draft;
    const cpu_output outputs[] = {{&l->q, d->q}, {&l->k, d->k}, {&l->v, d->v}};
    layer_work work = {step, l, cpu_groups_per_item(step, 2 * l->gate.groups, 1) >= MAX_GROUPS ? MAX_GROUPS / 2 : 1};
    add_norm(step, l->input_gain, false);
    cpu_project(step, outputs, 3, d->h, d->rows);
    cpu_stage(step, d->rows, finish_rows, &work, sizeof work);
    cpu_draft_attend(step, layer);
    cpu_project_onto(step, &l->o, d->attention, d->rows, d->x);
    add_norm(step, l->post_gain, false);
    cpu_stage(step, (l->gate.groups + work.pairs - 1) / work.pairs, glu_items, &work, sizeof work)->home = true;
    cpu_project_onto(step, &l->down, d->z, d->rows, d->x);
    cpu_flush(step);
}

/* ---- Markov head --------------------------------------------------------------------------------------------------
 */

/* The slice's k-th drafts. */
typedef struct markov_work {
    ops_step *step;
    int32_t k;
    int groups; /* of an item */
} markov_work;

/* markov_in of the tokens before. */
static void look_up(void *arg, int64_t begin, int64_t end, int worker)
{
    const markov_work *work = arg;
    ops_step *step = work->step;
    const ops_drafter *d = step->backend->model->drafter;
    for (int64_t i = begin; i < end; i++) {
        const cpu_draft_sequence *s = &step->draft.sequence[step->draft.begin + i];
        float *row = step->draft.markov + i * d->markov_rank;
        if (s->before < 0 || work->k >= s->wanted) continue;
        if (!cpu_embedding_row(step, &d->markov_in, s->before, step->worker[worker].embedding, row)) return;
        for (int j = 0; j < d->markov_rank; j++) row[j] = bf16_round(row[j]);
    }
}

/* L = U + markov_out . markov_in of some groups of the vocabulary. */
static void add_bias(void *arg, int64_t begin, int64_t end, int worker)
{
    const markov_work *work = arg;
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const cpu_linear *w = &step->backend->drafter->markov_out;
    const float *x[DRAFT_SLICE] = {NULL};
    float *to[DRAFT_SLICE];
    int rows = 0;
    for (int32_t i = 0; i < step->draft.count; i++) {
        const cpu_draft_sequence *s = &step->draft.sequence[step->draft.begin + i];
        if (s->before < 0 || work->k >= s->wanted) continue;
        x[rows] = step->draft.markov + (int64_t)i * m->drafter->markov_rank;
        to[rows++] = step->draft.logits + (int64_t)(s->first + work->k) * m->vocab;
    }
    for (int64_t item = begin; item < end && rows > 0; item++) {
        int64_t first = item * work->groups, left = w->groups - first;
        int groups = (int)(left < work->groups ? left : work->groups);
        cpu_group group[MAX_GROUPS] = {{NULL, 0}};
        for (int g = 0; g < groups; g++) group[g] = (cpu_group){w, first + g};
        const float *from =
            cpu_multiply(step->backend->products, &step->worker[worker].product, group, groups, x, rows, false);
        for (int g = 0; g < groups; g++)
            for (int r = 0; r < rows; r++, from += GROUP) {
                int64_t n = (first + g) * GROUP, width = m->vocab - n < GROUP ? m->vocab - n : GROUP;
                for (int64_t i = 0; i < width; i++) to[r][n + i] += from[i];
            }
    }
}

/* Whether the confidence head expects the next draft to be accepted: sigmoid(w . [u; markov_in] + b), in fp32. */
static bool confident(const ops_step *step, const cpu_draft_sequence *s, int32_t k, const float *markov)
{
    const ops_model *m = step->backend->model;
    const float *w = step->backend->drafter->confidence, *u = step->draft.h + (int64_t)(s->first + k) * m->hidden;
    if (!(s->how->threshold > 0) || !w) return true;
    float sum = 0;
    for (int i = 0; i < m->hidden; i++) sum += w[i] * u[i];
    for (int i = 0; i < m->drafter->markov_rank; i++) sum += w[m->hidden + i] * markov[i];
    return 1 / (1 + expf(-(sum + *step->backend->drafter->confidence_bias))) >= s->how->threshold; /* a NaN is not */
}

static void pick_drafts(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const markov_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    for (int64_t i = begin; i < end; i++) {
        cpu_draft_sequence *s = &step->draft.sequence[step->draft.begin + i];
        const ops_draft *how = s->how;
        if (s->before < 0 || work->k >= s->wanted) continue;
        const float *logits = step->draft.logits + (int64_t)(s->first + work->k) * m->vocab;
        if (!confident(step, s, work->k, step->draft.markov + i * m->drafter->markov_rank)) {
            s->before = -1;
            continue;
        }
        if (step->draft_logits && how->method == DRAFT_PROBABILISTIC)
            memcpy(step->draft_logits + ((int64_t)how->law * step->limits.draft_rows + work->k) * m->vocab, logits,
                   (size_t)m->vocab * sizeof *logits);
        s->before = draft_pick(logits, m->vocab, how, (uint32_t)(s->position + 1 + work->k), (uint32_t)s->position);
        if (s->before < 0) continue;
        how->draft[work->k] = s->before;
        *how->count = work->k + 1;
    }
}

/* False: the step has failed. */
static bool run_markov(ops_step *step, int32_t most)
{
    const cpu_linear *w = &step->backend->drafter->markov_out;
    markov_work work = {step, 0, cpu_groups_per_item(step, w->groups, 1)};
    for (; work.k < most; work.k++) {
        if (w->groups > 0 && step->backend->rows) { /* read by this thread, which has to know the tokens */
            cpu_flush(step);
            if (step->error.status == HY_OK) look_up(&work, 0, step->draft.count, 0);
            if (step->error.status != HY_OK) return false;
        } else if (w->groups > 0) {
            cpu_stage(step, step->draft.count, look_up, &work, sizeof work);
        }
        if (w->groups > 0) cpu_stage(step, (w->groups + work.groups - 1) / work.groups, add_bias, &work, sizeof work);
        cpu_stage(step, step->draft.count, pick_drafts, &work, sizeof work);
    }
    cpu_flush(step);
    return step->error.status == HY_OK;
}

/* ---- The operation ------------------------------------------------------------------------------------------------
 */

/* All layers, final norm and head of a slice, then its drafts. False: the step has failed. */
static bool run_slice(ops_step *step)
{
    const ops_drafter *m = step->backend->model->drafter;
    cpu_draft *d = &step->draft;
    int32_t most = 0;
    for (int32_t i = d->begin; i < d->begin + d->count; i++)
        if (d->sequence[i].wanted > most) most = d->sequence[i].wanted;
    if (step->backend->rows)
        embed_rows(&step, 0, d->rows, 0);
    else
        cpu_stage(step, d->rows, embed_rows, &step, sizeof step);
    for (int layer = 0; layer < m->layers && step->error.status == HY_OK; layer++) add_layer(step, layer);
    if (step->error.status != HY_OK) return false;
    add_norm(step, step->backend->drafter->final_gain, true);
    cpu_output output = {step->backend->drafter->head, d->logits};
    cpu_project(step, &output, 1, d->h, d->rows);
    return run_markov(step, most);
}

/* False: nothing to draft. */
static bool open_sequence(const ops_step *step, const ops_draft *how, int32_t place, cpu_draft_sequence *s)
{
    *how->count = 0;
    if (step->error.status != HY_OK || *how->after_count < 1) return false;
    assert(how->rows > 0 && how->rows <= step->limits.draft_rows);
    assert(how->method != DRAFT_PROBABILISTIC || !step->draft_logits ||
           (how->law >= 0 && how->law < step->limits.drafts));
    *s = (cpu_draft_sequence){.how = how,
                              .place = place,
                              .position = how->position + *how->after_count - 1,
                              .before = how->after[*how->after_count - 1].id};
    int32_t room = how->end - (s->position + 1);
    s->wanted = room < how->rows ? room : how->rows;
    if (s->before < 0 || s->wanted <= 0) return false;
    assert(s->before < step->backend->model->vocab && how->sequence < step->rows.sequences);
    assert(s->position == 0 || (s->position - 1) / CACHE_BLOCK < step->rows.block_table_stride);
    return true;
}

void cpu_draft_blocks(ops_step *step, const ops_draft *sequences, int32_t count)
{
    cpu_draft *d = &step->draft;
    int32_t all = 0;
    assert(d->sequence && count <= step->limits.drafts);
    cpu_flush(step); /* what they begin with */
    for (int32_t i = 0; i < count; i++) all += open_sequence(step, &sequences[i], i, &d->sequence[all]);
    bool good = true;
    for (d->begin = 0; d->begin < all && good; d->begin += d->count) {
        for (d->count = d->rows = 0; d->begin + d->count < all; d->count++) {
            cpu_draft_sequence *s = &d->sequence[d->begin + d->count];
            if (d->rows + s->how->rows > DRAFT_SLICE) break;
            s->first = d->rows;
            d->rows += s->how->rows;
        }
        good = run_slice(step);
    }
    for (int32_t i = 0; i < count && !good; i++) *sequences[i].count = 0;
}
