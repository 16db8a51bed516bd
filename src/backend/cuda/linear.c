/*
 * Norms, projections and what is made of them alone: embed, feed_dense, head.
 *
 * All projections add their inputs in eight slices, so that `sliced` makes no difference here: a slice a warp is what
 * fills the GPU when there are few rows.
 */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <string.h>

#include "backend/cuda/kernels/project_hopper.h"
#include "backend/cuda/kernels/qkv_wide.h"

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

static void norm_rows(ops_step *step, const float *x, const kernel_weight *gain, int hidden, float eps, bool plain,
                      int32_t count, const int32_t *rows, uint16_t *out, float *out_float, int32_t values)
{
    norm_args args = {.x = x,
                      .gain = *gain,
                      .base = plain ? 0 : 1,
                      .eps = eps,
                      .hidden = hidden,
                      .rows = rows,
                      .out = out,
                      .values = values,
                      .out_float = out_float};
    if (count > 0) cuda_launch(step, "norm", count, 1, 1, NORM_BLOCK, 0, &args, sizeof args);
}

void cuda_norm(ops_step *step, const float *x, const kernel_weight *gain, int hidden, float eps, bool plain,
               int32_t count, uint16_t *out, float *out_float)
{
    norm_rows(step, x, gain, hidden, eps, plain, count, NULL, out, out_float, 0);
}

void cuda_swiglu(ops_step *step, const float *gate, const float *up, int64_t n, int32_t count, float alpha, float limit,
                 bool plain, uint16_t *z)
{
    swiglu_args args = {.gate = gate, .up = up, .total = n * count, .law = {alpha, limit, plain}, .z = z};
    int blocks = (int)((args.total + SWIGLU_BLOCK - 1) / SWIGLU_BLOCK);
    if (blocks > 0) cuda_launch(step, "swiglu", blocks, 1, 1, SWIGLU_BLOCK, 0, &args, sizeof args);
}

void cuda_embed(ops_step *step)
{
    embed_args args = {.table = step->backend->embed,
                       .token = step->device_rows.token,
                       .sequence = step->device_rows.sequence,
                       .x = step->x};
    if (step->rows.count > 0) cuda_launch(step, "embed", step->rows.count, 1, 1, EMBED_BLOCK, 0, &args, sizeof args);
}

/* ---- Projections ------------------------------------------------------------------------------------------------- */

/* A kernel: its name, the outputs and rows of a block, and its twin that makes SwiGLU of two weights, a block of which
 * has 16 outputs of each. */
typedef struct project_tile {
    const char *name;
    int outputs, rows;
    const char *glu;
} project_tile;

/* By format; the first that takes all rows, else the last. */
static const project_tile tiles[][5] = {
    [KERNEL_F32] = {{"project_f32_1", 1, 1, NULL}, {"project_f32_8", 4, 8, NULL}},
    [KERNEL_BF16] = {{"project_bf16_8", 16, 8, "glu_bf16_8"},
                     {"project_bf16_16", 32, 16, "glu_bf16_16"},
                     {"project_bf16_32", 32, 32, "glu_bf16_32"},
                     {"project_bf16_64", 32, 64, "glu_bf16_64"}},
    [KERNEL_MXFP8] = {{"project_mxfp8_8", 16, 8, "glu_mxfp8_8"},
                      {"project_mxfp8_16", 32, 16, "glu_mxfp8_16"},
                      {"project_mxfp8_32", 32, 32, "glu_mxfp8_32"},
                      {"project_mxfp8_64", 32, 64, "glu_mxfp8_64"}},
    [KERNEL_NVFP4] = {{"project_nvfp4_8", 16, 8, "glu_nvfp4_8"},
                      {"project_nvfp4_16", 32, 16, "glu_nvfp4_16"},
                      {"project_nvfp4_32", 32, 32, "glu_nvfp4_32"},
                      {"project_nvfp4_64", 32, 64, "glu_nvfp4_64"}},
};

static const project_tile *tile_of(int32_t format, int32_t cols, int32_t count)
{
    /* Rows of the weight that begin at 8 bytes; the others, of whatever weights.c takes, begin at 16. */
    static const project_tile odd = {"project_nvfp4_odd", 16, 8, NULL};
    if (format == KERNEL_NVFP4 && cols % 32) return &odd;
    const project_tile *tile = tiles[format];
    while (tile->rows < count && tile[1].name) tile++;
    return tile;
}

static int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* Dynamic shared memory of a kernel on the tensor cores: sums of eight slices. */
static size_t shared_bytes(int outputs, int rows)
{
    return (size_t)PROJECT_SLICES * (size_t)rows * ((size_t)outputs + 4) * sizeof(float);
}

/* The kernels of many rows, by format. */
static const struct {
    const char *name, *glu;
    size_t shared;
} many[] = {
    [KERNEL_BF16] = {"project_bf16_many", "glu_bf16_many", MANY_SHARED_BF16},
    [KERNEL_MXFP8] = {"project_mxfp8_many", "glu_mxfp8_many", MANY_SHARED_MXFP8},
    [KERNEL_NVFP4] = {"project_nvfp4_many", "glu_nvfp4_many", MANY_SHARED_NVFP4},
};

/* The kernels of few rows, by format; the first whose rows find room in shared memory beside its rings. */
typedef struct few_form {
    const char *name, *glu;
    int teams, stages;
} few_form;

static const struct {
    few_form form[3]; /* as many as have names */
    int slices;       /* K is a multiple of */
    int stage, gap;
} few[] = {
    [KERNEL_BF16] = {{{"project_few_bf16_24", "glu_few_bf16_24", 2, 4},
                      {"project_few_bf16_23", "glu_few_bf16_23", 2, 3},
                      {"project_few_bf16_14", "glu_few_bf16_14", 1, 4}},
                     PROJECT_SLICES *FEW_LINE / 2,
                     FEW_STAGE_BF16,
                     FEW_GAP_BF16},
    [KERNEL_MXFP8] = {{{"project_few_mxfp8_32", "glu_few_mxfp8_32", 3, 2},
                       {"project_few_mxfp8_14", "glu_few_mxfp8_14", 1, 4}},
                      PROJECT_SLICES *FEW_LINE,
                      FEW_STAGE_MXFP8,
                      FEW_GAP_MXFP8},
};

static size_t few_shared(int32_t format, const few_form *form, int32_t cols, int32_t count)
{
    size_t team = (size_t)(PROJECT_SLICES * form->stages * few[format].stage) + 2 * FEW_SUMS;
    return (size_t)form->teams * team + (size_t)count * (size_t)(cols + few[format].gap) * sizeof(uint16_t);
}

/* NULL: `count` rows of such a weight are not few. */
static const few_form *few_of(const ops_step *step, const kernel_weight *w, int32_t count)
{
    if (count > FEW_ROWS || (w->format != KERNEL_BF16 && w->format != KERNEL_MXFP8) || w->cols % few[w->format].slices)
        return NULL;
    for (int i = 0; i < 3 && few[w->format].form[i].name; i++) {
        const few_form *form = &few[w->format].form[i];
        if (form->teams == 1 && step->slice_sums) break; /* a block for a slice is faster than one team */
        if (few_shared(w->format, form, w->cols, count) <= step->backend->info.shared) return form;
    }
    return NULL;
}

static void launch_few(ops_step *step, const few_form *form, const char *name, const project_args *args, int all)
{
    const kernel_weight *w = &args->part[0].w;
    int blocks = divide_up(all, form->teams), most = step->backend->info.processors;
    cuda_launch(step, name, blocks < most ? blocks : most, 1, 1, form->teams * PROJECT_BLOCK,
                few_shared(w->format, form, w->cols, args->count), args, sizeof *args);
}

/* The kernels of a slice of K a block, with more rows than few, and the fold of their sums; by format and rows. */
typedef struct slices_form {
    const char *name, *glu, *fold, *glu_fold;
    int rows;
} slices_form;

enum {
    SLICES_MOST = 128,           /* rows; more have enough for kernels of many */
    SLICES_SUMS_OUTPUTS = 16384, /* of 64 rows: 34 MB, which the second-level cache holds */
};

#define SLICES_FORM(format, rows)                                                                                      \
    {                                                                                                                  \
        "project_slices_" format "_" #rows, "glu_slices_" format "_" #rows, "project_fold_" #rows, "glu_fold_" #rows,  \
            rows                                                                                                       \
    }
static const slices_form slices[][4] = {
    [KERNEL_BF16] = {SLICES_FORM("bf16", 8), SLICES_FORM("bf16", 16), SLICES_FORM("bf16", 32), SLICES_FORM("bf16", 64)},
    [KERNEL_MXFP8] = {SLICES_FORM("mxfp8", 8), SLICES_FORM("mxfp8", 16), SLICES_FORM("mxfp8", 32),
                      SLICES_FORM("mxfp8", 64)},
};

static size_t slices_shared(const kernel_weight *w, int rows)
{
    size_t rings = (size_t)(SLICES_GROUPS * 4 * SLICES_STAGES * few[w->format].stage);
    return rings + (size_t)(w->cols / PROJECT_SLICES * rows) * sizeof(uint16_t);
}

/* NULL: not for them. Rows that have no room go in several launches. */
static const slices_form *slices_of(const ops_step *step, const kernel_weight *w, int32_t count)
{
    bool known = w->format == KERNEL_BF16 || w->format == KERNEL_MXFP8;
    if (!step->slice_sums || count > SLICES_MOST || !known || w->cols % few[w->format].slices) return NULL;
    int i = 0;
    while (i < 3 && slices[w->format][i].rows < count) i++;
    while (i >= 0 && slices_shared(w, slices[w->format][i].rows) > step->backend->info.shared) i--;
    return i < 0 || slices[w->format][i].rows * 2 < count ? NULL : &slices[w->format][i];
}

/* Outputs of w from `first` on. */
static kernel_weight outputs_of(const kernel_weight *w, int32_t first, int32_t count)
{
    kernel_weight part = *w;
    int64_t at = (int64_t)first * w->cols;
    part.data = (const uint8_t *)w->data + at * (w->format == KERNEL_BF16 ? 2 : 1);
    if (w->scales) part.scales = (const uint8_t *)w->scales + at / 32;
    part.rows = count;
    return part;
}

static void launch_sliced(ops_step *step, const slices_form *form, bool glu, project_slices_args *args)
{
    int teams = step->backend->info.processors / PROJECT_SLICES, of_tile = glu ? SLICES_OUTPUTS / 2 : SLICES_OUTPUTS;
    args->tiles = 0;
    for (int i = 0; i < (glu ? 1 : args->of.parts); i++) {
        args->of.part[i].first = args->tiles;
        args->tiles += divide_up(args->of.part[i].w.rows, of_tile);
    }
    int most = divide_up(args->tiles, SLICES_GROUPS);
    teams = teams < 1 ? 1 : teams < most ? teams : most;
    cuda_launch(step, glu ? form->glu : form->name, teams * PROJECT_SLICES, 1, 1, SLICES_BLOCK,
                slices_shared(&args->of.part[0].w, form->rows), args, sizeof *args);
    cuda_launch(step, glu ? form->glu_fold : form->fold, divide_up(args->tiles * 4 * (form->rows / 8), FOLD_WARPS), 1,
                1, FOLD_WARPS * CUDA_WARP, 0, args, sizeof *args);
}

/* As many rows and outputs at once as there is room for, in shared memory and for sums. */
static void launch_slices(ops_step *step, const slices_form *form, bool glu, const project_args *of)
{
    int64_t tile_bytes = (int64_t)PROJECT_SLICES * SLICES_OUTPUTS * form->rows * (int64_t)sizeof(float);
    int32_t most = (int32_t)(step->slice_bytes / tile_bytes) * (glu ? SLICES_OUTPUTS / 2 : SLICES_OUTPUTS), outputs = 0;
    for (int i = 0; i < (glu ? 1 : of->parts); i++)
        outputs += divide_up(of->part[i].w.rows, SLICES_OUTPUTS) * SLICES_OUTPUTS;
    for (int32_t row = 0; row < of->count; row += form->rows) {
        project_slices_args args = {.sums = step->slice_sums};
        args.of = *of;
        args.of.count = of->count - row < form->rows ? of->count - row : form->rows;
        if (of->rows)
            args.of.rows += row;
        else
            args.of.in += (int64_t)row * of->part[0].w.cols;
        if (glu) args.of.z += row * of->part[0].stride;
        for (int i = 0; i < of->parts && !glu; i++) args.of.part[i].out += row * of->part[i].stride;
        if (outputs <= most) {
            launch_sliced(step, form, glu, &args);
            continue;
        }
        project_slices_args some = args;
        for (int i = 0; i < (glu ? 1 : of->parts); i++)
            for (int32_t first = 0, n; first < of->part[i].w.rows; first += n) {
                n = of->part[i].w.rows - first < most ? of->part[i].w.rows - first : most;
                some.of.parts = glu ? 2 : 1;
                some.of.part[0] = args.of.part[i];
                some.of.part[0].w = outputs_of(&of->part[i].w, first, n);
                if (glu)
                    some.of.part[1].w = outputs_of(&of->part[1].w, first, n), some.of.z = args.of.z + first;
                else
                    some.of.part[0].out += first;
                launch_sliced(step, form, glu, &some);
            }
    }
}

/* Do `outputs` in all and `count` rows give their large blocks enough work? Else more and smaller ones are faster. */
static bool are_many(const ops_step *step, const project_tile *tile, int32_t format, int outputs, int32_t count)
{
    const gpu_info *info = &step->backend->info;
    if (!tile->glu || count <= tile->rows || many[format].shared > info->shared) return false;
    int64_t blocks = (int64_t)divide_up(outputs, MANY_OUTPUTS) * divide_up(count, MANY_ROWS);
    return 4 * blocks >= 3 * (int64_t)info->processors;
}

/* Those on Hopper, by format, and the one that packs rows for them. */
static const struct {
    const char *name, *glu, *pack;
    size_t shared;
    int slab;
} hopper[] = {
    [KERNEL_BF16] = {"project_bf16_hopper", "glu_bf16_hopper", "pack_bf16", HOPPER_SHARED_BF16, HOPPER_K_BF16},
    [KERNEL_MXFP8] = {"project_mxfp8_hopper", "glu_mxfp8_hopper", "pack_mxfp8", HOPPER_SHARED_MXFP8, HOPPER_K_MXFP8},
    [KERNEL_NVFP4] = {"project_nvfp4_hopper", "glu_nvfp4_hopper", "pack_nvfp4", HOPPER_SHARED_NVFP4, HOPPER_K_NVFP4},
};

/* Blocks of a launch of theirs, at most. */
static int hopper_blocks(const ops_backend *b)
{
    int blocks = b->info.processors < HOPPER_BLOCKS ? b->info.processors : HOPPER_BLOCKS;
    return blocks < HOPPER_CLUSTER ? HOPPER_CLUSTER : blocks / HOPPER_CLUSTER * HOPPER_CLUSTER;
}

/* Blocks for so many tiles: a cluster's output tiles lie one behind the other. */
static int hopper_grid(const ops_backend *b, int32_t row_tiles, int32_t output_tiles)
{
    int64_t blocks = (int64_t)row_tiles * divide_up(output_tiles, HOPPER_CLUSTER) * HOPPER_CLUSTER;
    int most = hopper_blocks(b);
    return blocks < most ? (int)blocks : most;
}

/* Does `count` rows of such a weight go there? A row may go either way if the bits are the same (docs/gpu.md). */
static bool takes_hopper(const ops_step *step, const kernel_weight *w, int32_t count)
{
    const ops_backend *b = step->backend;
    if (w->format == KERNEL_F32 || !step->packed || count < b->options.gpu_wgmma_rows) return false;
    return w->cols % (PROJECT_SLICES * hopper[w->format].slab) == 0 && w->cols <= step->packed_cols &&
           count <= step->packed_rows;
}

hy_status cuda_linear_open(ops_step *step, hy_error *err)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    bool possible = b->info.major == 9 && b->info.shared >= HOPPER_SHARED_MXFP8;
    if (possible) {
        step->slice_bytes = (size_t)PROJECT_SLICES * SLICES_ROWS * SLICES_SUMS_OUTPUTS * sizeof(float);
        hy_status taken =
            cuda_step_alloc(step, step->slice_bytes, 1, "sums of slices of projections", &step->slice_sums, err);
        if (taken != HY_OK) return taken;
    }
    if (b->options.gpu_wgmma_rows <= 0 || !possible) return HY_OK;
    int64_t widest = m->hidden;
    const int64_t others[] = {(int64_t)m->heads * m->head_dim, m->dense_width, m->shared_width};
    for (int i = 0; i < 3; i++) widest = others[i] > widest ? others[i] : widest;
    int32_t rows = step->limits.rows, draft = step->limits.drafts * step->limits.draft_rows;
    if (draft > rows) rows = draft;
    if (rows < b->options.gpu_wgmma_rows) return HY_OK;
    step->packed_rows = divide_up(rows, HOPPER_ROWS) * HOPPER_ROWS;
    hy_status status = cuda_step_alloc(step, (size_t)(step->packed_rows * widest), sizeof *step->packed,
                                       "rows of projections as tiles", &step->packed, err);
    if (status == HY_OK)
        status = cuda_step_alloc(step, (size_t)hopper_blocks(b), HOPPER_OPEN, "open sums of projections",
                                 &step->open_sums, err);
    step->expanded_rows = b->options.gpu_wgmma_rows == 1 ? WIDE_ROWS_TESTED : WIDE_ROWS;
    if (status == HY_OK && rows >= step->expanded_rows && b->info.shared >= WIDE_SHARED + WIDE_MORE) {
        int64_t heads =
            (int64_t)(m->heads + 2 * m->kv_heads) * m->head_dim + (m->index_heads + 1) * (int64_t)m->index_dim;
        int64_t values = (heads + 5 * WIDE_OUTPUTS) * m->hidden; /* of attend_in at once; larger ones take turns */
        if (values < WIDE_CLUSTER * WIDE_OUTPUTS * widest) values = WIDE_CLUSTER * WIDE_OUTPUTS * widest;
        step->expanded_bytes = (size_t)values * sizeof *step->expanded;
        status = cuda_step_alloc(step, (size_t)values, sizeof *step->expanded, "expanded weights of projections",
                                 &step->expanded, err);
    }
    step->packed_cols = (int32_t)widest;
    return status == HY_OK ? cuda_trial(step, err) : status;
}

static void pack(ops_step *step, int32_t format, const project_args *of)
{
    int32_t cols = of->part[0].w.cols, row_tiles = divide_up(of->count, HOPPER_ROWS);
    pack_args args = {.in = of->in, .rows = of->rows, .count = of->count, .cols = cols, .packed = step->packed};
    int64_t units = (int64_t)row_tiles * HOPPER_ROWS * (cols / 8);
    cuda_launch(step, hopper[format].pack, (int)(units / PACK_BLOCK), 1, 1, PACK_BLOCK, 0, &args, sizeof args);
}

/* Rows as tiles, and then `of`, whose parts say where their tiles begin. */
static void launch_hopper(ops_step *step, const char *name, int32_t format, const project_args *of, int output_tiles)
{
    int32_t row_tiles = divide_up(of->count, HOPPER_ROWS);
    pack(step, format, of);
    project_hopper_args args = {.row_tiles = row_tiles, .output_tiles = output_tiles, .open = step->open_sums};
    args.of = *of; /* not in the initialiser: there gcc 12 zeroes the gap of the inner struct at another place */
    args.of.in = step->packed;
    cuda_launch(step, name, hopper_grid(step->backend, row_tiles, output_tiles), 1, 1, HOPPER_BLOCK,
                hopper[format].shared, &args, sizeof args);
}

/* ---- Of very many rows, from expanded weights ----------------------------------------------------------------------
 */

static const struct {
    const char *rows, *expand;
    int values; /* in 16 bytes of codes */
} wide[] = {
    [KERNEL_BF16] = {"wide_rows_bf16", "wide_expand_bf16", 8},
    [KERNEL_MXFP8] = {"wide_rows_mxfp8", "wide_expand_mxfp8", 16},
    [KERNEL_NVFP4] = {"wide_rows_nvfp4", "wide_expand_nvfp4", 32},
};

static bool takes_wide(const ops_step *step, const kernel_weight *w, int32_t count)
{
    return count >= step->expanded_rows && step->expanded && takes_hopper(step, w, count) &&
           w->cols % (PROJECT_SLICES * WIDE_K) == 0 &&
           (size_t)w->cols * 2 * WIDE_OUTPUTS * WIDE_CLUSTER <= step->expanded_bytes;
}

static bool are_wide(const ops_step *step, const cuda_part *parts, int n, int32_t count)
{
    bool fits = takes_wide(step, parts[0].w, count);
    for (int i = 1; i < n; i++) fits &= parts[i].w->format == parts[0].w->format;
    return fits;
}

static void wide_rows_of(ops_step *step, const project_args *of)
{
    int32_t cols = of->part[0].w.cols, blocks = divide_up(of->count, WIDE_TILE) * WIDE_GROUPS;
    wide_rows_args args = {.in = of->in, .rows = of->rows, .count = of->count, .cols = cols, .packed = step->packed};
    int64_t units = (int64_t)blocks * WIDE_LINES * (cols / 8);
    cuda_launch(step, wide[of->part[0].w.format].rows, (int)(units / WIDE_EXPAND_BLOCK), 1, 1, WIDE_EXPAND_BLOCK, 0,
                &args, sizeof args);
}

const uint16_t *cuda_norm_for(ops_step *step, const cuda_part *parts, int n, const float *x, const kernel_weight *gain,
                              int hidden, float eps, int32_t count)
{
    bool blocks = are_wide(step, parts, n, count);
    uint16_t *out = blocks ? step->packed : step->normed;
    norm_rows(step, x, gain, hidden, eps, false, count, NULL, out, NULL, blocks ? wide[parts[0].w->format].values : 0);
    return out;
}

/* Rows as blocks, if they are not, and then, as many tiles at a time as there is room for, weights and products; with
 * `heads` what becomes of these. */
static void launch_wide(ops_step *step, const project_args *of, const attend_in_args *heads)
{
    const ops_backend *b = step->backend;
    const bool glu = of->z != NULL;
    const int32_t cols = of->part[0].w.cols, format = of->part[0].w.format, count = of->count;
    qkv_wide_args args;
    wide_args *product = &args.product;
    memset(&args, 0, sizeof args);
    product->of = *of;
    int32_t all = 0;
    for (int i = 0; i < (glu ? 1 : of->parts); i++) {
        product->of.part[i].first = all;
        all += divide_up(of->part[i].w.rows, glu ? WIDE_OUTPUTS / 2 : WIDE_OUTPUTS);
    }
    int32_t room = (int32_t)(step->expanded_bytes / ((size_t)cols * 2 * WIDE_OUTPUTS)) / WIDE_CLUSTER * WIDE_CLUSTER;
    if (room > all) room = all;
    product->row_tiles = divide_up(count, WIDE_TILE);
    if (of->in != step->packed) wide_rows_of(step, of);
    product->of.in = step->packed;
    product->expanded = step->expanded;
    if (heads) args.in = *heads;
    for (int32_t first = 0; first < all; first += room) {
        wide_expand_args expand;
        memset(&expand, 0, sizeof expand);
        product->first_tile = first;
        product->tiles = all - first < room ? all - first : room;
        expand.of = product->of;
        expand.glu = glu;
        expand.first_tile = first;
        expand.tiles = product->tiles;
        expand.expanded = step->expanded;
        int64_t units = (int64_t)product->tiles * WIDE_OUTPUTS * (cols / wide[format].values);
        cuda_launch(step, wide[format].expand, (int)(units / WIDE_EXPAND_BLOCK), 1, 1, WIDE_EXPAND_BLOCK, 0, &expand,
                    sizeof expand);
        int blocks = hopper_grid(b, product->row_tiles, product->tiles);
        if (heads)
            cuda_launch(step, "qkv_wide", blocks, 1, 1, WIDE_BLOCK, WIDE_SHARED + WIDE_MORE, &args, sizeof args);
        else
            cuda_launch(step, glu ? "glu_wide" : "project_wide", blocks, 1, 1, WIDE_BLOCK, WIDE_SHARED, product,
                        sizeof *product);
    }
}

int cuda_hopper_cols(int32_t format)
{
    return PROJECT_SLICES * hopper[format].slab;
}

void cuda_project_by(ops_step *step, cuda_project_way way, const project_args *args)
{
    const kernel_weight *w = &args->part[0].w;
    bool glu = args->z != NULL;
    if (way == CUDA_BY_WIDE)
        launch_wide(step, args, NULL);
    else if (way == CUDA_BY_HOPPER)
        launch_hopper(step, glu ? hopper[w->format].glu : hopper[w->format].name, w->format, args,
                      divide_up(w->rows, glu ? HOPPER_OUTPUTS / 2 : HOPPER_OUTPUTS));
    else
        cuda_launch(step, glu ? many[w->format].glu : many[w->format].name, divide_up(args->count, MANY_ROWS),
                    divide_up(w->rows, glu ? MANY_OUTPUTS / 2 : MANY_OUTPUTS), 1, PROJECT_BLOCK, many[w->format].shared,
                    args, sizeof *args);
}

bool cuda_project_heads(ops_step *step, const cuda_part *parts, int n, const uint16_t *in, int32_t count,
                        const attend_in_args *heads)
{
    bool fits = !step->backend->options.gpu_apart && !heads->query_e4m3 && heads->head_dim == HEADS_DIM &&
                heads->rotary_dim == HEADS_ROTARY && (n == 3 || heads->index_dim == HEADS_DIM);
    if (!fits || parts[0].w->format == KERNEL_NVFP4 || !are_wide(step, parts, n, count)) return false;
    project_args of = {.parts = n, .count = count, .in = in};
    for (int i = 0; i < n; i++) of.part[i].w = *parts[i].w;
    launch_wide(step, &of, heads);
    return true;
}

void cuda_project_parts(ops_step *step, const cuda_part *parts, int n, const uint16_t *in, int32_t count,
                        const int32_t *rows, cuda_project_kind kind)
{
    assert(n <= PROJECT_PARTS);
    if (count <= 0) return;
    for (int32_t format = KERNEL_F32; format <= KERNEL_NVFP4; format++) {
        project_args args = {.count = count, .in = in, .rows = rows};
        int outputs = 0, blocks = 0;
        for (int i = 0; i < n; i++) {
            const kernel_weight *w = parts[i].w;
            if (!w->data || w->format != format) continue;
            args.part[args.parts++] =
                (project_part){.w = *w, .out = parts[i].out, .stride = parts[i].stride, .add = kind == CUDA_ADD};
            outputs += w->rows;
        }
        if (!args.parts) continue;
        const project_tile *tile = tile_of(format, args.part[0].w.cols, count);
        bool large = are_many(step, tile, format, outputs, count);
        const few_form *form = few_of(step, &args.part[0].w, count);
        const slices_form *sliced = form ? NULL : slices_of(step, &args.part[0].w, count);
        if (sliced) {
            launch_slices(step, sliced, false, &args);
            continue;
        }
        bool very_wide = !form && takes_wide(step, &args.part[0].w, count);
        bool wide_form = !form && takes_hopper(step, &args.part[0].w, count);
        int of_block = wide_form ? HOPPER_OUTPUTS : form ? 16 : large ? MANY_OUTPUTS : tile->outputs;
        for (int i = 0; i < args.parts; i++) {
            args.part[i].first = blocks;
            blocks += divide_up(args.part[i].w.rows, of_block);
        }
        if (very_wide)
            launch_wide(step, &args, NULL);
        else if (wide_form)
            launch_hopper(step, hopper[format].name, format, &args, blocks);
        else if (form)
            launch_few(step, form, form->name, &args, blocks);
        else if (large)
            cuda_launch(step, many[format].name, divide_up(count, MANY_ROWS), blocks, 1, PROJECT_BLOCK,
                        many[format].shared, &args, sizeof args);
        else
            cuda_launch(step, tile->name, divide_up(count, tile->rows), blocks, 1, PROJECT_BLOCK,
                        format == KERNEL_F32 ? 0 : shared_bytes(tile->outputs, tile->rows), &args, sizeof args);
    }
}

void cuda_project(ops_step *step, const kernel_weight *w, const uint16_t *in, int32_t count, const int32_t *rows,
                  bool sliced, cuda_project_kind kind, float *out, int64_t stride)
{
    (void)sliced;
    cuda_project_parts(step, &(cuda_part){w, out, stride}, 1, in, count, rows, kind);
}

void cuda_glu(ops_step *step, const kernel_weight *gate, const kernel_weight *up, const uint16_t *in, int32_t count,
              float alpha, float limit, bool plain, float *y, uint16_t *z)
{
    int64_t width = gate->rows;
    if (count <= 0) return;
    const project_tile *tile = tile_of(gate->format, gate->cols, count);
    if (!tile->glu || gate->format != up->format) {
        const cuda_part parts[] = {{gate, y, width}, {up, y + count * width, width}};
        cuda_project_parts(step, parts, 2, in, count, NULL, CUDA_STORE);
        cuda_swiglu(step, y, y + count * width, width, count, alpha, limit, plain, z);
        return;
    }
    project_args args = {
        .part = {{.w = *gate}, {.w = *up}}, .parts = 2, .count = count, .in = in, .law = {alpha, limit, plain}, .z = z};
    const few_form *form = few_of(step, gate, count);
    const slices_form *sliced = slices_of(step, gate, count);
    args.part[0].stride = width;
    if (form)
        launch_few(step, form, form->glu, &args, divide_up(gate->rows, 8));
    else if (sliced)
        launch_slices(step, sliced, true, &args);
    else if (takes_wide(step, gate, count))
        launch_wide(step, &args, NULL);
    else if (takes_hopper(step, gate, count))
        launch_hopper(step, hopper[gate->format].glu, gate->format, &args, divide_up(gate->rows, HOPPER_OUTPUTS / 2));
    else if (are_many(step, tile, gate->format, 2 * gate->rows, count))
        cuda_launch(step, many[gate->format].glu, divide_up(count, MANY_ROWS), divide_up(gate->rows, MANY_OUTPUTS / 2),
                    1, PROJECT_BLOCK, many[gate->format].shared, &args, sizeof args);
    else
        cuda_launch(step, tile->glu, divide_up(count, tile->rows), divide_up(gate->rows, 16), 1, PROJECT_BLOCK,
                    shared_bytes(32, tile->rows), &args, sizeof args);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

void cuda_feed_dense(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    const cuda_layer *l = &step->backend->layer[layer];
    int32_t count = step->rows.count;
    const cuda_part parts[] = {{&l->dense_gate, NULL, 0}, {&l->dense_up, NULL, 0}};
    const uint16_t *in = cuda_norm_for(step, parts, 2, step->x, &l->post_norm, m->hidden, m->norm_eps, count);
    cuda_glu(step, &l->dense_gate, &l->dense_up, in, count, m->swiglu_alpha, m->swiglu_limit, false, step->y, step->z);
    cuda_project(step, &l->dense_down, step->z, count, NULL, true, CUDA_ADD, step->x, m->hidden);
}

void cuda_head(ops_step *step)
{
    const ops_model *m = step->backend->model;
    const ops_backend *b = step->backend;
    int32_t count = step->logit_rows;
    norm_rows(step, step->x, &b->final_norm, m->hidden, m->norm_eps, false, count, step->logit_row, step->normed, NULL,
              0);
    cuda_project(step, &b->head, step->normed, count, NULL, false, CUDA_STORE, step->logits, m->vocab);
}
