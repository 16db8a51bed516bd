/*
 * Parameters of the kernels that choose tokens.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_SAMPLE_H
#define HAYATE_BACKEND_CUDA_KERNELS_SAMPLE_H

#include "backend/cuda/kernels/args.h"

/* A place in the streams of random numbers (base/random.h) and what is asked of a row there. */
typedef struct draw_stream {
    uint64_t seed;
    uint32_t position, choice, anchor, purpose;
    float temperature;
    int32_t greedy; /* the largest, without noise; temperature is not looked at */
} draw_stream;

enum {
    SAMPLE_THREADS = 1024, /* of sample_cut */
    SAMPLE_LIST = 2048,    /* entries of a row among which a cut is looked for */
    SAMPLE_MOST = 512,     /* the largest top-k: that many maxima of the threads are at least as many entries */
    SAMPLE_PICK_THREADS = 256,
};

/* A row that is to be sampled. */
typedef struct sample_row_args {
    draw_stream stream;
    int32_t logit_row;
    int32_t top_k; /* 0: none */
    float top_p, min_p;
    const uint32_t *mask; /* [ceil(vocab / 32)] bit i % 32 of word i / 32 set: i may be chosen; NULL: all may */
} sample_row_args;

/* Entries that the cuts leave: those whose key is above `key`, and of those with that key the ids up to `last`. */
typedef struct sample_bound {
    uint32_t key;
    int32_t last;
    int32_t refused; /* the cut is not in the list: the host makes it */
} sample_bound;

/* sample_cut, grid (rows), finds the bounds; sample_pick, grid (chunks, rows), the best of a part of the vocabulary;
 * sample_take, grid (rows), the best of these into `id`, -1 for none and where a bound was refused. */
typedef struct sample_args {
    const float *logits; /* [*, vocab] */
    const sample_row_args *row;
    sample_bound *bound; /* [rows] */
    uint64_t *best;      /* [rows, chunks] */
    int32_t *id;         /* [rows] */
    int32_t vocab, chunks;
} sample_args;

#endif
