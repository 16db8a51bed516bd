/*
 * Exact attention over blocks.
 *
 *     a_h(p) = sum_j softmax_j(scale q_h(p) . k_j) v_j,  scale = 1 / sqrt(head_dim)
 *
 * over the tokens j <= p of the selected blocks (of all blocks on a dense layer). An item is some rows of a tile of one
 * sequence, a KV head and up to 16 of its query heads. It walks the union of the rows' blocks in ascending order,
 * decodes each once, and folds it into the state of every row that takes it, so that a row sees its own blocks in
 * ascending order whoever shares the tile. Bytes read: one KV head of a block per item; a block costs
 * 2 * 128 * head_dim * 16 multiply-adds per row.
 *
 * With at most 8 heads to a KV head floor(16 / heads) rows stand side by side in the 16 lanes. A lane is a chain of its
 * own and sees its own number of tokens of a block, so nothing changes but the time: a block costs once for the rows
 * side by side if one of them takes it. What a lane does not see has the weight 0, which keeps all out of it but values
 * that are not finite; rows that get a NaN are done again one by one. (Where values of a bf16 cache are so small that a
 * sum vanishes, the sign of its zero may be another; no later operation can tell.)
 *
 * With few rows the blocks of one row are spread over the workers: each leaves its maximum, sum and output as a part,
 * and the parts are folded in order afterwards. The first block of a row becomes its state as it is, the next are
 * folded in, so that both ways do the same.
 */
#include "backend/cpu/cpu.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504f

typedef struct attend_work {
    ops_step *step;
    int layer;
    int head_tiles;     /* ceil(query heads of a KV head / 16) */
    int abreast;        /* rows side by side in the lanes */
    int rows_per_item;  /* a divisor of ROW_TILE */
    int items_per_tile; /* of the longest tile and one KV head's 16 heads */
} attend_work;

/* Rows [first, first + count) of one sequence, one KV head and up to 16 of its query heads. */
typedef struct attend_item {
    int32_t first, count, sequence;
    int group;                       /* KV head */
    int64_t head;                    /* first query head */
    int heads;                       /* at most 16 */
    int abreast;                     /* rows side by side, heads * abreast <= 16: row r is in vector r / abreast */
    const int32_t *blocks[ROW_TILE]; /* what is left of a row's list; NULL on a dense layer */
    int left[ROW_TILE];              /* entries, or on a dense layer unused */
    int32_t count_blocks;            /* of the last row on a dense layer */
} attend_item;

/* The heads of item `which` of a row: KV head, first query head, how many. */
static void take_heads(const attend_work *work, int64_t which, attend_item *item)
{
    const ops_model *m = work->step->backend->model;
    int per_group = m->heads / m->kv_heads, first = (int)(which % work->head_tiles) * LANES;
    item->group = (int)(which / work->head_tiles);
    item->head = (int64_t)item->group * per_group + first;
    item->heads = per_group - first < LANES ? per_group - first : LANES;
    item->abreast = 1;
}

/* How many of the item's rows stand abreast from row r on. */
static int rows_abreast(const attend_item *item, int r)
{
    return item->count - r < item->abreast ? item->count - r : item->abreast;
}

/* The blocks that row t takes of a KV head. A replayed list may name blocks behind the row's position: they are not
 * there to be read. */
static int take_blocks(const ops_step *step, int64_t t, int group, const int32_t **blocks)
{
    const ops_model *m = step->backend->model;
    int n = m->index_top;
    *blocks = step->blocks + (t * m->index_heads + group) * m->index_top;
    while (n > 0 && ((*blocks)[n - 1] < 0 || (*blocks)[n - 1] > step->rows.position[t] / CACHE_BLOCK)) n--;
    return n;
}

/* Queries of the item's heads into lanes: w->query and w->factor of each vector. */
static void open_rows(const attend_work *work, const attend_item *item, cpu_worker *w)
{
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const cpu_blocks *blocks = step->backend->blocks;
    float scale = 1.0f / sqrtf((float)m->head_dim) * LOG2_E;
    if (step->cache->layout.main == CACHE_FP8) scale *= m->layer[work->layer].k_scale;
    bool pairs = cpu_cache_pairs(step->cache, step->cache->layout.main);
    size_t dim = (size_t)m->head_dim, row = (size_t)item->heads * dim;
    for (int r = 0, v = 0; r < item->count; r += item->abreast, v++) {
        const float *q = step->q + ((item->first + r) * m->heads + item->head) * m->head_dim;
        float *factor = w->factor + v * LANES, *lanes = w->query + (size_t)v * dim * LANES;
        int rows = rows_abreast(item, r), heads = rows * item->heads;
        if (rows > 1) {
            for (int i = 0; i < rows; i++)
                memcpy(w->attend + (size_t)i * row, q + i * m->heads * m->head_dim, row * sizeof *q);
            q = w->attend;
        }
        for (int n = 0; n < LANES; n++) factor[n] = 1;
        if (pairs)
            blocks->query_pairs(q, dim, heads, m->head_dim, (int32_t *)lanes, factor);
        else
            blocks->query_lanes(q, dim, heads, m->head_dim, lanes);
        for (int n = 0; n < LANES; n++) factor[n] *= scale;
    }
}

/* O / L, rounded to bf16, of `rows` rows abreast from row t on. */
static void close_rows(const attend_work *work, const attend_item *item, int32_t t, int rows, const cpu_softmax *state,
                       const float *out, cpu_worker *w)
{
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    float factor = step->cache->layout.main == CACHE_FP8 ? m->layer[work->layer].v_scale : 1;
    float *to = step->attention + ((int64_t)t * m->heads + item->head) * m->head_dim;
    size_t dim = (size_t)m->head_dim, row = (size_t)item->heads * dim;
    step->backend->blocks->finish(state, out, factor, m->head_dim, rows * item->heads, rows > 1 ? w->attend : to, dim);
    if (rows == 1) return;
    for (int i = 0; i < rows; i++)
        memcpy(to + i * m->heads * m->head_dim, w->attend + (size_t)i * row, row * sizeof *to);
}

/* ---- Rows that share blocks ------------------------------------------------------------------------------------- */

/* The lowest block that some row still has to take, -1: none. */
static int32_t next_block(const attend_item *item)
{
    int32_t next = -1;
    for (int r = 0; r < item->count; r++)
        if (item->left[r] > 0 && *item->blocks[r] >= 0 && (next < 0 || *item->blocks[r] < next))
            next = *item->blocks[r];
    return next;
}

/* How many tokens row r sees of logical block b, which it has then taken. */
static int take_tokens(const attend_work *work, attend_item *item, int r, int32_t b)
{
    if (item->blocks[r]) {
        if (item->left[r] == 0 || *item->blocks[r] != b) return 0;
        item->blocks[r]++, item->left[r]--;
    }
    int64_t visible = work->step->rows.position[item->first + r] + 1 - (int64_t)b * CACHE_BLOCK;
    return visible <= 0 ? 0 : visible < CACHE_BLOCK ? (int)visible : CACHE_BLOCK;
}

/* A state into which a block folds as if it were the first: lanes then begin with different blocks. */
static void open_state(cpu_softmax *state, float *out, size_t floats)
{
    for (int n = 0; n < LANES; n++) state->max[n] = -FLT_MAX, state->sum[n] = 0;
    memset(out, 0, floats * sizeof *out);
}

/* Logical block b into the rows that take it. */
static void fold_block(const attend_work *work, attend_item *item, cpu_worker *w, int32_t b, bool *seen)
{
    ops_step *step = work->step;
    size_t row_floats = (size_t)step->backend->model->head_dim * LANES;
    int32_t visible[ROW_TILE][LANES];
    cpu_query_row rows[ROW_TILE];
    int n = 0;
    for (int r = 0, v = 0; r < item->count; r += item->abreast, v++) {
        int most = 0, least = CACHE_BLOCK, abreast = rows_abreast(item, r);
        memset(visible[v], 0, sizeof visible[v]);
        for (int i = 0; i < abreast; i++) {
            int tokens = take_tokens(work, item, r + i, b);
            for (int h = 0; h < item->heads; h++) visible[v][i * item->heads + h] = tokens;
            if (tokens > most) most = tokens;
            if (tokens < least) least = tokens;
        }
        if (most == 0) continue;
        cpu_query_row row = {.query = w->query + (size_t)v * row_floats,
                             .factor = w->factor + v * LANES,
                             .tokens = most,
                             .visible = least < most ? visible[v] : NULL,
                             .first = !seen[v],
                             .state = &w->state[v],
                             .out = w->out + (size_t)v * row_floats};
        if (row.visible && row.first) {
            open_state(row.state, row.out, row_floats);
            row.first = false;
        }
        seen[v] = true;
        rows[n++] = row;
    }
    if (n == 0) return;
    int32_t next = item->blocks[0] ? next_block(item) : b + 1 < item->count_blocks ? b + 1 : -1;
    cpu_block block = cpu_cache_head(step->cache, work->layer, item->group, cpu_cache_block(step, item->sequence, b),
                                     next < 0 ? -1 : cpu_cache_block(step, item->sequence, next));
    const uint8_t *follows = block.next;
    for (int i = 0; i < n; i += ATTEND_ROWS) {
        bool last = n - i <= ATTEND_ROWS;
        block.next = last ? follows : NULL;
        step->backend->blocks->attend(&block, rows + i, last ? n - i : ATTEND_ROWS, w->attend);
    }
}

static void attend_rows(const attend_work *work, attend_item *item, cpu_worker *w)
{
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    bool seen[ROW_TILE] = {false};
    open_rows(work, item, w);
    if (m->layer[work->layer].sparse) {
        for (int r = 0; r < item->count; r++)
            item->left[r] = take_blocks(step, item->first + r, item->group, &item->blocks[r]);
        for (int32_t b; (b = next_block(item)) >= 0;) fold_block(work, item, w, b, seen);
    } else {
        item->count_blocks = step->rows.position[item->first + item->count - 1] / CACHE_BLOCK + 1;
        for (int32_t b = 0; b < item->count_blocks; b++) fold_block(work, item, w, b, seen);
    }
    for (int r = 0, v = 0; r < item->count; r += item->abreast, v++)
        close_rows(work, item, item->first + r, rows_abreast(item, r), &w->state[v],
                   w->out + (size_t)v * (size_t)m->head_dim * LANES, w);
}

/* Whether a result of the item is NaN. */
static bool has_nan(const ops_step *step, const attend_item *item)
{
    const ops_model *m = step->backend->model;
    for (int r = 0; r < item->count; r++) {
        const float *a = step->attention + ((int64_t)(item->first + r) * m->heads + item->head) * m->head_dim;
        for (int i = 0; i < item->heads * m->head_dim; i++)
            if (isnan(a[i])) return true;
    }
    return false;
}

static void attend_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const attend_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    cpu_worker *w = &step->worker[worker];
    int64_t per_tile = work->items_per_tile, per_rows = m->kv_heads * work->head_tiles;
    for (int64_t i = begin; i < end; i++) {
        const cpu_tile *tile = &step->tiles[i / per_rows / per_tile];
        int32_t first = (int32_t)(i / per_rows % per_tile) * work->rows_per_item, left = tile->count - first;
        if (left <= 0) continue;
        attend_item item = {.first = tile->first + first, .sequence = tile->sequence};
        item.count = left < work->rows_per_item ? left : work->rows_per_item;
        take_heads(work, i % per_rows, &item);
        item.abreast = work->abreast;
        attend_rows(work, &item, w);
        if (rows_abreast(&item, 0) == 1 || !has_nan(step, &item)) continue;
        item.abreast = 1;
        attend_rows(work, &item, w);
    }
}

/* ---- Blocks of a row over the workers --------------------------------------------------------------------------- */

/* One round: blocks [first, first + blocks) of each list. */
typedef struct part_work {
    attend_work attend;
    int32_t first, blocks;
    int32_t run;  /* blocks of one part item */
    int64_t runs; /* ceil(blocks / run) */
} part_work;

/* Row and heads of item `which`, and how many blocks it takes. */
static int32_t part_item(const part_work *work, int64_t which, attend_item *item)
{
    const ops_step *step = work->attend.step;
    const ops_model *m = step->backend->model;
    int64_t per_row = m->kv_heads * work->attend.head_tiles;
    int32_t t = (int32_t)(which / per_row);
    *item = (attend_item){.first = t, .count = 1, .sequence = step->rows.sequence[t]};
    if (item->sequence < 0) return 0;
    take_heads(&work->attend, which % per_row, item);
    if (!m->layer[work->attend.layer].sparse) return step->rows.position[t] / CACHE_BLOCK + 1;
    return take_blocks(step, t, item->group, &item->blocks[0]);
}

static void attend_parts(void *arg, int64_t begin, int64_t end, int worker)
{
    const part_work *work = arg;
    ops_step *step = work->attend.step;
    cpu_worker *w = &step->worker[worker];
    for (int64_t i = begin; i < end; i++) {
        attend_item item;
        int64_t which = i / work->runs;
        int32_t count = part_item(work, which, &item), at = (int32_t)(i % work->runs) * work->run;
        int32_t last = at + work->run < work->blocks ? at + work->run : work->blocks;
        if (last > count - work->first) last = count - work->first;
        if (at >= last) continue;
        open_rows(&work->attend, &item, w);
        for (; at < last; at++) {
            int32_t b = item.blocks[0] ? item.blocks[0][work->first + at] : work->first + at;
            int64_t part = which * work->blocks + at, visible = step->rows.position[item.first] + 1;
            visible -= (int64_t)b * CACHE_BLOCK;
            cpu_query_row row = {.query = w->query,
                                 .factor = w->factor,
                                 .tokens = visible < CACHE_BLOCK ? (int)visible : CACHE_BLOCK,
                                 .first = true,
                                 .state = &step->part_state[part],
                                 .out = step->part_out + part * step->backend->model->head_dim * LANES};
            cpu_block block = cpu_cache_head(step->cache, work->attend.layer, item.group,
                                             cpu_cache_block(step, item.sequence, b), -1);
            step->backend->blocks->attend(&block, &row, 1, w->attend);
        }
    }
}

static void fold_parts(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const part_work *work = arg;
    ops_step *step = work->attend.step;
    const cpu_blocks *blocks = step->backend->blocks;
    int dim = step->backend->model->head_dim;
    size_t floats = (size_t)dim * LANES;
    for (int64_t which = begin; which < end; which++) {
        attend_item item;
        int32_t count = part_item(work, which, &item), left = count - work->first;
        cpu_softmax *state = &step->part_state[step->parts + which];
        float *out = step->part_out + (size_t)(step->parts + which) * floats;
        for (int32_t at = 0; at < work->blocks && at < left; at++) {
            size_t part = (size_t)(which * work->blocks + at);
            if (work->first + at > 0) {
                blocks->fold(state, out, &step->part_state[part], step->part_out + part * floats, dim);
                continue;
            }
            *state = step->part_state[part];
            memcpy(out, step->part_out + part * floats, floats * sizeof *out);
        }
        if (left > 0 && left <= work->blocks) close_rows(&work->attend, &item, item.first, 1, state, out, NULL);
    }
}

/* Rounds of as many blocks of every row and head as there are parts. */
static void attend_split(const attend_work *attend, int64_t items)
{
    ops_step *step = attend->step;
    const ops_model *m = step->backend->model;
    part_work work = {.attend = *attend};
    int32_t most = 0; /* blocks that a row can take; which they are is not known yet */
    for (int32_t t = 0; t < step->rows.count; t++) {
        int32_t count = step->rows.sequence[t] < 0 ? 0 : step->rows.position[t] / CACHE_BLOCK + 1;
        if (m->layer[attend->layer].sparse && count > m->index_top) count = m->index_top;
        if (count > most) most = count;
    }
    int32_t room = (int32_t)(step->parts / items);
    for (; work.first < most; work.first += room) {
        work.blocks = most - work.first < room ? most - work.first : room;
        work.run = (int32_t)(items * work.blocks / (4 * step->workers));
        if (work.run < 1) work.run = 1;
        work.runs = (work.blocks + work.run - 1) / work.run;
        cpu_stage(step, items * work.runs, attend_parts, &work, sizeof work);
        cpu_stage(step, items, fold_parts, &work, sizeof work);
    }
}

/* Items of whole tiles where there are enough of them, else of fewer rows, else single blocks. Rows abreast go apart
 * only where workers would have nothing to do. */
void cpu_attend(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    for (int32_t t = 0; t < step->rows.count; t++)
        if (step->rows.sequence[t] < 0)
            memset(step->attention + (int64_t)t * m->heads * m->head_dim, 0,
                   (size_t)(m->heads * m->head_dim) * sizeof(float));
    int per_group = m->heads / m->kv_heads;
    attend_work work = {.step = step,
                        .layer = layer,
                        .head_tiles = (per_group + LANES - 1) / LANES,
                        .abreast = per_group < LANES ? LANES / per_group : 1,
                        .rows_per_item = ROW_TILE,
                        .items_per_tile = 1};
    int64_t heads = m->kv_heads * work.head_tiles, items, all = step->rows.count * heads;
    for (;; work.rows_per_item /= 2) {
        items = 0;
        for (int32_t i = 0; i < step->tile_count; i++) {
            int of_tile = (step->tiles[i].count + work.rows_per_item - 1) / work.rows_per_item;
            if (of_tile > work.items_per_tile) work.items_per_tile = of_tile;
            items += of_tile * heads;
        }
        int64_t enough = work.rows_per_item > work.abreast ? 4 * step->workers : step->workers;
        if (items >= enough || work.rows_per_item == 1) break;
    }
    if (all <= step->open_parts && items % step->workers != 0)
        attend_split(&work, all);
    else
        cpu_stage(step, step->tile_count * work.items_per_tile * heads, attend_items, &work, sizeof work);
}
