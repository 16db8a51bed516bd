/* Many requests at once through the public functions: what is shared, who goes first, what is refused, what is too
 * late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "engine/fake_engine.h"

enum { COUNT = 8 };

static int32_t prompt[FAKE_MAX_LEN], other[FAKE_MAX_LEN];

static int open_model(void **state)
{
    (void)state;
    fake.script = NULL, fake.nan_after = -1;
    atomic_store(&fake.fail_steps, 0);
    atomic_store(&fake.bad_rows, 0);
    atomic_store(&fake.delay_us, 0);
    model = fake_model_open(true);
    for (int i = 0; i < FAKE_MAX_LEN; i++) prompt[i] = 2 + i % 250, other[i] = 2 + i * 7 % 250;
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    fake_let(-1); /* a test that failed may have left it standing */
    if (engine) hy_engine_close(engine);
    engine = NULL;
    fake_model_close(model);
    return 0;
}

static hy_request_options options(const int32_t *ids, int32_t count, int32_t made)
{
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = ids, o.prompt_count = (size_t)count;
    o.sampling.max_tokens = made, o.sampling.ignore_eos = true, o.sampling.seed = 11;
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

/* Waits until the engine has come to a step number. */
static void wait_steps(uint64_t steps)
{
    for (int i = 0; i < 600000 && stats().steps < steps; i++) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    assert_true(stats().steps >= steps);
}

/* ---- Sharing -------------------------------------------------------------------------------------------------- */

/* n answers to one prompt that come together: it is computed once, and each is what it would be alone. */
static void test_forks(void **state)
{
    (void)state;
    static int32_t alone[COUNT][20];
    engine_start((hy_engine_options){.prefix_caching = "off"});
    for (int i = 0; i < COUNT; i++) {
        hy_request_options o = options(prompt, 700, 20);
        o.choice = i;
        hy_request *r = submit(o);
        assert_int_equal(hy_request_wait(r), HY_OK);
        memcpy(alone[i], result(r).ids, sizeof alone[i]);
        assert_string_equal(result(r).reuse.miss, "off");
        hy_request_close(r);
        if (i > 0) assert_memory_not_equal(alone[i], alone[0], sizeof alone[i]);
    }
    close_engine();
    engine_start((hy_engine_options){.max_num_batched_tokens = 100});
    hy_request *r[COUNT];
    for (int i = 0; i < COUNT; i++) {
        hy_request_options o = options(prompt, 700, 20);
        o.choice = i;
        r[i] = submit(o);
    }
    int whole = 0;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(hy_request_wait(r[i]), HY_OK);
        assert_memory_equal(result(r[i]).ids, alone[i], sizeof alone[i]);
        whole += result(r[i]).reuse.tokens == 699 && result(r[i]).reuse.miss[0] == 0;
        hy_request_close(r[i]);
    }
    assert_int_equal(whole, COUNT - 1);
    hy_engine_stats s = stats();
    assert_int_equal(s.rows, 700 + COUNT - 1 + COUNT * 19); /* the last token of an answer is not computed */
    assert_int_equal(s.prompt_tokens, 700 * COUNT);
    assert_int_equal(s.prefix_queries, 700 * COUNT);
    assert_int_equal(s.prefix_hits, 699 * (COUNT - 1));
    assert_int_equal(s.misses[HY_MISS_NEW], 1);
    assert_int_equal(s.misses[HY_MISS_NONE], COUNT - 1);
    close_engine();
}

static void test_apart(void **state)
{
    (void)state;
    engine_start((hy_engine_options){0});
    uint64_t rows = 0;
    static const struct {
        const char *salt, *miss;
        int32_t found;
        bool apart;
    } cases[] = {{NULL, "new", 0, false}, {NULL, "", 299, false}, {NULL, "off", 0, true}, {"x", "salt", 0, false},
                 {"x", "", 299, false},   {"", "", 299, false},   {"x", "off", 0, true},  {"y", "salt", 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hy_request_options o = options(prompt, 300, 1);
        o.no_prefix_cache = cases[i].apart, o.cache_salt = cases[i].salt;
        hy_request *r = submit(o);
        assert_int_equal(hy_request_wait(r), HY_OK);
        assert_string_equal(result(r).reuse.miss, cases[i].miss);
        assert_int_equal(result(r).reuse.tokens, cases[i].found);
        assert_int_equal(stats().rows - rows, 300 - cases[i].found);
        rows = stats().rows;
        hy_request_close(r);
    }
    close_engine();
}

/* A conversation: each turn finds all that was said. */
static void test_turns(void **state)
{
    (void)state;
    engine_start((hy_engine_options){0});
    static int32_t talk[FAKE_MAX_LEN];
    int32_t count = 50;
    memcpy(talk, prompt, sizeof talk);
    for (int turn = 0; turn < 8; turn++) {
        hy_request *r = submit(options(talk, count, 77));
        assert_int_equal(hy_request_wait(r), HY_OK);
        /* The last token of the answer before was sampled and never computed. */
        assert_int_equal(result(r).reuse.tokens, turn == 0 ? 0 : count - 30 - 1);
        memcpy(talk + count, result(r).ids, 77 * sizeof *talk);
        count += 77;
        for (int i = 0; i < 30; i++) talk[count++] = 2 + (turn * 31 + i) % 200;
        hy_request_close(r);
    }
    close_engine();
}

/* ---- The first answer, as text, in the next prompt ------------------------------------------------------------ */

static void test_rendered(void **state)
{
    (void)state;
    engine_start((hy_engine_options){0});
    static int32_t next[400], script[239];
    for (int i = 0; i < 239; i++)
        script[i] = i == 238 ? FAKE_EOS : 'a' + i % 20; /* an answer of 39 tokens and its end */
    fake.script = script, fake.script_count = 239;
    hy_request_options first = options(prompt, 200, 60);
    first.sampling.ignore_eos = false, first.rendered = true;
    hy_request *r = submit(first);
    assert_int_equal(hy_request_wait(r), HY_OK);
    assert_int_equal(result(r).id_count, 40);
    memcpy(next, prompt, 200 * sizeof *next);
    memcpy(next + 200, result(r).ids, 40 * sizeof *next);
    for (int i = 240; i < 300; i++) next[i] = 9;
    hy_request_close(r);
    hy_request_options o = options(next, 300, 5);
    o.rendered = true;
    r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_OK);
    assert_int_equal(result(r).prompt_count, 300);
    assert_memory_equal(result(r).prompt_ids, next, 300 * sizeof *next);
    assert_int_equal(result(r).reuse.tokens, 239);
    hy_request_close(r);
    /* It comes back changed: what is before the change is found. */
    for (int i = 210; i < 239; i++) next[i] = 3;
    r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_OK);
    assert_int_equal(result(r).reuse.tokens, 210);
    hy_request_close(r);
    close_engine();
}

/* ---- A full cache --------------------------------------------------------------------------------------------- */

static void test_preemption(void **state)
{
    (void)state;
    static int32_t alone[COUNT][400];
    for (int crowd = 0; crowd < 2; crowd++) {
        engine_start((hy_engine_options){.cache_bytes = crowd ? 8 * model->layout.row_bytes : 0});
        hy_request *r[COUNT];
        int preemptions = 0;
        for (int i = 0; i < COUNT; i++) {
            r[i] = submit(options(prompt + 10 * i, 100 + i, 400));
            if (!crowd) hy_request_wait(r[i]);
        }
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(hy_request_wait(r[i]), HY_OK);
            assert_int_equal(result(r[i]).id_count, 400);
            preemptions += result(r[i]).preemptions;
            if (crowd)
                assert_memory_equal(alone[i], result(r[i]).ids, sizeof alone[i]);
            else
                memcpy(alone[i], result(r[i]).ids, sizeof alone[i]);
            hy_request_close(r[i]);
        }
        assert_int_equal(stats().preemptions, preemptions);
        assert_true(crowd ? preemptions > 0 : preemptions == 0);
        assert_int_equal(stats().generated_tokens, COUNT * 400);
        close_engine();
    }
}

/* ---- Order ---------------------------------------------------------------------------------------------------- */

static int order[COUNT], ordered;

static bool note_order(void *user, const hy_event *e)
{
    if (e->finish != HY_RUNNING) order[ordered++] = (int)(intptr_t)user;
    return true;
}

static void test_priority(void **state)
{
    (void)state;
    static const int32_t priorities[] = {9, 2, 1, 2, -3, 0};
    static const int expect[2][6] = {{0, 1, 2, 3, 4, 5}, {0, 4, 5, 2, 1, 3}}; /* the first one runs already */
    for (int p = 0; p < 2; p++) {
        engine_start((hy_engine_options){.max_num_seqs = 1, .scheduling_policy = p ? "priority" : "fcfs"});
        fake_let(1);
        hy_request *r[6];
        ordered = 0;
        for (int i = 0; i < 6; i++) {
            hy_request_options o = options(prompt, 20, i == 0 ? 40 : 2);
            o.priority = priorities[i], o.on_event = note_order, o.user = (void *)(intptr_t)i;
            r[i] = submit(o);
            if (i == 0) wait_steps(1);
        }
        fake_let(-1);
        for (int i = 0; i < 6; i++) assert_int_equal(hy_request_wait(r[i]), HY_OK);
        for (int i = 0; i < 6; i++) hy_request_close(r[i]);
        assert_memory_equal(order, expect[p], sizeof expect[p]);
        close_engine();
    }
}

/* ---- Refusals and ends ---------------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    (void)state;
    hy_error err = {0};
    const struct {
        hy_engine_options o;
        const char *part;
    } bad[] = {
        {{.scheduling_policy = "lifo"}, "scheduling_policy must be fcfs or priority, not \"lifo\""},
        {{.watermark = 0.6}, "watermark must be 0 .. 0.5"},
        {{.watermark = -0.1}, "watermark"},
        {{.watermark = NAN}, "watermark"},
        {{.cache_share = NAN}, "cache_share must be above 0 and at most 1, or 0 for 0.92"},
        {{.cache_share = -1}, "cache_share"},
        {{.cache_share = 5}, "cache_share"},
        {{.log_seconds = NAN}, "log_seconds must be a number of seconds"},
        {{.log_seconds = INFINITY}, "log_seconds"},
        {{.stall_seconds = NAN}, "stall_seconds must be a number of seconds"},
        {{.speculation.method = "quick"}, "the method is coupled, standard, block or synthetic"},
        {{.long_prefill_token_threshold = -1}, "long_prefill_token_threshold"},
        {{.prefix_caching = "maybe"}, "prefix_caching must be on or off"},
        {{.prefix_caching = "off", .offload_memory = 1 << 20}, "leave one of them out"},
        {{.offload_disk_bytes = 5}, "offload_disk"},
        {{.offload_memory = UINT64_MAX / 4}, "ask for less"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hy_status status = hy_engine_open(model, &bad[i].o, &engine, &err);
        assert_true(status == HY_USAGE || status == HY_NO_FIT);
        assert_null(engine);
        if (!strstr(err.message, bad[i].part)) fail_msg("'%s' has no '%s'", err.message, bad[i].part);
    }
    engine_start((hy_engine_options){0});
    hy_request *r = NULL;
    hy_request_options o = options(prompt, 3, 1);
    o.choice = 16384;
    assert_int_equal(hy_engine_submit(engine, &o, &r, &err), HY_BAD_INPUT);
    assert_non_null(strstr(err.message, "choice must be 0 .. 16383, not 16384"));
    o.choice = -1;
    assert_int_equal(hy_engine_submit(engine, &o, &r, &err), HY_BAD_INPUT);
    o.choice = 16383, o.deadline_s = -1;
    assert_int_equal(hy_engine_submit(engine, &o, &r, &err), HY_BAD_INPUT);
    o.deadline_s = NAN;
    assert_int_equal(hy_engine_submit(engine, &o, &r, &err), HY_BAD_INPUT);
    assert_null(r);
    o.deadline_s = 100;
    r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_OK);
    hy_request_close(r);
    close_engine();
}

static bool keep_error(void *user, const hy_event *event)
{
    if (event->error) *(hy_error *)user = *event->error;
    return true;
}

/* What was asked for is told, and not what was left of it when the request came here. */
static void test_deadline_is_told_as_asked(void **state)
{
    (void)state;
    hy_error why = {0};
    engine_start((hy_engine_options){.max_num_seqs = 1});
    hy_request_options o = options(prompt, 20, 1900);
    o.deadline_s = 2.5, o.waited_s = 2.4999, o.on_event = keep_error, o.user = &why;
    atomic_store(&fake.delay_us, 2000);
    hy_request *r = submit(o);
    assert_int_equal(hy_request_wait(r), HY_LATE);
    if (!strstr(why.message, "the deadline of 2.5 seconds passed")) fail_msg("%s", why.message);
    hy_request_close(r);
    close_engine();
}

static void test_deadlines(void **state)
{
    (void)state;
    engine_start((hy_engine_options){.max_num_seqs = 1});
    atomic_store(&fake.delay_us, 2000);
    hy_request_options o = options(prompt, 20, 1900);
    uint64_t late = 0;
    size_t made = 0;
    /* A machine may be too slow for a token in that time: then it gets more of it. */
    for (double seconds = 0.3; made == 0 && seconds < 3; seconds *= 2) {
        o.deadline_s = seconds;
        hy_request *running = submit(o);
        o.deadline_s = seconds / 6;
        hy_request *queued = submit(o);
        assert_int_equal(hy_request_wait(queued), HY_LATE);
        assert_int_equal(result(queued).id_count, 0);
        assert_int_equal(result(queued).finish, HY_FINISH_ERROR);
        assert_int_equal(hy_request_wait(running), HY_LATE);
        made = result(running).id_count;
        assert_in_range(made, 0, (int)(seconds / 0.002) + 50);
        hy_request_close(queued);
        hy_request_close(running);
        assert_int_equal(stats().failed, late += 2);
    }
    assert_true(made > 0);
    atomic_store(&fake.delay_us, 0);
    close_engine();
}

/* Those that wait for another one's prompt go on when it goes. */
static void test_a_leader_is_cancelled(void **state)
{
    (void)state;
    engine_start((hy_engine_options){.max_num_batched_tokens = 64});
    fake_let(5);
    hy_request *r[4];
    for (int i = 0; i < 4; i++) {
        hy_request_options o = options(prompt, 1200, 3);
        o.choice = i;
        r[i] = submit(o);
    }
    wait_steps(5);
    assert_int_equal(stats().running, 1);
    assert_int_equal(stats().waiting, 3);
    hy_request_cancel(r[0]);
    fake_let(-1);
    assert_int_equal(hy_request_wait(r[0]), HY_CANCELLED);
    for (int i = 1; i < 4; i++) assert_int_equal(hy_request_wait(r[i]), HY_OK);
    assert_true(result(r[1]).reuse.tokens >= 4 * 64);
    assert_int_equal(result(r[2]).reuse.tokens, 1199);
    assert_true(stats().rows <= 1200 + 2 * 64 + 2 + 3 * 2);
    for (int i = 0; i < 4; i++) hy_request_close(r[i]);
    close_engine();
}

/* A step that fails takes those with rows in it along, and nobody else: not those that wait, nor those that come. */
static void test_a_failed_step(void **state)
{
    (void)state;
    engine_start((hy_engine_options){.max_num_seqs = 2});
    fake_let(4);
    hy_request *r[5];
    for (int i = 0; i < 5; i++) r[i] = submit(options(other + 3 * i, 30, 60));
    wait_steps(4);
    atomic_store(&fake.fail_steps, 1);
    fake_let(-1);
    int failed = 0;
    for (int i = 0; i < 5; i++) {
        hy_status status = hy_request_wait(r[i]);
        failed += status == HY_FAILED;
        if (status == HY_OK) assert_int_equal(result(r[i]).id_count, 60);
        hy_request_close(r[i]);
    }
    assert_int_equal(failed, 2);
    assert_int_equal(stats().failed, 2);
    close_engine();
}

/* Cancelled after every number of steps. */
static void test_cancel_at_every_step(void **state)
{
    (void)state;
    for (uint64_t moment = 0; moment < 25; moment++) {
        engine_start((hy_engine_options){.max_num_batched_tokens = 64, .cache_bytes = 9 * model->layout.row_bytes});
        fake_let(moment < 20 ? (int)moment : 20);
        hy_request *r[3];
        for (int i = 0; i < 3; i++) r[i] = submit(options(i == 2 ? other : prompt, 300, 30));
        if (moment > 0) wait_steps(moment < 20 ? moment : 20);
        hy_request_cancel(r[moment % 3]);
        fake_let(-1);
        for (int i = 0; i < 3; i++) {
            hy_status status = hy_request_wait(r[i]);
            assert_true(status == HY_OK || (status == HY_CANCELLED && i == (int)(moment % 3)));
            hy_request_close(r[i]);
        }
        close_engine();
    }
    /* And the engine itself, which waits for the step that runs: so that it can end, it is a slow one. */
    for (uint64_t moment = 0; moment < 12; moment++) {
        engine_start((hy_engine_options){.max_num_batched_tokens = 64});
        fake_let((int)moment);
        hy_request *r[3];
        for (int i = 0; i < 3; i++) r[i] = submit(options(i == 2 ? other : prompt, 300, 1600));
        wait_steps(moment);
        atomic_store(&fake.delay_us, 10000);
        fake_let(-1);
        hy_engine_close(engine);
        engine = NULL;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(hy_request_wait(r[i]), HY_CANCELLED);
            hy_request_close(r[i]);
        }
        atomic_store(&fake.delay_us, 0);
    }
}

/* The planner goes to sleep as somebody comes, or closes: neither is overlooked. */
static void test_sleep_and_wake(void **state)
{
    (void)state;
    for (int i = 0; i < 500; i++) {
        engine_start((hy_engine_options){.cache_bytes = 4 * model->layout.row_bytes});
        for (int k = 0; k < i % 3; k++) {
            hy_request *r = submit(options(prompt, 1 + k, 1));
            assert_int_equal(hy_request_wait(r), HY_OK);
            hy_request_close(r);
        }
        close_engine();
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_model, close_model)
    const struct CMUnitTest tests[] = {
        TEST(test_forks),         TEST(test_sleep_and_wake),
        TEST(test_apart),         TEST(test_turns),
        TEST(test_rendered),      TEST(test_preemption),
        TEST(test_priority),      TEST(test_refusals),
        TEST(test_deadline_is_told_as_asked), TEST(test_deadlines),     TEST(test_a_leader_is_cancelled),
        TEST(test_a_failed_step), TEST(test_cancel_at_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
