/*
 * What the cores can multiply, now: loops of independent multiply-adds on registers, one instruction each, on all
 * threads of a pool. An instruction that a CPU lacks is replaced by the next best one; the name says which one ran.
 */
#ifndef HAYATE_CLI_BENCH_PEAK_H
#define HAYATE_CLI_BENCH_PEAK_H

#include "base/threads.h"
#include "cli/bench_cost.h"

/* "vpdpbusd, 512 bits", ... of the loop that stands for a peak on this CPU. */
const char *bench_peak_instruction(bench_peak which);

/* All of them in one line on stdout. */
void bench_peak_print(void);

/* Runs the loop for about five milliseconds on every thread. Operations per second of all together, a multiplication
 * with its addition counted as two. */
double bench_peak_run(bench_peak which, threads *pool);

#endif
