/*
 * Attention of attend.cu for decoding, over lists of blocks in a cache of NVFP4 with 128 dims: the same steps, so the same
 * bits, without a tile of decoded values. What a block gave is m_b, l_b and O_b of attend.cu; blocks fold in ascending order.
 *
 * A thread block is four warps and takes a run of one unit's blocks (a row, a KV head, 16 of its query heads). Codes and scales
 * of keys and of values lie in shared memory, each in a place of 9,216 bytes that is filled for the next block as soon as all
 * warps have read it; warps decode what they read into operands of m16n8k16.
 *
 *     scores    warp w has tokens 32w .. 32w+31 as columns, in key_order: lane (g, t) reads 16 bytes, quarter t of the key of
 *               token 8i + g. The queries are the rows, as operands in shared memory.
 *     weights   behind a barrier, since they are relative to the largest score of all warps; left as operands.
 *     values    warp w has dims 32w .. 32w+31, the 16 bytes of a token that are piece w. Eight tokens of a piece are a matrix of
 *               8 x 8 words of four codes: transposed as it is loaded, lane (g, t) has dims 32w + 4g .. 4g+3 of tokens 2t and
 *               2t+1 in one register, which decodes to the pairs of column g in tiles 0 .. 3. Pieces of values are swizzled so
 *               that eight tokens meet every bank once. Tokens that the row does not see get scale 0, whatever the cache
 *               holds there.
 *
 * Where there are too few units for the GPU, a unit is cut into runs. On GPUs that have clusters its thread blocks are one: the
 * first folds its run, the others leave what each block gave in their own shared memory, and behind a barrier thread block r
 * folds the r-th part of the dims out of everybody's. On others all of it goes through the GPU's memory, and attend_fold folds.
 *
 * Bytes of a block: 18,432; at 4.5 TB/s a multiprocessor of 132 gets one in 540 ns. Instructions of a block, all warps together,
 * are 4,290 as compiled for sm_90a, 2,180 of them for decoding, for which four schedulers of 1.79 GHz need 600 ns: the bound. On
 * an H200, 2026-12-01: 960 ns a block with four thread blocks a multiprocessor (128 rows, 4 KV heads: 60.5 us, 55 % of the card's
 * reading), 1,550 ns alone. Reading the same pages by bulk copies and nothing else took 37.7 us there, 11.9 us for 128 rows of
 * one KV head and 5.3 us for 32; a launch that reads list, table and 2 KB of a page 2.7 to 3.3 us.
 */
#include "backend/cuda/kernels/attend.h"

#include "backend/cuda/kernels/attend_unit.cuh"
#include "backend/cuda/kernels/cache.cuh"

enum {
    DIM = 128,
    FORMAT = KERNEL_CACHE_NVFP4,
    WARPS = ATTEND_DECODE_WARPS,
    THREADS = WARPS * CUDA_WARP,
    VECTOR = DIM / 2,                        /* bytes of a key or value */
    CODES = CUDA_BLOCK_TOKENS * VECTOR / 16, /* of a block, in quads */
    SCALES = CUDA_BLOCK_TOKENS * DIM / 16 / 16,
    TILES = 4,    /* of eight columns that a warp has: tokens, then dims */
    STEPS = 8,    /* of a product: 16 dims, then 16 tokens */
    SLOT = ATTEND_HEADS * DIM,   /* floats of what a block gave */
    NUMBERS = 2 * ATTEND_HEADS,
    UNIT_PAIR = 18, UNIT_STEP = 80, /* words */
};
static_assert(WARPS == 4 && 2 * SCALES == THREADS, "a warp has a piece of each value; two threads share a quad of scales");
static_assert(SLOT * 4 <= (CODES + SCALES) * 16, "what a block gave has room in the place of the keys");

/* The shared memory of a thread block. */
struct decode_memory {
    quad *keys, *values;    /* [CODES + SCALES] as in the cache, the values' pieces swizzled */
    quad *queries;          /* [STEPS][lane], operands */
    quad *weights;          /* [STEPS][lane] */
    uint32_t *units;        /* [16 tokens][4 pairs][8 groups][2]: the values' scales of two tokens a word, of tokens 2t and of
                             * 2t + 8; UNIT_PAIR and UNIT_STEP apart, so that neither writers nor readers meet in a bank */
    float *maxima, *sums;   /* [warps][16 heads], [STEPS][16 heads] */
    float *numbers;         /* [run][16 heads][maximum, sum] of the slots */
    float *slots;           /* [run - 1][thread blocks][16 heads][DIM / thread blocks]; the last one is in place of the keys */
};

struct alignas(8) twin { uint32_t w[2]; };

DEVICE decode_memory open_memory(int run)
{
    decode_memory m;
    m.keys = DYNAMIC(quad);
    m.values = m.keys + CODES + SCALES;
    m.queries = m.values + CODES + SCALES;
    m.weights = m.queries + STEPS * CUDA_WARP;
    m.units = (uint32_t *)(m.weights + STEPS * CUDA_WARP);
    m.maxima = (float *)(m.units + STEPS * UNIT_STEP);
    m.sums = m.maxima + WARPS * ATTEND_HEADS;
    m.numbers = m.sums + STEPS * ATTEND_HEADS;
    m.slots = m.numbers + run * NUMBERS;
    return m;
}

/* Piece `piece` of a token's value. */
DEVICE int value_place(int token, int piece) { return token * (VECTOR / 16) + (piece ^ (token / 2 % 4)); }

/* Codes and scales of a head's keys or values. */
template <bool VALUES> DEVICE void fetch(quad *to, const uint8_t *codes, const uint8_t *scales)
{
    int thread = threadIdx.x, place = VALUES ? value_place(thread / 4, thread % 4) : thread;
    static_assert(THREADS / 4 % 8 == 0, "the swizzle is that of the first");
    int offset = known_here(8 * thread); /* or the compiler makes an address of its own for each */
    codes += 2 * offset, scales += offset;
    UNROLL for (int i = 0; i < CODES / THREADS; i++) copy_async(to + i * THREADS + place, codes + 16 * i * THREADS, true);
    if (thread % 2 == 0) copy_async(to + CODES + thread / 2, scales, true);
}

/* The unit's queries; zeros for heads that it does not have. A thread has eight neighbouring dims, twice: operands 2c and 2c + 1
 * of quarter t, in pairs four apart as their keys are decoded. They are asked for before the block, or they would come behind it. */
enum { EIGHTS = DIM / 8, QUERIES = ATTEND_HEADS * EIGHTS / THREADS };
struct raw_queries { quad low[QUERIES], high[QUERIES]; };
DEVICE void load_queries(const attend_args &a, const attend_unit &u, raw_queries &q)
{
    const float *from = a.q + ((int64_t)u.row * a.heads + u.head) * DIM;
    UNROLL for (int n = 0; n < QUERIES; n++) {
        int i = n * THREADS + threadIdx.x;
        q.low[n] = q.high[n] = quad{{0, 0, 0, 0}};
        if (i / EIGHTS < u.heads) q.low[n] = *(const quad *)(from + 8 * i), q.high[n] = *(const quad *)(from + 8 * i + 4);
    }
}
DEVICE void store_queries(const raw_queries &q, quad *queries)
{
    UNROLL for (int n = 0; n < QUERIES; n++) {
        int i = n * THREADS + threadIdx.x, h = i / EIGHTS, t = i % EIGHTS / 4, c = i % 4;
        uint32_t *to = (uint32_t *)(queries + 2 * c * CUDA_WARP + h % 8 * 4 + t) + h / 8;
        UNROLL for (int e = 0; e < 4; e++)
            to[e / 2 * 4 * CUDA_WARP + e % 2 * 2] = round_pair(bits_float(q.low[n].w[e]), bits_float(q.high[n].w[e]));
    }
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/* s[i]: tokens 32w + 8i .. 8i+7 of the block. */
DEVICE void multiply_keys(const decode_memory &m, float s[TILES][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    const quad *keys = m.keys + (32 * warp + g) * (VECTOR / 16) + t;
    const uint16_t *scales = (const uint16_t *)(m.keys + CODES) + (32 * warp + g) * 4 + t;
    quad key[TILES];
    uint32_t two[TILES], odd = 0;
    UNROLL for (int i = 0; i < TILES; i++) {
        key[i] = keys[8 * i * (VECTOR / 16)];
        two[i] = scales[8 * i * 4];
        odd |= two[i] | (two[i] + 0x0101u);
        UNROLL for (int c = 0; c < 4; c++) s[i][c] = 0;
    }
    if (odd & 0x8080u)
        UNROLL for (int i = 0; i < TILES; i++) two[i] = any_units(two[i]);
    else
        UNROLL for (int i = 0; i < TILES; i++) two[i] = plain_units(two[i]);
    UNROLL for (int c = 0; c < 4; c++) {
        quad even = m.queries[2 * c * CUDA_WARP + lane], next = m.queries[(2 * c + 1) * CUDA_WARP + lane];
        UNROLL for (int i = 0; i < TILES; i++) {
            uint32_t pair[4];
            decode_eight<FORMAT>(key[i].w + c, unit_of_two(two[i], c / 2), pair);
            mma_bf16(s[i], even.w, pair);
            mma_bf16(s[i], next.w, pair + 2);
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
                if (32 * warp + 8 * i + 2 * t + c % 2 >= tokens) s[i][c] = -INFINITY;
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
    UNROLL for (int r = 0; r < 2; r++) {
        float most[WARPS];
        UNROLL for (int w = 0; w < WARPS; w++) most[w] = m.maxima[w * ATTEND_HEADS + g + 8 * r];
        maximum[r] = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    }
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
            if (t == 0) m.sums[(2 * warp + n) * ATTEND_HEADS + g + 8 * r] = sum;
        }
        m.weights[(2 * warp + n) * CUDA_WARP + lane] = out;
    }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Units of the values' scales; 0 from token `tokens` of the block on. A thread has two groups of four tokens. */
DEVICE void store_units(const decode_memory &m, int tokens)
{
    int thread = threadIdx.x, first = thread / 4 * 4, seen = tokens - first;
    twin scales = ((const twin *)(m.values + CODES))[thread];
    if (tokens < CUDA_BLOCK_TOKENS) {
        uint32_t mask = seen >= 4 ? ~0u : seen <= 0 ? 0 : (1u << 8 * seen) - 1;
        scales.w[0] &= mask, scales.w[1] &= mask;
    }
    uint32_t units[4], odd = scales.w[0] | (scales.w[0] + 0x01010101u) | scales.w[1] | (scales.w[1] + 0x01010101u);
    if (odd & 0x80808080u)
        UNROLL for (int i = 0; i < 4; i++) units[i] = any_units(scales.w[i / 2] >> i % 2 * 16 & 0xFFFF);
    else
        UNROLL for (int i = 0; i < 4; i++) units[i] = units_of_bytes(scales.w[i / 2], i % 2);
    /* Tokens 16k + 8h + 4q .. 4q+3: pairs 2q, 2q+1 of half h. */
    uint32_t *to = m.units + first / 16 * UNIT_STEP + first / 4 % 2 * 2 * UNIT_PAIR + thread % 4 * 4 + first / 8 % 2;
    UNROLL for (int i = 0; i < 4; i++) to[i % 2 * UNIT_PAIR + i / 2 * 2] = units[i];
}

/* out[j]: of the weights and dims 32w + 4c + j, c a column. */
DEVICE void multiply_values(const decode_memory &m, float out[TILES][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    const quad *values = m.values + value_place(lane, warp);
    const twin *units = (const twin *)(m.units + t * UNIT_PAIR) + 2 * warp + g / 4;
    UNROLL for (int j = 0; j < TILES; j++)
        UNROLL for (int c = 0; c < 4; c++) out[j][c] = 0;
    UNROLL for (int k = 0; k < STEPS; k += 2) {
        uint32_t words[4];
        load_transposed(words, values + 16 * k * (VECTOR / 16));
        UNROLL for (int n = 0; n < 2; n++) {
            quad weights = m.weights[(k + n) * CUDA_WARP + lane];
            twin unit = units[(k + n) * (UNIT_STEP / 2)];
            uint32_t pair[2][TILES];
            UNROLL for (int half = 0; half < 2; half++)
                decode_eight<FORMAT>(words + 2 * n + half, unit.w[half], pair[half]);
            UNROLL for (int j = 0; j < TILES; j++) {
                uint32_t operand[2] = {pair[0][j], pair[1][j]};
                mma_bf16(out[j], weights.w, operand);
            }
        }
    }
}

/* ---- A unit ------------------------------------------------------------------------------------------------------ */

/* Values c of all tiles are neighbours: from dim 8t + 4 (c % 2) of the warp's, of row g + 8 (c / 2). */
DEVICE quad four_dims(const attend_state<TILES> &state, int c)
{
    quad x;
    UNROLL for (int j = 0; j < TILES; j++) x.w[j] = float_bits(state.out[j][c]);
    return x;
}
DEVICE int head_of(int c) { return threadIdx.x % CUDA_WARP / 4 + c / 2 * 8; }
DEVICE int dim_of(int c) { return threadIdx.x / CUDA_WARP * 32 + threadIdx.x % 4 * 8 + c % 2 * 4; }

/* A partial in device memory. The sums of weights are in the first warp. */
DEVICE void store_partial(float *to, const attend_state<TILES> &state)
{
    if (threadIdx.x < CUDA_WARP && threadIdx.x % 4 == 0)
        UNROLL for (int r = 0; r < 2; r++) {
            to[head_of(2 * r)] = state.maximum[r];
            to[ATTEND_HEADS + head_of(2 * r)] = state.sum[r];
        }
    UNROLL for (int c = 0; c < 4; c++) *(quad *)(to + NUMBERS + head_of(c) * DIM + dim_of(c)) = four_dims(state, c);
}

/* Where a thread block leaves what its slot-th block gave, and its numbers. */
DEVICE float *slot_of(const attend_args &a, const decode_memory &m, int slot)
{
    return slot == a.run - 1 ? (float *)m.keys : m.slots + slot * SLOT;
}
template <int CLUSTER>
DEVICE void store_slot(const attend_args &a, const decode_memory &m, int slot, const attend_state<TILES> &state)
{
    enum { PART = DIM / CLUSTER };
    float *to = slot_of(a, m, slot), *numbers = m.numbers + slot * NUMBERS;
    if (threadIdx.x < CUDA_WARP && threadIdx.x % 4 == 0)
        UNROLL for (int r = 0; r < 2; r++) {
            numbers[2 * head_of(2 * r)] = state.maximum[r];
            numbers[2 * head_of(2 * r) + 1] = state.sum[r];
        }
    UNROLL for (int c = 0; c < 4; c++)
        *(quad *)(to + dim_of(c) / PART * (ATTEND_HEADS * PART) + head_of(c) * PART + dim_of(c) % PART) = four_dims(state, c);
}

DEVICE void store_row(const attend_args &a, const attend_unit &u, const attend_state<TILES> &state)
{
    UNROLL for (int r = 0; r < 2; r++) {
        int h = head_of(2 * r);
        if (h >= u.heads) continue;
        int64_t at = ((int64_t)u.row * a.heads + u.head + h) * DIM + dim_of(0);
        uint32_t half[2 * TILES];
        quad packed;
        UNROLL for (int i = 0; i < 2 * TILES; i++) {
            float x = state.out[i % TILES][2 * r + i / TILES] / state.sum[r] * (cached_undo<FORMAT>() * a.value_scale);
            half[i] = u.sequence < 0 ? 0 : bf16_of_float(x);
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

/* Out of the shared memory of all thread blocks of a cluster: this one's part of the dims, four of a head a thread. */
template <int CLUSTER>
DEVICE void fold_cluster(const attend_args &a, const attend_unit &u, const decode_memory &m, int length)
{
    enum { PART = DIM / CLUSTER, QUADS = ATTEND_HEADS * PART / 4, AT_ONCE = 8 };
    int part = neighbour_rank(), slots = length - min(length, a.run) + 1;
    for (int i = threadIdx.x; i < QUADS; i += THREADS) {
        int h = i / (PART / 4);
        float maximum = -INFINITY, sum = 0, out[4] = {0, 0, 0, 0};
        for (int from = 0; from < slots; from += AT_ONCE) {
            twin numbers[AT_ONCE];
            quad outs[AT_ONCE];
            UNROLL for (int n = 0; n < AT_ONCE; n++) {
                int at = from + n, rank = at == 0 ? 0 : (at - 1) / a.run + 1, slot = at == 0 ? a.run - 1 : (at - 1) % a.run;
                if (at >= slots) continue;
                numbers[n] = *neighbour_shared((const twin *)(m.numbers + slot * NUMBERS) + h, rank);
                outs[n] = *neighbour_shared((const quad *)slot_of(a, m, slot) + part * QUADS + i, rank);
            }
            UNROLL for (int n = 0; n < AT_ONCE; n++) {
                if (from + n >= slots) continue;
                float joint, before, now;
                fold(maximum, bits_float(numbers[n].w[0]), joint, before, now);
                maximum = joint;
                sum = sum * before + bits_float(numbers[n].w[1]) * now;
                UNROLL for (int j = 0; j < 4; j++) out[j] = out[j] * before + bits_float(outs[n].w[j]) * now;
            }
        }
        if (h >= u.heads) continue;
        int64_t at = ((int64_t)u.row * a.heads + u.head + h) * DIM + part * PART + i % (PART / 4) * 4;
        quad x;
        UNROLL for (int j = 0; j < 4; j++)
            x.w[j] = bf16_of_float(out[j] / sum * (cached_undo<FORMAT>() * a.value_scale));
        *(twin *)(a.attention_bf16 + at) = twin{{x.w[0] | x.w[1] << 16, x.w[2] | x.w[3] << 16}};
        UNROLL for (int j = 0; j < 4; j++) x.w[j] <<= 16;
        *(quad *)(a.attention + at) = x;
    }
}

template <int CLUSTER> DEVICE void attend_decode(const attend_args &a)
{
    decode_memory m = open_memory(a.run);
    int number = blockIdx.x / CLUSTER, part = CLUSTER > 1 ? neighbour_rank() : (int)blockIdx.y;
    int lane = threadIdx.x % CUDA_WARP;
    attend_unit u = unit_of(a, number);
    const int32_t *list = a.blocks + ((int64_t)u.row * a.index_heads + u.group) * a.index_top;
    int own = lane < a.index_top ? list[lane] : -1; /* a lane has one block of the list */
    raw_queries queries;
    load_queries(a, u, queries);
    attend_state<TILES> state = {};
    state.maximum[0] = state.maximum[1] = -INFINITY; /* the first fold leaves nothing of it */
    if (u.sequence < 0) {
        if (part == 0 && !a.partials) store_row(a, u, state);
        return;
    }
    int length = count_bits(lane_ballot(own >= 0)), begin = part * a.run, end = min(begin + a.run, length);
    if (CLUSTER == 1 && begin >= end) return;
    int physical = own >= 0 ? a.rows.block_table[(int64_t)u.sequence * a.rows.block_table_stride + own] : 0;
    const uint8_t *base = a.cache.base + a.layer_offset + u.group * a.cache.head_bytes;
    uint32_t row_bytes = (uint32_t)a.cache.row_bytes;
    const uint8_t *head = base + (uint64_t)row_bytes * (uint32_t)lane_get(physical, begin % CUDA_WARP);
    if (begin < end) {
        fetch<false>(m.keys, head, head + a.cache.k_scales);
        copy_commit();
        fetch<true>(m.values, head + a.cache.v_data, head + a.cache.v_scales);
        copy_commit();
        store_queries(queries, m.queries);
    }
    for (int i = begin; i < end; i++) {
        int tokens = tokens_of(u.position, lane_get(own, i));
        head = base + (uint64_t)row_bytes * (uint32_t)lane_get(physical, min(i + 1, end - 1));
        float s[TILES][4];
        attend_state<TILES> block;
        copy_wait<1>();
        BLOCK_SYNC(); /* keys and queries are there */
        multiply_keys(m, s);
        scale_scores(a, m, tokens, s);
        BLOCK_SYNC(); /* maxima are there; keys have been read */
        if (i + 1 < end) fetch<false>(m.keys, head, head + a.cache.k_scales);
        copy_commit();
        weigh(m, s, block.maximum);
        copy_wait<1>();
        WARP_SYNC(); /* the warp's part of the scales is there */
        store_units(m, tokens);
        BLOCK_SYNC(); /* values, their units and weights are there */
        UNROLL for (int r = 0; r < 2; r++) block.sum[r] = 0;
        if (threadIdx.x < CUDA_WARP)
            UNROLL for (int r = 0; r < 2; r++)
                UNROLL for (int n = 0; n < STEPS; n++) block.sum[r] += m.sums[n * ATTEND_HEADS + lane / 4 + 8 * r];
        multiply_values(m, block.out);
        BLOCK_SYNC(); /* they have been read */
        if (i + 1 < end) fetch<true>(m.values, head + a.cache.v_data, head + a.cache.v_scales);
        copy_commit();
        if (begin > 0 && CLUSTER > 1)
            store_slot<CLUSTER>(a, m, i - begin, block);
        else if (begin > 0)
            store_partial(a.partials + ((int64_t)number * a.slots + i - a.run + 1) * a.partial, block);
        else
            fold_state(state, block, false);
    }
    if constexpr (CLUSTER > 1) {
        if (part == 0) store_slot<CLUSTER>(a, m, a.run - 1, state);
        neighbours_meet();
        fold_cluster<CLUSTER>(a, u, m, length);
        neighbours_meet(); /* nobody reads here any more */
    } else if (!a.partials) {
        UNROLL for (int r = 0; r < 2; r++)
            if (threadIdx.x < CUDA_WARP && lane % 4 == 0) m.sums[head_of(2 * r)] = state.sum[r];
        BLOCK_SYNC();
        UNROLL for (int r = 0; r < 2; r++) state.sum[r] = m.sums[head_of(2 * r)];
        store_row(a, u, state);
    } else if (begin == 0) {
        store_partial(a.partials + (int64_t)number * a.slots * a.partial, state);
    }
}

KERNEL_OF(attend_decode, attend_args, THREADS, ATTEND_DECODE_BLOCKS) { attend_decode<1>(a); }
KERNEL_NEIGHBOURS(attend_decode_2, attend_args, THREADS, ATTEND_DECODE_BLOCKS, 2) { attend_decode<2>(a); }
KERNEL_NEIGHBOURS(attend_decode_4, attend_args, THREADS, ATTEND_DECODE_BLOCKS, 4) { attend_decode<4>(a); }
KERNEL_NEIGHBOURS(attend_decode_8, attend_args, THREADS, ATTEND_DECODE_BLOCKS, 8) { attend_decode<8>(a); }
