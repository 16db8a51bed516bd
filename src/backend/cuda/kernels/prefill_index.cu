/*
 * Scores of blocks for many rows on Hopper: those of index.cu, bit for bit, on warpgroups.
 *
 *     m_b = max over the visible tokens j of block b of index_q_r . index_k_j
 *
 * A thread block has PREFILL_COLUMNS index queries, of 64 rows with four heads, in shared memory and lets a span of
 * blocks pass: one warpgroup decodes each block once, as bf16, PREFILL_KEYS of them on their way, and two warpgroups
 * multiply, 128 queries each as two tiles: S = Q K^T (m64n128k16, both from shared memory); while the second tile is
 * multiplied the maxima of the first one's rows are taken. One fp32 a query and block leaves, four blocks at a time.
 *
 * Operations of a query and block: 2 * 128 * 128; 8,192 rows of four heads over 480 blocks: 0.52 TFLOP, 0.54 ms at the 957
 * TFLOP/s that were measured. Per block and thread block: 2,048 cycles of the tensor cores (256 x 128 x 128, 2,048 products a
 * cycle); decoding 16,384 values, 560 instructions a warp, half of which go through a pipe of half the rate, and 256 cycles of
 * stores; maxima, 80 instructions a warp and tile. Bytes: 9,216 of NVFP4 a block and 1,024 of scores, for 8.4 MFLOP: the
 * second-level cache sends 0.6 GB. Bound: products. Measured on an H200, 2026-12-01, 8,192 rows at 64K: 0.25 ms for one head and
 * 0.90 for four, 521 and 572 TFLOP/s (0.38 and 1.23 when decoding took 1,170 instructions and waited for memory in each block).
 *
 * Shared memory 193 KB: one thread block of 384 threads a multiprocessor.
 */
#include "backend/cuda/kernels/prefill.cuh"

enum {
    LINES = PREFILL_COLUMNS / MULTIPLIERS, /* queries of one, two tiles of 64 */
    INDEX_HALF = PREFILL_COLUMNS * LINE_BYTES,
};

/* Behind the tiles. */
struct prefill_index_control {
    arrivals full[PREFILL_KEYS], empty[PREFILL_KEYS];
};
static_assert(sizeof(prefill_index_control) <= PREFILL_INDEX_CONTROL, "the host gives that much");

struct prefill_keys {
    unsigned char *pages; /* [PREFILL_KEYS] */
    prefill_index_control *control;
    int stage, turn;
};
DEVICE void next_keys(prefill_keys &ring)
{
    if (++ring.stage == PREFILL_KEYS) ring.stage = 0, ring.turn ^= 1;
}

/* Rows [row, end) of one sequence in the tile, and the blocks [begin, seen) that one of them sees; none of padding, and
 * where nobody needs them. */
struct prefill_run {
    int row, end, sequence, position, begin, seen;
};

DEVICE prefill_run run_from(const prefill_index_args &a, int row, int stop)
{
    prefill_run r = {row, row + 1, a.rows.sequence[row], a.rows.position[row], 0, 0};
    while (r.end < stop && a.rows.sequence[r.end] == r.sequence) r.end++;
    int visible = (r.position + (r.end - row) - 1) / CUDA_BLOCK_TOKENS + 1;
    r.begin = a.first + (int)blockIdx.y * a.run;
    r.seen = min(min(r.begin + a.run, a.first + a.count), visible);
    if (r.sequence < 0 || (visible <= a.least && !a.fill)) r.seen = r.begin;
    return r;
}

DEVICE const uint8_t *page_at(const prefill_index_args &a, const int32_t *table, int b)
{
    return a.cache.base + table[b] * a.cache.row_bytes + a.layer_offset;
}

/* The decoding warpgroup. What it decodes was asked for a whole block before. */
template <int FORMAT> DEVICE void decode_keys(const prefill_index_args &a, prefill_keys ring, int first, int stop)
{
    for (int row = first; row < stop;) {
        prefill_run r = run_from(a, row, stop);
        const int32_t *table = a.rows.block_table + (int64_t)r.sequence * a.rows.block_table_stride;
        enum { AHEAD = raw_page<FORMAT>::PARTS == 1 }; /* a whole page fits into registers, and the next one beside it */
        raw_page<FORMAT> keys, next;
        const uint8_t *data = r.begin < r.seen ? page_at(a, table, r.begin) : nullptr;
        if (AHEAD && r.begin < r.seen) load_page<FORMAT>(next, 0, data, data + a.cache.index_scales, false);
        for (int b = r.begin; b < r.seen; b++) {
            const uint8_t *behind = b + 1 < r.seen ? page_at(a, table, b + 1) : nullptr;
            if (AHEAD) keys = next;
            if (AHEAD && behind) load_page<FORMAT>(next, 0, behind, behind + a.cache.index_scales, false);
            arrivals_wait(ring.control->empty + ring.stage, ring.turn ^ 1);
            for (int part = 0; part < raw_page<FORMAT>::PARTS; part++) {
                if (!AHEAD) load_page<FORMAT>(keys, part, data, data + a.cache.index_scales, false);
                store_page<FORMAT, PAGE_INDEX>(keys, part, ring.pages + ring.stage * PAGE_BYTES, CUDA_BLOCK_TOKENS);
            }
            data = behind;
            others_read();
            arrivals_come(ring.control->full + ring.stage);
            next_keys(ring);
        }
        row = r.end;
    }
}

/* Queries of the tile as A, in the order of the keys; zeros where there are none. By both multiplying warpgroups. */
template <int FORMAT> DEVICE void load_index_queries(const prefill_index_args &a, int first, int stop, unsigned char *tile)
{
    int line = threadIdx.x, lines = (stop - first) * a.heads;
    static_assert(PREFILL_COLUMNS == MULTIPLIERS * WARPGROUP, "a thread has a line");
    for (int c = 0; c < 4; c++) {
        float x[4][8] = {};
        quad unit[4];
        if (line < lines)
            fetch_query<FORMAT, PAGE_INDEX>(a.q + ((int64_t)first * a.heads + line) * PREFILL_DIM, c, x);
        order_query<FORMAT, PAGE_INDEX>(x, unit);
        UNROLL for (int j = 0; j < 4; j++)
            *(quad *)(tile + c / 2 * INDEX_HALF + tile_unit(line, c % 2 * 4 + j)) = unit[j];
    }
}

/* Largest score of the lines g and g + 8 of this warp, the same in four lanes. tokens: how many of the block each sees. */
DEVICE void take_maxima(const float (&s)[64], const int tokens[2], float best[2])
{
    int t = threadIdx.x % 4;
    best[0] = best[1] = -INFINITY;
    if (min(tokens[0], tokens[1]) >= CUDA_BLOCK_TOKENS) {
        UNROLL for (int i = 0; i < 64; i++) best[i / 2 % 2] = fmaxf(best[i / 2 % 2], s[i]); /* leaves NaN out */
    } else {
        UNROLL for (int i = 0; i < 64; i++)
            if (i / 4 * 8 + 2 * t + i % 2 < tokens[i / 2 % 2]) best[i / 2 % 2] = fmaxf(best[i / 2 % 2], s[i]);
    }
    UNROLL for (int r = 0; r < 2; r++) {
        best[r] = fmaxf(best[r], lane_xor(best[r], 1));
        best[r] = fmaxf(best[r], lane_xor(best[r], 2));
    }
}

template <int FORMAT>
DEVICE void multiply_queries(const prefill_index_args &a, prefill_keys ring, const unsigned char *queries, int first, int stop)
{
    int thread = threadIdx.x % WARPGROUP, lane = thread % CUDA_WARP, g = lane / 4, t = lane % 4;
    int begin = threadIdx.x / WARPGROUP * LINES, line[4]; /* this thread's, two of each tile */
    UNROLL for (int i = 0; i < 4; i++) line[i] = begin + i / 2 * 64 + thread / CUDA_WARP * 16 + i % 2 * 8 + g;
    const unsigned char *own = queries + begin * LINE_BYTES;
    for (int row = first; row < stop;) {
        prefill_run r = run_from(a, row, stop);
        int from = (r.row - first) * a.heads, to = (r.end - first) * a.heads;
        float *scores[4], kept[4] = {0, 0, 0, 0}; /* lane t keeps blocks 4n + t */
        int tokens[4];                            /* from the start of the sequence on */
        bool there[4];
        UNROLL for (int i = 0; i < 4; i++) {
            there[i] = line[i] >= from && line[i] < to;
            scores[i] = a.scores + ((int64_t)first * a.heads + line[i]) * a.max_blocks;
            tokens[i] = r.position + 1 + (line[i] - from) / a.heads;
        }
        bool takes[2]; /* tiles that have rows of the run */
        UNROLL for (int h = 0; h < 2; h++) takes[h] = begin + 64 * h < to && begin + 64 * (h + 1) > from;
        for (int b = r.begin; b < r.seen; b++) {
            const unsigned char *keys = ring.pages + ring.stage * PAGE_BYTES;
            float s[2][64], best[4];
            arrivals_wait(ring.control->full + ring.stage, ring.turn);
            WARP_SYNC(); /* all lanes have been let through before one of them gives the stage back */
            if (takes[0] || takes[1]) {
                multiply_keys(s[0], own, INDEX_HALF, keys);
                multiply_keys(s[1], own + 64 * LINE_BYTES, INDEX_HALF, keys);
                UNROLL for (int h = 0; h < 2; h++) {
                    if (h == 0) {
                        wgmma_wait<1>(s[0]);
                    } else {
                        wgmma_wait<0>(s[1]);
                        if (lane == 0) arrivals_come(ring.control->empty + ring.stage);
                    }
                    int seen[2] = {tokens[2 * h] - b * CUDA_BLOCK_TOKENS, tokens[2 * h + 1] - b * CUDA_BLOCK_TOKENS};
                    take_maxima(s[h], seen, best + 2 * h);
                }
            } else if (lane == 0) {
                arrivals_come(ring.control->empty + ring.stage);
            }
            next_keys(ring);
            int place = b % 4;
            UNROLL for (int i = 0; i < 4; i++) {
                if (place == t) kept[i] = best[i] * cached_undo<FORMAT>();
                if (place != 3 && b + 1 < r.seen) continue;
                int block = b - place + t;
                if (there[i] && block >= r.begin && block <= b) scores[i][block] = kept[i];
            }
        }
        int end = min(r.begin + a.run, a.first + a.count);
        for (int b = max(r.seen, r.begin) + t; b < end && a.fill && r.sequence >= 0; b += 4)
            UNROLL for (int i = 0; i < 4; i++)
                if (there[i]) scores[i][b] = -INFINITY;
        row = r.end;
    }
}

template <int FORMAT> DEVICE void prefill_index(const prefill_index_args &a)
{
    unsigned char *pages = TILES(unsigned char), *queries = pages + PREFILL_KEYS * PAGE_BYTES;
    prefill_index_control *control = (prefill_index_control *)(queries + 2 * INDEX_HALF);
    prefill_keys ring = {pages, control, 0, 0};
    int group = threadIdx.x / WARPGROUP, first = (int)blockIdx.x * a.tile, stop = min(first + a.tile, a.rows.count);
    open_stages(control->full, control->empty, PREFILL_KEYS);
    if (group == MULTIPLIERS) {
        registers_give<104>();
        decode_keys<FORMAT>(a, ring, first, stop);
    } else {
        registers_take<200>();
        load_index_queries<FORMAT>(a, first, stop, queries);
        others_read();
        threads_meet<1, MULTIPLIERS * WARPGROUP>();
        multiply_queries<FORMAT>(a, ring, queries, first, stop);
    }
}

#define PREFILL_INDEX(name, FORMAT)                                                                                    \
    KERNEL_OF(prefill_index_##name, prefill_index_args, PREFILL_THREADS, 1) { prefill_index<FORMAT>(a); }

PREFILL_INDEX(bf16, KERNEL_CACHE_BF16)
PREFILL_INDEX(fp8, KERNEL_CACHE_FP8)
PREFILL_INDEX(nvfp4, KERNEL_CACHE_NVFP4)
PREFILL_INDEX(nvfp4_e4m3, CACHED_NVFP4_E4M3)
