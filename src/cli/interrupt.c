#include "cli/interrupt.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

static _Atomic(hy_request *) watched;
static atomic_int handling; /* handlers that may hold the pointer */
static atomic_bool seen;
static bool kills;

static void on_signal(int number)
{
    atomic_fetch_add(&handling, 1);
    hy_request *request = atomic_load(&watched);
    bool again = atomic_exchange(&seen, true);
    hy_request_cancel(request); /* one atomic store: safe here */
    atomic_fetch_sub(&handling, 1);
    if (kills && again) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

void interrupt_start(bool second_kills)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    kills = second_kills;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    if (second_kills) sigaction(SIGTERM, &action, NULL);
}

void interrupt_expect(void)
{
    atomic_store(&seen, false);
}

void interrupt_watch(hy_request *request)
{
    atomic_store(&watched, request);
    if (atomic_load(&seen)) hy_request_cancel(request);
}

bool interrupt_unwatch(void)
{
    atomic_store(&watched, NULL);
    while (atomic_load(&handling) > 0) sched_yield();
    return atomic_load(&seen);
}
