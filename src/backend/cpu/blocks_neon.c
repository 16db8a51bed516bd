/* The loops over cache blocks for 64-bit Arm: 32 registers of 4 lanes. */
#if defined(__aarch64__)
#include <arm_neon.h>

#define BLOCKS cpu_blocks_neon
#define NAME "neon"
#define TARGET
#define WIDTH 4
#define ROWS 1
#define ROWS_C 4
#define SINGLE_C 4
#define KEYS_C 4
#define ROWS_D 4
#define SINGLE_D 4
#define MULTIPLY_ADD(acc, a, b) ((acc) = (vec)vfmaq_f32((float32x4_t)(acc), (float32x4_t)(a), (float32x4_t)(b)))
#define FUSED MULTIPLY_ADD
#define MAXIMUM(x, m) SELECT((x) > (m), x, m)
#define DOT_PAIRS(acc, a, b) ((acc) += (vec_int)dot_pairs((int16x8_t)(a), (int16x8_t)(b)))
/* A table of bytes gives 256 times the number, and the shift extends its sign. */
#define EXPAND(line, s)                                                                                                \
    ((vec_int)vshrq_n_s16(vreinterpretq_s16_s8(vqtbl1q_s8(twice_e2m1(), high_nibbles((uint16x8_t)(line), s))), 8))

/* Sums of neighbouring products. */
static inline __attribute__((always_inline)) int32x4_t dot_pairs(int16x8_t a, int16x8_t b)
{
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}

static inline __attribute__((always_inline)) int8x16_t twice_e2m1(void)
{
    static const int8_t table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return vld1q_s8(table);
}

/* Nibble s of 16 bits in the high byte, 0 in the low one. */
static inline __attribute__((always_inline)) uint8x16_t high_nibbles(uint16x8_t words, int s)
{
    uint16x8_t moved = vshlq_u16(words, vdupq_n_s16((int16_t)(8 - 4 * s)));
    return vreinterpretq_u8_u16(vandq_u16(moved, vdupq_n_u16(0x0F00)));
}

#include "backend/cpu/blocks_body.h"
#else
typedef int cpu_blocks_neon_absent;
#endif
