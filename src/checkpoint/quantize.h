/*
 * From a bf16 (or fp32) checkpoint to the M3.1 mix: routed experts NVFP4 (pack-quantised, w1 and w3 of an expert share
 * one global scale 2688/amax, w2 has its own), other linears MXFP8 with ceil scales, the rest copied. Names become the
 * published ones, whatever spelling the source had. The recipes are those of src/number.
 */
#ifndef HAYATE_CHECKPOINT_QUANTIZE_H
#define HAYATE_CHECKPOINT_QUANTIZE_H

#include "checkpoint/layout.h"

typedef struct quantize_options {
    layout_scheme scheme; /* SCHEME_M31, SCHEME_MXFP8 or SCHEME_MODELOPT */
    int64_t shard_bytes;  /* 0: about 5.2 GB */
    hy_progress_fn on_progress;
    void *user;
} quantize_options;

/* Source tensors that are quantised already are HY_USAGE, values that are not finite HY_BAD_MODEL, tensors without a place
 * in the published layout HY_UNSUPPORTED; a failed run leaves nothing behind. Vision and MTP tensors, tokenizer, template
 * and licence files and the drafter's folder are copied. */
hy_status quantize_run(const checkpoint *source, const char *folder, const quantize_options *options, hy_error *err);

#endif
