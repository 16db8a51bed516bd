/*
 * Scores and selection of index.cu in one launch, for decoding: few rows of a sequence, a cache of NVFP4 with 128 dims.
 *
 * A thread block takes a span of one sequence's blocks, and all spans of a step are on the GPU at once, three thread blocks a
 * multiprocessor. A warp takes a quarter of a block, 32 tokens, then the same quarter two blocks on. Keys come by copies into
 * shared memory, two pieces ahead, where each lane finds what it copied; scales come into registers, one ahead. Blocks that no
 * row of the step writes, and the tables below, do not wait for the kernel before: they come while it ends.
 *
 * Keys are the A operand of m16n8k16 in key_order: a lane's 16 bytes are a quarter of a key. What bounds this, once bytes are
 * on their way all the time, is instructions and what goes through shared memory. Of every other word of eight codes, four
 * become two pairs of bf16 as e2m1_pairs makes them, the others by a table, a load for each byte: 13 instead of 15. With all
 * words by the table a block would take 400 cycles of shared memory, without it 360 of issue: so both have 340. Units of
 * scales come from a table too. Products and their order are index.cu's, so the bits are.
 *
 * What a span leaves is its scores, 4 bytes a block and head beside the 9,216 that were read. The thread block that arrives last
 * selects for all rows of the run; the count goes back to 0 for the next launch.
 *
 * Bytes of a block: 9,216, whatever the number of columns (index heads x rows, at most 32): of one sequence of 128K 9.4 MB,
 * at 4,475 GB/s 2.1 us, of eight 16.9 us, of 512K 8.4 us. Instructions of a piece and warp with 8 columns: 16 words of 13 and
 * 15, 16 MMAs, 100 for loads, addresses and maxima, 340 in all, so a multiprocessor that issues nine of ten cycles takes 380
 * cycles for a block; its share of the memory brings one in 490. Launches behind each other cannot overlap in what needs the
 * queries: from the last score to the next launch's first go some 3 us.
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
    KEYS_BYTES = DECODE_PIECE * KEY_BYTES,
    SCALES_BYTES = DECODE_PIECE * SCALE_BYTES,
    LINE = 256,
    STAGE_LINES = KEYS_BYTES / (LINE / 2),
    CHOOSE_ROOM = 128,   /* keys that may be among the best */
    CHOOSE_MOST = 12288, /* blocks of all that are chosen from at once */
};
static_assert(DECODE_PIECES * DECODE_PIECE == CUDA_BLOCK_TOKENS, "a block");
static_assert(DECODE_RUN <= AT_ONCE * CUDA_WARP, "a lane has one block's number");
static_assert(DECODE_WARPS * DECODE_STAGES * STAGE_LINES <= DECODE_LINES && DECODE_STAGES == 2, "keys on their way");

/* Rows that share their sequence's blocks. */
struct decode_run {
    int row, rows, sequence, position; /* the first row, how many, its position */
    int columns, visible;              /* blocks that the last row sees */
};

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

/*
 * Shared memory. Line i begins with the pair of bf16 that byte i, two codes, stands for, times 2^-126, once for every lane, so
 * that each has a bank of its own and its place is made of the byte and the lane by one instruction. The other half of
 * the lines holds keys on their way.
 */
struct decode_shared {
    unsigned char *lines;
    uint32_t *units; /* nvfp4_unit of every scale */
    quad *query; /* [tile][chunk][lane] */
    float *most; /* [blocks of the run][DECODE_PIECES][columns] */
};

DEVICE void make_tables(unsigned char *lines, uint32_t *units)
{
    for (int i = threadIdx.x; i < DECODE_LINES * 8; i += DECODE_WARPS * CUDA_WARP) {
        uint32_t code = i / 8, v = ((code & 15) * 0x1040u & 0x81C0u) | ((code >> 4) * 0x1040u & 0x81C0u) << 16;
        *(quad *)(lines + code * LINE + i % 8 * 16) = quad{{v, v, v, v}};
    }
    for (int i = threadIdx.x; i < 256; i += DECODE_WARPS * CUDA_WARP) units[i] = nvfp4_unit((uint32_t)i);
}

/* A warp's pieces: the same quarter of every AT_ONCE-th block. */
struct warp_pieces {
    unsigned char *to;            /* this lane's 16 bytes of 512, of stage 0 */
    const uint8_t *keys, *scales; /* of block 0: this lane's place among the quarter's */
    uint32_t row_bytes;
    int32_t numbers; /* of the blocks of all turns, lane by lane */
    int count;       /* turns */
};

enum { STAGE = STAGE_LINES * LINE };

/* The keys of a turn into shared memory, where each lane finds what it copied; nothing behind the last. A group of copies all the
 * same. */
DEVICE void ask_keys(const warp_pieces &p, int turn, unsigned char *to)
{
    if (turn < p.count) {
        const uint8_t *from = p.keys + (uint64_t)(uint32_t)lane_get(p.numbers, turn) * p.row_bytes;
        UNROLL for (int i = 0; i < EIGHTS; i++) copy_async(to + 4 * LINE * i, from + 512 * i, true);
    }
    copy_commit();
}

/* Of tokens 8r + g of a piece, the scales of a lane's quarter of each key: two groups. */
DEVICE void ask_scales(const warp_pieces &p, int turn, uint32_t scales[EIGHTS])
{
    if (turn >= p.count) return;
    const uint8_t *from = p.scales + (uint64_t)(uint32_t)lane_get(p.numbers, turn) * p.row_bytes;
    UNROLL for (int r = 0; r < EIGHTS; r++) scales[r] = *(const uint16_t *)(from + 64 * r);
}

/* ---- Scores ------------------------------------------------------------------------------------------------------ */

/*
 * Eight codes as the two steps of the product take them, in pairs: elements 0 4, 1 5, 2 6, 3 7, by instructions alone or the
 * first two by the table as 0 1, 4 5. Where the order inside of a step counts, these become 0 4, 1 5.
 */
DEVICE constexpr bool by_table(int chunk) { return chunk % 2 == 0; }
template <bool TABLE>
DEVICE void decode_word(uint32_t word, uint32_t unit, const unsigned char *lines, uint32_t lane, uint32_t pair[4])
{
    if constexpr (TABLE) {
        uint32_t first = *(const uint32_t *)(lines + permute_bytes(word, lane, 0x5504));
        uint32_t third = *(const uint32_t *)(lines + permute_bytes(word, lane, 0x5524));
        pair[0] = MMA_ONE_SUM ? first : permute_bytes(first, third, 0x5410);
        pair[1] = MMA_ONE_SUM ? third : permute_bytes(first, third, 0x7632);
        e2m1_upper_pairs(word, pair + 2);
    } else {
        e2m1_pairs(word, pair);
    }
    UNROLL for (int i = 0; i < 4; i++) pair[i] = multiply_pairs(pair[i], unit);
}

/* Scores of a piece: a lane's quarters of its keys, the units of their groups. query: from this lane's on. */
template <int TILES>
DEVICE void score_keys(const quad key[EIGHTS], const uint32_t unit[EIGHTS][2], int lane, const unsigned char *lines,
                       const quad *query, float s[EIGHTS / 2][TILES][4])
{
    UNROLL for (int n = 0; n < EIGHTS / 2; n++)
        UNROLL for (int j = 0; j < TILES; j++)
            UNROLL for (int c = 0; c < 4; c++) s[n][j][c] = 0;
    UNROLL for (int c = 0; c < CHUNKS; c++) {
        uint32_t pair[EIGHTS][4];
        UNROLL for (int r = 0; r < EIGHTS; r++)
            if (by_table(c))
                decode_word<true>(key[r].w[c], unit[r][c / 2], lines, 4 * lane, pair[r]);
            else
                decode_word<false>(key[r].w[c], unit[r][c / 2], lines, 4 * lane, pair[r]);
        UNROLL for (int j = 0; j < TILES; j++) {
            quad q = query[(j * CHUNKS + c) * CUDA_WARP];
            UNROLL for (int n = 0; n < EIGHTS / 2; n++)
                UNROLL for (int k = 0; k < 2; k++) {
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
    UNROLL for (int j = 0; j < TILES; j++)
        UNROLL for (int c = 0; c < 2; c++) {
            int own = sees + (8 * j + 2 * t + c) / heads; /* of the column's row */
            UNROLL for (int r = 0; r < EIGHTS; r++)
                if (8 * r + g >= own) s[r / 2][j][r % 2 * 2 + c] = -INFINITY;
        }
}

/* The largest of a piece's scores, of every column, to most [8 * TILES]. fmaxf leaves NaN out. */
template <int TILES> DEVICE void most_of_piece(const float s[EIGHTS / 2][TILES][4], int lane, float *most)
{
    int g = lane / 4, t = lane % 4;
    UNROLL for (int j = 0; j < TILES; j++) {
        float best[2];
        UNROLL for (int c = 0; c < 2; c++) {
            float x[EIGHTS];
            UNROLL for (int r = 0; r < EIGHTS; r++) x[r] = s[r / 2][j][r % 2 * 2 + c];
            UNROLL for (int step = 1; step < EIGHTS; step *= 2)
                UNROLL for (int r = 0; r < EIGHTS; r += 2 * step) x[r] = fmaxf(x[r], x[r + step]);
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

DEVICE uint32_t bf16_words(uint32_t low, uint32_t high) { return round_pair(bits_float(low), bits_float(high)); }

/* The queries of the run's rows as operands, in the order in which keys are decoded. */
template <int TILES> DEVICE void load_columns(const float *q, int columns, quad *query)
{
    for (int i = threadIdx.x; i < TILES * CHUNKS * CUDA_WARP; i += DECODE_WARPS * CUDA_WARP) {
        int lane = i % CUDA_WARP, c = i / CUDA_WARP % CHUNKS, column = i / CUDA_WARP / CHUNKS * 8 + lane / 4;
        const quad *from = (const quad *)(q + (int64_t)column * DIM + lane % 4 * (DIM / 4) + 8 * c);
        quad out = {{0, 0, 0, 0}};
        if (column < columns) {
            quad a = from[0], b = from[1];
            bool neighbours = MMA_ONE_SUM && by_table(c);
            out.w[0] = bf16_words(a.w[0], neighbours ? a.w[1] : b.w[0]);
            out.w[1] = bf16_words(neighbours ? b.w[0] : a.w[1], b.w[1]);
            out.w[2] = bf16_words(a.w[2], b.w[2]), out.w[3] = bf16_words(a.w[3], b.w[3]);
        }
        query[i] = out;
    }
}

/* Blocks [begin, end) of the run. */
template <int TILES>
DEVICE void score_blocks(const index_decode_args &a, const decode_run &run, int begin, int end, const decode_shared &shared)
{
    int warp = threadIdx.x / CUDA_WARP, lane = known_here(threadIdx.x % CUDA_WARP), quarter = warp % DECODE_PIECES;
    int b = begin + warp / DECODE_PIECES, complete = run.position / CUDA_BLOCK_TOKENS, early = 0;
    const int32_t *table = a.rows.block_table + (int64_t)run.sequence * a.rows.block_table_stride;
    warp_pieces p;
    p.to = shared.lines + warp * (DECODE_STAGES * STAGE) + lane / 8 * LINE + LINE / 2 + lane % 8 * 16;
    p.keys = known_here(a.cache.base + a.layer_offset + quarter * KEYS_BYTES + 16 * lane);
    p.scales = known_here(a.cache.base + a.layer_offset + a.cache.index_scales + quarter * SCALES_BYTES + 2 * lane);
    p.row_bytes = (uint32_t)a.cache.row_bytes;
    p.count = b < end ? (end - b + AT_ONCE - 1) / AT_ONCE : 0;
    p.numbers = lane < p.count ? table[b + lane * AT_ONCE] : 0;
    uint32_t scales[EIGHTS] = {};
    /* Blocks that no row of the step writes are asked for while kernels before this one still run. */
    while (early < DECODE_STAGES && b + early * AT_ONCE < complete) ask_keys(p, early, p.to + early * STAGE), early++;
    if (early > 0) ask_scales(p, 0, scales);
    make_tables(shared.lines, shared.units);
    follow();
    if (early == 0) ask_scales(p, 0, scales);
    for (int n = early; n < DECODE_STAGES; n++) ask_keys(p, n, p.to + n * STAGE);
    load_columns<TILES>(a.q + (int64_t)run.row * a.heads * DIM, run.columns, shared.query);
    BLOCK_SYNC();
    float *most = shared.most + (warp / DECODE_PIECES * DECODE_PIECES + quarter) * (8 * TILES);
    int sees = run.position + 1 - b * CUDA_BLOCK_TOKENS - quarter * DECODE_PIECE;
    const quad *query = shared.query + lane;
    unsigned char *stage = p.to;
    for (int turn = 0; turn < p.count; turn++) {
        quad key[EIGHTS];
        uint32_t unit[EIGHTS][2];
        float s[EIGHTS / 2][TILES][4];
        copy_wait<DECODE_STAGES - 1>();
        UNROLL for (int r = 0; r < EIGHTS; r++) {
            key[r] = *(const quad *)(stage + 4 * LINE * r);
            unit[r][0] = shared.units[scales[r] & 0xFF], unit[r][1] = shared.units[scales[r] >> 8];
        }
        ask_keys(p, turn + DECODE_STAGES, stage);
        ask_scales(p, turn + 1, scales);
        score_keys<TILES>(key, unit, lane, shared.lines, query, s);
        if (sees < DECODE_PIECE) hide_unseen<TILES>(s, a.heads, lane, sees);
        most_of_piece<TILES>(s, lane, most);
        most += AT_ONCE * DECODE_PIECES * 8 * TILES, sees -= AT_ONCE * CUDA_BLOCK_TOKENS;
        stage = stage == p.to ? p.to + STAGE : p.to;
    }
    copy_wait<0>();
    BLOCK_SYNC();
    for (int i = threadIdx.x; i < (end - begin) * run.columns; i += DECODE_WARPS * CUDA_WARP) {
        int column = i % run.columns, block = i / run.columns;
        const float *parts = shared.most + block * (DECODE_PIECES * 8 * TILES) + column;
        float best = -INFINITY; /* where no score is a number */
        UNROLL for (int n = 0; n < DECODE_PIECES; n++) best = fmaxf(best, parts[n * (8 * TILES)]);
        a.scores[((int64_t)run.row * a.heads + column) * a.max_blocks + begin + block] = best * cached_undo<FORMAT>();
    }
}

/* ---- Choice ------------------------------------------------------------------------------------------------------ */

/* True: the row replays, and its lists are taken from there. Whole warps ask, one head each. */
DEVICE bool replayed(const index_decode_args &a, int row, int head)
{
    enum { ROW_REPLAY_BLOCKS = 2 };
    int lane = threadIdx.x % CUDA_WARP;
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

/* The upper half of key_of. Scores are numbers or -infinity here. */
DEVICE uint32_t order_of(float score, bool forced)
{
    uint32_t u = float_bits(score + 0.0f);
    return forced ? 0xFFFFFFFFu : u ^ ((0u - (u >> 31)) | 0x80000000u);
}

/* The best blocks of a row and head, by one warp. */
DEVICE uint64_t choose_alone(const float *scores, int visible, int local, int top)
{
    int lane = threadIdx.x % CUDA_WARP;
    uint64_t list = 0;
    for (int from = 0; from < visible; from += CUDA_WARP) {
        int b = from + lane;
        list = keep_best(list, top, b < visible ? key_of(load_fresh(scores + b), b, b >= visible - local) : 0);
    }
    return list;
}

/* What warps that choose have in common, in the memory that they scored with; a team of them for one row and head. */
struct choosing {
    uint32_t best[DECODE_WARPS * CUDA_WARP]; /* by threads */
    struct {
        uint64_t good[CHOOSE_ROOM]; /* keys not below the bar */
        int32_t list[INDEX_TOP];
        uint32_t bar, count; /* of good */
    } team[DECODE_WARPS];
    quad order[CHOOSE_MOST / 4]; /* of all keys, team by team */
};
static_assert(sizeof(choosing) <= DECODE_LINES * LINE, "room");

/* The best key of quads own, own + step .. of blocks; order: of all, for the whole team. A row of scores begins `ahead` numbers
 * behind a multiple of 16 bytes. */
DEVICE uint32_t order_blocks(const float *scores, int ahead, int visible, int forced, int own, int step, quad *order)
{
    enum { HELD = 4 };
    const quad *quads = (const quad *)(const void *)(scores - ahead);
    int count = (ahead + visible + 3) / 4;
    uint32_t best = 0;
    for (int from = own; from < count; from += HELD * step) {
        quad held[HELD];
        UNROLL for (int n = 0; n < HELD; n++) held[n] = load_fresh(quads + min(from + n * step, count - 1));
        UNROLL for (int n = 0; n < HELD; n++) {
            UNROLL for (int i = 0; i < 4; i++) {
                int b = 4 * (from + n * step) + i - ahead;
                held[n].w[i] = b >= 0 && b < visible ? order_of(bits_float(held[n].w[i]), b >= forced) : 0;
                best = max(best, held[n].w[i]);
            }
            if (from + n * step < count) order[from + n * step] = held[n];
        }
    }
    return best;
}

/*
 * Lists of all rows of a run whose scores are there, each by a team of warps. Keys come to 32 groups, one of every lane: as
 * many as a list takes are not below the `top`-th of the groups' best, and few more (of 4,096 keys 22 are to be expected
 * for 16). They are counted among each other. Where there is no room for them, a warp goes through all. One thread block
 * in many comes here, and fetches these instructions from afar, so loops stay loops.
 */
DEVICE void choose_blocks(const index_decode_args &a, const decode_run &run, choosing &all)
{
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, parts = 1; /* warps of a team */
    while (parts < DECODE_WARPS &&
           (2 * parts * run.columns <= DECODE_WARPS || DECODE_WARPS / parts * (run.visible + 6) > CHOOSE_MOST))
        parts *= 2;
    bool room = DECODE_WARPS / parts * (run.visible + 6) <= CHOOSE_MOST;
    int step = parts * CUDA_WARP, own = threadIdx.x % step;
    auto &team = all.team[warp / parts];
    quad *order = all.order + warp / parts * ((run.visible + 6) / 4);
    for (int first = 0; first < run.columns; first += DECODE_WARPS / parts) {
        int column = first + warp / parts, head = column % a.heads, i = column / a.heads;
        bool mine = column < run.columns;
        int visible = mine ? (run.position + i) / CUDA_BLOCK_TOKENS + 1 : 0, forced = visible - a.local;
        int64_t at = ((int64_t)(run.row + i) * a.heads + head) * a.max_blocks;
        const float *scores = a.scores + at;
        int ahead = (int)(at % 4), quads = room && mine ? (ahead + visible + 3) / 4 : 0;
        uint32_t best = quads ? order_blocks(scores, ahead, visible, forced, own, step, order) : 0;
        all.best[threadIdx.x] = best;
        if (own == 0) team.count = 0;
        if (own < INDEX_TOP) team.list[own] = INT32_MAX;
        BLOCK_SYNC();
        if (own == lane) {
            int place = 0;
            for (int p = 1; p < parts; p++) best = max(best, all.best[threadIdx.x + p * CUDA_WARP]);
            _Pragma("unroll 4") for (int other = 0; other < CUDA_WARP; other++) {
                uint32_t theirs = lane_get(best, other);
                place += theirs > best || (theirs == best && other < lane);
            }
            if (place == a.top - 1) team.bar = max(best, 1u);
        }
        BLOCK_SYNC();
        uint32_t bar = team.bar;
        _Pragma("unroll 2") for (int n = own; n < quads; n += step) {
            quad four = order[n];
            UNROLL for (int j = 0; j < 4; j++)
                if (four.w[j] >= bar) {
                    uint32_t place = count_up(&team.count, 1), b = (uint32_t)(4 * n + j - ahead);
                    if (place < CHOOSE_ROOM) team.good[place] = (uint64_t)four.w[j] << 32 | (0xFFFFFFFFu - b);
                }
        }
        BLOCK_SYNC();
        int count = (int)team.count;
        if (!room || count > CHOOSE_ROOM) {
            if (own == lane && mine) {
                uint64_t list = choose_alone(scores, visible, a.local, a.top);
                if (list) team.list[lane] = block_of(list);
            }
        } else {
            _Pragma("unroll 1") for (int n = own; n < count; n += step) {
                uint64_t good = team.good[n];
                int place = 0;
                _Pragma("unroll 4") for (int other = 0; other < count; other++) place += team.good[other] > good;
                if (place < a.top) team.list[place] = block_of(good);
            }
        }
        BLOCK_SYNC();
        if (own == lane && mine && !replayed(a, run.row + i, head)) {
            int block = team.list[lane], place = 0;
            _Pragma("unroll 4") for (int other = 0; other < INDEX_TOP; other++) {
                int theirs = team.list[other];
                place += theirs < block || (theirs == block && other < lane);
            }
            int32_t *out = a.blocks + ((int64_t)(run.row + i) * a.heads + head) * a.top;
            if (place < a.top) out[place] = block == INT32_MAX ? -1 : block;
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

template <int TILES> DEVICE void index_decode(const index_decode_args &a)
{
    SHARED(uint32_t, before, 1);
    decode_shared shared;
    shared.lines = DYNAMIC(unsigned char), shared.units = (uint32_t *)(void *)(shared.lines + DECODE_LINES * LINE);
    shared.query = (quad *)(void *)(shared.units + 256);
    shared.most = (float *)(void *)(shared.query + TILES * CHUNKS * CUDA_WARP);
    decode_run run;
    int row = blockIdx.x * a.group, end = a.group > 1 ? min(row + a.group, a.rows.count) : a.rows.count;
    run.row = row, run.rows = 1;
    run.sequence = a.rows.sequence[row], run.position = a.rows.position[row];
    bool begins = a.group > 1 || row == 0 || a.rows.sequence[row - 1] != run.sequence;
    while (row + run.rows < end && a.rows.sequence[row + run.rows] == run.sequence) run.rows++;
    run.columns = run.rows * a.heads;
    run.visible = (run.position + run.rows - 1) / CUDA_BLOCK_TOKENS + 1;
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
        score_blocks<TILES>(a, run, first, last, shared);
        BLOCK_SYNC();
        if (threadIdx.x == 0) before[0] = arrive(a.arrived + row, 1);
        BLOCK_SYNC();
        if ((int)before[0] + 1 == spans) {
            choose_blocks(a, run, *(choosing *)(void *)shared.lines);
            if (threadIdx.x == 0) a.arrived[row] = 0;
        }
    }
    if (span == 0 && a.group > 1 && run.sequence >= 0 && row + run.rows < end)
        take_all(a, row + run.rows, end - row - run.rows, true);
}

KERNEL_AHEAD_OF(index_decode_8, index_decode_args, DECODE_WARPS *CUDA_WARP, 3) { index_decode<1>(a); }
KERNEL_AHEAD_OF(index_decode_16, index_decode_args, DECODE_WARPS *CUDA_WARP, 2) { index_decode<2>(a); }
KERNEL_AHEAD_OF(index_decode_32, index_decode_args, DECODE_WARPS *CUDA_WARP, 2) { index_decode<4>(a); }
