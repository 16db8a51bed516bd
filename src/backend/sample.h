/*
 * One row of logits on its way through the chain of backend/ops.h (sample.c), for those that want more of it than the pick:
 * verify.c judges drafts by the law that is left.
 */
#ifndef HAYATE_BACKEND_SAMPLE_H
#define HAYATE_BACKEND_SAMPLE_H

#include "backend/ops.h"
#include "base/random.h"

typedef struct sampler {
    const ops_sample *how;
    const float *raw; /* [vocab] */
    int32_t vocab;
    float top;        /* the largest of z; -inf: nothing is left */
    uint64_t *bucket; /* of the radix descent */
    float *z;         /* [vocab] the row on its way; -inf: cannot be chosen */
    int32_t *list;    /* [vocab] ids that are left, ascending */
    uint64_t *weight; /* [vocab] of list[i]; counts of the history before that */
} sampler;

/* What masks a row has: none; the bits of `mask` alone; more, which sample_mask_bits puts together. */
typedef enum sample_masking { SAMPLE_MASK_NONE, SAMPLE_MASK_GIVEN, SAMPLE_MASK_MADE } sample_masking;
sample_masking sample_masks(const ops_sample *how);
/* Bit i % 32 of word i / 32: token i is left by allowed ids, bad words, end ids and `mask`. */
void sample_mask_bits(const ops_sample *how, int32_t vocab, uint32_t *bits /* [ceil(vocab / 32)] */);

/* Masks, bias, penalties, temperature and cuts. `scratch` holds sample_scratch_bytes(vocab) and is borrowed by `s`. */
void sampler_run(sampler *s, const float *logits, int32_t vocab, const ops_sample *how, void *scratch);
/* What the chain draws; -1: nothing is left. */
int32_t sampler_pick(const sampler *s);
/* The law of that, as sample_law gives it. False: nothing is left, and p is 0 everywhere. */
bool sampler_law(const sampler *s, float *p);
/* Where nothing is left: SAMPLED_MASKED or SAMPLED_NONE. */
int32_t sampler_nothing(const sampler *s);
/* Log-probabilities of out->id, where they are asked for. */
void sampler_score(const sampler *s, ops_sampled *out);

/* Below this temperature (and at NaN) there is no noise: the largest is taken, the lower id on ties. */
bool sample_is_greedy(float temperature);
/* A place in the streams of random numbers: see base/random.h. */
typedef struct sample_stream {
    uint64_t seed;
    uint32_t position, choice, anchor;
    random_purpose purpose;
} sample_stream;
/* The largest of a row, and argmax(row / temperature + noise); NaN counts as -inf. -1: no finite value. */
int32_t sample_largest(const float *row, int32_t vocab);
int32_t sample_noisy(const float *row, int32_t vocab, float temperature, sample_stream stream);
/* The law of sample_noisy, softmax(row / temperature), rounded as sampler_law does. False: no finite value, p is 0. */
bool sample_softmax(const float *row, int32_t vocab, float temperature, float *p);

#endif
