/*
 * Projections of many rows on Hopper: the sums of project.cuh, product by product in the same order, as products of
 * warpgroups. Whether their bits are those of mma.sync is the hardware's to say: probe.cu.
 *
 *     block   persistent, one a multiprocessor, 128 outputs by 128 rows a tile. Two warpgroups multiply, 64 outputs each:
 *             weights are A, from registers, where a code becomes bf16 once for 128 rows; rows are B, from shared memory. A
 *             third warpgroup loads
 *     order   a thread's codes are those of fragment.cuh, and rows come packed in that order of k: line `row` of a slab has
 *             for MMA s in its units 2s and 2s + 1 the k = 0..7 and 8..15 of fragment.cuh's step. A slice is one chain that
 *             starts with d = a . b; slices fold as in project_many.cuh. Of the three open sums the one of a single slice is
 *             in registers, that of two in shared and that of four in global memory, 64 KB each
 *     memory  a stage is a slab of K (64, nvfp4 128): rows by one bulk copy of 16 or 32 KB, lines of 64 bytes of codes by
 *             copy_async as they lie in the file; scales 16 bytes an output at a time, for 8 or 2 slabs
 *     shapes  K a multiple of eight slabs, so that a slice is whole slabs; any number of outputs and rows
 *
 * Bound, of a tile and 16 k: 128 * 128 * 16 products = 128 cycles of the tensor cores (2,048 products a cycle), that is 64 for
 * each m64n128k16. Beside them, in the same 128 cycles, for mxfp8:
 *     instructions   of a warp for 64 k, in which its warpgroup multiplies for 256 cycles: 165 (nvfp4 200, bf16 65) as nvcc 13.0
 *                    compiles them, so of the two warpgroups 330 (400, 130) of 512 issue slots
 *     shared memory  B twice 4 KB, copies in 6 KB, codes out 2 KB: 16 KB of 128 cycles * 128 bytes, all of it
 *     second level   (128 + 256) * 16 = 6 KB: 48 bytes a cycle and multiprocessor, of about 45 that it gives; nvfp4 41, bf16 64
 * So the second-level cache is the bound, near 90 % of the tensor cores' rate for mxfp8 and all of it for nvfp4 (70 % for
 * bf16), less the folds (six passes over 64 KB a tile: 3,000 of 49,000 cycles at K 6,144), the stores (2,000) and the last
 * wave's gap. Packing reads and writes 2 bytes a value once: 3 % of a projection of 9,856 outputs.
 */
#ifndef HAYATE_BACKEND_CUDA_PROJECT_HOPPER_CUH
#define HAYATE_BACKEND_CUDA_PROJECT_HOPPER_CUH

#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/project_hopper.h"
#include "backend/cuda/kernels/swiglu.cuh"

/* What becomes of a tile. */
enum { HOPPER_STORED, HOPPER_GLU, HOPPER_HEADS };

template <int FORMAT_, int MODE_> struct slab {
    static constexpr int FORMAT = FORMAT_, MODE = MODE_;
    enum {
        CHUNK = fragment<FORMAT>::CHUNK,
        K = FORMAT == KERNEL_NVFP4 ? HOPPER_K_NVFP4 : FORMAT == KERNEL_MXFP8 ? HOPPER_K_MXFP8 : HOPPER_K_BF16,
        CHUNKS = K / CHUNK,
        PARTS = K / 64, /* batches of four products */
        STAGES = MODE == HOPPER_HEADS     ? HOPPER_STAGES_HEADS
                 : FORMAT == KERNEL_NVFP4 ? HOPPER_STAGES_NVFP4
                 : FORMAT == KERNEL_MXFP8 ? HOPPER_STAGES_MXFP8
                                          : HOPPER_STAGES_BF16,
        ROWS = PARTS * HOPPER_ROWS * LINE_BYTES,
        PLANE = HOPPER_OUTPUTS * 64, /* codes of a chunk */
        STAGE = ROWS + CHUNKS * PLANE,
        PER = FORMAT == KERNEL_NVFP4 ? 2 : 8, /* slabs of 16 bytes of scales */
        SLOTS = FORMAT == KERNEL_NVFP4 ? HOPPER_SLOTS_NVFP4 : FORMAT == KERNEL_MXFP8 ? HOPPER_SLOTS_MXFP8 : 0,
        SCALED = FORMAT != KERNEL_BF16,
        RING = FORMAT != KERNEL_BF16 ? SLOTS : 1,
        SLOT = HOPPER_OUTPUTS * 16,
        OPEN_AT = STAGES * STAGE,
        TILE_AT = OPEN_AT + HOPPER_OPEN, /* a finished tile on its way to whom heads_take belongs */
        SCALES_AT = TILE_AT + (MODE == HOPPER_HEADS ? HOPPER_OPEN : 0),
        BARRIERS_AT = SCALES_AT + SLOTS * SLOT,
    };
    /* A slot is written again with slab n + PER * SLOTS, when slab n + PER * SLOTS - STAGES has been done with. */
    static_assert(!SCALED || PER * SLOTS - (PER - 1) >= STAGES, "scales are overwritten while they are needed");
};

template <int FORMAT> DEVICE void pack_rows(const pack_args &a)
{
    typedef fragment<FORMAT> f;
    int64_t i = (int64_t)blockIdx.x * PACK_BLOCK + threadIdx.x;
    int32_t atoms = a.cols / 64, unit = (int32_t)(i % 8), line = (int32_t)(i / 8 % HOPPER_ROWS);
    int64_t atom = i / (8 * HOPPER_ROWS);
    int32_t row = (int32_t)(atom / atoms) * HOPPER_ROWS + line, step = (int32_t)(atom % atoms) * 4 + unit / 2;
    if (atom / atoms >= (a.count + HOPPER_ROWS - 1) / HOPPER_ROWS) return;
    quad q = {{0, 0, 0, 0}};
    if (row < a.count) {
        const uint16_t *x = a.in + (int64_t)(a.rows ? a.rows[row] : row) * a.cols + step / f::STEPS * f::CHUNK +
                            step % f::STEPS * 4 + unit % 2 * 2;
        UNROLL for (int t = 0; t < 4; t++) q.w[t] = *(const uint32_t *)(x + t * f::VALUES);
    }
    *(quad *)((unsigned char *)a.packed + atom * (HOPPER_ROWS * LINE_BYTES) + tile_unit(line, unit)) = q;
}

struct hopper_tile {
    const project_part *part; /* of GLU the first of both */
    int32_t output, row_tile; /* the first output */
};

template <bool GLU> DEVICE hopper_tile hopper_tile_at(const project_hopper_args &a, int32_t tile)
{
    int32_t group = tile / (HOPPER_GROUP * a.output_tiles), in_group = tile - group * (HOPPER_GROUP * a.output_tiles);
    int32_t rows = a.row_tiles - group * HOPPER_GROUP;
    if (rows > HOPPER_GROUP) rows = HOPPER_GROUP;
    hopper_tile p;
    p.row_tile = group * HOPPER_GROUP + in_group % rows;
    int32_t block = in_group / rows;
    p.part = GLU ? &a.of.part[0] : part_of(a.of, &block);
    p.output = block * (GLU ? HOPPER_OUTPUTS / 2 : HOPPER_OUTPUTS);
    return p;
}

/* The weight of line `line` of a tile, and which of its rows; lines behind the last output have that one. In GLU lines 0..7 of 16
 * are gate's and 8..15 up's of the same outputs, which so meet in one thread. */
template <bool GLU> DEVICE const kernel_weight *hopper_line(const project_hopper_args &a, const hopper_tile &p, int line,
                                                            int32_t *output)
{
    const kernel_weight *w = GLU ? &a.of.part[line / 8 % 2].w : &p.part->w;
    int32_t o = p.output + (GLU ? line / 16 * 8 + line % 8 : line);
    *output = o < w->rows ? o : w->rows - 1;
    return w;
}

/* Where a block is in its ring: slab n of all that it does, in stage `stage`, whose phase has parity `parity`. */
template <typename s> struct ring_place {
    int32_t n;
    int stage, parity;
};

template <typename s> DEVICE void move_on(ring_place<s> *at)
{
    at->n++;
    if (++at->stage == s::STAGES) at->stage = 0, at->parity ^= 1;
}

/* The warpgroup that loads; thread 0 .. 127 of it. */
template <typename s>
DEVICE void hopper_load(const project_hopper_args &a, unsigned char *shared, arrivals *full, arrivals *empty, int thread)
{
    constexpr bool GLU = s::MODE == HOPPER_GLU;
    const int32_t cols = a.of.part[0].w.cols, slabs = cols / s::K, code_bits = 128 / fragment<s::FORMAT>::VALUES;
    ring_place<s> at = {0, 0, 0};
    for (int32_t tile = (int32_t)blockIdx.x; tile < a.row_tiles * a.output_tiles; tile += (int32_t)gridDim.x) {
        hopper_tile p = hopper_tile_at<GLU>(a, tile);
        const unsigned char *rows = (const unsigned char *)a.of.in + (int64_t)p.row_tile * slabs * s::ROWS;
        const uint8_t *code[4], *scale;
        int32_t output;
        UNROLL for (int i = 0; i < 4; i++)
        {
            const kernel_weight *w = hopper_line<GLU>(a, p, thread / 4 + 32 * i, &output);
            code[i] = (const uint8_t *)w->data + (int64_t)output * cols * code_bits / 8 + thread % 4 * 16;
        }
        const kernel_weight *w = hopper_line<GLU>(a, p, thread, &output);
        scale = (const uint8_t *)w->scales + (int64_t)output * (slabs / s::PER * 16);
        for (int32_t j = 0; j < slabs; j++, move_on(&at)) {
            unsigned char *stage = shared + at.stage * s::STAGE;
            arrivals_wait(&empty[at.stage], at.parity ^ 1);
            if (thread == 0) {
                arrivals_expect(&full[at.stage], s::ROWS);
                copy_bulk(stage, rows + (int64_t)j * s::ROWS, s::ROWS, &full[at.stage]);
            }
            UNROLL for (int i = 0; i < 4; i++)
                UNROLL for (int c = 0; c < s::CHUNKS; c++)
                    copy_async(stage + s::ROWS + c * s::PLANE + (thread + 128 * i) * 16,
                               code[i] + (int64_t)j * (64 * s::CHUNKS) + 64 * c, true);
            if (s::SCALED != 0 && j % s::PER == 0)
                copy_async(shared + s::SCALES_AT + at.n / s::PER % s::RING * s::SLOT + thread * 16,
                           scale + j / s::PER * 16, true);
            copy_come(&full[at.stage]);
        }
    }
}

/* The same for HOPPER_HEADS by one warp: the outputs of a weight are whole tiles, so that lines are at one distance. */
template <typename s>
DEVICE void hopper_load_heads(const project_hopper_args &a, unsigned char *shared, arrivals *full, arrivals *empty, int lane)
{
    enum { TURNS = HOPPER_OUTPUTS * 4 / CUDA_WARP, LINES = CUDA_WARP / 4 };
    const int32_t cols = a.of.part[0].w.cols, slabs = cols / s::K, code_bits = 128 / fragment<s::FORMAT>::VALUES;
    const int64_t line_bytes = (int64_t)cols * code_bits / 8, scale_bytes = slabs / s::PER * 16;
    ring_place<s> at = {0, 0, 0};
    for (int32_t tile = (int32_t)blockIdx.x; tile < a.row_tiles * a.output_tiles; tile += (int32_t)gridDim.x) {
        hopper_tile p = hopper_tile_at<false>(a, tile);
        const unsigned char *rows = (const unsigned char *)a.of.in + (int64_t)p.row_tile * slabs * s::ROWS;
        const uint8_t *code = (const uint8_t *)p.part->w.data + (p.output + lane / 4) * line_bytes + lane % 4 * 16;
        const uint8_t *scale = (const uint8_t *)p.part->w.scales + (p.output + lane) * scale_bytes;
        for (int32_t j = 0; j < slabs; j++, move_on(&at)) {
            unsigned char *stage = shared + at.stage * s::STAGE;
            arrivals_wait(&empty[at.stage], at.parity ^ 1);
            if (lane == 0) {
                arrivals_expect(&full[at.stage], s::ROWS);
                copy_bulk(stage, rows + (int64_t)j * s::ROWS, s::ROWS, &full[at.stage]);
            }
            UNROLL for (int c = 0; c < s::CHUNKS; c++)
                UNROLL for (int i = 0; i < TURNS; i++)
                    copy_async(stage + s::ROWS + c * s::PLANE + (lane + CUDA_WARP * i) * 16,
                               code + LINES * i * line_bytes + (int64_t)j * (64 * s::CHUNKS) + 64 * c, true);
            if (s::SCALED != 0 && j % s::PER == 0)
                UNROLL for (int i = 0; i < HOPPER_OUTPUTS / CUDA_WARP; i++)
                    copy_async(shared + s::SCALES_AT + at.n / s::PER % s::RING * s::SLOT + (lane + CUDA_WARP * i) * 16,
                               scale + CUDA_WARP * i * scale_bytes + j / s::PER * 16, true);
            copy_come(&full[at.stage]);
        }
    }
}

/* What a thread multiplies in the 64 k of part `part` of a slab (of NVFP4 one of two), of lines `line` and line + 8. */
template <typename s>
DEVICE void hopper_expand(const unsigned char *shared, const ring_place<s> &at, int part, int line, int t, uint32_t a[4][4])
{
    constexpr int FORMAT = s::FORMAT;
    const unsigned char *stage = shared + at.stage * s::STAGE + s::ROWS;
    const unsigned char *scales = shared + s::SCALES_AT + at.n / s::PER % s::RING * s::SLOT + at.n % s::PER * (16 / s::PER);
    uint32_t pair[2][8], scale[2] = {0, 0};
    UNROLL for (int h = 0; h < 2; h++)
    {
        int l = line + 8 * h;
        if (FORMAT == KERNEL_NVFP4) {
            const uint32_t *word = (const uint32_t *)(stage + l * 64 + t * 16) + part * 2;
            uint32_t unit = nvfp4_unit(scales[l * 16 + t * 2 + part]);
            nvfp4_pairs(word[0], unit, pair[h]);
            nvfp4_pairs(word[1], unit, pair[h] + 4);
        } else if (FORMAT == KERNEL_MXFP8) {
            quad q = *(const quad *)(stage + l * 64 + t * 16);
            scale[h] = scales[l * 16 + t / 2];
            uint32_t unit = mxfp8_unit(scale[h]);
            UNROLL for (int i = 0; i < 4; i++) e4m3_pairs_permuted(q.w[i], pair[h] + 2 * i);
            UNROLL for (int i = 0; i < 8; i++) pair[h][i] = multiply_pairs(pair[h][i], unit);
        } else {
            UNROLL for (int c = 0; c < 2; c++)
            {
                quad q = *(const quad *)(stage + c * s::PLANE + l * 64 + t * 16);
                UNROLL for (int i = 0; i < 4; i++) pair[h][4 * c + i] = q.w[i];
            }
        }
    }
    if (FORMAT == KERNEL_MXFP8 && max(scale[0], scale[1]) > MXFP8_UNIT_MOST)
        UNROLL for (int h = 0; h < 2; h++)
        {
            uint32_t rest = scale[h] > MXFP8_UNIT_MOST ? mxfp8_unit_rest(scale[h]) : 0x3F803F80u;
            UNROLL for (int i = 0; i < 8; i++) pair[h][i] = multiply_pairs(pair[h][i], rest);
        }
    UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int k = 0; k < 4; k++) a[k][h] = pair[h][2 * k], a[k][2 + h] = pair[h][2 * k + 1];
}

enum { HOPPER_SUMS = HOPPER_ROWS / 2 }; /* of a thread */

DEVICE void store_four(float *at, const float x[4])
{
    quad q;
    UNROLL for (int i = 0; i < 4; i++) q.w[i] = float_bits(x[i]);
    *(quad *)at = q;
}
DEVICE void add_four(const float *at, float x[4])
{
    quad q = *(const quad *)at;
    UNROLL for (int i = 0; i < 4; i++) x[i] = bits_float(q.w[i]) + x[i];
}

enum { NEXT = 4 * 2 * WARPGROUP }; /* quad q of thread i lies at (q * 256 + i) * 4 */

/* Four quads are loaded at a time: more would want registers that there are not. */
DEVICE void add_tile(const float *at, float (&sum)[HOPPER_SUMS])
{
    UNROLL for (int q = 0; q < HOPPER_SUMS / 4; q++)
    {
        add_four(at + q * NEXT, sum + 4 * q);
        if (q % 4 == 3) wgmma_hold(sum);
    }
}

/* Slice s of eight is done; `single`, `shared` and `global` keep sums of one, two and four slices. The last one folds all. */
DEVICE void hopper_fold(int s, float (&sum)[HOPPER_SUMS], float (&single)[HOPPER_SUMS], float *shared, float *global)
{
    if (s % 2 == 0) {
        UNROLL for (int i = 0; i < HOPPER_SUMS; i++) single[i] = sum[i];
        return;
    }
    UNROLL for (int i = 0; i < HOPPER_SUMS; i++) sum[i] = single[i] + sum[i];
    if (s % 4 == 1) {
        UNROLL for (int q = 0; q < HOPPER_SUMS / 4; q++) store_four(shared + q * NEXT, sum + 4 * q);
        return;
    }
    add_tile(shared, sum);
    if (s == 3)
        UNROLL for (int q = 0; q < HOPPER_SUMS / 4; q++) store_four(global + q * NEXT, sum + 4 * q);
    else
        add_tile(global, sum);
}

/* `line`: the first of the thread's two in the tile, line + 8 the other. */
template <int FORMAT, bool GLU>
DEVICE void hopper_store(const project_hopper_args &a, const hopper_tile &p, const float (&sum)[HOPPER_SUMS], int line)
{
    int t = (int)threadIdx.x % 4;
    const project_part *part = p.part;
    int32_t outputs = part->w.rows;
    UNROLL for (int c = 0; c < HOPPER_ROWS / 8; c++)
        UNROLL for (int i = 0; i < 2; i++)
        {
            int32_t r = p.row_tile * HOPPER_ROWS + 8 * c + 2 * t + i;
            if (r >= a.of.count) continue;
            float y[2] = {sum[4 * c + i], sum[4 * c + 2 + i]};
            if (GLU) {
                int32_t o = p.output + line / 16 * 8 + line % 8;
                if (FORMAT == KERNEL_NVFP4)
                    y[0] *= a.of.part[0].w.factor * NVFP4_SHIFT, y[1] *= a.of.part[1].w.factor * NVFP4_SHIFT;
                if (o < outputs) a.of.z[(int64_t)r * outputs + o] = bf16_of_float(swiglu_of(y[0], y[1], a.of.law));
            } else {
                UNROLL for (int h = 0; h < 2; h++)
                {
                    int32_t o = p.output + line + 8 * h;
                    if (FORMAT == KERNEL_NVFP4) y[h] *= part->w.factor * NVFP4_SHIFT;
                    float *out = part->out + r * part->stride + o;
                    if (o < outputs) *out = part->add ? *out + y[h] : y[h];
                }
            }
        }
}

/* Of HOPPER_HEADS: number (row, output) of a tile lies at row * 128 + (output ^ heads_swizzle(row)), so that neither those who
 * write it nor those who read a row meet at a bank. */
DEVICE int heads_swizzle(int row) { return row / 2 % 4 * 8; }

/* What warp 0 .. HEADS_WARPS - 1 of the third warpgroup does with a tile of HOPPER_HEADS. The others have none. */
DEVICE void heads_take(const project_hopper_args &, const hopper_tile &, float *, int) {}

/* `all` is what heads_take gets. */
template <int FORMAT, int MODE, typename arguments>
DEVICE void project_hopper(const arguments &all, const project_hopper_args &a)
{
    typedef slab<FORMAT, MODE> s;
    constexpr bool GLU = MODE == HOPPER_GLU;
    unsigned char *shared = TILES(unsigned char);
    arrivals *full = (arrivals *)(shared + s::BARRIERS_AT), *empty = full + s::STAGES, *taken = empty + s::STAGES;
    arrivals *finished = taken + 1;
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, warp = thread / CUDA_WARP, t = lane % 4;
    if (thread == 0) {
        for (int i = 0; i < s::STAGES; i++) {
            arrivals_init(&full[i], 1 + (MODE == HOPPER_HEADS ? (int)CUDA_WARP : (int)WARPGROUP));
            arrivals_init(&empty[i], 2 * WARPGROUP / CUDA_WARP);
        }
        if (MODE == HOPPER_HEADS) {
            arrivals_init(taken, HEADS_WARPS);
            arrivals_init(finished, 2 * WARPGROUP / CUDA_WARP);
        }
        arrivals_ready();
    }
    BLOCK_SYNC();
    if (thread >= 2 * WARPGROUP) {
        registers_give<MODE == HOPPER_HEADS ? 56 : 40>();
        if (MODE != HOPPER_HEADS) {
            hopper_load<s>(a, shared, full, empty, thread - 2 * WARPGROUP);
        } else if (warp % 4 == HEADS_WARPS) {
            hopper_load_heads<s>(a, shared, full, empty, lane);
        } else {
            float *finished_tile = (float *)(shared + s::TILE_AT);
            int parity = 0;
            for (int32_t tile = (int32_t)blockIdx.x; tile < a.row_tiles * a.output_tiles; tile += (int32_t)gridDim.x) {
                arrivals_wait(finished, parity);
                parity ^= 1;
                heads_take(all, hopper_tile_at<GLU>(a, tile), finished_tile, warp % 4);
                WARP_SYNC();
                if (lane == 0) arrivals_come(taken);
            }
        }
        return;
    }
    registers_take<MODE == HOPPER_HEADS ? 224 : 232>();

    const int32_t batches = a.of.part[0].w.cols / (PROJECT_SLICES * 64); /* of a slice */
    const int32_t tiles = a.row_tiles * a.output_tiles;
    int line = warp * 16 + lane / 4;
    float *open = (float *)(shared + s::OPEN_AT) + thread * 4;
    float *open_four = a.open + (int64_t)blockIdx.x * (HOPPER_OPEN / 4) + thread * 4;
    ring_place<s> at = {0, 0, 0};
    uint32_t weights[4][4], ahead[4][4];
    float sum[HOPPER_SUMS], single[HOPPER_SUMS];
    UNROLL for (int i = 0; i < HOPPER_SUMS; i++) sum[i] = single[i] = 0;
    if ((int32_t)blockIdx.x < tiles) {
        arrivals_wait(&full[0], 0);
        hopper_expand<s>(shared, at, 0, line, t, weights);
    }
    int parity = 1;
    for (int32_t tile = (int32_t)blockIdx.x; tile < tiles; tile += (int32_t)gridDim.x, parity ^= 1) {
        bool last = tile + (int32_t)gridDim.x >= tiles;
        for (int slice = 0; slice < PROJECT_SLICES; slice++) {
            for (int32_t i = 0; i < batches; i++) {
                int part = i % s::PARTS;
                bool emptied = part == s::PARTS - 1;
                ring_place<s> done = at;
                uint64_t rows = matrix_of(shared + at.stage * s::STAGE + part * (HOPPER_ROWS * LINE_BYTES), 0, ATOM_BYTES);
                wgmma_fence();
                UNROLL for (int k = 0; k < 4; k++) wgmma<HOPPER_ROWS>(sum, weights[k], rows + k * MATRIX_NEXT, i + k > 0);
                wgmma_commit();
                if (emptied) move_on(&at);
                if (!last || slice < PROJECT_SLICES - 1 || i < batches - 1) {
                    if (emptied) arrivals_wait(&full[at.stage], at.parity);
                    hopper_expand<s>(shared, at, emptied ? 0 : part + 1, line, t, ahead);
                }
                wgmma_wait<0>(sum);
                WARP_SYNC();
                if (emptied && lane == 0) arrivals_come(&empty[done.stage]);
                UNROLL for (int k = 0; k < 4; k++)
                    UNROLL for (int j = 0; j < 4; j++) weights[k][j] = ahead[k][j];
            }
            hopper_fold(slice, sum, single, open, open_four);
        }
        if (MODE == HOPPER_HEADS) {
            arrivals_wait(taken, parity);
            float *to[2];
            UNROLL for (int h = 0; h < 2; h++)
                to[h] = (float *)(shared + s::TILE_AT) + 2 * t * HOPPER_OUTPUTS + ((line + 8 * h) ^ heads_swizzle(2 * t));
            UNROLL for (int i = 0; i < HOPPER_SUMS; i++) /* row 8 (i / 4) + 2t + i % 2 */
                to[i / 2 % 2][(i / 4 * 8 + i % 2) * HOPPER_OUTPUTS] = sum[i];
            WARP_SYNC();
            if (lane == 0) arrivals_come(finished);
        } else {
            hopper_store<FORMAT, GLU>(a, hopper_tile_at<GLU>(a, tile), sum, line);
        }
    }
}

#endif
