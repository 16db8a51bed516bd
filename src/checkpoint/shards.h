/*
 * The safetensors files of one folder as one set of tensors. Which files: model.safetensors alone if it is there; else
 * those that model.safetensors.index.json names; else all *.safetensors. In the order of their names. Or files that are
 * listed, and an index that may be anywhere.
 */
#ifndef HAYATE_CHECKPOINT_SHARDS_H
#define HAYATE_CHECKPOINT_SHARDS_H

#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_table.h"

typedef struct shards {
    safetensors **files; /* [file_count] */
    size_t file_count;
    const tensor **tensors; /* [count], in the order of files and offsets */
    size_t count;
    tensor_table table;
} shards;

/* Reads the headers of all files and holds the index against them. On failure nothing is left open. */
hy_status shards_open(const char *folder, shards *out, hy_error *err);
/* The files that are listed, names with a slash in them, and those that the index (NULL: none) names beside itself where they
 * are not listed. HY_BAD_MODEL as well for a file that is listed and not in the index. */
hy_status shards_open_files(char *const *files, size_t count, const char *index, shards *out, hy_error *err);
void shards_close(shards *s);

#endif
