/* The weights of a checkpoint as backends take them. */
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "model/model_parts.h"

#include <stdio.h>

/* Where weights go while they are collected. The first failure stays. */
typedef struct collector {
    const checkpoint *files;
    model_scales scales;
    bool made; /* large weights are not there */
    model_weights *out;
    progress progress;
    hy_error *err;
    hy_status status;
} collector;

static void take(collector *c, weight_role role, int layer, int expert, weight *out)
{
    if (c->status != HY_OK) return;
    c->status = checkpoint_weight(c->files, role, layer, expert, out, c->err);
    if (c->status != HY_OK) return;
    char name[96];
    bool routed = role == ROLE_EXPERT_GATE || role == ROLE_EXPERT_UP || role == ROLE_EXPERT_DOWN;
    if (layer < 0)
        snprintf(name, sizeof name, "%s", weight_role_name(role));
    else if (routed)
        snprintf(name, sizeof name, "layer %d, expert %d, %s", layer, expert, weight_role_name(role));
    else
        snprintf(name, sizeof name, "layer %d, %s", layer, weight_role_name(role));
    /* Vectors and the router; large matrices are checked as they are prepared. */
    if (out->rows == 1 || (role == ROLE_ROUTER && !c->made)) c->status = checkpoint_check_values(out, name, c->err);
    if (c->status != HY_OK) return;
    if (c->made || c->scales == MODEL_SCALES_BACKEND || (c->scales == MODEL_SCALES_STREAMED && routed)) {
        c->status = checkpoint_check_global(out, name, c->err);
    } else {
        c->status = checkpoint_check_scales(out, name, c->err);
        file_map_drop(out->scales, (size_t)out->rows * weight_row_scales(out));
    }
    if (c->status != HY_OK) return;
    c->out->parameters += (uint64_t)out->rows * (uint64_t)out->cols;
    if (!progress_add(&c->progress, 1)) c->status = error_set(c->err, HY_CANCELLED, "opening the model was stopped");
}

static void take_attention(collector *c, int i, ops_layer *l)
{
    const struct {
        weight *out;
        weight_role role;
        bool sparse_only;
    } parts[] = {
        {&l->input_norm, ROLE_INPUT_NORM, false},
        {&l->q, ROLE_Q, false},
        {&l->k, ROLE_K, false},
        {&l->v, ROLE_V, false},
        {&l->o, ROLE_O, false},
        {&l->q_norm, ROLE_Q_NORM, false},
        {&l->k_norm, ROLE_K_NORM, false},
        {&l->index_q, ROLE_INDEX_Q, true},
        {&l->index_k, ROLE_INDEX_K, true},
        {&l->index_q_norm, ROLE_INDEX_Q_NORM, true},
        {&l->index_k_norm, ROLE_INDEX_K_NORM, true},
        {&l->post_norm, ROLE_POST_NORM, false},
    };
    for (size_t n = 0; n < sizeof parts / sizeof *parts; n++)
        if (l->sparse || !parts[n].sparse_only) take(c, parts[n].role, i, 0, parts[n].out);
    if (c->status == HY_OK) c->status = checkpoint_kv_scales(c->files, i, &l->k_scale, &l->v_scale, c->err);
}

static void expect_random(const checkpoint *files, bool random)
{
    for (size_t i = 0; i < checkpoint_shard_count(files, false); i++) {
        weight_file f = checkpoint_shard_file(files, i, false);
        file_map map = {f.data, f.bytes};
        file_map_random(&map, random);
    }
}

static void take_feed(collector *c, int i, ops_layer *l)
{
    const config *cfg = checkpoint_config(c->files);
    if (!l->moe) {
        take(c, ROLE_DENSE_GATE, i, 0, &l->dense_gate);
        take(c, ROLE_DENSE_UP, i, 0, &l->dense_up);
        take(c, ROLE_DENSE_DOWN, i, 0, &l->dense_down);
        return;
    }
    take(c, ROLE_ROUTER, i, 0, &l->router);
    take(c, ROLE_ROUTER_BIAS, i, 0, &l->router_bias);
    /* Of experts that others look at a few scalars are read, far apart: reading ahead would read them whole. */
    if (c->scales != MODEL_SCALES_HERE) expect_random(c->files, true);
    for (int e = 0; e < cfg->experts; e++) {
        take(c, ROLE_EXPERT_GATE, i, e, &l->expert_gate[e]);
        take(c, ROLE_EXPERT_UP, i, e, &l->expert_up[e]);
        take(c, ROLE_EXPERT_DOWN, i, e, &l->expert_down[e]);
    }
    if (c->scales != MODEL_SCALES_HERE) expect_random(c->files, false);
    if (!cfg->shared_expert) return;
    take(c, ROLE_SHARED_GATE, i, 0, &l->shared_gate);
    take(c, ROLE_SHARED_UP, i, 0, &l->shared_up);
    take(c, ROLE_SHARED_DOWN, i, 0, &l->shared_down);
}

/* Reading one small scalar of a tensor brings pages around it into the process: with thousands of experts, gigabytes.
 */
static void drop_pages(const checkpoint *files)
{
    for (size_t i = 0; i < checkpoint_shard_count(files, false); i++) {
        weight_file f = checkpoint_shard_file(files, i, false);
        file_map_drop(f.data, f.bytes);
    }
}

ops_model model_shape(const config *c)
{
    return (ops_model){
        .layers = c->layers,
        .hidden = c->hidden,
        .vocab = c->vocab,
        .max_positions = c->max_positions,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .rotary_dim = c->rotary_dim,
        .rope_theta = c->rope_theta,
        .norm_eps = c->norm_eps,
        .experts = c->experts,
        .experts_per_token = c->experts_per_token,
        .expert_width = c->expert_width,
        .shared_width = c->shared_expert ? c->shared_width : 0,
        .dense_width = c->dense_width,
        .routed_scaling = c->routed_scaling,
        .swiglu_alpha = c->swiglu_alpha,
        .swiglu_limit = c->swiglu_limit,
        .index_heads = c->index_heads,
        .index_dim = c->index_dim,
        .index_top = c->index_top,
        .index_local = c->index_local,
    };
}

/* The layers' flags and the arrays of expert weights. */
static hy_status make_layers(const config *c, model_weights *w, uint64_t *tensors, hy_error *err)
{
    size_t moe = 0, count = 0;
    for (int i = 0; i < c->layers; i++) moe += c->moe[i] != 0;
    w->shape.layer = memory_zeroed((size_t)c->layers, sizeof *w->shape.layer);
    if (!size_mul(moe * 3, (size_t)c->experts, &count)) count = SIZE_MAX;
    w->experts = memory_zeroed(count ? count : 1, sizeof *w->experts);
    if (!w->shape.layer || !w->experts) return error_memory(err, "the list of weights", count);
    weight *next = w->experts;
    *tensors = 3;
    for (int i = 0; i < c->layers; i++) {
        ops_layer *l = &w->shape.layer[i];
        l->sparse = c->sparse[i] != 0;
        l->moe = c->moe[i] != 0;
        *tensors += l->sparse ? 12 : 8;
        *tensors += l->moe ? 2 + 3 * (uint64_t)c->experts + (c->shared_expert ? 3 : 0) : 3;
        if (!l->moe) continue;
        l->expert_gate = next;
        l->expert_up = next + c->experts;
        l->expert_down = next + 2 * (size_t)c->experts;
        next += 3 * (size_t)c->experts;
    }
    return HY_OK;
}

hy_status model_weights_open(const checkpoint *files, model_scales scales, hy_progress_fn on_progress, void *user,
                             model_weights *out, hy_error *err)
{
    uint64_t seed;
    const config *cfg = checkpoint_config(files);
    model_weights w = {.shape = model_shape(cfg)};
    collector c = {.files = files, .scales = scales, .out = &w, .err = err};
    c.made = checkpoint_made(files, &seed) != NULL;
    c.progress = (progress){.fn = on_progress, .user = user, .what = "checking weights", .unit = "tensors"};
    c.status = make_layers(cfg, &w, &c.progress.total, err);
    if (c.status == HY_OK) {
        take(&c, ROLE_EMBED, -1, 0, &w.shape.embed);
        for (int i = 0; i < cfg->layers && c.status == HY_OK; i++) {
            take_attention(&c, i, &w.shape.layer[i]);
            take_feed(&c, i, &w.shape.layer[i]);
            drop_pages(files);
        }
        take(&c, ROLE_FINAL_NORM, -1, 0, &w.shape.final_norm);
        take(&c, ROLE_HEAD, -1, 0, &w.shape.head);
        drop_pages(files);
        if (cfg->tied_head && c.status == HY_OK) w.parameters -= (uint64_t)cfg->vocab * (uint64_t)cfg->hidden;
    }
    if (c.status != HY_OK) {
        model_weights_close(&w);
        return c.status;
    }
    progress_end(&c.progress);
    *out = w;
    return HY_OK;
}

/* ---- Shapes alone ------------------------------------------------------------------------------------------------ */

/* Where a weight of a role is kept; NULL: not here. */
static weight *place_of(ops_model *m, const layout_entry *e)
{
    ops_layer *l = e->layer >= 0 && e->layer < m->layers ? &m->layer[e->layer] : NULL;
    switch (e->role) {
    case ROLE_EMBED: return &m->embed;
    case ROLE_HEAD: return &m->head;
    case ROLE_FINAL_NORM: return &m->final_norm;
    default: break;
    }
    if (!l) return NULL;
    switch (e->role) {
    case ROLE_INPUT_NORM: return &l->input_norm;
    case ROLE_POST_NORM: return &l->post_norm;
    case ROLE_Q: return &l->q;
    case ROLE_K: return &l->k;
    case ROLE_V: return &l->v;
    case ROLE_O: return &l->o;
    case ROLE_Q_NORM: return &l->q_norm;
    case ROLE_K_NORM: return &l->k_norm;
    case ROLE_INDEX_Q: return &l->index_q;
    case ROLE_INDEX_K: return &l->index_k;
    case ROLE_INDEX_Q_NORM: return &l->index_q_norm;
    case ROLE_INDEX_K_NORM: return &l->index_k_norm;
    case ROLE_DENSE_GATE: return &l->dense_gate;
    case ROLE_DENSE_UP: return &l->dense_up;
    case ROLE_DENSE_DOWN: return &l->dense_down;
    case ROLE_ROUTER: return &l->router;
    case ROLE_ROUTER_BIAS: return &l->router_bias;
    case ROLE_EXPERT_GATE: return &l->expert_gate[e->expert];
    case ROLE_EXPERT_UP: return &l->expert_up[e->expert];
    case ROLE_EXPERT_DOWN: return &l->expert_down[e->expert];
    case ROLE_SHARED_GATE: return &l->shared_gate;
    case ROLE_SHARED_UP: return &l->shared_up;
    case ROLE_SHARED_DOWN: return &l->shared_down;
    default: return NULL;
    }
}

/* Of the tensors of a weight the one that holds its values. Scales: WEIGHT_NONE. */
static weight_format format_of(const layout_entry *e)
{
    switch (e->fill) {
    case FILL_E2M1: return WEIGHT_NVFP4;
    case FILL_E4M3: return WEIGHT_MXFP8;
    case FILL_LINEAR:
    case FILL_NORM:
    case FILL_EMBED:
    case FILL_ROUTER:
    case FILL_ROUTER_BIAS: return e->dtype == TENSOR_F32 ? WEIGHT_F32 : WEIGHT_BF16;
    default: return WEIGHT_NONE;
    }
}

typedef struct shapes {
    ops_model *model;
    bool divides;
} shapes;

static bool take_shape(void *user, const layout_entry *e)
{
    shapes *s = user;
    weight_format format = format_of(e);
    weight *w = format == WEIGHT_NONE ? NULL : place_of(s->model, e);
    if (!w) return true;
    int64_t rows = e->dims > 1 ? e->shape[0] : 1, cols = e->shape[e->dims > 1];
    *w = (weight){.format = format,
                  .rows = rows,
                  .cols = format == WEIGHT_NVFP4 ? 2 * cols : cols,
                  .global = 1,
                  .divides = s->divides};
    return true;
}

hy_status model_weights_shape(const config *c, layout_scheme scheme, model_weights *out, hy_error *err)
{
    uint64_t tensors;
    model_weights w = {.shape = model_shape(c)};
    hy_status status = make_layers(c, &w, &tensors, err);
    if (status != HY_OK) {
        model_weights_close(&w);
        return status;
    }
    shapes s = {&w.shape, scheme == SCHEME_M31};
    layout_walk(c, scheme, take_shape, &s);
    if (c->tied_head) w.shape.head = w.shape.embed;
    *out = w;
    return HY_OK;
}

void model_weights_close(model_weights *w)
{
    model_drafter_close(w);
    memory_free(w->shape.layer);
    memory_free(w->experts);
    w->shape.layer = NULL;
    w->experts = NULL;
}
