/* Inside of an open checkpoint, shared by the files that implement checkpoint.h. */
#ifndef HAYATE_CHECKPOINT_OPENED_H
#define HAYATE_CHECKPOINT_OPENED_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/shards.h"
#include "checkpoint/source.h"
#include "checkpoint/synth_made.h"

struct checkpoint {
    model_source source;
    config config;
    shards main;
    const char *prefix; /* of the backbone's tensors: "language_model.model.", "model.language_model." or "model." */
    bool has_draft;
    hy_error draft_error; /* why the folder dspark is no drafter: told when one is asked for; HY_OK: it is, or not there */
    char draft_folder[4096 + 16];
    draft_config draft;
    shards drafter;
    layout_scheme scheme; /* of random weights */
    bool known;       /* a geometry by name, without a folder */
    bool elsewhere;   /* `made` has what is to be made of both */
    uint64_t seed;    /* of these */
    synth_made made;
    int memory, draft_memory; /* 1 + the descriptor of a file of memory that holds weights; 0: none */
};

/* The prefix that the tensors use; the published one when none fits, so that messages name published tensors. */
const char *naming_prefix(const shards *s);
/* HY_BAD_MODEL: the tensor's shape is another. */
hy_status naming_check_shape(const tensor *t, int dims, const int64_t *shape, hy_error *err);

/* The drafter in the folder dspark, if there is one (draft.c). One that cannot be read is left out: the target does without,
 * with checkpoint_warn_draft where nobody asks for it. */
hy_status draft_open_own(checkpoint *c, hy_error *err);
/* The folder that holds the drafter's config, `folder` or dspark in it, and that config, held against the target. */
hy_status draft_find_config(const checkpoint *c, const char *folder, char out[4096 + 16], draft_config *d, hy_error *err);

#endif
