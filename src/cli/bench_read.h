/*
 * How fast this machine reads memory, now: the bound of everything that is bytes.
 *
 * A buffer several times the size of the last-level cache, on huge pages where the system gives them, is read from end
 * to end by all threads of a pool, each taking pieces of 2 MiB in turn. A pass also leaves nothing of what was read
 * before it in the caches.
 */
#ifndef HAYATE_CLI_BENCH_READ_H
#define HAYATE_CLI_BENCH_READ_H

#include "base/threads.h"

typedef struct bench_read {
    uint8_t *data; /* [bytes], on a 2 MiB boundary */
    size_t bytes;
    void *map; /* what was mapped */
    size_t mapped;
} bench_read;

/* Bytes of the last-level cache, 0 if the system does not say. */
uint64_t bench_read_cache_bytes(void);
/* Four times that, at least 256 MiB, but at most an eighth of the memory that is free. */
uint64_t bench_read_default_bytes(void);

/* HY_NO_FIT: more than is free. */
hy_status bench_read_check(uint64_t bytes, hy_error *err);
/* Logs a warning when the last-level cache could hold it. */
void bench_read_warn(uint64_t bytes);
/* Allocates and fills `bytes`, rounded up to whole pieces. HY_NO_FIT: more than is free. */
hy_status bench_read_open(uint64_t bytes, threads *pool, bench_read *out, hy_error *err);
void bench_read_close(bench_read *r);

/* One pass; bytes per second. */
double bench_read_pass(const bench_read *r, threads *pool);

#endif
