/*
 * What kernel.cuh declares, on the CPU: included by it under HAYATE_EMULATED, where a kernel file is C++. A thread of a
 * block is a fiber of cuda_emulated.cc; cuda_emulated.h says what is checked.
 *
 * Operations of a warp take the place where they are called, so that lanes that meet at different places are an error
 * with both lines. A new one is a struct of what a lane brings and takes, a function over the 32 of them and a call of
 * warp_meet; the last lane to arrive runs it for all.
 */
#ifndef TESTS_BACKEND_CUDA_EMULATED_CUH
#define TESTS_BACKEND_CUDA_EMULATED_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- cuda_emulated.cc -------------------------------------------------------------------------------------------- */

namespace emulated {

struct index3 {
    unsigned x, y, z;
};
struct place {
    const char *file;
    int line;
};

/* Registers a kernel before main. */
struct kernel {
    kernel(const char *name, size_t bytes, void (*run)(const void *args), int together);
    const char *name;
    size_t bytes;
    void (*run)(const void *args);
    int together; /* how many blocks of a launch are there at once, neighbours in x; -1: all of them */
    kernel *next;
};

/* Until all 32 lanes are here; `work` gets what each brought, by lane. `what` is compared by address. */
typedef void (*warp_work)(void *const lanes[32]);
void warp_meet(const char *what, warp_work work, void *brought, place at);
void block_meet(place at);

/* Static shared memory: filled with 0xFF where a block first comes past, its guard looked at when the block ends. */
struct shared_memory {
    uint64_t block; /* serial number of the block that it was filled for */
    unsigned char *bytes;
    size_t size, guard;
    const char *name;
    shared_memory *next;
};
void shared_enter(shared_memory *memory);
void *dynamic_memory();

int rank_in_cluster();
void cluster_arrive(place at);
const void *shared_of_rank(const void *own, int rank, place at);

uint32_t count_arrival(uint32_t *at, uint32_t n, place where);
void wait_arrival(const uint32_t *at, uint32_t least, const char *what, place where);
void hand_word(uint32_t *at, uint32_t x, place where);
uint32_t wait_word(const uint32_t *at, const char *what, place where);
void copy_start(void *shared, const void *global, unsigned bytes, bool there, place at);
void copy_close();
void copy_finish(int left);
void check_global(const void *at, size_t bytes, const char *what, place where);
void check_shared(const void *at, size_t bytes, const char *what, place where);

void mma_work(void *const lanes[32]);
struct mma_lane {
    float *d;
    const uint32_t *a, *b;
};
struct matrix_lane {
    uint32_t *out;
    const void *shared;
};
void matrices_work(void *const lanes[32]);
void transposed_work(void *const lanes[32]);
void transposed_store(void *const lanes[32]);

template <typename type> struct exchange {
    type in, out;
    int argument;
};
template <typename type> void xor_work(void *const lanes[32])
{
    for (int i = 0; i < 32; i++) {
        exchange<type> *e = (exchange<type> *)lanes[i];
        e->out = ((exchange<type> *)lanes[(i ^ e->argument) & 31])->in;
    }
}
template <typename type> void get_work(void *const lanes[32])
{
    for (int i = 0; i < 32; i++) {
        exchange<type> *e = (exchange<type> *)lanes[i];
        e->out = ((exchange<type> *)lanes[e->argument & 31])->in;
    }
}
template <typename type> type meet(const char *what, warp_work work, type x, int argument, place at)
{
    exchange<type> e = {x, x, argument};
    warp_meet(what, work, &e, at);
    return e.out;
}
void ballot_work(void *const lanes[32]);
void least_work(void *const lanes[32]);
void sync_work(void *const lanes[32]);

/* ---- Between cuda_emulated.cc and cuda_emulated_hopper.cc -------------------------------------------------------- */

/* report: the first error is kept; fail: and the thread that runs goes no further. */
__attribute__((format(printf, 2, 3))) void report(const place *at, const char *format, ...);
__attribute__((format(printf, 2, 3), noreturn)) void fail(const place *at, const char *format, ...);
/* The running thread waits until done(what), which the scheduler asks. `name`: of the operation, for errors. */
void park(bool (*done)(const void *), const void *what, const char *name, place at);
size_t dynamic_size();
bool random_order(uint64_t *seed);
/* The running thread's copies that have not arrived become a list, which copies_end frees: they arrive, or never do. */
void *copies_detach();
void copies_end(void *list, bool arrive);
/* Around a block; and when no thread can go on: does it change that? */
void hopper_begin();
bool hopper_go_on();
void hopper_end();

} // namespace emulated

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

extern emulated::index3 threadIdx, blockIdx, blockDim, gridDim;

#define EMULATED_KERNEL(name, args, together)                                                                          \
    static void hy_##name(const args &a);                                                                              \
    static emulated::kernel hy_##name##_registered("hy_" #name, sizeof(args),                                          \
                                                   [](const void *a) { hy_##name(*(const args *)a); }, together);      \
    static void hy_##name(const args &a)
#define KERNEL(name, args) EMULATED_KERNEL(name, args, 1)
#define KERNEL_TOGETHER(name, args, threads, blocks) EMULATED_KERNEL(name, args, -1)
#define KERNEL_NEIGHBOURS(name, args, threads, blocks, size) EMULATED_KERNEL(name, args, size)
#define KERNEL_NEIGHBOURS_AHEAD(name, args, threads, blocks, size) EMULATED_KERNEL(name, args, size)
#define KERNEL_OF(name, args, threads, blocks) KERNEL(name, args)
#define DEVICE static inline
#define DEVICE_APART static
#define UNROLL
#define __restrict__ __restrict

#define EMULATED_JOIN2(a, b) a##b
#define EMULATED_JOIN(a, b) EMULATED_JOIN2(a, b)
#define SHARED(type, name, count)                                                                                      \
    static struct {                                                                                                    \
        alignas(128) type array[count];                                                                                \
        unsigned char guard[128];                                                                                      \
    } EMULATED_JOIN(emulated_array_, __LINE__);                                                                        \
    static emulated::shared_memory EMULATED_JOIN(emulated_shared_, __LINE__) = {                                       \
        0, (unsigned char *)&EMULATED_JOIN(emulated_array_, __LINE__), sizeof(type[count]),                            \
        sizeof EMULATED_JOIN(emulated_array_, __LINE__) - sizeof(type[count]), #name, nullptr};                        \
    emulated::shared_enter(&EMULATED_JOIN(emulated_shared_, __LINE__));                                                \
    type(&name)[count] = EMULATED_JOIN(emulated_array_, __LINE__).array
#define DYNAMIC(type) ((type *)emulated::dynamic_memory())

#define EMULATED_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EMULATED_PLACE (emulated::place{file, line})
#define BLOCK_SYNC() emulated::block_meet(emulated::place{__FILE__, __LINE__})
#define WARP_SYNC()                                                                                                    \
    emulated::warp_meet("WARP_SYNC", emulated::sync_work, nullptr, emulated::place{__FILE__, __LINE__})

/* ---- Between the lanes of a warp --------------------------------------------------------------------------------- */

#define EMULATED_EXCHANGE(type)                                                                                        \
    DEVICE type lane_xor(type x, int mask, EMULATED_HERE)                                                              \
    {                                                                                                                  \
        return emulated::meet<type>("lane_xor", emulated::xor_work<type>, x, mask, EMULATED_PLACE);                    \
    }                                                                                                                  \
    DEVICE type lane_get(type x, int lane, EMULATED_HERE)                                                              \
    {                                                                                                                  \
        return emulated::meet<type>("lane_get", emulated::get_work<type>, x, lane, EMULATED_PLACE);                    \
    }
EMULATED_EXCHANGE(float)
EMULATED_EXCHANGE(uint32_t)
EMULATED_EXCHANGE(int32_t)
EMULATED_EXCHANGE(uint64_t)
#undef EMULATED_EXCHANGE

DEVICE uint32_t lane_ballot(bool x, EMULATED_HERE)
{
    return emulated::meet<uint32_t>("lane_ballot", emulated::ballot_work, x, 0, EMULATED_PLACE);
}

DEVICE uint32_t lane_least(uint32_t x, EMULATED_HERE)
{
    return emulated::meet<uint32_t>("lane_least", emulated::least_work, x, 0, EMULATED_PLACE);
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

DEVICE float bits_float(uint32_t x)
{
    float f;
    memcpy(&f, &x, 4);
    return f;
}
DEVICE uint32_t float_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}
DEVICE float fused(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
DEVICE int count_bits(uint32_t x)
{
    return __builtin_popcount(x);
}

/* Of CUDA's own: there without a header. */
DEVICE int min(int a, int b)
{
    return a < b ? a : b;
}
DEVICE int max(int a, int b)
{
    return a > b ? a : b;
}
DEVICE unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}
DEVICE unsigned max(unsigned a, unsigned b)
{
    return a > b ? a : b;
}
DEVICE int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
DEVICE int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
DEVICE float min(float a, float b)
{
    return fminf(a, b);
}
DEVICE float max(float a, float b)
{
    return fmaxf(a, b);
}
DEVICE float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

struct alignas(16) quad {
    uint32_t w[4];
};
struct alignas(8) twin {
    uint32_t w[2];
};
DEVICE quad load_once(const void *at, EMULATED_HERE)
{
    emulated::check_global(at, 16, "load_once", EMULATED_PLACE);
    quad q;
    memcpy(&q, at, sizeof q);
    return q;
}
DEVICE uint32_t load_once_half(const void *at, EMULATED_HERE)
{
    emulated::check_global(at, 2, "load_once_half", EMULATED_PLACE);
    return *(const uint16_t *)at;
}
DEVICE void load_once_two(const void *at, uint32_t x[2], EMULATED_HERE)
{
    emulated::check_global(at, 8, "load_once_two", EMULATED_PLACE);
    x[0] = ((const uint32_t *)at)[0], x[1] = ((const uint32_t *)at)[1];
}
DEVICE void copy_async(void *shared, const void *global, bool there, EMULATED_HERE)
{
    emulated::copy_start(shared, global, 16, there, EMULATED_PLACE);
}
DEVICE void copy_async_word(void *shared, const void *global, EMULATED_HERE)
{
    emulated::copy_start(shared, global, 4, true, EMULATED_PLACE);
}
DEVICE void copy_commit()
{
    emulated::copy_close();
}
template <int N> DEVICE void copy_wait()
{
    emulated::copy_finish(N);
}

DEVICE uint32_t count_up(uint32_t *at, uint32_t n)
{
    uint32_t before = *at;
    *at = before + n;
    return before;
}

/* ---- Clocks ------------------------------------------------------------------------------------------------------ */

/* Ten nanoseconds and twenty cycles a look. */
inline uint64_t emulated_looks;
DEVICE uint64_t clock_cycles()
{
    return 20 * ++emulated_looks;
}
DEVICE uint64_t clock_nanoseconds()
{
    return 10 * ++emulated_looks;
}

/* ---- Between blocks ---------------------------------------------------------------------------------------------- */

DEVICE uint32_t arrive(uint32_t *at, uint32_t n, EMULATED_HERE)
{
    return emulated::count_arrival(at, n, EMULATED_PLACE);
}
DEVICE uint32_t bring(uint32_t *at, uint32_t n, EMULATED_HERE)
{
    return emulated::count_arrival(at, n, EMULATED_PLACE);
}
DEVICE void arrived()
{
}
DEVICE uint32_t draw(uint32_t *at, uint32_t n, EMULATED_HERE)
{
    return emulated::count_arrival(at, n, EMULATED_PLACE);
}
DEVICE void await(const uint32_t *at, uint32_t least, const char *what, EMULATED_HERE)
{
    emulated::wait_arrival(at, least, what, EMULATED_PLACE);
}
DEVICE void hand_over(uint32_t *at, uint32_t x, EMULATED_HERE)
{
    emulated::hand_word(at, x, EMULATED_PLACE);
}
DEVICE uint32_t load_fresh(const uint32_t *at, EMULATED_HERE)
{
    emulated::check_global(at, sizeof *at, "load_fresh", EMULATED_PLACE);
    return *(const volatile uint32_t *)at;
}
DEVICE uint32_t await_word(const uint32_t *at, const char *what, EMULATED_HERE)
{
    return emulated::wait_word(at, what, EMULATED_PLACE);
}
DEVICE void pause_some()
{
}
DEVICE void prefetch(const void *at, EMULATED_HERE)
{
    emulated::check_global(at, 1, "prefetch", EMULATED_PLACE);
}

/* ---- Between the thread blocks of a cluster ----------------------------------------------------------------------- */

DEVICE int neighbour_rank()
{
    return emulated::rank_in_cluster();
}
DEVICE void neighbours_meet(EMULATED_HERE)
{
    emulated::cluster_arrive(EMULATED_PLACE);
}
template <typename type> DEVICE const type *neighbour_shared(const type *own, int rank, EMULATED_HERE)
{
    return (const type *)emulated::shared_of_rank(own, rank, EMULATED_PLACE);
}

/* What is pushed is there at once; the barriers of all neighbours' threads stand for the counting. */
struct alignas(8) pushes {
    uint64_t state;
};
DEVICE void pushes_open(pushes *)
{
}
DEVICE void pushes_expect(pushes *, uint32_t)
{
}
DEVICE void neighbours_come()
{
}
DEVICE void neighbours_came(EMULATED_HERE)
{
    emulated::cluster_arrive(EMULATED_PLACE);
}
template <typename type> DEVICE void push(type *place, int rank, const type &x, pushes *, EMULATED_HERE)
{
    *(type *)(uintptr_t)emulated::shared_of_rank(place, rank, EMULATED_PLACE) = x;
}
DEVICE void pushes_wait(pushes *, EMULATED_HERE)
{
    emulated::cluster_arrive(EMULATED_PLACE);
}

/* ---- Tensor cores ------------------------------------------------------------------------------------------------ */

DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], EMULATED_HERE)
{
    emulated::mma_lane lane = {d, a, b};
    emulated::warp_meet("mma_bf16", emulated::mma_work, &lane, EMULATED_PLACE);
}
DEVICE void mma_bf16_first(float d[4], const uint32_t a[4], const uint32_t b[2], EMULATED_HERE)
{
    for (int i = 0; i < 4; i++) d[i] = 0;
    emulated::mma_lane lane = {d, a, b};
    emulated::warp_meet("mma_bf16_first", emulated::mma_work, &lane, EMULATED_PLACE);
}
DEVICE void load_matrices(uint32_t out[4], const void *shared, EMULATED_HERE)
{
    emulated::check_shared(shared, 16, "load_matrices", EMULATED_PLACE);
    emulated::matrix_lane lane = {out, shared};
    emulated::warp_meet("load_matrices", emulated::matrices_work, &lane, EMULATED_PLACE);
}
DEVICE void load_transposed(uint32_t out[4], const void *shared, EMULATED_HERE)
{
    emulated::check_shared(shared, 16, "load_transposed", EMULATED_PLACE);
    emulated::matrix_lane lane = {out, shared};
    emulated::warp_meet("load_transposed", emulated::transposed_work, &lane, EMULATED_PLACE);
}
DEVICE void store_transposed(void *shared, const uint32_t in[4], EMULATED_HERE)
{
    emulated::check_shared(shared, 16, "store_transposed", EMULATED_PLACE);
    emulated::matrix_lane lane = {(uint32_t *)in, shared};
    emulated::warp_meet("store_transposed", emulated::transposed_store, &lane, EMULATED_PLACE);
}

#endif
