/*
 * Attention of attend.cu for decoding, over lists of blocks in a cache of NVFP4 with 128 dims: the same steps, so the same
 * bits, without a tile of decoded values. What a block gave is m_b, l_b and O_b of attend.cu; blocks fold in ascending order.
 *
 * Four warps, a group, take a run of one unit's blocks (a row, a KV head, 16 of its query heads), one block after the other.
 *
 *     scores    warp w has tokens 32w .. 32w+31 as columns, in key_order: lane (g, t) has 16 bytes, quarter t of the key of
 *               token 8i + g, and their scales in registers, as they come from memory: those of the next block are asked for as
 *               soon as these have been decoded. The queries are the rows, as operands in shared memory.
 *     weights   behind a barrier, since they are relative to the largest score of all four warps; left as operands.
 *     values    warp w has dims 32w .. 32w+31, the 16 bytes of a token that are piece w. Codes are copied into shared memory,
 *               those of the next block beside them while these are read. Eight tokens of a piece are a matrix of 8 x 8 words of
 *               four codes: transposed as it is loaded, lane (g, t) has dims 32w + 4g .. 4g+3 of tokens 2t and 2t+1 in one
 *               register, which decodes to the pairs of column g in tiles 0 .. 3. Pieces of values are swizzled so that eight
 *               tokens meet every bank once. Tokens that the row does not see get scale 0, whatever the cache holds there.
 *
 * Two barriers a block: for the largest score, and for weights, values and their units. Where units are few, several groups
 * share one, of a thread block (attend_decode_wide) or of a cluster of them. The first folds its run; what the others' blocks
 * gave is pushed, each part of the dims to the thread block that folds it, into its shared memory, and counted there: nobody
 * waits for a barrier of the cluster at the end, nor for the fence in it. On GPUs without clusters it goes through the GPU's
 * memory, and attend_fold folds.
 *
 * Bytes of a block: 18,432; at 4.5 TB/s a multiprocessor of 132 gets one in 540 ns. Instructions of a block, all four warps
 * together, are 3,780 as compiled for sm_90a, 1,920 of them to decode (15 for a word of eight codes) and 256 products: four
 * schedulers of 1.79 GHz issue them in 530 ns. Four groups a multiprocessor, 123 registers a thread: on an H200, 2026-12-01, they
 * issue in 64 of 100 cycles and take 830 to 970 ns a block; a group alone 1,200. What binds there is neither memory nor one of
 * the units (logic and multiplications are at 45 % each) but what four warps a scheduler have ready. Five groups of 96 registers
 * took 70 us where four take 57 (128 rows, 4 KV heads): thread blocks are not spread evenly where more find room than there are.
 * Clusters do not fit as multiprocessors are counted: 32 of 16 groups take 9.6 us where a fifth group finds room on a
 * multiprocessor and 12.5 where not; 32 of four thread blocks that have a multiprocessor each 14.0.
 */
#include "backend/cuda/kernels/attend.h"

#include "backend/cuda/kernels/attend_unit.cuh"
#include "backend/cuda/kernels/cache.cuh"
#include "backend/cuda/kernels/hopper.cuh"

enum {
    DIM = 128,
    FORMAT = KERNEL_CACHE_NVFP4,
    WARPS = ATTEND_DECODE_WARPS,
    THREADS = WARPS * CUDA_WARP, /* of a group */
    WIDE = ATTEND_DECODE_GROUPS,
    VECTOR = DIM / 2,                        /* bytes of a key or value */
    CODES = CUDA_BLOCK_TOKENS * VECTOR / 16, /* of a block, in quads */
    TILES = 4,                               /* of eight columns that a warp has: tokens, then dims */
    STEPS = 8,                               /* of a product: 16 dims, then 16 tokens */
    OUTPUTS = ATTEND_HEADS * DIM / 4,        /* of a unit, in quads */
    HEAD_SUMS = 12,                          /* words between the sums of two heads, of which STEPS are there */
    UNIT_PAIR = 18, UNIT_STEP = 80,          /* words */
};
static_assert(WARPS == 4, "a warp has a piece of each value");

/* The shared memory of a thread block, in bytes. */
enum {
    OPERANDS = 0,                                /* [STEPS][lane] quads: the queries */
    ARRIVED = OPERANDS + STEPS * CUDA_WARP * 16, /* of what the thread blocks of a cluster push */

    /* An area of each group, the first one's; AREA bytes apart, or AREA_SHORT if all groups have one block at most: */
    VALUES = ARRIVED + 128,                       /* [CODES] quads as in the cache, their pieces swizzled */
    WEIGHTS = VALUES + CODES * 16,                /* [STEPS][lane] quads, operands */
    UNITS = WEIGHTS + STEPS * CUDA_WARP * 16,     /* [16 tokens][4 pairs][8 groups][2] words: the values' scales of two tokens, of
                                                   * tokens 2t and of 2t + 8; UNIT_PAIR and UNIT_STEP apart, so that neither
                                                   * writers nor readers meet in a bank */
    MAXIMA = UNITS + STEPS * UNIT_STEP * 4,       /* [16 heads][4 warps] floats */
    SUMS = MAXIMA + ATTEND_HEADS * WARPS * 4,     /* [16 heads][STEPS] floats: of 16 tokens each */
    OTHERS = SUMS + ATTEND_HEADS * HEAD_SUMS * 4, /* the values of every other block */
    AREA_SHORT = OTHERS - VALUES,
    AREA = AREA_SHORT + CODES * 16,

    /* Behind the areas slots of what is to be folded: [slots] of quads of the outputs, those that this thread block folds, and
     * [slots][16 heads] twins: maximum, sum. */
};
static_assert(VALUES == (int)ATTEND_DECODE_SHARED && AREA == (int)ATTEND_DECODE_AREA && AREA_SHORT == (int)ATTEND_DECODE_SHORT,
              "attend.h");

/* Where a thread of a group reads and writes there, its area in it: in registers, or nvcc would compute each of them again
 * wherever it is used. */
struct decode_places {
    int thread;                         /* of the group */
    int operands, weights, own_weights; /* of this lane; the first two steps of the warp's tokens */
    int maxima, own_maxima, own_sums;   /* of head g; this warp's */
    int area;
    int own_units, units, values, fetched;
};
template <typename type> DEVICE type *shared_at(int offset) { return (type *)(DYNAMIC(unsigned char) + offset); }

/* Piece `piece` of a token's value. */
DEVICE unsigned value_place(unsigned token, unsigned piece) { return token * (VECTOR / 16) + (piece ^ (token / 2 % 4)); }

DEVICE decode_places places_of(unsigned thread, int area)
{
    unsigned warp = thread / CUDA_WARP, lane = thread % CUDA_WARP, g = lane / 4, t = lane % 4, first = thread / 4 * 4;
    /* Tokens 16k + 8h + 4q .. 4q+3: pairs 2q, 2q+1 of half h. */
    unsigned units = first / 16 * UNIT_STEP + first / 4 % 2 * 2 * UNIT_PAIR + t * 4 + first / 8 % 2;
    decode_places p;
    p.thread = known_here((int)thread);
    p.operands = known_here((int)(OPERANDS + 16 * lane));
    p.weights = known_here((int)(WEIGHTS + 16 * lane) + area);
    p.own_weights = known_here((int)(WEIGHTS + 16 * (lane + warp * 2 * CUDA_WARP)) + area);
    p.maxima = known_here((int)(MAXIMA + 4 * g * WARPS) + area);
    p.own_maxima = known_here((int)(MAXIMA + 4 * (g * WARPS + warp)) + area);
    p.own_sums = known_here((int)(SUMS + 4 * (g * HEAD_SUMS + 2 * warp)) + area);
    p.area = area;
    p.own_units = known_here((int)(UNITS + 4 * units) + area);
    p.units = known_here((int)(UNITS + 4 * (t * UNIT_PAIR + 4 * warp + g / 4 * 2)) + area);
    p.values = known_here((int)(VALUES + 16 * value_place(lane, warp)) + area);
    p.fetched = known_here((int)(VALUES + 16 * value_place(thread / 4, t)) + area);
    return p;
}

/* The unit's queries; zeros for heads that it does not have. A thread has eight neighbouring dims of heads h and h + 8: operands
 * 2c and 2c + 1 of quarter t, in pairs four apart as their keys are decoded. They are asked for before the block, or they would
 * come behind it. */
struct raw_queries { quad low[2], high[2]; };
DEVICE void load_queries(const attend_args &a, const attend_unit &u, raw_queries &q)
{
    unsigned h = threadIdx.x % CUDA_WARP / 4, t = threadIdx.x % 4, c = threadIdx.x / CUDA_WARP;
    const float *from = a.q + (uint32_t)(u.row * a.heads + u.head) * DIM + h * DIM + 32 * t + 8 * c;
    static_assert(THREADS == 8 * DIM / 8, "a thread has eight dims of one head, and of another");
    UNROLL for (int r = 0; r < 2; r++) {
        q.low[r] = q.high[r] = quad{{0, 0, 0, 0}};
        if ((int)h + 8 * r >= u.heads) continue;
        q.low[r] = *(const quad *)(from + 8 * r * DIM), q.high[r] = *(const quad *)(from + 8 * r * DIM + 4);
    }
}
DEVICE void store_queries(const raw_queries &q, quad *queries)
{
    unsigned lane = threadIdx.x % CUDA_WARP, c = threadIdx.x / CUDA_WARP;
    UNROLL for (int n = 0; n < 2; n++) {
        quad x;
        UNROLL for (int w = 0; w < 4; w++)
            x.w[w] = round_pair(bits_float(q.low[w % 2].w[2 * n + w / 2]), bits_float(q.high[w % 2].w[2 * n + w / 2]));
        queries[(2 * c + n) * CUDA_WARP + lane] = x;
    }
}

/* A barrier of a group. */
template <int GROUPS> DEVICE void group_sync(int group)
{
    if constexpr (GROUPS == 1)
        BLOCK_SYNC();
    else
        threads_meet(1 + group, THREADS);
}

/* ---- Keys and scores --------------------------------------------------------------------------------------------- */

/* What a lane has of a block's keys: quarter t of tokens 32w + 8i + g, and its two scales. */
struct raw_keys {
    quad key[TILES];
    uint32_t scale[TILES];
};
DEVICE void load_keys(raw_keys &k, const decode_places &p, const uint8_t *codes, const uint8_t *scales)
{
    int thread = known_here((p.thread / CUDA_WARP * TILES * CUDA_WARP + p.thread % CUDA_WARP) * 2);
    codes += 8 * thread, scales += thread;
    UNROLL for (int i = 0; i < TILES; i++) k.key[i] = load_once(codes + 16 * i * CUDA_WARP);
    UNROLL for (int i = 0; i < TILES; i++) k.scale[i] = load_once_half(scales + 2 * i * CUDA_WARP);
}

/* s[i]: tokens 32w + 8i .. 8i+7 of the block. */
DEVICE void multiply_keys(const decode_places &p, const raw_keys &k, float s[TILES][4])
{
    const quad *queries = shared_at<quad>(p.operands);
    uint32_t two[TILES], odd = 0;
    UNROLL for (int i = 0; i < TILES; i++) odd |= k.scale[i] | (k.scale[i] + 0x0101u);
    if (odd & 0x8080u)
        UNROLL for (int i = 0; i < TILES; i++) two[i] = any_units(k.scale[i]);
    else
        UNROLL for (int i = 0; i < TILES; i++) two[i] = units_of_bytes(k.scale[i], 0);
    UNROLL for (int c = 0; c < 4; c++) {
        quad even = queries[2 * c * CUDA_WARP], next = queries[(2 * c + 1) * CUDA_WARP];
        UNROLL for (int i = 0; i < TILES; i++) {
            uint32_t pair[4];
            decode_eight<FORMAT>(k.key[i].w + c, unit_of_two(two[i], c / 2), pair);
            if (c == 0)
                mma_bf16_first(s[i], even.w, pair);
            else
                mma_bf16(s[i], even.w, pair);
            mma_bf16(s[i], next.w, pair + 2);
        }
    }
}

/* Scores in powers of two, -inf from token `tokens` of the block on; the warp's maxima are left. */
DEVICE void scale_scores(const attend_args &a, const decode_places &p, int tokens, float s[TILES][4])
{
    int warp = p.thread / CUDA_WARP, t = p.thread % 4;
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
        if (t == 0) shared_at<float>(p.own_maxima)[8 * r * WARPS] = most[r];
    }
}

/* Behind a barrier: weights and their sums by 16 tokens. maximum: the block's. */
DEVICE void weigh(const decode_places &p, const float s[TILES][4], float maximum[2])
{
    UNROLL for (int r = 0; r < 2; r++) {
        quad most = shared_at<quad>(p.maxima)[8 * r];
        maximum[r] = fmaxf(fmaxf(bits_float(most.w[0]), bits_float(most.w[1])),
                           fmaxf(bits_float(most.w[2]), bits_float(most.w[3])));
    }
    UNROLL for (int n = 0; n < TILES / 2; n++) {
        quad out;
        UNROLL for (int r = 0; r < 2; r++) {
            float sum;
            UNROLL for (int i = 0; i < 2; i++) {
                float x[2];
                UNROLL for (int c = 0; c < 2; c++) {
                    x[c] = power_of_two(s[2 * n + i][2 * r + c] - maximum[r]); /* of -inf 0 */
                    sum = i + c == 0 ? x[c] : sum + x[c];
                }
                out.w[2 * i + r] = round_pair(x[0], x[1]);
            }
            sum += lane_xor(sum, 1);
            sum += lane_xor(sum, 2);
            if (threadIdx.x % 4 == 0) shared_at<float>(p.own_sums)[8 * r * HEAD_SUMS + n] = sum;
        }
        shared_at<quad>(p.own_weights)[n * CUDA_WARP] = out;
    }
}
DEVICE float sum_of(const decode_places &p, int h)
{
    const quad *sums = shared_at<quad>(SUMS + p.area) + h * (HEAD_SUMS / 4);
    quad low = sums[0], high = sums[1];
    float sum = bits_float(low.w[0]);
    UNROLL for (int i = 1; i < 4; i++) sum += bits_float(low.w[i]);
    UNROLL for (int i = 0; i < 4; i++) sum += bits_float(high.w[i]);
    return sum;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

DEVICE void fetch_values(const decode_places &p, int turn, const uint8_t *codes)
{
    quad *to = shared_at<quad>(p.fetched + turn * (OTHERS - VALUES));
    static_assert(THREADS / 4 % 8 == 0, "the swizzle is that of the first");
    codes += known_here(16 * p.thread); /* or the compiler makes an address of its own for each */
    UNROLL for (int i = 0; i < CODES / THREADS; i++) copy_async(to + i * THREADS, codes + 16 * i * THREADS, true);
}
/* Of two groups of tokens 4 (thread / 4) .. + 3. */
DEVICE twin load_value_scales(const decode_places &p, const uint8_t *scales)
{
    twin x;
    load_once_two(scales + known_here(8 * p.thread), x.w);
    return x;
}

/* Units of the values' scales; 0 from token `tokens` of the block on. */
DEVICE void store_units(const decode_places &p, twin scales, int tokens)
{
    int seen = tokens - p.thread / 4 * 4;
    if (tokens < CUDA_BLOCK_TOKENS) {
        uint32_t mask = seen >= 4 ? ~0u : seen <= 0 ? 0 : (1u << 8 * seen) - 1;
        scales.w[0] &= mask, scales.w[1] &= mask;
    }
    uint32_t units[4], odd = scales.w[0] | (scales.w[0] + 0x01010101u) | scales.w[1] | (scales.w[1] + 0x01010101u);
    if (odd & 0x80808080u)
        UNROLL for (int i = 0; i < 4; i++) units[i] = any_units(scales.w[i / 2] >> i % 2 * 16 & 0xFFFF);
    else
        UNROLL for (int i = 0; i < 4; i++) units[i] = units_of_bytes(scales.w[i / 2], i % 2);
    uint32_t *to = shared_at<uint32_t>(p.own_units);
    UNROLL for (int i = 0; i < 4; i++) to[i % 2 * UNIT_PAIR + i / 2 * 2] = units[i];
}

/* out[j]: of the weights and dims 32w + 4c + j, c a column. */
DEVICE void multiply_values(const decode_places &p, int turn, float out[TILES][4])
{
    const quad *values = shared_at<quad>(p.values + turn * (OTHERS - VALUES)), *operands = shared_at<quad>(p.weights);
    const twin *units = shared_at<twin>(p.units);
    UNROLL for (int k = 0; k < STEPS; k += 2) {
        uint32_t words[4];
        load_transposed(words, values + 16 * k * (VECTOR / 16));
        UNROLL for (int n = 0; n < 2; n++) {
            quad weights = operands[(k + n) * CUDA_WARP];
            twin unit = units[(k + n) * (UNIT_STEP / 2)];
            uint32_t pair[2][TILES];
            UNROLL for (int half = 0; half < 2; half++)
                decode_eight<FORMAT>(words + 2 * n + half, unit.w[half], pair[half]);
            UNROLL for (int j = 0; j < TILES; j++) {
                uint32_t operand[2] = {pair[0][j], pair[1][j]};
                if (k + n == 0)
                    mma_bf16_first(out[j], weights.w, operand);
                else
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
DEVICE int head_of(int c, unsigned lane) { return lane / 4 + c / 2 * 8; }
DEVICE int dim_of(int c, unsigned thread) { return thread / CUDA_WARP * 32 + thread % 4 * 8 + c % 2 * 4; }

/* A partial in device memory. The sums of weights are in the first warp. */
DEVICE void store_partial(float *to, const attend_state<TILES> &state)
{
    unsigned thread = threadIdx.x, lane = thread % CUDA_WARP;
    if (thread < CUDA_WARP && thread % 4 == 0)
        UNROLL for (int r = 0; r < 2; r++) {
            to[head_of(2 * r, lane)] = state.maximum[r];
            to[ATTEND_HEADS + head_of(2 * r, lane)] = state.sum[r];
        }
    to += 2 * ATTEND_HEADS;
    UNROLL for (int c = 0; c < 4; c++) *(quad *)(to + head_of(c, lane) * DIM + dim_of(c, thread)) = four_dims(state, c);
}

/* What a block gave, or what the first run folded to, to all thread blocks of the cluster: quad q = (4w + c) * 32 + lane of
 * the outputs to the one that folds them, q / QUADS. */
template <int CLUSTER>
DEVICE void push_slot(const decode_places &p, int pushed, int slots, int slot, const attend_state<TILES> &state)
{
    enum { QUADS = OUTPUTS / CLUSTER, TURNS = CLUSTER > 4 ? CLUSTER / 4 : 1 };
    unsigned warp = p.thread / CUDA_WARP, lane = p.thread % CUDA_WARP, t = lane % 4;
    pushes *arrived = shared_at<pushes>(ARRIVED);
    quad *quads = shared_at<quad>(pushed) + slot * QUADS;
    twin *numbers = (twin *)(shared_at<quad>(pushed) + slots * QUADS) + slot * ATTEND_HEADS;
    UNROLL for (int c = 0; c < 4; c++) {
        unsigned q = (4 * warp + c) * CUDA_WARP + lane;
        if constexpr (CLUSTER == 1)
            quads[q] = four_dims(state, c);
        else
            push(quads + q % QUADS, q / QUADS, four_dims(state, c), arrived);
    }
    if (warp == 0 && t < CLUSTER)
        UNROLL for (int turn = 0; turn < TURNS; turn++)
            UNROLL for (int r = 0; r < 2; r++) {
                twin number = {{float_bits(state.maximum[r]), float_bits(state.sum[r])}};
                if constexpr (CLUSTER == 1)
                    numbers[head_of(2 * r, lane)] = number;
                else
                    push(numbers + head_of(2 * r, lane), 4 * turn + t, number, arrived);
            }
}

DEVICE void store_row(const attend_args &a, const attend_unit &u, const attend_state<TILES> &state)
{
    unsigned thread = threadIdx.x, lane = thread % CUDA_WARP;
    UNROLL for (int r = 0; r < 2; r++) {
        int h = head_of(2 * r, lane);
        if (h >= u.heads) continue;
        int64_t at = ((int64_t)u.row * a.heads + u.head + h) * DIM + dim_of(0, thread);
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

/* N slots from `from` on into quad i of the part, of head h. */
struct folded_quad { float maximum = -INFINITY, sum = 0, out[4] = {0, 0, 0, 0}; };
template <int N, int QUADS> DEVICE void fold_some(folded_quad &x, int pushed, int slots, int from, int i, int h)
{
    const quad *quads = shared_at<quad>(pushed) + from * QUADS + i;
    const twin *twins = (const twin *)(shared_at<quad>(pushed) + slots * QUADS) + from * ATTEND_HEADS + h;
    twin numbers[N];
    quad outs[N];
    UNROLL for (int n = 0; n < N; n++) numbers[n] = twins[n * ATTEND_HEADS], outs[n] = quads[n * QUADS];
    UNROLL for (int n = 0; n < N; n++) {
        float joint, before, now;
        fold(x.maximum, bits_float(numbers[n].w[0]), joint, before, now);
        x.maximum = joint;
        x.sum = x.sum * before + bits_float(numbers[n].w[1]) * now;
        UNROLL for (int j = 0; j < 4; j++) x.out[j] = x.out[j] * before + bits_float(outs[n].w[j]) * now;
    }
}

/* This thread block's part of the outputs, four dims of a head a thread. */
template <int CLUSTER, int GROUPS> DEVICE void fold_slots(const attend_args &a, const attend_unit &u, int pushed, int slots)
{
    enum { QUADS = OUTPUTS / CLUSTER, AT_ONCE = 4, ALL = GROUPS * THREADS, TURNS = QUADS > ALL ? QUADS / ALL : 1 };
    UNROLL for (int turn = 0; turn < TURNS; turn++) {
        unsigned i = turn * ALL + threadIdx.x, q = i;
        if constexpr (CLUSTER > 1) q += neighbour_rank() * QUADS;
        int lane = q % CUDA_WARP, c = q / CUDA_WARP % 4, h = head_of(c, lane);
        if (i >= QUADS) continue;
        folded_quad x;
        int from = 0;
        for (; from + AT_ONCE <= slots; from += AT_ONCE) fold_some<AT_ONCE, QUADS>(x, pushed, slots, from, i, h);
        for (; from < slots; from++) fold_some<1, QUADS>(x, pushed, slots, from, i, h);
        if (h >= u.heads) continue;
        int64_t at = ((int64_t)u.row * a.heads + u.head + h) * DIM + q / (4 * CUDA_WARP) * 32 + q % 4 * 8 + c % 2 * 4;
        quad y;
        UNROLL for (int j = 0; j < 4; j++)
            y.w[j] = bf16_of_float(x.out[j] / x.sum * (cached_undo<FORMAT>() * a.value_scale));
        *(twin *)(a.attention_bf16 + at) = twin{{y.w[0] | y.w[1] << 16, y.w[2] | y.w[3] << 16}};
        UNROLL for (int j = 0; j < 4; j++) y.w[j] <<= 16;
        *(quad *)(a.attention + at) = y;
    }
}

/* CLUSTER thread blocks of so many groups share a unit. Of one group alone, blockIdx.z is the run. */
template <int CLUSTER, int GROUPS> DEVICE void attend_decode(const attend_args &a)
{
    enum { ALONE = CLUSTER == 1 && GROUPS == 1 };
    int group = GROUPS > 1 ? threadIdx.x / THREADS : 0, lane = threadIdx.x % CUDA_WARP;
    int part = group, number = blockIdx.x / CLUSTER * gridDim.y + blockIdx.y, area = a.run > 1 ? AREA : AREA_SHORT;
    if constexpr (ALONE) part = blockIdx.z;
    if constexpr (CLUSTER > 1) part += GROUPS * neighbour_rank();
    decode_places p = places_of(GROUPS > 1 ? threadIdx.x % THREADS : threadIdx.x, group * area);
    if constexpr (CLUSTER > 1) {
        if (threadIdx.x == 0) pushes_open(shared_at<pushes>(ARRIVED));
        neighbours_come();
    }
    follow();
    attend_unit u = unit_at(a, blockIdx.x / CLUSTER, blockIdx.y);
    const int32_t *list = a.blocks + (uint32_t)((u.row * a.index_heads + u.group) * a.index_top);
    int own = lane < a.index_top ? list[lane] : -1; /* a lane has one block of the list */
    raw_queries queries;
    if (group == 0) load_queries(a, u, queries);
    attend_state<TILES> state = {};
    state.maximum[0] = state.maximum[1] = -INFINITY; /* the first fold leaves nothing of it */
    if (u.sequence < 0) {
        if (part == 0 && !a.partials) store_row(a, u, state);
        if constexpr (CLUSTER > 1) neighbours_came();
        return;
    }
    int length = count_bits(lane_ballot(own >= 0)), begin = part * a.run, end = min(begin + a.run, length);
    if (ALONE && begin >= end) return;
    int physical = own >= 0 ? a.rows.block_table[(int64_t)u.sequence * a.rows.block_table_stride + own] : 0;
    const uint8_t *base = a.cache.base + a.layer_offset + u.group * a.cache.head_bytes;
    uint32_t row_bytes = (uint32_t)a.cache.row_bytes;
    const uint8_t *head = base + (uint64_t)row_bytes * (uint32_t)lane_get(physical, begin % CUDA_WARP);
    raw_keys keys = {};
    twin scales = {};
    if (begin < end) {
        load_keys(keys, p, head, head + a.cache.k_scales);
        fetch_values(p, 0, head + a.cache.v_data);
        scales = load_value_scales(p, head + a.cache.v_scales);
    }
    copy_commit();
    if (group == 0) store_queries(queries, shared_at<quad>(OPERANDS));
    int slots = length - min(length, a.run) + 1; /* the first has what the first run folds to */
    int pushed = VALUES + GROUPS * area;
    if (CLUSTER > 1 && threadIdx.x == 0)
        pushes_expect(shared_at<pushes>(ARRIVED), slots * (OUTPUTS / CLUSTER * 16 + ATTEND_HEADS * 8));
    BLOCK_SYNC(); /* queries are there */
    if constexpr (CLUSTER > 1) neighbours_came(); /* all are ready for what is pushed */
    for (int i = begin; i < end; i++) {
        int tokens = tokens_of(u.position, lane_get(own, i)), turn = (i - begin) % 2;
        head = base + (uint64_t)row_bytes * (uint32_t)lane_get(physical, min(i + 1, end - 1));
        float s[TILES][4];
        attend_state<TILES> block;
        multiply_keys(p, keys, s);
        if (i + 1 < end) load_keys(keys, p, head, head + a.cache.k_scales);
        scale_scores(a, p, tokens, s);
        group_sync<GROUPS>(group); /* maxima are there; the values of the block before have been read */
        if (i + 1 < end) fetch_values(p, turn ^ 1, head + a.cache.v_data);
        copy_commit();
        weigh(p, s, block.maximum);
        store_units(p, scales, tokens);
        if (i + 1 < end) scales = load_value_scales(p, head + a.cache.v_scales);
        copy_wait<1>();
        group_sync<GROUPS>(group); /* values, their units and weights are there */
        UNROLL for (int r = 0; r < 2; r++) block.sum[r] = 0;
        if (p.thread < CUDA_WARP)
            UNROLL for (int r = 0; r < 2; r++) block.sum[r] = sum_of(p, lane / 4 + 8 * r);
        multiply_values(p, turn, block.out);
        if (!ALONE && (begin > 0 || a.run == 1))
            push_slot<CLUSTER>(p, pushed, slots, i - a.run + 1, block);
        else if (begin > 0)
            store_partial(a.partials + ((int64_t)number * a.slots + i - a.run + 1) * a.partial, block);
        else
            fold_state(state, block, false);
    }
    if constexpr (!ALONE) {
        if (part == 0 && a.run > 1) push_slot<CLUSTER>(p, pushed, slots, 0, state);
        if constexpr (CLUSTER > 1)
            pushes_wait(shared_at<pushes>(ARRIVED));
        else
            BLOCK_SYNC();
        fold_slots<CLUSTER, GROUPS>(a, u, pushed, slots);
    } else if (!a.partials) {
        if (threadIdx.x < CUDA_WARP && lane % 4 == 0)
            UNROLL for (int r = 0; r < 2; r++) shared_at<quad>(MAXIMA)[head_of(2 * r, lane)].w[0] = float_bits(state.sum[r]);
        BLOCK_SYNC();
        UNROLL for (int r = 0; r < 2; r++) state.sum[r] = bits_float(shared_at<quad>(MAXIMA)[head_of(2 * r, lane)].w[0]);
        store_row(a, u, state);
    } else if (begin == 0) {
        store_partial(a.partials + (int64_t)number * a.slots * a.partial, state);
    }
}

KERNEL_AHEAD_OF(attend_decode, attend_args, THREADS, ATTEND_DECODE_BLOCKS) { attend_decode<1, 1>(a); }
KERNEL_NEIGHBOURS_AHEAD(attend_decode_8, attend_args, THREADS, ATTEND_DECODE_BLOCKS, 8) { attend_decode<8, 1>(a); }
KERNEL_NEIGHBOURS_AHEAD(attend_decode_16, attend_args, THREADS, ATTEND_DECODE_BLOCKS, 16) { attend_decode<16, 1>(a); }
/* Of fewer registers: clusters find room where one would be left out. */
KERNEL_NEIGHBOURS_AHEAD(attend_decode_16_many, attend_args, THREADS, ATTEND_DECODE_BLOCKS + 1, 16) { attend_decode<16, 1>(a); }
KERNEL_AHEAD_OF(attend_decode_wide, attend_args, WIDE *THREADS, 1) { attend_decode<1, WIDE>(a); }
KERNEL_NEIGHBOURS_AHEAD(attend_decode_wide_2, attend_args, WIDE *THREADS, 1, 2) { attend_decode<2, WIDE>(a); }
