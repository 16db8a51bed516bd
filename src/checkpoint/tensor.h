/*
 * Tensors as files hold them, and weights as backends take them.
 *
 * A `tensor` is a name, a type, a shape and bytes of a mapped file. A `weight` is what a linear needs: a matrix
 * [rows, cols] in one of five formats together with its scales, whatever names and conventions the file used.
 * Both borrow from the open checkpoint.
 */
#ifndef HAYATE_CHECKPOINT_TENSOR_H
#define HAYATE_CHECKPOINT_TENSOR_H

#include "hayate.h"

typedef enum tensor_dtype {
    TENSOR_BOOL, TENSOR_U8, TENSOR_I8, TENSOR_I16, TENSOR_U16, TENSOR_F16, TENSOR_BF16, TENSOR_I32, TENSOR_U32,
    TENSOR_F32, TENSOR_F64, TENSOR_I64, TENSOR_U64, TENSOR_F8_E4M3, TENSOR_F8_E5M2, TENSOR_F8_E8M0,
} tensor_dtype;

/* Bytes of one element; the name as safetensors spells it ("BF16", "F8_E4M3"); the reverse (false: unknown). */
size_t tensor_dtype_bytes(tensor_dtype dtype);
const char *tensor_dtype_name(tensor_dtype dtype);
bool tensor_dtype_parse(const char *name, size_t length, tensor_dtype *dtype);

enum { TENSOR_MAX_DIMS = 8 };

typedef struct tensor {
    const char *name;
    tensor_dtype dtype;
    int dims;                       /* 0: a scalar */
    int64_t shape[TENSOR_MAX_DIMS]; /* all >= 0, product and bytes checked */
    const void *data;               /* little-endian, row-major, may be unaligned; NULL while only the header is read */
    size_t bytes;
} tensor;

typedef enum weight_format {
    WEIGHT_NONE,
    WEIGHT_F32,   /* data: float [rows, cols] */
    WEIGHT_BF16,  /* data: uint16 [rows, cols] */
    WEIGHT_F16,   /* data: uint16 [rows, cols] */
    WEIGHT_MXFP8, /* data: E4M3 [rows, cols]; scales: UE8M0 [rows, cols/32]; w = e4m3 * 2^(scale - 127) */
    WEIGHT_NVFP4, /* data: E2M1 pairs [rows, cols/2], even column low; scales: E4M3 [rows, cols/16] */
} weight_format;

typedef struct weight {
    weight_format format;
    int64_t rows, cols;    /* [out, in]; a vector is [1, n] */
    const void *data;      /* borrowed; unaligned where the file is */
    const uint8_t *scales; /* borrowed; NULL for plain formats */
    float global;          /* NVFP4: w = e2m1 * scale * global, or ... */
    bool divides;          /* ... NVFP4: w = (e2m1 * scale) / global, one fp32 division */
} weight;

/* A mapped file that weights borrow from, for those who would rather read it. */
typedef struct weight_file {
    const char *path;
    const uint8_t *data; /* [bytes] */
    size_t bytes;
} weight_file;

/* The file that holds `data`, and how far from its beginning; NULL: none of them. */
const weight_file *weight_file_find(const weight_file *files, size_t count, const void *data, uint64_t *offset);

/* Decodes row `row` into out[cols] as fp32; exact but for the rounding of NVFP4's global scale. */
void weight_row(const weight *w, int64_t row, float *out /* [cols] */);
/* Decodes columns [begin, end) of a row; begin and end are multiples of 32, or end is cols. */
void weight_row_part(const weight *w, int64_t row, int64_t begin, int64_t end, float *out /* [end - begin] */);
/* Bytes that the weight occupies in its file, scales included. */
size_t weight_bytes(const weight *w);
/* Bytes of one row of the data and of the scales (0: none). */
size_t weight_row_data(const weight *w);
size_t weight_row_scales(const weight *w);
/* Rows [first, first + rows) as a weight of their own. */
weight weight_rows(const weight *w, int64_t first, int64_t rows);
/* What values that are refused are called: "a NaN or an infinity", of quantised formats "a NaN or a scale that ...". */
const char *weight_fault(weight_format format);
const char *weight_format_name(weight_format format); /* "f32", "bf16", "f16", "mxfp8", "nvfp4" */

#endif
