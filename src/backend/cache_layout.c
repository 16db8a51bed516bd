/* The row of a cache block: where each layer's keys, values, index keys and their scales lie, and the drafter's part.
 */
#include "backend/ops.h"
#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum { ROW_ALIGNMENT = 64, SCALE_GROUP = 16 };

static const struct {
    const char *name, *other;
} format_names[] = {
    [CACHE_FP32] = {"fp32", "float32"},
    [CACHE_BF16] = {"bf16", "bfloat16"},
    [CACHE_FP8] = {"fp8", "fp8_e4m3"},
    [CACHE_NVFP4] = {"nvfp4", "nvfp4"},
};

const char *cache_format_name(cache_format format)
{
    return format_names[format].name;
}

bool cache_format_parse(const char *name, cache_format *format)
{
    for (size_t i = 0; i < sizeof format_names / sizeof *format_names; i++) {
        if (strcmp(name, format_names[i].name) != 0 && strcmp(name, format_names[i].other) != 0) continue;
        *format = (cache_format)i;
        return true;
    }
    return false;
}

static size_t data_bytes(cache_format format, int dim)
{
    switch (format) {
    case CACHE_FP32: return (size_t)dim * 4;
    case CACHE_BF16: return (size_t)dim * 2;
    case CACHE_FP8: return (size_t)dim;
    case CACHE_NVFP4: return (size_t)dim / 2;
    }
    return 0;
}

static size_t scale_bytes(cache_format format, int dim)
{
    return format == CACHE_NVFP4 ? (size_t)dim / SCALE_GROUP : 0;
}

size_t cache_vector_bytes(cache_format format, int dim)
{
    return data_bytes(format, dim) + scale_bytes(format, dim);
}

static hy_status check_dim(const char *what, cache_format format, int dim, hy_error *err)
{
    if (format != CACHE_NVFP4 || dim % SCALE_GROUP == 0) return HY_OK;
    return error_set(err, HY_UNSUPPORTED,
                     "an nvfp4 cache needs a %s that is a multiple of 16, not %d: choose bf16 or fp8", what, dim);
}

/* The drafter's part lies behind `row`, which it moves on. All sizes are multiples of 128, as the others are. False:
 * larger than memory can be. */
static bool add_draft(const ops_drafter *d, cache_layout *made, size_t *row)
{
    size_t bytes = 0;
    made->draft = d->cache;
    made->draft_layers = d->layers, made->draft_kv_heads = d->kv_heads, made->draft_head_dim = d->head_dim;
    made->draft_v_data = CACHE_BLOCK * data_bytes(d->cache, d->head_dim);
    made->draft_head_bytes = 2 * made->draft_v_data;
    made->draft_offset = *row;
    return size_mul((size_t)d->layers * (size_t)d->kv_heads, made->draft_head_bytes, &bytes) &&
           size_add(*row, bytes, row);
}

hy_status cache_layout_make(const ops_model *model, cache_format main, cache_format index, cache_layout *layout,
                            hy_error *err)
{
    bool sparse = false;
    for (int l = 0; l < model->layers; l++) sparse |= model->layer[l].sparse;
    hy_status status = check_dim("head_dim", main, model->head_dim, err);
    if (status == HY_OK && sparse) status = check_dim("index head dim", index, model->index_dim, err);
    if (status == HY_OK && model->drafter && model->drafter->cache == CACHE_NVFP4)
        status = error_set(err, HY_UNSUPPORTED, "the drafter's cache cannot be nvfp4: choose fp8 or bf16");
    if (status != HY_OK) return status;

    cache_layout made = {.main = main,
                         .index = index,
                         .layers = model->layers,
                         .kv_heads = model->kv_heads,
                         .head_dim = model->head_dim,
                         .index_dim = sparse ? model->index_dim : 0,
                         .draft_offset = CACHE_NO_OFFSET};
    made.k_scales = CACHE_BLOCK * data_bytes(main, model->head_dim);
    made.v_data = CACHE_BLOCK * cache_vector_bytes(main, model->head_dim);
    made.v_scales = made.v_data + made.k_scales;
    made.head_bytes = 2 * made.v_data;
    made.index_scales = CACHE_BLOCK * data_bytes(index, made.index_dim);

    size_t layers = (size_t)model->layers, bytes = layers * sizeof(size_t);
    made.main_offset = memory_zeroed(layers, sizeof(size_t));
    made.index_offset = memory_zeroed(layers, sizeof(size_t));
    if (!made.main_offset || !made.index_offset) {
        cache_layout_free(&made);
        return error_memory(err, "a cache layout", 2 * bytes);
    }
    size_t layer_bytes = 0, row = 0;
    bool fits = size_mul((size_t)model->kv_heads, made.head_bytes, &layer_bytes);
    for (int l = 0; l < model->layers && fits; l++) {
        made.main_offset[l] = row;
        fits = size_add(row, layer_bytes, &row);
    }
    for (int l = 0; l < model->layers && fits; l++) {
        made.index_offset[l] = model->layer[l].sparse ? row : CACHE_NO_OFFSET;
        if (model->layer[l].sparse) fits = size_add(row, CACHE_BLOCK * cache_vector_bytes(index, made.index_dim), &row);
    }
    if (fits && model->drafter) fits = add_draft(model->drafter, &made, &row);
    if (!fits || !size_add(row, ROW_ALIGNMENT - 1, &row)) {
        cache_layout_free(&made);
        return error_set(err, HY_UNSUPPORTED,
                         "a cache block of %d layers with %d heads of %d is larger than memory can be", model->layers,
                         model->kv_heads, model->head_dim);
    }
    made.row_bytes = row / ROW_ALIGNMENT * ROW_ALIGNMENT;
    *layout = made;
    return HY_OK;
}

void cache_layout_free(cache_layout *layout)
{
    memory_free(layout->main_offset);
    memory_free(layout->index_offset);
    layout->main_offset = layout->index_offset = NULL;
}
