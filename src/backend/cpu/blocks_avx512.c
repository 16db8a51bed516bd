/* The loops over cache blocks for x86-64 with AVX-512 and its 16-bit dot product: 32 registers of 16 lanes. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "backend/cpu/kernels.h"

#define BLOCKS cpu_blocks_avx512
#define NAME "avx512"
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#include "backend/cpu/blocks_avx512.h"
#define TRANSPOSE(from, stride, to) transpose(from, stride, (__m512i *)(to))
#define SCALES8(scales, half) ((vec_int)scales8(scales, half))
#define VALUES16(data) ((vec)values16(data))

/* The 16 E2M1 numbers of 8 bytes: every lane shifts its nibble down, and only four bits of an index count. */
TARGET static inline __m512 values16(const void *data)
{
    const __m512i half = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i shift = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m512 table = _mm512_set_ps(-6.0f, -4.0f, -3.0f, -2.0f, -1.5f, -1.0f, -0.5f, -0.0f, 6.0f, 4.0f, 3.0f, 2.0f,
                                       1.5f, 1.0f, 0.5f, 0.0f);
    __m512i words = _mm512_permutexvar_epi32(half, _mm512_castsi128_si512(_mm_loadl_epi64(data)));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), table);
}

/* Word `half` of 16 tokens with two words of scales each. */
TARGET static inline __m512i scales8(const uint8_t *scales, int half)
{
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi32(_mm512_loadu_si512(scales), _mm512_add_epi32(even, _mm512_set1_epi32(half)),
                                     _mm512_loadu_si512(scales + LINE));
}

/* Words i of 16 rows in lanes, 16 x 16: pairs of rows, then of quads, then the four quarters. */
TARGET static inline __attribute__((always_inline)) void transpose(const char *from, size_t stride, __m512i to[16])
{
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(from + (size_t)i * stride);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* a[i + n]: word n of every quarter of rows i .. i + 3 */
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int n = 0; n < 4; n++) {
        __m512i even = _mm512_shuffle_i32x4(a[n], a[4 + n], 0x88), odd = _mm512_shuffle_i32x4(a[n], a[4 + n], 0xDD);
        __m512i even2 = _mm512_shuffle_i32x4(a[8 + n], a[12 + n], 0x88),
                odd2 = _mm512_shuffle_i32x4(a[8 + n], a[12 + n], 0xDD);
        to[n] = _mm512_shuffle_i32x4(even, even2, 0x88);
        to[4 + n] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
        to[8 + n] = _mm512_shuffle_i32x4(even, even2, 0xDD);
        to[12 + n] = _mm512_shuffle_i32x4(odd, odd2, 0xDD);
    }
}

#include "backend/cpu/blocks_body.h"

const cpu_blocks cpu_blocks_avx512_bf16 = {
    .name = "avx512 bf16",
    .attend = cpu_blocks_attend_bf16,
    .fold = fold,
    .finish = finish,
    .query_lanes = query_lanes,
    .query_pairs = query_pairs,
    .score_pairs = score_pairs,
    .score_keys = score_keys,
    .decode_pairs = decode_pairs,
    .decode = decode,
    .encode_nvfp4 = encode_nvfp4,
    .encode_e4m3 = encode_e4m3,
};
#else
typedef int cpu_blocks_avx512_absent;
#endif
