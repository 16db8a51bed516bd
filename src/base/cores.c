#define _GNU_SOURCE /* CPU affinity */

#include "base/cores.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

enum { MASKS = 16, MOST_NODES = 1024 }; /* 1024 cpus a mask */

/* The first line of a file; false: there is none. */
static bool read_line(const char *path, char *out, int size)
{
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool read = fgets(out, size, f) != NULL;
    fclose(f);
    return read;
}

bool cores_list_has(const char *list, int n)
{
    for (const char *s = list; *s;) {
        char *end = NULL;
        long first = strtol(s, &end, 10), last = first;
        if (end == s) return false;
        if (*end == '-') {
            s = end + 1;
            last = strtol(s, &end, 10);
            if (end == s) return false;
        }
        if (n >= first && n <= last) return true;
        if (*end != ',') return false;
        s = end + 1;
    }
    return false;
}

/* Cores' worth of time that the cgroup gives, rounded up: cpu.max has microseconds of a period, or "max". */
static int quota(void)
{
    char line[64], *end = line;
    if (!read_line("/sys/fs/cgroup/cpu.max", line, sizeof line)) return INT_MAX;
    long long time = strtoll(line, &end, 10);
    if (end == line || time <= 0) return INT_MAX;
    long long period = strtoll(end, NULL, 10);
    if (period <= 0 || time / period >= INT_MAX) return INT_MAX;
    return (int)((time + period - 1) / period);
}

int cores_usable(void)
{
    cpu_set_t mask[MASKS];
    int n = sched_getaffinity(0, sizeof mask, mask) == 0 ? CPU_COUNT_S(sizeof mask, mask) : 1, most = quota();
    if (n > most) n = most;
    return n > 0 ? n : 1;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static void find_nodes(const char *system, core *list, int count)
{
    char path[4096], online[4096], cpus[4096];
    for (int i = 0; i < count; i++) list[i].node = 0;
    snprintf(path, sizeof path, "%s/devices/system/node/online", system);
    if (!read_line(path, online, sizeof online)) return;
    for (int node = 0; node < MOST_NODES; node++) {
        if (!cores_list_has(online, node)) continue;
        snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", system, node);
        if (!read_line(path, cpus, sizeof cpus)) continue;
        for (int i = 0; i < count; i++)
            if (cores_list_has(cpus, list[i].cpu)) list[i].node = node;
    }
}

/* A hardware thread is a further one where a lower number of the same core is in the list. */
static void find_seconds(const char *system, core *list, int count)
{
    char path[4096], siblings[4096];
    for (int i = 0; i < count; i++) {
        list[i].second = false;
        snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", system, list[i].cpu);
        if (!read_line(path, siblings, sizeof siblings)) continue;
        for (int j = 0; j < count; j++)
            list[i].second |= list[j].cpu < list[i].cpu && cores_list_has(siblings, list[j].cpu);
    }
}

static int compare(const void *left, const void *right)
{
    const core *a = left, *b = right;
    if (a->node != b->node) return a->node < b->node ? -1 : 1;
    if (a->second != b->second) return a->second ? 1 : -1;
    return a->cpu < b->cpu ? -1 : a->cpu > b->cpu;
}

int cores_describe(const char *system, core *list, int count)
{
    find_nodes(system, list, count);
    find_seconds(system, list, count);
    qsort(list, (size_t)count, sizeof *list, compare);
    int nodes = count > 0;
    for (int i = 1; i < count; i++) nodes += list[i].node != list[i - 1].node;
    return nodes;
}

hy_status cores_open(cores *out, hy_error *err)
{
    cpu_set_t mask[MASKS];
    if (sched_getaffinity(0, sizeof mask, mask) != 0)
        return error_set(err, HY_FAILED, "the system does not say which cores may be used: %s", strerror(errno));
    int count = CPU_COUNT_S(sizeof mask, mask), n = 0;
    core *list = memory_zeroed((size_t)count, sizeof *list);
    if (!list) return error_memory(err, "the list of cores", (size_t)count * sizeof *list);
    for (int cpu = 0; cpu < MASKS * CPU_SETSIZE && n < count; cpu++)
        if (CPU_ISSET_S((size_t)cpu, sizeof mask, mask)) list[n++].cpu = cpu;
    *out = (cores){list, n, cores_describe("/sys", list, n)};
    return HY_OK;
}

void cores_close(cores *c)
{
    memory_free(c->list);
    *c = (cores){0};
}

int cores_place(const cores *c, int i, int workers)
{
    /* Spread evenly over the list the worker falls into a node; its place there is its number among that node's. */
    int node = c->list[(int64_t)i * c->count / workers].node, before = 0, first = 0;
    for (int j = 0; j < i; j++) before += c->list[(int64_t)j * c->count / workers].node == node;
    while (c->list[first].node != node) first++;
    return c->list[first + before].cpu;
}
