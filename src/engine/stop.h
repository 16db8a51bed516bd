/*
 * Finding stop strings in text that arrives in pieces.
 *
 * A match counts where it ends: the first end in the text wins, of two that end together the longer one. So the result
 * does not depend on how the text was cut into pieces. Text that may still become a match is held back: the longest end
 * of the text that begins some stop string, never more than the longest string less one byte. Strings and text are
 * whole UTF-8 characters, hence so is what may be shown.
 */
#ifndef HAYATE_ENGINE_STOP_H
#define HAYATE_ENGINE_STOP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct stop_strings {
    const char *const *string; /* [count] borrowed, none empty */
    const size_t *length;      /* [count] */
    size_t count;
} stop_strings;

typedef struct stop_match {
    size_t index;      /* which string */
    size_t begin, end; /* bytes of the text */
} stop_match;

/* The first match whose end lies in (from, length]; it may begin before `from`. */
bool stop_find(const stop_strings *s, const char *text, size_t from, size_t length, stop_match *match);

/* Bytes at the end of the text to hold back. */
size_t stop_hold(const stop_strings *s, const char *text, size_t length);

#endif
