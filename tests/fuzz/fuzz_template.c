/*
 * Any bytes as {"messages", "tools", "kwargs"}: rendered, or refused with one line. What is rendered goes through the
 * reasoning splitter as if a model had written it, whole and byte by byte, with the same result.
 */
#include <stdlib.h>
#include <string.h>

#include "text/chat_template.h"
#include "text/json_read.h"
#include "text/reasoning.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok) abort();
}

static void collect(void *user, text_kind kind, const char *text, size_t length)
{
    buffer *parts = user;
    check(length > 0);
    buffer_append(&parts[kind], text, length);
}

static void split(const char *text, size_t length, size_t step, text_reasoning_start start, buffer parts[2])
{
    text_reasoning r;
    text_reasoning_begin(&r, start);
    for (size_t at = 0; at < length; at += step)
        text_reasoning_feed(&r, text + at, length - at < step ? length - at : step, collect, parts);
    text_reasoning_finish(&r, collect, parts);
}

static void split_both_ways(const char *text, size_t length, text_reasoning_start start)
{
    buffer whole[2] = {0}, bytes[2] = {0};
    split(text, length, length ? length : 1, start, whole);
    split(text, length, 1, start, bytes);
    for (int k = 0; k < 2; k++) {
        check(whole[k].length == bytes[k].length);
        check(!whole[k].length || !memcmp(whole[k].data, bytes[k].data, whole[k].length));
        buffer_free(&whole[k]);
        buffer_free(&bytes[k]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const text_template m3 = {.kind = TEXT_TEMPLATE_MINIMAX_M3};
    for (int start = TEXT_START_OPEN; start <= TEXT_START_CLOSED; start++)
        split_both_ways((const char *)data, size, (text_reasoning_start)start);

    hy_error err = {0};
    json_t *request = json_read((const char *)data, size, JSON_ALLOW_NUL, HY_BAD_INPUT, "fuzz", &err);
    if (!request) {
        check(*err.message && !strchr(err.message, '\n'));
        return 0;
    }
    buffer out = {0};
    hy_status s = text_template_render(&m3, json_object_get(request, "messages"), json_object_get(request, "tools"),
                                       json_object_get(request, "kwargs"), &out, &err);
    if (s)
        check(s == HY_BAD_INPUT && *err.message && !strchr(err.message, '\n'));
    else
        split_both_ways(out.data, out.length, TEXT_START_OPEN);
    buffer_free(&out);
    json_decref(request);
    return 0;
}
