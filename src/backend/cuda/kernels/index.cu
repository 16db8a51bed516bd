/*
 * Which blocks a row attends to on a sparse layer.
 *
 *     m_b = max over the visible tokens j of block b of index_q_r . index_k_j
 *     selected: the last `local` visible blocks, then the largest m_b, ties to the lower number, `top` in all
 *
 * Scores: a warp takes a block, 16 tokens at a time, all in registers: keys are the A operand (m16n8k16), index heads of the
 * rows that share the block its columns. Lane (g, t) owns a quarter of the dims of tokens g and g + 8, t-th in order, which
 * it loads in one piece: step k of the product takes elements 4k .. 4k+3 of each quarter (of NVFP4 in the order that
 * decoding gives), and the queries wait in shared memory in that order. Bytes of a block: 9,216 of NVFP4 with 128 dims, whatever
 * the number of columns; bound: memory for up to 8 columns, products from 32 on.
 *
 * Selection: select.cuh. Lists of warps are merged by the first one: in any order, since no two keys are equal.
 *
 * Few rows of NVFP4 with 128 dims have index_decode.cu, which gives the same bits.
 */
#include "backend/cuda/kernels/index.h"

#include "backend/cuda/kernels/cache.cuh"
#include "backend/cuda/kernels/select.cuh"

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/* Which element of a lane's quarter of DIM / 4 comes at half `half` of pair `pair` (0, 1) of step k. */
template <int FORMAT, int DIM> DEVICE constexpr int element_of(int k, int pair, int half)
{
    if (!is_nvfp4<FORMAT>()) return 4 * k + 2 * pair + half;
    return DIM == 16 ? pair + 2 * half : 8 * (k / 2) + k % 2 * 2 + pair + 4 * half;
}

/* A lane's quarter of a token's key. */
template <int FORMAT, int DIM> struct raw_key {
    enum {
        BYTES = cached_bytes<FORMAT>(DIM / 4),
        WORDS = BYTES > 4 ? BYTES / 4 : 1,
        UNITS = is_nvfp4<FORMAT>() && DIM == 128 ? 2 : 1,
    };
    uint32_t word[WORDS];
    uint32_t scale; /* of its groups, the first in the low byte */
};

template <int FORMAT, int DIM> DEVICE void load_key(raw_key<FORMAT, DIM> &key, const uint8_t *data, const uint8_t *scales, int token)
{
    typedef raw_key<FORMAT, DIM> raw;
    int t = threadIdx.x % 4;
    const uint8_t *at = data + token * (4 * raw::BYTES) + t * raw::BYTES;
    if constexpr (raw::BYTES >= 16) {
        UNROLL for (int i = 0; i < raw::BYTES / 16; i++) {
            quad q = load_once(at + 16 * i);
            UNROLL for (int w = 0; w < 4; w++) key.word[4 * i + w] = q.w[w];
        }
    } else if constexpr (raw::BYTES >= 4) {
        UNROLL for (int w = 0; w < raw::WORDS; w++) key.word[w] = ((const uint32_t *)at)[w];
    } else {
        key.word[0] = *(const uint16_t *)at;
    }
    if constexpr (is_nvfp4<FORMAT>()) {
        if constexpr (raw::UNITS == 2) {
            key.scale = *(const uint16_t *)(scales + token * (DIM / 16) + 2 * t);
        } else {
            key.scale = scales[token * (DIM / 16) + t * (DIM / 4) / 16];
        }
    }
}

/* The quarter's pairs in the order of element_of. */
template <int FORMAT, int DIM> DEVICE void decode_key(const raw_key<FORMAT, DIM> &key, uint32_t pair[DIM / 8])
{
    typedef raw_key<FORMAT, DIM> raw;
    if constexpr (DIM == 16) { /* four values */
        uint32_t out[4];
        if constexpr (is_nvfp4<FORMAT>()) {
            uint32_t spread = (key.word[0] & 0xFF) | (key.word[0] & 0xFF00) << 8;
            decode_eight<FORMAT>(&spread, nvfp4_unit(key.scale), out);
        } else if constexpr (FORMAT == KERNEL_CACHE_FP8) {
            e4m3_values(key.word[0], out);
        } else {
            out[0] = key.word[0], out[1] = key.word[1];
        }
        pair[0] = out[0], pair[1] = out[1];
    } else {
        enum { CHUNK = cached_bytes<FORMAT>(8) / 4 };
        uint32_t unit[raw::UNITS];
        unit[0] = 0;
        if constexpr (is_nvfp4<FORMAT>() && raw::UNITS == 2) nvfp4_units(key.scale, unit);
        if constexpr (is_nvfp4<FORMAT>() && raw::UNITS == 1) unit[0] = nvfp4_unit(key.scale);
        UNROLL for (int c = 0; c < DIM / 32; c++)
            decode_eight<FORMAT>(key.word + c * CHUNK, unit[raw::UNITS == 2 ? c / 2 : 0], pair + 4 * c);
    }
}

/* Queries of columns [0, columns) into shared memory, [column / 8][step][lane] two words each. */
template <int FORMAT, int DIM> DEVICE void load_columns(const float *q, int columns, uint32_t *shared)
{
    int tiles = (columns + 7) / 8;
    for (int i = threadIdx.x; i < tiles * (DIM / 16) * CUDA_WARP; i += INDEX_WARPS * CUDA_WARP) {
        int lane = i % CUDA_WARP, k = i / CUDA_WARP % (DIM / 16), column = i / CUDA_WARP / (DIM / 16) * 8 + lane / 4;
        const float *from = q + (int64_t)column * DIM + lane % 4 * (DIM / 4);
        UNROLL for (int pair = 0; pair < 2; pair++)
            shared[2 * i + pair] = column < columns ? bf16_pair(from[element_of<FORMAT, DIM>(k, pair, 0)],
                                                                from[element_of<FORMAT, DIM>(k, pair, 1)])
                                                    : 0;
    }
}

/* What the rows that share a block have in common. */
struct index_tile {
    int row, rows, position, columns; /* first row, how many, the first one's position */
};

/* The scores of 16 tokens from `from` on meet the best so far. `first_tokens`: that the first row sees. */
template <int TILES>
DEVICE void take_scores(const index_score_args &a, const float s[4], int j, int from, int first_tokens, float best[TILES][2])
{
    int lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    if (from + 16 <= first_tokens) {
        UNROLL for (int c = 0; c < 4; c++) best[j][c % 2] = fmaxf(best[j][c % 2], s[c]); /* leaves NaN out */
        return;
    }
    UNROLL for (int c = 0; c < 4; c++) {
        int sees = first_tokens + (8 * j + 2 * t + c % 2) / a.heads;
        if (from + g + c / 2 * 8 < sees) best[j][c % 2] = fmaxf(best[j][c % 2], s[c]);
    }
}

/* Block b. A lane has the keys of the next AHEAD times 16 tokens on their way. */
template <int FORMAT, int DIM, int TILES>
DEVICE void score_block(const index_score_args &a, const index_tile &tile, const uint8_t *data, int b, const uint32_t *shared)
{
    enum { AHEAD = TILES == 1 && cached_bytes<FORMAT>(DIM) <= 64 ? 2 : 1 };
    int lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    int first_tokens = tile.position + 1 - b * CUDA_BLOCK_TOKENS; /* that the first row sees, the next one more */
    int tokens = min(first_tokens + tile.rows - 1, (int)CUDA_BLOCK_TOKENS);
    float best[TILES][2];
    UNROLL for (int j = 0; j < TILES; j++) best[j][0] = best[j][1] = -INFINITY;
    raw_key<FORMAT, DIM> key[AHEAD][2];
    UNROLL for (int n = 0; n < AHEAD; n++)
        UNROLL for (int h = 0; h < 2; h++)
            load_key(key[n][h], data, data + a.cache.index_scales, 16 * n + g + 8 * h);
    for (int start = 0; start < tokens; start += 16 * AHEAD)
        UNROLL for (int n = 0; n < AHEAD; n++) {
            int from = start + 16 * n, next = from + 16 * AHEAD;
            uint32_t pair[2][DIM / 8];
            UNROLL for (int h = 0; h < 2; h++) decode_key<FORMAT, DIM>(key[n][h], pair[h]);
            if (next < tokens)
                UNROLL for (int h = 0; h < 2; h++)
                    load_key(key[n][h], data, data + a.cache.index_scales, next + g + 8 * h);
            UNROLL for (int j = 0; j < TILES; j++) {
                if (TILES > 1 && 8 * j >= tile.columns) continue;
                float s[4] = {0, 0, 0, 0};
                UNROLL for (int k = 0; k < DIM / 16; k++) {
                    uint32_t keys[4] = {pair[0][2 * k], pair[1][2 * k], pair[0][2 * k + 1], pair[1][2 * k + 1]}, q[2];
                    const uint32_t *at = shared + 2 * ((j * (DIM / 16) + k) * CUDA_WARP + lane);
                    q[0] = at[0], q[1] = at[1];
                    mma_bf16(s, keys, q);
                }
                take_scores<TILES>(a, s, j, from, first_tokens, best);
            }
        }
    UNROLL for (int j = 0; j < TILES; j++) {
        if (TILES > 1 && 8 * j >= tile.columns) continue;
        UNROLL for (int c = 0; c < 2; c++) {
            UNROLL for (int mask = 4; mask < 32; mask *= 2) best[j][c] = fmaxf(best[j][c], lane_xor(best[j][c], mask));
            int column = 8 * j + 2 * t + c;
            if (g == 0 && column < tile.columns)
                a.scores[((int64_t)tile.row * a.heads + column) * a.max_blocks + b] = best[j][c] * cached_undo<FORMAT>();
        }
    }
}

template <int FORMAT, int DIM, int TILES> DEVICE void score_blocks(const index_score_args &a)
{
    uint32_t *shared = DYNAMIC(uint32_t);
    index_tile tile;
    int row = blockIdx.x, sequence = a.rows.sequence[row], position = a.rows.position[row];
    if (sequence < 0) return;
    if (row > 0 && a.rows.sequence[row - 1] == sequence && position % a.tile != 0) return; /* another one's tile */
    tile.row = row, tile.position = position, tile.rows = 1;
    while (tile.rows < a.tile - position % a.tile && row + tile.rows < a.rows.count &&
           a.rows.sequence[row + tile.rows] == sequence)
        tile.rows++;
    tile.columns = tile.rows * a.heads;
    int visible = (position + tile.rows - 1) / CUDA_BLOCK_TOKENS + 1;
    int begin = a.first + (int)blockIdx.y * a.run, end = min(begin + a.run, a.first + a.count), seen = min(end, visible);
    if (a.fill)
        for (int i = threadIdx.x; i < tile.columns * a.run; i += INDEX_WARPS * CUDA_WARP) {
            int b = begin + i % a.run;
            if (b >= visible && b < end)
                a.scores[((int64_t)row * a.heads + i / a.run) * a.max_blocks + b] = -INFINITY;
        }
    if (begin >= seen || visible <= a.least) return;
    load_columns<FORMAT, DIM>(a.q + (int64_t)row * a.heads * DIM, tile.columns, shared);
    BLOCK_SYNC();
    for (int b = begin + (int)(threadIdx.x / CUDA_WARP); b < seen; b += INDEX_WARPS) {
        int64_t block = a.rows.block_table[(int64_t)sequence * a.rows.block_table_stride + b];
        const uint8_t *data = a.cache.base + block * a.cache.row_bytes + a.layer_offset;
        score_block<FORMAT, DIM, TILES>(a, tile, data, b, shared);
    }
}

/* Of 64 and 128 dims another one for at most eight columns, with fewer registers. */
#define INDEX_KERNELS(name, FORMAT)                                                                                    \
    KERNEL(index_score_##name##_16, index_score_args) { score_blocks<FORMAT, 16, INDEX_COLUMNS / 8>(a); }              \
    KERNEL(index_score_##name##_32, index_score_args) { score_blocks<FORMAT, 32, INDEX_COLUMNS / 8>(a); }              \
    KERNEL(index_score_##name##_64, index_score_args) { score_blocks<FORMAT, 64, INDEX_COLUMNS / 8>(a); }              \
    KERNEL(index_score_##name##_128, index_score_args) { score_blocks<FORMAT, 128, INDEX_COLUMNS / 8>(a); }            \
    KERNEL(index_few_##name##_64, index_score_args) { score_blocks<FORMAT, 64, 1>(a); }                                \
    KERNEL_OF(index_few_##name##_128, index_score_args, INDEX_WARPS *CUDA_WARP, 5) { score_blocks<FORMAT, 128, 1>(a); }

INDEX_KERNELS(bf16, KERNEL_CACHE_BF16)
INDEX_KERNELS(fp8, KERNEL_CACHE_FP8)
INDEX_KERNELS(nvfp4, KERNEL_CACHE_NVFP4)
INDEX_KERNELS(nvfp4_e4m3, CACHED_NVFP4_E4M3)

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

/* The block's best of [first, first + count), in the first warp; other warps' lists pass through `shared`. */
DEVICE uint64_t choose(const index_top_args &a, uint64_t *shared)
{
    int row = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    int visible = a.rows.sequence[row] < 0 ? 0 : a.rows.position[row] / CUDA_BLOCK_TOKENS + 1;
    int last = min(a.first + a.count, visible), warps = blockDim.x / CUDA_WARP;
    const float *scores = a.scores + ((int64_t)row * a.heads + head) * a.max_blocks;
    enum { RUN = 4 };
    uint64_t list = 0;
    for (int from = a.first + warp * RUN * CUDA_WARP; from < last; from += warps * RUN * CUDA_WARP) {
        uint64_t key[RUN];
        UNROLL for (int i = 0; i < RUN; i++) {
            int b = from + i * CUDA_WARP + lane;
            key[i] = b < last ? key_of(scores[b], b, b >= visible - a.local) : 0;
        }
        UNROLL for (int i = 0; i < RUN; i++) list = keep_best(list, a.top, key[i]);
    }
    shared[threadIdx.x] = list;
    BLOCK_SYNC();
    for (int w = 1; w < warps && warp == 0; w++) list = keep_best(list, a.top, shared[w * CUDA_WARP + lane]);
    return list;
}

/* True: the row replays, and its list is taken from there. */
DEVICE bool replay(const index_top_args &a)
{
    enum { ROW_REPLAY_BLOCKS = 2 };
    if (!(a.rows.flags[blockIdx.x] & ROW_REPLAY_BLOCKS)) return false;
    int64_t at = ((int64_t)blockIdx.x * a.heads + blockIdx.y) * a.top;
    const int32_t *from = a.rows.replay_blocks + (int64_t)a.layer * a.rows.count * a.heads * a.top;
    if ((int)threadIdx.x < a.top) a.blocks[at + threadIdx.x] = from[at + threadIdx.x];
    return true;
}

KERNEL(index_top, index_top_args)
{
    SHARED(uint64_t, shared, TOP_WARPS * CUDA_WARP);
    uint64_t list = choose(a, shared);
    if ((int)threadIdx.x < a.top) a.candidates[((int64_t)blockIdx.x * a.heads + blockIdx.y) * a.top + threadIdx.x] = list;
}

KERNEL(index_select, index_top_args)
{
    SHARED(uint64_t, shared, TOP_WARPS * CUDA_WARP);
    if (replay(a)) return;
    uint64_t list = choose(a, shared);
    if (threadIdx.x < CUDA_WARP) list_blocks(list, a.top, a.blocks + ((int64_t)blockIdx.x * a.heads + blockIdx.y) * a.top);
}

KERNEL(index_merge, index_top_args)
{
    if (replay(a)) return;
    int lane = threadIdx.x;
    int64_t at = ((int64_t)blockIdx.x * a.heads + blockIdx.y) * a.top;
    uint64_t list = lane < a.top ? a.candidates[at + lane] : 0;
    for (int part = 1; part < a.parts; part++)
        list = keep_best(list, a.top, lane < a.top ? a.candidates[part * a.part_stride + at + lane] : 0);
    list_blocks(list, a.top, a.blocks + at);
}
