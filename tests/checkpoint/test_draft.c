/* The drafter's tensors: those of the release, each of them missing, of another type, of another shape, and one too many; the
 * family of Qwen3 in its three spellings. */
#include "small_model.h"

#define PREFIX "language_model.model.dspark."

static hy_error err;

static draft_config tiny_drafter(void)
{
    config c = tiny();
    draft_config d = config_drafter(&c);
    d.markov_rank = 16, d.window = 32;
    return d;
}

static void add_mxfp8(files *f, const char *module, int64_t rows, int64_t cols)
{
    char name[200];
    snprintf(name, sizeof name, "%s.weight", module);
    add_tensor(f, name, TENSOR_F8_E4M3, 2, (int64_t[]){rows, cols});
    snprintf(name, sizeof name, "%s.weight_scale_inv", module);
    memset(add_tensor(f, name, TENSOR_U8, 2, (int64_t[]){rows, cols / 32}), 127, (size_t)(rows * cols / 32));
}

/* Names and shapes, written down once more: hidden 64, 48 tokens, 4 heads of 32 over 2, width 128, rank 16, 5 taps. */
static files release(void)
{
    static const struct {
        const char *module;
        int64_t rows, cols;
    } linears[] = {{"self_attn.q_proj", 128, 64}, {"self_attn.k_proj", 64, 64}, {"self_attn.v_proj", 64, 64},
                   {"self_attn.o_proj", 64, 128}, {"mlp.gate_proj", 128, 64},   {"mlp.up_proj", 128, 64},
                   {"mlp.down_proj", 64, 128}};
    static const struct {
        const char *name;
        int64_t size;
    } norms[] = {{"input_layernorm", 64}, {"post_attention_layernorm", 64}, {"self_attn.q_norm", 32},
                 {"self_attn.k_norm", 32}};
    files f = {0};
    char name[160];
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 7; k++) {
            snprintf(name, sizeof name, PREFIX "layers.%d.decoder_layer.%s", i, linears[k].module);
            add_mxfp8(&f, name, linears[k].rows, linears[k].cols);
        }
        for (int k = 0; k < 4; k++) {
            snprintf(name, sizeof name, PREFIX "layers.%d.decoder_layer.%s.weight", i, norms[k].name);
            add_tensor(&f, name, TENSOR_BF16, 1, &norms[k].size);
        }
    }
    add_tensor(&f, PREFIX "fc.weight", TENSOR_BF16, 2, (int64_t[]){64, 5 * 64});
    add_tensor(&f, PREFIX "hidden_norm.weight", TENSOR_BF16, 1, (int64_t[]){64});
    add_tensor(&f, PREFIX "final_norm.weight", TENSOR_BF16, 1, (int64_t[]){64});
    add_tensor(&f, PREFIX "markov_head.markov_w1.weight", TENSOR_BF16, 2, (int64_t[]){48, 16});
    add_tensor(&f, PREFIX "markov_head.markov_w2.weight", TENSOR_BF16, 2, (int64_t[]){48, 16});
    add_tensor(&f, PREFIX "confidence_head.proj.weight", TENSOR_BF16, 2, (int64_t[]){1, 80});
    add_tensor(&f, PREFIX "confidence_head.proj.bias", TENSOR_BF16, 1, (int64_t[]){1});
    return f;
}

/* The target and a folder dspark with the config; the drafter's tensors are written anew for each case. */
static void put_target(const char *draft)
{
    parts p = make_parts();
    files f = make_plain(&p, PUBLISHED);
    write_model(&f);
    free_files(&f);
    free_parts(&p);
    if (mkdir(at("dspark"), 0755) != 0) assert_true(file_is_folder(at("dspark")));
    put_text("dspark/config.json", draft);
}

static void put_released_config(const draft_config *d)
{
    char *text = draft_config_write(d, NULL);
    put_target(text);
    free(text);
}

static hy_status check(const files *f)
{
    write_range(f, "dspark/model.safetensors", 0, f->count);
    checkpoint *c = opened();
    hy_status status = checkpoint_check_draft(c, &err);
    checkpoint_close(c);
    return status;
}

static void wants(const files *f, const char *name, const char *words)
{
    assert_int_equal(check(f), HY_BAD_MODEL);
    if (!strstr(err.message, words) || !strstr(err.message, name))
        fail_msg("\"%s\" does not say %s and %s", err.message, name, words);
}

static void release_schema(void **state)
{
    (void)state;
    draft_config d = tiny_drafter();
    put_released_config(&d);
    files f = release();
    assert_int_equal(f.count, 97);
    if (check(&f) != HY_OK) fail_msg("%s", err.message);
    for (size_t i = 0; i < f.count; i++) {
        const char *name = f.list[i].name;
        safetensors_entry kept = f.list[i].entry;
        size_t bytes = f.list[i].bytes;
        f.list[i].gone = true;
        wants(&f, name, "is missing");
        f.list[i].gone = false;
        /* of the same size, so that the file itself is sound */
        f.list[i].entry.dtype = kept.dtype == TENSOR_BF16 ? TENSOR_F16 : TENSOR_I8;
        wants(&f, name, "has dtype");
        f.list[i].entry = kept;
        f.list[i].entry.dims++, f.list[i].entry.shape[kept.dims] = 1;
        wants(&f, name, "has shape");
        f.list[i].entry = kept;
        f.list[i].entry.shape[0] = 2 * kept.shape[0];
        f.list[i].bytes = 2 * bytes;
        f.list[i].data = realloc(f.list[i].data, 2 * bytes);
        wants(&f, name, "has shape");
        f.list[i].entry = kept, f.list[i].bytes = bytes;
        assert_true(strlen(name) + 2 < sizeof f.list[i].name);
    }
    if (check(&f) != HY_OK) fail_msg("%s", err.message);
    add_tensor(&f, PREFIX "layers.5.decoder_layer.input_layernorm.weight", TENSOR_BF16, 1, (int64_t[]){64});
    wants(&f, PREFIX "layers.5.decoder_layer.input_layernorm.weight", "none of a drafter");
    f.list[f.count - 1].gone = true;
    add_tensor(&f, PREFIX "embed_tokens.weight", TENSOR_BF16, 2, (int64_t[]){48, 64});
    wants(&f, PREFIX "embed_tokens.weight", "none of a drafter");
    free_files(&f);
}

/* Scales may say what they are; the config decides what is there. */
static void release_variants(void **state)
{
    (void)state;
    draft_config d = tiny_drafter();
    put_released_config(&d);
    files f = release();
    for (size_t i = 0; i < f.count; i++)
        if (f.list[i].entry.dtype == TENSOR_U8) f.list[i].entry.dtype = TENSOR_F8_E8M0;
    if (check(&f) != HY_OK) fail_msg("%s", err.message);
    d.confidence_with_markov = false;
    put_released_config(&d);
    wants(&f, "confidence_head.proj.weight", "[1, 64] belongs there");
    d.confidence_head = false;
    put_released_config(&d);
    wants(&f, "confidence_head.proj.weight", "none of a drafter");
    f.count -= 2;
    if (check(&f) != HY_OK) fail_msg("%s", err.message);
    d.layers = 4;
    put_released_config(&d);
    wants(&f, "layers.4.", "none of a drafter");
    f.count += 2;
    free_files(&f);
}

static void weights(void **state)
{
    (void)state;
    draft_config d = tiny_drafter();
    put_released_config(&d);
    files f = release();
    uint8_t *gate = f.list[find_file(&f, PREFIX "layers.3.decoder_layer.mlp.gate_proj.weight")].data;
    uint8_t *scales = f.list[find_file(&f, PREFIX "layers.3.decoder_layer.mlp.gate_proj.weight_scale_inv")].data;
    gate[64 + 33] = 0x38, scales[3] = 129; /* 1 * 4 at row 1, column 33 */
    uint16_t *bias = f.list[find_file(&f, PREFIX "confidence_head.proj.bias")].data;
    *bias = bf16_from_float(-0.5f);
    write_range(&f, "dspark/model.safetensors", 0, f.count);
    checkpoint *c = opened();
    weight w;
    float row[320];
    assert_int_equal(checkpoint_draft_weight(c, DRAFT_GATE, 3, &w, &err), HY_OK);
    assert_int_equal(w.format, WEIGHT_MXFP8);
    weight_row(&w, 1, row);
    assert_true(row[33] == 4 && row[32] == 0);
    assert_int_equal(checkpoint_draft_weight(c, DRAFT_CONFIDENCE_BIAS, -1, &w, &err), HY_OK);
    weight_row(&w, 0, row);
    assert_true(row[0] == -0.5f && w.rows == 1 && w.cols == 1);
    assert_int_equal(checkpoint_draft_weight(c, DRAFT_HEAD, -1, &w, &err), HY_BAD_MODEL); /* the target's */
    checkpoint_close(c);
    free_files(&f);
}

/* ---- Qwen3 ------------------------------------------------------------------------------------------------------- */

#define NETWORK                                                                                                        \
    "\"num_hidden_layers\":2,\"hidden_size\":64,\"vocab_size\":48,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
    "\"head_dim\":32,\"intermediate_size\":128,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,\"rope_theta\":1000000,"
#define MARKOV "\"markov_rank\":16,\"markov_head_type\":\"vanilla\","
#define DEEPSPEC(more)                                                                                                 \
    "{\"architectures\":[\"Qwen3DSparkModel\"]," NETWORK MARKOV "\"block_size\":7,\"target_layer_ids\":[0,1],"            \
    "\"mask_token_id\":47,\"enable_confidence_head\":true,\"confidence_head_with_markov\":true" more "}"
#define NVIDIA(more)                                                                                                   \
    "{\"architectures\":[\"Qwen3DSparkModel\"]," NETWORK "\"dflash_config\":{" MARKOV "\"block_size\":8,"                 \
    "\"target_layer_ids\":[0,1],\"mask_token_id\":47,\"use_swa\":true,\"swa_window_size\":24,\"causal\":false,"           \
    "\"use_confidence_head\":true,\"projector_type\":\"dspark\"" more "}}"
#define SPECULATORS(more)                                                                                              \
    "{\"architectures\":[\"DSparkSpeculator\"],\"speculators_model_type\":\"dspark\","                                   \
    "\"transformer_layer_config\":{" NETWORK "\"model_type\":\"qwen3\"}," MARKOV                                         \
    "\"block_size\":8,\"aux_hidden_state_layer_ids\":[1,2],\"mask_token_id\":47,\"draft_vocab_size\":48,"                \
    "\"enable_confidence_head\":true,\"confidence_head_with_markov\":true" more "}"

static files qwen3(tensor_dtype dtype)
{
    static const struct {
        const char *name;
        int64_t rows, cols; /* rows 0: a vector */
    } all[] = {{"fc.weight", 64, 128},
               {"hidden_norm.weight", 0, 64},
               {"norm.weight", 0, 64},
               {"markov_head.markov_w1.weight", 48, 16},
               {"markov_head.markov_w2.weight", 48, 16},
               {"confidence_head.proj.weight", 1, 80},
               {"confidence_head.proj.bias", 0, 1},
               {"lm_head.weight", 48, 64},
               {"input_layernorm", 0, 64},
               {"post_attention_layernorm", 0, 64},
               {"self_attn.q_proj", 128, 64},
               {"self_attn.k_proj", 64, 64},
               {"self_attn.v_proj", 64, 64},
               {"self_attn.o_proj", 64, 128},
               {"self_attn.q_norm", 0, 32},
               {"self_attn.k_norm", 0, 32},
               {"mlp.gate_proj", 128, 64},
               {"mlp.up_proj", 128, 64},
               {"mlp.down_proj", 64, 128}};
    files f = {0};
    char name[200];
    for (int layer = -1; layer < 2; layer++)
        for (int i = layer < 0 ? 0 : 8; i < (layer < 0 ? 8 : 19); i++) {
            snprintf(name, sizeof name, "layers.%d.%s.weight", layer, all[i].name);
            add_tensor(&f, layer < 0 ? all[i].name : name, dtype, all[i].rows ? 2 : 1,
                       all[i].rows ? (int64_t[]){all[i].rows, all[i].cols} : &all[i].cols);
        }
    return f;
}

static void qwen3_spellings(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int block, window;
    } cases[] = {
        {DEEPSPEC(""), 7, 0},
        {DEEPSPEC(",\"sliding_window\":40,\"use_sliding_window\":false"), 7, 0},
        {DEEPSPEC(",\"sliding_window\":40,\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]"), 7, 40},
        {NVIDIA(""), 8, 24},
        {SPECULATORS(",\"sample_from_anchor\":true"), 8, 0},
    };
    files f = qwen3(TENSOR_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_target(cases[i].text);
        if (check(&f) != HY_OK) fail_msg("case %zu: %s", i, err.message);
        checkpoint *c = opened();
        draft_config d = *checkpoint_draft(c);
        assert_int_equal(d.family, DRAFT_QWEN3);
        assert_int_equal(d.block, cases[i].block);
        assert_int_equal(d.window, cases[i].window);
        assert_int_equal(d.tap_count, 2);
        assert_int_equal(d.taps[0], 0);
        assert_int_equal(d.taps[1], 1);
        assert_int_equal(d.noise_token, 47);
        assert_int_equal(d.rotary_dim, 32);
        assert_true(d.rope_theta == 1e6f && d.own_head && !d.own_embed && d.confidence_with_markov);
        weight w;
        assert_int_equal(checkpoint_draft_weight(c, DRAFT_HEAD, -1, &w, &err), HY_OK);
        assert_true(w.format == WEIGHT_F32 && w.rows == 48 && w.cols == 64);
        /* written in one of the spellings and read again */
        size_t length;
        draft_config back;
        char *text = draft_config_write(&d, &length);
        assert_int_equal(draft_config_parse("config.json", text, length, &back, &err), HY_OK);
        back.own_head = true, back.swiglu_alpha = d.swiglu_alpha, back.swiglu_limit = d.swiglu_limit;
        assert_int_equal(back.window, d.window);
        assert_int_equal(back.block, d.block);
        assert_memory_equal(back.taps, d.taps, sizeof d.taps);
        free(text);
        checkpoint_close(c);
    }
    free_files(&f);
    /* without a head, with an embedding, in bf16 */
    f = qwen3(TENSOR_BF16);
    f.list[find_file(&f, "lm_head.weight")].gone = true;
    add_tensor(&f, "embed_tokens.weight", TENSOR_BF16, 2, (int64_t[]){48, 64});
    if (check(&f) != HY_OK) fail_msg("%s", err.message);
    add_tensor(&f, "d2t", TENSOR_I64, 1, (int64_t[]){48});
    wants(&f, "d2t", "none of a drafter");
    f.list[f.count - 1].gone = true;
    f.list[find_file(&f, "layers.1.mlp.up_proj.weight")].gone = true;
    wants(&f, "layers.1.mlp.up_proj.weight", "is missing");
    free_files(&f);
}

static void qwen3_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"{\"architectures\":[\"Gemma4DSparkModel\"]}", "\"Gemma4DSparkModel\" is not supported"},
        {"{}", "\"\" is not supported"},
        {DEEPSPEC(",\"is_causal\":true"), "is_causal is true"},
        {DEEPSPEC(",\"sample_from_anchor\":false"), "sample_from_anchor is false"},
        {DEEPSPEC(",\"draft_vocab_size\":32"), "draft_vocab_size is 32"},
        {DEEPSPEC(",\"attention_bias\":true"), "attention_bias is true"},
        {DEEPSPEC(",\"quantization_config\":{}"), "quantised"},
        {DEEPSPEC(",\"rope_scaling\":{\"rope_type\":\"yarn\"}"), "rope_type is \"yarn\""},
        {DEEPSPEC(",\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":9"), "some layers only"},
        {DEEPSPEC(",\"use_sliding_window\":true"), "sliding_window is missing"},
        {DEEPSPEC(",\"use_sliding_window\":true,\"sliding_window\":6"), "smaller than a block"},
        {NVIDIA(",\"causal\":true"), "config.json"}, /* twice */
        {SPECULATORS(""), "sample_from_anchor is missing"},
        {SPECULATORS(",\"sample_from_anchor\":false"), "sample_from_anchor is false"},
        {SPECULATORS(",\"sample_from_anchor\":true,\"layer_types\":[1]"), NULL}, /* of another object: not read */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        draft_config d;
        hy_status status = draft_config_parse("config.json", cases[i].text, strlen(cases[i].text), &d, &err);
        assert_int_equal(status, cases[i].words ? HY_BAD_MODEL : HY_OK);
        if (cases[i].words && !strstr(err.message, cases[i].words))
            fail_msg("\"%s\" does not say %s", err.message, cases[i].words);
    }
    /* In place: one field of NVIDIA's and of speculators' own. */
    static const struct {
        const char *text, *from, *to, *words;
    } edits[] = {
        {NVIDIA(""), "\"causal\":false", "\"causal\":true", "causal is true"},
        {NVIDIA(""), "\"projector_type\":\"dspark\"", "\"projector_type\":\"dflash\"", "projector_type"},
        {NVIDIA(""), "vanilla", "gated", "markov_head_type"},
        {NVIDIA(""), "\"block_size\":8", "\"block_size\":17", "block_size is 17"},
        {NVIDIA(""), "[0,1]", "[1,0]", "ascending"},
        {NVIDIA(""), "\"silu\"", "\"gelu\"", "hidden_act"},
        {NVIDIA(""), "\"rope_theta\":1000000,", "", "rope_theta is missing"},
        {NVIDIA(""), "\"rms_norm_eps\":1e-6,", "", "rms_norm_eps is missing"},
        {SPECULATORS(",\"sample_from_anchor\":true"), "[1,2]", "[0,2]", "ascending"}, /* 0: the embedding */
        {SPECULATORS(",\"sample_from_anchor\":true"), "\"model_type\":\"qwen3\"",
         "\"layer_types\":[\"sliding_attention\",\"sliding_attention\"],\"sliding_window\":9", "non_causal is not true"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char text[2000];
        const char *place = strstr(edits[i].text, edits[i].from);
        assert_non_null(place);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(place - edits[i].text), edits[i].text, edits[i].to,
                 place + strlen(edits[i].from));
        draft_config d;
        assert_int_equal(draft_config_parse("config.json", text, strlen(text), &d, &err), HY_BAD_MODEL);
        if (!strstr(err.message, edits[i].words)) fail_msg("\"%s\" does not say %s", err.message, edits[i].words);
    }
}

/* ---- Other folders ----------------------------------------------------------------------------------------------- */

static void other_folder(void **state)
{
    (void)state;
    draft_config d = tiny_drafter();
    put_released_config(&d);
    files f = release();
    write_range(&f, "dspark/model.safetensors", 0, f.count);
    assert_int_equal(rename(at("dspark"), at("elsewhere")), 0);
    checkpoint *c = opened();
    assert_null(checkpoint_draft(c));
    assert_int_equal(checkpoint_check_draft(c, &err), HY_BAD_MODEL);
    assert_non_null(strstr(err.message, "no folder dspark"));
    assert_int_equal(checkpoint_open_draft(c, at("nowhere"), &err), HY_BAD_MODEL);
    assert_null(checkpoint_draft(c));
    assert_int_equal(checkpoint_open_draft(c, at("elsewhere"), &err), HY_OK);
    assert_string_equal(checkpoint_draft_folder(c), at("elsewhere"));
    assert_int_equal(checkpoint_check_draft(c, &err), HY_OK);
    assert_int_equal(checkpoint_open_draft(c, folder, &err), HY_BAD_MODEL); /* a model, and no drafter in it */
    assert_int_equal(checkpoint_check_draft(c, &err), HY_OK);              /* the one before stays */
    checkpoint_close(c);
    free_files(&f);
}

int main(void)
{
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(release_schema), IN_FOLDER(release_variants), IN_FOLDER(weights),
        IN_FOLDER(qwen3_spellings), cmocka_unit_test(qwen3_refused), IN_FOLDER(other_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
