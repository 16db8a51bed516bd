/* What moe.cu, moe_route.cu and moe_hopper.cu share: numbers that all blocks count, the choice of a row, the residual. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_MOE_CUH
#define HAYATE_BACKEND_CUDA_KERNELS_MOE_CUH

#include "backend/cuda/kernels/experts_tile.cuh"
#include "backend/cuda/kernels/moe.h"
#include "backend/cuda/kernels/route.cuh"

/* ---- Numbers of all blocks --------------------------------------------------------------------------------------- */

/* What the warp wrote is there for all, and counted. True: it was the last of `all`, whose writes it can read. Who was not
 * goes on with what its first-level cache has, which holds the rows. */
DEVICE bool moe_last(uint32_t *at, uint32_t all, int lane)
{
    uint32_t before = 0;
    WARP_SYNC();
    if (lane == 0) {
        before = bring(at, 1);
        if (before + 1 == all) arrived();
    }
    before = lane_get(before, 0);
    WARP_SYNC();
    return before + 1 == all;
}

/* The same for those who only bring. */
DEVICE void moe_bring(uint32_t *at, uint32_t n, int lane)
{
    WARP_SYNC();
    if (lane == 0) bring(at, n);
}

/* The same of a number that then begins again. */
DEVICE bool moe_last_again(uint32_t *at, uint32_t all, int lane)
{
    bool last = moe_last(at, all, lane);
    if (last && lane == 0) *at = 0;
    return last;
}

DEVICE void moe_wait(const uint32_t *at, uint32_t least, const char *what, int lane)
{
    if (lane == 0) await(at, least, what);
    WARP_SYNC();
}

/* ---- Routes and inputs ------------------------------------------------------------------------------------------- */

/* What the choice of a row takes beside its scores, of expert 32 * j + lane in bias[j]: who can asks for it before the scores
 * are there. */
struct moe_row_ahead {
    float bias[4];
    bool replayed;
    int32_t chosen; /* of those that are replayed, this lane's */
};

DEVICE moe_row_ahead moe_row_ahead_of(const route_choose_args &a, int32_t row, int lane)
{
    moe_row_ahead r;
    UNROLL for (int j = 0; j < 4; j++) {
        int32_t e = j * CUDA_WARP + lane;
        r.bias[j] = e < a.experts ? a.bias[e] : 0;
    }
    const volatile int32_t *replay = a.replay;
    const volatile uint8_t *flags = a.flags;
    r.chosen = replay && lane < a.per_token ? replay[(int64_t)row * a.per_token + lane] : -1;
    r.replayed = replay && (flags[row] & a.replay_flag);
    if (!r.replayed) r.chosen = -1;
    return r;
}

/* route_row of at most 128 experts, and 32 of them a row: what it reads again and again stays with the lanes, expert
 * 32 * j + lane in s[j]; nearly all of its time is the way to memory. */
DEVICE void moe_route_row(const route_choose_args &a, const float s[4], const moe_row_ahead &ahead, int32_t row, int lane)
{
    float score[4];
    bool replayed = ahead.replayed;
    int32_t chosen = ahead.chosen;
    UNROLL for (int j = 0; j < 4; j++) {
        int32_t e = j * CUDA_WARP + lane;
        score[j] = e < a.experts ? s[j] + ahead.bias[j] : 0;
        if (score[j] != score[j]) score[j] = bits_float(0xFF800000u); /* minus infinity */
    }
    uint32_t taken = 0; /* of this lane's */
    for (int n = 0; n < a.per_token && !replayed; n++) {
        int32_t best = -1;
        float best_score = 0;
        UNROLL for (int j = 0; j < 4; j++) {
            int32_t e = j * CUDA_WARP + lane;
            bool open = e < a.experts && !(taken >> j & 1);
            if (open && route_before(score[j], e, best_score, best)) best = e, best_score = score[j];
        }
        for (int mask = 1; mask < CUDA_WARP; mask *= 2) {
            float other = lane_xor(best_score, mask);
            int32_t e = lane_xor(best, mask);
            if (route_before(other, e, best_score, best)) best = e, best_score = other;
        }
        if (best >= 0 && best % CUDA_WARP == lane) taken |= 1u << best / CUDA_WARP;
        if (lane == n) chosen = best;
    }
    /* Ascending; lane i takes the i-th. */
    int32_t place = 0, from = 0;
    for (int n = 0; n < a.per_token; n++) {
        int32_t other = lane_get(chosen, n);
        if (other < chosen || (other == chosen && n < lane)) place++;
    }
    for (int n = 0; n < a.per_token; n++)
        if (lane_get(place, n) == lane) from = n;
    int32_t route = lane_get(chosen, from);
    float own = 0, sum = 0;
    UNROLL for (int j = 0; j < 4; j++) {
        float value = lane_get(s[j], route < 0 ? 0 : route % CUDA_WARP);
        if (route / CUDA_WARP == j) own = value;
    }
    for (int n = 0; n < a.per_token; n++) sum += lane_get(own, n);
    if (lane >= a.per_token) return;
    a.routes[(int64_t)row * a.per_token + lane] = route;
    a.weights[(int64_t)row * a.per_token + lane] = own / sum;
}

/* Rows of inputs as moe_hopper.cu has them: of every 128 inputs [unit of 32 inputs' 4][32 inputs' 4][8], so that what four
 * lanes take at once lies in a row. Where element k, a multiple of 8, lies; its unit's neighbour k + 8 of the same 16: MOE_UPPER
 * behind it. */
enum { MOE_UPPER = 32 };
DEVICE int32_t moe_place(int32_t k)
{
    return k / 128 * 128 + k / 8 % 4 * 32 + k / 32 % 4 * 8;
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

/* Four of the sums of eight slices; a slice is `stride` numbers behind the one before. */
DEVICE void moe_fold(const float *part, int32_t stride, float out[4])
{
    quad s[PROJECT_SLICES];
    UNROLL for (int i = 0; i < PROJECT_SLICES; i++) s[i] = *(const quad *)(part + i * stride);
    UNROLL for (int i = 0; i < 4; i++) {
        float y[PROJECT_SLICES];
        UNROLL for (int j = 0; j < PROJECT_SLICES; j++) y[j] = bits_float(s[j].w[i]);
        out[i] = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
    }
}

/* Rows that a part of the sums of the shared expert has room for. */
template <int MOST> struct moe_part {
    enum { ROWS = MOST < MOE_PART ? MOST : MOE_PART, SIZE = ROWS * EXPERTS_TILE };
};

/* x of a tile's 16 columns and all rows: experts_sum's. */
template <int MOST> DEVICE void moe_out(const moe_args &a, int32_t tile, int lane)
{
    const experts_sum_args &s = a.down.sum;
    for (int32_t i = lane; i < a.count * 4; i += CUDA_WARP) {
        int32_t row = i / 4, column = i % 4 * 4;
        int64_t member = (int64_t)row * s.per_token;
        float sum[4] = {0, 0, 0, 0}, shared[4] = {0, 0, 0, 0};
        int per_token = s.per_token;
        bool padding = s.sequence[row] < 0;
        float *x = s.x + (int64_t)row * s.hidden + tile * EXPERTS_TILE + column;
        quad before = *(const quad *)x;
        if (a.shared_down.data) {
            int32_t part = row / moe_part<MOST>::ROWS;
            moe_fold(a.down_parts + ((int64_t)part * a.sizes.out_tiles + tile) * PROJECT_SLICES * moe_part<MOST>::SIZE +
                         row % moe_part<MOST>::ROWS * EXPERTS_TILE + column,
                     moe_part<MOST>::SIZE, shared);
        }
        if (a.beside) {
            quad y = *(const quad *)(a.beside + (int64_t)row * s.hidden + tile * EXPERTS_TILE + column);
            UNROLL for (int c = 0; c < 4; c++) shared[c] = bits_float(y.w[c]);
        }
        for (int first = 0; first < per_token; first += 4) {
            quad y[4];
            float weight[4];
            bool there[4];
            UNROLL for (int j = 0; j < 4; j++) {
                int place = first + j < per_token ? first + j : per_token - 1;
                int64_t m = member + place;
                /* Asked for whether it counts or not: one way to memory is enough for all. */
                weight[j] = s.weights[m];
                y[j] = *(const quad *)(a.down.y + m * s.hidden + tile * EXPERTS_TILE + column);
                there[j] = first + j < per_token && !(place > 0 && s.routes[m] == s.routes[m - 1]);
            }
            UNROLL for (int j = 0; j < 4; j++)
                UNROLL for (int c = 0; c < 4; c++)
                    if (there[j] && !padding) sum[c] += weight[j] * bits_float(y[j].w[c]);
        }
        quad after;
        UNROLL for (int c = 0; c < 4; c++) {
            float routed = s.scaling * sum[c];
            after.w[c] = float_bits(bits_float(before.w[c]) + (a.shared_down.data || a.beside ? routed + shared[c] : routed));
        }
        *(quad *)x = after;
    }
}

/* ---- All of it ---------------------------------------------------------------------------------------------------- */

/* The last of so many warps leaves the numbers as it found them. */
DEVICE void moe_end(const moe_args &a, uint32_t warps, int lane)
{
    if (!moe_last(a.counts + MOE_ENDED, warps, lane)) return;
    for (int32_t i = lane; i < MOE_COUNTS; i += CUDA_WARP) a.counts[i] = 0;
    for (int32_t i = lane; i < a.sizes.experts; i += CUDA_WARP) a.up_done[i] = 0, a.plan.lists.count[i] = 0;
}

#endif
