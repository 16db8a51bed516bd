/* One sequence's drafts, made and judged on laws that a test gives, as `draft` and `verify` of a backend do it. */
#ifndef HAYATE_TESTS_VERIFY_HELPERS_H
#define HAYATE_TESTS_VERIFY_HELPERS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/ops.h"
#include "base/random.h"

enum { MOST_DRAFTS = 16 };

static inline ops_sample plain_sample(uint64_t seed, uint32_t position)
{
    return (ops_sample){
        .seed = seed, .position = position, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
}

/* A round: rows [drafts + 1] of `logits` [drafts + 1, vocab], the anchor at `anchor`. */
typedef struct round {
    int32_t vocab, drafts;
    const float *logits; /* [drafts + 1, vocab] */
    const float *laws;   /* [drafts, vocab] L; NULL: point masses */
    int32_t draft[MOST_DRAFTS];
    ops_sample row[MOST_DRAFTS + 1];
    float rates[MOST_DRAFTS];
    ops_verify_method method;
    uint32_t anchor;
    ops_sampled out[MOST_DRAFTS + 1];
    int32_t count;
} round_of;

static inline void round_rows(round_of *r, uint64_t seed, float temperature)
{
    for (int32_t j = 0; j <= r->drafts; j++) {
        r->row[j] = plain_sample(seed, r->anchor + 1 + (uint32_t)j);
        r->row[j].logit_row = j, r->row[j].temperature = temperature;
    }
}

/* Draws drafts of fixed laws, row by row. */
static inline void round_draft(round_of *r, ops_draft_method method)
{
    for (int32_t j = 0; j < r->drafts; j++) {
        const ops_sample *row = &r->row[j];
        ops_draft d = {.seed = row->seed, .choice = row->choice, .temperature = row->temperature, .method = method};
        r->draft[j] = draft_pick(r->laws + (size_t)j * (size_t)r->vocab, r->vocab, &d, row->position, r->anchor);
    }
}

/* `scratch` holds verify_scratch_bytes(vocab). */
static inline void round_judge(round_of *r, void *scratch)
{
    ops_verify v = {.row = r->row,
                    .draft = r->draft,
                    .drafts = r->drafts,
                    .method = r->method,
                    .law = r->laws ? 0 : -1,
                    .rates = r->rates,
                    .anchor = r->anchor,
                    .out = r->out,
                    .count = &r->count};
    r->count = -1;
    verify_sequence(r->logits, r->vocab, &v, r->laws, scratch);
    assert_in_range(r->count, 1, r->drafts + 1);
}

static inline void *verify_scratch(int32_t vocab)
{
    void *scratch = malloc(verify_scratch_bytes(vocab));
    assert_non_null(scratch);
    memset(scratch, 0xA5, verify_scratch_bytes(vocab)); /* nothing may depend on what was there */
    return scratch;
}

/* Numbers that have nothing to do with those of sampling: splitmix64. */
static inline double test_uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static inline float test_normal(uint64_t *state)
{
    double u = 1 - test_uniform(state), v = test_uniform(state);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

#endif
