/* What a bench prints: tables for people, or one JSON object, and the comparison with an earlier one. */
#ifndef HAYATE_CLI_BENCH_REPORT_H
#define HAYATE_CLI_BENCH_REPORT_H

#include "cli/bench_against.h"
#include "cli/bench_machine.h"
#include "cli/bench_step.h"

/* What is said once, before the rows. */
typedef struct bench_heading {
    const char *bench; /* "decode", "prefill" */
    bench_machine machine;
    hy_model_info model;
    int threads, runs;
    bool head;
    const char *weights;  /* "load", "stream" */
    uint64_t memory;      /* limit of the process as given, bytes; 0: none was */
    uint64_t read_bytes;  /* of the read buffer */
    const bench_gpu *gpu; /* borrowed; NULL: the bounds are the host's */
} bench_heading;

/* Of a decode step the bytes bind by definition; elsewhere, by operation, the larger of bytes and operations. */
bool bench_by_bytes(const char *bench);

/* The model as every bench names it: a line, an object. */
void bench_print_model(const hy_model_info *m);
void bench_write_model(const hy_model_info *m, json_writer *w);

void bench_print_heading(const bench_heading *h, const bench_against *against);
/* One row and its operations; `against` may be NULL. */
void bench_print_row(const bench_heading *h, const bench_result *r, const bench_against *against);
/* After the last row, in tables and with JSON. */
void bench_print_end(const bench_result *rows, int count, const bench_against *against);
/* The whole JSON object on stdout. False: no memory. */
bool bench_print_json(const bench_heading *h, const bench_result *rows, int count, const bench_against *against);

#endif
