/*
 * The cores that this process may use, and where they are.
 *
 * A memory node is a part of the machine with its own memory: a core reads its node's memory faster than another's.
 * Everything comes from the scheduler's mask and from files below /sys; where those are missing there is one node.
 */
#ifndef HAYATE_BASE_CORES_H
#define HAYATE_BASE_CORES_H

#include "hayate.h"

typedef struct core {
    int cpu;     /* the system's number */
    int node;    /* of memory */
    bool second; /* a further hardware thread of a core that another entry has */
} core;

typedef struct cores {
    core *list; /* [count] nodes ascending; inside a node the first threads of all cores, then the further ones */
    int count, nodes;
} cores;

/* Hardware threads that this process may run on, but no more than the cgroup's time lets it run at once. At least 1. */
int cores_usable(void);

/* Those of the mask, all of them. HY_FAILED: the system does not say. Release with cores_close. */
hy_status cores_open(cores *out, hy_error *err);
void cores_close(cores *c);

/* Fills node and second of list [count], whose cpus are given, from the files below `system` (normally "/sys"), sorts
 * it, and returns the number of nodes. */
int cores_describe(const char *system, core *list, int count);

/* The cpu for worker i of `workers` (at most c->count): nodes get workers in the measure of their cores, runs of
 * neighbouring workers share a node, and further hardware threads come last. */
int cores_place(const cores *c, int i, int workers);

/* Whether "0-3,8,10-11" has n. */
bool cores_list_has(const char *list, int n);

#endif
