/* Running the answer parser over a text in pieces, and what it says as one string that can be compared. */
#ifndef TEST_ANSWER_HELPERS_H
#define TEST_ANSWER_HELPERS_H

#include "text_helpers.h"

#include "text/answer.h"
#include "text/tool_calls.h"

#define NS TEXT_TOOL_NAMESPACE
#define O TEXT_THINK_OPEN
#define C TEXT_THINK_CLOSE
#define E(name, value) NS "<" name ">" value NS "</" name ">"
#define INVOKE(name, arguments) NS "<invoke name=\"" name "\">" arguments NS "</invoke>\n"
#define BLOCK(calls) NS "<tool_call>\n" calls NS "</tool_call>"

/* One tool, f, whose parameters cover the types. */
static const char answer_schema[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},"
    "\"e\":{\"enum\":[\"on\",\"off\"]},\"z\":{\"type\":[\"integer\",\"null\"]},\"sn\":{\"anyOf\":[{\"type\":\"string\"}"
    ","
    "{\"type\":\"null\"}]},\"any\":{},\"ls\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"li\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},\"ll\":{\"type\":\"array\",\"items\":{\"type\":"
    "\"array\","
    "\"items\":{\"type\":\"string\"}}},\"o\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"number\"},"
    "\"t\":{\"type\":\"string\"},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},"
    "\"additionalProperties\":{\"type\":\"boolean\"}},\"lo\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
    "\"properties\":{\"sku\":{\"type\":\"string\"},\"qty\":{\"type\":\"integer\"}}}}}}}}]";

/*
 * The parts in a row, neighbours of one kind joined, each after a byte that says what follows:
 * \1 reasoning, \2 content, \3 name of a call, \4 arguments, \5 the end of a call.
 */
typedef struct answer_log {
    buffer text, arguments; /* the arguments of the call that is open */
    size_t parts;
    int calls, last;     /* last: of the kinds, -1 at first and where a new piece begins */
    bool open, dropping; /* dropping: calls may be left out between two parts */
    int repairs, faults;
    bool cut;
} answer_log;

static inline void answer_log_free(answer_log *log)
{
    buffer_free(&log->text);
    buffer_free(&log->arguments);
    *log = (answer_log){0};
}

/* What holds for every row of parts. */
static void answer_take(void *user, text_part_kind kind, int call, const char *text, size_t length)
{
    answer_log *log = user;
    bool of_call = kind >= TEXT_PART_CALL;
    assert_true(kind == TEXT_PART_CALL_END ? !length : length > 0);
    if (kind == TEXT_PART_CALL) log->calls++;
    assert_int_equal(call, of_call ? log->calls - 1 : -1);
    assert_int_equal(log->open, kind == TEXT_PART_ARGUMENTS || kind == TEXT_PART_CALL_END);
    /* One part for one kind in one piece. */
    if (kind != TEXT_PART_CALL && !log->dropping) assert_int_not_equal(log->last, kind);
    log->last = (int)kind;
    log->open = kind == TEXT_PART_CALL || kind == TEXT_PART_ARGUMENTS;
    log->parts++;

    char mark = (char)(kind + 1);
    const char *joined = log->text.data, *seam = joined;
    if (joined)
        for (seam = joined + log->text.length - 1; *seam > 5 || *seam < 1; seam--) continue;
    if (!seam || *seam != mark) buffer_char(&log->text, mark);
    /* Texts of the tests may have control characters: not as marks. */
    for (size_t i = 0; i < length; i++) buffer_char(&log->text, text[i] >= 1 && text[i] <= 5 ? '?' : text[i]);

    if (kind == TEXT_PART_CALL) buffer_clear(&log->arguments);
    if (kind == TEXT_PART_ARGUMENTS) buffer_append(&log->arguments, text, length);
    if (kind == TEXT_PART_CALL_END) {
        json_error_t e;
        json_t *value = json_loadb(log->arguments.data, log->arguments.length, JSON_ALLOW_NUL, &e);
        if (!json_is_object(value)) fail_msg("arguments: %s: %s", log->arguments.data, e.text);
        json_decref(value);
    }
}

/* The text in pieces that end at ends[count], the last at its end. */
static inline void answer_run(const char *text, const size_t *ends, size_t count, const text_answer_options *options,
                              answer_log *log)
{
    text_answer *a = text_answer_open(options);
    assert_non_null(a);
    size_t at = 0;
    log->dropping = options->max_calls > 0;
    for (size_t i = 0; i < count; i++) {
        /* A piece of its own memory, so that reading past it is found. */
        size_t n = ends[i] - at;
        char *piece = malloc(n ? n : 1);
        memcpy(piece, text + at, n);
        log->last = -1;
        text_answer_feed(a, piece, n, answer_take, log);
        free(piece);
        at = ends[i];
    }
    log->last = -1;
    text_answer_finish(a, answer_take, log);
    assert_true(text_answer_ok(a));
    assert_false(log->open);
    assert_int_equal(text_answer_calls(a), log->calls);
    log->repairs = text_answer_repairs(a);
    log->faults = text_answer_faults(a);
    log->cut = text_answer_cut(a);
    text_answer_close(a);
}

static inline void answer_same(const answer_log *got, const answer_log *want, const char *text, size_t length)
{
    if (got->text.length != want->text.length ||
        (want->text.length && memcmp(got->text.data, want->text.data, want->text.length) != 0))
        fail_msg("of %.*s\nin pieces: %s\nwhole: %s", (int)length, text, got->text.data ? got->text.data : "",
                 want->text.data ? want->text.data : "");
    assert_int_equal(got->repairs, want->repairs);
    assert_int_equal(got->faults, want->faults);
    assert_int_equal(got->cut, want->cut);
}

/* Every cut in two, and byte by byte; a long text byte by byte and at `random` random places. `want` is filled. */
static inline void answer_all_cuts(const char *text, size_t length, const text_answer_options *options,
                                   size_t short_text, uint64_t *seed, int random, answer_log *want)
{
    size_t *ends = malloc((length + 1) * sizeof *ends);
    answer_log got = {0};
    answer_run(text, &length, 1, options, want);
    for (size_t i = 0; i < length; i++) ends[i] = i + 1;
    answer_run(text, ends, length, options, &got);
    answer_same(&got, want, text, length);
    answer_log_free(&got);
    for (size_t cut = 1; length <= short_text && cut < length; cut++) {
        answer_run(text, (size_t[]){cut, length}, 2, options, &got);
        answer_same(&got, want, text, length);
        answer_log_free(&got);
    }
    for (int i = 0; length > short_text && i < random; i++) {
        size_t count = 0;
        for (size_t at = 0; at < length; ends[count++] = at) {
            at += draw(seed) % (i % 2 ? 9 : 90);
            if (at > length) at = length;
        }
        answer_run(text, ends, count, options, &got);
        answer_same(&got, want, text, length);
        answer_log_free(&got);
    }
    free(ends);
}

/* The parts of one kind, joined; of calls: name arguments name arguments. */
static inline void answer_pick(const answer_log *log, const char *kinds, buffer *out)
{
    bool on = false;
    for (size_t i = 0; i < log->text.length; i++) {
        char c = log->text.data[i];
        if (c >= 1 && c <= 5)
            on = strchr(kinds, c) != NULL;
        else if (on)
            buffer_char(out, c);
    }
    if (!out->data) buffer_string(out, ""), buffer_char(out, 0), out->length = 0;
}

/* ---- With the tools of answer_schema -------------------------------------------------------------------------------
 */

/* Of answer_schema, between answer_set_up and answer_tear_down. */
static json_t *tools;

static inline int answer_set_up(void **state)
{
    (void)state;
    json_error_t e;
    tools = json_loads(answer_schema, 0, &e);
    return tools ? 0 : 1;
}

static inline int answer_tear_down(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

static inline text_answer_options options_of(text_reasoning_start start)
{
    return (text_answer_options){.start = start, .split_reasoning = true, .split_calls = true, .tools = tools};
}

static inline void check_picked(const answer_log *log, const char *kinds, const char *want, const char *text)
{
    buffer got = {0};
    answer_pick(log, kinds, &got);
    if (strcmp(got.data, want) != 0) fail_msg("of %s\ngot:  %s\nwant: %s", text, got.data, want);
    buffer_free(&got);
}

/* A text in every cut; `calls` is name, arguments, name, arguments ... Returns the log of the whole text. */
static inline answer_log expect_with(const text_answer_options *options, const char *text, const char *reasoning,
                                     const char *content, const char *calls)
{
    answer_log log = {0};
    uint64_t seed = 5;
    answer_all_cuts(text, strlen(text), options, 1000, &seed, 8, &log);
    check_picked(&log, "\1", reasoning, text);
    check_picked(&log, "\2", content, text);
    check_picked(&log, "\3\4", calls, text);
    answer_log back = log;
    answer_log_free(&log);
    back.text = back.arguments = (buffer){0};
    return back;
}

static inline answer_log expect(text_reasoning_start start, const char *text, const char *reasoning,
                                const char *content, const char *calls)
{
    text_answer_options options = options_of(start);
    return expect_with(&options, text, reasoning, content, calls);
}

#endif
