/*
 * MXFP8: blocks of 32 E4M3 numbers that share one E8M0 scale (OCP Microscaling formats, version 1.0).
 *
 *     value = E4M3(data) * 2^(scale - 127)
 *
 * A row of n values has n/32 blocks: data [n], scales [n/32]. In published checkpoints the scales of X.weight [out, in]
 * are X.weight_scale_inv, u8 [out, in/32]; despite the name they multiply.
 */
#ifndef HAYATE_NUMBER_MXFP8_H
#define HAYATE_NUMBER_MXFP8_H

#include <stddef.h>
#include <stdint.h>

enum { MXFP8_BLOCK = 32 };

/*
 * One block: x [32] to data [32] and its scale byte. The scale is amax/448 rounded up to a power of two,
 *
 *     e = ceil(log2(amax * RN(1/448))) + 127, at most 254, 0 for a zero block;  data = E4M3(x * 2^(127 - e))
 *
 * so no element saturates. (Rounding log2(amax) down, as the OCP document suggests, clips a sixth of Gaussian blocks.)
 * A NaN element becomes the E4M3 NaN and does not count in amax; infinity saturates.
 */
void mxfp8_quantise(const float *x, uint8_t *data, uint8_t *scale);

/* A row of `blocks` blocks: x [blocks * 32] to data [blocks * 32] and scales [blocks]. */
void mxfp8_quantise_row(const float *x, size_t blocks, uint8_t *data, uint8_t *scales);

/* data [blocks * 32], scales [blocks] to out [blocks * 32]. Exact, but 448 * 2^120 and more overflow to infinity. */
void mxfp8_decode_row(const uint8_t *data, const uint8_t *scales, size_t blocks, float *out);

#endif
