/* Inside of an open checkpoint, shared by the files that implement checkpoint.h. */
#ifndef HAYATE_CHECKPOINT_OPENED_H
#define HAYATE_CHECKPOINT_OPENED_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/shards.h"

struct checkpoint {
    char folder[4096];
    config config;
    shards main;
    const char *prefix; /* of the backbone's tensors: "language_model.model.", "model.language_model." or "model." */
    bool has_draft;
    draft_config draft;
    shards drafter;
};

/* The prefix that the tensors use; the published one when none fits, so that messages name published tensors. */
const char *naming_prefix(const shards *s);

#endif
