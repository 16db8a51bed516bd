#include "model/forward.h"

#include <assert.h>

static void observed(const forward_observer *observe, forward_stage stage, int layer, ops_step *step)
{
    if (observe) observe->fn(observe->user, stage, layer, step);
}

/* Keeps what the drafter listens to behind `layer`, once for each time that it is listed. */
static void tap(const hy_ops *ops, const ops_drafter *d, int layer, ops_step *step)
{
    for (int i = 0; i < d->tap_count; i++)
        if (d->tap[i] == layer) ops->draft_tap(step, i);
}

void forward_run(const hy_model *model, ops_step *step, ops_cache *cache, const ops_rows *rows, bool drafts,
                 const forward_observer *observe)
{
    const hy_ops *ops = model_ops(model);
    const ops_model *shape = model_ops_model(model);
    assert(!drafts || shape->drafter);
    ops->begin(step, cache, rows);
    ops->embed(step);
    observed(observe, FORWARD_EMBEDDED, -1, step);
    for (int l = 0; l < shape->layers; l++) {
        ops->attend_in(step, l);
        if (shape->layer[l].sparse) {
            ops->index_select(step, l);
            observed(observe, FORWARD_SELECTED, l, step);
        }
        ops->attend(step, l);
        ops->attend_out(step, l);
        if (shape->layer[l].moe) {
            ops->route(step, l);
            observed(observe, FORWARD_ROUTED, l, step);
            ops->experts(step, l);
        } else {
            ops->feed_dense(step, l);
        }
        if (drafts) tap(ops, shape->drafter, l, step);
        observed(observe, FORWARD_LAYER_DONE, l, step);
    }
    if (drafts) ops->draft_context(step);
    ops->head(step);
    observed(observe, FORWARD_HEAD, shape->layers, step);
}
