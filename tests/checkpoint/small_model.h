/*
 * A two-layer model for the tests of checkpoints: its values by role, its files in every spelling of names and scheme,
 * and a folder to write them into. Names are written down here once more, apart from those of the room.
 */
#ifndef HAYATE_TESTS_CHECKPOINT_SMALL_MODEL_H
#define HAYATE_TESTS_CHECKPOINT_SMALL_MODEL_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "number/bf16.h"
#include "number/mxfp8.h"
#include "number/nvfp4.h"

/* ---- Folders ----------------------------------------------------------------------------------------------------- */

static char folder[64];

static inline int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/hayate-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char inner[1024];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        assert_int_equal(file_join(path, e->d_name, inner, sizeof inner, NULL), HY_OK);
        struct stat st;
        if (lstat(inner, &st) == 0 && S_ISDIR(st.st_mode))
            remove_tree(inner);
        else
            unlink(inner);
    }
    if (d) closedir(d);
    rmdir(path);
}

static inline int teardown(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

static inline const char *at(const char *name)
{
    static char paths[4][512];
    static int next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", folder, name);
    return p;
}

static inline void put_text(const char *name, const char *text)
{
    FILE *f = fopen(at(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

/* ---- A small model ----------------------------------------------------------------------------------------------- */

/* Two layers: dense attention with dense feed-forward, then sparse attention with two experts and a shared one. */
static inline config tiny(void)
{
    config c;
    memset(&c, 0, sizeof c);
    c.layers = 2, c.hidden = 64, c.vocab = 48, c.max_positions = 4096;
    c.heads = 4, c.kv_heads = 2, c.head_dim = 32, c.rotary_dim = 16;
    c.rope_theta = 5e6f, c.norm_eps = 1e-6f;
    c.experts = 2, c.experts_per_token = 1, c.expert_width = 96, c.shared_width = 32, c.dense_width = 128;
    c.shared_expert = true;
    c.routed_scaling = 2, c.swiglu_alpha = 1.702f, c.swiglu_limit = 7;
    c.index_heads = 2, c.index_dim = 32, c.index_block = 128, c.index_top = 4, c.index_local = 1;
    c.sparse[1] = c.moe[1] = 1;
    c.bos = c.eos = c.image_token = c.video_token = -1;
    return c;
}

/* One role of the model with values that bf16 holds exactly. */
typedef struct part {
    weight_role role;
    int layer, expert;
    int64_t rows, cols;
    float *values; /* [rows, cols] */
} part;

typedef struct parts {
    part list[64];
    size_t count;
} parts;

static inline void add_part(parts *p, weight_role role, int layer, int expert, int64_t rows, int64_t cols)
{
    part *x = &p->list[p->count++];
    assert_true(p->count <= 64);
    *x = (part){role, layer, expert, rows, cols, malloc((size_t)(rows * cols) * sizeof(float))};
    uint32_t seed = (uint32_t)(role * 1000 + layer * 100 + expert * 10 + 7);
    for (int64_t i = 0; i < rows * cols; i++) {
        seed = seed * 1664525 + 1013904223;
        x->values[i] = bf16_round((float)((int32_t)seed) * 0x1p-33f);
    }
}

static inline parts make_parts(void)
{
    parts p = {0};
    add_part(&p, ROLE_EMBED, -1, 0, 48, 64);
    add_part(&p, ROLE_HEAD, -1, 0, 48, 64);
    add_part(&p, ROLE_FINAL_NORM, -1, 0, 1, 64);
    for (int l = 0; l < 2; l++) {
        add_part(&p, ROLE_INPUT_NORM, l, 0, 1, 64);
        add_part(&p, ROLE_POST_NORM, l, 0, 1, 64);
        add_part(&p, ROLE_Q, l, 0, 128, 64);
        add_part(&p, ROLE_K, l, 0, 64, 64);
        add_part(&p, ROLE_V, l, 0, 64, 64);
        add_part(&p, ROLE_O, l, 0, 64, 128);
        add_part(&p, ROLE_Q_NORM, l, 0, 1, 32);
        add_part(&p, ROLE_K_NORM, l, 0, 1, 32);
    }
    add_part(&p, ROLE_DENSE_GATE, 0, 0, 128, 64);
    add_part(&p, ROLE_DENSE_UP, 0, 0, 128, 64);
    add_part(&p, ROLE_DENSE_DOWN, 0, 0, 64, 128);
    add_part(&p, ROLE_INDEX_Q, 1, 0, 64, 64);
    add_part(&p, ROLE_INDEX_K, 1, 0, 32, 64);
    add_part(&p, ROLE_INDEX_Q_NORM, 1, 0, 1, 32);
    add_part(&p, ROLE_INDEX_K_NORM, 1, 0, 1, 32);
    add_part(&p, ROLE_ROUTER, 1, 0, 2, 64);
    add_part(&p, ROLE_ROUTER_BIAS, 1, 0, 1, 2);
    for (int e = 0; e < 2; e++) {
        add_part(&p, ROLE_EXPERT_GATE, 1, e, 96, 64);
        add_part(&p, ROLE_EXPERT_UP, 1, e, 96, 64);
        add_part(&p, ROLE_EXPERT_DOWN, 1, e, 64, 96);
    }
    add_part(&p, ROLE_SHARED_GATE, 1, 0, 32, 64);
    add_part(&p, ROLE_SHARED_UP, 1, 0, 32, 64);
    add_part(&p, ROLE_SHARED_DOWN, 1, 0, 64, 32);
    return p;
}

static inline const part *find_part(const parts *p, weight_role role, int layer, int expert)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->list[i].role == role && p->list[i].layer == layer && p->list[i].expert == expert) return &p->list[i];
    fail();
    return NULL;
}

static inline void free_parts(parts *p)
{
    for (size_t i = 0; i < p->count; i++) free(p->list[i].values);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

typedef struct files {
    struct {
        char name[224];
        safetensors_entry entry;
        void *data;
        size_t bytes;
        bool gone;
    } list[192];
    size_t count;
} files;

static inline void *add_tensor(files *f, const char *name, tensor_dtype dtype, int dims, const int64_t *shape)
{
    assert_true(f->count < 192);
    size_t i = f->count++, bytes = tensor_dtype_bytes(dtype);
    snprintf(f->list[i].name, sizeof f->list[i].name, "%s", name);
    f->list[i].entry = (safetensors_entry){.dtype = dtype, .dims = dims};
    for (int d = 0; d < dims; d++) f->list[i].entry.shape[d] = shape[d], bytes *= (size_t)shape[d];
    f->list[i].bytes = bytes;
    f->list[i].data = calloc(bytes ? bytes : 1, 1);
    return f->list[i].data;
}

static inline void add_plain(files *f, const char *name, tensor_dtype dtype, bool vector, const part *p)
{
    void *data = add_tensor(f, name, dtype, vector ? 1 : 2, vector ? &p->cols : (int64_t[]){p->rows, p->cols});
    for (int64_t i = 0; i < p->rows * p->cols; i++) {
        if (dtype == TENSOR_F32)
            ((float *)data)[i] = p->values[i];
        else
            ((uint16_t *)data)[i] = bf16_from_float(p->values[i]);
    }
}

static inline size_t find_file(const files *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (!f->list[i].gone && strcmp(f->list[i].name, name) == 0) return i;
    fail_msg("the test has no tensor %s", name);
    return 0;
}

/* Tensors [begin, end) into one file. */
static inline void write_range(const files *f, const char *name, size_t begin, size_t end)
{
    static safetensors_entry entries[192];
    size_t n = 0;
    hy_error err = {0};
    for (size_t i = begin; i < end; i++) {
        if (f->list[i].gone) continue;
        entries[n] = f->list[i].entry;
        entries[n++].name = f->list[i].name;
    }
    safetensors_writer *w = NULL;
    if (safetensors_create(at(name), entries, n, NULL, 0, false, &w, &err) != HY_OK) fail_msg("%s", err.message);
    for (size_t i = begin; i < end; i++)
        if (!f->list[i].gone) assert_int_equal(safetensors_write(w, f->list[i].data, f->list[i].bytes, &err), HY_OK);
    assert_int_equal(safetensors_finish(w, &err), HY_OK);
}

static inline void write_config(const config *c)
{
    char *text = config_write(c, SCHEME_BF16, NULL);
    put_text("config.json", text);
    free(text);
}

static inline void write_model(const files *f)
{
    config c = tiny();
    write_config(&c);
    write_range(f, "model.safetensors", 0, f->count);
}

static inline void free_files(files *f)
{
    for (size_t i = 0; i < f->count; i++) free(f->list[i].data);
    memset(f, 0, sizeof *f);
}

/* ---- Spellings --------------------------------------------------------------------------------------------------- */

typedef enum names { PUBLISHED, UNPREFIXED, COMPRESSED, NATIVE, NATIVE_EXPERTS } names;

/* The name of a module by role, written down once more: prefix aside, what follows "layers.L.". */
static inline const char *module_of(names n, weight_role role)
{
    bool native = n == NATIVE || n == NATIVE_EXPERTS;
    switch (role) {
    case ROLE_INPUT_NORM: return "input_layernorm";
    case ROLE_POST_NORM: return "post_attention_layernorm";
    case ROLE_Q: return "self_attn.q_proj";
    case ROLE_K: return "self_attn.k_proj";
    case ROLE_V: return "self_attn.v_proj";
    case ROLE_O: return "self_attn.o_proj";
    case ROLE_Q_NORM: return "self_attn.q_norm";
    case ROLE_K_NORM: return "self_attn.k_norm";
    case ROLE_INDEX_Q: return native ? "self_attn.indexer.q_proj" : "self_attn.index_q_proj";
    case ROLE_INDEX_K: return native ? "self_attn.indexer.k_proj" : "self_attn.index_k_proj";
    case ROLE_INDEX_Q_NORM: return native ? "self_attn.indexer.q_norm" : "self_attn.index_q_norm";
    case ROLE_INDEX_K_NORM: return native ? "self_attn.indexer.k_norm" : "self_attn.index_k_norm";
    case ROLE_DENSE_GATE: return "mlp.gate_proj";
    case ROLE_DENSE_UP: return "mlp.up_proj";
    case ROLE_DENSE_DOWN: return "mlp.down_proj";
    case ROLE_ROUTER: return native ? "mlp.gate" : "block_sparse_moe.gate";
    case ROLE_SHARED_GATE: return "block_sparse_moe.shared_experts.gate_proj";
    case ROLE_SHARED_UP: return "block_sparse_moe.shared_experts.up_proj";
    case ROLE_SHARED_DOWN: return native ? "mlp.shared_experts.down_proj" : "block_sparse_moe.shared_experts.down_proj";
    default: return NULL;
    }
}

static inline void full_name(names n, const part *p, char out[160])
{
    static const char *const prefix[] = {"language_model.model.", "model.", "language_model.model.",
                                         "model.language_model.", "model.language_model."};
    static const char *const w[] = {"w1", "w3", "w2"}, *const spelt[] = {"gate_proj", "up_proj", "down_proj"};
    bool native = n == NATIVE || n == NATIVE_EXPERTS;
    if (p->role == ROLE_EMBED)
        snprintf(out, 160, "%sembed_tokens", prefix[n]);
    else if (p->role == ROLE_FINAL_NORM)
        snprintf(out, 160, "%snorm", prefix[n]);
    else if (p->role == ROLE_HEAD)
        snprintf(out, 160, "%slm_head", n == PUBLISHED || n == COMPRESSED ? "language_model." : "");
    else if (p->role >= ROLE_EXPERT_GATE && p->role <= ROLE_EXPERT_DOWN) {
        int i = (int)p->role - ROLE_EXPERT_GATE;
        snprintf(out, 160, "%slayers.%d.%s.experts.%d.%s", prefix[n], p->layer, native ? "mlp" : "block_sparse_moe",
                 p->expert, n == PUBLISHED || n == UNPREFIXED ? w[i] : spelt[i]);
    } else
        snprintf(out, 160, "%slayers.%d.%s", prefix[n], p->layer, module_of(n, p->role));
}

/* gate and up fused along rows, and the experts of a layer stacked */
static inline void add_fused(files *f, const parts *p)
{
    static const struct {
        const char *name;
        weight_role gate, up;
        int layer;
    } pairs[] = {
        {"model.language_model.layers.0.mlp.gate_up_proj.weight", ROLE_DENSE_GATE, ROLE_DENSE_UP, 0},
        {"model.language_model.layers.1.mlp.shared_experts.gate_up_proj.weight", ROLE_SHARED_GATE, ROLE_SHARED_UP, 1}};
    for (int k = 0; k < 2; k++) {
        const part *gate = find_part(p, pairs[k].gate, pairs[k].layer, 0),
                   *up = find_part(p, pairs[k].up, pairs[k].layer, 0);
        int64_t n = gate->rows * gate->cols;
        uint16_t *data = add_tensor(f, pairs[k].name, TENSOR_BF16, 2, (int64_t[]){2 * gate->rows, gate->cols});
        for (int64_t i = 0; i < n; i++)
            data[i] = bf16_from_float(gate->values[i]), data[n + i] = bf16_from_float(up->values[i]);
    }
}

static inline void add_stacked(files *f, const parts *p)
{
    uint16_t *fused = add_tensor(f, "model.language_model.layers.1.mlp.experts.gate_up_proj", TENSOR_BF16, 3,
                                 (int64_t[]){2, 192, 64});
    for (int e = 0; e < 2; e++)
        for (int half = 0; half < 2; half++) {
            const part *x = find_part(p, half ? ROLE_EXPERT_UP : ROLE_EXPERT_GATE, 1, e);
            for (int i = 0; i < 96 * 64; i++) *fused++ = bf16_from_float(x->values[i]);
        }
    uint16_t *down =
        add_tensor(f, "model.language_model.layers.1.mlp.experts.down_proj", TENSOR_BF16, 3, (int64_t[]){2, 64, 96});
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < 64 * 96; i++) *down++ = bf16_from_float(find_part(p, ROLE_EXPERT_DOWN, 1, e)->values[i]);
}

static inline files make_plain(const parts *p, names n)
{
    static files f;
    memset(&f, 0, sizeof f);
    bool native = n == NATIVE || n == NATIVE_EXPERTS;
    for (size_t i = 0; i < p->count; i++) {
        const part *x = &p->list[i];
        char name[160];
        bool expert = x->role >= ROLE_EXPERT_GATE && x->role <= ROLE_EXPERT_DOWN;
        bool fused = x->role == ROLE_DENSE_GATE || x->role == ROLE_DENSE_UP || x->role == ROLE_SHARED_GATE ||
                     x->role == ROLE_SHARED_UP;
        if ((native && fused) || (n == NATIVE && expert)) continue;
        if (x->role == ROLE_ROUTER_BIAS) {
            static const char *const bias[] = {"language_model.model.layers.1.block_sparse_moe.e_score_correction_bias",
                                               "model.layers.1.block_sparse_moe.e_score_correction_bias",
                                               "language_model.model.layers.1.block_sparse_moe.e_score_correction_bias",
                                               "model.language_model.layers.1.mlp.gate.e_score_correction_bias",
                                               "model.language_model.layers.1.mlp.gate.e_score_correction_bias"};
            add_plain(&f, bias[n], native ? TENSOR_BF16 : TENSOR_F32, true, x);
            continue;
        }
        full_name(n, x, name);
        strcat(name, ".weight");
        add_plain(&f, name, x->role == ROLE_ROUTER && !native ? TENSOR_F32 : TENSOR_BF16, x->rows == 1, x);
    }
    if (native) add_fused(&f, p);
    if (n == NATIVE) add_stacked(&f, p);
    return f;
}

static inline checkpoint *opened(void)
{
    checkpoint *c = NULL;
    hy_error err = {0};
    if (checkpoint_open(folder, &c, &err) != HY_OK) fail_msg("%s", err.message);
    return c;
}

/* Every role has the values of its part, exactly. */
static inline void check_values(const checkpoint *c, const parts *p)
{
    float row[256];
    for (size_t i = 0; i < p->count; i++) {
        const part *x = &p->list[i];
        weight w;
        hy_error err = {0};
        if (checkpoint_weight(c, x->role, x->layer, x->expert, &w, &err) != HY_OK) fail_msg("%s", err.message);
        assert_int_equal(w.rows, x->rows);
        assert_int_equal(w.cols, x->cols);
        assert_int_equal(weight_bytes(&w), (size_t)(x->rows * x->cols) * (w.format == WEIGHT_F32 ? 4 : 2));
        for (int64_t r = 0; r < w.rows; r++) {
            weight_row(&w, r, row);
            assert_memory_equal(row, x->values + r * x->cols, (size_t)x->cols * sizeof(float));
        }
    }
}

/* ---- Quantised tensors ------------------------------------------------------------------------------------------- */

/* Replaces module.weight by the four tensors of an NVFP4 linear. `global` multiplies the weight before its groups. */
static inline void quantise_nvfp4(files *f, const part *p, const char *module, bool pack, float global)
{
    char name[200];
    snprintf(name, sizeof name, "%s.weight", module);
    f->list[find_file(f, name)].gone = true;
    size_t groups = (size_t)p->cols / 16;
    snprintf(name, sizeof name, "%s.%s", module, pack ? "weight_packed" : "weight");
    uint8_t *data = add_tensor(f, name, TENSOR_U8, 2, (int64_t[]){p->rows, p->cols / 2});
    snprintf(name, sizeof name, "%s.weight_scale", module);
    uint8_t *scales = add_tensor(f, name, TENSOR_F8_E4M3, 2, (int64_t[]){p->rows, p->cols / 16});
    for (int64_t r = 0; r < p->rows; r++)
        nvfp4_weight_quantise_row(p->values + r * p->cols, groups, global, data + (size_t)r * groups * 8,
                                  scales + (size_t)r * groups);
    snprintf(name, sizeof name, "%s.%s", module, pack ? "weight_global_scale" : "weight_scale_2");
    float *outer = add_tensor(f, name, TENSOR_F32, pack ? 1 : 0, (int64_t[]){1});
    *outer = pack ? global : 1 / global;
    snprintf(name, sizeof name, "%s.%s", module, pack ? "input_global_scale" : "input_scale");
    float *input = add_tensor(f, name, TENSOR_F32, pack ? 1 : 0, (int64_t[]){1});
    *input = 1;
}

static inline void quantise_mxfp8(files *f, const part *p, const char *module, tensor_dtype scale_dtype)
{
    char name[200];
    snprintf(name, sizeof name, "%s.weight", module);
    f->list[find_file(f, name)].gone = true;
    size_t blocks = (size_t)p->cols / 32;
    uint8_t *data = add_tensor(f, name, TENSOR_F8_E4M3, 2, (int64_t[]){p->rows, p->cols});
    snprintf(name, sizeof name, "%s.weight_scale_inv", module);
    uint8_t *scales = add_tensor(f, name, scale_dtype, 2, (int64_t[]){p->rows, p->cols / 32});
    for (int64_t r = 0; r < p->rows; r++)
        mxfp8_quantise_row(p->values + r * p->cols, blocks, data + r * p->cols, scales + (size_t)r * blocks);
}

#endif
