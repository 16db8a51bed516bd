/*
 * NVFP4: groups of 16 E2M1 numbers that share one E4M3 scale, with or without one outer factor for a whole tensor or
 * row.
 *
 * A row of n values has n/16 groups: data [n/2] bytes, two codes a byte with the even element in the low nibble, and
 * scales [n/16] bytes, in order. Everything here is scalar fp32 arithmetic with correctly rounded division: it is the
 * definition that the kernels of every backend are held to.
 *
 * The product code * scale has at most six significant bits and is a multiple of 2^-10 of at most 2688: exact in fp16,
 * bf16 and fp32.
 *
 * Rules of all quantisers below:
 *  - The scale is never 0: it is clamped to 2^-9 (byte 0x01), so a zero group has scale 0x01 and codes 0.
 *  - Code 8 (negative zero) is never stored.
 *  - Beyond the range (amax > 2688 after the outer factor) codes saturate at +-6 * 448; infinity too.
 *  - A group with a NaN gets the NaN scale 0x7F and codes 0, and so reads back as NaN: nothing wrong turns into a
 * number.
 */
#ifndef HAYATE_NUMBER_NVFP4_H
#define HAYATE_NUMBER_NVFP4_H

#include <stddef.h>
#include <stdint.h>

enum {
    NVFP4_GROUP = 16,      /* values of one scale */
    NVFP4_GROUP_BYTES = 8, /* packed bytes of one group */
};

/* ---- Cache rows ------------------------------------------------------------------------------------------------ */

/*
 * The quantiser of cached keys, values and index keys, without an outer factor. x [16] must hold bf16 values.
 *
 *     scale = clamp(E4M3(max|x| / 6), 2^-9, 448);  code = E2M1(x / scale)
 *
 * Source: the fused cache writer of vLLM for this model, which agrees with the definition used in training.
 */
void nvfp4_cache_quantise(const float *x, uint8_t data[8], uint8_t *scale);

/* x [groups * 16] to data [groups * 8] and scales [groups]. */
void nvfp4_cache_quantise_row(const float *x, size_t groups, uint8_t *data, uint8_t *scales);

typedef enum nvfp4_readback {
    NVFP4_EXACT, /* code * scale, exact */
    NVFP4_E4M3,  /* the product rounded once to E4M3, saturating: what hardware that multiplies into E4M3 reads */
} nvfp4_readback;

/* data [groups * 8], scales [groups] to out [groups * 16]. With NVFP4_EXACT also the inverse of the activation
 * quantisers below, up to their outer factors. */
void nvfp4_decode_row(const uint8_t *data, const uint8_t *scales, size_t groups, nvfp4_readback readback, float *out);

/* The E4M3 code of E4M3(scale) * E2M1(code), rounded once, ties to even, saturating. */
uint8_t nvfp4_product_e4m3(uint8_t scale, uint8_t code);

/* ---- Checkpoint weights ---------------------------------------------------------------------------------------- */

/*
 * Codes and scales hold the weight times g = 2688/amax (2688 = 6 * 448), amax being the largest magnitude of the
 * tensor, or of the tensors that share the factor (w1 and w3 of an expert). Two conventions store the outer factor:
 *
 *   NVFP4_DIVIDE    weight_global_scale = 2688/amax, value = code * scale / global     (nvfp4-pack-quantized)
 *   NVFP4_MULTIPLY  weight_scale_2      = amax/2688, value = code * scale * global     (ModelOpt)
 *
 * Codes and scales are the same bytes in both, so the two decode to the same values up to the last rounding.
 */
typedef enum nvfp4_global {
    NVFP4_DIVIDE,
    NVFP4_MULTIPLY,
} nvfp4_global;

/* 2688/amax, to multiply weights with and to store as weight_global_scale. 1 for amax = 0 and for an amax so small that
 * the quotient is infinite. amax must be finite: check weights before. */
float nvfp4_weight_global(float amax);

/* amax/2688, to store as weight_scale_2; 1 where nvfp4_weight_global gives 1. */
float nvfp4_weight_scale_2(float amax);

/*
 * One row of a weight matrix, or a piece of it: w [groups * 16] to data [groups * 8] and scales [groups]; `global` is
 * nvfp4_weight_global(amax) whatever the convention of the file.
 *
 *     y = w * global;  scale = clamp(E4M3(max|y| / 6), 2^-9, 448);  code = E2M1(y / scale)
 */
void nvfp4_weight_quantise_row(const float *w, size_t groups, float global, uint8_t *data, uint8_t *scales);

/* data [groups * 8], scales [groups] to out [groups * 16]: the exact product code * scale, then one rounded division or
 * multiplication by the stored `global` as `convention` says. */
void nvfp4_weight_decode_row(const uint8_t *data, const uint8_t *scales, size_t groups, float global,
                             nvfp4_global convention, float *out);

/* ---- Activations of routed experts (W4A4) ---------------------------------------------------------------------- */

/*
 * Input of the first matrices (gate and up), one row x [groups * 16]:
 *
 *     r = max(max|x|, 1e-12);  xn = bf16(x * (2688/r));  a = clamp(E4M3(max|xn| / 6), 2^-9, 448);  code = E2M1(xn / a)
 *
 * to data [groups * 8] and scales [groups]. Returns the row's factor bf16(r/2688): gate and up are products with the
 * decoded row, times this factor, before the activation. A zero row gives zeros. Source: the training recipe of the
 * experts.
 */
float nvfp4_fc1_quantise_row(const float *x, size_t groups, uint8_t *data, uint8_t *scales);

/* The same with the decoded row code * a in out [groups * 16]; out may be x. */
float nvfp4_fc1_round_row(const float *x, size_t groups, float *out);

/* What products with a row of nvfp4_fc2_quantise_row are multiplied with. */
#define NVFP4_FC2_FACTOR 0.0625f

/*
 * Input of the second matrix (down), one row z [groups * 16] with the fixed factor 16:
 *
 *     b = clamp(E4M3(max|z| / 6 * 16), 2^-9, 448);  code = E2M1(z / (b / 16))
 *
 * to data [groups * 8] and scales [groups]. The row decodes to code * b, which is 16 times z: the matrix product is
 * multiplied by NVFP4_FC2_FACTOR.
 */
void nvfp4_fc2_quantise_row(const float *z, size_t groups, uint8_t *data, uint8_t *scales);

/* The same with the decoded row code * b (still 16 times z) in out [groups * 16]; out may be z. */
void nvfp4_fc2_round_row(const float *z, size_t groups, float *out);

#endif
