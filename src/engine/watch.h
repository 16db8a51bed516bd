/*
 * What an engine says about itself while it works: phases, the line of throughput, and the word when nothing moves.
 *
 * Two threads of the engine announce their phases here (a few plain stores each): the planner, which takes in, plans and
 * hands out, and the runner, which computes. A thread of its own looks once a second, or more often for shorter options.
 *
 * The line. While there is work, every `log_seconds`:
 *
 *     Engine 000: Avg prompt throughput: 512.0 tokens/s, Avg generation throughput: 64.2 tokens/s, Running: 3 reqs,
 *     Waiting: 0 reqs, [Preemptions: 2, ]GPU KV cache usage: 12.5%, Prefix cache hit rate: 71.4%[, External prefix cache
 *     hit rate: 3.1%]
 *
 * and, when drafts were verified since the line before,
 *
 *     SpecDecoding metrics: Mean acceptance length: 3.20, Accepted throughput: 44.00 tokens/s, Drafted throughput: 140.00
 *     tokens/s, Accepted: 440 tokens, Drafted: 1400 tokens, Per-position acceptance rate: 0.820, 0.610, ..., Avg Draft
 *     acceptance rate: 31.4%
 *
 * the wording of the neighbours, on one line, whatever the backend: operators look for it. Throughputs and preemptions
 * are those since the line before, hit rates the share of prompt tokens over the last WATCH_WINDOW lines; "external" are
 * the tiers, in tokens brought back of those that the cache lacked, once the tiers have held anything. After the first
 * `log_seconds` without work comes one line more, and then none until there is work again; what has not been said when
 * the watch closes is said then.
 *
 * The word. When neither thread has announced anything for `stall_seconds` while there is work, a warning says which phase
 * each is in, since when, and the schedule, a line for each request of the running step. Once for each stall; when it
 * moves again, that is said too. There is work while a thread is busy or a request runs or waits, so that a thread that
 * sleeps over a waiting request is a stall.
 *
 * Nothing is allocated after watch_open.
 */
#ifndef HAYATE_ENGINE_WATCH_H
#define HAYATE_ENGINE_WATCH_H

#include "hayate.h"

typedef enum watch_thread { WATCH_PLANNER, WATCH_RUNNER, WATCH_THREADS } watch_thread;

typedef enum watch_phase {
    WATCH_IDLE,     /* waits for work; where both threads begin */
    WATCH_WAIT,     /* waits for the other thread; of the runner no work by itself */
    WATCH_PLAN,     /* takes in and plans; the planner */
    WATCH_SPILL,    /* copies blocks to and from the tiers; the planner */
    WATCH_HAND_OUT, /* runs callbacks; detail: the request's number */
    WATCH_TURN,     /* waits for another engine of the same model; the runner */
    WATCH_FORWARD,  /* detail: the layer, -1 before the first one, the number of layers: head */
    WATCH_SAMPLE,
    WATCH_DRAFT,
    WATCH_PHASES,
} watch_phase;

/* A request of the running step, for the word about a stall. */
typedef struct watch_row {
    uint64_t request;
    int32_t known, computed, rows; /* tokens that it has, that are in the cache, that the step computes */
} watch_row;
enum {
    WATCH_ROWS = 32,  /* that are kept of a step */
    WATCH_WINDOW = 6, /* lines that hit rates look back: a minute, usually */
    WATCH_EXTRA = 1024,
};

typedef struct watch_options {
    double log_seconds;   /* below or equal 0: no line */
    double stall_seconds; /* below or equal 0: no word */
    int32_t layers;       /* of the model: from there on WATCH_FORWARD is the head; 0: all are called layers */
    /* The engine's numbers, asked on the watch's thread. It must not wait for a lock that the engine's threads hold while
     * they work, or a stall would stop the watch as well. */
    void (*describe)(void *user, hy_engine_stats *stats);
    /* May be NULL: a line to follow each line of throughput but those of no work, NULL for none this time; `buffer` is
     * there to write it into. On the watch's thread, the last time from watch_close. */
    const char *(*extra)(void *user, char *buffer, size_t size);
    void *user;
} watch_options;

typedef struct watch watch;

/* HY_FAILED: no thread could be started, HY_NO_FIT: no memory. */
hy_status watch_open(const watch_options *options, watch **out, hy_error *err);
/* At once, whatever the options. The engine's threads have ended, or announce nothing more. */
void watch_close(watch *w);

/* From the thread itself. Also adds up the seconds of each phase. */
void watch_enter(watch *w, watch_thread thread, watch_phase phase, int64_t detail);
/* Seconds that a thread has spent in a phase, up to now; any thread. */
double watch_seconds(const watch *w, watch_thread thread, watch_phase phase);
/* The step that will run next; copies at most WATCH_ROWS. From the planner. */
void watch_schedule(watch *w, const watch_row *rows, int32_t count, int32_t requests, int32_t waiting);

#endif
