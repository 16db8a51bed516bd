/*
 * A strict, pull-style JSON scanner over bytes in memory, for the two large JSON texts of a checkpoint: the header of a
 * safetensors file and the index of its shards. A tree of their hundred thousand entries would cost more than the
 * entries themselves. RFC 8259 and nothing more: no comments, no trailing commas, valid UTF-8, no control characters in
 * strings.
 */
#ifndef HAYATE_CHECKPOINT_SCAN_H
#define HAYATE_CHECKPOINT_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct scan {
    const char *begin, *p, *end;
    const char *problem; /* NULL while all is well; the first problem stays */
} scan;

scan scan_begin(const char *text, size_t length);
size_t scan_offset(const scan *s); /* bytes consumed; where the problem is once there is one */

/* Skips space and takes `c`; false without a problem when another character comes. */
bool scan_accept(scan *s, char c);
/* The same, but another character is a problem. */
bool scan_expect(scan *s, char c);

/* A string with its escapes undone into out[capacity], NUL added; `\u0000` is a problem. `length` may be NULL. */
bool scan_string(scan *s, char *out, size_t capacity, size_t *length);
/* A whole number >= 0 without fraction or exponent, in 64 bits. */
bool scan_unsigned(scan *s, uint64_t *value);
/* Any value, nested at most 64 deep. */
bool scan_skip(scan *s);
/* Nothing but space is left. */
bool scan_finish(scan *s);

/*
 * Walks the members of an object or the elements of an array:
 *
 *     if (scan_expect(s, '{'))
 *         for (bool first = true; scan_more(s, '}', &first);) { name, ':' and value }
 */
bool scan_more(scan *s, char close, bool *first);

#endif
