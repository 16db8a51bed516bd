#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

/* Bytes that a lead byte announces, and the allowed range of the second byte. 0: not a lead byte. */
static size_t lead(unsigned char c, unsigned char *low, unsigned char *high)
{
    *low = 0x80, *high = 0xBF;
    if (c < 0x80) return 1;
    if (c < 0xC2) return 0;
    if (c < 0xE0) return 2;
    if (c < 0xF0) {
        if (c == 0xE0) *low = 0xA0;
        if (c == 0xED) *high = 0x9F;
        return 3;
    }
    if (c < 0xF5) {
        if (c == 0xF0) *low = 0x90;
        if (c == 0xF4) *high = 0x8F;
        return 4;
    }
    return 0;
}

/* How many of the bytes that the lead byte announces are there and right. */
static size_t good_prefix(const char *s, size_t length, size_t *announced)
{
    unsigned char low, high;
    if (!length) return *announced = 0;
    *announced = lead((unsigned char)s[0], &low, &high);
    if (*announced == 0) return 0;
    size_t n = 1;
    while (n < *announced && n < length) {
        unsigned char c = (unsigned char)s[n];
        if (c < (n == 1 ? low : 0x80) || c > (n == 1 ? high : 0xBF)) break;
        n++;
    }
    return n;
}

size_t utf8_valid(const char *s, size_t length)
{
    size_t announced, n = good_prefix(s, length, &announced);
    return n && n == announced ? n : 0;
}

size_t utf8_decode(const char *s, size_t length, uint32_t *code)
{
    size_t n = utf8_valid(s, length);
    if (!n) return 0;
    const unsigned char *u = (const unsigned char *)s;
    static const unsigned char mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t c = u[0] & mask[n];
    for (size_t i = 1; i < n; i++) c = c << 6 | (u[i] & 0x3F);
    *code = c;
    return n;
}

size_t utf8_encode(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12), out[1] = (char)(0x80 | (code >> 6 & 0x3F)),
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18), out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F)), out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

size_t utf8_incomplete_tail(const char *s, size_t length)
{
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        size_t announced, n = good_prefix(s + length - back, back, &announced);
        if (n == back && announced > back) return back;
        if (announced) return 0;
    }
    return 0;
}

size_t utf8_invalid_run(const char *s, size_t length)
{
    size_t announced, n = good_prefix(s, length, &announced);
    return n ? n : 1;
}

void utf8_one_line(char *s, char instead)
{
    for (size_t left = strlen(s); left;) {
        uint32_t code = 0;
        size_t n = utf8_decode(s, left, &code);
        bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
        if (n && !control) {
            s += n, left -= n;
            continue;
        }
        for (n = n ? n : 1; n; n--, left--) *s++ = instead;
    }
}
