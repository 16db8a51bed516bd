#include "checkpoint/tensor.h"

#include <assert.h>
#include <string.h>

#include "number/bf16.h"
#include "number/fp16.h"
#include "number/mxfp8.h"
#include "number/nvfp4.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [TENSOR_BOOL] = {"BOOL", 1},       [TENSOR_U8] = {"U8", 1},           [TENSOR_I8] = {"I8", 1},
    [TENSOR_I16] = {"I16", 2},         [TENSOR_U16] = {"U16", 2},         [TENSOR_F16] = {"F16", 2},
    [TENSOR_BF16] = {"BF16", 2},       [TENSOR_I32] = {"I32", 4},         [TENSOR_U32] = {"U32", 4},
    [TENSOR_F32] = {"F32", 4},         [TENSOR_F64] = {"F64", 8},         [TENSOR_I64] = {"I64", 8},
    [TENSOR_U64] = {"U64", 8},         [TENSOR_F8_E4M3] = {"F8_E4M3", 1}, [TENSOR_F8_E5M2] = {"F8_E5M2", 1},
    [TENSOR_F8_E8M0] = {"F8_E8M0", 1},
};

enum { DTYPE_COUNT = sizeof dtypes / sizeof dtypes[0] };

size_t tensor_dtype_bytes(tensor_dtype dtype)
{
    assert((size_t)dtype < DTYPE_COUNT);
    return dtypes[dtype].bytes;
}

const char *tensor_dtype_name(tensor_dtype dtype)
{
    assert((size_t)dtype < DTYPE_COUNT);
    return dtypes[dtype].name;
}

bool tensor_dtype_parse(const char *name, size_t length, tensor_dtype *dtype)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (strlen(dtypes[i].name) == length && memcmp(dtypes[i].name, name, length) == 0) {
            *dtype = (tensor_dtype)i;
            return true;
        }
    return false;
}

const char *weight_fault(weight_format format)
{
    bool quantised = format == WEIGHT_MXFP8 || format == WEIGHT_NVFP4;
    return quantised ? "a NaN or a scale that no quantiser writes" : "a NaN or an infinity";
}

const char *weight_format_name(weight_format format)
{
    switch (format) {
    case WEIGHT_NONE: return "none";
    case WEIGHT_F32: return "f32";
    case WEIGHT_BF16: return "bf16";
    case WEIGHT_F16: return "f16";
    case WEIGHT_MXFP8: return "mxfp8";
    case WEIGHT_NVFP4: return "nvfp4";
    }
    return "unknown";
}

size_t weight_bytes(const weight *w)
{
    size_t n = (size_t)w->rows * (size_t)w->cols;
    switch (w->format) {
    case WEIGHT_NONE: return 0;
    case WEIGHT_F32: return n * 4;
    case WEIGHT_BF16:
    case WEIGHT_F16: return n * 2;
    case WEIGHT_MXFP8: return n + n / MXFP8_BLOCK;
    case WEIGHT_NVFP4: return n / 2 + n / NVFP4_GROUP + sizeof(float);
    }
    return 0;
}

/* Sixteen-bit elements of a file may sit at odd addresses. */
static uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

void weight_row_part(const weight *w, int64_t row, int64_t begin, int64_t end, float *out)
{
    assert(row >= 0 && row < w->rows && begin >= 0 && begin <= end && end <= w->cols);
    assert(begin % MXFP8_BLOCK == 0 && (end % MXFP8_BLOCK == 0 || end == w->cols));
    const uint8_t *data = w->data;
    size_t n = (size_t)(end - begin), at = (size_t)row * (size_t)w->cols + (size_t)begin; /* element of the matrix */
    switch (w->format) {
    case WEIGHT_NONE: assert(!"a weight without data"); break;
    case WEIGHT_F32: memcpy(out, data + at * 4, n * 4); break;
    case WEIGHT_BF16:
        for (size_t i = 0; i < n; i++) out[i] = bf16_to_float(load16(data + (at + i) * 2));
        break;
    case WEIGHT_F16:
        for (size_t i = 0; i < n; i++) out[i] = fp16_to_float(load16(data + (at + i) * 2));
        break;
    case WEIGHT_MXFP8: mxfp8_decode_row(data + at, w->scales + at / MXFP8_BLOCK, n / MXFP8_BLOCK, out); break;
    case WEIGHT_NVFP4:
        nvfp4_weight_decode_row(data + at / 2, w->scales + at / NVFP4_GROUP, n / NVFP4_GROUP, w->global,
                                w->divides ? NVFP4_DIVIDE : NVFP4_MULTIPLY, out);
        break;
    }
}

void weight_row(const weight *w, int64_t row, float *out)
{
    weight_row_part(w, row, 0, w->cols, out);
}

size_t weight_row_data(const weight *w)
{
    size_t cols = (size_t)w->cols;
    switch (w->format) {
    case WEIGHT_NONE: return 0;
    case WEIGHT_F32: return cols * 4;
    case WEIGHT_BF16:
    case WEIGHT_F16: return cols * 2;
    case WEIGHT_MXFP8: return cols;
    case WEIGHT_NVFP4: return cols / 2;
    }
    return 0;
}

size_t weight_row_scales(const weight *w)
{
    if (w->format == WEIGHT_MXFP8) return (size_t)w->cols / MXFP8_BLOCK;
    return w->format == WEIGHT_NVFP4 ? (size_t)w->cols / NVFP4_GROUP : 0;
}

weight weight_rows(const weight *w, int64_t first, int64_t rows)
{
    assert(first >= 0 && rows >= 0 && first + rows <= w->rows);
    weight part = *w;
    part.rows = rows;
    part.data = (const uint8_t *)w->data + (size_t)first * weight_row_data(w);
    if (w->scales) part.scales = w->scales + (size_t)first * weight_row_scales(w);
    return part;
}

const weight_file *weight_file_find(const weight_file *files, size_t count, const void *data, uint64_t *offset)
{
    for (size_t i = 0; i < count; i++) {
        uintptr_t begin = (uintptr_t)files[i].data, at = (uintptr_t)data;
        if (at < begin || at - begin >= files[i].bytes) continue;
        *offset = at - begin;
        return &files[i];
    }
    return NULL;
}
