/* Ctrl-C ends the request that is watched, at its next step, from whatever thread the signal arrives on. */
#ifndef HAYATE_CLI_INTERRUPT_H
#define HAYATE_CLI_INTERRUPT_H

#include "hayate.h"

/*
 * From here SIGINT cancels what is watched, and does nothing while nothing is. With `second_kills` SIGTERM does the
 * same, and a second signal ends the program as usual.
 */
void interrupt_start(bool second_kills);
/* Before a request is submitted: it may have written much before it is watched, and what comes between counts. */
void interrupt_expect(void);
/* One request at a time. */
void interrupt_watch(hy_request *request);
/* After this the request may be closed. True: it was interrupted. */
bool interrupt_unwatch(void);

#endif
