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
    SAMPLE_THREADS = 1024,   /* of sample_cut */
    SAMPLE_LIST = 2048,      /* entries of a row among which a cut is looked for */
    SAMPLE_MOST = 512,       /* the largest top-k */
    SAMPLE_GROUPS = 2048,    /* most groups of a row's ids, of which each has its maximum */
    SAMPLE_GROUP_FOURS = 32, /* most fours of a group: so many lanes */
    SAMPLE_PICK_THREADS = 256,
    SAMPLE_PICK_FOURS = 4, /* that a thread reads at once */
    SAMPLE_VOCAB = SAMPLE_GROUPS * SAMPLE_GROUP_FOURS * 4, /* the largest of rows that are cut */
};

/* What is to be done with a row: the best of all, with noise or without; top-k or top-p, with or without min-p; min-p alone. */
enum { SAMPLE_ALL, SAMPLE_LISTED, SAMPLE_BOUNDED };

/* A row that is to be sampled. */
typedef struct sample_row_args {
    draw_stream stream;
    int32_t logit_row;
    int32_t top_k; /* 0: none */
    float top_p, min_p;
    int32_t kind;
    const uint32_t *mask; /* [ceil(vocab / 32)] bit i % 32 of word i / 32 set: i may be chosen; NULL: all may */
} sample_row_args;

/* Entries that min-p leaves: those whose key is at least `key`. */
typedef struct sample_bound {
    uint32_t key;
} sample_bound;

/* sample_scan, grid (chunks, rows): the best of a part of the vocabulary, or the maxima of its groups; sample_mass, the same
 * grid, where there is a row with top-p and no top-k: the mass of a part. sample_cut, grid (rows): `id`, -1 for none and where
 * the cut is not in the list, or the bound of a row of SAMPLE_BOUNDED, whose id sample_pick, grid (chunks, rows), and
 * sample_take, grid (rows), find. */
typedef struct sample_args {
    const float *logits; /* [*, vocab] */
    const sample_row_args *row;
    sample_bound *bound; /* [rows] */
    uint64_t *best;      /* [rows, chunks] places, or masses */
    float *maxima;       /* [rows, SAMPLE_GROUPS] */
    int32_t *id;         /* [rows] */
    int32_t vocab, chunks, fours; /* fours: of a group, a power of two */
} sample_args;

#endif
