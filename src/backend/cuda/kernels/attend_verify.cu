/*
 * Attention of attend_decode.cu for rows of one sequence that follow each other, drafts and chunks: up to four of them share
 * the blocks that one of them takes, and a block is read and decoded once. The same steps, so the same bits.
 *
 * Eight warps. Codes and scales of a block's keys and values lie in shared memory as in the cache, fetched ahead as in
 * attend_decode.cu. Warp w has tokens 16w .. 16w+15 of the scores, which make step w of the product with the values, and dims
 * 16w .. 16w+15 of those, one group of scales: lane (g, t) reads one byte of a token, dims 16w + 2g and the next one. What is
 * decoded is multiplied with the queries, then with the weights, of every row that takes the block. The sum of weights of row r
 * is in warp r alone.
 *
 * Rows take blocks in ascending number, each its own list. Thread blocks beside each other may have parts of the lists, cut at
 * blocks of the first row's; then every block is left as a partial.
 *
 * Bytes of a block: 18,432, for up to four rows. Instructions of a block that all four take, as compiled for sm_90a: about
 * 1,600 a warp, 12,900 in all (scores 4,400, weights 2,300, values 2,600, fold 2,500, the rest 1,000), where attend_decode has
 * 4 x 4,200; four schedulers need 3,200 cycles, so the bound is theirs, and two rows gain nothing but the bytes. Shared memory
 * 58 KB, at most 128 registers: two thread blocks a multiprocessor.
 */
#include "backend/cuda/kernels/attend.h"

#include "backend/cuda/kernels/attend_unit.cuh"
#include "backend/cuda/kernels/cache.cuh"

enum {
    DIM = 128,
    FORMAT = KERNEL_CACHE_NVFP4,
    ROWS = ATTEND_ROWS,
    WARPS = ATTEND_ROWS_WARPS,
    THREADS = WARPS * CUDA_WARP,
    VECTOR = DIM / 2,                        /* bytes of a key or value */
    CODES = CUDA_BLOCK_TOKENS * VECTOR / 16, /* of a block, in quads */
    SCALES = CUDA_BLOCK_TOKENS * DIM / 16 / 16,
    STEPS = 8, /* of a product: 16 dims, then 16 tokens */
    LIST = CUDA_WARP + 1,
};
static_assert(WARPS == STEPS && ROWS <= WARPS && THREADS >= SCALES, "a warp has a step of the values' product");

struct verify_memory {
    quad *keys, *values;      /* [CODES + SCALES] as in the cache */
    quad *queries, *weights;  /* [ROWS][STEPS][lane], operands */
    uint32_t *units;          /* [quads of tokens][8 groups][2]: units of the values' scales, for two tokens a word */
    float *maxima;            /* [ROWS][16 heads][WARPS] */
    float *sums;              /* [ROWS][STEPS][16 heads] */
    int32_t *lists;           /* [ROWS][LIST] blocks, INT32_MAX behind the last */
};

DEVICE verify_memory open_memory()
{
    verify_memory m;
    m.keys = DYNAMIC(quad);
    m.values = m.keys + CODES + SCALES;
    m.queries = m.values + CODES + SCALES;
    m.weights = m.queries + ROWS * STEPS * CUDA_WARP;
    m.units = (uint32_t *)(m.weights + ROWS * STEPS * CUDA_WARP);
    m.maxima = (float *)(m.units + CUDA_BLOCK_TOKENS * DIM / 32);
    m.sums = m.maxima + ROWS * ATTEND_HEADS * WARPS;
    m.lists = (int32_t *)(m.sums + ROWS * STEPS * ATTEND_HEADS);
    return m;
}

/* Codes and scales of a head's keys or values. */
DEVICE void fetch(quad *to, const uint8_t *codes, const uint8_t *scales)
{
    int thread = threadIdx.x;
    codes += 16 * thread;
    UNROLL for (int i = 0; i < CODES / THREADS; i++) copy_async(to + i * THREADS + thread, codes + 16 * i * THREADS, true);
    if (thread < SCALES) copy_async(to + CODES + thread, scales + 16 * thread, true);
}

/* A row's queries; zeros for heads that the unit does not have. */
DEVICE void load_queries(const attend_args &a, const attend_unit &u, int row, quad *queries)
{
    for (int i = threadIdx.x; i < STEPS * CUDA_WARP; i += THREADS) {
        int k = i / CUDA_WARP, lane = i % CUDA_WARP, g = lane / 4, first = lane % 4 * 32 + k / 2 * 8 + k % 2 * 2;
        quad out;
        UNROLL for (int w = 0; w < 4; w++) {
            int h = g + w % 2 * 8;
            const float *from = a.q + ((int64_t)row * a.heads + u.head + h) * DIM + first + w / 2;
            out.w[w] = h < u.heads ? bf16_pair(from[0], from[4]) : 0;
        }
        queries[i] = out;
    }
}

/* ---- A block ----------------------------------------------------------------------------------------------------- */

/* Which rows take a block, and how much of it they see: row r `sees` + r tokens, where that is less than all. */
struct block_rows {
    uint32_t take; /* bit r */
    int sees;
};
DEVICE bool takes(const block_rows &b, int r) { return b.take >> r & 1; }

/* s[r][i]: row r, tokens 16w + 8i .. of the block. */
DEVICE void multiply_keys(const verify_memory &m, const block_rows &b, float s[ROWS][2][4])
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    const quad *keys = m.keys + (16 * warp + g) * (VECTOR / 16) + t;
    const uint16_t *scales = (const uint16_t *)(m.keys + CODES) + (16 * warp + g) * 4 + t;
    quad key[2];
    uint32_t two[2];
    bool plain = true;
    UNROLL for (int i = 0; i < 2; i++) {
        key[i] = keys[8 * i * (VECTOR / 16)];
        two[i] = scales[8 * i * 4];
        plain &= plain_scales(two[i]);
    }
    if (plain)
        UNROLL for (int i = 0; i < 2; i++) two[i] = plain_units(two[i]);
    else
        UNROLL for (int i = 0; i < 2; i++) two[i] = any_units(two[i]);
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int i = 0; i < 2; i++)
            UNROLL for (int c = 0; c < 4; c++) s[r][i][c] = 0;
    UNROLL for (int c = 0; c < 4; c++) {
        uint32_t pair[2][4];
        UNROLL for (int i = 0; i < 2; i++) decode_eight<FORMAT>(key[i].w + c, unit_of_two(two[i], c / 2), pair[i]);
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (!takes(b, r)) continue;
            const quad *query = m.queries + (r * STEPS + 2 * c) * CUDA_WARP + lane;
            quad even = query[0], odd = query[CUDA_WARP];
            UNROLL for (int i = 0; i < 2; i++) {
                mma_bf16(s[r][i], even.w, pair[i]);
                mma_bf16(s[r][i], odd.w, pair[i] + 2);
            }
        }
    }
}

/* Scores of row r in powers of two, -inf for tokens that it does not see; the warp's maxima are left. */
DEVICE void scale_scores(const attend_args &a, const verify_memory &m, int r, int sees, float s[2][4])
{
    int thread = unseen(threadIdx.x), warp = thread / CUDA_WARP, lane = thread % CUDA_WARP, g = lane / 4, t = lane % 4;
    float most[2] = {-INFINITY, -INFINITY};
    UNROLL for (int i = 0; i < 2; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            s[i][c] *= a.scale;
            if (sees < CUDA_BLOCK_TOKENS && 16 * warp + 8 * i + 2 * t + c % 2 >= sees) s[i][c] = -INFINITY;
            most[c / 2] = fmaxf(most[c / 2], s[i][c]);
        }
    UNROLL for (int h = 0; h < 2; h++) {
        most[h] = fmaxf(most[h], lane_xor(most[h], 1));
        most[h] = fmaxf(most[h], lane_xor(most[h], 2));
        if (t == 0) m.maxima[(r * ATTEND_HEADS + g + 8 * h) * WARPS + warp] = most[h];
    }
}

/* Behind a barrier: weights of row r and their sums by 16 tokens. maximum: the block's. */
DEVICE void weigh(const verify_memory &m, int r, const float s[2][4], float maximum[2])
{
    int thread = unseen(threadIdx.x), warp = thread / CUDA_WARP, lane = thread % CUDA_WARP, g = lane / 4, t = lane % 4;
    quad out;
    UNROLL for (int h = 0; h < 2; h++) {
        const quad *from = (const quad *)(m.maxima + (r * ATTEND_HEADS + g + 8 * h) * WARPS);
        quad x[2] = {from[0], from[1]};
        maximum[h] = bits_float(x[0].w[0]);
        UNROLL for (int i = 1; i < WARPS; i++) maximum[h] = fmaxf(maximum[h], bits_float(x[i / 4].w[i % 4]));
        float sum = 0;
        UNROLL for (int i = 0; i < 2; i++) {
            float p[2];
            UNROLL for (int c = 0; c < 2; c++) {
                p[c] = power_of_two(s[i][2 * h + c] - maximum[h]); /* of -inf 0 */
                sum += p[c];
            }
            out.w[2 * i + h] = round_pair(p[0], p[1]);
        }
        sum += lane_xor(sum, 1);
        sum += lane_xor(sum, 2);
        if (t == 0) m.sums[(r * STEPS + warp) * ATTEND_HEADS + g + 8 * h] = sum;
    }
    m.weights[(r * STEPS + warp) * CUDA_WARP + lane] = out;
}

/* Units of the scales that this thread has fetched, four groups of four tokens; 0 from token `tokens` of the block on. */
DEVICE void store_units(const verify_memory &m, int tokens)
{
    int thread = threadIdx.x, seen = tokens - thread / 2 * 4;
    if (thread >= SCALES) return;
    quad scales = m.values[CODES + thread], units[2];
    uint32_t mask = seen >= 4 ? ~0u : seen <= 0 ? 0 : (1u << 8 * seen) - 1;
    UNROLL for (int i = 0; i < 8; i++) {
        uint32_t both = (scales.w[i / 2] & mask) >> i % 2 * 16 & 0xFFFF;
        units[i / 4].w[i % 4] = plain_scales(both) ? plain_units(both) : any_units(both);
    }
    ((quad *)m.units)[2 * thread] = units[0];
    ((quad *)m.units)[2 * thread + 1] = units[1];
}

/* out[r][j]: row r, dims 16w + 2c + j, c a column. ALIKE: all rows see the same tokens; else a value that a row does not see must
 * not reach it even as a NaN. */
template <bool ALIKE> DEVICE void multiply_values(const verify_memory &m, const block_rows &b, float out[ROWS][2][4])
{
    int thread = unseen(threadIdx.x), warp = thread / CUDA_WARP, lane = thread % CUDA_WARP, g = lane / 4, t = lane % 4;
    int turn = t % 2; /* as in attend_decode.cu */
    uint32_t join = turn ? 0x1054 : 0x5410;
    const uint8_t *values = (const uint8_t *)m.values + 2 * t * VECTOR + 8 * warp + g;
    const uint32_t *units = m.units + t / 2 * 16 + 2 * warp + t % 2;
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int j = 0; j < 2; j++)
            UNROLL for (int c = 0; c < 4; c++) out[r][j][c] = 0;
    UNROLL for (int k = 0; k < STEPS; k++) {
        uint32_t pair[2][2]; /* [j][half] */
        UNROLL for (int half = 0; half < 2; half++) {
            const uint8_t *at = values + (16 * k + 8 * half) * VECTOR;
            uint32_t x = at[turn * VECTOR], y = at[(1 - turn) * VECTOR], unit = units[64 * k + 32 * half], codes[4];
            e2m1_pairs(permute_bytes(x, y, join), codes);
            UNROLL for (int j = 0; j < 2; j++) pair[j][half] = multiply_pairs(codes[j], unit);
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (!takes(b, r)) continue;
            quad weights = m.weights[(r * STEPS + k) * CUDA_WARP + lane];
            UNROLL for (int j = 0; j < 2; j++) {
                uint32_t operand[2] = {pair[j][0], pair[j][1]};
                if (!ALIKE)
                    UNROLL for (int half = 0; half < 2; half++) {
                        int first = 16 * k + 8 * half + 2 * t;
                        operand[half] &= (first < b.sees + r ? 0x0000FFFFu : 0) | (first + 1 < b.sees + r ? 0xFFFF0000u : 0);
                    }
                mma_bf16(out[r][j], weights.w, operand);
            }
        }
    }
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

struct verify_state {
    float maximum[ROWS][2], out[ROWS][2][4];
    float sum[2]; /* of row w in warp w */
};

/* A lane's four dims of head g + 8h of a row, from 16w + 4t on. */
DEVICE quad four_dims(const float out[2][4], int h)
{
    quad x;
    UNROLL for (int i = 0; i < 4; i++) x.w[i] = float_bits(out[i % 2][2 * h + i / 2]);
    return x;
}

DEVICE void store_partial(float *to, int r, const verify_state &block)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    UNROLL for (int h = 0; h < 2; h++) {
        if (warp == r && t == 0) to[g + 8 * h] = block.maximum[r][h], to[ATTEND_HEADS + g + 8 * h] = block.sum[h];
        *(quad *)(to + 2 * ATTEND_HEADS + (g + 8 * h) * DIM + 16 * warp + 4 * t) = four_dims(block.out[r], h);
    }
}

DEVICE void fold_row(verify_state &state, const verify_state &block, int r, bool first)
{
    int warp = threadIdx.x / CUDA_WARP;
    UNROLL for (int h = 0; h < 2; h++) {
        float joint = block.maximum[r][h], before = 0, now = 1;
        if (!first) fold(state.maximum[r][h], block.maximum[r][h], joint, before, now);
        state.maximum[r][h] = joint;
        if (warp == r) state.sum[h] = first ? block.sum[h] : state.sum[h] * before + block.sum[h] * now;
        UNROLL for (int j = 0; j < 2; j++)
            UNROLL for (int c = 2 * h; c < 2 * h + 2; c++)
                state.out[r][j][c] = first ? block.out[r][j][c] : state.out[r][j][c] * before + block.out[r][j][c] * now;
    }
}

/* Behind a barrier that follows the last use of m.sums: warps leave the sums of their rows there. */
DEVICE void store_rows(const attend_args &a, const verify_memory &m, int rows, const verify_state &state)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    if (warp < ROWS && t == 0)
        UNROLL for (int h = 0; h < 2; h++) m.sums[warp * ATTEND_HEADS + g + 8 * h] = state.sum[h];
    BLOCK_SYNC();
    UNROLL for (int r = 0; r < ROWS; r++) {
        if (r >= rows) continue;
        attend_unit u = unit_of(a, blockIdx.x + (int64_t)r * a.kv_heads * a.head_tiles);
        UNROLL for (int h = 0; h < 2; h++) {
            if (g + 8 * h >= u.heads) continue;
            int64_t at = ((int64_t)u.row * a.heads + u.head + g + 8 * h) * DIM + 16 * warp + 4 * t;
            quad x = four_dims(state.out[r], h);
            uint32_t half[4];
            UNROLL for (int i = 0; i < 4; i++) {
                float y = bits_float(x.w[i]) / m.sums[r * ATTEND_HEADS + g + 8 * h] * (cached_undo<FORMAT>() * a.value_scale);
                half[i] = u.sequence < 0 ? 0 : bf16_of_float(y);
                x.w[i] = half[i] << 16;
            }
            *(quad *)(a.attention + at) = x;
            ((uint32_t *)(a.attention_bf16 + at))[0] = half[0] | half[1] << 16;
            ((uint32_t *)(a.attention_bf16 + at))[1] = half[2] | half[3] << 16;
        }
    }
}

/* The next block of row r's list; `next`: how many have been taken, in byte r. */
DEVICE int front_of(const verify_memory &m, uint32_t next, int r)
{
    return m.lists[r * LIST + (next >> 8 * r & 0xFF)];
}
DEVICE int least_of(const verify_memory &m, uint32_t next)
{
    int b = INT32_MAX;
    UNROLL for (int r = 0; r < ROWS; r++) b = min(b, front_of(m, next, r));
    return b;
}

KERNEL_OF(attend_verify, attend_args, THREADS, 2)
{
    verify_memory m = open_memory();
    attend_unit u = unit_of(a, blockIdx.x);
    int place = u.position, rows = 0, units = a.kv_heads * a.head_tiles; /* of a row */
    bool behind = u.sequence >= 0 && u.row > 0 && a.rows.sequence[u.row - 1] == u.sequence;
    if (a.short_runs)
        for (place = 0; behind && place < u.row && a.rows.sequence[u.row - 1 - place] == u.sequence;) place++;
    if (behind && place % ROWS) return; /* the tile of a row before */
    UNROLL for (int r = 0; r < ROWS; r++) {
        attend_unit other = u;
        const int32_t *list = nullptr;
        other.row += r;
        bool there = u.sequence >= 0 && place % ROWS + r < ROWS && other.row < a.rows.count &&
                     a.rows.sequence[other.row] == u.sequence;
        int length = there ? list_length(a, other, &list) : 0, thread = threadIdx.x;
        if (there) load_queries(a, u, other.row, m.queries + r * STEPS * CUDA_WARP);
        if (thread < LIST) m.lists[r * LIST + thread] = thread < length ? list[thread] : INT32_MAX;
        rows += there;
    }
    BLOCK_SYNC();
    uint32_t next = 0;
    int end = INT32_MAX;
    if (gridDim.y > 1) {
        int lane = threadIdx.x % CUDA_WARP, from = min((int)blockIdx.y * a.run, (int)CUDA_WARP);
        int begin = from > 0 ? m.lists[from] : 0;
        end = m.lists[min(from + a.run, (int)CUDA_WARP)];
        UNROLL for (int r = 0; r < ROWS; r++)
            next |= (uint32_t)count_bits(lane_ballot(m.lists[r * LIST + lane] < begin)) << 8 * r;
    }
    const int32_t *table = a.rows.block_table + (int64_t)(u.sequence < 0 ? 0 : u.sequence) * a.rows.block_table_stride;
    const uint8_t *base = a.cache.base + a.layer_offset + u.group * a.cache.head_bytes;
    int now = least_of(m, next);
    if (now < end) {
        const uint8_t *head = base + table[now] * a.cache.row_bytes;
        fetch(m.keys, head, head + a.cache.k_scales);
        copy_commit();
        fetch(m.values, head + a.cache.v_data, head + a.cache.v_scales);
        copy_commit();
    }
    verify_state state = {};
    while (now < end) {
        block_rows b = {0, u.position + 1 - now * CUDA_BLOCK_TOKENS};
        uint32_t before = next;
        int most = 0, least = CUDA_BLOCK_TOKENS; /* tokens that rows see */
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (front_of(m, before, r) != now) continue;
            b.take |= 1u << r, next += 1u << 8 * r;
            most = min(b.sees + r, (int)CUDA_BLOCK_TOKENS), least = min(least, b.sees + r);
        }
        int then = least_of(m, next);
        const uint8_t *head = then < end ? base + table[then] * a.cache.row_bytes : base;
        float s[ROWS][2][4];
        verify_state block;
        copy_wait<1>();
        BLOCK_SYNC(); /* keys are there */
        multiply_keys(m, b, s);
        UNROLL for (int r = 0; r < ROWS; r++)
            if (takes(b, r)) scale_scores(a, m, r, b.sees + r, s[r]);
        BLOCK_SYNC(); /* maxima are there; keys have been read */
        if (then < end) fetch(m.keys, head, head + a.cache.k_scales);
        copy_commit();
        UNROLL for (int r = 0; r < ROWS; r++)
            if (takes(b, r)) weigh(m, r, s[r], block.maximum[r]);
        copy_wait<1>();
        store_units(m, most);
        BLOCK_SYNC(); /* values, their units and weights are there */
        int warp = threadIdx.x / CUDA_WARP, g = threadIdx.x % CUDA_WARP / 4;
        block.sum[0] = block.sum[1] = 0;
        if (warp < ROWS)
            UNROLL for (int h = 0; h < 2; h++)
                UNROLL for (int k = 0; k < STEPS; k++) block.sum[h] += m.sums[(warp * STEPS + k) * ATTEND_HEADS + g + 8 * h];
        if (least >= most)
            multiply_values<true>(m, b, block.out);
        else
            multiply_values<false>(m, b, block.out);
        BLOCK_SYNC(); /* they have been read */
        if (then < end) fetch(m.values, head + a.cache.v_data, head + a.cache.v_scales);
        copy_commit();
        UNROLL for (int r = 0; r < ROWS; r++) {
            int index = (int)(before >> 8 * r & 0xFF); /* in the row's list */
            if (!takes(b, r)) continue;
            if (a.partials)
                store_partial(a.partials + ((blockIdx.x + (int64_t)r * units) * a.slots + index) * a.partial, r, block);
            else
                fold_row(state, block, r, index == 0);
        }
        now = then;
    }
    if (!a.partials) store_rows(a, m, u.sequence < 0 ? 1 : rows, state);
}
