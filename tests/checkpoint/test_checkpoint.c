/* Weights by role: spellings of names, quantisation schemes, and what is refused. */
#include "small_model.h"

#include <math.h>

static void all_spellings(void **state)
{
    (void)state;
    parts p = make_parts();
    for (names n = PUBLISHED; n <= NATIVE_EXPERTS; n++) {
        files f = make_plain(&p, n);
        write_model(&f);
        checkpoint *c = opened();
        assert_int_equal(checkpoint_tensor_count(c, false), f.count);
        assert_int_equal(checkpoint_tensor_count(c, true), 0);
        assert_null(checkpoint_draft(c));
        check_values(c, &p);
        checkpoint_close(c);
        free_files(&f);
    }
    free_parts(&p);
}

static void tied_head(void **state)
{
    (void)state;
    parts p = make_parts();
    files f = make_plain(&p, PUBLISHED);
    f.list[find_file(&f, "language_model.lm_head.weight")].gone = true;
    config k = tiny();
    k.tied_head = true;
    write_config(&k);
    write_range(&f, "model.safetensors", 0, f.count);
    checkpoint *c = opened();
    weight head, embed;
    assert_int_equal(checkpoint_weight(c, ROLE_HEAD, 0, 0, &head, NULL), HY_OK);
    assert_int_equal(checkpoint_weight(c, ROLE_EMBED, 0, 0, &embed, NULL), HY_OK);
    assert_ptr_equal(head.data, embed.data);
    checkpoint_close(c);
    free_files(&f);
    free_parts(&p);
}

/* ---- Quantised weights ------------------------------------------------------------------------------------------- */

static void nvfp4_schemes_agree(void **state)
{
    (void)state;
    parts p = make_parts();
    static float values[2][6][96 * 64];
    for (int pack = 0; pack < 2; pack++) {
        files f = make_plain(&p, pack ? COMPRESSED : PUBLISHED);
        for (int e = 0; e < 2; e++)
            for (int i = 0; i < 3; i++) {
                const part *x = find_part(&p, (weight_role)(ROLE_EXPERT_GATE + i), 1, e);
                char name[160];
                full_name(pack ? COMPRESSED : PUBLISHED, x, name);
                quantise_nvfp4(&f, x, name, pack, 4096); /* a power of two: both conventions are exact */
            }
        write_model(&f);
        checkpoint *c = opened();
        for (int e = 0; e < 2; e++)
            for (int i = 0; i < 3; i++) {
                weight w;
                hy_error err = {0};
                if (checkpoint_weight(c, (weight_role)(ROLE_EXPERT_GATE + i), 1, e, &w, &err) != HY_OK)
                    fail_msg("%s", err.message);
                assert_int_equal(w.format, WEIGHT_NVFP4);
                assert_int_equal(w.divides, pack);
                assert_int_equal(checkpoint_check_scales(&w, "x", &err), HY_OK);
                assert_int_equal(weight_bytes(&w), (size_t)(w.rows * w.cols) * 9 / 16 + 4);
                for (int64_t r = 0; r < w.rows; r++) weight_row(&w, r, values[pack][e * 3 + i] + r * w.cols);
            }
        checkpoint_close(c);
        free_files(&f);
    }
    assert_memory_equal(values[0], values[1], sizeof values[0]);
    /* and they are the weights, up to the grid: half a step of 6 -> 4 on a scale of amax/6, 1/6 of the largest */
    const part *x = find_part(&p, ROLE_EXPERT_GATE, 1, 0);
    float worst = 0;
    for (int i = 0; i < 96 * 64; i++) worst = fmaxf(worst, fabsf(values[0][0][i] - x->values[i]));
    assert_true(worst > 0 && worst < 0.25f / 5);
    free_parts(&p);
}

static void mxfp8_scheme(void **state)
{
    (void)state;
    parts p = make_parts();
    for (int e8m0 = 0; e8m0 < 2; e8m0++) {
        files f = make_plain(&p, PUBLISHED);
        const part *q = find_part(&p, ROLE_Q, 0, 0);
        quantise_mxfp8(&f, q, "language_model.model.layers.0.self_attn.q_proj", e8m0 ? TENSOR_F8_E8M0 : TENSOR_U8);
        write_model(&f);
        checkpoint *c = opened();
        weight w;
        hy_error err = {0};
        float row[64], part_row[64];
        assert_int_equal(checkpoint_weight(c, ROLE_Q, 0, 0, &w, NULL), HY_OK);
        assert_int_equal(w.format, WEIGHT_MXFP8);
        assert_int_equal(weight_bytes(&w), 128 * 64 + 128 * 2);
        for (int64_t r = 0; r < w.rows; r++) {
            weight_row(&w, r, row);
            for (int i = 0; i < 64; i++) assert_true(fabsf(row[i] - q->values[r * 64 + i]) <= 0.25f / 16);
            weight_row_part(&w, r, 32, 64, part_row);
            assert_memory_equal(part_row, row + 32, 32 * sizeof(float));
        }
        assert_int_equal(checkpoint_check_scales(&w, "q", &err), HY_OK);
        checkpoint_close(c);
        uint8_t *scales = f.list[f.count - 1].data; /* the tensor that was added last */
        scales[5] = 255;
        write_model(&f);
        c = opened();
        assert_int_equal(checkpoint_weight(c, ROLE_Q, 0, 0, &w, NULL), HY_OK);
        assert_int_equal(checkpoint_check_scales(&w, "layers.0.self_attn.q_proj", &err), HY_BAD_MODEL);
        assert_non_null(strstr(err.message, "layers.0.self_attn.q_proj is NaN (0xFF, row 2, columns from 32)"));
        checkpoint_close(c);
        free_files(&f);
    }
    free_parts(&p);
}

/* A fused matrix in MXFP8: gate and up are runs of its rows, scales included. */
static void fused_and_quantised(void **state)
{
    (void)state;
    parts p = make_parts();
    files f = make_plain(&p, NATIVE);
    const part *gate = find_part(&p, ROLE_DENSE_GATE, 0, 0), *up = find_part(&p, ROLE_DENSE_UP, 0, 0);
    part both = {ROLE_DENSE_GATE, 0, 0, 256, 64, malloc(256 * 64 * sizeof(float))};
    memcpy(both.values, gate->values, 128 * 64 * sizeof(float));
    memcpy(both.values + 128 * 64, up->values, 128 * 64 * sizeof(float));
    quantise_mxfp8(&f, &both, "model.language_model.layers.0.mlp.gate_up_proj", TENSOR_U8);
    write_model(&f);
    checkpoint *c = opened();
    weight w;
    assert_int_equal(checkpoint_weight(c, ROLE_DENSE_UP, 0, 0, &w, NULL), HY_OK);
    assert_int_equal(w.rows, 128);
    for (int64_t r = 0; r < 128; r++) {
        float row[64];
        weight_row(&w, r, row);
        for (int i = 0; i < 64; i++) assert_true(fabsf(row[i] - up->values[r * 64 + i]) <= 0.25f / 16);
    }
    checkpoint_close(c);
    free(both.values);
    free_files(&f);
    free_parts(&p);
}

/* Each format by hand, at an odd address. */
static void decoding(void **state)
{
    (void)state;
    uint8_t bytes[1 + 256], scales[4] = {127, 128, 0x38, 0x40};
    float out[64];
    memset(bytes, 0, sizeof bytes);
    float f[2] = {1.5f, -2};
    memcpy(bytes + 1, f, sizeof f);
    weight w = {.format = WEIGHT_F32, .rows = 1, .cols = 2, .data = bytes + 1};
    weight_row(&w, 0, out);
    assert_true(out[0] == 1.5f && out[1] == -2);
    uint16_t h[4] = {0x3F80, 0xC000, 0x3C00, 0xC000};
    memcpy(bytes + 1, h, sizeof h);
    w = (weight){.format = WEIGHT_BF16, .rows = 2, .cols = 2, .data = bytes + 1};
    weight_row(&w, 0, out);
    assert_true(out[0] == 1 && out[1] == -2);
    w.format = WEIGHT_F16;
    weight_row(&w, 1, out);
    assert_true(out[0] == 1 && out[1] == -2);
    /* MXFP8: 0x38 is 1; scales 2^0 and 2^1 */
    memset(bytes + 1, 0x38, 64);
    w = (weight){.format = WEIGHT_MXFP8, .rows = 1, .cols = 64, .data = bytes + 1, .scales = scales};
    weight_row(&w, 0, out);
    assert_true(out[0] == 1 && out[31] == 1 && out[32] == 2 && out[63] == 2);
    /* NVFP4: codes 1 (0.5) low, 7 (6) high; scales 1 and 2; global 4 divides or multiplies */
    memset(bytes + 1, 0x71, 16);
    w = (weight){.format = WEIGHT_NVFP4,
                 .rows = 1,
                 .cols = 32,
                 .data = bytes + 1,
                 .scales = scales + 2,
                 .global = 4,
                 .divides = true};
    weight_row(&w, 0, out);
    assert_true(out[0] == 0.125f && out[1] == 1.5f && out[16] == 0.25f && out[17] == 3);
    w.divides = false;
    weight_row(&w, 0, out);
    assert_true(out[0] == 2 && out[1] == 24 && out[16] == 4 && out[17] == 48);
}

static void bad_values(void **state)
{
    (void)state;
    static const weight_format formats[] = {WEIGHT_F32, WEIGHT_BF16, WEIGHT_F16};
    enum { ROWS = 2, COLS = 2100 };
    for (int f = 0; f < 3; f++) {
        hy_error err = {0};
        size_t bytes = formats[f] == WEIGHT_F32 ? 4 : 2;
        uint8_t *data = calloc(ROWS * COLS, bytes);
        weight w = {.format = formats[f], .rows = ROWS, .cols = COLS, .data = data};
        assert_int_equal(checkpoint_check_values(&w, "the.name", &err), HY_OK);
        for (int at = 0; at < ROWS * COLS; at += at < ROWS * COLS - 50 ? 41 : 1) {
            char place[64];
            memset(data + (size_t)at * bytes, 0xFF, bytes);
            assert_int_equal(checkpoint_check_values(&w, "the.name", &err), HY_BAD_MODEL);
            snprintf(place, sizeof place, "row %d, column %d)", at / COLS, at % COLS);
            if (!strstr(err.message, place) || !strstr(err.message, "the.name")) fail_msg("%s", err.message);
            memset(data + (size_t)at * bytes, 0, bytes);
        }
        uint32_t infinity = formats[f] == WEIGHT_F32 ? 0xFF800000 : formats[f] == WEIGHT_BF16 ? 0xFF80 : 0xFC00;
        memcpy(data, &infinity, bytes);
        assert_int_equal(checkpoint_check_values(&w, "the.name", &err), HY_BAD_MODEL);
        assert_non_null(strstr(err.message, "is -inf"));
        free(data);
    }
    weight none = {.format = WEIGHT_NONE};
    assert_int_equal(checkpoint_check_values(&none, "the.name", NULL), HY_OK);
}

static void bad_scales(void **state)
{
    (void)state;
    uint8_t data[64 * 4] = {0}, scales[16];
    hy_error err = {0};
    memset(scales, 0x38, sizeof scales);
    weight w = {
        .format = WEIGHT_NVFP4, .rows = 2, .cols = 64, .data = data, .scales = scales, .global = 1, .divides = true};
    assert_int_equal(checkpoint_check_scales(&w, "the.name", &err), HY_OK);
    static const struct {
        uint8_t byte;
        const char *words;
    } bytes[] = {{0x7F, "NaN (0x7F, row 1, columns from 32)"},
                 {0xFF, "NaN (0xFF"},
                 {0x80, "negative (0x80"},
                 {0xB8, "negative (0xB8"}};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        scales[6] = bytes[i].byte;
        assert_int_equal(checkpoint_check_scales(&w, "the.name", &err), HY_BAD_MODEL);
        assert_non_null(strstr(err.message, bytes[i].words));
        assert_non_null(strstr(err.message, "the.name"));
    }
    scales[6] = 0x7E;
    assert_int_equal(checkpoint_check_scales(&w, "the.name", &err), HY_OK);
    static const float globals[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        w.global = globals[i];
        assert_int_equal(checkpoint_check_scales(&w, "the.name", &err), HY_BAD_MODEL);
        assert_non_null(strstr(err.message, "global scale of the.name"));
    }
    w = (weight){.format = WEIGHT_MXFP8, .rows = 2, .cols = 64, .data = data, .scales = scales};
    memset(scales, 0xFE, sizeof scales);
    assert_int_equal(checkpoint_check_scales(&w, "the.name", &err), HY_OK);
    scales[3] = 0xFF;
    assert_int_equal(checkpoint_check_scales(&w, "the.name", &err), HY_BAD_MODEL);
    assert_non_null(strstr(err.message, "NaN (0xFF, row 1, columns from 32)"));
    w.format = WEIGHT_BF16;
    assert_int_equal(checkpoint_check_scales(&w, "the.name", &err), HY_OK);
}

static void kv_scales(void **state)
{
    (void)state;
    parts p = make_parts();
    static const struct {
        float value;
        bool good;
    } list[] = {{0.5f, true}, {0, false}, {-1, false}, {NAN, false}, {INFINITY, false}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        files f = make_plain(&p, PUBLISHED);
        float *x = add_tensor(&f, "language_model.model.layers.1.self_attn.v_proj.v_scale", TENSOR_F32, 0, NULL);
        *x = list[i].value;
        write_model(&f);
        checkpoint *c = opened();
        float k = 9, v = 9;
        hy_error err = {0};
        assert_int_equal(checkpoint_kv_scales(c, 0, &k, &v, &err), HY_OK);
        assert_true(k == 1 && v == 1);
        assert_int_equal(checkpoint_kv_scales(c, 1, &k, &v, &err), list[i].good ? HY_OK : HY_BAD_MODEL);
        if (list[i].good)
            assert_true(k == 1 && v == 0.5f);
        else
            assert_non_null(strstr(err.message, "v_proj.v_scale"));
        checkpoint_close(c);
        free_files(&f);
    }
    free_parts(&p);
}

/* ---- Wrong tensors ----------------------------------------------------------------------------------------------- */

/* What is done to the files of the published spelling with layer 1's q quantised to MXFP8 and expert 0's w1 to NVFP4.
 */
typedef enum damage { GONE, DTYPE, ROWS, COLS, DIMS, EXTRA } damage;

static void wrong_tensors(void **state)
{
    (void)state;
#define L0 "language_model.model.layers.0."
#define L1 "language_model.model.layers.1."
    static const struct {
        const char *tensor;
        damage what;
        tensor_dtype dtype;
        weight_role role;
        int layer;
        bool pack;
        const char *words; /* beside the tensor's own name */
    } list[] = {
        {"language_model.model.embed_tokens.weight", GONE, 0, ROLE_EMBED, 0, true, "is missing"},
        {"language_model.lm_head.weight", GONE, 0, ROLE_HEAD, 0, true, "is missing"},
        {"language_model.lm_head.weight", ROWS, 0, ROLE_HEAD, 0, true, "has shape [49, 64]; [48, 64] belongs there"},
        {L0 "input_layernorm.weight", GONE, 0, ROLE_INPUT_NORM, 0, true, "is missing"},
        {L0 "input_layernorm.weight", DTYPE, TENSOR_I32, ROLE_INPUT_NORM, 0, true, "has dtype I32"},
        {L0 "input_layernorm.weight", DIMS, 0, ROLE_INPUT_NORM, 0, true, "has shape [64, 1]; [64] belongs there"},
        {L0 "self_attn.k_norm.weight", ROWS, 0, ROLE_K_NORM, 0, true, "has shape [33]; [32]"},
        {L0 "self_attn.k_proj.weight", COLS, 0, ROLE_K, 0, true, "has shape [64, 65]; [64, 64]"},
        {L0 "self_attn.v_proj.weight", GONE, 0, ROLE_V, 0, true, "is missing"},
        {L0 "self_attn.o_proj.weight", DTYPE, TENSOR_F64, ROLE_O, 0, true, "unknown quantisation: dtype F64"},
        {L0 "self_attn.o_proj.weight", DTYPE, TENSOR_F8_E5M2, ROLE_O, 0, true, "unknown quantisation: dtype F8_E5M2"},
        {L1 "block_sparse_moe.gate.weight", ROWS, 0, ROLE_ROUTER, 1, true, "has shape [3, 64]"},
        {L1 "block_sparse_moe.gate.weight", DTYPE, TENSOR_U8, ROLE_ROUTER, 1, true, "has dtype U8"},
        {L1 "block_sparse_moe.e_score_correction_bias", GONE, 0, ROLE_ROUTER_BIAS, 1, true, "is missing"},
        {L1 "block_sparse_moe.e_score_correction_bias", ROWS, 0, ROLE_ROUTER_BIAS, 1, true, "has shape [3]; [2]"},
        {L1 "self_attn.index_k_proj.weight", GONE, 0, ROLE_INDEX_K, 1, true, "is missing"},
        /* MXFP8 */
        {L1 "self_attn.q_proj.weight", GONE, 0, ROLE_Q, 1, true, "is missing"},
        {L1 "self_attn.q_proj.weight", DTYPE, TENSOR_BF16, ROLE_Q, 1, true, "has dtype BF16; F8_E4M3"},
        {L1 "self_attn.q_proj.weight", DTYPE, TENSOR_F8_E5M2, ROLE_Q, 1, true, "has dtype F8_E5M2; F8_E4M3"},
        {L1 "self_attn.q_proj.weight_scale_inv", GONE, 0, ROLE_Q, 1, true, "is missing"},
        {L1 "self_attn.q_proj.weight_scale_inv", DTYPE, TENSOR_F32, ROLE_Q, 1, true, "has dtype F32; U8 or F8_E8M0"},
        {L1 "self_attn.q_proj.weight_scale_inv", COLS, 0, ROLE_Q, 1, true, "has shape [128, 3]; [128, 2]"},
        {L1 "self_attn.q_proj.weight_scale", EXTRA, TENSOR_F32, ROLE_Q, 1, true, "two quantisation schemes"},
        /* NVFP4, pack-quantised */
        {L1 "block_sparse_moe.experts.0.w1.weight_packed", DTYPE, TENSOR_U16, ROLE_EXPERT_GATE, 1, true,
         "has dtype U16; U8 or I8"},
        {L1 "block_sparse_moe.experts.0.w1.weight_packed", COLS, 0, ROLE_EXPERT_GATE, 1, true,
         "has shape [96, 33]; [96, 32]"},
        {L1 "block_sparse_moe.experts.0.w1.weight_scale", GONE, 0, ROLE_EXPERT_GATE, 1, true, "is missing"},
        {L1 "block_sparse_moe.experts.0.w1.weight_scale", COLS, 0, ROLE_EXPERT_GATE, 1, true,
         "has shape [96, 5]; [96, 4]"},
        {L1 "block_sparse_moe.experts.0.w1.weight_scale", DTYPE, TENSOR_U8, ROLE_EXPERT_GATE, 1, true,
         "has dtype U8; F8_E4M3"},
        {L1 "block_sparse_moe.experts.0.w1.weight_global_scale", GONE, 0, ROLE_EXPERT_GATE, 1, true, "is missing"},
        {L1 "block_sparse_moe.experts.0.w1.weight_global_scale", ROWS, 0, ROLE_EXPERT_GATE, 1, true,
         "is not one F32 number"},
        {L1 "block_sparse_moe.experts.0.w1.weight_global_scale", DTYPE, TENSOR_F64, ROLE_EXPERT_GATE, 1, true,
         "is not one F32"},
        {L1 "block_sparse_moe.experts.0.w1.weight_scale_2", EXTRA, TENSOR_F32, ROLE_EXPERT_GATE, 1, true,
         "two quantisation schemes"},
        {L1 "block_sparse_moe.experts.0.w1.weight", EXTRA, TENSOR_BF16, ROLE_EXPERT_GATE, 1, true,
         "two quantisation schemes"},
        /* NVFP4, ModelOpt */
        {L1 "block_sparse_moe.experts.0.w1.weight_scale_2", GONE, 0, ROLE_EXPERT_GATE, 1, false,
         "unknown quantisation"},
        {L1 "block_sparse_moe.experts.0.w1.weight", GONE, 0, ROLE_EXPERT_GATE, 1, false, "is missing"},
        {L1 "block_sparse_moe.experts.0.w1.weight", DTYPE, TENSOR_F8_E4M3, ROLE_EXPERT_GATE, 1, false,
         "has dtype F8_E4M3; U8 or I8"},
        {L1 "block_sparse_moe.experts.0.w1.weight_scale", GONE, 0, ROLE_EXPERT_GATE, 1, false, "is missing"},
        /* quantised where it may not be */
        {L0 "post_attention_layernorm.weight_scale", EXTRA, TENSOR_F32, ROLE_POST_NORM, 0, true, "is quantised"},
        {"language_model.model.embed_tokens.weight_scale_inv", EXTRA, TENSOR_U8, ROLE_EMBED, 0, true, "is quantised"},
    };
    parts p = make_parts();
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++) {
        files f = make_plain(&p, PUBLISHED);
        quantise_mxfp8(&f, find_part(&p, ROLE_Q, 1, 0), L1 "self_attn.q_proj", TENSOR_U8);
        quantise_nvfp4(&f, find_part(&p, ROLE_EXPERT_GATE, 1, 0), L1 "block_sparse_moe.experts.0.w1", list[k].pack,
                       4096);
        if (list[k].what == EXTRA) {
            add_tensor(&f, list[k].tensor, list[k].dtype, 1, (int64_t[]){1});
        } else {
            size_t i = find_file(&f, list[k].tensor);
            f.list[i].gone = true;
            safetensors_entry e = f.list[i].entry;
            if (list[k].what == DTYPE) e.dtype = list[k].dtype;
            if (list[k].what == ROWS) e.shape[0]++;
            if (list[k].what == COLS) e.shape[1]++;
            if (list[k].what == DIMS) e.shape[e.dims++] = 1;
            if (list[k].what != GONE) add_tensor(&f, list[k].tensor, e.dtype, e.dims, e.shape);
        }
        write_model(&f);
        checkpoint *c = opened();
        weight w;
        hy_error err = {0};
        assert_int_equal(checkpoint_weight(c, list[k].role, list[k].layer, 0, &w, &err), HY_BAD_MODEL);
        if (!strstr(err.message, list[k].words)) fail_msg("\"%s\" does not say \"%s\"", err.message, list[k].words);
        char module[160];
        snprintf(module, sizeof module, "%.*s", (int)(strrchr(list[k].tensor, '.') - list[k].tensor), list[k].tensor);
        if (!strstr(err.message, module)) fail_msg("\"%s\" does not name %s", err.message, module);
        assert_null(strchr(err.message, '\n'));
        checkpoint_close(c);
        free_files(&f);
    }
    free_parts(&p);
}

static void stacked_wrong(void **state)
{
    (void)state;
    parts p = make_parts();
    static const struct {
        tensor_dtype dtype;
        int64_t shape[3];
        const char *words;
    } list[] = {{TENSOR_F8_E4M3, {2, 192, 64}, "has dtype F8_E4M3; stacked experts"},
                {TENSOR_BF16, {3, 192, 64}, "has shape [3, 192, 64]; [2, 192, 64]"},
                {TENSOR_BF16, {2, 64, 192}, "has shape [2, 64, 192]"}};
    for (size_t k = 0; k < 3; k++) {
        files f = make_plain(&p, NATIVE);
        const char *name = "model.language_model.layers.1.mlp.experts.gate_up_proj";
        f.list[find_file(&f, name)].gone = true;
        add_tensor(&f, name, list[k].dtype, 3, list[k].shape);
        write_model(&f);
        checkpoint *c = opened();
        weight w;
        hy_error err = {0};
        assert_int_equal(checkpoint_weight(c, ROLE_EXPERT_UP, 1, 1, &w, &err), HY_BAD_MODEL);
        assert_non_null(strstr(err.message, name));
        if (!strstr(err.message, list[k].words)) fail_msg("\"%s\" does not say \"%s\"", err.message, list[k].words);
        checkpoint_close(c);
        free_files(&f);
    }
    free_parts(&p);
}

static void absent_roles(void **state)
{
    (void)state;
    parts p = make_parts();
    files f = make_plain(&p, PUBLISHED);
    write_model(&f);
    checkpoint *c = opened();
    static const struct {
        weight_role role;
        int layer;
    } list[] = {{ROLE_INDEX_Q, 0}, {ROLE_ROUTER, 0}, {ROLE_EXPERT_UP, 0}, {ROLE_SHARED_DOWN, 0}, {ROLE_DENSE_UP, 1}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        weight w;
        hy_error err = {0};
        assert_int_equal(checkpoint_weight(c, list[i].role, list[i].layer, 0, &w, &err), HY_USAGE);
        assert_non_null(strstr(err.message, weight_role_name(list[i].role)));
    }
    checkpoint_close(c);
    free_files(&f);
    free_parts(&p);
}

/* ---- Oracles ----------------------------------------------------------------------------------------------------- */

/* The checkpoints that the end-to-end tests run: every role resolves, every text tensor is used, every scale is sane.
 */
static void oracles(void **state)
{
    (void)state;
    static const char *const names_of[] = {"m3-dense", "m3-short", "m3-long", "m3-topk16", "m31-w16", "m31-w4a4"};
    for (size_t k = 0; k < sizeof names_of / sizeof names_of[0]; k++) {
        char path[512];
        checkpoint *c = NULL;
        hy_error err = {0};
        bool m31 = strncmp(names_of[k], "m31", 3) == 0;
        snprintf(path, sizeof path, "%s/oracle/%s", TEST_DATA, names_of[k]);
        if (checkpoint_open(path, &c, &err) != HY_OK) fail_msg("%s", err.message);
        const config *g = checkpoint_config(c);
        size_t bytes = 0, all = 0, others = 0;
        for (weight_role role = 0; role < ROLE_COUNT; role++) {
            bool top = role <= ROLE_FINAL_NORM, routed = role >= ROLE_EXPERT_GATE && role <= ROLE_EXPERT_DOWN;
            for (int l = 0; l < (top ? 1 : g->layers); l++)
                for (int e = 0; e < (routed && g->moe[l] ? g->experts : 1); e++) {
                    weight w;
                    hy_status status = checkpoint_weight(c, role, l, e, &w, &err);
                    if (status == HY_USAGE) continue; /* the layer has no such role */
                    if (status != HY_OK) fail_msg("%s", err.message);
                    if (checkpoint_check_scales(&w, weight_role_name(role), &err) != HY_OK) fail_msg("%s", err.message);
                    if (m31 && routed) assert_int_equal(w.format, WEIGHT_NVFP4);
                    if (m31 && role == ROLE_Q) assert_int_equal(w.format, WEIGHT_MXFP8);
                    if (role == ROLE_ROUTER) assert_int_equal(w.format, WEIGHT_F32);
                    bytes += weight_bytes(&w);
                }
        }
        for (size_t i = 0; i < checkpoint_tensor_count(c, false); i++) {
            const tensor *t = checkpoint_tensor_at(c, i, false);
            all += t->bytes;
            if (strstr(t->name, "input_global_scale")) others += t->bytes;
        }
        assert_int_equal(bytes + others, all);
        checkpoint_close(c);
    }
}

int main(void)
{
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(all_spellings),     IN_FOLDER(tied_head),           IN_FOLDER(nvfp4_schemes_agree),
        IN_FOLDER(mxfp8_scheme),      IN_FOLDER(fused_and_quantised), cmocka_unit_test(decoding),
        cmocka_unit_test(bad_values), cmocka_unit_test(bad_scales), IN_FOLDER(kv_scales),           IN_FOLDER(wrong_tensors),
        IN_FOLDER(stacked_wrong),     IN_FOLDER(absent_roles),        cmocka_unit_test(oracles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
