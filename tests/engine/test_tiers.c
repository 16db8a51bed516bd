/* An engine with tiers behind its cache: what left comes back, also to the next engine, and what is damaged is
 * computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "engine/fake_engine.h"

enum { BLOCKS = 8, PROMPT = 5 * 128 + 30, MADE = 10 };

static char folder[512];
static int32_t prompt[4][PROMPT], alone[4][MADE];

static void shell(const char *format)
{
    char command[1200];
    snprintf(command, sizeof command, format, folder); /* NOLINT */
    assert_int_equal(system(command), 0);
}

static void open_engine(hy_engine_options o)
{
    o.cache_bytes = BLOCKS * model->layout.row_bytes;
    engine_start(o);
}

static hy_request *submit(int which)
{
    hy_request *r = NULL;
    hy_error err = {0};
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = prompt[which], o.prompt_count = PROMPT;
    o.sampling.max_tokens = MADE, o.sampling.ignore_eos = true, o.sampling.seed = 3;
    if (hy_engine_submit(engine, &o, &r, &err) != HY_OK) fail_msg("%s", err.message);
    return r;
}

/* Answers a prompt as it was answered alone; returns what was reused. */
static hy_reuse answer(int which)
{
    hy_request *r = submit(which);
    assert_int_equal(hy_request_wait(r), HY_OK);
    hy_result result;
    hy_request_result(r, &result);
    assert_memory_equal(result.ids, alone[which], sizeof alone[which]);
    hy_request_close(r);
    return result.reuse;
}

static int prepare(void **state)
{
    (void)state;
    atomic_store(&fake.bad_rows, 0);
    atomic_store(&fake.delay_us, 0);
    snprintf(folder, sizeof folder, "%s/test-tiers-XXXXXX", TEST_BINARY);
    if (!mkdtemp(folder)) return -1;
    model = fake_model_open(false);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < PROMPT; i++) prompt[k][i] = 2 + (i * (2 * k + 3) + k) % 250;
    open_engine((hy_engine_options){.prefix_caching = "off"});
    for (int k = 0; k < 4; k++) {
        hy_request *r = submit(k);
        hy_request_wait(r);
        hy_result result;
        hy_request_result(r, &result);
        memcpy(alone[k], result.ids, sizeof alone[k]);
        hy_request_close(r);
    }
    close_engine();
    return 0;
}

static int tidy(void **state)
{
    (void)state;
    if (engine) hy_engine_close(engine);
    engine = NULL;
    fake_model_close(model);
    shell("rm -rf '%s'");
    return 0;
}

static void test_memory(void **state)
{
    (void)state;
    open_engine((hy_engine_options){.offload_memory = 64 * model->layout.row_bytes});
    for (int round = 0; round < 5; round++)
        for (int k = 0; k < 4; k++) {
            hy_reuse reuse = answer(k);
            assert_int_equal(reuse.tokens, round == 0 ? 0 : 5 * 128 + reuse.tokens % 128);
            assert_int_equal(reuse.cache + reuse.memory, reuse.tokens);
        }
    assert_true(stats().memory_hits >= 3 * 4 * 5 * 128);
    assert_int_equal(stats().disk_hits, 0);
    assert_true(stats().memory_blocks >= 20);
    close_engine();
}

static void test_disk_and_the_next_start(void **state)
{
    (void)state;
    const hy_engine_options o = {.offload_disk = folder, .offload_disk_bytes = 64 << 20};
    open_engine(o);
    for (int k = 0; k < 4; k++) assert_int_equal(answer(k).tokens, 0);
    close_engine();
    open_engine(o);
    for (int k = 0; k < 4; k++) {
        hy_reuse reuse = answer(k);
        assert_int_equal(reuse.disk, 5 * 128);
        assert_int_equal(reuse.tokens, 5 * 128);
        assert_string_equal(reuse.miss, "new"); /* its last block was not full */
    }
    assert_int_equal(stats().disk_hits, 4 * 5 * 128);
    assert_int_equal(stats().disk_damaged, 0);
    assert_true(stats().disk_blocks >= 20);
    close_engine();
    /* Damaged and missing files: their blocks are computed, and all is said. */
    shell(
        "find '%s' -name '*.block' | sort | awk 'NR %% 3 == 0' | xargs -I F dd if=/dev/zero of=F bs=1 seek=300 count=9 "
        "conv=notrunc status=none");
    open_engine(o);
    int32_t found = 0;
    for (int k = 0; k < 4; k++) found += answer(k).tokens;
    assert_true(found < 4 * 5 * 128);
    assert_true(stats().disk_damaged > 0);
    assert_int_equal(stats().misses[HY_MISS_DAMAGED] > 0, 1);
    close_engine();
}

/* The engine closes, and requests are cancelled, while blocks are on their way. */
static void test_ends_while_loading(void **state)
{
    (void)state;
    const hy_engine_options o = {
        .offload_disk = folder, .offload_disk_bytes = 64 << 20, .offload_memory = 6 * model->layout.row_bytes};
    open_engine(o);
    for (int k = 0; k < 4; k++) answer(k);
    close_engine();
    for (int round = 0; round < 40; round++) {
        open_engine(o);
        hy_request *r[6];
        for (int i = 0; i < 6; i++) r[i] = submit((i + round) % 4);
        nanosleep(&(struct timespec){.tv_nsec = round * 20000}, NULL);
        hy_request_cancel(r[round % 6]);
        if (round % 2) {
            for (int i = 0; i < 6; i++) {
                hy_status status = hy_request_wait(r[i]);
                assert_true(status == HY_OK || (i == round % 6 && status == HY_CANCELLED));
                hy_result result;
                hy_request_result(r[i], &result);
                assert_memory_equal(result.ids, alone[(i + round) % 4], result.id_count * sizeof *result.ids);
                hy_request_close(r[i]);
            }
            close_engine();
        } else {
            hy_engine_close(engine);
            engine = NULL;
            for (int i = 0; i < 6; i++) hy_request_close(r[i]);
        }
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, prepare, tidy)
    const struct CMUnitTest tests[] = {
        TEST(test_memory),
        TEST(test_disk_and_the_next_start),
        TEST(test_ends_while_loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
