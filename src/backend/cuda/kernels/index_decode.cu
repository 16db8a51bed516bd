/*
 * Scores and selection of index.cu in one launch, for decoding: few rows of a sequence, a cache of NVFP4 with 128 dims.
 *
 * A thread block takes a span of one sequence's blocks, and all spans of a step are on the GPU at once, three thread
 * blocks a multiprocessor. A warp takes a quarter of a block, 32 tokens, then the same quarter two blocks on. Keys and
 * their scales come by copies into shared memory, two pieces ahead. Blocks that no row of the step writes do not wait
 * for the kernel before: they come while it ends.
 *
 * Keys are the A operand of m16n8k16 in key_order: a lane's 16 bytes are a quarter of a key. Products and their order
 * are index.cu's, so the bits are.
 *
 * What a span leaves is its scores, 4 bytes a block and head beside the 9,216 that were read, and handed over besides
 * as words that are 0 until then: so who chooses waits for the words alone, not for a count and then for the scores.
 * Thread blocks of a run draw numbers behind the kernel before; the last one, of whom all others run then, chooses, or
 * the last few, one for each column. They put the words back to 0 for the next launch. A wait may be for a thread block
 * that has no place yet: so those that wait are fewer than there are multiprocessors.
 *
 * What bounds this is instructions. A piece and warp with 8 columns takes 355: 16 words of 15, 16 MMAs, 99 for loads,
 * units, addresses and maxima. Two of three go to pipes that take one every two cycles, and a multiprocessor needs 530
 * cycles for a block; its share of the memory brings one in 490. A sequence of 8K is all waits: for the kernel before,
 * the queries, a piece, the words of others, the choice.
 */
#include "backend/cuda/kernels/index.h"

#include "backend/cuda/kernels/cache.cuh"
#include "backend/cuda/kernels/select.cuh"

enum {
    DIM = 128,
    FORMAT = KERNEL_CACHE_NVFP4,
    KEY_BYTES = DIM / 2,
    SCALE_BYTES = DIM / 16,
    CHUNKS = 4, /* words of a lane's quarter of a key: two steps of the product each */
    EIGHTS = DECODE_PIECE / 8,
    AT_ONCE = DECODE_WARPS / DECODE_PIECES, /* blocks that a thread block has at work */
    THREADS = DECODE_WARPS * CUDA_WARP,
    KEYS_BYTES = DECODE_PIECE * KEY_BYTES,
    SCALES_BYTES = DECODE_PIECE * SCALE_BYTES,
    CHOOSE_ROOM = 128, /* keys that may be among the best */
    CHOOSE_FEW = 128,  /* blocks that are counted among each other */
};
static_assert(DECODE_PIECES * DECODE_PIECE == CUDA_BLOCK_TOKENS, "a block");
static_assert((int)KEYS_BYTES + SCALES_BYTES == DECODE_PIECE_BYTES, "a piece");
static_assert(DECODE_COLUMNS <= (int)CUDA_WARP, "a lane looks at one row");

/* Rows that share their sequence's blocks. */
struct decode_run {
    int row, rows, sequence, position; /* the first row, how many, its position */
    int columns, visible;              /* blocks that the last row sees */
};

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/* Dynamic shared memory. */
struct decode_shared {
    unsigned char *pieces; /* on their way: [warp][stage][DECODE_PIECE_BYTES] */
    uint32_t *units;       /* nvfp4_unit of every scale */
    uint32_t *ticket;
    quad *query; /* [tile][chunk][lane] */
    float *most; /* [blocks of the span][DECODE_PIECES][columns] */
};

/* A warp's pieces: the same quarter of every AT_ONCE-th block. */
struct warp_pieces {
    const uint8_t *keys; /* of block 0: this lane's 16 bytes of the quarter's first 512 */
    uint32_t scales;     /* from there to its 8 bytes of the quarter's scales */
    uint32_t row_bytes;
    int32_t numbers; /* of the blocks of all turns, lane by lane */
    int count;       /* turns */
};

/* The piece of a turn; nothing behind the last. A group of copies all the same. to: this lane's 16 bytes of the stage,
 * `scales` its 8. */
DEVICE void ask_piece(const warp_pieces &p, int turn, unsigned char *to, unsigned char *scales)
{
    if (turn < p.count) {
        const uint8_t *from = p.keys + (uint64_t)(uint32_t)lane_get(p.numbers, turn) * p.row_bytes;
        UNROLL for (int i = 0; i < EIGHTS; i++) copy_async(to + 512 * i, from + 512 * i, true);
        if (threadIdx.x % CUDA_WARP < CUDA_WARP / 2) copy_async(scales, from + p.scales, true);
    }
    copy_commit();
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/* Scores of a piece: a lane's quarters of its keys, the units of their groups. query: from this lane's on. */
template <int TILES>
DEVICE void score_keys(const quad key[EIGHTS], const uint32_t unit[EIGHTS][2], const quad *query,
                       float s[EIGHTS / 2][TILES][4])
{
    UNROLL for (int n = 0; n < EIGHTS / 2; n++) UNROLL for (int j = 0; j < TILES; j++)
        UNROLL for (int c = 0; c < 4; c++) s[n][j][c] = 0;
    UNROLL for (int c = 0; c < CHUNKS; c++)
    {
        uint32_t pair[EIGHTS][4];
        UNROLL for (int r = 0; r < EIGHTS; r++) decode_eight<FORMAT>(&key[r].w[c], unit[r][c / 2], pair[r]);
        UNROLL for (int j = 0; j < TILES; j++)
        {
            quad q = query[(j * CHUNKS + c) * CUDA_WARP];
            UNROLL for (int n = 0; n < EIGHTS / 2; n++) UNROLL for (int k = 0; k < 2; k++)
            {
                uint32_t keys[4] = {pair[2 * n][2 * k], pair[2 * n + 1][2 * k], pair[2 * n][2 * k + 1],
                                    pair[2 * n + 1][2 * k + 1]};
                mma_bf16(s[n][j], keys, q.w + 2 * k);
            }
        }
    }
}

/* Scores of tokens behind a row's own are none. sees: the tokens of the piece that the run's first row sees. */
template <int TILES> DEVICE void hide_unseen(float s[EIGHTS / 2][TILES][4], int heads, int lane, int sees)
{
    int g = lane / 4, t = lane % 4;
    UNROLL for (int j = 0; j < TILES; j++) UNROLL for (int c = 0; c < 2; c++)
    {
        int own = sees + (8 * j + 2 * t + c) / heads; /* of the column's row */
        UNROLL for (int r = 0; r < EIGHTS; r++) if (8 * r + g >= own) s[r / 2][j][r % 2 * 2 + c] = -INFINITY;
    }
}

/* The largest of a piece's scores, of every column, to most [8 * TILES]. fmaxf leaves NaN out. */
template <int TILES> DEVICE void most_of_piece(const float s[EIGHTS / 2][TILES][4], int lane, float *most)
{
    int g = lane / 4, t = lane % 4;
    UNROLL for (int j = 0; j < TILES; j++)
    {
        float best[2];
        UNROLL for (int c = 0; c < 2; c++)
        {
            float x[EIGHTS];
            UNROLL for (int r = 0; r < EIGHTS; r++) x[r] = s[r / 2][j][r % 2 * 2 + c];
            UNROLL for (int step = 1; step < EIGHTS; step *= 2) UNROLL for (int r = 0; r < EIGHTS; r += 2 * step) x[r] =
                fmaxf(x[r], x[r + step]);
            best[c] = x[0];
        }
        /* Between the lanes of a column, after the first exchange each of a pair with one of the two. */
        float keep = g % 2 ? best[1] : best[0], give = g % 2 ? best[0] : best[1];
        keep = fmaxf(keep, lane_xor(give, 4));
        keep = fmaxf(keep, lane_xor(keep, 8));
        keep = fmaxf(keep, lane_xor(keep, 16));
        if (g < 2) most[8 * j + 2 * t + g] = keep;
    }
}

DEVICE uint32_t bf16_words(uint32_t low, uint32_t high)
{
    return round_pair(bits_float(low), bits_float(high));
}

/* The queries of the run's rows as operands, in the order in which keys are decoded. */
template <int TILES> DEVICE void load_columns(const float *q, int columns, quad *query)
{
    for (int i = threadIdx.x; i < TILES * CHUNKS * CUDA_WARP; i += THREADS) {
        int lane = i % CUDA_WARP, c = i / CUDA_WARP % CHUNKS, column = i / CUDA_WARP / CHUNKS * 8 + lane / 4;
        const quad *from = (const quad *)(q + (int64_t)column * DIM + lane % 4 * (DIM / 4) + 8 * c);
        quad out = {{0, 0, 0, 0}};
        if (column < columns) {
            quad a = from[0], b = from[1];
            UNROLL for (int n = 0; n < 4; n++) out.w[n] = bf16_words(a.w[n], b.w[n]);
        }
        query[i] = out;
    }
}

/* The upper half of key_of, never 0. Scores are numbers or -infinity here. */
DEVICE uint32_t order_of(float score)
{
    uint32_t u = float_bits(score + 0.0f);
    return u ^ ((0u - (u >> 31)) | 0x80000000u);
}

/* Blocks [begin, end) of the run. What comes back is for thread 0: how many of the run's thread blocks drew before. */
template <int TILES>
DEVICE uint32_t score_blocks(const index_decode_args &a, const decode_run &run, int begin, int end,
                             const decode_shared &shared)
{
    enum { STAGES = TILES == 1 ? DECODE_STAGES : DECODE_STAGES_WIDE };
    int warp = threadIdx.x / CUDA_WARP, lane = known_here(threadIdx.x % CUDA_WARP), quarter = warp % DECODE_PIECES;
    int b = begin + warp / DECODE_PIECES, complete = run.position / CUDA_BLOCK_TOKENS, early = 0;
    const int32_t *table = a.rows.block_table + (int64_t)run.sequence * a.rows.block_table_stride;
    unsigned char *ring = shared.pieces + warp * (STAGES * DECODE_PIECE_BYTES) + 16 * lane, *narrow = ring + KEYS_BYTES;
    warp_pieces p;
    p.keys = known_here(a.cache.base + a.layer_offset + quarter * KEYS_BYTES + 16 * lane);
    p.scales = (uint32_t)known_here((int)a.cache.index_scales + quarter * (SCALES_BYTES - KEYS_BYTES));
    p.row_bytes = (uint32_t)a.cache.row_bytes;
    p.count = b < end ? (end - b + AT_ONCE - 1) / AT_ONCE : 0;
    p.numbers = lane < p.count ? table[b + lane * AT_ONCE] : 0;
    /* Blocks that no row of the step writes are asked for while kernels before this one still run. */
    for (; early < STAGES && b + early * AT_ONCE < complete; early++)
        ask_piece(p, early, ring + early * DECODE_PIECE_BYTES, narrow + early * DECODE_PIECE_BYTES);
    for (int i = threadIdx.x; i < 256; i += THREADS) shared.units[i] = nvfp4_unit((uint32_t)i);
    follow();
    uint32_t ticket = threadIdx.x == 0 ? draw(a.drawn + run.row, 1) : 0;
    for (int n = early; n < STAGES; n++)
        ask_piece(p, n, ring + n * DECODE_PIECE_BYTES, narrow + n * DECODE_PIECE_BYTES);
    load_columns<TILES>(a.q + (int64_t)run.row * a.heads * DIM, run.columns, shared.query);
    BLOCK_SYNC();
    float *most = shared.most + (warp / DECODE_PIECES * DECODE_PIECES + quarter) * (8 * TILES);
    int sees = run.position + 1 - b * CUDA_BLOCK_TOKENS - quarter * DECODE_PIECE;
    const quad *query = shared.query + lane;
    for (int turn = 0, stage = 0; turn < p.count; turn++) {
        quad key[EIGHTS];
        uint32_t unit[EIGHTS][2];
        float s[EIGHTS / 2][TILES][4];
        copy_wait<STAGES - 1>();
        WARP_SYNC(); /* scales come by other lanes */
        const uint8_t *scales = narrow + stage - 14 * lane;
        UNROLL for (int r = 0; r < EIGHTS; r++)
        {
            key[r] = *(const quad *)(ring + stage + 512 * r);
            unit[r][0] = shared.units[scales[64 * r]], unit[r][1] = shared.units[scales[64 * r + 1]];
        }
        WARP_SYNC();
        ask_piece(p, turn + STAGES, ring + stage, narrow + stage);
        score_keys<TILES>(key, unit, query, s);
        if (sees < DECODE_PIECE) hide_unseen<TILES>(s, a.heads, lane, sees);
        most_of_piece<TILES>(s, lane, most);
        most += AT_ONCE * DECODE_PIECES * 8 * TILES, sees -= AT_ONCE * CUDA_BLOCK_TOKENS;
        stage = stage == (STAGES - 1) * DECODE_PIECE_BYTES ? 0 : stage + DECODE_PIECE_BYTES;
    }
    copy_wait<0>();
    BLOCK_SYNC();
    int64_t out = (int64_t)run.row * a.heads * a.max_blocks + begin;
    for (int i = threadIdx.x; i < (end - begin) * run.columns; i += THREADS) {
        int column = i % run.columns, block = i / run.columns;
        const float *parts = shared.most + block * (DECODE_PIECES * 8 * TILES) + column;
        float best = -INFINITY; /* where no score is a number */
        UNROLL for (int n = 0; n < DECODE_PIECES; n++) best = fmaxf(best, parts[n * (8 * TILES)]);
        best *= cached_undo<FORMAT>();
        hand_over(a.order + ((int64_t)run.row * a.heads + column) * a.stride + begin + block, order_of(best));
        a.scores[out + (int64_t)column * a.max_blocks + block] = best;
    }
    return ticket;
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

/* True: the row replays, and its lists are taken from there. Whole warps ask, one head each. */
DEVICE bool replayed(const index_decode_args &a, int row, int head)
{
    enum { ROW_REPLAY_BLOCKS = 2 };
    int lane = threadIdx.x % CUDA_WARP; /* all warps may bring the same */
    if (!a.rows.replay_blocks || !(a.rows.flags[row] & ROW_REPLAY_BLOCKS)) return false;
    int64_t at = ((int64_t)row * a.heads + head) * a.top;
    const int32_t *from = a.rows.replay_blocks + (int64_t)a.layer * a.rows.count * a.heads * a.top;
    if (lane < a.top) a.blocks[at + lane] = from[at + lane];
    return true;
}

/* Lists of rows that see no more than `top` blocks, or none: they take all. */
DEVICE void take_all(const index_decode_args &a, int row, int rows, bool none)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    for (int i = warp; i < rows * a.heads; i += DECODE_WARPS) {
        int r = row + i / a.heads;
        if (replayed(a, r, i % a.heads)) continue;
        int visible = none ? 0 : a.rows.position[r] / CUDA_BLOCK_TOKENS + 1;
        if (lane < a.top) a.blocks[((int64_t)r * a.heads + i % a.heads) * a.top + lane] = lane < visible ? lane : -1;
    }
}

/* What a thread block that chooses has in the memory that it scored with. */
struct choosing {
    uint32_t best[THREADS];
    uint64_t good[CHOOSE_ROOM]; /* keys not below the bar */
    int32_t list[INDEX_TOP];
    uint32_t count;                          /* of good */
    alignas(16) uint32_t order[DECODE_MOST]; /* of all blocks */
};
static_assert(sizeof(choosing) <= DECODE_WARPS * DECODE_STAGES * DECODE_PIECE_BYTES, "room");

/* The best of all blocks in order, by one warp. */
DEVICE uint64_t choose_alone(const uint32_t *order, int visible, int top)
{
    int lane = threadIdx.x % CUDA_WARP;
    uint64_t list = 0;
    for (int from = 0; from < visible; from += CUDA_WARP) {
        int b = from + lane;
        list = keep_best(list, top, b < visible ? (uint64_t)order[b] << 32 | (0xFFFFFFFFu - (uint32_t)b) : 0);
    }
    return list;
}

/* Of the words that the run's thread blocks hand over for a column, the largest that its row sees; all into `order`,
 * and 0 into the places that they came from. All that a thread asks for is on its way at once, for up to 4,096 blocks.
 */
DEVICE uint32_t take_order(quad *words, int count, int visible, int forced, quad *order)
{
    enum { HELD = 4 };
    uint32_t best = 0;
    int quads = (count + 3) / 4;
    for (int from = threadIdx.x; from < quads; from += HELD * THREADS) {
        quad held[HELD];
        UNROLL for (int n = 0; n < HELD; n++) held[n] = load_fresh(words + min(from + n * THREADS, quads - 1));
        UNROLL for (int n = 0; n < HELD; n++)
        {
            int at = from + n * THREADS;
            if (at >= quads) break;
            UNROLL for (int i = 0; i < 4; i++)
            {
                int b = 4 * at + i;
                uint32_t x = held[n].w[i];
                if (b < count && x == 0) x = await_word(&words[at].w[i], "scores of a block");
                held[n].w[i] = b >= visible ? 0 : b >= forced ? 0xFFFFFFFFu : x;
                best = max(best, held[n].w[i]);
            }
            words[at] = quad{{0, 0, 0, 0}}, order[at] = held[n];
        }
    }
    return best;
}

/* The list of a column of at most THREADS blocks, one a thread: each counts those before its own. */
DEVICE void choose_few(const uint32_t *order, uint32_t *masks, int visible, int top, int32_t *out)
{
    int own = threadIdx.x, warp = own / CUDA_WARP, lane = own % CUDA_WARP, place = 0, before = 0, all = 0;
    uint32_t x = order[own];
    if (own - lane < visible) {
        const quad *quads = (const quad *)(const void *)order;
        UNROLL for (int i = 0; i < 4; i++) place += own / 4 * 4 + i < own && order[own / 4 * 4 + i] == x;
        _Pragma("unroll 4") for (int n = 0; n < (visible + 3) / 4; n++)
        {
            quad other = quads[n];
            uint32_t bar = n < own / 4 ? x - 1 : x; /* of equal ones the first comes before */
            UNROLL for (int i = 0; i < 4; i++) place += other.w[i] > bar;
        }
    }
    bool chosen = x != 0 && place < top;
    uint32_t mask = lane_ballot(chosen);
    if (lane == 0) masks[warp] = mask;
    BLOCK_SYNC();
    UNROLL for (int w = 0; w < DECODE_WARPS; w++)
    {
        int count = count_bits(masks[w]);
        all += count, before += w < warp ? count : 0;
    }
    if (!out) return;
    if (chosen) out[before + count_bits(mask & ((1u << lane) - 1))] = own;
    if (own >= all && own < top) out[own] = -1;
}

/*
 * Lists of every choosers-th column. Blocks come to 32 groups, one of every lane: as many as a list takes are not below
 * the `top`-th of the groups' best, and few more (of 4,096 22 are to be expected for 16). They are counted among each
 * other. Where there is no room for them, a warp goes through all.
 */
DEVICE void choose_blocks(const index_decode_args &a, const decode_run &run, int first, int choosers, choosing &all)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    for (int column = first; column < run.columns; column += choosers) {
        int head = column % a.heads, i = column / a.heads;
        int visible = (run.position + i) / CUDA_BLOCK_TOKENS + 1, forced = visible - a.local;
        quad *words = (quad *)(void *)(a.order + ((int64_t)run.row * a.heads + column) * a.stride);
        if (threadIdx.x == 0) all.count = 0;
        if (threadIdx.x < INDEX_TOP) all.list[threadIdx.x] = INT32_MAX;
        all.best[threadIdx.x] = take_order(words, run.visible, visible, forced, (quad *)(void *)all.order);
        if (run.visible <= CHOOSE_FEW && (int)threadIdx.x >= (run.visible + 3) / 4 * 4) all.order[threadIdx.x] = 0;
        BLOCK_SYNC();
        if (run.visible <= CHOOSE_FEW) {
            int32_t *out = a.blocks + ((int64_t)(run.row + i) * a.heads + head) * a.top;
            choose_few(all.order, all.best, visible, a.top, replayed(a, run.row + i, head) ? nullptr : out);
            BLOCK_SYNC();
            continue;
        }
        uint32_t best = 0;
        int above = 0;
        UNROLL for (int p = 0; p < DECODE_WARPS; p++) best = max(best, all.best[p * CUDA_WARP + lane]);
        _Pragma("unroll 8") for (int other = 0; other < CUDA_WARP; other++) above += lane_get(best, other) > best;
        uint32_t bar = max(lane_least(above < a.top ? best : 0xFFFFFFFFu), 1u);
        _Pragma("unroll 4") for (int b = threadIdx.x; b < visible; b += THREADS)
        {
            uint32_t x = all.order[b];
            if (x < bar) continue;
            uint32_t place = count_up(&all.count, 1);
            if (place < CHOOSE_ROOM) all.good[place] = (uint64_t)x << 32 | (0xFFFFFFFFu - (uint32_t)b);
        }
        BLOCK_SYNC();
        if (warp == 0) {
            int count = (int)all.count;
            if (count > CHOOSE_ROOM) {
                uint64_t list = choose_alone(all.order, visible, a.top);
                if (list) all.list[lane] = block_of(list);
            } else {
                _Pragma("unroll 1") for (int n = lane; n < count; n += CUDA_WARP)
                {
                    uint64_t good = all.good[n];
                    int place = 0;
                    _Pragma("unroll 4") for (int other = 0; other < count; other++) place += all.good[other] > good;
                    if (place < a.top) all.list[place] = block_of(good);
                }
            }
            WARP_SYNC();
            if (!replayed(a, run.row + i, head)) {
                int block = all.list[lane], place = 0;
                UNROLL for (int other = 0; other < INDEX_TOP; other++)
                {
                    int theirs = all.list[other];
                    place += theirs < block || (theirs == block && other < lane);
                }
                int32_t *out = a.blocks + ((int64_t)(run.row + i) * a.heads + head) * a.top;
                if (place < a.top) out[place] = block == INT32_MAX ? -1 : block;
            }
        }
        BLOCK_SYNC();
    }
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* Thread blocks that share a run's blocks: the host counts alike (attend.c), by a number that grows in steps. */
DEVICE int spans_of(int visible, int share)
{
    int step = 1;
    while (16 * step <= visible) step *= 2;
    return ((visible + step - 1) / step * step * DECODE_SHARE + share - 1) / share;
}

/* Rows from `row` on of one sequence, before `end`. */
DEVICE void look_at_run(const index_decode_args &a, int row, int end, decode_run *run, bool *begins)
{
    int lane = threadIdx.x % CUDA_WARP;
    const int32_t *sequence = a.rows.sequence;
    int own = sequence[row], before = row > 0 ? sequence[row - 1] : -1,
        next = row + lane < end ? sequence[row + lane] : -2;
    run->position = a.rows.position[row];
    uint32_t others = lane_ballot(next != own);
    run->row = row, run->sequence = own;
    run->rows = others ? count_bits((others & (0u - others)) - 1) : CUDA_WARP;
    run->columns = run->rows * a.heads;
    run->visible = (run->position + run->rows - 1) / CUDA_BLOCK_TOKENS + 1;
    *begins = a.group > 1 || row == 0 || before != own;
}

template <int TILES> DEVICE void index_decode(const index_decode_args &a)
{
    enum { STAGES = TILES == 1 ? DECODE_STAGES : DECODE_STAGES_WIDE };
    decode_shared shared;
    shared.pieces = DYNAMIC(unsigned char);
    shared.units = (uint32_t *)(void *)(shared.pieces + DECODE_WARPS * STAGES * DECODE_PIECE_BYTES);
    shared.ticket = shared.units + 256;
    shared.query = (quad *)(void *)(shared.ticket + 4);
    shared.most = (float *)(void *)(shared.query + TILES * CHUNKS * CUDA_WARP);
    decode_run run;
    bool begins;
    int row = blockIdx.x * a.group, end = a.group > 1 ? min(row + a.group, a.rows.count) : a.rows.count;
    look_at_run(a, row, end, &run, &begins);
    int spans = spans_of(run.visible, a.share), span = blockIdx.y;
    if (run.sequence < 0 || !begins || run.visible <= a.top || span >= spans) {
        follow();
        if (span > 0) return;
        if (run.sequence < 0)
            take_all(a, row, a.group > 1 ? end - row : 1, true);
        else if (begins && run.visible <= a.top)
            take_all(a, row, run.rows, false);
    } else {
        int first = (int)((int64_t)span * run.visible / spans), last = (int)((int64_t)(span + 1) * run.visible / spans);
        uint32_t ticket = score_blocks<TILES>(a, run, first, last, shared);
        if (threadIdx.x == 0) shared.ticket[0] = ticket;
        BLOCK_SYNC();
        int choosers = BLOCKS_BESIDE ? min(min(a.choosers, spans), run.columns) : 1;
        int own = (int)shared.ticket[0] - (spans - choosers);
        if (own >= 0) {
            choose_blocks(a, run, own, choosers, *(choosing *)(void *)shared.pieces);
            if (own == choosers - 1 && threadIdx.x == 0) a.drawn[row] = 0;
        }
    }
    if (span == 0 && a.group > 1 && run.sequence >= 0 && row + run.rows < end)
        take_all(a, row + run.rows, end - row - run.rows, true);
}

KERNEL_AHEAD_OF(index_decode_8, index_decode_args, THREADS, 3)
{
    index_decode<1>(a);
}
KERNEL_AHEAD_OF(index_decode_16, index_decode_args, THREADS, 2)
{
    index_decode<2>(a);
}
KERNEL_AHEAD_OF(index_decode_32, index_decode_args, THREADS, 2)
{
    index_decode<4>(a);
}
