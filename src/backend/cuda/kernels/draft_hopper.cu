/*
 * Attention of draft blocks on Hopper, heads of 128 dims; draft.cu says what it is and has the other form.
 *
 * A thread block has a KV head of a sequence and up to 128 queries, two warpgroups of 64 that multiply. Two more bring keys and
 * values: E4M3 as fp16, which holds them exactly, bf16 as it is, into rings of two tiles each. A query of bf16 becomes fp16 times
 * a power of two, of its own, that brings its largest element to 1 .. 2. Elements below 2^-14 of that lose bits that are
 * 2^-24 of it. Weights are rounded to the format of the values. Own rows are multiplied in bf16 by m16n8k16, while the first
 * tiles are on their way.
 *
 * Bytes: 32 KB of E4M3 a block of 128 keys, called into the second-level cache four blocks ahead, so that registers that wait for
 * them are few. Cycles of the tensor cores: 2,048 a block, of which 7 rows of 16 heads use 112 / 128. 32 sequences are 128 thread
 * blocks with 33 blocks each, 67,600 cycles or 38 us at 1.79 GHz; the cache's bytes alone are 30 us. The two warpgroups take turns
 * at the tensor cores: one has its softmax and fold while the other multiplies. What is left is how long a warpgroup takes from one
 * block to the next: the keys' product (600 cycles), the maxima (200), the weights, eight powers of two for each step of the
 * values' product, which runs beside them (700), the rest of that product (130) and the fold (80): 2,300 with what lies between them,
 * by the stalls that the compiler wrote. To start the next block's scores meanwhile takes 64 registers a thread that are not there.
 *
 * One sequence is bound by how long a block takes from its first byte to its last: a thread block for each block of keys, whose
 * parts are folded by draft_fold. Between the two, runs.
 *
 * H200, 2026-12-01: 13.3, 33.7 and 94.5 us for 1, 8 and 32 sequences of 7 rows behind 4,096 positions, with the fold, when the
 * values' product waited for all weights (2,800 cycles) and nothing was called ahead.
 */
#include "backend/cuda/kernels/draft.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/number.cuh"

enum {
    DIM = 128,
    RING = 2,
    LINES = 64,                                /* queries of a warpgroup */
    QUERY_HALF = LINES * LINE_BYTES,           /* 64 dims of them */
    QUERY_BYTES = 2 * QUERY_HALF,
    TILE_HALF = CUDA_BLOCK_TOKENS * LINE_BYTES, /* 64 dims of a block's keys or values */
    TILE_BYTES = 2 * TILE_HALF,
    MULTIPLYING = 2 * WARPGROUP, /* threads */
};

struct draft_control {
    arrivals full[2][RING], empty[2][RING]; /* of keys, of values */
    float factor[DRAFT_HOPPER_QUERIES];
};
static_assert(2 * QUERY_BYTES + 2 * RING * TILE_BYTES + sizeof(draft_control) <= DRAFT_HOPPER_SHARED, "the host gives that much");
static_assert(MULTIPLYING * 64 * sizeof(float) == DRAFT_HOPPER_TOTAL, "an output for every thread");

struct draft_work {
    int sequence, group, first; /* first query */
    int run, run_end;           /* runs, or one block */
    int begin, end;             /* blocks of the context */
    bool own;                   /* and the rows' own keys */
};

DEVICE draft_work find_work(const draft_attend_args &a, const draft_sequence &of)
{
    int x = blockIdx.x, blocks = of.blocks - 1;
    int tile = (int)blockIdx.y % a.tiles;
    draft_work w = {(int)blockIdx.z, (int)blockIdx.y / a.tiles, tile * DRAFT_HOPPER_QUERIES, 0, 0, 0, 0, true};
    if (a.mode == DRAFT_WHOLE) {
        w.run_end = DRAFT_RUNS, w.end = blocks;
    } else if (a.mode == DRAFT_BY_RUNS) {
        w.run = x, w.run_end = x + 1, w.begin = run_begin(blocks, x), w.end = run_begin(blocks, x + 1), w.own = x == 0;
    } else {
        w.run = x, w.run_end = x + (x < blocks), w.begin = x, w.end = w.begin + (x < blocks), w.own = x == blocks;
    }
    return w;
}

/* Blocks [whole[0], whole[1]) of the context, of which every row sees all keys: those that the last row sees from the first key
 * on, but for the one that ends later than the context. */
DEVICE void whole_blocks(const draft_attend_args &a, const draft_sequence &of, int whole[2])
{
    int low = of.position + of.rows - a.window;
    whole[0] = (low > 0 ? (low + CUDA_BLOCK_TOKENS - 1) / CUDA_BLOCK_TOKENS : 0) - of.first_block;
    whole[1] = of.position / CUDA_BLOCK_TOKENS - of.first_block;
}

/* ---- Keys and values --------------------------------------------------------------------------------------------- */

/* Tokens [first, end) of a block are values, the others zeros: where a row sees nothing anything may lie. */
template <bool VALUES> DEVICE key_span stored_span(const draft_attend_args &a, const draft_sequence &of, int b)
{
    if (!VALUES) return {0, CUDA_BLOCK_TOKENS};
    return span_of(a, of, b, 0);
}

/* A thread's line of a block's keys or values, of 128 bytes, into the second-level cache. base: as below. */
DEVICE void call_block(const uint8_t *base, int64_t row)
{
    int thread = (int)threadIdx.x % WARPGROUP, token = thread / CUDA_WARP * 8 + thread % 8, piece = thread % CUDA_WARP / 8;
    prefetch(base + row + ((thread - token) * DIM - piece * 16));
}

/* What a thread has stored of tokens of block b that no row sees becomes zeros. */
DEVICE void clear_unseen(const draft_attend_args &a, const draft_sequence *sequence, int b, unsigned char *tile, int unit)
{
    int thread = (int)threadIdx.x % WARPGROUP, token = thread / CUDA_WARP * 8 + thread % 8;
    key_span span = span_of(a, *sequence, b, 0);
    for (int i = 0; i < 4; i++)
        if (token + i * 32 < span.first || token + i * 32 >= span.end)
            for (int half = 0; half < 2; half++) {
                unsigned char *to = tile + half * TILE_HALF + i * 32 * LINE_BYTES;
                *(quad *)(to + unit) = *(quad *)(to + (unit ^ 16)) = quad{{0, 0, 0, 0}};
            }
}

/* By one warpgroup, a half of the dims after the other. A thread has four pieces of 16 codes of a half; lane l has token l % 8 of
 * eight and piece l / 8 of four, so that a warp's stores, eight tokens of one unit, meet every bank once. A piece is asked for
 * as soon as the registers of the one before are free, from the second-level cache: it is called there AHEAD blocks before. */
template <bool VALUES>
DEVICE void bring_e4m3(const draft_attend_args &a, const draft_sequence *sequence, const draft_work &w, unsigned char *ring,
                       arrivals *full, arrivals *empty)
{
    enum { PIECES = 4, AHEAD = 4 };
    int thread = (int)threadIdx.x % WARPGROUP, token = thread / CUDA_WARP * 8 + thread % 8, piece = thread % CUDA_WARP / 8;
    int whole[2], end = w.end;
    whole_blocks(a, *sequence, whole);
    const int32_t *table = a.table + (int64_t)w.sequence * a.blocks;
    const uint8_t *base = a.cache.base + a.at + w.group * a.cache.draft_head_bytes + (VALUES ? a.cache.draft_v_data : 0) +
                          token * DIM + piece * 16;
    int unit = tile_unit(token, 2 * piece);
    const uint8_t *from = base + table[w.begin] * a.cache.row_bytes;
    for (int i = 0; i < AHEAD && w.begin + i < end; i++) call_block(base, table[w.begin + i] * a.cache.row_bytes);
    quad held[PIECES];
    UNROLL for (int i = 0; i < PIECES; i++) held[i] = load_once(from + i * 32 * DIM);
    for (int b = w.begin, stage = 0, turn = 1; b < end; b++) {
        unsigned char *tile = ring + stage * TILE_BYTES;
        if (b + AHEAD < end) call_block(base, table[b + AHEAD] * a.cache.row_bytes);
        arrivals_wait(empty + stage, turn);
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int i = 0; i < PIECES; i++) {
                unsigned char *to = tile + half * TILE_HALF + i * 32 * LINE_BYTES;
                quad out[2];
                UNROLL for (int h = 0; h < 8; h++) out[h / 4].w[h % 4] = e4m3_halves(held[i].w[h / 2] >> h % 2 * 16);
                if (!half) held[i] = load_once(from + i * 32 * DIM + 64);
                *(quad *)(to + unit) = out[0];
                *(quad *)(to + (unit ^ 16)) = out[1]; /* the next one: the first is even */
            }
        if (VALUES && (b < whole[0] || b >= whole[1])) clear_unseen(a, sequence, b, tile, unit);
        others_read(); /* it would wait for loads too */
        arrivals_come(full + stage);
        if (b + 1 == end) break;
        from = base + table[b + 1] * a.cache.row_bytes;
        UNROLL for (int i = 0; i < PIECES; i++) held[i] = load_once(from + i * 32 * DIM);
        if (++stage == RING) stage = 0, turn ^= 1;
    }
}

/* The same of bf16, past the registers. */
template <bool VALUES>
DEVICE void bring_bf16(const draft_attend_args &a, const draft_sequence &of, const draft_work &w, unsigned char *ring,
                       arrivals *full, arrivals *empty)
{
    enum { UNITS = DIM / 8 };
    int thread = (int)threadIdx.x % WARPGROUP, unit = thread % UNITS;
    const int32_t *table = a.table + (int64_t)w.sequence * a.blocks;
    const uint8_t *base = a.cache.base + a.at + w.group * a.cache.draft_head_bytes + (VALUES ? a.cache.draft_v_data : 0) +
                          unit * 16;
    for (int b = w.begin, n = 0; b < w.end; b++, n++) {
        unsigned char *tile = ring + n % RING * TILE_BYTES + unit / 8 * TILE_HALF;
        const uint8_t *from = base + table[b] * a.cache.row_bytes;
        key_span span = stored_span<VALUES>(a, of, b);
        arrivals_wait(empty + n % RING, n / RING % 2 ^ 1);
        UNROLL for (int i = 0; i < UNITS; i++) {
            int t = thread / UNITS + i * (WARPGROUP / UNITS);
            copy_async(tile + tile_unit(t, unit % 8), from + t * 2 * DIM, t >= span.first && t < span.end);
        }
        copy_commit();
        if (n > 0) {
            copy_wait<1>();
            others_read();
            arrivals_come(full + (n - 1) % RING);
        }
    }
    copy_wait<0>();
    others_read();
    arrivals_come(full + (w.end - w.begin - 1) % RING);
}

/* ---- Queries ----------------------------------------------------------------------------------------------------- */

DEVICE const uint16_t *query_at(const draft_attend_args &a, const draft_work &w, int query)
{
    int per_group = a.heads / a.kv_heads;
    int64_t row = (int64_t)w.sequence * a.stride + query / per_group;
    return a.q + (row * a.heads + w.group * per_group + query % per_group) * DIM;
}

/* A warp has its 16 lines, 16 lanes a line. As bf16, zeros where there is no query. */
DEVICE void put_queries(const draft_attend_args &a, const draft_work &w, int queries, unsigned char *tile)
{
    int warp = (int)threadIdx.x / CUDA_WARP % 4, lane = threadIdx.x % CUDA_WARP, unit = lane % 16;
    int first = w.first + (int)threadIdx.x / WARPGROUP * LINES;
    quad raw[8];
    UNROLL for (int i = 0; i < 8; i++) {
        int query = first + 16 * warp + 2 * i + lane / 16;
        raw[i] = quad{{0, 0, 0, 0}};
        if (query < queries) raw[i] = ((const quad *)query_at(a, w, query))[unit];
    }
    UNROLL for (int i = 0; i < 8; i++)
        *(quad *)(tile + unit / 8 * QUERY_HALF + tile_unit(16 * warp + 2 * i + lane / 16, unit % 8)) = raw[i];
}
/* These lines as fp16. */
DEVICE void halve_queries(const draft_attend_args &a, unsigned char *tile, float *factor)
{
    int warp = (int)threadIdx.x / CUDA_WARP % 4, lane = threadIdx.x % CUDA_WARP, unit = lane % 16;
    UNROLL for (int i = 0; i < 8; i++) {
        int line = 16 * warp + 2 * i + lane / 16;
        quad *at = (quad *)(tile + unit / 8 * QUERY_HALF + tile_unit(line, unit % 8)), x = *at;
        uint32_t most = 0; /* bits of a magnitude, as fp32 */
        UNROLL for (int j = 0; j < 4; j++) most = max(most, max(x.w[j] << 16 & 0x7FFF0000u, x.w[j] & 0x7FFF0000u));
        UNROLL for (int mask = 1; mask < 16; mask *= 2) most = max(most, lane_xor(most, mask));
        int exponent = min(max((int)(most >> 23), 1), 253) - 127;
        float down = bits_float((uint32_t)(127 - exponent) << 23);
        UNROLL for (int j = 0; j < 4; j++) x.w[j] = round_halves(low_float(x.w[j]) * down, high_float(x.w[j]) * down);
        *at = x;
        if (unit == 0) factor[line] = a.scale * bits_float((uint32_t)(127 + exponent) << 23);
    }
}

/* Own keys and values in two tiles of 16 lines, by both warpgroups. */
enum { OWN_HALF = DRAFT_ROWS * LINE_BYTES, OWN_BYTES = 2 * OWN_HALF };
DEVICE void put_own(const draft_attend_args &a, const draft_work &w, int rows, unsigned char *own)
{
    static_assert(MULTIPLYING == DRAFT_ROWS * DIM / 8 && 2 * OWN_BYTES == DRAFT_HOPPER_OWN, "a thread has a unit of each");
    int line = (int)threadIdx.x / 16, unit = (int)threadIdx.x % 16;
    int64_t at = ((int64_t)(w.sequence * a.stride + line) * a.kv_heads + w.group) * DIM + 8 * unit;
    quad key = {{0, 0, 0, 0}}, value = {{0, 0, 0, 0}};
    if (line < rows) key = *(const quad *)(a.own_k + at), value = *(const quad *)(a.own_v + at);
    unsigned char *to = own + unit / 8 * OWN_HALF + tile_unit(line, unit % 8);
    *(quad *)to = key;
    *(quad *)(to + OWN_BYTES) = value;
}

/* ---- Softmax ----------------------------------------------------------------------------------------------------- */

template <bool HALF> DEVICE uint32_t weight_pair(float low, float high)
{
    return HALF ? round_halves(low, high) : round_pair(low, high);
}

/* Maxima of scores of 8 * TILES tokens, s[4 * tile + 2 * row + token], of this lane's two queries, times their factors. PARTLY:
 * query r sees tokens [first[r], end[r]), the others become -inf. base: what weights are relative to. */
template <bool PARTLY, int TILES>
DEVICE void find_tops(float (&s)[4 * TILES], const float factor[2], const int first[2], const int end[2], float top[2],
                      float base[2])
{
    int t = threadIdx.x % 4;
    float most[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            int token = 8 * i + 2 * t + c % 2;
            if (PARTLY && (token < first[c / 2] || token >= end[c / 2])) s[4 * i + c] = -INFINITY;
            most[c / 2][c % 2] = fmaxf(most[c / 2][c % 2], s[4 * i + c]);
        }
    UNROLL for (int r = 0; r < 2; r++) top[r] = fmaxf(most[r][0], most[r][1]);
    UNROLL for (int mask = 1; mask < 4; mask *= 2)
        UNROLL for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], lane_xor(top[r], mask));
    UNROLL for (int r = 0; r < 2; r++) {
        top[r] *= factor[r];
        base[r] = top[r] == -INFINITY ? 0 : top[r];
    }
}

/* Weights of tokens 16 * k on, as A of wgmma and of m16n8k16; sum[r][c] grows by those of this lane. */
template <bool HALF, int TILES>
DEVICE void weigh(const float (&s)[4 * TILES], int k, const float factor[2], const float base[2],
                  uint32_t (&weights)[2 * TILES], float sum[2][2])
{
    UNROLL for (int i = 2 * k; i < 2 * k + 2; i++)
        UNROLL for (int r = 0; r < 2; r++) {
            float p[2];
            UNROLL for (int c = 0; c < 2; c++) {
                p[c] = power_of_two(fused(s[4 * i + 2 * r + c], factor[r], -base[r]));
                sum[r][c] += p[c];
            }
            weights[2 * i + r] = weight_pair<HALF>(p[0], p[1]);
        }
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

template <bool HALF> DEVICE void multiply_keys(float (&s)[64], const unsigned char *queries, const unsigned char *keys)
{
    wgmma_fence();
    UNROLL for (int k = 0; k < DIM / 16; k++)
        wgmma_shared<CUDA_BLOCK_TOKENS, HALF>(s, matrix_of(queries + k / 4 * QUERY_HALF, 0, ATOM_BYTES) + k % 4 * MATRIX_NEXT,
                                              matrix_of(keys + k / 4 * TILE_HALF, 0, ATOM_BYTES) + k % 4 * MATRIX_NEXT, k > 0);
    wgmma_commit();
}
/* A step of 16 tokens is on its way while the weights of the next one are computed. factors: of this lane's first query. */
template <bool HALF>
DEVICE void multiply_values(float (&out)[64], const float (&s)[64], const float *factors, const float base[2],
                            uint32_t (&weights)[32], float sum[2][2], const unsigned char *values)
{
    UNROLL for (int k = 0; k < CUDA_BLOCK_TOKENS / 16; k++) {
        float factor[2] = {read_here(factors), read_here(factors + 8)}; /* or all weights are computed before the first step */
        weigh<HALF, 16>(s, k, factor, base, weights, sum);
        wgmma_fence();
        wgmma<DIM, HALF, true>(out, weights + 4 * k, matrix_of(values + k * 16 * LINE_BYTES, TILE_HALF, ATOM_BYTES), k > 0);
    }
    wgmma_commit();
}

/* Of two queries and their output, columns 8i + 2t of it in out[4 * i + 2 * query]; sums of this lane's tokens alone, which are
 * added up in the end. */
struct draft_part {
    float top[2], sum[2], out[64];
};

/* What the own rows give, at most 16; queries as bf16. */
DEVICE void attend_own(const draft_attend_args &a, int rows, const unsigned char *queries, const unsigned char *own,
                       draft_part &to)
{
    static_assert(DRAFT_ROWS == 16, "one step of the values' product");
    int lane = threadIdx.x % CUDA_WARP, line = (int)threadIdx.x / CUDA_WARP % 4 * 16 + lane % 16;
    int first[2] = {0, 0}, end[2] = {rows, rows};
    float s[8] = {0, 0, 0, 0, 0, 0, 0, 0}, factor[2] = {a.scale, a.scale};
    uint32_t weights[4];
    UNROLL for (int k = 0; k < DIM / 16; k++) {
        uint32_t q[4], key[4];
        load_matrices(q, queries + k / 4 * QUERY_HALF + tile_unit(line, k % 4 * 2 + lane / 16));
        load_matrices(key, own + k / 4 * OWN_HALF + tile_unit(lane / 16 * 8 + lane % 8, k % 4 * 2 + lane / 8 % 2));
        mma_bf16(s, q, key);
        mma_bf16(s + 4, q, key + 2);
    }
    float base[2], sum[2][2] = {{0, 0}, {0, 0}};
    find_tops<true, 2>(s, factor, first, end, to.top, base);
    weigh<false, 2>(s, 0, factor, base, weights, sum);
    UNROLL for (int r = 0; r < 2; r++) to.sum[r] = sum[r][0] + sum[r][1];
    UNROLL for (int i = 0; i < 64; i++) to.out[i] = 0;
    UNROLL for (int i = 0; i < DIM / 8; i += 2) {
        uint32_t value[4];
        load_transposed(value, own + OWN_BYTES + i / 8 * OWN_HALF + tile_unit(lane % 16, i % 8 + lane / 16));
        mma_bf16(to.out + 4 * i, weights, value);
        mma_bf16(to.out + 4 * i + 4, weights, value + 2);
    }
}

/* tile: of this warp. */
DEVICE void store_part(const draft_attend_args &a, const draft_work &w, int place, int tile, int queries, const draft_part &x)
{
    if (16 * tile >= queries) return;
    int64_t part = part_at(a, w.sequence, w.group, place);
    store_part_state(a, part, tile, x.top, x.sum);
    quad *to = part_out_at(a, part, tile);
    UNROLL for (int i = 0; i < DIM / 8; i++) {
        quad y;
        UNROLL for (int c = 0; c < 4; c++) y.w[c] = float_bits(x.out[4 * i + c]);
        to[i * CUDA_WARP] = y;
    }
}

/* The runs so far: maxima and sums here, outputs in shared memory, fours of each thread at steps of all of them. */
struct draft_total {
    float top[2], sum[2];
    quad *out;
};
DEVICE void fold_run(draft_total &to, const draft_part &run, bool begin)
{
    float before[2] = {0, 0}, now[2] = {1, 1};
    UNROLL for (int r = 0; r < 2; r++) {
        if (!begin) fold_step(to.top[r], run.top[r], before[r], now[r]);
        if (begin) to.top[r] = run.top[r];
        to.sum[r] = begin ? run.sum[r] : fold_value(to.sum[r], before[r], run.sum[r], now[r]);
    }
    UNROLL for (int i = 0; i < DIM / 8; i++) {
        quad *at = to.out + i * MULTIPLYING, x = *at;
        UNROLL for (int c = 0; c < 4; c++) {
            float y = run.out[4 * i + c];
            x.w[c] = float_bits(begin ? y : fold_value(bits_float(x.w[c]), before[c / 2], y, now[c / 2]));
        }
        *at = x;
    }
}
/* By way of the lines of this warp's queries, which nobody needs any more. */
DEVICE void store_total(const draft_attend_args &a, const draft_work &w, int first, int queries, unsigned char *tile,
                        const draft_total &x)
{
    int per_group = a.heads / a.kv_heads, warp = (int)threadIdx.x / CUDA_WARP % 4, lane = threadIdx.x % CUDA_WARP, t = lane % 4;
    UNROLL for (int r = 0; r < 2; r++) {
        float sum = sum_of_row(x.sum[r]);
        UNROLL for (int i = 0; i < DIM / 8; i++) {
            const uint32_t *from = x.out[i * MULTIPLYING].w + 2 * r;
            uint32_t pair = round_pair(bits_float(from[0]) / sum, bits_float(from[1]) / sum);
            *(uint32_t *)(tile + i / 8 * QUERY_HALF + tile_unit(16 * warp + lane / 4 + 8 * r, i % 8) + 4 * t) = pair;
        }
    }
    WARP_SYNC();
    UNROLL for (int i = 0; i < 8; i++) {
        int line = 2 * i + lane / 16, unit = lane % 16, query = first + line;
        if (query >= queries) continue;
        int64_t row = (int64_t)w.sequence * a.stride + query / per_group, head = w.group * per_group + query % per_group;
        ((quad *)(a.attention + (row * a.heads + head) * DIM))[unit] =
            *(const quad *)(tile + unit / 8 * QUERY_HALF + tile_unit(16 * warp + line, unit % 8));
    }
}

/* The tensor cores go from one warpgroup to the other, behind the products of a block's keys. */
DEVICE void await_turn(int group)
{
    if (group == 0)
        threads_meet<1, MULTIPLYING>();
    else
        threads_meet<2, MULTIPLYING>();
}
DEVICE void give_turn(int group)
{
    if (group == 0)
        threads_come<2, MULTIPLYING>();
    else
        threads_come<1, MULTIPLYING>();
}

/* One of two warpgroups. */
template <bool HALF>
DEVICE void multiply(const draft_attend_args &a, const draft_sequence *sequence, const unsigned char *tiles,
                     unsigned char *queries_tile, draft_control &control, unsigned char *more)
{
    const draft_sequence of = *sequence; /* in registers: barriers would have it read again */
    const draft_work w = find_work(a, of);
    int per_group = a.heads / a.kv_heads, queries = of.rows * per_group, group = (int)threadIdx.x / WARPGROUP;
    int thread = (int)threadIdx.x % WARPGROUP, line = thread / CUDA_WARP * 16 + thread % CUDA_WARP / 4;
    int first_query = w.first + group * LINES + line, whole[2];
    whole_blocks(a, of, whole);
    queries_tile += group * QUERY_BYTES;
    float *factors = control.factor + group * LINES, factor[2];
    int tile = first_query / 16; /* of 16 queries, this warp's */
    draft_total total = {{0, 0}, {0, 0}, (quad *)more + threadIdx.x};
    put_queries(a, w, queries, queries_tile);
    if (w.own) {
        draft_part own;
        put_own(a, w, of.rows, more);
        threads_meet<3, MULTIPLYING>();
        attend_own(a, of.rows, queries_tile, more, own);
        threads_meet<3, MULTIPLYING>(); /* both have read what the total takes the place of */
        if (a.mode == DRAFT_WHOLE)
            fold_run(total, own, true);
        else
            store_part(a, w, a.mode == DRAFT_BY_RUNS ? (int)DRAFT_RUNS : of.blocks - 1, tile, queries, own);
    }
    if (HALF) {
        WARP_SYNC();
        halve_queries(a, queries_tile, factors);
        WARP_SYNC();
    } else {
        factors[thread % LINES] = a.scale;
    }
    others_read();
    if (group == 0)
        threads_meet<4, WARPGROUP>();
    else
        threads_meet<5, WARPGROUP>();
    factor[0] = factors[line], factor[1] = factors[line + 8];
    int n = 0;
    for (int run = w.run, b = w.begin; run < w.run_end; run++) {
        int end = a.mode == DRAFT_BLOCKS ? w.end : run_begin(of.blocks - 1, run + 1);
        draft_part state;
        UNROLL for (int r = 0; r < 2; r++) state.top[r] = -INFINITY, state.sum[r] = 0;
        UNROLL for (int i = 0; i < 64; i++) state.out[i] = 0;
        for (; b < end; b++, n++) {
            int stage = n % RING, turn = n / RING % 2;
            const unsigned char *keys = tiles + stage * TILE_BYTES, *values = keys + RING * TILE_BYTES;
            float s[64], out[64], top[2], base[2], sum[2][2] = {{0, 0}, {0, 0}}, before[2], now[2];
            uint32_t weights[32];
            arrivals_wait(control.full[0] + stage, turn);
            if (group || n) await_turn(group);
            multiply_keys<HALF>(s, queries_tile, keys);
            if (!group || b + 1 < w.end) give_turn(group);
            wgmma_wait<0>(s);
            WARP_SYNC();
            if (threadIdx.x % CUDA_WARP == 0) arrivals_come(control.empty[0] + stage);
            int first[2] = {0, 0}, ends[2] = {0, 0};
            if (b >= whole[0] && b < whole[1]) {
                find_tops<false, 16>(s, factor, first, ends, top, base);
            } else {
                const draft_sequence *again = (const draft_sequence *)known_here((const uint8_t *)sequence);
                UNROLL for (int r = 0; r < 2; r++) {
                    key_span span = span_of(a, *again, b, (first_query + 8 * r) / per_group);
                    first[r] = span.first, ends[r] = span.end;
                }
                find_tops<true, 16>(s, factor, first, ends, top, base);
            }
            arrivals_wait(control.full[1] + stage, turn);
            multiply_values<HALF>(out, s, factors + line, base, weights, sum, values);
            UNROLL for (int r = 0; r < 2; r++) {
                fold_step(state.top[r], top[r], before[r], now[r]);
                state.sum[r] = fold_value(state.sum[r], before[r], sum[r][0] + sum[r][1], now[r]);
            }
            if (lane_ballot(before[0] != 1 || before[1] != 1)) /* most blocks have no new maximum */
                UNROLL for (int i = 0; i < 64; i++) state.out[i] *= before[i / 2 % 2];
            wgmma_wait<0>(out);
            wgmma_hold(weights);
            WARP_SYNC();
            if (threadIdx.x % CUDA_WARP == 0) arrivals_come(control.empty[1] + stage);
            UNROLL for (int i = 0; i < 64; i++) state.out[i] = fused(out[i], now[i / 2 % 2], state.out[i]);
        }
        if (a.mode == DRAFT_WHOLE)
            fold_run(total, state, false);
        else
            store_part(a, w, run, tile, queries, state);
    }
    if (a.mode != DRAFT_WHOLE) return;
    if (group == 0)
        threads_meet<4, WARPGROUP>();
    else
        threads_meet<5, WARPGROUP>();
    store_total(a, w, 16 * tile, queries, queries_tile, total);
}

template <bool HALF> DEVICE void attend(const draft_attend_args &a)
{
    unsigned char *queries = TILES(unsigned char), *tiles = queries + 2 * QUERY_BYTES;
    draft_control &control = *(draft_control *)(tiles + 2 * RING * TILE_BYTES);
    const draft_sequence *sequence = a.sequence + blockIdx.z;
    if (a.mode == DRAFT_BLOCKS && (int)blockIdx.x >= sequence->blocks) return;
    int group = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * RING; i++) {
            arrivals_init(&control.full[0][0] + i, WARPGROUP);
            arrivals_init(&control.empty[0][0] + i, MULTIPLYING / CUDA_WARP);
        }
        arrivals_ready();
    }
    BLOCK_SYNC();
    if (group < 2) {
        registers_take<208>();
        multiply<HALF>(a, sequence, tiles, queries, control, queries + DRAFT_HOPPER_SHARED);
    } else {
        registers_give<48>();
        const draft_work w = find_work(a, *sequence);
        if (w.begin >= w.end) return;
        if (group == 2 && HALF)
            bring_e4m3<false>(a, sequence, w, tiles, control.full[0], control.empty[0]);
        else if (group == 2)
            bring_bf16<false>(a, *sequence, w, tiles, control.full[0], control.empty[0]);
        else if (HALF)
            bring_e4m3<true>(a, sequence, w, tiles + RING * TILE_BYTES, control.full[1], control.empty[1]);
        else
            bring_bf16<true>(a, *sequence, w, tiles + RING * TILE_BYTES, control.full[1], control.empty[1]);
    }
}

KERNEL_OF(draft_attend_fp8, draft_attend_args, DRAFT_HOPPER_THREADS, 1) { attend<true>(a); }
KERNEL_OF(draft_attend_bf16, draft_attend_args, DRAFT_HOPPER_THREADS, 1) { attend<false>(a); }
