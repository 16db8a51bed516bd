/*
 * How fast the operations of a step go on this machine, and what a step of drafts takes by that.
 *
 * A text stands in the cache as the engine would have computed it, and operations run over its next rows one by one, outside
 * of any engine and without drafts: so weights lie where they lie in a step, in a cache or in memory. From that come seconds a
 * byte of each kind of weights when so many rows go through them, seconds of attention for rows of one sequence, and how
 * many experts rows of a text share. What a step takes follows from what it has of each:
 *
 *     target    its weights' bytes, of experts those that text rows touch; attention of every sequence by itself
 *     context   fc, and the keys and values of all draft layers
 *     verify    rows of logits, over the workers
 *     drafts    the draft layers' bytes, the head's, the Markov head's once a draft; attention; a pick a draft
 *
 * No step with drafts is timed for it.
 */
#ifndef HAYATE_CLI_SPECULATION_RATE_H
#define HAYATE_CLI_SPECULATION_RATE_H

#include "backend/ops.h"
#include "cli/bench_rows.h"
#include "cli/speculation_cost.h"

typedef struct speculation_probe speculation_probe;

/* What is predicted of a step. Seconds. */
typedef struct speculation_seconds {
    double target, context, verify, draft;
} speculation_seconds;

/* `text` [length] is computed, its rows are the probe's; steps have up to `rows` rows. Ids are borrowed for the call. The model
 * is borrowed; nobody else may drive it while the probe works. */
hy_status speculation_probe_open(const hy_model *model, const int32_t *text, int32_t length, int32_t rows,
                                 speculation_probe **out, hy_error *err);
void speculation_probe_close(speculation_probe *p);
/* Forgets the rates: those that are asked for next are measured anew. */
void speculation_probe_renew(speculation_probe *p);

/* A step of `batch` sequences of `context` tokens with `drafts` each, 0: without; temperature above 0. */
typedef struct speculation_asked {
    int batch, drafts;
    int32_t context;
    double length; /* rows of a sequence that are judged: its accepted drafts and one more */
    bool laws;     /* by their laws, not by the pick alone */
} speculation_asked;

/* Measures the rates that it needs and does not have. */
hy_status speculation_probe_step(speculation_probe *p, const speculation_asked *asked, speculation_seconds *out,
                                 hy_error *err);
/* A prompt of which `rows` tokens are computed, in pieces if a step has fewer; `drafts`: for the drafter too. */
hy_status speculation_probe_prompt(speculation_probe *p, int32_t rows, bool drafts, double *seconds, hy_error *err);
double speculation_seconds_sum(const speculation_seconds *s);
/* Distinct experts of `batch` runs of `each` rows of the text, on average over the layers that have experts. */
double speculation_probe_experts(const speculation_probe *p, int batch, int each);

#endif
