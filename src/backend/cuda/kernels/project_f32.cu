/*
 * Projections with fp32 weights (the router): products and sums in fp32, each rounded, bf16 activations.
 *
 *     order   eight slices of K as in project.cuh; of a slice, lane l adds elements 4l .. 4l + 3, then those 128 further on,
 *             and so forth in one chain; lanes fold as a tree
 *     block   8 warps, warp i has slice i of OUTPUTS outputs and ROWS rows
 *     bytes   of an output: 4 * cols once per ROWS tile
 *     bound   latency at few rows (3 MB of weights on all processors), at many the multipliers
 */
#include "backend/cuda/kernels/fragment.cuh"

template <int OUTPUTS, int ROWS> DEVICE void project_f32(const project_args &a)
{
    SHARED(float, sums, PROJECT_SLICES * OUTPUTS * ROWS);
    int32_t block = (int32_t)blockIdx.y;
    const project_part *part = part_of(a, &block);
    const kernel_weight *w = &part->w;
    int lane = (int)threadIdx.x % CUDA_WARP, slice = (int)threadIdx.x / CUDA_WARP;
    int32_t cols = w->cols, output = block * OUTPUTS, row0 = (int32_t)blockIdx.x * ROWS, begin, end;
    slice_of(cols, slice, &begin, &end);
    const float *v[OUTPUTS];
    UNROLL for (int m = 0; m < OUTPUTS; m++)
    {
        int32_t o = output + m < w->rows ? output + m : w->rows - 1;
        v[m] = (const float *)w->data + (int64_t)o * cols;
    }
    enum { STEP = 4 * CUDA_WARP, DEPTH = OUTPUTS == 1 ? 6 : 1 };
    quad ahead[DEPTH][OUTPUTS];
    UNROLL for (int d = 0; d < DEPTH; d++)
        UNROLL for (int m = 0; m < OUTPUTS; m++)
        {
            int32_t k = begin + 4 * lane + d * STEP;
            ahead[d][m] = k < end ? load_once(v[m] + k) : quad{{0, 0, 0, 0}};
        }
    follow(); /* weights are on their way before their inputs are there */
    const uint16_t *x[ROWS];
    UNROLL for (int n = 0; n < ROWS; n++)
    {
        int32_t row = row0 + n < a.count ? row0 + n : a.count - 1;
        x[n] = a.in + (int64_t)(a.rows ? a.rows[row] : row) * cols;
    }
    float sum[OUTPUTS][ROWS];
    UNROLL for (int m = 0; m < OUTPUTS; m++)
        UNROLL for (int n = 0; n < ROWS; n++) sum[m][n] = 0;
    for (int32_t first = begin + 4 * lane; first < end; first += DEPTH * STEP)
        UNROLL for (int d = 0; d < DEPTH; d++)
        {
            int32_t k = first + d * STEP, next = k + DEPTH * STEP;
            if (k < end) {
                quad value[OUTPUTS];
                UNROLL for (int m = 0; m < OUTPUTS; m++)
                {
                    value[m] = ahead[d][m];
                    if (next < end) ahead[d][m] = load_once(v[m] + next);
                }
                UNROLL for (int n = 0; n < ROWS; n++)
                {
                    uint64_t in = *(const uint64_t *)(x[n] + k);
                    UNROLL for (int m = 0; m < OUTPUTS; m++)
                        UNROLL for (int i = 0; i < 4; i++)
                            sum[m][n] += bits_float(value[m].w[i]) * float_of_bf16((uint32_t)(in >> 16 * i) & 0xFFFF);
                }
            }
        }
    UNROLL for (int m = 0; m < OUTPUTS; m++)
        UNROLL for (int n = 0; n < ROWS; n++)
        {
            float s = sum[m][n];
            UNROLL for (int mask = 16; mask; mask /= 2) s += lane_xor(s, mask);
            if (lane == 0) sums[(slice * OUTPUTS + m) * ROWS + n] = s;
        }
    BLOCK_SYNC();
    for (int i = (int)threadIdx.x; i < OUTPUTS * ROWS; i += PROJECT_BLOCK) {
        int o = i / ROWS, r = i % ROWS;
        if (row0 + r >= a.count || output + o >= w->rows) continue;
        float y[PROJECT_SLICES];
        UNROLL for (int s = 0; s < PROJECT_SLICES; s++) y[s] = sums[s * OUTPUTS * ROWS + i];
        float all = ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
        float *out = part->out + (row0 + r) * part->stride + output + o;
        *out = part->add ? *out + all : all;
    }
}

KERNEL_AHEAD(project_f32_1, project_args) { project_f32<1, 1>(a); }
KERNEL_AHEAD(project_f32_8, project_args) { project_f32<4, 8>(a); }
