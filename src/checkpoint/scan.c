#include "checkpoint/scan.h"

#include <string.h>

#include "base/utf8.h"

enum { SCAN_DEPTH = 64 };

scan scan_begin(const char *text, size_t length)
{
    if (!length) text = ""; /* an empty file has no bytes to point at */
    return (scan){.begin = text, .p = text, .end = text + length};
}

size_t scan_offset(const scan *s)
{
    return (size_t)(s->p - s->begin);
}

static bool fail(scan *s, const char *problem)
{
    if (!s->problem) s->problem = problem;
    return false;
}

static void skip_space(scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t')) s->p++;
}

bool scan_accept(scan *s, char c)
{
    if (s->problem) return false;
    skip_space(s);
    if (s->p == s->end || *s->p != c) return false;
    s->p++;
    return true;
}

bool scan_expect(scan *s, char c)
{
    if (scan_accept(s, c)) return true;
    switch (c) {
    case '{': return fail(s, "an object was expected");
    case '[': return fail(s, "a list was expected");
    case '"': return fail(s, "a string was expected");
    case ':': return fail(s, "a colon was expected");
    default: return fail(s, "a comma or the end of an object or list was expected");
    }
}

bool scan_more(scan *s, char close, bool *first)
{
    if (scan_accept(s, close) || s->problem) return false;
    if (*first) {
        *first = false;
        return true;
    }
    return scan_expect(s, ',');
}

static bool hex4(scan *s, uint32_t *value)
{
    if (s->end - s->p < 4) return fail(s, "an escape is cut off");
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = s->p[i];
        v <<= 4;
        if (c >= '0' && c <= '9')
            v |= (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v |= (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            v |= (uint32_t)(c - 'A' + 10);
        else
            return fail(s, "an escape is not hexadecimal");
    }
    s->p += 4;
    *value = v;
    return true;
}

/* After a backslash: the character into out[4]. Returns its bytes, 0 with a problem. */
static size_t escape(scan *s, char out[4])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->p == s->end) return fail(s, "a string does not end");
    char c = *s->p++;
    const char *at = memchr(from, c, sizeof from - 1);
    if (at) {
        out[0] = to[at - from];
        return 1;
    }
    uint32_t code, low;
    if (c != 'u') return fail(s, "an escape is unknown");
    if (!hex4(s, &code)) return 0;
    if (code >= 0xD800 && code < 0xDC00) { /* the first half of a pair */
        if (s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u')
            return fail(s, "half of a surrogate pair is missing");
        s->p += 2;
        if (!hex4(s, &low)) return 0;
        if (low < 0xDC00 || low > 0xDFFF) return fail(s, "half of a surrogate pair is missing");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
        return fail(s, "half of a surrogate pair is missing");
    }
    if (code == 0) return fail(s, "a string holds a NUL");
    return utf8_encode(code, out);
}

bool scan_string(scan *s, char *out, size_t capacity, size_t *length)
{
    if (!scan_expect(s, '"')) return false;
    size_t n = 0;
    for (;;) {
        if (s->p == s->end) return fail(s, "a string does not end");
        unsigned char c = (unsigned char)*s->p;
        char decoded[4];
        const char *from = s->p;
        size_t bytes = 1;
        if (c == '"') {
            s->p++;
            break;
        }
        if (c < 0x20) return fail(s, "a string holds a control character");
        if (c == '\\') {
            s->p++;
            bytes = escape(s, decoded);
            from = decoded;
        } else {
            if (c >= 0x80) bytes = utf8_valid(s->p, (size_t)(s->end - s->p));
            s->p += bytes;
        }
        if (!bytes) return fail(s, "a string is not UTF-8");
        if (n + bytes >= capacity) return fail(s, "a string is too long");
        memcpy(out + n, from, bytes);
        n += bytes;
    }
    out[n] = 0;
    if (length) *length = n;
    return true;
}

bool scan_unsigned(scan *s, uint64_t *value)
{
    if (s->problem) return false;
    skip_space(s);
    const char *start = s->p;
    uint64_t v = 0;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*s->p - '0'), &v))
            return fail(s, "a number is too large");
        s->p++;
    }
    if (s->p == start) return fail(s, "a whole number that is not negative was expected");
    if (*start == '0' && s->p - start > 1) return fail(s, "a number begins with 0");
    if (s->p < s->end && (*s->p == '.' || *s->p == 'e' || *s->p == 'E')) return fail(s, "a whole number was expected");
    *value = v;
    return true;
}

static bool skip_string(scan *s)
{
    s->p++; /* the opening quote was seen */
    for (;;) {
        if (s->p == s->end) return fail(s, "a string does not end");
        unsigned char c = (unsigned char)*s->p;
        char decoded[4];
        if (c == '"') {
            s->p++;
            return true;
        }
        if (c < 0x20) return fail(s, "a string holds a control character");
        if (c == '\\') {
            s->p++;
            if (!escape(s, decoded)) return false;
            continue;
        }
        size_t bytes = c >= 0x80 ? utf8_valid(s->p, (size_t)(s->end - s->p)) : 1;
        if (!bytes) return fail(s, "a string is not UTF-8");
        s->p += bytes;
    }
}

static bool digits(scan *s)
{
    const char *start = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') s->p++;
    return s->p > start;
}

static bool skip_number(scan *s)
{
    if (*s->p == '-') s->p++;
    const char *start = s->p;
    if (!digits(s) || (*start == '0' && s->p - start > 1)) return fail(s, "a value was expected");
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        if (!digits(s)) return fail(s, "a number is not complete");
    }
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-')) s->p++;
        if (!digits(s)) return fail(s, "a number is not complete");
    }
    return true;
}

static bool skip_value(scan *s, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    if (depth > SCAN_DEPTH) return fail(s, "values are nested too deeply");
    skip_space(s);
    if (s->p == s->end) return fail(s, "a value was expected");
    if (*s->p == '"') return skip_string(s);
    if (*s->p == '{' || *s->p == '[') {
        bool object = *s->p++ == '{', first = true;
        while (scan_more(s, object ? '}' : ']', &first)) {
            if (object) {
                skip_space(s);
                if (s->p == s->end || *s->p != '"') return fail(s, "a name was expected");
                if (!skip_string(s) || !scan_expect(s, ':')) return false;
            }
            if (!skip_value(s, depth + 1)) return false;
        }
        return !s->problem;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->p) >= n && memcmp(s->p, words[i], n) == 0) {
            s->p += n;
            return true;
        }
    }
    return skip_number(s);
}

bool scan_skip(scan *s)
{
    return !s->problem && skip_value(s, 0);
}

bool scan_finish(scan *s)
{
    if (s->problem) return false;
    skip_space(s);
    return s->p == s->end || fail(s, "something follows the end of the object");
}
