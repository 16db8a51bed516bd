/*
 * What a measured step works on: sequences whose cache holds random rows, and rows that continue them.
 *
 * The cache is filled with bytes that the quantisers of docs/numerics.md could have written, of values of order one, so
 * that scores, softmax and selection behave as they do on text. Tokens are random and differ from run to run, so that
 * successive runs take different experts.
 */
#ifndef HAYATE_CLI_BENCH_ROWS_H
#define HAYATE_CLI_BENCH_ROWS_H

#include "backend/ops.h"

/* Rows of a step and the arrays behind them. Logical block b of sequence s is cache block s * blocks + b. */
typedef struct bench_rows {
    ops_rows ops;
    int32_t *sequence, *position, *token, *table;
    int64_t *slot;
    uint8_t *flags;
    int32_t max_rows, max_sequences;
    int32_t blocks; /* of one sequence */
} bench_rows;

/* Room for `rows` rows over `sequences` sequences of up to `positions` tokens. */
hy_status bench_rows_open(int32_t rows, int32_t sequences, int32_t positions, bench_rows *out, hy_error *err);
void bench_rows_close(bench_rows *r);

/*
 * `sequences` sequences of `context` tokens each, continued by `count` rows in all, count / sequences each. With `head`
 * every row of a decode step (one a sequence) wants logits, and the last row of a longer piece. Tokens are drawn from
 * `seed`.
 */
void bench_rows_set(bench_rows *r, int32_t sequences, int32_t context, int32_t count, bool head, int32_t vocab,
                    uint64_t seed);

/* Random rows of the first `tokens` tokens of `sequences` sequences. index_only: keys and values stay as they are.
 * HY_CANCELLED: on_progress said so. */
hy_status bench_rows_fill(const hy_ops *ops, ops_cache *cache, const cache_layout *layout, const bench_rows *r,
                          int32_t sequences, int32_t tokens, bool index_only, hy_progress_fn on_progress,
                          hy_error *err);

/* The same of the first sequence, and copies of it for the others: made on a device, where the way there is long. */
hy_status bench_rows_fill_alike(const hy_ops *ops, ops_cache *cache, const cache_layout *layout, const bench_rows *r,
                                int32_t sequences, int32_t tokens, hy_progress_fn on_progress, hy_error *err);

/* The next 64 random bits of a state. */
uint64_t bench_random(uint64_t *state);

#endif
