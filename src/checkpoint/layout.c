#include "checkpoint/layout.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define TEXT "language_model.model."

/* What a walk carries from tensor to tensor. `ok` turns false when the receiver stops; nothing is sent after that. */
typedef struct walk {
    layout_scheme scheme;
    layout_fn fn;
    void *user;
    bool ok;
    weight_role role;
    draft_role draft;
    int layer, expert;
} walk;

/* One tensor: `base` and `suffix` make its name. */
static void emit(walk *w, const char *base, const char *suffix, tensor_dtype dtype, layout_fill fill, int64_t fan_in,
                 int dims, const int64_t *shape)
{
    if (!w->ok) return;
    layout_entry e = {.dtype = dtype,
                      .dims = dims,
                      .fill = fill,
                      .fan_in = fan_in,
                      .role = w->role,
                      .draft = w->draft,
                      .layer = w->layer,
                      .expert = w->expert};
    snprintf(e.name, sizeof e.name, "%s%s", base, suffix);
    memcpy(e.shape, shape, (size_t)dims * sizeof *shape);
    w->ok = w->fn(w->user, &e);
}

static void vector(walk *w, const char *base, const char *suffix, tensor_dtype dtype, layout_fill fill, int64_t n)
{
    emit(w, base, suffix, dtype, fill, n, 1, &n);
}

static void matrix(walk *w, const char *base, const char *suffix, tensor_dtype dtype, layout_fill fill, int64_t fan_in,
                   int64_t rows, int64_t cols)
{
    emit(w, base, suffix, dtype, fill, fan_in, 2, (const int64_t[]){rows, cols});
}

static void mxfp8(walk *w, const char *base, int64_t out, int64_t in)
{
    matrix(w, base, ".weight", TENSOR_F8_E4M3, FILL_E4M3, in, out, in);
    matrix(w, base, ".weight_scale_inv", TENSOR_U8, FILL_E8M0, in, out, in / 32);
}

/* A linear that the quantised schemes keep as MXFP8. */
static void linear(walk *w, weight_role role, const char *base, int64_t out, int64_t in)
{
    w->role = role;
    if (w->scheme == SCHEME_BF16)
        matrix(w, base, ".weight", TENSOR_BF16, FILL_LINEAR, in, out, in);
    else
        mxfp8(w, base, out, in);
}

/* One matrix of a routed expert. */
static void expert_linear(walk *w, weight_role role, const char *base, int64_t out, int64_t in)
{
    bool packed = w->scheme == SCHEME_M31;
    if (!packed && w->scheme != SCHEME_MODELOPT) {
        linear(w, role, base, out, in);
        return;
    }
    w->role = role;
    matrix(w, base, packed ? ".weight_packed" : ".weight", TENSOR_U8, FILL_E2M1, in, out, in / 2);
    matrix(w, base, ".weight_scale", TENSOR_F8_E4M3, FILL_E4M3_SCALE, in, out, in / 16);
    /* pack-quantised files hold one-element vectors, ModelOpt's hold scalars */
    int64_t one = 1;
    int dims = packed ? 1 : 0;
    emit(w, base, packed ? ".weight_global_scale" : ".weight_scale_2", TENSOR_F32, FILL_GLOBAL, in, dims, &one);
    emit(w, base, packed ? ".input_global_scale" : ".input_scale", TENSOR_F32, FILL_ONE, in, dims, &one);
}

static void norm(walk *w, weight_role role, const char *base, const char *suffix, int64_t n)
{
    w->role = role;
    vector(w, base, suffix, TENSOR_BF16, FILL_NORM, n);
}

/* base "...self_attn" */
static void attention(walk *w, const char *base, const config *c, bool sparse)
{
    char name[160];
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    int64_t iq = (int64_t)c->index_heads * c->index_dim;
#define SUB(part) (snprintf(name, sizeof name, "%s" part, base), name)
    linear(w, ROLE_Q, SUB(".q_proj"), q, c->hidden);
    linear(w, ROLE_K, SUB(".k_proj"), kv, c->hidden);
    linear(w, ROLE_V, SUB(".v_proj"), kv, c->hidden);
    linear(w, ROLE_O, SUB(".o_proj"), c->hidden, q);
    norm(w, ROLE_Q_NORM, base, ".q_norm.weight", c->head_dim);
    norm(w, ROLE_K_NORM, base, ".k_norm.weight", c->head_dim);
    if (!sparse) return;
    linear(w, ROLE_INDEX_Q, SUB(".index_q_proj"), iq, c->hidden);
    linear(w, ROLE_INDEX_K, SUB(".index_k_proj"), c->index_dim, c->hidden);
    norm(w, ROLE_INDEX_Q_NORM, base, ".index_q_norm.weight", c->index_dim);
    norm(w, ROLE_INDEX_K_NORM, base, ".index_k_norm.weight", c->index_dim);
}

/* base "...mlp" or "...shared_experts" */
static void feed(walk *w, const char *base, weight_role gate, int64_t hidden, int64_t width)
{
    char name[160];
    linear(w, gate, SUB(".gate_proj"), width, hidden);
    linear(w, gate + 1, SUB(".up_proj"), width, hidden);
    linear(w, gate + 2, SUB(".down_proj"), hidden, width);
}

/* base "...block_sparse_moe" */
static void experts(walk *w, const char *base, const config *c)
{
    char name[128];
    w->role = ROLE_ROUTER;
    matrix(w, base, ".gate.weight", TENSOR_F32, FILL_ROUTER, c->hidden, c->experts, c->hidden);
    w->role = ROLE_ROUTER_BIAS;
    vector(w, base, ".e_score_correction_bias", TENSOR_F32, FILL_ROUTER_BIAS, c->experts);
    if (c->shared_expert) feed(w, SUB(".shared_experts"), ROLE_SHARED_GATE, c->hidden, c->shared_width);
    for (int e = 0; e < c->experts && w->ok; e++) {
        w->expert = e;
        snprintf(name, sizeof name, "%s.experts.%d.w1", base, e);
        expert_linear(w, ROLE_EXPERT_GATE, name, c->expert_width, c->hidden);
        snprintf(name, sizeof name, "%s.experts.%d.w2", base, e);
        expert_linear(w, ROLE_EXPERT_DOWN, name, c->hidden, c->expert_width);
        snprintf(name, sizeof name, "%s.experts.%d.w3", base, e);
        expert_linear(w, ROLE_EXPERT_UP, name, c->expert_width, c->hidden);
    }
    w->expert = -1;
}

static void text_layer(walk *w, const config *c, int i)
{
    char base[64], name[96];
    snprintf(base, sizeof base, TEXT "layers.%d", i);
    w->layer = i;
    norm(w, ROLE_INPUT_NORM, base, ".input_layernorm.weight", c->hidden);
    attention(w, SUB(".self_attn"), c, c->sparse[i]);
    norm(w, ROLE_POST_NORM, base, ".post_attention_layernorm.weight", c->hidden);
    if (c->moe[i])
        experts(w, SUB(".block_sparse_moe"), c);
    else
        feed(w, SUB(".mlp"), ROLE_DENSE_GATE, c->hidden, c->dense_width);
    w->layer = -1;
}

/* ---- Vision ---------------------------------------------------------------------------------------------------- */

static void biased(walk *w, const char *base, const char *part, int64_t out, int64_t in)
{
    char name[160];
    snprintf(name, sizeof name, "%s%s", base, part);
    matrix(w, name, ".weight", TENSOR_BF16, FILL_LINEAR, in, out, in);
    vector(w, name, ".bias", TENSOR_BF16, FILL_BIAS, out);
}

static void layer_norm(walk *w, const char *base, const char *part, int64_t n)
{
    char name[160];
    snprintf(name, sizeof name, "%s%s", base, part);
    vector(w, name, ".weight", TENSOR_BF16, FILL_ONE, n); /* a plain LayerNorm: its weight is the gain itself */
    vector(w, name, ".bias", TENSOR_BF16, FILL_BIAS, n);
}

static void vision(walk *w, const config *c)
{
    static const char tower[] = "vision_tower.vision_model";
    char base[96];
    int64_t h = c->vision_hidden, patch = c->vision_patch, time = c->vision_temporal;
    int64_t merged = (int64_t)c->vision_merge * c->vision_merge * c->hidden;
    w->role = ROLE_COUNT;
    emit(w, tower, ".embeddings.patch_embedding.weight", TENSOR_F32, FILL_LINEAR, 3 * time * patch * patch, 5,
         (const int64_t[]){h, 3, time, patch, patch});
    layer_norm(w, tower, ".pre_layrnorm", h);
    for (int i = 0; i < c->vision_layers && w->ok; i++) {
        snprintf(base, sizeof base, "%s.encoder.layers.%d", tower, i);
        layer_norm(w, base, ".layer_norm1", h);
        biased(w, base, ".self_attn.q_proj", h, h);
        biased(w, base, ".self_attn.k_proj", h, h);
        biased(w, base, ".self_attn.v_proj", h, h);
        biased(w, base, ".self_attn.out_proj", h, h);
        layer_norm(w, base, ".layer_norm2", h);
        biased(w, base, ".mlp.fc1", c->vision_width, h);
        biased(w, base, ".mlp.fc2", h, c->vision_width);
    }
    biased(w, "multi_modal_projector", ".linear_1", c->projector_hidden, h);
    biased(w, "multi_modal_projector", ".linear_2", c->hidden, c->projector_hidden);
    biased(w, "patch_merge_mlp", ".linear_1", c->projector_hidden, merged);
    biased(w, "patch_merge_mlp", ".linear_2", c->hidden, c->projector_hidden);
}

bool layout_walk(const config *c, layout_scheme scheme, layout_fn fn, void *user)
{
    walk w = {
        .scheme = scheme, .fn = fn, .user = user, .ok = true, .draft = DRAFT_ROLE_COUNT, .layer = -1, .expert = -1};
    w.role = ROLE_EMBED;
    matrix(&w, TEXT, "embed_tokens.weight", TENSOR_BF16, FILL_EMBED, c->hidden, c->vocab, c->hidden);
    for (int i = 0; i < c->layers && w.ok; i++) text_layer(&w, c, i);
    norm(&w, ROLE_FINAL_NORM, TEXT, "norm.weight", c->hidden);
    w.role = ROLE_HEAD;
    if (!c->tied_head)
        matrix(&w, "language_model.lm_head", ".weight", TENSOR_BF16, FILL_LINEAR, c->hidden, c->vocab, c->hidden);
    if (c->vision_layers > 0) vision(&w, c);
    return w.ok;
}

/* ---- Drafter --------------------------------------------------------------------------------------------------- */

/* How a family names its tensors. */
typedef struct draft_names {
    const char *prefix, *layer, *final_norm;
} draft_names;

static const draft_names draft_spellings[] = {
    [DRAFT_RELEASED] = {"language_model.model.dspark.", ".decoder_layer", "final_norm.weight"},
    [DRAFT_QWEN3] = {"", "", "norm.weight"},
};

static void draft_norm(walk *w, draft_role role, const char *base, const char *suffix, int64_t n)
{
    w->draft = role;
    vector(w, base, suffix, TENSOR_BF16, FILL_NORM, n);
}

static void draft_linear(walk *w, draft_role role, const char *base, int64_t out, int64_t in)
{
    w->draft = role;
    linear(w, ROLE_COUNT, base, out, in);
}

static void draft_plain(walk *w, draft_role role, const draft_names *n, const char *part, layout_fill fill, int64_t out,
                        int64_t in)
{
    w->draft = role;
    matrix(w, n->prefix, part, TENSOR_BF16, fill, in, out, in);
}

static void draft_layer(walk *w, const draft_config *d, const draft_names *n, int i)
{
    char base[96], name[128];
    int64_t q = (int64_t)d->heads * d->head_dim, kv = (int64_t)d->kv_heads * d->head_dim;
    snprintf(base, sizeof base, "%slayers.%d%s", n->prefix, i, n->layer);
    w->layer = i;
    draft_norm(w, DRAFT_INPUT_NORM, base, ".input_layernorm.weight", d->hidden);
    draft_linear(w, DRAFT_Q, SUB(".self_attn.q_proj"), q, d->hidden);
    draft_linear(w, DRAFT_K, SUB(".self_attn.k_proj"), kv, d->hidden);
    draft_linear(w, DRAFT_V, SUB(".self_attn.v_proj"), kv, d->hidden);
    draft_linear(w, DRAFT_O, SUB(".self_attn.o_proj"), d->hidden, q);
    draft_norm(w, DRAFT_Q_NORM, base, ".self_attn.q_norm.weight", d->head_dim);
    draft_norm(w, DRAFT_K_NORM, base, ".self_attn.k_norm.weight", d->head_dim);
    draft_norm(w, DRAFT_POST_NORM, base, ".post_attention_layernorm.weight", d->hidden);
    draft_linear(w, DRAFT_GATE, SUB(".mlp.gate_proj"), d->dense_width, d->hidden);
    draft_linear(w, DRAFT_UP, SUB(".mlp.up_proj"), d->dense_width, d->hidden);
    draft_linear(w, DRAFT_DOWN, SUB(".mlp.down_proj"), d->hidden, d->dense_width);
    w->layer = -1;
}
#undef SUB

bool layout_walk_draft(const config *target, const draft_config *d, layout_fn fn, void *user)
{
    const draft_names *n = &draft_spellings[d->family];
    walk w = {.scheme = d->family == DRAFT_RELEASED ? SCHEME_MXFP8 : SCHEME_BF16,
              .fn = fn,
              .user = user,
              .ok = true,
              .role = ROLE_COUNT,
              .layer = -1,
              .expert = -1};
    if (d->own_embed) draft_plain(&w, DRAFT_EMBED, n, "embed_tokens.weight", FILL_EMBED, d->vocab, d->hidden);
    draft_plain(&w, DRAFT_FC, n, "fc.weight", FILL_LINEAR, d->hidden, (int64_t)d->tap_count * target->hidden);
    draft_norm(&w, DRAFT_HIDDEN_NORM, n->prefix, "hidden_norm.weight", d->hidden);
    for (int i = 0; i < d->layers && w.ok; i++) draft_layer(&w, d, n, i);
    draft_norm(&w, DRAFT_FINAL_NORM, n->prefix, n->final_norm, d->hidden);
    if (d->own_head) draft_plain(&w, DRAFT_HEAD, n, "lm_head.weight", FILL_LINEAR, d->vocab, d->hidden);
    draft_plain(&w, DRAFT_MARKOV_IN, n, "markov_head.markov_w1.weight", FILL_EMBED, d->vocab, d->markov_rank);
    draft_plain(&w, DRAFT_MARKOV_OUT, n, "markov_head.markov_w2.weight", FILL_LINEAR, d->vocab, d->markov_rank);
    if (d->confidence_head) {
        int64_t in = d->hidden + (d->confidence_with_markov ? d->markov_rank : 0);
        draft_plain(&w, DRAFT_CONFIDENCE, n, "confidence_head.proj.weight", FILL_LINEAR, 1, in);
        w.draft = DRAFT_CONFIDENCE_BIAS;
        vector(&w, n->prefix, "confidence_head.proj.bias", TENSOR_BF16, FILL_BIAS, 1);
    }
    return w.ok;
}

/* ---- Sums ------------------------------------------------------------------------------------------------------ */

static uint64_t elements(const layout_entry *e)
{
    uint64_t n = 1;
    for (int i = 0; i < e->dims; i++) n *= (uint64_t)e->shape[i];
    return n;
}

size_t layout_entry_bytes(const layout_entry *e)
{
    return (size_t)elements(e) * tensor_dtype_bytes(e->dtype);
}

/* Logical weights that a tensor holds: two a byte for packed ones, none for scales. */
static uint64_t parameters(const layout_entry *e)
{
    switch (e->fill) {
    case FILL_E2M1: return 2 * elements(e);
    case FILL_E8M0:
    case FILL_E4M3_SCALE:
    case FILL_GLOBAL: return 0;
    case FILL_ONE: return e->role == ROLE_COUNT ? elements(e) : 0; /* a gain of the vision tower, or an input scale */
    case FILL_LINEAR:
    case FILL_NORM:
    case FILL_EMBED:
    case FILL_ROUTER:
    case FILL_ROUTER_BIAS:
    case FILL_E4M3:
    case FILL_BIAS: break;
    }
    return elements(e);
}

static bool add(void *user, const layout_entry *e)
{
    layout_totals *t = user;
    size_t bytes = layout_entry_bytes(e);
    t->tensors++;
    t->bytes += bytes;
    t->parameters += parameters(e);
    if (e->role == ROLE_EXPERT_GATE || e->role == ROLE_EXPERT_UP || e->role == ROLE_EXPERT_DOWN)
        t->expert_bytes += bytes;
    return true;
}

layout_totals layout_count(const config *c, layout_scheme scheme)
{
    layout_totals t = {0};
    layout_walk(c, scheme, add, &t);
    return t;
}

layout_totals layout_count_draft(const config *target, const draft_config *d)
{
    layout_totals t = {0};
    layout_walk_draft(target, d, add, &t);
    return t;
}

/* ---- Schemes --------------------------------------------------------------------------------------------------- */

layout_scheme layout_scheme_of(const config *c)
{
    if (!c->quant_method[0]) return SCHEME_BF16;
    if (!strcmp(c->quant_method, "modelopt")) return SCHEME_MODELOPT;
    return c->moe_quant[0] ? SCHEME_M31 : SCHEME_MXFP8;
}

layout_scheme layout_known_scheme(const char *name)
{
    if (!strcmp(name, "m3-mxfp8")) return SCHEME_MXFP8;
    if (!strcmp(name, "m3")) return SCHEME_BF16;
    return SCHEME_M31;
}

static const char *const scheme_names[] = {"bf16", "mxfp8", "m31", "modelopt"};

bool layout_parse_scheme(const char *name, layout_scheme *scheme)
{
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, scheme_names[i])) {
            *scheme = (layout_scheme)i;
            return true;
        }
    return false;
}

const char *layout_scheme_name(layout_scheme scheme)
{
    return scheme_names[scheme];
}

hy_status layout_check(const config *c, layout_scheme scheme, hy_error *err)
{
    if (scheme == SCHEME_BF16) return HY_OK;
    const struct {
        const char *what;
        int64_t size;
    } inputs[] = {
        {"hidden_size", c->hidden},
        {"num_attention_heads * head_dim", (int64_t)c->heads * c->head_dim},
        {"intermediate_size", c->experts ? c->expert_width : 32},
        {"shared_intermediate_size", c->shared_expert ? c->shared_width : 32},
        {"dense_intermediate_size", c->dense_width},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        if (inputs[i].size % 32)
            return error_at(err, HY_USAGE, inputs[i].what,
                            "%s is %lld, which scheme %s cannot cut into blocks of 32: use a multiple of 32 or bf16",
                            inputs[i].what, (long long)inputs[i].size, scheme_names[scheme]);
    return HY_OK;
}
