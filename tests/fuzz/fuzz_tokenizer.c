/*
 * Any bytes as a vocabulary file: refused with one line, or a tokenizer that encodes and decodes. The last byte picks
 * what else is done with them; the bytes also are a text for a sound tokenizer, which must give it back.
 */
#include <stdlib.h>
#include <string.h>

#include "text/detokenizer.h"
#include "text/normalize.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok) abort();
}

/* The 256 bytes and a few merges, as a rank file. */
static text_tokenizer *sound(void)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    buffer file = {0};
    for (int i = 0; i < 256; i++) buffer_printf(&file, "%c%c== %d\n", digits[i >> 2], digits[(i & 3) << 4], i);
    buffer_string(&file,
                  "ICA= 256\nICAgIA== 257\ndGg= 258\ndGhl 259\nYWE= 260\nYWFhYQ== 261\nzIE= 262\nYQ0K 263\nDQo= 264\n");
    text_tokenizer *tok = NULL;
    check(text_tokenizer_read(file.data, file.length, "sound", &tok, NULL) == HY_OK);
    buffer_free(&file);
    return tok;
}

static void round_trip(const text_tokenizer *tok, const char *text, size_t length)
{
    hy_error err = {0};
    hy_ids ids = {0};
    buffer back = {0};
    if (text_tokenizer_encode(tok, text, length, true, &ids, &err) != HY_OK) {
        check(err.status == HY_BAD_INPUT && *err.message && !strchr(err.message, '\n'));
        return;
    }
    check(text_decode(tok, ids.data, ids.count, false, &back, &err) == HY_OK);
    if (normalize_is_plain(text, length)) check(back.length == length && (!length || !memcmp(back.data, text, length)));
    buffer_free(&back);
    hy_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static text_tokenizer *tok;
    if (!tok) tok = sound();
    round_trip(tok, (const char *)data, size);

    hy_error err = {0};
    text_tokenizer *read = NULL;
    if (text_tokenizer_read((const char *)data, size, "fuzz", &read, &err) != HY_OK) {
        check(!read && *err.message && !strchr(err.message, '\n'));
        return 0;
    }
    static const char text[] = "The  quick <mm:think>e\xCC\x81\r\n 12345 ]~b]a\xE4\xBD\xA0 don't";
    hy_ids ids = {0};
    check(text_tokenizer_encode(read, text, sizeof text - 1, size & 1, &ids, &err) == HY_OK);
    buffer out = {0};
    check(text_decode(read, ids.data, ids.count, size & 2, &out, &err) == HY_OK);
    for (int32_t id = -1; id <= text_tokenizer_vocab_size(read) && id < 300; id++) text_tokenizer_spell(read, id, &out);
    text_tokenizer_find(read, "<mm:think>");
    buffer_free(&out);
    hy_ids_free(&ids);
    text_tokenizer_close(read);
    return 0;
}
