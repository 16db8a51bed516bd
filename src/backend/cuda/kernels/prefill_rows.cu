/*
 * Attention of many rows on Hopper, over selected blocks or over all of them: the sums of attend.cu, in its order, on
 * warpgroups.
 *
 * A tile is PREFILL_ROWS neighbouring rows of the step and 16 query heads of one KV head. One warpgroup lists the blocks
 * that the tile's rows selected, ascending, decodes each of them once (keys and values as bf16, PREFILL_STAGES of them on
 * their way), and two warpgroups multiply, four rows of 16 heads each: S = Q K^T (m64n128k16, both from shared memory),
 * weights in registers, O_b = P V (P from registers, values as they lie), and the fold into the row's state, in registers
 * too. A warp is a row: what is per row (does it take the block, how many tokens does it see, the fold) diverges between
 * warps only, and a warpgroup none of whose rows takes a block lets it pass.
 *
 *     s_j = q . k_j * scale,  m_b = max s_j,  l_b = sum 2^(s_j - m_b),  O_b = sum bf16(2^(s_j - m_b)) v_j       of a block b
 *     M' = max(M, m_b),  L' = L 2^(M - M') + l_b 2^(m_b - M'),  O likewise,  blocks ascending;  out = O / L
 *
 * Rows stay and blocks pass: nothing leaves the multiprocessor but the output. The price: four rows are multiplied with a
 * block that one of them takes, for which there is prefill_blocks.cu. Per block and warpgroup 1,024
 * cycles of the tensor cores (64 x 128 x 128 twice, 2,048 products a cycle), about 850 instructions a warp of two on a
 * scheduler, and decoding, 32,768 values, some 700 instructions a warp and 512 cycles of stores, once for both. With U
 * the blocks that four rows take together, 16 where they agree and 61 where they choose at random among 512, a bound of
 * 16 / U of the matrix rate: 790 and 207 TFLOP/s. Bytes: 18,432 a block of NVFP4 and tile, 9.2 KB a row and block down to
 * 2.3: the second-level cache's at most.
 *
 * Shared memory 227 KB, all there is: one thread block a multiprocessor, 384 threads; 192 registers for who multiplies,
 * 120 for who decodes.
 *
 * Tokens that a row does not see have weight 0, and those that none of the tile's sees value 0, whatever the cache holds
 * there. Where a value that some row does not see is no finite number the block passes once for every row.
 */
#include "backend/cuda/kernels/prefill.cuh"

static_assert(PREFILL_ROWS * PREFILL_TOP == WARPGROUP, "a thread of the decoding warpgroup is a place of a list");

enum { NONE = INT32_MAX };

/* What a stage holds: block `block` of the sequence, for the rows of `rows` (bits); 0 rows: no block, the tile has none. */
struct prefill_stage {
    int32_t block;
    uint32_t rows;
    int32_t last; /* of the tile */
};

struct prefill_unit {
    int first; /* row of the step */
    int group, head, heads;
};

DEVICE prefill_unit prefill_unit_of(const prefill_rows_args &a, int number)
{
    prefill_unit u;
    int tiles = a.units / (a.kv_heads * a.head_tiles), per_group = a.heads / a.kv_heads, in_row = number / tiles;
    int part = in_row % a.head_tiles * PREFILL_HEADS;
    u.first = number % tiles * PREFILL_ROWS;
    u.group = in_row / a.head_tiles;
    u.head = u.group * per_group + part;
    u.heads = min(per_group - part, (int)PREFILL_HEADS);
    return u;
}

/* ---- Blocks of a tile: the decoding warpgroup -------------------------------------------------------------------- */

struct prefill_visits {
    int32_t key[WARPGROUP];  /* of every place of the rows' lists: run of rows of one sequence, block, how often before */
    int32_t lead[WARPGROUP]; /* the same where it is the first place of its key, else NONE */
    int32_t block[WARPGROUP], cached[WARPGROUP]; /* in order: of the sequence, and which of the cache's it is */
    uint8_t rows[WARPGROUP];
    int32_t sequence[PREFILL_ROWS], position[PREFILL_ROWS];
    uint32_t count, found;
};

/* A block that is to pass: of the sequence, of the cache, and the rows that take it. */
struct prefill_visit {
    int block, cached;
    uint32_t rows;
};

enum { KEY_OFTEN = 32, KEY_BLOCKS = 1 << 22 };

/* Without lists: the i-th of the blocks that rows see, in the same order. cached: -1 if there are not so many. */
DEVICE prefill_visit dense_visit(const prefill_rows_args &a, const prefill_visits &v, int i)
{
    for (int r = 0, end; r < PREFILL_ROWS; r = end) {
        for (end = r + 1; end < PREFILL_ROWS && v.sequence[end] == v.sequence[r];) end++;
        int blocks = v.sequence[r] < 0 ? 0 : v.position[end - 1] / CUDA_BLOCK_TOKENS + 1;
        if (i >= blocks) {
            i -= blocks;
            continue;
        }
        prefill_visit visit = {i, a.rows.block_table[(int64_t)v.sequence[r] * a.rows.block_table_stride + i], 0};
        for (int j = r; j < end; j++) visit.rows |= (uint32_t)(v.position[j] / CUDA_BLOCK_TOKENS >= i) << j;
        return visit;
    }
    return prefill_visit{0, -1, 0};
}

DEVICE prefill_visit visit_of(const prefill_rows_args &a, const prefill_visits &v, int i)
{
    if (!a.blocks) return dense_visit(a, v, i);
    if (i >= (int)v.count) return prefill_visit{0, -1, 0};
    return prefill_visit{v.block[i], v.cached[i], v.rows[i]};
}

/* Every block that one of the rows takes, once, in ascending order within a run of rows of one sequence. A block that a
 * list names twice, which a replay may, comes twice. */
DEVICE void list_visits(const prefill_rows_args &a, const prefill_unit &u, prefill_visits &v)
{
    int i = (int)threadIdx.x % WARPGROUP, r = i / PREFILL_TOP, place = i % PREFILL_TOP, row = u.first + r;
    int sequence = row < a.rows.count ? a.rows.sequence[row] : -1, run = 0, b = -1;
    for (int j = u.first + 1; j <= row && j < a.rows.count; j++) run += a.rows.sequence[j] != a.rows.sequence[j - 1];
    if (sequence >= 0 && a.blocks && place < a.index_top)
        b = a.blocks[((int64_t)row * a.index_heads + u.group) * a.index_top + place];
    threads_meet<3, WARPGROUP>(); /* the tile before has been read */
    v.key[i] = b;
    if (place == 0) v.sequence[r] = sequence, v.position[r] = sequence >= 0 ? a.rows.position[row] : 0;
    if (i == 0) v.count = 0, v.found = 0;
    threads_meet<3, WARPGROUP>();
    if (!a.blocks) return;
    int often = 0;
    for (int j = i - place; j < i; j++) often += v.key[j] == b;
    int key = b < 0 ? NONE : (run * KEY_BLOCKS + b) * KEY_OFTEN + often;
    threads_meet<3, WARPGROUP>();
    v.key[i] = key;
    threads_meet<3, WARPGROUP>();
    uint32_t rows = 0;
    bool first = key != NONE;
    for (int j = 0; j < WARPGROUP; j++) {
        bool same = v.key[j] == key;
        rows |= (uint32_t)same << j / PREFILL_TOP;
        first = first && !(same && j < i);
    }
    v.lead[i] = first ? key : (int)NONE;
    if (first) count_up(&v.count, 1);
    threads_meet<3, WARPGROUP>();
    if (first) {
        int before = 0;
        for (int j = 0; j < WARPGROUP; j++) before += v.lead[j] < key;
        v.block[before] = b;
        v.cached[before] = a.rows.block_table[(int64_t)sequence * a.rows.block_table_stride + b];
        v.rows[before] = (uint8_t)rows;
    }
    threads_meet<3, WARPGROUP>();
}

/* Stages in shared memory and how often each has been filled. */
struct prefill_ring {
    unsigned char *pages; /* [PREFILL_STAGES][keys, values] */
    prefill_stage *info;
    arrivals *full, *empty;
    int stage, turn;
};
DEVICE void next_stage(prefill_ring &ring)
{
    if (++ring.stage == PREFILL_STAGES) ring.stage = 0, ring.turn ^= 1;
}

/* What the next stage gets: the head at `head`, which `waiting` holds, values from token `tokens` on as zeros. Then the
 * registers get the head at `next`, if there is one, while the stage is used. */
template <int FORMAT>
DEVICE void put_block(const prefill_rows_args &a, prefill_ring &ring, prefill_block<FORMAT> &waiting,
                      const prefill_stage &info, const uint8_t *head, int tokens, const uint8_t *next)
{
    arrivals_wait(ring.empty + ring.stage, ring.turn ^ 1);
    if (threadIdx.x % WARPGROUP == 0) ring.info[ring.stage] = info;
    if (info.rows) store_block(a.cache, waiting, ring.pages + ring.stage * (2 * PAGE_BYTES), head, tokens);
    others_read();
    arrivals_come(ring.full + ring.stage);
    if (next) load_block(a.cache, waiting, next);
    next_stage(ring);
}

/* A value that some row of `rows` does not see, and another does, is no finite number. */
template <int FORMAT>
DEVICE bool must_part(const prefill_rows_args &a, prefill_block<FORMAT> &waiting, prefill_visits &v,
                      const prefill_visit &visit, const uint8_t *head, int most)
{
    int least = CUDA_BLOCK_TOKENS;
    UNROLL for (int r = 0; r < PREFILL_ROWS; r++)
        if (visit.rows >> r & 1) least = min(least, tokens_seen(v.position[r], visit.block));
    return least != most && not_finite(a.cache, waiting, head, least, &v.found);
}

template <int FORMAT> DEVICE void decode_blocks(const prefill_rows_args &a, prefill_ring ring, prefill_visits &v)
{
    prefill_block<FORMAT> waiting = {};
    for (int number = blockIdx.x; number < a.units; number += gridDim.x) {
        prefill_unit u = prefill_unit_of(a, number);
        list_visits(a, u, v);
        const uint8_t *heads = a.cache.base + a.layer_offset + u.group * a.cache.head_bytes, *head = heads;
        prefill_visit now = visit_of(a, v, 0);
        if (now.cached < 0) {
            put_block<FORMAT>(a, ring, waiting, prefill_stage{0, 0, true}, head, 0, nullptr);
            continue;
        }
        head += now.cached * a.cache.row_bytes;
        load_block(a.cache, waiting, head);
        for (int i = 1; now.cached >= 0; i++) {
            prefill_visit then = visit_of(a, v, i);
            bool end = then.cached < 0;
            const uint8_t *next = end ? nullptr : heads + then.cached * a.cache.row_bytes;
            int most = 0;
            UNROLL for (int r = 0; r < PREFILL_ROWS; r++)
                if (now.rows >> r & 1) most = max(most, tokens_seen(v.position[r], now.block));
            /* All rows at once, or each by itself. */
            uint32_t apart = must_part<FORMAT>(a, waiting, v, now, head, most) ? now.rows : 0;
            do {
                uint32_t rows = apart ? apart & (0u - apart) : now.rows;
                apart &= apart - 1;
                int tokens = rows == now.rows ? most : tokens_seen(v.position[count_bits(rows - 1)], now.block);
                put_block<FORMAT>(a, ring, waiting, prefill_stage{now.block, rows, end && !apart}, head, tokens,
                                  apart ? nullptr : next);
            } while (apart);
            now = then, head = next;
        }
    }
}

/* ---- Products: the other two ------------------------------------------------------------------------------------- */

struct prefill_state {
    float maximum[2], sum[2]; /* of heads g and g + 8 */
    float out[64];            /* as d of wgmma<128> */
};

/* state: zeros before the first one. */
DEVICE void fold_block(prefill_state &state, const float maximum[2], const float sum[2], const float (&out)[64], bool first)
{
    UNROLL for (int r = 0; r < 2; r++) {
        float before = 0, now = 1;
        if (first)
            state.maximum[r] = maximum[r];
        else
            fold_step(state.maximum[r], maximum[r], before, now);
        state.sum[r] = state.sum[r] * before + sum[r] * now;
        UNROLL for (int i = 0; i < 16; i++)
            UNROLL for (int c = 2 * r; c < 2 * r + 2; c++)
                state.out[4 * i + c] = state.out[4 * i + c] * before + out[4 * i + c] * now;
    }
}

/* The row's output, by way of the lines of its queries, so that what goes to memory goes 16 bytes at a time. */
template <int FORMAT>
DEVICE void store_state(const prefill_rows_args &a, const prefill_unit &u, int row, const prefill_state &state,
                        unsigned char *tile)
{
    int lane = threadIdx.x % CUDA_WARP, own = threadIdx.x / CUDA_WARP % 4, g = lane / 4, t = lane % 4;
    bool padding = row >= a.rows.count || a.rows.sequence[row] < 0;
    UNROLL for (int i = 0; i < 16; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            int line = own * PREFILL_HEADS + g + c / 2 * 8, d = cached_order<FORMAT>(2 * t + c % 2);
            float x = state.out[4 * i + c] / state.sum[c / 2] * (cached_undo<FORMAT>() * a.value_scale);
            ((uint16_t *)(tile + i / 8 * QUERY_HALF + tile_unit(line, i % 8)))[d] = bf16_of_float(padding ? 0 : x);
        }
    WARP_SYNC();
    for (int i = lane; i < u.heads * (PREFILL_DIM / 8) && row < a.rows.count; i += CUDA_WARP) {
        int h = i / (PREFILL_DIM / 8), unit = i % (PREFILL_DIM / 8);
        int64_t at = ((int64_t)row * a.heads + u.head + h) * PREFILL_DIM + 8 * unit;
        store_unit(a.attention, a.attention_bf16, at,
                   *(const quad *)(tile + unit / 8 * QUERY_HALF + tile_unit(own * PREFILL_HEADS + h, unit % 8)));
    }
    WARP_SYNC();
}

template <int FORMAT>
DEVICE void multiply_blocks(const prefill_rows_args &a, prefill_ring ring, unsigned char *queries, int group)
{
    int own = threadIdx.x / CUDA_WARP % 4, lane = threadIdx.x % CUDA_WARP;
    for (int number = blockIdx.x; number < a.units; number += gridDim.x) {
        prefill_unit u = prefill_unit_of(a, number);
        int row = u.first + group * OWN_ROWS + own, position = row < a.rows.count ? a.rows.position[row] : 0;
        prefill_state state = {};
        bool first = true, last = false;
        const float *q = row < a.rows.count ? a.q + ((int64_t)row * a.heads + u.head) * PREFILL_DIM : nullptr;
        raw_queries raw;
        fetch_queries<FORMAT>(raw, q, u.heads);
        put_queries<FORMAT>(raw, queries);
        others_read();
        multipliers_meet(group);
        while (!last) {
            const unsigned char *keys = ring.pages + ring.stage * (2 * PAGE_BYTES), *values = keys + PAGE_BYTES;
            arrivals_wait(ring.full + ring.stage, ring.turn);
            prefill_stage info = ring.info[ring.stage];
            WARP_SYNC(); /* all lanes have been let through before one of them gives the stage back */
            uint32_t rows = info.rows >> group * OWN_ROWS & ((1u << OWN_ROWS) - 1);
            bool mine = rows >> own & 1;
            last = info.last;
            if (rows) {
                float s[64], out[64], maximum[2], sum[2];
                uint32_t weights[32];
                multiply_keys(s, queries, QUERY_HALF, keys);
                wgmma_wait<0>(s);
                weigh_row(s, a.scale, mine ? tokens_seen(position, info.block) : 0, weights, maximum, sum);
                multiply_values(out, weights, values);
                wgmma_wait<0>(out);
                if (lane == 0) arrivals_come(ring.empty + ring.stage);
                if (mine) {
                    fold_block(state, maximum, sum, out, first);
                    first = false;
                }
            } else if (lane == 0) {
                arrivals_come(ring.empty + ring.stage);
            }
            next_stage(ring);
        }
        multipliers_meet(group); /* the queries have been read */
        store_state<FORMAT>(a, u, row, state, queries);
    }
}

/* Behind the tiles. */
struct prefill_control {
    arrivals full[PREFILL_STAGES], empty[PREFILL_STAGES];
    prefill_stage info[PREFILL_STAGES];
    prefill_visits visits;
};
static_assert(sizeof(prefill_control) <= PREFILL_CONTROL, "the host gives that much");

template <int FORMAT> DEVICE void prefill_rows(const prefill_rows_args &a)
{
    unsigned char *pages = TILES(unsigned char), *queries = pages + PREFILL_STAGES * 2 * PAGE_BYTES;
    prefill_control &control = *(prefill_control *)(queries + MULTIPLIERS * 2 * QUERY_HALF);
    prefill_ring ring = {pages, control.info, control.full, control.empty, 0, 0};
    int group = threadIdx.x / WARPGROUP;
    open_stages(control.full, control.empty, PREFILL_STAGES);
    if (group == MULTIPLIERS) {
        registers_give<120>();
        decode_blocks<FORMAT>(a, ring, control.visits);
    } else {
        registers_take<192>();
        multiply_blocks<FORMAT>(a, ring, queries + group * 2 * QUERY_HALF, group);
    }
}

#define PREFILL_ROWS_STAY(name, FORMAT)                                                                                   \
    KERNEL_OF(prefill_rows_##name, prefill_rows_args, PREFILL_THREADS, 1) { prefill_rows<FORMAT>(a); }

PREFILL_ROWS_STAY(bf16, KERNEL_CACHE_BF16)
PREFILL_ROWS_STAY(fp8, KERNEL_CACHE_FP8)
PREFILL_ROWS_STAY(nvfp4, KERNEL_CACHE_NVFP4)
PREFILL_ROWS_STAY(nvfp4_e4m3, CACHED_NVFP4_E4M3)
