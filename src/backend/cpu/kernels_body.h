/*
 * The inner loops themselves, over the vectors of lanes.h. Included once per instruction set by kernels_<set>.c, which
 * defines
 *
 *     KERNELS, NAME    the cpu_kernels to define, and what it is called
 *     TARGET           the function attribute that selects the instruction set
 *     WIDTH            lanes of its vectors: 16, 8 or 4; the 16 lanes of kernels.h are 16 / WIDTH of them
 *     TILE_R, TILE_C   rows and vectors of the register tile of a product with many rows and panels
 *     NARROW_R         rows of the tile for a single panel
 *     SINGLE_C         vectors of the tile for a single row
 *
 * A sum has one chain of additions, so a tile is as large as the registers allow: at least eight chains are under way.
 */
#include "backend/cpu/lanes.h"

#include <math.h>
#include <string.h>

/* ---- Activations ------------------------------------------------------------------------------------------------ */

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

/* A register tile of R rows and C vectors from vector `first` on; the sums of row r are at acc + r * row_stride. */
INLINE void product_tile(const int R, const int C, const float *const *x, const float *w, size_t stride, int first,
                         int k, float *acc, size_t row_stride)
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
            for (int r = 0; r < R; r++) a[r][c] += row[r][i] * v;
        }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) STORE(acc + (size_t)r * row_stride + (size_t)(first + c) * WIDTH, a[r][c]);
}

/* R rows against all panels, C vectors at a time. */
INLINE void product_rows(const int R, const int C, const float *const *x, const float *w, size_t stride, int panels,
                         int k, float *acc)
{
    int c = 0;
    for (; c + C <= panels * PARTS; c += C) product_tile(R, C, x, w, stride, c, k, acc, (size_t)panels * LANES);
    for (; C > 1 && c < panels * PARTS; c++) product_tile(R, 1, x, w, stride, c, k, acc, (size_t)panels * LANES);
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
    .decode_nvfp4 = decode_nvfp4,
    .product = product,
    .swiglu = swiglu_lanes,
    .sigmoid = sigmoid_lanes,
    .exponential = exponential_lanes,
    .rms_norm = rms_norm,
};
