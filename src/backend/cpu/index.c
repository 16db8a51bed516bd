/*
 * Which blocks a row attends to on a sparse layer.
 *
 *     m_b = max over visible tokens j of block b of index_q_r . index_k_j      (NaN counts as -inf)
 *     selected: the last index_local visible blocks, then the largest m_b, ties to the lower number; index_top in all
 *
 * Scoring decodes a block once, tokens in lanes, for all index heads of all rows of a tile: 72 bytes a token of NVFP4
 * keys. Selection works on 64-bit keys whose order is the total order: score, made to sort as an unsigned number, above
 * the complement of the block. As blocks come in ascending order, one enters a full list only with a higher score than
 * the last of the list, which most scores fail in one comparison.
 */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "number/bits.h"

enum { SCORE_BLOCKS = 8 }; /* blocks of one item */

/* ---- Scores ----------------------------------------------------------------------------------------------------- */

typedef struct score_work {
    ops_step *step;
    int layer;
    int32_t first, last; /* blocks */
    int64_t spans;       /* items of a tile */
    bool needed;         /* leave out tiles whose rows take every visible block */
    bool pairs;          /* keys are multiplied as integers */
} score_work;

/* Queries of the rows of tiles [begin, end) as the products take them. */
static void open_columns(void *arg, int64_t begin, int64_t end, int worker)
{
    const score_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    size_t dim = (size_t)m->index_dim, half = dim / 2;
    int32_t *lanes = (int32_t *)step->worker[worker].score;
    for (int64_t i = begin; i < end; i++) {
        const cpu_tile *tile = &step->tiles[i];
        size_t first = (size_t)tile->first * (size_t)m->index_heads, columns = (size_t)(tile->count * m->index_heads);
        for (size_t c = first; c < first + columns; c += LANES) {
            size_t left = first + columns - c, n = left < LANES ? left : LANES;
            float unscale[LANES];
            step->backend->blocks->query_pairs(step->index_q + c * dim, dim, (int)n, m->index_dim, lanes, unscale);
            memcpy(step->index_unscale + c, unscale, n * sizeof *unscale);
            for (size_t h = 0; h < n; h++)
                for (size_t p = 0; p < half; p++)
                    ((int32_t *)step->index_columns)[(c + h) * half + p] = lanes[p * LANES + h];
        }
    }
}

/* Block b of every row of a tile; `more`: the next one follows. */
static void score_block(const score_work *work, const cpu_tile *tile, cpu_worker *w, int32_t b, bool more)
{
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    int columns = tile->count * m->index_heads;
    size_t first = (size_t)tile->first * (size_t)m->index_heads, dim = (size_t)m->index_dim;
    float *scores = step->scores + first * (size_t)step->max_blocks + (size_t)b;
    if (b > step->rows.position[tile->first + tile->count - 1] / CACHE_BLOCK) { /* no row sees it */
        for (int c = 0; c < columns; c++) scores[(size_t)c * (size_t)step->max_blocks] = -INFINITY;
        return;
    }
    for (int c = 0; c < columns; c++) {
        int64_t tokens = step->rows.position[tile->first + c / m->index_heads] + 1 - (int64_t)b * CACHE_BLOCK;
        w->visible[c] = (int32_t)(tokens < 0 ? 0 : tokens < CACHE_BLOCK ? tokens : CACHE_BLOCK);
    }
    const void *query = work->pairs ? (const void *)((const int32_t *)step->index_columns + first * dim / 2)
                                    : (const void *)(step->index_q + first * dim);
    cpu_cache_score(step->cache, work->layer, cpu_cache_block(step, tile->sequence, b),
                    more ? cpu_cache_block(step, tile->sequence, b + 1) : -1, query, columns, w->visible, w->best,
                    w->keys, w->score);
    for (int c = 0; c < columns; c++) {
        float s = work->pairs ? w->best[c] * step->index_unscale[first + (size_t)c] : w->best[c];
        scores[(size_t)c * (size_t)step->max_blocks] = isnan(s) ? -INFINITY : s;
    }
}

static void score_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const score_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    for (int64_t item = begin; item < end; item++) {
        const cpu_tile *tile = &step->tiles[item / work->spans];
        int32_t b = work->first + (int32_t)(item % work->spans) * SCORE_BLOCKS;
        int32_t last = b + SCORE_BLOCKS < work->last ? b + SCORE_BLOCKS : work->last;
        int32_t visible = step->rows.position[tile->first + tile->count - 1] / CACHE_BLOCK + 1;
        if (work->needed && (visible <= m->index_top || b >= visible)) continue;
        for (; b < last; b++) score_block(work, tile, &step->worker[worker], b, b + 1 < last && b + 1 < visible);
    }
}

static void score(ops_step *step, int layer, int32_t first, int32_t count, bool needed)
{
    step->index_layer = layer;
    int32_t last = first < step->max_blocks && count > step->max_blocks - first ? step->max_blocks : first + count;
    int32_t seen = 0; /* blocks of the tiles that are scored */
    for (int32_t i = 0; i < step->tile_count && needed; i++) {
        const cpu_tile *tile = &step->tiles[i];
        int32_t visible = step->rows.position[tile->first + tile->count - 1] / CACHE_BLOCK + 1;
        if (visible > step->backend->model->index_top && visible > seen) seen = visible;
    }
    if (needed && last > seen) last = seen;
    if (first < 0 || last <= first || first >= step->max_blocks) return;
    score_work work = {step,
                       layer,
                       first,
                       last,
                       (last - first + SCORE_BLOCKS - 1) / SCORE_BLOCKS,
                       needed,
                       cpu_cache_pairs(step->cache, step->cache->layout.index)};
    if (work.pairs) cpu_stage(step, step->tile_count, open_columns, &work, sizeof work);
    cpu_stage(step, step->tile_count * work.spans, score_items, &work, sizeof work);
}

void cpu_index_score(ops_step *step, int layer, int32_t first, int32_t count)
{
    score(step, layer, first, count, false);
}

/* ---- Choice ----------------------------------------------------------------------------------------------------- */

#define FORCED ((uint64_t)0xFFFFFFFF) /* above every score */

/* Greater key: chosen before. Never 0. */
static uint64_t key_of(float score, int32_t block, bool forced)
{
    uint32_t u = bits_of_float(isnan(score) ? -INFINITY : score + 0.0f); /* -0 + 0 is 0 */
    uint64_t high = forced ? FORCED : u & 0x80000000 ? (uint32_t)~u : u | 0x80000000;
    return high << 32 | (0xFFFFFFFF - (uint32_t)block);
}

static int32_t block_of(uint64_t key)
{
    return (int32_t)(0xFFFFFFFF - (uint32_t)key);
}

/* The score of a key that is not forced. */
static float score_of(uint64_t key)
{
    uint32_t high = (uint32_t)(key >> 32);
    return float_of_bits(high & 0x80000000 ? high & 0x7FFFFFFF : ~high);
}

/* Keeps list [top], best first, 0 for empty places. */
static void keep_best(uint64_t *list, int top, uint64_t key)
{
    if (key <= list[top - 1]) return;
    int i = top - 1;
    for (; i > 0 && key > list[i - 1]; i--) list[i] = list[i - 1];
    list[i] = key;
}

/* Blocks [b, end), none of them forced, into a full list; returns where the others begin. */
static int32_t keep_higher(uint64_t *list, int top, const float *scores, int32_t b, int32_t end)
{
    enum { RUN = 16 };
    if (b >= end) return b;
    for (; b < end; b += RUN) {
        int n = end - b < RUN ? end - b : RUN, higher = 0;
        float least = score_of(list[top - 1]);
        if (n == RUN)
            for (int i = 0; i < RUN; i++) higher |= scores[b + i] > least;
        for (int i = 0; i < n && (higher || n < RUN); i++) keep_best(list, top, key_of(scores[b + i], b + i, false));
    }
    return end;
}

/* Candidates [index_heads, index_top] of a part and row. */
static uint64_t *candidates(const ops_step *step, int32_t part, int64_t t)
{
    const ops_model *m = step->backend->model;
    return step->candidates + ((int64_t)part * step->limits.rows + t) * m->index_heads * m->index_top;
}

static int32_t visible_blocks(const ops_step *step, int64_t t)
{
    return step->rows.sequence[t] < 0 ? 0 : step->rows.position[t] / CACHE_BLOCK + 1;
}

typedef struct choice_work {
    ops_step *step;
    int layer; /* whose replayed blocks are taken */
    int32_t part, parts, first, last;
} choice_work;

static void top_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const choice_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    for (int64_t t = begin; t < end; t++) {
        uint64_t *list = candidates(step, work->part, t);
        int32_t visible = visible_blocks(step, t), last = work->last < visible ? work->last : visible;
        memset(list, 0, (size_t)(m->index_heads * m->index_top) * sizeof *list);
        for (int r = 0; r < m->index_heads; r++, list += m->index_top) {
            const float *scores = step->scores + (t * m->index_heads + r) * step->max_blocks;
            int32_t b = work->first, local = visible - m->index_local;
            for (; b < last && b < local && !list[m->index_top - 1]; b++)
                keep_best(list, m->index_top, key_of(scores[b], b, false));
            b = keep_higher(list, m->index_top, scores, b, last < local ? last : local);
            for (; b < last; b++) keep_best(list, m->index_top, key_of(scores[b], b, b >= local));
        }
    }
}

void cpu_index_top(ops_step *step, int32_t part, int32_t first, int32_t count)
{
    choice_work work = {step, step->index_layer, part, 0, first, first + count};
    cpu_stage(step, step->rows.count, top_rows, &work, sizeof work);
}

/* The blocks of a list in ascending number, -1 last. */
static void list_blocks(const uint64_t *list, int top, int32_t *out)
{
    int n = 0;
    for (int i = 0; i < top && list[i]; i++) {
        int32_t block = block_of(list[i]);
        int at = n++;
        for (; at > 0 && out[at - 1] > block; at--) out[at] = out[at - 1];
        out[at] = block;
    }
    while (n < top) out[n++] = -1;
}

static void merge_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const choice_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    int per_row = m->index_heads * m->index_top;
    for (int64_t t = begin; t < end; t++) {
        int32_t *out = step->blocks + t * per_row;
        if (step->rows.flags[t] & ROW_REPLAY_BLOCKS) {
            const int32_t *replay = step->rows.replay_blocks + ((int64_t)work->layer * step->rows.count + t) * per_row;
            memcpy(out, replay, (size_t)per_row * sizeof *out);
            continue;
        }
        uint64_t *list = candidates(step, 0, t);
        for (int r = 0; r < m->index_heads; r++) {
            for (int32_t part = 1; part < work->parts; part++) {
                const uint64_t *other = candidates(step, part, t) + r * m->index_top;
                for (int i = 0; i < m->index_top && other[i]; i++)
                    keep_best(list + r * m->index_top, m->index_top, other[i]);
            }
            list_blocks(list + r * m->index_top, m->index_top, out + r * m->index_top);
        }
    }
}

void cpu_index_merge(ops_step *step, int32_t parts)
{
    choice_work work = {step, step->index_layer, 0, parts, 0, 0};
    cpu_stage(step, step->rows.count, merge_rows, &work, sizeof work);
}

/* Rows that see at most index_top blocks take all of them, whatever the scores: their tiles are not scored. */
static void select_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    top_rows(arg, begin, end, worker);
    merge_rows(arg, begin, end, worker);
}

void cpu_index_select(ops_step *step, int layer)
{
    score(step, layer, 0, step->max_blocks, true);
    choice_work work = {step, layer, 0, 1, 0, step->max_blocks};
    cpu_stage(step, step->rows.count, select_rows, &work, sizeof work);
}
