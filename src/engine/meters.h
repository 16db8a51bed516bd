/*
 * What the engine measures of its requests and steps, beside its counters: how long they waited and took, how many
 * tokens they had. One observation a token, a step or a request, from the planner; see base/histogram.h for what it
 * costs.
 *
 * Times of one request, on the clock of the client's asking (C), submission (S), first admission (A), first token (F),
 * last token (L), end (E): first token F - C, between tokens each step after it, whole E - C, queue A - S, inference L - A,
 * prefill F - A, decode L - F, per token (L - F) / (tokens - 1). What a request never came to is not observed: one that was
 * cancelled while it waited has whole, and queue E - S, and no more.
 */
#ifndef HAYATE_ENGINE_METERS_H
#define HAYATE_ENGINE_METERS_H

#include "base/histogram.h"
#include "engine/request.h"

typedef struct meters {
    histogram first_token_s, between_tokens_s, per_token_s;
    histogram whole_s, queue_s, inference_s, prefill_s, decode_s;
    histogram prompt_tokens, generated_tokens, max_tokens, prefill_tokens, step_rows;
    atomic_uint_least64_t ended[HY_FINISH_REASONS];
} meters;

/* `longest`: tokens of a sequence. */
void meters_init(meters *m, int32_t longest);
/* A token has come; `before`: last_token as it was, 0 for none. */
void meters_token(meters *m, const hy_request *r, double before);
void meters_step(meters *m, int32_t rows);
/* The request has ended, at `now` (clock_seconds). */
void meters_end(meters *m, const hy_request *r, double now);
void meters_read(const meters *m, hy_engine_measures *out);

#endif
