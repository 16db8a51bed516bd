/*
 * Any bytes as a description: the first one says of what kind, whether white space is free, and where the walk begins. It is
 * refused with one line, or random tokens of its masks are taken: each is accepted, none is missing until the text is over,
 * and the end is allowed exactly where the text is complete.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok) abort();
}

/* Single bytes, and tokens that span what grammars care about. */
static text_tokenizer *open_tokenizer(void)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char *const more[] = {"\": ", "\", \"", "},", "{\"", "]]", "ab", "abc", "10", "\\u", " \n", "]<]", "\xC3\xA9x"};
    char ranks[8192];
    size_t n = 0;
    text_tokenizer *tok = NULL;
    hy_error err = {0};
    for (int i = 0; i < 256; i++)
        n += (size_t)snprintf(ranks + n, sizeof ranks - n, "%c%c== %d\n", digits[i >> 2], digits[(i & 3) << 4], i);
    for (int i = 0; i < (int)(sizeof more / sizeof *more); i++) {
        const unsigned char *s = (const unsigned char *)more[i];
        for (size_t at = 0, length = strlen(more[i]); at < length; at += 3) {
            unsigned b[3] = {s[at], at + 1 < length ? s[at + 1] : 0, at + 2 < length ? s[at + 2] : 0};
            char code[5] = {digits[b[0] >> 2], digits[(b[0] & 3) << 4 | b[1] >> 4],
                            at + 1 < length ? digits[(b[1] & 15) << 2 | b[2] >> 6] : '=',
                            at + 2 < length ? digits[b[2] & 63] : '=', 0};
            n += (size_t)snprintf(ranks + n, sizeof ranks - n, "%s", code);
        }
        n += (size_t)snprintf(ranks + n, sizeof ranks - n, " %d\n", 256 + i);
    }
    check(text_tokenizer_read(ranks, n, "ranks", &tok, &err) == HY_OK);
    return tok;
}

static void walk(const text_tokenizer *tok, const text_grammar *g, uint64_t seed)
{
    enum { END = 255, STEPS = 40 }; /* the end is a byte that no text has */
    static const int32_t ends[] = {END};
    int32_t vocab = text_tokenizer_vocab_size(tok);
    uint32_t mask[16];
    text_matcher *m = text_matcher_open(g, false, TEXT_START_CLOSED, ends, 1);
    check(m && vocab <= 16 * 32);
    for (int i = 0; i < STEPS; i++) {
        int32_t pick = -1;
        uint32_t seen = 0;
        check(text_matcher_mask(m, mask));
        check(text_matcher_complete(m) == (mask[END / 32] >> END % 32 & 1));
        for (int32_t id = 0; id < vocab; id++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            if ((mask[id >> 5] >> (id & 31) & 1) && (uint32_t)(seed >> 33) % ++seen == 0) pick = id;
        }
        check(pick >= 0);
        check(!text_matcher_over(m) || (seen == 1 && pick == END));
        check(text_matcher_accept(m, pick));
        if (pick == END) break;
    }
    text_matcher_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static text_tokenizer *tok;
    if (!tok) tok = open_tokenizer();
    if (!size) return 0;
    text_grammar_options o = {.any_whitespace = data[0] & 8, .additional_properties = data[0] & 16};
    text_grammar *g = NULL;
    hy_error err = {0};
    hy_status s = text_grammar_compile(tok, (text_grammar_kind)(data[0] % 8 % 7), (const char *)data + 1, size - 1, &o, &g, &err);
    if (s == HY_OK) {
        for (uint64_t seed = data[0]; seed < 1000; seed += 300) walk(tok, g, seed);
        text_grammar_release(g);
    } else {
        check((s == HY_BAD_INPUT || s == HY_NO_FIT) && *err.message && !strchr(err.message, '\n') && !g);
    }
    return 0;
}
