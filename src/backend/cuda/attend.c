/* Attention on the GPU: projections and heads, selection of blocks, attention over them, the output projection. */
#include "backend/cuda/cuda.h"

#include <math.h>
#include <stdio.h>

#include "backend/cuda/kernels/attend.h"
#include "backend/cuda/kernels/attend_in.h"
#include "backend/cuda/kernels/index.h"
#include "base/error.h"

enum { PARTS = 16 /* spans that index_merge can join */ };

/* ---- What there are kernels for ---------------------------------------------------------------------------------- */

static bool has_kernels(int dim)
{
    return dim == 16 || dim == 32 || dim == 64 || dim == 128;
}

hy_status cuda_attend_check(const ops_model *m, hy_error *err)
{
    bool sparse = false;
    for (int l = 0; l < m->layers; l++) sparse |= m->layer[l].sparse;
    if (!has_kernels(m->head_dim) || (sparse && !has_kernels(m->index_dim)))
        return error_set(err, HY_UNSUPPORTED,
                         "the cuda backend has kernels for heads of 16, 32, 64 and 128 dims, not %d and %d",
                         m->head_dim, m->index_dim);
    if (sparse && (m->index_top > INDEX_TOP || m->index_heads > INDEX_COLUMNS))
        return error_set(err, HY_UNSUPPORTED, "the cuda backend selects at most %d blocks for %d heads, not %d for %d",
                         INDEX_TOP, INDEX_COLUMNS, m->index_top, m->index_heads);
    return HY_OK;
}

/* Kernel of a cache format, as `read` has it, and dim. */
static const char *kernel_name(const char *what, int format, readback read, int dim, char out[64])
{
    static const char *const names[] = {
        [KERNEL_CACHE_BF16] = "bf16", [KERNEL_CACHE_FP8] = "fp8", [KERNEL_CACHE_NVFP4] = "nvfp4"};
    bool rounded = format == KERNEL_CACHE_NVFP4 && read == READBACK_E4M3;
    snprintf(out, 64, "%s_%s_%d", what, rounded ? "nvfp4_e4m3" : names[format], dim);
    return out;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int head_tiles(const ops_model *m)
{
    return (m->heads / m->kv_heads + ATTEND_HEADS - 1) / ATTEND_HEADS;
}

/* Below so many units blocks go apart. */
static int64_t few_units(const ops_backend *b)
{
    return 2 * (int64_t)b->info.processors;
}

/* Partials that there is room for: of few units the blocks that they select, and their state. */
static int64_t partials_room(const ops_backend *b)
{
    const ops_model *m = b->model;
    int64_t units = (int64_t)m->kv_heads * head_tiles(m), few = few_units(b);
    return (few > units ? few : units) * (INDEX_TOP / 2 + 1);
}

hy_status cuda_attend_open(ops_step *step, hy_error *err)
{
    const ops_model *m = step->backend->model;
    size_t partials = (size_t)(partials_room(step->backend) * attend_partial(m->head_dim)) * sizeof(float);
    size_t candidates =
        (size_t)PARTS * (size_t)step->limits.rows * (size_t)(m->index_heads * m->index_top) * sizeof(uint64_t);
    hy_status status = cuda_attend_check(m, err);
    if (status != HY_OK) return status;
    /* Partials live inside attend, candidates between index_top and index_merge. */
    return cuda_step_alloc(step, partials > candidates ? partials : candidates, 1, "partial results of attention",
                           &step->attend_partials, err);
}

/* ---- Before and after attention ---------------------------------------------------------------------------------- */

void cuda_attend_in(ops_step *step, int layer)
{
    ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const cuda_layer *l = &b->layer[layer];
    const cache_layout *c = step->cache ? &step->cache->layout : NULL;
    int32_t n = step->rows.count;
    int heads = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, index = m->index_heads * m->index_dim;
    bool sparse = m->layer[layer].sparse;
    if (n == 0) return;
    const cuda_part parts[] = {
        {&l->q, step->q, heads},
        {&l->k, step->k, kv},
        {&l->v, step->v, kv},
        {&l->index_q, step->index_q, index},
        {&l->index_k, step->index_k, m->index_dim},
    };
    attend_in_args args = {
        .rows = step->device_rows,
        .cache = step->device_cache,
        .q = step->q,
        .k = step->k,
        .v = step->v,
        .index_q = step->index_q,
        .index_k = step->index_k,
        .q_gain = l->q_norm,
        .k_gain = l->k_norm,
        .index_q_gain = l->index_q_norm,
        .index_k_gain = l->index_k_norm,
        .cosine = step->cosine,
        .sine = step->sine,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .index_heads = sparse ? m->index_heads : 0,
        .index_dim = sparse ? m->index_dim : 0,
        .rotary_dim = m->rotary_dim,
        .jobs = m->heads + 2 * m->kv_heads + (sparse ? m->index_heads + 1 : 0),
        .query_e4m3 = b->options.query_e4m3,
        .eps = m->norm_eps,
        .k_scale = m->layer[layer].k_scale,
        .v_scale = m->layer[layer].v_scale,
        .main_offset = (int64_t)c->main_offset[layer],
        .index_offset = sparse ? (int64_t)c->index_offset[layer] : 0,
    };
    int projections = sparse ? 5 : 3;
    const uint16_t *in = cuda_norm_for(step, parts, projections, step->x, &l->input_norm, m->hidden, m->norm_eps, n);
    if (cuda_project_heads(step, parts, projections, in, n, &args)) return;
    cuda_project_parts(step, parts, projections, in, n, NULL, CUDA_STORE);
    int64_t blocks = ((int64_t)n * args.jobs + ATTEND_IN_WARPS - 1) / ATTEND_IN_WARPS;
    cuda_launch(step, "attend_in", (int)blocks, 1, 1, ATTEND_IN_WARPS * CUDA_WARP, 0, &args, sizeof args);
}

void cuda_attend_out(ops_step *step, int layer)
{
    cuda_project(step, &step->backend->layer[layer].o, step->attention_bf16, step->rows.count, NULL, true, CUDA_ADD,
                 step->x, step->backend->model->hidden);
}

/* ---- Selection --------------------------------------------------------------------------------------------------- */

/* Blocks that row t sees. */
static int32_t visible_blocks(const ops_step *step, int32_t t)
{
    return step->rows.sequence[t] < 0 ? 0 : step->rows.position[t] / CACHE_BLOCK + 1;
}

static int32_t most_visible(const ops_step *step)
{
    int32_t most = 0;
    for (int32_t t = 0; t < step->rows.count; t++)
        if (visible_blocks(step, t) > most) most = visible_blocks(step, t);
    return most;
}

/* Most neighbouring rows of one sequence. */
static int32_t longest_run(const ops_step *step)
{
    int32_t longest = 0;
    for (int32_t t = 0, run = 0; t < step->rows.count; t++) {
        run = t > 0 && step->rows.sequence[t] == step->rows.sequence[t - 1] ? run + 1 : 1;
        if (step->rows.sequence[t] >= 0 && run > longest) longest = run;
    }
    return longest;
}

/* Blocks [first, first + count). needed: rows that take every block that they see are left out, and so is what nobody
 * sees. */
static void score(ops_step *step, int layer, int32_t first, int32_t count, bool needed)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    step->index_layer = layer;
    if (step->rows.count == 0 || first < 0 || first >= step->max_blocks) return;
    if (count > step->max_blocks - first) count = step->max_blocks - first;
    if (needed && most_visible(step) <= m->index_top) return;
    if (needed && count > most_visible(step) - first) count = most_visible(step) - first;
    if (count <= 0 || cuda_prefill_score(step, layer, first, count, needed)) return;
    index_score_args args = {
        .rows = step->device_rows,
        .cache = step->device_cache,
        .q = step->index_q,
        .scores = step->scores,
        .layer_offset = (int64_t)step->cache->layout.index_offset[layer],
        .heads = m->index_heads,
        .max_blocks = step->max_blocks,
        .first = first,
        .count = count,
        .tile = INDEX_COLUMNS / m->index_heads < 16 ? INDEX_COLUMNS / m->index_heads : 16,
        .least = needed ? m->index_top : 0,
        .fill = !needed,
    };
    /* A thread block reads its queries once: as many blocks as leave enough thread blocks for the GPU. */
    int64_t spans = 8 * (int64_t)b->info.processors / step->rows.count + 1;
    args.run = (int32_t)((count + spans - 1) / spans);
    args.run = (args.run + INDEX_WARPS - 1) / INDEX_WARPS * INDEX_WARPS;
    if (args.run > 64) args.run = 64;
    if ((count + args.run - 1) / args.run > 65535) args.run = (count + 65534) / 65535;
    /* Few columns: in a kernel of their own. */
    bool few = m->index_dim >= 64 && longest_run(step) * m->index_heads <= 8;
    if (few) args.tile = 8 / m->index_heads;
    char name[64];
    kernel_name(few ? "index_few" : "index_score", args.cache.index, b->options.read, m->index_dim, name);
    cuda_launch(step, name, step->rows.count, (count + args.run - 1) / args.run, 1, INDEX_WARPS * CUDA_WARP,
                (size_t)index_score_shared(m->index_dim), &args, sizeof args);
}

static index_top_args top_args(const ops_step *step)
{
    const ops_model *m = step->backend->model;
    return (index_top_args){
        .rows = step->device_rows,
        .scores = step->scores,
        .candidates = step->attend_partials,
        .blocks = step->blocks,
        .part_stride = (int64_t)step->limits.rows * m->index_heads * m->index_top,
        .heads = m->index_heads,
        .top = m->index_top,
        .local = m->index_local,
        .max_blocks = step->max_blocks,
        .layer = step->index_layer,
    };
}

/* Threads for lists of `count` scores. */
static int top_threads(int32_t count)
{
    int32_t warps = (count + 255) / 256;
    return CUDA_WARP * (warps < 1 ? 1 : warps > TOP_WARPS ? TOP_WARPS : warps);
}

static void top_launch(ops_step *step, const char *name, int block, const index_top_args *args)
{
    cuda_launch(step, name, step->rows.count, args->heads, 1, block, 0, args, sizeof *args);
}

void cuda_index_score(ops_step *step, int layer, int32_t first, int32_t count)
{
    score(step, layer, first, count, false);
}

void cuda_index_top(ops_step *step, int32_t part, int32_t first, int32_t count)
{
    index_top_args args = top_args(step);
    if (step->rows.count == 0) return;
    args.candidates += part * args.part_stride;
    args.first = first;
    args.count = count;
    top_launch(step, "index_top", top_threads(count), &args);
}

void cuda_index_merge(ops_step *step, int32_t parts)
{
    index_top_args args = top_args(step);
    if (step->rows.count == 0) return;
    args.parts = parts;
    top_launch(step, "index_merge", CUDA_WARP, &args);
}

/* Rows of a thread block of index_decode: the longest run if every one begins at a multiple of it, else 1. */
static int32_t group_of_rows(const ops_step *step, int32_t longest)
{
    const int32_t *sequence = step->rows.sequence;
    for (int32_t t = 0; t < step->rows.count; t++) {
        bool begins = sequence[t] >= 0 && (t == 0 || sequence[t - 1] != sequence[t]);
        bool padding = sequence[t] < 0 && t % longest == 0; /* nothing but padding may follow in the group */
        if (begins && t % longest != 0) return 1;
        for (int32_t i = 1; padding && i < longest && t + i < step->rows.count; i++)
            if (sequence[t + i] >= 0) return 1;
    }
    return longest;
}

/* Thread blocks for runs of a sequence's rows, each with at most `share`. */
static int64_t spans_of_runs(const ops_step *step, int64_t share, int64_t *runs)
{
    int64_t spans = 0;
    *runs = 0;
    for (int32_t t = 0; t < step->rows.count; t++)
        if (t + 1 == step->rows.count || step->rows.sequence[t + 1] != step->rows.sequence[t]) {
            spans += (cuda_rounded_up(visible_blocks(step, t)) * DECODE_SHARE + share - 1) / share;
            ++*runs;
        }
    return spans;
}

/* The smallest share, in steps, with which all thread blocks are on the GPU at once, where there is one. */
static int32_t share_of_runs(const ops_step *step, int64_t resident)
{
    enum { TRIES = 8, MOST = (DECODE_RUN - 1) * DECODE_SHARE };
    int64_t runs, total = spans_of_runs(step, 1, &runs), least = (total + resident - 1) / resident, share = MOST;
    /* No run has more than one thread block beyond its part of `total`. */
    int64_t enough = runs < resident ? (total + resident - runs - 1) / (resident - runs) : MOST;
    for (int i = 4 * runs > resident ? TRIES : 0; i <= TRIES; i++) {
        share = least + (enough - least) * i / TRIES;
        if (i == TRIES || spans_of_runs(step, share, &runs) <= resident) break;
    }
    return (int32_t)(share < DECODE_SHARE ? DECODE_SHARE : share > MOST ? MOST : share);
}

/* Scores and lists in one launch, if there is a kernel for it. */
static bool select_at_once(ops_step *step, int layer)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    int32_t longest = longest_run(step), columns = longest * m->index_heads;
    if (step->rows.count > step->index_rows || step->device_cache.index != KERNEL_CACHE_NVFP4 ||
        b->options.read != READBACK_EXACT || m->index_dim != 128 || columns > DECODE_COLUMNS || longest == 0)
        return false;
    index_decode_args args = {
        .rows = step->device_rows,
        .cache = step->device_cache,
        .q = step->index_q,
        .scores = step->scores,
        .blocks = step->blocks,
        .order = step->index_order,
        .drawn = step->index_drawn,
        .layer_offset = (int64_t)step->cache->layout.index_offset[layer],
        .heads = m->index_heads,
        .top = m->index_top,
        .local = m->index_local,
        .max_blocks = step->max_blocks,
        .stride = decode_stride(step->max_blocks),
        .layer = layer,
        .group = group_of_rows(step, longest),
    };
    if (most_visible(step) > DECODE_MOST) return false;
    int64_t most = cuda_rounded_up(most_visible(step));
    int64_t runs;
    spans_of_runs(step, 1, &runs);
    args.share = share_of_runs(step, (columns > 8 ? 2 : 3) * (int64_t)b->info.processors);
    /* Those that wait for others leave a multiprocessor free for them. */
    args.choosers = 1 + (int32_t)((b->info.processors - 1) / runs);
    int64_t spans = most <= m->index_top ? 1 : (most * DECODE_SHARE + args.share - 1) / args.share;
    if (spans > 65535) return false;
    char name[64];
    int32_t room = columns <= 8 ? 8 : columns <= 16 ? 16 : 32, shared = index_decode_shared(room, args.share);
    if ((size_t)shared > b->info.shared) return false;
    snprintf(name, sizeof name, "index_decode_%d", (int)room);
    cuda_launch(step, name, (step->rows.count + args.group - 1) / args.group, (int)spans, 1, DECODE_WARPS * CUDA_WARP,
                (size_t)shared, &args, sizeof args);
    return true;
}

void cuda_index_select(ops_step *step, int layer)
{
    if (step->rows.count == 0) return;
    step->index_layer = layer;
    if (!cuda_prefill_always(step) && select_at_once(step, layer)) return;
    score(step, layer, 0, step->max_blocks, true);
    index_top_args args = top_args(step);
    args.count = most_visible(step);
    top_launch(step, "index_select", top_threads(args.count), &args);
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* How many tiles the rows are: of rows that share blocks. */
static int64_t tiles_of_rows(const ops_step *step)
{
    int64_t tiles = 0;
    for (int32_t t = 0; t < step->rows.count; t++) {
        bool begins = t == 0 || step->rows.sequence[t] != step->rows.sequence[t - 1] || step->rows.sequence[t] < 0;
        tiles += begins || step->rows.position[t] % ATTEND_ROWS == 0;
    }
    return tiles;
}

static void fold_partials(ops_step *step, const attend_args *args, int64_t units)
{
    int block = args->head_dim < CUDA_WARP ? CUDA_WARP : args->head_dim;
    cuda_launch(step, "attend_fold", (int)units, ATTEND_HEADS, 1, block, 0, args, sizeof *args);
}

/* Rounds of as many blocks of every unit as there is room for. */
static void attend_apart(ops_step *step, const char *name, attend_args *args, int64_t units, int32_t most,
                         size_t shared)
{
    const ops_backend *b = step->backend;
    int64_t room = partials_room(b) / units - 1;
    args->partials = step->attend_partials;
    args->joined = 1;
    /* The same in every round, or a shorter one would look elsewhere for what is folded. */
    args->slots = most < room ? most : (int32_t)room;
    for (args->first = 0; args->first < most; args->first += args->count) {
        args->count = most - args->first < args->slots ? most - args->first : args->slots;
        args->last = args->first + args->count == most;
        args->run = (int32_t)(units * args->count / (6 * (int64_t)b->info.processors));
        if (args->run < 1) args->run = 1;
        cuda_launch(step, name, (int)units, (args->count + args->run - 1) / args->run, 1, ATTEND_WARPS * CUDA_WARP,
                    shared, args, sizeof *args);
        fold_partials(step, args, units);
    }
}

/* Without clusters, runs that lists are cut into: every block behind the first run is written and read once more, which
 * pays where units fill less than half of the places. */
static int32_t runs_of_lists(const ops_backend *b, int64_t units, int32_t most)
{
    int64_t places = ATTEND_DECODE_BLOCKS * (int64_t)b->info.processors;
    if (b->info.major >= 9 || 2 * units > places || units * (most + 1) > partials_room(b)) return 1;
    int32_t run = (int32_t)((units * most + places - 1) / places);
    return (most + run - 1) / run;
}

/* How units are shared by groups of four warps: thread blocks of a cluster, groups of each; without them, runs. A group
 * takes up to `run` blocks. */
typedef struct attend_share {
    int32_t cluster, groups;
    int32_t places; /* thread blocks of a multiprocessor, as far as it is for */
    const char *kernel;
    int32_t runs, run;
} attend_share;

/* The most groups that are on the GPU at once, four a multiprocessor: while units are few each as a thread block of its
 * own, then four together. Clusters of 16 are Hopper's. */
static attend_share share_of_lists(const ops_backend *b, int64_t units, int32_t most)
{
    static const attend_share kinds[] = {{16, 1, 2, "attend_decode_16", 1, 0},
                                         {16, 1, 4, "attend_decode_16_many", 1, 0},
                                         {8, 1, 2, "attend_decode_8", 1, 0},
                                         {2, ATTEND_DECODE_GROUPS, 1, "attend_decode_wide_2", 1, 0},
                                         {1, ATTEND_DECODE_GROUPS, 1, "attend_decode_wide", 1, 0}};
    for (size_t i = 0; b->info.major >= 9 && i < sizeof kinds / sizeof *kinds; i++) {
        attend_share s = kinds[i];
        int32_t parts = s.cluster * s.groups;
        s.run = (most + parts - 1) / parts;
        if (s.cluster * units > (int64_t)s.places * b->info.processors || parts >= 2 * most) continue;
        if (s.cluster > 8 && b->info.major != 9) continue;
        if ((size_t)attend_decode_shared(s.cluster, s.groups, s.run, most - s.run + 1) <= b->info.shared) return s;
    }
    attend_share s = {1, 1, 0, "attend_decode", runs_of_lists(b, units, most), 0};
    s.run = (most + s.runs - 1) / s.runs;
    return s;
}

/* In the kernel for lists of a cache of NVFP4 with 128 dims, if it is one. */
static bool attend_lists(ops_step *step, attend_args *args, int64_t units, int32_t most)
{
    const ops_backend *b = step->backend;
    if (args->cache.main != KERNEL_CACHE_NVFP4 || b->options.read != READBACK_EXACT || args->head_dim != 128 ||
        !args->blocks)
        return false;
    attend_share share = share_of_lists(b, units, most);
    args->count = most;
    args->run = args->joined = share.run;
    args->slots = most - args->joined + 1;
    args->last = 1;
    if (share.runs > 1) args->partials = step->attend_partials;
    cuda_launch(step, share.kernel, step->rows.count * share.cluster, (int)(units / step->rows.count), share.runs,
                share.groups * ATTEND_DECODE_WARPS * CUDA_WARP,
                (size_t)attend_decode_shared(share.cluster, share.groups, share.run, args->slots), args, sizeof *args);
    if (args->partials) fold_partials(step, args, units);
    return true;
}

float cuda_attend_scale(const ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    cache_format format = step->cache->layout.main;
    float scale = 1.44269504f / sqrtf((float)m->head_dim) * (format == CACHE_FP8 ? m->layer[layer].k_scale : 1);
    return format == CACHE_NVFP4 ? scale * ATTEND_NVFP4 : scale;
}

void cuda_attend(ops_step *step, int layer)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const ops_layer *l = &m->layer[layer];
    if (step->rows.count == 0 || cuda_prefill_attend(step, layer)) return;
    attend_args args = {
        .rows = step->device_rows,
        .cache = step->device_cache,
        .q = step->q,
        .blocks = l->sparse ? step->blocks : NULL,
        .attention = step->attention,
        .attention_bf16 = step->attention_bf16,
        .partial = attend_partial(m->head_dim),
        .layer_offset = (int64_t)step->cache->layout.main_offset[layer],
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .head_tiles = head_tiles(m),
        .group = m->heads / m->kv_heads,
        .index_heads = m->index_heads,
        .index_top = m->index_top,
        .scale = cuda_attend_scale(step, layer),
        .value_scale = step->cache->layout.main == CACHE_FP8 ? l->v_scale : 1,
    };
    int32_t most = most_visible(step);
    if (l->sparse && most > m->index_top) most = m->index_top;
    int64_t units = (int64_t)step->rows.count * m->kv_heads * args.head_tiles;
    size_t shared = (size_t)attend_shared(m->head_dim, 1);
    char name[64];
    if (attend_lists(step, &args, units, most)) return;
    kernel_name("attend", args.cache.main, b->options.read, m->head_dim, name);
    if (units <= few_units(b) && most > 1) {
        attend_apart(step, name, &args, units, most, shared);
        return;
    }
    int warps = ATTEND_WARPS;
    args.count = args.run = most;
    /* Tiles of rows, if they are enough for the GPU. */
    if (m->head_dim == 128 && longest_run(step) > 1 &&
        tiles_of_rows(step) * m->kv_heads * args.head_tiles > few_units(b)) {
        kernel_name("attend_rows", args.cache.main, b->options.read, m->head_dim, name);
        shared = (size_t)attend_shared(m->head_dim, ATTEND_ROWS);
        warps = ATTEND_ROWS_WARPS;
    }
    cuda_launch(step, name, (int)units, 1, 1, warps * CUDA_WARP, shared, &args, sizeof args);
}
