/*
 * Attention of draft blocks on Hopper over keys and values of bf16, heads of 128 dims; draft.cu says what it is and has the other
 * form, draft_fp8.cu that of E4M3.
 *
 * A thread block has a KV head of a sequence and up to 128 queries, two warpgroups of 64 that multiply. Two more bring keys and
 * values into rings of two tiles each. Weights are rounded to bf16. Own rows are multiplied by m16n8k16, while the first tiles are
 * on their way. The two warpgroups take turns at the tensor cores: one has its softmax and fold while the other multiplies.
 *
 * One sequence is bound by how long a block takes from its first byte to its last: a thread block for each block of keys, whose
 * parts are folded by draft_fold. Between the two, runs.
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

/* ---- Keys and values --------------------------------------------------------------------------------------------- */

/* Tokens [first, end) of a block are values, the others zeros: where a row sees nothing anything may lie. */
template <bool VALUES> DEVICE key_span stored_span(const draft_attend_args &a, const draft_sequence &of, int b)
{
    if (!VALUES) return {0, CUDA_BLOCK_TOKENS};
    return span_of(a, of, b, 0);
}

/* By one warpgroup, past the registers. */
template <bool VALUES>
DEVICE void bring(const draft_attend_args &a, const draft_sequence &of, const draft_work &w, unsigned char *ring,
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

/* Weights, as A of wgmma and of m16n8k16; sum[r][c] grows by those of this lane. */
template <int TILES>
DEVICE void weigh(const float (&s)[4 * TILES], const float factor[2], const float base[2], uint32_t (&weights)[2 * TILES],
                  float sum[2][2])
{
    UNROLL for (int i = 0; i < TILES; i++)
        UNROLL for (int r = 0; r < 2; r++) {
            float p[2];
            UNROLL for (int c = 0; c < 2; c++) {
                p[c] = power_of_two(fused(s[4 * i + 2 * r + c], factor[r], -base[r]));
                sum[r][c] += p[c];
            }
            weights[2 * i + r] = round_pair(p[0], p[1]);
        }
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

DEVICE void multiply_keys(float (&s)[64], const unsigned char *queries, const unsigned char *keys)
{
    wgmma_fence();
    UNROLL for (int k = 0; k < DIM / 16; k++)
        wgmma_shared<CUDA_BLOCK_TOKENS>(s, matrix_of(queries + k / 4 * QUERY_HALF, 0, ATOM_BYTES) + k % 4 * MATRIX_NEXT,
                                              matrix_of(keys + k / 4 * TILE_HALF, 0, ATOM_BYTES) + k % 4 * MATRIX_NEXT, k > 0);
    wgmma_commit();
}
DEVICE void multiply_values(float (&out)[64], const uint32_t (&weights)[32], const unsigned char *values)
{
    wgmma_fence();
    UNROLL for (int k = 0; k < CUDA_BLOCK_TOKENS / 16; k++)
        wgmma<DIM, false, true>(out, weights + 4 * k, matrix_of(values + k * 16 * LINE_BYTES, TILE_HALF, ATOM_BYTES), k > 0);
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
    weigh<2>(s, factor, base, weights, sum);
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

/* The runs so far: maxima and sums here, outputs in shared memory, each thread's at steps of all of them. */
struct draft_total {
    float top[2], sum[2], *out;
};
DEVICE void fold_run(draft_total &to, const draft_part &run, bool begin)
{
    float before[2] = {0, 0}, now[2] = {1, 1};
    UNROLL for (int r = 0; r < 2; r++) {
        if (!begin) fold_step(to.top[r], run.top[r], before[r], now[r]);
        if (begin) to.top[r] = run.top[r];
        to.sum[r] = begin ? run.sum[r] : fold_value(to.sum[r], before[r], run.sum[r], now[r]);
    }
    UNROLL for (int i = 0; i < 64; i++) {
        float *x = to.out + i * MULTIPLYING;
        *x = begin ? run.out[i] : fold_value(*x, before[i / 2 % 2], run.out[i], now[i / 2 % 2]);
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
            const float *from = x.out + (4 * i + 2 * r) * MULTIPLYING;
            uint32_t pair = round_pair(from[0] / sum, from[MULTIPLYING] / sum);
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
DEVICE void multiply(const draft_attend_args &a, const draft_sequence &of, const draft_work &w, const unsigned char *tiles,
                     unsigned char *queries_tile, draft_control &control, unsigned char *more)
{
    int per_group = a.heads / a.kv_heads, queries = of.rows * per_group, group = (int)threadIdx.x / WARPGROUP;
    int thread = (int)threadIdx.x % WARPGROUP, line = thread / CUDA_WARP * 16 + thread % CUDA_WARP / 4;
    int query[2] = {w.first + group * LINES + line, w.first + group * LINES + line + 8};
    queries_tile += group * QUERY_BYTES;
    float factor[2] = {a.scale, a.scale};
    int tile = query[0] / 16; /* of 16 queries, this warp's */
    draft_total total = {{0, 0}, {0, 0}, (float *)more + threadIdx.x};
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
    others_read();
    if (group == 0)
        threads_meet<4, WARPGROUP>();
    else
        threads_meet<5, WARPGROUP>();
    int n = 0;
    for (int run = w.run, b = w.begin; run < w.run_end; run++) {
        int end = a.mode == DRAFT_BLOCKS ? w.end : run_begin(of.blocks - 1, run + 1);
        draft_part state;
        UNROLL for (int r = 0; r < 2; r++) state.top[r] = -INFINITY, state.sum[r] = 0;
        UNROLL for (int i = 0; i < 64; i++) state.out[i] = 0;
        for (; b < end; b++, n++) {
            int stage = n % RING, turn = n / RING % 2;
            const unsigned char *keys = tiles + stage * TILE_BYTES, *values = keys + RING * TILE_BYTES;
            key_span least = span_of(a, of, b, of.rows - 1);
            float s[64], out[64], top[2], base[2], sum[2][2] = {{0, 0}, {0, 0}}, before[2], now[2];
            uint32_t weights[32];
            arrivals_wait(control.full[0] + stage, turn);
            if (group || n) await_turn(group);
            multiply_keys(s, queries_tile, keys);
            if (!group || b + 1 < w.end) give_turn(group);
            wgmma_wait<0>(s);
            WARP_SYNC();
            if (threadIdx.x % CUDA_WARP == 0) arrivals_come(control.empty[0] + stage);
            int first[2] = {0, 0}, ends[2] = {0, 0};
            if (least.first <= 0 && least.end >= CUDA_BLOCK_TOKENS) {
                find_tops<false, 16>(s, factor, first, ends, top, base);
            } else {
                UNROLL for (int r = 0; r < 2; r++) {
                    key_span span = span_of(a, of, b, query[r] / per_group);
                    first[r] = span.first, ends[r] = span.end;
                }
                find_tops<true, 16>(s, factor, first, ends, top, base);
            }
            weigh<16>(s, factor, base, weights, sum);
            arrivals_wait(control.full[1] + stage, turn);
            multiply_values(out, weights, values);
            UNROLL for (int r = 0; r < 2; r++) {
                fold_step(state.top[r], top[r], before[r], now[r]);
                state.sum[r] = fold_value(state.sum[r], before[r], sum[r][0] + sum[r][1], now[r]);
            }
            if (lane_ballot(before[0] != 1 || before[1] != 1)) /* most blocks have no new maximum */
                UNROLL for (int i = 0; i < 64; i++) state.out[i] *= before[i / 2 % 2];
            wgmma_wait<0>(out);
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

DEVICE void attend(const draft_attend_args &a)
{
    unsigned char *queries = TILES(unsigned char), *tiles = queries + 2 * QUERY_BYTES;
    draft_control &control = *(draft_control *)(tiles + 2 * RING * TILE_BYTES);
    const draft_sequence of = a.sequence[blockIdx.z]; /* in registers: barriers would have it read again */
    if (a.mode == DRAFT_BLOCKS && (int)blockIdx.x >= of.blocks) return;
    draft_work w = find_work(a, of);
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
        registers_take<184>();
        multiply(a, of, w, tiles, queries, control, queries + DRAFT_HOPPER_SHARED);
    } else {
        registers_give<72>();
        if (w.begin >= w.end) return;
        if (group == 2)
            bring<false>(a, of, w, tiles, control.full[0], control.empty[0]);
        else
            bring<true>(a, of, w, tiles + RING * TILE_BYTES, control.full[1], control.empty[1]);
    }
}

KERNEL_OF(draft_attend_bf16, draft_attend_args, DRAFT_HOPPER_THREADS, 1) { attend(a); }
