/*
 * The engine over real networks: the oracle's greedy tokens come out, and a request's tokens are the same alone, in a
 * batch, and however its prompt is cut into steps, on every backend.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"
#include "hayate.h"

#define ORACLES TEST_DATA "/oracle/"

typedef struct oracle {
    safetensors *file;
    const int32_t *ids, *greedy;
    size_t id_count, greedy_count;
} oracle;

static oracle open_oracle(const char *name)
{
    char path[512];
    hy_error err;
    oracle o = {0};
    snprintf(path, sizeof path, ORACLES "%s/oracle.safetensors", name);
    if (safetensors_open(path, &o.file, &err) != HY_OK) fail_msg("%s", err.message);
    const tensor *ids = safetensors_find(o.file, "input_ids"), *greedy = safetensors_find(o.file, "greedy_ids");
    assert_non_null(ids);
    assert_non_null(greedy);
    o.ids = (const int32_t *)ids->data, o.id_count = (size_t)ids->shape[0];
    o.greedy = (const int32_t *)greedy->data, o.greedy_count = (size_t)greedy->shape[0];
    return o;
}

static hy_model *open_model(const char *name, const char *backend, const oracle *like)
{
    char path[512];
    hy_model *m = NULL;
    hy_error err = {0};
    snprintf(path, sizeof path, ORACLES "%s", name);
    hy_model_options options = {.backend = backend, .max_model_len = 2048, .threads = 2};
    if (like) {
        options.kv_cache_dtype = safetensors_metadata(like->file, "kv_cache_dtype");
        options.indexer_kv_dtype = safetensors_metadata(like->file, "indexer_kv_dtype");
        options.readback = safetensors_metadata(like->file, "readback");
        options.moe_activation = safetensors_metadata(like->file, "moe_activation");
    }
    if (hy_model_open(path, &options, &m, &err) != HY_OK) fail_msg("%s", err.message);
    return m;
}

static hy_engine *open_engine(hy_model *m, int sequences, int rows)
{
    hy_engine *e = NULL;
    hy_error err = {0};
    hy_engine_options options = {.max_num_seqs = sequences, .max_num_batched_tokens = rows, .cache_bytes = 64 << 20};
    if (hy_engine_open(m, &options, &e, &err) != HY_OK) fail_msg("%s", err.message);
    return e;
}

static hy_request *submit(hy_engine *e, const hy_request_options *o)
{
    hy_request *r = NULL;
    hy_error err = {0};
    if (hy_engine_submit(e, o, &r, &err) != HY_OK) fail_msg("%s", err.message);
    return r;
}

/* ---- The oracle's tokens -------------------------------------------------------------------------------------- */

static void greedy_as_the_oracle(const char *name, int rows)
{
    oracle o = open_oracle(name);
    hy_model *m = open_model(name, "reference", &o);
    hy_engine *e = open_engine(m, 4, rows);
    hy_request_options options = hy_request_defaults(m);
    options.prompt_ids = o.ids, options.prompt_count = o.id_count;
    options.sampling.temperature = 0, options.sampling.ignore_eos = true;
    options.sampling.max_tokens = (int32_t)o.greedy_count;
    hy_request *r = submit(e, &options);
    assert_int_equal(hy_request_wait(r), HY_OK);
    hy_result result;
    hy_request_result(r, &result);
    assert_int_equal(result.id_count, o.greedy_count);
    for (size_t i = 0; i < o.greedy_count; i++) assert_int_equal(result.ids[i], o.greedy[i]);
    assert_int_equal(result.finish, HY_FINISH_LENGTH);
    assert_int_equal(result.text_length, 0);
    hy_request_close(r);
    hy_engine_close(e);
    hy_model_close(m);
    safetensors_close(o.file);
}

static void test_greedy_m3(void **state)
{
    (void)state;
    greedy_as_the_oracle("m3-short", 512);
    greedy_as_the_oracle("m3-short", 33);
}

static void test_greedy_m31(void **state)
{
    (void)state;
    greedy_as_the_oracle("m31-w4a4", 256);
}

/* ---- One request, one answer ---------------------------------------------------------------------------------- */

enum { REQUESTS = 7, TOKENS = 24 };

typedef struct answers {
    int32_t ids[REQUESTS][TOKENS];
    size_t count[REQUESTS];
} answers;

static hy_request_options request_number(const hy_model *m, const oracle *o, int i)
{
    static const size_t lengths[REQUESTS] = {150, 1, 127, 129, 64, 128, 5};
    hy_request_options options = hy_request_defaults(m);
    options.prompt_ids = o->ids + i, options.prompt_count = lengths[i];
    options.sampling.seed = 100 + i, options.sampling.max_tokens = TOKENS - i, options.sampling.ignore_eos = true;
    options.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
    options.sampling.top_p = i % 2 ? 0.95f : 1, options.sampling.top_k = i == 4 ? 20 : 0;
    options.sampling.repetition_penalty = i == 5 ? 1.2f : 1;
    return options;
}

static void keep(hy_request *r, answers *a, int i)
{
    assert_int_equal(hy_request_wait(r), HY_OK);
    hy_result result;
    hy_request_result(r, &result);
    a->count[i] = result.id_count;
    memcpy(a->ids[i], result.ids, result.id_count * sizeof(int32_t));
    hy_request_close(r);
}

static void same_alone_and_together(const char *name, const char *backend)
{
    static answers alone, together;
    oracle o = open_oracle(name);
    hy_model *m = open_model(name, backend, NULL);
    hy_engine *e = open_engine(m, 1, 512);
    for (int i = 0; i < REQUESTS; i++) {
        hy_request_options options = request_number(m, &o, i);
        keep(submit(e, &options), &alone, i);
    }
    hy_engine_close(e);
    static const int rows[] = {512, 61, 3};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        hy_request *r[REQUESTS];
        e = open_engine(m, REQUESTS, rows[k]);
        for (int i = 0; i < REQUESTS; i++) {
            hy_request_options options = request_number(m, &o, i);
            r[i] = submit(e, &options);
        }
        for (int i = 0; i < REQUESTS; i++) {
            keep(r[i], &together, i);
            assert_int_equal(together.count[i], TOKENS - i);
            assert_int_equal(together.count[i], alone.count[i]);
            assert_memory_equal(together.ids[i], alone.ids[i], alone.count[i] * sizeof(int32_t));
        }
        hy_engine_close(e);
    }
    hy_model_close(m);
    safetensors_close(o.file);
}

static void test_one_answer_on_the_cpu(void **state)
{
    (void)state;
    same_alone_and_together("m3-short", "cpu");
    same_alone_and_together("m31-w4a4", "cpu");
}

static void test_one_answer_on_the_reference(void **state)
{
    (void)state;
    same_alone_and_together("m3-short", "reference");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_m3),
        cmocka_unit_test(test_greedy_m31),
        cmocka_unit_test(test_one_answer_on_the_cpu),
        cmocka_unit_test(test_one_answer_on_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
