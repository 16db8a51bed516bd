/*
 * Which tensors make up the weight of a role.
 *
 * A module is what a checkpoint calls a linear or a norm: its tensors are module.weight, module.weight_packed,
 * module.weight_scale and so on. A role has one module for each spelling; the first that is there counts. Published
 * names come first. transformers saves gate and up fused along rows, gate first, and experts stacked along a third
 * dimension: those are read as views of rows.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/opened.h"
#include "number/mxfp8.h"
#include "number/nvfp4.h"

typedef enum part_kind { PART_WHOLE, PART_FIRST, PART_SECOND } part_kind; /* of a module's rows */

/* '#' in a module stands for the number of the expert. */
typedef struct spelling {
    weight_role role;
    const char *module;
    part_kind part;
    bool stacked; /* one tensor [experts, rows, cols], named as the module itself */
} spelling;

static const spelling spellings[] = {
    {ROLE_EMBED, "embed_tokens", PART_WHOLE, false},
    {ROLE_FINAL_NORM, "norm", PART_WHOLE, false},
    {ROLE_INPUT_NORM, "input_layernorm", PART_WHOLE, false},
    {ROLE_POST_NORM, "post_attention_layernorm", PART_WHOLE, false},
    {ROLE_Q, "self_attn.q_proj", PART_WHOLE, false},
    {ROLE_K, "self_attn.k_proj", PART_WHOLE, false},
    {ROLE_V, "self_attn.v_proj", PART_WHOLE, false},
    {ROLE_O, "self_attn.o_proj", PART_WHOLE, false},
    {ROLE_Q_NORM, "self_attn.q_norm", PART_WHOLE, false},
    {ROLE_K_NORM, "self_attn.k_norm", PART_WHOLE, false},
    {ROLE_INDEX_Q, "self_attn.index_q_proj", PART_WHOLE, false},
    {ROLE_INDEX_Q, "self_attn.indexer.q_proj", PART_WHOLE, false},
    {ROLE_INDEX_K, "self_attn.index_k_proj", PART_WHOLE, false},
    {ROLE_INDEX_K, "self_attn.indexer.k_proj", PART_WHOLE, false},
    {ROLE_INDEX_Q_NORM, "self_attn.index_q_norm", PART_WHOLE, false},
    {ROLE_INDEX_Q_NORM, "self_attn.indexer.q_norm", PART_WHOLE, false},
    {ROLE_INDEX_K_NORM, "self_attn.index_k_norm", PART_WHOLE, false},
    {ROLE_INDEX_K_NORM, "self_attn.indexer.k_norm", PART_WHOLE, false},
    {ROLE_DENSE_GATE, "mlp.gate_proj", PART_WHOLE, false},
    {ROLE_DENSE_GATE, "mlp.gate_up_proj", PART_FIRST, false},
    {ROLE_DENSE_UP, "mlp.up_proj", PART_WHOLE, false},
    {ROLE_DENSE_UP, "mlp.gate_up_proj", PART_SECOND, false},
    {ROLE_DENSE_DOWN, "mlp.down_proj", PART_WHOLE, false},
    {ROLE_ROUTER, "block_sparse_moe.gate", PART_WHOLE, false},
    {ROLE_ROUTER, "mlp.gate", PART_WHOLE, false},
    {ROLE_EXPERT_GATE, "block_sparse_moe.experts.#.w1", PART_WHOLE, false},
    {ROLE_EXPERT_GATE, "block_sparse_moe.experts.#.gate_proj", PART_WHOLE, false},
    {ROLE_EXPERT_GATE, "mlp.experts.#.gate_proj", PART_WHOLE, false},
    {ROLE_EXPERT_GATE, "mlp.experts.#.w1", PART_WHOLE, false},
    {ROLE_EXPERT_GATE, "mlp.experts.gate_up_proj", PART_FIRST, true},
    {ROLE_EXPERT_GATE, "block_sparse_moe.experts.gate_up_proj", PART_FIRST, true},
    {ROLE_EXPERT_UP, "block_sparse_moe.experts.#.w3", PART_WHOLE, false},
    {ROLE_EXPERT_UP, "block_sparse_moe.experts.#.up_proj", PART_WHOLE, false},
    {ROLE_EXPERT_UP, "mlp.experts.#.up_proj", PART_WHOLE, false},
    {ROLE_EXPERT_UP, "mlp.experts.#.w3", PART_WHOLE, false},
    {ROLE_EXPERT_UP, "mlp.experts.gate_up_proj", PART_SECOND, true},
    {ROLE_EXPERT_UP, "block_sparse_moe.experts.gate_up_proj", PART_SECOND, true},
    {ROLE_EXPERT_DOWN, "block_sparse_moe.experts.#.w2", PART_WHOLE, false},
    {ROLE_EXPERT_DOWN, "block_sparse_moe.experts.#.down_proj", PART_WHOLE, false},
    {ROLE_EXPERT_DOWN, "mlp.experts.#.down_proj", PART_WHOLE, false},
    {ROLE_EXPERT_DOWN, "mlp.experts.#.w2", PART_WHOLE, false},
    {ROLE_EXPERT_DOWN, "mlp.experts.down_proj", PART_WHOLE, true},
    {ROLE_EXPERT_DOWN, "block_sparse_moe.experts.down_proj", PART_WHOLE, true},
    {ROLE_SHARED_GATE, "block_sparse_moe.shared_experts.gate_proj", PART_WHOLE, false},
    {ROLE_SHARED_GATE, "mlp.shared_experts.gate_proj", PART_WHOLE, false},
    {ROLE_SHARED_GATE, "mlp.shared_experts.gate_up_proj", PART_FIRST, false},
    {ROLE_SHARED_UP, "block_sparse_moe.shared_experts.up_proj", PART_WHOLE, false},
    {ROLE_SHARED_UP, "mlp.shared_experts.up_proj", PART_WHOLE, false},
    {ROLE_SHARED_UP, "mlp.shared_experts.gate_up_proj", PART_SECOND, false},
    {ROLE_SHARED_DOWN, "block_sparse_moe.shared_experts.down_proj", PART_WHOLE, false},
    {ROLE_SHARED_DOWN, "mlp.shared_experts.down_proj", PART_WHOLE, false},
};
enum { SPELLING_COUNT = sizeof spellings / sizeof spellings[0], MODULE_SIZE = 192, NAME_SIZE = 256 };

/* The router bias is a tensor of its own, without ".weight". */
static const char *const bias_names[] = {
    "block_sparse_moe.e_score_correction_bias",
    "mlp.gate.e_score_correction_bias",
    "mlp.e_score_correction_bias",
};

static const char *const prefixes[] = {"language_model.model.", "model.language_model.", "model."};

const char *naming_prefix(const shards *s)
{
    static const char *const probes[] = {"embed_tokens.weight", "norm.weight", "layers.0.input_layernorm.weight"};
    char name[NAME_SIZE];
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++)
        for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++) {
            snprintf(name, sizeof name, "%s%s", prefixes[p], probes[i]);
            if (tensor_table_find(&s->table, name)) return prefixes[p];
        }
    return prefixes[0];
}

const char *weight_role_name(weight_role role)
{
    /* clang-format off */
    static const char *const names[ROLE_COUNT] = {
        "embed", "head", "final_norm", "input_norm", "post_norm", "q", "k", "v", "o", "q_norm", "k_norm",
        "index_q", "index_k", "index_q_norm", "index_k_norm", "dense_gate", "dense_up", "dense_down", "router",
        "router_bias", "expert_gate", "expert_up", "expert_down", "shared_gate", "shared_up", "shared_down",
    };
    /* clang-format on */
    return role >= 0 && role < ROLE_COUNT ? names[role] : "unknown";
}

/* ---- What the config wants --------------------------------------------------------------------------------------- */

typedef struct wanted {
    int64_t rows, cols;
    bool vector; /* [cols] in the file */
    bool plain;  /* must not be quantised */
    bool there;  /* the layer has this role */
} wanted;

static wanted role_wanted(const config *c, weight_role role, int layer)
{
    const int64_t h = c->hidden, d = c->head_dim, q = (int64_t)c->heads * d, kv = (int64_t)c->kv_heads * d;
    const bool sparse = layer >= 0 && c->sparse[layer], moe = layer >= 0 && c->moe[layer],
               shared = moe && c->shared_expert;
    switch (role) {
    case ROLE_EMBED:
    case ROLE_HEAD: return (wanted){c->vocab, h, false, true, true};
    case ROLE_FINAL_NORM:
    case ROLE_INPUT_NORM:
    case ROLE_POST_NORM: return (wanted){1, h, true, true, true};
    case ROLE_Q: return (wanted){q, h, false, false, true};
    case ROLE_K:
    case ROLE_V: return (wanted){kv, h, false, false, true};
    case ROLE_O: return (wanted){h, q, false, false, true};
    case ROLE_Q_NORM:
    case ROLE_K_NORM: return (wanted){1, d, true, true, true};
    case ROLE_INDEX_Q: return (wanted){(int64_t)c->index_heads * c->index_dim, h, false, false, sparse};
    case ROLE_INDEX_K: return (wanted){c->index_dim, h, false, false, sparse};
    case ROLE_INDEX_Q_NORM:
    case ROLE_INDEX_K_NORM: return (wanted){1, c->index_dim, true, true, sparse};
    case ROLE_DENSE_GATE:
    case ROLE_DENSE_UP: return (wanted){c->dense_width, h, false, false, !moe};
    case ROLE_DENSE_DOWN: return (wanted){h, c->dense_width, false, false, !moe};
    case ROLE_ROUTER: return (wanted){c->experts, h, false, true, moe};
    case ROLE_ROUTER_BIAS: return (wanted){1, c->experts, true, true, moe};
    case ROLE_EXPERT_GATE:
    case ROLE_EXPERT_UP: return (wanted){c->expert_width, h, false, false, moe};
    case ROLE_EXPERT_DOWN: return (wanted){h, c->expert_width, false, false, moe};
    case ROLE_SHARED_GATE:
    case ROLE_SHARED_UP: return (wanted){c->shared_width, h, false, false, shared};
    case ROLE_SHARED_DOWN: return (wanted){h, c->shared_width, false, false, shared};
    case ROLE_COUNT: break;
    }
    return (wanted){0};
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static const tensor *find(const checkpoint *c, const char *module, const char *suffix)
{
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    return checkpoint_find(c, name);
}

static hy_status missing(const char *module, const char *suffix, hy_error *err)
{
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    return error_at(err, HY_BAD_MODEL, name, "tensor %s is missing", name);
}

static void shape_text(int dims, const int64_t *shape, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < dims && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (n < size) snprintf(out + n, size - n, "]");
}

hy_status naming_check_shape(const tensor *t, int dims, const int64_t *shape, hy_error *err)
{
    bool same = t->dims == dims;
    for (int i = 0; same && i < dims; i++) same = t->shape[i] == shape[i];
    if (same) return HY_OK;
    char has[192], wants[192];
    shape_text(t->dims, t->shape, has, sizeof has);
    shape_text(dims, shape, wants, sizeof wants);
    return error_at(err, HY_BAD_MODEL, t->name, "tensor %.160s has shape %s; %s belongs there", t->name, has, wants);
}

/* A matrix [rows, cols], with one of two dtypes. */
static hy_status check_matrix(const tensor *t, tensor_dtype one, tensor_dtype other, int64_t rows, int64_t cols,
                              hy_error *err)
{
    if (t->dtype != one && t->dtype != other)
        return error_at(err, HY_BAD_MODEL, t->name, "tensor %.160s has dtype %s; %s%s%s belongs there", t->name,
                        tensor_dtype_name(t->dtype), tensor_dtype_name(one), one == other ? "" : " or ",
                        one == other ? "" : tensor_dtype_name(other));
    return naming_check_shape(t, 2, (int64_t[]){rows, cols}, err);
}

/* One fp32 number, [] or [1]. */
static hy_status read_scalar(const tensor *t, float *value, hy_error *err)
{
    if (t->dtype != TENSOR_F32 || t->bytes != sizeof *value)
        return error_at(err, HY_BAD_MODEL, t->name, "tensor %.160s is not one F32 number", t->name);
    memcpy(value, t->data, sizeof *value);
    return HY_OK;
}

static bool plain_format(tensor_dtype dtype, weight_format *format)
{
    switch (dtype) {
    case TENSOR_F32: *format = WEIGHT_F32; return true;
    case TENSOR_BF16: *format = WEIGHT_BF16; return true;
    case TENSOR_F16: *format = WEIGHT_F16; return true;
    default: return false;
    }
}

static hy_status read_plain(const tensor *t, const wanted *want, weight *out, hy_error *err)
{
    weight_format format;
    if (!plain_format(t->dtype, &format))
        return error_at(
            err, HY_BAD_MODEL, t->name,
            want->plain ? "tensor %.160s has dtype %s; BF16, F16 or F32 belongs there"
                        : "tensor %.160s has an unknown quantisation: dtype %s without the scales of MXFP8 or NVFP4",
            t->name, tensor_dtype_name(t->dtype));
    hy_status status = want->vector ? naming_check_shape(t, 1, &want->cols, err)
                                    : naming_check_shape(t, 2, (int64_t[]){want->rows, want->cols}, err);
    if (status == HY_OK) *out = (weight){.format = format, .rows = want->rows, .cols = want->cols, .data = t->data};
    return status;
}

static hy_status read_nvfp4(const tensor *packed, const tensor *scale, const tensor *global, bool divides,
                            const wanted *want, weight *out, hy_error *err)
{
    weight w = {.format = WEIGHT_NVFP4, .rows = want->rows, .cols = want->cols, .divides = divides};
    if (want->cols % NVFP4_GROUP)
        return error_at(err, HY_BAD_MODEL, packed->name, "tensor %.160s: %lld columns are no multiple of %d",
                        packed->name, (long long)want->cols, NVFP4_GROUP);
    hy_status status = check_matrix(packed, TENSOR_U8, TENSOR_I8, want->rows, want->cols / 2, err);
    if (status == HY_OK)
        status = check_matrix(scale, TENSOR_F8_E4M3, TENSOR_F8_E4M3, want->rows, want->cols / NVFP4_GROUP, err);
    if (status == HY_OK) status = read_scalar(global, &w.global, err);
    if (status != HY_OK) return status;
    w.data = packed->data, w.scales = scale->data;
    *out = w;
    return HY_OK;
}

static hy_status read_mxfp8(const tensor *data, const tensor *scale, const wanted *want, weight *out, hy_error *err)
{
    if (want->cols % MXFP8_BLOCK)
        return error_at(err, HY_BAD_MODEL, data->name, "tensor %.160s: %lld columns are no multiple of %d", data->name,
                        (long long)want->cols, MXFP8_BLOCK);
    hy_status status = check_matrix(data, TENSOR_F8_E4M3, TENSOR_F8_E4M3, want->rows, want->cols, err);
    if (status == HY_OK)
        status = check_matrix(scale, TENSOR_U8, TENSOR_F8_E8M0, want->rows, want->cols / MXFP8_BLOCK, err);
    if (status == HY_OK)
        *out = (weight){
            .format = WEIGHT_MXFP8, .rows = want->rows, .cols = want->cols, .data = data->data, .scales = scale->data};
    return status;
}

/* The scheme of a module follows from which of its tensors are there, and two schemes at once are refused. */
static hy_status read_module(const checkpoint *c, const char *module, const wanted *want, weight *out, hy_error *err)
{
    const tensor *data = find(c, module, ".weight"), *packed = find(c, module, ".weight_packed");
    const tensor *scale = find(c, module, ".weight_scale"), *scale_2 = find(c, module, ".weight_scale_2");
    const tensor *scale_inv = find(c, module, ".weight_scale_inv"), *global = find(c, module, ".weight_global_scale");
    if (!data && !packed) return missing(module, ".weight", err);
    if (want->plain && data && !packed && !scale && !scale_2 && !scale_inv) return read_plain(data, want, out, err);
    if (want->plain)
        return error_at(err, HY_BAD_MODEL, module, "%.160s is quantised; only BF16, F16 and F32 are supported there",
                        module);
    if ((packed != NULL) + (scale_2 != NULL) + (scale_inv != NULL) > 1 || (packed && data) || (scale_inv && scale))
        return error_at(err, HY_BAD_MODEL, module, "%.160s has tensors of two quantisation schemes", module);
    if (packed) {
        if (!scale) return missing(module, ".weight_scale", err);
        if (!global) return missing(module, ".weight_global_scale", err);
        return read_nvfp4(packed, scale, global, true, want, out, err);
    }
    if (scale_2) {
        if (!scale) return missing(module, ".weight_scale", err);
        return read_nvfp4(data, scale, scale_2, false, want, out, err);
    }
    if (scale_inv) return read_mxfp8(data, scale_inv, want, out, err);
    if (scale)
        return error_at(
            err, HY_BAD_MODEL, scale->name,
            "tensor %.160s belongs to an unknown quantisation: without weight_packed or weight_scale_2 it is not "
            "NVFP4",
            scale->name);
    if (data->dtype == TENSOR_F8_E4M3) return missing(module, ".weight_scale_inv", err);
    return read_plain(data, want, out, err);
}

/* Rows [first, first + rows) of a weight. */
static weight rows_of(const weight *w, int64_t first, int64_t rows)
{
    weight part = *w;
    size_t at = (size_t)first * (size_t)w->cols; /* element */
    size_t byte = at, scale = 0;
    switch (w->format) {
    case WEIGHT_NONE: break;
    case WEIGHT_F32: byte = at * 4; break;
    case WEIGHT_BF16:
    case WEIGHT_F16: byte = at * 2; break;
    case WEIGHT_MXFP8: scale = at / MXFP8_BLOCK; break;
    case WEIGHT_NVFP4: byte = at / 2, scale = at / NVFP4_GROUP; break;
    }
    part.rows = rows;
    part.data = (const uint8_t *)w->data + byte;
    if (w->scales) part.scales = w->scales + scale;
    return part;
}

/* One tensor [experts, rows, cols], plain. */
static hy_status read_stacked(const checkpoint *c, const tensor *t, int expert, const wanted *want, weight *out,
                              hy_error *err)
{
    weight_format format;
    int64_t experts = c->config.experts;
    if (!plain_format(t->dtype, &format))
        return error_at(err, HY_BAD_MODEL, t->name,
                        "tensor %.160s has dtype %s; stacked experts are supported in BF16, F16 and F32", t->name,
                        tensor_dtype_name(t->dtype));
    hy_status status = naming_check_shape(t, 3, (int64_t[]){experts, want->rows, want->cols}, err);
    if (status != HY_OK) return status;
    weight all = {.format = format, .rows = experts * want->rows, .cols = want->cols, .data = t->data};
    *out = rows_of(&all, expert * want->rows, want->rows);
    return HY_OK;
}

/* ---- Roles ------------------------------------------------------------------------------------------------------- */

/* The full name of a module: prefix, layer, and '#' replaced. */
static void module_name(const checkpoint *c, const char *module, int layer, int expert, char out[MODULE_SIZE])
{
    size_t n = (size_t)snprintf(out, MODULE_SIZE, "%s", c->prefix);
    if (layer >= 0) n += (size_t)snprintf(out + n, MODULE_SIZE - n, "layers.%d.", layer);
    const char *mark = strchr(module, '#');
    if (mark)
        snprintf(out + n, MODULE_SIZE - n, "%.*s%d%s", (int)(mark - module), module, expert, mark + 1);
    else
        snprintf(out + n, MODULE_SIZE - n, "%s", module);
}

static hy_status read_spelling(const checkpoint *c, const spelling *s, const char *module, int expert, wanted want,
                               weight *out, hy_error *err)
{
    weight whole;
    int64_t rows = want.rows;
    if (s->part != PART_WHOLE) want.rows *= 2;
    hy_status status = s->stacked ? read_stacked(c, checkpoint_find(c, module), expert, &want, &whole, err)
                                  : read_module(c, module, &want, &whole, err);
    if (status != HY_OK) return status;
    *out = s->part == PART_WHOLE ? whole : rows_of(&whole, s->part == PART_SECOND ? rows : 0, rows);
    return HY_OK;
}

static hy_status read_head(const checkpoint *c, const wanted *want, weight *out, hy_error *err)
{
    /* The head stands beside the backbone: under language_model. in the published layout, on top elsewhere. */
    static const char *const heads[] = {"language_model.lm_head", "lm_head"};
    bool published = strcmp(c->prefix, prefixes[0]) == 0;
    for (int i = 0; i < 2; i++)
        if (find(c, heads[i], ".weight") || find(c, heads[i], ".weight_packed"))
            return read_module(c, heads[i], want, out, err);
    return missing(heads[published ? 0 : 1], ".weight", err);
}

static hy_status read_bias(const checkpoint *c, int layer, const wanted *want, weight *out, hy_error *err)
{
    char name[MODULE_SIZE];
    for (size_t i = 0; i < sizeof bias_names / sizeof bias_names[0]; i++) {
        module_name(c, bias_names[i], layer, 0, name);
        const tensor *t = checkpoint_find(c, name);
        if (t) return read_plain(t, want, out, err);
    }
    module_name(c, bias_names[0], layer, 0, name);
    return missing(name, "", err);
}

hy_status checkpoint_weight(const checkpoint *c, weight_role role, int layer, int expert, weight *out, hy_error *err)
{
    const bool top = role == ROLE_EMBED || role == ROLE_HEAD || role == ROLE_FINAL_NORM;
    const bool routed = role == ROLE_EXPERT_GATE || role == ROLE_EXPERT_UP || role == ROLE_EXPERT_DOWN;
    if (top) layer = -1;
    assert(role >= 0 && role < ROLE_COUNT && (top || (layer >= 0 && layer < c->config.layers)));
    assert(!routed || (expert >= 0 && (expert < c->config.experts || !c->config.moe[layer])));
    if (role == ROLE_HEAD && c->config.tied_head) role = ROLE_EMBED;
    wanted want = role_wanted(&c->config, role, layer);
    if (!want.there)
        return error_set(err, HY_USAGE, "layer %d has no weight of the role %s", layer, weight_role_name(role));
    if (role == ROLE_HEAD) return read_head(c, &want, out, err);
    if (role == ROLE_ROUTER_BIAS) return read_bias(c, layer, &want, out, err);
    char module[MODULE_SIZE], first[MODULE_SIZE] = "";
    for (size_t i = 0; i < SPELLING_COUNT; i++) {
        const spelling *s = &spellings[i];
        if (s->role != role) continue;
        module_name(c, s->module, layer, expert, module);
        if (!first[0]) memcpy(first, module, sizeof first);
        if (s->stacked ? checkpoint_find(c, module) != NULL
                       : find(c, module, ".weight") || find(c, module, ".weight_packed"))
            return read_spelling(c, s, module, expert, want, out, err);
    }
    return missing(first, ".weight", err);
}

hy_status checkpoint_kv_scales(const checkpoint *c, int layer, float *k_scale, float *v_scale, hy_error *err)
{
    static const char *const names[] = {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"};
    float values[2] = {1, 1};
    for (int i = 0; i < 2; i++) {
        char name[MODULE_SIZE];
        module_name(c, names[i], layer, 0, name);
        const tensor *t = checkpoint_find(c, name);
        if (!t) continue;
        hy_status status = read_scalar(t, &values[i], err);
        if (status != HY_OK) return status;
        if (!isfinite(values[i]) || values[i] <= 0)
            return error_at(err, HY_BAD_MODEL, t->name, "tensor %.160s is %g; a scale is positive and finite", t->name,
                            (double)values[i]);
    }
    *k_scale = values[0], *v_scale = values[1];
    return HY_OK;
}

/* ---- Scales and values
 * ------------------------------------------------------------------------------------------------------ */

hy_status checkpoint_check_global(const weight *w, const char *name, hy_error *err)
{
    if (w->format != WEIGHT_NVFP4 || (isfinite(w->global) && w->global > 0)) return HY_OK;
    return error_at(err, HY_BAD_MODEL, name, "the global scale of %.160s is %g; it must be positive and finite", name,
                    (double)w->global);
}

hy_status checkpoint_check_scales(const weight *w, const char *name, hy_error *err)
{
    if (w->format != WEIGHT_MXFP8 && w->format != WEIGHT_NVFP4) return HY_OK;
    bool nvfp4 = w->format == WEIGHT_NVFP4;
    hy_status status = checkpoint_check_global(w, name, err);
    if (status != HY_OK) return status;
    int64_t group = nvfp4 ? NVFP4_GROUP : MXFP8_BLOCK, per_row = w->cols / group;
    size_t count = (size_t)w->rows * (size_t)per_row;
    /* E4M3 from 0x7F up is NaN or negative, E8M0 has one NaN at 255: one maximum finds either. */
    uint8_t limit = nvfp4 ? 0x7F : 0xFF, most = 0;
    for (size_t i = 0; i < count; i++) most = w->scales[i] > most ? w->scales[i] : most;
    if (most < limit) return HY_OK;
    size_t at = 0;
    while (w->scales[at] < limit) at++;
    uint8_t byte = w->scales[at];
    return error_at(err, HY_BAD_MODEL, name, "a scale of %.160s is %s (0x%02X, row %lld, columns from %lld)", name,
                    !nvfp4 || (byte & 0x7F) == 0x7F ? "NaN" : "negative", byte, (long long)((int64_t)at / per_row),
                    (long long)((int64_t)at % per_row * group));
}

hy_status checkpoint_check_values(const weight *w, const char *name, hy_error *err)
{
    enum { PART = 1024 };
    float values[PART];
    if (w->format == WEIGHT_NONE || weight_row_scales(w)) return HY_OK;
    for (int64_t row = 0; row < w->rows; row++)
        for (int64_t begin = 0; begin < w->cols; begin += PART) {
            int64_t count = w->cols - begin < PART ? w->cols - begin : PART;
            weight_row_part(w, row, begin, begin + count, values);
            for (int64_t i = 0; i < count; i++)
                if (!isfinite(values[i]))
                    return error_at(err, HY_BAD_MODEL, name, "a value of %.160s is %g (%s, row %lld, column %lld)",
                                    name, (double)values[i], weight_format_name(w->format), (long long)row,
                                    (long long)(begin + i));
        }
    return HY_OK;
}
