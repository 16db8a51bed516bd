/*
 * The selection the other way round: of a wave of rows, which of them take a block.
 *
 * A block of a run of rows is a key, and a key has a bit for every row of the wave: rows set their bits in any order, and
 * the bits are in ascending order of rows by themselves. What atomics do here has one outcome whatever their order: bits
 * that are set, and counts. One thread block a wave and KV head then makes the work list, in ascending order of keys, by
 * prefix sums.
 *
 * Bytes for 8,192 rows, 16 waves, 4 heads and 512 blocks: 2 MB of bits, cleared, set by 524,288 atomics, read once by
 * who takes the item; lists are read twice. Some microseconds; bound: launches.
 */
#include "backend/cuda/kernels/prefill.h"

#include "backend/cuda/kernels/kernel.cuh"

enum { WORDS = PREFILL_WAVE / 32 };

/* Zeros, before anything else; `counts` are behind `takes`. Grid: any. */
KERNEL(prefill_clear, prefill_lists)
{
    int64_t waves = (a.count + PREFILL_WAVE - 1) / PREFILL_WAVE, quads = (waves * a.heads * a.keys * (WORDS + 1) + 3) / 4;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += (int64_t)gridDim.x * blockDim.x)
        ((quad *)a.takes)[i] = quad{{0, 0, 0, 0}};
}

/* A thread for every place of a list. */
KERNEL(prefill_mark, prefill_lists)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int place = (int)(i % a.top), head = (int)(i / a.top % a.heads), row = (int)(i / a.top / a.heads), run = 0;
    if (row >= a.count) return;
    const int32_t *list = a.blocks + ((int64_t)(a.first + row) * a.heads + head) * a.top;
    int block = list[place];
    if (a.rows.sequence[a.first + row] < 0 || block < 0 || (place > 0 && list[place - 1] == block)) return;
    while (run + 1 < a.runs && a.run_row[run + 1] <= a.first + row) run++;
    int64_t key = ((int64_t)(row / PREFILL_WAVE) * a.heads + head) * a.keys + a.run_key[run] + block;
    set_bits(a.takes + key * WORDS + row % PREFILL_WAVE / 32, 1u << row % 32);
    count_up(a.counts + key, 1);
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

/* Grid: waves, heads; PREFILL_LIST_THREADS. */
KERNEL(prefill_list, prefill_lists)
{
    enum { WARPS = PREFILL_LIST_THREADS / CUDA_WARP };
    SHARED(int32_t, sums, WARPS);
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    int64_t list = (int64_t)blockIdx.x * a.heads + blockIdx.y;
    prefill_item *items = a.items + list * PREFILL_WAVE * a.top;
    int base = 0;
    for (int from = 0; from < a.keys; from += PREFILL_LIST_THREADS) {
        int key = from + (int)threadIdx.x, count = key < a.keys ? (int)a.counts[list * a.keys + key] : 0;
        int parts = (count + PREFILL_ITEM - 1) / PREFILL_ITEM, before = parts, all = 0;
        for (int step = 1; step < CUDA_WARP; step *= 2) {
            int other = lane_get(before, max(lane - step, 0));
            if (lane >= step) before += other;
        }
        if (lane == CUDA_WARP - 1) sums[warp] = before;
        BLOCK_SYNC();
        int at = base + before - parts;
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) at += sums[w];
            all += sums[w];
        }
        BLOCK_SYNC();
        base += all;
        if (parts == 0) continue;
        int run = 0;
        while (run + 1 < a.runs && a.run_key[run + 1] <= key) run++;
        int block = key - a.run_key[run], sequence = a.rows.sequence[a.run_row[run]];
        int cached = a.rows.block_table[(int64_t)sequence * a.rows.block_table_stride + block];
        for (int first = 0; first < count; first += PREFILL_ITEM, at++)
            items[at] = prefill_item{key, block, cached, first << 16 | min(count - first, (int)PREFILL_ITEM)};
    }
    if (threadIdx.x == 0) a.item_counts[list] = base;
}
