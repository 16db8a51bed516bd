/* The released geometries, and slices of them. Values: config.json of MiniMaxAI/MiniMax-M3-MXFP8 and of M3.1-Flash. */
#include <string.h>

#include "base/error.h"
#include "checkpoint/config.h"

const char config_known_names[] = "m3.1-flash, m3, m3-mxfp8";

static void fill_common(config *c)
{
    c->layers = 60, c->hidden = 6144, c->vocab = 200064, c->max_positions = 1048576;
    c->heads = 64, c->kv_heads = 4, c->head_dim = 128, c->rotary_dim = 64;
    c->rope_theta = 5e6f, c->norm_eps = 1e-6f;
    c->experts = 128, c->experts_per_token = 4;
    c->expert_width = 3072, c->shared_width = 3072, c->dense_width = 12288;
    c->shared_expert = true;
    c->routed_scaling = 2.0f, c->swiglu_alpha = 1.702f, c->swiglu_limit = 7.0f;
    c->index_heads = 4, c->index_dim = 128, c->index_block = 128, c->index_top = 16, c->index_local = 1;
    for (int i = 3; i < c->layers; i++) c->sparse[i] = c->moe[i] = 1;
    c->bos = 200034, c->eos = 200020, c->image_token = 200025, c->video_token = 200026;
    c->vision_layers = 32, c->vision_hidden = 1280, c->vision_heads = 16, c->vision_width = 5120;
    c->vision_patch = 14, c->vision_temporal = 2, c->vision_merge = 2, c->projector_hidden = 6144;
    strcpy(c->model_type, "minimax_m3_vl");
}

bool config_known(const char *name, config *out)
{
    bool m31 = strcmp(name, "m3.1-flash") == 0, mxfp8 = strcmp(name, "m3-mxfp8") == 0;
    if (!m31 && !mxfp8 && strcmp(name, "m3") != 0) return false;
    memset(out, 0, sizeof *out);
    fill_common(out);
    if (m31 || mxfp8) strcpy(out->quant_method, "mxfp8");
    if (m31) {
        memset(out->sparse, 1, (size_t)out->layers);
        strcpy(out->moe_quant, "NVFP4");
        strcpy(out->moe_quant_format, "nvfp4-pack-quantized");
    } else {
        out->mtp_modules = 1;
    }
    return true;
}

hy_status config_slice(config *c, int layers, int dense_layers, hy_error *err)
{
    int dense_here = 0, dense_first = 0;
    for (int i = 0; i < c->layers; i++) {
        dense_here += !c->moe[i];
        if (i < layers) dense_first += !c->moe[i];
    }
    if (dense_layers < 0) dense_layers = dense_first;
    if (layers < 1 || layers > c->layers)
        return error_at(err, HY_USAGE, "--layers", "a slice of %d layers is not possible: the geometry has %d", layers,
                        c->layers);
    if (dense_layers > dense_here || dense_layers > layers || layers - dense_layers > c->layers - dense_here)
        return error_at(err, HY_USAGE, "--dense-layers",
                        "%d dense layers of %d are not possible: the geometry has %d dense ones and %d with experts",
                        dense_layers, layers, dense_here, c->layers - dense_here);
    /* Layers keep their order and their kind of attention; of each kind of feed-forward the first ones are taken. */
    int dense_left = dense_layers, moe_left = layers - dense_layers, n = 0;
    for (int i = 0; i < c->layers; i++) {
        int *left = c->moe[i] ? &moe_left : &dense_left;
        if (*left == 0) continue;
        --*left;
        c->sparse[n] = c->sparse[i], c->moe[n] = c->moe[i];
        n++;
    }
    memset(c->sparse + n, 0, (size_t)(CONFIG_MAX_LAYERS - n));
    memset(c->moe + n, 0, (size_t)(CONFIG_MAX_LAYERS - n));
    c->layers = n;
    if (!memchr(c->sparse, 1, (size_t)n))
        c->index_heads = c->index_dim = c->index_block = c->index_top = c->index_local = 0;
    return HY_OK;
}
