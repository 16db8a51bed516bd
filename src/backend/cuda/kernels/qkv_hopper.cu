/*
 * Projections before attention on Hopper with what becomes of their heads, in one kernel: project_hopper.cuh, whose tile of
 * 128 outputs is one head of 128 rows, and attend_in.cuh. Bits are those of the two kernels apart.
 *
 *     block   the two warpgroups that multiply leave a finished tile in shared memory and go on; of the third one warp loads,
 *             and three take a row's head a warp at a time, while the next tile is multiplied. The tile takes 64 KB, which
 *             leaves three stages
 *     bytes   not written and read again between the two kernels: 8 of a row and output. With 4,096 rows of 9,856 outputs
 *             323 MB, 75 us at 4.3 TB/s, beside about 800 us of products at 620 TFLOP/s
 *     bound   that of project_hopper.cuh. A tile's 128 heads take three warps 43 turns of some 400 cycles, 17,000 of the
 *             49,000 that its products take at 6,144 inputs; leaving the tile takes 512 cycles of shared memory
 */
#include "backend/cuda/kernels/attend_in.cuh"
#include "backend/cuda/kernels/project_hopper.cuh"
#include "backend/cuda/kernels/qkv_hopper.h"

DEVICE void heads_take(const qkv_hopper_args &a, const hopper_tile &p, float *tile, int warp)
{
    int lane = (int)threadIdx.x % CUDA_WARP, kind = (int)(p.part - a.product.of.part), job = p.output / HEADS_DIM;
    for (int i = warp; i < HOPPER_ROWS; i += HEADS_WARPS) {
        int row = p.row_tile * HOPPER_ROWS + i, swizzle = heads_swizzle(i);
        float x[4], *vector = tile + i * HEADS_DIM;
        if (row >= a.product.of.count) break;
        UNROLL for (int j = 0; j < 4; j++) x[j] = vector[dim_of(lane, j) ^ swizzle];
        vector_needs needs;
        attend_in_vector<false>(a.in, row, kind, job, x, needs, vector, swizzle);
    }
}

KERNEL_OF(qkv_bf16_hopper, qkv_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_BF16, HOPPER_HEADS>(a, a.product); }
KERNEL_OF(qkv_mxfp8_hopper, qkv_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_MXFP8, HOPPER_HEADS>(a, a.product); }
