/*
 * The real server over an engine whose tokens come from a clock, so that the server alone is measured; for load.py.
 *
 *     standin MODEL RATE spread|steps
 *
 * Every request gets RATE tokens a second, each the time at which it was made: " <microseconds of the realtime clock>".
 * `spread`: each at its own times; `steps`: all at the same ones, as a batch has them. The functions of the engine's
 * public API that the server uses are here in place of the real ones. Says "port N"; on SIGUSR1 "cpu SECONDS tokens N";
 * ends with SIGTERM.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/error.h"
#include "server/server.h"

enum { TICK_US = 500, LONGEST_US = 5000, TOKEN = 100 };

struct hy_request {
    hy_request *next;
    hy_event_fn on_event;
    void *user;
    size_t prompt_count;
    int32_t left;
    int64_t due; /* microseconds */
    atomic_bool cancelled;
    bool ended; /* under the lock */
};

/* Requests in the order in which tokens are due: all have the same period, so who got one goes to the end. */
static struct hy_engine {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the list and ended */
    pthread_cond_t change;
    hy_request *first, *last;
    int64_t period_us;
    bool steps;
    atomic_bool stopping, cancelled; /* all are looked at */
    atomic_int running;
    atomic_ullong tokens;
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Under the lock. */
static void append(hy_request *r)
{
    r->next = NULL;
    *(engine.first ? &engine.last->next : &engine.first) = r;
    engine.last = r;
}

/* ---- The engine's API ------------------------------------------------------------------------------------------ */

hy_sampling hy_sampling_defaults(const hy_model *model)
{
    (void)model;
    return (hy_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = -1, .logprobs = -1};
}

hy_request_options hy_request_defaults(const hy_model *model)
{
    return (hy_request_options){.sampling = hy_sampling_defaults(model)};
}

hy_status hy_engine_submit(hy_engine *e, const hy_request_options *o, hy_request **request, hy_error *err)
{
    hy_request *r = calloc(1, sizeof *r);
    if (!r) return error_memory(err, "a request", sizeof *r);
    r->on_event = o->on_event, r->user = o->user, r->prompt_count = o->prompt_count;
    r->left = o->sampling.max_tokens ? o->sampling.max_tokens : 16;
    int64_t now = now_us(), first = now + e->period_us;
    r->due = e->steps ? first - first % e->period_us : first;
    *request = r;
    pthread_mutex_lock(&e->lock);
    append(r);
    e->running++;
    pthread_mutex_unlock(&e->lock);
    return HY_OK;
}

void hy_request_cancel(hy_request *r)
{
    atomic_store(&r->cancelled, true);
    atomic_store(&engine.cancelled, true);
}

void hy_request_result(const hy_request *r, hy_result *result)
{
    *result = (hy_result){.text = "", .prompt_count = r->prompt_count, .finish = HY_RUNNING};
}

hy_status hy_request_wait(hy_request *r)
{
    pthread_mutex_lock(&engine.lock);
    while (!r->ended) pthread_cond_wait(&engine.change, &engine.lock);
    pthread_mutex_unlock(&engine.lock);
    return HY_OK;
}

void hy_request_close(hy_request *r)
{
    if (!r) return;
    hy_request_cancel(r);
    hy_request_wait(r);
    free(r);
}

void hy_engine_describe(const hy_engine *e, hy_engine_stats *stats)
{
    *stats = (hy_engine_stats){.running = e->running, .generated_tokens = e->tokens};
}

void hy_engine_measure(const hy_engine *e, hy_engine_measures *m)
{
    (void)e;
    *m = (hy_engine_measures){0};
}

const char *hy_miss_name(hy_miss miss)
{
    (void)miss;
    return "new";
}

/* ---- The clock ------------------------------------------------------------------------------------------------- */

static void make_token(hy_request *r, int64_t now)
{
    static const int32_t id[1] = {TOKEN};
    char text[24];
    hy_event event = {.ids = id, .id_count = 1, .text = text, .stop_id = -1};
    event.text_length = (size_t)snprintf(text, sizeof text, " %lld", (long long)now);
    event.finish = --r->left > 0 ? HY_RUNNING : HY_FINISH_LENGTH;
    if (atomic_load(&r->cancelled)) event = (hy_event){.text = "", .stop_id = -1, .finish = HY_FINISH_CANCEL};
    engine.tokens++;
    r->due += engine.period_us;
    bool last = event.finish != HY_RUNNING;
    r->on_event(r->user, &event);
    if (last) r->left = 0;
}

/* The first, off the list, if something is due for it or all are wanted; else NULL. */
static hy_request *take_due(int64_t turn, bool all)
{
    pthread_mutex_lock(&engine.lock);
    hy_request *r = engine.first;
    if (r && (all || r->due <= turn))
        engine.first = r->next;
    else
        r = NULL;
    pthread_mutex_unlock(&engine.lock);
    return r;
}

/* Back to the list; the owner may free what has ended from then on. */
static void put_back(hy_request *r)
{
    pthread_mutex_lock(&engine.lock);
    if (r->left > 0) {
        append(r);
    } else {
        r->ended = true;
        engine.running--;
        pthread_cond_broadcast(&engine.change);
    }
    pthread_mutex_unlock(&engine.lock);
}

static int64_t next_due(int64_t otherwise)
{
    pthread_mutex_lock(&engine.lock);
    int64_t due = engine.first ? engine.first->due : otherwise;
    pthread_mutex_unlock(&engine.lock);
    return due;
}

static void *run(void *arg)
{
    (void)arg;
    while (!engine.stopping || engine.running) {
        /* What it costs is not the server's: it sleeps until something is due, and looks at nothing else then. */
        int64_t now = now_us(), left = next_due(now + LONGEST_US) - now;
        left = left < TICK_US ? TICK_US : left > LONGEST_US ? LONGEST_US : left;
        struct timespec pause = {.tv_nsec = left * 1000};
        nanosleep(&pause, NULL);
        bool stopping = engine.stopping, all = atomic_exchange(&engine.cancelled, false) || stopping;
        int64_t turn = now_us();
        int count = engine.running;
        for (hy_request *r; count-- > 0 && (r = take_due(turn, all));) {
            if (stopping) atomic_store(&r->cancelled, true);
            if (r->due <= turn || atomic_load(&r->cancelled)) make_token(r, now_us());
            put_back(r);
        }
    }
    return NULL;
}

/* ---- The program ----------------------------------------------------------------------------------------------- */

static void *report(void *signals)
{
    for (int which; sigwait(signals, &which) == 0;) {
        struct rusage u;
        getrusage(RUSAGE_SELF, &u);
        double cpu =
            (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
        printf("cpu %.6f tokens %llu\n", cpu, (unsigned long long)engine.tokens);
        fflush(stdout);
    }
    return NULL;
}

static void allow_many_clients(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv)
{
    if (argc != 4 || atof(argv[2]) <= 0) return 2;
    signal(SIGPIPE, SIG_IGN);
    static sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    allow_many_clients();
    engine.period_us = (int64_t)(1e6 / atof(argv[2])), engine.steps = strcmp(argv[3], "steps") == 0;
    hy_error err = {0};
    hy_model *model = NULL;
    server *s = NULL;
    const char *names[] = {"standin"};
    server_options options = {.http = {.host = "127.0.0.1", .keep_alive_s = 600},
                              .served_names = names,
                              .served_name_count = 1,
                              .split_reasoning = true};
    pthread_t reporter;
    if (hy_model_open(argv[1], NULL, &model, &err) != HY_OK ||
        server_open(model, &engine, &options, &s, &err) != HY_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    if (pthread_create(&engine.thread, NULL, run, NULL) != 0 || pthread_create(&reporter, NULL, report, &signals) != 0)
        return 1;
    printf("port %d\n", server_port(s));
    fflush(stdout);
    server_run(s);
    engine.stopping = true;
    pthread_join(engine.thread, NULL);
    server_close(s);
    hy_model_close(model);
    return 0;
}
