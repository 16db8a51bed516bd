/* What kernels of attention share: units and their lists, the state of a row and how a block is folded into it. */
#ifndef HAYATE_BACKEND_CUDA_ATTEND_UNIT_CUH
#define HAYATE_BACKEND_CUDA_ATTEND_UNIT_CUH

#include "backend/cuda/kernels/attend.h"
#include "backend/cuda/kernels/kernel.cuh"

struct attend_unit {
    int row, group, head, heads; /* first query head and how many */
    int sequence, position;
};

/* Unit `in_row` of a row: a grid that has both saves divisions. */
DEVICE attend_unit unit_at(const attend_args &a, int row, int in_row)
{
    attend_unit u;
    int tile = 0;
    u.row = row, u.group = in_row;
    if (a.head_tiles > 1) u.group = in_row / a.head_tiles, tile = in_row % a.head_tiles * ATTEND_HEADS;
    u.head = u.group * a.group + tile;
    u.heads = min(a.group - tile, (int)ATTEND_HEADS);
    u.sequence = a.rows.sequence[u.row];
    u.position = a.rows.position[u.row];
    return u;
}

DEVICE attend_unit unit_of(const attend_args &a, int64_t number)
{
    attend_unit u;
    int per_group = a.heads / a.kv_heads, per_row = a.kv_heads * a.head_tiles;
    u.row = (int)(number / per_row);
    int in_row = (int)(number % per_row), tile = in_row % a.head_tiles * ATTEND_HEADS;
    u.group = in_row / a.head_tiles;
    u.head = u.group * per_group + tile;
    u.heads = min(per_group - tile, (int)ATTEND_HEADS);
    u.sequence = a.rows.sequence[u.row];
    u.position = a.rows.position[u.row];
    return u;
}

/* How many blocks the unit's list has; whole warps ask. */
DEVICE int list_length(const attend_args &a, const attend_unit &u, const int32_t **list)
{
    *list = nullptr;
    if (u.sequence < 0) return 0;
    if (!a.blocks) return u.position / CUDA_BLOCK_TOKENS + 1;
    *list = a.blocks + ((int64_t)u.row * a.index_heads + u.group) * a.index_top;
    int lane = threadIdx.x % CUDA_WARP;
    return count_bits(lane_ballot(lane < a.index_top && (*list)[lane] >= 0)); /* index_top is at most 32 */
}

/* How many of its tokens the row at `position` sees. */
DEVICE int tokens_of(int position, int b)
{
    return min(position + 1 - b * CUDA_BLOCK_TOKENS, (int)CUDA_BLOCK_TOKENS);
}

/* Softmax of rows g and g + 8 of a unit, and their outputs in this warp's tiles of eight dims. */
template <int TILES> struct attend_state {
    float maximum[2], sum[2];
    float out[TILES][4]; /* as d of m16n8k16 */
};

/* One step of the fold. */
DEVICE void fold(float maximum, float now_maximum, float &joint, float &before, float &now)
{
    joint = fmaxf(maximum, now_maximum);
    before = power_of_two(maximum - joint);
    now = power_of_two(now_maximum - joint);
}

template <int TILES> DEVICE void fold_state(attend_state<TILES> &state, const attend_state<TILES> &block, bool first)
{
    if (first) {
        state = block;
        return;
    }
    UNROLL for (int r = 0; r < 2; r++) {
        float joint, before, now;
        fold(state.maximum[r], block.maximum[r], joint, before, now);
        state.maximum[r] = joint;
        state.sum[r] = state.sum[r] * before + block.sum[r] * now;
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int c = 2 * r; c < 2 * r + 2; c++)
                state.out[i][c] = state.out[i][c] * before + block.out[i][c] * now;
    }
}

#endif
