/* What a test sets in the libcuda.so.1 of fake_cuda.c, and sees of it: the symbol `fake_cuda` of that library. */
#ifndef TESTS_BACKEND_FAKE_CUDA_H
#define TESTS_BACKEND_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fake_cuda_state {
    int devices;         /* that there are */
    bool other_gpu;      /* no code for it in the images */
    size_t memory;       /* most of one allocation */
    int fault_at_launch; /* what everything behind a launch gives */
    int fault;           /* what everything gives */
    int allocations, modules, launches, shared; /* now there; until now; dynamic memory allowed last */
    bool no_graphs;      /* they cannot be made */
    int graphs, graph_launches; /* now there; until now */
    int events;          /* recordings with a time, in streams and in graphs */
    bool no_events;      /* none in graphs */
    unsigned launch_shared;
    uint64_t threads; /* of the last launch */
    unsigned char parameters[4096];
} fake_cuda_state;

#endif
