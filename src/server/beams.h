/*
 * Beam search over one prompt, without the engine: which beginnings of an answer are gone on with, and which answers are
 * the best.
 *
 * Each round every live beam is offered the likeliest tokens that may follow it, 2 x width of them in order. Offers that
 * end an answer make it complete; of the others the `width` with the largest sums of log-probabilities are the live beams of
 * the next round. After max_tokens rounds live beams count as answers too. The score of an answer is
 *
 *     sum of its log-probabilities / (tokens of prompt and answer, the end token not among them) ^ length_penalty
 *
 * as vllm has it. Ties: the earlier beam, then the earlier offer; of answers the one that was complete earlier. A search
 * ends before its last round when nothing that is live can come among the best any more: its answers are those of all rounds.
 */
#ifndef HAYATE_SERVER_BEAMS_H
#define HAYATE_SERVER_BEAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hayate.h"

enum { BEAMS_MOST = 256 /* beams of a search */ };

typedef struct beams beams;

typedef struct beams_options {
    int32_t width;              /* 1 .. BEAMS_MOST: beams, and answers */
    int32_t prompt_count;       /* tokens of the prompt, at least 1 */
    int32_t max_tokens;         /* rounds, at least 1 */
    double length_penalty;      /* finite */
    int32_t kept;               /* log-probabilities kept of each token beside its own: the best; -1: none at all */
    bool (*ends)(void *user, int32_t token);
    void *user;
} beams_options;

/* NULL without memory. */
beams *beams_open(const beams_options *options);
void beams_close(beams *b);

/* Live beams; at first one, without a token. */
int32_t beams_live(const beams *b);
/* Tokens that every live beam has; those of beam i into out [that many]. */
int32_t beams_made(const beams *b);
void beams_tokens(const beams *b, int32_t i, int32_t *out);
/* What may follow beam i, the likeliest first: candidates are the first 2 x width with a token, the first `kept` are kept. Each
 * beam once a round, in order. */
void beams_offer(beams *b, int32_t i, const hy_logprob *best, size_t count);
/* The round is over. False: so is the search. */
bool beams_advance(beams *b);
/* Ends the search with what there is. */
void beams_stop(beams *b);
bool beams_ok(const beams *b); /* false: memory ran out */

/* After the end, in order of score: at most `width`, fewer where the vocabulary has fewer to offer. */
typedef struct beams_answer {
    int32_t count;   /* tokens, the end token among them */
    bool ended;      /* by an end token, the last one */
    double sum, score;
} beams_answer;
int32_t beams_answers(const beams *b);
beams_answer beams_best(const beams *b, int32_t rank);
/* Its tokens [count], and unless `kept` is -1 their log-probabilities [count, 1 + kept], the token's own first. */
void beams_tell(const beams *b, int32_t rank, int32_t *ids, hy_logprob *logprobs);

#endif
