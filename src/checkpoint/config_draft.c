/* The drafter: its config file in the spelling of the release, and the drafter that belongs to a target. */
#include <math.h>
#include <string.h>

#include "checkpoint/config.h"
#include "checkpoint/config_reader.h"

enum { DRAFT_MAX_LAYERS = 64, WIDTH_LIMIT = 1 << 20 };

static void read_taps(config_reader *r, const json_t *o, draft_config *d)
{
    static const char key[] = "dspark_target_layer_ids";
    const json_t *list = config_get(o, key);
    size_t n = json_array_size(list);
    if (n == 0 || n > CONFIG_MAX_TAPS) {
        config_bad(r, key, "%s lists %zu layers; 1 to %d are supported", key, n, CONFIG_MAX_TAPS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(list, i);
        json_int_t layer = json_is_integer(e) ? json_integer_value(e) : -1;
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
    const json_t *names = config_get(root, "architectures");
    if (!names) names = config_get(o, "architectures");
    const char *name = json_string_value(json_array_get(names, 0));
    if (!name || strcmp(name, "DSparkMiniMaxDraftModel") != 0)
        config_bad(r, "architectures", "the drafter \"%.80s\" is not supported; \"DSparkMiniMaxDraftModel\" is",
                   name ? name : "");
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
    const json_t *q = config_object(r, root, "quantization_config");
    config_want_string(r, q ? q : config_object(r, o, "quantization_config"), "quant_method", "mxfp8");
}

static void read_sizes(config_reader *r, const json_t *o, draft_config *d)
{
    d->layers = config_int(r, o, "num_hidden_layers", 1, DRAFT_MAX_LAYERS, CONFIG_REQUIRED);
    d->hidden = config_int(r, o, "hidden_size", 32, 1 << 16, CONFIG_REQUIRED);
    d->vocab = config_int(r, o, "vocab_size", 1, 1 << 24, CONFIG_REQUIRED);
    d->heads = config_int(r, o, "num_attention_heads", 1, 1024, CONFIG_REQUIRED);
    d->kv_heads = config_int(r, o, "num_key_value_heads", 1, 1024, CONFIG_REQUIRED);
    d->head_dim = config_int(r, o, "head_dim", 2, 1024, CONFIG_REQUIRED);
    int dense = config_int(r, o, "dense_intermediate_size", 32, WIDTH_LIMIT, -1);
    d->dense_width = config_int(r, o, "dspark_ffn_hidden_size", 32, WIDTH_LIMIT, dense > 0 ? dense : CONFIG_REQUIRED);
    if (d->hidden % 32 || d->dense_width % 32 || d->heads * d->head_dim % 32)
        config_bad(r, "hidden_size", "hidden size %d, feed-forward width %d or %d heads of %d are no multiples of 32",
                   d->hidden, d->dense_width, d->heads, d->head_dim);
    if (d->heads % d->kv_heads || d->head_dim % 2)
        config_bad(r, "num_attention_heads", "%d query heads, %d key/value heads of %d do not go together", d->heads,
                   d->kv_heads, d->head_dim);
    d->window = config_int(r, o, "sliding_window", 1, 1 << 30, CONFIG_REQUIRED);
    d->block = config_int(r, o, "dspark_block_size", 1, 64, CONFIG_REQUIRED);
    d->noise_token = config_int(r, o, "dspark_noise_token_id", 0, d->vocab - 1, CONFIG_REQUIRED);
    d->markov_rank = config_int(r, o, "dspark_markov_rank", 1, 1 << 16, CONFIG_REQUIRED);
    d->confidence_head = config_bool(r, o, "enable_confidence_head", false);
    d->confidence_with_markov = config_bool(r, o, "confidence_head_with_markov", false);
}

hy_status draft_config_parse(const char *name, const char *json, size_t length, draft_config *out, hy_error *err)
{
    config_reader r = {.name = name, .err = err};
    json_t *root = config_reader_parse(&r, json, length);
    if (!root) return r.status;
    const json_t *o = config_object(&r, root, "text_config");
    draft_config d;
    memset(&d, 0, sizeof d);
    if (!o) o = root;
    read_sizes(&r, o, &d);
    read_taps(&r, o, &d);
    check_kind(&r, root, o, &d);
    json_decref(root);
    if (r.status == HY_OK) memcpy(out, &d, sizeof d);
    return r.status;
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
    for (int i = 0; i < d.tap_count; i++) {
        int tap = (i + 1) * target->layers / d.tap_count - 1;
        d.taps[i] = target->layers == 60 ? published[i] : tap > 0 ? tap : 0;
    }
    return d;
}
