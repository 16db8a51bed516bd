/*
 * A libcuda.so.1 without a GPU, for the test of driver.c: device memory is the host's, and what a stream is asked for is
 * done when an event behind it is asked about for the third time. So a driver that does not wait reads what is not there
 * yet, and one that uses pinned memory again too early sends the wrong bytes. Kernels are counted and do nothing.
 */
#include "backend/fake_cuda.h"

#include "backend/cuda/driver_api.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct work {
    void *to;
    const void *from; /* NULL: fill with `byte` */
    int byte;
    size_t bytes;
    struct CUevent_st *until; /* of another stream, waited for before */
    uint64_t number;          /* of the event as it was */
} work;

struct CUstream_st {
    work *queue;
    size_t count, done, room;
    bool captures;
    struct CUgraph_st *captured;
};

enum { MOST_EVENTS = 1024 };

struct CUgraph_st {
    int launches, events;
    struct CUevent_st *event[MOST_EVENTS];
};

struct CUevent_st {
    struct CUstream_st *stream;
    size_t behind; /* work of the stream that is done before it */
    int asked;
    bool timed;
    int time; /* launches before it, a millisecond each */
};

EXPORT fake_cuda_state fake_cuda = {.devices = 1, .memory = (size_t)1 << 30};

/* Copies and events are several threads', as the driver's. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void run(struct CUstream_st *s, size_t count)
{
    for (; s->done < count; s->done++) {
        work *w = &s->queue[s->done];
        if (w->until && w->until->stream) run(w->until->stream, w->number);
        if (w->bytes && w->from) memcpy(w->to, w->from, w->bytes);
        if (w->bytes && !w->from) memset(w->to, w->byte, w->bytes);
    }
}

static int add(struct CUstream_st *s, work w)
{
    if (fake_cuda.fault) return fake_cuda.fault;
    pthread_mutex_lock(&lock);
    if (s->count == s->room) s->queue = realloc(s->queue, (s->room = s->room * 2 + 16) * sizeof *s->queue);
    s->queue[s->count++] = w;
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cuInit(unsigned flags)
{
    return (int)flags;
}
EXPORT int cuGetErrorName(int r, const char **name)
{
    *name = r == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
    return 0;
}
EXPORT int cuGetErrorString(int r, const char **text)
{
    *text = r == 700 ? "an illegal memory access was encountered" : "an error";
    return 0;
}
EXPORT int cuDeviceGetCount(int *count)
{
    *count = fake_cuda.devices;
    return 0;
}
EXPORT int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}
EXPORT int cuDeviceGetName(char *name, int length, int device)
{
    (void)device;
    snprintf(name, (size_t)length, "a fake");
    return 0;
}
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : attribute == 38 ? 60 << 20 : attribute == 13 ? 1980000 : 227 << 10;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &fake_cuda;
    return device;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    return device;
}
EXPORT int cuCtxSetCurrent(void *context)
{
    return context && context != &fake_cuda;
}
EXPORT int cuMemGetInfo_v2(size_t *room, size_t *all)
{
    *all = fake_cuda.memory;
    *room = fake_cuda.memory;
    return 0;
}
EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    if (bytes > fake_cuda.memory) return 2;
    *address = (uint64_t)(uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset((void *)(uintptr_t)*address, 0xA5, bytes);
    fake_cuda.allocations++;
    return 0;
}
EXPORT int cuMemFree_v2(uint64_t address)
{
    fake_cuda.allocations--;
    free((void *)(uintptr_t)address);
    return 0;
}
EXPORT int cuMemAllocHost_v2(void **memory, size_t bytes)
{
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return !*memory;
}
EXPORT int cuMemFreeHost(void *memory)
{
    free(memory);
    return 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct CUstream_st *s)
{
    return add(s, (work){.to = (void *)(uintptr_t)to, .from = from, .bytes = bytes});
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct CUstream_st *s)
{
    return add(s, (work){.to = to, .from = (void *)(uintptr_t)from, .bytes = bytes});
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct CUstream_st *s)
{
    return add(s, (work){.to = (void *)(uintptr_t)to, .from = (void *)(uintptr_t)from, .bytes = bytes});
}
EXPORT int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, struct CUstream_st *s)
{
    return add(s, (work){.to = (void *)(uintptr_t)to, .byte = byte, .bytes = bytes});
}
EXPORT int cuStreamCreate(struct CUstream_st **s, unsigned flags)
{
    (void)flags;
    return !(*s = calloc(1, sizeof **s));
}
EXPORT int cuStreamDestroy_v2(struct CUstream_st *s)
{
    free(s->queue);
    free(s);
    return 0;
}
EXPORT int cuStreamWaitEvent(struct CUstream_st *s, struct CUevent_st *e, unsigned flags)
{
    (void)flags;
    return add(s, (work){.until = e, .number = e->behind});
}
EXPORT int cuEventCreate(struct CUevent_st **e, unsigned flags)
{
    if ((*e = calloc(1, sizeof **e))) (*e)->timed = flags == 0;
    return !*e;
}
EXPORT int cuEventDestroy_v2(struct CUevent_st *e)
{
    free(e);
    return 0;
}
EXPORT int cuEventRecord(struct CUevent_st *e, struct CUstream_st *s)
{
    if (fake_cuda.fault) return fake_cuda.fault;
    pthread_mutex_lock(&lock);
    *e = (struct CUevent_st){.stream = s, .behind = s->count, .timed = e->timed, .time = fake_cuda.launches};
    fake_cuda.events += e->timed;
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT int cuEventRecordWithFlags(struct CUevent_st *e, struct CUstream_st *s, unsigned flags)
{
    if (!s->captures || flags != 1 || !e->timed || fake_cuda.no_events) return 801;
    struct CUgraph_st *g = s->captured;
    g->event[g->events++] = e;
    e->time = -1 - g->launches; /* until the graph runs */
    return 0;
}
EXPORT int cuEventElapsedTime(float *milliseconds, const struct CUevent_st *from, const struct CUevent_st *to)
{
    *milliseconds = (float)(to->time - from->time);
    return from->timed && to->timed && from->time >= 0 && to->time >= 0 ? 0 : 400;
}
EXPORT int cuDriverGetVersion(int *version)
{
    *version = 13010;
    return 0;
}
EXPORT int cuEventQuery(struct CUevent_st *e)
{
    if (fake_cuda.fault) return fake_cuda.fault;
    pthread_mutex_lock(&lock);
    bool over = !e->stream || e->stream->done >= e->behind, now = !over && e->asked++ >= 2;
    if (now) run(e->stream, e->behind);
    pthread_mutex_unlock(&lock);
    return over || now ? 0 : 600;
}
EXPORT int cuModuleLoadData(void **module, const void *image)
{
    *module = (void *)(uintptr_t)image;
    fake_cuda.modules++;
    return fake_cuda.other_gpu ? 209 : 0;
}
EXPORT int cuModuleUnload(void *module)
{
    (void)module;
    fake_cuda.modules--;
    return 0;
}
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = module;
    return strncmp(name, "hy_", 3) ? 500 : 0;
}
EXPORT int cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function;
    if (attribute == 8) fake_cuda.shared = value;
    return 0;
}
EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **parameters, void **extra)
{
    struct CUstream_st *s = stream;
    (void)function, (void)parameters, (void)by, (void)bz;
    if (s->captures) return s->captured->launches++, 0;
    fake_cuda.launches++;
    fake_cuda.threads = (uint64_t)gx * gy * gz * bx;
    fake_cuda.launch_shared = shared;
    memcpy(fake_cuda.parameters, extra[1], *(size_t *)extra[3]);
    if (fake_cuda.fault_at_launch) fake_cuda.fault = fake_cuda.fault_at_launch; /* seen later, as on a GPU */
    return 0;
}
EXPORT int cuLaunchKernelEx(const struct cu_launch_config *c, void *function, void **parameters, void **extra)
{
    if (c->attribute_count != 1 || c->attributes->id != 6 || c->attributes->value.number != 1) return 1;
    return cuLaunchKernel(function, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z, c->shared, c->stream,
                          parameters, extra);
}
EXPORT int cuStreamBeginCapture_v2(struct CUstream_st *s, int mode)
{
    s->captures = true;
    s->captured = calloc(1, sizeof *s->captured);
    return mode != 2;
}
EXPORT int cuStreamEndCapture(struct CUstream_st *s, struct CUgraph_st **graph)
{
    *graph = s->captured;
    s->captures = false;
    return 0;
}
EXPORT int cuGraphInstantiateWithFlags(struct CUgraph_st **exec, struct CUgraph_st *graph, unsigned long long flags)
{
    if (fake_cuda.no_graphs) return 801;
    *exec = malloc(sizeof **exec);
    **exec = *graph;
    fake_cuda.graphs++;
    return flags != 0;
}
EXPORT int cuGraphLaunch(struct CUgraph_st *exec, struct CUstream_st *s)
{
    (void)s;
    for (int i = 0; i < exec->events; i++) /* all of its launches lie between the first and the others */
        exec->event[i]->time = fake_cuda.launches + (i ? exec->launches : 0);
    fake_cuda.events += exec->events;
    fake_cuda.launches += exec->launches;
    fake_cuda.graph_launches++;
    return 0;
}
EXPORT int cuGraphDestroy(struct CUgraph_st *graph)
{
    free(graph);
    return 0;
}
EXPORT int cuGraphExecDestroy(struct CUgraph_st *exec)
{
    free(exec);
    fake_cuda.graphs--;
    return 0;
}
