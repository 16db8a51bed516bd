/*
 * The thread that computes: it runs the network over planned steps, one after the other, samples, and writes the sampled
 * tokens into their requests.
 *
 * At most two steps are given to it, one that runs and one that is planned for when that is over. So that late arrivals
 * still come into the next step, the planner waits with it until the running one is in its last layers
 * (runner_near_end); then planning and the end of the step overlap, and handing out a step's tokens overlaps with the
 * next one.
 *
 * With drafts a step ends with those for the next one: the drafter reads what verification said where it stands, so that a device
 * needs no word from the host in between. Requests whose answer has just ended get drafts too, which nobody reads.
 *
 * All waiting is on `changed`, a condition with the planner's own lock, which the planner also waits on for other things.
 */
#ifndef HAYATE_ENGINE_RUNNER_H
#define HAYATE_ENGINE_RUNNER_H

#include "engine/step.h"
#include "engine/turn.h"
#include "engine/watch.h"

typedef struct runner runner;

typedef struct runner_options {
    hy_model *model;
    turn *turn; /* of the model's backend */
    ops_cache *cache;
    const ops_limits *limits; /* read by runner_open alone */
    bool greedy_drafts;
    const float *rates;   /* [HY_MAX_DRAFTS] of synthetic acceptance, each given that those before were accepted */
    float confidence;     /* drafts that the drafter trusts less are not made; 0: all are */
    const uint32_t *mask; /* [ceil(vocab / 32)] tokens that may be sampled at all; NULL: all */
    watch *watch;
    pthread_mutex_t *lock;
    pthread_cond_t *changed;
} runner_options;

/* Opens the backend's step, whose turn the caller has, and starts the thread. Everything is borrowed. */
hy_status runner_open(const runner_options *options, runner **out, hy_error *err);
/* Nothing runs, and the caller does not have the turn. */
void runner_close(runner *r);

/* Steps are kept by the caller until they are over. Under the lock: `runner_pending` how many there are. */
void runner_submit(runner *r, step *s);
int runner_pending(const runner *r);
/* Under the lock: the oldest one is over; it is near its end. */
bool runner_over(const runner *r);
bool runner_near_end(const runner *r);
/* Takes the oldest one, which is over, out. Under the lock. */
step *runner_take(runner *r);

#endif
