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
 * The shared expert of more than MOE_FEW rows was computed before (`beside`), and 4 and 6 are not there.
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
#include "backend/cuda/kernels/moe_items.cuh"

/* ---- The routed experts: tiles ------------------------------------------------------------------------------------ */

/* Rows that a warp multiplies with a tile at once, in eights. An expert of more than 16 of 64 rows is rare, and its tile, which
 * comes again, is in the second-level cache: a third kind would cost all of them registers. */
template <int MOST> DEVICE int moe_eights(int32_t members)
{
    return MOST <= 8 || members <= 8 ? 1 : 2;
}

/* A warp that works on tiles. */
struct moe_tiler : moe_warp {
    int32_t up;       /* active expert whose z is known to be there, or -1 */
    quad *ring;
    uint32_t asked;   /* chunks asked for, also empty ones: chunk i goes to stage i % EXPERTS_STAGES */
};

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

DEVICE void moe_ask(moe_tiler &w, moe_chunks &c)
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
DEVICE void moe_tile(const moe_args &a, moe_tiler &w, const moe_item &item, int32_t expert, uint32_t base, moe_chunks &c,
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
                next.number = moe_draw(a, w);
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
        experts_finish_glu(a.glu, expert, first, out, 8, gate, up, lane);
    }
}

/* Items as long as they are tiles; the one behind them. */
template <int MOST> DEVICE moe_item moe_tiles(const moe_args &a, moe_tiler &w, moe_item item)
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
            moe_bring(a.up_done + item.n, 1, w.lane);
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

template <int MOST> DEVICE void moe(const moe_args &a)
{
    enum { WARPS = MOE_BLOCK / CUDA_WARP };
    moe_ahead(a);
    follow();
    quad *rings = DYNAMIC(quad);
    uint32_t *first = (uint32_t *)(rings + WARPS * EXPERTS_RING_BYTES / 16);
    int warp = threadIdx.x / CUDA_WARP;
    moe_tiler w;
    w.lane = (int32_t)threadIdx.x % CUDA_WARP, w.active = -1, w.shared_up = false;
    w.up = -1, w.ring = rings + warp * EXPERTS_RING_BYTES / 16, w.asked = 0;
    if (threadIdx.x == 0) *first = draw(a.counts + MOE_TICKET, WARPS);
    BLOCK_SYNC();
    moe_item item = moe_item_of<MOST>(a, w, (int32_t)*first + warp, true);
    while (item.kind != MOE_NONE) {
        if (moe_is_slice(item))
            item = moe_slices<MOST, 4>(a, w, item);
        else if (moe_is_tile(item))
            item = moe_tiles<MOST>(a, w, item);
        else
            item = moe_prepare<MOST>(a, w, item);
    }
    copy_wait<0>();
    moe_end(a, gridDim.x * (blockDim.x / CUDA_WARP), w.lane);
}

KERNEL_TOGETHER(moe_few, moe_args, MOE_BLOCK, MOE_BLOCKS) { moe<MOE_FEW>(a); }
KERNEL_TOGETHER(moe_many, moe_args, MOE_BLOCK, MOE_BLOCKS) { moe<MOE_ROWS>(a); }
