#include "number/nvfp4.h"

#include <math.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"

#define LARGEST 2688.0f /* 6 * 448, the largest product of a code and a scale */

/* max|x| of count values; NaN if one of them is. */
static float largest(const float *x, size_t count)
{
    float amax = 0;
    for (size_t i = 0; i < count; i++) {
        float a = fabsf(x[i]);
        if (!(a <= amax)) amax = a; /* takes a NaN ... */
        if (isnan(amax)) break;     /* ... and keeps it */
    }
    return amax;
}

/* clamp(E4M3(x), 2^-9, 448) of a non-negative x, as a byte. */
static uint8_t scale_byte(float x)
{
    uint8_t code = e4m3_from_float(x);
    return code ? code : 0x01;
}

/* x [16] divided by `unit` to packed codes [8]. */
static void pack(const float *x, float unit, uint8_t *data)
{
    for (int i = 0; i < NVFP4_GROUP_BYTES; i++)
        data[i] = (uint8_t)(e2m1_from_float(x[2 * i] / unit) | e2m1_from_float(x[2 * i + 1] / unit) << 4);
}

/* Packed codes [8] times `scale` to out [16]. */
static void unpack(const uint8_t *data, float scale, float *out)
{
    for (int i = 0; i < NVFP4_GROUP; i++) out[i] = e2m1_to_float(e2m1_code(data, (uint64_t)i)) * scale;
}

/* One group [16] with its own scale and no other factor: what every quantiser below comes down to. */
static void quantise(const float *x, uint8_t *data, uint8_t *scale)
{
    *scale = scale_byte(largest(x, NVFP4_GROUP) / 6);
    pack(x, e4m3_to_float(*scale), data);
}

void nvfp4_cache_quantise(const float *x, uint8_t data[8], uint8_t *scale)
{
    quantise(x, data, scale);
}

void nvfp4_cache_quantise_row(const float *x, size_t groups, uint8_t *data, uint8_t *scales)
{
    for (size_t g = 0; g < groups; g++) quantise(x + g * NVFP4_GROUP, data + g * NVFP4_GROUP_BYTES, &scales[g]);
}

void nvfp4_decode_row(const uint8_t *data, const uint8_t *scales, size_t groups, nvfp4_readback readback, float *out)
{
    for (size_t g = 0; g < groups; g++) {
        float *o = out + g * NVFP4_GROUP;
        unpack(data + g * NVFP4_GROUP_BYTES, e4m3_to_float(scales[g]), o);
        if (readback == NVFP4_E4M3)
            for (int i = 0; i < NVFP4_GROUP; i++) o[i] = e4m3_round(o[i]);
    }
}

uint8_t nvfp4_product_e4m3(uint8_t scale, uint8_t code)
{
    return e4m3_from_float(e4m3_to_float(scale) * e2m1_to_float(code));
}

float nvfp4_weight_global(float amax)
{
    float global = LARGEST / amax;
    return amax == 0 || isinf(global) ? 1 : global;
}

float nvfp4_weight_scale_2(float amax)
{
    return amax == 0 || isinf(LARGEST / amax) ? 1 : amax / LARGEST;
}

void nvfp4_weight_quantise_row(const float *w, size_t groups, float global, uint8_t *data, uint8_t *scales)
{
    for (size_t g = 0; g < groups; g++) {
        float y[NVFP4_GROUP];
        for (int i = 0; i < NVFP4_GROUP; i++) y[i] = w[g * NVFP4_GROUP + (size_t)i] * global;
        quantise(y, data + g * NVFP4_GROUP_BYTES, &scales[g]);
    }
}

void nvfp4_weight_decode_row(const uint8_t *data, const uint8_t *scales, size_t groups, float global,
                             nvfp4_global convention, float *out)
{
    for (size_t g = 0; g < groups; g++) {
        float *o = out + g * NVFP4_GROUP;
        unpack(data + g * NVFP4_GROUP_BYTES, e4m3_to_float(scales[g]), o);
        if (convention == NVFP4_DIVIDE)
            for (int i = 0; i < NVFP4_GROUP; i++) o[i] /= global;
        else
            for (int i = 0; i < NVFP4_GROUP; i++) o[i] *= global;
    }
}

/* The two numbers of a row that nvfp4_fc1_quantise_row needs before its groups. */
static float fc1_row(const float *x, size_t groups, float *factor)
{
    float r = largest(x, groups * NVFP4_GROUP);
    if (r < 1e-12f) r = 1e-12f;
    *factor = LARGEST / r;
    return bf16_round(r / LARGEST);
}

static void fc1_group(const float *x, float factor, uint8_t *data, uint8_t *scale)
{
    float xn[NVFP4_GROUP];
    for (int i = 0; i < NVFP4_GROUP; i++) xn[i] = bf16_round(x[i] * factor);
    quantise(xn, data, scale);
}

float nvfp4_fc1_quantise_row(const float *x, size_t groups, uint8_t *data, uint8_t *scales)
{
    float factor, row_scale = fc1_row(x, groups, &factor);
    for (size_t g = 0; g < groups; g++)
        fc1_group(x + g * NVFP4_GROUP, factor, data + g * NVFP4_GROUP_BYTES, &scales[g]);
    return row_scale;
}

float nvfp4_fc1_round_row(const float *x, size_t groups, float *out)
{
    float factor, row_scale = fc1_row(x, groups, &factor);
    for (size_t g = 0; g < groups; g++) {
        uint8_t data[NVFP4_GROUP_BYTES], scale;
        fc1_group(x + g * NVFP4_GROUP, factor, data, &scale);
        unpack(data, e4m3_to_float(scale), out + g * NVFP4_GROUP);
    }
    return row_scale;
}

static void fc2_group(const float *z, uint8_t *data, uint8_t *scale)
{
    *scale = scale_byte(largest(z, NVFP4_GROUP) / 6 * 16);
    pack(z, e4m3_to_float(*scale) * NVFP4_FC2_FACTOR, data);
}

void nvfp4_fc2_quantise_row(const float *z, size_t groups, uint8_t *data, uint8_t *scales)
{
    for (size_t g = 0; g < groups; g++) fc2_group(z + g * NVFP4_GROUP, data + g * NVFP4_GROUP_BYTES, &scales[g]);
}

void nvfp4_fc2_round_row(const float *z, size_t groups, float *out)
{
    for (size_t g = 0; g < groups; g++) {
        uint8_t data[NVFP4_GROUP_BYTES], scale;
        fc2_group(z + g * NVFP4_GROUP, data, &scale);
        unpack(data, e4m3_to_float(scale), out + g * NVFP4_GROUP);
    }
}
