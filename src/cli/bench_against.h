/* An earlier `--json` file of the same bench, to compare with. */
#ifndef HAYATE_CLI_BENCH_AGAINST_H
#define HAYATE_CLI_BENCH_AGAINST_H

#include "base/json.h"
#include "cli/bench_machine.h"
#include "hayate.h"

enum { AGAINST_ROWS = 256, AGAINST_DIFFERENCES = 20 };

/* One earlier row, found again by its labels. */
typedef struct bench_earlier {
    char name[64]; /* "" for decode and prefill */
    int64_t context, batch;
    double rate;     /* tokens or operations a second, or bytes */
    double fraction; /* of the bound of its own run */
} bench_earlier;

typedef struct bench_against {
    const char *path; /* borrowed */
    bench_earlier rows[AGAINST_ROWS];
    int count;
    char differences[AGAINST_DIFFERENCES][160]; /* "cpu: X then, Y now" */
    int difference_count;
    void *root; /* the parsed file */
} bench_against;

/*
 * Reads a file that `hayate bench NAME --json` wrote. HY_BAD_INPUT: it is no such file, or one of another bench.
 * `rate_key` is what rows call their speed.
 */
hy_status bench_against_load(const char *path, const char *bench, const char *rate_key, bench_against *out,
                             hy_error *err);
/* Notes where "now" differs from what the file says of the machine or the settings. */
void bench_against_machine(bench_against *a, const bench_machine *now);
/* The same for a setting (a string of the object `group`, or of the top with NULL). */
void bench_against_setting(bench_against *a, const char *group, const char *key, const char *now);
void bench_against_close(bench_against *a);

/* NULL: the file has no such row, or one without a rate. */
const bench_earlier *bench_against_find(const bench_against *a, const char *name, int64_t context, int64_t batch);

/* "against FILE: ..." with all differences, on stdout. */
void bench_against_print(const bench_against *a);
/* After the last row, of which so many were found: warns when none was. */
void bench_against_end(const bench_against *a, int compared);
/* The object that --json carries. */
void bench_against_write(const bench_against *a, int compared, json_writer *w);

#endif
