/*
 * The routed experts of many rows on Hopper: the sums of experts.cu, product by product in the same order, as products of
 * warpgroups (their bits are those of mma.sync: probe.cu).
 *
 *     block   persistent, one a multiprocessor. A tile is 256 outputs of an expert (128 of gate and the same 128 of up) and up to
 *             144 of its members, all of K. Two warpgroups multiply, each twice 64 outputs: weights are A, from registers, where
 *             a code becomes bf16 once for all members of the tile; rows are B, from shared memory, 96 or 144 columns. A third
 *             warpgroup loads. Two blocks are a cluster: the same members, of whose rows each brings half to both
 *     order   a lane's codes are those of experts_tile.cuh, step for step; rows come in that order of k (wide_spread, wide_put):
 *             step s of 128 inputs has its k = 0..7 in 16-byte unit 2s and 8..15 in unit 2s + 1
 *     memory  a stage is 128 inputs: rows by one bulk copy a block, for they lie member by member, as slabs of swizzled lines;
 *             18,432 bytes of codes and scales by copy_async, into the order of lanes
 *     batch   two steps of both blocks. While one multiplies, the codes of the next are expanded; nothing between has a branch
 *     shapes  hidden a multiple of 256 and at most 16,384, the experts' width of 128
 *
 * Bound, of a tile and a stage with 144 columns: 2,304 cycles of the tensor cores. Beside them, in the same cycles:
 *     instructions   expanding: about 95 of a warp and batch, 3,000 of 9,200 issue slots, most of them on half a pipe
 *     shared memory  B 147 KB, codes in and out 37 KB, rows in 37 KB, of 295 KB
 *     second level   half the rows 18 KB, codes 18 KB: 16 bytes a cycle and multiprocessor, of about 25 to 30 that it gives; without
 *                    clusters 24
 * With 128 members an expert on the average, 4,096 rows of M3.1, tiles have 147 columns for 128 members: 2.2 ms at the tensor
 * cores' rate, and what members leave, 2,600 cycles for 32 of them in a tile's 100,000 of gate and up. With few members the memory is
 * the bound: 18 KB of codes a stage.
 */
#ifndef HAYATE_BACKEND_CUDA_EXPERTS_HOPPER_CUH
#define HAYATE_BACKEND_CUDA_EXPERTS_HOPPER_CUH

#include "backend/cuda/kernels/experts_hopper.h"
#include "backend/cuda/kernels/experts_tile.cuh"
#include "backend/cuda/kernels/hopper_columns.cuh"

/* Tiles of up to SOME and of up to MOST members. TOGETHER blocks have the same members and tiles of outputs one behind the
 * other; SHARE of them are a cluster, of which each brings its share of the rows to all. */
template <int SOME_, int MOST_, int STAGES_, int TOGETHER_> struct wide_layout {
    enum {
        SOME = SOME_,
        MOST = MOST_,
        STAGES = STAGES_,
        TOGETHER = TOGETHER_,
#ifdef HAYATE_EMULATED
        SHARE = 1,
#else
        SHARE = TOGETHER,
#endif
        CODES_AT = 2 * MOST * LINE_BYTES,
        SCALES_AT = CODES_AT + EXPERTS_HOPPER_OUTPUTS * EXPERTS_HOPPER_K / 2,
        STAGE = CODES_AT + EXPERTS_HOPPER_WEIGHTS,
        BARRIERS_AT = STAGES * STAGE,
        FIRSTS_AT = BARRIERS_AT + 256,                          /* [experts + 1] */
        LINES_AT = FIRSTS_AT + 4 * (EXPERTS_HOPPER_EXPERTS + 4),
        ORDER_AT = LINES_AT + 4 * EXPERTS_HOPPER_EXPERTS,
        MEMBERS_AT = ORDER_AT + 2 * EXPERTS_HOPPER_EXPERTS, /* [warpgroup][MOST] */
        FACTORS_AT = MEMBERS_AT + 8 * MOST,                     /* [warpgroup][MOST] */
        END = FACTORS_AT + 8 * MOST,
    };
    static_assert(STAGE % ATOM_BYTES == 0 && END <= STAGES * STAGE + EXPERTS_HOPPER_TABLES, "shared memory");
};

typedef wide_layout<EXPERTS_HOPPER_ROWS_SOME, EXPERTS_HOPPER_ROWS, EXPERTS_HOPPER_STAGES, EXPERTS_HOPPER_TOGETHER> wide_many;
typedef wide_layout<EXPERTS_HOPPER_ROWS_FEW / 2, EXPERTS_HOPPER_ROWS_FEW, EXPERTS_HOPPER_STAGES_FEW, 1> wide_few;

/* ---- Who takes what ---------------------------------------------------------------------------------------------- */

/* Rows of experts lie one expert behind the other, lines in eights. */
DEVICE int32_t wide_eights(int32_t count) { return (count + 7) / 8; }

/* A piece is up to `most` members of one expert, whole eights but the last. */
DEVICE int32_t wide_pieces_of(int32_t count, int32_t most) { return (8 * wide_eights(count) + most - 1) / most; }

/*
 * order[r]: the expert that is taken r-th. Those with the largest pieces come first, so that blocks have about as many of each size
 * and the last to end are short: of 4,096 rows with uniform routes the slowest block has 2 % more than the mean, not 4.
 * firsts[r]: pieces of the experts before; lines[e]: eights of the experts with a lower number. All threads.
 */
DEVICE void wide_plan(const experts_lists &lists, int32_t most, uint16_t *order, int32_t *firsts, int32_t *lines)
{
    int32_t experts = lists.experts, thread = (int32_t)threadIdx.x, lane = thread % CUDA_WARP, *sizes = firsts;
    for (int32_t e = thread; e < experts; e += (int32_t)blockDim.x) {
        int32_t count = lists.count[e], pieces = wide_pieces_of(count, most);
        sizes[e] = pieces ? (wide_eights(count) + pieces - 1) / pieces : 0;
    }
    BLOCK_SYNC();
    for (int32_t e = thread; e < experts; e += (int32_t)blockDim.x) {
        int32_t before = 0, mine = sizes[e];
        for (int32_t other = 0; other < experts; other++)
            before += sizes[other] > mine || (sizes[other] == mine && other < e);
        order[before] = (uint16_t)e;
    }
    BLOCK_SYNC();
    if (thread >= CUDA_WARP) return;
    int32_t pieces_before = 0, lines_before = 0;
    for (int32_t first = 0; first < experts; first += CUDA_WARP) {
        int32_t at = first + lane, pieces = at < experts ? wide_pieces_of(lists.count[order[at]], most) : 0;
        int32_t eights = at < experts ? wide_eights(lists.count[at]) : 0, pieces_sum = pieces, lines_sum = eights;
        UNROLL for (int d = 1; d < CUDA_WARP; d *= 2) {
            int32_t other = lane_get(pieces_sum, lane >= d ? lane - d : lane);
            int32_t other_lines = lane_get(lines_sum, lane >= d ? lane - d : lane);
            if (lane >= d) pieces_sum += other, lines_sum += other_lines;
        }
        if (at < experts) firsts[at] = pieces_before + pieces_sum - pieces, lines[at] = lines_before + lines_sum - eights;
        pieces_before += lane_get(pieces_sum, CUDA_WARP - 1);
        lines_before += lane_get(lines_sum, CUDA_WARP - 1);
    }
    if (lane == 0) firsts[experts] = pieces_before;
}

/* What wide_plan made. */
struct wide_tables {
    const uint16_t *order;
    const int32_t *firsts, *lines;
};

struct wide_tile {
    int32_t expert, tile; /* of outputs */
    bool idle;            /* no such tile: a block that has none beside the others of its cluster */
    int32_t first, rows;  /* members */
    int32_t line, lines;  /* of the rows: the first, and how many, in eights */
};

/* Piece `piece` of an expert's, whose rows begin at eight `line`. */
DEVICE void wide_piece(int32_t count, int32_t line, int32_t pieces, int32_t piece, wide_tile *p)
{
    int32_t eights = wide_eights(count), first = piece * eights / pieces, end = (piece + 1) * eights / pieces;
    p->first = 8 * first;
    p->rows = (8 * end < count ? 8 * end : count) - 8 * first;
    p->line = line + first;
    p->lines = end - first;
}

template <typename l> DEVICE wide_tables wide_tables_in(const unsigned char *shared)
{
    return {(const uint16_t *)(shared + l::ORDER_AT), (const int32_t *)(shared + l::FIRSTS_AT),
            (const int32_t *)(shared + l::LINES_AT)};
}

/* Blocks that are together take so many tiles of an expert's outputs as one. */
template <typename l> DEVICE int32_t wide_columns(int32_t tiles) { return (tiles + l::TOGETHER - 1) / l::TOGETHER; }

/* What they take, n of it. Tiles of an expert follow each other, pieces of the same outputs first: their weights come from memory
 * once. */
template <typename l>
DEVICE wide_tile wide_tile_at(const experts_lists &lists, const wide_tables &tables, int32_t tiles, int32_t n)
{
    int32_t low = 0, high = lists.experts, columns = wide_columns<l>(tiles); /* firsts[low] * columns <= n < .. high .. */
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (tables.firsts[middle] * columns <= n)
            low = middle;
        else
            high = middle;
    }
    int32_t pieces = tables.firsts[low + 1] - tables.firsts[low], at = n - tables.firsts[low] * columns;
    wide_tile p;
    p.expert = tables.order[low], p.tile = at / pieces * l::TOGETHER + (int32_t)blockIdx.x % l::TOGETHER;
    p.idle = p.tile >= tiles;
    if (p.idle) p.tile = tiles - 1;
    wide_piece(lists.count[p.expert], tables.lines[p.expert], pieces, at % pieces, &p);
    return p;
}

/* Byte of 16-byte unit `unit` (of 16) of member m of a piece in the 128 inputs `part`: slabs [128 inputs][64 inputs][lines of the
 * piece], swizzled lines. */
DEVICE int64_t wide_unit_at(const wide_tile &p, int32_t cols, int32_t part, int32_t m, int32_t unit)
{
    return (int64_t)p.line * 8 * cols * 2 + (int64_t)p.lines * 8 * (part * 256 + unit / 8 * 128) + tile_unit(m, unit % 8);
}

struct wide_place {
    int stage, parity;
};

template <typename l> DEVICE void wide_next(wide_place *at)
{
    if (++at->stage == l::STAGES) at->stage = 0, at->parity ^= 1;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* A row to all of its experts, in the order of tiles: words [4i + j][t] of words [t][i][j] of every 128 inputs, which is units
 * of 16 bytes of four blocks t each. A thread has 16 inputs; eight lanes that have words of the same units exchange them. */
DEVICE void wide_spread(const experts_spread_args &a, int32_t most)
{
    SHARED(uint32_t, part, 32);
    SHARED(wide_tile, to, EXPERTS_HOPPER_PLACES);
    SHARED(int32_t, place_of, EXPERTS_HOPPER_PLACES);
    int32_t row = blockIdx.x, group = threadIdx.x, groups = a.in.hidden / 16, per_token = a.lists.per_token;
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, warps = blockDim.x / CUDA_WARP, t = group / 2 % 4;
    if (a.sequence[row] < 0) return;
    bool there = group < groups;
    float x[16], factor = 1;
    uint32_t largest = 0;
    UNROLL for (int i = 0; i < 4; i++)
    {
        quad q = {{0, 0, 0, 0}};
        if (there) q = ((const quad *)(a.in.h + (int64_t)row * a.in.hidden))[group * 4 + i];
        UNROLL for (int j = 0; j < 4; j++) x[4 * i + j] = bits_float(q.w[j]);
    }
    const int32_t *routes = a.routes + (int64_t)row * per_token;
    for (int i = warp; i < per_token; i += warps) {
        int32_t expert = routes[i], line = 0;
        for (int32_t e = lane; e < expert; e += CUDA_WARP) line += wide_eights(a.lists.count[e]);
        for (int mask = 1; mask < CUDA_WARP; mask *= 2) line += lane_xor(line, mask);
        bool again = i > 0 && routes[i - 1] == expert; /* experts_plan takes the first */
        if (lane == 0 && !again) {
            int32_t count = a.lists.count[expert], eights = wide_eights(count), pieces = wide_pieces_of(count, most);
            int32_t m = a.lists.position[(int64_t)row * per_token + i];
            int32_t piece = ((m / 8 + 1) * pieces + eights - 1) / eights - 1; /* the last that begins at m / 8 or before */
            wide_piece(count, line, pieces, piece, &to[i]);
            place_of[i] = m - to[i].first;
        }
        if (lane == 0 && again) place_of[i] = -1;
    }
    UNROLL for (int i = 0; i < 16; i++) largest = experts_larger(largest, experts_magnitude(x[i]));
    for (int mask = 1; mask < CUDA_WARP; mask *= 2) largest = experts_larger(largest, lane_xor(largest, mask));
    if (lane == 0) part[warp] = largest;
    BLOCK_SYNC();
    if (a.in.quantise) {
        for (int i = 0; i < warps; i++) largest = experts_larger(largest, part[i]);
        float r = bits_float(largest);
        if (r < 1e-12f) r = 1e-12f;
        factor = 2688.0f / r;
        if (threadIdx.x == 0) a.in.factor[row] = round_bf16(r / 2688.0f);
    }
    uint32_t words[8];
    experts_in_group(a.in, x, factor, (uint16_t *)words);
    UNROLL for (int bit = 1; bit < 4; bit *= 2)
        UNROLL for (int k = 0; k < 8; k++)
        {
            if (k & bit) continue;
            bool upper = t & bit;
            uint32_t other = lane_xor(upper ? words[k] : words[k | bit], 2 * bit);
            if (upper)
                words[k] = other;
            else
                words[k | bit] = other;
        }
    for (int i = 0; i < per_token; i++) {
        if (!there || place_of[i] < 0) continue;
        UNROLL for (int k = 0; k < 2; k++)
        {
            int32_t unit = group % 2 * 8 + 4 * k + t;
            quad q = {{words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]}};
            *(quad *)((unsigned char *)a.in.out + wide_unit_at(to[i], a.in.hidden, group / 8, place_of[i], unit)) = q;
        }
    }
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* What a tile is made of. Slot 8q + 4b + w holds the 16 outputs that warp w of warpgroup q takes as its block b: of gate (b 0)
 * and up (b 1), or of down, where slot is the place in the tile. */
struct wide_source {
    const experts_lists *lists;
    const experts_weight *weight[2]; /* of block 0 and 1 */
    const uint16_t *in;
    int32_t cols, tiles;
    bool both; /* two weights */
};

/* Rows of a stage, of which each block of a cluster brings its share to all of them. */
template <typename l> DEVICE void wide_load_rows(unsigned char *stage, const uint8_t *rows, uint32_t bytes, arrivals *full)
{
    arrivals_expect(full, bytes);
    if (l::SHARE == 1) return copy_bulk(stage, rows, bytes, full);
    uint32_t share = bytes / l::SHARE, at = blockIdx.x % l::SHARE * share;
    copy_bulk_all(stage + at, rows + at, share, full);
}

/* Thread 0 .. 127 of who loads: rows by one bulk copy a stage, codes of eight slots by each thread. */
template <typename l>
DEVICE void wide_load(const wide_source &s, unsigned char *shared, arrivals *full, arrivals *empty, int thread)
{
    const wide_tables tables = wide_tables_in<l>(shared);
    const int32_t all = tables.firsts[s.lists->experts] * wide_columns<l>(s.tiles), stages = s.cols / EXPERTS_HOPPER_K;
    const int32_t of_tile = s.cols * 8 /* bytes of 16 outputs */;
    /* Quad (g, t) of eight outputs lies at g * 4 + (t ^ g / 2): neither who writes nor who reads meets at a bank. */
    const int q = thread % 64, block = q / 16, row = EXPERTS_PLACE(q % 16, block); /* which is at place q % 16 */
    const int place = row % 8 * 4 + (block ^ row % 8 / 2);
    unsigned char *codes_to = shared + l::CODES_AT + thread / 64 * 1024 + row / 8 * 512 + place * 16;
    unsigned char *scales_to = shared + l::SCALES_AT + thread * 16;
    wide_place at = {0, 0};
    for (int32_t n = (int32_t)blockIdx.x / l::TOGETHER; n < all; n += (int32_t)gridDim.x / l::TOGETHER) {
        wide_tile p = wide_tile_at<l>(*s.lists, tables, s.tiles, n);
        const uint8_t *code[2], *scale;
        {
            int half = thread / 64, slot = thread / 8;
            UNROLL for (int b = 0; b < 2; b++)
            {
                const experts_weight &w = *s.weight[b];
                int32_t first = p.tile * (s.both ? 8 : 16) + (s.both ? 0 : 4 * b) + half;
                code[b] = (const uint8_t *)w.first.data + p.expert * w.bytes + (int64_t)first * of_tile + q * 16;
            }
            const experts_weight &w = *s.weight[slot / 4 % 2];
            int32_t first = s.both ? p.tile * 8 + slot / 8 * 4 + slot % 4 : p.tile * 16 + slot;
            scale = (const uint8_t *)w.first.scales + p.expert * w.scale_bytes + (int64_t)first * s.cols + thread % 8 * 16;
        }
        const uint8_t *in = (const uint8_t *)s.in + wide_unit_at(p, s.cols, 0, 0, 0);
        const uint32_t bytes = (uint32_t)p.lines * 8 * 256;
        const int32_t second = (s.both ? 4 : 8) * of_tile; /* from warpgroup 0's to warpgroup 1's */
        for (int32_t j = 0; j < stages; j++, wide_next<l>(&at)) {
            unsigned char *stage = shared + at.stage * l::STAGE;
            arrivals_wait(&empty[at.stage], at.parity ^ 1);
            if (thread == 0) wide_load_rows<l>(stage, in + (int64_t)j * bytes, bytes, &full[at.stage]);
            UNROLL for (int i = 0; i < 8; i++) /* slot 2i + thread / 64 */
                copy_async(codes_to + at.stage * l::STAGE + i * 2048,
                           code[i / 2 % 2] + (i / 4) * second + (i % 2) * 2 * of_tile + j * 1024, true);
            copy_async(scales_to + at.stage * l::STAGE, scale + j * 128, true);
            copy_come(&full[at.stage]);
        }
    }
}

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

DEVICE void wide_hold(uint32_t (&weights)[2][2][4])
{
    UNROLL for (int b = 0; b < 2; b++)
        UNROLL for (int step = 0; step < 2; step++) wgmma_hold(weights[b][step]);
}

/* A warp is done with a stage: who brings rows there waits for those of all blocks that they go to. */
template <typename l> DEVICE void wide_release(arrivals *empty, int lane, bool done)
{
    if (l::SHARE == 1)
        arrivals_come_if(empty, lane == 0 && done);
    else
        arrivals_come_at_if(empty, lane % l::SHARE, lane < l::SHARE && done);
}

/* d0, d1 = the sums of one tile, of `slot` and slot + 4; `part`: bytes of 64 inputs of its rows. */
template <typename l, int N>
DEVICE void wide_sums(unsigned char *shared, arrivals *full, arrivals *empty, wide_place &at, int32_t stages, int32_t part,
                      int slot, int lane, float (&d0)[N / 2], float (&d1)[N / 2])
{
    const int g = lane / 4, t = lane % 4, quad_at = slot * 1024 + (g * 4 + (t ^ g / 2)) * 16;
    uint32_t weights[2][2][2][4]; /* [batch % 2][block][step] */
    UNROLL for (int b = 0; b < 2; b++)
        UNROLL for (int step = 0; step < 2; step++)
            UNROLL for (int k = 0; k < 4; k++) weights[1][b][step][k] = 0; /* held, not used */
    wgmma_clear(d0);
    wgmma_clear(d1);
    for (int32_t j = 0; j < stages; j++) {
        unsigned char *stage = shared + at.stage * l::STAGE;
        arrivals_wait(&full[at.stage], at.parity);
        uint32_t scales[2][2], word[2][2][2];
        UNROLL for (int b = 0; b < 2; b++)
            UNROLL for (int upper = 0; upper < 2; upper++)
                scales[b][upper] =
                    *(const uint16_t *)(stage + l::SCALES_AT + (slot + 4 * b) * 128 + t * 32 + (g + 8 * upper) * 2);
        UNROLL for (int i = 0; i < 4; i++) /* a batch: eight inputs of every lane, two steps */
        {
            UNROLL for (int b = 0; b < 2; b++)
            {
                uint32_t pairs[2][4];
                UNROLL for (int upper = 0; upper < 2; upper++)
                {
                    if (i % 2 == 0) {
                        uint64_t two = *(const uint64_t *)(stage + l::CODES_AT + quad_at + b * 4096 + upper * 512 + i * 4);
                        word[b][upper][0] = (uint32_t)two, word[b][upper][1] = (uint32_t)(two >> 32);
                    }
                    uint32_t unit[2];
                    experts_units(scales[b][upper], unit);
                    experts_pairs(word[b][upper][i % 2], pairs[upper]);
                    UNROLL for (int p = 0; p < 4; p++) pairs[upper][p] = multiply_pairs(pairs[upper][p], unit[i / 2]);
                }
                UNROLL for (int step = 0; step < 2; step++)
                    UNROLL for (int upper = 0; upper < 2; upper++)
                    {
                        weights[i % 2][b][step][upper] = pairs[upper][2 * step];
                        weights[i % 2][b][step][2 + upper] = pairs[upper][2 * step + 1];
                    }
            }
            uint64_t rows = matrix_of(stage + i / 2 * part, 0, ATOM_BYTES) + i % 2 * 2 * MATRIX_NEXT;
            wide_hold(weights[i % 2]); /* made by here, not between the products */
            wgmma_fence();
            UNROLL for (int step = 0; step < 2; step++)
            {
                wgmma<N>(d0, weights[i % 2][0][step], rows + step * MATRIX_NEXT);
                wgmma<N>(d1, weights[i % 2][1][step], rows + step * MATRIX_NEXT);
            }
            wgmma_commit();
            wgmma_wait<1>();
            wide_hold(weights[(i + 1) % 2]); /* the batch before is done with them */
            if (i == 0) {
                WARP_SYNC();
                wide_release<l>(&empty[at.stage ? at.stage - 1 : l::STAGES - 1], lane, j > 0);
            }
        }
        wide_next<l>(&at);
    }
    wgmma_wait<0>(d0);
    wgmma_hold(d1);
    wide_hold(weights[1]);
    WARP_SYNC();
    wide_release<l>(&empty[at.stage ? at.stage - 1 : l::STAGES - 1], lane, true);
}

/* ---- z and y ----------------------------------------------------------------------------------------------------- */

/* What a group of the quantiser is divided by, and the same the other way round. */
struct wide_unit {
    float scale, unit, inverse;
};

/* experts_code of a group's number that is a bf16: the quotient to the last bit in three steps where it is a tie (it has few
 * bits there, and no other is as near to a tie as these steps are off), then the nearest multiple of 1/2, 1 or 2. */
DEVICE float wide_code(float x, const wide_unit &u)
{
    float most = 6 * u.unit;
    x = fmaxf(fminf(x, most), -most);
    float q = x * u.inverse;
    q = fused(fused(-q, u.unit, x), u.inverse, q);
    float size = fabsf(q), round = size < 2 ? 0x1.8p22f : size < 4 ? 0x1.8p23f : 0x1.8p24f;
    return (q + round - round) * u.scale;
}

struct wide_finish_glu {
    const experts_glu_args &a;
    float gate_factor, up_factor; /* with NVFP4_SHIFT */
    const wide_tile &p;
    const float *factors;
    int32_t out, width;
    int g, t;
};

/*
 * z of members 32c .. 32c + 31 at outputs g and g + 8 of a tile of 16, which are a group of the quantiser. A lane has eight
 * groups with seven others (of other g): each of them takes the scale of one.
 * Order of tiles: of 128 inputs, unit 4i + j of 16 bytes has of each block t of 32 inputs elements j and j + 4 of its eight i, as
 * word t. Lanes of g < 4 write words of the lower eight outputs, the others of the upper.
 */
DEVICE void wide_put(const wide_finish_glu &f, int c, const float *gate, const float *up)
{
    float low[8], high[8];
    wide_unit own = {1, 1, 1};
    UNROLL for (int k = 0; k < 8; k++)
    {
        int32_t m = 32 * c + k / 2 * 8 + 2 * f.t + k % 2;
        float row_factor = m < f.p.rows ? f.factors[m] : 1, z[2];
        UNROLL for (int upper = 0; upper < 2; upper++)
        {
            int i = k / 2 * 4 + 2 * upper + k % 2;
            z[upper] = experts_swiglu(gate[i] * f.gate_factor * row_factor, up[i] * f.up_factor * row_factor, f.a.alpha,
                                      f.a.limit);
        }
        uint32_t rounded = round_pair(z[0], z[1]);
        low[k] = low_float(rounded), high[k] = high_float(rounded);
    }
    if (f.a.row_factor) {
        uint32_t most[8];
        UNROLL for (int k = 0; k < 8; k++) most[k] = experts_larger(experts_magnitude(low[k]), experts_magnitude(high[k]));
        UNROLL for (int half = 4; half > 0; half /= 2)
            UNROLL for (int k = 0; k < half; k++)
            {
                bool upper = f.g & half;
                uint32_t other = lane_xor(upper ? most[k] : most[k + half], 4 * half);
                most[k] = experts_larger(upper ? most[k + half] : most[k], other);
            }
        own.scale = float_of_e4m3(nvfp4_scale(bits_float(most[0]) / 6 * 16));
        own.inverse = reciprocal(own.scale * 0.0625f);
    }
    int64_t lines = wide_unit_at(f.p, f.width, f.out / 128, 0, f.out / 16 % 2 * 8);
    unsigned char *to = (unsigned char *)f.a.z + lines + f.out / 32 % 4 * 4;
    UNROLL for (int k = 0; k < 8; k++)
    {
        int32_t m = 32 * c + k / 2 * 8 + 2 * f.t + k % 2;
        if (f.a.row_factor) {
            wide_unit u = {lane_get(own.scale, 4 * k + f.t), 0, lane_get(own.inverse, 4 * k + f.t)};
            u.unit = u.scale * 0.0625f;
            low[k] = wide_code(low[k], u), high[k] = wide_code(high[k], u);
        }
        bool lower = f.g < 4;
        float other = lane_xor(lower ? high[k] : low[k], 16);
        uint32_t word = permute_bytes(float_bits(lower ? low[k] : other), float_bits(lower ? other : high[k]), 0x7632);
        if (m < f.p.rows) *(uint32_t *)(to + tile_unit(m, f.g)) = word;
    }
}

struct wide_finish_down {
    const experts_down_args &a;
    float factor; /* with NVFP4_SHIFT */
    const int32_t *members;
    int32_t rows, out, hidden;
    int g, t;
};

/* y of members 32c .. 32c + 31 at outputs g and g + 8 of two tiles of 16. */
DEVICE void wide_put(const wide_finish_down &f, int c, const float *first, const float *second)
{
    UNROLL for (int k = 0; k < 8; k++)
    {
        int32_t m = 32 * c + k / 2 * 8 + 2 * f.t + k % 2;
        if (m >= f.rows) continue;
        float *y = f.a.y + (int64_t)f.members[m] * f.hidden + f.out + f.g;
        UNROLL for (int part = 0; part < 4; part++)
        {
            const float *sums = part / 2 ? second : first;
            y[part / 2 * 64 + part % 2 * 8] = sums[k / 2 * 4 + part % 2 * 2 + k % 2] * f.factor * f.a.factor;
        }
    }
}

/* ---- A tile ------------------------------------------------------------------------------------------------------- */

DEVICE float wide_row_factor(const experts_glu_args &a, int32_t member)
{
    return a.row_factor ? a.row_factor[member / a.lists.per_token] : 1;
}

DEVICE float wide_row_factor(const experts_down_args &, int32_t) { return 1; }

DEVICE wide_finish_glu wide_finish_of(const experts_glu_args &a, const wide_tile &p, const int32_t *, const float *factors,
                                      int slot, int lane)
{
    return {a,
            a.gate.factors[p.expert] * NVFP4_SHIFT,
            a.up.factors[p.expert] * NVFP4_SHIFT,
            p,
            factors,
            (p.tile * 8 + slot / 8 * 4 + slot % 4) * 16,
            a.gate.first.rows,
            lane / 4,
            lane % 4};
}

DEVICE wide_finish_down wide_finish_of(const experts_down_args &a, const wide_tile &p, const int32_t *members, const float *,
                                       int slot, int lane)
{
    return {a,
            a.down.factors[p.expert] * NVFP4_SHIFT,
            members,
            p.rows,
            (p.tile * 16 + slot) * 16,
            a.down.first.rows,
            lane / 4,
            lane % 4};
}

/* What a warp that multiplies has. */
struct wide_worker {
    unsigned char *shared;
    arrivals *full, *empty;
    const int32_t *members;
    const float *factors;
    int32_t stages;
    int slot, lane, group;
};

/* All threads of a warpgroup. */
DEVICE void wide_meet(int group)
{
    if (group == 0)
        threads_meet<2, WARPGROUP>();
    else
        threads_meet<3, WARPGROUP>();
}

/* A tile of at most N members. The end is a loop, whose code is small: the sums move up, for registers have no index. */
template <typename l, int N, typename args>
DEVICE void wide_take(const args &a, const wide_tile &p, const wide_worker &w, wide_place &at)
{
    enum { SUMS = (N + 31) / 32 * 16 };
    float d0[N / 2], d1[N / 2];
    wide_sums<l, N>(w.shared, w.full, w.empty, at, w.stages, p.lines * 8 * LINE_BYTES, w.slot, w.lane, d0, d1);
    float first[SUMS], second[SUMS];
    UNROLL for (int i = 0; i < SUMS; i++) first[i] = i < N / 2 ? d0[i < N / 2 ? i : 0] : 0;
    UNROLL for (int i = 0; i < SUMS; i++) second[i] = i < N / 2 ? d1[i < N / 2 ? i : 0] : 0;
    auto finish = wide_finish_of(a, p, w.members, w.factors, w.slot, w.lane);
    wide_meet(w.group); /* members are there */
    const int32_t rows = p.idle ? 0 : p.rows;
    _Pragma("unroll 1") for (int c = 0; 32 * c < rows; c++)
    {
        wide_put(finish, c, first, second);
        UNROLL for (int i = 0; i + 16 < SUMS; i++) first[i] = first[i + 16], second[i] = second[i + 16];
    }
    wide_meet(w.group); /* and have been read */
}

/* As many columns as the tile needs, of two: of more nvcc keeps the sums apart, finds no registers for all of them, and has every
 * product waited for (C7512). */
template <typename l, typename args>
DEVICE void wide_take_tile(const args &a, const wide_tile &p, const wide_worker &w, wide_place &at)
{
    if (l::SOME < l::MOST && p.rows <= l::SOME)
        wide_take<l, l::SOME>(a, p, w, at);
    else
        wide_take<l, l::MOST>(a, p, w, at);
}

/* ---- The kernels ------------------------------------------------------------------------------------------------- */

/* Barriers and the table of pieces; then two warpgroups multiply and the third loads. */
template <typename l, typename args> DEVICE void wide_experts(const args &a, const wide_source &s)
{
    unsigned char *shared = TILES(unsigned char);
    arrivals *full = (arrivals *)(shared + l::BARRIERS_AT), *empty = full + l::STAGES;
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, warp = thread / CUDA_WARP, group = warp / 4;
    if (thread == 0) {
        for (int i = 0; i < l::STAGES; i++) {
            arrivals_init(&full[i], WARPGROUP + 1);
            arrivals_init(&empty[i], l::SHARE * 8);
        }
        arrivals_ready();
    }
    wide_plan(*s.lists, l::MOST, (uint16_t *)(shared + l::ORDER_AT), (int32_t *)(shared + l::FIRSTS_AT),
              (int32_t *)(shared + l::LINES_AT));
    if (l::SHARE > 1)
        cluster_meet();
    else
        BLOCK_SYNC();
    if (group == 2) {
        registers_give<40>();
        wide_load<l>(s, shared, full, empty, thread - 2 * WARPGROUP);
        return;
    }
    registers_take<232>();
    const wide_tables tables = wide_tables_in<l>(shared);
    const int32_t all = tables.firsts[s.lists->experts] * wide_columns<l>(s.tiles), stages = s.cols / EXPERTS_HOPPER_K;
    int32_t *members = (int32_t *)(shared + l::MEMBERS_AT) + group * l::MOST;
    float *factors = (float *)(shared + l::FACTORS_AT) + group * l::MOST;
    wide_place at = {0, 0};
    for (int32_t n = (int32_t)blockIdx.x / l::TOGETHER; n < all; n += (int32_t)gridDim.x / l::TOGETHER) {
        wide_tile p = wide_tile_at<l>(*s.lists, tables, s.tiles, n);
        const int32_t *list = s.lists->members + (int64_t)p.expert * s.lists->capacity + p.first;
        for (int m = thread % WARPGROUP; m < p.rows; m += WARPGROUP) {
            members[m] = list[m];
            factors[m] = wide_row_factor(a, list[m]);
        }
        wide_worker w = {shared, full, empty, members, factors, stages, group * 8 + warp % 4, lane, group};
        wide_take_tile<l>(a, p, w, at);
    }
    if (l::SHARE > 1) cluster_meet(); /* the others' last arrivals have come */
}

template <typename l> DEVICE void wide_glu(const experts_glu_args &a)
{
    wide_experts<l>(a, {&a.lists, {&a.gate, &a.up}, a.in, a.gate.first.cols, a.gate.first.rows / 128, true});
}

template <typename l> DEVICE void wide_down(const experts_down_args &a)
{
    wide_experts<l>(a, {&a.lists, {&a.down, &a.down}, a.z, a.down.first.cols, a.down.first.rows / 256, false});
}

#endif
