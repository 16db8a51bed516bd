/*
 * Projections of the cpu backend against scalar loops over the unpacked weight, in the order of docs/numerics.md, bit by
 * bit: every variant that this machine runs, every format, odd shapes, any number of rows, sliced or not.
 */
#include "backend/random_model.h"

#include "backend/cpu/linear.h"
#include "base/memory.h"
#include "number/bits.h"
#include "number/e2m1.h"

static const cpu_products *all[4];
static int variants;
static threads *pool;
static cpu_scratch scratch;

static int setup(void **state)
{
    (void)state;
    hy_error err = {0};
    variants = cpu_products_all(all);
    for (int i = 0; i < variants; i++) printf("# variant %s\n", all[i]->name);
    scratch = (cpu_scratch){memory_alloc(SCRATCH_EXPANDED, 4), memory_alloc(SCRATCH_PAIRS, 4),
                            memory_alloc(SCRATCH_SUMS, 4)};
    return threads_open(2, &pool, &err) != HY_OK;
}

static int teardown(void **state)
{
    (void)state;
    memory_free(scratch.expanded);
    memory_free(scratch.pairs);
    memory_free(scratch.sums);
    threads_close(pool);
    return 0;
}

/* ---- The scalar twins -------------------------------------------------------------------------------------------- */

/* x . w over columns [begin, end): pairs in ascending order, of a pair the odd column first; without rounding between
 * product and sum, except for fp32 weights. */
static float chain(const float *x, const float *w, int64_t begin, int64_t end, bool fused)
{
    float sum = 0;
    for (int64_t k = begin; k < end; k += 2)
        for (int64_t i = k + 1; i >= k; i--) {
            if (i >= end) continue;
            float product = x[i] * w[i];
            sum = fused ? fmaf(x[i], w[i], sum) : sum + product;
        }
    return sum;
}

static float twin(const float *x, const float *w, int64_t cols, bool sliced, bool fused)
{
    if (!sliced) return chain(x, w, 0, cols, fused);
    float part[8];
    int64_t groups = (cols + 31) / 32;
    for (int i = 0; i < 8; i++) {
        int64_t begin = i * groups / 8 * 32, end = (i + 1) * groups / 8 * 32;
        part[i] = chain(x, w, begin, end < cols ? end : cols, fused);
    }
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

/* A quantised row against a quantised weight row: whole numbers per block, one rounding a block. */
static float twin4(const uint8_t *xc, const uint8_t *xs, const uint8_t *wc, const uint8_t *ws, int64_t cols)
{
    float sum = 0;
    for (int64_t b = 0; b < cols / 16; b++) {
        float dot = 0;
        for (int64_t k = b * 16; k < b * 16 + 16; k++)
            dot += e2m1_to_float(e2m1_code(xc, (uint64_t)k)) * e2m1_to_float(e2m1_code(wc, (uint64_t)k));
        sum = fmaf(dot, e4m3_to_float(xs[b]) * e4m3_to_float(ws[b]), sum);
    }
    return sum;
}

/* A quantised row as products take it. */
static void blocks4(const uint8_t *codes, const uint8_t *scales, int64_t blocks, cpu_block4 *out)
{
    for (int64_t b = 0; b < blocks; b++) {
        int sum = 0;
        for (int i = 0; i < 16; i++) {
            int twice = (int)(2 * e2m1_to_float(e2m1_code(codes, (uint64_t)(b * 16 + i))));
            out[b].code[i / 8 * 8 + i % 2 * 4 + i % 8 / 2] = (int8_t)twice;
            sum += twice;
        }
        out[b].scale = ldexpf(e4m3_to_float(scales[b]), 115);
        out[b].correction = -12 * sum;
    }
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

/* What the scalar loops give, before the outer factor: [rows][w->rows]. */
static float *expected_sums(const weight *w, const float *x, int rows, bool sliced)
{
    float *sums = malloc((size_t)rows * (size_t)w->rows * sizeof *sums), *row = malloc((size_t)w->cols * sizeof *row);
    weight plain = *w;
    plain.global = 1;
    for (int64_t n = 0; n < w->rows; n++) {
        weight_row(&plain, n, row);
        for (int r = 0; r < rows; r++)
            sums[r * w->rows + n] =
                twin(x + r * w->cols, row, w->cols, sliced, w->format != WEIGHT_F32 && w->format != WEIGHT_F16);
    }
    free(row);
    return sums;
}

static float with_factor(const weight *w, float sum)
{
    return w->format != WEIGHT_NVFP4 ? sum : w->divides ? sum / w->global : sum * w->global;
}

/* Products of all groups with rows [0, rows), up to `step` groups at a time, against `expected`. */
static void compare(const cpu_products *p, const weight *w, const cpu_linear *l, const float *x, const cpu_block4 *x4,
                    int rows, bool sliced, int step, const float *expected)
{
    for (int64_t first = 0; first < l->groups; first += step)
        for (int at = 0; at < rows; at += TILE_ROWS) {
            int n = rows - at < TILE_ROWS ? rows - at : TILE_ROWS;
            int groups = (int)(l->groups - first < step ? l->groups - first : step);
            cpu_group group[MAX_GROUPS] = {{NULL, 0}};
            const float *row[TILE_ROWS] = {NULL}, *y;
            const cpu_block4 *row4[TILE_ROWS] = {NULL};
            for (int g = 0; g < groups; g++) group[g] = (cpu_group){l, first + g};
            for (int r = 0; r < n; r++) {
                row[r] = x + (at + r) * l->cols;
                row4[r] = x4 ? x4 + (at + r) * (l->cols / 16) : NULL;
            }
            y = x4 ? cpu_multiply_block4(p, &scratch, group, groups, row4, n, NULL)
                   : cpu_multiply(p, &scratch, group, groups, row, n, sliced);
            for (int g = 0; g < groups; g++)
                for (int r = 0; r < n; r++, y += GROUP)
                    for (int64_t i = 0; i < GROUP && (first + g) * GROUP + i < w->rows; i++) {
                        int64_t column = (first + g) * GROUP + i;
                        float want = with_factor(w, expected[(at + r) * w->rows + column]);
                        if (bits_of_float(y[i]) != bits_of_float(want))
                            fail_msg("%s, %s [%lld, %lld], %d rows, sliced %d: row %d column %lld is %a, not %a", p->name,
                                     weight_format_name(w->format), (long long)w->rows, (long long)w->cols, rows, sliced,
                                     at + r, (long long)column, (double)y[i], (double)want);
                    }
        }
}

static const int row_counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 64, 127, 129, 256};
enum { COUNTS = sizeof row_counts / sizeof *row_counts, MOST = 256 };

static void one_shape(weight_format format, int64_t rows, int64_t cols, int counts)
{
    arena memory = {0};
    hy_error err = {0};
    weight w = random_weight(&memory, format, rows, cols, 0.3f, rows % 2);
    cpu_linear l;
    check(cpu_linear_pack(&w, "a test", pool, NULL, 0, &l, &err), &err);
    int most = row_counts[counts - 1];
    float *x = random_floats((size_t)(most * cols), 1, format != WEIGHT_F32);
    for (int sliced = 0; sliced < 2; sliced++) {
        float *expected = expected_sums(&w, x, most, sliced);
        for (int v = 0; v < variants; v++)
            for (int c = 0; c < counts; c++)
                compare(all[v], &w, &l, x, NULL, row_counts[c], sliced, 1 + c % MAX_GROUPS, expected);
        free(expected);
    }
    free(x);
    cpu_linear_free(&l);
    arena_free(&memory);
}

static void chains(void **state)
{
    (void)state;
    static const struct {
        int64_t rows, cols;
        int counts;
    } shapes[] = {{1, 16, COUNTS}, {15, 77, COUNTS}, {17, 112, COUNTS}, {300, 96, COUNTS}, {40, 416, COUNTS}, {33, 6144, 5}};
    static const weight_format formats[] = {WEIGHT_F32, WEIGHT_BF16, WEIGHT_MXFP8, WEIGHT_NVFP4};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int f = 0; f < 4; f++) {
            int64_t unit = formats[f] == WEIGHT_MXFP8 ? 32 : formats[f] == WEIGHT_NVFP4 ? 16 : 1, cols = shapes[s].cols;
            one_shape(formats[f], shapes[s].rows, (cols + unit - 1) / unit * unit, shapes[s].counts);
        }
}

/* Inputs quantised as the first and as the second matrix of an expert take them. */
static void four_bit_inputs(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 16}, {15, 80}, {17, 112}, {300, 96}, {40, 528}, {33, 6144}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        arena memory = {0};
        hy_error err = {0};
        int64_t rows = shapes[s][0], cols = shapes[s][1], blocks = cols / 16;
        int counts = cols > 1000 ? 5 : COUNTS, most = row_counts[counts - 1];
        weight w = random_weight(&memory, WEIGHT_NVFP4, rows, cols, 0.3f, s % 2);
        cpu_linear l;
        check(cpu_linear_pack(&w, "a test", pool, NULL, 0, &l, &err), &err);
        float *x = random_floats((size_t)(most * cols), 1, true);
        uint8_t *codes = malloc((size_t)(most * cols / 2)), *scales = malloc((size_t)(most * blocks));
        cpu_block4 *x4 = malloc((size_t)(most * blocks) * sizeof *x4);
        float *expected = malloc((size_t)(most * rows) * sizeof *expected);
        for (int r = 0; r < most; r++) {
            if (r % 2)
                nvfp4_fc1_quantise_row(x + r * cols, (size_t)blocks, codes + r * cols / 2, scales + r * blocks);
            else
                nvfp4_fc2_quantise_row(x + r * cols, (size_t)blocks, codes + r * cols / 2, scales + r * blocks);
            blocks4(codes + r * cols / 2, scales + r * blocks, blocks, x4 + r * blocks);
            for (int64_t n = 0; n < rows; n++)
                expected[r * rows + n] = twin4(codes + r * cols / 2, scales + r * blocks,
                                               (const uint8_t *)w.data + n * cols / 2, w.scales + n * blocks, cols);
        }
        for (int v = 0; v < variants; v++)
            for (int c = 0; c < counts; c++)
                compare(all[v], &w, &l, x, x4, row_counts[c], false, 1 + c % MAX_GROUPS, expected);
        free(x), free(codes), free(scales), free(x4), free(expected);
        cpu_linear_free(&l);
        arena_free(&memory);
    }
}

/* The quantisers of every variant against those of src/number, NaN, infinities and ties among the values. */
static void quantisers(void **state)
{
    (void)state;
    enum { BLOCKS = 24, N = BLOCKS * 16 };
    for (int round = 0; round < 400; round++) {
        float *x = random_floats(N, ldexpf(1, random_below(40) - 25), true);
        if (round % 4 == 1) /* multiples of a quarter in blocks whose scale is 1: values between two codes */
            for (int i = 0; i < N; i++) x[i] = i % 16 == 0 ? 6.0f / 16 : (float)(random_below(49) - 24) / 64;
        if (round % 5 == 2) x[random_below(N)] = random_below(2) ? INFINITY : -INFINITY;
        if (round % 5 == 3) x[random_below(N)] = NAN;
        if (round % 7 == 0) memset(x + random_below(BLOCKS) * 16, 0, 16 * sizeof *x);
        if (round == 399) memset(x, 0, N * sizeof *x);
        uint8_t codes[2][N / 2], scales[2][BLOCKS];
        cpu_block4 want[2][BLOCKS], got[2][BLOCKS];
        float factor = nvfp4_fc1_quantise_row(x, BLOCKS, codes[0], scales[0]);
        nvfp4_fc2_quantise_row(x, BLOCKS, codes[1], scales[1]);
        for (int i = 0; i < 2; i++) blocks4(codes[i], scales[i], BLOCKS, want[i]);
        for (int v = 0; v < variants; v++) {
            float f = all[v]->quantise_fc1(x, BLOCKS, got[0]);
            all[v]->quantise_fc2(x, BLOCKS, got[1]);
            assert_true(bits_of_float(f) == bits_of_float(factor) || (isnan(f) && isnan(factor)));
            for (int i = 0; i < 2; i++)
                for (int b = 0; b < BLOCKS; b++) {
                    assert_memory_equal(got[i][b].code, want[i][b].code, 16);
                    assert_int_equal(got[i][b].correction, want[i][b].correction);
                    assert_true(got[i][b].scale == want[i][b].scale ||
                                (isnan(got[i][b].scale) && isnan(want[i][b].scale)));
                }
        }
        free(x);
    }
}

/* ---- Every code --------------------------------------------------------------------------------------------------- */

/* Column k alone: row `k` of the unit matrix shows the expanded weight. All codes and all allowed scales. */
static void every_code(void **state)
{
    (void)state;
    static const weight_format formats[] = {WEIGHT_BF16, WEIGHT_F16, WEIGHT_MXFP8, WEIGHT_NVFP4};
    enum { ROWS = 257, COLS = 64 };
    float *unit = calloc(COLS * COLS, sizeof *unit), *sums = malloc(COLS * ROWS * sizeof *sums), row[COLS];
    for (int i = 0; i < COLS; i++) unit[i * COLS + i] = 1;
    for (int f = 0; f < 4; f++) {
        hy_error err = {0};
        uint8_t *data = malloc(ROWS * COLS * 2 + 1), *scales = malloc(ROWS * 4);
        for (int i = 0; i < ROWS * COLS * 2 + 1; i++) {
            data[i] = (uint8_t)(i * 167 + i / 256);
            if (formats[f] == WEIGHT_MXFP8 && (data[i] & 0x7F) == 0x7F) data[i] ^= 1;
            if (formats[f] != WEIGHT_NVFP4 && formats[f] != WEIGHT_MXFP8) data[i] = (uint8_t)((data[i] & 0xBF) | 0x10); /* normal numbers */
        }
        for (int i = 0; i < ROWS * 4; i++) /* code * scale stays a normal number */
            scales[i] = (uint8_t)(formats[f] == WEIGHT_MXFP8 ? 10 + i % 237 : i % 128 == 127 ? 0x80 : i % 128);
        weight w = {.format = formats[f], .rows = ROWS, .cols = COLS, .data = data + 1, .scales = scales, .global = 1};
        if (formats[f] == WEIGHT_BF16 || formats[f] == WEIGHT_F16) w.scales = NULL;
        cpu_linear l;
        check(cpu_linear_pack(&w, "a test", pool, NULL, 0, &l, &err), &err);
        for (int n = 0; n < ROWS; n++) {
            weight_row(&w, n, row);
            for (int k = 0; k < COLS; k++) sums[k * ROWS + n] = row[k] + 0.0f; /* the sum begins with 0: no -0 */
        }
        for (int v = 0; v < variants; v++) {
            compare(all[v], &w, &l, unit, NULL, COLS, false, 4, sums);
            for (int k = 0; k < COLS; k++)
                compare(all[v], &w, &l, unit + k * COLS, NULL, 1, false, 1, sums + k * ROWS);
        }
        cpu_linear_free(&l);
        free(data), free(scales);
    }
    free(unit), free(sums);
}

/* Values that are not finite, in every place of a panel and at the edges of a weight whose rows and columns fill no group;
 * the largest finite ones, subnormals and zeros of either sign are weights like others. */
static void not_finite(void **state)
{
    (void)state;
    enum { ROWS = 43, COLS = 37 };
    static const struct {
        weight_format format;
        uint32_t bad[5], good[5];
    } cases[] = {{WEIGHT_BF16, {0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF}, {0x7F7F, 0xFF7F, 1, 0x8001, 0x8000}},
                 {WEIGHT_F16, {0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF}, {0x7BFF, 0xFBFF, 1, 0x8001, 0x8000}},
                 {WEIGHT_F32,
                  {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF},
                  {0x7F7FFFFF, 0xFF7FFFFF, 1, 0x80000001, 0x7F7F8000}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t bytes = cases[c].format == WEIGHT_F32 ? 4 : 2;
        uint8_t *data = calloc(ROWS * COLS, bytes);
        weight w = {.format = cases[c].format, .rows = ROWS, .cols = COLS, .data = data};
        for (int at = 0; at < ROWS * COLS; at++) {
            hy_error err = {0};
            cpu_linear l;
            memcpy(data + (size_t)at * bytes, &cases[c].bad[at % 5], bytes);
            assert_int_equal(cpu_linear_pack(&w, "layer 3, a weight", pool, NULL, 0, &l, &err), HY_BAD_MODEL);
            assert_null(l.data);
            if (!strstr(err.message, "layer 3, a weight") || !strstr(err.message, "a NaN or an infinity"))
                fail_msg("%s", err.message);
            memcpy(data + (size_t)at * bytes, &cases[c].good[at % 5], bytes);
        }
        hy_error err = {0};
        cpu_linear l;
        check(cpu_linear_pack(&w, "a weight", pool, NULL, 0, &l, &err), &err);
        cpu_linear_free(&l);
        free(data);
    }
}

/* Gate and up: the groups of two weights of one shape alternate in one memory and are those that each has by itself; of two
 * shapes each has its own. A fault is told of the one that has it, and nothing is left. */
static void pairs(void **state)
{
    (void)state;
    enum { ROWS = 70, COLS = 64 };
    uint8_t data[2][ROWS * COLS], scales[2][ROWS * 4];
    for (int i = 0; i < ROWS * COLS; i++) data[0][i] = (uint8_t)(i * 7 % 120), data[1][i] = (uint8_t)(i * 11 % 113);
    memset(scales, 120, sizeof scales);
    static const char *const names[2] = {"gate", "up"};
    static const struct {
        weight_format format[2];
        int rows, cols;
        bool together;
    } cases[] = {{{WEIGHT_MXFP8, WEIGHT_MXFP8}, ROWS, COLS, true}, {{WEIGHT_NVFP4, WEIGHT_NVFP4}, ROWS, COLS, true},
                 {{WEIGHT_NVFP4, WEIGHT_MXFP8}, ROWS, COLS, false}, {{WEIGHT_MXFP8, WEIGHT_MXFP8}, 32, COLS, false},
                 {{WEIGHT_NVFP4, WEIGHT_NVFP4}, ROWS, 32, true /* padded to a unit */}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        hy_error err = {0};
        weight w[2];
        cpu_linear l[2], own;
        for (int i = 0; i < 2; i++)
            w[i] = (weight){.format = cases[c].format[i], .rows = i ? cases[c].rows : ROWS, .cols = i ? cases[c].cols : COLS,
                            .data = data[i], .scales = scales[i], .global = 1};
        const weight *const both[2] = {&w[0], &w[1]};
        cpu_linear *const out[2] = {&l[0], &l[1]};
        check(cpu_linear_pack_pair(both, names, pool, NULL, 0, out, &err), &err);
        assert_int_equal(l[1].shares, cases[c].together);
        if (cases[c].together) assert_ptr_equal(l[1].data, l[0].data + l[0].group_bytes);
        for (int i = 0; i < 2; i++) {
            check(cpu_linear_pack(&w[i], "alone", pool, NULL, 0, &own, &err), &err);
            assert_int_equal(l[i].stride, cases[c].together ? 2 * own.group_bytes : own.group_bytes);
            for (int64_t g = 0; g < own.groups; g++)
                assert_memory_equal(l[i].data + (size_t)g * l[i].stride, own.data + (size_t)g * own.stride, own.group_bytes);
            cpu_linear_free(&own);
        }
        cpu_linear_free(&l[0]), cpu_linear_free(&l[1]);
        for (int i = 0; i < 2; i++) { /* 0xFF: no scale of either format */
            scales[i][9] = 0xFF;
            assert_int_equal(cpu_linear_pack_pair(both, names, pool, NULL, 0, out, &err), HY_BAD_MODEL);
            assert_string_equal(err.where, names[i]);
            if (cases[c].together) assert_null(l[0].data), assert_null(l[1].data);
            assert_null(l[i].data);
            scales[i][9] = 120;
            cpu_linear_free(&l[1]), cpu_linear_free(&l[0]);
        }
    }
}

static void refusals(void **state)
{
    (void)state;
    uint8_t data[32 * 64] = {0}, scales[32 * 4];
    hy_error err = {0};
    cpu_linear l;
    static const struct {
        weight_format format;
        int code, scale;
    } bad[] = {{WEIGHT_NVFP4, 0, 0x7F}, {WEIGHT_NVFP4, 0, 0xFF}, {WEIGHT_NVFP4, 0, 0x81}, {WEIGHT_MXFP8, 0x7F, 127},
               {WEIGHT_MXFP8, 0xFF, 127}, {WEIGHT_MXFP8, 0, 0xFF}, {WEIGHT_MXFP8, 0, 247}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(scales, 0x30, sizeof scales);
        weight w = {.format = bad[i].format, .rows = 32, .cols = 64, .data = data, .scales = scales, .global = 1};
        data[19 * 64 + 5] = (uint8_t)bad[i].code;
        scales[21] = (uint8_t)bad[i].scale;
        assert_int_equal(cpu_linear_pack(&w, "a weight", pool, NULL, 0, &l, &err), HY_BAD_MODEL);
        assert_string_equal(err.where, "a weight");
        assert_null(l.data);
        data[19 * 64 + 5] = 0, scales[21] = 0x30;
        assert_int_equal(cpu_linear_pack(&w, "a weight", pool, NULL, 0, &l, &err), HY_OK);
        cpu_linear_free(&l);
        w.cols = 40;
        assert_int_equal(cpu_linear_pack(&w, "a weight", pool, NULL, 0, &l, &err), HY_UNSUPPORTED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains),
        cmocka_unit_test(four_bit_inputs),
        cmocka_unit_test(quantisers),
        cmocka_unit_test(every_code),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(pairs),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
