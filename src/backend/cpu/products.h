/*
 * The inner loops of projections: packed weights times activations, in variants per instruction set with the same bits.
 *
 * A weight is cut into groups of 32 outputs, two panels of 16 lanes of 32 bits. A group is a run of units, a unit the
 * lines of panel 0 and then those of panel 1, so that a product with few rows reads one ascending stream:
 *
 *     f32     units of 1 column:    a line of 16 floats
 *     bf16    units of 2 columns:   a line; lanes hold two columns, the even one low
 *     mxfp8   units of 128 columns: 32 lines of E4M3 codes, a line for 4 columns: 16 pairs of bytes for columns
 *             0 and 1, then 16 for columns 2 and 3; then a line with 4 UE8M0 scales a lane, lowest first
 *
 *     nvfp4   units of 64 columns: 8 lines of E2M1 codes, lanes hold 8 columns, lowest bits first; then a line
 *             with 4 scales a lane, as bytes of five exponent bits and three mantissa bits: bits << 20 is
 *             scale * 2^-117
 *
 * A last unit and a last group are filled with zeros.
 *
 * The order (docs/numerics.md): columns in ascending pairs, of a pair the odd one first. Inputs are bf16 values and
 * weights, but for f32, have at most eight significant bits, so their products are exact in fp32 and fusing them with
 * the addition changes nothing; f32 weights are multiplied and added apart. Products of two 4-bit operands add an exact
 * integer per 16 columns, times the exact product of the two scales. So all variants in cpu_products_all give the same
 * bits as long as nothing falls below 2^-126, and none depends on how many rows share a call.
 */
#ifndef HAYATE_BACKEND_CPU_PRODUCTS_H
#define HAYATE_BACKEND_CPU_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/kernels.h"

enum {
    GROUP = 2 * LANES,  /* outputs of a group */
    FEW_ROWS = 8,       /* rows that a `few` function takes */
    K_CHUNK = 128,      /* columns expanded at a time; a multiple of all units */
    NVFP4_OFFSET = 117, /* scales of a packed weight are 2^-117 of their value */
};

/* 16 values of a 4-bit activation. Doubled E2M1 codes in the order of nibbles in packed lines: 0 2 4 6, 1 3 5 7, 8 10
 * 12 14, 9 11 13 15. `scale` is the block's, times 2^117 for the packed scales and 1/4 for the doubled codes. */
typedef struct cpu_block4 {
    int8_t code[16];
    float scale;
    int32_t correction; /* -12 times the sum of the codes: variants that read weights as code + 12 start from it */
} cpu_block4;

/* Columns [begin, end) of a group, begin a multiple of 32, end too or the last column, to fp32: out [end - begin][32].
 */
typedef void (*cpu_expand)(const uint8_t *group, int64_t begin, int64_t end, float *out);
/* sums [rows][32] += products of columns [begin, end) of a group with x[r][begin ..], of up to FEW_ROWS rows. */
typedef void (*cpu_few)(const float *const *x, int rows, const uint8_t *group, int64_t begin, int64_t end, float *sums);
/* sums [rows][32] += products of k expanded columns w [k][32] with x[r][begin ..]; begin is even. */
typedef void (*cpu_many)(const float *const *x, int64_t begin, int rows, const float *w, int k, float *sums);

/* Columns [begin, end) of a group, begin and end as above, to pairs of bf16: out [(end - begin) / 2][32]. */
typedef void (*cpu_pairs)(const uint8_t *group, int64_t begin, int64_t end, uint32_t *out);
/* sums [rows][32] += products of columns [begin, end) of a group with x [rows] of pairs, which begin there and are
 * `stride` apart. */
typedef void (*cpu_few_pairs)(const uint32_t *x, int64_t stride, int rows, const uint8_t *group, int64_t begin,
                              int64_t end, float *sums);

typedef struct cpu_products {
    const char *name; /* "avx512bf16", "avx512", "avx2", "neonbf16", "neondot", "neon", "portable" */
    cpu_expand expand_bf16, expand_mxfp8, expand_nvfp4;
    cpu_few few_bf16, few_mxfp8, few_nvfp4; /* NULL: expand and multiply for few rows too */
    /* As few_nvfp4 for one row and two groups; NULL: one after the other. */
    void (*one_nvfp4)(const float *x, const uint8_t *group, const uint8_t *other, int64_t begin, int64_t end,
                      float *sums, float *other_sums);
    cpu_many multiply;
    cpu_many multiply_f32; /* products rounded before they are added; f32 groups are expanded as they are */

    /*
     * Where the machine multiplies pairs of bf16: columns of weights (exact in bf16) and of rows become pairs in 32
     * bits, odd column high, a missing one 0. Packed bf16 columns are such pairs as they lie. multiply_pairs is NULL
     * where the machine does not.
     */
    void (*pair_row)(const float *x, int k, uint32_t *out /* [ceil(k / 2)] */);
    cpu_pairs pairs_mxfp8, pairs_nvfp4; /* NULL: expand, and pair_weights */
    void (*pair_weights)(const float *w, int k, uint32_t *out /* [ceil(k / 2)][32] */);
    cpu_few_pairs few_pairs_bf16, few_pairs_mxfp8, few_pairs_nvfp4; /* NULL: pairs for more than a few rows alone */
    /* sums [rows][32] += pairs [pairs][32] times x[r] [pairs], rows K_CHUNK / 2 apart. Meanwhile what will be wanted
     * soon may be asked for: `lines` lines from `next` on and, unless it is NULL, K_CHUNK values from ahead[r] on. */
    void (*multiply_pairs)(const uint32_t *x, int rows, const uint32_t *w, int pairs, const uint8_t *next, int lines,
                           const float *const *ahead, float *sums);

    /* sums [rows][32] += nvfp4 columns of blocks [begin, end) of 16, begin a multiple of 4, times x[r][begin ..].
     * Meanwhile what begins at `next` may be asked for. scratch [K_CHUNK][32]. */
    void (*multiply_block4)(const cpu_block4 *const *x, int rows, const uint8_t *group, int64_t begin, int64_t end,
                            const uint8_t *next, void *scratch, float *sums);
    /* The activation quantisers of number/nvfp4.h, straight to such inputs: x [blocks * 16]; the first returns the
     * row's factor. */
    float (*quantise_fc1)(const float *x, int64_t blocks, cpu_block4 *out);
    void (*quantise_fc2)(const float *x, int64_t blocks, cpu_block4 *out);
} cpu_products;

/* One source, products_body.h, compiled per instruction set; products_avx512.c has the loops that need more. */
#if defined(__x86_64__)
extern const cpu_products cpu_products_avx512_bf16, cpu_products_avx512, cpu_products_avx2;
#elif defined(__aarch64__)
extern const cpu_products cpu_products_neon_bf16, cpu_products_neon_dot, cpu_products_neon;
#endif
extern const cpu_products cpu_products_portable;

/* The fastest variant that this machine runs. avx512bf16 is taken where vdpbf16ps issues as often as fp32 fused
 * multiply-add: AMD family 19h from model 10h on, and later families. On Intel it issues every other cycle, and
 * multiply-add is faster. */
const cpu_products *cpu_products_best(void);
#if defined(__x86_64__)
/* Whether vdpbf16ps does. */
bool cpu_bf16_full_rate(void);
/* Of the processors that run AVX-512 variants Zen 4 alone: a load and a comparison. It wants lines asked for otherwise
 * than those with a first-level cache of 48 KB. */
#define ZEN4 __builtin_cpu_is("amdfam19h")
#endif
/* All variants that this machine runs, the portable one last; returns how many. For tests. */
int cpu_products_all(const cpu_products *all[4]);

#endif
