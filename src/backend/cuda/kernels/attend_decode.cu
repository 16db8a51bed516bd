/*
 * Attention of attend.cu for decoding, over lists of blocks in a cache of NVFP4 with 128 dims: the same steps, so the same
 * bits, without a tile of decoded values. What a block gave is m_b, l_b and O_b of attend.cu; blocks fold in ascending order.
 *
 * A thread block is two warps and takes a run of one unit's blocks (a row, a KV head, 16 of its query heads). Codes and scales
 * of keys and of values lie in shared memory as they lie in the cache, each in a place of 9,216 bytes that is filled for the
 * next block as soon as both warps have read it; warps decode what they read into operands of m16n8k16.
 *
 *     scores    warp w has tokens 64w .. 64w+63 as columns, in key_order: lane (g, t) reads 16 bytes, quarter t of the key of
 *               token 8i + g. The queries are the rows, as operands in shared memory, read once for 32 tokens.
 *     weights   behind a barrier, since they are relative to the largest score of both warps; left as operands.
 *     values    warp w has dims 64w .. 64w+63: lane (g, t) reads 4 bytes, dims 64w + 8g .. 8g+7, of tokens 2t, 2t+1, 2t+8, 2t+9
 *               of 16, joins the halves of two tokens' words, and has in tile j, column g the pairs of dim 8g + j. Their scales
 *               are neighbours in the quads of tokens. Tokens that the row does not see get scale 0, whatever the cache holds
 *               there.
 *
 * Where there are too few units for the GPU a unit is cut into runs: the first one leaves what its blocks fold to, the others
 * every block by itself, and attend_fold folds.
 *
 * Bytes of a block: 18,432; at 4.3 TB/s a multiprocessor of 132 gets one in 990 cycles. Instructions of a block, both warps
 * together, as compiled for sm_90a: 2,180 decode 128 words of eight codes, 17 each (eight masks, four multiplications that
 * shift, a shift, four products with the scale); 256 MMAs, 64 that join words, 290 for scales, 340 for weights, 220 for scores,
 * 230 for the fold, 250 in shared memory, 370 besides: 4,200, for which four schedulers need 1,050 cycles. The two bounds meet,
 * so 70 to 80 % of the memory's speed is what can be hoped for. Partials: 8,320 bytes a block, written and read, of all runs
 * but the first. Shared memory 29,312 bytes, at most 128 registers: seven thread blocks a multiprocessor, 64 to 128 KB of it on
 * their way.
 */
#include "backend/cuda/kernels/attend.h"

#include "backend/cuda/kernels/attend_unit.cuh"
#include "backend/cuda/kernels/cache.cuh"

enum {
    DIM = 128,
    FORMAT = KERNEL_CACHE_NVFP4,
    THREADS = ATTEND_DECODE_WARPS * CUDA_WARP,
    VECTOR = DIM / 2,                        /* bytes of a key or value */
    CODES = CUDA_BLOCK_TOKENS * VECTOR / 16, /* of a block, in quads */
    SCALES = CUDA_BLOCK_TOKENS * DIM / 16 / 16,
    TILES = 8,    /* of eight columns that a warp has: tokens, then dims */
    STEPS = 8,    /* of a product: 16 dims, then 16 tokens */
};

/* The shared memory of a thread block. */
struct decode_memory {
    quad *keys, *values;    /* [CODES + SCALES] as in the cache */
    quad *queries;          /* [STEPS][lane], operands */
    quad *weights;          /* [STEPS][lane] */
    uint32_t *units;        /* [quads of tokens][8 groups][2]: units of the values' scales, for two tokens a word */
    float *maxima, *sums;   /* [warps][16 heads], [STEPS][16 heads] */
};

/* Codes and scales of a head's keys or values. */
DEVICE void fetch(quad *to, const uint8_t *codes, const uint8_t *scales)
{
    static_assert(SCALES == THREADS, "a thread takes one of them");
    int thread = threadIdx.x;
    codes += 16 * thread;
    UNROLL for (int i = 0; i < CODES / THREADS; i++) copy_async(to + i * THREADS + thread, codes + 16 * i * THREADS, true);
    copy_async(to + CODES + thread, scales + 16 * thread, true);
}

/* The unit's queries; zeros for heads that it does not have. */
DEVICE void load_queries(const attend_args &a, const attend_unit &u, quad *queries)
{
    for (int i = threadIdx.x; i < STEPS * CUDA_WARP; i += THREADS) {
        int k = i / CUDA_WARP, lane = i % CUDA_WARP, g = lane / 4, first = lane % 4 * 32 + k / 2 * 8 + k % 2 * 2;
        quad out;
        UNROLL for (int w = 0; w < 4; w++) {
            int h = g + w % 2 * 8;
            const float *from = a.q + ((int64_t)u.row * a.heads + u.head + h) * DIM + first + w / 2;
            out.w[w] = h < u.heads ? bf16_pair(from[0], from[4]) : 0;
        }
        queries[i] = out;
    }
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/* s[i]: tokens 64w + 8i .. 8i+7 of the block. */
DEVICE void multiply_keys(const decode_memory &m, float s[TILES][4])
{
    enum { AT_ONCE = 4 };
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    const quad *keys = m.keys + (64 * warp + g) * (VECTOR / 16) + t;
    const uint16_t *scales = (const uint16_t *)(m.keys + CODES) + (64 * warp + g) * 4 + t;
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) s[i][c] = 0;
    UNROLL for (int from = 0; from < TILES; from += AT_ONCE) {
        if (from) WARP_SYNC(); /* the queries are read again: there are no registers to keep them */
        quad key[AT_ONCE];
        uint32_t two[AT_ONCE];
        bool plain = true;
        UNROLL for (int i = 0; i < AT_ONCE; i++) {
            key[i] = keys[8 * (from + i) * (VECTOR / 16)];
            two[i] = scales[8 * (from + i) * 4];
            plain &= plain_scales(two[i]);
        }
        if (plain)
            UNROLL for (int i = 0; i < AT_ONCE; i++) two[i] = plain_units(two[i]);
        else
            UNROLL for (int i = 0; i < AT_ONCE; i++) two[i] = any_units(two[i]);
        UNROLL for (int c = 0; c < 4; c++) {
            quad even = m.queries[2 * c * CUDA_WARP + lane], odd = m.queries[(2 * c + 1) * CUDA_WARP + lane];
            UNROLL for (int i = 0; i < AT_ONCE; i++) {
                uint32_t pair[4];
                decode_eight<FORMAT>(key[i].w + c, unit_of_two(two[i], c / 2), pair);
                mma_bf16(s[from + i], even.w, pair);
                mma_bf16(s[from + i], odd.w, pair + 2);
            }
        }
    }
}

/* Scores in powers of two, -inf from token `tokens` of the block on; the warp's maxima are left. */
DEVICE void scale_scores(const attend_args &a, const decode_memory &m, int tokens, float s[TILES][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    float most[2] = {-INFINITY, -INFINITY};
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) s[i][c] *= a.scale;
    if (tokens < CUDA_BLOCK_TOKENS)
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int c = 0; c < 4; c++)
                if (64 * warp + 8 * i + 2 * t + c % 2 >= tokens) s[i][c] = -INFINITY;
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) most[c / 2] = fmaxf(most[c / 2], s[i][c]);
    UNROLL for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], lane_xor(most[r], 1));
        most[r] = fmaxf(most[r], lane_xor(most[r], 2));
        if (t == 0) m.maxima[warp * ATTEND_HEADS + g + 8 * r] = most[r];
    }
}

/* Behind a barrier: weights and their sums by 16 tokens. maximum: the block's. */
DEVICE void weigh(const decode_memory &m, const float s[TILES][4], float maximum[2])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    UNROLL for (int r = 0; r < 2; r++)
        maximum[r] = fmaxf(m.maxima[g + 8 * r], m.maxima[ATTEND_HEADS + g + 8 * r]);
    UNROLL for (int n = 0; n < TILES / 2; n++) {
        quad out;
        UNROLL for (int r = 0; r < 2; r++) {
            float sum = 0;
            UNROLL for (int i = 0; i < 2; i++) {
                float p[2];
                UNROLL for (int c = 0; c < 2; c++) {
                    p[c] = power_of_two(s[2 * n + i][2 * r + c] - maximum[r]); /* of -inf 0 */
                    sum += p[c];
                }
                out.w[2 * i + r] = round_pair(p[0], p[1]);
            }
            sum += lane_xor(sum, 1);
            sum += lane_xor(sum, 2);
            if (t == 0) m.sums[(4 * warp + n) * ATTEND_HEADS + g + 8 * r] = sum;
        }
        m.weights[(4 * warp + n) * CUDA_WARP + lane] = out;
    }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Units of the scales that this thread has fetched, four groups of four tokens; 0 from token `tokens` of the block on. */
DEVICE void store_units(const decode_memory &m, int tokens)
{
    int thread = threadIdx.x, seen = tokens - thread / 2 * 4;
    quad scales = m.values[CODES + thread], units[2];
    uint32_t mask = seen >= 4 ? ~0u : seen <= 0 ? 0 : (1u << 8 * seen) - 1, odd = 0;
    UNROLL for (int i = 0; i < 4; i++) {
        scales.w[i] &= mask;
        odd |= scales.w[i] | (scales.w[i] + 0x01010101u);
    }
    if (odd & 0x80808080u)
        UNROLL for (int i = 0; i < 8; i++) units[i / 4].w[i % 4] = any_units(scales.w[i / 2] >> i % 2 * 16 & 0xFFFF);
    else
        UNROLL for (int i = 0; i < 8; i++) units[i / 4].w[i % 4] = plain_units(scales.w[i / 2] >> i % 2 * 16);
    ((quad *)m.units)[2 * thread] = units[0];
    ((quad *)m.units)[2 * thread + 1] = units[1];
}

/* out[j]: of the weights and dims 64w + 8c + j, c a column. */
DEVICE void multiply_values(const decode_memory &m, float out[TILES][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    /* Lanes of odd t read the odd token first: rows of 64 bytes, eight lanes of which would otherwise meet in a bank. */
    int turn = t % 2;
    /* Halves of the even token's word, then of the odd one's. */
    uint32_t low = turn ? 0x1054 : 0x5410, high = turn ? 0x3276 : 0x7632;
    const uint32_t *values = (const uint32_t *)m.values + 2 * t * (VECTOR / 4) + 8 * warp + g;
    const uint32_t *units = m.units + t / 2 * 16 + (4 * warp + g / 2) * 2 + t % 2;
    UNROLL for (int j = 0; j < TILES; j++)
        UNROLL for (int c = 0; c < 4; c++) out[j][c] = 0;
    UNROLL for (int k = 0; k < STEPS; k++) {
        quad weights = m.weights[k * CUDA_WARP + lane];
        uint32_t pair[2][TILES];
        UNROLL for (int half = 0; half < 2; half++) {
            const uint32_t *at = values + (16 * k + 8 * half) * (VECTOR / 4);
            uint32_t x = at[turn * (VECTOR / 4)], y = at[(1 - turn) * (VECTOR / 4)], unit = units[64 * k + 32 * half];
            e2m1_pairs(permute_bytes(x, y, low), pair[half]);
            e2m1_pairs(permute_bytes(x, y, high), pair[half] + 4);
            UNROLL for (int j = 0; j < TILES; j++) pair[half][j] = multiply_pairs(pair[half][j], unit);
        }
        UNROLL for (int j = 0; j < TILES; j++) {
            uint32_t operand[2] = {pair[0][j], pair[1][j]};
            mma_bf16(out[j], weights.w, operand);
        }
    }
}

/* ---- A unit ------------------------------------------------------------------------------------------------------ */

/* Values c of tiles 4n .. 4n+3, which are neighbours: from dim 16t + 8 (c % 2) + 4n of the warp's, of row g + 8 (c / 2). */
DEVICE void out_place(int n, int c, int *h, int *d)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    *h = lane / 4 + c / 2 * 8;
    *d = 64 * warp + 16 * (lane % 4) + 8 * (c % 2) + 4 * n;
}

DEVICE void store_partial(float *to, const attend_state<TILES> &block)
{
    int lane = threadIdx.x % CUDA_WARP;
    if (threadIdx.x / CUDA_WARP == 0 && lane % 4 == 0)
        UNROLL for (int r = 0; r < 2; r++) {
            to[lane / 4 + 8 * r] = block.maximum[r];
            to[ATTEND_HEADS + lane / 4 + 8 * r] = block.sum[r];
        }
    UNROLL for (int n = 0; n < TILES / 4; n++)
        UNROLL for (int c = 0; c < 4; c++) {
            int h, d;
            quad x;
            out_place(n, c, &h, &d);
            UNROLL for (int j = 0; j < 4; j++) x.w[j] = float_bits(block.out[4 * n + j][c]);
            *(quad *)(to + 2 * ATTEND_HEADS + h * DIM + d) = x;
        }
}

DEVICE void store_row(const attend_args &a, const attend_unit &u, const attend_state<TILES> &state)
{
    UNROLL for (int c = 0; c < 4; c++) {
        int h, d;
        out_place(0, c, &h, &d);
        if (h >= u.heads) continue;
        int64_t at = ((int64_t)u.row * a.heads + u.head + h) * DIM + d;
        uint32_t half[TILES];
        quad packed;
        UNROLL for (int j = 0; j < TILES; j++) {
            float x = state.out[j][c] / state.sum[c / 2] * (cached_undo<FORMAT>() * a.value_scale);
            half[j] = u.sequence < 0 ? 0 : bf16_of_float(x);
        }
        UNROLL for (int n = 0; n < 2; n++) {
            quad x;
            UNROLL for (int j = 0; j < 4; j++) x.w[j] = half[4 * n + j] << 16;
            *(quad *)(a.attention + at + 4 * n) = x;
        }
        UNROLL for (int j = 0; j < 4; j++) packed.w[j] = half[2 * j] | half[2 * j + 1] << 16;
        *(quad *)(a.attention_bf16 + at) = packed;
    }
}

KERNEL_OF(attend_decode, attend_args, THREADS, ATTEND_DECODE_BLOCKS)
{
    SHARED(quad, keys, CODES + SCALES);
    SHARED(quad, values, CODES + SCALES);
    SHARED(quad, queries, STEPS *CUDA_WARP);
    SHARED(quad, weights, STEPS *CUDA_WARP);
    SHARED(uint32_t, units, CUDA_BLOCK_TOKENS *DIM / 32);
    SHARED(float, maxima, ATTEND_DECODE_WARPS *ATTEND_HEADS);
    SHARED(float, sums, STEPS *ATTEND_HEADS);
    decode_memory m = {keys, values, queries, weights, units, maxima, sums};
    attend_unit u = unit_of(a, blockIdx.x);
    const int32_t *list;
    int lane = threadIdx.x % CUDA_WARP, length = list_length(a, u, &list);
    int begin = (int)blockIdx.y * a.run, end = min(begin + a.run, length);
    if (begin >= end) {
        attend_state<TILES> none = {};
        if (begin == 0 && u.sequence < 0 && !a.partials) store_row(a, u, none);
        return;
    }
    /* A lane has the place of one block of the list. */
    int own = lane < length ? list[lane] : 0;
    int physical = lane < length ? a.rows.block_table[(int64_t)u.sequence * a.rows.block_table_stride + own] : 0;
    const uint8_t *base = a.cache.base + a.layer_offset + u.group * a.cache.head_bytes;
    const uint8_t *head = base + lane_get(physical, begin) * a.cache.row_bytes;
    fetch(m.keys, head, head + a.cache.k_scales);
    copy_commit();
    fetch(m.values, head + a.cache.v_data, head + a.cache.v_scales);
    copy_commit();
    load_queries(a, u, m.queries);
    attend_state<TILES> state = {};
    for (int i = begin; i < end; i++) {
        int tokens = tokens_of(u.position, lane_get(own, i));
        head = base + lane_get(physical, min(i + 1, end - 1)) * a.cache.row_bytes;
        float s[TILES][4];
        attend_state<TILES> block;
        copy_wait<1>();
        BLOCK_SYNC(); /* keys and queries are there */
        multiply_keys(m, s);
        scale_scores(a, m, tokens, s);
        BLOCK_SYNC(); /* maxima are there; keys have been read */
        if (i + 1 < end) fetch(m.keys, head, head + a.cache.k_scales);
        copy_commit();
        weigh(m, s, block.maximum);
        copy_wait<1>();
        store_units(m, tokens);
        BLOCK_SYNC(); /* values, their units and weights are there */
        UNROLL for (int r = 0; r < 2; r++) {
            block.sum[r] = 0;
            UNROLL for (int n = 0; n < STEPS; n++) block.sum[r] += m.sums[n * ATTEND_HEADS + lane / 4 + 8 * r];
        }
        multiply_values(m, block.out);
        BLOCK_SYNC(); /* they have been read */
        if (i + 1 < end) fetch(m.values, head + a.cache.v_data, head + a.cache.v_scales);
        copy_commit();
        if (a.partials && begin > 0)
            store_partial(a.partials + ((int64_t)blockIdx.x * a.slots + i - a.run + 1) * a.partial, block);
        else
            fold_state(state, block, i == begin);
    }
    if (!a.partials)
        store_row(a, u, state);
    else if (begin == 0)
        store_partial(a.partials + (int64_t)blockIdx.x * a.slots * a.partial, state);
}
