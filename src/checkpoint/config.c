/*
 * Parsing config.json. The field names of both spellings are those of the published checkpoints of MiniMaxAI and of
 * transformers (src/transformers/models/minimax_m3_vl).
 */
#include "checkpoint/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/config_reader.h"

/* Larger files are no configs: the largest published one lists 22,000 quantised modules in 3 MB. */
enum { FILE_LIMIT = 32 * 1000 * 1000, WIDTH_LIMIT = 1 << 20, TOKEN_LIMIT = INT_MAX };

static void copy_text(char *out, size_t size, const char *s)
{
    strncpy(out, s ? s : "", size - 1);
}

/* A width that quantised linears read in groups of 32. */
static int read_width(config_reader *r, const json_t *o, const char *key, int fallback)
{
    int n = config_int(r, o, key, 0, WIDTH_LIMIT, fallback);
    if (n % 32 != 0) config_bad(r, key, "%s is %d; it must be a multiple of 32", key, n);
    return n;
}

static void read_kind(config_reader *r, const json_t *root, const json_t *text, config *c)
{
    const json_t *names = config_get(root, "architectures");
    if (!names) names = config_get(text, "architectures");
    const char *name = json_string_value(json_array_get(names, 0));
    const char *type = config_string(r, root, "model_type");
    if (name && strncmp(name, "DSpark", 6) == 0)
        config_bad(r, "architectures", "%.60s is a drafter; open the folder above it", name);
    if (type ? strncmp(type, "minimax_m3", 10) != 0 : !name || strncmp(name, "MiniMaxM3", 9) != 0)
        config_bad(r, "model_type",
                   "%s \"%.80s\" is not supported; MiniMax-M3 and M3.1 have model_type \"minimax_m3_vl\"",
                   type ? "model_type" : "architecture",
                   type   ? type
                   : name ? name
                          : "");
    copy_text(c->model_type, sizeof c->model_type, type ? type : "minimax_m3_vl");
}

static void read_rotary(config_reader *r, const json_t *text, config *c)
{
    static const char *const places[] = {"rope_parameters", "rope_scaling"};
    static const char *const keys[] = {"rope_type", "type"};
    const json_t *parameters = config_object(r, text, "rope_parameters");
    for (int i = 0; i < 2; i++) {
        const json_t *o = config_object(r, text, places[i]);
        bool named = false;
        for (int k = 0; k < 2; k++) {
            const char *type = config_string(r, o, keys[k]);
            if (type && strcmp(type, "default") != 0)
                config_bad(r, keys[k], "rope type \"%.60s\" is not supported; only \"default\" is", type);
            named = named || type;
        }
        if (i == 1 && json_object_size(o) > 0 && !named)
            config_bad(r, "rope_scaling", "rope_scaling without a type is not supported; only plain rope is");
    }
    bool inside = config_get(parameters, "rope_theta") != NULL;
    c->rope_theta = config_number(r, inside ? parameters : text, "rope_theta", 1, 1e12, NAN);
    const json_t *part = config_get(text, "partial_rotary_factor") ? text : parameters;
    float factor = config_number(r, part, "partial_rotary_factor", 0, 1, 0);
    int derived = (int)lroundf(factor * (float)c->head_dim);
    c->rotary_dim = config_int(r, text, "rotary_dim", 2, c->head_dim, derived ? derived : CONFIG_REQUIRED);
    if (derived && derived != c->rotary_dim)
        config_bad(r, "rotary_dim", "rotary_dim is %d but partial_rotary_factor %g of head_dim %d makes %d",
                   c->rotary_dim, (double)factor, c->head_dim, derived);
    if (c->rotary_dim % 2) config_bad(r, "rotary_dim", "rotary_dim is %d; it must be even", c->rotary_dim);
}

static void read_attention(config_reader *r, const json_t *text, config *c)
{
    c->heads = config_int(r, text, "num_attention_heads", 1, 1024, CONFIG_REQUIRED);
    c->kv_heads = config_int(r, text, "num_key_value_heads", 1, 1024, CONFIG_REQUIRED);
    c->head_dim = config_int(r, text, "head_dim", 2, 1024, CONFIG_REQUIRED);
    if (c->heads % c->kv_heads)
        config_bad(r, "num_key_value_heads", "num_attention_heads %d is not a multiple of num_key_value_heads %d",
                   c->heads, c->kv_heads);
    if (c->head_dim % 2) config_bad(r, "head_dim", "head_dim is %d; it must be even", c->head_dim);
    config_want_bool(r, text, "attention_output_gate", false);
    config_want_bool(r, text, "attention_bias", false);
    config_want_bool(r, text, "use_qk_norm", true);
    config_want_bool(r, text, "use_gemma_norm", true);
    config_want_string(r, text, "qk_norm_type", "per_head");
    read_rotary(r, text, c);
}

/* The per-layer lists. Either spelling may be there; where both are, they must say the same. */
static void read_layer_kinds(config_reader *r, const json_t *text, const json_t *sparse, config *c)
{
    static const char published_sparse[] = "sparse_attention_freq", native_sparse[] = "layer_types";
    static const char published_moe[] = "moe_layer_freq", native_moe[] = "mlp_layer_types";
    uint8_t other[CONFIG_MAX_LAYERS] = {0};
    size_t n = (size_t)c->layers;

    bool enabled = sparse && config_bool(r, sparse, "use_sparse_attention", true);
    bool published = config_flags(r, sparse, published_sparse, c->layers, c->sparse);
    if (enabled && !published) config_bad(r, published_sparse, "sparse_attention_config has no %s", published_sparse);
    if (sparse && !enabled) memset(c->sparse, 0, n);
    if (config_words(r, text, native_sparse, c->layers, "minimax_m3_sparse", "full_attention", other)) {
        if (sparse && memcmp(other, c->sparse, n) != 0)
            config_bad(r, native_sparse, "%s and %s name different layers", native_sparse, published_sparse);
        memcpy(c->sparse, other, n);
        c->transformers_spelling = !sparse;
    } else if (!sparse && config_get(text, "index_n_heads")) {
        config_bad(r, native_sparse, "index_n_heads is there but no %s says which layers are sparse", native_sparse);
    }

    memset(other, 0, sizeof other);
    published = config_flags(r, text, published_moe, c->layers, c->moe);
    if (config_words(r, text, native_moe, c->layers, "sparse", "dense", other)) {
        if (published && memcmp(other, c->moe, n) != 0)
            config_bad(r, native_moe, "%s and %s name different layers", native_moe, published_moe);
        memcpy(c->moe, other, n);
        c->transformers_spelling = c->transformers_spelling || !published;
    } else if (!published) {
        config_bad(r, published_moe, "neither %s nor %s says which layers have experts", published_moe, native_moe);
    }
}

/* Same quantities under two names. */
static void read_indexer(config_reader *r, const json_t *text, const json_t *sparse, config *c)
{
    const json_t *o = sparse ? sparse : text;
    c->index_heads = config_int(r, o, sparse ? "sparse_num_index_heads" : "index_n_heads", 1, 1024, CONFIG_REQUIRED);
    c->index_dim = config_int(r, o, sparse ? "sparse_index_dim" : "index_head_dim", 1, 1024, CONFIG_REQUIRED);
    c->index_top = config_int(r, o, sparse ? "sparse_topk_blocks" : "index_topk_blocks", 1, 1024, CONFIG_REQUIRED);
    c->index_local = config_int(r, o, sparse ? "sparse_local_block" : "index_local_blocks", 1, 1024, CONFIG_REQUIRED);
    const char *block_key = sparse ? "sparse_block_size" : "index_block_size";
    c->index_block = config_int(r, o, block_key, INT_MIN + 1, INT_MAX, CONFIG_REQUIRED);
    if (c->index_block != 128)
        config_bad(r, block_key, "%s is %d; only blocks of 128 are supported", block_key, c->index_block);
    if (c->index_heads != c->kv_heads)
        config_bad(r, "num_key_value_heads", "%d index heads for %d key/value heads; the numbers must be equal",
                   c->index_heads, c->kv_heads);
    if (c->index_dim != c->head_dim)
        config_bad(r, "head_dim", "the index dimension is %d and head_dim is %d; they must be equal", c->index_dim,
                   c->head_dim);
    if (c->index_top < c->index_local)
        config_bad(r, "top blocks", "%d top blocks do not hold the %d local blocks", c->index_top, c->index_local);
    config_want_int(r, sparse, "sparse_init_block", 0);
    config_want_string(r, sparse, "sparse_score_type", "max");
    uint8_t no_value[CONFIG_MAX_LAYERS] = {0};
    if (config_flags(r, sparse, "sparse_disable_index_value", c->layers, no_value))
        for (int i = 0; i < c->layers; i++)
            if (c->sparse[i] && !no_value[i])
                config_bad(r, "sparse_disable_index_value", "layer %d wants index values, which are not supported", i);
}

static void read_feed_forward(config_reader *r, const json_t *text, config *c)
{
    int moe = 0;
    for (int i = 0; i < c->layers; i++) moe += c->moe[i];
    /* The file's hidden_act names the variant "swigluoai"; transformers rewrites it to "silu" for the same function. */
    const char *act = config_string(r, text, "hidden_act");
    if (act && strcmp(act, "swigluoai") != 0 && strcmp(act, "silu") != 0)
        config_bad(r, "hidden_act", "hidden_act \"%.60s\" is not supported; \"swigluoai\" is", act);
    c->swiglu_alpha = config_number(r, text, "swiglu_alpha", 1e-3, 1e3, 1.702);
    c->swiglu_limit = config_number(r, text, "swiglu_limit", 1e-3, 1e6, 7.0);
    if (config_number(r, text, "swiglu_beta", -1e6, 1e6, 1.0) != 1.0f)
        config_bad(r, "swiglu_beta", "swiglu_beta is not 1, which is not supported");
    c->dense_width = read_width(r, text, "dense_intermediate_size", moe < c->layers ? CONFIG_REQUIRED : 0);
    if (moe < c->layers && c->dense_width == 0)
        config_bad(r, "dense_intermediate_size", "dense_intermediate_size is 0 but layers without experts are there");
    if (moe == 0) return;

    c->experts = config_int(r, text, "num_local_experts", 1, 1024, CONFIG_REQUIRED);
    c->experts_per_token = config_int(r, text, "num_experts_per_tok", 1, c->experts, CONFIG_REQUIRED);
    c->expert_width = read_width(r, text, "intermediate_size", CONFIG_REQUIRED);
    c->routed_scaling = config_number(r, text, "routed_scaling_factor", 1e-6, 1e6, 1.0);
    c->shared_width = read_width(r, text, "shared_intermediate_size", 0);
    int shared = config_int(r, text, "n_shared_experts", 0, INT_MAX, c->shared_width > 0);
    if (shared > 1) config_bad(r, "n_shared_experts", "n_shared_experts is %d; at most 1 is supported", shared);
    c->shared_expert = shared == 1;
    if (c->shared_expert && c->shared_width == 0)
        config_bad(r, "shared_intermediate_size", "shared_intermediate_size is missing for the shared expert");
    if (!c->shared_expert) c->shared_width = 0;
    if (c->expert_width == 0) config_bad(r, "intermediate_size", "intermediate_size is 0");
    config_want_string(r, text, "scoring_func", "sigmoid");
    config_want_bool(r, text, "use_routing_bias", true);
    config_want_bool(r, text, "norm_topk_prob", true);
    config_want_int(r, text, "n_group", 1);
    config_want_int(r, text, "topk_group", 1);
}

/* A token id, or the first of a list of them. */
static int read_token(config_reader *r, const json_t *first, const json_t *second, const char *key, int limit)
{
    const json_t *v = config_get(first, key);
    if (!v) v = config_get(second, key);
    if (!v) return -1;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    int token = -1;
    if (n == 0 || n > CONFIG_MAX_EOS)
        config_bad(r, key, "%s lists %zu ids; 1 to %d are supported", key, n, CONFIG_MAX_EOS);
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
        json_int_t id = json_is_integer(e) ? json_integer_value(e) : -1;
        if (id < 0 || id >= limit)
            config_bad(r, key, "%s is not a token id below %d", key, limit);
        else if (i == 0)
            token = (int)id;
    }
    return token;
}

static void read_tokens(config_reader *r, const json_t *root, const json_t *text, config *c)
{
    c->bos = read_token(r, text, root, "bos_token_id", c->vocab);
    c->eos = read_token(r, text, root, "eos_token_id", c->vocab);
    c->image_token = read_token(r, root, text, "image_token_index", TOKEN_LIMIT);
    c->video_token = read_token(r, root, text, "video_token_index", TOKEN_LIMIT);
    if (c->image_token < 0) c->image_token = read_token(r, root, text, "image_token_id", TOKEN_LIMIT);
    if (c->video_token < 0) c->video_token = read_token(r, root, text, "video_token_id", TOKEN_LIMIT);
}

static void read_vision(config_reader *r, const json_t *root, config *c)
{
    const json_t *v = config_object(r, root, "vision_config");
    if (!v) return;
    const json_t *merge = config_object(r, v, "img_token_compression_config");
    c->vision_layers = config_int(r, v, "num_hidden_layers", 0, CONFIG_MAX_LAYERS, CONFIG_REQUIRED);
    if (c->vision_layers == 0) return;
    c->vision_hidden = config_int(r, v, "hidden_size", 1, WIDTH_LIMIT, CONFIG_REQUIRED);
    c->vision_heads = config_int(r, v, "num_attention_heads", 1, 1024, CONFIG_REQUIRED);
    c->vision_width = config_int(r, v, "intermediate_size", 1, WIDTH_LIMIT, CONFIG_REQUIRED);
    c->vision_patch = config_int(r, v, "patch_size", 1, 256, 14);
    const json_t *t = config_get(v, "temporal_patch_size") ? v : merge;
    const json_t *s = config_get(v, "spatial_merge_size") ? v : merge;
    c->vision_temporal = config_int(r, t, "temporal_patch_size", 1, 16, 2);
    c->vision_merge = config_int(r, s, "spatial_merge_size", 1, 16, 2);
    c->projector_hidden = config_int(r, root, "projector_hidden_size", 1, WIDTH_LIMIT, c->hidden);
    if (c->vision_hidden % c->vision_heads)
        config_bad(r, "vision_config", "the vision tower's hidden_size %d is not a multiple of its %d heads",
                   c->vision_hidden, c->vision_heads);
}

/* ---- quantization_config ----------------------------------------------------------------------------------------- */

static void set_nvfp4(config *c, const char *format)
{
    copy_text(c->moe_quant, sizeof c->moe_quant, "NVFP4");
    copy_text(c->moe_quant_format, sizeof c->moe_quant_format, format);
}

static void read_mxfp8(config_reader *r, const json_t *q, config *c)
{
    const json_t *block = config_get(q, "weight_block_size");
    if (block && (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != 1 ||
                  json_integer_value(json_array_get(block, 1)) != 32))
        config_bad(r, "weight_block_size", "weight_block_size of mxfp8 is not [1, 32]");
    config_want_string(r, q, "moe_quant_algo", "NVFP4");
    config_want_string(r, q, "moe_quant_format", "nvfp4-pack-quantized");
    const char *algo = config_string(r, q, "moe_quant_algo"), *format = config_string(r, q, "moe_quant_format");
    copy_text(c->moe_quant, sizeof c->moe_quant, algo);
    copy_text(c->moe_quant_format, sizeof c->moe_quant_format, format);
}

static void check_algorithm(config_reader *r, const json_t *o, const char *where, config *c)
{
    const char *algo = config_string(r, o, "quant_algo");
    if (!algo || strcmp(algo, "MXFP8") == 0) return;
    if (strcmp(algo, "NVFP4") != 0) {
        config_bad(r, "quant_algo", "quant_algo \"%.40s\" of %.160s is not supported; MXFP8 and NVFP4 are", algo,
                   where);
        return;
    }
    config_want_int(r, o, "group_size", 16);
    set_nvfp4(c, "");
}

static void read_modelopt(config_reader *r, json_t *q, config *c)
{
    /* hf_quant_config.json nests the fields once more; config.json has them either way. */
    json_t *inner = config_object(r, q, "quantization");
    if (!inner) inner = q;
    const char *algo = config_string(r, inner, "quant_algo"), *module;
    if (!algo || strcmp(algo, "MIXED_PRECISION") != 0) check_algorithm(r, inner, "the model", c);
    json_t *modules = config_object(r, inner, "quantized_layers"), *entry;
    json_object_foreach(modules, module, entry)
    {
        if (json_is_object(entry))
            check_algorithm(r, entry, module, c);
        else
            config_bad(r, "quantized_layers", "quantized_layers has no object for %.160s", module);
    }
}

/* NVFP4 groups of 16, and in mixed files 8-bit floats in groups of 32. */
static void read_compressed(config_reader *r, const json_t *q, config *c)
{
    static const char pack[] = "nvfp4-pack-quantized";
    const char *format = config_string(r, q, "format"), *group;
    bool mixed = format && strcmp(format, "mixed-precision") == 0;
    if (!format || (!mixed && strcmp(format, pack) != 0))
        config_bad(r, "format",
                   "the compressed-tensors format \"%.60s\" is not supported; \"%s\" and \"mixed-precision\" are",
                   format ? format : "", pack);
    json_t *groups = config_object(r, q, "config_groups"), *entry;
    json_object_foreach(groups, group, entry)
    {
        const json_t *w = config_object(r, entry, "weights");
        int bits = config_int(r, w, "num_bits", 0, 64, 0), size = config_int(r, w, "group_size", 0, INT_MAX, 0);
        const char *type = config_string(r, w, "type"), *strategy = config_string(r, w, "strategy");
        bool real = type && strcmp(type, "float") == 0;
        if (real && bits == 4 && size == 16 && strategy && strcmp(strategy, "tensor_group") == 0)
            set_nvfp4(c, pack);
        else if (!(mixed && real && bits == 8 && size == 32))
            config_bad(
                r, group,
                "the weights of quantisation group %.60s (%d bits, type %.20s, group size %d, strategy %.40s) are not "
                "supported; NVFP4 is",
                group, bits, type ? type : "none", size, strategy ? strategy : "none");
    }
    if (!mixed) set_nvfp4(c, pack);
}

static void read_quantization(config_reader *r, const json_t *root, const json_t *text, config *c)
{
    json_t *q = config_object(r, root, "quantization_config");
    if (!q) q = config_object(r, text, "quantization_config");
    if (!q) return;
    const char *method = config_string(r, q, "quant_method");
    if (!method)
        config_bad(r, "quant_method", "quantization_config has no quant_method");
    else if (strcmp(method, "mxfp8") == 0)
        read_mxfp8(r, q, c);
    else if (strcmp(method, "modelopt") == 0)
        read_modelopt(r, q, c);
    else if (strcmp(method, "compressed-tensors") == 0)
        read_compressed(r, q, c);
    else
        config_bad(r, "quant_method",
                   "quant_method \"%.60s\" is not supported; \"mxfp8\", \"modelopt\" and \"compressed-tensors\" are",
                   method);
    copy_text(c->quant_method, sizeof c->quant_method, method);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static void read_all(config_reader *r, const json_t *root, config *c)
{
    const json_t *text = config_object(r, root, "text_config");
    if (!text) text = root;
    const json_t *sparse = config_object(r, text, "sparse_attention_config");
    read_kind(r, root, text, c);
    c->layers = config_int(r, text, "num_hidden_layers", 1, CONFIG_MAX_LAYERS, CONFIG_REQUIRED);
    c->hidden = config_int(r, text, "hidden_size", 32, 1 << 16, CONFIG_REQUIRED);
    if (c->hidden % 32) config_bad(r, "hidden_size", "hidden_size is %d; it must be a multiple of 32", c->hidden);
    c->vocab = config_int(r, text, "vocab_size", 1, 1 << 24, CONFIG_REQUIRED);
    c->max_positions = config_int(r, text, "max_position_embeddings", 1, 1 << 30, CONFIG_REQUIRED);
    c->norm_eps = config_number(r, text, "rms_norm_eps", 1e-12, 1e-1, NAN);
    const json_t *tied = config_get(text, "tie_word_embeddings") ? text : root;
    c->tied_head = config_bool(r, tied, "tie_word_embeddings", false);
    c->mtp_modules = config_int(r, text, "num_mtp_modules", 0, 16, 0);
    read_attention(r, text, c);
    read_layer_kinds(r, text, sparse, c);
    if (memchr(c->sparse, 1, (size_t)c->layers)) read_indexer(r, text, sparse, c);
    read_feed_forward(r, text, c);
    read_tokens(r, root, text, c);
    read_vision(r, root, c);
    read_quantization(r, root, text, c);
}

hy_status config_parse(const char *name, const char *json, size_t length, config *out, hy_error *err)
{
    config_reader r = {.name = name, .err = err};
    json_t *root = config_reader_parse(&r, json, length);
    if (!root) return r.status;
    config c;
    memset(&c, 0, sizeof c); /* padding too, so that configs compare as bytes */
    read_all(&r, root, &c);
    json_decref(root);
    if (r.status == HY_OK) memcpy(out, &c, sizeof c);
    return r.status;
}

hy_status config_load(const char *path, config *out, hy_error *err)
{
    char *json = NULL;
    size_t length;
    hy_status status = file_read(path, FILE_LIMIT, &json, &length, err);
    if (status == HY_OK) status = config_parse(path, json, length, out, err);
    free(json);
    return status;
}
