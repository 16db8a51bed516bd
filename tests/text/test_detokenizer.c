/* Text in pieces, for every way to cut the ids into chunks. */
#include "text_helpers.h"

#include "base/utf8.h"
#include "text/detokenizer.h"

static text_tokenizer *tok;

static int open_all(void **state)
{
    (void)state;
    tok = open_data("m3-small.json");
    return 0;
}
static int close_all(void **state)
{
    (void)state;
    text_tokenizer_close(tok);
    return 0;
}

static int32_t byte_token(unsigned char byte)
{
    for (int32_t id = 0; id < text_tokenizer_vocab_size(tok); id++) {
        size_t n;
        const char *bytes = text_tokenizer_bytes(tok, id, &n);
        if (n == 1 && (unsigned char)bytes[0] == byte) return id;
    }
    fail_msg("no token for byte %d", byte);
    return -1;
}

/* Cuts ids[count] where bit i of `cuts` is set after id i; every piece must be whole characters. */
static void check_cuts(const int32_t *ids, size_t count, bool skip, unsigned cuts, const buffer *want)
{
    text_detokenizer d;
    buffer all = {0}, piece = {0};
    text_detokenizer_start(&d, tok, skip);
    for (size_t start = 0, i = 0; i < count; i++) {
        if (!(cuts >> i & 1) && i + 1 < count) continue;
        buffer_clear(&piece);
        text_detokenizer_feed(&d, ids + start, i + 1 - start, &piece);
        for (size_t at = 0, n; at < piece.length; at += n) {
            n = utf8_valid(piece.data + at, piece.length - at);
            assert_true(n > 0);
        }
        buffer_append(&all, piece.data, piece.length);
        start = i + 1;
    }
    text_detokenizer_finish(&d, &all);
    assert_buffer(&all, want->data, want->length);
    buffer_free(&all);
    buffer_free(&piece);
}

static void check_ids(const int32_t *ids, size_t count, bool skip, const char *text)
{
    buffer whole = {0};
    assert_int_equal(text_decode(tok, ids, count, skip, &whole, NULL), HY_OK);
    assert_buffer(&whole, text, strlen(text));
    for (unsigned cuts = 0; cuts < 1u << (count ? count - 1 : 0); cuts++) check_cuts(ids, count, skip, cuts, &whole);
    buffer_free(&whole);
}

/* One token for each byte of `bytes`. */
static void check_bytes(const char *bytes, const char *text)
{
    int32_t ids[16];
    size_t count = strlen(bytes);
    assert_true(count <= 16);
    for (size_t i = 0; i < count; i++) ids[i] = byte_token((unsigned char)bytes[i]);
    check_ids(ids, count, false, text);
}

#define BROKEN UTF8_REPLACEMENT

static void test_bytes(void **state)
{
    (void)state;
    check_bytes("", "");
    check_bytes("abc", "abc");
    check_bytes("\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80");
    check_bytes("a\xE4\xBD\xA0z\xC3\xA9", "a\xE4\xBD\xA0z\xC3\xA9");
    check_bytes("\xF0\x9F\x98", BROKEN);
    check_bytes("\xF0\x9F\x98x", BROKEN "x");
    check_bytes("\xF0\x9F\xF0\x9F\x98\x80", BROKEN "\xF0\x9F\x98\x80");
    check_bytes("\xE4\xBD\xC3\xA9", BROKEN "\xC3\xA9");
    check_bytes("\x80\x80z", BROKEN BROKEN "z");
    check_bytes("\xC0\xAF", BROKEN BROKEN);
    check_bytes("\xED\xA0\x80", BROKEN BROKEN BROKEN);
    check_bytes("\xF4\x90\x80\x80", BROKEN BROKEN BROKEN BROKEN);
    check_bytes("\xE4\xE4\xE4", BROKEN BROKEN BROKEN);
    check_bytes("\xFF\xE4\xBD\xFE", BROKEN BROKEN BROKEN);
}

static void test_special(void **state)
{
    (void)state;
    int32_t bos = text_tokenizer_find(tok, "]~b]"), think = text_tokenizer_find(tok, "<mm:think>");
    int32_t ids[] = {
        bos, byte_token('a'), byte_token(0xC3), bos, byte_token(0xA9), think, 1 << 20, -5, byte_token(0xC3), bos};
    check_ids(ids, 10, true, "a\xC3\xA9<mm:think>" BROKEN);
    check_ids(ids, 10, false, "]~b]a" BROKEN "]~b]" BROKEN "<mm:think>" BROKEN "]~b]");
}

/* Random tokens, random cuts. */
static void test_random(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int i = 0; i < 3000; i++) {
        int32_t ids[24];
        size_t count = 1 + draw(&seed) % 24;
        bool skip = draw(&seed) % 2;
        for (size_t k = 0; k < count; k++)
            ids[k] = draw(&seed) % 2 ? byte_token((unsigned char)(0x80 + draw(&seed) % 0x80))
                                     : (int32_t)(draw(&seed) % (uint32_t)(text_tokenizer_vocab_size(tok) + 5));
        buffer whole = {0};
        assert_int_equal(text_decode(tok, ids, count, skip, &whole, NULL), HY_OK);
        for (int k = 0; k < 6; k++) check_cuts(ids, count, skip, k ? draw(&seed) : ~0u, &whole);
        buffer_free(&whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_special),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
