/*
 * What hopper.cuh declares, on the CPU: included by it under HAYATE_EMULATED; cuda_emulated_hopper.cc does it.
 *
 * Asynchronous things happen as late as they may. A bulk copy and copy_come arrive when no thread can go on without
 * them (in the order RANDOM some of them, in any order), and until then a bulk copy's bytes are NaN. A wgmma reads shared
 * memory when it is waited for, and until then its accumulators are NaN; `a` in registers is taken when it is called, so that a
 * write to it before the wait is not seen. An error is
 *   - a wgmma without wgmma_fence since the last commit, one that is never committed or waited for, lanes that bring
 *     different matrices, a matrix outside of dynamic shared memory, TILES that are not aligned to 1024;
 *   - arrivals that were not made by arrivals_init, more of them than a phase has, a wait that nothing ends;
 *   - copy_bulk off 16 bytes or of the wrong memory, and one that has not arrived when the block ends;
 *   - threads that meet for one ID with different numbers of threads;
 *   - more registers taken by a block's warpgroups than it has at its launch (all there are, over its threads).
 * Not seen: others_read and arrivals_ready that are missing.
 */
#ifndef TESTS_BACKEND_CUDA_EMULATED_HOPPER_CUH
#define TESTS_BACKEND_CUDA_EMULATED_HOPPER_CUH

#include "backend/cuda_emulated.cuh"

struct alignas(8) arrivals {
    uint64_t state;
};

namespace emulated {

void *tiles(place at);
uint64_t matrix_of(const void *shared, uint32_t leading, uint32_t stride, place at);
void arrivals_make(arrivals *b, int count, place at);
void arrive(arrivals *b, int64_t bytes, place at); /* one arrival; bytes that it expects */
void arrivals_await(arrivals *b, int parity, place at);
void bulk_start(void *shared, const void *global, uint32_t bytes, arrivals *b, place at);
void copies_then_arrive(arrivals *b, place at);
void registers(int each, place at); /* of the running thread, from here on */
void some_meet(int id, int count, bool stay, place at);

struct product {
    int n;
    bool half, a_shared, a_mn, b_mn, add;
    float *d;
    const uint32_t *a;
    uint64_t a_matrix, b_matrix;
};
void product_start(const product *p, place at);
void product_fence(place at);
void product_commit(place at);
void product_wait(int left, place at);

} // namespace emulated

#define TILES(type) ((type *)emulated::tiles(emulated::place{__FILE__, __LINE__}))

DEVICE void arrivals_init(arrivals *b, int count, EMULATED_HERE)
{
    emulated::arrivals_make(b, count, EMULATED_PLACE);
}
DEVICE void arrivals_ready()
{
}
DEVICE void arrivals_come(arrivals *b, EMULATED_HERE)
{
    emulated::arrive(b, 0, EMULATED_PLACE);
}
DEVICE void arrivals_come_if(arrivals *b, bool come, EMULATED_HERE)
{
    if (come) emulated::arrive(b, 0, EMULATED_PLACE);
}
DEVICE void arrivals_expect(arrivals *b, uint32_t bytes, EMULATED_HERE)
{
    emulated::arrive(b, bytes, EMULATED_PLACE);
}
DEVICE void arrivals_wait(arrivals *b, int parity, EMULATED_HERE)
{
    emulated::arrivals_await(b, parity, EMULATED_PLACE);
}
DEVICE void copy_bulk(void *shared, const void *global, uint32_t bytes, arrivals *b, EMULATED_HERE)
{
    emulated::bulk_start(shared, global, bytes, b, EMULATED_PLACE);
}
/* A cluster is one block. */
#define KERNEL_CLUSTER(name, args, threads, cluster) KERNEL_OF(name, args, threads, 1)
DEVICE void copy_bulk_all(void *shared, const void *global, uint32_t bytes, arrivals *b, EMULATED_HERE)
{
    emulated::bulk_start(shared, global, bytes, b, EMULATED_PLACE);
}
DEVICE void arrivals_come_at(arrivals *b, int, EMULATED_HERE)
{
    emulated::arrive(b, 0, EMULATED_PLACE);
}
DEVICE void arrivals_come_at_if(arrivals *b, int, bool come, EMULATED_HERE)
{
    if (come) emulated::arrive(b, 0, EMULATED_PLACE);
}
DEVICE void cluster_meet(EMULATED_HERE)
{
    emulated::some_meet(0, (int)blockDim.x, true, EMULATED_PLACE);
}
DEVICE void copy_come(arrivals *b, EMULATED_HERE)
{
    emulated::copies_then_arrive(b, EMULATED_PLACE);
}
DEVICE uint32_t half_bits(float x)
{
    uint32_t u = float_bits(x), a = u & 0x7FFFFFFFu, sign = u >> 16 & 0x8000;
    if (a > 0x7F800000u) return 0x7FFF;
    if (a < 0x38800000u) return sign | (float_bits(bits_float(a) + 0.5f) - 0x3F000000u); /* multiples of 2^-24 */
    uint32_t code = ((a + 0xFFFu + (a >> 13 & 1)) >> 13) - (112u << 10);
    return sign | (code < 0x7C00 ? code : 0x7C00);
}
DEVICE uint32_t round_halves(float low, float high)
{
    return half_bits(low) | half_bits(high) << 16;
}
DEVICE float half_float(uint32_t x)
{
    uint32_t exponent = x >> 10 & 31, mantissa = x & 1023;
    float magnitude = exponent == 31 ? bits_float(0x7F800000u | mantissa << 13)
                      : exponent     ? bits_float((exponent + 112) << 23 | mantissa << 13)
                                     : (float)mantissa * 0x1p-24f;
    return x & 0x8000 ? -magnitude : magnitude;
}
DEVICE uint32_t add_halves(uint32_t a, uint32_t b)
{
    return round_halves(half_float(a) + half_float(b), half_float(a >> 16) + half_float(b >> 16));
}
DEVICE uint32_t e4m3_halves(uint32_t codes)
{
    float x[2];
    for (int i = 0; i < 2; i++) {
        uint32_t code = codes >> 8 * i & 0xFF;
        x[i] = (code & 0x7F) == 0x7F ? bits_float(0x7FC00000u) : bits_float((code & 0x7F) << 20) * 0x1p120f;
        if (code & 0x80) x[i] = -x[i];
    }
    return round_halves(x[0], x[1]);
}
DEVICE void others_wrote()
{
}
DEVICE void others_read()
{
}
template <int ID, int THREADS> DEVICE void threads_meet(EMULATED_HERE)
{
    static_assert(ID > 0 && ID < 16 && THREADS % 32 == 0, "a barrier of whole warps");
    emulated::some_meet(ID, THREADS, true, EMULATED_PLACE);
}
DEVICE void threads_meet(int id, int threads, EMULATED_HERE)
{
    emulated::some_meet(id, threads, true, EMULATED_PLACE);
}
template <int ID, int THREADS> DEVICE void threads_come(EMULATED_HERE)
{
    static_assert(ID > 0 && ID < 16 && THREADS % 32 == 0, "a barrier of whole warps");
    emulated::some_meet(ID, THREADS, false, EMULATED_PLACE);
}
DEVICE void await_inline(const uint32_t *at, uint32_t least, EMULATED_HERE)
{
    emulated::wait_arrival(at, least, "a count", EMULATED_PLACE);
}
template <int N> DEVICE void registers_take(EMULATED_HERE)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "what setmaxnreg takes");
    emulated::registers(N, EMULATED_PLACE);
}
template <int N> DEVICE void registers_give(EMULATED_HERE)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "what setmaxnreg takes");
    emulated::registers(N, EMULATED_PLACE);
}

DEVICE uint64_t matrix_of(const void *shared, uint32_t leading, uint32_t stride, EMULATED_HERE)
{
    return emulated::matrix_of(shared, leading, stride, EMULATED_PLACE);
}
template <typename type, int COUNT> DEVICE void wgmma_hold(type (&)[COUNT])
{
}
template <int COUNT> DEVICE void wgmma_clear(float (&d)[COUNT])
{
    for (int i = 0; i < COUNT; i++) d[i] = 0;
}
DEVICE void wgmma_fence(EMULATED_HERE)
{
    emulated::product_fence(EMULATED_PLACE);
}
DEVICE void wgmma_commit(EMULATED_HERE)
{
    emulated::product_commit(EMULATED_PLACE);
}
template <int LEFT> DEVICE void wgmma_wait(EMULATED_HERE)
{
    emulated::product_wait(LEFT, EMULATED_PLACE);
}
template <int LEFT, int COUNT> DEVICE void wgmma_wait(float (&)[COUNT], EMULATED_HERE)
{
    emulated::product_wait(LEFT, EMULATED_PLACE);
}
template <int N, bool HALF = false, bool B_MN = false>
DEVICE void wgmma(float (&d)[N / 2], const uint32_t a[4], uint64_t b, bool add = true, EMULATED_HERE)
{
    emulated::product p = {N, HALF, false, false, B_MN, add, d, a, 0, b};
    emulated::product_start(&p, EMULATED_PLACE);
}
template <int N, bool HALF = false, bool A_MN = false, bool B_MN = false>
DEVICE void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool add = true, EMULATED_HERE)
{
    emulated::product p = {N, HALF, true, A_MN, B_MN, add, d, nullptr, a, b};
    emulated::product_start(&p, EMULATED_PLACE);
}

#endif
