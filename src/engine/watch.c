#include "engine/watch.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"

/* What a thread announces. It is its only writer, so plain loads and stores do; a reader that wants phase, detail and
 * time of one announcement reads until `count` stood still. Each lane has a cache line to itself. */
typedef struct lane {
    _Alignas(64) atomic_uint_fast64_t count; /* odd while the others are being written */
    atomic_int phase;
    atomic_int_fast64_t detail;
    atomic_int_fast64_t since;               /* ns */
    atomic_int_fast64_t spent[WATCH_PHASES]; /* ns, of phases that have ended */
} lane;

typedef struct announced {
    uint64_t count;
    watch_phase phase;
    int64_t detail, since, spent;
    int64_t now; /* it was the last announcement then */
} announced;

typedef struct schedule {
    watch_row row[WATCH_ROWS];
    int32_t count, requests, waiting;
} schedule;

/* Of the watch's thread. */
typedef struct looking {
    hy_engine_stats told;                                                    /* as of the last line */
    uint64_t queries[WATCH_WINDOW], hits[WATCH_WINDOW], tiers[WATCH_WINDOW]; /* as of the last lines, a ring */
    int line;                                                                /* next place of the ring */
    double period;                                                           /* when the time of the next line began */
    bool quiet;                                                              /* the line of no work was written */
    bool stalled;                                                            /* the word was given */
    uint64_t stall_count;                                                    /* announcements when it was */
    double stall_since, work_since; /* work_since 0: there was none at the last look */
} looking;

struct watch {
    lane lane[WATCH_THREADS];
    watch_options o;
    pthread_mutex_t schedule_lock;
    schedule step; /* under schedule_lock */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    looking at;
    bool running; /* the thread was started */
    bool stop;    /* under lock */
};

/* ---- Announcing ------------------------------------------------------------------------------------------------ */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#define STORE(to, value) atomic_store_explicit(to, value, memory_order_release)
#define LOAD(from) atomic_load_explicit(from, memory_order_acquire)

void watch_enter(watch *w, watch_thread thread, watch_phase phase, int64_t detail)
{
    lane *l = &w->lane[thread];
    watch_phase before = (watch_phase)LOAD(&l->phase);
    uint64_t count = LOAD(&l->count);
    /* An exchange: what is written after it cannot be seen before it. The time is taken behind it too, so that whoever
     * still saw the phase before did so earlier: seconds never go back. */
    atomic_exchange(&l->count, count + 1);
    int64_t now = now_ns();
    STORE(&l->spent[before], LOAD(&l->spent[before]) + now - LOAD(&l->since));
    STORE(&l->phase, (int)phase);
    STORE(&l->detail, detail);
    STORE(&l->since, now);
    STORE(&l->count, count + 2);
}

/* What a thread announced last, with the seconds that it had spent in `phase` before. */
static announced read_lane(const watch *w, watch_thread thread, watch_phase phase)
{
    lane *l = &((watch *)w)->lane[thread]; /* atomic_load takes no const in C17 */
    announced a;
    do {
        a.count = LOAD(&l->count);
        a.phase = (watch_phase)LOAD(&l->phase);
        a.detail = LOAD(&l->detail);
        a.since = LOAD(&l->since);
        a.spent = LOAD(&l->spent[phase]);
        a.now = now_ns();
    } while (a.count % 2 || LOAD(&l->count) != a.count);
    return a;
}

double watch_seconds(const watch *w, watch_thread thread, watch_phase phase)
{
    announced a = read_lane(w, thread, phase);
    if (a.phase == phase) a.spent += a.now - a.since;
    return (double)a.spent * 1e-9;
}

void watch_schedule(watch *w, const watch_row *rows, int32_t count, int32_t requests, int32_t waiting)
{
    int32_t kept = count < WATCH_ROWS ? count : WATCH_ROWS;
    pthread_mutex_lock(&w->schedule_lock);
    if (kept > 0) memcpy(w->step.row, rows, (size_t)kept * sizeof *rows);
    w->step.count = kept, w->step.requests = requests, w->step.waiting = waiting;
    pthread_mutex_unlock(&w->schedule_lock);
}

/* ---- The line -------------------------------------------------------------------------------------------------- */

static double percent(uint64_t part, uint64_t of)
{
    return of > 0 ? 100.0 * (double)part / (double)of : 0;
}

/* A rate since the last line; counters that went back (they do not) give 0. */
static double rate(uint64_t now, uint64_t before, double seconds)
{
    return now > before && seconds > 0 ? (double)(now - before) / seconds : 0;
}

static bool has_tiers(const hy_engine_stats *s)
{
    return s->memory_blocks + s->disk_blocks + s->disk_written + s->memory_hits + s->disk_hits > 0;
}

static void write_line(watch *w, const hy_engine_stats *s, double seconds)
{
    looking *a = &w->at;
    const hy_engine_stats *t = &a->told;
    char preempted[48] = "", external[64] = "";
    uint64_t tiers = s->memory_hits + s->disk_hits;
    uint64_t queries = s->prefix_queries - a->queries[a->line], hits = s->prefix_hits - a->hits[a->line];
    if (s->preemptions > t->preemptions)
        snprintf(preempted, sizeof preempted, "Preemptions: %" PRIu64 ", ", s->preemptions - t->preemptions);
    if (has_tiers(s))
        snprintf(external, sizeof external, ", External prefix cache hit rate: %.1f%%",
                 percent(tiers - a->tiers[a->line], queries > hits ? queries - hits : 0));
    log_line(HY_LOG_INFO,
             "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, Running: %d "
             "reqs, Waiting: %d reqs, %sGPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%%s",
             rate(s->prompt_tokens, t->prompt_tokens, seconds), rate(s->generated_tokens, t->generated_tokens, seconds),
             s->running, s->waiting, preempted, 100 * s->cache_usage, percent(hits, queries), external);
    a->queries[a->line] = s->prefix_queries, a->hits[a->line] = s->prefix_hits, a->tiers[a->line] = tiers;
    a->line = (a->line + 1) % WATCH_WINDOW;
}

/* The acceptance length counts the target's own token of a round. */
static void write_drafts(const hy_engine_stats *s, const hy_engine_stats *told, double seconds)
{
    char list[HY_MAX_DRAFTS * 8] = "";
    uint64_t rounds = s->draft_rounds - told->draft_rounds, drafts = s->drafts - told->drafts,
             accepted = s->drafts_accepted - told->drafts_accepted;
    if (s->draft_rounds <= told->draft_rounds) return;
    for (int i = 0; i < s->draft_positions && i < HY_MAX_DRAFTS; i++) {
        size_t n = strlen(list);
        double part = (double)(s->drafts_accepted_at[i] - told->drafts_accepted_at[i]) / (double)rounds;
        snprintf(list + n, sizeof list - n, "%s%.3f", i ? ", " : "", part);
    }
    log_line(HY_LOG_INFO,
             "SpecDecoding metrics: Mean acceptance length: %.2f, Accepted throughput: %.2f tokens/s, Drafted "
             "throughput: %.2f tokens/s, Accepted: %" PRIu64 " tokens, Drafted: %" PRIu64
             " tokens, Per-position acceptance rate: %s, Avg Draft acceptance rate: %.1f%%",
             1 + (double)accepted / (double)rounds, rate(s->drafts_accepted, told->drafts_accepted, seconds),
             rate(s->drafts, told->drafts, seconds), accepted, drafts, list, percent(accepted, drafts));
}

static void write_extra(watch *w)
{
    char buffer[WATCH_EXTRA];
    const char *line = w->o.extra ? w->o.extra(w->o.user, buffer, sizeof buffer) : NULL;
    if (line) log_line(HY_LOG_INFO, "%s", line);
}

/* Whether anything happened since the last line. */
static bool worked(const hy_engine_stats *s, const hy_engine_stats *told)
{
    return s->running + s->waiting > 0 || s->steps != told->steps || s->requests_finished != told->requests_finished;
}

/* `last`: the watch closes. */
static void look_line(watch *w, const hy_engine_stats *s, double now, bool last)
{
    looking *a = &w->at;
    bool work = worked(s, &a->told);
    if (a->quiet && !work) {
        a->period = now; /* the time of the next line begins with the work */
        return;
    }
    a->quiet = false;
    if (last ? !work : now - a->period < w->o.log_seconds) return;
    write_line(w, s, now - a->period);
    write_drafts(s, &a->told, now - a->period);
    if (work) write_extra(w);
    a->quiet = !work;
    a->told = *s, a->period = now;
}

/* ---- The word -------------------------------------------------------------------------------------------------- */

static const char *phase_text(const watch *w, const announced *a, char out[64])
{
    static const char *const names[WATCH_PHASES] = {
        [WATCH_IDLE] = "idle",
        [WATCH_WAIT] = "waiting for the other thread",
        [WATCH_PLAN] = "planning",
        [WATCH_SPILL] = "copying blocks to or from a tier",
        [WATCH_TURN] = "waiting for another engine of this model",
        [WATCH_SAMPLE] = "sampling",
        [WATCH_DRAFT] = "drafting",
    };
    if (a->phase == WATCH_HAND_OUT)
        snprintf(out, 64, "in a callback of request %" PRId64, a->detail);
    else if (a->phase != WATCH_FORWARD)
        snprintf(out, 64, "%s", names[a->phase]);
    else if (a->detail < 0)
        snprintf(out, 64, "computing, before the first layer");
    else if (w->o.layers > 0 && a->detail >= w->o.layers)
        snprintf(out, 64, "computing, in the head");
    else
        snprintf(out, 64, "computing, in layer %" PRId64, a->detail);
    return out;
}

static void write_word(watch *w, const announced lanes[WATCH_THREADS], const hy_engine_stats *s, double seconds)
{
    char planner[64], runner[64];
    schedule step;
    int64_t now = now_ns();
    pthread_mutex_lock(&w->schedule_lock);
    step = w->step;
    pthread_mutex_unlock(&w->schedule_lock);
    log_line(HY_LOG_WARNING,
             "Engine 000: nothing has moved for %.1f s: the planner is %s for %.1f s, the runner %s for %.1f s; %d "
             "requests run, %d wait; the last step had %d requests, %d waited",
             seconds, phase_text(w, &lanes[WATCH_PLANNER], planner), (double)(now - lanes[WATCH_PLANNER].since) * 1e-9,
             phase_text(w, &lanes[WATCH_RUNNER], runner), (double)(now - lanes[WATCH_RUNNER].since) * 1e-9, s->running,
             s->waiting, step.requests, step.waiting);
    for (int32_t i = 0; i < step.count; i++) {
        const watch_row *r = &step.row[i];
        log_line(HY_LOG_WARNING,
                 "Engine 000: request %" PRIu64 ": %d of its %d tokens are in the cache, %d rows in the step",
                 r->request, r->computed, r->known, r->rows);
    }
    if (step.requests > step.count)
        log_line(HY_LOG_WARNING, "Engine 000: and %d requests more", step.requests - step.count);
}

static void look_stall(watch *w, const hy_engine_stats *s, double now)
{
    looking *a = &w->at;
    announced lanes[WATCH_THREADS];
    uint64_t count = 0;
    int64_t latest = 0;
    bool busy = s->running + s->waiting > 0;
    for (int i = 0; i < WATCH_THREADS; i++) {
        lanes[i] = read_lane(w, (watch_thread)i, WATCH_IDLE);
        count += lanes[i].count;
        if (lanes[i].since > latest) latest = lanes[i].since;
        busy |= lanes[i].phase != WATCH_IDLE && !(i == WATCH_RUNNER && lanes[i].phase == WATCH_WAIT);
    }
    if (a->stalled && count != a->stall_count) {
        log_line(HY_LOG_INFO, "Engine 000: moves again after %.1f s", now - a->stall_since);
        a->stalled = false;
    }
    if (!busy) a->work_since = 0;
    if (busy && a->work_since == 0) a->work_since = now;
    /* A request that came to a sleeping thread a moment ago is no stall yet. */
    double since = (double)latest * 1e-9;
    if (since < a->work_since) since = a->work_since;
    if (!busy || a->stalled || now - since < w->o.stall_seconds) return;
    a->stalled = true, a->stall_count = count, a->stall_since = since;
    write_word(w, lanes, s, now - since);
}

/* ---- The thread ------------------------------------------------------------------------------------------------ */

/* Seconds between two looks: a second, and a few looks in each time that was asked for. */
static double look_seconds(const watch_options *o)
{
    double s = 1;
    if (o->log_seconds > 0 && o->log_seconds / 4 < s) s = o->log_seconds / 4;
    if (o->stall_seconds > 0 && o->stall_seconds / 4 < s) s = o->stall_seconds / 4;
    return s < 0.001 ? 0.001 : s;
}

/* Sleeps until then, or until the watch is to close: false. */
static bool sleep_until(watch *w, double then)
{
    struct timespec t = {.tv_sec = (time_t)then};
    t.tv_nsec = (long)((then - (double)t.tv_sec) * 1e9);
    pthread_mutex_lock(&w->lock);
    while (!w->stop && clock_seconds() < then) pthread_cond_timedwait(&w->wake, &w->lock, &t);
    bool go_on = !w->stop;
    pthread_mutex_unlock(&w->lock);
    return go_on;
}

static void *watch_main(void *arg)
{
    watch *w = arg;
    hy_engine_stats stats;
    double pause = look_seconds(&w->o);
    bool go_on = true;
    while (go_on) {
        go_on = sleep_until(w, clock_seconds() + pause);
        double now = clock_seconds();
        memset(&stats, 0, sizeof stats);
        w->o.describe(w->o.user, &stats);
        if (w->o.log_seconds > 0) look_line(w, &stats, now, !go_on);
        if (w->o.stall_seconds > 0 && go_on) look_stall(w, &stats, now);
    }
    return NULL;
}

static void free_watch(watch *w)
{
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->schedule_lock);
    memory_free(w);
}

hy_status watch_open(const watch_options *options, watch **out, hy_error *err)
{
    watch *w = memory_zeroed(1, sizeof *w);
    if (!w) return error_memory(err, "the engine's watch", sizeof *w);
    w->o = *options;
    w->at.quiet = true, w->at.period = clock_seconds();
    for (int i = 0; i < WATCH_THREADS; i++) atomic_store(&w->lane[i].since, now_ns());
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->schedule_lock, NULL);
    w->running = options->log_seconds > 0 || options->stall_seconds > 0;
    *out = w; /* before the thread, whose `describe` may ask what the caller has here */
    if (w->running && pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        *out = NULL;
        free_watch(w);
        return error_set(err, HY_FAILED,
                         "could not start the thread that watches the engine: the system has no room for another one");
    }
    return HY_OK;
}

void watch_close(watch *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    if (w->running) pthread_join(w->thread, NULL);
    free_watch(w);
}
