/*
 * What moe.cu and moe_hopper.cu share: all items but the tiles of the routed experts. moe.cu says what the items are and in what
 * order they come.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_MOE_CUH
#define HAYATE_BACKEND_CUDA_KERNELS_MOE_CUH

#include "backend/cuda/kernels/experts_tile.cuh"
#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/moe.h"
#include "backend/cuda/kernels/route.cuh"

enum { MOE_NONE, MOE_ROUTE, MOE_CHOOSE, MOE_PLAN, MOE_IN, MOE_UP_SLICE, MOE_UP, MOE_DOWN_SLICE, MOE_DOWN, MOE_LATER };

/* `n`: eight rows, a row, rows of the shared expert, or an active expert; `part`: a slice, with gate 0 and up 1 before it
 * where there are both. */
struct moe_item {
    int32_t kind, n, tile, part;
};

/* Which items a warp's numbers are of. */
enum moe_draws {
    MOE_ALL,
    MOE_BEFORE,  /* those before the routed experts */
    MOE_BETWEEN, /* the shared expert's down */
};

/* What a warp knows. */
struct moe_warp {
    int32_t lane;
    moe_draws draws;
    int32_t active;   /* experts that have rows; -1: not yet known */
    bool shared_up;   /* all of the shared expert's z is there */
};

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

/* ---- Items ------------------------------------------------------------------------------------------------------- */

DEVICE moe_item moe_down_slice_of(const moe_sizes &z, int32_t number)
{
    int32_t tile = number / PROJECT_SLICES;
    return {MOE_DOWN_SLICE, tile % z.parts, tile / z.parts, number % PROJECT_SLICES};
}

/* The item of a number. Its kind is MOE_LATER if that is not known yet and `wait` is not set. */
template <int MOST> DEVICE moe_item moe_item_of(const moe_args &a, moe_warp &w, int32_t number, bool wait)
{
    const moe_sizes &z = a.sizes;
    int32_t left = number;
    if (w.draws == MOE_BETWEEN) {
        if (left < z.down_slices) return moe_down_slice_of(z, left);
        return {MOE_NONE, 0, 0, 0};
    }
    if (left < z.routes) {
        int32_t slices = left / PROJECT_SLICES;
        return {MOE_ROUTE, slices / z.experts, slices % z.experts, left % PROJECT_SLICES};
    }
    left -= z.routes;
    if (left < z.choices) return {a.routing ? MOE_CHOOSE : MOE_PLAN, left, 0, 0};
    left -= z.choices;
    if (left < z.inputs) return {MOE_IN, left / z.pieces, left % z.pieces, 0};
    left -= z.inputs;
    if (left < z.up_slices) {
        int32_t tile = left / (2 * PROJECT_SLICES);
        return {MOE_UP_SLICE, tile % z.parts, tile / z.parts, left % (2 * PROJECT_SLICES)};
    }
    left -= z.up_slices;
    if (w.draws == MOE_BEFORE) return {MOE_NONE, 0, 0, 0};
    if (w.active < 0) {
        if (!wait) return {MOE_LATER, 0, 0, 0};
        moe_wait(a.counts + MOE_READY, (uint32_t)(z.inputs + 1), "the lists of experts and their inputs", w.lane);
        w.active = (int32_t)a.counts[MOE_ACTIVE];
    }
    int32_t all = w.active * 2 * z.tiles;
    if (left < all) return {MOE_UP, left / (2 * z.tiles), left % (2 * z.tiles) / 2, left % 2};
    left -= all;
    if (left < z.down_slices) return moe_down_slice_of(z, left);
    left -= z.down_slices;
    if (left < w.active * z.out_tiles) return {MOE_DOWN, left / z.out_tiles, left % z.out_tiles, 0};
    return {MOE_NONE, 0, 0, 0};
}

/* The next number, of lane 0 alone: it is on its way while others are worked on. */
DEVICE uint32_t moe_draw(const moe_args &a, const moe_warp &w)
{
    return w.lane == 0 ? draw(a.counts + (w.draws == MOE_BETWEEN ? MOE_DOWN_TICKET : MOE_TICKET), 1) : 0;
}

template <int MOST> DEVICE moe_item moe_next(const moe_args &a, moe_warp &w, uint32_t drawn, bool wait)
{
    return moe_item_of<MOST>(a, w, (int32_t)lane_get(drawn, 0), wait);
}

/* ---- Routes and inputs ------------------------------------------------------------------------------------------- */

/* A slice of one output and the eight rows from 8 * n on: the sums of project_f32.cu. */
DEVICE void moe_route(const moe_args &a, int32_t n, int32_t output, int32_t slice, int lane)
{
    enum { STEP = 4 * CUDA_WARP, DEPTH = 6 };
    int32_t hidden = a.in.hidden, rows = a.count - n * MOE_ROUTED, begin, end;
    const float *w = a.router + (int64_t)output * hidden;
    const uint16_t *x = a.normed + (int64_t)n * MOE_ROUTED * hidden;
    slice_of(hidden, slice, &begin, &end);
    float sum[MOE_ROUTED];
    UNROLL for (int r = 0; r < MOE_ROUTED; r++) sum[r] = 0;
    for (int32_t first = begin + 4 * lane; first < end; first += DEPTH * STEP) {
        quad value[DEPTH];
        UNROLL for (int d = 0; d < DEPTH; d++)
            value[d] = first + d * STEP < end ? load_once(w + first + d * STEP) : quad{{0, 0, 0, 0}};
        UNROLL for (int d = 0; d < DEPTH; d++) {
            int32_t k = first + d * STEP;
            UNROLL for (int r = 0; r < MOE_ROUTED; r++)
                if (k < end && r < rows) {
                    uint64_t in = *(const uint64_t *)(x + (int64_t)r * hidden + k);
                    UNROLL for (int i = 0; i < 4; i++)
                        sum[r] += bits_float(value[d].w[i]) * float_of_bf16((uint32_t)(in >> 16 * i) & 0xFFFF);
                }
        }
    }
    float *out = a.router_parts + (((int64_t)n * a.plan.lists.experts + output) * PROJECT_SLICES + slice) * MOE_ROUTED;
    UNROLL for (int r = 0; r < MOE_ROUTED; r++)
        if (r < rows) {
            UNROLL for (int mask = 16; mask; mask /= 2) sum[r] += lane_xor(sum[r], mask);
            if (lane == 0) out[r] = sum[r];
        }
    moe_bring(a.counts + MOE_ROUTER + n, 1, lane);
}

/* Places [first, end) of the routes become members of their experts, in any order: a row's bits do not depend on it. */
DEVICE void moe_join(const moe_args &a, int32_t first, int32_t end, int lane)
{
    const experts_plan_args &p = a.plan;
    for (int32_t m = first + lane; m < end; m += CUDA_WARP) {
        if (p.sequence[m / p.lists.per_token] < 0) continue;
        int32_t e = p.routes[m];
        if (m % p.lists.per_token > 0 && p.routes[m - 1] == e) continue; /* the first counts */
        uint32_t at = count_up((uint32_t *)p.lists.count + e, 1);
        p.lists.members[(int64_t)e * p.lists.capacity + at] = m;
    }
}

/* The experts that have rows, when all have joined. */
DEVICE void moe_plan(const moe_args &a, int lane)
{
    const experts_lists &lists = a.plan.lists;
    int32_t active = 0;
    for (int32_t first = 0; first < lists.experts; first += 4 * CUDA_WARP) {
        int32_t count[4];
        UNROLL for (int i = 0; i < 4; i++) {
            int32_t e = first + i * CUDA_WARP + lane;
            count[i] = e < lists.experts ? lists.count[e] : 0;
        }
        UNROLL for (int i = 0; i < 4; i++) {
            uint32_t have = lane_ballot(count[i] > 0);
            if (count[i] > 0) a.active[active + count_bits(have & ((1u << lane) - 1))] = first + i * CUDA_WARP + lane;
            active += count_bits(have);
        }
    }
    if (lane == 0) a.counts[MOE_ACTIVE] = (uint32_t)active;
    moe_bring(a.counts + MOE_PLANNED, 1, lane);
    moe_bring(a.counts + MOE_READY, 1, lane);
}

/* Both, of routes that are there. */
DEVICE void moe_plan_all(const moe_args &a, int lane)
{
    moe_join(a, 0, a.plan.count * a.plan.lists.per_token, lane);
    WARP_SYNC();
    if (lane == 0) arrived();
    WARP_SYNC();
    moe_plan(a, lane);
}

/* route_row of at most 128 experts, and 32 of them a row: what it reads again and again stays with the lanes, expert
 * 32 * j + lane in s[j]; nearly all of its time is the way to memory. */
DEVICE void moe_route_row(const route_choose_args &a, const float s[4], int32_t row, int lane)
{
    float score[4];
    bool replayed = a.replay && (a.flags[row] & a.replay_flag);
    int32_t chosen = replayed && lane < a.per_token ? a.replay[(int64_t)row * a.per_token + lane] : -1;
    UNROLL for (int j = 0; j < 4; j++) {
        int32_t e = j * CUDA_WARP + lane;
        score[j] = e < a.experts ? s[j] + a.bias[e] : 0;
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

template <int MOST> DEVICE void moe_choose(const moe_args &a, int32_t row, int lane)
{
    int32_t experts = a.plan.lists.experts, n = row / MOE_ROUTED;
    const float *parts = a.router_parts + (int64_t)n * experts * PROJECT_SLICES * MOE_ROUTED + row % MOE_ROUTED;
    float *scores = a.choose.scores + (int64_t)row * experts;
    bool few = experts <= 4 * CUDA_WARP && a.choose.per_token <= CUDA_WARP;
    moe_wait(a.counts + MOE_ROUTER + n, (uint32_t)(experts * PROJECT_SLICES), "the router", lane);
    for (int32_t first = 0; first < experts; first += 4 * CUDA_WARP) {
        float s[4];
        UNROLL for (int j = 0; j < 4; j++) {
            int32_t e = first + j * CUDA_WARP + lane;
            s[j] = 0;
            if (e >= experts) continue;
            const float *part = parts + (int64_t)e * PROJECT_SLICES * MOE_ROUTED;
            float y[PROJECT_SLICES];
            UNROLL for (int i = 0; i < PROJECT_SLICES; i++) y[i] = part[i * MOE_ROUTED];
            s[j] = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
            if (few) s[j] = 1 / (1 + expf(-s[j]));
            scores[e] = s[j];
        }
        if (few) moe_route_row(a.choose, s, row, lane);
    }
    if (!few) route_row(a.choose, row, lane);
    WARP_SYNC();
    moe_join(a, row * a.plan.lists.per_token, (row + 1) * a.plan.lists.per_token, lane);
    if (moe_last(a.counts + MOE_CHOSEN, (uint32_t)a.count, lane)) moe_plan(a, lane);
}

/* Rows of inputs as moe_hopper.cu has them: of every 128 inputs [unit of 32 inputs' 4][32 inputs' 4][8], so that what four
 * lanes take at once lies in a row. Where element k, a multiple of 8, lies; its unit's neighbour k + 8 of the same 16: MOE_UPPER
 * behind it. */
enum { MOE_UPPER = 32 };
DEVICE int32_t moe_place(int32_t k)
{
    return k / 128 * 128 + k / 8 % 4 * 32 + k / 32 % 4 * 8;
}

/* TILED: in the order of moe_place. */
template <bool TILED> DEVICE void moe_in(const moe_args &a, int32_t row, int32_t piece, int lane)
{
    const float *h = a.in.h + (int64_t)row * a.in.hidden;
    uint16_t *out = a.in.out + (int64_t)row * a.in.hidden;
    float factor = 1;
    if (a.in.quantise) {
        uint32_t most = 0;
        _Pragma("unroll 8") for (int32_t i = lane; i < a.in.hidden / 4; i += CUDA_WARP) {
            quad q = *(const quad *)(h + 4 * i);
            UNROLL for (int j = 0; j < 4; j++) most = experts_larger(most, q.w[j] & 0x7FFFFFFFu);
        }
        for (int mask = 1; mask < CUDA_WARP; mask *= 2) most = experts_larger(most, lane_xor(most, mask));
        float r = bits_float(most);
        if (r < 1e-12f) r = 1e-12f;
        factor = 2688.0f / r;
        if (piece == 0 && lane == 0) a.in.factor[row] = round_bf16(r / 2688.0f);
    }
    int32_t groups = a.in.hidden / 16, first = piece * MOE_QUANTISED, end = first + MOE_QUANTISED;
    for (int32_t group = first + lane; group < end && group < groups; group += CUDA_WARP) {
        if (TILED) {
            uint16_t *to = out + moe_place(group * 16);
            quad both[2];
            experts_in_group(a.in, h + group * 16, factor, (uint16_t *)both);
            *(quad *)to = both[0];
            *(quad *)(to + MOE_UPPER) = both[1];
        } else {
            experts_in_group(a.in, h + group * 16, factor, out + group * 16);
        }
    }
    moe_bring(a.counts + MOE_READY, 1, lane);
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
        int per_token = s.sequence[row] >= 0 ? s.per_token : 0;
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
            quad y[4] = {};
            float weight[4] = {0, 0, 0, 0};
            bool there[4];
            UNROLL for (int j = 0; j < 4; j++) {
                int64_t m = member + first + j;
                there[j] = first + j < per_token && !(first + j > 0 && s.routes[m] == s.routes[m - 1]);
                if (there[j]) {
                    weight[j] = s.weights[m];
                    y[j] = *(const quad *)(a.down.y + m * s.hidden + tile * EXPERTS_TILE + column);
                }
            }
            UNROLL for (int j = 0; j < 4; j++)
                UNROLL for (int c = 0; c < 4; c++)
                    if (there[j]) sum[c] += weight[j] * bits_float(y[j].w[c]);
        }
        quad after;
        UNROLL for (int c = 0; c < 4; c++) {
            float routed = s.scaling * sum[c];
            after.w[c] = float_bits(bits_float(before.w[c]) + (a.shared_down.data || a.beside ? routed + shared[c] : routed));
        }
        *(quad *)x = after;
    }
}

/* One of those that make a tile of outputs is there. */
template <int MOST> DEVICE void moe_count_out(const moe_args &a, const moe_warp &w, int32_t tile)
{
    uint32_t all = (uint32_t)(w.active + (a.sizes.shared_tiles ? a.sizes.parts * PROJECT_SLICES : 0));
    if (moe_last_again(a.out_done + tile, all, w.lane)) moe_out<MOST>(a, tile, w.lane);
}

/* ---- The shared expert: slices of tiles --------------------------------------------------------------------------- */


/* A slice of 16 outputs: where this lane's first row of the weight and its scales begin; the other row is eight further on. */
struct moe_slice {
    const uint8_t *data, *scales;
    int32_t cols, begin, end;
};

DEVICE moe_slice moe_slice_of(const moe_args &a, const moe_item &item, int lane)
{
    bool down = item.kind == MOE_DOWN_SLICE, up = item.part >= PROJECT_SLICES;
    moe_slice s;
    s.cols = down ? a.shared_down.cols : a.shared_gate.cols;
    int64_t at = (int64_t)(item.tile * EXPERTS_TILE + lane / 4) * s.cols;
    s.data = (const uint8_t *)(down ? a.shared_down.data : up ? a.shared_up.data : a.shared_gate.data) + at;
    s.scales = (const uint8_t *)(down ? a.shared_down.scales : up ? a.shared_up.scales : a.shared_gate.scales) + at / 32;
    slice_of(s.cols, item.part % PROJECT_SLICES, &s.begin, &s.end);
    return s;
}

/* load_codes of both rows. */
DEVICE void moe_load(const moe_slice &s, int32_t chunk, int lane, codes out[2])
{
    int32_t k = chunk + lane % 4 * fragment<KERNEL_MXFP8>::VALUES;
    UNROLL for (int half = 0; half < 2; half++) {
        out[half] = {{{0, 0, 0, 0}}, 0};
        if (k < s.end) {
            out[half].data = load_once(s.data + 8 * half * s.cols + k);
            out[half].scales = s.scales[(8 * half * s.cols + k) / 32];
        }
    }
}

/* decode, with elements 0, 2, 1, 3 of each four. */
DEVICE void moe_decode_apart(const codes &c, decoded<KERNEL_MXFP8> *out)
{
    uint32_t unit = mxfp8_unit(c.scales);
    UNROLL for (int i = 0; i < 4; i++) {
        e4m3_pairs_apart(c.data.w[i], out->pair + 2 * i);
        UNROLL for (int j = 0; j < 2; j++) out->pair[2 * i + j] = multiply_pairs(out->pair[2 * i + j], unit);
    }
    if (c.scales > MXFP8_UNIT_MOST) {
        uint32_t rest = mxfp8_unit_rest(c.scales);
        UNROLL for (int i = 0; i < 8; i++) out->pair[i] = multiply_pairs(out->pair[i], rest);
    }
}

/* sum [rows of eight] = the slice's weights times the rows from `row0` on. `ahead`: its first chunks. APART: an MMA adds its 16
 * products in any order, as Hopper's does; the one that takes fewer instructions is taken. */
template <int ROWS, bool APART, int DEPTH>
DEVICE void moe_multiply_slice(const moe_slice &s, const uint16_t *in, int32_t row0, int32_t count, int lane,
                               codes ahead[DEPTH][2], float sum[ROWS][4])
{
    typedef fragment<KERNEL_MXFP8> f;
    int g = lane / 4, t = lane % 4;
    const uint16_t *x[ROWS];
    UNROLL for (int n = 0; n < ROWS; n++) {
        int32_t row = row0 + 8 * n + g;
        if (row >= count) row = count - 1; /* its columns are not stored */
        x[n] = in + (int64_t)row * s.cols;
        UNROLL for (int i = 0; i < 4; i++) sum[n][i] = 0;
    }
    for (int32_t first = s.begin; first < s.end; first += DEPTH * f::CHUNK)
        UNROLL for (int d = 0; d < DEPTH; d++) {
            int32_t chunk = first + d * f::CHUNK, k = chunk + t * f::VALUES;
            if (chunk < s.end) {
                decoded<KERNEL_MXFP8> v[2];
                UNROLL for (int half = 0; half < 2; half++)
                    if (APART)
                        moe_decode_apart(ahead[d][half], &v[half]);
                    else
                        decode<KERNEL_MXFP8>(ahead[d][half], &v[half]);
                moe_load(s, chunk + DEPTH * f::CHUNK, lane, ahead[d]);
                UNROLL for (int n = 0; n < ROWS; n++) {
                    activations<KERNEL_MXFP8> b;
                    load_activations<KERNEL_MXFP8, false>(x[n] + k, s.end - k, &b);
                    UNROLL for (int i = 0; i < f::STEPS; i++) {
                        uint32_t w4[4] = {v[0].pair[2 * i], v[1].pair[2 * i], v[0].pair[2 * i + 1], v[1].pair[2 * i + 1]};
                        uint32_t x2[2] = {b.pair[2 * i], b.pair[2 * i + 1]};
                        if (APART) x2[0] = permute_bytes(b.pair[2 * i], b.pair[2 * i + 1], 0x5410);
                        if (APART) x2[1] = permute_bytes(b.pair[2 * i], b.pair[2 * i + 1], 0x7632);
                        mma_bf16(sum[n], w4, x2);
                    }
                }
            }
        }
}

/* z of a tile of the shared expert, from the slices of gate and up. */
template <int MOST> DEVICE void moe_shared_z(const moe_args &a, const float *parts, const moe_item &item, int lane)
{
    int32_t row0 = item.n * moe_part<MOST>::ROWS, rows = a.count - row0, width = a.shared_gate.rows;
    if (rows > moe_part<MOST>::ROWS) rows = moe_part<MOST>::ROWS;
    for (int32_t i = lane; i < rows * 4; i += CUDA_WARP) {
        float gate[4], up[4];
        moe_fold(parts + i * 4, moe_part<MOST>::SIZE, gate);
        moe_fold(parts + PROJECT_SLICES * moe_part<MOST>::SIZE + i * 4, moe_part<MOST>::SIZE, up);
        uint64_t z = 0;
        UNROLL for (int c = 0; c < 4; c++)
            z |= (uint64_t)bf16_of_float(experts_swiglu(gate[c], up[c], a.glu.alpha, a.glu.limit)) << 16 * c;
        *(uint64_t *)(a.shared_z + (int64_t)(row0 + i / 4) * width + item.tile * EXPERTS_TILE + i % 4 * 4) = z;
    }
}

/* Sums of a slice go to memory; the last of a tile goes on with it. */
template <int MOST>
DEVICE void moe_finish_slice(const moe_args &a, const moe_warp &w, const moe_item &item, const float sum[][4])
{
    typedef moe_part<MOST> part;
    bool down = item.kind == MOE_DOWN_SLICE;
    int g = w.lane / 4, t = w.lane % 4;
    int32_t tiles = down ? a.sizes.out_tiles : a.sizes.shared_tiles;
    int64_t block = ((int64_t)item.n * tiles + item.tile) * (down ? 1 : 2) * PROJECT_SLICES;
    float *parts = (down ? a.down_parts : a.shared_parts) + block * part::SIZE, *to = parts + item.part * part::SIZE;
    UNROLL for (int n = 0; n < part::ROWS / 8; n++)
        UNROLL for (int i = 0; i < 4; i++) {
            int32_t row = 8 * n + 2 * t + i % 2;
            if (item.n * part::ROWS + row < a.count) to[row * EXPERTS_TILE + i / 2 * 8 + g] = sum[n][i];
        }
    if (down) {
        moe_count_out<MOST>(a, w, item.tile);
    } else if (moe_last_again(a.shared_done + item.n * tiles + item.tile, 2 * PROJECT_SLICES, w.lane)) {
        moe_shared_z<MOST>(a, parts, item, w.lane);
        moe_bring(a.counts + MOE_SHARED_UP, 1, w.lane);
    }
}

DEVICE bool moe_is_slice(const moe_item &item) { return item.kind == MOE_UP_SLICE || item.kind == MOE_DOWN_SLICE; }

/* Items as long as they are slices, DEPTH chunks of which are on their way; the one behind them. */
template <int MOST, bool APART, int DEPTH> DEVICE moe_item moe_slices(const moe_args &a, moe_warp &w, moe_item item)
{
    enum { ROWS = moe_part<MOST>::ROWS / 8 };
    codes ahead[DEPTH][2];
    moe_slice s = moe_slice_of(a, item, w.lane);
    UNROLL for (int d = 0; d < DEPTH; d++) moe_load(s, s.begin + d * fragment<KERNEL_MXFP8>::CHUNK, w.lane, ahead[d]);
    for (;;) {
        uint32_t drawn = moe_draw(a, w);
        bool down = item.kind == MOE_DOWN_SLICE;
        if (down && !w.shared_up) {
            uint32_t tiles = (uint32_t)(a.sizes.shared_tiles * a.sizes.parts);
            moe_wait(a.counts + MOE_SHARED_UP, tiles, "gate and up of the shared expert", w.lane);
            w.shared_up = true;
        }
        float sum[ROWS][4];
        moe_multiply_slice<ROWS, APART, DEPTH>(s, down ? a.shared_z : a.normed, item.n * 8 * ROWS, a.count, w.lane, ahead, sum);
        moe_item next = moe_next<MOST>(a, w, drawn, false);
        bool on = moe_is_slice(next);
        if (on) s = moe_slice_of(a, next, w.lane);
        if (on && !a.late) {
            UNROLL for (int d = 0; d < DEPTH; d++)
                moe_load(s, s.begin + d * fragment<KERNEL_MXFP8>::CHUNK, w.lane, ahead[d]);
        }
        moe_finish_slice<MOST>(a, w, item, sum);
        if (!on) return next.kind == MOE_LATER ? moe_next<MOST>(a, w, drawn, true) : next;
        if (a.late) {
            UNROLL for (int d = 0; d < DEPTH; d++)
                moe_load(s, s.begin + d * fragment<KERNEL_MXFP8>::CHUNK, w.lane, ahead[d]);
        }
        item = next;
    }
}

/* ---- All of it ---------------------------------------------------------------------------------------------------- */

/* What is neither a slice nor a tile; the item behind it. */
template <int MOST, bool TILED> DEVICE moe_item moe_prepare(const moe_args &a, moe_warp &w, const moe_item &item)
{
    uint32_t drawn = moe_draw(a, w);
    if (item.kind == MOE_ROUTE) {
        moe_route(a, item.n, item.tile, item.part, w.lane);
    } else if (item.kind == MOE_CHOOSE) {
        moe_choose<MOST>(a, item.n, w.lane);
    } else if (item.kind == MOE_PLAN) {
        moe_plan_all(a, w.lane);
    } else {
        moe_in<TILED>(a, item.n, item.tile, w.lane);
    }
    return moe_next<MOST>(a, w, drawn, true);
}

/* All threads, before follow(). */
DEVICE void moe_ahead(const moe_args &a)
{
    int64_t line = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 128;
    if (line >= a.ahead) return;
    prefetch((const uint8_t *)a.shared_gate.data + line);
    prefetch((const uint8_t *)a.shared_up.data + line);
}

/* The last warp of all leaves the numbers as it found them. */
DEVICE void moe_end(const moe_args &a, int lane)
{
    uint32_t warps = gridDim.x * (blockDim.x / CUDA_WARP);
    if (!moe_last(a.counts + MOE_ENDED, warps, lane)) return;
    for (int32_t i = lane; i < MOE_COUNTS; i += CUDA_WARP) a.counts[i] = 0;
    for (int32_t i = lane; i < a.sizes.experts; i += CUDA_WARP) a.up_done[i] = 0, a.plan.lists.count[i] = 0;
}

#endif
