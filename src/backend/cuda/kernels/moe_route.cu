/*
 * What moe_hopper.cu begins with, in a launch before it: the router, the choice of experts, the lists of who goes where, and
 * the experts' inputs. The sums and the bits are those of moe.cuh and of route.cu.
 *
 *     router  a block has eight rows and one expert, or of more rows eight experts: one or two teams of eight warps, a warp
 *             a slice of K of EACH experts; the slices meet in shared memory
 *     choice  whoever of the blocks of eight rows is the last one: a warp a row, scores from the second-level cache; what
 *             else it takes has been asked for before the sums
 *     lists   whoever of these is the last one; counts are in shared memory until they are whole
 *     inputs  pieces of rows are drawn by blocks that have no lists to make: the row's largest value, then groups of 16, a
 *             thread each
 *
 * Why not in the launch of the experts: there every warp drew what it did from one number, sums of slices went through
 * memory, and from the router's last sum to the lists were four more rounds of counting and waiting by which blocks meet,
 * each a fence, an atomic and a read behind it: on an H200 the lists were there 34 us after the launch with one row, 45 with
 * eight and 85 with 64. Here are one or two such rounds, the arrival of the blocks, and the end of the kernel.
 *
 * Where there is a shared expert its gate and up come before this kernel, which needs nothing of them and so does not wait
 * for their end (follow_let): its blocks take the places of theirs as these become free. Its down comes behind.
 *
 * Bytes: the router's weights once for every eight rows, rows once for every block: 3.1 and 1.6 MB for one row of M3.1, 25
 * and 12 MB for 64 rows, nearly all from the second-level cache. Instructions of a warp of many rows: 256 of products and sums and
 * some 40 others for every four inputs of a lane, six times.
 * Bound: latency. With one row on an H200, after the first block: the last sums 5.7 us, all have come 7.5, choice 8.4, lists
 * 10; a row's inputs, by one block whose readings waited for each other, 14.4.
 */
#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/moe.cuh"

/* v[0] becomes in lane i the sum of all lanes' v[i], added as by a butterfly from 16 down to 1. */
DEVICE void moe_gather(float v[CUDA_WARP], int lane)
{
    UNROLL for (int level = 0; level < 5; level++) {
        int half = CUDA_WARP / 2 >> level;
        bool upper = lane & half;
        UNROLL for (int i = 0; i < CUDA_WARP / 2; i++)
            if (i < half) {
                float low = v[i], high = v[i + half];
                v[i] = (upper ? high : low) + lane_xor(upper ? low : high, half);
            }
    }
}

/* Behind it all that this kernel reads is there: with behind_shared since its blocks came onto the GPU, but the first-level cache
 * may have what was there before. So what other kernels write is read past that (load_fresh, volatile). */
DEVICE void moe_begin(const moe_args &a)
{
    if (a.behind_shared)
        follow_let();
    else
        follow();
}

/* Four inputs of each step; zeros behind the slice. */
template <int DEPTH> DEVICE void moe_row_ask(const uint16_t *x, int32_t first, int32_t end, uint64_t to[DEPTH])
{
    UNROLL for (int d = 0; d < DEPTH; d++) {
        int32_t k = first + d * 4 * CUDA_WARP;
        to[d] = k < end ? *(const volatile uint64_t *)(x + k) : 0;
    }
}

/* Scores of the block's experts and rows, EACH experts a team. Calls moe_begin(). */
template <int EACH, int TEAMS>
DEVICE void moe_scores(const moe_args &a, float *parts, int32_t block, bool squashed, moe_row_ahead *ahead)
{
    enum { STEP = 4 * CUDA_WARP, DEPTH = EACH == 1 ? 6 : 2, EXPERTS = TEAMS * EACH, ASKED = EACH == 1 ? 2 : 4 };
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, slice = warp % PROJECT_SLICES;
    int32_t hidden = a.in.hidden, experts = a.plan.lists.experts, groups = (experts + EXPERTS - 1) / EXPERTS;
    int32_t first_row = block / groups * MOE_ROUTED, rows = a.count - first_row, begin, end;
    int32_t first_expert = block % groups * EXPERTS, own = first_expert + warp / PROJECT_SLICES * EACH;
    const uint16_t *x = a.normed + (int64_t)first_row * hidden;
    slice_of(hidden, slice, &begin, &end);
    if (rows > MOE_ROUTED) rows = MOE_ROUTED;
    float sum[EACH * MOE_ROUTED];
    UNROLL for (int i = 0; i < EACH * MOE_ROUTED; i++) sum[i] = 0;
    for (int32_t first = begin; first < end; first += DEPTH * STEP) {
        quad value[DEPTH][EACH];
        uint64_t in[ASKED][DEPTH];
        UNROLL for (int d = 0; d < DEPTH; d++)
            UNROLL for (int e = 0; e < EACH; e++) {
                int32_t k = first + d * STEP + 4 * lane, expert = own + e < experts ? own + e : experts - 1;
                value[d][e] = k < end ? load_once(a.router + (int64_t)expert * hidden + k) : quad{{0, 0, 0, 0}};
            }
        if (first == begin) {
            moe_begin(a);
            if (squashed && slice < rows) *ahead = moe_row_ahead_of(a.choose, first_row + slice, lane);
        }
        UNROLL for (int r = 0; r < ASKED; r++)
            if (r < rows) moe_row_ask<DEPTH>(x + (int64_t)r * hidden, first + 4 * lane, end, in[r]);
        UNROLL for (int r = 0; r < MOE_ROUTED; r++) {
            if (r >= rows) break;
            UNROLL for (int d = 0; d < DEPTH; d++)
                UNROLL for (int e = 0; e < EACH; e++)
                    UNROLL for (int i = 0; i < 4; i++)
                        sum[e * MOE_ROUTED + r] +=
                            bits_float(value[d][e].w[i]) * float_of_bf16((uint32_t)(in[r % ASKED][d] >> 16 * i) & 0xFFFF);
            if (r + ASKED < rows)
                moe_row_ask<DEPTH>(x + (int64_t)(r + ASKED) * hidden, first + 4 * lane, end, in[r % ASKED]);
        }
    }
    if (begin >= end) {
        moe_begin(a);
        if (squashed && slice < rows) *ahead = moe_row_ahead_of(a.choose, first_row + slice, lane);
    }
    float *to = parts + (slice * EXPERTS + own - first_expert) * MOE_ROUTED;
    if (EACH * MOE_ROUTED == CUDA_WARP) {
        moe_gather(sum, lane);
        to[lane] = sum[0];
    } else {
        UNROLL for (int i = 0; i < EACH * MOE_ROUTED; i++)
            if (i % MOE_ROUTED < rows) {
                UNROLL for (int mask = 16; mask; mask /= 2) sum[i] += lane_xor(sum[i], mask);
                if (lane == 0) to[i] = sum[i];
            }
    }
    BLOCK_SYNC();
    int32_t i = (int32_t)threadIdx.x, row = i % MOE_ROUTED, expert = first_expert + i / MOE_ROUTED;
    if (i >= EXPERTS * MOE_ROUTED || row >= rows || expert >= experts) return;
    float y[PROJECT_SLICES];
    UNROLL for (int s = 0; s < PROJECT_SLICES; s++) y[s] = parts[s * EXPERTS * MOE_ROUTED + i];
    float score = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
    if (squashed) score = 1 / (1 + expf(-score));
    a.choose.scores[(int64_t)(first_row + row) * experts + expert] = score;
}

/* Routes of eight rows, from their scores, a warp a row. */
DEVICE void moe_choices(const moe_args &a, int32_t first, bool squashed, const moe_row_ahead &ahead)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int32_t row = first + warp;
    if (warp >= MOE_ROUTED || row >= a.count) return;
    const float *scores = a.choose.scores + (int64_t)row * a.choose.experts;
    if (squashed) {
        float s[4];
        UNROLL for (int j = 0; j < 4; j++) {
            int32_t e = j * CUDA_WARP + lane;
            s[j] = e < a.choose.experts ? load_fresh(scores + e) : 0;
        }
        moe_route_row(a.choose, s, ahead, row, lane);
    } else {
        route_row(a.choose, row, lane);
    }
}

/* The lists of all experts; `counts` is in shared memory, zeros. */
DEVICE void moe_lists(const moe_args &a, uint32_t *counts)
{
    const experts_plan_args &p = a.plan;
    const experts_lists &lists = p.lists;
    int32_t thread = (int32_t)threadIdx.x, lane = thread % CUDA_WARP;
    BLOCK_SYNC(); /* all routes are there */
    for (int32_t m = thread; m < p.count * lists.per_token; m += (int32_t)blockDim.x) {
        bool first = m % lists.per_token == 0;
        int32_t e = p.routes[m], before = p.routes[first ? m : m - 1], sequence = p.sequence[m / lists.per_token];
        if (sequence < 0 || (!first && before == e)) continue; /* the first counts */
        lists.members[(int64_t)e * lists.capacity + count_up(counts + e, 1)] = m;
    }
    BLOCK_SYNC();
    for (int32_t e = thread; e < lists.experts; e += (int32_t)blockDim.x) lists.count[e] = (int32_t)counts[e];
    if (thread < CUDA_WARP) {
        int32_t active = 0;
        for (int32_t first = 0; first < lists.experts; first += CUDA_WARP) {
            bool has = first + lane < lists.experts && counts[first + lane] > 0;
            uint32_t have = lane_ballot(has);
            if (has)
                a.active[active + count_bits(have & ((1u << lane) - 1))] =
                    (int32_t)(first + lane + counts[first + lane] * MOE_ROUTE_COUNT);
            active += count_bits(have);
        }
        if (lane == 0) a.counts[MOE_ACTIVE] = (uint32_t)active;
    }
}

/* As many groups of 16 inputs of a row as the block has threads, as the experts take them, in the order of moe_place. The row's
 * largest value is found once for each such piece: all that comes from memory is then asked for at once. */
DEVICE void moe_inputs(const moe_args &a, int32_t row, int32_t piece, uint32_t *part)
{
    enum { ASKED = 8 };
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int32_t threads = (int32_t)blockDim.x, quads = a.in.hidden / 4, group = piece * threads + (int32_t)threadIdx.x;
    const float *h = a.in.h + (int64_t)row * a.in.hidden;
    bool there = group < a.in.hidden / 16;
    quad own[4];
    UNROLL for (int i = 0; i < 4; i++) own[i] = load_fresh((const quad *)(h + (there ? group : 0) * 16 + 4 * i));
    float factor = 1;
    if (a.in.quantise) {
        uint32_t most = 0;
        for (int32_t first = (int32_t)threadIdx.x; first < quads; first += ASKED * threads) {
            quad q[ASKED];
            UNROLL for (int i = 0; i < ASKED; i++) {
                int32_t at = first + i * threads;
                q[i] = load_fresh((const quad *)(h + 4 * (at < quads ? at : first)));
            }
            UNROLL for (int i = 0; i < ASKED; i++)
                UNROLL for (int j = 0; j < 4; j++) most = experts_larger(most, experts_magnitude(bits_float(q[i].w[j])));
        }
        for (int mask = 1; mask < CUDA_WARP; mask *= 2) most = experts_larger(most, lane_xor(most, mask));
        if (lane == 0) part[warp] = most;
        BLOCK_SYNC();
        most = lane < threads / CUDA_WARP ? part[lane] : 0;
        for (int mask = 1; mask < CUDA_WARP; mask *= 2) most = experts_larger(most, lane_xor(most, mask));
        float r = bits_float(most);
        if (r < 1e-12f) r = 1e-12f;
        factor = 2688.0f / r;
        if (group == 0) a.in.factor[row] = round_bf16(r / 2688.0f);
    }
    if (!there) return;
    uint16_t *to = a.in.out + (int64_t)row * a.in.hidden + moe_place(group * 16);
    float x[16];
    quad both[2];
    UNROLL for (int i = 0; i < 16; i++) x[i] = bits_float(own[i / 4].w[i % 4]);
    experts_in_group(a.in, x, factor, (uint16_t *)both);
    *(quad *)to = both[0];
    *(quad *)(to + MOE_UPPER) = both[1];
}

/* Was the block the last of `all` that count at `at`? All threads; what the others wrote can be read then. */
DEVICE bool moe_block_last(uint32_t *at, uint32_t all, uint32_t *said)
{
    BLOCK_SYNC();
    if (threadIdx.x == 0) *said = arrive(at, 1) + 1 == all;
    BLOCK_SYNC();
    return *said;
}

template <int EACH, int TEAMS> DEVICE void moe_route(const moe_args &a)
{
    SHARED(uint32_t, said, 3);
    float *parts = DYNAMIC(float);
    uint32_t *counts = (uint32_t *)(parts + MOE_ROUTE_PARTS / 4);
    int32_t block = (int32_t)blockIdx.x, blocks = a.sizes.routes;
    bool lists = block == 0;
    for (int32_t e = (int32_t)threadIdx.x; e < a.plan.lists.experts; e += (int32_t)blockDim.x) counts[e] = 0;
    if (a.routing && block < blocks) {
        bool squashed = a.choose.experts <= 4 * CUDA_WARP && a.choose.per_token <= CUDA_WARP;
        int32_t eights = (a.count + MOE_ROUTED - 1) / MOE_ROUTED, of_eight = blocks / eights, eight = block / of_eight;
        moe_row_ahead ahead = {{0, 0, 0, 0}, false, -1};
        moe_scores<EACH, TEAMS>(a, parts, block, squashed, &ahead);
        lists = moe_block_last(a.counts + MOE_ROUTER + eight, (uint32_t)of_eight, said);
        if (lists) {
            moe_choices(a, eight * MOE_ROUTED, squashed, ahead);
            if (eights > 1) lists = moe_block_last(a.counts + MOE_CHOSEN, (uint32_t)eights, said + 1);
        }
    } else {
        moe_begin(a);
        if (a.behind_shared && threadIdx.x == 0) arrived();
    }
    if (lists && block < blocks) moe_lists(a, counts);
    /* Rows and their pieces are drawn, by those who had no lists to make where there are others. */
    int32_t pieces = (a.in.hidden / 16 + (int32_t)blockDim.x - 1) / (int32_t)blockDim.x;
    while (!lists || gridDim.x == 1) {
        BLOCK_SYNC();
        if (threadIdx.x == 0) said[2] = draw(a.counts + MOE_READY, 1);
        BLOCK_SYNC();
        int32_t number = (int32_t)said[2];
        if (number >= a.count * pieces) break;
        moe_inputs(a, number / pieces, number % pieces, (uint32_t *)parts);
    }
    if (a.behind_shared) follow_wait(); /* what comes behind this kernel relies on those before it too */
}

/* The bound is not of threads: 96 registers. */
KERNEL_AHEAD_OF(moe_route_few, moe_args, 320, 2) { moe_route<1, 1>(a); }
KERNEL_AHEAD_OF(moe_route_many, moe_args, MOE_ROUTE_TEAMS * MOE_ROUTE_TEAM, 1)
{
    moe_route<MOE_ROUTE_MANY, MOE_ROUTE_TEAMS>(a);
}
