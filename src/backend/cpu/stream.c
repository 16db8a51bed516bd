/*
 * Steps over experts that are read as they are routed to.
 *
 * The experts of a layer are gone through in groups of those that are there, in ascending number, and the sums of the
 * rows are kept between groups: the sum of a row has the same order, and the same bits, as with all experts in memory.
 *
 * Look-ahead: the router of the next layer is given what its input would be if this layer's experts and its attention
 * added nothing. What it chooses is read while this layer computes, behind what is wanted now.
 */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

hy_status cpu_stream_open(ops_backend *b, hy_error *err)
{
    const ops_model *m = b->model;
    expert_layer *layers = memory_zeroed((size_t)m->layers, sizeof *layers);
    if (!layers) return error_memory(err, "the expert cache", (size_t)m->layers * sizeof *layers);
    for (int i = 0; i < m->layers; i++) {
        const ops_layer *from = &m->layer[i];
        const cpu_layer *to = &b->layer[i];
        if (from->moe)
            layers[i] = (expert_layer){{from->expert_gate, from->expert_up, from->expert_down},
                                       {to->expert_gate, to->expert_up, to->expert_down}};
    }
    expert_store_options options = {0};
    hy_status status = expert_store_open(layers, m->layers, m->experts, b->options.files, b->options.file_count,
                                         &options, &b->store, err);
    memory_free(layers);
    return status;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* Experts that have rows, ascending. */
static int wanted_experts(ops_step *step)
{
    int n = 0;
    for (int e = 0; e < step->backend->model->experts; e++)
        if (step->expert_first[e + 1] > step->expert_first[e]) step->wanted[n++] = e;
    return n;
}

bool cpu_stream_next(ops_step *step, cpu_batch *g)
{
    const ops_backend *b = step->backend;
    int experts = b->model->experts;
    bool fresh = !g->ends && !g->until; /* zeroed by the caller */
    if (g->ends || step->rows.count == 0) return false;
    if (!b->store) {
        *g = (cpu_batch){.last = experts, .begins = true, .ends = true};
        return true;
    }
    if (fresh) g->count = wanted_experts(step);
    *g = (cpu_batch){.first = g->last, .from = g->until, .count = g->count, .begins = fresh};
    hy_error err = {0};
    if (g->count && expert_store_take(b->store, g->from, &g->until, &err) != HY_OK) {
        cpu_fail(step, &err);
        return false;
    }
    g->ends = g->until == g->count;
    g->last = g->ends ? experts : step->wanted[g->until];
    return true;
}

void cpu_stream_done(ops_step *step, const cpu_batch *g)
{
    if (step->backend->store && g->count) expert_store_release(step->backend->store, g->from, g->until);
}

/* ---- Look-ahead -------------------------------------------------------------------------------------------------- */

static int next_moe_layer(const ops_model *m, int layer)
{
    for (int i = layer + 1; i < m->layers; i++)
        if (m->layer[i].moe) return i;
    return -1;
}

/* Marks what the router of `layer` chooses for the residuals of the first rows; returns how many experts, in `guess`.
 */
static int guess_experts(ops_step *step, int layer, int32_t *guess)
{
    const ops_backend *b = step->backend;
    const ops_model *m = b->model;
    const cpu_layer *l = &b->layer[layer];
    int rows = step->rows.count < AHEAD_ROWS ? step->rows.count : AHEAD_ROWS, n = 0;
    for (int t = 0; t < rows; t++)
        b->kernels->rms_norm(step->x + (int64_t)t * m->hidden, l->post_gain, m->hidden, m->norm_eps, true,
                             step->ahead_h + (int64_t)t * m->hidden);
    cpu_output output = {&l->router, step->ahead_scores};
    cpu_project(step, &output, 1, step->ahead_h, rows);
    cpu_flush(step);
    for (int t = 0; t < rows; t++) {
        float *s = step->ahead_scores + (int64_t)t * m->experts;
        for (int e = 0; e < m->experts; e += LANES) {
            float lanes[LANES] = {0};
            size_t bytes = (size_t)(m->experts - e < LANES ? m->experts - e : LANES) * sizeof(float);
            memcpy(lanes, s + e, bytes);
            b->kernels->sigmoid(lanes, lanes);
            memcpy(s + e, lanes, bytes);
        }
        cpu_choose_experts(s, l->router_bias, m->experts, m->experts_per_token,
                           step->ahead_routes + (int64_t)t * m->experts_per_token);
    }
    for (int e = 0; e < m->experts; e++) {
        bool chosen = false;
        for (int i = 0; i < rows * m->experts_per_token && !chosen; i++) chosen = step->ahead_routes[i] == e;
        if (chosen) guess[n++] = e;
    }
    return n;
}

void cpu_stream_want(ops_step *step, int layer)
{
    expert_store *store = step->backend->store;
    if (!store || step->rows.count == 0) return;
    int count = wanted_experts(step), next = next_moe_layer(step->backend->model, layer);
    expert_store_want(store, layer, step->wanted, count);
    if (next < 0) return;
    count = guess_experts(step, next, step->wanted);
    expert_store_ahead(store, next, step->wanted, count);
}

/* ---- Embeddings -------------------------------------------------------------------------------------------------- */

static size_t row_bytes(const weight *w)
{
    return weight_row_data(w) + weight_row_scales(w);
}

size_t cpu_embedding_scratch(const ops_model *m)
{
    size_t most = row_bytes(&m->embed);
    if (m->drafter && row_bytes(&m->drafter->embed) > most) most = row_bytes(&m->drafter->embed);
    if (m->drafter && row_bytes(&m->drafter->markov_in) > most) most = row_bytes(&m->drafter->markov_in);
    return most;
}

bool cpu_embedding_row(ops_step *step, const weight *embed, int32_t token, uint8_t *scratch, float *out)
{
    const ops_backend *b = step->backend;
    weight row = weight_rows(embed, token, 1);
    size_t data = weight_row_data(&row), scales = weight_row_scales(&row);
    const struct {
        const void *from;
        size_t bytes;
        uint8_t *to;
    } parts[] = {{row.data, data, scratch}, {row.scales, scales, scratch + data}};
    for (int i = 0; i < 2 && b->rows; i++) {
        hy_error err = {0};
        read_piece piece = {.bytes = parts[i].bytes};
        if (!piece.bytes) continue;
        const weight_file *file =
            weight_file_find(b->options.files, b->options.file_count, parts[i].from, &piece.offset);
        assert(file);
        piece.file = (size_t)(file - b->options.files);
        if (read_files_piece(b->rows, &piece, parts[i].to, &err) != HY_OK) {
            cpu_fail(step, &err);
            return false;
        }
    }
    if (b->rows) row.data = scratch, row.scales = scales ? scratch + data : NULL;
    weight_row(&row, 0, out);
    return true;
}
