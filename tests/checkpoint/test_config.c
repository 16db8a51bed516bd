/* config.json: both spellings, the released geometries, and every refusal with the words that name its field. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/config.h"
#include "checkpoint/layout.h"

/* A small model in the published spelling: three layers, the first with dense feed-forward and dense attention. */
static const char published[] =
    "{\"architectures\":[\"MiniMaxM3SparseForConditionalGeneration\"],\"model_type\":\"minimax_m3_vl\",\"text_config\":"
    "{"
    "\"model_type\":\"minimax_m2\",\"vocab_size\":512,\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_"
    "heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":128,\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-06,"
    "\"use_gemma_norm\":true,\"attention_output_gate\":false,\"rope_theta\":5000000,\"rotary_dim\":64,"
    "\"partial_rotary_factor\":0.5,\"hidden_act\":\"swigluoai\",\"swiglu_alpha\":1.702,\"swiglu_limit\":7.0,"
    "\"use_qk_norm\":true,\"qk_norm_type\":\"per_head\",\"tie_word_embeddings\":false,\"intermediate_size\":96,"
    "\"shared_intermediate_size\":32,\"dense_intermediate_size\":128,\"num_local_experts\":16,\"num_experts_per_tok\":"
    "4,"
    "\"n_shared_experts\":1,\"scoring_func\":\"sigmoid\",\"use_routing_bias\":true,\"routed_scaling_factor\":2.0,"
    "\"moe_layer_freq\":[0,1,1],\"num_mtp_modules\":0,\"dtype\":\"bfloat16\",\"bos_token_id\":1,\"eos_token_id\":[2,5],"
    "\"sparse_attention_config\":{\"use_sparse_attention\":true,\"sparse_index_dim\":128,\"sparse_num_index_heads\":2,"
    "\"sparse_topk_blocks\":4,\"sparse_block_size\":128,\"sparse_score_type\":\"max\",\"sparse_init_block\":0,"
    "\"sparse_local_block\":1,\"sparse_attention_freq\":[0,1,1],\"sparse_disable_index_value\":[0,1,1]}},"
    "\"vision_config\":{\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":2,\"intermediate_size\":128,"
    "\"patch_size\":14,\"temporal_patch_size\":2,\"spatial_merge_size\":2},\"projector_hidden_size\":64,"
    "\"image_token_index\":500,\"video_token_index\":501,\"torch_dtype\":\"bfloat16\"}";

/* The same model as transformers 5 saves it. */
static const char native[] =
    "{\"architectures\":[\"MiniMaxM3SparseForConditionalGeneration\"],\"model_type\":\"minimax_m3_vl\",\"dtype\":"
    "\"bfloat16\","
    "\"text_config\":{\"model_type\":\"minimax_m3_vl_text\",\"vocab_size\":512,\"hidden_size\":64,\"num_hidden_"
    "layers\":3,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":128,\"max_position_embeddings\":8192,"
    "\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5000000.0,"
    "\"partial_rotary_factor\":0.5},\"rotary_dim\":64,\"hidden_act\":\"silu\",\"swiglu_alpha\":1.702,\"swiglu_limit\":"
    "7.0,"
    "\"tie_word_embeddings\":false,\"intermediate_size\":96,\"shared_intermediate_size\":32,\"dense_intermediate_"
    "size\":128,"
    "\"num_local_experts\":16,\"num_experts_per_tok\":4,\"routed_scaling_factor\":2.0,\"pad_token_id\":null,"
    "\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\"],"
    "\"layer_types\":[\"full_attention\",\"minimax_m3_sparse\",\"minimax_m3_sparse\"],\"bos_token_id\":1,\"eos_token_"
    "id\":2,"
    "\"index_n_heads\":2,\"index_head_dim\":128,\"index_block_size\":128,\"index_topk_blocks\":4,\"index_local_"
    "blocks\":1},"
    "\"vision_config\":{\"model_type\":\"minimax_m3_vl_vision\",\"num_hidden_layers\":2,\"hidden_size\":64,"
    "\"num_attention_heads\":2,\"intermediate_size\":128,\"patch_size\":14,\"temporal_patch_size\":2,"
    "\"spatial_merge_size\":2,\"rope_parameters\":{\"rope_type\":\"axial\",\"rope_theta\":10000.0}},"
    "\"projector_hidden_size\":64,\"image_token_index\":500,\"video_token_index\":501,\"tie_word_embeddings\":false}";

static config parsed(const char *json)
{
    config c;
    hy_error err = {0};
    if (config_parse("config.json", json, strlen(json), &c, &err) != HY_OK) fail_msg("%s", err.message);
    return c;
}

static void both_spellings(void **state)
{
    (void)state;
    config a = parsed(published), b = parsed(native);
    assert_false(a.transformers_spelling);
    assert_true(b.transformers_spelling);
    b.transformers_spelling = false;
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.layers, 3);
    assert_int_equal(a.rotary_dim, 64);
    assert_true(a.rope_theta == 5e6f && a.norm_eps == 1e-6f && a.routed_scaling == 2.0f);
    assert_true(a.swiglu_alpha == 1.702f && a.swiglu_limit == 7.0f);
    assert_true(!a.sparse[0] && a.sparse[1] && a.sparse[2] && !a.moe[0] && a.moe[1] && a.moe[2]);
    assert_int_equal(a.index_top, 4);
    assert_int_equal(a.index_block, 128);
    assert_int_equal(a.expert_width, 96);
    assert_int_equal(a.shared_width, 32);
    assert_int_equal(a.dense_width, 128);
    assert_true(a.shared_expert);
    assert_int_equal(a.eos, 2); /* the first of the list */
    assert_int_equal(a.image_token, 500);
    assert_int_equal(a.vision_layers, 2);
    assert_string_equal(a.quant_method, "");
}

/* ---- Changing one field ------------------------------------------------------------------------------------------ */

/* Sets a field of the text ("a.b" goes down; a value NULL removes it) and returns the new text. */
static char *changed(const char *json, const char *field, const char *value)
{
    json_t *root = json_loads(json, 0, NULL), *o = root;
    assert_non_null(root);
    char key[64];
    for (const char *dot; (dot = strchr(field, '.')); field = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - field), field);
        if (!json_object_get(o, key)) json_object_set_new(o, key, json_object());
        o = json_object_get(o, key);
    }
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        json_object_set_new(o, field, v);
    } else {
        assert_int_equal(json_object_del(o, field), 0);
    }
    char *out = json_dumps(root, 0);
    json_decref(root);
    return out;
}

typedef struct change {
    const char *field, *value, *words; /* words NULL: accepted */
} change;

static void check_changes(const char *json, const change *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *text = changed(json, list[i].field, list[i].value);
        config c;
        hy_error err = {0};
        hy_status status = config_parse("dir/config.json", text, strlen(text), &c, &err);
        if (list[i].words) {
            if (status != HY_BAD_MODEL) fail_msg("%s = %s gives status %d", list[i].field, list[i].value, status);
            if (!strstr(err.message, list[i].words)) fail_msg("\"%s\" does not say \"%s\"", err.message, list[i].words);
            assert_non_null(strstr(err.message, "config.json: "));
        } else if (status != HY_OK) {
            fail_msg("%s = %s: %s", list[i].field, list[i].value, err.message);
        }
        free(text);
    }
}

#define T "text_config."
#define S "text_config.sparse_attention_config."

static void refusals(void **state)
{
    (void)state;
    static const change list[] = {
        {"model_type", "\"llama\"", "model_type \"llama\" is not supported"},
        {"model_type", "7", "model_type is not a string"},
        {"architectures", "[\"DSparkMiniMaxDraftModel\"]", "is a drafter"},
        {"text_config", "[]", "text_config is not an object"},
        {T "num_hidden_layers", NULL, "num_hidden_layers is missing"},
        {T "num_hidden_layers", "0", "num_hidden_layers is 0"},
        {T "num_hidden_layers", "513", "num_hidden_layers is 513; it must be from 1 to 512"},
        {T "num_hidden_layers", "4", "has 3 entries for 4 layers"},
        {T "num_hidden_layers", "3.0", "not a whole number"},
        {T "hidden_size", "72", "hidden_size is 72; it must be a multiple of 32"},
        {T "hidden_size", "1000000000000", "hidden_size is 1000000000000"},
        {T "hidden_size", "\"64\"", "hidden_size is not a whole number"},
        {T "vocab_size", "-1", "vocab_size is -1"},
        {T "head_dim", "127", "head_dim is 127; it must be even"},
        {T "num_key_value_heads", "3", "num_attention_heads 8 is not a multiple of num_key_value_heads 3"},
        {T "rotary_dim", "130", "rotary_dim is 130"},
        {T "rotary_dim", "63", "rotary_dim is 63"},
        {T "rotary_dim", "32", "rotary_dim is 32 but partial_rotary_factor 0.5 of head_dim 128 makes 64"},
        {T "rms_norm_eps", "0", "rms_norm_eps is 0"},
        {T "rms_norm_eps", "true", "rms_norm_eps is not a number"},
        {T "rope_theta", NULL, "rope_theta is missing"},
        {T "rope_theta", "1e300", "rope_theta is 1e+300"},
        {T "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":2}", "rope type \"yarn\" is not supported"},
        {T "rope_scaling", "{\"type\":\"linear\"}", "rope type \"linear\" is not supported"},
        {T "rope_scaling", "{\"factor\":2}", "rope_scaling without a type"},
        {T "rope_parameters", "{\"rope_type\":\"longrope\"}", "rope type \"longrope\" is not supported"},
        {T "attention_output_gate", "true", "attention_output_gate is true"},
        {T "use_gemma_norm", "false", "use_gemma_norm is false"},
        {T "use_gemma_norm", "1", "use_gemma_norm is neither true nor false"},
        {T "use_qk_norm", "false", "use_qk_norm is false"},
        {T "qk_norm_type", "\"per_layer\"", "qk_norm_type is \"per_layer\""},
        {T "hidden_act", "\"gelu\"", "hidden_act \"gelu\" is not supported"},
        {T "swiglu_beta", "0.5", "swiglu_beta"},
        {T "swiglu_limit", "-7", "swiglu_limit is -7"},
        {T "scoring_func", "\"softmax\"", "scoring_func is \"softmax\""},
        {T "use_routing_bias", "false", "use_routing_bias is false"},
        {T "n_shared_experts", "2", "n_shared_experts is 2"},
        {T "n_group", "8", "n_group is 8"},
        {T "num_experts_per_tok", "17", "num_experts_per_tok is 17; it must be from 1 to 16"},
        {T "num_local_experts", "0", "num_local_experts is 0"},
        {T "intermediate_size", "100", "intermediate_size is 100; it must be a multiple of 32"},
        {T "dense_intermediate_size", NULL, "dense_intermediate_size is missing"},
        {T "moe_layer_freq", NULL, "neither moe_layer_freq nor mlp_layer_types"},
        {T "moe_layer_freq", "1", "moe_layer_freq is not a list"},
        {T "moe_layer_freq", "[0,1]", "moe_layer_freq has 2 entries for 3 layers"},
        {T "moe_layer_freq", "[0,1,2]", "moe_layer_freq is neither 0 nor 1 for layer 2"},
        {T "mlp_layer_types", "[\"dense\",\"dense\",\"sparse\"]", "name different layers"},
        {T "layer_types", "[\"full_attention\",\"full_attention\",\"minimax_m3_sparse\"]", "name different layers"},
        {T "eos_token_id", "512", "eos_token_id is not a token id below 512"},
        {T "eos_token_id", "[]", "eos_token_id lists 0 ids"},
        {T "bos_token_id", "\"x\"", "bos_token_id is not a token id"},
        {S "sparse_block_size", "64", "sparse_block_size is 64; only blocks of 128"},
        {S "sparse_block_size", NULL, "sparse_block_size is missing"},
        {S "sparse_init_block", "1", "sparse_init_block is 1; only 0"},
        {S "sparse_score_type", "\"mean\"", "sparse_score_type is \"mean\"; only \"max\""},
        {S "sparse_local_block", "0", "sparse_local_block is 0"},
        {S "sparse_local_block", "5", "4 top blocks do not hold the 5 local blocks"},
        {S "sparse_num_index_heads", "4", "4 index heads for 2 key/value heads"},
        {S "sparse_index_dim", "64", "index dimension is 64 and head_dim is 128"},
        {S "sparse_attention_freq", "[1]", "sparse_attention_freq has 1 entries for 3 layers"},
        {S "sparse_attention_freq", NULL, "no sparse_attention_freq"},
        {S "sparse_disable_index_value", "[0,1,0]", "layer 2 wants index values"},
        {"vision_config.num_attention_heads", "3", "not a multiple of its 3 heads"},
        {"quantization_config", "{\"quant_method\":\"awq\"}", "quant_method \"awq\" is not supported"},
        {"quantization_config", "{\"quant_method\":\"fp8\"}", "quant_method \"fp8\" is not supported"},
        {"quantization_config", "{}", "no quant_method"},
        {"quantization_config", "{\"quant_method\":\"mxfp8\",\"weight_block_size\":[128,128]}", "weight_block_size"},
        {"quantization_config", "{\"quant_method\":\"mxfp8\",\"moe_quant_algo\":\"INT4\"}",
         "moe_quant_algo is \"INT4\""},
        {"quantization_config", "{\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8_AWQ\"}",
         "quant_algo \"W4A8_AWQ\""},
        {"quantization_config",
         "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{\"m.q\":{\"quant_"
         "algo\":"
         "\"FP8\"}}}",
         "quant_algo \"FP8\" of m.q"},
        {"quantization_config", "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}",
         "format \"pack-quantized\" is not supported"},
        {"quantization_config",
         "{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"config_groups\":{\"group_0\":{"
         "\"weights\":{"
         "\"num_bits\":4,\"type\":\"int\",\"group_size\":128,\"strategy\":\"group\"}}}}",
         "quantisation group group_0"},
    };
    check_changes(published, list, sizeof list / sizeof list[0]);
    static const change others[] = {
        {T "rope_parameters", "{\"rope_type\":\"yarn\",\"rope_theta\":5e6}", "rope type \"yarn\" is not supported"},
        {T "rope_parameters", "{\"rope_type\":\"default\"}", "rope_theta is missing"},
        {T "layer_types", "[\"full_attention\",\"sliding_attention\",\"minimax_m3_sparse\"]",
         "layer_types of layer 1 is \"sliding_attention\""},
        {T "layer_types", "[\"full_attention\",3,\"minimax_m3_sparse\"]", "layer_types of layer 1 is no string"},
        {T "layer_types", NULL, "no layer_types says which layers are sparse"},
        {T "mlp_layer_types", "[\"dense\"]", "mlp_layer_types has 1 entries"},
        {T "index_block_size", "16", "index_block_size is 16; only blocks of 128"},
        {T "index_topk_blocks", NULL, "index_topk_blocks is missing"},
    };
    check_changes(native, others, sizeof others / sizeof others[0]);
}

static void accepted(void **state)
{
    (void)state;
    static const change list[] = {
        {T "eos_token_id", NULL, NULL},
        {T "partial_rotary_factor", NULL, NULL},
        {T "rotary_dim", NULL, NULL}, /* follows from the factor */
        {T "rope_scaling", "null", NULL},
        {T "rope_scaling", "{\"rope_type\":\"default\"}", NULL},
        {T "moe_layer_freq", "[false,true,true]", NULL},
        {T "hidden_act", "\"silu\"", NULL},
        {T "mlp_layer_types", "[\"dense\",\"sparse\",\"sparse\"]", NULL}, /* both, and they agree */
        {T "shared_intermediate_size", "3072", NULL},
        {S "sparse_disable_index_value", NULL, NULL},
        {"vision_config", NULL, NULL},
        {"model_type", "\"minimax_m3_1_vl\"", NULL},
        {"some_field_of_the_future", "{\"a\":[1]}", NULL},
    };
    check_changes(published, list, sizeof list / sizeof list[0]);
}

static void dense_attention(void **state)
{
    (void)state;
    static const struct {
        const char *field, *value;
    } ways[] = {{S "use_sparse_attention", "false"},
                {T "sparse_attention_config", NULL},
                {T "sparse_attention_config", "null"},
                {S "sparse_attention_freq", "[0,0,0]"}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char *text = changed(published, ways[i].field, ways[i].value);
        config c = parsed(text);
        assert_true(!c.sparse[0] && !c.sparse[1] && !c.sparse[2]);
        assert_int_equal(c.index_heads + c.index_dim + c.index_block + c.index_top + c.index_local, 0);
        assert_true(c.moe[1]); /* the other list is not touched */
        free(text);
    }
}

static void top_level_fields(void **state)
{
    (void)state;
    /* a text-only file: the fields of text_config at the top */
    json_t *root = json_loads(published, 0, NULL), *text = json_incref(json_object_get(root, "text_config"));
    json_object_del(root, "text_config");
    json_object_del(text, "model_type");
    json_object_update(root, text);
    char *flat = json_dumps(root, 0);
    config a = parsed(published), b = parsed(flat);
    assert_memory_equal(&a, &b, sizeof a);
    free(flat);
    json_decref(text);
    json_decref(root);
}

static void quantisation(void **state)
{
    (void)state;
    static const struct {
        const char *value, *method, *moe, *format;
    } list[] = {
        {"{\"quant_method\":\"mxfp8\",\"weight_block_size\":[1,32]}", "mxfp8", "", ""},
        {"{\"quant_method\":\"mxfp8\",\"moe_quant_algo\":\"NVFP4\",\"moe_quant_format\":\"nvfp4-pack-quantized\"}",
         "mxfp8", "NVFP4", "nvfp4-pack-quantized"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"kv_cache_quant_algo\":null,\"quantized_"
         "layers\":{"
         "\"a\":{\"quant_algo\":\"MXFP8\"},\"b\":{\"quant_algo\":\"NVFP4\",\"group_size\":16}}}",
         "modelopt", "NVFP4", ""},
        {"{\"quant_method\":\"modelopt\",\"quantization\":{\"quant_algo\":\"MXFP8\"}}", "modelopt", "", ""},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\",\"config_groups\":{\"group_0\":{"
         "\"weights\":{\"num_bits\":4,\"type\":\"float\",\"group_size\":16,\"strategy\":\"tensor_group\"},"
         "\"targets\":[\"Linear\"]}},\"ignore\":[\"lm_head\"]}",
         "compressed-tensors", "NVFP4", "nvfp4-pack-quantized"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\",\"config_groups\":{\"a\":{"
         "\"weights\":{"
         "\"num_bits\":4,\"type\":\"float\",\"group_size\":16,\"strategy\":\"tensor_group\"}},\"b\":{\"weights\":{"
         "\"num_bits\":8,\"type\":\"float\",\"group_size\":32,\"strategy\":\"group\"}}}}",
         "compressed-tensors", "NVFP4", "nvfp4-pack-quantized"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char *text = changed(published, "quantization_config", list[i].value);
        config c = parsed(text);
        assert_string_equal(c.quant_method, list[i].method);
        assert_string_equal(c.moe_quant, list[i].moe);
        assert_string_equal(c.moe_quant_format, list[i].format);
        free(text);
    }
}

static void broken_json(void **state)
{
    (void)state;
    static const char *const texts[] = {"",           "{",    "[]",         "null", "{\"a\":1,\"a\":2}",
                                        "{\"a\":1}}", "\xFF", "{\"a\":nan}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        config c;
        draft_config d;
        hy_error err = {0};
        assert_int_equal(config_parse("config.json", texts[i], strlen(texts[i]), &c, &err), HY_BAD_MODEL);
        assert_non_null(strstr(err.message, "config.json"));
        assert_int_equal(draft_config_parse("config.json", texts[i], strlen(texts[i]), &d, &err), HY_BAD_MODEL);
    }
    /* every prefix of a good file */
    for (size_t n = 0; n < sizeof published - 1; n += 7) {
        config c;
        char *cut = malloc(n ? n : 1);
        memcpy(cut, published, n);
        assert_int_equal(config_parse("config.json", cut, n, &c, NULL), HY_BAD_MODEL);
        free(cut);
    }
}

/* ---- Known geometries -------------------------------------------------------------------------------------------- */

static void known_geometries(void **state)
{
    (void)state;
    config m31, m3, mx;
    assert_true(config_known("m3.1-flash", &m31) && config_known("m3", &m3) && config_known("m3-mxfp8", &mx));
    assert_false(config_known("m3.1", &m3));
    assert_true(config_known("m3", &m3));
    for (int i = 0; i < 60; i++) {
        assert_int_equal(m31.sparse[i], 1);
        assert_int_equal(m3.sparse[i], i >= 3);
        assert_int_equal(m31.moe[i], i >= 3);
        assert_int_equal(mx.moe[i], i >= 3);
    }
    assert_int_equal(m31.sparse[60], 0);
    assert_string_equal(mx.quant_method, "mxfp8");
    assert_string_equal(mx.moe_quant, "");
    assert_string_equal(m3.quant_method, "");
    assert_string_equal(m31.moe_quant_format, "nvfp4-pack-quantized");
}

/* What the writer writes reads back as the same struct. */
static void round_trips(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        layout_scheme scheme;
    } list[] = {{"m3.1-flash", SCHEME_M31}, {"m3", SCHEME_BF16}, {"m3-mxfp8", SCHEME_MXFP8}};
    for (size_t i = 0; i < 3; i++) {
        config c;
        assert_true(config_known(list[i].name, &c));
        for (int slice = 0; slice < 3; slice++) {
            if (slice == 1) assert_int_equal(config_slice(&c, 6, 2, NULL), HY_OK);
            if (slice == 2) assert_int_equal(config_slice(&c, 2, 2, NULL), HY_OK);
            config expected = c;
            if (slice == 2) { /* without experts their sizes are not written */
                expected.experts = expected.experts_per_token = expected.expert_width = expected.shared_width = 0;
                expected.shared_expert = false, expected.routed_scaling = 0;
            }
            size_t length;
            char *text = config_write(&expected, list[i].scheme, &length);
            config back = parsed(text);
            assert_int_equal(strlen(text), length);
            assert_memory_equal(&back, &expected, sizeof back);
            free(text);
        }
    }
    config c = parsed(published), back;
    char *text = config_write(&c, SCHEME_MODELOPT, NULL);
    back = parsed(text);
    assert_string_equal(back.quant_method, "modelopt");
    assert_string_equal(back.moe_quant, "NVFP4");
    free(text);
    /* a text-only, tied model without ids */
    c.vision_layers = c.vision_hidden = c.vision_heads = c.vision_width = c.vision_patch = c.vision_temporal = 0;
    c.vision_merge = c.projector_hidden = 0;
    c.bos = c.eos = c.image_token = c.video_token = -1;
    c.tied_head = true;
    text = config_write(&c, SCHEME_BF16, NULL);
    back = parsed(text);
    assert_memory_equal(&back, &c, sizeof back);
    free(text);
}

static void slices(void **state)
{
    (void)state;
    config c, m3;
    hy_error err = {0};
    assert_true(config_known("m3", &m3));
    c = m3;
    assert_int_equal(config_slice(&c, 4, 1, &err), HY_OK);
    assert_int_equal(c.layers, 4);
    for (int i = 0; i < 4; i++) assert_true(c.moe[i] == (i > 0) && c.sparse[i] == (i > 0));
    assert_int_equal(c.moe[4], 0);
    c = m3;
    assert_int_equal(config_slice(&c, 5, -1, &err), HY_OK); /* the first five as they are */
    assert_true(!c.moe[2] && c.moe[3] && c.moe[4] && !c.sparse[2] && c.sparse[3]);
    c = m3;
    assert_int_equal(config_slice(&c, 2, 0, &err), HY_OK);
    assert_true(c.moe[0] && c.moe[1]);
    c = m3;
    assert_int_equal(config_slice(&c, 3, 3, &err), HY_OK); /* M3's first three: dense attention, no indexer */
    assert_int_equal(c.index_heads, 0);
    c = m3;
    static const int bad[][2] = {{0, 0}, {61, 3}, {10, 4}, {2, 3}, {60, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(config_slice(&c, bad[i][0], bad[i][1], &err), HY_USAGE);
        assert_memory_equal(&c, &m3, sizeof c);
    }
}

/* ---- The drafter ------------------------------------------------------------------------------------------------- */

static void drafter(void **state)
{
    (void)state;
    config c;
    assert_true(config_known("m3.1-flash", &c));
    draft_config d = config_drafter(&c), back;
    static const int taps[] = {3, 17, 31, 45, 59};
    assert_memory_equal(d.taps, taps, sizeof taps);
    assert_int_equal(d.noise_token, 200058);
    assert_int_equal(d.window, 4096);
    assert_int_equal(d.block, 7);
    assert_int_equal(d.dense_width, 12288);
    size_t length;
    char *text = draft_config_write(&d, &length);
    hy_error err = {0};
    if (draft_config_parse("dspark/config.json", text, length, &back, &err) != HY_OK) fail_msg("%s", err.message);
    assert_memory_equal(&d, &back, sizeof d);

    static const change list[] = {
        {"architectures", "[\"Gemma4DSparkModel\"]", "\"Gemma4DSparkModel\" is not supported"},
        {T "dspark_target_layer_ids", "[]", "lists 0 layers"},
        {T "dspark_target_layer_ids", "[3,2]", "ascending"},
        {T "dspark_target_layer_ids", "[-1,2]", "ascending"},
        {T "dspark_target_layer_ids", "[1,2,3,4,5,6,7,8,9]", "lists 9 layers"},
        {T "dspark_block_size", "0", "dspark_block_size is 0"},
        {T "dspark_noise_token_id", "200064", "dspark_noise_token_id is 200064"},
        {T "dspark_hybrid_context_fusion", "true", "dspark_hybrid_context_fusion is true"},
        {T "dspark_config", "{\"hybrid_context_fusion\":true}", "hybrid_context_fusion is true"},
        {T "dspark_use_dense_ffn", "false", "dspark_use_dense_ffn is false"},
        {T "dspark_markov_head_type", "\"gated\"", "dspark_markov_head_type is \"gated\""},
        {T "moe_layer_freq", "[0,0,0,0,1]", "experts"},
        {T "moe_layer_freq", "[0]", "1 entries for 5 layers"},
        {T "layer_types",
         "[\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\","
         "\"sliding_attention\"]",
         "layer_types of layer 2 is \"full_attention\""},
        {T "sparse_attention_config", "{}", "sparse attention"},
        {T "sliding_window", NULL, "sliding_window is missing"},
        {"quantization_config", "{\"quant_method\":\"fp8\"}", "quant_method is \"fp8\""},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char *bad = changed(text, list[i].field, list[i].value);
        assert_int_equal(draft_config_parse("dspark/config.json", bad, strlen(bad), &back, &err), HY_BAD_MODEL);
        if (!strstr(err.message, list[i].words)) fail_msg("\"%s\" does not say \"%s\"", err.message, list[i].words);
        free(bad);
    }
    free(text);

    /* taps of slices: max(0, floor((i+1)N/5) - 1) */
    static const struct {
        int layers, taps[5];
    } cuts[] = {{2, {0, 0, 0, 0, 1}},
                {4, {0, 0, 1, 2, 3}},
                {5, {0, 1, 2, 3, 4}},
                {12, {1, 3, 6, 8, 11}},
                {59, {10, 22, 34, 46, 58}}};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        assert_true(config_known("m3.1-flash", &c));
        assert_int_equal(config_slice(&c, cuts[i].layers, -1, NULL), HY_OK);
        d = config_drafter(&c);
        assert_memory_equal(d.taps, cuts[i].taps, sizeof cuts[i].taps);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings),  cmocka_unit_test(refusals),         cmocka_unit_test(accepted),
        cmocka_unit_test(dense_attention), cmocka_unit_test(top_level_fields), cmocka_unit_test(quantisation),
        cmocka_unit_test(broken_json),     cmocka_unit_test(known_geometries), cmocka_unit_test(round_trips),
        cmocka_unit_test(slices),          cmocka_unit_test(drafter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
