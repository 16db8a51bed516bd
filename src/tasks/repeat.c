#include "tasks/repeat.h"

#include <ctype.h>
#include <string.h>

#include "tasks/sums.h"
#include "tasks/words.h"

void repeat_words(draw *d, int64_t count, buffer *what)
{
    for (int64_t i = 0; i < count; i++) {
        if (i) buffer_char(what, ' ');
        buffer_string(what, word_plain(d));
    }
}

void repeat_ask(draw *d, const char *what, buffer *question)
{
    static const char *const asks[] = {"Repeat after me: {w}",
                                       "Repeat: {w}",
                                       "Say \"{w}\".",
                                       "Say: {w}",
                                       "Please repeat: {w}",
                                       "Echo {w}",
                                       "Say {w}",
                                       "repeat {w}",
                                       "Repeat exactly: \"{w}\"",
                                       "Just say {w}",
                                       "Respond with: {w}",
                                       "Reply with {w}",
                                       "Write {w}",
                                       "Copy this: {w}"};
    slots v;
    slots_clear(&v);
    slots_text(&v, 'w', what);
    fill(question, DRAW(d, asks), &v);
}

static void capitals(buffer *b)
{
    for (size_t i = 0; i < b->length; i++)
        if (!i || b->data[i - 1] == ' ') b->data[i] = (char)toupper((unsigned char)b->data[i]);
}

void repeat_make(draw *d, buffer *question, buffer *what)
{
    static const int shares[] = {45, 30, 25};
    char word[16];
    switch (draw_weighted(d, shares, 3)) {
    case 0: repeat_words(d, draw_between(d, 1, 6), what); break;
    case 1:
        for (int64_t n = draw_between(d, 1, 3); n > 0; n--)
            buffer_string(what, word_made_up(d, word)), buffer_string(what, n > 1 ? " " : "");
        break;
    default:
        for (int64_t n = draw_between(d, 1, 3); n > 0; n--)
            put_number(what, sum_number(d, (int)draw_between(d, 1, 5))), buffer_string(what, n > 1 ? " " : "");
        break;
    }
    if (draw_chance(d, 0.2)) capitals(what);
    repeat_ask(d, text_of(what), question);
}

bool repeat_equal(const char *text, const char *what)
{
    size_t n = strlen(text), want = strlen(what);
    while (n && strchr(" \n\t\"'", text[0])) text++, n--;
    while (n > want && strchr(" \n\t\"'.", text[n - 1])) n--;
    return n == want && memcmp(text, what, n) == 0;
}
