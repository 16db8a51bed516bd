/*
 * Feed-forward: router, routed experts with the shared one, and the dense kind.
 *
 *     s = sigmoid(W h);  S = the experts_per_token largest s + bias;  w_e = s_e / sum over S
 *     x' = x + (routed_scaling * sum w_e expert_e(h) in ascending e + shared(h))
 *     expert(h) = down . bf16((up + 1) gate sigmoid(alpha gate))
 *
 * Rows are grouped by expert, so that expanded weights serve all rows that go there. The first pass makes the SwiGLU
 * outputs z of all experts and of the shared one; an item is a few groups of one expert. The second makes the outputs:
 * an item owns up to 128 columns of x and goes through the experts in ascending number, so the sum of a row has its
 * order without keeping the experts' outputs apart. With few rows they are kept apart: see there.
 *
 * With nvfp4 activations (W4A4) the routed experts read h and z through the quantisers of number/nvfp4.h: as integers
 * if the experts are NVFP4, else decoded to fp32, where the products with their weights are exact.
 */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "number/nvfp4.h"

/* ---- Router ------------------------------------------------------------------------------------------------------ */

/* The best experts by s + bias in ascending number; ties go to the lower number, NaN loses against everything. */
void cpu_choose_experts(const float *s, const float *bias, int experts, int count, int32_t *routes)
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
            cpu_choose_experts(s, l->router_bias, m->experts, count, routes);
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
    cpu_stage(step, step->rows.count, route_rows, &work, sizeof work);
}

/* ---- Gate and up ------------------------------------------------------------------------------------------------- */

/* One SwiGLU: z of `count` rows from the same gate and up. */
typedef struct glu {
    const cpu_linear *gate, *up;
    const int32_t *members; /* [count] row * experts_per_token + place; NULL: rows 0 .. count-1 */
    int32_t count;
    float *z;    /* [members or rows, width] */
    bool fp4;    /* the inputs are quantised ... */
    bool block4; /* ... and stay so */
} glu;

typedef struct glu_work {
    ops_step *step;
    const cpu_layer *layer;
    bool moe, plain; /* routed experts; the shared expert or the dense feed-forward */
    bool block4;     /* of the routed experts */
    int first, last; /* with moe: experts [first, last) */
    int pairs;       /* groups of gate and of up that an item takes */
} glu_work;

/* Number `i` of the step's SwiGLUs: the routed experts, then the plain one. */
static glu glu_at(const glu_work *work, int i)
{
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const cpu_layer *l = work->layer;
    int e = work->first + i;
    if (work->moe && e < work->last)
        return (glu){&l->expert_gate[e],
                     &l->expert_up[e],
                     step->members + step->expert_first[e],
                     step->expert_first[e + 1] - step->expert_first[e],
                     step->z,
                     step->backend->options.activation == MOE_ACTIVATION_NVFP4,
                     work->block4};
    if (work->moe)
        return (glu){&l->shared_gate,
                     &l->shared_up,
                     NULL,
                     step->rows.count,
                     step->z + (int64_t)step->limits.rows * m->experts_per_token * m->expert_width,
                     false,
                     false};
    return (glu){&l->dense_gate, &l->dense_up, NULL, step->rows.count, step->z, false, false};
}

static int glu_count(const glu_work *work)
{
    return work->last - work->first + work->plain;
}

static int64_t row_tiles(int32_t count)
{
    return (count + TILE_ROWS - 1) / TILE_ROWS;
}

static int64_t glu_items(const glu_work *work, const glu *g)
{
    return (g->gate->groups + work->pairs - 1) / work->pairs * row_tiles(g->count);
}

/* z of columns [n, n + count) of one member, a few groups, from the finished sums of gate and up, whose groups lie
 * `stride` apart. */
static void finish_glu(const glu_work *work, const glu *g, const float *gate, const float *up, int64_t stride,
                       int64_t member, int64_t n, int64_t count)
{
    const ops_step *step = work->step;
    const ops_backend *b = step->backend;
    int64_t width = g->gate->rows;
    float z[MAX_GROUPS / 2 * GROUP], factor = g->fp4 ? step->fp4_factor[member / b->model->experts_per_token] : 1;
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t at = i / GROUP * stride + i % GROUP;
        b->kernels->swiglu(gate + at, up + at, factor, b->model->swiglu_alpha, b->model->swiglu_limit, 1, z + i);
    }
    if (g->block4) { /* all blocks in one call: they overlap */
        b->products->quantise_fc2(z, count / NVFP4_GROUP, &step->fp4_z[(member * width + n) / NVFP4_GROUP]);
        return;
    }
    if (g->fp4) nvfp4_fc2_round_row(z, (size_t)(count + NVFP4_GROUP - 1) / NVFP4_GROUP, z);
    memcpy(g->z + member * width + n, z, (size_t)count * sizeof *g->z);
}

/* The sums of up to TILE_ROWS members from `first` on. */
static const float *multiply_glu(const glu_work *work, const glu *g, const cpu_group *group, int groups, int64_t first,
                                 int rows, int worker)
{
    const ops_step *step = work->step;
    const ops_backend *b = step->backend;
    int hidden = b->model->hidden, per_token = b->model->experts_per_token;
    const float *x[TILE_ROWS] = {NULL}, *from = g->fp4 ? step->fp4 : step->h;
    const cpu_block4 *x4[TILE_ROWS] = {NULL};
    for (int r = 0; r < rows; r++) {
        int64_t row = g->members ? g->members[first + r] / per_token : first + r;
        if (g->block4)
            x4[r] = step->fp4_h + row * (hidden / NVFP4_GROUP);
        else
            x[r] = from + row * hidden;
    }
    /* The worker's next item begins where the groups of gate end. */
    cpu_group next = {g->gate, group[groups - 2].group + 1};
    if (g->block4)
        return cpu_multiply_block4(b->products, &step->worker[worker].product, group, groups, x4, rows, &next);
    return cpu_multiply(b->products, &step->worker[worker].product, group, groups, x, rows, false);
}

static void run_glu(const glu_work *work, const glu *g, int64_t item, int worker)
{
    int64_t tiles = row_tiles(g->count), first = item / tiles * work->pairs, row = item % tiles * TILE_ROWS;
    int64_t left = g->gate->groups - first;
    int pairs = (int)(left < work->pairs ? left : work->pairs);
    int rows = (int)(g->count - row < TILE_ROWS ? g->count - row : TILE_ROWS);
    cpu_group group[MAX_GROUPS] = {{NULL, 0}};
    for (int p = 0; p < pairs; p++) /* as they lie in memory */
        group[2 * p] = (cpu_group){g->gate, first + p}, group[2 * p + 1] = (cpu_group){g->up, first + p};
    const float *gate = multiply_glu(work, g, group, 2 * pairs, row, rows, worker), *up = gate + rows * GROUP;
    int64_t n = first * GROUP, count = g->gate->rows - n < pairs * GROUP ? g->gate->rows - n : pairs * GROUP;
    for (int r = 0; r < rows; r++, gate += GROUP, up += GROUP)
        finish_glu(work, g, gate, up, (int64_t)rows * 2 * GROUP, g->members ? g->members[row + r] : row + r, n, count);
}

/* The plain one's items, which are numbered last, lie among the others as evenly as they can: with many rows they are
 * arithmetic alone, and while a worker is at one the other has all of the memory for experts with few rows. */
static int64_t mixed(const glu_work *work, int64_t i)
{
    int last = glu_count(work) - 1;
    glu g = glu_at(work, last);
    int64_t plain = glu_items(work, &g), routed = work->step->glu_item[last], all = plain + routed;
    int64_t before = (i * plain + all - 1) / all, after = ((i + 1) * plain + all - 1) / all;
    return after > before ? routed + before : i - before;
}

/* With few rows the plain one's items, which have twice the bytes, are shared out like the routed ones: worker k of n
 * has the k-th part of these and then of those, each from end to end. Item i of `routed` and `plain` ones behind them.
 */
static int64_t shared_out(int64_t i, int64_t routed, int64_t plain, int64_t n)
{
    if (plain < n) return i;
    int64_t all = routed + plain, k = i * n / all, first = (k * all + n - 1) / n; /* as threads_stage.home has it */
    int64_t from = (k * routed + n - 1) / n, to = ((k + 1) * routed + n - 1) / n, at = from + i - first;
    return at < to ? at : routed + first - from + at - to;
}

static int64_t glu_order(const glu_work *work, int64_t i)
{
    if (!work->plain) return i;
    if (work->step->rows.count > FEW_ROWS) return mixed(work, i);
    int last = glu_count(work) - 1;
    glu g = glu_at(work, last);
    return shared_out(i, work->step->glu_item[last], glu_items(work, &g), work->step->workers);
}

static void run_glus(void *arg, int64_t begin, int64_t end, int worker)
{
    const glu_work *work = arg;
    const int64_t *item_first = work->step->glu_item;
    for (int64_t i = begin; i < end; i++) {
        int low = 0, high = glu_count(work); /* the last one that begins at or before the item, and what is behind it */
        int64_t item = glu_order(work, i);
        while (high - low > 1) *(item_first[(low + high) / 2] <= item ? &low : &high) = (low + high) / 2;
        glu g = glu_at(work, low);
        run_glu(work, &g, item - item_first[low], worker);
    }
}

/* How the SwiGLUs are cut into items; returns their number. */
static int64_t plan_glus(glu_work *work)
{
    int64_t groups = 0, items = 0;
    for (int i = 0; i < glu_count(work); i++) {
        glu g = glu_at(work, i);
        groups += g.gate->groups * row_tiles(g.count);
    }
    work->pairs = cpu_groups_per_item(work->step, 2 * groups, 1) >= MAX_GROUPS ? MAX_GROUPS / 2 : 1;
    for (int i = 0; i < glu_count(work); i++) {
        glu g = glu_at(work, i);
        work->step->glu_item[i] = items;
        items += glu_items(work, &g);
    }
    return items;
}

static void add_glus(const glu_work *glus)
{
    glu_work work = *glus;
    int64_t items = plan_glus(&work);
    cpu_stage(work.step, items, run_glus, &work, sizeof work)->home = true;
}

/* ---- Down -------------------------------------------------------------------------------------------------------- */

typedef struct down_work {
    ops_step *step;
    const cpu_layer *layer;
    bool shared, block4;
    cpu_batch batch; /* experts */
    int groups;      /* of an item */
} down_work;

/* Columns that an item owns. */
typedef struct columns {
    int64_t group;
    int groups;
    int64_t first, width;
} columns;

/* Products of the item's columns of a weight with rows of z: `members`, or (NULL) rows from `at` on. */
static const float *multiply_down(const down_work *work, const columns *c, const cpu_linear *w, const float *z,
                                  const int32_t *members, int64_t at, int rows, const cpu_linear *next, int worker)
{
    cpu_group then = {next, c->group};
    const ops_step *step = work->step;
    cpu_group group[MAX_GROUPS] = {{NULL, 0}};
    const float *x[TILE_ROWS] = {NULL};
    const cpu_block4 *x4[TILE_ROWS] = {NULL};
    for (int g = 0; g < c->groups; g++) group[g] = (cpu_group){w, c->group + g};
    for (int r = 0; r < rows; r++) {
        int64_t row = members ? members[at + r] : at + r;
        if (members && work->block4)
            x4[r] = step->fp4_z + row * (w->cols / NVFP4_GROUP);
        else
            x[r] = z + row * w->cols;
    }
    if (members && work->block4)
        return cpu_multiply_block4(step->backend->products, &step->worker[worker].product, group, c->groups, x4, rows,
                                   next ? &then : NULL);
    if (next) cpu_group_ask(&then);
    return cpu_multiply(step->backend->products, &step->worker[worker].product, group, c->groups, x, rows, !members);
}

/* sum += share * (factor * y) of a group, of which `width` outputs are there. */
static void add_share(float share, float factor, const float *restrict y, int64_t width, float *restrict sum)
{
    if (width >= GROUP) /* in vectors */
        for (int i = 0; i < GROUP; i++) sum[i] += share * (y[i] * factor);
    else
        for (int i = 0; i < width; i++) sum[i] += share * (y[i] * factor);
}

/* residual += scaling * sum, and y unless it is NULL. */
static void add_residual(float scaling, const float *restrict sum, const float *restrict y, int64_t width,
                         float *restrict residual)
{
    if (y && width >= GROUP)
        for (int i = 0; i < GROUP; i++) residual[i] += scaling * sum[i] + y[i];
    else
        for (int i = 0; i < width && i < GROUP; i++) residual[i] += y ? scaling * sum[i] + y[i] : scaling * sum[i];
}

/* step->sum of the item's columns += weight * expert e of its members. */
static void add_expert(const down_work *work, const columns *c, int e, const cpu_linear *next, int worker)
{
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    float factor = step->backend->options.activation == MOE_ACTIVATION_NVFP4 ? NVFP4_FC2_FACTOR : 1;
    for (int32_t at = step->expert_first[e]; at < step->expert_first[e + 1]; at += TILE_ROWS) {
        int rows = step->expert_first[e + 1] - at < TILE_ROWS ? step->expert_first[e + 1] - at : TILE_ROWS;
        const cpu_linear *down = &work->layer->expert_down[e];
        const float *y = multiply_down(work, c, down, step->z, step->members, at, rows, next, worker);
        for (int64_t n = 0; n < c->width; n += GROUP)
            for (int r = 0; r < rows; r++, y += GROUP) {
                int32_t member = step->members[at + r];
                float share = step->route_weights[member];
                float *sum = step->sum + (int64_t)(member / m->experts_per_token) * m->hidden + c->first + n;
                add_share(share, factor, y, c->width - n, sum);
            }
    }
}

/* x += scaling * sum + shared expert. */
static void add_shared(const down_work *work, const columns *c, int worker)
{
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    const float *z = step->z + (int64_t)step->limits.rows * m->experts_per_token * m->expert_width;
    for (int32_t at = 0; at < step->rows.count; at += TILE_ROWS) {
        int rows = step->rows.count - at < TILE_ROWS ? step->rows.count - at : TILE_ROWS;
        const float *y = NULL;
        if (work->shared) y = multiply_down(work, c, &work->layer->shared_down, z, NULL, at, rows, NULL, worker);
        for (int64_t n = 0; n < c->width; n += GROUP)
            for (int r = 0; r < rows; r++) {
                float *residual = step->x + (int64_t)(at + r) * m->hidden + c->first + n;
                const float *sum = step->sum + (int64_t)(at + r) * m->hidden + c->first + n;
                add_residual(m->routed_scaling, sum, y, c->width - n, residual);
                if (y) y += GROUP;
            }
    }
}

/* Experts lie apart: the next one with rows, or the shared one, is asked for while this one is read. */
static const cpu_linear *next_down(const down_work *work, int e)
{
    const int32_t *first = work->step->expert_first;
    for (int next = e + 1; next < work->batch.last; next++)
        if (first[next + 1] > first[next]) return &work->layer->expert_down[next];
    return work->shared && work->batch.ends ? &work->layer->shared_down : NULL;
}

/* Items that the columns of x are cut into, and the columns of one. */
static int64_t column_items(const down_work *work)
{
    int64_t groups = (work->step->backend->model->hidden + GROUP - 1) / GROUP;
    return (groups + work->groups - 1) / work->groups;
}

static columns columns_at(const down_work *work, int64_t item)
{
    int64_t hidden = work->step->backend->model->hidden, all = (hidden + GROUP - 1) / GROUP;
    columns c = {.group = item * work->groups, .first = item * work->groups * GROUP};
    c.groups = (int)(all - c.group < work->groups ? all - c.group : work->groups);
    c.width = hidden - c.first < c.groups * GROUP ? hidden - c.first : c.groups * GROUP;
    return c;
}

static void down_items(void *arg, int64_t begin, int64_t end, int worker)
{
    const down_work *work = arg;
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    for (int64_t item = begin; item < end; item++) {
        columns c = columns_at(work, item);
        for (int64_t t = 0; t < step->rows.count && work->batch.begins; t++)
            memset(step->sum + t * m->hidden + c.first, 0, (size_t)c.width * sizeof *step->sum);
        for (int e = work->batch.first; e < work->batch.last; e++)
            if (step->expert_first[e + 1] > step->expert_first[e]) add_expert(work, &c, e, next_down(work, e), worker);
        if (work->batch.ends) add_shared(work, &c, worker);
    }
}

/* ---- Down with few rows ------------------------------------------------------------------------------------------ */

/*
 * With few rows the weights are what takes time, and memory gives most to a worker that reads on and on. So an item is
 * a few groups of one expert, or of the shared one, whose outputs are kept apart; a stage of its own adds them up, each
 * column in the order in which down_items does.
 */

/* Output of member m, or with m = members + t of the shared expert for row t. */
static float *apart_row(const down_work *work, int64_t m)
{
    return work->step->apart + m * work->step->backend->model->hidden;
}

static void apart_experts(void *arg, int64_t begin, int64_t end, int worker)
{
    const down_work *work = arg;
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    int64_t members = (int64_t)step->rows.count * m->experts_per_token;
    int64_t per = column_items(work), routed = step->touched_count * per, plain = work->shared ? per : 0;
    for (int64_t i = begin; i < end; i++) {
        int64_t item = shared_out(i, routed, plain, step->workers), which = item / per;
        bool shared = which == step->touched_count;
        columns c = columns_at(work, item % per);
        int e = shared ? 0 : step->touched[which], rows = step->rows.count;
        const float *z = step->z, *y;
        if (shared)
            z += (int64_t)step->limits.rows * m->experts_per_token * m->expert_width;
        else
            rows = step->expert_first[e + 1] - step->expert_first[e];
        y = multiply_down(work, &c, shared ? &work->layer->shared_down : &work->layer->expert_down[e], z,
                          shared ? NULL : step->members, shared ? 0 : step->expert_first[e], rows, NULL, worker);
        for (int64_t n = 0; n < c.width; n += GROUP)
            for (int r = 0; r < rows; r++, y += GROUP) {
                int64_t row = shared ? members + r : step->members[step->expert_first[e] + r];
                int64_t width = c.width - n < GROUP ? c.width - n : GROUP;
                memcpy(apart_row(work, row) + c.first + n, y, (size_t)width * sizeof *y);
            }
    }
}

static void fold_apart(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const down_work *work = arg;
    const ops_step *step = work->step;
    const ops_model *m = step->backend->model;
    int64_t members = (int64_t)step->rows.count * m->experts_per_token;
    float factor = step->backend->options.activation == MOE_ACTIVATION_NVFP4 ? NVFP4_FC2_FACTOR : 1;
    for (int64_t item = begin; item < end; item++) {
        columns c = columns_at(work, item);
        for (int64_t n = c.first; n < c.first + c.width; n += GROUP) {
            int64_t width = c.first + c.width - n;
            float sum[FEW_ROWS][GROUP] = {{0}};
            for (int32_t i = 0; i < step->expert_first[m->experts]; i++) {
                int32_t member = step->members[i];
                add_share(step->route_weights[member], factor, apart_row(work, member) + n, width,
                          sum[member / m->experts_per_token]);
            }
            for (int32_t t = 0; t < step->rows.count; t++)
                add_residual(m->routed_scaling, sum[t], work->shared ? apart_row(work, members + t) + n : NULL, width,
                             step->x + (int64_t)t * m->hidden + n);
        }
    }
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

static void add_down(const down_work *work)
{
    cpu_stage(work->step, column_items(work), down_items, work, sizeof *work)->home = true;
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
    first[0] = step->touched_count = 0;
    for (int e = 0; e < m->experts; e++)
        if (first[e + 1] > first[e]) step->touched[step->touched_count++] = e;
}

bool cpu_experts_block4(const ops_backend *backend, int layer)
{
    const ops_layer *l = &backend->model->layer[layer];
    bool all = backend->options.activation == MOE_ACTIVATION_NVFP4;
    for (int e = 0; e < backend->model->experts && all; e++)
        all = l->expert_gate[e].format == WEIGHT_NVFP4 && l->expert_up[e].format == WEIGHT_NVFP4 &&
              l->expert_down[e].format == WEIGHT_NVFP4;
    return all;
}

static void quantise_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const glu_work *work = arg;
    ops_step *step = work->step;
    size_t hidden = (size_t)step->backend->model->hidden, blocks = hidden / NVFP4_GROUP;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        const float *h = step->h + t * hidden;
        if (!work->block4) {
            step->fp4_factor[t] = nvfp4_fc1_round_row(h, blocks, step->fp4 + t * hidden);
            continue;
        }
        step->fp4_factor[t] = step->backend->products->quantise_fc1(h, (int64_t)blocks, step->fp4_h + t * blocks);
    }
}

/* Experts that are read from disk, batch by batch; what is recorded runs while the next ones are read. */
static void stream_experts(glu_work *gate_up, down_work *down, int layer)
{
    ops_step *step = gate_up->step;
    cpu_flush(step); /* the routes */
    group_rows(step);
    cpu_stream_want(step, layer);
    if (down->shared) { /* while the first experts are read */
        gate_up->first = gate_up->last = 0;
        add_glus(gate_up);
        cpu_flush(step);
    }
    gate_up->plain = false;
    for (cpu_batch b = {0}; cpu_stream_next(step, &b); cpu_stream_done(step, &b)) {
        gate_up->first = b.first, gate_up->last = b.last, down->batch = b;
        add_glus(gate_up);
        add_down(down);
        cpu_flush(step);
    }
}

typedef struct plan_work {
    ops_step *step;
    threads_stage *glus, *down; /* down: with few rows */
} plan_work;

/* The routes are known: who goes where, and what there is to do. */
static void plan_experts(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)begin, (void)end, (void)worker;
    const plan_work *work = arg;
    group_rows(work->step);
    work->glus->items = plan_glus(work->glus->arg);
    if (!work->down) return;
    const down_work *down = work->down->arg;
    bool shared = down->shared && work->step->rows.count > 0;
    work->down->items = (work->step->touched_count + shared) * column_items(down);
}

void cpu_experts(ops_step *step, int layer)
{
    const cpu_layer *l = &step->backend->layer[layer];
    int experts = step->backend->model->experts;
    bool shared = l->shared_gate.format != WEIGHT_NONE, block4 = cpu_experts_block4(step->backend, layer);
    int64_t groups = (step->backend->model->hidden + GROUP - 1) / GROUP;
    glu_work gate_up = {step, l, true, shared, block4, 0, experts, 1};
    down_work down = {step, l, shared, block4, {.last = experts, .begins = true, .ends = true}, 1};
    down.groups = cpu_groups_per_item(step, groups, 1);
    cpu_room(step, 5);
    plan_work plan = {step, NULL, NULL};
    threads_stage *planned = step->backend->store ? NULL : cpu_stage(step, 1, plan_experts, &plan, sizeof plan);
    if (step->backend->options.activation == MOE_ACTIVATION_NVFP4)
        cpu_stage(step, step->rows.count, quantise_rows, &gate_up, sizeof gate_up)->beside = planned ? 1 : 0;
    if (!planned) {
        stream_experts(&gate_up, &down, layer);
        return;
    }
    plan_work *plans = planned->arg;
    plans->glus = cpu_stage(step, 0, run_glus, &gate_up, sizeof gate_up);
    plans->glus->home = true;
    if (step->rows.count <= FEW_ROWS) {
        plans->down = cpu_stage(step, 0, apart_experts, &down, sizeof down);
        plans->down->home = true;
        cpu_stage(step, column_items(&down), fold_apart, &down, sizeof down);
    } else {
        add_down(&down);
    }
    cpu_flush(step);
}

void cpu_feed_dense(ops_step *step, int layer)
{
    const cpu_layer *l = &step->backend->layer[layer];
    cpu_norm_rows(step, l->post_gain);
    glu_work gate_up = {.step = step, .layer = l, .plain = true};
    add_glus(&gate_up);
    cpu_project_residual(step, &l->dense_down, step->z);
    cpu_flush(step);
}
