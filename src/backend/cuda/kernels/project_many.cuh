/*
 * Projections of many rows: the sums of project.cuh, bit for bit, in tiles that read weights and rows from shared memory.
 *
 *     order   one warp takes all eight slices one after the other and folds them as a binary counter does: when slice i
 *             ends, it meets the open sums of its left neighbours, ((0+1)+(2+3))+((4+5)+(6+7)) in the end. At most three
 *             are open; they are in local memory, touched at the ends of slices only
 *     block   128 outputs (of GLU 64 of gate and 64 of up) by 128 rows; 8 warps, 4 along the outputs by 2 along the rows,
 *             each 32 by 64
 *     memory  a chunk of K a stage, STAGES of them on their way by copy_async; codes stay codes in shared memory, and
 *             scales come one chunk ahead in registers. Lines of rows are set so that eight lanes that read 16 bytes each
 *             meet all banks: 4, 9, 18 units of 16 bytes for chunks of 32, 64, 128
 *     bytes   of an output: cols / 128 of its row's weights, 2 * cols / 128 of its rows
 *     bound   the tensor cores at mma.sync's rate
 */
#ifndef HAYATE_BACKEND_CUDA_PROJECT_MANY_CUH
#define HAYATE_BACKEND_CUDA_PROJECT_MANY_CUH

#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/swiglu.cuh"

template <int FORMAT> struct many {
    enum {
        CHUNK = fragment<FORMAT>::CHUNK,
        UNITS = CHUNK / 8, /* of 16 bytes, of a row's chunk */
        LINE = UNITS == 4 ? 4 : UNITS == 8 ? 9 : 18,
        CODES = MANY_OUTPUTS * 64, /* bytes */
        STAGE = CODES + MANY_ROWS * LINE * 16,
        COPIES = MANY_ROWS * UNITS / PROJECT_BLOCK, /* of rows, a thread's */
    };
};

/* Unit of a line at which unit u lies. */
template <int FORMAT> DEVICE int unit_place(int u) { return many<FORMAT>::UNITS == 16 ? u ^ (u >> 3 & 1) : u; }

/* The chunks of K in ascending order, slice by slice; slice is PROJECT_SLICES behind the last. */
struct cursor {
    int32_t k, end;
    int slice;
};

DEVICE void settle(cursor *c, int32_t cols)
{
    while (c->k >= c->end && c->slice < PROJECT_SLICES)
        if (++c->slice < PROJECT_SLICES) slice_of(cols, c->slice, &c->k, &c->end);
}

template <int FORMAT> DEVICE uint32_t load_scales(const kernel_weight *w, int64_t row, int32_t k, int32_t end)
{
    if (FORMAT == KERNEL_BF16 || k >= end) return 0;
    int64_t at = row * w->cols + k;
    if (FORMAT == KERNEL_MXFP8) return ((const uint8_t *)w->scales)[at / 32];
    return ((const uint16_t *)w->scales)[at / 32];
}

/* The sums of a warp's 32 outputs and 64 rows. */
struct tile_sums {
    float at[2][8][4];
};

/* Slice s is done: sum becomes the one of the next, 0, or behind the last slice that of all. */
DEVICE void close_slice(int s, tile_sums *sum, tile_sums open[3])
{
    int level = 0;
    for (; s >> level & 1; level++)
        UNROLL for (int m = 0; m < 2; m++)
            UNROLL for (int n = 0; n < 8; n++)
                UNROLL for (int i = 0; i < 4; i++) sum->at[m][n][i] = open[level].at[m][n][i] + sum->at[m][n][i];
    if (s == PROJECT_SLICES - 1) return;
    UNROLL for (int m = 0; m < 2; m++)
        UNROLL for (int n = 0; n < 8; n++)
            UNROLL for (int i = 0; i < 4; i++)
            {
                open[level].at[m][n][i] = sum->at[m][n][i];
                sum->at[m][n][i] = 0;
            }
}

template <int FORMAT, bool GLU> DEVICE void project_many(const project_args &a)
{
    typedef fragment<FORMAT> f;
    typedef many<FORMAT> p;
    unsigned char *stages = DYNAMIC(unsigned char);
    int thread = (int)threadIdx.x, lane = thread % CUDA_WARP, warp = thread / CUDA_WARP, g = lane / 4, t = lane % 4;
    int32_t block = (int32_t)blockIdx.y;
    const project_part *part = GLU ? &a.part[0] : part_of(a, &block);
    int32_t cols = part->w.cols, outputs = part->w.rows, row0 = (int32_t)blockIdx.x * MANY_ROWS;
    int32_t output = block * (GLU ? MANY_OUTPUTS / 2 : MANY_OUTPUTS);
    int warp_output = warp % 4 * 32, warp_row = warp / 4 * 64;

    /* What a thread copies of a stage: 16 bytes of codes of lines thread / 4 and 64 further on, and of rows. */
    const uint8_t *code[2];
    const int32_t code_bits = FORMAT == KERNEL_BF16 ? 16 : FORMAT == KERNEL_MXFP8 ? 8 : 4;
    UNROLL for (int i = 0; i < 2; i++)
    {
        int line = thread / 4 + 64 * i;
        int32_t o = output + (GLU ? line / 32 * 16 + line % 16 : line);
        const kernel_weight *w = GLU ? &a.part[line / 16 % 2].w : &part->w;
        code[i] = (const uint8_t *)w->data + (int64_t)(o < outputs ? o : outputs - 1) * cols * code_bits / 8;
    }
    const uint16_t *x[p::COPIES];
    UNROLL for (int i = 0; i < p::COPIES; i++)
    {
        int32_t row = row0 + (thread + i * PROJECT_BLOCK) / p::UNITS;
        if (row >= a.count) row = a.count - 1; /* its columns are not stored */
        x[i] = a.in + (int64_t)(a.rows ? a.rows[row] : row) * cols;
    }
    /* The lines of codes that a thread multiplies, for their scales. */
    const kernel_weight *scaled[2];
    int32_t scaled_row[2][2];
    UNROLL for (int m = 0; m < 2; m++)
    {
        scaled[m] = GLU ? &a.part[m].w : &part->w;
        UNROLL for (int h = 0; h < 2; h++)
        {
            int32_t o = output + (GLU ? warp_output / 2 : warp_output + 16 * m) + 8 * h + g;
            scaled_row[m][h] = o < outputs ? o : outputs - 1;
        }
    }

    cursor fetched = {0, 0, -1}, at;
    settle(&fetched, cols);
    at = fetched;
    uint32_t scales[2][2];
    UNROLL for (int m = 0; m < 2; m++)
        UNROLL for (int h = 0; h < 2; h++)
            scales[m][h] = load_scales<FORMAT>(scaled[m], scaled_row[m][h], at.k + t * f::VALUES, at.end);
    tile_sums sum, open[3];
    UNROLL for (int m = 0; m < 2; m++)
        UNROLL for (int n = 0; n < 8; n++)
            UNROLL for (int i = 0; i < 4; i++) sum.at[m][n][i] = 0;
    for (int s = 0; s < at.slice; s++) close_slice(s, &sum, open);

    for (int chunk = 1 - MANY_STAGES; at.slice < PROJECT_SLICES; chunk++) {
        if (chunk >= 0) {
            copy_wait<MANY_STAGES - 2>();
            BLOCK_SYNC(); /* all have the chunk, and all are done with the one whose place the next copies take */
        }
        if (fetched.slice < PROJECT_SLICES) {
            unsigned char *stage = stages + (chunk + MANY_STAGES - 1) % MANY_STAGES * p::STAGE;
            int32_t k = fetched.k + thread % 4 * f::VALUES;
            UNROLL for (int i = 0; i < 2; i++)
                copy_async(stage + (thread + i * PROJECT_BLOCK) * 16, code[i] + (int64_t)k * code_bits / 8, k < fetched.end);
            UNROLL for (int i = 0; i < p::COPIES; i++)
            {
                int unit = (thread + i * PROJECT_BLOCK) % p::UNITS, row = (thread + i * PROJECT_BLOCK) / p::UNITS;
                int32_t from = fetched.k + 8 * unit;
                copy_async(stage + p::CODES + (row * p::LINE + unit_place<FORMAT>(unit)) * 16, x[i] + from,
                           from < fetched.end);
            }
            fetched.k += p::CHUNK;
            settle(&fetched, cols);
        }
        copy_commit();
        if (chunk < 0) continue;

        cursor next = at;
        next.k += p::CHUNK;
        settle(&next, cols);
        const unsigned char *stage = stages + chunk % MANY_STAGES * p::STAGE;
        decoded<FORMAT> v[2][2];
        UNROLL for (int m = 0; m < 2; m++)
            UNROLL for (int h = 0; h < 2; h++)
            {
                codes c = {*(const quad *)(stage + (warp_output + 16 * m + 8 * h + g) * 64 + t * 16), scales[m][h]};
                decode<FORMAT>(c, &v[m][h]);
                scales[m][h] = load_scales<FORMAT>(scaled[m], scaled_row[m][h], next.k + t * f::VALUES, next.end);
            }
        UNROLL for (int n = 0; n < 8; n++)
        {
            const unsigned char *line = stage + p::CODES + (warp_row + 8 * n + g) * (p::LINE * 16);
            UNROLL for (int q = 0; q < f::STEPS / 2; q++)
            {
                quad b = *(const quad *)(line + unit_place<FORMAT>(t * f::STEPS / 2 + q) * 16);
                UNROLL for (int s = 0; s < 2; s++)
                    UNROLL for (int m = 0; m < 2; m++)
                    {
                        int pair = 4 * q + 2 * s;
                        uint32_t w4[4] = {v[m][0].pair[pair], v[m][1].pair[pair], v[m][0].pair[pair + 1],
                                          v[m][1].pair[pair + 1]};
                        mma_bf16(sum.at[m][n], w4, b.w + 2 * s);
                    }
            }
        }
        for (int s = at.slice; s < next.slice; s++) close_slice(s, &sum, open);
        at = next;
    }

    UNROLL for (int n = 0; n < 8; n++)
        UNROLL for (int i = 0; i < 4; i++)
        {
            int32_t r = row0 + warp_row + 8 * n + 2 * t + i % 2;
            if (r >= a.count) continue;
            if (GLU) {
                int32_t o = output + warp_output / 2 + 8 * (i / 2) + g;
                float gate = sum.at[0][n][i], up = sum.at[1][n][i];
                if (FORMAT == KERNEL_NVFP4) gate *= a.part[0].w.factor * NVFP4_SHIFT, up *= a.part[1].w.factor * NVFP4_SHIFT;
                if (o < outputs) a.z[(int64_t)r * outputs + o] = bf16_of_float(swiglu_of(gate, up, a.law));
            } else {
                UNROLL for (int m = 0; m < 2; m++)
                {
                    int32_t o = output + warp_output + 16 * m + 8 * (i / 2) + g;
                    float y = sum.at[m][n][i];
                    if (FORMAT == KERNEL_NVFP4) y *= part->w.factor * NVFP4_SHIFT;
                    float *out = part->out + r * part->stride + o;
                    if (o < outputs) *out = part->add ? *out + y : y;
                }
            }
        }
}

#endif
