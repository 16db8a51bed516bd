/*
 * A GPU through the CUDA driver: its primary context, one stream for the steps, and a second one for what goes on
 * beside them. The host's memory travels through pinned slots, so that `write` returns when it has copied and the GPU
 * fetches meanwhile.
 *
 * Waiting is polling: first without a pause, since a decoded token takes a few milliseconds, then with short sleeps,
 * and not for longer than a minute, so that a kernel that hangs is an error and no riddle.
 */
#include "backend/cuda/gpu.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/driver_api.h"
#include "backend/cuda/fatbins.h"
#include "backend/cuda/launches.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

enum {
    SLOTS = 4,
    SLOT_BYTES = 8 << 20,
    KERNEL_BUCKETS = 512, /* more than there are kernels, a power of two */
};
#define SPIN_SECONDS 0.02
#define WAIT_SECONDS 60.0

struct gpu_kernel {
    const char *name;
    cu_function function;
    size_t shared;           /* dynamic shared memory that it has been allowed */
    struct gpu_kernel *next; /* of all */
};

/* Pinned memory, busy until its event. */
typedef struct slot {
    uint8_t *data; /* [SLOT_BYTES] */
    cu_event event;
} slot;

/* Two halves of pinned memory in turn: `next` is the one that is taken next. */
typedef struct lane {
    slot half[2];
    int next;
} lane;

typedef struct driver_gpu {
    gpu base;
    const driver_api *api;
    uint64_t number; /* of all that were opened: what a thread remembers as its current one */
    cu_device device;
    cu_context context;
    gpu_info info;
    cu_module *modules;
    size_t module_count;

    pthread_mutex_t lock; /* of the stream and all below but `beside` */
    cu_stream stream;
    cu_event done, moved; /* recorded by wait; behind the last write, copy or fill */
    slot slot[SLOTS];
    int next_slot;
    gpu_kernel *bucket[KERNEL_BUCKETS], *kernels;
    const char *last; /* kernel that was launched last */
    launches *launches;
    cu_event *marks;       /* [GPU_MARKS], NULL until the first mark */
    launches *recording;   /* NULL: nothing is recorded */
    const char *names;     /* of the kernels that are, or NULL */
    bool apart;            /* with a mark before each */
    const char **launched; /* [launched_count] what is recorded */
    int launched_count;
    size_t launched_room;

    pthread_mutex_t beside_lock;
    cu_stream beside;
    slot beside_slot;

    /* While weights are loaded; a lane is its thread's. */
    cu_stream load;
    cu_event loaded;
    lane *lane; /* [lanes] */
    int lanes;

    pthread_mutex_t error_lock;
    hy_error error; /* the first */
} driver_gpu;

static driver_gpu *self(gpu *g)
{
    return (driver_gpu *)(void *)g;
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static hy_status fail(driver_gpu *d, cu_result r, const char *what, hy_error *err)
{
    const char *name = NULL, *text = NULL;
    if (d->api->error_name(r, &name) != CU_OK || !name) name = "an unknown error";
    if (d->api->error_text(r, &text) != CU_OK || !text) text = "";
    if (d->last)
        return error_set(err, HY_FAILED, "%s on the GPU failed: %s (%s); the last kernel launched was %s", what, name,
                         text, d->last);
    return error_set(err, HY_FAILED, "%s on the GPU failed: %s (%s)", what, name, text);
}

/* Keeps the first error. */
static void keep(driver_gpu *d, const hy_error *error)
{
    pthread_mutex_lock(&d->error_lock);
    if (d->error.status == HY_OK) d->error = *error;
    pthread_mutex_unlock(&d->error_lock);
}

static bool keep_failure(driver_gpu *d, cu_result r, const char *what)
{
    hy_error error = {0};
    if (r == CU_OK) return true;
    fail(d, r, what, &error);
    keep(d, &error);
    return false;
}

static bool failed(driver_gpu *d)
{
    pthread_mutex_lock(&d->error_lock);
    bool failed = d->error.status != HY_OK;
    pthread_mutex_unlock(&d->error_lock);
    return failed;
}

/* The context is a thread's own: each sets it once. False: after an error nothing is done. */
static bool enter(driver_gpu *d)
{
    static _Thread_local uint64_t current;
    if (failed(d)) return false;
    if (current == d->number) return true;
    if (!keep_failure(d, d->api->context_set(d->context), "entering the context")) return false;
    current = d->number;
    return true;
}

/* What was launched goes to the GPU. With the lock. */
static void flush(driver_gpu *d)
{
    keep_failure(d, launches_run(d->launches), "a launch");
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static bool wait_for(driver_gpu *d, cu_event event)
{
    double begin = 0;
    for (int turns = 0;; turns++) {
        cu_result r = d->api->event_query(event);
        if (r != CU_NOT_READY) return keep_failure(d, r, "a step");
        if (turns % 16) continue;
        double now = clock_seconds();
        if (begin == 0) begin = now;
        if (now - begin > WAIT_SECONDS) {
            hy_error error = {0};
            error_set(&error, HY_FAILED,
                      "the GPU has not ended in a minute what it was asked for; the last kernel was %s",
                      d->last ? d->last : "none");
            keep(d, &error);
            return false;
        }
        if (now - begin > SPIN_SECONDS) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

static hy_status driver_wait(gpu *g, hy_error *err)
{
    driver_gpu *d = self(g);
    pthread_mutex_lock(&d->lock);
    if (enter(d)) flush(d);
    if (enter(d) && keep_failure(d, d->api->event_record(d->done, d->stream), "a step")) wait_for(d, d->done);
    pthread_mutex_unlock(&d->lock);
    pthread_mutex_lock(&d->error_lock);
    hy_status status = d->error.status;
    if (status != HY_OK && err) *err = d->error;
    pthread_mutex_unlock(&d->error_lock);
    return status;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void moved(driver_gpu *d)
{
    keep_failure(d, d->api->event_record(d->moved, d->stream), "a step");
}

static hy_status driver_alloc(gpu *g, size_t bytes, const char *what, void **device, hy_error *err)
{
    driver_gpu *d = self(g);
    cu_address address = 0;
    if (!enter(d)) return driver_wait(g, err);
    pthread_mutex_lock(&d->lock);
    cu_result r = d->api->alloc(&address, bytes);
    hy_status status = HY_OK;
    if (r == CU_OUT_OF_MEMORY) {
        size_t room = 0, all = 0;
        char need[32], left[32];
        d->api->memory_info(&room, &all);
        status = error_set(err, HY_NO_FIT, "%s takes %s of the GPU's memory, which has %s free", what,
                           memory_text(bytes, need), memory_text(room, left));
    } else if (r != CU_OK) {
        status = fail(d, r, "taking memory", err);
    } else if ((r = d->api->fill(address, 0, bytes, d->stream)) != CU_OK) {
        status = fail(d, r, "clearing memory", err);
        d->api->free(address);
    } else {
        moved(d);
        *device = (void *)(uintptr_t)address;
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

static void driver_free(gpu *g, void *device)
{
    driver_gpu *d = self(g);
    if (!device) return;
    driver_wait(g, NULL);
    d->api->context_set(d->context); /* also after an error, when the driver may still take it back */
    d->api->free((cu_address)(uintptr_t)device);
}

/* The next slot, no longer in use. */
static slot *take_slot(driver_gpu *d)
{
    slot *s = &d->slot[d->next_slot];
    d->next_slot = (d->next_slot + 1) % SLOTS;
    return wait_for(d, s->event) ? s : NULL;
}

static bool send(driver_gpu *d, slot *s, cu_stream stream, uint8_t *to, const uint8_t *from, size_t bytes)
{
    memcpy(s->data, from, bytes);
    return keep_failure(d, d->api->to_device((cu_address)(uintptr_t)to, s->data, bytes, stream), "a write") &&
           keep_failure(d, d->api->event_record(s->event, stream), "a step");
}

static bool fetch(driver_gpu *d, slot *s, cu_stream stream, const uint8_t *from, uint8_t *to, size_t bytes)
{
    if (!keep_failure(d, d->api->to_host(s->data, (cu_address)(uintptr_t)from, bytes, stream), "a read") ||
        !keep_failure(d, d->api->event_record(s->event, stream), "a step") || !wait_for(d, s->event))
        return false;
    memcpy(to, s->data, bytes);
    return true;
}

static size_t piece(size_t left)
{
    return left < SLOT_BYTES ? left : SLOT_BYTES;
}

static void driver_write(gpu *g, void *device, const void *host, size_t bytes)
{
    driver_gpu *d = self(g);
    slot *s;
    if (!enter(d)) return;
    pthread_mutex_lock(&d->lock);
    flush(d);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece(bytes - at);
        if (!(s = take_slot(d)) || !send(d, s, d->stream, (uint8_t *)device + at, (const uint8_t *)host + at, n)) break;
    }
    moved(d);
    pthread_mutex_unlock(&d->lock);
}

static void driver_read(gpu *g, const void *device, void *host, size_t bytes)
{
    driver_gpu *d = self(g);
    slot *s;
    if (!enter(d)) return;
    pthread_mutex_lock(&d->lock);
    flush(d);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece(bytes - at);
        if (!(s = take_slot(d)) || !fetch(d, s, d->stream, (const uint8_t *)device + at, (uint8_t *)host + at, n))
            break;
    }
    pthread_mutex_unlock(&d->lock);
}

static void driver_copy(gpu *g, void *to, const void *from, size_t bytes)
{
    driver_gpu *d = self(g);
    if (!enter(d) || bytes == 0) return;
    pthread_mutex_lock(&d->lock);
    flush(d);
    keep_failure(d, d->api->copy((cu_address)(uintptr_t)to, (cu_address)(uintptr_t)from, bytes, d->stream), "a copy");
    moved(d);
    pthread_mutex_unlock(&d->lock);
}

static void driver_fill(gpu *g, void *device, int byte, size_t bytes)
{
    driver_gpu *d = self(g);
    if (!enter(d) || bytes == 0) return;
    pthread_mutex_lock(&d->lock);
    flush(d);
    keep_failure(d, d->api->fill((cu_address)(uintptr_t)device, (unsigned char)byte, bytes, d->stream), "a fill");
    moved(d);
    pthread_mutex_unlock(&d->lock);
}

/* ---- Beside what runs -------------------------------------------------------------------------------------------- */

static void driver_read_beside(gpu *g, const void *device, void *host, size_t bytes)
{
    driver_gpu *d = self(g);
    if (!enter(d)) return;
    pthread_mutex_lock(&d->beside_lock);
    bool good = keep_failure(d, d->api->stream_wait_event(d->beside, d->moved, 0), "waiting");
    for (size_t at = 0, n; at < bytes && good; at += n) {
        n = piece(bytes - at);
        good = fetch(d, &d->beside_slot, d->beside, (const uint8_t *)device + at, (uint8_t *)host + at, n);
    }
    pthread_mutex_unlock(&d->beside_lock);
}

static void driver_write_beside(gpu *g, void *device, const void *host, size_t bytes)
{
    driver_gpu *d = self(g);
    if (!enter(d)) return;
    pthread_mutex_lock(&d->beside_lock);
    bool good = keep_failure(d, d->api->stream_wait_event(d->beside, d->moved, 0), "waiting");
    for (size_t at = 0, n; at < bytes && good; at += n) {
        n = piece(bytes - at);
        good = send(d, &d->beside_slot, d->beside, (uint8_t *)device + at, (const uint8_t *)host + at, n) &&
               wait_for(d, d->beside_slot.event);
    }
    pthread_mutex_unlock(&d->beside_lock);
}

/* ---- Pinned memory ------------------------------------------------------------------------------------------------
 */

static void close_slot(const driver_gpu *d, slot *s)
{
    if (s->data) d->api->free_host(s->data);
    if (s->event) d->api->event_destroy(s->event);
}

static cu_result open_slot(const driver_gpu *d, slot *s, size_t bytes)
{
    void *memory = NULL;
    cu_result r = d->api->alloc_host(&memory, bytes);
    s->data = memory;
    return r == CU_OK ? d->api->event_create(&s->event, CU_EVENT_WITHOUT_TIME) : r;
}

/* The word that looks like a version in the first line of what the kernel's module says of itself. */
static void module_version(char out[32])
{
    char line[256] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) fclose(f);
    for (char *rest = line, *word; (word = strtok_r(rest, " \t\n", &rest));)
        if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.')) {
            snprintf(out, 32, "%.31s", word);
            return;
        }
}

/* What is said of the GPU and not needed. */
static void read_about(driver_gpu *d)
{
    const driver_api *api = d->api;
    int cache = 0, clock = 0, memory = 0, version = 0;
    if (api->device_attribute(&cache, CU_DEVICE_CACHE, d->device) == CU_OK) d->info.cache = (size_t)cache;
    if (api->device_attribute(&clock, CU_DEVICE_CLOCK, d->device) == CU_OK) d->info.clock = 1e3 * clock;
    if (api->device_attribute(&memory, CU_DEVICE_MEMORY_CLOCK, d->device) == CU_OK) d->info.clock_memory = 1e3 * memory;
    if (api->version && api->version(&version) == CU_OK)
        snprintf(d->info.cuda, sizeof d->info.cuda, "%d.%d", version / 1000 % 1000, version % 1000 / 10);
    module_version(d->info.driver);
    d->info.archs = cuda_fatbin_archs;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static void driver_lanes_close(gpu *g)
{
    driver_gpu *d = self(g);
    if (!d->lane) return;
    driver_wait(g, NULL);
    d->api->context_set(d->context); /* also after an error */
    for (int i = 0; i < d->lanes; i++)
        for (int n = 0; n < 2; n++) {
            if (d->lane[i].half[n].event) wait_for(d, d->lane[i].half[n].event);
            close_slot(d, &d->lane[i].half[n]);
        }
    if (d->loaded) d->api->event_destroy(d->loaded);
    if (d->load) d->api->stream_destroy(d->load);
    memory_free(d->lane);
    d->lane = NULL, d->load = NULL, d->loaded = NULL;
}

static hy_status driver_lanes_open(gpu *g, int lanes, hy_error *err)
{
    driver_gpu *d = self(g);
    if (!enter(d)) return driver_wait(g, err);
    d->lane = memory_zeroed((size_t)lanes, sizeof *d->lane);
    if (!d->lane) return error_memory(err, "loading weights", (size_t)lanes * sizeof *d->lane);
    d->lanes = lanes;
    cu_result r = d->api->stream_create(&d->load, CU_STREAM_NON_BLOCKING);
    if (r == CU_OK) r = d->api->event_create(&d->loaded, CU_EVENT_WITHOUT_TIME);
    for (int i = 0; i < 2 * lanes && r == CU_OK; i++) r = open_slot(d, &d->lane[i / 2].half[i % 2], GPU_LANE_BYTES);
    if (r == CU_OK) return HY_OK;
    hy_status status = fail(d, r, "taking pinned memory", err);
    driver_lanes_close(g);
    return status;
}

static uint8_t *driver_lane_take(gpu *g, int number)
{
    driver_gpu *d = self(g);
    slot *half = &d->lane[number].half[d->lane[number].next];
    return enter(d) && wait_for(d, half->event) ? half->data : NULL;
}

static void driver_lane_send(gpu *g, int number, void *device, const uint8_t *from, size_t bytes)
{
    driver_gpu *d = self(g);
    lane *l = &d->lane[number];
    if (!enter(d)) return;
    if (keep_failure(d, d->api->stream_wait_event(d->load, d->moved, 0), "waiting") &&
        keep_failure(d, d->api->to_device((cu_address)(uintptr_t)device, from, bytes, d->load), "a write"))
        keep_failure(d, d->api->event_record(l->half[l->next].event, d->load), "a step");
    l->next ^= 1;
}

static void driver_lanes_join(gpu *g)
{
    driver_gpu *d = self(g);
    if (!enter(d)) return;
    pthread_mutex_lock(&d->lock);
    flush(d);
    if (keep_failure(d, d->api->event_record(d->loaded, d->load), "a step"))
        keep_failure(d, d->api->stream_wait_event(d->stream, d->loaded, 0), "waiting");
    pthread_mutex_unlock(&d->lock);
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

static unsigned bucket_of(const char *name)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash % KERNEL_BUCKETS;
}

static gpu_kernel *find_kernel(driver_gpu *d, const char *name)
{
    unsigned bucket = bucket_of(name);
    while (d->bucket[bucket] && strcmp(d->bucket[bucket]->name, name) != 0) bucket = (bucket + 1) % KERNEL_BUCKETS;
    if (d->bucket[bucket]) return d->bucket[bucket];
    cu_function function = NULL;
    cu_result r = CU_NOT_FOUND;
    for (size_t i = 0; i < d->module_count && r == CU_NOT_FOUND; i++)
        r = d->api->module_function(&function, d->modules[i], name);
    hy_error error = {0};
    gpu_kernel *kernel = NULL;
    char *copy = NULL;
    if (r == CU_NOT_FOUND)
        error_set(&error, HY_FAILED, "this program carries no kernel %s", name);
    else if (r != CU_OK)
        fail(d, r, "loading a kernel", &error);
    else if (!(kernel = memory_zeroed(1, sizeof *kernel)) || !(copy = memory_string(name, strlen(name))))
        error_memory(&error, "a kernel", sizeof *kernel);
    if (error.status != HY_OK) {
        memory_free(kernel);
        keep(d, &error);
        return NULL;
    }
    if (d->info.major == 9) d->api->function_set(function, CU_FUNCTION_ANY_CLUSTER, 1); /* refused, a launch says so */
    *kernel = (gpu_kernel){.name = copy, .function = function, .next = d->kernels};
    return d->kernels = d->bucket[bucket] = kernel;
}

static const gpu_kernel *driver_kernel(gpu *g, const char *name)
{
    driver_gpu *d = self(g);
    if (!enter(d)) return NULL;
    pthread_mutex_lock(&d->lock);
    gpu_kernel *kernel = find_kernel(d, name);
    pthread_mutex_unlock(&d->lock);
    return kernel;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

struct gpu_record {
    launches *list;
    const char **launched;
};

/* Mark i, with an event. With the lock. NULL: an error was kept. */
static cu_event mark_event(driver_gpu *d, int i)
{
    hy_error error = {0};
    if (!d->marks && !(d->marks = memory_zeroed(GPU_MARKS, sizeof *d->marks))) {
        error_memory(&error, "marks", GPU_MARKS * sizeof *d->marks);
        keep(d, &error);
        return NULL;
    }
    if (!d->marks[i]) keep_failure(d, d->api->event_create(&d->marks[i], 0), "a mark");
    return d->marks[i];
}

/* A mark before the next launch of a record whose launches are apart, or behind the last. */
static void mark_apart(driver_gpu *d)
{
    hy_error error = {0};
    cu_event event = d->apart && d->launched_count < GPU_MARKS_APART ? mark_event(d, d->launched_count) : NULL;
    if (event && launches_mark(d->recording, event, &error) != HY_OK) keep(d, &error);
}

/* A launch that is recorded. */
static void remember(driver_gpu *d, const gpu_kernel *kernel, const int grid[3], int block, size_t shared,
                     const void *args, size_t bytes)
{
    hy_error error = {0};
    mark_apart(d);
    if (!memory_reserve((void **)&d->launched, &d->launched_room, (size_t)d->launched_count + 1, sizeof *d->launched))
        error_memory(&error, "recorded launches", sizeof *d->launched);
    else
        launches_add(d->recording, kernel->function, grid, block, shared, args, bytes, &error);
    if (error.status == HY_OK)
        d->launched[d->launched_count++] = kernel->name;
    else
        keep(d, &error);
}

static void driver_launch(gpu *g, const gpu_kernel *kernel, const int grid[3], int block, size_t shared,
                          const void *args, size_t bytes)
{
    driver_gpu *d = self(g);
    gpu_kernel *own = (gpu_kernel *)(uintptr_t)kernel; /* this file's, for others const */
    hy_error error = {0};
    if (!enter(d)) return;
    pthread_mutex_lock(&d->lock);
    d->last = kernel->name;
    if (shared > own->shared) { /* beyond the usual 48 KiB it has to be allowed */
        cu_result r = d->api->function_set(kernel->function, CU_FUNCTION_DYNAMIC_SHARED, (int)shared);
        if (keep_failure(d, r, "giving a kernel its shared memory")) own->shared = shared;
    }
    if (launches_add(d->launches, kernel->function, grid, block, shared, args, bytes, &error) != HY_OK) keep(d, &error);
    if (d->recording && (!d->names || gpu_name_in(d->names, kernel->name)))
        remember(d, kernel, grid, block, shared, args, bytes);
    pthread_mutex_unlock(&d->lock);
}

static void driver_mark(gpu *g, int i)
{
    driver_gpu *d = self(g);
    hy_error error = {0};
    assert(i >= 0 && i < GPU_MARKS);
    if (!enter(d)) return;
    pthread_mutex_lock(&d->lock);
    flush(d);
    cu_event event = mark_event(d, i);
    if (event) {
        keep_failure(d, d->api->event_record(event, d->stream), "a mark");
        if (d->recording) launches_mark(d->recording, event, &error);
    }
    if (error.status != HY_OK) keep(d, &error);
    pthread_mutex_unlock(&d->lock);
}

static double driver_between(gpu *g, int from, int to)
{
    driver_gpu *d = self(g);
    float milliseconds = 0;
    assert(from >= 0 && from < GPU_MARKS && to >= 0 && to < GPU_MARKS);
    if (!enter(d)) return 0;
    pthread_mutex_lock(&d->lock);
    assert(d->marks && d->marks[from] && d->marks[to]);
    flush(d);
    /* Behind everything: a mark of a graph still shows its last time until the graph comes to it. */
    bool good = keep_failure(d, d->api->event_record(d->done, d->stream), "a step") && wait_for(d, d->done);
    if (good) {
        cu_result r = d->api->event_elapsed ? d->api->event_elapsed(&milliseconds, d->marks[from], d->marks[to])
                                            : CU_NOT_SUPPORTED;
        good = keep_failure(d, r, "reading the GPU's clock");
    }
    pthread_mutex_unlock(&d->lock);
    return good ? (double)milliseconds / 1e3 : 0;
}

static void driver_record(gpu *g, const char *names, bool apart)
{
    driver_gpu *d = self(g);
    if (!enter(d)) return;
    pthread_mutex_lock(&d->lock);
    assert(!d->recording);
    if (keep_failure(d, launches_open(d->api, d->stream, d->info.major >= 9, &d->recording), "recording"))
        launches_hold(d->recording);
    d->names = names;
    d->apart = apart;
    pthread_mutex_unlock(&d->lock);
}

static gpu_record *driver_recorded(gpu *g, int *count, bool *graph)
{
    driver_gpu *d = self(g);
    pthread_mutex_lock(&d->lock);
    launches *list = d->recording;
    gpu_record *record = NULL;
    *count = 0;
    *graph = false;
    if (enter(d)) flush(d);
    if (list) mark_apart(d);
    d->recording = NULL;
    if (enter(d) && list && (record = memory_zeroed(1, sizeof *record))) {
        *record = (gpu_record){list, d->launched};
        d->launched = NULL, d->launched_count = 0, d->launched_room = 0;
        *graph = launches_fix(list, count);
    } else {
        hy_error error = {0};
        error_memory(&error, "recorded launches", sizeof *record);
        keep(d, &error);
        launches_close(list);
    }
    pthread_mutex_unlock(&d->lock);
    return record;
}

static void driver_replay(gpu *g, gpu_record *record)
{
    driver_gpu *d = self(g);
    if (!enter(d)) return;
    pthread_mutex_lock(&d->lock);
    flush(d);
    keep_failure(d, launches_again(record->list), "a replay");
    pthread_mutex_unlock(&d->lock);
}

static const char *driver_launched(const gpu_record *record, int i)
{
    return record->launched[i];
}

static void driver_forget(gpu *g, gpu_record *record)
{
    if (!record) return;
    driver_wait(g, NULL);
    launches_close(record->list);
    free(record->launched);
    memory_free(record);
}

static double driver_link(gpu *g, void *device, size_t bytes)
{
    driver_gpu *d = self(g);
    if (!enter(d)) return 0;
    driver_mark(g, GPU_MARKS - 2);
    pthread_mutex_lock(&d->lock);
    slot *s = take_slot(d);
    for (size_t at = 0, n; at < bytes && s; at += n) {
        n = piece(bytes - at);
        cu_address to = (cu_address)(uintptr_t)device + at;
        if (!keep_failure(d, d->api->to_device(to, s->data, n, d->stream), "a write")) break;
    }
    if (s) keep_failure(d, d->api->event_record(s->event, d->stream), "a step");
    pthread_mutex_unlock(&d->lock);
    driver_mark(g, GPU_MARKS - 1);
    return driver_between(g, GPU_MARKS - 2, GPU_MARKS - 1);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static void driver_info(gpu *g, gpu_info *out)
{
    driver_gpu *d = self(g);
    *out = d->info;
    if (enter(d)) d->api->memory_info(&out->free, &out->memory);
}

static void driver_close(gpu *g)
{
    driver_gpu *d = self(g);
    if (!d) return;
    if (d->context) {
        if (d->done) driver_wait(g, NULL);
        driver_lanes_close(g);
        d->api->context_set(d->context);
        launches_close(d->launches);
        launches_close(d->recording);
        for (int i = 0; d->marks && i < GPU_MARKS; i++)
            if (d->marks[i]) d->api->event_destroy(d->marks[i]);
        for (size_t i = 0; i < d->module_count; i++) d->api->module_unload(d->modules[i]);
        for (int i = 0; i < SLOTS; i++) close_slot(d, &d->slot[i]);
        close_slot(d, &d->beside_slot);
        if (d->done) d->api->event_destroy(d->done);
        if (d->moved) d->api->event_destroy(d->moved);
        if (d->stream) d->api->stream_destroy(d->stream);
        if (d->beside) d->api->stream_destroy(d->beside);
        d->api->context_set(NULL);
        d->api->context_release(d->device);
    }
    for (gpu_kernel *k = d->kernels, *next; k; k = next) {
        next = k->next;
        free((void *)(uintptr_t)k->name);
        memory_free(k);
    }
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->beside_lock);
    pthread_mutex_destroy(&d->error_lock);
    free(d->modules);
    free(d->launched);
    memory_free(d->marks);
    memory_free(d);
}

static const gpu_calls calls = {
    .close = driver_close,
    .info = driver_info,
    .alloc = driver_alloc,
    .free = driver_free,
    .write = driver_write,
    .read = driver_read,
    .copy = driver_copy,
    .fill = driver_fill,
    .kernel = driver_kernel,
    .launch = driver_launch,
    .read_beside = driver_read_beside,
    .write_beside = driver_write_beside,
    .lanes_open = driver_lanes_open,
    .lanes_close = driver_lanes_close,
    .lane_take = driver_lane_take,
    .lane_send = driver_lane_send,
    .lanes_join = driver_lanes_join,
    .wait = driver_wait,
    .mark = driver_mark,
    .between = driver_between,
    .record = driver_record,
    .recorded = driver_recorded,
    .replay = driver_replay,
    .launched = driver_launched,
    .forget = driver_forget,
    .link = driver_link,
};

static cu_result open_device(driver_gpu *d)
{
    const driver_api *api = d->api;
    int shared = 0;
    cu_result r = api->device_get(&d->device, 0);
    if (r == CU_OK) r = api->device_name(d->info.name, (int)sizeof d->info.name, d->device);
    if (r == CU_OK) r = api->device_attribute(&d->info.major, CU_DEVICE_MAJOR, d->device);
    if (r == CU_OK) r = api->device_attribute(&d->info.minor, CU_DEVICE_MINOR, d->device);
    if (r == CU_OK) r = api->device_attribute(&d->info.processors, CU_DEVICE_PROCESSORS, d->device);
    if (r == CU_OK) r = api->device_attribute(&shared, CU_DEVICE_SHARED_OPTIN, d->device);
    d->info.shared = (size_t)shared;
    if (r == CU_OK) read_about(d);
    if (r == CU_OK) r = api->context_retain(&d->context, d->device);
    if (r == CU_OK) r = api->context_set(d->context);
    if (r == CU_OK) r = api->stream_create(&d->stream, CU_STREAM_NON_BLOCKING);
    if (r == CU_OK) r = api->stream_create(&d->beside, CU_STREAM_NON_BLOCKING);
    if (r == CU_OK) r = api->event_create(&d->done, CU_EVENT_WITHOUT_TIME);
    if (r == CU_OK) r = api->event_create(&d->moved, CU_EVENT_WITHOUT_TIME);
    if (r == CU_OK) r = launches_open(api, d->stream, d->info.major >= 9, &d->launches);
    for (int i = 0; i < SLOTS && r == CU_OK; i++) r = open_slot(d, &d->slot[i], SLOT_BYTES);
    return r == CU_OK ? open_slot(d, &d->beside_slot, SLOT_BYTES) : r;
}

static hy_status open_modules(driver_gpu *d, hy_error *err)
{
    size_t count = 0;
    while (cuda_fatbins[count].name) count++;
    d->modules = calloc(count + 1, sizeof *d->modules);
    if (!d->modules) return error_memory(err, "the kernels", count * sizeof *d->modules);
    for (; d->module_count < count; d->module_count++) {
        cu_result r = d->api->module_load(&d->modules[d->module_count], cuda_fatbins[d->module_count].begin);
        if (r == CU_OK) continue;
        if (r == CU_NO_BINARY_FOR_GPU || r == CU_UNSUPPORTED_PTX_VERSION)
            return error_set(err, HY_UNSUPPORTED,
                             "this program carries kernels for %s and the GPU %s is sm_%d%d: configure the build with "
                             "-DHAYATE_CUDA_ARCHS=%d%d",
                             cuda_fatbin_archs, d->info.name, d->info.major, d->info.minor, d->info.major,
                             d->info.minor);
        return fail(d, r, "loading the kernels", err);
    }
    return HY_OK;
}

hy_status gpu_driver_open(gpu **g, hy_error *err)
{
    static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t opened;
    const driver_api *api;
    int devices = 0;
    if (!cuda_fatbins[0].name)
        return error_set(err, HY_UNSUPPORTED,
                         "this program was built without CUDA kernels: nvcc was not found when it was configured, "
                         "or HAYATE_CUDA was off");
    hy_status status = driver_api_load(&api, err);
    if (status != HY_OK) return status;
    cu_result r = api->init(0);
    if (r == CU_OK) r = api->device_count(&devices);
    if (r == CU_NO_DEVICE || (r == CU_OK && devices == 0))
        return error_set(
            err, HY_FAILED,
            "the NVIDIA driver shows no GPU: look at CUDA_VISIBLE_DEVICES and nvidia-smi, or give --device cpu");
    driver_gpu *d = memory_zeroed(1, sizeof *d);
    if (!d) return error_memory(err, "a GPU", sizeof *d);
    d->base.calls = &calls;
    d->api = api;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->beside_lock, NULL);
    pthread_mutex_init(&d->error_lock, NULL);
    pthread_mutex_lock(&count_lock);
    d->number = ++opened;
    pthread_mutex_unlock(&count_lock);
    if (r == CU_OK) r = open_device(d);
    if (r != CU_OK) status = fail(d, r, "opening the driver", err);
    if (status == HY_OK) status = open_modules(d, err);
    if (status != HY_OK) {
        driver_close(&d->base);
        return status;
    }
    *g = &d->base;
    return HY_OK;
}
