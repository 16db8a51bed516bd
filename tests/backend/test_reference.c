/*
 * The reference backend piece by piece: cache rows to the byte, the order of sums, selection and routing on given
 * scores, attention against a softmax in double, and what a step refuses.
 */
#include "backend/random_model.h"

#include "backend/reference/reference.h"

static const model_kind kind = {
    .layers = 3,
    .hidden = 64,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 32,
    .index_dim = 32,
    .index_top = 3,
    .rotary_dim = 16,
    .experts = 8,
    .per_token = 3,
    .expert_width = 32,
    .shared_width = 32,
    .dense_width = 64,
    .vocab = 50,
    .linear = WEIGHT_BF16,
    .expert = WEIGHT_NVFP4,
};
enum { SPARSE = 1 }; /* the layer of `kind` with an indexer */

/* ---- Cache rows ------------------------------------------------------------------------------------------------- */

static ops_model released(ops_layer *layers, int count, int dense)
{
    memset(layers, 0, (size_t)count * sizeof *layers);
    for (int i = dense; i < count; i++) layers[i].sparse = true;
    return (ops_model){.layers = count,
                       .heads = 64,
                       .kv_heads = 4,
                       .head_dim = 128,
                       .index_heads = 4,
                       .index_dim = 128,
                       .layer = layers};
}

static void test_layout(void **state)
{
    (void)state;
    ops_layer layers[60];
    hy_error err = {0};
    cache_layout l;
    ops_model m = released(layers, 60, 0);
    check(cache_layout_make(&m, CACHE_NVFP4, CACHE_NVFP4, &l, &err), &err);
    assert_int_equal(l.head_bytes, 18432);
    assert_int_equal(l.k_scales, 128 * 64);
    assert_int_equal(l.v_data, 128 * 72);
    assert_int_equal(l.v_scales, 128 * 72 + 128 * 64);
    assert_int_equal(l.index_scales, 128 * 64);
    assert_int_equal(l.main_offset[59], 59 * 4 * 18432);
    assert_int_equal(l.index_offset[0], 60 * 4 * 18432);
    assert_int_equal(l.index_offset[59], 60 * 4 * 18432 + 59 * 9216);
    assert_int_equal(l.row_bytes, 128 * (34560 + 60 * 72));
    cache_layout_free(&l);
    m = released(layers, 60, 3);
    check(cache_layout_make(&m, CACHE_FP8, CACHE_BF16, &l, &err), &err);
    assert_int_equal(l.index_offset[2], CACHE_NO_OFFSET);
    assert_int_equal(l.index_offset[3], 128 * 61440);
    assert_int_equal(l.row_bytes, 128 * (61440 + 57 * 256));
    cache_layout_free(&l);
    m.head_dim = 24;
    assert_int_equal(cache_layout_make(&m, CACHE_NVFP4, CACHE_FP8, &l, &err), HY_UNSUPPORTED);
    check(cache_layout_make(&m, CACHE_BF16, CACHE_NVFP4, &l, &err), &err);
    assert_int_equal(l.row_bytes % 64, 0);
    cache_layout_free(&l);
}

/* The drafter's part: behind all others, [layer][head] of K and V. */
static void test_draft_layout(void **state)
{
    (void)state;
    ops_layer layers[60];
    hy_error err = {0};
    cache_layout bare, l;
    ops_model m = released(layers, 60, 0);
    check(cache_layout_make(&m, CACHE_NVFP4, CACHE_NVFP4, &bare, &err), &err);
    assert_int_equal(bare.draft_offset, CACHE_NO_OFFSET);
    assert_int_equal(bare.draft_layers + bare.draft_kv_heads + bare.draft_head_dim, 0);
    assert_int_equal(bare.draft_head_bytes + bare.draft_v_data, 0);
    const struct {
        cache_format format;
        size_t token; /* bytes */
    } cases[] = {{CACHE_FP8, 5120}, {CACHE_BF16, 10240}, {CACHE_FP32, 20480}};
    for (int i = 0; i < 3; i++) {
        ops_drafter d = {.layers = 5, .kv_heads = 4, .head_dim = 128, .cache = cases[i].format};
        m.drafter = &d;
        check(cache_layout_make(&m, CACHE_NVFP4, CACHE_NVFP4, &l, &err), &err);
        assert_int_equal(l.row_bytes, bare.row_bytes + 128 * cases[i].token);
        assert_int_equal(l.draft_offset, bare.row_bytes); /* nothing else moves */
        assert_memory_equal(l.main_offset, bare.main_offset, 60 * sizeof(size_t));
        assert_memory_equal(l.index_offset, bare.index_offset, 60 * sizeof(size_t));
        assert_int_equal(l.draft, cases[i].format);
        assert_int_equal(l.draft_layers, 5);
        assert_int_equal(l.draft_kv_heads, 4);
        assert_int_equal(l.draft_head_dim, 128);
        assert_int_equal(l.draft_v_data, 128 * cases[i].token / 40);
        assert_int_equal(l.draft_head_bytes, 2 * l.draft_v_data);
        cache_layout_free(&l);
    }
    ops_drafter odd = {.layers = 1, .kv_heads = 1, .head_dim = 6, .cache = CACHE_FP8};
    m.drafter = &odd;
    check(cache_layout_make(&m, CACHE_NVFP4, CACHE_NVFP4, &l, &err), &err);
    assert_int_equal(l.row_bytes % 64, 0);
    assert_in_range(l.row_bytes, l.draft_offset + 2 * 128 * 6, SIZE_MAX);
    cache_layout_free(&l);
    odd.cache = CACHE_NVFP4;
    assert_int_equal(cache_layout_make(&m, CACHE_NVFP4, CACHE_NVFP4, &l, &err), HY_UNSUPPORTED);
    assert_non_null(strstr(err.message, "drafter"));
    cache_layout_free(&bare);
}

static void test_format_names(void **state)
{
    (void)state;
    cache_format f;
    for (int i = CACHE_FP32; i <= CACHE_NVFP4; i++) {
        assert_true(cache_format_parse(cache_format_name((cache_format)i), &f));
        assert_int_equal(f, i);
    }
    assert_true(cache_format_parse("bfloat16", &f) && f == CACHE_BF16);
    assert_true(cache_format_parse("fp8_e4m3", &f) && f == CACHE_FP8);
    assert_false(cache_format_parse("fp16", &f) || cache_format_parse("", &f));
    assert_int_equal(cache_vector_bytes(CACHE_NVFP4, 128), 72);
    assert_int_equal(cache_vector_bytes(CACHE_FP32, 128), 512);
}

/* Writes one row at a position with K, V and index K of our own and compares every byte of its block. */
static void check_store(cache_format main, cache_format index, int position)
{
    random_model m;
    bench b;
    step_rows rows;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_reference, &m, main, index, (ops_options){0}, 1);
    bench_fill(&b, 0);
    rows_open(&rows);
    rows_add(&rows, 0, position, 1, kind.vocab);
    ops_reference.begin(b.step, b.cache, &rows.ops);
    float *k = random_floats(64, 3, false), *v = random_floats(64, 3, false), *ik = random_floats(32, 3, false);
    memcpy(b.step->k, k, 64 * sizeof *k);
    memcpy(b.step->v, v, 64 * sizeof *v);
    memcpy(b.step->index_k, ik, 32 * sizeof *ik);
    reference_cache_store(b.step, SPARSE);

    const cache_layout *l = &b.layout;
    uint8_t *wanted = calloc(1, l->row_bytes), *got = calloc(1, l->row_bytes);
    size_t t = (size_t)position % 128, g = 32 / 16;
    for (size_t part = 0; part < 5; part++) { /* K and V of two heads, index K */
        cache_format f = part < 4 ? main : index;
        const float *x = part < 2 ? k + 32 * part : part < 4 ? v + 32 * (part - 2) : ik;
        size_t base = part < 4 ? l->main_offset[SPARSE] + part % 2 * l->head_bytes : l->index_offset[SPARSE];
        size_t data = base + (part == 2 || part == 3 ? l->v_data : 0), vector = 128 >> f;
        size_t scales = base + (part < 2 ? l->k_scales : part < 4 ? l->v_scales : l->index_scales);
        float divisor = part < 2 ? 0.5f : part < 4 ? 0.25f : 1, rounded[32];
        for (int i = 0; i < 32; i++) rounded[i] = bf16_round(x[i]);
        uint8_t codes[16], scale[2];
        nvfp4_cache_quantise_row(rounded, 2, codes, scale);
        for (size_t i = 0; i < 32; i++) {
            uint16_t half = bf16_from_float(x[i]);
            uint8_t *to = wanted + data + t * vector;
            if (f == CACHE_FP32) memcpy(to + 4 * i, &x[i], 4);
            if (f == CACHE_BF16) memcpy(to + 2 * i, &half, 2);
            if (f == CACHE_FP8) to[i] = e4m3_from_float(rounded[i] / divisor);
            if (f == CACHE_NVFP4 && i < 16) to[i] = codes[i];
        }
        for (size_t i = 0; i < g && f == CACHE_NVFP4; i++)
            wanted[scales + (part == 2 || part == 3 ? t / 4 * 4 * g + i * 4 + t % 4 : t * g + i)] = scale[i];
    }
    b.ops->cache_read(b.cache, rows.table[position / 128], 0, l->row_bytes, got);
    assert_memory_equal(got, wanted, l->row_bytes);
    free(wanted), free(got), free(k), free(v), free(ik);
    bench_close(&b);
    random_model_free(&m);
}

static void test_store(void **state)
{
    (void)state;
    const int positions[] = {0, 1, 5, 126, 127, 128, 300};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++)
        for (int main = CACHE_FP32; main <= CACHE_NVFP4; main++)
            check_store((cache_format)main, (cache_format)(CACHE_NVFP4 - main), positions[i]);
}

/* What is read back: the stored values, products rounded to E4M3 if asked. */
static void test_readback(void **state)
{
    (void)state;
    random_model m;
    random_model_make(&m, &kind);
    for (int read = READBACK_EXACT; read <= READBACK_E4M3; read++) {
        bench b;
        step_rows rows;
        bench_open(&b, &ops_reference, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){.read = (readback)read}, 1);
        rows_open(&rows);
        rows_add(&rows, 1, 0, 9, kind.vocab);
        ops_reference.begin(b.step, b.cache, &rows.ops);
        float *v = random_floats(9 * 64, 200, false), values[9 * 32], wanted[32];
        memcpy(b.step->v, v, 9 * 64 * sizeof *v);
        reference_cache_store(b.step, SPARSE);
        reference_cache_values(b.cache, SPARSE, 1, rows.table[TABLE], 9, values);
        bool changed = false;
        for (int t = 0; t < 9; t++) {
            uint8_t codes[16], scales[2];
            for (int i = 0; i < 32; i++) wanted[i] = bf16_round(v[t * 64 + 32 + i]);
            nvfp4_cache_quantise_row(wanted, 2, codes, scales);
            nvfp4_decode_row(codes, scales, 2, NVFP4_EXACT, wanted);
            for (int i = 0; i < 32; i++) changed |= e4m3_round(wanted[i]) != wanted[i];
            for (int i = 0; i < 32 && read == READBACK_E4M3; i++) wanted[i] = e4m3_round(wanted[i]);
            assert_memory_equal(wanted, values + t * 32, sizeof wanted);
        }
        assert_true(changed);
        free(v);
        bench_close(&b);
    }
    random_model_free(&m);
}

/* ---- Sums, norms, rotary ----------------------------------------------------------------------------------------- */

static void test_slices(void **state)
{
    (void)state;
    const int64_t widths[] = {32, 64, 96, 256, 4096, 8192, 12288, 3072};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        int64_t end = 0;
        for (int i = 0; i < 8; i++) {
            int64_t b, e;
            reference_slice(widths[w], i, &b, &e);
            assert_int_equal(b, i * (widths[w] / 32) / 8 * 32);
            assert_int_equal(b, end);
            end = e;
        }
        assert_int_equal(end, widths[w]);
    }
}

/* Both kinds of projection against their sums written out, to the bit; 20 outputs leave a part of a tile. */
static void test_linear_order(void **state)
{
    (void)state;
    enum { ROWS = 20, COLS = 64 };
    random_model m;
    bench b;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_reference, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 2);
    weight w = random_weight(&m.memory, WEIGHT_F32, ROWS, COLS, 1, false);
    float *in = random_floats(3 * COLS, 1, false), out[3 * ROWS], sliced[3 * ROWS], row[COLS];
    reference_linear(b.step, &w, in, 3, out);
    reference_linear_sliced(b.step, &w, in, 3, sliced);
    for (int t = 0; t < 3; t++)
        for (int n = 0; n < ROWS; n++) {
            float chain = 0, part[8] = {0};
            weight_row(&w, n, row);
            for (int i = 0; i < COLS; i++) {
                float product = in[t * COLS + i] * row[i];
                chain += product;
                part[i / 32 * 4 + 3] += product; /* two groups: slices 3 and 7, the others are empty */
            }
            float folded = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
            assert_true(out[t * ROWS + n] == chain);
            assert_true(sliced[t * ROWS + n] == folded);
        }
    free(in);
    bench_close(&b);
    random_model_free(&m);
}

static void test_rms_norm(void **state)
{
    (void)state;
    float *x = random_floats(100, 5, false), *gain = random_floats(100, 0.3f, false), out[100];
    reference_rms_norm(x, gain, 100, 1e-6f, out);
    double squares = 0;
    for (int i = 0; i < 100; i++) squares += (double)x[i] * (double)x[i];
    for (int i = 0; i < 100; i++) {
        double wanted = (double)x[i] / sqrt(squares / 100 + 1e-6) * (1 + (double)gain[i]);
        assert_true(fabs((double)out[i] - wanted) <= 4e-7 * fabs(wanted));
    }
    free(x), free(gain);
}

static void test_rotary(void **state)
{
    (void)state;
    float f[32], x[64];
    reference_rotary_frequencies(5000000, 64, f);
    assert_true(f[0] == 1);
    for (int j = 0; j < 32; j++) assert_true(fabs((double)f[j] * pow(5e6, j / 32.0) - 1) < 1.3e-7);
    /* One turn of a quarter: pair (j, j + 2) of four dims, the rest stays. */
    const float cosine[] = {0, 1}, sine[] = {1, 0};
    for (int i = 0; i < 64; i++) x[i] = (float)i + 1;
    reference_rotate(x, cosine, sine, 4);
    const float wanted[] = {-3, 2, 1, 4, 5, 6};
    assert_memory_equal(x, wanted, sizeof wanted);
}

/* The angle is the fp32 product: at a position of a million the product in double is elsewhere. */
static void test_rotary_angle(void **state)
{
    (void)state;
    random_model m;
    bench b;
    step_rows rows;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_reference, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    rows_open(&rows);
    rows_add(&rows, 0, 3999, 1, kind.vocab);
    ops_reference.begin(b.step, b.cache, &rows.ops);
    bool apart = false;
    for (int j = 0; j < 8; j++) {
        float angle = 3999.0f * b.backend->frequency[j];
        apart |= (double)angle != 3999.0 * (double)b.backend->frequency[j];
        assert_true(fabs((double)b.step->cosine[j] - cos((double)angle)) < 1e-7);
        assert_true(fabs((double)b.step->sine[j] - sin((double)angle)) < 1e-7);
    }
    assert_true(apart);
    bench_close(&b);
    random_model_free(&m);
}

/* ---- Selection and routing ----------------------------------------------------------------------------------------
 */

typedef struct choice {
    int position;
    float scores[8];
    int32_t wanted[3];
} choice;

static void check_choices(const choice *c, int count, int span)
{
    random_model m;
    bench b;
    step_rows rows;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_reference, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    rows_open(&rows);
    for (int i = 0; i < count; i++) rows_add(&rows, i % MAX_SEQUENCES, c[i].position, 1, kind.vocab);
    rows_add(&rows, -1, 0, 1, kind.vocab);
    ops_reference.begin(b.step, b.cache, &rows.ops);
    for (int i = 0; i < count; i++) {
        float all[2 * TABLE];
        for (int n = 0; n < TABLE; n++) all[n] = 1e30f, all[TABLE + n] = n < 8 ? c[i].scores[n] : 1e30f;
        ops_reference.tensor_write(b.step, OPS_SCORES, i, 1, all);
    }
    int parts = 0;
    for (int first = 0; first < TABLE; first += span) ops_reference.index_top(b.step, parts++, first, span);
    ops_reference.index_merge(b.step, parts);
    for (int i = 0; i <= count; i++) {
        int32_t got[6];
        const int32_t none[] = {-1, -1, -1};
        ops_reference.tensor_read(b.step, OPS_BLOCKS, i, 1, got);
        const int32_t *wanted = i < count ? c[i].wanted : none;
        if (memcmp(got + 3, wanted, sizeof none))
            fail_msg("choice %d in spans of %d: %d %d %d", i, span, got[3], got[4], got[5]);
    }
    bench_close(&b);
    random_model_free(&m);
}

static void test_selection(void **state)
{
    (void)state;
    const float inf = INFINITY, nan = NAN;
    const choice choices[] = {
        {0, {1}, {0, -1, -1}},
        {127, {-inf, 9, 9}, {0, -1, -1}}, /* what follows is not visible */
        {128, {1, 2}, {0, 1, -1}},
        {383, {3, 2, 1}, {0, 1, 2}},
        {5 * 128, {5, 1, 4, 2, 3, -100}, {0, 2, 5}},         /* the local block is forced and takes a place */
        {6 * 128 - 1, {1, 1, 1, 1, 1, 1}, {0, 1, 5}},        /* ties: the lower number */
        {5 * 128, {-0.0f, 0.0f, 0, -1, -1, 0}, {0, 1, 5}},   /* -0 equals 0 */
        {5 * 128, {nan, -5, nan, -inf, -7, nan}, {1, 4, 5}}, /* NaN counts as -inf */
        {5 * 128, {nan, nan, -inf, nan, nan, 1}, {0, 1, 5}}, /* and ties with it; the blocks are visible */
        {5 * 128, {inf, 1, inf, 2, inf, -inf}, {0, 2, 5}},   /* an infinite score does not push the local block out */
        {7 * 128, {1, 2, 3, 4, 5, 6, 7, 0}, {5, 6, 7}},
        {4 * 128, {2, 2, 3, 2, 9}, {0, 2, 4}},
    };
    for (int span = 1; span <= TABLE; span *= 2)
        if (TABLE / span <= REFERENCE_PARTS) check_choices(choices, sizeof choices / sizeof *choices, span);
    check_choices(choices, sizeof choices / sizeof *choices, 3);
}

static void test_replayed_selection(void **state)
{
    (void)state;
    random_model m;
    bench b;
    step_rows rows;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_reference, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    rows_open(&rows);
    rows_add(&rows, 0, 0, 200, kind.vocab);
    int32_t blocks[3 * 200 * 6], routes[3 * 200 * 3];
    for (int i = 0; i < 3 * 200 * 6; i++) blocks[i] = i % 3 ? -1 : 0;
    for (int i = 0; i < 3 * 200 * 3; i++) routes[i] = i % 3 * 2 + 1;
    rows.ops.replay_blocks = blocks, rows.ops.replay_routes = routes;
    for (int t = 0; t < 200; t++) rows.flags[t] |= t % 2 ? ROW_REPLAY_BLOCKS : ROW_REPLAY_ROUTES;
    bench_forward(&b, &rows, NULL);
    int32_t got[200 * 6], chosen[200 * 3];
    float weights[200 * 3];
    ops_reference.index_select(b.step, SPARSE);
    ops_reference.tensor_read(b.step, OPS_BLOCKS, 0, 200, got);
    ops_reference.tensor_read(b.step, OPS_ROUTES, 0, 200, chosen);
    ops_reference.tensor_read(b.step, OPS_ROUTE_WEIGHTS, 0, 200, weights);
    int own = 0;
    for (int t = 0; t < 200; t++) {
        const int32_t imposed[] = {0, -1, -1}, all[] = {0, 1, -1};
        assert_memory_equal(got + t * 6, t % 2 || t < 128 ? imposed : all, sizeof imposed);
        own += chosen[t * 3] != 1 || chosen[t * 3 + 1] != 3 || chosen[t * 3 + 2] != 5;
        if (t % 2 == 0) assert_true(chosen[t * 3] == 1 && chosen[t * 3 + 1] == 3 && chosen[t * 3 + 2] == 5);
        assert_true(fabsf(weights[t * 3] + weights[t * 3 + 1] + weights[t * 3 + 2] - 1) < 1e-6f);
    }
    assert_true(own > 50);
    /* Impossible ones are refused, and the step works again after that. */
    hy_error err = {0};
    blocks[(SPARSE * 200 + 1) * 6] = 1;
    ops_reference.begin(b.step, b.cache, &rows.ops);
    ops_reference.embed(b.step);
    assert_int_equal(ops_reference.finish(b.step, &err), HY_BAD_INPUT);
    blocks[(SPARSE * 200 + 1) * 6] = 0, routes[200 * 3] = 8;
    ops_reference.begin(b.step, b.cache, &rows.ops);
    assert_int_equal(ops_reference.finish(b.step, &err), HY_BAD_INPUT);
    routes[200 * 3] = 0;
    bench_forward(&b, &rows, NULL);
    bench_close(&b);
    random_model_free(&m);
}

/* A router that passes lanes of its input through: sigmoid, bias for the choice only, ties, NaN. */
static void test_routing(void **state)
{
    (void)state;
    random_model m;
    bench b;
    step_rows rows;
    random_model_make(&m, &kind);
    float matrix[8 * 64] = {0}, bias[8] = {0, 0, 0, 0, 0, 0, 2, 0}, zero[64] = {0};
    for (int e = 0; e < 8; e++) matrix[e * 64 + e] = 1;
    ops_layer *l = &m.ops.layer[SPARSE];
    l->router = make_weight(&m.memory, WEIGHT_F32, 8, 64, matrix, false);
    l->router_bias = make_weight(&m.memory, WEIGHT_F32, 1, 8, bias, false);
    l->post_norm = make_weight(&m.memory, WEIGHT_F32, 1, 64, zero, false);
    bench_open(&b, &ops_reference, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    rows_open(&rows);
    rows_add(&rows, 0, 0, 4, kind.vocab);
    ops_reference.begin(b.step, b.cache, &rows.ops);
    float x[4 * 64] = {0};
    const float lanes[4][8] = {
        {0, 1, 2, 3, -1, -2, -3, 0}, /* expert 6 by its bias alone */
        {1, 1, 1, 1, 1, 1, 1, 1},    /* ties */
        {3, 2, 1, 0, 0, 0, 0, 0},
        {0, 0, 0, 0, 0, 0, 0, 0}, /* with a NaN in the row below: every score is NaN */
    };
    const int32_t wanted[4][3] = {{2, 3, 6}, {0, 1, 6}, {0, 1, 6}, {0, 1, 2}};
    double h[4][8];
    for (int t = 0; t < 4; t++) {
        double squares = 0;
        for (int i = 0; i < 64; i++) x[t * 64 + i] = i < 8 ? lanes[t][i] : 1;
        for (int i = 0; i < 64; i++) squares += (double)x[t * 64 + i] * (double)x[t * 64 + i];
        for (int i = 0; i < 8; i++) h[t][i] = (double)lanes[t][i] / sqrt(squares / 64 + 1e-6);
    }
    x[3 * 64 + 40] = NAN;
    ops_reference.tensor_write(b.step, OPS_X, 0, 4, x);
    ops_reference.route(b.step, SPARSE);
    int32_t routes[4][3];
    float weights[4][3];
    ops_reference.tensor_read(b.step, OPS_ROUTES, 0, 4, routes);
    ops_reference.tensor_read(b.step, OPS_ROUTE_WEIGHTS, 0, 4, weights);
    assert_memory_equal(routes, wanted, sizeof wanted);
    for (int t = 0; t < 3; t++) {
        double sum = 0;
        for (int i = 0; i < 3; i++) sum += 1 / (1 + exp(-h[t][wanted[t][i]]));
        for (int i = 0; i < 3; i++)
            assert_true(fabs((double)weights[t][i] - 1 / (1 + exp(-h[t][wanted[t][i]])) / sum) < 1e-6);
    }
    assert_true(isnan(weights[3][0]));
    bench_close(&b);
    random_model_free(&m);
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* One row against a softmax in double over the keys of the selected blocks as the cache has them. */
static void check_row(const bench *b, const step_rows *rows, int layer, int t, const int32_t *blocks, const float *q,
                      const float *got)
{
    int position = rows->position[t], dim = kind.head_dim, sequence = rows->sequence[t];
    bool sparse = b->model->layer[layer].sparse;
    float keys[128 * 32], values[128 * 32];
    for (int h = 0; h < kind.heads; h++) {
        double sum = 0, out[32] = {0};
        int group = h / 2;
        for (int pass = 0; pass < 2; pass++)
            for (int n = 0; n <= position / 128; n++) {
                bool chosen = !sparse;
                for (int i = 0; i < 3; i++) chosen |= blocks[group * 3 + i] == n;
                if (!chosen) continue;
                reference_cache_keys(b->cache, layer, group, rows->table[sequence * TABLE + n], 128, keys);
                reference_cache_values(b->cache, layer, group, rows->table[sequence * TABLE + n], 128, values);
                for (int j = 0; j < 128 && n * 128 + j <= position; j++) {
                    double s = 0;
                    for (int d = 0; d < dim; d++) s += (double)q[h * dim + d] * (double)keys[j * dim + d];
                    double p = exp(s / sqrt(dim));
                    if (pass == 0) sum += p;
                    for (int d = 0; d < dim && pass == 1; d++) out[d] += p / sum * (double)values[j * dim + d];
                }
            }
        for (int d = 0; d < dim; d++) assert_true(fabs((double)got[h * dim + d] - out[d]) < 1e-5);
    }
}

static void test_attention(void **state)
{
    (void)state;
    random_model m;
    bench b;
    step_rows rows;
    random_model_make(&m, &kind);
    for (int format = CACHE_FP32; format <= CACHE_NVFP4; format++) {
        bench_open(&b, &ops_reference, &m, (cache_format)format, (cache_format)format, (ops_options){0}, 2);
        bench_fill(&b, 0xFF); /* NaN in every format, behind what is written */
        for (int first = 0; first < 700; first += 175) {
            rows_open(&rows);
            rows_add(&rows, 2, first, 175, kind.vocab);
            rows_add(&rows, -1, 0, 2, kind.vocab);
            rows_add(&rows, 3, first / 7, 25, kind.vocab);
            bench_forward(&b, &rows, NULL);
        }
        for (int layer = 0; layer < kind.layers; layer++) {
            enum { T = 202 };
            float *x = random_floats(T * 64, 1, false), *q = calloc(T * 128, sizeof *q),
                  *a = calloc(T * 128, sizeof *a);
            int32_t blocks[T * 6];
            ops_reference.tensor_write(b.step, OPS_X, 0, T, x);
            ops_reference.attend_in(b.step, layer);
            if (m.ops.layer[layer].sparse) ops_reference.index_select(b.step, layer);
            ops_reference.attend(b.step, layer);
            ops_reference.tensor_read(b.step, OPS_Q, 0, T, q);
            ops_reference.tensor_read(b.step, OPS_BLOCKS, 0, T, blocks);
            ops_reference.tensor_read(b.step, OPS_ATTENTION, 0, T, a);
            for (int t = 0; t < T; t += t == 174 || t == 176 ? 1 : 6)
                if (rows.sequence[t] >= 0) check_row(&b, &rows, layer, t, blocks + t * 6, q + t * 128, a + t * 128);
            for (int i = 175 * 128; i < 177 * 128; i++) assert_true(a[i] == 0); /* padding */
            free(x), free(q), free(a);
        }
        bench_close(&b);
    }
    random_model_free(&m);
}

/* Index scores are the largest product over visible keys; NaN keys lose. */
static void test_scores(void **state)
{
    (void)state;
    random_model m;
    bench b;
    step_rows rows;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_reference, &m, CACHE_BF16, CACHE_FP32, (ops_options){0}, 2);
    rows_open(&rows);
    rows_add(&rows, 0, 0, 250, kind.vocab);
    bench_forward(&b, &rows, NULL);
    uint8_t nan[4] = {0xFF, 0xFF, 0xFF, 0xFF};
    b.ops->cache_write(b.cache, rows.table[0], b.layout.index_offset[SPARSE] + 7 * 32 * 4, 4, nan);
    ops_reference.index_score(b.step, SPARSE, 0, TABLE);
    float *q = bench_read(&b, OPS_INDEX_Q, 250, 64), *scores = bench_read(&b, OPS_SCORES, 250, 2 * TABLE),
          keys[128 * 32];
    for (int t = 0; t < 250; t++)
        for (int r = 0; r < 2; r++)
            for (int n = 0; n < TABLE; n++) {
                double wanted = -INFINITY;
                if (n <= t / 128) reference_cache_index_keys(b.cache, SPARSE, rows.table[n], 128, keys);
                for (int j = 0; j < 128 && n * 128 + j <= t; j++) {
                    double s = 0;
                    for (int d = 0; d < 32; d++) s += (double)q[t * 64 + r * 32 + d] * (double)keys[j * 32 + d];
                    if (s > wanted) wanted = s;
                }
                double got = (double)scores[(t * 2 + r) * TABLE + n];
                assert_true(got == wanted || fabs(got - wanted) < 1e-4);
            }
    free(q), free(scores);
    bench_close(&b);
    random_model_free(&m);
}

/* ---- What a step refuses ------------------------------------------------------------------------------------------
 */

static void test_bad_rows(void **state)
{
    (void)state;
    random_model m;
    bench b;
    step_rows rows;
    hy_error err = {0};
    random_model_make(&m, &kind);
    bench_open(&b, &ops_reference, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    const int32_t tokens[] = {-1, 50, INT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        rows_open(&rows);
        rows_add(&rows, 0, 0, 3, kind.vocab);
        rows.token[1] = tokens[i];
        ops_reference.begin(b.step, b.cache, &rows.ops);
        ops_reference.embed(b.step);
        for (int l = 0; l < kind.layers; l++) ops_reference.attend_in(b.step, l);
        ops_reference.head(b.step);
        ops_sampled sampled;
        ops_sample how = {.logit_row = 0};
        ops_reference.sample(b.step, &how, 1, &sampled);
        assert_int_equal(sampled.id, -1);
        assert_int_equal(ops_reference.finish(b.step, &err), HY_BAD_INPUT);
        assert_non_null(strstr(err.message, "vocabulary"));
    }
    rows.token[1] = 0, rows.position[2] = TABLE * CACHE_BLOCK;
    ops_reference.begin(b.step, b.cache, &rows.ops);
    assert_int_equal(ops_reference.finish(b.step, &err), HY_NO_FIT);
    rows.position[2] = 2;
    bench_forward(&b, &rows, NULL);
    bench_close(&b);

    ops_backend *backend = NULL;
    ops_options two = {.shard = {.rank = 0, .ranks = 2}};
    assert_int_equal(ops_reference.open(&m.ops, &two, &backend, &err), HY_UNSUPPORTED);
    m.ops.index_heads = 1;
    assert_int_equal(ops_reference.open(&m.ops, &(ops_options){0}, &backend, &err), HY_UNSUPPORTED);
    assert_null(backend);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout), cmocka_unit_test(test_draft_layout),
        cmocka_unit_test(test_format_names),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_readback),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_linear_order),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_rotary),
        cmocka_unit_test(test_rotary_angle),
        cmocka_unit_test(test_selection),
        cmocka_unit_test(test_replayed_selection),
        cmocka_unit_test(test_routing),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_bad_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
