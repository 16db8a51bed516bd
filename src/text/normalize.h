/*
 * Unicode normalisation form C (https://www.unicode.org/reports/tr15/), in time linear in the text whatever it holds.
 */
#ifndef HAYATE_TEXT_NORMALIZE_H
#define HAYATE_TEXT_NORMALIZE_H

#include "base/buffer.h"

/* True for text that is in form C for sure; most text is. s must be valid UTF-8. */
bool normalize_is_plain(const char *s, size_t length);

/* Appends the form C of valid UTF-8; ask buffer_ok. */
void normalize_nfc(const char *s, size_t length, buffer *out);

#endif
