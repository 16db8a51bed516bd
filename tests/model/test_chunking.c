/*
 * However a prompt is cut into steps, and with however many threads: the same logits, to the bit, on every backend.
 *
 * hayate-test: slow
 */
#include "model/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct subject {
    const char *oracle;
    size_t tokens; /* of its prompt; more than index_top blocks where selection takes part */
    const char *main, *index;
    bool one_by_one;
} subject;

static const subject subjects[] = {
    {"m3-short", 200, "fp8", "bf16", true},
    {"m3-long", 530, "bf16", "nvfp4", false},
    {"m31-w4a4", 600, "nvfp4", "nvfp4", true},
};

static hy_error failure;
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        hy_status status_ = (call);                                                                                    \
        if (status_ != HY_OK) fail_msg("%s: %s", hy_status_name(status_), failure.message);                            \
    } while (0)

static hy_model *open_model(const subject *s, const char *backend, int workers)
{
    char path[512];
    snprintf(path, sizeof path, "%s/oracle/%s", TEST_DATA, s->oracle);
    hy_model_options options = {
        .backend = backend, .kv_cache_dtype = s->main, .indexer_kv_dtype = s->index, .threads = workers};
    hy_model *model = NULL;
    OK(hy_model_open(path, &options, &model, &failure));
    return model;
}

static trace_plan open_plan(const subject *s)
{
    char path[512];
    snprintf(path, sizeof path, "%s/oracle/%s/oracle.safetensors", TEST_DATA, s->oracle);
    safetensors *file = NULL;
    trace_plan whole = {0}, plan = {0};
    OK(safetensors_open(path, &file, &failure));
    OK(trace_plan_like(file, &whole, &failure));
    assert_true(whole.id_count >= s->tokens);
    OK(trace_plan_ids(whole.ids, s->tokens, false, &plan, &failure));
    trace_plan_free(&whole);
    safetensors_close(file);
    return plan;
}

static trace *run(const hy_model *model, const trace_plan *plan, const int32_t *chunks, size_t count)
{
    trace_options options = {.chunks = chunks, .chunk_count = count};
    trace *t = NULL;
    OK(trace_run(model, plan, &options, &t, &failure));
    return t;
}

/* Every tensor: logits of all rows, selected blocks, routes and their weights. */
static void assert_same(const trace *a, const trace *b, const char *how)
{
    assert_int_equal(trace_count(a), trace_count(b));
    for (size_t i = 0; i < trace_count(a); i++) {
        const tensor *x = trace_at(a, i), *y = trace_at(b, i);
        if (x->bytes != y->bytes || memcmp(x->data, y->data, x->bytes) != 0) fail_msg("%s differs %s", x->name, how);
    }
}

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 17, *state ^= *state << 5; /* xorshift32 of Marsaglia */
    return *state;
}

static void check_subject(const subject *s, const char *backend)
{
    enum { RANDOM_CUTS = 64 };
    static const struct {
        const char *how;
        int32_t sizes[6];
        size_t count;
    } cuts[] = {
        {"token by token", {1}, 1},     {"cut at 1", {1, 4096}, 2},
        {"cut at 127", {127, 4096}, 2}, {"cut at 128", {128, 4096}, 2},
        {"cut at 129", {129, 4096}, 2}, {"cut at 1, 128, 256, 385", {1, 127, 128, 129}, 4},
    };
    const int32_t whole = (int32_t)s->tokens;
    trace_plan plan = open_plan(s);
    hy_model *model = open_model(s, backend, 1);
    trace *one = run(model, &plan, &whole, 1);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        if (cuts[i].count == 1 && !s->one_by_one) continue;
        trace *other = run(model, &plan, cuts[i].sizes, cuts[i].count);
        assert_same(one, other, cuts[i].how);
        trace_close(other);
    }
    uint32_t state = 20011;
    for (int round = 0; round < 2; round++) {
        int32_t sizes[RANDOM_CUTS];
        for (int i = 0; i < RANDOM_CUTS; i++) sizes[i] = 1 + (int32_t)(next_random(&state) % 90);
        trace *other = run(model, &plan, sizes, RANDOM_CUTS);
        assert_same(one, other, "cut at random");
        trace_close(other);
    }
    hy_model *threaded = open_model(s, backend, 3);
    trace *other = run(threaded, &plan, NULL, 0);
    assert_same(one, other, "with three threads");
    trace_close(other);
    hy_model_close(threaded);
    trace_close(one);
    hy_model_close(model);
    trace_plan_free(&plan);
}

static void test_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) check_subject(&subjects[i], "reference");
}

static void test_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) check_subject(&subjects[i], "cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
