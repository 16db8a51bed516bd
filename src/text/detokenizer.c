#include "text/detokenizer.h"

#include "base/utf8.h"

#include <string.h>

void text_detokenizer_start(text_detokenizer *d, const text_tokenizer *tok, bool skip_special)
{
    *d = (text_detokenizer){.tok = tok, .skip_special = skip_special};
}

/* Appends whole characters of s, U+FFFD for broken ones; returns how many bytes at the end may yet become whole. */
static size_t append_whole(const char *s, size_t length, buffer *out)
{
    size_t at = 0, good = 0; /* s[good, at) is valid and not yet appended */
    while (at < length) {
        size_t n = (unsigned char)s[at] < 0x80 ? 1 : utf8_valid(s + at, length - at);
        if (n) {
            at += n;
            continue;
        }
        buffer_append(out, s + good, at - good);
        if (utf8_incomplete_tail(s + at, length - at) == length - at) return length - at;
        buffer_string(out, UTF8_REPLACEMENT);
        good = at += utf8_invalid_run(s + at, length - at);
    }
    buffer_append(out, s + good, at - good);
    return 0;
}

/* The held bytes and the first few of the new ones: enough to finish or to break the held character. Returns how many
 * of the new bytes were taken. */
static size_t append_held(text_detokenizer *d, const char *s, size_t length, buffer *out)
{
    char joined[8];
    size_t held = d->held_count, taken = length < 4 ? length : 4;
    memcpy(joined, d->held, held);
    memcpy(joined + held, s, taken);
    size_t n = utf8_valid(joined, held + taken);
    if (!n && utf8_incomplete_tail(joined, held + taken) == held + taken) {
        /* Still unfinished, so there were fewer than 4 bytes in all. */
        memcpy(d->held, joined, held + taken);
        d->held_count = (unsigned char)(held + taken);
        return taken;
    }
    d->held_count = 0;
    if (n) {
        buffer_append(out, joined, n);
        return n - held;
    }
    /* The held bytes are a maximal broken part: had a new byte continued them, they would be unfinished or whole. */
    buffer_string(out, UTF8_REPLACEMENT);
    size_t run = utf8_invalid_run(joined, held + taken);
    return run > held ? run - held : 0;
}

void text_detokenizer_feed(text_detokenizer *d, const int32_t *ids, size_t count, buffer *out)
{
    for (size_t i = 0; i < count; i++) {
        size_t length, at = 0;
        const char *s = text_tokenizer_bytes(d->tok, ids[i], &length);
        if (!length || (d->skip_special && text_tokenizer_is_special(d->tok, ids[i]))) continue;
        if (d->held_count) at = append_held(d, s, length, out);
        if (at == length) continue;
        size_t tail = append_whole(s + at, length - at, out);
        memcpy(d->held, s + length - tail, tail);
        d->held_count = (unsigned char)tail;
    }
}

void text_detokenizer_finish(text_detokenizer *d, buffer *out)
{
    if (d->held_count) buffer_string(out, UTF8_REPLACEMENT);
    d->held_count = 0;
}
