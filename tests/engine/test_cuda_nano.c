/*
 * The bundled model on the cuda backend: the tokens that the cpu backend gives, alone and together, with drafts and
 * without. On the emulated GPU a few tokens, with --gpu more of them.
 *
 * hayate-test: slow
 */
#include "backend/cuda_test.h"

enum { PROMPTS = 3, MOST = 96 };
static const char *const questions[PROMPTS] = {"What is 2 + 3?", "What is 48 + 96?", "Who are you?"};

typedef struct answer {
    int32_t ids[MOST];
    size_t count;
    float logprob[MOST];
} answer;

static int tokens = 4, asked = 2; /* of an emulated machine */

static hy_model *open_model(const char *backend, const char *drafter)
{
    hy_error err = {0};
    hy_model *model = NULL;
    hy_model_options options = {.backend = backend, .drafter = drafter, .max_model_len = 1024, .threads = 2};
    check(hy_model_open(TEST_SOURCE "/models/m3-nano", &options, &model, &err), &err);
    return model;
}

static bool keep(void *user, const hy_event *event)
{
    answer *a = user;
    for (size_t i = 0; i < event->id_count && a->count < MOST; i++) {
        a->ids[a->count] = event->ids[i];
        a->logprob[a->count++] = event->logprobs[i * event->logprobs_per_token].logprob;
    }
    return true;
}

/* `together`: all at once, else one after the other. */
static void ask(hy_model *model, int drafts, bool together, answer out[PROMPTS])
{
    hy_error err = {0};
    hy_engine *engine = NULL;
    hy_request *request[PROMPTS];
    hy_engine_options options = {.speculation = {.drafts = drafts}, .cache_bytes = 64 << 20};
    check(hy_engine_open(model, &options, &engine, &err), &err);
    for (int i = 0; i < asked; i++) {
        char message[256];
        hy_ids ids = {0};
        out[i].count = 0;
        snprintf(message, sizeof message, "[{\"role\":\"user\",\"content\":\"%s\"}]", questions[i]);
        check(hy_render_chat(model, message, NULL, "{\"thinking_mode\": \"disabled\"}", &ids, &err), &err);
        hy_request_options o = hy_request_defaults(model);
        o.prompt_ids = ids.data, o.prompt_count = ids.count;
        o.sampling.temperature = 0, o.sampling.max_tokens = tokens, o.sampling.logprobs = 0;
        o.on_event = keep, o.user = &out[i];
        check(hy_engine_submit(engine, &o, &request[i], &err), &err);
        if (!together) assert_int_equal(hy_request_wait(request[i]), HY_OK);
        hy_ids_free(&ids);
    }
    for (int i = 0; i < asked; i++) {
        if (together) assert_int_equal(hy_request_wait(request[i]), HY_OK);
        hy_request_close(request[i]);
    }
    hy_engine_close(engine);
}

static void expect_same(const answer *a, const answer *b)
{
    for (int i = 0; i < asked; i++) {
        assert_int_equal(a[i].count, b[i].count);
        assert_memory_equal(a[i].ids, b[i].ids, a[i].count * sizeof *a[i].ids);
        assert_memory_equal(a[i].logprob, b[i].logprob, a[i].count * sizeof *a[i].logprob);
    }
}

static void answers(void **state)
{
    (void)state;
    static answer cpu[PROMPTS], cuda[PROMPTS], other[PROMPTS];
    hy_model *model = open_model("cpu", "off");
    ask(model, 0, false, cpu);
    hy_model_close(model);
    model = open_model("cuda", "off");
    ask(model, 0, false, cuda);
    ask(model, 0, true, other);
    hy_model_close(model);
    expect_same(cuda, other);
    float worst = 0;
    for (int i = 0; i < asked; i++) {
        assert_true(cuda[i].count > 0);
        assert_int_equal(cpu[i].count, cuda[i].count);
        assert_memory_equal(cpu[i].ids, cuda[i].ids, cpu[i].count * sizeof *cpu[i].ids);
        for (size_t j = 0; j < cpu[i].count; j++) worst = fmaxf(worst, fabsf(cpu[i].logprob[j] - cuda[i].logprob[j]));
    }
    printf("# largest difference of a log-probability from the cpu's: %.2e\n", (double)worst);
    assert_true(worst < 0.1f);
}

static void drafts(void **state)
{
    (void)state;
    static answer plain[PROMPTS], drafted[PROMPTS];
    hy_model *model = open_model("cuda", "on");
    ask(model, 0, true, plain);
    ask(model, 3, true, drafted);
    hy_model_close(model);
    expect_same(plain, drafted);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (cuda_test_on_gpu) tokens = 64, asked = PROMPTS;
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers), cmocka_unit_test(drafts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
