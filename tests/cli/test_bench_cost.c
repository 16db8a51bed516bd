/* What a step must do at least, against numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "cli/bench_cost.h"

/* Four query heads on two KV heads of 32, blocks of 128, two of them selected; 8 experts, 2 a token. */
static weight shaped(weight_format format, int64_t rows, int64_t cols)
{
    return (weight){.format = format, .rows = rows, .cols = cols};
}

typedef struct fixture {
    weight gate[8], up[8], down[8];
    ops_layer layer[2];
    ops_model model;
    bench_shape shape;
} fixture;

static void make(fixture *f)
{
    memset(f, 0, sizeof *f);
    f->model = (ops_model){.layers = 2,
                           .hidden = 64,
                           .vocab = 100,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 32,
                           .experts = 8,
                           .experts_per_token = 2,
                           .index_heads = 2,
                           .index_dim = 32,
                           .index_top = 2,
                           .layer = f->layer};
    f->model.embed = shaped(WEIGHT_BF16, 100, 64);
    f->model.head = shaped(WEIGHT_BF16, 100, 64);
    for (int e = 0; e < 8; e++) {
        f->gate[e] = f->up[e] = shaped(WEIGHT_NVFP4, 32, 64);
        f->down[e] = shaped(WEIGHT_NVFP4, 64, 32);
    }
    for (int i = 0; i < 2; i++) {
        ops_layer *l = &f->layer[i];
        l->input_norm = l->post_norm = shaped(WEIGHT_BF16, 1, 64);
        l->q = shaped(WEIGHT_MXFP8, 128, 64);
        l->k = l->v = shaped(WEIGHT_MXFP8, 64, 64);
        l->o = shaped(WEIGHT_MXFP8, 64, 128);
    }
    f->layer[0].dense_gate = f->layer[0].dense_up = shaped(WEIGHT_MXFP8, 96, 64);
    f->layer[0].dense_down = shaped(WEIGHT_MXFP8, 64, 96);
    ops_layer *l = &f->layer[1];
    l->sparse = l->moe = true;
    l->index_q = shaped(WEIGHT_MXFP8, 64, 64);
    l->index_k = shaped(WEIGHT_MXFP8, 32, 64);
    l->router = shaped(WEIGHT_F32, 8, 64);
    l->expert_gate = f->gate, l->expert_up = f->up, l->expert_down = f->down;
    l->shared_gate = l->shared_up = shaped(WEIGHT_MXFP8, 32, 64);
    l->shared_down = shaped(WEIGHT_MXFP8, 64, 32);
    f->shape = (bench_shape){&f->model, CACHE_NVFP4, CACHE_NVFP4, READBACK_EXACT, MOE_ACTIVATION_NVFP4};
}

static bench_cost cost_of(const fixture *f, bench_op op, int layer, const bench_work *work)
{
    bench_cost c = {0};
    bench_cost_add(&f->shape, op, layer, work, &c);
    return c;
}

#define near(got, want) assert_true(fabs((got) - (want)) < 1e-6)

static void projections(void **state)
{
    (void)state;
    fixture f;
    make(&f);
    bench_work work = {.rows = 3, .logit_rows = 2};
    bench_cost c = cost_of(&f, BENCH_ATTEND_IN, 0, &work);
    /* q, k, v: 256 rows of 64 codes and 2 scales */
    near(c.bytes[BYTES_LINEAR], 256 * 66);
    near(c.bytes[BYTES_OTHER], 64 * 2);
    /* 3 rows x 2 heads x K and V x (16 bytes of codes and 2 scales) */
    near(c.bytes[BYTES_CACHE], 3 * 2 * 2 * 18);
    near(c.operations[PEAK_BF16], 2.0 * 3 * 256 * 64);
    near(c.operations[PEAK_INT8], 0);
    c = cost_of(&f, BENCH_ATTEND_IN, 1, &work);
    near(c.bytes[BYTES_LINEAR], (256 + 96) * 66);
    near(c.bytes[BYTES_INDEX_CACHE], 3 * 18);
    near(c.operations[PEAK_BF16], 2.0 * 3 * (256 + 96) * 64);
    c = cost_of(&f, BENCH_ATTEND_OUT, 0, &work);
    near(c.bytes[BYTES_LINEAR], 64 * 132);
    near(c.operations[PEAK_BF16], 2.0 * 3 * 64 * 128);
    c = cost_of(&f, BENCH_FEED_DENSE, 0, &work);
    near(c.bytes[BYTES_LINEAR], 192 * 66 + 64 * 99);
    near(c.operations[PEAK_BF16], 2.0 * 3 * 3 * 96 * 64);
    c = cost_of(&f, BENCH_HEAD, 0, &work);
    near(c.bytes[BYTES_HEAD], 100 * 64 * 2);
    near(c.operations[PEAK_BF16], 2.0 * 2 * 100 * 64);
    work.logit_rows = 0; /* nothing wants logits: the head is not read */
    near(bench_cost_bytes(&(bench_cost){0}), 0);
    c = cost_of(&f, BENCH_HEAD, 0, &work);
    near(bench_cost_bytes(&c), 0);
    c = cost_of(&f, BENCH_EMBED, 0, &work);
    near(bench_cost_bytes(&c), 3 * 64 * 2);
}

static void experts(void **state)
{
    (void)state;
    fixture f;
    make(&f);
    bench_work work = {.rows = 3, .experts = 4};
    bench_cost c = cost_of(&f, BENCH_EXPERTS, 1, &work);
    /* gate and up: 32 rows of 32 bytes and 4 scales; down: 64 rows of 16 and 2; a global scale each */
    near(c.bytes[BYTES_EXPERTS], 4 * (2 * 32 * 36 + 64 * 18 + 3 * 4));
    near(c.bytes[BYTES_LINEAR], 2 * 32 * 66 + 64 * 33);
    near(c.operations[PEAK_INT8], 2.0 * 3 * 2 * 3 * 32 * 64);
    near(c.operations[PEAK_BF16], 2.0 * 3 * 3 * 32 * 64);
    f.shape.activation = MOE_ACTIVATION_NONE;
    c = cost_of(&f, BENCH_EXPERTS, 1, &work);
    near(c.operations[PEAK_INT8], 0);
    near(c.operations[PEAK_BF16], 2.0 * 3 * 3 * 3 * 32 * 64);
    f.layer[1].shared_gate = f.layer[1].shared_up = f.layer[1].shared_down = (weight){0};
    c = cost_of(&f, BENCH_EXPERTS, 1, &work);
    near(c.bytes[BYTES_LINEAR], 0);
    c = cost_of(&f, BENCH_ROUTE, 1, &work);
    near(c.bytes[BYTES_ROUTER], 8 * 64 * 4);
    near(c.operations[PEAK_FP32], 2.0 * 3 * 8 * 64);
}

static void experts_counted(void **state)
{
    (void)state;
    fixture f;
    uint8_t seen[8];
    make(&f);
    const int32_t routes[] = {0, 3, 3, 7, 0, 7};
    assert_int_equal(bench_count_experts(&f.model, 3, routes, seen), 3);
    assert_int_equal(bench_count_experts(&f.model, 1, routes, seen), 2);
}

/* Rows at positions 256 and 257 of sequence 0 and at 5 of sequence 1; a padding row between them. */
static void attention_counted(void **state)
{
    (void)state;
    fixture f;
    make(&f);
    const int32_t sequence[] = {0, 0, -1, 1}, position[] = {256, 257, 0, 5};
    ops_rows rows = {.count = 4, .sequence = sequence, .position = position, .sequences = 2, .block_table_stride = 3};
    uint8_t seen[2 * 2 * 3];
    assert_int_equal(bench_count_scratch(&f.model, &rows), sizeof seen);
    const int32_t blocks[] = {
        0, 2,  1, 2,  /* 128 + 1 for each head */
        1, 2,  1, 2,  /* 128 + 2 */
        7, 7,  7, 7,  /* padding: not looked at */
        0, -1, 0, -1, /* 6 */
    };
    bench_work work = {.rows = 4};
    bench_count_attention(&f.model, &rows, blocks, seen, &work);
    assert_int_equal(work.attended, 2 * 129 + 2 * 130 + 2 * 6);
    /* head 0: blocks 0, 1 and two tokens of 2; head 1: block 1 and two of 2; sequence 1: six for each */
    assert_int_equal(work.cache_tokens, (128 + 128 + 2) + (128 + 2) + 2 * 6);
    /* three blocks are visible in sequence 0 and two are chosen, so its rows are scored; sequence 1 has one */
    assert_int_equal(work.scored, 257 + 258);
    assert_int_equal(work.index_tokens, 258);
    bench_cost c = cost_of(&f, BENCH_INDEX, 1, &work);
    near(c.bytes[BYTES_INDEX_CACHE], 258 * 18);
    near(c.operations[PEAK_INT16], 2.0 * 515 * 2 * 32);
    c = cost_of(&f, BENCH_ATTEND, 1, &work);
    near(c.bytes[BYTES_CACHE], 2.0 * 400 * 18);
    near(c.operations[PEAK_INT16], 2.0 * 530 * 2 * 32); /* q.k: two query heads a KV head; p.v as much in bf16 */
    near(c.operations[PEAK_BF16], 2.0 * 530 * 2 * 32);
    f.shape.read = READBACK_E4M3; /* keys that are no small integers */
    c = cost_of(&f, BENCH_ATTEND, 1, &work);
    near(c.operations[PEAK_INT16], 0);
    near(c.operations[PEAK_BF16], 2.0 * 2 * 530 * 2 * 32);
    f.shape.read = READBACK_EXACT;

    bench_count_attention(&f.model, &rows, NULL, seen, &work); /* dense: all tokens, nothing is scored */
    assert_int_equal(work.attended, 2 * 257 + 2 * 258 + 2 * 6);
    assert_int_equal(work.cache_tokens, 2 * 258 + 2 * 6);
    assert_int_equal(work.scored, 0);
    assert_int_equal(work.index_tokens, 0);
}

static void bounds(void **state)
{
    (void)state;
    double peaks[BENCH_PEAKS] = {[PEAK_INT8] = 15, [PEAK_INT16] = 50, [PEAK_BF16] = 10, [PEAK_FP32] = 20};
    bench_cost c = {.bytes = {[BYTES_HEAD] = 30, [BYTES_CACHE] = 10},
                    .operations = {[PEAK_INT8] = 15, [PEAK_BF16] = 40, [PEAK_FP32] = 20}};
    assert_int_equal(bench_cost_peak(PEAK_INT8, peaks), PEAK_INT8); /* a peak of its own, if slow */
    assert_int_equal(bench_cost_peak(PEAK_INT16, peaks), PEAK_INT16);
    assert_int_equal(bench_cost_peak(PEAK_BF16, peaks), PEAK_FP32);
    near(bench_cost_bytes(&c), 40);
    near(bench_cost_read_seconds(&c, 8), 5);
    near(bench_cost_peak_seconds(&c, peaks), 1 + 2 + 1); /* bf16 products by the faster fp32 */
    near(bench_cost_bound(&c, 8, peaks), 5);
    near(bench_cost_bound(&c, 80, peaks), 4);
    peaks[PEAK_BF16] = 40;
    near(bench_cost_peak_seconds(&c, peaks), 1 + 1 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(projections),       cmocka_unit_test(experts), cmocka_unit_test(experts_counted),
        cmocka_unit_test(attention_counted), cmocka_unit_test(bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
