/*
 * A layer's feed-forward for up to 64 rows in one launch: router, choice of experts, quantised inputs, gate and up, SwiGLU,
 * down, weighted sum, the shared expert beside them, residual.
 *
 *     the formulas and the bits of route.cu, experts.cu (whose tiles these are) and project.cuh
 *
 * Work is cut into items, a warp an item, in one order; warps draw numbers, so whoever is free takes the next one, and all
 * multiprocessors stay busy until the last items. An item waits only for items with smaller numbers, which somebody who runs
 * has drawn: there is no barrier, and blocks need not be on the GPU together.
 *
 *     1  router      an output, eight rows and a slice of K (of many rows: all slices)     3.1 MB
 *     2  choice      a row; whoever is the last one makes the lists of all experts
 *     3  inputs      64 groups of 16 of a row
 *     4  shared up   a tile of 16 outputs of gate or up, a slice of K                      12.7 KB
 *     5  up          a tile of an expert's gate or up, all of K                            55.3 KB
 *     6  shared down a tile, a slice of K                                                   6.3 KB
 *     7  down        a tile of an expert, all of K                                         27.6 KB
 *
 * So the shared expert's bytes flow while the routes are made (4), and while the last tiles of gate and up end (6). What
 * belongs together (gate and up, slices, the experts of an output tile) is put down in memory, and the warp that counts the
 * last of it adds it up, in the fixed order: SwiGLU and quantiser behind 5, eight slices behind 4, x behind 6 and 7.
 * Sums are never cut but for the slices of docs/numerics.md, so the bits do not depend on who takes what.
 *
 * Rings: as in experts.cu four chunks of 2,304 bytes a warp, three of them on their way: 12 warps a multiprocessor have 83 KB
 * on their way, the memory's latency needs 33. A warp asks for its next tile before it finishes the one it has (`late`:
 * after). Items 4 and 6 load into registers, 4 KB a warp, the next item's first ones too before the last sums are put down.
 *
 * Bytes of M3.1's layer at one row: 4 experts of 31.9 MB, shared expert 58.4 MB, router 3.1 MB: 189 MB, 44 us at 4.3 TB/s; at 8
 * rows 976 MB, 227 us. Balance at one row on 132 multiprocessors: 1,584 warps and 1,536 items 5, which begin together and are
 * 97 % of them; 3,072 items 4 before and 3,072 items 6 behind are small. What nobody else can help with is the last item 7, a
 * chain of 192 MMAs, about 4 us. From 8 rows on there are many rounds of items 5, and only that end is left.
 * Instructions of a tile of 16 outputs and 256 inputs: 16 MMAs and about 300 in all for 2,304 bytes: at 4.3 TB/s a
 * multiprocessor issues 2.4 of its 4 a cycle. Traffic beside the weights: partial sums, at one row 0.3 MB, at 64 rows 60 MB in
 * the second-level cache beside 3,600 MB of weights.
 * Bound: memory.
 */
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

/* What a warp knows. */
struct moe_warp {
    int32_t lane;
    int32_t active;   /* experts that have rows; -1: not yet known */
    bool shared_up;   /* all of the shared expert's z is there */
    int32_t up;       /* active expert whose z is known to be there, or -1 */
    quad *ring;
    uint32_t asked;   /* chunks asked for, also empty ones: chunk i goes to stage i % EXPERTS_STAGES */
};

/* ---- Numbers of all blocks --------------------------------------------------------------------------------------- */

/* What the warp wrote is there for all, and counted. True: it was the last of `all`, whose writes it can read. */
DEVICE bool moe_last(uint32_t *at, uint32_t all, int lane)
{
    uint32_t before = 0;
    WARP_SYNC();
    if (lane == 0) before = arrive(at, 1);
    before = lane_get(before, 0);
    WARP_SYNC();
    return before + 1 == all;
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

/* The item of a number. Its kind is MOE_LATER if that is not known yet and `wait` is not set. */
template <int MOST> DEVICE moe_item moe_item_of(const moe_args &a, moe_warp &w, int32_t number, bool wait)
{
    const moe_sizes &z = a.sizes;
    int32_t left = number;
    if (left < z.routes) {
        if (MOST <= MOE_FEW) return {MOE_ROUTE, 0, left / PROJECT_SLICES, left % PROJECT_SLICES};
        return {MOE_ROUTE, left / z.experts, left % z.experts, 0};
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
    if (left < z.down_slices) {
        int32_t tile = left / PROJECT_SLICES;
        return {MOE_DOWN_SLICE, tile % z.parts, tile / z.parts, left % PROJECT_SLICES};
    }
    left -= z.down_slices;
    if (left < w.active * z.out_tiles) return {MOE_DOWN, left / z.out_tiles, left % z.out_tiles, 0};
    return {MOE_NONE, 0, 0, 0};
}

/* The next number, of lane 0 alone: it is on its way while others are worked on. */
DEVICE uint32_t moe_draw(const moe_args &a, int lane)
{
    return lane == 0 ? draw(a.counts + MOE_TICKET, 1) : 0;
}

template <int MOST> DEVICE moe_item moe_next(const moe_args &a, moe_warp &w, uint32_t drawn, bool wait)
{
    return moe_item_of<MOST>(a, w, (int32_t)lane_get(drawn, 0), wait);
}

/* ---- Routes and inputs ------------------------------------------------------------------------------------------- */

/* Slices [first, end) of one output and the eight rows from 8 * n on: the sums of project_f32.cu. */
DEVICE void moe_route(const moe_args &a, int32_t n, int32_t output, int32_t first_slice, int32_t end_slice, int lane)
{
    enum { STEP = 4 * CUDA_WARP, DEPTH = 6 };
    int32_t hidden = a.in.hidden, rows = a.count - n * MOE_ROUTED;
    const float *w = a.router + (int64_t)output * hidden;
    const uint16_t *x = a.normed + (int64_t)n * MOE_ROUTED * hidden;
    for (int32_t slice = first_slice; slice < end_slice; slice++) {
        int32_t begin, end;
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
    }
    WARP_SYNC();
    if (lane == 0) arrive(a.counts + MOE_ROUTER + n, (uint32_t)(end_slice - first_slice));
}

/* Members of all experts, by one warp: experts_plan's lists. */
DEVICE void moe_plan(const moe_args &a, int lane)
{
    const experts_plan_args &p = a.plan;
    int32_t places = p.count * p.lists.per_token, active = 0;
    for (int32_t base = 0; base < p.lists.experts; base += CUDA_WARP) {
        int32_t e = base + lane, count = 0, *members = p.lists.members + (int64_t)e * p.lists.capacity;
        for (int32_t first = 0; first < places; first += CUDA_WARP) {
            int32_t m = first + lane, route = -1;
            if (m < places && p.sequence[m / p.lists.per_token] >= 0) route = p.routes[m];
            if (route >= 0 && m % p.lists.per_token > 0 && p.routes[m - 1] == route) route = -1; /* the first counts */
            uint32_t some = lane_ballot(route >= base && route < base + CUDA_WARP);
            for (; some; some &= some - 1) {
                int from = count_bits((some & (0 - some)) - 1);
                if (lane_get(route, from) == e) members[count++] = first + from;
            }
        }
        if (e < p.lists.experts) p.lists.count[e] = count;
        uint32_t have = lane_ballot(count > 0);
        if (count > 0) a.active[active + count_bits(have & ((1u << lane) - 1))] = e;
        active += count_bits(have);
    }
    if (lane == 0) a.counts[MOE_ACTIVE] = (uint32_t)active;
    WARP_SYNC();
    if (lane == 0) arrive(a.counts + MOE_READY, 1);
}

template <int MOST> DEVICE void moe_choose(const moe_args &a, int32_t row, int lane)
{
    int32_t experts = a.plan.lists.experts, n = row / MOE_ROUTED;
    moe_wait(a.counts + MOE_ROUTER + n, (uint32_t)(experts * PROJECT_SLICES), "the router", lane);
    for (int32_t e = lane; e < experts; e += CUDA_WARP) {
        const float *part = a.router_parts + ((int64_t)n * experts + e) * PROJECT_SLICES * MOE_ROUTED + row % MOE_ROUTED;
        float y[PROJECT_SLICES];
        UNROLL for (int s = 0; s < PROJECT_SLICES; s++) y[s] = part[s * MOE_ROUTED];
        a.choose.scores[(int64_t)row * experts + e] = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
    }
    route_row(a.choose, row, lane);
    if (moe_last(a.counts + MOE_CHOSEN, (uint32_t)a.count, lane)) moe_plan(a, lane);
}

DEVICE void moe_in(const moe_args &a, int32_t row, int32_t piece, int lane)
{
    const float *h = a.in.h + (int64_t)row * a.in.hidden;
    uint16_t *out = a.in.out + (int64_t)row * a.in.hidden;
    float factor = 1;
    if (a.in.quantise) {
        uint32_t most = 0;
        for (int32_t i = lane; i < a.in.hidden / 4; i += CUDA_WARP) {
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
    for (int32_t group = first + lane; group < end && group < groups; group += CUDA_WARP)
        experts_in_group(a.in, h + group * 16, factor, out + group * 16);
    WARP_SYNC();
    if (lane == 0) arrive(a.counts + MOE_READY, 1);
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
            after.w[c] = float_bits(bits_float(before.w[c]) + (a.shared_down.data ? routed + shared[c] : routed));
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

enum { MOE_DEPTH = 4 }; /* chunks of a slice on their way */

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
template <int ROWS>
DEVICE void moe_multiply_slice(const moe_slice &s, const uint16_t *in, int32_t row0, int32_t count, int lane,
                               codes ahead[MOE_DEPTH][2], float sum[ROWS][4])
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
    for (int32_t first = s.begin; first < s.end; first += MOE_DEPTH * f::CHUNK)
        UNROLL for (int d = 0; d < MOE_DEPTH; d++) {
            int32_t chunk = first + d * f::CHUNK, k = chunk + t * f::VALUES;
            if (chunk < s.end) {
                decoded<KERNEL_MXFP8> v[2];
                UNROLL for (int half = 0; half < 2; half++) decode<KERNEL_MXFP8>(ahead[d][half], &v[half]);
                moe_load(s, chunk + MOE_DEPTH * f::CHUNK, lane, ahead[d]);
                UNROLL for (int n = 0; n < ROWS; n++) {
                    activations<KERNEL_MXFP8> b;
                    load_activations<KERNEL_MXFP8, false>(x[n] + k, s.end - k, &b);
                    UNROLL for (int i = 0; i < f::STEPS; i++) {
                        uint32_t w4[4] = {v[0].pair[2 * i], v[1].pair[2 * i], v[0].pair[2 * i + 1], v[1].pair[2 * i + 1]};
                        mma_bf16(sum[n], w4, b.pair + 2 * i);
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
        WARP_SYNC();
        if (w.lane == 0) arrive(a.counts + MOE_SHARED_UP, 1);
    }
}

DEVICE bool moe_is_slice(const moe_item &item) { return item.kind == MOE_UP_SLICE || item.kind == MOE_DOWN_SLICE; }

/* Items as long as they are slices; the one behind them. */
template <int MOST> DEVICE moe_item moe_slices(const moe_args &a, moe_warp &w, moe_item item)
{
    enum { ROWS = moe_part<MOST>::ROWS / 8 };
    codes ahead[MOE_DEPTH][2];
    moe_slice s = moe_slice_of(a, item, w.lane);
    UNROLL for (int d = 0; d < MOE_DEPTH; d++) moe_load(s, s.begin + d * fragment<KERNEL_MXFP8>::CHUNK, w.lane, ahead[d]);
    for (;;) {
        uint32_t drawn = moe_draw(a, w.lane);
        bool down = item.kind == MOE_DOWN_SLICE;
        if (down && !w.shared_up) {
            uint32_t tiles = (uint32_t)(a.sizes.shared_tiles * a.sizes.parts);
            moe_wait(a.counts + MOE_SHARED_UP, tiles, "gate and up of the shared expert", w.lane);
            w.shared_up = true;
        }
        float sum[ROWS][4];
        moe_multiply_slice<ROWS>(s, down ? a.shared_z : a.normed, item.n * 8 * ROWS, a.count, w.lane, ahead, sum);
        moe_item next = moe_next<MOST>(a, w, drawn, false);
        bool on = moe_is_slice(next);
        if (on) s = moe_slice_of(a, next, w.lane);
        if (on && !a.late) {
            UNROLL for (int d = 0; d < MOE_DEPTH; d++)
                moe_load(s, s.begin + d * fragment<KERNEL_MXFP8>::CHUNK, w.lane, ahead[d]);
        }
        moe_finish_slice<MOST>(a, w, item, sum);
        if (!on) return next.kind == MOE_LATER ? moe_next<MOST>(a, w, drawn, true) : next;
        if (a.late) {
            UNROLL for (int d = 0; d < MOE_DEPTH; d++)
                moe_load(s, s.begin + d * fragment<KERNEL_MXFP8>::CHUNK, w.lane, ahead[d]);
        }
        item = next;
    }
}

/* ---- The routed experts: tiles ------------------------------------------------------------------------------------ */

/* Rows that a warp multiplies with a tile at once, in eights. An expert of more than 16 of 64 rows is rare, and its tile, which
 * comes again, is in the second-level cache: a third kind would cost all of them registers. */
template <int MOST> DEVICE int moe_eights(int32_t members)
{
    return MOST <= 8 || members <= 8 ? 1 : 2;
}

/* Chunks of a tile that are still to be asked for. */
struct moe_chunks {
    experts_tiles<1> w;
    int32_t chunk, left;
};

DEVICE int32_t moe_chunk_count(int32_t cols) { return (cols + EXPERTS_CHUNK - 1) / EXPERTS_CHUNK; }

template <int MOST> DEVICE moe_chunks moe_chunks_of(const moe_args &a, const moe_item &item)
{
    bool down = item.kind == MOE_DOWN, up = item.part != 0;
    int32_t expert = a.active[item.n], members = a.plan.lists.count[expert];
    int32_t at_once = 8 * moe_eights<MOST>(members), turns = (members + at_once - 1) / at_once;
    moe_chunks c;
    const void *data = down ? a.down.down.first.data : up ? a.glu.up.first.data : a.glu.gate.first.data;
    const void *scales = down ? a.down.down.first.scales : up ? a.glu.up.first.scales : a.glu.gate.first.scales;
    int64_t bytes = down ? a.down.down.bytes : up ? a.glu.up.bytes : a.glu.gate.bytes;
    int64_t scale_bytes = down ? a.down.down.scale_bytes : up ? a.glu.up.scale_bytes : a.glu.gate.scale_bytes;
    c.w.cols = down ? a.down.down.first.cols : a.glu.gate.first.cols;
    c.w.data[0] = (const uint8_t *)data + expert * bytes + (int64_t)item.tile * EXPERTS_TILE * (c.w.cols / 2);
    c.w.scales[0] = (const uint8_t *)scales + expert * scale_bytes + (int64_t)item.tile * EXPERTS_TILE * (c.w.cols / 16);
    c.chunk = 0;
    c.left = moe_chunk_count(c.w.cols) * turns;
    return c;
}

DEVICE void moe_ask(moe_warp &w, moe_chunks &c)
{
    if (c.left > 0) {
        experts_ask<1>(c.w, c.chunk, w.ring + w.asked % EXPERTS_STAGES * experts_stage<1>::QUADS, w.lane);
        c.left--;
        if (++c.chunk == moe_chunk_count(c.w.cols)) c.chunk = 0; /* again, for other rows */
    }
    copy_commit();
    w.asked++;
}

/* The item behind the one in work. A number is drawn late: who holds one keeps it from those who are free. */
struct moe_follower {
    bool drawn;
    uint32_t number; /* of lane 0 */
    moe_item item;   /* MOE_LATER: not looked at */
    bool started;    /* its chunks are being asked for, the first as number `base` */
    uint32_t base;
};

DEVICE bool moe_is_tile(const moe_item &item) { return item.kind == MOE_UP || item.kind == MOE_DOWN; }

/* experts_multiply; of more rows the registers are short. */
template <int EIGHTS>
DEVICE void moe_multiply(int32_t cols, int32_t chunk, const quad *stage, const experts_inputs<EIGHTS> &source, int lane,
                         float d[1][EIGHTS][4])
{
    if (EIGHTS == 1) {
        experts_multiply<1, EIGHTS>(cols, chunk, stage, source, lane, d);
    } else {
        _Pragma("unroll 1") for (int half = 0; half < 2; half++)
            experts_multiply_half<1, EIGHTS>(cols, chunk, half, stage, source, lane, d);
    }
}

/* All rows of the item's expert; sums go to memory. `base`: number of its first chunk, of which all stages but one have been
 * asked for. */
template <int MOST, int EIGHTS>
DEVICE void moe_tile(const moe_args &a, moe_warp &w, const moe_item &item, int32_t expert, uint32_t base, moe_chunks &c,
                     moe_follower &next)
{
    enum { STAGES = EXPERTS_STAGES, QUADS = experts_stage<1>::QUADS };
    bool down = item.kind == MOE_DOWN;
    const experts_lists &lists = a.plan.lists;
    int g = w.lane / 4, t = w.lane % 4;
    int32_t cols = c.w.cols, chunks = moe_chunk_count(cols), count = lists.count[expert], out = item.tile * EXPERTS_TILE;
    int32_t width = down ? a.down.down.first.rows : a.glu.gate.first.rows;
    const int32_t *members = lists.members + (int64_t)expert * lists.capacity;
    float factor = down ? a.down.down.factors[expert] : 1;
    float *to = down ? a.down.y : a.gate_up + (int64_t)item.part * a.count * lists.per_token * width;
    uint32_t at = base;
    for (int32_t first = 0; first < count; first += 8 * EIGHTS) {
        experts_inputs<EIGHTS> source;
        float d[1][EIGHTS][4];
        experts_sources<EIGHTS>(lists, expert, first, down ? a.glu.z : a.in.out, cols, down ? 1 : lists.per_token, g, source);
        UNROLL for (int n = 0; n < EIGHTS; n++)
            UNROLL for (int i = 0; i < 4; i++) d[0][n][i] = 0;
        for (int32_t k = 0; k < chunks; k++, at++) {
            copy_wait<STAGES - 2>();
            WARP_SYNC(); /* the chunk is there for all lanes, and all are done with the one before it */
            if (next.drawn && next.item.kind == MOE_LATER && c.left == 0 && !a.late) {
                next.item = moe_next<MOST>(a, w, next.number, false);
                if (moe_is_tile(next.item)) {
                    c = moe_chunks_of<MOST>(a, next.item);
                    next.base = w.asked;
                    next.started = true;
                }
            }
            moe_ask(w, c);
            if (!next.drawn && c.left <= 1) {
                next.number = moe_draw(a, w.lane);
                next.drawn = true;
            }
            moe_multiply<EIGHTS>(cols, k, w.ring + at % STAGES * QUADS, source, w.lane, d);
        }
        UNROLL for (int n = 0; n < EIGHTS; n++)
            UNROLL for (int i = 0; i < 2; i++) {
                int32_t m = first + 8 * n + 2 * t + i;
                float low = d[0][n][i], high = d[0][n][2 + i];
                if (down) low = low * NVFP4_SHIFT * factor * a.down.factor, high = high * NVFP4_SHIFT * factor * a.down.factor;
                if (m < count) {
                    float *y = to + (int64_t)members[m] * width + out + g;
                    y[0] = low, y[8] = high;
                }
            }
    }
}

/* SwiGLU of all rows of a tile, from the sums of gate and up. */
DEVICE void moe_glu(const moe_args &a, int32_t expert, int32_t tile, int lane)
{
    const experts_lists &lists = a.plan.lists;
    int g = lane / 4, t = lane % 4;
    int32_t count = lists.count[expert], width = a.glu.gate.first.rows, out = tile * EXPERTS_TILE;
    int64_t up_behind = (int64_t)a.count * lists.per_token * width;
    const int32_t *members = lists.members + (int64_t)expert * lists.capacity;
    for (int32_t first = 0; first < count; first += 8) {
        float gate[4], up[4];
        UNROLL for (int i = 0; i < 4; i++) {
            int32_t m = first + 2 * t + i % 2;
            const float *from = a.gate_up + (int64_t)members[m < count ? m : count - 1] * width + out + i / 2 * 8 + g;
            gate[i] = from[0], up[i] = from[up_behind];
        }
        experts_finish_glu(a.glu, expert, first, out, gate, up, lane);
    }
}

/* Items as long as they are tiles; the one behind them. */
template <int MOST> DEVICE moe_item moe_tiles(const moe_args &a, moe_warp &w, moe_item item)
{
    moe_chunks c = moe_chunks_of<MOST>(a, item);
    uint32_t base = w.asked;
    WARP_SYNC(); /* all are done with the ring */
    for (;;) {
        moe_follower next = {false, 0, {MOE_LATER, 0, 0, 0}, false, 0};
        int32_t expert = a.active[item.n];
        while (w.asked - base < EXPERTS_STAGES - 1) moe_ask(w, c);
        if (item.kind == MOE_DOWN && w.up != item.n) {
            moe_wait(a.up_done + item.n, (uint32_t)a.sizes.tiles, "gate and up of an expert", w.lane);
            w.up = item.n;
        }
        int eights = moe_eights<MOST>(a.plan.lists.count[expert]);
        if (MOST <= 8 || eights == 1)
            moe_tile<MOST, 1>(a, w, item, expert, base, c, next);
        else
            moe_tile<MOST, 2>(a, w, item, expert, base, c, next);
        if (item.kind == MOE_DOWN) {
            moe_count_out<MOST>(a, w, item.tile);
        } else if (moe_last_again(a.pair_done + item.n * a.sizes.tiles + item.tile, 2, w.lane)) {
            moe_glu(a, expert, item.tile, w.lane);
            WARP_SYNC();
            if (w.lane == 0) arrive(a.up_done + item.n, 1);
        }
        if (next.item.kind == MOE_LATER) next.item = moe_next<MOST>(a, w, next.number, true);
        item = next.item;
        if (!moe_is_tile(item)) return item;
        base = next.started ? next.base : w.asked;
        if (!next.started) c = moe_chunks_of<MOST>(a, item);
        WARP_SYNC(); /* all are done with the ring */
    }
}

/* ---- All of it ---------------------------------------------------------------------------------------------------- */

/* The last warp of all leaves the numbers as it found them. */
DEVICE void moe_end(const moe_args &a, int lane)
{
    uint32_t warps = gridDim.x * (MOE_BLOCK / CUDA_WARP);
    if (!moe_last(a.counts + MOE_ENDED, warps, lane)) return;
    for (int32_t i = lane; i < MOE_COUNTS; i += CUDA_WARP) a.counts[i] = 0;
    for (int32_t i = lane; i < a.sizes.experts; i += CUDA_WARP) a.up_done[i] = 0;
}

template <int MOST> DEVICE void moe(const moe_args &a)
{
    enum { WARPS = MOE_BLOCK / CUDA_WARP };
    int64_t line = ((int64_t)blockIdx.x * MOE_BLOCK + threadIdx.x) * 128;
    if (line < a.ahead) {
        prefetch((const uint8_t *)a.shared_gate.data + line);
        prefetch((const uint8_t *)a.shared_up.data + line);
    }
    follow();
    quad *rings = DYNAMIC(quad);
    uint32_t *first = (uint32_t *)(rings + WARPS * EXPERTS_RING_BYTES / 16);
    int warp = threadIdx.x / CUDA_WARP;
    moe_warp w = {(int32_t)threadIdx.x % CUDA_WARP, -1, false, -1, rings + warp * EXPERTS_RING_BYTES / 16, 0};
    if (threadIdx.x == 0) *first = draw(a.counts + MOE_TICKET, WARPS);
    BLOCK_SYNC();
    moe_item item = moe_item_of<MOST>(a, w, (int32_t)*first + warp, true);
    while (item.kind != MOE_NONE) {
        if (moe_is_slice(item)) {
            item = moe_slices<MOST>(a, w, item);
            continue;
        }
        if (moe_is_tile(item)) {
            item = moe_tiles<MOST>(a, w, item);
            continue;
        }
        uint32_t drawn = moe_draw(a, w.lane);
        if (item.kind == MOE_ROUTE) {
            bool few = MOST <= MOE_FEW;
            moe_route(a, item.n, item.tile, few ? item.part : 0, few ? item.part + 1 : PROJECT_SLICES, w.lane);
        } else if (item.kind == MOE_CHOOSE) {
            moe_choose<MOST>(a, item.n, w.lane);
        } else if (item.kind == MOE_PLAN) {
            moe_plan(a, w.lane);
        } else {
            moe_in(a, item.n, item.tile, w.lane);
        }
        item = moe_next<MOST>(a, w, drawn, true);
    }
    copy_wait<0>();
    moe_end(a, w.lane);
}

KERNEL_TOGETHER(moe_few, moe_args, MOE_BLOCK, MOE_BLOCKS) { moe<MOE_FEW>(a); }
KERNEL_TOGETHER(moe_many, moe_args, MOE_BLOCK, MOE_BLOCKS) { moe<MOE_ROWS>(a); }
