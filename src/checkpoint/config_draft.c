/* The drafter: its config file in its spellings, and the drafter that belongs to a target. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/config.h"
#include "checkpoint/config_reader.h"

enum { DRAFT_MAX_LAYERS = 64, DRAFT_BLOCK_LIMIT = HY_MAX_DRAFTS, WIDTH_LIMIT = 1 << 20 };

/* `first`: what the file calls the first layer. */
static void read_taps(config_reader *r, const json_t *o, const char *key, int first, draft_config *d)
{
    const json_t *list = config_get(o, key);
    size_t n = json_array_size(list);
    if (n == 0 || n > CONFIG_MAX_TAPS) {
        config_bad(r, key, "%s lists %zu layers; 1 to %d are supported", key, n, CONFIG_MAX_TAPS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(list, i);
        json_int_t layer = json_is_integer(e) ? json_integer_value(e) - first : -1;
        if (layer < 0 || layer >= CONFIG_MAX_LAYERS || (i && layer < d->taps[i - 1])) {
            config_bad(r, key, "%s does not list layers of the target in ascending order", key);
            return;
        }
        d->taps[i] = (int)layer;
    }
    d->tap_count = (int)n;
}

/* What the drafter's network is fixed to: dense, windowed in every layer, plain Markov head, no second context path. */
static void check_kind(config_reader *r, const json_t *root, const json_t *o, const draft_config *d)
{
    uint8_t flags[DRAFT_MAX_LAYERS] = {0};
    if (config_flags(r, o, "moe_layer_freq", d->layers, flags) && memchr(flags, 1, sizeof flags))
        config_bad(r, "moe_layer_freq", "a drafter with experts is not supported");
    config_words(r, o, "layer_types", d->layers, "sliding_attention", NULL, flags);
    if (config_get(o, "sparse_attention_config"))
        config_bad(r, "sparse_attention_config", "a drafter with sparse attention is not supported");
    config_want_string(r, o, "dspark_markov_head_type", "vanilla");
    config_want_bool(r, o, "dspark_use_dense_ffn", true);
    config_want_bool(r, o, "dspark_hybrid_context_fusion", false);
    config_want_bool(r, config_object(r, o, "dspark_config"), "hybrid_context_fusion", false);
    config_want_bool(r, o, "use_gemma_norm", true);
    config_want_bool(r, o, "use_qk_norm", true);
    config_want_string(r, o, "qk_norm_type", "per_head");
    config_want_string(r, o, "hidden_act", "swigluoai");
    const json_t *q = config_object(r, root, "quantization_config");
    config_want_string(r, q ? q : config_object(r, o, "quantization_config"), "quant_method", "mxfp8");
}

/* Rotary embedding, norms and activation; what is absent stays 0. */
static void read_numbers(config_reader *r, const json_t *o, draft_config *d)
{
    static const char *const places[] = {"rope_parameters", "rope_scaling"}, *const keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) config_want_string(r, config_object(r, o, places[i]), keys[k], "default");
    const json_t *parameters = config_object(r, o, "rope_parameters");
    const json_t *theta = config_get(parameters, "rope_theta") ? parameters : o;
    const json_t *part = config_get(o, "partial_rotary_factor") ? o : parameters;
    float factor = config_number(r, part, "partial_rotary_factor", 0, 1, 0);
    int derived = (int)lroundf(factor * (float)d->head_dim);
    d->rope_theta = config_number(r, theta, "rope_theta", 1, 1e12, 0);
    d->rotary_dim = config_int(r, o, "rotary_dim", 2, d->head_dim, derived);
    if (d->rotary_dim % 2 || (derived && derived != d->rotary_dim))
        config_bad(r, "rotary_dim", "rotary_dim %d is odd or not partial_rotary_factor %g of head_dim %d",
                   d->rotary_dim, (double)factor, d->head_dim);
    d->norm_eps = config_number(r, o, "rms_norm_eps", 1e-12, 1e-1, 0);
    d->swiglu_alpha = config_number(r, o, "swiglu_alpha", 1e-3, 1e3, 0);
    d->swiglu_limit = config_number(r, o, "swiglu_limit", 1e-3, 1e6, 0);
}

static void read_sizes(config_reader *r, const json_t *o, const char *width, int fallback, draft_config *d)
{
    d->layers = config_int(r, o, "num_hidden_layers", 1, DRAFT_MAX_LAYERS, CONFIG_REQUIRED);
    d->hidden = config_int(r, o, "hidden_size", 32, 1 << 16, CONFIG_REQUIRED);
    d->vocab = config_int(r, o, "vocab_size", 1, 1 << 24, CONFIG_REQUIRED);
    d->heads = config_int(r, o, "num_attention_heads", 1, 1024, CONFIG_REQUIRED);
    d->kv_heads = config_int(r, o, "num_key_value_heads", 1, 1024, CONFIG_REQUIRED);
    d->head_dim = config_int(r, o, "head_dim", 2, 1024, CONFIG_REQUIRED);
    d->dense_width = config_int(r, o, width, 32, WIDTH_LIMIT, fallback);
    if (d->hidden % 32 || d->dense_width % 32 || d->heads * d->head_dim % 32)
        config_bad(r, "hidden_size", "hidden size %d, feed-forward width %d or %d heads of %d are no multiples of 32",
                   d->hidden, d->dense_width, d->heads, d->head_dim);
    if (d->heads % d->kv_heads || d->head_dim % 2)
        config_bad(r, "num_attention_heads", "%d query heads, %d key/value heads of %d do not go together", d->heads,
                   d->kv_heads, d->head_dim);
}

static void check_window(config_reader *r, const char *key, const draft_config *d)
{
    if (d->window && d->window < d->block)
        config_bad(r, key, "%s %d is smaller than a block of %d drafts", key, d->window, d->block);
}

static void read_released(config_reader *r, const json_t *root, draft_config *d)
{
    const json_t *o = config_object(r, root, "text_config");
    if (!o) o = root;
    int dense = config_int(r, o, "dense_intermediate_size", 32, WIDTH_LIMIT, -1);
    read_sizes(r, o, "dspark_ffn_hidden_size", dense > 0 ? dense : CONFIG_REQUIRED, d);
    d->window = config_int(r, o, "sliding_window", 1, 1 << 30, CONFIG_REQUIRED);
    d->block = config_int(r, o, "dspark_block_size", 1, DRAFT_BLOCK_LIMIT, CONFIG_REQUIRED);
    check_window(r, "sliding_window", d);
    d->noise_token = config_int(r, o, "dspark_noise_token_id", 0, d->vocab - 1, CONFIG_REQUIRED);
    d->markov_rank = config_int(r, o, "dspark_markov_rank", 1, 1 << 16, CONFIG_REQUIRED);
    d->confidence_head = config_bool(r, o, "enable_confidence_head", false);
    d->confidence_with_markov = config_bool(r, o, "confidence_head_with_markov", false);
    read_numbers(r, o, d);
    read_taps(r, o, "dspark_target_layer_ids", 0, d);
    check_kind(r, root, o, d);
}

/* ---- Qwen3 ------------------------------------------------------------------------------------------------------- */

/* The window of all layers: what transformers derives from other fields is not asked for, the file's own fields count.
 */
static void read_layer_types(config_reader *r, const json_t *o, draft_config *d)
{
    uint8_t windowed[DRAFT_MAX_LAYERS] = {0};
    if (!config_words(r, o, "layer_types", d->layers, "sliding_attention", "full_attention", windowed) &&
        config_bool(r, o, "use_sliding_window", false))
        memset(windowed, 1, sizeof windowed);
    for (int i = 1; i < d->layers; i++)
        if (windowed[i] != windowed[0])
            config_bad(r, "layer_types", "layer_types: a window in some layers only is not supported");
    if (windowed[0]) d->window = config_int(r, o, "sliding_window", 1, 1 << 30, CONFIG_REQUIRED);
}

/* DeepSpec has the drafter's fields beside the network's, NVIDIA in dflash_config, speculators the network's in
 * transformer_layer_config. */
static void read_qwen3(config_reader *r, const json_t *root, bool speculators, draft_config *d)
{
    const json_t *layer = config_object(r, root, "transformer_layer_config");
    const json_t *flash = config_object(r, root, "dflash_config");
    const json_t *o = speculators && layer ? layer : root, *f = flash ? flash : root;
    read_sizes(r, o, "intermediate_size", CONFIG_REQUIRED, d);
    d->block = config_int(r, f, "block_size", 1, DRAFT_BLOCK_LIMIT, CONFIG_REQUIRED);
    d->noise_token = config_int(r, f, "mask_token_id", 0, d->vocab - 1, CONFIG_REQUIRED);
    d->markov_rank = config_int(r, f, "markov_rank", 1, 1 << 16, CONFIG_REQUIRED);
    d->confidence_head = config_bool(r, f, flash ? "use_confidence_head" : "enable_confidence_head", false);
    d->confidence_with_markov = config_bool(r, f, "confidence_head_with_markov", flash != NULL);
    read_taps(r, f, speculators ? "aux_hidden_state_layer_ids" : "target_layer_ids", speculators, d);
    if (flash && config_get(flash, "use_swa")) {
        bool windowed = config_bool(r, flash, "use_swa", false);
        if (windowed) d->window = config_int(r, flash, "swa_window_size", 1, 1 << 30, CONFIG_REQUIRED);
    } else {
        read_layer_types(r, o, d);
    }
    check_window(r, "sliding_window", d);
    if (speculators && config_get(root, "sample_from_anchor") == NULL)
        config_bad(r, "sample_from_anchor", "sample_from_anchor is missing; only true is supported");
    if (speculators && d->window && !config_bool(r, root, "sliding_window_non_causal", false))
        config_bad(r, "sliding_window_non_causal",
                   "sliding_window_non_causal is not true: causal blocks of drafts are "
                   "not supported");
    config_want_bool(r, root, "sample_from_anchor", true);
    config_want_bool(r, root, "is_causal", false);
    config_want_bool(r, flash, "causal", false);
    config_want_string(r, flash, "projector_type", "dspark");
    config_want_string(r, f, "markov_head_type", "vanilla");
    config_want_int(r, root, "draft_vocab_size", d->vocab);
    config_want_string(r, o, "hidden_act", "silu");
    config_want_bool(r, o, "attention_bias", false);
    if (config_object(r, root, "quantization_config"))
        config_bad(r, "quantization_config", "a quantised drafter of this family is not supported");
    read_numbers(r, o, d);
    if (d->rope_theta == 0) config_bad(r, "rope_theta", "rope_theta is missing");
    if (d->norm_eps == 0) config_bad(r, "rms_norm_eps", "rms_norm_eps is missing");
    if (!d->rotary_dim) d->rotary_dim = d->head_dim;
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

static const char *architecture(const json_t *root)
{
    const json_t *names = config_get(root, "architectures");
    if (!names) names = config_get(config_get(root, "text_config"), "architectures");
    const char *name = json_string_value(json_array_get(names, 0));
    return name ? name : "";
}

hy_status draft_config_parse(const char *name, const char *json, size_t length, draft_config *out, hy_error *err)
{
    config_reader r = {.name = name, .err = err};
    json_t *root = config_reader_parse(&r, json, length);
    if (!root) return r.status;
    draft_config d;
    memset(&d, 0, sizeof d);
    const char *name_of = architecture(root);
    bool speculators = strcmp(name_of, "DSparkSpeculator") == 0;
    if (speculators || strcmp(name_of, "Qwen3DSparkModel") == 0) {
        d.family = DRAFT_QWEN3;
        read_qwen3(&r, root, speculators, &d);
    } else if (strcmp(name_of, "DSparkMiniMaxDraftModel") == 0) {
        read_released(&r, root, &d);
    } else {
        config_bad(&r, "architectures",
                   "the drafter \"%.80s\" is not supported; \"DSparkMiniMaxDraftModel\", \"Qwen3DSparkModel\" and "
                   "\"DSparkSpeculator\" are",
                   name_of);
    }
    json_decref(root);
    if (r.status == HY_OK) memcpy(out, &d, sizeof d);
    return r.status;
}

hy_status draft_config_fit(const char *path, draft_config *d, const config *target, hy_error *err)
{
    if (d->hidden != target->hidden || d->vocab != target->vocab)
        return error_at(
            err, HY_BAD_MODEL, path,
            "the drafter has hidden size %d and vocabulary %d, the target %d and %d; they do not belong together",
            d->hidden, d->vocab, target->hidden, target->vocab);
    for (int i = 0; i < d->tap_count; i++)
        if (d->taps[i] >= target->layers)
            return error_at(err, HY_BAD_MODEL, path, "the drafter reads layer %d of a target with %d layers",
                            d->taps[i], target->layers);
    if (!d->rotary_dim) d->rotary_dim = target->rotary_dim;
    if (d->rotary_dim > d->head_dim)
        return error_at(err, HY_BAD_MODEL, path, "the target's rotary_dim %d does not fit the drafter's heads of %d",
                        d->rotary_dim, d->head_dim);
    if (d->rope_theta == 0) d->rope_theta = target->rope_theta;
    if (d->norm_eps == 0) d->norm_eps = target->norm_eps;
    if (d->swiglu_alpha == 0) d->swiglu_alpha = target->swiglu_alpha;
    if (d->swiglu_limit == 0) d->swiglu_limit = target->swiglu_limit;
    return HY_OK;
}

draft_config config_drafter(const config *target)
{
    static const int published[] = {3, 17, 31, 45, 59}; /* of the 60-layer release */
    draft_config d;
    memset(&d, 0, sizeof d);
    d.layers = 5, d.tap_count = 5;
    d.hidden = target->hidden, d.vocab = target->vocab;
    d.heads = target->heads, d.kv_heads = target->kv_heads, d.head_dim = target->head_dim;
    d.dense_width = target->dense_width ? target->dense_width : 2 * target->hidden;
    d.window = 4096, d.block = 7, d.markov_rank = 256;
    /* 200058 of 200064, the special token that the release feeds as noise. */
    d.noise_token = target->vocab > 6 ? target->vocab - 6 : 0;
    d.confidence_head = d.confidence_with_markov = true;
    d.rotary_dim = target->rotary_dim, d.rope_theta = target->rope_theta, d.norm_eps = target->norm_eps;
    d.swiglu_alpha = target->swiglu_alpha, d.swiglu_limit = target->swiglu_limit;
    for (int i = 0; i < d.tap_count; i++) {
        int tap = (i + 1) * target->layers / d.tap_count - 1;
        d.taps[i] = target->layers == 60 ? published[i] : tap > 0 ? tap : 0;
    }
    return d;
}
