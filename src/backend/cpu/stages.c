/*
 * Recording: the operations of a layer put their loops one after the other into the step's schedule, which runs in one
 * dispatch (base/threads.h) when the layer ends, or before if something outside the schedule needs what it makes.
 *
 * A loop's argument is copied into a slot of the step, so an operation may keep it on its stack; what the argument
 * points to has to stay until the schedule has run. Nothing is allocated.
 */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"

/* What this thread recorded last, whether or not it has run since. */
static _Thread_local ops_step *own;

void cpu_room(ops_step *step, int stages)
{
    assert(stages <= THREADS_MAX_STAGES);
    if (step->stage_count + stages > THREADS_MAX_STAGES) cpu_flush(step);
}

threads_stage *cpu_stage(ops_step *step, int64_t items, threads_fn fn, const void *arg, size_t size)
{
    assert(size <= STAGE_ARGUMENT);
    cpu_room(step, 1);
    own = step->backend->recording = step;
    void *slot = step->stage_argument[step->stage_count];
    memcpy(slot, arg, size);
    threads_stage *stage = &step->stage[step->stage_count++];
    *stage = (threads_stage){.fn = fn, .arg = slot, .items = items, .chunk = 1};
    return stage;
}

void cpu_flush(ops_step *step)
{
    threads *pool = step->backend->pool;
    if (step->stage_count > 0) threads_run_stages(pool, step->stage, step->stage_count);
    cpu_drop(step);
    hy_error err;
    if (!threads_stopped(pool) || step->error.status != HY_OK) return;
    error_set(&err, HY_CANCELLED, "the step was stopped");
    cpu_fail(step, &err);
}

void cpu_flush_own(const ops_backend *backend)
{
    if (own && own == backend->recording) cpu_flush(own);
}

void cpu_fail(ops_step *step, const hy_error *err)
{
    step->error = *err;
    step->rows.count = step->logit_rows = 0; /* the operations that follow do nothing */
}

void cpu_drop(ops_step *step)
{
    step->stage_count = 0;
    if (step->backend->recording == step) step->backend->recording = NULL;
}
