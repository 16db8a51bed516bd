/*
 * What Hopper (sm_90a) has beyond kernel.cuh: matrix products by warpgroups, copies of slabs that arrive by themselves, and
 * barriers that count arrivals and bytes. For other architectures the same names compile and stop the kernel: the host
 * does not launch it there.
 *
 *     TILES(type)                       dynamic shared memory, aligned to 1024 bytes (its size: a multiple of 1024)
 *     arrivals *full                    a barrier in shared memory: a phase ends when `count` threads and all bytes have come
 *       arrivals_init(full, count)      one thread; then arrivals_ready() by the same, then BLOCK_SYNC()
 *       arrivals_come(full)             one arrival; what this thread wrote before is seen by those whose wait returns
 *       arrivals_come_if(full, come)    the same of those threads whose `come` is true, without a branch: between products that
 *                                       are on their way a branch makes nvcc wait for each of them
 *       arrivals_expect(full, bytes)    one arrival, and so many bytes more are to come in this phase
 *       arrivals_wait(full, parity)     until the phase of that parity has ended: 0 the first, 1 the second, 0 the third ..;
 *                                       parity 1 before any has ended returns at once
 *     copy_bulk(shared, global, bytes, full)   16-byte aligned, by one thread: arrives as bytes
 *     copy_bulk_all(shared, global, bytes, full)   to the same place of all blocks of the cluster, arriving at each one's `full`
 *     copy_come(full)                   one arrival, when all copy_async of this thread so far have arrived; `count` has it
 *     arrivals_come_at(full, rank)      one arrival at the same barrier of block `rank` of the cluster;
 *                                       arrivals_come_at_if(full, rank, come): as arrivals_come_if
 *     cluster_meet()                    a barrier of all threads of all blocks of the cluster (of a KERNEL_CLUSTER) that have
 *                                       not ended; also before a block ends at whose barriers others may still arrive
 *     e4m3_halves(codes)                the low two E4M3 codes as a pair of fp16, exactly; NaN gives NaN
 *     round_halves(low, high)           the nearest fp16 of both, ties to even, `low` in the low half
 *     add_halves(a, b)                  the sums of two pairs of fp16, each rounded once
 *     half_float(x)                     the fp16 in the low half of x
 *     others_read()                     between a thread's own writes to shared memory and a wgmma or copy_bulk that takes them:
 *                                       the writer calls it before the barrier that hands them over
 *     others_wrote()                    between a wait for what other blocks wrote to global memory and a copy_bulk of it, by
 *                                       the thread that copies
 *     threads_meet<ID, THREADS>()       a barrier of some warps; ID 1 .. 15 (0 is BLOCK_SYNC); threads_come<>: without waiting;
 *                                       threads_meet(id, threads): one that is known only here
 *     await_inline(at, least)           await of kernel.cuh without its words
 *     registers_take<N>(), registers_give<N>()  all warps of a warpgroup; N a multiple of 8, 24 .. 240, and summed over the
 *                                       warpgroups at most what a launch has, or it waits for ever: 504 of three, 512 of four
 *
 * A warpgroup is four warps, the first a multiple of four; all of it calls each of these, converged:
 *
 *     wgmma_fence()                     before the first wgmma of a batch: registers that it takes have been written
 *     wgmma<N>(d, a, b)                 d [64][N] += a [64][16] . b [16][N]; a from registers
 *     wgmma_shared<N>(d, a, b)          the same, both from shared memory
 *     wgmma_commit()                    the batch is complete
 *     wgmma_wait<LEFT>(d)               until at most LEFT batches are on their way; d may be read then, and shared memory
 *                                       of the batches that are done written; without d where d goes on to be summed
 *     wgmma_clear(d)                    d = 0, here
 *     wgmma_hold(d)                     of further accumulators of the same batch, behind the wait; and of every `a`, which the
 *                                       products read while they run: the compiler takes its registers for free after
 *                                       the call, and gives them to others before the wait if nothing holds them there
 *
 * Fragments, with g = lane / 4, t = lane % 4, w = warp % 4:
 *     d[4c + 0..1] row 16w + g, columns 8c + 2t, 8c + 2t + 1      d[4c + 2..3] row 16w + g + 8, the same
 *     a[0] row 16w + g, k 2t, 2t + 1    a[1] row + 8    a[2] k + 8    a[3] both            low half: the lower k
 * so a and d are those of mma_bf16 with 16 rows a warp.
 *
 * Matrices in shared memory are made of lines of 128 bytes, 64 values of 16 bits, eight of them an atom of 1024 bytes that
 * is aligned to as many; a line's 16-byte units are swizzled: unit u of line r lies at place u ^ (r % 8) (tile_unit).
 *     K-major (the default)     a line is a row of A or a column of B, 64 consecutive k of it. matrix_of(at, 0, 1024) where
 *                               lines lie one behind the other; 16 k further on is 32 bytes further on (MATRIX_NEXT)
 *     MN-major (A_MN, B_MN)     a line is one k, 64 consecutive rows of A or columns of B. leading: bytes from 64 rows to
 *                               the next 64; stride: from eight k to the next eight
 */
#ifndef HAYATE_BACKEND_CUDA_HOPPER_CUH
#define HAYATE_BACKEND_CUDA_HOPPER_CUH

#include "backend/cuda/kernels/kernel.cuh"

enum { WARPGROUP = 128, ATOM_BYTES = 1024, LINE_BYTES = 128 };

/* Byte of a tile at which 16-byte unit u of line r lies. */
DEVICE int32_t tile_unit(int32_t r, int32_t u) { return r * LINE_BYTES + ((u ^ (r & 7)) << 4); }

/* Added to a K-major matrix: the next 16 k of the same lines. */
#define MATRIX_NEXT 2u

#ifdef HAYATE_EMULATED
#include "backend/cuda_emulated_hopper.cuh" /* tests/ */
#else

/* Blocks of a launch in clusters of so many, one beside the other: the grid is a multiple of it. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define KERNEL_CLUSTER(name, args, threads, cluster) KERNEL_OF(name, args, threads, 1)
#else
#define KERNEL_CLUSTER(name, args, threads, cluster)                                                                  \
    KERNEL_BOUNDED(name, args, __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, 1))
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER_ASM(...) __trap()
#endif

extern __shared__ __align__(1024) unsigned char dynamic_tiles[];
#define TILES(type) ((type *)dynamic_tiles)

DEVICE uint32_t shared_address(const void *at) { return (uint32_t)__cvta_generic_to_shared(at); }

/* ---- Arrivals ---------------------------------------------------------------------------------------------------- */

struct alignas(8) arrivals { uint64_t state; };

DEVICE void arrivals_init(arrivals *b, int count)
{
    HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
DEVICE void arrivals_ready()
{
    HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
    HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE void arrivals_come(arrivals *b)
{
    HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
DEVICE void arrivals_come_if(arrivals *b, bool come)
{
    HOPPER_ASM("{.reg .pred p; setp.ne.b32 p, %1, 0;\n"
               "@p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(shared_address(b)), "r"((int)come) : "memory");
}
DEVICE void arrivals_expect(arrivals *b, uint32_t bytes)
{
    HOPPER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
DEVICE void arrivals_wait(arrivals *b, int parity)
{
    HOPPER_ASM("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" ::"r"(shared_address(b)), "r"(parity) : "memory");
}
DEVICE void copy_bulk(void *shared, const void *global, uint32_t bytes, arrivals *b)
{
    HOPPER_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
               "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(b))
               : "memory");
}
DEVICE void copy_bulk_all(void *shared, const void *global, uint32_t bytes, arrivals *b)
{
    HOPPER_ASM("{.reg .b32 n; .reg .b16 all;\n"
               "mov.u32 n, %%cluster_nctarank;\n"
               "shl.b32 n, 1, n; sub.u32 n, n, 1; cvt.u16.u32 all, n;\n"
               "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1], %2, [%3], all;}" ::
               "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(b))
               : "memory");
}
DEVICE void arrivals_come_at(arrivals *b, int rank)
{
    HOPPER_ASM("{.reg .b32 at;\n"
               "mapa.shared::cluster.u32 at, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [at];}" ::"r"(shared_address(b)), "r"(rank) : "memory");
}
DEVICE void arrivals_come_at_if(arrivals *b, int rank, bool come)
{
    HOPPER_ASM("{.reg .pred p; .reg .b32 at;\n"
               "setp.ne.b32 p, %2, 0;\n"
               "mapa.shared::cluster.u32 at, %0, %1;\n"
               "@p mbarrier.arrive.shared::cluster.b64 _, [at];}" ::"r"(shared_address(b)), "r"(rank), "r"((int)come)
               : "memory");
}
DEVICE void cluster_meet()
{
    HOPPER_ASM("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE void copy_come(arrivals *b)
{
    HOPPER_ASM("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}
DEVICE uint32_t e4m3_halves(uint32_t codes)
{
    uint32_t d = 0;
    HOPPER_ASM("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"((uint16_t)codes));
    return d;
}
DEVICE uint32_t round_halves(float low, float high)
{
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
DEVICE uint32_t add_halves(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEVICE float half_float(uint32_t x)
{
    float d;
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"((uint16_t)x));
    return d;
}
DEVICE void others_read() { HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void others_wrote() { HOPPER_ASM("fence.proxy.async;" ::: "memory"); }

template <int ID, int THREADS> DEVICE void threads_meet()
{
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
DEVICE void threads_meet(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
template <int ID, int THREADS> DEVICE void threads_come()
{
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
template <int N> DEVICE void registers_take() { HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEVICE void registers_give() { HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

/* await of kernel.cuh for warps whose products are on their way: a call, as its assertion is one, would make them wait. More
 * than AWAIT_CYCLES: a trap. */
DEVICE void await_inline(const uint32_t *at, uint32_t least)
{
    long long begin = clock64();
    for (;;) {
        uint32_t now;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
        if ((int32_t)(now - least) >= 0) break;
        if (clock64() - begin > AWAIT_CYCLES) __trap();
        __nanosleep(64);
    }
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* ---- Products of a warpgroup ------------------------------------------------------------------------------------- */

/* leading and stride in bytes, multiples of 16; leading is not looked at for K-major. The descriptor of wgmma: address / 16
 * in bits 0-13, leading / 16 in 16-29, stride / 16 in 32-45, swizzle in 62-63 (1: 128 bytes). */
DEVICE uint64_t matrix_of(const void *shared, uint32_t leading, uint32_t stride)
{
    return (uint64_t)((shared_address(shared) & 0x3FFFFu) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}

template <int COUNT> DEVICE void wgmma_hold(float (&d)[COUNT])
{
    UNROLL for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}
/* Not hoisted out of a loop over tiles, where the zeros of several loops would want registers of their own. */
template <int COUNT> DEVICE void wgmma_clear(float (&d)[COUNT])
{
    UNROLL for (int i = 0; i < COUNT; i++) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(d[i]));
}
template <int COUNT> DEVICE void wgmma_hold(uint32_t (&a)[COUNT])
{
    UNROLL for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(a[i])::"memory");
}
DEVICE void wgmma_fence() { HOPPER_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { HOPPER_ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void wgmma_wait() { HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
template <int LEFT, int COUNT> DEVICE void wgmma_wait(float (&d)[COUNT])
{
    HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    wgmma_hold(d);
}

#define WGMMA_D4 "%0,%1,%2,%3"
#define WGMMA_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D8 WGMMA_D4 ",%4,%5,%6,%7"
#define WGMMA_F8(d, i) WGMMA_F4(d, i), WGMMA_F4(d, i + 4)
#define WGMMA_D16 WGMMA_D8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_F16(d, i) WGMMA_F8(d, i), WGMMA_F8(d, i + 8)
#define WGMMA_D32 WGMMA_D16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_F32(d, i) WGMMA_F16(d, i), WGMMA_F16(d, i + 16)
#define WGMMA_D56 WGMMA_D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55"
#define WGMMA_F56(d, i) WGMMA_F32(d, i), WGMMA_F16(d, i + 32), WGMMA_F8(d, i + 48)
#define WGMMA_D64                                                                                                     \
    WGMMA_D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"                                      \
              ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_F64(d, i) WGMMA_F32(d, i), WGMMA_F32(d, i + 32)
#define WGMMA_D128                                                                                                    \
    WGMMA_D64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                                      \
              ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"                                      \
              ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"                          \
              ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_F128(d, i) WGMMA_F64(d, i), WGMMA_F64(d, i + 64)

/* The forms of N columns, with R = N / 2 accumulators a thread and the numbers of the operands behind them. */
#define WGMMA_REGISTERS(N, R, TYPE, a0, a1, a2, a3, b, from, by_mn)                                                   \
    HOPPER_ASM("{.reg .pred p; setp.ne.b32 p, %" #from ", 0;\n"                                                       \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_D##R "}, {%" #a0 ",%" #a1   \
               ",%" #a2 ",%" #a3 "}, %" #b ", p, 1, 1, %" #by_mn ";}"                                                 \
               : WGMMA_F##R(d, 0)                                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_matrix), "r"((int)add), "n"((int)B_MN))
#define WGMMA_MATRICES(N, R, TYPE, a, b, from, a_by, b_by)                                                            \
    HOPPER_ASM("{.reg .pred p; setp.ne.b32 p, %" #from ", 0;\n"                                                       \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_D##R "}, %" #a ", %" #b     \
               ", p, 1, 1, %" #a_by ", %" #b_by ";}"                                                                  \
               : WGMMA_F##R(d, 0)                                                                                     \
               : "l"(a_matrix), "l"(b_matrix), "r"((int)add), "n"((int)A_MN), "n"((int)B_MN))

template <int N, bool HALF, bool A_MN, bool B_MN> struct wgmma_form;
#define WGMMA_FORM(N, R, p0, p1, p2, p3, p4, p5, p6)                                                                  \
    template <bool HALF, bool A_MN, bool B_MN> struct wgmma_form<N, HALF, A_MN, B_MN> {                               \
        static DEVICE void registers(float (&d)[R], const uint32_t a[4], uint64_t b_matrix, bool add)                 \
        {                                                                                                             \
            if (HALF)                                                                                                 \
                WGMMA_REGISTERS(N, R, "f16", p0, p1, p2, p3, p4, p5, p6);                                             \
            else                                                                                                      \
                WGMMA_REGISTERS(N, R, "bf16", p0, p1, p2, p3, p4, p5, p6);                                            \
        }                                                                                                             \
        static DEVICE void matrices(float (&d)[R], uint64_t a_matrix, uint64_t b_matrix, bool add)                    \
        {                                                                                                             \
            if (HALF)                                                                                                 \
                WGMMA_MATRICES(N, R, "f16", p0, p1, p2, p3, p4);                                                      \
            else                                                                                                      \
                WGMMA_MATRICES(N, R, "bf16", p0, p1, p2, p3, p4);                                                     \
        }                                                                                                             \
    };
WGMMA_FORM(8, 4, 4, 5, 6, 7, 8, 9, 10)
WGMMA_FORM(16, 8, 8, 9, 10, 11, 12, 13, 14)
WGMMA_FORM(32, 16, 16, 17, 18, 19, 20, 21, 22)
WGMMA_FORM(64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA_FORM(112, 56, 56, 57, 58, 59, 60, 61, 62)
WGMMA_FORM(128, 64, 64, 65, 66, 67, 68, 69, 70)
WGMMA_FORM(256, 128, 128, 129, 130, 131, 132, 133, 134)

/* N: 8, 16, 32, 64, 112, 128, 256 columns. HALF: fp16, else bf16. add: false makes it d = a . b. */
template <int N, bool HALF = false, bool B_MN = false>
DEVICE void wgmma(float (&d)[N / 2], const uint32_t a[4], uint64_t b, bool add = true)
{
    wgmma_form<N, HALF, false, B_MN>::registers(d, a, b, add);
}
template <int N, bool HALF = false, bool A_MN = false, bool B_MN = false>
DEVICE void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool add = true)
{
    wgmma_form<N, HALF, A_MN, B_MN>::matrices(d, a, b, add);
}

#endif
#endif
