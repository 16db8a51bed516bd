/*
 * Projections of 9 to 64 rows on Hopper (and of fewer where project_few has no room for all of K): the sums of project.cuh, bit for
 * bit, a slice of K a block.
 *
 *     block   persistent, one a multiprocessor, for one of the eight slices: its part of all rows stays in shared memory, in the order
 *             of the weights' fragments, and only weights are read, once. Four warpgroups, each with a tile of 64 outputs (with GLU
 *             32 of gate and of up) at a time
 *     product weights are A, from registers: a warp fills a ring of its own with 16 outputs' codes as in project_few, and expands
 *             a chunk while the one before is multiplied; rows are B
 *     fold    sums of slices go to memory as they lie in registers, 4 * 8 bytes of an output and row, and a second kernel adds them.
 *             Waiting for the other slices in the same kernel took longer: what is waited for is on the way through memory. The
 *             host cuts weights of many outputs, so that the sums stay in the second-level cache
 *     rows    64 of K = 6,144 and 8,192 have room, 32 of 12,288
 *
 * Bound: the memory's bandwidth up to 32 rows; with 64 and mxfp8 weights the tensor cores are busy for 60 % of that time, and
 * sums, written and read, are two thirds of the weights' bytes. On an H200, both kernels: 9,856 outputs of 6,144 inputs mxfp8 23, 26, 33
 * us with 16, 32, 64 rows (of 14 for the bytes; 37, 50, 57 before); a bf16 head of 200,064 outputs 670, 737, 867 us (549; 842,
 * 1,146, 1,287 before).
 */
#ifndef HAYATE_BACKEND_CUDA_PROJECT_SLICES_CUH
#define HAYATE_BACKEND_CUDA_PROJECT_SLICES_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/project_few.cuh"

/* Tile `index` as this warp has it: 16 outputs, or 8 of gate and of up. */
template <bool GLU> DEVICE const project_part *slices_tile(const project_args &a, int32_t index, int w, int32_t *output)
{
    const project_part *part = GLU ? &a.part[0] : part_of(a, &index);
    *output = index * (GLU ? SLICES_OUTPUTS / 2 : SLICES_OUTPUTS) + w * (GLU ? 8 : 16);
    return part;
}

template <int FORMAT, bool GLU> DEVICE void slices_begin(const project_args &a, int32_t index, int w, int slice, int lane, few_source *s)
{
    int32_t output;
    const project_part *part = slices_tile<GLU>(a, index, w, &output);
    int32_t most = (part->w.rows + 15) / 16 * 16 - (GLU ? 8 : 16); /* behind it there is no memory */
    few_source_of<FORMAT, GLU>(part->w, GLU ? a.part[1].w : part->w, output < most ? output : most, slice, lane, s);
}

/* Chunk c of a stage as fragments; with STAGES when it has come. */
template <int FORMAT, int STAGES>
DEVICE void slices_expand(const uint8_t *stage, int c, int g, int t, uint32_t (&v)[fragment<FORMAT>::STEPS][4])
{
    if (STAGES) {
        copy_wait<STAGES ? STAGES - 2 : 0>();
        WARP_SYNC();
    }
    if (FORMAT == KERNEL_MXFP8 && lane_ballot(few_large<FORMAT>(stage, g)))
        few_expand<FORMAT, true>(stage, c, g, t, v);
    else
        few_expand<FORMAT, false>(stage, c, g, t, v);
}

template <int FORMAT, int N, bool GLU, int STAGES> DEVICE void project_slices(const project_slices_args &args)
{
    typedef fragment<FORMAT> f;
    typedef few<FORMAT> of;
    enum { WARPS = 4 * SLICES_GROUPS, BLOCK = N * LINE_BYTES };
    const project_args &a = args.of;
    uint8_t *shared = TILES(uint8_t);
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, g = lane / 4, t = lane % 4;
    int w = warp % 4, warpgroup = warp / 4;
    int slice = (int)blockIdx.x % PROJECT_SLICES, group = (int)blockIdx.x / PROJECT_SLICES;
    int32_t cols = a.part[0].w.cols, tiles = args.tiles, length = cols / PROJECT_SLICES, steps = length / of::K;
    int32_t groups = (int32_t)gridDim.x / PROJECT_SLICES, jump = SLICES_GROUPS * groups, index = warpgroup * groups + group;
    uint8_t *ring = shared + length / 64 * BLOCK + warp * STAGES * of::STAGE;

    few_source source = {nullptr, nullptr, nullptr, 0};
    int32_t ahead = index, line_to = lane / 8 * 128 + (lane % 8 ^ (lane / 8 & 1) << 2) * 16;
    int to_copy = 0, place = 0; /* the next step to be copied, and the stage where it goes */
    if (ahead < tiles) slices_begin<FORMAT, GLU>(a, ahead, w, slice, lane, &source);
#define SLICES_COPY()                                                                                                 \
    do {                                                                                                              \
        if (ahead < tiles) {                                                                                          \
            few_copy<FORMAT>(ring + place * of::STAGE, line_to, &source, lane);                                       \
            if (++to_copy == steps) {                                                                                 \
                to_copy = 0, ahead += jump;                                                                           \
                if (ahead < tiles) slices_begin<FORMAT, GLU>(a, ahead, w, slice, lane, &source);                      \
            }                                                                                                         \
        }                                                                                                             \
        copy_commit();                                                                                                \
        if (++place == STAGES) place = 0;                                                                             \
    } while (0)
    for (int i = 0; i < STAGES - 1; i++) SLICES_COPY();
    follow(); /* weights are on their way before their inputs are there */

    /* A block of 64 inputs is N lines; a line has for MMA s in its units 2s and 2s + 1 the inputs of the weights' fragments. */
    for (int32_t i = (int32_t)threadIdx.x; i < 4 * N * (length / f::CHUNK); i += WARPS * CUDA_WARP) {
        int32_t from = i % 4, r = i / 4 % N, chunk = i / (4 * N), row = r < a.count ? r : a.count - 1, k = chunk * f::CHUNK;
        const uint16_t *x = a.in + (int64_t)(a.rows ? a.rows[row] : row) * cols + slice * length + k + from * f::VALUES;
        uint8_t *to = shared + k / 64 * BLOCK + 4 * from;
        UNROLL for (int j = 0; j < f::VALUES / 8; j++)
        {
            quad q = *(const quad *)(x + 8 * j);
            if (FORMAT == KERNEL_MXFP8) few_apart(&q);
            UNROLL for (int m = 0; m < 4; m++) *(uint32_t *)(to + tile_unit(r, k % 64 / 8 + 4 * j + m)) = q.w[m];
        }
    }
    others_read();
    BLOCK_SYNC();

    int stage = 0;
    for (; index < tiles; index += jump) {
        float sum[N / 2];
        UNROLL for (int i = 0; i < N / 2; i++) sum[i] = 0;
        uint32_t v[2][f::STEPS][4]; /* chunks of a stage; one is expanded while the other one is multiplied */
        slices_expand<FORMAT, STAGES>(ring + stage * of::STAGE, 0, g, t, v[0]);
        for (int step = 0; step < steps; step++) {
            uint64_t rows = matrix_of(shared + step * (of::K / 64) * BLOCK, 0, ATOM_BYTES);
            UNROLL for (int c = 0; c < 2; c++)
            {
                wgmma_fence();
                UNROLL for (int s = 0; s < f::STEPS; s++)
                {
                    int at = c * f::STEPS + s;
                    wgmma<N>(sum, v[c][s], rows + (uint32_t)(at / 4 * (BLOCK >> 4)) + at % 4 * MATRIX_NEXT);
                }
                wgmma_commit();
                if (c == 0) {
                    slices_expand<FORMAT, 0>(ring + stage * of::STAGE, 1, g, t, v[1]);
                } else {
                    if (++stage == STAGES) stage = 0;
                    WARP_SYNC();
                    SLICES_COPY();
                    if (step + 1 < steps) slices_expand<FORMAT, STAGES>(ring + stage * of::STAGE, 0, g, t, v[0]);
                }
                wgmma_wait<0>(sum);
            }
        }

        quad *partial = (quad *)args.sums + (((int64_t)index * 4 + w) * PROJECT_SLICES + slice) * (N / 8) * CUDA_WARP + lane;
        UNROLL for (int c = 0; c < N / 8; c++)
        {
            quad q;
            UNROLL for (int i = 0; i < 4; i++) q.w[i] = float_bits(sum[4 * c + i]);
            if (8 * c < a.count) partial[c * CUDA_WARP] = q;
        }
    }
#undef SLICES_COPY
}

/* A warp takes eight rows of a warp's 16 outputs. */
template <int N, bool GLU> DEVICE void fold_slices(const project_slices_args &args)
{
    const project_args &a = args.of;
    int lane = (int)threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
    int32_t item = (int32_t)blockIdx.x * FOLD_WARPS + (int32_t)threadIdx.x / CUDA_WARP, c = item % (N / 8), at = item / (N / 8), output;
    follow();
    if (at >= 4 * args.tiles || 8 * c >= a.count) return;
    const quad *partial = (const quad *)args.sums + ((int64_t)at * PROJECT_SLICES * (N / 8) + c) * CUDA_WARP + lane;
    quad y[PROJECT_SLICES];
    UNROLL for (int s = 0; s < PROJECT_SLICES; s++) y[s] = partial[s * (N / 8) * CUDA_WARP];
    const project_part *part = slices_tile<GLU>(a, at / 4, at % 4, &output);
    output += g;
    float z[4];
    UNROLL for (int i = 0; i < 4; i++)
    {
        float p[PROJECT_SLICES];
        UNROLL for (int s = 0; s < PROJECT_SLICES; s++) p[s] = bits_float(y[s].w[i]);
        z[i] = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
    }
    UNROLL for (int i = 0; i < 2; i++)
    {
        int32_t r = 8 * c + 2 * t + i;
        if (r >= a.count) continue;
        if (GLU) {
            if (output < part->w.rows) a.z[r * part->stride + output] = bf16_of_float(swiglu_of(z[i], z[i + 2], a.law));
            continue;
        }
        float *out = part->out + r * part->stride + output;
        UNROLL for (int h = 0; h < 2; h++)
            if (output + 8 * h < part->w.rows) out[8 * h] = part->add ? out[8 * h] + z[i + 2 * h] : z[i + 2 * h];
    }
}

/* The kernels of a format for so many rows. */
#define PROJECT_SLICED(name, format, rows)                                                                            \
    KERNEL_AHEAD_OF(project_slices_##name##_##rows, project_slices_args, SLICES_BLOCK, 1)                             \
    {                                                                                                                 \
        project_slices<format, rows, false, SLICES_STAGES>(a);                                                        \
    }                                                                                                                 \
    KERNEL_AHEAD_OF(glu_slices_##name##_##rows, project_slices_args, SLICES_BLOCK, 1)                                 \
    {                                                                                                                 \
        project_slices<format, rows, true, SLICES_STAGES>(a);                                                         \
    }
#define PROJECT_FOLD(rows)                                                                                            \
    KERNEL_AHEAD(project_fold_##rows, project_slices_args) { fold_slices<rows, false>(a); }                           \
    KERNEL_AHEAD(glu_fold_##rows, project_slices_args) { fold_slices<rows, true>(a); }

#endif
