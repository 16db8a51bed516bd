/*
 * What moe_hopper.cu begins with, in a launch before it: the router, the choice of experts, the lists of who goes where, and
 * the experts' inputs. The sums and the bits are those of moe.cuh and of route.cu.
 *
 *     router  a block has eight rows and one expert, or of more rows eight experts: one or two teams of eight warps, a warp
 *             a slice of K of EACH experts; the slices meet in shared memory. The weights of its first steps are on their
 *             way before the kernel before has ended
 *     choice  whoever of these blocks is the last one: a warp a row, scores from the second-level cache; then the lists,
 *             whose counts are in shared memory until they are whole
 *     inputs  a block a row, when it has its scores: the row's largest value, then groups of 16, a thread each
 *
 * Why not in the launch of the experts: there every warp drew what it did from one number, sums of slices went through
 * memory, and from the router's last sum to the lists were four more rounds of counting and waiting by which blocks meet,
 * each a fence, an atomic and a read behind it: on an H200 the lists were there 34 us after the launch with one row, 45 with
 * eight and 85 with 64. Here are two such rounds, the arrival of the blocks and the end of the kernel. Where there is a
 * shared expert its kernel follows, whose blocks find room beside these of up to eight rows (256 threads of at most 96
 * registers), so that its first weights come meanwhile.
 *
 * Bytes: the router's weights once for every eight rows, rows once for every block: 3.1 and 1.6 MB for one row of M3.1, 25
 * and 12 MB for 64 rows, nearly all from the second-level cache. Instructions of a warp of many rows: 256 of products and sums and
 * some 40 others for every four inputs of a lane, six times.
 * Bound: latency, with 64 rows instructions (some 5 us).
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

/* Scores of the block's experts and rows, EACH experts a team. Calls follow(). */
template <int EACH, int TEAMS> DEVICE void moe_scores(const moe_args &a, float *parts, int32_t block, bool squashed)
{
    enum { STEP = 4 * CUDA_WARP, DEPTH = EACH == 1 ? 6 : 2, EXPERTS = TEAMS * EACH };
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, slice = warp % PROJECT_SLICES;
    int32_t hidden = a.in.hidden, experts = a.plan.lists.experts, groups = (experts + EXPERTS - 1) / EXPERTS;
    int32_t first_row = block / groups * MOE_ROUTED, rows = a.count - first_row, begin, end;
    int32_t first_expert = block % groups * EXPERTS, own = first_expert + warp / PROJECT_SLICES * EACH;
    const uint16_t *x = a.normed + (int64_t)first_row * hidden;
    slice_of(hidden, slice, &begin, &end);
    float sum[EACH * MOE_ROUTED];
    UNROLL for (int i = 0; i < EACH * MOE_ROUTED; i++) sum[i] = 0;
    for (int32_t first = begin; first < end; first += DEPTH * STEP) {
        quad value[DEPTH][EACH];
        UNROLL for (int d = 0; d < DEPTH; d++)
            UNROLL for (int e = 0; e < EACH; e++) {
                int32_t k = first + d * STEP + 4 * lane, expert = own + e < experts ? own + e : experts - 1;
                value[d][e] = k < end ? load_once(a.router + (int64_t)expert * hidden + k) : quad{{0, 0, 0, 0}};
            }
        if (first == begin) follow();
        UNROLL for (int d = 0; d < DEPTH; d++) {
            int32_t k = first + d * STEP + 4 * lane;
            UNROLL for (int r = 0; r < MOE_ROUTED; r++)
                if (k < end && r < rows) {
                    uint64_t in = *(const uint64_t *)(x + (int64_t)r * hidden + k);
                    UNROLL for (int e = 0; e < EACH; e++)
                        UNROLL for (int i = 0; i < 4; i++)
                            sum[e * MOE_ROUTED + r] +=
                                bits_float(value[d][e].w[i]) * float_of_bf16((uint32_t)(in >> 16 * i) & 0xFFFF);
                }
        }
    }
    if (begin >= end) follow();
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

/* Routes of all rows, from their scores. */
DEVICE void moe_choices(const moe_args &a, bool squashed)
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    for (int32_t row = (int32_t)threadIdx.x / CUDA_WARP; row < a.count; row += (int32_t)blockDim.x / CUDA_WARP) {
        const float *scores = a.choose.scores + (int64_t)row * a.choose.experts;
        if (squashed) {
            float s[4];
            UNROLL for (int j = 0; j < 4; j++) {
                int32_t e = j * CUDA_WARP + lane;
                s[j] = e < a.choose.experts ? load_fresh(scores + e) : 0;
            }
            moe_route_row(a.choose, s, row, lane);
        } else {
            route_row(a.choose, row, lane);
        }
    }
}

/* The lists of all experts; `counts` is in shared memory. */
DEVICE void moe_lists(const moe_args &a, uint32_t *counts)
{
    const experts_plan_args &p = a.plan;
    const experts_lists &lists = p.lists;
    int32_t thread = (int32_t)threadIdx.x, lane = thread % CUDA_WARP;
    for (int32_t e = thread; e < lists.experts; e += (int32_t)blockDim.x) counts[e] = 0;
    BLOCK_SYNC(); /* and all routes are there */
    for (int32_t m = thread; m < p.count * lists.per_token; m += (int32_t)blockDim.x) {
        int32_t e = p.routes[m];
        if (p.sequence[m / lists.per_token] < 0) continue;
        if (m % lists.per_token > 0 && p.routes[m - 1] == e) continue; /* the first counts */
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

/* A row as the experts take it, in the order of moe_place. */
DEVICE void moe_inputs(const moe_args &a, int32_t row, uint32_t *part)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    const float *h = a.in.h + (int64_t)row * a.in.hidden;
    uint16_t *out = a.in.out + (int64_t)row * a.in.hidden;
    float factor = 1;
    if (a.in.quantise) {
        uint32_t most = 0;
        for (int32_t i = (int32_t)threadIdx.x; i < a.in.hidden / 4; i += (int32_t)blockDim.x) {
            quad q = *(const quad *)(h + 4 * i);
            UNROLL for (int j = 0; j < 4; j++) most = experts_larger(most, experts_magnitude(bits_float(q.w[j])));
        }
        for (int mask = 1; mask < CUDA_WARP; mask *= 2) most = experts_larger(most, lane_xor(most, mask));
        BLOCK_SYNC(); /* all are done with what is there */
        if (lane == 0) part[warp] = most;
        BLOCK_SYNC();
        most = lane < (int)blockDim.x / CUDA_WARP ? part[lane] : 0;
        for (int mask = 1; mask < CUDA_WARP; mask *= 2) most = experts_larger(most, lane_xor(most, mask));
        float r = bits_float(most);
        if (r < 1e-12f) r = 1e-12f;
        factor = 2688.0f / r;
        if (threadIdx.x == 0) a.in.factor[row] = round_bf16(r / 2688.0f);
    }
    for (int32_t group = (int32_t)threadIdx.x; group < a.in.hidden / 16; group += (int32_t)blockDim.x) {
        uint16_t *to = out + moe_place(group * 16);
        quad both[2];
        experts_in_group(a.in, h + group * 16, factor, (uint16_t *)both);
        *(quad *)to = both[0];
        *(quad *)(to + MOE_UPPER) = both[1];
    }
}

template <int EACH, int TEAMS> DEVICE void moe_route(const moe_args &a)
{
    SHARED(uint32_t, last, 1);
    float *parts = DYNAMIC(float);
    uint32_t *counts = (uint32_t *)(parts + MOE_ROUTE_PARTS / 4);
    int32_t block = (int32_t)blockIdx.x, blocks = a.sizes.routes;
    bool lists = block == 0;
    if (a.routing && block < blocks) {
        bool squashed = a.choose.experts <= 4 * CUDA_WARP && a.choose.per_token <= CUDA_WARP;
        int32_t line = (int32_t)threadIdx.x * 32;
        if (line < a.choose.experts) prefetch(a.choose.bias + line);
        moe_scores<EACH, TEAMS>(a, parts, block, squashed);
        BLOCK_SYNC();
        if (threadIdx.x == 0) last[0] = arrive(a.counts + MOE_ROUTER, 1) + 1 == (uint32_t)blocks;
        BLOCK_SYNC();
        lists = last[0];
        if (lists) moe_choices(a, squashed);
    } else {
        follow();
    }
    if (lists && block < blocks) moe_lists(a, counts);
    for (int32_t row = block; row < a.count; row += (int32_t)gridDim.x) moe_inputs(a, row, (uint32_t *)parts);
}

/* The bound is not of threads: 96 registers. */
KERNEL_AHEAD_OF(moe_route_few, moe_args, 320, 2) { moe_route<1, 1>(a); }
KERNEL_AHEAD_OF(moe_route_many, moe_args, MOE_ROUTE_TEAMS * MOE_ROUTE_TEAM, 1)
{
    moe_route<MOE_ROUTE_MANY, MOE_ROUTE_TEAMS>(a);
}
