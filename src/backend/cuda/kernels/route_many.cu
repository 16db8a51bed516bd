/*
 * The router's logits of many rows: the sums of project_f32.cu, with more of them in a block.
 *
 *     order   eight slices of K; of a slice, lane l adds elements 4l .. 4l + 3, then those 128 further on, and so forth in one
 *             chain; lanes fold as a tree. Products are rounded before they are added
 *     block   persistent, 8 warps, warp i has slice i of 8 outputs and 16 rows: 128 chains a lane
 *     memory  a warp's own ring of three steps of 128 inputs, 8 KB each, which goes on into the next tile while this one is
 *             folded
 *     bytes   of a tile 4 * cols an output and 2 * cols a row, from the second-level cache: 1.6 GB at 4,096 rows of 6,144
 *     bound   the multipliers: two instructions a product, 201 million of a warp at 4,096 rows and 128 outputs, 0.21 ms
 */
#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/route.h"

enum {
    OUTPUTS = ROUTE_MANY_OUTPUTS,
    ROWS = ROUTE_MANY_ROWS,
    SUMS = OUTPUTS * ROWS,
    STEP = 4 * CUDA_WARP,
    STAGES = ROUTE_MANY_STAGES,
    ROWS_AT = OUTPUTS * STEP * 4,
    STAGE = ROWS_AT + ROWS * STEP * 2,
};
static_assert(ROUTE_MANY_SHARED == PROJECT_SLICES * STAGES * STAGE, "shared memory");

/* Asks for step `n` of all that the block does; behind the last one nothing comes. */
DEVICE void route_ask(const route_many_args &a, int32_t n, int32_t steps, int32_t tiles, int32_t begin, int32_t end,
                      unsigned char *stage, int lane)
{
    int32_t tile = (int32_t)blockIdx.x + n / steps * (int32_t)gridDim.x, first = begin + n % steps * STEP;
    if (tile >= tiles) return;
    int32_t blocks = a.experts / OUTPUTS, output = tile % blocks * OUTPUTS, row0 = tile / blocks * ROWS;
    int32_t k = first + 4 * lane, k_row = first + lane % 16 * 8;
    const float *w = a.router + (int64_t)output * a.cols + (k < end ? k : 0);
    UNROLL for (int m = 0; m < OUTPUTS; m++) copy_async(stage + (m * CUDA_WARP + lane) * 16, w + (int64_t)m * a.cols, k < end);
    UNROLL for (int i = 0; i < ROWS / 2; i++)
    {
        int32_t row = row0 + 2 * i + lane / 16;
        bool there = row < a.count && k_row < end;
        copy_async(stage + ROWS_AT + (i * CUDA_WARP + lane) * 16, a.in + (there ? (int64_t)row * a.cols + k_row : 0), there);
    }
}

/* Sum i of lane l over all lanes, in the order of project_f32.cu, for the sums 4l .. 4l + 3. */
DEVICE void route_fold(float (&sum)[SUMS], int lane)
{
    UNROLL for (int step = 0; step < 5; step++)
    {
        const int mask = 16 >> step, left = SUMS / 2 >> step;
        bool upper = lane & mask;
        UNROLL for (int i = 0; i < SUMS / 2; i++)
            if (i < left) {
                float other = lane_xor(upper ? sum[i] : sum[i + left], mask);
                sum[i] = (upper ? sum[i + left] : sum[i]) + other;
            }
    }
}

KERNEL_OF(route_many, route_many_args, PROJECT_BLOCK, 1)
{
    SHARED(float, sums, 2 * PROJECT_SLICES * SUMS);
    int lane = (int)threadIdx.x % CUDA_WARP, slice = (int)threadIdx.x / CUDA_WARP;
    unsigned char *ring = DYNAMIC(unsigned char) + slice * STAGES * STAGE;
    int32_t blocks = a.experts / OUTPUTS, tiles = blocks * ((a.count + ROWS - 1) / ROWS), begin, end, n = 0;
    slice_of(a.cols, slice, &begin, &end);
    int32_t steps = end > begin ? (end - begin + STEP - 1) / STEP : 1;
    for (; n < STAGES - 1; n++) {
        route_ask(a, n, steps, tiles, begin, end, ring + n * STAGE, lane);
        copy_commit();
    }
    int stage = 0, half = 0;
    for (int32_t tile = (int32_t)blockIdx.x; tile < tiles; tile += (int32_t)gridDim.x, half ^= 1) {
        float sum[SUMS], *part = sums + half * PROJECT_SLICES * SUMS;
        UNROLL for (int i = 0; i < SUMS; i++) sum[i] = 0;
        for (int32_t step = 0; step < steps; step++, n++) {
            copy_wait<STAGES - 2>();
            WARP_SYNC(); /* the step is there for all lanes, and all are done with the one before */
            route_ask(a, n, steps, tiles, begin, end, ring + (stage ? stage - 1 : STAGES - 1) * STAGE, lane);
            copy_commit();
            const unsigned char *at = ring + stage * STAGE;
            stage = stage < STAGES - 1 ? stage + 1 : 0;
            quad value[OUTPUTS];
            UNROLL for (int m = 0; m < OUTPUTS; m++) value[m] = *(const quad *)(at + (m * CUDA_WARP + lane) * 16);
            UNROLL for (int r = 0; r < ROWS; r++)
            {
                uint64_t in = *(const uint64_t *)(at + ROWS_AT + (r * CUDA_WARP + lane) * 8);
                UNROLL for (int i = 0; i < 4; i++)
                {
                    float v = float_of_bf16((uint32_t)(in >> 16 * i) & 0xFFFF);
                    UNROLL for (int m = 0; m < OUTPUTS; m++) sum[r * OUTPUTS + m] += bits_float(value[m].w[i]) * v;
                }
            }
        }
        route_fold(sum, lane);
        UNROLL for (int i = 0; i < SUMS / CUDA_WARP; i++) part[slice * SUMS + lane * (SUMS / CUDA_WARP) + i] = sum[i];
        BLOCK_SYNC(); /* the other half of sums has been read by now */
        for (int i = (int)threadIdx.x; i < SUMS; i += PROJECT_BLOCK) {
            float y[PROJECT_SLICES];
            int32_t row = tile / blocks * ROWS + i / OUTPUTS;
            UNROLL for (int s = 0; s < PROJECT_SLICES; s++) y[s] = part[s * SUMS + i];
            if (row < a.count)
                a.scores[(int64_t)row * a.experts + tile % blocks * OUTPUTS + i % OUTPUTS] =
                    ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
        }
    }
    copy_wait<0>();
}
