/*
 * Router and experts of the cuda backend on the emulated GPU, against the reference: formats, activations, widths that
 * fill no chunk, numbers of rows around every tile, experts with all rows and with none, steps of more rows than a
 * piece. And a row's bits: the same alone, among others, and in every order of threads.
 *
 * hayate-test: slow
 */
#include "backend/cuda_test.h"

#include "backend/cuda/kernels/moe.h"
#include "backend/cuda/kernels/route.h"
#include "base/clock.h"

#define BOUND 1e-2f
/* Root mean square, quantised activations: a z whose exponential differs may take the neighbour of its code. */
#define BOUND_W4A4 1e-2f
#define BOUND_CODES 1e-3f

static const model_kind kinds[] = {
    /* experts.cu: whole chunks and pieces of one, tiles of 16 that fill no block. */
    {.hidden = 256, .expert_width = 128, .shared_width = 96, .experts = 16, .per_token = 4, .expert = WEIGHT_NVFP4},
    {.hidden = 544,
     .expert_width = 96,
     .shared_width = 32,
     .experts = 5,
     .per_token = 2,
     .expert = WEIGHT_NVFP4,
     .divides = true},
    {.hidden = 1280, .expert_width = 288, .shared_width = 32, .experts = 3, .per_token = 3, .expert = WEIGHT_NVFP4},
    /* experts_plain.cu. */
    {.hidden = 80, .expert_width = 48, .shared_width = 48, .experts = 6, .per_token = 3, .expert = WEIGHT_NVFP4},
    {.hidden = 96, .expert_width = 48, .shared_width = 80, .experts = 40, .per_token = 3, .expert = WEIGHT_BF16},
    {.hidden = 96, .expert_width = 64, .shared_width = 32, .experts = 8, .per_token = 1, .expert = WEIGHT_MXFP8},
    {.hidden = 64, .expert_width = 32, .shared_width = 32, .experts = 4, .per_token = 2, .expert = WEIGHT_F32},
};
enum { KINDS = sizeof kinds / sizeof *kinds, LAYER = 1 };

static void make_model(random_model *m, int k)
{
    model_kind kind = kinds[k];
    kind.layers = 2, kind.heads = 2, kind.kv_heads = 1, kind.head_dim = kind.index_dim = 64, kind.index_top = 1;
    kind.rotary_dim = 32, kind.dense_width = 32, kind.vocab = 32, kind.linear = k % 2 ? WEIGHT_BF16 : WEIGHT_MXFP8;
    random_state = 17 + (uint64_t)k;
    random_model_make(m, &kind);
    ops_layer *l = &m->ops.layer[LAYER];
    if (k % 3 == 1) l->shared_gate.format = l->shared_up.format = l->shared_down.format = WEIGHT_NONE;
}

/* With quantised activations the cpu, which rounds z to bf16 too: without that one of a hundred codes is another one.
 */
typedef struct pair {
    random_model model;
    bench reference, cuda;
} pair;

static void pair_open(pair *p, int k, moe_activation activation)
{
    make_model(&p->model, k);
    ops_options options = {.activation = activation};
    const hy_ops *ops = activation == MOE_ACTIVATION_NVFP4 ? &ops_cpu : &ops_reference;
    bench_open(&p->reference, ops, &p->model, CACHE_BF16, CACHE_BF16, options, 2);
    bench_open(&p->cuda, &ops_cuda, &p->model, CACHE_BF16, CACHE_BF16, options, 1);
}

static void pair_close(pair *p)
{
    bench_close(&p->reference);
    bench_close(&p->cuda);
    random_model_free(&p->model);
}

/* What goes into experts. */
typedef struct inputs {
    int rows;
    step_rows step;
    float *x, *h, *weights;
    int32_t *routes;
} inputs;

/* kind 0: routes as they fall; 1: all rows to the first experts; 2: to the last. Every seventh row is padding. */
static void inputs_make(inputs *in, const ops_model *m, int rows, int kind)
{
    size_t n = (size_t)rows, per_token = (size_t)m->experts_per_token;
    *in = (inputs){.rows = rows};
    rows_open(&in->step);
    for (int t = 0; t < rows; t++) {
        bool padding = t % 7 == 3;
        rows_add(&in->step, padding ? -1 : t % MAX_SEQUENCES, padding ? 0 : t / MAX_SEQUENCES, 1, m->vocab);
    }
    /* Rows of a sequence must follow each other. */
    int at = 0;
    int32_t sequence[MAX_ROWS], position[MAX_ROWS];
    for (int s = -1; s < MAX_SEQUENCES; s++) {
        int p = 0;
        for (int t = 0; t < rows; t++)
            if (in->step.sequence[t] == s) sequence[at] = s, position[at++] = s < 0 ? 0 : p++;
    }
    rows_open(&in->step);
    for (int t = 0; t < rows; t++) rows_add(&in->step, sequence[t], position[t], 1, m->vocab);
    in->x = random_floats(n * (size_t)m->hidden, 0.01f, false);
    in->h = random_floats(n * (size_t)m->hidden, 1, true);
    in->routes = malloc(n * per_token * sizeof *in->routes);
    in->weights = malloc(n * per_token * sizeof *in->weights);
    for (int t = 0; t < rows; t++) {
        int left = m->experts_per_token;
        float sum = 0, *weights = in->weights + (size_t)t * per_token;
        for (int e = 0; e < m->experts && left; e++)
            if (kind == 0 ? random_below(m->experts - e) < left : kind == 1 || m->experts - e <= left)
                in->routes[(t + 1) * m->experts_per_token - left--] = e;
        for (size_t i = 0; i < per_token; i++) sum += weights[i] = 0.1f + (float)random_below(100) / 100;
        for (size_t i = 0; i < per_token; i++) weights[i] /= sum;
    }
}

static void inputs_free(inputs *in)
{
    free(in->x), free(in->h), free(in->routes), free(in->weights);
}

/* x after `experts` of rows [first, first + count) as a step of their own. */
static float *run(const bench *b, const inputs *in, int first, int count)
{
    const ops_model *m = b->model;
    int hidden = m->hidden, per_token = m->experts_per_token;
    step_rows rows;
    hy_error err = {0};
    rows_open(&rows);
    for (int t = first; t < first + count; t++)
        rows_add(&rows, in->step.sequence[t], in->step.position[t], 1, m->vocab);
    b->ops->begin(b->step, b->cache, &rows.ops);
    b->ops->tensor_write(b->step, OPS_X, 0, count, in->x + (size_t)first * (size_t)hidden);
    b->ops->tensor_write(b->step, OPS_H, 0, count, in->h + (size_t)first * (size_t)hidden);
    b->ops->tensor_write(b->step, OPS_ROUTES, 0, count, in->routes + first * per_token);
    b->ops->tensor_write(b->step, OPS_ROUTE_WEIGHTS, 0, count, in->weights + first * per_token);
    b->ops->experts(b->step, LAYER);
    check(b->ops->finish(b->step, &err), &err);
    return bench_read(b, OPS_X, count, (size_t)hidden);
}

static float rms_error(const float *a, const float *b, size_t n)
{
    double squares = 0, difference = 0;
    for (size_t i = 0; i < n; i++) {
        squares += (double)a[i] * a[i];
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    return (float)sqrt(difference / squares);
}

static void against_reference(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 7, 9, 17, 64, 129};
    for (int k = 0; k < KINDS; k++)
        for (int activation = 0; activation < 2; activation++) {
            pair p;
            float worst = 0;
            pair_open(&p, k, activation ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE);
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                inputs in;
                if (kinds[k].hidden > 1000 && counts[c] > 17) continue; /* the emulation takes its time */
                inputs_make(&in, &p.model.ops, counts[c], (int)c % 3);
                size_t hidden = (size_t)p.model.ops.hidden;
                float *a = run(&p.reference, &in, 0, in.rows), *b = run(&p.cuda, &in, 0, in.rows);
                float error = activation ? rms_error(a, b, (size_t)in.rows * hidden) : row_error(a, b, in.rows, hidden);
                worst = fmaxf(worst, error);
                if (!(error <= (activation ? BOUND_W4A4 : BOUND)))
                    fail_msg("kind %d, activation %d, %d rows: %g", k, activation, in.rows, (double)error);
                free(a), free(b);
                inputs_free(&in);
            }
            print_message("kind %d, %s activations: %.2g\n", k, activation ? "nvfp4" : "bf16", (double)worst);
            pair_close(&p);
        }
}

/* Every gate and up value far beyond the limit: z has three values, none near the edge of a code, so the codes are
 * equal. */
static void equal_codes(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        pair p;
        make_model(&p.model, k);
        ops_layer *l = &p.model.ops.layer[LAYER];
        l->shared_gate.format = l->shared_up.format = l->shared_down.format = WEIGHT_NONE;
        for (int e = 0; e < p.model.ops.experts; e++) {
            weight *up[] = {&l->expert_gate[e], &l->expert_up[e]};
            for (int i = 0; i < 2; i++) up[i]->global *= up[i]->divides ? 1e-5f : 1e5f;
        }
        ops_options options = {.activation = MOE_ACTIVATION_NVFP4};
        bench_open(&p.reference, &ops_reference, &p.model, CACHE_BF16, CACHE_BF16, options, 2);
        bench_open(&p.cuda, &ops_cuda, &p.model, CACHE_BF16, CACHE_BF16, options, 1);
        inputs in;
        inputs_make(&in, &p.model.ops, 19, 0);
        float *a = run(&p.reference, &in, 0, in.rows), *b = run(&p.cuda, &in, 0, in.rows);
        float error = row_error(a, b, in.rows, (size_t)p.model.ops.hidden);
        print_message("kind %d, equal codes: %.2g\n", k, (double)error);
        assert_true(error <= BOUND_CODES);
        free(a), free(b);
        inputs_free(&in);
        pair_close(&p);
    }
}

static void bits_of_a_row(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int activation = 0; activation < 2; activation++) {
            random_model m;
            bench b;
            inputs in;
            make_model(&m, k);
            bench_open(&b, &ops_cuda, &m, CACHE_BF16, CACHE_BF16,
                       (ops_options){.activation = activation ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE}, 1);
            size_t hidden = (size_t)m.ops.hidden;
            inputs_make(&in, &m.ops, kinds[k].hidden > 1000 ? 20 : 100, k % 2);
            float *all = run(&b, &in, 0, in.rows);
            for (int first = 0, n = 1; first < in.rows; first += n, n = first % 3 ? 1 : 7 + first / 2) {
                if (n > in.rows - first) n = in.rows - first;
                float *part = run(&b, &in, first, n);
                assert_memory_equal(part, all + (size_t)first * hidden, (size_t)n * hidden * sizeof *part);
                free(part);
            }
            float *again = run(&b, &in, 0, in.rows);
            assert_memory_equal(again, all, (size_t)in.rows * hidden * sizeof *again);
            free(again), free(all);
            inputs_free(&in);
            bench_close(&b);
            random_model_free(&m);
        }
}

/* A NaN stays in its row. */
static void not_a_number(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k += 3)
        for (int activation = 0; activation < 2; activation++) {
            pair p;
            inputs in;
            pair_open(&p, k, activation ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE);
            size_t hidden = (size_t)p.model.ops.hidden;
            inputs_make(&in, &p.model.ops, 12, 1);
            float *clean = run(&p.cuda, &in, 0, in.rows);
            int row = in.rows - 2;
            in.h[(size_t)row * hidden + 5] = NAN;
            float *a = run(&p.reference, &in, 0, in.rows), *b = run(&p.cuda, &in, 0, in.rows);
            for (int t = 0; t < in.rows; t++)
                for (size_t i = 0; i < hidden; i++) {
                    size_t at = (size_t)t * hidden + i;
                    if (t == row)
                        assert_true(isnan(a[at]) && isnan(b[at]));
                    else
                        assert_true(memcmp(&b[at], &clean[at], sizeof *b) == 0);
                }
            free(a), free(b), free(clean);
            inputs_free(&in);
            pair_close(&p);
        }
}

/* Negative scales count; a NaN among them is refused. */
static void odd_scales(void **state)
{
    (void)state;
    pair p;
    inputs in;
    make_model(&p.model, 1);
    const ops_layer *l = &p.model.ops.layer[LAYER];
    for (int e = 0; e < p.model.ops.experts; e++) {
        const weight *w[] = {&l->expert_gate[e], &l->expert_up[e], &l->expert_down[e]};
        for (int i = 0; i < 3; i++)
            for (int64_t j = 0; j < w[i]->rows * w[i]->cols / 16; j += 3)
                ((uint8_t *)(uintptr_t)w[i]->scales)[j] |= 0x80;
    }
    bench_open(&p.reference, &ops_reference, &p.model, CACHE_BF16, CACHE_BF16, (ops_options){0}, 2);
    bench_open(&p.cuda, &ops_cuda, &p.model, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    inputs_make(&in, &p.model.ops, 9, 0);
    float *a = run(&p.reference, &in, 0, in.rows), *b = run(&p.cuda, &in, 0, in.rows);
    assert_true(row_error(a, b, in.rows, (size_t)p.model.ops.hidden) <= BOUND);
    free(a), free(b);
    inputs_free(&in);
    bench_close(&p.reference), bench_close(&p.cuda);
    const weight *down = &l->expert_down[2];
    ((uint8_t *)(uintptr_t)down->scales)[down->rows * down->cols / 16 - 1] = 0xFF;
    ops_backend *backend = NULL;
    hy_error err = {0};
    assert_int_equal(ops_cuda.open(&p.model.ops, &(ops_options){0}, &backend, &err), HY_BAD_MODEL);
    assert_non_null(strstr(err.message, "expert 2"));
    random_model_free(&p.model);
}

/* x after `experts` of one step of up to 4,096 rows a sequence, by a backend opened for it; `narrow`: not by
 * warpgroups. */
enum { LONG_ROWS = 4096 + 37, OF_SEQUENCE = 4096 };
static float *run_long(const hy_ops *ops, random_model *m, int count, const inputs *in, bool narrow)
{
    static int32_t sequence[LONG_ROWS], position[LONG_ROWS], token[LONG_ROWS], table[2 * TABLE];
    static int64_t slot[LONG_ROWS];
    static uint8_t flags[LONG_ROWS];
    for (int t = 0; t < count; t++) sequence[t] = t / OF_SEQUENCE, position[t] = t % OF_SEQUENCE, slot[t] = -1;
    for (int i = 0; i < 2 * TABLE; i++) table[i] = i;
    ops_rows rows = {.count = count,
                     .sequence = sequence,
                     .position = position,
                     .token = token,
                     .slot = slot,
                     .flags = flags,
                     .sequences = 2,
                     .block_table = table,
                     .block_table_stride = TABLE};
    bench b;
    hy_error err = {0};
    bench_open(&b, ops, m, CACHE_BF16, CACHE_BF16, (ops_options){.activation = MOE_ACTIVATION_NVFP4}, 1);
    if (narrow) b.backend->narrow = true;
    b.ops->step_close(b.step);
    ops_limits limits = {.rows = count, .logit_rows = 1, .positions = TABLE * CACHE_BLOCK};
    check(b.ops->step_open(b.backend, &limits, &b.step, &err), &err);
    b.ops->begin(b.step, b.cache, &rows);
    b.ops->tensor_write(b.step, OPS_X, 0, count, in->x);
    b.ops->tensor_write(b.step, OPS_H, 0, count, in->h);
    b.ops->tensor_write(b.step, OPS_ROUTES, 0, count, in->routes);
    b.ops->tensor_write(b.step, OPS_ROUTE_WEIGHTS, 0, count, in->weights);
    b.ops->experts(b.step, LAYER);
    check(b.ops->finish(b.step, &err), &err);
    float *out = bench_read(&b, OPS_X, count, (size_t)m->ops.hidden);
    bench_close(&b);
    return out;
}

/* A model with one expert a row, and rows without routes. */
static void long_open(random_model *m, inputs *in, int count, int hidden, int width, int experts)
{
    model_kind kind = {.layers = 2,
                       .hidden = hidden,
                       .heads = 1,
                       .kv_heads = 1,
                       .head_dim = 64,
                       .index_dim = 64,
                       .index_top = 1,
                       .rotary_dim = 32,
                       .experts = experts,
                       .per_token = 1,
                       .expert_width = width,
                       .shared_width = 32,
                       .dense_width = 32,
                       .vocab = 32,
                       .linear = WEIGHT_BF16,
                       .expert = WEIGHT_NVFP4};
    random_state = 3;
    random_model_make(m, &kind);
    ops_layer *l = &m->ops.layer[LAYER];
    l->shared_gate.format = l->shared_up.format = l->shared_down.format = WEIGHT_NONE;
    in->x = random_floats((size_t)count * (size_t)hidden, 0.01f, false);
    in->h = random_floats((size_t)count * (size_t)hidden, 1, true);
    in->routes = malloc((size_t)count * sizeof *in->routes);
    in->weights = malloc((size_t)count * sizeof *in->weights);
    for (int t = 0; t < count; t++) in->weights[t] = 1;
}

/* More rows than a piece. */
static void pieces(void **state)
{
    (void)state;
    random_model m;
    inputs in;
    long_open(&m, &in, LONG_ROWS, 32, 32, 3);
    for (int t = 0; t < LONG_ROWS; t++) in.routes[t] = random_below(3);
    float *a = run_long(&ops_cpu, &m, LONG_ROWS, &in, false), *b = run_long(&ops_cuda, &m, LONG_ROWS, &in, false);
    assert_true(rms_error(a, b, (size_t)LONG_ROWS * 32) <= BOUND_W4A4);
    free(a), free(b);
    inputs_free(&in);
    random_model_free(&m);
}

/* Members of every size that tiles have, in experts of every order of sizes: one, eight, as many as a tile takes and
 * one more, none; then all to one. Two tiles of gate and up, three of down, of which the last has none beside it in its
 * cluster. The bits are those of the kernels for any GPU. */
static void tiles(void **state)
{
    (void)state;
    enum { HIDDEN = 768, WIDTH = 256, EXPERTS = 6 };
    static const int members[][EXPERTS] = {{1, 97, 0, 145, 8, 15}, {0, 0, 0, 129, 0, 0}, {16, 1, 17, 15, 16, 0}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        int count = 0, left[EXPERTS];
        for (int e = 0; e < EXPERTS; e++) count += left[e] = members[i][e];
        random_model m;
        inputs in;
        long_open(&m, &in, count, HIDDEN, WIDTH, EXPERTS);
        for (int t = 0; t < count; left[in.routes[t++]]--) do
                in.routes[t] = random_below(EXPERTS);
            while (!left[in.routes[t]]);
        float *a = run_long(&ops_cuda, &m, count, &in, false), *b = run_long(&ops_cuda, &m, count, &in, true);
        assert_memory_equal(a, b, (size_t)count * HIDDEN * sizeof *a);
        free(a), free(b);
        inputs_free(&in);
        random_model_free(&m);
    }
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

/* Logits with ties, infinities and NaN; the definition in its slowest form. */
static void choice(void **state)
{
    (void)state;
    enum { ROWS = 21, EXPERTS = 77, MOST = 6 };
    static const float special[] = {0, -0.0f, 1, -1, INFINITY, -INFINITY, NAN, 50, -200};
    for (int per_token = 1; per_token <= MOST; per_token++) {
        float logits[ROWS][EXPERTS], bias[EXPERTS];
        int32_t replay[ROWS * MOST];
        uint8_t flags[ROWS];
        for (int e = 0; e < EXPERTS; e++) bias[e] = e % 3 ? 0 : 0.125f * (float)random_below(3);
        for (int t = 0; t < ROWS; t++) {
            flags[t] = t % 5 == 4 ? ROW_REPLAY_ROUTES : ROW_LOGITS;
            for (int e = 0; e < EXPERTS; e++)
                logits[t][e] = t % 3 == 0   ? random_normal()
                               : t % 3 == 1 ? special[random_below(9)]
                                            : (float)random_below(2);
            for (int i = 0; i < per_token; i++) replay[t * per_token + i] = i * 12 + random_below(12);
        }
        gpu *g = device_open();
        route_choose_args args = {ROWS,
                                  EXPERTS,
                                  per_token,
                                  ROW_REPLAY_ROUTES,
                                  device_put(g, logits, sizeof logits),
                                  device_put(g, bias, sizeof bias),
                                  device_put(g, flags, sizeof flags),
                                  device_put(g, replay, sizeof replay),
                                  device_take(g, sizeof replay),
                                  device_take(g, sizeof replay)};
        device_run(g, "route_choose", (ROWS + 3) / 4, 1, 1, 128, 0, &args, sizeof args);
        int32_t *routes = device_get(g, args.routes, sizeof replay);
        float *weights = device_get(g, args.weights, sizeof replay);
        for (int t = 0; t < ROWS; t++) {
            bool taken[EXPERTS] = {false};
            float s[EXPERTS], sum = 0;
            for (int e = 0; e < EXPERTS; e++) s[e] = 1 / (1 + expf(-logits[t][e]));
            for (int n = 0; n < per_token; n++) {
                int best = -1;
                float best_score = 0;
                for (int e = 0; e < EXPERTS; e++) {
                    float score = s[e] + bias[e];
                    if (isnan(score)) score = -INFINITY;
                    if (!taken[e] && (best < 0 || score > best_score)) best = e, best_score = score;
                }
                if (flags[t] & ROW_REPLAY_ROUTES) best = replay[t * per_token + n];
                taken[best] = true;
            }
            for (int e = 0, n = 0; e < EXPERTS; e++)
                if (taken[e]) assert_int_equal(routes[t * per_token + n++], e), sum += s[e];
            for (int i = 0; i < per_token; i++) {
                float w = s[routes[t * per_token + i]] / sum, got = weights[t * per_token + i];
                assert_true(isnan(w) ? isnan(got) : fabsf(w - got) <= 1e-6f);
            }
        }
        void *all[] = {args.scores,
                       (void *)(uintptr_t)args.bias,
                       (void *)(uintptr_t)args.flags,
                       (void *)(uintptr_t)args.replay,
                       args.routes,
                       args.weights};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) g->calls->free(g, all[i]);
        free(routes), free(weights);
        g->calls->close(g);
    }
}

/* Logits of many rows have the bits that few have, of the kernel for any projection. */
static void compare_logits(const char *kernel, size_t shared, int32_t experts, int32_t rows, int32_t cols, int blocks)
{
    size_t values = (size_t)(rows * cols), weights = (size_t)(experts * cols),
           bytes = (size_t)(experts * rows) * sizeof(float);
    uint16_t *x = malloc(values * sizeof *x);
    float *w = random_floats(weights, 1, false), *before = malloc(bytes);
    for (size_t i = 0; i < values; i++) x[i] = bf16_from_float(random_normal());
    memset(before, 0xFF, bytes);
    gpu *g = device_open();
    route_many_args many = {rows,
                            cols,
                            experts,
                            device_put(g, w, weights * sizeof *w),
                            device_put(g, x, values * sizeof *x),
                            device_put(g, before, bytes)};
    project_args few = {.parts = 1, .count = rows, .in = many.in};
    few.part[0].w = (kernel_weight){.data = many.router, .format = KERNEL_F32, .rows = experts, .cols = cols};
    few.part[0].out = device_take(g, bytes), few.part[0].stride = experts;
    device_run(g, kernel, blocks, 1, 1, PROJECT_BLOCK, shared, &many, sizeof many);
    device_run(g, "project_f32_1", rows, experts, 1, PROJECT_BLOCK, 0, &few, sizeof few);
    float *a = device_get(g, many.scores, bytes), *b = device_get(g, few.part[0].out, bytes);
    assert_memory_equal(a, b, bytes);
    void *all[] = {(void *)(uintptr_t)many.router, (void *)(uintptr_t)many.in, many.scores, few.part[0].out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) g->calls->free(g, all[i]);
    free(a), free(b), free(x), free(w), free(before);
    g->calls->close(g);
}

/* Inputs whose slices are empty, of one step, of several. */
static void many_logits(void **state)
{
    (void)state;
    static const int32_t cols[] = {8, 32, 544, 1040, 2048, 6144};
    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
        compare_logits("route_many", ROUTE_MANY_SHARED, 24, 37, cols[c], 2); /* five tiles a block, or four */
        compare_logits("route_wide", ROUTE_WIDE_SHARED, 64, 37, cols[c], 3); /* two tiles a block, or one */
        if (cols[c] != 544) continue;
        static const int32_t rows[] = {1, 15, 17, 32, 127, 129};
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            compare_logits("route_wide", ROUTE_WIDE_SHARED, 32, rows[r], cols[c], 2);
    }
}

/* ---- How fast ---------------------------------------------------------------------------------------------------- */

/* Random bytes as codes, scales around 1. All experts read the same bytes of the host. */
static weight random_bytes(arena *a, weight_format format, int64_t rows, int64_t cols)
{
    weight w = {.format = format, .rows = rows, .cols = cols, .global = 1.0f / 64};
    size_t n = (size_t)(rows * cols), bytes = format == WEIGHT_NVFP4 ? n / 2 : format == WEIGHT_F32 ? 4 * n : n;
    uint8_t *data = arena_take(a, bytes), *scales = arena_take(a, n / 16);
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t bits = random_bits();
        if (format == WEIGHT_MXFP8) bits &= 0xBFBFBFBF;
        if (format == WEIGHT_F32) bits = (bits & 0x80FFFFFF) | 0x3C000000;
        memcpy(data + 4 * i, &bits, 4);
    }
    for (size_t i = 0; i < n / 16; i++) scales[i] = (uint8_t)(format == WEIGHT_NVFP4 ? 0x30 + random_below(8) : 120);
    w.data = data;
    if (format != WEIGHT_F32) w.scales = scales;
    return w;
}

enum { SPEED_ROWS = 2048, SPEED_CALLS = 20 };

/* Rows of one sequence with random routes; `distinct`: the experts that have some. */
static inputs speed_inputs(const ops_model *m, int rows, int *distinct)
{
    inputs in = {.rows = rows};
    bool used[128] = {false};
    int per_token = m->experts_per_token;
    in.x = random_floats((size_t)rows * (size_t)m->hidden, 0.01f, false);
    in.h = random_floats((size_t)rows * (size_t)m->hidden, 1, true);
    in.routes = malloc((size_t)(rows * per_token) * sizeof *in.routes);
    in.weights = malloc((size_t)(rows * per_token) * sizeof *in.weights);
    for (int t = 0; t < rows; t++) {
        int left = per_token;
        for (int e = 0; e < m->experts && left; e++)
            if (random_below(m->experts - e) < left) in.routes[(t + 1) * per_token - left--] = e, used[e] = true;
        for (int i = 0; i < per_token; i++) in.weights[t * per_token + i] = 1.0f / (float)per_token;
    }
    *distinct = 0;
    for (int e = 0; e < m->experts; e++) *distinct += used[e];
    return in;
}

typedef enum measured {
    EXPERTS_ALONE,
    WITH_ROUTER,
    SHARED_ALONE, /* the shared expert in launches of its own */
} measured;

static void run_measured(const bench *b, measured what)
{
    if (what == WITH_ROUTER) b->ops->route(b->step, LAYER);
    if (what != SHARED_ALONE) {
        b->ops->experts(b->step, LAYER);
        return;
    }
    ops_step *s = b->step;
    const ops_model *m = b->model;
    const cuda_layer *l = &b->backend->layer[LAYER];
    cuda_glu(s, &l->shared_gate, &l->shared_up, s->normed, s->rows.count, m->swiglu_alpha, m->swiglu_limit, false, s->y,
             s->z);
    cuda_project(s, &l->shared_down, s->z, s->rows.count, NULL, true, CUDA_ADD, s->x, m->hidden);
}

/* Microseconds of a call. */
static double measure(const bench *b, const inputs *in, measured what)
{
    static int32_t sequence[SPEED_ROWS], position[SPEED_ROWS], token[SPEED_ROWS], table[TABLE];
    static int64_t slot[SPEED_ROWS];
    static uint8_t flags[SPEED_ROWS];
    hy_error err = {0};
    double best = INFINITY;
    for (int t = 0; t < in->rows; t++) position[t] = t, slot[t] = -1;
    ops_rows rows = {.count = in->rows,
                     .sequence = sequence,
                     .position = position,
                     .token = token,
                     .slot = slot,
                     .flags = flags,
                     .sequences = 1,
                     .block_table = table,
                     .block_table_stride = TABLE};
    for (int turn = 0; turn < 4; turn++) { /* the first one warms up */
        b->ops->begin(b->step, b->cache, &rows);
        b->ops->tensor_write(b->step, OPS_X, 0, in->rows, in->x);
        b->ops->tensor_write(b->step, OPS_H, 0, in->rows, in->h);
        b->ops->tensor_write(b->step, OPS_ROUTES, 0, in->rows, in->routes);
        b->ops->tensor_write(b->step, OPS_ROUTE_WEIGHTS, 0, in->rows, in->weights);
        b->ops->tensor_read(b->step, OPS_X, 0, 1, in->x);
        double start = clock_seconds();
        for (int i = 0; i < SPEED_CALLS; i++) run_measured(b, what);
        check(b->ops->finish(b->step, &err), &err);
        double time = (clock_seconds() - start) * 1e6 / SPEED_CALLS;
        if (time < best && turn > 0) best = time;
    }
    return best;
}

/* One layer of the released model's shape. Bytes are those of the experts that have rows. */
static void speed(void)
{
    enum { HIDDEN = 6144, WIDTH = 3072, EXPERTS = 128 };
    static const int counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, SPEED_ROWS};
    model_kind kind = {.layers = 2,
                       .hidden = HIDDEN,
                       .heads = 1,
                       .kv_heads = 1,
                       .head_dim = 64,
                       .index_dim = 64,
                       .index_top = 1,
                       .rotary_dim = 32,
                       .experts = 1,
                       .per_token = 1,
                       .expert_width = 32,
                       .shared_width = 32,
                       .dense_width = 32,
                       .vocab = 32,
                       .linear = WEIGHT_MXFP8,
                       .expert = WEIGHT_NVFP4};
    for (int shared = 0; shared < 2; shared++) {
        random_model m;
        random_state = 5;
        random_model_make(&m, &kind);
        ops_model *o = &m.ops;
        ops_layer *l = &o->layer[LAYER];
        o->experts = EXPERTS, o->experts_per_token = 4, o->expert_width = o->shared_width = WIDTH;
        weight gate = random_bytes(&m.memory, WEIGHT_NVFP4, WIDTH, HIDDEN), up = gate;
        weight down = random_bytes(&m.memory, WEIGHT_NVFP4, HIDDEN, WIDTH);
        l->expert_gate = arena_take(&m.memory, EXPERTS * sizeof gate);
        l->expert_up = arena_take(&m.memory, EXPERTS * sizeof gate);
        l->expert_down = arena_take(&m.memory, EXPERTS * sizeof gate);
        for (int e = 0; e < EXPERTS; e++) l->expert_gate[e] = gate, l->expert_up[e] = up, l->expert_down[e] = down;
        l->router = random_bytes(&m.memory, WEIGHT_F32, EXPERTS, HIDDEN);
        float *bias = arena_take(&m.memory, EXPERTS * sizeof *bias);
        l->router_bias = (weight){.format = WEIGHT_F32, .rows = 1, .cols = EXPERTS, .data = bias};
        l->shared_gate = l->shared_up = random_bytes(&m.memory, WEIGHT_MXFP8, WIDTH, HIDDEN);
        l->shared_down = random_bytes(&m.memory, WEIGHT_MXFP8, HIDDEN, WIDTH);
        if (!shared) l->shared_gate.format = l->shared_up.format = l->shared_down.format = WEIGHT_NONE;
        bench b;
        bench_open(&b, &ops_cuda, &m, CACHE_BF16, CACHE_BF16, (ops_options){.activation = MOE_ACTIVATION_NVFP4}, 1);
        hy_error err = {0};
        ops_limits limits = {.rows = SPEED_ROWS, .logit_rows = 1, .positions = TABLE * CACHE_BLOCK};
        b.ops->step_close(b.step);
        check(b.ops->step_open(b.backend, &limits, &b.step, &err), &err);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            int distinct;
            inputs in = speed_inputs(o, counts[c], &distinct);
            double matrix = 3.0 * HIDDEN * WIDTH, bytes = distinct * matrix * 9 / 16 + shared * matrix * 33 / 32;
            b.backend->apart = true;
            double alone = measure(&b, &in, EXPERTS_ALONE), both = measure(&b, &in, WITH_ROUTER);
            printf("%4d rows, %3d experts%s: %8.1f us, %5.2f TB/s, %6.1f TFLOP/s; with the router %8.1f us\n",
                   counts[c], distinct, shared ? " and the shared one" : "", alone, bytes / alone * 1e-6,
                   2 * counts[c] * (4 + shared) * matrix / alone * 1e-6, both);
            if (counts[c] > MOE_ROWS) {
                b.backend->narrow = true;
                printf("     not by warpgroups: %8.1f us\n", measure(&b, &in, EXPERTS_ALONE));
                b.backend->narrow = false;
            }
            b.backend->apart = false;
            for (int late = 0; late < 2 && counts[c] <= MOE_ROWS; late++) {
                b.backend->late = late;
                alone = measure(&b, &in, EXPERTS_ALONE), both = measure(&b, &in, WITH_ROUTER);
                printf("     in one launch%s: %8.1f us, %5.2f TB/s; with the router %8.1f us, %5.2f TB/s\n",
                       late ? ", weights asked for after the sums" : "", alone, bytes / alone * 1e-6, both,
                       (bytes + 4.0 * HIDDEN * EXPERTS) / both * 1e-6);
            }
            b.backend->late = false;
            if (shared) printf("     the shared expert alone: %8.1f us\n", measure(&b, &in, SHARED_ALONE));
            inputs_free(&in);
        }
        bench_close(&b);
        random_model_free(&m);
    }
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1 && !strcmp(argv[1], "speed")) return speed(), 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choice),       cmocka_unit_test(against_reference),
        cmocka_unit_test(equal_codes),  cmocka_unit_test(bits_of_a_row),
        cmocka_unit_test(not_a_number), cmocka_unit_test(odd_scales),
        cmocka_unit_test(pieces),       cmocka_unit_test(tiles),
        cmocka_unit_test(many_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
