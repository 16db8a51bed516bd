/*
 * Writing compact JSON straight into a buffer: no tree, no spaces, non-ASCII kept, commas placed by the writer.
 *
 *     json_writer w = {.out = &b};
 *     writer_object(&w); writer_key(&w, "id"); writer_string(&w, "x", 1); writer_end(&w);      {"id":"x"}
 *
 * Doubles are written in the shortest form that reads back equal; NaN and infinities become null.
 */
#ifndef HAYATE_BASE_JSON_H
#define HAYATE_BASE_JSON_H

#include "base/buffer.h"

#include <stdint.h>

enum { JSON_DEPTH = 64 };

typedef struct json_writer {
    buffer *out;
    int depth;
    bool filled[JSON_DEPTH]; /* something was written at this depth */
    char closer[JSON_DEPTH];
    bool after_key;
} json_writer;

void writer_object(json_writer *w);
void writer_array(json_writer *w);
void writer_end(json_writer *w); /* closes the innermost object or array */
void writer_key(json_writer *w, const char *key);
void writer_key_string(json_writer *w, const char *key, size_t length); /* as writer_string */
void writer_string(json_writer *w, const char *s, size_t length); /* invalid UTF-8 becomes U+FFFD */
void writer_text(json_writer *w, const char *s);                  /* NUL-terminated; NULL writes null */
void writer_integer(json_writer *w, int64_t value);
void writer_unsigned(json_writer *w, uint64_t value);
void writer_number(json_writer *w, double value);
void writer_bool(json_writer *w, bool value);
void writer_null(json_writer *w);
void writer_raw(json_writer *w, const char *json, size_t length); /* already JSON */
/* Goes on in `out` from a copy of all that `from` has written: for beginnings that many texts share. */
void writer_resume(json_writer *w, const json_writer *from, buffer *out);

/* What stands between the quotes of a JSON string: for writers that get a string in pieces, whole characters in each. */
void json_escape(buffer *out, const char *s, size_t length);

/* The shortest decimal that reads back as `value`, as a JSON number, into out[32]. */
void json_format_number(double value, char out[32]);

#endif
