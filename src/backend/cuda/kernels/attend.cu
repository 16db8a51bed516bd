/*
 * Attention of 16 query heads of a row over the blocks that their KV head selected, or over all of them:
 *
 *     s_j = q . k_j * scale,  m_b = max s_j,  l_b = sum 2^(s_j - m_b),  O_b = sum bf16(2^(s_j - m_b)) v_j       of a block b
 *     M' = max(M, m_b),  L' = L 2^(M - M') + l_b 2^(m_b - M'),  O likewise,  blocks ascending;  out = O / L
 *
 * Four warps take a block of 128 tokens. Warp w decodes keys 32w .. 32w+31 into its quarter of a tile of bf16 in shared
 * memory, multiplies them with the 16 queries (m16n8k16, dims ascending), decodes the values of the same tokens over them,
 * and leaves its weights beside; behind a barrier it multiplies all weights with its quarter of the dims (tokens ascending).
 * Rows of the tile are swizzled in 16 bytes. What is folded where: blocks of a run by the thread block that reads them, or,
 * when there are too few units to fill the GPU, every block as a partial, and kernel attend_fold folds: the same steps, so
 * the same bits.
 *
 * Rows of one sequence that follow each other share decoded blocks (attend_rows_): the same steps again, with the weights of
 * four rows side by side.
 *
 * Bytes of a unit and block: K, V and scales, 18,432 of NVFP4 with 128 dims, that is 9 a product; bound: memory. Tokens
 * that the row does not see have weight 0 and value 0, whatever the cache holds there.
 */
#include "backend/cuda/kernels/attend.h"

#include "backend/cuda/kernels/attend_unit.cuh"
#include "backend/cuda/kernels/cache.cuh"

static_assert(ATTEND_NVFP4 == (int)NVFP4_SHIFT, "the host scales by what decoding leaves out");

/* ---- Tiles of 16-byte chunks in shared memory -------------------------------------------------------------------- */

/* Place of a chunk of a row of CHUNKS chunks, in chunks: eight rows of one chunk lie in different banks. */
template <int CHUNKS> DEVICE int place_of(int row, int chunk)
{
    int turn = CHUNKS >= 8 ? row & 7 : (row * CHUNKS / 8) & (CHUNKS - 1);
    return row * CHUNKS + (chunk ^ turn);
}

/* a of m16n8k16 from rows 0..15 of a tile, k from chunk `chunk` on. */
template <int CHUNKS> DEVICE void load_rows(uint32_t a[4], const quad *tile, int chunk)
{
    int lane = threadIdx.x % CUDA_WARP;
    load_matrices(a, tile + place_of<CHUNKS>(lane / 8 % 2 * 8 + lane % 8, chunk + lane / 16));
}

/* ---- Cached vectors to a tile ------------------------------------------------------------------------------------ */

/* What a lane holds of a warp's TOKENS tokens' vectors: every 32nd piece of 16 bytes. */
template <int FORMAT, int DIM, int TOKENS> struct raw_part {
    enum {
        BYTES = cached_bytes<FORMAT>(DIM),      /* of a vector */
        VALUES = 16 * DIM / BYTES,              /* of a piece */
        PIECES = TOKENS * BYTES / 16,           /* of all tokens */
        OWN = (PIECES + CUDA_WARP - 1) / CUDA_WARP,
    };
    quad piece[OWN];
    uint32_t scale[is_nvfp4<FORMAT>() ? OWN : 1]; /* of a piece's two groups, the first in the low byte */
};

/* Tokens [first, first + TOKENS) of a head's K or V. quads: scales lie in quads of tokens. */
template <int FORMAT, int DIM, int TOKENS>
DEVICE void load_part(raw_part<FORMAT, DIM, TOKENS> &part, const uint8_t *data, const uint8_t *scales, int first, bool quads)
{
    typedef raw_part<FORMAT, DIM, TOKENS> raw;
    int lane = threadIdx.x % CUDA_WARP;
    UNROLL for (int i = 0; i < raw::OWN; i++) {
        int p = i * CUDA_WARP + lane;
        if (raw::PIECES % CUDA_WARP && p >= raw::PIECES) continue;
        part.piece[i] = load_once(data + first * raw::BYTES + 16 * p);
        if constexpr (is_nvfp4<FORMAT>()) {
            int value = p * raw::VALUES, t = first + value / DIM, group = value % DIM / 16;
            if (!quads) { /* of neighbours, also of the next token */
                part.scale[i] = *(const uint16_t *)(scales + t * (DIM / 16) + group);
                continue;
            }
            int second = first + (value + 16) / DIM, second_group = (value + 16) % DIM / 16;
            part.scale[i] = (uint32_t)scales[t / 4 * (DIM / 4) + group * 4 + t % 4] |
                            (uint32_t)scales[second / 4 * (DIM / 4) + second_group * 4 + second % 4] << 8;
        }
    }
}

/* Into the tile's rows [first, first + TOKENS), keys in key_order; zeros from row `tokens` on. */
template <bool KEYS, int FORMAT, int DIM, int TOKENS>
DEVICE void store_part(const raw_part<FORMAT, DIM, TOKENS> &part, quad *tile, int first, int tokens)
{
    typedef raw_part<FORMAT, DIM, TOKENS> raw;
    enum { CHUNK = cached_bytes<FORMAT>(8) / 4 /* words of eight values */ };
    int lane = threadIdx.x % CUDA_WARP;
    UNROLL for (int i = 0; i < raw::OWN; i++) {
        int p = i * CUDA_WARP + lane;
        if (raw::PIECES % CUDA_WARP && p >= raw::PIECES) continue;
        uint32_t unit[2] = {0, 0};
        if constexpr (is_nvfp4<FORMAT>()) nvfp4_units(part.scale[i], unit);
        UNROLL for (int c = 0; c < raw::VALUES / 8; c++) {
            int value = p * raw::VALUES + 8 * c, row = first + value / DIM;
            quad out;
            decode_eight<FORMAT>(part.piece[i].w + c * CHUNK, unit[c / 2 % 2], out.w);
            if (row >= tokens) out = quad{{0, 0, 0, 0}};
            if constexpr (KEYS && is_nvfp4<FORMAT>() && DIM == 128) { /* a piece is a quarter: a word of four chunks */
                UNROLL for (int w = 0; w < 4; w++)
                    ((uint32_t *)(tile + place_of<DIM / 8>(row, 4 * c + w)))[p % 4] = out.w[w];
            } else {
                tile[place_of<DIM / 8>(row, value % DIM / 8)] = out;
            }
        }
    }
}

/* ---- A block ----------------------------------------------------------------------------------------------------- */

/* Shared memory of a thread block: a tile, and for each row of the step that shares it its queries, its weights, and its
 * maxima and sums by warp. */
template <int DIM> struct attend_memory {
    quad *tile; /* [128 tokens][DIM / 8] */
    quad *rows;
};
template <int DIM> struct attend_row {
    quad *query;          /* [16 heads][DIM / 8] */
    quad *weights;        /* [16 heads][128 / 8] */
    float *maxima, *sums; /* [warps], [8 of 16 tokens][16 heads] */
};
template <int DIM> DEVICE attend_memory<DIM> open_memory()
{
    attend_memory<DIM> m;
    m.tile = DYNAMIC(quad);
    m.rows = m.tile + CUDA_BLOCK_TOKENS * (DIM / 8);
    return m;
}
template <int DIM> DEVICE attend_row<DIM> row_of(const attend_memory<DIM> &m, int r)
{
    enum {
        QUERY = ATTEND_HEADS * (DIM / 8),
        WEIGHTS = ATTEND_HEADS * (CUDA_BLOCK_TOKENS / 8),
        NUMBERS = ATTEND_SUMS * ATTEND_HEADS,
    };
    attend_row<DIM> row;
    row.query = m.rows + r * (QUERY + WEIGHTS + 2 * NUMBERS / 4);
    row.weights = row.query + QUERY;
    row.maxima = (float *)(row.weights + WEIGHTS);
    row.sums = row.maxima + NUMBERS;
    return row;
}

/* Scores of this warp's 8 * PARTS tokens: s[i] has tokens 8i .. 8i+7. */
template <int DIM, int PARTS> DEVICE void multiply_keys(const quad *tile, const quad *query, float s[PARTS][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    UNROLL for (int i = 0; i < PARTS; i++)
        UNROLL for (int c = 0; c < 4; c++) s[i][c] = 0;
    UNROLL for (int k = 0; k < DIM / 16; k++) {
        uint32_t q[4], keys[4];
        load_rows<DIM / 8>(q, query, 2 * k);
        UNROLL for (int i = 0; i < PARTS; i += 2) {
            load_matrices(keys, tile + place_of<DIM / 8>(8 * PARTS * warp + 8 * (i + lane / 16) + lane % 8, 2 * k + lane / 8 % 2));
            mma_bf16(s[i], q, keys);
            mma_bf16(s[i + 1], q, keys + 2);
        }
    }
}

/* out [TILES] of this warp's dims over all tokens. */
template <int DIM, int TILES> DEVICE void multiply_values(const quad *tile, const quad *from, float out[TILES][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, chunk = warp * TILES;
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) out[i][c] = 0;
    if (chunk >= DIM / 8) return;
    UNROLL for (int k = 0; k < CUDA_BLOCK_TOKENS / 16; k += 2) {
        uint32_t weights[2][4], values[4];
        load_rows<CUDA_BLOCK_TOKENS / 8>(weights[0], from, 2 * k);
        load_rows<CUDA_BLOCK_TOKENS / 8>(weights[1], from, 2 * k + 2);
        if constexpr (TILES == 1) {
            load_transposed(values, tile + place_of<DIM / 8>(16 * k + lane, chunk));
            mma_bf16(out[0], weights[0], values);
            mma_bf16(out[0], weights[1], values + 2);
        } else {
            UNROLL for (int j = 0; j < 2; j++)
                UNROLL for (int i = 0; i < TILES; i += 2) {
                    load_transposed(values, tile + place_of<DIM / 8>(16 * (k + j) + lane % 16, chunk + i + lane / 16));
                    mma_bf16(out[i], weights[j], values);
                    mma_bf16(out[i + 1], weights[j], values + 2);
                }
        }
    }
}

/* Numbers of rows g and g + 8, the same in four lanes, left for the other warps. */
DEVICE void leave_rows(float *to, int place, const float x[2])
{
    int lane = threadIdx.x % CUDA_WARP;
    if (lane % 4) return;
    to[place * ATTEND_HEADS + lane / 4] = x[0];
    to[place * ATTEND_HEADS + lane / 4 + 8] = x[1];
}

/* Scores of one row's first `tokens` tokens, -inf behind them; the warp's maxima are left. */
template <int DIM, int PARTS>
DEVICE void score_keys(const attend_args &a, const quad *tile, const attend_row<DIM> &row, int tokens, float s[PARTS][4])
{
    int warp = threadIdx.x / CUDA_WARP, t = threadIdx.x % 4;
    float most[2] = {-INFINITY, -INFINITY};
    multiply_keys<DIM, PARTS>(tile, row.query, s);
    UNROLL for (int i = 0; i < PARTS; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            bool seen = 8 * (PARTS * warp + i) + 2 * t + c % 2 < tokens;
            s[i][c] = seen ? s[i][c] * a.scale : -INFINITY;
            most[c / 2] = fmaxf(most[c / 2], s[i][c]);
        }
    UNROLL for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], lane_xor(most[r], 1));
        most[r] = fmaxf(most[r], lane_xor(most[r], 2));
    }
    leave_rows(row.maxima, warp, most);
}

/* Behind a barrier: weights of this warp's tokens, and their sums by 16 tokens; maximum: the block's. */
template <int DIM, int PARTS>
DEVICE void weigh(const attend_row<DIM> &row, int tokens, const float s[PARTS][4], float maximum[2])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    enum { WARPS = CUDA_BLOCK_TOKENS / 8 / PARTS };
    UNROLL for (int r = 0; r < 2; r++) {
        maximum[r] = row.maxima[g + 8 * r];
        UNROLL for (int w = 1; w < WARPS; w++)
            maximum[r] = fmaxf(maximum[r], row.maxima[w * ATTEND_HEADS + g + 8 * r]);
    }
    UNROLL for (int half = 0; half < PARTS / 2; half++) {
        float sum[2] = {0, 0};
        UNROLL for (int r = 0; r < 2; r++) {
            UNROLL for (int i = 2 * half; i < 2 * half + 2; i++) {
                float p[2];
                UNROLL for (int c = 0; c < 2; c++) {
                    bool seen = 8 * (PARTS * warp + i) + 2 * t + c < tokens;
                    p[c] = seen ? power_of_two(s[i][2 * r + c] - maximum[r]) : 0;
                    sum[r] += p[c];
                }
                uint32_t *to = (uint32_t *)(row.weights + place_of<CUDA_BLOCK_TOKENS / 8>(g + 8 * r, PARTS * warp + i));
                to[t] = round_pair(p[0], p[1]);
            }
            sum[r] += lane_xor(sum[r], 1);
            sum[r] += lane_xor(sum[r], 2);
        }
        leave_rows(row.sums, PARTS / 2 * warp + half, sum);
    }
}

/* Behind another: what the block gave the row. */
template <int DIM, int TILES>
DEVICE void close_block(const quad *tile, const attend_row<DIM> &row, const float maximum[2], attend_state<TILES> &block)
{
    int g = threadIdx.x % CUDA_WARP / 4;
    UNROLL for (int r = 0; r < 2; r++) {
        block.maximum[r] = maximum[r];
        block.sum[r] = 0;
        UNROLL for (int n = 0; n < ATTEND_SUMS; n++) block.sum[r] += row.sums[n * ATTEND_HEADS + g + 8 * r];
    }
    multiply_values<DIM, TILES>(tile, row.weights, block.out);
}

/* Row r sees the first tokens[r] tokens of a head in the cache, none where it does not take the block. `each` gets what
 * the block gave each row that takes it. */
template <int FORMAT, int DIM, int TILES, int WARPS, int ROWS, typename take>
DEVICE void attend_block(const attend_args &a, const attend_memory<DIM> &m, const uint8_t *head, const int tokens[ROWS],
                         const take &each)
{
    enum { TOKENS = CUDA_BLOCK_TOKENS / WARPS, PARTS = TOKENS / 8 };
    int first = TOKENS * (int)(threadIdx.x / CUDA_WARP), most = 0;
    float s[ROWS][PARTS][4], maximum[ROWS][2];
    const uint8_t *data = head + a.cache.v_data, *scales = head + a.cache.v_scales;
    bool alike = true; /* all see the same tokens */
    UNROLL for (int r = 0; r < ROWS; r++) most = max(most, tokens[r]);
    UNROLL for (int r = 0; r < ROWS; r++) alike = alike && (tokens[r] == 0 || tokens[r] == most);
    {
        raw_part<FORMAT, DIM, TOKENS> keys;
        load_part(keys, head, head + a.cache.k_scales, first, false);
        store_part<true>(keys, m.tile, first, CUDA_BLOCK_TOKENS);
    }
    {
        raw_part<FORMAT, DIM, TOKENS> values;
        if (is_nvfp4<FORMAT>()) load_part(values, data, scales, first, true);
        WARP_SYNC();
        UNROLL for (int r = 0; r < ROWS; r++)
            if (ROWS == 1 || tokens[r] > 0) score_keys<DIM, PARTS>(a, m.tile, row_of(m, r), tokens[r], s[r]);
        WARP_SYNC(); /* keys have been read */
        if (!is_nvfp4<FORMAT>()) load_part(values, data, scales, first, true);
        store_part<false>(values, m.tile, first, most);
    }
    BLOCK_SYNC();
    UNROLL for (int r = 0; r < ROWS; r++)
        if (ROWS == 1 || tokens[r] > 0) weigh<DIM, PARTS>(row_of(m, r), tokens[r], s[r], maximum[r]);
    BLOCK_SYNC();
    UNROLL for (int r = 0; r < ROWS; r++) {
        if (ROWS > 1 && tokens[r] == 0) continue;
        if (ROWS > 1 && !alike) { /* a value that is no number must not reach a row that does not see it */
            BLOCK_SYNC();
            raw_part<FORMAT, DIM, TOKENS> values;
            load_part(values, data, scales, first, true);
            store_part<false>(values, m.tile, first, tokens[r]);
            BLOCK_SYNC();
        }
        attend_state<TILES> block;
        close_block<DIM, TILES>(m.tile, row_of(m, r), maximum[r], block);
        each(r, block);
    }
}

/* ---- A unit ------------------------------------------------------------------------------------------------------ */

/* The unit's queries as bf16, in the order of the cache's format; zeros for heads that it does not have. */
template <int FORMAT, int DIM> DEVICE void load_queries(const attend_args &a, const attend_unit &u, quad *query)
{
    for (int i = threadIdx.x; i < ATTEND_HEADS * (DIM / 8); i += blockDim.x) {
        int h = i / (DIM / 8), chunk = i % (DIM / 8);
        quad out = {{0, 0, 0, 0}};
        if (h < u.heads) {
            const float *from = a.q + ((int64_t)u.row * a.heads + u.head + h) * DIM;
            UNROLL for (int p = 0; p < 4; p++) {
                int place = 8 * chunk + 2 * p;
                out.w[p] = bf16_pair(from[key_order<FORMAT, DIM>(place)], from[key_order<FORMAT, DIM>(place + 1)]);
            }
        }
        query[place_of<DIM / 8>(h, chunk)] = out;
    }
}

DEVICE void store_output(const attend_args &a, int64_t at, float x)
{
    uint16_t half = bf16_of_float(x);
    a.attention_bf16[at] = half;
    a.attention[at] = float_of_bf16(half);
}

/* Row and dim of value c of tile i of this warp. */
template <int FORMAT, int TILES> DEVICE void output_place(int i, int c, int *h, int *d)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    *h = lane / 4 + c / 2 * 8;
    *d = (warp * TILES + i) * 8 + cached_order<FORMAT>(2 * (lane % 4) + c % 2);
}

template <int FORMAT, int DIM, int TILES>
DEVICE void store_partial(float *to, const attend_state<TILES> &block)
{
    int lane = threadIdx.x % CUDA_WARP;
    if (threadIdx.x / CUDA_WARP == 0 && lane % 4 == 0)
        UNROLL for (int r = 0; r < 2; r++) {
            to[lane / 4 + 8 * r] = block.maximum[r];
            to[ATTEND_HEADS + lane / 4 + 8 * r] = block.sum[r];
        }
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            int h, d;
            output_place<FORMAT, TILES>(i, c, &h, &d);
            if (d < DIM) to[2 * ATTEND_HEADS + h * DIM + d] = block.out[i][c];
        }
}

template <int FORMAT, int DIM, int TILES>
DEVICE void store_row(const attend_args &a, const attend_unit &u, const attend_state<TILES> &state)
{
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            int h, d;
            output_place<FORMAT, TILES>(i, c, &h, &d);
            if (d >= DIM || h >= u.heads) continue;
            float x = state.out[i][c] / state.sum[c / 2] * (cached_undo<FORMAT>() * a.value_scale);
            store_output(a, ((int64_t)u.row * a.heads + u.head + h) * DIM + d, u.sequence < 0 ? 0 : x);
        }
}

/* Logical block b of a unit's KV head. */
DEVICE const uint8_t *head_of(const attend_args &a, const attend_unit &u, int b)
{
    int64_t block = a.rows.block_table[(int64_t)u.sequence * a.rows.block_table_stride + b];
    return a.cache.base + block * a.cache.row_bytes + a.layer_offset + u.group * a.cache.head_bytes;
}
/* One row: a run of its blocks, folded or left as partials. */
template <int FORMAT, int DIM> DEVICE void attend_blocks(const attend_args &a)
{
    enum { TILES = DIM >= 64 ? DIM / 8 / ATTEND_WARPS : 1 };
    attend_memory<DIM> m = open_memory<DIM>();
    attend_unit u = unit_of(a, blockIdx.x);
    const int32_t *list;
    int length = list_length(a, u, &list), begin = (int)blockIdx.y * a.run, end = min(begin + a.run, a.count);
    end = min(end, length - a.first);
    if (a.partials && begin >= end) return;
    attend_state<TILES> state = {};
    if (begin < end) load_queries<FORMAT, DIM>(a, u, row_of(m, 0).query);
    for (int i = begin; i < end; i++) {
        int b = list ? list[a.first + i] : a.first + i, tokens[1] = {tokens_of(u.position, b)};
        BLOCK_SYNC(); /* queries are there; values of the block before have been read */
        attend_block<FORMAT, DIM, TILES, ATTEND_WARPS, 1>(a, m, head_of(a, u, b), tokens, [&](int, const attend_state<TILES> &block) {
            if (a.partials)
                store_partial<FORMAT, DIM, TILES>(a.partials + ((int64_t)blockIdx.x * a.slots + i) * a.partial, block);
            else
                fold_state(state, block, i == begin);
        });
    }
    if (!a.partials) store_row<FORMAT, DIM, TILES>(a, u, state);
}

/* Rows of one sequence between two multiples of ROWS: every block that one of them takes is decoded once. The first row's
 * thread block does it. */
template <int FORMAT, int DIM, int ROWS> DEVICE void attend_rows(const attend_args &a)
{
    enum { TILES = DIM / 8 / ATTEND_ROWS_WARPS };
    attend_memory<DIM> m = open_memory<DIM>();
    attend_unit u = unit_of(a, blockIdx.x);
    if (u.sequence >= 0 && u.row > 0 && a.rows.sequence[u.row - 1] == u.sequence && u.position % ROWS) return;
    attend_state<TILES> state[ROWS] = {};
    const int32_t *list[ROWS];
    int length[ROWS], next[ROWS]; /* of each list, and how many blocks of it have been taken */
    UNROLL for (int r = 0; r < ROWS; r++) {
        attend_unit other = u;
        other.row += r, other.position += r;
        bool there = u.sequence >= 0 && u.position % ROWS + r < ROWS && other.row < a.rows.count &&
                     a.rows.sequence[other.row] == u.sequence;
        next[r] = 0;
        length[r] = there ? list_length(a, other, &list[r]) : -1;
        if (length[r] > 0) load_queries<FORMAT, DIM>(a, other, row_of(m, r).query);
    }
    for (;;) {
        int b = INT32_MAX, own[ROWS], tokens[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) {
            own[r] = next[r] >= length[r] ? INT32_MAX : list[r] ? list[r][next[r]] : next[r];
            b = min(b, own[r]);
        }
        if (b == INT32_MAX) break;
        UNROLL for (int r = 0; r < ROWS; r++) tokens[r] = own[r] == b ? tokens_of(u.position + r, b) : 0;
        BLOCK_SYNC(); /* queries are there; values of the block before have been read */
        attend_block<FORMAT, DIM, TILES, ATTEND_ROWS_WARPS, ROWS>(a, m, head_of(a, u, b), tokens, [&](int r, const attend_state<TILES> &block) {
            fold_state(state[r], block, next[r] == 0);
        });
        UNROLL for (int r = 0; r < ROWS; r++) next[r] += own[r] == b;
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
        attend_unit other = u;
        other.row += r;
        if (length[r] >= 0 || (r == 0 && u.sequence < 0)) store_row<FORMAT, DIM, TILES>(a, other, state[r]);
    }
}

/* Partials of a unit in ascending order, and what was folded before; grid: units, 16 heads; a thread a dim. */
template <int FORMAT> DEVICE void fold_partials(const attend_args &a)
{
    attend_unit u = unit_of(a, blockIdx.x);
    const int32_t *list;
    int64_t size = a.partial, units = gridDim.x;
    int dim = a.head_dim, h = blockIdx.y, d = min((int)threadIdx.x, dim - 1);
    int length = list_length(a, u, &list), count = min(a.count, length - a.first);
    if (h >= u.heads) return;
    const float *from = a.partials + (int64_t)blockIdx.x * a.slots * size;
    float *state = a.partials + (units * a.slots + blockIdx.x) * size;
    float maximum = 0, sum = 0, out = 0;
    if (a.first > 0) maximum = state[h], sum = state[ATTEND_HEADS + h], out = state[2 * ATTEND_HEADS + h * dim + d];
    enum { RUN = 8 }; /* partials on their way at once */
    if (a.first == 0 && count > 0) maximum = from[h], sum = from[ATTEND_HEADS + h], out = from[2 * ATTEND_HEADS + h * dim + d];
    int slots = max(count - a.joined + 1, 0);
    for (int start = a.first == 0; start < slots; start += RUN) {
        float maxima[RUN], sums[RUN], outs[RUN];
        UNROLL for (int n = 0; n < RUN; n++) {
            if (start + n >= slots) continue;
            const float *partial = from + (start + n) * size;
            maxima[n] = partial[h], sums[n] = partial[ATTEND_HEADS + h];
            outs[n] = partial[2 * ATTEND_HEADS + h * dim + d];
        }
        UNROLL for (int n = 0; n < RUN; n++) {
            if (start + n >= slots) continue;
            float joint, before, now;
            fold(maximum, maxima[n], joint, before, now);
            maximum = joint;
            sum = sum * before + sums[n] * now;
            out = out * before + outs[n] * now;
        }
    }
    if (a.last) {
        float x = out / sum * (cached_undo<FORMAT>() * a.value_scale);
        store_output(a, ((int64_t)u.row * a.heads + u.head + h) * dim + d, u.sequence < 0 ? 0 : x);
        return;
    }
    BLOCK_SYNC(); /* all have read the state */
    state[2 * ATTEND_HEADS + h * dim + d] = out;
    if (threadIdx.x == 0) state[h] = maximum, state[ATTEND_HEADS + h] = sum;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

#define ATTEND_KERNELS(name, FORMAT, BLOCKS)                                                                           \
    KERNEL(attend_##name##_16, attend_args) { attend_blocks<FORMAT, 16>(a); }                                          \
    KERNEL(attend_##name##_32, attend_args) { attend_blocks<FORMAT, 32>(a); }                                          \
    KERNEL(attend_##name##_64, attend_args) { attend_blocks<FORMAT, 64>(a); }                                          \
    KERNEL_OF(attend_##name##_128, attend_args, ATTEND_WARPS *CUDA_WARP, BLOCKS) { attend_blocks<FORMAT, 128>(a); } \
    KERNEL_OF(attend_rows_##name##_128, attend_args, ATTEND_ROWS_WARPS *CUDA_WARP, 2)                                       \
    {                                                                                                                  \
        attend_rows<FORMAT, 128, ATTEND_ROWS>(a);                                                                      \
    }

ATTEND_KERNELS(bf16, KERNEL_CACHE_BF16, 3)
ATTEND_KERNELS(fp8, KERNEL_CACHE_FP8, 3)
ATTEND_KERNELS(nvfp4, KERNEL_CACHE_NVFP4, 4)
ATTEND_KERNELS(nvfp4_e4m3, CACHED_NVFP4_E4M3, 3)

KERNEL(attend_fold, attend_args)
{
    if (a.cache.main == KERNEL_CACHE_NVFP4)
        fold_partials<KERNEL_CACHE_NVFP4>(a);
    else
        fold_partials<KERNEL_CACHE_BF16>(a);
}
