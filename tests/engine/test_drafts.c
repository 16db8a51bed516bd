/*
 * Drafts in the engine, over the fake model: whatever the drafter says, answers are those without drafts; what is accepted is
 * counted; rows, blocks and ends of answers stay within their limits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "engine/fake_engine.h"

enum { COUNT = 12, MADE = 60 };

static int32_t prompt[FAKE_MAX_LEN];

static int open_model(void **state)
{
    (void)state;
    fake.script = NULL, fake.nan_after = -1, fake.wrong = 0;
    atomic_store(&fake.fail_steps, 0);
    atomic_store(&fake.bad_rows, 0);
    atomic_store(&fake.delay_us, 0);
    atomic_store(&fake.most_rows, 0);
    atomic_store(&fake.most_drafts, 0);
    model = fake_model_open(true);
    for (int i = 0; i < FAKE_MAX_LEN; i++) prompt[i] = 2 + i % 250;
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    if (engine) hy_engine_close(engine);
    engine = NULL;
    fake_model_close(model);
    return 0;
}

static hy_request_options options(int i)
{
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = prompt + 5 * i, o.prompt_count = (size_t)(100 + 9 * i);
    o.sampling.max_tokens = MADE - i % 3, o.sampling.ignore_eos = i % 4 != 0, o.sampling.seed = 11 + i;
    o.sampling.temperature = i % 3 == 0 ? 0 : i % 3 == 1 ? 0.7f : 1;
    if (i % 5 == 1) o.sampling.repetition_penalty = 1.2f, o.sampling.frequency_penalty = 0.5f;
    if (i % 5 == 2) o.sampling.top_k = 5, o.sampling.min_tokens = 20;
    /* All rows of a step that verifies tell of their own token: few best ones, many, those of ids. */
    static const int32_t ids[] = {3, 77, 200};
    if (i % 5 == 3) o.sampling.logprobs = 4;
    if (i % 5 >= 3) o.sampling.logprob_ids = ids, o.sampling.logprob_id_count = 3;
    if (i % 5 == 4) o.sampling.logprobs = 30;
    return o;
}

static hy_request *submit(hy_request_options o)
{
    hy_request *r = NULL;
    hy_error err = {0};
    if (hy_engine_submit(engine, &o, &r, &err) != HY_OK) fail_msg("%s", err.message);
    return r;
}

static hy_result result(const hy_request *r)
{
    hy_result out;
    hy_request_result(r, &out);
    return out;
}

typedef struct answer {
    int32_t ids[MADE];
    size_t count;
    hy_finish finish;
    hy_logprob logprobs[MADE][1 + 30 + 3];
    int32_t preemptions;
} answer;

static bool keep(void *user, const hy_event *e)
{
    answer *a = user;
    for (size_t i = 0; i < e->id_count; i++) {
        a->ids[a->count] = e->ids[i];
        size_t each = e->logprobs_per_token;
        if (e->logprobs) memcpy(a->logprobs[a->count], e->logprobs + i * each, each * sizeof *e->logprobs);
        a->count++;
    }
    a->finish = e->finish;
    return true;
}

/* All at once, or one after the other. */
static void run_all(answer *out, bool together)
{
    hy_request *r[COUNT];
    memset(out, 0, COUNT * sizeof *out);
    for (int i = 0; i < COUNT; i++) {
        hy_request_options o = options(i);
        o.on_event = keep, o.user = &out[i];
        r[i] = submit(o);
        if (!together) hy_request_wait(r[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(hy_request_wait(r[i]), HY_OK);
        out[i].preemptions = result(r[i]).preemptions;
        hy_request_close(r[i]);
    }
}

static void expect_same(const answer *a, const answer *b)
{
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(a[i].count, b[i].count);
        assert_memory_equal(a[i].ids, b[i].ids, a[i].count * sizeof *a[i].ids);
        assert_memory_equal(a[i].logprobs, b[i].logprobs, sizeof a[i].logprobs);
        assert_int_equal(a[i].finish, b[i].finish);
    }
}

static answer plain[COUNT], drafted[COUNT];

static void test_same_answers(void **state)
{
    (void)state;
    engine_start((hy_engine_options){0});
    run_all(plain, false);
    assert_int_equal(stats().draft_rounds, 0);
    close_engine();
    static const int drafts[] = {1, 3, 8}, wrongs[] = {0, 1, 2, 5};
    for (int d = 0; d < 3; d++)
        for (int w = 0; w < 4; w++)
            for (int kind = 0; kind < 4; kind++) {
                fake.wrong = wrongs[w];
                hy_engine_options o = {.speculation.drafts = drafts[d], .max_num_batched_tokens = kind == 1 ? 17 : 0};
                if (kind == 2) o.cache_bytes = 6 * model->layout.row_bytes;
                if (kind == 3) o.max_num_seqs = 1;
                engine_start(o);
                run_all(drafted, kind != 0);
                expect_same(plain, drafted);
                hy_engine_stats s = stats();
                assert_true(s.speculates && s.draft_rounds > 0 && s.drafts > 0);
                if (wrongs[w] == 1) assert_int_equal(s.drafts_accepted, 0);
                if (wrongs[w] != 1) assert_true(s.drafts_accepted > 0);
                assert_int_equal(s.drafts_accepted_at[0] <= s.draft_rounds, 1);
                uint64_t sum = 0;
                for (int i = 0; i < HY_MAX_DRAFTS; i++) sum += s.drafts_accepted_at[i];
                assert_int_equal(sum, s.drafts_accepted);
                int32_t preemptions = 0;
                for (int i = 0; i < COUNT; i++) preemptions += drafted[i].preemptions;
                assert_true((preemptions > 0) == (kind == 2));
                close_engine();
            }
}

/* A drafter that is always right: steps of 1 + g tokens, the last one cut to what may still come. */
static void test_counts(void **state)
{
    (void)state;
    engine_start((hy_engine_options){.speculation.drafts = 7});
    hy_request_options o = options(0);
    o.sampling.ignore_eos = true, o.sampling.max_tokens = 20; /* 1 of the prompt, 8, 8, and 3 of 1 + 2 drafts */
    hy_request *r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_OK);
    hy_result out = result(r);
    assert_int_equal(out.id_count, 20);
    assert_int_equal(out.draft_rounds, 3);
    assert_int_equal(out.drafts, 7 + 7 + 2);
    assert_int_equal(out.drafts_accepted, 16);
    hy_request_close(r);
    hy_engine_stats s = stats();
    assert_int_equal(s.steps, 4);
    assert_int_equal(s.rows, 100 + 8 + 8 + 3);
    assert_int_equal(s.generated_tokens, 20);
    assert_int_equal(s.drafts_accepted_at[6], 2);
    assert_int_equal(s.drafts_accepted_at[1], 3);
    close_engine();
}

/* A request may have fewer, or none. */
static void test_override(void **state)
{
    (void)state;
    engine_start((hy_engine_options){.speculation.drafts = 7});
    static const int asked[] = {-1, 2, 100, 0}, most[] = {0, 2, 7, 7};
    for (int i = 0; i < 4; i++) {
        hy_request_options o = options(0);
        o.drafts = asked[i], o.sampling.ignore_eos = true, o.sampling.max_tokens = 41;
        atomic_store(&fake.most_drafts, 0);
        hy_request *r = submit(o);
        assert_int_equal(hy_request_wait(r), HY_OK);
        assert_int_equal(atomic_load(&fake.most_drafts), most[i]);
        hy_request_close(r);
    }
    hy_request *r = NULL;
    hy_error err = {0};
    hy_request_options o = options(0);
    o.draft_method = "standard";
    assert_int_equal(hy_engine_submit(engine, &o, &r, &err), HY_BAD_INPUT);
    o.draft_method = "quick";
    assert_int_equal(hy_engine_submit(engine, &o, &r, &err), HY_BAD_INPUT);
    o.draft_method = "coupled";
    r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_OK);
    hy_request_close(r);
    close_engine();
}

/* The number follows the batch by the table. */
static void test_by_batch(void **state)
{
    (void)state;
    static const int table[] = {7, 3, 3, 0};
    engine_start((hy_engine_options){.speculation = {.drafts = 7, .by_batch = table, .by_batch_count = 4}});
    for (int n = 1; n <= 5; n++) {
        hy_request *r[5];
        atomic_store(&fake.most_drafts, 0);
        atomic_store(&fake.delay_us, 2000);
        for (int i = 0; i < n; i++) {
            hy_request_options o = options(i);
            o.prompt_count = 20, o.sampling.ignore_eos = true, o.sampling.max_tokens = MADE, o.sampling.repetition_penalty = 1;
            r[i] = submit(o);
        }
        for (int i = 0; i < n; i++) {
            assert_int_equal(hy_request_wait(r[i]), HY_OK);
            hy_request_close(r[i]);
        }
        int most = atomic_load(&fake.most_drafts);
        assert_true(n == 1 ? most == 7 : most <= 9); /* at the ends fewer are left */
    }
    close_engine();
}

/* An end inside what was accepted: nothing behind it is told. */
static void test_ends_inside(void **state)
{
    (void)state;
    static int32_t script[200];
    for (int i = 0; i < 200; i++) script[i] = i == 105 ? FAKE_EOS : 'a' + i % 20;
    fake.script = script, fake.script_count = 200;
    engine_start((hy_engine_options){.speculation.drafts = 8});
    hy_request_options o = options(0);
    o.sampling.ignore_eos = false, o.sampling.repetition_penalty = 1;
    hy_request *r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_OK);
    assert_int_equal(result(r).finish, HY_FINISH_STOP);
    assert_int_equal(result(r).id_count, 7); /* places 99 .. 105 */
    assert_int_equal(result(r).drafts_accepted, 6);
    hy_request_close(r);
    const char *stop[] = {"fg"}; /* inside a round: its first token is place 105 - 20 * k */
    o.sampling.ignore_eos = true, o.sampling.stop = stop, o.sampling.stop_count = 1;
    script[105] = 'f';
    r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_OK);
    assert_int_equal(result(r).finish, HY_FINISH_STOP);
    assert_int_equal(result(r).id_count, 8);
    assert_int_equal(result(r).text_length, 6);
    hy_request_close(r);
    close_engine();
}

/* A grammar holds for every row of a round, and for what the drafter did not know of it. */
static void test_grammar(void **state)
{
    (void)state;
    static const char regex[] = "(ab|b[c-f]+;|[0-9]{3}x)*";
    hy_grammar *g = NULL;
    hy_error err = {0};
    if (hy_grammar_compile(model, HY_GRAMMAR_REGEX, regex, strlen(regex), NULL, &g, &err) != HY_OK) fail_msg("%s", err.message);
    static char text[3][2][200];
    for (int drafts = 0; drafts < 2; drafts++) {
        engine_start((hy_engine_options){.speculation.drafts = 5 * drafts});
        for (int i = 0; i < 3; i++) {
            hy_request_options o = options(i);
            o.sampling.grammar = g, o.sampling.grammar_at_once = true, o.sampling.ignore_eos = false;
            o.sampling.min_tokens = 30;
            hy_request *r = submit(o);
            assert_int_equal(hy_request_wait(r), HY_OK);
            hy_result out = result(r);
            assert_true(out.text_length > 0 && out.text_length < 200);
            memcpy(text[i][drafts], out.text, out.text_length);
            hy_request_close(r);
        }
        assert_true((stats().drafts > 0) == (drafts == 1));
        close_engine();
    }
    for (int i = 0; i < 3; i++) assert_string_equal(text[i][0], text[i][1]);
    hy_grammar_close(g);
}

/* A row in the middle of a round without a finite logit fails its request and no other. */
static void test_nan(void **state)
{
    (void)state;
    static int32_t script[200];
    for (int i = 0; i < 200; i++) script[i] = i == 103 ? 254 : 'a' + i % 20;
    fake.script = script, fake.script_count = 200, fake.nan_after = 254;
    engine_start((hy_engine_options){.speculation.drafts = 8});
    hy_request_options o = options(0);
    o.sampling.repetition_penalty = 1;
    hy_request *r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_FAILED);
    assert_int_equal(result(r).id_count, 5);
    hy_request_close(r);
    close_engine();
}

static void test_refused(void **state)
{
    (void)state;
    static const float rising[] = {0.5f, 0.6f};
    static const int many[] = {9};
    const hy_speculation bad[] = {
        {.drafts = 9},
        {.drafts = -1},
        {.drafts = 17},
        {.drafts = 2, .method = "quick"},
        {.drafts = 2, .method = "synthetic"},
        {.drafts = 2, .method = "synthetic", .rates = rising},
        {.drafts = 2, .confidence = 0.5f},
        {.drafts = 2, .confidence = -1},
        {.drafts = 2, .by_batch = many, .by_batch_count = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hy_error err = {0};
        hy_engine_options o = {.speculation = bad[i]};
        assert_int_equal(hy_engine_open(model, &o, &engine, &err), HY_USAGE);
        assert_true(err.message[0]);
    }
    model->weights.shape.drafter = NULL;
    hy_engine_options o = {.speculation.drafts = 1};
    assert_int_equal(hy_engine_open(model, &o, &engine, NULL), HY_USAGE);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, open_model, close_model)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_same_answers), TEST(test_counts), TEST(test_override), TEST(test_by_batch),
        TEST(test_ends_inside),  TEST(test_nan),    TEST(test_refused), TEST(test_grammar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
