/*
 * Exact attention over blocks.
 *
 *     a_h(p) = sum_j softmax_j(scale q_h(p) . k_j) v_j,  scale = 1 / sqrt(head_dim)
 *
 * over the tokens j <= p of the selected blocks (of all blocks on a dense layer). An item is a tile of rows of one
 * sequence, a KV head and up to 16 of its query heads. It walks the union of the tile's blocks in ascending order,
 * decodes each once, and folds it into the state of every row that takes it, so that a row sees its own blocks in
 * ascending order whoever shares the tile. Bytes read: one KV head of a block per tile; a block costs
 * 2 * 128 * head_dim * 16 multiply-adds per row.
 */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "number/bf16.h"

typedef struct attend_work {
    ops_step *step;
    int layer;
    int head_tiles; /* ceil(query heads of a KV head / 16) */
} attend_work;

/* One item. */
typedef struct attend_item {
    const cpu_tile *tile;
    int group;                       /* KV head */
    int64_t head;                    /* first query head */
    int heads;                       /* at most 16 */
    const int32_t *blocks[ROW_TILE]; /* what is left of a row's list; NULL on a dense layer */
    int left[ROW_TILE];              /* entries, or on a dense layer unused */
} attend_item;

/* Queries of the item's heads into lanes: w->query [rows][head_dim][16]; clears the outputs and states. */
static void open_rows(const ops_step *step, const attend_item *item, cpu_worker *w)
{
    const ops_model *m = step->backend->model;
    size_t row = (size_t)m->head_dim * LANES;
    memset(w->query, 0, (size_t)item->tile->count * row * sizeof(float));
    memset(w->out, 0, (size_t)item->tile->count * row * sizeof(float));
    for (int r = 0; r < item->tile->count; r++) {
        const float *q = step->q + ((int64_t)(item->tile->first + r) * m->heads + item->head) * m->head_dim;
        for (int h = 0; h < item->heads; h++)
            for (int d = 0; d < m->head_dim; d++)
                w->query[(size_t)r * row + (size_t)(d * LANES + h)] = q[h * m->head_dim + d];
        for (int n = 0; n < LANES; n++) w->state[r].max[n] = -INFINITY, w->state[r].sum[n] = 0;
    }
}

/* Folds logical block b into the rows that take it. */
static void fold_block(const attend_work *work, attend_item *item, cpu_worker *w, int32_t b)
{
    ops_step *step = work->step;
    const ops_backend *backend = step->backend;
    int dim = backend->model->head_dim;
    float scale = 1.0f / sqrtf((float)dim);
    const cpu_tile *tile = item->tile;
    int64_t begin = (int64_t)b * CACHE_BLOCK, most = step->rows.position[tile->first + tile->count - 1] + 1 - begin;
    int tokens = most < CACHE_BLOCK ? (int)most : CACHE_BLOCK;
    int32_t block = cpu_cache_block(step, tile->sequence, b);
    cpu_cache_keys(step->cache, work->layer, item->group, block, tokens, w->keys);
    cpu_cache_values(step->cache, work->layer, item->group, block, tokens, w->values);
    for (int r = 0; r < tile->count; r++) {
        if (item->blocks[r]) {
            if (item->left[r] == 0 || *item->blocks[r] != b) continue;
            item->blocks[r]++, item->left[r]--;
        }
        int64_t visible = step->rows.position[tile->first + r] + 1 - begin;
        if (visible <= 0) continue;
        backend->blocks->attend_block(w->query + (size_t)r * (size_t)dim * LANES, w->keys, w->values,
                                       visible < CACHE_BLOCK ? (int)visible : CACHE_BLOCK, dim, scale, &w->state[r],
                                       w->out + (size_t)r * (size_t)dim * LANES, w->block);
    }
}

/* O / L, rounded to bf16. */
static void close_rows(ops_step *step, const attend_item *item, const cpu_worker *w)
{
    const ops_model *m = step->backend->model;
    for (int r = 0; r < item->tile->count; r++) {
        float *out = step->attention + ((int64_t)(item->tile->first + r) * m->heads + item->head) * m->head_dim;
        const float *from = w->out + (size_t)r * (size_t)m->head_dim * LANES;
        for (int h = 0; h < item->heads; h++)
            for (int d = 0; d < m->head_dim; d++)
                out[h * m->head_dim + d] = bf16_round(from[d * LANES + h] / w->state[r].sum[h]);
    }
}

/* The lowest block that some row still has to take, -1: none. */
static int32_t next_block(const attend_item *item)
{
    int32_t next = -1;
    for (int r = 0; r < item->tile->count; r++)
        if (item->left[r] > 0 && *item->blocks[r] >= 0 && (next < 0 || *item->blocks[r] < next))
            next = *item->blocks[r];
    return next;
}

static void attend_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const attend_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    cpu_worker *w = &step->worker[worker];
    int per_group = m->heads / m->kv_heads;
    bool sparse = m->layer[work->layer].sparse;
    for (int64_t i = begin; i < end; i++) {
        int64_t rest = i % (m->kv_heads * work->head_tiles);
        attend_item item = {.tile = &step->tiles[i / (m->kv_heads * work->head_tiles)],
                            .group = (int)(rest / work->head_tiles)};
        int first = (int)(rest % work->head_tiles) * LANES; /* inside the group */
        item.head = (int64_t)item.group * per_group + first;
        item.heads = per_group - first < LANES ? per_group - first : LANES;
        open_rows(step, &item, w);
        if (sparse) {
            for (int r = 0; r < item.tile->count; r++) {
                int64_t t = item.tile->first + r;
                item.blocks[r] = step->blocks + (t * m->index_heads + item.group) * m->index_top;
                item.left[r] = m->index_top;
                /* A replayed list may name blocks behind the row's position: they are not there to be read. */
                while (item.left[r] > 0 && (item.blocks[r][item.left[r] - 1] < 0 ||
                                            item.blocks[r][item.left[r] - 1] > step->rows.position[t] / CACHE_BLOCK))
                    item.left[r]--;
            }
            for (int32_t b; (b = next_block(&item)) >= 0;) fold_block(work, &item, w, b);
        } else {
            int32_t last = step->rows.position[item.tile->first + item.tile->count - 1] / CACHE_BLOCK;
            for (int32_t b = 0; b <= last; b++) fold_block(work, &item, w, b);
        }
        close_rows(step, &item, w);
    }
}

void cpu_attend(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    for (int32_t t = 0; t < step->rows.count; t++)
        if (step->rows.sequence[t] < 0)
            memset(step->attention + (int64_t)t * m->heads * m->head_dim, 0,
                   (size_t)(m->heads * m->head_dim) * sizeof(float));
    attend_work work = {step, layer, (m->heads / m->kv_heads + LANES - 1) / LANES};
    cpu_parallel(step, (int64_t)step->tile_count * m->kv_heads * work.head_tiles, attend_items, &work);
}
