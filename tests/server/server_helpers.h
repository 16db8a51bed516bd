/* What the tests of the server room share: JSON written with single quotes, and comparing it. */
#ifndef TEST_SERVER_HELPERS_H
#define TEST_SERVER_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buffer.h"

/* JSON with ' in place of ". */
static inline json_t *quoted(const char *text)
{
    char *copy = strdup(text);
    for (char *p = copy; *p; p++)
        if (*p == '\'') *p = '"';
    json_error_t e;
    json_t *j = json_loads(copy, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!j) fail_msg("%s: %s", text, e.text);
    free(copy);
    return j;
}

/* The same value, objects in any order. */
static inline void assert_json(const json_t *got, const char *want)
{
    json_t *w = quoted(want);
    if (!json_equal(got, w)) {
        char *text = got ? json_dumps(got, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        fail_msg("got %s, want %s", text ? text : "nothing", want);
    }
    json_decref(w);
}

/* The same bytes; ids of 32 hex digits in `got` are read as ID. */
static inline void assert_bytes(const buffer *got, const char *want)
{
    buffer b = {0};
    for (size_t i = 0; i < got->length;) {
        size_t n = 0;
        while (i + n < got->length && got->data[i + n] && strchr("0123456789abcdef", got->data[i + n])) n++;
        if (n == 32)
            buffer_string(&b, "ID"), i += n;
        else
            buffer_append(&b, got->data + i, n ? n : 1), i += n ? n : 1;
    }
    for (size_t i = 0; i < b.length; i++)
        if (b.data[i] == '"') b.data[i] = '\'';
    if (strcmp(b.length ? b.data : "", want) != 0) fail_msg("got\n%s\nwant\n%s", b.length ? b.data : "", want);
    buffer_free(&b);
}

#endif
