/*
 * Feed-forward: router and experts. The dense kind is linear.c's, as are all projections here but the experts' own.
 *
 *     s = sigmoid(W h);  S = the experts_per_token largest s + bias;  w_e = s_e / sum over S
 *     x' = x + (routed_scaling * sum w_e expert_e(h) in ascending e + shared(h))
 *
 * The experts' kernels (kernels/experts.cu) are launched for as many experts as the rows can reach at most; which ones
 * have rows is found on the device. What they keep between them is bounded by working on PIECE rows of a step at a
 * time, which changes no bit of a row.
 *
 * On Hopper kernels/experts_hopper.cu takes the pieces that have more rows than MOE_ROWS, where sizes allow, and
 * kernels/route_many.cu and route_wide.cu the router of many rows; the bits are the same.
 *
 * Up to MOE_ROWS rows go through one launch instead, with the same bits (kernels/moe.cu), where the weights are of the
 * formats that it takes: NVFP4 experts and, if there is one, an MXFP8 shared expert. On Hopper they are
 * kernels/moe_route.cu and kernels/moe_hopper.cu, each behind a projection of the shared expert whose end it does not
 * wait for. `route` then does the norm alone, and the routes are made with the experts, or by themselves as soon as
 * anything else is launched or looked at (cuda_route_now).
 */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/experts_hopper.h"
#include "backend/cuda/kernels/moe.h"
#include "backend/cuda/kernels/route.h"
#include "base/error.h"
#include "number/nvfp4.h"

enum { PIECE = 4096 };

static int32_t divide_up(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* All in step->experts_scratch, in device memory. P = rows of a piece. */
typedef struct feed_memory {
    int32_t *count;    /* [experts] */
    int32_t *members;  /* [experts, P] */
    int32_t *position; /* [P * experts_per_token], of kernels/experts_hopper.cu */
    uint16_t *in; /* [P, hidden] bf16; for kernels/experts_hopper.cu a row for each member, as of z, and up to 7 more an
                     expert */
    float *factor; /* [P] */
    uint16_t *z;   /* [P * experts_per_token, expert_width] bf16 */
    float *y;      /* [P * experts_per_token, hidden] */
    /* Of kernels/moe.h, for the rows that it takes. */
    int32_t *active, *chosen;
    uint32_t *counts, *up_done, *pair_done, *shared_done, *out_done;
    float *router_parts, *gate_up, *shared_parts, *down_parts;
    size_t bytes;
} feed_memory;

static int32_t piece_rows(const ops_step *step)
{
    return step->limits.rows < PIECE ? step->limits.rows : PIECE;
}

static void *place(feed_memory *memory, uint8_t *base, size_t count, size_t size)
{
    void *at = base ? base + memory->bytes : NULL;
    memory->bytes += (count * size + 255) / 256 * 256;
    return at;
}

/* With base NULL only the bytes count. */
static feed_memory divide(const ops_step *step, void *base)
{
    const ops_model *m = step->backend->model;
    size_t piece = (size_t)piece_rows(step), members = piece * (size_t)m->experts_per_token;
    feed_memory f = {.bytes = 0};
    f.count = place(&f, base, (size_t)m->experts, sizeof *f.count);
    f.members = place(&f, base, (size_t)m->experts * piece, sizeof *f.members);
    bool wide = step->backend->info.major == 9 && piece > MOE_ROWS;
    size_t lines = wide ? members + 8 * (size_t)m->experts : members;
    f.position = place(&f, base, wide ? members : 0, sizeof *f.position);
    f.in = place(&f, base, (wide ? lines : piece) * (size_t)m->hidden, sizeof *f.in);
    f.factor = place(&f, base, piece, sizeof *f.factor);
    f.z = place(&f, base, lines * (size_t)m->expert_width, sizeof *f.z);
    f.y = place(&f, base, members * (size_t)m->hidden, sizeof *f.y);

    size_t rows = piece < MOE_ROWS ? piece : MOE_ROWS, experts = (size_t)m->experts;
    size_t padded = (rows + MOE_PART - 1) / MOE_PART * MOE_PART, active = rows * (size_t)m->experts_per_token;
    if (active > experts) active = experts;
    size_t tiles = (size_t)m->expert_width / EXPERTS_TILE, shared_tiles = (size_t)m->shared_width / EXPERTS_TILE;
    f.active = place(&f, base, experts, sizeof *f.active);
    f.chosen = place(&f, base, experts, sizeof *f.chosen);
    f.counts = place(&f, base, MOE_COUNTS, sizeof *f.counts);
    f.up_done = place(&f, base, experts, sizeof *f.up_done);
    f.pair_done = place(&f, base, active * tiles, sizeof *f.pair_done);
    f.shared_done = place(&f, base, padded / MOE_PART * shared_tiles, sizeof *f.shared_done);
    f.out_done = place(&f, base, (size_t)m->hidden / EXPERTS_TILE, sizeof *f.out_done);
    f.router_parts = place(&f, base, padded * experts * PROJECT_SLICES, sizeof *f.router_parts);
    f.gate_up = place(&f, base, 2 * rows * (size_t)m->experts_per_token * (size_t)m->expert_width, sizeof *f.gate_up);
    f.shared_parts = place(&f, base, 2 * PROJECT_SLICES * padded * (size_t)m->shared_width, sizeof *f.shared_parts);
    f.down_parts = place(&f, base, PROJECT_SLICES * padded * (size_t)m->hidden, sizeof *f.down_parts);
    return f;
}

hy_status cuda_feed_open(ops_step *step, hy_error *err)
{
    return cuda_step_alloc(step, divide(step, NULL).bytes, 1, "the experts' members and outputs",
                           &step->experts_scratch, err);
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

static size_t prepare_shared(const kernel_weight *w)
{
    return (size_t)w->cols * 9;
}

/* Are a layer's experts those of experts.cu? */
static bool takes(const ops_backend *b, const cuda_layer *l)
{
    const kernel_weight *all[] = {&l->gate, &l->up, &l->down};
    bool good = true;
    for (int i = 0; i < 3; i++)
        good = good && all[i]->format == KERNEL_NVFP4 && all[i]->cols % 32 == 0 &&
               prepare_shared(all[i]) <= b->info.shared;
    return good;
}

hy_status cuda_feed_prepare(ops_backend *b, cuda_layer *l, const char *what, hy_error *err)
{
    const gpu_calls *calls = b->gpu->calls;
    const kernel_weight *all[] = {&l->gate, &l->up, &l->down};
    void *wrong = NULL;
    int32_t expert = 0;
    if (!takes(b, l)) return HY_OK;
    hy_status status = calls->alloc(b->gpu, sizeof expert, "the check of the experts", &wrong, err);
    if (status != HY_OK) return status;
    const gpu_kernel *kernel = calls->kernel(b->gpu, "hy_experts_prepare");
    for (int i = 0; i < 3 && kernel; i++) {
        experts_prepare_args args = {(uint8_t *)(uintptr_t)all[i]->data,
                                     (uint8_t *)(uintptr_t)all[i]->scales,
                                     l->expert_bytes[i],
                                     l->expert_scale_bytes[i],
                                     all[i]->cols,
                                     wrong};
        int grid[3] = {(all[i]->rows + EXPERTS_TILE - 1) / EXPERTS_TILE, b->model->experts, 1};
        calls->launch(b->gpu, kernel, grid, 256, prepare_shared(all[i]), &args, sizeof args);
    }
    calls->read(b->gpu, wrong, &expert, sizeof expert);
    calls->free(b->gpu, wrong);
    status = calls->wait(b->gpu, err);
    if (status == HY_OK && expert > 0)
        return error_set(err, HY_BAD_MODEL, "%s: expert %d has %s", what, expert - 1, weight_fault(WEIGHT_NVFP4));
    return status;
}

/* ---- Router ------------------------------------------------------------------------------------------------------ */

/* Is the layer's feed-forward of this step one launch of kernels/moe.cu? */
static bool together(const ops_step *step, const cuda_layer *l)
{
    const ops_backend *b = step->backend;
    const kernel_weight *shared[] = {&l->shared_gate, &l->shared_up, &l->shared_down};
    if (b->apart || step->rows.count > MOE_ROWS || MOE_SHARED > b->info.shared || !takes(b, l)) return false;
    for (int i = 0; i < 3 && l->shared_gate.data; i++)
        if (shared[i]->format != KERNEL_MXFP8 || shared[i]->rows % EXPERTS_TILE) return false;
    return l->router.format == KERNEL_F32 && b->model->hidden % EXPERTS_TILE == 0;
}

/* Does moe_hopper.cu take it? The bits are those of moe.cu. */
static bool streams(const ops_backend *b, const cuda_layer *l)
{
    return b->info.major == 9 && MOE_HOPPER_SHARED <= b->info.shared && b->model->hidden % EXPERTS_CHUNK == 0 &&
           l->down.cols % EXPERTS_CHUNK == 0 && b->model->experts < MOE_ROUTE_COUNT;
}

static route_choose_args choose_args(const ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    const int32_t *replay = step->device_rows.replay_routes;
    return (route_choose_args){
        .count = step->rows.count,
        .experts = m->experts,
        .per_token = m->experts_per_token,
        .scores = step->router,
        .bias = step->backend->layer[layer].router_bias.data,
        .flags = step->device_rows.flags,
        .replay_flag = ROW_REPLAY_ROUTES,
        .replay = replay ? replay + (int64_t)layer * step->rows.count * m->experts_per_token : NULL,
        .routes = step->routes,
        .weights = step->route_weights,
    };
}

/* A multiprocessor takes some 6.5 times as long for a tile of route_wide as for one of route_many, with eight times the
 * products: where its last tiles leave most multiprocessors idle, smaller ones are faster. */
static bool route_wide_pays(const gpu_info *info, int32_t count, int32_t experts)
{
    int32_t wide = divide_up(count, ROUTE_WIDE) * (experts / ROUTE_WIDE);
    int32_t many = divide_up(count, ROUTE_MANY_ROWS) * (experts / ROUTE_MANY_OUTPUTS);
    return experts % ROUTE_WIDE == 0 && ROUTE_WIDE_SHARED <= info->shared &&
           13 * divide_up(wide, info->processors) <= 2 * divide_up(many, info->processors);
}

void cuda_route_now(ops_step *step)
{
    int layer = step->routing - 1;
    if (layer < 0) return;
    step->routing = 0;
    const ops_model *m = step->backend->model;
    int32_t count = step->rows.count;
    const kernel_weight *router = &step->backend->layer[layer].router;
    const gpu_info *info = &step->backend->info;
    int32_t tiles = divide_up(count, ROUTE_MANY_ROWS) * (m->experts / ROUTE_MANY_OUTPUTS);
    if (tiles >= info->processors && router->format == KERNEL_F32 && m->experts % ROUTE_MANY_OUTPUTS == 0 &&
        m->hidden % 8 == 0 && ROUTE_MANY_SHARED + 16384 <= info->shared) {
        route_many_args many = {count, m->hidden, m->experts, router->data, step->normed, step->router};
        bool wide = route_wide_pays(info, count, m->experts);
        cuda_launch(step, wide ? "route_wide" : "route_many", info->processors, 1, 1, PROJECT_BLOCK,
                    wide ? ROUTE_WIDE_SHARED : ROUTE_MANY_SHARED, &many, sizeof many);
    } else {
        cuda_project(step, router, step->normed, count, NULL, false, CUDA_STORE, step->router, m->experts);
    }
    route_choose_args args = choose_args(step, layer);
    cuda_launch(step, "route_choose", (count + 3) / 4, 1, 1, 4 * CUDA_WARP, 0, &args, sizeof args);
}

void cuda_route(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    const cuda_layer *l = &step->backend->layer[layer];
    cuda_norm(step, step->x, &l->post_norm, m->hidden, m->norm_eps, false, step->rows.count, step->normed, step->h);
    step->routing = layer + 1;
    if (!together(step, l)) cuda_route_now(step);
}

/* ---- Experts ----------------------------------------------------------------------------------------------------- */

/* How a piece is launched. */
typedef struct piece {
    int32_t first, count; /* rows */
    int32_t experts;      /* most that have rows */
    bool quantised;
    bool tensor; /* experts.cu takes the weights; else experts_plain.cu */
    bool few;    /* experts_down_few */
    int eights;  /* of rows that a warp takes at once: 1, 2, 4, 8 */
    int turns;   /* blocks that share an expert's rows */
    bool wide;   /* experts_hopper.cu */
    bool sparse; /* its kernels for few members an expert */
} piece;

/* Does experts_hopper.cu take a piece that is too large for kernels/moe.cu? */
static bool takes_wide(const ops_backend *b, const cuda_layer *l, int32_t rows)
{
    return rows > MOE_ROWS && !b->narrow && b->info.major == 9 && EXPERTS_HOPPER_SHARED <= b->info.shared &&
           EXPERTS_HOPPER_SHARED_FEW <= b->info.shared && b->model->experts <= EXPERTS_HOPPER_EXPERTS &&
           b->model->experts_per_token <= EXPERTS_HOPPER_PLACES && l->gate.cols <= EXPERTS_HOPPER_HIDDEN &&
           l->gate.cols % EXPERTS_HOPPER_OUTPUTS == 0 && l->gate.rows % EXPERTS_HOPPER_K == 0;
}

static piece piece_at(const ops_step *step, const cuda_layer *l, int32_t first)
{
    const ops_model *m = step->backend->model;
    int32_t left = step->rows.count - first, most = piece_rows(step);
    piece p = {.first = first, .count = left < most ? left : most, .tensor = takes(step->backend, l)};
    int32_t members = p.count * m->experts_per_token, expected = members / m->experts;
    p.experts = members < m->experts ? members : m->experts;
    p.quantised = step->backend->options.activation == MOE_ACTIVATION_NVFP4;
    p.few = p.tensor && members <= EXPERTS_FEW;
    p.eights = p.few || p.count <= 8 || expected <= 3 ? 1 : expected <= 10 ? 2 : expected <= 24 ? 4 : 8;
    int32_t turns = 2 * expected / (8 * p.eights) + 1; /* most experts have fewer than twice the expected rows */
    p.turns = p.few ? 1 : turns < 4 ? turns : 4;
    p.wide = p.tensor && takes_wide(step->backend, l, p.count);
    p.sparse = expected <= EXPERTS_HOPPER_ROWS_FEW / 2;
    return p;
}

static experts_weight of_experts(const cuda_layer *l, const kernel_weight *w, int i)
{
    return (experts_weight){*w, l->expert_bytes[i], l->expert_scale_bytes[i], l->factors[i]};
}

/* The kernels of experts_hopper.cu, a block a multiprocessor; those for many members in clusters. */
static void launch_wide(ops_step *step, const char *name, const char *name_few, bool few, const void *args,
                        size_t bytes)
{
    int blocks = step->backend->info.processors, clusters = blocks / EXPERTS_HOPPER_TOGETHER;
    if (!few) blocks = (clusters ? clusters : 1) * EXPERTS_HOPPER_TOGETHER;
    cuda_launch(step, few ? name_few : name, blocks, 1, 1, EXPERTS_HOPPER_BLOCK,
                few ? EXPERTS_HOPPER_SHARED_FEW : EXPERTS_HOPPER_SHARED, args, bytes);
}

/* z of all members. */
static void launch_glu(ops_step *step, const piece *p, const experts_glu_args *args)
{
    if (p->wide) {
        launch_wide(step, "experts_glu_hopper", "experts_glu_hopper_few", p->sparse, args, sizeof *args);
        return;
    }
    const char *name = p->eights == 2 ? "experts_glu_2" : p->eights == 4 ? "experts_glu_4" : "experts_glu_8";
    int32_t width = args->gate.first.rows, tiles = divide_up(width, EXPERTS_TILE);
    if (!p->tensor)
        cuda_launch(step, "experts_glu_plain", divide_up(width, 4), p->experts, 1, 128, 0, args, sizeof *args);
    else if (p->eights == 1)
        cuda_launch(step, "experts_glu_1", tiles, p->experts, p->turns, 64, 2 * EXPERTS_RING_BYTES, args, sizeof *args);
    else
        cuda_launch(step, name, divide_up(tiles, 4), p->experts, p->turns, 128, 8 * EXPERTS_RING_BYTES, args,
                    sizeof *args);
    experts_requantise_args again = {(int64_t)p->count * args->lists.per_token * (width / 16), args->z};
    if (!p->tensor && p->quantised)
        cuda_launch(step, "experts_requantise", (int)((again.groups + 127) / 128), 1, 1, 128, 0, &again, sizeof again);
}

/* x of all rows. */
static void launch_down(ops_step *step, const piece *p, const experts_down_args *args)
{
    const char *name = p->eights <= 2 ? "experts_down_2" : p->eights == 4 ? "experts_down_4" : "experts_down_8";
    int32_t hidden = args->down.first.rows, warps = p->experts < 8 ? p->experts : 8;
    if (p->few) {
        cuda_launch(step, "experts_down_few", divide_up(hidden, EXPERTS_TILE), 1, 1, warps * CUDA_WARP,
                    (size_t)warps * EXPERTS_RING_BYTES, args, sizeof *args);
        return;
    }
    if (p->wide)
        launch_wide(step, "experts_down_hopper", "experts_down_hopper_few", p->sparse, args, sizeof *args);
    else if (!p->tensor)
        cuda_launch(step, "experts_down_plain", divide_up(hidden, 4), p->experts, 1, 128, 0, args, sizeof *args);
    else
        cuda_launch(step, name, divide_up(hidden, 4 * 2 * EXPERTS_TILE), p->experts, p->turns, 128,
                    8 * EXPERTS_RING_BYTES, args, sizeof *args);
    experts_combine_args combine = {args->sum, args->y};
    if (hidden % 4 == 0)
        cuda_launch(step, "experts_combine_four", divide_up(hidden, 4 * 256), p->count, 1, 256, 0, &combine,
                    sizeof combine);
    else
        cuda_launch(step, "experts_combine", divide_up(hidden, 256), p->count, 1, 256, 0, &combine, sizeof combine);
}

/* The shared expert's gate and up of all rows, in step->y [T, shared_width] twice. */
static void shared_gate_up(ops_step *step, const cuda_layer *l, experts_shared_args *out)
{
    const ops_model *m = step->backend->model;
    int32_t count = step->rows.count, width = m->shared_width;
    float *up = step->y + (int64_t)count * width;
    const cuda_part parts[] = {{&l->shared_gate, step->y, width}, {&l->shared_up, up, width}};
    cuda_project_parts(step, parts, 2, step->normed, count, NULL, CUDA_STORE);
    *out = (experts_shared_args){(int64_t)count * width, step->y, up, m->swiglu_alpha, m->swiglu_limit, step->z};
}

/* The first piece does the shared expert's SwiGLU for all rows on the side; its output lies in step->y [T, hidden]. */
static void run_piece(ops_step *step, const cuda_layer *l, const piece *p)
{
    const ops_model *m = step->backend->model;
    feed_memory f = divide(step, step->experts_scratch);
    bool shared = l->shared_gate.data;
    int64_t first = p->first, places = first * m->experts_per_token;
    experts_lists lists = {m->experts, m->experts_per_token,       piece_rows(step), f.count,
                           f.members,  p->wide ? f.position : NULL};
    const int32_t *sequence = step->device_rows.sequence + first, *routes = step->routes + places;
    experts_begin_args begin = {
        .plan = {lists, p->count, sequence, routes},
        .in = {m->hidden, p->quantised, p->tensor, step->h + first * m->hidden, f.in, f.factor},
    };
    if (shared && first == 0 && p->wide)
        cuda_glu(step, &l->shared_gate, &l->shared_up, step->normed, step->rows.count, m->swiglu_alpha, m->swiglu_limit,
                 false, step->y, step->z);
    else if (shared && first == 0)
        shared_gate_up(step, l, &begin.shared);
    int64_t glus = (begin.shared.total + EXPERTS_GLU_BLOCK - 1) / EXPERTS_GLU_BLOCK;
    int threads_of_row = divide_up(m->hidden / 16, CUDA_WARP) * CUDA_WARP, blocks = p->wide ? 0 : p->count + (int)glus;
    cuda_launch(step, "experts_begin", m->experts + blocks, 1, 1, p->count > 256 ? 1024 : 256, 0, &begin, sizeof begin);
    experts_spread_args spread = {begin.in, lists, sequence, routes, p->sparse};
    if (p->wide) cuda_launch(step, "experts_spread", p->count, 1, 1, threads_of_row, 0, &spread, sizeof spread);

    experts_glu_args glu = {.lists = lists,
                            .gate = of_experts(l, &l->gate, 0),
                            .up = of_experts(l, &l->up, 1),
                            .in = f.in,
                            .row_factor = p->quantised ? f.factor : NULL,
                            .alpha = m->swiglu_alpha,
                            .limit = m->swiglu_limit,
                            .z = f.z};
    launch_glu(step, p, &glu);
    if (shared && first == 0)
        cuda_project(step, &l->shared_down, step->z, step->rows.count, NULL, true, CUDA_STORE, step->y, m->hidden);

    experts_sum_args sum = {.count = p->count,
                            .hidden = m->hidden,
                            .per_token = m->experts_per_token,
                            .scaling = m->routed_scaling,
                            .sequence = sequence,
                            .routes = routes,
                            .weights = step->route_weights + places,
                            .shared = shared ? step->y + first * m->hidden : NULL,
                            .x = step->x + first * m->hidden};
    experts_down_args down = {lists, of_experts(l, &l->down, 2), f.z, p->quantised ? NVFP4_FC2_FACTOR : 1, f.y, sum};
    launch_down(step, p, &down);
}

static moe_sizes sizes_of(const ops_model *m, int32_t count, bool routing, bool shared)
{
    moe_sizes s = {.experts = m->experts};
    s.routes = !routing ? 0 : m->experts * PROJECT_SLICES * divide_up(count, MOE_ROUTED);
    s.choices = routing ? count : 1; /* or the lists alone */
    s.pieces = divide_up(m->hidden / 16, MOE_QUANTISED);
    s.inputs = count * s.pieces;
    s.parts = divide_up(count, MOE_PART);
    s.tiles = m->expert_width / EXPERTS_TILE;
    s.out_tiles = m->hidden / EXPERTS_TILE;
    if (!shared) return s;
    s.shared_tiles = m->shared_width / EXPERTS_TILE;
    s.up_slices = s.shared_tiles * s.parts * 2 * PROJECT_SLICES;
    s.down_slices = s.out_tiles * s.parts * PROJECT_SLICES;
    return s;
}

/* What kernels/moe_hopper.cu begins with. */
static void launch_route(ops_step *step, moe_args *args)
{
    bool few = args->count <= MOE_ROUTED;
    int32_t experts = args->sizes.experts, groups = divide_up(experts, few ? 1 : MOE_ROUTE_EXPERTS);
    args->sizes.routes = args->routing ? groups * divide_up(args->count, MOE_ROUTED) : 1;
    int blocks = args->sizes.routes > args->count ? args->sizes.routes : args->count;
    cuda_launch(step, few ? "moe_route_few" : "moe_route_many", blocks, 1, 1,
                few ? MOE_ROUTE_TEAM : MOE_ROUTE_TEAMS * MOE_ROUTE_TEAM,
                MOE_ROUTE_PARTS + (size_t)experts * sizeof(uint32_t), args, sizeof *args);
}

/* All rows of the step, and the router if that is still to be done. */
static void run_together(ops_step *step, const cuda_layer *l, int layer)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    feed_memory f = divide(step, step->experts_scratch);
    int32_t count = step->rows.count;
    bool quantised = b->options.activation == MOE_ACTIVATION_NVFP4;
    experts_lists lists = {m->experts, m->experts_per_token, piece_rows(step), f.chosen, f.members, NULL};
    const int32_t *sequence = step->device_rows.sequence;
    moe_args args = {
        .count = count,
        .routing = step->routing == layer + 1,
        .late = b->late,
        .router = l->router.data,
        .normed = step->normed,
        .choose = choose_args(step, layer),
        .plan = {lists, count, sequence, step->routes},
        .in = {m->hidden, quantised, true, step->h, f.in, f.factor},
        .glu = {.lists = lists,
                .gate = of_experts(l, &l->gate, 0),
                .up = of_experts(l, &l->up, 1),
                .in = f.in,
                .row_factor = quantised ? f.factor : NULL,
                .alpha = m->swiglu_alpha,
                .limit = m->swiglu_limit,
                .z = f.z},
        .down = {.lists = lists,
                 .down = of_experts(l, &l->down, 2),
                 .z = f.z,
                 .factor = quantised ? NVFP4_FC2_FACTOR : 1,
                 .y = f.y,
                 .sum = {.count = count,
                         .hidden = m->hidden,
                         .per_token = m->experts_per_token,
                         .scaling = m->routed_scaling,
                         .sequence = sequence,
                         .routes = step->routes,
                         .weights = step->route_weights,
                         .x = step->x}},
        .shared_z = step->z,
        .router_parts = f.router_parts,
        .gate_up = f.gate_up,
        .shared_parts = f.shared_parts,
        .down_parts = f.down_parts,
        .active = f.active,
        .counts = f.counts,
        .up_done = f.up_done,
        .pair_done = f.pair_done,
        .shared_done = f.shared_done,
        .out_done = f.out_done,
    };
    bool stream = streams(b, l), shared = l->shared_gate.data && count <= MOE_FEW && !stream;
    args.sizes = sizes_of(m, count, args.routing, shared);
    int blocks = MOE_BLOCKS * b->info.processors;
    if (shared) {
        args.shared_gate = l->shared_gate, args.shared_up = l->shared_up, args.shared_down = l->shared_down;
        int64_t bytes = (int64_t)l->shared_gate.rows * l->shared_gate.cols, lines = (int64_t)blocks * MOE_BLOCK * 128;
        args.ahead = (int32_t)(bytes < lines ? bytes : lines);
    }
    step->routing = 0;
    args.behind_shared = stream && l->shared_gate.data;
    if (stream && !args.behind_shared) launch_route(step, &args);
    /* In the launch the shared expert takes longer, with 64 rows three times. */
    if (l->shared_gate.data && !shared) {
        cuda_glu(step, &l->shared_gate, &l->shared_up, step->normed, count, m->swiglu_alpha, m->swiglu_limit, false,
                 step->y, step->z);
        if (args.behind_shared) launch_route(step, &args);
        cuda_project(step, &l->shared_down, step->z, count, NULL, true, CUDA_STORE, step->y, m->hidden);
        args.beside = step->y;
    }
    if (stream) {
        size_t held = (size_t)MOE_HOPPER_SHARED_ONE(m->hidden > m->expert_width ? m->hidden : m->expert_width);
        bool one = count <= MOE_HOPPER_ONE && held <= b->info.shared;
        cuda_launch(step, one ? "moe_hopper_one" : "moe_hopper", (one ? 1 : MOE_HOPPER_BLOCKS) * b->info.processors, 1,
                    1, MOE_HOPPER_BLOCK, one ? held : MOE_HOPPER_SHARED, &args, sizeof args);
    } else {
        cuda_launch(step, count <= MOE_FEW ? "moe_few" : "moe_many", blocks, 1, 1, MOE_BLOCK, MOE_SHARED, &args,
                    sizeof args);
    }
}

void cuda_experts(ops_step *step, int layer)
{
    const cuda_layer *l = &step->backend->layer[layer];
    if (together(step, l)) {
        if (step->routing != layer + 1) cuda_route_now(step);
        run_together(step, l, layer);
        return;
    }
    for (int32_t first = 0; first < step->rows.count; first += piece_rows(step)) {
        piece p = piece_at(step, l, first);
        run_piece(step, l, &p);
    }
}
