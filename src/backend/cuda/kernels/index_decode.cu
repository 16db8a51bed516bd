/*
 * Scores and selection of index.cu in one launch, for decoding: few rows of a sequence, a cache of NVFP4 with 128 dims.
 *
 * A thread block takes a run of one sequence's blocks; in it a warp takes a block, or half of one, or with 8 columns a quarter,
 * where there are too few blocks for all warps of the GPU. Keys are the A operand of m16n8k16 in key_order: a lane's 16 bytes
 * are a quarter of a key, decoded word by word into operands, 16 tokens at a time, with more columns 32, so that one load of
 * the queries' operand from shared memory serves two products. The next tokens, also of the next block, are on their way
 * meanwhile, but with 32 columns, for which there are no registers. The largest score of a block is taken between lanes once a
 * block. Products and their order are index.cu's, so the bits are.
 *
 * What a run leaves is its scores, 4 bytes a block and head beside the 9,216 that were read: lists of the best of every run
 * would be longer, since a run has about as many blocks as a list. The thread block that arrives last selects for all rows of
 * the run (select.cuh), each head by as many warps as there are; the count goes back to 0 for the next launch.
 *
 * Bytes of a block: 9,216, whatever the number of columns (index heads x rows, at most 32): of one sequence of 128K 9.4 MB, at
 * 4.3 TB/s 2.2 us, of eight 17.6 us, of 512K 8.8 us. Instructions of a block and warp with 8 columns: 64 words of eight codes,
 * 17 each (4 masks, 4 multiplications, 4 masks and a shift, 4 products with the scale) and 160 for the scales, 64 MMAs, 32
 * loads: about 1,450, so a multiprocessor that issues three a cycle takes 480 cycles; its share of the memory brings a block in
 * 497. With 32 columns the MMAs come to 256 and the bound is theirs.
 */
#include "backend/cuda/kernels/index.h"

#include "backend/cuda/kernels/cache.cuh"
#include "backend/cuda/kernels/select.cuh"

enum {
    DIM = 128,
    FORMAT = KERNEL_CACHE_NVFP4,
    KEY_BYTES = DIM / 2,
    SCALE_BYTES = DIM / 16,
    CHUNKS = 4, /* words of a lane's quarter: two steps of the product each */
};

/* Rows that share their sequence's blocks. */
struct decode_run {
    int row, rows, sequence, position; /* the first row, how many, its position */
    int columns, visible;              /* blocks that the last row sees */
};

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/* Of tokens 8r + g of 16 STEPS, a lane's quarter of each key and the scales of its two groups. */
template <int STEPS> struct raw_keys {
    quad key[2 * STEPS];
    uint32_t scales[2 * STEPS];
};

/* Where a lane's keys and scales of a piece of a block lie. */
struct key_place {
    const uint8_t *key, *scale;
};

/* The piece `piece` pieces behind. */
template <int STEPS> DEVICE void load_keys(raw_keys<STEPS> &raw, const key_place &from, int piece)
{
    UNROLL for (int r = 0; r < 2 * STEPS; r++) {
        int token = piece * (16 * STEPS) + 8 * r;
        raw.key[r] = load_once(from.key + token * KEY_BYTES);
        raw.scales[r] = *(const uint16_t *)(from.scale + token * SCALE_BYTES);
    }
}

/* Scores of a piece; query: [tile][chunk][lane] in shared memory. */
template <int TILES, int STEPS>
DEVICE void score_keys(const raw_keys<STEPS> &raw, const quad *query, float s[STEPS][TILES][4])
{
    int lane = threadIdx.x % CUDA_WARP;
    uint32_t two[2 * STEPS];
    UNROLL for (int n = 0; n < STEPS; n++)
        UNROLL for (int j = 0; j < TILES; j++)
            UNROLL for (int c = 0; c < 4; c++) s[n][j][c] = 0;
    bool plain = true;
    UNROLL for (int r = 0; r < 2 * STEPS; r++) plain &= plain_scales(raw.scales[r]);
    if (plain)
        UNROLL for (int r = 0; r < 2 * STEPS; r++) two[r] = plain_units(raw.scales[r]);
    else
        UNROLL for (int r = 0; r < 2 * STEPS; r++) two[r] = any_units(raw.scales[r]);
    UNROLL for (int c = 0; c < CHUNKS; c++) {
        uint32_t pair[2 * STEPS][4];
        UNROLL for (int r = 0; r < 2 * STEPS; r++)
            decode_eight<FORMAT>(raw.key[r].w + c, unit_of_two(two[r], c / 2), pair[r]);
        UNROLL for (int j = 0; j < TILES; j++) {
            quad q = query[(j * CHUNKS + c) * CUDA_WARP + lane];
            UNROLL for (int n = 0; n < STEPS; n++)
                UNROLL for (int k = 0; k < 2; k++) {
                    uint32_t keys[4] = {pair[2 * n][2 * k], pair[2 * n + 1][2 * k], pair[2 * n][2 * k + 1],
                                        pair[2 * n + 1][2 * k + 1]};
                    mma_bf16(s[n][j], keys, q.w + 2 * k);
                }
        }
    }
}

/* They meet the best so far. sees: the tokens of the piece that the run's first row sees, or all. */
template <int TILES, int STEPS>
DEVICE void take_scores(const index_decode_args &a, const float s[STEPS][TILES][4], int sees, float best[TILES][2])
{
    int lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    if (sees >= 16 * STEPS) {
        UNROLL for (int j = 0; j < TILES; j++)
            UNROLL for (int r = 0; r < 2 * STEPS; r++)
                UNROLL for (int c = 0; c < 2; c++) /* fmaxf leaves NaN out */
                    best[j][c] = fmaxf(best[j][c], s[r / 2][j][r % 2 * 2 + c]);
        return;
    }
    UNROLL for (int j = 0; j < TILES; j++)
        UNROLL for (int c = 0; c < 2; c++) {
            int own = sees + (8 * j + 2 * t + c) / a.heads; /* of the column's row */
            UNROLL for (int r = 0; r < 2 * STEPS; r++)
                if (8 * r + g < own) best[j][c] = fmaxf(best[j][c], s[r / 2][j][r % 2 * 2 + c]);
        }
}

/* The queries of the run's rows as operands, in the order in which keys are decoded. */
template <int TILES> DEVICE void load_columns(const float *q, int columns, quad *query)
{
    for (int i = threadIdx.x; i < TILES * CHUNKS * CUDA_WARP; i += DECODE_WARPS * CUDA_WARP) {
        int lane = i % CUDA_WARP, c = i / CUDA_WARP % CHUNKS, column = i / CUDA_WARP / CHUNKS * 8 + lane / 4;
        const float *from = q + (int64_t)column * DIM + lane % 4 * (DIM / 4) + 8 * c;
        quad out = {{0, 0, 0, 0}};
        if (column < columns)
            UNROLL for (int p = 0; p < 4; p++) out.w[p] = bf16_pair(from[p], from[p + 4]);
        query[i] = out;
    }
}

/* Blocks [begin, end) of the run, those that its last row sees among them. */
template <int TILES>
DEVICE void score_blocks(const index_decode_args &a, const decode_run &run, int begin, int end, quad *query, float *maxima)
{
    enum {
        STEPS = TILES == 1 ? 1 : 2,
        RING = TILES == 4 ? 1 : 2, /* pieces on their way */
        PIECES = CUDA_BLOCK_TOKENS / 16 / STEPS,
        RING_TOKENS = 16 * STEPS * RING,
    };
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    int at_once = DECODE_WARPS / a.parts, first = warp % a.parts * (PIECES / a.parts), last = first + PIECES / a.parts;
    const int32_t *table = a.rows.block_table + (int64_t)run.sequence * a.rows.block_table_stride;
    const uint8_t *keys = a.cache.base + a.layer_offset + (first * (16 * STEPS) + g) * KEY_BYTES + 16 * t;
    int scales = (int)a.cache.index_scales + (first * (16 * STEPS) + g) * (SCALE_BYTES - KEY_BYTES) + (2 - 16) * t;
    int b = begin + warp / a.parts;
    raw_keys<STEPS> raw[RING];
    key_place from = {keys, keys};
    if (b < end) {
        from.key = keys + table[b] * a.cache.row_bytes, from.scale = from.key + scales;
        UNROLL for (int n = 0; n < RING; n++) load_keys(raw[n], from, n);
    }
    load_columns<TILES>(a.q + (int64_t)run.row * a.heads * DIM, run.columns, query);
    BLOCK_SYNC();
    float best[TILES][2];
    UNROLL for (int j = 0; j < TILES; j++) best[j][0] = best[j][1] = -INFINITY;
    for (; b < end; b += at_once) {
        int next = b + at_once;
        const uint8_t *then = next < end ? keys + table[next] * a.cache.row_bytes : keys;
        UNROLL for (int j = 0; j < TILES; j++) best[j][0] = best[j][1] = -INFINITY;
        for (int start = first; start < last; start += RING) {
            int sees = run.position + 1 - b * CUDA_BLOCK_TOKENS - start * (16 * STEPS);
            bool more = true; /* pieces behind those that have been asked for */
            if (start + RING < last)
                from.key += RING_TOKENS * KEY_BYTES, from.scale += RING_TOKENS * SCALE_BYTES;
            else
                more = next < end, from.key = then, from.scale = then + scales;
            UNROLL for (int n = 0; n < RING; n++) {
                float s[STEPS][TILES][4];
                score_keys<TILES, STEPS>(raw[n], query, s);
                if (more) load_keys(raw[n], from, n);
                take_scores<TILES, STEPS>(a, s, sees - n * (16 * STEPS), best);
            }
        }
        UNROLL for (int j = 0; j < TILES; j++)
            UNROLL for (int c = 0; c < 2; c++) {
                UNROLL for (int mask = 4; mask < 32; mask *= 2) best[j][c] = fmaxf(best[j][c], lane_xor(best[j][c], mask));
                int column = 8 * j + 2 * t + c;
                if (a.parts == 1 && g == 0 && column < run.columns)
                    a.scores[((int64_t)run.row * a.heads + column) * a.max_blocks + b] = best[j][c] * cached_undo<FORMAT>();
            }
    }
    if (a.parts == 1) return;
    if (g == 0)
        UNROLL for (int j = 0; j < TILES; j++)
            UNROLL for (int c = 0; c < 2; c++) maxima[warp * (8 * TILES) + 8 * j + 2 * t + c] = best[j][c];
    BLOCK_SYNC();
    for (int i = threadIdx.x; i < at_once * run.columns; i += DECODE_WARPS * CUDA_WARP) {
        int column = i % run.columns, block = begin + i / run.columns;
        const float *parts = maxima + i / run.columns * a.parts * (8 * TILES) + column;
        float most = parts[0];
        for (int p = 1; p < a.parts; p++) most = fmaxf(most, parts[p * (8 * TILES)]);
        if (block < end)
            a.scores[((int64_t)run.row * a.heads + column) * a.max_blocks + block] = most * cached_undo<FORMAT>();
    }
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

/* True: the row replays, and its lists are taken from there. Whole warps ask, one head each. */
DEVICE bool replayed(const index_decode_args &a, int row, int head)
{
    enum { ROW_REPLAY_BLOCKS = 2 };
    int lane = threadIdx.x % CUDA_WARP;
    if (!(a.rows.flags[row] & ROW_REPLAY_BLOCKS)) return false;
    int64_t at = ((int64_t)row * a.heads + head) * a.top;
    const int32_t *from = a.rows.replay_blocks + (int64_t)a.layer * a.rows.count * a.heads * a.top;
    if (lane < a.top) a.blocks[at + lane] = from[at + lane];
    return true;
}

/* Lists of rows that see no more than `top` blocks, or none: they take all. */
DEVICE void take_all(const index_decode_args &a, int row, int rows, bool none)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    for (int i = warp; i < rows * a.heads; i += DECODE_WARPS) {
        int r = row + i / a.heads;
        if (replayed(a, r, i % a.heads)) continue;
        int visible = none ? 0 : a.rows.position[r] / CUDA_BLOCK_TOKENS + 1;
        if (lane < a.top) a.blocks[((int64_t)r * a.heads + i % a.heads) * a.top + lane] = lane < visible ? lane : -1;
    }
}

/* The best blocks of a row and head that `part` of `parts` warps finds, sorted. */
DEVICE uint64_t choose_part(const index_decode_args &a, int row, int head, int part, int parts, uint64_t *room)
{
    enum { RUN = 16 };
    int lane = threadIdx.x % CUDA_WARP, visible = a.rows.position[row] / CUDA_BLOCK_TOKENS + 1;
    const float *scores = a.scores + ((int64_t)row * a.heads + head) * a.max_blocks;
    uint64_t list = 0;
    for (int from = part * RUN * CUDA_WARP; from < visible; from += parts * RUN * CUDA_WARP) {
        float score[RUN];
        uint64_t key[RUN];
        UNROLL for (int i = 0; i < RUN; i++) {
            int b = from + i * CUDA_WARP + lane;
            score[i] = b < visible ? load_fresh(scores + b) : 0;
        }
        UNROLL for (int i = 0; i < RUN; i++) {
            int b = from + i * CUDA_WARP + lane;
            key[i] = b < visible ? key_of(score[i], b, b >= visible - a.local) : 0;
        }
        list = keep_best_of<RUN>(list, a.top, key, room);
    }
    return list;
}

/* Lists of all rows of a run whose scores are there. lists, rooms: [warps][32]. */
DEVICE void choose_blocks(const index_decode_args &a, const decode_run &run, uint64_t *lists, uint64_t *rooms)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    int parts = run.columns < DECODE_WARPS ? DECODE_WARPS / run.columns : 1, teams = DECODE_WARPS / parts;
    int part = warp % parts;
    for (int column = warp / parts; column - warp / parts < run.columns; column += teams) {
        bool mine = warp < teams * parts && column < run.columns;
        int row = run.row + column / a.heads, head = column % a.heads;
        if (mine && replayed(a, row, head)) mine = false;
        uint64_t list = mine ? choose_part(a, row, head, part, parts, rooms + warp * CUDA_WARP) : 0;
        if (parts > 1) { /* then there is one turn */
            lists[warp * CUDA_WARP + lane] = list;
            BLOCK_SYNC();
            uint64_t other[DECODE_WARPS];
            UNROLL for (int p = 0; p < DECODE_WARPS; p++)
                other[p] = p < parts && warp + p < DECODE_WARPS ? lists[(warp + p) * CUDA_WARP + lane] : 0;
            if (mine && part == 0) list = keep_best_of<DECODE_WARPS>(0, a.top, other, rooms + warp * CUDA_WARP);
        }
        if (mine && part == 0) list_blocks(list, a.top, a.blocks + ((int64_t)row * a.heads + head) * a.top);
    }
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

template <int TILES> DEVICE void index_decode(const index_decode_args &a)
{
    SHARED(quad, query, TILES *CHUNKS *CUDA_WARP);
    SHARED(float, maxima, DECODE_WARPS * 8 * TILES);
    SHARED(uint64_t, lists, DECODE_WARPS *CUDA_WARP);
    SHARED(uint64_t, rooms, DECODE_WARPS *CUDA_WARP);
    SHARED(uint32_t, before, 1);
    decode_run run;
    int row = blockIdx.x * a.group, end = a.group > 1 ? min(row + a.group, a.rows.count) : a.rows.count;
    run.row = row, run.rows = 1;
    run.sequence = a.rows.sequence[row], run.position = a.rows.position[row];
    if (run.sequence < 0) {
        if (blockIdx.y == 0) take_all(a, row, a.group > 1 ? end - row : 1, true);
        return;
    }
    if (a.group == 1 && row > 0 && a.rows.sequence[row - 1] == run.sequence) return; /* another one's run */
    while (row + run.rows < end && a.rows.sequence[row + run.rows] == run.sequence) run.rows++;
    run.columns = run.rows * a.heads;
    run.visible = (run.position + run.rows - 1) / CUDA_BLOCK_TOKENS + 1;
    if (blockIdx.y == 0 && a.group > 1 && row + run.rows < end) take_all(a, row + run.rows, end - row - run.rows, true);
    if (run.visible <= a.top) {
        if (blockIdx.y == 0) take_all(a, row, run.rows, false);
        return;
    }
    int first = (int)blockIdx.y * a.run;
    if (first >= run.visible) return;
    score_blocks<TILES>(a, run, first, min(first + a.run, run.visible), query, maxima);
    BLOCK_SYNC();
    if (threadIdx.x == 0) before[0] = arrive(a.arrived + row);
    BLOCK_SYNC();
    if ((int)before[0] + 1 < (run.visible + a.run - 1) / a.run) return;
    choose_blocks(a, run, lists, rooms);
    if (threadIdx.x == 0) a.arrived[row] = 0;
}

KERNEL_OF(index_decode_8, index_decode_args, DECODE_WARPS *CUDA_WARP, 3) { index_decode<1>(a); }
KERNEL_OF(index_decode_16, index_decode_args, DECODE_WARPS *CUDA_WARP, 2) { index_decode<2>(a); }
KERNEL_OF(index_decode_32, index_decode_args, DECODE_WARPS *CUDA_WARP, 2) { index_decode<4>(a); }
