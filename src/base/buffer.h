/* A growing byte string. Failures to allocate are remembered: append freely, ask `buffer_ok` once at the end. */
#ifndef HAYATE_BASE_BUFFER_H
#define HAYATE_BASE_BUFFER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct buffer {
    char *data; /* [length] and a NUL after it; NULL while empty */
    size_t length, capacity;
    bool failed;
} buffer;

void buffer_append(buffer *b, const void *bytes, size_t count);
void buffer_string(buffer *b, const char *s);
void buffer_char(buffer *b, char c);
void buffer_printf(buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline bool buffer_ok(const buffer *b)
{
    return !b->failed;
}
/* Drops the first `count` bytes (all, if there are fewer). */
void buffer_drop(buffer *b, size_t count);
void buffer_clear(buffer *b); /* length 0, memory kept */
void buffer_free(buffer *b);
/* Hands the string over (free() it) and leaves the buffer empty; "" for an empty buffer, NULL if an append failed. */
char *buffer_take(buffer *b, size_t *length);

#endif
