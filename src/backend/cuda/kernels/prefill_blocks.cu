/*
 * Sparse attention of many rows on Hopper where they choose different blocks: blocks stay and rows pass (the other form is
 * prefill_rows.cu).
 *
 * A thread block takes items one after the other, a block and rows of a wave that take it (prefill_lists.cu). Of its
 * four warpgroups one decodes keys and values once, two multiply, four rows of 16 heads at a time: the products and the
 * softmax of prefill.cuh. What a block gave a row, O_b, m_b and l_b in fp32, is a partial, and the fourth warpgroup folds
 * rows whose partials are all there, in ascending order of blocks:
 *
 *     M' = max(M, m_b),  L' = L 2^(M - M') + l_b 2^(m_b - M'),  O likewise;  out = O / L
 *
 * No product is wasted but those that fill up four rows; the price is the partials, 8,320 bytes written and read for 1.05
 * million operations of a row and a block. A wave is PREFILL_WAVE rows of one KV head, 34 MB of them, and while one is folded
 * the next ones are multiplied, in the same launch: no multiprocessor waits for the slowest one of a wave. The smaller the wave, the fewer rows share a decoded block: 256 rows that take 16 of 512
 * blocks are eight a block, two turns of four rows.
 *
 * Queries are made bf16 in the order of the keys first (prefill_queries), once a row, not once a row and block, in the
 * place where the row's output will be, and come by bulk copies, 4 KB a row and block.
 *
 * Bound: the bytes of partials. A row and block moves 8.3 KB of them twice, 4 KB of queries and, with eight rows an item, 2.3 KB
 * of NVFP4: 23 KB for 1.05 MFLOP; 8,192 rows of one KV head 3.0 GB, 0.5 ms or 275 TFLOP/s if the second-level cache held them
 * all and gave 6 TB/s. The tensor cores would take 0.17 ms. Measured on an H200, 2026-12-01, 8,192 rows at 64K, lists at
 * random: 1.21 ms for one KV head and 4.68 for four, 113 and 117 TFLOP/s; without folding 0.81, without storing 0.69. With two
 * waves alive instead of three 1.56. So folding is what is dear, and probably because the partials do not stay in the cache.
 *
 * Who waits for whom. Items and rows to fold are drawn from counters, so that whatever is waited for is in the hands of a
 * thread block that runs, whether all of the grid are on the GPU or one. Products of list n are stored when list n -
 * PREFILL_ALIVE is folded, whose items were all drawn before. Partials are counted when a stage is given back, by one
 * thread for both warpgroups: the count has to wait until they can be seen from everywhere, and products shall not.
 *
 * Shared memory 200 KB: one thread block of 512 threads a multiprocessor.
 */
#include "backend/cuda/kernels/prefill.cuh"

/* A decoded block and the rows that it is for. */
struct blocks_stage {
    int32_t row[PREFILL_ITEM]; /* of the step */
    uint16_t place[PREFILL_ITEM], tokens[PREFILL_ITEM]; /* of the block in the row's list; that the row sees */
    int32_t count, last; /* 0 rows: there is no block; last: of this thread block */
    int32_t turns;       /* of four rows, before this one */
    int32_t list;
};

/* An item of a list; 0 rows: there is none. */
struct blocks_item {
    prefill_item item;
    int32_t list;
};

enum { KNOWN = 4 }; /* items: this one, the next one, the one behind it */

struct blocks_control {
    arrivals full[PREFILL_RING], empty[PREFILL_RING];
    arrivals asked[MULTIPLIERS][2]; /* queries of a turn */
    blocks_stage stage[PREFILL_RING];
    int32_t until[PREFILL_LISTS]; /* items of the lists up to this one */
    blocks_item item[KNOWN];
    int32_t unit[2]; /* rows to fold, drawn */
    int32_t turns;
    uint32_t found;
    uint16_t half[PREFILL_HEADS * PREFILL_DIM]; /* a folded row */
};
static_assert(sizeof(blocks_control) <= PREFILL_BLOCKS_CONTROL, "the host gives that much");
static_assert(sizeof(arrivals) * (2 * PREFILL_RING + 2 * MULTIPLIERS) % 16 == 0, "what is behind them is aligned");

struct blocks_ring {
    unsigned char *pages; /* [PREFILL_RING][keys, values] */
    blocks_control *control;
    int stage, turn;
};
DEVICE void next_stage(blocks_ring &ring)
{
    if (++ring.stage == PREFILL_RING) ring.stage = 0, ring.turn ^= 1;
}

/* Numbers of prefill_lists.progress. */
DEVICE uint32_t *partials_of(const prefill_lists &l, int list) { return l.progress + 2 + 2 * list; }
DEVICE uint32_t *folded_of(const prefill_lists &l, int list) { return l.progress + 3 + 2 * list; }
DEVICE int rows_of(const prefill_lists &l, int list)
{
    return min(l.count - list % l.waves * PREFILL_WAVE, (int)PREFILL_WAVE);
}

/* ---- Queries ----------------------------------------------------------------------------------------------------- */

/* Bytes of a half of the dims of a row's queries, and where they lie: in two halves of lines of 128 bytes, as in A. */
DEVICE uint32_t query_bytes(const prefill_blocks_args &a) { return (uint32_t)(a.per_group * LINE_BYTES); }
DEVICE unsigned char *queries_of(const prefill_blocks_args &a, int row, int group)
{
    return (unsigned char *)(a.attention_bf16 + ((int64_t)row * a.heads + group * a.per_group) * PREFILL_DIM);
}

template <int FORMAT> DEVICE void make_queries(const prefill_blocks_args &a)
{
    int64_t all = (int64_t)a.lists.count * a.heads * 4, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
        int c = (int)(i % 4), head = (int)(i / 4 % a.heads), row = a.lists.first + (int)(i / 4 / a.heads);
        int line = head % a.per_group;
        float x[4][8];
        quad unit[4];
        fetch_query<FORMAT, PAGE_KEYS>(a.q + ((int64_t)row * a.heads + head) * PREFILL_DIM, c, x);
        order_query<FORMAT, PAGE_KEYS>(x, unit);
        unsigned char *to = queries_of(a, row, head / a.per_group) + c / 2 * query_bytes(a);
        UNROLL for (int j = 0; j < 4; j++) *(quad *)(to + tile_unit(line, c % 2 * 4 + j)) = unit[j];
    }
}

KERNEL(prefill_queries, prefill_blocks_args)
{
    if (a.cache.main == KERNEL_CACHE_NVFP4)
        make_queries<KERNEL_CACHE_NVFP4>(a);
    else
        make_queries<KERNEL_CACHE_BF16>(a);
}

/* ---- The decoding warpgroup -------------------------------------------------------------------------------------- */

DEVICE int tokens_of(uint32_t taker) { return (int)(taker >> 24); }
DEVICE const uint32_t *takers_of(const prefill_lists &l, const blocks_item &i)
{
    return l.takers + (int64_t)i.list * PREFILL_WAVE * l.top + i.item.first;
}
DEVICE const uint8_t *head_of(const prefill_blocks_args &a, const blocks_item &i)
{
    return a.cache.base + i.item.cached * a.cache.row_bytes + a.layer_offset + i.list / a.lists.waves * a.cache.head_bytes;
}

/* All threads of the warpgroup: how many items there are up to each list. */
DEVICE void count_items(const prefill_lists &l, blocks_control &control)
{
    int thread = (int)threadIdx.x % WARPGROUP, lane = thread % CUDA_WARP, lists = l.waves * l.heads, base = 0;
    for (int from = 0; from < lists && thread < CUDA_WARP; from += CUDA_WARP) {
        int list = from + lane, before = list < lists ? l.totals[2 * list] : 0;
        for (int step = 1; step < CUDA_WARP; step *= 2) {
            int other = lane_get(before, max(lane - step, 0));
            if (lane >= step) before += other;
        }
        if (list < lists) control.until[list] = base + before;
        base += lane_get(before, CUDA_WARP - 1);
    }
    threads_meet<3, WARPGROUP>();
}

/* Item `number` of all lists, of list `list` or a later one. */
DEVICE blocks_item find_item(const prefill_lists &l, const blocks_control &control, int number, int list)
{
    int lists = l.waves * l.heads;
    while (list < lists && number >= control.until[list]) list++;
    if (list == lists) return blocks_item{{0, 0, 0, 0}, list};
    int before = list ? control.until[list - 1] : 0;
    quad item = *(const quad *)(l.items + (int64_t)list * PREFILL_WAVE * l.top + (number - before));
    return blocks_item{{(int32_t)item.w[0], (int32_t)item.w[1], (int32_t)item.w[2], (int32_t)item.w[3]}, list};
}

/* What a thread has of an item that comes: a row, and tokens that rows see. Positions ascend with rows. */
struct blocks_rows {
    uint32_t taker;
    int least, most;
};

template <int FORMAT>
DEVICE blocks_rows ask_item(const prefill_blocks_args &a, const blocks_item &i, prefill_block<FORMAT> &waiting)
{
    if (!i.item.count) return blocks_rows{0, 0, 0};
    const uint32_t *takers = takers_of(a.lists, i);
    uint32_t own = takers[min((int)threadIdx.x % WARPGROUP, i.item.count - 1)];
    uint32_t first = takers[0], last = takers[i.item.count - 1];
    load_block(a.cache, waiting, head_of(a, i));
    return blocks_rows{own, tokens_of(first), tokens_of(last)};
}

/* Until the next stage is given back; then what its rows got is counted, by one thread for all. */
DEVICE void take_back(const prefill_lists &l, const blocks_ring &ring)
{
    const blocks_stage &stage = ring.control->stage[ring.stage];
    arrivals_wait(ring.control->empty + ring.stage, ring.turn ^ 1);
    if (threadIdx.x % WARPGROUP == 0 && stage.count) arrive(partials_of(l, stage.list), (uint32_t)stage.count);
}

/* Rows [first, first + count) of an item get its block, values from token `tokens` on as zeros. */
template <int FORMAT>
DEVICE void put_item(const prefill_blocks_args &a, blocks_ring &ring, prefill_block<FORMAT> &waiting, const blocks_item &item,
                     uint32_t taker, int first, int count, int tokens, bool last)
{
    int place = (int)threadIdx.x % WARPGROUP - first;
    blocks_stage &stage = ring.control->stage[ring.stage];
    take_back(a.lists, ring);
    if (place >= 0 && place < count) {
        stage.row[place] = a.lists.first + item.list % a.lists.waves * PREFILL_WAVE + (int)(taker & 0xFFFF);
        stage.place[place] = (uint16_t)(taker >> 16 & 0xFF);
        stage.tokens[place] = (uint16_t)tokens_of(taker);
    }
    if (threadIdx.x % WARPGROUP == 0) {
        stage.count = count, stage.last = last, stage.turns = ring.control->turns, stage.list = item.list;
        ring.control->turns += (count + OWN_ROWS - 1) / OWN_ROWS;
    }
    if (count) store_block(a.cache, waiting, ring.pages + ring.stage * (2 * PAGE_BYTES), head_of(a, item), tokens);
    others_read();
    arrivals_come(ring.control->full + ring.stage);
    next_stage(ring);
}

/* An item that is decoded was asked for when the one before was done; one thread read what it is an item earlier, and drew
 * its number two items earlier. */
template <int FORMAT> DEVICE void decode_items(const prefill_blocks_args &a, blocks_ring ring)
{
    blocks_control &control = *ring.control;
    const prefill_lists &l = a.lists;
    bool leader = threadIdx.x % WARPGROUP == 0;
    prefill_block<FORMAT> waiting = {};
    int number = 0;
    count_items(l, control);
    if (leader) {
        number = (int)draw(l.progress, 3);
        control.item[0] = find_item(l, control, number, 0);
        control.item[1] = find_item(l, control, number + 1, control.item[0].list);
        number += 2;
        control.found = 0, control.turns = 0;
        for (int i = 0; i < PREFILL_RING; i++) control.stage[i].count = 0;
    }
    threads_meet<3, WARPGROUP>();
    blocks_rows rows = ask_item(a, control.item[0], waiting);
    if (!control.item[0].item.count) put_item<FORMAT>(a, ring, waiting, control.item[0], 0, 0, 0, 0, true);
    for (int turn = 0; control.item[turn].item.count; turn = (turn + 1) % KNOWN) {
        const blocks_item &now = control.item[turn], &then = control.item[(turn + 1) % KNOWN];
        blocks_item later;
        int drawn = 0;
        if (leader) later = find_item(l, control, number, then.list), drawn = (int)draw(l.progress, 1);
        /* A value that some row does not see, and another does, is no number: each row by itself. */
        bool apart = rows.least != rows.most && not_finite(a.cache, waiting, head_of(a, now), rows.least, &control.found);
        for (int first = 0, count = apart ? 1 : now.item.count; first < now.item.count; first += count)
            put_item<FORMAT>(a, ring, waiting, now, rows.taker, first, count,
                             apart ? tokens_of(takers_of(l, now)[first]) : rows.most,
                             !then.item.count && first + count >= now.item.count);
        rows = ask_item(a, then, waiting);
        if (leader) control.item[(turn + 2) % KNOWN] = later, number = drawn;
        threads_meet<3, WARPGROUP>();
    }
    for (int i = 0; i < PREFILL_RING; i++, next_stage(ring)) take_back(l, ring);
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* The partial of this warp's row, 16 bytes a lane at a time. */
DEVICE void store_partial(float *to, const float maximum[2], const float sum[2], const float (&out)[64])
{
    int lane = threadIdx.x % CUDA_WARP;
    if (lane % 4 == 0)
        UNROLL for (int r = 0; r < 2; r++) {
            to[lane / 4 + 8 * r] = maximum[r];
            to[PREFILL_HEADS + lane / 4 + 8 * r] = sum[r];
        }
    quad *tiles = (quad *)(to + 2 * PREFILL_HEADS) + lane;
    UNROLL for (int i = 0; i < 16; i++) {
        quad x;
        UNROLL for (int c = 0; c < 4; c++) x.w[c] = float_bits(out[4 * i + c]);
        tiles[i * CUDA_WARP] = x;
    }
}

/* Queries of row `i` of a stage, if there are so many, to this warp's lines of a tile. The warps have seen the queries of
 * the turn before arrive, so that nobody reads those before that, which lay there. */
DEVICE void ask_queries(const prefill_blocks_args &a, const blocks_stage &stage, int i, unsigned char *tile, arrivals *asked)
{
    WARP_SYNC();
    if (threadIdx.x % CUDA_WARP) return;
    if (i >= stage.count) {
        arrivals_come(asked);
        return;
    }
    uint32_t bytes = query_bytes(a);
    const unsigned char *from = queries_of(a, stage.row[i], stage.list / a.lists.waves);
    unsigned char *to = tile + threadIdx.x / CUDA_WARP % OWN_ROWS * PREFILL_HEADS * LINE_BYTES;
    arrivals_expect(asked, 2 * bytes);
    copy_bulk(to, from, bytes, asked);
    copy_bulk(to + QUERY_HALF, from + bytes, bytes, asked);
}

/* Turns of four rows go to the warpgroups in turn, from item to item. While values are multiplied the queries of the next
 * turn come, to the other of two places. */
DEVICE void multiply_items(const prefill_blocks_args &a, blocks_ring ring, unsigned char *queries, int group)
{
    blocks_control &control = *ring.control;
    int own = threadIdx.x / CUDA_WARP % OWN_ROWS, place = 0, parity = 0, folded = -1;
    bool ready = false, last = false;
    while (!last) {
        const unsigned char *page = ring.pages + ring.stage * (2 * PAGE_BYTES);
        const blocks_stage &stage = control.stage[ring.stage];
        arrivals_wait(control.full + ring.stage, ring.turn);
        int count = stage.count, turns = (count + OWN_ROWS - 1) / OWN_ROWS;
        last = stage.last;
        WARP_SYNC(); /* all lanes have been let through before one of them gives the stage back */
        for (int n = (group + stage.turns) % MULTIPLIERS; n < turns; n += MULTIPLIERS) {
            int i = n * OWN_ROWS + own;
            unsigned char *tile = queries + place * QUERY_BYTES;
            if (!ready) ask_queries(a, stage, i, tile, control.asked[group] + place);
            arrivals_wait(control.asked[group] + place, parity);
            float s[64], out[64], maximum[2], sum[2];
            uint32_t weights[32];
            multiply_keys(s, tile, QUERY_HALF, page);
            wgmma_wait<0>(s);
            weigh_row(s, a.scale, i < count ? stage.tokens[i] : 0, weights, maximum, sum);
            multiply_values(out, weights, page + PAGE_BYTES);
            /* The next turn, of this item or of the one behind it. */
            const blocks_stage *next = n + MULTIPLIERS < turns ? &stage : nullptr;
            int row = i + MULTIPLIERS * OWN_ROWS;
            if (!next && !last) {
                blocks_ring behind = ring;
                next_stage(behind);
                arrivals_wait(control.full + behind.stage, behind.turn);
                int first = (group + control.stage[behind.stage].turns) % MULTIPLIERS;
                if (first * OWN_ROWS < control.stage[behind.stage].count) next = &control.stage[behind.stage];
                row = first * OWN_ROWS + own;
            }
            place ^= 1;
            parity ^= !place;
            ready = next != nullptr;
            if (ready) ask_queries(a, *next, row, queries + place * QUERY_BYTES, control.asked[group] + place);
            wgmma_wait<0>(out);
            if (stage.list - PREFILL_ALIVE > folded) {
                folded = stage.list - PREFILL_ALIVE;
                if (threadIdx.x % CUDA_WARP == 0)
                    await_inline(folded_of(a.lists, folded), (uint32_t)rows_of(a.lists, folded));
                WARP_SYNC();
            }
            if (i < count) {
                int local = stage.row[i] - a.lists.first - stage.list % a.lists.waves * PREFILL_WAVE;
                int at = (stage.list % PREFILL_ALIVE * PREFILL_WAVE + local) * a.lists.top + stage.place[i];
                store_partial(a.partials + (int64_t)at * PREFILL_PARTIAL, maximum, sum, out);
            }
        }
        WARP_SYNC();
        if (threadIdx.x % CUDA_WARP == 0) arrivals_come(control.empty + ring.stage);
        next_stage(ring);
    }
}

/* ---- Fold -------------------------------------------------------------------------------------------------------- */

/* Row `local` of a wave: a warp has four tiles of eight dims, of all heads, and RUN partials on their way. */
template <int FORMAT> DEVICE void fold_row(const prefill_blocks_args &a, int list, int local, uint16_t *half)
{
    enum { TILES_OF_WARP = 4, RUN = 3, UNITS = PREFILL_DIM / 8 };
    const prefill_lists &l = a.lists;
    int thread = (int)threadIdx.x % WARPGROUP, warp = thread / CUDA_WARP, lane = thread % CUDA_WARP, g = lane / 4, t = lane % 4;
    int row = l.first + list % l.waves * PREFILL_WAVE + local, group = list / l.waves;
    const int32_t *blocks = l.blocks + ((int64_t)row * l.heads + group) * l.top;
    int own = lane < l.top ? blocks[lane] : -1, before_own = lane_get(own, max(lane - 1, 0));
    bool padding = l.rows.sequence[row] < 0;
    /* A block that a list names again has one partial. */
    uint32_t none = lane_ballot(own < 0 || padding), again = lane_ballot(lane > 0 && own == before_own);
    int length = count_bits((none & (0u - none)) - 1);
    const float *partials = a.partials + (int64_t)(list % PREFILL_ALIVE * PREFILL_WAVE + local) * l.top * PREFILL_PARTIAL;
    float maximum[2] = {0, 0}, sum[2] = {0, 0}, out[4 * TILES_OF_WARP] = {};
    for (int from = 0, same = 0; from < length; from += RUN) {
        float maxima[RUN][2], sums[RUN][2];
        quad outs[RUN][TILES_OF_WARP];
        UNROLL for (int n = 0; n < RUN; n++) {
            int i = from + n;
            if (i >= length) continue;
            if (!(again >> i & 1)) same = i;
            const float *partial = partials + (int64_t)same * PREFILL_PARTIAL;
            UNROLL for (int r = 0; r < 2; r++) {
                maxima[n][r] = partial[g + 8 * r];
                sums[n][r] = partial[PREFILL_HEADS + g + 8 * r];
            }
            const quad *tiles = (const quad *)(partial + 2 * PREFILL_HEADS) + warp * TILES_OF_WARP * CUDA_WARP + lane;
            UNROLL for (int j = 0; j < TILES_OF_WARP; j++) outs[n][j] = tiles[j * CUDA_WARP];
        }
        UNROLL for (int n = 0; n < RUN; n++) {
            if (from + n >= length) continue;
            UNROLL for (int r = 0; r < 2; r++) {
                float before = 0, now = 1;
                bool first = from + n == 0;
                if (first)
                    maximum[r] = maxima[n][r], sum[r] = sums[n][r];
                else
                    fold_step(maximum[r], maxima[n][r], before, now), sum[r] = sum[r] * before + sums[n][r] * now;
                UNROLL for (int j = 0; j < TILES_OF_WARP; j++)
                    UNROLL for (int c = 2 * r; c < 2 * r + 2; c++) {
                        float x = bits_float(outs[n][j].w[c]);
                        out[4 * j + c] = first ? x : out[4 * j + c] * before + x * now;
                    }
            }
        }
    }
    UNROLL for (int j = 0; j < TILES_OF_WARP; j++)
        UNROLL for (int c = 0; c < 4; c++) {
            float x = out[4 * j + c] / sum[c / 2] * (cached_undo<FORMAT>() * a.value_scale);
            int d = (warp * TILES_OF_WARP + j) * 8 + cached_order<FORMAT>(2 * t + c % 2);
            half[(g + c / 2 * 8) * PREFILL_DIM + d] = bf16_of_float(padding ? 0 : x);
        }
    threads_meet<4, WARPGROUP>();
    for (int i = thread; i < a.per_group * UNITS; i += WARPGROUP) {
        int64_t at = ((int64_t)row * a.heads + group * a.per_group) * PREFILL_DIM + 8 * i;
        store_unit(a.attention, a.attention_bf16, at, ((const quad *)half)[i]);
    }
}

template <int FORMAT> DEVICE void fold_rows(const prefill_blocks_args &a, blocks_control &control)
{
    const prefill_lists &l = a.lists;
    int thread = (int)threadIdx.x % WARPGROUP, units = l.count * l.heads, known = -1;
    if (thread == 0) control.unit[0] = (int)draw(l.progress + 1, 1);
    threads_meet<4, WARPGROUP>();
    for (int turn = 0;; turn ^= 1) {
        int unit = control.unit[turn];
        if (unit >= units) return;
        int drawn = thread == 0 ? (int)draw(l.progress + 1, 1) : 0;
        int row = unit % l.count, list = unit / l.count * l.waves + row / PREFILL_WAVE;
        if (list != known && thread % CUDA_WARP == 0)
            await_inline(partials_of(l, list), (uint32_t)l.totals[2 * list + 1]);
        WARP_SYNC();
        known = list;
        fold_row<FORMAT>(a, list, row % PREFILL_WAVE, control.half);
        if (thread == 0) control.unit[turn ^ 1] = drawn;
        threads_meet<4, WARPGROUP>();
        if (thread == 0) arrive(folded_of(l, list), 1);
    }
}

template <int FORMAT> DEVICE void prefill_blocks(const prefill_blocks_args &a)
{
    unsigned char *pages = TILES(unsigned char), *queries = pages + PREFILL_RING * 2 * PAGE_BYTES;
    blocks_control *control = (blocks_control *)(queries + MULTIPLIERS * 2 * QUERY_BYTES);
    blocks_ring ring = {pages, control, 0, 0};
    int group = threadIdx.x / WARPGROUP;
    if (threadIdx.x < 2 * MULTIPLIERS) arrivals_init(control->asked[0] + threadIdx.x, OWN_ROWS);
    open_stages(control->full, control->empty, PREFILL_RING);
    if (group == MULTIPLIERS) {
        registers_give<104>();
        decode_items<FORMAT>(a, ring);
    } else if (group > MULTIPLIERS) {
        registers_give<120>();
        fold_rows<FORMAT>(a, *control);
    } else {
        registers_take<144>();
        multiply_items(a, ring, queries + group * 2 * QUERY_BYTES, group);
    }
}

#define PREFILL_BLOCKS_STAY(name, FORMAT)                                                                              \
    KERNEL_OF(prefill_blocks_##name, prefill_blocks_args, PREFILL_BLOCKS_THREADS, 1) { prefill_blocks<FORMAT>(a); }

PREFILL_BLOCKS_STAY(bf16, KERNEL_CACHE_BF16)
PREFILL_BLOCKS_STAY(fp8, KERNEL_CACHE_FP8)
PREFILL_BLOCKS_STAY(nvfp4, KERNEL_CACHE_NVFP4)
PREFILL_BLOCKS_STAY(nvfp4_e4m3, CACHED_NVFP4_E4M3)
