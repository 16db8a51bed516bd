/*
 * The routed experts of up to 64 rows on Hopper: moe.cu's items 5 and 7 with the same bits, when moe_route.cu has made the
 * lists and the inputs and the shared expert's outputs are there (`beside`).
 *
 *     block   twelve warps that multiply, a tile each, and one that loads rows. A multiprocessor has two; with one or two
 *             rows one, whose rings are twice as deep: there are no more than twelve tiles for each multiprocessor then
 *     weights a ring of three stages of 256 inputs for each warp, 2,304 bytes of codes and scales as they lie. The warp
 *             fills it by copies of its own lanes and goes on past the end of its tile with the next item's: two stages are
 *             always on their way, 110 KB of a multiprocessor (138 with one block); the memory's latency needs 33
 *     rows    a ring of six stages for the block, by bulk copies: the same 256 inputs of up to eight rows, read by all
 *             twelve warps. They go through it at their own pace, as far as it reaches, and from item to item without
 *             meeting. With one or two rows an item's lie there as a whole, and with them who they are: nobody waits for
 *             the slowest warp, nor goes to memory for what an item's end takes
 *     up      an item is six tiles of gate and the same six of up: two warps a tile, of which gate's adds what up's hands
 *             over
 *     down    an item is twelve tiles. The weights of its first chunks are on their way while the item before is multiplied,
 *             also where z is still waited for
 *     items   are drawn from one number, as in moe.cu, the next one when half of the rows of the one before have been asked
 *             for: so of few every multiprocessor has one before anybody has two
 *     shared  its down comes before this kernel, which needs its outputs for the last sums only: blocks begin where those of
 *             that one end, and wait for all of them there (follow_wait)
 *
 * What it was before, and why not: all weights of a block came through one ring by bulk copies of one warp, 24 of them a
 * stage of 27 KB. That went at 3.1 to 3.2 TB/s on an H200 with one row and with 64, with one block a multiprocessor and with
 * two: some 88 cycles a copy whatever else there was to do. nvcc makes of a copy by many lanes a loop over them of nine
 * dependent instructions, and a stage was there when the last of them was, for all twelve warps. project_few.cuh reads by
 * copies of lanes, in rings of its warps, 97 to 99 % of what the memory gives. A ring for each warp with rows from the
 * caches (moe.cu) is bound by the second level: 1.8 TB/s. The shared expert in this launch, by warps that drew slices of
 * tiles and met through memory, took 26, 28 and 154 us of 1, 8 and 64 rows, in launches of its own 22, 25 and 45.
 *
 * Rows lie in memory as four lanes take them (moe_place), weights with rows turned by their block (EXPERTS_PLACE), so that
 * all reads of shared memory are free of conflicts. Instructions of a chunk and tile are 354 as nvcc 13.0 compiles them, 295
 * of them codes and products; a multiprocessor has 528 slots while the memory brings the chunk.
 *
 * Bytes of M3.1's layer: 31.9 MB an expert: one row 127 MB, 28 us of 4,475 GB/s; 8 rows of 30 experts 956 MB, 213 us; 64
 * rows of 112 3,570 MB, 797 us.
 * Bound: memory, with more than two rows. With one, what three warps a scheduler do one after the other: 46,000 instructions
 * in 92,000 cycles before rows lay there as a whole. Two warps a tile, eight outputs each, with rows as the MMA's 16: 67 us and
 * not 50. Two chunks at a time, so that one is expanded while the other is multiplied: nothing.
 */
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/moe.cuh"

enum { MOE_NONE, MOE_UP, MOE_DOWN };

struct moe_stream_item {
    int32_t kind, n, group; /* active expert, of its groups of tiles */
    int32_t expert, count;  /* rows */
    int32_t active;
};

/* Who the rows of a line are, with ONE. */
struct moe_members {
    int32_t member[MOE_HOPPER_ONE];
    float factor[MOE_HOPPER_ONE];
};

/* The two kinds of blocks. ONE: one a multiprocessor, for no more than MOE_HOPPER_ONE rows; a line is an item's rows, all of
 * K. Else it is a chunk of eight rows. */
template <bool ONE_> struct moe_form {
    enum {
        ONE = ONE_,
        STAGES = ONE ? MOE_HOPPER_STAGES_ONE : MOE_HOPPER_STAGES,
        LINES = ONE ? MOE_HOPPER_LINES_ONE : MOE_HOPPER_LINES,
    };
};

/* Bytes of a row in shared memory, and of a line. */
template <typename form> DEVICE int32_t moe_row_bytes(const moe_args &a)
{
    int32_t width = a.down.down.first.cols, most = a.in.hidden > width ? a.in.hidden : width;
    return form::ONE ? MOE_HOPPER_ROW_ONE(most) : (int32_t)MOE_HOPPER_ROW;
}

template <typename form> DEVICE int32_t moe_line_bytes(const moe_args &a)
{
    return (form::ONE ? MOE_HOPPER_ONE : MOE_HOPPER_ROWS) * moe_row_bytes<form>(a);
}

struct moe_ring {
    unsigned char *stages;   /* [warp][stage] */
    unsigned char *lines;    /* [place] */
    quad *handed;            /* [pair][lane] */
    arrivals *full, *empty;  /* [place] of lines */
    arrivals *told, *read;   /* [place in the queue] */
    arrivals *given, *taken; /* [pair] */
    arrivals *begun;         /* with ONE: a quarter of an item has been multiplied */
    moe_stream_item *queue;
    moe_members *members; /* [place] of lines, with ONE */
};

template <typename form> DEVICE moe_ring moe_ring_of(const moe_args &a, unsigned char *shared)
{
    moe_ring r;
    r.stages = shared;
    shared += MOE_HOPPER_WARPS * form::STAGES * MOE_HOPPER_STAGE;
    r.lines = shared;
    shared += form::LINES * moe_line_bytes<form>(a);
    r.handed = (quad *)shared;
    shared += MOE_HOPPER_PAIRS * MOE_HOPPER_HANDED;
    r.full = (arrivals *)shared;
    r.empty = r.full + form::LINES;
    r.told = r.empty + form::LINES;
    r.read = r.told + MOE_HOPPER_QUEUE;
    r.given = r.read + MOE_HOPPER_QUEUE;
    r.taken = r.given + MOE_HOPPER_PAIRS;
    r.begun = r.taken + MOE_HOPPER_PAIRS;
    r.queue = (moe_stream_item *)(r.begun + 1);
    r.members = (moe_members *)(r.queue + MOE_HOPPER_QUEUE);
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

/* The item of a number; expert and count are those of active expert n. */
DEVICE moe_stream_item moe_stream_item_of(const moe_args &a, int32_t active, int32_t number)
{
    const moe_sizes &z = a.sizes;
    int32_t up_groups = (z.tiles + MOE_HOPPER_PAIRS - 1) / MOE_HOPPER_PAIRS, ups = active * up_groups;
    int32_t down_groups = (z.out_tiles + MOE_HOPPER_WARPS - 1) / MOE_HOPPER_WARPS, all = ups + active * down_groups;
    moe_stream_item item = {MOE_NONE, 0, 0, 0, 0, active};
    if (number < ups)
        item.kind = MOE_UP, item.n = number / up_groups, item.group = number % up_groups;
    else if (number < all)
        item.kind = MOE_DOWN, item.n = (number - ups) / down_groups, item.group = (number - ups) % down_groups;
    return item;
}

/* The item of a number that lane 0 knows, told to all others of the block. With at most 32 active experts lane n has what
 * `active` says of n. */
DEVICE moe_stream_item moe_tell(const moe_args &a, const moe_ring &r, int32_t active, uint32_t mine, moe_queue_at &queue,
                                uint32_t number, int lane)
{
    moe_stream_item item = moe_stream_item_of(a, active, (int32_t)lane_get(number, 0));
    uint32_t both = lane_get(mine, item.n % CUDA_WARP);
    if (active > CUDA_WARP && item.kind != MOE_NONE) both = (uint32_t)a.active[item.n];
    item.expert = (int32_t)(both % MOE_ROUTE_COUNT), item.count = (int32_t)(both / MOE_ROUTE_COUNT);
    arrivals_wait(r.read + queue.stage, queue.parity ^ 1);
    if (lane == 0) {
        r.queue[queue.stage] = item;
        arrivals_come(r.told + queue.stage);
    }
    moe_step(queue);
    return item;
}

/* What `active` says of the lane's expert; asked for before it is known whether there is one. */
DEVICE uint32_t moe_mine(const moe_args &a, int lane)
{
    return lane < a.sizes.experts ? (uint32_t)a.active[lane] : 0;
}

/* Draws the items, tells them and loads their rows, a lane a row. */
template <typename form> DEVICE void moe_load_rows(const moe_args &a, const moe_ring &r, int lane)
{
    const experts_lists &lists = a.plan.lists;
    uint32_t mine = moe_mine(a, lane), number = lane == 0 ? draw(a.counts + MOE_TICKET, 1) : 0;
    int32_t active = (int32_t)a.counts[MOE_ACTIVE], known = -1; /* active expert whose z is there */
    moe_at<form::LINES> at = {0, 0};
    moe_queue_at queue = {0, 0};
    moe_stream_item item = moe_tell(a, r, active, mine, queue, number, lane), next = item;
    for (; item.kind != MOE_NONE; item = next) {
        bool down = item.kind == MOE_DOWN;
        const int32_t *members = lists.members + (int64_t)item.expert * lists.capacity;
        int32_t member = lane < MOE_HOPPER_ROWS && lane < item.count ? members[lane] : 0; /* while z is waited for */
        if (down && known != item.n) {
            moe_wait(a.up_done + item.n, (uint32_t)(a.sizes.tiles * moe_turns(item.count)), "gate and up of an expert", lane);
            known = item.n;
        }
        others_wrote();
        int32_t cols = down ? a.down.down.first.cols : a.in.hidden, chunks = cols / EXPERTS_CHUNK;
        for (int32_t first = 0; first < item.count; first += MOE_HOPPER_ROWS) {
            int32_t left = item.count - first, rows = left < MOE_HOPPER_ROWS ? left : MOE_HOPPER_ROWS;
            if (first > 0) member = lane < rows ? members[first + lane] : 0;
            const uint16_t *row = down ? a.glu.z + (int64_t)member * cols : a.in.out + (int64_t)(member / lists.per_token) * cols;
            for (int32_t k = 0; k < chunks; k++, moe_step(at)) {
                if (left == rows && k == chunks / 2) {
                    number = lane == 0 ? draw(a.counts + MOE_TICKET, 1) : 0;
                    next = moe_tell(a, r, active, mine, queue, number, lane);
                }
                arrivals_wait(r.empty + at.stage, at.parity ^ 1);
                if (lane == 0) arrivals_expect(r.full + at.stage, (uint32_t)rows * (2 * EXPERTS_CHUNK));
                WARP_SYNC();
                if (lane < rows)
                    copy_bulk(r.lines + at.stage * MOE_HOPPER_LINE + lane * MOE_HOPPER_ROW, row + k * EXPERTS_CHUNK,
                              2 * EXPERTS_CHUNK, r.full + at.stage);
            }
        }
    }
}

/* The same with ONE, where rows lie in a line as a whole, and who they are as well. */
template <typename form> DEVICE void moe_load_whole_rows(const moe_args &a, const moe_ring &r, int lane)
{
    const experts_lists &lists = a.plan.lists;
    uint32_t both = moe_mine(a, lane);
    int32_t active = (int32_t)a.counts[MOE_ACTIVE], known = -1, row_bytes = moe_row_bytes<form>(a);
    uint32_t number = lane == 0 ? draw(a.counts + MOE_TICKET, 1) : 0;
    /* Of active expert `lane`: its members, before anybody asks for them. */
    int32_t members[MOE_HOPPER_ONE];
    UNROLL for (int m = 0; m < MOE_HOPPER_ONE; m++)
        members[m] = lane < active && m < (int32_t)(both / MOE_ROUTE_COUNT)
                         ? lists.members[(int64_t)(both % MOE_ROUTE_COUNT) * lists.capacity + m]
                         : 0;
    moe_at<form::LINES> at = {0, 0};
    moe_queue_at queue = {0, 0};
    moe_stream_item item = moe_tell(a, r, active, both, queue, number, lane);
    for (int begun = 0; item.kind != MOE_NONE; begun ^= 1, moe_step(at)) {
        bool down = item.kind == MOE_DOWN, mine = lane < item.count;
        int32_t cols = down ? a.down.down.first.cols : a.in.hidden, member = 0;
        UNROLL for (int m = 0; m < MOE_HOPPER_ONE; m++) {
            int32_t other = lane_get(members[m], item.n % CUDA_WARP);
            if (lane == m) member = other;
        }
        if (active > CUDA_WARP && mine) member = lists.members[(int64_t)item.expert * lists.capacity + lane];
        int32_t row = member / lists.per_token;
        if (down && known != item.n) {
            moe_wait(a.up_done + item.n, (uint32_t)a.sizes.tiles, "gate and up of an expert", lane);
            known = item.n;
        }
        others_wrote();
        arrivals_wait(r.empty + at.stage, at.parity ^ 1);
        if (lane == 0) arrivals_expect(r.full + at.stage, (uint32_t)(item.count * cols) * 2);
        WARP_SYNC();
        if (mine) {
            copy_bulk(r.lines + at.stage * moe_line_bytes<form>(a) + lane * row_bytes,
                      down ? a.glu.z + (int64_t)member * cols : a.in.out + (int64_t)row * cols, (uint32_t)cols * 2,
                      r.full + at.stage);
            r.members[at.stage].member[lane] = member;
            r.members[at.stage].factor[lane] = !down && a.glu.row_factor ? a.glu.row_factor[row] : 1;
        }
        WARP_SYNC();
        if (lane == 0) arrivals_come(r.full + at.stage);
        /* Of few items every multiprocessor has one before anybody has two. A ring that holds an item does not wait for it. */
        if (a.in.hidden >= 8 * EXPERTS_CHUNK && a.down.down.first.cols >= 8 * EXPERTS_CHUNK) arrivals_wait(r.begun, begun);
        number = lane == 0 ? draw(a.counts + MOE_TICKET, 1) : 0;
        item = moe_tell(a, r, active, both, queue, number, lane);
    }
}

/* ---- Who multiplies: weights ------------------------------------------------------------------------------------- */

template <typename form> struct moe_multiplier {
    int32_t lane, warp;
    unsigned char *ring; /* of the warp, this lane's 16 bytes */
    /* What is asked for next: a chunk of a tile of the item that is multiplied, or of the next one (`entered`), and where in
     * the ring it goes. Chunk i of all goes to stage i % STAGES; where there is nothing to ask for a stage passes empty. */
    const uint8_t *codes, *scales; /* this lane's of the chunk */
    int32_t chunk, chunks, turns;  /* of a turn; the rows that are left take so many turns; -1: behind the last item */
    int32_t place, since;          /* bytes into the ring; stages that have passed since the first chunk of the item */
    bool there, entered;
    moe_queue_at ahead; /* of the item behind the one that is asked for */
    moe_queue_at now;   /* of the item that is multiplied */
    moe_at<form::LINES> line;
    int32_t given;      /* parity of the next sums that up hands over */
};

/* The warp's tile of an item; is there one? */
DEVICE bool moe_tile_of(const moe_args &a, const moe_stream_item &item, int warp, int32_t *tile)
{
    bool down = item.kind == MOE_DOWN;
    *tile = down ? item.group * MOE_HOPPER_WARPS + warp : item.group * MOE_HOPPER_PAIRS + warp / 2;
    return *tile < (down ? a.sizes.out_tiles : a.sizes.tiles);
}

/* The next item is asked for from now on. */
template <typename form> DEVICE void moe_enter(const moe_args &a, const moe_ring &r, moe_multiplier<form> &w)
{
    arrivals_wait(r.told + w.ahead.stage, w.ahead.parity);
    const moe_stream_item &item = r.queue[w.ahead.stage];
    bool down = item.kind == MOE_DOWN;
    moe_step(w.ahead);
    w.entered = true, w.since = 0, w.chunk = 0, w.turns = -1;
    if (item.kind == MOE_NONE) return;
    const experts_weight &weight = down ? a.down.down : w.warp % 2 ? a.glu.up : a.glu.gate;
    int32_t tile;
    w.there = moe_tile_of(a, item, w.warp, &tile);
    w.codes = experts_data(weight, item.expert, tile * EXPERTS_TILE) + w.lane * 16;
    w.scales = experts_scales(weight, item.expert, tile * EXPERTS_TILE) + w.lane % 16 * 16;
    w.chunks = weight.first.cols / EXPERTS_CHUNK;
    w.turns = moe_turns(item.count);
}

/* How many of the next `most` stages are asked for without looking at items; *some: do chunks go there? */
template <typename form>
DEVICE int32_t moe_run(const moe_args &a, const moe_ring &r, moe_multiplier<form> &w, int32_t most, bool *some)
{
    if (w.turns == 0 && !w.entered) moe_enter(a, r, w);
    *some = w.turns > 0 && w.there;
    int32_t run = w.turns > 0 && w.chunks - w.chunk < most ? w.chunks - w.chunk : most;
    w.since += run;
    if (w.turns > 0) w.chunk += run;
    return run;
}

/* Behind them. */
template <typename form> DEVICE void moe_ran(moe_multiplier<form> &w, bool some)
{
    if (w.turns <= 0 || w.chunk < w.chunks) return;
    w.chunk = 0, w.turns--; /* again, for other rows */
    if (some) w.codes -= w.chunks * MOE_HOPPER_CODES, w.scales -= w.chunks * MOE_HOPPER_SCALES;
}

/* A stage of the ring; the one that was there has been read by all lanes. */
template <typename form> DEVICE void moe_ask(moe_multiplier<form> &w, bool some)
{
    unsigned char *to = w.ring + w.place;
    if (some) {
        UNROLL for (int i = 0; i < MOE_HOPPER_CODES; i += CUDA_WARP * 16) copy_async(to + i, w.codes + i, true);
        if (w.lane < 16) copy_async(to + MOE_HOPPER_CODES, w.scales, true);
        w.codes += MOE_HOPPER_CODES, w.scales += MOE_HOPPER_SCALES;
    }
    copy_commit();
    w.place += MOE_HOPPER_STAGE;
    if (w.place == form::STAGES * MOE_HOPPER_STAGE) w.place = 0;
}

/* The item that is multiplied from now on; all its first stages but one are on their way. */
template <typename form>
DEVICE void moe_turn_to_next(const moe_args &a, const moe_ring &r, moe_multiplier<form> &w)
{
    if (!w.entered) moe_enter(a, r, w);
    w.entered = false;
    for (int32_t left = form::STAGES - 1 - w.since; left > 0;) {
        bool some;
        int32_t run = moe_run(a, r, w, left, &some);
        left -= run;
        for (; run; run--) moe_ask(w, some);
        moe_ran(w, some);
    }
}

/* ---- Who multiplies: products ------------------------------------------------------------------------------------- */

/* Where a lane's numbers lie: quads of codes and pairs of scales behind its own 16 bytes of a stage, rows in a line. */
struct moe_lane {
    int32_t codes, scales, row;
};

DEVICE moe_lane moe_lane_of(int32_t row_bytes, int32_t rows, int lane)
{
    int g = lane / 4, t = lane % 4, row = g < rows ? g : rows - 1; /* behind the last row comes it again */
    return {(t * EXPERTS_TILE + EXPERTS_PLACE(g, t) - lane) * 16, MOE_HOPPER_CODES + t * 32 + g * 2 - lane * 16,
            row * row_bytes + t * 16};
}

/* d += a tile's half stage times eight rows: experts_multiply_half. */
DEVICE void moe_multiply_half(const unsigned char *stage, const unsigned char *line, const moe_lane &at, int half, float d[4])
{
    quad codes[2], x[4];
    uint32_t unit[2][2]; /* of the lane's two groups */
    UNROLL for (int upper = 0; upper < 2; upper++)
        codes[upper] = *(const quad *)(stage + at.codes + half * (4 * EXPERTS_TILE * 16) + upper * 128);
    UNROLL for (int i = 0; i < 4; i++) x[i] = *(const quad *)(line + at.row + half * 256 + i * 64);
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

/* d += the warp's tile times up to eight rows over the next chunks of both rings; with ONE of rows at x. */
template <typename form>
DEVICE void moe_sum(const moe_args &a, const moe_ring &r, moe_multiplier<form> &w, const moe_lane &at, bool there,
                    int32_t chunks, const unsigned char *x, float d[4])
{
    while (chunks) {
        bool some;
        int32_t run = moe_run(a, r, w, chunks, &some);
        chunks -= run;
        _Pragma("unroll 1") for (; run; run--) {
            copy_wait<form::STAGES - 2>();
            WARP_SYNC(); /* the chunk is there for all lanes, and all are done with the one before it */
            moe_ask(w, some);
            if (!form::ONE) arrivals_wait(r.full + w.line.stage, w.line.parity);
            if (there) { /* the chunk is where the next one will be asked to */
                const unsigned char *stage = w.ring + w.place, *line = form::ONE ? x : r.lines + w.line.stage * MOE_HOPPER_LINE;
                UNROLL for (int half = 0; half < 2; half++) moe_multiply_half(stage, line, at, half, d);
            }
            x += 2 * EXPERTS_CHUNK;
            if (form::ONE) continue;
            WARP_SYNC();
            if (w.lane == 0) arrivals_come(r.empty + w.line.stage);
            moe_step(w.line);
        }
        moe_ran(w, some);
    }
}

/* Of an item that is down `gate` is the factor. With one block a multiprocessor who the rows are is in shared memory by then:
 * nobody has anything else to do while it comes from further away. */
template <typename form>
DEVICE void moe_columns_of(const moe_args &a, const moe_ring &r, const moe_multiplier<form> &w, const moe_stream_item &item,
                           int32_t first, experts_columns &c)
{
    if (form::ONE) {
        const moe_members &rows = r.members[w.line.stage];
        UNROLL for (int i = 0; i < 2; i++) {
            int32_t m = 2 * (w.lane % 4) + i;
            c.member[i] = m < item.count ? rows.member[m] : -1;
            c.row_factor[i] = m < item.count ? rows.factor[m] : 1;
        }
        return;
    }
    c = experts_columns_of(a.glu, item.expert, item.count, first, w.lane);
    if (item.kind == MOE_DOWN) c.gate = a.down.down.factors[item.expert];
}

/* A tile is through for an expert, all rows of it: the last one makes the outputs. */
DEVICE void moe_tile_done(const moe_args &a, const moe_stream_item &item, int32_t tile, int lane)
{
    if (!moe_last_again(a.out_done + tile, (uint32_t)item.active, lane)) return;
    if (a.behind_shared) follow_wait();
    moe_out<MOE_ROWS>(a, tile, lane);
}

/* The warp's tile of an item, all rows of its expert. */
template <typename form>
DEVICE void moe_stream_tile(const moe_args &a, const moe_ring &r, moe_multiplier<form> &w, const moe_stream_item &item)
{
    bool down = item.kind == MOE_DOWN;
    int g = w.lane / 4, pair = w.warp / 2;
    int32_t tile, chunks = (down ? a.down.down.first.cols : a.in.hidden) / EXPERTS_CHUNK;
    bool there = moe_tile_of(a, item, w.warp, &tile);
    quad *handed = r.handed + pair * CUDA_WARP + w.lane;
    for (int32_t first = 0; first < item.count; first += MOE_HOPPER_ROWS) {
        float d[4], up[4];
        experts_columns c;
        const moe_lane at = moe_lane_of(moe_row_bytes<form>(a), item.count - first, w.lane);
        UNROLL for (int i = 0; i < 4; i++) d[i] = 0;
        if (form::ONE) {
            c.gate = (down ? a.down.down : a.glu.gate).factors[item.expert], c.up = a.glu.up.factors[item.expert];
            const unsigned char *x = r.lines + w.line.stage * moe_line_bytes<form>(a);
            int32_t quarter = chunks / 4;
            arrivals_wait(r.full + w.line.stage, w.line.parity);
            _Pragma("unroll 1") for (int part = 0; part < 2; part++) {
                moe_sum(a, r, w, at, there, part ? chunks - quarter : quarter, x + part * quarter * (2 * EXPERTS_CHUNK), d);
                if (part == 0 && w.warp == 0 && w.lane == 0) arrivals_come(r.begun);
            }
        } else {
            moe_sum(a, r, w, at, there, chunks, NULL, d);
        }
        if (!there) continue;
        if (down) {
            moe_columns_of(a, r, w, item, first, c);
            UNROLL for (int i = 0; i < 2; i++) {
                if (c.member[i] < 0) continue;
                float *y = a.down.y + (int64_t)c.member[i] * a.down.down.first.rows + tile * EXPERTS_TILE + g;
                y[0] = d[i] * NVFP4_SHIFT * c.gate * a.down.factor;
                y[8] = d[2 + i] * NVFP4_SHIFT * c.gate * a.down.factor;
            }
        } else if (w.warp % 2) {
            quad q;
            UNROLL for (int i = 0; i < 4; i++) q.w[i] = float_bits(d[i]);
            arrivals_wait(r.taken + pair, w.given ^ 1);
            *handed = q;
            WARP_SYNC();
            if (w.lane == 0) arrivals_come(r.given + pair);
            w.given ^= 1;
        } else {
            moe_columns_of(a, r, w, item, first, c);
            arrivals_wait(r.given + pair, w.given);
            quad q = *handed;
            UNROLL for (int i = 0; i < 4; i++) up[i] = bits_float(q.w[i]);
            WARP_SYNC();
            if (w.lane == 0) arrivals_come(r.taken + pair);
            w.given ^= 1;
            experts_finish_columns(a.glu, c, moe_place(tile * EXPERTS_TILE), MOE_UPPER, d, up, w.lane);
            moe_bring(a.up_done + item.n, 1, w.lane);
        }
    }
    if (form::ONE) { /* the members have been read as well */
        WARP_SYNC();
        if (w.lane == 0) arrivals_come(r.empty + w.line.stage);
        moe_step(w.line);
    }
    if (down && there) moe_tile_done(a, item, tile, w.lane);
}

template <typename form> DEVICE void moe_hopper(const moe_args &a)
{
    moe_ring r = moe_ring_of<form>(a, DYNAMIC(unsigned char));
    if (threadIdx.x == 0) {
        for (int i = 0; i < form::LINES; i++)
            arrivals_init(r.full + i, form::ONE ? 2 : 1), arrivals_init(r.empty + i, MOE_HOPPER_WARPS);
        for (int i = 0; i < MOE_HOPPER_QUEUE; i++) arrivals_init(r.told + i, 1), arrivals_init(r.read + i, MOE_HOPPER_WARPS);
        for (int i = 0; i < MOE_HOPPER_PAIRS; i++)
            arrivals_init(r.given + i, 1), arrivals_init(r.taken + i, 1);
        arrivals_init(r.begun, 1);
        arrivals_ready();
        if (a.behind_shared) arrived(); /* nothing older is in the first-level cache */
    }
    BLOCK_SYNC();
    if (a.behind_shared)
        follow_let(); /* the lists are there, `beside` is not */
    else
        follow();
    int lane = threadIdx.x % CUDA_WARP, warp = known_here(threadIdx.x / CUDA_WARP);
    if (warp == MOE_HOPPER_WARPS) {
        if (form::ONE)
            moe_load_whole_rows<form>(a, r, lane);
        else
            moe_load_rows<form>(a, r, lane);
    } else {
        moe_multiplier<form> w = {};
        w.lane = lane, w.warp = warp, w.ring = r.stages + warp * form::STAGES * MOE_HOPPER_STAGE + lane * 16;
        for (;;) {
            moe_turn_to_next(a, r, w);
            moe_stream_item item = r.queue[w.now.stage];
            if (item.kind == MOE_NONE) {
                if (a.behind_shared) follow_wait();
                /* All rows are padding: nobody counts up to their outputs. */
                for (int32_t tile = blockIdx.x * MOE_HOPPER_WARPS + warp; item.active == 0 && tile < a.sizes.out_tiles;
                     tile += gridDim.x * MOE_HOPPER_WARPS)
                    moe_out<MOE_ROWS>(a, tile, lane);
                break;
            }
            moe_stream_tile(a, r, w, item);
            WARP_SYNC();
            if (lane == 0) arrivals_come(r.read + w.now.stage);
            moe_step(w.now);
        }
        copy_wait<0>();
    }
    if (a.behind_shared) follow_wait();
    BLOCK_SYNC();
    if (warp == 0) moe_end(a, gridDim.x, lane);
}

KERNEL_TOGETHER(moe_hopper_one, moe_args, MOE_HOPPER_BLOCK, 1) { moe_hopper<moe_form<true>>(a); }
KERNEL_TOGETHER(moe_hopper, moe_args, MOE_HOPPER_BLOCK, MOE_HOPPER_BLOCKS) { moe_hopper<moe_form<false>>(a); }
