/*
 * A few threads for what takes too long on the HTTP loop: parsing bodies, rendering and encoding prompts, compiling
 * grammars. Jobs start in the order in which they were given.
 */
#ifndef HAYATE_SERVER_WORK_H
#define HAYATE_SERVER_WORK_H

#include "hayate.h"

typedef struct work work;

hy_status work_open(int threads, work **out, hy_error *err);
/* Runs fn(user) on one of the threads soon; from any thread. False: no memory. */
bool work_give(work *w, void (*fn)(void *user), void *user);
/* Waits for what was given, then ends the threads. */
void work_close(work *w);

#endif
