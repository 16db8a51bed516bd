/* Random checkpoints in the published layout: any geometry, any size, drafter included. Same seed, same bytes. */
#ifndef HAYATE_CHECKPOINT_SYNTH_H
#define HAYATE_CHECKPOINT_SYNTH_H

#include "checkpoint/layout.h"
#include "checkpoint/synth_made.h"

typedef struct synth_options {
    layout_scheme scheme;
    uint64_t seed;
    bool holes;      /* files of full size without data; of synth_file, without what synth_made describes */
    bool drafter;    /* also dspark/ */
    int64_t shard_bytes; /* 0: about 5.2 GB as published */
    hy_progress_fn on_progress;
    void *user;
} synth_options;

/* Writes DST/ (must not exist or be empty): config.json, generation_config.json, shards with index, dspark/. Values are
 * such that activations stay of order one through the layers. HY_FAILED, HY_USAGE (folder in use, or widths that the
 * scheme cannot cut), HY_NO_FIT (the file system has too little room), HY_CANCELLED; then nothing is left behind. */
hy_status synth_write(const config *c, const char *folder, const synth_options *options, hy_error *err);

/* The main files' tensors, or with `d` those of a drafter, as one safetensors file in `fd`, which is open, empty and stays the
 * caller's. Of the options scheme (which a drafter has of its own), seed, holes and on_progress count. */
hy_status synth_file(const config *c, const draft_config *d, int fd, const char *name, const synth_options *options,
                     hy_error *err);

/* Adds the tensors of a file of synth_file, opened: `tensors` are its `count`, in its order. HY_NO_FIT. */
hy_status synth_made_add(synth_made *made, const config *c, const draft_config *d, const synth_options *options,
                         const tensor *const *tensors, size_t count, hy_error *err);

#endif
