/* The same with bfmlalt and bfmlalb where more than a few rows share weights: they add the odd product of a pair, then
 * the even one, each fused and rounded to nearest (bfdot and bfmmla are not), which is the order of products.h. Weights
 * and inputs take half the loads. */
#if defined(__aarch64__)
#define PRODUCTS cpu_products_neon_bf16
#define NAME "neonbf16"

#include "backend/cpu/products_neon.h"

#include <string.h>

#define PAIRS

static void pair_weights(const float *w, int k, uint32_t *out)
{
    for (int i = 0; i < k; i += 2, w += 2 * GROUP, out += GROUP)
        for (int c = 0; c < GROUP; c += 4) {
            uint32x4_t even = vreinterpretq_u32_f32(vld1q_f32(w + c)), odd = vdupq_n_u32(0);
            if (i + 1 < k) odd = vreinterpretq_u32_f32(vld1q_f32(w + GROUP + c));
            vst1q_u32(out + c, vsriq_n_u32(odd, even, 16));
        }
}

static void pair_row(const float *x, int k, uint32_t *out)
{
    int i = 0;
    for (; i + 8 <= k; i += 8) {
        uint16x8_t a = vreinterpretq_u16_f32(vld1q_f32(x + i)), b = vreinterpretq_u16_f32(vld1q_f32(x + i + 4));
        vst1q_u32(out + i / 2, vreinterpretq_u32_u16(vuzp2q_u16(a, b)));
    }
    for (; i < k; i += 2) {
        uint32_t even, odd = 0;
        memcpy(&even, x + i, 4);
        if (i + 1 < k) memcpy(&odd, x + i + 1, 4);
        out[i / 2] = even >> 16 | (odd & 0xFFFF0000);
    }
}

INLINE void pair_tile(const int R, const int C, const uint32_t *x, const uint32_t *w, int pairs, float *sums)
{
    float32x4_t sum[6][4];
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int c = 0; c < C; c++) sum[r][c] = vld1q_f32(sums + r * GROUP + c * 4);
    }
    for (int i = 0; i < pairs; i++, w += GROUP) {
        bfloat16x8_t v[4];
        UNROLL
        for (int c = 0; c < C; c++) v[c] = vreinterpretq_bf16_u32(vld1q_u32(w + c * 4));
        UNROLL
        for (int r = 0; r < R; r++) {
            bfloat16x8_t b = vreinterpretq_bf16_u32(vdupq_n_u32(x[r * (K_CHUNK / 2) + i]));
            UNROLL
            for (int c = 0; c < C; c++) sum[r][c] = vbfmlalbq_f32(vbfmlaltq_f32(sum[r][c], v[c], b), v[c], b);
        }
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int c = 0; c < C; c++) vst1q_f32(sums + r * GROUP + c * 4, sum[r][c]);
    }
}

static void multiply_pairs(const uint32_t *x, int rows, const uint32_t *w, int pairs, const uint8_t *next, int lines,
                           const float *const *ahead, float *sums)
{
    (void)next, (void)lines, (void)ahead;
    for (int c = 0; c < GROUP; c += 16) {
        int r = 0;
        for (; r + 6 <= rows; r += 6) pair_tile(6, 4, x + r * (K_CHUNK / 2), w + c, pairs, sums + r * GROUP + c);
        for (; r + 3 <= rows; r += 3) pair_tile(3, 4, x + r * (K_CHUNK / 2), w + c, pairs, sums + r * GROUP + c);
        for (; r < rows; r++) pair_tile(1, 4, x + r * (K_CHUNK / 2), w + c, pairs, sums + r * GROUP + c);
    }
}

#include "backend/cpu/products_body.h"
#else
typedef int cpu_products_neon_bf16_absent;
#endif
