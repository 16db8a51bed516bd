/*
 * The one forward pass over the rows of a step.
 *
 * `observe`, when set, is called with the step between operations; traces read named tensors there. It sees
 * FORWARD_EMBEDDED (layer -1), then per layer FORWARD_SELECTED (sparse layers, OPS_BLOCKS is set), FORWARD_ROUTED
 * (layers with experts), FORWARD_LAYER_DONE (OPS_X after the layer), and FORWARD_HEAD (OPS_LOGITS).
 */
#ifndef HAYATE_MODEL_FORWARD_H
#define HAYATE_MODEL_FORWARD_H

#include "model/model.h"

typedef enum forward_stage {
    FORWARD_EMBEDDED, FORWARD_SELECTED, FORWARD_ROUTED, FORWARD_LAYER_DONE, FORWARD_HEAD,
} forward_stage;

typedef struct forward_observer {
    void (*fn)(void *user, forward_stage stage, int layer, ops_step *step);
    void *user;
} forward_observer;

/* Runs all layers and the head; the caller samples and finishes the step. `drafts`: the rows' part of the drafter's context is
 * written too, before FORWARD_HEAD; only with a model that has a drafter, in a step that was opened with limits.drafts. */
void forward_run(const hy_model *model, ops_step *step, ops_cache *cache, const ops_rows *rows, bool drafts,
                 const forward_observer *observe);

#endif
