/*
 * Attention of a drafter's block: g rows of one sequence at positions n .. n + g - 1 and the keys before the anchor.
 *
 *     a_h(k) = sum_j softmax_j(scale q_h(k) . k_j) v_j,  scale = 1 / sqrt(head_dim)
 *
 * over the context keys at max(0, n + k - window + 1) .. n - 1 and over the keys of all g rows, earlier and later. A
 * unit is a sequence, a KV head and up to 16 of its query heads. It walks the cache blocks of the window in ascending
 * order and then the g rows themselves as one more block, and folds each into the states of all rows, so that a decoded
 * key serves 16 heads times g rows. Where the window begins inside a block, each row's edge is its own: the keys that
 * not all rows see, at most g - 1, are a block by themselves, which rows take one by one. No row ever reads a key that
 * it does not see.
 *
 * Bytes of a unit: the window's keys and values once, 2 * window * head_dim in fp8; operations: 4 * window * head_dim *
 * 16 * g, so that with g = 7 there are 224 a byte and arithmetic is the bound.
 *
 * With fewer units than workers the blocks of a unit are spread over the workers and folded afterwards, as in attend.c.
 */
#include "backend/cpu/cpu.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504f

typedef struct attend_work {
    ops_step *step;
    int layer;
    int head_tiles; /* ceil(query heads of a KV head / 16) */
} attend_work;

typedef struct unit {
    const cpu_draft_sequence *s;
    int group;    /* KV head */
    int64_t head; /* first query head */
    int heads;    /* at most 16 */
    int abreast;  /* rows side by side, heads * abreast <= 16: row k is in vector k / abreast */
    int vectors;
    int32_t first;  /* logical block where the window of row 0 begins */
    int32_t blocks; /* of the cache, and one more */
} unit;

static unit unit_at(const attend_work *work, int64_t which)
{
    const ops_drafter *d = work->step->backend->model->drafter;
    int per_group = d->heads / d->kv_heads, first = (int)(which % work->head_tiles) * LANES;
    int64_t group = which / work->head_tiles;
    unit u = {.s = &work->step->draft.sequence[work->step->draft.begin + group / d->kv_heads],
              .group = (int)(group % d->kv_heads)};
    u.head = (int64_t)u.group * per_group + first;
    u.heads = per_group - first < LANES ? per_group - first : LANES;
    u.abreast = per_group < LANES ? LANES / per_group : 1;
    u.vectors = (u.s->how->rows + u.abreast - 1) / u.abreast;
    int32_t n = u.s->position, low = n - d->window + 1;
    u.first = low > 0 ? low / CACHE_BLOCK : 0;
    u.blocks = n > 0 && u.first * CACHE_BLOCK < n ? (n - 1) / CACHE_BLOCK - u.first + 2 : 1;
    return u;
}

/* What row k sees of block b of the unit: tokens [*first, *end). False: nothing. */
static bool visible(const attend_work *work, const unit *u, int32_t b, int k, int *first, int *end)
{
    const ops_drafter *d = work->step->backend->model->drafter;
    *first = 0, *end = u->s->how->rows;
    if (b == u->blocks - 1) return true;
    int64_t begin = (int64_t)(u->first + b) * CACHE_BLOCK, low = (int64_t)u->s->position + k - d->window + 1 - begin;
    int64_t high = u->s->position - begin;
    if (low > 0) *first = low < CACHE_BLOCK ? (int)low : CACHE_BLOCK;
    *end = high < CACHE_BLOCK ? (int)high : CACHE_BLOCK;
    return *first < *end;
}

/* The unit's block b from token `first` on. */
static cpu_block block_at(const attend_work *work, const unit *u, int32_t b, int first)
{
    const ops_step *step = work->step;
    const ops_drafter *d = step->backend->model->drafter;
    if (b == u->blocks - 1) {
        size_t g = (size_t)u->s->how->rows, dim = (size_t)d->head_dim;
        const uint16_t *keys =
            step->draft.own + ((size_t)u->s->first * (size_t)d->kv_heads + (size_t)u->group * g) * 2 * dim;
        return (cpu_block){.dim = d->head_dim,
                           .format = CACHE_BF16,
                           .keys = (const uint8_t *)keys,
                           .values = (const uint8_t *)(keys + g * dim)};
    }
    int32_t sequence = u->s->how->sequence, at = u->first + b;
    int32_t next = b + 2 < u->blocks ? cpu_cache_block(step, sequence, at + 1) : -1;
    return cpu_cache_draft(step->cache, work->layer, u->group, cpu_cache_block(step, sequence, at), first, next);
}

/* How many rows stand in vector v. */
static int rows_of(const unit *u, int v)
{
    int left = u->s->how->rows - v * u->abreast;
    return left < u->abreast ? left : u->abreast;
}

/* Queries of the unit into lanes, and the vectors of its calls: everything but what a block brings. */
static void open_rows(const attend_work *work, const unit *u, cpu_worker *w, cpu_query_row *vectors)
{
    const ops_step *step = work->step;
    const ops_drafter *d = step->backend->model->drafter;
    size_t dim = (size_t)d->head_dim, row = (size_t)u->heads * dim;
    float scale = 1.0f / sqrtf((float)d->head_dim) * LOG2_E;
    for (int n = 0; n < LANES; n++) w->factor[n] = scale;
    for (int v = 0; v < u->vectors; v++) {
        float *lanes = w->query + (size_t)v * dim * LANES;
        const float *q = step->draft.q + ((int64_t)(u->s->first + v * u->abreast) * d->heads + u->head) * d->head_dim;
        int rows = rows_of(u, v);
        if (rows > 1) {
            for (int i = 0; i < rows; i++)
                memcpy(w->attend + (size_t)i * row, q + i * d->heads * d->head_dim, row * sizeof *q);
            q = w->attend;
        }
        step->backend->blocks->query_lanes(q, dim, rows * u->heads, d->head_dim, lanes);
        vectors[v] = (cpu_query_row){.query = lanes,
                                     .factor = w->factor,
                                     .first = true,
                                     .state = &w->state[v],
                                     .out = w->out + (size_t)v * dim * LANES};
    }
}

/* Only rows [from, to) of a vector see a block: the lanes of the others stay as they are. A state that has not begun
 * becomes one into which a block folds as if it were the first. */
static void hide_rows(const unit *u, int from, int to, int dim, cpu_query_row *vector, int32_t *seen)
{
    for (int n = 0; n < LANES; n++) seen[n] = n >= from * u->heads && n < to * u->heads ? vector->tokens : 0;
    vector->visible = seen;
    if (!vector->first) return;
    for (int n = 0; n < LANES; n++) vector->state->max[n] = -FLT_MAX, vector->state->sum[n] = 0;
    memset(vector->out, 0, (size_t)dim * LANES * sizeof *vector->out);
    vector->first = false;
}

/* Tokens [first, end) of block b into row k alone. */
static void attend_row(const attend_work *work, const unit *u, int32_t b, int k, int first, int end,
                       cpu_query_row *vectors, cpu_worker *w)
{
    int32_t seen[LANES];
    int v = k / u->abreast, place = k % u->abreast;
    cpu_block block = block_at(work, u, b, first);
    vectors[v].tokens = end - first, vectors[v].visible = NULL;
    if (rows_of(u, v) > 1)
        hide_rows(u, place, place + 1, work->step->backend->model->drafter->head_dim, &vectors[v], seen);
    work->step->backend->blocks->attend(&block, &vectors[v], 1, w->attend);
    vectors[v].first = false;
}

/* Block b into the rows that see some of it. These come first; where the window begins in the block each of them sees
 * from a token on that is one behind that of the row before: up to the last of these tokens a row goes alone. */
static void attend_block(const attend_work *work, const unit *u, int32_t b, cpu_query_row *vectors, cpu_worker *w)
{
    cpu_query_row whole[DRAFT_MAX_BLOCK];
    int32_t seen[DRAFT_MAX_BLOCK][LANES];
    int count = 0, rows = 0, common = 0, first = 0, end = 0, dim = work->step->backend->model->drafter->head_dim;
    while (rows < u->s->how->rows && visible(work, u, b, rows, &first, &end)) rows++, common = first;
    if (rows == 0) return;
    for (int k = 0; k < rows; k++)
        if (visible(work, u, b, k, &first, &end) && first < common)
            attend_row(work, u, b, k, first, common, vectors, w);
    for (int v = 0; v * u->abreast < rows; v++) {
        int here = rows - v * u->abreast;
        vectors[v].tokens = end - common, vectors[v].visible = NULL;
        if (here < rows_of(u, v)) hide_rows(u, 0, here, dim, &vectors[v], seen[v]);
        whole[count++] = vectors[v];
        vectors[v].first = false;
    }
    cpu_block block = block_at(work, u, b, common);
    work->step->backend->blocks->attend(&block, whole, count, w->attend);
}

/* O / L of the rows of vector v. */
static void close_rows(const attend_work *work, const unit *u, int v, const cpu_softmax *state, const float *out,
                       cpu_worker *w)
{
    const ops_step *step = work->step;
    const ops_drafter *d = step->backend->model->drafter;
    float *to = step->draft.attention + ((int64_t)(u->s->first + v * u->abreast) * d->heads + u->head) * d->head_dim;
    size_t dim = (size_t)d->head_dim, row = (size_t)u->heads * dim;
    int rows = rows_of(u, v);
    step->backend->blocks->finish(state, out, 1, d->head_dim, rows * u->heads, rows > 1 ? w->attend : to, dim);
    for (int i = 0; i < rows && rows > 1; i++)
        memcpy(to + i * d->heads * d->head_dim, w->attend + (size_t)i * row, row * sizeof *to);
}

static void attend_units(void *arg, int64_t begin, int64_t end, int worker)
{
    const attend_work *work = arg;
    cpu_worker *w = &work->step->worker[worker];
    for (int64_t which = begin; which < end; which++) {
        unit u = unit_at(work, which);
        cpu_query_row vectors[DRAFT_MAX_BLOCK];
        open_rows(work, &u, w, vectors);
        for (int32_t b = 0; b < u.blocks; b++) attend_block(work, &u, b, vectors, w);
        for (int v = 0; v < u.vectors; v++) close_rows(work, &u, v, vectors[v].state, vectors[v].out, w);
    }
}

/* ---- Blocks of a unit over the workers --------------------------------------------------------------------------- */

/* One round: blocks [first, first + blocks) of each unit. */
typedef struct part_work {
    attend_work attend;
    int32_t first, blocks;
} part_work;

static cpu_softmax *part_state(const ops_step *step, int64_t part, int k)
{
    return &step->draft.part_state[part * DRAFT_MAX_BLOCK + k];
}

static float *part_out(const ops_step *step, int64_t part, int k)
{
    int64_t floats = (int64_t)step->backend->model->drafter->head_dim * LANES;
    return step->draft.part_out + (part * DRAFT_MAX_BLOCK + k) * floats;
}

static void attend_parts(void *arg, int64_t begin, int64_t end, int worker)
{
    const part_work *work = arg;
    const ops_step *step = work->attend.step;
    cpu_worker *w = &step->worker[worker];
    for (int64_t part = begin; part < end; part++) {
        unit u = unit_at(&work->attend, part / work->blocks);
        int32_t b = work->first + (int32_t)(part % work->blocks);
        cpu_query_row vectors[DRAFT_MAX_BLOCK];
        if (b >= u.blocks) continue;
        open_rows(&work->attend, &u, w, vectors);
        for (int v = 0; v < u.vectors; v++)
            vectors[v].state = part_state(step, part, v), vectors[v].out = part_out(step, part, v);
        attend_block(&work->attend, &u, b, vectors, w);
    }
}

/* Whether some row of vector v sees block b. */
static bool seen_by(const attend_work *work, const unit *u, int32_t b, int v)
{
    int first, end; /* the window moves on by a key a row: the first row sees the most */
    return visible(work, u, b, v * u->abreast, &first, &end);
}

/* Item: vector v of a unit. */
static void fold_parts(void *arg, int64_t begin, int64_t end, int worker)
{
    const part_work *work = arg;
    const ops_step *step = work->attend.step;
    int dim = step->backend->model->drafter->head_dim;
    for (int64_t item = begin; item < end; item++) {
        int64_t which = item / DRAFT_MAX_BLOCK;
        int v = (int)(item % DRAFT_MAX_BLOCK);
        unit u = unit_at(&work->attend, which);
        if (v >= u.vectors || work->first >= u.blocks) continue;
        cpu_softmax *state = part_state(step, step->draft.parts + which, v);
        float *out = part_out(step, step->draft.parts + which, v);
        for (int32_t b = work->first; b < work->first + work->blocks && b < u.blocks; b++) {
            int64_t part = which * work->blocks + b - work->first;
            if (!seen_by(&work->attend, &u, b, v)) continue;
            if (b > 0 && seen_by(&work->attend, &u, b - 1, v)) {
                step->backend->blocks->fold(state, out, part_state(step, part, v), part_out(step, part, v), dim);
                continue;
            }
            *state = *part_state(step, part, v);
            memcpy(out, part_out(step, part, v), (size_t)dim * LANES * sizeof *out);
        }
        if (work->first + work->blocks >= u.blocks) close_rows(&work->attend, &u, v, state, out, &step->worker[worker]);
    }
}

/* Rounds of as many blocks of every unit as there are parts. */
static void attend_split(const attend_work *attend, int64_t units)
{
    ops_step *step = attend->step;
    int32_t most = 0;
    for (int64_t which = 0; which < units; which++) {
        unit u = unit_at(attend, which);
        if (u.blocks > most) most = u.blocks;
    }
    int32_t room = (int32_t)(step->draft.parts / units);
    for (part_work work = {.attend = *attend}; work.first < most; work.first += room) {
        work.blocks = most - work.first < room ? most - work.first : room;
        cpu_stage(step, units * work.blocks, attend_parts, &work, sizeof work);
        cpu_stage(step, units * DRAFT_MAX_BLOCK, fold_parts, &work, sizeof work);
    }
}

void cpu_draft_attend(ops_step *step, int layer)
{
    const ops_drafter *d = step->backend->model->drafter;
    attend_work work = {step, layer, (d->heads / d->kv_heads + LANES - 1) / LANES};
    int64_t units = (int64_t)step->draft.count * d->kv_heads * work.head_tiles;
    if (units <= step->draft.open_parts && units % step->workers != 0)
        attend_split(&work, units);
    else
        cpu_stage(step, units, attend_units, &work, sizeof work);
}
