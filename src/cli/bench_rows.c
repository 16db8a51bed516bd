#include "cli/bench_rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

uint64_t bench_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15; /* SplitMix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

/* ---- Rows ------------------------------------------------------------------------------------------------------- */

hy_status bench_rows_open(int32_t rows, int32_t sequences, int32_t positions, bench_rows *out, hy_error *err)
{
    assert(rows > 0 && sequences > 0 && positions > 0);
    size_t n = (size_t)rows;
    int32_t blocks = (int32_t)(((int64_t)positions + CACHE_BLOCK - 1) / CACHE_BLOCK);
    bench_rows r = {.max_rows = rows, .max_sequences = sequences, .blocks = blocks};
    r.sequence = memory_zeroed(n, sizeof *r.sequence);
    r.position = memory_zeroed(n, sizeof *r.position);
    r.token = memory_zeroed(n, sizeof *r.token);
    r.slot = memory_zeroed(n, sizeof *r.slot);
    r.flags = memory_zeroed(n, sizeof *r.flags);
    size_t entries = (size_t)sequences * (size_t)blocks;
    r.table = memory_zeroed(entries, sizeof *r.table);
    if (!r.sequence || !r.position || !r.token || !r.slot || !r.flags || !r.table) {
        bench_rows_close(&r);
        return error_memory(err, "the rows of a step", n * 32 + entries * 4);
    }
    for (size_t i = 0; i < entries; i++) r.table[i] = (int32_t)i;
    *out = r;
    return HY_OK;
}

void bench_rows_close(bench_rows *r)
{
    void *arrays[] = {r->sequence, r->position, r->token, r->slot, r->flags, r->table};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
    *r = (bench_rows){0};
}

void bench_rows_set(bench_rows *r, int32_t sequences, int32_t context, int32_t count, bool head, int32_t vocab,
                    uint64_t seed)
{
    int32_t each = count / sequences;
    assert(count <= r->max_rows && sequences <= r->max_sequences && count % sequences == 0);
    assert(((int64_t)context + each + CACHE_BLOCK - 1) / CACHE_BLOCK <= r->blocks);
    for (int32_t t = 0; t < count; t++) {
        int32_t s = t / each, position = context + t % each;
        r->sequence[t] = s;
        r->position[t] = position;
        r->token[t] = (int32_t)(bench_random(&seed) % (uint64_t)vocab);
        r->slot[t] = ((int64_t)s * r->blocks + position / CACHE_BLOCK) * CACHE_BLOCK + position % CACHE_BLOCK;
        r->flags[t] = head && t % each == each - 1 ? ROW_LOGITS : 0;
    }
    r->ops = (ops_rows){.count = count,
                        .sequence = r->sequence,
                        .position = r->position,
                        .token = r->token,
                        .slot = r->slot,
                        .flags = r->flags,
                        .sequences = sequences,
                        .block_table = r->table,
                        .block_table_stride = r->blocks};
}

/* ---- Cache ------------------------------------------------------------------------------------------------------ */

/* Bytes that a quantiser can write, of values around one: no NaN, no negative zero, no infinity. */
static uint8_t e4m3_byte(uint64_t bits)
{
    return (uint8_t)((bits & 0x80) | (0x20 + (bits & 0x1F))); /* 1/8 to 1.9 */
}

static uint8_t e2m1_pair(uint64_t bits)
{
    uint8_t low = bits & 15, high = bits >> 4 & 15;
    if (low == 8) low = 0;
    if (high == 8) high = 0;
    return (uint8_t)(low | high << 4);
}

static void fill_data(cache_format format, uint8_t *out, size_t bytes, uint64_t *state)
{
    for (size_t i = 0; i < bytes; i += 4) { /* four bytes from one draw; widths are multiples of four */
        uint64_t bits = bench_random(state);
        uint16_t half[2] = {(uint16_t)(0x3E00 | (bits & 0x81FF)), (uint16_t)(0x3E00 | (bits >> 16 & 0x81FF))};
        float whole = ((float)(int)(bits & 0xFFFF) - 32768) / 16384;
        switch (format) {
        case CACHE_FP32: memcpy(out + i, &whole, 4); break;
        case CACHE_BF16: memcpy(out + i, half, 4); break; /* 1/8 to 2 */
        case CACHE_FP8:
            for (int j = 0; j < 4; j++) out[i + (size_t)j] = e4m3_byte(bits >> (8 * j));
            break;
        case CACHE_NVFP4:
            for (int j = 0; j < 4; j++) out[i + (size_t)j] = e2m1_pair(bits >> (8 * j));
            break;
        }
    }
}

/* E4M3 scales of 1/4 to nearly 1/2. */
static void fill_scales(uint8_t *out, size_t bytes, uint64_t *state)
{
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(0x28 + (bench_random(state) & 7));
}

static void fill_main(const cache_layout *l, uint8_t *head, uint64_t *state)
{
    size_t scales = l->v_data - l->k_scales, data = l->k_scales;
    fill_data(l->main, head, data, state);
    fill_scales(head + l->k_scales, scales, state);
    fill_data(l->main, head + l->v_data, data, state);
    fill_scales(head + l->v_scales, scales, state);
}

static void fill_block(const cache_layout *l, uint8_t *row, uint64_t *state)
{
    for (int layer = 0; layer < l->layers; layer++) {
        for (int h = 0; h < l->kv_heads; h++)
            fill_main(l, row + l->main_offset[layer] + (size_t)h * l->head_bytes, state);
        if (l->index_offset[layer] == CACHE_NO_OFFSET) continue;
        uint8_t *index = row + l->index_offset[layer];
        fill_data(l->index, index, l->index_scales, state);
        fill_scales(index + l->index_scales, CACHE_BLOCK * cache_vector_bytes(l->index, l->index_dim) - l->index_scales,
                    state);
    }
}

static void fill_draft(const cache_layout *l, uint8_t *part, uint64_t *state)
{
    for (int i = 0; i < l->draft_layers * l->draft_kv_heads; i++)
        fill_data(l->draft, part + (size_t)i * l->draft_head_bytes, l->draft_head_bytes, state);
}

/* The index parts come behind all main parts. */
static size_t index_begin(const cache_layout *l)
{
    size_t begin = l->row_bytes;
    for (int layer = 0; layer < l->layers; layer++)
        if (l->index_offset[layer] < begin) begin = l->index_offset[layer];
    return begin;
}

hy_status bench_rows_fill(const hy_ops *ops, ops_cache *cache, const cache_layout *layout, const bench_rows *r,
                          int32_t sequences, int32_t tokens, bool index_only, hy_progress_fn on_progress, hy_error *err)
{
    int32_t blocks = (int32_t)(((int64_t)tokens + CACHE_BLOCK - 1) / CACHE_BLOCK);
    uint8_t *row = memory_zeroed(layout->row_bytes, 1);
    if (!row) return error_memory(err, "a block of cache", layout->row_bytes);
    progress p = {.fn = on_progress, .what = "filling the cache", .unit = "bytes"};
    size_t begin = index_only ? index_begin(layout) : 0;
    p.total = (uint64_t)sequences * (uint64_t)blocks * (layout->row_bytes - begin);
    hy_status status = HY_OK;
    for (int32_t s = 0; s < sequences && status == HY_OK; s++)
        for (int32_t b = 0; b < blocks && status == HY_OK; b++) {
            uint64_t state = ((uint64_t)s << 32) + (uint64_t)b + 1;
            fill_block(layout, row, &state);
            if (layout->draft_offset != CACHE_NO_OFFSET) fill_draft(layout, row + layout->draft_offset, &state);
            ops->cache_write(cache, r->table[(int64_t)s * r->blocks + b], begin, layout->row_bytes - begin,
                             row + begin);
            if (!progress_add(&p, layout->row_bytes - begin))
                status = error_set(err, HY_CANCELLED, "filling the cache was stopped");
        }
    if (status == HY_OK && p.total) progress_end(&p);
    memory_free(row);
    return status;
}

hy_status bench_rows_fill_alike(const hy_ops *ops, ops_cache *cache, const cache_layout *layout, const bench_rows *r,
                                int32_t sequences, int32_t tokens, hy_progress_fn on_progress, hy_error *err)
{
    int32_t blocks = (int32_t)(((int64_t)tokens + CACHE_BLOCK - 1) / CACHE_BLOCK);
    hy_status status = bench_rows_fill(ops, cache, layout, r, 1, tokens, false, on_progress, err);
    for (int32_t s = 1; s < sequences && status == HY_OK; s++)
        for (int32_t b = 0; b < blocks; b++) ops->cache_copy(cache, r->table[b], r->table[(int64_t)s * r->blocks + b]);
    return status;
}
