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
DEVICE float fold_value(float x, float before, float y, float now) { return fused(y, now, x * before); }

/*
 * A part is what some keys give the queries of a head, in tiles of 16 queries as the tensor cores leave them. Maxima and sums:
 * [tile][2][lane][2], of query lane / 4, then of query lane / 4 + 8; the four lanes of a query have the sums of their own tokens.
 * Outputs: [tile][eight dims][lane][4], of the first of these queries dims 2 (lane % 4) and the next one of the eight, then of
 * the other. So a warp writes and reads 512 bytes at once.
 */
struct fold_state {
    float top[2], sum[2], out[4];
};
enum { STATE_FLOATS = DRAFT_PART_STATE }; /* of a query */
DEVICE int64_t part_at(const draft_attend_args &a, int s, int group, int place)
{
    return (((int64_t)s * a.kv_heads + group) * a.places + place) * a.queries;
}
struct alignas(8) part_state {
    float top, sum;
};
DEVICE part_state *part_state_at(const draft_attend_args &a, int64_t part, int tile, int r)
{
    return (part_state *)(a.part_state + (part + 16 * tile) * STATE_FLOATS) + r * CUDA_WARP + threadIdx.x % CUDA_WARP;
}
DEVICE float sum_of_row(float sum)
{
    sum += lane_xor(sum, 1);
    return sum + lane_xor(sum, 2);
}
DEVICE void store_part_state(const draft_attend_args &a, int64_t part, int tile, const float top[2], const float sum[2])
{
    UNROLL for (int r = 0; r < 2; r++) *part_state_at(a, part, tile, r) = {top[r], sum[r]};
}
DEVICE quad *part_out_at(const draft_attend_args &a, int64_t part, int tile)
{
    return (quad *)(a.part_out + (part + 16 * tile) * a.dim) + threadIdx.x % CUDA_WARP;
}

#endif
