/*
 * Sparse attention of many rows over a cache of NVFP4, where they choose different blocks: attend_decode.cu's steps, so its bits.
 *
 * Blocks are used by hundreds of rows, so that they are packed first, once a launch: codes where they decode in thirteen
 * instructions a word of eight instead of fifteen, scales as the units that they are multiplied by, and all in the order in
 * which a row's warps read it (prefill_pack). 20 KB a block and KV head; rows take one head after the other: its 10 MB at
 * 64K stay in the second-level cache.
 *
 * A thread block is two warps, and has a row from its first block to its last: sums, maxima and outputs stay in registers,
 * and are folded there. A warp has half of a block's tokens for the scores and half of the dims for the values, so that it
 * waits for nobody's copies; what they tell each other is maxima, weights, and sums of the first half. Keys of the next block
 * come while values are multiplied, and its values while scores are.
 *
 * Operands are decoded as in attend_decode.cu: a lane reads 16 bytes, quarter t of the key of token 8i + g; values are
 * transposed as they are loaded, in pieces of 16 bytes, two of a token here.
 *
 * Bound: instructions. A row and block is 3,130 of them, counted on an H200, with what a row costs by itself: 1,664 decode,
 * 256 are products, 400 scores, weights and their sums, 200 fold. Four schedulers of 1.8 GHz and 132 multiprocessors issue
 * those of 8,192 rows and 16 blocks in 430 us; products alone would take 213. 20 KB each, 2.7 GB, come from the second-level
 * cache. Measured there, 2026-12-01, rows that end at 64K, lists at random: 711 us for one KV head, 11 of them to pack,
 * 2.52 instructions a cycle and multiprocessor of four; a warp waits for results of its own instructions, and for the pipes
 * of integers, 47 % busy, and of halves, 38 %. It is the same with 16 warps a multiprocessor of 128 registers as with
 * these 12, and of unpacked blocks, 3,800 instructions, it took 815 us. Turning words left by
 * wide multiplications, for the sake of the pipe of integers, made it 751, more turns in that pipe 716.
 */
#include "backend/cuda/kernels/attend_unit.cuh"
#include "backend/cuda/kernels/cache.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/prefill.h"

enum {
    DIM = PREFILL_DIM,
    FORMAT = KERNEL_CACHE_NVFP4,
    THREADS = PREFILL_PAIRS_THREADS,
    WARPS = THREADS / CUDA_WARP,
    TOKENS = CUDA_BLOCK_TOKENS / WARPS,       /* of a warp's keys */
    VECTOR = DIM / 2,                         /* bytes of a key or value */
    CODES = CUDA_BLOCK_TOKENS * VECTOR / 16 / WARPS, /* of a warp, in quads */
    UNITS = CUDA_BLOCK_TOKENS * DIM / 16 / 8 / WARPS, /* of a warp, in quads */
    PART = CODES + UNITS,
    TILES = 4,                 /* of eight columns, tokens and then dims, that are at work at once */
    TURNS = TOKENS / 8 / TILES,
    PIECES = DIM / 8 / TILES / WARPS, /* of a value */
    STEPS = 8,                 /* of a product: 16 dims, then 16 tokens */
    OWN_STEPS = STEPS / WARPS, /* of 16 tokens, whose weights a warp makes */
};
static_assert(2 * WARPS * PART * 16 == PREFILL_PACKED, "prefill.h");

/*
 * A packed block of a KV head, for each warp its keys and then its values:
 *     keys    codes of its tokens as they lie, then of every token and quarter of the dims a word of two units
 *     values  codes of its dims, two pieces of 16 bytes a token, swizzled; then [16 tokens][4 pairs][2 groups][2 pieces][2] words
 *             of two tokens' units, of tokens 2t and 2t + 1 and of 2t + 8 and 2t + 9
 * A pair of codes that become the two halves of a word of bf16 lies in the halves of a word too: of keys elements i and i + 4 of
 * eight, of values element i of two tokens. Four pairs a word, those of places:
 *     3   as bf16 has them, sign in bit 15, the others in 8 .. 6     1   as 3, turned right by six bits
 *     2   four bits lower                                            0   sign 9, exponent 10 and 1, mantissa 0
 */
DEVICE uint32_t packed_half(uint32_t half, uint32_t other)
{
    uint32_t c0 = half & 15, c1 = half >> 4 & 15, c2 = half >> 8 & 15, c3 = half >> 12 & 15, turned = other >> 7 & 1;
    return (c3 & 8) << 12 | (c3 & 7) << 6 | (c2 & 8) << 8 | (c2 & 7) << 2 | (c1 & 7) << 12 | turned << 5 | (c0 & 8) << 6 |
           (c0 & 4) << 8 | (c0 & 3);
}
DEVICE void decode_packed(uint32_t word, uint32_t unit, uint32_t pair[4])
{
    pair[0] = choose_bits(0x01000100u, word >> 2, word << 6) & E2M1_PAIR;
    pair[1] = (word >> 6 | word << 26) & E2M1_PAIR;
    pair[2] = word << 4 & E2M1_PAIR;
    pair[3] = word & E2M1_PAIR;
    UNROLL for (int i = 0; i < 4; i++) pair[i] = multiply_pairs(pair[i], unit);
}

/* Of the launch's KV head number `own`. */
DEVICE const quad *packed_of(const prefill_pairs_args &a, int own, int key)
{
    return (const quad *)(a.packed + ((int64_t)own * a.lists.keys + key) * PREFILL_PACKED);
}

/* Piece `piece` of the warp's part of a token's value. */
DEVICE int value_place(int token, int piece) { return token * PIECES + (piece ^ (token / 4 % 2)); }

/* Grid: keys, groups. */
KERNEL_OF(prefill_pack, prefill_pairs_args, PREFILL_PACK_THREADS, 1)
{
    const prefill_lists &l = a.lists;
    int key = blockIdx.x, run = 0, thread = threadIdx.x;
    while (run + 1 < l.runs && l.run_key[run + 1] <= key) run++;
    int sequence = l.rows.sequence[l.run_row[run]];
    int64_t cached = l.rows.block_table[(int64_t)sequence * l.rows.block_table_stride + key - l.run_key[run]];
    const uint8_t *head = a.cache.base + cached * a.cache.row_bytes + a.layer_offset +
                          (a.group + blockIdx.y) * a.cache.head_bytes;
    quad *to = (quad *)packed_of(a, blockIdx.y, key);
    for (int i = thread; i < WARPS * CODES; i += PREFILL_PACK_THREADS) {
        quad codes = ((const quad *)head)[i];
        UNROLL for (int w = 0; w < 4; w++) {
            uint32_t low = codes.w[w] & 0xFFFF, high = codes.w[w] >> 16;
            codes.w[w] = packed_half(low, high) | packed_half(high, low) << 16;
        }
        to[i / CODES * (2 * PART) + i % CODES] = codes;
    }
    for (int i = thread; i < WARPS * UNITS * 4; i += PREFILL_PACK_THREADS) {
        uint32_t unit = any_units(((const uint16_t *)(head + a.cache.k_scales))[i]);
        ((uint32_t *)(to + i / (UNITS * 4) * (2 * PART) + CODES))[i % (UNITS * 4)] = unit;
    }
    const quad *values = (const quad *)(head + a.cache.v_data);
    for (int i = thread; i < WARPS * CODES / 2; i += PREFILL_PACK_THREADS) { /* of two tokens */
        int token = i / 4 * 2, piece = i % 4;
        quad even = values[token * 4 + piece], odd = values[token * 4 + 4 + piece];
        UNROLL for (int w = 0; w < 4; w++) {
            uint32_t x[2] = {0, 0};
            UNROLL for (int h = 0; h < 2; h++) {
                uint32_t low = even.w[w] >> 16 * h & 0xFFFF, high = odd.w[w] >> 16 * h & 0xFFFF;
                x[0] |= packed_half(low, high) << 16 * h, x[1] |= packed_half(high, low) << 16 * h;
            }
            even.w[w] = x[0], odd.w[w] = x[1];
        }
        quad *part = to + piece / PIECES * (2 * PART) + PART;
        part[value_place(token, piece % PIECES)] = even, part[value_place(token + 1, piece % PIECES)] = odd;
    }
    for (int i = thread; i < WARPS * UNITS * 4; i += PREFILL_PACK_THREADS) {
        int half = i % 2, piece = i / 2 % 2, upper = i / 4 % 2, t = i / 8 % 4, k = i / 32 % STEPS, warp = i / (UNITS * 4);
        int token = 16 * k + 8 * half + 2 * t, group = warp * (2 * PIECES) + piece * 2 + upper;
        const uint8_t *from = head + a.cache.v_scales + token / 4 * 32 + group * 4 + token % 4;
        ((uint32_t *)(to + warp * (2 * PART) + PART + CODES))[i % (UNITS * 4)] = any_units(from[0] | (uint32_t)from[1] << 8);
    }
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

struct pairs_memory {
    quad *keys, *values; /* of the warp: [PART] */
    quad *weights;       /* [STEPS][lane], operands; the queries' before */
    float *maxima;       /* [warps][16 heads] of a block */
    float *sums;         /* [16 heads] of its first half */
};
static_assert((2 * PART * WARPS + STEPS * CUDA_WARP) * 16 + (WARPS + 1) * PREFILL_HEADS * 4 == PREFILL_PAIRS_SHARED, "prefill.h");

DEVICE pairs_memory open_memory(int warp)
{
    pairs_memory m;
    m.weights = DYNAMIC(quad);
    m.maxima = (float *)(m.weights + STEPS * CUDA_WARP);
    m.sums = m.maxima + WARPS * PREFILL_HEADS;
    m.keys = (quad *)(m.sums + PREFILL_HEADS) + warp * (2 * PART);
    m.values = m.keys + PART;
    return m;
}

/* The warp's keys or values of a packed block. */
DEVICE void fetch(quad *to, const quad *from, int lane)
{
    const uint8_t *at = (const uint8_t *)from + known_here(16 * lane);
    UNROLL for (int i = 0; i < PART / CUDA_WARP; i++) copy_async(to + i * CUDA_WARP + lane, at + 16 * i * CUDA_WARP, true);
}

/* The row's queries as operands; zeros for heads that it does not have. See attend_decode.cu. */
DEVICE void load_queries(const prefill_pairs_args &a, int row, int group, const pairs_memory &m, int lane, quad q[STEPS])
{
    enum { EIGHTS = DIM / 8, QUERIES = PREFILL_HEADS * EIGHTS / THREADS };
    const float *from = a.q + ((int64_t)row * a.heads + group * a.per_group) * DIM;
    quad low[QUERIES], high[QUERIES];
    UNROLL for (int n = 0; n < QUERIES; n++) {
        int i = n * THREADS + threadIdx.x;
        low[n] = high[n] = quad{{0, 0, 0, 0}};
        if (i / EIGHTS < a.per_group) low[n] = *(const quad *)(from + 8 * i), high[n] = *(const quad *)(from + 8 * i + 4);
    }
    UNROLL for (int n = 0; n < QUERIES; n++) {
        int i = n * THREADS + threadIdx.x, h = i / EIGHTS, t = i % EIGHTS / 4, c = i % 4;
        uint32_t *to = (uint32_t *)(m.weights + 2 * c * CUDA_WARP + h % 8 * 4 + t) + h / 8;
        UNROLL for (int e = 0; e < 4; e++)
            to[e / 2 * 4 * CUDA_WARP + e % 2 * 2] = round_pair(bits_float(low[n].w[e]), bits_float(high[n].w[e]));
    }
    BLOCK_SYNC();
    UNROLL for (int k = 0; k < STEPS; k++) q[k] = m.weights[k * CUDA_WARP + lane];
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/* s[i]: tokens 8i .. 8i+7 of a turn. keys, units: this lane's of it. */
DEVICE void multiply_keys(const quad *keys, const uint32_t *units, const quad q[STEPS], float s[TILES][4])
{
    quad key[TILES];
    uint32_t two[TILES];
    UNROLL for (int i = 0; i < TILES; i++) {
        key[i] = keys[i * CUDA_WARP];
        two[i] = units[i * CUDA_WARP];
        UNROLL for (int c = 0; c < 4; c++) s[i][c] = 0;
    }
    UNROLL for (int c = 0; c < 4; c++) {
        uint32_t pair[TILES][4];
        UNROLL for (int i = 0; i < TILES; i++) decode_packed(key[i].w[c], unit_of_two(two[i], c / 2), pair[i]);
        UNROLL for (int n = 0; n < 2; n++)
            UNROLL for (int i = 0; i < TILES; i++) mma_bf16(s[i], q[2 * c + n].w, pair[i] + 2 * n);
    }
}

/* Scores of the warp's tokens in powers of two, -inf from token `tokens` of them on; maximum: the largest of heads g and
 * g + 8. */
DEVICE void score_tokens(float scale, const pairs_memory &m, const quad q[STEPS], int tokens, int lane,
                         float s[TURNS * TILES][4], float maximum[2])
{
    UNROLL for (int turn = 0; turn < TURNS; turn++) {
        int at = turn * TILES * CUDA_WARP + lane;
        multiply_keys(m.keys + at, (const uint32_t *)(m.keys + CODES) + at, q, s + turn * TILES);
    }
    UNROLL for (int i = 0; i < TURNS * TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) s[i][c] *= scale;
    if (tokens < TOKENS)
        UNROLL for (int i = 0; i < TURNS * TILES; i++)
            UNROLL for (int c = 0; c < 4; c++)
                if (8 * i + 2 * (lane % 4) + c % 2 >= tokens) s[i][c] = -INFINITY;
    maximum[0] = maximum[1] = -INFINITY;
    UNROLL for (int i = 0; i < TURNS * TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) maximum[c / 2] = fmaxf(maximum[c / 2], s[i][c]);
    UNROLL for (int r = 0; r < 2; r++) {
        maximum[r] = fmaxf(maximum[r], lane_xor(maximum[r], 1));
        maximum[r] = fmaxf(maximum[r], lane_xor(maximum[r], 2));
    }
}

/* Weights, and their sums of 16 tokens. */
DEVICE void weigh_tokens(const pairs_memory &m, const float s[TURNS * TILES][4], const float maximum[2], int warp, int lane,
                         float sum[OWN_STEPS][2])
{
    UNROLL for (int n = 0; n < OWN_STEPS; n++) {
        quad out;
        UNROLL for (int r = 0; r < 2; r++) {
            sum[n][r] = 0;
            UNROLL for (int i = 0; i < 2; i++) {
                float p[2];
                UNROLL for (int c = 0; c < 2; c++) {
                    p[c] = power_of_two(s[2 * n + i][2 * r + c] - maximum[r]); /* of -inf 0 */
                    sum[n][r] += p[c];
                }
                out.w[2 * i + r] = round_pair(p[0], p[1]);
            }
        }
        m.weights[(warp * OWN_STEPS + n) * CUDA_WARP + lane] = out;
    }
    UNROLL for (int n = 0; n < OWN_STEPS; n++)
        UNROLL for (int r = 0; r < 2; r++) {
            sum[n][r] += lane_xor(sum[n][r], 1);
            sum[n][r] += lane_xor(sum[n][r], 2);
        }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Units of tokens from `tokens` of the block on become 0. */
DEVICE void clear_units(uint32_t *units, int tokens, int lane)
{
    UNROLL for (int i = lane; i < UNITS * 4; i += CUDA_WARP) {
        int token = i / 32 * 16 + i % 2 * 8 + i / 8 % 4 * 2;
        if (token + 1 >= tokens) units[i] = token >= tokens ? 0 : units[i] & 0xFFFFu;
    }
}

/* out[piece][j]: of the weights and dims 32 piece + 4c + j, c a column; of the weights that one warp has made. */
DEVICE void multiply_values(const pairs_memory &m, int from, int lane, float out[PIECES][TILES][4])
{
    int g = lane / 4, t = lane % 4;
    const quad *units = m.values + CODES + t * 2 + g / 4, *weights = m.weights + lane, *values[PIECES];
    UNROLL for (int p = 0; p < PIECES; p++) values[p] = m.values + value_place(lane, p);
    UNROLL for (int k = from; k < from + OWN_STEPS; k += 2) {
        quad weight[2], unit[2];
        UNROLL for (int n = 0; n < 2; n++) weight[n] = weights[(k + n) * CUDA_WARP], unit[n] = units[(k + n) * 8];
        UNROLL for (int p = 0; p < PIECES; p++) {
            uint32_t words[4];
            load_transposed(words, values[p] + 16 * k * PIECES);
            uint32_t pair[4][TILES];
            UNROLL for (int w = 0; w < 4; w++) decode_packed(words[w], unit[w / 2].w[2 * p + w % 2], pair[w]);
            UNROLL for (int n = 0; n < 2; n++)
                UNROLL for (int j = 0; j < TILES; j++) {
                    uint32_t operand[2] = {pair[2 * n][j], pair[2 * n + 1][j]};
                    mma_bf16(out[p][j], weight[n].w, operand);
                }
        }
    }
}

/* What the other warp waits for, and waiting for it: maxima, and then weights. */
template <int WHAT> DEVICE void tell(int warp)
{
    if (warp == 0)
        threads_come<1 + 2 * WHAT, THREADS>();
    else
        threads_come<2 + 2 * WHAT, THREADS>();
}
template <int WHAT> DEVICE void hear(int warp)
{
    if (warp == 0)
        threads_meet<2 + 2 * WHAT, THREADS>();
    else
        threads_meet<1 + 2 * WHAT, THREADS>();
}
enum { MAXIMA, WEIGHTS };

/* ---- A unit ------------------------------------------------------------------------------------------------------ */

/* Of heads g and g + 8; the sums are the second warp's alone. */
struct pairs_state {
    float maximum[2], sum[2], out[PIECES][TILES][4];
};

DEVICE void fold_block(pairs_state &state, const float maximum[2], const float sum[2], const float out[PIECES][TILES][4])
{
    float before[2], now[2];
    UNROLL for (int r = 0; r < 2; r++) {
        float joint;
        fold(state.maximum[r], maximum[r], joint, before[r], now[r]);
        state.maximum[r] = joint;
        state.sum[r] = state.sum[r] * before[r] + sum[r] * now[r];
    }
    if (lane_ballot(!(before[0] == 1 && before[1] == 1)))
        UNROLL for (int p = 0; p < PIECES; p++)
            UNROLL for (int j = 0; j < TILES; j++)
                UNROLL for (int c = 0; c < 4; c++)
                    state.out[p][j][c] = state.out[p][j][c] * before[c / 2] + out[p][j][c] * now[c / 2];
    else /* what there is stays */
        UNROLL for (int p = 0; p < PIECES; p++)
            UNROLL for (int j = 0; j < TILES; j++)
                UNROLL for (int c = 0; c < 4; c++) state.out[p][j][c] += out[p][j][c] * now[c / 2];
}

/* A lane has eight neighbouring dims of both heads, in each piece. */
DEVICE void store_outputs(const prefill_pairs_args &a, int row, int group, bool padding, int warp, int lane, const pairs_state &state)
{
    UNROLL for (int r = 0; r < 2; r++) {
        int h = lane / 4 + 8 * r;
        if (h >= a.per_group) continue;
        UNROLL for (int p = 0; p < PIECES; p++) {
            int64_t at = ((int64_t)row * a.heads + group * a.per_group + h) * DIM + (warp * PIECES + p) * 32 + lane % 4 * 8;
            uint32_t x[8];
            UNROLL for (int e = 0; e < 8; e++) {
                float value = state.out[p][e % 4][2 * r + e / 4] / state.sum[r] * (cached_undo<FORMAT>() * a.value_scale);
                x[e] = padding ? 0 : bf16_of_float(value);
            }
            *(quad *)(a.attention_bf16 + at) = quad{{x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16}};
            UNROLL for (int i = 0; i < 2; i++)
                ((quad *)(a.attention + at))[i] =
                    quad{{x[4 * i] << 16, x[4 * i + 1] << 16, x[4 * i + 2] << 16, x[4 * i + 3] << 16}};
        }
    }
}

/* Grid: rows, groups: all rows of a head before the next one's. */
KERNEL_OF(prefill_pairs, prefill_pairs_args, THREADS, PREFILL_PAIRS_BLOCKS)
{
    const prefill_lists &l = a.lists;
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, row = l.first + (int)blockIdx.x, run = 0;
    int group = a.group + (int)blockIdx.y;
    pairs_memory m = open_memory(warp);
    const int32_t *list = l.blocks + ((int64_t)row * l.heads + group) * l.top;
    int own = lane < l.top ? list[lane] : -1, position = l.rows.position[row]; /* a lane has one block of the list */
    bool padding = l.rows.sequence[row] < 0;
    pairs_state state;
    UNROLL for (int r = 0; r < 2; r++) state.maximum[r] = -INFINITY, state.sum[r] = 0; /* the first fold leaves nothing of it */
    UNROLL for (int p = 0; p < PIECES; p++)
        UNROLL for (int j = 0; j < TILES; j++)
            UNROLL for (int c = 0; c < 4; c++) state.out[p][j][c] = 0;
    if (padding) {
        store_outputs(a, row, group, padding, warp, lane, state);
        return;
    }
    while (run + 1 < l.runs && l.run_row[run + 1] <= row) run++;
    int length = count_bits(lane_ballot(own >= 0));
    const quad *packed = packed_of(a, (int)blockIdx.y, l.run_key[run]) + warp * (2 * PART);
    const quad *at = packed + lane_get(own, 0) * (PREFILL_PACKED / 16);
    if (length > 0) fetch(m.keys, at, lane);
    copy_commit();
    if (length > 0) fetch(m.values, at + PART, lane);
    copy_commit();
    quad q[STEPS];
    load_queries(a, row, group, m, lane, q);
    for (int i = 0; i < length; i++) {
        int tokens = tokens_of(position, lane_get(own, i)), next = lane_get(own, min(i + 1, CUDA_WARP - 1));
        at = packed + next * (PREFILL_PACKED / 16);
        float s[TURNS * TILES][4], maximum[2], sum[OWN_STEPS][2], total[2], out[PIECES][TILES][4];
        copy_wait<1>();
        WARP_SYNC(); /* keys are there */
        score_tokens(a.scale, m, q, tokens - warp * TOKENS, lane, s, maximum);
        if (lane % 4 == 0)
            UNROLL for (int r = 0; r < 2; r++) m.maxima[warp * PREFILL_HEADS + lane / 4 + 8 * r] = maximum[r];
        tell<MAXIMA>(warp);
        WARP_SYNC(); /* they have been read */
        if (i + 1 < length) fetch(m.keys, at, lane);
        copy_commit();
        copy_wait<1>();
        WARP_SYNC(); /* values are there */
        if (tokens < CUDA_BLOCK_TOKENS) clear_units((uint32_t *)(m.values + CODES), tokens, lane);
        hear<MAXIMA>(warp); /* and weights of the block before have been read */
        UNROLL for (int r = 0; r < 2; r++)
            maximum[r] = fmaxf(maximum[r], m.maxima[(1 - warp) * PREFILL_HEADS + lane / 4 + 8 * r]);
        weigh_tokens(m, s, maximum, warp, lane, sum);
        UNROLL for (int r = 0; r < 2; r++) total[r] = 0;
        if (warp == 0 && lane % 4 == 0)
            UNROLL for (int r = 0; r < 2; r++) {
                UNROLL for (int n = 0; n < OWN_STEPS; n++) total[r] += sum[n][r];
                m.sums[lane / 4 + 8 * r] = total[r];
            }
        tell<WEIGHTS>(warp);
        UNROLL for (int p = 0; p < PIECES; p++)
            UNROLL for (int j = 0; j < TILES; j++)
                UNROLL for (int c = 0; c < 4; c++) out[p][j][c] = 0;
        WARP_SYNC(); /* units are there, and the warp's own weights */
        if (warp == 1) {
            hear<WEIGHTS>(warp);
            UNROLL for (int r = 0; r < 2; r++) total[r] = m.sums[lane / 4 + 8 * r];
        }
        UNROLL for (int r = 0; r < 2; r++)
            UNROLL for (int n = 0; n < OWN_STEPS; n++) total[r] += sum[n][r]; /* the first warp has no use for it */
        multiply_values(m, 0, lane, out);
        if (warp == 0) hear<WEIGHTS>(warp);
        multiply_values(m, OWN_STEPS, lane, out);
        WARP_SYNC(); /* they have been read */
        if (i + 1 < length) fetch(m.values, at + PART, lane);
        copy_commit();
        fold_block(state, maximum, total, out);
    }
    BLOCK_SYNC(); /* sums have been read */
    if (warp == WARPS - 1 && lane % 4 == 0)
        UNROLL for (int r = 0; r < 2; r++) m.sums[lane / 4 + 8 * r] = state.sum[r];
    BLOCK_SYNC();
    UNROLL for (int r = 0; r < 2; r++) state.sum[r] = m.sums[lane / 4 + 8 * r];
    store_outputs(a, row, group, padding, warp, lane, state);
}
