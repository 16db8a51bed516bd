/* The machine and its settings, as the first line of every bench says them. */
#ifndef HAYATE_CLI_BENCH_MACHINE_H
#define HAYATE_CLI_BENCH_MACHINE_H

#include "base/json.h"

typedef struct bench_machine {
    char cpu[96];          /* model name */
    char instructions[96]; /* what of it the kernels can use: "avx512 vnni bf16" */
    char huge_pages[16];   /* of anonymous memory: always, madvise, never */
    int cores;             /* that this process may use */
    uint64_t memory, cache; /* bytes: all memory, last-level cache */
} bench_machine;

bench_machine bench_machine_read(void);
/* One line on stdout. */
void bench_machine_print(const bench_machine *m);
void bench_machine_write(const bench_machine *m, json_writer *w);

#endif
