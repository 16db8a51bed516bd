/*
 * Any bytes as what a model wrote, and behind a byte 0 the tools it was offered: read, or refused with one line. What
 * is read goes through the chat template and is read again.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat_template.h"
#include "text/json_read.h"
#include "text/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok) abort();
}

/* The answer may differ: an empty list, null and "$text" have no spelling of their own. */
static void twice(const json_t *calls, const json_t *tools)
{
    static const text_template m3 = {.kind = TEXT_TEMPLATE_MINIMAX_M3};
    json_t *messages = json_pack("[{s:s, s:s, s:O}]", "role", "assistant", "content", "", "tool_calls", calls);
    buffer out = {0};
    hy_error err = {0};
    text_tool_calls again;
    check(messages != NULL);
    check(text_template_render(&m3, messages, NULL, NULL, &out, &err) == HY_OK);
    const char *mark = "]~b]ai\n</mm:think>", *from = strstr(out.data, mark);
    check(from != NULL);
    from += strlen(mark);
    hy_status s = text_tool_calls_read(from, out.length - (size_t)(from - out.data), tools, &again, &err);
    check(!s || *err.message);
    text_tool_calls_free(&again);
    buffer_free(&out);
    json_decref(messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = size ? memchr(data, 0, size) : NULL;
    size_t length = end ? (size_t)(end - text) : size;
    hy_error err = {0};
    json_t *tools = end ? json_read(end + 1, size - length - 1, 0, HY_BAD_INPUT, "fuzz", &err) : NULL;
    text_tool_calls calls;
    hy_status s = text_tool_calls_read(text, length, tools, &calls, &err);
    check(calls.content_length <= length);
    check(calls.block ? calls.content_length < length
                      : calls.content_length == length && !json_array_size(calls.calls));
    if (s) check(s == HY_BAD_INPUT && *err.message && !strchr(err.message, '\n'));
    twice(calls.calls, tools);
    text_tool_calls_free(&calls);
    json_decref(tools);
    return 0;
}
