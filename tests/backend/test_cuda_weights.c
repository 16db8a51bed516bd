/* Weights that hold no numbers are refused by the cuda backend when it is opened, as by the others; on a GPU with --gpu. */
#include "backend/cuda_test.h"

/* A model whose projections or experts have the format. */
static void make(random_model *m, weight_format linear, weight_format expert)
{
    model_kind kind = {.layers = 3, .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16, .index_dim = 16,
                       .index_top = 3, .rotary_dim = 8, .experts = 4, .per_token = 2, .expert_width = 64,
                       .shared_width = 64, .dense_width = 64, .vocab = 32, .linear = linear, .expert = expert};
    random_state = 3;
    random_model_make(m, &kind);
}

/* What opening says with the byte of the weight's data or scales changed; it is put back. */
static hy_status open_with(const random_model *m, const void *where, size_t at, uint8_t byte, hy_error *err)
{
    uint8_t *place = (uint8_t *)(uintptr_t)where + at, before = *place;
    ops_options options = {.activation = MOE_ACTIVATION_NVFP4};
    ops_backend *backend = NULL;
    check(threads_open(1, &options.pool, err), err);
    *place = byte;
    hy_status status = ops_cuda.open(&m->ops, &options, &backend, err);
    *place = before;
    if (status == HY_OK) ops_cuda.close(backend);
    threads_close(options.pool);
    return status;
}

static void expect(const random_model *m, const void *where, size_t at, uint8_t byte, const char *names)
{
    hy_error err = {0};
    assert_int_equal(open_with(m, where, at, byte, &err), HY_BAD_MODEL);
    if (!strstr(err.message, names) || !strstr(err.message, "hold")) fail_msg("\"%s\" does not name %s", err.message, names);
}

static void refused(void **state)
{
    (void)state;
    random_model m;
    hy_error err = {0};
    make(&m, WEIGHT_MXFP8, WEIGHT_NVFP4);
    const ops_layer *l = &m.ops.layer[1];
    assert_int_equal(open_with(&m, l->q.data, 0, 0x38, &err), HY_OK);
    expect(&m, l->q.data, 0, 0x7F, "layer 1");
    expect(&m, l->o.data, 17, 0xFF, "layer 1");
    expect(&m, l->k.scales, 1, 255, "layer 1");
    expect(&m, l->k.scales, 1, 247, "layer 1");
    expect(&m, l->expert_up[3].scales, 5, 0x7F, "experts");
    expect(&m, l->expert_down[0].scales, 0, 0xB0, "experts");
    assert_int_equal(open_with(&m, l->expert_down[0].scales, 0, 0x80, &err), HY_OK); /* -0 */
    random_model_free(&m);
    make(&m, WEIGHT_BF16, WEIGHT_BF16);
    l = &m.ops.layer[1];
    ((uint8_t *)(uintptr_t)l->v.data)[10] = 0x80; /* an infinity needs both bytes */
    assert_int_equal(open_with(&m, l->v.data, 11, 0x3F, &err), HY_OK);
    expect(&m, l->v.data, 11, 0x7F, "layer 1");
    ((uint8_t *)(uintptr_t)l->expert_gate[2].data)[20] = 0xC0;
    expect(&m, l->expert_gate[2].data, 21, 0xFF, "experts");
    random_model_free(&m);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
