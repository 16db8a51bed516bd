/*
 * Projections before attention on Hopper with what becomes of their heads, in one kernel: project_hopper.cuh, whose tile of
 * 128 outputs is one head of 128 rows, and attend_in.cuh. Bits are those of the two kernels apart.
 *
 *     block   a finished tile goes to shared memory, where open sums of the next one will lie later; the eight warps that
 *             multiply take its 128 vectors, HEADS_TOGETHER at a time, whose loads, sums and exchanges so wait together. The
 *             code for keys and values stands once, not once a vector: it goes through the instruction cache with every tile
 *     bytes   not written and read again between the two kernels: 8 of a row and output. With 4,096 rows of 9,856 outputs
 *             323 MB, 75 us at 4.3 TB/s, and attend_in.cu's own latencies
 *     bound   that of project_hopper.cuh, and of a tile four turns of some 600 instructions in each warp
 */
#include "backend/cuda/kernels/attend_in.cuh"
#include "backend/cuda/kernels/project_hopper.cuh"
#include "backend/cuda/kernels/qkv_hopper.h"

DEVICE void heads_take(const qkv_hopper_args &a, const hopper_tile &p, float *tile, int warp)
{
    enum { N = HEADS_TOGETHER };
    int lane = (int)threadIdx.x % CUDA_WARP, kind = (int)(p.part - a.product.of.part), job = p.output / HEADS_DIM;
    int row0 = p.row_tile * HOPPER_ROWS, count = a.product.of.count - row0;
    if (count > HOPPER_ROWS) count = HOPPER_ROWS;
    float gain[4];
    need_gain(a.in, kind, gain);
    for (int first = warp * N; first < count; first += HEADS_WARPS * N) {
        float x[N][4];
        vector_turn turn[N];
        UNROLL for (int n = 0; n < N; n++)
        {
            int i = first + n;
            need_turn(a.in, row0 + (i < count ? i : first), kind, &turn[n]); /* what lies behind the last row is not stored */
            UNROLL for (int j = 0; j < 4; j++) x[n][j] = tile[i * HEADS_DIM + (dim_of(lane, j) ^ heads_swizzle(i))];
        }
        turn_vectors(a.in, kind, x, gain, turn, tile, first);
        if (is_query(kind)) {
            UNROLL for (int n = 0; n < N; n++)
                if (first + n < count) store_query(a.in, row0 + first + n, kind, job, x[n]);
            continue;
        }
        WARP_SYNC(); /* a lane's partners have read its values */
        UNROLL for (int n = 0; n < N; n++)
            UNROLL for (int j = 0; j < 4; j++)
                tile[(first + n) * HEADS_DIM + (dim_of(lane, j) ^ heads_swizzle(first + n))] = x[n][j];
        for (int i = first; i < first + N && i < count; i++) { /* a lane's own values again: the code stands here once */
            float y[4];
            UNROLL for (int j = 0; j < 4; j++) y[j] = tile[i * HEADS_DIM + (dim_of(lane, j) ^ heads_swizzle(i))];
            store_cached(a.in, need_place(a.in, row0 + i), kind, job, y);
        }
    }
}

KERNEL_CLUSTER(qkv_bf16_hopper, qkv_hopper_args, HOPPER_BLOCK, HOPPER_CLUSTER)
{
    project_hopper<KERNEL_BF16, HOPPER_HEADS>(a, a.product);
}
KERNEL_CLUSTER(qkv_mxfp8_hopper, qkv_hopper_args, HOPPER_BLOCK, HOPPER_CLUSTER)
{
    project_hopper<KERNEL_MXFP8, HOPPER_HEADS>(a, a.product);
}
