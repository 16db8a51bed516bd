/* The `verify` of a backend: every sequence of a step is judged as verify.c does it, with its own rows and laws. */
#ifndef TESTS_BACKEND_VERIFY_STEP_H
#define TESTS_BACKEND_VERIFY_STEP_H

#include "backend/random_model.h"
#include "backend/verify_helpers.h"

enum { VOCAB = 50, BLOCK = 4, SEQUENCES = MAX_SEQUENCES, ROWS = SEQUENCES * (BLOCK + 1) };

static const model_kind kind = {
    .layers = 2,
    .hidden = 64,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 32,
    .index_dim = 32,
    .index_top = 3,
    .rotary_dim = 16,
    .experts = 8,
    .per_token = 3,
    .expert_width = 32,
    .shared_width = 32,
    .dense_width = 64,
    .vocab = VOCAB,
    .linear = WEIGHT_BF16,
    .expert = WEIGHT_NVFP4,
};
static const drafter_kind draft_kind = {
    .layers = 2,
    .heads = 6,
    .kv_heads = 2,
    .head_dim = 16,
    .rotary_dim = 8,
    .width = 96,
    .block = BLOCK,
    .window = 8,
    .tap_count = 2,
    .markov_rank = 16,
    .tap = {0, 1},
    .cache = CACHE_BF16,
    .linear = WEIGHT_BF16,
};

static float logits[ROWS * VOCAB], laws[SEQUENCES * BLOCK * VOCAB];

/* Sequences of 0 .. BLOCK drafts, whose rows and laws lie in the step in the order of `turn`. */
static void make_rounds(round_of *rounds, int trial)
{
    int32_t row = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        round_of *r = &rounds[s];
        *r = (round_of){
            .vocab = VOCAB, .drafts = (s + trial) % (BLOCK + 1), .logits = logits, .anchor = (uint32_t)(3 * s)};
        r->method = (ops_verify_method)((s + trial / 5) % 4);
        int law = (s + trial) % SEQUENCES;
        if ((s + trial) % 3) r->laws = laws + (size_t)law * BLOCK * VOCAB;
        round_rows(r, (uint64_t)(100 * trial + s), s % 4 == 3 ? 0 : 0.8f);
        for (int j = 0; j <= r->drafts; j++)
            r->row[j].logit_row = row++, r->row[j].logprobs = s % 3 - 1, r->rates[j] = 0.7f;
        if (r->laws) round_draft(r, r->method == VERIFY_COUPLED ? DRAFT_COUPLED : DRAFT_PROBABILISTIC);
    }
}

static void check_backend(const hy_ops *ops, int workers)
{
    random_model m;
    random_model_make(&m, &kind);
    random_model_draft(&m, &draft_kind);
    bench b;
    bench_open(&b, ops, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, workers);
    step_rows rows;
    rows_open(&rows);
    for (int s = 0; s < SEQUENCES; s++) rows_add(&rows, s, 0, BLOCK + 1, VOCAB);
    bench_forward(&b, &rows, NULL);
    void *scratch = verify_scratch(VOCAB);
    uint64_t numbers = 9;
    for (int trial = 0; trial < 60; trial++) {
        for (int i = 0; i < SEQUENCES * BLOCK * VOCAB; i++) laws[i] = 2 * test_normal(&numbers);
        for (int i = 0; i < ROWS * VOCAB; i++)
            logits[i] = laws[i % (SEQUENCES * BLOCK * VOCAB)] + test_normal(&numbers);
        b.ops->tensor_write(b.step, OPS_LOGITS, 0, ROWS, logits);
        b.ops->tensor_write(b.step, OPS_DRAFT_LOGITS, 0, SEQUENCES * BLOCK, laws);
        round_of rounds[SEQUENCES], alone[SEQUENCES];
        ops_verify v[SEQUENCES];
        make_rounds(rounds, trial);
        memcpy(alone, rounds, sizeof alone);
        for (int s = 0; s < SEQUENCES; s++) {
            round_of *r = &rounds[s];
            int32_t law = r->laws ? (int32_t)((r->laws - laws) / (BLOCK * VOCAB)) : -1;
            v[s] = (ops_verify){.row = r->row,
                                .draft = r->draft,
                                .drafts = r->drafts,
                                .method = r->method,
                                .law = law,
                                .rates = r->rates,
                                .anchor = r->anchor,
                                .out = r->out,
                                .count = &r->count};
        }
        hy_error err = {0};
        b.ops->verify(b.step, v, SEQUENCES);
        check(b.ops->finish(b.step, &err), &err);
        for (int s = 0; s < SEQUENCES; s++) {
            round_judge(&alone[s], scratch);
            assert_int_equal(rounds[s].count, alone[s].count);
            assert_memory_equal(rounds[s].out, alone[s].out, (size_t)alone[s].count * sizeof *alone[s].out);
        }
    }
    /* A step that has failed has no rows: nothing comes, and nothing is read. */
    rows.token[3] = VOCAB;
    b.ops->begin(b.step, b.cache, &rows.ops);
    round_of lost[SEQUENCES];
    make_rounds(lost, 0);
    for (int s = 0; s < SEQUENCES; s++) {
        ops_verify v = {.row = lost[s].row,
                        .draft = lost[s].draft,
                        .drafts = lost[s].drafts,
                        .law = -1,
                        .out = lost[s].out,
                        .count = &lost[s].count};
        b.ops->verify(b.step, &v, 1);
        hy_error err = {0};
        assert_int_equal(b.ops->finish(b.step, &err), HY_BAD_INPUT);
        assert_int_equal(lost[s].count, 1);
        assert_int_equal(lost[s].out[0].id, -1);
    }
    free(scratch);
    bench_close(&b);
    random_model_free(&m);
}

#endif
