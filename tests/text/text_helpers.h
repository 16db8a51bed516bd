/* What the tests of the text room share. */
#ifndef TEST_TEXT_HELPERS_H
#define TEST_TEXT_HELPERS_H

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
#include "base/file.h"
#include "text/tokenizer.h"

#define TEXT_DATA TEST_DATA "/text/"

static inline text_tokenizer *open_data(const char *name)
{
    char path[512];
    hy_error err = {0};
    text_tokenizer *tok = NULL;
    snprintf(path, sizeof path, TEXT_DATA "%s", name);
    if (text_tokenizer_open(path, &tok, &err) != HY_OK) fail_msg("%s: %s", err.where, err.message);
    return tok;
}

static inline json_t *load_data(const char *name)
{
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, TEXT_DATA "%s", name);
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!j) fail_msg("%s: %s", path, e.text);
    return j;
}

/* A message is one line and says something. */
static inline void assert_one_line(const hy_error *err)
{
    assert_true(strlen(err->message) > 10);
    for (const char *c = err->message; *c; c++) assert_true((unsigned char)*c >= 0x20);
}

static inline void assert_buffer(const buffer *b, const char *want, size_t length)
{
    if (b->length != length || (length && memcmp(b->data, want, length) != 0))
        fail_msg("got \"%.*s\", want \"%.*s\"", (int)b->length, b->data ? b->data : "", (int)length, want);
}

/* A small generator, so that failures repeat. */
static inline uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

#endif
