/*
 * safetensors files: a little-endian u64 header length, a JSON header, then the data.
 *
 * Reading maps the file and checks everything before a byte of data is touched: header length against the file and
 * against 100 MB, every dtype, shape and product, offsets inside the data, in order, without overlap, sizes that match
 * the shape, no duplicate names. Gaps between tensors are refused as the format demands.
 *
 * Writing lays out the header first (names, types and shapes are known in advance) and then takes the data in order;
 * `holes` makes a sparse file of full size whose data is never written.
 */
#ifndef HAYATE_CHECKPOINT_SAFETENSORS_H
#define HAYATE_CHECKPOINT_SAFETENSORS_H

#include "checkpoint/tensor.h"

typedef struct safetensors safetensors;

/* Opens and checks a file. HY_BAD_MODEL names the tensor at fault. */
hy_status safetensors_open(const char *path, safetensors **file, hy_error *err);
/* The same for bytes in memory, borrowed (fuzzing, tests). `name` stands for the path in messages. */
hy_status safetensors_parse(const char *name, const void *bytes, size_t size, safetensors **file, hy_error *err);
void safetensors_close(safetensors *file);

size_t safetensors_count(const safetensors *file);
const tensor *safetensors_at(const safetensors *file, size_t i); /* in file order */
const tensor *safetensors_find(const safetensors *file, const char *name); /* NULL: not there */
/* A value of __metadata__, NULL if there is none. */
const char *safetensors_metadata(const safetensors *file, const char *key);
const char *safetensors_path(const safetensors *file);
/* The whole file as it is mapped; no bytes where it was parsed from memory. */
weight_file safetensors_file(const safetensors *file);
size_t safetensors_header_bytes(const safetensors *file);

typedef struct safetensors_writer safetensors_writer;

/* One tensor to come; `name` and `shape` are copied. */
typedef struct safetensors_entry {
    const char *name;
    tensor_dtype dtype;
    int dims;
    int64_t shape[TENSOR_MAX_DIMS];
} safetensors_entry;

/* Creates `path` (through a temporary name, renamed by finish) with its header; HY_USAGE where a device, a
 * pipe or a link has that name. metadata: pairs of strings or NULL.
 * The header is padded with spaces to a multiple of 8 so that data begins aligned. */
hy_status safetensors_create(const char *path, const safetensors_entry *entries, size_t count, const char *const *metadata,
                             size_t metadata_pairs, bool holes, safetensors_writer **writer, hy_error *err);
/* The same into an open, empty file that stays the caller's; `name` is for messages. finish renames nothing then. */
hy_status safetensors_create_in(int fd, const char *name, const safetensors_entry *entries, size_t count,
                                safetensors_writer **writer, hy_error *err);
/* Appends data of the tensors, in order, in pieces of any size. Not with holes. */
hy_status safetensors_write(safetensors_writer *writer, const void *data, size_t bytes, hy_error *err);
/* The next `bytes` of the data are a hole. */
hy_status safetensors_skip(safetensors_writer *writer, uint64_t bytes, hy_error *err);
/* Checks that all data came, syncs, renames into place, frees. */
hy_status safetensors_finish(safetensors_writer *writer, hy_error *err);
/* Removes the temporary file and frees. */
void safetensors_abort(safetensors_writer *writer);

#endif
