/* Request targets: which route a path belongs to, what its parts and its query say. No sockets. */
#ifndef HAYATE_SERVER_HTTP_TARGET_H
#define HAYATE_SERVER_HTTP_TARGET_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Decodes %XX in place ('+' to a space as well when `form` is set) and returns the new length, or SIZE_MAX for a % without two
 * hex digits and for %00, which no path or value can hold as a string.
 */
size_t http_target_decode(char *text, size_t length, bool form);

/*
 * True if `path` (raw, without the query) fits `pattern`, where "{name}" stands for one part that is not empty. Parts are
 * compared decoded, so that an encoded slash is not a border.
 */
bool http_target_matches(const char *pattern, const char *path, size_t length);

/* The part of the path that stands for {name}, raw: its place and length in `path`; NULL if the pattern has none. */
const char *http_target_part(const char *pattern, const char *path, size_t length, const char *name, size_t *part_length);

#endif
