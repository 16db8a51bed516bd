/*
 * A model of random weights on the cuda backend, which makes them in the GPU's memory: all that a trace of it sees is, to the
 * bit, what a checkpoint with the same seed in files gives there; and it chooses the blocks and routes that the CPU's does.
 */
#include "backend/cuda_test.h"

#include "checkpoint/synth.h"
#include "model/identity.h"
#include "model/model.h"
#include "model/trace.h"

#include <unistd.h>

enum { TOKENS = 5 };
static char work[64];

static hy_model *open_model(const char *path, const char *backend, const char *format, uint64_t seed, const char *drafter)
{
    hy_model_options o = {.backend = backend, .load_format = format, .dummy_seed = seed, .threads = 2, .drafter = drafter};
    hy_model *model = NULL;
    hy_error err = {0};
    check(hy_model_open(path, &o, &model, &err), &err);
    return model;
}

static trace *run(const hy_model *model)
{
    static const int32_t ids[TOKENS] = {3, 71, 0, 12, 44};
    trace_plan plan = {0};
    trace_options options = {0};
    trace *t = NULL;
    hy_error err = {0};
    check(trace_plan_ids(ids, TOKENS, false, &plan, &err), &err);
    check(trace_run(model, &plan, &options, &t, &err), &err);
    trace_plan_free(&plan);
    return t;
}

static bool same(const trace *a, const trace *b)
{
    assert_int_equal(trace_count(a), trace_count(b));
    for (size_t i = 0; i < trace_count(a); i++) {
        const tensor *x = trace_at(a, i), *y = trace_at(b, i);
        if (x->bytes != y->bytes || memcmp(x->data, y->data, x->bytes) != 0) return false;
    }
    return true;
}

static void files_and_made_ones(void **state)
{
    (void)state;
    config c;
    hy_error err = {0};
    char folder[96], command[256];
    assert_true(config_known("m3.1-flash", &c));
    check(config_slice(&c, 2, 1, &err), &err);
    c.hidden = 128, c.vocab = 600, c.heads = 4, c.kv_heads = 2, c.index_heads = 2, c.bos = 1, c.eos = 2;
    c.experts = 3, c.experts_per_token = 2, c.expert_width = 64, c.shared_width = 64, c.dense_width = 512;
    c.image_token = 3, c.video_token = 4, c.vision_layers = 0;
    snprintf(folder, sizeof folder, "%s/files", work);
    check(synth_write(&c, folder, &(synth_options){.scheme = SCHEME_M31, .seed = 4, .drafter = true}, &err), &err);
    hy_model *files = open_model(folder, "cuda", "auto", 0, "on");
    trace *wanted = run(files);
    hy_model_info info;
    hy_model_describe(files, &info);
    assert_true(info.load_bytes > 100000 && info.load_seconds > 0);
    hy_model_close(files);
    /* What is there is not read. */
    snprintf(command, sizeof command, "rm %s/*.safetensors %s/dspark/*.safetensors", folder, folder);
    assert_int_equal(system(command), 0);
    hy_model *dummy = open_model(folder, "cuda", "dummy", 4, "on"), *cpu = open_model(folder, "cpu", "dummy", 4, "on");
    hy_model_describe(dummy, &info);
    assert_string_equal(info.load_way, "made on the GPU");
    trace *got = run(dummy), *of_cpu = run(cpu);
    assert_true(same(wanted, got));
    int choices = 0;
    for (size_t i = 0; i < trace_count(got); i++) {
        const tensor *x = trace_at(got, i), *y = trace_at(of_cpu, i);
        if (x->dtype != TENSOR_I32 && x->dtype != TENSOR_I64) continue;
        assert_memory_equal(x->data, y->data, x->bytes);
        choices++;
    }
    assert_true(choices > 0);
    hy_model *other = open_model(folder, "cuda", "dummy", 5, "off");
    trace *others = run(other);
    assert_false(same(wanted, others));
    uint8_t ids[2][32];
    check(model_identity(dummy, ids[0], &err), &err);
    check(model_identity(other, ids[1], &err), &err);
    assert_memory_not_equal(ids[0], ids[1], 32);
    trace_close(wanted), trace_close(got), trace_close(of_cpu), trace_close(others);
    hy_model_close(dummy), hy_model_close(cpu), hy_model_close(other);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(work, "/tmp/hayate-dummy-XXXXXX");
    return mkdtemp(work) ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", work);
    return system(command);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_and_made_ones)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
