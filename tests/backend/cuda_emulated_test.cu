/* Kernels that do right and wrong on purpose, for test_cuda_emulated.c. */
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda_emulated_test.h"

/* Sum of a block's inputs: within warps, then through shared memory. Block b: in[b * blockDim + thread]. */
KERNEL(test_sum, emulated_test_args)
{
    SHARED(float, part, 32);
    float x = ((const float *)a.in)[blockIdx.x * blockDim.x + threadIdx.x];
    for (int mask = 16; mask; mask /= 2) x += lane_xor(x, mask);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    if (a.kind == 0) BLOCK_SYNC();
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++) sum += part[i];
    if (a.kind == 0) BLOCK_SYNC();
    part[threadIdx.x / 32] = -1;
    a.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/* lane_get, lane_ballot and 64-bit exchange; 16 floats a lane. */
KERNEL(test_lanes, emulated_test_args)
{
    int lane = (int)threadIdx.x % 32;
    float *out = a.out + threadIdx.x * 8;
    out[0] = lane_get((float)lane * 2, 5);
    out[1] = (float)lane_get(lane + 100, (lane + 1) % 32);
    uint32_t odd = lane_ballot(lane & 1);
    out[2] = (float)count_bits(odd);
    out[3] = (float)(odd >> lane & 1);
    uint64_t wide = lane_xor((uint64_t)lane << 40, 3);
    out[4] = (float)(wide >> 40);
    out[5] = (float)threadIdx.x;
    out[6] = fused(1 + 0x1p-12f, 1 + 0x1p-12f, -1);
    out[7] = bits_float(float_bits(0.5f) + 1);
}

/* d [16][8] += a [16][16] . b [16][8] of bf16 in shared memory: A by load_matrices, B by load_transposed. */
KERNEL(test_mma, emulated_test_args)
{
    SHARED(uint16_t, left, 16 * 16);
    SHARED(uint16_t, right, 16 * 8);
    int lane = (int)threadIdx.x;
    const uint16_t *in = (const uint16_t *)a.in;
    for (int i = lane; i < 256; i += 32) left[i] = in[i];
    for (int i = lane; i < 128; i += 32) right[i] = in[256 + i];
    WARP_SYNC();
    uint32_t la[4], lb[4];
    load_matrices(la, left + lane % 16 * 16 + lane / 16 * 8);
    load_transposed(lb, right + lane % 16 * 8);
    float d[4];
    for (int j = 0; j < 4; j++) d[j] = a.out[(lane / 4 + j / 2 * 8) * 8 + lane % 4 * 2 + j % 2];
    mma_bf16(d, la, lb);
    for (int j = 0; j < 4; j++) a.out[(lane / 4 + j / 2 * 8) * 8 + lane % 4 * 2 + j % 2] = d[j];
}

/* Two groups of copies; kind 0: waits for both, 1: for the first, 2: for none; out: what lies there then. */
KERNEL(test_copies, emulated_test_args)
{
    quad *shared = DYNAMIC(quad);
    const quad *in = (const quad *)a.in;
    int i = (int)threadIdx.x, n = (int)blockDim.x;
    copy_async(shared + i, in + i, true);
    copy_commit();
    copy_async(shared + n + i, in + n + i, i % 2 == 0);
    copy_commit();
    if (a.kind == 0) copy_wait<0>();
    if (a.kind == 1) copy_wait<1>();
    BLOCK_SYNC();
    quad *out = (quad *)a.out;
    out[i] = shared[i], out[n + i] = shared[n + i];
}

/* Threads from `count` on return at once. */
KERNEL(test_early, emulated_test_args)
{
    SHARED(float, part, 1024);
    if ((int)threadIdx.x >= a.count) return;
    part[threadIdx.x] = (float)threadIdx.x;
    BLOCK_SYNC();
    a.out[threadIdx.x] = part[((int)threadIdx.x + 1) % a.count];
}

/* Each block of a cluster adds up what all of them have at its thread's place. kind 1: one block does not come to the second
 * barrier; 2: a place outside; 3: a block does not wait for the others. */
KERNEL_NEIGHBOURS(test_cluster, emulated_test_args, 64, 1, 4)
{
    float *mine = DYNAMIC(float);
    int rank = neighbour_rank();
    mine[threadIdx.x] = (float)(blockIdx.x * blockDim.x + threadIdx.x);
    if (a.kind != 3) neighbours_meet();
    float sum = 0;
    for (int r = 0; r < 4; r++) sum += *neighbour_shared(mine + threadIdx.x + (a.kind == 2 ? 64 : 0), r);
    a.out[blockIdx.x * blockDim.x + threadIdx.x] = sum + (float)rank;
    if (a.kind != 1 || rank != 2) neighbours_meet();
}

/* Rounds of all blocks: in each a block adds what it and the next one had at its start. `in`: counters, one a round.
 * kind 1: block 1 does not come to the second round; 2: a shared array. */
KERNEL_TOGETHER(test_together, emulated_test_args, 64, 1)
{
    uint32_t *counters = (uint32_t *)(uintptr_t)a.in;
    uint32_t *mine = DYNAMIC(uint32_t);
    if (a.kind == 2) {
        SHARED(float, part, 4);
        part[0] = 1;
    }
    mine[threadIdx.x] = blockIdx.x; /* nobody else's */
    for (int round = 0; round < a.count; round++) {
        const float *from = a.out + round * (int)(gridDim.x * blockDim.x);
        float *to = a.out + (round + 1) * (int)(gridDim.x * blockDim.x);
        unsigned next = (blockIdx.x + 1) % gridDim.x;
        to[blockIdx.x * blockDim.x + threadIdx.x] =
            from[blockIdx.x * blockDim.x + threadIdx.x] + from[next * blockDim.x + threadIdx.x];
        if (a.kind == 1 && round == 1 && blockIdx.x == 1) return;
        BLOCK_SYNC();
        if (threadIdx.x == 32) {
            arrive(counters + round, 1);
            await(counters + round, gridDim.x, "all blocks of a round");
        }
        BLOCK_SYNC();
        if (mine[threadIdx.x] != blockIdx.x) a.out[0] = -1;
    }
}

KERNEL(test_wrong, emulated_test_args)
{
    SHARED(float, part, 40);
    volatile float *out = a.out;
    int lane = (int)threadIdx.x % 32;
    float x = 1;
    switch (a.kind) {
    case 0: /* half of a warp at another exchange */
        if (lane < 16)
            x = lane_xor(x, 1);
        else
            x = lane_xor(x, 2);
        break;
    case 1: /* half of a warp at none */
        if (lane < 16) x = lane_xor(x, 1);
        break;
    case 2: /* a warp at another barrier */
        if (threadIdx.x < 32)
            BLOCK_SYNC();
        else
            BLOCK_SYNC();
        break;
    case 3: /* half of a warp at a barrier, half at an exchange */
        if (lane < 16)
            BLOCK_SYNC();
        else
            x = lane_xor(x, 1);
        break;
    case 4:
        out[a.count] = 1; /* within the red zone behind the end */
        break;
    case 5:
        out[a.count + 64] = 1; /* on the page without access */
        break;
    case 6:
        out[-1] = 1;
        break;
    case 7: {
        volatile float *p = part;
        p[40] = 1;
        break;
    }
    case 8: {
        volatile float *p = DYNAMIC(float);
        p[a.count] = 1;
        break;
    }
    case 9:
        copy_async((char *)DYNAMIC(char) + 8, a.in, true);
        break;
    case 10:
        copy_async(DYNAMIC(char), (const char *)a.in + 4, true);
        break;
    case 11:
        copy_async(DYNAMIC(char), part, true);
        break;
    case 12: {
        uint32_t m[4];
        load_matrices(m, a.in);
        break;
    }
    case 13:
        load_once((const char *)a.in + 8);
        break;
    }
    if (a.kind >= 9) out[0] = x;
}

/* What hopper.cuh's operations are done wrong with; 128 threads, 16 KB. */
KERNEL(test_wrong_hopper, emulated_test_args)
{
    unsigned char *tile = TILES(unsigned char);
    SHARED(arrivals, full, 2);
    int thread = (int)threadIdx.x;
    float d[4] = {0, 0, 0, 0};
    uint32_t left[4] = {0, 0, 0, 0};
    for (int i = thread; i < 1024 / 4; i += 128) ((uint32_t *)tile)[i] = 0x3F803F80u;
    if (thread == 0) arrivals_init(&full[0], 1);
    BLOCK_SYNC();
    uint64_t b = matrix_of(tile, 0, ATOM_BYTES);
    switch (a.kind) {
    case 0:
        wgmma<8>(d, left, b);
        break;
    case 1:
        wgmma_fence();
        wgmma<8>(d, left, b);
        break;
    case 2: /* batches that are committed need a fence each */
        wgmma_fence();
        wgmma<8>(d, left, b);
        wgmma_commit();
        wgmma<8>(d, left, b);
        break;
    case 3: /* one warp does not come */
        if (thread < 96) wgmma_fence();
        break;
    case 4:
        wgmma_fence();
        wgmma<8>(d, left, matrix_of(tile + thread / 64 * 1024, 0, ATOM_BYTES));
        break;
    case 5:
        arrivals_wait(&full[0], 0);
        break;
    case 6:
        arrivals_come(&full[1]);
        break;
    case 7:
        if (thread < 2) arrivals_expect(&full[0], 16);
        break;
    case 8:
        if (thread == 0) copy_bulk(tile, a.in, 16, &full[0]);
        break;
    case 9:
        if (thread == 0) copy_bulk(tile, a.in, 24, &full[0]);
        break;
    case 10:
        if (thread < 64)
            threads_meet<1, 128>();
        else
            threads_meet<1, 96>();
        break;
    case 11:
        registers_take<256>();
        break;
    case 12: { /* no error: accumulators are NaN before the wait, and shared memory that is written before it counts */
        UNROLL for (int i = 0; i < 4; i++) left[i] = 0x3F803F80u;
        wgmma_fence();
        wgmma<8>(d, left, b);
        wgmma_commit();
        float early = d[thread % 4];
        if (thread == 0) ((uint32_t *)tile)[0] = 0x40004000u;
        BLOCK_SYNC();
        wgmma_wait<0>(d);
        a.out[thread % 4] = early == early ? 0 : d[0] + d[2];
        return;
    }
    }
    a.out[0] = d[0];
}
