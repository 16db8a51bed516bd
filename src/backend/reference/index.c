/*
 * Which blocks a row attends to on a sparse layer.
 *
 *     m_b = max over the visible keys j of block b of index_q_r . index_k_j
 *     selected = the last index_local visible blocks and those with the largest m_b, index_top in all
 *
 * for every index head r by itself. The order is total: forced blocks, then score descending (-0 equals 0, NaN counts
 * as -inf), then block number ascending; what is selected is listed in ascending number. A score is not scaled: that
 * would not change the order. Formula: transformers, models/minimax_m3_vl (MiniMaxM3VLIndexer).
 */
#include "backend/reference/reference.h"

#include <math.h>
#include <string.h>

static int32_t visible_blocks(const ops_step *step, int32_t t)
{
    return step->rows.sequence[t] < 0 ? 0 : step->rows.position[t] / CACHE_BLOCK + 1;
}

/* ---- Scores --------------------------------------------------------------------------------------------------- */

typedef struct score_work {
    ops_step *step;
    int layer;
    int32_t first, count; /* blocks */
} score_work;

size_t reference_index_scratch(const ops_backend *backend)
{
    return 2 * CACHE_BLOCK * (size_t)backend->model->index_dim;
}

static float block_maximum(const float *q, const float *keys, int dim, int tokens)
{
    float maximum = -INFINITY;
    for (int t0 = 0; t0 < tokens; t0 += REFERENCE_TILE) {
        float acc[REFERENCE_TILE] = {0};
        reference_dot(q, keys + t0 * dim, dim, acc);
        for (int j = 0; j < REFERENCE_TILE && t0 + j < tokens; j++)
            if (acc[j] > maximum) maximum = acc[j]; /* false for NaN */
    }
    return maximum;
}

/* An item is one block of one sequence: its keys are decoded once and meet the sequence's rows. Keys that a row may not
 * see are at the end, so they are decoded (whatever they hold) and left out. */
static void score_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const score_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    float *rows = reference_scratch(step, worker), *keys = rows + CACHE_BLOCK * m->index_dim;
    for (int64_t item = begin; item < end; item++) {
        int32_t sequence = (int32_t)(item / work->count), b = work->first + (int32_t)(item % work->count);
        bool decoded = false;
        for (int32_t t = 0; t < step->rows.count; t++) {
            if (step->rows.sequence[t] != sequence) continue;
            float *scores = step->scores + (int64_t)t * m->index_heads * step->max_blocks + b;
            int32_t tokens = step->rows.position[t] - b * CACHE_BLOCK + 1;
            if (tokens > CACHE_BLOCK) tokens = CACHE_BLOCK;
            if (tokens > 0 && !decoded) {
                int32_t block = reference_cache_block(step, t, b);
                reference_cache_index_keys(step->cache, work->layer, block, CACHE_BLOCK, rows);
                reference_tiles(rows, CACHE_BLOCK, m->index_dim, keys);
                decoded = true;
            }
            for (int r = 0; r < m->index_heads; r++) {
                const float *q = step->index_q + ((int64_t)t * m->index_heads + r) * m->index_dim;
                scores[(int64_t)r * step->max_blocks] =
                    tokens > 0 ? block_maximum(q, keys, m->index_dim, tokens) : -INFINITY;
            }
        }
    }
}

void reference_index_score(ops_step *step, int layer, int32_t first, int32_t count)
{
    step->index_layer = layer;
    if (first + count > step->max_blocks) count = step->max_blocks - first;
    if (count <= 0) return;
    score_work work = {step, layer, first, count};
    reference_parallel(step, (int64_t)step->rows.sequences * count, score_items, &work);
}

/* ---- Choice --------------------------------------------------------------------------------------------------- */

/* The total order. */
static bool better(const reference_candidate *a, const reference_candidate *b)
{
    if (b->block < 0) return true;
    if (a->forced != b->forced) return a->forced;
    if (a->score > b->score) return true;
    if (a->score < b->score) return false;
    return a->block < b->block;
}

/* Keeps list[top] as the best so far, best first; empty places have block -1. */
static void keep_best(reference_candidate *list, int top, reference_candidate c)
{
    if (!better(&c, &list[top - 1])) return;
    int i = top - 1;
    for (; i > 0 && better(&c, &list[i - 1]); i--) list[i] = list[i - 1];
    list[i] = c;
}

/* The candidates of one part, row and index head: [index_top]. */
static reference_candidate *candidates(const ops_step *step, int32_t part, int32_t t, int r)
{
    const ops_model *m = step->backend->model;
    return step->candidates + (((int64_t)part * step->limits.rows + t) * m->index_heads + r) * m->index_top;
}

void reference_index_top(ops_step *step, int32_t part, int32_t first, int32_t count)
{
    const ops_model *m = step->backend->model;
    for (int32_t t = 0; t < step->rows.count; t++) {
        int32_t visible = visible_blocks(step, t), last = first + count < visible ? first + count : visible;
        for (int r = 0; r < m->index_heads; r++) {
            const float *scores = step->scores + ((int64_t)t * m->index_heads + r) * step->max_blocks;
            reference_candidate *list = candidates(step, part, t, r);
            for (int i = 0; i < m->index_top; i++) list[i] = (reference_candidate){-INFINITY, -1, false};
            for (int32_t b = first; b < last; b++) {
                float score = isnan(scores[b]) ? -INFINITY : scores[b];
                keep_best(list, m->index_top, (reference_candidate){score, b, b >= visible - m->index_local});
            }
        }
    }
}

/* Ascending numbers, -1 last. */
static void list_blocks(const reference_candidate *list, int top, int32_t *out)
{
    int n = 0;
    for (int i = 0; i < top && list[i].block >= 0; i++) {
        int at = n++;
        for (; at > 0 && out[at - 1] > list[i].block; at--) out[at] = out[at - 1];
        out[at] = list[i].block;
    }
    while (n < top) out[n++] = -1;
}

void reference_index_merge(ops_step *step, int32_t parts)
{
    const ops_model *m = step->backend->model;
    const ops_rows *rows = &step->rows;
    int64_t per_row = (int64_t)m->index_heads * m->index_top;
    for (int32_t t = 0; t < rows->count; t++) {
        if (rows->flags[t] & ROW_REPLAY_BLOCKS) {
            memcpy(step->blocks + t * per_row,
                   rows->replay_blocks + ((int64_t)step->index_layer * rows->count + t) * per_row,
                   (size_t)per_row * sizeof *step->blocks);
            continue;
        }
        for (int r = 0; r < m->index_heads; r++) {
            reference_candidate *list = candidates(step, 0, t, r);
            for (int32_t part = 1; part < parts; part++) {
                const reference_candidate *other = candidates(step, part, t, r);
                for (int i = 0; i < m->index_top && other[i].block >= 0; i++) keep_best(list, m->index_top, other[i]);
            }
            list_blocks(list, m->index_top, step->blocks + t * per_row + (int64_t)r * m->index_top);
        }
    }
}

void reference_index_select(ops_step *step, int layer)
{
    reference_index_score(step, layer, 0, step->max_blocks);
    reference_index_top(step, 0, 0, step->max_blocks);
    reference_index_merge(step, 1);
}
