#include "engine/stop.h"

#include <string.h>

bool stop_find(const stop_strings *s, const char *text, size_t from, size_t length, stop_match *match)
{
    for (size_t end = from + 1; end <= length && s->count > 0; end++) {
        size_t best = 0;
        for (size_t i = 0; i < s->count; i++) {
            size_t n = s->length[i];
            if (n <= best || n > end || memcmp(text + end - n, s->string[i], n) != 0) continue;
            best = n;
            *match = (stop_match){i, end - n, end};
        }
        if (best > 0) return true;
    }
    return false;
}

size_t stop_hold(const stop_strings *s, const char *text, size_t length)
{
    size_t hold = 0;
    for (size_t i = 0; i < s->count; i++) {
        size_t n = s->length[i] - 1 < length ? s->length[i] - 1 : length;
        while (n > hold && memcmp(text + length - n, s->string[i], n) != 0) n--;
        if (n > hold) hold = n;
    }
    return hold;
}
