/*
 * Projections of few rows: y[r][o] = sum over k of w[o][k] * x[r][k], bf16 activations, weights as they lie in the file, of any
 * shape. What project_few.cuh and project_slices.cuh have kernels for goes there.
 *
 *     order   eight slices of K, each one chain of MMAs (m16n8k16: 16 outputs, 8 rows) in ascending chunks, folded
 *             ((0+1)+(2+3))+((4+5)+(6+7)); the same for every number of rows, every tile and every kernel of this family
 *     block   8 warps, warp i has slice i of 16 * OUTPUTS outputs and 8 * ROWS rows; partial sums meet in shared memory
 *     glu     both of gate and up in one block, which stores bf16(swiglu): the bits are those of two projections and swiglu
 *     weights 16 bytes a thread and load, past the first-level cache, DEPTH chunks on their way while one is multiplied
 *     rows    from the caches: each warp reads its own slice of them
 *     bytes   of an output: cols (mxfp8 with scales 1.03, nvfp4 0.56, bf16 2 each) once per ROWS tile
 *     bound   the memory's bandwidth while the rows' bytes are few beside the weights'
 */
#ifndef HAYATE_BACKEND_CUDA_PROJECT_CUH
#define HAYATE_BACKEND_CUDA_PROJECT_CUH

#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/swiglu.cuh"

/* The eight slices of output o and row r. */
template <int N, int STRIDE> DEVICE float fold(const float *sums, int r, int o)
{
    float y[PROJECT_SLICES];
    UNROLL for (int s = 0; s < PROJECT_SLICES; s++) y[s] = sums[(s * N + r) * STRIDE + o];
    return ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
}

/* OUTPUTS tiles of 16 outputs: those that follow each other in one weight; with GLU the same of gate and up. */
template <int FORMAT, int OUTPUTS, int ROWS, bool ODD, bool GLU> DEVICE void project(const project_args &a)
{
    typedef fragment<FORMAT> f;
    enum { DEPTH = OUTPUTS == 1 ? 4 : 2, M = 16 * OUTPUTS, N = 8 * ROWS, STRIDE = M + 4 };
    float *sums = DYNAMIC(float); /* [slice][N][STRIDE] */
    int lane = (int)threadIdx.x % CUDA_WARP, slice = (int)threadIdx.x / CUDA_WARP, g = lane / 4, t = lane % 4;
    int32_t block = (int32_t)blockIdx.y;
    const project_part *part = GLU ? &a.part[0] : part_of(a, &block);
    int32_t cols = part->w.cols, output = block * (GLU ? 16 : M), row0 = (int32_t)blockIdx.x * N, begin, end;
    slice_of(cols, slice, &begin, &end);

    const kernel_weight *w[OUTPUTS];
    int32_t first_row[OUTPUTS]; /* of the thread's two in a tile; the memory is padded to whole tiles */
    UNROLL for (int m = 0; m < OUTPUTS; m++)
    {
        w[m] = GLU ? &a.part[m].w : &part->w;
        first_row[m] = output + g + (GLU || output + 16 * m >= part->w.rows ? 0 : 16 * m);
    }
    codes ahead[DEPTH][OUTPUTS][2];
    UNROLL for (int d = 0; d < DEPTH; d++)
        UNROLL for (int m = 0; m < OUTPUTS; m++)
            UNROLL for (int h = 0; h < 2; h++)
            {
                int32_t k = begin + d * f::CHUNK + t * f::VALUES;
                ahead[d][m][h] = load_codes<FORMAT, ODD>(w[m], first_row[m] + 8 * h, k, end - k);
            }
    follow(); /* weights are on their way before their inputs are there */

    const uint16_t *x[ROWS];
    UNROLL for (int n = 0; n < ROWS; n++)
    {
        int32_t row = row0 + 8 * n + g;
        if (row >= a.count) row = a.count - 1; /* its columns are not stored */
        x[n] = a.in + (int64_t)(a.rows ? a.rows[row] : row) * cols;
    }
    float sum[OUTPUTS][ROWS][4];
    UNROLL for (int m = 0; m < OUTPUTS; m++)
        UNROLL for (int n = 0; n < ROWS; n++)
            UNROLL for (int i = 0; i < 4; i++) sum[m][n][i] = 0;
    for (int32_t first = begin; first < end; first += DEPTH * f::CHUNK) {
        UNROLL for (int d = 0; d < DEPTH; d++)
        {
            int32_t chunk = first + d * f::CHUNK, k = chunk + t * f::VALUES, next = k + DEPTH * f::CHUNK;
            if (chunk < end) {
                decoded<FORMAT> v[OUTPUTS][2];
                UNROLL for (int m = 0; m < OUTPUTS; m++)
                    UNROLL for (int h = 0; h < 2; h++)
                    {
                        decode<FORMAT>(ahead[d][m][h], &v[m][h]);
                        ahead[d][m][h] = load_codes<FORMAT, ODD>(w[m], first_row[m] + 8 * h, next, end - next);
                    }
                UNROLL for (int n = 0; n < ROWS; n++)
                {
                    activations<FORMAT> b;
                    load_activations<FORMAT, ODD>(x[n] + k, end - k, &b);
                    UNROLL for (int s = 0; s < f::STEPS; s++)
                        UNROLL for (int m = 0; m < OUTPUTS; m++)
                        {
                            uint32_t w4[4] = {v[m][0].pair[2 * s], v[m][1].pair[2 * s], v[m][0].pair[2 * s + 1],
                                              v[m][1].pair[2 * s + 1]};
                            mma_bf16(sum[m][n], w4, b.pair + 2 * s);
                        }
                }
            }
        }
    }

    UNROLL for (int m = 0; m < OUTPUTS; m++)
        UNROLL for (int n = 0; n < ROWS; n++)
            UNROLL for (int i = 0; i < 4; i++)
                sums[(slice * N + 8 * n + 2 * t + i % 2) * STRIDE + 16 * m + 8 * (i / 2) + g] = sum[m][n][i];
    BLOCK_SYNC();
    enum { STORED = GLU ? 16 : M };
    for (int i = (int)threadIdx.x; i < STORED * N; i += PROJECT_BLOCK) {
        int o = i % STORED, r = i / STORED;
        if (row0 + r >= a.count || output + o >= part->w.rows) continue;
        float y = fold<N, STRIDE>(sums, r, o);
        if (FORMAT == KERNEL_NVFP4) y *= part->w.factor * NVFP4_SHIFT;
        if (GLU) {
            float up = fold<N, STRIDE>(sums, r, 16 + o);
            if (FORMAT == KERNEL_NVFP4) up *= a.part[1].w.factor * NVFP4_SHIFT;
            a.z[(int64_t)(row0 + r) * part->w.rows + output + o] = bf16_of_float(swiglu_of(y, up, a.law));
        } else {
            float *out = part->out + (row0 + r) * part->stride + output + o;
            *out = part->add ? *out + y : y;
        }
    }
}

/* The kernels of a format, by the rows of a block; a multiprocessor holds `blocks` of the first. */
#define PROJECT(name, format, outputs, rows, blocks)                                                                  \
    KERNEL_AHEAD_OF(project_##name, project_args, PROJECT_BLOCK, blocks)                                              \
    {                                                                                                                 \
        project<format, outputs, rows, false, false>(a);                                                              \
    }                                                                                                                 \
    KERNEL_AHEAD(glu_##name, project_args) { project<format, 2, rows, false, true>(a); }

#endif
