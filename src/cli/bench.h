/*
 * hayate bench: each part is a command of its own below `bench`; argv[0] is its name.
 *
 *     bench_machine   the machine and its settings
 *     bench_read, bench_peak   what memory and cores can do, measured beside everything else
 *     bench_cost      what an operation must do at least
 *     bench_rows, bench_step, bench_rate   steps over random sequences, timed
 *     bench_engine   requests in flight beside the model alone
 *     bench_speculation   with drafts beside without, beside what a step must do
 *     bench_report, bench_against   tables, JSON, comparison
 */
#ifndef HAYATE_CLI_BENCH_H
#define HAYATE_CLI_BENCH_H

#include "hayate.h"

enum { BENCH_MAX_LIST = 16 };

int bench_memory(int argc, char **argv);
int bench_kernels(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_prefill(int argc, char **argv);
int bench_engine(int argc, char **argv);
int bench_speculation(int argc, char **argv);

/* "0,4096,64K" into values of [low, high]. HY_USAGE names `flag`. */
hy_status bench_parse_list(const char *flag, const char *text, int64_t low, int64_t high, int32_t out[BENCH_MAX_LIST],
                           int *count, hy_error *err);
/* Whether `name` is one of `list`, "moe,qkv". */
bool bench_in_list(const char *list, const char *name);
/* A figure with three significant digits, no exponent and at most seven decimals. */
const char *bench_digits(double value, char out[24]);
/* One line on stdout: what a share above 100 % means. */
void bench_note_above(void);

#endif
