/*
 * Written once over vectors of 16 lanes (the vector extension of gcc and clang, which any target can lower) and
 * instantiated per instruction set at the end of the file. Vectors never cross a real call, so no calling convention
 * depends on the instruction set.
 */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

typedef float lanes __attribute__((vector_size(64)));
typedef int32_t lanes_int __attribute__((vector_size(64)));
typedef uint32_t lanes_bits __attribute__((vector_size(64)));

#define INLINE static inline __attribute__((always_inline))

/* memcpy keeps loads and stores free of alignment and aliasing assumptions; it compiles to one move. */
#define LOAD(v, p) __builtin_memcpy(&(v), (p), sizeof(v))
#define STORE(p, v) __builtin_memcpy((p), &(v), sizeof(v))
#define SPLAT(x) ((x) - (lanes){0})
/* Lanes of `a` where the mask (a comparison: all bits set) holds, else of `b`. */
#define SELECT(mask, a, b) ((lanes)(((mask) & (lanes_int)(a)) | (~(mask) & (lanes_int)(b))))

/* ---- Elementary steps ------------------------------------------------------------------------------------------ */

INLINE void round_bf16(lanes *x)
{
    lanes_int u = (lanes_int)*x, magnitude = u & 0x7FFFFFFF;
    lanes_int rounded = u + 0x7FFF + ((u >> 16) & 1);
    lanes_int nan = magnitude > 0x7F800000;
    *x = (lanes)(((nan & (u | 0x400000)) | (~nan & rounded)) & (int32_t)0xFFFF0000);
}

/*
 * e^x = 2^n e^r, n = round(x / ln 2), r = x - n ln 2 in two parts (n * LN2_HIGH is exact), e^r by its Taylor series to
 * r^7: |r| <= 0.3466, so what is left out is below 6e-9 of the result.
 */
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f

INLINE void exponential(lanes *value)
{
    lanes x = *value, magic = SPLAT(0x1.8p23f);
    lanes t = x * 0x1.715476p0f + magic, n = t - magic;
    lanes r = x - n * LN2_HIGH;
    r = r - n * LN2_LOW;
    lanes y = r * (1.0f / 5040) + (1.0f / 720);
    y = y * r + (1.0f / 120);
    y = y * r + (1.0f / 24);
    y = y * r + (1.0f / 6);
    y = y * r + 0.5f;
    y = y * r * r + r + 1.0f;
    /* The low bits of t hold n; unsigned shifts, since t is anything for the x that are replaced below. */
    lanes power = (lanes)(((lanes_bits)t - 0x4B400000u + 127u) << 23);
    y = y * power;
    y = SELECT(x < -87.0f, SPLAT(0.0f), y);
    y = SELECT(x > 88.0f, SPLAT(INFINITY), y);
    *value = SELECT(x != x, x, y);
}

INLINE void sigmoid(lanes *value)
{
    lanes e = -*value;
    exponential(&e);
    *value = 1.0f / (1.0f + e);
}

INLINE void swiglu_body(const float *gate, const float *up, float alpha, float limit, float *out)
{
    lanes g, u, cap = SPLAT(limit);
    LOAD(g, gate);
    LOAD(u, up);
    g = SELECT(g > cap, cap, g);
    u = SELECT(u > cap, cap, u);
    u = SELECT(u < -cap, -cap, u);
    lanes s = alpha * g;
    sigmoid(&s);
    lanes y = (u + 1.0f) * g * s;
    round_bf16(&y);
    STORE(out, y);
}

INLINE void sigmoid_body(const float *x, float *out)
{
    lanes v;
    LOAD(v, x);
    sigmoid(&v);
    STORE(out, v);
}

INLINE void exponential_body(const float *x, float *out)
{
    lanes v;
    LOAD(v, x);
    exponential(&v);
    STORE(out, v);
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

/* Shifts of a whole vector by a constant of the unrolled loop; unsigned, so that bits may fall off at the top. */
#define SHIFT_LEFT(v, n) ((lanes_int)((lanes_bits)(v) << (n)))
#define SHIFT_RIGHT(v, n) ((lanes_int)((lanes_bits)(v) >> (n)))
#define SIGN ((int32_t)0x80000000)

INLINE void decode_bf16_body(const void *panel, int64_t begin, int64_t end, float *out)
{
    const char *line = (const char *)panel + begin / 2 * LINE;
    for (int64_t k = begin; k < end; k += 2, line += LINE, out += 2 * LANES) {
        lanes_int pair;
        LOAD(pair, line);
        lanes_int low = SHIFT_LEFT(pair, 16), high = pair & (int32_t)0xFFFF0000;
        STORE(out, low);
        if (k + 1 < end) STORE(out + LANES, high);
    }
}

/* E4M3 codes in the top bytes of lanes to values: normals by placing exponent and mantissa, subnormals (codes below 8)
 * as multiples of 2^-9. */
INLINE void e4m3_values(const lanes_int *top, lanes *out)
{
    lanes_int magnitude = SHIFT_RIGHT(*top, 4) & 0x07F00000; /* code << 20 */
    lanes normal = (lanes)(magnitude + (120 << 23));
    lanes small = __builtin_convertvector(magnitude, lanes) * 0x1p-29f;
    lanes_int v = (lanes_int)SELECT(magnitude < 8 << 20, small, normal);
    v |= (magnitude == 0x7F << 20) & 0x7FC00000;
    *out = (lanes)(v | (*top & SIGN));
}

/* UE8M0 codes in the top bytes of lanes: the exponent field, but for 0 (a subnormal number) and 255 (NaN). */
INLINE void e8m0_values(const lanes_int *top, lanes *out)
{
    lanes_int exponent = SHIFT_RIGHT(*top, 1) & 0x7F800000;
    lanes_int v = exponent | ((exponent == 0) & 0x00400000) | ((exponent == 0x7F800000) & 0x7FC00000);
    *out = (lanes)v;
}

/* E2M1 codes in the top four bits of lanes. The magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6, doubled, are the hexadecimal digits
 * of a constant. `half_scale` takes the doubling back. */
INLINE void e2m1_values(const lanes_int *top, const lanes *half_scale, lanes *out)
{
    lanes_bits table = 0xC8643210u - (lanes_bits){0}, digit = ((lanes_bits)*top >> 26) & 28;
    lanes_int twice = (lanes_int)((table >> digit) & 15);
    lanes v = (lanes)((lanes_int)__builtin_convertvector(twice, lanes) | (*top & SIGN));
    *out = v * *half_scale;
}

INLINE void decode_e4m3_body(const void *panel, int64_t begin, int64_t end, float *out)
{
    const char *line = (const char *)panel + begin / 4 * LINE;
    for (int64_t k = begin; k < end; k += 4, line += LINE)
        for (int i = 0; i < 4 && k + i < end; i++, out += LANES) {
            lanes_int codes;
            lanes v;
            LOAD(codes, line);
            codes = SHIFT_LEFT(codes, 24 - 8 * i);
            e4m3_values(&codes, &v);
            STORE(out, v);
        }
}

INLINE void decode_mxfp8_body(const void *panel, int64_t begin, int64_t end, float *out)
{
    for (int64_t block = begin / 32; block < end / 32; block++) {
        const char *unit = (const char *)panel + block / 4 * (MXFP8_UNIT_LINES * LINE);
        const char *line = unit + block % 4 * (8 * LINE);
        lanes_int bytes;
        lanes scale;
        LOAD(bytes, unit + (MXFP8_UNIT_LINES - 1) * LINE);
        bytes = SHIFT_LEFT(bytes, 24 - 8 * (int)(block % 4));
        e8m0_values(&bytes, &scale);
        for (int j = 0; j < 8; j++, line += LINE) {
            lanes_int codes;
            LOAD(codes, line);
            for (int i = 0; i < 4; i++, out += LANES) {
                lanes_int top = SHIFT_LEFT(codes, 24 - 8 * i);
                lanes v;
                e4m3_values(&top, &v);
                v = v * scale;
                STORE(out, v);
            }
        }
    }
}

INLINE void decode_nvfp4_body(const void *panel, int64_t begin, int64_t end, float *out)
{
    for (int64_t group = begin / 16; group < end / 16; group++) {
        const char *unit = (const char *)panel + group / 4 * (NVFP4_UNIT_LINES * LINE);
        const char *line = unit + group % 4 * (2 * LINE);
        lanes_int bytes;
        lanes scale;
        LOAD(bytes, unit + (NVFP4_UNIT_LINES - 1) * LINE);
        bytes = SHIFT_LEFT(bytes, 24 - 8 * (int)(group % 4));
        e4m3_values(&bytes, &scale);
        scale = scale * 0.5f;
        for (int j = 0; j < 2; j++, line += LINE) {
            lanes_int codes;
            LOAD(codes, line);
            for (int i = 0; i < 8; i++, out += LANES) {
                lanes_int top = SHIFT_LEFT(codes, 28 - 4 * i);
                lanes v;
                e2m1_values(&top, &scale, &v);
                STORE(out, v);
            }
        }
    }
}

/* ---- Products -------------------------------------------------------------------------------------------------- */

/*
 * A register tile of R rows and P panels (constants at every call). Element i of row r is x[r][i * step], the
 * accumulators are acc [R][row_stride], of which the first P * 16 floats are used.
 */
INLINE void product_tile(const int R, const int P, const float *const *x, size_t step, const float *w, size_t stride,
                         int k, float *acc, size_t row_stride)
{
    lanes a[8][MAX_PANELS], v[MAX_PANELS];
    const float *row[8];
    for (int r = 0; r < R; r++) {
        row[r] = x[r];
        for (int p = 0; p < P; p++) LOAD(a[r][p], acc + (size_t)r * row_stride + p * LANES);
    }
    for (int i = 0; i < k; i++) {
        for (int p = 0; p < P; p++) LOAD(v[p], w + (size_t)p * stride + (size_t)i * LANES);
        for (int r = 0; r < R; r++)
            for (int p = 0; p < P; p++) a[r][p] += row[r][(size_t)i * step] * v[p];
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) STORE(acc + (size_t)r * row_stride + p * LANES, a[r][p]);
}

/* R rows against all panels, P at a time. */
INLINE void product_rows(const int R, const int P, const float *const *x, const float *w, size_t stride, int panels,
                         int k, float *acc)
{
    int p = 0;
    for (; p + P <= panels; p += P)
        product_tile(R, P, x, 1, w + (size_t)p * stride, stride, k, acc + p * LANES, (size_t)panels * LANES);
    for (; P > 1 && p < panels; p++)
        product_tile(R, 1, x, 1, w + (size_t)p * stride, stride, k, acc + p * LANES, (size_t)panels * LANES);
}

/*
 * The tile that the registers hold: `narrow` rows of one panel, `rows` rows of `panels` panels, one row of `single`
 * panels. A sum of 16 lanes has one chain of additions, so at least eight chains are kept going where it can be.
 */
INLINE void product_body(const int narrow, const int tile_rows, const int tile_panels, const int single,
                         const float *const *x, int rows, const float *w, size_t stride, int panels, int k, float *acc)
{
    int r = 0;
    if (panels == 1) {
        for (; r + narrow <= rows; r += narrow)
            product_tile(narrow, 1, x + r, 1, w, stride, k, acc + (size_t)r * LANES, LANES);
    } else {
        for (; r + tile_rows <= rows; r += tile_rows)
            product_rows(tile_rows, tile_panels, x + r, w, stride, panels, k, acc + (size_t)(r * panels) * LANES);
    }
    for (; r < rows; r++) product_rows(1, single, x + r, w, stride, panels, k, acc + (size_t)(r * panels) * LANES);
}

/* out[r] = sum over i < k, ascending, of x[r * row_step + i * step] * w[i]: one panel, rows at a fixed distance. */
INLINE void product_strided(const int narrow, const float *x, size_t row_step, size_t step, int rows, const float *w,
                            int k, float *out /* [rows][16] */)
{
    int r = 0;
    memset(out, 0, (size_t)rows * LANES * sizeof *out);
    for (; r + narrow <= rows; r += narrow) {
        const float *row[8];
        for (int i = 0; i < narrow; i++) row[i] = x + (size_t)(r + i) * row_step;
        product_tile(narrow, 1, row, step, w, 0, k, out + r * LANES, LANES);
    }
    for (; r < rows; r++) {
        const float *row[1] = {x + (size_t)r * row_step};
        product_tile(1, 1, row, step, w, 0, k, out + r * LANES, LANES);
    }
}

INLINE void attend_block_body(const int narrow, const float *q, const float *k, const float *v, int tokens, int dim,
                              float scale, cpu_softmax *state, float *out, float *scratch)
{
    float *s = scratch /* [tokens][16], scores and then weights */, *block_out = scratch + 128 * LANES /* [dim][16] */;
    product_strided(narrow, k, (size_t)dim, 1, tokens, q, dim, s);

    lanes block_max = SPLAT(-INFINITY), block_sum = {0};
    for (int t = 0; t < tokens; t++) {
        lanes x;
        LOAD(x, s + t * LANES);
        x = x * scale;
        STORE(s + t * LANES, x);
        block_max = SELECT(x > block_max, x, block_max);
    }
    for (int t = 0; t < tokens; t++) {
        lanes e;
        LOAD(e, s + t * LANES);
        e = e - block_max;
        exponential(&e);
        block_sum += e;
        round_bf16(&e);
        STORE(s + t * LANES, e);
    }
    product_strided(narrow, v, 1, (size_t)dim, dim, s, tokens, block_out);

    lanes old_max, sum;
    LOAD(old_max, state->max);
    LOAD(sum, state->sum);
    lanes max = SELECT(block_max > old_max, block_max, old_max);
    lanes keep = old_max - max, add = block_max - max;
    exponential(&keep);
    exponential(&add);
    sum = sum * keep + block_sum * add;
    STORE(state->max, max);
    STORE(state->sum, sum);
    for (int d = 0; d < dim; d++) {
        lanes o, b;
        LOAD(o, out + d * LANES);
        LOAD(b, block_out + d * LANES);
        o = o * keep + b * add;
        STORE(out + d * LANES, o);
    }
}

/* ---- Norm ------------------------------------------------------------------------------------------------------ */

INLINE void rms_norm_body(const float *x, const float *gain, int n, float epsilon, bool round, float *out)
{
    lanes squares = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes v;
        LOAD(v, x + i);
        squares += v * v;
    }
    float chain[LANES];
    STORE(chain, squares);
    for (int j = 0; i + j < n; j++) chain[j] += x[i + j] * x[i + j];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) chain[j] += chain[j + width];
    float inverse = 1.0f / sqrtf(chain[0] / (float)n + epsilon);
    for (i = 0; i < n; i += LANES) {
        int count = n - i < LANES ? n - i : LANES;
        lanes v = {0}, g = {0};
        __builtin_memcpy(&v, x + i, (size_t)count * sizeof *x);
        __builtin_memcpy(&g, gain + i, (size_t)count * sizeof *gain);
        v = v * inverse * g;
        if (round) round_bf16(&v);
        __builtin_memcpy(out + i, &v, (size_t)count * sizeof *out);
    }
}

/* ---- Instances ------------------------------------------------------------------------------------------------- */

/* `narrow`, `tile_rows`, `tile_panels`, `single`: see product_body. */
#define INSTANCE(suffix, attribute, narrow, tile_rows, tile_panels, single)                                            \
    attribute static void decode_bf16_##suffix(const void *panel, int64_t begin, int64_t end, float *out)              \
    {                                                                                                                  \
        decode_bf16_body(panel, begin, end, out);                                                                      \
    }                                                                                                                  \
    attribute static void decode_mxfp8_##suffix(const void *panel, int64_t begin, int64_t end, float *out)             \
    {                                                                                                                  \
        decode_mxfp8_body(panel, begin, end, out);                                                                     \
    }                                                                                                                  \
    attribute static void decode_nvfp4_##suffix(const void *panel, int64_t begin, int64_t end, float *out)             \
    {                                                                                                                  \
        decode_nvfp4_body(panel, begin, end, out);                                                                     \
    }                                                                                                                  \
    attribute static void decode_e4m3_##suffix(const void *panel, int64_t begin, int64_t end, float *out)              \
    {                                                                                                                  \
        decode_e4m3_body(panel, begin, end, out);                                                                      \
    }                                                                                                                  \
    attribute static void product_##suffix(const float *const *x, int rows, const float *w, size_t stride, int panels, \
                                           int k, float *acc)                                                          \
    {                                                                                                                  \
        product_body(narrow, tile_rows, tile_panels, single, x, rows, w, stride, panels, k, acc);                      \
    }                                                                                                                  \
    attribute static void attend_block_##suffix(const float *q, const float *k, const float *v, int tokens, int dim,   \
                                                float scale, cpu_softmax *state, float *out, float *scratch)           \
    {                                                                                                                  \
        attend_block_body(narrow, q, k, v, tokens, dim, scale, state, out, scratch);                                   \
    }                                                                                                                  \
    attribute static void swiglu_##suffix(const float *gate, const float *up, float alpha, float limit, float *out)    \
    {                                                                                                                  \
        swiglu_body(gate, up, alpha, limit, out);                                                                      \
    }                                                                                                                  \
    attribute static void sigmoid_##suffix(const float *x, float *out)                                                 \
    {                                                                                                                  \
        sigmoid_body(x, out);                                                                                          \
    }                                                                                                                  \
    attribute static void exponential_##suffix(const float *x, float *out)                                             \
    {                                                                                                                  \
        exponential_body(x, out);                                                                                      \
    }                                                                                                                  \
    attribute static void rms_norm_##suffix(const float *x, const float *gain, int n, float epsilon, bool round,       \
                                            float *out)                                                                \
    {                                                                                                                  \
        rms_norm_body(x, gain, n, epsilon, round, out);                                                                \
    }                                                                                                                  \
    static const cpu_kernels suffix##_kernels = {                                                                      \
        .name = #suffix,                                                                                               \
        .decode_bf16 = decode_bf16_##suffix,                                                                           \
        .decode_mxfp8 = decode_mxfp8_##suffix,                                                                         \
        .decode_nvfp4 = decode_nvfp4_##suffix,                                                                         \
        .decode_e4m3 = decode_e4m3_##suffix,                                                                           \
        .product = product_##suffix,                                                                                   \
        .attend_block = attend_block_##suffix,                                                                         \
        .swiglu = swiglu_##suffix,                                                                                     \
        .sigmoid = sigmoid_##suffix,                                                                                   \
        .exponential = exponential_##suffix,                                                                           \
        .rms_norm = rms_norm_##suffix,                                                                                 \
    };

#if defined(__x86_64__)
/* 32 registers of 16 lanes; 16 registers of 8; below, 16 registers of 4. */
INSTANCE(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), 8, 4, 4, 4)
INSTANCE(avx2, __attribute__((target("avx2"))), 4, 2, 2, 4)
#endif
#if defined(__aarch64__)
INSTANCE(portable, , 4, 4, 1, 4) /* 32 registers of 4 lanes */
#else
INSTANCE(portable, , 2, 2, 1, 2)
#endif

int cpu_kernels_all(const cpu_kernels *all[4])
{
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        all[n++] = &avx512_kernels;
    if (__builtin_cpu_supports("avx2")) all[n++] = &avx2_kernels;
#endif
    all[n++] = &portable_kernels;
    return n;
}

const cpu_kernels *cpu_kernels_best(void)
{
    const cpu_kernels *all[4];
    cpu_kernels_all(all);
    return all[0];
}
