/*
 * bound_wgmma: what the tensor cores of Hopper do by warpgroups, see bounds.cu. Two warpgroups a multiprocessor, each
 * wgmma.m64n256k16 bf16 -> fp32 on operands that lie in shared memory, [64][64] of its own and [256][64] of both: 524,288
 * operations an instruction, 128 cycles at 4,096 operations a cycle, in which 10 KiB of operands are read of the 16 that shared
 * memory has. Batches of four, waited for; the other warpgroup's fill the gaps. 128 accumulators a thread, 48 KiB.
 */
#include "backend/cuda/kernels/bounds.h"
#include "backend/cuda/kernels/hopper.cuh"

enum { ROWS = 64, COLUMNS = 256, STEPS = 4, GROUPS = BOUND_THREADS / WARPGROUP };

KERNEL_OF(bound_wgmma, bound_loop_args, BOUND_THREADS, 1)
{
    uint32_t *tiles = TILES(uint32_t);
    int group = (int)threadIdx.x / WARPGROUP;
    uint64_t clocks[2];
    float d[COLUMNS / 2];
    for (int i = (int)threadIdx.x; i < BOUND_WGMMA_SHARED / 4; i += BOUND_THREADS) tiles[i] = bound_pair(i);
    UNROLL for (int i = 0; i < COLUMNS / 2; i++) d[i] = 0;
    others_read();
    BLOCK_SYNC();
    uint64_t x = matrix_of(tiles + group * ROWS * LINE_BYTES / 4, 0, ATOM_BYTES);
    uint64_t y = matrix_of(tiles + GROUPS * ROWS * LINE_BYTES / 4, 0, ATOM_BYTES);
    clocks[0] = clock_cycles(), clocks[1] = clock_nanoseconds();
    for (int32_t r = 0; r < a.repeats; r++) {
        wgmma_fence();
        UNROLL for (int s = 0; s < STEPS; s++) wgmma_shared<COLUMNS>(d, x + s * MATRIX_NEXT, y + s * MATRIX_NEXT);
        wgmma_commit();
        wgmma_wait<0>(d);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        a.clocks[0] = clock_cycles() - clocks[0];
        a.clocks[1] = clock_nanoseconds() - clocks[1];
    }
    float sum = 0;
    UNROLL for (int i = 0; i < COLUMNS / 2; i++) sum += d[i];
    a.sums[(int64_t)blockIdx.x * BOUND_THREADS + threadIdx.x] = sum;
}
