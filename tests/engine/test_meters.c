/* What the engine measures agrees with what its requests did. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <time.h>

#include "engine/fake_engine.h"

static int32_t prompt[FAKE_MAX_LEN];

static int open_model(void **state)
{
    (void)state;
    fake.script = NULL, fake.nan_after = -1;
    atomic_store(&fake.fail_steps, 0);
    atomic_store(&fake.bad_rows, 0);
    atomic_store(&fake.delay_us, 0);
    model = fake_model_open(true);
    for (int i = 0; i < FAKE_MAX_LEN; i++) prompt[i] = 2 + i % 250;
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

static hy_request *submit(int32_t count, int32_t made)
{
    hy_request *r = NULL;
    hy_error err = {0};
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = prompt, o.prompt_count = (size_t)count;
    o.sampling.max_tokens = made, o.sampling.ignore_eos = true, o.sampling.seed = 11;
    if (hy_engine_submit(engine, &o, &r, &err) != HY_OK) fail_msg("%s", err.message);
    return r;
}

static hy_engine_measures measured(void)
{
    hy_engine_measures m;
    hy_engine_measure(engine, &m);
    return m;
}

static uint64_t observed(const hy_histogram *h)
{
    uint64_t n = 0;
    for (size_t i = 0; i <= h->bound_count; i++) n += h->counts[i];
    return n;
}

/* `count` of `h`, in all `sum`. */
static void expect(const hy_histogram *h, uint64_t count, double sum)
{
    assert_int_equal(observed(h), count);
    assert_true(h->sum == sum);
}

/* What is known at the moment at which an owner hears of its end: whoever asks then must find it counted. */
static uint64_t at_end[2]; /* ended, first tokens */

static bool look(void *user, const hy_event *event)
{
    (void)user;
    if (event->finish == HY_RUNNING) return true;
    hy_engine_measures m = measured();
    at_end[0] = m.ended[event->finish], at_end[1] = observed(&m.first_token_s);
    return true;
}

static void counted_before_told(void **state)
{
    (void)state;
    engine_start((hy_engine_options){0});
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = prompt, o.prompt_count = 3, o.sampling.ignore_eos = true, o.on_event = look;
    for (int i = 0; i < 2; i++) { /* to its end, then by its deadline */
        hy_request *r = NULL;
        o.sampling.max_tokens = i ? 0 : 4, o.deadline_s = i ? 0.05 : 0;
        if (i) atomic_store(&fake.delay_us, 10000);
        uint64_t ends = 0;
        do { /* a machine that is too slow for a token in that time gets more of it */
            assert_int_equal(hy_engine_submit(engine, &o, &r, NULL), HY_OK);
            assert_int_equal(hy_request_wait(r), i ? HY_LATE : HY_OK);
            assert_int_equal(at_end[0], ++ends);
            hy_request_close(r);
            o.deadline_s *= 2;
        } while (at_end[1] < (uint64_t)i + 1 && o.deadline_s > 0 && o.deadline_s < 10);
        assert_int_equal(at_end[1], i + 1);
    }
}

static void counts_and_sums(void **state)
{
    (void)state;
    engine_start((hy_engine_options){.max_num_batched_tokens = 64});
    double decode = 0, prefill = 0, queue = 0;
    for (int i = 0; i < 2; i++) { /* the second finds two blocks of the first */
        hy_request *r = submit(300, 5);
        hy_result done;
        assert_int_equal(hy_request_wait(r), HY_OK);
        hy_request_result(r, &done);
        decode += done.decode_s, prefill += done.prefill_s, queue += done.queue_s;
        assert_int_equal(done.reuse.tokens > 0, i);
        hy_request_close(r);
    }
    hy_engine_measures m = measured();
    hy_engine_stats s = stats();
    expect(&m.prompt_tokens, 2, 600);
    expect(&m.generated_tokens, 2, 10);
    expect(&m.max_tokens, 2, 10);
    expect(&m.prefill_tokens, 2, 600 - (double)s.prefix_hits);
    expect(&m.step_rows, s.steps, (double)s.rows);
    expect(&m.queue_s, 2, queue);
    expect(&m.prefill_s, 2, prefill);
    expect(&m.decode_s, 2, decode);
    assert_int_equal(observed(&m.first_token_s), 2);
    assert_int_equal(observed(&m.between_tokens_s), 8);
    assert_int_equal(observed(&m.per_token_s), 2);
    assert_int_equal(observed(&m.inference_s), 2);
    assert_int_equal(observed(&m.whole_s), 2);
    assert_true(m.whole_s.sum >= m.queue_s.sum + m.inference_s.sum);
    assert_true(m.first_token_s.sum >= m.prefill_s.sum);
    assert_int_equal(m.ended[HY_FINISH_LENGTH], 2);
    assert_int_equal(s.prompt_tokens, 600);
    assert_true(s.prefix_hits >= 256);
    assert_int_equal(s.prompt_cached, s.prefix_hits);
    assert_int_equal(s.prompt_loaded, 0);
    assert_int_equal(m.prompt_tokens.counts[8], 2); /* 200 < 300 <= 500 */
    /* What the client waited before is time to it. */
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = prompt, o.prompt_count = 3, o.sampling.max_tokens = 2, o.sampling.ignore_eos = true;
    o.waited_s = 1000;
    hy_request *late = NULL;
    assert_int_equal(hy_engine_submit(engine, &o, &late, NULL), HY_OK);
    assert_int_equal(hy_request_wait(late), HY_OK);
    hy_request_close(late);
    hy_engine_measures n = measured();
    assert_true(n.first_token_s.sum - m.first_token_s.sum >= 1000 && n.whole_s.sum - m.whole_s.sum >= 1000);
    assert_true(n.queue_s.sum - m.queue_s.sum < 1000 && n.inference_s.sum - m.inference_s.sum < 1000);
    o.waited_s = -1;
    assert_int_equal(hy_engine_submit(engine, &o, &late, NULL), HY_BAD_INPUT);
    close_engine();
}

static void how_requests_end(void **state)
{
    (void)state;
    engine_start((hy_engine_options){.max_num_seqs = 1});
    fake_let(4);
    hy_request *runs = submit(3, 1500), *waits = submit(3, 4);
    while (stats().generated_tokens < 2) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    hy_request_cancel(waits);
    hy_request_cancel(runs);
    fake_let(-1);
    assert_int_equal(hy_request_wait(waits), HY_CANCELLED);
    assert_int_equal(hy_request_wait(runs), HY_CANCELLED);
    hy_request_close(waits), hy_request_close(runs);
    hy_engine_measures m = measured();
    assert_int_equal(m.ended[HY_FINISH_CANCEL], 2);
    assert_int_equal(observed(&m.whole_s), 2);
    assert_int_equal(observed(&m.queue_s), 2);
    assert_int_equal(observed(&m.decode_s), 1); /* one never ran */
    assert_int_equal(observed(&m.first_token_s), 1);
    atomic_store(&fake.delay_us, 0);
    for (int i = 1; i <= 2; i++) {
        atomic_store(&fake.fail_steps, 1);
        hy_request *r = submit(3, 4);
        assert_int_equal(hy_request_wait(r), HY_FAILED);
        hy_request_close(r);
        assert_int_equal(stats().failing_steps, i);
    }
    hy_request *good = submit(3, 4);
    assert_int_equal(hy_request_wait(good), HY_OK);
    hy_request_close(good);
    m = measured();
    assert_int_equal(m.ended[HY_FINISH_ERROR], 2);
    assert_int_equal(m.ended[HY_FINISH_LENGTH], 1);
    assert_int_equal(stats().failing_steps, 0);
    close_engine();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(counted_before_told, open_model, close_model),
        cmocka_unit_test_setup_teardown(counts_and_sums, open_model, close_model),
        cmocka_unit_test_setup_teardown(how_requests_end, open_model, close_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
