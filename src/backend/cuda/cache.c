/* Blocks in the GPU's memory. */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

static size_t *copy_offsets(const size_t *offsets, int layers)
{
    size_t *copy = memory_alloc((size_t)layers, sizeof *copy);
    if (copy) memcpy(copy, offsets, (size_t)layers * sizeof *copy);
    return copy;
}

hy_status cuda_cache_open(ops_backend *b, const cache_layout *layout, int32_t blocks, ops_cache **out, hy_error *err)
{
    assert(layout->layers == b->model->layers && layout->head_dim == b->model->head_dim && blocks > 0);
    if (layout->main == CACHE_FP32 || layout->index == CACHE_FP32 ||
        (layout->draft_offset != CACHE_NO_OFFSET && layout->draft_layers > 0 && layout->draft == CACHE_FP32))
        return error_set(err, HY_UNSUPPORTED, "the cuda backend has no fp32 cache: choose bf16, fp8 or nvfp4");
    size_t bytes;
    if (!size_mul((size_t)blocks, layout->row_bytes, &bytes)) return error_memory(err, "the cache", SIZE_MAX);
    ops_cache *cache = memory_zeroed(1, sizeof *cache);
    if (!cache) return error_memory(err, "a cache", sizeof *cache);
    *cache = (ops_cache){.backend = b, .layout = *layout, .blocks = blocks};
    cache->layout.main_offset = copy_offsets(layout->main_offset, layout->layers);
    cache->layout.index_offset = copy_offsets(layout->index_offset, layout->layers);
    hy_status status = HY_OK;
    if (!cache->layout.main_offset || !cache->layout.index_offset) status = error_memory(err, "a cache", sizeof *cache);
    void *data = NULL;
    if (status == HY_OK) status = b->gpu->calls->alloc(b->gpu, bytes, "the cache", &data, err);
    cache->data = data;
    if (status != HY_OK) {
        cuda_cache_close(cache);
        return status;
    }
    *out = cache;
    return HY_OK;
}

void cuda_cache_close(ops_cache *cache)
{
    if (!cache) return;
    gpu *g = cache->backend->gpu;
    if (cache->data) g->calls->free(g, cache->data);
    cache_layout_free(&cache->layout);
    memory_free(cache);
}

/* What the thread that drives a step reads and writes takes its turn with the operations that it asked for. Others do
 * it beside: their blocks are none of the step's. */
static bool drives(ops_backend *b)
{
    return atomic_load(&b->running) && pthread_equal(b->driver, pthread_self());
}

static uint8_t *bytes_at(const ops_cache *cache, int32_t block, size_t offset, size_t bytes)
{
    assert(block >= 0 && block < cache->blocks);
    assert(offset <= cache->layout.row_bytes && bytes <= cache->layout.row_bytes - offset);
    (void)bytes;
    return cache->data + (size_t)block * cache->layout.row_bytes + offset;
}

void cuda_cache_read(ops_cache *cache, int32_t block, size_t offset, size_t bytes, void *out)
{
    gpu *g = cache->backend->gpu;
    bool beside = g->calls->read_beside && !drives(cache->backend);
    (beside ? g->calls->read_beside : g->calls->read)(g, bytes_at(cache, block, offset, bytes), out, bytes);
}

void cuda_cache_write(ops_cache *cache, int32_t block, size_t offset, size_t bytes, const void *in)
{
    gpu *g = cache->backend->gpu;
    bool beside = g->calls->write_beside && !drives(cache->backend);
    (beside ? g->calls->write_beside : g->calls->write)(g, bytes_at(cache, block, offset, bytes), in, bytes);
}

void cuda_cache_copy(ops_cache *cache, int32_t from, int32_t to)
{
    gpu *g = cache->backend->gpu;
    size_t bytes = cache->layout.row_bytes;
    if (from != to) g->calls->copy(g, bytes_at(cache, to, 0, bytes), bytes_at(cache, from, 0, bytes), bytes);
}
