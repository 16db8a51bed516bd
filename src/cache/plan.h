/* How many blocks a cache has: arithmetic only, before anything is allocated. */
#ifndef HAYATE_CACHE_PLAN_H
#define HAYATE_CACHE_PLAN_H

#include "hayate.h"

typedef struct cache_plan {
    int32_t blocks;
    uint64_t bytes;         /* blocks * row bytes */
    uint64_t longest_bytes; /* what one sequence of the model's length needs */
    int32_t longest_tokens; /* the longest sequence that fits: the model's length or the cache's */
} cache_plan;

/*
 * `row_bytes`: one block of 128 tokens; `max_len`: tokens of the longest sequence. With `cache_bytes` > 0 that is the
 * size, rounded down to whole blocks; with 0 it is sixteen longest sequences, at most a quarter of `available`, but one
 * longest sequence may take half of it.
 * HY_NO_FIT: not even one block.
 */
hy_status cache_plan_make(uint64_t row_bytes, int32_t max_len, uint64_t cache_bytes, uint64_t available,
                          cache_plan *plan, hy_error *err);

#endif
