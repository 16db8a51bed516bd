/* The drafter as backends take it: sizes of its config, weights of its tensors. */
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "model/model_parts.h"

static hy_status make(const draft_config *d, cache_format cache, model_weights *w, hy_error *err)
{
    ops_drafter *out = memory_zeroed(1, sizeof *out);
    ops_draft_layer *layer = memory_zeroed((size_t)d->layers, sizeof *layer);
    if (!out || !layer) {
        memory_free(out);
        memory_free(layer);
        return error_memory(err, "a drafter", (size_t)d->layers * sizeof *layer);
    }
    *out = (ops_drafter){
        .layers = d->layers,
        .heads = d->heads,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .rotary_dim = d->rotary_dim,
        .width = d->dense_width,
        .rope_theta = d->rope_theta,
        .norm_eps = d->norm_eps,
        .swiglu_alpha = d->swiglu_alpha,
        .swiglu_limit = d->swiglu_limit,
        .plain_norm = d->family == DRAFT_QWEN3,
        .plain_swiglu = d->family == DRAFT_QWEN3,
        .block = d->block,
        .window = d->window ? d->window : w->shape.max_positions + d->block,
        .noise_token = d->noise_token,
        .tap_count = d->tap_count,
        .markov_rank = d->markov_rank,
        .cache = cache,
        .embed = w->shape.embed,
        .head = w->shape.head,
        .layer = layer,
    };
    for (int i = 0; i < d->tap_count; i++) out->tap[i] = d->taps[i];
    w->shape.drafter = out;
    return HY_OK;
}

/* Where the weight of a role is kept. */
static weight *place_of(ops_drafter *d, draft_role role, int layer)
{
    ops_draft_layer *l = layer >= 0 ? &d->layer[layer] : NULL;
    switch (role) {
    case DRAFT_FC: return &d->fc;
    case DRAFT_HIDDEN_NORM: return &d->hidden_norm;
    case DRAFT_FINAL_NORM: return &d->final_norm;
    case DRAFT_MARKOV_IN: return &d->markov_in;
    case DRAFT_MARKOV_OUT: return &d->markov_out;
    case DRAFT_CONFIDENCE: return &d->confidence;
    case DRAFT_CONFIDENCE_BIAS: return &d->confidence_bias;
    case DRAFT_EMBED: return &d->embed;
    case DRAFT_HEAD: return &d->head;
    case DRAFT_INPUT_NORM: return &l->input_norm;
    case DRAFT_POST_NORM: return &l->post_norm;
    case DRAFT_Q: return &l->q;
    case DRAFT_K: return &l->k;
    case DRAFT_V: return &l->v;
    case DRAFT_O: return &l->o;
    case DRAFT_Q_NORM: return &l->q_norm;
    case DRAFT_K_NORM: return &l->k_norm;
    case DRAFT_GATE: return &l->gate;
    case DRAFT_UP: return &l->up;
    case DRAFT_DOWN: return &l->down;
    case DRAFT_ROLE_COUNT: break;
    }
    return NULL;
}

/* ---- From a checkpoint ------------------------------------------------------------------------------------------- */

typedef struct collector {
    const checkpoint *files;
    model_weights *w;
    bool scales; /* block scales are looked at here */
    progress progress;
    hy_error *err;
    hy_status status;
} collector;

static bool take(void *user, const layout_entry *e)
{
    collector *c = user;
    weight *out = place_of(c->w->shape.drafter, e->draft, e->layer);
    if (e->fill == FILL_E8M0) return true; /* came with its matrix */
    c->status = checkpoint_draft_weight(c->files, e->draft, e->layer, out, c->err);
    /* Vectors; large matrices are checked as they are prepared. */
    if (c->status == HY_OK && out->rows == 1) c->status = checkpoint_check_values(out, e->name, c->err);
    if (c->status == HY_OK && c->scales) c->status = checkpoint_check_scales(out, e->name, c->err);
    if (c->status != HY_OK) return false;
    c->w->draft_parameters += (uint64_t)out->rows * (uint64_t)out->cols;
    if (!progress_add(&c->progress, 1)) c->status = error_set(c->err, HY_CANCELLED, "opening the model was stopped");
    return c->status == HY_OK;
}

/* A confidence head that does not look at the token before reads zeros of it. */
static hy_status widen_confidence(model_weights *w, hy_error *err)
{
    ops_drafter *d = w->shape.drafter;
    int64_t cols = w->shape.hidden + d->markov_rank;
    if (d->confidence.format == WEIGHT_NONE || d->confidence.cols == cols) return HY_OK;
    w->confidence = memory_zeroed((size_t)cols, sizeof *w->confidence);
    if (!w->confidence) return error_memory(err, "the drafter's confidence head", (size_t)cols * sizeof(float));
    weight_row(&d->confidence, 0, w->confidence);
    d->confidence = (weight){.format = WEIGHT_F32, .rows = 1, .cols = cols, .data = w->confidence};
    return HY_OK;
}

/* As weights.c does: what was read of the maps does not stay. */
static void drop_pages(const checkpoint *files)
{
    for (size_t i = 0; i < checkpoint_shard_count(files, true); i++) {
        weight_file f = checkpoint_shard_file(files, i, true);
        file_map_drop(f.data, f.bytes);
    }
}

hy_status model_drafter_open(const checkpoint *files, model_scales scales, cache_format cache,
                             hy_progress_fn on_progress, void *user, model_weights *w, hy_error *err)
{
    uint64_t seed;
    hy_status status = checkpoint_check_draft(files, err);
    if (status != HY_OK) return status;
    const config *target = checkpoint_config(files);
    const draft_config *d = checkpoint_draft(files);
    collector c = {.files = files, .w = w, .err = err};
    c.scales = scales != MODEL_SCALES_BACKEND && !checkpoint_made(files, &seed);
    c.progress = (progress){.fn = on_progress, .user = user, .what = "checking the drafter", .unit = "tensors"};
    c.progress.total = (uint64_t)d->layers * 11 + 5 + 2 * d->confidence_head + d->own_embed + d->own_head;
    c.status = make(d, cache, w, err);
    if (c.status == HY_OK) layout_walk_draft(target, d, take, &c);
    if (c.status == HY_OK) c.status = widen_confidence(w, err);
    drop_pages(files);
    if (c.status != HY_OK) {
        model_drafter_close(w);
        return c.status;
    }
    progress_end(&c.progress);
    return HY_OK;
}

/* ---- Shapes alone ------------------------------------------------------------------------------------------------ */

static bool take_shape(void *user, const layout_entry *e)
{
    model_weights *w = user;
    if (e->fill == FILL_E8M0) return true;
    int64_t rows = e->dims > 1 ? e->shape[0] : 1, cols = e->shape[e->dims - 1];
    *place_of(w->shape.drafter, e->draft, e->layer) = (weight){
        .format = e->dtype == TENSOR_F8_E4M3 ? WEIGHT_MXFP8 : WEIGHT_BF16, .rows = rows, .cols = cols, .global = 1};
    w->draft_parameters += (uint64_t)rows * (uint64_t)cols;
    return true;
}

hy_status model_drafter_shape(const config *target, const draft_config *d, cache_format cache, model_weights *w,
                              hy_error *err)
{
    hy_status status = make(d, cache, w, err);
    if (status == HY_OK) layout_walk_draft(target, d, take_shape, w);
    return status;
}

void model_drafter_close(model_weights *w)
{
    if (w->shape.drafter) memory_free(w->shape.drafter->layer);
    memory_free(w->shape.drafter);
    memory_free(w->confidence);
    w->shape.drafter = NULL;
    w->confidence = NULL;
}
