/*
 * moe.cu on Hopper: the same items with the same bits, but the routed experts' weights and rows come through one ring of a
 * block by bulk copies, and a block takes twelve tiles at once.
 *
 *     block   twelve warps that multiply, a tile each, and two that load, weights and rows. A multiprocessor has two; with one or
 *             two rows one, whose ring is twice as deep: there are no more than twelve tiles for each multiprocessor then
 *     ring    three stages of 256 inputs: twelve chunks of codes and scales as they lie, 27 KB, and the rows' chunk once for all
 *             of them. 110 KB are on their way for a multiprocessor; the memory's latency needs 33
 *     before  items 1 to 4 of moe.cu, by the twelve warps, a number each. The ring fills meanwhile
 *     up      an item is six tiles of gate and the same six of up: two warps a tile, of which gate's adds what up's hands over
 *     between items 6, while the last z of others are made
 *     down    an item is twelve tiles
 *
 * The twelve warps take their stages at their own pace, as far as the ring reaches, and go from item to item without meeting:
 * who loads draws the items and tells them by a queue. A stage is free as soon as all have read it, before their sums are
 * finished (`late`: the next item's weights are asked for only when this one is done).
 *
 * Why not a ring for each warp, as moe.cu has: rows then come from the caches for each warp. Those loads, 16 bytes of lines that
 * arrive() had just dropped from the first level, were 55 % of the second level's requests at a third of the memory's rate, and
 * their latency stood between two chunks: 1.8 TB/s at any number of rows. So here nothing but the last of those who count reads
 * behind its count (bring).
 * Rows lie in memory as four lanes take them (moe_place), weights with rows turned by their block (EXPERTS_PLACE), so that all
 * reads of shared memory are free of conflicts: 52 cycles of it a chunk and tile, 624 a stage beside 220 that the copies
 * write, while the memory takes 1,480 to bring it. Instructions: 320 a chunk and tile, 960 a stage and scheduler; sums are
 * a function of their own (moe_sum), or what else a warp knows would take their registers.
 *
 * On an H200, 2026-12-01, layer of M3.1, W4A4 (bench kernels --only moe), us and share of 4,475 GB/s: two blocks 4 rows 245,
 * 53 %; 8 rows 391, 59 %; 16 rows 648, 62 %; 64 rows 1,354, 61 %; one block, as it was before moe_sum and moe_route_row, 1 row 117,
 * 36 %; 2 rows 157, 45 % (two blocks: 138 and 180). moe.cu: 123, 187, 317, 545, 991, 2,022. By its own clock the experts' up and
 * down go at 3.1 to 3.2 TB/s, 70 %. What is lost beside that, of two blocks: the lists are there after 34 us at one row (router,
 * choice and lists, each some ways to the memory and back; moe_route_row came after it), 45 at 8 and 85 at 64; the slowest warp is
 * through with the items before at 46, 90 and 187 us, and its block waits for it; between up and down the shared expert takes
 * 30 us; the last items take 65 of 1,350.
 * Bound: memory.
 */
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/moe.cuh"

struct moe_stream_item {
    int32_t kind, n, group; /* active expert, of its groups of tiles */
    int32_t expert, count;  /* rows */
    int32_t active;
};

struct moe_ring {
    unsigned char *stages;
    quad *handed;            /* [pair][lane] */
    arrivals *full, *empty;  /* [stage] */
    arrivals *told, *read;   /* [place in the queue] */
    arrivals *given, *taken; /* [pair] */
    moe_stream_item *queue;
};

template <int STAGES> DEVICE moe_ring moe_ring_of(unsigned char *shared)
{
    moe_ring r;
    r.stages = shared;
    shared += STAGES * MOE_HOPPER_STAGE;
    r.handed = (quad *)shared;
    shared += MOE_HOPPER_HANDED;
    r.full = (arrivals *)shared;
    r.empty = r.full + STAGES;
    r.told = r.empty + STAGES;
    r.read = r.told + MOE_HOPPER_QUEUE;
    r.given = r.read + MOE_HOPPER_QUEUE;
    r.taken = r.given + MOE_HOPPER_WARPS / 2;
    r.queue = (moe_stream_item *)(r.taken + MOE_HOPPER_WARPS / 2);
    return r;
}

/* Where somebody is in a ring of N. */
template <int N> struct moe_at {
    int32_t stage, parity;
};
template <int N> DEVICE void moe_step(moe_at<N> &at)
{
    if (++at.stage == N) at.stage = 0, at.parity ^= 1;
}
typedef moe_at<MOE_HOPPER_QUEUE> moe_queue_at;

DEVICE int32_t moe_turns(int32_t count) { return (count + MOE_HOPPER_ROWS - 1) / MOE_HOPPER_ROWS; }

/* ---- Who loads --------------------------------------------------------------------------------------------------- */

/* The item of a number. */
DEVICE moe_stream_item moe_stream_item_of(const moe_args &a, int32_t active, int32_t number)
{
    const moe_sizes &z = a.sizes;
    int32_t up_groups = (z.tiles + MOE_HOPPER_WARPS / 2 - 1) / (MOE_HOPPER_WARPS / 2), ups = active * up_groups;
    int32_t down_groups = (z.out_tiles + MOE_HOPPER_WARPS - 1) / MOE_HOPPER_WARPS, all = ups + active * down_groups;
    moe_stream_item item = {MOE_NONE, 0, 0, 0, 0, active};
    if (number < ups)
        item.kind = MOE_UP, item.n = number / up_groups, item.group = number % up_groups;
    else if (number < all)
        item.kind = MOE_DOWN, item.n = (number - ups) / down_groups, item.group = (number - ups) % down_groups;
    if (item.kind != MOE_NONE) item.expert = a.active[item.n], item.count = a.plan.lists.count[item.expert];
    return item;
}

/* The next item, told to all others of the block. */
DEVICE moe_stream_item moe_tell(const moe_args &a, const moe_ring &r, int32_t active, moe_queue_at &queue, uint32_t drawn,
                                int lane)
{
    moe_stream_item item = moe_stream_item_of(a, active, (int32_t)lane_get(drawn, 0));
    arrivals_wait(r.read + queue.stage, queue.parity ^ 1);
    if (lane == 0) {
        r.queue[queue.stage] = item;
        arrivals_come(r.told + queue.stage);
    }
    moe_step(queue);
    return item;
}

/* Draws the items, tells them and loads their weights: lane 2w the codes of warp w, lane 2w + 1 the scales. The next item is
 * looked at while the ring is full. */
template <int STAGES> DEVICE void moe_load_weights(const moe_args &a, const moe_ring &r, int lane)
{
    moe_wait(a.counts + MOE_PLANNED, 1, "the lists of experts", lane);
    int32_t active = (int32_t)a.counts[MOE_ACTIVE], warp = lane / 2, scales = lane % 2;
    int32_t to = scales ? MOE_HOPPER_WARPS * MOE_HOPPER_CODES + warp * MOE_HOPPER_SCALES : warp * MOE_HOPPER_CODES;
    int32_t bytes = scales ? MOE_HOPPER_SCALES : MOE_HOPPER_CODES;
    moe_at<STAGES> at = {0, 0};
    moe_queue_at queue = {0, 0};
    bool second = STAGES == MOE_HOPPER_STAGES && blockIdx.x >= gridDim.x / 2;
    if (second) pause_some(); /* of few items each multiprocessor shall have one */
    uint32_t drawn = lane == 0 ? draw(a.counts + MOE_STREAM_TICKET, 1) : 0;
    moe_stream_item item = moe_tell(a, r, active, queue, drawn, lane), next;
    while (item.kind != MOE_NONE) {
        bool down = item.kind == MOE_DOWN, odd = warp % 2 != 0, looked = false;
        int32_t tile = down ? item.group * MOE_HOPPER_WARPS + warp : item.group * (MOE_HOPPER_WARPS / 2) + warp / 2;
        bool there = warp < MOE_HOPPER_WARPS && tile < (down ? a.sizes.out_tiles : a.sizes.tiles);
        const experts_weight &weight = down ? a.down.down : odd ? a.glu.up : a.glu.gate;
        const uint8_t *from = scales ? experts_scales(weight, item.expert, tile * EXPERTS_TILE)
                                     : experts_data(weight, item.expert, tile * EXPERTS_TILE);
        uint32_t total = (uint32_t)count_bits(lane_ballot(there)) / 2 * (MOE_HOPPER_CODES + MOE_HOPPER_SCALES);
        int32_t chunks = weight.first.cols / EXPERTS_CHUNK;
        if (!a.late) drawn = lane == 0 ? draw(a.counts + MOE_STREAM_TICKET, 1) : 0;
        for (int32_t turn = 0; turn < moe_turns(item.count); turn++)
            for (int32_t k = 0; k < chunks; k++, moe_step(at)) {
                arrivals_wait(r.empty + at.stage, at.parity ^ 1);
                if (lane == 0) arrivals_expect(r.full + at.stage, total);
                WARP_SYNC();
                if (there)
                    copy_bulk(r.stages + at.stage * MOE_HOPPER_STAGE + to, from + (int64_t)k * bytes, (uint32_t)bytes,
                              r.full + at.stage);
                if (!looked && !a.late && (k == STAGES || k == chunks - 1)) {
                    next = moe_tell(a, r, active, queue, drawn, lane);
                    looked = true;
                }
            }
        if (a.late) {
            int32_t own = (queue.stage + MOE_HOPPER_QUEUE - 1) % MOE_HOPPER_QUEUE; /* this item's place */
            arrivals_wait(r.read + own, queue.stage ? queue.parity : queue.parity ^ 1);
            drawn = lane == 0 ? draw(a.counts + MOE_STREAM_TICKET, 1) : 0;
            next = moe_tell(a, r, active, queue, drawn, lane);
        }
        item = next;
    }
}

/* Loads the items' rows, a lane a row. */
template <int STAGES> DEVICE void moe_load_rows(const moe_args &a, const moe_ring &r, int lane)
{
    const experts_lists &lists = a.plan.lists;
    moe_at<STAGES> at = {0, 0};
    moe_queue_at queue = {0, 0};
    bool inputs = false;
    int32_t known = -1; /* active expert whose z is there */
    for (;;) {
        arrivals_wait(r.told + queue.stage, queue.parity);
        moe_stream_item item = r.queue[queue.stage];
        WARP_SYNC();
        if (lane == 0) arrivals_come(r.read + queue.stage);
        moe_step(queue);
        if (item.kind == MOE_NONE) return;
        bool down = item.kind == MOE_DOWN;
        if (!inputs) {
            moe_wait(a.counts + MOE_READY, (uint32_t)(a.sizes.inputs + 1), "the experts' inputs", lane);
            inputs = true;
        }
        if (down && known != item.n) {
            moe_wait(a.up_done + item.n, (uint32_t)(a.sizes.tiles * moe_turns(item.count)), "gate and up of an expert", lane);
            known = item.n;
        }
        others_wrote();
        int32_t cols = down ? a.down.down.first.cols : a.in.hidden, chunks = cols / EXPERTS_CHUNK;
        const int32_t *members = lists.members + (int64_t)item.expert * lists.capacity;
        for (int32_t first = 0; first < item.count; first += MOE_HOPPER_ROWS) {
            int32_t rows = item.count - first < MOE_HOPPER_ROWS ? item.count - first : MOE_HOPPER_ROWS;
            int32_t member = lane < rows ? members[first + lane] : 0;
            const uint16_t *row = down ? a.glu.z + (int64_t)member * cols : a.in.out + (int64_t)(member / lists.per_token) * cols;
            for (int32_t k = 0; k < chunks; k++, moe_step(at)) {
                unsigned char *to = r.stages + at.stage * MOE_HOPPER_STAGE +
                                    MOE_HOPPER_WARPS * (MOE_HOPPER_CODES + MOE_HOPPER_SCALES) + lane * MOE_HOPPER_ROW;
                arrivals_wait(r.empty + at.stage, at.parity ^ 1);
                if (lane == 0) arrivals_expect(r.full + at.stage, (uint32_t)rows * (2 * EXPERTS_CHUNK));
                WARP_SYNC();
                if (lane < rows) copy_bulk(to, row + k * EXPERTS_CHUNK, 2 * EXPERTS_CHUNK, r.full + at.stage);
            }
        }
    }
}

/* ---- Who multiplies ---------------------------------------------------------------------------------------------- */

/* Where a lane's numbers lie in a stage: quads of codes, pairs of scales, rows. */
struct moe_lane {
    uint32_t codes, scales, row;
};

DEVICE moe_lane moe_lane_of(int warp, int32_t rows, int lane)
{
    int g = lane / 4, t = lane % 4, row = g < rows ? g : rows - 1; /* behind the last row comes it again */
    return {(uint32_t)(warp * MOE_HOPPER_CODES + (t * EXPERTS_TILE + EXPERTS_PLACE(g, t)) * 16),
            (uint32_t)(MOE_HOPPER_WARPS * MOE_HOPPER_CODES + warp * MOE_HOPPER_SCALES + t * 32 + g * 2),
            (uint32_t)(MOE_HOPPER_WARPS * (MOE_HOPPER_CODES + MOE_HOPPER_SCALES) + row * MOE_HOPPER_ROW + t * 16)};
}

/* d += a tile's half stage times eight rows: experts_multiply_half. */
DEVICE void moe_multiply_half(const unsigned char *stage, const moe_lane &at, int half, float d[4])
{
    quad codes[2], x[4];
    uint32_t unit[2][2]; /* of the lane's two groups */
    UNROLL for (int upper = 0; upper < 2; upper++)
        codes[upper] = *(const quad *)(stage + at.codes + half * (4 * EXPERTS_TILE * 16) + upper * 128);
    UNROLL for (int i = 0; i < 4; i++) x[i] = *(const quad *)(stage + at.row + half * 256 + i * 64);
    UNROLL for (int upper = 0; upper < 2; upper++)
        experts_units(*(const uint16_t *)(stage + at.scales + half * 128 + upper * 16), unit[upper]);
    UNROLL for (int i = 0; i < 4; i++) { /* eight inputs */
        uint32_t p[2][4];
        UNROLL for (int upper = 0; upper < 2; upper++) {
            experts_pairs(codes[upper].w[i], p[upper]);
            UNROLL for (int j = 0; j < 4; j++) p[upper][j] = multiply_pairs(p[upper][j], unit[upper][i / 2]);
        }
        UNROLL for (int j = 0; j < 4; j += 2) {
            uint32_t weights[4] = {p[0][j], p[1][j], p[0][j + 1], p[1][j + 1]};
            mma_bf16(d, weights, &x[i].w[j]);
        }
    }
}

/* Sums of a tile and up to eight rows over the next `chunks` stages. */
template <int STAGES> DEVICE_APART quad moe_sum(moe_lane at, int32_t chunks, int32_t stage, int32_t parity, int lane)
{
    unsigned char *shared = DYNAMIC(unsigned char);
    arrivals *full = (arrivals *)(shared + STAGES * MOE_HOPPER_STAGE + MOE_HOPPER_HANDED);
    float d[4] = {0, 0, 0, 0};
    for (; chunks; chunks--) {
        arrivals_wait(full + stage, parity);
        UNROLL for (int half = 0; half < 2; half++) moe_multiply_half(shared + stage * MOE_HOPPER_STAGE, at, half, d);
        WARP_SYNC();
        if (lane == 0) arrivals_come(full + STAGES + stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    quad q;
    UNROLL for (int i = 0; i < 4; i++) q.w[i] = float_bits(d[i]);
    return q;
}

template <int STAGES> struct moe_multiplier : moe_warp {
    int warp;
    moe_at<STAGES> at;
    int32_t given; /* parity of the next sums that up hands over */
};

/* The warp's tile of an item, all rows of its expert. */
template <int MOST, int STAGES>
DEVICE void moe_stream_tile(const moe_args &a, const moe_ring &r, moe_multiplier<STAGES> &w, const moe_stream_item &item)
{
    bool down = item.kind == MOE_DOWN;
    const experts_lists &lists = a.plan.lists;
    int g = w.lane / 4, t = w.lane % 4, pair = w.warp / 2;
    int32_t tile = down ? item.group * MOE_HOPPER_WARPS + w.warp : item.group * (MOE_HOPPER_WARPS / 2) + pair;
    bool there = tile < (down ? a.sizes.out_tiles : a.sizes.tiles);
    int32_t chunks = (down ? a.down.down.first.cols : a.in.hidden) / EXPERTS_CHUNK;
    quad *handed = r.handed + pair * CUDA_WARP + w.lane;
    for (int32_t first = 0; first < item.count; first += MOE_HOPPER_ROWS) {
        int32_t left = item.count - first;
        float d[4], up[4];
        quad q;
        if (there) q = moe_sum<STAGES>(moe_lane_of(w.warp, left, w.lane), chunks, w.at.stage, w.at.parity, w.lane);
        for (int32_t k = 0; k < chunks; k++, moe_step(w.at))
            if (!there) {
                arrivals_wait(r.full + w.at.stage, w.at.parity);
                WARP_SYNC();
                if (w.lane == 0) arrivals_come(r.empty + w.at.stage);
            }
        if (!there) continue;
        UNROLL for (int i = 0; i < 4; i++) d[i] = bits_float(q.w[i]);
        if (down) {
            float factor = a.down.down.factors[item.expert];
            const int32_t *members = lists.members + (int64_t)item.expert * lists.capacity;
            UNROLL for (int i = 0; i < 2; i++) {
                int32_t m = 2 * t + i;
                if (m >= left) continue;
                float *y = a.down.y + (int64_t)members[first + m] * a.down.down.first.rows + tile * EXPERTS_TILE + g;
                y[0] = d[i] * NVFP4_SHIFT * factor * a.down.factor;
                y[8] = d[2 + i] * NVFP4_SHIFT * factor * a.down.factor;
            }
        } else if (w.warp % 2) {
            arrivals_wait(r.taken + pair, w.given ^ 1);
            *handed = q;
            WARP_SYNC();
            if (w.lane == 0) arrivals_come(r.given + pair);
            w.given ^= 1;
        } else {
            arrivals_wait(r.given + pair, w.given);
            q = *handed;
            UNROLL for (int i = 0; i < 4; i++) up[i] = bits_float(q.w[i]);
            WARP_SYNC();
            if (w.lane == 0) arrivals_come(r.taken + pair);
            w.given ^= 1;
            experts_finish_glu(a.glu, item.expert, first, moe_place(tile * EXPERTS_TILE), MOE_UPPER, d, up, w.lane);
            moe_bring(a.up_done + item.n, 1, w.lane);
        }
    }
    if (down && there) moe_count_out<MOST>(a, w, tile);
}

template <int MOST, int STAGES> DEVICE void moe_multiply(const moe_args &a, const moe_ring &r, moe_multiplier<STAGES> &w)
{
    enum { DEPTH = STAGES == MOE_HOPPER_STAGES ? 2 : 4 };
    moe_queue_at queue = {0, 0};
    for (;;) {
        moe_item own = moe_next<MOST>(a, w, moe_draw(a, w), true);
        while (own.kind != MOE_NONE)
            own = moe_is_slice(own) ? moe_slices<MOST, true, DEPTH>(a, w, own) : moe_prepare<MOST, true>(a, w, own);
        for (;;) {
            arrivals_wait(r.told + queue.stage, queue.parity);
            moe_stream_item item = r.queue[queue.stage];
            w.active = item.active;
            if (w.draws == MOE_BEFORE && item.kind != MOE_UP) break; /* it is looked at again behind the shared expert's down */
            if (item.kind == MOE_NONE) return;
            moe_stream_tile<MOST, STAGES>(a, r, w, item);
            WARP_SYNC();
            if (w.lane == 0) arrivals_come(r.read + queue.stage);
            moe_step(queue);
        }
        w.draws = MOE_BETWEEN;
    }
}

template <int MOST, int STAGES> DEVICE void moe_hopper(const moe_args &a)
{
    moe_ahead(a);
    moe_ring r = moe_ring_of<STAGES>(DYNAMIC(unsigned char));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) arrivals_init(r.full + i, 2), arrivals_init(r.empty + i, MOE_HOPPER_WARPS);
        for (int i = 0; i < MOE_HOPPER_QUEUE; i++) arrivals_init(r.told + i, 1), arrivals_init(r.read + i, MOE_HOPPER_WARPS + 1);
        for (int i = 0; i < MOE_HOPPER_WARPS / 2; i++) arrivals_init(r.given + i, 1), arrivals_init(r.taken + i, 1);
        arrivals_ready();
    }
    BLOCK_SYNC();
    follow();
    int lane = threadIdx.x % CUDA_WARP, warp = known_here(threadIdx.x / CUDA_WARP);
    if (warp == MOE_HOPPER_WARPS) {
        moe_load_weights<STAGES>(a, r, lane);
    } else if (warp == MOE_HOPPER_WARPS + 1) {
        moe_load_rows<STAGES>(a, r, lane);
    } else {
        moe_multiplier<STAGES> w;
        w.lane = lane, w.draws = MOE_BEFORE, w.active = -1, w.shared_up = false;
        w.warp = warp, w.at = {0, 0}, w.given = 0;
        moe_multiply<MOST, STAGES>(a, r, w);
    }
    WARP_SYNC();
    moe_end(a, lane);
}

KERNEL_TOGETHER(moe_hopper_one, moe_args, MOE_HOPPER_BLOCK, 1) { moe_hopper<MOE_FEW, MOE_HOPPER_STAGES_ONE>(a); }
KERNEL_TOGETHER(moe_hopper_few, moe_args, MOE_HOPPER_BLOCK, MOE_HOPPER_BLOCKS) { moe_hopper<MOE_FEW, MOE_HOPPER_STAGES>(a); }
KERNEL_TOGETHER(moe_hopper_many, moe_args, MOE_HOPPER_BLOCK, MOE_HOPPER_BLOCKS) { moe_hopper<MOE_ROWS, MOE_HOPPER_STAGES>(a); }
