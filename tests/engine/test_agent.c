/*
 * An agent's conversation of 30 turns with tools, as a client that speaks the chat protocol has it: each answer is read
 * into reasoning, content and tool calls, goes back as a message, and the whole conversation is rendered anew. Of the
 * prompt tokens that anything earlier begins with, at least 99 % must be reused; and where the rendered text goes on
 * where the last turn ended, the prompt must have the very tokens that were sampled.
 *
 * hayate-test: slow
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/storm.h"
#include "text/reasoning.h"
#include "text/tool_calls.h"

enum { TURNS = 30, MADE = 120, KEPT = 10 };

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Weather of a city now.\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"Adds two "
    "numbers.\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}},\"required\":[\"a\",\"b\"]}}"
    "}]";

static const char *const questions[] = {
    "What is 4837 + 961?", "What is the weather in Oslo?",  "Say that once more, in other words.",
    "And in Lisbon?",      "Add 17 and 25 with your tool.", "What did I ask first?",
};
enum { QUESTIONS = sizeof questions / sizeof questions[0] };

/* What was computed for one turn: its prompt and what came. */
typedef struct turn {
    int32_t *ids;
    size_t prompt, count;
} turn;

static hy_model *model;
static json_t *tools_json;

/* ---- The client ----------------------------------------------------------------------------------------------- */

typedef struct split {
    char text[2][8192];
    size_t length[2];
} split;

static void on_piece(void *user, text_kind kind, const char *text, size_t length)
{
    split *s = user;
    assert_true(s->length[kind] + length < sizeof s->text[0]);
    memcpy(s->text[kind] + s->length[kind], text, length);
    s->length[kind] += length;
}

/* The assistant's message that an answer is, and whether it calls tools. */
static bool append_answer(json_t *messages, const hy_result *r)
{
    const text_tokenizer *tok = model_tokenizer(model);
    split s = {0};
    text_reasoning reasoning;
    text_tool_calls calls = {0};
    text_reasoning_begin(&reasoning, text_reasoning_start_of(tok, r->prompt_ids[r->prompt_count - 1]));
    text_reasoning_feed(&reasoning, r->text, r->text_length, on_piece, &s);
    text_reasoning_finish(&reasoning, on_piece, &s);
    bool good = text_tool_calls_read(s.text[TEXT_CONTENT], s.length[TEXT_CONTENT], tools_json, &calls, NULL) == HY_OK;
    size_t content = good ? calls.content_length : s.length[TEXT_CONTENT];
    json_t *message = json_pack("{s:s, s:s#}", "role", "assistant", "content", s.text[TEXT_CONTENT], content);
    assert_non_null(message);
    if (s.length[TEXT_REASONING])
        json_object_set_new(message, "reasoning", json_stringn(s.text[TEXT_REASONING], s.length[TEXT_REASONING]));
    bool called = good && json_array_size(calls.calls) > 0;
    if (called) {
        json_t *list = json_array();
        for (size_t i = 0; i < json_array_size(calls.calls); i++)
            json_array_append_new(
                list, json_pack("{s:s, s:O}", "type", "function", "function", json_array_get(calls.calls, i)));
        json_object_set_new(message, "tool_calls", list);
        json_array_append_new(messages, message);
        for (size_t i = 0; i < json_array_size(calls.calls); i++)
            json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "tool", "content", "{\"result\": 42}"));
    } else {
        json_array_append_new(messages, message);
    }
    text_tool_calls_free(&calls);
    return called;
}

/* A call and its result that another program made. */
static void append_foreign_call(json_t *messages, int number)
{
    json_t *m =
        json_pack("{s:s, s:s, s:[{s:s, s:{s:s, s:{s:i, s:i}}}]}", "role", "assistant", "content", "", "tool_calls",
                  "type", "function", "function", "name", "add", "arguments", "a", number, "b", 7 * number);
    assert_non_null(m);
    json_array_append_new(messages, m);
    json_array_append_new(messages,
                          json_pack("{s:s, s:s}", "role", "tool", "content", "{\"sum\": 120, \"exact\": true}"));
}

/* ---- What could be reused ------------------------------------------------------------------------------------- */

/* The last token of an answer was not fed back, so nothing is kept of it. */
static size_t reusable(const turn *turns, int made, const int32_t *prompt, size_t count)
{
    size_t best = 0;
    for (int i = 0; i < made; i++) {
        size_t most = turns[i].count - 1 < count - 1 ? turns[i].count - 1 : count - 1, n = 0;
        while (n < most && turns[i].ids[n] == prompt[n]) n++;
        if (n > best) best = n;
    }
    return best;
}

static char *text_of(const int32_t *ids, size_t count)
{
    char *text = NULL;
    STORM_OK(hy_detokenize(model, ids, count, false, &text, &storm_error));
    return text;
}

/* Whether the rendered text begins with all that the last turn ended with; then the sampled tokens must stand there. */
static bool check_replay(const turn *last, const hy_ids *rendered, const hy_result *r)
{
    char *before = text_of(last->ids, last->count), *now = text_of(rendered->data, rendered->count);
    char *computed = text_of(r->prompt_ids, r->prompt_count);
    bool goes_on = strncmp(now, before, strlen(before)) == 0;
    assert_string_equal(now, computed);
    if (goes_on) {
        assert_true(r->prompt_count > last->count);
        assert_memory_equal(r->prompt_ids, last->ids, last->count * sizeof *last->ids);
    }
    free(before), free(now), free(computed);
    return goes_on;
}

static void test_thirty_turns(void **state)
{
    (void)state;
    hy_engine *e = NULL;
    hy_engine_options options = {.log_seconds = -1};
    STORM_OK(hy_engine_open(model, &options, &e, &storm_error));
    json_t *messages = json_array();
    turn turns[TURNS];
    size_t could = 0, were = 0, prompts = 0;
    int kept = 0, called = 0, other = 0;
    for (int i = 0; i < TURNS; i++) {
        if (i % 5 == 3) append_foreign_call(messages, i);
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", questions[i % QUESTIONS]));
        char *text = json_dumps(messages, JSON_COMPACT);
        hy_ids ids = {0};
        STORM_OK(hy_render_chat(model, text, tools, "{\"thinking_mode\":\"enabled\"}", &ids, &storm_error));
        hy_request_options o = hy_request_defaults(model);
        o.prompt_ids = ids.data, o.prompt_count = ids.count, o.rendered = true, o.keep_special = false;
        o.sampling.temperature = 0.9f, o.sampling.seed = i, o.sampling.max_tokens = MADE;
        hy_request *request = NULL;
        hy_result r;
        STORM_OK(hy_engine_submit(e, &o, &request, &storm_error));
        assert_int_equal(hy_request_wait(request), HY_OK);
        hy_request_result(request, &r);
        assert_non_null(r.prompt_ids);
        size_t common = reusable(turns, i, r.prompt_ids, r.prompt_count);
        could += common, were += (size_t)r.reuse.tokens, prompts += r.prompt_count;
        assert_true((size_t)r.reuse.tokens <= common); /* what nobody computed cannot be reused */
        if (i > 0) kept += check_replay(&turns[i - 1], &ids, &r);
        if (i > 0)
            other += ids.count != r.prompt_count || memcmp(ids.data, r.prompt_ids, ids.count * sizeof *ids.data) != 0;
        turns[i] = (turn){.prompt = r.prompt_count, .count = r.prompt_count + r.id_count};
        turns[i].ids = malloc(turns[i].count * sizeof(int32_t));
        assert_non_null(turns[i].ids);
        memcpy(turns[i].ids, r.prompt_ids, r.prompt_count * sizeof(int32_t));
        memcpy(turns[i].ids + r.prompt_count, r.ids, r.id_count * sizeof(int32_t));
        called += append_answer(messages, &r);
        hy_request_close(request);
        hy_ids_free(&ids);
        free(text);
    }
    printf(
        "%zu prompt tokens, %zu of them reusable, %zu reused; %d answers came back as they were, %d prompts with other "
        "tokens than the text alone gives; %d called tools\n",
        prompts, could, were, kept, other, called);
    assert_true(could > prompts / 2);
    assert_true((double)were >= 0.99 * (double)could);
    assert_true(kept >= KEPT);
    for (int i = 0; i < TURNS; i++) free(turns[i].ids);
    json_decref(messages);
    hy_engine_close(e);
}

static int set_up(void **state)
{
    (void)state;
    tools_json = json_loads(tools, 0, NULL);
    assert_non_null(tools_json);
    STORM_OK(hy_model_open(TEST_SOURCE "/models/m3-nano", NULL, &model, &storm_error));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(tools_json);
    hy_model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_thirty_turns)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
