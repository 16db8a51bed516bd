/*
 * A byte of options, a byte that says where to cut, any bytes as what a model wrote, and behind a byte 0 the tools it
 * was offered. Whole, in single bytes and cut at random it says the same; the arguments of every call are one JSON
 * object; calls come one by one, with a name, and end; what the reader of whole texts finds comes first.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "text/answer.h"
#include "text/json_read.h"
#include "text/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok) abort();
}

typedef struct result {
    buffer text; /* per part: its kind and its length once it is whole, then the text */
    buffer part, arguments;
    int kind, calls, repairs, faults;
    bool cut;
    json_t *list; /* [{"name", "arguments"}] */
} result;

static void end_part(result *r)
{
    if (r->kind >= 0) {
        buffer_printf(&r->text, "\n%d %zu ", r->kind, r->part.length);
        if (r->part.length) buffer_append(&r->text, r->part.data, r->part.length);
    }
    buffer_clear(&r->part);
    r->kind = -1;
}

static void take(void *user, text_part_kind kind, int call, const char *text, size_t length)
{
    result *r = user;
    check(kind == TEXT_PART_CALL_END ? !length : length > 0);
    bool open = r->kind == TEXT_PART_CALL || r->kind == TEXT_PART_ARGUMENTS;
    check(open == (kind == TEXT_PART_ARGUMENTS || kind == TEXT_PART_CALL_END));
    if (r->kind != (int)kind || kind == TEXT_PART_CALL) end_part(r);
    r->kind = (int)kind;
    if (kind == TEXT_PART_CALL) {
        r->calls++;
        buffer_clear(&r->arguments);
        json_array_append_new(r->list, json_pack("{s:o}", "name", json_stringn(text, length)));
    }
    check(call == (kind >= TEXT_PART_CALL ? r->calls - 1 : -1));
    buffer_append(&r->part, text, length);
    if (kind == TEXT_PART_ARGUMENTS) buffer_append(&r->arguments, text, length);
    if (kind == TEXT_PART_CALL_END) {
        json_t *value = json_loadb(r->arguments.data, r->arguments.length, JSON_ALLOW_NUL, NULL);
        check(json_is_object(value));
        json_object_set_new(json_array_get(r->list, (size_t)r->calls - 1), "arguments", value);
    }
}

/* With `random` 0 in one piece, with 1 in single bytes. */
static result run(const text_answer_options *options, const char *text, size_t length, uint32_t random)
{
    result r = {.kind = -1, .list = json_array()};
    text_answer *a = text_answer_open(options);
    for (size_t at = 0, n; at < length; at += n) {
        n = length - at;
        if (random) n = random == 1 ? 1 : 1 + (random = random * 1664525 + 1013904223) / 65536 % 40;
        if (n > length - at) n = length - at;
        text_answer_feed(a, text + at, n, take, &r);
    }
    text_answer_finish(a, take, &r);
    end_part(&r);
    check(text_answer_ok(a));
    check(text_answer_calls(a) == r.calls && (!options->max_calls || r.calls <= options->max_calls));
    r.repairs = text_answer_repairs(a), r.faults = text_answer_faults(a), r.cut = text_answer_cut(a);
    text_answer_close(a);
    return r;
}

static void drop(result *r)
{
    buffer_free(&r->text);
    buffer_free(&r->part);
    buffer_free(&r->arguments);
    json_decref(r->list);
}

static void check_same(const result *a, const result *b)
{
    check(a->text.length == b->text.length);
    check(!a->text.length || memcmp(a->text.data, b->text.data, a->text.length) == 0);
    check(a->repairs == b->repairs && a->faults == b->faults && a->cut == b->cut);
}

/* The same text, its reasoning not split: the first calls are those that the reader of whole texts finds. */
static void check_reader(text_answer_options options, const char *text, size_t length)
{
    text_tool_calls calls;
    hy_error err = {0};
    options.split_reasoning = false, options.split_calls = true, options.max_calls = 0;
    result r = run(&options, text, length, 0);
    hy_status s = text_tool_calls_read(text, length, options.tools, &calls, &err);
    check(!s || s == HY_BAD_INPUT);
    for (size_t i = 0; i < json_array_size(calls.calls); i++)
        check(json_equal(json_array_get(calls.calls, i), json_array_get(r.list, i)));
    text_tool_calls_free(&calls);
    drop(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const char *text = (const char *)data + 2, *end = memchr(text, 0, size - 2);
    size_t length = end ? (size_t)(end - text) : size - 2;
    hy_error err = {0};
    json_t *tools = end ? json_read(end + 1, size - 3 - length, 0, HY_BAD_INPUT, "fuzz", &err) : NULL;
    text_answer_options options = {
        .start = (text_reasoning_start)(data[0] % 3),
        .split_reasoning = data[0] & 4,
        .split_calls = !(data[0] & 8),
        .max_calls = data[0] >> 4 & 3,
        .tools = tools,
    };
    result whole = run(&options, text, length, 0), bytes = run(&options, text, length, 1),
           random = run(&options, text, length, 2u + data[1]);
    check_same(&bytes, &whole);
    check_same(&random, &whole);
    if (options.split_calls) check_reader(options, text, length);
    drop(&whole), drop(&bytes), drop(&random);
    json_decref(tools);
    return 0;
}
