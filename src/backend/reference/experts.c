/*
 * Feed-forward: the router, the routed and the shared expert, and the dense kind.
 *
 *     s = sigmoid(W h);  S = the experts_per_token largest of s + bias;  w_e = s_e / sum over S of s
 *     x' = x + (routed_scaling * sum_{e in S} w_e expert_e(h) + shared(h))
 *     expert(h) = down((up + 1) * gate * sigmoid(alpha * gate)), gate <= limit, |up| <= limit
 *
 * Formulas: transformers, models/minimax_m3_vl (MiniMaxM3VLTopKRouter, MiniMaxM3VLExperts, swigluoai).
 */
#include "backend/reference/reference.h"
#include "number/nvfp4.h"

#include <math.h>
#include <string.h>

static float sigmoid(float z)
{
    return 1 / (1 + expf(-z));
}

/* ---- Router --------------------------------------------------------------------------------------------------- */

/* The best experts by s + bias, ties to the lower number, in ascending number. NaN loses against everything. */
static void choose(const float *s, const float *bias, int experts, int count, int32_t *routes)
{
    for (int n = 0; n < count; n++) {
        int best = -1;
        float best_score = 0;
        for (int e = 0; e < experts; e++) {
            bool taken = false;
            for (int i = 0; i < n; i++) taken |= routes[i] == e;
            if (taken) continue;
            float score = s[e] + bias[e];
            if (isnan(score)) score = -INFINITY;
            if (best < 0 || score > best_score) best = e, best_score = score;
        }
        int at = n;
        for (; at > 0 && routes[at - 1] > best; at--) routes[at] = routes[at - 1];
        routes[at] = best;
    }
}

void reference_route(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    const ops_layer *l = &m->layer[layer];
    const ops_rows *rows = &step->rows;
    int count = m->experts_per_token;
    reference_rms_norm_rows(step, step->x, &l->post_norm, step->h);
    reference_linear(step, &l->router, step->h, rows->count, step->router);
    float *bias = reference_scratch(step, 0); /* [experts] */
    weight_row(&l->router_bias, 0, bias);
    for (int64_t t = 0; t < rows->count; t++) {
        float *s = step->router + t * m->experts, *weights = step->route_weights + t * count, sum = 0;
        int32_t *routes = step->routes + t * count;
        for (int e = 0; e < m->experts; e++) s[e] = sigmoid(s[e]);
        if (rows->flags[t] & ROW_REPLAY_ROUTES)
            memcpy(routes, rows->replay_routes + ((int64_t)layer * rows->count + t) * count,
                   (size_t)count * sizeof *routes);
        else
            choose(s, bias, m->experts, count, routes);
        for (int i = 0; i < count; i++) sum += s[routes[i]];
        for (int i = 0; i < count; i++) weights[i] = s[routes[i]] / sum;
    }
}

/* ---- Activation ----------------------------------------------------------------------------------------------- */

/* The gate is clamped from above only. Comparisons are such that NaN stays NaN. out may be gate. */
void reference_swiglu(const float *gate, const float *up, int64_t n, float alpha, float limit, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i] > limit ? limit : gate[i];
        float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        out[i] = (u + 1) * g * sigmoid(alpha * g);
    }
}

/* y [count, hidden] = down(swiglu(gate(in), up(in))), K of the down projection in eight slices. */
static void feed(ops_step *step, const weight *gate, const weight *up, const weight *down, const float *in, float *y)
{
    const ops_model *m = step->backend->model;
    int32_t count = step->rows.count;
    reference_linear(step, gate, in, count, step->gate);
    reference_linear(step, up, in, count, step->up);
    reference_swiglu(step->gate, step->up, count * gate->rows, m->swiglu_alpha, m->swiglu_limit, step->gate);
    reference_linear_sliced(step, down, step->gate, count, y);
}

void reference_feed_dense(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    const ops_layer *l = &m->layer[layer];
    reference_rms_norm_rows(step, step->x, &l->post_norm, step->h);
    feed(step, &l->dense_gate, &l->dense_up, &l->dense_down, step->h, step->y);
    for (int64_t i = 0; i < (int64_t)step->rows.count * m->hidden; i++) step->x[i] += step->y[i];
}

/* ---- Experts -------------------------------------------------------------------------------------------------- */

/* Row t's place in the list of expert e, -1: not routed there. */
static int slot_of(const ops_step *step, int64_t t, int e)
{
    int count = step->backend->model->experts_per_token;
    for (int i = 0; i < count; i++)
        if (step->routes[t * count + i] == e) return i;
    return -1;
}

/*
 * step->y [count, hidden] = expert e of the gathered rows. With nvfp4 activations the inputs of both projections are
 * quantised per row: gate and up are multiplied by the row's factor before the activation, the output by the fixed one.
 */
static void run_expert(ops_step *step, const ops_layer *l, int e, int32_t count)
{
    const ops_model *m = step->backend->model;
    bool quantised = step->backend->options.activation == MOE_ACTIVATION_NVFP4;
    int64_t width = m->expert_width;
    for (int32_t i = 0; i < count && quantised; i++) {
        float *x = step->gathered + (int64_t)i * m->hidden;
        step->member_factor[i] = nvfp4_fc1_round_row(x, (size_t)m->hidden / NVFP4_GROUP, x);
    }
    reference_linear(step, &l->expert_gate[e], step->gathered, count, step->gate);
    reference_linear(step, &l->expert_up[e], step->gathered, count, step->up);
    for (int64_t i = 0; i < count * width && quantised; i++) {
        step->gate[i] *= step->member_factor[i / width];
        step->up[i] *= step->member_factor[i / width];
    }
    reference_swiglu(step->gate, step->up, count * width, m->swiglu_alpha, m->swiglu_limit, step->gate);
    for (int32_t i = 0; i < count && quantised; i++)
        nvfp4_fc2_round_row(step->gate + i * width, (size_t)width / NVFP4_GROUP, step->gate + i * width);
    reference_linear(step, &l->expert_down[e], step->gate, count, step->y);
    for (int64_t i = 0; i < (int64_t)count * m->hidden && quantised; i++) step->y[i] *= NVFP4_FC2_FACTOR;
}

void reference_experts(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    const ops_layer *l = &m->layer[layer];
    int32_t rows = step->rows.count;
    memset(step->sum, 0, (size_t)rows * (size_t)m->hidden * sizeof *step->sum);
    for (int e = 0; e < m->experts; e++) {
        int32_t count = 0;
        for (int32_t t = 0; t < rows; t++) {
            if (step->rows.sequence[t] < 0 || slot_of(step, t, e) < 0) continue;
            memcpy(step->gathered + (int64_t)count * m->hidden, step->h + (int64_t)t * m->hidden,
                   (size_t)m->hidden * sizeof *step->h);
            step->members[count++] = t;
        }
        if (!count) continue;
        run_expert(step, l, e, count);
        for (int32_t i = 0; i < count; i++) {
            int64_t t = step->members[i];
            float w = step->route_weights[t * m->experts_per_token + slot_of(step, t, e)];
            for (int64_t j = 0; j < m->hidden; j++) step->sum[t * m->hidden + j] += w * step->y[i * m->hidden + j];
        }
    }
    bool shared = l->shared_gate.format != WEIGHT_NONE;
    if (shared) feed(step, &l->shared_gate, &l->shared_up, &l->shared_down, step->h, step->y);
    for (int64_t i = 0; i < (int64_t)rows * m->hidden; i++) {
        float routed = m->routed_scaling * step->sum[i];
        step->x[i] += shared ? routed + step->y[i] : routed;
    }
}
