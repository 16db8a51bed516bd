/*
 * A network of random weights in memory, in the formats of the released model: MXFP8 projections, NVFP4 experts with a
 * dividing global scale, a bf16 head, an fp32 router. For benches of operations that need no checkpoint.
 */
#ifndef HAYATE_CLI_BENCH_SYNTHETIC_H
#define HAYATE_CLI_BENCH_SYNTHETIC_H

#include "backend/ops.h"

typedef struct bench_synthetic {
    ops_model model;
    void **memory; /* [count] what the weights borrow */
    size_t count, capacity;
    uint64_t state; /* of the random numbers */
    bool failed;    /* an allocation did; what follows it does nothing */
    bool alike;     /* all experts of a layer are one, and so are embedding and head, of few values over and over */
} bench_synthetic;

/* Bytes that the weights of bench_synthetic_open take. */
uint64_t bench_synthetic_bytes(const ops_model *shape, int dense_layers, int moe_layers);

/* `dense_layers` layers with a dense feed-forward, then `moe_layers` with experts; all sparse if the shape has index
 * heads. A shared width of 0 leaves the shared expert out. HY_NO_FIT without memory. */
hy_status bench_synthetic_open(const ops_model *shape, int dense_layers, int moe_layers, bench_synthetic *out,
                               hy_error *err);
/* The same, alike: for a backend that copies weights into a memory of its own, a layer of real size is made in no time.
 */
hy_status bench_synthetic_open_alike(const ops_model *shape, int dense_layers, int moe_layers, bench_synthetic *out,
                                     hy_error *err);
/* Gives it a drafter of the given sizes: a bf16 fc, MXFP8 layers, the target's embedding and head, neither Markov nor
 * confidence head. HY_NO_FIT without memory. */
hy_status bench_synthetic_draft(bench_synthetic *s, const ops_drafter *shape, hy_error *err);
/* HY_NO_FIT where weights, as made and as packed, and a cache do not fit beside a read buffer that is there already. */
hy_status bench_synthetic_fits(uint64_t weights, uint64_t cache, uint64_t read_buffer, hy_error *err);
void bench_synthetic_close(bench_synthetic *s);

#endif
