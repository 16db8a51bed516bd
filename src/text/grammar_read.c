/* What the readers of grammars and of patterns share. */
#include <string.h>

#include "text/grammar_parts.h"

bool grammar_stands(const char *text, size_t length, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at <= length && length - at >= n && memcmp(text + at, what, n) == 0;
}

size_t grammar_repeats(const char *text, size_t length, size_t at, int32_t *count)
{
    for (*count = 0; at < length && text[at] >= '0' && text[at] <= '9'; at++) {
        int32_t value = *count * 10 + (text[at] - '0');
        *count = value <= GRAMMAR_REPEATS ? value : GRAMMAR_REPEATS + 1;
        if (value > GRAMMAR_REPEATS) break;
    }
    return at;
}
