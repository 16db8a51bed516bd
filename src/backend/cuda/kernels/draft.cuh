/* What the kernels of the drafter's attention share: which keys a row sees, runs of blocks, and the fold. */
#ifndef HAYATE_BACKEND_CUDA_DRAFT_CUH
#define HAYATE_BACKEND_CUDA_DRAFT_CUH

#include "backend/cuda/kernels/draft.h"
#include "backend/cuda/kernels/kernel.cuh"

/* What row k sees of block b: tokens [first, end). */
struct key_span {
    int first, end;
};

DEVICE key_span span_of(const draft_attend_args &a, const draft_sequence &of, int b, int k)
{
    if (b == of.blocks - 1) return {0, of.rows};
    int32_t begin = (of.first_block + b) * CUDA_BLOCK_TOKENS, low = of.position + k - a.window + 1 - begin;
    int32_t left = of.position - begin;
    return {low > 0 ? low : 0, left < CUDA_BLOCK_TOKENS ? left : CUDA_BLOCK_TOKENS};
}

/* First block of run r of the context's `blocks`. */
DEVICE int run_begin(int blocks, int r) { return blocks * r / DRAFT_RUNS; }

/* One step of the fold: factors of what there is and of what comes. -inf: nothing is there. */
DEVICE void fold_step(float &top, float now_top, float &before, float &now)
{
    float joint = fmaxf(top, now_top), base = joint == -INFINITY ? 0 : joint;
    before = power_of_two(top - base);
    now = power_of_two(now_top - base);
    top = joint;
}
DEVICE float fold_value(float x, float before, float y, float now) { return fused(x, before, y * now); }

#endif
