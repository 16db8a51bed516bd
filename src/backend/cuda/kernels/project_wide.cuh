/*
 * Projections of very many rows on Hopper: the sums of project.cuh, product by product in the same order, from weights that a
 * kernel before has expanded to bf16. Nobody who multiplies expands, both operands come by bulk copies.
 *
 *     block   persistent, one a multiprocessor, 128 rows by 128 outputs a tile. Two warpgroups multiply, 64 rows each: rows are
 *             A, weights are B, both from shared memory. One thread more loads. Two blocks are a cluster: the same rows, of
 *             which each brings half to both
 *     order   a step of 16 k has the inputs of fragment.cuh's step; inside of it the order is nothing: those of its thread t
 *             lie at 8t .. 8t + 7 of the step's 32 bytes, in rows and weights alike. A slice is one chain that starts with
 *             d = a . b; slices fold as in project_many.cuh. Of the three open sums those of one and of two slices are in
 *             registers, that of four is in shared memory, a thread's own places
 *     tile    a thread has whole pairs of neighbouring outputs of two rows, and four threads have a row of 128 outputs: a head
 *             is normed and turned where it is (qkv_wide.cu)
 *     shapes  K a multiple of 512, so that a slice is whole slabs; any number of outputs and rows
 *
 * Bound, of a tile and 16 k: 128 * 128 * 16 products = 128 cycles of the tensor cores. Beside them, in the same cycles, shared
 * memory gives 2 * (2 + 4) KB of operands and takes 8 KB of copies: 20 of 16 KB, which is what binds: 80 % of the tensor cores'
 * rate, some 760 TFLOP/s. On an H200 without folds 768 for q, k, v and index of 8,192 rows, 719 with them; without copies 896.
 * The second level of cache gives 24 KB for 64 k: with rows for four blocks (20 KB) it was no faster, with rows for one (32 KB)
 * 553. Four stages instead of five cost a tenth; seven, with the open sums in global memory, gain nothing. A loop that the
 * compiler unrolls makes it serialise the products: hence unroll 1, and wgmma_clear.
 */
#ifndef HAYATE_BACKEND_CUDA_PROJECT_WIDE_CUH
#define HAYATE_BACKEND_CUDA_PROJECT_WIDE_CUH

#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/project_wide.h"
#include "backend/cuda/kernels/swiglu.cuh"

/* What becomes of a tile. */
enum { WIDE_STORED, WIDE_GLU, WIDE_HEADS };

enum {
    WIDE_A_BLOCK = WIDE_LINES * LINE_BYTES, /* of a warpgroup */
    WIDE_A = WIDE_GROUPS * WIDE_A_BLOCK,
    WIDE_B = WIDE_OUTPUTS * LINE_BYTES,
    WIDE_OPEN_AT = WIDE_STAGES * WIDE_STAGE,
    WIDE_BARRIERS_AT = WIDE_OPEN_AT + WIDE_OPEN,
    WIDE_GROUP = WIDE_ACROSS / WIDE_TILE,
};

#ifdef HAYATE_EMULATED
enum { WIDE_TOGETHER = 1 };
#else
enum { WIDE_TOGETHER = WIDE_CLUSTER };
#endif

/* ---- What comes before --------------------------------------------------------------------------------------------- */

template <int FORMAT> DEVICE void wide_rows(const wide_rows_args &a)
{
    typedef fragment<FORMAT> f;
    int64_t i = (int64_t)blockIdx.x * WIDE_EXPAND_BLOCK + threadIdx.x;
    int32_t atoms = a.cols / WIDE_K, unit = (int32_t)(i % 8), line = (int32_t)(i / 8 % WIDE_LINES);
    int64_t atom = i / (8 * WIDE_LINES);
    int32_t row = (int32_t)(atom / atoms) * WIDE_LINES + line, step = (int32_t)(atom % atoms) * 4 + unit / 2;
    quad q = {{0, 0, 0, 0}};
    if (row < a.count) {
        const uint16_t *x = a.in + (int64_t)(a.rows ? a.rows[row] : row) * a.cols + step / f::STEPS * f::CHUNK +
                            step % f::STEPS * 4 + unit % 2 * 2 * f::VALUES;
        UNROLL for (int j = 0; j < 4; j++) q.w[j] = ((const uint32_t *)(x + j / 2 * f::VALUES))[j % 2];
    }
    *(quad *)((unsigned char *)a.packed + atom * (WIDE_LINES * LINE_BYTES) + tile_unit(line, unit)) = q;
}

/* Line `line` of a tile: its weight and which of its outputs; lines behind the last output have that one. In GLU lines 0..7 of
 * 16 are gate's and 8..15 up's of the same outputs, which so meet in one thread. */
DEVICE const kernel_weight *wide_line(const project_args &a, bool glu, int32_t tile, int line, int32_t *output)
{
    const kernel_weight *w = glu ? &a.part[line / 8 % 2].w : &part_of(a, &tile)->w;
    int32_t o = glu ? tile * (WIDE_OUTPUTS / 2) + line / 16 * 8 + line % 8 : tile * WIDE_OUTPUTS + line;
    *output = o < w->rows ? o : w->rows - 1;
    return w;
}

template <int FORMAT> DEVICE void wide_expand(const wide_expand_args &a)
{
    typedef fragment<FORMAT> f;
    int64_t i = (int64_t)blockIdx.x * WIDE_EXPAND_BLOCK + threadIdx.x;
    int32_t cols = a.of.part[0].w.cols, chunks = cols / f::CHUNK, t = (int32_t)(i % 4), chunk = (int32_t)(i / 4 % chunks);
    int64_t line = i / 4 / chunks;
    int32_t tile = (int32_t)(line / WIDE_OUTPUTS), output, of_tile = (int32_t)(line % WIDE_OUTPUTS);
    if (tile >= a.tiles) return;
    const kernel_weight *w = wide_line(a.of, a.glu != 0, a.first_tile + tile, of_tile, &output);
    codes c = load_codes<FORMAT, false>(w, output, chunk * f::CHUNK + t * f::VALUES, f::VALUES);
    decoded<FORMAT> v;
    decode<FORMAT>(c, &v);
    UNROLL for (int s = 0; s < f::STEPS; s++)
    {
        int32_t step = chunk * f::STEPS + s;
        int64_t atom = (int64_t)tile * (cols / WIDE_K) + step / 4;
        uint64_t *to = (uint64_t *)((unsigned char *)a.expanded + atom * (WIDE_OUTPUTS * LINE_BYTES) +
                                    tile_unit(of_tile, step % 4 * 2 + t / 2)) + t % 2;
        *to = v.pair[2 * s] | (uint64_t)v.pair[2 * s + 1] << 32;
    }
}

/* ---- Tiles ----------------------------------------------------------------------------------------------------------- */

struct wide_tile {
    int32_t row_tile, tile; /* the latter of those that are expanded */
    bool idle;              /* behind the last: a block that has none beside the other of its cluster */
};

/* The work of a cluster. */
DEVICE int32_t wide_items(const wide_args &a)
{
    return (a.tiles + WIDE_TOGETHER - 1) / WIDE_TOGETHER * a.row_tiles;
}

DEVICE wide_tile wide_tile_at(const wide_args &a, int32_t item)
{
    int32_t across = WIDE_GROUP * ((a.tiles + WIDE_TOGETHER - 1) / WIDE_TOGETHER);
    int32_t group = item / across, in_group = item - group * across, rows = a.row_tiles - group * WIDE_GROUP;
    if (rows > WIDE_GROUP) rows = WIDE_GROUP;
    wide_tile p;
    p.row_tile = group * WIDE_GROUP + in_group % rows;
    p.tile = in_group / rows * WIDE_TOGETHER + (int32_t)blockIdx.x % WIDE_TOGETHER;
    p.idle = p.tile >= a.tiles;
    if (p.idle) p.tile = a.tiles - 1;
    return p;
}

/* Where a block is in its ring: a stage, whose phase has parity `parity`. */
struct wide_place {
    int stage, parity;
};
DEVICE void move_on(wide_place *at)
{
    if (++at->stage == WIDE_STAGES) at->stage = 0, at->parity ^= 1;
}

/* The thread that loads. */
DEVICE void wide_load(const wide_args &a, unsigned char *shared, arrivals *full, arrivals *empty)
{
    const int32_t slabs = a.of.part[0].w.cols / WIDE_K;
    const int32_t clusters = (int32_t)gridDim.x / WIDE_TOGETHER, items = wide_items(a);
    enum { SHARE = WIDE_A_BLOCK / WIDE_TOGETHER };
    const int32_t mine = (int32_t)blockIdx.x % WIDE_TOGETHER * SHARE;
    wide_place at = {0, 0};
    for (int32_t item = (int32_t)blockIdx.x / WIDE_TOGETHER; item < items; item += clusters) {
        wide_tile p = wide_tile_at(a, item);
        const unsigned char *rows = (const unsigned char *)a.of.in + (int64_t)p.row_tile * slabs * WIDE_A + mine;
        const unsigned char *weights = (const unsigned char *)a.expanded + (int64_t)p.tile * slabs * WIDE_B;
        for (int32_t j = 0; j < slabs; j++, move_on(&at)) {
            unsigned char *stage = shared + at.stage * WIDE_STAGE;
            arrivals_wait(&empty[at.stage], at.parity ^ 1);
            arrivals_expect(&full[at.stage], WIDE_STAGE);
            UNROLL for (int g = 0; g < WIDE_GROUPS; g++)
                copy_bulk_all(stage + g * WIDE_A_BLOCK + mine, rows + ((int64_t)g * slabs + j) * WIDE_A_BLOCK, SHARE,
                              &full[at.stage]);
            copy_bulk(stage + WIDE_A, weights + (int64_t)j * WIDE_B, WIDE_B, &full[at.stage]);
        }
    }
}

enum { WIDE_SUMS = WIDE_OUTPUTS / 2 /* of a thread */, WIDE_NEXT = 4 * CUDA_WARP /* quad q of lane l lies at (q * 32 + l) * 4 */ };

DEVICE void wide_store(float *at, const float (&sum)[WIDE_SUMS])
{
    UNROLL for (int q = 0; q < WIDE_SUMS / 4; q++)
    {
        quad x;
        UNROLL for (int i = 0; i < 4; i++) x.w[i] = float_bits(sum[4 * q + i]);
        *(quad *)(at + q * WIDE_NEXT) = x;
    }
}
DEVICE void wide_add(const float *at, float (&sum)[WIDE_SUMS])
{
    UNROLL for (int q = 0; q < WIDE_SUMS / 4; q++)
    {
        quad x = *(const quad *)(at + q * WIDE_NEXT);
        UNROLL for (int i = 0; i < 4; i++) sum[4 * q + i] = bits_float(x.w[i]) + sum[4 * q + i];
        if (q % 4 == 3) wgmma_hold(sum); /* more loads at a time would want registers that there are not */
    }
}

/* Slices 2 * pair and 2 * pair + 1 are done, the first in `even` and the second in `sum`. `two` keeps sums of two slices and
 * `shared` those of four; the last pair folds all. */
DEVICE void wide_fold(int pair, const float (&even)[WIDE_SUMS], float (&sum)[WIDE_SUMS], float (&two)[WIDE_SUMS], float *shared)
{
    if (pair % 2 == 0) {
        UNROLL for (int i = 0; i < WIDE_SUMS; i++) two[i] = even[i] + sum[i];
        return;
    }
    UNROLL for (int i = 0; i < WIDE_SUMS; i++) sum[i] = two[i] + (even[i] + sum[i]);
    if (pair == 1)
        wide_store(shared, sum);
    else
        wide_add(shared, sum);
}

/* Where a warp that multiplies is. */
struct wide_walk {
    unsigned char *shared;
    arrivals *full, *empty;
    int group, lane;
    wide_place at;
    int emptied; /* stage whose products are on their way, or -1 */
};

DEVICE void wide_release(wide_walk *w)
{
    if (w->emptied < 0) return;
    WARP_SYNC();
    if (WIDE_TOGETHER == 1 && w->lane == 0) arrivals_come(&w->empty[w->emptied]);
    if (WIDE_TOGETHER > 1 && w->lane < WIDE_TOGETHER) arrivals_come_at(&w->empty[w->emptied], w->lane);
    w->emptied = -1;
}

/* A slice: sum = the products of `slabs` slabs. Its last ones are on their way behind it. */
DEVICE void wide_chain(wide_walk *w, float (&sum)[WIDE_SUMS], int32_t slabs)
{
    int32_t i = 0;
    _Pragma("unroll 1") do { /* at least once, or the compiler moves sums between registers while products are on their way to them */
        const unsigned char *stage = w->shared + w->at.stage * WIDE_STAGE;
        uint64_t rows = matrix_of(stage + w->group * WIDE_A_BLOCK, 0, ATOM_BYTES);
        uint64_t weights = matrix_of(stage + WIDE_A, 0, ATOM_BYTES);
        arrivals_wait(&w->full[w->at.stage], w->at.parity);
        wgmma_fence();
        UNROLL for (int k = 0; k < WIDE_K / 16; k++)
            wgmma_shared<WIDE_OUTPUTS>(sum, rows + k * MATRIX_NEXT, weights + k * MATRIX_NEXT, k > 0 || i > 0);
        wgmma_commit();
        wgmma_wait<1>();
        wide_release(w);
        w->emptied = w->at.stage;
        move_on(&w->at);
    } while (++i < slabs);
}

/* All products are done. */
DEVICE void wide_rest(wide_walk *w, float (&even)[WIDE_SUMS], float (&sum)[WIDE_SUMS])
{
    wgmma_wait<0>(sum);
    wgmma_hold(even);
    wide_release(w);
}

/* ---- What becomes of them ---------------------------------------------------------------------------------------- */

/* `row`: the first of the thread's two, row + 8 the other; t: of its outputs 8c + 2t and 8c + 2t + 1. */
template <bool GLU>
DEVICE void wide_put(const wide_args &a, const wide_tile &p, const float (&sum)[WIDE_SUMS], int32_t row, int t)
{
    int32_t tile = a.first_tile + p.tile;
    const project_part *part = GLU ? &a.of.part[0] : part_of(a.of, &tile);
    const int32_t outputs = part->w.rows;
    const bool scaled = part->w.format == KERNEL_NVFP4;
    UNROLL for (int h = 0; h < 2; h++)
    {
        int32_t r = row + 8 * h;
        if (r >= a.of.count) continue;
        if (GLU) {
            const float gate = a.of.part[0].w.factor * NVFP4_SHIFT, up = a.of.part[1].w.factor * NVFP4_SHIFT;
            uint16_t *z = a.of.z + (int64_t)r * outputs;
            UNROLL for (int c = 0; c < WIDE_OUTPUTS / 8; c += 2)
                UNROLL for (int e = 0; e < 2; e++)
                {
                    int32_t o = tile * (WIDE_OUTPUTS / 2) + 4 * c + 2 * t + e;
                    float y[2] = {sum[4 * c + 2 * h + e], sum[4 * c + 4 + 2 * h + e]};
                    if (scaled) y[0] *= gate, y[1] *= up;
                    if (o < outputs) z[o] = bf16_of_float(swiglu_of(y[0], y[1], a.of.law));
                }
        } else {
            const float factor = part->w.factor * NVFP4_SHIFT;
            const int32_t first = tile * WIDE_OUTPUTS + 2 * t;
            float *out = part->out + r * part->stride + first;
            bool pairs = first + WIDE_OUTPUTS - 7 <= outputs && (reinterpret_cast<uintptr_t>(out) & 7) == 0;
            if (pairs && !part->add) {
                UNROLL for (int c = 0; c < WIDE_OUTPUTS / 8; c++)
                {
                    float y[2] = {sum[4 * c + 2 * h], sum[4 * c + 2 * h + 1]};
                    if (scaled) y[0] *= factor, y[1] *= factor;
                    *(uint64_t *)(out + 8 * c) = float_bits(y[0]) | (uint64_t)float_bits(y[1]) << 32;
                }
            } else if (pairs) {
                UNROLL for (int c0 = 0; c0 < WIDE_OUTPUTS / 8; c0 += 8)
                {
                    uint64_t was[8]; /* all on their way before the first is changed */
                    UNROLL for (int c = 0; c < 8; c++) was[c] = *(const uint64_t *)(out + 8 * (c0 + c));
                    UNROLL for (int c = 0; c < 8; c++)
                    {
                        float y[2] = {sum[4 * (c0 + c) + 2 * h], sum[4 * (c0 + c) + 2 * h + 1]};
                        if (scaled) y[0] *= factor, y[1] *= factor;
                        y[0] = bits_float((uint32_t)was[c]) + y[0], y[1] = bits_float((uint32_t)(was[c] >> 32)) + y[1];
                        *(uint64_t *)(out + 8 * (c0 + c)) = float_bits(y[0]) | (uint64_t)float_bits(y[1]) << 32;
                    }
                }
            } else {
                UNROLL for (int c = 0; c < WIDE_OUTPUTS / 8; c++)
                    UNROLL for (int e = 0; e < 2; e++)
                    {
                        float y = sum[4 * c + 2 * h + e];
                        if (scaled) y *= factor;
                        if (first + 8 * c + e < outputs) out[8 * c + e] = part->add ? out[8 * c + e] + y : y;
                    }
            }
        }
    }
}

/* What a thread does before all tiles, and with a tile of WIDE_HEADS. `own`: 16 rows of 128 numbers of shared memory, the warp's; row: the first of
 * the thread's two; more: WIDE_MORE bytes of shared memory. The others have none. */
DEVICE void wide_begin(const wide_args &, float *) {}
DEVICE void wide_heads(const wide_args &, const wide_tile &, float (&)[WIDE_SUMS], float *, const float *, int32_t) {}

/* `all` is what wide_heads gets. */
template <int MODE, typename arguments> DEVICE void project_wide(const arguments &all, const wide_args &a)
{
    unsigned char *shared = TILES(unsigned char);
    arrivals *full = (arrivals *)(shared + WIDE_BARRIERS_AT), *empty = full + WIDE_STAGES;
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, warp = thread / CUDA_WARP;
    float *more = (float *)(shared + WIDE_BARRIERS_AT + WIDE_BARRIERS);
    if (MODE == WIDE_HEADS) wide_begin(all, more);
    if (thread == 0) {
        for (int i = 0; i < WIDE_STAGES; i++) {
            arrivals_init(&full[i], 1);
            arrivals_init(&empty[i], WIDE_TOGETHER * (WIDE_GROUPS * WARPGROUP / CUDA_WARP));
        }
        arrivals_ready();
    }
    if (WIDE_TOGETHER > 1)
        cluster_meet();
    else
        BLOCK_SYNC();
    if (thread >= WIDE_GROUPS * WARPGROUP) {
        registers_give<40>();
        if (thread == WIDE_GROUPS * WARPGROUP) wide_load(a, shared, full, empty);
    } else {
        registers_take<232>();
        const int32_t slabs = a.of.part[0].w.cols / (PROJECT_SLICES * WIDE_K); /* of a slice */
        const int32_t clusters = (int32_t)gridDim.x / WIDE_TOGETHER, items = wide_items(a);
        float *open = (float *)(shared + WIDE_OPEN_AT) + warp * (16 * WIDE_OUTPUTS);
        float sum[WIDE_SUMS], even[WIDE_SUMS], two[WIDE_SUMS];
        wide_walk walk = {shared, full, empty, warp / 4, lane, {0, 0}, -1};
        for (int32_t item = (int32_t)blockIdx.x / WIDE_TOGETHER; item < items; item += clusters) {
            /* Chains begin with d = a . b; but what is not set has registers while a tile is stored. */
            WARP_SYNC();
            wgmma_clear(sum);
            wgmma_clear(even);
            wgmma_clear(two);
            _Pragma("unroll 1") for (int pair = 0; pair < PROJECT_SLICES / 2; pair++) {
                wide_chain(&walk, even, slabs);
                wide_chain(&walk, sum, slabs);
                wide_rest(&walk, even, sum);
                wide_fold(pair, even, sum, two, open + lane * 4);
            }
            wide_tile p = wide_tile_at(a, item);
            int32_t row = p.row_tile * WIDE_TILE + warp * 16 + lane / 4;
            if (p.idle) {
            } else if (MODE == WIDE_HEADS) {
                WARP_SYNC(); /* all lanes have added their open sums */
                wide_heads(all, p, sum, open, more, row);
                WARP_SYNC();
            } else {
                wide_put<MODE == WIDE_GLU>(a, p, sum, row, lane % 4);
            }
        }
    }
    if (WIDE_TOGETHER > 1) cluster_meet(); /* the other's last arrivals have come */
}

#endif
