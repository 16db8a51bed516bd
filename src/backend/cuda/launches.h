/*
 * Launches on their way to the GPU. They are collected until somebody needs their effect, and a list that comes again and
 * again, byte for byte, as the steps of a decoded token do, is then one graph, which is launched as a whole: the host
 * takes two microseconds for a launch and a tenth of that for one of a graph.
 *
 * One user at a time.
 */
#ifndef HAYATE_BACKEND_CUDA_LAUNCHES_H
#define HAYATE_BACKEND_CUDA_LAUNCHES_H

#include "backend/cuda/driver_api.h"

typedef struct launches launches;

/* follows: kernels come onto the GPU while the one before ends (follow() of kernel.cuh). That, and graphs, where the driver
 * can do them; without graphs a launch is one at once. */
cu_result launches_open(const driver_api *api, cu_stream stream, bool follows, launches **out);
void launches_close(launches *l);

/* The parameters are copied. HY_NO_FIT; HY_FAILED from a launch that was made at once. */
hy_status launches_add(launches *l, cu_function function, const int grid[3], int block, size_t shared, const void *args,
                       size_t bytes, hy_error *err);
/* All of them go to the stream. */
cu_result launches_run(launches *l);

/* A list that stays, for measuring: what is added only waits, marks are events that are recorded in its place.
 * launches_fix, once, behind the last: whether it is a graph; launches_again runs it, as often as wanted. */
void launches_hold(launches *l);
hy_status launches_mark(launches *l, cu_event event, hy_error *err);
bool launches_fix(launches *l, int *count);
cu_result launches_again(const launches *l);

#endif
