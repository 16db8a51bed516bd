/*
 * Which blocks a row attends to on a sparse layer.
 *
 *     m_b = max over visible tokens j of block b of index_q_r . index_k_j      (NaN counts as -inf)
 *     selected: the last index_local visible blocks, then the largest m_b, ties to the lower number; index_top in all
 *
 * Scoring decodes a block once, tokens in lanes, for all index heads of all rows of a tile. Selection works on 64-bit
 * keys whose order is the total order: score, made to sort as an unsigned number, above the complement of the block.
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
} score_work;

/* The largest of the first `tokens` sums [panels][16]; NaN compares false. */
static float largest(const float *sums, int tokens, float m)
{
    for (int t = 0; t < tokens; t++)
        if (sums[t] > m) m = sums[t];
    return m;
}

/* Block b of every row of a tile. */
static void score_block(const score_work *work, const cpu_tile *tile, cpu_worker *w, int32_t b)
{
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    int rows = tile->count * m->index_heads, dim = m->index_dim;
    size_t panel = (size_t)dim * LANES;
    const float *q = step->index_q + (int64_t)tile->first * m->index_heads * dim;
    float *scores = step->scores + (int64_t)tile->first * m->index_heads * step->max_blocks + b;
    for (int i = 0; i < rows; i++) scores[(int64_t)i * step->max_blocks] = -INFINITY;
    if (b > step->rows.position[tile->first + tile->count - 1] / CACHE_BLOCK) return; /* no row sees it */

    cpu_cache_index_keys(step->cache, work->layer, cpu_cache_block(step, tile->sequence, b), w->bytes, w->keys);
    for (int first = 0; first < CACHE_BLOCK; first += MAX_PANELS * LANES) {
        const float *x[TILE_ROWS];
        for (int i = 0; i < rows; i += TILE_ROWS) {
            int n = rows - i < TILE_ROWS ? rows - i : TILE_ROWS;
            for (int j = 0; j < n; j++) x[j] = q + (int64_t)(i + j) * dim;
            memset(w->index_sums, 0, (size_t)n * MAX_PANELS * LANES * sizeof(float));
            step->backend->kernels->product(x, n, w->keys + (size_t)(first / LANES) * panel, panel, MAX_PANELS, dim,
                                            w->index_sums);
            for (int j = 0; j < n; j++) {
                float *score = &scores[(int64_t)(i + j) * step->max_blocks];
                int64_t position = step->rows.position[tile->first + (i + j) / m->index_heads];
                int64_t tokens = position + 1 - (int64_t)b * CACHE_BLOCK - first;
                if (tokens > MAX_PANELS * LANES) tokens = MAX_PANELS * LANES;
                *score = largest(w->index_sums + j * MAX_PANELS * LANES, (int)tokens, *score);
            }
        }
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
        for (; b < last; b++) score_block(work, tile, &step->worker[worker], b);
    }
}

static void score(ops_step *step, int layer, int32_t first, int32_t count, bool needed)
{
    step->index_layer = layer;
    int32_t last = first < step->max_blocks && count > step->max_blocks - first ? step->max_blocks : first + count;
    if (first < 0 || last <= first || first >= step->max_blocks) return;
    score_work work = {step, layer, first, last, (last - first + SCORE_BLOCKS - 1) / SCORE_BLOCKS, needed};
    cpu_parallel(step, step->tile_count * work.spans, score_items, &work);
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

/* Keeps list [top], best first, 0 for empty places. */
static void keep_best(uint64_t *list, int top, uint64_t key)
{
    if (key <= list[top - 1]) return;
    int i = top - 1;
    for (; i > 0 && key > list[i - 1]; i--) list[i] = list[i - 1];
    list[i] = key;
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
            for (int32_t b = work->first; b < last; b++)
                keep_best(list, m->index_top, key_of(scores[b], b, b >= visible - m->index_local));
        }
    }
}

void cpu_index_top(ops_step *step, int32_t part, int32_t first, int32_t count)
{
    choice_work work = {step, part, 0, first, first + count};
    cpu_parallel(step, step->rows.count, top_rows, &work);
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
            const int32_t *replay =
                step->rows.replay_blocks + ((int64_t)step->index_layer * step->rows.count + t) * per_row;
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
    choice_work work = {step, 0, parts, 0, 0};
    cpu_parallel(step, step->rows.count, merge_rows, &work);
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
    choice_work work = {step, 0, 1, 0, step->max_blocks};
    cpu_parallel(step, step->rows.count, select_rows, &work);
}
