#include "number/mxfp8.h"

#include <math.h>

#include "number/e4m3.h"
#include "number/e8m0.h"

void mxfp8_quantise(const float *x, uint8_t *data, uint8_t *scale)
{
    float amax = 0;
    for (int i = 0; i < MXFP8_BLOCK; i++) amax = fmaxf(amax, fabsf(x[i])); /* fmaxf passes over a NaN */
    /* The rounded product never lands on the other side of a power of two than amax/448 does. */
    *scale = e8m0_ceil(amax * (1.0f / 448));
    float inverse = e8m0_inverse(*scale);
    for (int i = 0; i < MXFP8_BLOCK; i++) data[i] = e4m3_from_float(x[i] * inverse);
}

void mxfp8_quantise_row(const float *x, size_t blocks, uint8_t *data, uint8_t *scales)
{
    for (size_t b = 0; b < blocks; b++) mxfp8_quantise(x + b * MXFP8_BLOCK, data + b * MXFP8_BLOCK, &scales[b]);
}

void mxfp8_decode_row(const uint8_t *data, const uint8_t *scales, size_t blocks, float *out)
{
    for (size_t b = 0; b < blocks; b++) {
        float scale = e8m0_to_float(scales[b]);
        for (int i = 0; i < MXFP8_BLOCK; i++)
            out[b * MXFP8_BLOCK + i] = e4m3_to_float(data[b * MXFP8_BLOCK + i]) * scale;
    }
}
