/* UTF-8, checked as Unicode 15 table 3-7 wants it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef HAYATE_BASE_UTF8_H
#define HAYATE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Bytes of the character at s (1 to 4), 0 if the first of the `length` bytes does not start a whole valid one. */
size_t utf8_valid(const char *s, size_t length);

/* Like utf8_valid and decodes into *code. */
size_t utf8_decode(const char *s, size_t length, uint32_t *code);

/* Writes a code point into out[4], returns its bytes. */
size_t utf8_encode(uint32_t code, char out[4]);

/* True bytes at the end of s that begin a character which more bytes could complete: 0 to 3. */
size_t utf8_incomplete_tail(const char *s, size_t length);

/* Bytes of an invalid sequence at s that one U+FFFD stands for (maximal subpart; at least 1). */
size_t utf8_invalid_run(const char *s, size_t length);

/* What a terminal would act upon (control characters, also those of U+0080 to U+009F) and bytes that are no UTF-8 become
 * `instead`, byte by byte: text of a file or a client as a line for people. */
void utf8_one_line(char *s, char instead);

#endif
