#include "server/http_target.h"

#include <stdint.h>
#include <string.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The character at text[*i], decoded; *i moves behind it. -1: no character. */
static int next_char(const char *text, size_t length, size_t *i)
{
    if (text[*i] != '%') return (unsigned char)text[(*i)++];
    if (length - *i < 3) return -1;
    int high = hex_digit(text[*i + 1]), low = hex_digit(text[*i + 2]);
    *i += 3;
    if (high < 0 || low < 0 || high + low == 0) return -1;
    return high << 4 | low;
}

size_t http_target_decode(char *text, size_t length, bool form)
{
    size_t out = 0;
    for (size_t i = 0; i < length;) {
        bool space = form && text[i] == '+';
        int c = next_char(text, length, &i);
        if (c < 0) return SIZE_MAX;
        text[out++] = space ? ' ' : (char)c;
    }
    if (out < length) text[out] = 0;
    return out;
}

static size_t part_end(const char *text, size_t length, size_t from)
{
    const char *slash = memchr(text + from, '/', length - from);
    return slash ? (size_t)(slash - text) : length;
}

static bool is_name(const char *part, size_t length)
{
    return length >= 2 && part[0] == '{' && part[length - 1] == '}';
}

static bool same_part(const char *pattern, size_t pattern_length, const char *part, size_t length)
{
    if (is_name(pattern, pattern_length)) return length > 0;
    size_t i = 0, j = 0;
    while (i < length && j < pattern_length)
        if (next_char(part, length, &i) != (unsigned char)pattern[j++]) return false;
    return i == length && j == pattern_length;
}

/* Walks both by parts. With `name`, stops at the part that stands for it and says where it is. */
static bool walk(const char *pattern, const char *path, size_t length, const char *name, size_t *from, size_t *to)
{
    size_t pattern_length = strlen(pattern), i = 0, j = 0;
    for (;;) {
        size_t i_end = part_end(pattern, pattern_length, i), j_end = part_end(path, length, j);
        if (!same_part(pattern + i, i_end - i, path + j, j_end - j)) return false;
        if (name && is_name(pattern + i, i_end - i) && strlen(name) == i_end - i - 2 &&
            memcmp(pattern + i + 1, name, i_end - i - 2) == 0) {
            *from = j, *to = j_end;
            return true;
        }
        if (i_end == pattern_length || j_end == length) return !name && i_end == pattern_length && j_end == length;
        i = i_end + 1, j = j_end + 1;
    }
}

bool http_target_matches(const char *pattern, const char *path, size_t length)
{
    return walk(pattern, path, length, NULL, NULL, NULL);
}

const char *http_target_part(const char *pattern, const char *path, size_t length, const char *name,
                             size_t *part_length)
{
    size_t from = 0, to = 0;
    if (!walk(pattern, path, length, name, &from, &to)) return NULL;
    *part_length = to - from;
    return path + from;
}
