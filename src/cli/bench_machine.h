/* The machine and its settings, as the first line of every bench says them. */
#ifndef HAYATE_CLI_BENCH_MACHINE_H
#define HAYATE_CLI_BENCH_MACHINE_H

#include "backend/cuda/bench.h"
#include "base/json.h"

typedef struct bench_machine {
    char cpu[96];           /* model name */
    char instructions[96];  /* what of it the kernels can use: "avx512 vnni bf16" */
    char huge_pages[16];    /* of anonymous memory: always, madvise, never */
    int cores;              /* that this process may use */
    uint64_t memory, cache; /* bytes: all memory, last-level cache */
    bool has_gpu;           /* the operations run on one */
    gpu_info gpu;
} bench_machine;

extern const char bench_commit[]; /* that the program was built from; "": not known */

bench_machine bench_machine_read(void);
/* The same, with the GPU of a backend, or this machine's with NULL. */
bench_machine bench_machine_of(const hy_ops *ops, const ops_backend *backend);
/* A line on stdout, and one for a GPU. */
void bench_machine_print(const bench_machine *m);
void bench_machine_write(const bench_machine *m, json_writer *w);
/* What every --json begins with: bench, version, commit, time, machine. */
void bench_write_head(const char *bench, const bench_machine *m, json_writer *w);

#endif
