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
 * Bytes of a unit and block: K, V and scales, 18,432 of NVFP4 with 128 dims, that is 9 a product; bound: memory. Tokens
 * that the row does not see have weight 0 and value 0, whatever the cache holds there.
 */
#include "backend/cuda/kernels/attend.h"

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

/* What a lane holds of 32 tokens' vectors: every 32nd piece of 16 bytes. */
template <int FORMAT, int DIM> struct raw_part {
    enum {
        BYTES = cached_bytes<FORMAT>(DIM),      /* of a vector */
        VALUES = 16 * DIM / BYTES,              /* of a piece */
        PIECES = 32 * BYTES / 16,               /* of 32 tokens */
        OWN = (PIECES + CUDA_WARP - 1) / CUDA_WARP,
    };
    quad piece[OWN];
    uint32_t scale[is_nvfp4<FORMAT>() ? OWN : 1]; /* of a piece's two groups, the first in the low byte */
};

/* Tokens [first, first + 32) of a head's K or V. quads: scales lie in quads of tokens. */
template <int FORMAT, int DIM>
DEVICE void load_part(raw_part<FORMAT, DIM> &part, const uint8_t *data, const uint8_t *scales, int first, bool quads)
{
    typedef raw_part<FORMAT, DIM> raw;
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

/* Into the tile's rows [first, first + 32); zeros from row `tokens` on. */
template <int FORMAT, int DIM>
DEVICE void store_part(const raw_part<FORMAT, DIM> &part, quad *tile, int first, int tokens)
{
    typedef raw_part<FORMAT, DIM> raw;
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
            tile[place_of<DIM / 8>(row, value % DIM / 8)] = out;
        }
    }
}

/* ---- A block ----------------------------------------------------------------------------------------------------- */

/* Softmax of rows g and g + 8 of a unit, and their outputs in this warp's tiles of eight dims. */
template <int TILES> struct attend_state {
    float maximum[2], sum[2];
    float out[TILES][4]; /* as d of m16n8k16 */
};

/* One step of the fold. */
DEVICE void fold(float maximum, float now_maximum, float &joint, float &before, float &now)
{
    joint = fmaxf(maximum, now_maximum);
    before = exp2f(maximum - joint);
    now = exp2f(now_maximum - joint);
}

template <int TILES> DEVICE void fold_state(attend_state<TILES> &state, const attend_state<TILES> &block, bool first)
{
    if (first) {
        state = block;
        return;
    }
    UNROLL for (int r = 0; r < 2; r++) {
        float joint, before, now;
        fold(state.maximum[r], block.maximum[r], joint, before, now);
        state.maximum[r] = joint;
        state.sum[r] = state.sum[r] * before + block.sum[r] * now;
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int c = 2 * r; c < 2 * r + 2; c++)
                state.out[i][c] = state.out[i][c] * before + block.out[i][c] * now;
    }
}

/* Shared memory of a thread block. */
template <int DIM> struct attend_memory {
    quad *tile;    /* [128 tokens][DIM / 8] */
    quad *query;   /* [16 heads][DIM / 8] */
    quad *weights; /* [16 heads][128 / 8] */
    float *maxima, *sums; /* [4 warps][16 heads] */
};
template <int DIM> DEVICE attend_memory<DIM> open_memory()
{
    attend_memory<DIM> m;
    m.tile = DYNAMIC(quad);
    m.query = m.tile + CUDA_BLOCK_TOKENS * (DIM / 8);
    m.weights = m.query + ATTEND_HEADS * (DIM / 8);
    m.maxima = (float *)(m.weights + ATTEND_HEADS * (CUDA_BLOCK_TOKENS / 8));
    m.sums = m.maxima + ATTEND_WARPS * ATTEND_HEADS;
    return m;
}

/* Scores of this warp's 32 tokens: s[i] has tokens 8i .. 8i+7. */
template <int DIM> DEVICE void multiply_keys(const attend_memory<DIM> &m, float s[4][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int c = 0; c < 4; c++) s[i][c] = 0;
    UNROLL for (int k = 0; k < DIM / 16; k++) {
        uint32_t q[4], keys[4];
        load_rows<DIM / 8>(q, m.query, 2 * k);
        UNROLL for (int i = 0; i < 4; i += 2) {
            load_matrices(keys, m.tile + place_of<DIM / 8>(32 * warp + 8 * (i + lane / 16) + lane % 8, 2 * k + lane / 8 % 2));
            mma_bf16(s[i], q, keys);
            mma_bf16(s[i + 1], q, keys + 2);
        }
    }
}

/* out [TILES] of this warp's dims over all tokens. */
template <int DIM, int TILES> DEVICE void multiply_values(const attend_memory<DIM> &m, float out[TILES][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, chunk = warp * TILES;
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) out[i][c] = 0;
    if (chunk >= DIM / 8) return;
    UNROLL for (int k = 0; k < CUDA_BLOCK_TOKENS / 16; k += 2) {
        uint32_t weights[2][4], values[4];
        load_rows<CUDA_BLOCK_TOKENS / 8>(weights[0], m.weights, 2 * k);
        load_rows<CUDA_BLOCK_TOKENS / 8>(weights[1], m.weights, 2 * k + 2);
        if constexpr (TILES == 1) {
            load_transposed(values, m.tile + place_of<DIM / 8>(16 * k + lane, chunk));
            mma_bf16(out[0], weights[0], values);
            mma_bf16(out[0], weights[1], values + 2);
        } else {
            UNROLL for (int j = 0; j < 2; j++)
                UNROLL for (int i = 0; i < TILES; i += 2) {
                    load_transposed(values, m.tile + place_of<DIM / 8>(16 * (k + j) + lane % 16, chunk + i + lane / 16));
                    mma_bf16(out[i], weights[j], values);
                    mma_bf16(out[i + 1], weights[j], values + 2);
                }
        }
    }
}

/* The row's largest of all lanes, of rows g and g + 8, left for the other warps. */
DEVICE void leave_rows(float *to, const float x[2])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    if (lane % 4) return;
    to[warp * ATTEND_HEADS + lane / 4] = x[0];
    to[warp * ATTEND_HEADS + lane / 4 + 8] = x[1];
}

/* Of the first `tokens` tokens of a head in the cache. */
template <int FORMAT, int DIM, int TILES>
DEVICE void attend_block(const attend_args &a, const attend_memory<DIM> &m, const uint8_t *head, int tokens,
                         attend_state<TILES> &block)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    float s[4][4], most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    {
        raw_part<FORMAT, DIM> keys;
        load_part(keys, head, head + a.cache.k_scales, 32 * warp, false);
        store_part(keys, m.tile, 32 * warp, CUDA_BLOCK_TOKENS);
    }
    raw_part<FORMAT, DIM> values;
    if (is_nvfp4<FORMAT>()) load_part(values, head + a.cache.v_data, head + a.cache.v_scales, 32 * warp, true);
    WARP_SYNC();
    multiply_keys<DIM>(m, s);
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            bool seen = 32 * warp + 8 * i + 2 * t + c % 2 < tokens;
            s[i][c] = seen ? s[i][c] * a.scale : -INFINITY;
            most[c / 2] = fmaxf(most[c / 2], s[i][c]);
        }
    UNROLL for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], lane_xor(most[r], 1));
        most[r] = fmaxf(most[r], lane_xor(most[r], 2));
    }
    leave_rows(m.maxima, most);
    WARP_SYNC(); /* keys have been read */
    if (!is_nvfp4<FORMAT>()) load_part(values, head + a.cache.v_data, head + a.cache.v_scales, 32 * warp, true);
    store_part(values, m.tile, 32 * warp, tokens);
    BLOCK_SYNC();

    UNROLL for (int r = 0; r < 2; r++) {
        UNROLL for (int w = 0; w < ATTEND_WARPS; w++) {
            float other = m.maxima[w * ATTEND_HEADS + g + 8 * r];
            most[r] = w ? fmaxf(most[r], other) : other;
        }
        block.maximum[r] = most[r];
        UNROLL for (int i = 0; i < 4; i++) {
            float p[2];
            UNROLL for (int c = 0; c < 2; c++) {
                bool seen = 32 * warp + 8 * i + 2 * t + c < tokens;
                p[c] = seen ? exp2f(s[i][2 * r + c] - most[r]) : 0;
                sum[r] += p[c];
            }
            uint32_t *to = (uint32_t *)(m.weights + place_of<CUDA_BLOCK_TOKENS / 8>(g + 8 * r, 4 * warp + i));
            to[t] = bf16_pair(p[0], p[1]);
        }
        sum[r] += lane_xor(sum[r], 1);
        sum[r] += lane_xor(sum[r], 2);
    }
    leave_rows(m.sums, sum);
    BLOCK_SYNC();
    UNROLL for (int r = 0; r < 2; r++) {
        block.sum[r] = 0;
        UNROLL for (int w = 0; w < ATTEND_WARPS; w++) block.sum[r] += m.sums[w * ATTEND_HEADS + g + 8 * r];
    }
    multiply_values<DIM, TILES>(m, block.out);
}

/* ---- A unit ------------------------------------------------------------------------------------------------------ */

struct attend_unit {
    int row, group, head, heads; /* first query head and how many */
    int sequence, position;
};

DEVICE attend_unit unit_of(const attend_args &a, int64_t number)
{
    attend_unit u;
    int per_group = a.heads / a.kv_heads, per_row = a.kv_heads * a.head_tiles;
    u.row = (int)(number / per_row);
    int in_row = (int)(number % per_row), tile = in_row % a.head_tiles * ATTEND_HEADS;
    u.group = in_row / a.head_tiles;
    u.head = u.group * per_group + tile;
    u.heads = min(per_group - tile, (int)ATTEND_HEADS);
    u.sequence = a.rows.sequence[u.row];
    u.position = a.rows.position[u.row];
    return u;
}

/* How many blocks the unit's list has. */
DEVICE int list_length(const attend_args &a, const attend_unit &u, const int32_t **list)
{
    *list = nullptr;
    if (u.sequence < 0) return 0;
    if (!a.blocks) return u.position / CUDA_BLOCK_TOKENS + 1;
    *list = a.blocks + ((int64_t)u.row * a.index_heads + u.group) * a.index_top;
    int n = 0;
    while (n < a.index_top && (*list)[n] >= 0) n++;
    return n;
}

/* The unit's queries as bf16, in the order of the cache's format; zeros for heads that it does not have. */
template <int FORMAT, int DIM> DEVICE void load_queries(const attend_args &a, const attend_unit &u, quad *query)
{
    for (int i = threadIdx.x; i < ATTEND_HEADS * (DIM / 8); i += ATTEND_WARPS * CUDA_WARP) {
        int h = i / (DIM / 8), chunk = i % (DIM / 8);
        quad out = {{0, 0, 0, 0}};
        if (h < u.heads) {
            const float *from = a.q + ((int64_t)u.row * a.heads + u.head + h) * DIM + 8 * chunk;
            UNROLL for (int p = 0; p < 4; p++)
                out.w[p] = bf16_pair(from[cached_order<FORMAT>(2 * p)], from[cached_order<FORMAT>(2 * p + 1)]);
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
    if (begin < end) load_queries<FORMAT, DIM>(a, u, m.query);
    for (int i = begin; i < end; i++) {
        int b = list ? list[a.first + i] : a.first + i;
        int64_t block = a.rows.block_table[(int64_t)u.sequence * a.rows.block_table_stride + b];
        const uint8_t *head = a.cache.base + block * a.cache.row_bytes + a.layer_offset + u.group * a.cache.head_bytes;
        int tokens = min(u.position + 1 - b * CUDA_BLOCK_TOKENS, (int)CUDA_BLOCK_TOKENS);
        attend_state<TILES> one;
        BLOCK_SYNC(); /* queries are there; values of the block before have been read */
        attend_block<FORMAT, DIM, TILES>(a, m, head, tokens, one);
        if (a.partials)
            store_partial<FORMAT, DIM, TILES>(a.partials + ((int64_t)blockIdx.x * a.count + i) * a.partial, one);
        else
            fold_state(state, one, i == begin);
    }
    if (a.partials) return;
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            int h, d;
            output_place<FORMAT, TILES>(i, c, &h, &d);
            if (d >= DIM || h >= u.heads) continue;
            float x = state.out[i][c] / state.sum[c / 2] * (cached_undo<FORMAT>() * a.value_scale);
            store_output(a, ((int64_t)u.row * a.heads + u.head + h) * DIM + d, u.sequence < 0 ? 0 : x);
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
    const float *from = a.partials + (int64_t)blockIdx.x * a.count * size;
    float *state = a.partials + (units * a.count + blockIdx.x) * size;
    float maximum = 0, sum = 0, out = 0;
    if (a.first > 0) maximum = state[h], sum = state[ATTEND_HEADS + h], out = state[2 * ATTEND_HEADS + h * dim + d];
    for (int i = 0; i < count; i++, from += size) {
        float block_maximum = from[h], block_sum = from[ATTEND_HEADS + h], block_out = from[2 * ATTEND_HEADS + h * dim + d];
        if (a.first + i == 0) {
            maximum = block_maximum, sum = block_sum, out = block_out;
            continue;
        }
        float joint, before, now;
        fold(maximum, block_maximum, joint, before, now);
        maximum = joint;
        sum = sum * before + block_sum * now;
        out = out * before + block_out * now;
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
    KERNEL_OF(attend_##name##_128, attend_args, ATTEND_WARPS *CUDA_WARP, BLOCKS) { attend_blocks<FORMAT, 128>(a); }

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
