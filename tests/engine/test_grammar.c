/* Requests with a grammar: steps that overlap, lost caches, ends, and rows that nothing is left for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <time.h>

#include "engine/fake_engine.h"
#include "text/grammar.h"

static const char schema[] = "{\"type\": \"array\", \"minItems\": 16, \"maxItems\": 40, \"items\": {\"type\": \"object\", "
                             "\"properties\": {\"k\": {\"type\": \"string\", \"maxLength\": 9}, \"n\": {\"type\": "
                             "\"integer\", \"minimum\": 3, \"maximum\": 700}}, \"required\": [\"k\", \"n\"], "
                             "\"additionalProperties\": false}}";

static hy_grammar *compile(hy_grammar_kind kind, const char *source)
{
    hy_grammar *g = NULL;
    hy_error err = {0};
    hy_grammar_options o = {.compact = true};
    if (hy_grammar_compile(model, kind, source, strlen(source), &o, &g, &err) != HY_OK) fail_msg("%s", err.message);
    return g;
}

static const int32_t one_id[] = {65};

static hy_request_options asking(const hy_grammar *g)
{
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = one_id, o.prompt_count = 1;
    o.sampling.grammar = g, o.sampling.seed = 7;
    return o;
}

static hy_request *submit(const hy_request_options *o)
{
    hy_request *r = NULL;
    hy_error err = {0};
    if (hy_engine_submit(engine, o, &r, &err) != HY_OK) fail_msg("%s", err.message);
    return r;
}

static hy_result answer(hy_request *r, hy_finish finish)
{
    hy_result result;
    hy_request_wait(r);
    hy_request_result(r, &result);
    assert_int_equal(result.finish, finish);
    return result;
}

static int start(void **state)
{
    (void)state;
    fake.script = NULL, fake.script_count = 0, fake.nan_after = -1;
    atomic_store(&fake.bad_rows, 0);
    model = fake_model_open(true);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    close_engine();
    fake_model_close(model);
    return 0;
}

/* Valid as JSON and by a matcher that sees the whole text at once. */
static void check_text(const hy_grammar *g, const hy_result *r)
{
    json_error_t e;
    json_t *value = json_loadb(r->text, r->text_length, 0, &e);
    if (!value) fail_msg("%.*s: %s", (int)r->text_length, r->text, e.text);
    assert_in_range(json_array_size(value), 16, 40);
    json_decref(value);
    text_matcher *m = text_matcher_open((const text_grammar *)g, false, TEXT_START_CLOSED, NULL, 0);
    for (size_t i = 0; i < r->text_length; i++) assert_true(text_matcher_accept(m, (unsigned char)r->text[i]));
    assert_true(text_matcher_complete(m));
    text_matcher_close(m);
}

/* Many at once in a cache that is too small: they lose it and are computed again, and every answer is the one that the same
 * request gets alone. */
static void test_overlap_and_preemption(void **state)
{
    (void)state;
    enum { MANY = 12 };
    hy_request *many[MANY];
    hy_grammar *g = compile(HY_GRAMMAR_JSON_SCHEMA, schema);
    engine_start((hy_engine_options){.max_num_seqs = 8, .max_num_batched_tokens = 16, .cache_bytes = 16 * 512});
    for (int i = 0; i < MANY; i++) {
        hy_request_options o = asking(g);
        o.choice = i, o.no_prefix_cache = true;
        many[i] = submit(&o);
    }
    int preemptions = 0;
    for (int i = 0; i < MANY; i++) {
        hy_result r = answer(many[i], HY_FINISH_STOP);
        preemptions += r.preemptions;
        check_text(g, &r);
        assert_true(r.ids[r.id_count - 1] == ']'); /* the end of the grammar is the end, without another token */
    }
    assert_true(preemptions > 0);
    assert_true(stats().preemptions == (uint64_t)preemptions);
    for (int i = 0; i < MANY; i++) {
        hy_request_options o = asking(g);
        o.choice = i;
        hy_request *alone = submit(&o);
        hy_result a = answer(alone, HY_FINISH_STOP), b = answer(many[i], HY_FINISH_STOP);
        assert_int_equal(a.id_count, b.id_count);
        assert_memory_equal(a.ids, b.ids, a.id_count * sizeof *a.ids);
        hy_request_close(alone);
        hy_request_close(many[i]);
    }
    hy_grammar_close(g);
}

static void expect(const hy_request_options *o, const char *text, hy_finish finish)
{
    hy_request *r = submit(o);
    hy_result result = answer(r, finish);
    assert_int_equal(result.text_length, strlen(text));
    assert_memory_equal(result.text, text, strlen(text));
    hy_request_close(r);
}

/* What the model wants to say does not count, and it cannot end before the text is complete. */
static void test_ends(void **state)
{
    (void)state;
    static const int32_t ends_at_once[] = {FAKE_EOS, FAKE_EOS, FAKE_EOS, FAKE_EOS, FAKE_EOS, FAKE_EOS};
    hy_grammar *word = compile(HY_GRAMMAR_REGEX, "wor(d|ds)"), *more = compile(HY_GRAMMAR_REGEX, "a+");
    engine_start((hy_engine_options){.max_num_seqs = 4});
    fake.script = ends_at_once, fake.script_count = 6;
    hy_request_options o = asking(word);
    o.sampling.temperature = 0;
    expect(&o, "word", HY_FINISH_STOP); /* "words" may follow, the end is what the model wants */
    o.sampling.min_tokens = 5;
    expect(&o, "words", HY_FINISH_STOP);
    o.sampling.min_tokens = 20; /* nothing else can come: it ends all the same */
    expect(&o, "words", HY_FINISH_STOP);
    o.sampling.min_tokens = 0, o.sampling.ignore_eos = true;
    expect(&o, "words", HY_FINISH_STOP);
    o.sampling.ignore_eos = false, o.sampling.max_tokens = 3;
    expect(&o, "wor", HY_FINISH_LENGTH);
    o = asking(more), o.sampling.temperature = 0;
    expect(&o, "a", HY_FINISH_STOP);
    o.sampling.min_tokens = 4, o.sampling.max_tokens = 9;
    expect(&o, "aaaa", HY_FINISH_STOP);
    o.sampling.ignore_eos = true;
    expect(&o, "aaaaaaaaa", HY_FINISH_LENGTH);
    static const int32_t a[] = {'a'};
    o = asking(word), o.sampling.stop_ids = a, o.sampling.stop_id_count = 1;
    o.sampling.temperature = 0;
    expect(&o, "word", HY_FINISH_STOP); /* a stop id that is no text of the grammar may come at its end only */
    static const char *const r[] = {"r"};
    o = asking(word), o.sampling.stop = r, o.sampling.stop_count = 1;
    expect(&o, "wo", HY_FINISH_STOP);
    hy_grammar_close(word);
    hy_grammar_close(more);
}

/* Nothing is left for one: it fails, the others go on. The grammar lives as long as they do. */
static void test_nothing_left(void **state)
{
    (void)state;
    static const int32_t other[] = {'x', 'y'};
    hy_grammar *g = compile(HY_GRAMMAR_JSON_SCHEMA, schema), *again = compile(HY_GRAMMAR_JSON_SCHEMA, schema);
    engine_start((hy_engine_options){.max_num_seqs = 4});
    hy_request_options good = asking(g), bad = asking(g);
    bad.sampling.allowed_ids = other, bad.sampling.allowed_count = 2;
    hy_request *r[3];
    r[0] = submit(&good);
    r[1] = submit(&bad);
    good.choice = 1;
    r[2] = submit(&good);
    hy_grammar_close(g);
    assert_int_equal(hy_request_wait(r[1]), HY_BAD_INPUT); /* its own fault, so that clients do not repeat it */
    hy_result one = answer(r[0], HY_FINISH_STOP), two = answer(r[2], HY_FINISH_STOP);
    check_text(again, &one);
    check_text(again, &two);
    assert_true(one.text_length != two.text_length || memcmp(one.text, two.text, one.text_length) != 0);
    for (int i = 0; i < 3; i++) hy_request_close(r[i]);
    hy_grammar_close(again);
}

static bool keep_best(void *user, const hy_event *e)
{
    if (e->logprobs) memcpy(user, e->logprobs + 1, 5 * sizeof *e->logprobs);
    return false;
}

/* Log-probabilities are those of the model, whatever may be said. */
static void test_logprobs_are_raw(void **state)
{
    (void)state;
    hy_logprob best[2][5] = {{{0}}};
    hy_grammar *g = compile(HY_GRAMMAR_REGEX, "[a-c]{3}");
    engine_start((hy_engine_options){.max_num_seqs = 4});
    for (int i = 0; i < 2; i++) {
        hy_request_options o = asking(i ? g : NULL);
        o.sampling.logprobs = 5, o.on_event = keep_best, o.user = best[i];
        hy_request *r = submit(&o);
        hy_request_wait(r);
        hy_request_close(r);
    }
    assert_memory_equal(best[0], best[1], sizeof best[0]);
    hy_grammar_close(g);
}

static void test_refusals(void **state)
{
    (void)state;
    hy_model *ours = model, *other = fake_model_open(true), *mute = fake_model_open(false);
    hy_grammar *g;
    hy_request *r = NULL;
    hy_error err = {0};
    model = other, g = compile(HY_GRAMMAR_REGEX, "a"), model = ours;
    engine_start((hy_engine_options){.max_num_seqs = 4});
    hy_request_options o = asking(g);
    assert_int_equal(hy_engine_submit(engine, &o, &r, &err), HY_BAD_INPUT);
    assert_string_equal(err.where, "grammar");
    hy_grammar *none = NULL;
    assert_int_equal(hy_grammar_compile(mute, HY_GRAMMAR_REGEX, "a", 1, NULL, &none, &err), HY_USAGE);
    assert_int_equal(hy_grammar_compile(model, (hy_grammar_kind)77, "a", 1, NULL, &none, &err), HY_USAGE);
    assert_null(none);
    hy_grammar_close(g);
    fake_model_close(other);
    fake_model_close(mute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_overlap_and_preemption, start, stop),
        cmocka_unit_test_setup_teardown(test_ends, start, stop),
        cmocka_unit_test_setup_teardown(test_nothing_left, start, stop),
        cmocka_unit_test_setup_teardown(test_logprobs_are_raw, start, stop),
        cmocka_unit_test_setup_teardown(test_refusals, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
