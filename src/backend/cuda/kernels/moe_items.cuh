/*
 * The items of moe.cu but for the tiles of the routed experts; moe.cu says what they are and in what order they come.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_MOE_ITEMS_CUH
#define HAYATE_BACKEND_CUDA_KERNELS_MOE_ITEMS_CUH

#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/moe.cuh"

enum { MOE_NONE, MOE_ROUTE, MOE_CHOOSE, MOE_PLAN, MOE_IN, MOE_UP_SLICE, MOE_UP, MOE_DOWN_SLICE, MOE_DOWN, MOE_LATER };

/* `n`: eight rows, a row, rows of the shared expert, or an active expert; `part`: a slice, with gate 0 and up 1 before it
 * where there are both. */
struct moe_item {
    int32_t kind, n, tile, part;
};

/* What a warp knows. */
struct moe_warp {
    int32_t lane;
    int32_t active;   /* experts that have rows; -1: not yet known */
    bool shared_up;   /* all of the shared expert's z is there */
};

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
    return w.lane == 0 ? draw(a.counts + MOE_TICKET, 1) : 0;
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
        if (few) moe_route_row(a.choose, s, moe_row_ahead_of(a.choose, row, lane), row, lane);
    }
    if (!few) route_row(a.choose, row, lane);
    WARP_SYNC();
    moe_join(a, row * a.plan.lists.per_token, (row + 1) * a.plan.lists.per_token, lane);
    if (moe_last(a.counts + MOE_CHOSEN, (uint32_t)a.count, lane)) moe_plan(a, lane);
}

DEVICE void moe_in(const moe_args &a, int32_t row, int32_t piece, int lane)
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
        experts_in_group(a.in, h + group * 16, factor, out + group * 16);
    }
    moe_bring(a.counts + MOE_READY, 1, lane);
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

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

/* sum [rows of eight] = the slice's weights times the rows from `row0` on. `ahead`: its first chunks. */
template <int ROWS, int DEPTH>
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
                    decode<KERNEL_MXFP8>(ahead[d][half], &v[half]);
                moe_load(s, chunk + DEPTH * f::CHUNK, lane, ahead[d]);
                UNROLL for (int n = 0; n < ROWS; n++) {
                    activations<KERNEL_MXFP8> b;
                    load_activations<KERNEL_MXFP8, false>(x[n] + k, s.end - k, &b);
                    UNROLL for (int i = 0; i < f::STEPS; i++) {
                        uint32_t w4[4] = {v[0].pair[2 * i], v[1].pair[2 * i], v[0].pair[2 * i + 1], v[1].pair[2 * i + 1]};
                        uint32_t x2[2] = {b.pair[2 * i], b.pair[2 * i + 1]};
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
template <int MOST, int DEPTH> DEVICE moe_item moe_slices(const moe_args &a, moe_warp &w, moe_item item)
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
        moe_multiply_slice<ROWS, DEPTH>(s, down ? a.shared_z : a.normed, item.n * 8 * ROWS, a.count, w.lane, ahead, sum);
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
template <int MOST> DEVICE moe_item moe_prepare(const moe_args &a, moe_warp &w, const moe_item &item)
{
    uint32_t drawn = moe_draw(a, w);
    if (item.kind == MOE_ROUTE) {
        moe_route(a, item.n, item.tile, item.part, w.lane);
    } else if (item.kind == MOE_CHOOSE) {
        moe_choose<MOST>(a, item.n, w.lane);
    } else if (item.kind == MOE_PLAN) {
        moe_plan_all(a, w.lane);
    } else {
        moe_in(a, item.n, item.tile, w.lane);
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

#endif
