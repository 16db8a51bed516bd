/* Writing config.json in the published spelling, for checkpoints that `synth` and `quantize` make. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "checkpoint/config.h"
#include "checkpoint/layout.h"

static void put_int(json_writer *w, const char *key, int64_t value)
{
    writer_key(w, key);
    writer_integer(w, value);
}

/* A float that a file gave as a short decimal is written as that decimal again. */
static void put_number(json_writer *w, const char *key, float value)
{
    char text[32];
    writer_key(w, key);
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    writer_number(w, strtod(text, NULL));
}

static void put_bool(json_writer *w, const char *key, bool value)
{
    writer_key(w, key);
    writer_bool(w, value);
}

static void put_text(json_writer *w, const char *key, const char *value)
{
    writer_key(w, key);
    writer_text(w, value);
}

static void put_words(json_writer *w, const char *key, const char *const *words, size_t count)
{
    writer_key(w, key);
    writer_array(w);
    for (size_t i = 0; i < count; i++) writer_text(w, words[i]);
    writer_end(w);
}

static void put_flags(json_writer *w, const char *key, const uint8_t *flags, int count)
{
    writer_key(w, key);
    writer_array(w);
    for (int i = 0; i < count; i++) writer_integer(w, flags[i]);
    writer_end(w);
}

static void put_sparse(json_writer *w, const config *c)
{
    writer_key(w, "sparse_attention_config");
    if (!memchr(c->sparse, 1, (size_t)c->layers)) {
        writer_null(w);
        return;
    }
    writer_object(w);
    put_bool(w, "use_sparse_attention", true);
    put_int(w, "sparse_index_dim", c->index_dim);
    put_int(w, "sparse_num_index_heads", c->index_heads);
    put_int(w, "sparse_topk_blocks", c->index_top);
    put_int(w, "sparse_block_size", c->index_block);
    put_text(w, "sparse_score_type", "max");
    put_int(w, "sparse_init_block", 0);
    put_int(w, "sparse_local_block", c->index_local);
    put_flags(w, "sparse_attention_freq", c->sparse, c->layers);
    put_flags(w, "sparse_disable_index_value", c->sparse, c->layers);
    writer_end(w);
}

static void put_text_config(json_writer *w, const config *c)
{
    static const char *const names[] = {"MiniMaxM3SparseForCausalLM"};
    writer_key(w, "text_config");
    writer_object(w);
    put_words(w, "architectures", names, 1);
    put_int(w, "vocab_size", c->vocab);
    put_int(w, "hidden_size", c->hidden);
    put_int(w, "num_hidden_layers", c->layers);
    put_int(w, "num_attention_heads", c->heads);
    put_int(w, "num_key_value_heads", c->kv_heads);
    put_int(w, "head_dim", c->head_dim);
    put_int(w, "max_position_embeddings", c->max_positions);
    put_number(w, "rms_norm_eps", c->norm_eps);
    put_bool(w, "use_gemma_norm", true);
    put_bool(w, "attention_output_gate", false);
    put_number(w, "rope_theta", c->rope_theta);
    put_int(w, "rotary_dim", c->rotary_dim);
    put_text(w, "hidden_act", "swigluoai");
    put_number(w, "swiglu_alpha", c->swiglu_alpha);
    put_number(w, "swiglu_limit", c->swiglu_limit);
    put_bool(w, "use_qk_norm", true);
    put_text(w, "qk_norm_type", "per_head");
    put_bool(w, "tie_word_embeddings", c->tied_head);
    if (c->dense_width) put_int(w, "dense_intermediate_size", c->dense_width);
    if (c->experts) {
        put_int(w, "intermediate_size", c->expert_width);
        if (c->shared_width) put_int(w, "shared_intermediate_size", c->shared_width);
        put_int(w, "num_local_experts", c->experts);
        put_int(w, "num_experts_per_tok", c->experts_per_token);
        put_int(w, "n_shared_experts", c->shared_expert);
        put_text(w, "scoring_func", "sigmoid");
        put_bool(w, "use_routing_bias", true);
        put_number(w, "routed_scaling_factor", c->routed_scaling);
    }
    put_flags(w, "moe_layer_freq", c->moe, c->layers);
    put_int(w, "num_mtp_modules", c->mtp_modules);
    if (c->bos >= 0) put_int(w, "bos_token_id", c->bos);
    if (c->eos >= 0) put_int(w, "eos_token_id", c->eos);
    put_text(w, "dtype", "bfloat16");
    put_sparse(w, c);
    writer_end(w);
}

static void put_vision_config(json_writer *w, const config *c)
{
    writer_key(w, "vision_config");
    writer_object(w);
    put_int(w, "num_hidden_layers", c->vision_layers);
    put_int(w, "hidden_size", c->vision_hidden);
    put_int(w, "num_attention_heads", c->vision_heads);
    put_int(w, "intermediate_size", c->vision_width);
    put_int(w, "patch_size", c->vision_patch);
    put_int(w, "temporal_patch_size", c->vision_temporal);
    put_int(w, "spatial_merge_size", c->vision_merge);
    writer_end(w);
}

static void put_mxfp8(json_writer *w)
{
    put_text(w, "quant_method", "mxfp8");
    put_text(w, "activation_scheme", "dynamic");
    writer_key(w, "weight_block_size");
    writer_array(w);
    writer_integer(w, 1);
    writer_integer(w, 32);
    writer_end(w);
}

/* The modules that stay as they are: the ends, the vision parts and every router. */
static void put_ignored(json_writer *w, const char *key, const config *c)
{
    static const char *const fixed[] = {"lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector",
                                        "patch_merge_mlp"};
    writer_key(w, key);
    writer_array(w);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) writer_text(w, fixed[i]);
    for (int i = 0; i < c->layers; i++) {
        char name[96];
        if (!c->moe[i]) continue;
        snprintf(name, sizeof name, "language_model.model.layers.%d.block_sparse_moe.gate", i);
        writer_text(w, name);
    }
    writer_end(w);
}

/* ModelOpt names every quantised module with its algorithm. */
static void put_module(json_writer *w, int layer, const char *module, bool nvfp4)
{
    char name[128];
    snprintf(name, sizeof name, "language_model.model.layers.%d.%s", layer, module);
    writer_key(w, name);
    writer_object(w);
    put_text(w, "quant_algo", nvfp4 ? "NVFP4" : "MXFP8");
    if (nvfp4) put_int(w, "group_size", 16);
    writer_end(w);
}

static void put_modules(json_writer *w, const config *c)
{
    static const char *const attention[] = {"self_attn.q_proj", "self_attn.k_proj",       "self_attn.v_proj",
                                            "self_attn.o_proj", "self_attn.index_q_proj", "self_attn.index_k_proj"};
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char module[96];
    writer_key(w, "quantized_layers");
    writer_object(w);
    for (int l = 0; l < c->layers; l++) {
        for (int i = 0; i < (c->sparse[l] ? 6 : 4); i++) put_module(w, l, attention[i], false);
        for (int i = 0; i < 3 && (!c->moe[l] || c->shared_expert); i++) {
            snprintf(module, sizeof module, "%s.%s", c->moe[l] ? "block_sparse_moe.shared_experts" : "mlp", parts[i]);
            put_module(w, l, module, false);
        }
        for (int e = 0; e < (c->moe[l] ? c->experts : 0); e++)
            for (int i = 1; i <= 3; i++) {
                snprintf(module, sizeof module, "block_sparse_moe.experts.%d.w%d", e, i);
                put_module(w, l, module, true);
            }
    }
    writer_end(w);
}

static void put_quantization(json_writer *w, const config *c, layout_scheme scheme)
{
    if (scheme == SCHEME_BF16) return;
    writer_key(w, "quantization_config");
    writer_object(w);
    if (scheme == SCHEME_MODELOPT) {
        put_text(w, "quant_method", "modelopt");
        put_text(w, "quant_algo", "MIXED_PRECISION");
        writer_key(w, "kv_cache_quant_algo");
        writer_null(w);
        put_ignored(w, "exclude_modules", c);
        put_modules(w, c);
    } else {
        put_mxfp8(w);
        if (scheme == SCHEME_M31) {
            put_text(w, "moe_quant_algo", "NVFP4");
            put_text(w, "moe_quant_format", "nvfp4-pack-quantized");
        }
        put_ignored(w, "ignored_layers", c);
    }
    writer_end(w);
}

char *config_write(const config *c, int scheme, size_t *length)
{
    static const char *const names[] = {"MiniMaxM3SparseForConditionalGeneration"};
    buffer out = {0};
    json_writer w = {.out = &out};
    writer_object(&w);
    put_words(&w, "architectures", names, 1);
    put_text(&w, "model_type", c->model_type[0] ? c->model_type : "minimax_m3_vl");
    put_text_config(&w, c);
    if (c->vision_layers) {
        put_vision_config(&w, c);
        put_int(&w, "projector_hidden_size", c->projector_hidden);
    }
    if (c->image_token >= 0) put_int(&w, "image_token_index", c->image_token);
    if (c->video_token >= 0) put_int(&w, "video_token_index", c->video_token);
    put_bool(&w, "tie_word_embeddings", c->tied_head);
    put_text(&w, "torch_dtype", "bfloat16");
    put_quantization(&w, c, (layout_scheme)scheme);
    writer_end(&w);
    return buffer_take(&out, length);
}

static void put_taps(json_writer *w, const char *key, const draft_config *d)
{
    writer_key(w, key);
    writer_array(w);
    for (int i = 0; i < d->tap_count; i++) writer_integer(w, d->taps[i]);
    writer_end(w);
}

static void put_draft_numbers(json_writer *w, const draft_config *d)
{
    if (d->norm_eps > 0) put_number(w, "rms_norm_eps", d->norm_eps);
    if (d->rotary_dim) put_int(w, "rotary_dim", d->rotary_dim);
    if (d->rope_theta > 0) put_number(w, "rope_theta", d->rope_theta);
    if (d->swiglu_alpha > 0) put_number(w, "swiglu_alpha", d->swiglu_alpha);
    if (d->swiglu_limit > 0) put_number(w, "swiglu_limit", d->swiglu_limit);
}

static void put_draft_sizes(json_writer *w, const draft_config *d)
{
    put_int(w, "num_hidden_layers", d->layers);
    put_int(w, "hidden_size", d->hidden);
    put_int(w, "vocab_size", d->vocab);
    put_int(w, "num_attention_heads", d->heads);
    put_int(w, "num_key_value_heads", d->kv_heads);
    put_int(w, "head_dim", d->head_dim);
}

/* A Qwen3DSparkModel as DeepSpec writes it. */
static void put_qwen3(json_writer *w, const draft_config *d)
{
    static const char *const names[] = {"Qwen3DSparkModel"};
    put_words(w, "architectures", names, 1);
    put_draft_sizes(w, d);
    put_int(w, "intermediate_size", d->dense_width);
    put_text(w, "hidden_act", "silu");
    writer_key(w, "layer_types");
    writer_array(w);
    for (int i = 0; i < d->layers; i++) writer_text(w, d->window ? "sliding_attention" : "full_attention");
    writer_end(w);
    if (d->window) put_int(w, "sliding_window", d->window);
    put_draft_numbers(w, d);
    put_int(w, "block_size", d->block);
    put_taps(w, "target_layer_ids", d);
    put_int(w, "mask_token_id", d->noise_token);
    put_int(w, "markov_rank", d->markov_rank);
    put_text(w, "markov_head_type", "vanilla");
    put_bool(w, "enable_confidence_head", d->confidence_head);
    put_bool(w, "confidence_head_with_markov", d->confidence_with_markov);
}

static void put_released(json_writer *w, const draft_config *d)
{
    static const char *const names[] = {"DSparkMiniMaxDraftModel"};
    put_words(w, "architectures", names, 1);
    writer_key(w, "text_config");
    writer_object(w);
    put_draft_sizes(w, d);
    put_int(w, "dense_intermediate_size", d->dense_width);
    put_int(w, "dspark_ffn_hidden_size", d->dense_width);
    writer_key(w, "moe_layer_freq");
    writer_array(w);
    for (int i = 0; i < d->layers; i++) writer_integer(w, 0);
    writer_end(w);
    writer_key(w, "sparse_attention_config");
    writer_null(w);
    writer_key(w, "layer_types");
    writer_array(w);
    for (int i = 0; i < d->layers; i++) writer_text(w, "sliding_attention");
    writer_end(w);
    put_int(w, "sliding_window", d->window);
    put_draft_numbers(w, d);
    put_bool(w, "use_gemma_norm", true);
    put_int(w, "dspark_block_size", d->block);
    put_taps(w, "dspark_target_layer_ids", d);
    put_int(w, "dspark_noise_token_id", d->noise_token);
    put_int(w, "dspark_markov_rank", d->markov_rank);
    put_text(w, "dspark_markov_head_type", "vanilla");
    put_bool(w, "dspark_use_dense_ffn", true);
    put_bool(w, "dspark_hybrid_context_fusion", false);
    put_bool(w, "enable_confidence_head", d->confidence_head);
    put_bool(w, "confidence_head_with_markov", d->confidence_with_markov);
    writer_end(w);
    writer_key(w, "quantization_config");
    writer_object(w);
    put_mxfp8(w);
    writer_end(w);
}

char *draft_config_write(const draft_config *d, size_t *length)
{
    buffer out = {0};
    json_writer w = {.out = &out};
    writer_object(&w);
    if (d->family == DRAFT_QWEN3)
        put_qwen3(&w, d);
    else
        put_released(&w, d);
    writer_end(&w);
    return buffer_take(&out, length);
}
