#include "backend/cuda/launches.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

enum {
    GRAPHS = 32,     /* lists that are remembered */
    GRAPH_AFTER = 3, /* times that a list comes before it becomes a graph, which takes as long as some launches of it */
    GRAPH_LAUNCHES = 8, /* fewer are not worth one */
    ARGUMENT_BYTES = 4096,
};

/* In the list, with its arguments behind it up to a multiple of 8 bytes. function NULL: a mark, whose event these are.
 */
typedef struct launch {
    cu_function function;
    unsigned grid[3], block, shared, bytes;
} launch;

typedef struct graph {
    uint64_t hash;
    size_t bytes;       /* of the list; 0: there is none here */
    uint8_t *list;      /* with `exec` */
    cu_graph_exec exec; /* NULL: not yet, or it was refused */
    bool refused;
    int seen;
    uint64_t used;
} graph;

struct launches {
    const driver_api *api;
    cu_stream stream;
    bool follows, graphs, held;
    uint8_t *list;
    size_t bytes, room;
    int count;
    uint64_t hash, turn;
    graph graph[GRAPHS];
};

cu_result launches_open(const driver_api *api, cu_stream stream, bool follows, launches **out)
{
    launches *l = memory_zeroed(1, sizeof *l);
    if (!l) return CU_OUT_OF_MEMORY;
    bool can = api->capture_begin && api->capture_end && api->graph_instantiate && api->graph_launch &&
               api->graph_destroy && api->exec_destroy;
    *l = (launches){.api = api, .stream = stream, .follows = follows && api->launch_with, .graphs = can};
    *out = l;
    return CU_OK;
}

static void forget(const launches *l, graph *g)
{
    if (g->exec) l->api->exec_destroy(g->exec);
    free(g->list);
    *g = (graph){0};
}

void launches_close(launches *l)
{
    if (!l) return;
    for (int i = 0; i < GRAPHS; i++) forget(l, &l->graph[i]);
    free(l->list);
    memory_free(l);
}

static cu_result run_one(const launches *l, const launch *one, bool follows)
{
    size_t bytes = one->bytes;
    void *extra[] = {CU_LAUNCH_BUFFER, (void *)(uintptr_t)(one + 1), CU_LAUNCH_BYTES, &bytes, CU_LAUNCH_END};
    if (!follows)
        return l->api->launch(one->function, one->grid[0], one->grid[1], one->grid[2], one->block, 1, 1, one->shared,
                              l->stream, NULL, extra);
    cu_launch_attribute early = {.id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.number = 1};
    cu_launch_config config = {.grid_x = one->grid[0],
                               .grid_y = one->grid[1],
                               .grid_z = one->grid[2],
                               .block_x = one->block,
                               .block_y = 1,
                               .block_z = 1,
                               .shared = one->shared,
                               .stream = l->stream,
                               .attributes = &early,
                               .attribute_count = 1};
    return l->api->launch_with(&config, one->function, NULL, extra);
}

static size_t padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

static cu_result run_mark(const launches *l, const launch *one, bool captured)
{
    cu_event event;
    memcpy(&event, one + 1, sizeof event);
    if (!captured) return l->api->event_record(event, l->stream);
    return l->api->event_record_with ? l->api->event_record_with(event, l->stream, CU_EVENT_EXTERNAL)
                                     : CU_NOT_SUPPORTED;
}

static cu_result run_all(const launches *l, bool captured)
{
    cu_result r = CU_OK;
    bool marked = false; /* a kernel behind a mark waits for it as a whole */
    for (size_t at = 0; at < l->bytes && r == CU_OK;) {
        const launch *one = (const launch *)(const void *)(l->list + at);
        r = one->function ? run_one(l, one, l->follows && !marked) : run_mark(l, one, captured);
        marked = !one->function;
        at += sizeof *one + padded(one->bytes);
    }
    return r;
}

hy_status launches_add(launches *l, cu_function function, const int grid[3], int block, size_t shared, const void *args,
                       size_t bytes, hy_error *err)
{
    size_t size = sizeof(launch) + padded(bytes);
    if (bytes > ARGUMENT_BYTES)
        return error_set(err, HY_FAILED, "a kernel's parameter of %zu bytes is larger than a launch takes", bytes);
    if (!memory_reserve((void **)&l->list, &l->room, l->bytes + size, 1)) return error_memory(err, "launches", size);
    uint8_t *at = l->list + l->bytes;
    launch one = {.function = function,
                  .grid = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]},
                  .block = (unsigned)block,
                  .shared = (unsigned)shared,
                  .bytes = (unsigned)bytes};
    memcpy(at, &one, sizeof one);
    memcpy(at + sizeof one, args, bytes);
    memset(at + sizeof one + bytes, 0, padded(bytes) - bytes);
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word;
        memcpy(&word, at + i, sizeof word);
        l->hash = (l->hash ^ word) * 0x9E3779B97F4A7C15;
        l->hash ^= l->hash >> 29;
    }
    l->bytes += size;
    l->count++;
    if (l->graphs || l->held) return HY_OK;
    cu_result r = launches_run(l);
    return r == CU_OK ? HY_OK : error_set(err, HY_FAILED, "the GPU refused a launch: error %d of the driver", r);
}

/* The entry of the list, or the one that was used longest ago for it. */
static graph *entry_of(launches *l)
{
    graph *oldest = &l->graph[0];
    for (int i = 0; i < GRAPHS; i++) {
        graph *g = &l->graph[i];
        if (g->hash == l->hash && g->bytes == l->bytes) return g;
        if (g->used < oldest->used) oldest = g;
    }
    forget(l, oldest);
    oldest->hash = l->hash;
    oldest->bytes = l->bytes;
    return oldest;
}

/* The list as a graph. What fails here is no error: it is then launched one by one. */
static void make_graph(const launches *l, graph *g)
{
    cu_graph made = NULL;
    g->refused = true;
    g->list = malloc(l->bytes);
    if (!g->list || l->api->capture_begin(l->stream, CU_CAPTURE_RELAXED) != CU_OK) return;
    cu_result r = run_all(l, true), ended = l->api->capture_end(l->stream, &made);
    if (r == CU_OK && ended == CU_OK) g->refused = l->api->graph_instantiate(&g->exec, made, 0) != CU_OK;
    if (g->refused) g->exec = NULL;
    if (made) l->api->graph_destroy(made);
    memcpy(g->list, l->list, l->bytes);
}

cu_result launches_run(launches *l)
{
    cu_result r;
    graph *g = l->graphs && l->count >= GRAPH_LAUNCHES ? entry_of(l) : NULL;
    if (g) {
        g->used = ++l->turn;
        if (++g->seen >= GRAPH_AFTER && !g->exec && !g->refused) make_graph(l, g);
    }
    if (g && g->exec && memcmp(g->list, l->list, l->bytes) == 0)
        r = l->api->graph_launch(g->exec, l->stream);
    else
        r = run_all(l, false);
    l->bytes = 0;
    l->count = 0;
    l->hash = 0;
    return r;
}

/* ---- Lists that stay ----------------------------------------------------------------------------------------------
 */

void launches_hold(launches *l)
{
    l->held = true;
}

hy_status launches_mark(launches *l, cu_event event, hy_error *err)
{
    hy_status status = launches_add(l, NULL, (const int[3]){1, 1, 1}, 0, 0, &event, sizeof event, err);
    l->count -= status == HY_OK;
    return status;
}

bool launches_fix(launches *l, int *count)
{
    *count = l->count;
    if (l->graphs && l->count > 0) make_graph(l, &l->graph[0]);
    return l->graph[0].exec != NULL;
}

cu_result launches_again(const launches *l)
{
    const graph *g = &l->graph[0];
    return g->exec ? l->api->graph_launch(g->exec, l->stream) : run_all(l, false);
}
