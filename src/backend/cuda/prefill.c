/*
 * Attention and block scores of many rows on Hopper's warpgroups: what attend.c asks first. The kernels give the sums
 * of its own in the same order, so that it is speed alone that chooses.
 *
 * Attention over lists has two forms. Rows stay and the blocks of eight rows pass (prefill_rows.cu): nothing but the
 * output is written, and four rows are multiplied with what one of them takes. Blocks stay and the rows that take them
 * pass (prefill_blocks.cu): no product is wasted, and partials are written and read. A step counts how far neighbours
 * agree, in some of its layers, and the next one goes by it: with three of four blocks in common four rows take 28
 * together, for which the first form's bound is 450 TFLOP/s, which nobody has measured; the second one's is near 300
 * whatever they take, of which 113 to 117 are reached on an H200 with lists at random (prefill_blocks.cu).
 *
 * Both are tested with --gpu-wgmma-rows 1, and taken with it alone, as a third form is faster with lists that do not
 * agree: a row at a time with mma.sync, as in decoding, but of blocks that are packed first (prefill_pairs.cu), of
 * NVFP4 and of any GPU. 193 TFLOP/s there, without packing 168. It is taken where a step's rows fill the GPU and
 * use each block of their sequences often. Block scores, which are five times as fast on warpgroups, come wherever rows
 * stand in long runs.
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
    uint32_t *takes;     /* counts, progress and starts behind them */
    prefill_item *items; /* [lists, PREFILL_WAVE * top] */
    uint32_t *takers;    /* as many */
    int32_t *totals;     /* [lists, 2] */
    float *partials;     /* [PREFILL_ALIVE, PREFILL_WAVE, top, PREFILL_PARTIAL] */
    int32_t keys;        /* that there is room for */
    int32_t waves;
    uint8_t *packed; /* [packed_keys, PREFILL_PACKED]: of all KV heads as far as there is room, of one always */
    int32_t packed_keys;
};

/* ---- What it is for ---------------------------------------------------------------------------------------------- */

static bool possible(const ops_backend *b)
{
    return b->options.gpu_wgmma_rows > 0 && b->info.major == 9 && b->info.shared >= (size_t)prefill_rows_shared();
}

/* Rows stand in runs of a sequence, 32 and more in the mean: what is decoded for a few alone is dear (128 rows of 32
 * sequences took 565 us on an H200, a row at a time takes 26). All steps, where the option says so: then no row's bits
 * depend on which kernels a step takes. */
static bool many_rows(const ops_step *step)
{
    const ops_backend *b = step->backend;
    int32_t neighbours = 0, count = step->rows.count;
    if (!possible(b) || count < b->options.gpu_wgmma_rows) return false;
    if (b->options.gpu_wgmma_rows == 1) return true;
    for (int32_t t = 1; t < count; t++)
        neighbours += step->rows.sequence[t] >= 0 && step->rows.sequence[t] == step->rows.sequence[t - 1];
    return 32 * (int64_t)neighbours >= 31 * (int64_t)(count - 1);
}

/* Is there a form with blocks that stay for the model? */
static bool has_lists(const ops_model *m)
{
    bool sparse = false;
    for (int l = 0; l < m->layers; l++) sparse |= m->layer[l].sparse;
    return sparse && m->head_dim == PREFILL_DIM && m->index_top <= PREFILL_TOP &&
           m->heads / m->kv_heads <= PREFILL_HEADS;
}

/* Is there one with packed blocks, and may a step have so many rows that they fill the GPU? */
static bool has_pairs(const ops_backend *b, const ops_limits *limits)
{
    return has_lists(b->model) && b->options.read == READBACK_EXACT && b->info.shared >= PREFILL_PAIRS_SHARED &&
           limits->rows * (int64_t)b->model->kv_heads >= b->prefill_pairs_units;
}

/* Waves of one inversion. */
static int32_t most_waves(const ops_model *m)
{
    return PREFILL_LISTS / m->kv_heads;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

hy_status cuda_prefill_open(ops_step *step, hy_error *err)
{
    static const char what[] = "the selection of many rows and partial results of attention";
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    bool lists = possible(b) && b->options.gpu_wgmma_rows == 1 && has_lists(m), pairs = has_pairs(b, &step->limits);
    if (!lists && !pairs) return HY_OK;
    struct cuda_prefill *p = step->prefill = memory_zeroed(1, sizeof *p);
    if (!p) return error_memory(err, what, sizeof *p);
    p->packed_keys = step->max_blocks;
    hy_status status = HY_OK;
    if (pairs) status = cuda_step_alloc(step, (size_t)p->packed_keys, PREFILL_PACKED, "packed blocks", &p->packed, err);
    if (status != HY_OK || !lists) return status;
    int32_t alive = PREFILL_ALIVE * PREFILL_WAVE, most = most_waves(m);
    p->waves = (step->limits.rows + PREFILL_WAVE - 1) / PREFILL_WAVE;
    if (p->waves > most) p->waves = most;
    p->keys = step->max_blocks > PREFILL_KEYS_LEAST ? step->max_blocks : PREFILL_KEYS_LEAST;
    size_t all = (size_t)p->waves * (size_t)m->kv_heads, places = all * (size_t)(PREFILL_WAVE * m->index_top);
    status = cuda_step_alloc(step, all * ((size_t)p->keys * (PREFILL_WAVE / 32 + 2) + 2) + 6, sizeof(uint32_t), what,
                             &p->takes, err);
    if (status == HY_OK) status = cuda_step_alloc(step, places, sizeof *p->items, what, &p->items, err);
    if (status == HY_OK) status = cuda_step_alloc(step, places, sizeof *p->takers, what, &p->takers, err);
    if (status == HY_OK) status = cuda_step_alloc(step, 2, sizeof *p->alike, what, &p->alike, err);
    if (status == HY_OK) status = cuda_step_alloc(step, 2 * all, sizeof *p->totals, what, &p->totals, err);
    if (status == HY_OK)
        status = cuda_step_alloc(step, (size_t)(alive * m->index_top) * PREFILL_PARTIAL, sizeof(float), what,
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

static void prefill_launch(ops_step *step, const char *what, int format, const int grid[2], int block, int32_t shared,
                           const void *args, size_t bytes)
{
    static const char *const names[] = {
        [KERNEL_CACHE_BF16] = "bf16", [KERNEL_CACHE_FP8] = "fp8", [KERNEL_CACHE_NVFP4] = "nvfp4"};
    bool rounded = format == KERNEL_CACHE_NVFP4 && step->backend->options.read == READBACK_E4M3;
    char name[64];
    snprintf(name, sizeof name, "prefill_%s_%s", what, rounded ? "nvfp4_e4m3" : names[format]);
    cuda_launch(step, name, grid[0], grid[1], 1, block, (size_t)shared, args, bytes);
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
    int grid[2] = {units < b->info.processors ? (int)units : b->info.processors, 1};
    prefill_launch(step, "rows", args.cache.main, grid, PREFILL_THREADS, prefill_rows_shared(), &args, sizeof args);
}

/* Rows from `first` on, `most` at most, that one inversion or packing takes: as many runs and keys as there is room
 * for. */
static void next_rows(const ops_step *step, int32_t first, int32_t most, int32_t most_keys, prefill_lists *l)
{
    const ops_rows *rows = &step->rows;
    int32_t stop = most < rows->count - first ? first + most : rows->count;
    l->first = first, l->count = l->keys = l->runs = 0;
    for (int32_t t = first; t < stop;) {
        int32_t end = t + 1;
        while (end < stop && rows->sequence[end] == rows->sequence[t]) end++;
        int32_t keys = rows->sequence[t] < 0 ? 0 : rows->position[end - 1] / CACHE_BLOCK + 1;
        if (l->runs == PREFILL_RUNS || l->keys + keys > most_keys) break;
        l->run_row[l->runs] = t, l->run_key[l->runs++] = l->keys;
        l->keys += keys;
        l->count = end - first;
        t = end;
    }
    assert(l->count > 0);
    l->waves = (l->count + PREFILL_WAVE - 1) / PREFILL_WAVE;
}

static void blocks_stay(ops_step *step, int layer)
{
    enum { THREADS = 256, WORDS = PREFILL_WAVE / 32 };
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const struct cuda_prefill *p = step->prefill;
    prefill_blocks_args args = {
        .lists = {.rows = step->device_rows,
                  .blocks = step->blocks,
                  .takes = p->takes,
                  .items = p->items,
                  .takers = p->takers,
                  .totals = p->totals,
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
    int most = 8 * b->info.processors; /* thread blocks that take what comes */
    for (int32_t first = 0; first < step->rows.count; first += l->count) {
        next_rows(step, first, p->waves * PREFILL_WAVE, p->keys, l);
        int64_t lists = (int64_t)l->waves * l->heads, words = lists * l->keys,
                places = (int64_t)l->count * l->heads * l->top;
        int64_t queries = (int64_t)l->count * m->heads * 4, zeros = (words * (WORDS + 1) + 2 * lists + 2) / 4 + 1;
        l->counts = l->takes + words * WORDS;
        l->progress = l->counts + words;
        l->starts = l->progress + 2 * lists + 2;
        int clears = (int)((zeros + THREADS - 1) / THREADS), marks = (int)((places + THREADS - 1) / THREADS);
        int lines = (int)((queries + THREADS - 1) / THREADS);
        cuda_launch(step, "prefill_clear", clears < most ? clears : most, 1, 1, THREADS, 0, l, sizeof *l);
        cuda_launch(step, "prefill_mark", marks, 1, 1, THREADS, 0, l, sizeof *l);
        cuda_launch(step, "prefill_queries", lines < most ? lines : most, 1, 1, THREADS, 0, &args, sizeof args);
        cuda_launch(step, "prefill_list", (int)lists, 1, 1, PREFILL_LIST_THREADS, 0, l, sizeof *l);
        cuda_launch(step, "prefill_takers", marks, 1, 1, THREADS, 0, l, sizeof *l);
        int grid[2] = {places < b->info.processors ? (int)places : b->info.processors, 1};
        prefill_launch(step, "blocks", args.cache.main, grid, PREFILL_BLOCKS_THREADS, prefill_blocks_shared(), &args,
                       sizeof args);
    }
}

/* Does the step have so many rows, and do they use a block so often, that packing it costs less than it saves? On an
 * H200 it cost as much as ten uses saved. */
static bool pairs_pay(const ops_step *step)
{
    enum { USES = 24 };
    const ops_backend *b = step->backend;
    const ops_rows *rows = &step->rows;
    int64_t keys = 0;
    if (!step->prefill || !step->prefill->packed || step->cache->layout.main != CACHE_NVFP4) return false;
    if (rows->count * (int64_t)b->model->kv_heads < b->prefill_pairs_units) return false;
    if (b->options.gpu_wgmma_rows == 1) return false;
    for (int32_t t = 0; t < rows->count; t++)
        if (rows->sequence[t] >= 0 && (t + 1 == rows->count || rows->sequence[t + 1] != rows->sequence[t]))
            keys += rows->position[t] / CACHE_BLOCK + 1;
    return (int64_t)rows->count * b->model->index_top >= USES * keys;
}

static void blocks_packed(ops_step *step, int layer)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const struct cuda_prefill *p = step->prefill;
    prefill_pairs_args args = {
        .lists = {.rows = step->device_rows, .blocks = step->blocks, .heads = m->index_heads, .top = m->index_top},
        .cache = step->device_cache,
        .q = step->q,
        .packed = p->packed,
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
        next_rows(step, first, step->rows.count, p->packed_keys, l);
        int32_t groups = l->keys > 0 ? p->packed_keys / l->keys : m->kv_heads; /* of one launch */
        if (groups > m->kv_heads) groups = m->kv_heads;
        for (args.group = 0; args.group < m->kv_heads; args.group += groups) {
            if (groups > m->kv_heads - args.group) groups = m->kv_heads - args.group;
            if (l->keys > 0)
                cuda_launch(step, "prefill_pack", l->keys, groups, 1, PREFILL_PACK_THREADS, 0, &args, sizeof args);
            cuda_launch(step, "prefill_pairs", l->count, groups, 1, PREFILL_PAIRS_THREADS, PREFILL_PAIRS_SHARED, &args,
                        sizeof args);
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
    if (sparse && pairs_pay(step)) {
        blocks_packed(step, layer);
        return true;
    }
    if (m->head_dim != PREFILL_DIM || (sparse && m->index_top > PREFILL_TOP) || !many_rows(step)) return false;
    if (sparse && b->options.gpu_wgmma_rows != 1) return false;
    if (sparse && step->prefill && step->prefill->takes && layer % COUNTED == 1) count_alike(step);
    if (sparse && step->prefill && step->prefill->takes && !b->prefill_alike)
        blocks_stay(step, layer);
    else
        rows_stay(step, layer);
    return true;
}

/* Spans of `count` blocks, so that the thread blocks of `tiles` tiles fill the multiprocessors in whole rounds: a round
 * takes a span, and what it costs to load a tile's queries, some blocks' time. */
static int32_t index_spans(int32_t tiles, int32_t count, int32_t processors)
{
    enum { MOST = 32, LOADING = 4 };
    int32_t best = 1;
    int64_t least = INT64_MAX;
    for (int32_t spans = 1; spans <= MOST && spans <= count; spans++) {
        int64_t rounds = ((int64_t)tiles * spans + processors - 1) / processors;
        int64_t cost = rounds * ((count + spans - 1) / spans + LOADING);
        if (cost < least) least = cost, best = spans;
    }
    return best;
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
    int32_t tiles = (step->rows.count + args.tile - 1) / args.tile,
            spans = index_spans(tiles, count, b->info.processors);
    args.run = (count + spans - 1) / spans;
    int grid[2] = {tiles, (count + args.run - 1) / args.run};
    prefill_launch(step, "index", args.cache.index, grid, PREFILL_THREADS, prefill_index_shared(), &args, sizeof args);
    return true;
}
