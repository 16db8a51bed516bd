/*
 * Projections of many rows on Hopper: the sums of project.cuh, product by product in the same order, as products of
 * warpgroups. Their bits are those of mma.sync (probe.cu; all of 8,192 sums on an H200).
 *
 *     block   persistent, one a multiprocessor, 128 outputs by 128 rows a tile. Two warpgroups multiply, 64 outputs each:
 *             weights are A, from registers, where a code becomes bf16 once for 128 rows; rows are B, from shared memory. A
 *             third warpgroup loads. Two blocks are a cluster: the same rows, of which each brings half to both
 *     order   a thread's codes are those of fragment.cuh, and rows come packed in that order of k: line `row` of a slab has
 *             for step s in its units 2s and 2s + 1 the k = 0..7 and 8..15 of fragment.cuh's step (of mxfp8 0, 2 and 1, 3 of
 *             each four, which takes fewer instructions; inside a step the order is nothing). A slice is one chain that
 *             starts with d = a . b; slices fold as in project_many.cuh. Of the three open sums the one of a single slice is
 *             in registers, that of two in shared and that of four in global memory, 64 KB each
 *     memory  a stage is a slab of K (128, bf16 64): rows by one bulk copy a block of half of 16 or 32 KB, lines of codes by
 *             copy_async as they lie in the file, 128 bytes at a time; scales 16 bytes an output at a time, for 4 or 2 slabs
 *     batches of half a slab's products: while one runs, its warps expand the weights of the next and read the codes of the
 *             one a slab behind. A product reads its registers until it is done, which the compiler does not know:
 *             wgmma_hold keeps them
 *     shapes  K a multiple of eight slabs, so that a slice is whole slabs; any number of outputs and rows
 *
 * Bound, of a tile and 16 k: 128 * 128 * 16 products = 128 cycles of the tensor cores (2,048 products a cycle), that is 64 for
 * each m64n128k16. Beside them, in the same 128 cycles, for mxfp8:
 *     instructions   of a warp for 64 k, in which its warpgroup multiplies for 256 cycles: 118 as nvcc 13.0 compiles them, so of
 *                    the two warpgroups 236 of 512 issue slots. But a warp issues one in three cycles at best: half of them wait
 *                    for the one before, and registers are read for products too. This is what binds
 *     shared memory  B twice 4 KB, copies in 6 KB, codes out 2 KB: 16 KB of 128 cycles * 128 bytes
 *     second level   (128 + 256 / 2) * 16 = 4 KB: 32 bytes a cycle and multiprocessor (bf16 48) of about 45 that it gives; half
 *                    of what a block reads by itself
 * On an H200, with batches of two products instead of four: 544 TFLOP/s for q, k, v and index of 8,192 rows, 507 for 2,048.
 */
#ifndef HAYATE_BACKEND_CUDA_PROJECT_HOPPER_CUH
#define HAYATE_BACKEND_CUDA_PROJECT_HOPPER_CUH

#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/project_hopper.h"
#include "backend/cuda/kernels/swiglu.cuh"

/* What becomes of a tile. */
enum { HOPPER_STORED, HOPPER_GLU };

template <int FORMAT_, int MODE_> struct slab {
    static constexpr int FORMAT = FORMAT_, MODE = MODE_;
    enum {
        CHUNK = fragment<FORMAT>::CHUNK,
        K = FORMAT == KERNEL_NVFP4 ? HOPPER_K_NVFP4 : FORMAT == KERNEL_MXFP8 ? HOPPER_K_MXFP8 : HOPPER_K_BF16,
        CHUNKS = K / CHUNK,
        PARTS = K / 64,
        BATCHES = 2, /* of products */
        PRODUCTS = K / 16 / BATCHES,
        STAGES = FORMAT == KERNEL_NVFP4   ? HOPPER_STAGES_NVFP4
                 : FORMAT == KERNEL_MXFP8 ? HOPPER_STAGES_MXFP8
                                          : HOPPER_STAGES_BF16,
        ROWS = PARTS * HOPPER_ROWS * LINE_BYTES,
        PLANE = HOPPER_OUTPUTS * 64, /* codes of a chunk */
        UNITS = 4 * CHUNKS,          /* of 16 bytes of a line */
        STAGE = ROWS + CHUNKS * PLANE,
        PER = FORMAT == KERNEL_NVFP4 ? 2 : 4, /* slabs of 16 bytes of scales */
        SLOTS = FORMAT == KERNEL_NVFP4 ? HOPPER_SLOTS_NVFP4 : FORMAT == KERNEL_MXFP8 ? HOPPER_SLOTS_MXFP8 : 0,
        SCALED = FORMAT != KERNEL_BF16,
        RING = FORMAT != KERNEL_BF16 ? SLOTS : 1,
        SLOT = HOPPER_OUTPUTS * 16,
        OPEN_AT = STAGES * STAGE,
        SCALES_AT = OPEN_AT + HOPPER_OPEN,
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
                            step % f::STEPS * 4;
        UNROLL for (int t = 0; t < 4; t++)
        {
            const uint32_t *two = (const uint32_t *)(x + t * f::VALUES);
            if (FORMAT == KERNEL_MXFP8)
                q.w[t] = permute_bytes(two[0], two[1], unit % 2 ? 0x7632 : 0x5410);
            else
                q.w[t] = two[unit % 2];
        }
    }
    *(quad *)((unsigned char *)a.packed + atom * (HOPPER_ROWS * LINE_BYTES) + tile_unit(line, unit)) = q;
}

#ifdef HAYATE_EMULATED
enum { HOPPER_TOGETHER = 1 };
#else
enum { HOPPER_TOGETHER = HOPPER_CLUSTER }; /* blocks of a cluster: the same rows, and output tiles one behind the other */
#endif

struct hopper_tile {
    const project_part *part; /* of GLU the first of both */
    int32_t output, row_tile; /* the first output */
    bool idle;                /* behind the last: a block that has none beside the others of its cluster */
};

/* The work of a cluster. */
DEVICE int32_t hopper_items(const project_hopper_args &a)
{
    return (a.output_tiles + HOPPER_TOGETHER - 1) / HOPPER_TOGETHER * a.row_tiles;
}

template <bool GLU> DEVICE hopper_tile hopper_tile_at(const project_hopper_args &a, int32_t item)
{
    int32_t wide = HOPPER_GROUP * ((a.output_tiles + HOPPER_TOGETHER - 1) / HOPPER_TOGETHER);
    int32_t group = item / wide, in_group = item - group * wide, rows = a.row_tiles - group * HOPPER_GROUP;
    if (rows > HOPPER_GROUP) rows = HOPPER_GROUP;
    hopper_tile p;
    p.row_tile = group * HOPPER_GROUP + in_group % rows;
    int32_t block = in_group / rows * HOPPER_TOGETHER + (int32_t)blockIdx.x % HOPPER_TOGETHER;
    p.idle = block >= a.output_tiles;
    if (p.idle) block = a.output_tiles - 1;
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
    uint32_t n;
    int stage, parity;
};

template <typename s> DEVICE void move_on(ring_place<s> *at)
{
    at->n++;
    if (++at->stage == s::STAGES) at->stage = 0, at->parity ^= 1;
}

/* A slab of rows, of which each block of a cluster brings its share to all of them. */
template <typename s> DEVICE void hopper_load_rows(unsigned char *stage, const unsigned char *rows, arrivals *full)
{
    arrivals_expect(full, s::ROWS);
    if (HOPPER_TOGETHER == 1) return copy_bulk(stage, rows, s::ROWS, full);
    int32_t share = s::ROWS / HOPPER_TOGETHER, at = (int32_t)blockIdx.x % HOPPER_TOGETHER * share;
    copy_bulk_all(stage + at, rows + at, share, full);
}

/* Where unit `unit` of line `line` of codes lies in a stage. */
template <typename s> DEVICE int32_t hopper_code_at(int line, int unit)
{
    return s::ROWS + unit / 4 * s::PLANE + line * 64 + unit % 4 * 16;
}

/* The warpgroup that loads; thread 0 .. 127 of it. */
template <typename s>
DEVICE void hopper_load(const project_hopper_args &a, unsigned char *shared, arrivals *full, arrivals *empty, int thread)
{
    constexpr bool GLU = s::MODE == HOPPER_GLU;
    enum { UNITS = s::UNITS, LINES = WARPGROUP / UNITS };
    const int32_t cols = a.of.part[0].w.cols, slabs = cols / s::K, line_units = cols / 32 * UNITS / (s::K / 32);
    const int32_t clusters = (int32_t)gridDim.x / HOPPER_TOGETHER, items = hopper_items(a);
    ring_place<s> at = {0, 0, 0};
    for (int32_t item = (int32_t)blockIdx.x / HOPPER_TOGETHER; item < items; item += clusters) {
        hopper_tile p = hopper_tile_at<GLU>(a, item);
        const unsigned char *rows = (const unsigned char *)a.of.in + (int64_t)p.row_tile * slabs * s::ROWS;
        int32_t output, line[UNITS]; /* in units from the first of all; all of a thread's are of one weight */
        const uint8_t *code;
        UNROLL for (int i = 0; i < UNITS; i++)
        {
            code = (const uint8_t *)hopper_line<GLU>(a, p, thread / UNITS + LINES * i, &output)->data;
            line[i] = output * line_units + thread % UNITS;
        }
        const kernel_weight *w = hopper_line<GLU>(a, p, thread, &output);
        const uint8_t *scale = (const uint8_t *)w->scales + (int64_t)output * (slabs / s::PER * 16);
        for (int32_t j = 0; j < slabs; j++, move_on(&at)) {
            unsigned char *stage = shared + at.stage * s::STAGE;
            arrivals_wait(&empty[at.stage], at.parity ^ 1);
            if (thread == 0) hopper_load_rows<s>(stage, rows + (int64_t)j * s::ROWS, &full[at.stage]);
            UNROLL for (int i = 0; i < UNITS; i++)
                copy_async(stage + hopper_code_at<s>(thread / UNITS + LINES * i, thread % UNITS),
                           code + (int64_t)(line[i] + j * UNITS) * 16, true);
            if (s::SCALED != 0 && j % s::PER == 0)
                copy_async(shared + s::SCALES_AT + at.n / s::PER % s::RING * s::SLOT + thread * 16,
                           scale + j / s::PER * 16, true);
            copy_come(&full[at.stage]);
        }
    }
}

/* What a thread has of batch BATCH of a slab, of lines `line` and line + 8: codes, or of bf16 the pairs themselves. */
struct hopper_codes {
    quad line[2];
    uint32_t scale[2];
};

template <typename s, int BATCH>
DEVICE void hopper_read(const unsigned char *shared, const ring_place<s> &at, int line, int t, hopper_codes *codes)
{
    const unsigned char *stage = shared + at.stage * s::STAGE + s::ROWS + line * 64 + t * 16;
    const unsigned char *scales = shared + s::SCALES_AT + at.n / s::PER % s::RING * s::SLOT + at.n % s::PER * (16 / s::PER) +
                                  line * 16 + (s::FORMAT == KERNEL_NVFP4 ? t * 2 + BATCH : BATCH * 2 + t / 2);
    UNROLL for (int h = 0; h < 2; h++)
    {
        if (s::FORMAT == KERNEL_NVFP4)
            UNROLL for (int i = 0; i < 2; i++) codes->line[h].w[i] = ((const uint32_t *)(stage + 8 * h * 64))[BATCH * 2 + i];
        else
            codes->line[h] = *(const quad *)(stage + BATCH * s::PLANE + 8 * h * 64);
        if (s::SCALED != 0) codes->scale[h] = scales[8 * h * 16];
    }
}

/* The weights of a batch. */
template <typename s> DEVICE void hopper_expand(const hopper_codes &codes, uint32_t (&a)[s::PRODUCTS][4])
{
    constexpr int FORMAT = s::FORMAT;
    uint32_t pair[2][2 * s::PRODUCTS];
    UNROLL for (int h = 0; h < 2; h++)
    {
        const uint32_t *word = codes.line[h].w;
        if (FORMAT == KERNEL_NVFP4) {
            uint32_t unit = nvfp4_unit(codes.scale[h]);
            UNROLL for (int i = 0; i < s::PRODUCTS / 2; i++) nvfp4_pairs(word[i], unit, pair[h] + 4 * i);
        } else if (FORMAT == KERNEL_MXFP8) {
            UNROLL for (int i = 0; i < s::PRODUCTS; i++) e4m3_pairs_apart(word[i], pair[h] + 2 * i);
        } else {
            /* Changed by 0, the grid has one row: what is only moved would be loaded where a product on its way still reads. */
            UNROLL for (int i = 0; i < 2 * s::PRODUCTS; i++) pair[h][i] = word[i] ^ blockIdx.y;
        }
    }
    if (FORMAT == KERNEL_MXFP8) {
        if (((codes.scale[0] | codes.scale[1]) & 0x80) == 0) { /* below 2: as good as all */
            UNROLL for (int h = 0; h < 2; h++)
                UNROLL for (int i = 0; i < 2 * s::PRODUCTS; i++)
                    pair[h][i] = multiply_pairs(pair[h][i], (codes.scale[h] + 120) * 0x00800080u);
        } else {
            UNROLL for (int h = 0; h < 2; h++)
            {
                uint32_t rest = codes.scale[h] > MXFP8_UNIT_MOST ? mxfp8_unit_rest(codes.scale[h]) : 0x3F803F80u;
                UNROLL for (int i = 0; i < 2 * s::PRODUCTS; i++)
                    pair[h][i] = multiply_pairs(multiply_pairs(pair[h][i], mxfp8_unit(codes.scale[h])), rest);
            }
        }
    }
    UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int k = 0; k < s::PRODUCTS; k++) a[k][h] = pair[h][2 * k], a[k][2 + h] = pair[h][2 * k + 1];
    UNROLL for (int k = 0; k < s::PRODUCTS; k++) wgmma_hold(a[k]); /* before the wgmma_fence that is to come */
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

/* Slices 2 * pair and 2 * pair + 1 are done, the first in `even` and the second in `sum`. `shared` and `global` keep sums of two
 * and four slices; the last pair folds all. */
DEVICE void hopper_fold(int pair, const float (&even)[HOPPER_SUMS], float (&sum)[HOPPER_SUMS], float *shared, float *global)
{
    UNROLL for (int i = 0; i < HOPPER_SUMS; i++) sum[i] = even[i] + sum[i];
    if (pair % 2 == 0) {
        UNROLL for (int q = 0; q < HOPPER_SUMS / 4; q++) store_four(shared + q * NEXT, sum + 4 * q);
        return;
    }
    add_tile(shared, sum);
    if (pair == 1)
        UNROLL for (int q = 0; q < HOPPER_SUMS / 4; q++) store_four(global + q * NEXT, sum + 4 * q);
    else
        add_tile(global, sum);
}

/* Where a warp that multiplies is. weights[b] are those of a slab's batch b, which is on its way, or they are expanded while the
 * other one is; codes[b] are read a slab before their products, since whoever waits for shared memory expands nothing. */
template <typename s> struct hopper_walk {
    unsigned char *shared;
    arrivals *full, *empty;
    int line, t, lane;
    ring_place<s> at, next; /* the slab that is multiplied, and the one behind it */
    int32_t left;           /* slabs of all tiles behind `at` */
    int emptied;            /* stage whose last batch is on its way, or -1 */
    hopper_codes codes[s::BATCHES];
    uint32_t weights[s::BATCHES][s::PRODUCTS][4];
};

template <typename s> DEVICE void hopper_release(hopper_walk<s> *w)
{
    if (w->emptied < 0) return;
    WARP_SYNC();
    if (HOPPER_TOGETHER == 1 && w->lane == 0) arrivals_come(&w->empty[w->emptied]);
    if (HOPPER_TOGETHER > 1 && w->lane < HOPPER_TOGETHER) arrivals_come_at(&w->empty[w->emptied], w->lane);
    w->emptied = -1;
}

/* Batch BATCH of a slab, with `add` into the sum that there is; then, while it runs, the weights of the next one. */
template <typename s, int BATCH>
DEVICE void hopper_multiply(hopper_walk<s> *w, float (&sum)[HOPPER_SUMS], uint64_t rows, bool add)
{
    rows += BATCH * s::PRODUCTS / 4 * (HOPPER_ROWS * LINE_BYTES / 16) + BATCH * s::PRODUCTS % 4 * MATRIX_NEXT;
    wgmma_fence();
    UNROLL for (int k = 0; k < s::PRODUCTS; k++)
        wgmma<HOPPER_ROWS>(sum, w->weights[BATCH][k], rows + k * MATRIX_NEXT, k > 0 || add);
    wgmma_commit();
    wgmma_wait<1>();
    UNROLL for (int k = 0; k < s::PRODUCTS; k++) wgmma_hold(w->weights[1 - BATCH][k]);
    if (BATCH == 0) hopper_release(w); /* before this one waits, so that two slabs are on their way */
    hopper_expand<s>(w->codes[1 - BATCH], w->weights[1 - BATCH]);
    if (BATCH == 0 && w->left > 0) arrivals_wait(&w->full[w->next.stage], w->next.parity);
    /* Behind the last slab this is what lay there before, and nobody multiplies it. */
    hopper_read<s, BATCH>(w->shared, w->next, w->line, w->t, &w->codes[BATCH]);
}

/* A slice: sum = the products of `slabs` slabs. Its last batch is on its way behind it. */
template <typename s> DEVICE void hopper_chain(hopper_walk<s> *w, float (&sum)[HOPPER_SUMS], int32_t slabs)
{
    int32_t i = 0;
    do { /* at least once, or the compiler moves sums between registers while products are on their way to them */
        uint64_t rows = matrix_of(w->shared + w->at.stage * s::STAGE, 0, ATOM_BYTES);
        hopper_multiply<s, 0>(w, sum, rows, i > 0);
        hopper_multiply<s, 1>(w, sum, rows, true);
        w->emptied = w->at.stage;
        w->at = w->next;
        move_on(&w->next);
        w->left--;
    } while (++i < slabs);
}

/* All products are done. */
template <typename s> DEVICE void hopper_rest(hopper_walk<s> *w, float (&even)[HOPPER_SUMS], float (&sum)[HOPPER_SUMS])
{
    wgmma_wait<0>(sum);
    wgmma_hold(even);
    UNROLL for (int k = 0; k < s::PRODUCTS; k++) wgmma_hold(w->weights[1][k]);
    hopper_release(w);
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

template <int FORMAT, int MODE> DEVICE void project_hopper(const project_hopper_args &a)
{
    typedef slab<FORMAT, MODE> s;
    constexpr bool GLU = MODE == HOPPER_GLU;
    unsigned char *shared = TILES(unsigned char);
    arrivals *full = (arrivals *)(shared + s::BARRIERS_AT), *empty = full + s::STAGES;
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, warp = thread / CUDA_WARP, t = lane % 4;
    if (thread == 0) {
        for (int i = 0; i < s::STAGES; i++) {
            arrivals_init(&full[i], 1 + WARPGROUP);
            arrivals_init(&empty[i], HOPPER_TOGETHER * (2 * WARPGROUP / CUDA_WARP));
        }
        arrivals_ready();
    }
    if (HOPPER_TOGETHER > 1)
        cluster_meet();
    else
        BLOCK_SYNC();
    const int32_t clusters = (int32_t)gridDim.x / HOPPER_TOGETHER, items = hopper_items(a);
    const int32_t first = (int32_t)blockIdx.x / HOPPER_TOGETHER;
    if (thread >= 2 * WARPGROUP) {
        registers_give<56>();
        hopper_load<s>(a, shared, full, empty, thread - 2 * WARPGROUP);
        return;
    }
    registers_take<224>();

    const int32_t cols = a.of.part[0].w.cols, slabs = cols / (PROJECT_SLICES * s::K); /* of a slice */
    int line = warp * 16 + lane / 4;
    float *open = (float *)(shared + s::OPEN_AT) + thread * 4;
    float *open_four = a.open + (int64_t)blockIdx.x * (HOPPER_OPEN / 4) + thread * 4;
    float sum[HOPPER_SUMS], even[HOPPER_SUMS];
    hopper_walk<s> walk;
    walk.shared = shared, walk.full = full, walk.empty = empty;
    walk.line = line, walk.t = t, walk.lane = lane;
    walk.at = walk.next = {0, 0, 0}, walk.emptied = -1;
    move_on(&walk.next);
    walk.left = first < items ? (items - first + clusters - 1) / clusters * (cols / s::K) - 1 : -1;
    if (walk.left >= 0) {
        arrivals_wait(&full[0], 0);
        hopper_read<s, 0>(shared, walk.at, line, t, &walk.codes[0]);
        hopper_read<s, 1>(shared, walk.at, line, t, &walk.codes[1]);
        hopper_expand<s>(walk.codes[0], walk.weights[0]);
    }
    for (int32_t item = first; item < items; item += clusters) {
        /* Chains begin with d = a . b; but what is not set has registers while a tile is stored. */
        UNROLL for (int i = 0; i < HOPPER_SUMS; i++) sum[i] = even[i] = 0;
        for (int pair = 0; pair < PROJECT_SLICES / 2; pair++) {
            hopper_chain(&walk, even, slabs);
            hopper_chain(&walk, sum, slabs);
            hopper_rest(&walk, even, sum);
            hopper_fold(pair, even, sum, open, open_four);
        }
        hopper_tile p = hopper_tile_at<GLU>(a, item);
        if (!p.idle) hopper_store<FORMAT, GLU>(a, p, sum, line);
    }
    if (HOPPER_TOGETHER > 1) cluster_meet(); /* the others' last arrivals have come */
}

#endif
