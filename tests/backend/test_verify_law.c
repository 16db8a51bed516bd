/*
 * The law of what comes out of rounds of drafts is the target's: chi-square over many seeds, at every position and for
 * whole answers, with rounds that follow each other as an engine runs them; and the same tests catch streams that are
 * joined on purpose. Limits are df + 10 sqrt(2 df), where chance never comes. `long` as an argument: all trials, and a
 * vocabulary of 4,096 in place of 256.
 *
 * hayate-test: slow
 */
#include "backend/verify_helpers.h"

static bool long_form;

/* Of many trials, a part in the short form. */
static int64_t trials_of(int64_t trials, int64_t part)
{
    return long_form ? trials : trials / part;
}

/* ---- Chi-square -----------------------------------------------------------------------------------------------------
 */

static double limit_of(int df)
{
    return df + 10 * sqrt(2.0 * df);
}

/* Chi-square over its limit: above 1 is a law that is not the expected one. Cells that expect fewer than 5 are one. */
static double excess(const int32_t *seen, const double *p, int cells, int64_t trials)
{
    double chi = 0, few_seen = 0, few = 0;
    int df = -1;
    for (int i = 0; i < cells; i++) {
        double expected = p[i] * (double)trials;
        if (expected < 5) {
            few += expected, few_seen += seen[i];
            continue;
        }
        chi += (seen[i] - expected) * (seen[i] - expected) / expected;
        df++;
    }
    if (few >= 5) chi += (few_seen - few) * (few_seen - few) / few, df++;
    if (few < 1e-6 && few_seen > 0) return INFINITY; /* what cannot come */
    return chi / limit_of(df > 0 ? df : 1);
}

static void test_limits(void **state)
{
    (void)state;
    assert_float_equal(limit_of(3), 27.495, 5e-4);
    assert_float_equal(limit_of(15), 69.772, 5e-4);
    assert_float_equal(limit_of(4095), 4999.99, 5e-3);
    const double p[3] = {0.5, 0.5, 0};
    assert_true(excess((const int32_t[]){510, 490, 0}, p, 3, 1000) < 0.1);
    assert_true(excess((const int32_t[]){700, 300, 0}, p, 3, 1000) > 1);
    assert_true(excess((const int32_t[]){500, 499, 1}, p, 3, 1000) > 1);
}

/* ---- How drafts are made --------------------------------------------------------------------------------------------
 */

typedef enum draft_maker {
    PROBABILISTIC,
    GREEDY,
    COUPLED,
    /* Wrong on purpose, for standard and block: */
    NOISE_OF_REPLACEMENT, /* the target's own noise */
    NOISE_OF_ACCEPTANCE,
    NOISE_OF_NO_ROUND, /* and acceptance likewise: keyed by position alone */
} draft_maker;

static int32_t pick_with(const float *law, int32_t vocab, float temperature, const ops_sample *row,
                         random_purpose purpose, uint32_t anchor)
{
    int32_t best = -1;
    float top = -INFINITY;
    for (int32_t i = 0; i < vocab; i++) {
        uint32_t x[4];
        random_quad(row->seed, row->position, purpose, row->choice, (uint32_t)i / 4, anchor, x);
        float value = law[i] / temperature + random_gumbel(x[i % 4]);
        if (value > top) top = value, best = i;
    }
    return best;
}

static int32_t draft_of(draft_maker maker, const float *law, int32_t vocab, const ops_sample *row, uint32_t anchor)
{
    ops_draft d = {
        .seed = row->seed, .choice = row->choice, .temperature = row->temperature, .method = DRAFT_PROBABILISTIC};
    if (maker == GREEDY) d.method = DRAFT_GREEDY;
    if (maker == COUPLED || maker == NOISE_OF_REPLACEMENT) d.method = DRAFT_COUPLED;
    if (maker == NOISE_OF_ACCEPTANCE) return pick_with(law, vocab, row->temperature, row, RANDOM_ACCEPT, anchor + 1);
    return draft_pick(law, vocab, &d, row->position, anchor);
}

/* The noise that makers stand for is the one of the contract. */
static void test_streams_of_drafts(void **state)
{
    (void)state;
    enum { N = 37 };
    float law[N];
    uint64_t numbers = 8;
    for (uint32_t trial = 0; trial < 500; trial++) {
        for (int i = 0; i < N; i++) law[i] = test_normal(&numbers);
        ops_sample row = plain_sample(trial, 1000 + trial);
        row.choice = trial % 4, row.temperature = 0.8f;
        uint32_t anchor = row.position - 1 - trial % 7;
        assert_int_equal(draft_of(PROBABILISTIC, law, N, &row, anchor),
                         pick_with(law, N, 0.8f, &row, RANDOM_DRAFT, anchor + 1));
        assert_int_equal(draft_of(COUPLED, law, N, &row, anchor), pick_with(law, N, 0.8f, &row, RANDOM_PICK, 0));
    }
}

/* ---- A large vocabulary, laws that do not look at the past
 * ------------------------------------------------------------ */

/* Positions 0 .. length - 1, in as many rounds as it takes; adds what came to seen [length, vocab]. */
typedef struct flat_world {
    int32_t vocab, drafts, length;
    const float *logits, *laws; /* [length, vocab] */
    float temperature;
    ops_verify_method method;
    draft_maker maker;
    int32_t *seen;
    int64_t rounds, accepted;
    void *scratch;
} flat_world;

static void run_flat(flat_world *w, uint64_t seed)
{
    for (int32_t at = 0; at < w->length;) {
        round_of r = {.vocab = w->vocab, .logits = w->logits + (size_t)at * (size_t)w->vocab, .method = w->method};
        r.drafts = w->length - at - 1 < w->drafts ? w->length - at - 1 : w->drafts;
        r.anchor = w->maker == NOISE_OF_NO_ROUND ? 0 : (uint32_t)at;
        round_rows(&r, seed, w->temperature);
        for (int32_t j = 0; j <= r.drafts; j++) r.row[j].position = (uint32_t)(at + 1 + j);
        const float *laws = w->laws + (size_t)at * (size_t)w->vocab;
        for (int32_t j = 0; j < r.drafts; j++)
            r.draft[j] = draft_of(w->maker, laws + (size_t)j * (size_t)w->vocab, w->vocab, &r.row[j], r.anchor);
        r.laws = w->maker == GREEDY ? NULL : laws;
        round_judge(&r, w->scratch);
        for (int32_t j = 0; j < r.count; j++) w->seen[(at + j) * w->vocab + r.out[j].id]++;
        if (r.drafts > 0) w->rounds++, w->accepted += r.count - 1;
        at += r.count;
    }
}

static void softmax(const float *z, int32_t n, double temperature, double *p)
{
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) top = fmax(top, z[i] / temperature);
    for (int32_t i = 0; i < n; i++) sum += p[i] = exp(z[i] / temperature - top);
    for (int32_t i = 0; i < n; i++) p[i] /= sum;
}

/* The largest excess of a position. */
static double flat_excess(flat_world *w, int64_t trials)
{
    double worst = 0, *p = malloc((size_t)w->vocab * sizeof *p);
    w->seen = calloc((size_t)w->length * (size_t)w->vocab, sizeof *w->seen);
    w->scratch = verify_scratch(w->vocab);
    w->rounds = w->accepted = 0;
    for (int64_t trial = 0; trial < trials; trial++) run_flat(w, (uint64_t)trial * 0x9E3779B97F4A7C15 + 12345);
    for (int32_t at = 0; at < w->length; at++) {
        softmax(w->logits + (size_t)at * (size_t)w->vocab, w->vocab, w->temperature, p);
        worst = fmax(worst, excess(w->seen + (size_t)at * (size_t)w->vocab, p, w->vocab, trials));
    }
    free(p), free(w->seen), free(w->scratch);
    return worst;
}

static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { MOST = 4096, LENGTH = 4 };
    static float logits[LENGTH * MOST], laws[LENGTH * MOST];
    const int n = long_form ? MOST : 256;
    static const struct {
        ops_verify_method method;
        draft_maker maker;
    } kinds[] = {{VERIFY_STANDARD, PROBABILISTIC},
                 {VERIFY_STANDARD, GREEDY},
                 {VERIFY_BLOCK, PROBABILISTIC},
                 {VERIFY_BLOCK, GREEDY},
                 {VERIFY_COUPLED, COUPLED}};
    uint64_t numbers = 20;
    for (int i = 0; i < LENGTH * n; i++) {
        logits[i] = test_normal(&numbers);
        laws[i] = 0.8f * logits[i] + 0.6f * test_normal(&numbers);
    }
    for (int at = 0; at < LENGTH; at++) logits[at * n + 77] = laws[at * n + 77] = 6; /* which greedy drafts hit */
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int t = 0; t < 2; t++)
            for (int drafts = 1; drafts <= 3; drafts += 2) {
                flat_world w = {.vocab = n, .drafts = drafts, .length = drafts + 1, .logits = logits, .laws = laws};
                w.temperature = t ? 1 : 0.6f, w.method = kinds[k].method, w.maker = kinds[k].maker;
                if (!long_form && (drafts == 3) != (t ^ (k & 1))) continue;
                double worst = flat_excess(&w, 10 * n);
                if (worst >= 1)
                    print_error("kind %zu, temperature %g, %d drafts: %g\n", k, w.temperature, drafts, worst);
                assert_true(worst < 1);
                assert_true(w.accepted > w.rounds / 100);
            }
}

/* ---- The narrow test: small biases, and that it would see them
 * ---------------------------------------------------------- */

static double narrow_excess(ops_verify_method method, draft_maker maker, int drafts, double *accepted)
{
    enum { N = 16, LENGTH = 5 };
    static float logits[LENGTH * N], laws[LENGTH * N];
    uint64_t numbers = 30;
    for (int i = 0; i < LENGTH * N; i++) {
        logits[i] = 1.15f * test_normal(&numbers);
        laws[i] = -logits[i];
    }
    flat_world w = {.vocab = N, .drafts = drafts, .length = drafts == 1 ? 2 : LENGTH, .logits = logits, .laws = laws};
    w.temperature = 1, w.method = method, w.maker = maker;
    double worst = flat_excess(&w, trials_of(200000, maker == NOISE_OF_ACCEPTANCE ? 4
                                                     : drafts == 1                ? 1
                                                     : maker == NOISE_OF_NO_ROUND ? 2
                                                                                  : 10));
    if (accepted) *accepted = (double)w.accepted / (double)w.rounds;
    return worst;
}

static void test_narrow(void **state)
{
    (void)state;
    double accepted;
    assert_true(narrow_excess(VERIFY_STANDARD, PROBABILISTIC, 1, &accepted) < 1);
    assert_float_equal(accepted, 0.27, 0.03);
    assert_true(narrow_excess(VERIFY_STANDARD, PROBABILISTIC, 3, NULL) < 1);
    assert_true(narrow_excess(VERIFY_STANDARD, GREEDY, 3, NULL) < 1);
    assert_true(narrow_excess(VERIFY_BLOCK, PROBABILISTIC, 3, NULL) < 1);
    assert_true(narrow_excess(VERIFY_COUPLED, COUPLED, 3, NULL) < 1);
}

static void test_narrow_sees_joined_streams(void **state)
{
    (void)state;
    assert_true(narrow_excess(VERIFY_STANDARD, NOISE_OF_REPLACEMENT, 1, NULL) > 10);
    assert_true(narrow_excess(VERIFY_BLOCK, NOISE_OF_REPLACEMENT, 3, NULL) > 4);
    assert_true(narrow_excess(VERIFY_STANDARD, NOISE_OF_ACCEPTANCE, 1, NULL) > 3);
    assert_true(narrow_excess(VERIFY_BLOCK, NOISE_OF_NO_ROUND, 3, NULL) > 1.5);
}

/* ---- Whole answers, laws that look at the past
 * --------------------------------------------------------------------------- */

enum { TREE_VOCAB = 5, TREE_LENGTH = 3, TREE_NODES = 1 + 5 + 25, TREE_LEAVES = 125 };

typedef struct tree_world tree_world;
struct tree_world {
    float logits[TREE_NODES][TREE_VOCAB], laws[TREE_NODES][TREE_VOCAB];
    float confidence[TREE_NODES]; /* of a draft behind this past */
    ops_verify_method method;
    draft_maker maker;
    int32_t drafts;
    float temperature, threshold; /* drafts end before one whose confidence is below */
    bool anticipating;            /* wrong on purpose: with the confidence behind it */
    int features;                 /* FEATURE_ bits */
    int64_t rounds, accepted;
    int32_t seen[TREE_LEAVES];
};

enum { TOP_K = 1, TOP_P = 2, MIN_P = 4, PENALTIES = 8, MASK = 16, BAD_WORDS = 32, BIAS = 64, MIN_TOKENS = 128 };

static const int32_t tree_prompt[2] = {1, 3}, tree_ends[1] = {0}, tree_bad[2] = {2, 4};
static const int32_t *const tree_bad_words[1] = {tree_bad};
static const size_t tree_bad_lengths[1] = {2};
static const hy_token_bias tree_bias[1] = {{3, 0.7f}};

/* The past as a node: nodes of a depth follow each other. */
static int node_of(const int32_t *past, int count)
{
    int node = 0, first = 0, wide = 1;
    for (int i = 0; i < count; i++) node = node * TREE_VOCAB + past[i], first += wide, wide *= TREE_VOCAB;
    return first + node;
}

/* A grammar of sorts: the token after one of the past is not the same again. */
static uint32_t tree_mask(const int32_t *past, int count)
{
    return count ? 31u & ~(1u << past[count - 1]) : 31u;
}

static void tree_row(const tree_world *w, ops_sample *row, const int32_t *past, int count, uint32_t *mask)
{
    row->temperature = w->temperature;
    row->prompt = tree_prompt, row->prompt_count = 2;
    row->output = past, row->output_count = count;
    if (w->features & TOP_K) row->top_k = 3;
    if (w->features & TOP_P) row->top_p = 0.8f;
    if (w->features & MIN_P) row->min_p = 0.15f;
    if (w->features & PENALTIES)
        row->repetition_penalty = 1.3f, row->frequency_penalty = 0.4f, row->presence_penalty = 0.3f;
    if (w->features & MASK) *mask = tree_mask(past, count), row->mask = mask;
    if (w->features & BAD_WORDS)
        row->bad_words = tree_bad_words, row->bad_word_lengths = tree_bad_lengths, row->bad_word_count = 1;
    if (w->features & BIAS) row->bias = tree_bias, row->bias_count = 1;
    if (w->features & MIN_TOKENS) row->min_tokens = 2, row->end_ids = tree_ends, row->end_id_count = 1;
}

/* What tree_row asks for, a second time and plainly. */
static void tree_law(const tree_world *w, const int32_t *past, int count, double p[TREE_VOCAB])
{
    double z[TREE_VOCAB], top = -INFINITY, sum = 0;
    for (int i = 0; i < TREE_VOCAB; i++) {
        z[i] = w->logits[node_of(past, count)][i];
        if ((w->features & MASK) && count && past[count - 1] == i) z[i] = -INFINITY;
        if ((w->features & BAD_WORDS) && count && past[count - 1] == 2 && i == 4) z[i] = -INFINITY;
        if ((w->features & MIN_TOKENS) && count < 2 && i == 0) z[i] = -INFINITY;
        if ((w->features & BIAS) && i == 3) z[i] += 0.7;
        int times = 0;
        for (int n = 0; n < count; n++) times += past[n] == i;
        if ((w->features & PENALTIES) && (times || i == 1 || i == 3)) z[i] = z[i] > 0 ? z[i] / 1.3 : z[i] * 1.3;
        if ((w->features & PENALTIES) && times) z[i] -= 0.4 * times + 0.3;
        z[i] /= w->temperature;
        top = fmax(top, z[i]);
    }
    for (int i = 0; i < TREE_VOCAB; i++) {
        p[i] = exp(z[i] - top);
        if ((w->features & MIN_P) && p[i] < 0.15) p[i] = 0;
    }
    double kept[TREE_VOCAB] = {0}, whole = 0, left = 0;
    bool used[TREE_VOCAB] = {false};
    int most = w->features & TOP_K ? 3 : TREE_VOCAB;
    for (int pass = 0; pass < 2; pass++) { /* the mass after top-k, then the prefix of it */
        memset(used, 0, sizeof used);
        for (int n = 0; n < most; n++) {
            int best = -1;
            for (int i = 0; i < TREE_VOCAB; i++)
                if (!used[i] && (best < 0 || p[i] > p[best])) best = i;
            used[best] = true;
            if (pass == 0) whole += p[best];
            if (pass == 1 && (!(w->features & TOP_P) || left < 0.8 * whole)) kept[best] = p[best], left += p[best];
        }
    }
    for (int i = 0; i < TREE_VOCAB; i++) sum += kept[i];
    for (int i = 0; i < TREE_VOCAB; i++) p[i] = kept[i] / sum;
}

static int leaf_of(const int32_t *answer)
{
    return node_of(answer, TREE_LENGTH) - TREE_NODES;
}

static void run_tree(tree_world *w, uint64_t seed, void *scratch)
{
    int32_t text[TREE_LENGTH + MOST_DRAFTS];
    float logits[TREE_LENGTH][TREE_VOCAB], laws[TREE_LENGTH][TREE_VOCAB];
    uint32_t masks[TREE_LENGTH];
    for (int at = 0; at < TREE_LENGTH;) {
        int wanted = TREE_LENGTH - at - 1 < w->drafts ? TREE_LENGTH - at - 1 : w->drafts, drafts = 0;
        round_of r = {.vocab = TREE_VOCAB, .logits = logits[0], .method = w->method, .anchor = (uint32_t)at};
        for (; drafts < wanted; drafts++) {
            int node = node_of(text, at + drafts);
            if (!w->anticipating && w->confidence[node] < w->threshold) break;
            ops_sample row = plain_sample(seed, (uint32_t)(at + 1 + drafts));
            row.temperature = w->temperature;
            memcpy(laws[drafts], w->laws[node], sizeof laws[0]);
            r.draft[drafts] = text[at + drafts] = draft_of(w->maker, laws[drafts], TREE_VOCAB, &row, r.anchor);
            if (w->anticipating && w->confidence[r.draft[drafts]] < w->threshold) break;
        }
        r.drafts = drafts, r.laws = w->maker == GREEDY ? NULL : laws[0];
        round_rows(&r, seed, 1);
        for (int j = 0; j <= drafts; j++) {
            memcpy(logits[j], w->logits[node_of(text, at + j)], sizeof logits[0]);
            tree_row(w, &r.row[j], text, at + j, &masks[j]);
        }
        round_judge(&r, scratch);
        int32_t came[TREE_LENGTH];
        for (int j = 0; j < r.count; j++) came[j] = r.out[j].id;
        memcpy(text + at, came, (size_t)r.count * sizeof *came);
        if (drafts > 0) w->rounds++, w->accepted += r.count - 1;
        at += r.count;
    }
    w->seen[leaf_of(text)]++;
}

static double tree_excess(tree_world *w)
{
    double p[TREE_LEAVES];
    int64_t trials = trials_of(200000, 20);
    void *scratch = verify_scratch(TREE_VOCAB);
    memset(w->seen, 0, sizeof w->seen);
    w->rounds = w->accepted = 0;
    for (int64_t trial = 0; trial < trials; trial++) run_tree(w, (uint64_t)trial * 0x2545F4914F6CDD1D + 99, scratch);
    for (int32_t leaf = 0; leaf < TREE_LEAVES; leaf++) {
        int32_t text[TREE_LENGTH] = {leaf / 25, leaf / 5 % 5, leaf % 5};
        double law[TREE_VOCAB];
        p[leaf] = 1;
        for (int n = 0; n < TREE_LENGTH && p[leaf] > 0; n++) {
            tree_law(w, text, n, law);
            p[leaf] *= law[text[n]];
        }
    }
    free(scratch);
    return excess(w->seen, p, TREE_LEAVES, trials);
}

static tree_world tree(uint64_t numbers, ops_verify_method method, draft_maker maker)
{
    tree_world w = {.method = method, .maker = maker, .drafts = 2, .temperature = 1};
    for (int node = 0; node < TREE_NODES; node++) {
        w.confidence[node] = (float)test_uniform(&numbers);
        for (int i = 0; i < TREE_VOCAB; i++) {
            w.logits[node][i] = test_normal(&numbers);
            w.laws[node][i] = 0.6f * w.logits[node][i] + 0.8f * test_normal(&numbers);
        }
    }
    return w;
}

static const struct {
    ops_verify_method method;
    draft_maker maker;
} tree_kinds[] = {{VERIFY_STANDARD, PROBABILISTIC},
                  {VERIFY_STANDARD, GREEDY},
                  {VERIFY_BLOCK, PROBABILISTIC},
                  {VERIFY_BLOCK, GREEDY},
                  {VERIFY_COUPLED, COUPLED}};
enum { KINDS = sizeof tree_kinds / sizeof *tree_kinds };

static void check_tree(tree_world *w, const char *what, int number)
{
    double worst = tree_excess(w);
    if (worst >= 1) print_error("%s %d, method %d, drafts made by %d: %g\n", what, number, w->method, w->maker, worst);
    assert_true(worst < 1);
}

static void test_answers(void **state)
{
    (void)state;
    const int features[] = {0,
                            TOP_K,
                            TOP_P,
                            MIN_P,
                            PENALTIES,
                            MASK,
                            BAD_WORDS | BIAS | MIN_TOKENS,
                            TOP_K | TOP_P | MIN_P | PENALTIES | MASK | BAD_WORDS | BIAS};
    for (int k = 0; k < KINDS; k++)
        for (size_t f = 0; f < sizeof features / sizeof *features; f++) {
            tree_world w = tree(40 + f, tree_kinds[k].method, tree_kinds[k].maker);
            w.features = features[f], w.temperature = f % 2 ? 0.7f : 1;
            check_tree(&w, "features", features[f]);
            assert_in_range(w.accepted, w.rounds / 10, 2 * w.rounds); /* drafts do take part */
        }
}

/* Drafters that are always right, never, or in part: only the length differs. */
static void test_oracle_drafters(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int oracle = 0; oracle < 3; oracle++) {
            tree_world w = tree(60, tree_kinds[k].method, tree_kinds[k].maker);
            if (w.maker == GREEDY && oracle == 0) continue;
            for (int node = 0; node < TREE_NODES; node++)
                for (int i = 0; i < TREE_VOCAB; i++) {
                    if (oracle == 0) w.laws[node][i] = w.logits[node][i];
                    if (oracle == 1) w.laws[node][i] = i == 2 ? 0 : -INFINITY, w.logits[node][2] = -INFINITY;
                    if (oracle == 2 && node % 2) w.laws[node][i] = w.logits[node][i];
                }
            check_tree(&w, "oracle", oracle);
            if (oracle == 0) assert_int_equal(w.accepted, 2 * w.rounds);
            if (oracle == 1) assert_int_equal(w.accepted, 0);
        }
}

static void test_block_is_no_shorter(void **state)
{
    (void)state;
    for (uint64_t n = 70; n < 73; n++) {
        tree_world standard = tree(n, VERIFY_STANDARD, PROBABILISTIC), block = tree(n, VERIFY_BLOCK, PROBABILISTIC);
        tree_excess(&standard), tree_excess(&block);
        double a = (double)standard.accepted / (double)standard.rounds,
               b = (double)block.accepted / (double)block.rounds;
        assert_true(b > a * 1.01);
    }
}

/* Ending the drafts by what is known before a draft is drawn keeps the law; looking at the draft does not. */
static void test_drafts_that_end_early(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int cut = 0; cut <= 4; cut++) {
            tree_world w = tree(80, tree_kinds[k].method, tree_kinds[k].maker);
            w.threshold = 0.25f * (float)cut;
            check_tree(&w, "threshold", cut);
        }
    for (int k = 0; k < 3; k += 2) {
        tree_world w = tree(80, tree_kinds[k].method, tree_kinds[k].maker);
        w.threshold = 0.5f, w.anticipating = true;
        assert_true(tree_excess(&w) > 2);
    }
}

/* ---- Known answers
 * -------------------------------------------------------------------------------------------------------- */

/* One draft of q against p: how often each draft is accepted, and what comes in place of one that is not. */
static void known(const float p[4], const float q[4], int top_k, double acceptance, const double of_draft[4],
                  const double rest[4])
{
    const int64_t trials = trials_of(200000, 4);
    float logits[8] = {0}, laws[4];
    int drawn[4] = {0}, accepted[4] = {0};
    int32_t replaced[4] = {0}, all = 0, lost = 0;
    void *scratch = verify_scratch(4);
    for (int i = 0; i < 4; i++) logits[i] = logf(p[i]), laws[i] = logf(q[i]);
    for (uint32_t trial = 0; trial < trials; trial++) {
        round_of r = {.vocab = 4, .drafts = 1, .logits = logits, .laws = laws, .anchor = trial};
        r.method = VERIFY_STANDARD;
        round_rows(&r, 3, 1);
        r.row[0].top_k = top_k;
        round_draft(&r, DRAFT_PROBABILISTIC);
        round_judge(&r, scratch);
        drawn[r.draft[0]]++;
        if (r.count == 2)
            accepted[r.draft[0]]++, all++;
        else
            replaced[r.out[0].id]++, lost++;
    }
    assert_float_equal((double)all / (double)trials, acceptance,
                       4 * sqrt(acceptance * (1 - acceptance) / (double)trials) + 1e-6);
    for (int i = 0; i < 4; i++) {
        assert_float_equal((double)drawn[i] / (double)trials, q[i],
                           4 * sqrt(q[i] * (1 - q[i]) / (double)trials) + 1e-6);
        if (!of_draft || !drawn[i]) continue;
        double a = of_draft[i], sigma = sqrt(a * (1 - a) / drawn[i]);
        assert_float_equal((double)accepted[i] / drawn[i], a, 4 * sigma);
    }
    assert_true(excess(replaced, rest, 4, lost) < 1);
    free(scratch);
}

static void test_known_answers(void **state)
{
    (void)state;
    const float p[4] = {0.50f, 0.30f, 0.15f, 0.05f}, q[4] = {0.25f, 0.40f, 0.05f, 0.30f};
    known(p, q, 0, 0.65, (const double[]){1, 0.75, 1, 1 / 6.0}, (const double[]){5 / 7.0, 0, 2 / 7.0, 0});
    known(p, q, 2, 0.625, (const double[]){1, 0.9375, 0, 0}, (const double[]){1, 0, 0, 0});
    const float of_own_rank[4] = {0, 4 / 7.0f, 0, 3 / 7.0f}, of_p_rank[4] = {5 / 13.0f, 8 / 13.0f, 0, 0};
    known(p, of_own_rank, 2, 0.375, (const double[]){0, 0.65625, 0, 0}, (const double[]){1, 0, 0, 0});
    known(p, of_p_rank, 2, 0.759615, (const double[]){1, 0.609375, 0, 0}, (const double[]){1, 0, 0, 0});
}

/* Without common noise drafts meet the target's pick with probability sum of p q. */
static void test_known_exact_match(void **state)
{
    (void)state;
    enum { TRIALS = 200000 };
    const float p[4] = {0.50f, 0.30f, 0.15f, 0.05f}, q[4] = {0.25f, 0.40f, 0.05f, 0.30f};
    float logits[8] = {0}, laws[4];
    int accepted = 0;
    void *scratch = verify_scratch(4);
    for (int i = 0; i < 4; i++) logits[i] = logf(p[i]), laws[i] = logf(q[i]);
    for (uint32_t trial = 0; trial < TRIALS; trial++) {
        round_of r = {.vocab = 4, .drafts = 1, .logits = logits, .laws = laws, .anchor = trial};
        round_rows(&r, 3, 1);
        round_draft(&r, DRAFT_PROBABILISTIC);
        round_judge(&r, scratch);
        accepted += r.count == 2;
    }
    assert_float_equal((double)accepted / TRIALS, 0.2675, 4 * sqrt(0.2675 * 0.7325 / TRIALS));
    free(scratch);
}

/* ---- Synthetic
 * -------------------------------------------------------------------------------------------------------------- */

/* 10,000 rounds: the mean length, and how often each draft is reached and accepted. */
static void synthetic(int drafts, double length, const float *rates, float temperature, bool greedy)
{
    enum { N = 40, ROUNDS = 10000 };
    static float logits[8 * N], laws[7 * N];
    int64_t tokens = 0, at_least[9] = {0};
    uint64_t numbers = 50;
    void *scratch = verify_scratch(N);
    for (int i = 0; i < 8 * N; i++) logits[i] = 2 * test_normal(&numbers);
    for (int i = 0; i < 7 * N; i++) laws[i] = 2 * test_normal(&numbers);
    for (uint32_t n = 0; n < ROUNDS; n++) {
        round_of r = {.vocab = N, .drafts = drafts, .logits = logits, .anchor = 3 * n, .method = VERIFY_SYNTHETIC};
        r.laws = laws;
        round_rows(&r, 1234, temperature);
        round_draft(&r, greedy ? DRAFT_GREEDY : DRAFT_PROBABILISTIC);
        memcpy(r.rates, rates, (size_t)drafts * sizeof *rates);
        if (greedy) r.laws = NULL;
        round_judge(&r, scratch);
        tokens += r.count;
        for (int j = 0; j < r.count; j++) {
            at_least[j]++;
            assert_in_range(r.out[j].id, 0, N - 1);
            if (j < r.count - 1) assert_int_equal(r.out[j].id, r.draft[j]); /* whatever it is */
        }
        if (greedy && r.count <= drafts && temperature > 0)
            assert_int_not_equal(r.out[r.count - 1].id, r.draft[r.count - 1]);
        if (temperature == 0) {
            int32_t best = 0;
            for (int i = 1; i < N; i++)
                if (logits[(r.count - 1) * N + i] > logits[(r.count - 1) * N + best]) best = i;
            assert_int_equal(r.out[r.count - 1].id, best);
        }
    }
    assert_float_equal((double)tokens / ROUNDS, length, 0.01);
    double reached = 1;
    for (int j = 0; j <= drafts; j++) {
        assert_float_equal((double)at_least[j] / ROUNDS, reached, 0.01);
        if (reached < 1e-9) assert_int_equal(at_least[j], 0);
        if (reached > 1 - 1e-9) assert_int_equal(at_least[j], ROUNDS);
        if (j < drafts) reached *= rates[j];
    }
    free(scratch);
}

static void test_synthetic(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        if (!long_form && (kind == 1 || kind == 2)) continue;
        float temperature = kind % 2 ? 0 : 1;
        synthetic(7, 3.16, (const float[]){1, 1, 0.16f, 0, 0, 0, 0}, temperature, kind > 1);
        synthetic(7, 3.26, (const float[]){1, 1, 0.26f, 0, 0, 0, 0}, temperature, kind > 1);
        synthetic(7, 3.20, (const float[]){1, 1, 0.20f, 0, 0, 0, 0}, temperature, kind > 1);
        synthetic(3, 2.45, (const float[]){1, 0.45f, 0}, temperature, kind > 1);
        synthetic(3, 1 + 0.9 + 0.5 + 0.2, (const float[]){0.9f, 0.555556f, 0.4f}, temperature, kind > 1);
        synthetic(7, 8, (const float[]){1, 1, 1, 1, 1, 1, 1}, temperature, kind > 1);
        synthetic(7, 1, (const float[]){0, 1, 1, 1, 1, 1, 1}, temperature, kind > 1);
    }
}

int main(int argc, char **argv)
{
    long_form = argc > 1 && strcmp(argv[1], "long") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_streams_of_drafts),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_narrow_sees_joined_streams),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_oracle_drafters),
        cmocka_unit_test(test_block_is_no_shorter),
        cmocka_unit_test(test_drafts_that_end_early),
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_known_exact_match),
        cmocka_unit_test(test_synthetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
