/*
 * What each operation of a step must do at least, from the geometry alone: bytes that come from memory and arithmetic.
 *
 * Bytes are those of the file formats (weights with their scales, once a step however many rows use them) and of the
 * cache (every distinct key, value and index key once). Activations are not counted: they stay in the cores' caches.
 * One multiplication with its addition is two operations. Each matrix product is set against one peak, that of the
 * instruction which fits its numbers best:
 *
 *     NVFP4 weights with NVFP4 activations                    8-bit integers (2 x E2M1 is one)
 *     q.k of attention and index with exact NVFP4 keys        16-bit integers (a fixed-point q and 2 x E2M1)
 *     bf16, MXFP8 and NVFP4 weights with bf16 activations,
 *     q.k with other keys, p.v                                bf16
 *     fp32 weights (the router)                               fp32
 *
 * Products of bf16 values, and of those integers, are exact in fp32, so where a CPU is slower with the narrow type than with a
 * wider one, the wider one is the peak (bench_cost_peak).
 *
 * Norms, rotary, softmax, quantisation and sampling are not counted, so the bound is a lower one.
 */
#ifndef HAYATE_CLI_BENCH_COST_H
#define HAYATE_CLI_BENCH_COST_H

#include "backend/ops.h"

typedef enum bench_op {
    BENCH_EMBED, BENCH_ATTEND_IN, BENCH_INDEX, BENCH_ATTEND, BENCH_ATTEND_OUT, BENCH_ROUTE, BENCH_EXPERTS,
    BENCH_FEED_DENSE, BENCH_HEAD, BENCH_OPS,
} bench_op;

typedef enum bench_kind { /* of bytes */
    BYTES_EXPERTS, /* routed */
    BYTES_LINEAR,  /* attention, dense and shared feed-forward */
    BYTES_HEAD,
    BYTES_ROUTER,
    BYTES_CACHE,       /* keys and values */
    BYTES_INDEX_CACHE, /* index keys */
    BYTES_OTHER,       /* embedding rows, norms */
    BENCH_KINDS,
} bench_kind;

typedef enum bench_peak { PEAK_INT8, PEAK_INT16, PEAK_BF16, PEAK_FP32, BENCH_PEAKS } bench_peak;

extern const char *const bench_op_names[BENCH_OPS];     /* as in backend/ops.h: "attend_in", "index_select", ... */
extern const char *const bench_kind_names[BENCH_KINDS]; /* "experts", "linear", ... */
extern const char *const bench_peak_names[BENCH_PEAKS]; /* "int8", "int16", "bf16", "fp32" */

typedef struct bench_cost {
    double bytes[BENCH_KINDS];
    double operations[BENCH_PEAKS];
} bench_cost;

/* What a step's rows ask of one layer. Counts are exact: the last four are taken from what the step really selected. */
typedef struct bench_work {
    int64_t rows, logit_rows;
    int64_t scored;       /* pairs of row and visible token, of rows that see more than index_top blocks */
    int64_t index_tokens; /* distinct tokens whose index keys they read */
    int64_t attended;     /* triples of row, KV head and token */
    int64_t cache_tokens; /* distinct pairs of KV head and token behind them */
    int64_t experts;      /* distinct routed experts */
} bench_work;

/* What is fixed for a model. */
typedef struct bench_shape {
    const ops_model *model;
    cache_format main, index;
    readback read;
    moe_activation activation;
} bench_shape;

/* Adds the cost of one operation on one layer (ignored for embed and head) to `out`. */
void bench_cost_add(const bench_shape *shape, bench_op op, int layer, const bench_work *work, bench_cost *out);

/* to += from */
void bench_cost_sum(bench_cost *to, const bench_cost *from);
double bench_cost_bytes(const bench_cost *cost);
/* Seconds that the bytes take at `read` bytes per second; that the operations take at the peaks (per second each). */
double bench_cost_read_seconds(const bench_cost *cost, double read);
double bench_cost_peak_seconds(const bench_cost *cost, const double peaks[BENCH_PEAKS]);
/* The peak that `which` goes by: its own or that of a wider type, if that is faster. Integers of 8 bits have their own. */
bench_peak bench_cost_peak(bench_peak which, const double peaks[BENCH_PEAKS]);
/* The larger of the two: what binds. */
double bench_cost_bound(const bench_cost *cost, double read, const double peaks[BENCH_PEAKS]);

/* ---- Counting ------------------------------------------------------------------------------------------------- */

/* Counts `work` of a sparse layer from its selected blocks [rows, index_heads, index_top] (OPS_BLOCKS), of a dense one
 * with blocks NULL. `seen` is scratch of bench_count_scratch bytes. */
size_t bench_count_scratch(const ops_model *model, const ops_rows *rows);
void bench_count_attention(const ops_model *model, const ops_rows *rows, const int32_t *blocks, uint8_t *seen,
                           bench_work *work);
/* Distinct experts in routes [rows, experts_per_token]; `seen` has a byte for each expert. */
int64_t bench_count_experts(const ops_model *model, int64_t rows, const int32_t *routes, uint8_t *seen);

#endif
