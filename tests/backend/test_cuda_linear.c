/*
 * Projections, norms and SwiGLU of the cuda backend against plain loops in double, in every format, for numbers of rows
 * on both sides of every tile; and a row's bits, which must not depend on how many rows there are.
 *
 *     test_backend_cuda_linear --gpu speed    times of the released model's shapes instead
 */
#include "backend/cuda_test.h"

#include <limits.h>

#include "backend/cuda/kernels/project_hopper.h"
#include "backend/cuda/kernels/project_wide.h"
#include "base/clock.h"
#include "number/e8m0.h"

enum { MOST_ROWS = 150 };
static const int counts[] = {1, 2, 3, 7, 8, 9, 16, 17, 64, 129, MOST_ROWS};
enum { COUNTS = sizeof counts / sizeof *counts };

typedef struct bed {
    ops_backend backend;
    ops_step step;
    gpu *gpu;
    arena memory;
} bed;

static void bed_open(bed *b)
{
    *b = (bed){.gpu = device_open()};
    b->backend.gpu = b->gpu;
    b->gpu->calls->info(b->gpu, &b->backend.info);
    b->step.backend = &b->backend;
    b->step.rows.count = 1;
}

static void bed_close(bed *b)
{
    for (size_t i = 0; i < b->backend.owned_count; i++) b->gpu->calls->free(b->gpu, b->backend.owned[i]);
    free(b->backend.owned);
    b->gpu->calls->close(b->gpu);
    arena_free(&b->memory);
}

/* Takes the kernels of many rows from 65 on, or never. */
static void bed_many(bed *b, bool many)
{
    b->backend.info.processors = many ? 1 : INT_MAX;
}

static uint16_t *random_halves(size_t n, float scale)
{
    uint16_t *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = bf16_from_float(random_normal() * scale);
    return x;
}

/* What a sum of `cols` products may differ by from the exact one: fp32 steps of the sum of magnitudes. */
static double bound(double magnitude, int64_t cols)
{
    return magnitude * (double)cols * 0x1p-24 + 1e-30;
}

static void check_products(const weight *w, const uint16_t *in, const int32_t *rows, int count, const float *out,
                           int64_t stride, float before)
{
    float *row = malloc((size_t)w->cols * sizeof *row);
    for (int64_t o = 0; o < w->rows; o++) {
        weight_row(w, o, row);
        for (int64_t r = 0; r < count; r++) {
            const uint16_t *x = in + (rows ? rows[r] : r) * w->cols;
            double sum = 0, magnitude = fabs((double)before);
            for (int64_t k = 0; k < w->cols; k++) {
                double p = (double)row[k] * (double)bf16_to_float(x[k]);
                sum += p, magnitude += fabs(p);
            }
            double error = fabs(out[r * stride + o] - (sum + (double)before));
            if (!(error <= bound(magnitude, w->cols)))
                fail_msg("%s [%lld, %lld] row %d of %d output %d: %g, not %g", weight_format_name(w->format),
                         (long long)w->rows, (long long)w->cols, (int)r, count, (int)o, (double)out[r * stride + o],
                         sum + (double)before);
        }
    }
    free(row);
}

typedef struct shape {
    weight_format format;
    int rows, cols;
    bool divides;
} shape;

static const shape shapes[] = {
    {WEIGHT_BF16, 1, 16, false},    {WEIGHT_BF16, 33, 80, false},   {WEIGHT_BF16, 96, 1056, false},
    {WEIGHT_MXFP8, 17, 32, false},  {WEIGHT_MXFP8, 50, 96, false},  {WEIGHT_MXFP8, 160, 256, false},
    {WEIGHT_MXFP8, 64, 1312, false}, {WEIGHT_NVFP4, 15, 16, true},  {WEIGHT_NVFP4, 40, 48, false},
    {WEIGHT_NVFP4, 33, 96, true},   {WEIGHT_NVFP4, 144, 1024, false}, {WEIGHT_NVFP4, 32, 2080, true},
    {WEIGHT_F32, 5, 16, false},     {WEIGHT_F32, 33, 80, false},    {WEIGHT_F32, 16, 1024, false},
};

/* Every count of rows, each row as in the largest; through a list of rows in another order; added to what is there. */
static void project_shape(const shape *s)
{
    bed b;
    hy_error err = {0};
    bed_open(&b);
    weight w = random_weight(&b.memory, s->format, s->rows, s->cols, 0.3f, s->divides);
    kernel_weight k;
    check(cuda_weight_load(&b.backend, &w, "a weight", &k, &err), &err);
    int64_t stride = s->rows + 3;
    size_t bytes = MOST_ROWS * (size_t)stride * sizeof(float);
    uint16_t *in = random_halves((size_t)MOST_ROWS * (size_t)s->cols, 1);
    void *device_in = device_put(b.gpu, in, MOST_ROWS * (size_t)s->cols * sizeof *in);
    void *out = device_take(b.gpu, bytes);
    float *all = NULL;
    for (int i = COUNTS - 1; i >= -2; i--) {
        int count = i < 0 ? counts[COUNTS + i] : counts[i];
        bed_many(&b, i < 0);
        b.gpu->calls->fill(b.gpu, out, 0xFF, bytes);
        cuda_project(&b.step, &k, device_in, count, NULL, i % 2 != 0, CUDA_STORE, out, stride);
        float *y = device_get(b.gpu, out, bytes);
        if (!all) {
            check_products(&w, in, NULL, count, y, stride, 0);
            all = y;
            continue;
        }
        for (int r = 0; r < MOST_ROWS; r++)
            for (int o = 0; o < stride; o++) {
                float value = y[r * stride + o];
                if (r < count && o < s->rows)
                    assert_memory_equal(&value, &all[r * stride + o], sizeof value);
                else
                    assert_true(isnan(value));
            }
        free(y);
    }
    int32_t rows[MOST_ROWS];
    for (int i = 0; i < MOST_ROWS; i++) rows[i] = (i * 7 + 3) % MOST_ROWS;
    int32_t *device_rows = device_put(b.gpu, rows, sizeof rows);
    for (int i = 0; i < 4; i++) {
        int count = (int[]){5, 20, 70, 140}[i];
        bed_many(&b, i == 3);
        float *y = malloc(bytes);
        for (size_t j = 0; j < bytes / sizeof *y; j++) y[j] = 0.75f;
        b.gpu->calls->write(b.gpu, out, y, bytes);
        free(y);
        cuda_project(&b.step, &k, device_in, count, device_rows, true, CUDA_ADD, out, stride);
        y = device_get(b.gpu, out, bytes);
        for (int r = 0; r < count; r++)
            for (int o = 0; o < s->rows; o++) {
                float want = 0.75f + all[rows[r] * stride + o];
                assert_memory_equal(&y[r * stride + o], &want, sizeof want);
            }
        assert_true(y[s->rows] == 0.75f);
        free(y);
    }
    b.gpu->calls->free(b.gpu, device_in);
    b.gpu->calls->free(b.gpu, out);
    b.gpu->calls->free(b.gpu, device_rows);
    free(all);
    free(in);
    bed_close(&b);
}

static void test_project(void **state)
{
    (void)state;
    random_state = 5;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) project_shape(&shapes[i]);
}

/* Several weights of two formats in one call are what they are one by one. */
static void parts_of(int count, bool many)
{
    enum { N = 5, COLS = 160 };
    static const int widths[N] = {48, 16, 33, 128, 20};
    random_state = 6;
    bed b;
    hy_error err = {0};
    bed_open(&b);
    bed_many(&b, many);
    uint16_t *in = random_halves((size_t)count * COLS, 1);
    void *device_in = device_put(b.gpu, in, (size_t)count * COLS * sizeof *in);
    kernel_weight k[N + 1] = {{0}};
    cuda_part parts[N + 1];
    float *alone[N];
    for (int i = 0; i < N; i++) {
        weight w = random_weight(&b.memory, i == 3 ? WEIGHT_BF16 : WEIGHT_MXFP8, widths[i], COLS, 0.2f, false);
        check(cuda_weight_load(&b.backend, &w, "a weight", &k[i], &err), &err);
        parts[i] = (cuda_part){&k[i], device_take(b.gpu, (size_t)count * (size_t)widths[i] * sizeof(float)), widths[i]};
        cuda_project(&b.step, &k[i], device_in, count, NULL, false, CUDA_STORE, parts[i].out, widths[i]);
        alone[i] = device_get(b.gpu, parts[i].out, (size_t)count * (size_t)widths[i] * sizeof(float));
        b.gpu->calls->fill(b.gpu, parts[i].out, 0xFF, (size_t)count * (size_t)widths[i] * sizeof(float));
    }
    parts[N] = (cuda_part){&k[N], NULL, 0}; /* a weight that the model has not */
    cuda_project_parts(&b.step, parts, N + 1, device_in, count, NULL, CUDA_STORE);
    for (int i = 0; i < N; i++) {
        float *y = device_get(b.gpu, parts[i].out, (size_t)count * (size_t)widths[i] * sizeof(float));
        assert_memory_equal(y, alone[i], (size_t)count * (size_t)widths[i] * sizeof(float));
        free(y), free(alone[i]);
        b.gpu->calls->free(b.gpu, parts[i].out);
    }
    b.gpu->calls->free(b.gpu, device_in);
    free(in);
    bed_close(&b);
}

static void test_parts(void **state)
{
    (void)state;
    parts_of(11, false);
    parts_of(70, true);
}

/* One MXFP8 weight, every code but NaN under every scale whose values bf16 and fp32 hold. */
static void test_mxfp8_values(void **state)
{
    (void)state;
    enum { SCALES = 230, COLS = 256 }; /* 2^-126 * 2^9 .. 2^(231 - 127) */
    bed b;
    hy_error err = {0};
    bed_open(&b);
    uint8_t *data = arena_take(&b.memory, SCALES * COLS), *scales = arena_take(&b.memory, SCALES * COLS / 32);
    for (int r = 0; r < SCALES; r++)
        for (int i = 0; i < COLS; i++) {
            data[r * COLS + i] = (uint8_t)((i & 127) == 127 ? 0 : i);
            scales[(r * COLS + i) / 32] = (uint8_t)(r + 10);
        }
    weight w = {.format = WEIGHT_MXFP8, .rows = SCALES, .cols = COLS, .data = data, .scales = scales};
    kernel_weight k;
    check(cuda_weight_load(&b.backend, &w, "a weight", &k, &err), &err);
    uint16_t *in = calloc(COLS * COLS, sizeof *in); /* the unit matrix */
    for (int i = 0; i < COLS; i++) in[i * COLS + i] = bf16_from_float(1);
    void *device_in = device_put(b.gpu, in, COLS * COLS * sizeof *in);
    void *out = device_take(b.gpu, COLS * SCALES * sizeof(float));
    cuda_project(&b.step, &k, device_in, COLS, NULL, false, CUDA_STORE, out, SCALES);
    float *y = device_get(b.gpu, out, COLS * SCALES * sizeof(float));
    for (int r = 0; r < SCALES; r++)
        for (int i = 0; i < COLS; i++) {
            float want = e4m3_to_float(data[r * COLS + i]) * e8m0_to_float((uint8_t)(r + 10));
            if (fabsf(want) < 0x1p-126f) continue;
            assert_true(y[i * SCALES + r] == want);
        }
    free(y), free(in);
    b.gpu->calls->free(b.gpu, device_in);
    b.gpu->calls->free(b.gpu, out);
    bed_close(&b);
}

/* One NVFP4 weight, every code under every scale. */
static void test_nvfp4_values(void **state)
{
    (void)state;
    enum { SCALES = 127, COLS = 32 };
    bed b;
    hy_error err = {0};
    bed_open(&b);
    uint8_t *data = arena_take(&b.memory, SCALES * COLS / 2), *scales = arena_take(&b.memory, SCALES * COLS / 16);
    for (int r = 0; r < SCALES; r++) {
        for (int i = 0; i < COLS / 2; i++) data[r * COLS / 2 + i] = (uint8_t)(i % 8 * 2 | (i % 8 * 2 + 1) << 4);
        scales[2 * r] = (uint8_t)r;
        scales[2 * r + 1] = (uint8_t)(126 - r);
    }
    weight w = {.format = WEIGHT_NVFP4, .rows = SCALES, .cols = COLS, .data = data, .scales = scales, .global = 0.25f};
    kernel_weight k;
    check(cuda_weight_load(&b.backend, &w, "a weight", &k, &err), &err);
    uint16_t in[COLS * COLS] = {0};
    for (int i = 0; i < COLS; i++) in[i * COLS + i] = bf16_from_float(1);
    void *device_in = device_put(b.gpu, in, sizeof in), *out = device_take(b.gpu, COLS * SCALES * sizeof(float));
    cuda_project(&b.step, &k, device_in, COLS, NULL, false, CUDA_STORE, out, SCALES);
    float *y = device_get(b.gpu, out, COLS * SCALES * sizeof(float)), row[COLS];
    for (int r = 0; r < SCALES; r++) {
        weight_row(&w, r, row);
        for (int i = 0; i < COLS; i++) assert_true(y[i * SCALES + r] == row[i]);
    }
    free(y);
    b.gpu->calls->free(b.gpu, device_in);
    b.gpu->calls->free(b.gpu, out);
    bed_close(&b);
}

static void norm_shape(int hidden, int count, weight_format format, bool plain)
{
    bed b;
    hy_error err = {0};
    bed_open(&b);
    size_t n = (size_t)count * (size_t)hidden;
    weight w = random_weight(&b.memory, format, 1, hidden, 0.3f, false);
    kernel_weight k;
    check(cuda_weight_load(&b.backend, &w, "a gain", &k, &err), &err);
    float *x = random_floats(n, 2, false), *gain = malloc((size_t)hidden * sizeof *gain);
    weight_row(&w, 0, gain);
    float *device_x = device_put(b.gpu, x, n * sizeof *x), *device_y = device_take(b.gpu, n * sizeof *x);
    uint16_t *device_half = device_take(b.gpu, n * sizeof *device_half);
    cuda_norm(&b.step, device_x, &k, hidden, 1e-6f, plain, count, device_half, device_y);
    float *y = device_get(b.gpu, device_y, n * sizeof *x);
    uint16_t *half = device_get(b.gpu, device_half, n * sizeof *half);
    for (int r = 0; r < count; r++) {
        double squares = 0;
        for (int i = 0; i < hidden; i++) squares += (double)x[r * hidden + i] * (double)x[r * hidden + i];
        double inverse = 1 / sqrt(squares / hidden + 1e-6);
        for (int i = 0; i < hidden; i++) {
            double want = (double)x[r * hidden + i] * inverse * ((plain ? 0.0 : 1.0) + (double)gain[i]);
            float got = y[r * hidden + i];
            assert_true(fabs((double)got - want) <= fabs(want) * 0x1.01p-8);
            assert_true(bf16_from_float(got) == half[r * hidden + i] && bf16_round(got) == got);
        }
    }
    free(x), free(gain), free(y), free(half);
    b.gpu->calls->free(b.gpu, device_x);
    b.gpu->calls->free(b.gpu, device_y);
    b.gpu->calls->free(b.gpu, device_half);
    bed_close(&b);
}

static void test_norm(void **state)
{
    (void)state;
    random_state = 8;
    norm_shape(16, 3, WEIGHT_BF16, false);
    norm_shape(528, 1, WEIGHT_F32, true);
    norm_shape(2064, 5, WEIGHT_BF16, false);
    norm_shape(8720, 2, WEIGHT_BF16, false);
}

static void swiglu_kind(bool plain)
{
    enum { WIDTH = 49, COUNT = 7, N = WIDTH * COUNT };
    const float alpha = 1.702f, limit = 1.5f;
    bed b;
    bed_open(&b);
    float *gate = random_floats(N, 2, false), *up = random_floats(N, 2, false);
    gate[0] = up[1] = NAN;
    float *device_gate = device_put(b.gpu, gate, N * sizeof *gate), *device_up = device_put(b.gpu, up, N * sizeof *up);
    uint16_t *device_z = device_take(b.gpu, N * sizeof *device_z);
    cuda_swiglu(&b.step, device_gate, device_up, WIDTH, COUNT, alpha, limit, plain, device_z);
    uint16_t *z = device_get(b.gpu, device_z, N * sizeof *z);
    for (int i = 0; i < N; i++) {
        double g = (double)gate[i], u = (double)up[i], want;
        if (plain) {
            want = g / (1 + exp(-g)) * u;
        } else {
            if (g > (double)limit) g = (double)limit;
            if (u > (double)limit) u = (double)limit;
            if (u < (double)-limit) u = (double)-limit;
            want = (u + 1) * g / (1 + exp(-(double)alpha * g));
        }
        if (i < 2)
            assert_true(isnan(bf16_to_float(z[i])));
        else
            assert_true(fabs((double)bf16_to_float(z[i]) - want) <= fabs(want) * 0x1.02p-8 + 1e-30);
    }
    free(gate), free(up), free(z);
    b.gpu->calls->free(b.gpu, device_gate);
    b.gpu->calls->free(b.gpu, device_up);
    b.gpu->calls->free(b.gpu, device_z);
    bed_close(&b);
}

static void test_swiglu(void **state)
{
    (void)state;
    random_state = 9;
    swiglu_kind(false);
    swiglu_kind(true);
}

/* cuda_glu's bits are those of its three steps. */
static void glu_shape(const shape *s, bool plain)
{
    bed b;
    hy_error err = {0};
    bed_open(&b);
    weight w[2];
    kernel_weight k[2];
    for (int i = 0; i < 2; i++) {
        w[i] = random_weight(&b.memory, s->format, s->rows, s->cols, 0.3f, s->divides);
        check(cuda_weight_load(&b.backend, &w[i], "a weight", &k[i], &err), &err);
    }
    size_t n = MOST_ROWS * (size_t)s->rows;
    uint16_t *in = random_halves((size_t)MOST_ROWS * (size_t)s->cols, 1);
    void *device_in = device_put(b.gpu, in, MOST_ROWS * (size_t)s->cols * sizeof *in);
    float *y = device_take(b.gpu, 2 * n * sizeof *y);
    uint16_t *z = device_take(b.gpu, n * sizeof *z);
    for (int i = 0; i < COUNTS; i++) {
        size_t used = (size_t)counts[i] * (size_t)s->rows;
        bed_many(&b, false);
        for (int j = 0; j < 2; j++)
            cuda_project(&b.step, &k[j], device_in, counts[i], NULL, false, CUDA_STORE, y + (size_t)j * used, s->rows);
        cuda_swiglu(&b.step, y, y + used, s->rows, counts[i], 1.7f, 2, plain, z);
        uint16_t *apart = device_get(b.gpu, z, n * sizeof *z);
        b.gpu->calls->fill(b.gpu, z, 0xFF, n * sizeof *z);
        b.gpu->calls->fill(b.gpu, y, 0xFF, 2 * n * sizeof *y);
        bed_many(&b, i == COUNTS - 1);
        cuda_glu(&b.step, &k[0], &k[1], device_in, counts[i], 1.7f, 2, plain, y, z);
        uint16_t *together = device_get(b.gpu, z, n * sizeof *z);
        assert_memory_equal(apart, together, used * sizeof *z);
        for (size_t j = used; j < n; j++) assert_int_equal(together[j], 0xFFFF);
        free(apart), free(together);
    }
    b.gpu->calls->free(b.gpu, device_in);
    b.gpu->calls->free(b.gpu, y);
    b.gpu->calls->free(b.gpu, z);
    free(in);
    bed_close(&b);
}

static void test_glu(void **state)
{
    (void)state;
    random_state = 10;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].cols < 1000) glu_shape(&shapes[i], i % 2);
}

/* ---- Few rows ------------------------------------------------------------------------------------------------------ */

/* Of two weights, on GPUs of one and of many multiprocessors: each row as kernels have it that take neither. */
static void few_shape(weight_format format, int rows, int cols, bool sliced)
{
    enum { FEW = FEW_ROWS, N = 70, PARTS = 2, COUNTS_OF = 7 };
    static const int processors[] = {1, 17, INT_MAX};
    static const int counts_of[2][COUNTS_OF] = {{1, 2, 7, FEW}, {FEW, FEW + 1, 16, 17, 40, 64, N}};
    bed b;
    hy_error err = {0};
    bed_open(&b);
    bed_many(&b, false);
    uint16_t *in = random_halves((size_t)N * (size_t)cols, 1);
    void *device_in = device_put(b.gpu, in, (size_t)N * (size_t)cols * sizeof *in);
    int32_t list[N];
    for (int i = 0; i < N; i++) list[i] = (i * 9 + 2) % N;
    int32_t *device_list = device_put(b.gpu, list, sizeof list);
    kernel_weight k[PARTS];
    cuda_part parts[PARTS];
    size_t bytes = (size_t)N * (size_t)rows * sizeof(float);
    for (int i = 0; i < PARTS; i++) {
        weight w = random_weight(&b.memory, format, rows, cols, 0.3f, false);
        if (format == WEIGHT_MXFP8) ((uint8_t *)(uintptr_t)w.scales)[rows * (cols / 32) / 2 + 1] = 150; /* 2^23 */
        check(cuda_weight_load(&b.backend, &w, "a weight", &k[i], &err), &err);
        parts[i] = (cuda_part){&k[i], device_take(b.gpu, bytes), rows};
    }
    uint16_t *z = device_take(b.gpu, bytes);
    float *all[PARTS], *y = device_take(b.gpu, 2 * bytes);
    cuda_project_parts(&b.step, parts, PARTS, device_in, N, NULL, CUDA_STORE);
    for (int i = 0; i < PARTS; i++) all[i] = device_get(b.gpu, parts[i].out, bytes);
    cuda_swiglu(&b.step, parts[0].out, parts[1].out, rows, N, 1.7f, 2, false, z);
    uint16_t *all_z = device_get(b.gpu, z, bytes / 2);
    if (sliced) {
        b.step.slice_bytes = 8 * 64 * 128 * sizeof(float); /* of 64 rows two tiles */
        b.step.slice_sums = device_take(b.gpu, b.step.slice_bytes);
        b.gpu->calls->fill(b.gpu, b.step.slice_sums, 0xFF, b.step.slice_bytes);
    }
    for (int p = 0; p < 3; p++)
        for (int c = 0; c < (sliced ? COUNTS_OF : 4); c++) {
            int count = counts_of[sliced][c];
            b.backend.info.processors = processors[p];
            for (int i = 0; i < PARTS; i++) b.gpu->calls->fill(b.gpu, parts[i].out, 0xFF, bytes);
            b.gpu->calls->fill(b.gpu, z, 0xFF, bytes);
            cuda_project_parts(&b.step, parts, PARTS, device_in, count, device_list, CUDA_STORE);
            if (sliced) /* twice what is there */
                cuda_project_parts(&b.step, parts, PARTS, device_in, count, device_list, CUDA_ADD);
            for (int i = 0; i < PARTS; i++) {
                float *got = device_get(b.gpu, parts[i].out, bytes);
                for (int r = 0; r < count * rows; r++)
                    assert_true(got[r] == (float)(sliced + 1) * all[i][list[r / rows] * rows + r % rows]);
                for (int j = count * rows; j < N * rows; j++) assert_true(isnan(got[j]));
                free(got);
            }
            cuda_glu(&b.step, &k[0], &k[1], device_in, count, 1.7f, 2, false, y, z);
            uint16_t *got = device_get(b.gpu, z, bytes / 2);
            assert_memory_equal(got, all_z, (size_t)(count * rows) * sizeof *got);
            for (int j = count * rows; j < N * rows; j++) assert_int_equal(got[j], 0xFFFF);
            free(got);
        }
    for (int i = 0; i < PARTS; i++) free(all[i]), b.gpu->calls->free(b.gpu, parts[i].out);
    free(all_z), free(in);
    b.gpu->calls->free(b.gpu, device_in);
    b.gpu->calls->free(b.gpu, device_list);
    b.gpu->calls->free(b.gpu, b.step.slice_sums);
    b.gpu->calls->free(b.gpu, y);
    b.gpu->calls->free(b.gpu, z);
    bed_close(&b);
}

static void test_few(void **state)
{
    (void)state;
    random_state = 12;
    few_shape(WEIGHT_BF16, 33, 512, false);
    few_shape(WEIGHT_BF16, 17, 6144, false);
    few_shape(WEIGHT_BF16, 16, 8192, false);
    few_shape(WEIGHT_MXFP8, 50, 1024, false);
    few_shape(WEIGHT_MXFP8, 8, 6144, false);
    few_shape(WEIGHT_MXFP8, 16, 8192, false);
}

static void test_slices(void **state)
{
    (void)state;
    random_state = 13;
    few_shape(WEIGHT_BF16, 200, 512, true);
    few_shape(WEIGHT_MXFP8, 72, 1024, true);
    few_shape(WEIGHT_MXFP8, 17, 12288, true);
    few_shape(WEIGHT_BF16, 9, 12288, true);
}

/* ---- Products of warpgroups ---------------------------------------------------------------------------------------- */

/* Path 1: rows take project_hopper.cu, 2: project_wide.cu, with room for two tiles of weights at a time; 0: neither. */
static void bed_hopper(bed *b, int32_t rows, int32_t cols, int path)
{
    hy_error err = {0};
    b->backend.options.gpu_wgmma_rows = path > 0;
    b->step.expanded_rows = path == 2 ? 1 : INT32_MAX;
    if (!path || b->step.packed) return;
    b->backend.info.processors = 3; /* several tiles a block */
    b->step.packed_rows = (rows + 127) / 128 * 128;
    b->step.packed_cols = cols;
    size_t bytes = (size_t)b->step.packed_rows * (size_t)cols * sizeof *b->step.packed;
    check(b->gpu->calls->alloc(b->gpu, bytes, "rows as tiles", (void **)&b->step.packed, &err), &err);
    check(b->gpu->calls->alloc(b->gpu, 3 * HOPPER_OPEN, "open sums", (void **)&b->step.open_sums, &err), &err);
    b->gpu->calls->fill(b->gpu, b->step.packed, 0xFF, bytes);
    b->step.expanded_bytes = (size_t)(2 * WIDE_OUTPUTS * 2) * (size_t)cols;
    check(b->gpu->calls->alloc(b->gpu, b->step.expanded_bytes, "weights", (void **)&b->step.expanded, &err), &err);
    b->gpu->calls->fill(b->gpu, b->step.expanded, 0xFF, b->step.expanded_bytes);
    b->gpu->calls->fill(b->gpu, b->step.open_sums, 0xFF, 3 * HOPPER_OPEN);
}

static void check_same(const void *a, const void *b, size_t n, const char *what)
{
    size_t equal = 0;
    for (size_t i = 0; i < n; i++) equal += !memcmp((const char *)a + 4 * i, (const char *)b + 4 * i, 4);
    if (equal != n) fail_msg("%s: %zu of %zu have the bits of mma.sync", what, equal, n);
}

/* Two weights in one launch, in rows [count] that `list` reorders and that end in garbage; STORE, ADD and GLU. */
static void hopper_shape(weight_format format, const int outputs[2], int cols, int count)
{
    bed b;
    hy_error err = {0};
    bed_open(&b);
    weight w[2];
    kernel_weight k[2];
    cuda_part parts[2];
    size_t sizes[2];
    bool glu = outputs[0] == outputs[1];
    int stored = count + 3;
    uint16_t *in = random_halves((size_t)stored * (size_t)cols, 1);
    memset(in + (size_t)count * (size_t)cols, 0xFF, 3 * (size_t)cols * sizeof *in);
    int32_t *list = malloc((size_t)count * sizeof *list);
    for (int i = 0; i < count; i++) list[i] = count - 1 - i;
    void *device_in = device_put(b.gpu, in, (size_t)stored * (size_t)cols * sizeof *in);
    int32_t *device_list = device_put(b.gpu, list, (size_t)count * sizeof *list);
    float *out[3][2]; /* [path][part] */
    uint16_t *z[3] = {NULL, NULL, NULL}, *device_z = device_take(b.gpu, (size_t)stored * (size_t)outputs[0] * sizeof *device_z);
    for (int i = 0; i < 2; i++) {
        w[i] = random_weight(&b.memory, format, outputs[i], cols, 0.3f, i == 1);
        check(cuda_weight_load(&b.backend, &w[i], "a weight", &k[i], &err), &err);
        sizes[i] = (size_t)stored * (size_t)(outputs[i] + 5) * sizeof(float);
        parts[i] = (cuda_part){&k[i], device_take(b.gpu, sizes[i]), outputs[i] + 5};
    }
    for (int path = 0; path < 3; path++) {
        bed_hopper(&b, count, cols, path);
        for (int i = 0; i < 2; i++) b.gpu->calls->fill(b.gpu, parts[i].out, 0xFF, sizes[i]);
        cuda_project_parts(&b.step, parts, 2, device_in, count, NULL, CUDA_STORE);
        if (path)
            for (int i = 0; i < 2; i++) {
                float *y = device_get(b.gpu, parts[i].out, sizes[i]);
                for (int r = count * (outputs[i] + 5); r < stored * (outputs[i] + 5); r++) assert_true(isnan(y[r]));
                for (int o = outputs[i]; o < outputs[i] + 5; o++) assert_true(isnan(y[o]));
                free(y);
            }
        if (path)
            for (int i = 0; i < 2; i++) {
                float *y = device_get(b.gpu, parts[i].out, sizes[i]);
                check_products(&w[i], in, NULL, count, y, outputs[i] + 5, 0);
                free(y);
            }
        cuda_project_parts(&b.step, parts, 2, device_in, count, device_list, CUDA_ADD);
        for (int i = 0; i < 2; i++) out[path][i] = device_get(b.gpu, parts[i].out, sizes[i]);
        if (!glu) continue;
        b.gpu->calls->fill(b.gpu, device_z, 0xFF, (size_t)stored * (size_t)outputs[0] * sizeof *device_z);
        cuda_glu(&b.step, &k[0], &k[1], device_in, count, 1.7f, 2, false, parts[0].out, device_z);
        z[path] = device_get(b.gpu, device_z, (size_t)stored * (size_t)outputs[0] * sizeof *device_z);
    }
    for (int path = 1; path < 3; path++) {
        const char *by = path == 1 ? "project_hopper" : "project_wide";
        for (int i = 0; i < 2; i++) check_same(out[0][i], out[path][i], sizes[i] / 4, by);
        if (glu) check_same(z[0], z[path], (size_t)stored * (size_t)outputs[0] / 2, by);
    }
    for (int path = 0; path < 3; path++) free(out[path][0]), free(out[path][1]), free(z[path]);
    for (int i = 0; i < 2; i++) b.gpu->calls->free(b.gpu, parts[i].out);
    b.gpu->calls->free(b.gpu, device_in);
    b.gpu->calls->free(b.gpu, device_list);
    b.gpu->calls->free(b.gpu, device_z);
    b.gpu->calls->free(b.gpu, b.step.packed);
    b.gpu->calls->free(b.gpu, b.step.open_sums);
    b.gpu->calls->free(b.gpu, b.step.expanded);
    free(in), free(list);
    bed_close(&b);
}

static void test_hopper(void **state)
{
    (void)state;
    random_state = 11;
    gpu *g = device_open();
    gpu_info info;
    g->calls->info(g, &info);
    g->calls->close(g);
    if (info.major != 9) skip();
    hopper_shape(WEIGHT_MXFP8, (int[]){200, 200}, 1024, 129);
    hopper_shape(WEIGHT_MXFP8, (int[]){128, 17}, 1024, 1);
    hopper_shape(WEIGHT_MXFP8, (int[]){16, 300}, 3072, 260);
    hopper_shape(WEIGHT_MXFP8, (int[]){384, 300}, 1024, 320);
    hopper_shape(WEIGHT_BF16, (int[]){70, 70}, 512, 64);
    hopper_shape(WEIGHT_BF16, (int[]){300, 300}, 512, 192);
    hopper_shape(WEIGHT_BF16, (int[]){129, 128}, 1536, 17);
    hopper_shape(WEIGHT_NVFP4, (int[]){64, 64}, 1024, 130);
    hopper_shape(WEIGHT_NVFP4, (int[]){260, 31}, 2048, 7);
}

/* The tests above came past every kernel. */
static void test_launched(void **state)
{
    (void)state;
    const char *name;
    for (int i = 0; (name = cuda_emulated_kernel(i)) && !cuda_test_on_gpu; i++)
        if (!strncmp(name, "hy_project_", 11) || !strncmp(name, "hy_glu_", 7) || !strncmp(name, "hy_pack_", 8))
            if (!cuda_emulated_launches(name)) fail_msg("%s was not launched", name);
}

/* ---- Speed ------------------------------------------------------------------------------------------------------- */

enum { SPEED_ROWS = 2048, SPEED_CALLS = 24, SPEED_PARTS = 5, SPEED_COPIES = 4 };

typedef struct speed_shape {
    const char *name;
    weight_format format;
    int cols, rows[SPEED_PARTS];
    bool glu;
} speed_shape;

static void speed_of(const speed_shape *s)
{
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, SPEED_ROWS};
    bed b;
    hy_error err = {0};
    kernel_weight k[SPEED_COPIES][SPEED_PARTS] = {{{0}}}; /* more than the GPU's caches hold */
    cuda_part parts[SPEED_PARTS];
    int n = 0, outputs = 0;
    bed_open(&b);
    for (; n < SPEED_PARTS && s->rows[n]; n++) outputs += s->rows[n];
    int copies = (int64_t)outputs * s->cols > 500000000 ? 1 : SPEED_COPIES;
    double bytes = 0;
    for (int i = 0; i < n; i++) {
        weight w = {.format = s->format, .rows = s->rows[i], .cols = s->cols, .global = 1};
        uint8_t *data = arena_take(&b.memory, (size_t)w.rows * weight_row_data(&w));
        uint8_t *scales = arena_take(&b.memory, (size_t)w.rows * weight_row_scales(&w) + 1);
        for (size_t j = 0; j < (size_t)w.rows * weight_row_data(&w); j++) data[j] = (uint8_t)(j * 37 % 127 & 0x3F);
        memset(scales, s->format == WEIGHT_MXFP8 ? 120 : 0x38, (size_t)w.rows * weight_row_scales(&w));
        w.data = data, w.scales = scales;
        for (int c = 0; c < copies; c++) check(cuda_weight_load(&b.backend, &w, s->name, &k[c][i], &err), &err);
        bytes += (double)weight_bytes(&w);
    }
    size_t room = (size_t)SPEED_ROWS * (size_t)outputs * sizeof(float);
    if (room > (size_t)1 << 31) room = (size_t)1 << 31;
    float *out = device_take(b.gpu, room);
    uint16_t *in = device_take(b.gpu, (size_t)SPEED_ROWS * (size_t)s->cols * sizeof *in), *z = NULL;
    if (s->glu) z = device_take(b.gpu, (size_t)SPEED_ROWS * (size_t)outputs);
    b.gpu->calls->fill(b.gpu, in, 0x3C, (size_t)SPEED_ROWS * (size_t)s->cols * sizeof *in);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        double best = INFINITY;
        if ((size_t)rows[r] * (size_t)outputs * sizeof(float) > room) break;
        for (int turn = 0; turn < 4; turn++) { /* the first one warms up */
            check(b.gpu->calls->wait(b.gpu, &err), &err);
            double start = clock_seconds();
            for (int call = 0; call < SPEED_CALLS; call++) {
                kernel_weight *w = k[call % copies];
                float *at = out;
                for (int i = 0; i < n; at += (int64_t)rows[r] * s->rows[i], i++)
                    parts[i] = (cuda_part){&w[i], at, s->rows[i]};
                if (s->glu)
                    cuda_glu(&b.step, &w[0], &w[1], in, rows[r], 1.7f, 7, false, out, z);
                else
                    cuda_project_parts(&b.step, parts, n, in, rows[r], NULL, CUDA_STORE);
            }
            check(b.gpu->calls->wait(b.gpu, &err), &err);
            double time = (clock_seconds() - start) * 1e6 / SPEED_CALLS;
            if (turn > 0 && time < best) best = time;
        }
        printf("%-24s %4d rows: %8.1f us, %5.2f TB/s of weights, %6.1f TFLOP/s\n", s->name, rows[r], best,
               bytes / best * 1e-6, 2.0 * rows[r] * outputs * s->cols / best * 1e-6);
    }
    b.gpu->calls->free(b.gpu, out);
    b.gpu->calls->free(b.gpu, in);
    if (z) b.gpu->calls->free(b.gpu, z);
    bed_close(&b);
}

static void speed(void)
{
    static const speed_shape shapes_of_model[] = {
        {"q, k, v, index: mxfp8", WEIGHT_MXFP8, 6144, {8192, 512, 512, 512, 128}, false},
        {"o: mxfp8", WEIGHT_MXFP8, 8192, {6144}, false},
        {"dense glu: mxfp8", WEIGHT_MXFP8, 6144, {12288, 12288}, true},
        {"dense down: mxfp8", WEIGHT_MXFP8, 12288, {6144}, false},
        {"o: bf16", WEIGHT_BF16, 8192, {6144}, false},
        {"o: nvfp4", WEIGHT_NVFP4, 8192, {6144}, false},
        {"router: f32", WEIGHT_F32, 6144, {128}, false},
        {"head: bf16", WEIGHT_BF16, 6144, {200064}, false},
    };
    for (size_t i = 0; i < sizeof shapes_of_model / sizeof *shapes_of_model; i++) speed_of(&shapes_of_model[i]);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1 && !strcmp(argv[1], "speed")) return speed(), 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_project),      cmocka_unit_test(test_parts),  cmocka_unit_test(test_mxfp8_values),
        cmocka_unit_test(test_nvfp4_values), cmocka_unit_test(test_norm),   cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_glu),          cmocka_unit_test(test_few),    cmocka_unit_test(test_slices),
        cmocka_unit_test(test_hopper),       cmocka_unit_test(test_launched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
