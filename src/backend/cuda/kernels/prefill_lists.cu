/*
 * The selection the other way round: of a wave of rows, which of them take a block.
 *
 * A block of a run of rows is a key, and a key has a bit for every row of the wave: rows set their bits in any order, and
 * the bits are in ascending order of rows by themselves. What atomics do here has one outcome whatever their order: bits
 * that are set, and counts. One thread block a list then makes the items, in ascending order of keys, by prefix sums, and
 * a thread for every place of a row's list finds by counting bits where it stands among the takers.
 *
 * Bytes for 8,192 rows, 32 waves, 4 heads and 512 blocks: 2 MB of bits, cleared, set by 524,288 atomics, read by those who
 * count; lists are read three times. Some microseconds; bound: launches.
 */
#include "backend/cuda/kernels/prefill.h"

#include "backend/cuda/kernels/kernel.cuh"

enum { WORDS = PREFILL_WAVE / 32 };

/* Zeros, before anything else; `counts` and `progress` are behind `takes`. Grid: any. */
KERNEL(prefill_clear, prefill_lists)
{
    int64_t lists = (int64_t)a.waves * a.heads, quads = (lists * a.keys * (WORDS + 1) + 2 * lists + 2 + 3) / 4;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += (int64_t)gridDim.x * blockDim.x)
        ((quad *)a.takes)[i] = quad{{0, 0, 0, 0}};
}

/* A place of a list, thread by thread. */
struct listed {
    int place, row; /* row: of these, counted from `first` */
    int block, list;
    int64_t key; /* over all lists; -1: the place is empty, or names the block before again */
};

DEVICE listed listed_of(const prefill_lists &a)
{
    listed l;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int head = (int)(i / a.top % a.heads), run = 0;
    l.place = (int)(i % a.top), l.row = (int)(i / a.top / a.heads), l.key = -1;
    if (l.row >= a.count) return l;
    const int32_t *blocks = a.blocks + ((int64_t)(a.first + l.row) * a.heads + head) * a.top;
    l.block = blocks[l.place];
    l.list = head * a.waves + l.row / PREFILL_WAVE;
    if (a.rows.sequence[a.first + l.row] < 0 || l.block < 0 || (l.place > 0 && blocks[l.place - 1] == l.block)) return l;
    while (run + 1 < a.runs && a.run_row[run + 1] <= a.first + l.row) run++;
    l.key = (int64_t)l.list * a.keys + a.run_key[run] + l.block;
    return l;
}

/* A thread for every place of a list. */
KERNEL(prefill_mark, prefill_lists)
{
    listed l = listed_of(a);
    if (l.key < 0) return;
    set_bits(a.takes + l.key * WORDS + l.row % PREFILL_WAVE / 32, 1u << l.row % 32);
    count_up(a.counts + l.key, 1);
}

/* A thread for every place of a list, behind prefill_list. */
KERNEL(prefill_takers, prefill_lists)
{
    listed l = listed_of(a);
    if (l.key < 0) return;
    const quad *bits = (const quad *)(a.takes + l.key * WORDS);
    int local = l.row % PREFILL_WAVE, before = (int)a.starts[l.key];
    UNROLL for (int i = 0; i < WORDS / 4; i++) {
        quad q = bits[i];
        UNROLL for (int w = 0; w < 4; w++) {
            int rows = local - (4 * i + w) * 32; /* of this word that are before */
            before += rows <= 0 ? 0 : count_bits(rows >= 32 ? q.w[w] : q.w[w] & ((1u << rows) - 1));
        }
    }
    int tokens = min(a.rows.position[a.first + l.row] + 1 - l.block * CUDA_BLOCK_TOKENS, (int)CUDA_BLOCK_TOKENS);
    a.takers[(int64_t)l.list * PREFILL_WAVE * a.top + before] = PREFILL_TAKER(local, l.place, tokens);
}

/* A thread for every place of a list: how far neighbours agree. */
KERNEL(prefill_alike, prefill_lists)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, before = i - (int64_t)a.heads * a.top;
    int place = (int)(i % a.top), row = (int)(i / a.top / a.heads);
    bool there = false, too = false;
    if (row > 0 && row < a.count && a.rows.sequence[row] >= 0 && a.rows.sequence[row] == a.rows.sequence[row - 1]) {
        there = a.blocks[i] >= 0;
        for (int j = 0; j < a.top; j++) too |= there && a.blocks[before - place + j] == a.blocks[i];
    }
    int all = count_bits(lane_ballot(there)), same = count_bits(lane_ballot(too));
    if (threadIdx.x % CUDA_WARP == 0 && all) count_up(a.alike, (uint32_t)all), count_up(a.alike + 1, (uint32_t)same);
}

/* Sum of `x` over the threads before this one, and over all. */
DEVICE int sum_before(int x, int32_t *sums, int *all)
{
    enum { WARPS = PREFILL_LIST_THREADS / CUDA_WARP };
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, before = x;
    for (int step = 1; step < CUDA_WARP; step *= 2) {
        int other = lane_get(before, max(lane - step, 0));
        if (lane >= step) before += other;
    }
    if (lane == CUDA_WARP - 1) sums[warp] = before;
    BLOCK_SYNC();
    before -= x;
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += sums[w];
        *all += sums[w];
    }
    BLOCK_SYNC();
    return before;
}

/* Grid: lists; PREFILL_LIST_THREADS. */
KERNEL(prefill_list, prefill_lists)
{
    SHARED(int32_t, sums, PREFILL_LIST_THREADS / CUDA_WARP);
    int64_t list = blockIdx.x;
    prefill_item *items = a.items + list * PREFILL_WAVE * a.top;
    int item_base = 0, taker_base = 0;
    for (int from = 0; from < a.keys; from += PREFILL_LIST_THREADS) {
        int key = from + (int)threadIdx.x, count = key < a.keys ? (int)a.counts[list * a.keys + key] : 0;
        int parts = (count + PREFILL_ITEM - 1) / PREFILL_ITEM, all_items, all_takers, run = 0;
        int at = item_base + sum_before(parts, sums, &all_items), start = taker_base + sum_before(count, sums, &all_takers);
        item_base += all_items, taker_base += all_takers;
        if (parts == 0) continue;
        a.starts[list * a.keys + key] = (uint32_t)start;
        while (run + 1 < a.runs && a.run_key[run + 1] <= key) run++;
        int block = key - a.run_key[run], sequence = a.rows.sequence[a.run_row[run]];
        int cached = a.rows.block_table[(int64_t)sequence * a.rows.block_table_stride + block];
        for (int first = 0; first < count; first += PREFILL_ITEM, at++)
            items[at] = prefill_item{block, cached, start + first, min(count - first, (int)PREFILL_ITEM)};
    }
    if (threadIdx.x == 0) a.totals[2 * list] = item_base, a.totals[2 * list + 1] = taker_base;
}
