/*
 * The drafter on the GPU (kernels/draft.cu): taps and context rows, and rounds of drafts.
 *
 * `draft` runs slice after slice of at most SLICE_ROWS rows, whole sequences: all layers, the head, then the Markov
 * head from left to right. Picks stay on the GPU, where the next position needs them. Where the step's picks are still
 * there too, the anchors are found among them (draft_open) and the drafts come with them when the step ends; else the
 * anchors are known here, and the drafts of a slice come in one read, as do the laws that verify will ask for.
 * Sequences of a slice have the same number of rows, that of its longest block, so that row k of all of them is one
 * strided matrix; no row's bits depend on the slice that it is in.
 */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/draft.h"
#include "backend/cuda/kernels/draft_fp8.h"
#include "backend/cuda/kernels/linear.h"
#include "backend/sample.h"
#include "base/error.h"
#include "base/memory.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504f

enum {
    SLICE_ROWS = 256,
    PICK_THREADS = 256,
    PICK_CHUNKS = 64,      /* most blocks that look through a row */
    PART_BYTES = 64 << 20, /* of attention's parts, or those of one sequence */
    HEADS_A_BLOCK = 4,
    CONTEXT_ROWS = 1024,              /* whose keys and values are there at once, */
    CONTEXT_LAYERS = DRAFT_PARTS / 2, /* of so many layers */
    DYNAMIC_ROWS = 2 * CUDA_BLOCK_TOKENS,
};

_Static_assert((int)DRAFT_PARTS <= (int)PROJECT_PARTS, "one launch takes them");
_Static_assert((int)DRAFT_ROWS == (int)DRAFT_MAX_BLOCK, "the same in kernels");

/* Device memory unless it says host. S = rows of a slice, D = limits.drafts, G = limits.draft_rows. */
typedef struct cuda_draft {
    uint16_t *taps;       /* [T, tap_count, hidden] bf16 */
    float *c;             /* [T, hidden] */
    uint16_t *c_bf16;     /* the same */
    float *cosine, *sine; /* [max(T, S), rotary_dim / 2] */
    float *kv; /* [CONTEXT_LAYERS, 2, tile, kv_heads, head_dim], tile = min(T, CONTEXT_ROWS); of a slice [2, S, ...] */
    float *x;  /* [S, hidden] */
    float *h;  /* [D*G, hidden] final_norm's output, slice behind slice */
    uint16_t *normed;             /* [S, hidden] bf16 */
    float *q;                     /* [S, heads, head_dim] */
    uint16_t *q_bf16;             /* the same after norm and rotary */
    uint16_t *own_k, *own_v;      /* [S, kv_heads, head_dim] bf16 */
    uint16_t *attention;          /* [S, heads, head_dim] bf16 */
    float *gate_up;               /* [2, S, width] */
    uint16_t *z;                  /* [S, width] bf16 */
    float *logits;                /* [S, vocab]: U, then L */
    uint16_t *markov;             /* [S, markov_rank] bf16 */
    float *part_state, *part_out; /* of `parts` */
    uint64_t *best;               /* [S, PICK_CHUNKS] */
    draft_sequence *sequence;     /* [D] */
    int32_t *table;               /* [D, blocks] the blocks of the cache that they meet */
    int32_t *position;            /* [S] */
    draft_state *state;           /* [D] among the answers of the step */
    draft_asked *asked;           /* [D] */
    int slice, chunks, blocks;
    int64_t parts; /* that there is room for, each of all queries of a head */

    draft_sequence *host_sequence; /* host, as the next four: [D] those that have an anchor and room behind it */
    int32_t *host_table;           /* [D, blocks] */
    draft_state *host_state;       /* [D] among the answers too */
    draft_asked *host_asked;       /* [D] */
    const ops_draft **how;         /* [D] */
    int32_t waiting;               /* of them, whose drafts have not come */
    int32_t *first;                /* [D] row in h of what sequence i of the operation has, -1: nothing */
} cuda_draft_step;

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

/* Blocks of keys that a block of drafts meets at most: those of the window, and itself. */
static int most_blocks(const ops_drafter *d, const ops_limits *limits)
{
    int of_window = (d->window + 2 * CACHE_BLOCK - 3) / CACHE_BLOCK + 1;
    int of_sequence = (limits->positions + CACHE_BLOCK - 1) / CACHE_BLOCK;
    return (of_window < of_sequence ? of_window : of_sequence) + 1;
}

static hy_status check(const ops_drafter *d, hy_error *err)
{
    if (d->head_dim % 8 != 0 || d->head_dim > DRAFT_HEAD_DIM)
        return error_set(err, HY_UNSUPPORTED,
                         "the cuda backend has drafter heads of up to %d dims in multiples of 8, not %d",
                         DRAFT_HEAD_DIM, d->head_dim);
    if (d->cache != CACHE_BF16 && d->cache != CACHE_FP8)
        return error_set(err, HY_UNSUPPORTED, "the cuda backend keeps the drafter's cache in fp8 or bf16, not %s",
                         cache_format_name(d->cache));
    return HY_OK;
}

hy_status cuda_draft_open(ops_step *step, hy_error *err)
{
    const ops_model *m = step->backend->model;
    const ops_drafter *d = m->drafter;
    const ops_limits *limits = &step->limits;
    if (!d || !limits->drafts) return HY_OK;
    hy_status status = check(d, err);
    if (status != HY_OK) return status;
    cuda_draft_step *s = step->draft = memory_zeroed(1, sizeof *s);
    if (!s) return error_memory(err, "the drafter's step", sizeof *s);

    size_t drafts = (size_t)limits->drafts, rows = (size_t)limits->rows, all = drafts * (size_t)limits->draft_rows;
    size_t slice = all < SLICE_ROWS ? all : SLICE_ROWS, most = rows > slice ? rows : slice;
    size_t q = (size_t)d->heads * (size_t)d->head_dim, kv = (size_t)d->kv_heads * (size_t)d->head_dim;
    size_t of_context = CONTEXT_LAYERS * (rows < CONTEXT_ROWS ? rows : CONTEXT_ROWS);
    size_t hidden = (size_t)m->hidden, width = (size_t)d->width, pairs = (size_t)d->rotary_dim / 2;
    int queries = (limits->draft_rows * (d->heads / d->kv_heads) + 15) / 16 * 16;
    s->slice = (int)slice;
    s->blocks = most_blocks(d, limits);
    s->chunks = (m->vocab + 4 * PICK_THREADS - 1) / (4 * PICK_THREADS);
    if (s->chunks > PICK_CHUNKS) s->chunks = PICK_CHUNKS;
    /* Of a sequence at least, and so many as there is memory for. */
    size_t places = (size_t)(s->blocks > DRAFT_RUNS ? s->blocks : DRAFT_RUNS + 1) * (size_t)d->kv_heads;
    size_t abreast = PART_BYTES / (places * (size_t)queries * ((size_t)d->head_dim + DRAFT_PART_STATE) * sizeof(float));
    if (abreast < 1) abreast = 1;
    if (abreast > slice) abreast = slice;
    size_t parts = abreast * places * (size_t)queries;
    s->parts = (int64_t)(abreast * places);

    const struct {
        void *at;
        size_t count, size;
        const char *what;
    } arrays[] = {
        {&s->taps, rows * (size_t)d->tap_count * hidden, 2, "the drafter's taps"},
        {&s->c, rows * hidden, 4, "the drafter's context"},
        {&s->c_bf16, rows * hidden, 2, "the drafter's context"},
        {&s->cosine, most * pairs, 4, "the drafter's angles"},
        {&s->sine, most * pairs, 4, "the drafter's angles"},
        {&s->kv, (of_context > slice ? of_context : slice) * 2 * kv, 4, "the drafter's keys and values"},
        {&s->x, slice * hidden, 4, "the drafter's rows"},
        {&s->h, all * hidden, 4, "the drafter's output"},
        {&s->normed, slice * hidden, 2, "the drafter's rows"},
        {&s->q, slice * q, 4, "the drafter's queries"},
        {&s->q_bf16, slice * q, 2, "the drafter's queries"},
        {&s->own_k, slice * kv, 2, "the drafter's keys"},
        {&s->own_v, slice * kv, 2, "the drafter's values"},
        {&s->attention, slice * q, 2, "the drafter's attention"},
        {&s->gate_up, 2 * slice * width, 4, "the drafter's feed-forward"},
        {&s->z, slice * width, 2, "the drafter's feed-forward"},
        {&s->logits, slice * (size_t)m->vocab, 4, "the drafter's logits"},
        {&s->markov, slice * (size_t)(d->markov_rank ? d->markov_rank : 1), 2, "the drafter's Markov head"},
        {&s->part_state, parts * DRAFT_PART_STATE, 4, "parts of the drafter's attention"},
        {&s->part_out, parts * (size_t)d->head_dim, 4, "parts of the drafter's attention"},
        {&s->best, slice * PICK_CHUNKS, 8, "the drafter's picks"},
        {&s->sequence, drafts, sizeof *s->sequence, "the drafter's sequences"},
        {&s->asked, drafts, sizeof *s->asked, "the drafter's sequences"},
        {&s->table, drafts * (size_t)s->blocks, sizeof *s->table, "the drafter's sequences"},
        {&s->position, slice, sizeof *s->position, "the drafter's rows"},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && status == HY_OK; i++)
        status = cuda_step_alloc(step, arrays[i].count, arrays[i].size, arrays[i].what, arrays[i].at, err);
    s->host_sequence = memory_zeroed(drafts, sizeof *s->host_sequence);
    s->host_asked = memory_zeroed(drafts, sizeof *s->host_asked);
    s->state = cuda_answer_drafts(step, false);
    s->host_state = cuda_answer_drafts(step, true);
    s->host_table = memory_zeroed(drafts * (size_t)s->blocks, sizeof *s->host_table);
    s->how = memory_zeroed(drafts, sizeof *s->how);
    s->first = memory_zeroed(drafts, sizeof *s->first);
    bool got = s->host_sequence && s->host_asked && s->host_table && s->how && s->first;
    if (status == HY_OK && !got) status = error_memory(err, "the drafter's sequences", drafts * sizeof *s->host_state);
    for (size_t i = 0; i < drafts && got; i++) s->first[i] = -1;
    return status;
}

void cuda_draft_close(ops_step *step)
{
    cuda_draft_step *s = step->draft;
    if (!s) return;
    memory_free(s->host_sequence);
    memory_free(s->host_asked);
    memory_free(s->host_table);
    memory_free(s->how);
    memory_free(s->first);
    memory_free(s);
    step->draft = NULL;
}

void cuda_draft_read(ops_step *step, ops_tensor which, int32_t first, int32_t rows, float *out)
{
    const cuda_draft_step *s = step->draft;
    gpu *g = step->backend->gpu;
    size_t hidden = (size_t)step->backend->model->hidden, bytes = hidden * sizeof *out;
    for (int32_t i = 0; i < rows; i++) {
        int32_t row = first + i, own = s->first[which == OPS_DRAFT_H ? row / step->limits.draft_rows : 0];
        const float *from = s->c + (size_t)row * hidden;
        if (which == OPS_DRAFT_H) from = own < 0 ? NULL : s->h + (size_t)(own + row % step->limits.draft_rows) * hidden;
        memset(out + (size_t)i * hidden, 0, bytes);
        if (from) g->calls->read(g, from, out + (size_t)i * hidden, bytes);
    }
}

/* ---- Context ---------------------------------------------------------------------------------------------------- */

static void launch_heads(ops_step *step, const draft_heads_args *args)
{
    int64_t heads = 0;
    for (int i = 0; i < args->parts; i++) heads += args->part[i].heads;
    int64_t blocks = (heads * args->rows + HEADS_A_BLOCK - 1) / HEADS_A_BLOCK;
    cuda_launch(step, "draft_heads", (int)blocks, 1, 1, HEADS_A_BLOCK * CUDA_WARP, 0, args, sizeof *args);
}

static draft_heads_args heads_args(const ops_step *step, int32_t rows)
{
    const ops_drafter *d = step->backend->model->drafter;
    return (draft_heads_args){.rows = rows,
                              .dim = d->head_dim,
                              .pairs = d->rotary_dim / 2,
                              .eps = d->norm_eps,
                              .one = d->plain_norm ? 0 : 1,
                              .cosine = step->draft->cosine,
                              .sine = step->draft->sine};
}

/* Offset of a layer's first head in a block's row. */
static int64_t layer_at(const ops_step *step, int layer)
{
    const cache_layout *l = &step->cache->layout;
    return (int64_t)(l->draft_offset + (size_t)layer * (size_t)l->draft_kv_heads * l->draft_head_bytes);
}

void cuda_draft_tap(ops_step *step, int tap)
{
    const ops_model *m = step->backend->model;
    assert(step->draft && tap >= 0 && tap < m->drafter->tap_count);
    draft_tap_args args = {step->x, step->draft->taps, m->hidden, m->drafter->tap_count, tap};
    if (step->rows.count > 0) cuda_launch(step, "draft_tap", step->rows.count, 1, 1, 256, 0, &args, sizeof args);
}

/* Keys and values of up to CONTEXT_LAYERS layers from `layer` on, rows [first, first + count) of the step. */
static void store_context(ops_step *step, int layer, int32_t first, int32_t count)
{
    const ops_backend *b = step->backend;
    const ops_drafter *d = b->model->drafter;
    const cuda_draft_step *s = step->draft;
    int64_t kv = (int64_t)d->kv_heads * d->head_dim;
    int parts = 2 * (d->layers - layer < CONTEXT_LAYERS ? d->layers - layer : CONTEXT_LAYERS);
    cuda_part part[DRAFT_PARTS];
    draft_heads_args heads = heads_args(step, count);
    heads.parts = parts;
    heads.cosine += (int64_t)first * heads.pairs, heads.sine += (int64_t)first * heads.pairs;
    heads.cache = step->device_cache;
    heads.slot = step->device_rows.slot + first;
    heads.sequence = step->device_rows.sequence + first;
    for (int i = 0; i < parts; i++) {
        const cuda_draft_layer *l = &b->draft_layer[layer + i / 2];
        bool value = i % 2;
        float *out = s->kv + i * count * kv;
        part[i] = (cuda_part){value ? &l->v : &l->k, out, kv};
        heads.part[i] = (draft_heads_part){.in = out, .heads = d->kv_heads, .at = layer_at(step, layer + i / 2)};
        if (value) heads.part[i].at += (int64_t)step->cache->layout.draft_v_data;
        if (!value) heads.part[i].gain = l->k_norm;
    }
    cuda_project_parts(step, part, parts, s->c_bf16 + (int64_t)first * b->model->hidden, count, NULL, CUDA_STORE);
    launch_heads(step, &heads);
}

void cuda_draft_context(ops_step *step)
{
    const ops_backend *b = step->backend;
    const ops_drafter *d = b->model->drafter;
    cuda_draft_step *s = step->draft;
    int32_t rows = step->rows.count;
    assert(s);
    if (rows == 0) return;
    assert(step->cache->layout.draft_offset != CACHE_NO_OFFSET && step->cache->layout.draft_layers == d->layers);
    cuda_project(step, &b->draft_fc, s->taps, rows, NULL, false, CUDA_STORE, s->c, b->model->hidden);
    cuda_norm(step, s->c, &b->draft_hidden_norm, b->model->hidden, d->norm_eps, d->plain_norm, rows, s->c_bf16, s->c);
    cuda_rotary(step, step->device_rows.position, b->draft_frequency, rows, d->rotary_dim / 2, s->cosine, s->sine);
    for (int32_t first = 0; first < rows; first += CONTEXT_ROWS)
        for (int layer = 0; layer < d->layers; layer += CONTEXT_LAYERS)
            store_context(step, layer, first, rows - first < CONTEXT_ROWS ? rows - first : CONTEXT_ROWS);
}

/* ---- Layers of a slice ------------------------------------------------------------------------------------------ */

/* Sequences [begin, begin + count) of those that draft, `stride` rows each. */
typedef struct slice {
    int32_t begin, count, stride, rows;
    int32_t most; /* drafts of a sequence */
    float *h;     /* their rows of it */
} slice;

/* On Hopper, heads of 128 dims: keys and values by warpgroups (draft_hopper.cu). What a thread block takes follows from
 * how many there are of each kind, and changes no bit. */
static const char *hopper_kernel(const ops_step *step)
{
    const ops_backend *b = step->backend;
    if (b->info.major != 9 || b->info.shared < DRAFT_HOPPER_SHARED + DRAFT_HOPPER_TOTAL ||
        b->info.shared < DRAFT_FP8_SHARED || b->model->drafter->head_dim != 128)
        return NULL;
    return b->model->drafter->cache == CACHE_FP8 ? "draft_attend_fp8" : "draft_attend_bf16";
}

/* Keys and values of E4M3 (draft_fp8.cu): a sequence's head by one thread block, or by clusters of them. What takes the
 * fewest turns of a block of keys, each of thread blocks that are there at once, with what a thread block needs beside
 * them. */
static void attend_fp8(ops_step *step, const slice *part, draft_attend_args *args, int queries, int32_t blocks)
{
    static const struct {
        const char *name;
        int cluster, queries;
        int64_t turn, beside; /* in 100 ns, of an H200 */
    } forms[] = {
        {"draft_attend_fp8_whole", 1, DRAFT_FP8_WIDE, 20, 80},
        {"draft_attend_fp8_half", 2, DRAFT_FP8_NARROW, 13, 60},
        {"draft_attend_fp8_eighth", 8, DRAFT_FP8_NARROW, 11, 60},
    };
    int64_t heads = (int64_t)part->count * args->kv_heads, best = INT64_MAX;
    int form = 0;
    for (int i = 0; i < (int)(sizeof forms / sizeof *forms); i++) {
        /* Large clusters find less room than there is: they do not reach beyond a GPC. */
        int64_t at_once = step->backend->info.processors / forms[i].cluster * (forms[i].cluster > 2 ? 7 : 8) / 8;
        int64_t tiles = (queries + forms[i].queries - 1) / forms[i].queries;
        int64_t turns = (blocks + forms[i].cluster - 1) / forms[i].cluster;
        if (at_once < 1) continue;
        int64_t cost = (heads * tiles + at_once - 1) / at_once * (turns * forms[i].turn + forms[i].beside);
        if (cost < best) best = cost, form = i;
    }
    args->tiles = (queries + forms[form].queries - 1) / forms[form].queries;
    cuda_launch(step, forms[form].name, forms[form].cluster, args->kv_heads * args->tiles, part->count,
                DRAFT_FP8_THREADS, DRAFT_FP8_SHARED, args, sizeof *args);
}

/* The mode that takes the fewest turns of a block of keys, of thread blocks that are there at once; each costs the time
 * of three turns to begin, to end and to be folded (an H200: 2.75 us a turn, 8.25 beside them). */
static int hopper_mode(const ops_step *step, int64_t heads, int32_t blocks)
{
    int64_t at_once = step->backend->info.processors, best = INT64_MAX;
    int mode = DRAFT_BLOCKS;
    for (int i = DRAFT_BLOCKS; i <= DRAFT_WHOLE; i++) {
        int64_t pieces = i == DRAFT_BLOCKS ? blocks : i == DRAFT_BY_RUNS ? DRAFT_RUNS : 1;
        int64_t turns = i == DRAFT_BLOCKS ? 1 : i == DRAFT_BY_RUNS ? (blocks + DRAFT_RUNS - 1) / DRAFT_RUNS : blocks;
        int64_t cost = (heads * pieces + at_once - 1) / at_once * (turns + 3);
        if (cost < best) best = cost, mode = i;
    }
    return mode;
}

static void attend(ops_step *step, const slice *part, int layer)
{
    const ops_drafter *d = step->backend->model->drafter;
    cuda_draft_step *s = step->draft;
    const char *hopper = hopper_kernel(step), *name = d->head_dim <= 32   ? "draft_attend_32"
                                                      : d->head_dim <= 64 ? "draft_attend_64"
                                                                          : "draft_attend_128";
    int padded = d->head_dim <= 32 ? 32 : d->head_dim <= 64 ? 64 : 128, per_group = d->heads / d->kv_heads;
    int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
    int tiles = (part->stride * per_group + DRAFT_HOPPER_QUERIES - 1) / DRAFT_HOPPER_QUERIES, mode = DRAFT_BLOCKS;
    int32_t most = 1;
    for (int32_t i = part->begin; i < part->begin + part->count; i++)
        if (s->host_sequence[i].blocks > most) most = s->host_sequence[i].blocks;
    assert(most <= s->blocks);
    bool fp8 = hopper && d->cache == CACHE_FP8; /* has forms of its own */
    if (hopper && !fp8) mode = hopper_mode(step, (int64_t)part->count * d->kv_heads * tiles, most);
    int32_t places = mode == DRAFT_BLOCKS ? most : DRAFT_RUNS + 1;
    int64_t abreast = mode == DRAFT_WHOLE || fp8 ? part->count : s->parts / (places * d->kv_heads);
    for (int32_t first = 0; first < part->count; first += (int32_t)abreast) {
        int32_t count = part->count - first < abreast ? part->count - first : (int32_t)abreast;
        int64_t row = (int64_t)first * part->stride;
        draft_attend_args args = {.sequence = s->sequence + part->begin + first,
                                  .cache = step->device_cache,
                                  .at = layer_at(step, layer),
                                  .table = s->table + (int64_t)(part->begin + first) * s->blocks,
                                  .stride = part->stride,
                                  .heads = d->heads,
                                  .kv_heads = d->kv_heads,
                                  .dim = d->head_dim,
                                  .window = d->window,
                                  .scale = 1 / sqrtf((float)d->head_dim) * LOG2_E,
                                  .q = s->q_bf16 + row * q,
                                  .own_k = s->own_k + row * kv,
                                  .own_v = s->own_v + row * kv,
                                  .blocks = s->blocks,
                                  .places = places,
                                  .queries = (step->limits.draft_rows * per_group + 15) / 16 * 16,
                                  .part_state = s->part_state,
                                  .part_out = s->part_out,
                                  .attention = s->attention + row * q,
                                  .mode = mode,
                                  .tiles = tiles};
        if (fp8) {
            attend_fp8(step, part, &args, part->stride * per_group, most - 1);
            continue;
        }
        int across = mode == DRAFT_WHOLE ? 1 : mode == DRAFT_BY_RUNS ? (int)DRAFT_RUNS : most;
        size_t more = mode == DRAFT_WHOLE ? DRAFT_HOPPER_TOTAL : DRAFT_HOPPER_OWN;
        if (hopper)
            cuda_launch(step, hopper, across, d->kv_heads * tiles, count, DRAFT_HOPPER_THREADS,
                        DRAFT_HOPPER_SHARED + more, &args, sizeof args);
        else
            cuda_launch(step, name, most, d->kv_heads, count, DRAFT_ATTEND_THREADS,
                        (size_t)(DYNAMIC_ROWS * (padded + DRAFT_PAD)) * sizeof(uint16_t), &args, sizeof args);
        int query_tiles = (part->stride * per_group + 15) / 16, eights = d->head_dim / 8;
        int warps = DRAFT_FOLD_THREADS / CUDA_WARP;
        if (mode == DRAFT_BLOCKS)
            cuda_launch(step, "draft_fold", query_tiles * eights, d->kv_heads, count, DRAFT_RUNS * CUDA_WARP, 0, &args,
                        sizeof args);
        else if (mode == DRAFT_BY_RUNS)
            cuda_launch(step, "draft_fold_runs", query_tiles * ((eights + warps - 1) / warps), d->kv_heads, count,
                        DRAFT_FOLD_THREADS, 0, &args, sizeof args);
    }
}

static void run_layer(ops_step *step, const slice *part, int layer)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const ops_drafter *d = m->drafter;
    const cuda_draft_layer *l = &b->draft_layer[layer];
    cuda_draft_step *s = step->draft;
    int32_t rows = part->rows;
    int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;

    cuda_norm(step, s->x, &l->input_norm, m->hidden, d->norm_eps, d->plain_norm, rows, s->normed, NULL);
    float *k = s->kv, *v = k + rows * kv;
    const cuda_part parts[] = {{&l->q, s->q, q}, {&l->k, k, kv}, {&l->v, v, kv}};
    cuda_project_parts(step, parts, 3, s->normed, rows, NULL, CUDA_STORE);
    draft_heads_args heads = heads_args(step, rows);
    heads.parts = 3;
    heads.part[0] = (draft_heads_part){.in = s->q, .out = s->q_bf16, .gain = l->q_norm, .heads = d->heads};
    heads.part[1] = (draft_heads_part){.in = k, .out = s->own_k, .gain = l->k_norm, .heads = d->kv_heads};
    heads.part[2] = (draft_heads_part){.in = v, .out = s->own_v, .heads = d->kv_heads};
    launch_heads(step, &heads);
    attend(step, part, layer);
    cuda_project(step, &l->o, s->attention, rows, NULL, true, CUDA_ADD, s->x, m->hidden);

    cuda_norm(step, s->x, &l->post_norm, m->hidden, d->norm_eps, d->plain_norm, rows, s->normed, NULL);
    cuda_glu(step, &l->gate, &l->up, s->normed, rows, d->swiglu_alpha, d->swiglu_limit, d->plain_swiglu, s->gate_up,
             s->z);
    cuda_project(step, &l->down, s->z, rows, NULL, true, CUDA_ADD, s->x, m->hidden);
}

/* ---- Drafts of a slice ------------------------------------------------------------------------------------------ */

static void run_markov(ops_step *step, const slice *part)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    cuda_draft_step *s = step->draft;
    draft_markov_args markov = {.sequence = s->sequence + part->begin,
                                .state = s->state + part->begin,
                                .markov_in = b->markov_in,
                                .confidence = b->confidence,
                                .confidence_bias = b->confidence_bias,
                                .markov = s->markov,
                                .h = part->h,
                                .hidden = m->hidden,
                                .best = s->best,
                                .rank = m->drafter->markov_rank,
                                .stride = part->stride,
                                .chunks = s->chunks};
    draft_pick_args pick = {.sequence = markov.sequence,
                            .state = markov.state,
                            .logits = s->logits,
                            .best = s->best,
                            .vocab = m->vocab,
                            .chunks = s->chunks,
                            .stride = part->stride};
    for (int32_t k = 0; k < part->most; k++) {
        markov.k = pick.k = k;
        cuda_launch(step, "draft_markov", part->count, 1, 1, 128, 0, &markov, sizeof markov);
        if (markov.rank > 0)
            cuda_project(step, &b->markov_out, s->markov, part->count, NULL, false, CUDA_ADD,
                         s->logits + (int64_t)k * m->vocab, (int64_t)part->stride * m->vocab);
        cuda_launch(step, "draft_pick", s->chunks, part->count, 1, PICK_THREADS, 0, &pick, sizeof pick);
    }
    cuda_launch(step, "draft_take", part->count, 1, 1, CUDA_WARP, 0, &pick, sizeof pick);
}

/* What a state says to the one who asked. */
static bool hand_out(const draft_state *state, const ops_draft *how)
{
    if (state->count <= 0 || state->count > how->rows) return false;
    memcpy(how->draft, state->draft, (size_t)state->count * sizeof *how->draft);
    *how->count = state->count;
    return true;
}

/* The drafts of a slice, and the laws of those that verify may ask for. */
static void read_drafts(ops_step *step, const slice *part)
{
    const ops_model *m = step->backend->model;
    cuda_draft_step *s = step->draft;
    gpu *g = step->backend->gpu;
    size_t row = (size_t)m->vocab;
    if (step->error.status != HY_OK) return;
    memset(s->host_state + part->begin, 0, (size_t)part->count * sizeof *s->host_state);
    g->calls->read(g, s->state + part->begin, s->host_state + part->begin, (size_t)part->count * sizeof *s->state);
    for (int32_t i = 0; i < part->count; i++) {
        const draft_state *state = &s->host_state[part->begin + i];
        const ops_draft *how = s->how[part->begin + i];
        if (!hand_out(state, how) || !step->draft_logits || how->method != DRAFT_PROBABILISTIC) continue;
        g->calls->read(g, s->logits + (size_t)(i * part->stride) * row,
                       step->draft_logits + (size_t)how->law * (size_t)step->limits.draft_rows * row,
                       (size_t)state->count * row * sizeof(float));
    }
}

int32_t cuda_draft_asked(const ops_step *step)
{
    return step->draft ? step->draft->waiting : 0;
}

void cuda_draft_answer(ops_step *step, bool came)
{
    cuda_draft_step *s = step->draft;
    if (!s) return;
    for (int32_t i = 0; i < s->waiting && came; i++) hand_out(&s->host_state[i], s->how[i]);
    s->waiting = 0;
}

static void run_slice(ops_step *step, const slice *part)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const ops_drafter *d = m->drafter;
    cuda_draft_step *s = step->draft;
    draft_begin_args begin = {.sequence = s->sequence + part->begin,
                              .state = s->state + part->begin,
                              .embed = b->draft_embed,
                              .x = s->x,
                              .position = s->position,
                              .hidden = m->hidden,
                              .stride = part->stride,
                              .noise = d->noise_token};
    cuda_launch(step, "draft_begin", part->rows, 1, 1, 256, 0, &begin, sizeof begin);
    cuda_rotary(step, s->position, b->draft_frequency, part->rows, d->rotary_dim / 2, s->cosine, s->sine);
    for (int layer = 0; layer < d->layers; layer++) run_layer(step, part, layer);
    cuda_norm(step, s->x, &b->draft_final_norm, m->hidden, d->norm_eps, d->plain_norm, part->rows, s->normed, part->h);
    cuda_project(step, &b->draft_head, s->normed, part->rows, NULL, false, CUDA_STORE, s->logits, m->vocab);
    run_markov(step, part);
    if (!s->waiting) read_drafts(step, part);
}

/* ---- The operation ---------------------------------------------------------------------------------------------- */

static draw_stream stream_of(const ops_draft *how)
{
    return (draw_stream){.seed = how->seed,
                         .choice = how->choice,
                         .purpose = how->method == DRAFT_PROBABILISTIC ? RANDOM_DRAFT : RANDOM_PICK,
                         .temperature = how->temperature,
                         .greedy = how->method == DRAFT_GREEDY || sample_is_greedy(how->temperature)};
}

/* False: nothing to draft. */
static bool open_sequence(const ops_step *step, const ops_draft *how, draft_sequence *out, int32_t *table)
{
    *how->count = 0;
    if (step->error.status != HY_OK || *how->after_count < 1) return false;
    int32_t anchor = how->after[*how->after_count - 1].id, position = how->position + *how->after_count - 1;
    int32_t room = how->end - (position + 1), wanted = room < how->rows ? room : how->rows;
    assert(how->rows > 0 && how->rows <= step->limits.draft_rows);
    assert(how->method != DRAFT_PROBABILISTIC || !step->draft_logits ||
           (how->law >= 0 && how->law < step->limits.drafts));
    if (anchor < 0 || wanted <= 0) return false;
    assert(anchor < step->backend->model->vocab && how->sequence < step->rows.sequences);
    assert(position == 0 || (position - 1) / CACHE_BLOCK < step->rows.block_table_stride);
    *out = (draft_sequence){.anchor = anchor,
                            .position = position,
                            .rows = how->rows,
                            .wanted = wanted,
                            .threshold = how->threshold,
                            .blocks = 1};
    int32_t low = position - step->backend->model->drafter->window + 1;
    if (low > 0) out->first_block = low / CACHE_BLOCK;
    const int32_t *blocks = step->rows.block_table + (int64_t)how->sequence * step->rows.block_table_stride;
    for (int32_t b = out->first_block; b * CACHE_BLOCK < position; b++) table[out->blocks++ - 1] = blocks[b];
    assert(out->blocks <= step->draft->blocks);
    out->stream = stream_of(how);
    out->stream.position = (uint32_t)position + 1;
    if (how->method == DRAFT_PROBABILISTIC) out->stream.anchor = (uint32_t)position + 1;
    return true;
}

/* ---- Behind picks that are still on the GPU ---------------------------------------------------------------------- */

/* Where the picks of the one whose tokens `how` comes behind begin among the ids, -1: they are not there, or cannot be
 * waited for. *judged: the drafts among them. `at`: where the last one was found. */
typedef struct finder {
    int32_t group, first;
} finder;

static int32_t find_picks(const ops_step *step, const ops_draft *how, finder *at, const int32_t **draft,
                          int32_t *judged)
{
    const cuda_picks *p = &step->picks;
    *draft = NULL, *judged = 0;
    if (!p->asked || (step->draft_logits && how->method == DRAFT_PROBABILISTIC)) return -1;
    if (!p->sequences) {
        for (int32_t i = 0; i < p->count; i++, at->group++) {
            if (at->group >= p->count) at->group = 0;
            if (how->after == &p->out[at->group]) return *how->after_count == 1 ? at->group : -1;
        }
        return -1;
    }
    for (int32_t i = 0; i < p->count; i++) {
        if (at->group >= p->count) *at = (finder){0, 0};
        const ops_verify *v = &p->sequences[at->group];
        int32_t first = at->first;
        at->group++, at->first += v->drafts + 1;
        if (how->after != v->out) continue;
        *draft = v->draft, *judged = v->drafts;
        return how->after_count == v->count && v->drafts <= DRAFT_ROWS ? first : -1;
    }
    return -1;
}

/* Blocks that a sequence meets at most when its anchor is one of positions [first, last]. */
static int32_t blocks_until(const ops_drafter *d, int32_t first, int32_t last)
{
    int32_t most = 1;
    for (int32_t position = first; position <= last; position++) {
        int32_t low = position - d->window + 1, begin = low > 0 ? low / CACHE_BLOCK : 0;
        int32_t blocks = (position + CACHE_BLOCK - 1) / CACHE_BLOCK - begin + 1;
        if (blocks > most) most = blocks;
    }
    return most;
}

/* As open_sequence, of what is known before the picks are: the most that can come. */
static bool ask_sequence(const ops_step *step, const ops_draft *how, int32_t first, const int32_t *draft,
                         int32_t judged, draft_sequence *bound, draft_asked *out)
{
    int32_t room = how->end - (how->position + 1), wanted = room < how->rows ? room : how->rows;
    *how->count = 0;
    assert(how->rows > 0 && how->rows <= step->limits.draft_rows && how->sequence < step->rows.sequences);
    if (wanted <= 0) return false;
    *bound =
        (draft_sequence){.rows = how->rows,
                         .wanted = wanted,
                         .blocks = blocks_until(step->backend->model->drafter, how->position, how->position + judged)};
    *out = (draft_asked){.first = first,
                         .judged = judged,
                         .position = how->position,
                         .end = how->end,
                         .rows = how->rows,
                         .line = how->sequence,
                         .threshold = how->threshold,
                         .anchored = how->method == DRAFT_PROBABILISTIC,
                         .stream = stream_of(how)};
    if (judged) memcpy(out->draft, draft, (size_t)judged * sizeof *draft);
    return true;
}

/* All sequences behind picks that are there: then they are asked, and true. */
static bool ask_all(ops_step *step, const ops_draft *sequences, int32_t count, int32_t *all)
{
    cuda_draft_step *s = step->draft;
    finder at = {0};
    const int32_t *draft;
    int32_t judged;
    for (int32_t i = 0; i < count; i++)
        if (step->error.status != HY_OK || find_picks(step, &sequences[i], &at, &draft, &judged) < 0) return false;
    at = (finder){0};
    for (int32_t i = 0; i < count; i++) {
        int32_t first = find_picks(step, &sequences[i], &at, &draft, &judged);
        if (!ask_sequence(step, &sequences[i], first, draft, judged, &s->host_sequence[*all], &s->host_asked[*all]))
            continue;
        s->how[(*all)++] = &sequences[i];
    }
    s->waiting = *all;
    return true;
}

static void open_asked(ops_step *step, int32_t all)
{
    cuda_draft_step *s = step->draft;
    gpu *g = step->backend->gpu;
    draft_open_args args = {.asked = s->asked,
                            .ids = cuda_answer_ids(step, false),
                            .sequence = s->sequence,
                            .table = s->table,
                            .block_table = step->device_rows.block_table,
                            .block_table_stride = step->device_rows.block_table_stride,
                            .blocks = s->blocks,
                            .window = step->backend->model->drafter->window};
    g->calls->write(g, s->asked, s->host_asked, (size_t)all * sizeof *s->asked);
    cuda_launch(step, "draft_open", all, 1, 1, CUDA_WARP, 0, &args, sizeof args);
}

void cuda_draft(ops_step *step, const ops_draft *sequences, int32_t count)
{
    cuda_draft_step *s = step->draft;
    gpu *g = step->backend->gpu;
    int32_t all = 0, rows = 0;
    assert(s && count <= step->limits.drafts);
    for (int32_t i = 0; i < count; i++) s->first[i] = -1;
    bool asked = ask_all(step, sequences, count, &all);
    if (!asked) cuda_answer(step);
    for (int32_t i = 0; i < count && !asked; i++) {
        int32_t *table = s->host_table + (int64_t)all * s->blocks;
        if (!open_sequence(step, &sequences[i], &s->host_sequence[all], table)) continue;
        s->how[all++] = &sequences[i];
    }
    if (all == 0) return;
    step->drafting = true;
    if (asked) {
        open_asked(step, all);
    } else {
        g->calls->write(g, s->sequence, s->host_sequence, (size_t)all * sizeof *s->sequence);
        g->calls->write(g, s->table, s->host_table, (size_t)all * (size_t)s->blocks * sizeof *s->table);
    }
    for (slice part = {0}; part.begin < all; part.begin += part.count, rows += part.rows) {
        part.count = part.stride = part.most = 0;
        for (; part.begin + part.count < all; part.count++) {
            const draft_sequence *next = &s->host_sequence[part.begin + part.count];
            int32_t stride = next->rows > part.stride ? next->rows : part.stride;
            if (part.count > 0 && stride * (part.count + 1) > s->slice) break;
            part.stride = stride;
            if (next->wanted > part.most) part.most = next->wanted;
        }
        part.rows = part.stride * part.count;
        part.h = s->h + (int64_t)rows * step->backend->model->hidden;
        for (int32_t i = 0; i < part.count; i++) s->first[s->how[part.begin + i] - sequences] = rows + i * part.stride;
        run_slice(step, &part);
    }
    step->drafting = false;
}
