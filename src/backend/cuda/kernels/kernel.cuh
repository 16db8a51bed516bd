/*
 * What every kernel file includes: how a kernel is declared, and the warp's and the tensor cores' operations, which
 * exist twice: as CUDA, and for the emulation on the CPU that the tests use (HAYATE_EMULATED), where a kernel is a
 * C++ function that fibers run through, one a thread.
 *
 *     KERNEL(rms_norm, rms_norm_args)      extern "C", one parameter by value: `a`
 *     {
 *         SHARED(float, part, 32);         static shared memory, aligned to 16 bytes
 *         float *more = DYNAMIC(float);    dynamic shared memory, aligned to 128 bytes
 *         ... threadIdx.x, blockIdx, blockDim, gridDim, BLOCK_SYNC(), WARP_SYNC() ...
 *     }
 *
 * KERNEL_OF(name, args, threads, blocks): launched with at most so many threads, of which a multiprocessor shall hold so
 * many blocks: it takes no more registers than that leaves.
 *
 * KERNEL_AHEAD(name, args): does not wait for the kernel before. It reads what no kernel writes, weights, and calls follow()
 * before it reads or writes anything else; all of its threads do. KERNEL_AHEAD_OF is both.
 *
 * KERNEL_TOGETHER(name, args, threads, blocks): as KERNEL_AHEAD_OF, and its blocks exchange work by arrive() and await().
 * Nobody promises that all of them are on the GPU at once: a wait may be only for what threads bring that already run. Its
 * shared memory is dynamic.
 *
 * KERNEL_NEIGHBOURS(name, args, threads, blocks, size): as KERNEL_OF; `size` neighbours in x, a cluster, are on the GPU at once
 * and reach each other's dynamic shared memory: neighbour_rank, neighbours_meet, neighbour_shared. From 9.0 on; on GPUs before that
 * nobody launches it. hopper.cuh has clusters whose copies arrive everywhere. KERNEL_NEIGHBOURS_AHEAD: as KERNEL_AHEAD too.
 *
 * Kernels keep to what is declared here and to plain C++ (templates too, no std, no exceptions): inline PTX and CUDA's own
 * intrinsics stand in this folder's kernel.cuh alone. Names of kernels begin with hy_ in the program: KERNEL puts it there.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNEL_CUH
#define HAYATE_BACKEND_CUDA_KERNEL_CUH

#include <stdint.h>

/* Are the 16 products of an MMA one sum, the same bits in any order? They are on Hopper (test_cuda_decode --gpu). */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define MMA_ONE_SUM true
#else
#define MMA_ONE_SUM false
#endif

/* Do blocks of a launch run beside each other? In emulation only those of KERNEL_TOGETHER and KERNEL_NEIGHBOURS do. */
#ifdef HAYATE_EMULATED
#define BLOCKS_BESIDE false
#else
#define BLOCKS_BESIDE true
#endif

#ifdef HAYATE_EMULATED
#include "backend/cuda_emulated.cuh" /* tests/ */

#define KERNEL_AHEAD(name, args) KERNEL(name, args)
#define KERNEL_AHEAD_OF(name, args, threads, blocks) KERNEL(name, args)
DEVICE void follow() {}
DEVICE void follow_wait() {}
DEVICE void follow_let() {}

DEVICE float bf16_fused(float a, float b, float c)
{
    double exact = (double)a * b + c; /* the product is */
    float x = (float)exact;
    uint32_t u = float_bits(x);
    /* To odd, so that the second rounding sees what the first one dropped. */
    if (x == x && (double)x != exact) u = (((double)x > exact) == (exact > 0) ? u - 1 : u) | 1;
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return bits_float(u | 0x400000u);
    return bits_float((u + 0x7FFFu + (u >> 16 & 1)) & 0xFFFF0000u);
}
DEVICE uint32_t fused_pairs(uint32_t a, uint32_t b, uint32_t c)
{
    float low = bf16_fused(bits_float(a << 16), bits_float(b << 16), bits_float(c << 16));
    float high = bf16_fused(bits_float(a & 0xFFFF0000u), bits_float(b & 0xFFFF0000u), bits_float(c & 0xFFFF0000u));
    return float_bits(low) >> 16 | float_bits(high);
}
DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t which)
{
    uint64_t all = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) out |= (uint32_t)(all >> (which >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return out;
}
DEVICE uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) { return (a & mask) | (b & ~mask); }
DEVICE int unseen(int x) { return x; }
DEVICE int leading_zeros(uint32_t x) { return x ? __builtin_clz(x) : 32; }
DEVICE uint32_t arrive(uint32_t *at)
{
    uint32_t before = *at;
    *at = before + 1;
    return before;
}
DEVICE float load_fresh(const float *at) { return *at; }
DEVICE quad load_fresh(const quad *at) { return *at; }
DEVICE void set_bits(uint32_t *at, uint32_t bits) { *at |= bits; }
DEVICE int32_t known_here(int32_t x) { return x; }
DEVICE const uint8_t *known_here(const uint8_t *x) { return x; }
DEVICE float power_of_two(float x)
{
    float p = exp2f(x);
    return p < 0x1p-126f ? 0 : p;
}
DEVICE float read_here(const float *shared) { return *shared; }
DEVICE void read_here(const float *shared, float &x, float &y) { x = shared[0], y = shared[1]; }
DEVICE float reciprocal(float x) { return 1 / x; }
DEVICE uint32_t round_pair(float low, float high)
{
    uint32_t u[2] = {float_bits(low), float_bits(high)};
    for (int i = 0; i < 2; i++)
        u[i] = (u[i] & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFF : (u[i] + 0x7FFFu + (u[i] >> 16 & 1)) >> 16;
    return u[0] | u[1] << 16;
}
#else

#define DEVICE __device__ __forceinline__
/* A function that is called, with the registers to itself: what else the caller has waits on the stack. */
#define DEVICE_APART static __device__ __noinline__
#define KERNEL_BOUNDED(name, args, bounds)                                                                            \
    static DEVICE void body_of_##name(const args &a);                                                                 \
    extern "C" __global__ void bounds hy_##name(const __grid_constant__ args a)                                       \
    {                                                                                                                 \
        follow();                                                                                                     \
        body_of_##name(a);                                                                                            \
    }                                                                                                                 \
    static DEVICE void body_of_##name(const args &a)
#define KERNEL(name, args) KERNEL_BOUNDED(name, args, )
#define KERNEL_OF(name, args, threads, blocks) KERNEL_BOUNDED(name, args, __launch_bounds__(threads, blocks))
#define KERNEL_AHEAD(name, args) extern "C" __global__ void hy_##name(const __grid_constant__ args a)
#define KERNEL_AHEAD_OF(name, args, threads, blocks)                                                                  \
    extern "C" __global__ void __launch_bounds__(threads, blocks) hy_##name(const __grid_constant__ args a)
#define KERNEL_TOGETHER(name, args, threads, blocks) KERNEL_AHEAD_OF(name, args, threads, blocks)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define CLUSTER_ASM(...) asm volatile(__VA_ARGS__)
#define KERNEL_NEIGHBOURS(name, args, threads, blocks, size)                                                             \
    KERNEL_BOUNDED(name, args, __cluster_dims__(size, 1, 1) __launch_bounds__(threads, blocks))
#define KERNEL_NEIGHBOURS_AHEAD(name, args, threads, blocks, size)                                                       \
    extern "C" __global__ void __cluster_dims__(size, 1, 1) __launch_bounds__(threads, blocks)                           \
        hy_##name(const __grid_constant__ args a)
#else
#define CLUSTER_ASM(...) __trap()
#define KERNEL_NEIGHBOURS(name, args, threads, blocks, size) KERNEL_OF(name, args, threads, blocks)
#define KERNEL_NEIGHBOURS_AHEAD(name, args, threads, blocks, size) KERNEL_AHEAD_OF(name, args, threads, blocks)
#endif
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
extern __shared__ __align__(128) unsigned char dynamic_shared[];
#define DYNAMIC(type) ((type *)dynamic_shared)
#define UNROLL _Pragma("unroll")
#define BLOCK_SYNC() __syncthreads()
#define WARP_SYNC() __syncwarp()

/* Where driver.c allows it, a kernel's blocks come onto the GPU when all of the one before are past this, and wait here until
 * that one has ended and what it wrote can be seen: the way to the GPU is then behind them. The next kernel is let on behind the
 * wait: before it, several kernels came at once and took each other's places, and a step of one row took 5 to 8 %
 * longer.
 *
 * So when a block comes, what was before the kernel before has ended. Who needs no more than that calls the two halves by
 * itself, follow_let() first and follow_wait() before it ends, for what comes behind it; in between it reads what others wrote
 * past the first-level cache, which may have what was there before. */
DEVICE void follow_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void follow_let()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void follow()
{
    follow_wait();
    follow_let();
}

/* ---- Between the lanes of a warp; all 32 lanes take part -------------------------------------------------------- */

DEVICE float lane_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE uint32_t lane_xor(uint32_t x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE int32_t lane_xor(int32_t x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE uint64_t lane_xor(uint64_t x, int mask) { return __shfl_xor_sync(~0u, (unsigned long long)x, mask); }
DEVICE float lane_get(float x, int lane) { return __shfl_sync(~0u, x, lane); }
DEVICE uint32_t lane_get(uint32_t x, int lane) { return __shfl_sync(~0u, x, lane); }
DEVICE int32_t lane_get(int32_t x, int lane) { return __shfl_sync(~0u, x, lane); }
DEVICE uint32_t lane_ballot(bool x) { return __ballot_sync(~0u, x); }
DEVICE uint32_t lane_least(uint32_t x) { return __reduce_min_sync(~0u, x); } /* of all lanes */

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

DEVICE float bits_float(uint32_t x) { return __uint_as_float(x); }
DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
/* One rounding; products and sums elsewhere are never contracted (nvcc --fmad=false). */
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE int count_bits(uint32_t x) { return __popc(x); }
DEVICE int leading_zeros(uint32_t x) { return __clz((int)x); } /* of 0: 32 */
/* x, of which the compiler knows nothing: what follows from it is computed again in every turn of a loop, not kept in
 * registers. */
DEVICE int unseen(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}
/* Byte i of the result is byte (which >> 4i & 7) of the eight in a and b, a's the lower ones. */
DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t which) { return __byte_perm(a, b, which); }
/* Bits of a where mask has ones, of b elsewhere. One instruction, which the compiler does not take apart to mask earlier. */
DEVICE uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
    return d;
}
/* x. What is made of it is made behind this place, and not before a loop, to wait there in registers. */
DEVICE int32_t known_here(int32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}
DEVICE const uint8_t *known_here(const uint8_t *x)
{
    asm volatile("" : "+l"(x));
    __builtin_assume(__isGlobal(x));
    return x;
}
/* 2^x, 0 for what is below 2^-126: one instruction. */
DEVICE float power_of_two(float x)
{
    float p;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(x));
    return p;
}
/* 1 / x, the nearest, of a normal number of at most 2^126: without the branch that a division takes for all others. */
DEVICE float reciprocal(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return __fmaf_rn(__fmaf_rn(-x, r, 1.0f), r, r);
}
/* The nearest bf16 of both, ties to even, `low` in the low half; NaN gives 0x7FFF. */
DEVICE uint32_t round_pair(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
/* Pairs of bf16: both halves of a * b + c, each rounded once; subnormals are kept. */
DEVICE uint32_t fused_pairs(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

struct alignas(16) quad { uint32_t w[4]; };
struct alignas(8) twin { uint32_t w[2]; };
/* Read once: past the first-level cache. */
DEVICE quad load_once(const void *at)
{
    quad q;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(q.w[0]), "=r"(q.w[1]), "=r"(q.w[2]), "=r"(q.w[3]) : "l"(at));
    return q;
}
/* The same of 2 and of 8 bytes. */
DEVICE uint32_t load_once_half(const void *at)
{
    uint16_t x;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(x) : "l"(at));
    return x;
}
DEVICE void load_once_two(const void *at, uint32_t x[2])
{
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(at));
}
/* 16 bytes from global into shared memory without waiting; `there`: false writes zeros. */
DEVICE void copy_async(void *shared, const void *global, bool there)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(there ? 16 : 0));
}
/* The same of 4 bytes, which the first-level cache keeps. */
DEVICE void copy_async_word(void *shared, const void *global)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global));
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;"); }
/* From shared memory, here: what is made of it is made behind what stands before, also where the compiler would rather not. */
DEVICE float read_here(const float *shared)
{
    float x;
    asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(x) : "r"((uint32_t)__cvta_generic_to_shared(shared)) : "memory");
    return x;
}
/* Two of them, at a multiple of 8 bytes. */
DEVICE void read_here(const float *shared, float &x, float &y)
{
    asm volatile("ld.volatile.shared.v2.f32 {%0,%1}, [%2];"
                 : "=f"(x), "=f"(y) : "r"((uint32_t)__cvta_generic_to_shared(shared)) : "memory");
}
/* Until at most N committed groups of this thread are on their way. */
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

/*
 * Thread blocks of a launch that meet without waiting: each writes its part, and behind a BLOCK_SYNC one of its threads calls
 * arrive on a number in global memory and gets how many were there before. Who finds that all others were there may, behind
 * another BLOCK_SYNC, read what they wrote (by load_fresh: the first-level cache may hold what was there before).
 */
DEVICE uint32_t arrive(uint32_t *at)
{
    __threadfence();
    uint32_t before = atomicAdd(at, 1u);
    __threadfence();
    return before;
}
DEVICE float load_fresh(const float *at)
{
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(at) : "memory");
    return x;
}

DEVICE quad load_fresh(const quad *at)
{
    quad q;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(q.w[0]), "=r"(q.w[1]), "=r"(q.w[2]), "=r"(q.w[3]) : "l"(at) : "memory");
    return q;
}
/* *at += n of a whole number in shared or global memory that others count too; what was there before. */
DEVICE uint32_t count_up(uint32_t *at, uint32_t n) { return atomicAdd(at, n); }
/* *at |= bits, which others do too. */
DEVICE void set_bits(uint32_t *at, uint32_t bits) { atomicOr(at, bits); }

/* ---- Clocks: of a multiprocessor, and of the GPU in nanoseconds --------------------------------------------------- */

DEVICE uint64_t clock_cycles() { return (uint64_t)clock64(); }
DEVICE uint64_t clock_nanoseconds()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

/* ---- Between blocks ---------------------------------------------------------------------------------------------- */

/* *at += n of a number in device memory that all blocks count; what was there before. For one lane of a warp, between two
 * WARP_SYNCs: what the warp wrote before can be read by whoever sees the new number (here or in await), and behind it the
 * warp reads what others wrote before they counted. */
DEVICE uint32_t arrive(uint32_t *at, uint32_t n)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(n) : "memory");
    return before;
}
/* The first half of it: what others wrote cannot be read yet, and the first-level cache stays as it is. arrived() behind it
 * is the second half. */
DEVICE uint32_t bring(uint32_t *at, uint32_t n)
{
    uint32_t before;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(n) : "memory");
    return before;
}
DEVICE void arrived() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
/* The same without an order: a number that nobody else gets. */
DEVICE uint32_t draw(uint32_t *at, uint32_t n)
{
    uint32_t before;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(n) : "memory");
    return before;
}
/* Until *at, which only grows, is at least that: one lane, then WARP_SYNC, and the warp reads what was written before. More
 * than AWAIT_CYCLES (some seconds): an assertion that names `what` on stderr and ends the context. */
#define AWAIT_CYCLES (1ll << 34)
extern "C" __device__ void __assertfail(const char *what, const char *file, unsigned line, const char *function, size_t size);
DEVICE void await(const uint32_t *at, uint32_t least, const char *what)
{
    long long begin = 0;
    for (;;) {
        uint32_t now;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
        if ((int32_t)(now - least) >= 0) break;
        if (begin == 0) begin = clock64();
        if (clock64() - begin > AWAIT_CYCLES) __assertfail(what, "await", 0, "hayate", 1);
        __nanosleep(32);
    }
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/* A word that is 0 until another block hands it over: that word alone is there for whoever sees it, nothing beside. */
DEVICE void hand_over(uint32_t *at, uint32_t x) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory"); }
DEVICE uint32_t load_fresh(const uint32_t *at)
{
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
DEVICE uint32_t await_word(const uint32_t *at, const char *what)
{
    for (long long begin = 0;;) {
        uint32_t x = load_fresh(at);
        if (x != 0) return x;
        if (begin == 0) begin = clock64();
        if (clock64() - begin > AWAIT_CYCLES) __assertfail(what, "await_word", 0, "hayate", 1);
    }
}
/* Half a microsecond or so. */
DEVICE void pause_some() { __nanosleep(500); }
/* Its 128 bytes into the second-level cache, some time. */
DEVICE void prefetch(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

/* ---- Between the thread blocks of a cluster ----------------------------------------------------------------------- */

DEVICE int neighbour_rank()
{
    uint32_t rank = 0;
    CLUSTER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}
/* A barrier of all their threads; what they wrote to shared memory before can be read behind it. */
DEVICE void neighbours_meet()
{
    CLUSTER_ASM("barrier.cluster.arrive.release.aligned;" ::: "memory");
    CLUSTER_ASM("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* The same place in another one's dynamic shared memory; it must not end before it has been read. */
template <typename type> DEVICE const type *neighbour_shared(const type *own, int rank)
{
    const type *other = nullptr;
    CLUSTER_ASM("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(own), "r"(rank));
    return other;
}

/*
 * What is written into the shared memory of neighbours and counted there, so that nobody waits for a fence: one thread opens a
 * barrier, and says some time how many bytes are to come; behind that opening all threads of all neighbours call
 * neighbours_come, and before they push neighbours_came. What they push, 16 or 8 bytes to `place` of neighbour `rank`, can be
 * read behind pushes_wait, which all threads call once. None ends before it has what is pushed to it.
 */
struct alignas(8) pushes { uint64_t state; };
DEVICE void pushes_open(pushes *b)
{
    CLUSTER_ASM("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((uint32_t)__cvta_generic_to_shared(b)) : "memory");
    CLUSTER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void pushes_expect(pushes *b, uint32_t bytes)
{
    CLUSTER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(b)), "r"(bytes)
                : "memory");
}
DEVICE void neighbours_come() { CLUSTER_ASM("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void neighbours_came() { CLUSTER_ASM("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE void push(quad *place, int rank, const quad &x, pushes *b)
{
    CLUSTER_ASM("{.reg .b32 to, bar;\n"
                "mapa.shared::cluster.u32 to, %0, %2;\n"
                "mapa.shared::cluster.u32 bar, %1, %2;\n"
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3,%4,%5,%6}, [bar];}" ::
                "r"((uint32_t)__cvta_generic_to_shared(place)), "r"((uint32_t)__cvta_generic_to_shared(b)), "r"(rank),
                "r"(x.w[0]), "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3]) : "memory");
}
DEVICE void push(twin *place, int rank, const twin &x, pushes *b)
{
    CLUSTER_ASM("{.reg .b32 to, bar;\n"
                "mapa.shared::cluster.u32 to, %0, %2;\n"
                "mapa.shared::cluster.u32 bar, %1, %2;\n"
                "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [to], {%3,%4}, [bar];}" ::
                "r"((uint32_t)__cvta_generic_to_shared(place)), "r"((uint32_t)__cvta_generic_to_shared(b)), "r"(rank),
                "r"(x.w[0]), "r"(x.w[1]) : "memory");
}
DEVICE void pushes_wait(pushes *b)
{
    CLUSTER_ASM("{.reg .pred done;\n"
                "again:\n"
                "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                "@!done bra again;}" ::"r"((uint32_t)__cvta_generic_to_shared(b)) : "memory");
}

/* ---- Tensor cores ------------------------------------------------------------------------------------------------ */

/*
 * d[16][8] += a[16][16] . b[16][8], bf16 pairs, fp32 sums: mma.m16n8k16. With g = lane / 4 and t = lane % 4:
 *     a[0] (g, 2t..2t+1)  a[1] (g+8, 2t..)  a[2] (g, 2t+8..)  a[3] (g+8, 2t+8..)
 *     b[0] (2t..2t+1, g)  b[1] (2t+8.., g)          low half: the lower k
 *     d[0..1] (g, 2t..2t+1)  d[2..3] (g+8, 2t..2t+1)
 */
DEVICE void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* The first of a sum: d = a . b. */
DEVICE void mma_bf16_first(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}
/* Four 8x8 matrices of 16-bit values; lane i has the address of row i % 8 of matrix i / 8. */
DEVICE void load_matrices(uint32_t out[4], const void *shared)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at));
}
/* The same, each matrix transposed. */
DEVICE void load_transposed(uint32_t out[4], const void *shared)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at));
}
/* The way back: what load_transposed would load. */
DEVICE void store_transposed(void *shared, const uint32_t in[4])
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    CLUSTER_ASM("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(in[0]), "r"(in[1]),
                "r"(in[2]), "r"(in[3]) : "memory");
}

#endif
#endif
