/*
 * The inner loops of the cpu backend over cache blocks of 128 tokens: index scores, attention, coding of cached
 * vectors.
 *
 * Every loop works on 16 independent lanes (16 query heads, or 16 tokens), so that a sum is one chain in one order
 * whatever the vector length of the machine, and all variants in cpu_blocks_all give the same bits. Products of bf16
 * values with what a cache can hold are exact in fp32, so it does not matter whether they are fused with the addition.
 *
 * Keys of an NVFP4 cache that is read exactly are multiplied as integers. The query is made fixed-point once:
 *
 *     q_k = I_k 2^-s,  I_k = round(q_k 2^s) an int16,  s such that 2^14 <= max |I_k| < 2^15 (a query of zeros: all I_k
 * are 0) q . K = 2^-s / 2 * sum over groups g of 16, ascending, of (sum in g of I_k C_k) S_g,  C_k = 2 E2M1, S_g the
 * scale
 *
 * A bf16 element above 2^-7 of the largest one is exact in it, smaller ones have an error of at most 2^-15 of the
 * largest. The inner sums stay below 2^24: they are exact in int32 and in fp32. Each group enters by one fused
 * multiplication and addition. The pairs of elements that are multiplied in one step are (8 j + s, 8 j + 4 + s), s = 0
 * .. 3, which is what a shift by 4 s leaves in the low nibbles of the 16-bit halves of the word with codes 8 j .. 8 j +
 * 7: pair s dim/8 + j, the first element in the low half.
 *
 * Arrays written with a trailing [16] are lanes and 64-byte aligned. dim is a multiple of 16 for NVFP4.
 */
#ifndef HAYATE_BACKEND_CPU_BLOCKS_H
#define HAYATE_BACKEND_CPU_BLOCKS_H

#include "backend/cpu/kernels.h"
#include "backend/ops.h"

/* Softmax state of 16 query heads over the blocks seen so far. */
typedef struct cpu_softmax {
    float max[LANES]; /* M, in units of ln 2 */
    float sum[LANES]; /* L */
} cpu_softmax;

/* One KV head of a block as it lies in the cache. */
typedef struct cpu_block {
    int dim;
    cache_format format;
    bool integers; /* NVFP4 that is read exactly: queries are pairs */
    bool round;    /* NVFP4: each product rounded to E4M3 */
    const uint8_t *keys, *key_scales, *values, *value_scales;
    const uint8_t *next; /* bytes that are read after this block, NULL: none */
    size_t next_bytes;
} cpu_block;

/* One query row of up to 16 heads of a KV head, or some rows side by side. */
typedef struct cpu_query_row {
    const void *query;      /* int32 [dim/2][16] pairs of I with integers, else float [dim][16] bf16 values */
    const float *factor;    /* [16] what turns sums into exponents of 2: scale log2(e), with integers times 2^-s / 2 */
    int tokens;             /* that the row sees of the block, 1 .. 128 */
    const int32_t *visible; /* [16] tokens that each lane sees, at most `tokens`; NULL: all of them. 0 leaves the lane's
                               state and outputs as they are. Only finite values can be hidden from a lane */
    bool first; /* state and out become those of the block, without `visible`; otherwise it is folded into them */
    cpu_softmax *state;
    float *out; /* [dim][16]: O */
} cpu_query_row;

typedef struct cpu_blocks {
    const char *name; /* "avx512 bf16", "avx512", "avx2", "neon", "portable" */

    /*
     * One block of one or more query rows for 16 heads that share a KV head:
     *     s_t = factor * (q . k_t);  m_b = max s;  e_t = 2^(s_t - m_b), 0 below 2^-62
     *     l_b = sum e_t;  o_b = sum bf16(e_t) v_t, t ascending
     * and the fold into the state. count is at most ATTEND_ROWS; scratch [ATTEND_SCRATCH(dim, count)].
     */
    void (*attend)(const cpu_block *block, const cpu_query_row *rows, int count, float *scratch);
    /* m = max(M, m_b);  L = L 2^(M-m) + l_b 2^(m_b-m);  O likewise;  M = m. */
    void (*fold)(cpu_softmax *state, float *out, const cpu_softmax *block, const float *block_out, int dim);
    /* to[h * stride + d] = bf16(O * (factor / L)), of `heads` heads. */
    void (*finish)(const cpu_softmax *state, const float *out, float factor, int dim, int heads, float *to,
                   size_t stride);

    /* Up to 16 vectors x[h * stride], bf16 values, into lanes, the other lanes zero: as floats [dim][16], or as pairs
     * [dim/2][16] with what undoes their scale in unscale [16], 2^-s / 2. A vector with an element that is not finite
     * gets NaN there. */
    void (*query_lanes)(const float *x, size_t stride, int heads, int dim, float *lanes);
    void (*query_pairs)(const float *x, size_t stride, int heads, int dim, int32_t *pairs, float *unscale);

    /*
     * best[c] = the largest q_c . k_t over the first visible[c] tokens of a block, -inf if there are none; NaN counts
     * as -inf, -0 as 0. The first takes the bytes of an NVFP4 block and queries as pairs [columns][dim/2], leaves 2^-s
     * / 2 to the caller and asks for the bytes of the block at `next` (NULL: none); the second takes decoded keys
     * [ceil(dim/16)][128][16] and queries [columns][dim].
     * scratch [SCORE_SCRATCH(dim, columns)].
     */
    void (*score_pairs)(const uint8_t *data, const uint8_t *scales, int dim, const int32_t *query, int columns,
                        const int32_t *visible, const uint8_t *next, float *best, float *scratch);
    void (*score_keys)(const float *keys, int dim, const float *query, int columns, const int32_t *visible, float *best,
                       float *scratch);

    /* `tokens` NVFP4 keys into integers, [tokens][dim/2] pairs of C, and scales [tokens][dim/16]. */
    void (*decode_pairs)(const uint8_t *data, const uint8_t *scales, int tokens, int dim, int32_t *pairs,
                         float *decoded_scales);
    /* `tokens` vectors to fp32, [ceil(dim/16)][128][16] with zeros beyond dim. NVFP4: scales linear or (values) in
     * token quads; each product rounded to E4M3 if `round`. */
    void (*decode)(cache_format format, const uint8_t *data, const uint8_t *scales, bool quads, bool round, int tokens,
                   int dim, float *out);
    /* The vector x [dim], rounded to bf16, by nvfp4_cache_quantise; the scale of group g goes to scales[g * stride]. */
    void (*encode_nvfp4)(const float *x, int dim, uint8_t *data, uint8_t *scales, int stride);
    /* E4M3 codes of the vector x [dim], rounded to bf16, over `scale`. */
    void (*encode_e4m3)(const float *x, int dim, float scale, uint8_t *out);
} cpu_blocks;

enum {
    UNIT = 16,        /* values that share a scale; columns of decoded vectors that lie together */
    ATTEND_ROWS = 16, /* rows of one call */
};
/* Floats of attention scratch: exponents of the rows, and what is decoded at a time. */
#define ATTEND_SCRATCH(dim, rows) ((size_t)CACHE_BLOCK * LANES * (size_t)(rows) + 32 * (size_t)((dim) + 15) + 2048)
/* Floats of score scratch: keys and scales of two times 16 tokens, maxima of the columns. */
#define SCORE_SCRATCH(dim, columns) ((size_t)(2 * ((dim) + 15 + ((dim) + 15) / UNIT) + (columns)) * LANES)

/* One source, blocks_body.h, compiled per instruction set; the first differs from the second in attention. */
#if defined(__x86_64__)
extern const cpu_blocks cpu_blocks_avx512_bf16, cpu_blocks_avx512, cpu_blocks_avx2;
/* The attention of cpu_blocks_avx512_bf16; open() comes before its first call, any number of times. */
void cpu_blocks_attend_bf16_open(void);
void cpu_blocks_attend_bf16(const cpu_block *block, const cpu_query_row *rows, int count, float *scratch);
#elif defined(__aarch64__)
extern const cpu_blocks cpu_blocks_neon;
#endif
extern const cpu_blocks cpu_blocks_portable;

/* The fastest variant that this machine runs. */
const cpu_blocks *cpu_blocks_best(void);
/* All variants that this machine runs, the portable one last; returns how many. For tests. */
int cpu_blocks_all(const cpu_blocks *all[4]);

#endif
