/*
 * What the tensor cores of this GPU do (probe.h). probe_wgmma_N: one product through every form of wgmma with N columns.
 * probe_chain: the same dot products by mma.sync and by wgmma, 16 k at a time in the same order, whose bits a test
 * compares: whether a row may go through one when few rows run and through the other when many do (DESIGN.md,
 * "Numerics") hangs on it. probe_ring: bulk copies through a ring of stages, from one warp to two warpgroups.
 *
 * One warpgroup a block; matrices are staged by plain stores. Nothing here is fast.
 */
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/probe.h"

/* `lines` lines of 64 k from column k0 of src [lines][k]: K-major. */
DEVICE void stage_lines(unsigned char *tile, const uint16_t *src, int lines, int k, int k0)
{
    for (int i = (int)threadIdx.x; i < lines * 64; i += (int)blockDim.x)
        *(uint16_t *)(tile + tile_unit(i / 64, i % 64 / 8) + i % 8 * 2) = src[(int64_t)(i / 64) * k + k0 + i % 64];
}

/* The same PROBE_K columns of src [lines][PROBE_K] as lines of 64 of the rows: MN-major. */
DEVICE void stage_across(unsigned char *tile, const uint16_t *src, int lines)
{
    for (int i = (int)threadIdx.x; i < lines * PROBE_K; i += (int)blockDim.x) {
        int line = i / PROBE_K, k = i % PROBE_K;
        *(uint16_t *)(tile + line / 64 * (PROBE_K * LINE_BYTES) + tile_unit(k, line % 64 / 8) + line % 8 * 2) = src[i];
    }
}

DEVICE void a_fragment(uint32_t out[4], const uint16_t *a, int k, int k0)
{
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
    UNROLL for (int i = 0; i < 4; i++)
        out[i] = *(const uint32_t *)(a + (int64_t)(row + i % 2 * 8) * k + k0 + lane % 4 * 2 + i / 2 * 8);
}

template <int N> DEVICE void store(const float (&d)[N / 2], float *out, int stride)
{
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
    UNROLL for (int e = 0; e < N / 2; e++)
        out[(row + e / 2 % 2 * 8) * stride + e / 4 * 8 + lane % 4 * 2 + e % 2] = d[e];
}

template <int N, bool HALF, bool A_SHARED, bool A_MN, bool B_MN> DEVICE void probe_form(const probe_args &a)
{
    unsigned char *left = TILES(unsigned char), *right = left + 64 * PROBE_K * 2;
    if (A_MN)
        stage_across(left, a.a, 64);
    else
        for (int i = 0; i < PROBE_K / 64; i++) stage_lines(left + i * 64 * LINE_BYTES, a.a, 64, PROBE_K, i * 64);
    if (B_MN)
        stage_across(right, a.b, N);
    else
        for (int i = 0; i < PROBE_K / 64; i++) stage_lines(right + i * N * LINE_BYTES, a.b, N, PROBE_K, i * 64);
    others_read();
    BLOCK_SYNC();
    float d[N / 2];
    UNROLL for (int i = 0; i < N / 2; i++) d[i] = 1000; /* the first product forgets it */
    wgmma_fence();
    UNROLL for (int s = 0; s < PROBE_K / 16; s++)
    {
        uint64_t b = B_MN ? matrix_of(right + s * 2 * ATOM_BYTES, PROBE_K * LINE_BYTES, ATOM_BYTES)
                          : matrix_of(right + s / 4 * N * LINE_BYTES, 0, ATOM_BYTES) + s % 4 * MATRIX_NEXT;
        if (A_SHARED) {
            uint64_t m = A_MN ? matrix_of(left + s * 2 * ATOM_BYTES, PROBE_K * LINE_BYTES, ATOM_BYTES)
                              : matrix_of(left + s / 4 * 64 * LINE_BYTES, 0, ATOM_BYTES) + s % 4 * MATRIX_NEXT;
            wgmma_shared<N, HALF, A_MN, B_MN>(d, m, b, s > 0);
        } else {
            uint32_t fragment[4];
            a_fragment(fragment, a.a, PROBE_K, s * 16);
            wgmma<N, HALF, B_MN>(d, fragment, b, s > 0);
            wgmma_commit();
            wgmma_wait<0>(d);
            wgmma_fence();
        }
    }
    wgmma_commit();
    wgmma_wait<0>(d);
    store<N>(d, a.out, N);
}

template <int N, bool HALF> DEVICE void probe_forms(const probe_args &a)
{
    constexpr bool WIDE = N >= 64;
    switch (a.form / 2) {
    case 0: return probe_form<N, HALF, false, false, false>(a);
    case 1: return probe_form<N, HALF, true, false, false>(a);
    case 3: return probe_form<N, HALF, true, true, false>(a);
    case 4: return probe_form<N, HALF, false, false, WIDE>(a);
    case 5: return probe_form<N, HALF, true, false, WIDE>(a);
    case 7: return probe_form<N, HALF, true, true, WIDE>(a);
    }
}

#define PROBE_WGMMA(n)                                                                                                \
    KERNEL_OF(probe_wgmma_##n, probe_args, WARPGROUP, 1)                                                              \
    {                                                                                                                 \
        if (a.form & PROBE_HALF)                                                                                      \
            probe_forms<n, true>(a);                                                                                  \
        else                                                                                                          \
            probe_forms<n, false>(a);                                                                                 \
    }
PROBE_WGMMA(8)
PROBE_WGMMA(16)
PROBE_WGMMA(32)
PROBE_WGMMA(64)
PROBE_WGMMA(128)
PROBE_WGMMA(256)

/* Columns blockIdx.x * N .. of the chains. */
template <int N, bool A_SHARED> DEVICE void wgmma_chain(const probe_args &a)
{
    unsigned char *left = TILES(unsigned char), *right = left + 64 * LINE_BYTES;
    const uint16_t *b = a.b + (int64_t)blockIdx.x * N * a.k;
    float d[N / 2];
    UNROLL for (int i = 0; i < N / 2; i++) d[i] = 0;
    for (int k0 = 0; k0 < a.k; k0 += 64) {
        stage_lines(left, a.a, 64, a.k, k0);
        stage_lines(right, b, N, a.k, k0);
        uint32_t fragment[4][4];
        UNROLL for (int s = 0; s < 4; s++) a_fragment(fragment[s], a.a, a.k, k0 + s * 16);
        others_read();
        BLOCK_SYNC();
        wgmma_fence();
        UNROLL for (int s = 0; s < 4; s++)
        {
            uint64_t columns = matrix_of(right, 0, ATOM_BYTES) + s * MATRIX_NEXT;
            if (A_SHARED)
                wgmma_shared<N>(d, matrix_of(left, 0, ATOM_BYTES) + s * MATRIX_NEXT, columns);
            else
                wgmma<N>(d, fragment[s], columns);
        }
        wgmma_commit();
        wgmma_wait<0>(d);
        BLOCK_SYNC();
    }
    store<N>(d, a.out + blockIdx.x * N, PROBE_COLUMNS);
}

template <bool SWAPPED> DEVICE void mma_chain(const probe_args &a)
{
    int lane = (int)threadIdx.x % 32;
    const uint16_t *b = a.b + (int64_t)((int)blockIdx.x * 8 + lane / 4) * a.k + lane % 4 * 2;
    float d[4] = {0, 0, 0, 0};
    for (int k0 = 0; k0 < a.k; k0 += 16) {
        uint32_t left[4], right[2] = {*(const uint32_t *)(b + k0), *(const uint32_t *)(b + k0 + 8)};
        a_fragment(left, a.a, a.k, k0);
        if (SWAPPED) {
            uint32_t x[4] = {left[2], left[3], left[0], left[1]}, y[2] = {right[1], right[0]};
            mma_bf16(d, x, y);
        } else {
            mma_bf16(d, left, right);
        }
    }
    store<8>(d, a.out + blockIdx.x * 8, PROBE_COLUMNS);
}

/* 16 blocks: forms that take 8 columns a time; one takes all of them in the first. */
KERNEL_OF(probe_chain, probe_args, WARPGROUP, 1)
{
    switch (a.form) {
    case PROBE_MMA: return mma_chain<false>(a);
    case PROBE_MMA_SWAPPED: return mma_chain<true>(a);
    case PROBE_WGMMA_8: return wgmma_chain<8, false>(a);
    case PROBE_WGMMA_128:
        if (blockIdx.x == 0) wgmma_chain<128, false>(a);
        return;
    case PROBE_WGMMA_SHARED:
        if (blockIdx.x == 0) wgmma_chain<128, true>(a);
        return;
    }
}

/*
 * out [256]: thread i of two warpgroups sums words i, i + 256, .. of a.k slabs of 4096 bytes, by whole numbers, and adds what
 * its fellow i ^ 128 of the other warpgroup has. A third warpgroup brings the slabs: the first half of each as a bulk copy,
 * the second by copy_async of all of its threads.
 */
KERNEL_OF(probe_ring, probe_args, PROBE_RING_BLOCK, 1)
{
    enum { SLAB = 4096, STAGES = 3 };
    unsigned char *stage = TILES(unsigned char);
    SHARED(arrivals, full, STAGES);
    SHARED(arrivals, free_again, STAGES);
    SHARED(uint32_t, sums, 256);
    int thread = (int)threadIdx.x;
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            arrivals_init(&full[i], 1 + WARPGROUP);
            arrivals_init(&free_again[i], 2 * WARPGROUP / 32);
        }
        arrivals_ready();
    }
    BLOCK_SYNC();
    if (thread >= 2 * WARPGROUP) {
        registers_give<40>();
        const unsigned char *from = (const unsigned char *)a.a;
        thread -= 2 * WARPGROUP;
        for (int i = 0; i < a.k; i++) {
            int s = i % STAGES;
            arrivals_wait(&free_again[s], i / STAGES % 2 ^ 1);
            if (thread == 0) {
                arrivals_expect(&full[s], SLAB / 2);
                copy_bulk(stage + s * SLAB, from + (int64_t)i * SLAB, SLAB / 2, &full[s]);
            }
            copy_async(stage + s * SLAB + SLAB / 2 + thread * 16, from + (int64_t)i * SLAB + SLAB / 2 + thread * 16, true);
            copy_come(&full[s]);
        }
        return;
    }
    registers_take<200>();
    uint32_t sum = 0;
    for (int i = 0; i < a.k; i++) {
        int s = i % STAGES;
        arrivals_wait(&full[s], i / STAGES % 2);
        const uint32_t *word = (const uint32_t *)(stage + s * SLAB);
        for (int j = thread; j < SLAB / 4; j += 2 * WARPGROUP) sum += word[j];
        WARP_SYNC();
        if (thread % 32 == 0) arrivals_come(&free_again[s]);
    }
    sums[thread] = sum;
    threads_meet<1, 2 * WARPGROUP>();
    a.out[thread] = bits_float(sum + sums[thread ^ WARPGROUP]);
}
