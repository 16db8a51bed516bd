/*
 * Attention of attend.cu for decoding, over lists of blocks in a cache of NVFP4 with 128 dims: the same steps, so the same
 * bits, without a tile of decoded values. What a block gave is m_b, l_b and O_b of attend.cu; blocks fold in ascending order.
 *
 * A thread block is four warps, and a warp takes a whole block of the cache, so that it waits for nobody between its first score
 * and its last value. Codes and scales of keys and of values lie in the warp's shared memory, each in a place of 9,216 bytes that
 * is filled for the warp's next block as soon as it has been read; the warp decodes what it reads into operands of m16n8k16.
 *
 *     scores    32 tokens a turn as columns, in key_order: lane (g, t) reads 16 bytes, quarter t of the key of token 8i + g. The
 *               queries are the rows, as operands in registers. Scores go where the lane's codes were.
 *     weights   relative to the largest score of the block: what a lane has of them is what it gives to the next product.
 *     values    16 bytes of a token are a piece, 32 dims. Eight tokens of a piece are a matrix of 8 x 8 words of four codes:
 *               transposed as it is loaded, lane (g, t) has dims 4g .. 4g+3 of the piece of tokens 2t and 2t+1 in one register,
 *               which decodes to the pairs of column g in four tiles. Pieces of values are swizzled so that eight tokens meet
 *               every bank once. Tokens that the row does not see get scale 0, whatever the cache holds there.
 *
 * A round is four blocks, one a warp. Each leaves O_b where its values were, and behind a barrier every thread folds its 16
 * of the outputs out of all four. Where there are too few units for the GPU and it has clusters, a unit has up to eight
 * thread blocks of one: a round is as many times longer, and each folds its part of the dims out of everybody's shared
 * memory. On other GPUs a unit is cut into runs, all of it goes through the GPU's memory, and attend_fold folds.
 *
 * Bytes of a block: 18,432; at 4.5 TB/s a multiprocessor of 132 gets one in 540 ns. Instructions of a block, as compiled for
 * sm_90a: 3,550, of them 1,920 to decode (15 for a word of eight codes), 256 products, 540 for scores, weights and their
 * sums, 280 for scales, 270 to leave what a block gave and to fold it, 36 copies. Four schedulers of 1.79 GHz issue them in
 * 495 ns. Two thread blocks a multiprocessor, two warps a scheduler; alone on it a warp is bound by its own instructions.
 *
 * Measured on an H200, 2026-12-01, is the kernel before, with four warps to a block of the cache, 4,290 instructions and four
 * barriers: 960 ns a block with four thread blocks a multiprocessor (128 rows, 4 KV heads: 60.5 us, 55 % of the card's
 * reading), 1,550 ns alone. Reading the same pages by bulk copies and nothing else took 37.7 us there, 11.9 us for 128 rows
 * of one KV head and 5.3 us for 32; a launch that reads list, table and 2 KB of a page 2.7 to 3.3 us.
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
    TILES = 4,                /* of eight columns, tokens and then dims, that are at work at once */
    PIECES = DIM / 8 / TILES, /* of a value; turns of scores too */
    STEPS = 8,                /* of a product: 16 dims, then 16 tokens */
    TURN = TILES * CUDA_WARP, /* quads of keys, and then of scores, of a turn */
    NUMBERS = 2 * ATTEND_HEADS,
    UNIT_PAIR = 20, UNIT_STEP = 80, /* words */
};
static_assert(SCALES == 2 * CUDA_WARP, "two quads of scales a lane");
static_assert(ATTEND_HEADS * DIM / 4 == CODES, "what a block gave has room in the place of its values");

struct alignas(8) twin { uint32_t w[2]; };

/* The shared memory of a warp, and what is all warps'. */
struct decode_memory {
    quad *keys, *values; /* [CODES + SCALES] as in the cache, the values' pieces swizzled. Scores lie in keys, O_b in values */
    quad *weights;       /* [STEPS][lane], operands */
    uint32_t *units;     /* [16 tokens][4 pairs][8 groups][2]: the values' scales of two tokens a word, of tokens 2t and of
                          * 2t + 8; the even groups first. UNIT_PAIR apart, so that writers meet every bank once */
    quad *queries;       /* [STEPS][lane], operands, all warps' until they are in registers, where the first one's weights come */
    twin *numbers;       /* [warps][16 heads]: m_b, l_b */
};
enum { WARP_QUADS = 2 * (CODES + SCALES) + STEPS * CUDA_WARP + STEPS * UNIT_STEP / 4 };
static_assert(WARP_QUADS * WARPS * 16 + WARPS * ATTEND_HEADS * 8 == ATTEND_DECODE_SHARED, "attend.h");

DEVICE decode_memory open_memory()
{
    decode_memory m;
    m.keys = DYNAMIC(quad) + threadIdx.x / CUDA_WARP * WARP_QUADS;
    m.values = m.keys + CODES + SCALES;
    m.weights = m.values + CODES + SCALES;
    m.units = (uint32_t *)(m.weights + STEPS * CUDA_WARP);
    m.queries = DYNAMIC(quad) + 2 * (CODES + SCALES);
    m.numbers = (twin *)(DYNAMIC(quad) + WARPS * WARP_QUADS);
    return m;
}

/* Piece `piece` of a token's value. */
DEVICE int value_place(int token, int piece) { return token * (VECTOR / 16) + (piece ^ (token / 2 % 4)); }

/* Codes and scales of a head's keys or values, by a warp. */
template <bool VALUES> DEVICE void fetch(quad *to, const uint8_t *codes, const uint8_t *scales)
{
    int lane = threadIdx.x % CUDA_WARP, place = VALUES ? value_place(lane / 4, lane % 4) : lane;
    static_assert(CUDA_WARP / 4 % 8 == 0, "the swizzle is that of the first");
    int offset = known_here(16 * lane); /* or the compiler makes an address of its own for each */
    codes += offset, scales += offset;
    UNROLL for (int i = 0; i < CODES / CUDA_WARP; i++)
        copy_async(to + i * CUDA_WARP + place, codes + 16 * i * CUDA_WARP, true);
    UNROLL for (int i = 0; i < SCALES / CUDA_WARP; i++)
        copy_async(to + CODES + i * CUDA_WARP + lane, scales + 16 * i * CUDA_WARP, true);
}

/* The unit's queries; zeros for heads that it does not have. A thread has eight neighbouring dims, twice: operands 2c and
 * 2c + 1 of quarter t, in pairs four apart as their keys are decoded. They are asked for before the block, or they would come
 * behind it. */
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

/* s[i]: tokens 8i .. 8i+7 of a turn. keys, scales: this lane's of it. */
DEVICE void multiply_keys(const quad *keys, const uint16_t *scales, const quad q[STEPS], float s[TILES][4])
{
    quad key[TILES];
    uint32_t two[TILES], odd = 0;
    UNROLL for (int i = 0; i < TILES; i++) {
        key[i] = keys[i * CUDA_WARP];
        two[i] = scales[i * CUDA_WARP];
        odd |= two[i] | (two[i] + 0x0101u);
        UNROLL for (int c = 0; c < 4; c++) s[i][c] = 0;
    }
    if (odd & 0x8080u)
        UNROLL for (int i = 0; i < TILES; i++) two[i] = any_units(two[i]);
    else
        UNROLL for (int i = 0; i < TILES; i++) two[i] = units_of_bytes(two[i], 0);
    UNROLL for (int c = 0; c < 4; c++)
        UNROLL for (int i = 0; i < TILES; i++) {
            uint32_t pair[4];
            decode_eight<FORMAT>(key[i].w + c, unit_of_two(two[i], c / 2), pair);
            mma_bf16(s[i], q[2 * c].w, pair);
            mma_bf16(s[i], q[2 * c + 1].w, pair + 2);
        }
}

/* Scores of a block in powers of two, -inf from token `tokens` on; maximum: the largest of heads g and g + 8. */
DEVICE void score_block(const attend_args &a, const decode_memory &m, const quad q[STEPS], int tokens, float maximum[2])
{
    int lane = threadIdx.x % CUDA_WARP, t = lane % 4;
    maximum[0] = maximum[1] = -INFINITY;
    _Pragma("unroll 1") for (int turn = 0; turn < PIECES; turn++) {
        float s[TILES][4];
        quad *own = m.keys + turn * TURN + lane;
        multiply_keys(own, (const uint16_t *)(m.keys + CODES) + turn * TURN + lane, q, s);
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int c = 0; c < 4; c++) s[i][c] *= a.scale;
        if (tokens < CUDA_BLOCK_TOKENS)
            UNROLL for (int i = 0; i < TILES; i++)
                UNROLL for (int c = 0; c < 4; c++)
                    if (32 * turn + 8 * i + 2 * t + c % 2 >= tokens) s[i][c] = -INFINITY;
        UNROLL for (int i = 0; i < TILES; i++) {
            UNROLL for (int c = 0; c < 4; c++) maximum[c / 2] = fmaxf(maximum[c / 2], s[i][c]);
            own[i * CUDA_WARP] = quad{{float_bits(s[i][0]), float_bits(s[i][1]), float_bits(s[i][2]), float_bits(s[i][3])}};
        }
    }
    UNROLL for (int r = 0; r < 2; r++) {
        maximum[r] = fmaxf(maximum[r], lane_xor(maximum[r], 1));
        maximum[r] = fmaxf(maximum[r], lane_xor(maximum[r], 2));
    }
}

/* Weights, and their sums of 16 tokens one after the other. */
DEVICE void weigh_block(const decode_memory &m, const float maximum[2], float total[2])
{
    int lane = threadIdx.x % CUDA_WARP;
    float sum[STEPS][2];
    UNROLL for (int n = 0; n < STEPS; n++) {
        quad s[2], out;
        UNROLL for (int i = 0; i < 2; i++) s[i] = m.keys[(2 * n + i) * CUDA_WARP + lane];
        UNROLL for (int r = 0; r < 2; r++) {
            sum[n][r] = 0;
            UNROLL for (int i = 0; i < 2; i++) {
                float p[2];
                UNROLL for (int c = 0; c < 2; c++) {
                    p[c] = power_of_two(bits_float(s[i].w[2 * r + c]) - maximum[r]); /* of -inf 0 */
                    sum[n][r] += p[c];
                }
                out.w[2 * i + r] = round_pair(p[0], p[1]);
            }
        }
        m.weights[n * CUDA_WARP + lane] = out;
    }
    total[0] = total[1] = 0;
    UNROLL for (int n = 0; n < STEPS; n++)
        UNROLL for (int r = 0; r < 2; r++) {
            sum[n][r] += lane_xor(sum[n][r], 1);
            sum[n][r] += lane_xor(sum[n][r], 2);
            total[r] += sum[n][r];
        }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Units of the values' scales; 0 from token `tokens` of the block on. A lane has two groups of four tokens, four times. */
DEVICE void store_units(const decode_memory &m, int tokens)
{
    int lane = threadIdx.x % CUDA_WARP;
    const twin *from = (const twin *)(m.values + CODES) + lane;
    twin scales[PIECES];
    uint32_t odd = 0;
    UNROLL for (int n = 0; n < PIECES; n++) {
        scales[n] = from[n * CUDA_WARP];
        odd |= scales[n].w[0] | (scales[n].w[0] + 0x01010101u) | scales[n].w[1] | (scales[n].w[1] + 0x01010101u);
    }
    /* Tokens 16k + 8h + 4q .. 4q+3: pairs 2q, 2q+1 of half h. */
    uint32_t *to = m.units + lane / 16 * UNIT_STEP + lane / 4 % 2 * 2 * UNIT_PAIR + lane % 4 * 2 + lane / 8 % 2;
    if ((odd & 0x80808080u) || tokens < CUDA_BLOCK_TOKENS) {
        _Pragma("unroll 1") for (int n = 0; n < PIECES; n++) {
            int seen = tokens - n * CUDA_WARP - lane / 4 * 4;
            uint32_t mask = seen >= 4 ? ~0u : seen <= 0 ? 0 : (1u << 8 * seen) - 1;
            twin both = from[n * CUDA_WARP];
            UNROLL for (int i = 0; i < 4; i++)
                to[n * 2 * UNIT_STEP + i % 2 * UNIT_PAIR + i / 2 * 8] = any_units((both.w[i / 2] & mask) >> i % 2 * 16 & 0xFFFF);
        }
        return;
    }
    UNROLL for (int n = 0; n < PIECES; n++)
        UNROLL for (int i = 0; i < 4; i++)
            to[n * 2 * UNIT_STEP + i % 2 * UNIT_PAIR + i / 2 * 8] = units_of_bytes(scales[n].w[i / 2], i % 2);
}

/* out[piece][j]: of the weights and dims 32 piece + 4c + j, c a column. */
DEVICE void multiply_values(const decode_memory &m, float out[PIECES][TILES][4])
{
    int lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    const quad *units = (const quad *)(m.units + t * UNIT_PAIR + g / 4 * 8), *weights = m.weights + lane, *values[PIECES];
    UNROLL for (int p = 0; p < PIECES; p++) {
        values[p] = m.values + value_place(lane, p);
        UNROLL for (int j = 0; j < TILES; j++)
            UNROLL for (int c = 0; c < 4; c++) out[p][j][c] = 0;
    }
    _Pragma("unroll 1") for (int k = 0; k < STEPS; k += 2) {
        quad weight[2], unit[2][2];
        UNROLL for (int n = 0; n < 2; n++) {
            weight[n] = weights[(k + n) * CUDA_WARP];
            UNROLL for (int i = 0; i < 2; i++) unit[n][i] = units[(k + n) * (UNIT_STEP / 4) + i];
        }
        UNROLL for (int p = 0; p < PIECES; p++) {
            uint32_t words[4];
            load_transposed(words, values[p] + 16 * k * (VECTOR / 16));
            UNROLL for (int n = 0; n < 2; n++) {
                uint32_t pair[2][TILES];
                UNROLL for (int half = 0; half < 2; half++)
                    decode_eight<FORMAT>(words + 2 * n + half, unit[n][p / 2].w[p % 2 * 2 + half], pair[half]);
                UNROLL for (int j = 0; j < TILES; j++) {
                    uint32_t operand[2] = {pair[0][j], pair[1][j]};
                    mma_bf16(out[p][j], weight[n].w, operand);
                }
            }
        }
    }
}

/* ---- What a block gave ------------------------------------------------------------------------------------------- */

/* Values 2r and 2r + 1 of tile j of a piece are of head g + 8r, dims 8t + j and 8t + 4 + j. Those of tiles 2h and 2h + 1 are a
 * quad, of which the second half comes first in every other eight lanes, or stores of halves would meet in a bank. */
DEVICE int head_of(int r) { return threadIdx.x % CUDA_WARP / 4 + r * 8; }
DEVICE int dim_of(int piece, int tile) { return 32 * piece + threadIdx.x % 4 * 8 + tile; }
DEVICE int swapped() { return threadIdx.x / 8 % 2; }

/* In the place of the warp's values. */
DEVICE void leave_block(const decode_memory &m, const float maximum[2], const float sum[2], const float out[PIECES][TILES][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    if (lane % 4 == 0)
        UNROLL for (int r = 0; r < 2; r++)
            m.numbers[warp * ATTEND_HEADS + head_of(r)] = twin{{float_bits(maximum[r]), float_bits(sum[r])}};
    twin *to[2] = {(twin *)(m.values + lane) + swapped(), (twin *)(m.values + lane) + 1 - swapped()};
    UNROLL for (int p = 0; p < PIECES; p++)
        UNROLL for (int j = 0; j < TILES; j++)
            UNROLL for (int r = 0; r < 2; r++)
                to[j % 2][2 * (4 * p + 2 * r + j / 2) * CUDA_WARP] =
                    twin{{float_bits(out[p][j][2 * r]), float_bits(out[p][j][2 * r + 1])}};
}
/* As a partial in device memory. */
DEVICE void store_block(float *to, const float maximum[2], const float sum[2], const float out[PIECES][TILES][4])
{
    UNROLL for (int r = 0; r < 2; r++) {
        if (threadIdx.x % 4 == 0) to[head_of(r)] = maximum[r], to[ATTEND_HEADS + head_of(r)] = sum[r];
        UNROLL for (int p = 0; p < PIECES; p++)
            UNROLL for (int j = 0; j < TILES; j++)
                UNROLL for (int c = 0; c < 2; c++)
                    to[NUMBERS + head_of(r) * DIM + dim_of(p, j) + 4 * c] = out[p][j][2 * r + c];
    }
}

/* ---- Folding ----------------------------------------------------------------------------------------------------- */

/*
 * A thread's part of the outputs of a unit that CLUSTER thread blocks share: of one head, QUADS times four dims, as
 * leave_block puts them. Numbered as they lie there, thread block r has the r-th part of all 512 quads.
 */
template <int CLUSTER> struct decode_part {
    enum {
        ALL = CODES / CLUSTER,
        QUADS = ALL > THREADS ? ALL / THREADS : 1,
        SLOTS = WARPS * CLUSTER, /* of a round */
        AT_ONCE = SLOTS < 16 ? SLOTS : 16,
    };
    int first;  /* quad; the n-th is THREADS * n behind it */
    bool there; /* is there one for this thread? */
    float maximum, sum, out[QUADS][4];
};
template <int CLUSTER> DEVICE void open_part(int rank, decode_part<CLUSTER> &part)
{
    enum { ALL = decode_part<CLUSTER>::ALL };
    part.first = rank * ALL + threadIdx.x, part.there = threadIdx.x < ALL;
    part.maximum = -INFINITY, part.sum = 0; /* the first fold leaves nothing of it */
    UNROLL for (int n = 0; n < decode_part<CLUSTER>::QUADS; n++)
        UNROLL for (int j = 0; j < 4; j++) part.out[n][j] = 0;
}
template <int CLUSTER> DEVICE int head_of(const decode_part<CLUSTER> &part) { return head_of(part.first / CUDA_WARP % 4 / 2); }
/* Quad n has dims d and d + 1, its first pair, and d + 4 and d + 5. */
template <int CLUSTER> DEVICE int dim_of(const decode_part<CLUSTER> &part, int n)
{
    return dim_of((part.first + THREADS * n) / TURN, part.first / CUDA_WARP % 2 * 2);
}
template <int CLUSTER> DEVICE twin pair_of(const decode_part<CLUSTER> &part, int n, int second)
{
    float even = part.out[n][second], odd = part.out[n][2 + second];
    return swapped() ? twin{{float_bits(odd), float_bits(even)}} : twin{{float_bits(even), float_bits(odd)}};
}

/* `count` blocks of a round: slot i is that of warp i / CLUSTER of thread block i % CLUSTER. */
template <int CLUSTER> DEVICE void fold_round(const decode_memory &m, int count, decode_part<CLUSTER> &part)
{
    enum { AT_ONCE = decode_part<CLUSTER>::AT_ONCE, QUADS = decode_part<CLUSTER>::QUADS };
    if (!part.there) return;
    const quad *values = DYNAMIC(quad) + CODES + SCALES + part.first;
    for (int from = 0; from < count; from += AT_ONCE) {
        twin numbers[AT_ONCE];
        quad outs[AT_ONCE][QUADS];
        UNROLL for (int i = 0; i < AT_ONCE; i++) {
            int warp = (from + i) / CLUSTER, rank = i % CLUSTER;
            if (from + i >= count) continue;
            const twin *number = m.numbers + warp * ATTEND_HEADS + head_of(part);
            const quad *quads = values + warp * WARP_QUADS;
            if constexpr (CLUSTER > 1) number = neighbour_shared(number, rank), quads = neighbour_shared(quads, rank);
            numbers[i] = *number;
            UNROLL for (int n = 0; n < QUADS; n++) outs[i][n] = quads[n * THREADS];
        }
        UNROLL for (int i = 0; i < AT_ONCE; i++) {
            if (from + i >= count) continue;
            float joint, before, now;
            fold(part.maximum, bits_float(numbers[i].w[0]), joint, before, now);
            part.maximum = joint;
            part.sum = part.sum * before + bits_float(numbers[i].w[1]) * now;
            if (lane_ballot(!(before == 1)))
                UNROLL for (int n = 0; n < QUADS; n++)
                    UNROLL for (int j = 0; j < 4; j++)
                        part.out[n][j] = part.out[n][j] * before + bits_float(outs[i][n].w[j]) * now;
            else /* what there is stays: often, since maxima grow ever less */
                UNROLL for (int n = 0; n < QUADS; n++)
                    UNROLL for (int j = 0; j < 4; j++) part.out[n][j] = part.out[n][j] + bits_float(outs[i][n].w[j]) * now;
        }
    }
}

template <int CLUSTER> DEVICE void store_part(const attend_args &a, const attend_unit &u, const decode_part<CLUSTER> &part)
{
    int h = head_of(part);
    if (!part.there || h >= u.heads) return;
    UNROLL for (int n = 0; n < decode_part<CLUSTER>::QUADS; n++)
        UNROLL for (int second = 0; second < 2; second++) {
            int64_t at = ((int64_t)u.row * a.heads + u.head + h) * DIM + dim_of(part, n) + 4 * second;
            twin x = pair_of(part, n, second);
            UNROLL for (int i = 0; i < 2; i++) {
                float value = bits_float(x.w[i]) / part.sum * (cached_undo<FORMAT>() * a.value_scale);
                x.w[i] = u.sequence < 0 ? 0 : bf16_of_float(value);
            }
            *(uint32_t *)(a.attention_bf16 + at) = x.w[0] | x.w[1] << 16;
            *(twin *)(a.attention + at) = twin{{x.w[0] << 16, x.w[1] << 16}};
        }
}
DEVICE void store_folded(float *to, const decode_part<1> &part)
{
    if (dim_of(part, 0) == 0) to[head_of(part)] = part.maximum, to[ATTEND_HEADS + head_of(part)] = part.sum;
    UNROLL for (int n = 0; n < decode_part<1>::QUADS; n++)
        UNROLL for (int second = 0; second < 2; second++)
            *(twin *)(to + NUMBERS + head_of(part) * DIM + dim_of(part, n) + 4 * second) = pair_of(part, n, second);
}

/* ---- A unit ------------------------------------------------------------------------------------------------------ */

template <int CLUSTER> DEVICE void meet()
{
    if constexpr (CLUSTER > 1)
        neighbours_meet();
    else
        BLOCK_SYNC();
}

template <int CLUSTER> DEVICE void attend_decode(const attend_args &a)
{
    enum { ROUND = WARPS * CLUSTER };
    decode_memory m = open_memory();
    int number = blockIdx.x / CLUSTER, rank = CLUSTER > 1 ? neighbour_rank() : 0, run = blockIdx.y;
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    attend_unit u = unit_of(a, number);
    const int32_t *list = a.blocks + ((int64_t)u.row * a.index_heads + u.group) * a.index_top;
    int own = lane < a.index_top ? list[lane] : -1; /* a lane has one block of the list */
    raw_queries queries;
    load_queries(a, u, queries);
    decode_part<CLUSTER> part;
    open_part(rank, part);
    if (u.sequence < 0) {
        if (run == 0 && !a.partials) store_part(a, u, part);
        return;
    }
    int length = count_bits(lane_ballot(own >= 0)), begin = run * a.run, end = min(begin + a.run, length);
    if (CLUSTER == 1 && begin >= end) return;
    int physical = own >= 0 ? a.rows.block_table[(int64_t)u.sequence * a.rows.block_table_stride + own] : 0;
    const uint8_t *base = a.cache.base + a.layer_offset + u.group * a.cache.head_bytes;
    uint32_t row_bytes = (uint32_t)a.cache.row_bytes;
    int first = begin + warp * CLUSTER + rank;
    const uint8_t *head = base + (uint64_t)row_bytes * (uint32_t)lane_get(physical, min(first, CUDA_WARP - 1));
    if (first < end) fetch<false>(m.keys, head, head + a.cache.k_scales);
    copy_commit();
    if (first < end) fetch<true>(m.values, head + a.cache.v_data, head + a.cache.v_scales);
    copy_commit();
    store_queries(queries, m.queries);
    BLOCK_SYNC();
    quad q[STEPS];
    UNROLL for (int k = 0; k < STEPS; k++) q[k] = m.queries[k * CUDA_WARP + lane];
    BLOCK_SYNC();
    for (int from = begin; from < end; from += ROUND) {
        int i = from + warp * CLUSTER + rank, next = i + ROUND;
        int tokens = tokens_of(u.position, lane_get(own, min(i, CUDA_WARP - 1)));
        head = base + (uint64_t)row_bytes * (uint32_t)lane_get(physical, min(next, CUDA_WARP - 1));
        if (i < end) {
            float maximum[2], sum[2], out[PIECES][TILES][4];
            copy_wait<1>();
            WARP_SYNC(); /* keys are there */
            score_block(a, m, q, tokens, maximum);
            weigh_block(m, maximum, sum);
            WARP_SYNC(); /* scores have been read */
            if (next < end) fetch<false>(m.keys, head, head + a.cache.k_scales);
            copy_commit();
            copy_wait<1>();
            WARP_SYNC(); /* values are there */
            store_units(m, tokens);
            WARP_SYNC(); /* their units are */
            multiply_values(m, out);
            WARP_SYNC(); /* they have been read */
            if (begin > 0)
                store_block(a.partials + ((int64_t)number * a.slots + i - a.run + 1) * a.partial, maximum, sum, out);
            else
                leave_block(m, maximum, sum, out);
        }
        if (begin == 0) {
            meet<CLUSTER>(); /* what the round's blocks gave is there */
            fold_round(m, min(end - from, (int)ROUND), part);
            if (CLUSTER > 1 || from + ROUND < end) meet<CLUSTER>(); /* it has been read */
        }
        if (next < end) fetch<true>(m.values, head + a.cache.v_data, head + a.cache.v_scales);
        copy_commit();
    }
    if constexpr (CLUSTER == 1)
        if (a.partials) {
            if (begin == 0) store_folded(a.partials + (int64_t)number * a.slots * a.partial, part);
            return;
        }
    store_part(a, u, part);
}

KERNEL_OF(attend_decode, attend_args, THREADS, ATTEND_DECODE_BLOCKS) { attend_decode<1>(a); }
KERNEL_NEIGHBOURS(attend_decode_2, attend_args, THREADS, ATTEND_DECODE_BLOCKS, 2) { attend_decode<2>(a); }
KERNEL_NEIGHBOURS(attend_decode_4, attend_args, THREADS, ATTEND_DECODE_BLOCKS, 4) { attend_decode<4>(a); }
KERNEL_NEIGHBOURS(attend_decode_8, attend_args, THREADS, ATTEND_DECODE_BLOCKS, 8) { attend_decode<8>(a); }
