/*
 * Feed-forward: router, routed experts with the shared one, and the dense kind.
 *
 *     s = sigmoid(W h);  S = the experts_per_token largest s + bias;  w_e = s_e / sum over S
 *     x' = x + (routed_scaling * sum w_e expert_e(h) in ascending e + shared(h))
 *     expert(h) = down . bf16((up + 1) gate sigmoid(alpha gate))
 *
 * Rows are grouped by expert, so that a decoded tile of weights serves all rows that go there. The first pass makes the
 * SwiGLU outputs z of all experts and of the shared one; an item is a few panels of one expert. The second makes the
 * outputs: an item owns up to 64 columns of x and goes through the experts in ascending number, so the sum of a row has
 * its order without keeping the experts' outputs apart.
 *
 * With nvfp4 activations (W4A4) the routed experts read h and z through the quantisers of number/nvfp4.h, decoded to
 * fp32, where their products with 4-bit weights are exact.
 */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "number/nvfp4.h"

/* ---- Router ------------------------------------------------------------------------------------------------------ */

/* The best experts by s + bias in ascending number; ties go to the lower number, NaN loses against everything. */
static void choose(const float *s, const float *bias, int experts, int count, int32_t *routes)
{
    for (int n = 0; n < count; n++) {
        int best = -1;
        float best_score = 0;
        for (int e = 0; e < experts; e++) {
            bool taken = false;
            for (int i = 0; i < n; i++) taken |= routes[i] == e;
            float score = s[e] + bias[e];
            if (isnan(score)) score = -INFINITY;
            if (!taken && (best < 0 || score > best_score)) best = e, best_score = score;
        }
        int at = n;
        for (; at > 0 && routes[at - 1] > best; at--) routes[at] = routes[at - 1];
        routes[at] = best;
    }
}

typedef struct layer_work {
    ops_step *step;
    int layer;
} layer_work;

static void route_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const layer_work *work = arg;
    ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const cpu_layer *l = &step->backend->layer[work->layer];
    int count = m->experts_per_token;
    for (int64_t t = begin; t < end; t++) {
        float *s = step->router + t * m->experts, *weights = step->route_weights + t * count, sum = 0;
        int32_t *routes = step->routes + t * count;
        for (int e = 0; e < m->experts; e += LANES) {
            float lanes[LANES] = {0};
            size_t bytes = (size_t)(m->experts - e < LANES ? m->experts - e : LANES) * sizeof(float);
            memcpy(lanes, s + e, bytes);
            step->backend->kernels->sigmoid(lanes, lanes);
            memcpy(s + e, lanes, bytes);
        }
        if (step->rows.flags[t] & ROW_REPLAY_ROUTES)
            memcpy(routes, step->rows.replay_routes + ((int64_t)work->layer * step->rows.count + t) * count,
                   (size_t)count * sizeof *routes);
        else
            choose(s, l->router_bias, m->experts, count, routes);
        for (int i = 0; i < count; i++) sum += s[routes[i]];
        for (int i = 0; i < count; i++) weights[i] = s[routes[i]] / sum;
    }
}

void cpu_route(ops_step *step, int layer)
{
    const cpu_layer *l = &step->backend->layer[layer];
    cpu_norm_rows(step, l->post_gain);
    cpu_output output = {&l->router, step->router};
    cpu_project(step, &output, 1, step->h, step->rows.count);
    layer_work work = {step, layer};
    cpu_parallel(step, step->rows.count, route_rows, &work);
}

/* ---- Gate and up ------------------------------------------------------------------------------------------------- */

/* One SwiGLU: z of `count` rows from the same gate and up. */
typedef struct glu {
    const cpu_linear *gate, *up;
    const int32_t *members; /* [count] row * experts_per_token + place; NULL: rows 0 .. count-1 */
    int32_t count;
    float *z; /* [members or rows, width] */
    bool fp4;
} glu;

typedef struct glu_work {
    ops_step *step;
    const cpu_layer *layer;
    bool moe, plain; /* routed experts; the shared expert or the dense feed-forward */
    int pairs;       /* panels of gate and of up that an item takes */
} glu_work;

/* Number `i` of the step's SwiGLUs: the routed experts, then the plain one. */
static glu glu_at(const glu_work *work, int i)
{
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const cpu_layer *l = work->layer;
    if (work->moe && i < m->experts)
        return (glu){&l->expert_gate[i],
                     &l->expert_up[i],
                     step->members + step->expert_first[i],
                     step->expert_first[i + 1] - step->expert_first[i],
                     step->z,
                     step->backend->options.activation == MOE_ACTIVATION_NVFP4};
    if (work->moe)
        return (glu){&l->shared_gate,
                     &l->shared_up,
                     NULL,
                     step->rows.count,
                     step->z + (int64_t)step->limits.rows * m->experts_per_token * m->expert_width,
                     false};
    return (glu){&l->dense_gate, &l->dense_up, NULL, step->rows.count, step->z, false};
}

static int glu_count(const glu_work *work)
{
    return (work->moe ? work->step->backend->model->experts : 0) + work->plain;
}

static int64_t row_tiles(int32_t count)
{
    return (count + TILE_ROWS - 1) / TILE_ROWS;
}

static int64_t glu_items(const glu_work *work, const glu *g)
{
    return (g->gate->panels + work->pairs - 1) / work->pairs * row_tiles(g->count);
}

/* z of one row and panel, from the finished sums of gate and up. */
static void finish_glu(const glu_work *work, const glu *g, const float *gate, const float *up, float factor, int width,
                       float *z)
{
    const ops_backend *b = work->step->backend;
    float lanes[3][LANES];
    memcpy(lanes[0], gate, sizeof lanes[0]);
    memcpy(lanes[1], up, sizeof lanes[1]);
    for (int i = 0; i < LANES && g->fp4; i++) lanes[0][i] *= factor, lanes[1][i] *= factor;
    b->kernels->swiglu(lanes[0], lanes[1], b->model->swiglu_alpha, b->model->swiglu_limit, lanes[2]);
    if (g->fp4) nvfp4_fc2_round_row(lanes[2], 1, lanes[2]);
    memcpy(z, lanes[2], (size_t)width * sizeof *z);
}

static void run_glu(const glu_work *work, const glu *g, int64_t item, int worker)
{
    const ops_step *step = work->step;
    int hidden = step->backend->model->hidden, per_token = step->backend->model->experts_per_token;
    int64_t tiles = row_tiles(g->count), first = item / tiles * work->pairs, row = item % tiles * TILE_ROWS;
    int64_t left = g->gate->panels - first;
    int pairs = (int)(left < work->pairs ? left : work->pairs);
    int rows = (int)(g->count - row < TILE_ROWS ? g->count - row : TILE_ROWS);
    cpu_panel panel[MAX_PANELS];
    const float *x[TILE_ROWS] = {NULL}, *from = g->fp4 ? step->fp4 : step->h;
    for (int p = 0; p < pairs; p++)
        panel[p] = (cpu_panel){g->gate, first + p}, panel[pairs + p] = (cpu_panel){g->up, first + p};
    for (int r = 0; r < rows; r++)
        x[r] = from + (g->members ? g->members[row + r] / per_token : row + r) * (int64_t)hidden;
    const float *y =
        cpu_multiply(step->backend->kernels, &step->worker[worker].product, panel, 2 * pairs, x, rows, false);
    for (int r = 0; r < rows; r++) {
        int64_t member = g->members ? g->members[row + r] : row + r;
        float factor = g->fp4 ? step->fp4_factor[member / per_token] : 1;
        for (int p = 0; p < pairs; p++) {
            int64_t n = (first + p) * LANES, width = g->gate->rows - n < LANES ? g->gate->rows - n : LANES;
            const float *gate = y + (r * 2 * pairs + p) * LANES;
            finish_glu(work, g, gate, gate + pairs * LANES, factor, (int)width, g->z + member * g->gate->rows + n);
        }
    }
}

static void run_glus(void *arg, int64_t begin, int64_t end, int worker)
{
    const glu_work *work = arg;
    for (int64_t item = begin; item < end; item++) {
        int64_t left = item;
        int i = 0;
        glu g = glu_at(work, 0);
        for (; left >= glu_items(work, &g); g = glu_at(work, ++i)) left -= glu_items(work, &g);
        run_glu(work, &g, left, worker);
    }
}

static void all_glus(glu_work *work)
{
    int64_t panels = 0, items = 0;
    for (int i = 0; i < glu_count(work); i++) {
        glu g = glu_at(work, i);
        panels += g.gate->panels * row_tiles(g.count);
    }
    work->pairs = cpu_panels_per_item(work->step, panels, 1) >= MAX_PANELS / 2 ? MAX_PANELS / 2 : 1;
    for (int i = 0; i < glu_count(work); i++) {
        glu g = glu_at(work, i);
        items += glu_items(work, &g);
    }
    cpu_parallel(work->step, items, run_glus, work);
}

/* ---- Down -------------------------------------------------------------------------------------------------------- */

typedef struct down_work {
    ops_step *step;
    const cpu_layer *layer;
    bool shared;
    int panels; /* of an item */
} down_work;

/* Columns that an item owns. */
typedef struct columns {
    int64_t panel;
    int panels;
    int64_t first, width;
} columns;

/* step->sum of the item's columns += weight * expert e of its members. */
static void add_expert(const down_work *work, const columns *c, int e, int worker)
{
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    bool fp4 = step->backend->options.activation == MOE_ACTIVATION_NVFP4;
    cpu_panel panel[MAX_PANELS];
    for (int p = 0; p < c->panels; p++) panel[p] = (cpu_panel){&work->layer->expert_down[e], c->panel + p};
    for (int32_t at = step->expert_first[e]; at < step->expert_first[e + 1]; at += TILE_ROWS) {
        int rows = step->expert_first[e + 1] - at < TILE_ROWS ? step->expert_first[e + 1] - at : TILE_ROWS;
        const float *x[TILE_ROWS];
        for (int r = 0; r < rows; r++) x[r] = step->z + (int64_t)step->members[at + r] * m->expert_width;
        const float *y =
            cpu_multiply(step->backend->kernels, &step->worker[worker].product, panel, c->panels, x, rows, false);
        for (int r = 0; r < rows; r++, y += c->panels * LANES) {
            int32_t member = step->members[at + r];
            float share = step->route_weights[member];
            float *sum = step->sum + (int64_t)(member / m->experts_per_token) * m->hidden + c->first;
            for (int64_t i = 0; i < c->width; i++) sum[i] += share * (fp4 ? y[i] * NVFP4_FC2_FACTOR : y[i]);
        }
    }
}

/* x += scaling * sum + shared expert. */
static void add_shared(const down_work *work, const columns *c, int worker)
{
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const float *z = step->z + (int64_t)step->limits.rows * m->experts_per_token * m->expert_width;
    cpu_panel panel[MAX_PANELS];
    for (int p = 0; p < c->panels; p++) panel[p] = (cpu_panel){&work->layer->shared_down, c->panel + p};
    for (int32_t at = 0; at < step->rows.count; at += TILE_ROWS) {
        int rows = step->rows.count - at < TILE_ROWS ? step->rows.count - at : TILE_ROWS;
        const float *x[TILE_ROWS], *y = NULL;
        for (int r = 0; r < rows; r++) x[r] = z + (int64_t)(at + r) * m->shared_width;
        if (work->shared)
            y = cpu_multiply(step->backend->kernels, &step->worker[worker].product, panel, c->panels, x, rows, true);
        for (int r = 0; r < rows; r++) {
            float *residual = step->x + (int64_t)(at + r) * m->hidden + c->first;
            const float *sum = step->sum + (int64_t)(at + r) * m->hidden + c->first;
            for (int64_t i = 0; i < c->width; i++) {
                float routed = m->routed_scaling * sum[i];
                residual[i] += y ? routed + y[r * c->panels * LANES + i] : routed;
            }
        }
    }
}

static void down_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const down_work *work = arg;
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    int64_t all = (m->hidden + LANES - 1) / LANES;
    for (int64_t item = begin; item < end; item++) {
        columns c = {.panel = item * work->panels, .first = item * work->panels * LANES};
        c.panels = (int)(all - c.panel < work->panels ? all - c.panel : work->panels);
        c.width = m->hidden - c.first < c.panels * LANES ? m->hidden - c.first : c.panels * LANES;
        for (int64_t t = 0; t < step->rows.count; t++)
            memset(step->sum + t * m->hidden + c.first, 0, (size_t)c.width * sizeof *step->sum);
        for (int e = 0; e < m->experts; e++) add_expert(work, &c, e, worker);
        add_shared(work, &c, worker);
    }
}

/* ---- The operations ---------------------------------------------------------------------------------------------- */

/* Rows by expert: a counting sort, so that an expert's members are in ascending row. */
static void group_rows(ops_step *step)
{
    const ops_model *m = step->backend->model;
    int32_t *first = step->expert_first, count = m->experts_per_token;
    memset(first, 0, (size_t)(m->experts + 1) * sizeof *first);
    for (int32_t t = 0; t < step->rows.count; t++)
        for (int i = 0; i < count && step->rows.sequence[t] >= 0; i++) first[step->routes[t * count + i] + 1]++;
    for (int e = 0; e < m->experts; e++) first[e + 1] += first[e];
    for (int32_t t = 0; t < step->rows.count; t++)
        for (int i = 0; i < count && step->rows.sequence[t] >= 0; i++)
            step->members[first[step->routes[t * count + i]]++] = t * count + i;
    /* Every first[e] has moved on to the end of e, which is the beginning of e + 1. */
    for (int e = m->experts; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

static void quantise_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    ops_step *step = arg;
    size_t hidden = (size_t)step->backend->model->hidden;
    for (int64_t t = begin; t < end; t++)
        step->fp4_factor[t] =
            nvfp4_fc1_round_row(step->h + (size_t)t * hidden, hidden / NVFP4_GROUP, step->fp4 + (size_t)t * hidden);
}

void cpu_experts(ops_step *step, int layer)
{
    const cpu_layer *l = &step->backend->layer[layer];
    bool shared = l->shared_gate.format != WEIGHT_NONE;
    group_rows(step);
    if (step->backend->options.activation == MOE_ACTIVATION_NVFP4)
        cpu_parallel(step, step->rows.count, quantise_rows, step);
    glu_work gate_up = {step, l, true, shared, 1};
    all_glus(&gate_up);
    int64_t panels = (step->backend->model->hidden + LANES - 1) / LANES;
    down_work down = {step, l, shared, cpu_panels_per_item(step, panels, 1)};
    cpu_parallel(step, (panels + down.panels - 1) / down.panels, down_items, &down);
}

void cpu_feed_dense(ops_step *step, int layer)
{
    const cpu_layer *l = &step->backend->layer[layer];
    cpu_norm_rows(step, l->post_gain);
    glu_work gate_up = {step, l, false, true, 1};
    all_glus(&gate_up);
    cpu_project_residual(step, &l->dense_down, step->z);
}
