/*
 * Attention and block scores of many rows on Hopper's warpgroups: what attend.c asks first. The kernels give the sums
 * of its own in the same order, so that it is speed alone that chooses.
 *
 * Attention over lists has two forms. Rows stay and the blocks of eight rows pass (prefill_rows.cu): nothing but the
 * output is written, and four rows are multiplied with what one of them takes. Blocks stay and the rows that take them
 * pass (prefill_blocks.cu): no product is wasted, and partials are written and read. A step counts how far neighbours
 * agree, in some of its layers, and the next one goes by it: with three of four blocks in common four rows take 28
 * together, for which the first form's bound is 450 TFLOP/s; the second one's is near 300 whatever they take. Bounds
 * are computed, none is measured.
 */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/kernels/prefill.h"
#include "base/error.h"
#include "base/memory.h"

_Static_assert(PREFILL_WAVE % 32 == 0 && PREFILL_WAVE <= 32 * CUDA_WARP, "a lane has a word of a wave's rows");

/* Device memory but for the struct. */
struct cuda_prefill {
    uint32_t *alike;     /* [2] see prefill_lists */
    uint32_t seen[2];    /* of it, when it was read last */
    bool counted;        /* since then */
    uint32_t *takes;     /* and counts behind them */
    prefill_item *items; /* [waves, KV heads, PREFILL_WAVE * top] */
    int32_t *item_counts;
    float *partials; /* [rows of a wave, top, PREFILL_PARTIAL] */
    int32_t keys;    /* that there is room for */
    int32_t waves;
};

/* ---- What it is for ---------------------------------------------------------------------------------------------- */

static bool possible(const ops_backend *b)
{
    return b->options.gpu_wgmma_rows > 0 && b->info.major == 9 && b->info.shared >= (size_t)prefill_rows_shared();
}

/* Most rows follow another one of their sequence: where they do not, a decoded block has one row to serve. All steps,
 * where the option says so: then no row's bits depend on which kernels a step takes. */
static bool many_rows(const ops_step *step)
{
    const ops_backend *b = step->backend;
    int32_t neighbours = 0, count = step->rows.count;
    if (!possible(b) || count < b->options.gpu_wgmma_rows) return false;
    if (b->options.gpu_wgmma_rows == 1) return true;
    for (int32_t t = 1; t < count; t++)
        neighbours += step->rows.sequence[t] >= 0 && step->rows.sequence[t] == step->rows.sequence[t - 1];
    return 4 * (int64_t)neighbours >= 3 * (int64_t)(count - 1);
}

/* Is there a form with blocks that stay for the model? */
static bool has_lists(const ops_model *m)
{
    bool sparse = false;
    for (int l = 0; l < m->layers; l++) sparse |= m->layer[l].sparse;
    return sparse && m->head_dim == PREFILL_DIM && m->index_top <= PREFILL_TOP &&
           m->heads / m->kv_heads <= PREFILL_HEADS;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

hy_status cuda_prefill_open(ops_step *step, hy_error *err)
{
    static const char what[] = "the selection of many rows and partial results of attention";
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    if (!possible(b) || step->limits.rows < b->options.gpu_wgmma_rows || !has_lists(m)) return HY_OK;
    struct cuda_prefill *p = step->prefill = memory_zeroed(1, sizeof *p);
    if (!p) return error_memory(err, what, sizeof *p);
    int32_t rows = step->limits.rows < PREFILL_WAVE ? step->limits.rows : PREFILL_WAVE;
    p->waves = (step->limits.rows + PREFILL_WAVE - 1) / PREFILL_WAVE;
    p->keys = step->max_blocks > PREFILL_KEYS_LEAST ? step->max_blocks : PREFILL_KEYS_LEAST;
    size_t lists = (size_t)p->waves * (size_t)m->kv_heads;
    hy_status status = cuda_step_alloc(step, lists * (size_t)p->keys * (PREFILL_WAVE / 32 + 1) + 4, sizeof(uint32_t),
                                       what, &p->takes, err);
    if (status == HY_OK)
        status = cuda_step_alloc(step, lists * (size_t)(PREFILL_WAVE * m->index_top), sizeof *p->items, what, &p->items,
                                 err);
    if (status == HY_OK) status = cuda_step_alloc(step, 2, sizeof *p->alike, what, &p->alike, err);
    if (status == HY_OK) status = cuda_step_alloc(step, lists, sizeof *p->item_counts, what, &p->item_counts, err);
    if (status == HY_OK)
        status = cuda_step_alloc(step, (size_t)(rows * m->index_top) * PREFILL_PARTIAL, sizeof(float), what,
                                 &p->partials, err);
    return status;
}

void cuda_prefill_finish(ops_step *step)
{
    struct cuda_prefill *p = step->prefill;
    ops_backend *b = step->backend;
    uint32_t now[2];
    if (!p || !p->counted) return;
    b->gpu->calls->read(b->gpu, p->alike, now, sizeof now);
    uint64_t all = now[0] - p->seen[0], same = now[1] - p->seen[1];
    memcpy(p->seen, now, sizeof now);
    p->counted = false;
    b->prefill_alike = 4 * same > 3 * all;
}

void cuda_prefill_close(ops_step *step)
{
    memory_free(step->prefill);
    step->prefill = NULL;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static void prefill_launch(ops_step *step, const char *what, int format, int grid_x, int grid_y, int32_t shared,
                           const void *args, size_t bytes)
{
    static const char *const names[] = {
        [KERNEL_CACHE_BF16] = "bf16", [KERNEL_CACHE_FP8] = "fp8", [KERNEL_CACHE_NVFP4] = "nvfp4"};
    bool rounded = format == KERNEL_CACHE_NVFP4 && step->backend->options.read == READBACK_E4M3;
    char name[64];
    snprintf(name, sizeof name, "prefill_%s_%s", what, rounded ? "nvfp4_e4m3" : names[format]);
    cuda_launch(step, name, grid_x, grid_y, 1, PREFILL_THREADS, (size_t)shared, args, bytes);
}

static float value_scale(const ops_step *step, int layer)
{
    return step->cache->layout.main == CACHE_FP8 ? step->backend->model->layer[layer].v_scale : 1;
}

static void rows_stay(ops_step *step, int layer)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    prefill_rows_args args = {
        .rows = step->device_rows,
        .cache = step->device_cache,
        .q = step->q,
        .blocks = m->layer[layer].sparse ? step->blocks : NULL,
        .attention = step->attention,
        .attention_bf16 = step->attention_bf16,
        .layer_offset = (int64_t)step->cache->layout.main_offset[layer],
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_tiles = (m->heads / m->kv_heads + PREFILL_HEADS - 1) / PREFILL_HEADS,
        .index_heads = m->index_heads,
        .index_top = m->index_top,
        .scale = cuda_attend_scale(step, layer),
        .value_scale = value_scale(step, layer),
    };
    int64_t units = ((int64_t)step->rows.count + PREFILL_ROWS - 1) / PREFILL_ROWS * m->kv_heads * args.head_tiles;
    args.units = (int32_t)units;
    int grid = units < b->info.processors ? (int)units : b->info.processors;
    prefill_launch(step, "rows", args.cache.main, grid, 1, prefill_rows_shared(), &args, sizeof args);
}

/* Rows from `first` on that one inversion takes: as many runs and keys as there is room for. */
static void next_rows(const ops_step *step, int32_t first, prefill_lists *l)
{
    const ops_rows *rows = &step->rows;
    l->first = first, l->count = l->keys = l->runs = 0;
    for (int32_t t = first; t < rows->count;) {
        int32_t end = t + 1;
        while (end < rows->count && rows->sequence[end] == rows->sequence[t]) end++;
        int32_t keys = rows->sequence[t] < 0 ? 0 : rows->position[end - 1] / CACHE_BLOCK + 1;
        if (l->runs == PREFILL_RUNS || l->keys + keys > step->prefill->keys) break;
        l->run_row[l->runs] = t, l->run_key[l->runs++] = l->keys;
        l->keys += keys;
        l->count = end - first;
        t = end;
    }
    assert(l->count > 0);
}

static void blocks_stay(ops_step *step, int layer)
{
    enum { THREADS = 256 };
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const struct cuda_prefill *p = step->prefill;
    prefill_blocks_args args = {
        .lists = {.rows = step->device_rows,
                  .blocks = step->blocks,
                  .takes = p->takes,
                  .items = p->items,
                  .item_counts = p->item_counts,
                  .heads = m->index_heads,
                  .top = m->index_top},
        .cache = step->device_cache,
        .q = step->q,
        .partials = p->partials,
        .attention = step->attention,
        .attention_bf16 = step->attention_bf16,
        .layer_offset = (int64_t)step->cache->layout.main_offset[layer],
        .heads = m->heads,
        .per_group = m->heads / m->kv_heads,
        .scale = cuda_attend_scale(step, layer),
        .value_scale = value_scale(step, layer),
    };
    prefill_lists *l = &args.lists;
    for (int32_t first = 0; first < step->rows.count; first += l->count) {
        next_rows(step, first, l);
        int32_t waves = (l->count + PREFILL_WAVE - 1) / PREFILL_WAVE;
        int64_t words = (int64_t)waves * l->heads * l->keys, places = (int64_t)l->count * l->heads * l->top;
        l->counts = l->takes + words * (PREFILL_WAVE / 32);
        int clears = (int)((words * (PREFILL_WAVE / 32 + 1) / 4 + THREADS) / THREADS);
        cuda_launch(step, "prefill_clear", clears < 8 * b->info.processors ? clears : 8 * b->info.processors, 1, 1,
                    THREADS, 0, l, sizeof *l);
        cuda_launch(step, "prefill_mark", (int)((places + THREADS - 1) / THREADS), 1, 1, THREADS, 0, l, sizeof *l);
        cuda_launch(step, "prefill_list", waves, l->heads, 1, PREFILL_LIST_THREADS, 0, l, sizeof *l);
        for (args.group = 0; args.group < m->kv_heads; args.group++)
            for (args.wave = 0; args.wave < waves; args.wave++) {
                int32_t rows = l->count - args.wave * PREFILL_WAVE;
                if (rows > PREFILL_WAVE) rows = PREFILL_WAVE;
                int64_t items = (int64_t)rows * l->top;
                int grid = items < b->info.processors ? (int)items : b->info.processors;
                prefill_launch(step, "blocks", args.cache.main, grid, 1, prefill_blocks_shared(), &args, sizeof args);
                cuda_launch(step, "prefill_fold", rows, 1, 1, 4 * CUDA_WARP, 0, &args, sizeof args);
            }
    }
}

static void count_alike(ops_step *step)
{
    enum { THREADS = 256 };
    const ops_model *m = step->backend->model;
    prefill_lists l = {.rows = step->device_rows,
                       .blocks = step->blocks,
                       .alike = step->prefill->alike,
                       .heads = m->index_heads,
                       .top = m->index_top,
                       .count = step->rows.count};
    int64_t places = (int64_t)l.count * l.heads * l.top;
    cuda_launch(step, "prefill_alike", (int)((places + THREADS - 1) / THREADS), 1, 1, THREADS, 0, &l, sizeof l);
    step->prefill->counted = true;
}

bool cuda_prefill_always(const ops_step *step)
{
    const ops_backend *b = step->backend;
    return possible(b) && b->options.gpu_wgmma_rows == 1 && b->model->index_dim == PREFILL_DIM;
}

bool cuda_prefill_attend(ops_step *step, int layer)
{
    enum { COUNTED = 4 }; /* layers of which one is counted */
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    bool sparse = m->layer[layer].sparse;
    if (m->head_dim != PREFILL_DIM || (sparse && m->index_top > PREFILL_TOP) || !many_rows(step)) return false;
    if (sparse && step->prefill && layer % COUNTED == 1) count_alike(step);
    if (sparse && step->prefill && !b->prefill_alike)
        blocks_stay(step, layer);
    else
        rows_stay(step, layer);
    return true;
}

bool cuda_prefill_score(ops_step *step, int layer, int32_t first, int32_t count, bool needed)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    if (m->index_dim != PREFILL_DIM || !many_rows(step)) return false;
    prefill_index_args args = {
        .rows = step->device_rows,
        .cache = step->device_cache,
        .q = step->index_q,
        .scores = step->scores,
        .layer_offset = (int64_t)step->cache->layout.index_offset[layer],
        .heads = m->index_heads,
        .max_blocks = step->max_blocks,
        .first = first,
        .count = count,
        .tile = PREFILL_COLUMNS / m->index_heads,
        .least = needed ? m->index_top : 0,
        .fill = !needed,
    };
    /* Queries are loaded once a span: as few as leave each multiprocessor four thread blocks. */
    int32_t tiles = (step->rows.count + args.tile - 1) / args.tile, spans = 4 * b->info.processors / tiles + 1;
    args.run = (count + spans - 1) / spans;
    prefill_launch(step, "index", args.cache.index, tiles, (count + args.run - 1) / args.run, prefill_index_shared(),
                   &args, sizeof args);
    return true;
}
