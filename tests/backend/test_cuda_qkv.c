/*
 * What comes before attention, and a dense layer behind it, by warpgroups (kernels/qkv_wide.cu, project_wide.cu)
 * against the other kernels: queries, cache bytes and residual are equal.
 */
#include "backend/cuda_test.h"

typedef struct before {
    float *q, *index_q, *x;
    uint8_t *cache;
    size_t q_count, index_count, x_count, cache_bytes;
} before;

static void run(const random_model *m, const step_rows *rows, cache_format format, int wgmma_rows, before *out)
{
    bench b;
    int32_t n = rows->ops.count;
    hy_error err = {0};
    bench_open(&b, &ops_cuda, m, format, format, (ops_options){.gpu_wgmma_rows = wgmma_rows}, 1);
    bench_fill(&b, 0x5A);
    ops_cuda.begin(b.step, b.cache, &rows->ops);
    ops_cuda.embed(b.step);
    *out = (before){.q_count = (size_t)n * (size_t)(m->ops.heads * m->ops.head_dim),
                    .index_count = (size_t)n * (size_t)(m->ops.index_heads * m->ops.index_dim),
                    .x_count = (size_t)n * (size_t)m->ops.hidden,
                    .cache_bytes = b.layout.row_bytes * CACHE_BLOCKS};
    ops_cuda.attend_in(b.step, 0);
    ops_cuda.attend_in(b.step, 1);
    ops_cuda.feed_dense(b.step, 0);
    out->q = bench_read(&b, OPS_Q, n, out->q_count / (size_t)n);
    out->index_q = bench_read(&b, OPS_INDEX_Q, n, out->index_count / (size_t)n);
    out->x = bench_read(&b, OPS_X, n, out->x_count / (size_t)n);
    check(ops_cuda.finish(b.step, &err), &err);
    out->cache = malloc(out->cache_bytes);
    for (int32_t i = 0; i < CACHE_BLOCKS; i++)
        ops_cuda.cache_read(b.cache, i, 0, b.layout.row_bytes, out->cache + (size_t)i * b.layout.row_bytes);
    bench_close(&b);
}

static void same(const char *what, const void *a, const void *b, size_t count, size_t size)
{
    size_t equal = 0;
    for (size_t i = 0; i < count; i++) equal += !memcmp((const char *)a + i * size, (const char *)b + i * size, size);
    if (equal != count) fail_msg("%s: %zu of %zu are equal", what, equal, count);
}

static void one(weight_format linear, cache_format format, int padding)
{
    random_model m;
    model_kind kind = {.layers = 2,
                       .hidden = 1024,
                       .heads = 2,
                       .kv_heads = 1,
                       .head_dim = 128,
                       .index_dim = 128,
                       .index_top = 2,
                       .rotary_dim = 64,
                       .experts = 1,
                       .per_token = 1,
                       .expert_width = 32,
                       .shared_width = 32,
                       .dense_width = 1024,
                       .vocab = 77,
                       .linear = linear,
                       .expert = WEIGHT_BF16};
    random_model_make(&m, &kind);
    step_rows *rows = malloc(sizeof *rows);
    rows_open(rows);
    rows_add(rows, 0, 120, 90, kind.vocab); /* over the edge of a block */
    rows_add(rows, 3, 0, 110, kind.vocab);
    rows_add(rows, -1, 0, padding, kind.vocab);
    before apart, together;
    long launches = cuda_emulated_launches("hy_qkv_wide");
    run(&m, rows, format, -1, &apart);
    run(&m, rows, format, 1, &together);
    if (!cuda_test_on_gpu) assert_int_equal(cuda_emulated_launches("hy_qkv_wide") - launches, 2);
    same("queries", apart.q, together.q, apart.q_count, sizeof(float));
    same("index queries", apart.index_q, together.index_q, apart.index_count, sizeof(float));
    same("bytes of the cache", apart.cache, together.cache, apart.cache_bytes, 1);
    same("residual", apart.x, together.x, apart.x_count, sizeof(float));
    free(apart.q), free(apart.index_q), free(apart.x), free(apart.cache);
    free(together.q), free(together.index_q), free(together.x), free(together.cache);
    free(rows);
    random_model_free(&m);
}

static void mxfp8_to_nvfp4(void **state)
{
    (void)state;
    one(WEIGHT_MXFP8, CACHE_NVFP4, 3);
}

static void bf16_to_bf16(void **state)
{
    (void)state;
    one(WEIGHT_BF16, CACHE_BF16, 0);
}

static void mxfp8_to_fp8(void **state)
{
    (void)state;
    one(WEIGHT_MXFP8, CACHE_FP8, 0);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    random_state = 21;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mxfp8_to_nvfp4),
        cmocka_unit_test(bf16_to_bf16),
        cmocka_unit_test(mxfp8_to_fp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
