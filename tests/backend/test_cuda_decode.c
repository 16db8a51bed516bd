/*
 * Selection and attention of few rows over a cache of NVFP4 with 128 dims, where the cuda backend has kernels of their own:
 * lists against the total order on the scores of index_score, which are the same bits; attention against the reference, and
 * the same bits whatever the rows beside a row.
 */
#include "backend/cuda_test.h"

#include "backend/cuda/kernels/index.h"

enum { LONG = 1200 /* blocks of the longest sequence */, LONG_BLOCKS = 300 /* of the cache */ };

static model_kind kind_of(int kv_heads, int per_head, int top)
{
    return (model_kind){.layers = 2, .hidden = 32, .heads = kv_heads * per_head, .kv_heads = kv_heads, .head_dim = 128,
                        .index_dim = 128, .index_top = top, .rotary_dim = 64, .experts = 2, .per_token = 1,
                        .expert_width = 32, .shared_width = 16, .dense_width = 16, .vocab = 9, .linear = WEIGHT_BF16,
                        .expert = WEIGHT_BF16};
}

/* Random codes; scales as caches have them, and among the index keys here and there one that is negative or no number, which takes
 * a score out. Keys and values of both layers are the same. */
static void fill_cache(const bench *b, int32_t blocks)
{
    const cache_layout *l = &b->layout;
    uint8_t *row = malloc(l->row_bytes);
    random_state = 11;
    for (int32_t block = 0; block < blocks; block++) {
        for (size_t i = 0; i < l->row_bytes; i++) row[i] = (uint8_t)random_bits();
        for (int layer = 0; layer < l->layers; layer++) {
            for (int h = 0; h < 2 * l->kv_heads; h++) {
                uint8_t *scales = row + l->main_offset[layer] + (size_t)h * l->head_bytes / 2 + l->k_scales;
                for (size_t i = 0; i < l->head_bytes / 2 - l->k_scales; i++) scales[i] = (uint8_t)(0x20 + scales[i] % 24);
            }
            if (l->index_offset[layer] == CACHE_NO_OFFSET) continue;
            uint8_t *scales = row + l->index_offset[layer] + l->index_scales;
            for (int i = 0; i < 1024; i++) scales[i] = (uint8_t)(0x20 + scales[i] % 24);
            if (block % 5 == 0) scales[random_below(1024)] = 0x7F;
            if (block % 3 == 0) scales[random_below(1024)] |= 0x80;
            if (block == 77) memset(scales, 0xFF, 1024); /* no score at all */
        }
        memcpy(row + l->main_offset[0], row + l->main_offset[1], (size_t)l->kv_heads * l->head_bytes);
        b->ops->cache_write(b->cache, block, 0, l->row_bytes, row);
    }
    free(row);
}

/* Queries that depend on sequence and position alone. */
static void write_queries(const bench *b, const ops_rows *rows)
{
    const ops_model *m = b->model;
    size_t q = (size_t)(m->heads * m->head_dim), index_q = (size_t)(m->index_heads * m->index_dim), n = (size_t)rows->count;
    float *queries = malloc(n * q * sizeof *queries), *index = malloc(n * index_q * sizeof *index);
    for (size_t t = 0; t < n; t++) {
        random_state = (uint64_t)(rows->sequence[t] * 100000 + rows->position[t]);
        for (size_t i = 0; i < q; i++) queries[t * q + i] = bf16_round(random_normal() * 1.5f);
        for (size_t i = 0; i < index_q; i++) index[t * index_q + i] = bf16_round(random_normal());
    }
    b->ops->tensor_write(b->step, OPS_Q, 0, rows->count, queries);
    b->ops->tensor_write(b->step, OPS_INDEX_Q, 0, rows->count, index);
    free(queries), free(index);
}

/* ---- Selection --------------------------------------------------------------------------------------------------- */

static const float *sorted_scores;

static int by_score(const void *x, const void *y)
{
    int a = *(const int32_t *)x, b = *(const int32_t *)y;
    float sa = isnan(sorted_scores[a]) ? -INFINITY : sorted_scores[a];
    float sb = isnan(sorted_scores[b]) ? -INFINITY : sorted_scores[b];
    return sa != sb ? (sa > sb ? -1 : 1) : a - b;
}
static int ascending(const void *x, const void *y)
{
    return *(const int32_t *)x - *(const int32_t *)y;
}

/* The list of a row that sees `visible` blocks, the last one forced. */
static void expected_list(const float *scores, int visible, int top, int32_t *list)
{
    int32_t order[LONG + 32];
    int count = visible < top ? visible : top;
    for (int b = 0; b < visible; b++) order[b] = b;
    sorted_scores = scores;
    if (visible > 0) {
        order[visible - 1] = order[0], order[0] = visible - 1;
        qsort(order + 1, (size_t)visible - 1, sizeof *order, by_score);
        qsort(order, (size_t)count, sizeof *order, ascending);
    }
    for (int i = 0; i < top; i++) list[i] = i < count ? order[i] : -1;
}

/* index_score, then index_select twice on the same rows; columns: of the kernel that shall have done it. */
static void check_selection(const bench *b, const ops_rows *rows, int columns, int max_blocks)
{
    const ops_model *m = b->model;
    int n = rows->count, heads = m->index_heads, top = m->index_top;
    size_t row = (size_t)(heads * max_blocks), lists = (size_t)(n * heads * top) * sizeof(int32_t);
    hy_error err = {0};
    char name[64];
    snprintf(name, sizeof name, "hy_index_decode_%d", columns);
    long before = cuda_emulated_launches(name);
    b->ops->begin(b->step, b->cache, rows);
    write_queries(b, rows);
    b->ops->index_score(b->step, 1, 0, max_blocks);
    float *scores = bench_read(b, OPS_SCORES, n, row);
    b->ops->index_select(b->step, 1);
    int32_t *first = (int32_t *)bench_read(b, OPS_BLOCKS, n, (size_t)(heads * top));
    b->ops->index_select(b->step, 1);
    int32_t *second = (int32_t *)bench_read(b, OPS_BLOCKS, n, (size_t)(heads * top));
    float *again = bench_read(b, OPS_SCORES, n, row);
    check(b->ops->finish(b->step, &err), &err);
    if (!cuda_test_on_gpu) assert_int_equal(cuda_emulated_launches(name) - before, 2);
    assert_memory_equal(first, second, lists);
    assert_memory_equal(scores, again, (size_t)n * row * sizeof *scores);
    for (int t = 0; t < n; t++)
        for (int h = 0; h < heads; h++) {
            int32_t list[32], visible = rows->sequence[t] < 0 ? 0 : rows->position[t] / 128 + 1;
            expected_list(scores + (size_t)t * row + (size_t)(h * max_blocks), visible, top, list);
            if (rows->flags[t] & ROW_REPLAY_BLOCKS)
                for (int i = 0; i < top; i++) list[i] = rows->replay_blocks[((1 * n + t) * heads + h) * top + i];
            if (memcmp(list, first + (t * heads + h) * top, (size_t)top * sizeof *list))
                fail_msg("row %d of %d (position %d), head %d: another list", t, n, rows->position[t], h);
        }
    free(scores), free(again), free(first), free(second);
}

static void selection(void **state)
{
    (void)state;
    static const struct {
        int heads, top, longest; /* index heads, rows of a run */
    } cases[] = {{4, 5, 2}, {4, 16, 4}, {4, 7, 8}, {1, 16, 8}, {1, 3, 32}, {3, 2, 5}};
    static const int positions[] = {0, 126, 127, 128, 2046, 2048, 3000, 4000};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int heads = cases[c].heads, top = cases[c].top, longest = cases[c].longest, columns = heads * longest;
        columns = columns <= 8 ? 8 : columns <= 16 ? 16 : 32;
        model_kind kind = kind_of(heads, 1, top);
        random_model m;
        bench b;
        random_state = 7;
        random_model_make(&m, &kind);
        bench_open(&b, &ops_cuda, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){0}, 1);
        fill_cache(&b, CACHE_BLOCKS);
        for (int mixture = 0; mixture < 3; mixture++) {
            step_rows rows;
            rows_open(&rows);
            if (mixture == 0) /* runs of any length, padding between them */
                for (int s = 0; s < MAX_SEQUENCES; s++) {
                    rows_add(&rows, s, positions[s], s == 5 ? longest : 1 + s % longest, 9);
                    if (s % 3 == 0) rows_add(&rows, -1, 0, 1, 9);
                }
            if (mixture == 1) { /* all of one length, the last one cut, then padding */
                for (int s = 0; s < 3; s++) rows_add(&rows, s, positions[s + 3] + 100, longest, 9);
                rows_add(&rows, 3, 2047, 1, 9);
                rows_add(&rows, -1, 0, longest > 1 ? longest : 2, 9);
            }
            if (mixture == 2) { /* one run; some of its rows replay */
                static int32_t replay[2 * 32 * 4 * 32];
                for (size_t i = 0; i < sizeof replay / sizeof *replay; i++) replay[i] = (int32_t)(i % 17);
                rows_add(&rows, 4, 4090 - longest, longest, 9);
                rows.ops.replay_blocks = replay;
                for (int t = 0; t < longest; t += 2) rows.flags[t] |= ROW_REPLAY_BLOCKS;
            }
            check_selection(&b, &rows.ops, columns, TABLE);
        }
        bench_close(&b);
        random_model_free(&m);
    }
}

/* A list of several loads of scores; blocks come back, so that many scores are equal. */
static void long_selection(void **state)
{
    (void)state;
    for (int heads = 1; heads <= 4; heads += 3) {
        model_kind kind = kind_of(heads, 1, heads == 1 ? 32 : 16);
        ops_limits limits = {.rows = 4, .logit_rows = 1, .positions = LONG * 128};
        static int32_t table[LONG];
        int32_t sequence[2] = {0, 0}, position[2] = {LONG * 128 - 2, LONG * 128 - 1}, token[2] = {0};
        int64_t slot[2] = {-1, -1};
        uint8_t flags[2] = {0};
        random_model m;
        hy_error err = {0};
        random_state = 7;
        random_model_make(&m, &kind);
        bench b = {.ops = &ops_cuda, .model = &m.ops};
        ops_options options = {0};
        check(cache_layout_make(&m.ops, CACHE_NVFP4, CACHE_NVFP4, &b.layout, &err), &err);
        check(b.ops->open(&m.ops, &options, &b.backend, &err), &err);
        check(b.ops->cache_open(b.backend, &b.layout, LONG_BLOCKS, &b.cache, &err), &err);
        check(b.ops->step_open(b.backend, &limits, &b.step, &err), &err);
        fill_cache(&b, LONG_BLOCKS);
        ops_rows rows = {.count = heads == 1 ? 1 : 2, .sequence = sequence, .position = position, .token = token,
                         .slot = slot, .flags = flags, .sequences = 1, .block_table = table, .block_table_stride = LONG};
        if (heads == 1) position[0] = LONG * 128 - 1;
        for (int period = 32; period <= LONG_BLOCKS; period += LONG_BLOCKS - 32) { /* 32: a lane of a warp has all of the best */
            for (int i = 0; i < LONG; i++) table[i] = i * 7 % period;
            check_selection(&b, &rows, 8, LONG);
        }
        b.ops->step_close(b.step);
        b.ops->cache_close(b.cache);
        b.ops->close(b.backend);
        cache_layout_free(&b.layout);
        random_model_free(&m);
    }
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* Behind a sequence's last row its block is full of scales that are no numbers: nobody may notice. */
static void poison_behind(const bench *b, const step_rows *rows)
{
    const cache_layout *l = &b->layout;
    for (int t = 0; t < rows->ops.count; t++) {
        int s = rows->sequence[t], p = rows->position[t];
        if (s < 0 || (t + 1 < rows->ops.count && rows->sequence[t + 1] == s)) continue;
        for (int head = 0; head < l->kv_heads; head++)
            for (int i = p % 128 + 1; i < 128; i++)
                for (int g = 0; g < 8; g++) {
                    uint8_t bad = i % 2 ? 0x7F : 0xFF;
                    size_t at = l->main_offset[1] + (size_t)head * l->head_bytes;
                    int32_t block = rows->table[s * TABLE + p / 128];
                    b->ops->cache_write(b->cache, block, at + l->k_scales + (size_t)(i * 8 + g), 1, &bad);
                    b->ops->cache_write(b->cache, block, at + l->v_scales + (size_t)(i / 4 * 32 + g * 4 + i % 4), 1, &bad);
                }
    }
}

/* Of the layer with lists, or of the dense one. */
static float *attend_layer(const bench *b, const step_rows *rows, int layer)
{
    const ops_model *m = b->model;
    hy_error err = {0};
    b->ops->begin(b->step, b->cache, &rows->ops);
    write_queries(b, &rows->ops);
    if (layer == 1) b->ops->index_select(b->step, 1);
    b->ops->attend(b->step, layer);
    check(b->ops->finish(b->step, &err), &err);
    return bench_read(b, OPS_ATTENTION, rows->ops.count, (size_t)(m->heads * m->head_dim));
}
static float *attend_step(const bench *b, const step_rows *rows) { return attend_layer(b, rows, 1); }

/* Which of the kernels that take lists one by one have been launched, a bit each. */
static unsigned decode_kinds(void)
{
    static const char *const names[] = {"hy_attend_decode",         "hy_attend_decode_8",    "hy_attend_decode_16",
                                        "hy_attend_decode_16_many", "hy_attend_decode_wide", "hy_attend_decode_wide_2"};
    unsigned kinds = 0;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) kinds |= (cuda_emulated_launches(names[i]) > 0) << i;
    return kinds;
}

/* Rows whose lists have all that they see: the bits of a dense layer, whose kernel is another one. */
static int compare_dense(const bench *b, const step_rows *rows, const float *lists, size_t width, int top)
{
    float *dense = attend_layer(b, rows, 0);
    int compared = 0;
    for (int t = 0; t < rows->ops.count; t++) {
        if (rows->sequence[t] < 0 || rows->position[t] / 128 >= top) continue;
        if (memcmp(dense + (size_t)t * width, lists + (size_t)t * width, width * sizeof *dense))
            fail_msg("row %d of %d (position %d): other bits than a dense layer's", t, rows->ops.count, rows->position[t]);
        compared++;
    }
    free(dense);
    return compared;
}

/* Batches of several sizes, so that units are cut into runs of several lengths; drafts and a chunk, which share blocks: every row
 * has one answer, which is the reference's within the bound. */
static float attention_of(int major, int processors)
{
    static const int positions[MAX_SEQUENCES] = {0, 126, 2046, 128, 127, 2048, 4000, 1000};
    static const struct {
        int kv_heads, per_head, top, decoded, rows, chunk; /* sequences, rows of each, rows of a chunk */
    } cases[] = {{4, 16, 16, 8, 1, 0}, {1, 16, 16, 5, 1, 0}, {1, 20, 7, 8, 1, 0},  {2, 3, 32, 3, 1, 0},
                 {4, 4, 5, 2, 1, 40},  {1, 16, 16, 3, 4, 0}, {1, 16, 5, 6, 7, 0},  {4, 16, 16, 1, 3, 0},
                 {1, 17, 32, 0, 1, 17}, {1, 2, 4, 1, 2, 129}};
    float worst = 0;
    cuda_emulated.major = major, cuda_emulated.processors = processors;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        model_kind kind = kind_of(cases[c].kv_heads, cases[c].per_head, cases[c].top);
        random_model m;
        bench cuda, reference;
        random_state = 7;
        random_model_make(&m, &kind);
        bench_open(&cuda, &ops_cuda, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){0}, 1);
        bench_open(&reference, &ops_reference, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){0}, 1);
        fill_cache(&cuda, CACHE_BLOCKS), fill_cache(&reference, CACHE_BLOCKS);
        size_t width = (size_t)(m.ops.heads * m.ops.head_dim);
        step_rows rows, single;
        rows_open(&rows);
        for (int s = 0; s < cases[c].decoded; s++) {
            rows_add(&rows, s, positions[s], cases[c].rows, 9);
            if (s == 1) rows_add(&rows, -1, 0, 1, 9);
        }
        if (cases[c].chunk) rows_add(&rows, 7, positions[7], cases[c].chunk, 9);
        poison_behind(&cuda, &rows), poison_behind(&reference, &rows);
        float *all = attend_step(&cuda, &rows), *expected = attend_step(&reference, &rows);
        worst = fmaxf(worst, row_error(expected, all, rows.ops.count, width));
        assert_true(compare_dense(&cuda, &rows, all, width, cases[c].top) > 0);
        for (int t = 0; t < rows.ops.count; t += t < 10 ? 1 : 13) {
            if (rows.sequence[t] < 0) continue;
            rows_open(&single);
            rows_add(&single, rows.sequence[t], rows.position[t], 1, 9);
            float *one = attend_step(&cuda, &single);
            if (memcmp(one, all + (size_t)t * width, width * sizeof *one))
                fail_msg("case %zu, row %d (position %d): other bits alone", c, t, rows.position[t]);
            free(one);
        }
        free(all), free(expected);
        bench_close(&cuda);
        bench_close(&reference);
        random_model_free(&m);
    }
    cuda_emulated.major = cuda_emulated.processors = 0;
    return worst;
}

/* With clusters, and as GPUs without them do it. */
static void attention(void **state)
{
    (void)state;
    float worst = attention_of(9, 16);
    if (!cuda_test_on_gpu) {
        worst = fmaxf(worst, fmaxf(attention_of(9, 4), attention_of(8, 16)));
        assert_int_equal(decode_kinds(), 63);
    }
    printf("# largest difference of attention %.2e\n", (double)worst);
    assert_true(worst <= 1e-2f);
}

/* A value that is no number is in the answer of the rows that see it, and in no other. */
static void unseen_value(void **state)
{
    (void)state;
    model_kind kind = kind_of(1, 16, 16);
    random_model m;
    bench b;
    random_state = 7;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_cuda, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){0}, 1);
    fill_cache(&b, CACHE_BLOCKS);
    size_t width = (size_t)(m.ops.heads * m.ops.head_dim);
    step_rows rows;
    rows_open(&rows);
    rows_add(&rows, 2, 301, 4, 9);
    uint8_t bad = 0x7F;
    int i = 303 % 128; /* of the last two rows */
    size_t at = b.layout.main_offset[1] + b.layout.v_scales + (size_t)(i / 4 * 32 + 4 + i % 4);
    b.ops->cache_write(b.cache, rows.table[2 * TABLE + 2], at, 1, &bad);
    float *all = attend_step(&b, &rows);
    for (int t = 0; t < 4; t++)
        for (size_t d = 0; d < width; d++)
            assert_int_equal(isnan(all[(size_t)t * width + d]), t >= 2 && d % 128 >= 16 && d % 128 < 32);
    free(all);
    bench_close(&b);
    random_model_free(&m);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selection),
        cmocka_unit_test(long_selection),
        cmocka_unit_test(attention),
        cmocka_unit_test(unseen_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
