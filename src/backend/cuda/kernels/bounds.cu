/*
 * What a GPU can do: the bounds of everything else, for `hayate bench`.
 *
 *     bound_read   16-byte loads, 8 of a thread on their way, 1,024 threads a multiprocessor: 128 KiB of it, some five times
 *                  what the latency of memory asks for at 4.8 TB/s over 132 multiprocessors
 *     bound_write  16-byte stores;  bound_copy  both
 *     bound_mma    mma.m16n8k16 bf16 -> fp32 on registers: 4,096 operations a warp and instruction; 8 independent sums of
 *                  16 warps hide its latency
 *     bound_fma    fp32 fused multiply-adds on registers, 2 operations
 *
 * Neighbouring threads take neighbouring quads, a block's next ones lie a grid further. The multiplicands are full eight-bit
 * significands of both signs, since a tensor core that multiplies ones draws less power and runs faster than with numbers.
 * Every result is needed: the words of a pass are joined and written, the sums of a loop are.
 */
#include "backend/cuda/kernels/bounds.h"
#include "backend/cuda/kernels/kernel.cuh"

KERNEL_OF(bound_read, bound_pass_args, BOUND_THREADS, BOUND_BLOCKS)
{
    SHARED(uint32_t, part, BOUND_THREADS / 32);
    const quad *from = (const quad *)a.from;
    int64_t step = (int64_t)gridDim.x * BOUND_THREADS, i = (int64_t)blockIdx.x * BOUND_THREADS + threadIdx.x;
    uint32_t sum = 0;
    for (; i + 7 * step < a.quads; i += 8 * step) {
        quad v[8];
        UNROLL for (int j = 0; j < 8; j++) v[j] = load_once(from + i + j * step);
        UNROLL for (int j = 0; j < 8; j++) sum ^= v[j].w[0] ^ v[j].w[1] ^ v[j].w[2] ^ v[j].w[3];
    }
    for (; i < a.quads; i += step) {
        quad v = load_once(from + i);
        sum ^= v.w[0] ^ v.w[1] ^ v.w[2] ^ v.w[3];
    }
    UNROLL for (int mask = 16; mask; mask /= 2) sum ^= lane_xor(sum, mask);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    BLOCK_SYNC();
    if (threadIdx.x == 0) {
        sum = 0;
        for (int w = 0; w < BOUND_THREADS / 32; w++) sum ^= part[w];
        a.sums[blockIdx.x] = sum;
    }
}

KERNEL_OF(bound_write, bound_pass_args, BOUND_THREADS, BOUND_BLOCKS)
{
    quad *to = (quad *)a.to;
    int64_t step = (int64_t)gridDim.x * BOUND_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * BOUND_THREADS + threadIdx.x; i < a.quads; i += step) {
        quad v;
        UNROLL for (int j = 0; j < 4; j++) v.w[j] = bound_word(4 * i + j);
        to[i] = v;
    }
}

KERNEL_OF(bound_copy, bound_pass_args, BOUND_THREADS, BOUND_BLOCKS)
{
    const quad *from = (const quad *)a.from;
    quad *to = (quad *)a.to;
    int64_t step = (int64_t)gridDim.x * BOUND_THREADS, i = (int64_t)blockIdx.x * BOUND_THREADS + threadIdx.x;
    for (; i + 7 * step < a.quads; i += 8 * step) {
        quad v[8];
        UNROLL for (int j = 0; j < 8; j++) v[j] = load_once(from + i + j * step);
        UNROLL for (int j = 0; j < 8; j++) to[i + j * step] = v[j];
    }
    for (; i < a.quads; i += step) to[i] = load_once(from + i);
}

DEVICE void clocks_begin(uint64_t clocks[2])
{
    clocks[0] = clock_cycles(), clocks[1] = clock_nanoseconds();
}

DEVICE void clocks_end(const bound_loop_args &a, const uint64_t clocks[2])
{
    if (blockIdx.x || threadIdx.x) return;
    a.clocks[0] = clock_cycles() - clocks[0];
    a.clocks[1] = clock_nanoseconds() - clocks[1];
}

KERNEL_OF(bound_mma, bound_loop_args, BOUND_THREADS, BOUND_LOOP_BLOCKS)
{
    float d[BOUND_CHAINS][4];
    uint32_t x[4], y[2];
    uint64_t clocks[2];
    UNROLL for (int i = 0; i < 4; i++) x[i] = bound_pair(8 * threadIdx.x + i);
    UNROLL for (int i = 0; i < 2; i++) y[i] = bound_pair(8 * threadIdx.x + 4 + i);
    UNROLL for (int i = 0; i < BOUND_CHAINS; i++) UNROLL for (int j = 0; j < 4; j++) d[i][j] = 0;
    clocks_begin(clocks);
    for (int32_t r = 0; r < a.repeats; r++) {
        UNROLL for (int i = 0; i < BOUND_CHAINS; i++) mma_bf16(d[i], x, y);
    }
    clocks_end(a, clocks);
    float sum = 0;
    UNROLL for (int j = 0; j < 4; j++) UNROLL for (int i = 0; i < BOUND_CHAINS; i++) sum += d[i][j];
    a.sums[(int64_t)blockIdx.x * BOUND_THREADS + threadIdx.x] = sum;
}

KERNEL_OF(bound_fma, bound_loop_args, BOUND_THREADS, BOUND_LOOP_BLOCKS)
{
    float d[BOUND_CHAINS], x = bits_float(bound_pair(threadIdx.x) << 16), y = bits_float(bound_pair(threadIdx.x + 1) << 16);
    uint64_t clocks[2];
    UNROLL for (int i = 0; i < BOUND_CHAINS; i++) d[i] = (float)i;
    clocks_begin(clocks);
    for (int32_t r = 0; r < a.repeats; r++) {
        UNROLL for (int i = 0; i < BOUND_CHAINS; i++) d[i] = fused(x, y, d[i]);
        UNROLL for (int i = 0; i < BOUND_CHAINS; i++) d[i] = fused(y, x, d[i]);
        x = -x; /* or the compiler sees what comes out */
    }
    clocks_end(a, clocks);
    float sum = 0;
    UNROLL for (int i = 0; i < BOUND_CHAINS; i++) sum += d[i];
    a.sums[(int64_t)blockIdx.x * BOUND_THREADS + threadIdx.x] = sum;
}
