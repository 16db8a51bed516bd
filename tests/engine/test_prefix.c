/*
 * Shared prefixes: what is reused, to the token, and that nobody sees it in an answer.
 *
 * Every request is held against a cold run (an engine without prefix caching, one at a time): ids and the
 * log-probabilities of the 20 best to the bit. `rows` of the engine's statistics are what was really computed: the
 * prompt's tokens that were not reused, and each token made but the last, which is not fed back.
 *
 * hayate-test: slow
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/storm.h"

enum { NEW = 6, LONGER = 90, LONG = 10100, CACHE_BLOCKS = 400 };
static const int32_t lengths[] = {1, 127, 128, 129, 2047, 2049, 10000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static hy_model *model;
static hy_engine *cold;
static uint64_t state;

/* Long prompts are the same in several tests and are computed cold once, with as many tokens as any test asks for. */
typedef struct known {
    int32_t *prompt;
    int32_t count;
    storm_answer alone;
} known;

static known long_ones[2 * LENGTHS];
static int long_count;

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

static hy_engine *open_engine(hy_engine_options o)
{
    hy_engine *e = NULL;
    if (!o.cache_bytes) o.cache_bytes = CACHE_BLOCKS * storm_block_bytes(model);
    o.log_seconds = -1;
    STORM_OK(hy_engine_open(model, &o, &e, &storm_error));
    return e;
}

static int set_up(void **unused)
{
    (void)unused;
    storm_seed = state = 3;
    storm_make();
    model = storm_open(2);
    cold = open_engine((hy_engine_options){.prefix_caching = "off", .max_num_seqs = 1});
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    for (int i = 0; i < long_count; i++) {
        free(long_ones[i].prompt);
        storm_answer_close(&long_ones[i].alone);
    }
    hy_engine_close(cold);
    hy_model_close(model);
    storm_remove();
    return 0;
}

/* Sampled, so that equal answers say more than that the same logit is the largest. */
static hy_request_options request_of(const int32_t *prompt, int32_t count, int32_t made)
{
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = prompt, o.prompt_count = (size_t)count;
    o.sampling.temperature = 1, o.sampling.seed = 11, o.sampling.logprobs = STORM_LOGPROBS;
    o.sampling.max_tokens = made, o.sampling.ignore_eos = true;
    return o;
}

static uint64_t rows_of(hy_engine *e)
{
    hy_engine_stats s;
    hy_engine_describe(e, &s);
    return s.rows;
}

static void run_cold(hy_request_options o, storm_answer *alone)
{
    o.cache_salt = NULL, o.no_prefix_cache = false;
    storm_answer_open(alone, (size_t)o.sampling.max_tokens);
    storm_finish(storm_submit(cold, o, alone), &o, alone);
    assert_int_equal(alone->reuse.tokens, 0);
}

static const storm_answer *known_answer(hy_request_options o)
{
    int32_t count = (int32_t)o.prompt_count;
    size_t bytes = o.prompt_count * sizeof *o.prompt_ids;
    for (int i = 0; i < long_count; i++)
        if (long_ones[i].count == count && memcmp(long_ones[i].prompt, o.prompt_ids, bytes) == 0)
            return &long_ones[i].alone;
    assert_true(long_count < 2 * LENGTHS);
    known *k = &long_ones[long_count++];
    k->count = count, k->prompt = malloc(bytes);
    assert_non_null(k->prompt);
    memcpy(k->prompt, o.prompt_ids, bytes);
    o.sampling.max_tokens = LONGER;
    run_cold(o, &k->alone);
    return &k->alone;
}

static void check_cold(const hy_request_options *o, const storm_answer *got)
{
    storm_answer own = {0};
    const storm_answer *alone = &own;
    if (o->prompt_count > 4000)
        alone = known_answer(*o);
    else
        run_cold(*o, &own);
    assert_true(alone->count >= got->count);
    assert_int_equal(got->count, o->sampling.max_tokens);
    const char *what = storm_differs(alone, got, got->count);
    if (what) fail_msg("a prompt of %zu tokens, %d of them reused: %s", o->prompt_count, got->reuse.tokens, what);
    storm_answer_close(&own);
}

/* Runs one request to its end and says what was reused; checks its answer and the rows that it took. */
static hy_reuse run(hy_engine *e, hy_request_options o)
{
    storm_answer a;
    storm_answer_open(&a, (size_t)o.sampling.max_tokens);
    uint64_t before = rows_of(e);
    storm_finish(storm_submit(e, o, &a), &o, &a);
    uint64_t rows = rows_of(e) - before;
    check_cold(&o, &a);
    assert_int_equal(rows, o.prompt_count - (size_t)a.reuse.tokens + a.count - 1);
    hy_reuse reuse = a.reuse;
    storm_answer_close(&a);
    return reuse;
}

static int32_t *draw(int32_t count)
{
    int32_t *ids = calloc((size_t)count, sizeof *ids);
    assert_non_null(ids);
    storm_tokens(&state, ids, count);
    return ids;
}

/* `shared` tokens of `of` and then others, the first of which differs. */
static int32_t *branch(const int32_t *of, int32_t shared, int32_t count)
{
    int32_t *ids = draw(count);
    memcpy(ids, of, (size_t)shared * sizeof *ids);
    if (count > shared) ids[shared] = of[shared] == 5 ? 6 : 5;
    return ids;
}

/* Waits until the request has made a token. */
static void wait_first(hy_engine *e)
{
    hy_engine_stats s;
    uint64_t before;
    hy_engine_describe(e, &s);
    for (before = s.generated_tokens; s.generated_tokens == before; hy_engine_describe(e, &s)) storm_sleep(0.0002);
}

/* A prompt and another that shares its first `shared` tokens; the same ones for one length in every test. */
static void draw_pair(int32_t shared, int32_t **one, int32_t **two)
{
    uint64_t kept = state;
    state = (uint64_t)shared;
    *one = draw(LONG), *two = branch(*one, shared, shared + 37);
    state = kept;
}

/* ---- One after the other -------------------------------------------------------------------------------------- */

static void test_after_the_first_ended(void **unused)
{
    (void)unused;
    hy_engine *e = open_engine((hy_engine_options){0});
    for (int i = 0; i < LENGTHS; i++) {
        int32_t shared = lengths[i], *one, *two;
        draw_pair(shared, &one, &two);
        hy_reuse a = run(e, request_of(one, shared + 50, NEW)), b = run(e, request_of(two, shared + 37, NEW));
        /* Two random prompts may begin with the same token. */
        assert_true(a.tokens < 4);
        if (i > 0) assert_string_equal(a.miss, "new");
        assert_int_equal(b.tokens, shared);
        assert_int_equal(b.cache, shared);
        assert_string_equal(b.miss, "new");
        free(one);
        free(two);
    }
    hy_engine_close(e);
}

static void test_same_prompt_again(void **unused)
{
    (void)unused;
    static const int32_t counts[] = {1, 2, 127, 128, 129, 256, 2048, 2500};
    hy_engine *e = open_engine((hy_engine_options){0});
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int32_t *one = draw(counts[i]);
        run(e, request_of(one, counts[i], NEW));
        for (int again = 0; again < 2; again++) {
            hy_reuse b = run(e, request_of(one, counts[i], NEW));
            assert_int_equal(b.tokens, counts[i] - 1);
            assert_string_equal(b.miss, "");
        }
        free(one);
    }
    hy_engine_close(e);
}

static void test_prefix_of_a_cached_prompt(void **unused)
{
    (void)unused;
    static const int32_t counts[] = {1, 2, 127, 128, 129, 255, 256, 257, 699};
    hy_engine *e = open_engine((hy_engine_options){0});
    int32_t *one = draw(700);
    run(e, request_of(one, 700, NEW));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        hy_reuse b = run(e, request_of(one, counts[i], NEW));
        assert_int_equal(b.tokens, counts[i] - 1);
        assert_string_equal(b.miss, "");
    }
    free(one);
    hy_engine_close(e);
}

/* The answer is part of what the next turn shares; its last token was never fed back. */
static void test_conversation(void **unused)
{
    (void)unused;
    hy_engine *e = open_engine((hy_engine_options){0});
    int32_t ids[4000], count = 90;
    storm_tokens(&state, ids, 4000);
    for (int turn = 0; turn < 12; turn++) {
        hy_request_options o = request_of(ids, count, 40);
        storm_answer a;
        storm_answer_open(&a, 40);
        storm_finish(storm_submit(e, o, &a), &o, &a);
        check_cold(&o, &a);
        memcpy(ids + count, a.ids, a.count * sizeof *ids);
        count += (int32_t)a.count + 33; /* and what the user says next */
        storm_answer_close(&a);
        hy_reuse b = run(e, request_of(ids, count, NEW));
        assert_int_equal(b.tokens, count - 33 - 1);
    }
    hy_engine_close(e);
}

/* ---- Side by side --------------------------------------------------------------------------------------------- */

static void test_while_the_first_decodes(void **unused)
{
    (void)unused;
    for (int i = 0; i < LENGTHS; i++) {
        hy_engine *e = open_engine((hy_engine_options){0});
        int32_t shared = lengths[i], *one, *two;
        draw_pair(shared, &one, &two);
        hy_request_options p = request_of(one, shared + 50, LONGER), q = request_of(two, shared + 37, NEW);
        storm_answer a, b;
        storm_answer_open(&a, LONGER), storm_answer_open(&b, NEW);
        hy_request *first = storm_submit(e, p, &a);
        wait_first(e);
        storm_finish(storm_submit(e, q, &b), &q, &b);
        storm_finish(first, &p, &a);
        assert_int_equal(b.reuse.tokens, shared);
        assert_int_equal(rows_of(e), shared + 50 + LONGER - 1 + 37 + NEW - 1);
        check_cold(&p, &a);
        check_cold(&q, &b);
        storm_answer_close(&a), storm_answer_close(&b);
        free(one), free(two);
        hy_engine_close(e);
    }
}

/* The second comes while the first one's prompt is computed, in small steps: it waits for what it shares, unless what
 * is still missing is less than a block. */
static void test_while_the_first_is_computed(void **unused)
{
    (void)unused;
    for (int i = 0; i < LENGTHS; i++) {
        hy_engine *e = open_engine((hy_engine_options){.max_num_batched_tokens = 64});
        int32_t shared = lengths[i], *one, *two;
        draw_pair(shared, &one, &two);
        hy_request_options p = request_of(one, shared + 50, NEW), q = request_of(two, shared + 37, NEW);
        storm_answer a, b;
        storm_answer_open(&a, NEW), storm_answer_open(&b, NEW);
        hy_request *first = storm_submit(e, p, &a), *second = storm_submit(e, q, &b);
        storm_finish(second, &q, &b);
        storm_finish(first, &p, &a);
        assert_in_range(b.reuse.tokens, shared < 128 ? 0 : shared - 127, shared);
        assert_int_equal(rows_of(e), 2 * shared + 50 + 37 - b.reuse.tokens + 2 * (NEW - 1));
        check_cold(&p, &a);
        check_cold(&q, &b);
        storm_answer_close(&a), storm_answer_close(&b);
        free(one), free(two);
        hy_engine_close(e);
    }
}

/* Four answers to one prompt, submitted together: the prompt is computed once, its last token once for each. */
static void test_forks(void **unused)
{
    (void)unused;
    static const int32_t counts[] = {1, 100, 128, 129, 1000, 2049};
    enum { FORKS = 4, MADE = 20 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        hy_engine *e = open_engine((hy_engine_options){.max_num_batched_tokens = 100});
        int32_t *one = draw(counts[i]);
        hy_request *request[FORKS];
        hy_request_options o[FORKS];
        storm_answer a[FORKS];
        for (int k = 0; k < FORKS; k++) {
            o[k] = request_of(one, counts[i], MADE), o[k].choice = k;
            storm_answer_open(&a[k], MADE);
            request[k] = storm_submit(e, o[k], &a[k]);
        }
        int32_t reused = 0;
        for (int k = 0; k < FORKS; k++) {
            storm_finish(request[k], &o[k], &a[k]);
            reused += a[k].reuse.tokens;
            check_cold(&o[k], &a[k]);
        }
        assert_int_equal(reused, (FORKS - 1) * (counts[i] - 1));
        assert_int_equal(rows_of(e), counts[i] + FORKS - 1 + FORKS * (MADE - 1));
        assert_true(memcmp(a[0].ids, a[1].ids, a[0].count * sizeof *a[0].ids) != 0);
        for (int k = 0; k < FORKS; k++) storm_answer_close(&a[k]);
        free(one);
        hy_engine_close(e);
    }
}

/* What was computed of a prompt that was cancelled is good for the next one. */
static void test_after_a_cancel(void **unused)
{
    (void)unused;
    uint64_t rows = 0;
    for (int i = 0; i < 50 && rows == 0; i++) { /* until the cancel was in time */
        hy_engine *e = open_engine((hy_engine_options){.max_num_batched_tokens = 64});
        int32_t *one = draw(3900);
        hy_request_options o = request_of(one, 3900, NEW);
        storm_answer a;
        storm_answer_open(&a, NEW);
        hy_request *r = storm_submit(e, o, &a);
        while (rows_of(e) < 1000) storm_sleep(0.0002);
        hy_request_cancel(r);
        storm_finish(r, &o, &a);
        if (a.count == 0) {
            assert_int_equal(a.finish, HY_FINISH_CANCEL);
            rows = rows_of(e);
            assert_true(rows <= 3900);
            hy_reuse b = run(e, o);
            assert_in_range(b.tokens, 768, rows); /* a step may have run on, and its rows may have gone with it */
            assert_string_equal(b.miss, "new");
        }
        storm_answer_close(&a);
        free(one);
        hy_engine_close(e);
    }
    assert_true(rows > 0);
}

/* ---- Misses --------------------------------------------------------------------------------------------------- */

static void test_salts(void **unused)
{
    (void)unused;
    hy_engine *e = open_engine((hy_engine_options){0});
    int32_t *one = draw(600);
    hy_request_options o = request_of(one, 600, NEW);
    o.cache_salt = "x";
    assert_string_equal(run(e, o).miss, "new");
    o.cache_salt = "y";
    hy_reuse other = run(e, o);
    assert_int_equal(other.tokens, 0);
    assert_string_equal(other.miss, "salt");
    o.cache_salt = NULL;
    assert_int_equal(run(e, o).tokens, 0);
    o.cache_salt = "";
    assert_int_equal(run(e, o).tokens, 599);
    o.cache_salt = "x";
    assert_int_equal(run(e, o).tokens, 599);
    free(one);
    hy_engine_close(e);
}

static void test_off(void **unused)
{
    (void)unused;
    hy_engine *e = open_engine((hy_engine_options){0}),
              *off = open_engine((hy_engine_options){.prefix_caching = "off"});
    int32_t *one = draw(600);
    hy_request_options o = request_of(one, 600, NEW);
    run(e, o);
    o.no_prefix_cache = true;
    hy_reuse b = run(e, o);
    assert_int_equal(b.tokens, 0);
    assert_string_equal(b.miss, "off");
    o.no_prefix_cache = false;
    assert_int_equal(run(e, o).tokens, 599);
    for (int i = 0; i < 2; i++) {
        b = run(off, o);
        assert_int_equal(b.tokens, 0);
        assert_string_equal(b.miss, "off");
    }
    free(one);
    hy_engine_close(e);
    hy_engine_close(off);
}

static void test_evicted(void **unused)
{
    (void)unused;
    hy_engine *e = open_engine((hy_engine_options){.cache_bytes = 8 * storm_block_bytes(model)});
    int32_t *one = draw(700), *two = draw(900), *three = draw(300);
    one[0] = 3, two[0] = 4, three[0] = 5;
    assert_string_equal(run(e, request_of(one, 700, NEW)).miss, "new");
    assert_string_equal(run(e, request_of(two, 900, NEW)).miss, "new");
    hy_reuse b = run(e, request_of(one, 700, NEW));
    assert_true(b.tokens < 699);
    assert_string_equal(b.miss, "evicted");
    assert_string_equal(run(e, request_of(three, 300, NEW)).miss, "new");
    hy_engine_stats s;
    hy_engine_describe(e, &s);
    assert_int_equal(s.misses[HY_MISS_EVICTED], 1);
    assert_int_equal(s.misses[HY_MISS_NEW], 3);
    assert_int_equal(s.prefix_queries, 700 + 900 + 700 + 300);
    free(one), free(two), free(three);
    hy_engine_close(e);
}

static void test_names(void **unused)
{
    (void)unused;
    assert_string_equal(hy_miss_name(HY_MISS_NONE), "none");
    assert_string_equal(hy_miss_name(HY_MISS_NEW), "new");
    assert_string_equal(hy_miss_name(HY_MISS_EVICTED), "evicted");
    for (int i = 0; i < HY_MISS_REASONS; i++)
        for (int k = 0; k < i; k++) assert_string_not_equal(hy_miss_name((hy_miss)i), hy_miss_name((hy_miss)k));
}

/* ---- Tiers ---------------------------------------------------------------------------------------------------- */

static void test_back_from_memory(void **unused)
{
    (void)unused;
    uint64_t row = storm_block_bytes(model);
    hy_engine *e = open_engine((hy_engine_options){.cache_bytes = 8 * row, .offload_memory = 64 * row});
    int32_t *one = draw(700), *two = draw(900);
    one[0] = 3, two[0] = 4;
    run(e, request_of(one, 700, NEW));
    run(e, request_of(two, 900, NEW));
    hy_reuse b = run(e, request_of(one, 700, NEW));
    assert_true(b.tokens >= 640); /* whole blocks leave */
    assert_true(b.memory > 0);
    assert_int_equal(b.disk, 0);
    b = run(e, request_of(two, 900, NEW));
    assert_true(b.tokens >= 896);
    free(one), free(two);
    hy_engine_close(e);
}

static void test_back_from_disk(void **unused)
{
    (void)unused;
    uint64_t row = storm_block_bytes(model);
    char disk[96];
    snprintf(disk, sizeof disk, "%s/blocks", storm_folder);
    hy_engine_options o = {.cache_bytes = 12 * row, .offload_disk = disk, .offload_disk_bytes = 64 * row};
    int32_t *one = draw(700), *two = draw(1200);
    one[0] = 3, two[0] = 4;
    hy_engine *e = open_engine(o);
    run(e, request_of(one, 700, NEW));
    hy_engine_close(e);
    for (int i = 0; i < 2; i++) { /* another start, and then out of the cache and back within it */
        e = open_engine(o);
        hy_reuse b = run(e, request_of(one, 700, NEW));
        assert_true(b.tokens >= 640);
        assert_true(b.disk >= 640);
        run(e, request_of(two, 1200, NEW));
        b = run(e, request_of(one, 700, NEW));
        assert_true(b.tokens >= 640);
        assert_true(b.disk > 0);
        hy_engine_close(e);
    }
    free(one), free(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_after_the_first_ended),
        cmocka_unit_test(test_same_prompt_again),
        cmocka_unit_test(test_prefix_of_a_cached_prompt),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_while_the_first_decodes),
        cmocka_unit_test(test_while_the_first_is_computed),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_after_a_cancel),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_evicted),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_back_from_memory),
        cmocka_unit_test(test_back_from_disk),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
