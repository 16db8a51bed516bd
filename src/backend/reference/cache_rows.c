/*
 * Keys, values and index keys, and those of a drafter's context, on their way into cache blocks and back.
 *
 * What enters a cache other than fp32 is rounded to bf16 first, since that is what the projections of other backends
 * hand to the quantiser; then nvfp4 takes E4M3 scales per 16 dims and E2M1 codes, fp8 the E4M3 of x / scale.
 */
#include "backend/reference/reference.h"
#include "number/bf16.h"
#include "number/e4m3.h"
#include "number/nvfp4.h"

#include <string.h>

/* One vector of `dim` values; group g has its nvfp4 scale at scales[g * stride]. */
static void encode(cache_format format, float scale, const float *x, int dim, uint8_t *data, uint8_t *scales,
                   int stride)
{
    switch (format) {
    case CACHE_FP32: memcpy(data, x, (size_t)dim * sizeof *x); break;
    case CACHE_BF16:
        for (int i = 0; i < dim; i++) {
            uint16_t code = bf16_from_float(x[i]);
            memcpy(data + 2 * i, &code, sizeof code);
        }
        break;
    case CACHE_FP8:
        for (int i = 0; i < dim; i++) data[i] = e4m3_from_float(bf16_round(x[i]) / scale);
        break;
    case CACHE_NVFP4:
        for (int g = 0; g < dim / NVFP4_GROUP; g++) {
            float rounded[NVFP4_GROUP];
            for (int i = 0; i < NVFP4_GROUP; i++) rounded[i] = bf16_round(x[g * NVFP4_GROUP + i]);
            nvfp4_cache_quantise(rounded, data + g * NVFP4_GROUP_BYTES, scales + g * stride);
        }
        break;
    }
}

static void decode(cache_format format, readback read, float scale, const uint8_t *data, const uint8_t *scales,
                   int stride, int dim, float *out)
{
    switch (format) {
    case CACHE_FP32: memcpy(out, data, (size_t)dim * sizeof *out); break;
    case CACHE_BF16:
        for (int i = 0; i < dim; i++) {
            uint16_t code;
            memcpy(&code, data + 2 * i, sizeof code);
            out[i] = bf16_to_float(code);
        }
        break;
    case CACHE_FP8:
        for (int i = 0; i < dim; i++) out[i] = e4m3_to_float(data[i]) * scale;
        break;
    case CACHE_NVFP4:
        for (int g = 0; g < dim / NVFP4_GROUP; g++)
            nvfp4_decode_row(data + g * NVFP4_GROUP_BYTES, scales + g * stride, 1,
                             read == READBACK_E4M3 ? NVFP4_E4M3 : NVFP4_EXACT, out + g * NVFP4_GROUP);
        break;
    }
}

static uint8_t *head_at(const ops_cache *cache, int layer, int head, int64_t block)
{
    const cache_layout *l = &cache->layout;
    return cache->data + (size_t)block * l->row_bytes + l->main_offset[layer] + (size_t)head * l->head_bytes;
}

static uint8_t *index_at(const ops_cache *cache, int layer, int64_t block)
{
    return cache->data + (size_t)block * cache->layout.row_bytes + cache->layout.index_offset[layer];
}

/* Scales of token t: K and index keys [128][G], values in quads of tokens. */
static size_t linear_scale(int dim, int t)
{
    return (size_t)t * (size_t)(dim / NVFP4_GROUP);
}

static size_t quad_scale(int dim, int t)
{
    return (size_t)(t / 4 * 4) * (size_t)(dim / NVFP4_GROUP) + (size_t)(t % 4);
}

void reference_cache_store(ops_step *step, int layer)
{
    const ops_model *m = step->backend->model;
    const ops_layer *weights = &m->layer[layer];
    const ops_cache *cache = step->cache;
    const cache_layout *l = &cache->layout;
    size_t bytes = l->k_scales / CACHE_BLOCK; /* data of one vector */
    for (int32_t row = 0; row < step->rows.count; row++) {
        int64_t slot = step->rows.slot[row];
        if (slot < 0 || step->rows.sequence[row] < 0) continue;
        int t = (int)(slot % CACHE_BLOCK);
        for (int head = 0; head < m->kv_heads; head++) {
            uint8_t *at = head_at(cache, layer, head, slot / CACHE_BLOCK);
            size_t from = ((size_t)row * (size_t)m->kv_heads + (size_t)head) * (size_t)m->head_dim;
            encode(l->main, weights->k_scale, step->k + from, m->head_dim, at + (size_t)t * bytes,
                   at + l->k_scales + linear_scale(m->head_dim, t), 1);
            encode(l->main, weights->v_scale, step->v + from, m->head_dim, at + l->v_data + (size_t)t * bytes,
                   at + l->v_scales + quad_scale(m->head_dim, t), 4);
        }
        if (!weights->sparse) continue;
        uint8_t *at = index_at(cache, layer, slot / CACHE_BLOCK);
        encode(l->index, 1, step->index_k + (size_t)row * (size_t)m->index_dim, m->index_dim,
               at + (size_t)t * (l->index_scales / CACHE_BLOCK), at + l->index_scales + linear_scale(m->index_dim, t),
               1);
    }
}

void reference_cache_keys(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out)
{
    const cache_layout *l = &cache->layout;
    const uint8_t *at = head_at(cache, layer, head, block);
    float scale = cache->backend->model->layer[layer].k_scale;
    for (int t = 0; t < tokens; t++)
        decode(l->main, cache->backend->options.read, scale, at + (size_t)t * (l->k_scales / CACHE_BLOCK),
               at + l->k_scales + linear_scale(l->head_dim, t), 1, l->head_dim, out + t * l->head_dim);
}

void reference_cache_values(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out)
{
    const cache_layout *l = &cache->layout;
    const uint8_t *at = head_at(cache, layer, head, block);
    float scale = cache->backend->model->layer[layer].v_scale;
    for (int t = 0; t < tokens; t++)
        decode(l->main, cache->backend->options.read, scale, at + l->v_data + (size_t)t * (l->k_scales / CACHE_BLOCK),
               at + l->v_scales + quad_scale(l->head_dim, t), 4, l->head_dim, out + t * l->head_dim);
}

void reference_cache_index_keys(const ops_cache *cache, int layer, int32_t block, int tokens, float *out)
{
    const cache_layout *l = &cache->layout;
    const uint8_t *at = index_at(cache, layer, block);
    for (int t = 0; t < tokens; t++)
        decode(l->index, cache->backend->options.read, 1, at + (size_t)t * (l->index_scales / CACHE_BLOCK),
               at + l->index_scales + linear_scale(l->index_dim, t), 1, l->index_dim, out + t * l->index_dim);
}

/* ---- The drafter's part ------------------------------------------------------------------------------------------ */

static uint8_t *draft_at(const ops_cache *cache, int layer, int head, int64_t block)
{
    const cache_layout *l = &cache->layout;
    size_t heads = (size_t)layer * (size_t)l->draft_kv_heads + (size_t)head;
    return cache->data + (size_t)block * l->row_bytes + l->draft_offset + heads * l->draft_head_bytes;
}

void reference_cache_draft_store(ops_step *step, int layer, const float *k, const float *v)
{
    const cache_layout *l = &step->cache->layout;
    size_t bytes = cache_vector_bytes(l->draft, l->draft_head_dim);
    for (int32_t row = 0; row < step->rows.count; row++) {
        int64_t slot = step->rows.slot[row];
        if (slot < 0 || step->rows.sequence[row] < 0) continue;
        for (int head = 0; head < l->draft_kv_heads; head++) {
            uint8_t *at = draft_at(step->cache, layer, head, slot / CACHE_BLOCK) + (size_t)(slot % CACHE_BLOCK) * bytes;
            size_t from = ((size_t)row * (size_t)l->draft_kv_heads + (size_t)head) * (size_t)l->draft_head_dim;
            encode(l->draft, 1, k + from, l->draft_head_dim, at, NULL, 0);
            encode(l->draft, 1, v + from, l->draft_head_dim, at + l->draft_v_data, NULL, 0);
        }
    }
}

static void draft_vectors(const cache_layout *l, const uint8_t *at, int tokens, float *out)
{
    size_t bytes = cache_vector_bytes(l->draft, l->draft_head_dim);
    for (int t = 0; t < tokens; t++)
        decode(l->draft, READBACK_EXACT, 1, at + (size_t)t * bytes, NULL, 0, l->draft_head_dim,
               out + t * l->draft_head_dim);
}

void reference_cache_draft_keys(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out)
{
    draft_vectors(&cache->layout, draft_at(cache, layer, head, block), tokens, out);
}

void reference_cache_draft_values(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out)
{
    draft_vectors(&cache->layout, draft_at(cache, layer, head, block) + cache->layout.draft_v_data, tokens, out);
}

int32_t reference_cache_block(const ops_step *step, int32_t t, int32_t b)
{
    const ops_rows *rows = &step->rows;
    return rows->block_table[(int64_t)rows->sequence[t] * rows->block_table_stride + b];
}
