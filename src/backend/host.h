/*
 * What backends in host memory share: the checks of a model and of a step's rows, the cache, the arrays of a step.
 * Private to src/backend.
 */
#ifndef HAYATE_BACKEND_HOST_H
#define HAYATE_BACKEND_HOST_H

#include "backend/ops.h"

/* What neither host backend can do, for its `open`: more than one rank, heads that do not share evenly, a rotary dim that
 * does not fit, widths that NVFP4 activations cannot have; of a drafter also its block, its window and its taps. HY_UNSUPPORTED;
 * `backend` is the name in messages. */
hy_status host_check_model(const char *backend, const ops_model *model, const ops_options *options, hy_error *err);

struct ops_cache {
    ops_backend *backend; /* borrowed; host.c does not look into it */
    cache_layout layout; /* own copy of the arrays */
    int32_t blocks;
    uint8_t *data; /* [blocks, row_bytes] */
};

/* `zeroed`: tokens that were never written read as zeros; otherwise the memory is taken as its pages are touched. */
hy_status host_cache_open(ops_backend *backend, const cache_layout *layout, int32_t blocks, bool zeroed,
                          ops_cache **cache, hy_error *err);
/* These four are entries of hy_ops. */
void host_cache_close(ops_cache *cache);
void host_cache_read(ops_cache *cache, int32_t block, size_t offset, size_t bytes, void *out);
void host_cache_write(ops_cache *cache, int32_t block, size_t offset, size_t bytes, const void *in);
void host_cache_copy(ops_cache *cache, int32_t from, int32_t to);

/* One array of a step: [rows, columns] of `size` bytes. */
typedef struct host_array {
    void *at; /* address of the pointer that takes it */
    size_t rows, columns, size;
} host_array;

/* Allocates zeroed arrays, each of at least one element; memory_free them one by one. On failure those that were made
 * stay in their pointers and the others are untouched. */
hy_status host_arrays_open(const host_array *arrays, size_t count, hy_error *err);
uint64_t host_arrays_bytes(const host_array *arrays, size_t count); /* that they would take */

/* A row's token, position, cache blocks and what it replays. HY_BAD_INPUT, or HY_NO_FIT for a position beyond `limits`. */
hy_status host_check_row(const ops_model *model, const ops_limits *limits, const ops_cache *cache, const ops_rows *rows,
                         int32_t t, hy_error *err);

/* `verify` of one sequence on a step's logits [logit_rows, vocab] and kept L [limits.drafts, limits.draft_rows, vocab], with
 * host_verify_scratch bytes. Rows that the step does not have, as after an error of it, give an id of -1. */
void host_verify(const ops_limits *limits, const float *logits, int32_t logit_rows, int32_t vocab, const float *draft_logits,
                 const ops_verify *v, void *scratch);
size_t host_verify_scratch(const ops_limits *limits, int32_t vocab); /* also enough for sample_row */

#endif
