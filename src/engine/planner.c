/*
 * The planner: takes in what was submitted, drops what was cancelled, plans the next step while one runs, and
 * hands out the tokens of the one that is over while the next runs. Callbacks run here with no lock held, so they may
 * submit and cancel.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_parts.h"

enum { TICK_NS = 20000000 }; /* between looks at deadlines and unsaved blocks when nothing wakes the thread */

static void publish(hy_engine *e)
{
    atomic_store(&e->running, e->sched.running_count);
    atomic_store(&e->blocks_used, cache_used(e->manager));
    atomic_store(&e->preemptions, e->sched.preemptions);
}

/* ---- What a request reuses -------------------------------------------------------------------------------------- */

void planner_admitted(void *engine, hy_request *r)
{
    hy_engine *e = engine;
    /* Text that has been computed since it changed is found all the same: then something behind it is new. */
    int32_t apart = r->changed - r->reuse.tokens;
    if (r->changed >= 0 && r->miss == HY_MISS_NEW && apart >= 0 && apart <= CACHE_BLOCK) r->miss = HY_MISS_TEMPLATE;
    if (r->miss == HY_MISS_TEMPLATE)
        snprintf(r->reuse.miss, sizeof r->reuse.miss, "template changed at token %d", r->changed);
    else if (r->miss != HY_MISS_NONE)
        snprintf(r->reuse.miss, sizeof r->reuse.miss, "%s", hy_miss_name(r->miss));
    atomic_fetch_add(&e->misses[r->miss], 1);
    atomic_fetch_add(&e->prefix_absent, (uint64_t)(r->prompt_count - r->reuse.cache));
    atomic_fetch_add(&e->prefix_hits, (uint64_t)r->reuse.cache);
    atomic_fetch_add(&e->memory_hits, (uint64_t)r->reuse.memory);
    atomic_fetch_add(&e->disk_hits, (uint64_t)r->reuse.disk);
    if (r->miss > HY_MISS_NEW && r->miss != HY_MISS_OFF)
        log_line(r->miss == HY_MISS_DAMAGED ? HY_LOG_WARNING : HY_LOG_DEBUG,
                 "request %" PRIu64 ": %d of %d prompt tokens were there; %s", r->number, r->reuse.tokens,
                 r->prompt_count, r->reuse.miss);
}

/* ---- Ends ------------------------------------------------------------------------------------------------------- */

/* What it said is remembered, and it leaves when nothing uses it any more. Its owner is told afterwards. */
static void let_go(hy_engine *e, hy_request *r)
{
    if (r->finish == HY_FINISH_ERROR)
        atomic_fetch_add(&e->failed, 1);
    else if (r->finish == HY_FINISH_CANCEL)
        atomic_fetch_add(&e->cancelled, 1);
    meters_end(&e->meters, r, clock_seconds());
    if (r->waiting) atomic_fetch_sub(&e->waiting, 1);
    if (e->replay && r->rendered && r->output_count > 0)
        replay_record(e->replay, r->salt, r->ids, r->prompt_count, request_known(r));
    scheduler_end(&e->sched, r);
}

static void end_request(hy_engine *e, hy_request *r, hy_finish finish, const hy_error *error)
{
    watch_enter(e->watch, WATCH_PLANNER, WATCH_HAND_OUT, (int64_t)r->number);
    hy_event event = request_end(r, finish, error);
    let_go(e, r);
    request_tell(r, &event);
}

static void release(hy_engine *e)
{
    for (hy_request *r; (r = scheduler_release(&e->sched));) {
        publish(e);
        atomic_fetch_add(&e->finished, 1);
        request_done(r);
    }
}

/* Ends what its owner does not want any more, and what is too late; with `all`, everything. */
static void sweep_one(hy_engine *e, hy_request *r, double now, bool all)
{
    if (all || atomic_load_explicit(&r->cancel, memory_order_relaxed)) {
        end_request(e, r, HY_FINISH_CANCEL, NULL);
    } else if (r->deadline > 0 && now >= r->deadline) {
        hy_error error;
        error_set(&error, HY_LATE, "the deadline of %.3g seconds passed after %d tokens of the answer",
                  r->deadline - r->asked, r->output_count);
        end_request(e, r, HY_FINISH_ERROR, &error);
    }
}

static void sweep(hy_engine *e, bool all)
{
    double now = clock_seconds();
    for (int32_t i = e->sched.running_count; i > 0; i--) sweep_one(e, e->sched.running[i - 1], now, all);
    for (hy_request *r = e->sched.waiting.first, *next; r; r = next) {
        next = r->next;
        sweep_one(e, r, now, all);
    }
}

/* ---- A step that is over ---------------------------------------------------------------------------------------- */

/* A step that failed fails those who had rows in it; the others and those to come go on. */
static void fail_step(hy_engine *e, const step *s)
{
    log_line(HY_LOG_ERROR, "a step of %d rows failed: %s", s->rows.count, s->error.message);
    for (int32_t i = 0; i < s->member_count; i++)
        if (!s->member[i].dropped && !s->member[i].request->gone)
            end_request(e, s->member[i].request, HY_FINISH_ERROR, &s->error);
}

/* Counts the rounds of a step. */
static void count_drafts(hy_engine *e, const step *s)
{
    for (int32_t m = 0; m < s->member_count; m++) {
        const step_member *x = &s->member[m];
        if (x->verified == 0 || x->dropped || x->request->gone) continue;
        x->request->draft_rounds++;
        x->request->drafts_verified += x->verified;
        x->request->drafts_accepted += x->accepted;
        atomic_fetch_add(&e->draft_rounds, 1);
        atomic_fetch_add(&e->drafts, (uint64_t)x->verified);
        atomic_fetch_add(&e->drafts_accepted, (uint64_t)x->accepted);
        for (int32_t i = 0; i < x->accepted; i++) atomic_fetch_add(&e->drafts_accepted_at[i], 1);
    }
}

/* Nothing was left to choose: what the request asks for contradicts itself, or something here is wrong. */
static void fail_choice(hy_engine *e, hy_request *r, int32_t why)
{
    hy_error error;
    bool asked = why == SAMPLED_MASKED;
    if (asked)
        error_set(&error, HY_BAD_INPUT,
                  "no token is left to choose for position %d: what this request allows, forbids and demands (allowed "
                  "ids, bias, bad words, penalties, grammar, end of thinking) leaves none",
                  request_known(r));
    else
        error_set(&error, HY_FAILED, "no token is left to choose for position %d: its logits are not finite%s",
                  request_known(r), r->params.grammar ? ", or its grammar could not go on" : "");
    log_line(asked ? HY_LOG_INFO : HY_LOG_ERROR, "request %" PRIu64 ": %s", r->number, error.message);
    end_request(e, r, HY_FINISH_ERROR, &error);
}

static void hand_out(hy_engine *e, const step *s)
{
    int32_t of_group = 0;
    count_drafts(e, s);
    for (int32_t i = 0; i < s->pick_count; i++) {
        hy_request *r = s->pick[i];
        if (r->gone) continue;
        if (s->score[i] && s->sampled[i].id >= 0) request_score(r, (int32_t)s->sample[i].position, &s->sampled[i]);
        if (s->score[i]) continue;
        /* Of rows that verify drafts those tell something that came before the first draft that was not accepted. */
        of_group = s->follows[i] ? of_group + 1 : 0;
        if (of_group >= s->member[s->pick_member[i]].came) continue;
        watch_enter(e->watch, WATCH_PLANNER, WATCH_HAND_OUT, (int64_t)r->number);
        if (s->sampled[i].id < 0) {
            fail_choice(e, r, s->sampled[i].id);
            continue;
        }
        atomic_fetch_add(&e->generated_tokens, 1);
        double before = r->last_token;
        hy_event event = request_token(r, &s->sampled[i], s->final[i]);
        meters_token(&e->meters, r, before);
        if (r->finish != HY_RUNNING) let_go(e, r);
        request_tell(r, &event);
    }
}

static void complete(hy_engine *e, step *s)
{
    watch_enter(e->watch, WATCH_PLANNER, WATCH_HAND_OUT, 0);
    scheduler_prompts prompts = scheduler_finished(&e->sched, s);
    if (s->status == HY_OK && s->rows.count > 0) {
        atomic_fetch_add(&e->steps, 1);
        atomic_fetch_add(&e->rows, (uint64_t)s->rows.count);
        atomic_fetch_add(&e->prompt_computed, (uint64_t)(prompts.tokens - prompts.cached - prompts.loaded));
        atomic_fetch_add(&e->prompt_cached, (uint64_t)prompts.cached);
        atomic_fetch_add(&e->prompt_loaded, (uint64_t)prompts.loaded);
        atomic_store(&e->failing_steps, 0);
        meters_step(&e->meters, s->rows.count);
    }
    if (s->status == HY_OK) {
        hand_out(e, s);
    } else {
        atomic_fetch_add(&e->failing_steps, 1);
        fail_step(e, s);
    }
    release(e);
    publish(e);
}

/* ---- The loop --------------------------------------------------------------------------------------------------- */

static bool has_work(const hy_engine *e)
{
    return e->sched.running_count > 0 || e->sched.waiting.count > 0 || e->sched.leaving.count > 0;
}

/* Under the lock: until something changes, or a tick. */
static void wait_changed(hy_engine *e)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_NS;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    pthread_cond_timedwait(&e->changed, &e->lock, &until);
}

/* Uses the time while a step runs, or nothing does, to save one block. Called and returns with the lock. */
static bool save_meanwhile(hy_engine *e)
{
    pthread_mutex_unlock(&e->lock);
    watch_enter(e->watch, WATCH_PLANNER, WATCH_SPILL, 0);
    bool saved = cache_save_one(e->manager);
    pthread_mutex_lock(&e->lock);
    return saved;
}

/* Until it is time to plan: a step is near its end, or there is none and something to do. False: the engine stops. */
static bool wait_to_plan(hy_engine *e, bool idle)
{
    pthread_mutex_lock(&e->lock);
    while (!e->stop && !e->arrived) {
        if (runner_pending(e->runner) > 0 ? runner_over(e->runner) || runner_near_end(e->runner)
                                          : e->intake.count > 0 || !idle)
            break;
        /* Saving lets go of the lock: what is signalled meanwhile is lost, so only a wait with an end may follow it. */
        if (cache_unsaved(e->manager) > 0 && save_meanwhile(e)) continue;
        bool work = runner_pending(e->runner) > 0 || has_work(e);
        watch_enter(e->watch, WATCH_PLANNER, work ? WATCH_WAIT : WATCH_IDLE, 0);
        if (work || cache_unsaved(e->manager) > 0)
            wait_changed(e);
        else
            pthread_cond_wait(&e->changed, &e->lock);
        if (runner_pending(e->runner) == 0 && has_work(e)) break; /* deadlines */
    }
    while (e->intake.first) {
        hy_request *r = e->intake.first;
        queue_remove(&e->intake, r);
        scheduler_add(&e->sched, r);
    }
    e->arrived = false;
    bool go_on = !e->stop;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

static void complete_oldest(hy_engine *e)
{
    pthread_mutex_lock(&e->lock);
    watch_enter(e->watch, WATCH_PLANNER, WATCH_WAIT, 0);
    while (!runner_over(e->runner)) pthread_cond_wait(&e->changed, &e->lock);
    step *s = runner_take(e->runner);
    pthread_mutex_unlock(&e->lock);
    complete(e, s);
}

static void show_schedule(hy_engine *e, const step *s)
{
    watch_row rows[WATCH_ROWS];
    int32_t n = s->member_count < WATCH_ROWS ? s->member_count : WATCH_ROWS;
    for (int32_t i = 0; i < n; i++) {
        const hy_request *r = s->member[i].request;
        rows[i] = (watch_row){r->number, request_known(r) + r->pending, s->member[i].begin, s->member[i].rows};
    }
    watch_schedule(e->watch, rows, n, e->sched.running_count, e->sched.waiting.count);
}

/* Returns whether a step was given to the runner. */
static bool plan(hy_engine *e)
{
    step *s = &e->step[e->next_step];
    int32_t waiting = e->sched.waiting.count;
    scheduler_plan(&e->sched, s);
    atomic_fetch_add(&e->waiting, e->sched.waiting.count - waiting);
    publish(e);
    if (s->rows.count == 0 && s->copy_count == 0) return false;
    show_schedule(e, s);
    e->next_step ^= 1;
    pthread_mutex_lock(&e->lock);
    runner_submit(e->runner, s);
    pthread_mutex_unlock(&e->lock);
    return true;
}

static int pending(hy_engine *e)
{
    pthread_mutex_lock(&e->lock);
    int n = runner_pending(e->runner);
    pthread_mutex_unlock(&e->lock);
    return n;
}

void *planner_main(void *engine)
{
    hy_engine *e = engine;
    bool idle = true; /* planning again would plan nothing */
    while (wait_to_plan(e, idle)) {
        uint64_t damaged = 0;
        watch_enter(e->watch, WATCH_PLANNER, WATCH_PLAN, 0);
        cache_poll(e->manager, &damaged);
        atomic_fetch_add(&e->damaged, damaged);
        sweep(e, false);
        release(e);
        watch_enter(e->watch, WATCH_PLANNER, WATCH_PLAN, 0);
        bool planned = plan(e);
        int steps = pending(e);
        if (steps == 2 || (steps == 1 && !planned)) {
            complete_oldest(e);
            idle = false;
        } else {
            idle = !planned;
        }
    }
    sweep(e, true);
    while (pending(e) > 0) complete_oldest(e);
    for (uint64_t damaged = 0;;) { /* reads that have not arrived, or were not taken in before the stop was seen */
        cache_poll(e->manager, &damaged);
        release(e);
        if (e->sched.leaving.count == 0) break;
        pthread_mutex_lock(&e->lock);
        while (!e->arrived) pthread_cond_wait(&e->changed, &e->lock);
        e->arrived = false;
        pthread_mutex_unlock(&e->lock);
    }
    return NULL;
}
