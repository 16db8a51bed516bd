/*
 * The clamp of the gate, seen at the operation: it acts from above only, which no oracle shows (a gate below -7 gives
 * less than 1e-3 either way). Returns the largest absolute error of feed_dense on gates from -30 to 30 against the
 * formula in double; a correct one is within GATE_BOUND, a clamp from below is off by 4e-4.
 */
#ifndef TESTS_MODEL_GATE_CHECK_H
#define TESTS_MODEL_GATE_CHECK_H

#include "backend/ops.h"

#include <math.h>
#include <string.h>

#define GATE_BOUND 1e-5

enum { GATE_WIDTH = 32 };

/* Diagonal matrices: lane i of the residual alternates between 1 and -1, so that its norm is itself. */
typedef struct gate_weights {
    float gate[GATE_WIDTH * GATE_WIDTH], up[GATE_WIDTH * GATE_WIDTH], down[GATE_WIDTH * GATE_WIDTH], zero[GATE_WIDTH];
    ops_layer layer;
} gate_weights;

static inline float gate_of(int i)
{
    return 30.0f * (float)(2 * i - GATE_WIDTH + 1) / (float)(GATE_WIDTH - 1);
}

static inline float up_of(int i)
{
    return (float)(i % 5 - 2) * 4;
}

static inline weight gate_matrix(const float *data, int64_t rows)
{
    return (weight){.format = WEIGHT_F32, .rows = rows, .cols = GATE_WIDTH, .data = data};
}

static inline ops_model gate_model(gate_weights *w)
{
    memset(w, 0, sizeof *w);
    for (int i = 0; i < GATE_WIDTH; i++) {
        float sign = i % 2 ? -1 : 1;
        w->gate[i * GATE_WIDTH + i] = gate_of(i) * sign;
        w->up[i * GATE_WIDTH + i] = up_of(i) * sign;
        w->down[i * GATE_WIDTH + i] = 1;
    }
    w->layer = (ops_layer){.post_norm = gate_matrix(w->zero, 1),
                           .dense_gate = gate_matrix(w->gate, GATE_WIDTH),
                           .dense_up = gate_matrix(w->up, GATE_WIDTH),
                           .dense_down = gate_matrix(w->down, GATE_WIDTH),
                           .k_scale = 1,
                           .v_scale = 1};
    return (ops_model){.layers = 1,
                       .hidden = GATE_WIDTH,
                       .vocab = 8,
                       .max_positions = 128,
                       .heads = 1,
                       .kv_heads = 1,
                       .head_dim = 32,
                       .rotary_dim = 32,
                       .rope_theta = 10000,
                       .norm_eps = 0,
                       .dense_width = GATE_WIDTH,
                       .swiglu_alpha = 1.702f,
                       .swiglu_limit = 7,
                       .layer = &w->layer};
}

static inline hy_status gate_run(const hy_ops *ops, const ops_model *m, float *x, hy_error *err)
{
    static const int32_t zero[1];
    static const int64_t slot[1];
    static const uint8_t flags[1];
    ops_options options = {.shard = {.ranks = 1, .head_end = 1}};
    ops_limits limits = {.rows = 1, .logit_rows = 1, .positions = 128};
    ops_rows rows = {.count = 1,
                     .sequence = zero,
                     .position = zero,
                     .token = zero,
                     .slot = slot,
                     .flags = flags,
                     .sequences = 1,
                     .block_table = zero,
                     .block_table_stride = 1};
    cache_layout layout = {0};
    ops_backend *backend = NULL;
    ops_cache *cache = NULL;
    ops_step *step = NULL;
    hy_status status = cache_layout_make(m, CACHE_BF16, CACHE_BF16, &layout, err);
    if (status == HY_OK) status = ops->open(m, &options, &backend, err);
    if (status == HY_OK) status = ops->cache_open(backend, &layout, 1, &cache, err);
    if (status == HY_OK) status = ops->step_open(backend, &limits, &step, err);
    if (status == HY_OK) {
        ops->begin(step, cache, &rows);
        ops->tensor_write(step, OPS_X, 0, 1, x);
        ops->feed_dense(step, 0);
        status = ops->finish(step, err);
        ops->tensor_read(step, OPS_X, 0, 1, x);
    }
    if (step) ops->step_close(step);
    if (cache) ops->cache_close(cache);
    if (backend) ops->close(backend);
    cache_layout_free(&layout);
    return status;
}

/* Infinite when the operation fails. */
static inline double gate_error(const hy_ops *ops)
{
    gate_weights w;
    ops_model m = gate_model(&w);
    float x[GATE_WIDTH];
    double worst = 0;
    for (int i = 0; i < GATE_WIDTH; i++) x[i] = i % 2 ? -1 : 1;
    if (gate_run(ops, &m, x, NULL) != HY_OK) return INFINITY;
    for (int i = 0; i < GATE_WIDTH; i++) {
        double g = fmin((double)gate_of(i), 7), u = fmax(-7, fmin((double)up_of(i), 7));
        double wanted = (i % 2 ? -1 : 1) + (u + 1) * g / (1 + exp(-1.702 * g)), error = fabs((double)x[i] - wanted);
        if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
    return worst;
}

#endif
