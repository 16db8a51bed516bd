/*
 * Sparse attention of many rows on Hopper where they choose different blocks: blocks stay and rows pass (the other form is
 * prefill_rows.cu).
 *
 * A thread block takes an item, a block and up to PREFILL_ITEM rows of a wave that take it (prefill_lists.cu). One
 * warpgroup decodes keys and values once, two warpgroups multiply, four rows of 16 heads at a time: the products and the
 * softmax of prefill.cuh. What a block gave a row, O_b, m_b and l_b in fp32, is a partial, and prefill_fold folds a row's
 * partials in ascending order of blocks:
 *
 *     M' = max(M, m_b),  L' = L 2^(M - M') + l_b 2^(m_b - M'),  O likewise;  out = O / L
 *
 * No product is wasted but those that fill up four rows, and a block is decoded once a wave; the price is the partials,
 * 8,320 bytes written and read, 1.06 MB a row of four KV heads. 8,192 rows: products 0.55 TFLOP, 0.7 ms at 790 TFLOP/s;
 * partials 8.7 GB, 2.0 ms at the memory's 4.3 TB/s. So they have to stay in the second-level cache as far as they can: a
 * wave is PREFILL_WAVE = 512 rows of one KV head, 68 MB, of which 50 MB are still there when they are read. The smaller
 * the wave, the fewer rows share a decoded block: 512 rows that take 16 of 512 blocks are 16 a block, four turns of four
 * rows, and 8,192 pairs are 15 us of products between two launches. Waves of 320 rows fit altogether; with 75 rows of
 * four heads, which fit too, a block has 2.3 rows.
 *
 * Per turn of both warpgroups, eight rows: 2,048 cycles of the tensor cores, 64 KB of partials, 64 KB of queries.
 *
 * Shared memory 195 KB: one thread block of 384 threads a multiprocessor; 192 registers for who multiplies, 120 for who
 * decodes.
 */
#include "backend/cuda/kernels/prefill.cuh"

/* A decoded block and the rows that it is for. */
struct blocks_stage {
    int32_t row[PREFILL_ITEM]; /* of the step */
    uint16_t place[PREFILL_ITEM], tokens[PREFILL_ITEM]; /* of the block in the row's list; that the row sees */
    int32_t count, last; /* 0 rows: there is no block; last: of this thread block */
    int32_t turns;       /* of four rows, before this one */
};

struct blocks_control {
    arrivals full[PREFILL_RING], empty[PREFILL_RING];
    blocks_stage stage[PREFILL_RING];
    int32_t row[PREFILL_ITEM], turns;
    uint32_t found;
};
static_assert(sizeof(blocks_control) <= PREFILL_CONTROL, "the host gives that much");

struct blocks_ring {
    unsigned char *pages; /* [PREFILL_RING][keys, values] */
    blocks_control *control;
    int stage, turn;
};
DEVICE void next_stage(blocks_ring &ring)
{
    if (++ring.stage == PREFILL_RING) ring.stage = 0, ring.turn ^= 1;
}

/* ---- The decoding warpgroup -------------------------------------------------------------------------------------- */

/* An item, and in the first threads a row each. */
struct blocks_work {
    prefill_item item;
    const uint8_t *head;
    int count, row, place, tokens;
    int least, most; /* tokens that rows see */
};

/* Item `number` of the wave; all threads of the warpgroup. */
DEVICE blocks_work find_rows(const prefill_blocks_args &a, blocks_control &control, int number)
{
    enum { WORDS = PREFILL_WAVE / 32 };
    int thread = (int)threadIdx.x % WARPGROUP, lane = thread % CUDA_WARP;
    const prefill_lists &l = a.lists;
    int64_t list = (int64_t)a.wave * l.heads + a.group;
    blocks_work w;
    w.item = l.items[list * PREFILL_WAVE * l.top + number];
    w.count = w.item.rows & 0xFFFF;
    w.head = a.cache.base + w.item.cached * a.cache.row_bytes + a.layer_offset + a.group * a.cache.head_bytes;
    threads_meet<3, WARPGROUP>(); /* the rows before have been read */
    if (thread < CUDA_WARP) { /* bits in ascending order */
        uint32_t bits = lane < WORDS ? l.takes[(list * l.keys + w.item.key) * WORDS + lane] : 0;
        int before = count_bits(bits);
        for (int step = 1; step < WORDS; step *= 2) {
            int other = lane_get(before, max(lane - step, 0));
            if (lane >= step) before += other;
        }
        before -= count_bits(bits) + (w.item.rows >> 16);
        for (; bits; bits &= bits - 1, before++)
            if (before >= 0 && before < w.count)
                control.row[before] = l.first + a.wave * PREFILL_WAVE + lane * 32 + count_bits((bits & (0u - bits)) - 1);
    }
    threads_meet<3, WARPGROUP>();
    w.row = control.row[min(thread, w.count - 1)];
    w.tokens = tokens_seen(l.rows.position[w.row], w.item.block);
    const int32_t *blocks = l.blocks + ((int64_t)w.row * l.heads + a.group) * l.top;
    w.place = l.top;
    for (int i = l.top; i-- > 0;)
        if (blocks[i] == w.item.block) w.place = i;
    /* Positions ascend with rows. */
    w.least = tokens_seen(l.rows.position[control.row[0]], w.item.block);
    w.most = tokens_seen(l.rows.position[control.row[w.count - 1]], w.item.block);
    return w;
}

/* Rows [first, first + count) of an item get its block, values from token `tokens` on as zeros. */
template <int FORMAT>
DEVICE void put_item(const prefill_blocks_args &a, blocks_ring &ring, prefill_block<FORMAT> &waiting, const blocks_work &w,
                     int first, int count, int tokens, bool last, const uint8_t *next)
{
    int place = (int)threadIdx.x % WARPGROUP - first;
    blocks_stage &stage = ring.control->stage[ring.stage];
    arrivals_wait(ring.control->empty + ring.stage, ring.turn ^ 1);
    if (place >= 0 && place < count) {
        stage.row[place] = w.row;
        stage.place[place] = (uint16_t)w.place;
        stage.tokens[place] = (uint16_t)w.tokens;
    }
    if (threadIdx.x % WARPGROUP == 0) {
        stage.count = count, stage.last = last, stage.turns = ring.control->turns;
        ring.control->turns += (count + OWN_ROWS - 1) / OWN_ROWS;
    }
    if (count) store_block(a.cache, waiting, ring.pages + ring.stage * (2 * PAGE_BYTES), w.head, tokens);
    others_read();
    arrivals_come(ring.control->full + ring.stage);
    if (next) load_block(a.cache, waiting, next);
    next_stage(ring);
}

template <int FORMAT> DEVICE void decode_items(const prefill_blocks_args &a, blocks_ring ring)
{
    blocks_control &control = *ring.control;
    prefill_block<FORMAT> waiting = {};
    blocks_work w = {}, then = {};
    int number = blockIdx.x, items = a.lists.item_counts[(int64_t)a.wave * a.lists.heads + a.group];
    if (threadIdx.x % WARPGROUP == 0) control.found = 0, control.turns = 0;
    if (number >= items) {
        put_item<FORMAT>(a, ring, waiting, w, 0, 0, 0, true, nullptr);
        return;
    }
    w = find_rows(a, control, number);
    load_block(a.cache, waiting, w.head);
    for (bool end = false; !end; w = then) {
        number += gridDim.x;
        end = number >= items;
        /* A value that some row does not see, and another does, is no number: each row by itself. */
        bool apart = w.least != w.most && not_finite(a.cache, waiting, w.head, w.least, &control.found);
        int first = 0, count = apart ? 1 : w.count;
        if (!end && !apart) then = find_rows(a, control, number); /* while the stages are full */
        do {
            int tokens = apart ? tokens_seen(a.lists.rows.position[control.row[first]], w.item.block) : w.most;
            put_item<FORMAT>(a, ring, waiting, w, first, count, tokens, end && first + count >= w.count,
                             end || apart ? nullptr : then.head);
            first += count;
        } while (first < w.count);
        if (!end && apart) {
            then = find_rows(a, control, number);
            load_block(a.cache, waiting, then.head);
        }
    }
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

/* Queries of row `i` of a stage, of no row if there are not so many. */
template <int FORMAT> DEVICE void fetch_row(const prefill_blocks_args &a, const blocks_stage &stage, int i, raw_queries &raw)
{
    const float *from = a.q + ((int64_t)stage.row[min(i, stage.count - 1)] * a.heads + a.group * a.per_group) * PREFILL_DIM;
    fetch_queries<FORMAT>(raw, i < stage.count ? from : nullptr, a.per_group);
}

/* Turns of four rows go to the warpgroups in turn, from item to item. While values are multiplied the queries of the next
 * turn come, to the other of two places. */
template <int FORMAT>
DEVICE void multiply_items(const prefill_blocks_args &a, blocks_ring ring, unsigned char *queries, int group)
{
    blocks_control &control = *ring.control;
    int own = threadIdx.x / CUDA_WARP % OWN_ROWS, place = 0;
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
            raw_queries raw;
            unsigned char *tile = queries + place * QUERY_BYTES;
            if (!ready) {
                fetch_row<FORMAT>(a, stage, i, raw);
                put_queries<FORMAT>(raw, tile);
                others_read();
            }
            multipliers_meet(group);
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
                WARP_SYNC();
            }
            ready = next != nullptr;
            if (ready) fetch_row<FORMAT>(a, *next, row, raw);
            wgmma_wait<0>(out);
            if (i < count) {
                int local = stage.row[i] - (a.lists.first + a.wave * PREFILL_WAVE), at = local * a.lists.top + stage.place[i];
                store_partial(a.partials + (int64_t)at * PREFILL_PARTIAL, maximum, sum, out);
            }
            place ^= 1;
            if (ready) {
                put_queries<FORMAT>(raw, queries + place * QUERY_BYTES);
                others_read();
            }
        }
        WARP_SYNC();
        if (threadIdx.x % CUDA_WARP == 0) arrivals_come(control.empty + ring.stage);
        next_stage(ring);
    }
}

template <int FORMAT> DEVICE void prefill_blocks(const prefill_blocks_args &a)
{
    unsigned char *pages = TILES(unsigned char), *queries = pages + PREFILL_RING * 2 * PAGE_BYTES;
    blocks_control *control = (blocks_control *)(queries + MULTIPLIERS * 2 * QUERY_BYTES);
    blocks_ring ring = {pages, control, 0, 0};
    int group = threadIdx.x / WARPGROUP;
    open_stages(control->full, control->empty, PREFILL_RING);
    if (group == MULTIPLIERS) {
        registers_give<120>();
        decode_items<FORMAT>(a, ring);
    } else {
        registers_take<192>();
        multiply_items<FORMAT>(a, ring, queries + group * 2 * QUERY_BYTES, group);
    }
}

#define PREFILL_BLOCKS_STAY(name, FORMAT)                                                                              \
    KERNEL_OF(prefill_blocks_##name, prefill_blocks_args, PREFILL_THREADS, 1) { prefill_blocks<FORMAT>(a); }

PREFILL_BLOCKS_STAY(bf16, KERNEL_CACHE_BF16)
PREFILL_BLOCKS_STAY(fp8, KERNEL_CACHE_FP8)
PREFILL_BLOCKS_STAY(nvfp4, KERNEL_CACHE_NVFP4)
PREFILL_BLOCKS_STAY(nvfp4_e4m3, CACHED_NVFP4_E4M3)

/* ---- Fold -------------------------------------------------------------------------------------------------------- */

/* A row of the wave: a warp has four tiles of eight dims, of all heads, and four partials on their way. */
template <int FORMAT> DEVICE void fold_row(const prefill_blocks_args &a)
{
    enum { TILES_OF_WARP = 4, RUN = 4, UNITS = PREFILL_DIM / 8 };
    SHARED(uint16_t, half, PREFILL_HEADS * PREFILL_DIM);
    const prefill_lists &l = a.lists;
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    int local = blockIdx.x, row = l.first + a.wave * PREFILL_WAVE + local, length = 0;
    const int32_t *list = l.blocks + ((int64_t)row * l.heads + a.group) * l.top;
    bool padding = l.rows.sequence[row] < 0;
    while (!padding && length < l.top && list[length] >= 0) length++;
    const float *partials = a.partials + (int64_t)local * l.top * PREFILL_PARTIAL;
    float maximum[2] = {0, 0}, sum[2] = {0, 0}, out[4 * TILES_OF_WARP] = {};
    for (int from = 0, same = 0; from < length; from += RUN) {
        float maxima[RUN][2], sums[RUN][2];
        quad outs[RUN][TILES_OF_WARP];
        UNROLL for (int n = 0; n < RUN; n++) {
            int i = from + n;
            if (i >= length) continue;
            if (i == 0 || list[i] != list[i - 1]) same = i; /* a block that a list names again has one partial */
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
    BLOCK_SYNC();
    for (int i = threadIdx.x; i < a.per_group * UNITS; i += blockDim.x) {
        int64_t at = ((int64_t)row * a.heads + a.group * a.per_group) * PREFILL_DIM + 8 * i;
        store_unit(a.attention, a.attention_bf16, at, ((const quad *)half)[i]);
    }
}

KERNEL(prefill_fold, prefill_blocks_args)
{
    if (a.cache.main == KERNEL_CACHE_NVFP4)
        fold_row<KERNEL_CACHE_NVFP4>(a);
    else
        fold_row<KERNEL_CACHE_BF16>(a);
}
