/*
 * Twelve to sixteen independent accumulators hide the latency of four to six cycles on two pipes. The results end in a
 * volatile variable and the multiplicands come from one, so nothing can be computed in advance or left out.
 */
#include "cli/bench_peak.h"

#include <stdint.h>
#include <stdio.h>

#include "base/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

enum { CHAINS = 16, REPEATS = 4096 };

static volatile float start_float = 1.0f;
static volatile int start_int = 0x01010101;
#if defined(__aarch64__)
static volatile int start_bf16 = 0x3F803F80; /* 1 and 1 */
#endif
static volatile float sink;

typedef struct loop {
    const char *name;
    double operations; /* of one instruction */
    void (*run)(void); /* REPEATS times CHAINS instructions */
} loop;

/* One loop: `type` of `zero`, sixteen times acc = step(acc, a, b). Literal names keep the accumulators in registers. */
#define LOOP_BODY(type, zero, step, total)                                                                             \
    type c0 = zero, c1 = zero, c2 = zero, c3 = zero, c4 = zero, c5 = zero, c6 = zero, c7 = zero;                       \
    type d0 = zero, d1 = zero, d2 = zero, d3 = zero, d4 = zero, d5 = zero, d6 = zero, d7 = zero;                       \
    for (int i = 0; i < REPEATS; i++) {                                                                                \
        c0 = step(c0, a, b), c1 = step(c1, a, b), c2 = step(c2, a, b), c3 = step(c3, a, b);                            \
        c4 = step(c4, a, b), c5 = step(c5, a, b), c6 = step(c6, a, b), c7 = step(c7, a, b);                            \
        d0 = step(d0, a, b), d1 = step(d1, a, b), d2 = step(d2, a, b), d3 = step(d3, a, b);                            \
        d4 = step(d4, a, b), d5 = step(d5, a, b), d6 = step(d6, a, b), d7 = step(d7, a, b);                            \
        KEEP(c0, c1, c2, c3, c4, c5, c6, c7);                                                                          \
        KEEP(d0, d1, d2, d3, d4, d5, d6, d7);                                                                          \
    }                                                                                                                  \
    sink = total(c0) + total(c1) + total(c2) + total(c3) + total(c4) + total(c5) + total(c6) + total(c7) + total(d0) + \
           total(d1) + total(d2) + total(d3) + total(d4) + total(d5) + total(d6) + total(d7)

/* An empty statement that the compiler must take for a use and a change of eight registers. */
#if defined(__x86_64__)
#define KEEP(p, q, r, s, t, u, v, w)                                                                                   \
    __asm__ volatile("" : "+v"(p), "+v"(q), "+v"(r), "+v"(s), "+v"(t), "+v"(u), "+v"(v), "+v"(w))
#elif defined(__aarch64__)
#define KEEP(p, q, r, s, t, u, v, w)                                                                                   \
    __asm__ volatile("" : "+w"(p), "+w"(q), "+w"(r), "+w"(s), "+w"(t), "+w"(u), "+w"(v), "+w"(w))
#else
#define KEEP(p, q, r, s, t, u, v, w) (void)0
#endif

#if defined(__x86_64__)

/* ---- AVX-512 ---------------------------------------------------------------------------------------------------- */

#define WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define WIDE_INT8 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define WIDE_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define FMA_512(c, a, b) _mm512_fmadd_ps(a, b, c)
#define TOTAL_PS(x) _mm512_cvtss_f32(x)
#define TOTAL_INT(x) (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(x))

WIDE static void fp32_512(void)
{
    __m512 a = _mm512_set1_ps(start_float), b = _mm512_set1_ps(start_float);
    LOOP_BODY(__m512, _mm512_setzero_ps(), FMA_512, TOTAL_PS);
}

WIDE_INT8 static void int8_512(void)
{
    __m512i a = _mm512_set1_epi32(start_int), b = _mm512_set1_epi32(start_int);
    LOOP_BODY(__m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32, TOTAL_INT);
}

WIDE_INT8 static void int16_512(void)
{
    __m512i a = _mm512_set1_epi32(start_int), b = _mm512_set1_epi32(start_int);
    LOOP_BODY(__m512i, _mm512_setzero_si512(), _mm512_dpwssd_epi32, TOTAL_INT);
}

WIDE_BF16 static void bf16_512(void)
{
    __m512 one = _mm512_set1_ps(start_float);
    __m512bh a = _mm512_cvtne2ps_pbh(one, one), b = _mm512_cvtne2ps_pbh(one, one);
    LOOP_BODY(__m512, _mm512_setzero_ps(), _mm512_dpbf16_ps, TOTAL_PS);
}

/* ---- AVX2 ------------------------------------------------------------------------------------------------------- */

#define FMA_256(c, a, b) _mm256_fmadd_ps(a, b, c)
#define TOTAL_PS_256(x) _mm256_cvtss_f32(x)
#define TOTAL_INT_256(x) (float)_mm_cvtsi128_si32(_mm256_castsi256_si128(x))

/* Twelve chains: sixteen registers hold no more beside the multiplicand. */
__attribute__((target("avx2,fma"))) static void fp32_256(void)
{
    __m256 a = _mm256_set1_ps(start_float), b = a;
    __m256 c[12];
    for (int i = 0; i < 12; i++) c[i] = _mm256_setzero_ps();
    for (int n = 0; n < REPEATS * CHAINS / 12; n++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) c[i] = FMA_256(c[i], a, b);
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += TOTAL_PS_256(c[i]);
    sink = sum;
}

/* Without vpdpbusd a dot product of bytes takes three instructions. */
__attribute__((target("avx2"))) static void int8_256(void)
{
    __m256i a = _mm256_set1_epi32(start_int), b = a, ones = _mm256_set1_epi16(1);
    __m256i c[8];
    for (int i = 0; i < 8; i++) c[i] = _mm256_setzero_si256();
    for (int n = 0; n < REPEATS * CHAINS / 8; n++)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            __asm__ volatile("" : "+x"(a)); /* the products of two constants are not made once for all */
            c[i] = _mm256_add_epi32(c[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        }
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += TOTAL_INT_256(c[i]);
    sink = sum;
}

__attribute__((target("avx2"))) static void int16_256(void)
{
    __m256i a = _mm256_set1_epi32(start_int), b = a;
    __m256i c[8];
    for (int i = 0; i < 8; i++) c[i] = _mm256_setzero_si256();
    for (int n = 0; n < REPEATS * CHAINS / 8; n++)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            __asm__ volatile("" : "+x"(a));
            c[i] = _mm256_add_epi32(c[i], _mm256_madd_epi16(a, b));
        }
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += TOTAL_INT_256(c[i]);
    sink = sum;
}

/* ---- SSE2, which every x86-64 has ----------------------------------------------------------------------------------
 */

static void fp32_plain(void)
{
    __m128 a = _mm_set1_ps(start_float), c[8];
    for (int i = 0; i < 8; i++) c[i] = _mm_setzero_ps();
    for (int n = 0; n < REPEATS * CHAINS / 8; n++)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) c[i] = _mm_add_ps(_mm_mul_ps(c[i], a), a);
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += _mm_cvtss_f32(c[i]);
    sink = sum;
}

static loop choose(bench_peak which)
{
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    bool narrow = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (which == PEAK_INT8 && wide && __builtin_cpu_supports("avx512vnni"))
        return (loop){"vpdpbusd, 512 bits", 2 * 64, int8_512};
    if (which == PEAK_INT16 && wide && __builtin_cpu_supports("avx512vnni"))
        return (loop){"vpdpwssd, 512 bits", 2 * 32, int16_512};
    if (which == PEAK_INT16 && narrow) return (loop){"vpmaddwd and vpaddd, 256 bits", 2 * 16, int16_256};
    if (which == PEAK_INT8 && narrow) return (loop){"vpmaddubsw and vpmaddwd, 256 bits", 2 * 32, int8_256};
    if (which == PEAK_BF16 && wide && __builtin_cpu_supports("avx512bf16"))
        return (loop){"vdpbf16ps, 512 bits", 2 * 32, bf16_512};
    if (wide) return (loop){"vfmadd231ps, 512 bits", 2 * 16, fp32_512};
    if (narrow) return (loop){"vfmadd231ps, 256 bits", 2 * 8, fp32_256};
    return (loop){"mulps and addps, 128 bits", 2 * 4, fp32_plain};
}

#elif defined(__aarch64__)

/* ---- NEON ------------------------------------------------------------------------------------------------------- */

#define HWCAP_DOT (1UL << 20) /* AT_HWCAP: asimddp */
#define HWCAP2_BF (1UL << 14) /* AT_HWCAP2: bf16 */
#define TOTAL_PS(x) vgetq_lane_f32(x, 0)
#define TOTAL_INT(x) (float)vgetq_lane_s32(x, 0)

static void fp32_128(void)
{
    float32x4_t a = vdupq_n_f32(start_float), b = vdupq_n_f32(start_float);
    LOOP_BODY(float32x4_t, vdupq_n_f32(0), vfmaq_f32, TOTAL_PS);
}

/* clang before 16 has these intrinsics only in files that are compiled for the extensions as a whole. */
#if !defined(__clang__) || __clang_major__ >= 16

__attribute__((target("arch=armv8.2-a+dotprod"))) static void int8_128(void)
{
    int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(start_int)), b = a;
    LOOP_BODY(int32x4_t, vdupq_n_s32(0), vdotq_s32, TOTAL_INT);
}

__attribute__((target("arch=armv8.2-a+bf16"))) static void bf16_128(void)
{
    bfloat16x8_t a = vreinterpretq_bf16_s32(vdupq_n_s32(start_bf16)), b = a;
    LOOP_BODY(float32x4_t, vdupq_n_f32(0), vbfdotq_f32, TOTAL_PS);
}

static loop choose_extension(bench_peak which)
{
    if (which == PEAK_INT8 && (getauxval(AT_HWCAP) & HWCAP_DOT)) return (loop){"sdot, 128 bits", 2 * 16, int8_128};
    if (which == PEAK_BF16 && (getauxval(AT_HWCAP2) & HWCAP2_BF)) return (loop){"bfdot, 128 bits", 2 * 8, bf16_128};
    return (loop){0};
}

#else

static loop choose_extension(bench_peak which)
{
    (void)which, (void)start_int, (void)start_bf16;
    return (loop){0};
}

#endif

static loop choose(bench_peak which)
{
    loop extension = choose_extension(which);
    return extension.name ? extension : (loop){"fmla, 128 bits", 2 * 4, fp32_128};
}

#else

static void fp32_plain(void)
{
    float a = start_float, c[CHAINS] = {0}, sum = 0;
    for (int n = 0; n < REPEATS; n++)
        for (int i = 0; i < CHAINS; i++) c[i] = c[i] * a + a;
    for (int i = 0; i < CHAINS; i++) sum += c[i];
    sink = sum;
}

static loop choose(bench_peak which)
{
    (void)which;
    return (loop){"multiply and add, scalar", 2, fp32_plain};
}

#endif

const char *bench_peak_instruction(bench_peak which)
{
    return choose(which).name;
}

void bench_peak_print(void)
{
    printf("peaks:");
    for (int i = 0; i < BENCH_PEAKS; i++)
        printf("%s %s by %s", i ? ";" : "", bench_peak_names[i], bench_peak_instruction((bench_peak)i));
    printf("\n");
}

typedef struct peak_work {
    loop loop;
    int repeats;
} peak_work;

static void run_loops(void *arg, int64_t begin, int64_t end, int worker)
{
    const peak_work *work = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) work->loop.run();
}

double bench_peak_run(bench_peak which, threads *pool)
{
    peak_work work = {.loop = choose(which)};
    /* About five milliseconds: pieces of 20 to 60 microseconds that the threads take one by one. */
    double start = clock_seconds();
    threads_run(pool, threads_count(pool), 1, run_loops, &work);
    double one = clock_seconds() - start;
    int64_t pieces = one > 0 ? (int64_t)(0.005 / one) + 1 : 100;
    if (pieces > 1000) pieces = 1000;
    pieces *= threads_count(pool);
    start = clock_seconds();
    threads_run(pool, pieces, 1, run_loops, &work);
    double seconds = clock_seconds() - start;
    return (double)pieces * REPEATS * CHAINS * work.loop.operations / seconds;
}
