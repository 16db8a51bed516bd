/*
 * The random numbers of sampling: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011), so that any draw can be made anywhere from its coordinates alone.
 *
 * Key = the request's 64-bit seed, low word first.
 * Counter = (position that the drawn token will occupy, purpose << 24 | choice, vocabulary index / 4, anchor);
 * the lane is vocabulary index % 4.
 */
#ifndef HAYATE_BASE_RANDOM_H
#define HAYATE_BASE_RANDOM_H

#include <stdint.h>

typedef enum random_purpose {
    RANDOM_PICK = 0,   /* the target's pick, coupled drafts, recovered and bonus tokens; anchor 0 */
    RANDOM_ACCEPT = 1, /* acceptance of drafts, index 0; anchor = the round's anchor position + 1 */
    RANDOM_DRAFT = 2,  /* draft noise of `standard` and `block` */
    RANDOM_SYNTHETIC = 3,
} random_purpose;

/* Ten rounds of Philox4x32 on `counter` with `key`. */
void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* u in (0, 1): min((float)x * 2^-32 + 2^-33, 1 - 2^-24), each step rounded to fp32. */
float random_uniform(uint32_t x);

/* -log(-log1p(-u)) of the uniform of x: Gumbel noise with fine steps where it is large. */
float random_gumbel(uint32_t x);

/* Natural logarithms as fixed fp32 steps (explicit fmaf, no contraction): the same bits on every target.
 * random_log: x > 0, normal. random_log1p: -1 < x <= 0. Error under 2 ulp. */
float random_log(float x);
float random_log1p(float x);

/* The four lanes for vocabulary indices 4 * quad .. 4 * quad + 3. */
void random_quad(uint64_t seed, uint32_t position, random_purpose purpose, uint32_t choice, uint32_t quad, uint32_t anchor,
                 uint32_t out[4]);

/* A seed from the system's entropy. */
int64_t random_seed(void);

#endif
