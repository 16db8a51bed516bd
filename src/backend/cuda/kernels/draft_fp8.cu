/*
 * Attention of draft blocks on Hopper over keys and values of E4M3, heads of 128 dims; draft.cu says what it is.
 *
 * Keys are the rows of the products and queries their columns: 7 rows of 16 heads are 112 columns, without padding. Two
 * warpgroups multiply. Of a block of 128 keys each has the scores of 64, [keys, queries], and 64 dims of the output, [dims,
 * queries], of all 128. Keys and values go from E4M3 to fp16, which holds them exactly, on the way from shared memory to the
 * registers from which wgmma takes them; what it takes from shared memory are the queries and the weights, which the warpgroups
 * give each other through two buffers. A third warpgroup brings the codes as they are.
 *
 * Weights are fp16, relative to the largest score among the block's own keys and 2^HEADROOM times that: a number that every
 * thread block finds for itself, so that nobody looks for maxima. A weight's last bit is then 2^-16 of the largest own one.
 * Where weights pass what fp16 holds, the sums of a run say so, and in the end both warpgroups compute all runs again, that one
 * relative to its largest score (attend_again); that changes nothing for the other queries.
 *
 * Runs of blocks are summed on their own and folded in their order, then the own rows: so a thread block may have all runs, or
 * those of a sequence be divided among a cluster that folds them through its shared memory, and that changes no bit. Nor does
 * how many queries a thread block has: few of them where thread blocks would be too few.
 *
 * Bytes and cycles: a block of keys is 32 KB, 1,792 cycles of the tensor cores, 896 of the powers of two, and 1,600 of shared
 * memory: 56 KB of queries and 56 KB of weights for wgmma, 28 KB of weights, 64 KB of codes. A warpgroup asks for the output of
 * a block together with the scores of the next but one, when the weights between them are done, and the other one may then use
 * the tensor cores; that they take turns by barriers has made nothing faster. Of a thread's 240 registers 56 are scores, 56
 * output, 64 operands: what is spilled is fetched from far away, since shared memory is nearly all that the first-level cache
 * has (147 us with 370 bytes of spills and the rare path within the loop, 100 without).
 *
 * H200, 2026-12-01: 14.0, 30.6 and 75.1 us for 1, 8 and 32 sequences of 7 rows behind 4,096 positions. With 32 the tensor cores
 * work 42 % of the time; by the profiler's samples a warpgroup spends a third of it with weights (1,700 cycles a block), an
 * eighth before the first of them and an eleventh behind the last run.
 */
#include "backend/cuda/kernels/draft_fp8.h"
#include "backend/cuda/kernels/draft.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/number.cuh"

enum {
    DIM = 128,
    MULTIPLYING = 2 * WARPGROUP, /* threads */
    WARPS = MULTIPLYING / CUDA_WARP,
    STAGE_BYTES = CUDA_BLOCK_TOKENS * DIM, /* keys or values of a block */
    STAGES = 4,
    HEADROOM = 8,
    OWN = DRAFT_ROWS,
};

/* Parts of N queries in shared memory; of a cluster's block a part for each of its runs, else all of them folded. */
template <int N, int RUNS, int HELD> struct draft_memory {
    struct alignas(1024) {
        unsigned char queries[2][N * LINE_BYTES];    /* fp16, in halves of the dims, in the order of key_operands */
        unsigned char weights[2][2][N * LINE_BYTES]; /* two buffers; of 64 keys each; first also the queries as bf16 */
        quad out[HELD][N / 8][MULTIPLYING];          /* of runs but for the last, or all folded */
        unsigned char codes[STAGES][STAGE_BYTES];    /* in the end the output of the last run */
    };
    arrivals full[STAGES], empty[STAGES], weighed[2], taken[2];
    alignas(16) float base[N], own_top[N], own_sum[N];
    float top[RUNS][N], sum[RUNS][N];
    float before[N], now[N]; /* of a fold */
    int32_t place[N];
    float warp_sum[3][WARPS][N]; /* of a run, of the next one, and of one whose sums may still be read */
    float run_base[N];
    uint16_t own[N * OWN]; /* weights of the own keys, bf16 */
    uint32_t beyond[N], any_beyond; /* a bit for each run */
};

struct draft_range {
    int sequence, group, first; /* first query */
    int run, run_end, begin, end; /* runs, and blocks of the context */
};

/* Blocks [whole[0], whole[1]) of the context, of which every row sees all keys: those that the last row sees from the first key
 * on, but for the one that ends later than the context. */
DEVICE void whole_blocks(const draft_attend_args &a, const draft_sequence &of, int whole[2])
{
    int low = of.position + of.rows - a.window;
    whole[0] = (low > 0 ? (low + CUDA_BLOCK_TOKENS - 1) / CUDA_BLOCK_TOKENS : 0) - of.first_block;
    whole[1] = of.position / CUDA_BLOCK_TOKENS - of.first_block;
}
DEVICE int fp8_run_begin(int blocks, int r) { return blocks * r / DRAFT_FP8_RUNS; }

template <int N, int CLUSTER> DEVICE draft_range find_range(const draft_attend_args &a, const draft_sequence &of)
{
    enum { RUNS = DRAFT_FP8_RUNS / CLUSTER };
    int rank = CLUSTER > 1 ? (int)blockIdx.x % CLUSTER : 0, blocks = of.blocks - 1;
    draft_range w = {(int)blockIdx.z, (int)blockIdx.y / a.tiles, (int)blockIdx.y % a.tiles * N, rank * RUNS, 0, 0, 0};
    w.run_end = w.run + RUNS;
    w.begin = fp8_run_begin(blocks, w.run), w.end = fp8_run_begin(blocks, w.run_end);
    return w;
}

/* ---- Codes -------------------------------------------------------------------------------------------------------- */

/* Byte of a stage at which unit u, 16 codes, of a token lies: eight tokens one behind the other have a unit of all banks, and two
 * of them four units. */
DEVICE int code_unit(int token, int u) { return token * DIM + ((u ^ ((token & 1) << 2 | (token >> 1 & 3))) << 4); }

/* A block's keys or values. PARTLY: those of tokens outside of the span become zeros, for anything may lie there. */
template <bool PARTLY> DEVICE void bring_codes(const uint8_t *from, unsigned char *stage, key_span span)
{
    int thread = (int)threadIdx.x % WARPGROUP, token = thread / 8;
    from += thread * 16, stage += code_unit(token, thread % 8); /* 16 tokens on, the units lie alike */
    UNROLL for (int i = 0; i < 8; i++)
        copy_async(stage + 16 * i * DIM, from + 16 * i * DIM,
                   !PARTLY || (token + 16 * i >= span.first && token + 16 * i < span.end));
}

/* Blocks of the cache that a sequence's keys are in; the first of them in registers, asked for before anything is known of it. */
struct draft_table {
    const int32_t *at;
    int32_t held[2];
};
DEVICE int32_t block_of(const draft_table &t, int b)
{
    return b < 2 * CUDA_WARP ? lane_get(b < CUDA_WARP ? t.held[0] : t.held[1], b % CUDA_WARP) : t.at[b];
}

/* By a warpgroup, in the order in which they are taken: the keys of a block, then the values of the one before. */
template <int N, int CLUSTER, typename memory>
DEVICE void bring(const draft_attend_args &a, const draft_sequence *sequence, memory &m)
{
    draft_table table = {a.table + (int64_t)blockIdx.z * a.blocks, {0, 0}};
    UNROLL for (int i = 0; i < 2; i++) {
        int b = (int)threadIdx.x % CUDA_WARP + i * CUDA_WARP;
        if (b < a.blocks) table.held[i] = table.at[b];
    }
    const draft_sequence of = *sequence;
    const draft_range w = find_range<N, CLUSTER>(a, of);
    const uint8_t *base = a.cache.base + a.at + w.group * a.cache.draft_head_bytes, *values = base;
    int stage = 0, turn = 1, whole[2];
    whole_blocks(a, of, whole);
    for (int b = w.begin; b <= w.end && w.begin < w.end; b++) {
        const uint8_t *keys = b < w.end ? base + block_of(table, b) * a.cache.row_bytes : base;
        UNROLL for (int kind = 0; kind < 2; kind++) {
            int of_block = b - kind;
            if (of_block < w.begin || of_block >= w.end) continue;
            arrivals_wait(m.empty + stage, turn);
            const uint8_t *from = kind ? values + a.cache.draft_v_data : keys;
            if (of_block < whole[0] || of_block >= whole[1])
                bring_codes<true>(from, m.codes[stage], span_of(a, *sequence, of_block, 0));
            else
                bring_codes<false>(from, m.codes[stage], {0, 0});
            copy_come(m.full + stage);
            if (++stage == STAGES) stage = 0, turn ^= 1;
        }
        values = keys;
    }
}

/* Of 16 consecutive codes of a key: dims 16t + 4i .. of thread t are operands of step i of four. x: its unit in both rows. */
DEVICE void key_operands(const quad (&x)[2], uint32_t (&operands)[32], int half)
{
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int r = 0; r < 2; r++) {
            operands[4 * (4 * half + i) + r] = e4m3_halves(x[r].w[i]);
            operands[4 * (4 * half + i) + 2 + r] = e4m3_halves(x[r].w[i] >> 16);
        }
}
/* Units of the keys 4 * half + t, of two tokens. */
DEVICE void load_keys(const unsigned char *stage, quad (&x)[2][2])
{
    int lane = threadIdx.x % CUDA_WARP, token = (int)threadIdx.x / CUDA_WARP * 16 + lane / 4, t = lane % 4;
    UNROLL for (int half = 0; half < 2; half++)
        UNROLL for (int r = 0; r < 2; r++) x[half][r] = *(const quad *)(stage + code_unit(token + 8 * r, 4 * half + t));
}
/* Two values of each of two keys: operands of these keys, first of the even dim, then of the odd one. */
DEVICE void value_operands(uint32_t codes, uint32_t *operands)
{
    uint32_t dims = permute_bytes(codes, codes, 0x3120);
    operands[0] = e4m3_halves(dims);
    operands[1] = e4m3_halves(dims >> 16);
}
/* Row g of a warp's 16 is dim 2g of its 16, row g + 8 the one behind it. */
DEVICE void take_values(const unsigned char *stage, uint32_t (&operands)[32])
{
    int lane = threadIdx.x % CUDA_WARP, unit = (int)threadIdx.x / CUDA_WARP;
    UNROLL for (int i = 0; i < 4; i++) {
        uint32_t codes[4];
        load_transposed(codes, stage + code_unit(32 * i + lane, unit));
        UNROLL for (int j = 0; j < 4; j++) value_operands(codes[j], operands + 8 * i + 2 * j);
    }
}

/* ---- Queries and own keys ------------------------------------------------------------------------------------------ */

/* scale = mantissa * 2^exponent with 1 <= mantissa < 2; the power goes into the queries. */
DEVICE float mantissa_of(float scale) { return bits_float((float_bits(scale) & 0x7FFFFFu) | 0x3F800000u); }
DEVICE float exponent_of(float scale) { return bits_float(float_bits(scale) & 0x7F800000u); }

DEVICE uint32_t bounded_halves(float low, float high)
{
    return round_halves(fminf(fmaxf(low, -65504.0f), 65504.0f), fminf(fmaxf(high, -65504.0f), 65504.0f));
}

/* Of queries that a sequence may have: how many it has is not known yet. */
template <int N> DEVICE void load_queries(const draft_attend_args &a, const draft_range &w, quad (&x)[N / 16])
{
    int per_group = a.heads / a.kv_heads;
    UNROLL for (int i = 0; i < N / 16; i++) {
        int query = w.first + (int)threadIdx.x / 16 + 16 * i;
        x[i] = quad{{0, 0, 0, 0}};
        if (query >= a.stride * per_group) continue;
        int64_t row = (int64_t)w.sequence * a.stride + query / per_group;
        x[i] = load_once(a.q + (row * a.heads + w.group * per_group + query % per_group) * DIM + threadIdx.x % 16 * 8);
    }
}
/* Into the place of the weights as they are, and as fp16 in the order of key_operands. */
template <int N, typename memory>
DEVICE void put_queries(const draft_attend_args &a, const draft_range &w, int queries, quad (&x)[N / 16], memory &m)
{
    int unit = (int)threadIdx.x % 16, half = unit / 8, v = unit % 8;
    float power = exponent_of(a.scale);
    UNROLL for (int i = 0; i < N / 16; i++) {
        int line = (int)threadIdx.x / 16 + 16 * i;
        if (w.first + line >= queries) x[i] = quad{{0, 0, 0, 0}};
        *(quad *)(m.weights[0][half] + tile_unit(line, v)) = x[i];
        UNROLL for (int j = 0; j < 4; j++)
            *(uint32_t *)(m.queries[half] + tile_unit(line, v % 2 * 4 + j) + v / 2 * 4) =
                bounded_halves(low_float(x[i].w[j]) * power, high_float(x[i].w[j]) * power);
    }
}

DEVICE void load_own(const draft_attend_args &a, const draft_range &w, uint32_t (&keys)[32])
{
    int lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    UNROLL for (int r = 0; r < 2; r++) {
        const uint16_t *from = a.own_k + ((int64_t)(w.sequence * a.stride + g + 8 * r) * a.kv_heads + w.group) * DIM + 2 * t;
        bool there = g + 8 * r < a.stride;
        UNROLL for (int i = 0; i < 16; i++) keys[i / 2 * 4 + i % 2 * 2 + r] = there ? *(const uint32_t *)(from + 8 * i) : 0;
    }
}
/* Weights of the own keys, and with them what weights are relative to. Warp i has eight queries of eight warps. */
template <int N, typename memory>
DEVICE void weigh_own(const draft_attend_args &a, int rows, const uint32_t (&keys)[32], memory &m)
{
    int warp = (int)threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    for (int c = warp; c < N / 8; c += WARPS) {
        float s[4] = {0, 0, 0, 0};
        UNROLL for (int i = 0; i < 4; i++) {
            uint32_t q[4];
            load_matrices(q, m.weights[0][i / 2] + tile_unit(8 * c + lane % 8, i % 2 * 4 + lane / 8));
            mma_bf16(s, keys + 8 * i, q);
            mma_bf16(s, keys + 8 * i + 4, q + 2);
        }
        UNROLL for (int e = 0; e < 2; e++) {
            float x[2], p[2];
            UNROLL for (int r = 0; r < 2; r++) x[r] = g + 8 * r < rows ? s[2 * r + e] * a.scale : -INFINITY;
            float top = fmaxf(x[0], x[1]);
            UNROLL for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, lane_xor(top, mask));
            UNROLL for (int r = 0; r < 2; r++) p[r] = power_of_two(x[r] - top);
            float sum = p[0] + p[1];
            UNROLL for (int mask = 4; mask < 32; mask *= 2) sum += lane_xor(sum, mask);
            int query = 8 * c + 2 * t + e;
            uint32_t pair = round_pair(p[0], p[1]);
            m.own[query * OWN + g] = (uint16_t)pair, m.own[query * OWN + g + 8] = (uint16_t)(pair >> 16);
            if (g == 0) m.own_top[query] = top, m.own_sum[query] = sum, m.base[query] = top + HEADROOM;
        }
    }
}

/* What the own rows give columns 8c .. of the output. values: operands of take_own. */
template <typename memory> DEVICE void attend_own(const uint32_t values[4], const memory &m, int c, float out[4])
{
    int lane = threadIdx.x % CUDA_WARP;
    const uint16_t *from = m.own + (8 * c + lane / 4) * OWN + lane % 4 * 2;
    uint32_t weights[2] = {*(const uint32_t *)from, *(const uint32_t *)(from + 8)};
    UNROLL for (int i = 0; i < 4; i++) out[i] = 0;
    mma_bf16(out, values, weights);
}
DEVICE void take_own(const draft_attend_args &a, const draft_range &w, int rows, uint32_t operands[4])
{
    int lane = threadIdx.x % CUDA_WARP, dim = (int)threadIdx.x / CUDA_WARP * 16 + lane / 4 * 2;
    uint32_t x[4];
    UNROLL for (int i = 0; i < 4; i++) {
        int key = lane % 4 * 2 + i % 2 + i / 2 * 8;
        const uint16_t *from = a.own_v + ((int64_t)(w.sequence * a.stride + key) * a.kv_heads + w.group) * DIM + dim;
        x[i] = key < rows ? *(const uint32_t *)from : 0;
    }
    UNROLL for (int i = 0; i < 4; i++) operands[i] = permute_bytes(x[i / 2 * 2], x[i / 2 * 2 + 1], i % 2 ? 0x7632 : 0x5410);
}

/* ---- Weights -------------------------------------------------------------------------------------------------------- */

/* Where a lane's matrix of weights of columns 8c .. 8c + 15 goes. */
template <int N> DEVICE unsigned char *weights_at(unsigned char (*weights)[N * LINE_BYTES], int c)
{
    int lane = threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP % 4, group = (int)threadIdx.x / WARPGROUP;
    return weights[group] + tile_unit(8 * c + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
}

/* Keys that a row does not see: of row k those before the one that lies window - 1 - k before the first own one, of all rows
 * those that the context does not have. */
template <int N> DEVICE void hide(const draft_attend_args &a, const draft_sequence *sequence, int b, float (&s)[N / 2])
{
    const draft_sequence *again = (const draft_sequence *)known_here((const uint8_t *)sequence);
    int lane = threadIdx.x % CUDA_WARP, token = (int)threadIdx.x / CUDA_WARP * 16 + lane / 4, per_group = a.heads / a.kv_heads;
    int query = (int)blockIdx.y % a.tiles * N + lane % 4 * 2, k = query / per_group, left = (k + 1) * per_group - query;
    int begin = (again->first_block + b) * CUDA_BLOCK_TOKENS, end = again->position - begin - token;
    int low = again->position + k - a.window + 1 - begin - token;
    UNROLL for (int i = 0; i < N / 4; i++) { /* left: queries up to the next row's first */
        if (i > 0) left -= i % 2 ? 1 : 7;
        while (left <= 0) left += per_group, low++;
        UNROLL for (int r = 0; r < 2; r++)
            if (8 * r < low || 8 * r >= end) s[i / 2 * 4 + i % 2 + 2 * r] = -INFINITY;
    }
}

/* What weights of this lane's columns are relative to: before it is needed. */
template <int N> DEVICE void load_base(const float *base, float (&to)[N / 4])
{
    UNROLL for (int i = 0; i < N / 8; i++) read_here(base + 8 * i + threadIdx.x % 4 * 2, to[2 * i], to[2 * i + 1]);
}

/* Of 64 scores of each query, to the other warpgroup too. */
template <int N>
DEVICE void weigh(const float (&s)[N / 2], float factor, const float (&base)[N / 4], unsigned char (*weights)[N * LINE_BYTES],
                  uint32_t (&sum)[N / 8])
{
    UNROLL for (int c = 0; c < N / 8; c += 2) {
        uint32_t pair[4];
        UNROLL for (int i = 0; i < 2; i++) {
            float p[4];
            UNROLL for (int e = 0; e < 4; e++) p[e] = power_of_two(fused(s[4 * (c + i) + e], factor, -base[2 * (c + i) + e % 2]));
            UNROLL for (int r = 0; r < 2; r++) pair[2 * i + r] = round_halves(p[2 * r], p[2 * r + 1]);
            sum[c + i] = add_halves(sum[c + i], add_halves(pair[2 * i], pair[2 * i + 1]));
        }
        store_transposed(weights_at<N>(weights, c), pair);
    }
}

/* Sums of COUNT columns of eight lanes: a lane keeps half of them at each of three steps, and in the end has column `first` of
 * these and those STEP further on. */
template <int COUNT, int MASK> DEVICE void gather_sums(uint32_t (&sum)[COUNT], int first, int columns, float *to)
{
    enum { HALF = (COUNT + 1) / 2 };
    bool upper = threadIdx.x & MASK;
    uint32_t kept[HALF];
    UNROLL for (int i = 0; i < HALF; i++) {
        uint32_t high = i + HALF < COUNT ? sum[i + HALF < COUNT ? i + HALF : 0] : 0, low = sum[i];
        kept[i] = add_halves(upper ? high : low, lane_xor(upper ? low : high, MASK));
    }
    first += upper ? HALF : 0;
    columns = upper ? columns - HALF : columns < HALF ? columns : HALF;
    if constexpr (MASK < 16) {
        gather_sums<HALF, 2 * MASK>(kept, first, columns, to);
    } else {
        UNROLL for (int i = 0; i < HALF; i++)
            if (i < columns) {
                to[8 * (first + i)] = half_float(kept[i]);
                to[8 * (first + i) + 1] = half_float(kept[i] >> 16);
            }
    }
}

/* A run's sums, at most a dozen weights of a thread and as fp16 as these, those of all of a warp. */
template <int N, typename memory> DEVICE void leave_sums(uint32_t (&sum)[N / 8], memory &m, int turn)
{
    gather_sums<N / 8, 4>(sum, 0, N / 8, m.warp_sum[turn][threadIdx.x / CUDA_WARP] + 2 * (threadIdx.x % 4));
    UNROLL for (int i = 0; i < N / 8; i++) sum[i] = 0;
}

/* ---- Products ------------------------------------------------------------------------------------------------------- */

template <int N>
DEVICE void multiply_keys(float (&s)[N / 2], const uint32_t (&keys)[32], const unsigned char (*queries)[N * LINE_BYTES])
{
    wgmma_fence();
    UNROLL for (int k = 0; k < DIM / 16; k++)
        wgmma<N, true>(s, keys + 4 * k, matrix_of(queries[k / 4], 0, ATOM_BYTES) + k % 4 * MATRIX_NEXT, k > 0);
    wgmma_commit();
}
template <int N>
DEVICE void multiply_values(float (&out)[N / 2], const uint32_t (&values)[32], const unsigned char (*weights)[N * LINE_BYTES],
                            bool add)
{
    wgmma_fence();
    UNROLL for (int k = 0; k < CUDA_BLOCK_TOKENS / 16; k++)
        wgmma<N, true>(out, values + 4 * k, matrix_of(weights[k / 4], 0, ATOM_BYTES) + k % 4 * MATRIX_NEXT, add || k > 0);
    wgmma_commit();
}

/* ---- Runs ----------------------------------------------------------------------------------------------------------- */

DEVICE void meet() { threads_meet<1, MULTIPLYING>(); }

/* A run's output: the last one of a cluster's takes the place of the codes. */
template <int CLUSTER, typename memory> DEVICE quad *place_of_part(memory &m, int run)
{
    enum { HELD = sizeof m.out / sizeof m.out[0] };
    return CLUSTER > 1 && run >= HELD ? (quad *)m.codes[0] : m.out[CLUSTER > 1 ? run : 0][0];
}

/* A run has ended: its sums and its output to those of the runs before, or to a place of its own. run: of this thread block.
 * of the sequence: bit. ALIKE: all runs are relative to the same. */
template <int N, int CLUSTER, bool ALIKE, typename memory>
DEVICE void end_run(memory &m, int run, int bit, int turn, bool first, const float (&out)[N / 2])
{
    int thread = (int)threadIdx.x, t = thread % 4;
    bool apart = CLUSTER > 1 || first;
    if (thread < N) {
        float sum = 0, base = ALIKE ? m.base[thread] : m.run_base[thread];
        UNROLL for (int i = 0; i < WARPS; i++) sum += m.warp_sum[turn][i][thread];
        if (ALIKE && !(sum < INFINITY)) m.beyond[thread] |= 1u << bit, m.any_beyond = 1; /* a weight is more than fp16 holds */
        if (apart) {
            m.top[run][thread] = base, m.sum[run][thread] = sum;
        } else if (ALIKE) {
            m.sum[0][thread] += sum;
        } else {
            float top = m.top[0][thread], before, now;
            fold_step(top, base, before, now);
            m.top[0][thread] = top, m.before[thread] = before, m.now[thread] = now;
            m.sum[0][thread] = fold_value(m.sum[0][thread], before, sum, now);
        }
    }
    quad *to = place_of_part<CLUSTER>(m, run) + thread;
    if (!ALIKE) meet();
    enum { AHEAD = 2 };
    UNROLL for (int first_c = 0; first_c < N / 8; first_c += AHEAD) {
        quad x[AHEAD];
        UNROLL for (int c = 0; c < AHEAD && first_c + c < N / 8; c++)
            if (!apart) x[c] = to[(first_c + c) * MULTIPLYING];
        UNROLL for (int c = 0; c < AHEAD && first_c + c < N / 8; c++) {
            UNROLL for (int e = 0; e < 4; e++) {
                float y = out[4 * (first_c + c) + e], before = bits_float(x[c].w[e]);
                int query = 8 * (first_c + c) + 2 * t + e % 2;
                if (!apart) y = ALIKE ? before + y : fold_value(before, m.before[query], y, m.now[query]);
                x[c].w[e] = float_bits(y);
            }
            to[(first_c + c) * MULTIPLYING] = x[c];
        }
    }
}

/* All of a thread block's runs again, where weights are more than fp16 holds: for queries of which that is so in a run relative
 * to its largest score, for the others and in other runs as before, bit for bit. Codes come from the cache. Slow, and rarely
 * called for. */
template <int N, int CLUSTER, typename memory>
DEVICE void attend_again(const draft_attend_args &a, const draft_sequence *sequence, memory &m)
{
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, warp = thread / CUDA_WARP, t = lane % 4, whole[2];
    int token = warp * 16 + lane / 4;
    float factor = mantissa_of(a.scale), s[N / 2], out[N / 2];
    uint32_t operands[32], sum[N / 8];
    bool begun = false;
    const draft_sequence of = *(const draft_sequence *)known_here((const uint8_t *)sequence);
    const draft_range w = find_range<N, CLUSTER>(a, of);
    const int32_t *table = a.table + (int64_t)w.sequence * a.blocks;
    whole_blocks(a, of, whole);
    for (int run = w.run; run < w.run_end; run++) {
        int begin = fp8_run_begin(of.blocks - 1, run), end = fp8_run_begin(of.blocks - 1, run + 1);
        if (begin == end) continue;
        meet(); /* all have ended the run before */
        for (int i = lane; i < N; i += CUDA_WARP) m.warp_sum[1][warp][i] = -INFINITY;
        UNROLL for (int i = 0; i < N / 8; i++) sum[i] = 0;
        WARP_SYNC();
        for (int pass = 0; pass < 2; pass++) {
            for (int b = begin; b < end; b++) {
                const uint8_t *from = a.cache.base + a.at + table[b] * a.cache.row_bytes + w.group * a.cache.draft_head_bytes;
                key_span span = span_of(a, of, b, 0);
                UNROLL for (int half = 0; half < 2; half++) {
                    quad x[2];
                    UNROLL for (int r = 0; r < 2; r++) {
                        x[r] = quad{{0, 0, 0, 0}};
                        if (token + 8 * r >= span.first && token + 8 * r < span.end)
                            x[r] = load_once(from + (token + 8 * r) * DIM + (4 * half + t) * 16);
                    }
                    key_operands(x, operands, half);
                }
                multiply_keys<N>(s, operands, m.queries);
                wgmma_wait<0>(s);
                wgmma_hold(operands);
                if (b < whole[0] || b >= whole[1]) hide<N>(a, sequence, b, s);
                if (pass == 0) {
                    UNROLL for (int i = 0; i < N / 4; i++) {
                        float top = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + i % 2 + 2]) * factor;
                        UNROLL for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, lane_xor(top, mask));
                        float *most = &m.warp_sum[1][warp][i / 2 * 8 + 2 * t + i % 2];
                        if (lane / 4 == 0) *most = fmaxf(*most, top);
                    }
                    continue;
                }
                meet(); /* the weights before have been taken */
                float base[N / 4];
                load_base<N>(m.run_base, base);
                weigh<N>(s, factor, base, m.weights[0], sum);
                others_read();
                from += a.cache.draft_v_data + warp * 16 + lane / 4 * 2;
                UNROLL for (int i = 0; i < 16; i++) {
                    uint32_t codes = 0;
                    UNROLL for (int j = 0; j < 2; j++) {
                        int key = 8 * i + 2 * t + j;
                        if (key >= span.first && key < span.end)
                            codes |= (uint32_t) * (const uint16_t *)(from + key * DIM) << 16 * j;
                    }
                    value_operands(codes, operands + 2 * i);
                }
                meet();
                multiply_values<N>(out, operands, m.weights[0], b > begin);
                wgmma_wait<0>(out);
                wgmma_hold(operands);
            }
            if (pass == 1) break;
            meet();
            if (thread < N) {
                float top = m.warp_sum[1][0][thread];
                for (int i = 1; i < WARPS; i++) top = fmaxf(top, m.warp_sum[1][i][thread]);
                m.run_base[thread] = m.beyond[thread] >> run & 1 ? top : m.base[thread];
            }
            meet();
        }
        leave_sums<N>(sum, m, 0);
        meet();
        end_run<N, CLUSTER, false>(m, CLUSTER > 1 ? run - w.run : 0, run, 0, !begun, out);
        begun = true;
    }
}

/* For each query whose column this thread block finishes: the factors of what the runs have given and of the own keys, and where
 * the attention goes. */
template <int N, int CLUSTER, typename memory>
DEVICE void weigh_parts(const draft_attend_args &a, const draft_range &w, int queries, memory &m)
{
    enum { RUNS = CLUSTER > 1 ? DRAFT_FP8_RUNS / CLUSTER : 1 };
    int thread = (int)threadIdx.x, per_group = a.heads / a.kv_heads, query = w.first + thread;
    if (thread >= N) return;
    float top = -INFINITY, sum = 0, before, now, tops[CLUSTER * RUNS], sums[CLUSTER * RUNS];
    UNROLL for (int run = 0; run < CLUSTER * RUNS; run++) {
        const float *from_top = &m.top[run % RUNS][thread], *from_sum = &m.sum[run % RUNS][thread];
        if constexpr (CLUSTER > 1)
            from_top = neighbour_shared(from_top, run / RUNS), from_sum = neighbour_shared(from_sum, run / RUNS);
        tops[run] = *from_top, sums[run] = *from_sum;
    }
    UNROLL for (int run = 0; run < CLUSTER * RUNS; run++) {
        if (tops[run] == -INFINITY) continue; /* it has no keys */
        fold_step(top, tops[run], before, now);
        sum = fold_value(sum, before, sums[run], now);
    }
    fold_step(top, m.own_top[thread], before, now);
    float part = 1 / fold_value(sum, before, m.own_sum[thread], now);
    m.before[thread] = before * part, m.now[thread] = now * part;
    int64_t row = (int64_t)w.sequence * a.stride + query / per_group, head = w.group * per_group + query % per_group;
    m.place[thread] = query < queries ? (int32_t)(row * a.heads + head) : -1;
}

/* Columns 8c .. of the attention. runs: a bit for each that has keys. ALIKE: all are relative to the same. */
template <int N, int CLUSTER, bool ALIKE, typename memory>
DEVICE void finish(const draft_attend_args &a, uint32_t runs, const uint32_t own_values[4], memory &m, int c)
{
    enum { RUNS = CLUSTER > 1 ? DRAFT_FP8_RUNS / CLUSTER : 1, PARTS = CLUSTER * RUNS };
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, column = 8 * c + lane % 4 * 2;
    float own[4], out[4] = {0, 0, 0, 0}, top[2] = {-INFINITY, -INFINITY};
    quad x[PARTS];
    UNROLL for (int run = 0; run < PARTS; run++) {
        const quad *from = place_of_part<CLUSTER>(m, run % RUNS) + c * MULTIPLYING + thread;
        if constexpr (CLUSTER > 1) from = neighbour_shared(from, run / RUNS);
        x[run] = quad{{0, 0, 0, 0}};
        if (CLUSTER > 1 ? runs >> run & 1 : runs != 0) x[run] = *from;
    }
    attend_own(own_values, m, c, own);
    UNROLL for (int run = 0; run < PARTS; run++) {
        if (CLUSTER == 1) {
            UNROLL for (int e = 0; e < 4; e++) out[e] = bits_float(x[run].w[e]);
        } else if (ALIKE) {
            UNROLL for (int e = 0; e < 4; e++) out[e] += bits_float(x[run].w[e]);
        } else if (runs >> run & 1) {
            UNROLL for (int e = 0; e < 2; e++) {
                float before, now;
                fold_step(top[e], *neighbour_shared(&m.top[run % RUNS][column + e], run / RUNS), before, now);
                UNROLL for (int r = 0; r < 2; r++)
                    out[2 * r + e] = fold_value(out[2 * r + e], before, bits_float(x[run].w[2 * r + e]), now);
            }
        }
    }
    UNROLL for (int e = 0; e < 2; e++) {
        float before = m.before[column + e], now = m.now[column + e], y[2];
        UNROLL for (int r = 0; r < 2; r++) y[r] = fold_value(out[2 * r + e], before, own[2 * r + e], now);
        int32_t place = m.place[column + e];
        if (place >= 0)
            *(uint32_t *)(a.attention + (int64_t)place * DIM + thread / CUDA_WARP * 16 + lane / 4 * 2) = round_pair(y[0], y[1]);
    }
}

/* Where the next codes are. */
struct draft_ring {
    int stage, turn;
};
/* Without a branch: where nothing comes, what it takes is not used. */
template <typename memory> DEVICE void next_keys(memory &m, draft_ring &ring, quad (&codes)[2][2], bool comes)
{
    int stage = comes ? ring.stage : (ring.stage + STAGES - 1) % STAGES, turn = comes || ring.stage ? ring.turn : ring.turn ^ 1;
    arrivals_wait(m.full + stage, turn);
    load_keys(m.codes[stage], codes);
    WARP_SYNC();
    arrivals_come_if(m.empty + stage, comes && threadIdx.x % CUDA_WARP == 0);
    bool around = comes && stage == STAGES - 1;
    ring.stage = around ? 0 : stage + 1, ring.turn = around ? ring.turn ^ 1 : ring.turn;
    if (!comes) ring.stage = (stage + 1) % STAGES;
}
template <typename memory> DEVICE void next_values(memory &m, draft_ring &ring, uint32_t (&values)[32])
{
    arrivals_wait(m.full + ring.stage, ring.turn);
    take_values(m.codes[ring.stage], values);
    WARP_SYNC();
    arrivals_come_if(m.empty + ring.stage, threadIdx.x % CUDA_WARP == 0);
    bool around = ring.stage == STAGES - 1;
    ring.stage = around ? 0 : ring.stage + 1, ring.turn = around ? ring.turn ^ 1 : ring.turn;
}

/* ---- Two warpgroups ------------------------------------------------------------------------------------------------- */

template <int N, int CLUSTER, typename memory>
DEVICE void multiply(const draft_attend_args &a, const draft_sequence *sequence, memory &m)
{
    bool leads = threadIdx.x % CUDA_WARP == 0, begun = false;
    float factor = mantissa_of(a.scale);
    for (int i = (int)threadIdx.x; i < N; i += MULTIPLYING) m.beyond[i] = 0;
    if (threadIdx.x == 0) m.any_beyond = 0;
    for (int i = (int)threadIdx.x; i < N; i += MULTIPLYING)
        for (int r = 0; r < (int)(sizeof m.top / sizeof m.top[0]); r++) m.top[r][i] = -INFINITY, m.sum[r][i] = 0;
    {
        const draft_range first = {(int)blockIdx.z, (int)blockIdx.y / a.tiles, (int)blockIdx.y % a.tiles * N, 0, 0, 0, 0};
        quad x[N / 16];
        uint32_t keys[32];
        load_queries<N>(a, first, x);
        load_own(a, first, keys);
        int rows = sequence->rows;
        put_queries<N>(a, first, rows * (a.heads / a.kv_heads), x, m);
        others_read();
        meet();
        weigh_own<N>(a, rows, keys, m);
        meet();
    }
    const draft_sequence of = *sequence;
    const draft_range w = find_range<N, CLUSTER>(a, of);
    int queries, blocks = of.blocks - 1, whole[2];
    whole_blocks(a, of, whole);
    if (w.begin < w.end) {
        float s[N / 2], out[N / 2];
        uint32_t keys[32], values[32], sum[N / 8];
        quad codes[2][2];
        draft_ring ring = {0, 0};
        int run = w.run, last = w.end - 1, side = 0; /* of the sums */
        bool first = true; /* of its run is the block whose output is next */
        while (fp8_run_begin(blocks, run + 1) <= w.begin) run++;
        int run_end = fp8_run_begin(blocks, run + 1);
        UNROLL for (int i = 0; i < N / 8; i++) sum[i] = 0;
        wgmma_clear(out);
        next_keys(m, ring, codes, true);
        key_operands(codes[0], keys, 0), key_operands(codes[1], keys, 1);
        multiply_keys<N>(s, keys, m.queries);
        wgmma_wait<0>(s);
        wgmma_hold(keys);
        if (w.begin < whole[0] || w.begin >= whole[1]) hide<N>(a, sequence, w.begin, s);
        next_keys(m, ring, codes, w.begin < last);
        float base[N / 4];
        load_base<N>(m.base, base);
        weigh<N>(s, factor, base, m.weights[0], sum);
        if (w.begin + 1 == run_end) leave_sums<N>(sum, m, side);
        others_read();
        WARP_SYNC();
        arrivals_come_if(m.weighed, leads);
        key_operands(codes[0], keys, 0), key_operands(codes[1], keys, 1);
        multiply_keys<N>(s, keys, m.queries); /* for nothing where there is no other block */
        next_values(m, ring, values);
        wgmma_wait<0>(s);
        wgmma_hold(keys);
        for (int b = w.begin + 1, n = 1; b <= last; b++, n++) { /* weights of block b, output before, scores behind it */
            int now = n % 2, before = now ^ 1;
            bool ended = b == run_end; /* with the block before */
            if (ended) {
                while (fp8_run_begin(blocks, run + 1) <= b) run++;
                run_end = fp8_run_begin(blocks, run + 1), side = (side + 1) % 3;
            }
            if (b < whole[0] || b >= whole[1]) hide<N>(a, sequence, b, s);
            load_base<N>(m.base, base);
            next_keys(m, ring, codes, b < last);
            arrivals_wait(m.taken + now, n / 2 % 2 ^ 1);
            weigh<N>(s, factor, base, m.weights[now], sum);
            if (b + 1 == run_end) leave_sums<N>(sum, m, side);
            others_read();
            WARP_SYNC();
            arrivals_come_if(m.weighed + now, leads);
            key_operands(codes[0], keys, 0), key_operands(codes[1], keys, 1);
            arrivals_wait(m.weighed + before, (n - 1) / 2 % 2);
            multiply_values<N>(out, values, m.weights[before], !first);
            first = ended;
            multiply_keys<N>(s, keys, m.queries); /* of the last block for nothing */
            wgmma_wait<1>(out);
            wgmma_hold(values);
            WARP_SYNC();
            arrivals_come_if(m.taken + before, leads);
            next_values(m, ring, values);
            wgmma_wait<0>(s);
            wgmma_hold(keys);
            if (ended) {
                int old = run - 1;
                while (fp8_run_begin(blocks, old) == b) old--;
                end_run<N, CLUSTER, true>(m, CLUSTER > 1 ? old - w.run : 0, old, (side + 2) % 3, !begun, out);
                begun = true;
            }
        }
        int n = last - w.begin;
        arrivals_wait(m.weighed + n % 2, n / 2 % 2);
        multiply_values<N>(out, values, m.weights[n % 2], !first);
        wgmma_wait<0>(out);
        wgmma_hold(values);
        meet(); /* nobody needs the codes any more */
        end_run<N, CLUSTER, true>(m, CLUSTER > 1 ? run - w.run : 0, run, side, !begun, out);
        meet();
        if (m.any_beyond) attend_again<N, CLUSTER>(a, sequence, m);
    }
    const draft_sequence &same = *(const draft_sequence *)known_here((const uint8_t *)sequence);
    const draft_range v = find_range<N, CLUSTER>(a, same);
    uint32_t own_values[4];
    take_own(a, v, same.rows, own_values);
    queries = same.rows * (a.heads / a.kv_heads);
    uint32_t runs = 0;
    for (int run = 0; run < DRAFT_FP8_RUNS; run++)
        if (fp8_run_begin(same.blocks - 1, run) < fp8_run_begin(same.blocks - 1, run + 1)) runs |= 1u << run;
    if constexpr (CLUSTER > 1) {
        neighbours_meet();
        uint32_t any = 0;
        UNROLL for (int i = 0; i < CLUSTER; i++) any |= *neighbour_shared(&m.any_beyond, i);
        weigh_parts<N, CLUSTER>(a, v, queries, m);
        meet();
        for (int c = neighbour_rank(); c < N / 8; c += CLUSTER)
            if (any)
                finish<N, CLUSTER, false>(a, runs, own_values, m, c);
            else
                finish<N, CLUSTER, true>(a, runs, own_values, m, c);
        neighbours_meet();
    } else {
        meet();
        weigh_parts<N, CLUSTER>(a, v, queries, m);
        meet();
        UNROLL for (int c = 0; c < N / 8; c++) finish<N, CLUSTER, true>(a, runs, own_values, m, c);
    }
}

template <int N, int CLUSTER, int SHARED_BYTES> DEVICE void attend(const draft_attend_args &a)
{
    enum { RUNS = CLUSTER == 1 ? 1 : DRAFT_FP8_RUNS / CLUSTER };
    typedef draft_memory<N, RUNS, (RUNS > 1 ? RUNS - 1 : 1)> memory;
    static_assert(sizeof(memory) <= SHARED_BYTES, "the host gives that much");
    static_assert(sizeof(quad) * N / 8 * MULTIPLYING <= STAGES * STAGE_BYTES, "an output in the place of the codes");
    memory &m = *TILES(memory);
    const draft_sequence *sequence = a.sequence + blockIdx.z;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) arrivals_init(m.full + i, WARPGROUP), arrivals_init(m.empty + i, WARPS);
        for (int i = 0; i < 2; i++) arrivals_init(m.weighed + i, WARPS), arrivals_init(m.taken + i, WARPS);
        arrivals_ready();
    }
    BLOCK_SYNC();
    if (threadIdx.x < MULTIPLYING) {
        registers_take<240>();
        multiply<N, CLUSTER>(a, sequence, m);
    } else {
        registers_give<24>();
        bring<N, CLUSTER>(a, sequence, m);
        if constexpr (CLUSTER > 1) neighbours_meet(), neighbours_meet();
    }
}

KERNEL_OF(draft_attend_fp8_whole, draft_attend_args, DRAFT_FP8_THREADS, 1) { attend<DRAFT_FP8_WIDE, 1, DRAFT_FP8_SHARED>(a); }
KERNEL_NEIGHBOURS(draft_attend_fp8_half, draft_attend_args, DRAFT_FP8_THREADS, 1, 2)
{
    attend<DRAFT_FP8_NARROW, 2, DRAFT_FP8_SHARED>(a);
}
KERNEL_NEIGHBOURS(draft_attend_fp8_eighth, draft_attend_args, DRAFT_FP8_THREADS, 1, 8)
{
    attend<DRAFT_FP8_NARROW, 8, DRAFT_FP8_SHARED>(a);
}
