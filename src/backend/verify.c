/*
 * Judging the drafts of one sequence, as backend/ops.h and docs/numerics.md define it. This file is the definition.
 *
 * p_j is the law that the chain leaves at row j, q_j the one that draft j was drawn from: softmax(L / temperature), or
 * all of it on the draft. With u drawn per draft from a stream of its own (RANDOM_ACCEPT, keyed by the round's anchor
 * too),
 *
 *     standard   draft j is accepted while u_j q_j(d) < p_j(d); the first that is not is replaced by a token of
 *                max(p_j - q_j, 0). Behind the last one: a token of p. Accepts with probability sum of min(p, q).
 *     block      rho_0 = 1, rho_(i+1) = min(1, rho_i p_i(d) / q_i(d)); M_i = sum of max(rho_i p_i - q_i, 0);
 *                h_i = M_i / (M_i + 1 - rho_i), 1 where that is 0/0, and rho_m behind the last of m drafts. The most
 * drafts i with u <= h_i are accepted, then comes a token of max(rho_i p_i - q_i, 0), or of p behind the last.
 *
 * Both leave the law of the target as it is (Leviathan et al. 2023, Sun et al. 2024; tests/backend/test_verify_exact.py
 * counts it out). Tokens that replace a draft take the target's noise of their position (RANDOM_PICK), which a position
 * uses once whatever was accepted. A draft must not have used it: one that did would bend the law of its replacement.
 *
 * As in sample.c another target can make the same choices to the bit: fp32 in the written order, masses in whole
 * numbers. Drafts from the first id on that is no token were never drawn: the row there is sampled as if they had not
 * been asked for.
 */
#include "backend/sample.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

typedef struct judge {
    const ops_verify *v;
    const float *logits; /* the step's */
    const float *laws;   /* [drafts, vocab] */
    int32_t vocab;
    float *p, *q;  /* [vocab] */
    void *scratch; /* of the chain */
    sampler row;   /* the last that was run */
} judge;

size_t verify_scratch_bytes(int32_t vocab)
{
    return sample_scratch_bytes(vocab) + 2 * (size_t)vocab * sizeof(float) + 64;
}

static const float *logits_of(const judge *g, int32_t j)
{
    return g->logits + (int64_t)g->v->row[j].logit_row * g->vocab;
}

static float uniform(const judge *g, int32_t j, random_purpose purpose)
{
    const ops_sample *how = &g->v->row[j];
    uint32_t x[4];
    random_quad(how->seed, how->position, purpose, how->choice, 0, g->v->anchor + 1, x);
    return random_uniform(x[0]);
}

/* Row j without a draft to judge; true: it is the last. */
static bool pick(judge *g, int32_t j)
{
    sample_row(logits_of(g, j), g->vocab, &g->v->row[j], g->scratch, &g->v->out[j]);
    *g->v->count = j + 1;
    return g->v->out[j].id < 0;
}

/* `id` below 0: nothing is left of the row, which is the last that was run. */
static void put(judge *g, int32_t j, int32_t id)
{
    g->v->out[j] = (ops_sampled){.id = id >= 0 ? id : sampler_nothing(&g->row)};
    sampler_score(&g->row, &g->v->out[j]);
    *g->v->count = j + 1;
}

/* p and q of row j. False: nothing is left of the row; p is 0 then. */
static bool laws_of(judge *g, int32_t j)
{
    const ops_sample *how = &g->v->row[j];
    sampler_run(&g->row, logits_of(g, j), g->vocab, how, g->scratch);
    if (g->laws && !sample_is_greedy(how->temperature)) {
        sample_softmax(g->laws + (int64_t)j * g->vocab, g->vocab, how->temperature, g->q);
    } else {
        memset(g->q, 0, (size_t)g->vocab * sizeof *g->q);
        g->q[g->v->draft[j]] = 1;
    }
    return sampler_law(&g->row, g->p);
}

/* ---- The token in place of a draft ---------------------------------------------------------------------------- */

/* The n of 2^(n-1) <= x < 2^n, x > 0 and normal; and what is above n ln 2 by more than any rounding here. */
static int exponent_above(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 23) - 126;
}

static float above(int n)
{
    return (float)n * 0.693147f + 0.001f;
}

/*
 * A draw from max(rho p - q, 0): argmax of its logarithm + noise, the lower id on ties. As with the noise, logarithms
 * are left out where their bounds, whole numbers of ln 2, cannot pass the best so far, which changes nothing. -1: it is
 * 0 everywhere.
 */
static int32_t pick_from_rest(const judge *g, int32_t j, float rho)
{
    const ops_sample *how = &g->v->row[j];
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t first = 0; first < g->vocab; first += 4) {
        uint32_t x[4];
        bool drawn = false;
        int32_t end = g->vocab - first < 4 ? g->vocab - first : 4;
        for (int32_t lane = 0; lane < end; lane++) {
            float rest = rho * g->p[first + lane] - g->q[first + lane];
            if (!(rest >= FLT_MIN)) continue;
            int n = exponent_above(rest);
            if (!(above(n + 33) > top)) continue;
            if (!drawn) random_quad(how->seed, how->position, RANDOM_PICK, how->choice, (uint32_t)first / 4, 0, x);
            drawn = true;
            int zeros = x[lane] ? __builtin_clz(x[lane]) : 32;
            if (!(above(n + zeros + 1) > top)) continue;
            float value = random_log(rest) + random_gumbel(x[lane]);
            if (value > top) top = value, best = first + lane;
        }
    }
    return best;
}

/* In place of draft j, whose laws are there. Nothing left of rho p - q, which rounding alone can do: p itself. */
static void replace(judge *g, int32_t j, float rho)
{
    int32_t id = sample_is_greedy(g->v->row[j].temperature) ? -1 : pick_from_rest(g, j, rho);
    put(g, j, id >= 0 ? id : sampler_pick(&g->row));
}

/* ---- Methods --------------------------------------------------------------------------------------------------- */

/* Draft by draft: `standard`, and `synthetic`, which asks for the rates instead of the laws. */
static void judge_singly(judge *g, int32_t drafts, bool synthetic)
{
    const ops_verify *v = g->v;
    for (int32_t j = 0; j < drafts; j++) {
        int32_t d = v->draft[j];
        if (!laws_of(g, j)) {
            put(g, j, -1);
            return;
        }
        bool accepted = synthetic ? uniform(g, j, RANDOM_SYNTHETIC) < v->rates[j]
                                  : uniform(g, j, RANDOM_ACCEPT) * g->q[d] < g->p[d];
        if (!accepted) {
            replace(g, j, 1);
            return;
        }
        put(g, j, d);
    }
    pick(g, drafts);
}

/* M of the laws that are there, summed in whole numbers of 2^-42. */
static float mass_of_rest(const judge *g, float rho)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < g->vocab; i++) {
        float rest = rho * g->p[i] - g->q[i];
        if (rest > 0) sum += (uint64_t)(rest * 0x1p42f);
    }
    return (float)sum * 0x1p-42f;
}

static void judge_block(judge *g, int32_t drafts)
{
    const ops_verify *v = g->v;
    float rho = 1, rho_there = 1; /* of the row that is being looked at; of the most that is accepted so far */
    int32_t accepted = 0, i;
    for (i = 0; i < drafts && rho > 0; i++) { /* from rho = 0 on all of h is 0 */
        laws_of(g, i);
        if (i > 0) {
            float mass = mass_of_rest(g, rho), whole = mass + (1 - rho);
            if (!(whole > 0) || uniform(g, i - 1, RANDOM_ACCEPT) <= mass / whole) accepted = i, rho_there = rho;
        }
        float p = g->p[v->draft[i]], q = g->q[v->draft[i]];
        rho = q > 0 ? rho * (p / q) : p > 0;
        if (rho > 1) rho = 1;
    }
    if (i == drafts && uniform(g, drafts - 1, RANDOM_ACCEPT) <= rho) accepted = drafts;
    for (int32_t j = 0; j < accepted; j++) {
        if (v->row[j].logprobs >= 0) sampler_run(&g->row, logits_of(g, j), g->vocab, &v->row[j], g->scratch);
        g->row.how = &v->row[j];
        put(g, j, v->draft[j]);
    }
    if (accepted == drafts)
        pick(g, drafts);
    else if (laws_of(g, accepted))
        replace(g, accepted, rho_there);
    else
        put(g, accepted, -1);
}

void verify_sequence(const float *logits, int32_t vocab, const ops_verify *v, const float *laws, void *scratch)
{
    judge g = {.v = v, .logits = logits, .laws = laws, .vocab = vocab, .scratch = scratch};
    g.p = (float *)(((uintptr_t)scratch + sample_scratch_bytes(vocab) + 63) & ~(uintptr_t)63);
    g.q = g.p + vocab;
    int32_t drafts = 0;
    while (drafts < v->drafts && v->draft[drafts] >= 0 && v->draft[drafts] < vocab) drafts++;
    bool greedy = sample_is_greedy(v->row[0].temperature);
    if (drafts == 0) {
        pick(&g, 0);
    } else if (v->method == VERIFY_SYNTHETIC) {
        judge_singly(&g, drafts, true);
    } else if (v->method == VERIFY_COUPLED || greedy) { /* without noise all three are this */
        for (int32_t j = 0; !pick(&g, j) && j < drafts && v->out[j].id == v->draft[j]; j++) {
        }
    } else if (v->method == VERIFY_STANDARD) {
        judge_singly(&g, drafts, false);
    } else {
        judge_block(&g, drafts);
    }
}

/* ---- Drafts ---------------------------------------------------------------------------------------------------- */

int32_t draft_pick(const float *logits, int32_t vocab, const ops_draft *d, uint32_t position, uint32_t anchor)
{
    if (d->method == DRAFT_GREEDY || sample_is_greedy(d->temperature)) return sample_largest(logits, vocab);
    sample_stream stream = {d->seed, position, d->choice, 0, RANDOM_PICK};
    if (d->method == DRAFT_PROBABILISTIC) stream.purpose = RANDOM_DRAFT, stream.anchor = anchor + 1;
    return sample_noisy(logits, vocab, d->temperature, stream);
}
