/*
 * Attention of the cuda backend beyond what operations.h asks: every head size and cache format, the same bits for a row
 * alone and among others, cache bytes against src/number, selection among thousands of blocks.
 *
 * hayate-test: slow
 */
#include "backend/cuda_test.h"

#include <time.h>

#include "backend/cuda/kernels/attend_in.h"
#include "backend/cuda/kernels/index.h"

/* ---- What enters the cache --------------------------------------------------------------------------------------- */

static const cache_format formats[] = {CACHE_BF16, CACHE_FP8, CACHE_NVFP4};
static const int dims[] = {16, 32, 64, 128};
enum { FORMATS = 3, DIMS = 4 };

static float awkward(int kind)
{
    static const float special[] = {0.0f, -0.0f, 1e-30f, 448, -3e38f, INFINITY, 1e-8f, NAN};
    if (kind == 0) return special[random_below(8)];
    if (kind == 1) return random_below(9) ? 0 : special[random_below(8)];
    return ldexpf(random_normal(), random_below(30) - 20);
}

static void store_expected(cache_format format, float scale, const float *x, int dim, uint8_t *data, uint8_t *scales,
                           int stride)
{
    for (int i = 0; i < dim; i += 16) {
        float half[16];
        for (int j = 0; j < 16; j++) {
            uint16_t code = bf16_from_float(x[i + j]);
            half[j] = bf16_to_float(code);
            if (format == CACHE_BF16) memcpy(data + 2 * (i + j), &code, 2);
            if (format == CACHE_FP8) data[i + j] = e4m3_from_float(half[j] / scale);
        }
        if (format == CACHE_NVFP4) nvfp4_cache_quantise(half, data + i / 2, scales + i / 16 * stride);
    }
}

/* Values go in as they are, keys through a norm that leaves them (rows of +-1, no epsilon) and a rotation by 0. */
static void cache_bytes(void **state)
{
    (void)state;
    enum { ROWS = 23, HEADS = 3, KV = 2, BLOCKS = 2 };
    for (int f = 0; f < FORMATS; f++)
        for (int n = 0; n < DIMS; n++) {
            gpu *g = device_open();
            random_state = (uint64_t)(f * 4 + n);
            int dim = dims[n];
            size_t vector = cache_vector_bytes(formats[f], dim);
            random_model m = {.ops = {.layers = 1, .kv_heads = KV, .head_dim = dim, .index_dim = dim}};
            ops_layer layer = {.sparse = true};
            m.ops.layer = &layer;
            cache_layout l;
            hy_error err = {0};
            check(cache_layout_make(&m.ops, formats[f], formats[f], &l, &err), &err);
            uint8_t *expected = malloc(BLOCKS * l.row_bytes);
            memset(expected, 0xA5, BLOCKS * l.row_bytes);
            float q[ROWS * HEADS * 128], k[ROWS * KV * 128], v[ROWS * KV * 128], iq[ROWS * KV * 128], ik[ROWS * 128];
            float one[ROWS * 64], zero[ROWS * 64] = {0};
            for (int i = 0; i < ROWS * HEADS * dim; i++) q[i] = random_bits() & 1 ? 1.0f : -1.0f;
            for (int i = 0; i < ROWS * KV * dim; i++) {
                k[i] = random_bits() & 1 ? 1.0f : -1.0f, iq[i] = random_bits() & 1 ? 1.0f : -1.0f;
                v[i] = awkward(i / dim % 4);
            }
            for (int i = 0; i < ROWS * dim; i++) ik[i] = random_bits() & 1 ? 1.0f : -1.0f;
            for (int i = 0; i < ROWS * 64; i++) one[i] = 1;
            int32_t sequence[ROWS];
            int64_t slot[ROWS];
            uint16_t gain[128];
            float gains[128];
            for (int i = 0; i < 128; i++) gain[i] = bf16_from_float(gains[i] = bf16_round(random_normal()));
            for (int i = 0; i < ROWS; i++) sequence[i] = i == 4 ? -1 : i / 8, slot[i] = i == 9 ? -1 : i * 11;
            for (int t = 0; t < ROWS; t++) {
                if (sequence[t] < 0 || slot[t] < 0) continue;
                uint8_t *row = expected + (size_t)(slot[t] / 128) * l.row_bytes;
                size_t token = (size_t)slot[t] % 128, groups = (size_t)dim / 16, bytes = l.k_scales / 128;
                float key[128];
                for (int h = 0; h < KV; h++) {
                    uint8_t *at = row + l.main_offset[0] + (size_t)h * l.head_bytes;
                    for (int i = 0; i < dim; i++) key[i] = k[(t * KV + h) * dim + i] * (1 + gains[i]);
                    store_expected(formats[f], 0.5f, key, dim, at + token * bytes, at + l.k_scales + token * groups, 1);
                    store_expected(formats[f], 0.25f, v + (t * KV + h) * dim, dim, at + l.v_data + token * bytes,
                                   at + l.v_scales + token / 4 * 4 * groups + token % 4, 4);
                }
                for (int i = 0; i < dim; i++) key[i] = ik[t * dim + i] * (1 + gains[i]);
                uint8_t *at = row + l.index_offset[0];
                store_expected(formats[f], 1, key, dim, at + token * bytes, at + l.index_scales + token * groups, 1);
            }
            uint8_t *start = malloc(BLOCKS * l.row_bytes);
            memset(start, 0xA5, BLOCKS * l.row_bytes);
            kernel_weight gain_weight = {
                .data = device_put(g, gain, sizeof gain), .format = KERNEL_BF16, .rows = 1, .cols = dim};
            attend_in_args args = {
                .rows = {.count = ROWS,
                         .sequence = device_put(g, sequence, sizeof sequence),
                         .slot = device_put(g, slot, sizeof slot)},
                .cache = {.base = device_put(g, start, BLOCKS * l.row_bytes),
                          .row_bytes = (int64_t)l.row_bytes,
                          .main = f,
                          .index = f,
                          .head_bytes = (int64_t)l.head_bytes,
                          .k_scales = (int64_t)l.k_scales,
                          .v_data = (int64_t)l.v_data,
                          .v_scales = (int64_t)l.v_scales,
                          .index_scales = (int64_t)l.index_scales},
                .q = device_put(g, q, sizeof q),
                .k = device_put(g, k, sizeof k),
                .v = device_put(g, v, sizeof v),
                .index_q = device_put(g, iq, sizeof iq),
                .index_k = device_put(g, ik, sizeof ik),
                .q_gain = gain_weight,
                .k_gain = gain_weight,
                .index_q_gain = gain_weight,
                .index_k_gain = gain_weight,
                .cosine = device_put(g, one, sizeof one),
                .sine = device_put(g, zero, sizeof zero),
                .heads = HEADS,
                .kv_heads = KV,
                .head_dim = dim,
                .index_heads = KV,
                .index_dim = dim,
                .rotary_dim = dim / 2,
                .jobs = HEADS + 3 * KV + 1,
                .k_scale = 0.5f,
                .v_scale = 0.25f,
                .main_offset = (int64_t)l.main_offset[0],
                .index_offset = (int64_t)l.index_offset[0],
            };
            int blocks = (ROWS * args.jobs + ATTEND_IN_WARPS - 1) / ATTEND_IN_WARPS;
            device_run(g, "attend_in", blocks, 1, 1, ATTEND_IN_WARPS * CUDA_WARP, 0, &args, sizeof args);
            uint8_t *stored = device_get(g, args.cache.base, BLOCKS * l.row_bytes);
            float *queries = device_get(g, args.q, sizeof q);
            for (size_t i = 0; i < BLOCKS * l.row_bytes; i++)
                if (stored[i] != expected[i])
                    fail_msg("format %d, dim %d: byte %zu is %02x, not %02x", f, dim, i, stored[i], expected[i]);
            for (int i = 0; i < ROWS * HEADS * dim; i++)
                assert_true(queries[i] == bf16_round(q[i] * (1 + gains[i % dim])));
            assert_true(vector > 0);
            void *device[] = {(void *)args.rows.sequence, (void *)args.rows.slot, args.cache.base, args.q,
                              (void *)args.k, (void *)args.v, args.index_q, (void *)args.index_k,
                              (void *)args.cosine, (void *)args.sine, (void *)gain_weight.data};
            for (size_t i = 0; i < sizeof device / sizeof *device; i++) g->calls->free(g, device[i]);
            g->calls->close(g);
            free(stored), free(queries), free(expected), free(start);
            cache_layout_free(&l);
        }
}

/* ---- Selection among many ---------------------------------------------------------------------------------------- */

static const float *sorted_scores;
static int sorted_forced; /* first forced block */

static int by_total_order(const void *x, const void *y)
{
    int a = *(const int32_t *)x, b = *(const int32_t *)y, fa = a >= sorted_forced, fb = b >= sorted_forced;
    float sa = isnan(sorted_scores[a]) ? -INFINITY : sorted_scores[a];
    float sb = isnan(sorted_scores[b]) ? -INFINITY : sorted_scores[b];
    if (fa != fb) return fb - fa;
    if (!fa && sa != sb) return sa > sb ? -1 : 1;
    return a - b;
}
static int ascending(const void *x, const void *y)
{
    return *(const int32_t *)x - *(const int32_t *)y;
}

static void long_selection(void **state)
{
    (void)state;
    enum { ROWS = 6, HEADS = 2, BLOCKS = 5003 };
    static const int tops[] = {1, 2, 16, 31, 32};
    gpu *g = device_open();
    random_state = 3;
    int32_t sequence[ROWS] = {0, 1, -1, 2, 3, 4}, position[ROWS];
    uint8_t flags[ROWS] = {0};
    float *scores = malloc(sizeof(float) * ROWS * HEADS * BLOCKS);
    for (int i = 0; i < ROWS * HEADS * BLOCKS; i++) {
        int kind = i / BLOCKS % 4;
        scores[i] = kind == 0   ? random_normal()
                    : kind == 1 ? (float)random_below(5)
                    : kind == 2 ? (float)(i % BLOCKS) /* every one enters */
                                : (random_below(2) ? -0.0f : random_below(3) ? 0.0f : NAN);
    }
    for (int t = 0; t < ROWS; t++) position[t] = t == 0 ? 5 : t == 1 ? 20 * 128 : BLOCKS * 128 - 1 - t * 7000;
    for (size_t n = 0; n < sizeof tops / sizeof *tops; n++)
        for (int warps = 1; warps <= TOP_WARPS; warps += 7) {
            int top = tops[n];
            size_t bytes = sizeof(int32_t) * (size_t)(ROWS * HEADS * top);
            index_top_args args = {
                .rows = {.count = ROWS,
                         .sequence = device_put(g, sequence, sizeof sequence),
                         .position = device_put(g, position, sizeof position),
                         .flags = device_put(g, flags, sizeof flags)},
                .scores = device_put(g, scores, sizeof(float) * ROWS * HEADS * BLOCKS),
                .blocks = device_take(g, bytes),
                .heads = HEADS,
                .top = top,
                .local = 1,
                .max_blocks = BLOCKS,
                .count = BLOCKS,
            };
            device_run(g, "index_select", ROWS, HEADS, 1, warps * CUDA_WARP, 0, &args, sizeof args);
            int32_t *blocks = device_get(g, args.blocks, bytes);
            for (int i = 0; i < ROWS * HEADS; i++) {
                int visible = sequence[i / HEADS] < 0 ? 0 : position[i / HEADS] / 128 + 1;
                int32_t order[BLOCKS + 32];
                for (int b = 0; b < visible; b++) order[b] = b;
                sorted_scores = scores + i * BLOCKS, sorted_forced = visible - 1;
                qsort(order, (size_t)visible, sizeof *order, by_total_order);
                int count = visible < top ? visible : top;
                qsort(order, (size_t)count, sizeof *order, ascending);
                for (int b = count; b < top; b++) order[b] = -1;
                assert_memory_equal(order, blocks + i * top, (size_t)top * sizeof *order);
            }
            free(blocks);
            void *device[] = {(void *)args.rows.sequence, (void *)args.rows.position, (void *)args.rows.flags,
                              (void *)args.scores, args.blocks};
            for (size_t i = 0; i < sizeof device / sizeof *device; i++) g->calls->free(g, device[i]);
        }
    free(scores);
    g->calls->close(g);
}

/* ---- A row alone and among others -------------------------------------------------------------------------------- */

static const struct {
    cache_format main, index;
    readback read;
} caches[] = {{CACHE_BF16, CACHE_BF16, READBACK_EXACT},
              {CACHE_FP8, CACHE_FP8, READBACK_EXACT},
              {CACHE_NVFP4, CACHE_NVFP4, READBACK_EXACT},
              {CACHE_NVFP4, CACHE_NVFP4, READBACK_E4M3}};
enum { CACHES = sizeof caches / sizeof *caches };

static void random_bytes(const bench *b)
{
    const cache_layout *l = &b->layout;
    uint8_t *row = malloc(l->row_bytes);
    for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
        for (size_t i = 0; i < l->row_bytes; i++) {
            row[i] = (uint8_t)random_bits();
            if (l->main == CACHE_BF16 && i % 2) row[i] = (uint8_t)(0x3E | (row[i] & 0x81));
            if (l->main == CACHE_FP8 && (row[i] & 0x7F) >= 0x48) row[i] = (uint8_t)(row[i] & 0xBF);
        }
        for (int part = 0; part < 2 * l->kv_heads && l->main == CACHE_NVFP4; part++)
            for (int layer = 0; layer < l->layers; layer++) {
                uint8_t *scales = row + l->main_offset[layer] + (size_t)part * l->head_bytes / 2 + l->k_scales;
                for (size_t i = 0; i < l->head_bytes / 2 - l->k_scales; i++) scales[i] = (uint8_t)(0x20 + scales[i] % 24);
                if (part || l->index_offset[layer] == CACHE_NO_OFFSET) continue;
                scales = row + l->index_offset[layer] + l->index_scales;
                for (int i = 0; i < 128 * l->index_dim / 16; i++) scales[i] = (uint8_t)(0x20 + scales[i] % 24);
            }
        b->ops->cache_write(b->cache, block, 0, l->row_bytes, row);
    }
    free(row);
}

/* Keys and values of a sequence's position are NaN in all layers: no row before it may notice. */
static void plant_nan(const bench *b, const step_rows *rows, int sequence, int position)
{
    const cache_layout *l = &b->layout;
    int32_t block = rows->table[sequence * TABLE + position / CACHE_BLOCK];
    size_t t = (size_t)position % CACHE_BLOCK, vector = l->k_scales / CACHE_BLOCK, groups = (size_t)l->head_dim / 16;
    uint8_t *row = malloc(l->row_bytes);
    b->ops->cache_read(b->cache, block, 0, l->row_bytes, row);
    for (int layer = 0; layer < l->layers; layer++)
        for (int head = 0; head < l->kv_heads; head++) {
            uint8_t *at = row + l->main_offset[layer] + (size_t)head * l->head_bytes;
            memset(at + t * vector, 0x7F, vector);
            memset(at + l->v_data + t * vector, 0x7F, vector);
            for (size_t i = 1; i < vector && l->main == CACHE_BF16; i += 2) at[t * vector + i - 1] = 0xC0;
            for (size_t i = 1; i < vector && l->main == CACHE_BF16; i += 2) at[l->v_data + t * vector + i - 1] = 0xC0;
            for (size_t g = 0; g < groups && l->main == CACHE_NVFP4; g++)
                at[l->k_scales + t * groups + g] = at[l->v_scales + t / 4 * 4 * groups + g * 4 + t % 4] = 0x7F;
        }
    b->ops->cache_write(b->cache, block, 0, l->row_bytes, row);
    free(row);
}

/* Scores, choice and attention of the rows, from values that depend on sequence and position alone. */
typedef struct outcome {
    float *scores, *attention;
    int32_t *blocks;
} outcome;

static outcome run_rows(const bench *b, const step_rows *rows, int layer)
{
    const ops_model *m = b->model;
    int32_t n = rows->ops.count;
    size_t q = (size_t)(m->heads * m->head_dim), index_q = (size_t)(m->index_heads * m->index_dim);
    float *queries = malloc((size_t)n * q * sizeof *queries), *index = malloc((size_t)n * index_q * sizeof *index);
    hy_error err = {0};
    for (int t = 0; t < n; t++) {
        random_state = (uint64_t)(rows->sequence[t] * 100000 + rows->position[t]);
        for (size_t i = 0; i < q; i++) queries[(size_t)t * q + i] = bf16_round(random_normal() * 1.5f);
        for (size_t i = 0; i < index_q; i++) index[(size_t)t * index_q + i] = bf16_round(random_normal());
    }
    b->ops->begin(b->step, b->cache, &rows->ops);
    b->ops->tensor_write(b->step, OPS_Q, 0, n, queries);
    b->ops->tensor_write(b->step, OPS_INDEX_Q, 0, n, index);
    outcome out = {0};
    if (layer > 0) {
        b->ops->index_score(b->step, layer, 0, TABLE);
        out.scores = bench_read(b, OPS_SCORES, n, (size_t)(m->index_heads * TABLE));
        b->ops->index_select(b->step, layer);
        out.blocks = (int32_t *)bench_read(b, OPS_BLOCKS, n, (size_t)(m->index_heads * m->index_top));
    }
    b->ops->attend(b->step, layer);
    check(b->ops->finish(b->step, &err), &err);
    out.attention = bench_read(b, OPS_ATTENTION, n, q);
    free(queries), free(index);
    return out;
}

static void free_outcome(outcome *o)
{
    free(o->scores), free(o->blocks), free(o->attention);
}

static void many_rows(step_rows *rows, int mixture)
{
    rows_open(rows);
    if (mixture == 0) {
        rows_add(rows, 0, 1010, 24, 9);
        rows_add(rows, -1, 0, 1, 9);
        rows_add(rows, 1, 0, 3, 9);
        rows_add(rows, 2, 127, 2, 9);
        rows_add(rows, 3, TABLE * 128 - 1, 1, 9);
        rows_add(rows, 4, 2047, 1, 9);
    } else {
        rows_add(rows, 5, 2050, 5, 9);
        rows_add(rows, 6, 128, 1, 9);
    }
}

static void alone(void **state)
{
    (void)state;
    float worst_attention = 0, worst_scores = 0;
    for (int n = 0; n < DIMS; n++)
        for (int c = 0; c < CACHES; c++) {
            static const int groups[] = {20, 4, 16, 3};
            model_kind kind = {.layers = 3,
                               .hidden = 32,
                               .heads = 2 * groups[(n + c) % 4],
                               .kv_heads = 2,
                               .head_dim = dims[n],
                               .index_dim = dims[(n + c) % DIMS],
                               .index_top = 3 + c,
                               .rotary_dim = 8,
                               .experts = 2,
                               .per_token = 1,
                               .expert_width = 32,
                               .shared_width = 16,
                               .dense_width = 16,
                               .vocab = 9,
                               .linear = WEIGHT_BF16,
                               .expert = WEIGHT_BF16};
            random_model m;
            bench cuda, reference;
            ops_options options = {.read = caches[c].read};
            random_state = 7;
            random_model_make(&m, &kind);
            bench_open(&cuda, &ops_cuda, &m, caches[c].main, caches[c].index, options, 1);
            bench_open(&reference, &ops_reference, &m, caches[c].main, caches[c].index, options, 1);
            random_state = 8;
            random_bytes(&cuda);
            random_state = 8;
            random_bytes(&reference);
            step_rows last;
            many_rows(&last, 0);
            plant_nan(&cuda, &last, 0, 1033);
            plant_nan(&reference, &last, 0, 1033);
            size_t q = (size_t)(kind.heads * kind.head_dim);
            for (int mixture = 0; mixture < 2; mixture++)
                for (int layer = 0; layer < 2; layer++) {
                    step_rows rows, single;
                    many_rows(&rows, mixture);
                    outcome all = run_rows(&cuda, &rows, layer), expected = run_rows(&reference, &rows, layer);
                    worst_attention =
                        fmaxf(worst_attention, row_error(expected.attention, all.attention, rows.ops.count, q));
                    for (int t = 0; t < rows.ops.count; t += mixture || t > 19 ? 3 : 10) {
                        if (rows.sequence[t] < 0) continue;
                        rows_open(&single);
                        rows_add(&single, rows.sequence[t], rows.position[t], 1, 9);
                        outcome one = run_rows(&cuda, &single, layer);
                        assert_memory_equal(one.attention, all.attention + (size_t)t * q, q * sizeof(float));
                        if (layer > 0) {
                            size_t columns = (size_t)(2 * TABLE), top = (size_t)(2 * kind.index_top);
                            assert_memory_equal(one.scores, all.scores + (size_t)t * columns, columns * sizeof(float));
                            assert_memory_equal(one.blocks, all.blocks + (size_t)t * top, top * sizeof(int32_t));
                            assert_memory_equal(one.blocks, expected.blocks + (size_t)t * top, top * sizeof(int32_t));
                            worst_scores =
                                fmaxf(worst_scores, row_error(expected.scores + (size_t)t * columns, one.scores, 2, TABLE));
                        }
                        free_outcome(&one);
                    }
                    free_outcome(&all), free_outcome(&expected);
                }
            bench_close(&cuda);
            bench_close(&reference);
            random_model_free(&m);
        }
    printf("# largest difference of attention %.2e, of scores %.2e\n", (double)worst_attention, (double)worst_scores);
    for (int i = 0; !cuda_test_on_gpu && cuda_emulated_kernel(i); i++) {
        const char *name = cuda_emulated_kernel(i);
        bool ours = strncmp(name, "hy_attend_", 10) == 0 || strncmp(name, "hy_index_", 9) == 0;
        if (ours && !cuda_emulated_launches(name)) printf("# not launched: %s\n", name);
    }
    assert_true(worst_attention <= 1e-2f);
    assert_true(worst_scores <= 1e-5f);
}

/* ---- How long it takes, on a GPU --------------------------------------------------------------------------------- */

typedef void (*timed)(const bench *b);

static void time_select(const bench *b)
{
    b->ops->index_select(b->step, 1);
}
static void time_attend(const bench *b)
{
    b->ops->attend(b->step, 1);
}
static void time_in(const bench *b)
{
    b->ops->attend_in(b->step, 1);
}

/* Microseconds of one call among many, launches included. */
static double microseconds(const bench *b, timed fn)
{
    enum { TIMES = 50 };
    struct timespec from, to;
    hy_error err = {0};
    for (int i = 0; i < 3; i++) fn(b);
    check(b->ops->finish(b->step, &err), &err);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < TIMES; i++) fn(b);
    check(b->ops->finish(b->step, &err), &err);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) * 1e-3) / TIMES;
}

/* The released model's attention, one layer: sequences of one row each, or one chunk of a prompt. Bytes are those of the
 * blocks that rows read, as if none were shared. */
static void timings(void **state)
{
    (void)state;
    if (!cuda_test_on_gpu) skip();
    enum { BLOCKS = 16384, SEQUENCES = 256, LENGTH = 4096 /* blocks of the longest */, ROWS = 2048 };
    static const cache_format timed_formats[] = {CACHE_NVFP4, CACHE_FP8, CACHE_BF16};
    static const struct {
        int sequences, rows, position;
    } shapes[] = {{1, 1, 1000},  {1, 1, 32000},  {1, 1, 500000},   {8, 1, 32000},      {64, 1, 32000},  {256, 1, 8000},
                  {1, 4, 32000}, {16, 4, 32000}, {1, 2048, 32000}, {1, 2048, 500000},  {1, 2048, 0}};
    model_kind kind = {.layers = 3, .hidden = 512, .heads = 64, .kv_heads = 4, .head_dim = 128, .index_dim = 128,
                       .index_top = 16, .rotary_dim = 64, .experts = 2, .per_token = 1, .expert_width = 32,
                       .shared_width = 32, .dense_width = 32, .vocab = 9, .linear = WEIGHT_MXFP8, .expert = WEIGHT_BF16};
    random_model m;
    random_state = 7;
    random_model_make(&m, &kind);
    int32_t *table = malloc(sizeof(int32_t) * SEQUENCES * LENGTH);
    for (int i = 0; i < SEQUENCES * LENGTH; i++) table[i] = (int32_t)(random_bits() % BLOCKS);
    for (int f = 0; f < FORMATS; f++) {
        bench b = {.ops = &ops_cuda, .model = &m.ops};
        hy_error err = {0};
        ops_options options = {0};
        ops_limits limits = {.rows = ROWS, .logit_rows = 1, .positions = LENGTH * CACHE_BLOCK};
        check(cache_layout_make(&m.ops, timed_formats[f], timed_formats[f], &b.layout, &err), &err);
        check(b.ops->open(&m.ops, &options, &b.backend, &err), &err);
        check(b.ops->cache_open(b.backend, &b.layout, BLOCKS, &b.cache, &err), &err);
        check(b.ops->step_open(b.backend, &limits, &b.step, &err), &err);
        random_bytes(&b);
        for (int i = CACHE_BLOCKS; i < BLOCKS; i++) b.ops->cache_copy(b.cache, i % CACHE_BLOCKS, i);
        double head = (double)b.layout.head_bytes, index = 128.0 * (double)cache_vector_bytes(timed_formats[f], 128);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            static int32_t sequence[ROWS], position[ROWS], token[ROWS];
            static int64_t slot[ROWS];
            static uint8_t flags[ROWS];
            int n = shapes[s].sequences * shapes[s].rows;
            double attended = 0, scored = 0;
            for (int t = 0; t < n; t++) {
                sequence[t] = t / shapes[s].rows, position[t] = shapes[s].position + t % shapes[s].rows;
                int visible = position[t] / CACHE_BLOCK + 1;
                slot[t] = (int64_t)table[sequence[t] * LENGTH + visible - 1] * CACHE_BLOCK + position[t] % CACHE_BLOCK;
                attended += (visible < 16 ? visible : 16) * 4 * head;
                if (visible > 16 && t % shapes[s].rows == 0) scored += visible * index;
            }
            ops_rows rows = {.count = n, .sequence = sequence, .position = position, .token = token, .slot = slot,
                             .flags = flags, .sequences = SEQUENCES, .block_table = table, .block_table_stride = LENGTH};
            float *q = random_floats((size_t)n * 64 * 128, 1, true);
            b.ops->begin(b.step, b.cache, &rows);
            b.ops->tensor_write(b.step, OPS_Q, 0, n, q);
            b.ops->tensor_write(b.step, OPS_INDEX_Q, 0, n, q);
            double select = microseconds(&b, time_select), attend = microseconds(&b, time_attend);
            double in = microseconds(&b, time_in);
            printf("# %s, %d x %d rows at %d: select %.1f us (%.0f GB/s), attend %.1f us (%.0f GB/s), in %.1f us\n",
                   cache_format_name(timed_formats[f]), shapes[s].sequences, shapes[s].rows, shapes[s].position, select,
                   scored / select * 1e-3, attend, attended / attend * 1e-3, in);
            free(q);
        }
        b.ops->step_close(b.step);
        b.ops->cache_close(b.cache);
        b.ops->close(b.backend);
        cache_layout_free(&b.layout);
    }
    free(table);
    random_model_free(&m);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_bytes),
        cmocka_unit_test(long_selection),
        cmocka_unit_test(alone),
        cmocka_unit_test(timings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
