/* Beam search without an engine: a made-up model whose likeliest tokens are a function of what stands before. */
#include "server/beams.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 7, END = 6, LONGEST = 6 };

/* Log-probabilities of all tokens behind a beginning, the likeliest first. */
static void model(const int32_t *ids, int32_t count, hy_logprob out[VOCAB])
{
    double weight[VOCAB], sum = 0;
    uint32_t hash = 17;
    for (int32_t i = 0; i < count; i++) hash = (hash ^ (uint32_t)(ids[i] + 1)) * 16777619u;
    for (int32_t t = 0; t < VOCAB; t++) {
        hash = hash * 1664525u + 1013904223u;
        sum += weight[t] = 1 + (double)(hash >> 24) / 8;
    }
    for (int32_t t = 0; t < VOCAB; t++) {
        hy_logprob p = {t, (float)log(weight[t] / sum)};
        int32_t at = t;
        for (; at > 0 && out[at - 1].logprob < p.logprob; at--) out[at] = out[at - 1];
        out[at] = p;
    }
}

static bool ends(void *user, int32_t token)
{
    return user && token == END;
}

static beams *search(int32_t width, int32_t rounds, double penalty, int32_t kept, bool with_end)
{
    static int any;
    beams *b = beams_open(&(beams_options){.width = width,
                                           .prompt_count = 3,
                                           .max_tokens = rounds,
                                           .length_penalty = penalty,
                                           .kept = kept,
                                           .ends = ends,
                                           .user = with_end ? &any : NULL});
    assert_non_null(b);
    bool more = true;
    while (more) {
        for (int32_t i = 0; i < beams_live(b); i++) {
            int32_t ids[LONGEST];
            hy_logprob best[VOCAB];
            beams_tokens(b, i, ids);
            model(ids, beams_made(b), best);
            beams_offer(b, i, best, VOCAB);
        }
        more = beams_advance(b);
    }
    assert_true(beams_ok(b));
    assert_int_equal(beams_live(b), 0);
    return b;
}

/* Everything that can be written, with its score. */
typedef struct text {
    int32_t ids[LONGEST], count;
    double score;
} text;
static text all[200000];
static size_t all_count;

static void write_all(const text *before, int32_t rounds, double penalty, double sum)
{
    hy_logprob best[VOCAB];
    model(before->ids, before->count, best);
    for (int i = 0; i < VOCAB; i++) {
        text t = *before;
        t.ids[t.count++] = best[i].token;
        double s = sum + (double)best[i].logprob;
        bool ended = best[i].token == END;
        t.score = s / pow(3 + t.count - ended, penalty);
        if (ended || t.count == rounds)
            all[all_count++] = t;
        else
            write_all(&t, rounds, penalty, s);
    }
}

static int by_score(const void *a, const void *b)
{
    double x = ((const text *)a)->score, y = ((const text *)b)->score;
    return x > y ? -1 : x < y;
}

/* With beams for all beginnings nothing is lost: the search finds the best of everything, early end or not. */
static void test_wide_searches_find_the_best(void **state)
{
    (void)state;
    const double penalties[] = {1, 0, -1, 2.5};
    for (size_t p = 0; p < 4; p++)
        for (int32_t rounds = 1; rounds <= 3; rounds++) {
            all_count = 0;
            write_all(&(text){0}, rounds, penalties[p], 0);
            qsort(all, all_count, sizeof *all, by_score);
            int32_t width = all_count < 216 ? (int32_t)all_count : 216; /* 6^3 beginnings without an end */
            beams *b = search(width, rounds, penalties[p], -1, true);
            int32_t found = beams_answers(b);
            assert_int_equal(found, width);
            for (int32_t i = 0; i < found; i++) {
                int32_t ids[LONGEST];
                beams_answer a = beams_best(b, i);
                assert_true(fabs(a.score - all[i].score) < 1e-9);
                beams_tell(b, i, ids, NULL);
                if (i + 1 < found && all[i + 1].score < all[i].score && (i == 0 || all[i].score < all[i - 1].score))
                    assert_memory_equal(ids, all[i].ids, (size_t)a.count * sizeof *ids);
                assert_int_equal(a.ended, ids[a.count - 1] == END);
            }
            beams_close(b);
        }
}

/* A beam of one takes the likeliest token each time. */
static void test_one_beam_is_greedy(void **state)
{
    (void)state;
    beams *b = search(1, LONGEST, 1, 2, false);
    assert_int_equal(beams_answers(b), 1);
    beams_answer a = beams_best(b, 0);
    int32_t ids[LONGEST];
    hy_logprob told[LONGEST][3];
    assert_int_equal(a.count, LONGEST);
    assert_false(a.ended);
    beams_tell(b, 0, ids, told[0]);
    double sum = 0;
    for (int32_t i = 0; i < LONGEST; i++) {
        hy_logprob best[VOCAB];
        model(ids, i, best);
        assert_int_equal(ids[i], best[0].token);
        assert_memory_equal(&told[i][0], &best[0], sizeof best[0]);
        assert_memory_equal(&told[i][1], best, 2 * sizeof best[0]);
        sum += (double)best[0].logprob;
    }
    assert_true(fabs(a.sum - sum) < 1e-9 && fabs(a.score - sum / (3 + LONGEST)) < 1e-9);
    beams_close(b);
}

/* No offers, or none with a probability: the search ends with what there is. */
static void test_nothing_to_offer(void **state)
{
    (void)state;
    beams *b = beams_open(&(beams_options){
        .width = 2, .prompt_count = 1, .max_tokens = 5, .length_penalty = 1, .kept = -1, .ends = ends});
    hy_logprob best[] = {{4, -0.5f}, {5, -INFINITY}, {-1, -INFINITY}};
    beams_offer(b, 0, best, 3);
    assert_true(beams_advance(b));
    assert_int_equal(beams_live(b), 1);
    assert_false(beams_advance(b));
    assert_int_equal(beams_answers(b), 0);
    beams_close(b);
    b = beams_open(&(beams_options){
        .width = 2, .prompt_count = 1, .max_tokens = 5, .length_penalty = 1, .kept = -1, .ends = ends});
    beams_offer(b, 0, best, 1);
    assert_true(beams_advance(b));
    beams_stop(b); /* cancelled: what is live is told */
    assert_int_equal(beams_answers(b), 1);
    assert_false(beams_best(b, 0).ended);
    beams_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wide_searches_find_the_best),
                                       cmocka_unit_test(test_one_beam_is_greedy), cmocka_unit_test(test_nothing_to_offer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
