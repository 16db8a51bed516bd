#include "backend/host.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* ---- Model ------------------------------------------------------------------------------------------------------- */

static hy_status check_drafter(const ops_model *m, hy_error *err)
{
    const ops_drafter *d = m->drafter;
    if (d->kv_heads < 1 || d->heads % d->kv_heads)
        return error_set(err, HY_UNSUPPORTED, "%d query heads of the drafter cannot share %d KV heads evenly", d->heads,
                         d->kv_heads);
    if (d->rotary_dim % 2 || d->rotary_dim > d->head_dim)
        return error_set(err, HY_UNSUPPORTED, "a rotary dim of %d does not fit the drafter's heads of %d",
                         d->rotary_dim, d->head_dim);
    if (d->block < 1 || d->block > DRAFT_MAX_BLOCK)
        return error_set(err, HY_UNSUPPORTED, "the drafter makes %d tokens at once; 1 to %d are supported", d->block,
                         DRAFT_MAX_BLOCK);
    if (d->window < d->block)
        return error_set(err, HY_UNSUPPORTED, "the drafter's window of %d tokens is smaller than its block of %d",
                         d->window, d->block);
    if (d->tap_count < 1 || d->tap_count > DRAFT_MAX_TAPS)
        return error_set(err, HY_UNSUPPORTED, "the drafter listens to %d layers; 1 to %d are supported", d->tap_count,
                         DRAFT_MAX_TAPS);
    for (int i = 0; i < d->tap_count; i++)
        if (d->tap[i] < 0 || d->tap[i] >= m->layers)
            return error_set(err, HY_UNSUPPORTED, "the drafter listens to layer %d of %d", d->tap[i], m->layers);
    if (d->noise_token < 0 || d->noise_token >= m->vocab)
        return error_set(err, HY_UNSUPPORTED, "the drafter's noise token %d is outside the vocabulary 0..%d",
                         d->noise_token, m->vocab - 1);
    if (d->cache == CACHE_NVFP4)
        return error_set(err, HY_UNSUPPORTED, "the drafter's cache cannot be nvfp4: choose fp8 or bf16");
    return HY_OK;
}

hy_status host_check_model(const char *backend, const ops_model *m, const ops_options *o, hy_error *err)
{
    bool sparse = false;
    for (int l = 0; l < m->layers; l++) sparse |= m->layer[l].sparse;
    if (o->shard.ranks > 1)
        return error_set(err, HY_UNSUPPORTED, "the %s backend runs on one rank, not %d", backend, o->shard.ranks);
    if (m->heads % m->kv_heads)
        return error_set(err, HY_UNSUPPORTED, "%d query heads cannot share %d KV heads evenly", m->heads, m->kv_heads);
    if (sparse && m->index_heads != m->kv_heads)
        return error_set(err, HY_UNSUPPORTED, "%d index heads for %d KV heads: there must be one for each",
                         m->index_heads, m->kv_heads);
    if (m->rotary_dim % 2 || m->rotary_dim > m->head_dim || (sparse && m->rotary_dim > m->index_dim))
        return error_set(err, HY_UNSUPPORTED, "a rotary dim of %d does not fit heads of %d", m->rotary_dim,
                         m->head_dim);
    if (o->activation == MOE_ACTIVATION_NVFP4 && (m->hidden % 16 || m->expert_width % 16))
        return error_set(err, HY_UNSUPPORTED, "nvfp4 activations need widths that are multiples of 16, not %d and %d",
                         m->hidden, m->expert_width);
    return m->drafter ? check_drafter(m, err) : HY_OK;
}

/* ---- Cache ------------------------------------------------------------------------------------------------------- */

void host_cache_close(ops_cache *cache)
{
    if (!cache) return;
    cache_layout_free(&cache->layout);
    memory_free(cache->data);
    memory_free(cache);
}

static size_t *copy_offsets(const size_t *offsets, int layers)
{
    size_t *copy = memory_alloc((size_t)layers, sizeof *copy);
    if (copy) memcpy(copy, offsets, (size_t)layers * sizeof *copy);
    return copy;
}

hy_status host_cache_open(ops_backend *backend, const cache_layout *layout, int32_t blocks, bool zeroed,
                          ops_cache **out, hy_error *err)
{
    assert(blocks > 0);
    ops_cache *cache = memory_zeroed(1, sizeof *cache);
    if (!cache) return error_memory(err, "a cache", sizeof *cache);
    *cache = (ops_cache){.backend = backend, .layout = *layout, .blocks = blocks};
    cache->layout.main_offset = copy_offsets(layout->main_offset, layout->layers);
    cache->layout.index_offset = copy_offsets(layout->index_offset, layout->layers);
    cache->data = (zeroed ? memory_zeroed : memory_alloc)((size_t)blocks, layout->row_bytes);
    if (!cache->layout.main_offset || !cache->layout.index_offset || !cache->data) {
        host_cache_close(cache);
        return error_memory(err, "the cache", (size_t)blocks * layout->row_bytes);
    }
    *out = cache;
    return HY_OK;
}

static uint8_t *cache_bytes(ops_cache *cache, int32_t block, size_t offset, size_t bytes)
{
    assert(block >= 0 && block < cache->blocks);
    assert(offset <= cache->layout.row_bytes && bytes <= cache->layout.row_bytes - offset);
    return cache->data + (size_t)block * cache->layout.row_bytes + offset;
}

void host_cache_read(ops_cache *cache, int32_t block, size_t offset, size_t bytes, void *out)
{
    memcpy(out, cache_bytes(cache, block, offset, bytes), bytes);
}

void host_cache_write(ops_cache *cache, int32_t block, size_t offset, size_t bytes, const void *in)
{
    memcpy(cache_bytes(cache, block, offset, bytes), in, bytes);
}

void host_cache_copy(ops_cache *cache, int32_t from, int32_t to)
{
    size_t bytes = cache->layout.row_bytes;
    if (from != to) memcpy(cache_bytes(cache, to, 0, bytes), cache_bytes(cache, from, 0, bytes), bytes);
}

/* ---- Arrays ------------------------------------------------------------------------------------------------------ */

hy_status host_arrays_open(const host_array *arrays, size_t n, hy_error *err)
{
    for (size_t i = 0; i < n; i++) {
        size_t count = SIZE_MAX;
        void *memory = NULL;
        if (size_mul(arrays[i].rows, arrays[i].columns, &count))
            memory = memory_zeroed(count ? count : 1, arrays[i].size);
        if (!memory) return error_memory(err, "the tensors of a step", count);
        memcpy(arrays[i].at, &memory, sizeof memory);
    }
    return HY_OK;
}

uint64_t host_arrays_bytes(const host_array *arrays, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        size_t one = SIZE_MAX / 2;
        if (size_mul(arrays[i].rows, arrays[i].columns, &one)) size_mul(one, arrays[i].size, &one);
        bytes += one;
    }
    return bytes;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* What a replay imposes must be such that the row could have chosen it. */
static hy_status check_replay(const ops_model *m, const ops_rows *rows, int32_t t, hy_error *err)
{
    int64_t blocks = (int64_t)m->index_heads * m->index_top;
    for (int64_t l = 0; l < m->layers; l++) {
        for (int64_t i = 0; i < blocks && rows->flags[t] & ROW_REPLAY_BLOCKS && m->layer[l].sparse; i++) {
            int32_t b = rows->replay_blocks[(l * rows->count + t) * blocks + i];
            if (b < -1 || b > rows->position[t] / CACHE_BLOCK)
                return error_set(err, HY_BAD_INPUT, "replayed block %d of layer %d is not visible at position %d", b,
                                 (int)l, rows->position[t]);
        }
        for (int i = 0; i < m->experts_per_token && rows->flags[t] & ROW_REPLAY_ROUTES && m->layer[l].moe; i++) {
            int32_t e = rows->replay_routes[(l * rows->count + t) * m->experts_per_token + i];
            if (e < 0 || e >= m->experts)
                return error_set(err, HY_BAD_INPUT, "replayed expert %d of layer %d is outside 0..%d", e, (int)l,
                                 m->experts - 1);
        }
    }
    return HY_OK;
}

hy_status host_check_row(const ops_model *m, const ops_limits *limits, const ops_cache *cache, const ops_rows *rows,
                         int32_t t, hy_error *err)
{
    if (rows->sequence[t] < 0) return HY_OK;
    if (rows->token[t] < 0 || rows->token[t] >= m->vocab)
        return error_set(err, HY_BAD_INPUT, "token id %d is outside the vocabulary 0..%d", rows->token[t],
                         m->vocab - 1);
    if (rows->position[t] < 0 || rows->position[t] >= limits->positions)
        return error_set(err, HY_NO_FIT, "position %d is beyond the %d that the step was opened for", rows->position[t],
                         limits->positions);
    assert(rows->sequence[t] < rows->sequences && rows->position[t] / CACHE_BLOCK < rows->block_table_stride);
    assert(rows->slot[t] < (int64_t)cache->blocks * CACHE_BLOCK);
    return check_replay(m, rows, t, err);
}

/* ---- Verify ------------------------------------------------------------------------------------------------------ */

size_t host_verify_scratch(const ops_limits *limits, int32_t vocab)
{
    return limits->drafts ? verify_scratch_bytes(vocab) : sample_scratch_bytes(vocab);
}

void host_verify(const ops_limits *limits, const float *logits, int32_t logit_rows, int32_t vocab,
                 const float *draft_logits, const ops_verify *v, void *scratch)
{
    assert(v->drafts == 0 || v->method == VERIFY_COUPLED || limits->drafts > 0);
    assert(v->law < 0 || (limits->draft_laws && v->law < limits->drafts && v->drafts <= limits->draft_rows));
    const float *laws = v->law < 0 ? NULL : draft_logits + (int64_t)v->law * limits->draft_rows * vocab;
    v->out[0] = (ops_sampled){.id = SAMPLED_NONE};
    *v->count = 1;
    for (int32_t j = 0; j <= v->drafts; j++)
        if (v->row[j].logit_row >= logit_rows) return;
    verify_sequence(logits, vocab, v, laws, scratch);
}
