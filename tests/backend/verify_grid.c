/*
 * Judges rounds on random numbers that it is given, for test_verify_exact.py. A line of standard input:
 *
 *     block? V m laws? drafts [m] p [m + 1, V] q [m, V, with laws] acceptance [m] noise [V]
 *
 * the last two as the 32-bit numbers that Philox would have given; a line out: accepted drafts and the token behind
 * them.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/random.h"

static uint32_t given_accept[16], given_noise[16];

/* In place of random_quad for the two files below, which are compiled in. Positions are 1 .. m + 1, the anchor is 0. */
static void given_quad(uint64_t seed, uint32_t position, random_purpose purpose, uint32_t choice, uint32_t quad,
                       uint32_t anchor, uint32_t out[4])
{
    (void)seed, (void)choice;
    if (purpose == RANDOM_PICK ? anchor != 0 : purpose != RANDOM_ACCEPT || anchor != 1 || quad != 0) abort();
    for (uint32_t lane = 0; lane < 4; lane++)
        out[lane] = purpose == RANDOM_PICK ? given_noise[4 * quad + lane] : given_accept[position - 1];
}

#define random_quad given_quad
#include "../../src/backend/sample.c"
#include "../../src/backend/verify.c"

static double number(void)
{
    double x;
    if (scanf("%lf", &x) != 1) exit(feof(stdin) ? 0 : 1);
    return x;
}

int main(void)
{
    static float logits[9 * 8], laws[8 * 8];
    int32_t draft[8];
    for (;;) {
        bool block = number() != 0;
        int vocab = (int)number(), drafts = (int)number();
        bool with_laws = number() != 0;
        if (vocab < 1 || vocab > 8 || drafts < 0 || drafts > 8) return 1;
        for (int i = 0; i < drafts; i++) draft[i] = (int32_t)number();
        for (int i = 0; i < (drafts + 1) * vocab; i++) logits[i] = (float)log(number());
        for (int i = 0; i < drafts * vocab && with_laws; i++) laws[i] = (float)log(number());
        for (int i = 0; i < drafts; i++) given_accept[i] = (uint32_t)number();
        for (int i = 0; i < vocab; i++) given_noise[i] = (uint32_t)number();
        ops_sample row[9];
        ops_sampled out[9];
        int32_t count = 0;
        for (int j = 0; j <= drafts; j++)
            row[j] = (ops_sample){.logit_row = j,
                                  .position = (uint32_t)j + 1,
                                  .temperature = 1,
                                  .top_p = 1,
                                  .repetition_penalty = 1,
                                  .logprobs = -1};
        ops_verify v = {.row = row,
                        .draft = draft,
                        .drafts = drafts,
                        .method = block ? VERIFY_BLOCK : VERIFY_STANDARD,
                        .law = with_laws ? 0 : -1,
                        .out = out,
                        .count = &count};
        void *scratch = malloc(verify_scratch_bytes(vocab));
        verify_sequence(logits, vocab, &v, with_laws ? laws : NULL, scratch);
        free(scratch);
        printf("%d %d\n", count - 1, out[count - 1].id);
    }
}
