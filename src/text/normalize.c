#include "text/normalize.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/*
 * Characters that stand in form C as they are, have combining class 0 and never join with what is before them. Text may
 * be cut before each of them. Ranges whose every member is such (checked by tests/text/test_normalize.c); they cover
 * Latin, Greek without its old accents, Cyrillic, kana, ideographs, Hangul syllables, most punctuation and emoji.
 */
static bool is_plain(uint32_t c)
{
    if (c < 0x300) return true;
    if (c < 0x2000) return (c >= 0x38E && c <= 0x482) || (c >= 0x48A && c <= 0x52F);
    if (c < 0x3000) return (c >= 0x2010 && c <= 0x2027) || (c >= 0x2030 && c <= 0x205E) || (c >= 0x2500 && c <= 0x27BF);
    if (c < 0xAC00)
        return c <= 0x3029 || (c >= 0x3041 && c <= 0x3096) || (c >= 0x309B && c <= 0x30FF) ||
               (c >= 0x4E00 && c <= 0x9FFF);
    return c <= 0xD7A3 || (c >= 0xFF01 && c <= 0xFFEE) || (c >= 0x1F300 && c <= 0x1FAFF);
}

/* Bytes of the longest start of s that is plain. */
static size_t plain_run(const char *s, size_t length)
{
    size_t at = 0;
    while (at < length) {
        if (!((unsigned char)s[at] & 0x80)) {
            at++;
            continue;
        }
        uint32_t c = 0;
        size_t n = utf8_decode(s + at, length - at, &c);
        if (!is_plain(c)) break;
        at += n;
    }
    return at;
}

bool normalize_is_plain(const char *s, size_t length)
{
    return plain_run(s, length) == length;
}

static unsigned combining_class(int32_t c)
{
    return (unsigned)utf8proc_get_property(c)->combining_class & 0xFF;
}

/* Puts a run of combining marks into the order of their classes, stable: by insertion, long runs by counting. */
static bool order_marks(int32_t *c, size_t count)
{
    if (count <= 32) {
        for (size_t i = 1; i < count; i++) {
            int32_t x = c[i];
            size_t j = i;
            for (; j && combining_class(c[j - 1]) > combining_class(x); j--) c[j] = c[j - 1];
            c[j] = x;
        }
        return true;
    }
    int32_t *sorted = malloc(count * sizeof *sorted);
    if (!sorted) return false;
    size_t start[257] = {0};
    for (size_t i = 0; i < count; i++) start[combining_class(c[i]) + 1]++;
    for (size_t i = 1; i < 257; i++) start[i] += start[i - 1];
    for (size_t i = 0; i < count; i++) sorted[start[combining_class(c[i])]++] = c[i];
    memcpy(c, sorted, count * sizeof *sorted);
    free(sorted);
    return true;
}

/* Decomposes canonically into c[capacity]; the number of code points or what it needs. utf8proc_decompose would do this
 * and sort too, but its sort is quadratic in a run of marks. */
static size_t decompose(const char *s, size_t length, int32_t *c, size_t capacity)
{
    size_t count = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        int boundary = 0;
        at += utf8_decode(s + at, length - at, &code);
        size_t room = count < capacity ? capacity - count : 0;
        utf8proc_ssize_t n =
            utf8proc_decompose_char((utf8proc_int32_t)code, room ? c + count : NULL, (utf8proc_ssize_t)room,
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (n > 0) count += (size_t)n;
    }
    return count;
}

/* One piece that is not plain, through decomposition, ordering and composition. */
static void normalize_piece(const char *s, size_t length, buffer *out)
{
    size_t count = decompose(s, length, NULL, 0), bytes;
    int32_t *c = size_mul(count + 1, sizeof *c, &bytes) ? malloc(bytes) : NULL;
    if (!c) {
        out->failed = true;
        return;
    }
    decompose(s, length, c, count);
    for (size_t i = 0; i < count;) {
        size_t start = i;
        while (i < count && combining_class(c[i])) i++;
        if (!order_marks(c + start, i - start)) out->failed = true;
        if (i == start) i++;
    }
    utf8proc_ssize_t n = utf8proc_normalize_utf32(c, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (n < 0) out->failed = true;
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char bytes4[4];
        buffer_append(out, bytes4, utf8_encode((uint32_t)c[i], bytes4));
    }
    free(c);
}

void normalize_nfc(const char *s, size_t length, buffer *out)
{
    size_t at = 0;
    while (at < length) {
        size_t plain = plain_run(s + at, length - at);
        if (at + plain == length) {
            buffer_append(out, s + at, plain);
            return;
        }
        /* The character before the odd one may join with it: it belongs to the piece. */
        size_t start = at + plain;
        while (start > at) {
            start--;
            if (((unsigned char)s[start] & 0xC0) != 0x80) break;
        }
        buffer_append(out, s + at, start - at);
        size_t end = at + plain;
        while (end < length) {
            uint32_t c = 0;
            size_t n = utf8_decode(s + end, length - end, &c);
            if (is_plain(c)) break;
            end += n;
        }
        normalize_piece(s + start, end - start, out);
        at = end;
    }
}
