#include "text/reasoning.h"

#include <string.h>

/* START_... : nothing of the text has been passed on yet, so that a marker may be the very first thing. */
enum { START_INSIDE, INSIDE, START_OUTSIDE, OUTSIDE, DONE };

text_reasoning_start text_reasoning_start_of(const text_tokenizer *tok, int32_t last_id)
{
    if (last_id < 0) return TEXT_START_OPEN;
    if (last_id == text_tokenizer_find(tok, TEXT_THINK_OPEN)) return TEXT_START_INSIDE;
    if (last_id == text_tokenizer_find(tok, TEXT_THINK_CLOSE)) return TEXT_START_CLOSED;
    return TEXT_START_OPEN;
}

void text_reasoning_begin(text_reasoning *r, text_reasoning_start start)
{
    *r = (text_reasoning){
        .state = start == TEXT_START_INSIDE ? START_INSIDE : START_OUTSIDE,
        .phase = start != TEXT_START_CLOSED,
    };
}

bool text_reasoning_inside(const text_reasoning *r)
{
    return r->state == START_INSIDE || r->state == INSIDE;
}

bool text_reasoning_active(const text_reasoning *r)
{
    return r->phase || text_reasoning_inside(r);
}

void text_reasoning_settle(text_reasoning *r)
{
    r->state = DONE, r->phase = false;
}

/* Passes text on. It ends the start, and visible content ends the phase. */
static void emit(text_reasoning *r, const char *text, size_t length, text_piece_fn fn, void *user)
{
    if (!length) return;
    bool inside = text_reasoning_inside(r);
    if (r->state == START_INSIDE) r->state = INSIDE;
    if (r->state == START_OUTSIDE) r->state = OUTSIDE;
    if (!inside) r->phase = false;
    fn(user, inside ? TEXT_REASONING : TEXT_CONTENT, text, length);
}

/* Whether the state reacts to the marker. */
static bool wants_open(const text_reasoning *r)
{
    return r->state != INSIDE && r->state != DONE;
}
static bool wants_close(const text_reasoning *r)
{
    return r->state != OUTSIDE && r->state != DONE;
}

/*
 * What the held bytes are: 1 a whole marker (and the state has moved on), 0 the start of one, -1 neither. Both markers
 * begin with '<' and have no other, so a byte that breaks a start can only begin a new one.
 */
static int match_held(text_reasoning *r)
{
    size_t n = r->held_count;
    if (wants_open(r) && strncmp(TEXT_THINK_OPEN, r->held, n) == 0) {
        if (n < strlen(TEXT_THINK_OPEN)) return 0;
        r->state = INSIDE;
        return 1;
    }
    if (wants_close(r) && strncmp(TEXT_THINK_CLOSE, r->held, n) == 0) {
        if (n < strlen(TEXT_THINK_CLOSE)) return 0;
        r->state = DONE, r->phase = false;
        return 1;
    }
    return -1;
}

void text_reasoning_feed(text_reasoning *r, const char *text, size_t length, text_piece_fn fn, void *user)
{
    size_t at = 0;
    while (at < length) {
        if (!r->held_count) {
            const char *mark = r->state == DONE ? NULL : memchr(text + at, '<', length - at);
            size_t plain = mark ? (size_t)(mark - text) - at : length - at;
            emit(r, text + at, plain, fn, user);
            at += plain;
            if (at == length) return;
        }
        r->held[r->held_count++] = text[at++];
        int match = match_held(r);
        if (match > 0) r->held_count = 0;
        if (match < 0) {
            /* The byte that broke it may start a marker itself: look at it again. A lone '<' is only text. */
            size_t broken = r->held_count == 1 ? 1 : r->held_count - 1u;
            at -= r->held_count - broken;
            r->held_count = 0;
            emit(r, r->held, broken, fn, user);
        }
    }
}

void text_reasoning_finish(text_reasoning *r, text_piece_fn fn, void *user)
{
    size_t count = r->held_count;
    r->held_count = 0;
    emit(r, r->held, count, fn, user);
}
