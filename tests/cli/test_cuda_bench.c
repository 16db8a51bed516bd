/* The benches on a GPU, here the emulated one, in a small geometry: what they count, what their shares are of, their JSON. */
#include "backend/cuda_test.h"

#include <dirent.h>
#include <jansson.h>
#include <unistd.h>

#include "cli/bench.h"
#include "cli/cli.h"

#define SMALL "--read-buffer", "64KiB", "--runs", "1"

/* What a command writes to stdout, as JSON; its exit status is 0. */
static json_t *run_json(int (*command)(int argc, char **argv), const char *const *args)
{
    char *argv[32];
    int argc = 0;
    for (; args[argc]; argc++) argv[argc] = (char *)(uintptr_t)args[argc];
    argv[argc] = NULL;
    FILE *out = tmpfile();
    assert_non_null(out);
    fflush(stdout);
    int kept = dup(1);
    dup2(fileno(out), 1);
    int code = command(argc, argv);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    assert_int_equal(code, 0);
    rewind(out);
    json_error_t where;
    json_t *root = json_loadf(out, 0, &where);
    if (!root) fail_msg("line %d: %s", where.line, where.text);
    fclose(out);
    return root;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("there is no number %s", key);
    return json_number_value(value);
}

/* With the files in it. */
static void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char name[800];
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.') remove(name);
    }
    closedir(d);
    remove(path);
}

static const char *text(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) fail_msg("there is no text %s", key);
    return json_string_value(value);
}

static const json_t *row_of(const json_t *root, const char *name, int batch)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(root, "rows"), i, row)
        if (!strcmp(text(row, "name"), name) && (batch < 0 || number(row, "batch") == batch)) return row;
    fail_msg("there is no row %s of %d", name, batch);
    return NULL;
}

static void check_head(const json_t *root, const char *part)
{
    const json_t *card = json_object_get(json_object_get(root, "machine"), "gpu");
    assert_string_equal(text(root, "bench"), part);
    assert_non_null(text(root, "commit"));
    assert_int_equal(strlen(text(root, "time")), strlen("2026-01-01T00:00:00Z"));
    assert_non_null(card);
    assert_true(*text(card, "name"));
    assert_true(number(card, "multiprocessors") > 0 && number(card, "cache_bytes") > 0);
    assert_non_null(text(card, "archs"));
    if (!cuda_test_on_gpu) assert_string_equal(text(card, "name"), "emulated");
}

static void test_memory(void **state)
{
    (void)state;
    const char *args[] = {"memory", "--device", "cuda", "--json", "--read-buffer", "256KiB", "--runs", "3", NULL};
    json_t *root = run_json(bench_memory, args);
    check_head(root, "memory");
    static const char *const names[] = {"read", "write", "copy, both directions", "from the host", "bf16 mma.sync", "fp32",
                                        "clock"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *row = row_of(root, names[i], -1);
        assert_true(0 < number(row, "slowest") && number(row, "slowest") <= number(row, "per_second"));
        assert_true(number(row, "per_second") <= number(row, "fastest"));
    }
    json_decref(root);
}

/* A share is what the row's own bytes and operations take at the bounds of the GPU. */
static void check_share(const json_t *root, const json_t *row)
{
    double bytes = number(row, "bytes") / number(row, "read_bytes_per_second");
    double operations = number(row, "operations");
    const json_t *bounds = json_object_get(root, "gpu_bounds");
    assert_true(number(row, "seconds") > 0 && number(row, "launches") > 0);
    if (strcmp(text(row, "bound"), "bytes") == 0)
        assert_float_equal(number(row, "bound_seconds") / bytes, 1, 1e-6);
    else
        assert_true(number(row, "bound_seconds") > 0 && operations > 0);
    assert_float_equal(number(row, "bound_fraction") * number(row, "seconds") / number(row, "bound_seconds"), 1, 1e-6);
    assert_true(number(bounds, "read_bytes_per_second") > 0 && number(bounds, "mma_bf16_operations_per_second") > 0);
}

enum { HEADS = 4, KV = 2, DIM = 32, TOP = 4, HIDDEN = 64, WIDTH = 32, EXPERTS = 8, USED = 2, VOCAB = 320, CONTEXT = 1280 };

/* A config of these sizes as the released model's, in a file. */
static const char *geometry_file(void)
{
    static char path[256];
    json_error_t where;
    char from[512];
    snprintf(from, sizeof from, "%s/models/m3-nano/config.json", TEST_SOURCE);
    json_t *root = json_load_file(from, 0, &where);
    assert_non_null(root);
    json_t *t = json_object_get(root, "text_config");
    const struct {
        const char *key;
        int value;
    } sizes[] = {{"hidden_size", HIDDEN}, {"num_attention_heads", HEADS}, {"num_key_value_heads", KV}, {"head_dim", DIM},
                 {"intermediate_size", WIDTH}, {"dense_intermediate_size", 2 * WIDTH}, {"shared_intermediate_size", WIDTH},
                 {"num_local_experts", EXPERTS}, {"num_experts_per_tok", USED}, {"vocab_size", VOCAB}, {"rotary_dim", DIM / 2},
                 {"bos_token_id", 1}, {"eos_token_id", 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        json_object_set_new(t, sizes[i].key, json_integer(sizes[i].value));
    json_t *sparse = json_object_get(t, "sparse_attention_config");
    json_object_set_new(sparse, "sparse_index_dim", json_integer(DIM));
    json_object_set_new(sparse, "sparse_num_index_heads", json_integer(KV));
    json_object_set_new(sparse, "sparse_topk_blocks", json_integer(TOP));
    snprintf(path, sizeof path, "%s/test_cuda_bench-%d.json", TEST_BINARY, (int)getpid());
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return path;
}

static void expect(const json_t *root, const char *name, int rows, double bytes, double operations)
{
    const json_t *row = row_of(root, name, rows);
    if (number(row, "bytes") != bytes || number(row, "operations") != operations)
        fail_msg("%s of %d: %.0f bytes and %.0f operations, not %.0f and %.0f", name, rows, number(row, "bytes"),
                 number(row, "operations"), bytes, operations);
}

/* NVFP4: a head vector of keys or values, a page of both; MXFP8: a weight; the three weights of a routed expert. */
static const double vector = DIM / 2 + DIM / 16, page = 2 * 128 * (DIM / 2 + DIM / 16);
static double eight(double rows, double cols)
{
    return rows * cols * 33 / 32;
}
static const double expert = 3.0 * (HIDDEN * WIDTH * 9 / 16 + 4);

static void check_attention(const json_t *root)
{
    for (int kv = 1; kv <= KV; kv++) {
        char name[64];
        const char *s = kv > 1 ? "s" : "";
        double pages = 4.0 * DIM * 128 * (HEADS / KV); /* operations of one */
        snprintf(name, sizeof name, "index_select, %d head%s, 8 x 1", kv, s);
        expect(root, name, 8, 8 * CONTEXT * vector, 2.0 * DIM * kv * 8 * CONTEXT);
        snprintf(name, sizeof name, "index_score, %d head%s, 1 x 1", kv, s);
        expect(root, name, 1, CONTEXT * vector, 2.0 * DIM * kv * CONTEXT);
        /* Rows at the last eight positions. */
        snprintf(name, sizeof name, "index_score, %d head%s, 1 x 8", kv, s);
        expect(root, name, 8, CONTEXT * vector, 2.0 * DIM * kv * (8 * CONTEXT - 28));
        snprintf(name, sizeof name, "attend, %d KV head%s, 8 x 1", kv, s);
        expect(root, name, 8, 8 * kv * TOP * page, 8 * kv * TOP * pages);
        snprintf(name, sizeof name, "attend verify alike, %d KV head%s, 2 x 4", kv, s);
        expect(root, name, 8, 2 * kv * TOP * page, 8 * kv * TOP * pages);
        /* Lists of their own share blocks: a page counts once. */
        snprintf(name, sizeof name, "attend verify, %d KV head%s, 1 x 8", kv, s);
        const json_t *row = row_of(root, name, 8);
        assert_float_equal(number(row, "operations"), 8 * kv * TOP * pages, 0);
        assert_true(number(row, "bytes") > kv * TOP * page && number(row, "bytes") <= kv * (CONTEXT / 128) * page);
        assert_float_equal(fmod(number(row, "bytes"), page), 0, 0);
    }
}

static void check_layers(const json_t *root)
{
    double shared = 3 * eight(HIDDEN, WIDTH), router = 4 * HIDDEN * EXPERTS + 2 * HIDDEN;
    double row = 2.0 * (3 * HIDDEN * WIDTH * (USED + 1) + HIDDEN * EXPERTS); /* operations */
    expect(root, "moe layer W4A4, 2 experts", 1, 2 * expert + shared + router, row);
    size_t i;
    const json_t *at;
    int found = 0;
    json_array_foreach(json_object_get(root, "rows"), i, at) {
        double experts;
        if (sscanf(text(at, "name"), "moe layer W4A4, %lf experts", &experts) != 1) continue;
        expect(root, text(at, "name"), (int)number(at, "batch"), experts * expert + shared + router, row * number(at, "batch"));
        assert_true(experts >= USED && experts <= EXPERTS && fmod(2 * experts, 1) == 0);
        found++;
    }
    assert_int_equal(found, 4);
    double out = HEADS * DIM + 2 * KV * DIM + KV * DIM + DIM;
    expect(root, "attend_in MXFP8", 8, eight(out, HIDDEN) + 2 * HIDDEN + 8 * (2 * KV + 1) * vector, 2 * out * HIDDEN * 8);
    expect(root, "head bf16", 8, 2.0 * HIDDEN * VOCAB, 2.0 * HIDDEN * VOCAB * 8);
    expect(root, "sample, top-k 40, top-p 0.95", 8, 4.0 * VOCAB * 8, 0);
    /* Five layers of the target's heads, all in fp8. */
    double keys = 0;
    for (int k = 0; k < 7; k++) keys += CONTEXT - 1 - k;
    expect(root, "draft attention fp8, 8 x 7", 56, 8.0 * 2 * (CONTEXT - 1) * KV * DIM, 8 * 4.0 * keys * HEADS * DIM);
    assert_int_equal(number(row_of(root, "draft attention fp8, 1 x 7", 7), "launches"), 10);
}

static void test_lines(void **state)
{
    (void)state;
    const char *file = geometry_file();
    const char *args[] = {"kernels", file, "--device", "cuda", "--json", "--only",
                          "linears,index,attend,prefill,moe,qkv,head,sampling,draft", "--rows", "1,3", "--context", "1280",
                          "--most-rows", "8",
                          "--layers", "2", SMALL, NULL};
    json_t *root = run_json(bench_kernels, args);
    remove(file);
    check_head(root, "kernels");
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(root, "rows"), i, row)
        if (json_object_get(row, "launches")) check_share(root, row);
    static const char *const linears[] = {"attend_out MXFP8", "feed_dense MXFP8", "experts W4A4", "experts W4A16"};
    for (i = 0; i < sizeof linears / sizeof *linears; i++) {
        row = row_of(root, linears[i], 3);
        assert_true(number(row, "bound_fraction") > 0 && number(row, "error") < 0.2);
        assert_float_equal(number(row, "operations") / number(row_of(root, linears[i], 1), "operations"), 3, 1e-9);
    }
    check_attention(root);
    check_layers(root);
    json_decref(root);
}

/* Whole steps by both clocks, and operations between the marks of the same record. */
static void test_steps(void **state)
{
    (void)state;
    const char *file = geometry_file();
    char folder[300];
    snprintf(folder, sizeof folder, "%s.model", file);
    const char *synth[] = {"synth", file, folder, "--no-drafter", "--layers", "3", "--dense-layers", "1", NULL};
    char *argv[16];
    int argc = 0;
    for (; synth[argc]; argc++) argv[argc] = (char *)(uintptr_t)synth[argc];
    assert_int_equal(cmd_synth(argc, argv), 0);
    remove(file);
    for (int prefill = 0; prefill < 2; prefill++) {
        const char *args[] = {prefill ? "prefill" : "decode", folder, "--device", "cuda", "--json", "--context", "300", "--batch",
                              prefill ? "17" : "2", "--by-kernel", SMALL, NULL};
        json_t *root = run_json(prefill ? bench_prefill : bench_decode, args);
        check_head(root, args[0]);
        const json_t *row = json_array_get(json_object_get(root, "rows"), 0), *op;
        double read = number(row, "read_bytes_per_second"), bytes = 0, seconds = 0;
        size_t i;
        assert_true(number(row, "host_seconds") > 0 && number(row, "launches") > 20);
        assert_float_equal(number(row, "tokens_per_second") * number(row, "seconds") / number(row, "batch"), 1, 1e-6);
        assert_float_equal(number(row, "host_bound_fraction") * number(row, "host_seconds"), number(row, "bound_seconds"),
                           1e-6 * number(row, "bound_seconds"));
        json_array_foreach(json_object_get(row, "by_operation"), i, op) {
            const json_t *value;
            const char *kind;
            double own = 0;
            json_object_foreach((json_t *)(uintptr_t)json_object_get(op, "bytes"), kind, value) own += json_number_value(value);
            bytes += own;
            seconds += number(op, "seconds");
            assert_true(number(op, "seconds") > 0);
            if (!strcmp(text(op, "name"), "attend_in")) assert_int_equal(number(op, "calls"), 3);
        }
        assert_true(seconds > 0);
        int launches = 0;
        double last = INFINITY;
        json_array_foreach(json_object_get(row, "by_kernel"), i, op) {
            launches += (int)number(op, "launches");
            assert_true(number(op, "seconds") > 0 && number(op, "seconds") <= last && !strncmp(text(op, "name"), "hy_", 3));
            last = number(op, "seconds");
        }
        assert_int_equal(launches, number(row, "launches"));
        assert_float_equal(number(row, "read_bound_seconds") * read / bytes, 1, 0.5); /* two records, two moments of a host */
        assert_true(number(json_object_get(root, "gpu_bounds"), "fp32_operations_per_second") > 0);
        json_decref(root);
    }
    remove_folder(folder);
}

static void test_refused(void **state)
{
    (void)state;
    const char *args[][8] = {{"kernels", "--device", "cuda", "--only", "abacus"},
                             {"kernels", "--device", "cuda", "--only", "attention"},
                             {"kernels", "--only", "moe"},
                             {"kernels", "--device", "cuda", "--layers", "0"}};
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        char *argv[8];
        int argc = 0;
        for (; argc < 8 && args[i][argc]; argc++) argv[argc] = (char *)(uintptr_t)args[i][argc];
        assert_int_equal(bench_kernels(argc, argv), 2);
    }
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory), cmocka_unit_test(test_lines),
                                       cmocka_unit_test(test_steps), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
