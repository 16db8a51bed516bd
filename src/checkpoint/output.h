/*
 * Writing a checkpoint folder: shards with their index, and the small files beside them.
 *
 * Everything that an `output` wrote disappears again with output_abort, so that a failed run leaves no folder that
 * looks like a model. The folder itself must be new or empty.
 */
#ifndef HAYATE_CHECKPOINT_OUTPUT_H
#define HAYATE_CHECKPOINT_OUTPUT_H

#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"

/* Largest shard when nothing else is asked for: the released M3.1 then has 48 of about 5.2 GB. */
#define OUTPUT_SHARD_BYTES INT64_C(5250000000)

typedef struct output output;

/* Makes the folder. HY_USAGE: it exists and is not empty, or cannot be made where it is asked for. */
hy_status output_open(const char *folder, output **out, hy_error *err);
/* HY_NO_FIT when the file system has less than `bytes` free. */
hy_status output_check_space(const output *o, uint64_t bytes, hy_error *err);
/* A text file in the folder; `length` bytes. */
hy_status output_file(output *o, const char *name, const char *text, size_t length, hy_error *err);
/* Copies a regular file into the folder as `name`. */
hy_status output_copy(output *o, const char *path, const char *name, hy_error *err);
/* A folder in the folder, open until the outer one is; its files count as the outer one's. */
hy_status output_subfolder(output *o, const char *name, output **sub, hy_error *err);

/*
 * Begins the tensors: `entries` (borrowed until output_end) in file order, cut into shards of at most `limit` bytes
 * (0: OUTPUT_SHARD_BYTES; a larger tensor has a shard of its own). One shard is model.safetensors, several are
 * model-00001-of-0000N.safetensors with model.safetensors.index.json. With `holes` no data follows.
 */
hy_status output_begin(output *o, const safetensors_entry *entries, size_t count, int64_t limit, bool holes,
                       hy_error *err);
/* Data of the tensors, in order, in pieces of any size. */
hy_status output_write(output *o, const void *data, size_t bytes, hy_error *err);
/* Checks that all data came and writes the index. */
hy_status output_end(output *o, hy_error *err);

/* Done: frees. */
void output_close(output *o);
/* Failed: removes every file written and the folder if it was made here; frees. */
void output_abort(output *o);

/* A list of layout entries as the writer takes them. */
typedef struct layout_list {
    layout_entry *entries;    /* owned */
    safetensors_entry *files; /* owned; names point into entries; made by layout_list_finish */
    size_t count, capacity;
    bool failed; /* no memory */
} layout_list;

/* A layout_fn; user is a layout_list. */
bool layout_list_add(void *user, const layout_entry *e);
hy_status layout_list_finish(layout_list *list, hy_error *err);
void layout_list_free(layout_list *list);

#endif
