/*
 * The scheduler by hand: the test plans steps and computes them itself, one behind the other as the engine does, so
 * that every moment in between can be had. A row's contents are its token; before a row is computed, all rows in front
 * of it are compared with the tokens of its request. The next token is a hash of those before it, so that every answer
 * is known.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <time.h>

#include "cache/fake_store.h"
#include "engine/fake_model.h"
#include "engine/scheduler.h"

enum { BLOCK = CACHE_BLOCK, LIMIT = 2000 };

/* ---- An engine without threads -------------------------------------------------------------------------------- */

static hy_model *model;
static ops_cache *memory;
static cache_manager *manager;
static scheduler sched;
static step steps[2];
static step *given[2]; /* planned and not computed, the oldest first */
static int given_count, next_step;
static uint64_t rows_computed;
static int admissions;
static hy_request *admitted_last;
static int ended_alive; /* requests that were released */
static bool fail_next;

static void wake(void *user)
{
    (void)user;
}

static void on_admitted(void *user, hy_request *r)
{
    (void)user;
    admissions++;
    admitted_last = r;
}

static void open_world(int32_t size, scheduler_options o, bool with_tiers)
{
    hy_error err;
    memset(&tiers, 0, sizeof tiers);
    tiers.room = STORED;
    model = fake_model_open(false);
    assert_int_equal(fake_cache_open(NULL, NULL, size, &memory, &err), HY_OK);
    cache_options c = {.blocks = size,
                       .prefix = true,
                       .ops = &fake_ops,
                       .cache = memory,
                       .row_bytes = BLOCK * sizeof(int32_t),
                       .tiers = with_tiers ? &tiers : NULL,
                       .save_idle = with_tiers,
                       .wake = wake};
    assert_int_equal(cache_open(&c, &manager, &err), HY_OK);
    if (o.max_len == 0) o.max_len = size * BLOCK < LIMIT ? size * BLOCK : LIMIT;
    sched = (scheduler){0};
    assert_int_equal(scheduler_open(&o, manager, &sched, &err), HY_OK);
    sched.admitted = on_admitted;
    for (int i = 0; i < 2; i++) assert_int_equal(step_open(o.max_sequences, o.max_rows, o.drafts, &steps[i], &err), HY_OK);
    given_count = next_step = admissions = ended_alive = 0;
    rows_computed = 0;
    fail_next = false;
}

static void close_world(void)
{
    assert_int_equal(given_count, 0);
    assert_int_equal(sched.running_count + sched.waiting.count + sched.leaving.count, 0);
    assert_int_equal(sched.free_slots, sched.o.max_sequences);
    assert_int_equal(cache_used(manager), 0);
    for (int i = 0; i < 2; i++) step_close(&steps[i]);
    scheduler_close(&sched);
    cache_close(manager);
    fake_cache_close(memory);
    fake_model_close(model);
}

static uint64_t numbers;

/* A request of `prompt` tokens that makes `made`. */
static hy_request *request(const int32_t *prompt, int32_t count, int32_t made, hy_request_options o)
{
    hy_request *r = NULL;
    hy_error err;
    o.sampling = hy_sampling_defaults(model);
    o.sampling.ignore_eos = true;
    assert_int_equal(request_open(&o, prompt, count, NULL, &model->generation, model_ops_model(model), count + made, 0, &r, &err),
                     HY_OK);
    r->number = ++numbers;
    scheduler_add(&sched, r);
    return r;
}

static int32_t next_token(const int32_t *ids, int32_t count)
{
    uint32_t hash = 2166136261u;
    for (int32_t i = 0; i < count; i++) hash = (hash ^ (uint32_t)ids[i]) * 16777619u;
    return (int32_t)(hash >> 8) % 250 + 2;
}

static void check_answer(const hy_request *r)
{
    for (int32_t i = r->prompt_count; i < request_known(r); i++) assert_int_equal(r->ids[i], next_token(r->ids, i));
}

/* Lets go of what has ended. Whoever holds a request may close it then. */
static void release(void)
{
    for (hy_request *r; (r = scheduler_release(&sched));) {
        check_answer(r);
        ended_alive++;
        request_done(r);
    }
}

static void end(hy_request *r)
{
    hy_event event = request_end(r, HY_FINISH_CANCEL, NULL);
    request_tell(r, &event);
    scheduler_end(&sched, r);
    release();
}

/* Plans a step beside the one that is there. Returns its rows. */
static int32_t plan(void)
{
    assert_true(given_count < 2);
    step *p = &steps[next_step];
    int32_t rows = scheduler_plan(&sched, p);
    assert_true(rows <= sched.o.max_rows && p->member_count <= sched.o.max_sequences);
    if (rows == 0 && p->copy_count == 0) return 0;
    given[given_count++] = p;
    next_step ^= 1;
    return rows;
}

static void compute_row(const step *p, int32_t i)
{
    const ops_rows *rows = &p->rows;
    const hy_request *r = p->member[p->owner[i]].request;
    const int32_t *table = rows->block_table + (int64_t)rows->sequence[i] * rows->block_table_stride;
    int32_t position = rows->position[i];
    int64_t own = (int64_t)table[position / BLOCK] * BLOCK + position % BLOCK;
    assert_int_equal(rows->token[i], r->ids[position]);
    if (rows->slot[i] >= 0) {
        assert_int_equal(rows->slot[i], own);
        memory->token[own] = rows->token[i];
    }
    for (int32_t k = 0; k <= position; k++)
        if (memory->token[table[k / BLOCK] * BLOCK + k % BLOCK] != r->ids[k])
            fail_msg("request %d: row %d of %d is not there", (int)r->number, k, position);
}

/* Computes the oldest step and hands out what came. */
static void compute(void)
{
    assert_true(given_count > 0);
    step *p = given[0];
    given[0] = given[1], given_count--;
    for (int32_t i = 0; i < p->copy_count; i++) fake_cache_copy(memory, p->copy[i].from, p->copy[i].to);
    step_resolve(p);
    for (int32_t i = 0; i < p->rows.count; i++) compute_row(p, i);
    rows_computed += (uint64_t)p->rows.count;
    if (fail_next && p->rows.count > 0) {
        error_set(&p->error, HY_FAILED, "no");
        p->status = HY_FAILED;
        fail_next = false;
        for (int32_t i = 0; i < p->rows.count; i++) /* what a failed step has written is worth nothing */
            if (p->rows.slot[i] >= 0) memory->token[p->rows.slot[i]] = -1;
        for (int32_t m = 0; m < p->member_count; m++) p->member[m].request->lost |= !p->member[m].dropped;
    }
    for (int32_t i = 0; i < p->pick_count && p->status == HY_OK; i++) {
        hy_request *r = p->pick[i];
        int32_t at = (int32_t)p->sample[i].position;
        assert_int_equal(p->sample[i].logit_row, i);
        r->ids[at] = next_token(r->ids, at);
        p->sampled[i] = (ops_sampled){.id = r->ids[at]};
    }
    scheduler_finished(&sched, p);
    if (p->status != HY_OK) {
        for (int32_t m = 0; m < p->member_count; m++) {
            hy_request *r = p->member[m].request;
            if (p->member[m].dropped || r->gone) continue;
            hy_event event = request_end(r, HY_FINISH_ERROR, &p->error);
            request_tell(r, &event);
            scheduler_end(&sched, r);
        }
    }
    for (int32_t i = 0; i < p->pick_count && p->status == HY_OK; i++) {
        hy_request *r = p->pick[i];
        if (r->gone) continue;
        hy_event event = request_token(r, &p->sampled[i], false);
        request_tell(r, &event);
        if (r->finish != HY_RUNNING) scheduler_end(&sched, r);
    }
    release();
}

/* One turn of the engine: a step is planned while the one before is there. False: nothing to do. */
static bool turn_once(void)
{
    int32_t rows = plan();
    if (given_count == 2 || (given_count == 1 && rows == 0 && given[0] != NULL)) compute();
    return given_count > 0 || rows > 0;
}

static void run_all(void)
{
    int idle = 0;
    for (int i = 0; sched.running_count + sched.waiting.count + sched.leaving.count > 0 || given_count > 0; i++) {
        idle = turn_once() ? 0 : idle + 1;
        if (i > 100000 || idle > 3)
            fail_msg("nothing moves: %d run, %d wait, %d leave", sched.running_count, sched.waiting.count,
                     sched.leaving.count);
    }
}

static void finished(hy_request *r, int32_t made)
{
    assert_true(r->done);
    assert_int_equal(r->finish, HY_FINISH_LENGTH);
    assert_int_equal(r->output_count, made);
    check_answer(r);
    hy_request_close(r);
}

static void close_request(hy_request *r)
{
    assert_true(r->done);
    hy_request_close(r);
}

static int32_t text[LIMIT], other[LIMIT];

static int per_test(void **state)
{
    (void)state;
    for (int i = 0; i < LIMIT; i++) text[i] = i % 290, other[i] = (i * 7 + 3) % 290;
    return 0;
}

static const scheduler_options usual = {.max_sequences = 16, .max_rows = 64};

/* ---- Order ---------------------------------------------------------------------------------------------------- */

static void test_order(void **state)
{
    (void)state;
    for (int by_priority = 0; by_priority < 2; by_priority++) {
        static const int32_t priorities[] = {5, 1, 5, -2, 1};
        static const int fcfs[] = {0, 1, 2, 3, 4}, priority[] = {3, 1, 4, 0, 2};
        open_world(20, (scheduler_options){.max_sequences = 1, .max_rows = 64, .by_priority = by_priority}, false);
        hy_request *r[5];
        for (int i = 0; i < 5; i++)
            r[i] = request(text + i * 50, 5, 3, (hy_request_options){.priority = priorities[i]});
        for (int k = 0; k < 5; k++) {
            while (admissions == k) turn_once();
            assert_ptr_equal(admitted_last, r[by_priority ? priority[k] : fcfs[k]]);
            while (ended_alive == k) turn_once();
        }
        for (int i = 0; i < 5; i++) finished(r[i], 3);
        close_world();
    }
}

/* Who decodes is never held up by a long prompt, and a long prompt has only so many rows. */
static void test_threshold(void **state)
{
    (void)state;
    open_world(40, (scheduler_options){.max_sequences = 4, .max_rows = 64, .threshold = 20}, false);
    hy_request *a = request(text, 10, 60, (hy_request_options){0});
    turn_once();
    hy_request *b = request(other, 900, 2, (hy_request_options){0}),
               *c = request(other + 5, 900, 2, (hy_request_options){0});
    while (sched.steps < 40) {
        plan();
        const step *p = given[given_count - 1];
        bool has_a = false;
        for (int32_t i = 0; i < p->member_count; i++) {
            assert_true(p->member[i].rows <= 20);
            has_a |= p->member[i].request == a;
        }
        assert_true(has_a);
        assert_int_equal(p->rows.count, p->serial < 2 ? 10 : 41);
        if (given_count == 2) compute();
    }
    run_all();
    finished(a, 60), finished(b, 2), finished(c, 2);
    close_world();
}

/* Who comes behind a long prompt starts with the next step, and no row is left unused. */
static void test_a_long_prompt_holds_nobody_up(void **state)
{
    (void)state;
    open_world(80, (scheduler_options){.max_sequences = 8, .max_rows = 64}, false);
    hy_request *a = request(text, 2000, 2, (hy_request_options){0});
    turn_once();
    turn_once();
    hy_request *b = request(other, 20, 2, (hy_request_options){0});
    hy_request *c = request(other + 50, 500, 2, (hy_request_options){0});
    plan();
    const step *p = given[given_count - 1];
    int32_t rows[3] = {0};
    for (int32_t i = 0; i < p->member_count; i++) {
        const hy_request *r = p->member[i].request;
        rows[r == a ? 0 : r == b ? 1 : 2] += p->member[i].rows;
    }
    assert_int_equal(rows[1], 20); /* all of it */
    assert_int_equal(rows[2], 12); /* what is left of half */
    assert_int_equal(rows[0], 32);
    compute();
    run_all();
    finished(a, 2), finished(b, 2), finished(c, 2);
    close_world();
}

static void test_watermark(void **state)
{
    (void)state;
    open_world(10, (scheduler_options){.max_sequences = 8, .max_rows = 2000, .spare = 3}, false);
    hy_request *a = request(text, 4 * BLOCK, 1, (hy_request_options){0});
    hy_request *b = request(other, 4 * BLOCK, 1, (hy_request_options){0});
    plan();
    assert_int_equal(sched.running_count, 1); /* eight of ten would be used */
    hy_request *c = request(text + 9, 1, 1, (hy_request_options){0});
    plan();
    assert_int_equal(sched.running_count, 1); /* nobody passes the first one */
    compute();
    run_all();
    finished(a, 1), finished(b, 1), finished(c, 1);
    /* Alone it may have all of it. */
    hy_request *d = request(text, 10 * BLOCK - 1, 1, (hy_request_options){0});
    run_all();
    finished(d, 1);
    close_world();
}

/* ---- Preemption ----------------------------------------------------------------------------------------------- */

static void test_preemption(void **state)
{
    (void)state;
    for (int by_priority = 0; by_priority < 2; by_priority++) {
        open_world(8, (scheduler_options){.max_sequences = 8, .max_rows = 64, .by_priority = by_priority}, false);
        hy_request *r[6];
        for (int i = 0; i < 6; i++)
            r[i] = request(text + 40 * i, 100, 600, (hy_request_options){.priority = by_priority ? -i : 0});
        run_all();
        assert_true(sched.preemptions > 0);
        uint64_t sum = 0;
        for (int i = 0; i < 6; i++) sum += (uint64_t)r[i]->preemptions;
        assert_int_equal(sum, sched.preemptions);
        assert_int_equal(r[by_priority ? 5 : 0]->preemptions, 0); /* the first in rank */
        for (int i = 0; i < 6; i++) finished(r[i], 600);
        close_world();
    }
}

/* It ends, or is cancelled, between losing its cache and the end of the step that it still had rows in. */
static void test_an_end_beside_preemption(void **state)
{
    (void)state;
    for (int cancel = 0; cancel < 2; cancel++) {
        open_world(4, (scheduler_options){.max_sequences = 8, .max_rows = 64}, false);
        hy_request *a = request(text, 120, 300, (hy_request_options){0});
        hy_request *b = request(other, 200, 200, (hy_request_options){0});
        while (b->preemptions == 0) assert_true(turn_once());
        assert_true(b->waiting);
        if (cancel) end(b);
        run_all();
        if (cancel)
            close_request(b);
        else
            finished(b, 200);
        finished(a, 300);
        close_world();
    }
}

/* ---- One prompt, many answers --------------------------------------------------------------------------------- */

static void test_forks_compute_a_prompt_once(void **state)
{
    (void)state;
    for (int32_t prompt = 500; prompt < 520; prompt += 6)
        for (int tight = 0; tight < 2; tight++) {
            open_world(tight ? 14 : 40, usual, false);
            hy_request *r[8];
            for (int i = 0; i < 8; i++) r[i] = request(text, prompt, 1, (hy_request_options){.choice = i});
            run_all();
            assert_int_equal(rows_computed, prompt + 7);
            for (int i = 0; i < 8; i++) {
                assert_int_equal(r[i]->reuse.tokens, i == 0 ? 0 : prompt - 1);
                assert_int_equal(r[i]->miss, i == 0 ? HY_MISS_NEW : HY_MISS_NONE);
                finished(r[i], 1);
            }
            close_world();
        }
}

/* A common beginning of another length, and requests that have nothing to do with it, which pass. */
static void test_followers(void **state)
{
    (void)state;
    open_world(60, (scheduler_options){.max_sequences = 16, .max_rows = 64, .threshold = 40}, false);
    static int32_t mine[4][600];
    hy_request *r[4];
    for (int i = 0; i < 4; i++) {
        memcpy(mine[i], text, 450 * sizeof *text);
        for (int k = 450; k < 600; k++) mine[i][k] = 10 * i + k % 7;
        r[i] = request(mine[i], 600, 2, (hy_request_options){0});
    }
    hy_request *passing = request(other, 8, 5, (hy_request_options){0});
    hy_request *apart = request(text, 30, 2, (hy_request_options){.no_prefix_cache = true});
    turn_once();
    turn_once();
    assert_false(r[0]->waiting);
    assert_true(r[1]->waiting && r[2]->waiting && r[3]->waiting);
    while (r[1]->waiting) turn_once();
    assert_in_range(r[0]->cache.written, 450, 599); /* not longer than it has to */
    hy_request *salted = request(text, 600, 2, (hy_request_options){.cache_salt = "x"});
    run_all();
    assert_int_equal(rows_computed, 600 + 3 * 150 + 8 + 30 + 600 + 4 * 1 + 4 + 1 + 1);
    for (int i = 0; i < 4; i++) finished(r[i], 2);
    finished(passing, 5), finished(apart, 2), finished(salted, 2);
    close_world();
}

/* The one that others wait for goes: the next goes on where it was. */
static void test_a_leader_that_goes(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        open_world(40, usual, false);
        hy_request *r[4];
        for (int i = 0; i < 4; i++) r[i] = request(text, 700, 3, (hy_request_options){.choice = i});
        for (int i = 0; i < 5; i++) turn_once();
        assert_true(r[1]->waiting && r[2]->waiting && r[3]->waiting);
        if (how == 0)
            end(r[0]);
        else
            fail_next = true;
        run_all();
        assert_int_equal(r[0]->finish, how == 0 ? HY_FINISH_CANCEL : HY_FINISH_ERROR);
        close_request(r[0]);
        assert_in_range(r[1]->reuse.tokens, 4 * 64, 5 * 64);
        for (int i = 1; i < 4; i++) finished(r[i], 3);
        assert_in_range(rows_computed, 700 + 2 + 3 * 2, 700 + 2 + 3 * 2 + 2 * 64);
        close_world();
    }
}

/* ---- Ends at every moment ------------------------------------------------------------------------------------- */

static void test_cancel_at_every_moment(void **state)
{
    (void)state;
    bool over = false;
    for (int moment = 0; !over; moment++)
        for (int who = 0; who < 3; who++) {
            open_world(7, (scheduler_options){.max_sequences = 4, .max_rows = 100}, false);
            hy_request *r[3];
            for (int i = 0; i < 3; i++)
                r[i] = request(i == 2 ? other : text, 150 + i * 90, 130, (hy_request_options){0});
            int now = 0;
            bool cancelled = false;
            while (sched.running_count + sched.waiting.count + sched.leaving.count > 0 || given_count > 0) {
                int32_t rows = 0;
                for (int half = 0; half < 2; half++) {
                    if (half == 0)
                        rows = plan();
                    else if (given_count == 2 || (given_count == 1 && rows == 0))
                        compute();
                    if (now++ == moment && !r[who]->gone) {
                        end(r[who]);
                        cancelled = true;
                    }
                }
                if (now > 5000) fail_msg("nothing moves");
            }
            over = moment > now;
            for (int i = 0; i < 3; i++) {
                if (i == who && cancelled)
                    close_request(r[i]);
                else
                    finished(r[i], 130);
            }
            close_world();
            if (moment > 40) moment += 6; /* the beginnings are dense */
        }
}

/* A step fails while the next one is planned with rows of the same requests: they end once, the others go on. */
static void test_a_failed_step_with_one_behind_it(void **state)
{
    (void)state;
    for (int after = 0; after < 12; after++) {
        open_world(30, usual, false);
        hy_request *a = request(text, 100, 20, (hy_request_options){0});
        hy_request *b = request(other, 300, 20, (hy_request_options){0});
        for (int i = 0; i < after; i++) turn_once();
        while (given_count < 2) plan();
        hy_request *in[2] = {a, b};
        bool fails[2] = {false};
        for (int k = 0; k < 2; k++)
            for (int32_t m = 0; m < given[0]->member_count; m++) fails[k] |= given[0]->member[m].request == in[k];
        hy_request *c = request(text + 3, 40, 5, (hy_request_options){0});
        fail_next = true;
        compute();
        run_all();
        for (int k = 0; k < 2; k++) {
            assert_int_equal(in[k]->finish, fails[k] ? HY_FINISH_ERROR : HY_FINISH_LENGTH);
            close_request(in[k]);
        }
        finished(c, 5);
        close_world();
    }
}

/* ---- Tiers ---------------------------------------------------------------------------------------------------- */

static void poll_tiers(void)
{
    uint64_t damaged = 0;
    cache_poll(manager, &damaged);
}

/* Puts a prompt into the tiers and pushes it out of the cache. */
static void store_away(const int32_t *ids, int32_t count)
{
    hy_request *r = request(ids, count, 1, (hy_request_options){0});
    run_all();
    finished(r, 1);
    while (cache_save_one(manager)) {
    }
    static int32_t filler[LIMIT];
    static int32_t round;
    round++;
    for (int i = 0; i < LIMIT; i++) filler[i] = (i * 13 + round * 17) % 290;
    r = request(filler, cache_blocks(manager) * BLOCK - 1, 1, (hy_request_options){0});
    run_all();
    finished(r, 1);
    assert_int_equal(cache_peek(manager, NULL, ids, count), 0);
}

static void test_loads(void **state)
{
    (void)state;
    open_world(12, usual, true);
    store_away(text, 300);
    uint64_t before = rows_computed;
    hy_request *r = request(text, 310, 4, (hy_request_options){0});
    hy_request *beside = request(other, 5, 30, (hy_request_options){0});
    for (int i = 0; i < 5; i++) turn_once();
    assert_int_equal(r->cache.loading, 2);
    assert_int_equal(tiers.reads, 2);
    assert_in_range(beside->output_count, 3, 5); /* others go on */
    deliver(0, true), deliver(0, true);
    poll_tiers();
    run_all();
    assert_int_equal(r->reuse.memory, 256);
    assert_int_equal(rows_computed - before, 310 - 256 + 3 + 5 + 29);
    finished(r, 4), finished(beside, 30);
    /* One that ends while it is being read leaves when the last read has arrived. */
    store_away(text, 300);
    r = request(text, 310, 4, (hy_request_options){0});
    turn_once();
    assert_int_equal(r->cache.loading, 2);
    end(r);
    assert_false(r->done);
    deliver(1, true);
    poll_tiers(), release();
    assert_false(r->done);
    deliver(0, false);
    poll_tiers(), release();
    close_request(r);
    close_world();
}

/* One that is being read keeps its blocks, whoever needs some: the other waits, and takes them when they have come. */
static void test_loading_is_not_preempted(void **state)
{
    (void)state;
    open_world(6, usual, true);
    store_away(text, 300);
    hy_request *decodes = request(other, 3 * BLOCK - 3, 200, (hy_request_options){0});
    while (decodes->output_count < 1) turn_once();
    hy_request *r = request(text, 300, 2, (hy_request_options){0});
    turn_once();
    assert_int_equal(r->cache.loading, 2);
    for (int i = 0; i < 10; i++) turn_once();
    assert_int_equal(r->preemptions + decodes->preemptions, 0);
    assert_in_range(request_known(decodes), 3 * BLOCK, 3 * BLOCK + 1); /* no room for more */
    while (!decodes->done || !r->done) {                               /* what it lost is read again */
        while (tiers.reads > 0) deliver(0, true);
        poll_tiers();
        turn_once();
    }
    run_all();
    assert_int_equal(decodes->preemptions, 0);
    assert_true(r->preemptions > 0);
    finished(decodes, 200), finished(r, 2);
    close_world();
}

/* It ends when its copy is planned and it has no rows: what is copied to stays its own until the copy is made, or a
 * read from the tiers could be overwritten by it. */
static void test_an_end_before_a_copy(void **state)
{
    (void)state;
    open_world(14, (scheduler_options){.max_sequences = 4, .max_rows = 64, .by_priority = true}, true);
    store_away(text, 300);
    hy_request *r = request(text, 300, 2, (hy_request_options){0});
    turn_once();
    assert_int_equal(r->cache.loading, 2);
    hy_request *holds = request(text, 290, 100, (hy_request_options){.no_prefix_cache = true});
    while (holds->output_count < 5) turn_once();
    hy_request *busy = request(other, 600, 2, (hy_request_options){.priority = -1});
    turn_once();
    deliver(0, true), deliver(0, true);
    poll_tiers();
    plan();
    const step *p = given[1];
    assert_int_equal(p->copy_count, 1);
    assert_int_equal(r->cache.written, 290);
    assert_int_equal(p->rows.count, 64);
    for (int32_t i = 0; i < p->member_count; i++) assert_ptr_not_equal(p->member[i].request, r);
    compute();
    int32_t used = cache_used(manager);
    end(r);
    assert_false(r->done);
    assert_int_equal(cache_used(manager), used);
    run_all();
    close_request(r);
    finished(holds, 100), finished(busy, 2);
    close_world();
}

/* ---- A storm -------------------------------------------------------------------------------------------------- */

enum { CROWD = 40 };

static uint32_t dice;

static uint32_t roll(uint32_t sides)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % sides;
}

static hy_request *draw_request(int32_t size)
{
    static int32_t prompt[LIMIT];
    static const char *const salts[] = {NULL, NULL, NULL, "x"};
    int32_t most = size * BLOCK < 1200 ? size * BLOCK : 1200, count = 1 + (int32_t)roll((uint32_t)most - 60);
    int32_t same = (int32_t)roll((uint32_t)count + 1), mark = (int32_t)roll(20);
    for (int32_t i = 0; i < count; i++) prompt[i] = i < same ? (mark & 1 ? text : other)[i] : (i * 3 + mark * 11) % 290;
    int32_t made = 1 + (int32_t)roll(roll(3) ? 20 : (uint32_t)(most - count));
    return request(prompt, count, made,
                   (hy_request_options){
                       .priority = (int32_t)roll(3), .cache_salt = salts[roll(4)], .no_prefix_cache = roll(12) == 0});
}

/* Reads arrive at any moment: between planning and computing above all. */
static void arrivals(void)
{
    while (tiers.reads > 0 && roll(3)) deliver((int)roll((uint32_t)tiers.reads), roll(15) > 0);
    if (roll(3) == 0) cache_save_one(manager);
    if (roll(60) == 0) {
        struct stored *e = &tiers.stored[roll(STORED)];
        bool read = false;
        for (int i = 0; i < tiers.reads; i++) read |= tiers.read[i].of == e;
        if (!read && e->place != STORE_NOWHERE) e->place = STORE_NOWHERE, tiers.room++;
    }
}

static int storm_loads, storm_errors, storm_cancels;
static uint64_t storm_preemptions;

static void storm(int32_t size, scheduler_options o, bool with_tiers, int requests)
{
    hy_request *crowd[CROWD] = {0};
    int made = 0, alive = 0, moves = 0;
    open_world(size, o, with_tiers);
    while (made < requests || alive > 0) {
        if (made < requests && alive < CROWD && roll(3) == 0) {
            for (int i = 0; i < CROWD; i++)
                if (!crowd[i]) {
                    crowd[i] = draw_request(size);
                    made++, alive++;
                    break;
                }
        }
        if (roll(25) == 0) {
            hy_request *r = crowd[roll(CROWD)];
            if (r && !r->gone) end(r), storm_cancels++;
        }
        if (roll(150) == 0) fail_next = true;
        int reads = tiers.reads;
        poll_tiers(), release();
        int32_t rows = plan();
        storm_loads += tiers.reads > reads;
        arrivals();
        bool copies = given_count > 0 && rows == 0 && steps[next_step ^ 1].copy_count > 0;
        if (given_count == 2 || (given_count == 1 && rows == 0) || copies) compute();
        arrivals();
        for (int i = 0; i < CROWD; i++) {
            hy_request *r = crowd[i];
            if (!r || !r->done) continue;
            storm_errors += r->finish == HY_FINISH_ERROR;
            if (r->finish == HY_FINISH_LENGTH) assert_int_equal(request_known(r), r->limit);
            hy_request_close(r);
            crowd[i] = NULL, alive--;
        }
        if (++moves > 200000) fail_msg("nothing moves: %d of %d came, %d are there", made, requests, alive);
    }
    storm_preemptions += sched.preemptions;
    while (given_count > 0) compute();
    close_world();
}

static void test_storm(void **state)
{
    (void)state;
    dice = 1;
    storm_loads = storm_errors = storm_cancels = 0, storm_preemptions = 0;
    storm(12, (scheduler_options){.max_sequences = 8, .max_rows = 64}, false, 300);
    storm(12, (scheduler_options){.max_sequences = 8, .max_rows = 64}, true, 300);
    storm(5, (scheduler_options){.max_sequences = 16, .max_rows = 200, .by_priority = true}, true, 300);
    storm(30, (scheduler_options){.max_sequences = 30, .max_rows = 300, .threshold = 50, .spare = 2}, true, 300);
    storm(16, (scheduler_options){.max_sequences = 5, .max_rows = 3}, false, 30);
    assert_true(storm_loads > 20 && storm_errors > 0 && storm_cancels > 50 && storm_preemptions > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_order, per_test),
        cmocka_unit_test_setup(test_threshold, per_test),
        cmocka_unit_test_setup(test_a_long_prompt_holds_nobody_up, per_test),
        cmocka_unit_test_setup(test_watermark, per_test),
        cmocka_unit_test_setup(test_preemption, per_test),
        cmocka_unit_test_setup(test_an_end_beside_preemption, per_test),
        cmocka_unit_test_setup(test_forks_compute_a_prompt_once, per_test),
        cmocka_unit_test_setup(test_followers, per_test),
        cmocka_unit_test_setup(test_a_leader_that_goes, per_test),
        cmocka_unit_test_setup(test_cancel_at_every_moment, per_test),
        cmocka_unit_test_setup(test_a_failed_step_with_one_behind_it, per_test),
        cmocka_unit_test_setup(test_loads, per_test),
        cmocka_unit_test_setup(test_loading_is_not_preempted, per_test),
        cmocka_unit_test_setup(test_an_end_before_a_copy, per_test),
        cmocka_unit_test_setup(test_storm, per_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
