/*
 * The inner loops themselves, over vectors of WIDTH lanes (the vector extension of gcc and clang). Included once per
 * instruction set by kernels_<set>.c, which defines
 *
 *     KERNELS, NAME    the cpu_kernels to define, and what it is called
 *     TARGET           the function attribute that selects the instruction set
 *     WIDTH            lanes of its vectors: 16, 8 or 4; the 16 lanes of kernels.h are 16 / WIDTH of them
 *     TILE_R, TILE_C   rows and vectors of the register tile of a product with many rows and panels
 *     NARROW_R         rows of the tile for a single panel
 *     SINGLE_C         vectors of the tile for a single row
 *
 * A sum has one chain of additions, so a tile is as large as the registers allow: at least eight chains are under way.
 * Vectors are passed by address and only between functions that are always inlined, so that no calling convention
 * depends on the instruction set.
 */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t vec_int __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t vec_bits __attribute__((vector_size(4 * WIDTH)));

#define INLINE static inline __attribute__((always_inline))
#define PARTS (LANES / WIDTH)

/* memcpy keeps loads and stores free of alignment and aliasing assumptions; it compiles to one move. */
#define LOAD(v, p) __builtin_memcpy(&(v), (p), sizeof(v))
#define STORE(p, v) __builtin_memcpy((p), &(v), sizeof(v))
#define SPLAT(x) ((x) - (vec){0})
/* Lanes of `a` where the mask (a comparison: all bits set) holds, else of `b`. */
#define SELECT(mask, a, b) ((vec)(((mask) & (vec_int)(a)) | (~(mask) & (vec_int)(b))))
/* Unsigned, so that bits may fall off at the top. */
#define SHIFT_LEFT(v, n) ((vec_int)((vec_bits)(v) << (n)))
#define SHIFT_RIGHT(v, n) ((vec_int)((vec_bits)(v) >> (n)))
#define SIGN ((int32_t)0x80000000)

/* ---- Elementary steps ------------------------------------------------------------------------------------------ */

INLINE void round_bf16(vec *x)
{
    vec_int u = (vec_int)*x, magnitude = u & 0x7FFFFFFF;
    vec_int rounded = (vec_int)((vec_bits)u + 0x7FFF + (SHIFT_RIGHT(u, 16) & 1));
    vec_int nan = magnitude > 0x7F800000;
    *x = (vec)(((nan & (u | 0x400000)) | (~nan & rounded)) & (int32_t)0xFFFF0000);
}

/*
 * e^x = 2^n e^r, n = round(x / ln 2), r = x - n ln 2 in two parts (n * LN2_HIGH is exact), e^r by its Taylor series to
 * r^7: |r| <= 0.3466, so what is left out is below 6e-9 of the result.
 */
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f

INLINE void exponential(vec *value)
{
    vec x = *value, magic = SPLAT(0x1.8p23f);
    vec t = x * 0x1.715476p0f + magic, n = t - magic;
    vec r = x - n * LN2_HIGH;
    r = r - n * LN2_LOW;
    vec y = r * (1.0f / 5040) + (1.0f / 720);
    y = y * r + (1.0f / 120);
    y = y * r + (1.0f / 24);
    y = y * r + (1.0f / 6);
    y = y * r + 0.5f;
    y = y * r * r + r + 1.0f;
    /* The low bits of t hold n; for the x that are replaced below they can be anything. */
    vec power = (vec)(((vec_bits)t - 0x4B400000u + 127u) << 23);
    y = y * power;
    y = SELECT(x < -87.0f, SPLAT(0.0f), y);
    y = SELECT(x > 88.0f, SPLAT(INFINITY), y);
    *value = SELECT(x != x, x, y);
}

INLINE void sigmoid(vec *value)
{
    vec e = -*value;
    exponential(&e);
    *value = 1.0f / (1.0f + e);
}

TARGET static void swiglu_lanes(const float *gate, const float *up, float alpha, float limit, float *out)
{
    for (int i = 0; i < LANES; i += WIDTH) {
        vec g, u, cap = SPLAT(limit);
        LOAD(g, gate + i);
        LOAD(u, up + i);
        g = SELECT(g > cap, cap, g);
        u = SELECT(u > cap, cap, u);
        u = SELECT(u < -cap, -cap, u);
        vec s = alpha * g;
        sigmoid(&s);
        vec y = (u + 1.0f) * g * s;
        round_bf16(&y);
        STORE(out + i, y);
    }
}

TARGET static void sigmoid_lanes(const float *x, float *out)
{
    for (int i = 0; i < LANES; i += WIDTH) {
        vec v;
        LOAD(v, x + i);
        sigmoid(&v);
        STORE(out + i, v);
    }
}

TARGET static void exponential_lanes(const float *x, float *out)
{
    for (int i = 0; i < LANES; i += WIDTH) {
        vec v;
        LOAD(v, x + i);
        exponential(&v);
        STORE(out + i, v);
    }
}

/* ---- Decoding -------------------------------------------------------------------------------------------------- */

TARGET static void decode_bf16(const void *panel, int64_t begin, int64_t end, float *out)
{
    const char *line = (const char *)panel + begin / 2 * LINE;
    for (int64_t k = begin; k < end; k += 2, line += LINE, out += 2 * LANES)
        for (int part = 0; part < LANES; part += WIDTH) {
            vec_int pair;
            LOAD(pair, line + 4 * part);
            vec_int low = SHIFT_LEFT(pair, 16), high = pair & (int32_t)0xFFFF0000;
            STORE(out + part, low);
            if (k + 1 < end) STORE(out + LANES + part, high);
        }
}

/* E4M3 codes in the top bytes of lanes to values: normals by placing exponent and mantissa, subnormals (codes below 8)
 * as multiples of 2^-9. */
INLINE void e4m3_values(const vec_int *top, vec *out)
{
    vec_int magnitude = SHIFT_RIGHT(*top, 4) & 0x07F00000; /* code << 20 */
    vec normal = (vec)(magnitude + (120 << 23));
    vec small = __builtin_convertvector(magnitude, vec) * 0x1p-29f;
    vec_int v = (vec_int)SELECT(magnitude < 8 << 20, small, normal);
    v |= (magnitude == 0x7F << 20) & 0x7FC00000;
    *out = (vec)(v | (*top & SIGN));
}

/* UE8M0 codes in the top bytes of lanes: the exponent field, but for 0 (a subnormal number) and 255 (NaN). */
INLINE void e8m0_values(const vec_int *top, vec *out)
{
    vec_int exponent = SHIFT_RIGHT(*top, 1) & 0x7F800000;
    vec_int v = exponent | ((exponent == 0) & 0x00400000) | ((exponent == 0x7F800000) & 0x7FC00000);
    *out = (vec)v;
}

/* E2M1 codes in the top four bits of lanes. The magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6, doubled, are the hexadecimal
 * digits of a constant. `half_scale` takes the doubling back. */
INLINE void e2m1_values(const vec_int *top, const vec *half_scale, vec *out)
{
    vec_bits table = 0xC8643210u - (vec_bits){0}, digit = ((vec_bits)*top >> 26) & 28;
    vec_int twice = (vec_int)((table >> digit) & 15);
    vec v = (vec)((vec_int)__builtin_convertvector(twice, vec) | (*top & SIGN));
    *out = v * *half_scale;
}

TARGET static void decode_e4m3(const void *panel, int64_t begin, int64_t end, float *out)
{
    const char *line = (const char *)panel + begin / 4 * LINE;
    for (int64_t k = begin; k < end; k += 4, line += LINE)
        for (int i = 0; i < 4 && k + i < end; i++, out += LANES)
            for (int part = 0; part < LANES; part += WIDTH) {
                vec_int codes;
                vec v;
                LOAD(codes, line + 4 * part);
                codes = SHIFT_LEFT(codes, 24 - 8 * i);
                e4m3_values(&codes, &v);
                STORE(out + part, v);
            }
}

TARGET static void decode_mxfp8(const void *panel, int64_t begin, int64_t end, float *out)
{
    for (int64_t block = begin / 32; block < end / 32; block++, out += 32 * LANES) {
        const char *unit = (const char *)panel + block / 4 * (MXFP8_UNIT_LINES * LINE);
        const char *line = unit + block % 4 * (8 * LINE);
        for (int part = 0; part < LANES; part += WIDTH) {
            vec_int bytes;
            vec scale;
            LOAD(bytes, unit + (MXFP8_UNIT_LINES - 1) * LINE + 4 * part);
            bytes = SHIFT_LEFT(bytes, 24 - 8 * (int)(block % 4));
            e8m0_values(&bytes, &scale);
            for (int j = 0; j < 8; j++) {
                vec_int codes;
                LOAD(codes, line + j * LINE + 4 * part);
                for (int i = 0; i < 4; i++) {
                    vec_int top = SHIFT_LEFT(codes, 24 - 8 * i);
                    vec v;
                    e4m3_values(&top, &v);
                    v = v * scale;
                    STORE(out + (4 * j + i) * LANES + part, v);
                }
            }
        }
    }
}

TARGET static void decode_nvfp4(const void *panel, int64_t begin, int64_t end, float *out)
{
    for (int64_t group = begin / 16; group < end / 16; group++, out += 16 * LANES) {
        const char *unit = (const char *)panel + group / 4 * (NVFP4_UNIT_LINES * LINE);
        const char *line = unit + group % 4 * (2 * LINE);
        for (int part = 0; part < LANES; part += WIDTH) {
            vec_int bytes;
            vec scale;
            LOAD(bytes, unit + (NVFP4_UNIT_LINES - 1) * LINE + 4 * part);
            bytes = SHIFT_LEFT(bytes, 24 - 8 * (int)(group % 4));
            e4m3_values(&bytes, &scale);
            scale = scale * 0.5f;
            for (int j = 0; j < 2; j++) {
                vec_int codes;
                LOAD(codes, line + j * LINE + 4 * part);
                for (int i = 0; i < 8; i++) {
                    vec_int top = SHIFT_LEFT(codes, 28 - 4 * i);
                    vec v;
                    e2m1_values(&top, &scale, &v);
                    STORE(out + (8 * j + i) * LANES + part, v);
                }
            }
        }
    }
}

/* ---- Products -------------------------------------------------------------------------------------------------- */

/* Where vector c of the panels begins, counted from the first: panels are `stride` floats apart. */
INLINE size_t column_at(int c, size_t stride)
{
    return (size_t)(c / PARTS) * stride + (size_t)(c % PARTS * WIDTH);
}

/*
 * A register tile of R rows and C vectors from vector `first` on. Element i of row r is x[r][i * step], its sums are
 * acc [R][row_stride].
 */
INLINE void product_tile(const int R, const int C, const float *const *x, size_t step, const float *w, size_t stride,
                         int first, int k, float *acc, size_t row_stride)
{
    vec a[8][8];
    const float *row[8], *column[8];
    for (int c = 0; c < C; c++) column[c] = w + column_at(first + c, stride);
    for (int r = 0; r < R; r++) {
        row[r] = x[r];
        for (int c = 0; c < C; c++) LOAD(a[r][c], acc + (size_t)r * row_stride + (size_t)(first + c) * WIDTH);
    }
    for (int i = 0; i < k; i++)
        for (int c = 0; c < C; c++) {
            vec v;
            LOAD(v, column[c] + (size_t)i * LANES);
            for (int r = 0; r < R; r++) a[r][c] += row[r][(size_t)i * step] * v;
        }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) STORE(acc + (size_t)r * row_stride + (size_t)(first + c) * WIDTH, a[r][c]);
}

/* R rows against all panels, C vectors at a time. */
INLINE void product_rows(const int R, const int C, const float *const *x, const float *w, size_t stride, int panels,
                         int k, float *acc)
{
    int c = 0;
    for (; c + C <= panels * PARTS; c += C) product_tile(R, C, x, 1, w, stride, c, k, acc, (size_t)panels * LANES);
    for (; C > 1 && c < panels * PARTS; c++) product_tile(R, 1, x, 1, w, stride, c, k, acc, (size_t)panels * LANES);
}

TARGET static void product(const float *const *x, int rows, const float *w, size_t stride, int panels, int k,
                           float *acc)
{
    int r = 0;
    if (panels == 1)
        for (; r + NARROW_R <= rows; r += NARROW_R)
            product_rows(NARROW_R, PARTS, x + r, w, stride, 1, k, acc + (size_t)r * LANES);
    else
        for (; r + TILE_R <= rows; r += TILE_R)
            product_rows(TILE_R, TILE_C, x + r, w, stride, panels, k, acc + (size_t)(r * panels) * LANES);
    for (; r < rows; r++) product_rows(1, SINGLE_C, x + r, w, stride, panels, k, acc + (size_t)(r * panels) * LANES);
}

/* out[r] = sum over i < k, ascending, of x[r * row_step + i * step] * w[i]: one panel, rows at a fixed distance. */
INLINE void product_strided(const float *x, size_t row_step, size_t step, int rows, const float *w, int k,
                            float *out /* [rows][16] */)
{
    int r = 0;
    memset(out, 0, (size_t)rows * LANES * sizeof *out);
    for (; r + NARROW_R <= rows; r += NARROW_R) {
        const float *row[8];
        for (int i = 0; i < NARROW_R; i++) row[i] = x + (size_t)(r + i) * row_step;
        product_tile(NARROW_R, PARTS, row, step, w, 0, 0, k, out + r * LANES, LANES);
    }
    for (; r < rows; r++) {
        const float *row[1] = {x + (size_t)r * row_step};
        product_tile(1, PARTS, row, step, w, 0, 0, k, out + r * LANES, LANES);
    }
}

/* ---- Attention ------------------------------------------------------------------------------------------------- */

/* Scores s [tokens][16], one vector of each, become weights bf16(e^(scale s - m_b)); m_b and the sum of the weights
 * before their rounding are returned. */
INLINE void block_weights(float *s, int tokens, float scale, vec *block_max, vec *block_sum)
{
    vec m = SPLAT(-INFINITY), sum = {0};
    for (int t = 0; t < tokens; t++) {
        vec x;
        LOAD(x, s + t * LANES);
        x = x * scale;
        STORE(s + t * LANES, x);
        m = SELECT(x > m, x, m);
    }
    for (int t = 0; t < tokens; t++) {
        vec e;
        LOAD(e, s + t * LANES);
        e = e - m;
        exponential(&e);
        sum += e;
        round_bf16(&e);
        STORE(s + t * LANES, e);
    }
    *block_max = m;
    *block_sum = sum;
}

/* The block's maximum, sum and output [dim][16] into the state, one vector of each. */
INLINE void fold(const vec *block_max, const vec *block_sum, const float *block_out, int dim, float *max, float *sum,
                 float *out)
{
    vec m, old_max, s;
    LOAD(old_max, max);
    LOAD(s, sum);
    m = SELECT(*block_max > old_max, *block_max, old_max);
    vec keep = old_max - m, add = *block_max - m;
    exponential(&keep);
    exponential(&add);
    s = s * keep + *block_sum * add;
    STORE(max, m);
    STORE(sum, s);
    for (int d = 0; d < dim; d++) {
        vec o, b;
        LOAD(o, out + d * LANES);
        LOAD(b, block_out + d * LANES);
        o = o * keep + b * add;
        STORE(out + d * LANES, o);
    }
}

TARGET static void attend_block(const float *q, const float *k, const float *v, int tokens, int dim, float scale,
                                cpu_softmax *state, float *out, float *scratch)
{
    float *s = scratch /* [tokens][16] */, *block_out = scratch + 128 * LANES /* [dim][16] */;
    vec block_max[PARTS], block_sum[PARTS];
    product_strided(k, (size_t)dim, 1, tokens, q, dim, s);
    for (int p = 0; p < PARTS; p++) block_weights(s + p * WIDTH, tokens, scale, &block_max[p], &block_sum[p]);
    product_strided(v, 1, (size_t)dim, dim, s, tokens, block_out);
    for (int p = 0; p < PARTS; p++)
        fold(&block_max[p], &block_sum[p], block_out + p * WIDTH, dim, state->max + p * WIDTH, state->sum + p * WIDTH,
             out + p * WIDTH);
}

/* ---- Norm ------------------------------------------------------------------------------------------------------ */

INLINE void norm_vector(const float *x, const float *gain, float inverse, bool round, size_t bytes, float *out)
{
    vec v = {0}, g = {0};
    __builtin_memcpy(&v, x, bytes);
    __builtin_memcpy(&g, gain, bytes);
    v = v * inverse * g;
    if (round) round_bf16(&v);
    __builtin_memcpy(out, &v, bytes);
}

TARGET static void rms_norm(const float *x, const float *gain, int n, float epsilon, bool round, float *out)
{
    vec squares[PARTS] = {{0}};
    float chain[LANES];
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int p = 0; p < PARTS; p++) {
            vec v;
            LOAD(v, x + i + p * WIDTH);
            squares[p] += v * v;
        }
    STORE(chain, squares);
    for (int j = 0; i + j < n; j++) chain[j] += x[i + j] * x[i + j];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++) chain[j] += chain[j + width];
    float inverse = 1.0f / sqrtf(chain[0] / (float)n + epsilon);
    for (i = 0; i + WIDTH <= n; i += WIDTH) norm_vector(x + i, gain + i, inverse, round, sizeof(vec), out + i);
    if (i < n) norm_vector(x + i, gain + i, inverse, round, (size_t)(n - i) * sizeof *x, out + i);
}

const cpu_kernels KERNELS = {
    .name = NAME,
    .decode_bf16 = decode_bf16,
    .decode_e4m3 = decode_e4m3,
    .decode_mxfp8 = decode_mxfp8,
    .decode_nvfp4 = decode_nvfp4,
    .product = product,
    .attend_block = attend_block,
    .swiglu = swiglu_lanes,
    .sigmoid = sigmoid_lanes,
    .exponential = exponential_lanes,
    .rms_norm = rms_norm,
};
