/*
 * The sampling chain on one row of logits, as backend/ops.h and docs/numerics.md define it. This file is the
 * definition.
 *
 * Every stage is exact in the sense that another target can make the same choice to the bit:
 *  - fp32 steps in the written order, contraction off (the build's -ffp-contract=off).
 *  - e^x as fixed fp32 steps (`weight_of`), turned into a whole number of 2^-42. Masses are sums of whole numbers, so
 *    their order is free: any tree, any number of threads, the same sum.
 *  - Cuts are made at a place in the total order (logit descending, id ascending). The place is found by a radix
 *    descent over the bits of the logit, which needs no sort: three passes whatever the vocabulary and the cut.
 *
 * Work: a pass to mask and one to scale, with top-k three passes that count, with top-p one that makes weights and
 * three that add them, and one Philox call per four candidates. Noise costs two logarithms only where it can still win.
 */
#include "backend/ops.h"
#include "base/random.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum {
    RADIX = 2048,   /* buckets of one level of the descent: 11, 11 and 10 bits of the key */
    MASS_BITS = 42, /* a mass of 1 is 2^42: 2^21 tokens of the same weight still fit 64 bits */
    VOCAB_MAX = 1 << 21,
};

static const float GREEDY_BELOW = 1e-5f;

typedef struct sampler {
    const ops_sample *how;
    const float *raw; /* [vocab] */
    int32_t vocab;
    uint64_t *bucket; /* [RADIX] */
    float *z;         /* [vocab] the row on its way; -inf: cannot be chosen */
    int32_t *list;    /* [vocab] ids that are left, ascending */
    uint64_t *weight; /* [vocab] of list[i]; counts of the history before that */
} sampler;

size_t sample_scratch_bytes(int32_t vocab)
{
    assert(vocab > 0 && vocab <= VOCAB_MAX);
    return RADIX * sizeof(uint64_t) + (size_t)vocab * (sizeof(uint64_t) + sizeof(float) + sizeof(int32_t)) + 64;
}

/* NaN counts as -inf. +inf, which no sound network makes, as the largest number, so that sums stay defined. */
static float clean(float x)
{
    return x <= FLT_MAX ? x : isnan(x) ? -INFINITY : FLT_MAX;
}

/* ---- Masks ---------------------------------------------------------------------------------------------------- */

static void forbid(sampler *s, int32_t id)
{
    if (id >= 0 && id < s->vocab) s->z[id] = -INFINITY;
}

/* Token `back` places before the next one, 1 being the last; the history is the prompt and then the output. */
static int32_t history(const ops_sample *how, size_t back)
{
    size_t output = (size_t)how->output_count;
    return back <= output ? how->output[output - back] : how->prompt[(size_t)how->prompt_count - (back - output)];
}

/* A word's last token is forbidden where the tokens before it are already there; of a word of one token, always. */
static void forbid_bad_words(sampler *s)
{
    const ops_sample *how = s->how;
    size_t known = (size_t)how->prompt_count + (size_t)how->output_count;
    for (int32_t w = 0; w < how->bad_word_count; w++) {
        const int32_t *word = how->bad_words[w];
        size_t length = how->bad_word_lengths[w], i = 0;
        if (length == 0 || length - 1 > known) continue;
        while (i < length - 1 && word[i] == history(how, length - 1 - i)) i++;
        if (i == length - 1) forbid(s, word[i]);
    }
}

static void mask(sampler *s)
{
    const ops_sample *how = s->how;
    if (how->allowed_count > 0) {
        for (int32_t i = 0; i < s->vocab; i++) s->z[i] = -INFINITY;
        for (int32_t i = 0; i < how->allowed_count; i++) {
            int32_t id = how->allowed[i];
            if (id >= 0 && id < s->vocab) s->z[id] = clean(s->raw[id]);
        }
    } else {
        for (int32_t i = 0; i < s->vocab; i++) s->z[i] = clean(s->raw[i]);
    }
    forbid_bad_words(s);
    if (how->output_count < how->min_tokens)
        for (int32_t i = 0; i < how->end_id_count; i++) forbid(s, how->end_ids[i]);
    if (how->mask)
        for (int32_t i = 0; i < s->vocab; i++)
            if (!(how->mask[i / 32] >> (i % 32) & 1)) s->z[i] = -INFINITY;
}

/* ---- Bias and penalties --------------------------------------------------------------------------------------- */

static void bias(sampler *s)
{
    for (int32_t i = 0; i < s->how->bias_count; i++) {
        int32_t id = s->how->bias[i].token;
        if (id >= 0 && id < s->vocab) s->z[id] = clean(s->z[id] + s->how->bias[i].bias);
    }
}

/* One token that the history has; `count` times in the output. -inf stays what it is. */
static float penalise(float z, const ops_sample *how, uint64_t count)
{
    if (how->repetition_penalty != 1) z = z > 0 ? z / how->repetition_penalty : z * how->repetition_penalty;
    if (count) {
        z -= how->frequency_penalty * (float)count;
        z -= how->presence_penalty;
    }
    return clean(z);
}

/* Repetition over prompt and output, once per token; frequency and presence over the output. Two marks per token are
 * counted in s->weight: the number of times in the output, and bit 63 for one that is not handled yet. */
static void penalties(sampler *s)
{
    const ops_sample *how = s->how;
    bool output_only = how->repetition_penalty == 1;
    if (output_only && how->frequency_penalty == 0 && how->presence_penalty == 0) return;
    const uint64_t open = (uint64_t)1 << 63;
    uint64_t *count = s->weight;
    const int32_t *part[2] = {how->output, how->prompt};
    int32_t length[2] = {how->output_count, output_only ? 0 : how->prompt_count};
    for (int p = 0; p < 2; p++)
        for (int32_t i = 0; i < length[p]; i++)
            if (part[p][i] >= 0 && part[p][i] < s->vocab) count[part[p][i]] = open;
    for (int32_t i = 0; i < how->output_count; i++)
        if (how->output[i] >= 0 && how->output[i] < s->vocab) count[how->output[i]]++;
    for (int p = 0; p < 2; p++)
        for (int32_t i = 0; i < length[p]; i++) {
            int32_t id = part[p][i];
            if (id < 0 || id >= s->vocab || !(count[id] & open)) continue;
            count[id] &= ~open;
            s->z[id] = penalise(s->z[id], how, count[id]);
        }
}

/* ---- Weights -------------------------------------------------------------------------------------------------- */

/*
 * e^x for x <= 0 in units of 2^-42, rounded down; 0 below x = -30, where less than half a unit is left.
 * x = k ln 2 + r with ln 2 in two parts, the first of nine bits so that k times it is exact; e^r by the Taylor
 * polynomial of degree 7, |r| <= 0.35, whose next term is below 2^-27.
 */
static inline uint64_t weight_of(float x)
{
    if (!(x > -30.0f)) return 0;
    int32_t k = (int32_t)(x * 1.44269502f - 0.5f); /* truncation: the nearest whole number, as x <= 0 */
    float r = (x - (float)k * 0.693359375f) - (float)k * -2.12194442e-4f;
    float p = 1.98412701e-4f;
    p = p * r + 1.38888892e-3f;
    p = p * r + 8.33333377e-3f;
    p = p * r + 4.16666679e-2f;
    p = p * r + 0.166666672f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits = (uint32_t)(127 + MASS_BITS + k) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return (uint64_t)(p * scale);
}

/* ---- Cuts ----------------------------------------------------------------------------------------------------- */

/* Bits that order as the numbers do. -0 was made +0 before. */
static uint32_t key_of(float z)
{
    uint32_t u;
    memcpy(&u, &z, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/*
 * Keeps the shortest prefix of the list in order of (logit descending, id ascending) whose amounts reach `target`: an
 * amount is the weight of an entry, or 1 without weights. The list stays in ascending id. Each level of the descent
 * adds up the amounts per value of the next bits among the entries that share the bits found so far.
 */
static int32_t keep_prefix(sampler *s, int32_t count, const uint64_t *amount, uint64_t target)
{
    static const int shifts[3] = {21, 10, 0}, widths[3] = {11, 11, 10};
    uint32_t found = 0; /* leading bits of the key where the prefix ends */
    uint64_t above = 0; /* amount of the entries with a larger key */
    for (int level = 0; level < 3; level++) {
        int shift = shifts[level], known = shift + widths[level];
        uint32_t low = (1u << widths[level]) - 1;
        memset(s->bucket, 0, sizeof *s->bucket << widths[level]);
        for (int32_t i = 0; i < count; i++) {
            uint32_t key = key_of(s->z[s->list[i]]);
            if (known < 32 && key >> known != found) continue;
            s->bucket[key >> shift & low] += amount ? amount[i] : 1;
        }
        int32_t b = (int32_t)low;
        while (b > 0 && above + s->bucket[b] < target) above += s->bucket[b--];
        found = (level == 0 ? 0 : found << widths[level]) | (uint32_t)b;
    }
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t id = s->list[i];
        uint32_t key = key_of(s->z[id]);
        bool keep = key > found;
        if (key == found && above < target) {
            above += amount ? amount[i] : 1;
            keep = true;
        }
        if (keep)
            s->list[kept++] = id;
        else
            s->z[id] = -INFINITY;
    }
    return kept;
}

/* The list of what is left. Min-p compares logarithms: p_i >= min_p * p_max is z_i >= z_max + log(min_p). */
static int32_t list_candidates(sampler *s, float top)
{
    float min_p = s->how->min_p, floor_z = -INFINITY;
    if (min_p > 0) floor_z = top + random_log(min_p > FLT_MIN ? min_p : FLT_MIN);
    int32_t count = 0;
    for (int32_t i = 0; i < s->vocab; i++) {
        if (s->z[i] >= floor_z && s->z[i] > -INFINITY)
            s->list[count++] = i;
        else
            s->z[i] = -INFINITY;
    }
    return count;
}

static void cut(sampler *s, float top)
{
    const ops_sample *how = s->how;
    bool top_k = how->top_k > 0 && how->top_k < s->vocab, top_p = how->top_p < 1;
    if (!top_k && !top_p && !(how->min_p > 0)) return;
    int32_t count = list_candidates(s, top);
    if (top_k && how->top_k < count) count = keep_prefix(s, count, NULL, (uint64_t)how->top_k);
    if (!top_p) return;
    uint64_t sum = 0;
    for (int32_t i = 0; i < count; i++) sum += s->weight[i] = weight_of(s->z[s->list[i]] - top);
    double target = ceil((double)how->top_p * (double)sum);
    keep_prefix(s, count, s->weight, target > 1 ? (uint64_t)target : 1);
}

/* ---- The pick ------------------------------------------------------------------------------------------------- */

static int32_t pick_largest(const sampler *s)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t i = 0; i < s->vocab; i++)
        if (s->z[i] > top) top = s->z[i], best = i;
    return best;
}

/*
 * argmax(z + noise), the lower id on ties. A draw x with n leading zero bits has u >= 2^-(n+1), so its noise is at most
 * (n + 1) ln 2: where that cannot pass the best so far (0.6932 is above ln 2 by more than any rounding) the logarithms
 * are left out, which changes nothing.
 */
static int32_t pick_noisy(const sampler *s)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t first = 0; first < s->vocab; first += 4) {
        uint32_t x[4];
        bool drawn = false;
        int32_t end = s->vocab - first < 4 ? s->vocab - first : 4;
        for (int32_t lane = 0; lane < end; lane++) {
            float z = s->z[first + lane];
            if (!(z + 33 * 0.6932f > top)) continue;
            if (!drawn)
                random_quad(s->how->seed, s->how->position, RANDOM_PICK, s->how->choice, (uint32_t)first / 4, 0, x);
            drawn = true;
            int zeros = x[lane] ? __builtin_clz(x[lane]) : 32;
            if (!(z + (float)(zeros + 1) * 0.6932f > top)) continue;
            float value = z + random_gumbel(x[lane]);
            if (value > top) top = value, best = first + lane;
        }
    }
    return best;
}

/* ---- Log-probabilities ---------------------------------------------------------------------------------------- */

/* Raw: log softmax of the row as the network made it, (l - max) - log(sum of e^(l - max)). The best n in order of
 * (log-probability descending, id ascending). */
static void log_probabilities(const sampler *s, int32_t n, ops_sampled *out)
{
    float top = -INFINITY;
    for (int32_t i = 0; i < s->vocab; i++) {
        float l = clean(s->raw[i]);
        if (l > top) top = l;
    }
    uint64_t sum = 0;
    for (int32_t i = 0; i < s->vocab; i++) sum += weight_of(clean(s->raw[i]) - top);
    float log_sum = random_log((float)sum * 0x1p-42f);
    if (n > SAMPLE_MAX_LOGPROBS) n = SAMPLE_MAX_LOGPROBS;
    int32_t count = 0;
    for (int32_t i = 0; i < s->vocab && n > 0; i++) {
        float l = clean(s->raw[i]);
        if (!(l > -INFINITY)) continue;
        float p = (l - top) - log_sum;
        if (count == n && !(p > out->top_logprobs[n - 1])) continue;
        int32_t at = count < n ? count++ : n - 1;
        for (; at > 0 && p > out->top_logprobs[at - 1]; at--) {
            out->top_ids[at] = out->top_ids[at - 1];
            out->top_logprobs[at] = out->top_logprobs[at - 1];
        }
        out->top_ids[at] = i, out->top_logprobs[at] = p;
    }
    out->top_count = count;
    out->logprob = (clean(s->raw[out->id]) - top) - log_sum;
}

void sample_row(const float *logits, int32_t vocab, const ops_sample *how, void *scratch, ops_sampled *out)
{
    assert(vocab > 0 && vocab <= VOCAB_MAX);
    uint64_t *memory = (uint64_t *)(((uintptr_t)scratch + 7) & ~(uintptr_t)7);
    sampler s = {.how = how, .raw = logits, .vocab = vocab, .bucket = memory, .weight = memory + RADIX};
    s.z = (float *)(s.weight + vocab);
    s.list = (int32_t *)(s.z + vocab);
    memset(out, 0, sizeof *out);

    mask(&s);
    bias(&s);
    penalties(&s);
    if (!(how->temperature >= GREEDY_BELOW)) {
        out->id = pick_largest(&s);
    } else {
        float top = -INFINITY;
        for (int32_t i = 0; i < vocab; i++) {
            s.z[i] = clean(s.z[i] / how->temperature + 0.0f); /* + 0: no -0, which the keys would tell from 0 */
            if (s.z[i] > top) top = s.z[i];
        }
        if (top > -INFINITY) cut(&s, top);
        out->id = pick_noisy(&s);
    }
    if (out->id < 0)
        out->logprob = -INFINITY;
    else if (how->logprobs >= 0)
        log_probabilities(&s, how->logprobs, out);
}
