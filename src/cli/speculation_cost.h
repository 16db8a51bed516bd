/*
 * What a step with drafts must do at least, from the geometry alone, and what follows for how many drafts pay.
 *
 * A step of `batch` sequences with g drafts each runs batch * (1 + g) rows through the target, each with logits, and for each
 * of them the drafter's context projections; then batch * g rows through the drafter, its head and its Markov head. It makes
 * batch * accepted tokens, where a step without drafts makes `batch`. So, with t the larger of the time that the bytes and
 * the operations of an operation take (cli/bench_cost.h),
 *
 *     speed-up = accepted(g) * t(batch, 0) / t(batch, g)
 *
 * Rows are taken to be routed independently: distinct experts of R rows are E * (1 - (1 - k/E)^R).
 */
#ifndef HAYATE_CLI_SPECULATION_COST_H
#define HAYATE_CLI_SPECULATION_COST_H

#include "cli/bench_cost.h"
#include "model/model.h"

/* How fast bytes come and operations go. */
typedef struct speculation_machine {
    double read;                /* bytes per second */
    double peaks[BENCH_PEAKS];  /* operations per second */
} speculation_machine;

typedef struct speculation_step {
    bench_cost target, context, draft;             /* the target's rows; context rows of the drafter; its drafts */
    double target_s, context_s, draft_s;           /* seconds */
} speculation_step;

/* Sequences of `context` tokens. */
void speculation_cost_step(const hy_model *model, const speculation_machine *machine, int batch, int drafts, int32_t context,
                           speculation_step *out);
double speculation_cost_seconds(const speculation_step *step);
/* Tokens of a round of g drafts when each is accepted with probability `each` behind accepted ones: 1 + each + each^2 ... */
double speculation_accepted(double each, int drafts);

/* Drafts that make the most tokens a second for 1 .. most sequences, on a machine and with an acceptance as they are usual
 * (docs/speculation.md): nothing is measured, so the same model always has the same table. */
void speculation_cost_table(const hy_model *model, int drafts, int most, int by_batch[/* most */]);

#endif
