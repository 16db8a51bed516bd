/*
 * Keys, values and index keys into cache blocks and back. What is stored is rounded to bf16 and then by its format; the
 * layout is that of cache_layout in backend/ops.h.
 */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/nvfp4.h"

/* ---- Storing ---------------------------------------------------------------------------------------------------- */

/* One vector of `dim` values; the nvfp4 scale of group g goes to scales[g * stride]. */
static void store(cache_format format, float scale, const float *x, int dim, uint8_t *data, uint8_t *scales, int stride)
{
    if (format == CACHE_NVFP4) {
        for (int g = 0; g < dim / NVFP4_GROUP; g++) {
            float rounded[NVFP4_GROUP];
            for (int i = 0; i < NVFP4_GROUP; i++) rounded[i] = bf16_round(x[g * NVFP4_GROUP + i]);
            nvfp4_cache_quantise(rounded, data + g * NVFP4_GROUP_BYTES, scales + g * stride);
        }
    } else if (format == CACHE_FP8) {
        for (int i = 0; i < dim; i++) data[i] = e4m3_from_float(bf16_round(x[i]) / scale);
    } else {
        for (int i = 0; i < dim; i++) {
            uint16_t half = bf16_from_float(x[i]);
            memcpy(data + 2 * i, &half, sizeof half);
        }
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

void cpu_cache_store(const ops_cache *cache, int layer, int64_t slot, const float *k, const float *v,
                     const float *index_k)
{
    const cache_layout *l = &cache->layout;
    const ops_layer *weights = &cache->backend->model->layer[layer];
    size_t t = (size_t)(slot % CACHE_BLOCK), bytes = l->k_scales / CACHE_BLOCK,
           groups = (size_t)l->head_dim / NVFP4_GROUP;
    for (int head = 0; head < l->kv_heads; head++, k += l->head_dim, v += l->head_dim) {
        uint8_t *at = head_at(cache, layer, head, slot / CACHE_BLOCK);
        store(l->main, weights->k_scale, k, l->head_dim, at + t * bytes, at + l->k_scales + t * groups, 1);
        store(l->main, weights->v_scale, v, l->head_dim, at + l->v_data + t * bytes,
              at + l->v_scales + t / 4 * 4 * groups + t % 4, 4);
    }
    if (!index_k) return;
    uint8_t *at = index_at(cache, layer, slot / CACHE_BLOCK);
    store(l->index, 1, index_k, l->index_dim, at + t * (l->index_scales / CACHE_BLOCK),
          at + l->index_scales + t * ((size_t)l->index_dim / NVFP4_GROUP), 1);
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

/* Vectors [tokens, dim] with the scale of (token, group) at scales[offset(token, group)]. */
static void load_nvfp4(const uint8_t *data, const uint8_t *scales, bool quads, bool e4m3, int tokens, int dim,
                       float *out)
{
    int groups = dim / NVFP4_GROUP;
    for (int t = 0; t < tokens; t++) {
        const uint8_t *s = quads ? scales + t / 4 * 4 * groups + t % 4 : scales + t * groups;
        for (int g = 0; g < groups; g++, data += NVFP4_GROUP_BYTES, out += NVFP4_GROUP) {
            float scale = e4m3_to_float(s[quads ? g * 4 : g]);
            for (int i = 0; i < NVFP4_GROUP_BYTES; i++) {
                out[2 * i] = e2m1_table[data[i] & 15] * scale;
                out[2 * i + 1] = e2m1_table[data[i] >> 4] * scale;
            }
            for (int i = 0; i < NVFP4_GROUP && e4m3; i++) out[i] = e4m3_round(out[i]);
        }
    }
}

static void load(const ops_cache *cache, float scale, const uint8_t *data, const uint8_t *scales, bool quads,
                 int tokens, float *out)
{
    const cache_layout *l = &cache->layout;
    int count = tokens * l->head_dim;
    if (l->main == CACHE_NVFP4) {
        load_nvfp4(data, scales, quads, cache->backend->options.read == READBACK_E4M3, tokens, l->head_dim, out);
    } else if (l->main == CACHE_FP8) {
        for (int i = 0; i < count; i++) out[i] = e4m3_to_float(data[i]) * scale;
    } else {
        for (int i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, data + 2 * i, sizeof half);
            out[i] = bf16_to_float(half);
        }
    }
}

void cpu_cache_keys(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out)
{
    const uint8_t *at = head_at(cache, layer, head, block);
    load(cache, cache->backend->model->layer[layer].k_scale, at, at + cache->layout.k_scales, false, tokens, out);
}

void cpu_cache_values(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out)
{
    const uint8_t *at = head_at(cache, layer, head, block);
    load(cache, cache->backend->model->layer[layer].v_scale, at + cache->layout.v_data, at + cache->layout.v_scales,
         true, tokens, out);
}

/*
 * 16 tokens at a time are laid out as a panel of packed weights, 32 bits of a token in its lane, and decoded by the
 * same kernels: tokens take the place of outputs.
 */
void cpu_cache_index_keys(const ops_cache *cache, int layer, int32_t block, uint8_t *bytes, float *out)
{
    const cache_layout *l = &cache->layout;
    const cpu_kernels *kernels = cache->backend->kernels;
    int dim = l->index_dim, row = (int)(l->index_scales / CACHE_BLOCK), groups = dim / NVFP4_GROUP;
    const uint8_t *data = index_at(cache, layer, block), *scales = data + l->index_scales;
    bool nvfp4 = l->index == CACHE_NVFP4;
    for (int first = 0; first < CACHE_BLOCK; first += LANES, out += (size_t)dim * LANES) {
        for (int n = 0; n < LANES; n++, data += row) {
            for (int at = 0; at < row; at += 4) {
                int line = nvfp4 ? at / (NVFP4_UNIT / 2) * NVFP4_UNIT_LINES + at % (NVFP4_UNIT / 2) / 4 : at / 4;
                memcpy(bytes + line * LINE + 4 * n, data + at, row - at < 4 ? (size_t)(row - at) : 4);
            }
            for (int g = 0; g < groups && nvfp4; g++)
                bytes[(g / 4 * NVFP4_UNIT_LINES + NVFP4_UNIT_LINES - 1) * LINE + 4 * n + g % 4] = *scales++;
        }
        if (nvfp4)
            kernels->decode_nvfp4(bytes, 0, dim, out);
        else if (l->index == CACHE_FP8)
            kernels->decode_e4m3(bytes, 0, dim, out);
        else
            kernels->decode_bf16(bytes, 0, dim, out);
        for (int i = 0; i < dim * LANES && nvfp4 && cache->backend->options.read == READBACK_E4M3; i++)
            out[i] = e4m3_round(out[i]);
    }
}

int32_t cpu_cache_block(const ops_step *step, int32_t sequence, int32_t b)
{
    return step->rows.block_table[(int64_t)sequence * step->rows.block_table_stride + b];
}
