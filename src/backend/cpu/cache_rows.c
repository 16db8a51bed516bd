/*
 * Keys, values and index keys into cache blocks and back. What is stored is rounded to bf16 and then by its format; the
 * layout is that of cache_layout in backend/ops.h.
 */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "number/bf16.h"

/* ---- Storing ---------------------------------------------------------------------------------------------------- */

/* One vector of `dim` values; the nvfp4 scale of group g goes to scales[g * stride]. */
static void store(const ops_cache *cache, cache_format format, float scale, const float *x, int dim, uint8_t *data,
                  uint8_t *scales, int stride)
{
    if (format == CACHE_NVFP4) {
        cache->backend->blocks->encode_nvfp4(x, dim, data, scales, stride);
    } else if (format == CACHE_FP8) {
        cache->backend->blocks->encode_e4m3(x, dim, scale, data);
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

void cpu_cache_store(const ops_cache *cache, int layer, int64_t slot, cpu_cached kind, int head, const float *x)
{
    const cache_layout *l = &cache->layout;
    const ops_layer *weights = &cache->backend->model->layer[layer];
    size_t t = (size_t)(slot % CACHE_BLOCK), bytes = l->k_scales / CACHE_BLOCK, groups = (size_t)l->head_dim / UNIT;
    uint8_t *at = kind == CACHED_INDEX ? index_at(cache, layer, slot / CACHE_BLOCK)
                                       : head_at(cache, layer, head, slot / CACHE_BLOCK);
    if (kind == CACHED_KEY)
        store(cache, l->main, weights->k_scale, x, l->head_dim, at + t * bytes, at + l->k_scales + t * groups, 1);
    else if (kind == CACHED_VALUE)
        store(cache, l->main, weights->v_scale, x, l->head_dim, at + l->v_data + t * bytes,
              at + l->v_scales + t / 4 * 4 * groups + t % 4, 4);
    else
        store(cache, l->index, 1, x, l->index_dim, at + t * (l->index_scales / CACHE_BLOCK),
              at + l->index_scales + t * ((size_t)l->index_dim / UNIT), 1);
}

static uint8_t *draft_at(const ops_cache *cache, int layer, int head, int64_t block)
{
    const cache_layout *l = &cache->layout;
    return cache->data + (size_t)block * l->row_bytes + l->draft_offset +
           (size_t)(layer * l->draft_kv_heads + head) * l->draft_head_bytes;
}

void cpu_cache_store_draft(const ops_cache *cache, int layer, int64_t slot, int head, const float *key,
                           const float *value)
{
    const cache_layout *l = &cache->layout;
    uint8_t *at = draft_at(cache, layer, head, slot / CACHE_BLOCK) +
                  (size_t)(slot % CACHE_BLOCK) * cache_vector_bytes(l->draft, l->draft_head_dim);
    store(cache, l->draft, 1, key, l->draft_head_dim, at, NULL, 0);
    store(cache, l->draft, 1, value, l->draft_head_dim, at + l->draft_v_data, NULL, 0);
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

bool cpu_cache_pairs(const ops_cache *cache, cache_format format)
{
    return format == CACHE_NVFP4 && cache->backend->options.read == READBACK_EXACT;
}

cpu_block cpu_cache_head(const ops_cache *cache, int layer, int head, int32_t block, int32_t next)
{
    const cache_layout *l = &cache->layout;
    const uint8_t *at = head_at(cache, layer, head, block);
    return (cpu_block){.dim = l->head_dim,
                       .format = l->main,
                       .integers = cpu_cache_pairs(cache, l->main),
                       .round = cache->backend->options.read == READBACK_E4M3,
                       .keys = at,
                       .key_scales = at + l->k_scales,
                       .values = at + l->v_data,
                       .value_scales = at + l->v_scales,
                       .next = next < 0 ? NULL : head_at(cache, layer, head, next),
                       .next_bytes = l->head_bytes};
}

cpu_block cpu_cache_draft(const ops_cache *cache, int layer, int head, int32_t block, int first, int32_t next)
{
    const cache_layout *l = &cache->layout;
    const uint8_t *at =
        draft_at(cache, layer, head, block) + (size_t)first * cache_vector_bytes(l->draft, l->draft_head_dim);
    return (cpu_block){.dim = l->draft_head_dim,
                       .format = l->draft,
                       .keys = at,
                       .values = at + l->draft_v_data,
                       .next = next < 0 ? NULL : draft_at(cache, layer, head, next),
                       .next_bytes = l->draft_head_bytes};
}

void cpu_cache_score(const ops_cache *cache, int layer, int32_t block, int32_t next, const void *query, int columns,
                     const int32_t *visible, float *best, float *keys, float *scratch)
{
    const cache_layout *l = &cache->layout;
    const cpu_blocks *blocks = cache->backend->blocks;
    const uint8_t *at = index_at(cache, layer, block);
    if (cpu_cache_pairs(cache, l->index)) {
        blocks->score_pairs(at, at + l->index_scales, l->index_dim, query, columns, visible,
                            next >= 0 ? index_at(cache, layer, next) : NULL, best, scratch);
        return;
    }
    int tokens = 0;
    for (int c = 0; c < columns; c++) tokens = visible[c] > tokens ? visible[c] : tokens;
    if (tokens > CACHE_BLOCK) tokens = CACHE_BLOCK;
    blocks->decode(l->index, at, at + l->index_scales, false, cache->backend->options.read == READBACK_E4M3, tokens,
                   l->index_dim, keys);
    blocks->score_keys(keys, l->index_dim, query, columns, visible, best, scratch);
}

int32_t cpu_cache_block(const ops_step *step, int32_t sequence, int32_t b)
{
    return step->rows.block_table[(int64_t)sequence * step->rows.block_table_stride + b];
}
