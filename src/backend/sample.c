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
#include "backend/sample.h"

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

bool sample_is_greedy(float temperature)
{
    return !(temperature >= GREEDY_BELOW);
}

size_t sample_scratch_bytes(int32_t vocab)
{
    assert(vocab > 0 && vocab <= VOCAB_MAX);
    return RADIX * sizeof(uint64_t) + (size_t)vocab * (sizeof(uint64_t) + sizeof(float) + sizeof(int32_t)) + 64;
}

/* NaN counts as -inf. +inf, which no sound network makes, as the largest number, so that sums stay defined. */
static inline float clean(float x)
{
    return x <= FLT_MAX ? x : isnan(x) ? -INFINITY : FLT_MAX;
}

/* + 0: no -0, which the keys would tell from 0. */
static inline float scale(float z, float temperature)
{
    return clean(clean(z) / temperature + 0.0f);
}

/* ---- Masks ---------------------------------------------------------------------------------------------------- */

static void forbid(uint32_t *bits, int32_t vocab, int32_t id)
{
    if (id >= 0 && id < vocab) bits[id / 32] &= ~(1u << (id % 32));
}

/* Token `back` places before the next one, 1 being the last; the history is the prompt and then the output. */
static int32_t history(const ops_sample *how, size_t back)
{
    size_t output = (size_t)how->output_count;
    return back <= output ? how->output[output - back] : how->prompt[(size_t)how->prompt_count - (back - output)];
}

/* A word's last token is forbidden where the tokens before it are already there; of a word of one token, always. */
static void forbid_bad_words(const ops_sample *how, int32_t vocab, uint32_t *bits)
{
    size_t known = (size_t)how->prompt_count + (size_t)how->output_count;
    for (int32_t w = 0; w < how->bad_word_count; w++) {
        const int32_t *word = how->bad_words[w];
        size_t length = how->bad_word_lengths[w], i = 0;
        if (length == 0 || length - 1 > known) continue;
        while (i < length - 1 && word[i] == history(how, length - 1 - i)) i++;
        if (i == length - 1) forbid(bits, vocab, word[i]);
    }
}

sample_masking sample_masks(const ops_sample *how)
{
    bool ends = how->output_count < how->min_tokens && how->end_id_count > 0;
    if (how->allowed_count > 0 || how->bad_word_count > 0 || ends) return SAMPLE_MASK_MADE;
    return how->mask ? SAMPLE_MASK_GIVEN : SAMPLE_MASK_NONE;
}

void sample_mask_bits(const ops_sample *how, int32_t vocab, uint32_t *bits)
{
    size_t words = ((size_t)vocab + 31) / 32;
    memset(bits, how->allowed_count > 0 ? 0 : 0xFF, words * sizeof *bits);
    for (int32_t i = 0; i < how->allowed_count; i++) {
        int32_t id = how->allowed[i];
        if (id >= 0 && id < vocab) bits[id / 32] |= 1u << (id % 32);
    }
    forbid_bad_words(how, vocab, bits);
    if (how->output_count < how->min_tokens)
        for (int32_t i = 0; i < how->end_id_count; i++) forbid(bits, vocab, how->end_ids[i]);
    for (size_t w = 0; w < words && how->mask; w++) bits[w] &= how->mask[w];
}

/* The bits lie where the chain keeps its weights later. */
static void mask(sampler *s)
{
    const ops_sample *how = s->how;
    sample_masking masking = sample_masks(how);
    const uint32_t *bits = how->mask;
    for (int32_t i = 0; i < s->vocab; i++) s->z[i] = clean(s->raw[i]);
    if (masking == SAMPLE_MASK_NONE) return;
    if (masking == SAMPLE_MASK_MADE) {
        sample_mask_bits(how, s->vocab, (uint32_t *)s->weight);
        bits = (const uint32_t *)s->weight;
    }
    for (int32_t i = 0; i < s->vocab; i++)
        if (!(bits[i / 32] >> (i % 32) & 1)) s->z[i] = -INFINITY;
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
    float power;
    memcpy(&power, &bits, sizeof power);
    return (uint64_t)(p * power);
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

int32_t sample_largest(const float *row, int32_t vocab)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t i = 0; i < vocab; i++) {
        float z = clean(row[i]);
        if (z > top) top = z, best = i;
    }
    return best;
}

/*
 * argmax(z + noise), the lower id on ties. A draw x with n leading zero bits has u >= 2^-(n+1), so its noise is at most
 * (n + 1) ln 2: where that cannot pass the best so far (0.6932 is above ln 2 by more than any rounding) the logarithms
 * are left out, which changes nothing.
 */
static inline int32_t pick_noisy(const float *row, int32_t vocab, bool scaled, float temperature, sample_stream in)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t first = 0; first < vocab; first += 4) {
        uint32_t x[4];
        bool drawn = false;
        int32_t end = vocab - first < 4 ? vocab - first : 4;
        for (int32_t lane = 0; lane < end; lane++) {
            float z = scaled ? row[first + lane] : scale(row[first + lane], temperature);
            if (!(z + 33 * 0.6932f > top)) continue;
            if (!drawn) random_quad(in.seed, in.position, in.purpose, in.choice, (uint32_t)first / 4, in.anchor, x);
            drawn = true;
            int zeros = x[lane] ? __builtin_clz(x[lane]) : 32;
            if (!(z + (float)(zeros + 1) * 0.6932f > top)) continue;
            float value = z + random_gumbel(x[lane]);
            if (value > top) top = value, best = first + lane;
        }
    }
    return best;
}

int32_t sample_noisy(const float *row, int32_t vocab, float temperature, sample_stream stream)
{
    return pick_noisy(row, vocab, false, temperature, stream);
}

int32_t sampler_pick(const sampler *s)
{
    const ops_sample *how = s->how;
    if (sample_is_greedy(how->temperature)) return sample_largest(s->z, s->vocab);
    sample_stream stream = {how->seed, how->position, how->choice, 0, RANDOM_PICK};
    return pick_noisy(s->z, s->vocab, true, 1, stream);
}

/* ---- The law -------------------------------------------------------------------------------------------------- */

/* Whole numbers of 2^-42 over their exact sum. weight_of makes whole numbers that fp32 holds, so p keeps them
 * meanwhile. */
static bool law_of(int32_t vocab, float top, float *p)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < vocab; i++) {
        uint64_t units = top > -INFINITY ? weight_of(p[i] - top) : 0;
        sum += units;
        p[i] = (float)units;
    }
    for (int32_t i = 0; i < vocab && sum; i++) p[i] /= (float)sum;
    return sum > 0;
}

bool sample_softmax(const float *row, int32_t vocab, float temperature, float *p)
{
    float top = -INFINITY;
    for (int32_t i = 0; i < vocab; i++) {
        p[i] = scale(row[i], temperature);
        if (p[i] > top) top = p[i];
    }
    return law_of(vocab, top, p);
}

bool sampler_law(const sampler *s, float *p)
{
    if (!sample_is_greedy(s->how->temperature)) {
        memcpy(p, s->z, (size_t)s->vocab * sizeof *p);
        return law_of(s->vocab, s->top, p);
    }
    int32_t best = sample_largest(s->z, s->vocab);
    memset(p, 0, (size_t)s->vocab * sizeof *p);
    if (best >= 0) p[best] = 1;
    return best >= 0;
}

/* ---- Log-probabilities ---------------------------------------------------------------------------------------- */

/*
 * Many best ones, as whole numbers that ascend from the best: the bits of the log-probability turned round, then the
 * id. A heap has the worst of those that are kept at its root; its places are those of s->weight, which the chain is
 * done with.
 */
static uint64_t place_of(float p, int32_t id)
{
    return (uint64_t)~key_of(p + 0.0f) << 32 | (uint32_t)id;
}

static float of_key(uint32_t key)
{
    uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float p;
    memcpy(&p, &u, sizeof p);
    return p;
}

static void sift_down(uint64_t *heap, int32_t at, int32_t count)
{
    uint64_t moved = heap[at];
    for (int32_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && heap[child + 1] > heap[child];
        if (heap[child] <= moved) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void make_heap(uint64_t *heap, int32_t count)
{
    for (int32_t i = count / 2 - 1; i >= 0; i--) sift_down(heap, i, count);
}

static int32_t many_best(const sampler *s, const float *row, float top, float log_sum, int32_t n)
{
    uint64_t *heap = s->weight;
    int32_t count = 0;
    for (int32_t i = 0; i < s->vocab; i++) {
        float l = clean(row[i]);
        if (!(l > -INFINITY)) continue;
        uint64_t place = place_of((l - top) - log_sum, i);
        if (count < n) {
            heap[count++] = place;
            if (count == n) make_heap(heap, count);
        } else if (place < heap[0]) {
            heap[0] = place;
            sift_down(heap, 0, count);
        }
    }
    if (count < n) make_heap(heap, count);
    for (int32_t left = count; left > 0; left--) {
        s->how->best[left - 1] = (hy_logprob){(int32_t)(uint32_t)heap[0], of_key(~(uint32_t)(heap[0] >> 32))};
        heap[0] = heap[left - 1];
        sift_down(heap, 0, left - 1);
    }
    return count;
}

/* Log softmax of the row, (l - max) - log(sum of e^(l - max)): as the network made it, or what the chain left of it. Or
 * the row itself. The best n in order of (log-probability descending, id ascending). */
static void log_probabilities(const sampler *s, int32_t n, ops_sampled *out)
{
    const ops_sample *how = s->how;
    bool raw = how->logprobs_mode == HY_RAW_LOGPROBS || how->logprobs_mode == HY_RAW_LOGITS;
    bool logits = how->logprobs_mode == HY_RAW_LOGITS || how->logprobs_mode == HY_PROCESSED_LOGITS;
    const float *row = raw ? s->raw : s->z;
    float top = -INFINITY, log_sum = 0;
    for (int32_t i = 0; i < s->vocab; i++) {
        float l = clean(row[i]);
        if (l > top) top = l;
    }
    uint64_t sum = 0;
    for (int32_t i = 0; i < s->vocab && !logits; i++) sum += weight_of(clean(row[i]) - top);
    if (logits)
        top = 0;
    else
        log_sum = random_log((float)sum * 0x1p-42f);
    bool many = n > SAMPLE_MAX_LOGPROBS;
    int32_t few = many ? 0 : n, count = many ? many_best(s, row, top, log_sum, n) : 0;
    float own = clean(row[out->id]);
    out->rank = 1;
    for (int32_t i = 0; i < s->vocab; i++) {
        float l = clean(row[i]);
        out->rank += l > own;
        if (few == 0 || !(l > -INFINITY)) continue;
        float p = (l - top) - log_sum;
        if (count == few && !(p > out->top_logprobs[few - 1])) continue;
        int32_t at = count < few ? count++ : few - 1;
        for (; at > 0 && p > out->top_logprobs[at - 1]; at--) {
            out->top_ids[at] = out->top_ids[at - 1];
            out->top_logprobs[at] = out->top_logprobs[at - 1];
        }
        out->top_ids[at] = i, out->top_logprobs[at] = p;
    }
    out->top_count = count;
    out->logprob = (own - top) - log_sum;
    for (int32_t i = 0; i < how->score_count; i++) {
        int32_t id = how->score_ids[i];
        how->scores[i] = id >= 0 && id < s->vocab ? (clean(row[id]) - top) - log_sum : -INFINITY;
    }
}

int32_t sampler_nothing(const sampler *s)
{
    for (int32_t i = 0; i < s->vocab; i++)
        if (!isfinite(s->raw[i])) return SAMPLED_NONE;
    return SAMPLED_MASKED;
}

void sampler_score(const sampler *s, ops_sampled *out)
{
    if (out->id < 0)
        out->logprob = -INFINITY;
    else if (s->how->logprobs >= 0)
        log_probabilities(s, s->how->logprobs, out);
}

/* ---- The row -------------------------------------------------------------------------------------------------- */

void sampler_run(sampler *s, const float *logits, int32_t vocab, const ops_sample *how, void *scratch)
{
    assert(vocab > 0 && vocab <= VOCAB_MAX);
    uint64_t *memory = (uint64_t *)(((uintptr_t)scratch + 7) & ~(uintptr_t)7);
    *s = (sampler){
        .how = how, .raw = logits, .vocab = vocab, .top = -INFINITY, .bucket = memory, .weight = memory + RADIX};
    s->z = (float *)(s->weight + vocab);
    s->list = (int32_t *)(s->z + vocab);
    mask(s);
    bias(s);
    penalties(s);
    if (sample_is_greedy(how->temperature)) return;
    for (int32_t i = 0; i < vocab; i++) {
        s->z[i] = scale(s->z[i], how->temperature);
        if (s->z[i] > s->top) s->top = s->z[i];
    }
    if (s->top > -INFINITY) cut(s, s->top);
}

void sample_row(const float *logits, int32_t vocab, const ops_sample *how, void *scratch, ops_sampled *out)
{
    sampler s;
    sampler_run(&s, logits, vocab, how, scratch);
    memset(out, 0, sizeof *out);
    out->id = sampler_pick(&s);
    if (out->id < 0) out->id = sampler_nothing(&s);
    sampler_score(&s, out);
}

bool sample_law(const float *logits, int32_t vocab, const ops_sample *how, void *scratch, float *p)
{
    sampler s;
    sampler_run(&s, logits, vocab, how, scratch);
    return sampler_law(&s, p);
}
