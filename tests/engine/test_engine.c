/* The engine over a model without weights: refusals, text, ends, errors, and one answer for one request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <time.h>

#include "engine/fake_model.h"

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

/* What the events of a request brought, put together. */
struct seen {
    char text[4096];
    size_t length;
    int32_t ids[2048];
    size_t count;
    int events, ends;
    hy_finish finish;
    char stop_string[64];
    int32_t stop_id;
    hy_logprob logprobs[2048];
    char error[512];
    int stop_after; /* the callback answers false at this event; 0: never */
};

static bool on_event(void *user, const hy_event *e)
{
    struct seen *s = user;
    assert_int_equal(s->ends, 0); /* nothing comes after the end */
    memcpy(s->text + s->length, e->text, e->text_length);
    s->length += e->text_length;
    s->text[s->length] = 0;
    for (size_t i = 0; i < e->id_count; i++) {
        if (e->logprobs) s->logprobs[s->count] = e->logprobs[i * e->logprobs_per_token];
        s->ids[s->count++] = e->ids[i];
    }
    s->events++;
    s->finish = e->finish;
    s->stop_id = e->stop_id;
    snprintf(s->stop_string, sizeof s->stop_string, "%s", e->stop_string ? e->stop_string : "");
    if (e->error) snprintf(s->error, sizeof s->error, "%s", e->error->message);
    if (e->finish != HY_RUNNING) s->ends++;
    return s->events != s->stop_after;
}

static hy_engine *open_engine(hy_model *m, hy_engine_options options)
{
    hy_engine *e = NULL;
    hy_error err = {0};
    hy_status status = hy_engine_open(m, &options, &e, &err);
    if (status != HY_OK) fail_msg("%s", err.message);
    return e;
}

static hy_request *submit(hy_engine *e, const hy_request_options *o)
{
    hy_request *r = NULL;
    hy_error err = {0};
    if (hy_engine_submit(e, o, &r, &err) != HY_OK) fail_msg("%s", err.message);
    return r;
}

/* Runs one request to its end, collects its events, checks them against the result. */
static hy_status answer(hy_engine *e, hy_request_options o, struct seen *seen)
{
    o.on_event = on_event, o.user = seen;
    hy_request *r = submit(e, &o);
    hy_status status = hy_request_wait(r);
    hy_result result;
    hy_request_result(r, &result);
    assert_int_equal(result.finish, seen->finish);
    assert_int_equal(result.id_count, seen->count);
    assert_memory_equal(result.ids, seen->ids, seen->count * sizeof(int32_t));
    assert_int_equal(result.text_length, seen->length);
    assert_memory_equal(result.text, seen->text, seen->length);
    assert_int_equal(result.prompt_count, o.prompt_count);
    assert_int_equal(seen->ends, 1);
    hy_request_close(r);
    return status;
}

static const int32_t one_id[] = {65};

/* A prompt of one token and the model saying `script`. */
static hy_request_options scripted(const hy_model *m, const int32_t *script, int32_t count)
{
    fake.script = script, fake.script_count = count;
    hy_request_options o = hy_request_defaults(m);
    o.prompt_ids = one_id, o.prompt_count = 1;
    o.sampling.temperature = 0;
    return o;
}

static int script_of(const char *text, int32_t *out)
{
    int n = 0;
    for (; text[n]; n++) out[n] = (unsigned char)text[n];
    return n;
}

static void reset(void)
{
    fake.script = NULL, fake.script_count = 0, fake.nan_after = -1;
    atomic_store(&fake.fail_steps, 0);
    atomic_store(&fake.most_rows, 0);
    atomic_store(&fake.bad_rows, 0);
    atomic_store(&fake.delay_us, 0);
    fake_let(-1);
}

static int per_test(void **state)
{
    (void)state;
    reset();
    return 0;
}

/* ---- Refusals ------------------------------------------------------------------------------------------------- */

static void refused(hy_engine *e, const hy_request_options *o, hy_status status, const char *part)
{
    hy_request *r = (hy_request *)8;
    hy_error err = {0};
    assert_int_equal(hy_engine_submit(e, o, &r, &err), status);
    assert_ptr_equal(r, (hy_request *)8); /* untouched */
    assert_int_equal(err.status, status);
    if (!strstr(err.message, part)) fail_msg("'%s' has no '%s'", err.message, part);
    assert_null(strchr(err.message, '\n'));
}

static void test_parameters_out_of_range(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(true);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    hy_request_options good = hy_request_defaults(m);
    good.prompt_ids = one_id, good.prompt_count = 1, good.sampling.max_tokens = 3;
#define REFUSED(field, value, part)                                                                                    \
    do {                                                                                                               \
        hy_request_options o = good;                                                                                   \
        o.sampling.field = value;                                                                                      \
        refused(e, &o, HY_BAD_INPUT, part);                                                                            \
    } while (0)
    REFUSED(temperature, -0.1f, "temperature must be in 0 .. 2, not -0.1");
    REFUSED(temperature, 2.1f, "temperature");
    REFUSED(temperature, NAN, "temperature");
    REFUSED(top_p, 0, "top_p must be above 0 and at most 1, not 0");
    REFUSED(top_p, 1.01f, "top_p");
    REFUSED(top_k, -2, "top_k");
    REFUSED(min_p, -0.1f, "min_p");
    REFUSED(min_p, 1.1f, "min_p");
    REFUSED(repetition_penalty, 0, "repetition_penalty");
    REFUSED(repetition_penalty, INFINITY, "repetition_penalty");
    REFUSED(frequency_penalty, 2.5f, "frequency_penalty must be in -2 .. 2, not 2.5");
    REFUSED(presence_penalty, -2.5f, "presence_penalty");
    REFUSED(max_tokens, -1, "max_tokens");
    REFUSED(min_tokens, -1, "min_tokens");
    REFUSED(min_tokens, 4, "min_tokens must be at most max_tokens, which is 3, not 4");
    REFUSED(logprobs, FAKE_VOCAB + 1, "logprobs");
    REFUSED(logprobs, -2, "logprobs");
    REFUSED(logprobs_mode, (hy_logprobs_mode)99, "logprobs_mode must be one of the four");
    REFUSED(logprobs_mode, (hy_logprobs_mode)-1, "logprobs_mode");
#undef REFUSED
    const char *empty[] = {"x", ""};
    int32_t ids[] = {3, FAKE_VOCAB}, none[1] = {0};
    const int32_t *words[] = {ids};
    size_t two = 2, zero = 0;
    hy_token_bias far[] = {{5, 100.5f}}, outside[] = {{-1, 1}};
    static const char *const methods[] = {"synthetic", "standard", "block", "quick", ""};
    hy_request_options o = good;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) { /* this engine has no drafts */
        o.draft_method = methods[i];
        refused(e, &o, HY_BAD_INPUT, i < 3 ? "is for engines that were opened with drafts" : "the method is coupled");
    }
    o = good;
    o.sampling.stop = empty, o.sampling.stop_count = 2;
    refused(e, &o, HY_BAD_INPUT, "stop has an empty string");
    o = good, o.sampling.allowed_ids = ids, o.sampling.allowed_count = 2;
    refused(e, &o, HY_BAD_INPUT, "allowed_ids has token id 300; ids of this model are 0 .. 299");
    o = good, o.sampling.bias = far, o.sampling.bias_count = 1;
    refused(e, &o, HY_BAD_INPUT, "bias must be in -100 .. 100, not 100.5");
    o = good, o.sampling.bias = outside, o.sampling.bias_count = 1;
    refused(e, &o, HY_BAD_INPUT, "bias has token id -1");
    o = good, o.sampling.bad_words = words, o.sampling.bad_word_lengths = &two, o.sampling.bad_word_count = 1;
    refused(e, &o, HY_BAD_INPUT, "bad_words has token id 300");
    words[0] = none, o.sampling.bad_word_lengths = &zero;
    refused(e, &o, HY_BAD_INPUT, "empty sequence");
    o = good, o.sampling.allowed_count = 1;
    refused(e, &o, HY_BAD_INPUT, "no list");
    o = good, o.sampling.allowed_ids = ids, o.sampling.allowed_count = (size_t)1 << 40;
    refused(e, &o, HY_BAD_INPUT, "allowed_ids");
    hy_engine_close(e);
    fake_model_close(m);
}

static void test_prompts_that_cannot_be_served(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    static int32_t ids[FAKE_MAX_LEN + 5];
    hy_request_options o = hy_request_defaults(m);
    refused(e, &o, HY_BAD_INPUT, "prompt is empty");
    o.prompt_ids = ids;
    refused(e, &o, HY_BAD_INPUT, "prompt is empty");
    o.prompt_count = 3, ids[2] = FAKE_VOCAB;
    refused(e, &o, HY_BAD_INPUT, "token id 300 at place 2");
    ids[2] = -7;
    refused(e, &o, HY_BAD_INPUT, "token id -7");
    ids[2] = 0;
    o.prompt_count = FAKE_MAX_LEN;
    refused(e, &o, HY_NO_FIT, "at most 1999");
    o.prompt_count = 1990, o.sampling.max_tokens = 11;
    refused(e, &o, HY_NO_FIT, "ask for at most 10");
    o.sampling.max_tokens = 0, o.sampling.min_tokens = 11;
    refused(e, &o, HY_BAD_INPUT, "min_tokens must be at most 10");
    const char *stop[] = {"x"};
    o.sampling.min_tokens = 0, o.sampling.stop = stop, o.sampling.stop_count = 1;
    refused(e, &o, HY_BAD_INPUT, "stop strings need a tokenizer");
    hy_engine_close(e);
    /* A cache of two blocks: the largest length that fits is named. */
    e = open_engine(m, (hy_engine_options){.cache_bytes = 2 * m->layout.row_bytes + 3});
    o = hy_request_defaults(m), o.prompt_ids = ids, o.prompt_count = 256;
    refused(e, &o, HY_NO_FIT, "what the cache holds is 256 tokens, so that a prompt may have at most 255");
    o.prompt_count = 250, o.sampling.max_tokens = 7;
    refused(e, &o, HY_NO_FIT, "at most 6");
    o.sampling.max_tokens = 6, o.sampling.ignore_eos = true;
    struct seen seen = {0};
    assert_int_equal(answer(e, o, &seen), HY_OK);
    assert_int_equal(seen.count, 6);
    /* What is usual gives way to what fits, and to what is asked for. */
    const int32_t usual[][4] = {
        {4, 250, 0, 4}, {1000, 250, 0, 6}, {INT32_MAX, 253, 0, 3}, {4, 250, 5, 5}, {0, 250, 0, 6}};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        memset(&seen, 0, sizeof seen);
        o.usual_tokens = usual[i][0], o.prompt_count = (size_t)usual[i][1], o.sampling.max_tokens = usual[i][2];
        assert_int_equal(answer(e, o, &seen), HY_OK);
        assert_int_equal(seen.count, usual[i][3]);
        assert_int_equal(seen.finish, HY_FINISH_LENGTH);
    }
    o.usual_tokens = 4, o.sampling.max_tokens = 0, o.sampling.min_tokens = 5;
    refused(e, &o, HY_BAD_INPUT, "min_tokens must be at most 4");
    o.usual_tokens = -1, o.sampling.min_tokens = 0;
    refused(e, &o, HY_BAD_INPUT, "usual_tokens must be 0 or more");
    hy_engine_close(e);
    fake_model_close(m);
}

/* Tokens of the shortest beginning that ends with one pattern `times` in a row; `count`: there is none. */
static int32_t first_repetition(const int32_t *text, int32_t count, int32_t least, int32_t most, int32_t times)
{
    for (int32_t n = 1; n <= count; n++)
        for (int32_t size = least; size <= most && size * times <= n; size++) {
            int32_t same = 0;
            while (same < size * (times - 1) && text[n - 1 - same] == text[n - 1 - same - size]) same++;
            if (same == size * (times - 1)) return n;
        }
    return count;
}

/* Scripts of two letters in pieces that repeat, against a search that looks at everything anew. */
static void test_repetitions(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    int32_t script[120], found = 0;
    uint32_t random = 7;
    for (int round = 0; round < 60; round++) {
        int32_t period = 1;
        for (int32_t i = 0; i < 120; i++) {
            random = random * 1664525 + 1013904223;
            if (random >> 28 == 0) period = 1 + (int32_t)(random >> 20 & 7);
            script[i] = i >= period && random >> 26 > 9 ? script[i - period] : 66 + (int32_t)(random >> 19 & 1);
        }
        int32_t least = 1 + round % 5, most = least + round % 4, times = 2 + round % 7;
        int32_t n = first_repetition(script, 120, least, most, times);
        hy_request_options o = scripted(m, script, 120);
        o.sampling.max_tokens = 120;
        o.sampling.repeat_least = least, o.sampling.repeat_most = most, o.sampling.repeat_count = times;
        struct seen seen = {0};
        assert_int_equal(answer(e, o, &seen), HY_OK);
        assert_int_equal(seen.count, n);
        if (n < 120) assert_int_equal(seen.finish, HY_FINISH_REPETITION);
        found += n < 120;
    }
    assert_in_range(found, 20, 58); /* both kinds were there */
    hy_engine_close(e);
    fake_model_close(m);
}

static void test_engine_options(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = NULL;
    hy_error err = {0};
    hy_engine_options o = {.max_num_seqs = -1};
    assert_int_equal(hy_engine_open(m, &o, &e, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "max_num_seqs must be"));
    o = (hy_engine_options){.max_num_batched_tokens = 1 << 30};
    assert_int_equal(hy_engine_open(m, &o, &e, &err), HY_USAGE);
    o = (hy_engine_options){.max_waiting = -5};
    assert_int_equal(hy_engine_open(m, &o, &e, &err), HY_USAGE);
    o = (hy_engine_options){.cache_bytes = 100};
    assert_int_equal(hy_engine_open(m, &o, &e, &err), HY_NO_FIT);
    m->layout.row_bytes = (size_t)1 << 30;
    o = (hy_engine_options){.cache_bytes = UINT64_MAX / 2};
    assert_int_equal(hy_engine_open(m, &o, &e, &err), HY_NO_FIT);
    assert_null(e);
    hy_engine_close(NULL);
    hy_request_close(NULL);
    hy_request_cancel(NULL);
    fake_model_close(m);
}

/* ---- Text ----------------------------------------------------------------------------------------------------- */

static void test_whole_characters(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(true);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    int32_t script[64];
    const char *text = "a\xE7\x96\xBE\xF0\x9F\x8C\xAA!"; /* 1, 3, 4 and 1 bytes */
    int n = script_of(text, script);
    script[n++] = FAKE_EOS;
    struct seen seen = {0};
    assert_int_equal(answer(e, scripted(m, script, n), &seen), HY_OK);
    assert_string_equal(seen.text, text);
    assert_int_equal(seen.finish, HY_FINISH_STOP);
    assert_int_equal(seen.stop_id, FAKE_EOS);
    assert_int_equal(seen.count, n);
    assert_int_equal(seen.ids[n - 1], FAKE_EOS);
    /* An end inside a character: what is there of it is shown as broken. */
    hy_request_options o = scripted(m, script, n);
    o.sampling.max_tokens = 3;
    seen = (struct seen){0};
    assert_int_equal(answer(e, o, &seen), HY_OK);
    assert_int_equal(seen.finish, HY_FINISH_LENGTH);
    assert_string_equal(seen.text, "a\xEF\xBF\xBD");
    assert_int_equal(seen.stop_id, -1);
    hy_engine_close(e);
    fake_model_close(m);
}

static void test_stop_strings(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(true);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    int32_t script[64];
    const char *stops[] = {"STOP", "never", "ab\n"};
    int n = script_of("so STO ab STOP more", script);
    hy_request_options o = scripted(m, script, n);
    o.sampling.stop = stops, o.sampling.stop_count = 3, o.sampling.max_tokens = n;
    struct seen seen = {0};
    assert_int_equal(answer(e, o, &seen), HY_OK);
    assert_string_equal(seen.text, "so STO ab "); /* no part of STOP was ever shown: events are added up */
    assert_int_equal(seen.finish, HY_FINISH_STOP);
    assert_string_equal(seen.stop_string, "STOP");
    assert_int_equal(seen.stop_id, -1);
    assert_int_equal(seen.count, 14); /* tokens that were made count */
    o.sampling.include_stop = true;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_string_equal(seen.text, "so STO ab STOP");
    /* Held back at the end for another reason: shown. */
    o.sampling.include_stop = false, o.sampling.max_tokens = 13;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_string_equal(seen.text, "so STO ab STO");
    assert_int_equal(seen.finish, HY_FINISH_LENGTH);
    /* The token that reaches max_tokens completes the string: it is a stop. */
    o.sampling.max_tokens = 14;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_int_equal(seen.finish, HY_FINISH_STOP);
    /* Not before min_tokens are there: its last character is the 14th token. */
    o.sampling.max_tokens = n, o.sampling.min_tokens = 14;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_int_equal(seen.finish, HY_FINISH_LENGTH);
    assert_string_equal(seen.text, "so STO ab STOP more");
    o.sampling.min_tokens = 13;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_int_equal(seen.finish, HY_FINISH_STOP);
    hy_engine_close(e);
    fake_model_close(m);
}

static void test_end_tokens(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(true);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    int32_t script[] = {'a', FAKE_EOS, 'b', 'c', 'd'}, stops[] = {'c', 7777};
    hy_request_options o = scripted(m, script, 5);
    struct seen seen = {0};
    o.sampling.max_tokens = 5;
    answer(e, o, &seen);
    assert_int_equal(seen.count, 2);
    assert_string_equal(seen.text, "a"); /* the end token's text is not shown */
    o.sampling.ignore_eos = true;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_int_equal(seen.count, 5);
    assert_int_equal(seen.finish, HY_FINISH_LENGTH);
    o.sampling.stop_ids = stops, o.sampling.stop_id_count = 2;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_string_equal(seen.text, "a\1b");
    assert_int_equal(seen.stop_id, 'c');
    assert_int_equal(seen.finish, HY_FINISH_STOP);
    o.sampling.include_stop = true;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_string_equal(seen.text, "a\1bc");
    /* Masked until min_tokens: the script wants the end at the second token and cannot have it. */
    o.sampling.ignore_eos = false, o.sampling.include_stop = false, o.sampling.min_tokens = 2;
    seen = (struct seen){0};
    answer(e, o, &seen);
    assert_int_not_equal(seen.ids[1], FAKE_EOS);
    assert_int_equal(seen.count, 4);
    hy_engine_close(e);
    fake_model_close(m);
}

static void test_without_a_tokenizer(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    int32_t script[] = {5, 299, FAKE_EOS}; /* all rows of the vocabulary are tokens */
    struct seen seen = {0};
    assert_int_equal(answer(e, scripted(m, script, 3), &seen), HY_OK);
    assert_int_equal(seen.count, 3);
    assert_int_equal(seen.ids[1], 299);
    assert_int_equal(seen.length, 0);
    hy_engine_close(e);
    fake_model_close(m);
}

/* The padding's logits are the largest of each row (fake_logits). */
static void test_padding_is_never_sampled(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(true);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    for (int greedy = 0; greedy < 2; greedy++) {
        hy_request_options o = hy_request_defaults(m);
        o.prompt_ids = one_id, o.prompt_count = 1;
        o.sampling.temperature = greedy ? 0 : 1, o.sampling.max_tokens = 300, o.sampling.ignore_eos = true;
        struct seen seen = {0};
        answer(e, o, &seen);
        assert_int_equal(seen.count, 300);
        for (size_t i = 0; i < seen.count; i++) assert_in_range(seen.ids[i], 0, FAKE_IDS - 1);
    }
    hy_engine_close(e);
    fake_model_close(m);
}

static bool check_logprobs(void *user, const hy_event *e)
{
    int *tokens = user;
    *tokens += (int)e->id_count;
    assert_non_null(e->logprobs);
    assert_int_equal(e->logprobs_per_token, 6);
    assert_int_equal(e->logprobs[0].token, e->ids[0]);
    for (int i = 1; i < 6; i++) {
        assert_true(e->logprobs[i].logprob <= 0);
        if (i > 1) assert_true(e->logprobs[i].logprob <= e->logprobs[i - 1].logprob);
        if (e->logprobs[i].token == e->ids[0]) assert_true(e->logprobs[i].logprob == e->logprobs[0].logprob);
    }
    return true;
}

static void test_logprobs(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    int tokens = 0;
    hy_request_options o = hy_request_defaults(m);
    o.prompt_ids = one_id, o.prompt_count = 1, o.on_event = check_logprobs, o.user = &tokens;
    o.sampling.max_tokens = 20, o.sampling.logprobs = 5, o.sampling.ignore_eos = true;
    hy_request *r = submit(e, &o);
    assert_int_equal(hy_request_wait(r), HY_OK);
    assert_int_equal(tokens, 20);
    hy_request_close(r);
    hy_engine_close(e);
    fake_model_close(m);
}

/* Every token's own, the twenty best and the best of the whole vocabulary, in one pile. */
typedef struct pile {
    size_t tokens, each;
    hy_logprob place[8][1 + FAKE_VOCAB];
} pile;

static bool pile_up(void *user, const hy_event *e)
{
    pile *p = user;
    assert_int_equal(e->logprobs_per_token, p->each);
    for (size_t i = 0; i < e->id_count; i++)
        memcpy(p->place[p->tokens++], e->logprobs + i * p->each, p->each * sizeof **p->place);
    return true;
}

/* More than twenty have their own memory: they begin with the twenty, of answers and of prompts. */
static void test_many_logprobs(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    static const int32_t ids[] = {5, 6, 7, 8, 9, 10};
    static pile few, many;
    const int32_t counts[] = {20, 21, FAKE_VOCAB};
    for (int c = 0; c < 3; c++) {
        pile *p = c == 0 ? &few : &many;
        *p = (pile){.each = 1 + (size_t)counts[c]};
        hy_request_options o = hy_request_defaults(m);
        o.prompt_ids = ids, o.prompt_count = 6, o.on_event = pile_up, o.user = p;
        o.sampling.seed = 3, o.sampling.max_tokens = 8, o.sampling.logprobs = counts[c], o.sampling.ignore_eos = true;
        o.sampling.score_prompt = true, o.sampling.prompt_logprobs = counts[c];
        hy_request *r = submit(e, &o);
        assert_int_equal(hy_request_wait(r), HY_OK);
        assert_int_equal(p->tokens, 8);
        hy_result result;
        hy_request_result(r, &result);
        assert_int_equal(result.prompt_logprobs_per_token, p->each);
        static hy_logprob prompt[5][21];
        for (size_t i = 0; i < 5; i++) {
            const hy_logprob *of = result.prompt_logprobs + i * p->each;
            assert_int_equal(of[0].token, ids[i + 1]);
            if (c == 0) memcpy(prompt[i], of, sizeof prompt[i]);
            assert_memory_equal(prompt[i], of, sizeof prompt[i]);
            for (size_t k = 2; k < p->each; k++) assert_true(of[k].logprob <= of[k - 1].logprob);
        }
        for (size_t i = 0; i < 8; i++) {
            assert_memory_equal(few.place[i], p->place[i], 21 * sizeof **p->place);
            for (size_t k = 2; k < p->each; k++) assert_true(p->place[i][k].logprob <= p->place[i][k - 1].logprob);
        }
        hy_request_close(r);
    }
    hy_request_options o = hy_request_defaults(m);
    o.prompt_ids = ids, o.prompt_count = 6, o.sampling.logprobs = FAKE_VOCAB + 1;
    hy_error err;
    hy_request *r = NULL;
    assert_int_equal(hy_engine_submit(e, &o, &r, &err), HY_BAD_INPUT);
    assert_string_equal(err.where, "logprobs");
    o.sampling.logprobs = -1, o.sampling.score_prompt = true, o.sampling.prompt_logprobs = FAKE_VOCAB + 1;
    assert_int_equal(hy_engine_submit(e, &o, &r, &err), HY_BAD_INPUT);
    assert_string_equal(err.where, "prompt_logprobs");
    hy_engine_close(e);
    fake_model_close(m);
}

static void test_seeds(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    hy_request_options o = hy_request_defaults(m);
    o.prompt_ids = one_id, o.prompt_count = 1, o.sampling.max_tokens = 40, o.sampling.ignore_eos = true;
    assert_int_equal(o.sampling.seed, -1);
    hy_request *r = submit(e, &o);
    hy_request_wait(r);
    hy_result result;
    hy_request_result(r, &result);
    o.sampling.seed = result.seed;
    assert_int_not_equal(result.seed, -1);
    struct seen again = {0}, other = {0};
    answer(e, o, &again);
    assert_int_equal(again.count, result.id_count);
    assert_memory_equal(again.ids, result.ids, again.count * sizeof(int32_t)); /* the reported seed gives it again */
    o.sampling.seed++;
    answer(e, o, &other);
    assert_memory_not_equal(again.ids, other.ids, 40 * sizeof(int32_t));
    hy_request_close(r);
    hy_engine_close(e);
    fake_model_close(m);
}

/* ---- Ends that nobody asked for ------------------------------------------------------------------------------- */

static void test_cancel(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(true);
    hy_engine *e = open_engine(m, (hy_engine_options){.max_num_seqs = 1});
    hy_request_options o = hy_request_defaults(m);
    o.prompt_ids = one_id, o.prompt_count = 1, o.sampling.ignore_eos = true;
    struct seen seen = {.stop_after = 3};
    assert_int_equal(answer(e, o, &seen), HY_CANCELLED); /* by the callback's answer */
    assert_int_equal(seen.finish, HY_FINISH_CANCEL);
    assert_int_equal(seen.count, 3);
    assert_int_equal(seen.events, 4);
    /* By the owner: one that runs, and one that waits behind it. */
    atomic_store(&fake.delay_us, 5000); /* ten seconds for who comes late */
    fake_let(1);
    struct seen first = {0}, second = {0};
    o.on_event = on_event, o.user = &first;
    hy_request *a = submit(e, &o);
    o.user = &second;
    hy_request *b = submit(e, &o);
    hy_request_cancel(b);
    fake_let(-1);
    assert_int_equal(hy_request_wait(b), HY_CANCELLED);
    assert_int_equal(second.count, 0);
    hy_request_cancel(a);
    assert_int_equal(hy_request_wait(a), HY_CANCELLED);
    hy_request_cancel(a); /* after the end: nothing */
    hy_request_close(a);
    hy_request_close(b);
    /* Closing a running one ends it. */
    struct seen third = {0};
    o.user = &third;
    hy_request_close(submit(e, &o));
    assert_int_equal(third.finish, HY_FINISH_CANCEL);
    hy_engine_stats stats;
    hy_engine_describe(e, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.requests_finished, 4);
    assert_true(stats.cache_usage == 0);
    /* Closing the engine ends what runs and what waits; the requests are closed afterwards. */
    struct seen last[3] = {0};
    hy_request *r[3];
    for (int i = 0; i < 3; i++) {
        o.user = &last[i];
        r[i] = submit(e, &o);
    }
    hy_engine_close(e);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hy_request_wait(r[i]), HY_CANCELLED);
        assert_int_equal(last[i].ends, 1);
        hy_request_cancel(r[i]);
        hy_request_close(r[i]);
    }
    fake_model_close(m);
}

static void test_a_bad_row_fails_its_request_alone(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    static int32_t good[100], bad[100];
    for (int i = 0; i < 100; i++) good[i] = i % 90, bad[i] = 100 + i % 90;
    bad[99] = 250;
    fake.nan_after = 250;
    int32_t allowed[200];
    for (int i = 0; i < 200; i++) allowed[i] = i; /* so that nobody makes a 250 */
    hy_request_options o = hy_request_defaults(m);
    o.sampling.max_tokens = 50, o.sampling.ignore_eos = true, o.sampling.allowed_ids = allowed,
    o.sampling.allowed_count = 200;
    o.sampling.seed = 5;
    o.prompt_ids = good, o.prompt_count = 100;
    struct seen alone = {0}, beside = {0}, failed = {0};
    answer(e, o, &alone);
    o.on_event = on_event, o.user = &beside;
    hy_request *a = submit(e, &o);
    o.prompt_ids = bad, o.user = &failed;
    hy_request *b = submit(e, &o);
    assert_int_equal(hy_request_wait(b), HY_FAILED);
    assert_int_equal(failed.finish, HY_FINISH_ERROR);
    assert_non_null(strstr(failed.error, "position 100"));
    assert_int_equal(failed.count, 0);
    assert_int_equal(hy_request_wait(a), HY_OK);
    assert_int_equal(beside.count, 50);
    assert_memory_equal(beside.ids, alone.ids, 50 * sizeof(int32_t));
    hy_request_close(a);
    hy_request_close(b);
    hy_engine_close(e);
    fake_model_close(m);
}

static void test_a_failed_step(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){0});
    hy_request_options o = hy_request_defaults(m);
    o.prompt_ids = one_id, o.prompt_count = 1, o.sampling.max_tokens = 5, o.sampling.ignore_eos = true;
    atomic_store(&fake.fail_steps, 1);
    struct seen seen = {0}, after = {0};
    assert_int_equal(answer(e, o, &seen), HY_FAILED);
    assert_string_equal(seen.error, "the fake device is gone");
    assert_int_equal(answer(e, o, &after), HY_OK); /* the engine goes on */
    assert_int_equal(after.count, 5);
    hy_engine_stats stats;
    hy_engine_describe(e, &stats);
    assert_true(stats.cache_usage == 0);
    hy_engine_close(e);
    fake_model_close(m);
}

static void test_a_full_queue(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(false);
    hy_engine *e = open_engine(m, (hy_engine_options){.max_num_seqs = 1, .max_waiting = 2});
    atomic_store(&fake.delay_us, 2000);
    hy_request_options o = hy_request_defaults(m);
    o.prompt_ids = one_id, o.prompt_count = 1, o.sampling.ignore_eos = true;
    hy_request *r[8];
    int taken = 0;
    hy_error err = {0};
    while (taken < 8 && hy_engine_submit(e, &o, &r[taken], &err) == HY_OK) taken++;
    assert_in_range(taken, 2, 3); /* one may run already */
    assert_int_equal(err.status, HY_BUSY);
    assert_non_null(strstr(err.message, "the queue is full: 2 requests wait"));
    for (int i = 0; i < taken; i++) hy_request_close(r[i]);
    hy_engine_close(e);
    fake_model_close(m);
}

/* ---- One request, one answer ---------------------------------------------------------------------------------- */

enum { MANY = 40 };

static int32_t prompts[MANY][700];

static hy_request_options request_number(const hy_model *m, int i)
{
    uint32_t x = (uint32_t)i * 2654435761u + 1;
    int32_t length = (int32_t[]){1, 2, 127, 128, 129, 255, 256, 257, 400, 699}[i % 10];
    for (int32_t j = 0; j < length; j++) {
        x = x * 1664525u + 1013904223u;
        prompts[i][j] = (int32_t)(x >> 8) % FAKE_VOCAB;
        if (prompts[i][j] < 0) prompts[i][j] += FAKE_VOCAB;
    }
    hy_request_options o = hy_request_defaults(m);
    o.prompt_ids = prompts[i], o.prompt_count = (size_t)length;
    o.sampling.seed = i;
    o.sampling.temperature = (float[]){1, 0, 0.7f, 1.5f}[i % 4];
    o.sampling.top_k = (int32_t[]){0, 20, 3}[i % 3];
    o.sampling.top_p = (float[]){1, 0.9f}[i % 2];
    o.sampling.min_p = (float[]){0, 0, 0, 0.1f, 0}[i % 5];
    o.sampling.repetition_penalty = (float[]){1, 1.3f}[i / 2 % 2];
    o.sampling.frequency_penalty = (float[]){0, 0, 0.5f}[i / 3 % 3];
    o.sampling.max_tokens = 1 + i * 7 % 160;
    o.sampling.ignore_eos = i % 6 != 0;
    return o;
}

static void test_one_answer(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(true);
    static struct seen alone[MANY], batch[MANY];
    hy_engine *e = open_engine(m, (hy_engine_options){.max_num_seqs = 1, .max_num_batched_tokens = 1});
    for (int i = 0; i < MANY; i++) {
        alone[i] = (struct seen){0};
        assert_int_equal(answer(e, request_number(m, i), &alone[i]), HY_OK);
    }
    hy_engine_close(e);
    const hy_engine_options many[] = {
        {0},
        {.max_num_batched_tokens = 1},
        {.max_num_batched_tokens = 7, .max_num_seqs = 20},
        {.max_num_batched_tokens = 129, .max_num_seqs = 3},
        {.max_num_batched_tokens = 128, .cache_bytes = 8 * 512}, /* the cache holds about two of them */
        {.max_num_batched_tokens = 5000, .cache_bytes = 1 << 20},
    };
    for (size_t k = 0; k < sizeof many / sizeof *many; k++) {
        e = open_engine(m, many[k]);
        hy_request *r[MANY];
        for (int i = 0; i < MANY; i++) {
            batch[i] = (struct seen){0};
            hy_request_options o = request_number(m, i);
            o.on_event = on_event, o.user = &batch[i];
            r[i] = submit(e, &o);
        }
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(hy_request_wait(r[i]), HY_OK);
            hy_request_close(r[i]);
            assert_int_equal(batch[i].count, alone[i].count);
            assert_memory_equal(batch[i].ids, alone[i].ids, alone[i].count * sizeof(int32_t));
            assert_string_equal(batch[i].text, alone[i].text);
            assert_int_equal(batch[i].finish, alone[i].finish);
        }
        hy_engine_stats stats;
        hy_engine_describe(e, &stats);
        assert_int_equal(stats.requests_finished, MANY);
        assert_true(stats.cache_usage == 0);
        uint64_t prompt = 0, made = 0;
        for (int i = 0; i < MANY; i++) prompt += request_number(m, i).prompt_count, made += alone[i].count;
        assert_int_equal(stats.prompt_tokens, prompt);
        assert_int_equal(stats.generated_tokens, made);
        hy_engine_close(e);
    }
    assert_int_equal(atomic_load(&fake.bad_rows), 0);
    assert_true(atomic_load(&fake.most_rows) > 1000); /* requests did share steps */
    fake_model_close(m);
}

/* ---- From several threads ------------------------------------------------------------------------------------- */

enum { THREADS = 6, ROUNDS = 60 };

struct client {
    hy_engine *engine;
    const hy_model *model;
    uint32_t x;
    int answered, cancelled;
};

static bool maybe_stop(void *user, const hy_event *e)
{
    struct client *c = user;
    (void)e;
    c->x = c->x * 1664525u + 1013904223u;
    return c->x >> 8 & 127;
}

static void *client_main(void *arg)
{
    struct client *c = arg;
    for (int i = 0; i < ROUNDS; i++) {
        int32_t prompt[300];
        uint32_t x = c->x = c->x * 1664525u + 1013904223u;
        hy_request_options o = hy_request_defaults(c->model);
        o.prompt_ids = prompt, o.prompt_count = 1 + (x >> 8) % 300;
        for (size_t j = 0; j < o.prompt_count; j++) prompt[j] = (int32_t)(j + x % 100) % FAKE_VOCAB;
        o.sampling.max_tokens = 1 + (int32_t)(x >> 16) % 60;
        o.on_event = maybe_stop, o.user = c;
        hy_request *r = NULL;
        if (hy_engine_submit(c->engine, &o, &r, NULL) != HY_OK) continue;
        hy_engine_stats stats;
        hy_engine_describe(c->engine, &stats);
        uint32_t y = (x >> 20) % 4;
        if (y == 0) hy_request_cancel(r);
        if (y != 1) {
            if (hy_request_wait(r) == HY_OK)
                c->answered++;
            else
                c->cancelled++;
        }
        hy_request_close(r); /* y == 1: closes what still runs */
    }
    return NULL;
}

static void test_storm(void **state)
{
    (void)state;
    hy_model *m = fake_model_open(true);
    /* Two engines on one model, which take turns. */
    hy_engine *e[2] = {open_engine(m, (hy_engine_options){.max_num_batched_tokens = 64, .cache_bytes = 12 * 512}),
                       open_engine(m, (hy_engine_options){.max_num_seqs = 2})};
    pthread_t thread[THREADS];
    struct client client[THREADS];
    for (int i = 0; i < THREADS; i++) {
        client[i] = (struct client){.engine = e[i % 2], .model = m, .x = (uint32_t)i * 77 + 1};
        assert_int_equal(pthread_create(&thread[i], NULL, client_main, &client[i]), 0);
    }
    int answered = 0, cancelled = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        answered += client[i].answered, cancelled += client[i].cancelled;
    }
    assert_true(answered > 20);
    assert_true(cancelled > 20);
    for (int i = 0; i < 2; i++) {
        hy_engine_stats stats;
        hy_engine_describe(e[i], &stats);
        assert_int_equal(stats.running + stats.waiting, 0);
        assert_int_equal(stats.requests_finished, THREADS / 2 * ROUNDS);
        assert_true(stats.cache_usage == 0);
        hy_engine_close(e[i]);
    }
    assert_int_equal(atomic_load(&fake.bad_rows), 0);
    fake_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_parameters_out_of_range, per_test),
        cmocka_unit_test_setup(test_prompts_that_cannot_be_served, per_test),
        cmocka_unit_test_setup(test_engine_options, per_test),
        cmocka_unit_test_setup(test_whole_characters, per_test),
        cmocka_unit_test_setup(test_stop_strings, per_test),
        cmocka_unit_test_setup(test_end_tokens, per_test),
        cmocka_unit_test_setup(test_without_a_tokenizer, per_test),
        cmocka_unit_test_setup(test_padding_is_never_sampled, per_test),
        cmocka_unit_test_setup(test_logprobs, per_test),
        cmocka_unit_test_setup(test_many_logprobs, per_test),
        cmocka_unit_test_setup(test_seeds, per_test),
        cmocka_unit_test_setup(test_cancel, per_test),
        cmocka_unit_test_setup(test_repetitions, per_test),
        cmocka_unit_test_setup(test_a_bad_row_fails_its_request_alone, per_test),
        cmocka_unit_test_setup(test_a_failed_step, per_test),
        cmocka_unit_test_setup(test_a_full_queue, per_test),
        cmocka_unit_test_setup(test_one_answer, per_test),
        cmocka_unit_test_setup(test_storm, per_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
