/* Opening models: what is resolved from the checkpoint, what options are refused, text without and with a tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/quantize.h"
#include "model/model.h"

static hy_error err;
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        hy_status status_ = (call);                                                                                    \
        if (status_ != HY_OK) fail_msg("%s: %s", hy_status_name(status_), err.message);                                \
    } while (0)

static const char *oracle(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/oracle/%s", TEST_DATA, name);
    return path;
}

static hy_model *open_model(const char *path, const hy_model_options *options)
{
    hy_model *m = NULL;
    OK(hy_model_open(path, options, &m, &err));
    return m;
}

static void refused(hy_model_options options, hy_status status, const char *words)
{
    hy_model *m = NULL;
    assert_int_equal(hy_model_open(oracle("m3-short"), &options, &m, &err), status);
    assert_null(m);
    if (!strstr(err.message, words)) fail_msg("no '%s' in: %s", words, err.message);
}

static void test_describe(void **state)
{
    (void)state;
    hy_model_info info;
    hy_model *m = open_model(oracle("m3-short"), NULL);
    hy_model_describe(m, &info);
    assert_string_equal(info.name, "m3-short");
    assert_string_equal(info.backend, "cpu");
    assert_string_equal(info.kv_cache_dtype, "bf16");
    assert_string_equal(info.indexer_kv_dtype, "bf16");
    assert_string_equal(info.readback, "exact");
    assert_string_equal(info.moe_activation, "none");
    assert_int_equal(info.layers, 3);
    assert_int_equal(info.max_model_len, 8192);
    assert_false(info.has_tokenizer);
    /* 3 layers of 2 heads of 128 in K and V, 2 index keys of 128, two bytes each. */
    assert_int_equal(info.cache_bytes_per_token, 3 * 2 * 2 * 256 + 2 * 256);
    /* Nothing is quantised: every element of the file is a weight. */
    uint64_t elements = 0, bytes = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(model_checkpoint(m), false); i++) {
        const tensor *t = checkpoint_tensor_at(model_checkpoint(m), i, false);
        elements += t->bytes / tensor_dtype_bytes(t->dtype), bytes += t->bytes;
    }
    assert_int_equal(info.parameters, elements);
    assert_int_equal(info.weight_bytes, bytes);
    assert_int_equal(model_generation_config(m)->eos_count, 1);
    assert_int_equal(model_generation_config(m)->eos[0], 2);
    assert_true(model_generation_config(m)->top_p == 1 && model_generation_config(m)->temperature == 1);
    hy_model_close(m);
    hy_model_close(NULL);
}

static void check_auto(const char *path, const char *cache, const char *activation)
{
    hy_model_info info;
    hy_model *m = open_model(path, NULL);
    hy_model_describe(m, &info);
    assert_string_equal(info.kv_cache_dtype, cache);
    assert_string_equal(info.indexer_kv_dtype, cache);
    assert_string_equal(info.moe_activation, activation);
    hy_model_close(m);
}

static char folder[512]; /* for what the tests write */

static void remove_all(const char *name)
{
    char command[1100];
    snprintf(command, sizeof command, "rm -rf '%s/%s'", folder, name);
    assert_int_equal(system(command), 0);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/test-model-XXXXXX", TEST_BINARY);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    remove_all("");
    return 0;
}

/* The released mixes: M3.1, M3 in bf16, M3-MXFP8; and NVFP4 in ModelOpt's names, which is none of them. */
static void test_auto_formats(void **state)
{
    (void)state;
    const struct {
        layout_scheme scheme;
        const char *cache, *activation;
    } mixes[] = {{SCHEME_M31, "nvfp4", "nvfp4"}, {SCHEME_MXFP8, "fp8", "none"}, {SCHEME_MODELOPT, "bf16", "none"}};
    check_auto(oracle("m31-w16"), "nvfp4", "nvfp4");
    check_auto(oracle("m3-dense"), "bf16", "none");
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        char path[600];
        checkpoint *source = NULL;
        snprintf(path, sizeof path, "%s/mix", folder);
        OK(checkpoint_open(oracle("m3-dense"), &source, &err));
        OK(quantize_run(source, path, &(quantize_options){.scheme = mixes[i].scheme}, &err));
        checkpoint_close(source);
        check_auto(path, mixes[i].cache, mixes[i].activation);
        remove_all("mix");
    }
}

static int lines;
static char last_line[256];

static void count_line(void *user, hy_log_level level, const char *line)
{
    (void)user;
    if (level != HY_LOG_WARNING) return;
    lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void test_fp32_cache(void **state)
{
    (void)state;
    hy_model_info info;
    hy_model_options options = {.kv_cache_dtype = "fp32", .indexer_kv_dtype = "fp8", .backend = "reference"};
    hy_log_set(count_line, NULL, HY_LOG_WARNING);
    hy_model *m = open_model(oracle("m3-short"), &options);
    hy_model_describe(m, &info);
    assert_string_equal(info.kv_cache_dtype, "fp32");
    assert_string_equal(info.indexer_kv_dtype, "fp8");
    hy_model_close(m);
    lines = 0;
    options.backend = "cpu";
    m = open_model(oracle("m3-short"), &options);
    hy_model_describe(m, &info);
    assert_string_equal(info.kv_cache_dtype, "bf16");
    assert_int_equal(lines, 1);
    assert_non_null(strstr(last_line, "--kv-cache-dtype fp32"));
    hy_model_close(m);
    hy_log_set(NULL, NULL, HY_LOG_ERROR);
}

static bool stop(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    (void)what, (void)done, (void)total, (void)unit;
    ++*(int *)user;
    return false;
}

static void test_options(void **state)
{
    (void)state;
    refused((hy_model_options){.backend = "gpu"}, HY_USAGE, "cpu, cuda, reference");
    refused((hy_model_options){.kv_cache_dtype = "int8"}, HY_USAGE, "auto, bf16, fp8, nvfp4");
    refused((hy_model_options){.indexer_kv_dtype = "int8"}, HY_USAGE, "--indexer-kv-dtype");
    refused((hy_model_options){.readback = "int8"}, HY_USAGE, "exact or e4m3");
    refused((hy_model_options){.moe_activation = "int8"}, HY_USAGE, "auto, nvfp4 or none");
    refused((hy_model_options){.attention = "sliding"}, HY_USAGE, "sparse or dense");
    refused((hy_model_options){.attention = "Dense"}, HY_USAGE, "'Dense'");
    refused((hy_model_options){.chat_template = "chatml"}, HY_USAGE, "chatml");
    refused((hy_model_options){.max_model_len = 8193}, HY_USAGE, "8192");
    refused((hy_model_options){.max_model_len = -1}, HY_USAGE, "-1");
    refused((hy_model_options){.threads = -1}, HY_USAGE, "-1");
    refused((hy_model_options){.cpu_pin = "maybe"}, HY_USAGE, "auto, on or off");
    refused((hy_model_options){.cpu_pin = "on", .threads = 4096}, HY_USAGE, "--threads");
    refused((hy_model_options){.tokenizer = "/no/such/file"}, HY_FAILED, "/no/such/file");
    int calls = 0;
    refused((hy_model_options){.on_progress = stop, .user = &calls}, HY_CANCELLED, "stopped");
    assert_int_equal(calls, 1);
    hy_model *m = NULL;
    assert_int_equal(hy_model_open("/no/such/folder", NULL, &m, NULL),
                     hy_model_open("/no/such/folder", NULL, &m, &err));
    assert_true(err.status == HY_FAILED || err.status == HY_BAD_MODEL);
    m = open_model(oracle("m3-short"), &(hy_model_options){.max_model_len = 100});
    assert_int_equal(model_max_len(m), 100);
    hy_model_close(m);
}

static void test_no_tokenizer(void **state)
{
    (void)state;
    hy_model *m = open_model(oracle("m3-short"), NULL);
    hy_ids ids = {0};
    char *text = NULL;
    assert_null(model_tokenizer(m));
    assert_int_equal(hy_tokenize(m, "a", 1, &ids, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "tokenizer"));
    assert_int_equal(hy_detokenize(m, (int32_t[]){1}, 1, true, &text, &err), HY_USAGE);
    assert_int_equal(hy_render_chat(m, "[]", NULL, NULL, &ids, &err), HY_USAGE);
    assert_int_equal(model_can_chat(m, &err), HY_USAGE);
    assert_null(text);
    assert_null(ids.data);
    hy_model_close(m);
}

/* A rank file of all bytes and `more` pairs of them; base64 of one and two bytes by hand. */
static const char *write_ranks(int more)
{
    static char path[600];
    const char *alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    snprintf(path, sizeof path, "%s/ranks.tiktoken", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 256; i++) fprintf(f, "%c%c== %d\n", alphabet[i >> 2], alphabet[(i & 3) << 4], i);
    for (int i = 0; i < more; i++) {
        int a = i / 16 + 'a', b = i % 16 + 'a';
        fprintf(f, "%c%c%c= %d\n", alphabet[a >> 2], alphabet[(a & 3) << 4 | b >> 4], alphabet[(b & 15) << 2], 256 + i);
    }
    fclose(f);
    return path;
}

static void test_no_path(void **state)
{
    (void)state;
    hy_model *m = NULL;
    assert_int_equal(hy_model_open(NULL, NULL, &m, &err), HY_USAGE);
    assert_int_equal(hy_model_open("", NULL, &m, &err), HY_USAGE);
    assert_null(m);
}

static void test_tokenizer(void **state)
{
    (void)state;
    hy_model *m = NULL;
    hy_model_options options = {.tokenizer = write_ranks(257)};
    assert_int_equal(hy_model_open(oracle("m3-short"), &options, &m, &err), HY_BAD_MODEL);
    assert_non_null(strstr(err.message, "513"));
    options.tokenizer = write_ranks(256);
    m = open_model(oracle("m3-short"), &options);
    hy_ids ids = {0};
    char *text = NULL;
    OK(hy_tokenize(m, "abz\n", 4, &ids, &err));
    assert_int_equal(ids.count, 3);
    assert_int_equal(ids.data[0], 257);
    assert_int_equal(ids.data[1], 'z');
    OK(hy_detokenize(m, ids.data, ids.count, true, &text, &err));
    assert_string_equal(text, "abz\n");
    free(text);
    text = (char *)8;
    static const int32_t outside[] = {-5, INT32_MIN, 513, INT32_MAX};
    hy_model_info info;
    hy_model_describe(m, &info);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        int32_t bad[] = {'a', outside[i] == 513 ? info.vocab : outside[i]};
        assert_int_equal(hy_detokenize(m, bad, 2, true, &text, &err), HY_BAD_INPUT);
        assert_non_null(strstr(err.message, "at place 1 is outside 0 .. "));
        assert_ptr_equal(text, (char *)8); /* untouched */
    }
    OK(hy_detokenize(m, (int32_t[]){info.vocab - 1}, 1, true, &text, &err)); /* padding */
    free(text);
    OK(hy_detokenize(m, NULL, 0, true, &text, &err));
    assert_string_equal(text, "");
    free(text);
    OK(hy_render_chat(m, "[{\"role\":\"user\",\"content\":\"hi\"}]", NULL, "{\"thinking_mode\":\"disabled\"}", &ids,
                      &err));
    OK(hy_detokenize(m, ids.data, ids.count, false, &text, &err));
    assert_non_null(strstr(text, "]~b]user\nhi[e~[\n]~b]ai\n</mm:think>"));
    free(text);
    assert_int_equal(hy_render_chat(m, NULL, NULL, NULL, &ids, &err), HY_BAD_INPUT);
    assert_int_equal(hy_render_chat(m, "[{]", NULL, NULL, &ids, &err), HY_BAD_INPUT);
    assert_int_equal(hy_render_chat(m, "[]", "[", NULL, &ids, &err), HY_BAD_INPUT);
    assert_int_equal(hy_render_chat(m, "[]", NULL, "{\"a\":1,\"a\":2}", &ids, &err), HY_BAD_INPUT);
    assert_int_equal(hy_tokenize(m, "\xFF", 1, &ids, &err), HY_BAD_INPUT);
    hy_ids_free(&ids);
    hy_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_describe), cmocka_unit_test(test_auto_formats), cmocka_unit_test(test_fp32_cache),
        cmocka_unit_test(test_options),  cmocka_unit_test(test_no_tokenizer), cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_no_path),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
